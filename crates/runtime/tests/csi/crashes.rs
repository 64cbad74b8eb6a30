//! The controllers stop at every write and at every call, and their successors repair what is left. H6, H7

use crate::pairs::*;
use crate::storage::*;
use crate::world::*;
use csi::directory::{Gate, Order};
use object::access::Access;
use object::{Value, json};

/// Where everything stops.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// At the write after this many others: before it, or after it.
    Write(usize, Mishap),
    /// At the first call of a name.
    Call(&'static str, bool),
}

/// What happens while no controller runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Nothing,
    ClaimGoes,
    VolumeGoes,
}

struct Life {
    world: World,
    storage: Storage,
    gate: Gate,
    point: Point,
    meanwhile: Meanwhile,
    crashed: bool,
}

impl Life {
    async fn new(point: Point, meanwhile: Meanwhile) -> Life {
        let (world, storage) = world().await;
        let gate = Gate::closed();
        match point {
            Point::Write(after, mishap) => world.faults.mishap("", after, mishap),
            Point::Call(name, after) => {
                let order = Order::hold(name, &gate).times(1);
                storage.driver.faults().order(if after { order.after() } else { order });
            }
        }
        Life { world, storage, gate, point, meanwhile, crashed: false }
    }

    /// Waits for a condition, and handles the crash if it happens before.
    async fn until(&mut self, what: &str, claim: &Value, check: impl AsyncFn(&World) -> bool) {
        loop {
            let is_so = async {
                let world = &self.world;
                world.until(what, || async { check(world).await.then_some(()) }).await;
            };
            let frozen = async {
                match self.point {
                    _ if self.crashed => std::future::pending().await,
                    Point::Call(..) => self.gate.reached(1).await,
                    Point::Write(..) => {
                        while self.world.faults.mishap_waits() {
                            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = is_so => return,
                () = frozen => {}
            }
            self.crash(claim).await;
        }
    }

    async fn crash(&mut self, claim: &Value) {
        self.crashed = true;
        self.world.stop_controllers().await;
        self.gate.open();
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": format!("pvc-{}", object::access::uid(claim))},
        });
        match self.meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::ClaimGoes => drop(self.world.delete(claim, "").await),
            Meanwhile::VolumeGoes => drop(self.world.delete(&volume, "").await),
        }
        self.world.start(&everything());
    }
}

/// A claim is created, bound and deleted; returns whether the crash happened.
async fn live(policy: &str, point: Point, meanwhile: Meanwhile) -> bool {
    let case = format!("{policy} {point:?} {meanwhile:?}");
    let mut life = Life::new(point, meanwhile).await;
    life.world.create(class("c", policy, json!({}))).await;
    let claim = life.world.create(claim_of("claim", "c")).await;
    let is_bound_or_gone = async |world: &World| {
        let found = world.now(&claim).await;
        found.is_none_or(|claim| phase(&claim) == "Bound")
    };
    life.until(&format!("{case}: bound"), &claim, is_bound_or_gone).await;
    life.world.delete(&claim, "").await;
    let retains = policy == "Retain";
    let is_over = async |world: &World| {
        let volumes = world.get("/api/v1/persistentvolumes").await.expect("a list");
        let volumes = volumes.items(&["items"]);
        let settled = journal(world).await.is_empty() && world.now(&claim).await.is_none();
        settled && volumes.iter().all(|volume| retains && phase(volume) == "Released")
    };
    life.until(&format!("{case}: gone"), &claim, is_over).await;
    // The driver must have the volumes of objects and policies: only a user may have deleted the PV of a
    // retained volume.
    if retains && meanwhile == Meanwhile::VolumeGoes {
        assert!(handles(&life.world).await.is_subset(&life.storage.handles()), "{case}");
    } else {
        until_in_step(&life.world, &life.storage, &case).await;
    }
    let crashed = life.crashed;
    life.world.stop().await;
    crashed
}

