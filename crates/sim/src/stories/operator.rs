//! A user: the operations and waits that stories are written with.

use crate::entropy::Rng;
use crate::final_state::{expected_handles, is_left_over};
use crate::world::World;
use object::access::{Access, controller, name, namespace, uid};
use object::{Value, condition, json};
use plan::invariant::Checker;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub const NAMESPACE: &str = "default";
pub const CLAIM: &str = "PersistentVolumeClaim";
pub const VOLUME: &str = "PersistentVolume";
/// Requests arrive at most this long after they were sent.
pub const LATE_MAX: Duration = Duration::from_secs(30);
pub type StoryResult = Result<(), String>;

pub struct Operator {
    pub world: World,
    pub rng: Rng,
}

/// A set with `replicas` replicas and one claim each. `more` is merged into its spec.
pub fn set(name: &str, replicas: i64, class: &str, more: Value) -> Value {
    let spec = json!({
        "replicas": replicas, "serviceName": "", "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "containers": [{
                    "name": "main", "image": "image:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "terminationGracePeriodSeconds": 2,
            },
        },
        "volumeClaimTemplates": [template("data", class, "1Gi")],
    });
    let spec = object::patch::merge(&spec, &more);
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": NAMESPACE, "name": name}, "spec": spec})
}

pub fn template(name: &str, class: &str, size: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": size}},
        },
    })
}

/// A claim without owner.
pub fn claim(name: &str, class: &str) -> Value {
    let spec = template(name, class, "1Gi")["spec"].clone();
    json!({"apiVersion": "v1", "kind": CLAIM, "metadata": {"namespace": NAMESPACE, "name": name}, "spec": spec})
}

pub fn retention(when_deleted: &str, when_scaled: &str) -> Value {
    json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": when_deleted, "whenScaled": when_scaled}})
}

/// Path of the collection that contains this object.
fn collection(object: &Value) -> String {
    let api_version = object.text(&["apiVersion"]);
    let root = if api_version.contains('/') { "apis" } else { "api" };
    let plural = match object.text(&["kind"]) {
        "Endpoints" => "endpoints".to_owned(),
        kind @ ("StorageClass" | "VolumeAttributesClass") => format!("{}es", kind.to_lowercase()),
        kind => format!("{}s", kind.to_lowercase()),
    };
    match namespace(object) {
        "" => format!("/{root}/{api_version}/{plural}"),
        namespace => format!("/{root}/{api_version}/namespaces/{namespace}/{plural}"),
    }
}

/// Identifies an object in the default namespace.
pub fn object_ref(kind: &str, name: &str) -> Value {
    object_in(NAMESPACE, kind, name)
}

pub fn object_in(namespace: &str, kind: &str, name: &str) -> Value {
    let api_version = match kind {
        "StatefulSet" => "apps/v1",
        _ => "v1",
    };
    match kind {
        "PersistentVolume" | "Namespace" | "Node" => {
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})
        }
        _ => json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name}}),
    }
}

impl Operator {
    pub fn new(world: World, rng: Rng) -> Operator {
        Operator { world, rng }
    }

