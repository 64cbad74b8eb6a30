//! What the driver stores about a volume or snapshot: a small JSON file beside its data.

use crate::v1;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The format of the records that are written, and the newest that is read.
const FORMAT: u32 = 1;

pub type Texts = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRecord {
    pub id: String,
    /// The name in the request, which makes creation idempotent.
    pub name: String,
    pub size_bytes: i64,
    pub created: jiff::Timestamp,
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    pub parameters: Texts,
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    pub mutable_parameters: Texts,
    /// The topology segment of the volume; none if the driver has no topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Texts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The nodes to which the controller attached it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attached: BTreeMap<String, Attachment>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Volume(String),
    Snapshot(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    pub readonly: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRecord {
    pub id: String,
    pub name: String,
    pub source_volume_id: String,
    pub size_bytes: i64,
    pub created: jiff::Timestamp,
}

/// Where a volume is used on this machine. It is never synced: it describes links, which need not survive a crash
/// either.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UseRecord {
    #[serde(default)]
    pub staged: Vec<String>,
    #[serde(default)]
    pub published: BTreeMap<String, Publication>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    pub readonly: bool,
    /// The volume may not be published at a second path.
    pub alone: bool,
}

#[derive(Serialize, Deserialize)]
struct Sealed<T> {
    format: u32,
    record: T,
}

pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(&Sealed { format: FORMAT, record }).expect("records are plain data");
    bytes.push(b'\n');
    bytes
}

/// Parses a record; the error says why it is not one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Seal {
        format: u32,
    }
    if bytes.is_empty() {
        return Err("it is empty".to_owned());
    }
    let seal: Seal =
        serde_json::from_slice(bytes).map_err(|error| format!("it is not a record of this driver: {error}"))?;
    if seal.format != FORMAT {
        return Err(format!("its format is {}, and this version knows {FORMAT}", seal.format));
    }
    let sealed: Sealed<T> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(sealed.record)
}

impl VolumeRecord {
    pub fn volume(&self) -> v1::Volume {
        v1::Volume {
            capacity_bytes: self.size_bytes,
            volume_id: self.id.clone(),
            volume_context: self.context(),
            content_source: self.source.as_ref().map(Source::message),
            accessible_topology: self.place.iter().map(|place| v1::Topology { segments: place.clone() }).collect(),
        }
    }

    /// The class's parameters, which are stored for information, without those that the caller added about itself.
    pub fn context(&self) -> Texts {
        let own = self.parameters.iter().filter(|(key, _)| !key.starts_with(CALLERS_PREFIX));
        own.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

/// Keys with which Kubernetes passes the names of claim and volume.
pub const CALLERS_PREFIX: &str = "csi.storage.k8s.io/";

impl Source {
    pub fn message(&self) -> v1::VolumeContentSource {
        use v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
        let kind = match self {
            Source::Volume(id) => Type::Volume(VolumeSource { volume_id: id.clone() }),
            Source::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.clone() }),
        };
        v1::VolumeContentSource { r#type: Some(kind) }
    }
}

impl SnapshotRecord {
    pub fn snapshot(&self) -> v1::Snapshot {
        v1::Snapshot {
            size_bytes: self.size_bytes,
            snapshot_id: self.id.clone(),
            source_volume_id: self.source_volume_id.clone(),
            creation_time: Some(prost_types::Timestamp {
                seconds: self.created.as_second(),
                nanos: self.created.subsec_nanosecond(),
            }),
            ready_to_use: true,
            group_snapshot_id: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_can_be_read_back_and_others_are_refused() {
        let record = VolumeRecord {
            id: "vol-1".into(),
            name: "pvc-é".into(),
            size_bytes: 1 << 40,
            created: "2026-01-02T03:04:05.678Z".parse().unwrap(),
            parameters: [("a".into(), "b".into())].into(),
            mutable_parameters: Texts::new(),
            place: Some([("zone".into(), "a".into())].into()),
            source: Some(Source::Snapshot("snap-1".into())),
            attached: [("n".into(), Attachment { readonly: true })].into(),
        };
        let bytes = encode(&record);
        assert_eq!(decode::<VolumeRecord>(&bytes), Ok(record));
        let text = String::from_utf8(bytes).unwrap();
        let cases = [
            (String::new(), "it is empty"),
            (text[..text.len() / 2].to_owned(), "it is not a record of this driver: EOF"),
            ("[]".to_owned(), "it is not a record of this driver"),
            (text.replace("\"format\": 1", "\"format\": 7"), "its format is 7, and this version knows 1"),
            (text.replace("size_bytes", "size"), "unknown field `size`"),
        ];
        for (text, expected) in cases {
            let error = decode::<VolumeRecord>(text.as_bytes()).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
