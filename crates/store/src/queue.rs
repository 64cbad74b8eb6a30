//! The line before the writer: bounded, and emptied a batch at a time.

use crate::Operation;
use crate::writer::Request;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// One batch being written and one collecting; whoever comes later waits outside, holding only its own request.
const REQUESTS_MAX: usize = 2 * BATCH_REQUESTS_MAX;
/// Enough to share a sync among all writers there are, few enough to answer the first of them soon.
const BATCH_REQUESTS_MAX: usize = 512;
/// The longest wait for others to share a sync with; on a fast disk a sync is much less.
const GATHER_MAX: Duration = Duration::from_millis(2);
/// A batch is kept in the engine's write buffer, which is small.
const BATCH_BYTES_MAX: usize = 2 << 20;

pub(crate) struct Queue {
    room: Semaphore,
    line: Mutex<Line>,
    arrived: Condvar,
}

#[derive(Default)]
struct Line {
    requests: VecDeque<Request>,
    /// The writer sleeps until so many are here.
    wanted: usize,
    closed: bool,
}

/// The batch before: how many it answered, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    pub requests: usize,
    pub took: Duration,
}

#[derive(Debug)]
pub(crate) struct Closed;

impl Default for Queue {
    fn default() -> Queue {
        Queue { room: Semaphore::new(REQUESTS_MAX), line: Mutex::default(), arrived: Condvar::new() }
    }
}

impl Queue {
    /// Waits for room, then queues.
    pub async fn push(&self, request: Request) -> Result<(), Closed> {
        let room = self.room.acquire().await.map_err(|_closed| Closed)?;
        let enough = {
            let mut line = self.line();
            if line.closed {
                return Err(Closed);
            }
            line.requests.push_back(request);
            line.requests.len() >= line.wanted
        };
        // The place is given back when the writer takes the request.
        room.forget();
        if enough {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Waits for requests and takes a batch of them; an empty one when `patience` ran out; `None` when closed and empty.
    ///
    /// Those whom the last batch answered are likely to ask again at once. To wait a little for them is better than to start
    /// without them: else two halves take turns, and each waits for two syncs.
    pub fn pop(&self, patience: Option<Duration>, last: Last) -> Option<Vec<Request>> {
        let line = self.line();
        let expected = (last.requests + line.requests.len()).min(BATCH_REQUESTS_MAX);
        let mut line = self.wait(line, 1, patience);
        if line.requests.is_empty() {
            return if line.closed { None } else { Some(Vec::new()) };
        }
        if line.requests.len() < expected {
            line = self.wait(line, expected, Some(last.took.min(GATHER_MAX)));
        }
        let batch = line.take_batch();
        drop(line);
        self.room.add_permits(batch.len());
        Some(batch)
    }

    /// Sleeps until `wanted` requests are here, the queue is closed, or patience runs out.
    fn wait<'a>(
        &'a self,
        mut line: MutexGuard<'a, Line>,
        wanted: usize,
        patience: Option<Duration>,
    ) -> MutexGuard<'a, Line> {
        line.wanted = wanted;
        let lacking = |line: &mut Line| line.requests.len() < wanted && !line.closed;
        match patience {
            None => self.arrived.wait_while(line, lacking).unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                let waited = self.arrived.wait_timeout_while(line, patience, lacking);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Takes no more; what is queued is still handed out.
    pub fn close(&self) {
        self.line().closed = true;
        self.room.close();
        self.arrived.notify_one();
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
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
