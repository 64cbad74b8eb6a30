//! Following a resource: its objects as they are and as they change, across broken connections and compactions.
//!
//! Lists come in pages and watches with bookmarks: that is kube's watcher. Added here: a short first pause after a break (a
//! controller is blind meanwhile), and no more of each object than is asked for.

use crate::api::Resource;
use crate::lean::Lean;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::{ApiResource, GroupVersionKind};
use kube::core::DynamicResourceScope;
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use object::Value;
use object::access::Access;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
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

/// Follows whole objects: all, or those that a field selector takes.
pub fn objects(
    client: &Client,
    resource: &Resource,
    fields: Option<&str>,
) -> impl Stream<Item = Change<Value>> + Send + use<> {
    let api: Api<Whole> = Api::all_with(client.clone(), &api_resource(resource));
    let config = match fields {
        Some(selector) => watcher::Config::default().fields(selector),
        None => watcher::Config::default(),
    };
    let pauses = Pauses::default();
    let failures = pauses.failures.clone();
    changes(watcher(api, config).backoff(pauses), resource.clone(), failures, |whole: Whole| whole.object)
}

/// Follows metadata alone, for those who need no more.
pub fn metadata(client: &Client, resource: &Resource) -> impl Stream<Item = Change<ObjectMeta>> + Send + use<> {
    slim_as(client, resource, |object: Slim<IgnoredAny, IgnoredAny>| object.metadata)
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
    client: &Client,
    resource: &Resource,
) -> impl Stream<Item = Change<Slim<Spec, Status>>> + Send + use<Spec, Status>
where
    Spec: DeserializeOwned + Default + Clone + Debug + Send + 'static,
    Status: DeserializeOwned + Default + Clone + Debug + Send + 'static,
{
    slim_as(client, resource, |slim| slim)
}

fn slim_as<Spec, Status, U>(
    client: &Client,
    resource: &Resource,
    take: fn(Slim<Spec, Status>) -> U,
) -> impl Stream<Item = Change<U>> + Send + use<Spec, Status, U>
where
    Spec: DeserializeOwned + Default + Clone + Debug + Send + 'static,
    Status: DeserializeOwned + Default + Clone + Debug + Send + 'static,
    U: Send,
{
    let api: Api<Slim<Spec, Status>> = Api::all_with(client.clone(), &api_resource(resource));
    let pauses = Pauses::default();
    let failures = pauses.failures.clone();
    changes(watcher(api, watcher::Config::default()).backoff(pauses), resource.clone(), failures, take)
}

fn api_resource(resource: &Resource) -> ApiResource {
    let kind = GroupVersionKind::gvk(&resource.group, &resource.version, &resource.kind);
    ApiResource::from_gvk_with_plural(&kind, &resource.plural)
}

fn changes<T: Send + 'static, U: Send>(
    stream: impl Stream<Item = watcher::Result<watcher::Event<T>>> + Send,
    resource: Resource,
    failures: Arc<AtomicU32>,
    take: fn(T) -> U,
) -> impl Stream<Item = Change<U>> + Send {
    stream.filter_map(move |event| {
        let change = match event {
            Ok(watcher::Event::Init) => Some(Change::Restart),
            Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object)) => Some(Change::Seen(take(object))),
            Ok(watcher::Event::Delete(object)) => Some(Change::Gone(take(object))),
            Ok(watcher::Event::InitDone) => {
                failures.fetch_min(Pauses::FAILURES_WHEN_LISTED, Ordering::Relaxed);
                Some(Change::Ready)
            }
            // kube warns by itself when it is refused for lack of rights.
            Err(error) => {
                tracing::debug!(%error, resource = %resource.plural, "the watch broke; it starts over");
                None
            }
        };
        futures::future::ready(change)
    })
}

/// An object as it came, without managed fields; of its metadata only the version is read a second time, which the watcher needs to go on.
#[derive(Clone, Debug)]
struct Whole {
    version: ObjectMeta,
    object: Value,
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Whole, D::Error> {
        let Lean(object) = Lean::deserialize(deserializer)?;
        let resource_version = object.at(&["metadata", "resourceVersion"]).and_then(Value::as_str).map(str::to_owned);
        Ok(Whole { version: ObjectMeta { resource_version, ..ObjectMeta::default() }, object })
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

/// Lets a type of ours be followed: what its resource is called is known only at run time.
macro_rules! follow_as {
    ([$($generic:ident),*] $type:ty, $metadata:ident) => {
        impl<$($generic),*> kube::Resource for $type {
            type DynamicType = ApiResource;
            type Scope = DynamicResourceScope;

            fn kind(of: &ApiResource) -> Cow<'_, str> {
                of.kind.as_str().into()
            }
            fn group(of: &ApiResource) -> Cow<'_, str> {
                of.group.as_str().into()
            }
            fn version(of: &ApiResource) -> Cow<'_, str> {
                of.version.as_str().into()
            }
            fn plural(of: &ApiResource) -> Cow<'_, str> {
                of.plural.as_str().into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.$metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.$metadata
            }
        }
    };
}

follow_as!([] Whole, version);
follow_as!([Spec, Status] Slim<Spec, Status>, metadata);

/// The pauses between attempts: short after a quiet time, longer with each failure that follows soon.
#[derive(Default)]
struct Pauses {
    failures: Arc<AtomicU32>,
    last: Option<Instant>,
}

impl Pauses {
    const FIRST: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(30);
    /// Failures further apart than this have nothing to do with each other.
    const APART: Duration = Duration::from_secs(60);
    /// A server that answers lists is well; who falls behind again and again then waits less than a second.
    const FAILURES_WHEN_LISTED: u32 = 4;
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) > Pauses::APART) {
            self.failures.store(0, Ordering::Relaxed);
        }
        self.last = Some(now);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        Some(Pauses::FIRST.saturating_mul(1 << failures.min(16)).min(Pauses::MAX))
    }
}

impl Backoff for Pauses {
    /// A watcher says that it starts over before it has got through: that is no success yet, so this resets nothing.
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_with_failures_and_shrink_with_time() {
        let mut pauses = Pauses::default();
        let first: Vec<Duration> = pauses.by_ref().take(12).collect();
        assert_eq!(first[..3], [Pauses::FIRST, Pauses::FIRST * 2, Pauses::FIRST * 4]);
        assert_eq!(first[11], Pauses::MAX);
        pauses.reset();
        assert_eq!(pauses.next(), Some(Pauses::MAX));
        tokio::time::advance(Pauses::APART * 2).await;
        assert_eq!(pauses.next(), Some(Pauses::FIRST));
    }
}
