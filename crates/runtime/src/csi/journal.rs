//! The journal: a ConfigMap with what must be known after a crash, written before a driver is called.
//!
//! Many workers write at once: one of them writes for all that wait. A finished entry is removed with the next write, or a
//! moment later. Until then it does no harm, because the objects show that its work is done.
//!
//! A write without a response may still arrive much later. Each write has the last seen resource version as its
//! precondition, so that a late one cannot restore a removed entry.

use super::drivers::Drivers;
use kit::api::{Api, ApiError, Resource};
use object::access::{Access, uid};
use object::{Map, Value, json};
use plan::csi::journal::{Entry, PendingDeletion};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;

pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "mainstay-csi-journal";

/// A ConfigMap holds 1 MiB; most of it may be used. Beyond this no further call to a driver is begun.
const BYTES_MAX: usize = 700 << 10;
/// A finished entry stays in the journal for this time, unless there is another write.
const LINGER: Duration = Duration::from_millis(100);
/// The retry interval after the server refused a read or write of the journal.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Requests that an earlier process sent have arrived after this time, or never will: servers drop a request after 60
/// s.
const LATE_MAX: Duration = Duration::from_secs(60);
/// How often a write is repeated after a conflict, before it fails.
const WRITE_ATTEMPTS: usize = 5;

pub struct Journal {
    api: Api,
    drivers: Drivers,
    maps: Resource,
    state: Mutex<State>,
    /// Held while the ConfigMap is written.
    writing: tokio::sync::Mutex<()>,
    done: Notify,
    found: Notify,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// The length of each entry that is or will be in the ConfigMap, and the sum.
    lengths: HashMap<String, usize>,
    total: usize,
    /// Changes still to be written; `None` removes an entry.
    pending: BTreeMap<String, Option<String>>,
    /// Uid and resource version of the last ConfigMap seen; empty while none exists.
    uid: String,
    version: String,
    /// The value of `Drivers::count` when the ConfigMap was last read.
    met: usize,
    /// Volumes whose entries another process wrote and this one has not adopted; the ConfigMap may change them.
    unadopted: HashSet<String>,
    /// The volumes in `unadopted` that `Journal::found` has not returned yet.
    found: Vec<String>,
    /// Volumes whose entries cannot be parsed; each is logged once.
    unreadable: HashSet<String>,
}

impl State {
    /// Merges the ConfigMap as it is now; returns whether entries are missing from it and must be written again.
    ///
    /// - An unknown entry was written by an earlier process, or by the process that serves its driver.
    /// - An entry of ours that is missing was removed by another process's late write: it is written again.
    /// - An entry that was not adopted and is missing is finished, and is forgotten. But if the whole ConfigMap was
    ///   deleted, no entry is finished, and the process that serves the driver may not run: it is written again.
    fn see(&mut self, object: &Value) -> bool {
        let data = object.members(&["data"]);
        let is_same_object = uid(object) == self.uid;
        let is_lost = |volume: &&String| !data.contains_key(volume.as_str()) && !self.pending.contains_key(*volume);
        let lost: Vec<String> = self.entries.keys().filter(is_lost).cloned().collect();
        let (done, lost): (Vec<_>, Vec<_>) =
            lost.into_iter().partition(|volume| is_same_object && self.unadopted.contains(volume));
        for volume in &done {
            self.entries.remove(volume);
            self.unadopted.remove(volume);
            self.measure(volume, 0);
        }
        for volume in &lost {
            tracing::warn!(
                volume,
                "this entry of the CSI journal was taken out by somebody else, and is written again"
            );
            self.pending.insert(volume.clone(), self.entries.get(volume).map(Entry::to_text));
        }
        self.uid = uid(object).to_owned();
        self.version = object.text(&["metadata", "resourceVersion"]).to_owned();
        for (volume, text) in object.members(&["data"]) {
            let (volume, text) = (volume.as_str(), text.as_str().unwrap_or(""));
            let is_ours = self.entries.contains_key(volume) && !self.unadopted.contains(volume);
            if is_ours || self.pending.contains_key(volume) {
                continue;
            }
            let Some(entry) = Entry::from_text(text) else {
                if self.unreadable.insert(volume.to_owned()) {
                    tracing::error!(volume, text, "this entry of the CSI journal cannot be read and is left alone");
                }
                continue;
            };
            if self.entries.get(volume) == Some(&entry) {
                continue;
            }
            self.entries.insert(volume.to_owned(), entry);
            self.measure(volume, text.len());
            self.unadopted.insert(volume.to_owned());
            self.found.push(volume.to_owned());
        }
        !lost.is_empty()
    }

