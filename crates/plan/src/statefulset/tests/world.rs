//! A model: a namespace with one set, the server's write rules, a kubelet, a collector and protection, driven by tests.

use crate::allowance::Allowance;
use crate::finalizers;
use crate::statefulset::{Action, Seen, SeenPod, SetEvent, SetPlan, Stage, invariant, plan};
use jiff::{SignedDuration, Timestamp};
use object::access::{Access, controller, name, terminating, uid};
use object::{Gates, Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub type Objects = BTreeMap<String, Value>;

#[derive(Clone, Debug)]
pub struct World {
    pub set: Option<Value>,
    pub pods: Objects,
    pub claims: Objects,
    pub revisions: Objects,
    pub now: Timestamp,
    pub gates: Gates,
    /// The recorded events, in order.
    pub events: Vec<SetEvent>,
    /// The creations and deletions of pods by the planner, in order: `+web-0`, `-web-0`.
    pub log: Vec<String>,
    /// Claims that a policy or a user allows to be deleted.
    pub doomed: BTreeSet<String>,
    /// Claims whose changes the server refuses.
    pub refused: BTreeSet<String>,
    /// Claims whose volumes cannot be expanded or modified.
    pub stuck: BTreeSet<String>,
    /// Claim names that belong to another set, too.
    pub contested: BTreeSet<String>,
    pub allowance: Allowance,
    /// Server-side applies to existing claims, in order.
    pub applied: Vec<String>,
    /// Claims may be owned by the set, according to the plans so far.
    bound_to_set: bool,
    version: u64,
}

/// Faults during a plan; actions are counted from 0 over the whole plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    /// The controller stops before this action.
    pub crash: Option<usize>,
    /// This action fails.
    pub fail: Option<usize>,
    /// Counts that can wait are not written.
    pub counts_wait: bool,
}

/// A set with a claim template, as a server returns it.
pub fn set(replicas: i64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "a", "uid": "set-1", "resourceVersion": "1", "generation": 1},
        "spec": {
            "replicas": replicas,
            "serviceName": "web",
            "podManagementPolicy": "OrderedReady",
            "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app": "web"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "v1"}]},
            },
            "volumeClaimTemplates": [{
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }],
        },
        "status": {"replicas": 0, "availableReplicas": 0},
    })
}

impl World {
    /// With an OrderedReady set of this many replicas.
    pub fn new(replicas: i64) -> World {
        World::of(set(replicas))
    }

    pub fn of(set: Value) -> World {
        World {
            set: Some(set),
            pods: Objects::new(),
            claims: Objects::new(),
            revisions: Objects::new(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            gates: Gates::default(),
            events: Vec::new(),
            log: Vec::new(),
            doomed: BTreeSet::new(),
            refused: BTreeSet::new(),
            stuck: BTreeSet::new(),
            contested: BTreeSet::new(),
            allowance: Allowance::MAX,
            applied: Vec::new(),
            bound_to_set: false,
            version: 1,
        }
    }

    /// Changes the set and settles everything.
    pub fn settled(mut self, change: impl FnOnce(&mut Value)) -> World {
        self.edit(change);
        self.settle();
        (self.log, self.events) = Default::default();
        self
    }

    /// A user changes the set.
    pub fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        let Some(set) = &mut self.set else { return };
        let before = set["spec"].clone();
        change(set);
        if set["spec"] != before {
            let generation = set.int(&["metadata", "generation"]).unwrap();
            set.put(&["metadata", "generation"], generation + 1);
        }
        self.version += 1;
        set.put(&["metadata", "resourceVersion"], self.version.to_string());
    }

    pub fn spec(&mut self, path: &[&str], value: impl Into<Value>) {
        let value = value.into();
        self.edit(|set| set.put(&[&["spec"], path].concat(), value));
    }

    pub fn scale(&mut self, replicas: i64) {
        self.spec(&["replicas"], replicas);
    }

