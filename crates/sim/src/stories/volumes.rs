//! PV protection and KEP-2644: bound volumes stay, and the reclaim policy is honoured in any order of deletion.

use super::operator::{CLAIM, NAMESPACE, Operator, Told, VOLUME, claim, is_whole, set, the};
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

/// H5, V1: a volume that was retained and whose object is gone is brought back by a person, who names the claim that it is for.
pub async fn taken_over(me: Operator) -> Told {
    me.create(claim("first", "kept")).await;
    let volume = me.volume_of("first").await?;
    let found = me.world.checker().get(VOLUME, "", name(&volume)).cloned().unwrap_or_default();
    let handle = found.text(&["spec", "csi", "volumeHandle"]).to_owned();
    me.delete(&the(CLAIM, "first"), "").await;
    me.until_gone(&the(CLAIM, "first")).await?;
    me.delete(&volume, "").await;
    me.until_gone(&volume).await?;
    me.expect("the data is still there", me.world.driver.handles().contains(&handle))?;
    me.create(json!({
        "apiVersion": "v1", "kind": VOLUME, "metadata": {"name": "imported"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "quick",
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": NAMESPACE, "name": "second"},
            "csi": {"driver": csi::directory::DEFAULT_NAME, "volumeHandle": handle},
        },
    }))
    .await;
    let mut second = claim("second", "quick");
    second["spec"]["volumeName"] = json!("imported");
    me.create(second).await;
    me.until_claims(&["second"]).await?;
    // Before that nobody who deletes data has seen it bound, and nobody would delete it.
    me.until("it is held for its driver", |checker| {
        let held =
            |volume: &Value| volume.items(&["metadata", "finalizers"]).iter().any(|it| it == plan::csi::FINALIZER);
        checker.get(VOLUME, "", "imported").is_some_and(|volume| held(volume))
    })
    .await?;
    me.delete(&the(VOLUME, "imported"), "").await;
    me.delete(&the(CLAIM, "second"), "").await;
    me.until_gone(&the(CLAIM, "second")).await?;
    me.until_gone(&the(VOLUME, "imported")).await?;
    for _ in 0..600 {
        // Whoever forgot, with the server, that the first claim's volume had come and gone may have made another one for it.
        if !me.world.driver.handles().contains(&handle) {
            return Ok(());
        }
        me.pause(std::time::Duration::from_secs(1)).await;
    }
    me.expect("and the data is gone", false)
}

/// A namespace goes with sets, pods, claims and, by their policy, volumes; the next one of its name has nothing of it.
pub async fn emptied(me: Operator) -> Told {
    let other = the("Namespace", "other");
    for class in ["quick", "kept"] {
        me.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})).await;
        let mut there = set("web", 2, class, json!({}));
        there["metadata"]["namespace"] = json!("other");
        me.create(there).await;
        me.until("the set is whole", |checker| is_whole(checker, "other", "web")).await?;
        me.delete(&other, "").await;
        me.until_gone(&other).await?;
        me.until_claims(&[]).await?;
    }
    me.until_volumes(2).await?;
    me.until("what is retained is released", |checker| {
        checker.all(VOLUME).all(|volume| volume.text(&["status", "phase"]) == "Released")
    })
    .await
}

/// A claim, and a namespace with a claim in it, are deleted and made anew at once: the new ones are left alone.
pub async fn claimed_anew(me: Operator) -> Told {
    me.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})).await;
    let mut there = claim("data", "kept");
    there["metadata"]["namespace"] = json!("other");
    me.create(there.clone()).await;
    me.create(claim("data", "quick")).await;
    me.until_claims(&["data", "data"]).await?;
    for _ in 0..3 {
        me.delete(&the(CLAIM, "data"), "").await;
        me.create_anew(claim("data", "quick")).await;
        me.delete(&the("Namespace", "other"), "").await;
        me.create_anew(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})).await;
        me.create(there.clone()).await;
        me.until_claims(&["data", "data"]).await?;
    }
    // One of each three that were made and retained, and one for each claim.
    me.until_volumes(5).await
}
