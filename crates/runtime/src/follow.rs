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
use crate::reader::Reader;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use lines::{Lines, Said};
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
pub enum Change<T> {
    /// A list begins: its objects follow, up to `Ready`. Objects that it does not contain are deleted.
    Restart,
    Seen(T),
    Gone(T),
    /// The list is complete.
    Ready,
}

impl<T> Change<T> {
    fn map<U>(self, take: impl FnOnce(T) -> U) -> Change<U> {
        match self {
            Change::Restart => Change::Restart,
            Change::Seen(object) => Change::Seen(take(object)),
            Change::Gone(object) => Change::Gone(take(object)),
            Change::Ready => Change::Ready,
        }
    }
}

/// Watches whole objects: all, or those that a field selector matches.
pub fn objects(
    api: &Api,
    resource: &Resource,
    fields: Option<&str>,
) -> impl Stream<Item = Change<Arc<Value>>> + Send + use<> {
    changes(api, resource, fields)
}

/// Watches metadata only.
pub fn metadata(api: &Api, resource: &Resource) -> impl Stream<Item = Change<ObjectMeta>> + Send + use<> {
    slim(api, resource).map(|change| change.map(|object: Slim<IgnoredAny, IgnoredAny>| object.metadata))
}

/// A few members of an object: its identity, and parts of spec and status.
#[derive(Clone, Debug, Deserialize)]
pub struct Slim<Spec, Status> {
    /// Name, versions, owners, finalizers and deletion time; see [`few`].
    #[serde(deserialize_with = "few")]
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
) -> impl Stream<Item = Change<Slim<Spec, Status>>> + Send + use<Spec, Status>
where
    Spec: DeserializeOwned + Default + Send + 'static,
    Status: DeserializeOwned + Default + Send + 'static,
{
    changes(api, resource, None)
}

/// What can be decoded from the text of an object.
trait Taken: Sized + Send + 'static {
    fn read(text: &[u8], reader: &Reader) -> Result<Self, serde_json::Error>;
    fn version(&self) -> &str;
    fn namespace(&self) -> &str;
}

impl Taken for Arc<Value> {
    fn read(text: &[u8], reader: &Reader) -> Result<Self, serde_json::Error> {
        reader.object(text)
    }
    fn version(&self) -> &str {
        self.text(&["metadata", "resourceVersion"])
    }
    fn namespace(&self) -> &str {
        object::access::namespace(self)
    }
}

