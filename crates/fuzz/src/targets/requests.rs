//! Requests of a user with all permissions, several in sequence: paths, queries, selectors, bodies and patches. Each
//! is first sent as an anonymous user and as a user without permissions, who must not be able to write.
//!
//! An input is a list of requests, separated by lines with `--`. The first line of each is method, path and media
//! type, the rest is the body.
//!
//! The server must answer each request without an internal error, and explain each refusal. Every stored object must
//! be readable, and writing it back must change nothing.

use crate::Reader;
use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::BodyExt;
use object::access::Access;
use object::{Gates, Value};
use percent_encoding::percent_decode_str;
use server::app::Caller;
use server::authn::{Identity, StaticTokens};
use server::{Body, Env, Launch, Running, User};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Runtime;

/// After this many inputs a new server is started, so that its store does not grow without limit.
const INPUTS_PER_SERVER: u32 = 300;

pub fn start() -> Box<dyn Reader> {
    let mut session = Session::new();
    Box::new(move |input: &[u8]| session.with(async |server| run_requests(server, input).await))
}

/// A server that handles one input after the other.
pub struct Session {
    runtime: Runtime,
    server: Option<Running>,
    inputs: u32,
}

impl Session {
    pub fn new() -> Session {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Session { runtime, server: None, inputs: 0 }
    }

    pub fn with<T>(&mut self, work: impl AsyncFnOnce(&Running) -> T) -> T {
        self.inputs += 1;
        if self.inputs.is_multiple_of(INPUTS_PER_SERVER) {
            self.server = None;
        }
        let runtime = &self.runtime;
        // A server that panicked is not used again.
        let server = self.server.take().unwrap_or_else(|| runtime.block_on(launch()));
        let result = runtime.block_on(work(&server));
        self.server = Some(server);
        result
    }
}

async fn launch() -> Running {
    // Generating keys takes long.
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    let make = || Identity::make(&["localhost".to_owned()], jiff::Timestamp::now()).expect("certificates");
    let launch = Launch {
        store: store::Volatile::new(server::codec::finish, store::Options::default()),
        identity: IDENTITY.get_or_init(make).clone(),
        gates: Gates::default(),
        env: Env::default(),
        static_tokens: StaticTokens::default(),
        limits: Default::default(),
        bootstrap: Vec::new(),
        listener: None,
        issuer: "https://test".to_owned(),
    };
    launch.start().await.expect("a server")
}

/// Splits the input at lines that are `--`.
fn parts(input: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = input;
    while let Some(at) = rest.windows(4).position(|window| window == b"\n--\n") {
        parts.push(&rest[..at]);
        rest = &rest[at + 4..];
    }
    parts.push(rest);
    parts
}

async fn run_requests(running: &Running, input: &[u8]) -> String {
    let mut words = String::new();
    for part in parts(input).into_iter().take(8) {
        let end = part.iter().position(|byte| *byte == b'\n').unwrap_or(part.len());
        let line = String::from_utf8_lossy(&part[..end]);
        let mut line = line.split(' ');
        let (method, path, media) = (line.next().unwrap_or(""), line.next().unwrap_or(""), line.next().unwrap_or(""));
        let body = Bytes::copy_from_slice(part.get(end + 1..).unwrap_or_default());
        let (Ok(method), Ok(uri)) = (Method::from_bytes(method.as_bytes()), path.parse::<Uri>()) else {
            words.push_str("no request; ");
            continue;
        };
        let Ok(request) =
            Request::builder().method(method.clone()).uri(uri.clone()).header("content-type", media).body(body)
        else {
            words.push_str("no request; ");
            continue;
        };
        check_unprivileged_users(running, &request).await;
        let (code, answer) = send(running, request).await;
        words.push_str(&format!("{code} {}; ", answer.text(&["message"])));
        let written = code < 300 && ["POST", "PUT", "PATCH"].contains(&method.as_str());
        if written && !uri.query().unwrap_or("").contains("dryRun") {
            check_round_trip(running, uri.path(), &method, &answer).await;
        }
    }
    words
}

/// A user without permissions must not be able to write. (Every user may create reviews of the user's own identity
/// and permissions.)
async fn check_unprivileged_users(running: &Running, request: &Request<Bytes>) {
    let (method, path) = (request.method(), request.uri().path());
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) || is_self_review(method, path);
    for (name, group) in [("system:anonymous", "system:unauthenticated"), ("somebody", "system:authenticated")] {
        let (code, answer) = send_as(running, request.clone(), name, &[group]).await;
        assert!(reads || code >= 400, "{method} {path} of {name} is accepted: {code} {answer}");
    }
}

