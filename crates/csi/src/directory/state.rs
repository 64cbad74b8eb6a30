//! The driver's state: in memory and on disk.
//!
//! ```text
//! DIR/lock                        locked by the driver that serves the directory
//! DIR/volumes/<id>/volume.json    the record: id, name, size, …
//! DIR/volumes/<id>/use.json       where it is staged and published
//! DIR/volumes/<id>/data/          the users' data
//! DIR/snapshots/<id>/snapshot.json, data/
//! DIR/…/new-<id>/, gone-<id>/     being created or deleted; removed when the driver starts
//! ```

use super::disk::{self, Disk, read_regular, regular_or_absent};
use super::record::{self, SnapshotRecord, UseRecord, VolumeRecord};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a directory cannot be served; the text is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another driver serves the directory {0}")]
    InUse(PathBuf),
    #[error("cannot use the directory {0}: {1}")]
    Unusable(PathBuf, io::Error),
    #[error("{0}")]
    Options(String),
}

/// A problem in the directory. The files are not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    #[error("{id} cannot be served: {} is damaged: {why}", .path.display())]
    Damaged { id: String, path: PathBuf, why: String },
    #[error("{} does not belong to this driver and is ignored", .0.display())]
    Foreign(PathBuf),
    #[error("{} is damaged, so {id} counts as used nowhere: {why}", .path.display())]
    UseLost { id: String, path: PathBuf, why: String },
}

/// A volume in memory.
#[derive(Clone, Debug)]
pub struct Volume {
    pub record: Arc<VolumeRecord>,
    pub used: Arc<UseRecord>,
}

/// Changed together with the disk, by whoever holds a volume's lock.
#[derive(Debug, Default)]
pub struct State {
    pub volumes: BTreeMap<String, Volume>,
    pub volume_names: HashMap<String, String>,
    pub snapshots: BTreeMap<String, Arc<SnapshotRecord>>,
    pub snapshot_names: HashMap<String, String>,
    /// The sum of all volume sizes, including those of volumes that are being created.
    pub allocated_bytes: i64,
    /// Ids on disk whose record cannot be read, and why.
    pub damaged: BTreeMap<String, String>,
}

/// Volumes or snapshots; each has its own directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Volume,
    Snapshot,
}

impl Kind {
    pub fn directory(self) -> &'static str {
        match self {
            Kind::Volume => "volumes",
            Kind::Snapshot => "snapshots",
        }
    }

    pub fn record_file(self) -> &'static str {
        match self {
            Kind::Volume => "volume.json",
            Kind::Snapshot => "snapshot.json",
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Kind::Volume => "vol-",
            Kind::Snapshot => "snap-",
        }
    }

    pub fn new_id(self) -> String {
        format!("{}{}", self.prefix(), uuid::Uuid::new_v4().simple())
    }

    /// Whether this can be an id of this driver.
    pub fn is_id(self, text: &str) -> bool {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        text.strip_prefix(self.prefix()).is_some_and(|rest| rest.len() == 32 && rest.bytes().all(hex))
    }
}

/// The directory of one driver; its lock is held while this exists.
#[derive(Debug)]
pub struct Files {
    pub root: PathBuf,
    pub disk: Disk,
    _lock: File,
}

