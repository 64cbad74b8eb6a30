//! Compiles the protobuf messages of etcd and of the layout. protox does it in Rust, so cargo needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto", "layout.proto"], ["proto"])?;
    // Byte fields share the received buffer instead of copying it.
    tonic_prost_build::configure().bytes(".").build_server(false).build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
