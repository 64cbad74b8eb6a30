//! The public sanity suite's checks of snapshots.

use crate::world::*;
use csi::Code;
use csi::v1::volume_content_source::{self as source, SnapshotSource};
use csi::v1::*;

fn snapshot_of(id: &str, name: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest { source_volume_id: id.to_owned(), name: name.to_owned(), ..Default::default() }
}

async fn take(world: &World, id: &str, name: &str) -> Snapshot {
    world.driver.create_snapshot(snapshot_of(id, name)).await.unwrap().snapshot.unwrap()
}

async fn list(world: &World, request: ListSnapshotsRequest) -> (Vec<String>, String) {
    let answer = world.driver.list_snapshots(request).await.unwrap();
    let ids = answer.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect();
    (ids, answer.next_token)
}

#[tokio::test]
async fn create_snapshot_wants_a_name_and_a_source() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    assert_eq!(code(world.driver.create_snapshot(snapshot_of(&id, "")).await), Code::InvalidArgument);
    assert_eq!(code(world.driver.create_snapshot(snapshot_of("", "s")).await), Code::InvalidArgument);
    assert_eq!(code(world.driver.create_snapshot(snapshot_of(UNKNOWN, "s")).await), Code::NotFound);
}

#[tokio::test]
async fn create_snapshot_is_one_by_name_and_tells_sources_apart() {
    let world = World::new().await;
    let (first, second) = (world.create("a").await.volume_id, world.create("b").await.volume_id);
    let snapshot = take(&world, &first, "s").await;
    assert!(!snapshot.snapshot_id.is_empty() && snapshot.ready_to_use, "{snapshot:?}");
    assert_eq!(snapshot.source_volume_id, first);
    assert!(snapshot.creation_time.is_some_and(|time| time.seconds > 0));
    assert_eq!(take(&world, &first, "s").await, snapshot);
    assert_eq!(code(world.driver.create_snapshot(snapshot_of(&second, "s")).await), Code::AlreadyExists);
    take(&world, &first, &"x".repeat(128)).await;
}

#[tokio::test]
async fn delete_snapshot_wants_an_id_and_is_content_with_an_unknown_one() {
    let world = World::new().await;
    let delete = async |id: &str| {
        let request = DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        world.driver.delete_snapshot(request).await
    };
    assert_eq!(code(delete("").await), Code::InvalidArgument);
    delete(UNKNOWN).await.unwrap();
    let id = world.create("a").await.volume_id;
    let snapshot = take(&world, &id, "s").await.snapshot_id;
    for _ in 0..2 {
        delete(&snapshot).await.unwrap();
    }
    assert!(list(&world, ListSnapshotsRequest::default()).await.0.is_empty());
}

#[tokio::test]
async fn get_snapshot_finds_one_and_refuses_none_and_unknown() {
    let world = World::new().await;
    let get = async |id: &str| {
        world.driver.get_snapshot(GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() }).await
    };
    assert_eq!(code(get("").await), Code::InvalidArgument);
    assert_eq!(code(get(UNKNOWN).await), Code::NotFound);
    let id = world.create("a").await.volume_id;
    let snapshot = take(&world, &id, "s").await;
    assert_eq!(get(&snapshot.snapshot_id).await.unwrap().snapshot, Some(snapshot));
}

#[tokio::test]
async fn list_snapshots_filters_by_id_and_by_source() {
    let world = World::new().await;
    let (first, second) = (world.create("a").await.volume_id, world.create("b").await.volume_id);
    let one = take(&world, &first, "s1").await.snapshot_id;
    let other = take(&world, &second, "s2").await.snapshot_id;
    let by_id = |id: &str| ListSnapshotsRequest { snapshot_id: id.to_owned(), ..Default::default() };
    let by_source = |id: &str| ListSnapshotsRequest { source_volume_id: id.to_owned(), ..Default::default() };
    assert_eq!(list(&world, by_id(&one)).await.0, std::slice::from_ref(&one));
    assert_eq!(list(&world, by_source(&second)).await.0, [other]);
    assert!(list(&world, by_id(UNKNOWN)).await.0.is_empty());
    assert!(list(&world, by_source(UNKNOWN)).await.0.is_empty());
    assert_eq!(list(&world, ListSnapshotsRequest::default()).await.0.len(), 2);
    let bad = ListSnapshotsRequest { starting_token: "invalid-token".to_owned(), ..Default::default() };
    assert_eq!(code(world.driver.list_snapshots(bad).await), Code::Aborted);
}

#[tokio::test]
async fn list_snapshots_goes_on_where_the_last_page_ended() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    for name in 0..5 {
        take(&world, &id, &name.to_string()).await;
    }
    let page = |max_entries, starting_token| ListSnapshotsRequest { max_entries, starting_token, ..Default::default() };
    let (first, token) = list(&world, page(2, String::new())).await;
    assert_eq!(first.len(), 2);
    let (rest, end) = list(&world, page(0, token)).await;
    assert_eq!((rest.len(), end.as_str()), (3, ""));
    assert_eq!([first, rest].concat(), list(&world, ListSnapshotsRequest::default()).await.0);
}

#[tokio::test]
async fn create_volume_from_a_snapshot_has_its_data_of_then_and_an_unknown_one_is_not_found() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    write(&world.data(&id), "file", "then");
    let snapshot = take(&world, &id, "s").await.snapshot_id;
    write(&world.data(&id), "file", "now");
    world.delete(&id).await;
    let from = |snapshot: &str, name: &str| {
        let snapshot = source::Type::Snapshot(SnapshotSource { snapshot_id: snapshot.to_owned() });
        let volume_content_source = Some(VolumeContentSource { r#type: Some(snapshot) });
        CreateVolumeRequest { volume_content_source, ..create(name) }
    };
    let volume = world.driver.create_volume(from(&snapshot, "b")).await.unwrap().volume.unwrap();
    assert_eq!(volume.content_source, from(&snapshot, "b").volume_content_source);
    assert_eq!(std::fs::read_to_string(world.data(&volume.volume_id).join("file")).unwrap(), "then");
    assert_eq!(code(world.driver.create_volume(from(UNKNOWN, "c")).await), Code::NotFound);
}
