//! Starts a server for one test, with clients for it.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use jiff::Timestamp;
use serde_json::{Value, json};
use server::app::Caller;
use server::authn::{Identity, StaticTokens};
use server::limits::Limits;
use server::{Body, Clock, Env, Ids, Launch, Local, Running, User};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{BoxFuture, Committed, Options, Page, Range, Record, Revision, Store, Txn, Volatile, Watcher};
use tokio::net::TcpListener;
use tower::Service;

/// 2026-01-01T00:00:00Z
pub const START_S: i64 = 1_767_225_600;
pub const STATIC_TOKENS: &str =
    "sesame-open-please,jane,u-1,\"team-a,team-b\"\nboss-token-xyz,boss,u-2,system:masters\n";

/// A running server, its clock and its store.
pub struct World {
    pub running: Running,
    pub clock: Arc<TestClock>,
    pub store: Arc<dyn Store>,
}

impl World {
    pub async fn new() -> World {
        World::with(Volatile::new(server::codec::finish, Options::default()), identity()).await
    }

    /// A world in which writers conflict: each lets all others write between its reads and its write.
    pub async fn contended() -> World {
        World::with(Polite::new(), identity()).await
    }

    pub async fn with(store: Arc<dyn Store>, identity: Identity) -> World {
        World::start(store, identity, None, START_S).await
    }

    pub async fn start(store: Arc<dyn Store>, identity: Identity, listener: Option<TcpListener>, now_s: i64) -> World {
        World::start_limited(store, identity, listener, now_s, Limits::default()).await
    }

    pub async fn start_limited(
        store: Arc<dyn Store>,
        identity: Identity,
        listener: Option<TcpListener>,
        now_s: i64,
        limits: Limits,
    ) -> World {
        let clock = Arc::new(TestClock { now_s: AtomicI64::new(now_s) });
        let launch = Launch {
            store: store.clone(),
            identity,
            gates: object::Gates::default(),
            env: Env { clock: clock.clone(), ids: Arc::new(CountingIds(AtomicU64::new(0))) },
            static_tokens: StaticTokens::parse(STATIC_TOKENS).unwrap(),
            limits,
            bootstrap: Vec::new(),
            listener,
            issuer: "https://test".to_owned(),
        };
        World { running: launch.start().await.unwrap(), clock, store }
    }

    /// A client with all permissions.
    pub fn admin(&self) -> Api {
        self.as_user("admin", &["system:masters"])
    }

    /// A client of an ordinary user with all permissions.
    pub async fn ordinary(&self, name: &str) -> Api {
        let subject = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name});
        let binding = json!({"metadata": {"name": format!("{name}-may-do-everything")}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        self.admin().post(bindings, &binding).await.expect(201);
        self.as_user(name, &[])
    }

    /// An in-process client of this user.
    pub fn as_user(&self, name: &str, groups: &[&str]) -> Api {
        let mut groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        groups.push("system:authenticated".to_owned());
        let user = User { name: name.to_owned(), groups, ..User::default() };
        Api { local: self.running.local(user), headers: vec![], peer: None }
    }

    /// A network client without a certificate.
    pub fn outside(&self) -> Api {
        Api { peer: Some(self.running.server.clone()), ..self.admin() }
    }

    pub fn kube(&self) -> kube::Client {
        kube::Client::new(self.admin().local, "default")
    }

    pub async fn namespace(&self, name: &str) {
        self.admin().post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.expect(201);
    }
}

/// All tests share one identity, because generating keys takes long.
pub fn identity() -> Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    let make = || Identity::make(&["localhost".to_owned()], Timestamp::from_second(START_S).unwrap()).unwrap();
    IDENTITY.get_or_init(make).clone()
}

pub struct TestClock {
    now_s: AtomicI64,
}

impl TestClock {
    pub fn advance(&self, seconds: i64) {
        self.now_s.fetch_add(seconds, Ordering::Relaxed);
    }
    pub fn now_s(&self) -> u64 {
        u64::try_from(self.now_s.load(Ordering::Relaxed)).unwrap()
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.now_s.load(Ordering::Relaxed)).unwrap()
    }
}

