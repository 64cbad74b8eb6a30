//! Gates that go off and on, for controllers and server separately, in the middle of what they are about.

use super::operator::{
    CLAIM, LATE_MAX, NAMESPACE, Operator, Told, VOLUME, claim, is_bound, pods_of, retention, set, template, the,
};
use super::templates::{is_rolled, sizes};
use crate::end::{is_left_over, meant_handles};
use crate::entropy::Rng;
use crate::world::HONOURS;
use object::access::{Access, name, terminating};
use object::{Gates, Value, json};
use plan::invariant::Checker;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// All gates: those that say what becomes of sets and volumes, and the others, which must not.
pub const GATES: [&str; 12] = [
    "StatefulSetAutoDeletePVC",
    "StatefulSetStartOrdinal",
    "StatefulSetOrdinalPartition",
    "StatefulSetUpdateVolumeClaimTemplate",
    "MaxUnavailableStatefulSet",
    HONOURS,
    "StatefulSetRecreateStrategy",
    "StatefulSetSemanticRevisionComparison",
    "StaleControllerConsistencyStatefulSet",
    "PersistentVolumeClaimUnusedSinceTime",
    "CrossNamespaceVolumeDataSource",
    "MutablePVNodeAffinity",
];

/// Every gate of the controllers and of the server is one of so many.
pub const HANDS: usize = 2 * GATES.len();

/// Which gates a story flips, drawn once: each hand has another one for each phase, and all hands together have all of them for each phase.
pub fn hand(rng: &mut Rng) -> usize {
    usize::try_from(rng.below(HANDS as u64)).unwrap_or(0)
}

/// The gate that is flipped in a phase, and whether it is the server's.
fn dealt(hand: usize, phase: usize) -> (&'static str, bool) {
    let at = (hand + 5 * phase) % HANDS;
    (GATES[at / 2], at % 2 == 1)
}

impl Operator {
    pub async fn controllers_with(&self, gate: &str, on: bool) {
        self.world.log.say(format!("OPERATOR controllers with {gate}={on}"));
        self.world.set_controller_gates(Gates::default().with(gate, on));
        self.world.kill_controllers();
        self.pause(Duration::from_secs(3)).await;
    }

    pub async fn server_with(&self, gate: &str, on: bool) {
        self.world.log.say(format!("OPERATOR server with {gate}={on}"));
        self.server_with_gates(Gates::default().with(gate, on)).await;
    }

    pub async fn server_with_gates(&self, gates: Gates) {
        self.world.set_server_gates(gates);
        self.world.crash_server();
        self.pause(Duration::from_secs(3)).await;
    }

    pub fn field(&self, set: &str, path: &[&str]) -> Option<Value> {
        self.world.checker().get("StatefulSet", NAMESPACE, set).and_then(|set| set.at(path).cloned())
    }
}

/// R14
pub async fn retention_gate(me: Operator) -> Told {
    let gate = "StatefulSetAutoDeletePVC";
    me.create(set("web", 3, "quick", retention("Delete", "Delete"))).await;
    me.until_whole("web").await?;
    // Off in the middle of a scale-down: what was not told to go yet stays.
    me.scale("web", 1).await;
    me.controllers_with(gate, false).await;
    me.until_whole("web").await?;
    me.until("the claims left belong to nobody", |checker| {
        checker.all(CLAIM).all(|claim| {
            claim.has(&["metadata", "deletionTimestamp"]) || claim.items(&["metadata", "ownerReferences"]).is_empty()
        })
    })
    .await?;
    let first = me.uid(CLAIM, "data-web-0");
    // The field stays in the store while the server does not know it, too.
    me.server_with(gate, false).await;
    me.scale("web", 2).await;
    me.until_whole("web").await?;
    let kept = me.field("web", &["spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted"]);
    me.expect("the policy is still stored", kept == Some(json!("Delete")))?;
    // With both off, nothing goes with a scale-down.
    me.scale("web", 1).await;
    me.until_whole("web").await?;
    me.pause(Duration::from_secs(5)).await;
    me.expect("the claim stays", me.world.checker().get(CLAIM, NAMESPACE, "data-web-1").is_some())?;
    me.server_with(gate, true).await;
    me.controllers_with(gate, true).await;
    me.until("the claims belong to the set again", |checker| {
        checker.all(CLAIM).all(|claim| claim.items(&["metadata", "ownerReferences"]).len() == 1)
    })
    .await?;
    me.expect("the first claim is the same as ever", first == me.uid(CLAIM, "data-web-0"))?;
    // Off in the middle of a deletion.
    me.delete(&the("StatefulSet", "web"), "Foreground").await;
    me.controllers_with(gate, false).await;
    me.until_gone(&the("StatefulSet", "web")).await?;
    me.controllers_with(gate, true).await;
    // Which of them go is undefined, as the document says; what is left belongs to nobody, and stays.
    me.until("every claim is there for good, or gone", |checker| {
        let is_free = |claim: &Value| claim.items(&["metadata", "ownerReferences"]).is_empty();
        checker.all(CLAIM).all(|claim| !claim.has(&["metadata", "deletionTimestamp"]) && is_free(claim))
    })
    .await
}

