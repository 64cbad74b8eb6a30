//! Rules for writes of PVs, claims and classes: scenarios I, J and L of the volumes' digest.

use crate::support::*;
use serde_json::{Value, json};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const ATTRIBUTES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";

/// A PV of a CSI driver, merged with `spec`.
fn volume(name: &str, spec: Value) -> Value {
    let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "x.io", "volumeHandle": "h"},
    }});
    for (field, value) in spec.as_object().expect("fields") {
        volume["spec"][field] = value.clone();
    }
    volume
}

/// Creates a claim whose status says that it is bound.
async fn bound_claim(admin: &Api, name: &str, class: &str) -> String {
    let path = format!("{CLAIMS}/{name}");
    let mut claim = claim(name, class, "2Gi");
    claim["spec"]["volumeName"] = json!("v");
    admin.post(CLAIMS, &claim).await.expect(201);
    let status = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"]});
    admin.patch(&format!("{path}/status"), MERGE, &json!({"status": status})).await.expect(200);
    path
}

/// L1, L2, L4
#[tokio::test]
async fn l1_l2_l4_volumes_begin_pending_and_keep_their_source() {
    let world = World::new().await;
    let admin = world.admin();
    let mut first = volume("v", json!({}));
    first["status"] = json!({"phase": "Bound"});
    let stored = admin.post(VOLUMES, &first).await.expect(201);
    assert_eq!(stored["status"]["phase"], "Pending");
    assert_eq!(stored["status"]["lastPhaseTransitionTime"], "2026-01-01T00:00:00Z");
    let path = format!("{VOLUMES}/v");
    for spec in [json!({"csi": {"volumeHandle": "other"}}), json!({"volumeMode": "Block"})] {
        admin.patch(&path, MERGE, &json!({"spec": spec})).await.refused(422, "Invalid");
    }
    let reference = json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": "u"});
    for spec in [
        json!({"claimRef": reference}),
        json!({"claimRef": {"uid": null}}),
        json!({"claimRef": null}),
        json!({"persistentVolumeReclaimPolicy": "Delete"}),
        json!({"storageClassName": "gold"}),
        json!({"capacity": {"storage": "5Gi"}}),
    ] {
        admin.patch(&path, MERGE, &json!({"spec": spec})).await.expect(200);
    }
}

/// L5, L6
#[tokio::test]
async fn l5_l6_volumes_that_make_no_sense_are_refused() {
    let world = World::new().await;
    let admin = world.admin();
    for spec in [
        json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
        json!({"accessModes": []}),
        json!({"capacity": {"storage": "0"}}),
        json!({"hostPath": {"path": "/tmp/x"}}),
        json!({"csi": null}),
        json!({"csi": null, "hostPath": {"path": "/tmp/x"}, "volumeAttributesClassName": "gold"}),
        json!({"volumeAttributesClassName": ""}),
    ] {
        admin.post(VOLUMES, &volume("v", spec)).await.refused(422, "Invalid");
    }
    admin.post(VOLUMES, &volume("v", json!({"volumeAttributesClassName": "gold"}))).await.expect(201);
}

/// L7, L9, L10, L12, L15
#[tokio::test]
async fn l7_l9_l10_l12_l15_claims_change_only_as_allowed() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(CLAIMS, &claim("c", "x", "1Gi")).await.expect(201);
    let path = format!("{CLAIMS}/c");
    let set = |spec: Value| json!({"spec": spec});
    admin.patch(&path, MERGE, &set(json!({"volumeName": "x"}))).await.expect(200);
    for spec in [
        json!({"volumeName": "y"}),
        json!({"accessModes": ["ReadWriteMany"]}),
        json!({"selector": {"matchLabels": {"a": "b"}}}),
        json!({"resources": {"limits": {"storage": "5Gi"}}}),
    ] {
        admin.patch(&path, MERGE, &set(spec)).await.refused(422, "Invalid");
    }
    // The status has its own subresource, which also changes metadata, but not the spec.
    let both = json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"volumeName": "z"}});
    let stored = admin.patch(&format!("{path}/status"), MERGE, &both).await.expect(200);
    assert_eq!((&stored["metadata"]["annotations"]["a"], &stored["spec"]["volumeName"]), (&json!("b"), &json!("x")));
    // A data source is written in either field and returned in both.
    let source = json!({"kind": "PersistentVolumeClaim", "name": "c"});
    let mut copy = claim("copy", "x", "1Gi");
    copy["spec"]["dataSourceRef"] = source.clone();
    let stored = admin.post(CLAIMS, &copy).await.expect(201);
    assert_eq!(stored["spec"]["dataSource"], source);
    let going = admin.delete(&path).await.expect(200);
    assert!(going["metadata"]["deletionTimestamp"].is_string(), "{going}");
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 0);
}

/// L13, L14, J10
#[tokio::test]
async fn l13_l14_j10_classes_change_only_as_allowed() {
    let world = World::new().await;
    let admin = world.admin();
    let class = |policy: &str| json!({"metadata": {"name": "c"}, "provisioner": "x.io/disk", "reclaimPolicy": policy});
    admin.post(CLASSES, &class("Recycle")).await.refused(422, "Invalid");
    admin.post(CLASSES, &class("Delete")).await.expect(201);
    let path = format!("{CLASSES}/c");
    admin.patch(&path, MERGE, &json!({"parameters": {"a": "b"}})).await.refused(422, "Invalid");
    let claim = bound_claim(&admin, "claim", "c").await;
    let larger = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
    admin.patch(&claim, MERGE, &larger).await.refused(403, "Forbidden");
    admin.patch(&path, MERGE, &json!({"allowVolumeExpansion": true})).await.expect(200);
    admin.patch(&claim, MERGE, &larger).await.expect(200);

    let gold = json!({"metadata": {"name": "gold"}, "driverName": "x.io", "parameters": {"a": "b"}});
    admin.post(ATTRIBUTES, &gold).await.expect(201);
    let path = format!("{ATTRIBUTES}/gold");
    for change in [json!({"parameters": {"a": "c"}}), json!({"driverName": "y.io"})] {
        admin.patch(&path, MERGE, &change).await.refused(422, "Invalid");
    }
}

/// I4, I11, J9
#[tokio::test]
async fn i4_i11_j9_only_bound_claims_grow_or_change_and_never_shrink_below_what_is_there() {
    let world = World::new().await;
    let admin = world.admin();
    let class = json!({"metadata": {"name": "c"}, "provisioner": "x.io/disk", "allowVolumeExpansion": true});
    admin.post(CLASSES, &class).await.expect(201);
    admin.post(CLAIMS, &claim("pending", "c", "2Gi")).await.expect(201);
    let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let gold = json!({"spec": {"volumeAttributesClassName": "gold"}});
    let pending = format!("{CLAIMS}/pending");
    admin.patch(&pending, MERGE, &size("3Gi")).await.refused(422, "Invalid");
    admin.patch(&pending, MERGE, &gold).await.refused(422, "Invalid");
    let bound = bound_claim(&admin, "bound", "c").await;
    admin.patch(&bound, MERGE, &gold).await.expect(200);
    for (asked, code) in [("5Gi", 200), ("3Gi", 200), ("2Gi", 422), ("1Gi", 422)] {
        let answer = admin.patch(&bound, MERGE, &size(asked)).await;
        assert_eq!(answer.code, code, "{asked}: {}", answer.body);
    }
}
