//! Ids and paths that try to leave the volume: no call turns one into another place on the disk.

use crate::world::*;
use csi::v1::volume_content_source::{self as source, SnapshotSource, VolumeSource};
use csi::v1::*;
use csi::{Code, Failure};
use std::collections::BTreeMap;
use std::path::Path;

/// Ids that no driver creates, and the expected code of a call that needs an existing object.
fn tricks() -> Vec<(String, Code)> {
    let absent = [
        "../outside",
        "../../outside",
        "/etc",
        ".",
        "..",
        "vol-",
        "snap-",
        "a/b",
        "new-x",
        "vol-1/../../outside",
        "%2e%2e",
    ];
    let impossible = ["\u{7f}".to_owned(), "a\0b".to_owned(), "x".repeat(129), String::new()];
    let absent = absent.map(|id| (id.to_owned(), Code::NotFound)).into_iter();
    absent.chain(impossible.map(|id| (id, Code::InvalidArgument))).collect()
}

/// All files below a directory, with their content or link target. Links are not followed.
fn everything_in(directory: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.to_str().unwrap().to_owned();
        if path.is_symlink() {
            found.insert(name, std::fs::read_link(&path).unwrap().to_str().unwrap().to_owned());
        } else if path.is_dir() {
            found.extend(everything_in(&path));
            found.insert(name, "a directory".to_owned());
        } else if path.is_file() {
            found.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
    found
}

fn from(source: source::Type) -> CreateVolumeRequest {
    CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..create("made of it")
    }
}

