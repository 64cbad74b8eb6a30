//! A test cluster with a driver: the directory driver behind its socket, with its call log and injected
//! faults.

use crate::pairs::*;
use crate::world::*;
use csi::directory::{Call, DirectoryDriver, Faults, Gate, Options, Serving};
use object::access::{Access, name, uid};
use object::{Value, json};
use runtime::csi::{DriverBackoff, Endpoint};
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub const DRIVER: &str = csi::directory::DEFAULT_NAME;
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
pub const PROVISIONER: &str = "csi-provisioner-controller";
pub const RESIZER: &str = "csi-resizer-controller";
pub const MONITOR: &str = "csi-health-monitor-controller";
const PATIENCE: Duration = Duration::from_secs(30);

/// The controllers that volumes need.
pub fn everything() -> String {
    format!("{},{PROVISIONER},{RESIZER}", all())
}

pub struct Storage {
    pub driver: Arc<DirectoryDriver>,
    serving: Option<Serving>,
    directory: TempDir,
}

/// Short backoffs, and long timeouts.
pub fn backoff() -> DriverBackoff {
    DriverBackoff {
        first: Duration::from_millis(5),
        longest: Duration::from_millis(50),
        longest_away: Duration::from_millis(20),
        rest: Duration::from_secs(3600),
        look: Duration::from_millis(200),
    }
}

pub fn options() -> Options {
    Options { durable: false, calls_kept: 100_000, ..Options::default() }
}

impl Storage {
    pub async fn new(options: Options) -> Storage {
        let directory = tempfile::tempdir().expect("a directory");
        let driver = DirectoryDriver::open(&directory.path().join("volumes"), options, Faults::default());
        let mut storage = Storage { driver: driver.expect("a driver"), serving: None, directory };
        storage.start().await;
        storage
    }

    pub async fn start(&mut self) {
        let socket = self.directory.path().join("csi.sock");
        self.serving = Some(Serving::start(self.driver.clone(), &socket).await.expect("a socket"));
    }

    pub async fn stop(&mut self) {
        self.serving.take().expect("it is served").stop().await;
    }

    /// Replaces the driver at the socket by another with its own volumes; returns the former one.
    pub async fn replace(&mut self, options: Options) -> Arc<DirectoryDriver> {
        let volumes = self.directory.path().join(&options.name);
        let driver = DirectoryDriver::open(&volumes, options, Faults::default()).expect("a driver");
        self.give_way_to(driver).await
    }

    /// Starts a driver at the socket, which has none.
    pub async fn take(&mut self, driver: Arc<DirectoryDriver>) {
        self.driver = driver;
        self.start().await;
    }

    pub async fn give_way_to(&mut self, driver: Arc<DirectoryDriver>) -> Arc<DirectoryDriver> {
        self.stop().await;
        let before = std::mem::replace(&mut self.driver, driver);
        self.start().await;
        before
    }