/// Random uids, and counting suffixes, so that generated names are predictable.
struct CountingIds(AtomicU64);

impl Ids for CountingIds {
    fn uid(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }
    fn suffix(&self, length: usize) -> String {
        format!("{:0length$}", self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// A client of the server with one identity.
#[derive(Clone)]
pub struct Api {
    pub local: Local,
    headers: Vec<(String, String)>,
    peer: Option<Arc<server::Server>>,
}

pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
pub const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

impl Api {
    /// The same client with one more header on every request.
    pub fn header(&self, name: &str, value: &str) -> Api {
        let mut api = self.clone();
        api.headers.push((name.to_owned(), value.to_owned()));
        api
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", Vec::new()).await
    }
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, "application/json", body.to_string()).await
    }
    pub async fn put(&self, path: &str, body: &Value) -> Reply {
        self.send("PUT", path, "application/json", body.to_string()).await
    }
    pub async fn patch(&self, path: &str, media: &str, body: &Value) -> Reply {
        self.send("PATCH", path, media, body.to_string()).await
    }
    /// Server-side apply with a field manager.
    pub async fn apply(&self, path: &str, manager: &str, body: &Value) -> Reply {
        let sign = if path.contains('?') { '&' } else { '?' };
        self.patch(&format!("{path}{sign}fieldManager={manager}"), APPLY, body).await
    }
    pub async fn delete(&self, path: &str) -> Reply {
        self.send("DELETE", path, "", Vec::new()).await
    }
    pub async fn delete_with(&self, path: &str, options: &Value) -> Reply {
        self.send("DELETE", path, "application/json", options.to_string()).await
    }

    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: impl Into<Bytes>) -> Reply {
        let response = self.open(method, path, content_type, body.into()).await;
        let (parts, body) = response.into_parts();
        let bytes = tokio::time::timeout(Duration::from_secs(20), body.collect()).await;
        let bytes = bytes.unwrap_or_else(|_| panic!("{method} {path} goes on without end")).unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let asked = format!("{method} {path}");
        Reply { asked, code: parts.status.as_u16(), headers: parts.headers, body, bytes }
    }

    /// Opens a watch. Panics on an error response.
    pub async fn watch(&self, path: &str) -> Watching {
        let response = self.open("GET", path, "", Bytes::new()).await;
        let code = response.status();
        if code != 200 {
            panic!("GET {path}: {code} {:?}", response.into_body().collect().await.unwrap().to_bytes());
        }
        Watching { body: response.into_body(), buffer: Vec::new() }
    }

    pub async fn open(&self, method: &str, path: &str, content_type: &str, body: Bytes) -> http::Response<Body> {
        let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
        if !content_type.is_empty() {
            request = request.header("content-type", content_type);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        match &self.peer {
            Some(server) => server.handle(request.body(body).unwrap(), &Caller::Peer(Default::default())).await,
            None => self.local.clone().call(request.body(Full::new(body)).unwrap()).await.unwrap(),
        }
    }
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub asked: String,
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Value,
    pub bytes: Bytes,
}

impl Reply {
    /// The body; panics if the response has another code.
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}: {}", self.asked, String::from_utf8_lossy(&self.bytes));
        self.body
    }

    /// The message of a Status with this code and reason; panics on other responses.
    #[track_caller]
    pub fn refused(self, code: u16, reason: &str) -> String {
        let asked = self.asked.clone();
        let body = self.expect(code);
        assert_eq!(body["kind"], "Status", "{asked}: {body}");
        assert_eq!(body["status"], "Failure", "{asked}: {body}");
        assert_eq!(body["code"], code, "{asked}: {body}");
        assert_eq!(body["reason"], reason, "{asked}: {body}");
        let message = text(&body, "/message");
        assert!(!message.is_empty(), "{asked}: {body}");
        message
    }

    pub fn warnings(&self) -> Vec<String> {
        self.headers
            .get_all("warning")
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }
}

/// An open watch, read event by event.
pub struct Watching {
    body: Body,
    buffer: Vec<u8>,
}

