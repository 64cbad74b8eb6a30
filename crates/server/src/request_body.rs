//! Request bodies. They are read only after the sender is authorized, with limits of size, time and total memory.

use crate::limits::{BODY_BYTES_MAX, Room};
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use object::Status;
use std::time::Duration;

const BODY_TIME_MAX: Duration = Duration::from_secs(60);
/// Time to drain a body that is not read.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(5);

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that is complete, or one that is received on demand.
pub(crate) enum RequestBody {
    Complete(Bytes),
    Streaming(UnsyncBoxBody<Bytes, BoxError>),
}

impl RequestBody {
    pub fn new<B>(body: B) -> RequestBody
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if body.is_end_stream() {
            RequestBody::Complete(Bytes::new())
        } else {
            RequestBody::Streaming(body.map_err(Into::into).boxed_unsync())
        }
    }

    pub fn is_complete(&self) -> bool {
        matches!(self, RequestBody::Complete(_))
    }

    /// Reads the whole body. The memory in `room` stays reserved until the body is dropped.
    pub async fn read(&mut self, room: Room) -> Result<Bytes, Status> {
        let body = match self {
            RequestBody::Complete(bytes) => return Ok(std::mem::take(bytes)),
            RequestBody::Streaming(body) => body,
        };
        let Ok(read) = tokio::time::timeout(BODY_TIME_MAX, collect(body, room)).await else {
            return Err(Status::new(408, "Timeout", "the request body took too long to arrive"));
        };
        let bytes = read?;
        *self = RequestBody::Complete(Bytes::new());
        Ok(bytes)
    }

    /// Drains and drops the rest of the body, within limits. A client whose connection closes while it sends may not
    /// get to read the response.
    pub async fn drain(self) {
        let RequestBody::Streaming(mut body) = self else { return };
        let mut left = BODY_BYTES_MAX;
        let discard = async {
            while let Some(Ok(frame)) = body.frame().await {
                let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return };
                left = rest;
            }
        };
        // After the limit the connection is closed anyway.
        let _may_elapse = tokio::time::timeout(UNREAD_TIME_MAX, discard).await;
    }
}

async fn collect(body: &mut UnsyncBoxBody<Bytes, BoxError>, mut room: Room) -> Result<Bytes, Status> {
    let too_large = || Status::too_large(format!("Request entity too large: limit is {BODY_BYTES_MAX}"));
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let mut first = Bytes::new();
    // Copy small frames together: kept one by one they would take many times their size.
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::bad_request(format!("the request body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = first.len() + whole.len() + data.len();
        if length > BODY_BYTES_MAX {
            return Err(too_large());
        }
        room.grow(length)?;
        // Most bodies have a single frame.
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        whole.extend_from_slice(&std::mem::take(&mut first));
        whole.extend_from_slice(&data);
    }
    Ok(room.keep(if whole.is_empty() { first } else { Bytes::from(whole) }))
}
