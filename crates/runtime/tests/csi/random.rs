//! Random creations, deletions, changes of policy, driver faults and restarts: in the end the driver has
//! exactly the volumes that objects and policies require. H6, H10

use crate::pairs::*;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::Order;
use object::access::{Access, name, terminating, uid};
use object::{Value, json};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;
use store::Next;

const CLAIMS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Create(usize, bool),
    DeleteClaim(usize),
    DeleteVolume(usize),
    Policy(usize, bool),
    Fault(&'static str, Fault),
    Restart,
    /// Waits until the claim is bound, if it exists.
    Bound(usize),
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Fails,
    Late,
    Lost,
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0..CLAIMS;
    let call = prop_oneof![Just("CreateVolume"), Just("DeleteVolume")];
    let fault = prop_oneof![Just(Fault::Fails), Just(Fault::Late), Just(Fault::Lost)];
    prop_oneof![
        4 => (which.clone(), any::<bool>()).prop_map(|(which, retains)| Op::Create(which, retains)),
        3 => which.clone().prop_map(Op::DeleteClaim),
        2 => which.clone().prop_map(Op::DeleteVolume),
        2 => (which.clone(), any::<bool>()).prop_map(|(which, retains)| Op::Policy(which, retains)),
        2 => (call, fault).prop_map(|(call, fault)| Op::Fault(call, fault)),
        1 => Just(Op::Restart),
        3 => which.prop_map(Op::Bound),
    ]
}

fn policy(retains: bool) -> &'static str {
    if retains { "Retain" } else { "Delete" }
}

async fn play(ops: Vec<Op>) {
    let (mut world, storage) = world().await;
    world.patience = std::time::Duration::from_secs(15);
    for retains in [false, true] {
        world.create(class(&policy(retains).to_lowercase(), policy(retains), json!({}))).await;
    }
    let since = world.store.revision();
    let mut claims: [Option<Value>; CLAIMS] = Default::default();
    for op in &ops {
        step(&mut world, &storage, &mut claims, op).await;
    }
    storage.driver.faults().clear();
    for claim in claims.iter().flatten() {
        world.delete(claim, "").await;
        world.until_gone(claim).await;
    }
    until_right(&world, &storage, since, &ops).await;
    // Calls that were open at the check are finished after a restart, and the state is still correct.
    until_noticed(&world).await;
    world.stop_controllers().await;
    world.start(&everything());
    until_right(&world, &storage, since, &ops).await;
    world.stop().await;
}

