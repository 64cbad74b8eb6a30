//! Responses on a connection. A client that does not read its response must not block the resources of the response:
//! memory for large responses, a slot for watches, and old revisions of the store.

use crate::body::{Body, Chunks};
use crate::idle_timeout::ActiveRequest;
use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A response is sent in pieces of this size, each after the previous one. A client that reads less than 16 KiB
/// within the timeout counts as stalled.
const PIECE_BYTES: usize = 16 * 1024;
/// How long a client may take to read a piece.
const STALLED_TIME_MAX: Duration = Duration::from_secs(60);

/// The body of a response that is being sent.
pub enum ResponseBody {
    /// Sent as a whole.
    Small(Bytes),
    Streamed {
        rest: Arc<Mutex<Rest>>,
        watchdog: AbortHandle,
    },
}

/// The unsent part of a response.
pub struct Rest {
    /// `None` when the client took too long.
    left: Option<Unsent>,
    /// Since when the next piece waits for the client; `None` without a waiting piece.
    waits_since: Option<Instant>,
}

struct Unsent {
    bytes: Bytes,
    /// Whether part of these bytes was sent.
    is_begun: bool,
    more: Option<Chunks>,
    /// Marks the connection as used.
    _open: ActiveRequest,
}

/// The error of a client that did not read its response in time.
#[derive(Debug)]
pub struct ClientStalled;

impl fmt::Display for ClientStalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client did not read the response in time")
    }
}

impl std::error::Error for ClientStalled {}

impl ResponseBody {
    /// `gives_up` is cancelled when the client does not read the response.
    pub fn new(body: Body, open: ActiveRequest, gives_up: Option<CancellationToken>) -> ResponseBody {
        let (bytes, more) = match body {
            Body::Once(bytes) if bytes.len() <= PIECE_BYTES => return ResponseBody::Small(bytes),
            Body::Once(bytes) => (bytes, None),
            Body::Stream(chunks) => (Bytes::new(), Some(chunks)),
        };
        let left = Some(Unsent { bytes, is_begun: false, more, _open: open });
        let rest = Arc::new(Mutex::new(Rest { left, waits_since: Some(Instant::now()) }));
        // The body of a stalled client is not polled, so a separate task must watch it.
        let watchdog = tokio::spawn(watch(Arc::downgrade(&rest), gives_up)).abort_handle();
        ResponseBody::Streamed { rest, watchdog }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let ResponseBody::Streamed { watchdog, .. } = self {
            watchdog.abort();
        }
    }
}

/// Drops the response of a client that does not read it.
async fn watch(rest: Weak<Mutex<Rest>>, gives_up: Option<CancellationToken>) {
    let mut look_at = Instant::now() + STALLED_TIME_MAX;
    loop {
        tokio::time::sleep_until(look_at).await;
        let Some(rest) = rest.upgrade() else { return };
        let now = Instant::now();
        let mut locked = lock(&rest);
        look_at = locked.waits_since.unwrap_or(now) + STALLED_TIME_MAX;
        if look_at <= now {
            let left = locked.left.take();
            drop(locked);
            drop(left);
            if let Some(gives_up) = gives_up {
                gives_up.cancel();
            }
            return;
        }
    }
}

fn lock(rest: &Mutex<Rest>) -> MutexGuard<'_, Rest> {
    rest.lock().expect("no panic happens under this lock")
}

impl Unsent {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.bytes.is_empty() {
            let Some(more) = &mut self.more else { return Poll::Ready(None) };
            let Some(bytes) = ready!(more.as_mut().poll_next(cx)) else { return Poll::Ready(None) };
            (self.bytes, self.is_begun) = (bytes, false);
        }
        if self.bytes.len() <= PIECE_BYTES && !self.is_begun {
            return Poll::Ready(Some(std::mem::take(&mut self.bytes)));
        }
        // Copy the piece: a slice would keep all bytes and their memory reservation.
        let piece = Bytes::copy_from_slice(&self.bytes[..self.bytes.len().min(PIECE_BYTES)]);
        self.bytes.advance(piece.len());
        self.is_begun = true;
        if self.bytes.is_empty() {
            self.bytes = Bytes::new();
        }
        Poll::Ready(Some(piece))
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = ClientStalled;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientStalled>>> {
        let rest = match self.get_mut() {
            ResponseBody::Small(bytes) if bytes.is_empty() => return Poll::Ready(None),
            ResponseBody::Small(bytes) => return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            ResponseBody::Streamed { rest, .. } => rest,
        };
        let mut rest = lock(rest);
        rest.waits_since = None;
        let Some(left) = &mut rest.left else { return Poll::Ready(Some(Err(ClientStalled))) };
        let piece = ready!(left.poll_piece(cx));
        rest.waits_since = Some(Instant::now());
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Small(bytes) => bytes.is_empty(),
            ResponseBody::Streamed { rest, .. } => {
                lock(rest).left.as_ref().is_some_and(|left| left.bytes.is_empty() && left.more.is_none())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Small(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Streamed { rest, .. } => match &lock(rest).left {
                Some(Unsent { bytes, more: None, .. }) => SizeHint::with_exact(bytes.len() as u64),
                _ => SizeHint::default(),
            },
        }
    }
}
