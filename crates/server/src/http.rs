//! Connections: TLS, HTTP/1.1 and HTTP/2, bodies with a bound, and a clean end.

use crate::app::{Caller, Peer, Server};
use crate::arriving::Arriving;
use crate::body::Body;
use crate::connections::{Connection, Held};
use crate::limits::HEADER_BYTES_MAX;
use crate::sent::Sent;
use crate::usage::Usage;
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
/// How long open requests may take to end once the server stops.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// Dead peers are noticed by pings that nobody answers.
const PING_EVERY: Duration = Duration::from_secs(30);
/// As upstream: clients open another connection for more.
const STREAMS_PER_CONNECTION: u32 = 250;
/// What waits to be sent of one answer beside the answer: of HTTP/2 in its own buffers, and of a connection in the system's. It counts for
/// nothing and is not let go. A slow reader must take about half of it, with what TLS and HTTP keep, within the time that there is.
const UNSENT_BYTES: u32 = 64 * 1024;
/// How long a connection that nobody uses may take for its last words.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(60);
/// What a client may send before somebody reads it, for each request (as upstream) and for a connection.
const WINDOW_BYTES: u32 = 256 * 1024;

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
            Ok((stream, peer)) => {
                let (held, closed) = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => break,
                    admitted = server.limits.connections.admit(peer.ip()) => admitted,
                };
                server.metrics.connections_closed(closed);
                let served = connection(server.clone(), acceptor.clone(), stream, shutdown.clone(), &held);
                connections.spawn(served.map(move |()| drop(held)));
            }
            Err(error) => {
                // Mostly there are no file descriptors left. One is freed here; wait before the next try instead of spinning.
                tracing::warn!(%error, "cannot accept a connection");
                server.metrics.connections_closed(u64::from(server.limits.connections.close_one()));
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

/// Serves one connection until it ends or must make room for a new one.
fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    shutdown: CancellationToken,
    held: &Held,
) -> impl Future<Output = ()> + use<> {
    let (counted, closing) = (held.connection(), held.closing());
    async move {
        tokio::select! {
            biased;
            () = closing.cancelled() => tracing::debug!("an unauthenticated connection made room for a new one"),
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
    let caller = Caller::Peer(Peer { certificate, connection: Some(counted) });
    let usage = Usage::new();
    let used = usage.clone();
    let untaken = CancellationToken::new();
    let gives_up = untaken.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (server, caller, open) = (server.clone(), caller.clone(), used.begin());
        // HTTP/2 carries other answers on the same connection, which may well be taken.
        let gives_up = (request.version() <= Version::HTTP_11).then(|| gives_up.clone());
        async move {
            let response = respond(&server, request, &caller).await;
            Ok::<_, Infallible>(response.map(|body| Sent::new(body, open, gives_up)))
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
            () = usage.idle() => {
                if !usage.asked() {
                    // It may be in the middle of its first words, and nothing is lost.
                    tracing::debug!("a connection asked for nothing");
                    return Ok(());
                }
            }
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            // What came in between is answered first.
            () = tokio::time::sleep(LAST_WORDS_TIME_MAX).then(|()| usage.idle()) => {
                tracing::debug!("a client did not take the last of what it asked for");
                Ok(())
            }
        }
    };
    let ended = tokio::select! {
        biased;
        ended = served => ended,
        () = untaken.cancelled() => return tracing::debug!("a client did not take its answer"),
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "connection ended");
    }
}

/// A socket can be written to again when little waits in it, not when a part of all is free that is on its way on a fast connection.
fn limit_unsent(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES) {
        tracing::debug!(%error, "cannot set TCP_NOTSENT_LOWAT");
    }
}

/// How HTTP is spoken, in both versions.
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

/// Answers a request from elsewhere. Its body is read only if the headers are those of somebody who may send it.
async fn respond(server: &Server, request: Request<Incoming>, caller: &Caller) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let mut body = Arriving::new(body);
    let response = server.answer(&parts, &mut body, caller).await;
    // HTTP/2 has a way to say that the rest is not wanted; so has who asks before it sends.
    let sends_on = parts.version <= Version::HTTP_11 && !parts.headers.contains_key(http::header::EXPECT);
    if sends_on && matches!(body, Arriving::Coming(_)) {
        tokio::spawn(body.forget());
    }
    response
}