    pub fn image(&mut self, image: &str) {
        let image = json!([{"name": "main", "image": image}]);
        self.spec(&["template", "spec", "containers"], image);
    }

    /// Changes the first claim template.
    pub fn edit_template(&mut self, change: impl FnOnce(&mut Value)) {
        self.edit(|set| {
            if let Some(template) = set["spec"]["volumeClaimTemplates"].get_mut(0) {
                change(template);
            }
        });
    }

    pub fn policy(&mut self, when_deleted: &str, when_scaled: &str) {
        self.spec(
            &["persistentVolumeClaimRetentionPolicy"],
            json!({"whenDeleted": when_deleted, "whenScaled": when_scaled}),
        );
    }

    pub fn advance(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    // Planning.

    /// Makes a plan. Every plan is checked by the invariants.
    pub fn plan(&self) -> SetPlan {
        let set = self.set.as_ref().expect("there is a set");
        let pods: Vec<SeenPod> = self.pods.values().map(|pod| SeenPod::read(pod.clone().into())).collect();
        let (pods, claims, revisions): (Vec<_>, Vec<_>, Vec<_>) =
            (pods.iter().collect(), self.claims.values().collect(), self.revisions.values().collect());
        let (contested, allowance) = (&self.contested, self.allowance);
        let seen = Seen { set, pods: &pods, claims: &claims, revisions: &revisions, contested, allowance };
        let plan = plan(&seen, &self.gates, self.now);
        let broken = invariant::check(&seen, &plan, &self.gates, self.now);
        assert!(broken.is_empty(), "{broken:#?}\n{plan:#?}");
        plan
    }

    /// Makes a plan and executes it.
    pub fn step(&mut self) -> SetPlan {
        self.step_with(Fate::default())
    }

    pub fn step_with(&mut self, fate: Fate) -> SetPlan {
        self.doom();
        let plan = self.plan();
        if self.execute(&plan, fate) {
            self.absolve();
        }
        plan
    }

    /// Executes a plan as the runtime does. Returns whether all of it was executed.
    pub fn execute(&mut self, plan: &SetPlan, fate: Fate) -> bool {
        self.events.extend(plan.events.clone());
        let mut run = Run { fate, at: 0, crashed: false };
        let prepared = plan.prepare.iter().all(|action| run.attempt(self, action));
        let mut failed: Vec<&Action> = Vec::new();
        let mut good = prepared;
        for stage in plan.stages.iter().take_while(|_| prepared) {
            for lane in &stage.lanes {
                for step in lane {
                    let lost: Vec<&Action> = step.iter().filter(|action| !run.attempt(self, action)).collect();
                    failed.extend(&lost);
                    if !lost.is_empty() {
                        break;
                    }
                }
            }
            good = failed.is_empty();
            if !good {
                break;
            }
        }
        if run.crashed {
            return false;
        }
        if prepared {
            let failed: Vec<_> = failed.into_iter().map(|action| (action, Some("boom"))).collect();
            let waits = |set: &Value| failed.is_empty() && fate.counts_wait && plan.status_can_wait(set);
            let set = self.set.as_ref().filter(|set| !waits(set));
            let status = set.and_then(|set| plan.status_after(set, &failed));
            good &= self.write_status(status);
        }
        let cleaned = plan.cleanup.iter().filter(|action| !run.attempt(self, action)).count();
        good && cleaned == 0 && !run.crashed
    }

    fn write_status(&mut self, status: Option<Value>) -> bool {
        let Some(status) = status else { return true };
        let Some(set) = &mut self.set else { return false };
        if status.text(&["metadata", "resourceVersion"]) != set.text(&["metadata", "resourceVersion"]) {
            return false;
        }
        let counts = |field: &str| status.int(&["status", field]).unwrap_or(0);
        assert!(["currentReplicas", "updatedReplicas", "readyReplicas"].iter().all(|field| counts(field) >= 0));
        assert!(
            counts("readyReplicas") <= counts("replicas") && counts("availableReplicas") <= counts("readyReplicas")
        );
        assert!(counts("currentReplicas") <= counts("replicas") && counts("updatedReplicas") <= counts("replicas"));
        set["status"] = status["status"].clone();
        self.version += 1;
        set.put(&["metadata", "resourceVersion"], self.version.to_string());
        true
    }

    /// Executes an action; returns whether the server accepted it.
    fn carry_out(&mut self, action: &Action) -> bool {
        match action {
            Action::ConfirmSet { uid: asked, generation, leaving } => self.set.as_ref().is_some_and(|set| {
                let is_same = uid(set) == asked && set.int(&["metadata", "generation"]) == Some(*generation);
                let is_way = |finalizer| finalizers::has(set, finalizer);
                is_same && terminating(set) == *leaving && !is_way("orphan") && is_way("foregroundDeletion") == *leaving
            }),
            Action::AdoptPod { pod, uid, resource_version } => {
                let (owner, version) = (self.reference(), Some(resource_version));
                change(&mut self.pods, &mut self.version, pod, uid, version, |pod| add_owner(pod, owner))
            }
            Action::AdoptRevision { revision, uid, resource_version } => {
                let (owner, version) = (self.reference(), Some(resource_version));
                change(&mut self.revisions, &mut self.version, revision, uid, version, |it| add_owner(it, owner))
            }
            Action::ReleasePod { pod, uid } => {
                let owner = self.reference();
                change(&mut self.pods, &mut self.version, pod, uid, None, |pod| {
                    drop_owners(pod, |it| it.text(&["uid"]) == owner.text(&["uid"]));
                })
            }
            Action::CreateRevision(revision) => create(&mut self.revisions, &mut self.version, revision, self.now),
            Action::RenumberRevision { revision, uid, resource_version, number } => {
                change(&mut self.revisions, &mut self.version, revision, uid, Some(resource_version), |revision| {
                    revision.put(&["revision"], *number);
                })
            }
            Action::DeleteRevision { revision, .. } => self.revisions.remove(revision).is_some(),
            Action::CreateClaim { claim, applied, .. } => self.create_claim(claim, *applied),
            Action::CheckClaim { patch, .. } => self.admitted(patch).is_some(),
            Action::ApplyClaim { patch, .. } => self.apply_claim(patch),
            Action::OwnClaim { claim, uid, resource_version, owners, .. } => {
                change(&mut self.claims, &mut self.version, claim, uid, Some(resource_version), |claim| {
                    claim.put(&["metadata", "ownerReferences"], owners.clone());
                })
            }
            Action::CreatePod(pod) => {
                let created = create(&mut self.pods, &mut self.version, pod, self.now);
                if created {
                    self.log.push(format!("+{}", name(pod)));
                    self.pods.get_mut(name(pod)).unwrap().put(&["status", "phase"], "Pending");
                }
                created
            }
            Action::LabelPod { pod, uid, resource_version, labels } => {
                change(&mut self.pods, &mut self.version, pod, uid, Some(resource_version), |pod| {
                    for (label, value) in labels {
                        pod.put(&["metadata", "labels", label], value.as_str());
                    }
                })
            }
            Action::DeletePod { pod, uid: asked, resource_version: seen, .. } => {
                let is_as = |pod: &Value, seen: &str| pod.text(&["metadata", "resourceVersion"]) == seen;
                let is_it = |pod: &Value| uid(pod) == asked && seen.as_deref().is_none_or(|seen| is_as(pod, seen));
                let found = self.pods.get(pod).is_some_and(is_it);
                if found {
                    self.log.push(format!("-{pod}"));
                    self.delete_pod(pod);
                }
                found
            }
        }
    }

    fn create_claim(&mut self, claim: &Value, applied: bool) -> bool {
        let owned = if applied { applied_to(None, claim, self.now) } else { claim.clone() };
        create(&mut self.claims, &mut self.version, &owned, self.now)
    }

    /// The claim as a patch makes it, if the server admits that: with a precondition, and never to a smaller size than the volume has.
    fn admitted(&self, patch: &Value) -> Option<Value> {
        let (asked, version) = (uid(patch), patch.text(&["metadata", "resourceVersion"]));
        let old = self.claims.get(name(patch))?;
        let stale = uid(old) != asked || old.text(&["metadata", "resourceVersion"]) != version;
        if stale || self.refused.contains(name(patch)) || terminating(old) {
            return None;
        }
        let mut new = applied_to(Some(old), patch, self.now);
        new.put(&["metadata", "resourceVersion"], version);
        let changed = new["spec"] != old["spec"];
        if changed && old.text(&["status", "phase"]) != "Bound" {
            return None;
        }
        assert!(size(&new, &["spec", "resources", "requests"]) >= size(old, &["spec", "resources", "requests"]));
        Some(new)
    }

    fn apply_claim(&mut self, patch: &Value) -> bool {
        let Some(new) = self.admitted(patch) else { return false };
        let (asked, version) = (uid(patch), patch.text(&["metadata", "resourceVersion"]).to_owned());
        let done =
            change(&mut self.claims, &mut self.version, name(patch), asked, Some(&version), |claim| *claim = new);
        self.applied.extend(done.then(|| name(patch).to_owned()));
        done
    }

    /// Provisions, expands and modifies volumes as the claims request.
    pub fn storage(&mut self) {
        let waiting = self.claims.values().filter(|claim| !terminating(claim) && !self.stuck.contains(name(claim)));
        let waiting = waiting.filter(|claim| {
            claim.at(&["status", "capacity"]) != claim.at(&["spec", "resources", "requests"])
                || claim.at(&["spec", "volumeAttributesClassName"])
                    != claim.at(&["status", "currentVolumeAttributesClassName"])
                || claim.text(&["status", "phase"]) != "Bound"
        });
        let waiting: Vec<String> = waiting.map(|claim| name(claim).to_owned()).collect();
        waiting.iter().for_each(|claim| self.provide(claim));
    }

    /// An owner reference to the set, as on pods and revisions.
    pub fn reference(&self) -> Value {
        let uid = self.set.as_ref().map_or("", uid);
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        })
    }

    // Other components: users, the kubelet, the collector.

    /// The pod terminates; [`World::bury`] removes it.
    pub fn delete_pod(&mut self, pod: &str) {
        let now = self.now.to_string();
        if let Some(pod) = self.pods.get_mut(pod).filter(|pod| !terminating(pod)) {
            pod.put(&["metadata", "deletionTimestamp"], now);
        }
    }

    /// A user deletes the claim.
    pub fn delete_claim(&mut self, claim: &str) {
        self.doomed.insert(claim.to_owned());
        self.mark_claim(claim);
    }

    fn mark_claim(&mut self, claim: &str) {
        let now = self.now.to_string();
        if let Some(claim) = self.claims.get_mut(claim) {
            claim.default_to(&["metadata", "deletionTimestamp"], now);
        }
        self.protect();
    }

    /// Removes terminating claims that no started pod uses.
    fn protect(&mut self) {
        let pods = &self.pods;
        let used = |claim: &str| {
            let started = pods.values().filter(|pod| pod.text(&["status", "phase"]) != "Pending");
            started
                .flat_map(|pod| pod.items(&["spec", "volumes"]))
                .any(|volume| volume.text(&["persistentVolumeClaim", "claimName"]) == claim)
        };
        self.claims.retain(|claim, object| {
            !terminating(object) || used(claim) || !object.items(&["metadata", "finalizers"]).is_empty()
        });
    }

    /// Removes the terminating pods without finalizers.
    pub fn bury(&mut self) {
        self.pods.retain(|_, pod| !terminating(pod) || !pod.items(&["metadata", "finalizers"]).is_empty());
        self.protect();
    }

    /// Sets one pod to running, ready or not.
    pub fn ready(&mut self, pod: &str, ready: bool) {
        let now = self.now.to_string();
        let Some(pod) = self.pods.get_mut(pod) else { return };
        pod.put(&["status", "phase"], "Running");
        let status = if ready { "True" } else { "False" };
        let condition = json!([{"type": "Ready", "status": status, "lastTransitionTime": now}]);
        if object::condition::get(pod, "Ready").is_none_or(|old| old.text(&["status"]) != status) {
            pod.put(&["status", "conditions"], condition);
        }
    }

    pub fn fail(&mut self, pod: &str, phase: &str) {
        if let Some(pod) = self.pods.get_mut(pod) {
            pod.put(&["status"], json!({"phase": phase}));
        }
    }

    /// The kubelet makes every pod ready that can run, and removes terminating ones.
    pub fn kubelet(&mut self) {
        self.bury();
        let running: Vec<String> = self.pods.keys().filter(|pod| self.can_run(pod)).cloned().collect();
        running.iter().for_each(|pod| self.ready(pod, true));
        self.protect();
        self.storage();
    }

    /// Whether it runs, or could run on a node because its claims can be used.
    pub fn can_run(&self, pod: &str) -> bool {
        let Some(pod) = self.pods.get(pod) else { return false };
        let usable = |volume: &Value| match volume.at(&["persistentVolumeClaim"]) {
            Some(source) => self.claims.get(source.text(&["claimName"])).is_some_and(|claim| !terminating(claim)),
            None => true,
        };
        match pod.text(&["status", "phase"]) {
            "Pending" => pod.items(&["spec", "volumes"]).iter().all(usable),
            phase => phase == "Running",
        }
    }

    /// Deletes dependents without an existing owner, and removes other references to deleted owners. Returns
    /// whether anything changed.
    pub fn collect(&mut self) -> bool {
        let mut living: BTreeSet<String> = self.pods.values().map(|pod| uid(pod).to_owned()).collect();
        living.extend(self.set.as_ref().map(|set| uid(set).to_owned()));
        living.insert("elsewhere".to_owned());
        let alive = |owner: &Value| living.contains(owner.text(&["uid"]));
        let dead = |object: &Value| {
            let owners = object.items(&["metadata", "ownerReferences"]);
            !owners.is_empty() && !owners.iter().any(alive)
        };
        let before = (self.pods.clone(), self.claims.clone(), self.revisions.clone());
        self.revisions.retain(|_, revision| !dead(revision));
        for object in self.pods.values_mut().chain(self.claims.values_mut()) {
            if !dead(object) {
                drop_owners(object, |owner| !alive(owner));
            }
        }
        let pods: Vec<String> = self.pods.iter().filter(|(_, pod)| dead(pod)).map(|(name, _)| name.clone()).collect();
        pods.iter().for_each(|pod| self.delete_pod(pod));
        let claims = self.claims.iter().filter(|(_, claim)| dead(claim) && !terminating(claim));
        let claims: Vec<String> = claims.map(|(name, _)| name.clone()).collect();
        for claim in claims {
            assert!(self.doomed.contains(&claim), "{claim} is deleted although neither its policy nor a user says so");
            self.mark_claim(&claim);
        }
        self.protect();
        before != (self.pods.clone(), self.claims.clone(), self.revisions.clone())
    }

    /// A user deletes the set: it is removed at once, its dependents are left to the collector.
    pub fn delete_set(&mut self) {
        self.doom();
        if self.bound_to_set {
            self.doomed.extend(self.claims.keys().cloned());
        }
        self.set = None;
    }

    /// Records the claims that the current policy allows to be deleted, before a plan is made.
    pub fn doom(&mut self) {
        let Some(wants) = self.set.as_ref().map(|set| invariant::Wants::of(set, &self.gates)) else { return };
        self.bound_to_set |= wants.deleted;
        let scaled = self.claims.keys().filter(|claim| {
            wants.scaled && claim_ordinal(claim).is_some_and(|ordinal| !wants.ordinals.contains(&ordinal))
        });
        self.doomed.extend(scaled.cloned());
    }

    /// Removes the claims that a fully executed plan protects again.
    fn absolve(&mut self) {
        let Some(wants) = self.set.as_ref().map(|set| invariant::Wants::of(set, &self.gates)) else { return };
        self.bound_to_set = wants.deleted;
        let (pods, claims) = (&self.pods, &self.claims);
        self.doomed.retain(|claim| {
            let (Some(object), Some(ordinal)) = (claims.get(claim), claim_ordinal(claim)) else { return false };
            let namesake = |owner: &Value| owner.text(&["uid"]) == "set-0";
            let lives = pods.get(&format!("web-{ordinal}")).is_some_and(|pod| controller(pod).is_some());
            let stays = !wants.scaled || (wants.ordinals.contains(&ordinal) && lives);
            !stays || terminating(object) || object.items(&["metadata", "ownerReferences"]).iter().any(namesake)
        });
    }

    /// Runs all components until nothing changes.
    pub fn settle(&mut self) -> SetPlan {
        for _ in 0..300 {
            let plan = match &self.set {
                Some(_) => self.step(),
                None => SetPlan::default(),
            };
            let before = (self.pods.clone(), self.claims.clone());
            let collected = self.collect();
            self.kubelet();
            let moved = collected || before != (self.pods.clone(), self.claims.clone());
            if let Some(next) = plan.next {
                self.now = self.now.max(next);
            } else if !moved && is_idle(&plan) {
                return plan;
            }
        }
        panic!("the model does not settle: {:#?}", self.plan());
    }

    // Queries.

    pub fn pod_names(&self) -> Vec<&str> {
        self.pods.keys().map(String::as_str).collect()
    }

    pub fn claim_names(&self) -> Vec<&str> {
        self.claims.keys().map(String::as_str).collect()
    }

    /// `kind/name` of each owner of a claim.
    pub fn owners(&self, claim: &str) -> Vec<String> {
        let owners = self.claims[claim].items(&["metadata", "ownerReferences"]).iter();
        owners.map(|owner| format!("{}/{}", owner.text(&["kind"]), owner.text(&["name"]))).collect()
    }

    /// The image of each pod, by name.
    pub fn images(&self) -> Vec<(&str, &str)> {
        self.pods.values().map(|pod| (name(pod), pod["spec"]["containers"][0].text(&["image"]))).collect()
    }

    pub fn status(&self, field: &str) -> i64 {
        self.set.as_ref().unwrap().int(&["status", field]).unwrap_or(0)
    }

    pub fn status_text(&self, field: &str) -> &str {
        self.set.as_ref().unwrap().text(&["status", field])
    }

    /// `reason: message` of every event.
    pub fn told(&self) -> Vec<String> {
        self.events.iter().map(|event| format!("{}: {}", event.reason, event.message)).collect()
    }

    /// Adds a pod that others created.
    pub fn put_pod(&mut self, pod_name: &str, labels: Value, owners: Value) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod_name, "namespace": "a", "labels": labels, "ownerReferences": owners},
            "spec": {"containers": []}, "status": {"phase": "Running"},
        });
        assert!(create(&mut self.pods, &mut self.version, &pod, self.now));
    }

    /// Adds a claim that others created.
    pub fn put_claim(&mut self, claim_name: &str, owners: Value) {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim_name, "namespace": "a", "ownerReferences": owners},
        });
        assert!(create(&mut self.claims, &mut self.version, &claim, self.now));
    }

    /// Changes any pod, as any client may.
    pub fn edit_pod(&mut self, pod: &str, edit: impl FnOnce(&mut Value)) {
        if let Some(uid) = self.pods.get(pod).map(|pod| uid(pod).to_owned()) {
            change(&mut self.pods, &mut self.version, pod, &uid, None, edit);
        }
    }

    pub fn edit_claim(&mut self, claim: &str, edit: impl FnOnce(&mut Value)) {
        if let Some(uid) = self.claims.get(claim).map(|claim| uid(claim).to_owned()) {
            change(&mut self.claims, &mut self.version, claim, &uid, None, edit);
        }
    }
}

