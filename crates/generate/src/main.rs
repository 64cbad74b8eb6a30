//! Writes the generated files that are stored in the repository: `cargo run -p generate`.
//!
//! Storing them keeps the generators out of the build of the program: about 40 s of CPU time (decision 24).
//! `cargo test -p generate` fails when a stored file differs from what its generator writes.

mod definitions;

use std::path::{Path, PathBuf};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    for (path, text) in files()? {
        std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Returns each generated file with its text.
fn files() -> Result<Vec<(PathBuf, String)>, Failure> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("this crate has no parent directory")?;
    let mut files = vec![(crates.join("object/generated/definitions.json"), definitions::definitions())];
    // Ordered maps make what is logged, compared and written the same every time.
    let csi = tonic_prost_build::configure().btree_map(".").build_transport(false);
    files.extend(messages(&crates.join("csi"), csi, &["csi.proto"])?);
    // Byte fields share the received buffer instead of copying it.
    let etcd = tonic_prost_build::configure().bytes(".").build_server(false).build_transport(false);
    files.extend(messages(&crates.join("store"), etcd, &["etcd.proto", "layout.proto"])?);
    Ok(files)
}

/// Compiles the protobuf messages of a package. protox does it in Rust, so cargo needs no `protoc`.
fn messages(
    package: &Path,
    builder: tonic_prost_build::Builder,
    protos: &[&str],
) -> Result<Vec<(PathBuf, String)>, Failure> {
    let out = tempfile::tempdir()?;
    let descriptors = protox::compile(protos, [package.join("proto")])?;
    builder.out_dir(out.path()).compile_fds(descriptors)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(out.path())? {
        let entry = entry?;
        let text = std::fs::read_to_string(entry.path())?;
        files.push((package.join("generated").join(entry.file_name()), text));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    #[test]
    fn stored_files_are_as_their_generators_write_them() {
        let files = super::files().expect("the generators work");
        assert_eq!(files.len(), 4);
        for (path, text) in files {
            let stored = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                stored == text,
                "{} differs from what its generator writes: `cargo run -p generate`",
                path.display()
            );
        }
    }
}
