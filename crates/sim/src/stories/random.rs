//! An operator who does anything at any time, and tidies up in the end.

use super::operator::{CLAIM, NAMESPACE, Operator, Told, VOLUME, claim, retention, set, the};
use object::access::{Access, name, terminating};
use object::{Gates, Value, json};
use std::sync::Arc;
use std::time::Duration;

const SETS: [&str; 2] = ["web", "db"];
const CLASSES: [&str; 2] = ["quick", "kept"];
const POLICIES: [&str; 2] = ["Retain", "Delete"];
const GATES: [&str; 3] =
    ["StatefulSetAutoDeletePVC", "StatefulSetStartOrdinal", "StatefulSetUpdateVolumeClaimTemplate"];

pub async fn anything(mut me: Operator) -> Told {
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
        let web = the("StatefulSet", set_name);
        match self.rng.below(24) {
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
                    self.patch(&the(VOLUME, name(&volume)), policy).await;
                }
            }
            22 => {
                let (gate, on) = (self.rng.pick(&GATES), self.rng.chance(500));
                self.world.set_controller_gates(Gates::default().with(gate, on));
                self.world.kill_controllers();
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
        // Always the same for a name: claims of an earlier set cannot follow a template of another class.
        let class = if named == "web" { "quick" } else { "late" };
        set(named, replicas, class, object::patch::merge(&more, &policy))
    }

    async fn grow(&mut self, set_name: &str) {
        let found = self.world.checker().get("StatefulSet", NAMESPACE, set_name).cloned();
        let Some(found) = found else { return };
        let mut templates = found["spec"]["volumeClaimTemplates"].clone();
        let size = format!("{}Gi", 1 + self.rng.below(5));
        templates[0]["spec"]["resources"]["requests"]["storage"] = json!(size);
        self.patch(&the("StatefulSet", set_name), json!({"spec": {"volumeClaimTemplates": templates}})).await;
    }

    fn any(&mut self, kind: &str) -> Option<Arc<Value>> {
        let all: Vec<Arc<Value>> = self.world.checker().all(kind).cloned().collect();
        if all.is_empty() { None } else { Some(self.rng.pick(&all)) }
    }

    async fn delete_any(&mut self, kind: &str) {
        if let Some(found) = self.any(kind) {
            self.delete(&the(kind, name(&found)), "").await;
        }
    }

    /// Lets go of what holds others: what was told to go can go only when its user does, and a pod that got its node before its claim
    /// was replaced by one that waits for a pod has to be made anew.
    async fn tidy(&self) {
        for _ in 0..20 {
            self.pause(Duration::from_secs(90)).await;
            let (volumes, claims, pods, stuck) = {
                let checker = self.world.checker();
                let placed = checker.all("Pod").filter(|pod| !pod.text(&["spec", "nodeName"]).is_empty());
                let waits = |pod: &&Arc<Value>| {
                    checker.all(CLAIM).any(|claim| plan::protect::uses(pod, name(claim)) && is_unasked(claim))
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
                self.delete(&the("Pod", name(pod)), "").await;
            }
            for volume in &volumes {
                self.delete(&the(CLAIM, volume.text(&["spec", "claimRef", "name"])), "").await;
            }
            for claim in &claims {
                for pod in pods.iter().filter(|pod| plan::protect::uses(pod, name(claim))) {
                    self.delete(&the("Pod", name(pod)), "").await;
                }
            }
        }
    }
}

/// It waits for a pod to be given a node, and none was chosen for it.
fn is_unasked(claim: &Value) -> bool {
    claim.text(&["status", "phase"]) == "Pending"
        && claim.text(&["spec", "storageClassName"]) == "late"
        && claim.text(&["metadata", "annotations", plan::bind::SELECTED_NODE]).is_empty()
}
