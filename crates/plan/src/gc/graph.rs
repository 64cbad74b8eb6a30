//! The graph of owners and dependents by uid, and the queue of work.

use super::{Fact, OwnerRef, Place, Uid};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

/// Number of deleted uids to remember, so that the dependents of one owner need not each read it.
const GONE_MAX: usize = 4096;

/// What a watch reported.
#[derive(Clone, Debug)]
pub enum GraphEvent {
    /// An object was added or changed.
    Seen(Fact),
    /// An object in a list: changes since its last event are not known one by one.
    Listed(Fact),
    /// The uid was deleted and will never exist again; at this version, or 0 if it is unknown.
    Gone(Uid, u64),
    /// The object is not watched any more: whether it exists must be read.
    Unwatched(Uid),
}

/// Work: an object that may have to be deleted, or an owner whose dependents are to be orphaned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    Attempt(Uid),
    Orphan(Uid),
}

/// All objects by uid, and the index from owners to dependents. Owners that no watch has delivered yet are
/// only in the index. Owned and updated by a single task.
#[derive(Default)]
pub struct Graph {
    pub(super) nodes: HashMap<Uid, Node>,
    dependents: HashMap<Uid, BTreeSet<Uid>>,
    gone: HashMap<Uid, End>,
    /// The order in which entries of `gone` are evicted.
    gone_order: VecDeque<Uid>,
    /// In order and without duplicates: every entry is in `dirty` and not in `running`.
    queue: VecDeque<Work>,
    /// Work to do: queued, or changed while it ran.
    dirty: HashSet<Work>,
    /// Work that was handed out and is not done: the same work never runs twice at once.
    running: HashSet<Work>,
}

/// The deletion of an owner.
#[derive(Clone, Copy, Default)]
struct End {
    /// 0 if it is unknown.
    version: u64,
    /// Its dependents were to be orphaned.
    orphaned: bool,
}

pub(super) struct Node {
    pub place: Place,
    pub owners: Vec<OwnerRef>,
    pub deleting: bool,
    pub foreground: bool,
    pub orphaning: bool,
    /// Its dependents were to be orphaned, and this was not revoked: it may still exist because of another
    /// finalizer.
    orphaned: bool,
    /// The version at which it got its deletionTimestamp; 0 if it has none, or if that is unknown.
    told: u64,
}

impl Node {
    fn new(fact: &Fact) -> Node {
        Node {
            place: fact.place.clone(),
            owners: fact.owners.clone(),
            deleting: fact.deleting,
            foreground: fact.waits_for_dependents(),
            orphaning: fact.waits_for_orphans(),
            orphaned: fact.waits_for_orphans(),
            told: 0,
        }
    }

    /// Carries over what is known from the former state; `version` is that of the change, 0 if it is unknown.
    fn remember(&mut self, before: &Node, version: u64) {
        for owner in &mut self.owners {
            let known = before.owners.iter().find(|known| known.uid == owner.uid);
            owner.since = known.map_or(version, |known| known.since);
        }
        self.orphaned |= before.orphaned && !self.foreground;
        self.told = match (before.deleting, self.deleting) {
            (true, _) => before.told,
            (false, true) => version,
            (false, false) => 0,
        };
    }

    /// Whether this dependent blocks the deletion of `owner`, whose uid is `uid`.
    fn blocks(&self, owner: &Node, uid: &Uid) -> bool {
        let reference = self.owners.iter().find(|reference| reference.uid == *uid);
        reference.is_some_and(|reference| reference.blocks && is_at(owner, reference, &self.place))
    }
}

impl Graph {
    /// Applies a change and queues the work that it requires. The cost is proportional to the edges that it
    /// touches.
    pub fn apply(&mut self, event: GraphEvent) {
        match event {
            GraphEvent::Seen(fact) => self.see(&fact, fact.resource_version.parse().unwrap_or(0)),
            GraphEvent::Listed(fact) => self.see(&fact, 0),
            GraphEvent::Gone(uid, version) => {
                self.remember_gone(&uid, version);
                self.forget(&uid);
            }
            GraphEvent::Unwatched(uid) => self.forget(&uid),
        }
    }

