//! The server: handles one request and returns one response.

use crate::admission::Admission;
use crate::attributes::{Attributes, User};
use crate::authn::{self, Authenticator};
use crate::authz::Authorizer;
use crate::body::Body;
use crate::connections::Connection;
use crate::discovery_cache::DiscoveryCache;
use crate::env::Env;
use crate::limits::{Limits, RequestClass};
use crate::metrics::Metrics;
use crate::negotiate;
use crate::object_store::Reader;
use crate::registry::Registry;
use crate::request::{self, Query, ResourceRequest, Target, Verb};
use crate::request_body::RequestBody;
use crate::verbs::{self, Answer, Call};
use crate::write_cache::WriteCache;
use bytes::Bytes;
use http::{Request, Response};
use object::selector::FieldSelector;
use object::{Gates, Kind, Kinds, Status, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::Store;
use tokio_util::sync::CancellationToken;

/// Events expire after one hour.
const EVENT_LIFE_S: u64 = 3600;
/// Larger bodies are compressed for clients that accept gzip.
const COMPRESS_FROM_BYTES: usize = 128 * 1024;

/// Messages are cut to this length when there is no memory for a longer response.
const SHORT_CHARS: usize = 1024;

/// A Kubernetes API server on a store.
pub struct Server {
    pub store: Arc<dyn Store>,
    pub registry: Registry,
    pub gates: Gates,
    pub env: Env,
    pub authn: Authenticator,
    /// The CA that signs client certificates. `None` disables signing.
    pub(crate) ca: Option<authn::Pair>,
    pub authz: Arc<Authorizer>,
    pub admission: Admission,
    pub metrics: Metrics,
    pub(crate) discovery_cache: DiscoveryCache,
    pub limits: Limits,
    pub(crate) write_cache: WriteCache,
    /// Cancelled when the server stops, which ends all watches.
    pub(crate) stopping: CancellationToken,
    ready: AtomicBool,
}

/// The sender of a request, before authentication.
#[derive(Clone)]
pub enum Caller {
    /// A network connection.
    Peer(Peer),
    /// A component of this process that acts as this user.
    Inside(Arc<User>),
}

/// The sender of a request that arrives over the network.
#[derive(Clone, Default)]
pub struct Peer {
    /// The client certificate of the connection, if the client sent one.
    pub certificate: Option<Arc<[u8]>>,
    /// The entry of this connection in the connection limits.
    pub connection: Option<Arc<Connection>>,
}

impl Server {
    pub fn new(store: Arc<dyn Store>, gates: Gates, env: Env, authn: Authenticator, authz: Arc<Authorizer>) -> Server {
        Server {
            registry: Registry::new(store.clone()),
            admission: Admission::new(Reader { store: store.clone() }, env.ids.clone()),
            metrics: Metrics::new(store.clone()),
            discovery_cache: DiscoveryCache::default(),
            limits: Limits::default(),
            write_cache: WriteCache::default(),
            stopping: CancellationToken::new(),
            ready: AtomicBool::new(false),
            store,
            gates,
            env,
            authn,
            ca: None,
            authz,
        }
    }

    /// Sets whether the server is ready for requests. It is not ready before the start is complete and while it
    /// stops.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Handles one request. Never fails: every error becomes a response.
    pub async fn handle(&self, request: Request<Bytes>, caller: &Caller) -> Response<Body> {
        let (parts, body) = request.into_parts();
        self.answer(&parts, &mut RequestBody::Complete(body), caller).await
    }

    /// Like [`Server::handle`], for a body that may not be received yet. The body is read only after the sender is
    /// authorized.
    pub(crate) async fn answer(
        &self,
        parts: &http::request::Parts,
        body: &mut RequestBody,
        caller: &Caller,
    ) -> Response<Body> {
        let started = std::time::Instant::now();
        let mut label = crate::metrics::RequestLabel::new(&parts.method);
        let mut class = self.limits.unauthenticated();
        let result = self.route(parts, body, caller, &mut class, &mut label).await;
        let response = result.unwrap_or_else(|status| refusal(&status, &class));
        let (code, duration) = (response.status().as_u16(), started.elapsed());
        label.log(parts.uri.path(), code, duration);
        self.metrics.observe(label, code, duration);
        response
    }

    async fn route(
        &self,
        parts: &http::request::Parts,
        body: &mut RequestBody,
        caller: &Caller,
        class: &mut RequestClass,
        label: &mut crate::metrics::RequestLabel,
    ) -> Result<Response<Body>, Status> {
        let path = parts.uri.path();
        let query = Query::parse(parts.uri.query().unwrap_or(""))?;
        let target = request::parse(&parts.method, path, &query)?;
        self.settle(&target, path, &query).await?;
        let user = match caller {
            Caller::Inside(user) => User::clone(user),
            Caller::Peer(peer) => {
                let user = self.authn.authenticate(&parts.headers, peer.certificate.as_deref())?;
                if let Some(connection) = &peer.connection
                    && !user.is_anonymous()
                {
                    connection.authenticated(&self.limits.classify(&user, false));
                }
                let allow = |user: &User, attributes: &Attributes| self.authz.check(user, attributes);
                authn::impersonate(&parts.headers, &user, &allow)?.unwrap_or(user)
            }
        };
        label.user(&user.name);
        *class = self.limits.classify(&user, matches!(caller, Caller::Inside(_)));
        match target {
            Target::Path => {
                self.authz.check(&user, &crate::paths::attributes(&parts.method, path))?;
                label.resource("", "");
                crate::paths::answer(self, parts, path, &query, &user).await
            }
            Target::Resource(target) => {
                // Components of this process share its lease, and their users need no permission for it.
                if matches!(caller, Caller::Peer(_)) {
                    crate::lease_precondition::authorize(&parts.headers, &user, &self.authz)?;
                }
                self.resource(parts, target, query, body, (user, class.clone()), label).await
            }
        }
    }

    /// Waits until this server has seen everything that any server acknowledged before this request, so that
    /// identity, permissions and objects are read from the newest state. Does not wait for a list with a
    /// resourceVersion, which accepts any state at least that new (0: any state), nor for health and metrics, which
    /// describe this server.
    async fn settle(&self, target: &Target, path: &str, query: &Query) -> Result<(), Status> {
        let content = match target {
            Target::Path => is_about_this_server(path),
            Target::Resource(target) if target.verb.writes() => false,
            Target::Resource(_) => {
                let version = query.get("resourceVersion").and_then(|version| version.parse::<u64>().ok());
                version.is_some_and(|version| version <= self.store.revision())
            }
        };
        if content {
            return Ok(());
        }
        self.store.barrier().await.map_err(|error| match error {
            store::Error::Unavailable(why) => Status::unavailable(format!("the store cannot be reached: {why}")),
            error => verbs::store_status(&error),
        })
    }

    async fn resource(
        &self,
        parts: &http::request::Parts,
        target: ResourceRequest,
        query: Query,
        body: &mut RequestBody,
        (user, class): (User, RequestClass),
        label: &mut crate::metrics::RequestLabel,
    ) -> Result<Response<Body>, Status> {
        let asked = asked(&target, &query);
        self.authz.check(&user, &asked)?;
        let (mut kinds, mut kind) = self.kind_of(&target)?;
        label.resource(&kind.group, &kind.plural);
        label.verb(target.verb);
        // The body of a read request is ignored.
        let mut bytes = Bytes::new();
        if target.verb.writes() {
            let arriving = if body.is_complete() { None } else { Some(class.receive(&target, &kind)?) };
            bytes = body.read(class.body_room(&kind)).await?;
            drop(arriving);
            // CustomResourceDefinitions may have changed while the body was received.
            (kinds, kind) = self.kind_of(&target)?;
        }
        // Count the request only now: an incomplete request must not block others.
        let place = class.enter(&target, &kind)?;
        let call = Call {
            server: self,
            kinds,
            kind,
            target,
            query,
            headers: &parts.headers,
            body: bytes,
            user,
            class,
            now: self.env.clock.now(),
        };
        // The futures of verbs are large. Boxing keeps the caller's future small.
        let mut answer = Box::pin(verbs::answer(&call)).await?;
        answer.warnings.extend(call.kind.rules.deprecation().map(str::to_owned));
        let mut packed = false;
        if let Body::Once(mut bytes) = answer.body {
            packed = bytes.len() >= COMPRESS_FROM_BYTES && negotiate::takes_gzip(&parts.headers);
            if packed {
                bytes = gzip(&bytes);
            }
            let held = self.hold(&call, bytes).await?;
            packed = packed && held.is_some();
            answer.body = Body::Once(held.unwrap_or_else(success));
        }
        // A watch keeps its slot until it ends.
        answer.body = answer.body.holding(place);
        response(answer, packed)
    }

    /// Returns the response with memory reserved for it if it is large. A write is already committed, so it must not
    /// be refused: the client would retry and write twice. Returns `None` if a write without a response body
    /// suffices.
    async fn hold(&self, call: &Call<'_>, bytes: Bytes) -> Result<Option<Bytes>, Status> {
        match call.class.hold(bytes.clone()) {
            Ok(held) => Ok(Some(held)),
            Err(status) if !verbs::has_written(call) => Err(status),
            Err(_) if call.target.verb == Verb::DeleteCollection => Ok(None),
            Err(_) => match call.class.hold_written(bytes).await {
                Some(held) => Ok(Some(held)),
                // To the client this is like a lost response, which it must expect.
                None => Err(Status::new(
                    504,
                    "Timeout",
                    "the request was carried out, but there is no room for its answer: read the object",
                )),
            },
        }
    }

    /// The requested kind, from the newest definitions.
    fn kind_of(&self, target: &ResourceRequest) -> Result<(Arc<Kinds>, Arc<Kind>), Status> {
        let kinds = self.registry.kinds();
        let kind = kinds.get(&target.group, &target.version, &target.plural).cloned();
        let kind = kind.ok_or_else(Status::no_such_path)?;
        check_scope(&kind, target)?;
        Ok((kinds, kind))
    }

    /// When objects of a kind expire, in Unix seconds; `None` for never.
    pub(crate) fn expires_at_s(&self, kind: &Kind, now: jiff::Timestamp) -> Option<u64> {
        (kind.storage == "core/events").then(|| u64::try_from(now.as_second()).unwrap_or(0) + EVENT_LIFE_S)
    }
}

fn is_about_this_server(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next();
    matches!(first, Some("healthz" | "livez" | "readyz" | "metrics" | "version"))
}

/// The request's attributes for authorization.
pub(crate) fn attributes(target: &ResourceRequest) -> Attributes {
    Attributes {
        verb: target.verb.as_str().to_owned(),
        group: target.group.clone(),
        version: target.version.clone(),
        resource: target.plural.clone(),
        subresource: target.subresource.clone(),
        // A Namespace counts as an object in itself, so that a role bound in the namespace covers it.
        namespace: if is_namespace(target) { target.name.clone() } else { target.namespace.clone() },
        name: target.name.clone(),
        ..Attributes::default()
    }
}

/// Attributes of a list or watch, with the name and the node that its field selector requires. So a role limited to
/// one name covers it. An invalid selector adds nothing here; the verb refuses it.
pub(crate) fn asked(target: &ResourceRequest, query: &Query) -> Attributes {
    let mut asked = attributes(target);
    let selects = matches!(target.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
    if !asked.name.is_empty() || !selects {
        return asked;
    }
    if let Ok(selector) = FieldSelector::parse(query.get("fieldSelector").unwrap_or("")) {
        let exact = |field| selector.exact(field).unwrap_or_default().to_owned();
        asked.name = exact("metadata.name");
        asked.selected_node = exact("spec.nodeName");
    }
    asked
}

fn is_namespace(target: &ResourceRequest) -> bool {
    target.group.is_empty() && target.plural == "namespaces"
}

/// A namespaced kind needs a namespace in the path, other kinds must not have one. Other paths give 404.
fn check_scope(kind: &Kind, target: &ResourceRequest) -> Result<(), Status> {
    if !kind.namespaced && !target.namespace.is_empty() {
        return Err(Status::no_such_path());
    }
    let across = matches!(target.verb, Verb::List | Verb::Watch | Verb::DeleteCollection) && target.name.is_empty();
    if kind.namespaced && target.namespace.is_empty() && !across {
        if target.verb == Verb::Create && target.name.is_empty() {
            return Err(Status::bad_request("an empty namespace may not be set during creation"));
        }
        return Err(Status::no_such_path());
    }
    Ok(())
}

/// Builds the HTTP response. `packed`: the body is compressed.
fn response(answer: Answer, packed: bool) -> Result<Response<Body>, Status> {
    let mut builder = Response::builder().status(answer.code).header(http::header::CONTENT_TYPE, answer.content_type);
    for value in crate::warnings::headers(&answer.warnings) {
        builder = builder.header(http::header::WARNING, value);
    }
    if packed {
        builder = builder.header(http::header::CONTENT_ENCODING, "gzip").header(http::header::VARY, "Accept-Encoding");
    }
    builder.body(answer.body).map_err(Status::internal)
}

pub(crate) fn gzip(bytes: &[u8]) -> Bytes {
    use std::io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::with_capacity(bytes.len() / 4), flate2::Compression::fast());
    match packer.write_all(bytes).and_then(|()| packer.finish()) {
        Ok(packed) => Bytes::from(packed),
        Err(error) => unreachable!("writing to memory does not fail: {error}"),
    }
}

/// A Status of success without details.
fn success() -> Bytes {
    crate::render::to_bytes(&json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
}

/// The response to a refused request. It is shortened if there is no memory for all of it.
fn refusal(status: &Status, class: &RequestClass) -> Response<Body> {
    let response = status_response(status);
    let Body::Once(bytes) = response.body() else { return response };
    match class.hold(bytes.clone()) {
        Ok(bytes) => response.map(|_| Body::Once(bytes)),
        Err(_) => {
            let message: String = status.message.chars().take(SHORT_CHARS).collect();
            status_response(&Status { message, details: None, ..status.clone() })
        }
    }
}

/// The HTTP response for an error status.
pub fn status_response(status: &Status) -> Response<Body> {
    let mut builder = Response::builder().status(status.code).header(http::header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|s| *s > 0) {
        builder = builder.header(http::header::RETRY_AFTER, seconds);
    }
    if status.code == 401 {
        builder = builder.header(http::header::WWW_AUTHENTICATE, "Bearer realm=\"mainstay\"");
    }
    let body = Body::Once(crate::render::to_bytes(&status.to_value()));
    builder.body(body).unwrap_or_else(|_| Response::new(Body::empty()))
}
