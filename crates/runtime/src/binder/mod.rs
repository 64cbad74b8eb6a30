//! The binder: binds claims to volumes, asks provisioners for new volumes, and reclaims released ones.
//!
//! `informers` has the caches and maps changes to keys, `executor` is the only writer, `directories` is the built-in
//! hostPath plugin.
//!
//! A key is a claim, or a volume if it has no namespace. A claim that changes a volume holds it meanwhile: other claims
//! skip it, and the volume's own reconcile waits. This is for speed and order only; the preconditions of the writes
//! guarantee that no two claims get one volume.

mod directories;
mod executor;
mod figures;
mod informers;

pub use directories::{Directories, OfMachine, Work};
pub use figures::Figures;

use crate::controllers::ControllerContext;
use executor::Flow;
use informers::{Held, Informers};
use kit::api::{Api, ApiError};
use kit::cache::Key;
use kit::events::{EventSubject, Events};
use kit::queue::Queue;
use kit::worker;
use kit::{KeyedBackoff, NamespaceScope};
use object::Value;
use object::access::{Access, uid};
use plan::bind::{self, Event, Plan, Target, Waiting, Wanted};
use plan::reclaim::Plugins;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// A worker spends most of its time waiting for the server, which commits concurrent writes together.
const WORKERS: usize = 64;
/// Events expire after an hour. The event of a claim that still waits is repeated, so that a user always finds it.
const REMIND_AFTER: Duration = Duration::from_secs(30 * 60);

/// Runs the binder until the controller context stops.
pub async fn run(context: ControllerContext) {
    let queue = Arc::new(Queue::new(context.metrics.kit.queue(context.name)));
    let figures = context.metrics.volumes.clone();
    figures.start_over();
    let informers = Arc::new(Informers::new(queue.clone()));
    let sources = informers.sources(&figures, &context.scope);
    let control = Arc::new(Control {
        api: context.api.clone(),
        events: context.events.clone(),
        plugins: Plugins {
            dynamic_provisioning: context.provisioning.dynamic,
            host_path_provisioning: context.provisioning.host_path,
            honor_reclaim_policy: context.gates.on("HonorPVReclaimPolicy"),
            ..Plugins::default()
        },
        directories: context.directories.clone(),
        scope: context.scope.clone(),
        informers,
        figures,
        queue: queue.clone(),
        waiting: Mutex::default(),
        reported: Mutex::default(),
        backoff: KeyedBackoff::default(),
    });
    worker::run_with(context, queue, sources, WORKERS, move |key| {
        let control = control.clone();
        async move { if key.0.is_empty() { control.sync_volume(key).await } else { control.sync_claim(key).await } }
    })
    .await;
}

struct Control {
    api: Api,
    events: Events,
    plugins: Plugins,
    directories: Arc<dyn Directories>,
    scope: NamespaceScope,
    informers: Arc<Informers>,
    figures: Figures,
    queue: Arc<Queue<Key>>,
    waiting: Mutex<Waiting<Key>>,
    reported: Mutex<HashMap<Key, Reported>>,
    backoff: KeyedBackoff<Key>,
}

/// The last events of an object, and when they were recorded. An unchanged event is not repeated before `REMIND_AFTER`.
struct Reported {
    uid: String,
    events: Vec<Event>,
    at: Instant,
}

impl Control {
    async fn sync_claim(&self, key: Key) -> Result<Option<Duration>, ApiError> {
        let Some(claim) = self.informers.claims.cache.get(&key) else {
            self.waiting().leave(&key);
            self.requeue_callers(&key);
            self.figures.claim_gone(&key);
            self.forget(&key);
            return Ok(None);
        };
        let looks = !bind::is_bound(&claim) && claim.text(&["spec", "volumeName"]).is_empty();
        if looks {
            // Enter the waiting list first: a volume that becomes available meanwhile must find this claim there.
            self.waiting().enter(key.clone(), Wanted::of(&claim));
        }
        self.figures.claim_seen(&claim);
        let look = self.informers.look();
        let plan = bind::claim(&claim, &look, &self.plugins);
        if !plan.waits {
            self.waiting().leave(&key);
        }
        let Some(held) = look.hold(&plan) else {
            // Another claim holds the volume, and requeues this claim when it releases it.
            self.requeue_callers(&key);
            return Ok(None);
        };
        let result = self.carry_out(&claim, plan).await;
        if result.is_err() {
            // The claim is requeued with backoff. Until then no volume should be offered to it.
            self.waiting().leave(&key);
        }
        self.requeue_callers(&key);
        self.release_volume(held, result.is_ok());
        self.finish(&key, result)
    }

