//! The journal: what is written down before a driver is called, in a ConfigMap, so that whoever comes after a crash can finish it.
//!
//! Many workers write at once: one of them writes for all who wait. What is done with is taken out with the next write, or a moment
//! later; until then it does no harm, because what it speaks of can be seen to be done.
//!
//! A write that got no answer may still arrive, long after: each is of the version that was seen last, so that what was taken out
//! stays out.

use super::drivers::Drivers;
use kit::api::{Api, ApiError, Resource};
use object::access::{Access, uid};
use object::{Map, Value, json};
use plan::csi::journal::{Doomed, Entry};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;

pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "mainstay-csi-journal";

/// An object holds a megabyte; most of it may be used. A driver that leaves so many calls open is asked for nothing more.
const BYTES_MAX: usize = 700 << 10;
/// What is done with stays in the journal for so long, unless something else is written anyway.
const LINGER: Duration = Duration::from_millis(100);
/// A server that refused the journal is tried again after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// What whoever was here before us sent has arrived by then, or never will: servers give requests up after a minute.
const LATE_MAX: Duration = Duration::from_secs(60);
/// A map that changes all the time is tried again later.
const WRITE_ATTEMPTS: usize = 5;

pub struct Journal {
    api: Api,
    drivers: Drivers,
    maps: Resource,
    state: Mutex<State>,
    /// Held by the one who writes.
    writing: tokio::sync::Mutex<()>,
    done: Notify,
    found: Notify,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// The length of each text that is or will be in the object, and of all together.
    lengths: HashMap<String, usize>,
    total: usize,
    /// What the object does not say yet: `None` takes out.
    pending: BTreeMap<String, Option<String>>,
    /// Which object was seen last, and in which version; empty while there is none.
    uid: String,
    version: String,
    /// How many drivers had been met when the object was last asked for.
    met: usize,
    /// Volumes whose entries somebody else wrote and nobody here has taken over: they are as the object says.
    strange: HashSet<String>,
    /// Those of them that nobody was told of yet.
    found: Vec<String>,
    /// Volumes whose entries cannot be read, as was said once.
    unreadable: HashSet<String>,
}

impl State {
    /// Takes the object in as it is now. What it says about volumes that we know nothing of was written by whoever serves their drivers, or did
    /// before us. What we go by and it does not say any more was taken out by a write of theirs that arrived late: it is to be written again. Whether
    /// there is such. What we have not taken over was taken out by whoever is done with it, and is forgotten; but where the object itself was lost,
    /// nobody is done with anything, and whoever serves those drivers may not be here to say so.
    fn see(&mut self, object: &Value) -> bool {
        let data = object.members(&["data"]);
        let is_same_object = uid(object) == self.uid;
        let is_lost = |volume: &&String| !data.contains_key(volume.as_str()) && !self.pending.contains_key(*volume);
        let lost: Vec<String> = self.entries.keys().filter(is_lost).cloned().collect();
        let (done, lost): (Vec<_>, Vec<_>) =
            lost.into_iter().partition(|volume| is_same_object && self.strange.contains(volume));
        for volume in &done {
            self.entries.remove(volume);
            self.strange.remove(volume);
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
            let is_ours = self.entries.contains_key(volume) && !self.strange.contains(volume);
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
            self.strange.insert(volume.to_owned());
            self.found.push(volume.to_owned());
        }
        !lost.is_empty()
    }

    /// Has an entry written down in place of the one that it returns.
    fn put(&mut self, volume: &str, entry: Entry) -> Option<Entry> {
        let text = entry.to_text();
        self.measure(volume, text.len());
        self.pending.insert(volume.to_owned(), Some(text));
        self.strange.remove(volume);
        self.entries.insert(volume.to_owned(), entry)
    }

    fn measure(&mut self, volume: &str, length: usize) {
        let before =
            if length == 0 { self.lengths.remove(volume) } else { self.lengths.insert(volume.to_owned(), length) };
        self.total = self.total - before.unwrap_or(0) + length;
    }
}

impl Journal {
    /// Reads what was written down before.
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

    /// Waits for volumes whose entries somebody else wrote: first for those that the journal was opened with.
    pub async fn found(&self) -> Vec<String> {
        loop {
            let found = std::mem::take(&mut self.lock().found);
            if !found.is_empty() {
                return found;
            }
            self.found.notified().await;
        }
    }

    /// Reads the object anew if drivers were met since it was read. Until then others may have served them, and have written things down or be done with
    /// them.
    pub async fn renew(&self) -> Result<(), ApiError> {
        if self.is_current() {
            return Ok(());
        }
        let _writing = self.writing.lock().await;
        if self.is_current() { Ok(()) } else { self.look().await }
    }

