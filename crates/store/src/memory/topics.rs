//! The watched prefixes: one topic per prefix, shared by all its watchers.
//!
//! A topic queues the events of its prefix while the log holds them. So an event costs one step per watched prefix of
//! its
//! key, independent of the number of watchers. A watcher reads only its own events. A watcher of a prefix without changes never falls behind.

use super::log::Log;
use crate::{Event, Revision};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct Topics {
    by_prefix: BTreeMap<Arc<str>, Topic>,
}

/// Invariant: holds exactly the events of the log after `floor` whose key has the topic's prefix.
pub(super) struct Topic {
    events: VecDeque<Arc<Event>>,
    floor: Revision,
    watchers: usize,
    wake: Arc<Notify>,
}

impl Topics {
    /// Adds a watcher that has seen everything up to `after`. Returns the shared prefix and the notifier of its topic.
    pub fn join(&mut self, prefix: &str, after: Revision, log: &Log) -> (Arc<str>, Arc<Notify>) {
        if !self.by_prefix.contains_key(prefix) {
            self.by_prefix.insert(Arc::from(prefix), Topic::new(prefix, after, log));
        }
        let (prefix, _) = self.by_prefix.get_key_value(prefix).expect("the topic was created above");
        let prefix = Arc::clone(prefix);
        let topic = self.by_prefix.get_mut(&prefix).expect("the topic was created above");
        if after < topic.floor {
            let older = Topic::new(&prefix, after, log);
            topic.events = older.events;
            topic.floor = older.floor;
        }
        topic.watchers += 1;
        let wake = Arc::clone(&topic.wake);
        (prefix, wake)
    }

    pub fn leave(&mut self, prefix: &str) {
        let topic = self.by_prefix.get_mut(prefix).expect("a watched prefix has a topic");
        topic.watchers -= 1;
        if topic.watchers == 0 {
            self.by_prefix.remove(prefix);
        }
    }

    pub fn of(&self, prefix: &str) -> &Topic {
        self.by_prefix.get(prefix).expect("a watched prefix has a topic")
    }

    pub fn push(&mut self, event: &Arc<Event>, woken: &mut Vec<Arc<Notify>>) {
        for length in self.lengths(&event.key) {
            let topic = self.by_prefix.get_mut(&event.key[..length]).expect("lengths returns existing topics");
            topic.events.push_back(Arc::clone(event));
            woken.push(Arc::clone(&topic.wake));
        }
    }

    /// Removes an event that was removed from the log.
    pub fn forget(&mut self, event: &Arc<Event>) {
        for length in self.lengths(&event.key) {
            let topic = self.by_prefix.get_mut(&event.key[..length]).expect("lengths returns existing topics");
            match topic.events.pop_front_if(|first| Arc::ptr_eq(first, event)) {
                Some(_) => topic.floor = event.revision,
                None => assert!(event.revision <= topic.floor, "the topic lacks event {}", event.revision),
            }
        }
    }

    /// Removes all events. Watchers that are behind `revision` get `Compacted`.
    pub fn reset(&mut self, revision: Revision, woken: &mut Vec<Arc<Notify>>) {
        for topic in self.by_prefix.values_mut() {
            topic.events.clear();
            topic.floor = revision;
            woken.push(Arc::clone(&topic.wake));
        }
    }

    pub fn wakes(&self) -> Vec<Arc<Notify>> {
        self.by_prefix.values().map(|topic| Arc::clone(&topic.wake)).collect()
    }

    /// Returns the lengths of the watched prefixes of `key`.
    ///
    /// The greatest watched text that is not greater than `key` either is a prefix of `key`, or shows how much of `key`
    /// the remaining prefixes can share. Each step shortens the search, so the number of steps is about the number of
    /// matches.
    fn lengths(&self, key: &str) -> Vec<usize> {
        let mut found = Vec::new();
        let mut rest = key;
        while let Some((prefix, _)) = self.by_prefix.range::<str, _>(up_to(rest)).next_back() {
            if rest.starts_with(&**prefix) {
                found.push(prefix.len());
                let Some((last, _)) = prefix.char_indices().next_back() else { break };
                rest = &key[..last];
            } else {
                rest = common(rest, prefix);
            }
        }
        found
    }
}

impl Topic {
    fn new(prefix: &str, after: Revision, log: &Log) -> Topic {
        let events = log.after(after).filter(|event| event.key.starts_with(prefix)).cloned().collect();
        Topic { events, floor: after, watchers: 0, wake: Arc::new(Notify::new()) }
    }

    /// The revision up to which events may be missing in this topic.
    pub fn floor(&self) -> Revision {
        self.floor
    }

    pub fn newest(&self) -> Revision {
        self.events.back().map_or(0, |event| event.revision)
    }

    /// Returns the events after `position`, and whether more follow. Returns at most `events_max` events, but never a
    /// part of a revision: a watcher that stopped inside a revision would have no valid position.
    pub fn after(&self, position: Revision, events_max: usize) -> (Vec<Arc<Event>>, bool) {
        if self.newest() <= position {
            return (Vec::new(), false);
        }
        let from = self.events.partition_point(|event| event.revision <= position);
        let mut to = self.events.len().min(from.saturating_add(events_max));
        while to < self.events.len() && self.events[to].revision == self.events[to - 1].revision {
            to += 1;
        }
        (self.events.range(from..to).cloned().collect(), to < self.events.len())
    }
}

fn up_to(text: &str) -> (Bound<&str>, Bound<&str>) {
    (Bound::Unbounded, Bound::Included(text))
}

/// Returns the longest common prefix.
fn common<'a>(one: &'a str, other: &str) -> &'a str {
    let same = one.char_indices().zip(other.chars()).find(|((_, left), right)| left != right);
    match same {
        Some(((at, _), _)) => &one[..at],
        None => &one[..one.len().min(other.len())],
    }
}
