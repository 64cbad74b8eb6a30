//! The durable store: one redb file. `FORMAT.md` describes it and argues why a crash loses nothing.

use crate::disk::{Disk, Fault, Write};
use crate::expiry::Expiry;
use crate::export::{Rows, Snapshot};
use crate::format::{self, FORMAT_VERSION, Head};
use crate::local::{FIRST_REVISION, Local, panic_text};
use crate::mark;
use crate::medium::{self, Draft, FileMedium, Gauge, Gauged, Medium};
use crate::memory::Memory;
use crate::verify::Overlay;
use crate::writer::record;
use crate::{Finish, OpenError, Options, Record, Revision, Store};
use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

/// A store that survives crashes.
pub struct Embedded;

impl Embedded {
    /// Opens the store in `dir`, or makes one.
    pub fn open(dir: &Path, finish: Finish, options: Options) -> Result<Arc<dyn Store>, OpenError> {
        open_directory(dir, finish, options).map_err(|error| error.in_directory(dir))
    }

    /// Opens the store on a medium of one's own, or makes one where the medium is empty.
    pub fn open_on(medium: Arc<dyn Medium>, finish: Finish, options: Options) -> Result<Arc<dyn Store>, OpenError> {
        open(medium, true, finish, options)
    }
}

fn open_directory(dir: &Path, finish: Finish, options: Options) -> Result<Arc<dyn Store>, OpenError> {
    let lock = medium::lock(dir)?;
    let path = dir.join(FILE);
    let medium = FileMedium::new(path.clone(), dir.join(mark::FILE), lock);
    if path.try_exists()? {
        // A filled store has its name before its marker is removed.
        remove_if_there(&dir.join(INCOMPLETE))?;
    } else {
        if dir.join(INCOMPLETE).try_exists()? {
            return Err(OpenError::Incomplete(dir.to_owned()));
        }
        mark::check(&medium, None)?;
        // Made under another name: a crash in between leaves no half a store behind.
        let draft = Arc::new(Draft { path: dir.join(FILE_NEW) });
        remove_if_there(&draft.path)?;
        drop(Engine::open(Arc::clone(&draft) as Arc<dyn Medium>, true)?);
        draft.sync()?;
        std::fs::rename(&draft.path, &path)?;
        medium::sync_dir(dir)?;
    }
    open(Arc::new(medium), false, finish, options)
}

const FILE: &str = "store.redb";
const FILE_NEW: &str = "store.redb.new";
/// Exists while a store is being filled. A directory with this file and without a store holds an unfinished restore, and a server must
/// not begin a new cluster in it.
const INCOMPLETE: &str = "store.incomplete";

const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
const RECORDS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("records");
const META_FORMAT: &str = "format";
const META_HEAD: &str = "head";

/// All reads are answered from memory, so the engine's cache serves only writes: the upper pages of the tree, and a batch.
const CACHE_BYTES: usize = 8 << 20;

fn open(medium: Arc<dyn Medium>, create: bool, finish: Finish, options: Options) -> Result<Arc<dyn Store>, OpenError> {
    medium.forget_cached()?;
    let (engine, loaded) = unpanicked(|| {
        look_through(&*medium)?;
        let mut engine = Engine::open(medium, create)?;
        let loaded = engine.load(finish)?;
        // It will be seen, and the engine has synced it: it does so when it opens, to say that the file is in use.
        engine.mark();
        Ok((engine, loaded))
    })?;
    let memory = Memory::new(engine.head.revision, loaded.records, options.bounds);
    let bytes = Arc::clone(&engine.gauge.bytes);
    Ok(Arc::new(Local::new(memory, loaded.expiry, Box::new(engine), bytes, finish, options)))
}

