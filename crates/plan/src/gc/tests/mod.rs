//! A model with the API server's deletion rules, a lagging watch, and the collector's loop around the graph.

mod given;

use super::*;
use object::json;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug)]
struct Object {
    fact: Fact,
    version: u64,
}

#[derive(Default)]
struct World {
    objects: BTreeMap<String, Object>,
    version: u64,
    /// Events that no watch has delivered yet, one queue per kind: kinds may arrive in any order.
    pending: BTreeMap<String, VecDeque<GraphEvent>>,
    graph: Graph,
    reports: Vec<String>,
    deleted_by_gc: Vec<String>,
}

fn place(kind: &str, namespace: &str, name: &str) -> Place {
    Place { api_version: "v1".into(), kind: kind.into(), namespace: namespace.into(), name: name.into() }
}

fn owner(kind: &str, name: &str, uid: &str, blocks: bool) -> OwnerRef {
    OwnerRef { api_version: "v1".into(), kind: kind.into(), name: name.into(), uid: uid.into(), blocks, since: 0 }
}

impl World {
    fn create(&mut self, kind: &str, namespace: &str, name: &str, owners: Vec<OwnerRef>) {
        let fact = Fact {
            place: place(kind, namespace, name),
            uid: format!("uid-{name}").into(),
            resource_version: String::new(),
            owners,
            finalizers: Vec::new(),
            deleting: false,
        };
        self.write(fact);
    }

    /// A pod in namespace `a` owned by other pods there.
    fn pod(&mut self, name: &str, owners: &[(&str, bool)]) {
        let owners = owners.iter().map(|(to, blocks)| owner("Pod", to, &format!("uid-{to}"), *blocks)).collect();
        self.create("Pod", "a", name, owners);
    }

    fn write(&mut self, mut fact: Fact) {
        self.version += 1;
        fact.resource_version = self.version.to_string();
        let name = fact.place.name.to_string();
        let queue = self.pending.entry(fact.place.kind.to_string()).or_default();
        if fact.deleting && fact.finalizers.is_empty() {
            queue.push_back(GraphEvent::Gone(fact.uid, self.version));
            self.objects.remove(&name);
        } else {
            queue.push_back(GraphEvent::Seen(fact.clone()));
            self.objects.insert(name, Object { fact, version: self.version });
        }
    }

    fn delete(&mut self, name: &str, policy: Policy) {
        let Some(object) = self.objects.get(name) else { return };
        let mut fact = object.fact.clone();
        fact.finalizers.retain(|finalizer| finalizer != ORPHAN && finalizer != FOREGROUND);
        match policy {
            Policy::Orphan => fact.finalizers.push(ORPHAN.to_owned()),
            Policy::Foreground => fact.finalizers.push(FOREGROUND.to_owned()),
            Policy::Background => {}
        }
        fact.deleting = true;
        self.write(fact);
    }

    fn edit(&mut self, name: &str, change: impl FnOnce(&mut Fact)) {
        let Some(object) = self.objects.get(name) else { return };
        let mut fact = object.fact.clone();
        change(&mut fact);
        self.write(fact);
    }

    fn deliver(&mut self, kind: &str) -> bool {
        match self.pending.get_mut(kind).and_then(VecDeque::pop_front) {
            Some(event) => {
                self.graph.apply(event);
                true
            }
            None => false,
        }
    }

    fn answer(&self, place: &Place) -> Answer {
        let kinds = ["Pod", "Set", "Volume", "PersistentVolumeClaim"];
        if !kinds.contains(&&*place.kind) {
            return Answer::UnknownKind;
        }
        let cluster_scoped = &*place.kind == "Volume";
        if !cluster_scoped && place.namespace.is_empty() {
            return Answer::NeedsNamespace;
        }
        match self.objects.get(&*place.name) {
            Some(object)
                if object.fact.place.kind == place.kind
                    && (cluster_scoped || object.fact.place.namespace == place.namespace) =>
            {
                Answer::Found(object.fact.clone())
            }
            _ => Answer::NotFound,
        }
    }

