//! Random graphs, random deletions: what must be true in the end, whatever happened.

use crate::world::*;
use object::access::{Access, name, terminating, uid};
use object::{Value, json};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Step {
    /// A new object of one of the kinds, owned by earlier ones (by index, modulo), which it blocks or not.
    Create { kind: usize, owners: Vec<(usize, bool)> },
    /// An earlier object is deleted by a user.
    Delete { which: usize, policy: usize },
    /// A new collector takes over.
    Restart,
}

const POLICIES: [&str; 3] = ["Background", "Foreground", "Orphan"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let owners = prop::collection::vec((0..40_usize, any::<bool>()), 0..4);
    let step = prop_oneof![
        6 => (0..5_usize, owners).prop_map(|(kind, owners)| Step::Create { kind, owners }),
        3 => (0..40_usize, 0..3_usize).prop_map(|(which, policy)| Step::Delete { which, policy }),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

fn new_object(kind: usize, at: usize) -> Value {
    let name = format!("n-{at}");
    match kind {
        0 => config_map("default", &name),
        1 => secret("default", &name),
        2 => pod("default", &name),
        3 => stateful_set("default", &name, 0),
        _ => gear("default", &name),
    }
}

/// What a user did, by uid.
#[derive(Default)]
struct History {
    objects: Vec<Value>,
    deleted: BTreeMap<String, usize>,
}

impl History {
    fn pick(&self, at: usize) -> Option<&Value> {
        (!self.objects.is_empty()).then(|| &self.objects[at % self.objects.len()])
    }
}

async fn play(steps: &[Step]) {
    let mut world = World::bare().await;
    world.create(definition("Gear", true, &["v1"])).await;
    world.start(GC);
    let mut history = History::default();
    for step in steps {
        match step {
            Step::Create { kind, owners } => {
                let mut object = new_object(*kind, history.objects.len());
                let mut references: Vec<Value> = Vec::new();
                for (at, blocks) in owners {
                    let Some(owner) = history.pick(*at) else { continue };
                    if !references.iter().any(|reference| reference.text(&["uid"]) == uid(owner)) {
                        references.push(reference(owner, *blocks));
                    }
                }
                object["metadata"]["ownerReferences"] = json!(references);
                history.objects.push(world.create(object).await);
            }
            Step::Delete { which, policy } => {
                let Some(object) = history.pick(*which).cloned() else { continue };
                let options = json!({
                    "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": POLICIES[*policy],
                    "preconditions": {"uid": uid(&object)},
                });
                let (code, _) = world.send("DELETE", &path(&object), "application/json", Some(&options)).await;
                if code == 200 {
                    history.deleted.entry(uid(&object).to_owned()).or_insert(*policy);
                }
            }
            Step::Restart => {
                world.stop_controllers().await;
                world.start(GC);
            }
        }
    }
    let last = world.until("the world comes to rest", || async { at_rest(&world, &history).await }).await;
    world.settle().await;
    let now = alive(&world, &history).await;
    assert_eq!(now, last, "it stays as it is");
    check(&history, &now);
    assert_eq!(world.requests.refused().len(), 0);
    world.stop().await;
}

/// The objects that are there, by uid, with the uids of their owners.
async fn alive(world: &World, history: &History) -> BTreeMap<String, Vec<String>> {
    let mut alive = BTreeMap::new();
    for object in &history.objects {
        if let Some(found) = world.now(object).await {
            let owners = found.items(&["metadata", "ownerReferences"]).iter();
            alive.insert(uid(object).to_owned(), owners.map(|owner| owner.text(&["uid"]).to_owned()).collect());
        }
    }
    alive
}

/// Everything that is there, once nothing is on its way out and every owner is there.
async fn at_rest(world: &World, history: &History) -> Option<BTreeMap<String, Vec<String>>> {
    let before = world.store.revision();
    let alive = alive(world, history).await;
    for object in &history.objects {
        if world.now(object).await.is_some_and(|found| terminating(&found)) {
            return None;
        }
    }
    let settled = alive.values().flatten().all(|owner| alive.contains_key(owner));
    // Nothing changed meanwhile, so all this was true at one moment.
    (settled && world.store.revision() == before).then_some(alive)
}

fn check(history: &History, alive: &BTreeMap<String, Vec<String>>) {
    let names: BTreeMap<&str, &str> = history.objects.iter().map(|object| (uid(object), name(object))).collect();
    let mut must_live: BTreeSet<&str> = BTreeSet::new();
    for object in &history.objects {
        let id = uid(object);
        if history.deleted.contains_key(id) {
            assert!(!alive.contains_key(id), "{} was deleted and is still there", names[id]);
            continue;
        }
        let owners: Vec<&str> =
            object.items(&["metadata", "ownerReferences"]).iter().map(|owner| owner.text(&["uid"])).collect();
        // Who never had an owner, or has one that must live, lives.
        if owners.is_empty() || owners.iter().any(|owner| must_live.contains(owner)) {
            must_live.insert(id);
            assert!(alive.contains_key(id), "{} had a solid owner and is gone", names[id]);
        }
        // Whose owners are all gone, none of them by a deletion that orphans, is gone.
        let orphaned = owners.iter().any(|owner| history.deleted.get(*owner) == Some(&2));
        if !owners.is_empty() && !orphaned && owners.iter().all(|owner| !alive.contains_key(*owner)) {
            assert!(!alive.contains_key(id), "{} lost all its owners and is still there", names[id]);
        }
    }
}

#[test]
fn nothing_with_a_solid_owner_goes_and_nothing_without_any_stays() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let config = ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(steps in steps())| {
        runtime.block_on(play(&steps));
    });
}
