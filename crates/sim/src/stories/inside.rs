//! KEP-2644 for the in-tree plugin, whose volumes are directories that the binder creates and deletes.

use super::operator::{
    CLAIM, NAMESPACE, Operator, StoryResult, VOLUME, claim, has_finalizer, object_ref, retention, set,
};
use crate::world::RECLAIM_GATE;
use object::access::{Access, name};
use object::{Value, json};
use plan::reclaim::FINALIZER;
use std::collections::BTreeSet;
use std::time::Duration;

/// Who made a volume. The KEP's rules for in-tree volumes apply to both.
#[derive(Clone, Copy, PartialEq)]
enum Maker {
    Plugin,
    Person,
}

fn policy(policy: &str) -> Value {
    json!({"spec": {"persistentVolumeReclaimPolicy": policy}})
}

impl Operator {
    /// Creates one StorageClass of the in-tree plugin for each reclaim policy.
    pub async fn prepare_inside(&self) {
        for (named, policy) in [("inside", "Delete"), ("inside-kept", "Retain")] {
            self.create(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": named},
                "provisioner": plan::reclaim::HOST_PATH, "reclaimPolicy": policy,
            }))
            .await;
        }
    }

    /// Creates a claim with a directory of this policy. Returns its volume.
    async fn claimed_inside(&self, named: &str, maker: Maker, policy: &str) -> Result<Value, String> {
        let class = if policy == "Delete" { "inside" } else { "inside-kept" };
        let mut wanted = claim(named, class);
        if maker == Maker::Person {
            let path = format!("/tmp/by-hand/{named}");
            self.world.driver.inside.add(&path);
            wanted["spec"]["volumeName"] = json!(named);
            self.create(json!({
                "apiVersion": "v1", "kind": VOLUME, "metadata": {"name": named},
                "spec": {
                    "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                    "persistentVolumeReclaimPolicy": policy, "hostPath": {"path": path},
                },
            }))
            .await;
        }
        self.create(wanted).await;
        let volume = self.volume_of(named).await?;
        if maker == Maker::Plugin && policy == "Delete" && self.world.controller_gates().on(RECLAIM_GATE) {
            self.until_finalizer(&volume, FINALIZER).await?;
        }
        Ok(volume)
    }

    fn is_held(&self, volume: &Value) -> bool {
        let found = self.world.checker().get(VOLUME, "", name(volume)).cloned();
        found.is_some_and(|volume| has_finalizer(&volume, FINALIZER))
    }

    async fn until_phase(&self, volume: &Value, phase: &str) -> StoryResult {
        self.until(&format!("{} is {phase}", name(volume)), |checker| {
            checker.get(VOLUME, "", name(volume)).is_some_and(|it| it.text(&["status", "phase"]) == phase)
        })
        .await
    }
}

/// Claims are deleted at different moments of provisioning. No directory must remain.
pub async fn given_up_inside(me: Operator) -> StoryResult {
    me.prepare_inside().await;
    for moment in ["asked", "made", "saved", "bound"] {
        me.create(claim(moment, "inside")).await;
        let is_so = |checker: &plan::invariant::Checker| {
            let found = checker.get(CLAIM, NAMESPACE, moment);
            let uid = found.map_or("", |claim| object::access::uid(claim));
            match moment {
                "asked" => true,
                "made" => !me.world.driver.inside.paths().is_empty(),
                "saved" => checker.all(VOLUME).any(|volume| volume.text(&["spec", "claimRef", "uid"]) == uid),
                _ => found.is_some_and(|claim| claim.text(&["status", "phase"]) == "Bound"),
            }
        };
        me.until(moment, is_so).await?;
        me.delete(&object_ref(CLAIM, moment), "").await;
        me.until_gone(&object_ref(CLAIM, moment)).await?;
        me.until_handles(&BTreeSet::new()).await?;
    }
    Ok(())
}

