//! Random graphs and random deletions: what must be true in the end.

use crate::world::*;
use object::access::{Access, name, terminating, uid};
use object::{Value, json};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Step {
    /// A new object of one of the kinds, owned by earlier ones (by index, modulo), whose deletion it blocks
    /// or not.
    Create { kind: usize, owners: Vec<(usize, bool)> },
    /// A user deletes an earlier object.
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

/// The actions of the user.
#[derive(Default)]
struct History {
    objects: Vec<Value>,
    /// By uid: the policies of all deletions, and the number of objects at the first. A later deletion may
    /// change the policy.
    deleted: BTreeMap<String, Deletions>,
}

#[derive(Default)]
struct Deletions {
    policies: BTreeSet<&'static str>,
    objects_before: usize,
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
                    let objects_before = history.objects.len();
                    let first = || Deletions { policies: BTreeSet::new(), objects_before };
                    let deletions = history.deleted.entry(uid(&object).to_owned()).or_insert_with(first);
                    deletions.policies.insert(POLICIES[*policy]);
                }
            }
            Step::Restart => {
                world.stop_controllers().await;
                world.start(GC);
            }
        }
    }
    let last = world.until("the collector settles", || async { at_rest(&world, &history).await }).await;
    world.settle().await;
    assert_eq!(alive(&world, &history).await.as_ref(), Some(&last), "nothing changes any more");
    check(&history, &last);
    assert_eq!(world.requests.refused().len(), 0);
    world.stop().await;
}

/// The existing objects, by uid, with the uids of their owners; `None` while one of them is terminating.
async fn alive(world: &World, history: &History) -> Option<BTreeMap<String, Vec<String>>> {
    let mut alive = BTreeMap::new();
    for object in &history.objects {
        if let Some(found) = world.now(object).await {
            if terminating(&found) {
                return None;
            }
            let owners = found.items(&["metadata", "ownerReferences"]).iter();
            alive.insert(uid(object).to_owned(), owners.map(|owner| owner.text(&["uid"]).to_owned()).collect());
        }
    }
    Some(alive)
}

/// All existing objects, once none is terminating and every owner exists.
async fn at_rest(world: &World, history: &History) -> Option<BTreeMap<String, Vec<String>>> {
    let before = world.store.revision();
    let alive = alive(world, history).await?;
    let settled = alive.values().flatten().all(|owner| alive.contains_key(owner));
    // Nothing changed meanwhile, so all this was true at one moment.
    (settled && world.store.revision() == before).then_some(alive)
}

fn check(history: &History, alive: &BTreeMap<String, Vec<String>>) {
    // Objects that only a deletion by a user may remove.
    let mut stands: BTreeSet<&str> = BTreeSet::new();
    for (at, object) in history.objects.iter().enumerate() {
        let (id, name) = (uid(object), name(object));
        let owners: Vec<&str> =
            object.items(&["metadata", "ownerReferences"]).iter().map(|owner| owner.text(&["uid"])).collect();
        let is_solid = |owner: &&str| stands.contains(*owner) && !history.deleted.contains_key(*owner);
        let orphans =
            |owner: &&str| history.deleted.get(*owner).is_some_and(|deletions| deletions.policies.contains("Orphan"));
        let only_orphans = |owner: &&str| {
            let deletions = history.deleted.get(*owner);
            stands.contains(*owner)
                && deletions.is_some_and(|it| it.policies == BTreeSet::from(["Orphan"]) && at < it.objects_before)
        };
        if owners.iter().any(is_solid) || owners.iter().all(only_orphans) {
            stands.insert(id);
        }
        let lives = alive.contains_key(id);
        if history.deleted.contains_key(id) {
            assert!(!lives, "{name} was deleted and still exists");
        } else if stands.contains(id) {
            assert!(lives, "{name} had an existing owner, or was orphaned by all, and is deleted");
        } else if !owners.iter().any(orphans) && owners.iter().all(|owner| !alive.contains_key(*owner)) {
            assert!(!lives, "{name} lost all its owners and still exists");
        }
    }
}

#[test]
fn objects_with_an_owner_are_kept_and_those_without_are_deleted() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    // More cases on demand: each starts a whole server.
    let cases = std::env::var("GC_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(steps in steps())| {
        runtime.block_on(play(&steps));
    });
}
