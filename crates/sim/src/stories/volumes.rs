//! PV protection and KEP-2644: bound PVs are protected, and the reclaim policy is honoured in any order of deletion.

use super::operator::{CLAIM, NAMESPACE, Operator, StoryResult, VOLUME, claim, is_bound, is_complete, object_ref, set};
use object::access::{Access, name, terminating};
use object::{Value, json};

pub fn pod(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": NAMESPACE, "name": name},
        "spec": {
            "containers": [{"name": "main", "image": "image:1"}], "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// V2, V3
pub async fn protected(me: Operator) -> StoryResult {
    me.create(claim("data", "late")).await;
    me.create(pod("user", "data")).await;
    me.until("the pod runs", |checker| {
        checker.get("Pod", NAMESPACE, "user").is_some_and(|pod| pod.text(&["status", "phase"]) == "Running")
    })
    .await?;
    let volume = me.volume_of("data").await?;
    me.delete(&volume, "").await;
    me.delete(&object_ref(CLAIM, "data"), "").await;
    me.pause(std::time::Duration::from_secs(5)).await;
    let (has_claim, has_volume) = {
        let checker = me.world.checker();
        let goes = |object: Option<&std::sync::Arc<Value>>| object.is_some_and(|object| terminating(object));
        (goes(checker.get(CLAIM, NAMESPACE, "data")), goes(checker.get(VOLUME, "", name(&volume))))
    };
    me.expect("the claim is not removed while its pod runs", has_claim)?;
    me.expect("the PV is not removed before its claim", has_volume)?;
    me.delete(&object_ref("Pod", "user"), "").await;
    me.until_gone(&object_ref(CLAIM, "data")).await?;
    me.until_gone(&volume).await
}

/// H1, H2, H6, H10
pub async fn reclaimed(me: Operator) -> StoryResult {
    for class in ["quick", "kept"] {
        for volume_first in [true, false] {
            let named = format!("{class}-{volume_first}");
            me.create(claim(&named, class)).await;
            let volume = me.volume_of(&named).await?;
            let mut order = [volume.clone(), object_ref(CLAIM, &named)];
            if !volume_first {
                order.reverse();
            }
            for object in &order {
                me.delete(object, "").await;
            }
            me.until_gone(&object_ref(CLAIM, &named)).await?;
            me.until_gone(&volume).await?;
        }
    }
    me.until_volumes(0).await
}

/// H6: edits of the policy, before and after claim and PV are deleted.
pub async fn policy_edited(me: Operator) -> StoryResult {
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    me.create(claim("stays", "quick")).await;
    let volume = me.volume_of("stays").await?;
    me.patch(&volume, policy("Retain")).await;
    me.delete(&object_ref(CLAIM, "stays"), "").await;
    me.until("the PV is released", |checker| {
        checker.get(VOLUME, "", name(&volume)).is_some_and(|it| it.text(&["status", "phase"]) == "Released")
    })
    .await?;
    me.create(claim("goes", "kept")).await;
    let other = me.volume_of("goes").await?;
    me.delete(&other, "").await;
    me.patch(&other, policy("Delete")).await;
    me.delete(&object_ref(CLAIM, "goes"), "").await;
    me.until_gone(&other).await?;
    // A deleted PV is kept, because its claim still had it when the policy changed.
    me.create(claim("saved", "quick")).await;
    let saved = me.volume_of("saved").await?;
    let handle = me.handle(&saved);
    me.delete(&saved, "").await;
    me.patch(&saved, policy("Retain")).await;
    me.delete(&object_ref(CLAIM, "saved"), "").await;
    me.until_gone_for_good(&saved).await?;
    me.expect("the data still exists", me.world.driver.handles().contains(&handle))?;
    // The retained PV is deleted after its owner changes the policy.
    me.patch(&volume, policy("Delete")).await;
    me.until_gone(&volume).await?;
    me.until_volumes(0).await
}

impl Operator {
    /// Waits until the journal has an entry for a PV.
    async fn until_journaled(&self, volume: &str) -> StoryResult {
        self.until(&format!("the journal has an entry for {volume}"), |checker| {
            let journal = checker.get("ConfigMap", "kube-system", "mainstay-csi-journal");
            journal.is_some_and(|journal| journal.has(&["data", volume]))
        })
        .await
    }

    /// Makes a retained volume, and deletes its claim and its PV. Returns the handle of the remaining backend volume.
    async fn retained_volume(&self) -> Result<String, String> {
        self.create(claim("first", "kept")).await;
        let volume = self.volume_of("first").await?;
        let handle = self.handle(&volume);
        self.delete(&object_ref(CLAIM, "first"), "").await;
        self.until_gone(&object_ref(CLAIM, "first")).await?;
        self.delete(&volume, "").await;
        self.until_gone(&volume).await?;
        Ok(handle)
    }
}

/// A PV that a user creates for a backend volume, reserved for the claim `second`.
fn imported(handle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": VOLUME, "metadata": {"name": "imported"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "quick",
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": NAMESPACE, "name": "second"},
            "csi": {"driver": csi::directory::DEFAULT_NAME, "volumeHandle": handle},
        },
    })
}