/// Executes actions one after the other, until the fault.
struct Run {
    fate: Fate,
    at: usize,
    crashed: bool,
}

impl Run {
    fn attempt(&mut self, world: &mut World, action: &Action) -> bool {
        // A read cannot fail here.
        if matches!(action, Action::ConfirmSet { .. }) {
            return !self.crashed && world.carry_out(action);
        }
        self.crashed |= self.fate.crash == Some(self.at);
        let fails = self.crashed || self.fate.fail == Some(self.at);
        self.at += 1;
        if self.crashed {
            return false;
        }
        let done = !fails && world.carry_out(action);
        let told = if done { action.done("web").into_iter().collect() } else { action.failed("web", "boom") };
        world.events.extend(told);
        done
    }
}

/// The result of the controller's server-side apply to a claim.
fn applied_to(old: Option<&Value>, patch: &Value, now: Timestamp) -> Value {
    let schema = object::schema::builtin_type("io.k8s.api.core.v1.PersistentVolumeClaim");
    let writer = object::apply::Writer { manager: "statefulset-controller", subresource: "", api_version: "v1", now };
    object::apply::apply(&schema, old, patch, &writer, true).expect("nothing to refuse")
}

/// The size in a list of resources, in bytes.
pub fn size(claim: &Value, resources: &[&str]) -> i64 {
    let size = claim.at(&[resources, &["storage"]].concat()).and_then(object::quantity::Quantity::of);
    size.map_or(0, |size| size.ceil())
}

