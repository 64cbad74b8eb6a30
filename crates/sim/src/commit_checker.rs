//! Store wrapper that checks every committed write before the writer gets its response.

use crate::entropy::Rng;
use crate::fault_point::FaultPoints;
use crate::log::Log;
use crate::time::VirtualClock;
use crate::watch_audit::Selection;
use bytes::Bytes;
use futures::FutureExt;
use object::access::Access;
use object::{Gates, Value};
use plan::invariant::{Change, Checker, KINDS, Who};
use server::Clock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::suite::Crashable;
use store::{
    BoxFuture, Committed, Error, Event, Export, Next, Operation, Page, Range, Record, Revision, Store, Txn, Watcher,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    /// Account that sent the request being handled.
    pub static WRITER: Arc<str>;
    /// Leader term that the request names in its header.
    pub static TERM: Option<Arc<str>>;
}

/// Lease of the leading controller process.
pub const LEASE: &str = "mainstay-controllers";
const LEASE_KEY: &str = "/coordination.k8s.io/leases/kube-system/mainstay-controllers";

/// Account that acts for users.
pub const OPERATOR: &str = "operator";

/// ConfigMap in which the provisioner records calls before it makes them.
pub const JOURNAL: &str = "/core/configmaps/kube-system/mainstay-csi-journal";

type Backend = Box<dyn Fn() -> BTreeSet<String> + Send>;

/// All committed changes of a run, and the rules checked on them. Survives crashes of the store.
pub struct CommitChecker {
    pub checker: Mutex<Checker>,
    pub log: Log,
    clock: VirtualClock,
    /// Acknowledged state by key: revision and value.
    acknowledged: Mutex<BTreeMap<Arc<str>, (Revision, Bytes)>>,
    /// All changes so far, to compare watches and lists with.
    history: Mutex<Vec<HistoryEntry>>,
    /// PV names, and claims as namespace/name, that may be created again after their deletion: by a request that
    /// arrived late, or by a provisioner that did not see the deletion and cannot find out about it.
    recreations: Mutex<BTreeSet<String>>,
    /// Whether requests that create pods are never delivered late.
    late_pods_forbidden: AtomicBool,
    /// Transaction that was being written when the disk failed, and its writer.
    torn: Mutex<Option<(Arc<str>, Txn)>>,
    pub points: FaultPoints,
    /// Current leader term of the controllers, as the leader names it in its writes.
    term: Mutex<String>,
    /// Function that returns the driver's volume handles, and its result at the last call.
    backend: Mutex<Option<(Backend, BTreeSet<String>)>>,
    /// Incremented at every commit.
    pub commits: watch::Sender<u64>,
}

/// One change, with the value before and after.
struct HistoryEntry {
    revision: Revision,
    key: Arc<str>,
    was: Option<Bytes>,
    is: Option<Bytes>,
}

/// A change as a watch must deliver it.
pub struct ExpectedEvent {
    /// Position in the history.
    pub position: usize,
    pub revision: Revision,
    pub key: Arc<str>,
    pub kind: &'static str,
    /// New value, or the last value if the event is DELETED.
    pub object: Bytes,
}

impl CommitChecker {
    pub fn new(clock: VirtualClock, log: Log, gates: Gates) -> Arc<CommitChecker> {
        Arc::new(CommitChecker {
            checker: Mutex::new(Checker::new(gates)),
            points: FaultPoints::new(log.clone()),
            log,
            clock,
            acknowledged: Mutex::default(),
            history: Mutex::default(),
            recreations: Mutex::default(),
            late_pods_forbidden: AtomicBool::new(false),
            torn: Mutex::default(),
            term: Mutex::default(),
            backend: Mutex::default(),
            commits: watch::Sender::new(0),
        })
    }

