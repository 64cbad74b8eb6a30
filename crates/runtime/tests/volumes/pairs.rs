//! Objects of these tests, and waits for bound pairs.

use crate::world::*;
use object::access::{Access, name, uid};
use object::{Value, json, patch};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

pub const BINDER: &str = "persistentvolume-binder-controller";
pub const PROTECTION: &str = "persistentvolumeclaim-protection-controller,persistentvolume-protection-controller";

/// The controllers that volumes need.
pub fn all() -> String {
    format!("{BINDER},{PROTECTION}")
}

/// A PV without a class; `more` is merged into it.
pub fn a_volume(name: &str, size: &str, more: Value) -> Value {
    let mut volume = volume(name);
    volume["spec"]["capacity"]["storage"] = json!(size);
    volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    patch::merge(&volume, &more)
}

/// A claim of class `""`; `more` is merged into it.
pub fn a_claim(name: &str, size: &str, more: Value) -> Value {
    let mut claim = claim("default", name);
    claim["spec"]["storageClassName"] = json!("");
    claim["spec"]["resources"]["requests"]["storage"] = json!(size);
    patch::merge(&claim, &more)
}

pub fn a_class(name: &str, provisioner: &str, more: Value) -> Value {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner,
    });
    patch::merge(&class, &more)
}

pub fn of_class(class: &str) -> Value {
    json!({"spec": {"storageClassName": class}})
}

pub fn phase(object: &Value) -> &str {
    object.text(&["status", "phase"])
}

pub async fn until_phase(world: &World, object: &Value, want: &str) -> Value {
    world.until_is(object, &format!("{} is {want}", name(object)), |found| phase(found) == want).await
}

/// Waits until a claim and this PV are bound to each other.
pub async fn until_bound(world: &World, claim: &Value, volume: &str) {
    let is_bound = |claim: &Value| phase(claim) == "Bound" && claim.text(&["spec", "volumeName"]) == volume;
    world.until_is(claim, &format!("{} is bound to {volume}", name(claim)), is_bound).await;
    let found = world.get(&format!("/api/v1/persistentvolumes/{volume}")).await.expect("the volume");
    assert_eq!((phase(&found), found.text(&["spec", "claimRef", "uid"])), ("Bound", uid(claim)));
}

/// Waits until the binder has handled all earlier writes: a pair created later is bound.
pub async fn settle(world: &World) {
    let class = format!("settle-{}", world.store.revision());
    let free = world.create(a_volume(&class, "1Gi", of_class(&class))).await;
    let claim = world.create(a_claim(&class, "1Gi", of_class(&class))).await;
    until_bound(world, &claim, name(&free)).await;
    world.delete(&claim, "").await;
    world.delete(&free, "").await;
}

/// The events about an object: reason and message.
pub async fn told(world: &World, about: &Value) -> Vec<(String, String)> {
    let list = world.get("/api/v1/namespaces/default/events").await.expect("a list");
    let about_it = |event: &&Value| event.text(&["involvedObject", "uid"]) == uid(about);
    let texts = |event: &Value| (event.text(&["reason"]).to_owned(), event.text(&["message"]).to_owned());
    list.items(&["items"]).iter().filter(about_it).map(texts).collect()
}

/// A directory of this test, with a file, removed when this is dropped.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Directory {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let at = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new("/tmp").join(format!("mainstay-reclaim-{}-{at}", std::process::id()));
        std::fs::create_dir_all(path.join("data/deep")).expect("a directory");
        std::fs::write(path.join("data/file"), "data").expect("a file");
        Directory(path)
    }
    pub fn path(&self) -> String {
        self.0.join("data").to_string_lossy().into_owned()
    }
    pub fn exists(&self) -> bool {
        self.0.join("data").exists()
    }
    pub fn content(&self) -> usize {
        std::fs::read_dir(self.path()).expect("a directory").count()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
