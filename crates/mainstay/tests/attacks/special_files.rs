//! Named pipes, directories and devices at the paths of files that a start opens: the start continues, or ends with one
//! line, and never blocks.

use crate::support::{Cluster, Place, Running, mainstay};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// What replaces a file.
const KINDS: [&str; 3] = ["pipe", "directory", "device"];

fn put(kind: &str, path: &Path) {
    if path.is_dir() {
        std::fs::remove_dir(path).expect("it is empty");
    } else if path.symlink_metadata().is_ok() {
        std::fs::remove_file(path).expect("it can be removed");
    }
    match kind {
        "pipe" => assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo is there").success()),
        "directory" => std::fs::create_dir(path).expect("a directory can be made"),
        "device" => std::os::unix::fs::symlink("/dev/zero", path).expect("a link can be made"),
        other => panic!("{other}"),
    }
}

/// Starts `up` on the data directory. `Ok`: it serves; `Err`: its output until it ended by itself.
fn start(home: &Path, data: &Path, arguments: &[&str]) -> Result<Running, Vec<String>> {
    let mut command = mainstay(home);
    command.args(["up", "--listen", "127.0.0.1:0", "--nodes", "0", "--data-dir"]).arg(data).args(arguments);
    let mut program = Running::start(command);
    program.line_or_end(&["Ctrl-C"]).map(|_| program)
}

#[test]
fn special_files_in_the_data_directory_do_not_block_a_start() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let data = root.path().join("data");
    Cluster::start(Place::Directory(&data)).stop();
    for kind in KINDS {
        // Without these files the server cannot be sure of its state, so it refuses to start.
        for file in ["store/lock", "store/store.redb", "identity.pem", "volumes/lock"] {
            let path = data.join(file);
            let saved = std::fs::read(&path).ok();
            if file == "identity.pem" {
                // Read only if the store has no identity: in a new data directory.
                let new = root.path().join(format!("new-{kind}"));
                std::fs::create_dir(&new).expect("a directory can be made");
                put(kind, &new.join(file));
                is_refused(kind, &new.join(file), start(root.path(), &new, &[]));
                continue;
            }
            put(kind, &path);
            is_refused(kind, &path, start(root.path(), &data, &[]));
            put("directory", &path);
            std::fs::remove_dir(&path).expect("it is empty");
            std::fs::write(&path, saved.expect("the file was there")).expect("it can be written");
        }
        // The mark only adds a check, and the kubeconfig is written again.
        for file in ["store/store.mark", "kubeconfig"] {
            put(kind, &data.join(file));
            let program = start(root.path(), &data, &[]).unwrap_or_else(|said| panic!("{kind} as {file}: {said:?}"));
            program.terminate();
            let (status, said) = program.finish();
            assert!(status.success(), "{kind} as {file}: {said:?}");
            put("directory", &data.join(file));
            std::fs::remove_dir(data.join(file)).expect("it is empty");
        }
    }
}

fn is_refused(kind: &str, path: &Path, started: Result<Running, Vec<String>>) {
    let Err(said) = started else { panic!("{kind} as {}: the server starts", path.display()) };
    let name = path.display().to_string();
    assert!(
        said.len() == 1 && said[0].contains(&name) && said[0].contains("not a regular file"),
        "{kind} as {name}: one line that names the file: {said:?}"
    );
}

/// Files that arguments name. (A kubeconfig may be a pipe: `--kubeconfig <(kind get kubeconfig)` is common.)
#[test]
fn special_files_as_arguments_do_not_block_a_start() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let pipe = root.path().join("pipe");
    put("pipe", &pipe);
    let pipe = pipe.to_str().expect("temporary paths are UTF-8");
    for arguments in [
        vec!["up", "--in-memory", "--listen", "127.0.0.1:0", "--token-auth-file", pipe],
        vec!["server", "--store", "etcd://127.0.0.1:1", "--listen", "127.0.0.1:0", "--etcd-cafile", pipe],
        vec!["controllers", "--root-ca-file", pipe],
        vec!["store", "restore", pipe, "elsewhere"],
        vec!["store", "backup", "elsewhere", pipe],
    ] {
        let mut command = mainstay(root.path());
        command.args(&arguments);
        let (status, said) = Running::start(command).finish();
        assert_eq!(status.code(), Some(2), "{arguments:?}: {said:?}");
        assert!(said.len() == 1 && said[0].contains(pipe), "{arguments:?}: {said:?}");
    }
}
