//! Work of controllers with a missing permission: independent scenarios, and the permissions that each does
//! not need.

use crate::missing_permission::Stage;
use crate::pairs::*;
use crate::storage::{self, DRIVER, until_volume};
use crate::stories::{attachment, attributes, comes_back, unprotected, with_driver, with_secrets};
use crate::world::*;
use object::access::{Access, terminating};
use object::{Value, condition, json};
use std::pin::Pin;

type Told<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What a controller does, in independent scenarios.
pub struct Scenarios {
    pub begin: for<'a> fn(&'a mut Stage) -> Told<'a>,
    /// Permissions that only the first of some scenarios needs, in unspecified order.
    pub by_chance: &'static [&'static str],
    pub all: &'static [Scenario],
}

pub struct Scenario {
    pub name: &'static str,
    /// The permissions that it does not need, as verb and resource. It is not done without any other
    /// permission. Permissions to list and watch are named only if the result is certain, because what a
    /// controller sees without them depends on timing.
    pub without: &'static [&'static str],
    pub run: for<'a> fn(&'a World) -> Told<'a>,
}

/// A scenario, written as a function of the test cluster.
macro_rules! scenario {
    ($name:literal, $without:expr, |$world:ident| $run:expr) => {
        Scenario { name: $name, without: $without, run: |$world| Box::pin(async move { $run }) }
    };
}

macro_rules! begin {
    ($list:expr) => {
        |stage| {
            Box::pin(async move {
                stage.world.start($list);
            })
        }
    };
}

pub const COLLECTION: Scenarios = Scenarios {
    begin: begin!(GC),
    by_chance: &[],
    all: &[
        scenario!("a dependent is deleted", &["patch *"], |world| {
            let owner = world.create(config_map("default", "owner")).await;
            let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
            world.delete(&owner, "Background").await;
            world.until_gone(&dependent).await;
        }),
        scenario!("an orphan is released", &["delete *"], |world| {
            let owner = world.create(config_map("default", "orphaned")).await;
            let orphan = world.create(owned(secret("default", "orphan"), &[&owner])).await;
            world.delete(&owner, "Orphan").await;
            world.until_is(&orphan, "let go", |orphan| !orphan.has(&["metadata", "ownerReferences"])).await;
        }),
    ],
};

pub const NAMESPACE_DELETION: Scenarios = Scenarios {
    begin: begin!(NAMESPACES),
    by_chance: &[],
    all: &[
        scenario!("its content is deleted", &["update namespaces/finalize", "update namespaces/status"], |world| {
            let space = world.create(new_namespace("full")).await;
            let content = world.create(secret("full", "content")).await;
            world.delete(&space, "").await;
            world.until_gone(&content).await;
        }),
        scenario!("it reports what is left", &["delete *", "update namespaces/finalize"], |world| {
            let space = world.create(new_namespace("held")).await;
            world.create(held(config_map("held", "held"))).await;
            world.delete(&space, "").await;
            let says = |space: &Value| condition::is_true(space, "NamespaceContentRemaining");
            world.until_is(&space, "says what is left", says).await;
        }),
        scenario!("it goes", &[], |world| {
            let space = world.create(new_namespace("empty")).await;
            world.delete(&space, "").await;
            world.until_gone(&space).await;
        }),
    ],
};

pub const CERTIFICATES: Scenarios = Scenarios {
    begin: begin!("root-ca-certificate-publisher-controller"),
    by_chance: &[],
    all: &[
        scenario!("a deleted one is created again", &["update configmaps"], |world| {
            world.create(new_namespace("new")).await;
            comes_back(world, config_map("new", "kube-root-ca.crt")).await;
        }),
        scenario!("a changed one is repaired", &["create configmaps"], |world| {
            let certificate = config_map("default", "kube-root-ca.crt");
            world.merge(&certificate, json!({"data": {"x": "y"}})).await;
            world.until_is(&certificate, "repaired", |map| map["data"]["x"].is_null()).await;
        }),
    ],
};