/// Whether this is a self-review. It is a POST, every user may send it, and it writes nothing.
fn is_self_review(method: &Method, path: &str) -> bool {
    let parts = path.split('/').filter(|part| !part.is_empty());
    let parts: Vec<_> = parts.map(|part| percent_decode_str(part).decode_utf8_lossy()).collect();
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    method == Method::POST
        && matches!(
            parts[..],
            ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews" | "selfsubjectrulesreviews"]
                | ["apis", "authentication.k8s.io", "v1", "selfsubjectreviews"]
        )
}

/// Sends a request as a user with all permissions.
pub async fn send(running: &Running, request: Request<Bytes>) -> (u16, Value) {
    send_as(running, request, "admin", &["system:masters", "system:authenticated"]).await
}

/// Sends a request. Does not wait for the body of a stream.
async fn send_as(running: &Running, request: Request<Bytes>, name: &str, groups: &[&str]) -> (u16, Value) {
    let what = format!("{} {}", request.method(), request.uri());
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    let caller = Caller::Inside(Arc::new(User { name: name.to_owned(), groups, ..User::default() }));
    let response = running.server.handle(request, &caller).await;
    let code = response.status().as_u16();
    let is_json = response.headers().get("content-type").is_some_and(|media| media == "application/json");
    let bytes = match response.into_body() {
        Body::Stream(_) => return (code, Value::Null),
        body => body.collect().await.map(|body| body.to_bytes()).unwrap_or_default(),
    };
    let answer = if is_json { serde_json::from_slice(&bytes).expect("a JSON response is JSON") } else { Value::Null };
    assert!(
        (200..500).contains(&code) || code == 504,
        "{what} is answered with {code}: {}",
        String::from_utf8_lossy(&bytes)
    );
    if code >= 400 && is_json {
        assert_eq!(answer["kind"], "Status", "{what}: {answer}");
        assert_eq!(answer["code"], code, "{what}: {answer}");
        assert!(!answer.text(&["message"]).is_empty(), "{what}: {answer}");
    }
    (code, answer)
}

/// An object that was accepted can be read and written back without a change.
async fn check_round_trip(running: &Running, path: &str, method: &Method, answer: &Value) {
    let depth = path.split('/').filter(|part| !part.is_empty()).count();
    let subresource = path.ends_with("/status") || path.ends_with("/scale") || path.ends_with("/finalize");
    let name = answer.text(&["metadata", "name"]);
    // Reviews, tokens, evictions and bindings are not stored.
    if name.is_empty() || subresource || answer.text(&["metadata", "uid"]).is_empty() || depth > 7 {
        return;
    }
    let own = if *method == Method::POST {
        format!("{}/{}", path.trim_end_matches('/'), encoded(name))
    } else {
        path.to_owned()
    };
    let get = Request::get(&own).body(Bytes::new()).expect("a path");
    let (code, found) = send(running, get).await;
    // The write may have removed the last finalizer of a deleted object.
    if code == 404 {
        return;
    }
    assert_eq!(code, 200, "{own}: {found}");
    let body = Bytes::from(found.to_string());
    let put = Request::put(&own).header("content-type", "application/json").body(body).expect("a path");
    let (code, again) = send(running, put).await;
    assert!(code == 200 || code == 405, "the stored object {own} is refused: {again}\n{found}");
    if code == 200 {
        let version = |object: &Value| object.text(&["metadata", "resourceVersion"]).to_owned();
        assert_eq!(version(&again), version(&found), "{own} is changed by writing it back:\n{found}\n{again}");
    }
}

fn encoded(name: &str) -> String {
    name.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn only_self_reviews_are_open_to_all_users() {
    let post = |path: &str| is_self_review(&Method::POST, path);
    assert!(post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"));
    assert!(post("/apis/authorization.k8s.io/v1/%73elfsubjectrulesreview%73"));
    assert!(post("//apis/authentication.k8s.io/v1/selfsubjectreviews/"));
    assert!(!is_self_review(&Method::PUT, "/apis/authentication.k8s.io/v1/selfsubjectreviews"));
    for path in [
        "/api/v1/namespaces/default/configmaps/selfsubjectaccessreviews",
        "/api/v1/namespaces/selfsubjectreviews/configmaps",
        "/apis/example.com/v1/selfsubjectreviews",
        "/apis/authorization.k8s.io/v1/selfsubjectreviews",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews/x",
        "/apis/authorization.k8s.io%2Fv1%2Fselfsubjectaccessreviews",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    ] {
        assert!(!post(path), "{path}");
    }
}
