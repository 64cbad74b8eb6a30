//! The provisioner: makes volumes for claims that ask one of our drivers, and deletes them when their policy says so.
//!
//! `create` and `reclaim` carry out what `plan::csi` decides; `sight` knows where to look, `notes` what was seen. All work on one volume
//! has one key, so making and deleting never overlap.

mod create;
mod notes;
mod reclaim;
mod sight;

use super::capacity::Capacities;
use super::drivers::{Drivers, Known};
use super::journal::Journal;
use super::metrics::Metrics;
use super::{say, tell};
use crate::controllers::ControllerContext;
use kit::api::{Api, ApiError, Resource};
use kit::cache::{Cache, Key, key};
use kit::descriptor::{Descriptor, Rule, Scope, allow};
use kit::events::{EventSubject, Events};
use kit::queue::Queue;
use kit::worker;
use kit::{Clock, KeyedBackoff, steady};
use notes::Notes;
use object::Value;
use object::access::{Access, name, namespace, terminating, uid};
use plan::csi::Event;
use plan::csi::cloning;
use plan::csi::journal::{Doomed, Entry};
pub use sight::Sight;
use sight::volume_key;
use std::sync::Arc;
use std::time::Duration;

/// Each waits for the server or a driver most of the time.
const WORKERS: usize = 64;
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Whoever must stop has little time, and the server may not answer any more.
const LEAVE_MAX: Duration = Duration::from_secs(2);

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "csi-provisioner-controller",
    account: "csi-provisioner",
    scope: Scope::Cluster,
    rules: &[
        allow("get list watch create patch delete", "core", "persistentvolumes"),
        allow("patch", "core", "persistentvolumes/status"),
        allow("get list watch patch", "core", "persistentvolumeclaims"),
        allow("list watch", "core", "nodes"),
        allow("get list watch", "storage.k8s.io", "storageclasses"),
        allow("list watch", "storage.k8s.io", "csinodes volumeattachments"),
        allow("get", "storage.k8s.io", "csidrivers volumeattributesclasses"),
        allow("list create update delete", "storage.k8s.io", "csistoragecapacities"),
        // A storage class may name the driver's credentials.
        allow("get", "core", "secrets"),
        // The journal of calls to drivers.
        Rule { verbs: "get patch", groups: "core", resources: "configmaps", names: journal::NAME },
        allow("create", "core", "configmaps"),
    ],
};

/// Serves the drivers of this process, until the part stops.
pub async fn run(context: ControllerContext) {
    if context.drivers.is_empty() {
        return;
    }
    let Some(journal) = open_journal(&context).await else { return };
    let queue = Arc::new(Queue::new(context.metrics.kit.queue(context.name)));
    let control = Arc::new(Control::new(&context, journal, queue.clone()));
    control.used();
    let mut arrivals = context.drivers.arrivals();
    let sources = control.sight.sources(&control.notes, &context.drivers);
    let work = control.clone();
    let worker = worker::run_with(context.clone(), queue.clone(), sources, WORKERS, move |key| {
        let control = work.clone();
        async move { control.sync(key).await }
    });
    let greet = async {
        while arrivals.changed().await.is_ok() {
            let gone = control.notes.claim(&context.drivers, &control.sight.classes);
            let by_name = control.journal.volumes().into_iter().chain(gone).map(|volume| volume_key(&volume));
            control.sight.everything().into_iter().chain(by_name).for_each(|key| queue.add(key));
            // What it has left is not known yet, and without it a scheduler may place nothing.
            control.used();
        }
    };
    let inherit = async {
        loop {
            for volume in control.journal.found().await {
                queue.add(volume_key(&volume));
            }
        }
    };
    tokio::select! {
        biased;
        () = inherit => {}
        () = worker => {}
        () = greet => {}
        () = control.journal.tidy() => {}
    }
    if tokio::time::timeout(LEAVE_MAX, control.leave()).await.is_err() {
        tracing::error!("the server does not answer: what was still to be written into the CSI journal is not");
    }
}

/// `None` when the part stops.
async fn open_journal(context: &ControllerContext) -> Option<Journal> {
    loop {
        match Journal::open(context.api.clone(), context.drivers.clone()).await {
            Ok(journal) => return Some(journal),
            Err(error) => tracing::warn!(%error, "the CSI journal cannot be read; trying again"),
        }
        tokio::select! {
            biased;
            () = context.shutdown.cancelled() => return None,
            () = tokio::time::sleep(OPEN_AGAIN_AFTER) => {}
        }
    }
}