/// Every write of every controller, executed or not; upstream loses volumes here.
async fn at_every_write(policy: &str, mishap: Mishap, meanwhile: Meanwhile) {
    let mut after = 0;
    while live(policy, Point::Write(after, mishap), meanwhile).await {
        after += 1;
        assert!(after < 100, "it takes so many writes and does not end");
    }
    // Journal writes that wait for another write are combined: on a slow machine there are fewer.
    assert!(after > 5, "it takes more writes than {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaks_when_a_write_is_never_executed() {
    at_every_write("Delete", Mishap::Stuck, Meanwhile::Nothing).await;
    at_every_write("Delete", Mishap::Stuck, Meanwhile::ClaimGoes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaks_when_the_response_to_a_write_is_lost() {
    at_every_write("Delete", Mishap::AnswerStuck, Meanwhile::Nothing).await;
    at_every_write("Delete", Mishap::AnswerStuck, Meanwhile::ClaimGoes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaks_when_the_pv_is_deleted_meanwhile() {
    at_every_write("Delete", Mishap::Stuck, Meanwhile::VolumeGoes).await;
    at_every_write("Retain", Mishap::AnswerStuck, Meanwhile::ClaimGoes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaks_when_the_controllers_stop_during_a_call() {
    for policy in ["Delete", "Retain"] {
        for meanwhile in [Meanwhile::Nothing, Meanwhile::ClaimGoes, Meanwhile::VolumeGoes] {
            for after in [false, true] {
                assert!(live(policy, Point::Call("CreateVolume", after), meanwhile).await);
                let deletes = live(policy, Point::Call("DeleteVolume", after), meanwhile).await;
                assert_eq!(deletes, policy == "Delete");
            }
        }
    }
}

/// Provisions and binds a volume, and returns its journal page, so that it can be restored.
async fn made_and_written_down(world: &World, storage: &Storage) -> (Value, Value, Value) {
    world.create(class("c", "Delete", json!({}))).await;
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("CreateVolume", &gate).times(1));
    let claim = world.create(claim_of("first", "c")).await;
    until_reached(&gate).await;
    let written = world.get(JOURNAL).await.expect("the journal");
    gate.open();
    let volume = until_volume(world, &claim).await;
    until_bound(world, &claim, object::access::name(&volume)).await;
    until_settled(world).await;
    world.merge(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await;
    (claim, volume, json!({"data": written["data"]}))
}

const JOURNAL: &str = "/api/v1/namespaces/kube-system/configmaps/mainstay-csi-journal";

/// Restores a journal page, as if the controllers had stopped before they removed it.
async fn write_down_again(world: &World, written: &Value) {
    let (code, answer) = world.send("PATCH", JOURNAL, "application/merge-patch+json", Some(written)).await;
    assert_eq!(code, 200, "{answer}");
}

/// H6, O4: a volume is moved to another claim while the journal still has its creation for the first one. A
/// successor finds the PV bound to another claim, and does not delete the volume, which is the same. (It was
/// deleted under its new claim.)
#[tokio::test(flavor = "multi_thread")]
async fn o4_a_leftover_journal_entry_does_not_delete_a_moved_volume() {
    let (mut world, storage) = world().await;
    let (first, volume, written) = made_and_written_down(&world, &storage).await;
    world.delete(&first, "").await;
    world.until_gone(&first).await;
    world.stop_controllers().await;
    write_down_again(&world, &written).await;
    let next = json!({"namespace": "default", "name": "second", "uid": null, "resourceVersion": null});
    world.merge(&volume, json!({"spec": {"claimRef": next}})).await;
    let second = world.create(claim_of("second", "c")).await;
    world.start(&everything());
    until_bound(&world, &second, object::access::name(&volume)).await;
    until_settled(&world).await;
    assert!(storage.handles().contains(volume.text(&["spec", "csi", "volumeHandle"])), "its data is there");
    assert_eq!(storage.calls("DeleteVolume").len(), 0);
    world.stop().await;
}

/// H6: the same for a volume that was imported under a PV of another name: it gets no second PV with its
/// class's policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_leftover_journal_entry_creates_no_second_pv_for_an_imported_volume() {
    let (mut world, storage) = world().await;
    let (_, volume, written) = made_and_written_down(&world, &storage).await;
    world.stop_controllers().await;
    world.merge(&volume, json!({"metadata": {"finalizers": null}})).await;
    world.delete(&volume, "").await;
    let mut imported = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "imported"}, "spec": volume["spec"],
    });
    imported["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    imported["spec"]["claimRef"] = Value::Null;
    world.create(imported).await;
    write_down_again(&world, &written).await;
    world.start(&everything());
    until_settled(&world).await;
    assert_eq!(storage.calls("CreateVolume").len(), 2, "the journal entry was resumed");
    let volumes = world.get("/api/v1/persistentvolumes").await.expect("a list");
    let names: Vec<&str> = volumes.items(&["items"]).iter().map(object::access::name).collect();
    assert_eq!(names, ["imported"]);
    assert_eq!(storage.calls("DeleteVolume").len(), 0);
    world.stop().await;
}

/// H6: the same while its claim still waits: after any number of attempts it gets no PV for a volume that
/// another PV names. (It got one at the second attempt, and deleting that would have deleted the other's
/// data.)
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_retries_gets_no_second_pv_for_an_imported_volume() {
    let (world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    world.faults.refuse_at(Some(("POST", "/persistentvolumes", 403)));
    let claim = world.create(claim_of("claim", "c")).await;
    let is_refused = |asked: &Asked| asked.path.ends_with("/persistentvolumes") && asked.code == 403;
    world.requests.until(is_refused, 1).await;
    let (handle, _) = storage.driver.volumes().remove(0);
    let mut imported = a_volume("imported", "1Gi", json!({}));
    imported["spec"].cut(&["hostPath"]);
    imported["spec"]["csi"] = json!({"driver": DRIVER, "volumeHandle": handle});
    world.create(imported).await;
    until_told(&world, &claim, "is already used by PersistentVolume imported").await;
    world.faults.refuse_at(None);
    storage.until_called("CreateVolume", storage.calls("CreateVolume").len() + 3).await;
    assert_eq!(world.names("/api/v1/persistentvolumes").await, ["imported"]);
    world.stop().await;
}

/// H6: while the journal has the creation of a volume, the finalizer of its PV is not removed: a successor
/// that does not know about the deletion would create the PV again, with its class's policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_pv_is_released_only_when_no_journal_entry_would_create_it_again() {
    let (world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("CreateVolume", &gate).times(1));
    let claim = world.create(claim_of("claim", "c")).await;
    until_reached(&gate).await;
    world.faults.refuse_at(Some(("PATCH", "mainstay-csi-journal", 503)));
    gate.open();
    let volume = until_volume(&world, &claim).await;
    until_bound(&world, &claim, object::access::name(&volume)).await;
    world.merge(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await;
    world.delete(&volume, "").await;
    world.delete(&claim, "").await;
    world.until_gone(&claim).await;
    let is_tried = |asked: &Asked| asked.path.ends_with("mainstay-csi-journal") && asked.code == 503;
    let before = world.requests.count(is_tried);
    world.requests.until(is_tried, before + 3).await;
    assert!(has_finalizer(&world.now(&volume).await.expect("it is still there")));
    world.faults.refuse_at(None);
    world.until_gone(&volume).await;
    assert_eq!(journal(&world).await, [] as [&str; 0]);
    assert_eq!(storage.handles().len(), 1, "it is retained");
    world.stop().await;
}
