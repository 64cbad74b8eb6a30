//! Plays the kubelet: says how pods are.

use crate::world::{World, path};
use object::access::{Access, namespace};
use object::{Value, json};
use std::sync::Arc;
use store::{Next, Store};
use tokio::task::JoinHandle;

pub const READY_SINCE: &str = "2020-01-01T00:00:00Z";

/// The status of a running pod, ready or not, since then.
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
    pub async fn make_unready(&self, pod: &str) {
        self.play(pod, running(false, READY_SINCE)).await;
    }
    /// Waits for a pod in `default` and gives it a status.
    pub async fn play(&self, pod: &str, status: Value) {
        let pod = self.until_pod(pod).await;
        self.set_status(&pod, status).await;
    }
    pub async fn until_pod(&self, pod: &str) -> Value {
        let place = crate::world::pod("default", pod);
        self.until_is(&place, &format!("{pod} is there"), |_| true).await
    }
}

/// Makes every pod ready as soon as it is there, until it is dropped.
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
    let mut watcher = store.watch("", store.revision()).expect("a watch");
    loop {
        let request = http::Request::get("/api/v1/pods").body(Vec::new()).expect("a request");
        let pods = client.request::<Value>(request).await.expect("a list");
        for pod in pods.items(&["items"]).iter().filter(|pod| pod.text(&["status", "phase"]) == "Pending") {
            let mut pod = pod.clone();
            pod.put(&["apiVersion"], "v1");
            pod.put(&["kind"], "Pod");
            let patch = json!({"metadata": {"uid": object::access::uid(&pod)}, "status": running(true, READY_SINCE)});
            assert!(!namespace(&pod).is_empty());
            let request = http::Request::patch(format!("{}/status", path(&pod)))
                .header("content-type", "application/merge-patch+json")
                .body(patch.to_string().into_bytes())
                .expect("a request");
            // It may be gone by now.
            drop(client.request::<Value>(request).await);
        }
        if let Next::Compacted { .. } = watcher.next(usize::MAX).await {
            watcher = store.watch("", store.revision()).expect("a watch");
        }
    }
}
