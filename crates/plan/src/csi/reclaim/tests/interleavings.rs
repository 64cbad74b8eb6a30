//! H6, H10: users, binder, protection, our own steps and crashes in any order, on a model of the API and of a driver.

use super::*;
use proptest::prelude::*;

const PROTECTION: &str = "kubernetes.io/pv-protection";

#[derive(Clone, Copy, Debug)]
enum Op {
    Policy(&'static str),
    DeleteVolume,
    DeleteClaim,
    /// The binder updates the phase.
    Bind,
    /// The protection controller removes its finalizer from an unbound volume.
    Unprotect,
    /// One write or one call of the provisioner.
    Step,
    Crash,
    /// The driver fails the next call.
    Fault,
}

#[derive(Default)]
struct World {
    volume: Option<Value>,
    claim: bool,
    backend: bool,
    fault: bool,
    /// The journal entry.
    journal: Option<PendingDeletion>,
    memory: Memory,
    /// The policy when the PV was removed.
    end: Option<String>,
    /// The deletion was observed, but a crash happened before it was journaled.
    forgot: bool,
}

/// The state that a crash loses.
#[derive(Default)]
struct Memory {
    served: bool,
    /// The volume was deleted at the driver.
    deleted: bool,
    /// A deletion still to be journaled.
    vanished: Option<PendingDeletion>,
}

impl World {
    fn new(policy: &str, is_static: bool) -> World {
        let marks = match (is_static, policy) {
            (true, _) => "",
            (false, DELETE) => "held protected",
            (false, _) => "recorded",
        };
        let volume = Some(volume("Pending", policy, marks));
        World { volume, claim: true, backend: true, ..World::default() }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Policy(policy) => self.change(|volume| volume.put(&["spec", "persistentVolumeReclaimPolicy"], policy)),
            Op::DeleteVolume => self.change(|volume| volume.put(&["metadata", "deletionTimestamp"], "now")),
            Op::DeleteClaim => self.claim = false,
            Op::Bind => {
                let phase = if self.claim { "Bound" } else { "Released" };
                self.change(|volume| volume.put(&["status", "phase"], phase));
            }
            Op::Unprotect => self.change(|volume| {
                if terminating(volume) && volume.text(&["status", "phase"]) != "Bound" {
                    without(volume, PROTECTION);
                }
            }),
            Op::Step => drop(self.step()),
            Op::Crash => {
                self.forgot |= self.memory.vanished.is_some() && self.journal.is_none();
                self.memory = Memory::default();
            }
            Op::Fault => self.fault = true,
        }
    }

    /// A write as the server executes it; the provisioner receives the result.
    fn change(&mut self, write: impl FnOnce(&mut Value)) {
        let Some(volume) = &mut self.volume else { return };
        write(volume);
        self.memory.served |= volume.text(&["status", "phase"]) == "Bound";
        if terminating(volume) && volume.items(&["metadata", "finalizers"]).is_empty() {
            let last = self.volume.take().expect("it is there");
            let seen = Seen {
                volume: &last,
                class: None,
                served: self.memory.served,
                deletion: self.journal.is_some(),
                written: false,
            };
            let deletion = vanished(&seen, "d", true).filter(|_| !self.memory.deleted);
            if deletion.is_none() && !self.memory.deleted {
                // The journaled deletion is cancelled.
                self.journal = None;
            }
            self.memory.vanished = deletion;
            self.end = Some(last.text(&["spec", "persistentVolumeReclaimPolicy"]).to_owned());
        }
    }

    /// One write or one call; false if there is nothing to do.
    fn step(&mut self) -> bool {
        if let Some(deletion) = self.memory.vanished.take() {
            self.journal = Some(deletion);
            return true;
        }
        let Some(volume) = self.volume.clone() else { return self.finish_without_object() };
        if self.memory.deleted {
            return self.finish(&volume);
        }
        let seen = Seen {
            volume: &volume,
            class: None,
            served: self.memory.served,
            deletion: self.journal.is_some(),
            written: false,
        };
        let plan = plan(&seen, "d", true);
        if let Some(patch) = plan.patch {
            assert!(!(terminating(&volume) && patch.has(&["metadata", "finalizers"])), "the server refuses that");
            self.change(|volume| strategic(volume, &patch));
            return true;
        }
        match plan.step {
            Step::JournalDeletion(deletion) => self.journal = Some(*deletion),
            Step::CancelDeletion => self.journal = None,
            Step::Delete(_) => return self.call(volume.text(&["spec", "persistentVolumeReclaimPolicy"])),
            Step::Nothing | Step::Stripped => return false,
            Step::Keep(why) | Step::Failed(why) | Step::Left(why) => panic!("{why}"),
        }
        true
    }