    /// Schedules a write of an entry; returns the entry that it replaces.
    fn put(&mut self, volume: &str, entry: Entry) -> Option<Entry> {
        let text = entry.to_text();
        self.measure(volume, text.len());
        self.pending.insert(volume.to_owned(), Some(text));
        self.unadopted.remove(volume);
        self.entries.insert(volume.to_owned(), entry)
    }

    fn measure(&mut self, volume: &str, length: usize) {
        let before =
            if length == 0 { self.lengths.remove(volume) } else { self.lengths.insert(volume.to_owned(), length) };
        self.total = self.total - before.unwrap_or(0) + length;
    }
}

impl Journal {
    /// Reads the journal of earlier processes.
    pub async fn open(api: Api, drivers: Drivers) -> Result<Journal, ApiError> {
        let maps = Resource::new("v1", "ConfigMap", "configmaps", true);
        let journal = Journal {
            api,
            drivers,
            maps,
            state: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
            done: Notify::new(),
            found: Notify::new(),
        };
        journal.look().await?;
        Ok(journal)
    }

    async fn look(&self) -> Result<(), ApiError> {
        let met = self.drivers.count();
        let object = self.api.find(&self.maps.object(NAMESPACE, NAME)).await?;
        let has_lost = {
            let mut state = self.lock();
            state.met = met;
            state.see(&object.unwrap_or_default())
        };
        self.found.notify_one();
        if has_lost {
            self.done.notify_one();
        }
        Ok(())
    }

    /// Waits for volumes whose entries another process wrote; first returns those found when the journal was opened.
    pub async fn found(&self) -> Vec<String> {
        loop {
            let found = std::mem::take(&mut self.lock().found);
            if !found.is_empty() {
                return found;
            }
            self.found.notified().await;
        }
    }

    /// Reads the ConfigMap again if drivers were registered since it was read: until then another process may have
    /// served them, and added or removed entries.
    pub async fn renew(&self) -> Result<(), ApiError> {
        if self.is_current() {
            return Ok(());
        }
        let _writing = self.writing.lock().await;
        if self.is_current() { Ok(()) } else { self.look().await }
    }

    /// Whether the ConfigMap was read after the last driver was registered. Ask after looking up a driver; the answer
    /// then holds for it.
    pub fn is_current(&self) -> bool {
        self.lock().met == self.drivers.count()
    }

    /// Adopts an entry that another process wrote, if its driver is served here; returns whether it did.
    pub fn adopt(&self, volume: &str) -> bool {
        let mut state = self.lock();
        let is_served = state.entries.get(volume).is_some_and(|entry| self.serves(entry.driver()));
        is_served && state.met == self.drivers.count() && state.unadopted.remove(volume)
    }

    /// The entry of a volume, and whether another process wrote it and it was not adopted.
    pub fn find(&self, volume: &str) -> (Option<Entry>, bool) {
        let state = self.lock();
        (state.entries.get(volume).cloned(), state.unadopted.contains(volume))
    }

    pub fn get(&self, volume: &str) -> Option<Entry> {
        self.lock().entries.get(volume).cloned()
    }

    /// The deletions of earlier volumes of this name, with their own keys.
    pub fn earlier_deletions(&self, volume: &str) -> Vec<(String, PendingDeletion)> {
        let state = self.lock();
        // Own keys begin with an underscore and are therefore adjacent. This runs on every reconcile of a volume.
        let own = state.entries.range("_".to_owned()..).take_while(|(key, _)| key.starts_with('_'));
        let deletions = own.filter_map(|(key, entry)| match entry {
            Entry::Delete(deletion) if deletion.volume == volume => Some((key.clone(), *deletion.clone())),
            _ => None,
        });
        deletions.collect()
    }

    /// The volumes that are being created as copies of the volume with this handle.
    pub fn copies(&self, handle: &str) -> Vec<String> {
        let is_copy = |entry: &Entry| match entry {
            Entry::Create(intent) => intent.request.source.as_deref() == Some(handle),
            Entry::Delete(_) => false,
        };
        let state = self.lock();
        let copies = state.entries.iter().filter(|(_, entry)| is_copy(entry));
        copies.map(|(volume, _)| volume.clone()).collect()
    }

    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// The volumes that have entries.
    pub fn volumes(&self) -> Vec<String> {
        self.lock().entries.keys().cloned().collect()
    }

