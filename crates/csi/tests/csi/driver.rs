//! The directory driver beyond the sanity suite.

use crate::world::*;
use csi::Code;
use csi::directory::{Expansion, Gate, Options, Order};
use csi::v1::volume_capability::access_mode::Mode;
use csi::v1::volume_capability::{AccessType, BlockVolume};
use csi::v1::volume_content_source::{self as source, VolumeSource};
use csi::v1::*;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[tokio::test]
async fn a_target_with_other_files_is_not_changed() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    let (full, empty) = (world.path("full"), world.path("empty"));
    for directory in [&full, &empty] {
        std::fs::create_dir(directory).unwrap();
    }
    write(Path::new(&full), "file", "precious");
    let request = |target: &str| NodePublishVolumeRequest {
        volume_id: id.clone(),
        target_path: target.to_owned(),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    for target in [full.clone(), format!("{full}/file"), world.path("no/such/directory")] {
        assert_eq!(
            code(world.driver.node_publish_volume(request(&target)).await),
            Code::FailedPrecondition,
            "{target}"
        );
        let unpublish = NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: target };
        world.driver.node_unpublish_volume(unpublish).await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(format!("{full}/file")).unwrap(), "precious");
    // Some callers create an empty directory at the target.
    world.driver.node_publish_volume(request(&empty)).await.unwrap();
    assert!(Path::new(&empty).is_symlink());
}

#[tokio::test]
async fn a_volume_in_use_is_not_deleted() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    let target = world.path("target");
    let publish = NodePublishVolumeRequest {
        volume_id: id.clone(),
        target_path: target.clone(),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    world.driver.node_publish_volume(publish).await.unwrap();
    let failure = world.driver.delete_volume(delete(&id)).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.message),
        (Code::FailedPrecondition, format!("{id} is still published at {target}"))
    );
    // A published volume whose links no longer exist can be deleted.
    std::fs::remove_file(&target).unwrap();
    world.delete(&id).await;
}

#[tokio::test]
async fn an_attached_volume_is_not_deleted_and_not_attached_elsewhere() {
    let world = World::full().await;
    let id = world.create("a").await.volume_id;
    let attach = async |node: &str, mode| {
        let request = ControllerPublishVolumeRequest {
            volume_id: id.clone(),
            node_id: node.to_owned(),
            volume_capability: Some(capability(mode)),
            ..Default::default()
        };
        world.driver.controller_publish_volume(request).await
    };
    attach("node-a", Mode::SingleNodeWriter).await.unwrap();
    assert_eq!(code(attach("node-b", Mode::SingleNodeWriter).await), Code::FailedPrecondition);
    attach("node-b", Mode::MultiNodeMultiWriter).await.unwrap();
    assert_eq!(code(world.driver.delete_volume(delete(&id)).await), Code::FailedPrecondition);
    let entries = world.driver.all_volumes().await.unwrap();
    assert_eq!(entries[0].status.as_ref().unwrap().published_node_ids, ["node-a", "node-b"]);
    let request = ControllerUnpublishVolumeRequest { volume_id: id.clone(), ..Default::default() };
    world.driver.controller_unpublish_volume(request).await.unwrap();
    world.delete(&id).await;
}

#[tokio::test]
async fn block_access_is_refused_by_every_call() {
    let world = World::new().await;
    let block = VolumeCapability { access_type: Some(AccessType::Block(BlockVolume {})), ..writer() };
    let request = CreateVolumeRequest { volume_capabilities: vec![writer(), block.clone()], ..create("a") };
    let failure = world.driver.create_volume(request).await.unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument);
    assert!(failure.message.contains("block access is not supported"), "{failure}");
    let request = GetCapacityRequest { volume_capabilities: vec![block], ..Default::default() };
    assert_eq!(world.driver.get_capacity(request).await.unwrap().available_capacity, 0);
}

#[tokio::test]
async fn a_repeated_request_with_other_arguments_already_exists() {
    let world = World::new().await;
    let other = world.create("other").await.volume_id;
    let with = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    let first =
        CreateVolumeRequest { parameters: with("class", "gold"), mutable_parameters: with("iops", "1"), ..create("a") };
    let volume = world.driver.create_volume(first.clone()).await.unwrap().volume.unwrap();
    assert_eq!(volume.volume_context, with("class", "gold"));
    let source = source::Type::Volume(VolumeSource { volume_id: other });
    let cases = [
        CreateVolumeRequest { parameters: with("class", "silver"), ..first.clone() },
        CreateVolumeRequest { parameters: Default::default(), ..first.clone() },
        CreateVolumeRequest { mutable_parameters: with("iops", "2"), ..first.clone() },
        CreateVolumeRequest {
            volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
            ..first.clone()
        },
    ];
    for case in cases {
        assert_eq!(code(world.driver.create_volume(case).await), Code::AlreadyExists);
    }
    // A smaller size without a limit matches the existing volume.
    let smaller = CreateVolumeRequest { capacity_range: at_least(GIB), ..first };
    assert_eq!(world.driver.create_volume(smaller).await.unwrap().volume.unwrap(), volume);
}