    /// Executes one piece of work; `between` runs after the decision and before the actions.
    fn work(&mut self, between: impl FnOnce(&mut World)) -> bool {
        let Some(work) = self.graph.next_work() else { return false };
        let mut answers = Answers::default();
        let plan = loop {
            match self.graph.decide(&work, &answers) {
                Step::Ask(places) => {
                    assert!(places.iter().all(|place| !answers.contains_key(place)), "asks again for known objects");
                    answers.extend(places.into_iter().map(|place| (place.clone(), self.answer(&place))));
                }
                Step::Do(plan) => break plan,
            }
        };
        between(self);
        for uid in &plan.gone {
            self.graph.apply(GraphEvent::Gone(uid.clone(), 0));
        }
        let failed = plan.actions.iter().any(|action| !self.carry_out(action));
        self.graph.done(&work);
        let unwatched = matches!(plan.held, Some(Held::OwnerNotWatched(_)));
        // Other holds are retried forever; the tests below would not end.
        if failed || (unwatched && self.pending.values().any(|queue| !queue.is_empty())) {
            self.graph.requeue(work);
        }
        true
    }

    /// Executes an action; returns whether the server accepted it.
    fn carry_out(&mut self, action: &Action) -> bool {
        let (Action::Delete { place, uid, .. }
        | Action::DropOwners { place, uid, .. }
        | Action::Unblock { place, uid, .. }
        | Action::RemoveFinalizer { place, uid, .. }
        | Action::Report { place, uid, .. }) = action;
        let name = place.name.to_string();
        let Some(object) = self.objects.get(&name).filter(|object| object.fact.uid == *uid) else { return false };
        let current = object.version.to_string();
        match action {
            Action::Delete { resource_version, .. } if *resource_version != current => return false,
            Action::Delete { policy, .. } => {
                self.check_no_solid_owner(&name);
                self.deleted_by_gc.push(name.clone());
                self.delete(&name, *policy);
            }
            Action::DropOwners { owners, .. } => {
                self.edit(&name, |fact| fact.owners.retain(|owner| !owners.contains(&owner.uid)));
            }
            Action::Unblock { owners, .. } => self.edit(&name, |fact| {
                for owner in fact.owners.iter_mut().filter(|owner| owners.contains(&owner.uid)) {
                    owner.blocks = false;
                }
            }),
            Action::RemoveFinalizer { resource_version, .. } if *resource_version != current => return false,
            Action::RemoveFinalizer { rest, .. } => self.edit(&name, |fact| fact.finalizers.clone_from(rest)),
            Action::Report { reason, message, .. } => self.reports.push(format!("{reason}: {message}")),
        }
        true
    }

    /// Safety: a deleted object has no owner that exists and does not wait for it.
    fn check_no_solid_owner(&self, name: &str) {
        let fact = &self.objects[name].fact;
        for owner in &fact.owners {
            if let Answer::Found(live) = self.answer(&owner.place(&fact.place.namespace)) {
                assert!(
                    live.uid != owner.uid || live.waits_for_dependents(),
                    "{name} is deleted although its owner {} exists",
                    owner.name
                );
            }
        }
    }

    /// Delivers all events and executes all work.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let kinds: Vec<String> = self.pending.keys().cloned().collect();
            let delivered = kinds.iter().filter(|kind| self.deliver(kind)).count();
            if !self.work(|_| {}) && delivered == 0 {
                return;
            }
        }
        panic!("garbage collection does not settle");
    }

    fn names(&self) -> BTreeSet<&str> {
        self.objects.keys().map(String::as_str).collect()
    }
}