pub const BUDGETS: Scenarios = Scenarios {
    begin: begin!("disruption-controller"),
    by_chance: &[],
    all: &[
        scenario!("pods are counted", &["get */scale"], |world| {
            let mut alone = pod("default", "alone");
            alone["metadata"]["labels"] = json!({"app": "alone"});
            world.create(alone).await;
            let spec = json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "alone"}}});
            let budget = world.create(a_budget("alone", spec)).await;
            world.until_is(&budget, "counted", |budget| budget.int(&["status", "expectedPods"]) == Some(1)).await;
        }),
        scenario!("a scale is asked for", &["update poddisruptionbudgets/status"], |world| {
            let mut owned = pod("default", "owned");
            let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "unknown", "uid": "u", "controller": true});
            owned["metadata"]["ownerReferences"] = json!([owner]);
            owned["metadata"]["labels"] = json!({"app": "owned"});
            world.create(owned).await;
            let spec = json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "owned"}}});
            world.create(a_budget("owned", spec)).await;
            let answered = |asked: &Asked| asked.path.ends_with("/scale") && asked.code == 404;
            while world.requests.count(answered) == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }),
    ],
};

fn a_budget(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"namespace": "default", "name": name}, "spec": spec,
    })
}

pub const UNREACHABLE_NODES: Scenarios = Scenarios {
    begin: begin!("node-lifecycle-controller"),
    by_chance: &[],
    all: &[
        scenario!("it is marked", &["delete pods", "patch nodes", "patch pods/status"], |world| {
            let node = a_node(world, "marked").await;
            let unknown =
                |node: &Value| condition::get(node, "Ready").is_some_and(|ready| ready["status"] == "Unknown");
            world.until_is(&node, "marked", unknown).await;
        }),
        scenario!("it is tainted", &["delete pods", "patch pods/status"], |world| {
            let node = a_node(world, "tainted").await;
            let tainted = |node: &Value| node["spec"]["taints"].to_string().contains("node.kubernetes.io/unreachable");
            world.until_is(&node, "tainted", tainted).await;
        }),
        scenario!("its pods are not ready", &["delete pods"], |world| {
            let here = a_pod_on(world, "unready").await;
            world.until_is(&here, "not ready", |pod| !condition::is_true(pod, "Ready")).await;
        }),
        scenario!("its pods are deleted", &[], |world| {
            let here = a_pod_on(world, "left").await;
            world.until_is(&here, "told to go", terminating).await;
        }),
    ],
};

/// A node that was ready once and never reports again.
async fn a_node(world: &World, name: &str) -> Value {
    let node = world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await;
    world.set_status(&node, json!({"conditions": [{"type": "Ready", "status": "True"}]})).await;
    node
}

async fn a_pod_on(world: &World, node: &str) -> Value {
    a_node(world, node).await;
    let mut here = pod("default", node);
    here["spec"]["nodeName"] = json!(node);
    let here = world.create(here).await;
    world.set_status(&here, json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})).await;
    here
}

pub const POD_COLLECTION: Scenarios = Scenarios {
    begin: begin!("pod-garbage-collector-controller"),
    by_chance: &[],
    all: &[
        scenario!("an orphan fails and is deleted", &["delete volumeattachments", "get persistentvolumes"], |world| {
            let mut orphan = pod("default", "orphan");
            orphan["spec"]["nodeName"] = json!("gone");
            let orphan = world.create(orphan).await;
            world.until_gone(&orphan).await;
        }),
        scenario!(
            "an unscheduled pod fails",
            &["delete pods", "delete volumeattachments", "get nodes", "get persistentvolumes"],
            |world| {
                let waits = world.create(held(pod("default", "waits"))).await;
                world.delete(&waits, "").await;
                world.until_is(&waits, "failed", |pod| pod["status"]["phase"] == "Failed").await;
            }
        ),
        scenario!("a volume is detached", &["delete pods", "patch pods/status"], |world| {
            world.create(volume("v")).await;
            let attachment = world.create(attachment("v", "away")).await;
            world.until_gone(&attachment).await;
        }),
    ],
};

