//! Lists and watches a resource, across broken connections and compactions.
//!
//! It first lists, in pages, and then watches from the version of the list. A watch that ends resumes at the
//! last version received; after 410 Gone it lists again. The first backoff after a failure is short, because
//! the controller sees no changes meanwhile.
//!
//! Controllers restricted to some namespaces get no objects of others. A single namespace is watched by its
//! own path. For several, all namespaces are watched and other objects are dropped: the cache needs all
//! changes in order, and only one watch delivers that.

mod lines;

use crate::api::{Api, ApiError, Resource, unreadable};
use crate::backoff::Backoff;
use crate::decode_cache::DecodeCache;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use lines::{EventType, Lines};
use object::Value;
use object::access::Access;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// An event of a watched resource, including its lists.
#[derive(Debug)]
pub enum Event<T> {
    /// A list begins: its objects follow, up to `InitDone`. Objects that it does not contain are deleted.
    Init,
    Apply(T),
    Delete(T),
    /// The list is complete.
    InitDone,
}

impl<T> Event<T> {
    fn map<U>(self, take: impl FnOnce(T) -> U) -> Event<U> {
        match self {
            Event::Init => Event::Init,
            Event::Apply(object) => Event::Apply(take(object)),
            Event::Delete(object) => Event::Delete(take(object)),
            Event::InitDone => Event::InitDone,
        }
    }
}

/// Watches whole objects: all, or those that a field selector matches.
pub fn objects(
    api: &Api,
    resource: &Resource,
    fields: Option<&str>,
) -> impl Stream<Item = Event<Arc<Value>>> + Send + use<> {
    changes(api, resource, fields)
}

/// Watches metadata only.
pub fn metadata(api: &Api, resource: &Resource) -> impl Stream<Item = Event<ObjectMeta>> + Send + use<> {
    slim(api, resource).map(|change| change.map(|object: Slim<IgnoredAny, IgnoredAny>| object.metadata))
}

/// A few members of an object: its identity, and parts of spec and status.
#[derive(Clone, Debug, Deserialize)]
pub struct Slim<Spec, Status> {
    /// Name, versions, owners, finalizers and deletion time; see [`metadata_fields`].
    #[serde(deserialize_with = "metadata_fields")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Status,
}

/// Watches a few members of each object, for controllers that only count. Members that are not wanted are
/// skipped while parsing, which costs a fraction of decoding them.
pub fn slim<Spec, Status>(
    api: &Api,
    resource: &Resource,
) -> impl Stream<Item = Event<Slim<Spec, Status>>> + Send + use<Spec, Status>
where
    Spec: DeserializeOwned + Default + Send + 'static,
    Status: DeserializeOwned + Default + Send + 'static,
{
    changes(api, resource, None)
}

/// What can be decoded from the text of an object.
trait Decode: Sized + Send + 'static {
    fn read(text: &[u8], decoded: &DecodeCache) -> Result<Self, serde_json::Error>;
    fn version(&self) -> &str;
    fn namespace(&self) -> &str;
}

impl Decode for Arc<Value> {
    fn read(text: &[u8], decoded: &DecodeCache) -> Result<Self, serde_json::Error> {
        decoded.object(text)
    }
    fn version(&self) -> &str {
        self.text(&["metadata", "resourceVersion"])
    }
    fn namespace(&self) -> &str {
        object::access::namespace(self)
    }
}

impl<Spec, Status> Decode for Slim<Spec, Status>
where
    Spec: DeserializeOwned + Default + Send + 'static,
    Status: DeserializeOwned + Default + Send + 'static,
{
    fn read(text: &[u8], decoded: &DecodeCache) -> Result<Self, serde_json::Error> {
        match decoded.known(text) {
            Some(object) => Slim::deserialize(&*object),
            None => object::value::from_bytes(text),
        }
    }
    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or("")
    }
    fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or("")
    }
}

fn changes<T: Decode>(
    api: &Api,
    resource: &Resource,
    fields: Option<&str>,
) -> impl Stream<Item = Event<T>> + Send + use<T> {
    // Boxed, because it moves with every step.
    let watcher = Box::new(Watcher {
        api: api.clone(),
        resource: resource.clone(),
        selector: fields.map(|fields| format!("&fieldSelector={}", escaped(fields))).unwrap_or_default(),
        state: State::Start,
        events: VecDeque::new(),
        backoff: WatchBackoff::default(),
    });
    futures::stream::unfold(watcher, |mut watcher| async move { Some((watcher.next().await, watcher)) })
}

/// Escapes a selector for a query string.
fn escaped(selector: &str) -> String {
    selector.replace('%', "%25").replace('=', "%3D").replace('!', "%21").replace(',', "%2C").replace('&', "%26")
}

struct Watcher<T> {
    api: Api,
    resource: Resource,
    selector: String,
    state: State,
    /// Events that were read and not returned yet.
    events: VecDeque<Event<T>>,
    backoff: WatchBackoff,
}

/// The state of a watcher.
enum State {
    Start,
    /// In the middle of a list.
    Page {
        token: String,
    },
    /// Everything up to this version was received; the watch is to be opened.
    Version(String),
    Watch {
        version: String,
        lines: Lines,
        since: Instant,
    },
}

/// Watches are requested with this timeout, so that a watch the server has lost does not hang for ever.
const WATCH_TIME_S: u32 = 290;
/// A watch that ends without an event within this time counts as failed.
const WATCH_TIME_MIN: Duration = Duration::from_secs(1);