/// The responses of all calls with a volume id to this id.
async fn said_of_volume(world: &World, id: &str) -> Vec<(&'static str, Result<(), Failure>)> {
    let (driver, volume_id) = (&world.driver, id.to_owned());
    let (target, staging) = (world.path("target"), world.path("staging"));
    let clone = from(source::Type::Volume(VolumeSource { volume_id: id.to_owned() }));
    let snapshot =
        CreateSnapshotRequest { source_volume_id: id.to_owned(), name: "s".to_owned(), ..Default::default() };
    let validate = ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.clone(),
        volume_capabilities: vec![writer()],
        ..Default::default()
    };
    let expand = ControllerExpandVolumeRequest {
        volume_id: volume_id.clone(),
        capacity_range: at_least(20 * GIB),
        ..Default::default()
    };
    let modify = ControllerModifyVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
    let attach = ControllerPublishVolumeRequest {
        volume_id: volume_id.clone(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    let stage = NodeStageVolumeRequest {
        volume_id: volume_id.clone(),
        staging_target_path: staging.clone(),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    let publish = NodePublishVolumeRequest {
        volume_id: volume_id.clone(),
        target_path: target.clone(),
        staging_target_path: staging,
        volume_capability: Some(writer()),
        ..Default::default()
    };
    let stats =
        NodeGetVolumeStatsRequest { volume_id: volume_id.clone(), volume_path: target.clone(), ..Default::default() };
    let grow = NodeExpandVolumeRequest { volume_id: volume_id.clone(), volume_path: target, ..Default::default() };
    vec![
        ("get", driver.controller_get_volume(ControllerGetVolumeRequest { volume_id }).await.map(drop)),
        ("clone", driver.create_volume(clone).await.map(drop)),
        ("snapshot", driver.create_snapshot(snapshot).await.map(drop)),
        ("validate", driver.validate_volume_capabilities(validate).await.map(drop)),
        ("expand", driver.controller_expand_volume(expand).await.map(drop)),
        ("modify", driver.controller_modify_volume(modify).await.map(drop)),
        ("attach", driver.controller_publish_volume(attach).await.map(drop)),
        ("stage", driver.node_stage_volume(stage).await.map(drop)),
        ("publish", driver.node_publish_volume(publish).await.map(drop)),
        ("stats", driver.node_get_volume_stats(stats).await.map(drop)),
        ("grow", driver.node_expand_volume(grow).await.map(drop)),
    ]
}

/// The responses of all calls that delete by id: an unknown object counts as deleted.
async fn said_of_removal(world: &World, id: &str) -> Vec<(&'static str, Result<(), Failure>)> {
    let (driver, volume_id) = (&world.driver, id.to_owned());
    let detach = ControllerUnpublishVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
    let unstage = NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path: world.path("outside") };
    let unpublish = NodeUnpublishVolumeRequest { volume_id, target_path: world.path("outside") };
    let snapshot = DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
    vec![
        ("delete", driver.delete_volume(delete(id)).await.map(drop)),
        ("detach", driver.controller_unpublish_volume(detach).await.map(drop)),
        ("unstage", driver.node_unstage_volume(unstage).await.map(drop)),
        ("unpublish", driver.node_unpublish_volume(unpublish).await.map(drop)),
        ("delete snapshot", driver.delete_snapshot(snapshot).await.map(drop)),
    ]
}

#[tokio::test]
async fn no_id_reaches_another_place() {
    let world = World::full().await;
    let outside = world.root.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    write(&outside, "file", "precious");
    let id = world.create("a").await.volume_id;
    write(&world.data(&id), "file", "precious, too");
    let request = CreateSnapshotRequest { source_volume_id: id.clone(), name: "kept".to_owned(), ..Default::default() };
    let kept = world.driver.create_snapshot(request).await.unwrap().snapshot.unwrap().snapshot_id;
    let before = everything_in(world.root.path());
    // The id of a volume is not an id of a snapshot, and the reverse.
    let ids = tricks().into_iter().chain([(kept.clone(), Code::NotFound)]);
    for (trick, expected) in ids {
        for (call, said) in said_of_volume(&world, &trick).await {
            assert_eq!(said.map_err(|failure| failure.code), Err(expected), "{call} {trick:?}");
        }
        if trick != kept {
            for (call, said) in said_of_removal(&world, &trick).await {
                let expected = if expected == Code::NotFound { Ok(()) } else { Err(expected) };
                assert_eq!(said.map_err(|failure| failure.code), expected, "{call} {trick:?}");
            }
        }
    }
    for (trick, expected) in tricks().into_iter().chain([(id.clone(), Code::NotFound)]) {
        let get = GetSnapshotRequest { snapshot_id: trick.clone(), ..Default::default() };
        assert_eq!(code(world.driver.get_snapshot(get).await), expected, "{trick:?}");
        let made = from(source::Type::Snapshot(SnapshotSource { snapshot_id: trick.clone() }));
        assert_eq!(code(world.driver.create_volume(made).await), expected, "{trick:?}");
        // No id lists all of them, an unknown id none.
        for list in [
            ListSnapshotsRequest { snapshot_id: trick.clone(), ..Default::default() },
            ListSnapshotsRequest { source_volume_id: trick.clone(), ..Default::default() },
        ] {
            let is_of = trick.is_empty() || (list.source_volume_id == id);
            let found = world.driver.list_snapshots(list).await.unwrap().entries;
            assert_eq!(found.len(), usize::from(is_of), "{trick:?}");
        }
    }
    let name = DeleteSnapshotRequest { snapshot_id: id.clone(), ..Default::default() };
    world.driver.delete_snapshot(name).await.unwrap();
    world.delete(&kept).await;
    assert_eq!(everything_in(world.root.path()), before, "the disk is unchanged");
}

#[tokio::test]
async fn no_path_reaches_another_place() {
    let world = World::full().await;
    let id = world.create("a").await.volume_id;
    let own = world.directory().canonicalize().unwrap();
    let attach = ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    world.driver.controller_publish_volume(attach).await.unwrap();
    let staging = world.path("staging");
    let stage = |path: &str| NodeStageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: path.to_owned(),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    let publish = |path: &str| NodePublishVolumeRequest {
        volume_id: id.clone(),
        target_path: path.to_owned(),
        staging_target_path: staging.clone(),
        volume_capability: Some(writer()),
        ..Default::default()
    };
    world.driver.node_stage_volume(stage(&staging)).await.unwrap();
    // A path into the driver's directory that its text does not show.
    std::os::unix::fs::symlink(&own, world.path("way")).unwrap();
    let inside = own.join("volumes").join(&id).join("data/inside").to_str().unwrap().to_owned();
    let before = everything_in(world.root.path());
    let long = format!("/{}", "x".repeat(5000));
    let paths = ["", "relative", "/tmp/../etc/x", "..", "/a/..", "/a\0b", &inside, own.to_str().unwrap(), &long];
    for path in paths {
        let unstage = NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path: path.to_owned() };
        let unpublish = NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: path.to_owned() };
        let stats =
            NodeGetVolumeStatsRequest { volume_id: id.clone(), volume_path: path.to_owned(), ..Default::default() };
        let grow =
            NodeExpandVolumeRequest { volume_id: id.clone(), volume_path: path.to_owned(), ..Default::default() };
        let said = [
            ("stage", world.driver.node_stage_volume(stage(path)).await.map(drop)),
            ("publish", world.driver.node_publish_volume(publish(path)).await.map(drop)),
            ("unstage", world.driver.node_unstage_volume(unstage).await.map(drop)),
            ("unpublish", world.driver.node_unpublish_volume(unpublish).await.map(drop)),
            ("stats", world.driver.node_get_volume_stats(stats).await.map(drop)),
            ("grow", world.driver.node_expand_volume(grow).await.map(drop)),
        ];
        for (call, said) in said {
            // Paths of use are looked up: an invalid path is one where the volume is not used.
            let is_looked_up = matches!(call, "stats" | "grow") && !path.is_empty();
            let expected = if is_looked_up { Code::NotFound } else { Code::InvalidArgument };
            assert_eq!(said.map_err(|failure| failure.code), Err(expected), "{call} {path:?}");
        }
    }
    for name in ["way/volumes/vol-false".to_owned(), format!("way/volumes/{id}/data/inside")] {
        let refused = world.driver.node_publish_volume(publish(&world.path(&name))).await;
        assert_eq!(code(refused), Code::InvalidArgument, "{name}");
    }
    // An invalid staging path is not one of this volume's.
    let staged_elsewhere = NodePublishVolumeRequest {
        staging_target_path: format!("{staging}/../staging"),
        ..publish(&world.path("target"))
    };
    assert_eq!(code(world.driver.node_publish_volume(staged_elsewhere).await), Code::FailedPrecondition);
    // Files at other places stay: another program's link, and another volume's.
    let (foreign, target) = (world.path("foreign"), world.path("target"));
    std::os::unix::fs::symlink("/etc", &foreign).unwrap();
    assert_eq!(code(world.driver.node_publish_volume(publish(&foreign)).await), Code::FailedPrecondition);
    world.driver.node_publish_volume(publish(&target)).await.unwrap();
    let other = world.create("other").await.volume_id;
    for (volume_id, target_path) in [(id.clone(), foreign.clone()), (other.clone(), target.clone())] {
        world.driver.node_unpublish_volume(NodeUnpublishVolumeRequest { volume_id, target_path }).await.unwrap();
    }
    assert_eq!(std::fs::read_link(&foreign).unwrap(), Path::new("/etc"));
    assert_eq!(std::fs::read_link(&target).unwrap(), world.data(&id));
    world
        .driver
        .node_unpublish_volume(NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: target })
        .await
        .unwrap();
    world.delete(&other).await;
    std::fs::remove_file(&foreign).unwrap();
    let after = everything_in(world.root.path());
    // The target is recorded before the link is created; nothing else has changed.
    let but_notes = |all: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        all.clone().into_iter().filter(|(name, _)| !name.ends_with("/use.json")).collect()
    };
    assert_eq!(but_notes(&after), but_notes(&before), "the disk is unchanged");
}
