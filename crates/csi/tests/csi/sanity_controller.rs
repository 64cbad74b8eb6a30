//! The public sanity suite's checks of the controller service, snapshots apart.

use crate::world::*;
use csi::Code;
use csi::v1::controller_service_capability::{Type, rpc};
use csi::v1::volume_content_source::{self as source, VolumeSource};
use csi::v1::*;

#[tokio::test]
async fn controller_get_capabilities_returns_known_calls_only() {
    for world in [World::new().await, World::full().await] {
        let answer = world.driver.controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await.unwrap();
        assert!(!answer.capabilities.is_empty());
        for capability in &answer.capabilities {
            let Type::Rpc(call) = capability.r#type.as_ref().expect("a capability has a type");
            assert_ne!(call.r#type(), rpc::Type::Unknown);
        }
    }
}

fn validate(id: &str, volume_capabilities: Vec<VolumeCapability>) -> ValidateVolumeCapabilitiesRequest {
    ValidateVolumeCapabilitiesRequest { volume_id: id.to_owned(), volume_capabilities, ..Default::default() }
}

#[tokio::test]
async fn validate_volume_capabilities_wants_id_and_capabilities_of_a_known_volume() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    let check =
        async |id: &str, capabilities| world.driver.validate_volume_capabilities(validate(id, capabilities)).await;
    assert_eq!(code(check("", vec![writer()]).await), Code::InvalidArgument);
    assert_eq!(code(check(&id, vec![]).await), Code::InvalidArgument);
    assert_eq!(code(check(UNKNOWN, vec![writer()]).await), Code::NotFound);
    let confirmed = check(&id, vec![writer()]).await.unwrap().confirmed.expect("a writer is possible");
    assert_eq!(confirmed.volume_capabilities, [writer()]);
}

#[tokio::test]
async fn get_capacity_answers_an_empty_request() {
    let world = World::new().await;
    let answer = world.driver.get_capacity(GetCapacityRequest::default()).await.unwrap();
    assert!(answer.available_capacity > 0);
}

#[tokio::test]
async fn list_volumes_has_ids_and_follows_creation_and_deletion() {
    let world = World::new().await;
    assert!(world.ids().await.is_empty());
    let first = world.create("a").await.volume_id;
    let second = world.create("b").await.volume_id;
    let mut expected = vec![first.clone(), second];
    expected.sort();
    assert_eq!(world.ids().await, expected);
    world.delete(&first).await;
    assert_eq!(world.ids().await.len(), 1);
    assert!(!world.ids().await.contains(&first));
}

#[tokio::test]
async fn list_volumes_aborts_on_a_bad_starting_token() {
    let world = World::new().await;
    let request = ListVolumesRequest { max_entries: 0, starting_token: "invalid-token".to_owned() };
    assert_eq!(code(world.driver.list_volumes(request).await), Code::Aborted);
}

#[tokio::test]
async fn list_volumes_gives_every_volume_once_page_by_page() {
    let world = World::new().await;
    for name in 0..7 {
        world.create(&name.to_string()).await;
    }
    for max_entries in 1..9 {
        let (mut seen, mut starting_token) = (Vec::new(), String::new());
        loop {
            let page = world.driver.list_volumes(ListVolumesRequest { max_entries, starting_token }).await.unwrap();
            assert!(page.entries.len() <= max_entries as usize);
            seen.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
            starting_token = page.next_token;
            if starting_token.is_empty() {
                break;
            }
        }
        assert_eq!(seen, world.ids().await, "pages of {max_entries}");
    }
    let negative = ListVolumesRequest { max_entries: -1, starting_token: String::new() };
    assert_eq!(code(world.driver.list_volumes(negative).await), Code::InvalidArgument);
}

#[tokio::test]
async fn create_volume_wants_a_name_and_capabilities() {
    let world = World::new().await;
    assert_eq!(code(world.driver.create_volume(create("")).await), Code::InvalidArgument);
    let without = CreateVolumeRequest { volume_capabilities: vec![], ..create("a") };
    assert_eq!(code(world.driver.create_volume(without).await), Code::InvalidArgument);
    assert!(world.ids().await.is_empty());
}

