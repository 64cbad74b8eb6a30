//! StatefulSets: created, rolled, scaled to zero, deleted. The bench plays the kubelet: every pod it sees is made running and ready at
//! once, and no scheduler is asked.

use super::client::Target;
use super::follow::{Follow, Seen};
use super::load::{JSON, Load, MERGE};
use super::report::Report;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::Method;
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;

/// Pods that are made ready at the same time: as many kubelets as a small cluster has.
const KUBELETS: usize = 32;
/// How long a piece of work may take.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Sets of one shape.
pub struct Shape {
    pub name: &'static str,
    pub sets: usize,
    pub replicas: usize,
    pub parallel: bool,
    pub claims: bool,
}

/// What is seen of a set.
#[derive(Clone, Debug, Default)]
struct Summary {
    generation: i64,
    observed: bool,
    replicas: i64,
    ready: i64,
    updated: i64,
    rolled: bool,
}

impl Shape {
    fn detail(&self) -> String {
        let order = if self.parallel { "parallel" } else { "ordered" };
        let claims = if self.claims { " with a claim each" } else { "" };
        format!("{} {order} sets of {}{claims}", self.sets, self.replicas)
    }

    fn set(&self, at: usize) -> Bytes {
        let name = self.set_name(at);
        let template = json!({
            "metadata": {"labels": {"app": name}},
            "spec": {
                // Nobody listens to this name: the bench makes the pods run.
                "schedulerName": "mainstay-bench",
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "bench"}],
            },
        });
        let mut set = json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": name, "labels": {"shape": self.name}},
            "spec": {
                "replicas": self.replicas,
                "serviceName": name,
                "podManagementPolicy": if self.parallel { "Parallel" } else { "OrderedReady" },
                "selector": {"matchLabels": {"app": name}},
                "template": template,
            },
        });
        if self.claims {
            set["spec"]["volumeClaimTemplates"] = json!([{
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }]);
        }
        Bytes::from(set.to_string())
    }

    fn set_name(&self, at: usize) -> String {
        format!("{}-{at:05}", self.name)
    }
}

