//! The history of the specs of StatefulSets.

use super::Who;
use crate::statefulset::invariant::Wants;
use jiff::Timestamp;
use object::access::{Access, name, namespace, uid};
use object::{Gates, Value};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Sets {
    /// By uid; deleted sets are kept.
    by_uid: BTreeMap<String, History>,
    /// Groups of sets that are slices of one.
    joined: Vec<Vec<(String, String)>>,
}

/// The history of one set.
pub struct History {
    namespace: String,
    name: String,
    said: Vec<Said>,
    /// Its dependents are to be orphaned.
    orphans: bool,
    /// Since when, if the set was terminating without this before: the collector may still act on the former
    /// state.
    orphans_after_all: Option<Timestamp>,
    ends: bool,
    /// Replicas that the controller deleted while they were available and that are not available again; by
    /// ordinal, with the deleted uid.
    pub away: BTreeMap<i64, String>,
}

struct Said {
    wants: Wants,
    from: Timestamp,
}

impl History {
    pub fn wants(&self) -> Option<&Wants> {
        self.said.last().map(|said| &said.wants)
    }

    /// The specs that were valid at or after this time.
    fn lately(&self, since: Timestamp) -> impl Iterator<Item = &Said> {
        let ends = self.said.iter().skip(1).map(|next| next.from).chain([Timestamp::MAX]);
        self.said.iter().zip(ends).filter(move |(_, end)| since <= *end).map(|(said, _)| said)
    }

    fn said_lately(&self, since: Timestamp, is: impl Fn(&Said) -> bool) -> bool {
        self.lately(since).any(is)
    }

    /// The largest budget of these specs.
    pub fn budget(&self, since: Timestamp) -> i64 {
        let budget = |wants: &Wants| if wants.recreates { i64::MAX } else { wants.unavailable_max };
        self.lately(since).map(|said| budget(&said.wants)).max().unwrap_or(1)
    }

    /// Whether the ordinal of a replica created at `there_since` was out of range after that, at or after
    /// `since`.
    pub fn gave_up_lately(&self, ordinal: i64, there_since: Timestamp, since: Timestamp) -> bool {
        self.said_lately(since, |said| said.from >= there_since && !said.wants.ordinals.contains(&ordinal))
    }
}

impl Sets {
    pub fn see(&mut self, set: &Value, who: Who<'_>, gates: &Gates, now: Timestamp) {
        let history = self.by_uid.entry(uid(set).to_owned()).or_insert_with(|| History {
            namespace: namespace(set).to_owned(),
            name: name(set).to_owned(),
            said: Vec::new(),
            orphans: false,
            orphans_after_all: None,
            ends: false,
            away: BTreeMap::new(),
        });
        let wants = Wants::of(set, gates);
        if history.wants() != Some(&wants) {
            history.away.retain(|ordinal, _| wants.ordinals.contains(ordinal));
            history.said.push(Said { wants, from: now });
        }
        if history.ends && !history.orphans && has_orphans(set) {
            history.orphans_after_all = Some(now);
        }
        history.ends |= set.has(&["metadata", "deletionTimestamp"]);
        // A user who deletes the set again may choose another propagation policy.
        history.orphans = has_orphans(set) || (history.orphans && who != Who::User);
    }

    pub fn gone(&mut self, set: &Value, who: Who<'_>, now: Timestamp) {
        if let Some(history) = self.by_uid.get_mut(uid(set)) {
            history.ends = true;
            history.orphans &= who != Who::User;
            // Its last spec counts as valid until now.
            let wants = history.wants().cloned();
            history.said.extend(wants.map(|wants| Said { wants, from: now }));
        }
    }

    pub fn join(&mut self, sets: &[(&str, &str)]) {
        let owned = |(namespace, name): &(&str, &str)| ((*namespace).to_owned(), (*name).to_owned());
        self.joined.push(sets.iter().map(owned).collect());
    }

    pub fn has_joined(&self) -> bool {
        !self.joined.is_empty()
    }

    /// The other sets of the same group.
    pub fn twins(&self, namespace: &str, name: &str) -> BTreeSet<(String, String)> {
        let is_it = |(its_namespace, its_name): &(String, String)| its_namespace == namespace && its_name == name;
        let groups = self.joined.iter().filter(|group| group.iter().any(is_it));
        groups.flatten().filter(|it| !is_it(it)).cloned().collect()
    }

    pub fn get_mut(&mut self, uid: &str) -> Option<&mut History> {
        self.by_uid.get_mut(uid)
    }

    /// Whether the set of this uid is terminating or deleted.
    pub fn ends(&self, uid: &str) -> bool {
        self.by_uid.get(uid).is_some_and(|set| set.ends)
    }

    /// Whether the set of this uid is terminating or deleted, and its policy deletes its claims with it, now
    /// or since `since`.
    pub fn takes_claims_along(&self, uid: &str, since: Timestamp) -> bool {
        let is_left = |set: &History| set.orphans && set.orphans_after_all.is_none_or(|from| from < since);
        self.by_uid
            .get(uid)
            .is_some_and(|set| set.ends && !is_left(set) && set.said_lately(since, |said| said.wants.deleted))
    }

    /// Whether a set of this namespace has scaled this pod away with a policy that deletes its claims, now or
    /// since `since`.
    pub fn gives_up(&self, namespace: &str, pod: &str, since: Timestamp) -> bool {
        let Some((set, ordinal)) = ordinal(pod) else { return false };
        let sets = self.by_uid.values().filter(|it| it.namespace == namespace && it.name == set);
        let leaves = |said: &Said| said.wants.scaled && !said.wants.ordinals.contains(&ordinal);
        sets.into_iter().any(|set| set.said_lately(since, leaves))
    }
}

/// Whether its dependents are to be orphaned.
fn has_orphans(set: &Value) -> bool {
    set.items(&["metadata", "finalizers"]).iter().any(|it| it == "orphan")
}

/// The set and ordinal in a pod's name.
pub fn ordinal(pod: &str) -> Option<(&str, i64)> {
    let (set, ordinal) = pod.rsplit_once('-')?;
    Some((set, ordinal.parse().ok()?))
}
