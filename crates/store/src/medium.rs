//! Where the embedded store keeps its bytes: a private file, or a simulated disk.

use crate::OpenError;
use crate::regular_file::open as open_regular;
use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The storage of one store. `open` is called again after a refused write, to reopen the engine.
pub trait Medium: Send + Sync {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>>;
    /// Drops cached pages, so that later reads return what the disk has. After a failed sync the two may differ until
    /// the machine restarts: Linux keeps pages that it could not write, and treats them as written.
    fn forget_cached(&self) -> io::Result<()>;
    /// Overwrites a few bytes beside the store (the mark). They are not synced: after a crash they may be an older
    /// version, torn, or missing.
    fn note(&self, bytes: &[u8]) -> io::Result<()>;
    /// Returns the bytes of the last `note`; empty if there are none.
    fn noted(&self) -> io::Result<Vec<u8>>;
    /// The file, for log messages; empty where there is none.
    fn place(&self) -> String {
        String::new()
    }
}

const NOTE_BYTES_MAX: u64 = 512;
const PID_BYTES_MAX: u64 = 20;

/// A store file. It holds the lock of its directory while it exists.
pub(crate) struct FileMedium {
    path: PathBuf,
    note: PathBuf,
    /// Opened at the first write of the mark.
    note_file: Mutex<Option<File>>,
    /// Never read; holding it keeps the directory locked.
    _lock: Arc<File>,
}

impl FileMedium {
    pub fn new(path: PathBuf, note: PathBuf, lock: Arc<File>) -> FileMedium {
        FileMedium { path, note, note_file: Mutex::default(), _lock: lock }
    }
}

/// A new store file that is synced once, after it was filled. It has a temporary name until then, so a crash before the
/// sync loses nothing.
pub(crate) struct Draft {
    pub path: PathBuf,
}

impl Draft {
    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl Medium for Draft {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let file = private().read(true).write(true).create_new(true).open(&self.path)?;
        Ok(Box::new(DraftBackend(file)))
    }

    /// A new file has no cached pages.
    fn forget_cached(&self) -> io::Result<()> {
        Ok(())
    }

    /// A store that is being filled has acknowledged nothing, so it needs no mark.
    fn note(&self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn noted(&self) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

#[derive(Debug)]
struct DraftBackend(File);

impl StorageBackend for DraftBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

impl Medium for FileMedium {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let file = open_regular(private().read(true).write(true).create(true).truncate(false), &self.path)?;
        let backend = FileBackend::new(file).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Box::new(backend))
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn forget_cached(&self) -> io::Result<()> {
        let file = open_regular(private().read(true).write(true).create(true).truncate(false), &self.path)?;
        // Dropping the cache affects only clean pages, so write the dirty ones first.
        file.sync_data()?;
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed) {
            tracing::warn!(%error, file = self.place(), "cannot drop the cached pages of the store; its last commits are trusted to be on disk");
        }
        Ok(())
    }

    fn note(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.note_file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = Some(open_regular(private().write(true).create(true).truncate(false), &self.note)?);
        }
        file.as_ref().map_or(Ok(()), |file| file.write_all_at(bytes, 0))
    }

    fn noted(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match open_regular(private().read(true), &self.note) {
            // Reads at most `NOTE_BYTES_MAX`, because the file may be something else and large.
            Ok(file) => file.take(NOTE_BYTES_MAX).read_to_end(&mut bytes).map(|_| bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(bytes),
            Err(error) => Err(error),
        }
    }
}

