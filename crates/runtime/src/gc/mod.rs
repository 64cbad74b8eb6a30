//! The garbage collector: watches the metadata of all objects, calls the planner `plan::gc`, and executes its
//! plans.
//!
//! `watch` feeds the graph, this module hands out work, `executor` reads and writes, `live_dependents` checks that no
//! dependent is missed.

mod executor;
mod live_dependents;
mod watch;

use crate::controllers::ControllerContext;
use kit::QueueMetrics;
use kit::api::{Api, ApiError, Resource};
use kit::backoff::DelayQueue;
use kit::descriptor::{Descriptor, Scope, allow};
use kit::discovery::{Discovery, Served};
use live_dependents::Listings;
use plan::gc::{Answers, CollectionPlan, Graph, GraphEvent, Place, Step, Work};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch as channel};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;
use watch::Unsynced;

/// Workers mostly wait for the server, which commits concurrent writes together.
const WORKERS: usize = 16;
const RETRY_MAX: Duration = Duration::from_secs(30);

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "garbage-collector-controller",
    account: "generic-garbage-collector",
    scope: Scope::Cluster,
    rules: &[
        // Any kind can own and be owned, CRDs' too.
        allow("get list watch patch delete", "*", "*"),
    ],
};

/// Runs until shutdown.
pub async fn run(context: ControllerContext) {
    let collector = Arc::new(Collector {
        api: context.api.clone(),
        discovery: context.discovery.clone(),
        graph: Mutex::default(),
        kinds: RwLock::default(),
        delayed: Mutex::new(DelayQueue::new(RETRY_MAX)),
        listings: Listings::default(),
        work: Notify::new(),
        rediscover: Notify::new(),
        removed_definitions: Mutex::default(),
        unsynced: channel::Sender::new(0),
        figures: context.metrics.kit.queue(context.name),
        context,
    });
    let mut tasks = JoinSet::new();
    let watches = TaskTracker::new();
    let stop = collector.context.shutdown.child_token();
    let undiscovered = Unsynced::new(&collector.unsynced);
    for _ in 0..WORKERS {
        tasks.spawn(collector.clone().work());
    }
    tasks.spawn(collector.clone().discover(undiscovered, watches.clone(), stop.clone()));
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        // These tasks never return, so one has panicked; the panic is passed on to the caller, which restarts
        // the controller.
        Some(Err(error)) = tasks.join_next() => {
            stop.cancel();
            std::panic::resume_unwind(error.into_panic());
        }
    }
    tasks.shutdown().await;
    watches.close();
    watches.wait().await;
}

struct Collector {
    api: Api,
    discovery: Discovery,
    context: ControllerContext,
    graph: Mutex<Graph>,
    /// What is served, by group and kind.
    kinds: RwLock<HashMap<(Arc<str>, Arc<str>), Served>>,
    /// Work with a backoff. Lock `graph` first where both are locked.
    delayed: Mutex<DelayQueue<Work>>,
    listings: Listings,
    work: Notify,
    rediscover: Notify,
    /// Names of deleted CustomResourceDefinitions: all their objects are deleted, too.
    removed_definitions: Mutex<HashSet<String>>,
    /// Number of resources that were not listed yet. Until it is 0, the graph is incomplete.
    unsynced: channel::Sender<usize>,
    figures: QueueMetrics,
}

impl Collector {
    fn apply(&self, events: impl IntoIterator<Item = GraphEvent>) {
        let queued = {
            let mut graph = self.graph();
            events.into_iter().for_each(|event| graph.apply(event));
            graph.queued()
        };
        self.figures.depth.set(i64::try_from(queued).unwrap_or(i64::MAX));
        if queued > 0 {
            self.work.notify_one();
        }
    }

