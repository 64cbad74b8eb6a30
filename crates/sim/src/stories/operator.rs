//! A person at work, in the words of the stories.

use crate::end::{is_left_over, meant_handles};
use crate::entropy::Rng;
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
/// What somebody has sent arrives after so long at most.
pub const LATE_MAX: Duration = Duration::from_secs(30);
pub type Told = Result<(), String>;

pub struct Operator {
    pub world: World,
    pub rng: Rng,
}

/// A set of this story, of `replicas` replicas with one claim each; `more` is merged into its spec.
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

/// A claim of nobody's.
pub fn claim(name: &str, class: &str) -> Value {
    let spec = template(name, class, "1Gi")["spec"].clone();
    json!({"apiVersion": "v1", "kind": CLAIM, "metadata": {"namespace": NAMESPACE, "name": name}, "spec": spec})
}

pub fn retention(when_deleted: &str, when_scaled: &str) -> Value {
    json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": when_deleted, "whenScaled": when_scaled}})
}

/// Where objects of this one's kind are.
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

/// Names an object.
pub fn the(kind: &str, name: &str) -> Value {
    at(NAMESPACE, kind, name)
}

pub fn at(namespace: &str, kind: &str, name: &str) -> Value {
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

    /// Makes the classes that stories use: `quick` and `kept` bind at once, `late` when a pod comes; volumes of `kept` are retained. Attributes are
    /// `silver` or `gold`.
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
        self.say(format!("create {} {}", object.text(&["kind"]), name(&object)));
        let (code, answer) = self.world.send("POST", &collection(&object), "application/json", Some(&object)).await;
        // It was there already, or the answer to the first attempt got lost.
        if code != 200 && code != 409 {
            self.say(format!("refused: {answer}"));
        }
        code == 200 || code == 409
    }

    /// Creates as soon as what has the name, and is on its way out, is gone.
    pub async fn create_anew(&self, object: Value) {
        let (kind, place, named) = (object.text(&["kind"]), namespace(&object), name(&object));
        self.say(format!("create {kind} {named} as soon as its name is free"));
        let there = || self.world.checker().get(kind, place, named).map(|it| uid(it).to_owned()).unwrap_or_default();
        let old = there();
        while self.world.send("POST", &collection(&object), "application/json", Some(&object)).await.0 != 200 {
            // The answer to an earlier attempt may have gone down with the server.
            if ![old.as_str(), ""].contains(&there().as_str()) {
                return;
            }
            self.pause(Duration::from_millis(20)).await;
        }
    }

    pub async fn patch(&self, object: &Value, patch: Value) -> bool {
        self.say(format!("patch {} {} {patch}", object.text(&["kind"]), name(object)));
        let path = format!("{}/{}", collection(object), name(object));
        let (code, answer) = self.world.send("PATCH", &path, "application/merge-patch+json", Some(&patch)).await;
        if code != 200 {
            self.say(format!("refused: {answer}"));
        }
        code == 200
    }

    /// Deletes; an empty propagation leaves it to the server.
    pub async fn delete(&self, object: &Value, propagation: &str) -> bool {
        self.say(format!("delete {} {} {propagation}", object.text(&["kind"]), name(object)));
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if !propagation.is_empty() {
            options["propagationPolicy"] = json!(propagation);
        }
        let path = format!("{}/{}", collection(object), name(object));
        let (code, _) = self.world.send("DELETE", &path, "application/json", Some(&options)).await;
        code == 200
    }

    /// Deletes a pod by force: whoever does so says that it does not run any more.
    pub async fn delete_now(&self, pod: &str) -> bool {
        self.say(format!("delete {pod} by force"));
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
        let path = format!("{}/{pod}", collection(&the("Pod", pod)));
        self.world.send("DELETE", &path, "application/json", Some(&options)).await.0 == 200
    }

    /// Asks for a pod's eviction, as whoever drains a node does.
    pub async fn evict(&self, pod: &str) -> bool {
        self.say(format!("evict {pod}"));
        let path = format!("{}/{pod}/eviction", collection(&the("Pod", pod)));
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": NAMESPACE, "name": pod},
        });
        self.world.send("POST", &path, "application/json", Some(&eviction)).await.0 == 200
    }

    /// Has a pod or a node behave in a way, or well again.
    pub async fn behave(&self, object: &Value, how: &str, value: Option<&str>) -> bool {
        let annotation = format!("{}{how}", object::well_known::SIMULATION_PREFIX);
        self.patch(object, json!({"metadata": {"annotations": {annotation: value}}})).await
    }

    pub async fn scale(&self, set: &str, replicas: i64) {
        self.patch(&the("StatefulSet", set), json!({"spec": {"replicas": replicas}})).await;
    }

    pub async fn pause(&self, length: Duration) {
        tokio::time::sleep(length).await;
    }

    pub async fn until(&self, what: &str, is_so: impl Fn(&Checker) -> bool) -> Told {
        self.say(format!("until {what}"));
        self.world.until(what, is_so).await
    }

    /// Waits until a set has exactly its pods, all ready, none going, and its counts say so.
    pub async fn until_whole(&self, set: &str) -> Told {
        self.until(&format!("{set} is whole"), |checker| is_whole(checker, NAMESPACE, set)).await
    }

    pub async fn until_gone(&self, object: &Value) -> Told {
        let (kind, place, named) = (object.text(&["kind"]), namespace(object), name(object));
        self.until(&format!("{kind} {named} is gone"), |checker| {
            checker.get(kind, place, named).is_none_or(|found| is_left_over(&self.world, found))
        })
        .await
    }

    /// Waits until exactly these claims are there, and all are bound. One whose creation was on its way for so long that it had come and gone may be
    /// there again: nothing in a request can prevent that (decision 21).
    pub async fn until_claims(&self, wanted: &[&str]) -> Told {
        self.until(&format!("the claims are {wanted:?}"), |checker| {
            let is_meant = |claim: &&Arc<Value>| wanted.contains(&name(claim)) || !self.has_returned(claim);
            let found: Vec<&Arc<Value>> = checker.all(CLAIM).filter(is_meant).collect();
            found.iter().map(|claim| name(claim)).eq(wanted.iter().copied())
                && found.iter().all(|claim| is_bound(claim) && !claim.has(&["metadata", "deletionTimestamp"]))
        })
        .await
    }

    /// Waits until something has a finalizer.
    pub async fn until_held(&self, object: &Value, finalizer: &str) -> Told {
        let (kind, place, named) = (object.text(&["kind"]), namespace(object), name(object));
        self.until(&format!("{finalizer} holds {named}"), |checker| {
            checker.get(kind, place, named).is_some_and(|found| has_finalizer(found, finalizer))
        })
        .await
    }

    /// Waits until a claim is bound, and names its volume.
    pub async fn volume_of(&self, named: &str) -> Result<Value, String> {
        self.until(&format!("{named} is bound"), |checker| {
            checker.get(CLAIM, NAMESPACE, named).is_some_and(|claim| is_bound(claim))
        })
        .await?;
        let claim = self.world.checker().get(CLAIM, NAMESPACE, named).cloned().unwrap_or_default();
        Ok(the(VOLUME, claim.text(&["spec", "volumeName"])))
    }

    /// What a volume is called where its data is.
    pub fn handle(&self, volume: &Value) -> String {
        let found = self.world.checker().get(VOLUME, "", name(volume)).cloned().unwrap_or_default();
        plan::invariant::handle(&found).unwrap_or_default().into_owned()
    }

    /// Waits until a volume's object is gone, and nothing brings it back. A creation that was on its way for long may do so: then the provisioner
    /// keeps the data and waits for a person, who removes the object as `docs/guides/volumes.md` says.
    pub async fn until_gone_for_good(&self, volume: &Value) -> Told {
        self.until_gone(volume).await?;
        self.pause(LATE_MAX).await;
        if self.world.checker().get(VOLUME, "", name(volume)).is_some() {
            self.patch(volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await;
            self.delete(volume, "").await;
        }
        self.until_gone(volume).await
    }

    /// Waits until the driver has exactly these volumes, and what is kept because nobody can know, as people are told.
    pub async fn until_handles(&self, wanted: &BTreeSet<String>) -> Told {
        for _ in 0..600 {
            let mut there = meant_handles(&self.world);
            there.extend(wanted.intersection(&self.world.driver.handles()).cloned());
            if there == *wanted {
                return Ok(());
            }
            self.pause(Duration::from_secs(1)).await;
        }
        Err(format!("in vain: the driver has {wanted:?}"))
    }

    pub fn has_returned(&self, claim: &Value) -> bool {
        self.world.ledger.has_returned(&format!("{}/{}", namespace(claim), name(claim)))
    }

    /// Waits until there are so many volumes.
    pub async fn until_volumes(&self, count: usize) -> Told {
        self.until(&format!("there are {count} volumes"), |checker| {
            let there = checker.all(VOLUME).filter(|volume| !is_left_over(&self.world, volume)).count();
            let claims = checker.all(CLAIM).filter(|claim| is_bound(claim) && self.has_returned(claim)).count();
            // Those of claims that came once more may be meant, or not.
            (count..=count + claims).contains(&there)
        })
        .await
    }

    /// An object as the server has it.
    pub async fn read(&self, object: &Value) -> Value {
        let path = format!("{}/{}", collection(object), name(object));
        self.world.send("GET", &path, "application/json", None).await.1
    }

    /// Which volumes these claims have: uids of claims and names of volumes, which stay the same as long as nobody loses data.
    pub fn holdings(&self, claims: &[&str]) -> Vec<(String, String)> {
        let checker = self.world.checker();
        let found = claims.iter().filter_map(|named| checker.get(CLAIM, NAMESPACE, named));
        found.map(|claim| (uid(claim).to_owned(), claim.text(&["spec", "volumeName"]).to_owned())).collect()
    }

    pub fn uid(&self, kind: &str, named: &str) -> String {
        self.world.checker().get(kind, NAMESPACE, named).map(|object| uid(object).to_owned()).unwrap_or_default()
    }

    /// What must be so now.
    pub fn expect(&self, what: &str, is_so: bool) -> Told {
        if is_so { Ok(()) } else { Err(format!("it is not so: {what}")) }
    }

    fn say(&self, line: impl AsRef<str>) {
        self.world.log.say(format!("OPERATOR {}", line.as_ref()));
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

pub fn is_whole(checker: &Checker, place: &str, named: &str) -> bool {
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
