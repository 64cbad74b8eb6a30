//! The built-in hostPath plugin: volumes that are directories of this machine, or of a simulated one.
//!
//! On this machine only directories below `/tmp` are created, removed or emptied: otherwise a user who can create a PV
//! could have any directory removed. Every user can write to `/tmp`, so no step resolves a path twice or follows a
//! symbolic link (crate `tree`).

use futures::future::BoxFuture;
use std::ffi::OsStr;
use std::io::{Error, ErrorKind};
use std::path::{Component, Path, PathBuf};
use tree::Dir;

const ROOT: &str = "/tmp";

/// An operation on a directory; its error is one sentence.
pub type Work = BoxFuture<'static, Result<(), String>>;

/// The directories of the plugin's volumes.
pub trait Directories: Send + Sync {
    /// Creates a directory. Succeeds if it exists.
    fn make(&self, directory: String) -> Work;

    /// Removes a directory and its content. Succeeds if it does not exist.
    fn destroy(&self, directory: String) -> Work;

    /// Removes the content of a directory.
    fn scrub(&self, directory: String) -> Work;
}

/// The directories of this machine.
pub struct OfMachine;

impl Directories for OfMachine {
    fn make(&self, directory: String) -> Work {
        blocking(move || {
            let path = below_root(&directory)?;
            let made = root().and_then(|root| root.make_beneath(&path, 0o750));
            made.map(drop).map_err(|error| reported("make", &directory, &error))
        })
    }

    fn destroy(&self, directory: String) -> Work {
        blocking(move || {
            let path = below_root(&directory)?;
            ignore_absence(remove(&path)).map_err(|error| reported("remove", &directory, &error))
        })
    }

    fn scrub(&self, directory: String) -> Work {
        blocking(move || {
            let path = below_root(&directory)?;
            let emptied = root().and_then(|root| root.open_beneath(&path)?.empty());
            ignore_absence(emptied).map_err(|error| reported("empty", &directory, &error))
        })
    }
}

fn root() -> Result<Dir, Error> {
    Dir::open(Path::new(ROOT))
}

fn remove(path: &Path) -> Result<(), Error> {
    let (parent, name) =
        (path.parent().unwrap_or_else(|| Path::new("")), path.file_name().unwrap_or_else(|| OsStr::new("")));
    let parent = if parent.as_os_str().is_empty() { root()? } else { root()?.open_beneath(parent)? };
    // A volume is a directory. Other files of that name are not removed.
    match parent.meta(name)?.kind {
        tree::Kind::Directory => parent.remove(name),
        _ => Err(tree::no_directory()),
    }
}

/// The path relative to `/tmp`; an error if the path is not below it.
fn below_root(directory: &str) -> Result<PathBuf, String> {
    let path = Path::new(directory);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    match path.strip_prefix(ROOT) {
        Ok(below) if is_plain && below.components().next().is_some() => Ok(below.to_owned()),
        _ => Err(format!("host_path deleter only supports {ROOT}/.+ but received provided {directory}")),
    }
}

