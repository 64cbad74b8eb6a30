//! The event log: every event after the oldest readable revision, in order.

use super::Bounds;
use crate::{Event, Revision};
use std::collections::VecDeque;
use std::sync::Arc;

/// Approximate memory of an event beside its values: the event, its record, and its entries in the log and in topics.
const EVENT_OVERHEAD_BYTES: usize = 256;

/// Invariant: holds exactly the events after `oldest`.
pub(super) struct Log {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    oldest: Revision,
}

impl Log {
    pub fn new(oldest: Revision) -> Log {
        Log { events: VecDeque::new(), bytes: 0, oldest }
    }

    pub fn oldest(&self) -> Revision {
        self.oldest
    }

    pub fn exceeds(&self, bounds: Bounds) -> bool {
        !self.events.is_empty() && (self.events.len() > bounds.events_max || self.bytes > bounds.bytes_max)
    }

    pub fn begins_at_or_before(&self, revision: Revision) -> bool {
        self.events.front().is_some_and(|event| event.revision <= revision)
    }

    /// Returns the events after `revision`, which must not be less than `oldest`.
    pub fn after(&self, revision: Revision) -> impl Iterator<Item = &Arc<Event>> {
        assert!(revision >= self.oldest, "events after {revision} are forgotten up to {}", self.oldest);
        self.events.range(self.events.partition_point(|event| event.revision <= revision)..)
    }

    pub fn push(&mut self, event: Arc<Event>) {
        let newest = self.events.back().map_or(self.oldest, |last| last.revision);
        assert!(event.revision >= newest && event.revision > self.oldest, "event {} after {newest}", event.revision);
        self.bytes += bytes(&event);
        self.events.push_back(event);
    }

    /// Removes all events of the oldest revision in the log, and appends them to `forgotten`.
    pub fn pop_oldest(&mut self, forgotten: &mut Vec<Arc<Event>>) {
        let Some(revision) = self.events.front().map(|event| event.revision) else { return };
        assert!(revision > self.oldest, "the log reaches back before its oldest revision");
        while let Some(event) = self.events.pop_front_if(|event| event.revision == revision) {
            self.bytes -= bytes(&event);
            forgotten.push(event);
        }
        self.oldest = revision;
    }

    /// Advances the oldest readable revision past revisions without events in the log.
    pub fn advance(&mut self, oldest: Revision) {
        assert!(!self.begins_at_or_before(oldest), "events up to {oldest} are still here");
        self.oldest = self.oldest.max(oldest);
    }
}

fn bytes(event: &Event) -> usize {
    let previous = event.previous.as_ref().map_or(0, |previous| previous.value.len());
    EVENT_OVERHEAD_BYTES + event.key.len() + previous + event.last.as_ref().map_or(0, |last| last.len())
}