    /// Creates the classes that stories use. `quick` and `kept` bind at once, `late` binds when a pod is scheduled.
    /// PVs of `kept` are retained. VolumeAttributesClasses are `silver` and `gold`.
    pub async fn prepare(&self) {
        for (name, policy, mode) in [
            ("quick", "Delete", "Immediate"),
            ("kept", "Retain", "Immediate"),
            ("late", "Delete", "WaitForFirstConsumer"),
        ] {
            self.create(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                "provisioner": csi::directory::DEFAULT_NAME, "reclaimPolicy": policy, "volumeBindingMode": mode,
                "allowVolumeExpansion": true,
            }))
            .await;
        }
        for (name, iops) in [("silver", "100"), ("gold", "900")] {
            self.create(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
                "driverName": csi::directory::DEFAULT_NAME, "parameters": {"iops": iops},
            }))
            .await;
        }
    }

    pub async fn create(&self, object: Value) -> bool {
        self.record(format!("create {} {}", object.text(&["kind"]), name(&object)));
        let (code, answer) = self.world.send("POST", &collection(&object), "application/json", Some(&object)).await;
        // 409: the object existed, or the response to an earlier attempt was lost.
        if code != 200 && code != 409 {
            self.record(format!("refused: {answer}"));
        }
        code == 200 || code == 409
    }

    /// Creates the object as soon as the terminating object of the same name is removed.
    pub async fn recreate(&self, object: Value) {
        let (kind, place, named) = (object.text(&["kind"]), namespace(&object), name(&object));
        self.record(format!("create {kind} {named} as soon as its name is free"));
        let there = || self.world.checker().get(kind, place, named).map(|it| uid(it).to_owned()).unwrap_or_default();
        let old = there();
        while self.world.send("POST", &collection(&object), "application/json", Some(&object)).await.0 != 200 {
            // The response to an earlier attempt may be lost because the server crashed.
            if ![old.as_str(), ""].contains(&there().as_str()) {
                return;
            }
            self.pause(Duration::from_millis(20)).await;
        }
    }

    pub async fn patch(&self, object: &Value, patch: Value) -> bool {
        self.record(format!("patch {} {} {patch}", object.text(&["kind"]), name(object)));
        let path = format!("{}/{}", collection(object), name(object));
        let (code, answer) = self.world.send("PATCH", &path, "application/merge-patch+json", Some(&patch)).await;
        if code != 200 {
            self.record(format!("refused: {answer}"));
        }
        code == 200
    }

    /// Deletes the object. With an empty `propagation` the server chooses.
    pub async fn delete(&self, object: &Value, propagation: &str) -> bool {
        self.record(format!("delete {} {} {propagation}", object.text(&["kind"]), name(object)));
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if !propagation.is_empty() {
            options["propagationPolicy"] = json!(propagation);
        }
        let path = format!("{}/{}", collection(object), name(object));
        let (code, _) = self.world.send("DELETE", &path, "application/json", Some(&options)).await;
        code == 200
    }

    /// Deletes a pod by force, which asserts that it no longer runs.
    pub async fn force_delete(&self, pod: &str) -> bool {
        self.record(format!("delete {pod} by force"));
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
        let path = format!("{}/{pod}", collection(&object_ref("Pod", pod)));
        self.world.send("DELETE", &path, "application/json", Some(&options)).await.0 == 200
    }

    /// Requests the eviction of a pod, as a drain of its node does.
    pub async fn evict(&self, pod: &str) -> bool {
        self.record(format!("evict {pod}"));
        let path = format!("{}/{pod}/eviction", collection(&object_ref("Pod", pod)));
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": NAMESPACE, "name": pod},
        });
        self.world.send("POST", &path, "application/json", Some(&eviction)).await.0 == 200
    }

    /// Sets an annotation that makes a simulated pod or node misbehave, or removes it.
    pub async fn behave(&self, object: &Value, how: &str, value: Option<&str>) -> bool {
        let annotation = format!("sim.mainstay.dev/{how}");
        self.patch(object, json!({"metadata": {"annotations": {annotation: value}}})).await
    }

    pub async fn scale(&self, set: &str, replicas: i64) {
        self.patch(&object_ref("StatefulSet", set), json!({"spec": {"replicas": replicas}})).await;
    }

    pub async fn pause(&self, length: Duration) {
        tokio::time::sleep(length).await;
    }

    pub async fn until(&self, what: &str, is_so: impl Fn(&Checker) -> bool) -> StoryResult {
        self.record(format!("until {what}"));
        self.world.until(what, is_so).await
    }

    /// Waits until a set has exactly its pods, all ready, none terminating, and its status agrees.
    pub async fn until_complete(&self, set: &str) -> StoryResult {
        self.until(&format!("{set} is complete"), |checker| is_complete(checker, NAMESPACE, set)).await
    }

    pub async fn until_gone(&self, object: &Value) -> StoryResult {
        let (kind, place, named) = (object.text(&["kind"]), namespace(object), name(object));
        self.until(&format!("{kind} {named} is removed"), |checker| {
            checker.get(kind, place, named).is_none_or(|found| is_left_over(&self.world, found))
        })
        .await
    }

    /// Waits until exactly these claims exist, all bound. A deleted claim may exist again if a late request created
    /// it, which no precondition can prevent (decision 21).
    pub async fn until_claims(&self, wanted: &[&str]) -> StoryResult {
        self.until(&format!("the claims are {wanted:?}"), |checker| {
            let is_meant = |claim: &&Arc<Value>| wanted.contains(&name(claim)) || !self.may_be_recreated(claim);
            let found: Vec<&Arc<Value>> = checker.all(CLAIM).filter(is_meant).collect();
            found.iter().map(|claim| name(claim)).eq(wanted.iter().copied())
                && found.iter().all(|claim| is_bound(claim) && !claim.has(&["metadata", "deletionTimestamp"]))
        })
        .await
    }

    /// Waits until the object has the finalizer.
    pub async fn until_finalizer(&self, object: &Value, finalizer: &str) -> StoryResult {
        let (kind, place, named) = (object.text(&["kind"]), namespace(object), name(object));
        self.until(&format!("{named} has the finalizer {finalizer}"), |checker| {
            checker.get(kind, place, named).is_some_and(|found| has_finalizer(found, finalizer))
        })
        .await
    }

    /// Waits until a claim is bound. Returns its PV.
    pub async fn volume_of(&self, named: &str) -> Result<Value, String> {
        self.until(&format!("{named} is bound"), |checker| {
            checker.get(CLAIM, NAMESPACE, named).is_some_and(|claim| is_bound(claim))
        })
        .await?;
        let claim = self.world.checker().get(CLAIM, NAMESPACE, named).cloned().unwrap_or_default();
        Ok(object_ref(VOLUME, claim.text(&["spec", "volumeName"])))
    }

    /// Handle of the PV's backend volume.
    pub fn handle(&self, volume: &Value) -> String {
        let found = self.world.checker().get(VOLUME, "", name(volume)).cloned().unwrap_or_default();
        plan::invariant::handle(&found).unwrap_or_default().into_owned()
    }

    /// Waits until a PV is removed and is not created again. A late request may create it again; then the provisioner
    /// keeps the data, and a user must delete the PV as `docs/volumes.md` says.
    pub async fn until_gone_for_good(&self, volume: &Value) -> StoryResult {
        self.until_gone(volume).await?;
        self.pause(LATE_MAX).await;
        if self.world.checker().get(VOLUME, "", name(volume)).is_some() {
            self.patch(volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await;
            self.delete(volume, "").await;
        }
        self.until_gone(volume).await
    }

    /// Waits until the driver has exactly these volumes, and those that are kept for an unknown policy.
    pub async fn until_handles(&self, wanted: &BTreeSet<String>) -> StoryResult {
        for _ in 0..600 {
            let mut there = expected_handles(&self.world);
            there.extend(wanted.intersection(&self.world.driver.handles()).cloned());
            if there == *wanted {
                return Ok(());
            }
            self.pause(Duration::from_secs(1)).await;
        }
        Err(format!("timed out waiting until the driver has {wanted:?}"))
    }

    pub fn may_be_recreated(&self, claim: &Value) -> bool {
        self.world.commit_checker.may_be_recreated(&format!("{}/{}", namespace(claim), name(claim)))
    }

    /// Waits until `count` PVs exist.
    pub async fn until_volumes(&self, count: usize) -> StoryResult {
        self.until(&format!("there are {count} volumes"), |checker| {
            let there = checker.all(VOLUME).filter(|volume| !is_left_over(&self.world, volume)).count();
            let claims = checker.all(CLAIM).filter(|claim| is_bound(claim) && self.may_be_recreated(claim)).count();
            // PVs of claims that a late request created again may or may not be included in the count.
            (count..=count + claims).contains(&there)
        })
        .await
    }

    /// Reads an object from the server.
    pub async fn read(&self, object: &Value) -> Value {
        let path = format!("{}/{}", collection(object), name(object));
        self.world.send("GET", &path, "application/json", None).await.1
    }

    /// Uid and PV name of each claim. Both stay the same as long as no data is lost.
    pub fn holdings(&self, claims: &[&str]) -> Vec<(String, String)> {
        let checker = self.world.checker();
        let found = claims.iter().filter_map(|named| checker.get(CLAIM, NAMESPACE, named));
        found.map(|claim| (uid(claim).to_owned(), claim.text(&["spec", "volumeName"]).to_owned())).collect()
    }

    pub fn uid(&self, kind: &str, named: &str) -> String {
        self.world.checker().get(kind, NAMESPACE, named).map(|object| uid(object).to_owned()).unwrap_or_default()
    }

    /// Fails if the condition does not hold now.
    pub fn expect(&self, what: &str, is_so: bool) -> StoryResult {
        if is_so { Ok(()) } else { Err(format!("expected that {what}")) }
    }

    fn record(&self, line: impl AsRef<str>) {
        self.world.log.record(format!("OPERATOR {}", line.as_ref()));
    }
}

pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object.items(&["metadata", "finalizers"]).iter().any(|it| it == finalizer)
}

pub fn is_bound(claim: &Value) -> bool {
    claim.text(&["status", "phase"]) == "Bound"
}

pub fn is_ready(pod: &Value) -> bool {
    !pod.has(&["metadata", "deletionTimestamp"])
        && condition::get(pod, "Ready").is_some_and(|ready| ready.text(&["status"]) == "True")
}

pub fn pods_of<'a>(checker: &'a Checker, place: &str, set: &str) -> Vec<&'a Arc<Value>> {
    let Some(set) = checker.get("StatefulSet", place, set) else { return Vec::new() };
    checker.all("Pod").filter(|pod| controller(pod).is_some_and(|owner| owner.text(&["uid"]) == uid(set))).collect()
}

pub fn is_complete(checker: &Checker, place: &str, named: &str) -> bool {
    let Some(set) = checker.get("StatefulSet", place, named) else { return false };
    let replicas = set.int(&["spec", "replicas"]).unwrap_or(1);
    let status = |member: &str| set.int(&["status", member]).unwrap_or(0);
    let start = set.int(&["spec", "ordinals", "start"]).unwrap_or(0);
    let pods = pods_of(checker, place, named);
    let in_range = |ordinal: i64| pods.iter().any(|pod| name(pod) == format!("{named}-{ordinal}") && is_ready(pod));
    set.int(&["metadata", "generation"]) == set.int(&["status", "observedGeneration"])
        && status("replicas") == replicas
        && status("readyReplicas") == replicas
        && i64::try_from(pods.len()) == Ok(replicas)
        && (start..start + replicas).all(in_range)
}
