//! How much the server takes on at once. Beyond that it answers 429 with Retry-After instead of growing without bound.
//!
//! Requests are divided into three priority levels by their user. Each level has pools of its own, so no level can use up what another
//! needs. Within a level each user has a share (`pool`).

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

/// Requests that change something, at once, unless told otherwise. Each holds its body and waits for a disk sync.
pub const WRITES_MAX: usize = 1024;
/// Requests that read, at once, unless told otherwise.
pub const READS_MAX: usize = 1024;
/// Open watches of one priority level; each holds a position and a connection's stream.
const WATCHES_MAX: usize = 20_000;
/// Requests whose body is still being received, for each request that may write at once. A write takes its place when its body is complete,
/// so a client that sends no body keeps no other request out.
const ARRIVING_PER_WRITE: usize = 4;
/// Lease requests whose body is still being received.
const ARRIVING_LEASES_MAX: usize = 1024;

/// Connections of ordinary users. Many clients open one for each watch, and some for other requests.
const ORDINARY_CONNECTIONS_MAX: usize = 25_000;
const SYSTEM_CONNECTIONS_MAX: usize = 5_000;
const EXEMPT_CONNECTIONS_MAX: usize = 10_000;
/// Connections whose client has not authenticated yet.
const UNAUTHENTICATED_CONNECTIONS_MAX: usize = 5_000;
const CONNECTIONS_MAX: usize =
    ORDINARY_CONNECTIONS_MAX + SYSTEM_CONNECTIONS_MAX + EXEMPT_CONNECTIONS_MAX + UNAUTHENTICATED_CONNECTIONS_MAX;
/// File descriptors for all that is not a connection of a client: the store, etcd, CSI drivers, volumes. At most a quarter of all.
const RESERVED_FILES: usize = 256;

/// A response of this size is counted until the client has read it: requests for large lists that are not read must not fill the memory.
const LARGE_RESPONSE_BYTES: usize = 64 * 1024;
/// The response to a write waits this long for memory.
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Memory that the requests of one priority level may hold, in KiB.
struct Memory {
    /// Large responses that clients have not read yet.
    responses: usize,
    /// More of the same for responses to writes: a write that was carried out must be able to say so.
    write_responses: usize,
    /// Request bodies that are being received or worked on.
    bodies: usize,
    /// The same for leases, so that they are renewed whatever else is sent.
    lease_bodies: usize,
}

const MIB: usize = 1024;
const ORDINARY_MEMORY: Memory =
    Memory { responses: 512 * MIB, write_responses: 128 * MIB, bodies: 256 * MIB, lease_bodies: 32 * MIB };
const SYSTEM_MEMORY: Memory =
    Memory { responses: 128 * MIB, write_responses: 64 * MIB, bodies: 64 * MIB, lease_bodies: 16 * MIB };
const EXEMPT_MEMORY: Memory =
    Memory { responses: 256 * MIB, write_responses: 64 * MIB, bodies: 128 * MIB, lease_bodies: 16 * MIB };

/// The largest request body, as upstream's.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// The largest object, as it is stored. It is read and written as a whole, and the store's past has room for only so many versions.
pub const OBJECT_BYTES_MAX: usize = BODY_BYTES_MAX;
/// One that is on its way out may take this much more: whoever lets go of it leaves a trace, and must not be refused for that.
pub const OBJECT_BYTES_TO_GO: usize = 64 * 1024;
/// The largest set of request headers.
pub const HEADER_BYTES_MAX: u32 = 64 * 1024;

/// What the requests of one priority level share.
pub struct PriorityLevel {
    name: &'static str,
    rejected: Family<Rejection, Counter>,
    /// Requests that write, from the moment their body is complete.
    pub writes: Arc<Pool>,
    pub reads: Arc<Pool>,
    pub watches: Arc<Pool>,
    /// Requests that write and whose body is still being received.
    pub arriving: Arc<Pool>,
    pub arriving_leases: Arc<Pool>,
    /// Large responses, in KiB.
    pub responses: Arc<Pool>,
    /// Large responses to writes where `responses` is full, in KiB.
    pub write_responses: Arc<Pool>,
    /// Request bodies, in KiB.
    pub bodies: Arc<Pool>,
    /// Request bodies of leases, in KiB.
    pub lease_bodies: Arc<Pool>,
    /// Connections whose client has authenticated.
    pub connections: Arc<Pool>,
}

impl PriorityLevel {
    /// `places`: how many requests may write and how many may read at once.
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

/// Why a request was refused with 429, and of which priority level it was.
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
    /// Everybody else, unauthenticated requests (as one user) included.
    pub ordinary: Arc<PriorityLevel>,
    /// Nodes, and the service accounts of `kube-system`.
    pub system: Arc<PriorityLevel>,
    /// `system:masters` and the server itself: bounded in memory only.
    pub exempt: Arc<PriorityLevel>,
    anonymous: Flow,
    rejected: Family<Rejection, Counter>,
    in_flight: Family<InFlight, Gauge>,
}

/// The priority level of a request, and the user that it is counted for.
#[derive(Clone)]
pub struct RequestClass {
    level: Arc<PriorityLevel>,
    /// `None` for users that the server trusts not to crowd each other out.
    flow: Option<Flow>,
}