/// H5, V1: a retained volume without a PV gets a new one from a user, who reserves it for a claim.
pub async fn taken_over(me: Operator) -> StoryResult {
    let handle = me.retained_volume().await?;
    me.expect("the data still exists", me.world.driver.handles().contains(&handle))?;
    me.create(imported(&handle)).await;
    let mut second = claim("second", "quick");
    second["spec"]["volumeName"] = json!("imported");
    me.create(second).await;
    me.until_claims(&["second"]).await?;
    // Wait for the finalizer: a controller deletes data only after it has seen the PV bound.
    me.until_finalizer(&object_ref(VOLUME, "imported"), plan::csi::FINALIZER).await?;
    me.delete(&object_ref(VOLUME, "imported"), "").await;
    me.delete(&object_ref(CLAIM, "second"), "").await;
    me.until_gone(&object_ref(CLAIM, "second")).await?;
    me.until_gone(&object_ref(VOLUME, "imported")).await?;
    for _ in 0..600 {
        // If provisioner and server forgot the first claim's deleted PV, the provisioner may have made another one
        // for it.
        if !me.world.driver.handles().contains(&handle) {
            return Ok(());
        }
        me.pause(std::time::Duration::from_secs(1)).await;
    }
    me.expect("the data is deleted", false)
}

/// A PV with data is reserved for a claim of a dynamic class. The claim gets this PV, however late the controllers
/// see it.
pub async fn reserved(me: Operator) -> StoryResult {
    let handle = me.retained_volume().await?;
    let mut made = imported(&handle);
    made["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": csi::directory::DEFAULT_NAME});
    me.create(made).await;
    // The creation timestamps of PV and claim must differ.
    me.pause(std::time::Duration::from_secs(2)).await;
    me.create(claim("second", "quick")).await;
    me.until_claims(&["second"]).await?;
    let volume = me.volume_of("second").await?;
    me.expect("the claim gets the reserved PV", name(&volume) == "imported")?;
    me.until_volumes(1).await?;
    me.expect("the data still exists", me.world.driver.handles().contains(&handle))
}

/// H6: the policy changes while the PV is terminating, and the latest value applies.
pub async fn last_word(me: Operator) -> StoryResult {
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    me.create(claim("first", "kept")).await;
    let volume = me.volume_of("first").await?;
    let handle = me.handle(&volume);
    me.delete(&volume, "").await;
    me.patch(&volume, policy("Delete")).await;
    me.until_journaled(name(&volume)).await?;
    me.patch(&volume, policy("Retain")).await;
    me.delete(&object_ref(CLAIM, "first"), "").await;
    me.until_gone(&object_ref(CLAIM, "first")).await?;
    me.until_gone_for_good(&volume).await?;
    me.expect("the data still exists", me.world.driver.handles().contains(&handle))
}

/// A PV made by a user, for claims of a class without a provisioner.
fn by_hand(name: &str, more: Value) -> Value {
    let spec = json!({
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand",
    });
    let mut volume = object_ref(VOLUME, name);
    volume["spec"] = object::patch::merge(&spec, &more);
    volume
}

