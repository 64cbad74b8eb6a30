//! Who owns whom, by uid, and what to look at next.

use super::{Fact, OwnerRef, Place, Uid};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

/// How many uids known to be gone are remembered, so that the dependents of one owner do not each ask for it.
const GONE_MAX: usize = 4096;

/// What a watch saw.
#[derive(Clone, Debug)]
pub enum Event {
    /// The object as it is now: added or changed.
    Seen(Fact),
    /// The same in a list: what became of it since it was seen last is not known one by one.
    Listed(Fact),
    /// No object has this uid any more, and none ever will; since this version, or 0 if that is not known.
    Gone(Uid, u64),
    /// The object is not watched any more: whether it is still there must be asked.
    Unwatched(Uid),
}

/// What to look at: an object that may have to go, or an owner whose dependents are to be orphaned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    Attempt(Uid),
    Orphan(Uid),
}

/// All objects by uid and the index from owner to dependents. Owners that no watch has shown yet are only in the index.
/// Owned and updated by a single task.
#[derive(Default)]
pub struct Graph {
    pub(super) nodes: HashMap<Uid, Node>,
    dependents: HashMap<Uid, BTreeSet<Uid>>,
    gone: HashMap<Uid, End>,
    /// The order in which `gone` forgets.
    gone_order: VecDeque<Uid>,
    /// In order, without repetition: every entry is in `dirty` and not in `running`.
    queue: VecDeque<Work>,
    /// What must be looked at: queued, or changed while it ran.
    dirty: HashSet<Work>,
    /// Handed out and not yet done: the same work never runs twice at once.
    running: HashSet<Work>,
}

/// How an owner went.
#[derive(Clone, Copy, Default)]
struct End {
    /// 0: nobody said.
    version: u64,
    /// Its dependents were to be left behind.
    orphaned: bool,
}

pub(super) struct Node {
    pub place: Place,
    pub owners: Vec<OwnerRef>,
    pub deleting: bool,
    pub foreground: bool,
    pub orphaning: bool,
    /// Its dependents were to be left behind, and nothing else was said since: it may still be held by somebody else's finalizer.
    orphaned: bool,
    /// The version at which it was told to go; 0: it was not, or nobody saw it.
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

    /// What is remembered of it as it was before; `version`: at which it became what it is, if that is known.
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

    /// Whether this dependent holds up the deletion of `owner`, whose uid is `uid`.
    fn blocks(&self, owner: &Node, uid: &Uid) -> bool {
        let reference = self.owners.iter().find(|reference| reference.uid == *uid);
        reference.is_some_and(|reference| reference.blocks && is_at(owner, reference, &self.place))
    }
}

impl Graph {
    /// Takes in a change; what it makes doubtful is queued. The cost is that of the edges it touches.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Seen(fact) => self.see(&fact, fact.resource_version.parse().unwrap_or(0)),
            Event::Listed(fact) => self.see(&fact, 0),
            Event::Gone(uid, version) => {
                self.remember_gone(&uid, version);
                self.forget(&uid);
            }
            Event::Unwatched(uid) => self.forget(&uid),
        }
    }

    /// The next thing to look at. Hand it back with [`Graph::done`].
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

    /// The work was carried out. If anything about it changed meanwhile, it is queued again.
    pub fn done(&mut self, work: &Work) {
        if self.running.remove(work) && self.dirty.contains(work) {
            self.queue.push_back(work.clone());
        }
    }

    /// The work is to be looked at again.
    pub fn requeue(&mut self, work: Work) {
        if self.dirty.insert(work.clone()) && !self.running.contains(&work) {
            self.queue.push_back(work);
        }
    }

    /// How many objects are known.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
    /// Where a known object is.
    pub fn place_of(&self, uid: &Uid) -> Option<&Place> {
        self.nodes.get(uid).map(|node| &node.place)
    }
    /// Whether the graph has caught up with `dependent` having `owner` as an owner: it shows that, or that the dependent is gone.
    pub fn has_heard_of(&self, owner: &Uid, dependent: &Uid) -> bool {
        self.is_gone(dependent) || self.dependents.get(owner).is_some_and(|dependents| dependents.contains(dependent))
    }
    /// How much work waits, for metrics.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn dependents(&self, uid: &Uid) -> impl Iterator<Item = (&Uid, &Node)> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| self.nodes.get_key_value(uid))
    }

    /// Whether a dependent stands in the way of the foreground deletion of `uid`.
    pub(super) fn is_blocked(&self, uid: &Uid) -> bool {
        let Some(owner) = self.nodes.get(uid) else { return false };
        self.dependents(uid).any(|(_, node)| node.blocks(owner, uid))
    }

    /// Whether foreground deletions wait for each other in a circle through `uid`: followed from dependents up to owners,
    /// because an object has few of those.
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

    /// Whether a claim was given to an owner after that had gone, or one that was to leave its dependents behind: by a request that
    /// was on its way for so long (decision 21). `None`: watches will tell. Where they cannot, it was in time; and what is no claim always was, because
    /// only what goes with a claim does not come back.
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

    /// Whether a claim was given to an owner after that had been told to go. Its controller may be about to take that back, and need not: what does
    /// not hold the owner up goes when that is gone. `None`: watches will tell.
    pub(super) fn can_wait(&self, live: &Fact, reference: &OwnerRef) -> Option<bool> {
        let Some(owner) = self.nodes.get(&reference.uid).filter(|_| live.place.is_claim() && !reference.blocks) else {
            return Some(false);
        };
        let known = self.nodes.get(&live.uid)?.owners.iter().find(|known| known.uid == reference.uid)?;
        owner.deleting.then_some(owner.told > 0 && known.since > owner.told)
    }

    /// `version`: at which it became so, if that is known.
    fn see(&mut self, fact: &Fact, version: u64) {
        // Whoever said that it was gone was mistaken.
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
            // It was asked for before a watch told of it.
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

    /// Whether the graph alone cannot say that there is nothing to do.
    pub fn in_doubt(&self, work: &Work) -> bool {
        match work {
            Work::Orphan(uid) => self.nodes.get(uid).is_some_and(|node| node.orphaning),
            Work::Attempt(uid) => self.nodes.get(uid).is_some_and(|node| {
                node.foreground
                    || (!node.deleting && node.owners.iter().any(|owner| !self.is_solid(owner, &node.place)))
            }),
        }
    }

    /// A watch shows the owner where the reference says, and it does not wait for its dependents to go.
    fn is_solid(&self, reference: &OwnerRef, from: &Place) -> bool {
        self.nodes.get(&reference.uid).is_some_and(|owner| !owner.foreground && is_at(owner, reference, from))
    }
}

/// Whether `owner` is where a reference of an object at `from` says: cluster-scoped, or in the same namespace.
fn is_at(owner: &Node, reference: &OwnerRef, from: &Place) -> bool {
    let place = reference.place(&from.namespace);
    owner.place.kind == place.kind
        && owner.place.name == place.name
        && owner.place.group() == place.group()
        && (owner.place.namespace.is_empty() || owner.place.namespace == place.namespace)
}
