//! The bytes on the wire. Our client and our driver would also agree on wrong field numbers; other drivers would not.

use csi::v1::controller_service_capability::rpc::Type as ControllerCan;
use csi::v1::node_service_capability::rpc::Type as NodeCan;
use csi::v1::volume_capability::access_mode::Mode;
use csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::v1::volume_content_source::{self as source, SnapshotSource, VolumeSource};
use csi::v1::*;
use prost::Message;

/// A length-delimited field.
fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

fn text(number: u8, content: &str) -> Vec<u8> {
    bytes(number, content.as_bytes())
}

/// A varint below 128.
fn int(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn entry(number: u8, key: &str, value: &str) -> Vec<u8> {
    bytes(number, &[text(1, key), text(2, value)].concat())
}

fn map(key: &str, value: &str) -> std::collections::BTreeMap<String, String> {
    [(key.to_owned(), value.to_owned())].into()
}

#[track_caller]
fn same(message: &impl Message, parts: &[Vec<u8>]) {
    assert_eq!(message.encode_to_vec(), parts.concat());
}

fn mounted() -> (VolumeCapability, Vec<u8>) {
    let mount = MountVolume { fs_type: "f".into(), mount_flags: vec!["o".into()], volume_mount_group: "g".into() };
    let capability = VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeMultiWriter.into() }),
    };
    let mount = bytes(2, &[text(1, "f"), text(2, "o"), text(3, "g")].concat());
    // A oneof is written in the order of its numbers among the other fields.
    (capability, [mount, bytes(3, &int(1, 7))].concat())
}

#[test]
fn creation_has_the_specified_encoding() {
    let (capability, encoded) = mounted();
    let topology = Topology { segments: map("z", "a") };
    let request = CreateVolumeRequest {
        name: "n".into(),
        capacity_range: Some(CapacityRange { required_bytes: 3, limit_bytes: 4 }),
        volume_capabilities: vec![capability],
        parameters: map("p", "1"),
        secrets: map("s", "2"),
        volume_content_source: Some(VolumeContentSource {
            r#type: Some(source::Type::Volume(VolumeSource { volume_id: "v".into() })),
        }),
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![topology.clone()],
            preferred: vec![topology.clone()],
        }),
        mutable_parameters: map("m", "3"),
    };
    let segment = entry(1, "z", "a");
    same(
        &request,
        &[
            text(1, "n"),
            bytes(2, &[int(1, 3), int(2, 4)].concat()),
            bytes(3, &encoded),
            entry(4, "p", "1"),
            entry(5, "s", "2"),
            bytes(6, &bytes(2, &text(1, "v"))),
            bytes(7, &[bytes(1, &segment), bytes(2, &segment)].concat()),
            entry(8, "m", "3"),
        ],
    );
    let volume = Volume {
        capacity_bytes: 5,
        volume_id: "v".into(),
        volume_context: map("c", "d"),
        content_source: Some(VolumeContentSource {
            r#type: Some(source::Type::Snapshot(SnapshotSource { snapshot_id: "s".into() })),
        }),
        accessible_topology: vec![topology],
    };
    same(
        &CreateVolumeResponse { volume: Some(volume) },
        &[bytes(
            1,
            &[int(1, 5), text(2, "v"), entry(3, "c", "d"), bytes(4, &bytes(1, &text(1, "s"))), bytes(5, &segment)]
                .concat(),
        )],
    );
}