fn ignore_absence(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn reported(what: &str, path: &str, error: &Error) -> String {
    match tree::is_no_directory(error) {
        true => format!("cannot {what} {path}: the path or one of its parents is a symbolic link or not a directory"),
        false => format!("cannot {what} {path}: {error}"),
    }
}

fn blocking(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Work {
    Box::pin(async { tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string())) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn fresh(name: &str) -> PathBuf {
        let path = Path::new(ROOT).join(format!("mainstay-directories-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn text(path: &Path) -> String {
        path.to_string_lossy().into_owned()
    }

    #[tokio::test]
    async fn creating_emptying_and_removing_a_directory_is_idempotent() {
        let root = fresh("life");
        let directory = root.join("a/b");
        for _ in 0..2 {
            OfMachine.make(text(&directory)).await.unwrap();
            fs::create_dir_all(directory.join("deep/er")).unwrap();
            fs::write(directory.join(".hidden"), "x").unwrap();
            symlink("/etc/hostname", directory.join("link")).unwrap();
            OfMachine.scrub(text(&directory)).await.unwrap();
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
            assert!(Path::new("/etc").exists());
        }
        for _ in 0..2 {
            OfMachine.destroy(text(&directory)).await.unwrap();
            OfMachine.scrub(text(&directory)).await.unwrap();
            assert!(!directory.exists());
        }
        OfMachine.destroy(text(&root.join("never/was/there"))).await.unwrap();
        fs::remove_dir_all(root).unwrap();
    }

    #[tokio::test]
    async fn paths_outside_tmp_are_refused() {
        for path in [
            "/",
            "/tmp",
            "/tmp/",
            "/tmp/..",
            "/tmp/../etc",
            "/tmp/a/../../etc",
            "/etc",
            "/tmpx/a",
            "tmp/a",
            "",
            "/data/tmp/x",
        ] {
            for result in [
                OfMachine.destroy(path.to_owned()).await,
                OfMachine.scrub(path.to_owned()).await,
                OfMachine.make(path.to_owned()).await,
            ] {
                let error = result.unwrap_err();
                assert_eq!(error, format!("host_path deleter only supports /tmp/.+ but received provided {path}"));
            }
        }
    }

    const REFUSED: &str = "is a symbolic link or not a directory";

    #[tokio::test]
    async fn symbolic_links_are_not_followed() {
        let root = fresh("links");
        fs::create_dir_all(root.join("inside/task")).unwrap();
        // Nothing below the first link's target could be removed anyway.
        for (link, to) in [("out", Path::new("/proc/self")), ("in", &root.join("inside"))] {
            symlink(to, root.join(link)).unwrap();
            for path in [root.join(link).join("task"), root.join(link)] {
                assert!(OfMachine.destroy(text(&path)).await.unwrap_err().ends_with(REFUSED), "{path:?}");
                assert!(OfMachine.scrub(text(&path)).await.unwrap_err().ends_with(REFUSED), "{path:?}");
            }
            assert!(OfMachine.make(text(&root.join(link).join("new"))).await.unwrap_err().ends_with(REFUSED));
        }
        assert!(root.join("inside/task").is_dir() && !root.join("inside/new").exists());
        fs::remove_dir_all(root).unwrap();
    }

    /// A user repeatedly swaps the parent of a volume's directory with a link to a directory elsewhere.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_outside_is_removed_when_a_parent_is_swapped_with_a_link() {
        let (root, outside) = (fresh("race"), tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap());
        let ended = Arc::new(AtomicBool::new(false));
        let swapping = {
            let (root, outside, ended) = (root.clone(), outside.path().to_owned(), ended.clone());
            std::thread::spawn(move || {
                fs::create_dir_all(root.join("parent")).unwrap();
                symlink(outside, root.join("link")).unwrap();
                let (at, aside, link) = (root.join("parent"), root.join("aside"), root.join("link"));
                while !ended.load(Ordering::Relaxed) {
                    fs::rename(&at, &aside).unwrap();
                    fs::rename(&link, &at).unwrap();
                    fs::rename(&at, &link).unwrap();
                    fs::rename(&aside, &at).unwrap();
                }
            })
        };
        // Wait until the swapping thread has created the parent.
        while !root.join("link").is_symlink() {
            tokio::task::yield_now().await;
        }
        for round in 0..500 {
            let (victim, emptied) = (format!("victim-{round}"), format!("emptied-{round}"));
            fs::create_dir_all(outside.path().join(&victim)).unwrap();
            fs::create_dir_all(outside.path().join(&emptied).join("kept")).unwrap();
            // Each may be refused or find nothing: the parent is a link, a directory or absent.
            let parent = root.join("parent");
            let _ = OfMachine.destroy(text(&parent.join(&victim))).await;
            let _ = OfMachine.scrub(text(&parent.join(&emptied))).await;
        }
        ended.store(true, Ordering::Relaxed);
        swapping.join().unwrap();
        let of = |prefix: &str| {
            let all = fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().path());
            all.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix)).collect::<Vec<_>>()
        };
        assert_eq!(of("victim-").len(), 500, "none was removed");
        assert!(of("emptied-").iter().all(|path| path.join("kept").is_dir()), "none was emptied");
        fs::remove_dir_all(root).unwrap();
    }
}
