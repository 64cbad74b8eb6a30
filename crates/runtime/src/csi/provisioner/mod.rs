//! The provisioner: creates volumes for claims that request one of this process's CSI drivers, and deletes volumes
//! whose reclaim policy is `Delete`.
//!
//! `create` and `reclaim` execute what `plan::csi` decides. `informers` holds the caches and maps changes to keys.
//! `volume_state` holds what was observed and is stored nowhere else. All work on one volume has one queue key, so
//! that creating and deleting the same volume never overlap.

mod create;
mod informers;
mod reclaim;
mod volume_state;

use super::capacity::Capacities;
use super::drivers::{Drivers, Known};
use super::journal::Journal;
use super::metrics::Metrics;
use super::{record, record_event};
use crate::controllers::ControllerContext;
pub use informers::Informers;
use informers::volume_key;
use kit::api::{Api, ApiError, Resource};
use kit::cache::{Cache, Key, key};
use kit::events::{EventSubject, Events};
use kit::queue::Queue;
use kit::worker;
use kit::{Clock, KeyedBackoff, steady};
use object::Value;
use object::access::{Access, name, namespace, terminating, uid};
use plan::csi::Event;
use plan::csi::cloning;
use plan::csi::journal::{Entry, PendingDeletion};
use std::sync::Arc;
use std::time::Duration;
use volume_state::VolumeState;

/// A worker spends most of its time waiting for the server or for a driver.
const WORKERS: usize = 64;
const OPEN_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Limits the final flush: the process must stop soon, and the server may no longer respond.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the provisioner for the drivers of this process until the controller context stops.
pub async fn run(context: ControllerContext) {
    if context.drivers.is_empty() {
        return;
    }
    let Some(journal) = open_journal(&context).await else { return };
    let queue = Arc::new(Queue::new(context.metrics.kit.queue(context.name)));
    let control = Arc::new(Control::new(&context, journal, queue.clone()));
    control.used();
    let mut arrivals = context.drivers.arrivals();
    let sources = control.informers.sources(&control.volume_state, &context.drivers);
    let work = control.clone();
    let worker = worker::run_with(context.clone(), queue.clone(), sources, WORKERS, move |key| {
        let control = work.clone();
        async move { control.sync(key).await }
    });
    let register_drivers = async {
        while arrivals.changed().await.is_ok() {
            let gone = control.volume_state.claim(&context.drivers, &control.informers.classes);
            let by_name = control.journal.volumes().into_iter().chain(gone).map(|volume| volume_key(&volume));
            control.informers.everything().into_iter().chain(by_name).for_each(|key| queue.add(key));
            // The driver's capacity is not known yet, and without it a scheduler may place no pod.
            control.used();
        }
    };
    let adopt_journal_entries = async {
        loop {
            for volume in control.journal.found().await {
                queue.add(volume_key(&volume));
            }
        }
    };
    tokio::select! {
        biased;
        () = adopt_journal_entries => {}
        () = worker => {}
        () = register_drivers => {}
        () = control.journal.tidy() => {}
    }
    if tokio::time::timeout(FLUSH_TIMEOUT, control.flush()).await.is_err() {
        tracing::error!("the server does not respond; pending entries of the CSI journal were not written");
    }
}

/// Opens the journal. `None` when the controller context stops first.
async fn open_journal(context: &ControllerContext) -> Option<Journal> {
    loop {
        match Journal::open(context.api.clone(), context.drivers.clone()).await {
            Ok(journal) => return Some(journal),
            Err(error) => tracing::warn!(%error, "cannot read the CSI journal; retrying"),
        }
        tokio::select! {
            biased;
            () = context.shutdown.cancelled() => return None,
            () = tokio::time::sleep(OPEN_RETRY_AFTER) => {}
        }
    }
}

struct Control {
    api: Api,
    events: Events,
    metrics: Metrics,
    /// Measures how long a driver has refused a request.
    steady_clock: Clock,
    drivers: Drivers,
    journal: Journal,
    informers: Informers,
    volume_state: Arc<VolumeState>,
    attempts: KeyedBackoff<String>,
    capacities: Capacities,
    queue: Arc<Queue<Key>>,
    claims: Resource,
    volumes: Resource,
}

impl Control {
    fn new(context: &ControllerContext, journal: Journal, queue: Arc<Queue<Key>>) -> Control {
        Control {
            api: context.api.clone(),
            events: context.events.clone(),
            metrics: context.metrics.csi.clone(),
            steady_clock: steady(&context.clock),
            drivers: context.drivers.clone(),
            journal,
            informers: Informers::new(),
            volume_state: Arc::new(VolumeState::new(context.gates.on("HonorPVReclaimPolicy"))),
            attempts: KeyedBackoff::default(),
            capacities: Capacities::new(context),
            queue,
            claims: super::claims(),
            volumes: super::volumes(),
        }
    }

    async fn sync(&self, key: Key) -> Result<Option<Duration>, ApiError> {
        self.journal.renew().await?;
        if key == Key::default() {
            return self.capacities.refresh(&self.informers).await;
        }
        let done = if key.0.is_empty() { self.sync_volume(&key.1).await } else { self.release_source(&key).await };
        if key.0.is_empty() {
            // Deletions of earlier volumes of this name wait for the same objects, such as a claim, whose events carry
            // this key.
            self.journal
                .earlier_deletions(&key.1)
                .iter()
                .for_each(|(key_of_earlier, _)| self.queue.add(volume_key(key_of_earlier)));
        }
        self.metrics.open.set(i64::try_from(self.journal.len()).unwrap_or(i64::MAX));
        done
    }