#[test]
fn background_collects_the_whole_chain_after_the_owner() {
    let mut world = World::default();
    world.pod("set", &[]);
    world.pod("pod", &[("set", true)]);
    world.pod("claim", &[("pod", false)]);
    world.settle();
    world.delete("set", Policy::Background);
    world.settle();
    assert_eq!(world.names(), BTreeSet::new());
}

/// A former report that an owner is deleted was wrong, because its kind was not served for a moment.
#[test]
fn an_owner_that_is_seen_again_exists() {
    let mut world = World::default();
    world.pod("set", &[]);
    world.pod("pod", &[("set", true)]);
    world.settle();
    let set = world.objects["set"].fact.clone();
    world.graph.apply(GraphEvent::Gone(set.uid.clone(), 0));
    world.graph.apply(GraphEvent::Seen(set));
    // Another owner is missing, so all owners are checked.
    world.edit("pod", |fact| fact.owners.push(owner("Pod", "nobody", "uid-nobody", false)));
    world.settle();
    assert_eq!(world.names(), BTreeSet::from(["pod", "set"]));
}

#[test]
fn an_owner_held_by_another_finalizer_still_exists() {
    let mut world = World::default();
    world.pod("set", &[]);
    world.pod("pod", &[("set", true)]);
    world.edit("set", |fact| fact.finalizers.push("example.com/hold".to_owned()));
    world.delete("set", Policy::Background);
    world.settle();
    assert_eq!(world.names(), BTreeSet::from(["pod", "set"]));
    world.edit("set", |fact| fact.finalizers.clear());
    world.settle();
    assert_eq!(world.names(), BTreeSet::new());
}

#[test]
fn foreground_keeps_the_owner_until_blocking_dependents_are_deleted() {
    let mut world = World::default();
    world.pod("set", &[]);
    world.pod("stuck", &[("set", true)]);
    world.pod("free", &[("set", false)]);
    world.edit("stuck", |fact| fact.finalizers.push("example.com/hold".to_owned()));
    world.settle();
    world.delete("set", Policy::Foreground);
    world.settle();
    assert_eq!(world.names(), BTreeSet::from(["set", "stuck"]));
    assert!(world.objects["stuck"].fact.deleting);
    world.edit("stuck", |fact| fact.finalizers.clear());
    world.settle();
    assert_eq!(world.names(), BTreeSet::new());
}

#[test]
fn foreground_does_not_wait_for_dependents_that_do_not_block() {
    let mut world = World::default();
    world.pod("set", &[]);
    world.pod("held", &[("set", false)]);
    world.edit("held", |fact| fact.finalizers.push("example.com/hold".to_owned()));
    world.settle();
    world.delete("set", Policy::Foreground);
    world.settle();
    assert_eq!(world.names(), BTreeSet::from(["held"]));
}

#[test]
fn a_solid_co_owner_keeps_the_dependent_and_unblocks_the_other() {
    let mut world = World::default();
    world.pod("one", &[]);
    world.pod("two", &[]);
    world.pod("shared", &[("one", true), ("two", true)]);
    world.settle();
    world.delete("one", Policy::Foreground);
    world.settle();
    assert_eq!(world.names(), BTreeSet::from(["shared", "two"]));
    let owners: Vec<&str> = world.objects["shared"].fact.owners.iter().map(|owner| &*owner.name).collect();
    assert_eq!(owners, ["two"]);
}

#[test]
fn orphaned_dependents_lose_the_reference_and_are_kept() {
    let mut world = World::default();
    world.pod("set", &[]);
    world.pod("a", &[("set", true)]);
    world.pod("b", &[("set", false)]);
    world.settle();
    world.delete("set", Policy::Orphan);
    world.settle();
    assert_eq!(world.names(), BTreeSet::from(["a", "b"]));
    assert!(world.objects.values().all(|object| object.fact.owners.is_empty()));
}

