//! In-tree volume sources that were migrated to CSI drivers.

use object::Value;
use object::access::Access;
use std::borrow::Cow;

/// The volume handle: from the CSI source, or converted from the migrated in-tree source.
pub fn handle(volume: &Value) -> Option<Cow<'_, str>> {
    if let Some((_, handle)) = super::csi_source(volume) {
        return Some(handle.into());
    }
    let text = |path: &[&str]| volume.at(path).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(id) = text(&["spec", "awsElasticBlockStore", "volumeID"]) {
        // `aws://zone/vol-1` or `vol-1`.
        return Some(id.rsplit('/').next().unwrap_or(id).into());
    }
    let plain = [
        ["spec", "azureDisk", "diskURI"],
        ["spec", "cinder", "volumeID"],
        ["spec", "vsphereVolume", "volumePath"],
        ["spec", "portworxVolume", "volumeID"],
    ];
    if let Some(handle) = plain.iter().find_map(|path| text(path)) {
        return Some(handle.into());
    }
    if let Some(disk) = text(&["spec", "gcePersistentDisk", "pdName"]) {
        let zone = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"]
            .iter()
            .find_map(|label| text(&["metadata", "labels", label]))?;
        // A regional disk has its zones joined by two underscores; the region is a zone name without its last part.
        let place = match zone.split_once("__") {
            None => format!("zones/{zone}"),
            Some((first, _)) => format!("regions/{}", first.rsplit_once('-').map_or(first, |(region, _)| region)),
        };
        return Some(format!("projects/UNSPECIFIED/{place}/disks/{disk}").into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    #[test]
    fn handles_of_migrated_volumes() {
        let zone = json!({"labels": {"topology.kubernetes.io/zone": "z-1a"}});
        let zones = json!({"labels": {"topology.kubernetes.io/zone": "z-1a__z-1b"}});
        let cases = [
            (json!({"spec": {"csi": {"driver": "d", "volumeHandle": "h"}}}), Some("h")),
            (json!({"spec": {"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}}}), Some("vol-1")),
            (json!({"spec": {"awsElasticBlockStore": {"volumeID": "vol-1"}}}), Some("vol-1")),
            (json!({"spec": {"cinder": {"volumeID": "c"}}}), Some("c")),
            (
                json!({"metadata": zone, "spec": {"gcePersistentDisk": {"pdName": "p"}}}),
                Some("projects/UNSPECIFIED/zones/z-1a/disks/p"),
            ),
            (
                json!({"metadata": zones, "spec": {"gcePersistentDisk": {"pdName": "p"}}}),
                Some("projects/UNSPECIFIED/regions/z/disks/p"),
            ),
            (json!({"spec": {"gcePersistentDisk": {"pdName": "p"}}}), None),
            (json!({"spec": {"hostPath": {"path": "/x"}}}), None),
        ];
        for (volume, want) in cases {
            assert_eq!(handle(&volume).as_deref(), want, "{volume}");
        }
    }
}
