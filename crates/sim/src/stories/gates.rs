//! Feature gates that go off and on, for controllers and server separately, during the operations that they control.

use super::operator::{
    CLAIM, LATE_MAX, NAMESPACE, Operator, StoryResult, VOLUME, claim, is_bound, object_ref, pods_of, retention, set,
    template,
};
use super::templates::{is_rolled, sizes};
use crate::entropy::Rng;
use crate::final_state::{expected_handles, is_left_over};
use crate::world::RECLAIM_GATE;
use object::access::{Access, name, terminating};
use object::{Gates, Value, json};
use plan::invariant::Checker;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// All feature gates: those that decide about sets and volumes, and those that must not affect them.
pub const GATES: [&str; 12] = [
    "StatefulSetAutoDeletePVC",
    "StatefulSetStartOrdinal",
    "StatefulSetOrdinalPartition",
    "StatefulSetUpdateVolumeClaimTemplate",
    "MaxUnavailableStatefulSet",
    RECLAIM_GATE,
    "StatefulSetRecreateStrategy",
    "StatefulSetSemanticRevisionComparison",
    "StaleControllerConsistencyStatefulSet",
    "PersistentVolumeClaimUnusedSinceTime",
    "CrossNamespaceVolumeDataSource",
    "MutablePVNodeAffinity",
];

/// Number of combinations: each gate of the controllers and each gate of the server.
pub const GATE_COMBINATIONS: usize = 2 * GATES.len();

/// Draws the gate combination of a run. A combination has another gate for each phase, and all combinations together
/// have all gates in each phase.
pub fn gate_combination(rng: &mut Rng) -> usize {
    usize::try_from(rng.below(GATE_COMBINATIONS as u64)).unwrap_or(0)
}

/// The gate to flip in a phase, and whether it is the server's.
fn gate_at(gate_combination: usize, phase: usize) -> (&'static str, bool) {
    let at = (gate_combination + 5 * phase) % GATE_COMBINATIONS;
    (GATES[at / 2], at % 2 == 1)
}

impl Operator {
    pub async fn controllers_with(&self, gate: &str, on: bool) {
        self.world.log.record(format!("OPERATOR controllers with {gate}={on}"));
        self.world.set_controller_gates(Gates::default().with(gate, on));
        self.world.kill_controllers();
        self.pause(Duration::from_secs(3)).await;
    }