/// V3, V4: a terminating PV is bound neither to the claim that it names nor to another. A PV without the protection
/// finalizer gets it again.
pub async fn on_its_way_out(me: Operator) -> StoryResult {
    const HOLD: &str = "example.com/hold";
    let disk = |path: &str| json!({"hostPath": {"path": path}, "persistentVolumeReclaimPolicy": "Retain"});
    for path in ["/disks/0", "/disks/1"] {
        me.world.driver.inside.add(path);
    }
    let mut going = by_hand("going", disk("/disks/0"));
    going["metadata"]["finalizers"] = json!([HOLD]);
    me.create(going).await;
    me.delete(&object_ref(VOLUME, "going"), "").await;
    let mut named = claim("named", "by-hand");
    named["spec"]["volumeName"] = json!("going");
    me.create(named).await;
    me.create(claim("any", "by-hand")).await;
    me.pause(std::time::Duration::from_secs(30)).await;
    let bound = me.world.checker().all(CLAIM).filter(|claim| is_bound(claim)).count();
    me.expect("both claims are pending", bound == 0)?;
    me.create(by_hand("other", disk("/disks/1"))).await;
    me.until("one claim has another PV", |checker| {
        let has_it = |claim: &Value| is_bound(claim) && claim.text(&["spec", "volumeName"]) == "other";
        checker.get(CLAIM, NAMESPACE, "any").is_some_and(|claim| has_it(claim))
    })
    .await?;
    me.patch(&object_ref(VOLUME, "going"), json!({"metadata": {"finalizers": null}})).await;
    me.until_gone(&object_ref(VOLUME, "going")).await?;
    me.create(by_hand("going", disk("/disks/0"))).await;
    me.until_claims(&["any", "named"]).await?;
    // Objects as they were before PV protection existed.
    for (object, finalizer) in [
        (object_ref(VOLUME, "other"), "kubernetes.io/pv-protection"),
        (object_ref(CLAIM, "any"), "kubernetes.io/pvc-protection"),
    ] {
        me.patch(&object, json!({"metadata": {"finalizers": null}})).await;
        me.until_finalizer(&object, finalizer).await?;
    }
    me.until_volumes(2).await
}

/// H5: a PV that was never bound is removed at once, and its data stays, with either policy.
pub async fn never_bound(me: Operator) -> StoryResult {
    let handle = me.retained_volume().await?;
    let source = json!({"driver": csi::directory::DEFAULT_NAME, "volumeHandle": handle});
    for policy in ["Retain", "Delete"] {
        me.create(by_hand("imported", json!({"csi": source, "persistentVolumeReclaimPolicy": policy}))).await;
        me.until("the PV is available", |checker| {
            let phase = |volume: &Value| volume.text(&["status", "phase"]) == "Available";
            checker.get(VOLUME, "", "imported").is_some_and(|volume| phase(volume))
        })
        .await?;
        me.delete(&object_ref(VOLUME, "imported"), "").await;
        me.until_gone(&object_ref(VOLUME, "imported")).await?;
        me.pause(std::time::Duration::from_secs(30)).await;
        me.expect("the data still exists", me.world.driver.handles().contains(&handle))?;
    }
    Ok(())
}

/// A namespace is deleted with sets, pods, claims and, by their policy, PVs. The next namespace of that name is
/// empty.
pub async fn emptied(me: Operator) -> StoryResult {
    let other = object_ref("Namespace", "other");
    for class in ["quick", "kept"] {
        me.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})).await;
        let mut there = set("web", 2, class, json!({}));
        there["metadata"]["namespace"] = json!("other");
        me.create(there).await;
        me.until("the set is complete", |checker| is_complete(checker, "other", "web")).await?;
        me.delete(&other, "").await;
        me.until_gone(&other).await?;
        me.until_claims(&[]).await?;
    }
    me.until_volumes(2).await?;
    me.until("the retained PV is released", |checker| {
        checker.all(VOLUME).all(|volume| volume.text(&["status", "phase"]) == "Released")
    })
    .await
}

/// A claim, and a namespace with a claim in it, are deleted and created again at once. The new ones must not be
/// deleted.
pub async fn claimed_anew(me: Operator) -> StoryResult {
    me.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})).await;
    let mut there = claim("data", "kept");
    there["metadata"]["namespace"] = json!("other");
    me.create(there.clone()).await;
    me.create(claim("data", "quick")).await;
    me.until_claims(&["data", "data"]).await?;
    for _ in 0..3 {
        me.delete(&object_ref(CLAIM, "data"), "").await;
        me.recreate(claim("data", "quick")).await;
        me.delete(&object_ref("Namespace", "other"), "").await;
        me.recreate(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})).await;
        me.create(there.clone()).await;
        me.until_claims(&["data", "data"]).await?;
    }
    // One PV of each of the three retained claims, and one for each new claim.
    me.until_volumes(5).await
}
