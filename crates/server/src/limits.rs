//! How much the server takes on at once. Beyond that it says 429 with Retry-After, instead of growing without end.

use crate::attributes::User;
use crate::request::{ResourceRequest, Verb};
use bytes::Bytes;
use object::{Kind, Status};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests that change something, at once, unless told otherwise. Each holds its body and waits for a disk sync.
pub const WRITES_MAX: usize = 1024;
/// Requests that read, at once, unless told otherwise.
pub const READS_MAX: usize = 1024;
/// Open watches; each holds a position and a connection's stream.
const WATCHES_MAX: usize = 20_000;

/// Connections. Many clients open one for each watch, and some for other requests.
const CONNECTIONS_MAX: usize = 25_000;

/// Answers of this size are counted until the client has taken them: who asks for much and does not read must not fill the memory.
const LARGE_ANSWER_BYTES: usize = 64 * 1024;
/// All of them together.
const ANSWERS_KIB_MAX: u32 = 512 * 1024;

/// More room for answers to writes, so that these are told what they did whatever others do not read.
const WRITE_ANSWERS_KIB_MAX: usize = 128 * 1024;
/// For so long the answer to a write waits for room.
const ROOM_TIME_MAX: Duration = Duration::from_secs(10);

/// Bodies of requests from elsewhere that are being read or worked on, all together.
const BODIES_KIB_MAX: usize = 256 * 1024;
/// The same for those that need no place: room of their own, so that leases are renewed whatever else is sent.
const BODIES_WITHOUT_PLACE_KIB_MAX: usize = 32 * 1024;

/// The largest request body, as upstream's.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// The largest object, as it is stored. It is read and written as a whole, and the store's past has room for only so many versions.
pub const OBJECT_BYTES_MAX: usize = BODY_BYTES_MAX;
/// One that is on its way out may take this much more: whoever lets go of it leaves a trace, and must not be refused for that.
pub const OBJECT_BYTES_TO_GO: usize = 64 * 1024;
/// The largest set of request headers.
pub const HEADER_BYTES_MAX: u32 = 64 * 1024;

/// The places that are free.
pub struct Limits {
    pub connections: Arc<Semaphore>,
    pub writes: Arc<Semaphore>,
    pub reads: Arc<Semaphore>,
    pub watches: Arc<Semaphore>,
    /// Room for large answers, in KiB.
    pub answers: Arc<Semaphore>,
    /// Room for large answers to writes where there is no other, in KiB.
    pub write_answers: Arc<Semaphore>,
    /// Room for bodies of requests, in KiB.
    pub bodies: Arc<Semaphore>,
    /// Room for bodies of requests that need no place, in KiB.
    pub bodies_without_place: Arc<Semaphore>,
}

/// The room that a body takes, growing with what has come of it: who only announces much takes none.
pub(crate) struct Room {
    from: Option<Arc<Semaphore>>,
    held: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// For bodies that are in this process already.
    pub fn unbounded() -> Room {
        Room { from: None, held: None }
    }

    /// Makes it enough for so many bytes.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        let Some(from) = &self.from else { return Ok(()) };
        let held_kib = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing_kib = bytes.div_ceil(1024).saturating_sub(held_kib);
        let missing_kib = u32::try_from(missing_kib).map_err(|_| too_many_requests())?;
        let more = from.clone().try_acquire_many_owned(missing_kib).map_err(|_| too_many_requests())?;
        match &mut self.held {
            Some(held) => held.merge(more),
            held => *held = Some(more),
        }
        Ok(())
    }

    /// Gives the room to the body.
    pub fn keep(self, bytes: Bytes) -> Bytes {
        match self.held {
            Some(room) => Bytes::from_owner(Held { bytes, _room: room }),
            None => bytes,
        }
    }
}

/// Bytes and their room, which is free again when the last of them is gone.
struct Held {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::new(WRITES_MAX, READS_MAX)
    }
}

impl Limits {
    /// So many requests that write and so many that read at once.
    pub fn new(writes: usize, reads: usize) -> Limits {
        let places = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Limits {
            connections: places(CONNECTIONS_MAX),
            writes: places(writes),
            reads: places(reads),
            watches: places(WATCHES_MAX),
            answers: places(ANSWERS_KIB_MAX as usize),
            write_answers: places(WRITE_ANSWERS_KIB_MAX),
            bodies: places(BODIES_KIB_MAX),
            bodies_without_place: places(BODIES_WITHOUT_PLACE_KIB_MAX),
        }
    }

    /// A place for this request, given back when it is dropped. Leases always find one: who renews them is still alive. So does the server
    /// itself, which could not start otherwise.
    pub fn enter(
        &self,
        user: &User,
        target: &ResourceRequest,
        kind: &Kind,
    ) -> Result<Option<OwnedSemaphorePermit>, Status> {
        let is_lease = kind.plural == "leases" && kind.group == "coordination.k8s.io" && target.verb != Verb::Watch;
        if is_lease || user.is_apiserver() {
            return Ok(None);
        }
        let places = match target.verb {
            Verb::Watch => &self.watches,
            verb if verb.writes() => &self.writes,
            _ => &self.reads,
        };
        places.clone().try_acquire_owned().map(Some).map_err(|_| too_many_requests())
    }

    /// The room for the body of a request that has this place.
    pub(crate) fn body_room(&self, place: Option<&OwnedSemaphorePermit>) -> Room {
        let from = if place.is_some() { &self.bodies } else { &self.bodies_without_place };
        Room { from: Some(from.clone()), held: None }
    }

    /// The answer, counted where it is large. What is larger than all the room there is has to have it alone.
    pub fn hold(&self, bytes: Bytes) -> Result<Bytes, Status> {
        if !needs_room(bytes.len()) {
            return Ok(bytes);
        }
        let room = self.answers.clone().try_acquire_many_owned(kib(bytes.len())).map_err(|_| too_many_requests())?;
        Ok(with_room(bytes, room))
    }

    /// The answer to a write, in room that only those have, when there is some. `None` when there is none for a long time.
    pub async fn hold_written(&self, bytes: Bytes) -> Option<Bytes> {
        let room = room_for(self.write_answers.clone(), bytes.len());
        let room = tokio::time::timeout(ROOM_TIME_MAX, room).await.ok()?;
        Some(with_room(bytes, room?))
    }
}

/// Whether room is needed for so many bytes of an answer.
pub(crate) fn needs_room(bytes: usize) -> bool {
    bytes >= LARGE_ANSWER_BYTES
}

/// Waits for room for so many bytes of an answer.
pub(crate) async fn room_for(answers: Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    answers.acquire_many_owned(kib(bytes)).await.ok()
}

/// Bytes of an answer that keep their room.
pub(crate) fn with_room(bytes: Bytes, room: OwnedSemaphorePermit) -> Bytes {
    Bytes::from_owner(Held { bytes, _room: room })
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes / 1024).unwrap_or(u32::MAX).min(ANSWERS_KIB_MAX)
}

fn too_many_requests() -> Status {
    Status::too_many_requests("the server has received too many requests and has asked us to try again later", 1)
}