pub const SETS: Scenarios = Scenarios {
    begin: |stage| {
        Box::pin(async move {
            stage.world.faults.guard_owners();
            stage.world.start("statefulset-controller");
        })
    },
    by_chance: &[],
    all: &[
        scenario!(
            "a replica is created",
            &[
                "delete persistentvolumeclaims",
                "get persistentvolumeclaims",
                "create persistentvolumeclaims",
                "delete controllerrevisions",
                "delete pods",
                "get statefulsets",
                "patch controllerrevisions",
                "patch persistentvolumeclaims",
                "patch pods",
                "update statefulsets/status"
            ],
            |world| {
                a_set(world, "made", 1, json!({})).await;
                world.until_is(&pod("made", "made-0"), "there", |_| true).await;
            }
        ),
        scenario!(
            "a replica is deleted",
            &[
                "delete persistentvolumeclaims",
                "get persistentvolumeclaims",
                "create persistentvolumeclaims",
                "create pods",
                "delete controllerrevisions",
                "get statefulsets",
                "patch controllerrevisions",
                "patch persistentvolumeclaims",
                "patch pods",
                "update statefulsets/status"
            ],
            |world| {
                let set = a_set(world, "goes", 0, json!({})).await;
                let replica = world.create(controlled(pod("goes", "goes-0"), &set)).await;
                world.until_gone(&replica).await;
            }
        ),
        scenario!(
            "the status is written",
            &[
                "delete persistentvolumeclaims",
                "get persistentvolumeclaims",
                "create persistentvolumeclaims",
                "create pods",
                "delete controllerrevisions",
                "delete pods",
                "get statefulsets",
                "patch controllerrevisions",
                "patch persistentvolumeclaims",
                "patch pods"
            ],
            |world| {
                let set = a_set(world, "told", 0, json!({})).await;
                world.until_is(&set, "told", |set| set.int(&["status", "observedGeneration"]) == Some(1)).await;
            }
        ),
        scenario!(
            "a pod is adopted",
            &[
                "delete persistentvolumeclaims",
                "get persistentvolumeclaims",
                "create controllerrevisions",
                "create persistentvolumeclaims",
                "create pods",
                "delete controllerrevisions",
                "patch controllerrevisions",
                "patch persistentvolumeclaims",
                "update statefulsets/status"
            ],
            |world| {
                world.create(new_namespace("adopts")).await;
                let orphan = world.create(pod("adopts", "adopts-0")).await;
                world.create(stateful_set("adopts", "adopts", 1)).await;
                world.until_is(&orphan, "adopted", |pod| pod.has(&["metadata", "ownerReferences"])).await;
            }
        ),
        scenario!(
            "a claim gets its owner",
            &[
                "get persistentvolumeclaims",
                "create persistentvolumeclaims",
                "create pods",
                "delete controllerrevisions",
                "delete pods",
                "patch controllerrevisions",
                "patch pods",
                "update statefulsets/status"
            ],
            |world| {
                world.create(new_namespace("keeps")).await;
                let data = world.create(claim("keeps", "data-keeps-0")).await;
                let template = json!({
                    "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                });
                let more = json!({
                    "volumeClaimTemplates": [template], "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"},
                });
                world.create(with_spec(stateful_set("keeps", "keeps", 1), more)).await;
                world.until_is(&data, "owned", |claim| claim.has(&["metadata", "ownerReferences"])).await;
            }
        ),
        scenario!(
            "a claim is created",
            &[
                "delete persistentvolumeclaims",
                "get persistentvolumeclaims",
                "create pods",
                "delete controllerrevisions",
                "delete pods",
                "patch controllerrevisions",
                "patch persistentvolumeclaims",
                "patch pods",
                "update statefulsets/status"
            ],
            |world| {
                let template = json!({
                    "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                });
                a_set(world, "claims", 1, json!({"volumeClaimTemplates": [template]})).await;
                world.until_is(&claim("claims", "data-claims-0"), "there", |_| true).await;
            }
        ),
        scenario!(
            "an old revision is deleted",
            &[
                "delete persistentvolumeclaims",
                "get persistentvolumeclaims",
                "create controllerrevisions",
                "create persistentvolumeclaims",
                "create pods",
                "delete pods",
                "get statefulsets",
                "patch controllerrevisions",
                "patch persistentvolumeclaims",
                "patch pods",
                "update statefulsets/finalizers",
                "update statefulsets/status"
            ],
            |world| {
                world.create(new_namespace("forgets")).await;
                let revision = json!({
                    "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {"spec": {}},
                    "metadata": {"namespace": "forgets", "name": "forgets-old", "labels": {"app": "web"}},
                });
                let revision = world.create(revision).await;
                world
                    .create(with_spec(stateful_set("forgets", "forgets", 0), json!({"revisionHistoryLimit": 0})))
                    .await;
                world.until_gone(&revision).await;
            }
        ),
    ],
};

/// A set in a namespace of its own, both with this name.
async fn a_set(world: &World, name: &str, replicas: i64, more: Value) -> Value {
    world.create(new_namespace(name)).await;
    world.create(with_spec(stateful_set(name, name, replicas), more)).await
}

fn with_spec(set: Value, more: Value) -> Value {
    object::patch::merge(&set, &json!({"spec": more}))
}

fn controlled(pod: Value, set: &Value) -> Value {
    let mut pod = owned(pod, &[set]);
    pod["metadata"]["ownerReferences"][0]["controller"] = json!(true);
    pod
}

pub const BINDING: Scenarios = Scenarios {
    begin: |stage| {
        Box::pin(async move {
            stage.world.patience = crate::stories::REAL_TIME_MAX;
            stage.world.setup.provisioning.host_path = true;
            stage.world.start(BINDER);
        })
    },
    by_chance: &[],
    all: &[
        scenario!(
            "a pair is bound",
            &[
                "create persistentvolumes",
                "delete persistentvolumes",
                "get nodes",
                "get persistentvolumeclaims",
                "get persistentvolumes"
            ],
            |world| {
                world.create(a_volume("v", "1Gi", of_class("pairs"))).await;
                let claim = world.create(unprotected(a_claim("c", "1Gi", of_class("pairs")))).await;
                until_bound(world, &claim, "v").await;
            }
        ),
        scenario!(
            "a volume is released",
            &[
                "create persistentvolumes",
                "delete persistentvolumes",
                "get nodes",
                "get persistentvolumes",
                "patch persistentvolumeclaims",
                "patch persistentvolumeclaims/status",
                "patch persistentvolumes"
            ],
            |world| {
                let of = json!({"spec": {"claimRef": {"namespace": "default", "name": "gone", "uid": "gone"}}});
                let left = world.create(a_volume("left", "1Gi", of)).await;
                until_phase(world, &left, "Released").await;
            }
        ),
        scenario!(
            "a volume is provisioned",
            &["delete persistentvolumes", "get nodes", "get persistentvolumeclaims", "patch persistentvolumes"],
            |world| {
                world.create(a_class("now", "kubernetes.io/host-path", json!({}))).await;
                let claim = world.create(unprotected(a_claim("n", "1Gi", of_class("now")))).await;
                until_phase(world, &claim, "Bound").await;
            }
        ),
        scenario!(
            "a volume is provisioned on a node",
            &["delete persistentvolumes", "get persistentvolumeclaims", "patch persistentvolumes"],
            |world| {
                world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})).await;
                world
                    .create(a_class(
                        "waits",
                        "kubernetes.io/host-path",
                        json!({"volumeBindingMode": "WaitForFirstConsumer"}),
                    ))
                    .await;
                let mut waits = unprotected(a_claim("w", "1Gi", of_class("waits")));
                waits["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "node"});
                let claim = world.create(waits).await;
                let mut bound = false;
                while !bound {
                    // After a failure the scheduler is asked to choose again.
                    let selected = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node"}}});
                    let chosen = world.merge(&claim, selected).await;
                    bound = phase(&chosen) == "Bound";
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            }
        ),
    ],
};

pub const CLAIMS_ARE_PROTECTED: Scenarios = Scenarios {
    begin: begin!("persistentvolumeclaim-protection-controller"),
    by_chance: &[],
    all: &[
        scenario!("an unused one gets its condition", &["patch persistentvolumeclaims"], |world| {
            let unused = world.create(claim("default", "unused")).await;
            world.set_status(&unused, json!({"phase": "Bound"})).await;
            world.until_is(&unused, "seen as unused", |claim| condition::get(claim, "Unused").is_some()).await;
        }),
        scenario!("a deleted one is removed", &["patch persistentvolumeclaims/status"], |world| {
            let deleted = world.create(claim("default", "deleted")).await;
            world.delete(&deleted, "").await;
            world.until_gone(&deleted).await;
        }),
    ],
};

pub const PROVISIONING: Scenarios = Scenarios {
    begin: |stage| Box::pin(async move { with_driver(stage, &storage::everything()).await }),
    // The first entry of the journal creates it.
    by_chance: &["patch configmaps"],
    all: &[
        scenario!(
            "a volume is provisioned",
            &[
                "create csistoragecapacities",
                "delete csistoragecapacities",
                "delete persistentvolumes",
                "get csidrivers",
                "get persistentvolumes",
                "get secrets",
                "get storageclasses",
                "get volumeattributesclasses",
                "patch persistentvolumeclaims",
                "patch persistentvolumes",
                "patch persistentvolumes/status",
                "update csistoragecapacities"
            ],
            |world| {
                world.create(storage::class("plain", "Retain", json!({}))).await;
                let claim = world.create(storage::claim_of("plain", "plain")).await;
                until_phase(world, &claim, "Bound").await;
            }
        ),
        scenario!(
            "one is provisioned with secrets",
            &[
                "create csistoragecapacities",
                "delete csistoragecapacities",
                "delete persistentvolumes",
                "get csidrivers",
                "get persistentvolumes",
                "get storageclasses",
                "get volumeattributesclasses",
                "patch persistentvolumeclaims",
                "patch persistentvolumes",
                "patch persistentvolumes/status",
                "update csistoragecapacities"
            ],
            |world| {
                world.create(storage::class("secret", "Retain", with_secrets())).await;
                let claim = world.create(storage::claim_of("secret", "secret")).await;
                until_phase(world, &claim, "Bound").await;
            }
        ),
        scenario!(
            "one is provisioned with attributes",
            &[
                "create csistoragecapacities",
                "delete csistoragecapacities",
                "delete persistentvolumes",
                "get csidrivers",
                "get persistentvolumes",
                "get secrets",
                "get storageclasses",
                "patch persistentvolumeclaims",
                "patch persistentvolumes",
                "patch persistentvolumes/status",
                "update csistoragecapacities"
            ],
            |world| {
                world.create(attributes("gold")).await;
                world.create(storage::class("gold", "Retain", json!({}))).await;
                let mut claim = storage::claim_of("gold", "gold");
                claim["spec"]["volumeAttributesClassName"] = json!("gold");
                let claim = world.create(claim).await;
                until_phase(world, &claim, "Bound").await;
            }
        ),
        scenario!(
            "the capacity is published",
            &[
                "create configmaps",
                "create persistentvolumes",
                "delete csistoragecapacities",
                "delete persistentvolumes",
                "get persistentvolumeclaims",
                "get persistentvolumes",
                "get secrets",
                "get storageclasses",
                "get volumeattributesclasses",
                "patch configmaps",
                "patch persistentvolumeclaims",
                "patch persistentvolumes",
                "patch persistentvolumes/status",
                "update csistoragecapacities"
            ],
            |world| {
                let spec = json!({"storageCapacity": true});
                let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": spec});
                world.create(driver).await;
                world.create(storage::class("w", "Delete", json!({"volumeBindingMode": "WaitForFirstConsumer"}))).await;
                let capacities = "/apis/storage.k8s.io/v1/namespaces/kube-system/csistoragecapacities";
                world
                    .until("its capacity is told", || async { world.get(capacities).await?["items"].get(0).cloned() })
                    .await;
            }
        ),
        scenario!(
            "a volume is deleted",
            &[
                "create csistoragecapacities",
                "delete csistoragecapacities",
                "get csidrivers",
                "get secrets",
                "get storageclasses",
                "get volumeattributesclasses",
                "patch persistentvolumeclaims",
                "patch persistentvolumes/status",
                "update csistoragecapacities"
            ],
            |world| {
                world.create(storage::class("deletes", "Delete", json!({}))).await;
                let claim = world.create(storage::claim_of("deletes", "deletes")).await;
                let made = until_volume(world, &claim).await;
                world.delete(&claim, "").await;
                world.until_gone(&made).await;
            }
        ),
    ],
};

pub const RESIZING: Scenarios = Scenarios {
    begin: |stage| Box::pin(async move { with_driver(stage, &storage::everything()).await }),
    by_chance: &[],
    all: &[
        scenario!("a volume grows", &["get persistentvolumeclaims", "get persistentvolumes", "get secrets"], |world| {
            world.create(storage::class("plain", "Delete", json!({}))).await;
            grows(world, "plain").await;
        }),
        scenario!("one grows with secrets", &["get persistentvolumeclaims", "get persistentvolumes"], |world| {
            world.create(storage::class("secret", "Delete", with_secrets())).await;
            grows(world, "secret").await;
        }),
        scenario!(
            "one is modified",
            &["get persistentvolumeclaims", "get persistentvolumes", "get secrets"],
            |world| {
                world.create(attributes("gold")).await;
                world.create(storage::class("gold", "Delete", json!({}))).await;
                let claim = world.create(storage::claim_of("gold", "gold")).await;
                until_volume(world, &claim).await;
                world.merge(&claim, json!({"spec": {"volumeAttributesClassName": "gold"}})).await;
                let is_gold = |claim: &Value| claim["status"]["currentVolumeAttributesClassName"] == "gold";
                world.until_is(&claim, "as wished", is_gold).await;
            }
        ),
    ],
};

async fn grows(world: &World, class: &str) {
    let claim = world.create(storage::claim_of(class, class)).await;
    until_volume(world, &claim).await;
    world.merge(&claim, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await;
    world.until_is(&claim, "larger", |claim| claim["status"]["capacity"]["storage"] == "2Gi").await;
}

pub const COUNTING: Scenarios = Scenarios {
    begin: begin!("state-metrics"),
    by_chance: &[],
    all: &[
        scenario!(
            "sets are counted",
            &[
                "list persistentvolumeclaims",
                "list persistentvolumes",
                "watch persistentvolumeclaims",
                "watch persistentvolumes"
            ],
            |world| {
                world.create(stateful_set("default", "web", 1)).await;
                until_counted(world, "kube_statefulset_replicas{").await;
            }
        ),
        scenario!(
            "claims are counted",
            &["list persistentvolumes", "list statefulsets", "watch persistentvolumes", "watch statefulsets"],
            |world| {
                world.create(claim("default", "c")).await;
                until_counted(world, "kube_persistentvolumeclaim_status_phase{").await;
            }
        ),
        scenario!(
            "volumes are counted",
            &["list persistentvolumeclaims", "list statefulsets", "watch persistentvolumeclaims", "watch statefulsets"],
            |world| {
                world.create(volume("v")).await;
                until_counted(world, "kube_persistentvolume_status_phase{").await;
            }
        ),
    ],
};

async fn until_counted(world: &World, part: &str) {
    let counted = || world.figures().lines().any(|line| line.contains(part) && !line.starts_with('#'));
    while !counted() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
