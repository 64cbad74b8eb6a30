//! Feeds the graph: one watch per resource, for as long as it is served.

use super::Collector;
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kit::Relist;
use kit::api::Resource;
use kit::cache::shared;
use kit::discovery::Served;
use kit::watcher::{self, Event};
use plan::gc::{Fact, GraphEvent, OwnerRef, Place, Uid};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch as channel;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Kinds can also be added by aggregated servers: discovery is repeated this often even if no definition
/// changed.
const REDISCOVER_EVERY: Duration = Duration::from_secs(30);
const REDISCOVER_AFTER_ERROR: Duration = Duration::from_secs(1);
/// A resource that cannot be listed within this time does not delay the others any longer.
const SYNC_TIME_MAX: Duration = Duration::from_secs(30);

/// The watch of one resource.
struct Watch {
    retire: CancellationToken,
    task: JoinHandle<()>,
}

/// Counts a resource as not listed yet, until it is dropped.
pub(super) struct Unsynced(channel::Sender<usize>);

impl Unsynced {
    pub(super) fn new(count: &channel::Sender<usize>) -> Unsynced {
        count.send_modify(|count| *count += 1);
        Unsynced(count.clone())
    }
}

impl Drop for Unsynced {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Collector {
    /// Discovers the resources, watches each in one of `tasks`, and repeats this when definitions change.
    /// `undiscovered` delays all decisions until the first discovery.
    pub(super) async fn discover(self: Arc<Self>, undiscovered: Unsynced, tasks: TaskTracker, stop: CancellationToken) {
        let mut watches: HashMap<Resource, Watch> = HashMap::new();
        let mut undiscovered = Some(undiscovered);
        loop {
            let pause = match self.discovery.look().await {
                Ok(served) => {
                    self.retire(&served, &mut watches).await;
                    for served in served.iter().filter(|served| is_watched(served)) {
                        watches.entry(served.resource.clone()).or_insert_with(|| {
                            let retire = stop.child_token();
                            let unsynced = Unsynced::new(&self.unsynced);
                            let run = self.clone().watch(served.resource.clone(), unsynced, retire.clone());
                            Watch { retire, task: tasks.spawn(run) }
                        });
                    }
                    self.learn(served);
                    drop(undiscovered.take());
                    REDISCOVER_EVERY
                }
                Err(error) => {
                    tracing::warn!(%error, "Failed to discover resources; retrying");
                    REDISCOVER_AFTER_ERROR
                }
            };
            tokio::select! {
                biased;
                () = self.rediscover.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Stops the watches of resources that are no longer served, before others take over the same objects in
    /// another version.
    async fn retire(&self, served: &[Served], watches: &mut HashMap<Resource, Watch>) {
        let stays: HashSet<&Resource> =
            served.iter().filter(|served| is_watched(served)).map(|served| &served.resource).collect();
        let leaving = watches.extract_if(|resource, watch| !stays.contains(resource) || watch.task.is_finished());
        for (resource, watch) in leaving.collect::<Vec<_>>() {
            watch.retire.cancel();
            if let Err(error) = watch.task.await {
                tracing::error!(%error, resource = %resource.plural, "A watch panicked");
            }
        }
    }

    fn learn(&self, served: Vec<Served>) {
        let by_kind: HashMap<_, _> = served
            .into_iter()
            .map(|served| ((served.resource.group.clone(), served.resource.kind.clone()), served))
            .collect();
        let mut kinds = self.kinds.write().expect("no panic happens under this lock");
        if *kinds != by_kind {
            *kinds = by_kind;
            drop(kinds);
            // Work on objects with an owner of a formerly unknown kind may be decidable now.
            self.expedite();
        }
    }

    async fn watch(self: Arc<Self>, resource: Resource, unsynced: Unsynced, retire: CancellationToken) {
        let mut feed = GraphFeed::new(&self, resource);
        let mut unsynced = Some(unsynced);
        let mut changes = Box::pin(watcher::metadata(&self.api, &feed.resource));
        let late = tokio::time::sleep(SYNC_TIME_MAX);
        tokio::pin!(late);
        loop {
            let change = tokio::select! {
                biased;
                () = retire.cancelled() => return feed.leave(),
                change = changes.next() => change,
                () = late.as_mut(), if unsynced.is_some() => {
                    tracing::warn!(resource = %feed.resource.plural, "Failed to list a resource in time; garbage collection continues without it");
                    unsynced = None;
                    continue;
                }
            };
            let Some(change) = change else { return feed.leave() };
            let ready = matches!(change, Event::InitDone);
            feed.write(change);
            if ready {
                unsynced = None;
            }
        }
    }
}

/// Whether the graph contains the objects of a resource.
pub(super) fn is_watched(served: &Served) -> bool {
    // Events own nothing, and there are many.
    let is_event = &*served.resource.plural == "events" && matches!(&*served.resource.group, "" | "events.k8s.io");
    !is_event && served.can(&["list", "watch", "delete"])
}

/// Applies the watch events of one resource to the graph.
struct GraphFeed<'a> {
    collector: &'a Collector,
    resource: Resource,
    api_version: Arc<str>,
    /// Objects of this resource in the graph.
    known: HashSet<Uid>,
    relist: Relist<Uid>,
}

impl GraphFeed<'_> {
    fn new(collector: &Collector, resource: Resource) -> GraphFeed<'_> {
        GraphFeed {
            collector,
            api_version: resource.api_version().into(),
            resource,
            known: HashSet::new(),
            relist: Relist::default(),
        }
    }