#[tokio::test]
async fn capacity_is_never_reserved_twice() {
    let world = World::with(Options { capacity_bytes: 25 * GIB, ..Options::default() }).await;
    let free = async || world.driver.get_capacity(GetCapacityRequest::default()).await.unwrap().available_capacity;
    assert_eq!(free().await, 25 * GIB);
    let too_large = CreateVolumeRequest { capacity_range: at_least(26 * GIB), ..create("a") };
    assert_eq!(code(world.driver.create_volume(too_large).await), Code::OutOfRange);
    // Five concurrent requests, of which two fit.
    let mut attempts = tokio::task::JoinSet::new();
    for number in 0..5 {
        let driver = world.driver.clone();
        attempts.spawn(async move { driver.create_volume(create(&number.to_string())).await });
    }
    let results = attempts.join_all().await;
    let refused: Vec<Code> = results.iter().filter_map(|result| result.as_ref().err().map(|f| f.code)).collect();
    assert_eq!(refused, [Code::ResourceExhausted; 3]);
    assert_eq!(free().await, 5 * GIB);
    let id = world.ids().await.remove(0);
    let expand = async |bytes| {
        let request = ControllerExpandVolumeRequest {
            volume_id: id.clone(),
            capacity_range: at_least(bytes),
            ..Default::default()
        };
        world.driver.controller_expand_volume(request).await
    };
    assert_eq!(code(expand(16 * GIB).await), Code::ResourceExhausted);
    assert_eq!(code(expand(26 * GIB).await), Code::OutOfRange);
    expand(15 * GIB).await.unwrap();
    assert_eq!(free().await, 0);
    world.delete(&id).await;
    assert_eq!(free().await, 15 * GIB);
}

#[tokio::test]
async fn volumes_follow_the_requested_topology() {
    let world = World::full().await;
    let zone = |zone: &str| Topology { segments: [("example.com/zone".to_owned(), zone.to_owned())].into() };
    let request = |name: &str, requisite: &[&str], preferred: &[&str]| CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: requisite.iter().map(|name| zone(name)).collect(),
            preferred: preferred.iter().map(|name| zone(name)).collect(),
        }),
        ..create(name)
    };
    let cases: [(&str, &[&str], &[&str], &str); 4] = [
        ("preferred first", &["a", "b"], &["b", "a"], "b"),
        ("preferred is not here", &["c", "b"], &["c"], "b"),
        ("only wishes", &[], &["c"], "a"),
        ("requisite alone", &["b"], &[], "b"),
    ];
    for (name, requisite, preferred, expected) in cases {
        let volume = world.driver.create_volume(request(name, requisite, preferred)).await.unwrap().volume.unwrap();
        assert_eq!(volume.accessible_topology, [zone(expected)], "{name}");
    }
    assert_eq!(code(world.driver.create_volume(request("x", &["c"], &["c"])).await), Code::ResourceExhausted);
    assert_eq!(code(world.driver.create_volume(request("requisite alone", &["a"], &[])).await), Code::AlreadyExists);
    let free = async |name: &str| {
        let request = GetCapacityRequest { accessible_topology: Some(zone(name)), ..Default::default() };
        world.driver.get_capacity(request).await.unwrap().available_capacity
    };
    assert!(free("a").await > 0);
    assert_eq!(free("c").await, 0);
}

