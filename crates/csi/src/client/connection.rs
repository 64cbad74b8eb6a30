//! The connection to a driver: counts connections, and tells a driver's own status codes from those of the gRPC
//! library.

use super::Shared;
use crate::endpoint::Connection;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::body::Body;
use tonic::{Code, Status};

/// A connection that is counted when it begins and when it ends: after a new one another driver may respond.
pub struct CountedConnection {
    connection: Box<dyn Connection>,
    shared: Arc<Shared>,
}

impl CountedConnection {
    pub fn new(connection: Box<dyn Connection>, shared: Arc<Shared>) -> CountedConnection {
        shared.changes.fetch_add(1, Ordering::SeqCst);
        CountedConnection { connection, shared }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
    }
}

impl AsyncRead for CountedConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, into)
    }
}

impl AsyncWrite for CountedConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, pieces)
    }
    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}

/// The status code that the driver sent, once it has. The gRPC library creates codes of its own if a response cannot be
/// read or breaks off; without this they could not be told from a driver's code.
#[derive(Clone, Default)]
pub struct DriverCode(Arc<OnceLock<Code>>);

impl DriverCode {
    /// Whether the driver itself sent this failure.
    pub fn is_from_driver(&self, status: &Status) -> bool {
        self.0.get().is_some_and(|code| *code == status.code() && *code != Code::Ok)
    }

    /// Observes a response while it is read.
    pub fn observe(&self, answer: http::Response<Body>) -> http::Response<Body> {
        self.note(answer.headers());
        let driver_code = self.clone();
        answer.map(|body| Body::new(ObservedBody { body, driver_code }))
    }

    fn note(&self, headers: &http::HeaderMap) {
        if let Some(code) = headers.get("grpc-status") {
            // Only the first code counts.
            let _ = self.0.set(Code::from_bytes(code.as_bytes()));
        }
    }
}

struct ObservedBody {
    body: Body,
    driver_code: DriverCode,
}

impl hyper::body::Body for ObservedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.driver_code.note(trailers);
        }
        frame
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
