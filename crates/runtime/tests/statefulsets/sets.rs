//! Sets and their objects in tests.

use crate::kubelet::Kubelet;
use crate::world::*;
use object::access::{Access, name, uid};
use object::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

pub const SETS: &str = "statefulset-controller";
/// The controllers that the life of a set needs.
pub const ALL: &str = "statefulset-controller,garbage-collector-controller,persistentvolumeclaim-protection-controller";

pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
pub const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";

/// A set `web` in `default`, without claims.
pub fn web(replicas: i64) -> Value {
    stateful_set("default", "web", replicas)
}

/// A set `web` whose pods each have a claim `data`.
pub fn web_with_claims(replicas: i64) -> Value {
    let mut set = web(replicas);
    set["spec"]["volumeClaimTemplates"] = json!([claim_template("data")]);
    set
}

/// The set with its own labels: sets with common labels would share orphaned objects.
pub fn labelled(mut set: Value) -> Value {
    let labels = json!({"app": name(&set)});
    set["spec"]["selector"]["matchLabels"] = labels.clone();
    set["spec"]["template"]["metadata"]["labels"] = labels;
    set
}

pub fn claim_template(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

/// An owner reference that makes this set the controller.
pub fn controlling(owner: &Value, blocks: bool) -> Value {
    let mut reference = reference(owner, blocks);
    reference["controller"] = json!(true);
    reference
}

/// The set with changed members of its spec.
pub fn with(mut set: Value, spec: Value) -> Value {
    for (field, value) in spec.as_object().expect("fields") {
        set["spec"][field] = value.clone();
    }
    set
}

impl World {
    /// A test cluster with everything that a set needs, where every pod is ready at once.
    pub async fn lively() -> (World, Kubelet) {
        let world = World::with(ALL).await;
        let kubelet = Kubelet::start(&world);
        (world, kubelet)
    }

    /// Controllers that are started from now on use tokio's clock, which tests can pause; so does the
    /// returned function.
    pub fn virtual_time(&mut self) -> impl Fn() -> String + use<> {
        let (start, epoch) = (tokio::time::Instant::now(), jiff::Timestamp::now());
        let now = move || epoch + start.elapsed();
        self.setup.clock = std::sync::Arc::new(now);
        move || object::write::stamp(now())
    }

    pub async fn pods(&self) -> Vec<String> {
        self.names(PODS).await
    }
    pub async fn claims(&self) -> Vec<String> {
        self.names(CLAIMS).await
    }
    pub async fn until_pods(&self, wanted: &[&str]) {
        self.until(&format!("the pods are {wanted:?}"), || async { (self.pods().await == wanted).then_some(()) }).await;
    }
    pub async fn until_claims(&self, wanted: &[&str]) {
        self.until(&format!("the claims are {wanted:?}"), || async { (self.claims().await == wanted).then_some(()) })
            .await;
    }
    pub async fn claim(&self, name: &str) -> Value {
        self.get(&format!("{CLAIMS}/{name}")).await.unwrap_or_else(|| panic!("no claim {name}"))
    }
    pub async fn the_pod(&self, name: &str) -> Value {
        self.get(&format!("{PODS}/{name}")).await.unwrap_or_else(|| panic!("no pod {name}"))
    }

    /// Waits until a set has observed its spec, and all its replicas are ready and at its newest revision.
    pub async fn until_done(&self, set: &Value) -> Value {
        self.until_is(set, &format!("{} is done", name(set)), is_done).await
    }

    /// Waits until the controller has handled all earlier writes of sets, pods and claims: a marker set goes
    /// through its life, and each watch delivers events in order.
    pub async fn quiet(&self) {
        self.try_create(&new_namespace("marker")).await;
        let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}});
        static MARKERS: AtomicUsize = AtomicUsize::new(0);
        let marker_name = format!("marker-{}", MARKERS.fetch_add(1, Ordering::Relaxed));
        let mut marker = with(labelled(stateful_set("marker", &marker_name, 1)), policy);
        marker["spec"]["volumeClaimTemplates"] = json!([claim_template("data")]);
        let marker = self.create(marker).await;
        let pod = pod("marker", &format!("{}-0", name(&marker)));
        let pod = self.until_is(&pod, "a marker's pod", |_| true).await;
        // It owns its claim again when the loss was received.
        let claim = claim("marker", &format!("data-{}", name(&pod)));
        self.merge(&claim, json!({"metadata": {"ownerReferences": null}})).await;
        self.until_is(&claim, "a marker's claim", |claim| claim.has(&["metadata", "ownerReferences"])).await;
        self.set_status(&pod, crate::kubelet::running(true, crate::kubelet::READY_SINCE)).await;
        self.until_done(&marker).await;
        self.delete(&marker, "Orphan").await;
    }

    pub async fn change(&self, set: &Value, spec: Value) -> Value {
        self.merge(set, json!({"spec": spec})).await
    }
    pub async fn set_image(&self, set: &Value, image: &str) -> Value {
        let containers = json!([{"name": "main", "image": image}]);
        self.change(set, json!({"template": {"spec": {"containers": containers}}})).await
    }

    /// The messages of all events about an object, with their reasons.
    pub async fn told(&self, about: &Value) -> Vec<(String, String)> {
        let events = self.get("/api/v1/namespaces/default/events").await.expect("a list");
        let about = |event: &&Value| event.text(&["involvedObject", "uid"]) == uid(about);
        let text = |event: &Value, field: &str| event.text(&[field]).to_owned();
        let events = events.items(&["items"]).iter().filter(about);
        events.map(|event| (text(event, "reason"), text(event, "message"))).collect()
    }
    pub async fn until_told(&self, about: &Value, reason: &str, message: &str) {
        self.until(&format!("{reason}: {message}"), || async {
            let told = self.told(about).await;
            told.iter().any(|(a, b)| a == reason && b.contains(message)).then_some(())
        })
        .await;
    }
}

pub fn is_done(set: &Value) -> bool {
    let status = |field: &str| set.int(&["status", field]).unwrap_or(0);
    let replicas = set.int(&["spec", "replicas"]).unwrap_or(1);
    status("observedGeneration") == set.int(&["metadata", "generation"]).unwrap_or(0)
        && ["replicas", "readyReplicas", "updatedReplicas", "currentReplicas"]
            .iter()
            .all(|field| status(field) == replicas)
        && set.text(&["status", "currentRevision"]) == set.text(&["status", "updateRevision"])
}