struct Control {
    api: Api,
    events: Events,
    metrics: Metrics,
    /// Tells how long a driver has refused a request.
    steady_clock: Clock,
    drivers: Drivers,
    journal: Journal,
    sight: Sight,
    notes: Arc<Notes>,
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
            sight: Sight::new(),
            notes: Arc::new(Notes::new(context.gates.on("HonorPVReclaimPolicy"))),
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
            return self.capacities.refresh(&self.sight).await;
        }
        let done = if key.0.is_empty() { self.sync_volume(&key.1).await } else { self.free_source(&key).await };
        if key.0.is_empty() {
            // What they wait for, such as the end of a claim, is heard of by the name of the volume.
            self.journal.set_aside(&key.1).iter().for_each(|(aside, _)| self.queue.add(volume_key(aside)));
        }
        self.metrics.open.set(i64::try_from(self.journal.len()).unwrap_or(i64::MAX));
        done
    }

    async fn sync_volume(&self, name: &str) -> Result<Option<Duration>, ApiError> {
        if let Some(doomed) = self.notes.vanished(name) {
            self.write_down(&doomed).await?;
            self.notes.wrote_vanished(&doomed);
        }
        self.journal.confirm(name).await?;
        let is_inherited = self.journal.take_over(name);
        let volume = self.sight.volume(name);
        let (entry, is_strange) = self.journal.find(name);
        if is_inherited && matches!(entry, Some(Entry::Create(_))) {
            self.notes.doubt(name);
        }
        match (entry, volume) {
            // It is the business of whoever serves its driver. A volume of ours that has the name by now is ours all the same.
            (Some(_), volume) if is_strange => match volume {
                Some(volume) => self.tend(&volume).await,
                None => Ok(None),
            },
            (Some(Entry::Create(intent)), volume) => match volume {
                Some(volume) if create::is_of(&volume, &intent) => {
                    self.notes.serves(&volume);
                    self.tend(&volume).await
                }
                _ => self.resume(&intent).await,
            },
            (Some(Entry::Delete(doomed)), Some(volume)) if uid(&volume) != doomed.uid => {
                // Another one has its name, and is to be looked after, too.
                self.journal.record(&doomed.own_key(), Entry::Delete(doomed.clone())).await?;
                self.journal.erase(name);
                self.queue.add(volume_key(&doomed.own_key()));
                Ok(Some(Duration::ZERO))
            }
            (Some(Entry::Delete(_)), Some(volume)) => self.tend(&volume).await,
            (Some(Entry::Delete(doomed)), None) => self.finish(name, &doomed).await,
            (None, Some(volume)) => self.tend(&volume).await,
            (None, None) => self.provision(name).await,
        }
    }

    /// Writes down that a volume is to be deleted, and nothing over what is written down of another one of its name.
    async fn write_down(&self, doomed: &Doomed) -> Result<(), ApiError> {
        let is_taken = self.journal.get(&doomed.volume).is_some_and(|entry| !entry.is_about(doomed));
        let key = if is_taken { doomed.own_key() } else { doomed.volume.clone() };
        self.journal.record(&key, Entry::Delete(Box::new(doomed.clone()))).await?;
        self.queue.add(volume_key(&key));
        Ok(())
    }

    /// Lets go of the source of copies that is on its way out, once no copy of it waits any more.
    async fn free_source(&self, key: &Key) -> Result<Option<Duration>, ApiError> {
        let Some(source) = self.sight.claims.get(key) else { return Ok(None) };
        // A driver that was asked for a copy is asked again until it answers, also when nobody wants the copy any more.
        let handle =
            self.sight.volume(source.text(&["spec", "volumeName"])).map(|volume| create::handle(&volume).to_owned());
        let under_way = handle.map(|handle| self.journal.copies(&handle)).unwrap_or_default();
        if !under_way.iter().all(|copy| self.notes.has_freed_source(copy)) {
            return Ok(None);
        }
        let copies = self.sight.copies(&key.0, &key.1);
        if let Some(patch) = cloning::free(&source, copies.iter().map(AsRef::as_ref)) {
            let answer = self.api.merge(&self.claims.object(&key.0, &key.1), &patch).await?;
            took(&self.sight.claims, answer);
        }
        Ok(None)
    }

    /// Writes down what only we know, so that an orderly end forgets nothing.
    async fn leave(&self) {
        for doomed in self.notes.all_vanished() {
            if let Err(error) = self.write_down(&doomed).await {
                tracing::error!(%error, volume = doomed.volume, handle = doomed.handle, "this volume is not deleted");
            }
        }
        self.journal.flush().await;
    }

    /// Volumes were made or deleted: there is less or more room than before.
    fn used(&self) {
        self.queue.add(Key::default());
    }

    /// A driver by name, if it is one of ours and has answered before.
    fn driver(&self, name: &str) -> Option<Known> {
        self.drivers.get(name)
    }

    fn tell_volume(&self, volume: &Value, event: &Event) {
        tell(&self.events, &self.volumes, volume, event);
    }

    /// Tells about the claim that a reference names.
    fn tell_claim(&self, reference: &Value, event: &Event) {
        let text = |field| reference.text(&[field]);
        let about =
            EventSubject { resource: &self.claims, namespace: text("namespace"), name: text("name"), uid: text("uid") };
        say(&self.events, &about, event);
    }

    /// A write of a volume: the answer counts at once.
    async fn patch_volume(&self, volume: &Value, patch: &Value) -> Result<(), ApiError> {
        let answer = self.api.strategic(&self.volumes.object("", name(volume)), patch).await?;
        took(&self.sight.volumes, answer);
        Ok(())
    }

    async fn patch_claim(&self, claim: &Value, patch: &Value) -> Result<(), ApiError> {
        let answer = self.api.merge(&self.claims.object(namespace(claim), name(claim)), patch).await?;
        self.sight.claims.wrote(answer);
        Ok(())
    }
}

/// The answer to a write that may have taken the last finalizer off: then the object has gone with it.
fn took(cache: &Cache, answer: Arc<Value>) {
    if terminating(&answer) {
        cache.deleted(&key(&answer), uid(&answer), answer.clone());
    } else {
        cache.wrote(answer);
    }
}
