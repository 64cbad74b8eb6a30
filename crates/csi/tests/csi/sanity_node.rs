//! The public sanity suite's checks of the node service.

use crate::world::*;
use csi::Code;
use csi::v1::node_service_capability::{Type, rpc};
use csi::v1::volume_capability::access_mode::Mode;
use csi::v1::*;
use std::path::Path;

/// A volume's use on its node, at paths of the test.
struct User {
    world: World,
    id: String,
    staging: String,
    target: String,
}

impl User {
    async fn of(world: World) -> User {
        let id = world.create("a").await.volume_id;
        let (staging, target) = (world.path("staging"), world.path("target"));
        // Callers create the staging path but not the target path.
        std::fs::create_dir(&staging).unwrap();
        User { world, id, staging, target }
    }

    fn stage(&self) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            volume_capability: Some(writer()),
            ..Default::default()
        }
    }

    fn unstage(&self) -> NodeUnstageVolumeRequest {
        NodeUnstageVolumeRequest { volume_id: self.id.clone(), staging_target_path: self.staging.clone() }
    }

    fn publish(&self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.clone(),
            target_path: self.target.clone(),
            volume_capability: Some(writer()),
            ..Default::default()
        }
    }

    fn unpublish(&self) -> NodeUnpublishVolumeRequest {
        NodeUnpublishVolumeRequest { volume_id: self.id.clone(), target_path: self.target.clone() }
    }

    fn stats(&self) -> NodeGetVolumeStatsRequest {
        NodeGetVolumeStatsRequest { volume_id: self.id.clone(), volume_path: self.target.clone(), ..Default::default() }
    }

    fn expand(&self, bytes: i64) -> NodeExpandVolumeRequest {
        NodeExpandVolumeRequest {
            volume_id: self.id.clone(),
            volume_path: self.target.clone(),
            capacity_range: at_least(bytes),
            ..Default::default()
        }
    }

    /// The whole life of a volume, with each call repeated this often.
    async fn set_up(&self, times: usize) {
        let about = self.world.driver.about().await.unwrap();
        if about.attaches() {
            let request = ControllerPublishVolumeRequest {
                volume_id: self.id.clone(),
                node_id: "node-a".to_owned(),
                volume_capability: Some(writer()),
                ..Default::default()
            };
            for _ in 0..times {
                self.world.driver.controller_publish_volume(request.clone()).await.unwrap();
            }
        }
        if about.stages() {
            for _ in 0..times {
                self.world.driver.node_stage_volume(self.stage()).await.unwrap();
            }
        }
        for _ in 0..times {
            self.world.driver.node_publish_volume(self.publish()).await.unwrap();
        }
    }

    async fn tear_down(&self, times: usize) {
        let about = self.world.driver.about().await.unwrap();
        for _ in 0..times {
            self.world.driver.node_unpublish_volume(self.unpublish()).await.unwrap();
        }
        if about.stages() {
            for _ in 0..times {
                self.world.driver.node_unstage_volume(self.unstage()).await.unwrap();
            }
        }
        if about.attaches() {
            let request = ControllerUnpublishVolumeRequest { volume_id: self.id.clone(), ..Default::default() };
            for _ in 0..times {
                self.world.driver.controller_unpublish_volume(request.clone()).await.unwrap();
            }
        }
        for _ in 0..times {
            self.world.delete(&self.id).await;
        }
    }
}

