//! Two sets with storage while the server is killed: `web` deletes the claims of replicas that are scaled down or
//! deleted, `keep` retains them.
//!
//! *stays*: the storage of every ordinal that is never deleted is the same through all kills: the claim, its volume,
//! and the data that the pod wrote. *leakless*: at the end every volume of the driver has a PV.

use crate::support::{PATIENCE, backend_volumes};
use crate::talk::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const REPLICAS_MAX: u64 = 4;

/// The claims that no round deletes: `web` always has at least one replica, and `keep` retains.
fn staying() -> impl Iterator<Item = String> {
    std::iter::once("data-web-0".to_owned()).chain((0..REPLICAS_MAX).map(|at| format!("data-keep-{at}")))
}

/// The expected state of the claims that must stay.
pub struct Storage {
    volumes: PathBuf,
    known: BTreeMap<String, Bound>,
}

#[derive(Debug, PartialEq, Eq)]
struct Bound {
    claim_uid: String,
    volume: String,
    volume_uid: String,
    handle: String,
}

impl Storage {
    pub fn new(data: &Path) -> Storage {
        Storage { volumes: data.join("volumes/volumes"), known: BTreeMap::new() }
    }

    /// Waits until the claims that must stay exist, records them, and writes data as a pod would.
    pub async fn remember(&mut self, client: &kube::Client) {
        for name in staying() {
            let path = format!("{CLAIMS}/{name}");
            let deadline = Instant::now() + PATIENCE;
            // The set creates its claims asynchronously.
            while !matches!(ask(client, "GET", &path, None).await, Answer::Done(claim) if claim["status"]["phase"] == "Bound")
            {
                assert!(Instant::now() < deadline, "{name} is not bound");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let bound = Bound::read(client, &name).await;
            let file = self.written(&bound);
            assert!(!file.exists(), "two claims have the volume {}", bound.volume);
            std::fs::write(file, &bound.claim_uid).expect("a volume can be written");
            self.known.insert(name, bound);
        }
    }

    /// stays: the recorded state is unchanged.
    pub async fn check(&self, client: &kube::Client) {
        for (name, before) in &self.known {
            assert_eq!(&Bound::read(client, name).await, before, "stays: the storage of {name}");
            let file = self.written(before);
            let found = std::fs::read_to_string(&file);
            assert!(
                found.as_ref().is_ok_and(|text| *text == before.claim_uid),
                "stays: {} is {found:?}",
                file.display()
            );
        }
    }

    fn written(&self, bound: &Bound) -> PathBuf {
        self.volumes.join(&bound.handle).join("data/written")
    }

    /// leakless: the sets are created and deleted. `keep` leaves its storage behind, for users to delete; nothing else
    /// is left.
    pub async fn end(mut self, client: &kube::Client, data: &Path) {
        for name in ["web", "keep"] {
            let set = format!("{SETS}/{name}");
            let wanted = done(client, "GET", &set, None).await["spec"]["replicas"].clone();
            until(client, &set, "all replicas are ready", |set| {
                let status = &set["status"];
                status["readyReplicas"] == wanted && status["updatedReplicas"] == wanted && status["replicas"] == wanted
            })
            .await;
        }
        let empty = |list: &Value| list["items"].as_array().is_some_and(Vec::is_empty);
        // In this order: when nothing of `web` is left, the garbage collector has received the deletion of `keep`.
        for name in ["keep", "web"] {
            done(client, "DELETE", &format!("{SETS}/{name}"), Some(&json!({"propagationPolicy": "Background"}))).await;
            until(client, &format!("{PODS}?labelSelector=app%3D{name}"), "the pods go", empty).await;
        }
        self.known.retain(|name, _| name != "data-web-0");
        let names = |items: &Value| -> BTreeSet<String> {
            let items = items["items"].as_array().into_iter().flatten();
            items.filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)).collect()
        };
        let claims: BTreeSet<String> = self.known.keys().cloned().collect();
        let volumes: BTreeSet<String> = self.known.values().map(|bound| bound.volume.clone()).collect();
        until(client, CLAIMS, "the claims of web go, and no others", |list| names(list) == claims).await;
        until(client, VOLUMES, "their volumes go, and no others", |list| names(list) == volumes).await;
        self.only_these_are_left(data, self.known.values().map(|bound| bound.handle.as_str()).collect()).await;
        self.check(client).await;
        for claim in &claims {
            done(client, "DELETE", &format!("{CLAIMS}/{claim}"), None).await;
        }
        until(client, VOLUMES, "the volumes go", empty).await;
        self.only_these_are_left(data, BTreeSet::new()).await;
    }

    async fn only_these_are_left(&self, data: &Path, handles: BTreeSet<&str>) {
        let paths: Vec<PathBuf> = handles.iter().map(|handle| self.volumes.join(handle)).collect();
        let deadline = Instant::now() + PATIENCE;
        while backend_volumes(data) != paths {
            assert!(Instant::now() < deadline, "leakless: {:?} are left, not {paths:?}", backend_volumes(data));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Bound {
    /// The volume of a claim that must exist, read from both sides of the binding.
    async fn read(client: &kube::Client, name: &str) -> Bound {
        let claim = done(client, "GET", &format!("{CLAIMS}/{name}"), None).await;
        let volume = claim["spec"]["volumeName"].as_str().unwrap_or_else(|| panic!("stays: {claim:#} has no volume"));
        let volume = done(client, "GET", &format!("{VOLUMES}/{volume}"), None).await;
        for object in [&claim, &volume] {
            assert_eq!(object["status"]["phase"], "Bound", "stays: {object:#}");
            assert!(object["metadata"]["deletionTimestamp"].is_null(), "stays: {object:#}");
        }
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{name}: {volume:#}")).to_owned();
        let claim_uid = text(&claim["metadata"]["uid"]);
        assert_eq!(volume["spec"]["claimRef"]["uid"], claim_uid, "stays: {name} has a volume of its own");
        Bound {
            claim_uid,
            volume: text(&volume["metadata"]["name"]),
            volume_uid: text(&volume["metadata"]["uid"]),
            handle: text(&volume["spec"]["csi"]["volumeHandle"]),
        }
    }
}

/// Both sets are scaled and updated from round to round. `keep` begins with all its replicas, and loses them one after
/// the other.
pub async fn change_sets(client: &kube::Client, kill: u64) {
    change_set(client, "web", "Delete", 1 + kill % REPLICAS_MAX, kill).await;
    change_set(client, "keep", "Retain", REPLICAS_MAX - kill % REPLICAS_MAX, kill).await;
}

async fn change_set(client: &kube::Client, name: &str, retention: &str, replicas: u64, kill: u64) {
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": retention, "whenDeleted": retention},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": format!("x:{kill}")}]},
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
            }],
        },
    });
    match ask(client, "POST", SETS, Some(&set)).await {
        Answer::Refused(409, _) => drop(done(client, "PUT", &format!("{SETS}/{name}"), Some(&set)).await),
        Answer::Done(_) => {}
        other => panic!("the set: {other:?}"),
    }
}

async fn until(client: &kube::Client, path: &str, what: &str, check: impl Fn(&Value) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = done(client, "GET", path, None).await;
        if check(&found) {
            return;
        }
        assert!(Instant::now() < deadline, "in vain: {what}\n{found:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