#[tokio::test]
async fn create_volume_returns_an_id_and_at_least_the_requested_size() {
    let world = World::new().await;
    let volume = world.create("a").await;
    assert!(!volume.volume_id.is_empty() && volume.capacity_bytes >= 10 * GIB, "{volume:?}");
    let unsized_request = CreateVolumeRequest { capacity_range: None, ..create("b") };
    let volume = world.driver.create_volume(unsized_request).await.unwrap().volume.unwrap();
    assert!(volume.capacity_bytes > 0);
}

#[tokio::test]
async fn create_volume_twice_by_one_name_and_size_is_one_volume() {
    let world = World::new().await;
    let (first, second) = (world.create("a").await, world.create("a").await);
    assert_eq!(first, second);
    assert_eq!(world.ids().await.len(), 1);
}

#[tokio::test]
async fn create_volume_by_one_name_with_another_size_already_exists() {
    let world = World::new().await;
    let exact = |bytes| CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: bytes }),
        ..create("a")
    };
    world.driver.create_volume(exact(10 * GIB)).await.unwrap();
    assert_eq!(code(world.driver.create_volume(exact(20 * GIB)).await), Code::AlreadyExists);
    assert_eq!(code(world.driver.create_volume(exact(5 * GIB)).await), Code::AlreadyExists);
    world.driver.create_volume(exact(10 * GIB)).await.unwrap();
}

#[tokio::test]
async fn create_volume_takes_a_name_of_128_characters() {
    let world = World::new().await;
    let name = "x".repeat(128);
    let volume = world.create(&name).await;
    assert_eq!(world.create(&name).await.volume_id, volume.volume_id);
    let longer = create(&"x".repeat(129));
    assert_eq!(code(world.driver.create_volume(longer).await), Code::InvalidArgument);
}

fn clone_of(id: &str, name: &str) -> CreateVolumeRequest {
    let volume = source::Type::Volume(VolumeSource { volume_id: id.to_owned() });
    CreateVolumeRequest { volume_content_source: Some(VolumeContentSource { r#type: Some(volume) }), ..create(name) }
}

#[tokio::test]
async fn create_volume_from_a_volume_names_its_source_and_an_unknown_one_is_not_found() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    write(&world.data(&id), "file", "content");
    let clone = world.driver.create_volume(clone_of(&id, "b")).await.unwrap().volume.unwrap();
    assert_eq!(clone.content_source, clone_of(&id, "b").volume_content_source);
    assert_eq!(std::fs::read_to_string(world.data(&clone.volume_id).join("file")).unwrap(), "content");
    assert_eq!(code(world.driver.create_volume(clone_of(UNKNOWN, "c")).await), Code::NotFound);
}

#[tokio::test]
async fn create_volume_takes_known_mutable_parameters_only() {
    let world = World::new().await;
    let with = |key: &str| CreateVolumeRequest {
        mutable_parameters: [(key.to_owned(), "1".to_owned())].into(),
        ..create(key)
    };
    world.driver.create_volume(with("iops")).await.unwrap();
    world.driver.create_volume(with("iops")).await.unwrap();
    assert_eq!(code(world.driver.create_volume(with("unknown")).await), Code::InvalidArgument);
}

#[tokio::test]
async fn delete_volume_wants_an_id_and_is_content_with_an_unknown_one() {
    let world = World::new().await;
    assert_eq!(code(world.driver.delete_volume(delete("")).await), Code::InvalidArgument);
    world.driver.delete_volume(delete(UNKNOWN)).await.unwrap();
    let id = world.create("a").await.volume_id;
    world.delete(&id).await;
    world.delete(&id).await;
    assert!(!world.data(&id).exists());
}

fn attach(id: &str, node: &str) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(writer()),
        ..Default::default()
    }
}

