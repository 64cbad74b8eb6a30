//! The StatefulSet controller: looks at a set and what belongs to it, asks `plan::statefulset` what to do, and does it.
//!
//! `sight` knows where to look and whom a change concerns, `act` is the only writer.

mod act;
mod departed;
mod sight;
mod skew;

use crate::api::{Api, ApiError, Resource};
use crate::cache::{Key, key};
use crate::controllers::{Clock, Judge, Part};
use crate::events::{About, Events};
use crate::growth::Growth;
use crate::metrics::{Metrics, SetLabels};
use crate::worker::{self, Turn};
use object::access::{Access, name, namespace, uid};
use object::{Gates, Value};
use plan::statefulset::{self as planner, Event, Plan};
use sight::Sight;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Most of the time of a set's turn is spent waiting for the server, which commits what comes together at once.
const WORKERS: usize = 64;

/// Counts of a set that is on its way somewhere are written this often at most,
const COUNTS_WAIT_MAX: Duration = Duration::from_millis(100);
/// and this often, while so many sets have their turn at once that the server is better used to move them.
const COUNTS_WAIT_MAX_WHEN_BUSY: Duration = Duration::from_secs(1);
const BUSY_FROM: usize = 8;

/// After a turn in which there was nothing to do, a set is not looked at again for so many times as long as looking took: what happens
/// to the other pods of a large set meanwhile is seen all at once.
const REST_PER_LOOK: u32 = 4;

/// Keeps all sets, until the part stops.
pub async fn run(part: Part) {
    let sight = Sight::new();
    let sources = sight.sources(&part.metrics);
    let control = Arc::new(Control {
        api: part.api.clone(),
        events: part.events.clone(),
        metrics: part.metrics.clone(),
        gates: part.gates.clone(),
        clock: part.clock.clone(),
        judge: part.judge.clone(),
        sight,
        known: Mutex::default(),
        growth: Growth::default(),
        turns: AtomicUsize::new(0),
    });
    let skew = skew::tell(part.clone());
    let work = worker::run(part, sources, WORKERS, move |key| {
        let control = control.clone();
        async move {
            control.turns.fetch_add(1, Ordering::Relaxed);
            let turn = control.sync(key).await;
            control.turns.fetch_sub(1, Ordering::Relaxed);
            turn
        }
    });
    tokio::pin!(work);
    tokio::select! {
        biased;
        () = &mut work => {}
        () = skew => work.await,
    }
}

struct Control {
    api: Api,
    events: Events,
    metrics: Metrics,
    gates: Gates,
    clock: Clock,
    judge: Option<Judge>,
    sight: Sight,
    known: Mutex<HashMap<Key, Known>>,
    /// How fast sets may create pods and claims.
    growth: Growth,
    /// How many sets have their turn now.
    turns: AtomicUsize,
}

/// What is remembered of a set between its turns.
struct Known {
    uid: String,
    labels: SetLabels,
    /// What its last plan had to tell: it is news only once.
    told: Vec<Event>,
    /// Until when counts that go on changing may wait to be written.
    counts_wait_until: Option<Instant>,
    /// The uids of claims whose deletion while in use was told.
    warned: HashSet<String>,
}

impl Control {
    async fn sync(&self, key: Key) -> Result<Turn, ApiError> {
        self.tell_departed(&key).await?;
        let started = Instant::now();
        let Some(seen) = self.sight.look(&key) else {
            self.forget(&key);
            return Ok(Turn::from(None));
        };
        let now = (self.clock)();
        let mut grant = self.growth.grant(&key, seen.objects());
        let mut plan = seen.plan(grant.allowance, &self.gates, now);
        if let Some(judge) = &self.judge {
            seen.broken_by(&plan, grant.allowance, &self.gates, now).into_iter().for_each(|rule| judge(rule));
        }
        let looked = started.elapsed();
        grant.plan(plan.written);
        plan.events.extend(grant.limits().then(|| slowed(&seen.set)));
        self.note(&seen.set, &plan);
        self.warn_of_deleted_claims(&seen).await?;
        let wait = self.patience(&seen.set, &plan);
        self.carry_out(&seen.set, &plan, &grant, wait.is_none()).await?;
        let next = plan.next.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO));
        let rest = if plan.is_idle() { looked * REST_PER_LOOK } else { Duration::ZERO };
        let more = plan.written.withheld.then(|| if grant.limits() { grant.wait } else { Duration::ZERO });
        Ok(Turn { again: next.into_iter().chain(wait).chain(more).min(), rest })
    }

    /// How long the status may still wait to be written. Where hundreds of pods get ready one after the other, nobody needs to read
    /// of each of them; all else is written at once.
    fn patience(&self, set: &Value, plan: &Plan) -> Option<Duration> {
        let mut all_known = self.known();
        let until = &mut all_known.get_mut(&key(set))?.counts_wait_until;
        if !plan.status_can_wait(set) {
            *until = None;
            return None;
        }
        let now = Instant::now();
        let busy = self.turns.load(Ordering::Relaxed) >= BUSY_FROM;
        let most = if busy { COUNTS_WAIT_MAX_WHEN_BUSY } else { COUNTS_WAIT_MAX };
        let end = *until.get_or_insert(now + most);
        if end <= now {
            *until = None;
            return None;
        }
        Some(end - now)
    }

    /// Tells what is new about a set.
    fn note(&self, set: &Value, plan: &Plan) {
        let mut all_known = self.known();
        let known = all_known.entry(key(set)).or_insert_with(|| Known::of(set));
        if known.uid != uid(set) {
            self.metrics.set_gone(&known.labels);
            *known = Known::of(set);
        }
        self.metrics.set_budget(&known.labels, plan.max_unavailable, plan.unavailable);
        let told = std::mem::replace(&mut known.told, plan.events.clone());
        for event in plan.events.iter().filter(|event| !told.contains(event)) {
            self.tell(set, event);
        }
    }

    fn forget(&self, key: &Key) {
        if let Some(known) = self.known().remove(key) {
            self.metrics.set_gone(&known.labels);
        }
    }

    fn tell(&self, set: &Value, event: &Event) {
        let about =
            About { resource: &self.sight.sets.resource, namespace: namespace(set), name: name(set), uid: uid(set) };
        let kind = if event.warning { "Warning" } else { "Normal" };
        self.events.say(&about, kind, event.reason, &event.message);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().expect("no panic happens under this lock")
    }
}

impl Known {
    fn of(set: &Value) -> Known {
        Known {
            uid: uid(set).to_owned(),
            labels: SetLabels {
                statefulset_namespace: namespace(set).to_owned(),
                statefulset_name: name(set).to_owned(),
                pod_management_policy: set.text(&["spec", "podManagementPolicy"]).to_owned(),
            },
            told: Vec::new(),
            counts_wait_until: None,
            warned: HashSet::new(),
        }
    }
}

/// Why a set grows slowly.
fn slowed(set: &Value) -> Event {
    let message = format!(
        "StatefulSet {} has created pods and claims of many megabytes in a short time: it creates the rest slowly, so that it leaves \
         room for others",
        name(set)
    );
    Event { warning: true, reason: "CreationSlowed", message }
}

fn resource(api_version: &str, kind: &str, plural: &str) -> Resource {
    Resource::new(api_version, kind, plural, true)
}