    pub fn checker(&self) -> MutexGuard<'_, Checker> {
        lock(&self.checker)
    }

    /// Call before a late request creates the PV of this volume.
    pub fn note_late_volume(&self, volume: &str) {
        if self.was_deleted(&format!("/core/persistentvolumes/{volume}")) {
            self.allow_recreation(volume);
        }
    }

    /// Call before a late request creates this claim (namespace/name).
    pub fn note_late_claim(&self, claim: &str) {
        if self.was_deleted(&format!("/core/persistentvolumeclaims/{claim}")) {
            lock(&self.recreations).insert(claim.to_owned());
        }
    }

    fn was_deleted(&self, key: &str) -> bool {
        let was_there = lock(&self.history).iter().any(|past| *past.key == *key);
        was_there && !lock(&self.acknowledged).contains_key(key)
    }

    /// From now on the PV of this volume may exist again after its deletion.
    pub fn allow_recreation(&self, volume: &str) {
        lock(&self.recreations).insert(volume.to_owned());
    }

    /// Whether this PV, or this claim, may exist again after its deletion.
    pub fn may_be_recreated(&self, volume: &str) -> bool {
        lock(&self.recreations).contains(volume)
    }

    /// Whether `text` names a PV or a claim that may exist again after its deletion.
    pub fn names_recreated_object(&self, text: &str) -> bool {
        lock(&self.recreations).iter().any(|name| text.contains(name.as_str()))
    }

    /// From now on no request that creates a pod is delivered late.
    pub fn forbid_late_pods(&self) {
        self.late_pods_forbidden.store(true, Ordering::Relaxed);
    }

    pub fn are_late_pods_forbidden(&self) -> bool {
        self.late_pods_forbidden.load(Ordering::Relaxed)
    }

    /// Whether any object may exist again after its deletion.
    pub fn may_any_be_recreated(&self) -> bool {
        !lock(&self.recreations).is_empty()
    }

    /// Opens the store on a disk and compares it with the acknowledged state.
    pub fn open(self: &Arc<CommitChecker>, disk: &Crashable) -> Result<Arc<CheckedStore>, store::OpenError> {
        let options = store::Options { inline: true, ..store::Options::default() };
        let inner = store::Embedded::open_on(Arc::new(disk.clone()), server::codec::finish, options)?;
        self.compare(&*inner);
        let tail = inner.watch("", inner.revision()).expect("the newest revision can be watched");
        Ok(Arc::new(CheckedStore {
            inner,
            tail: Mutex::new(tail),
            commit_checker: Arc::clone(self),
            off: CancellationToken::new(),
        }))
    }

    /// Every acknowledged write must be present, and besides them at most the write that was in progress.
    fn compare(&self, store: &dyn Store) {
        // Additional content was written before the crash, so the backend already has this state or a later one.
        self.check_backend();
        let page = store.list(Range::default()).expect("the newest state can be listed");
        let found: BTreeMap<Arc<str>, Arc<Record>> =
            page.records.into_iter().map(|record| (Arc::clone(&record.key), record)).collect();
        let mut known = lock(&self.acknowledged).clone();
        let torn = lock(&self.torn).take();
        let operations = torn.iter().flat_map(|(_, txn)| &txn.operations);
        let keys: Vec<Arc<str>> = operations.map(|it| Arc::clone(key(it))).collect();
        let torn_by = torn.as_ref().map_or(Who::Part("nobody"), |(who, _)| writer_of(who));
        let is_first = known.is_empty();
        if let Some((_, txn)) = &torn {
            self.check_atomicity(txn, &found, &known);
        }
        for (key, record) in &found {
            let before = known.remove(key);
            let is_same =
                before.as_ref().is_some_and(|(revision, value)| *revision == record.modified && *value == record.value);
            if is_same || is_first {
                self.check(Arc::clone(key), None, Some(Arc::clone(record)), &Who::User);
            } else if keys.contains(key) {
                let before = before.map(|(revision, value)| Arc::new(record_of(key, revision, value)));
                self.add_history(record.modified, Arc::clone(key), value_of(&before), Some(record.value.clone()));
                self.check(Arc::clone(key), before, Some(Arc::clone(record)), &torn_by);
            } else {
                self.log.violation(format!("after the crash {key} differs from its acknowledged state"));
            }
        }
        for (key, (revision, value)) in known {
            if keys.contains(&key) {
                let before = Some(Arc::new(record_of(&key, revision, value)));
                self.add_history(store.revision(), Arc::clone(&key), value_of(&before), None);
                self.check(key, before, None, &torn_by);
            } else {
                self.log.violation(format!("after the crash the acknowledged {key} of revision {revision} is missing"));
            }
        }
    }

    /// The write that was in progress when the disk failed must be present completely, or not at all.
    fn check_atomicity(
        &self,
        txn: &Txn,
        found: &BTreeMap<Arc<str>, Arc<Record>>,
        known: &BTreeMap<Arc<str>, (Revision, Bytes)>,
    ) {
        let is_done = |operation: &Operation| match operation {
            Operation::Put { key, value, .. } => {
                found.get(key).is_some_and(|record| record.value == server::codec::finish(value, record.modified))
            }
            Operation::Delete { key, .. } => !found.contains_key(key),
        };
        let is_undone = |operation: &Operation| {
            let key = key(operation);
            known.get(key).map(|(revision, _)| *revision) == found.get(key).map(|record| record.modified)
        };
        if !txn.operations.iter().all(is_done) && !txn.operations.iter().all(is_undone) {
            let keys: Vec<&str> = txn.operations.iter().map(|operation| &**key(operation)).collect();
            self.log.violation(format!("after the crash a write is present only in part: {}", keys.join(" ")));
        }
    }

    /// Records a change and checks the rules. Without `before`, an object that is already known is not checked again.
    fn check(&self, key: Arc<str>, before: Option<Arc<Record>>, after: Option<Arc<Record>>, who: &Who<'_>) {
        let known = match &after {
            Some(record) => lock(&self.acknowledged).insert(Arc::clone(&key), (record.modified, record.value.clone())),
            None => lock(&self.acknowledged).remove(&key),
        };
        if &*key == LEASE_KEY {
            self.update_term(after.as_deref());
        }
        let is_known = before.is_none() && known.is_some();
        if !is_checked(&key) || is_known {
            return;
        }
        let parse = |record: &Arc<Record>| serde_json::from_slice::<Value>(&record.value).ok().map(Arc::new);
        let (before, after) = (before.as_ref().and_then(parse), after.as_ref().and_then(parse));
        let change = Change { who: *who, now: self.clock.now(), before, after };
        for rule in self.checker().see(&change) {
            self.log.violation(rule);
        }
    }

    fn committed(&self, event: &Event, who: &str) {
        self.check_backend();
        let what = match (&event.previous, &event.current) {
            (None, _) => "creates",
            (_, None) => "removes",
            _ => "changes",
        };
        self.log.record(format!("{who} {what} {} @{}", event.key, event.revision));
        if let Some(record) = event.current.as_ref().filter(|_| &*event.key == JOURNAL) {
            let journal = serde_json::from_slice::<Value>(&record.value).unwrap_or_default();
            self.log.record(format!("the journal contains {}", journal["data"]));
        }
        if let Some(term) = TERM.try_with(Clone::clone).ok().flatten() {
            let current = lock(&self.term);
            if *term != **current {
                self.log.violation(format!(
                    "{who} writes {} in leader term {current} with a request of term {term}",
                    event.key
                ));
            }
        }
        let (was, is) = (value_of(&event.previous), value_of(&event.current));
        self.add_history(event.revision, Arc::clone(&event.key), was, is);
        self.check(Arc::clone(&event.key), event.previous.clone(), event.current.clone(), &writer_of(who));
    }

    fn update_term(&self, lease: Option<&Record>) {
        let lease = lease.and_then(|record| serde_json::from_slice::<Value>(&record.value).ok()).unwrap_or_default();
        let (number, holder) = (&lease["spec"]["leaseTransitions"], lease.text(&["spec", "holderIdentity"]));
        *lock(&self.term) = format!("kube-system/{LEASE} {} {holder}", number.as_i64().unwrap_or(0));
    }

    pub fn add_history(&self, revision: Revision, key: Arc<str>, was: Option<Bytes>, is: Option<Bytes>) {
        lock(&self.history).push(HistoryEntry { revision, key, was, is });
    }

    /// Sets the function that returns the driver's volume handles.
    pub fn set_backend(&self, ask: impl Fn() -> BTreeSet<String> + Send + 'static) {
        *lock(&self.backend) = Some((Box::new(ask), BTreeSet::new()));
    }

    /// Checks the backend volumes that were deleted since the last call. Objects change only by commits, so a call
    /// before each commit is enough.
    pub fn check_backend(&self) {
        let mut backend = lock(&self.backend);
        let Some((ask, known)) = &mut *backend else { return };
        let there = ask();
        for handle in known.difference(&there) {
            self.log.record(format!("the driver deleted {handle}"));
            for rule in self.checker().backend_deleted(handle) {
                self.log.violation(rule);
            }
        }
        for handle in there.difference(known) {
            self.log.record(format!("the driver created {handle}"));
            self.checker().backend_made(handle);
        }
        *known = there;
    }

    /// Position of the first change after a revision.
    pub fn position_after(&self, revision: Revision) -> usize {
        lock(&self.history).partition_point(|past| past.revision <= revision)
    }

    /// Newest revision in the history.
    pub fn newest_revision(&self) -> Revision {
        lock(&self.history).last().map_or(0, |past| past.revision)
    }

    /// First change at or after `position` that a watch with this selection must deliver.
    pub fn next_expected(&self, keys: &Selection, position: usize) -> Option<ExpectedEvent> {
        let history = lock(&self.history);
        let of_keys =
            (position..).zip(history.iter().skip(position)).filter(|(_, past)| past.key.starts_with(&keys.prefix));
        let telling = |(position, past): (usize, &HistoryEntry)| {
            let kind = event_type(keys.selects(past.was.as_ref()), keys.selects(past.is.as_ref()))?;
            let object = if kind == "DELETED" { &past.was } else { &past.is };
            let object = object.clone().unwrap_or_default();
            Some(ExpectedEvent { position, revision: past.revision, key: Arc::clone(&past.key), kind, object })
        };
        of_keys.filter_map(telling).next()
    }

    /// Selected objects at a revision, by key.
    pub fn selected_at(&self, keys: &Selection, revision: Revision) -> BTreeMap<Arc<str>, Bytes> {
        let history = lock(&self.history);
        let acknowledged = lock(&self.acknowledged);
        let of_keys = acknowledged.iter().filter(|(key, _)| key.starts_with(&keys.prefix));
        let mut found: BTreeMap<Arc<str>, Bytes> =
            of_keys.map(|(key, (_, value))| (Arc::clone(key), value.clone())).collect();
        let later = history.iter().rev().take_while(|past| past.revision > revision);
        for past in later.filter(|past| past.key.starts_with(&keys.prefix)) {
            match &past.was {
                Some(was) => drop(found.insert(Arc::clone(&past.key), was.clone())),
                None => drop(found.remove(&past.key)),
            }
        }
        found.retain(|_, value| keys.selects(Some(value)));
        found
    }
}