#[tokio::test]
async fn node_get_capabilities_returns_known_calls_only() {
    for world in [World::new().await, World::full().await] {
        let answer = world.driver.node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap();
        assert!(!answer.capabilities.is_empty());
        for capability in &answer.capabilities {
            let Type::Rpc(call) = capability.r#type.as_ref().expect("a capability has a type");
            assert_ne!(call.r#type(), rpc::Type::Unknown);
        }
    }
}

#[tokio::test]
async fn node_get_info_has_an_id_and_a_topology_if_that_counts() {
    let plain = World::new().await.driver.node_get_info(NodeGetInfoRequest {}).await.unwrap();
    assert!(!plain.node_id.is_empty() && plain.max_volumes_per_node >= 0 && plain.accessible_topology.is_none());
    let full = World::full().await.driver.node_get_info(NodeGetInfoRequest {}).await.unwrap();
    assert_eq!(full.node_id, "node-a");
    assert_eq!(full.accessible_topology.unwrap().segments["example.com/zone"], "a");
}

#[tokio::test]
async fn node_publish_wants_id_target_and_capability() {
    for world in [World::new().await, World::full().await] {
        let user = User::of(world).await;
        let good = NodePublishVolumeRequest { staging_target_path: String::new(), ..user.publish() };
        let cases = [
            NodePublishVolumeRequest { volume_id: String::new(), ..good.clone() },
            NodePublishVolumeRequest { target_path: String::new(), ..good.clone() },
            NodePublishVolumeRequest { volume_capability: None, ..good },
        ];
        for case in cases {
            assert_eq!(code(user.world.driver.node_publish_volume(case).await), Code::InvalidArgument);
        }
    }
}

#[tokio::test]
async fn node_unpublish_wants_id_and_target_and_removes_what_was_published() {
    let user = User::of(World::new().await).await;
    let cases = [
        NodeUnpublishVolumeRequest { volume_id: String::new(), ..user.unpublish() },
        NodeUnpublishVolumeRequest { target_path: String::new(), ..user.unpublish() },
    ];
    for case in cases {
        assert_eq!(code(user.world.driver.node_unpublish_volume(case).await), Code::InvalidArgument);
    }
    user.set_up(1).await;
    write(Path::new(&user.target), "file", "content");
    assert!(user.world.data(&user.id).join("file").exists());
    user.world.driver.node_unpublish_volume(user.unpublish()).await.unwrap();
    assert!(Path::new(&user.target).symlink_metadata().is_err(), "the target is removed");
    assert!(user.world.data(&user.id).join("file").exists(), "the data is kept");
}

#[tokio::test]
async fn node_stage_and_unstage_want_id_path_and_capability() {
    let user = User::of(World::full().await).await;
    let cases = [
        NodeStageVolumeRequest { volume_id: String::new(), ..user.stage() },
        NodeStageVolumeRequest { staging_target_path: String::new(), ..user.stage() },
        NodeStageVolumeRequest { volume_capability: None, ..user.stage() },
    ];
    for case in cases {
        assert_eq!(code(user.world.driver.node_stage_volume(case).await), Code::InvalidArgument);
    }
    let cases = [
        NodeUnstageVolumeRequest { volume_id: String::new(), ..user.unstage() },
        NodeUnstageVolumeRequest { staging_target_path: String::new(), ..user.unstage() },
    ];
    for case in cases {
        assert_eq!(code(user.world.driver.node_unstage_volume(case).await), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn node_get_volume_stats_wants_a_known_volume_at_the_right_path() {
    let user = User::of(World::new().await).await;
    user.set_up(1).await;
    let cases = [
        (NodeGetVolumeStatsRequest { volume_id: String::new(), ..user.stats() }, Code::InvalidArgument),
        (NodeGetVolumeStatsRequest { volume_path: String::new(), ..user.stats() }, Code::InvalidArgument),
        (NodeGetVolumeStatsRequest { volume_id: UNKNOWN.to_owned(), ..user.stats() }, Code::NotFound),
        (NodeGetVolumeStatsRequest { volume_path: "/some/path".to_owned(), ..user.stats() }, Code::NotFound),
        // The suite's paths are relative.
        (NodeGetVolumeStatsRequest { volume_path: "some/path".to_owned(), ..user.stats() }, Code::NotFound),
        (
            NodeGetVolumeStatsRequest {
                volume_id: UNKNOWN.to_owned(),
                volume_path: "some/path".to_owned(),
                ..user.stats()
            },
            Code::NotFound,
        ),
    ];
    for (case, expected) in cases {
        assert_eq!(code(user.world.driver.node_get_volume_stats(case).await), expected);
    }
    write(Path::new(&user.target), "file", &"x".repeat(100_000));
    let answer = user.world.driver.node_get_volume_stats(user.stats()).await.unwrap();
    let [usage] = &answer.usage[..] else { panic!("one usage: {answer:?}") };
    assert_eq!((usage.unit(), usage.total), (volume_usage::Unit::Bytes, 10 * GIB));
    assert!(usage.used >= 100_000 && usage.available == usage.total - usage.used, "{usage:?}");
    assert!(!answer.volume_condition.unwrap().abnormal);
}

#[tokio::test]
async fn node_expand_wants_a_known_volume_at_its_path_and_works_without_a_capability() {
    let user = User::of(World::full().await).await;
    user.set_up(1).await;
    let driver = &user.world.driver;
    let cases = [
        (NodeExpandVolumeRequest { volume_id: String::new(), ..user.expand(GIB) }, Code::InvalidArgument),
        (NodeExpandVolumeRequest { volume_path: String::new(), ..user.expand(GIB) }, Code::InvalidArgument),
        (NodeExpandVolumeRequest { volume_id: UNKNOWN.to_owned(), ..user.expand(GIB) }, Code::NotFound),
        (NodeExpandVolumeRequest { volume_path: "/some/path".to_owned(), ..user.expand(GIB) }, Code::NotFound),
        (NodeExpandVolumeRequest { volume_path: "some/path".to_owned(), ..user.expand(GIB) }, Code::NotFound),
        (
            NodeExpandVolumeRequest {
                volume_id: UNKNOWN.to_owned(),
                volume_path: "some/path".to_owned(),
                ..user.expand(GIB)
            },
            Code::NotFound,
        ),
        // The controller expands first, then the node.
        (user.expand(11 * GIB), Code::OutOfRange),
    ];
    for (case, expected) in cases {
        assert_eq!(code(driver.node_expand_volume(case).await), expected);
    }
    let request = ControllerExpandVolumeRequest {
        volume_id: user.id.clone(),
        capacity_range: at_least(11 * GIB),
        ..Default::default()
    };
    assert!(driver.controller_expand_volume(request).await.unwrap().node_expansion_required);
    assert_eq!(driver.node_expand_volume(user.expand(11 * GIB)).await.unwrap().capacity_bytes, 11 * GIB);
    assert_eq!(driver.node_expand_volume(user.expand(0)).await.unwrap().capacity_bytes, 11 * GIB);
}

/// An unknown volume is reported before an invalid path or capability.
#[tokio::test]
async fn an_unknown_volume_is_reported_before_an_invalid_path() {
    let user = User::of(World::full().await).await;
    let (driver, id, path) = (&user.world.driver, UNKNOWN.to_owned(), "some/path".to_owned());
    let stage = NodeStageVolumeRequest { volume_id: id.clone(), staging_target_path: path.clone(), ..user.stage() };
    assert_eq!(code(driver.node_stage_volume(stage).await), Code::NotFound);
    let publish = NodePublishVolumeRequest { volume_id: id.clone(), target_path: path.clone(), ..user.publish() };
    assert_eq!(code(driver.node_publish_volume(publish).await), Code::NotFound);
    let attach = ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(VolumeCapability::default()),
        ..Default::default()
    };
    assert_eq!(code(driver.controller_publish_volume(attach).await), Code::NotFound);
    let expand = ControllerExpandVolumeRequest {
        volume_id: id,
        capacity_range: at_least(GIB),
        volume_capability: Some(VolumeCapability::default()),
        ..Default::default()
    };
    assert_eq!(code(driver.controller_expand_volume(expand).await), Code::NotFound);
    // For an existing volume the path is checked.
    let stage = NodeStageVolumeRequest { staging_target_path: path.clone(), ..user.stage() };
    assert_eq!(code(driver.node_stage_volume(stage).await), Code::InvalidArgument);
}

/// A missing directory is not created again: a pod would start with an empty volume.
#[tokio::test]
async fn a_volume_without_data_is_neither_staged_nor_published() {
    for world in [World::new().await, World::full().await] {
        let user = User::of(world).await;
        let data = user.world.data(&user.id);
        std::fs::remove_dir_all(&data).unwrap();
        let stages = user.world.driver.about().await.unwrap().stages();
        let failure = if stages {
            let attach = ControllerPublishVolumeRequest {
                volume_id: user.id.clone(),
                node_id: "node-a".to_owned(),
                volume_capability: Some(writer()),
                ..Default::default()
            };
            user.world.driver.controller_publish_volume(attach).await.unwrap();
            user.world.driver.node_stage_volume(user.stage()).await.unwrap_err()
        } else {
            user.world.driver.node_publish_volume(user.publish()).await.unwrap_err()
        };
        assert_eq!(failure.code, Code::Internal);
        assert!(failure.message.contains(&format!("the data of {} is missing", user.id)), "{failure}");
        assert!(!data.exists() && Path::new(&user.target).symlink_metadata().is_err());
    }
}

#[tokio::test]
async fn node_publish_of_a_single_writer_at_a_second_target_is_refused() {
    let user = User::of(World::new().await).await;
    let publish = async |mode, target: &str| {
        let request = NodePublishVolumeRequest {
            volume_capability: Some(capability(mode)),
            target_path: user.world.path(target),
            ..user.publish()
        };
        user.world.driver.node_publish_volume(request).await
    };
    publish(Mode::SingleNodeSingleWriter, "one").await.unwrap();
    publish(Mode::SingleNodeSingleWriter, "one").await.unwrap();
    assert_eq!(code(publish(Mode::SingleNodeSingleWriter, "two").await), Code::FailedPrecondition);
    assert_eq!(code(publish(Mode::SingleNodeMultiWriter, "two").await), Code::FailedPrecondition);
    let first = NodeUnpublishVolumeRequest { target_path: user.world.path("one"), ..user.unpublish() };
    user.world.driver.node_unpublish_volume(first).await.unwrap();
    publish(Mode::SingleNodeMultiWriter, "two").await.unwrap();
    publish(Mode::SingleNodeMultiWriter, "three").await.unwrap();
    assert_eq!(code(publish(Mode::SingleNodeSingleWriter, "one").await), Code::FailedPrecondition);
}

#[tokio::test]
async fn the_whole_life_of_a_volume_once_and_with_every_call_ten_times() {
    for times in [1, 10] {
        for world in [World::new().await, World::full().await] {
            let user = User::of(world).await;
            user.set_up(times).await;
            for _ in 0..times {
                user.world.driver.node_get_volume_stats(user.stats()).await.unwrap();
            }
            user.tear_down(times).await;
            assert!(user.world.ids().await.is_empty());
        }
    }
}

#[tokio::test]
async fn cleaning_up_an_unused_volume_succeeds() {
    for world in [World::new().await, World::full().await] {
        let user = User::of(world).await;
        user.tear_down(1).await;
        user.world.driver.node_unpublish_volume(user.unpublish()).await.unwrap();
        user.world.delete(&user.id).await;
    }
}