    /// Whether it is known what was written down of all drivers that are served here. Asked after a driver was found, it is so of that driver.
    pub fn is_current(&self) -> bool {
        self.lock().met == self.drivers.count()
    }

    /// Goes on with what somebody else wrote down about a volume, if its driver is served here; true when it is taken over.
    pub fn take_over(&self, volume: &str) -> bool {
        let mut state = self.lock();
        let is_served = state.entries.get(volume).is_some_and(|entry| self.serves(entry.driver()));
        is_served && state.met == self.drivers.count() && state.strange.remove(volume)
    }

    /// What is written down about a volume, and whether that is somebody else's and was not taken over.
    pub fn find(&self, volume: &str) -> (Option<Entry>, bool) {
        let state = self.lock();
        (state.entries.get(volume).cloned(), state.strange.contains(volume))
    }

    pub fn get(&self, volume: &str) -> Option<Entry> {
        self.lock().entries.get(volume).cloned()
    }

    /// The deletions of earlier volumes of a name, with the keys of their own that they are under.
    pub fn set_aside(&self, volume: &str) -> Vec<(String, Doomed)> {
        let state = self.lock();
        // Keys of their own stand together, by what they begin with: this is asked for each volume that is looked at.
        let own = state.entries.range("_".to_owned()..).take_while(|(key, _)| key.starts_with('_'));
        let deletions = own.filter_map(|(key, entry)| match entry {
            Entry::Delete(doomed) if doomed.volume == volume => Some((key.clone(), *doomed.clone())),
            _ => None,
        });
        deletions.collect()
    }

    /// The volumes that are being made as copies of the volume of this handle.
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

    /// The volumes that something is written down about.
    pub fn volumes(&self) -> Vec<String> {
        self.lock().entries.keys().cloned().collect()
    }

    /// Writes an entry down; when this returns it is durable. Where nobody knows whether it was written, it holds all the same: to take
    /// it back would be one more write, whose answer can get lost too, and so on for ever. [`Journal::confirm`] then writes it again.
    pub async fn record(&self, volume: &str, entry: Entry) -> Result<(), ApiError> {
        let length = entry.to_text().len();
        let before = {
            let mut state = self.lock();
            let before = state.lengths.get(volume).copied().unwrap_or(0);
            if state.total - before + length > BYTES_MAX {
                let message = "too many calls to CSI drivers have no outcome yet: no more are made before that";
                return Err(ApiError::Broken(kube::Error::Service(message.into())));
            }
            state.put(volume, entry)
        };
        let written = self.settle(volume).await;
        if written.as_ref().is_err_and(ApiError::is_refusal) {
            // An earlier attempt may have written it; what holds instead is then part of the next write.
            match before {
                Some(before) => drop(self.lock().put(volume, before)),
                None => self.erase(volume),
            }
        }
        written
    }

    /// What an entry speaks of is done.
    pub fn erase(&self, volume: &str) {
        let mut state = self.lock();
        if state.entries.remove(volume).is_some() {
            state.strange.remove(volume);
            state.measure(volume, 0);
            state.pending.insert(volume.to_owned(), None);
            self.done.notify_one();
        }
    }

    /// When this returns, what holds about a volume is durable. What is done with may still be in the journal.
    pub async fn confirm(&self, volume: &str) -> Result<(), ApiError> {
        let is_open = matches!(self.lock().pending.get(volume), Some(Some(_)));
        if is_open { self.settle(volume).await } else { Ok(()) }
    }

    /// When this returns, the journal says about a volume what it should, durably.
    pub async fn settle(&self, volume: &str) -> Result<(), ApiError> {
        let _writing = self.writing.lock().await;
        // Whoever wrote before may have written this too.
        if self.lock().pending.contains_key(volume) {
            self.write().await?;
        }
        Ok(())
    }

