//! A test cluster: a server with controllers, and a user.

use futures::future::join_all;
use http::{Request, Response};
use object::access::{Access, name, namespace, uid};
use object::{Gates, Value, json};
use runtime::{Controllers, Setup};
use server::authn::{Identity, StaticTokens, service_account_user};
use server::{Body, Clock, Env, Launch, Local, Running, User};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use store::{Next, Store, Volatile};

/// The timeout of all waits, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub const GC: &str = "garbage-collector-controller";
pub const NAMESPACES: &str = "namespace-controller";

#[path = "faults.rs"]
mod faults;
#[path = "owners.rs"]
mod owners;
#[path = "requests.rs"]
mod requests;
use faults::out_of_order;
pub use faults::{Faults, Mishap, is_write};
pub use requests::{Asked, Requests};

pub struct World {
    pub running: Running,
    pub store: Arc<dyn Store>,
    pub requests: Requests,
    pub faults: Faults,
    /// The setup of the controllers.
    pub setup: Setup,
    /// The timeout of one wait.
    pub patience: Duration,
    admin: kube::Client,
    /// Each is a process of its own.
    controllers: Vec<Controllers>,
    /// Servers that were replaced. Dropping them would close the store.
    retired: Vec<Running>,
}

/// The code and body of a response.
pub type Answer = (u16, Value);

impl World {
    /// A server with these controllers.
    pub async fn with(controllers: &str) -> World {
        let mut world = World::bare().await;
        world.start(controllers);
        world
    }

    /// A server without controllers.
    pub async fn bare() -> World {
        World::gated(Gates::default()).await
    }

    /// A server with these feature gates, without controllers.
    pub async fn gated(gates: Gates) -> World {
        World::made(gates, Env::default()).await
    }

    /// A server that uses tokio's clock, as its controllers do: when it is paused, hours pass at once.
    pub async fn timed() -> World {
        let clock = TokioClock { start: tokio::time::Instant::now(), begin: jiff::Timestamp::now() };
        let mut world = World::made(Gates::default(), Env { clock: Arc::new(clock), ..Env::default() }).await;
        world.patience = Duration::from_secs(1800);
        world.setup.clock = Arc::new(move || clock.now());
        world
    }

    async fn made(gates: Gates, env: Env) -> World {
        let store = Volatile::new(server::codec::finish, store::Options::default());
        let (running, admin) = launch(store.clone(), gates, env).await;
        let (requests, faults) = (Requests::default(), Faults::default());
        let setup = Setup { root_ca: Some(Arc::from("THE CERTIFICATE")), ..Setup::new("") };
        let (controllers, retired) = (Vec::new(), Vec::new());
        World { running, store, requests, faults, setup, patience: PATIENCE, admin, controllers, retired }
    }

    /// Replaces the server by another on the same store, with these feature gates. The controllers must be
    /// stopped.
    pub async fn restart_server(&mut self, gates: Gates) {
        assert!(self.controllers.is_empty(), "controllers must be stopped first");
        let (running, admin) = launch(self.store.clone(), gates, Env::default()).await;
        self.admin = admin;
        self.retired.push(std::mem::replace(&mut self.running, running));
    }

    pub fn start(&mut self, list: &str) {
        assert!(self.controllers.is_empty(), "the controllers run already");
        self.start_beside(list);
    }

    /// Starts more controllers besides those that run already.
    pub fn start_beside(&mut self, list: &str) {
        let client =
            |account: &str| self.client(account, service_account_user("kube-system", account), self.faults.clone());
        let setup = Setup { list: list.to_owned(), ..self.setup.clone() };
        let started = Controllers::start(&setup, client).expect("a good list");
        self.controllers.push(started);
    }

    /// A client of the server that records its requests under `name`.
    pub fn client(&self, name: &str, user: User, faults: Faults) -> kube::Client {
        let service =
            Recorded { inner: self.running.local(user), account: name.into(), to: self.requests.clone(), faults };
        self.setup.metrics.kit.client(name, service)
    }

