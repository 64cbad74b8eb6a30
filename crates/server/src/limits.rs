//! How much the server takes on at once. Beyond that it says 429 with Retry-After, instead of growing without end.

use crate::request::{ResourceRequest, Verb};
use object::{Kind, Status};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests that change something, at once. Each holds its body and waits for a disk sync.
const WRITES_MAX: usize = 1024;
/// Requests that read, at once.
const READS_MAX: usize = 1024;
/// Open watches; each holds a position and a connection's stream.
const WATCHES_MAX: usize = 20_000;

/// The largest request body, as upstream's.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// The largest set of request headers.
pub const HEADER_BYTES_MAX: u32 = 64 * 1024;

/// The places that are free.
pub struct Limits {
    pub writes: Arc<Semaphore>,
    pub reads: Arc<Semaphore>,
    pub watches: Arc<Semaphore>,
}

impl Default for Limits {
    fn default() -> Limits {
        let places = |count| Arc::new(Semaphore::new(count));
        Limits { writes: places(WRITES_MAX), reads: places(READS_MAX), watches: places(WATCHES_MAX) }
    }
}

impl Limits {
    /// A place for this request, given back when it is dropped. Leases always find one: who renews them is still alive.
    pub fn enter(&self, target: &ResourceRequest, kind: &Kind) -> Result<Option<OwnedSemaphorePermit>, Status> {
        if kind.plural == "leases" && kind.group == "coordination.k8s.io" && target.verb != Verb::Watch {
            return Ok(None);
        }
        let places = match target.verb {
            Verb::Watch => &self.watches,
            verb if verb.writes() => &self.writes,
            _ => &self.reads,
        };
        places.clone().try_acquire_owned().map(Some).map_err(|_| {
            Status::too_many_requests(
                "the server has received too many requests and has asked us to try again later",
                1,
            )
        })
    }
}