#[test]
fn a_cycle_of_blocking_owners_can_be_deleted_in_the_foreground() {
    let mut world = World::default();
    world.pod("a", &[("c", true)]);
    world.pod("b", &[("a", true)]);
    world.pod("c", &[("b", true)]);
    world.settle();
    world.delete("a", Policy::Foreground);
    world.settle();
    assert_eq!(world.names(), BTreeSet::new());
}

#[test]
fn foreground_deletions_that_wait_for_each_other_are_unblocked() {
    let mut world = World::default();
    world.pod("a", &[("b", true)]);
    world.pod("b", &[("a", true)]);
    world.delete("a", Policy::Foreground);
    world.delete("b", Policy::Foreground);
    world.settle();
    assert_eq!(world.names(), BTreeSet::new());
}

#[test]
fn an_owner_recreated_under_its_name_is_another_object() {
    let mut world = World::default();
    world.create("Pod", "a", "set", vec![]);
    world.create("Pod", "a", "pod", vec![owner("Pod", "set", "uid-of-old", true)]);
    world.settle();
    assert_eq!(world.names(), BTreeSet::from(["set"]));
    assert!(world.reports.is_empty());
}

#[test]
fn an_owner_in_another_namespace_does_not_count_and_is_reported() {
    let mut world = World::default();
    world.create("Set", "b", "set", vec![]);
    world.create("Pod", "a", "pod", vec![owner("Set", "set", "uid-set", true)]);
    world.settle();
    assert_eq!(world.names(), BTreeSet::from(["set"]));
    assert_eq!(
        world.reports,
        [
            "OwnerRefInvalidNamespace: ownerRef [v1/Set, namespace: a, name: set, uid: uid-set] does not exist in namespace \"a\""
        ]
    );
}

#[test]
fn a_foreign_dependent_does_not_block_foreground_deletion() {
    let mut world = World::default();
    world.create("Set", "b", "set", vec![]);
    world.create("Pod", "a", "pod", vec![owner("Set", "set", "uid-set", true)]);
    world.edit("pod", |fact| fact.finalizers.push("example.com/hold".to_owned()));
    world.delete("set", Policy::Foreground);
    world.settle();
    assert!(!world.objects.contains_key("set"));
}

#[test]
fn cluster_scoped_objects_are_never_deleted_for_a_namespaced_owner() {
    let mut world = World::default();
    world.create("Pod", "a", "pod", vec![]);
    world.create("Volume", "", "volume", vec![owner("Pod", "pod", "uid-pod", true)]);
    world.create("Volume", "", "child", vec![owner("Volume", "volume", "uid-volume", true)]);
    world.settle();
    assert_eq!(world.reports.len(), 1, "{:?}", world.reports);
    assert_eq!(world.names(), BTreeSet::from(["child", "pod", "volume"]));
    world.delete("pod", Policy::Background);
    world.settle();
    assert_eq!(world.names(), BTreeSet::from(["child", "volume"]), "also when that owner is known to be deleted");
}

#[test]
fn objects_that_are_no_longer_watched_are_read() {
    let mut world = World::default();
    world.pod("owner", &[]);
    world.create("Set", "a", "set", vec![owner("Pod", "owner", "uid-owner", true)]);
    world.settle();
    world.graph.apply(GraphEvent::Unwatched("uid-owner".into()));
    let work = world.graph.next_work().unwrap();
    assert_eq!(work, Work::Attempt("uid-set".into()));
    let Step::Ask(places) = world.graph.decide(&work, &Answers::default()) else { panic!("asks") };
    let mut answers = Answers::from([(places[0].clone(), world.answer(&places[0]))]);
    let Step::Ask(places) = world.graph.decide(&work, &answers) else { panic!("asks") };
    assert_eq!(places, [place("Pod", "a", "owner")]);
    answers.insert(places[0].clone(), world.answer(&places[0]));
    let Step::Do(plan) = world.graph.decide(&work, &answers) else { panic!("decides") };
    assert_eq!((plan.actions, plan.held), (vec![], Some(Held::OwnerNotWatched(places[0].clone()))));
    assert!(!world.graph.has_heard_of(&"uid-owner".into(), &"uid-other".into()));
    assert!(world.graph.has_heard_of(&"uid-owner".into(), &"uid-set".into()));
}