    async fn work(self: Arc<Self>) {
        loop {
            let work = self.next().await;
            let started = Instant::now();
            let result = self.reconcile(&work).await;
            self.context.metrics.kit.reconciled(self.context.name, started.elapsed(), result.is_err());
            let mut graph = self.graph();
            let mut delayed = self.delayed();
            match result {
                Ok(false) => delayed.forget(&work),
                Ok(true) => drop(delayed.wait_after_failure(&work, tokio::time::Instant::now())),
                Err(error) => {
                    let delay = delayed.wait_after_failure(&work, tokio::time::Instant::now());
                    self.figures.retries.inc();
                    // A conflict means that another client wrote first, which is not worth a warning.
                    if error.is_conflict() {
                        tracing::debug!(%error, ?work, ?delay, "Garbage collection failed; retrying");
                    } else {
                        tracing::warn!(%error, ?work, ?delay, "Garbage collection failed; retrying");
                    }
                }
            }
            graph.done(&work);
            self.work.notify_one();
        }
    }

    /// Returns the next work, not before all resources were listed once.
    async fn next(&self) -> Work {
        let mut unsynced = self.unsynced.subscribe();
        loop {
            // Cannot fail: `self` owns the sender.
            let _ = unsynced.wait_for(|count| *count == 0).await;
            let wake_at = {
                let mut graph = self.graph();
                let mut delayed = self.delayed();
                let due = delayed.take_due(tokio::time::Instant::now());
                requeue_delayed(&mut graph, &mut delayed, due);
                if let Some(work) = graph.next_work() {
                    // This run decides anew when the work is repeated.
                    delayed.cancel(&work);
                    self.figures.depth.set(i64::try_from(graph.queued()).unwrap_or(i64::MAX));
                    if graph.queued() > 0 {
                        self.work.notify_one();
                    }
                    return work;
                }
                delayed.next_at()
            };
            match wake_at {
                None => self.work.notified().await,
                Some(at) => tokio::select! {
                    biased;
                    () = self.work.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    /// Queues all work in backoff at once, because something changed.
    fn expedite(&self) {
        {
            let mut graph = self.graph();
            let mut delayed = self.delayed();
            let waiting = delayed.take_all();
            requeue_delayed(&mut graph, &mut delayed, waiting);
        }
        self.work.notify_one();
    }

    /// Plans and executes one piece of work; returns whether it must be repeated later.
    async fn reconcile(&self, work: &Work) -> Result<bool, ApiError> {
        let mut answers = Answers::default();
        let mut plan = self.decide(work, &mut answers).await;
        let released = plan.releases().map(|(place, uid, version)| (place.clone(), uid.clone(), version.to_owned()));
        if let Some((place, uid, version)) = released {
            if !self.has_seen_dependents(&place, &uid, &version).await? {
                return Ok(true);
            }
            // The graph may have got dependents since the plan was made.
            plan = self.decide(work, &mut answers).await;
        }
        self.carry_out(plan).await
    }

    async fn decide(&self, work: &Work, answers: &mut Answers) -> CollectionPlan {
        loop {
            let step = self.graph().decide(work, answers);
            match step {
                Step::Ask(places) => {
                    for place in places {
                        let answer = self.ask(&place).await;
                        answers.insert(place, answer);
                    }
                }
                Step::Do(plan) => return plan,
            }
        }
    }

    /// The resource of an object, if its kind is served in that version.
    fn resource(&self, place: &Place) -> Option<Resource> {
        let (group, version) = place.api_version.split_once('/').unwrap_or(("", &place.api_version));
        let kinds = self.kinds.read().expect("no panic happens under this lock");
        let served = kinds.get(&(Arc::from(group), place.kind.clone()))?;
        served.versions.iter().any(|served| served == version).then(|| served.resource.clone())
    }

    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().expect("no panic happens under this lock")
    }

    fn removed_definitions(&self) -> MutexGuard<'_, HashSet<String>> {
        self.removed_definitions.lock().expect("no panic happens under this lock")
    }

    fn delayed(&self) -> MutexGuard<'_, DelayQueue<Work>> {
        self.delayed.lock().expect("no panic happens under this lock")
    }
}

/// Queues work after its backoff, unless the graph shows that nothing is left to do.
fn requeue_delayed(graph: &mut Graph, delayed: &mut DelayQueue<Work>, waited: Vec<Work>) {
    for work in waited {
        if graph.in_doubt(&work) {
            graph.requeue(work);
        } else {
            delayed.forget(&work);
        }
    }
}