    /// Writes an entry; it is durable when this returns. If the outcome of the write is unknown, the entry stays: to
    /// remove it would be another write, whose response can be lost too. [`Journal::confirm`] then writes it again.
    pub async fn record(&self, volume: &str, entry: Entry) -> Result<(), ApiError> {
        let length = entry.to_text().len();
        let before = {
            let mut state = self.lock();
            let before = state.lengths.get(volume).copied().unwrap_or(0);
            if state.total - before + length > BYTES_MAX {
                let message =
                    "the CSI journal is full: too many calls to CSI drivers have no outcome yet; waiting for them";
                return Err(ApiError::Broken(kube::Error::Service(message.into())));
            }
            state.put(volume, entry)
        };
        let written = self.settle(volume).await;
        if written.as_ref().is_err_and(ApiError::is_refusal) {
            // An earlier attempt may have written the entry, so the next write restores what holds instead.
            match before {
                Some(before) => drop(self.lock().put(volume, before)),
                None => self.erase(volume),
            }
        }
        written
    }

    /// Removes an entry whose work is done.
    pub fn erase(&self, volume: &str) {
        let mut state = self.lock();
        if state.entries.remove(volume).is_some() {
            state.unadopted.remove(volume);
            state.measure(volume, 0);
            state.pending.insert(volume.to_owned(), None);
            self.done.notify_one();
        }
    }

    /// Waits until the entry of a volume is durable. A removed entry may still be in the ConfigMap.
    pub async fn confirm(&self, volume: &str) -> Result<(), ApiError> {
        let is_open = matches!(self.lock().pending.get(volume), Some(Some(_)));
        if is_open { self.settle(volume).await } else { Ok(()) }
    }

    /// Waits until all changes of a volume's entry, also a removal, are durable.
    pub async fn settle(&self, volume: &str) -> Result<(), ApiError> {
        let _writing = self.writing.lock().await;
        // The previous writer may have written this change too.
        if self.lock().pending.contains_key(volume) {
            self.write().await?;
        }
        Ok(())
    }

