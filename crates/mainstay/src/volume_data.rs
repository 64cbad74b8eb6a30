//! The data of the built-in class's volumes in backups: included on request, and otherwise counted.

use crate::cli::BadInput;
use anyhow::{Result, anyhow};
use csi::directory::DEFAULT_NAME;
use csi::directory::archive::{self, ArchiveError, Summary};
use object::Value;
use object::access::Access;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::Rows;

/// How many examples a message names.
const EXAMPLES: usize = 3;

/// The directory of the built-in driver's volumes in a data directory.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("volumes")
}

/// The PVs of a store.
#[derive(Default)]
pub struct Volumes {
    /// The handles of the directory driver's volumes.
    builtin: BTreeSet<String>,
    /// The number of PVs of other CSI drivers.
    others: usize,
}

impl Volumes {
    pub fn add(&mut self, page: &Rows) {
        for (_, row) in page.iter().filter(|(key, _)| key.starts_with("/core/persistentvolumes/")) {
            let read = serde_json::from_slice::<Value>(&server::codec::finish(&row.value, row.modified));
            // A row that is not an object is refused or reported elsewhere.
            let Ok(volume) = read else { continue };
            match volume.text(&["spec", "csi", "driver"]) {
                "" => {}
                DEFAULT_NAME => drop(self.builtin.insert(volume.text(&["spec", "csi", "volumeHandle"]).to_owned())),
                _ => self.others += 1,
            }
        }
    }

    /// Prints which data a backup does not have.
    pub fn print_absent(&self, file: &Path, data: Option<&Summary>) {
        let file = file.display();
        match data {
            None if self.builtin.is_empty() => {}
            None => println!(
                "{file} does not have the data of {} volumes of {DEFAULT_NAME}: --with-volumes includes it.",
                self.builtin.len()
            ),
            Some(data) => {
                let absent = self.absent(&data.volumes);
                if !absent.is_empty() {
                    println!("{file} does not have the data of {} of {DEFAULT_NAME}: it was not found.", list(&absent));
                }
            }
        }
        if self.others > 0 {
            println!("{file} does not have the data of {} volumes of other CSI drivers.", self.others);
        }
    }

    /// Prints which volumes have no data after a restore.
    pub fn print_missing(&self, place: Option<&Path>, is_in_backup: bool) -> Result<()> {
        if self.builtin.is_empty() {
            return Ok(());
        }
        let Some(place) = place else {
            println!(
                "The data of {} volumes of {DEFAULT_NAME} is not restored: it belongs to the machine that runs their driver.",
                self.builtin.len()
            );
            return Ok(());
        };
        let absent = self.absent(&archive::ids(place)?);
        if absent.is_empty() {
            return Ok(());
        }
        println!(
            "{} of {DEFAULT_NAME} have no data in {}: pods that use them do not start.",
            list(&absent),
            place.display()
        );
        if is_in_backup {
            println!(
                "The backup has data of volumes: to restore it too, restore into another place with --with-volumes."
            );
        }
        Ok(())
    }

    fn absent(&self, present: &[String]) -> Vec<&str> {
        self.builtin.iter().filter(|handle| !present.contains(handle)).map(String::as_str).collect()
    }
}

fn list(handles: &[&str]) -> String {
    let named = handles[..handles.len().min(EXAMPLES)].join(", ");
    let more = if handles.len() > EXAMPLES { ", …" } else { "" };
    format!("{} volumes ({named}{more})", handles.len())
}

/// The driver's directory: as given, or in the data directory.
pub fn place(asked: Option<&Path>, data_dir: Option<&Path>) -> Result<PathBuf, BadInput> {
    match (asked, data_dir) {
        (Some(asked), _) => Ok(asked.to_owned()),
        (None, Some(data_dir)) => Ok(directory(data_dir)),
        (None, None) => Err(BadInput(
            "an etcd has no data of volumes: give the directory of the driver, --with-volumes=DIR".to_owned(),
        )),
    }
}

/// Appends the data of all volumes to a file.
pub async fn append(place: &Path, file: &File) -> Result<Summary> {
    let to = Stoppable { to: file.try_clone()?, stopped: Arc::default() };
    let _stop = StopOnDrop(to.stopped.clone());
    let place = place.to_owned();
    let writing = tokio::task::spawn_blocking(move || {
        let mut to = BufWriter::with_capacity(1 << 20, to);
        let summary = archive::write(&place, &mut to)?;
        to.flush().map_err(|error| ArchiveError::Io("cannot write the volumes' data".to_owned(), error))?;
        Ok::<_, ArchiveError>(summary)
    });
    Ok(writing.await.map_err(|error| anyhow!("writing the volumes' data failed: {error}"))??)
}

/// Refuses a directory that has volumes, before anything is written.
pub fn check_empty(place: &Path) -> Result<()> {
    match archive::ids(place)?.is_empty() {
        true => Ok(()),
        false => Err(BadInput(ArchiveError::NotEmpty(place.to_owned()).to_string()).into()),
    }
}

/// Restores the volumes of a backup into a directory without volumes.
pub async fn restore(from: impl Read + Send + 'static, place: &Path) -> Result<Summary> {
    let place = place.to_owned();
    let from = Stoppable { to: from, stopped: Arc::default() };
    let _stop = StopOnDrop(from.stopped.clone());
    let making = tokio::task::spawn_blocking(move || archive::restore(from, &place));
    let made = making.await.map_err(|error| anyhow!("restoring the volumes' data failed: {error}"))?;
    made.map_err(|error| match error {
        ArchiveError::NotEmpty(_) | ArchiveError::Directory(_) => BadInput(error.to_string()).into(),
        error => error.into(),
    })
}

/// Whether the data of volumes follows the store in a backup file. The error says what is wrong.
pub fn follows(rest: &mut impl Read) -> Result<bool, String> {
    let mut magic = Vec::new();
    rest.by_ref().take(archive::MAGIC.len() as u64).read_to_end(&mut magic).map_err(|error| error.to_string())?;
    match &magic[..] {
        b"" => Ok(false),
        magic if magic == archive::MAGIC => Ok(true),
        magic if archive::MAGIC.starts_with(magic) => Err("it is incomplete: its end is missing".to_owned()),
        _ => Err("it is damaged: there is data after its end".to_owned()),
    }
}

/// Prints what was written or restored, and what was left out.
pub fn print(done: &str, place: &Path, summary: &Summary) {
    println!("{done} the data of volumes in {}: {summary}.", place.display());
    if summary.changed > 0 {
        println!(
            "{} files changed while they were read. For a consistent copy, scale the StatefulSets to 0 first.",
            summary.changed
        );
    }
    if summary.left_out > 0 {
        println!("{} are left out, for example: {}.", summary.left_out, summary.examples.join("; "));
    }
}

/// A reader or writer that fails once its task is no longer awaited: a blocking task cannot be cancelled.
struct Stoppable<T> {
    to: T,
    stopped: Arc<AtomicBool>,
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<T> Stoppable<T> {
    fn check(&self) -> io::Result<()> {
        if self.stopped.load(Ordering::Relaxed) { Err(io::Error::other("stopped by a signal")) } else { Ok(()) }
    }
}

impl<T: Write> Write for Stoppable<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<T: Read> Read for Stoppable<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.to.read(bytes)
    }
}
