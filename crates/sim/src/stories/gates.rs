//! Gates that go off and on, for controllers and server separately, in the middle of what they are about.

use super::operator::{CLAIM, LATE_MAX, NAMESPACE, Operator, Told, claim, pods_of, retention, set, template, the};
use super::templates::{is_rolled, sizes};
use crate::entropy::Rng;
use crate::world::HONOURS;
use object::access::{Access, name};
use object::{Gates, Value, json};
use plan::invariant::Checker;
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
        self.world.set_server_gates(Gates::default().with(gate, on));
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
    me.controllers_with(gate, false).await;
    me.until_ordinals("web", &["web-0", "web-1"]).await?;
    me.server_with(gate, false).await;
    me.patch(&the("StatefulSet", "web"), json!({"metadata": {"labels": {"touched": "yes"}}})).await;
    me.expect("the start is still stored", me.field("web", &["spec", "ordinals", "start"]) == Some(json!(5)))?;
    me.server_with(gate, true).await;
    me.controllers_with(gate, true).await;
    me.until_ordinals("web", &["web-5", "web-6"]).await?;
    me.until_volumes(4).await
}

impl Operator {
    /// Waits until exactly these pods are a set's.
    pub async fn until_ordinals(&self, set: &str, wanted: &[&str]) -> Told {
        self.until(&format!("the pods are {wanted:?}"), |checker| {
            let pods = pods_of(checker, NAMESPACE, set);
            pods.iter().map(|pod| name(pod)).eq(wanted.iter().copied())
                && pods.iter().all(|pod| super::operator::is_ready(pod))
        })
        .await
    }
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
/// far it was; what must never happen does not, and in the end everything is as the gates that are on again want it.
pub async fn flipped(mut me: Operator) -> Told {
    let hand = hand(&mut me.rng);
    let web = the("StatefulSet", "web");
    let update = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2, "partition": me.rng.below(3)}});
    let more = json!({"ordinals": {"start": 1}, "volumeClaimUpdatePolicy": "InPlace", "updateStrategy": update});
    me.create(set("web", 3, "quick", object::patch::merge(&retention("Delete", "Delete"), &more))).await;
    me.until_whole("web").await?;

    me.scale("web", 1).await;
    me.flip(dealt(hand, 0), 10).await;
    me.until_whole("web").await?;
    me.scale("web", 3).await;
    me.until_whole("web").await?;

    me.patch(&web, json!({"spec": {"template": {"metadata": {"annotations": {"roll": "on"}}}}})).await;
    me.flip(dealt(hand, 1), 10).await;
    me.until_whole("web").await?;

    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}})).await;
    me.flip(dealt(hand, 2), 10).await;
    me.until_whole("web").await?;

    me.create(claim("lone", "quick")).await;
    let (claim, volume) = (the(CLAIM, "lone"), me.volume_of("lone").await?);
    let (first, last) = if me.rng.chance(500) { (&claim, &volume) } else { (&volume, &claim) };
    me.delete(first, "").await;
    me.delete(last, "").await;
    me.flip(dealt(hand, 3), 6).await;
    me.until_gone(&claim).await?;
    me.until_gone(&volume).await?;

    let propagation = me.rng.pick(&["Background", "Foreground"]);
    me.delete(&web, propagation).await;
    me.flip(dealt(hand, 4), 10).await;
    me.until_gone(&web).await
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
        for on in [!usual, usual] {
            let writes = self.rng.below(writes_max);
            self.after_writes(writes).await;
            if on != usual {
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
