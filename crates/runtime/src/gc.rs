//! The garbage collector: follows the metadata of everything, asks `plan::gc` what to do, and does it.

use crate::api::{Api, ApiError, Resource};
use crate::controllers::Part;
use crate::follow::{self, Change};
use futures::StreamExt;
use object::Value;
use object::access::{Access, uid};
use plan::gc::{Action, Answer, Answers, Event, Fact, Graph, Place, Plan, Step, Uid, Work};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

const WORKERS: usize = 16;
/// Kinds also come by other servers' definitions: look again this often even when no definition was seen to change.
const REDISCOVER_EVERY: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Runs until the part is stopped.
pub async fn run(part: Part) {
    let collector = Arc::new(Collector {
        api: part.api.clone(),
        graph: Mutex::new(Graph::default()),
        kinds: RwLock::default(),
        retries: Mutex::default(),
        work: Notify::new(),
        rediscover: Notify::new(),
        part,
    });
    let mut tasks = JoinSet::new();
    for _ in 0..WORKERS {
        tasks.spawn(collector.clone().work());
    }
    tasks.spawn(collector.clone().discover());
    collector.part.shutdown.cancelled().await;
    tasks.shutdown().await;
}

struct Collector {
    api: Api,
    part: Part,
    graph: Mutex<Graph>,
    /// Resources by group and kind.
    kinds: RwLock<HashMap<(Arc<str>, Arc<str>), Resource>>,
    retries: Mutex<HashMap<Work, u32>>,
    work: Notify,
    rediscover: Notify,
}

impl Collector {
    /// Finds the resources, follows each, and looks again when definitions change.
    async fn discover(self: Arc<Self>) {
        let mut followers: HashMap<Resource, tokio::task::AbortHandle> = HashMap::new();
        let mut tasks = JoinSet::new();
        loop {
            match self.api.discover().await {
                Ok(found) => {
                    let found: HashSet<Resource> =
                        found.into_iter().filter(|resource| &*resource.plural != "events").collect();
                    followers.retain(|resource, follower| {
                        let stays = found.contains(resource);
                        if !stays {
                            follower.abort();
                        }
                        stays
                    });
                    self.learn(&found);
                    for resource in found {
                        let follow = self.clone().follow(resource.clone());
                        followers.entry(resource).or_insert_with(|| tasks.spawn(follow));
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot discover resources; trying again"),
            }
            tokio::select! {
                () = self.rediscover.notified() => {}
                () = tokio::time::sleep(REDISCOVER_EVERY) => {}
            }
        }
    }

    fn learn(&self, found: &HashSet<Resource>) {
        let mut kinds = self.kinds.write().expect("no panic happens under this lock");
        *kinds =
            found.iter().map(|resource| ((resource.group.clone(), resource.kind.clone()), resource.clone())).collect();
    }

    async fn follow(self: Arc<Self>, resource: Resource) {
        let api_version = resource.api_version();
        let defines = &*resource.plural == "customresourcedefinitions";
        let mut changes = Box::pin(follow::metadata(&self.api.client, &resource));
        let mut known: HashSet<Uid> = HashSet::new();
        // Uids seen since a restart; what was known before and is not among them has gone unseen.
        let mut fresh: Option<HashSet<Uid>> = None;
        while let Some(change) = changes.next().await {
            match change {
                Change::Restart => fresh = Some(HashSet::new()),
                Change::Seen(object) => {
                    let fact = Fact::of(&api_version, &resource.kind, &object);
                    known.insert(fact.uid.clone());
                    if let Some(fresh) = &mut fresh {
                        fresh.insert(fact.uid.clone());
                    }
                    self.apply([Event::Seen(fact)]);
                }
                Change::Gone(object) => {
                    let gone: Uid = uid(&object).into();
                    known.remove(&gone);
                    self.apply([Event::Gone(gone)]);
                }
                Change::Ready => {
                    if let Some(fresh) = fresh.take() {
                        let gone: Vec<Uid> = known.difference(&fresh).cloned().collect();
                        known = fresh;
                        self.apply(gone.into_iter().map(Event::Gone));
                    }
                }
            }
            if defines {
                self.rediscover.notify_one();
            }
        }
    }

    fn apply(&self, events: impl IntoIterator<Item = Event>) {
        let queued = {
            let mut graph = self.graph();
            events.into_iter().for_each(|event| graph.apply(event));
            graph.queued()
        };
        self.part.metrics.depth(self.part.name, queued);
        for _ in 0..queued.min(WORKERS) {
            self.work.notify_one();
        }
    }

    async fn work(self: Arc<Self>) {
        loop {
            let news = self.work.notified();
            let next = self.graph().next_work();
            let Some(work) = next else {
                news.await;
                continue;
            };
            let started = std::time::Instant::now();
            let result = self.attend(&work).await;
            self.part.metrics.reconciled(self.part.name, started.elapsed(), result.is_err());
            self.graph().done(&work);
            match result {
                Ok(false) => drop(self.retries().remove(&work)),
                Ok(true) => self.retry(work),
                Err(error) => {
                    tracing::debug!(%error, ?work, "garbage collection tries again");
                    self.retry(work);
                }
            }
            self.work.notify_one();
        }
    }

    fn retry(self: &Arc<Self>, work: Work) {
        let count = {
            let mut retries = self.retries();
            let count = retries.entry(work.clone()).or_insert(0);
            *count += 1;
            *count
        };
        let delay = RETRY_FIRST.saturating_mul(1 << (count - 1).min(16)).min(RETRY_MAX);
        let this = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            this.graph().requeue(work);
            this.work.notify_one();
        });
    }

