//! Limits of concurrent requests and of memory. Beyond them the server responds with 429 and Retry-After.
//!
//! Requests are divided into three priority levels by their user. Each level has its own pools, so no level can use
//! the resources of another. Within a level each user has a share ([`pool`]).

mod pool;

pub use pool::{Flow, Permit, Pool};

use crate::attributes::User;
use crate::connections::Connections;
use crate::request::{ResourceRequest, Verb};
use bytes::Bytes;
use object::{Kind, Status};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

/// Default limit of concurrent write requests. Each holds its body and waits for a disk sync.
pub const WRITES_MAX: usize = 1024;
/// Default limit of concurrent read requests.
pub const READS_MAX: usize = 1024;
/// Open watches of one priority level. Each has a position in the log and a stream.
const WATCHES_MAX: usize = 20_000;
/// Requests whose body is being received, per allowed write. A write is counted as one when its body is complete, so
/// clients that send no body do not block others.
const ARRIVING_PER_WRITE: usize = 4;
/// Lease requests whose body is being received.
const ARRIVING_LEASES_MAX: usize = 1024;

/// Connections of ordinary users. Many clients open one for each watch, and more for other requests.
const ORDINARY_CONNECTIONS_MAX: usize = 25_000;
const SYSTEM_CONNECTIONS_MAX: usize = 5_000;
const EXEMPT_CONNECTIONS_MAX: usize = 10_000;
/// Connections whose client has not authenticated yet.
const UNAUTHENTICATED_CONNECTIONS_MAX: usize = 5_000;
const CONNECTIONS_MAX: usize =
    ORDINARY_CONNECTIONS_MAX + SYSTEM_CONNECTIONS_MAX + EXEMPT_CONNECTIONS_MAX + UNAUTHENTICATED_CONNECTIONS_MAX;
/// File descriptors reserved for the store, etcd, CSI drivers and volumes. Connections of clients do not use them. The
/// reserve is at most a quarter of all descriptors.
const RESERVED_FILES: usize = 256;

/// A response of at least this size is counted until the client has read it, so that unread large lists cannot fill
/// the memory.
const LARGE_RESPONSE_BYTES: usize = 64 * 1024;
/// How long the response to a write waits for memory.
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Memory that the requests of one priority level may hold, in KiB.
struct Memory {
    /// Large responses that clients have not read yet.
    responses: usize,
    /// Additional memory for responses to writes, because a committed write must be reported.
    write_responses: usize,
    /// Request bodies that are being received or handled.
    bodies: usize,
    /// Request bodies of Leases. A separate pool, so that Leases can be renewed under any load.
    lease_bodies: usize,
}

const MIB: usize = 1024;
const ORDINARY_MEMORY: Memory =
    Memory { responses: 512 * MIB, write_responses: 128 * MIB, bodies: 256 * MIB, lease_bodies: 32 * MIB };
const SYSTEM_MEMORY: Memory =
    Memory { responses: 128 * MIB, write_responses: 64 * MIB, bodies: 64 * MIB, lease_bodies: 16 * MIB };
const EXEMPT_MEMORY: Memory =
    Memory { responses: 256 * MIB, write_responses: 64 * MIB, bodies: 128 * MIB, lease_bodies: 16 * MIB };

/// Size limit of request bodies, as upstream.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Size limit of stored objects. An object is read and written as a whole, and the store's history has limited space.
pub const OBJECT_BYTES_MAX: usize = BODY_BYTES_MAX;
/// Additional size for terminating objects: removing a finalizer records a field manager, and must not be refused for
/// that.
pub const OBJECT_BYTES_TO_GO: usize = 64 * 1024;
/// Size limit of the request headers.
pub const HEADER_BYTES_MAX: u32 = 64 * 1024;

