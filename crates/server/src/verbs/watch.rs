//! The verb watch: delivers every event after a revision exactly once, in order.
//!
//! A watcher holds its position in the store's log, one chunk, and a few events that were read but not sent. So a
//! slow client delays only itself. If it falls behind the start of the log, it gets 410 and the watch ends.

use super::initial_list::{InitialList, count_within_limit};
use super::read::Selection;
use super::{Answer, Call, store_status, too_large};
use crate::body::Body;
use crate::limits::{Permit, RequestClass, needs_room, with_room};
use crate::negotiate::Form;
use crate::render;
use crate::request::ListOptions;
use bytes::Bytes;
use futures::{FutureExt, stream};
use object::access::Access;
use object::json;
use object::{Kind, Status, Value};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use store::{Event, Next, Record, Watcher};
use tokio::time::Instant;

/// Duration of a watch without timeoutSeconds.
const LENGTH_DEFAULT: Duration = Duration::from_secs(45 * 60);
/// Limit of timeoutSeconds, so that the deadline does not overflow the clock.
const LENGTH_MAX: Duration = Duration::from_secs(24 * 3600);
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Limit of events that are read at once. Fewer are kept if they are large.
const EVENTS_PER_READ: usize = 128;
/// A chunk ends with the line that reaches this size. It is built when the client is ready for it, so only one chunk
/// waits for a slow client.
const CHUNK_BYTES: usize = 64 * 1024;

pub fn watch(call: &Call<'_>) -> Result<Answer, Status> {
    let options = ListOptions::for_watch(&call.query)?;
    let selection = Selection::new(&call.kind, &options, &call.target.name)?;
    let form = call.form()?;
    if call.server.stopping.is_cancelled() {
        // A watch that starts while the server stops would end at once and be opened again and again.
        return Err(Status::new(503, "ServiceUnavailable", "the server is stopping"));
    }
    let store = &call.server.store;
    if let Some(version) = options.resource_version
        && version > store.revision()
    {
        return Err(too_large(version, store.revision()));
    }
    let asked = options.resource_version.unwrap_or(0);
    let wants_state = options.send_initial_events.unwrap_or(asked == 0);
    let initial_list = if wants_state { Some(InitialList::read(call, &options, &selection)?) } else { None };
    let after = match &initial_list {
        Some(initial_list) => initial_list.revision,
        None if asked == 0 => store.revision(),
        None => asked,
    };
    let prefix = crate::object_store::prefix(&call.kind, &call.target.namespace);
    let again = if initial_list.is_none() {
        events_of_start_revision(&**store, &call.kind, &prefix, after)
    } else {
        Vec::new()
    };
    let asked_s = options.timeout_seconds.filter(|seconds| *seconds > 0);
    let length = asked_s.map_or(LENGTH_DEFAULT, |seconds| Duration::from_secs(seconds).min(LENGTH_MAX));
    let start = Instant::now();
    let stream = Stream {
        definition: Definition::of(call),
        frames: Frames { kind: call.kind.clone(), selection, form, columns_sent: false, env: call.server.env.clone() },
        initial_list,
        marks_the_end: options.send_initial_events == Some(true) && options.bookmarks,
        events: again.into(),
        source: Source::follow(&**store, &prefix, after),
        store: store.clone(),
        prefix,
        deadline: start + length,
        end: None,
        bookmark_at: options.bookmarks.then_some(start + BOOKMARK_EVERY),
        told: after,
        stopping: call.server.stopping.clone(),
        class: call.class.clone(),
        room: None,
        large: None,
        held_back: None,
        _open: call.server.metrics.watch_opened(&call.kind),
    };
    let body = Body::Stream(Box::pin(stream::unfold(stream, |mut stream| async move {
        let chunk = stream.next().await?;
        Some((chunk, stream))
    })));
    Ok(Answer::of(200, body))
}

/// The events of the revision at which a watch starts, if there are several: a client that was disconnected between
/// them has this resourceVersion from the first one, and would miss the others. An event that the client already has
/// does no harm.
///
/// Only quotas can share a revision: a write updates all quotas of its namespace in one transaction.
fn events_of_start_revision(store: &dyn store::Store, kind: &Kind, prefix: &str, after: u64) -> Vec<Arc<Event>> {
    if kind.storage != "core/resourcequotas" || after == 0 {
        return Vec::new();
    }
    let mut events = match store.watch(prefix, after - 1) {
        Ok(mut watcher) => match watcher.next(1).now_or_never() {
            Some(Next::Events { events, .. }) => events,
            _ => Vec::new(),
        },
        // The events of the oldest revision are compacted, but their results are still stored.
        Err(_) => {
            let page = store.list(store::Range { prefix, ..store::Range::default() });
            let records = page.map(|page| page.records).unwrap_or_default();
            records.into_iter().map(|record| Arc::new(unchanged(record))).collect()
        }
    };
    events.retain(|event| event.revision == after);
    if events.len() > 1 { events } else { Vec::new() }
}