/// Creates the directory if it does not exist, locks it, and writes the process id into the lock file.
pub(crate) fn lock(dir: &Path) -> Result<Arc<File>, OpenError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let path = dir.join("lock");
    let file = open_regular(private().read(true).write(true).create(true).truncate(false), &path)?;
    match file.try_lock() {
        Ok(()) => {
            // The id is only used in the error message of another process. On a full disk the file stays empty.
            let named = file.set_len(0).and_then(|()| file.write_all_at(std::process::id().to_string().as_bytes(), 0));
            if let Err(error) = named {
                tracing::debug!(%error, file = %path.display(), "cannot write the process id into the lock file");
            }
            Ok(Arc::new(file))
        }
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut text = String::new();
            // If the file has no valid number, the message names no process.
            let holder = file.take(PID_BYTES_MAX).read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            Err(OpenError::InUse { directory: dir.to_owned(), holder })
        }
        Err(std::fs::TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Creates an empty file if it does not exist.
pub(crate) fn create(path: &Path) -> io::Result<()> {
    open_regular(private().write(true).create(true).truncate(false), path).map(drop)
}

/// Syncs a directory, so that the names of new and renamed files survive a crash.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Records what happened in the storage backend, because redb's errors do not tell.
#[derive(Debug, Default)]
pub(crate) struct IoRecord {
    /// Length of the medium in bytes. Shared with the gauges of later restarts.
    pub bytes: Arc<AtomicU64>,
    sync_failed: AtomicBool,
    header_synced: AtomicBool,
}

impl IoRecord {
    pub fn new(bytes: Arc<AtomicU64>) -> IoRecord {
        IoRecord { bytes, ..IoRecord::default() }
    }

    /// Starts a new commit: resets what was recorded for the previous one.
    pub fn begin(&self) {
        self.header_synced.store(false, Ordering::Relaxed);
    }

    pub fn sync_failed(&self) -> bool {
        self.sync_failed.load(Ordering::Relaxed)
    }

    /// Whether a header, which names the current commit, was synced since [`IoRecord::begin`].
    pub fn may_have_committed(&self) -> bool {
        self.header_synced.load(Ordering::Relaxed)
    }
}

/// redb's header is within this many bytes at the start of the file.
const HEADER_BYTES: u64 = 512;

/// A storage backend that records failures in a [`IoRecord`] and writes redb's header last.
///
/// redb may write the header, which names the new commit, before the pages of that commit. This wrapper keeps the
/// header in memory until the sync. If a page cannot be written, the header is dropped, and the file is certain to name
/// the previous commit.
#[derive(Debug)]
pub(crate) struct HeaderLast {
    inner: Box<dyn StorageBackend>,
    gauge: Arc<IoRecord>,
    header: Mutex<Header>,
}

#[derive(Debug, Default)]
struct Header {
    /// Header writes that are held back, in the order in which redb made them.
    waiting: Vec<(u64, Vec<u8>)>,
    /// A write failed, so the header is never written.
    abandoned: bool,
}

impl HeaderLast {
    pub fn new(inner: Box<dyn StorageBackend>, gauge: Arc<IoRecord>) -> HeaderLast {
        HeaderLast { inner, gauge, header: Mutex::default() }
    }

    fn header(&self) -> MutexGuard<'_, Header> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abandon<T>(&self, error: io::Error) -> io::Result<T> {
        let mut header = self.header();
        header.waiting.clear();
        header.abandoned = true;
        Err(error)
    }

    /// Writes the header that was held back. Returns whether there was one.
    fn release(&self) -> io::Result<bool> {
        let mut header = self.header();
        if header.abandoned {
            return Err(io::Error::other("an earlier write failed"));
        }
        let waiting = std::mem::take(&mut header.waiting);
        if waiting.is_empty() {
            return Ok(false);
        }
        let before = self.written_header();
        let written = waiting.iter().try_for_each(|(offset, data)| self.inner.write(*offset, data));
        if let Err(error) = written {
            header.abandoned = true;
            // If the old header is still in the file, the commit did not happen. Otherwise part of the new header may
            // be there.
            if before.is_none() || self.written_header() != before {
                self.gauge.sync_failed.store(true, Ordering::Relaxed);
            }
            return Err(error);
        }
        Ok(true)
    }

    fn written_header(&self) -> Option<[u8; HEADER_BYTES as usize]> {
        let mut bytes = [0; HEADER_BYTES as usize];
        self.inner.read(0, &mut bytes).ok().map(|()| bytes)
    }
}

impl StorageBackend for HeaderLast {
    fn len(&self) -> io::Result<u64> {
        let bytes = self.inner.len()?;
        self.gauge.bytes.store(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)?;
        if offset < HEADER_BYTES {
            for (from, data) in &self.header().waiting {
                overlay(*from, data, offset, out);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if let Err(error) = self.inner.set_len(len) {
            return self.abandon(error);
        }
        self.gauge.bytes.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let named = self.release()?;
        if let Err(error) = self.inner.sync_data() {
            self.gauge.sync_failed.store(true, Ordering::Relaxed);
            return Err(error);
        }
        if named {
            self.gauge.header_synced.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if offset < HEADER_BYTES {
            let mut header = self.header();
            header.waiting.retain(|(from, before)| (*from, before.len()) != (offset, data.len()));
            header.waiting.push((offset, data.to_vec()));
            return Ok(());
        }
        self.inner.write(offset, data).or_else(|error| self.abandon(error))
    }

    fn close(&self) -> io::Result<()> {
        let released = self.release();
        self.inner.close()?;
        released.map(|_| ())
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

/// Copies into `out`, which was read at `offset`, the part of it that `data` at position `from` covers.
fn overlay(from: u64, data: &[u8], offset: u64, out: &mut [u8]) {
    let start = from.max(offset);
    let end = (from + data.len() as u64).min(offset + out.len() as u64);
    if start < end {
        let within = |base: u64| (start - base) as usize..(end - base) as usize;
        out[within(offset)].copy_from_slice(&data[within(from)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_copies_exactly_the_common_range() {
        let cases: [(u64, &[u8], u64, &str); 6] = [
            (0, b"abc", 0, "abc..."),
            (2, b"abc", 0, "..abc."),
            (5, b"abc", 0, ".....a"),
            (6, b"abc", 0, "......"),
            (0, b"abc", 2, "c....."),
            (0, b"abcdefghij", 2, "cdefgh"),
        ];
        for (from, data, offset, expected) in cases {
            let mut out = *b"......";
            overlay(from, data, offset, &mut out);
            assert_eq!(std::str::from_utf8(&out), Ok(expected), "{from} {offset}");
        }
    }
}
