//! Random PVs, claims, deletions, changes of policy, faults and restarts: what must be true in the end.

use crate::pairs::*;
use crate::world::*;
use futures::FutureExt;
use object::access::{Access, name, terminating, uid};
use object::quantity::Quantity;
use object::{Value, json};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use store::{Next, Watcher};

#[derive(Clone, Debug)]
enum Step {
    AddVolume { size: usize, class: usize, policy: usize, made: bool },
    AddClaim { size: usize, class: usize, names: Option<usize> },
    DeleteVolume { at: usize },
    DeleteClaim { at: usize },
    FlipPolicy { at: usize },
    CutWatches,
    Mishap { after: usize, which: usize },
    Restart,
}

const POLICIES: [&str; 2] = ["Delete", "Retain"];
const CLASSES: [&str; 2] = ["", "gold"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (1..4_usize, 0..2_usize, 0..2_usize, any::<bool>())
            .prop_map(|(size, class, policy, made)| Step::AddVolume { size, class, policy, made }),
        5 => (1..4_usize, 0..2_usize, prop::option::weighted(0.2, 0..20_usize))
            .prop_map(|(size, class, names)| Step::AddClaim { size, class, names }),
        3 => (0..20_usize).prop_map(|at| Step::DeleteVolume { at }),
        3 => (0..20_usize).prop_map(|at| Step::DeleteClaim { at }),
        1 => (0..20_usize).prop_map(|at| Step::FlipPolicy { at }),
        1 => Just(Step::CutWatches),
        1 => (0..6_usize, 0..3_usize).prop_map(|(after, which)| Step::Mishap { after, which }),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..50)
}

/// A PV as a user created it.
struct Made {
    volume: Value,
    directory: Directory,
    policies: BTreeSet<&'static str>,
}

struct Run {
    world: World,
    volumes: Vec<Made>,
    claims: Vec<Value>,
    noted: Arc<Mutex<Noted>>,
}

/// What was observed, and up to which revision.
#[derive(Default)]
struct Noted {
    /// The names of PVs that were ever Bound,
    bound: BTreeSet<String>,
    /// and of those that were ever bound to a claim.
    had: BTreeSet<String>,
    /// What was not in order at the last check, for failure messages.
    unsettled: Option<String>,
    /// The history of each PV, for failure messages.
    histories: BTreeMap<String, Vec<String>>,
    revision: u64,
}

impl Run {
    async fn step(&mut self, step: &Step) {
        match *step {
            Step::AddVolume { size, class, policy, made } => self.add_volume(size, class, policy, made).await,
            Step::AddClaim { size, class, names } => {
                let volume = names.map(|at| format!("v-{at}"));
                let more = json!({"spec": {"storageClassName": CLASSES[class], "volumeName": volume}});
                let claim = a_claim(&format!("c-{}", self.claims.len()), &format!("{size}Gi"), more);
                self.claims.push(self.world.create(claim).await);
            }
            Step::DeleteVolume { at } => {
                if let Some(made) = self.volumes.get(at) {
                    self.world.delete(&made.volume, "").await;
                }
            }
            Step::DeleteClaim { at } => {
                if let Some(claim) = self.claims.get(at) {
                    self.world.delete(claim, "").await;
                }
            }
            Step::FlipPolicy { at } => self.flip(at).await,
            Step::CutWatches => self.world.faults.cut_watches(),
            Step::Mishap { after, which } => {
                let mishaps = [Mishap::Refused(500), Mishap::Refused(409), Mishap::AnswerLost];
                self.world.faults.mishap("persistent-volume-binder", after, mishaps[which]);
            }
            Step::Restart => {
                self.world.stop_controllers().await;
                self.world.start(&all());
            }
        }
    }

    async fn add_volume(&mut self, size: usize, class: usize, policy: usize, made: bool) {
        let directory = Directory::new();
        let by = made.then(|| json!({"pv.kubernetes.io/provisioned-by": "kubernetes.io/host-path"}));
        let more = json!({
            "metadata": {"annotations": by},
            "spec": {
                "hostPath": {"path": directory.path()}, "storageClassName": CLASSES[class],
                "persistentVolumeReclaimPolicy": POLICIES[policy],
            },
        });
        let volume = a_volume(&format!("v-{}", self.volumes.len()), &format!("{size}Gi"), more);
        let volume = self.world.create(volume).await;
        self.volumes.push(Made { volume, directory, policies: [POLICIES[policy]].into() });
    }

    /// A terminating PV may be removed at any time.
    async fn flip(&mut self, at: usize) {
        let Some(made) = self.volumes.get_mut(at) else { return };
        let Some(volume) = self.world.now(&made.volume).await.filter(|volume| !terminating(volume)) else { return };
        let is_deleted = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
        let policy = if is_deleted { "Retain" } else { "Delete" };
        let patch = json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
        self.world.send("PATCH", &path(&volume), "application/merge-patch+json", Some(&patch)).await;
        made.policies.insert(policy);
    }

    /// All PVs and claims, once everything is in order and nothing changes.
    async fn at_rest(&self) -> Option<()> {
        let before = self.world.store.revision();
        let volumes = self.world.get("/api/v1/persistentvolumes").await.expect("a list");
        let claims = self.world.get("/api/v1/persistentvolumeclaims").await.expect("a list");
        let volumes: BTreeMap<&str, &Value> = volumes.items(&["items"]).iter().map(|it| (name(it), it)).collect();
        let claims: BTreeMap<&str, &Value> = claims.items(&["items"]).iter().map(|it| (uid(it), it)).collect();
        let unsettled = volumes.values().find(|volume| !is_in_order(volume, &claims));
        let unsettled = unsettled.or_else(|| claims.values().find(|claim| !is_settled(claim, &volumes)));
        self.noted.lock().expect("no panic").unsettled = unsettled.map(|object| object.to_string());
        (unsettled.is_none() && self.world.store.revision() == before).then_some(())
    }

