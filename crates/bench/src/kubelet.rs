//! What happens in the namespace while sets are measured: the bench plays the kubelet, and follows the sets. Every pod it sees is made
//! running and ready at once, and no scheduler is asked.

use crate::client::Connection;
use crate::follow::{Follow, Seen};
use crate::load::{Load, MERGE};
use crate::progress::Progress;
use anyhow::{Result, bail};
use object::json;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Nobody listens to this name: the bench makes the pods run.
pub const SCHEDULER: &str = "mainstay-bench";
/// Pods that are made ready at the same time: as many kubelets as a small cluster has.
const KUBELETS: usize = 32;
/// How long a piece of work may take.
const TIME_MAX: Duration = Duration::from_secs(600);

/// What is seen of a set.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub generation: i64,
    pub observed: bool,
    pub replicas: i64,
    pub ready: i64,
    pub updated: i64,
    pub rolled: bool,
}

/// It goes on until it is dropped.
pub struct World {
    shared: Arc<Shared>,
    progress: Progress,
    _tasks: JoinSet<()>,
}

struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// Counts are kept up with every change: looking through all sets at each would cost more than what is measured.
struct State {
    sets: HashMap<String, Summary>,
    wanted: Wanted,
    /// How many sets are as wanted.
    met: usize,
    /// How many pods there are.
    pods: usize,
    /// How many pods were ever made ready.
    made_ready: usize,
    failure: Option<anyhow::Error>,
}

type Wanted = Box<dyn Fn(&Summary) -> bool + Send>;

impl World {
    pub async fn start(load: &Load) -> Result<World> {
        let pods = load.core("pods");
        let sets = format!("/apis/apps/v1/namespaces/{}/statefulsets", load.namespace);
        let state =
            State { sets: HashMap::new(), wanted: Box::new(|_| false), met: 0, pods: 0, made_ready: 0, failure: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() });
        let mut tasks = JoinSet::new();
        let (send, receive) = mpsc::unbounded_channel();
        let receive = Arc::new(tokio::sync::Mutex::new(receive));
        for _ in 0..KUBELETS {
            // Connected before anything is measured: kubelets are there before pods are.
            let kubelet = make_ready(load.target.connect().await?, pods.clone(), receive.clone(), shared.clone());
            let shared = shared.clone();
            tasks.spawn(async move { shared.note(kubelet.await) });
        }
        let follow = see_pods(Follow::start(&load.target, &pods).await?, send, shared.clone());
        let noted = shared.clone();
        tasks.spawn(async move { noted.note(follow.await) });
        let follow = see_sets(Follow::start(&load.target, &sets).await?, shared.clone());
        let noted = shared.clone();
        tasks.spawn(async move { noted.note(follow.await) });
        Ok(World { shared, progress: load.progress.clone(), _tasks: tasks })
    }

    /// Waits until there are `count` sets, and all are as wanted.
    pub async fn sets(&self, count: usize, wanted: impl Fn(&Summary) -> bool + Send + 'static) -> Result<()> {
        {
            let mut state = self.shared.lock();
            state.met = state.sets.values().filter(|set| wanted(set)).count();
            state.wanted = Box::new(wanted);
        }
        self.until(|state| (state.met, state.sets.len() == count && state.met == count)).await
    }

    /// Waits until so many pods were made ready, counted from the start.
    pub async fn made_ready(&self, count: usize) -> Result<()> {
        self.until(|state| (state.made_ready, state.made_ready >= count)).await
    }

    /// Waits until there are no pods.
    pub async fn no_pods(&self) -> Result<()> {
        self.until(|state| (0, state.pods == 0)).await
    }

    async fn until(&self, reached: impl Fn(&State) -> (usize, bool)) -> Result<()> {
        let waiting = async {
            loop {
                {
                    let mut state = self.shared.lock();
                    if let Some(failure) = state.failure.take() {
                        return Err(failure);
                    }
                    let (done, all) = reached(&state);
                    self.progress.done(done);
                    if all {
                        return Ok(());
                    }
                }
                self.shared.changed.notified().await;
            }
        };
        match tokio::time::timeout(TIME_MAX, waiting).await {
            Ok(ended) => ended,
            Err(_) => {
                let state = self.shared.lock();
                let still = state.sets.iter().find(|(_, set)| !(state.wanted)(set));
                bail!("not done after {} s; {} pods; for example {still:?}", TIME_MAX.as_secs(), state.pods)
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_one();
    }

    fn note(&self, result: Result<()>) {
        if let Err(error) = result {
            self.change(|state| {
                state.failure.get_or_insert(error);
            });
        }
    }
}

/// Finds pods that want to be made ready, each once.
async fn see_pods(mut follow: Follow, send: mpsc::UnboundedSender<String>, shared: Arc<Shared>) -> Result<()> {
    // Of each pod that is there, whether it was asked for.
    let mut known: HashSet<String> = HashSet::new();
    loop {
        let change = follow.next().await?;
        let metadata = change.object.metadata;
        if change.gone {
            known.remove(&metadata.uid);
            shared.change(|state| state.pods = known.len());
        } else if known.insert(metadata.uid) {
            shared.change(|state| state.pods = known.len());
            if metadata.deletion_timestamp.is_none() && send.send(metadata.name).is_err() {
                return Ok(());
            }
        }
    }
}

async fn make_ready(
    mut connection: Connection,
    pods: Arc<str>,
    names: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<String>>>,
    shared: Arc<Shared>,
) -> Result<()> {
    loop {
        let Some(name) = names.lock().await.recv().await else { return Ok(()) };
        let now = object::write::stamp(jiff::Timestamp::now());
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": now});
        let body = json!({"status": {"phase": "Running", "conditions": [ready]}});
        let path = format!("{pods}/{name}/status");
        let (code, answer) = connection.answer(http::Method::PATCH, &path, MERGE, body.to_string().into()).await?;
        // A pod that went meanwhile needs no kubelet.
        if !code.is_success() && code != http::StatusCode::NOT_FOUND {
            bail!("cannot make pod {name} ready: {code}: {}", String::from_utf8_lossy(&answer));
        }
        shared.change(|state| state.made_ready += 1);
    }
}

async fn see_sets(mut follow: Follow, shared: Arc<Shared>) -> Result<()> {
    loop {
        let change = follow.next().await?;
        let summary = summary(&change.object);
        let name = change.object.metadata.name;
        shared.change(|state| {
            let before = if change.gone {
                state.sets.remove(&name)
            } else {
                state.met += usize::from((state.wanted)(&summary));
                state.sets.insert(name, summary)
            };
            state.met -= usize::from(before.is_some_and(|set| (state.wanted)(&set)));
        });
    }
}

fn summary(set: &Seen) -> Summary {
    let status = &set.status;
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    Summary {
        generation: set.metadata.generation,
        observed: status["observedGeneration"].as_i64() == Some(set.metadata.generation),
        replicas: number("replicas"),
        ready: number("readyReplicas"),
        updated: number("updatedReplicas"),
        rolled: status["currentRevision"] == status["updateRevision"],
    }
}