fn value_of(record: &Option<Arc<Record>>) -> Option<Bytes> {
    record.as_ref().map(|record| record.value.clone())
}

/// Event type for an object that was selected before and is selected now, or `None` without an event.
fn event_type(was: bool, is: bool) -> Option<&'static str> {
    match (was, is) {
        (false, false) => None,
        (false, true) => Some("ADDED"),
        (true, true) => Some("MODIFIED"),
        (true, false) => Some("DELETED"),
    }
}

fn writer_of(who: &str) -> Who<'_> {
    if who == OPERATOR { Who::User } else { Who::Part(who) }
}

fn record_of(key: &Arc<str>, revision: Revision, value: Bytes) -> Record {
    Record { key: Arc::clone(key), value, created: revision, modified: revision, memo: Default::default() }
}

fn key(operation: &Operation) -> &Arc<str> {
    match operation {
        Operation::Put { key, .. } | Operation::Delete { key, .. } => key,
    }
}

/// Whether the rules apply to the kind of this key.
fn is_checked(key: &str) -> bool {
    let plural = key.split('/').nth(2).unwrap_or("");
    let singular = if plural == "endpoints" { Some(plural) } else { plural.strip_suffix('s') };
    KINDS.iter().any(|kind| singular.is_some_and(|it| it.eq_ignore_ascii_case(kind)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store between two crashes.
pub struct CheckedStore {
    inner: Arc<dyn Store>,
    tail: Mutex<Box<dyn Watcher>>,
    commit_checker: Arc<CommitChecker>,
    /// Cancelled when the machine crashes; then all writes fail.
    pub off: CancellationToken,
}

impl CheckedStore {
    /// Reads the changes that were just committed.
    fn check_new_commits(&self, who: &str) {
        let mut tail = lock(&self.tail);
        while let Some(Next::Events { events, .. }) = tail.next(usize::MAX).now_or_never() {
            for event in events {
                self.commit_checker.committed(&event, who);
                self.commit_checker.points.committed(who, &event.key);
            }
        }
        self.commit_checker.commits.send_modify(|count| *count += 1);
    }
}

impl Store for CheckedStore {
    fn get(&self, key: &str) -> Option<Arc<Record>> {
        self.inner.get(key)
    }
    fn list(&self, range: Range<'_>) -> Result<Page, Error> {
        self.inner.list(range)
    }
    fn count(&self, prefix: &str) -> u64 {
        self.inner.count(prefix)
    }
    fn revision(&self) -> Revision {
        self.inner.revision()
    }
    fn oldest(&self) -> Revision {
        self.inner.oldest()
    }
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>> {
        Box::pin(async move {
            let who = WRITER.try_with(Arc::clone).unwrap_or_else(|_| Arc::from("server"));
            if self.off.is_cancelled() {
                return Err(Error::Unavailable("the machine has crashed".to_owned()));
            }
            let copy = txn.clone();
            let keys: Vec<&str> = copy.operations.iter().map(|operation| &**key(operation)).collect();
            self.commit_checker.points.committing(&who, &keys);
            let result = self.inner.txn(txn).await;
            match &result {
                Ok(_) => self.check_new_commits(&who),
                Err(Error::Unknown(_)) => {
                    *lock(&self.commit_checker.torn) = Some((who, copy));
                    self.commit_checker.points.disk_failed();
                }
                Err(_) => {}
            }
            result
        })
    }
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watcher>, Error> {
        self.inner.watch(prefix, after)
    }
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.compact(revision)
    }
    fn expire(&self, now_s: u64) -> BoxFuture<'_, Result<usize, Error>> {
        Box::pin(async move {
            if self.off.is_cancelled() {
                return Ok(0);
            }
            let result = self.inner.expire(now_s).await;
            self.check_new_commits("server");
            result
        })
    }
    fn barrier(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.barrier()
    }
    fn export(&self) -> BoxFuture<'_, Result<Export, Error>> {
        self.inner.export()
    }
    fn healthy(&self) -> Result<(), Error> {
        self.inner.healthy()
    }
    fn disk_bytes(&self) -> u64 {
        self.inner.disk_bytes()
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

/// The disk as it is after a crash at this moment.
pub fn crash_disk(disk: &Crashable, rng: &mut Rng) -> Crashable {
    Crashable::from_image(disk.crash(rng.next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn put(store: &CheckedStore, key: &str, value: &'static str) {
        let value = Bytes::from_static(value.as_bytes());
        let operations = vec![Operation::Put { key: key.into(), value, expires_at_s: None, memo: None }];
        store.txn(Txn { conditions: Vec::new(), operations }).await.expect("it is written");
    }

    /// Detects a disk that loses synced data, and accepts one that keeps it.
    #[tokio::test]
    async fn a_lost_acknowledged_write_is_detected() {
        for forgets in [false, true] {
            let clock = VirtualClock::start();
            let commit_checker = CommitChecker::new(clock, Log::new(clock), Gates::default());
            let disk = Crashable::default();
            let store = commit_checker.open(&disk).expect("a new store");
            put(&store, "/a", "\0\0\0\0{}").await;
            let old = disk.bytes();
            put(&store, "/b", "\0\0\0\0{}").await;
            let disk = if forgets { Crashable::from_image(old) } else { crash_disk(&disk, &mut Rng::new(1)) };
            commit_checker.open(&disk).expect("it opens");
            assert_eq!(commit_checker.log.has_no_violations(), !forgets);
            let lost: &[&str] =
                if forgets { &["after the crash the acknowledged /b of revision 3 is missing"] } else { &[] };
            assert_eq!(commit_checker.log.violations(), lost);
        }
    }

    /// Detects a write that is present only in part.
    #[test]
    fn a_partial_write_after_a_crash_is_detected() {
        let put = |key: &str| {
            let value = Bytes::from_static(b"\0\0\0\0{}");
            Operation::Put { key: key.into(), value, expires_at_s: None, memo: None }
        };
        let txn = Txn { conditions: Vec::new(), operations: vec![put("/a"), put("/b")] };
        for (found, is_complete) in [(&[][..], true), (&["/a"], false), (&["/a", "/b"], true)] {
            let clock = VirtualClock::start();
            let commit_checker = CommitChecker::new(clock, Log::new(clock), Gates::default());
            let found = found.iter().map(|key| {
                let key: Arc<str> = Arc::from(*key);
                (Arc::clone(&key), Arc::new(record_of(&key, 7, Bytes::from_static(b"{}"))))
            });
            commit_checker.check_atomicity(&txn, &found.collect(), &BTreeMap::new());
            assert_eq!(commit_checker.log.has_no_violations(), is_complete);
        }
    }
}