    /// Decides and acts on one piece of work; says whether it must come back.
    async fn attend(&self, work: &Work) -> Result<bool, ApiError> {
        if let Work::Orphan(owner) = work {
            self.see_dependents(owner).await?;
        }
        let mut answers = Answers::default();
        let plan = loop {
            let step = self.graph().decide(work, &answers);
            match step {
                Step::Ask(places) => {
                    for place in places {
                        let answer = self.ask(&place).await;
                        answers.insert(place, answer);
                    }
                }
                Step::Do(plan) => break plan,
            }
        };
        self.carry_out(plan).await
    }

    /// A dependant that no watch has shown yet must not be missed when its owner lets go of its dependants: it would be collected
    /// afterwards. So everything that lives beside the owner is read now.
    async fn see_dependents(&self, owner: &Uid) -> Result<(), ApiError> {
        let Some(namespace) = self.graph().namespace_of(owner) else { return Ok(()) };
        let resources: Vec<Resource> =
            self.kinds.read().expect("no panic happens under this lock").values().cloned().collect();
        for resource in resources.into_iter().filter(|resource| resource.namespaced || namespace.is_empty()) {
            let list = match self.api.metadata(&resource.collection(&namespace)).await {
                // A kind that is just being removed.
                Err(error) if error.is_not_found() => continue,
                list => list?,
            };
            let api_version = resource.api_version();
            let facts =
                list.items(&["items"]).iter().map(|item| Event::Seen(Fact::of(&api_version, &resource.kind, item)));
            self.apply(facts);
        }
        Ok(())
    }

    async fn carry_out(&self, plan: Plan) -> Result<bool, ApiError> {
        self.apply(plan.gone.into_iter().map(Event::Gone));
        for action in &plan.actions {
            self.act(action).await?;
        }
        Ok(plan.held.is_some_and(|held| held.retries()))
    }

    fn resource(&self, place: &Place) -> Option<Resource> {
        let group = place.api_version.split_once('/').map_or("", |(group, _)| group);
        let kinds = self.kinds.read().expect("no panic happens under this lock");
        kinds.get(&(Arc::from(group), place.kind.clone())).cloned()
    }

    async fn ask(&self, place: &Place) -> Answer {
        let Some(resource) = self.resource(place) else { return Answer::UnknownKind };
        if resource.namespaced && place.namespace.is_empty() {
            return Answer::NeedsNamespace;
        }
        match self.api.metadata(&resource.object(&place.namespace, &place.name)).await {
            Ok(object) => Answer::Found(Fact::of(&place.api_version, &place.kind, &object)),
            Err(error) if error.is_not_found() => Answer::NotFound,
            Err(error) => {
                tracing::debug!(%error, %place, "no answer");
                Answer::Failed
            }
        }
    }

    async fn act(&self, action: &Action) -> Result<(), ApiError> {
        let (Action::Delete { place, .. }
        | Action::DropOwners { place, .. }
        | Action::Unblock { place, .. }
        | Action::RemoveFinalizer { place, .. }
        | Action::Report { place, .. }) = action;
        // The kind went away meanwhile, and its objects with it.
        let Some(resource) = self.resource(place) else { return Ok(()) };
        let path = resource.object(&place.namespace, &place.name);
        let result = match action {
            Action::Delete { .. } => self.api.delete(&path, &action.delete_options().unwrap_or_default()).await,
            Action::Report { uid, reason, message, .. } => {
                self.part.events.warn(&resource, place, uid, reason, message).await;
                return Ok(());
            }
            Action::RemoveFinalizer { .. } => self.api.merge(&path, &action.patch().unwrap_or_default()).await,
            Action::DropOwners { .. } | Action::Unblock { .. } => self.patch_owners(action, &path).await,
        };
        match result {
            Ok(_) => Ok(()),
            // Already as it should be.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn patch_owners(&self, action: &Action, path: &str) -> Result<Value, ApiError> {
        match self.api.strategic(path, &action.patch().unwrap_or_default()).await {
            Err(error) if error.code() == 415 => {
                let live = self.api.metadata(path).await?;
                let patch = action.merge_patch(&live).unwrap_or_else(|| json!({}));
                self.api.merge(path, &patch).await
            }
            result => result,
        }
    }

    fn graph(&self) -> std::sync::MutexGuard<'_, Graph> {
        self.graph.lock().expect("no panic happens under this lock")
    }

    fn retries(&self) -> std::sync::MutexGuard<'_, HashMap<Work, u32>> {
        self.retries.lock().expect("no panic happens under this lock")
    }
}