    pub async fn server_with(&self, gate: &str, on: bool) {
        self.world.log.record(format!("OPERATOR server with {gate}={on}"));
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
pub async fn retention_gate(me: Operator) -> StoryResult {
    let gate = "StatefulSetAutoDeletePVC";
    me.create(set("web", 3, "quick", retention("Delete", "Delete"))).await;
    me.until_complete("web").await?;
    // Off during a scale-down: claims that are not terminating yet stay.
    me.scale("web", 1).await;
    me.controllers_with(gate, false).await;
    me.until_complete("web").await?;
    me.until("the remaining claims have no owner", |checker| {
        checker.all(CLAIM).all(|claim| {
            claim.has(&["metadata", "deletionTimestamp"]) || claim.items(&["metadata", "ownerReferences"]).is_empty()
        })
    })
    .await?;
    let first = me.uid(CLAIM, "data-web-0");
    // A server with the gate off keeps the stored field.
    me.server_with(gate, false).await;
    me.scale("web", 2).await;
    me.until_complete("web").await?;
    let kept = me.field("web", &["spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted"]);
    me.expect("the policy is still stored", kept == Some(json!("Delete")))?;
    // With both gates off, a scale-down deletes no claims.
    me.scale("web", 1).await;
    me.until_complete("web").await?;
    me.pause(Duration::from_secs(5)).await;
    me.expect("the claim stays", me.world.checker().get(CLAIM, NAMESPACE, "data-web-1").is_some())?;
    me.server_with(gate, true).await;
    me.controllers_with(gate, true).await;
    me.until("the set owns the claims again", |checker| {
        checker.all(CLAIM).all(|claim| claim.items(&["metadata", "ownerReferences"]).len() == 1)
    })
    .await?;
    me.expect("the first claim is unchanged", first == me.uid(CLAIM, "data-web-0"))?;
    // Off during a deletion.
    me.delete(&object_ref("StatefulSet", "web"), "Foreground").await;
    me.controllers_with(gate, false).await;
    me.until_gone(&object_ref("StatefulSet", "web")).await?;
    me.controllers_with(gate, true).await;
    // The KEP does not define which of the claims are deleted. The rest have no owner and stay.
    me.until("each claim is deleted, or has no owner and is not terminating", |checker| {
        let is_free = |claim: &Value| claim.items(&["metadata", "ownerReferences"]).is_empty();
        checker.all(CLAIM).all(|claim| !claim.has(&["metadata", "deletionTimestamp"]) && is_free(claim))
    })
    .await
}

/// O5
pub async fn ordinals_gate(me: Operator) -> StoryResult {
    let gate = "StatefulSetStartOrdinal";
    let more = object::patch::merge(&retention("Retain", "Retain"), &json!({"ordinals": {"start": 5}}));
    me.create(set("web", 2, "quick", more)).await;
    me.until_complete("web").await?;
    me.until_renumbered("web", &["web-0", "web-1"], me.controllers_with(gate, false)).await?;
    me.server_with(gate, false).await;
    me.patch(&object_ref("StatefulSet", "web"), json!({"metadata": {"labels": {"touched": "yes"}}})).await;
    me.expect("the start is still stored", me.field("web", &["spec", "ordinals", "start"]) == Some(json!(5)))?;
    me.server_with(gate, true).await;
    me.until_renumbered("web", &["web-5", "web-6"], me.controllers_with(gate, true)).await?;
    me.until_volumes(4).await
}

impl Operator {
    /// Runs `flip` and waits until the set has exactly these pods. It must never have fewer pods meanwhile, because
    /// new pods are created before old ones are deleted.
    async fn until_renumbered(&self, set: &str, wanted: &[&str], flip: impl Future<Output = ()>) -> StoryResult {
        let fewest = AtomicUsize::new(usize::MAX);
        let look = |checker: &Checker| {
            let stays = |pod: &&&Arc<Value>| !terminating(pod);
            fewest.fetch_min(pods_of(checker, NAMESPACE, set).iter().filter(stays).count(), Ordering::Relaxed);
            are_ordinals(checker, set, wanted)
        };
        let what = format!("the pods are {wanted:?}");
        let (numbered, ()) = futures::join!(self.until(&what, look), flip);
        numbered?;
        self.expect("the set never had fewer pods", fewest.into_inner() >= wanted.len())
    }
}

fn are_ordinals(checker: &Checker, set: &str, wanted: &[&str]) -> bool {
    let pods = pods_of(checker, NAMESPACE, set);
    pods.iter().map(|pod| name(pod)).eq(wanted.iter().copied()) && pods.iter().all(|pod| super::operator::is_ready(pod))
}

/// T16: the gate goes off during a rollout. Controllers with the gate off complete the rollout and do not change
/// claims.
pub async fn templates_gate(me: Operator) -> StoryResult {
    let gate = "StatefulSetUpdateVolumeClaimTemplate";
    let web = object_ref("StatefulSet", "web");
    me.create(set("web", 3, "quick", json!({"volumeClaimUpdatePolicy": "InPlace"}))).await;
    me.until_complete("web").await?;
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}})).await;
    let asked = || requested_sizes(&me.world.checker());
    me.until("one claim requests more", |checker| self::requested_sizes(checker).contains(&"2Gi".to_owned())).await?;
    me.controllers_with(gate, false).await;
    me.until("the rollout is over", |checker| is_rolled(checker, "web")).await?;
    // Requests of the previous controller process may arrive only now.
    me.pause(LATE_MAX).await;
    let left = asked();
    me.server_with(gate, false).await;
    me.patch(&web, json!({"metadata": {"labels": {"touched": "yes"}}})).await;
    let kept = me.field("web", &["spec", "volumeClaimUpdatePolicy"]);
    me.expect("the policy is still stored", kept == Some(json!("InPlace")))?;
    me.server_with(gate, true).await;
    me.controllers_with(gate, true).await;
    me.pause(Duration::from_secs(60)).await;
    me.expect("no claim was changed meanwhile", left == asked())?;
    // Claims that the rollout skipped stay as they are until the next rollout.
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "3Gi")]}})).await;
    me.until("all claims are expanded", |checker| is_rolled(checker, "web") && sizes(checker) == ["3Gi"; 3]).await
}

/// Requested sizes of all claims.
fn requested_sizes(checker: &Checker) -> Vec<String> {
    let size = |claim: &Value| claim.text(&["spec", "resources", "requests", "storage"]).to_owned();
    checker.all(CLAIM).map(|claim| size(claim)).collect()
}

