//! KEP-2644 for the plugin inside: volumes that are directories, which the binder makes and deletes.

use super::operator::{CLAIM, NAMESPACE, Operator, Told, VOLUME, claim, has_finalizer, retention, set, the};
use crate::world::HONOURS;
use object::access::{Access, name};
use object::{Value, json};
use plan::reclaim::FINALIZER;
use std::collections::BTreeSet;
use std::time::Duration;

/// What the document says of in-tree volumes holds for those that the plugin made, and for those that a person made.
#[derive(Clone, Copy, PartialEq)]
enum Maker {
    Plugin,
    Person,
}

fn policy(policy: &str) -> Value {
    json!({"spec": {"persistentVolumeReclaimPolicy": policy}})
}

impl Operator {
    /// Classes of the plugin inside, one for each policy.
    pub async fn prepare_inside(&self) {
        for (named, policy) in [("inside", "Delete"), ("inside-kept", "Retain")] {
            self.create(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": named},
                "provisioner": plan::reclaim::HOST_PATH, "reclaimPolicy": policy,
            }))
            .await;
        }
    }

    /// A claim with a directory of this policy; its volume.
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
        if maker == Maker::Plugin && policy == "Delete" && self.world.controller_gates().on(HONOURS) {
            self.until_held(&volume, FINALIZER).await?;
        }
        Ok(volume)
    }

    fn is_held(&self, volume: &Value) -> bool {
        let found = self.world.checker().get(VOLUME, "", name(volume)).cloned();
        found.is_some_and(|volume| has_finalizer(&volume, FINALIZER))
    }

    async fn until_phase(&self, volume: &Value, phase: &str) -> Told {
        self.until(&format!("{} is {phase}", name(volume)), |checker| {
            checker.get(VOLUME, "", name(volume)).is_some_and(|it| it.text(&["status", "phase"]) == phase)
        })
        .await
    }
}

/// Claims go again before they have their volume, at any moment of its making: no directory is left behind.
pub async fn given_up_inside(me: Operator) -> Told {
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
        me.delete(&the(CLAIM, moment), "").await;
        me.until_gone(&the(CLAIM, moment)).await?;
        me.until_handles(&BTreeSet::new()).await?;
    }
    Ok(())
}

/// H1, H3, H6, H10: volume and claim go in either order, and the policy is edited in between, back and forth. What it says when the claim has
/// gone counts.
pub async fn reclaimed_inside(me: Operator) -> Told {
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
                // What is to be deleted is gone with its claim.
                if from == "Delete" && order.contains(&"released") {
                    continue;
                }
                let named = format!("{makers}-{}-{at}", from.to_lowercase());
                let volume = me.claimed_inside(&named, maker, from).await?;
                let path = me.handle(&volume);
                me.expect(
                    "none but a volume that the plugin made is held",
                    maker == Maker::Plugin || !me.is_held(&volume),
                )?;
                let mut last = from;
                for step in *order {
                    match *step {
                        "claim" => drop(me.delete(&the(CLAIM, &named), "").await),
                        "volume" => drop(me.delete(&volume, "").await),
                        "released" => me.until_phase(&volume, "Released").await?,
                        edit => {
                            last = if edit == "edit" { to } else { from };
                            me.patch(&volume, policy(last)).await;
                        }
                    }
                }
                me.until_gone(&the(CLAIM, &named)).await?;
                me.until_gone_for_good(&volume).await?;
                if last == "Retain" {
                    left.insert(path);
                }
            }
        }
    }
    me.until_handles(&left).await
}

/// R3, R4: claims of a set, and their directories, go with replicas that are scaled away, and with the set.
pub async fn set_inside(me: Operator) -> Told {
    me.prepare_inside().await;
    let web = the("StatefulSet", "web");
    me.create(set("web", 3, "inside", retention("Delete", "Delete"))).await;
    me.until_whole("web").await?;
    let kept = me.holdings(&["data-web-0"]);
    me.scale("web", 1).await;
    me.until_whole("web").await?;
    me.until_claims(&["data-web-0"]).await?;
    me.until_volumes(1).await?;
    me.expect("the first is as it was", kept == me.holdings(&["data-web-0"]))?;
    me.scale("web", 2).await;
    me.until_whole("web").await?;
    // One is told to go while its pod runs: it waits for its claim, and that for the pod.
    let second = me.volume_of("data-web-1").await?;
    me.delete(&second, "").await;
    me.pause(Duration::from_secs(5)).await;
    let waits = me.world.checker().get(VOLUME, NAMESPACE, name(&second)).is_none()
        && me.world.checker().get(VOLUME, "", name(&second)).is_some();
    me.expect("a volume in use waits", waits)?;
    me.delete(&web, "Foreground").await;
    me.until_claims(&[]).await?;
    me.until_volumes(0).await?;
    me.until_handles(&BTreeSet::new()).await
}

