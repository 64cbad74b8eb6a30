//! Objects for the planners in benchmarks, and in the guards (`crates/runtime/tests/guards`).

#![allow(dead_code, reason = "each user of this module needs a part of it")]

use object::access::{Access, name};
use object::{Gates, Value, json};
use plan::allowance::Allowance;
use plan::bind::{self, Place};
use plan::reclaim::Plugins;
use plan::statefulset::{Action, Seen, SeenPod, SetPlan, Stage, plan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A set with its pods, claims and revisions.
pub struct World {
    pub set: Value,
    pods: Vec<SeenPod>,
    claims: Vec<Value>,
    revisions: Vec<Value>,
}

impl World {
    /// A set whose replicas are all running and ready.
    pub fn settled(replicas: i64, policy: &str) -> World {
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"},
            "spec": {
                "replicas": replicas, "podManagementPolicy": policy, "serviceName": "web",
                "selector": {"matchLabels": {"app": "web"}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "main", "image": "nginx:1.27"}]},
                },
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
            },
        });
        let mut world = World { set, pods: Vec::new(), claims: Vec::new(), revisions: Vec::new() };
        loop {
            let plan = world.plan();
            if plan.stages.is_empty() && plan.status.is_none() {
                return world;
            }
            world.take(plan);
        }
    }

    pub fn plan(&self) -> SetPlan {
        let (pods, claims, revisions): (Vec<_>, Vec<_>, Vec<_>) =
            (self.pods.iter().collect(), self.claims.iter().collect(), self.revisions.iter().collect());
        let seen = Seen {
            set: &self.set,
            pods: &pods,
            claims: &claims,
            revisions: &revisions,
            contested: &BTreeSet::new(),
            allowance: Allowance::MAX,
        };
        plan(&seen, &Gates::default(), jiff::Timestamp::UNIX_EPOCH)
    }

    fn take(&mut self, plan: SetPlan) {
        for action in plan.prepare.iter().chain(plan.stages.iter().flat_map(Stage::actions)) {
            match action {
                Action::ConfirmSet { .. } => {}
                Action::CreateRevision(revision) => self.revisions.push(running(revision)),
                Action::CreateClaim { claim, .. } => self.claims.push(running(claim)),
                Action::CreatePod(pod) => self.pods.push(SeenPod::read(running(pod).into())),
                other => panic!("{other:?} was not expected"),
            }
        }
        if let Some(set) = plan.status {
            self.set = set;
        }
    }
}

fn running(object: &Value) -> Value {
    let mut object = object.clone();
    object.put(&["metadata", "uid"], name(&object).to_owned());
    object.put(&["status"], json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}));
    object
}

/// Free PVs of all sizes, for a claim to choose from.
pub struct Shelves {
    volumes: BTreeMap<(Place, String), Arc<Value>>,
    by_name: BTreeMap<String, Arc<Value>>,
    claim: Value,
    plugins: Plugins,
}

impl Shelves {
    /// `count` free PVs; the requested size is about in the middle.
    pub fn filled(count: usize) -> Shelves {
        let mut shelves = Shelves {
            volumes: BTreeMap::new(),
            by_name: BTreeMap::new(),
            claim: json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data", "namespace": "default", "uid": "u", "resourceVersion": "1"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "shelf", "volumeMode": "Filesystem",
                    "resources": {"requests": {"storage": "500Gi"}},
                },
            }),
            plugins: Plugins::default(),
        };
        for at in 0..count {
            let name = format!("volume-{at:06}");
            let volume = Arc::new(json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
                "spec": {
                    "capacity": {"storage": format!("{}Gi", 1 + at * 1000 / count)}, "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "shelf", "volumeMode": "Filesystem", "hostPath": {"path": "/nonexistent"},
                },
                "status": {"phase": "Available"},
            }));
            let place = bind::place(&volume).expect("it is free");
            shelves.volumes.insert((place, name.clone()), volume.clone());
            shelves.by_name.insert(name, volume);
        }
        shelves
    }

    /// The plan of the claim, which binds a PV.
    pub fn plan(&self) -> bind::Plan {
        let plan = bind::claim(&self.claim, self, &self.plugins);
        assert!(!plan.waits && !plan.actions.is_empty(), "the claim finds a PV: {plan:?}");
        plan
    }
}

impl bind::Seen for Shelves {
    fn volume(&self, name: &str) -> Option<Arc<Value>> {
        self.by_name.get(name).cloned()
    }
    fn claim(&self, _namespace: &str, _name: &str) -> Option<Arc<Value>> {
        None
    }
    fn class(&self, _name: &str) -> Option<Arc<Value>> {
        None
    }
    fn went_without(&self, _claim_uid: &str) -> bool {
        false
    }
    fn default_class(&self) -> Option<String> {
        None
    }
    fn reserved(&self, _namespace: &str, _claim: &str) -> Vec<Arc<Value>> {
        Vec::new()
    }
    fn first(&self, from: &Place, takes: &dyn Fn(&Value) -> bool) -> Option<Arc<Value>> {
        let shelf = self.volumes.range((from.clone(), String::new())..);
        let mut shelf = shelf.take_while(|((place, _), _)| place.shelf == from.shelf);
        shelf.find(|(_, volume)| takes(volume)).map(|(_, volume)| volume.clone())
    }
    fn waiting_pods(&self, _namespace: &str, _claim: &str) -> Vec<String> {
        Vec::new()
    }
}