/// H8
pub async fn reclaim_gate(me: Operator) -> StoryResult {
    let gate = RECLAIM_GATE;
    me.create(set("web", 3, "quick", retention("Delete", "Delete"))).await;
    me.until_complete("web").await?;
    me.scale("web", 1).await;
    me.controllers_with(gate, false).await;
    me.until_complete("web").await?;
    me.until("the claims of the other replicas are deleted", |checker| checker.all(CLAIM).count() == 1).await?;
    me.scale("web", 2).await;
    me.until_complete("web").await?;
    me.controllers_with(gate, true).await;
    me.delete(&object_ref("StatefulSet", "web"), "Background").await;
    me.until_claims(&[]).await?;
    me.until_volumes(0).await
}

/// Flips a gate of the controllers or of the server during each operation that gates control. The outcome of a phase
/// is open only if its gate controls that operation; otherwise the phase must end as if no gate had been flipped.
/// Remaining claims keep their data.
pub async fn flipped(mut me: Operator) -> StoryResult {
    let gate_combination = gate_combination(&mut me.rng);
    let web = object_ref("StatefulSet", "web");
    let partition = me.rng.below(3);
    let update = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2, "partition": partition}});
    let more = json!({"ordinals": {"start": 1}, "volumeClaimUpdatePolicy": "InPlace", "updateStrategy": update});
    let all = ["data-web-1", "data-web-2", "data-web-3"];
    let mut phases = GatePhases { gate_combination, now: 0, renumbered: false };
    me.create(set("web", 3, "quick", object::patch::merge(&retention("Delete", "Delete"), &more))).await;
    me.until_complete("web").await?;
    me.until_kept(&phases, &all, &[]).await?;

    let held = me.holdings(&all[..1]);
    me.scale("web", 1).await;
    me.flip(phases.flipped(), 10).await;
    me.until_complete("web").await?;
    // With the gate off, as with Retain, claims that are not terminating yet stay.
    let may_stay: &[&str] = if phases.is_about(RETENTION) { &all[1..] } else { &[] };
    me.until_kept(&phases, &all[..1], may_stay).await?;
    me.expect_same(&phases, &held, &all[..1])?;
    me.scale("web", 3).await;
    me.until_complete("web").await?;
    me.until_kept(&phases, &all, &[]).await?;

    phases.next();
    let held = me.holdings(&all);
    me.patch(&web, json!({"spec": {"template": {"metadata": {"annotations": {"roll": "on"}}}}})).await;
    me.flip(phases.flipped(), 10).await;
    me.until_complete("web").await?;
    me.until_kept(&phases, &all, &[]).await?;
    me.expect_same(&phases, &held, &all)?;

    phases.next();
    let held = me.holdings(&all);
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}})).await;
    me.flip(phases.flipped(), 10).await;
    me.until_complete("web").await?;
    me.until_kept(&phases, &all, &[]).await?;
    me.expect_same(&phases, &held, &all)?;
    // With the gate off the rollout skips claims. A partition that does not count by ordinals selects other replicas.
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
    let (claim, volume) = (object_ref(CLAIM, "lone"), me.volume_of("lone").await?);
    let lone = me.handle(&volume);
    let (first, last) = if me.rng.chance(500) { (&claim, &volume) } else { (&volume, &claim) };
    me.delete(first, "").await;
    me.delete(last, "").await;
    me.flip(phases.flipped(), 6).await;
    me.until_gone(&claim).await?;
    me.until_gone(&volume).await?;
    me.until_complete("web").await?;
    me.until_kept(&phases, &all, &[]).await?;
    me.expect_same(&phases, &held, &all)?;
    // With the gate off, a PV that is deleted before its claim leaves its backend volume.
    let left: BTreeSet<String> = phases.is_about(RECLAIM_GATE).then_some(lone).into_iter().collect();
    me.until_backends(&left).await?;

    phases.next();
    let propagation = me.rng.pick(&["Background", "Foreground"]);
    me.delete(&web, propagation).await;
    me.flip(phases.flipped(), 10).await;
    me.until_gone(&web).await?;
    // The KEP does not define which claims are deleted with the gate off. The rest have no owner.
    let may_stay: &[&str] = if phases.is_about(RETENTION) { &all } else { &[] };
    me.until_kept(&phases, &[], may_stay).await?;
    me.until_backends(&left).await
}