/// The four pieces of work for sets of one shape.
pub async fn run(load: &Load, shape: Shape, report: &mut Report) -> Result<()> {
    let world = World::start(load).await?;
    let shape = Arc::new(shape);
    let collection = Arc::new(format!("/apis/apps/v1/namespaces/{}/statefulsets", load.namespace));
    let pods = (shape.sets * shape.replicas) as f64;
    let replicas = i64::try_from(shape.replicas)?;
    let sets = shape.sets;
    let rate = |started: Instant| pods / started.elapsed().as_secs_f64();

    let (path, made) = (collection.clone(), shape.clone());
    let started = Instant::now();
    load.each(load.clients.min(sets), sets, move |connection, at| {
        let (path, body) = (path.clone(), made.set(at));
        Box::pin(async move { connection.call(Method::POST, &path, JSON, body).await })
    })
    .await?;
    world.wait(sets, |set| set.observed && set.ready == replicas).await.context("created sets did not get ready")?;
    report.figure("sets: created to ready", rate(started), "pods/s", shape.detail());

    let started = Instant::now();
    let restart = r#"{"spec":{"template":{"metadata":{"annotations":{"bench":"rolled"}}}}}"#;
    patch_all(load, &collection, &shape, restart).await?;
    // The second generation is the new template: what is said of the first is not about it.
    let rolled = |set: &Summary| {
        set.generation == 2 && set.observed && set.rolled && set.ready == replicas && set.updated == replicas
    };
    world.wait(sets, rolled).await.context("a rollout did not end")?;
    report.figure("sets: rolled", rate(started), "pods/s", shape.detail());

    let started = Instant::now();
    patch_all(load, &collection, &shape, r#"{"spec":{"replicas":0}}"#).await?;
    world
        .wait(sets, |set| set.generation == 3 && set.observed && set.replicas == 0)
        .await
        .context("sets did not shrink")?;
    report.figure("sets: scaled to zero", rate(started), "pods/s", shape.detail());

    let started = Instant::now();
    let (path, gone) = (collection.clone(), shape.clone());
    load.each(load.clients.min(sets), sets, move |connection, at| {
        let path = format!("{path}/{}", gone.set_name(at));
        Box::pin(async move { connection.call(Method::DELETE, &path, "", Bytes::new()).await })
    })
    .await?;
    world.wait(0, |_| true).await.context("sets did not go")?;
    report.figure("sets: deleted", sets as f64 / started.elapsed().as_secs_f64(), "sets/s", shape.detail());
    Ok(())
}

async fn patch_all(load: &Load, collection: &Arc<String>, shape: &Arc<Shape>, patch: &'static str) -> Result<()> {
    let (path, named) = (collection.clone(), shape.clone());
    load.each(load.clients.min(shape.sets), shape.sets, move |connection, at| {
        let path = format!("{path}/{}", named.set_name(at));
        let body = Bytes::from_static(patch.as_bytes());
        Box::pin(async move { connection.call(Method::PATCH, &path, MERGE, body).await })
    })
    .await?;
    Ok(())
}

/// What happens in the namespace meanwhile: pods are made ready, sets are followed.
struct World {
    sets: watch::Receiver<BTreeMap<String, Summary>>,
    failure: Arc<Mutex<Option<anyhow::Error>>>,
    _tasks: JoinSet<()>,
}

impl World {
    async fn start(load: &Load) -> Result<World> {
        let pods: Arc<str> = format!("/api/v1/namespaces/{}/pods", load.namespace).into();
        let sets = format!("/apis/apps/v1/namespaces/{}/statefulsets", load.namespace);
        let failure = Arc::new(Mutex::new(None));
        let mut tasks = JoinSet::new();
        let (send, receive) = mpsc::unbounded_channel();
        let receive = Arc::new(Mutex::new(receive));
        for _ in 0..KUBELETS {
            let kubelet = make_ready(load.target.clone(), pods.clone(), receive.clone());
            let failure = failure.clone();
            tasks.spawn(async move { note(&failure, kubelet.await).await });
        }
        let follow = see_pods(Follow::start(&load.target, &pods).await?, send);
        let noted = failure.clone();
        tasks.spawn(async move { note(&noted, follow.await).await });
        let (state, seen) = watch::channel(BTreeMap::new());
        let follow = see_sets(Follow::start(&load.target, &sets).await?, state);
        let noted = failure.clone();
        tasks.spawn(async move { note(&noted, follow.await).await });
        Ok(World { sets: seen, failure, _tasks: tasks })
    }

    /// Waits until there are `count` sets, and all are as wanted.
    async fn wait(&self, count: usize, wanted: impl Fn(&Summary) -> bool) -> Result<()> {
        let mut sets = self.sets.clone();
        let all = sets.wait_for(|sets| sets.len() == count && sets.values().all(&wanted));
        let waited = tokio::time::timeout(TIME_MAX, all).await.map(|ended| ended.is_ok());
        if let Some(failure) = self.failure.lock().await.take() {
            return Err(failure);
        }
        match waited {
            Ok(true) => Ok(()),
            Ok(false) => bail!("the sets could not be followed any more"),
            Err(_) => {
                let sets = self.sets.borrow();
                let still = sets.iter().find(|(_, set)| !wanted(set));
                bail!("not done after {} s; for example {still:?}", TIME_MAX.as_secs())
            }
        }
    }
}

async fn note(place: &Mutex<Option<anyhow::Error>>, result: Result<()>) {
    if let Err(error) = result {
        place.lock().await.get_or_insert(error);
    }
}

/// Finds pods that want to be made ready, each once.
async fn see_pods(mut follow: Follow, send: mpsc::UnboundedSender<String>) -> Result<()> {
    let mut known: HashSet<String> = HashSet::new();
    loop {
        let change = follow.next().await?;
        let metadata = change.object.metadata;
        if change.gone {
            known.remove(&metadata.uid);
        } else if metadata.deletion_timestamp.is_none()
            && known.insert(metadata.uid)
            && send.send(metadata.name).is_err()
        {
            return Ok(());
        }
    }
}

async fn make_ready(target: Target, pods: Arc<str>, names: Arc<Mutex<mpsc::UnboundedReceiver<String>>>) -> Result<()> {
    let mut connection = target.connect().await?;
    loop {
        let Some(name) = names.lock().await.recv().await else { return Ok(()) };
        let now = object::write::stamp(jiff::Timestamp::now());
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": now});
        let body = json!({"status": {"phase": "Running", "conditions": [ready]}});
        let path = format!("{pods}/{name}/status");
        let (code, answer) = connection.answer(Method::PATCH, &path, MERGE, body.to_string().into()).await?;
        // A pod that went meanwhile needs no kubelet.
        if !code.is_success() && code != http::StatusCode::NOT_FOUND {
            bail!("cannot make pod {name} ready: {code}: {}", String::from_utf8_lossy(&answer));
        }
    }
}

async fn see_sets(mut follow: Follow, state: watch::Sender<BTreeMap<String, Summary>>) -> Result<()> {
    loop {
        let change = follow.next().await?;
        let summary = summary(&change.object);
        let name = change.object.metadata.name;
        state.send_modify(|sets| {
            if change.gone {
                sets.remove(&name);
            } else {
                sets.insert(name, summary);
            }
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
