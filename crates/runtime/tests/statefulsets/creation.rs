//! Identity and creation.

use crate::sets::*;
use crate::world::*;
use object::access::{Access, name, uid};
use object::{Value, json};

// B01, B02: one after the other, each with its identity.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_come_in_order_each_when_the_one_before_is_ready() {
    let world = World::with(SETS).await;
    let set = world.create(with(web(3), json!({"serviceName": "svc"}))).await;
    for (ordinal, pods) in [&["web-0"][..], &["web-0", "web-1"], &["web-0", "web-1", "web-2"]].iter().enumerate() {
        world.until_pods(pods).await;
        world.until_is(&set, "counted", |set| set["status"]["replicas"] == ordinal + 1).await;
        assert_eq!(world.pods().await, *pods, "no other before this one is ready");
        world.make_ready(pods[ordinal]).await;
    }
    let set = world.until_done(&set).await;
    let revision = set.text(&["status", "updateRevision"]);
    assert_eq!(
        set["status"],
        json!({
            "observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "currentReplicas": 3,
            "updatedReplicas": 3, "currentRevision": revision, "updateRevision": revision, "collisionCount": 0,
        })
    );
    for ordinal in 0..3 {
        let pod = world.the_pod(&format!("web-{ordinal}")).await;
        check_identity(&set, &pod, ordinal);
    }
    world.stop().await;
}

fn check_identity(set: &Value, pod: &Value, ordinal: usize) {
    let metadata = &pod["metadata"];
    assert_eq!(metadata["generateName"], "web-");
    assert_eq!(
        metadata["labels"],
        json!({
            "app": "web",
            "statefulset.kubernetes.io/pod-name": name(pod),
            "apps.kubernetes.io/pod-index": ordinal.to_string(),
            "controller-revision-hash": set.text(&["status", "updateRevision"]),
        })
    );
    assert_eq!(
        metadata["ownerReferences"],
        json!([{
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": uid(set),
            "controller": true, "blockOwnerDeletion": true,
        }])
    );
    assert_eq!((pod["spec"]["hostname"].as_str(), pod["spec"]["subdomain"].as_str()), (Some(name(pod)), Some("svc")));
}