impl<T: Decode> Watcher<T> {
    async fn next(&mut self) -> Event<T> {
        loop {
            if let Some(change) = self.events.pop_front() {
                return change;
            }
            if let Err(error) = self.advance().await {
                let resource = &self.resource.plural;
                match error.code() {
                    401 | 403 => tracing::warn!(%error, %resource, "Watch is not permitted; retrying"),
                    _ => tracing::debug!(%error, %resource, "Watch failed; retrying"),
                }
                tokio::time::sleep(self.backoff.next()).await;
            }
        }
    }

    /// Makes one step: reads a page, opens a watch, or reads from it.
    async fn advance(&mut self) -> Result<(), ApiError> {
        let path = self.resource.collection(self.api.scope().only().unwrap_or(""));
        match std::mem::replace(&mut self.state, State::Start) {
            State::Start => {
                self.events.push_back(Event::Init);
                self.state = State::Page { token: String::new() };
            }
            State::Page { token } => {
                let page = self.api.page(&path, &self.selector, &token, T::read).await?;
                let scope = self.api.scope();
                let items = page.items.into_iter().filter(|item| scope.covers(item.namespace()));
                self.events.extend(items.map(Event::Apply));
                self.state = match page.next {
                    Some(token) => State::Page { token },
                    None => {
                        self.backoff.listed();
                        self.events.push_back(Event::InitDone);
                        State::Version(page.version)
                    }
                };
            }
            State::Version(version) => {
                let query = format!(
                    "watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_TIME_S}&resourceVersion={version}{}",
                    self.selector
                );
                match self.api.stream(&format!("{path}?{query}")).await {
                    Ok(body) => self.state = State::Watch { version, lines: Lines::new(body), since: Instant::now() },
                    Err(error) => return self.broken(version, error),
                }
            }
            State::Watch { version, mut lines, since } => match lines.next().await {
                Ok(Some(text)) => {
                    let mut version = version;
                    for line in lines::each(&text) {
                        self.handle(line, &mut version)?;
                    }
                    self.state = State::Watch { version, lines, since };
                }
                Ok(None) if since.elapsed() < WATCH_TIME_MIN => {
                    return self.broken(version, ApiError::stale("the watch ended immediately".to_owned()));
                }
                Ok(None) => self.state = State::Version(version),
                Err(error) => return self.broken(version, error.into()),
            },
        }
        Ok(())
    }

    /// Resumes at the same version after a failure, unless the server has compacted it.
    fn broken(&mut self, version: String, error: ApiError) -> Result<(), ApiError> {
        if error.code() != 410 {
            self.state = State::Version(version);
        }
        Err(error)
    }

    fn handle(&mut self, line: &[u8], version: &mut String) -> Result<(), ApiError> {
        let (event_type, text) = lines::event(line).map_err(unreadable)?;
        let object = match event_type {
            EventType::Bookmark => {
                let object: Slim<IgnoredAny, IgnoredAny> = object::value::from_bytes(text).map_err(unreadable)?;
                object.version().clone_into(version);
                return Ok(());
            }
            EventType::Error => return Err(ApiError::refused(serde_json::from_slice(text).map_err(unreadable)?)),
            EventType::Apply | EventType::Delete => T::read(text, self.api.decoded()).map_err(unreadable)?,
        };
        object.version().clone_into(version);
        if !self.api.scope().covers(object.namespace()) {
            return Ok(());
        }
        self.events.push_back(if event_type == EventType::Apply {
            Event::Apply(object)
        } else {
            Event::Delete(object)
        });
        Ok(())
    }
}

/// Decodes the metadata that [`Slim`] keeps.
fn metadata_fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Fields {
        name: Option<String>,
        namespace: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        uid: Option<String>,
        owner_references: Option<Vec<OwnerReference>>,
        finalizers: Option<Vec<String>>,
        deletion_timestamp: Option<Time>,
    }
    let fields = Fields::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: fields.name,
        namespace: fields.namespace,
        resource_version: fields.resource_version,
        generation: fields.generation,
        creation_timestamp: fields.creation_timestamp,
        uid: fields.uid,
        owner_references: fields.owner_references,
        finalizers: fields.finalizers,
        deletion_timestamp: fields.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

/// Backoff between attempts: short after a quiet time, doubling with each failure that follows soon.
#[derive(Default)]
struct WatchBackoff {
    failures: u32,
    last: Option<Instant>,
}

impl WatchBackoff {
    const BACKOFF: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(30) };
    /// A failure after a longer pause than this resets the backoff.
    const APART: Duration = Duration::from_secs(60);
    /// The cap on counted failures after a successful list: the server works, so a watcher that repeatedly
    /// falls behind waits less than 1 s.
    const FAILURES_WHEN_LISTED: u32 = 4;

    fn next(&mut self) -> Duration {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) > WatchBackoff::APART) {
            self.failures = 0;
        }
        self.last = Some(now);
        let wait = WatchBackoff::BACKOFF.after(self.failures);
        self.failures += 1;
        wait
    }

    fn listed(&mut self) {
        self.failures = self.failures.min(WatchBackoff::FAILURES_WHEN_LISTED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_with_failures_and_shrink_with_time() {
        let mut backoff = WatchBackoff::default();
        let first: Vec<Duration> = (0..12).map(|_| backoff.next()).collect();
        assert_eq!(
            first[..3],
            [WatchBackoff::BACKOFF.first, WatchBackoff::BACKOFF.first * 2, WatchBackoff::BACKOFF.first * 4]
        );
        assert_eq!(first[11], WatchBackoff::BACKOFF.max);
        backoff.listed();
        assert_eq!(backoff.next(), WatchBackoff::BACKOFF.first * 16);
        tokio::time::advance(WatchBackoff::APART * 2).await;
        assert_eq!(backoff.next(), WatchBackoff::BACKOFF.first);
    }
}