#[test]
fn a_namespaced_object_may_have_a_cluster_scoped_owner() {
    let mut world = World::default();
    world.create("Volume", "", "volume", vec![]);
    world.create("Pod", "a", "pod", vec![owner("Volume", "volume", "uid-volume", true)]);
    world.settle();
    assert_eq!(world.names().len(), 2);
    world.delete("volume", Policy::Foreground);
    world.settle();
    assert_eq!(world.names().len(), 0);
}

#[test]
fn an_unknown_owner_kind_keeps_the_dependent_and_is_tried_again() {
    let mut world = World::default();
    world.create("Pod", "a", "pod", vec![owner("Gadget", "g", "uid-g", true)]);
    world.deliver("Pod");
    let work = world.graph.next_work().unwrap();
    let answers: Answers = [
        (place("Pod", "a", "pod"), world.answer(&place("Pod", "a", "pod"))),
        (place("Gadget", "a", "g"), Answer::UnknownKind),
    ]
    .into();
    let Step::Do(plan) = world.graph.decide(&work, &answers) else { panic!("all answers were given") };
    assert!(plan.actions.is_empty());
    assert!(plan.held.unwrap().retries());
}

#[test]
fn work_never_runs_twice_at_once_and_runs_again_after_a_change() {
    let mut world = World::default();
    world.pod("pod", &[("absent", true)]);
    world.deliver("Pod");
    let work = world.graph.next_work().unwrap();
    world.edit("pod", |_| {});
    world.deliver("Pod");
    assert_eq!(world.graph.next_work(), None, "it is running");
    world.graph.done(&work);
    assert_eq!(world.graph.next_work(), Some(work), "it changed while it ran");
}

#[test]
fn objects_with_existing_owners_cause_no_work() {
    let mut world = World::default();
    world.pod("set", &[]);
    for at in 0..100 {
        world.pod(&format!("pod-{at}"), &[("set", true)]);
    }
    while world.deliver("Pod") {}
    assert_eq!(world.graph.next_work(), None);
}

#[test]
fn patches_carry_the_uid_and_only_the_change() {
    let action = Action::DropOwners { place: place("Pod", "a", "p"), uid: "u".into(), owners: vec!["x".into()] };
    assert_eq!(
        action.patch().unwrap(),
        json!({"metadata": {"uid": "u", "ownerReferences": [{"$patch": "delete", "uid": "x"}]}})
    );
    let live = json!({"metadata": {"resourceVersion": "7", "ownerReferences": [{"uid": "x"}, {"uid": "y"}]}});
    assert_eq!(
        action.merge_patch(&live).unwrap(),
        json!({"metadata": {"uid": "u", "resourceVersion": "7", "ownerReferences": [{"uid": "y"}]}})
    );
}

#[derive(Clone, Debug)]
enum Deed {
    Create {
        owners: Vec<(usize, bool)>,
        kind: bool,
    },
    Delete {
        at: usize,
        policy: Policy,
    },
    Disown {
        at: usize,
    },
    Deliver {
        kind: bool,
    },
    Work,
    /// An edit by a user between the collector's decision and its action.
    Race {
        at: usize,
        owner: usize,
    },
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let policy = prop_oneof![Just(Policy::Background), Just(Policy::Foreground), Just(Policy::Orphan)];
    let owners = prop::collection::vec((0usize..12, any::<bool>()), 0..3);
    let deed = prop_oneof![
        3 => (owners, any::<bool>()).prop_map(|(owners, kind)| Deed::Create { owners, kind }),
        2 => (0usize..12, policy).prop_map(|(at, policy)| Deed::Delete { at, policy }),
        1 => (0usize..12).prop_map(|at| Deed::Disown { at }),
        4 => any::<bool>().prop_map(|kind| Deed::Deliver { kind }),
        4 => Just(Deed::Work),
        1 => (0usize..12, 0usize..12).prop_map(|(at, owner)| Deed::Race { at, owner }),
    ];
    prop::collection::vec(deed, 1..60)
}

