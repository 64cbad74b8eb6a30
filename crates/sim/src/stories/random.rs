//! A user who does random things at random times, and cleans up at the end.

use super::gates::GATES;
use super::operator::{CLAIM, NAMESPACE, Operator, StoryResult, VOLUME, claim, object_ref, retention, set};
use super::trouble::MISBEHAVIOURS;
use object::access::{Access, name, terminating};
use object::{Gates, Value, json};
use std::sync::Arc;
use std::time::Duration;

const SETS: [&str; 2] = ["web", "db"];
const CLASSES: [&str; 2] = ["quick", "kept"];
const POLICIES: [&str; 2] = ["Retain", "Delete"];
const NODES: [&str; 2] = ["simulated-0", "simulated-1"];

pub async fn anything(mut me: Operator) -> StoryResult {
    let steps = 6 + me.rng.below(20);
    for _ in 0..steps {
        me.step().await;
        let pause = [0, 0, 20, 300, 2_000, 15_000][usize::try_from(me.rng.below(6)).unwrap_or(0)];
        let pause = Duration::from_millis(me.rng.below(pause + 1));
        me.pause(pause).await;
    }
    me.world.set_controller_gates(Gates::default());
    me.world.set_server_gates(Gates::default());
    me.world.kill_controllers();
    me.world.crash_server();
    me.tidy().await;
    Ok(())
}