    /// Takes out what is done with; ends when it is dropped.
    pub async fn tidy(&self) {
        // What arrives late is seen at the next write, but there may be none.
        if tokio::time::timeout(LATE_MAX, self.take_out()).await.is_err() {
            while let Err(error) = self.look_alone().await {
                tracing::warn!(%error, "the CSI journal cannot be read; trying again");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
        // What it was about to take out then is still to be.
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

    /// Looks while nobody writes.
    async fn look_alone(&self) -> Result<(), ApiError> {
        let _writing = self.writing.lock().await;
        self.look().await
    }

    /// Writes all there is to write; whether that could be done.
    pub async fn flush(&self) -> bool {
        let _writing = self.writing.lock().await;
        if self.lock().pending.is_empty() {
            return true;
        }
        let result = self.write().await;
        if let Err(error) = &result {
            tracing::warn!(%error, "the CSI journal could not be written; it comes with the next write");
        }
        result.is_ok()
    }

    /// One write for all that is pending. To be called by the one who may write.
    async fn write(&self) -> Result<(), ApiError> {
        let written = self.lock().pending.clone();
        let data: Map = written.iter().map(|(volume, text)| (volume.clone(), json!(text))).collect();
        let mut attempts = 0;
        let object = loop {
            attempts += 1;
            match self.send(&data).await {
                // Somebody else wrote, or what we sent before has arrived after all, or the object is gone.
                Err(error) if error.is_stale() && attempts < WRITE_ATTEMPTS => self.look().await?,
                result => break result?,
            }
        };
        let mut state = self.lock();
        if state.see(&object) {
            self.done.notify_one();
        }
        // Until now all of it is pending: whoever asks meanwhile must not take it for durable. What came since is newer, and stays so.
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
        let mut doomed: Map = texts.iter().map(|field| (*field, json!(volume))).collect();
        doomed.insert("gone", json!(true));
        doomed.insert("secret", Value::Null);
        Entry::from_text(&json!({"Delete": doomed}).to_string()).expect("an entry")
    }

    /// Whoever was here before us took an entry out, by a write that arrived when we went by that entry already.
    #[test]
    fn what_somebody_else_took_out_is_written_again() {
        let map = |version: &str, data: Value| json!({"metadata": {"resourceVersion": version}, "data": data});
        let text = entry("a").to_text();
        let mut state = State::default();
        assert!(!state.see(&map("1", json!({"a": text, "b": entry("b").to_text()}))));
        state.strange.remove("a");
        assert!(state.see(&map("2", json!({}))) && state.version == "2");
        assert_eq!(state.pending, BTreeMap::from([("a".to_owned(), Some(text))]));
        assert_eq!(state.entries.keys().collect::<Vec<_>>(), ["a"], "who serves the other is done with it");
        assert!(!state.see(&map("2", json!({}))), "it is about to be");
        // What we are done with is not missed.
        state.entries.clear();
        state.pending.clear();
        assert!(!state.see(&map("3", json!({}))));
    }

    /// Entries that nobody here has gone on with are as the object says, as long as it is the same object.
    #[test]
    fn what_was_not_taken_over_is_as_the_object_says() {
        let map = |uid: &str, data: Value| json!({"metadata": {"uid": uid, "resourceVersion": "1"}, "data": data});
        let (one, other) = (entry("a").to_text(), entry("b").to_text());
        let mut state = State::default();
        assert!(!state.see(&map("x", json!({"v": one, "w": one}))));
        assert!(!state.see(&map("x", json!({"v": other}))));
        assert_eq!(state.entries.get("v"), Some(&entry("b")), "another one by now");
        assert_eq!((state.entries.len(), state.found.len()), (1, 3));
        assert_eq!(state.total, other.len());
        // Whoever deletes the object is not done with what it says.
        for lost in [Value::Null, map("y", json!({}))] {
            state.pending.clear();
            state.uid = "x".to_owned();
            assert!(state.see(&lost));
            assert_eq!(state.pending, BTreeMap::from([("v".to_owned(), Some(other.clone()))]));
            assert!(state.strange.contains("v"));
        }
    }

    /// What could not be written, and is on its way with another's write, is not durable before that one's answer.
    #[tokio::test]
    async fn what_is_on_its_way_is_not_taken_for_durable() {
        let (answers, codes) = (Arc::new(Semaphore::new(2)), Arc::new(Mutex::new(vec![200, 500, 404])));
        let (given, left) = (answers.clone(), codes.clone());
        // A read, a write that fails, and one that waits for its answer.
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
        let journal = Journal::open(api, drivers).await.expect("it can be read");
        assert!(journal.record("a", entry("a")).await.is_err());
        let (writes, confirms) = (journal.record("b", entry("b")), journal.confirm("a"));
        tokio::pin!(writes, confirms);
        assert!(futures::poll!(&mut writes).is_pending());
        assert!(futures::poll!(&mut confirms).is_pending(), "it is not written yet");
        answers.add_permits(1);
        writes.await.expect("written");
        confirms.await.expect("written with it");
        assert_eq!(codes.lock().expect("no panic").len(), 0, "by one write");
        assert!(journal.flush().await);
    }
}