#[test]
fn other_controller_messages_have_the_specified_encoding() {
    let (capability, encoded) = mounted();
    let range = Some(CapacityRange { required_bytes: 3, limit_bytes: 0 });
    same(&DeleteVolumeRequest { volume_id: "v".into(), secrets: map("s", "1") }, &[text(1, "v"), entry(2, "s", "1")]);
    same(
        &ControllerExpandVolumeRequest {
            volume_id: "v".into(),
            capacity_range: range,
            secrets: map("s", "1"),
            volume_capability: Some(capability.clone()),
        },
        &[text(1, "v"), bytes(2, &int(1, 3)), entry(3, "s", "1"), bytes(4, &encoded)],
    );
    same(&ControllerExpandVolumeResponse { capacity_bytes: 3, node_expansion_required: true }, &[int(1, 3), int(2, 1)]);
    same(
        &ControllerModifyVolumeRequest {
            volume_id: "v".into(),
            secrets: map("s", "1"),
            mutable_parameters: map("m", "2"),
        },
        &[text(1, "v"), entry(2, "s", "1"), entry(3, "m", "2")],
    );
    same(
        &GetCapacityRequest {
            volume_capabilities: vec![capability],
            parameters: map("p", "1"),
            accessible_topology: Some(Topology { segments: map("z", "a") }),
        },
        &[bytes(1, &encoded), entry(2, "p", "1"), bytes(3, &entry(1, "z", "a"))],
    );
    same(
        &GetCapacityResponse { available_capacity: 1, maximum_volume_size: Some(2), minimum_volume_size: Some(3) },
        &[int(1, 1), bytes(2, &int(1, 2)), bytes(3, &int(1, 3))],
    );
    same(&ListVolumesRequest { max_entries: 1, starting_token: "t".into() }, &[int(1, 1), text(2, "t")]);
    let snapshot = Snapshot {
        size_bytes: 1,
        snapshot_id: "s".into(),
        source_volume_id: "v".into(),
        creation_time: Some(prost_types::Timestamp { seconds: 2, nanos: 3 }),
        ready_to_use: true,
        group_snapshot_id: "g".into(),
    };
    same(
        &snapshot,
        &[int(1, 1), text(2, "s"), text(3, "v"), bytes(4, &[int(1, 2), int(2, 3)].concat()), int(5, 1), text(6, "g")],
    );
}

#[test]
fn node_messages_have_the_specified_encoding() {
    let block = VolumeCapability { access_type: Some(AccessType::Block(BlockVolume {})), access_mode: None };
    same(
        &NodePublishVolumeRequest {
            volume_id: "v".into(),
            publish_context: map("p", "1"),
            staging_target_path: "/s".into(),
            target_path: "/t".into(),
            volume_capability: Some(block.clone()),
            readonly: true,
            secrets: map("s", "2"),
            volume_context: map("c", "3"),
        },
        &[
            text(1, "v"),
            entry(2, "p", "1"),
            text(3, "/s"),
            text(4, "/t"),
            bytes(5, &bytes(1, b"")),
            int(6, 1),
            entry(7, "s", "2"),
            entry(8, "c", "3"),
        ],
    );
    same(
        &NodeExpandVolumeRequest {
            volume_id: "v".into(),
            volume_path: "/p".into(),
            capacity_range: Some(CapacityRange { required_bytes: 0, limit_bytes: 4 }),
            staging_target_path: "/s".into(),
            volume_capability: Some(block),
            secrets: map("s", "1"),
        },
        &[
            text(1, "v"),
            text(2, "/p"),
            bytes(3, &int(2, 4)),
            text(4, "/s"),
            bytes(5, &bytes(1, b"")),
            entry(6, "s", "1"),
        ],
    );
    same(&ProbeResponse { ready: Some(true) }, &[bytes(1, &int(1, 1))]);
}

#[test]
fn capabilities_have_the_specified_numbers() {
    let controller = [
        (ControllerCan::CreateDeleteVolume, 1),
        (ControllerCan::PublishUnpublishVolume, 2),
        (ControllerCan::ListVolumes, 3),
        (ControllerCan::GetCapacity, 4),
        (ControllerCan::CreateDeleteSnapshot, 5),
        (ControllerCan::ListSnapshots, 6),
        (ControllerCan::CloneVolume, 7),
        (ControllerCan::PublishReadonly, 8),
        (ControllerCan::ExpandVolume, 9),
        (ControllerCan::ListVolumesPublishedNodes, 10),
        (ControllerCan::VolumeCondition, 11),
        (ControllerCan::GetVolume, 12),
        (ControllerCan::SingleNodeMultiWriter, 13),
        (ControllerCan::ModifyVolume, 14),
        (ControllerCan::GetSnapshot, 15),
    ];
    assert!(controller.iter().all(|(kind, number)| *kind as i32 == *number));
    let node = [
        (NodeCan::StageUnstageVolume, 1),
        (NodeCan::GetVolumeStats, 2),
        (NodeCan::ExpandVolume, 3),
        (NodeCan::VolumeCondition, 4),
        (NodeCan::SingleNodeMultiWriter, 5),
        (NodeCan::VolumeMountGroup, 6),
    ];
    assert!(node.iter().all(|(kind, number)| *kind as i32 == *number));
}
