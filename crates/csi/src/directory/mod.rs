//! The directory driver: a CSI driver whose volumes are directories with a recorded size.
//!
//! It needs no privileges: nothing is mounted; publishing a volume creates a symbolic link. Sizes are recorded, not
//! enforced. It is for laptops and CI, where it behaves as the CSI specification requires, including error codes.
//!
//! Operations on one volume wait for each other; operations on different volumes run concurrently. If a caller
//! disconnects, its waiting operation is dropped, but a running one completes.

pub mod archive;
mod calls;
mod check;
mod controller;
mod disk;
mod faults;
mod locks;
mod node;
mod options;
mod record;
mod returned;
mod service;
mod snapshots;
mod socket;
mod state;
#[cfg(test)]
mod tests;

pub use calls::{Call, Calls};
pub use faults::{Faults, Gate, Order};
pub use options::{DEFAULT_NAME, Expansion, Options};
pub use service::CALLS;
pub use socket::{ListenError, Serving, inside};
pub use state::{Finding, OpenError};

use locks::{Guard, Locks};
use record::{Texts, VolumeRecord};
use state::{Files, State, Volume};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// A driver on one directory. [`Serving`] serves it at a socket.
#[derive(Debug)]
pub struct DirectoryDriver {
    options: Options,
    files: Files,
    state: Mutex<State>,
    locks: Locks,
    faults: Faults,
    calls: Calls,
    findings: Vec<Finding>,
    /// The subjects of calls that continue without their callers.
    under_way: Mutex<BTreeSet<String>>,
    /// Cancels calls that continue without their callers.
    ended: CancellationToken,
}

impl DirectoryDriver {
    /// Opens a directory, creates it if it does not exist, and holds its lock until the driver is dropped. Blocks while
    /// it reads the disk.
    pub fn open(directory: &Path, options: Options, faults: Faults) -> Result<Arc<DirectoryDriver>, OpenError> {
        options.check().map_err(OpenError::Options)?;
        let files = Files::open(directory, options.durable)?;
        let (state, findings) = files.load().map_err(|error| OpenError::Unusable(directory.to_owned(), error))?;
        for finding in &findings {
            tracing::warn!("{finding}");
        }
        Ok(Arc::new(DirectoryDriver {
            calls: Calls::new(options.calls_kept),
            options,
            files,
            state: Mutex::new(state),
            locks: Locks::default(),
            faults,
            findings,
            under_way: Mutex::default(),
            ended: CancellationToken::new(),
        }))
    }

    /// Problems found when the directory was opened.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The ids and sizes of all volumes, for tests.
    pub fn sizes(&self) -> Vec<(String, i64)> {
        let state = self.state();
        state.volumes.values().map(|volume| (volume.record.id.clone(), volume.record.size_bytes)).collect()
    }

    /// The ids and names of all volumes, for tests. Reads the driver's memory without a call.
    pub fn volumes(&self) -> Vec<(String, String)> {
        let state = self.state();
        state.volumes.values().map(|volume| (volume.record.id.clone(), volume.record.name.clone())).collect()
    }

    /// Why a volume cannot be published: its data or its record is missing. Blocks while it reads the disk.
    pub fn problem(&self, id: &str) -> Option<String> {
        // Only ids of this driver's own volumes become paths.
        let found = self.volume(id).and_then(|volume| self.has_data(&volume.record.id));
        found.err().map(|status| status.message().to_owned())
    }

    /// Stops calls that continue without their callers, as the end of the process would.
    pub fn end(&self) {
        self.ended.cancel();
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse_if_under_way(&self, subject: &str) -> Result<(), Status> {
        match !subject.is_empty() && self.under_way().contains(subject) {
            true => Err(Status::aborted(format!("another call for {subject:?} is in progress"))),
            false => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volume with this id, or why it is not served.
    fn volume(&self, id: &str) -> Result<Volume, Status> {
        let state = self.state();
        if let Some(volume) = state.volumes.get(id) {
            return Ok(volume.clone());
        }
        Err(match state.damaged.get(id) {
            Some(why) => Status::internal(format!("{id} cannot be served: {why}")),
            None => Status::not_found(format!("there is no volume {id:?}")),
        })
    }

    /// Writes a volume's new record to disk, then updates the state in memory.
    fn update_volume(&self, record: VolumeRecord) -> Result<(), Status> {
        let written = self.files.write_volume(&record);
        let record = match written {
            Ok(()) => Ok(record),
            // The rename may have happened before the failure: read the record from disk.
            Err(_) => self.files.reread_volume(&record.id).map_err(|why| (record.id, why)),
        };
        let mut state = self.state();
        match record {
            Ok(record) => {
                if let Some(volume) = state.volumes.get_mut(&record.id) {
                    volume.record = Arc::new(record);
                }
            }
            Err((id, why)) => {
                state.remove_volume(&id);
                state.damaged.insert(id, why);
            }
        }
        written.map_err(failed)
    }

    /// Runs blocking work to its end even if the caller disconnects. Releases `held` at the end.
    async fn run<T: Send + 'static>(
        self: Arc<DirectoryDriver>,
        held: Vec<Guard>,
        work: impl FnOnce(&DirectoryDriver) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        if self.options.inline {
            return work(&self);
        }
        let task = tokio::task::spawn_blocking(move || {
            let result = work(&self);
            drop(held);
            result
        });
        task.await.unwrap_or_else(|error| Err(Status::internal(format!("the driver failed: {error}"))))
    }
}

/// The status of a failed write.
fn failed(error: io::Error) -> Status {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Status::resource_exhausted(format!("the driver's disk is full: {error}"))
        }
        _ => Status::internal(format!("the driver's disk: {error}")),
    }
}

/// A page of entries in the order of their ids: after `token`, at most `max_entries` (0 = all), and the token of the
/// next page. The token is the last id of the previous page, so it stays valid when entries are added or removed.
fn page<'a, T: 'a>(
    things: impl Iterator<Item = (&'a String, &'a T)>,
    kind: state::Kind,
    token: &str,
    max_entries: i32,
) -> Result<(Vec<&'a T>, String), Status> {
    let max = usize::try_from(max_entries).map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    if !token.is_empty() && !kind.is_id(token) {
        return Err(Status::aborted(format!("starting_token {token:?} is not one of this driver's")));
    }
    let mut rest = things.skip_while(|(id, _)| !token.is_empty() && id.as_str() <= token).peekable();
    let (mut entries, mut last) = (Vec::new(), String::new());
    while let Some((id, thing)) = rest.next_if(|_| max == 0 || entries.len() < max) {
        entries.push(thing);
        last.clone_from(id);
    }
    let next = if rest.peek().is_some() { last } else { String::new() };
    Ok((entries, next))
}

/// Whether a topology segment matches the requested one.
fn is_at(place: &Texts, segments: &Texts) -> bool {
    segments.iter().all(|(key, value)| place.get(key) == Some(value))
}
