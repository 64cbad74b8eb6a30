//! A fake storage that provisions, expands and modifies volumes.

use crate::sets::*;
use crate::world::*;
use object::access::{Access, name, terminating, uid};
use object::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use store::{Next, Store};
use tokio::task::JoinHandle;

/// A class whose volumes can be expanded.
pub fn growing_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "growing"},
        "provisioner": "example.com/storage", "allowVolumeExpansion": true,
    })
}

/// A set whose claims of 10Gi are updated in place.
pub fn in_place(replicas: i64) -> Value {
    let mut set = web_with_claims(replicas);
    set["spec"]["volumeClaimUpdatePolicy"] = json!("InPlace");
    set["spec"]["volumeClaimTemplates"][0]["spec"] = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "growing", "resources": {"requests": {"storage": "10Gi"}},
    });
    set
}

/// The status of a claim whose volume matches its request.
fn provided(claim: &Value) -> Value {
    let mut status = json!({
        "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": claim["spec"]["resources"]["requests"],
    });
    if let Some(class) = claim.at(&["spec", "volumeAttributesClassName"]) {
        status["currentVolumeAttributesClassName"] = class.clone();
    }
    status
}

impl World {
    /// A test cluster with a class that allows expansion, and a settled set.
    pub async fn settled(set: Value) -> (World, crate::kubelet::Kubelet, Storage, Value) {
        let (world, kubelet) = World::lively().await;
        let storage = Storage::start(&world);
        world.create(growing_class()).await;
        let set = world.create(set).await;
        let set = world.until_done(&set).await;
        (world, kubelet, storage, set)
    }

    /// Provisions or expands the volume of a claim.
    pub async fn provide(&self, claim: &str) {
        let claim = self.claim(claim).await;
        self.set_status(&claim, provided(&claim)).await;
    }

    /// Changes the first claim template.
    pub async fn change_template(&self, set: &Value, change: impl FnOnce(&mut Value)) -> Value {
        let mut set = self.now(set).await.expect("the set");
        change(&mut set["spec"]["volumeClaimTemplates"][0]);
        let templates = set["spec"]["volumeClaimTemplates"].clone();
        self.change(&set, json!({"volumeClaimTemplates": templates})).await
    }
    pub async fn grow(&self, set: &Value, size: &str) -> Value {
        self.change_template(set, |template| template["spec"]["resources"]["requests"]["storage"] = json!(size)).await
    }

    pub async fn size(&self, claim: &str) -> String {
        self.claim(claim).await.text(&["spec", "resources", "requests", "storage"]).to_owned()
    }
    pub async fn until_size(&self, claim: &str, size: &str) -> Value {
        let place = crate::world::claim("default", claim);
        self.until_is(&place, &format!("{claim} asks for {size}"), |claim| {
            claim.text(&["spec", "resources", "requests", "storage"]) == size
        })
        .await
    }
    pub async fn until_revision(&self, pod: &str, revision: &str) {
        let place = crate::world::pod("default", pod);
        self.until_is(&place, &format!("{pod} is at {revision}"), |pod| revision_of(pod) == revision).await;
    }
    pub async fn pod_uids(&self) -> Vec<String> {
        let pods = self.get(PODS).await.expect("a list");
        pods.items(&["items"]).iter().map(|pod| uid(pod).to_owned()).collect()
    }

    /// The claims that the controller changed, once per change.
    pub async fn applies(&self) -> Vec<String> {
        let mut applies = Vec::new();
        for asked in self.requests.take().await {
            let ours = &*asked.account == SETS && asked.method == "PATCH" && asked.code == 200;
            let is_check = asked.path.contains("dryRun");
            if ours && !is_check && asked.path.starts_with(CLAIMS) && asked.path.contains("fieldManager") {
                let place = asked.path.split('?').next().unwrap_or_default();
                applies.push(place.rsplit('/').next().unwrap_or_default().to_owned());
            }
        }
        applies
    }
}

pub fn revision_of(object: &Value) -> &str {
    object.text(&["metadata", "labels", "controller-revision-hash"])
}

/// Makes every volume match its claim, until it is dropped; except the claims that it is told to leave.
pub struct Storage {
    task: JoinHandle<()>,
    left: Arc<Mutex<BTreeSet<String>>>,
}

impl Storage {
    pub fn start(world: &World) -> Storage {
        let client = kube::Client::new(world.running.local(server::User::apiserver()), "default");
        let left = Arc::<Mutex<BTreeSet<String>>>::default();
        Storage { task: tokio::spawn(keep(client, world.store.clone(), left.clone())), left }
    }

    /// From now on ignores these claims.
    pub fn leave(&self, claims: &[&str]) {
        self.left.lock().expect("no panic").extend(claims.iter().map(|claim| (*claim).to_owned()));
    }

    /// Handles all claims again, from their next change on.
    pub fn resume(&self) {
        self.left.lock().expect("no panic").clear();
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(client: kube::Client, store: Arc<dyn Store>, left: Arc<Mutex<BTreeSet<String>>>) {
    let mut watcher = store.watch("/core/persistentvolumeclaims/", store.oldest()).expect("a watch");
    loop {
        let Next::Events { events, .. } = watcher.next(64).await else { panic!("nothing is forgotten") };
        let records = events.iter().filter_map(|event| event.current.as_ref());
        let claims = records.map(|record| serde_json::from_slice::<Value>(&record.value).expect("a claim"));
        let lacking = claims.filter(|claim| lacks(claim) && !left.lock().expect("no panic").contains(name(claim)));
        futures::future::join_all(lacking.map(|claim| provide(&client, claim))).await;
    }
}

fn lacks(claim: &Value) -> bool {
    let wanted = provided(claim);
    let has = |field: &str| claim["status"].get(field) == wanted.get(field);
    !terminating(claim) && !["phase", "capacity", "currentVolumeAttributesClassName"].iter().all(|field| has(field))
}

async fn provide(client: &kube::Client, claim: Value) {
    let patch = json!({"metadata": {"uid": uid(&claim)}, "status": provided(&claim)});
    let request = http::Request::patch(format!("{}/status", path(&claim)))
        .header("content-type", "application/merge-patch+json")
        .body(patch.to_string().into_bytes())
        .expect("a request");
    // The claim may be deleted by now.
    drop(client.request::<Value>(request).await);
}
