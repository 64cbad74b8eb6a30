//! Decides what to do about one object, from live reads.

use super::graph::{Graph, Node, Work};
use super::{Action, FOREGROUND, Fact, ORPHAN, OwnerRef, Place, Policy, Uid};
use std::collections::HashMap;

/// The result of a live GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Found(Fact),
    NotFound,
    /// No such apiVersion and kind is served.
    UnknownKind,
    /// The kind is namespaced and the dependent is cluster-scoped: such a reference cannot be resolved.
    NeedsNamespace,
    /// The GET failed; retry later.
    Failed,
}

pub type Answers = HashMap<Place, Answer>;

/// What the decision needs next, or its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// GET these (metadata is enough), then call `decide` again with the answers added.
    Ask(Vec<Place>),
    Do(CollectionPlan),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectionPlan {
    /// Execute in order and stop at the first failure. [`Action::DropOwners`] are each about another object
    /// and may run concurrently.
    pub actions: Vec<Action>,
    /// Objects that turned out to be deleted before a watch reported it: `apply` them as
    /// [`super::GraphEvent::Gone`].
    pub gone: Vec<Uid>,
    /// Why nothing (more) is done, if the caller needs to know.
    pub held: Option<Held>,
}

/// Why an object is kept for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// An owner's kind is not served, so its existence is unknown.
    UnknownOwnerKind(Place),
    /// A GET failed.
    Unanswered(Place),
    /// An owner exists, but its watch has not delivered it yet: its deletion could be missed.
    OwnerNotWatched(Place),
    /// A cluster-scoped object names a namespaced owner, which can never be resolved.
    NamespacedOwner(Place),
    /// Dependents block this owner's deletion; their deletion queues it again.
    Blocked,
}

impl Held {
    /// Whether the work must be retried after a backoff.
    pub fn retries(&self) -> bool {
        match self {
            Held::UnknownOwnerKind(_) | Held::Unanswered(_) | Held::OwnerNotWatched(_) => true,
            Held::NamespacedOwner(_) | Held::Blocked => false,
        }
    }
}

impl CollectionPlan {
    /// The owner whose finalizer this plan removes; afterwards its dependents are not handled for it any
    /// more.
    pub fn releases(&self) -> Option<(&Place, &Uid, &str)> {
        self.actions.iter().find_map(|action| match action {
            Action::RemoveFinalizer { place, uid, resource_version, .. } => {
                Some((place, uid, resource_version.as_str()))
            }
            _ => None,
        })
    }
    fn held(held: Held) -> Step {
        Step::Do(CollectionPlan { held: Some(held), ..CollectionPlan::default() })
    }
    fn nothing() -> Step {
        Step::Do(CollectionPlan::default())
    }
    fn act(actions: Vec<Action>) -> Step {
        Step::Do(CollectionPlan { actions, ..CollectionPlan::default() })
    }
}

/// The owners of an object, by their state.
#[derive(Default)]
struct Owners<'a> {
    /// The owner exists and keeps the object: it is not in foreground deletion, or need not wait for this
    /// object. An owner that terminates for another reason is in this list, too.
    solid: Vec<&'a OwnerRef>,
    /// The owner does not exist, or its name belongs to another object.
    dangling: Vec<&'a OwnerRef>,
    /// The owner is in foreground deletion and waits for its dependents.
    waiting: Vec<&'a OwnerRef>,
    /// The owner was already deleted when the object got it as an owner.
    late: Vec<Uid>,
    unwatched: Option<Place>,
    reports: Vec<Action>,
}

impl Graph {
    /// Decides about `work`, as far as the answers suffice.
    pub fn decide(&self, work: &Work, answers: &Answers) -> Step {
        let (Work::Attempt(uid) | Work::Orphan(uid)) = work;
        let Some(node) = self.nodes.get(uid) else { return CollectionPlan::nothing() };
        let live = match answers.get(&node.place) {
            None => return Step::Ask(vec![node.place.clone()]),
            Some(Answer::Found(live)) if live.uid == *uid => live,
            Some(Answer::Found(_) | Answer::NotFound) => {
                return Step::Do(CollectionPlan { gone: vec![uid.clone()], ..CollectionPlan::default() });
            }
            Some(Answer::UnknownKind | Answer::NeedsNamespace | Answer::Failed) => {
                return CollectionPlan::held(Held::Unanswered(node.place.clone()));
            }
        };
        match work {
            Work::Orphan(_) => self.orphan(live),
            Work::Attempt(_) if live.waits_for_dependents() => self.foreground(live),
            Work::Attempt(_) if live.deleting || live.owners.is_empty() => CollectionPlan::nothing(),
            Work::Attempt(_) => self.dependent(live, answers),
        }
    }

    fn orphan(&self, owner: &Fact) -> Step {
        if !owner.waits_for_orphans() {
            return CollectionPlan::nothing();
        }
        let drop = |(uid, node): (&Uid, &Node)| Action::DropOwners {
            place: node.place.clone(),
            uid: uid.clone(),
            owners: vec![owner.uid.clone()],
        };
        let mut actions: Vec<Action> = self.dependents(&owner.uid).map(drop).collect();
        actions.push(remove_finalizer(owner, ORPHAN));
        CollectionPlan::act(actions)
    }

    fn foreground(&self, owner: &Fact) -> Step {
        if !self.is_blocked(&owner.uid) {
            return CollectionPlan::act(vec![remove_finalizer(owner, FOREGROUND)]);
        }
        let blocking = blocking_owners(owner);
        if !blocking.is_empty() && self.waits_for_itself(&owner.uid) {
            return CollectionPlan::act(vec![unblock(owner, blocking)]);
        }
        CollectionPlan::held(Held::Blocked)
    }