/// The pools that the requests of one priority level share.
pub struct PriorityLevel {
    name: &'static str,
    rejected: Family<Rejection, Counter>,
    /// Write requests with a complete body.
    pub writes: Arc<Pool>,
    pub reads: Arc<Pool>,
    pub watches: Arc<Pool>,
    /// Write requests whose body is being received.
    pub arriving: Arc<Pool>,
    pub arriving_leases: Arc<Pool>,
    /// Large responses, in KiB.
    pub responses: Arc<Pool>,
    /// Large responses to writes when `responses` is full, in KiB.
    pub write_responses: Arc<Pool>,
    /// Request bodies, in KiB.
    pub bodies: Arc<Pool>,
    /// Request bodies of leases, in KiB.
    pub lease_bodies: Arc<Pool>,
    /// Connections of authenticated clients.
    pub connections: Arc<Pool>,
}

impl PriorityLevel {
    /// `places`: limits of concurrent writes and reads.
    fn new(
        name: &'static str,
        places: Option<(usize, usize)>,
        connections: usize,
        memory: &Memory,
        rejected: &Family<Rejection, Counter>,
    ) -> Arc<PriorityLevel> {
        const UNLIMITED: usize = usize::MAX;
        let (writes, reads) = places.unwrap_or((UNLIMITED, UNLIMITED));
        let or_unlimited = |count: usize| Pool::new(if places.is_some() { count } else { UNLIMITED });
        Arc::new(PriorityLevel {
            name,
            rejected: rejected.clone(),
            writes: Pool::new(writes),
            reads: Pool::new(reads),
            watches: or_unlimited(WATCHES_MAX),
            arriving: or_unlimited(writes.saturating_mul(ARRIVING_PER_WRITE)),
            arriving_leases: or_unlimited(ARRIVING_LEASES_MAX),
            responses: Pool::new(memory.responses),
            write_responses: Pool::new(memory.write_responses),
            bodies: Pool::new(memory.bodies),
            lease_bodies: Pool::new(memory.lease_bodies),
            connections: Pool::new(connections),
        })
    }
}

/// Why and on which priority level a request was refused with 429.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Rejection {
    priority_level: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InFlight {
    request_kind: &'static str,
}

pub struct Limits {
    /// Connections whose client has not authenticated yet.
    pub connections: Arc<Connections>,
    /// All other users, with unauthenticated requests as one user.
    pub ordinary: Arc<PriorityLevel>,
    /// Nodes, and the service accounts of `kube-system`.
    pub system: Arc<PriorityLevel>,
    /// `system:masters` and the server itself: only their memory is limited.
    pub exempt: Arc<PriorityLevel>,
    anonymous: Flow,
    rejected: Family<Rejection, Counter>,
    in_flight: Family<InFlight, Gauge>,
}

/// The priority level of a request, and the user whose share it uses.
#[derive(Clone)]
pub struct RequestClass {
    level: Arc<PriorityLevel>,
    /// `None` for trusted users, who have no individual shares.
    flow: Option<Flow>,
}

/// Memory reserved for a request body. It grows with the received bytes; an announced length reserves nothing.
pub(crate) struct Room {
    class: Option<(RequestClass, Arc<Pool>)>,
    held: Option<Permit>,
}

impl Room {
    /// For bodies that are already in the memory of this process.
    pub fn unbounded() -> Room {
        Room { class: None, held: None }
    }

    /// Grows the reservation to this number of bytes.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        let Some((class, pool)) = &self.class else { return Ok(()) };
        let held_kib = self.held.as_ref().map_or(0, Permit::count);
        let missing_kib = bytes.div_ceil(1024).saturating_sub(held_kib);
        if missing_kib == 0 {
            return Ok(());
        }
        let Some(held) = &mut self.held else {
            self.held = Some(class.take(pool, missing_kib, "body_memory")?);
            return Ok(());
        };
        if held.grow(missing_kib) { Ok(()) } else { Err(class.reject("body_memory")) }
    }

    /// Attaches the reservation to the body.
    pub fn keep(self, bytes: Bytes) -> Bytes {
        match self.held {
            Some(room) => with_room(bytes, room),
            None => bytes,
        }
    }
}