impl Operator {
    async fn step(&mut self) {
        let set_name = self.rng.pick(&SETS);
        let web = object_ref("StatefulSet", set_name);
        match self.rng.below(34) {
            0..=3 => {
                let new = self.new_set(set_name);
                self.create(new).await;
            }
            4..=7 => {
                let replicas = i64::try_from(self.rng.below(5)).unwrap_or(0);
                self.scale(set_name, replicas).await;
            }
            8..=9 => {
                let image = format!("image:{}", self.rng.below(4));
                let containers =
                    json!([{"name": "main", "image": image, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]);
                self.patch(&web, json!({"spec": {"template": {"spec": {"containers": containers}}}})).await;
            }
            10..=11 => {
                let policy = retention(self.rng.pick(&POLICIES), self.rng.pick(&POLICIES));
                self.patch(&web, json!({"spec": policy})).await;
            }
            12 => {
                let start = self.rng.below(4);
                self.patch(&web, json!({"spec": {"ordinals": {"start": start}}})).await;
            }
            13..=14 => self.grow(set_name).await,
            15..=16 => {
                let propagation = self.rng.pick(&["Background", "Foreground", "Orphan", "Background"]);
                self.delete(&web, propagation).await;
            }
            17..=18 => self.delete_any("Pod").await,
            19 => self.delete_any(CLAIM).await,
            20 => self.delete_any(VOLUME).await,
            21 => {
                let policy = json!({"spec": {"persistentVolumeReclaimPolicy": self.rng.pick(&POLICIES)}});
                if let Some(volume) = self.any(VOLUME) {
                    self.patch(&object_ref(VOLUME, name(&volume)), policy).await;
                }
            }
            22 => {
                let (gate, on) = (self.rng.pick(&GATES), self.rng.chance(500));
                let gates = Gates::default().with(gate, on);
                if self.rng.chance(500) {
                    self.world.set_controller_gates(gates);
                    self.world.kill_controllers();
                } else {
                    self.world.set_server_gates(gates);
                    self.world.crash_server();
                }
            }
            23..=29 => self.disturb().await,
            30 => {
                let kind = self.rng.pick(&["RollingUpdate", "OnDelete"]);
                let rolling = (kind == "RollingUpdate").then(|| json!({"partition": self.rng.below(4)}));
                self.patch(&web, json!({"spec": {"updateStrategy": {"type": kind, "rollingUpdate": rolling}}})).await;
            }
            31 => {
                let class = self.rng.pick(&["silver", "gold"]);
                self.change_template(set_name, "volumeAttributesClassName", json!(class)).await;
            }
            _ => {
                let named = format!("lone-{}", self.rng.below(3));
                let claim = claim(&named, self.rng.pick(&CLASSES));
                self.create(claim).await;
            }
        }
    }

    fn new_set(&mut self, named: &str) -> Value {
        let more = json!({
            "podManagementPolicy": self.rng.pick(&["OrderedReady", "Parallel"]),
            "volumeClaimUpdatePolicy": self.rng.pick(&["InPlace", "OnClaimDelete"]),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1 + self.rng.below(2)}},
        });
        let policy = retention(self.rng.pick(&POLICIES), self.rng.pick(&POLICIES));
        let replicas = i64::try_from(self.rng.below(4)).unwrap_or(0);
        // Always the same class for a name: claims of an earlier set cannot follow a template of another class.
        let class = if named == "web" { "quick" } else { "late" };
        set(named, replicas, class, object::patch::merge(&more, &policy))
    }

    async fn grow(&mut self, set_name: &str) {
        let size = format!("{}Gi", 1 + self.rng.below(5));
        self.change_template(set_name, "resources", json!({"requests": {"storage": size}})).await;
    }

    async fn change_template(&mut self, set_name: &str, field: &str, value: Value) {
        let found = self.world.checker().get("StatefulSet", NAMESPACE, set_name).cloned();
        let Some(found) = found else { return };
        let mut templates = found["spec"]["volumeClaimTemplates"].clone();
        templates[0]["spec"][field] = value;
        self.patch(&object_ref("StatefulSet", set_name), json!({"spec": {"volumeClaimTemplates": templates}})).await;
    }

    /// Disturbs pods, nodes and claims without changing a set.
    async fn disturb(&mut self) {
        let node = object_ref("Node", self.rng.pick(&NODES));
        let pod = self.any("Pod").map(|pod| name(&pod).to_owned()).unwrap_or_default();
        match self.rng.below(7) {
            0..=1 => {
                let (how, value) = self.rng.pick(&MISBEHAVIOURS);
                self.behave(&object_ref("Pod", &pod), how, Some(value)).await;
            }
            2 => self.behave_well(&pod).await,
            3 => {
                let down = self.rng.chance(600).then_some("true");
                self.behave(&node, "down", down).await;
            }
            4 => drop(self.evict(&pod).await),
            5 => drop(self.force_delete(&pod).await),
            _ => {
                let size = format!("{}Gi", 1 + self.rng.below(6));
                if let Some(claim) = self.any(CLAIM) {
                    let larger = json!({"spec": {"resources": {"requests": {"storage": size}}}});
                    self.patch(&object_ref(CLAIM, name(&claim)), larger).await;
                }
            }
        }
    }

    async fn behave_well(&self, pod: &str) {
        let all: Value =
            MISBEHAVIOURS.iter().map(|(how, _)| (format!("sim.mainstay.dev/{how}"), Value::Null)).collect();
        self.patch(&object_ref("Pod", pod), json!({"metadata": {"annotations": all}})).await;
    }

    fn any(&mut self, kind: &str) -> Option<Arc<Value>> {
        let all: Vec<Arc<Value>> = self.world.checker().all(kind).cloned().collect();
        if all.is_empty() { None } else { Some(self.rng.pick(&all)) }
    }

    async fn delete_any(&mut self, kind: &str) {
        if let Some(found) = self.any(kind) {
            self.delete(&object_ref(kind, name(&found)), "").await;
        }
    }

    /// Removes whatever blocks others. A terminating object waits for the pod that uses it. A pod that was scheduled
    /// before its claim was replaced by one that waits for a consumer must be created again.
    async fn tidy(&self) {
        for node in NODES {
            self.behave(&object_ref("Node", node), "down", None).await;
        }
        for set in SETS {
            let rolls = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
            self.patch(&object_ref("StatefulSet", set), json!({"spec": {"updateStrategy": rolls}})).await;
        }
        let pods: Vec<Arc<Value>> = self.world.checker().all("Pod").cloned().collect();
        for pod in pods.iter().filter(|pod| pod.has(&["metadata", "annotations"])) {
            self.behave_well(name(pod)).await;
        }
        for _ in 0..20 {
            self.pause(Duration::from_secs(90)).await;
            let (volumes, claims, pods, stuck) = {
                let checker = self.world.checker();
                let placed = checker.all("Pod").filter(|pod| !pod.text(&["spec", "nodeName"]).is_empty());
                let waits = |pod: &&Arc<Value>| {
                    checker.all(CLAIM).any(|claim| plan::protect::uses(pod, name(claim)) && waits_for_consumer(claim))
                };
                let stuck: Vec<Arc<Value>> = placed.filter(waits).cloned().collect();
                let going = |kind: &str| -> Vec<Arc<Value>> {
                    checker.all(kind).filter(|object| terminating(object)).cloned().collect()
                };
                (going(VOLUME), going(CLAIM), checker.all("Pod").cloned().collect::<Vec<_>>(), stuck)
            };
            if volumes.is_empty() && claims.is_empty() && stuck.is_empty() {
                return;
            }
            for pod in &stuck {
                self.delete(&object_ref("Pod", name(pod)), "").await;
            }
            for volume in &volumes {
                self.delete(&object_ref(CLAIM, volume.text(&["spec", "claimRef", "name"])), "").await;
            }
            for claim in &claims {
                for pod in pods.iter().filter(|pod| plan::protect::holds(pod, claim)) {
                    self.delete(&object_ref("Pod", name(pod)), "").await;
                }
            }
        }
    }
}

/// Whether the claim waits for a consumer, and no node was selected for it.
fn waits_for_consumer(claim: &Value) -> bool {
    claim.text(&["status", "phase"]) == "Pending"
        && claim.text(&["spec", "storageClassName"]) == "late"
        && claim.text(&["metadata", "annotations", plan::bind::SELECTED_NODE]).is_empty()
}