/// An event that delivers the current state of a record.
fn unchanged(record: Arc<Record>) -> Event {
    let (revision, key) = (record.modified, record.key.clone());
    Event { revision, key, current: Some(record.clone()), previous: Some(record), last: None }
}

enum Source {
    Following(Box<dyn Watcher>),
    /// The start revision was compacted: the stream sends the error and ends.
    Refused(Status),
    Ended,
}

impl Source {
    fn follow(store: &dyn store::Store, prefix: &str, after: u64) -> Source {
        match store.watch(prefix, after) {
            Ok(watcher) => Source::Following(watcher),
            Err(error) => Source::Refused(refusal(&error)),
        }
    }
}

struct Stream {
    store: Arc<dyn store::Store>,
    prefix: String,
    definition: Option<Definition>,
    frames: Frames,
    /// The rest of the initial list.
    initial_list: Option<InitialList>,
    /// Whether a bookmark marks the end of the initial list.
    marks_the_end: bool,
    /// Events that were read but not sent.
    events: VecDeque<Arc<Event>>,
    source: Source,
    deadline: Instant,
    /// The store's revision at the deadline.
    end: Option<u64>,
    bookmark_at: Option<Instant>,
    /// The newest revision that was sent to the client.
    told: u64,
    stopping: tokio_util::sync::CancellationToken,
    /// The class whose response memory the chunks use, and the memory reserved for the next chunk.
    class: RequestClass,
    room: Option<Permit>,
    /// Size of a large object that waits for memory, and the object if it belongs to the initial list.
    large: Option<usize>,
    held_back: Option<Arc<Record>>,
    _open: crate::metrics::OpenWatch,
}

