//! Responses that clients read slowly, partly or never, over real connections.

use crate::connections::{connect, dial, get, later, listening};
use crate::support::*;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use server::authn::Identity;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// An HTTP/2 client with this flow-control window per response.
async fn with_window(address: SocketAddr, identity: &Identity, bytes: u32) -> SendRequest<Empty<Bytes>> {
    let stream = dial(address, &identity.ca, Some(&identity.admin), "h2").await;
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(bytes);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub async fn ask(sender: &mut SendRequest<Empty<Bytes>>, path: &str) -> http::Response<Incoming> {
    let request = http::Request::get(format!("https://localhost{path}")).body(Empty::new()).unwrap();
    tokio::time::timeout(Duration::from_secs(10), sender.send_request(request)).await.expect("an answer").unwrap()
}

/// Creates ConfigMaps of this size.
async fn fill(world: &World, count: usize, bytes: usize) {
    for at in 0..count {
        let object = json!({"metadata": {"name": format!("m-{at:02}")}, "data": {"pad": "x".repeat(bytes)}});
        world.admin().post(CONFIG_MAPS, &object).await.expect(201);
    }
}

#[tokio::test]
async fn unread_responses_are_dropped() {
    let (world, address, identity) = listening().await;
    fill(&world, 14, 900_000).await;
    let limits = &world.running.server.limits.exempt;
    let (room, watches) = (limits.responses.available(), limits.watches.available());
    let taken = limits.responses.try_acquire(None, room - 15_000).unwrap();
    let watch = format!("{CONFIG_MAPS}?watch=1");
    for http2 in [true, false] {
        // A client that reads nothing holds all the memory for responses, and its watch a slot.
        let mut lazy = with_window(address, &identity, 1024).await;
        let mut lazy_1 = connect(address, &identity.ca, Some(&identity.admin)).await;
        let (mut unread, mut unread_watch) = (None, None);
        if http2 {
            unread = Some(ask(&mut lazy, CONFIG_MAPS).await);
            unread_watch = Some(ask(&mut lazy, &watch).await);
        } else {
            lazy_1.write_all(&get(CONFIG_MAPS)).await.unwrap();
            lazy_1.flush().await.unwrap();
            while limits.responses.available() == 15_000 {
                tokio::task::yield_now().await;
            }
        }
        world.admin().get(CONFIG_MAPS).await.refused(429, "TooManyRequests");
        // But not forever.
        let started = Instant::now();
        while limits.responses.available() < 15_000 || limits.watches.available() < watches {
            assert!(started.elapsed() < Duration::from_secs(20), "what is not taken is kept");
            later(Duration::from_secs(10)).await;
            // The connection continues, because it responds to pings.
            assert_eq!(ask(&mut lazy, "/version").await.status(), 200);
        }
        world.admin().get(CONFIG_MAPS).await.expect(200);
        if let (Some(unread), Some(unread_watch)) = (unread, unread_watch) {
            assert!(unread.into_body().collect().await.is_err(), "half an answer is none");
            assert!(unread_watch.into_body().collect().await.is_err());
        } else {
            let mut read = Vec::new();
            let _may_fail =
                tokio::time::timeout(Duration::from_secs(10), lazy_1.read_to_end(&mut read)).await.expect("an end");
            assert!(read.len() < 14 * 900_000, "{}", read.len());
        }
    }
    drop(taken);
    world.running.stop().await;
}

/// A client that reads slowly gets the whole response.
#[tokio::test]
async fn slow_readers_get_the_whole_response() {
    let (world, address, identity) = listening().await;
    fill(&world, 5, 100_000).await;
    let whole = world.admin().get(CONFIG_MAPS).await.bytes;
    let mut slow = with_window(address, &identity, 64 * 1024).await;
    let mut body = ask(&mut slow, CONFIG_MAPS).await.into_body();
    let mut read = Vec::new();
    while let Some(frame) = tokio::time::timeout(Duration::from_secs(10), body.frame()).await.expect("more") {
        read.extend_from_slice(&frame.unwrap().into_data().unwrap());
        if read.len() < 300_000 {
            later(Duration::from_secs(10)).await;
            ask(&mut slow, "/version").await.into_body().collect().await.unwrap();
        }
    }
    assert_eq!(read.len(), whole.len());
    world.running.stop().await;
}

/// A connection that stops reading on request.
struct Deaf<S> {
    inner: S,
    is_deaf: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Deaf<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_deaf.load(Ordering::Relaxed) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Deaf<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// A response is counted while most of it is unsent: HTTP/2 does not buffer everything that the client's window
/// allows.
#[tokio::test]
async fn answers_that_wait_to_be_sent_are_counted() {
    const ANSWERS: usize = 100;
    let (world, address, identity) = listening().await;
    fill(&world, 1, 300_000).await;
    let is_deaf = Arc::new(AtomicBool::new(false));
    let stream = dial(address, &identity.ca, Some(&identity.admin), "h2").await;
    let stream = Deaf { inner: stream, is_deaf: is_deaf.clone() };
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(1 << 30).initial_connection_window_size(1 << 30);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    assert_eq!(ask(&mut sender, "/version").await.status(), 200);
    is_deaf.store(true, Ordering::Relaxed);
    let room = &world.running.server.limits.exempt.responses;
    let free = room.available();
    let asking: Vec<_> = (0..ANSWERS)
        .map(|_| {
            let mut sender = sender.clone();
            tokio::spawn(async move { ask(&mut sender, CONFIG_MAPS).await.into_body().collect().await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The system's buffers hold some of them.
    let counted = (free - room.available()) / (300_000 / 1024);
    assert!(counted > ANSWERS / 2, "{counted} of {ANSWERS}");
    is_deaf.store(false, Ordering::Relaxed);
    for answer in asking {
        assert!(answer.await.unwrap().unwrap().to_bytes().len() > 300_000);
    }
    assert_eq!(room.available(), free);
    world.running.stop().await;
}

/// The data in transit on a fast connection is much more than such a client reads in a minute.
#[tokio::test]
async fn slow_readers_on_fast_connections_get_the_whole_response() {
    let (world, address, identity) = listening().await;
    fill(&world, 30, 900_000).await;
    let whole = world.admin().get(CONFIG_MAPS).await.bytes.len();
    let mut slow = connect(address, &identity.ca, Some(&identity.admin)).await;
    slow.write_all(&get(CONFIG_MAPS)).await.unwrap();
    slow.flush().await.unwrap();
    let mut read = 0;
    let mut into = vec![0; 10 * 1024];
    while read < 8_000_000 {
        read += slow.read(&mut into).await.unwrap();
    }
    for _ in 0..400 {
        later(Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        read += slow.read_exact(&mut into).await.expect("it is not cut off");
    }
    assert!(read + 6_000_000 < whole, "there is more that the system has no room for");
    let count = tokio::time::timeout(Duration::from_secs(20), async {
        while read < whole {
            match slow.read(&mut into).await {
                Ok(0) | Err(_) => break,
                Ok(count) => read += count,
            }
        }
        read
    });
    let count = count.await.expect("all of it");
    assert!(count >= whole, "{count} of {whole}");
    world.running.stop().await;
}

/// The unsent end of a response must not keep a connection open forever.
#[tokio::test]
async fn a_connection_ends_although_a_response_is_not_read_to_its_end() {
    let (world, address, identity) = listening().await;
    fill(&world, 1, 10_000).await;
    let places = &world.running.server.limits.exempt.connections;
    let mut lazy = with_window(address, &identity, 1024).await;
    let unread = ask(&mut lazy, &format!("{CONFIG_MAPS}/m-00")).await;
    let mut slow = with_window(address, &identity, 64 * 1024).await;
    ask(&mut slow, "/version").await.into_body().collect().await.unwrap();
    assert_eq!(places.in_use(), 2);
    let mut waited = Duration::ZERO;
    while places.in_use() != 1 {
        assert!(waited < Duration::from_secs(15 * 60), "it is kept for ever");
        later(Duration::from_secs(10)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        waited += Duration::from_secs(10);
        ask(&mut slow, "/version").await.into_body().collect().await.unwrap();
    }
    assert!(waited > Duration::from_secs(5 * 60), "after {waited:?} only");
    assert!(unread.into_body().collect().await.is_err(), "a part of an answer is none");
    world.running.stop().await;
}

/// A slowly read response counts as use: its connection accepts other requests as long as it lasts.
#[tokio::test]
async fn a_connection_with_an_answer_that_is_read_slowly_stays() {
    let (world, address, identity) = listening().await;
    fill(&world, 10, 100_000).await;
    let whole = world.admin().get(CONFIG_MAPS).await.bytes;
    let mut slow = with_window(address, &identity, 64 * 1024).await;
    let mut body = ask(&mut slow, CONFIG_MAPS).await.into_body();
    let mut read = 0;
    for _ in 0..50 {
        read += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
        later(Duration::from_secs(10)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(read < whole.len() - 100_000);
    assert_eq!(ask(&mut slow, "/version").await.status(), 200);
    read += body.collect().await.unwrap().to_bytes().len();
    assert_eq!(read, whole.len());
    world.running.stop().await;
}