const RETENTION: &str = "StatefulSetAutoDeletePVC";
const ORDINALS: &str = "StatefulSetStartOrdinal";
const PARTITION: &str = "StatefulSetOrdinalPartition";
const TEMPLATES: &str = "StatefulSetUpdateVolumeClaimTemplate";

/// The current phase of the story, and its gate combination.
struct GatePhases {
    gate_combination: usize,
    now: usize,
    /// Whether replicas were numbered from 0 for a while, so that other claims were created that may stay.
    renumbered: bool,
}

impl GatePhases {
    fn flipped(&mut self) -> (&'static str, bool) {
        self.renumbered |= self.is_about(ORDINALS);
        gate_at(self.gate_combination, self.now)
    }

    /// Whether this controllers' gate is flipped in this phase. A server with the gate off keeps stored fields.
    fn is_about(&self, gate: &str) -> bool {
        gate_at(self.gate_combination, self.now) == (gate, false)
    }

    fn next(&mut self) {
        self.now += 1;
    }
}

impl Operator {
    /// Waits until exactly these claims exist, bound and owned by the set only. Claims in `may_stay` are allowed too.
    async fn until_kept(&self, phases: &GatePhases, wanted: &[&str], may_stay: &[&str]) -> StoryResult {
        let strays: &[&str] =
            if phases.renumbered { &["data-web-0", "data-web-1", "data-web-2", "data-web-3"] } else { &[] };
        self.until(&format!("the claims are {wanted:?}, with any of {may_stay:?}"), |checker| {
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
                    || self.may_be_recreated(claim)
            };
            wanted.iter().all(|named| checker.get(CLAIM, NAMESPACE, named).is_some_and(|claim| is_kept(claim)))
                && checker.all(CLAIM).all(|claim| may_be(claim))
        })
        .await
    }

    /// Claims and volumes must be unchanged, unless another numbering may have scaled some away.
    fn expect_same(&self, phases: &GatePhases, held: &[(String, String)], claims: &[&str]) -> StoryResult {
        self.expect("claims keep their data", phases.is_about(ORDINALS) || held == self.holdings(claims))
    }

    /// Waits until the driver has exactly the volumes that PVs name, and any of `may_be_left`.
    async fn until_backends(&self, may_be_left: &BTreeSet<String>) -> StoryResult {
        let mut there = BTreeSet::new();
        for _ in 0..600 {
            let meant: BTreeSet<String> = {
                let checker = self.world.checker();
                let volumes = checker.all(VOLUME).filter(|volume| !is_left_over(&self.world, volume));
                volumes.filter_map(|volume| Some(plan::invariant::handle(volume)?.into_owned())).collect()
            };
            let extra = &expected_handles(&self.world) - &meant;
            there = &extra - may_be_left;
            if there.is_empty() && meant.is_subset(&self.world.driver.handles()) {
                return Ok(());
            }
            self.pause(Duration::from_secs(1)).await;
        }
        Err(format!("timed out waiting until the driver has the volumes of the PVs, not {there:?}"))
    }
}

impl Operator {
    /// Waits for `count` more commits, at most 3 s.
    async fn after_writes(&self, count: u64) {
        let (points, mut commits) = (&self.world.commit_checker.points, self.world.commit_checker.commits.subscribe());
        let enough = points.counted().commits + count;
        let writing = async {
            while points.counted().commits < enough {
                // The sender is a field of the world and outlives this wait.
                let _ = commits.changed().await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(3), writing).await;
    }

    /// Switches the gate during the operation, after a random number of writes, and back again.
    async fn flip(&mut self, (gate, of_server): (&'static str, bool), writes_max: u64) {
        let usual = Gates::default().on(gate);
        // A gate that is off by default goes on, off and on again.
        let turns: &[bool] = if usual { &[false, true] } else { &[true, false, true, false] };
        for (turn, on) in turns.iter().copied().enumerate() {
            let writes = self.rng.below(writes_max);
            self.after_writes(writes).await;
            if turn == 0 {
                let is_middle = !crate::final_state::unsettled(&self.world).is_empty();
                self.world.log.record(format!(
                    "OPERATOR flips {}",
                    if is_middle { "during the operation" } else { "after the operation" }
                ));
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

    /// A new gate must be added to `GATES`.
    #[test]
    fn all_gates_are_flipped() {
        let known: BTreeSet<&str> = Gates::default().iter().map(|(gate, _)| gate).collect();
        assert_eq!(BTreeSet::from(GATES), known);
        assert_eq!(GATES.len(), known.len());
    }
}
