//! The writer's queue: bounded, and drained one batch at a time.

use crate::Operation;
use crate::writer::Request;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Room for one batch that is being written and one that is collected. Further callers wait for room and hold only
/// their own request.
const REQUESTS_MAX: usize = 2 * BATCH_REQUESTS_MAX;
/// Enough requests to share one sync between all concurrent writers, and few enough to answer the first ones soon.
const BATCH_REQUESTS_MAX: usize = 512;
/// Longest wait for more requests to share a sync. A sync on a fast disk takes much less.
const GATHER_MAX: Duration = Duration::from_millis(2);
/// A batch must fit into redb's write buffer, which is small.
const BATCH_BYTES_MAX: usize = 2 << 20;

pub(crate) struct Queue {
    room: Semaphore,
    state: Mutex<QueueState>,
    arrived: Condvar,
}

#[derive(Default)]
struct QueueState {
    requests: VecDeque<Request>,
    /// The writer sleeps until this many requests are queued.
    wanted: usize,
    closed: bool,
}

/// The previous batch: its number of requests, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PreviousBatch {
    pub requests: usize,
    pub took: Duration,
}

#[derive(Debug)]
pub(crate) struct Closed;

impl Default for Queue {
    fn default() -> Queue {
        Queue { room: Semaphore::new(REQUESTS_MAX), state: Mutex::default(), arrived: Condvar::new() }
    }
}

impl Queue {
    /// Waits for room in the queue, then appends the request.
    pub async fn push(&self, request: Request) -> Result<(), Closed> {
        let room = self.room.acquire().await.map_err(|_closed| Closed)?;
        let enough = {
            let mut state = self.lock();
            if state.closed {
                return Err(Closed);
            }
            state.requests.push_back(request);
            state.requests.len() >= state.wanted
        };
        // The permit is returned in `pop`, when the writer takes the request.
        room.forget();
        if enough {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Waits for requests and takes a batch. Returns an empty batch after `patience` without a request, and `None` when
    /// the queue is closed and empty.
    ///
    /// Clients that got an answer in the last batch are likely to send again at once. Waiting for them briefly is
    /// better than starting without them: otherwise the clients split into two halves that take turns, and each request
    /// waits for two syncs.
    pub fn pop(&self, patience: Option<Duration>, last: PreviousBatch) -> Option<Vec<Request>> {
        let state = self.lock();
        let expected = (last.requests + state.requests.len()).min(BATCH_REQUESTS_MAX);
        let mut state = self.wait(state, 1, patience);
        if state.requests.is_empty() {
            return if state.closed { None } else { Some(Vec::new()) };
        }
        if state.requests.len() < expected {
            state = self.wait(state, expected, Some(last.took.min(GATHER_MAX)));
        }
        let batch = state.take_batch();
        drop(state);
        self.room.add_permits(batch.len());
        Some(batch)
    }

    /// Sleeps until `wanted` requests are queued, the queue is closed, or `patience` has passed.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState>,
        wanted: usize,
        patience: Option<Duration>,
    ) -> MutexGuard<'a, QueueState> {
        state.wanted = wanted;
        let lacking = |state: &mut QueueState| state.requests.len() < wanted && !state.closed;
        match patience {
            None => self.arrived.wait_while(state, lacking).unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                let waited = self.arrived.wait_timeout_while(state, patience, lacking);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Refuses new requests. Queued requests are still handed out.
    pub fn close(&self) {
        self.lock().closed = true;
        self.room.close();
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn take_batch(&mut self) -> Vec<Request> {
        let mut bytes = 0;
        let fitting = self.requests.iter().take(BATCH_REQUESTS_MAX).take_while(|request| {
            let fits = bytes < BATCH_BYTES_MAX;
            bytes += match request {
                Request::Txn { txn, .. } => txn.operations.iter().map(size).sum::<usize>(),
                Request::Export(_) => 0,
            };
            fits
        });
        let count = fitting.count();
        self.requests.drain(..count).collect()
    }
}

fn size(operation: &Operation) -> usize {
    match operation {
        Operation::Put { value, .. } => value.len(),
        Operation::Delete { .. } => 0,
    }
}