impl<Spec, Status> Taken for Slim<Spec, Status>
where
    Spec: DeserializeOwned + Default + Send + 'static,
    Status: DeserializeOwned + Default + Send + 'static,
{
    fn read(text: &[u8], reader: &Reader) -> Result<Self, serde_json::Error> {
        match reader.known(text) {
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

fn changes<T: Taken>(
    api: &Api,
    resource: &Resource,
    fields: Option<&str>,
) -> impl Stream<Item = Change<T>> + Send + use<T> {
    // Boxed, because it moves with every step.
    let follower = Box::new(Follower {
        api: api.clone(),
        resource: resource.clone(),
        selector: fields.map(|fields| format!("&fieldSelector={}", escaped(fields))).unwrap_or_default(),
        at: At::Start,
        heard: VecDeque::new(),
        pauses: Pauses::default(),
    });
    futures::stream::unfold(follower, |mut follower| async move { Some((follower.next().await, follower)) })
}

/// Escapes a selector for a query string.
fn escaped(selector: &str) -> String {
    selector.replace('%', "%25").replace('=', "%3D").replace('!', "%21").replace(',', "%2C").replace('&', "%26")
}

struct Follower<T> {
    api: Api,
    resource: Resource,
    selector: String,
    at: At,
    /// Events that were read and not returned yet.
    heard: VecDeque<Change<T>>,
    pauses: Pauses,
}

/// The state of a watcher.
enum At {
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

impl<T: Taken> Follower<T> {
    async fn next(&mut self) -> Change<T> {
        loop {
            if let Some(change) = self.heard.pop_front() {
                return change;
            }
            if let Err(error) = self.advance().await {
                let resource = &self.resource.plural;
                match error.code() {
                    401 | 403 => tracing::warn!(%error, %resource, "Watch is not permitted; retrying"),
                    _ => tracing::debug!(%error, %resource, "Watch failed; retrying"),
                }
                tokio::time::sleep(self.pauses.next()).await;
            }
        }
    }

    /// Makes one step: reads a page, opens a watch, or reads from it.
    async fn advance(&mut self) -> Result<(), ApiError> {
        let path = self.resource.collection(self.api.reach().only().unwrap_or(""));
        match std::mem::replace(&mut self.at, At::Start) {
            At::Start => {
                self.heard.push_back(Change::Restart);
                self.at = At::Page { token: String::new() };
            }
            At::Page { token } => {
                let page = self.api.page(&path, &self.selector, &token, T::read).await?;
                let reach = self.api.reach();
                let items = page.items.into_iter().filter(|item| reach.covers(item.namespace()));
                self.heard.extend(items.map(Change::Seen));
                self.at = match page.next {
                    Some(token) => At::Page { token },
                    None => {
                        self.pauses.listed();
                        self.heard.push_back(Change::Ready);
                        At::Version(page.version)
                    }
                };
            }
            At::Version(version) => {
                let query = format!(
                    "watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_TIME_S}&resourceVersion={version}{}",
                    self.selector
                );
                match self.api.stream(&format!("{path}?{query}")).await {
                    Ok(body) => self.at = At::Watch { version, lines: Lines::new(body), since: Instant::now() },
                    Err(error) => return self.broken(version, error),
                }
            }
            At::Watch { version, mut lines, since } => match lines.next().await {
                Ok(Some(text)) => {
                    let mut version = version;
                    for line in lines::each(&text) {
                        self.hear(line, &mut version)?;
                    }
                    self.at = At::Watch { version, lines, since };
                }
                Ok(None) if since.elapsed() < WATCH_TIME_MIN => {
                    return self.broken(version, ApiError::stale("the watch ended immediately".to_owned()));
                }
                Ok(None) => self.at = At::Version(version),
                Err(error) => return self.broken(version, error.into()),
            },
        }
        Ok(())
    }

    /// Resumes at the same version after a failure, unless the server has compacted it.
    fn broken(&mut self, version: String, error: ApiError) -> Result<(), ApiError> {
        if error.code() != 410 {
            self.at = At::Version(version);
        }
        Err(error)
    }

    fn hear(&mut self, line: &[u8], version: &mut String) -> Result<(), ApiError> {
        let (said, text) = lines::event(line).map_err(unreadable)?;
        let object = match said {
            Said::Bookmark => {
                let object: Slim<IgnoredAny, IgnoredAny> = object::value::from_bytes(text).map_err(unreadable)?;
                object.version().clone_into(version);
                return Ok(());
            }
            Said::Error => return Err(ApiError::refused(serde_json::from_slice(text).map_err(unreadable)?)),
            Said::Seen | Said::Gone => T::read(text, self.api.reader()).map_err(unreadable)?,
        };
        object.version().clone_into(version);
        if !self.api.reach().covers(object.namespace()) {
            return Ok(());
        }
        self.heard.push_back(if said == Said::Seen { Change::Seen(object) } else { Change::Gone(object) });
        Ok(())
    }
}

/// Decodes the metadata that [`Slim`] keeps.
fn few<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Few {
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
    let few = Few::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: few.name,
        namespace: few.namespace,
        resource_version: few.resource_version,
        generation: few.generation,
        creation_timestamp: few.creation_timestamp,
        uid: few.uid,
        owner_references: few.owner_references,
        finalizers: few.finalizers,
        deletion_timestamp: few.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

/// Backoff between attempts: short after a quiet time, doubling with each failure that follows soon.
#[derive(Default)]
struct Pauses {
    failures: u32,
    last: Option<Instant>,
}

impl Pauses {
    const FIRST: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(30);
    /// A failure after a longer pause than this resets the backoff.
    const APART: Duration = Duration::from_secs(60);
    /// The cap on counted failures after a successful list: the server works, so a watcher that repeatedly
    /// falls behind waits less than 1 s.
    const FAILURES_WHEN_LISTED: u32 = 4;

    fn next(&mut self) -> Duration {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) > Pauses::APART) {
            self.failures = 0;
        }
        self.last = Some(now);
        let pause = Pauses::FIRST.saturating_mul(1 << self.failures.min(16)).min(Pauses::MAX);
        self.failures += 1;
        pause
    }

    fn listed(&mut self) {
        self.failures = self.failures.min(Pauses::FAILURES_WHEN_LISTED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_with_failures_and_shrink_with_time() {
        let mut pauses = Pauses::default();
        let first: Vec<Duration> = (0..12).map(|_| pauses.next()).collect();
        assert_eq!(first[..3], [Pauses::FIRST, Pauses::FIRST * 2, Pauses::FIRST * 4]);
        assert_eq!(first[11], Pauses::MAX);
        pauses.listed();
        assert_eq!(pauses.next(), Pauses::FIRST * 16);
        tokio::time::advance(Pauses::APART * 2).await;
        assert_eq!(pauses.next(), Pauses::FIRST);
    }
}