    /// Restarts the same driver in another version, with its volumes.
    pub async fn upgrade(&mut self, options: Options) {
        let nobody = Options { name: "nobody.example.com".to_owned(), ..options.clone() };
        drop(self.replace(nobody).await);
        self.stop().await;
        // The former driver may have the directory open for a moment longer.
        let open = || DirectoryDriver::open(&self.directory.path().join("volumes"), options.clone(), Faults::default());
        let mut opened = open();
        while opened.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            opened = open();
        }
        self.take(opened.expect("a driver")).await;
    }

    /// Moves the driver of another socket to this one.
    pub async fn move_here(&mut self, from: &mut Storage) {
        if from.serving.is_some() {
            from.stop().await;
        }
        if self.serving.is_some() {
            self.stop().await;
        }
        self.take(from.driver.clone()).await;
    }

    pub fn endpoint(&self) -> Endpoint {
        let socket = self.directory.path().join("csi.sock");
        let endpoint = Endpoint::parse(&socket.to_string_lossy()).expect("an endpoint");
        Endpoint { backoff: backoff(), ..endpoint }
    }

    /// The directory that the driver keeps a volume in.
    pub fn home(&self, volume: &Value) -> PathBuf {
        self.directory.path().join("volumes/volumes").join(volume.text(&["spec", "csi", "volumeHandle"]))
    }

    pub fn calls(&self, name: &str) -> Vec<Call> {
        self.driver.calls().named(name)
    }

    /// Waits until this many calls of a name were answered.
    pub async fn until_called(&self, name: &str, times: usize) -> Vec<Call> {
        let is_enough = |calls: &VecDeque<Call>| calls.iter().filter(|call| call.name == name).count() >= times;
        let waiting = self.driver.calls().wait_until(is_enough);
        let calls = tokio::time::timeout(PATIENCE, waiting).await;
        calls.unwrap_or_else(|_| panic!("{name} is not called {times} times: {:?}", self.driver.calls().all()));
        self.calls(name)
    }

    /// The handles of the driver's volumes.
    pub fn handles(&self) -> BTreeSet<String> {
        self.driver.volumes().into_iter().map(|(id, _)| id).collect()
    }
}

/// A test cluster whose controllers serve a driver.
pub async fn world_with(options: Options, controllers: &str) -> (World, Storage) {
    let (mut world, storage) = bare_world_with(options).await;
    world.start(controllers);
    (world, storage)
}

/// Without controllers.
pub async fn bare_world_with(options: Options) -> (World, Storage) {
    let storage = Storage::new(options).await;
    let mut world = World::bare().await;
    world.setup.drivers = vec![storage.endpoint()];
    (world, storage)
}

pub async fn world() -> (World, Storage) {
    world_with(options(), &everything()).await
}

/// A class of the driver, Immediate; `more` is merged into it.
pub fn class(name: &str, policy: &str, more: Value) -> Value {
    let class = json!({"reclaimPolicy": policy, "allowVolumeExpansion": true});
    a_class(name, DRIVER, object::patch::merge(&class, &more))
}

/// A claim of a class.
pub fn claim_of(name: &str, class: &str) -> Value {
    a_claim(name, "1Gi", of_class(class))
}

/// A class, a claim of it, and the bound PV with its record.
pub async fn provisioned(world: &World, policy: &str) -> (Value, Value) {
    world.create(class("c", policy, json!({}))).await;
    let claim = world.create(claim_of("claim", "c")).await;
    let volume = until_volume(world, &claim).await;
    (claim, volume)
}

/// Waits until a claim is bound and its PV is complete.
pub async fn until_volume(world: &World, claim: &Value) -> Value {
    let bound = until_phase(world, claim, "Bound").await;
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": bound.text(&["spec", "volumeName"])},
    });
    until_recorded(world, &volume).await
}

/// Waits until a PV is bound and its record says so, with the finalizer if its policy is Delete.
pub async fn until_recorded(world: &World, volume: &Value) -> Value {
    let is_right = |found: &Value| {
        let deletes = found.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
        let mark = if deletes { "/protected" } else { "" };
        let record = format!("{}/{}{mark}", uid(found), found.text(&["spec", "claimRef", "uid"]));
        phase(found) == "Bound"
            && found.text(&["metadata", "annotations", "mainstay.dev/provisioned"]) == record
            && has_finalizer(found) == deletes
    };
    world.until_is(volume, &format!("{} is on record", name(volume)), is_right).await
}

/// An object as in a backup.
pub fn backup(object: &Value) -> Value {
    let mut copy = object.clone();
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        copy.cut(&["metadata", field]);
    }
    copy
}