    fn dependent(&self, live: &Fact, answers: &Answers) -> Step {
        let owners = match self.classify(live, answers) {
            Ok(owners) => owners,
            Err(step) => return step,
        };
        let mut actions = owners.reports;
        if !owners.late.is_empty() {
            // The remaining owners are judged again after this change.
            actions.push(drop_owners(live, owners.late));
            return CollectionPlan::act(actions);
        }
        if !owners.solid.is_empty() {
            let lost: Vec<Uid> = owners.dangling.iter().chain(&owners.waiting).map(|owner| owner.uid.clone()).collect();
            if !lost.is_empty() {
                actions.push(drop_owners(live, lost));
            }
            return Step::Do(CollectionPlan {
                actions,
                held: owners.unwatched.map(Held::OwnerNotWatched),
                ..CollectionPlan::default()
            });
        }
        let has_dependents = self.dependents(&live.uid).next().is_some();
        let policy = if !owners.waiting.is_empty() && has_dependents {
            let blocking = blocking_owners(live);
            if !blocking.is_empty() && self.dependents(&live.uid).any(|(_, node)| node.foreground) {
                // A cycle: the dependent waits for this object, which would wait for the dependent. The patch
                // that breaks the cycle changes the object, which queues this work again; then the object is
                // deleted.
                actions.push(unblock(live, blocking));
                return CollectionPlan::act(actions);
            }
            Policy::Foreground
        } else if live.has_finalizer(ORPHAN) {
            Policy::Orphan
        } else if live.has_finalizer(FOREGROUND) {
            Policy::Foreground
        } else {
            Policy::Background
        };
        actions.push(Action::Delete {
            place: live.place.clone(),
            uid: live.uid.clone(),
            resource_version: live.resource_version.clone(),
            policy,
        });
        CollectionPlan::act(actions)
    }

    /// Classifies the owner references of `live`, or returns what is missing to do so.
    fn classify<'a>(&self, live: &'a Fact, answers: &Answers) -> Result<Owners<'a>, Step> {
        let mut owners = Owners::default();
        let mut ask = Vec::new();
        for reference in &live.owners {
            // For a cluster-scoped object the owner is read even so: its kind may be namespaced, and so no
            // valid owner.
            if self.is_gone(&reference.uid) && !live.place.namespace.is_empty() {
                match self.came_late(live, reference) {
                    Some(true) => owners.late.push(reference.uid.clone()),
                    Some(false) => owners.dangling.push(reference),
                    None => return Err(CollectionPlan::held(Held::OwnerNotWatched(live.place.clone()))),
                }
                continue;
            }
            let place = reference.place(&live.place.namespace);
            match answers.get(&place) {
                None => ask.push(place),
                Some(Answer::Found(owner)) if owner.uid == reference.uid => {
                    let waits = owner.waits_for_dependents();
                    match if waits { self.can_wait(live, reference) } else { Some(true) } {
                        Some(true) => owners.solid.push(reference),
                        Some(false) => owners.waiting.push(reference),
                        None => return Err(CollectionPlan::held(Held::OwnerNotWatched(place))),
                    }
                    if !self.nodes.contains_key(&reference.uid) {
                        owners.unwatched = Some(place);
                    }
                }
                Some(Answer::Found(_) | Answer::NotFound) if self.came_late(live, reference).is_none() => {
                    return Err(CollectionPlan::held(Held::OwnerNotWatched(place)));
                }
                Some(Answer::Found(_) | Answer::NotFound) => {
                    owners.dangling.push(reference);
                    if self.nodes.contains_key(&reference.uid) {
                        // The owner exists in another namespace. Report this, because the object is deleted
                        // because of it.
                        owners.reports.push(invalid_namespace(live, reference));
                    }
                }
                Some(Answer::UnknownKind) => return Err(CollectionPlan::held(Held::UnknownOwnerKind(place))),
                Some(Answer::Failed) => return Err(CollectionPlan::held(Held::Unanswered(place))),
                Some(Answer::NeedsNamespace) => {
                    let actions = vec![invalid_namespace(live, reference)];
                    let held = Some(Held::NamespacedOwner(place));
                    return Err(Step::Do(CollectionPlan { actions, held, ..CollectionPlan::default() }));
                }
            }
        }
        if ask.is_empty() { Ok(owners) } else { Err(Step::Ask(ask)) }
    }
}

fn drop_owners(object: &Fact, owners: Vec<Uid>) -> Action {
    Action::DropOwners { place: object.place.clone(), uid: object.uid.clone(), owners }
}

fn remove_finalizer(object: &Fact, finalizer: &str) -> Action {
    Action::RemoveFinalizer {
        place: object.place.clone(),
        uid: object.uid.clone(),
        resource_version: object.resource_version.clone(),
        finalizer: finalizer.to_owned(),
        rest: object.finalizers.iter().filter(|name| *name != finalizer).cloned().collect(),
    }
}

/// The owners whose deletion this object blocks.
fn blocking_owners(object: &Fact) -> Vec<Uid> {
    object.owners.iter().filter(|owner| owner.blocks).map(|owner| owner.uid.clone()).collect()
}

fn unblock(object: &Fact, owners: Vec<Uid>) -> Action {
    Action::Unblock { place: object.place.clone(), uid: object.uid.clone(), owners }
}

fn invalid_namespace(object: &Fact, reference: &OwnerRef) -> Action {
    let namespace = &object.place.namespace;
    Action::Report {
        place: object.place.clone(),
        uid: object.uid.clone(),
        reason: "OwnerRefInvalidNamespace",
        message: format!("ownerRef {} does not exist in namespace {:?}", reference.written(namespace), &**namespace),
    }
}
