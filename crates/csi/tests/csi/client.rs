//! The client: what it makes of drivers that answer, fail, are late, or are not there.

use crate::world::*;

#[tokio::test]
async fn a_driver_says_what_it_is_and_volumes_come_and_go() {
    let world = World::new().await;
    let about = world.driver.about().await.unwrap();
    assert_eq!(about.name, csi::directory::DEFAULT_NAME);
    assert!(about.creates_volumes() && about.expands_in_controller() && !about.attaches(), "{about:?}");
    let volume = world.create("pvc-1").await;
    assert_eq!(world.ids().await, [volume.volume_id.as_str()]);
    world.driver.delete_volume(delete(&volume.volume_id)).await.unwrap();
    assert!(world.ids().await.is_empty());
}
