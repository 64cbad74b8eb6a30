//! Where the embedded store keeps its bytes: a private file, or whatever a simulation puts in its place.

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Opens the bytes of one store. Asked again after a refused write, when the engine must start anew.
pub trait Medium: Send + Sync {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>>;
}

/// A file. Holds the directory's lock as long as it lives.
pub(crate) struct FileMedium {
    pub path: PathBuf,
    /// Held, not read.
    pub _lock: Arc<File>,
}

impl Medium for FileMedium {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let file = private().read(true).write(true).create(true).truncate(false).open(&self.path)?;
        let backend = FileBackend::new(file).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Box::new(backend))
    }
}

/// Makes the directory if needed and locks it; `None` where another process holds the lock.
pub(crate) fn lock(dir: &Path) -> io::Result<Option<Arc<File>>> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let file = private().write(true).create(true).truncate(false).open(dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Arc::new(file))),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Makes a new or renamed file's name survive a crash.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// What happened on the way to the medium, which the engine's errors do not tell.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    /// The medium's length; outlives this gauge.
    pub bytes: Arc<AtomicU64>,
    sync_failed: AtomicBool,
    header_written: AtomicBool,
    header_synced: AtomicBool,
}

impl Gauge {
    pub fn new(bytes: Arc<AtomicU64>) -> Gauge {
        Gauge { bytes, ..Gauge::default() }
    }

    /// Forgets the commit before.
    pub fn begin(&self) {
        self.header_written.store(false, Ordering::Relaxed);
        self.header_synced.store(false, Ordering::Relaxed);
    }

    pub fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::Relaxed)
    }

    /// Whether the header, which names the current commit, may have reached the disk since [`Gauge::begin`].
    pub fn may_have_committed(&self) -> bool {
        self.header_synced.load(Ordering::Relaxed)
    }
}

/// The engine's header lies within the first so many bytes.
const HEADER_BYTES: u64 = 512;

/// A medium with a gauge on it.
#[derive(Debug)]
pub(crate) struct Gauged {
    pub inner: Box<dyn StorageBackend>,
    pub gauge: Arc<Gauge>,
}

impl StorageBackend for Gauged {
    fn len(&self) -> io::Result<u64> {
        let bytes = self.inner.len()?;
        self.gauge.bytes.store(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)?;
        self.gauge.bytes.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.inner.sync_data();
        match &synced {
            Ok(()) if self.gauge.header_written.load(Ordering::Relaxed) => {
                self.gauge.header_synced.store(true, Ordering::Relaxed);
            }
            Ok(()) => {}
            Err(_) => self.gauge.sync_failed.store(true, Ordering::Relaxed),
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset < HEADER_BYTES {
            self.gauge.header_written.store(true, Ordering::Relaxed);
        }
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