impl Watching {
    /// The next event. Panics if the watch ends or sends nothing for a long time.
    #[track_caller]
    pub fn next(&mut self) -> impl Future<Output = Value> + use<'_> {
        let at = std::panic::Location::caller();
        async move { self.maybe().await.unwrap_or_else(|| panic!("the watch ended; read at {at}")) }
    }

    /// The next event, or `None` at the end.
    pub async fn maybe(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(Duration::from_secs(90), self.body.frame()).await;
            match frame.expect("an event in time") {
                Some(frame) => self.buffer.extend_from_slice(&frame.unwrap().into_data().unwrap()),
                None => return None,
            }
        }
    }

    /// Reads the next chunk and returns its size, or 0 at the end. Its events can be read afterwards.
    pub async fn piece(&mut self) -> usize {
        let frame = tokio::time::timeout(Duration::from_secs(20), self.body.frame()).await.expect("a piece in time");
        let Some(frame) = frame else { return 0 };
        let data = frame.unwrap().into_data().unwrap();
        self.buffer.extend_from_slice(&data);
        data.len()
    }

    /// Whether a received chunk has an unread event.
    pub fn has_event(&self) -> bool {
        self.buffer.contains(&b'\n')
    }

    /// `TYPE name` of the next event.
    pub async fn word(&mut self) -> String {
        let event = self.next().await;
        format!("{} {}", text(&event, "/type"), text(&event, "/object/metadata/name"))
    }

    /// Asserts that there is no event to read now.
    pub async fn quiet(&mut self) {
        use futures::FutureExt;
        for _ in 0..20 {
            tokio::task::yield_now().await;
            if let Some(event) = self.maybe().now_or_never() {
                panic!("an event nobody expected: {event:?}");
            }
        }
    }
}

/// The text at a JSON pointer, or empty.
pub fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned()
}

pub fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion").parse().unwrap()
}

/// The names in a list, without the ConfigMap that every namespace has.
pub fn names(list: &Value) -> Vec<String> {
    let all = list["items"].as_array().unwrap().iter().map(|item| text(item, "/metadata/name"));
    all.filter(|name| name != "kube-root-ca.crt").collect()
}

pub fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "value"}})
}

pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "registry.local/app:1"}]}})
}

/// A pod with an assigned node.
pub fn scheduled(name: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = json!("node-1");
    pod
}

pub fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": size}}}})
}

pub fn stateful_set(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {"serviceName": name, "replicas": 2, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "registry.local/app:1"}]}}}})
}

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
pub const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";

/// A store that yields once before each write, so that writes prepared at the same time conflict.
pub struct Polite {
    store: Arc<dyn Store>,
    /// Number of list calls.
    pub lists: AtomicUsize,
}

impl Polite {
    pub fn new() -> Arc<Polite> {
        let store = Volatile::new(server::codec::finish, Options::default());
        Arc::new(Polite { store, lists: AtomicUsize::new(0) })
    }
}

impl Store for Polite {
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, store::Error>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.store.txn(txn).await
        })
    }
    fn get(&self, key: &str) -> Option<Arc<Record>> {
        self.store.get(key)
    }
    fn list(&self, range: Range<'_>) -> Result<Page, store::Error> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.store.list(range)
    }
    fn count(&self, prefix: &str) -> u64 {
        self.store.count(prefix)
    }
    fn revision(&self) -> Revision {
        self.store.revision()
    }
    fn oldest(&self) -> Revision {
        self.store.oldest()
    }
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watcher>, store::Error> {
        self.store.watch(prefix, after)
    }
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), store::Error>> {
        self.store.compact(revision)
    }
    fn expire(&self, now_s: u64) -> BoxFuture<'_, Result<usize, store::Error>> {
        self.store.expire(now_s)
    }
    fn export(&self) -> BoxFuture<'_, Result<store::Export, store::Error>> {
        self.store.export()
    }
    fn healthy(&self) -> Result<(), store::Error> {
        self.store.healthy()
    }
    fn disk_bytes(&self) -> u64 {
        self.store.disk_bytes()
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
