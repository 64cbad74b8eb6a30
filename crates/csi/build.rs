//! Compiles the protobuf definition with protox, in Rust, so that cargo alone builds everything.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["csi.proto"], ["proto"])?;
    // Ordered maps give logs, comparisons and messages the same order every time.
    tonic_prost_build::configure().btree_map(".").build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
