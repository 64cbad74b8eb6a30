//! The common loop of small controllers: follow a few resources into a cache, work on the keys that changed.

use crate::api::{ApiError, Resource};
use crate::controllers::Part;
use crate::follow::{self, Change};
use crate::queue::Queue;
use futures::StreamExt;
use object::Value;
use object::access::{Access, name, namespace};
use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// `namespace/name`; cluster-scoped objects have an empty namespace.
pub type Key = (Arc<str>, Arc<str>);

pub fn key(object: &Value) -> Key {
    (namespace(object).into(), name(object).into())
}

/// The objects of one resource, as last seen.
#[derive(Clone, Default)]
pub struct Cache {
    objects: Arc<Mutex<BTreeMap<Key, Arc<Value>>>>,
}

impl Cache {
    pub fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.lock().get(key).cloned()
    }
    pub fn all(&self) -> Vec<Arc<Value>> {
        self.lock().values().cloned().collect()
    }
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<Value>> {
        let from: Key = (namespace.into(), "".into());
        self.lock()
            .range(from..)
            .take_while(|(key, _)| &*key.0 == namespace)
            .map(|(_, object)| object.clone())
            .collect()
    }
    fn remove_all_but(&self, fresh: &HashSet<Key>) -> Vec<Arc<Value>> {
        self.lock().extract_if(.., |key, _| !fresh.contains(key)).map(|(_, object)| object).collect()
    }
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Arc<Value>>> {
        self.objects.lock().expect("no panic happens under this lock")
    }
}

/// A cache that is being filled, and what its changes wake.
pub struct Source {
    pub resource: Resource,
    pub cache: Cache,
    /// Only the objects that this field selector takes.
    fields: Option<String>,
    /// Cuts off what nobody here reads: most of the memory of a cache.
    trim: fn(&mut Value),
    /// The keys to work on when an object (as it was or as it is) changes.
    wakes: Wakes,
}

type Wakes = Box<dyn Fn(&Value) -> Vec<Key> + Send + Sync>;

impl Source {
    /// Follows all objects of a resource; managed fields are never kept.
    pub fn new(resource: Resource, wakes: impl Fn(&Value) -> Vec<Key> + Send + Sync + 'static) -> Source {
        Source { resource, cache: Cache::default(), fields: None, trim: |_| {}, wakes: Box::new(wakes) }
    }

    pub fn only(mut self, field_selector: String) -> Source {
        self.fields = Some(field_selector);
        self
    }

    pub fn trimmed(mut self, trim: fn(&mut Value)) -> Source {
        self.trim = trim;
        self
    }

    /// Fills this cache instead of a new one.
    pub fn into(mut self, cache: Cache) -> Source {
        self.cache = cache;
        self
    }
}

/// Runs `work` for every key that the sources wake, until the part stops. No key is worked on before all caches are filled. `work`
/// answers when it wants the key again by itself.
pub async fn run<F, Fut>(part: Part, sources: Vec<Source>, workers: usize, work: F)
where
    F: Fn(Key) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Duration>, ApiError>> + Send,
{
    let queue = Arc::new(Queue::new());
    let unfilled = Arc::new(watch::Sender::new(sources.len()));
    let mut tasks = JoinSet::new();
    for source in sources {
        tasks.spawn(fill(part.clone(), source, queue.clone(), unfilled.clone()));
    }
    for _ in 0..workers {
        let (part, queue, work, mut unfilled) = (part.clone(), queue.clone(), work.clone(), unfilled.subscribe());
        tasks.spawn(async move {
            // It fails only when those who fill are gone: then there is nothing to work on.
            if unfilled.wait_for(|count| *count == 0).await.is_ok() {
                loop {
                    attend(&part, &queue, &work).await;
                }
            }
        });
    }
    tokio::select! {
        () = part.shutdown.cancelled() => {}
        // These tasks do not end by themselves: one of them has panicked, and whoever started us shall know.
        Some(Err(error)) = tasks.join_next() => std::panic::resume_unwind(error.into_panic()),
    }
    tasks.shutdown().await;
}

/// Waits for the first object of a resource: before it, others may not be worth following. False when the part stops.
pub async fn wait_for_first(part: &Part, resource: &Resource) -> bool {
    let mut changes = Box::pin(follow::metadata(&part.api.client, resource));
    loop {
        tokio::select! {
            () = part.shutdown.cancelled() => return false,
            change = changes.next() => match change {
                Some(Change::Seen(_)) => return true,
                Some(_) => {}
                None => return false,
            },
        }
    }
}

async fn attend<F, Fut>(part: &Part, queue: &Queue<Key>, work: &F)
where
    F: Fn(Key) -> Fut,
    Fut: Future<Output = Result<Option<Duration>, ApiError>>,
{
    let key = queue.next().await;
    part.metrics.depth(part.name, queue.depth());
    let started = std::time::Instant::now();
    let result = work(key.clone()).await;
    part.metrics.reconciled(part.name, started.elapsed(), result.is_err());
    match result {
        Ok(again) => queue.done(&key, again),
        Err(error) => {
            let delay = queue.failed(&key);
            // A conflict means that the cache is a moment behind: not worth a line.
            if error.is_conflict() {
                tracing::debug!(controller = part.name, %error, ?delay, "trying again");
            } else {
                tracing::warn!(controller = part.name, namespace = %key.0, name = %key.1, %error, ?delay, "trying again");
            }
        }
    }
}

async fn fill(part: Part, source: Source, queue: Arc<Queue<Key>>, unfilled: Arc<watch::Sender<usize>>) {
    let mut changes = Box::pin(follow::objects(&part.api.client, &source.resource, source.fields.as_deref()));
    let mut fresh: Option<HashSet<Key>> = None;
    let mut filled = false;
    while let Some(change) = changes.next().await {
        let wake = |object: &Value| (source.wakes)(object).into_iter().for_each(|key| queue.add(key));
        match change {
            Change::Restart => fresh = Some(HashSet::new()),
            Change::Seen(mut object) => {
                object.cut(&["metadata", "managedFields"]);
                (source.trim)(&mut object);
                let key = key(&object);
                if let Some(fresh) = &mut fresh {
                    fresh.insert(key.clone());
                }
                let object = Arc::new(object);
                let before = source.cache.lock().insert(key, object.clone());
                before.iter().for_each(|before| wake(before));
                wake(&object);
            }
            Change::Gone(object) => {
                let before = source.cache.lock().remove(&key(&object));
                before.iter().for_each(|before| wake(before));
                wake(&object);
            }
            Change::Ready => {
                let fresh = fresh.take().unwrap_or_default();
                let gone = source.cache.remove_all_but(&fresh);
                gone.iter().for_each(|object| wake(object));
                if !std::mem::replace(&mut filled, true) {
                    unfilled.send_modify(|count| *count -= 1);
                }
            }
        }
    }
}