impl Stream {
    /// The next chunk; `None` ends the watch.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.stopping.is_cancelled() {
                return None;
            }
            let chunk = self.initial_chunk().or_else(|| self.event_chunk());
            // The memory was reserved for this chunk. A chunk that turns out small, such as rows of a table, does not
            // need it.
            let room = self.room.take();
            if let Some(chunk) = chunk {
                return Some(match room {
                    Some(room) if needs_room(chunk.len()) => with_room(chunk, room),
                    _ => chunk,
                });
            }
            if let Some(bytes) = self.large.take() {
                self.room = tokio::select! {
                    biased;
                    () = self.stopping.cancelled() => return None,
                    // Memory is preferred to the deadline: events before the deadline are delivered if there is
                    // memory for them.
                    room = self.class.response_room(bytes) => Some(room),
                    () = tokio::time::sleep_until(self.deadline) => {
                        self.fail(no_room());
                        None
                    }
                };
                continue;
            }
            let watcher = match &mut self.source {
                Source::Following(watcher) => watcher,
                Source::Refused(status) => {
                    let mut out = Vec::new();
                    error_frame(status, &mut out);
                    self.source = Source::Ended;
                    return Some(out.into());
                }
                Source::Ended => return None,
            };
            let until = self.bookmark_at.map_or(self.deadline, |at| at.min(self.deadline));
            // Check the deadline first, so that a watch with constant events ends too. But deliver all events up to
            // the deadline, because their absence would mean that there were none.
            let rest = if Instant::now() < self.deadline {
                None
            } else {
                let end = *self.end.get_or_insert_with(|| self.store.revision());
                if watcher.position() < end { watcher.next(EVENTS_PER_READ).now_or_never() } else { None }
            };
            let next = match rest {
                Some(next) => next,
                None => tokio::select! {
                    biased;
                    () = self.stopping.cancelled() => return None,
                    () = tokio::time::sleep_until(until) => {
                        let position = watcher.position();
                        if let Some(chunk) = self.pause(position) {
                            return Some(chunk);
                        }
                        continue;
                    }
                    next = watcher.next(EVENTS_PER_READ) => next,
                },
            };
            match next {
                // The schema changed. The client must start a new watch at the last revision.
                Next::Events { .. } if self.definition.as_mut().is_some_and(Definition::changed) => return None,
                Next::Events { events, .. } => self.take(events),
                Next::Compacted { oldest } => {
                    self.source = Source::Refused(too_old(self.told, oldest));
                }
                Next::Closed => return None,
            }
        }
    }

    /// Keeps events until they are sent. Events beyond the limit are read again later.
    fn take(&mut self, mut events: Vec<Arc<Event>>) {
        let count = count_within_limit(events.iter().map(|event| size(event)));
        // Keep the events of one transaction together.
        let up_to = events.get(count - 1).map_or(0, |event| event.revision);
        let count = events.partition_point(|event| event.revision <= up_to);
        if count < events.len() {
            events.truncate(count);
            self.source = Source::follow(&*self.store, &self.prefix, up_to);
        }
        self.events = events.into();
    }

    /// Whether an object of this size fits into the current chunk. A large object needs reserved memory and starts a
    /// chunk.
    fn fits(&mut self, bytes: usize, out: &[u8]) -> bool {
        if !needs_room(bytes) || self.room.is_some() {
            return true;
        }
        if out.is_empty() {
            self.large = Some(bytes);
        }
        false
    }

    /// A chunk of the initial list.
    fn initial_chunk(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        while let Some(initial_list) = &mut self.initial_list
            && out.len() < CHUNK_BYTES
        {
            let revision = initial_list.revision;
            let next = match self.held_back.take() {
                Some(record) => Ok(Some(record)),
                None => initial_list.next(&*self.store, &self.prefix, &self.frames.selection),
            };
            if let Ok(Some(record)) = &next
                && !self.fits(record.value.len(), &out)
            {
                self.held_back = Some(record.clone());
                break;
            }
            let framed = next.map_err(|error| refusal(&error)).and_then(|record| match record {
                Some(record) => self.frames.frame("ADDED", &record.value, &mut out).map(|()| true),
                None => Ok(false),
            });
            match framed {
                Ok(true) => continue,
                Ok(false) if self.marks_the_end => self.frames.bookmark(revision, true, &mut out),
                Ok(false) => {}
                Err(status) => self.fail(status),
            }
            self.initial_list = None;
        }
        (!out.is_empty()).then(|| Bytes::from(out))
    }

    /// A chunk of events.
    fn event_chunk(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        while out.len() < CHUNK_BYTES
            && let Some(event) = self.events.pop_front()
        {
            let Some((what, record)) = self.frames.seen(&event) else { continue };
            if !self.fits(record.value.len(), &out) {
                self.events.push_front(event);
                break;
            }
            match self.frames.event(what, record, &event, &mut out) {
                Ok(()) => self.told = event.revision,
                Err(status) => self.fail(status),
            }
        }
        (!out.is_empty()).then(|| Bytes::from(out))
    }

    /// Sends the error in the next chunk and ends the watch.
    fn fail(&mut self, status: Status) {
        (self.initial_list, self.held_back) = (None, None);
        self.events.clear();
        self.source = Source::Refused(status);
    }

    /// Sends a bookmark or ends the watch, if it is time.
    fn pause(&mut self, position: u64) -> Option<Bytes> {
        let now = Instant::now();
        // The client's position was compacted: send 410 without a bookmark, because it could not resume there.
        let oldest = self.store.oldest();
        let behind = position < oldest;
        if now >= self.deadline {
            self.source = if behind { Source::Refused(too_old(self.told, oldest)) } else { Source::Ended };
        }
        let due = self.bookmark_at.is_some() && position > self.told && !behind;
        self.bookmark_at = self.bookmark_at.map(|_| now + BOOKMARK_EVERY);
        if !due {
            return None;
        }
        self.told = position;
        let mut out = Vec::new();
        self.frames.bookmark(position, false, &mut out);
        Some(out.into())
    }
}

/// The definition of a custom kind at the start of the watch.
struct Definition {
    store: Arc<dyn store::Store>,
    key: String,
    seen: u64,
    spec: Value,
}

impl Definition {
    fn of(call: &Call<'_>) -> Option<Definition> {
        if !call.kind.custom {
            return None;
        }
        let (store, key) = (call.server.store.clone(), crate::crd_lifecycle::key_of(&call.kind));
        let record = store.get(&key)?;
        let spec = spec_of(&record);
        Some(Definition { seen: record.modified, spec, store, key })
    }

    /// Whether the spec of the kind changed. A definition that is terminating with its objects does not count as
    /// changed.
    fn changed(&mut self) -> bool {
        let Some(record) = self.store.get(&self.key).filter(|record| record.modified != self.seen) else {
            return false;
        };
        self.seen = record.modified;
        spec_of(&record) != self.spec
    }
}

