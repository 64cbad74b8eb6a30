//! Rollbacks as the KEPs describe them: a gate goes off while no operation is in progress, operations then work as
//! without the feature, and the rest is completed when the gate is on again.

use super::operator::{
    CLAIM, LATE_MAX, Operator, StoryResult, VOLUME, claim, has_finalizer, object_ref, retention, set, template,
};
use super::templates::{is_rolled, sizes};
use crate::commit_checker::JOURNAL;
use crate::world::RECLAIM_GATE;
use object::access::{Access, name};
use object::{Gates, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

impl Operator {
    /// Waits until each claim has `count` owners.
    async fn until_owners(&self, count: usize) -> StoryResult {
        self.until(&format!("each claim has {count} owners"), |checker| {
            checker.all(CLAIM).all(|claim| claim.items(&["metadata", "ownerReferences"]).len() == count)
        })
        .await
    }

    /// Waits until the PV has no finalizer of the provisioner.
    async fn until_provisioner_finalizer_removed(&self, volume: &Value) -> StoryResult {
        self.until_finalizer_removed(volume, plan::csi::FINALIZER).await
    }

    pub async fn until_finalizer_removed(&self, volume: &Value, finalizer: &str) -> StoryResult {
        self.until(&format!("{} has no finalizer {finalizer}", name(volume)), |checker| {
            checker.get(VOLUME, "", name(volume)).is_some_and(|volume| !has_finalizer(volume, finalizer))
        })
        .await
    }

    /// Sets the reclaim gate of binder and provisioner, which run in separate processes. Restarts only a process whose gate
    /// changes.
    pub async fn set_reclaim_gates(&self, binder: bool, provisioner: bool) {
        self.world
            .log
            .record(format!("OPERATOR {RECLAIM_GATE}={binder} of the binder, {provisioner} of the provisioner"));
        let with = |on| Gates::default().with(RECLAIM_GATE, on);
        let before = self.world.process_configs();
        self.world.set_gates_apart(with(binder), with(provisioner));
        if before.len() == 1 {
            self.world.kill_controllers();
        }
        for config in self.world.process_configs().iter().filter(|config| !before.contains(config)) {
            self.world.kill_process(config.0);
        }
        self.pause(Duration::from_secs(3)).await;
    }

    /// Waits until the provisioner will not forget a terminating PV, even if it restarts.
    pub async fn until_recorded(&self, volume: &Value) -> StoryResult {
        self.until(&format!("{} has a finalizer or a journal entry", name(volume)), |checker| {
            let is_held = |volume: &Value| has_finalizer(volume, plan::csi::FINALIZER);
            let journal = self.world.stored(JOURNAL).unwrap_or_default();
            checker.get(VOLUME, "", name(volume)).is_some_and(|volume| is_held(volume))
                || journal["data"].to_string().contains(name(volume))
        })
        .await
    }

    fn pods(&self) -> Vec<String> {
        let checker = self.world.checker();
        checker.all("Pod").map(|pod| pod.text(&["metadata", "uid"]).to_owned()).collect()
    }
}

/// R14: with the gate off the policy works like Retain. Owner references are removed, and neither scale-down nor
/// deletion deletes claims. On again, owner references are added again, also to claims without a pod.
pub async fn retention_rollback(me: Operator) -> StoryResult {
    let gate = "StatefulSetAutoDeletePVC";
    let (web, policy) = (object_ref("StatefulSet", "web"), retention("Delete", "Delete"));
    let all = ["data-web-0", "data-web-1", "data-web-2"];
    me.create(set("web", 3, "quick", policy.clone())).await;
    me.until_complete("web").await?;
    me.until_owners(1).await?;
    let held = me.holdings(&all);
    me.controllers_with(gate, false).await;
    me.until_owners(0).await?;
    me.scale("web", 1).await;
    me.until_complete("web").await?;
    me.pause(LATE_MAX).await;
    me.until_claims(&all).await?;
    me.controllers_with(gate, true).await;
    me.until_owners(1).await?;
    // Claims that the scale-down left are reused.
    me.scale("web", 3).await;
    me.until_complete("web").await?;
    me.expect("all claims are unchanged", held == me.holdings(&all))?;
    me.controllers_with(gate, false).await;
    me.until_owners(0).await?;
    me.delete(&web, "Foreground").await;
    me.until_gone(&web).await?;
    me.controllers_with(gate, true).await;
    me.pause(LATE_MAX).await;
    me.until_claims(&all).await?;
    me.create(set("web", 3, "quick", policy)).await;
    me.until_complete("web").await?;
    me.until_owners(1).await?;
    me.expect("all claims are unchanged for the next set", held == me.holdings(&all))?;
    me.scale("web", 2).await;
    me.until_claims(&all[..2]).await?;
    me.delete(&web, "Background").await;
    me.until_claims(&[]).await?;
    me.until_volumes(0).await
}

/// R14: the downgrade of the KEP with all four combinations of policies. With the gate off for server and
/// controllers, no claims are deleted with replicas or sets. With the gate on, new sets own their claims, and each
/// policy applies again.
pub async fn retention_downgrade(me: Operator) -> StoryResult {
    let gate = "StatefulSetAutoDeletePVC";
    let sets = [
        ("dd", "Delete", "Delete"),
        ("dr", "Delete", "Retain"),
        ("rd", "Retain", "Delete"),
        ("rr", "Retain", "Retain"),
    ];
    let names: Vec<String> =
        sets.iter().flat_map(|(named, ..)| (0..2).map(move |ordinal| format!("data-{named}-{ordinal}"))).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    me.make(&sets).await?;
    let held = me.holdings(&all);
    me.controllers_with(gate, false).await;
    me.server_with(gate, false).await;
    me.until_owners(0).await?;
    for (named, ..) in sets {
        me.scale(named, 1).await;
    }
    for (named, ..) in sets {
        me.until_complete(named).await?;
    }
    for (named, ..) in sets {
        me.delete(&object_ref("StatefulSet", named), "Background").await;
    }
    me.until("no pod exists", |checker| checker.all("Pod").count() == 0).await?;
    me.pause(LATE_MAX).await;
    me.until_claims(&all).await?;
    me.server_with(gate, true).await;
    me.controllers_with(gate, true).await;
    me.make(&sets).await?;
    me.expect("all claims are unchanged", held == me.holdings(&all))?;
    for (named, ..) in sets {
        me.scale(named, 1).await;
    }
    for (named, ..) in sets {
        me.until_complete(named).await?;
    }
    me.until_claims(&["data-dd-0", "data-dr-0", "data-dr-1", "data-rd-0", "data-rr-0", "data-rr-1"]).await?;
    for (named, ..) in sets {
        me.delete(&object_ref("StatefulSet", named), "Background").await;
    }
    me.until_claims(&["data-rd-0", "data-rr-0", "data-rr-1"]).await?;
    me.until_volumes(3).await
}

impl Operator {
    /// Creates sets of two replicas with these policies, and waits until their claims have the right number of
    /// owners.
    async fn make(&self, sets: &[(&str, &str, &str)]) -> StoryResult {
        for (named, when_deleted, when_scaled) in sets {
            self.create(set(named, 2, "quick", retention(when_deleted, when_scaled))).await;
        }
        for (named, when_deleted, _) in sets {
            self.until_complete(named).await?;
            let count = usize::from(*when_deleted == "Delete");
            self.until(&format!("claims of {named} have {count} owners"), |checker| {
                let is_its = |claim: &&Arc<Value>| name(claim).starts_with(&format!("data-{named}-"));
                let owners = |claim: &Arc<Value>| claim.items(&["metadata", "ownerReferences"]).len();
                checker.all(CLAIM).filter(is_its).all(|claim| owners(claim) == count)
            })
            .await?;
        }
        Ok(())
    }
}

/// O5, T16: a set created with the server's gates off has neither a start ordinal nor an update policy, even if its
/// creator set them, and its claim templates are immutable. With the gates on, it changes only when a user changes
/// it.
pub async fn made_before(me: Operator) -> StoryResult {
    let web = object_ref("StatefulSet", "web");
    let (start, in_place) = (json!({"ordinals": {"start": 5}}), json!({"volumeClaimUpdatePolicy": "InPlace"}));
    let larger = json!({"volumeClaimTemplates": [template("data", "quick", "2Gi")]});
    let gates = ["StatefulSetStartOrdinal", "StatefulSetUpdateVolumeClaimTemplate"];
    let older = gates.iter().fold(Gates::default(), |gates, gate| gates.with(gate, false));
    me.server_with_gates(older).await;
    me.create(set("web", 2, "quick", object::patch::merge(&start, &in_place))).await;
    me.until_complete("web").await?;
    me.until_claims(&["data-web-0", "data-web-1"]).await?;
    let (pods, held) = (me.pods(), me.holdings(&["data-web-0", "data-web-1"]));
    me.expect("no start ordinal is stored", me.field("web", &["spec", "ordinals"]).is_none())?;
    me.expect("no policy is stored", me.field("web", &["spec", "volumeClaimUpdatePolicy"]).is_none())?;
    me.expect("the template is immutable", !me.patch(&web, json!({"spec": larger})).await)?;
    me.server_with_gates(Gates::default()).await;
    me.pause(Duration::from_secs(60)).await;
    me.expect("the pods keep running", pods == me.pods())?;
    me.patch(&web, json!({"spec": {"ordinals": {"start": 1}}})).await;
    me.until_complete("web").await?;
    me.until_claims(&["data-web-0", "data-web-1", "data-web-2"]).await?;
    me.patch(&web, json!({"spec": object::patch::merge(&in_place, &larger)})).await;
    me.until("the claims of the replicas are expanded", |checker| {
        is_rolled(checker, "web") && sizes(checker) == ["1Gi", "2Gi", "2Gi"]
    })
    .await?;
    me.expect("the claims are unchanged", held == me.holdings(&["data-web-0", "data-web-1"]))
}

/// R14: the upgrade of the KEP. A set created with the gates off has no policy afterwards, even if its creator set
/// one: its claims outlive scale-down and deletion.
pub async fn retention_upgrade(me: Operator) -> StoryResult {
    let gate = "StatefulSetAutoDeletePVC";
    let (web, all) = (object_ref("StatefulSet", "web"), ["data-web-0", "data-web-1", "data-web-2"]);
    me.server_with(gate, false).await;
    me.controllers_with(gate, false).await;
    me.create(set("web", 3, "quick", retention("Delete", "Delete"))).await;
    me.until_complete("web").await?;
    let policy = || me.field("web", &["spec", "persistentVolumeClaimRetentionPolicy"]);
    me.expect("the policy is not stored", policy().is_none())?;
    let held = me.holdings(&all);
    me.server_with(gate, true).await;
    me.controllers_with(gate, true).await;
    me.scale("web", 1).await;
    me.until_complete("web").await?;
    me.pause(LATE_MAX).await;
    me.until_claims(&all).await?;
    me.delete(&web, "Background").await;
    me.until_gone(&web).await?;
    me.pause(LATE_MAX).await;
    me.until_claims(&all).await?;
    me.expect("all claims are unchanged", held == me.holdings(&all))
}

/// O5: a user who orphans the pods first keeps them during a rollback, which would otherwise number them from 0.
pub async fn ordinals_rollback(me: Operator) -> StoryResult {
    let gate = "StatefulSetStartOrdinal";
    let (web, start) = (object_ref("StatefulSet", "web"), json!({"ordinals": {"start": 5}}));
    me.create(set("web", 2, "quick", start.clone())).await;
    me.until_complete("web").await?;
    let (pods, held) = (me.pods(), me.holdings(&["data-web-5", "data-web-6"]));
    me.delete(&web, "Orphan").await;
    me.until_gone(&web).await?;
    me.until("the pods have no owner", |checker| {
        checker.all("Pod").all(|pod| pod.items(&["metadata", "ownerReferences"]).is_empty())
    })
    .await?;
    me.controllers_with(gate, false).await;
    me.pause(LATE_MAX).await;
    me.expect("the pods keep running", pods == me.pods())?;
    me.controllers_with(gate, true).await;
    me.create(set("web", 2, "quick", start)).await;
    me.until_complete("web").await?;
    me.expect("the set has the same pods", pods == me.pods())?;
    me.expect("the set has the same claims", held == me.holdings(&["data-web-5", "data-web-6"]))?;
    me.until_claims(&["data-web-5", "data-web-6"]).await
}

/// T16: a template change while the controllers' gate is off is stored in a revision, but old claims are not updated,
/// then or later. New claims use the newest template. The next change updates all claims.
pub async fn templates_rollback(me: Operator) -> StoryResult {
    let gate = "StatefulSetUpdateVolumeClaimTemplate";
    let web = object_ref("StatefulSet", "web");
    let larger = |size: &str| json!({"spec": {"volumeClaimUpdatePolicy": "InPlace", "volumeClaimTemplates": [template("data", "quick", size)]}});
    me.create(set("web", 2, "quick", json!({}))).await;
    me.until_complete("web").await?;
    let pods = me.pods();
    me.controllers_with(gate, false).await;
    let before = me.field("web", &["status", "updateRevision"]);
    me.patch(&web, larger("2Gi")).await;
    me.until("the rollout is over", |checker| is_rolled(checker, "web")).await?;
    me.expect("the revision is a new one", before != me.field("web", &["status", "updateRevision"]))?;
    me.scale("web", 3).await;
    me.until_complete("web").await?;
    for on in [false, true] {
        me.controllers_with(gate, on).await;
        me.pause(Duration::from_secs(60)).await;
        me.expect("old claims are unchanged", sizes(&me.world.checker()) == ["1Gi", "1Gi", "2Gi"])?;
    }
    me.patch(&web, larger("3Gi")).await;
    me.until("all claims are expanded", |checker| is_rolled(checker, "web") && sizes(checker) == ["3Gi"; 3]).await?;
    me.expect("no pod was replaced", pods == me.pods()[..2])
}

/// H8: with the gate off, the order of deletion matters: a PV that is deleted before its claim leaves its data. On
/// again, PVs that were made meanwhile get the finalizer, too.
pub async fn reclaim_rollback(me: Operator) -> StoryResult {
    let gate = RECLAIM_GATE;
    me.create(claim("old", "quick")).await;
    let old = me.volume_of("old").await?;
    me.until_finalizer(&old, plan::csi::FINALIZER).await?;
    let handle = me.handle(&old);
    me.controllers_with(gate, false).await;
    me.until_provisioner_finalizer_removed(&old).await?;
    me.delete(&old, "").await;
    me.delete(&object_ref(CLAIM, "old"), "").await;
    me.until_gone(&object_ref(CLAIM, "old")).await?;
    me.until_gone_for_good(&old).await?;
    for named in ["usual", "new"] {
        me.create(claim(named, "quick")).await;
    }
    let (usual, new) = (me.volume_of("usual").await?, me.volume_of("new").await?);
    me.delete(&object_ref(CLAIM, "usual"), "").await;
    me.until_gone(&usual).await?;
    me.controllers_with(gate, true).await;
    me.until_finalizer(&new, plan::csi::FINALIZER).await?;
    me.delete(&new, "").await;
    me.delete(&object_ref(CLAIM, "new"), "").await;
    me.until_gone(&new).await?;
    // Only the PV that was deleted before its claim with the gate off has left its data.
    me.until_handles(&BTreeSet::from([handle])).await
}

/// H8, version skew: binder and provisioner are separate processes, and only one of them honours policies, also
/// during a reclaim. Only the provisioner's gate matters for a driver volume.
pub async fn reclaim_skew(me: Operator) -> StoryResult {
    let mut left = BTreeSet::new();
    for (binder, provisioner) in [(true, false), (false, true), (true, true)] {
        me.set_reclaim_gates(binder, provisioner).await;
        for class in ["quick", "kept"] {
            for named in ["usual", "reversed"] {
                me.create(claim(named, class)).await;
                let volume = me.volume_of(named).await?;
                if provisioner && class == "quick" {
                    me.until_finalizer(&volume, plan::csi::FINALIZER).await?;
                } else {
                    me.until_provisioner_finalizer_removed(&volume).await?;
                }
                let (is_reversed, handle) = (named == "reversed", me.handle(&volume));
                if class == "kept" || (is_reversed && !provisioner) {
                    left.insert(handle);
                }
                if is_reversed {
                    me.delete(&volume, "").await;
                    // The binder's gate changes before it sees the deletion of the claim.
                    me.set_reclaim_gates(!binder, provisioner).await;
                }
                me.delete(&object_ref(CLAIM, named), "").await;
                me.until_gone(&object_ref(CLAIM, named)).await?;
                if class == "kept" {
                    me.delete(&volume, "").await;
                }
                me.until_gone_for_good(&volume).await?;
                me.set_reclaim_gates(binder, provisioner).await;
            }
        }
    }
    // The provisioner's gate changes between the deletions of PV and claim. Its gate at the time of the claim's
    // deletion applies.
    for (first, last) in [(false, true), (true, false)] {
        me.set_reclaim_gates(true, first).await;
        me.create(claim("turned", "quick")).await;
        let volume = me.volume_of("turned").await?;
        if first {
            me.until_finalizer(&volume, plan::csi::FINALIZER).await?;
        } else {
            me.until_provisioner_finalizer_removed(&volume).await?;
        }
        let handle = me.handle(&volume);
        me.delete(&volume, "").await;
        me.set_reclaim_gates(true, last).await;
        if last {
            me.until_recorded(&volume).await?;
        } else {
            me.until_provisioner_finalizer_removed(&volume).await?;
            left.insert(handle);
        }
        me.delete(&object_ref(CLAIM, "turned"), "").await;
        me.until_gone(&object_ref(CLAIM, "turned")).await?;
        me.until_gone_for_good(&volume).await?;
        me.until_handles(&left).await?;
    }
    me.until_handles(&left).await
}