/// Has the engine check its file, in an overlay that keeps what that changes.
fn look_through(medium: &dyn Medium) -> Result<(), OpenError> {
    let overlay = Overlay::new(medium.open()?)?;
    if overlay.len()? == 0 {
        return mark::check(medium, None);
    }
    let mut database = start(Box::new(overlay), &Arc::default())?;
    let head = read_head(&database);
    // It says whether it had something to put right; where that was a commit, another one is the last. Whatever is wrong is said only
    // afterwards: an engine that is let go of before it has put its file right takes the process along.
    let checked = database.check_integrity();
    let head = head?;
    mark::check(medium, Some(head.revision))?;
    checked.map_err(opening)?;
    if read_head(&database)? != head {
        return Err(OpenError::Damaged("its last commit is damaged where no records are".to_owned()));
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The engine trusts its file and panics where that breaks its assumptions; for us that is one more kind of damage.
fn unpanicked<T>(work: impl FnOnce() -> Result<T, OpenError>) -> Result<T, OpenError> {
    match caught(work) {
        Ok(outcome) => outcome,
        Err(panic) => Err(OpenError::Damaged(panic_text(&*panic).to_owned())),
    }
}

thread_local! {
    static EXPECTS_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Catches a panic of the engine. Whoever gets it says what is wrong in one line, so it is not printed with a trace besides.
fn caught<T>(work: impl FnOnce() -> T) -> std::thread::Result<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !EXPECTS_PANIC.get() {
                usual(panic);
            }
        }));
    });
    let before = EXPECTS_PANIC.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    EXPECTS_PANIC.set(before);
    result
}

struct Engine {
    medium: Arc<dyn Medium>,
    gauge: Arc<Gauge>,
    /// What the last durable commit left.
    head: Head,
    /// `None` after a refused write, until the engine was started anew.
    database: Option<Database>,
    /// The last mark could not be written.
    unmarked: bool,
}

struct Loaded {
    records: Vec<Record>,
    expiry: Expiry,
}

impl Engine {
    fn open(medium: Arc<dyn Medium>, create: bool) -> Result<Engine, OpenError> {
        let gauge = Arc::new(Gauge::default());
        let inner = medium.open()?;
        let empty = inner.len()? == 0;
        if empty && !create {
            return Err(OpenError::Damaged("its file is empty".to_owned()));
        }
        let database = start(inner, &gauge)?;
        if empty {
            initialize(&database).map_err(opening)?;
        }
        let head = read_head(&database)?;
        Ok(Engine { medium, gauge, head, database: Some(database), unmarked: false })
    }

    fn load(&self, finish: Finish) -> Result<Loaded, OpenError> {
        let mut loaded = Loaded { records: Vec::new(), expiry: Expiry::default() };
        let mut head = Head { rows: 0, digest: 0, ..self.head };
        let Some(database) = &self.database else { return Ok(loaded) };
        let txn = database.begin_read().map_err(opening)?;
        let table = txn.open_table(RECORDS).map_err(opening)?;
        for row in table.iter().map_err(opening)? {
            let (key, bytes) = row.map_err(opening)?;
            let key: Arc<str> = Arc::from(key.value());
            let (row, mark) = format::decode(&key, bytes.value()).map_err(OpenError::Damaged)?;
            head.add(mark);
            if row.modified > head.revision {
                return Err(OpenError::Damaged(format!("the row of {key:?} is newer than the store")));
            }
            if row.expires_at_s.is_some() {
                loaded.expiry.set(&key, row.expires_at_s, row.modified);
            }
            loaded.records.push(record(key, finish(&row.value, row.modified), row.created, row.modified));
        }
        if head != self.head {
            return Err(OpenError::Damaged("its rows are not those of its last commit".to_owned()));
        }
        Ok(loaded)
    }