/// The objects of a Retain volume are lost, its data is not; the PV is restored with policy Delete.
pub async fn lose_and_restore(world: &World, claim: &Value, volume: &Value) -> Value {
    let saved = backup(volume);
    world.merge(volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await;
    world.until_is(volume, "without finalizer", |volume| !has_finalizer(volume)).await;
    world.delete(claim, "").await;
    world.delete(volume, "").await;
    for object in [claim, volume] {
        world.until_gone(object).await;
    }
    world.create(saved).await
}

pub fn has_finalizer(volume: &Value) -> bool {
    volume.items(&["metadata", "finalizers"]).iter().any(|finalizer| finalizer == FINALIZER)
}

/// A scheduled pod that uses a claim.
pub fn pod_with(name: &str, claim: &str) -> Value {
    let mut pod = pod("default", name);
    pod["spec"]["nodeName"] = json!("node");
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    pod
}

/// Force deletes an object.
pub async fn force_delete(world: &World, object: &Value) {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    let (code, answer) = world.send("DELETE", &path(object), "application/json", Some(&options)).await;
    assert!(code == 200 || code == 404, "{answer}");
}

/// The handles of all PVs.
pub async fn handles(world: &World) -> BTreeSet<String> {
    let list = world.get("/api/v1/persistentvolumes").await.expect("a list");
    let handle = |volume: &Value| volume.text(&["spec", "csi", "volumeHandle"]).to_owned();
    list.items(&["items"]).iter().map(handle).collect()
}

/// Waits until the driver has exactly the volumes of the PVs.
pub async fn until_in_step(world: &World, storage: &Storage, case: &str) {
    let check = async {
        loop {
            if storage.handles() == handles(world).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, check).await.is_err() {
        panic!("{case}: the driver has {:?}, objects name {:?}", storage.handles(), handles(world).await);
    }
}

/// Waits until an event about an object contains this text.
pub async fn until_told(world: &World, about: &Value, part: &str) {
    let is_told = async || told(world, about).await.iter().any(|(_, message)| message.contains(part));
    world.until(&format!("{part:?} is told"), || async { is_told().await.then_some(()) }).await;
}

/// The names of volumes with a journal entry.
pub async fn journal(world: &World) -> Vec<String> {
    entries(world).await.into_iter().map(|(volume, _)| volume).collect()
}

/// Writes a journal entry that no controller wrote.
pub async fn write_down(world: &World, key: &str, entry: &Value) {
    let mut map = config_map("kube-system", "mainstay-csi-journal");
    map["data"] = json!({key: entry.to_string()});
    if world.now(&map).await.is_some() {
        world.merge(&map, json!({"data": map["data"]})).await;
    } else {
        world.create(map).await;
    }
}

/// A deletion entry for a volume whose PV and claim are removed.
pub fn deletion(driver: &str, volume: &str, handle: &str) -> Value {
    json!({"Delete": {
        "volume": volume, "uid": "earlier", "version": "1", "gone": true, "driver": driver, "handle": handle, "class": "",
        "secret": null, "claim_namespace": "default", "claim_name": "nobody", "claim_uid": "nobody",
    }})
}

/// The volumes with a deletion entry.
pub async fn pending_deletions(world: &World) -> Vec<String> {
    let entries = entries(world).await.into_iter();
    entries.filter(|(_, text)| text.starts_with("{\"Delete\"")).map(|(volume, _)| volume).collect()
}

async fn entries(world: &World) -> Vec<(String, String)> {
    let map = world.get("/api/v1/namespaces/kube-system/configmaps/mainstay-csi-journal").await.unwrap_or_default();
    let texts = map.members(&["data"]).iter();
    texts.map(|(volume, text)| (volume.to_string(), text.as_str().unwrap_or("").to_owned())).collect()
}

/// Waits until the journal is empty.
pub async fn until_settled(world: &World) {
    let path = "/api/v1/namespaces/kube-system/configmaps/mainstay-csi-journal";
    let is_empty = |map: Option<Value>| map.is_none_or(|map| map.members(&["data"]).is_empty());
    world.until("the journal is empty", || async { is_empty(world.get(path).await).then_some(()) }).await;
}

/// Waits until a call has reached a gate.
pub async fn until_reached(gate: &Gate) {
    tokio::time::timeout(PATIENCE, gate.reached(1)).await.expect("the call comes");
}