/// H8: the gate of the binder goes off and on, between any two steps of a reclaim.
pub async fn inside_rollback(me: Operator) -> Told {
    me.prepare_inside().await;
    let mut left = BTreeSet::new();
    // Held, and off: what holds it is left over, and it is taken up when the gate is on again.
    for named in ["first", "second"] {
        let volume = me.claimed_inside(named, Maker::Plugin, "Delete").await?;
        if named == "first" {
            me.controllers_with(HONOURS, false).await;
            me.delete(&volume, "").await;
        } else {
            me.delete(&volume, "").await;
            me.controllers_with(HONOURS, false).await;
        }
        me.delete(&the(CLAIM, named), "").await;
        me.until_gone(&the(CLAIM, named)).await?;
        me.until_phase(&volume, "Released").await?;
        me.pause(Duration::from_secs(30)).await;
        me.expect("it is held, with its data", me.is_held(&volume) && me.has_data(&volume))?;
        me.controllers_with(HONOURS, true).await;
        me.until_gone_for_good(&volume).await?;
    }
    me.until_left(&left).await?;
    // Made while it is off, and not held: as ever if its claim goes first, and left behind if it goes first itself.
    me.controllers_with(HONOURS, false).await;
    let (usual, reversed) = (
        me.claimed_inside("usual", Maker::Plugin, "Delete").await?,
        me.claimed_inside("reversed", Maker::Plugin, "Delete").await?,
    );
    let late = me.claimed_inside("late", Maker::Plugin, "Delete").await?;
    let saved = me.claimed_inside("saved", Maker::Plugin, "Delete").await?;
    let new = me.claimed_inside("new", Maker::Plugin, "Delete").await?;
    me.delete(&the(CLAIM, "usual"), "").await;
    me.until_gone(&usual).await?;
    left.insert(me.handle(&reversed));
    me.delete(&reversed, "").await;
    me.delete(&the(CLAIM, "reversed"), "").await;
    me.until_gone_for_good(&reversed).await?;
    // On again before their claims go: nothing can hold them any more, and they are deleted all the same, unless they are to stay.
    me.delete(&late, "").await;
    me.delete(&saved, "").await;
    me.controllers_with(HONOURS, true).await;
    me.patch(&saved, policy("Retain")).await;
    left.insert(me.handle(&saved));
    for (named, volume) in [("late", &late), ("saved", &saved)] {
        me.delete(&the(CLAIM, named), "").await;
        me.until_gone_for_good(volume).await?;
    }
    me.until_held(&new, FINALIZER).await?;
    me.delete(&new, "").await;
    me.delete(&the(CLAIM, "new"), "").await;
    me.until_gone_for_good(&new).await?;
    me.until_left(&left).await
}

impl Operator {
    /// Waits until these are left. What was left behind while policies were not honoured goes after all with a volume that came once more, by a
    /// request that was late: its policy is Delete.
    async fn until_left(&self, left: &BTreeSet<String>) -> Told {
        let has_returned = |path: &str| {
            let uid = path.rsplit('/').next().unwrap_or_default();
            self.world.ledger.has_returned(&format!("pvc-{uid}"))
        };
        let there = self.world.driver.handles();
        let wanted = left.iter().filter(|path| there.contains(*path) || !has_returned(path)).cloned().collect();
        self.until_handles(&wanted).await
    }

    fn has_data(&self, volume: &Value) -> bool {
        self.world.driver.handles().contains(&self.handle(volume))
    }
}

/// H8, version skew: binder and provisioner are processes of their own, and each honours policies or not. What becomes of a directory is up to
/// the binder, what becomes of a driver's volume to the provisioner; and it is what they are when the claim goes that counts.
pub async fn inside_skew(me: Operator) -> Told {
    me.prepare_inside().await;
    let mut left = BTreeSet::new();
    // What each honours when volumes are made and told to go, and what when the claims go.
    let steps = [
        ((true, false), (true, false)),
        ((false, true), (false, true)),
        ((true, false), (false, true)),
        ((false, true), (true, false)),
    ];
    for (at, (before, then)) in steps.into_iter().enumerate() {
        me.honours_apart(before.0, before.1).await;
        let mut pairs = Vec::new();
        for (class, finalizer, was, is) in
            [("inside", FINALIZER, before.0, then.0), ("quick", plan::csi::FINALIZER, before.1, then.1)]
        {
            for order in ["usual", "reversed"] {
                let named = format!("{class}-{order}-{at}");
                me.create(claim(&named, class)).await;
                let volume = me.volume_of(&named).await?;
                if was {
                    me.until_held(&volume, finalizer).await?;
                } else {
                    me.until_let_go(&volume, finalizer).await?;
                }
                pairs.push((named, volume, finalizer, order == "reversed", was, is));
            }
        }
        for (_, volume, ..) in pairs.iter().filter(|(.., is_reversed, _, _)| *is_reversed) {
            me.delete(volume, "").await;
        }
        me.honours_apart(then.0, then.1).await;
        for (named, volume, finalizer, is_reversed, was, is) in &pairs {
            let path = me.handle(volume);
            let is_driver = *finalizer == plan::csi::FINALIZER;
            if *is_reversed && *is && is_driver {
                me.until_minded(volume).await?;
            } else if *is_reversed && !*is && is_driver {
                me.until_let_go(volume, finalizer).await?;
            }
            me.delete(&the(CLAIM, named), "").await;
            me.until_gone(&the(CLAIM, named)).await?;
            // What holds a directory's volume is left over when the gate goes off, and taken up when it is on again.
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
        me.honours_apart(true, true).await;
        for (_, volume, ..) in &pairs {
            me.until_gone_for_good(volume).await?;
        }
        me.until_left(&left).await?;
    }
    Ok(())
}