/// H1, H3, H6, H10: PV and claim are deleted in either order, with edits of the policy in between. The policy at the
/// time of the claim's deletion applies.
pub async fn reclaimed_inside(me: Operator) -> StoryResult {
    const ORDERS: [&[&str]; 7] = [
        &["claim", "volume"],
        &["volume", "claim"],
        &["edit", "volume", "claim"],
        &["volume", "edit", "claim"],
        &["edit", "claim", "volume"],
        &["volume", "edit", "edit back", "claim"],
        &["claim", "released", "edit"],
    ];
    me.prepare_inside().await;
    let mut left = BTreeSet::new();
    for (maker, makers) in [(Maker::Plugin, "made"), (Maker::Person, "by-hand")] {
        for (from, to) in [("Delete", "Retain"), ("Retain", "Delete")] {
            for (at, order) in ORDERS.iter().enumerate() {
                // With policy Delete the PV is deleted when its claim is.
                if from == "Delete" && order.contains(&"released") {
                    continue;
                }
                let named = format!("{makers}-{}-{at}", from.to_lowercase());
                let volume = me.claimed_inside(&named, maker, from).await?;
                let path = me.handle(&volume);
                me.expect(
                    "only volumes that the plugin made have the finalizer",
                    maker == Maker::Plugin || !me.is_held(&volume),
                )?;
                let mut last = from;
                for step in *order {
                    match *step {
                        "claim" => drop(me.delete(&object_ref(CLAIM, &named), "").await),
                        "volume" => drop(me.delete(&volume, "").await),
                        "released" => me.until_phase(&volume, "Released").await?,
                        edit => {
                            last = if edit == "edit" { to } else { from };
                            me.patch(&volume, policy(last)).await;
                        }
                    }
                }
                me.until_gone(&object_ref(CLAIM, &named)).await?;
                me.until_gone_for_good(&volume).await?;
                if last == "Retain" {
                    left.insert(path);
                }
            }
        }
    }
    me.until_handles(&left).await
}

/// R3, R4: claims of a set and their directories are deleted with replicas that are scaled away, and with the set.
pub async fn set_inside(me: Operator) -> StoryResult {
    me.prepare_inside().await;
    let web = object_ref("StatefulSet", "web");
    me.create(set("web", 3, "inside", retention("Delete", "Delete"))).await;
    me.until_complete("web").await?;
    let kept = me.holdings(&["data-web-0"]);
    me.scale("web", 1).await;
    me.until_complete("web").await?;
    me.until_claims(&["data-web-0"]).await?;
    me.until_volumes(1).await?;
    me.expect("the first claim is unchanged", kept == me.holdings(&["data-web-0"]))?;
    me.scale("web", 2).await;
    me.until_complete("web").await?;
    // A PV that is deleted while its pod runs waits for the claim, and the claim for the pod.
    let second = me.volume_of("data-web-1").await?;
    me.delete(&second, "").await;
    me.pause(Duration::from_secs(5)).await;
    let waits = me.world.checker().get(VOLUME, NAMESPACE, name(&second)).is_none()
        && me.world.checker().get(VOLUME, "", name(&second)).is_some();
    me.expect("a PV in use is not removed", waits)?;
    me.delete(&web, "Foreground").await;
    me.until_claims(&[]).await?;
    me.until_volumes(0).await?;
    me.until_handles(&BTreeSet::new()).await
}

/// H8: the gate of the binder goes off and on between any two steps of a reclaim.
pub async fn inside_rollback(me: Operator) -> StoryResult {
    me.prepare_inside().await;
    let mut left = BTreeSet::new();
    // PVs with a finalizer from before the gate went off. The finalizer stays, and the binder continues when the gate
    // is on again.
    for named in ["first", "second"] {
        let volume = me.claimed_inside(named, Maker::Plugin, "Delete").await?;
        if named == "first" {
            me.controllers_with(RECLAIM_GATE, false).await;
            me.delete(&volume, "").await;
        } else {
            me.delete(&volume, "").await;
            me.controllers_with(RECLAIM_GATE, false).await;
        }
        me.delete(&object_ref(CLAIM, named), "").await;
        me.until_gone(&object_ref(CLAIM, named)).await?;
        me.until_phase(&volume, "Released").await?;
        me.pause(Duration::from_secs(30)).await;
        me.expect("the PV has its finalizer and its data", me.is_held(&volume) && me.has_data(&volume))?;
        me.controllers_with(RECLAIM_GATE, true).await;
        me.until_gone_for_good(&volume).await?;
    }
    me.until_left(&left).await?;
    // PVs made with the gate off have no finalizer. Their data is deleted if the claim is deleted first, and stays if
    // the PV is deleted first.
    me.controllers_with(RECLAIM_GATE, false).await;
    let (usual, reversed) = (
        me.claimed_inside("usual", Maker::Plugin, "Delete").await?,
        me.claimed_inside("reversed", Maker::Plugin, "Delete").await?,
    );
    let late = me.claimed_inside("late", Maker::Plugin, "Delete").await?;
    let saved = me.claimed_inside("saved", Maker::Plugin, "Delete").await?;
    let new = me.claimed_inside("new", Maker::Plugin, "Delete").await?;
    me.delete(&object_ref(CLAIM, "usual"), "").await;
    me.until_gone(&usual).await?;
    left.insert(me.handle(&reversed));
    me.delete(&reversed, "").await;
    me.delete(&object_ref(CLAIM, "reversed"), "").await;
    me.until_gone_for_good(&reversed).await?;
    // The gate is on again before the claims are deleted. A terminating PV cannot get a finalizer any more, but the
    // binder deletes its data unless the policy is Retain.
    me.delete(&late, "").await;
    me.delete(&saved, "").await;
    me.controllers_with(RECLAIM_GATE, true).await;
    me.patch(&saved, policy("Retain")).await;
    left.insert(me.handle(&saved));
    for (named, volume) in [("late", &late), ("saved", &saved)] {
        me.delete(&object_ref(CLAIM, named), "").await;
        me.until_gone_for_good(volume).await?;
    }
    me.until_finalizer(&new, FINALIZER).await?;
    me.delete(&new, "").await;
    me.delete(&object_ref(CLAIM, "new"), "").await;
    me.until_gone_for_good(&new).await?;
    me.until_left(&left).await
}

