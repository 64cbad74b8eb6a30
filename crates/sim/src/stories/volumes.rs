//! PV protection and KEP-2644: bound volumes stay, and the reclaim policy is honoured in any order of deletion.

use super::operator::{CLAIM, NAMESPACE, Operator, Told, VOLUME, claim, the};
use object::access::{Access, name, terminating};
use object::{Value, json};

fn pod(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {
            "containers": [{"name": "main", "image": "image:1"}], "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// V2, V3
pub async fn protected(me: Operator) -> Told {
    me.create(claim("data", "late")).await;
    me.create(pod("user", "data")).await;
    me.until("the pod runs", |checker| {
        checker.get("Pod", NAMESPACE, "user").is_some_and(|pod| pod.text(&["status", "phase"]) == "Running")
    })
    .await?;
    let volume = me.volume_of("data").await?;
    me.delete(&volume, "").await;
    me.delete(&the(CLAIM, "data"), "").await;
    me.pause(std::time::Duration::from_secs(5)).await;
    let (has_claim, has_volume) = {
        let checker = me.world.checker();
        let goes = |object: Option<&std::sync::Arc<Value>>| object.is_some_and(|object| terminating(object));
        (goes(checker.get(CLAIM, NAMESPACE, "data")), goes(checker.get(VOLUME, "", name(&volume))))
    };
    me.expect("the claim waits for its pod", has_claim)?;
    me.expect("the volume waits for its claim", has_volume)?;
    me.delete(&the("Pod", "user"), "").await;
    me.until_gone(&the(CLAIM, "data")).await?;
    me.until_gone(&volume).await
}

/// H1, H2, H6, H10
pub async fn reclaimed(me: Operator) -> Told {
    for class in ["quick", "kept"] {
        for volume_first in [true, false] {
            let named = format!("{class}-{volume_first}");
            me.create(claim(&named, class)).await;
            let volume = me.volume_of(&named).await?;
            let mut order = [volume.clone(), the(CLAIM, &named)];
            if !volume_first {
                order.reverse();
            }
            for object in &order {
                me.delete(object, "").await;
            }
            me.until_gone(&the(CLAIM, &named)).await?;
            me.until_gone(&volume).await?;
        }
    }
    me.until_volumes(0).await
}

/// H6: edits of the policy, before and after the claim and the volume are told to go.
pub async fn policy_edited(me: Operator) -> Told {
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    me.create(claim("stays", "quick")).await;
    let volume = me.volume_of("stays").await?;
    me.patch(&volume, policy("Retain")).await;
    me.delete(&the(CLAIM, "stays"), "").await;
    me.until("the volume is released", |checker| {
        checker.get(VOLUME, "", name(&volume)).is_some_and(|it| it.text(&["status", "phase"]) == "Released")
    })
    .await?;
    me.create(claim("goes", "kept")).await;
    let other = me.volume_of("goes").await?;
    me.delete(&other, "").await;
    me.patch(&other, policy("Delete")).await;
    me.delete(&the(CLAIM, "goes"), "").await;
    me.until_gone(&other).await?;
    // The retained one goes in the end, because its owner says so.
    me.patch(&volume, policy("Delete")).await;
    me.until_gone(&volume).await?;
    me.until_volumes(0).await
}