    /// Returns the next work. Return it with [`Graph::done`].
    pub fn next_work(&mut self) -> Option<Work> {
        while let Some(work) = self.queue.pop_front() {
            self.dirty.remove(&work);
            if self.in_doubt(&work) {
                self.running.insert(work.clone());
                return Some(work);
            }
        }
        None
    }

    /// Ends the work. If anything about it changed meanwhile, it is queued again.
    pub fn done(&mut self, work: &Work) {
        if self.running.remove(work) && self.dirty.contains(work) {
            self.queue.push_back(work.clone());
        }
    }

    /// Queues work again.
    pub fn requeue(&mut self, work: Work) {
        if self.dirty.insert(work.clone()) && !self.running.contains(&work) {
            self.queue.push_back(work);
        }
    }

    /// The number of known objects.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
    /// The place of a known object.
    pub fn place_of(&self, uid: &Uid) -> Option<&Place> {
        self.nodes.get(uid).map(|node| &node.place)
    }
    /// Whether the graph knows that `dependent` has the owner `owner`, or that the dependent is deleted.
    pub fn has_heard_of(&self, owner: &Uid, dependent: &Uid) -> bool {
        self.is_gone(dependent) || self.dependents.get(owner).is_some_and(|dependents| dependents.contains(dependent))
    }
    /// The length of the queue, for metrics.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn dependents(&self, uid: &Uid) -> impl Iterator<Item = (&Uid, &Node)> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| self.nodes.get_key_value(uid))
    }

    /// Whether a dependent blocks the foreground deletion of `uid`.
    pub(super) fn is_blocked(&self, uid: &Uid) -> bool {
        let Some(owner) = self.nodes.get(uid) else { return false };
        self.dependents(uid).any(|(_, node)| node.blocks(owner, uid))
    }

    /// Whether foreground deletions wait for each other in a cycle through `uid`. Follows owners and not
    /// dependents, because an object has few owners.
    pub(super) fn waits_for_itself(&self, uid: &Uid) -> bool {
        let mut seen = HashSet::new();
        let mut todo = vec![uid];
        while let Some(at) = todo.pop() {
            let Some(node) = self.nodes.get(at).filter(|node| node.foreground) else { continue };
            for owner in node.owners.iter().filter(|owner| owner.blocks) {
                let blocked = self.nodes.get(&owner.uid).is_some_and(|to| to.foreground && node.blocks(to, &owner.uid));
                if blocked && owner.uid == *uid {
                    return true;
                }
                if blocked && seen.insert(&owner.uid) {
                    todo.push(&owner.uid);
                }
            }
        }
        false
    }

    pub(super) fn is_gone(&self, uid: &Uid) -> bool {
        self.gone.contains_key(uid)
    }

    /// Whether a claim got an owner after that owner was deleted, or after the owner was to orphan its
    /// dependents: a delayed request did that (decision 21). `None`: events that will tell are still to come.
    /// If no event can tell, the answer is no. It is always no for other kinds, because only a deleted claim
    /// loses data.
    pub(super) fn came_late(&self, live: &Fact, reference: &OwnerRef) -> Option<bool> {
        if !live.place.is_claim() {
            return Some(false);
        }
        let known = self.nodes.get(&live.uid)?.owners.iter().find(|known| known.uid == reference.uid)?;
        let is_shown = |owner: &Node| owner.place == reference.place(&live.place.namespace);
        match self.gone.get(&reference.uid) {
            Some(end) => Some(end.orphaned || (end.version > 0 && known.since > end.version)),
            None if self.nodes.get(&reference.uid).is_some_and(is_shown) => None,
            None => Some(false),
        }
    }

    /// Whether a claim got an owner after that owner's deletion began. Its controller may be about to revoke
    /// this, and the claim does not block the owner, so it need not be deleted before the owner is. `None`:
    /// events that will tell are still to come.
    pub(super) fn can_wait(&self, live: &Fact, reference: &OwnerRef) -> Option<bool> {
        let Some(owner) = self.nodes.get(&reference.uid).filter(|_| live.place.is_claim() && !reference.blocks) else {
            return Some(false);
        };
        let known = self.nodes.get(&live.uid)?.owners.iter().find(|known| known.uid == reference.uid)?;
        owner.deleting.then_some(owner.told > 0 && known.since > owner.told)
    }

    /// `version` is that of the change, 0 if it is unknown.
    fn see(&mut self, fact: &Fact, version: u64) {
        // The object exists, so the earlier report of its deletion was wrong.
        self.gone.remove(&fact.uid);
        let mut node = Node::new(fact);
        let (foreground, orphaning) = (node.foreground, node.orphaning);
        if let Some(before) = self.nodes.get(&fact.uid) {
            node.remember(before, version);
        }
        let before = self.nodes.insert(fact.uid.clone(), node);
        let first = before.is_none();
        let (was_foreground, was_orphaning, owners_before) = match before {
            Some(before) => (before.foreground, before.orphaning, before.owners),
            None => (false, false, Vec::new()),
        };
        self.reindex(&fact.uid, &owners_before, &fact.owners);
        self.requeue(Work::Attempt(fact.uid.clone()));
        if first || (foreground && !was_foreground) {
            self.queue_dependents(&fact.uid);
        }
        if orphaning && !was_orphaning {
            self.requeue(Work::Orphan(fact.uid.clone()));
        }
    }

    fn reindex(&mut self, uid: &Uid, before: &[OwnerRef], after: &[OwnerRef]) {
        for owner in before {
            let now = after.iter().find(|now| now.uid == owner.uid);
            if now.is_none() {
                self.unlink(uid, &owner.uid);
            }
            if owner.blocks && now.is_none_or(|now| !now.blocks) {
                self.requeue(Work::Attempt(owner.uid.clone()));
            }
        }
        for owner in after {
            let added = self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
            if added && self.nodes.get(&owner.uid).is_some_and(|node| node.orphaning) {
                self.requeue(Work::Orphan(owner.uid.clone()));
            }
        }
    }

    fn unlink(&mut self, dependent: &Uid, owner: &Uid) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    fn remember_gone(&mut self, uid: &Uid, version: u64) {
        let orphaned = self.nodes.get(uid).is_some_and(|node| node.orphaned);
        if let Some(end) = self.gone.get_mut(uid) {
            // A live read found the deletion before the watch reported it.
            end.version = end.version.max(version);
            return;
        }
        self.gone.insert(uid.clone(), End { version, orphaned });
        self.gone_order.push_back(uid.clone());
        if self.gone_order.len() > GONE_MAX
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
    }

    fn forget(&mut self, uid: &Uid) {
        if let Some(node) = self.nodes.remove(uid) {
            for owner in &node.owners {
                self.unlink(uid, &owner.uid);
                self.requeue(Work::Attempt(owner.uid.clone()));
            }
        }
        self.queue_dependents(uid);
    }

    fn queue_dependents(&mut self, uid: &Uid) {
        let dependents: Vec<Uid> = self.dependents.get(uid).into_iter().flatten().cloned().collect();
        for dependent in dependents {
            self.requeue(Work::Attempt(dependent));
        }
    }

    /// Whether the graph alone cannot rule out that there is something to do.
    pub fn in_doubt(&self, work: &Work) -> bool {
        match work {
            Work::Orphan(uid) => self.nodes.get(uid).is_some_and(|node| node.orphaning),
            Work::Attempt(uid) => self.nodes.get(uid).is_some_and(|node| {
                node.foreground
                    || (!node.deleting && node.owners.iter().any(|owner| !self.is_solid(owner, &node.place)))
            }),
        }
    }

    /// Whether a watch has delivered the owner at the place of the reference, and it is not in foreground
    /// deletion.
    fn is_solid(&self, reference: &OwnerRef, from: &Place) -> bool {
        self.nodes.get(&reference.uid).is_some_and(|owner| !owner.foreground && is_at(owner, reference, from))
    }
}

/// Whether `owner` is at the place of a reference of an object at `from`: cluster-scoped, or in the same
/// namespace.
fn is_at(owner: &Node, reference: &OwnerRef, from: &Place) -> bool {
    let place = reference.place(&from.namespace);
    owner.place.kind == place.kind
        && owner.place.name == place.name
        && owner.place.group() == place.group()
        && (owner.place.namespace.is_empty() || owner.place.namespace == place.namespace)
}
