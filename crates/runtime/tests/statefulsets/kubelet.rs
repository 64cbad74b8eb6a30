//! A fake kubelet that sets the status of pods.

use crate::world::{World, path};
use object::access::{Access, terminating, uid};
use object::{Value, json};
use std::sync::Arc;
use store::{Next, Store};
use tokio::task::JoinHandle;

pub const READY_SINCE: &str = "2020-01-01T00:00:00Z";

/// The status of a running pod, ready or not, since this time.
pub fn running(ready: bool, since: &str) -> Value {
    let ready = if ready { "True" } else { "False" };
    json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}],
    })
}

impl World {
    pub async fn make_ready(&self, pod: &str) {
        self.play(pod, running(true, READY_SINCE)).await;
    }
    /// Returns when the controller has received it: pods and sets have separate watches, and the next change
    /// of the set must not be received before this one.
    pub async fn make_unready(&self, pod: &str) {
        self.play(pod, running(false, READY_SINCE)).await;
        self.quiet().await;
    }
    /// Waits for a pod in `default` and sets its status.
    pub async fn play(&self, pod: &str, status: Value) {
        let pod = self.until_pod(pod).await;
        self.set_status(&pod, status).await;
    }
    pub async fn until_pod(&self, pod: &str) -> Value {
        let place = crate::world::pod("default", pod);
        self.until_is(&place, &format!("{pod} is there"), |_| true).await
    }
}

/// Makes every pod ready as soon as it exists, until it is dropped.
pub struct Kubelet {
    task: JoinHandle<()>,
}

impl Kubelet {
    pub fn start(world: &World) -> Kubelet {
        let client = kube::Client::new(world.running.local(server::User::apiserver()), "default");
        Kubelet { task: tokio::spawn(keep_ready(client, world.store.clone())) }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_ready(client: kube::Client, store: Arc<dyn Store>) {
    let mut watcher = store.watch("/core/pods/", store.oldest()).expect("a watch");
    loop {
        let Next::Events { events, .. } = watcher.next(64).await else { panic!("nothing is forgotten") };
        let records = events.iter().filter_map(|event| event.current.as_ref());
        let pods = records.map(|record| serde_json::from_slice::<Value>(&record.value).expect("a pod"));
        futures::future::join_all(pods.filter(is_new).map(|pod| make_ready(&client, pod))).await;
    }
}

fn is_new(pod: &Value) -> bool {
    pod.text(&["status", "phase"]) == "Pending" && !terminating(pod)
}

async fn make_ready(client: &kube::Client, pod: Value) {
    let patch = json!({"metadata": {"uid": uid(&pod)}, "status": running(true, READY_SINCE)});
    let request = http::Request::patch(format!("{}/status", path(&pod)))
        .header("content-type", "application/merge-patch+json")
        .body(patch.to_string().into_bytes())
        .expect("a request");
    // The pod may be deleted by now.
    drop(client.request::<Value>(request).await);
}