    fn finish(&mut self, volume: &Value) -> bool {
        if self.journal.take().is_some() {
            return true;
        }
        if !terminating(volume) {
            self.apply(Op::DeleteVolume);
        } else if crate::finalizers::has(volume, FINALIZER) {
            self.change(|volume| without(volume, FINALIZER));
        } else {
            return false;
        }
        true
    }

    fn finish_without_object(&mut self) -> bool {
        match &mut self.journal {
            // The PV was removed unobserved: the history has its last state.
            Some(deletion) if !deletion.gone => {
                deletion.gone = true;
                if self.end.as_deref() != Some(DELETE) {
                    self.journal = None;
                }
                true
            }
            Some(deletion) if deletion.gone && !self.claim => {
                if !self.memory.deleted {
                    return self.call(DELETE);
                }
                self.journal = None;
                true
            }
            _ => false,
        }
    }

    fn call(&mut self, policy: &str) -> bool {
        assert!(!self.claim, "a volume is deleted while its claim exists");
        assert_eq!(policy, DELETE);
        if !std::mem::take(&mut self.fault) {
            self.backend = false;
            self.memory.deleted = true;
        }
        true
    }
}

fn without(volume: &mut Value, finalizer: &str) {
    let mut finalizers = volume.items(&["metadata", "finalizers"]).to_vec();
    finalizers.retain(|present| present != finalizer);
    volume.put(&["metadata", "finalizers"], finalizers);
}

/// The parts of a strategic merge patch that are used here.
fn strategic(volume: &mut Value, patch: &Value) {
    for finalizer in patch.items(&["metadata", "finalizers"]) {
        let mut finalizers = volume.items(&["metadata", "finalizers"]).to_vec();
        finalizers.push(finalizer.clone());
        volume.put(&["metadata", "finalizers"], finalizers);
    }
    if patch.has(&["metadata", "$deleteFromPrimitiveList/finalizers"]) {
        without(volume, FINALIZER);
    }
    for (key, value) in patch.members(&["metadata", "annotations"]) {
        volume.put(&["metadata", "annotations", key], value.clone());
    }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => prop_oneof![Just(Op::Policy(DELETE)), Just(Op::Policy(RETAIN))],
        1 => Just(Op::DeleteVolume),
        1 => Just(Op::DeleteClaim),
        3 => Just(Op::Bind),
        2 => Just(Op::Unprotect),
        6 => Just(Op::Step),
        1 => Just(Op::Crash),
        1 => Just(Op::Fault),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]
    /// H6
    #[test]
    fn the_volume_is_deleted_exactly_when_the_policy_says_so(
        policy in prop_oneof![Just(DELETE), Just(RETAIN)],
        is_static in any::<bool>(),
        ops in proptest::collection::vec(op(), 0..40),
    ) {
        let mut world = World::new(policy, is_static);
        world.apply(Op::Bind);
        // A static volume that was never seen bound is kept until confirmed, which another test covers.
        world.apply(Op::Step);
        for op in ops {
            world.apply(op);
        }
        world.apply(Op::DeleteClaim);
        world.apply(Op::DeleteVolume);
        for _ in 0..20 {
            world.apply(Op::Bind);
            while world.step() {}
            world.apply(Op::Unprotect);
        }
        prop_assert!(world.volume.is_none(), "nothing is stuck");
        prop_assert!(world.journal.is_none(), "nothing is left written down: {:?}", world.journal);
        // Each call asserts that no data is lost.
        if world.end.expect("it went") == DELETE {
            prop_assert!(!world.backend || world.forgot, "leaked");
        }
    }
}
