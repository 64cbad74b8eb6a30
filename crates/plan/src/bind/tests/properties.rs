//! Random histories: invariants hold whatever happens in whatever order, and in the end all objects are consistent.

use super::world::*;
use crate::bind::matching::capacity;
use crate::bind::{Action, BIND_COMPLETED, PROVISIONED_BY, Plan, Target, Wanted, is_bound};
use crate::reclaim::HOST_PATH;
use object::access::{Access, name, terminating};
use object::{Value, json};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    AddVolume {
        size: u8,
        class: u8,
        delete: bool,
        labelled: bool,
    },
    /// A provisioner or user creates a volume for a claim.
    AddMade {
        claim: u8,
    },
    AddClaim {
        size: u8,
        class: u8,
        picky: bool,
        names: Option<u8>,
    },
    Delete {
        at: u8,
    },
    FlipPolicy {
        at: u8,
    },
    /// A user clears the claim reference of a released volume.
    Free {
        at: u8,
    },
    /// Execute this many actions of a plan, then crash. Or the next write times out and may still arrive.
    Sync {
        at: u8,
        most: u8,
        sends: bool,
    },
    /// A write that timed out arrives.
    Arrive,
    /// Plan now, and execute later.
    Plan {
        at: u8,
    },
    Act,
    Protect,
}

fn step() -> impl Strategy<Value = Step> {
    let small = 0..3u8;
    prop_oneof![
        3 => (1..4u8, small.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(size, class, delete, labelled)| Step::AddVolume { size, class, delete, labelled }),
        1 => any::<u8>().prop_map(|claim| Step::AddMade { claim }),
        3 => (1..4u8, small, any::<bool>(), prop::option::weighted(0.2, any::<u8>()))
            .prop_map(|(size, class, picky, names)| Step::AddClaim { size, class, picky, names }),
        3 => any::<u8>().prop_map(|at| Step::Delete { at }),
        1 => any::<u8>().prop_map(|at| Step::FlipPolicy { at }),
        1 => any::<u8>().prop_map(|at| Step::Free { at }),
        8 => (any::<u8>(), 0..6u8, any::<bool>()).prop_map(|(at, most, sends)| Step::Sync { at, most, sends }),
        2 => Just(Step::Arrive),
        2 => any::<u8>().prop_map(|at| Step::Plan { at }),
        2 => Just(Step::Act),
        2 => Just(Step::Protect),
    ]
}

/// A test run, and the plan that is being executed.
#[derive(Default)]
struct Run {
    world: World,
    added: usize,
    busy: Option<(Target, Plan)>,
    on_its_way: Vec<Action>,
}