fn detach(id: &str, node: &str) -> ControllerUnpublishVolumeRequest {
    ControllerUnpublishVolumeRequest { volume_id: id.to_owned(), node_id: node.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn controller_publish_wants_volume_node_and_capability_and_knows_both() {
    let world = World::full().await;
    let id = world.create("a").await.volume_id;
    let publish = async |request| world.driver.controller_publish_volume(request).await;
    assert_eq!(code(publish(attach("", "node-a")).await), Code::InvalidArgument);
    assert_eq!(code(publish(attach(&id, "")).await), Code::InvalidArgument);
    let without = ControllerPublishVolumeRequest { volume_capability: None, ..attach(&id, "node-a") };
    assert_eq!(code(publish(without).await), Code::InvalidArgument);
    assert_eq!(code(publish(attach(UNKNOWN, "node-a")).await), Code::NotFound);
    assert_eq!(code(publish(attach(&id, "some-fake-node-id")).await), Code::NotFound);
}

#[tokio::test]
async fn controller_publish_and_unpublish_are_idempotent_ten_times_over() {
    let world = World::full().await;
    let id = world.create("a").await.volume_id;
    for _ in 0..10 {
        world.driver.controller_publish_volume(attach(&id, "node-a")).await.unwrap();
    }
    for _ in 0..10 {
        world.driver.controller_unpublish_volume(detach(&id, "node-a")).await.unwrap();
    }
    for _ in 0..10 {
        world.delete(&id).await;
        world.driver.controller_unpublish_volume(detach(&id, "node-a")).await.unwrap();
    }
    assert_eq!(code(world.driver.controller_unpublish_volume(detach("", "")).await), Code::InvalidArgument);
}

#[tokio::test]
async fn controller_publish_with_another_readonly_flag_already_exists() {
    let world = World::full().await;
    let id = world.create("a").await.volume_id;
    world.driver.controller_publish_volume(attach(&id, "node-a")).await.unwrap();
    let readonly = ControllerPublishVolumeRequest { readonly: true, ..attach(&id, "node-a") };
    assert_eq!(code(world.driver.controller_publish_volume(readonly).await), Code::AlreadyExists);
}

fn expand(id: &str, bytes: i64) -> ControllerExpandVolumeRequest {
    ControllerExpandVolumeRequest { volume_id: id.to_owned(), capacity_range: at_least(bytes), ..Default::default() }
}

#[tokio::test]
async fn controller_expand_wants_an_id_and_a_range_and_returns_exactly_the_requested_size() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    let grow = async |request| world.driver.controller_expand_volume(request).await;
    assert_eq!(code(grow(expand("", GIB)).await), Code::InvalidArgument);
    assert_eq!(code(grow(ControllerExpandVolumeRequest::default()).await), Code::InvalidArgument);
    let without = ControllerExpandVolumeRequest { capacity_range: None, ..expand(&id, 0) };
    assert_eq!(code(grow(without).await), Code::InvalidArgument);
    assert_eq!(code(grow(expand(UNKNOWN, GIB)).await), Code::NotFound);
    for _ in 0..10 {
        assert_eq!(grow(expand(&id, 11 * GIB)).await.unwrap().capacity_bytes, 11 * GIB);
    }
}

#[tokio::test]
async fn controller_modify_wants_a_known_volume_and_known_parameters() {
    let world = World::new().await;
    let plain = world.create("a").await.volume_id;
    let with = CreateVolumeRequest { mutable_parameters: [("iops".into(), "1".into())].into(), ..create("b") };
    let tuned = world.driver.create_volume(with).await.unwrap().volume.unwrap().volume_id;
    let modify = async |id: &str, key: &str| {
        let mutable_parameters = [(key.to_owned(), "2".to_owned())].into();
        let request =
            ControllerModifyVolumeRequest { volume_id: id.to_owned(), mutable_parameters, ..Default::default() };
        world.driver.controller_modify_volume(request).await
    };
    assert_eq!(code(modify("", "iops").await), Code::InvalidArgument);
    assert_eq!(code(modify(UNKNOWN, "iops").await), Code::NotFound);
    assert_eq!(code(modify(&plain, "unknown").await), Code::InvalidArgument);
    for id in [&plain, &tuned, &tuned] {
        modify(id, "iops").await.unwrap();
    }
}