impl Files {
    pub fn open(root: &Path, durable: bool) -> Result<Files, OpenError> {
        let unusable = |error| OpenError::Unusable(root.to_owned(), error);
        let make = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable);
        make(root)?;
        let root = root.canonicalize().map_err(unusable)?;
        let path = root.join("lock");
        regular_or_absent(&path).map_err(unusable)?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let lock = lock.map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(OpenError::InUse(root)),
            Err(std::fs::TryLockError::Error(error)) => return Err(unusable(error)),
        }
        for kind in [Kind::Volume, Kind::Snapshot] {
            make(&root.join(kind.directory()))?;
        }
        let disk = Disk::new(durable);
        disk.sync_dir(&root).map_err(unusable)?;
        Ok(Files { root, disk, _lock: lock })
    }

    /// Reads everything, and removes what was being created or deleted when the driver stopped.
    pub fn load(&self) -> io::Result<(State, Vec<Finding>)> {
        let (mut state, mut findings) = (State::default(), Vec::new());
        for id in self.ids(Kind::Volume, &mut findings)? {
            match self.read::<VolumeRecord>(Kind::Volume, &id) {
                Ok(record) => {
                    let used = self.read_use(&id, &mut findings);
                    state.add_volume(record, used).unwrap_or_else(|why| {
                        findings.push(self.damaged(Kind::Volume, &id, why, &mut state));
                    });
                }
                Err(why) => findings.push(self.damaged(Kind::Volume, &id, why, &mut state)),
            }
        }
        for id in self.ids(Kind::Snapshot, &mut findings)? {
            match self.read::<SnapshotRecord>(Kind::Snapshot, &id).and_then(|record| state.add_snapshot(record)) {
                Ok(()) => {}
                Err(why) => findings.push(self.damaged(Kind::Snapshot, &id, why, &mut state)),
            }
        }
        Ok((state, findings))
    }

    pub fn data(&self, kind: Kind, id: &str) -> PathBuf {
        self.home(kind, id).join("data")
    }

    /// Creates a volume or snapshot atomically. `fill` writes data into the new data directory.
    pub fn create(
        &self,
        kind: Kind,
        id: &str,
        record: &[u8],
        fill: impl FnOnce(&Disk, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let (draft, home) = (self.beside(kind, "new-", id), self.home(kind, id));
        let made = (|| {
            self.disk.make_dir(&draft)?;
            let data = draft.join("data");
            self.disk.make_dir(&data)?;
            fill(&self.disk, &data)?;
            self.disk.write(&draft.join(kind.record_file()), record)?;
            self.disk.sync_dir(&draft)?;
            self.disk.rename(&draft, &home)?;
            self.disk.sync_dir(disk::parent(&home))
        })();
        made.inspect_err(|_| {
            // No caller knows the id yet: remove what was created, now or at the next start.
            for path in [&draft, &home] {
                if let Err(error) = self.disk.remove_tree(path) {
                    tracing::warn!(%error, path = %path.display(), "cannot remove an incomplete volume");
                }
            }
        })
    }

    /// Creates a draft that [`Files::publish_draft`] makes a volume or snapshot: its record and an empty data
    /// directory. Not synced.
    pub fn make_draft(&self, kind: Kind, id: &str, record: &[u8]) -> io::Result<PathBuf> {
        let draft = self.beside(kind, "new-", id);
        self.disk.make_dir(&draft)?;
        self.disk.make_dir(&draft.join("data"))?;
        self.disk.write_unsynced(&draft.join(kind.record_file()), record)?;
        Ok(draft)
    }

    pub fn publish_draft(&self, kind: Kind, id: &str) -> io::Result<()> {
        self.disk.rename(&self.beside(kind, "new-", id), &self.home(kind, id))
    }

    /// Removes a draft, also after it was published.
    pub fn remove_draft(&self, kind: Kind, id: &str) -> io::Result<()> {
        self.disk.remove_tree(&self.beside(kind, "new-", id))?;
        self.disk.remove_tree(&self.home(kind, id))
    }

    /// Deletes a volume or snapshot. It is durably deleted when this returns; its data may be removed a moment later.
    pub fn remove(&self, kind: Kind, id: &str) -> io::Result<()> {
        let (home, gone) = (self.home(kind, id), self.beside(kind, "gone-", id));
        match self.disk.rename(&home, &gone) {
            // An earlier attempt got this far, or a user removed the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        self.disk.sync_dir(disk::parent(&home))?;
        if let Err(error) = self.disk.remove_tree(&gone) {
            tracing::warn!(%error, path = %gone.display(), "cannot remove a deleted volume's data; retrying at the next start");
        }
        Ok(())
    }

    pub fn write_volume(&self, record: &VolumeRecord) -> io::Result<()> {
        let path = self.home(Kind::Volume, &record.id).join(Kind::Volume.record_file());
        self.disk.replace(&path, &record::encode(record))
    }

    /// Reads a volume from disk after a failed write, whose outcome is unknown.
    pub fn reread_volume(&self, id: &str) -> Result<VolumeRecord, String> {
        self.read(Kind::Volume, id)
    }

    /// Not synced: after a crash of the machine the links that this describes need not exist either.
    pub fn write_use(&self, id: &str, used: &UseRecord) -> io::Result<()> {
        let path = self.home(Kind::Volume, id).join(USE_FILE);
        if used == &UseRecord::default() {
            return self.disk.remove_file(&path);
        }
        let draft = path.with_extension("new");
        self.disk.write_unsynced(&draft, &record::encode(used))?;
        self.disk.rename(&draft, &path)
    }

    fn home(&self, kind: Kind, id: &str) -> PathBuf {
        self.beside(kind, "", id)
    }

    fn beside(&self, kind: Kind, prefix: &str, id: &str) -> PathBuf {
        assert!(kind.is_id(id), "only ids of this driver become paths, not {id:?}");
        self.root.join(kind.directory()).join(format!("{prefix}{id}"))
    }

    fn ids(&self, kind: Kind, findings: &mut Vec<Finding>) -> io::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in self.root.join(kind.directory()).read_dir()? {
            let entry = entry?;
            let name = entry.file_name();
            let (name, path) = (name.to_str().unwrap_or_default(), entry.path());
            let unfinished = |prefix| name.strip_prefix(prefix).is_some_and(|rest| kind.is_id(rest));
            if !entry.file_type()?.is_dir() {
                findings.push(Finding::Foreign(path));
            } else if kind.is_id(name) {
                ids.push(name.to_owned());
            } else if unfinished("new-") || unfinished("gone-") {
                tracing::info!(path = %path.display(), "removing what was being created or deleted when the driver stopped");
                self.disk.remove_tree(&path)?;
            } else {
                findings.push(Finding::Foreign(path));
            }
        }
        // The order of a directory listing is not defined.
        ids.sort();
        findings.sort_by_key(|finding| finding.to_string());
        Ok(ids)
    }

    /// The ids on disk. Unlike [`Files::load`] this removes nothing.
    pub fn ids_on_disk(&self, kind: Kind) -> io::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in self.root.join(kind.directory()).read_dir()? {
            let entry = entry?;
            ids.extend(entry.file_name().to_str().filter(|name| kind.is_id(name)).map(str::to_owned));
        }
        ids.sort();
        Ok(ids)
    }

    fn read<T: DeserializeOwned + Identified>(&self, kind: Kind, id: &str) -> Result<T, String> {
        let path = self.home(kind, id).join(kind.record_file());
        let bytes = read_regular(&path).map_err(|error| error.to_string())?;
        let record: T = record::decode(&bytes)?;
        if record.id() != id {
            return Err(format!("it is about {:?}", record.id()));
        }
        Ok(record)
    }

    pub fn read_use(&self, id: &str, findings: &mut Vec<Finding>) -> UseRecord {
        let path = self.home(Kind::Volume, id).join(USE_FILE);
        let read = match read_regular(&path) {
            Ok(bytes) => record::decode(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(UseRecord::default()),
            Err(error) => Err(error.to_string()),
        };
        read.unwrap_or_else(|why| {
            findings.push(Finding::UseLost { id: id.to_owned(), path, why });
            UseRecord::default()
        })
    }

    fn damaged(&self, kind: Kind, id: &str, why: String, state: &mut State) -> Finding {
        let path = self.home(kind, id).join(kind.record_file());
        state.damaged.insert(id.to_owned(), format!("its record {} is damaged: {why}", path.display()));
        Finding::Damaged { id: id.to_owned(), path, why }
    }
}

