//! Following a resource: its objects as they are and as they change, across broken connections and compactions.
//!
//! First a list, in pages; then a watch from where the list ends. A watch that ends goes on from the last version heard, and one that
//! fell too far behind starts over with a list. After a break the first pause is short: a controller is blind meanwhile.
//!
//! Whoever works in a few namespaces hears of nothing in others. One namespace is followed by itself; of several, everything is followed
//! and the rest left out, because a cache relies on hearing of all changes in their order, which only one watch tells.

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

/// What a follower hears.
#[derive(Debug)]
pub enum Change<T> {
    /// Everything heard before may be out of date: what is there now follows, up to `Ready`.
    Restart,
    Seen(T),
    Gone(T),
    /// All that was there has been heard.
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

/// Follows whole objects: all, or those that a field selector takes.
pub fn objects(
    api: &Api,
    resource: &Resource,
    fields: Option<&str>,
) -> impl Stream<Item = Change<Arc<Value>>> + Send + use<> {
    changes(api, resource, fields)
}

/// Follows metadata alone, for those who need no more.
pub fn metadata(api: &Api, resource: &Resource) -> impl Stream<Item = Change<ObjectMeta>> + Send + use<> {
    slim(api, resource).map(|change| change.map(|object: Slim<IgnoredAny, IgnoredAny>| object.metadata))
}

/// A few members of an object: who it is, and what was asked for of the rest.
#[derive(Clone, Debug, Deserialize)]
pub struct Slim<Spec, Status> {
    /// Who it is and since when, whose it is, and whether it is on its way out.
    #[serde(deserialize_with = "few")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Status,
}

/// Follows a few members of each object, for those who count. The rest is skipped where it is read, which costs a fraction of
/// taking it in.
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

/// What is read of the text of an object.
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

/// A selector as a part of a query.
fn escaped(selector: &str) -> String {
    selector.replace('%', "%25").replace('=', "%3D").replace('!', "%21").replace(',', "%2C").replace('&', "%26")
}

struct Follower<T> {
    api: Api,
    resource: Resource,
    selector: String,
    at: At,
    /// What was read and not told yet.
    heard: VecDeque<Change<T>>,
    pauses: Pauses,
}

/// Where a follower is.
enum At {
    Start,
    /// In the middle of a list.
    Page {
        token: String,
    },
    /// All up to this version is heard.
    Version(String),
    Watch {
        version: String,
        lines: Lines,
        since: Instant,
    },
}

/// A watch is asked to end after this time, so that what a server has forgotten about does not hang for ever.
const WATCH_TIME_S: u32 = 290;
/// A watch that ends without a word within this time has failed.
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
                    401 | 403 => tracing::warn!(%error, %resource, "may not be followed; trying again"),
                    _ => tracing::debug!(%error, %resource, "the watch broke; it starts over"),
                }
                tokio::time::sleep(self.pauses.next()).await;
            }
        }
    }

    /// Goes one step: a page, a connection, or what a connection brings.
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
                    return self.broken(version, ApiError::stale("the watch ended at once".to_owned()));
                }
                Ok(None) => self.at = At::Version(version),
                Err(error) => return self.broken(version, error.into()),
            },
        }
        Ok(())
    }

    /// Goes on from the same version after a break, unless the server does not know it any more.
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

/// Reads what [`Slim`] keeps of metadata.
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

/// The pauses between attempts: short after a quiet time, longer with each failure that follows soon.
#[derive(Default)]
struct Pauses {
    failures: u32,
    last: Option<Instant>,
}

impl Pauses {
    const FIRST: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(30);
    /// Failures further apart than this have nothing to do with each other.
    const APART: Duration = Duration::from_secs(60);
    /// A server that answers lists is well; who falls behind again and again then waits less than a second.
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
