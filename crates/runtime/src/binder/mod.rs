//! The binder: brings claims and volumes together, has volumes made, and reclaims them.
//!
//! `sight` knows where to look and whom a change concerns, `act` is the only writer, `directories` is the one plugin of our own.
//!
//! A key is a claim, or a volume when it has no namespace. A claim that takes a volume holds it meanwhile: no other claim looks at it,
//! and its own turn waits. That is for speed and for order alone; that no two claims get one volume is the writes' own precondition.

mod act;
mod directories;
mod figures;
mod sight;

pub use directories::{Directories, OfMachine, Work};
pub use figures::Figures;

use crate::controllers::ControllerContext;
use act::Flow;
use kit::api::{Api, ApiError};
use kit::cache::Key;
use kit::descriptor::{Descriptor, Scope, allow};
use kit::events::{EventSubject, Events};
use kit::queue::Queue;
use kit::worker;
use kit::{KeyedBackoff, NamespaceScope};
use object::Value;
use object::access::{Access, uid};
use plan::bind::{self, Event, Plan, Target, Waiting, Wanted};
use plan::reclaim::Plugins;
use sight::{Held, Sight};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Most of the time of a turn is spent waiting for the server, which commits what comes together at once.
const WORKERS: usize = 64;
/// Events are forgotten after an hour. Whoever asks later why a claim waits shall still be told.
const REMIND_AFTER: Duration = Duration::from_secs(30 * 60);

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-binder-controller",
    account: "persistent-volume-binder",
    scope: Scope::Namespaces,
    rules: &[
        allow("get list watch create patch delete", "core", "persistentvolumes"),
        allow("get list watch patch", "core", "persistentvolumeclaims"),
        allow("patch", "core", "persistentvolumes/status persistentvolumeclaims/status"),
        allow("get", "core", "nodes"),
        allow("list watch", "core", "pods"),
        allow("list watch", "storage.k8s.io", "storageclasses"),
    ],
};

/// Binds and reclaims, until the part stops.
pub async fn run(context: ControllerContext) {
    let queue = Arc::new(Queue::new(context.metrics.kit.queue(context.name)));
    let figures = context.metrics.volumes.clone();
    figures.start_over();
    let sight = Arc::new(Sight::new(queue.clone()));
    let sources = sight.sources(&figures, &context.scope);
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
        sight,
        figures,
        queue: queue.clone(),
        waiting: Mutex::default(),
        told: Mutex::default(),
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
    sight: Arc<Sight>,
    figures: Figures,
    queue: Arc<Queue<Key>>,
    waiting: Mutex<Waiting<Key>>,
    told: Mutex<HashMap<Key, Told>>,
    backoff: KeyedBackoff<Key>,
}

/// What was told about an object, and when: it is news only once.
struct Told {
    uid: String,
    events: Vec<Event>,
    at: Instant,
}

impl Control {
    async fn sync_claim(&self, key: Key) -> Result<Option<Duration>, ApiError> {
        let Some(claim) = self.sight.claims.cache.get(&key) else {
            self.waiting().leave(&key);
            self.has_looked(&key);
            self.figures.claim_gone(&key);
            self.forget(&key);
            return Ok(None);
        };
        let looks = !bind::is_bound(&claim) && claim.text(&["spec", "volumeName"]).is_empty();
        if looks {
            // Before it looks: a volume that becomes free meanwhile must find it.
            self.waiting().enter(key.clone(), Wanted::of(&claim));
        }
        self.figures.claim_seen(&claim);
        let look = self.sight.look();
        let plan = bind::claim(&claim, &look, &self.plugins);
        if !plan.waits {
            self.waiting().leave(&key);
        }
        let Some(held) = look.hold(&plan) else {
            // Another claim is busy with the volume, and wakes this one when it is done.
            self.has_looked(&key);
            return Ok(None);
        };
        let result = self.carry_out(&claim, plan).await;
        if result.is_err() {
            // It comes back by itself, after a while: until then no volume shall call it.
            self.waiting().leave(&key);
        }
        self.has_looked(&key);
        self.let_go(held, result.is_ok());
        self.finish(&key, result)
    }

    async fn sync_volume(&self, key: Key) -> Result<Option<Duration>, ApiError> {
        let Some(volume) = self.sight.volumes.cache.get(&key) else {
            self.figures.volume_gone(&key);
            self.forget(&key);
            return Ok(None);
        };
        if !self.scope.covers_volume(&volume) || self.sight.is_held(&key.1) {
            return Ok(None);
        }
        let plan = bind::volume(&volume, &*self.sight, &self.plugins);
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

    /// Tells the volumes that had called a claim: where it did not take them, they call the next.
    fn has_looked(&self, claim: &Key) {
        let callers = self.waiting().looked(claim);
        callers.into_iter().for_each(|volume| self.queue.add(volume));
    }

    /// Lets go of the volume that a claim held. Where the claim failed, it comes back to it first.
    fn let_go(&self, held: Option<Held>, succeeded: bool) {
        let Some(held) = held else { return };
        let volume = held.volume();
        drop(held);
        if succeeded {
            self.sight.around(&volume).into_iter().for_each(|key| self.queue.add(key));
        }
    }

    /// Tells what is new about an object, and what is still true after a long time.
    fn tell_news(&self, object: &Value, plan: &Plan) {
        let key = kit::cache::key(object);
        let mut all = self.told();
        if plan.events.is_empty() {
            all.remove(&key);
            return;
        }
        let now = Instant::now();
        let is_old = |told: &Told| {
            told.uid == uid(object) && told.events == plan.events && now.duration_since(told.at) < REMIND_AFTER
        };
        if all.get(&key).is_some_and(is_old) {
            return;
        }
        all.insert(key, Told { uid: uid(object).to_owned(), events: plan.events.clone(), at: now });
        drop(all);
        plan.events.iter().for_each(|event| self.tell(event));
    }

    fn tell(&self, event: &Event) {
        let Target { namespace, name, uid } = &event.about;
        let place = if event.about.is_volume() { &self.sight.volumes } else { &self.sight.claims };
        let about = EventSubject { resource: &place.resource, namespace, name, uid };
        self.events.record(&about, if event.warning { "Warning" } else { "Normal" }, event.reason, &event.message);
    }

    fn forget(&self, key: &Key) {
        self.told().remove(key);
        self.backoff.forget(key);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<Key>> {
        self.waiting.lock().expect("no panic happens under this lock")
    }
    fn told(&self) -> MutexGuard<'_, HashMap<Key, Told>> {
        self.told.lock().expect("no panic happens under this lock")
    }
}