/// Bytes with memory reserved in a pool. The reservation ends when the last clone is dropped.
struct Held {
    bytes: Bytes,
    _room: Permit,
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
    /// Limits of concurrent writes and reads for each priority level that has such limits.
    pub fn new(writes: usize, reads: usize) -> Limits {
        Limits::with_connections(writes, reads, |max| max)
    }

    /// Reduces the connection limits so that file descriptors remain for the store. `files`: limit of open file
    /// descriptors of this process.
    pub fn with_open_files(self, files: Option<u64>) -> Limits {
        let Some(files) = files else { return self };
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let available = (files - RESERVED_FILES.min(files / 4)).min(CONNECTIONS_MAX);
        let part = |max: usize| (max * available / CONNECTIONS_MAX).max(1);
        Limits::with_connections(self.ordinary.writes.size(), self.ordinary.reads.size(), part)
    }

    /// `part` scales each connection limit.
    fn with_connections(writes: usize, reads: usize, part: impl Fn(usize) -> usize) -> Limits {
        let rejected = Family::default();
        let places = Some((writes, reads));
        let level =
            |name, places, connections, memory| PriorityLevel::new(name, places, part(connections), memory, &rejected);
        Limits {
            connections: Connections::new(part(UNAUTHENTICATED_CONNECTIONS_MAX)),
            ordinary: level("ordinary", places, ORDINARY_CONNECTIONS_MAX, &ORDINARY_MEMORY),
            system: level("system", places, SYSTEM_CONNECTIONS_MAX, &SYSTEM_MEMORY),
            exempt: level("exempt", None, EXEMPT_CONNECTIONS_MAX, &EXEMPT_MEMORY),
            anonymous: Flow::of(&User::anonymous().name),
            rejected,
            in_flight: Family::default(),
        }
    }

    /// Registers the metrics of this module.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "mainstay_requests_rejected",
            "Requests refused with 429 by priority level and exceeded limit",
            self.rejected.clone(),
        );
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests in progress, without watches, by request kind",
            self.in_flight.clone(),
        );
    }

    /// Updates the gauges that are computed on demand.
    pub fn refresh(&self) {
        let levels = [&self.ordinary, &self.system, &self.exempt];
        let set = |request_kind, count: usize| {
            self.in_flight.get_or_create(&InFlight { request_kind }).set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        set("mutating", levels.iter().map(|level| level.writes.in_use()).sum());
        set("readOnly", levels.iter().map(|level| level.reads.in_use()).sum());
    }

    /// The class of a request before its user is known.
    pub fn unauthenticated(&self) -> RequestClass {
        RequestClass { level: self.ordinary.clone(), flow: Some(self.anonymous.clone()) }
    }

    /// The class of a user's requests. `is_local`: the request comes from this process.
    pub fn classify(&self, user: &User, is_local: bool) -> RequestClass {
        let is_in = |group: &str| user.groups.iter().any(|of| of == group);
        if user.is_apiserver() || is_in("system:masters") {
            return RequestClass { level: self.exempt.clone(), flow: None };
        }
        if is_in("system:nodes") || is_in("system:serviceaccounts:kube-system") || is_component(&user.name) {
            // Controllers of this process limit their concurrent requests themselves.
            return RequestClass { level: self.system.clone(), flow: (!is_local).then(|| Flow::of(&user.name)) };
        }
        RequestClass { level: self.ordinary.clone(), flow: Some(Flow::of(&user.name)) }
    }
}

/// Whether the user is an upstream control plane component.
fn is_component(user: &str) -> bool {
    matches!(user, "system:kube-controller-manager" | "system:kube-scheduler")
}

impl RequestClass {
    /// Reserves a slot for a connection of the user. `None` if the user's share is used up.
    pub(crate) fn connection(&self) -> Option<Permit> {
        self.level.connections.try_acquire(self.flow.as_ref(), 1)
    }