    /// Removes finished entries in the background. Runs until it is dropped.
    pub async fn tidy(&self) {
        // A late write of an earlier process is noticed at our next write, but there may be none: read once.
        if tokio::time::timeout(LATE_MAX, self.take_out()).await.is_err() {
            while let Err(error) = self.look_alone().await {
                tracing::warn!(%error, "cannot read the CSI journal; retrying");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
        // The timeout may have cancelled a removal.
        self.done.notify_one();
        self.take_out().await
    }

    async fn take_out(&self) {
        loop {
            self.done.notified().await;
            tokio::time::sleep(LINGER).await;
            while !self.flush().await {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    }

    /// Reads the ConfigMap while no write runs.
    async fn look_alone(&self) -> Result<(), ApiError> {
        let _writing = self.writing.lock().await;
        self.look().await
    }

    /// Writes all pending changes; returns whether that succeeded.
    pub async fn flush(&self) -> bool {
        let _writing = self.writing.lock().await;
        if self.lock().pending.is_empty() {
            return true;
        }
        let result = self.write().await;
        if let Err(error) = &result {
            tracing::warn!(%error, "cannot write the CSI journal; retrying with the next write");
        }
        result.is_ok()
    }

    /// Writes all pending changes in one request. The caller holds `writing`.
    async fn write(&self) -> Result<(), ApiError> {
        let written = self.lock().pending.clone();
        let data: Map = written.iter().map(|(volume, text)| (volume.clone(), json!(text))).collect();
        let mut attempts = 0;
        let object = loop {
            attempts += 1;
            match self.send(&data).await {
                // Another process wrote, or an earlier request of ours arrived after all, or the ConfigMap was deleted.
                Err(error) if error.is_stale() && attempts < WRITE_ATTEMPTS => self.look().await?,
                result => break result?,
            }
        };
        let mut state = self.lock();
        if state.see(&object) {
            self.done.notify_one();
        }
        // The changes stay pending until here, because they are not durable before. Changes added meanwhile are newer
        // and stay pending.
        state.pending.retain(|volume, text| written.get(volume) != Some(text));
        Ok(())
    }

    async fn send(&self, data: &Map) -> Result<Arc<Value>, ApiError> {
        let version = self.lock().version.clone();
        let mut map = json!({"metadata": {"resourceVersion": version}, "data": data});
        if !version.is_empty() {
            return self.api.merge(&self.maps.object(NAMESPACE, NAME), &map).await;
        }
        let all: Map = self.lock().entries.iter().map(|(volume, it)| (volume.clone(), json!(it.to_text()))).collect();
        map["apiVersion"] = json!("v1");
        map["kind"] = json!("ConfigMap");
        map["metadata"] = json!({"namespace": NAMESPACE, "name": NAME});
        map["data"] = Value::Object(all);
        self.api.create(&self.maps.collection(NAMESPACE), &map).await
    }

    fn serves(&self, driver: &str) -> bool {
        self.drivers.get(driver).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic happens under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use std::convert::Infallible;
    use tokio::sync::Semaphore;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    fn entry(volume: &str) -> Entry {
        let texts =
            ["volume", "uid", "version", "driver", "handle", "class", "claim_namespace", "claim_name", "claim_uid"];
        let mut deletion: Map = texts.iter().map(|field| (*field, json!(volume))).collect();
        deletion.insert("gone", json!(true));
        deletion.insert("secret", Value::Null);
        Entry::from_text(&json!({"Delete": deletion}).to_string()).expect("an entry")
    }

    /// An earlier process removed an entry, by a write that arrived after this process had adopted the entry.
    #[test]
    fn an_adopted_entry_that_was_removed_is_written_again() {
        let map = |version: &str, data: Value| json!({"metadata": {"resourceVersion": version}, "data": data});
        let text = entry("a").to_text();
        let mut state = State::default();
        assert!(!state.see(&map("1", json!({"a": text, "b": entry("b").to_text()}))));
        state.unadopted.remove("a");
        assert!(state.see(&map("2", json!({}))) && state.version == "2");
        assert_eq!(state.pending, BTreeMap::from([("a".to_owned(), Some(text))]));
        assert_eq!(state.entries.keys().collect::<Vec<_>>(), ["a"], "the entry that was not adopted is finished");
        assert!(!state.see(&map("2", json!({}))), "the write is already pending");
        // A finished entry is not missed.
        state.entries.clear();
        state.pending.clear();
        assert!(!state.see(&map("3", json!({}))));
    }

    /// Entries that were not adopted follow the ConfigMap, as long as it is the same object.
    #[test]
    fn entries_not_adopted_follow_the_config_map() {
        let map = |uid: &str, data: Value| json!({"metadata": {"uid": uid, "resourceVersion": "1"}, "data": data});
        let (one, other) = (entry("a").to_text(), entry("b").to_text());
        let mut state = State::default();
        assert!(!state.see(&map("x", json!({"v": one, "w": one}))));
        assert!(!state.see(&map("x", json!({"v": other}))));
        assert_eq!(state.entries.get("v"), Some(&entry("b")), "the entry was replaced");
        assert_eq!((state.entries.len(), state.found.len()), (1, 3));
        assert_eq!(state.total, other.len());
        // Deleting the ConfigMap does not finish its entries.
        for lost in [Value::Null, map("y", json!({}))] {
            state.pending.clear();
            state.uid = "x".to_owned();
            assert!(state.see(&lost));
            assert_eq!(state.pending, BTreeMap::from([("v".to_owned(), Some(other.clone()))]));
            assert!(state.unadopted.contains("v"));
        }
    }

    /// A change that could not be written, and is part of another change's write, is not durable before that write's
    /// response.
    #[tokio::test]
    async fn a_write_without_a_response_is_not_durable() {
        let (answers, codes) = (Arc::new(Semaphore::new(2)), Arc::new(Mutex::new(vec![200, 500, 404])));
        let (given, left) = (answers.clone(), codes.clone());
        // A read, a failed write, and a write that waits for its response.
        let server = tower::service_fn(move |_: Request<Body>| {
            let (answers, codes) = (given.clone(), left.clone());
            async move {
                answers.acquire().await.expect("never closed").forget();
                let code = codes.lock().expect("no panic").pop().unwrap_or(200);
                let status = json!({"kind": "Status", "code": code, "details": {"name": NAME}}).to_string();
                Ok::<_, Infallible>(
                    Response::builder().status(code).body(Body::from(status.into_bytes())).expect("an answer"),
                )
            }
        });
        let api = Api::new(kube::Client::new(server, "default"));
        let drivers = Drivers::start(&[], &csi::Metrics::default(), &TaskTracker::new(), &CancellationToken::new());
        let journal = Journal::open(api, drivers).await.expect("the journal can be read");
        assert!(journal.record("a", entry("a")).await.is_err());
        let (writes, confirms) = (journal.record("b", entry("b")), journal.confirm("a"));
        tokio::pin!(writes, confirms);
        assert!(futures::poll!(&mut writes).is_pending());
        assert!(futures::poll!(&mut confirms).is_pending(), "not written yet");
        answers.add_permits(1);
        writes.await.expect("written");
        confirms.await.expect("written by the same request");
        assert_eq!(codes.lock().expect("no panic").len(), 0, "one write");
        assert!(journal.flush().await);
    }
}
