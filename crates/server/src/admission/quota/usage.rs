//! The usage of quotas by objects.

use super::scope;
use crate::admission::storage_class::class_of;
use crate::object_store::Reader;
use object::access::Access;
use object::pod::amounts::{self, Amounts};
use object::quantity::Quantity;
use object::value::Key;
use object::{Status, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Core kinds that quotas also count by their plain name. Others have only `count/…`.
const PLAIN_NAMES: [&str; 7] =
    ["pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps", "persistentvolumeclaims"];
/// Resources that every container must specify if a quota limits them.
const EXPLICIT: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
const STORAGE_CLASS: &str = "storageclass.storage.k8s.io";
const ATTRIBUTES_CLASS: &str = "volumeattributesclass.storage.k8s.io";

/// A kind as quotas identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Countable<'a> {
    pub group: &'a str,
    pub plural: &'a str,
}

pub const PODS: Countable<'_> = Countable { group: "", plural: "pods" };
pub const CLAIMS: Countable<'_> = Countable { group: "", plural: "persistentvolumeclaims" };
const SERVICES: Countable<'_> = Countable { group: "", plural: "services" };

impl<'a> Countable<'a> {
    /// The kind whose objects use this quota resource.
    fn of_resource(resource: &'a str) -> Countable<'a> {
        if let Some(counted) = resource.strip_prefix("count/") {
            let (plural, group) = counted.split_once('.').unwrap_or((counted, ""));
            return Countable { group, plural };
        }
        if let Some(plain) = PLAIN_NAMES.iter().find(|plain| **plain == resource) {
            return Countable { group: "", plural: plain };
        }
        let of_class = [STORAGE_CLASS, ATTRIBUTES_CLASS].iter().any(|class| resource.contains(&format!(".{class}/")));
        if resource == "requests.storage" || of_class {
            CLAIMS
        } else if resource.starts_with("services.") {
            SERVICES
        } else {
            PODS
        }
    }

    fn prefix(self, namespace: &str) -> String {
        let group = if self.group.is_empty() { "core" } else { self.group };
        format!("/{group}/{}/{namespace}/", self.plural)
    }

    /// Whether the usage depends on more than the object's existence.
    fn is_weighed(self) -> bool {
        [PODS, CLAIMS, SERVICES].contains(&self)
    }

    /// Whether an update can change the usage of a quota.
    pub fn changed(self, before: Option<&Value>, after: Option<&Value>) -> bool {
        let (Some(before), Some(after)) = (before, after) else { return true };
        self.is_weighed() && (self.usage(before) != self.usage(after) || scope::changed(self, before, after))
    }

    /// The usage of one object, for every resource that a quota can name.
    pub fn usage(self, object: &Value) -> Amounts {
        let one = Quantity::from_int(1);
        let counted =
            if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) };
        let mut usage = Amounts::from([(format!("count/{counted}"), one)]);
        // A finished pod uses no compute resources; only its existence counts.
        let ended = self == PODS && matches!(object.text(&["status", "phase"]), "Succeeded" | "Failed");
        if ended {
            return usage;
        }
        if self.group.is_empty() && PLAIN_NAMES.contains(&self.plural) {
            usage.insert(self.plural.to_owned(), one);
        }
        match self {
            PODS => usage.extend(compute(&amounts::of_pod(object, "requests"), &amounts::of_pod(object, "limits"))),
            CLAIMS => usage.extend(storage(object)),
            SERVICES => usage.extend(network(object)),
            _ => {}
        }
        usage
    }

    /// Limited resources that containers of this pod do not specify, with the names of these containers.
    pub fn unspecified<'b>(self, object: &'b Value, quota: &Value) -> BTreeMap<&'static str, BTreeSet<&'b str>> {
        let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        if self != PODS {
            return missing;
        }
        let required: Vec<&str> = EXPLICIT.into_iter().filter(|name| quota.has(&["spec", "hard", name])).collect();
        for container in ["containers", "initContainers"].iter().flat_map(|list| object.items(&["spec", list])) {
            let requests = amounts::named(container, "requests");
            let usage = compute(&requests, &amounts::named(container, "limits"));
            for resource in required.iter().filter(|resource| !usage.contains_key(**resource)) {
                missing.entry(resource).or_default().insert(container.text(&["name"]));
            }
        }
        missing
    }
}