fn kind_of(flag: bool) -> &'static str {
    if flag { "Set" } else { "Pod" }
}

impl World {
    fn nth(&self, at: usize) -> Option<Fact> {
        let count = self.objects.len();
        if count == 0 { None } else { self.objects.values().nth(at % count).map(|object| object.fact.clone()) }
    }

    fn reference(&self, at: usize, blocks: bool) -> OwnerRef {
        match self.nth(at) {
            Some(fact) => owner(&fact.place.kind, &fact.place.name, &fact.uid, blocks),
            None => owner("Pod", "never", "uid-never", blocks),
        }
    }

    fn perform(&mut self, step: usize, deed: &Deed) {
        match deed {
            Deed::Create { owners, kind } => {
                let owners = owners.iter().map(|(at, blocks)| self.reference(*at, *blocks)).collect();
                self.create(kind_of(*kind), "a", &format!("o{step}"), owners);
            }
            Deed::Delete { at, policy } => {
                if let Some(fact) = self.nth(*at).filter(|fact| !fact.deleting) {
                    self.delete(&fact.place.name, *policy);
                }
            }
            Deed::Disown { at } => {
                if let Some(fact) = self.nth(*at) {
                    self.edit(&fact.place.name, |fact| fact.owners.clear());
                }
            }
            Deed::Deliver { kind } => drop(self.deliver(kind_of(*kind))),
            Deed::Work => drop(self.work(|_| {})),
            Deed::Race { at, owner } => drop(self.work(|world| {
                let reference = world.reference(*owner, true);
                if let Some(fact) = world.nth(*at).filter(|fact| fact.uid != reference.uid) {
                    world.edit(&fact.place.name, |fact| fact.owners.push(reference));
                }
            })),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Safety is asserted at every deletion. At the end no object is left that should be deleted, and no work
    /// waits.
    #[test]
    fn at_rest_no_object_has_only_absent_owners(deeds in deeds()) {
        let mut world = World::default();
        for (step, deed) in deeds.iter().enumerate() {
            world.perform(step, deed);
        }
        world.settle();
        for object in world.objects.values() {
            let fact = &object.fact;
            let stands = |owner: &OwnerRef| matches!(
                world.answer(&owner.place(&fact.place.namespace)), Answer::Found(live) if live.uid == owner.uid);
            prop_assert!(fact.owners.is_empty() || fact.owners.iter().any(stands), "{} is garbage", fact.place.name);
            prop_assert!(!fact.deleting, "{} never ends", fact.place.name);
        }
        prop_assert_eq!(world.graph.len(), world.objects.len(), "the graph has all objects");
    }

    /// Without pending events at the time of orphaning, direct dependents are kept.
    #[test]
    fn orphaned_objects_are_kept(deeds in deeds(), at in 0usize..12) {
        let mut world = World::default();
        for (step, deed) in deeds.iter().enumerate() {
            world.perform(step, deed);
        }
        world.settle();
        let Some(owner) = world.nth(at) else { return Ok(()) };
        let dependents: Vec<String> = world.objects.values()
            .filter(|object| object.fact.owners.iter().any(|reference| reference.uid == owner.uid))
            .map(|object| object.fact.place.name.to_string())
            .filter(|name| *name != *owner.place.name)
            .collect();
        world.deleted_by_gc.clear();
        world.delete(&owner.place.name, Policy::Orphan);
        world.settle();
        prop_assert!(world.deleted_by_gc.is_empty());
        for name in dependents {
            prop_assert!(world.objects.contains_key(&name), "{} was orphaned and is deleted", name);
        }
    }
}