    async fn sync_volume(&self, key: Key) -> Result<Option<Duration>, ApiError> {
        let Some(volume) = self.informers.volumes.cache.get(&key) else {
            self.figures.volume_gone(&key);
            self.forget(&key);
            return Ok(None);
        };
        if !self.scope.covers_volume(&volume) || self.informers.is_held(&key.1) {
            return Ok(None);
        }
        let plan = bind::volume(&volume, &*self.informers, &self.plugins);
        if let Some(Target { namespace, name, .. }) = &plan.wake {
            self.queue.add((namespace.as_str().into(), name.as_str().into()));
        }
        let offers = plan.offers;
        let result = self.carry_out(&volume, plan).await;
        if offers && let Some(claim) = self.waiting().call(&key, &volume) {
            self.queue.add(claim);
        }
        self.finish(&key, result)
    }

    fn finish(&self, key: &Key, result: Result<Flow, ApiError>) -> Result<Option<Duration>, ApiError> {
        match result? {
            Flow::Done => Ok(None),
            Flow::Waits => Ok(Some(REMIND_AFTER)),
            Flow::Again => {
                self.queue.add(key.clone());
                Ok(None)
            }
            Flow::Later(delay) => Ok(Some(delay)),
        }
    }

    /// Requeues the volumes that were offered to a claim: a volume that the claim did not take is offered to the next
    /// one.
    fn requeue_callers(&self, claim: &Key) {
        let callers = self.waiting().looked(claim);
        callers.into_iter().for_each(|volume| self.queue.add(volume));
    }

    /// Releases the volume that a claim held. After a success it requeues the volume and its claims; after a failure
    /// the claim is retried first.
    fn release_volume(&self, held: Option<Held>, succeeded: bool) {
        let Some(held) = held else { return };
        let volume = held.volume();
        drop(held);
        if succeeded {
            self.informers.around(&volume).into_iter().for_each(|key| self.queue.add(key));
        }
    }

    /// Records events that are new for an object, or still true after `REMIND_AFTER`.
    fn record_changed_events(&self, object: &Value, plan: &Plan) {
        let key = kit::cache::key(object);
        let mut all = self.reported();
        if plan.events.is_empty() {
            all.remove(&key);
            return;
        }
        let now = Instant::now();
        let is_old = |reported: &Reported| {
            reported.uid == uid(object)
                && reported.events == plan.events
                && now.duration_since(reported.at) < REMIND_AFTER
        };
        if all.get(&key).is_some_and(is_old) {
            return;
        }
        all.insert(key, Reported { uid: uid(object).to_owned(), events: plan.events.clone(), at: now });
        drop(all);
        plan.events.iter().for_each(|event| self.record_event(event));
    }

    fn record_event(&self, event: &Event) {
        let Target { namespace, name, uid } = &event.about;
        let place = if event.about.is_volume() { &self.informers.volumes } else { &self.informers.claims };
        let about = EventSubject { resource: &place.resource, namespace, name, uid };
        self.events.record(&about, if event.warning { "Warning" } else { "Normal" }, event.reason, &event.message);
    }

    fn forget(&self, key: &Key) {
        self.reported().remove(key);
        self.backoff.forget(key);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<Key>> {
        self.waiting.lock().expect("no panic happens under this lock")
    }
    fn reported(&self) -> MutexGuard<'_, HashMap<Key, Reported>> {
        self.reported.lock().expect("no panic happens under this lock")
    }
}
