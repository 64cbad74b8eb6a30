//! Connections: TLS, HTTP/1.1 and HTTP/2, limits, and graceful shutdown.

use crate::app::{Caller, Peer, Server};
use crate::body::Body;
use crate::connections::{Connection, ConnectionGuard};
use crate::idle_timeout::IdleTimeout;
use crate::limits::HEADER_BYTES_MAX;
use crate::request_body::RequestBody;
use crate::response_body::ResponseBody;
use futures::FutureExt;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
const HEADER_TIME_MAX: Duration = Duration::from_secs(15);
/// How long open requests may take to finish when the server stops.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// Interval of HTTP/2 pings. A peer that does not respond to them is disconnected.
const PING_EVERY: Duration = Duration::from_secs(30);
/// As upstream. Clients open another connection for more.
const STREAMS_PER_CONNECTION: u32 = 250;
/// Limit of response bytes in the HTTP/2 buffers, and in the socket's send buffer of a connection. These bytes are
/// not counted in the memory limits. A slow client must read about half of them, with the buffers of TLS and HTTP,
/// within the timeout.
const UNSENT_BYTES: u32 = 64 * 1024;
/// How long a client may take to read the last responses of an idle connection.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(60);
/// Flow-control window for each request (as upstream) and for each connection.
const WINDOW_BYTES: u32 = 256 * 1024;

/// Serves until `shutdown`, then lets open requests finish.
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
            Ok((stream, peer)) => {
                let (guard, closed) = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => break,
                    admitted = server.limits.connections.admit(peer.ip()) => admitted,
                };
                server.metrics.connections_closed(closed);
                let served = connection(server.clone(), acceptor.clone(), stream, shutdown.clone(), &guard);
                connections.spawn(served.map(move |()| drop(guard)));
            }
            Err(error) => {
                // Usually there are no free file descriptors. Close one connection to free a descriptor, and wait before
                // the next attempt.
                tracing::warn!(%error, "cannot accept a connection");
                server.metrics.connections_closed(u64::from(server.limits.connections.close_one()));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN_TIME_MAX, connections.wait()).await.is_err() {
        tracing::warn!("some requests did not finish in time and were aborted");
    }
}

/// Serves one connection until it ends or the limits close it to make room for a new one.
fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    shutdown: CancellationToken,
    guard: &ConnectionGuard,
) -> impl Future<Output = ()> + use<> {
    let (counted, closing) = (guard.connection(), guard.closing());
    async move {
        tokio::select! {
            biased;
            () = closing.cancelled() => tracing::debug!("closed an unauthenticated connection to make room for a new one"),
            () = serve_connection(server, acceptor, stream, shutdown, counted) => {}
        }
    }
}

async fn serve_connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    shutdown: CancellationToken,
    counted: Arc<Connection>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    limit_unsent(&stream);
    let handshake = tokio::select! {
        biased;
        handshake = tokio::time::timeout(HANDSHAKE_TIME_MAX, acceptor.accept(stream)) => handshake,
        // No request was sent yet, so nothing is lost.
        () = shutdown.cancelled() => return,
    };
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    let certificate =
        stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(|der| Arc::from(der.as_ref()));
    let caller = Caller::Peer(Peer { certificate, connection: Some(counted) });
    let idle_timeout = IdleTimeout::new();
    let used = idle_timeout.clone();
    let stalled = CancellationToken::new();
    let gives_up = stalled.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (server, caller, open) = (server.clone(), caller.clone(), used.begin());
        // Only for HTTP/1: an HTTP/2 connection has other responses, which the client may still read.
        let gives_up = (request.version() <= Version::HTTP_11).then(|| gives_up.clone());
        async move {
            let response = respond(&server, request, &caller).await;
            Ok::<_, Infallible>(response.map(|body| ResponseBody::new(body, open, gives_up)))
        }
    });
    let builder = protocols();
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let served = async {
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended,
            () = shutdown.cancelled() => {}
            () = idle_timeout.idle() => {
                if !idle_timeout.asked() {
                    // A partly received first request is dropped; the client can repeat it.
                    tracing::debug!("closing a connection without requests");
                    return Ok(());
                }
            }
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            // Requests that arrive before the shutdown takes effect are answered first.
            () = tokio::time::sleep(LAST_WORDS_TIME_MAX).then(|()| idle_timeout.idle()) => {
                tracing::debug!("a client did not read its last responses");
                Ok(())
            }
        }
    };
    let ended = tokio::select! {
        biased;
        ended = served => ended,
        () = stalled.cancelled() => return tracing::debug!("a client did not read its response"),
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "connection ended");
    }
}

/// Makes the socket writable only when few unsent bytes are buffered. By default it is writable when part of a large
/// buffer is free.
fn limit_unsent(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES) {
        tracing::debug!(%error, "cannot set TCP_NOTSENT_LOWAT");
    }
}

/// HTTP settings of both protocol versions.
fn protocols() -> auto::Builder<TokioExecutor> {
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
        .max_send_buf_size(UNSENT_BYTES as usize)
        .keep_alive_interval(PING_EVERY);
    builder
}

/// Responds to a network request. Its body is read only after the sender is authorized.
async fn respond(server: &Server, request: Request<Incoming>, caller: &Caller) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let mut body = RequestBody::new(body);
    let response = server.answer(&parts, &mut body, caller).await;
    // HTTP/2 can reset the stream of an unread body, and a client with `Expect` waits before it sends. Other bodies
    // must be drained.
    let sends_on = parts.version <= Version::HTTP_11 && !parts.headers.contains_key(http::header::EXPECT);
    if sends_on && matches!(body, RequestBody::Streaming(_)) {
        tokio::spawn(body.drain());
    }
    response
}
