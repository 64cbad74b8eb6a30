//! Missing data of volumes is reported, and deleted data leaves events.

use crate::storage::*;
use crate::world::*;
use csi::directory::Order;
use object::access::{Access, name, namespace};
use object::{Value, condition, json};

const MISSING: &str = "VolumeDataMissing";

/// A test cluster whose PVs are compared with the driver's volumes every second.
async fn monitored() -> (World, Storage) {
    let (mut world, storage) = bare_world_with(options()).await;
    let mut endpoint = storage.endpoint();
    endpoint.options.monitor_interval_s = 1;
    world.setup.drivers = vec![endpoint];
    world.start(&format!("{},{MONITOR}", everything()));
    (world, storage)
}

fn figure(missing: usize) -> String {
    format!("csi_volumes_data_missing{{driver_name=\"{DRIVER}\"}} {missing}\n")
}

async fn until_figure(world: &World, missing: usize) {
    world.until_moment("the figure", || world.figures().contains(&figure(missing))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_data_is_reported_until_it_is_restored() {
    let (world, storage) = monitored().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    let whole = world.create(claim_of("whole", "c")).await;
    let untouched = until_volume(&world, &whole).await;
    let mut foreign = backup(&volume);
    foreign["metadata"] = json!({"name": "foreign"});
    foreign["spec"]["csi"] = json!({"driver": "other.example.com", "volumeHandle": "h"});
    foreign["spec"].cut(&["claimRef"]);
    let foreign = world.create(foreign).await;

    // First only the data is missing, then the whole volume.
    let home = storage.home(&volume);
    for lost in [home.join("data"), home.clone()] {
        let aside = home.with_file_name("aside");
        std::fs::rename(&lost, &aside).expect("it can be moved");
        let says =
            world.until_is(&volume, "says that its data is missing", |it| it["status"]["reason"] == MISSING).await;
        let message = says.text(&["status", "message"]);
        assert!(
            message.starts_with(&format!("PersistentVolume {}: its data is missing: ", name(&volume))),
            "{message}"
        );
        let has_condition = |claim: &Value| condition::is_true(claim, MISSING);
        world.until_is(&claim, "says that its data is missing", has_condition).await;
        for object in [&claim, &volume] {
            let event = world.until_event(object, MISSING).await;
            let begin = format!("{} ", object.text(&["kind"]));
            assert!(event["type"] == "Warning" && event.text(&["message"]).starts_with(&begin), "{event}");
        }
        until_figure(&world, 1).await;
        assert!(!lost.exists(), "nothing was created in its place");
        for other in [&untouched, &foreign] {
            assert!(world.now(other).await.expect("it is there").text(&["status", "reason"]).is_empty());
        }
        let claim_of_other = world.now(&whole).await.expect("it is there");
        assert!(condition::get(&claim_of_other, MISSING).is_none(), "{claim_of_other}");

        std::fs::rename(&aside, &lost).expect("it can be moved back");
        world.until_is(&volume, "says nothing any more", |volume| !volume.has(&["status", "reason"])).await;
        world.until_is(&claim, "says nothing any more", |claim| condition::get(claim, MISSING).is_none()).await;
        world.until_event(&volume, "VolumeDataFound").await;
        until_figure(&world, 0).await;
    }
    assert_eq!(namespace(&claim), "default");
    world.stop().await;
}

/// The driver has deleted the volume, and its responses are lost: the PV stays for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_being_deleted_is_not_reported_as_missing_data() {
    let (world, storage) = monitored().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    storage.driver.faults().order(Order::lose_answer("DeleteVolume"));
    world.delete(&claim, "").await;
    storage.until_called("DeleteVolume", 2).await;
    let lists = storage.calls("ListVolumes").len();
    storage.until_called("ListVolumes", lists + 3).await;
    let leaving = world.now(&volume).await.expect("its object is there");
    assert_ne!(leaving["status"]["reason"], MISSING);
    assert!(world.figures().contains(&figure(0)), "{}", world.figures());
    storage.driver.faults().clear();
    world.until_gone(&volume).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_data_leaves_a_trace_on_volume_and_claim() {
    let (world, _storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    world.delete(&claim, "").await;
    for object in [&claim, &volume] {
        let event = world.until_event(object, "VolumeDataDeleted").await;
        let message = event.text(&["message"]);
        assert!(
            message.starts_with(&format!("{} ", object.text(&["kind"]))) && message.contains("policy"),
            "{message}"
        );
    }
    world.stop().await;
}

/// A volume whose data disappears while the driver runs can be deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_with_missing_data_can_be_deleted() {
    let (world, storage) = monitored().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    std::fs::remove_dir_all(storage.home(&volume)).expect("it can be removed");
    world.until_is(&volume, "says that its data is missing", |it| it["status"]["reason"] == MISSING).await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);
    until_figure(&world, 0).await;
    world.stop().await;
}