impl Operator {
    /// Waits until exactly these directories are left. A directory that was left while the gate was off may still be
    /// deleted, if a late request creates its PV again with policy Delete.
    async fn until_left(&self, left: &BTreeSet<String>) -> StoryResult {
        let may_be_recreated = |path: &str| {
            let uid = path.rsplit('/').next().unwrap_or_default();
            self.world.commit_checker.may_be_recreated(&format!("pvc-{uid}"))
        };
        let there = self.world.driver.handles();
        let wanted = left.iter().filter(|path| there.contains(*path) || !may_be_recreated(path)).cloned().collect();
        self.until_handles(&wanted).await
    }

    fn has_data(&self, volume: &Value) -> bool {
        self.world.driver.handles().contains(&self.handle(volume))
    }
}

/// H8, version skew: binder and provisioner are separate processes with separate gates. The binder decides about
/// directories and the provisioner about driver volumes, each by its gate at the time of the claim's deletion.
pub async fn inside_skew(me: Operator) -> StoryResult {
    me.prepare_inside().await;
    let mut left = BTreeSet::new();
    // Gates of (binder, provisioner) at creation and deletion of the PV, and at deletion of the claim.
    let steps = [
        ((true, false), (true, false)),
        ((false, true), (false, true)),
        ((true, false), (false, true)),
        ((false, true), (true, false)),
    ];
    for (at, (before, then)) in steps.into_iter().enumerate() {
        me.set_reclaim_gates(before.0, before.1).await;
        let mut pairs = Vec::new();
        for (class, finalizer, was, is) in
            [("inside", FINALIZER, before.0, then.0), ("quick", plan::csi::FINALIZER, before.1, then.1)]
        {
            for order in ["usual", "reversed"] {
                let named = format!("{class}-{order}-{at}");
                me.create(claim(&named, class)).await;
                let volume = me.volume_of(&named).await?;
                if was {
                    me.until_finalizer(&volume, finalizer).await?;
                } else {
                    me.until_finalizer_removed(&volume, finalizer).await?;
                }
                pairs.push((named, volume, finalizer, order == "reversed", was, is));
            }
        }
        for (_, volume, ..) in pairs.iter().filter(|(.., is_reversed, _, _)| *is_reversed) {
            me.delete(volume, "").await;
        }
        me.set_reclaim_gates(then.0, then.1).await;
        for (named, volume, finalizer, is_reversed, was, is) in &pairs {
            let path = me.handle(volume);
            let is_driver = *finalizer == plan::csi::FINALIZER;
            if *is_reversed && *is && is_driver {
                me.until_recorded(volume).await?;
            } else if *is_reversed && !*is && is_driver {
                me.until_finalizer_removed(volume, finalizer).await?;
            }
            me.delete(&object_ref(CLAIM, named), "").await;
            me.until_gone(&object_ref(CLAIM, named)).await?;
            // A directory's PV keeps its finalizer when the gate goes off, and is handled when the gate is on again.
            let is_stuck = *is_reversed && *was && !*is && !is_driver;
            if is_stuck {
                me.until_phase(volume, "Released").await?;
            } else {
                me.until_gone_for_good(volume).await?;
            }
            if *is_reversed && !*is && !is_stuck {
                left.insert(path);
            }
        }
        me.set_reclaim_gates(true, true).await;
        for (_, volume, ..) in &pairs {
            me.until_gone_for_good(volume).await?;
        }
        me.until_left(&left).await?;
    }
    Ok(())
}
