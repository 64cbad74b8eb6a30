//! In-tree volumes whose plugins were handed over to CSI drivers.

use object::Value;
use object::access::Access;
use std::borrow::Cow;

/// What a volume is called by its driver: by its CSI source, or by the in-tree source that the driver took over.
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
        // A regional disk names its zones with a double underscore between them; the region is a zone without its last letter.
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
    fn volumes_are_called_as_their_drivers_call_them() {
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
