//! Following a resource: its objects as they are and as they change, across broken connections and compactions.

use crate::api::Resource;
use futures::{Stream, StreamExt};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use object::Value;

/// What a follower hears.
#[derive(Debug)]
pub enum Change {
    /// Everything heard before may be out of date: what is there now follows, up to `Ready`.
    Restart,
    Seen(Value),
    Gone(Value),
    /// All that was there has been heard.
    Ready,
}

/// Follows whole objects.
pub fn objects(client: &Client, resource: &Resource) -> impl Stream<Item = Change> + Send + use<> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &api_resource(resource));
    let stream = watcher(api, watcher::Config::default()).default_backoff();
    changes(stream, resource.clone(), |object: DynamicObject| serde_json::to_value(object))
}

/// Follows metadata alone, for those who need no more.
pub fn metadata(client: &Client, resource: &Resource) -> impl Stream<Item = Change> + Send + use<> {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &api_resource(resource));
    let stream = watcher(api, watcher::Config::default()).default_backoff();
    changes(stream, resource.clone(), |object: PartialObjectMeta<DynamicObject>| {
        Ok(serde_json::json!({"metadata": serde_json::to_value(object.metadata)?}))
    })
}

fn api_resource(resource: &Resource) -> ApiResource {
    let kind = GroupVersionKind::gvk(&resource.group, &resource.version, &resource.kind);
    ApiResource::from_gvk_with_plural(&kind, &resource.plural)
}

fn changes<T: Send + 'static>(
    stream: impl Stream<Item = watcher::Result<watcher::Event<T>>> + Send,
    resource: Resource,
    to_value: fn(T) -> serde_json::Result<Value>,
) -> impl Stream<Item = Change> + Send {
    stream.filter_map(move |event| {
        let change = match event {
            Ok(watcher::Event::Init) => Some(Change::Restart),
            Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object)) => {
                read(to_value(object), Change::Seen)
            }
            Ok(watcher::Event::Delete(object)) => read(to_value(object), Change::Gone),
            Ok(watcher::Event::InitDone) => Some(Change::Ready),
            Err(error) => {
                tracing::debug!(%error, resource = %resource.plural, "the watch broke; it starts over");
                None
            }
        };
        futures::future::ready(change)
    })
}

fn read(value: serde_json::Result<Value>, change: fn(Value) -> Change) -> Option<Change> {
    match value {
        Ok(value) => Some(change(value)),
        Err(error) => {
            tracing::error!(%error, "an object cannot be read");
            None
        }
    }
}