fn spec_of(definition: &Record) -> Value {
    crate::object_store::parse(definition).ok().and_then(|mut definition| definition.cut(&["spec"])).unwrap_or_default()
}

/// Encodes the lines of a watch.
struct Frames {
    kind: Arc<Kind>,
    selection: Selection,
    form: Form,
    columns_sent: bool,
    env: crate::env::Env,
}

impl Frames {
    /// The event type for this selection and the version to send; `None` if the selection has no event.
    fn seen<'e>(&self, event: &'e Event) -> Option<(&'static str, &'e Record)> {
        let taken = |record: &'e Option<Arc<Record>>| record.as_deref().filter(|record| self.selection.takes(record));
        match (taken(&event.previous), taken(&event.current)) {
            (None, Some(current)) => Some(("ADDED", current)),
            (Some(_), Some(current)) => Some(("MODIFIED", current)),
            (Some(previous), None) => Some(("DELETED", previous)),
            (None, None) => None,
        }
    }

    /// Writes the line of an event.
    fn event(&mut self, what: &str, record: &Record, event: &Event, out: &mut Vec<u8>) -> Result<(), Status> {
        match what {
            "DELETED" => self.frame(what, &self.last_state(event, record)?, out),
            _ => self.frame(what, &record.value, out),
        }
    }

    /// The last state of an object that left the selection, with the revision of the event.
    fn last_state(&self, event: &Event, previous: &Record) -> Result<Bytes, Status> {
        if let (None, Some(last)) = (&event.current, &event.last) {
            return Ok(last.clone());
        }
        let mut object = crate::object_store::parse(previous)?;
        object.put(&["metadata", "resourceVersion"], event.revision.to_string());
        Ok(render::to_bytes(&object))
    }

    fn frame(&mut self, what: &str, bytes: &Bytes, out: &mut Vec<u8>) -> Result<(), Status> {
        let now = self.env.clock.now();
        match self.form {
            Form::Table(rows) => {
                let object = render::served(&self.kind, bytes)?;
                let version = json!({"resourceVersion": object.text(&["metadata", "resourceVersion"])});
                let with_columns = !std::mem::replace(&mut self.columns_sent, true);
                let table = render::table(&self.kind, rows, &[object], version, with_columns, now);
                plain_frame(what, &render::to_bytes(&table), out);
            }
            form => plain_frame(what, &render::one(&self.kind, form, bytes, now)?, out),
        }
        Ok(())
    }

    /// A bookmark line.
    fn bookmark(&self, revision: u64, initial_events_end: bool, out: &mut Vec<u8>) {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object: Value = match self.form {
            Form::Object => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata})
            }
            Form::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Form::Table(_) => {
                let row =
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": revision.to_string()}, "columnDefinitions": [],
                    "rows": [{"cells": [], "object": row}]})
            }
        };
        plain_frame("BOOKMARK", &render::to_bytes(&object), out);
    }
}

fn plain_frame(what: &str, object: &[u8], out: &mut Vec<u8>) {
    let pieces: [&[u8]; 5] = [b"{\"type\":\"", what.as_bytes(), b"\",\"object\":", object.trim_ascii_end(), b"}\n"];
    // Usually this is the only line, so reserve exactly its size.
    out.reserve(pieces.iter().map(|piece| piece.len()).sum());
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
}

/// Memory that a kept event uses.
fn size(event: &Event) -> usize {
    let records = [&event.current, &event.previous];
    let records = records.iter().filter_map(|record| record.as_ref()).map(|record| record.value.len());
    records.sum::<usize>() + event.last.as_ref().map_or(0, Bytes::len)
}

/// The error of a watch that cannot start or continue at a revision.
fn refusal(error: &store::Error) -> Status {
    match error {
        store::Error::Compacted { asked, oldest } => too_old(*asked, *oldest),
        error => store_status(error),
    }
}

fn too_old(asked: u64, oldest: u64) -> Status {
    Status::expired(format!("too old resource version: {asked} ({oldest})"))
}

/// The error of a watch that ended before it sent everything. After 429 clients resume at their position.
fn no_room() -> Status {
    Status::too_many_requests("the watch ended before there was memory for a large object in its events", 1)
}

fn error_frame(status: &Status, out: &mut Vec<u8>) {
    plain_frame("ERROR", &render::to_bytes(&status.to_value()), out);
}