/// O5
pub async fn ordinals_gate(me: Operator) -> Told {
    let gate = "StatefulSetStartOrdinal";
    let more = object::patch::merge(&retention("Retain", "Retain"), &json!({"ordinals": {"start": 5}}));
    me.create(set("web", 2, "quick", more)).await;
    me.until_whole("web").await?;
    me.until_renumbered("web", &["web-0", "web-1"], me.controllers_with(gate, false)).await?;
    me.server_with(gate, false).await;
    me.patch(&the("StatefulSet", "web"), json!({"metadata": {"labels": {"touched": "yes"}}})).await;
    me.expect("the start is still stored", me.field("web", &["spec", "ordinals", "start"]) == Some(json!(5)))?;
    me.server_with(gate, true).await;
    me.until_renumbered("web", &["web-5", "web-6"], me.controllers_with(gate, true)).await?;
    me.until_volumes(4).await
}

impl Operator {
    /// Flips something, and waits until exactly these pods are a set's, which never has fewer from the beginning: the new ones come before the
    /// old ones go.
    async fn until_renumbered(&self, set: &str, wanted: &[&str], flip: impl Future<Output = ()>) -> Told {
        let fewest = AtomicUsize::new(usize::MAX);
        let look = |checker: &Checker| {
            let stays = |pod: &&&Arc<Value>| !terminating(pod);
            fewest.fetch_min(pods_of(checker, NAMESPACE, set).iter().filter(stays).count(), Ordering::Relaxed);
            are_ordinals(checker, set, wanted)
        };
        let what = format!("the pods are {wanted:?}");
        let (numbered, ()) = futures::join!(self.until(&what, look), flip);
        numbered?;
        self.expect("there were never fewer", fewest.into_inner() >= wanted.len())
    }
}

fn are_ordinals(checker: &Checker, set: &str, wanted: &[&str]) -> bool {
    let pods = pods_of(checker, NAMESPACE, set);
    pods.iter().map(|pod| name(pod)).eq(wanted.iter().copied()) && pods.iter().all(|pod| super::operator::is_ready(pod))
}

/// T16: in the middle of a rollout. The controllers that do not know the feature end it, and leave claims alone.
pub async fn templates_gate(me: Operator) -> Told {
    let gate = "StatefulSetUpdateVolumeClaimTemplate";
    let web = the("StatefulSet", "web");
    me.create(set("web", 3, "quick", json!({"volumeClaimUpdatePolicy": "InPlace"}))).await;
    me.until_whole("web").await?;
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}})).await;
    let asked = || asked(&me.world.checker());
    me.until("one claim is to grow", |checker| self::asked(checker).contains(&"2Gi".to_owned())).await?;
    me.controllers_with(gate, false).await;
    me.until("the rollout is over", |checker| is_rolled(checker, "web")).await?;
    // What those before them had sent may have arrived only now.
    me.pause(LATE_MAX).await;
    let left = asked();
    me.server_with(gate, false).await;
    me.patch(&web, json!({"metadata": {"labels": {"touched": "yes"}}})).await;
    let kept = me.field("web", &["spec", "volumeClaimUpdatePolicy"]);
    me.expect("the policy is still stored", kept == Some(json!("InPlace")))?;
    me.server_with(gate, true).await;
    me.controllers_with(gate, true).await;
    me.pause(Duration::from_secs(60)).await;
    me.expect("no claim was touched meanwhile", left == asked())?;
    // What the rollout left out stays so: it takes another one to bring the claims along.
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "3Gi")]}})).await;
    me.until("all claims have grown", |checker| is_rolled(checker, "web") && sizes(checker) == ["3Gi"; 3]).await
}

/// The sizes that claims ask for.
fn asked(checker: &Checker) -> Vec<String> {
    let size = |claim: &Value| claim.text(&["spec", "resources", "requests", "storage"]).to_owned();
    checker.all(CLAIM).map(|claim| size(claim)).collect()
}

/// H8
pub async fn reclaim_gate(me: Operator) -> Told {
    let gate = HONOURS;
    me.create(set("web", 3, "quick", retention("Delete", "Delete"))).await;
    me.until_whole("web").await?;
    me.scale("web", 1).await;
    me.controllers_with(gate, false).await;
    me.until_whole("web").await?;
    me.until("the claims of the others are gone", |checker| checker.all(CLAIM).count() == 1).await?;
    me.scale("web", 2).await;
    me.until_whole("web").await?;
    me.controllers_with(gate, true).await;
    me.delete(&the("StatefulSet", "web"), "Background").await;
    me.until_claims(&[]).await?;
    me.until_volumes(0).await
}

