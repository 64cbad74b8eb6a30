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
    closed: bool,
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
        {
            let mut line = self.line();
            if line.closed {
                return Err(Closed);
            }
            line.requests.push_back(request);
        }
        // The place is given back when the writer takes the request.
        room.forget();
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for requests and takes a batch of them; an empty one when `patience` ran out; `None` when closed and empty.
    pub fn pop(&self, patience: Option<Duration>) -> Option<Vec<Request>> {
        let mut line = self.line();
        while line.requests.is_empty() {
            if line.closed {
                return None;
            }
            line = match patience {
                None => self.arrived.wait(line).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let waited = self.arrived.wait_timeout(line, patience);
                    let (line, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && line.requests.is_empty() && !line.closed {
                        return Some(Vec::new());
                    }
                    line
                }
            };
        }
        let batch = line.take_batch();
        drop(line);
        self.room.add_permits(batch.len());
        Some(batch)
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
            bytes += request.txn.operations.iter().map(size).sum::<usize>();
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
