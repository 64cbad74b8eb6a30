//! PV protection and KEP-2644: bound volumes stay, and the reclaim policy is honoured in any order of deletion.

use super::operator::{CLAIM, NAMESPACE, Operator, Told, VOLUME, claim, is_bound, is_whole, set, the};
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
    // One that was told to go is kept after all: its claim still held it.
    me.create(claim("saved", "quick")).await;
    let saved = me.volume_of("saved").await?;
    let handle = me.handle(&saved);
    me.delete(&saved, "").await;
    me.patch(&saved, policy("Retain")).await;
    me.delete(&the(CLAIM, "saved"), "").await;
    me.until_gone_for_good(&saved).await?;
    me.expect("the data is still there", me.world.driver.handles().contains(&handle))?;
    // The retained one goes in the end, because its owner says so.
    me.patch(&volume, policy("Delete")).await;
    me.until_gone(&volume).await?;
    me.until_volumes(0).await
}

impl Operator {
    /// Waits until something is written down about a volume.
    async fn until_written(&self, volume: &str) -> Told {
        self.until(&format!("something is written down about {volume}"), |checker| {
            let journal = checker.get("ConfigMap", "kube-system", "mainstay-csi-journal");
            journal.is_some_and(|journal| journal.has(&["data", volume]))
        })
        .await
    }

    /// Makes a volume of a class that retains, and deletes its claim and its object; the handle of what is left.
    async fn left_behind(&self) -> Result<String, String> {
        self.create(claim("first", "kept")).await;
        let volume = self.volume_of("first").await?;
        let handle = self.handle(&volume);
        self.delete(&the(CLAIM, "first"), "").await;
        self.until_gone(&the(CLAIM, "first")).await?;
        self.delete(&volume, "").await;
        self.until_gone(&volume).await?;
        Ok(handle)
    }
}

/// An object that somebody makes for a backend volume, and that is reserved for the claim `second`.
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

/// H5, V1: a volume that was retained and whose object is gone is brought back by a person, who names the claim that it is for.
pub async fn taken_over(me: Operator) -> Told {
    let handle = me.left_behind().await?;
    me.expect("the data is still there", me.world.driver.handles().contains(&handle))?;
    me.create(imported(&handle)).await;
    let mut second = claim("second", "quick");
    second["spec"]["volumeName"] = json!("imported");
    me.create(second).await;
    me.until_claims(&["second"]).await?;
    // Before that nobody who deletes data has seen it bound, and nobody would delete it.
    me.until_held(&the(VOLUME, "imported"), plan::csi::FINALIZER).await?;
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

/// A volume with data is reserved for a claim that any provisioner would make one for: the claim gets the data, however late anybody hears of it.
pub async fn reserved(me: Operator) -> Told {
    let handle = me.left_behind().await?;
    let mut made = imported(&handle);
    made["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": csi::directory::DEFAULT_NAME});
    me.create(made).await;
    // The claim is not of the same second.
    me.pause(std::time::Duration::from_secs(2)).await;
    me.create(claim("second", "quick")).await;
    me.until_claims(&["second"]).await?;
    let volume = me.volume_of("second").await?;
    me.expect("the claim has the data", name(&volume) == "imported")?;
    me.until_volumes(1).await?;
    me.expect("the data is there", me.world.driver.handles().contains(&handle))
}

/// H6: the policy changes its mind while the volume is on its way out, and its last word counts.
pub async fn last_word(me: Operator) -> Told {
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    me.create(claim("first", "kept")).await;
    let volume = me.volume_of("first").await?;
    let handle = me.handle(&volume);
    me.delete(&volume, "").await;
    me.patch(&volume, policy("Delete")).await;
    me.until_written(name(&volume)).await?;
    me.patch(&volume, policy("Retain")).await;
    me.delete(&the(CLAIM, "first"), "").await;
    me.until_gone(&the(CLAIM, "first")).await?;
    me.until_gone_for_good(&volume).await?;
    me.expect("the data is still there", me.world.driver.handles().contains(&handle))
}

/// A volume that somebody made by hand, for claims of a class that nobody provisions.
fn by_hand(name: &str, more: Value) -> Value {
    let spec = json!({
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand",
    });
    let mut volume = the(VOLUME, name);
    volume["spec"] = object::patch::merge(&spec, &more);
    volume
}

/// V3, V4: a volume that is on its way out is not for any claim, and neither named nor unnamed ones get it. What lacks its finalizer gets it back.
pub async fn on_its_way_out(me: Operator) -> Told {
    const HOLD: &str = "example.com/hold";
    let disk = |path: &str| json!({"hostPath": {"path": path}, "persistentVolumeReclaimPolicy": "Retain"});
    for path in ["/disks/0", "/disks/1"] {
        me.world.driver.inside.add(path);
    }
    let mut going = by_hand("going", disk("/disks/0"));
    going["metadata"]["finalizers"] = json!([HOLD]);
    me.create(going).await;
    me.delete(&the(VOLUME, "going"), "").await;
    let mut named = claim("named", "by-hand");
    named["spec"]["volumeName"] = json!("going");
    me.create(named).await;
    me.create(claim("any", "by-hand")).await;
    me.pause(std::time::Duration::from_secs(30)).await;
    let bound = me.world.checker().all(CLAIM).filter(|claim| is_bound(claim)).count();
    me.expect("both claims wait", bound == 0)?;
    me.create(by_hand("other", disk("/disks/1"))).await;
    me.until("one has another volume", |checker| {
        let has_it = |claim: &Value| is_bound(claim) && claim.text(&["spec", "volumeName"]) == "other";
        checker.get(CLAIM, NAMESPACE, "any").is_some_and(|claim| has_it(claim))
    })
    .await?;
    me.patch(&the(VOLUME, "going"), json!({"metadata": {"finalizers": null}})).await;
    me.until_gone(&the(VOLUME, "going")).await?;
    me.create(by_hand("going", disk("/disks/0"))).await;
    me.until_claims(&["any", "named"]).await?;
    // Objects from before there was any protection.
    for (object, finalizer) in
        [(the(VOLUME, "other"), "kubernetes.io/pv-protection"), (the(CLAIM, "any"), "kubernetes.io/pvc-protection")]
    {
        me.patch(&object, json!({"metadata": {"finalizers": null}})).await;
        me.until_held(&object, finalizer).await?;
    }
    me.until_volumes(2).await
}

/// H5: a volume that was never bound goes at once, and its data stays, whatever its policy says.
pub async fn never_bound(me: Operator) -> Told {
    let handle = me.left_behind().await?;
    let source = json!({"driver": csi::directory::DEFAULT_NAME, "volumeHandle": handle});
    for policy in ["Retain", "Delete"] {
        me.create(by_hand("imported", json!({"csi": source, "persistentVolumeReclaimPolicy": policy}))).await;
        me.until("it is there for anybody", |checker| {
            let phase = |volume: &Value| volume.text(&["status", "phase"]) == "Available";
            checker.get(VOLUME, "", "imported").is_some_and(|volume| phase(volume))
        })
        .await?;
        me.delete(&the(VOLUME, "imported"), "").await;
        me.until_gone(&the(VOLUME, "imported")).await?;
        me.pause(std::time::Duration::from_secs(30)).await;
        me.expect("the data is still there", me.world.driver.handles().contains(&handle))?;
    }
    Ok(())
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