fn create(objects: &mut Objects, version: &mut u64, object: &Value, now: Timestamp) -> bool {
    if objects.contains_key(name(object)) {
        return false;
    }
    *version += 1;
    let mut object = object.clone();
    object.put(&["metadata", "uid"], format!("{}-{version}", name(&object)));
    object.put(&["metadata", "resourceVersion"], version.to_string());
    object.put(&["metadata", "creationTimestamp"], now.to_string());
    objects.insert(name(&object).to_owned(), object);
    true
}

fn change(
    objects: &mut Objects,
    version: &mut u64,
    of: &str,
    uid_asked: &str,
    version_asked: Option<&String>,
    edit: impl FnOnce(&mut Value),
) -> bool {
    let Some(object) = objects.get_mut(of).filter(|object| uid(object) == uid_asked) else { return false };
    if version_asked.is_some_and(|asked| object.text(&["metadata", "resourceVersion"]) != asked) {
        return false;
    }
    edit(object);
    *version += 1;
    object.put(&["metadata", "resourceVersion"], version.to_string());
    true
}

fn claim_ordinal(claim: &str) -> Option<i64> {
    claim.strip_prefix("data-web-").or_else(|| claim.strip_prefix("logs-web-"))?.parse().ok()
}

pub fn add_owner(object: &mut Value, owner: Value) {
    let owners = object.entry(&["metadata", "ownerReferences"]);
    match owners.as_array_mut() {
        Some(owners) => owners.push(owner),
        None => *owners = json!([owner]),
    }
}

fn drop_owners(object: &mut Value, dropped: impl Fn(&Value) -> bool) {
    if let Some(owners) = object.entry(&["metadata", "ownerReferences"]).as_array_mut() {
        owners.retain(|owner| !dropped(owner));
    }
}

/// Whether a plan has no action and no status.
pub fn is_idle(plan: &SetPlan) -> bool {
    plan.prepare.is_empty() && plan.stages.is_empty() && plan.status.is_none() && plan.cleanup.is_empty()
}

/// All actions of the stages, in order.
pub fn actions(plan: &SetPlan) -> Vec<&Action> {
    plan.stages.iter().flat_map(Stage::actions).collect()
}
