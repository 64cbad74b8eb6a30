//! Responses of a CSI driver to CreateVolume. With any response, the server must accept the PV, or refuse it as
//! invalid, so that the provisioner deletes the volume. No other outcome is allowed.

use super::requests;
use crate::Reader;
use csi::v1;
use object::json;
use plan::csi::outcome::{Created, Doubt, Outcome, judge};
use plan::csi::provision::{CreateVolume, Intent};
use prost::Message;
use std::collections::BTreeMap;

pub fn start() -> Box<dyn Reader> {
    let mut server = requests::start();
    Box::new(move |input: &[u8]| read(&mut *server, input))
}

fn read(server: &mut dyn Reader, input: &[u8]) -> String {
    let Ok(answer) = v1::CreateVolumeResponse::decode(input) else { return "not a response".to_owned() };
    let volume = answer.volume.unwrap_or_default();
    let created = Created {
        handle: volume.volume_id,
        bytes: volume.capacity_bytes,
        context: volume.volume_context,
        places: volume.accessible_topology.into_iter().map(|place| place.segments).collect(),
        is_copy: volume.content_source.is_some(),
    };
    match judge(&intent(), Ok(created.clone()), &mut Doubt::default(), jiff::Timestamp::UNIX_EPOCH) {
        Outcome::Save(object) => {
            assert!(!created.handle.is_empty(), "a volume without a handle is saved");
            let request = format!(
                "POST /api/v1/persistentvolumes application/json\n{object}\n--\nDELETE /api/v1/persistentvolumes/pvc-u "
            );
            server.read(request.as_bytes())
        }
        Outcome::Discard { why, .. } | Outcome::Open { why } => why,
        other => panic!("a response was handled as a failure: {other:?}"),
    }
}

pub fn intent() -> Intent {
    Intent {
        driver: "d.example.com".to_owned(),
        request: CreateVolume {
            name: "pvc-u".to_owned(),
            required_bytes: 1 << 30,
            capabilities: Vec::new(),
            parameters: BTreeMap::new(),
            mutable_parameters: BTreeMap::new(),
            source: None,
            topology: None,
            secret: None,
        },
        volume: json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-u"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "c",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": "u"},
                "csi": {"driver": "d.example.com"},
            },
        }),
        reschedules: false,
    }
}