    fn try_commit(&self, writes: &[Write], revision: Revision) -> Result<Head, redb::Error> {
        let database = self.database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
        let mut head = Head { revision, ..self.head };
        let mut bytes = Vec::new();
        self.gauge.begin();
        let txn = database.begin_write()?;
        {
            let mut records = txn.open_table(RECORDS)?;
            for write in writes {
                let key = &*write.key;
                let before = match &write.row {
                    Some(row) => {
                        head.add(format::encode(key, row, &mut bytes));
                        records.insert(key, &*bytes)?
                    }
                    None => records.remove(key)?,
                };
                if let Some(before) = before {
                    head.remove(format::mark(key, before.value()).map_err(redb::Error::Corrupted)?);
                }
            }
            txn.open_table(META)?.insert(META_HEAD, head.encode().as_slice())?;
        }
        txn.commit()?;
        Ok(head)
    }

    /// What a failed commit means.
    ///
    /// After a failed sync nobody knows what the disk holds, and the kernel may have dropped what it had: that is the end.
    /// After any other failure the file decides, once the engine is started anew. Where it cannot start, a commit that was never
    /// named on the disk did not happen.
    fn judge(&mut self, error: &redb::Error, revision: Revision) -> Result<(), Fault> {
        let reason = format!("the disk failed: {error}");
        let gauge = Arc::clone(&self.gauge);
        if gauge.sync_failed() {
            self.leave();
            return Err(Fault::Final(reason));
        }
        match self.restart() {
            Ok(head) if head == self.head => Err(Fault::Refused(reason)),
            Ok(head) if head.revision == revision => {
                self.head = head;
                Ok(())
            }
            Err(Fault::Refused(_)) if !gauge.may_have_committed() => Err(Fault::Refused(reason)),
            _ => {
                self.leave();
                Err(Fault::Final(reason))
            }
        }
    }

    fn ensure_started(&mut self) -> Result<(), Fault> {
        if self.database.is_some() {
            return Ok(());
        }
        let head = self.restart()?;
        if head != self.head {
            self.leave();
            let (found, known) = (head.revision, self.head.revision);
            return Err(Fault::Final(format!("the disk is at revision {found}, not at {known}")));
        }
        Ok(())
    }

    /// Lets go of the engine. It tidies up its file when it goes, and panics where that is damaged; what is served is not touched by it.
    fn leave(&mut self) {
        let Some(database) = self.database.take() else { return };
        if let Err(panic) = caught(|| drop(database)) {
            let why = panic_text(&*panic);
            tracing::error!(
                why,
                file = self.medium.place(),
                "the file of the store is damaged where no records are: make a copy of what it holds"
            );
        }
    }

    /// Notes how far the store has come: only what is on the disk, before anybody hears of it. A mark that cannot be written is an older one, which
    /// says less and nothing wrong, so it stops nobody.
    fn mark(&mut self) {
        let noted = self.medium.note(&mark::encode(self.head.revision));
        if let (Err(error), false) = (&noted, self.unmarked) {
            tracing::warn!(%error, store = self.medium.place(), "{} cannot be written: damage to the newest writes may go unnoticed", mark::FILE);
        }
        self.unmarked = noted.is_err();
    }