    pub async fn stop_controllers(&mut self) {
        assert!(!self.controllers.is_empty(), "they run");
        join_all(self.controllers.drain(..).map(Controllers::stop)).await;
    }

    /// Stops everything, in order.
    pub async fn stop(mut self) {
        join_all(self.controllers.drain(..).map(Controllers::stop)).await;
        for server in self.retired.into_iter().chain([self.running]) {
            server.stop().await;
        }
    }

    pub async fn send(&self, method: &str, path: &str, media: &str, body: Option<&Value>) -> Answer {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header("content-type", media);
        match self.admin.request::<Value>(request.body(body).expect("a request")).await {
            Ok(value) => (200, value),
            Err(kube::Error::Api(status)) => (status.code, object::value::to_value(&status).expect("a status")),
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// Creates an object at the path of its kind.
    pub async fn create(&self, object: Value) -> Value {
        let (code, stored) = self.try_create(&object).await;
        assert_eq!(code, 200, "{object}: {stored}");
        stored
    }

    /// Creates a hundred objects at a time.
    pub async fn create_many(&self, count: usize, make: impl Fn(usize) -> Value) -> Vec<Value> {
        let mut created = Vec::with_capacity(count);
        for from in (0..count).step_by(100) {
            created.extend(join_all((from..count.min(from + 100)).map(|at| self.create(make(at)))).await);
        }
        created
    }

    pub async fn try_create(&self, object: &Value) -> Answer {
        self.send("POST", &collection(object), "application/json", Some(object)).await
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
        let (code, found) = self.send("GET", path, "application/json", None).await;
        match code {
            200 => Some(found),
            404 => None,
            _ => panic!("GET {path}: {found}"),
        }
    }

    /// The object as it is now.
    pub async fn now(&self, object: &Value) -> Option<Value> {
        let found = self.get(&path(object)).await?;
        (uid(object).is_empty() || uid(&found) == uid(object)).then_some(found)
    }

    pub async fn names(&self, collection: &str) -> Vec<String> {
        let list = self.get(collection).await.expect("a list");
        list.items(&["items"]).iter().map(|object| name(object).to_owned()).collect()
    }

    pub async fn merge(&self, object: &Value, patch: Value) -> Value {
        let (code, stored) = self.send("PATCH", &path(object), "application/merge-patch+json", Some(&patch)).await;
        assert_eq!(code, 200, "{patch}: {stored}");
        stored
    }

    /// Replaces the status.
    pub async fn set_status(&self, object: &Value, status: Value) {
        let patch = json!({"status": status});
        let path = format!("{}/status", path(object));
        let (code, answer) = self.send("PATCH", &path, "application/merge-patch+json", Some(&patch)).await;
        assert_eq!(code, 200, "{answer}");
    }

    /// Deletes an object; an empty policy leaves the choice to the server.
    pub async fn delete(&self, object: &Value, policy: &str) -> Answer {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if !policy.is_empty() {
            options["propagationPolicy"] = json!(policy);
        }
        self.send("DELETE", &path(object), "application/json", Some(&options)).await
    }

    /// Waits until `check` returns something: it is called after every change of the store, until the
    /// timeout.
    pub async fn until<T, F: Future<Output = Option<T>>>(&self, what: &str, check: impl Fn() -> F) -> T {
        let waiting = async {
            let mut watcher = self.store.watch("", self.store.revision()).expect("a watch");
            loop {
                if let Some(found) = check().await {
                    return found;
                }
                if let Next::Compacted { .. } = watcher.next(usize::MAX).await {
                    watcher = self.store.watch("", self.store.revision()).expect("a watch");
                }
            }
        };
        match tokio::time::timeout(self.patience, waiting).await {
            Ok(found) => found,
            Err(_) => panic!("in vain: {what}\n{}", self.requests.summary()),
        }
    }

    /// Waits for something that is not in the store.
    pub async fn until_moment(&self, what: &str, check: impl Fn() -> bool) {
        let waiting = async {
            while !check() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("in vain: {what}\n{}", self.requests.summary());
        }
    }

    /// The metrics of the controllers, in the text format.
    pub fn figures(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        self.setup.metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        text
    }

    pub async fn until_gone(&self, object: &Value) {
        let what = format!("{} goes", path(object));
        self.until(&what, || async { self.now(object).await.is_none().then_some(()) }).await;
    }

    pub async fn until_all_gone(&self, objects: &[Value]) {
        for object in objects {
            self.until_gone(object).await;
        }
    }

    /// Waits until the object satisfies `check`.
    pub async fn until_is(&self, object: &Value, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        self.until(what, || async { self.now(object).await.filter(|found| check(found)) }).await
    }

    /// Waits for an event about an object.
    pub async fn until_event(&self, about: &Value, reason: &str) -> Value {
        let place = if namespace(about).is_empty() { "default" } else { namespace(about) };
        let events = format!("/api/v1/namespaces/{place}/events");
        let is_it =
            |event: &&Value| event.text(&["involvedObject", "uid"]) == uid(about) && event.text(&["reason"]) == reason;
        self.until(&format!("event {reason}"), || async {
            self.get(&events).await.and_then(|list| list.items(&["items"]).iter().find(is_it).cloned())
        })
        .await
    }

    /// Waits until the garbage collector has handled all earlier writes: it collects a new object whose owner
    /// is missing, which it can only do after it has received all earlier events of that kind.
    pub async fn settle(&self) {
        let mut marker = config_map("default", "marker");
        marker["metadata"]["generateName"] = json!("marker-");
        marker["metadata"].cut(&["name"]);
        marker["metadata"]["ownerReferences"] = json!([
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "no-such-uid"}
        ]);
        let marker = self.create(marker).await;
        self.until_gone(&marker).await;
    }
}

/// A clock of tokio's time.
#[derive(Clone, Copy)]
struct TokioClock {
    start: tokio::time::Instant,
    begin: jiff::Timestamp,
}

impl server::Clock for TokioClock {
    fn now(&self) -> jiff::Timestamp {
        let passed = jiff::SignedDuration::try_from(self.start.elapsed()).expect("a short while");
        self.begin + passed
    }
}

async fn launch(store: Arc<dyn Store>, gates: Gates, env: Env) -> (Running, kube::Client) {
    let launch = Launch {
        store,
        identity: Identity::make(&["localhost".to_owned()], jiff::Timestamp::now()).expect("certificates"),
        gates,
        env,
        static_tokens: StaticTokens::default(),
        limits: Default::default(),
        bootstrap: runtime::bootstrap_objects(),
        listener: None,
        issuer: "https://test".to_owned(),
    };
    let running = launch.start().await.expect("a server");
    let admin = kube::Client::new(running.local(User::apiserver()), "default");
    (running, admin)
}

/// The server for one controller, with a record of its requests.
#[derive(Clone)]
struct Recorded {
    inner: Local,
    account: Arc<str>,
    to: Requests,
    faults: Faults,
}

impl tower::Service<Request<kube::client::Body>> for Recorded {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<kube::client::Body>) -> Self::Future {
        let mut this = self.clone();
        let method = request.method().to_string();
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        *request.uri_mut() = this.faults.passed_over(&path).parse().expect("a path");
        Box::pin(async move {
            if this.faults.is_silent() {
                std::future::pending::<()>().await;
            }
            let mishap = this.faults.meets(&this.account, &method, &path);
            if mishap == Some(Mishap::Held) {
                this.faults.hold().await;
            }
            if mishap == Some(Mishap::Late) {
                tokio::spawn(async move {
                    this.faults.hold().await;
                    let _open = this.to.begin();
                    let Ok(response) = this.inner.call(request).await;
                    let code = response.status().as_u16();
                    this.to.note(Asked { account: this.account, method, path, code });
                });
                return Ok(out_of_order(504));
            }
            let will_be_answered = !matches!(mishap, Some(Mishap::Stuck | Mishap::AnswerStuck));
            let _open = will_be_answered.then(|| this.to.begin());
            let mut refusal = this.faults.refusal(&method, &path);
            if this.faults.guards_owners() && is_write(&method, &path) {
                let (unchanged, forbidden) = Box::pin(owners::enforce(&this.inner, request)).await;
                request = unchanged;
                refusal = refusal.or(forbidden);
            }
            let response = match (mishap, refusal) {
                (Some(Mishap::Refused(code)), _) => out_of_order(code),
                (Some(Mishap::Stuck), _) => std::future::pending().await,
                (_, Some(refusal)) => refusal,
                _ => this.inner.call(request).await?.map(|body| this.faults.tap(body, &this.account, &path)),
            };
            let response = match mishap {
                Some(Mishap::AnswerLost) => out_of_order(504),
                Some(Mishap::AnswerStuck) => std::future::pending().await,
                _ => response,
            };
            if this.faults.is_late(&this.account, &method, &path) {
                this.faults.hold().await;
            }
            let code = response.status().as_u16();
            this.to.note(Asked { account: this.account, method, path, code });
            Ok(response)
        })
    }
}

