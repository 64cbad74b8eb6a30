//! The StatefulSet controller: collects a set and its objects, calls the planner `plan::statefulset`, and
//! executes the plan.
//!
//! `informers` has the caches and their indexes; `executor` is the only module that writes.

mod departed;
mod executor;
mod informers;
mod server_capabilities;

use crate::controllers::{ControllerContext, Judge};
use crate::growth::Growth;
use crate::metrics::{Metrics, SetLabels};
use informers::Informers;
use kit::Clock;
use kit::api::{Api, ApiError, Resource};
use kit::cache::{Key, key};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::events::{EventSubject, Events};
use kit::worker::{self, ReconcileResult};
use object::access::{Access, name, namespace, uid};
use object::{Gates, Value};
use plan::statefulset::{self as planner, SetEvent, SetPlan};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Workers mostly wait for the server, which commits concurrent writes together.
const WORKERS: usize = 64;

/// While a set changes, the counts in its status are written at most this often,
const COUNTS_WAIT_MAX: Duration = Duration::from_millis(100);
/// and at most this often while at least [`BUSY_FROM`] sets are reconciled at once: the server has more
/// important writes then.
const COUNTS_WAIT_MAX_WHEN_BUSY: Duration = Duration::from_secs(1);
const BUSY_FROM: usize = 8;

/// After a reconcile without actions, a set is not reconciled again for this many times its duration, so that
/// changes of many pods of a large set are handled together.
const COALESCE_PER_RECONCILE: u32 = 4;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "statefulset-controller",
    account: "statefulset-controller",
    scope: Scope::Namespaces,
    rules: &[
        allow("get list watch", "apps", "statefulsets"),
        allow("update", "apps", "statefulsets/status"),
        // To write owner references that block the owner's deletion.
        allow("update", "apps", "statefulsets/finalizers"),
        allow("list watch create patch delete", "core", "pods"),
        allow("list watch create patch delete", "apps", "controllerrevisions"),
        // It never deletes a claim: owner references tell the garbage collector which ones to delete. But on API servers with the
        // admission plugin OwnerReferencesPermissionEnforcement only a user who may delete an object may change its owner references.
        allow("get list watch create patch delete", "core", "persistentvolumeclaims"),
    ],
};

/// Reconciles all sets until shutdown.
pub async fn run(context: ControllerContext) {
    let informers = Informers::new();
    let sources = informers.sources(&context.metrics);
    let controller = Arc::new(StatefulSetController {
        api: context.api.clone(),
        events: context.events.clone(),
        metrics: context.metrics.clone(),
        gates: context.gates.clone(),
        clock: context.clock.clone(),
        judge: context.judge.clone(),
        informers,
        known: Mutex::default(),
        growth: Growth::default(),
        active: AtomicUsize::new(0),
    });
    let capabilities = server_capabilities::warn_if_missing(context.clone());
    let work = worker::run(context, sources, WORKERS, move |key| {
        let controller = controller.clone();
        async move {
            controller.active.fetch_add(1, Ordering::Relaxed);
            let result = controller.sync(key).await;
            controller.active.fetch_sub(1, Ordering::Relaxed);
            result
        }
    });
    tokio::pin!(work);
    tokio::select! {
        biased;
        () = &mut work => {}
        () = capabilities => work.await,
    }
}

struct StatefulSetController {
    api: Api,
    events: Events,
    metrics: Metrics,
    gates: Gates,
    clock: Clock,
    judge: Option<Judge>,
    informers: Informers,
    known: Mutex<HashMap<Key, Known>>,
    /// Limits the rate at which sets create pods and claims.
    growth: Growth,
    /// Number of sets being reconciled now.
    active: AtomicUsize,
}

/// What is remembered of a set between reconciles.
struct Known {
    uid: String,
    labels: SetLabels,
    /// The events of its last plan; they are not recorded again.
    told: Vec<SetEvent>,
    /// Until when changing counts may wait to be written.
    counts_wait_until: Option<Instant>,
    /// The uids of claims whose deletion while in use was told.
    warned: HashSet<String>,
}

impl StatefulSetController {
    async fn sync(&self, key: Key) -> Result<ReconcileResult, ApiError> {
        self.report_deleted_objects(&key).await?;
        let started = Instant::now();
        let Some(seen) = self.informers.look(&key) else {
            self.forget(&key);
            return Ok(ReconcileResult::from(None));
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
        let coalesce = if plan.is_idle() { looked * COALESCE_PER_RECONCILE } else { Duration::ZERO };
        let more = plan.written.withheld.then(|| if grant.limits() { grant.wait } else { Duration::ZERO });
        Ok(ReconcileResult { requeue_after: next.into_iter().chain(wait).chain(more).min(), coalesce })
    }

    /// How long the status may still wait to be written; `None` if it must not. When hundreds of pods become
    /// ready one after the other, not every count is worth a write; everything else is written at once.
    fn patience(&self, set: &Value, plan: &SetPlan) -> Option<Duration> {
        let mut all_known = self.known();
        let until = &mut all_known.get_mut(&key(set))?.counts_wait_until;
        if !plan.status_can_wait(set) {
            *until = None;
            return None;
        }
        let now = Instant::now();
        let busy = self.active.load(Ordering::Relaxed) >= BUSY_FROM;
        let most = if busy { COUNTS_WAIT_MAX_WHEN_BUSY } else { COUNTS_WAIT_MAX };
        let end = *until.get_or_insert(now + most);
        if end <= now {
            *until = None;
            return None;
        }
        Some(end - now)
    }

    /// Updates the metrics of a set and records its new events.
    fn note(&self, set: &Value, plan: &SetPlan) {
        let mut all_known = self.known();
        let known = all_known.entry(key(set)).or_insert_with(|| Known::of(set));
        if known.uid != uid(set) {
            self.metrics.set_gone(&known.labels);
            *known = Known::of(set);
        }
        self.metrics.set_budget(&known.labels, plan.max_unavailable, plan.unavailable);
        let told = std::mem::replace(&mut known.told, plan.events.clone());
        for event in plan.events.iter().filter(|event| !told.contains(event)) {
            self.record_event(set, event);
        }
    }

    fn forget(&self, key: &Key) {
        if let Some(known) = self.known().remove(key) {
            self.metrics.set_gone(&known.labels);
        }
    }

    fn record_event(&self, set: &Value, event: &SetEvent) {
        let about = EventSubject {
            resource: &self.informers.sets.resource,
            namespace: namespace(set),
            name: name(set),
            uid: uid(set),
        };
        let kind = if event.warning { "Warning" } else { "Normal" };
        self.events.record(&about, kind, event.reason, &event.message);
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

/// The event for a set whose creations are limited.
fn slowed(set: &Value) -> SetEvent {
    let message = format!(
        "StatefulSet {} created many megabytes of pods and claims in a short time: the rest is created slowly, to leave \
         room for other objects",
        name(set)
    );
    SetEvent { warning: true, reason: "CreationSlowed", message }
}

fn resource(api_version: &str, kind: &str, plural: &str) -> Resource {
    Resource::new(api_version, kind, plural, true)
}
