//! Response bodies: complete bytes or a stream.

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

pub type Chunks = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// The body of a response.
pub enum Body {
    Once(Bytes),
    Stream(Chunks),
}

impl Body {
    pub fn empty() -> Body {
        Body::Once(Bytes::new())
    }

    /// Keeps `needed` until a stream ends. A complete body drops it at once.
    pub(crate) fn holding<T: Send + 'static>(self, needed: T) -> Body {
        match self {
            Body::Stream(chunks) => Body::Stream(Box::pin(chunks.inspect(move |_| _ = &needed))),
            body => body,
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Body::Once(bytes) if bytes.is_empty() => Poll::Ready(None),
            Body::Once(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Body::Stream(chunks) => {
                chunks.as_mut().poll_next(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Once(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Once(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}