/// Any gates, each for the controllers or the server alone, in the middle of everything that gates are about. What it must come to depends on how
/// far it was, and only where the gate is about it: everything else ends as if nothing had been flipped, after each phase; and what is left has its data.
pub async fn flipped(mut me: Operator) -> Told {
    let hand = hand(&mut me.rng);
    let web = the("StatefulSet", "web");
    let partition = me.rng.below(3);
    let update = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2, "partition": partition}});
    let more = json!({"ordinals": {"start": 1}, "volumeClaimUpdatePolicy": "InPlace", "updateStrategy": update});
    let all = ["data-web-1", "data-web-2", "data-web-3"];
    let mut phases = Phases { hand, now: 0, renumbered: false };
    me.create(set("web", 3, "quick", object::patch::merge(&retention("Delete", "Delete"), &more))).await;
    me.until_whole("web").await?;
    me.until_kept(&phases, &all, &[]).await?;

    let held = me.holdings(&all[..1]);
    me.scale("web", 1).await;
    me.flip(phases.flipped(), 10).await;
    me.until_whole("web").await?;
    // With the gate off, as with Retain: what was not told to go yet stays.
    let may_stay: &[&str] = if phases.is_about(RETENTION) { &all[1..] } else { &[] };
    me.until_kept(&phases, &all[..1], may_stay).await?;
    me.expect_same(&phases, &held, &all[..1])?;
    me.scale("web", 3).await;
    me.until_whole("web").await?;
    me.until_kept(&phases, &all, &[]).await?;

    phases.next();
    let held = me.holdings(&all);
    me.patch(&web, json!({"spec": {"template": {"metadata": {"annotations": {"roll": "on"}}}}})).await;
    me.flip(phases.flipped(), 10).await;
    me.until_whole("web").await?;
    me.until_kept(&phases, &all, &[]).await?;
    me.expect_same(&phases, &held, &all)?;

    phases.next();
    let held = me.holdings(&all);
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}})).await;
    me.flip(phases.flipped(), 10).await;
    me.until_whole("web").await?;
    me.until_kept(&phases, &all, &[]).await?;
    me.expect_same(&phases, &held, &all)?;
    // With the gate off the rollout leaves claims out. A partition that is not an ordinal says something else.
    if !phases.is_about(TEMPLATES) && !phases.is_about(PARTITION) && !phases.is_about(ORDINALS) {
        let sizes = (1..=3).map(|ordinal| if ordinal < partition { "1Gi" } else { "2Gi" });
        let sizes: Vec<(&str, &str)> = all.into_iter().zip(sizes).collect();
        me.until(&format!("claims have {sizes:?}"), |checker| {
            sizes.iter().all(|(named, size)| {
                let has = |claim: &Value| claim.text(&["status", "capacity", "storage"]) == *size;
                checker.get(CLAIM, NAMESPACE, named).is_some_and(|claim| has(claim))
            })
        })
        .await?;
    }

    phases.next();
    let held = me.holdings(&all);
    me.create(claim("lone", "quick")).await;
    let (claim, volume) = (the(CLAIM, "lone"), me.volume_of("lone").await?);
    let lone = me.handle(&volume);
    let (first, last) = if me.rng.chance(500) { (&claim, &volume) } else { (&volume, &claim) };
    me.delete(first, "").await;
    me.delete(last, "").await;
    me.flip(phases.flipped(), 6).await;
    me.until_gone(&claim).await?;
    me.until_gone(&volume).await?;
    me.until_whole("web").await?;
    me.until_kept(&phases, &all, &[]).await?;
    me.expect_same(&phases, &held, &all)?;
    // With the gate off a volume that is deleted first leaves its data.
    let left: BTreeSet<String> = phases.is_about(HONOURS).then_some(lone).into_iter().collect();
    me.until_backends(&left).await?;

    phases.next();
    let propagation = me.rng.pick(&["Background", "Foreground"]);
    me.delete(&web, propagation).await;
    me.flip(phases.flipped(), 10).await;
    me.until_gone(&web).await?;
    // Which of them go when the gate is off is undefined, as the document says; what is left belongs to nobody.
    let may_stay: &[&str] = if phases.is_about(RETENTION) { &all } else { &[] };
    me.until_kept(&phases, &[], may_stay).await?;
    me.until_backends(&left).await
}

const RETENTION: &str = "StatefulSetAutoDeletePVC";
const ORDINALS: &str = "StatefulSetStartOrdinal";
const PARTITION: &str = "StatefulSetOrdinalPartition";
const TEMPLATES: &str = "StatefulSetUpdateVolumeClaimTemplate";