    /// Starts the engine anew on the same bytes.
    fn restart(&mut self) -> Result<Head, Fault> {
        self.leave();
        let medium = Arc::clone(&self.medium);
        let gauge = Arc::new(Gauge::new(Arc::clone(&self.gauge.bytes)));
        let started = unpanicked(|| {
            let database = start(medium.open()?, &gauge)?;
            let head = read_head(&database)?;
            Ok((database, head))
        });
        match started {
            Ok((database, head)) => {
                self.gauge = gauge;
                self.database = Some(database);
                Ok(head)
            }
            Err(error) if gauge.sync_failed() => Err(Fault::Final(error.to_string())),
            Err(error) => Err(Fault::Refused(error.to_string())),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Disk for Engine {
    fn commit(&mut self, writes: &[Write], revision: Revision) -> Result<(), Fault> {
        assert!(revision > self.head.revision, "revision {revision} after {}", self.head.revision);
        self.ensure_started()?;
        match self.try_commit(writes, revision) {
            Ok(head) => self.head = head,
            Err(error) => self.judge(&error, revision)?,
        }
        self.mark();
        Ok(())
    }

    fn stored(&self, key: &str) -> Result<Option<Bytes>, Fault> {
        let read = || -> Result<Option<Bytes>, redb::Error> {
            let database = self.database.as_ref().ok_or(redb::Error::DatabaseClosed)?;
            let txn = database.begin_read()?;
            let Some(bytes) = txn.open_table(RECORDS)?.get(key)? else { return Ok(None) };
            let (row, _) = format::decode(key, bytes.value()).map_err(redb::Error::Corrupted)?;
            Ok(Some(row.value))
        };
        read().map_err(|error| Fault::Refused(format!("the disk failed: {error}")))
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Fault> {
        let closed = || Fault::Refused("the disk failed".to_owned());
        let database = self.database.as_ref().ok_or_else(closed)?;
        let txn = database.begin_read().map_err(|error| Fault::Refused(format!("the disk failed: {error}")))?;
        Ok(Box::new(Frozen { txn, after: None }))
    }

    fn recover(&mut self) -> Result<(), Fault> {
        self.ensure_started()?;
        // The same head again: only a write can tell whether writes are possible.
        match self.try_commit(&[], self.head.revision) {
            Ok(_) => Ok(()),
            Err(error) => self.judge(&error, self.head.revision),
        }
    }

    fn place(&self) -> String {
        self.medium.place()
    }
}

/// The rows of one commit. The engine does not reuse their pages while this lives.
struct Frozen {
    txn: redb::ReadTransaction,
    after: Option<Arc<str>>,
}

const ROWS_PER_PAGE: usize = 1000;

impl Frozen {
    fn read(&self) -> Result<Rows, redb::Error> {
        let table = self.txn.open_table(RECORDS)?;
        let after = self.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rows = Vec::new();
        for row in table.range::<&str>((after, Bound::Unbounded))?.take(ROWS_PER_PAGE) {
            let (key, bytes) = row?;
            let key: Arc<str> = Arc::from(key.value());
            let (row, _) = format::decode(&key, bytes.value()).map_err(redb::Error::Corrupted)?;
            rows.push((key, row));
        }
        Ok(rows)
    }
}

impl Snapshot for Frozen {
    fn page(&mut self) -> Result<Rows, String> {
        let rows = self.read().map_err(|error| format!("the disk failed: {error}"))?;
        if let Some((last, _)) = rows.last() {
            self.after = Some(Arc::clone(last));
        }
        Ok(rows)
    }
}

/// A store that is being made of rows from elsewhere. It is not there before [`Drafted::finish`].
pub(crate) struct Drafted {
    engine: Engine,
    draft: Arc<Draft>,
    revision: Revision,
    unfinished: Unfinished,
    _lock: Arc<File>,
}

/// Removes the files of a fill that fails, which a killed process leaves behind.
struct Unfinished {
    dir: PathBuf,
    finished: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // The marker is removed last.
        let removed =
            remove_if_there(&self.dir.join(FILE_NEW)).and_then(|()| remove_if_there(&self.dir.join(INCOMPLETE)));
        if let Err(error) = removed {
            tracing::warn!(%error, directory = %self.dir.display(), "cannot remove the incomplete store");
        }
    }
}

impl Drafted {
    pub fn begin(dir: &Path, revision: Revision) -> Result<Drafted, OpenError> {
        Drafted::begin_in(dir, revision).map_err(|error| error.in_directory(dir))
    }

    fn begin_in(dir: &Path, revision: Revision) -> Result<Drafted, OpenError> {
        let lock = medium::lock(dir)?;
        if dir.join(FILE).try_exists()? {
            return Err(OpenError::NotEmpty(dir.display().to_string()));
        }
        let unfinished = Unfinished { dir: dir.to_owned(), finished: false };
        medium::create(&dir.join(INCOMPLETE))?;
        medium::sync_dir(dir)?;
        let draft = Arc::new(Draft { path: dir.join(FILE_NEW) });
        remove_if_there(&draft.path)?;
        let engine = Engine::open(Arc::clone(&draft) as Arc<dyn Medium>, true)?;
        Ok(Drafted { engine, draft, revision, unfinished, _lock: lock })
    }

    pub fn add(&mut self, rows: Rows) -> Result<(), OpenError> {
        let writes: Vec<_> = rows.into_iter().map(|(key, row)| Write { key, row: Some(row) }).collect();
        let committed = self.engine.try_commit(&writes, self.revision).map_err(opening);
        self.engine.head = committed.map_err(|error| error.in_directory(&self.unfinished.dir))?;
        Ok(())
    }

    pub fn finish(self) -> Result<(), OpenError> {
        let dir = self.unfinished.dir.clone();
        self.finish_in(&dir).map_err(|error| error.in_directory(&dir))
    }

    fn finish_in(mut self, dir: &Path) -> Result<(), OpenError> {
        // An empty store, too, begins at this revision.
        self.add(Vec::new())?;
        drop(self.engine);
        self.draft.sync()?;
        // One that is left of a store that was here says nothing about this one. It goes first, for good.
        remove_if_there(&dir.join(mark::FILE))?;
        medium::sync_dir(dir)?;
        std::fs::rename(&self.draft.path, dir.join(FILE))?;
        self.unfinished.finished = true;
        medium::sync_dir(dir)?;
        remove_if_there(&dir.join(INCOMPLETE))?;
        medium::sync_dir(dir)?;
        Ok(())
    }
}

fn start(inner: Box<dyn redb::StorageBackend>, gauge: &Arc<Gauge>) -> Result<Database, OpenError> {
    let backend = Gauged::new(inner, Arc::clone(gauge));
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    let database = builder.create_with_backend(backend).map_err(opening)?;
    Ok(database)
}

fn initialize(database: &Database) -> Result<(), redb::Error> {
    let txn = database.begin_write()?;
    {
        txn.open_table(RECORDS)?;
        let mut meta = txn.open_table(META)?;
        meta.insert(META_FORMAT, FORMAT_VERSION.to_le_bytes().as_slice())?;
        let head = Head { revision: FIRST_REVISION, rows: 0, digest: 0 };
        meta.insert(META_HEAD, head.encode().as_slice())?;
    }
    txn.commit()?;
    Ok(())
}

/// Reads where the store is at, once its format is known to be ours.
fn read_head(database: &Database) -> Result<Head, OpenError> {
    let txn = database.begin_read().map_err(opening)?;
    let meta = txn.open_table(META).map_err(opening)?;
    let format = meta.get(META_FORMAT).map_err(opening)?;
    let found = format
        .and_then(|format| <[u8; 4]>::try_from(format.value()).ok())
        .map(u32::from_le_bytes)
        .ok_or_else(|| OpenError::Damaged("its format is not named".to_owned()))?;
    if found > FORMAT_VERSION {
        return Err(OpenError::Newer { found, known: FORMAT_VERSION });
    }
    if found == 0 {
        return Err(OpenError::Damaged("its format is not named".to_owned()));
    }
    let head = meta.get(META_HEAD).map_err(opening)?;
    let head = head.ok_or_else(|| OpenError::Damaged("its head is missing".to_owned()))?;
    Head::decode(head.value()).map_err(OpenError::Damaged)
}

/// The engine's error at opening, as one of ours.
fn opening(error: impl Into<redb::Error>) -> OpenError {
    match error.into() {
        // A page that is said to be where the file has ended.
        redb::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            OpenError::Damaged("its file ends too early".to_owned())
        }
        redb::Error::Io(error) if error.kind() != io::ErrorKind::InvalidData => OpenError::Io(error),
        redb::Error::DatabaseAlreadyOpen => OpenError::Io(io::ErrorKind::ResourceBusy.into()),
        error => OpenError::Damaged(error.to_string()),
    }
}
