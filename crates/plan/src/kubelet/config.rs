//! The Secrets and ConfigMaps that a pod refers to: missing ones delay it as on a real kubelet.
//!
//! A volume that cannot be set up keeps the whole pod in ContainerCreating. An environment variable that
//! cannot be read keeps its container in CreateContainerConfigError. Missing optional references delay
//! nothing.

use super::PodEvent;
use super::status::all_have_begun;
use object::Value;
use object::access::{Access, namespace, terminating};
use std::collections::{BTreeMap, BTreeSet};

/// This ConfigMap exists in every namespace, and nearly every pod mounts it with its token: it is not looked
/// up.
const ROOT_CA: &str = "kube-root-ca.crt";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    /// The name in `not found` messages.
    fn resource(self) -> &'static str {
        match self {
            Kind::ConfigMap => "configmap",
            Kind::Secret => "secret",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Kind::ConfigMap => "ConfigMap",
            Kind::Secret => "Secret",
        }
    }
}

/// The keys of each object that was looked up; `None` if it does not exist.
pub type Found = BTreeMap<(Kind, String), Option<BTreeSet<String>>>;

/// The keys of a Secret or ConfigMap.
pub fn keys_of(object: &Value) -> BTreeSet<String> {
    let fields = ["data", "binaryData"].into_iter();
    fields.flat_map(|field| object.members(&[field]).keys().map(|key| key.to_string())).collect()
}

/// What keeps a pod or its containers from starting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trouble {
    /// Events of volumes that cannot be set up.
    pub volumes: Vec<PodEvent>,
    /// Why a container cannot be created, by container name.
    pub containers: BTreeMap<String, String>,
}

impl Trouble {
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.containers.is_empty()
    }
}

struct Reference<'a> {
    kind: Kind,
    name: &'a str,
    keys: Vec<&'a str>,
    is_optional: bool,
    place: Place<'a>,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Environment { container: &'a str },
    Volume { name: &'a str },
}

/// The objects to look up for a pod; none once all its containers have started.
pub fn wanted(pod: &Value) -> BTreeSet<(Kind, String)> {
    if terminating(pod) || all_have_begun(pod) || matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed") {
        return BTreeSet::new();
    }
    let needed = references(pod).into_iter().filter(|reference| !reference.is_optional);
    needed.map(|reference| (reference.kind, reference.name.to_owned())).collect()
}

/// Returns what keeps the pod from starting. Objects that were not looked up are ignored.
pub fn trouble(pod: &Value, found: &Found) -> Trouble {
    let mut trouble = Trouble::default();
    for reference in references(pod) {
        let Some(keys) = found.get(&(reference.kind, reference.name.to_owned())).filter(|_| !reference.is_optional)
        else {
            continue;
        };
        let Some(why) = reference.why_not(keys.as_ref(), namespace(pod)) else { continue };
        match reference.place {
            Place::Environment { container } => drop(trouble.containers.entry(container.to_owned()).or_insert(why)),
            Place::Volume { name } => {
                let message = format!("MountVolume.SetUp failed for volume {name:?} : {why}");
                trouble.volumes.push(PodEvent::warning("FailedMount", message));
            }
        }
    }
    trouble
}

impl Reference<'_> {
    /// The message of a real kubelet.
    fn why_not(&self, keys: Option<&BTreeSet<String>>, namespace: &str) -> Option<String> {
        let Some(keys) = keys else { return Some(format!("{} {:?} not found", self.kind.resource(), self.name)) };
        let missing = self.keys.iter().find(|key| !keys.contains(**key))?;
        Some(match (self.place, self.kind) {
            (Place::Environment { .. }, kind) => {
                format!("couldn't find key {missing} in {} {namespace}/{}", kind.kind(), self.name)
            }
            (Place::Volume { .. }, Kind::ConfigMap) => format!("references non-existent config key: {missing}"),
            (Place::Volume { .. }, Kind::Secret) => format!("references non-existent secret key: {missing}"),
        })
    }
}

fn references(pod: &Value) -> Vec<Reference<'_>> {
    let mut all = Vec::new();
    let mut mounted: BTreeSet<&str> = BTreeSet::new();
    for list in ["initContainers", "containers"] {
        for container in pod.items(&["spec", list]) {
            environment(container, &mut all);
            mounted.extend(container.items(&["volumeMounts"]).iter().map(|mount| mount.text(&["name"])));
        }
    }
    // As on a real kubelet, a volume that no container mounts is not set up.
    for volume in pod.items(&["spec", "volumes"]).iter().filter(|volume| mounted.contains(volume.text(&["name"]))) {
        let place = Place::Volume { name: volume.text(&["name"]) };
        all.extend(source(volume.at(&["secret"]), "secretName", Kind::Secret, place));
        all.extend(source(volume.at(&["configMap"]), "name", Kind::ConfigMap, place));
        for projected in volume.items(&["projected", "sources"]) {
            all.extend(source(projected.at(&["secret"]), "name", Kind::Secret, place));
            let map = source(projected.at(&["configMap"]), "name", Kind::ConfigMap, place);
            all.extend(map.filter(|map| map.name != ROOT_CA));
        }
    }
    all
}

fn environment<'a>(container: &'a Value, all: &mut Vec<Reference<'a>>) {
    let place = Place::Environment { container: container.text(&["name"]) };
    for from in container.items(&["envFrom"]) {
        all.extend(source(from.at(&["configMapRef"]), "name", Kind::ConfigMap, place));
        all.extend(source(from.at(&["secretRef"]), "name", Kind::Secret, place));
    }
    for variable in container.items(&["env"]) {
        for (field, kind) in [("configMapKeyRef", Kind::ConfigMap), ("secretKeyRef", Kind::Secret)] {
            let Some(key) = variable.at(&["valueFrom", field]) else { continue };
            all.extend(
                source(Some(key), "name", kind, place).map(|it| Reference { keys: vec![key.text(&["key"])], ..it }),
            );
        }
    }
}

fn source<'a>(source: Option<&'a Value>, name: &str, kind: Kind, place: Place<'a>) -> Option<Reference<'a>> {
    let source = source?;
    let keys = source.items(&["items"]).iter().map(|item| item.text(&["key"])).collect();
    Some(Reference { kind, name: source.text(&[name]), keys, is_optional: source.flag(&["optional"]), place })
}
