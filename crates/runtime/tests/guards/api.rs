//! Requests through the server, as a client in the same process sends them.

use crate::count::Allocated;
use crate::limits::hold;
use crate::world::World;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use object::json;
use server::{Body, Local, User};
use std::time::Duration;
use tower::Service;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const COUNT: u64 = 200;
/// Requests before the measurement: tables grow to their size, and lazy values are initialized.
const WARM: u64 = 100;
const WATCHERS: u64 = 20;
const PATIENCE: Duration = Duration::from_secs(30);

async fn ask(server: &mut Local, method: &Method, path: &str, body: &Bytes) -> Response<Body> {
    let media = if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", media);
    let request = request.body(Full::new(body.clone())).expect("a request");
    let Ok(response) = server.call(request).await;
    assert!(response.status().is_success(), "{method} {path}: {}", response.status());
    response
}

async fn answered(server: &mut Local, method: &Method, path: &str, body: &Bytes) -> usize {
    let response = ask(server, method, path, body).await;
    response.into_body().collect().await.expect("a body").to_bytes().len()
}

fn map(at: u64) -> Bytes {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m-{at:05}"), "labels": {"app": "guard"}},
        "data": {"payload": "x".repeat(800)},
    });
    map.to_string().into()
}

/// Sends some requests, then counts what the next ones take.
async fn guard(server: &mut Local, what: &str, method: Method, request: impl Fn(u64) -> (String, Bytes)) {
    let requests: Vec<_> = (0..WARM + COUNT).map(request).collect();
    for (path, body) in &requests[..WARM as usize] {
        answered(server, &method, path, body).await;
    }
    let before = Allocated::so_far();
    for (path, body) in &requests[WARM as usize..] {
        answered(server, &method, path, body).await;
    }
    hold(what, COUNT, before.since());
}

/// A patch, different for every step: a patch without a change causes no event.
fn patch(step: &str, at: u64) -> (String, Bytes) {
    (format!("{MAPS}/m-{at:05}"), format!("{{\"data\":{{\"step\":\"{step}\"}}}}").into())
}

#[tokio::test]
async fn requests() {
    let world = World::bare().await;
    let mut server = world.running.local(User::apiserver());
    guard(&mut server, "create", Method::POST, |at| (MAPS.to_owned(), map(at))).await;
    guard(&mut server, "get", Method::GET, |at| (format!("{MAPS}/m-{at:05}"), Bytes::new())).await;
    guard(&mut server, "list a page of 100", Method::GET, |_| (format!("{MAPS}?limit=100"), Bytes::new())).await;
    guard(&mut server, "patch", Method::PATCH, |at| patch("one", at)).await;
    watched(&mut server).await;
    guard(&mut server, "delete", Method::DELETE, |at| (format!("{MAPS}/m-{at:05}"), Bytes::new())).await;
    world.stop().await;
}

/// What an event costs when watchers receive it, in addition to the change itself.
async fn watched(server: &mut Local) {
    let before = Allocated::so_far();
    for at in 0..COUNT {
        let (path, body) = patch("two", at);
        answered(server, &Method::PATCH, &path, &body).await;
    }
    let alone = before.since();
    let mut watches = Vec::new();
    for _ in 0..WATCHERS {
        let body = ask(server, &Method::GET, &format!("{MAPS}?watch=1"), &Bytes::new()).await.into_body();
        watches.push(body);
    }
    // First the watchers receive the existing objects.
    for watch in &mut watches {
        hear(watch, WARM + COUNT).await;
    }
    let before = Allocated::so_far();
    for at in 0..COUNT {
        let (path, body) = patch("six", at);
        answered(server, &Method::PATCH, &path, &body).await;
        for watch in &mut watches {
            hear(watch, 1).await;
        }
    }
    let mut watched = before.since();
    watched.times -= alone.times;
    watched.bytes -= alone.bytes;
    hold("event heard by 20 watchers", COUNT, watched);
}

/// Reads until this many lines were received.
async fn hear(watch: &mut Body, lines: u64) {
    let mut heard = 0;
    while heard < lines {
        let frame = tokio::time::timeout(PATIENCE, watch.frame()).await.expect("in time");
        let frame = frame.expect("it goes on").expect("it goes on");
        heard += frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count() as u64);
    }
}