/// Waits until the journal is empty, every existing PV is retained, and the driver has exactly the volumes of
/// these and the retained ones whose PVs users deleted.
async fn until_right(world: &World, storage: &Storage, since: u64, ops: &[Op]) {
    let what_is_wrong = async || {
        let written = journal(world).await;
        if !written.is_empty() {
            return Some(format!("written down: {written:?}"));
        }
        let list = world.get("/api/v1/persistentvolumes").await.expect("a list");
        let is_over = |volume: &&Value| {
            volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Retain" && phase(volume) == "Released"
        };
        if let Some(volume) = list.items(&["items"]).iter().find(|volume| !is_over(volume)) {
            return Some(format!("not over: {volume}"));
        }
        let History { condemned, retained } = History::of(world, since).await;
        let (named, there) = (handles(world).await, storage.handles());
        let lost: Vec<&String> =
            named.union(&retained).filter(|handle| !there.contains(*handle) && !condemned.contains(*handle)).collect();
        let leaked: Vec<&String> =
            there.iter().filter(|handle| !named.contains(*handle) && !retained.contains(*handle)).collect();
        (!lost.is_empty() || !leaked.is_empty()).then(|| format!("lost {lost:?}, leaked {leaked:?}"))
    };
    let begun = std::time::Instant::now();
    while let Some(wrong) = what_is_wrong().await {
        assert!(begun.elapsed() < world.patience, "{wrong}: {ops:?}");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

/// The history of PVs in the store, by handle.
#[derive(Default)]
struct History {
    /// Released with the policy Delete at some time: they may have been deleted, whatever the policy became
    /// afterwards.
    condemned: BTreeSet<String>,
    /// Removed with the policy Retain.
    retained: BTreeSet<String>,
}

impl History {
    async fn of(world: &World, since: u64) -> History {
        let mut history = History::default();
        let mut watcher = world.store.watch("", since).expect("all is remembered");
        while watcher.position() < world.store.revision() {
            let Next::Events { events, .. } = watcher.next(usize::MAX).await else { panic!("all is remembered") };
            for event in events {
                let bytes =
                    event.last.as_deref().or_else(|| event.current.as_ref().map(|record| record.value.as_ref()));
                history.see(bytes.expect("an object"), event.last.is_some());
            }
        }
        history
    }

    fn see(&mut self, bytes: &[u8], goes: bool) {
        let object: Value = serde_json::from_slice(bytes).expect("an object");
        let handle = object.text(&["spec", "csi", "volumeHandle"]).to_owned();
        match object.text(&["spec", "persistentVolumeReclaimPolicy"]) {
            "Delete" if phase(&object) == "Released" => drop(self.condemned.insert(handle)),
            "Retain" if goes => drop(self.retained.insert(handle)),
            _ => {}
        }
    }
}

/// Waits until no PV is terminating and to be deleted without a finalizer or a journal entry: this state is
/// lost if everything stops. It lasts until the provisioner receives the event; the KEP names it as a known
/// failure.
async fn until_noticed(world: &World) {
    let is_noticed = async || {
        let written = pending_deletions(world).await;
        let list = world.get("/api/v1/persistentvolumes").await.expect("a list");
        list.items(&["items"]).iter().all(|volume| {
            let deletes = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
            !deletes
                || !terminating(volume)
                || has_finalizer(volume)
                || written.iter().any(|entry| entry == name(volume))
        })
    };
    world.until("every end is noticed", || async { is_noticed().await.then_some(()) }).await;
}

async fn step(world: &mut World, storage: &Storage, claims: &mut [Option<Value>; CLAIMS], op: &Op) {
    let volume_of = |claim: &Value| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pvc-{}", uid(claim))},
        })
    };
    match op {
        Op::Create(at, retains) => {
            let claim = claim_of(&format!("claim-{at}"), &policy(*retains).to_lowercase());
            let (code, stored) = world.try_create(&claim).await;
            if code == 200 {
                claims[*at] = Some(stored);
            }
        }
        Op::DeleteClaim(at) => {
            if let Some(claim) = &claims[*at] {
                world.delete(claim, "").await;
            }
        }
        Op::DeleteVolume(at) => {
            if let Some(claim) = &claims[*at] {
                world.delete(&volume_of(claim), "").await;
            }
        }
        Op::Policy(at, retains) => {
            if let Some(claim) = &claims[*at] {
                let patch = json!({"spec": {"persistentVolumeReclaimPolicy": policy(*retains)}});
                let volume = volume_of(claim);
                world.send("PATCH", &path(&volume), "application/merge-patch+json", Some(&patch)).await;
            }
        }
        Op::Fault(call, fault) => storage.driver.faults().order(match fault {
            Fault::Fails => Order::fail(call, Code::Internal).times(1),
            Fault::Late => Order::fail(call, Code::DeadlineExceeded).after().times(1),
            Fault::Lost => Order::lose_answer(call).times(1),
        }),
        Op::Restart => {
            until_noticed(world).await;
            world.stop_controllers().await;
            world.start(&everything());
        }
        Op::Bound(at) => {
            if let Some(claim) = &claims[*at] {
                let is_settled = |found: Option<Value>| found.is_none_or(|claim| phase(&claim) != "Pending");
                world.until("bound", || async { is_settled(world.now(claim).await).then_some(()) }).await;
            }
        }
    }
}

/// H6, H10
#[test]
fn the_driver_has_the_volumes_that_objects_and_policies_require() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut runner = TestRunner::new(Config { cases: 30, max_shrink_iters: 8, ..Config::default() });
    let result = runner.run(&proptest::collection::vec(op(), 1..25), |ops| {
        runtime.block_on(play(ops));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
