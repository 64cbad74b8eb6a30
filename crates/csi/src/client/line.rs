//! What is between a driver and us: connections that tell of their end, and answers of which is known whether the driver gave them.

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

/// A connection that is counted when it begins and when it ends: whoever answers by the next one may be another driver.
pub struct Line {
    connection: Box<dyn Connection>,
    shared: Arc<Shared>,
}

impl Line {
    pub fn new(connection: Box<dyn Connection>, shared: Arc<Shared>) -> Line {
        shared.changes.fetch_add(1, Ordering::SeqCst);
        Line { connection, shared }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
    }
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, into)
    }
}

impl AsyncWrite for Line {
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

/// The code that a driver answered a call with, once it has. The library makes codes of its own where an answer cannot be read or
/// breaks off, which cannot be told from a driver's otherwise.
#[derive(Clone, Default)]
pub struct Heard(Arc<OnceLock<Code>>);

impl Heard {
    /// Whether a failure is the driver's own word.
    pub fn is_word(&self, status: &Status) -> bool {
        self.0.get().is_some_and(|code| *code == status.code() && *code != Code::Ok)
    }

    /// Listens to an answer as it is read.
    pub fn listen(&self, answer: http::Response<Body>) -> http::Response<Body> {
        self.note(answer.headers());
        let heard = self.clone();
        answer.map(|body| Body::new(Listened { body, heard }))
    }

    fn note(&self, headers: &http::HeaderMap) {
        if let Some(code) = headers.get("grpc-status") {
            // Only the first counts; there is no other.
            let _ = self.0.set(Code::from_bytes(code.as_bytes()));
        }
    }
}

struct Listened {
    body: Body,
    heard: Heard,
}

impl hyper::body::Body for Listened {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.heard.note(trailers);
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
