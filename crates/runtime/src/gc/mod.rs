//! The garbage collector: follows the metadata of everything, asks `plan::gc` what to do, and does it.
//!
//! `watch` feeds the graph, this module hands out work, `act` asks and acts, `sight` makes sure that nothing was overlooked.

mod act;
mod sight;
mod watch;

use crate::api::{Api, ApiError, Resource};
use crate::controllers::Part;
use crate::delays::Delays;
use crate::discovery::{Discovery, Served};
use crate::metrics::QueueMetrics;
use plan::gc::{Answers, Event, Graph, Place, Plan, Step, Work};
use sight::Sights;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch as channel};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;
use watch::Unsynced;

/// Most of the time of a piece of work is spent waiting for the server, which commits what comes together at once.
const WORKERS: usize = 16;
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Runs until the part is stopped.
pub async fn run(part: Part) {
    let collector = Arc::new(Collector {
        api: part.api.clone(),
        discovery: part.discovery.clone(),
        graph: Mutex::default(),
        kinds: RwLock::default(),
        delays: Mutex::new(Delays::new(RETRY_MAX)),
        sights: Sights::default(),
        work: Notify::new(),
        rediscover: Notify::new(),
        removed_definitions: Mutex::default(),
        unsynced: channel::Sender::new(0),
        figures: part.metrics.queue(part.name),
        part,
    });
    let mut tasks = JoinSet::new();
    let followers = TaskTracker::new();
    let stop = collector.part.shutdown.child_token();
    let unlooked = Unsynced::new(&collector.unsynced);
    for _ in 0..WORKERS {
        tasks.spawn(collector.clone().work());
    }
    tasks.spawn(collector.clone().discover(unlooked, followers.clone(), stop.clone()));
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        // These tasks do not end by themselves: one of them has panicked, and whoever started us shall know.
        Some(Err(error)) = tasks.join_next() => {
            stop.cancel();
            std::panic::resume_unwind(error.into_panic());
        }
    }
    tasks.shutdown().await;
    followers.close();
    followers.wait().await;
}

struct Collector {
    api: Api,
    discovery: Discovery,
    part: Part,
    graph: Mutex<Graph>,
    /// What is served, by group and kind.
    kinds: RwLock<HashMap<(Arc<str>, Arc<str>), Served>>,
    /// Work that comes back after a while. Locked after `graph` where both are.
    delays: Mutex<Delays<Work>>,
    sights: Sights,
    work: Notify,
    rediscover: Notify,
    /// Names of CustomResourceDefinitions that went: so did all their objects.
    removed_definitions: Mutex<HashSet<String>>,
    /// How many resources have not been listed yet. While there are any, the graph does not show who depends on whom.
    unsynced: channel::Sender<usize>,
    figures: QueueMetrics,
}

impl Collector {
    fn apply(&self, events: impl IntoIterator<Item = Event>) {
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
            let result = self.attend(&work).await;
            self.part.metrics.reconciled(self.part.name, started.elapsed(), result.is_err());
            let mut graph = self.graph();
            let mut delays = self.delays();
            match result {
                Ok(false) => delays.forget(&work),
                Ok(true) => drop(delays.wait_after_failure(&work, tokio::time::Instant::now())),
                Err(error) => {
                    let delay = delays.wait_after_failure(&work, tokio::time::Instant::now());
                    self.figures.retries.inc();
                    // A conflict means that somebody else was faster: not worth a line.
                    if error.is_conflict() {
                        tracing::debug!(%error, ?work, ?delay, "garbage collection tries again");
                    } else {
                        tracing::warn!(%error, ?work, ?delay, "garbage collection tries again");
                    }
                }
            }
            graph.done(&work);
            self.work.notify_one();
        }
    }

    /// The next piece of work, not before everything has been seen once.
    async fn next(&self) -> Work {
        let mut unsynced = self.unsynced.subscribe();
        loop {
            // The sender lives in `self`, so there is always an answer.
            let _ = unsynced.wait_for(|count| *count == 0).await;
            let wake_at = {
                let mut graph = self.graph();
                let mut delays = self.delays();
                let due = delays.take_due(tokio::time::Instant::now());
                bring_back(&mut graph, &mut delays, due);
                if let Some(work) = graph.next_work() {
                    // This run says anew when the work is wanted again.
                    delays.cancel(&work);
                    self.figures.depth.set(i64::try_from(graph.queued()).unwrap_or(i64::MAX));
                    if graph.queued() > 0 {
                        self.work.notify_one();
                    }
                    return work;
                }
                delays.next_at()
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

    /// What waits for something to change is looked at now.
    fn expedite(&self) {
        {
            let mut graph = self.graph();
            let mut delays = self.delays();
            let waiting = delays.take_all();
            bring_back(&mut graph, &mut delays, waiting);
        }
        self.work.notify_one();
    }

    /// Decides and acts on one piece of work; says whether it must come back.
    async fn attend(&self, work: &Work) -> Result<bool, ApiError> {
        let mut answers = Answers::default();
        let mut plan = self.decide(work, &mut answers).await;
        let released = plan.releases().map(|(place, uid, version)| (place.clone(), uid.clone(), version.to_owned()));
        if let Some((place, uid, version)) = released {
            if !self.has_seen_dependents(&place, &uid, &version).await? {
                return Ok(true);
            }
            // The graph may have learnt of dependents since the plan was made.
            plan = self.decide(work, &mut answers).await;
        }
        self.carry_out(plan).await
    }

    async fn decide(&self, work: &Work, answers: &mut Answers) -> Plan {
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

    /// The resource behind a place, if its kind is served in that version.
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

    fn delays(&self) -> MutexGuard<'_, Delays<Work>> {
        self.delays.lock().expect("no panic happens under this lock")
    }
}

/// Queues work that waited, unless the graph shows meanwhile that nothing is left to do.
fn bring_back(graph: &mut Graph, delays: &mut Delays<Work>, waited: Vec<Work>) {
    for work in waited {
        if graph.in_doubt(&work) {
            graph.requeue(work);
        } else {
            delays.forget(&work);
        }
    }
}