    fn write(&mut self, change: Event<ObjectMeta>) {
        match change {
            Event::Init => self.relist.begin(),
            Event::Apply(metadata) => {
                let fact = self.fact(metadata);
                self.known.insert(fact.uid.clone());
                self.note_definition(&fact.place.name, false);
                let event = match self.relist.applied(&fact.uid) {
                    true => GraphEvent::Listed(fact),
                    false => GraphEvent::Seen(fact),
                };
                self.collector.apply([event]);
            }
            Event::Delete(metadata) => {
                let uid: Uid = metadata.uid.unwrap_or_default().into();
                self.known.remove(&uid);
                let version = metadata.resource_version.and_then(|version| version.parse().ok());
                self.gone([uid], version.unwrap_or(0));
            }
            Event::InitDone => {
                let gone = self.relist.missing(&self.known);
                gone.iter().for_each(|uid| drop(self.known.remove(uid)));
                self.gone(gone, 0);
            }
        }
    }

    /// Removes objects that were deleted, at this version if it is known.
    fn gone(&self, uids: impl IntoIterator<Item = Uid>, version: u64) {
        for uid in uids {
            let name = self.collector.graph().place_of(&uid).map(|place| place.name.clone());
            if let Some(name) = name.filter(|name| !self.bears(name)) {
                self.note_definition(&name, true);
            }
            self.collector.apply([GraphEvent::Gone(uid, version)]);
        }
    }

    /// Whether a definition of this name exists: a deleted one may have been created again.
    fn bears(&self, name: &str) -> bool {
        let graph = self.collector.graph();
        is_definitions(&self.resource)
            && self.known.iter().any(|uid| graph.place_of(uid).is_some_and(|place| *place.name == *name))
    }

    /// The resource is no longer served. If its definition was deleted, so were its objects; otherwise their
    /// state is unknown.
    fn leave(self) {
        let definition = format!("{}.{}", self.resource.plural, self.resource.group);
        let gone = self.collector.removed_definitions().contains(&definition);
        let last_word = |uid| if gone { GraphEvent::Gone(uid, 0) } else { GraphEvent::Unwatched(uid) };
        self.collector.apply(self.known.into_iter().map(last_word));
    }

    /// Tracks definitions: they add and remove resources.
    fn note_definition(&self, name: &str, gone: bool) {
        if !is_definitions(&self.resource) {
            return;
        }
        if gone {
            self.collector.removed_definitions().insert(name.to_owned());
        } else {
            self.collector.removed_definitions().remove(name);
        }
        self.collector.rediscover.notify_one();
    }

    fn fact(&self, metadata: ObjectMeta) -> Fact {
        let owners = metadata.owner_references.unwrap_or_default().into_iter().map(|owner| OwnerRef {
            api_version: owner.api_version.into(),
            kind: owner.kind.into(),
            name: owner.name.into(),
            uid: owner.uid.into(),
            blocks: owner.block_owner_deletion.unwrap_or(false),
            since: 0,
        });
        Fact {
            owners: owners.collect(),
            // The same for all objects of the resource, so they share it.
            place: Place {
                api_version: self.api_version.clone(),
                kind: self.resource.kind.clone(),
                namespace: shared(&metadata.namespace.unwrap_or_default()),
                name: metadata.name.unwrap_or_default().into(),
            },
            uid: metadata.uid.unwrap_or_default().into(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
        }
    }
}
fn is_definitions(resource: &Resource) -> bool {
    &*resource.plural == "customresourcedefinitions"
}