/// The path of the collection of an object.
pub fn collection(object: &Value) -> String {
    let api_version = object.text(&["apiVersion"]);
    let root = if api_version.contains('/') { "apis" } else { "api" };
    let plural = match object.text(&["kind"]) {
        "NetworkPolicy" => "networkpolicies".to_owned(),
        kind @ ("StorageClass" | "VolumeAttributesClass") => format!("{}es", kind.to_lowercase()),
        "Endpoints" => "endpoints".to_owned(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    match namespace(object) {
        "" => format!("/{root}/{api_version}/{plural}"),
        namespace => format!("/{root}/{api_version}/namespaces/{namespace}/{plural}"),
    }
}

pub fn path(object: &Value) -> String {
    format!("{}/{}", collection(object), name(object))
}

pub fn config_map(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name}})
}

pub fn secret(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name}})
}

pub fn volume(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}},
    })
}

pub fn claim(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": namespace, "name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

pub fn pod(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    })
}

pub fn stateful_set(namespace: &str, name: &str, replicas: i64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "replicas": replicas, "serviceName": "", "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "x"}]},
            },
        },
    })
}

pub fn new_namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// A CustomResourceDefinition in `example.com`, `Gear` or `Planet`, served in these versions; the first is
/// stored.
pub fn definition(kind: &str, namespaced: bool, versions: &[&str]) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let versions: Vec<Value> = versions
        .iter()
        .enumerate()
        .map(|(at, version)| {
            json!({
                "name": version, "served": true, "storage": at == 0,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            })
        })
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": if namespaced { "Namespaced" } else { "Cluster" },
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
            "versions": versions,
        },
    })
}