    async fn check_directories(&self) {
        let is_up_to_date = || self.noted.lock().expect("no panic").revision >= self.world.store.revision();
        self.world.until_moment("all is noted", is_up_to_date).await;
        for made in &self.volumes {
            let (now, exists) = (self.world.now(&made.volume).await, made.directory.exists());
            let noted = self.noted.lock().expect("no panic");
            let was_bound = noted.bound.contains(name(&made.volume));
            let was_had = noted.had.contains(name(&made.volume));
            assert!(was_bound || now.as_ref().is_none_or(|volume| phase(volume) != "Bound"));
            let history = noted.histories.get(name(&made.volume));
            let case = format!(
                "{} was bound: {was_bound}, had: {was_had}, {:?} {history:#?}",
                name(&made.volume),
                made.policies
            );
            if made.policies == ["Retain"].into() || !was_bound {
                assert!(exists, "{case}: no policy allows its deletion");
            }
            // If a claim was deleted during binding, both are correct.
            if made.policies == ["Delete"].into() && was_had {
                assert_eq!(now.is_some(), exists, "{case}");
            }
        }
    }
}

fn is_in_order(volume: &Value, claims: &BTreeMap<&str, &Value>) -> bool {
    let claim = claims.get(volume.text(&["spec", "claimRef", "uid"]));
    let is_deleted = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
    match (phase(volume), claim) {
        ("Bound", Some(claim)) => claim.text(&["spec", "volumeName"]) == name(volume) && phase(claim) == "Bound",
        ("Available", None) => !terminating(volume),
        ("Released", None) => !is_deleted && !terminating(volume),
        _ => false,
    }
}

fn is_settled(claim: &Value, volumes: &BTreeMap<&str, &Value>) -> bool {
    let named = claim.text(&["spec", "volumeName"]);
    if terminating(claim) {
        return false;
    }
    if phase(claim) == "Bound" {
        return volumes.get(named).is_some_and(|volume| volume.text(&["spec", "claimRef", "uid"]) == uid(claim));
    }
    let quantity = |object: &Value, path: &[&str]| object.at(path).and_then(Quantity::of);
    let request = quantity(claim, &["spec", "resources", "requests", "storage"]);
    let suits = |volume: &Value| {
        phase(volume) == "Available"
            && volume.at(&["spec", "storageClassName"])
                == claim.at(&["spec", "storageClassName"]).filter(|class| *class != "")
            && quantity(volume, &["spec", "capacity", "storage"]) >= request
    };
    let mut wanted = volumes.values().filter(|volume| named.is_empty() || name(volume) == named);
    phase(claim) == "Pending" && !wanted.any(|volume| suits(volume))
}

/// Records which PVs were ever Bound.
async fn note(mut watcher: Box<dyn Watcher>, noted: Arc<Mutex<Noted>>) {
    while let Next::Events { events, revision } = watcher.next(usize::MAX).await {
        let mut noted = noted.lock().expect("no panic");
        for event in &events {
            let object = event.current.as_ref().map(|record| serde_json::from_slice(&record.value).expect("an object"));
            noted.take_in(&event.key, object.as_ref());
        }
        noted.revision = revision;
    }
}

impl Noted {
    fn take_in(&mut self, key: &str, found: Option<&Value>) {
        if let Some(claim) = found.filter(|found| plan::bind::is_bound(found)) {
            self.had.insert(claim.text(&["spec", "volumeName"]).to_owned());
        }
        if !key.contains("/persistentvolumes/") {
            return;
        }
        let volume = key.rsplit('/').next().unwrap_or_default();
        if found.is_some_and(|found| phase(found) == "Bound") {
            self.bound.insert(volume.to_owned());
        }
        let line = found.map_or_else(
            || "gone".to_owned(),
            |found| {
                let claim = found.text(&["spec", "claimRef", "uid"]);
                let finalizers = found.items(&["metadata", "finalizers"]).len();
                let annotations = found.members(&["metadata", "annotations"]).len();
                format!(
                    "{} claim={claim} terminating={} finalizers={finalizers} annotations={annotations}",
                    phase(found),
                    terminating(found)
                )
            },
        );
        self.histories.entry(volume.to_owned()).or_default().push(line);
    }
}

async fn play(steps: &[Step]) {
    let world = World::with(&all()).await;
    let revision = world.store.revision();
    let noted = Arc::new(Mutex::new(Noted { revision, ..Noted::default() }));
    let noting = tokio::spawn(note(world.store.watch("", revision).expect("a watch"), noted.clone()));
    let mut run = Run { world, volumes: Vec::new(), claims: Vec::new(), noted };
    for step in steps {
        run.step(step).await;
    }
    let rest = AssertUnwindSafe(run.world.until("all is in order", || run.at_rest())).catch_unwind().await;
    assert!(rest.is_ok(), "{:?}", run.noted.lock().expect("no panic").unsettled);
    run.check_directories().await;
    assert_eq!(run.world.requests.refused().len(), 0);
    noting.abort();
    run.world.stop().await;
}

// V2, V3, H1, H6 as invariants of all components together.
#[test]
fn pvs_and_claims_always_end_consistent_and_nothing_leaks() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    // More cases on demand: each starts a whole server.
    let cases = std::env::var("VOLUME_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(steps in steps())| {
        runtime.block_on(play(&steps));
    });
}
