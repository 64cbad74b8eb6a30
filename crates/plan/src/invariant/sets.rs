//! What sets said, and when.

use super::Who;
use crate::statefulset::invariant::Wants;
use jiff::Timestamp;
use object::access::{Access, name, namespace, uid};
use object::{Gates, Value};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Sets {
    /// By uid; sets that are gone stay.
    by_uid: BTreeMap<String, History>,
    /// Which sets stand for one.
    joined: Vec<Vec<(String, String)>>,
}

/// One set's words over time.
pub struct History {
    namespace: String,
    name: String,
    said: Vec<Said>,
    /// Its pods and claims are to outlive it.
    orphans: bool,
    /// Since when, if it was on its way out before, with them: somebody may be about to act on that.
    orphans_after_all: Option<Timestamp>,
    ends: bool,
    /// Replicas that its controller took away while they worked, and that are not back; by ordinal, with the uid that went.
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

    /// What was said last, or still held after this time.
    fn lately(&self, since: Timestamp) -> impl Iterator<Item = &Said> {
        let ends = self.said.iter().skip(1).map(|next| next.from).chain([Timestamp::MAX]);
        self.said.iter().zip(ends).filter(move |(_, end)| since <= *end).map(|(said, _)| said)
    }

    fn said_lately(&self, since: Timestamp, is: impl Fn(&Said) -> bool) -> bool {
        self.lately(since).any(is)
    }

    /// The largest budget that was said lately.
    pub fn budget(&self, since: Timestamp) -> i64 {
        let budget = |wants: &Wants| if wants.recreates { i64::MAX } else { wants.unavailable_max };
        self.lately(since).map(|said| budget(&said.wants)).max().unwrap_or(1)
    }

    /// Whether a replica that is there since then was out of range meanwhile, and not long ago.
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
        // Whoever deletes it once more may change their mind.
        history.orphans = has_orphans(set) || (history.orphans && who != Who::User);
    }

    pub fn gone(&mut self, set: &Value, who: Who<'_>, now: Timestamp) {
        if let Some(history) = self.by_uid.get_mut(uid(set)) {
            history.ends = true;
            history.orphans &= who != Who::User;
            // What it said is said until now.
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

    /// The other sets that stand for the same as this one.
    pub fn twins(&self, namespace: &str, name: &str) -> BTreeSet<(String, String)> {
        let is_it = |(its_namespace, its_name): &(String, String)| its_namespace == namespace && its_name == name;
        let groups = self.joined.iter().filter(|group| group.iter().any(is_it));
        groups.flatten().filter(|it| !is_it(it)).cloned().collect()
    }

    pub fn get_mut(&mut self, uid: &str) -> Option<&mut History> {
        self.by_uid.get_mut(uid)
    }

    /// Whether the set of this uid is on its way out or gone.
    pub fn ends(&self, uid: &str) -> bool {
        self.by_uid.get(uid).is_some_and(|set| set.ends)
    }

    /// Whether the set of this uid is on its way out or gone, and says or said lately that its claims go with it.
    pub fn takes_claims_along(&self, uid: &str, since: Timestamp) -> bool {
        let is_left = |set: &History| set.orphans && set.orphans_after_all.is_none_or(|from| from < since);
        self.by_uid
            .get(uid)
            .is_some_and(|set| set.ends && !is_left(set) && set.said_lately(since, |said| said.wants.deleted))
    }

    /// Whether a set of this namespace said that the claims of this pod go with it: it is out of range, and the policy is so.
    pub fn gives_up(&self, namespace: &str, pod: &str, since: Timestamp) -> bool {
        let Some((set, ordinal)) = ordinal(pod) else { return false };
        let sets = self.by_uid.values().filter(|it| it.namespace == namespace && it.name == set);
        let leaves = |said: &Said| said.wants.scaled && !said.wants.ordinals.contains(&ordinal);
        sets.into_iter().any(|set| set.said_lately(since, leaves))
    }
}

/// It is told to go alone.
fn has_orphans(set: &Value) -> bool {
    set.items(&["metadata", "finalizers"]).iter().any(|it| it == "orphan")
}

/// A pod's set and ordinal, by its name.
pub fn ordinal(pod: &str) -> Option<(&str, i64)> {
    let (set, ordinal) = pod.rsplit_once('-')?;
    Some((set, ordinal.parse().ok()?))
}