#[tokio::test]
async fn a_clone_copies_everything_and_is_independent() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    let data = world.data(&id);
    std::fs::create_dir_all(data.join("deep/er")).unwrap();
    write(&data.join("deep/er"), "file", "content");
    std::fs::set_permissions(data.join("deep/er/file"), std::fs::Permissions::from_mode(0o754)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", data.join("link")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(data.join("socket")).unwrap();
    std::fs::set_permissions(data.join("deep/er"), std::fs::Permissions::from_mode(0o555)).unwrap();
    let source = source::Type::Volume(VolumeSource { volume_id: id.clone() });
    let volume_content_source = Some(VolumeContentSource { r#type: Some(source) });
    let clone = CreateVolumeRequest { volume_content_source, ..create("b") };
    let copy = world.driver.create_volume(clone.clone()).await.unwrap().volume.unwrap().volume_id;
    drop(socket);
    let copied = world.data(&copy);
    assert_eq!(std::fs::read_link(copied.join("link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(copied.join("deep/er/file").metadata().unwrap().permissions().mode() & 0o777, 0o754);
    assert_eq!(copied.join("deep/er").metadata().unwrap().permissions().mode() & 0o777, 0o555);
    // A directory that forbids writing is deleted too.
    world.delete(&id).await;
    assert!(!data.exists());
    assert_eq!(std::fs::read_to_string(copied.join("deep/er/file")).unwrap(), "content");
    // An existing clone is found by its name although its source was deleted.
    assert_eq!(world.driver.create_volume(clone).await.unwrap().volume.unwrap().volume_id, copy);
    // A clone is never smaller than its source.
    let smaller = CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: GIB, limit_bytes: 2 * GIB }),
        volume_content_source: Some(VolumeContentSource {
            r#type: Some(source::Type::Volume(VolumeSource { volume_id: copy })),
        }),
        ..create("c")
    };
    assert_eq!(code(world.driver.create_volume(smaller.clone()).await), Code::OutOfRange);
    let unlimited = CreateVolumeRequest { capacity_range: at_least(GIB), ..smaller };
    assert_eq!(world.driver.create_volume(unlimited).await.unwrap().volume.unwrap().capacity_bytes, 10 * GIB);
}

#[tokio::test]
async fn calls_for_one_volume_wait_for_each_other_and_others_do_not() {
    let world = World::new().await;
    let gate = Gate::closed();
    world.server.faults().order(Order::hold("CreateVolume", &gate).times(1));
    let first = tokio::spawn({
        let driver = world.driver.clone();
        async move { driver.create_volume(create("a")).await }
    });
    gate.reached(1).await;
    // Calls for other volumes do not wait.
    world.create("b").await;
    gate.open();
    let first = first.await.unwrap().unwrap().volume.unwrap();
    assert_eq!(world.create("a").await, first);
    // Twenty concurrent requests with one name create one volume.
    let mut attempts = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let driver = world.driver.clone();
        attempts.spawn(async move { driver.create_volume(create("c")).await.unwrap().volume.unwrap().volume_id });
    }
    let ids: std::collections::BTreeSet<String> = attempts.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(world.ids().await.len(), 3);
}

#[tokio::test]
async fn expansion_follows_the_declared_mode() {
    for expansion in Expansion::ALL {
        let world = World::with(Options { expansion, ..Options::default() }).await;
        let about = world.driver.about().await.unwrap();
        assert_eq!(about.expands_in_controller(), matches!(expansion, Expansion::Controller | Expansion::Both));
        assert_eq!(about.expands_on_node(), matches!(expansion, Expansion::Node | Expansion::Both));
        assert_eq!(about.expands.is_empty(), expansion == Expansion::Never);
        let id = world.create("a").await.volume_id;
        let target_path = world.path("target");
        let publish = NodePublishVolumeRequest {
            volume_id: id.clone(),
            target_path: target_path.clone(),
            volume_capability: Some(writer()),
            ..Default::default()
        };
        world.driver.node_publish_volume(publish).await.unwrap();
        let controller = ControllerExpandVolumeRequest {
            volume_id: id.clone(),
            capacity_range: at_least(20 * GIB),
            ..Default::default()
        };
        let grown =
            world.driver.controller_expand_volume(controller).await.map(|answer| answer.node_expansion_required);
        let node = NodeExpandVolumeRequest {
            volume_id: id.clone(),
            volume_path: target_path,
            capacity_range: at_least(20 * GIB),
            ..Default::default()
        };
        let on_node = world.driver.node_expand_volume(node).await.map(|answer| answer.capacity_bytes);
        let expected = match expansion {
            Expansion::Controller => (Ok(false), Err(Code::Unimplemented)),
            Expansion::Both => (Ok(true), Ok(20 * GIB)),
            Expansion::Node => (Err(Code::Unimplemented), Ok(20 * GIB)),
            Expansion::Never => (Err(Code::Unimplemented), Err(Code::Unimplemented)),
        };
        assert_eq!((grown.map_err(|f| f.code), on_node.map_err(|f| f.code)), expected, "{expansion}");
        let size = world.driver.all_volumes().await.unwrap()[0].volume.as_ref().unwrap().capacity_bytes;
        assert_eq!(size, if expansion == Expansion::Never { 10 * GIB } else { 20 * GIB });
    }
}

#[tokio::test]
async fn a_volume_whose_data_is_missing_is_reported() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    std::fs::remove_dir(world.data(&id)).unwrap();
    let answer =
        world.driver.controller_get_volume(ControllerGetVolumeRequest { volume_id: id.clone() }).await.unwrap();
    let condition = answer.status.unwrap().volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.ends_with("data is missing"), "{condition:?}");
    let publish = NodePublishVolumeRequest {
        volume_id: id.clone(),
        target_path: world.path("target"),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    assert_eq!(code(world.driver.node_publish_volume(publish).await), Code::Internal);
    world.delete(&id).await;
}

#[tokio::test]
async fn undeclared_calls_are_unimplemented() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    let attach = ControllerPublishVolumeRequest { volume_id: id.clone(), ..Default::default() };
    assert_eq!(code(world.driver.controller_publish_volume(attach).await), Code::Unimplemented);
    let stage = NodeStageVolumeRequest { volume_id: id, ..Default::default() };
    assert_eq!(code(world.driver.node_stage_volume(stage).await), Code::Unimplemented);
}