/// The memory that a request body takes. It grows with what was received: an announced length takes none.
pub(crate) struct Room {
    class: Option<(RequestClass, Arc<Pool>)>,
    held: Option<Permit>,
}

impl Room {
    /// For bodies that are in this process already.
    pub fn unbounded() -> Room {
        Room { class: None, held: None }
    }

    /// Makes it enough for this many bytes.
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

    /// Gives the memory to the body.
    pub fn keep(self, bytes: Bytes) -> Bytes {
        match self.held {
            Some(room) => with_room(bytes, room),
            None => bytes,
        }
    }
}

/// Bytes and their share of a pool, which is given back when the last of them is dropped.
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
    /// So many requests that write and so many that read at once, for each priority level that has a bound on them.
    pub fn new(writes: usize, reads: usize) -> Limits {
        Limits::with_connections(writes, reads, |max| max)
    }

    /// Divides the connections so that they leave file descriptors for the store. `files`: how many descriptors this process may open.
    pub fn with_open_files(self, files: Option<u64>) -> Limits {
        let Some(files) = files else { return self };
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let available = (files - RESERVED_FILES.min(files / 4)).min(CONNECTIONS_MAX);
        let part = |max: usize| (max * available / CONNECTIONS_MAX).max(1);
        Limits::with_connections(self.ordinary.writes.size(), self.ordinary.reads.size(), part)
    }

    /// `part`: how many of the connections there are places for.
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

    /// Adds the figures of this module to the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "mainstay_requests_rejected",
            "Requests refused with 429 by priority level and by what there was too much of",
            self.rejected.clone(),
        );
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests that are being worked on, watches excepted, by request kind",
            self.in_flight.clone(),
        );
    }

    /// Brings the figures up to date that are not counted as they change.
    pub fn refresh(&self) {
        let levels = [&self.ordinary, &self.system, &self.exempt];
        let set = |request_kind, count: usize| {
            self.in_flight.get_or_create(&InFlight { request_kind }).set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        set("mutating", levels.iter().map(|level| level.writes.in_use()).sum());
        set("readOnly", levels.iter().map(|level| level.reads.in_use()).sum());
    }

    /// The class of a request whose user is not known.
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
            // Controllers of this process bound what they do at once themselves.
            return RequestClass { level: self.system.clone(), flow: (!is_local).then(|| Flow::of(&user.name)) };
        }
        RequestClass { level: self.ordinary.clone(), flow: Some(Flow::of(&user.name)) }
    }
}

/// Upstream's control plane, where it runs against this server.
fn is_component(user: &str) -> bool {
    matches!(user, "system:kube-controller-manager" | "system:kube-scheduler")
}

impl RequestClass {
    /// A place for a connection of the user; `None` where the user has its share already.
    pub(crate) fn connection(&self) -> Option<Permit> {
        self.level.connections.try_acquire(self.flow.as_ref(), 1)
    }

    /// A place for a request that is complete, given back when it is dropped. Requests for leases need none: a holder that cannot renew its
    /// lease stops working.
    pub fn enter(&self, target: &ResourceRequest, kind: &Kind) -> Result<Option<Permit>, Status> {
        let Some((pool, reason)) = self.places(target, kind) else { return Ok(None) };
        self.take(pool, 1, reason).map(Some)
    }

    /// A place for a request that writes while its body is received. It is refused at once where it would be refused afterwards.
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

    /// The memory for the body of a request for this kind.
    pub(crate) fn body_room(&self, kind: &Kind) -> Room {
        let pool = if is_lease(kind) { &self.level.lease_bodies } else { &self.level.bodies };
        Room { class: Some((self.clone(), pool.clone())), held: None }
    }

    /// The response, counted where it is large.
    pub fn hold(&self, bytes: Bytes) -> Result<Bytes, Status> {
        if !needs_room(bytes.len()) {
            return Ok(bytes);
        }
        let pool = &self.level.responses;
        let room = self.take(pool, response_kib(pool, bytes.len()), "response_memory")?;
        Ok(with_room(bytes, room))
    }

    /// The response to a write, in memory that is kept for those. `None` when there is none for a long time.
    pub async fn hold_written(&self, bytes: Bytes) -> Option<Bytes> {
        let pool = &self.level.write_responses;
        let room = pool.acquire(self.flow.as_ref(), response_kib(pool, bytes.len()));
        Some(with_room(bytes, tokio::time::timeout(RESPONSE_WAIT_MAX, room).await.ok()?))
    }

    /// Waits for memory for a response of this many bytes.
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

/// Whether a response of this many bytes is counted.
pub(crate) fn needs_room(bytes: usize) -> bool {
    bytes >= LARGE_RESPONSE_BYTES
}

/// Bytes of a response that keep their share.
pub(crate) fn with_room(bytes: Bytes, room: Permit) -> Bytes {
    Bytes::from_owner(Held { bytes, _room: room })
}

/// What a response counts for. The largest ones count less than they are, so that some of the pool is always left for other users.
fn response_kib(pool: &Pool, bytes: usize) -> usize {
    (bytes / 1024).min(pool.size() / 4 * 3)
}
