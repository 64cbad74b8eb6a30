//! A killed restore leaves a directory in which no server starts a new, empty cluster.

use crate::support::program::run;
use crate::support::{PATIENCE, Place, Running, mainstay};
use futures::{StreamExt, stream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Export, Row};
use tempfile::TempDir;

/// This many ConfigMaps of 1 KB make a restore long enough to be killed in the middle.
const OBJECTS: usize = 20_000;

#[test]
fn a_killed_restore_is_not_taken_for_a_new_cluster() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let file = root.path().join("backup");
    write_backup(&file);
    let target = killed_in_the_middle(root.path(), &file);
    for (name, arguments) in
        [("up", vec!["up", "--listen", "127.0.0.1:0"]), ("server", vec!["server", "--listen", "127.0.0.1:0"])]
    {
        let mut command = mainstay(root.path());
        command.args(arguments).arg("--data-dir").arg(&target);
        let (status, said) = Running::start(command).finish();
        assert_eq!(status.code(), Some(1), "{name}: {said:?}");
        assert!(said.len() == 1 && said[0].contains("is incomplete: a `mainstay store restore`"), "{name}: {said:?}");
    }
    let mut backup = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    backup.args(["store", "backup"]).arg(&target).arg(root.path().join("other"));
    assert!(run(backup, "").failed().contains("is incomplete"));

    // The restore can be repeated, and the store is then complete.
    let mut restore = mainstay(root.path());
    restore.args(["store", "restore"]).arg(&file).arg(&target);
    let said = run(restore, "").succeeded();
    assert!(said.contains(&format!("{OBJECTS} keys")), "{said}");
    let names =
        std::fs::read_dir(target.join("store")).expect("a store").map(|entry| entry.expect("an entry").file_name());
    let names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(!names.iter().any(|name| name.contains("incomplete") || name.ends_with(".new")), "{names:?}");
    crate::support::Cluster::start_server(Place::Directory(&target)).stop();
}

/// A failed restore (here by a limit on file sizes) leaves the directory unchanged.
#[test]
fn a_failed_restore_leaves_an_empty_place() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let (file, target) = (root.path().join("backup"), root.path().join("target"));
    write_backup(&file);
    let program = mainstay(root.path());
    let mut command = Command::new("sh");
    command.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["-c", "trap '' XFSZ; ulimit -S -f 8192; exec \"$0\" \"$@\""]).arg(program.get_program());
    command.args(["store", "restore"]).arg(&file).arg(&target);
    let said = run(command, "").failed();
    assert!(said.contains("File too large") && said.lines().count() == 1, "{said}");
    assert!(said.contains(&target.join("store").display().to_string()), "it names the directory: {said}");
    let left =
        std::fs::read_dir(target.join("store")).expect("it was made").map(|entry| entry.expect("an entry").file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["lock"]);
}

/// Restores until one attempt is killed while it fills the store; returns the directory that it leaves.
fn killed_in_the_middle(home: &Path, file: &Path) -> std::path::PathBuf {
    for attempt in 0..20 {
        let target = home.join(format!("target-{attempt}"));
        let mut command = mainstay(home);
        command.args(["store", "restore"]).arg(file).arg(&target);
        let mut restore = Running::start(command);
        let deadline = Instant::now() + PATIENCE;
        while !target.join("store/lock").exists() {
            assert!(Instant::now() < deadline, "the restore does not begin");
            std::thread::park_timeout(Duration::from_millis(1));
        }
        // Kill later in each attempt, so that one is killed in the middle whatever the machine's speed.
        std::thread::park_timeout(Duration::from_millis(20 * attempt + 5));
        restore.end();
        let is_whole = target.join("store/store.redb").exists();
        if !is_whole && target.join("store/store.redb.new").exists() {
            return target;
        }
    }
    panic!("no restore was killed in the middle");
}

fn write_backup(file: &Path) {
    let rows = (0..OBJECTS).map(|n| {
        let name = format!("m{n:05}");
        let object = object::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
            "data": {"pad": "x".repeat(1000)},
        });
        let value = server::codec::encode(&object);
        let revision = 2 + n as u64;
        (
            Arc::from(format!("/core/configmaps/default/{name}")),
            Row { created: revision, modified: revision, expires_at_s: None, value },
        )
    });
    let pages: Vec<_> = rows.collect::<Vec<_>>().chunks(1000).map(|page| Ok(page.to_vec())).collect();
    let export = Export { revision: 2 + OBJECTS as u64, pages: Box::pin(stream::iter(pages)) };
    let pieces: Vec<_> = futures::executor::block_on(store::backup::encode(export).map(Result::unwrap).collect());
    std::fs::write(file, pieces.concat()).expect("it can be written");
}
