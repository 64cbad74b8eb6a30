//! The common loop of controllers: watch resources into caches, and reconcile the keys that changed.

use crate::api::{Api, ApiError, Resource};
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::watcher::{self, Event};
use futures::StreamExt;
use object::Value;
use object::access::Access;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use crate::cache::{Cache, Changed, Key, key};

/// What the loop needs of a controller.
#[derive(Clone)]
pub struct Context {
    /// The controller's name in metrics and logs.
    pub name: &'static str,
    pub api: Api,
    pub metrics: Metrics,
    pub shutdown: CancellationToken,
}

/// A watched resource, its cache, and the keys that its changes queue.
pub struct Source {
    pub resource: Resource,
    pub cache: Cache,
    /// Field selector of the watch.
    fields: Option<String>,
    /// Returns the keys to queue when an object changes.
    keys_of: KeysOf,
}

type KeysOf = Box<dyn Fn(&Changed) -> Vec<Key> + Send + Sync>;

impl Source {
    /// Watches all objects of a resource; each change queues the keys of the object before and after it.
    pub fn new(resource: Resource, keys_of: impl Fn(&Value) -> Vec<Key> + Send + Sync + 'static) -> Source {
        Source::changing(resource, move |before, after| before.into_iter().chain(after).flat_map(&keys_of).collect())
    }

    /// Like [`Source::new`], for controllers that ignore some changes: `keys_of` gets the object before and
    /// after.
    pub fn changing(
        resource: Resource,
        keys_of: impl Fn(Option<&Value>, Option<&Value>) -> Vec<Key> + Send + Sync + 'static,
    ) -> Source {
        Source::with_changed(resource, move |changed| keys_of(changed.before.as_deref(), changed.after.as_deref()))
    }

    /// Like [`Source::changing`], for controllers that need to know whether the last state of a deleted
    /// object is known.
    pub fn with_changed(resource: Resource, keys_of: impl Fn(&Changed) -> Vec<Key> + Send + Sync + 'static) -> Source {
        Source { resource, cache: Cache::default(), fields: None, keys_of: Box::new(keys_of) }
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

/// The result of reconciling a key.
pub struct ReconcileResult {
    /// When to requeue the key without a change.
    pub requeue_after: Option<Duration>,
    /// Changes within this time are reconciled together at its end.
    pub coalesce: Duration,
}

impl From<Option<Duration>> for ReconcileResult {
    fn from(requeue_after: Option<Duration>) -> ReconcileResult {
        ReconcileResult { requeue_after, coalesce: Duration::ZERO }
    }
}

/// Runs `work` for every key that the sources queue, until shutdown. No key is worked on before all caches
/// are filled. `work` returns when to requeue the key.
pub async fn run<F, Fut, T>(context: impl Into<Context>, sources: Vec<Source>, workers: usize, work: F)
where
    F: Fn(Key) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ApiError>> + Send,
    T: Into<ReconcileResult>,
{
    let context = context.into();
    let queue = Arc::new(Queue::new(context.metrics.queue(context.name)));
    run_with(context, queue, sources, workers, work).await;
}

/// Like [`run`], on a queue that other tasks add keys to as well.
pub async fn run_with<F, Fut, T>(
    context: impl Into<Context>,
    queue: Arc<Queue<Key>>,
    sources: Vec<Source>,
    workers: usize,
    work: F,
) where
    F: Fn(Key) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ApiError>> + Send,
    T: Into<ReconcileResult>,
{
    let context = context.into();
    let unfilled = Arc::new(watch::Sender::new(sources.len()));
    let mut tasks = JoinSet::new();
    let mut listening = Listening(Vec::new());
    for Source { resource, cache, fields, keys_of } in sources {
        let queue_of_listener = queue.clone();
        cache.listen(move |changed| keys_of(changed).into_iter().for_each(|key| queue_of_listener.add(key)));
        listening.0.push(cache.clone());
        tasks.spawn(fill(context.clone(), resource, fields, cache, unfilled.clone()));
    }
    for _ in 0..workers {
        let (context, queue, work, mut unfilled) = (context.clone(), queue.clone(), work.clone(), unfilled.subscribe());
        tasks.spawn(async move {
            // Fails only if the tasks that fill the caches are gone; then there is nothing to do.
            if unfilled.wait_for(|count| *count == 0).await.is_ok() {
                loop {
                    reconcile_next(&context, &queue, &work).await;
                }
            }
        });
    }
    tokio::select! {
        biased;
        () = context.shutdown.cancelled() => {}
        // These tasks never return, so one has panicked; the panic is passed on to the caller, which restarts
        // the controller.
        Some(Err(error)) = tasks.join_next() => std::panic::resume_unwind(error.into_panic()),
    }
    tasks.shutdown().await;
}

/// Waits for the first object of a resource, before which related resources need not be watched. Returns
/// false at shutdown.
pub async fn wait_for_first(api: &Api, shutdown: &CancellationToken, resource: &Resource) -> bool {
    let mut changes = Box::pin(watcher::metadata(api, resource));
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return false,
            change = changes.next() => match change {
                Some(Event::Apply(_)) => return true,
                Some(_) => {}
                None => return false,
            },
        }
    }
}

