//! Compiles what is said to etcd; protox does it in Rust, so that cargo alone builds everything.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto", "layout.proto"], ["proto"])?;
    // Values are shared with what was received, not copied.
    tonic_prost_build::configure().bytes(".").build_server(false).build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