/// The usage of this quota by the objects of a namespace, for each limited resource.
pub fn count(reader: &Reader, namespace: &str, quota: &Value) -> Result<Amounts, Status> {
    let hard: BTreeSet<&str> = quota.members(&["spec", "hard"]).keys().map(Key::as_str).collect();
    let mut used: Amounts = hard.iter().map(|resource| ((*resource).to_owned(), Quantity::ZERO)).collect();
    let mut kinds: Vec<Countable<'_>> = hard.iter().map(|resource| Countable::of_resource(resource)).collect();
    kinds.sort_by_key(|kind| (kind.group, kind.plural));
    kinds.dedup();
    for kind in kinds {
        let prefix = kind.prefix(namespace);
        if kind.is_weighed() {
            for (object, _) in reader.list(&prefix)? {
                amounts::add(&mut used, &super::charged(kind, quota, Some(&object)));
            }
        } else if scope::matches(quota, kind, &Value::Null) {
            let number = Quantity::from_int(i64::try_from(reader.store.count(&prefix)).unwrap_or(i64::MAX));
            for (_, amount) in used.iter_mut().filter(|(resource, _)| Countable::of_resource(resource) == kind) {
                *amount = number;
            }
        }
    }
    Ok(used)
}

/// Requests and limits under the quota's resource names.
fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut usage = Amounts::new();
    for (name, amount) in requests {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if plain {
            usage.insert(name.clone(), *amount);
        }
        if plain || name.contains('/') {
            usage.insert(format!("requests.{name}"), *amount);
        }
    }
    for (name, amount) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            usage.insert(format!("limits.{name}"), *amount);
        }
    }
    usage
}

fn storage(claim: &Value) -> Amounts {
    let amount = |path: &[&str]| claim.at(path).and_then(Quantity::of).unwrap_or(Quantity::ZERO);
    let requested = amount(&["spec", "resources", "requests", "storage"]);
    // During an expansion, or after it was reduced, the backend may hold the larger of the two sizes.
    let size = requested.max(amount(&["status", "allocatedResources", "storage"]));
    let mut usage = Amounts::from([("requests.storage".to_owned(), size)]);
    let mut of_class = |class: &str, suffix: &str| {
        usage.insert(format!("{class}.{suffix}/requests.storage"), size);
        usage.insert(format!("{class}.{suffix}/persistentvolumeclaims"), Quantity::from_int(1));
    };
    let class = class_of(claim);
    if !class.is_empty() {
        of_class(class, STORAGE_CLASS);
    }
    for class in attributes_classes(claim) {
        of_class(class, ATTRIBUTES_CLASS);
    }
    usage
}

/// Every class of a claim: the requested, the current, and the target of a modification in progress.
pub fn attributes_classes(claim: &Value) -> BTreeSet<&str> {
    let paths: [&[&str]; 3] = [
        &["spec", "volumeAttributesClassName"],
        &["status", "currentVolumeAttributesClassName"],
        &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
    ];
    paths.iter().map(|path| claim.text(path)).filter(|class| !class.is_empty()).collect()
}

fn network(service: &Value) -> Amounts {
    let kind = service.text(&["spec", "type"]);
    let ports = i64::try_from(service.items(&["spec", "ports"]).len()).unwrap_or(i64::MAX);
    let mut usage = Amounts::new();
    if kind == "LoadBalancer" {
        usage.insert("services.loadbalancers".to_owned(), Quantity::from_int(1));
    }
    let allocates = service.at(&["spec", "allocateLoadBalancerNodePorts"]).and_then(Value::as_bool).unwrap_or(true);
    if kind == "NodePort" || (kind == "LoadBalancer" && allocates) {
        usage.insert("services.nodeports".to_owned(), Quantity::from_int(ports));
    }
    usage
}
