//! Claims whose volume is a copy of another claim's volume.

use super::csi_source;
use object::Value;
use object::access::{Access, name, namespace, terminating, uid};
use object::kinds::volumes::class_of;
use object::quantity::Quantity;

/// The finalizer on the source of a copy, until the copy exists.
pub const PROTECTION: &str = "provisioner.storage.kubernetes.io/cloning-protection";

/// The initial content of a claim's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start<'a> {
    Empty,
    /// A copy of the volume of this claim in the same namespace.
    Claim(&'a str),
    Snapshot(&'a str),
    /// An external populator fills the volume.
    Foreign,
}

pub fn start(claim: &Value) -> Start<'_> {
    let reference = claim.at(&["spec", "dataSourceRef"]).or_else(|| claim.at(&["spec", "dataSource"]));
    let Some(reference) = reference else { return Start::Empty };
    let elsewhere = reference.text(&["namespace"]);
    if !elsewhere.is_empty() && elsewhere != namespace(claim) {
        return Start::Foreign;
    }
    match (reference.text(&["apiGroup"]), reference.text(&["kind"])) {
        ("", "PersistentVolumeClaim") => Start::Claim(reference.text(&["name"])),
        ("snapshot.storage.k8s.io", "VolumeSnapshot") => Start::Snapshot(reference.text(&["name"])),
        _ => Start::Foreign,
    }
}

/// The handle of the volume to copy, or why it cannot be copied now.
pub fn handle<'a>(
    claim: &Value,
    source: Option<&'a Value>,
    volume: Option<&'a Value>,
    driver: &str,
) -> Result<&'a str, String> {
    let Start::Claim(wanted) = start(claim) else { return Err("the claim has no source claim".to_owned()) };
    let Some(source) = source else {
        return Err(format!(
            "error getting PVC {wanted} (namespace \"{}\") from api server: not found",
            namespace(claim)
        ));
    };
    // With the finalizer, its volume exists as long as the copy needs it.
    if terminating(source) && !crate::finalizers::has(source, PROTECTION) {
        return Err(format!("the PVC DataSource {wanted} is currently being deleted"));
    }
    if source.text(&["status", "phase"]) != "Bound" {
        let phase = source.text(&["status", "phase"]);
        return Err(format!("the PVC DataSource {wanted} must have a status of Bound. Got {phase}"));
    }
    if class_of(source).unwrap_or("").is_empty() {
        return Err(format!("the PVC DataSource {wanted} has no storage class"));
    }
    let storage = ["spec", "resources", "requests", "storage"];
    let size = |claim: &Value| claim.at(&storage).and_then(Quantity::of).unwrap_or(Quantity::ZERO);
    if size(claim) < size(source) {
        return Err(format!(
            "error, new PVC request must be greater than or equal in size to the specified PVC data source, requested {} but \
             source is {}",
            size(claim).ceil(),
            size(source).ceil()
        ));
    }
    let mode = |claim: &Value| match claim.text(&["spec", "volumeMode"]) {
        "" => "Filesystem".to_owned(),
        mode => mode.to_owned(),
    };
    if mode(claim) != mode(source) {
        return Err(format!("the source PVC and destination PVCs have different volume modes: {wanted}"));
    }
    let volume_name = source.text(&["spec", "volumeName"]);
    let Some(volume) = volume else {
        return Err(format!("error getting PV {volume_name} from api server: not found"));
    };
    let Some((of, handle)) = csi_source(volume) else {
        return Err(format!("the source PV {volume_name} is no CSI volume"));
    };
    if of != driver {
        return Err(format!("the source PVC is of another driver {of}, not of {driver}"));
    }
    let bound_to = volume
        .at(&["spec", "claimRef"])
        .map(|claim| (claim.text(&["uid"]), claim.text(&["namespace"]), claim.text(&["name"])));
    let is_bound = volume.text(&["status", "phase"]) == "Bound";
    if !is_bound || bound_to != Some((uid(source), namespace(source), name(source))) {
        return Err(format!("the source PV {volume_name} is not bound to PVC {wanted}"));
    }
    Ok(handle)
}

/// Whether a source is being deleted and has the finalizer.
pub fn is_held(source: &Value) -> bool {
    terminating(source) && crate::finalizers::has(source, PROTECTION)
}