pub fn gear(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Gear", "metadata": {"namespace": namespace, "name": name}})
}

/// An entry of `ownerReferences`.
pub fn reference(owner: &Value, blocks: bool) -> Value {
    json!({
        "apiVersion": owner.text(&["apiVersion"]), "kind": owner.text(&["kind"]), "name": name(owner), "uid": uid(owner),
        "blockOwnerDeletion": blocks,
    })
}

/// The object with these owners, whose deletion it does not block.
pub fn owned(object: Value, owners: &[&Value]) -> Value {
    with_owners(object, owners, false)
}

/// The object with these owners, whose foreground deletion it blocks.
pub fn blocking(object: Value, owners: &[&Value]) -> Value {
    with_owners(object, owners, true)
}

fn with_owners(mut object: Value, owners: &[&Value], blocks: bool) -> Value {
    let references: Vec<Value> = owners.iter().map(|owner| reference(owner, blocks)).collect();
    object["metadata"]["ownerReferences"] = json!(references);
    object
}

pub fn held(mut object: Value) -> Value {
    object["metadata"]["finalizers"] = json!(["example.com/held"]);
    object
}

/// Fewer if the build is not optimized.
pub fn scaled(count: usize) -> usize {
    if cfg!(debug_assertions) { count / 10 } else { count }
}