async fn reconcile_next<F, Fut, T>(context: &Context, queue: &Queue<Key>, work: &F)
where
    F: Fn(Key) -> Fut,
    Fut: Future<Output = Result<T, ApiError>>,
    T: Into<ReconcileResult>,
{
    let key = queue.next().await;
    let started = std::time::Instant::now();
    let result = work(key.clone()).await;
    context.metrics.reconciled(context.name, started.elapsed(), result.is_err());
    match result.map(Into::into) {
        Ok(ReconcileResult { requeue_after, coalesce: Duration::ZERO }) => queue.done(&key, requeue_after),
        Ok(ReconcileResult { requeue_after, coalesce }) => queue.done_coalescing(&key, coalesce, requeue_after),
        Err(error) => {
            let delay = queue.failed(&key);
            // A stale cache or a terminating namespace is expected and not worth a warning.
            if error.is_stale() || error.is_namespace_ending() {
                tracing::debug!(controller = context.name, %error, ?delay, "Reconcile failed; retrying");
            } else {
                tracing::warn!(controller = context.name, namespace = %key.0, name = %key.1, %error, ?delay, "Reconcile failed; retrying");
            }
        }
    }
}

/// Removes the listeners when dropped: a listener may hold its own cache, and this breaks the reference
/// cycle.
struct Listening(Vec<Cache>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.iter().for_each(Cache::stop_listening);
    }
}

async fn fill(
    context: Context,
    resource: Resource,
    fields: Option<String>,
    cache: Cache,
    unfilled: Arc<watch::Sender<usize>>,
) {
    let mut changes = Box::pin(watcher::objects(&context.api, &resource, fields.as_deref()));
    let size = context.metrics.cached(context.name, &resource.plural);
    let mut filled = false;
    loop {
        let change = tokio::select! {
            biased;
            change = changes.next() => change,
            writes = cache.unconfirmed_writes() => {
                settle(&context, &resource, &cache, writes).await;
                continue;
            }
        };
        let Some(change) = change else { return };
        let ready = matches!(change, Event::InitDone);
        cache.apply(change);
        size.set(i64::try_from(cache.len()).unwrap_or(i64::MAX));
        if ready && !std::mem::replace(&mut filled, true) {
            unfilled.send_modify(|count| *count -= 1);
        }
    }
}

/// Checks own writes that the watch does not confirm. This is rare: the object was deleted while a list was
/// being read. It uses a list with a field selector, because a controller that may watch a resource may not
/// always get single objects.
async fn settle(context: &Context, resource: &Resource, cache: &Cache, writes: Vec<(u64, Key)>) {
    for write in writes {
        let (namespace, name) = &write.1;
        let path = format!("{}?fieldSelector=metadata.name%3D{name}", resource.collection(namespace));
        match context.api.get(&path).await {
            Ok(list) => cache.settle(write, list.items(&["items"]).first().map(|found| Arc::new(found.clone()))),
            // The write stays unconfirmed and is checked again later.
            Err(error) => tracing::debug!(%error, %path, "Failed to check an own write"),
        }
    }
}