const USE_FILE: &str = "use.json";

trait Identified {
    fn id(&self) -> &str;
}

impl Identified for VolumeRecord {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Identified for SnapshotRecord {
    fn id(&self) -> &str {
        &self.id
    }
}

impl State {
    /// Adds a volume; the error says why it cannot be served.
    pub fn add_volume(&mut self, record: VolumeRecord, used: UseRecord) -> Result<(), String> {
        if let Some(other) = self.volume_names.get(&record.name) {
            return Err(format!("its name {:?} is the name of {other} too", record.name));
        }
        if record.size_bytes < 0 {
            return Err(format!("its size is {} bytes", record.size_bytes));
        }
        self.volume_names.insert(record.name.clone(), record.id.clone());
        self.allocated_bytes = self.allocated_bytes.saturating_add(record.size_bytes);
        self.volumes.insert(record.id.clone(), Volume { record: Arc::new(record), used: Arc::new(used) });
        Ok(())
    }

    pub fn remove_volume(&mut self, id: &str) {
        if let Some(volume) = self.volumes.remove(id) {
            self.volume_names.remove(&volume.record.name);
            self.allocated_bytes -= volume.record.size_bytes;
        }
    }

    pub fn add_snapshot(&mut self, record: SnapshotRecord) -> Result<(), String> {
        if let Some(other) = self.snapshot_names.get(&record.name) {
            return Err(format!("its name {:?} is the name of {other} too", record.name));
        }
        self.snapshot_names.insert(record.name.clone(), record.id.clone());
        self.snapshots.insert(record.id.clone(), Arc::new(record));
        Ok(())
    }

    pub fn remove_snapshot(&mut self, id: &str) {
        if let Some(snapshot) = self.snapshots.remove(id) {
            self.snapshot_names.remove(&snapshot.name);
        }
    }
}