impl Run {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::AddVolume { size, class, delete, labelled } => self.add_volume(size, class, delete, labelled),
            Step::AddMade { claim } => self.add_made(claim),
            Step::AddClaim { size, class, picky, names } => self.add_claim(size, class, picky, names),
            Step::Delete { at } => {
                if let Some(object) = self.pick(at).and_then(|target| self.world.find(&target)) {
                    self.world.delete(&object);
                }
            }
            Step::FlipPolicy { at } => self.edit_volume(at, |volume| {
                // A volume that was deleted and released under Retain counts as deleted.
                if terminating(volume) && phase(volume) == "Released" {
                    return None;
                }
                let is_deleted = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
                let policy = if is_deleted { "Retain" } else { "Delete" };
                Some(json!({"spec": {"persistentVolumeReclaimPolicy": policy}}))
            }),
            Step::Free { at } => {
                self.edit_volume(at, |volume| {
                    (phase(volume) == "Released").then(|| json!({"spec": {"claimRef": null}}))
                });
            }
            Step::Sync { at, most, sends } => {
                if let Some((target, plan)) = self.plan(at) {
                    self.check_plan(&target, &plan);
                    let (_, left) = self.world.carry_out_but(plan, usize::from(most));
                    let is_write = |action: &Action| matches!(action, Action::Patch { .. });
                    self.on_its_way.extend(left.filter(|left| sends && is_write(left)));
                }
            }
            Step::Arrive => {
                if !self.on_its_way.is_empty() {
                    let write = self.on_its_way.remove(0);
                    self.world.arrive(write);
                }
            }
            Step::Plan { at } => {
                if self.busy.is_none() {
                    self.busy = self.plan(at);
                }
            }
            Step::Act => {
                if let Some((_, plan)) = self.busy.take() {
                    self.world.carry_out(plan, usize::MAX);
                }
            }
            Step::Protect => self.world.protect(),
        }
    }

    fn add_volume(&mut self, size: u8, class: u8, delete: bool, labelled: bool) {
        self.added += 1;
        let more = json!({
            "metadata": {"labels": labelled.then(|| json!({"a": "b"}))},
            "spec": {
                "storageClassName": class_name(class),
                "persistentVolumeReclaimPolicy": if delete { "Delete" } else { "Retain" },
            },
            "status": {"phase": "Pending"},
        });
        let volume = volume(&format!("v{}", self.added), &format!("{size}Gi"), more);
        self.make_directory(&volume);
        self.world.add(volume);
    }

    fn add_made(&mut self, claim: u8) {
        let claims: Vec<_> = self.world.claims.values().cloned().collect();
        if claims.is_empty() {
            return;
        }
        self.added += 1;
        let claim = &claims[usize::from(claim) % claims.len()];
        let of = Target::of(claim);
        let more = json!({
            "metadata": {"annotations": {PROVISIONED_BY: HOST_PATH}, "finalizers": ["kubernetes.io/pv-protection", "kubernetes.io/pv-controller"]},
            "spec": {
                "claimRef": {"namespace": of.namespace, "name": of.name, "uid": of.uid},
                "persistentVolumeReclaimPolicy": "Delete", "storageClassName": claim["spec"]["storageClassName"],
            },
            "status": {"phase": "Pending"},
        });
        let volume = volume(&format!("made{}", self.added), "9Gi", more);
        self.make_directory(&volume);
        self.world.add(volume);
    }

    fn add_claim(&mut self, size: u8, class: u8, picky: bool, names: Option<u8>) {
        self.added += 1;
        let volumes: Vec<String> = self.world.volumes.keys().cloned().collect();
        let named = names.filter(|_| !volumes.is_empty()).map(|at| volumes[usize::from(at) % volumes.len()].clone());
        let more = json!({"spec": {
            "storageClassName": class_name(class), "volumeName": named,
            "selector": picky.then(|| json!({"matchLabels": {"a": "b"}})),
        }});
        self.world.add(claim(&format!("c{}", self.added), &format!("{size}Gi"), more));
    }

    fn make_directory(&mut self, volume: &Value) {
        self.world.directories.insert(volume.text(&["spec", "hostPath", "path"]).to_owned());
    }

    fn edit_volume(&mut self, at: u8, edit: impl Fn(&Value) -> Option<Value>) {
        let Some(target) = self.pick(at).filter(Target::is_volume) else { return };
        let volume = self.world.find(&target).expect("it was picked");
        if let Some(edit) = edit(&volume) {
            self.world.edit(&volume, edit);
        }
    }

    fn pick(&self, at: u8) -> Option<Target> {
        let targets = self.world.targets();
        (!targets.is_empty()).then(|| targets[usize::from(at) % targets.len()].clone())
    }

    /// The plan for an object that is not being reconciled already, and that no claim with a running plan takes.
    fn plan(&self, at: u8) -> Option<(Target, Plan)> {
        let target = self.pick(at)?;
        let is_busy = self.busy.as_ref().is_some_and(|(of, plan)| *of == target || changes(plan, &target));
        if is_busy {
            return None;
        }
        let object = self.world.find(&target)?;
        let plan = if target.is_volume() { self.world.plan_volume(&object) } else { self.world.plan_claim(&object) };
        let meets_busy = self.busy.as_ref().is_some_and(|(busy, of_busy)| {
            !busy.is_volume() && self.world.targets().iter().any(|each| changes(of_busy, each) && changes(&plan, each))
        });
        (!meets_busy).then_some((target, plan))
    }

    /// V3, and the smallest volume that fits.
    fn check_plan(&self, target: &Target, plan: &Plan) {
        let binds = |patch: &Value| patch.has(&["metadata", "annotations", BIND_COMPLETED]);
        let Some(patch) = plan.actions.iter().find_map(|action| match action {
            Action::Patch { patch, .. } if binds(patch) => Some(patch),
            _ => None,
        }) else {
            return;
        };
        let claim = self.world.find(target).expect("it was planned for");
        let chosen = match patch.text(&["spec", "volumeName"]) {
            "" => claim.text(&["spec", "volumeName"]),
            chosen => chosen,
        };
        let volume = &self.world.volumes[chosen];
        assert!(!terminating(volume), "{claim} takes {volume}");
        if !claim.has(&["spec", "volumeName"]) && !volume.has(&["spec", "claimRef"]) {
            let size = |volume: &Value| capacity(volume);
            let wanted = Wanted::of(&claim);
            let smaller = self.world.volumes.values().find(|other| wanted.suits(other) && size(other) < size(volume));
            assert!(smaller.is_none(), "{smaller:?} would do for {claim}, not {volume}");
        }
    }

    fn check_world(&self) {
        let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
        for claim in self.world.claims.values() {
            assert_ne!(phase(claim), "Lost", "{claim}");
            if is_bound(claim) {
                let other = holders.insert(claim.text(&["spec", "volumeName"]), name(claim));
                assert!(other.is_none(), "{other:?} and {claim} have one volume");
                let volume = &self.world.volumes[claim.text(&["spec", "volumeName"])];
                assert_eq!(Target::claim_of(volume), Some(Target::of(claim)));
            }
        }
    }

    /// Checks after everything has settled.
    fn check_end(&self) {
        for claim in self.world.claims.values().filter(|claim| !is_bound(claim) && !claim.has(&["spec", "volumeName"]))
        {
            let wanted = Wanted::of(claim);
            let free = self.world.volumes.values().find(|volume| wanted.suits(volume));
            assert!(free.is_none(), "{claim} waits although {free:?} is there");
        }
        for claim in self.world.claims.values() {
            assert!(!terminating(claim), "no finalizer keeps {claim}");
            assert_eq!(is_bound(claim), self.world.bound(claim).is_some());
        }
        for volume in self.world.volumes.values() {
            let claim = Target::claim_of(volume).and_then(|claim| self.world.find(&claim));
            assert!(claim.is_some() || !terminating(volume), "no finalizer keeps {volume}");
            let is_deleted = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
            assert!(phase(volume) != "Released" || !is_deleted, "{volume} is to be deleted");
            // A user may set Retain, but too late for the directory.
            let directory = volume.text(&["spec", "hostPath", "path"]);
            assert!(
                self.world.directories.contains(directory) || self.world.destroyed.contains(directory),
                "of {volume}"
            );
        }
        assert_eq!(self.world.leaked, [""; 0]);
    }
}

fn changes(plan: &Plan, target: &Target) -> bool {
    plan.actions.iter().any(|action| matches!(action, Action::Patch { of, .. } if of == target))
}

fn class_name(class: u8) -> Value {
    match class {
        0 => json!(""),
        1 => json!("gold"),
        _ => Value::Null,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    // V3, H1, H6, H10 as invariants.
    #[test]
    fn no_volume_is_ever_shared_lost_or_leaked(steps in prop::collection::vec(step(), 1..60)) {
        let mut run = Run::default();
        for step in &steps {
            run.step(step);
            run.check_world();
        }
        run.busy = None;
        run.world.settle();
        run.check_world();
        run.check_end();
    }
}