/// Where the story is, and which gates it has flipped.
struct Phases {
    hand: usize,
    now: usize,
    /// Whether replicas were, or may have been, numbered from 0 for a while, now or before: then others came, too, and what is left of these may stay.
    renumbered: bool,
}

impl Phases {
    fn flipped(&mut self) -> (&'static str, bool) {
        self.renumbered |= self.is_about(ORDINALS);
        dealt(self.hand, self.now)
    }

    /// Whether this is the gate of this phase, and of those who act by it: a server whose gate is off keeps what it has stored.
    fn is_about(&self, gate: &str) -> bool {
        dealt(self.hand, self.now) == (gate, false)
    }

    fn next(&mut self) {
        self.now += 1;
    }
}

impl Operator {
    /// Waits until these claims are there, belong to the set and nobody else, are bound, and besides them nothing but what may stay.
    async fn until_kept(&self, phases: &Phases, wanted: &[&str], may_stay: &[&str]) -> Told {
        let strays: &[&str] =
            if phases.renumbered { &["data-web-0", "data-web-1", "data-web-2", "data-web-3"] } else { &[] };
        self.until(&format!("the claims are {wanted:?}, and perhaps {may_stay:?}"), |checker| {
            let is_kept = |claim: &Value| {
                let owners = claim.items(&["metadata", "ownerReferences"]);
                let belongs = owners.len() == 1 && owners[0].text(&["kind"]) == "StatefulSet";
                !claim.has(&["metadata", "deletionTimestamp"]) && is_bound(claim) && belongs
            };
            let may_be = |claim: &Value| {
                let named = name(claim);
                wanted.contains(&named)
                    || may_stay.contains(&named)
                    || strays.contains(&named)
                    || self.has_returned(claim)
            };
            wanted.iter().all(|named| checker.get(CLAIM, NAMESPACE, named).is_some_and(|claim| is_kept(claim)))
                && checker.all(CLAIM).all(|claim| may_be(claim))
        })
        .await
    }

    /// Claims and their volumes are those that they were, unless some may have been scaled away by another numbering.
    fn expect_same(&self, phases: &Phases, held: &[(String, String)], claims: &[&str]) -> Told {
        self.expect("claims have their data", phases.is_about(ORDINALS) || held == self.holdings(claims))
    }

    /// Waits until the driver has what volumes stand for, and besides that nothing but what may be left.
    async fn until_backends(&self, may_be_left: &BTreeSet<String>) -> Told {
        let mut there = BTreeSet::new();
        for _ in 0..600 {
            let meant: BTreeSet<String> = {
                let checker = self.world.checker();
                let volumes = checker.all(VOLUME).filter(|volume| !is_left_over(&self.world, volume));
                volumes.filter_map(|volume| Some(plan::invariant::handle(volume)?.into_owned())).collect()
            };
            let extra = &meant_handles(&self.world) - &meant;
            there = &extra - may_be_left;
            if there.is_empty() && meant.is_subset(&self.world.driver.handles()) {
                return Ok(());
            }
            self.pause(Duration::from_secs(1)).await;
        }
        Err(format!("in vain: the driver has what volumes stand for, and not {there:?}"))
    }
}

impl Operator {
    /// Waits until so many more writes are committed; or, where there are no more, for a moment.
    async fn after_writes(&self, count: u64) {
        let (points, mut commits) = (&self.world.ledger.points, self.world.ledger.commits.subscribe());
        let enough = points.counted().commits + count;
        let writing = async {
            while points.counted().commits < enough {
                // The sender lives as long as we do.
                let _ = commits.changed().await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(3), writing).await;
    }

    /// The other way in the middle of what was begun, which takes more writes than that, and back again.
    async fn flip(&mut self, (gate, of_server): (&'static str, bool), writes_max: u64) {
        let usual = Gates::default().on(gate);
        // One that is off by default goes on, off and on again, too.
        let turns: &[bool] = if usual { &[false, true] } else { &[true, false, true, false] };
        for (turn, on) in turns.iter().copied().enumerate() {
            let writes = self.rng.below(writes_max);
            self.after_writes(writes).await;
            if turn == 0 {
                let is_middle = !crate::end::unrest(&self.world).is_empty();
                self.world
                    .log
                    .say(format!("OPERATOR flips {}", if is_middle { "in the middle" } else { "afterwards" }));
            }
            if of_server {
                self.server_with(gate, on).await;
            } else {
                self.controllers_with(gate, on).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gate that is added is flipped, too.
    #[test]
    fn all_gates_are_flipped() {
        let known: BTreeSet<&str> = Gates::default().iter().map(|(gate, _)| gate).collect();
        assert_eq!(BTreeSet::from(GATES), known);
        assert_eq!(GATES.len(), known.len());
    }
}
