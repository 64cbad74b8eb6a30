//! The server: one request in, one answer out.

use crate::admission::Admission;
use crate::arriving::Arriving;
use crate::attributes::{Attributes, User};
use crate::authn::{self, Authenticator};
use crate::authz::Authorizer;
use crate::body::Body;
use crate::connections::Connection;
use crate::documents::Documents;
use crate::env::Env;
use crate::limits::{Limits, RequestClass};
use crate::metrics::Metrics;
use crate::negotiate;
use crate::reader::Reader;
use crate::recent::Recent;
use crate::registry::Registry;
use crate::request::{self, Query, ResourceRequest, Target, Verb};
use crate::verbs::{self, Answer, Call};
use bytes::Bytes;
use http::{Request, Response};
use object::selector::FieldSelector;
use object::{Gates, Kind, Kinds, Status, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::Store;
use tokio_util::sync::CancellationToken;

/// Events are forgotten after an hour.
const EVENT_LIFE_S: u64 = 3600;
/// Bodies above this are compressed for clients that take it.
const COMPRESS_FROM_BYTES: usize = 128 * 1024;

/// As much is said where there is no room to say more.
const SHORT_CHARS: usize = 1024;

/// A Kubernetes API server on a store.
pub struct Server {
    pub store: Arc<dyn Store>,
    pub registry: Registry,
    pub gates: Gates,
    pub env: Env,
    pub authn: Authenticator,
    /// The CA that signs client certificates; `None` signs none.
    pub(crate) ca: Option<authn::Pair>,
    pub authz: Arc<Authorizer>,
    pub admission: Admission,
    pub metrics: Metrics,
    pub(crate) documents: Documents,
    pub limits: Limits,
    pub(crate) recent: Recent,
    /// Cancelled when the server stops: watches end by themselves then.
    pub(crate) stopping: CancellationToken,
    ready: AtomicBool,
}

/// Who sends a request, before it is authenticated.
#[derive(Clone)]
pub enum Caller {
    /// A connection.
    Peer(Peer),
    /// A part of this process that acts as this user.
    Inside(Arc<User>),
}

#[derive(Clone, Default)]
pub struct Peer {
    /// The client certificate that the connection showed.
    pub certificate: Option<Arc<[u8]>>,
    /// Where the connection is counted.
    pub connection: Option<Arc<Connection>>,
}

impl Server {
    pub fn new(store: Arc<dyn Store>, gates: Gates, env: Env, authn: Authenticator, authz: Arc<Authorizer>) -> Server {
        Server {
            registry: Registry::new(store.clone()),
            admission: Admission::new(Reader { store: store.clone() }, env.ids.clone()),
            metrics: Metrics::new(store.clone()),
            documents: Documents::default(),
            limits: Limits::default(),
            recent: Recent::default(),
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

    /// Says that requests are served from now on (or, before the end, that they are not).
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Answers one request. Never fails: every error is an answer too.
    pub async fn handle(&self, request: Request<Bytes>, caller: &Caller) -> Response<Body> {
        let (parts, body) = request.into_parts();
        self.answer(&parts, &mut Arriving::Here(body), caller).await
    }

    /// As [`Server::handle`], for a body that may still be on its way: it is read when it is known that its sender may send it.
    pub(crate) async fn answer(
        &self,
        parts: &http::request::Parts,
        body: &mut Arriving,
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
        body: &mut Arriving,
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
                // The parts of this process share its lease, and their users need no right to it.
                if matches!(caller, Caller::Peer(_)) {
                    crate::fence::authorize(&parts.headers, &user, &self.authz)?;
                }
                self.resource(parts, target, query, body, (user, class.clone()), label).await
            }
        }
    }

    /// Waits until everything that any server acknowledged before this request is seen here, so that who asks, what they may do and
    /// what they read are judged by the newest state. Who asks for a version is content with what is at least that new; who asks for
    /// none in particular (0), with what is here. Health and figures are about this server.
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
        body: &mut Arriving,
        (user, class): (User, RequestClass),
        label: &mut crate::metrics::RequestLabel,
    ) -> Result<Response<Body>, Status> {
        let asked = asked(&target, &query);
        self.authz.check(&user, &asked)?;
        let (mut kinds, mut kind) = self.kind_of(&target)?;
        label.resource(&kind.group, &kind.plural);
        label.verb(target.verb);
        // The body of a request that reads is ignored.
        let mut bytes = Bytes::new();
        if target.verb.writes() {
            let arriving = if body.is_here() { None } else { Some(class.receive(&target, &kind)?) };
            bytes = body.read(class.body_room(&kind)).await?;
            drop(arriving);
            // Definitions may have changed while the body was received.
            (kinds, kind) = self.kind_of(&target)?;
        }
        // Only now: a request that is not complete must not keep others out.
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
        // The futures of verbs are large; on the heap they do not weigh on every caller's stack.
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
        // A watch keeps its place until it ends.
        answer.body = answer.body.holding(place);
        response(answer, packed)
    }

    /// The answer with room for it where it is large. What was written cannot be refused any more: a client that is told to try again
    /// would write twice. `None`: it can do without the answer.
    async fn hold(&self, call: &Call<'_>, bytes: Bytes) -> Result<Option<Bytes>, Status> {
        match call.class.hold(bytes.clone()) {
            Ok(held) => Ok(Some(held)),
            Err(status) if !verbs::has_written(call) => Err(status),
            Err(_) if call.target.verb == Verb::DeleteCollection => Ok(None),
            Err(_) => match call.class.hold_written(bytes).await {
                Some(held) => Ok(Some(held)),
                // As if the answer had been lost on its way, which clients have to expect.
                None => Err(Status::new(
                    504,
                    "Timeout",
                    "the request was carried out, but there is no room for its answer: read the object",
                )),
            },
        }
    }

    /// The kind that a request is about, as it is defined now.
    fn kind_of(&self, target: &ResourceRequest) -> Result<(Arc<Kinds>, Arc<Kind>), Status> {
        let kinds = self.registry.kinds();
        let kind = kinds.get(&target.group, &target.version, &target.plural).cloned();
        let kind = kind.ok_or_else(Status::no_such_path)?;
        check_scope(&kind, target)?;
        Ok((kinds, kind))
    }

    /// When objects of a kind go by themselves.
    pub(crate) fn expires_at_s(&self, kind: &Kind, now: jiff::Timestamp) -> Option<u64> {
        (kind.storage == "core/events").then(|| u64::try_from(now.as_second()).unwrap_or(0) + EVENT_LIFE_S)
    }
}

fn is_about_this_server(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next();
    matches!(first, Some("healthz" | "livez" | "readyz" | "metrics" | "version"))
}

/// What a request asks for, as roles see it.
pub(crate) fn attributes(target: &ResourceRequest) -> Attributes {
    Attributes {
        verb: target.verb.as_str().to_owned(),
        group: target.group.clone(),
        version: target.version.clone(),
        resource: target.plural.clone(),
        subresource: target.subresource.clone(),
        // A namespace is in itself, so that a role bound there covers it.
        namespace: if is_namespace(target) { target.name.clone() } else { target.namespace.clone() },
        name: target.name.clone(),
        ..Attributes::default()
    }
}

/// The same with what the field selector of a list or watch says: the only name that it can be about, so that a role for that name covers
/// it, and the only node. A selector that cannot be read adds nothing; the verb refuses it.
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

/// Namespaced kinds live in namespaces, the others do not: other URLs name nothing.
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

/// `packed`: the body is compressed.
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

/// The answer that says no more than yes.
fn success() -> Bytes {
    crate::render::to_bytes(&json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
}

/// The response to a refused request, shortened where there is no memory for all of it.
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

/// The answer that says no.
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
