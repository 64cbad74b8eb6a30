//! The plugin of our own: volumes that are directories of this machine, or of a simulated one.
//!
//! Of this machine only directories below `/tmp` are ever removed or emptied. Whoever can create a volume could otherwise have any directory of
//! it removed.

use futures::future::BoxFuture;
use std::fs::{self, DirBuilder};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

const ROOT: &str = "/tmp";

/// A piece of work on a directory; its error is a sentence.
pub type Work = BoxFuture<'static, Result<(), String>>;

/// Where volumes of the plugin inside are.
pub trait Directories: Send + Sync {
    /// Makes a directory. One that is there already is as good.
    fn make(&self, directory: String) -> Work;

    /// Removes a directory with all that is in it. One that is not there is as good.
    fn destroy(&self, directory: String) -> Work;

    /// Removes all that is in a directory.
    fn scrub(&self, directory: String) -> Work;
}

/// Those of this machine.
pub struct OfMachine;

impl Directories for OfMachine {
    fn make(&self, directory: String) -> Work {
        blocking(move || {
            let path = checked(&directory)?;
            let made = DirBuilder::new().recursive(true).mode(0o750).create(path);
            made.map_err(|error| told("make", &directory, &error))
        })
    }

    fn destroy(&self, directory: String) -> Work {
        blocking(move || {
            let path = confined(checked(&directory)?)?;
            ignore_absence(fs::remove_dir_all(path)).map_err(|error| told("remove", &directory, &error))
        })
    }

    fn scrub(&self, directory: String) -> Work {
        blocking(move || {
            let path = confined(checked(&directory)?)?;
            ignore_absence(empty(&path)).map_err(|error| told("empty", &directory, &error))
        })
    }
}

fn empty(directory: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // A link is removed, not followed.
        let removed =
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        ignore_absence(removed)?;
    }
    Ok(())
}

/// The path, if it is plainly below the root.
fn checked(directory: &str) -> Result<PathBuf, String> {
    let path = Path::new(directory);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let is_below = path.strip_prefix(ROOT).is_ok_and(|rest| rest.components().next().is_some());
    if is_plain && is_below {
        return Ok(path.to_owned());
    }
    Err(format!("host_path deleter only supports {ROOT}/.+ but received provided {directory}"))
}

/// The path, if no link on the way to it leads out of the root.
fn confined(path: PathBuf) -> Result<PathBuf, String> {
    let parent = path.parent().unwrap_or_else(|| Path::new(ROOT));
    let is_link = path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    let real = match parent.canonicalize() {
        Ok(real) => real,
        // Then there is nothing below it either.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(path),
        Err(error) => return Err(told("find", &path.to_string_lossy(), &error)),
    };
    let root = Path::new(ROOT).canonicalize().map_err(|error| told("find", ROOT, &error))?;
    if real.starts_with(root) && !is_link {
        return Ok(path);
    }
    Err(format!("{} is not really below {ROOT}: a link leads out of it", path.display()))
}

fn ignore_absence(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn told(what: &str, path: &str, error: &Error) -> String {
    format!("cannot {what} {path}: {error}")
}

fn blocking(work: impl FnOnce() -> Result<(), String> + Send + 'static) -> Work {
    Box::pin(async { tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string())) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

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
    async fn directories_are_made_emptied_and_removed_as_often_as_one_likes() {
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
    async fn nothing_outside_of_the_root_is_touched() {
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
        let root = fresh("links");
        // Where nothing could be removed even if it were tried.
        symlink("/proc/self", root.join("out")).unwrap();
        for path in [root.join("out/task"), root.join("out")] {
            assert!(OfMachine.destroy(text(&path)).await.unwrap_err().contains("a link leads out of it"), "{path:?}");
            assert!(OfMachine.scrub(text(&path)).await.unwrap_err().contains("a link leads out of it"), "{path:?}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
