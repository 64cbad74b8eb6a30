//! The common loop of small controllers: follow a few resources into a cache, work on the keys that changed.

use crate::api::{ApiError, Resource};
use crate::controllers::Part;
use crate::follow::{self, Change};
use crate::queue::Queue;
use futures::StreamExt;
use object::Value;
use object::access::{name, namespace};
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
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Arc<Value>>> {
        self.objects.lock().expect("no panic happens under this lock")
    }
}

/// A cache that is being filled, and what its changes wake.
pub struct Source {
    pub resource: Resource,
    pub cache: Cache,
    /// The keys to work on when an object (as it was or as it is) changes.
    pub wakes: Box<dyn Fn(&Value) -> Vec<Key> + Send + Sync>,
}

impl Source {
    pub fn new(resource: Resource, wakes: impl Fn(&Value) -> Vec<Key> + Send + Sync + 'static) -> Source {
        Source { resource, cache: Cache::default(), wakes: Box::new(wakes) }
    }
}

/// Runs `work` for every key that the sources wake, until the part stops. No key is worked on before all caches are filled. `work`
/// answers when it wants the key again by itself.
pub async fn run<F, Fut>(part: Part, sources: Vec<Source>, workers: usize, work: F)
where
    F: Fn(Key) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Duration>, ApiError>> + Send,
{
    let queue = Queue::new();
    let mut tasks = JoinSet::new();
    let (filled, mut all_filled) = watch::channel(0_usize);
    let filled = Arc::new(filled);
    let count = sources.len();
    for source in sources {
        tasks.spawn(fill(part.clone(), source, queue.clone(), filled.clone()));
    }
    let mut workers_tasks = JoinSet::new();
    for _ in 0..workers {
        let (part, queue, work, mut all_filled) = (part.clone(), queue.clone(), work.clone(), all_filled.clone());
        workers_tasks.spawn(async move {
            if all_filled.wait_for(|filled| *filled >= count).await.is_err() {
                return;
            }
            loop {
                attend(&part, &queue, &work).await;
            }
        });
    }
    all_filled.mark_unchanged();
    part.shutdown.cancelled().await;
    workers_tasks.shutdown().await;
    tasks.shutdown().await;
}

async fn attend<F, Fut>(part: &Part, queue: &Arc<Queue<Key>>, work: &F)
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
        Ok(again) => {
            queue.done(&key);
            if let Some(delay) = again {
                queue.add_after(key, delay);
            }
        }
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

async fn fill(part: Part, source: Source, queue: Arc<Queue<Key>>, filled: Arc<watch::Sender<usize>>) {
    let mut changes = Box::pin(follow::objects(&part.api.client, &source.resource));
    let mut fresh: Option<HashSet<Key>> = None;
    let mut told = false;
    while let Some(change) = changes.next().await {
        let wake = |object: &Value| (source.wakes)(object).into_iter().for_each(|key| queue.add(key));
        match change {
            Change::Restart => fresh = Some(HashSet::new()),
            Change::Seen(object) => {
                let key = key(&object);
                if let Some(fresh) = &mut fresh {
                    fresh.insert(key.clone());
                }
                let object = Arc::new(object);
                let before = source.cache.lock().insert(key, object.clone());
                if let Some(before) = before {
                    wake(&before);
                }
                wake(&object);
            }
            Change::Gone(object) => {
                source.cache.lock().remove(&key(&object));
                wake(&object);
            }
            Change::Ready => {
                if let Some(fresh) = fresh.take() {
                    let mut cache = source.cache.lock();
                    let gone: Vec<Key> = cache.keys().filter(|key| !fresh.contains(*key)).cloned().collect();
                    let objects: Vec<Arc<Value>> = gone.iter().filter_map(|key| cache.remove(key)).collect();
                    drop(cache);
                    objects.iter().for_each(|object| wake(object));
                }
                if !std::mem::replace(&mut told, true) {
                    filled.send_modify(|count| *count += 1);
                }
            }
        }
    }
}
