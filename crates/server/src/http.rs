//! Connections: TLS, HTTP/1.1 and HTTP/2, bodies with a bound, and a clean end.

use crate::app::{Caller, Server, status_response};
use crate::body::Body;
use crate::limits::{BODY_BYTES_MAX, HEADER_BYTES_MAX};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use object::Status;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
const HEADER_TIME_MAX: Duration = Duration::from_secs(15);
const BODY_TIME_MAX: Duration = Duration::from_secs(60);
/// How long open requests may take to end once the server stops.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// Dead peers are noticed by pings that nobody answers.
const PING_EVERY: Duration = Duration::from_secs(30);
const STREAMS_PER_CONNECTION: u32 = 1000;
const WINDOW_BYTES: u32 = 1024 * 1024;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Serves until `shutdown`, then lets open requests end.
pub async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(server.clone(), acceptor.clone(), stream, shutdown.clone()));
            }
            Err(error) => {
                // Out of file descriptors, mostly: others will close, so go on after a breath instead of spinning.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN_TIME_MAX, connections.wait()).await.is_err() {
        tracing::warn!("some requests did not end in time and were cut off");
    }
}

async fn connection(server: Arc<Server>, acceptor: TlsAcceptor, stream: TcpStream, shutdown: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let handshake = tokio::select! {
        biased;
        handshake = tokio::time::timeout(HANDSHAKE_TIME_MAX, acceptor.accept(stream)) => handshake,
        // Nothing was asked yet, so nothing is lost.
        () = shutdown.cancelled() => return,
    };
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    let certificate =
        stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(|der| Arc::from(der.as_ref()));
    let caller = Caller::Peer(certificate);
    let service = hyper::service::service_fn(move |request| {
        let (server, caller) = (server.clone(), caller.clone());
        async move { Ok::<_, Infallible>(respond(&server, request, &caller).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME_MAX)
        .max_buf_size(HEADER_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES * 4)
        .keep_alive_interval(PING_EVERY);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "connection ended");
    }
}

/// Reads the body within its bounds and answers.
pub(crate) async fn respond<B>(server: &Server, request: Request<B>, caller: &Caller) -> Response<Body>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let read = tokio::time::timeout(BODY_TIME_MAX, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let body = match read {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = format!("Request entity too large: limit is {BODY_BYTES_MAX}");
            return status_response(&Status::too_large(message));
        }
        Ok(Err(error)) => return status_response(&Status::bad_request(format!("the request body broke off: {error}"))),
        Err(_) => return status_response(&Status::new(408, "Timeout", "the request body took too long to arrive")),
    };
    server.handle(Request::from_parts(parts, body), caller).await
}