/// The merge patch that removes the finalizer from a deleted source, if no pending claim of its namespace copies it.
pub fn free<'a>(source: &Value, claims: impl IntoIterator<Item = &'a Value>) -> Option<Value> {
    let copies = |claim: &Value| {
        namespace(claim) == namespace(source)
            && claim.text(&["status", "phase"]) == "Pending"
            && start(claim) == Start::Claim(name(source))
    };
    let is_free = is_held(source) && !claims.into_iter().any(copies);
    is_free.then(|| crate::finalizers::patch(source, &[], &[PROTECTION]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    fn copy(change: Value) -> Value {
        let mut claim = json!({
            "metadata": {"namespace": "a", "name": "copy"},
            "spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "source"}, "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Pending"},
        });
        json_patch(&mut claim, change);
        claim
    }

    fn source(change: Value) -> Value {
        let mut claim = json!({
            "metadata": {"namespace": "a", "name": "source", "uid": "u"},
            "spec": {"storageClassName": "c", "volumeName": "v", "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Bound"},
        });
        json_patch(&mut claim, change);
        claim
    }

    fn volume(change: Value) -> Value {
        let mut volume = json!({
            "metadata": {"name": "v"},
            "spec": {"csi": {"driver": "d", "volumeHandle": "h"}, "claimRef": {"namespace": "a", "name": "source", "uid": "u"}},
            "status": {"phase": "Bound"},
        });
        json_patch(&mut volume, change);
        volume
    }

    /// Sets leaf values by dotted path.
    fn json_patch(object: &mut Value, change: Value) {
        for (path, value) in change.as_object().unwrap() {
            let path: Vec<&str> = path.split('.').collect();
            object.put(&path, value.clone());
        }
    }

    /// D25
    #[test]
    fn only_a_bound_source_of_the_same_driver_and_at_most_the_same_size_is_copied() {
        let none = || json!({});
        let good = (copy(none()), source(none()), volume(none()));
        assert_eq!(handle(&good.0, Some(&good.1), Some(&good.2), "d"), Ok("h"));
        let protected = json!({"metadata.deletionTimestamp": "x", "metadata.finalizers": [PROTECTION]});
        assert_eq!(handle(&good.0, Some(&source(protected)), Some(&good.2), "d"), Ok("h"));

        let cases = [
            (
                copy(json!({"spec.resources.requests.storage": "512Mi"})),
                source(none()),
                volume(none()),
                "greater than or equal",
            ),
            (copy(json!({"spec.volumeMode": "Block"})), source(none()), volume(none()), "volume modes"),
            (copy(none()), source(json!({"status.phase": "Pending"})), volume(none()), "must have a status of Bound"),
            (copy(none()), source(json!({"metadata.deletionTimestamp": "x"})), volume(none()), "being deleted"),
            (copy(none()), source(json!({"spec.storageClassName": null})), volume(none()), "no storage class"),
            (copy(none()), source(none()), volume(json!({"spec.csi.driver": "e"})), "another driver"),
            (copy(none()), source(none()), volume(json!({"spec.csi": null})), "no CSI volume"),
            (copy(none()), source(none()), volume(json!({"spec.claimRef.uid": "w"})), "not bound to"),
            (copy(none()), source(none()), volume(json!({"status.phase": "Released"})), "not bound to"),
        ];
        for (copy, source, volume, want) in cases {
            let why = handle(&copy, Some(&source), Some(&volume), "d").unwrap_err();
            assert!(why.contains(want), "{why}: not {want}");
        }
        assert!(handle(&good.0, None, None, "d").unwrap_err().contains("not found"));
    }

    /// D24
    #[test]
    fn a_source_is_held_while_a_copy_is_pending() {
        let leaving = source(json!({"metadata.deletionTimestamp": "x", "metadata.finalizers": [PROTECTION]}));
        let pending = copy(json!({}));
        let bound = copy(json!({"status.phase": "Bound"}));
        assert_eq!(free(&leaving, [&pending]), None);
        assert!(free(&leaving, [&bound]).is_some());
        assert!(free(&leaving, []).is_some());
        assert_eq!(
            free(&source(json!({"metadata.finalizers": [PROTECTION]})), []),
            None,
            "the source is not being deleted"
        );
        assert_eq!(free(&source(json!({"metadata.deletionTimestamp": "x"})), []), None, "it has no finalizer");
    }

    #[test]
    fn the_source_of_a_claim() {
        let with = |reference: Value| json!({"metadata": {"namespace": "a"}, "spec": {"dataSourceRef": reference}});
        assert_eq!(start(&with(Value::Null)), Start::Empty);
        assert_eq!(start(&with(json!({"kind": "PersistentVolumeClaim", "name": "x"}))), Start::Claim("x"));
        assert_eq!(
            start(&with(json!({"kind": "PersistentVolumeClaim", "name": "x", "namespace": "b"}))),
            Start::Foreign
        );
        let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        assert_eq!(start(&with(snapshot)), Start::Snapshot("s"));
        assert_eq!(start(&with(json!({"apiGroup": "x.io", "kind": "Y", "name": "s"}))), Start::Foreign);
    }
}