    async fn sync_volume(&self, name: &str) -> Result<Option<Duration>, ApiError> {
        if let Some(deletion) = self.volume_state.vanished(name) {
            self.journal_deletion(&deletion).await?;
            self.volume_state.wrote_vanished(&deletion);
        }
        self.journal.confirm(name).await?;
        let is_adopted = self.journal.adopt(name);
        let volume = self.informers.volume(name);
        let (entry, is_not_adopted) = self.journal.find(name);
        if is_adopted && matches!(entry, Some(Entry::Create(_))) {
            self.volume_state.mark_uncertain(name);
        }
        match (entry, volume) {
            // The driver of this entry is served by another process. A volume of this name may still be of one of our
            // drivers.
            (Some(_), volume) if is_not_adopted => match volume {
                Some(volume) => self.reconcile_volume(&volume).await,
                None => Ok(None),
            },
            (Some(Entry::Create(intent)), volume) => match volume {
                Some(volume) if create::is_of(&volume, &intent) => {
                    self.volume_state.serves(&volume);
                    self.reconcile_volume(&volume).await
                }
                _ => self.resume(&intent).await,
            },
            (Some(Entry::Delete(deletion)), Some(volume)) if uid(&volume) != deletion.uid => {
                // A newer volume has this name: move the old one's deletion to a key of its own, and reconcile both.
                self.journal.record(&deletion.own_key(), Entry::Delete(deletion.clone())).await?;
                self.journal.erase(name);
                self.queue.add(volume_key(&deletion.own_key()));
                Ok(Some(Duration::ZERO))
            }
            (Some(Entry::Delete(_)), Some(volume)) => self.reconcile_volume(&volume).await,
            (Some(Entry::Delete(deletion)), None) => self.finish(name, &deletion).await,
            (None, Some(volume)) => self.reconcile_volume(&volume).await,
            (None, None) => self.provision(name).await,
        }
    }

    /// Journals the deletion of a volume. It does not overwrite an entry about another volume of the same name.
    async fn journal_deletion(&self, deletion: &PendingDeletion) -> Result<(), ApiError> {
        let is_taken = self.journal.get(&deletion.volume).is_some_and(|entry| !entry.is_about(deletion));
        let key = if is_taken { deletion.own_key() } else { deletion.volume.clone() };
        self.journal.record(&key, Entry::Delete(Box::new(deletion.clone()))).await?;
        self.queue.add(volume_key(&key));
        Ok(())
    }

    /// Removes the finalizer from a deleted claim that is a source of copies, once no unfinished copy needs it.
    async fn release_source(&self, key: &Key) -> Result<Option<Duration>, ApiError> {
        let Some(source) = self.informers.claims.get(key) else { return Ok(None) };
        // A driver that was asked to copy is asked again until it responds, even when the claim of the copy was
        // deleted.
        let handle = self
            .informers
            .volume(source.text(&["spec", "volumeName"]))
            .map(|volume| create::handle(&volume).to_owned());
        let under_way = handle.map(|handle| self.journal.copies(&handle)).unwrap_or_default();
        if !under_way.iter().all(|copy| self.volume_state.has_freed_source(copy)) {
            return Ok(None);
        }
        let copies = self.informers.copies(&key.0, &key.1);
        if let Some(patch) = cloning::free(&source, copies.iter().map(AsRef::as_ref)) {
            let answer = self.api.merge(&self.claims.object(&key.0, &key.1), &patch).await?;
            cache_response(&self.informers.claims, answer);
        }
        Ok(None)
    }

    /// Journals deletions that are only in memory, so that an orderly shutdown loses none of them.
    async fn flush(&self) {
        for deletion in self.volume_state.all_vanished() {
            if let Err(error) = self.journal_deletion(&deletion).await {
                tracing::error!(%error, volume = deletion.volume, handle = deletion.handle, "cannot journal the deletion of this volume; its data is kept");
            }
        }
        self.journal.flush().await;
    }

    /// Requests a refresh of the capacity objects, because volumes were created or deleted.
    fn used(&self) {
        self.queue.add(Key::default());
    }

    /// A driver by name, if this process serves it and it has responded before.
    fn driver(&self, name: &str) -> Option<Known> {
        self.drivers.get(name)
    }

    fn record_volume_event(&self, volume: &Value, event: &Event) {
        record_event(&self.events, &self.volumes, volume, event);
    }

    /// Records an event on the claim that a reference names.
    fn record_claim_event(&self, reference: &Value, event: &Event) {
        let text = |field| reference.text(&[field]);
        let about =
            EventSubject { resource: &self.claims, namespace: text("namespace"), name: text("name"), uid: text("uid") };
        record(&self.events, &about, event);
    }

    /// Patches a volume, and updates the cache from the response.
    async fn patch_volume(&self, volume: &Value, patch: &Value) -> Result<(), ApiError> {
        let answer = self.api.strategic(&self.volumes.object("", name(volume)), patch).await?;
        cache_response(&self.informers.volumes, answer);
        Ok(())
    }

    async fn patch_claim(&self, claim: &Value, patch: &Value) -> Result<(), ApiError> {
        let answer = self.api.merge(&self.claims.object(namespace(claim), name(claim)), patch).await?;
        self.informers.claims.wrote(answer);
        Ok(())
    }
}

/// Updates the cache from the response to a write. If the write removed the last finalizer, the object no longer
/// exists.
fn cache_response(cache: &Cache, answer: Arc<Value>) {
    if terminating(&answer) {
        cache.deleted(&key(&answer), uid(&answer), answer.clone());
    } else {
        cache.wrote(answer);
    }
}
