//! The common loop of small controllers: follow a few resources into a cache, work on the keys that changed.

use crate::api::{ApiError, Resource};
use crate::controllers::Part;
use crate::follow::{self, Change};
use crate::queue::Queue;
use futures::StreamExt;
use object::Value;
use object::access::Access;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use crate::cache::{Cache, Changed, Key, key};

/// A cache that is being filled, and what its changes wake.
pub struct Source {
    pub resource: Resource,
    pub cache: Cache,
    /// Only the objects that this field selector takes.
    fields: Option<String>,
    /// The keys to work on when an object changes.
    wakes: Wakes,
}

type Wakes = Box<dyn Fn(&Changed) -> Vec<Key> + Send + Sync>;

impl Source {
    /// Follows all objects of a resource; each change wakes what `wakes` says of the object as it was and of it as it is.
    pub fn new(resource: Resource, wakes: impl Fn(&Value) -> Vec<Key> + Send + Sync + 'static) -> Source {
        Source::changing(resource, move |before, after| before.into_iter().chain(after).flat_map(&wakes).collect())
    }

    /// Like [`Source::new`], for those to whom not every change matters: `wakes` is told the object as it was and as it is.
    pub fn changing(
        resource: Resource,
        wakes: impl Fn(Option<&Value>, Option<&Value>) -> Vec<Key> + Send + Sync + 'static,
    ) -> Source {
        Source::hearing(resource, move |changed| wakes(changed.before.as_deref(), changed.after.as_deref()))
    }

    /// Like [`Source::changing`], for those to whom it matters whether an object was seen to go.
    pub fn hearing(resource: Resource, wakes: impl Fn(&Changed) -> Vec<Key> + Send + Sync + 'static) -> Source {
        Source { resource, cache: Cache::default(), fields: None, wakes: Box::new(wakes) }
    }

    pub fn only(mut self, field_selector: String) -> Source {
        self.fields = Some(field_selector);
        self
    }

    /// Fills this cache instead of a new one.
    pub fn into(mut self, cache: Cache) -> Source {
        self.cache = cache;
        self
    }
}

/// How the work on a key ended.
pub struct Turn {
    /// When the key is wanted again by itself.
    pub again: Option<Duration>,
    /// What happens within this time can wait for its end.
    pub rest: Duration,
}

impl From<Option<Duration>> for Turn {
    fn from(again: Option<Duration>) -> Turn {
        Turn { again, rest: Duration::ZERO }
    }
}

/// Runs `work` for every key that the sources wake, until the part stops. No key is worked on before all caches are filled. `work`
/// answers when it wants the key again by itself.
pub async fn run<F, Fut, T>(part: Part, sources: Vec<Source>, workers: usize, work: F)
where
    F: Fn(Key) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ApiError>> + Send,
    T: Into<Turn>,
{
    let queue = Arc::new(Queue::new(part.metrics.queue(part.name)));
    run_with(part, queue, sources, workers, work).await;
}

/// Like [`run`], on a queue that others may put keys in too.
pub async fn run_with<F, Fut, T>(part: Part, queue: Arc<Queue<Key>>, sources: Vec<Source>, workers: usize, work: F)
where
    F: Fn(Key) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ApiError>> + Send,
    T: Into<Turn>,
{
    let unfilled = Arc::new(watch::Sender::new(sources.len()));
    let mut tasks = JoinSet::new();
    let mut listening = Listening(Vec::new());
    for Source { resource, cache, fields, wakes } in sources {
        let woken = queue.clone();
        cache.listen(move |changed| wakes(changed).into_iter().for_each(|key| woken.add(key)));
        listening.0.push(cache.clone());
        tasks.spawn(fill(part.clone(), resource, fields, cache, unfilled.clone()));
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
        biased;
        () = part.shutdown.cancelled() => {}
        // These tasks do not end by themselves: one of them has panicked, and whoever started us shall know.
        Some(Err(error)) = tasks.join_next() => std::panic::resume_unwind(error.into_panic()),
    }
    tasks.shutdown().await;
}

/// Waits for the first object of a resource: before it, others may not be worth following. False when the part stops.
pub async fn wait_for_first(part: &Part, resource: &Resource) -> bool {
    let mut changes = Box::pin(follow::metadata(&part.api, resource));
    loop {
        tokio::select! {
            biased;
            () = part.shutdown.cancelled() => return false,
            change = changes.next() => match change {
                Some(Change::Seen(_)) => return true,
                Some(_) => {}
                None => return false,
            },
        }
    }
}

async fn attend<F, Fut, T>(part: &Part, queue: &Queue<Key>, work: &F)
where
    F: Fn(Key) -> Fut,
    Fut: Future<Output = Result<T, ApiError>>,
    T: Into<Turn>,
{
    let key = queue.next().await;
    let started = std::time::Instant::now();
    let result = work(key.clone()).await;
    part.metrics.reconciled(part.name, started.elapsed(), result.is_err());
    match result.map(Into::into) {
        Ok(Turn { again, rest: Duration::ZERO }) => queue.done(&key, again),
        Ok(Turn { again, rest }) => queue.done_for(&key, rest, again),
        Err(error) => {
            let delay = queue.failed(&key);
            // The cache is a moment behind, or everything here is about to end: not worth a line.
            if error.is_stale() || error.is_namespace_ending() {
                tracing::debug!(controller = part.name, %error, ?delay, "trying again");
            } else {
                tracing::warn!(controller = part.name, namespace = %key.0, name = %key.1, %error, ?delay, "trying again");
            }
        }
    }
}

/// What wakes may hold its own cache: it must let go of it in the end, or neither ever goes.
struct Listening(Vec<Cache>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.iter().for_each(Cache::stop_listening);
    }
}

async fn fill(
    part: Part,
    resource: Resource,
    fields: Option<String>,
    cache: Cache,
    unfilled: Arc<watch::Sender<usize>>,
) {
    let mut changes = Box::pin(follow::objects(&part.api, &resource, fields.as_deref()));
    let size = part.metrics.cached(part.name, &resource.plural);
    let mut filled = false;
    loop {
        let change = tokio::select! {
            biased;
            change = changes.next() => change,
            doubts = cache.doubts() => {
                settle(&part, &resource, &cache, doubts).await;
                continue;
            }
        };
        let Some(change) = change else { return };
        let ready = matches!(change, Change::Ready);
        cache.hear(change);
        size.set(i64::try_from(cache.len()).unwrap_or(i64::MAX));
        if ready && !std::mem::replace(&mut filled, true) {
            unfilled.send_modify(|count| *count -= 1);
        }
    }
}

/// Asks about own writes that the watch does not tell of. This is rare: they went while a new list was being read. Whoever may follow
/// a resource may list it, but not always get one of it.
async fn settle(part: &Part, resource: &Resource, cache: &Cache, doubts: Vec<(u64, Key)>) {
    for doubt in doubts {
        let (namespace, name) = &doubt.1;
        let path = format!("{}?fieldSelector=metadata.name%3D{name}", resource.collection(namespace));
        match part.api.get(&path).await {
            Ok(list) => cache.settle(doubt, list.items(&["items"]).first().map(|found| Arc::new(found.clone()))),
            // The doubt remains, and is looked at again.
            Err(error) => tracing::debug!(%error, %path, "no answer"),
        }
    }
}