    /// Reserves a slot for a complete request until it is dropped. Requests for Leases need none, because a holder
    /// that cannot renew its Lease stops working.
    pub fn enter(&self, target: &ResourceRequest, kind: &Kind) -> Result<Option<Permit>, Status> {
        let Some((pool, reason)) = self.places(target, kind) else { return Ok(None) };
        self.take(pool, 1, reason).map(Some)
    }

    /// Reserves a slot for a write request while its body is received. Refuses it at once if it would be refused
    /// afterwards.
    pub fn receive(&self, target: &ResourceRequest, kind: &Kind) -> Result<Permit, Status> {
        let Some((pool, reason)) = self.places(target, kind) else {
            return self.take(&self.level.arriving_leases, 1, "arriving_bodies");
        };
        if !pool.would_admit(self.flow.as_ref()) {
            return Err(self.reject(reason));
        }
        self.take(&self.level.arriving, 1, "arriving_bodies")
    }

    fn places(&self, target: &ResourceRequest, kind: &Kind) -> Option<(&Arc<Pool>, &'static str)> {
        match target.verb {
            Verb::Watch => Some((&self.level.watches, "watches")),
            _ if is_lease(kind) => None,
            verb if verb.writes() => Some((&self.level.writes, "writes")),
            _ => Some((&self.level.reads, "reads")),
        }
    }

    /// Memory for the body of a request for this kind.
    pub(crate) fn body_room(&self, kind: &Kind) -> Room {
        let pool = if is_lease(kind) { &self.level.lease_bodies } else { &self.level.bodies };
        Room { class: Some((self.clone(), pool.clone())), held: None }
    }

    /// Reserves memory for a large response.
    pub fn hold(&self, bytes: Bytes) -> Result<Bytes, Status> {
        if !needs_room(bytes.len()) {
            return Ok(bytes);
        }
        let pool = &self.level.responses;
        let room = self.take(pool, response_kib(pool, bytes.len()), "response_memory")?;
        Ok(with_room(bytes, room))
    }

    /// Waits for memory for the response to a write. Returns `None` after a timeout.
    pub async fn hold_written(&self, bytes: Bytes) -> Option<Bytes> {
        let pool = &self.level.write_responses;
        let room = pool.acquire(self.flow.as_ref(), response_kib(pool, bytes.len()));
        Some(with_room(bytes, tokio::time::timeout(RESPONSE_WAIT_MAX, room).await.ok()?))
    }

    /// Waits for memory for a response of this size.
    pub(crate) async fn response_room(&self, bytes: usize) -> Permit {
        let pool = &self.level.responses;
        pool.acquire(self.flow.as_ref(), response_kib(pool, bytes)).await
    }

    fn take(&self, pool: &Arc<Pool>, count: usize, reason: &'static str) -> Result<Permit, Status> {
        pool.try_acquire(self.flow.as_ref(), count).ok_or_else(|| self.reject(reason))
    }

    fn reject(&self, reason: &'static str) -> Status {
        self.level.rejected.get_or_create(&Rejection { priority_level: self.level.name, reason }).inc();
        Status::too_many_requests("the server has received too many requests and has asked us to try again later", 1)
    }
}

fn is_lease(kind: &Kind) -> bool {
    kind.plural == "leases" && kind.group == "coordination.k8s.io"
}

/// Whether a response of this size is counted.
pub(crate) fn needs_room(bytes: usize) -> bool {
    bytes >= LARGE_RESPONSE_BYTES
}

/// Attaches a reservation to the bytes of a response.
pub(crate) fn with_room(bytes: Bytes, room: Permit) -> Bytes {
    Bytes::from_owner(Held { bytes, _room: room })
}

/// Counted size of a response. The largest ones count less than their size, so that part of the pool always remains
/// for other users.
fn response_kib(pool: &Pool, bytes: usize) -> usize {
    (bytes / 1024).min(pool.size() / 4 * 3)
}
