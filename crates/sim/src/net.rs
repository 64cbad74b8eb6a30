//! The network between clients and the server: delays, duplicates and drops requests, loses responses, delays and
//! breaks watches.

use crate::commit_checker::{CommitChecker, TERM, WRITER};
use crate::entropy::Rng;
use crate::fault_point::Fault;
use crate::log::Log;
use crate::permission_checker;
use crate::process::Process;
use crate::watch_audit::WatchAudit;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{Request, Response};
use server::{Body, Local, Server, User};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::Service;

/// Probability of each fault per request or watch chunk, in 1/1000.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    pub drop: u64,
    pub lose_answer: u64,
    pub refuse: u64,
    pub duplicate: u64,
    /// The sender sees a broken connection, and the write arrives later.
    pub late_write: u64,
    pub cut_watch: u64,
    pub lag_watch: u64,
    /// Upper limit of the ordinary random delay, in milliseconds.
    pub delay_ms: u64,
}

impl FaultRates {
    pub const NONE: FaultRates = FaultRates {
        drop: 0,
        lose_answer: 0,
        refuse: 0,
        duplicate: 0,
        late_write: 0,
        cut_watch: 0,
        lag_watch: 0,
        delay_ms: 0,
    };
}

/// Late requests arrive within this time. It is shorter than the period in which the final state must not change.
const LATE_MAX: Duration = Duration::from_secs(30);
/// Delay of a write with the fault `LateWrite`.
const LATE_WRITE_DELAY: Duration = Duration::from_secs(8);

/// One network with one server. Clones share it.
#[derive(Clone)]
pub struct Net {
    pub commit_checker: Arc<CommitChecker>,
    pub log: Log,
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    rates: FaultRates,
    up: Option<ServerInstance>,
    /// Open watches. `Weak`, so that a closed watch is dropped.
    audits: Vec<Weak<OpenWatch>>,
}

/// An open watch and its audit.
struct OpenWatch {
    what: String,
    process: Process,
    audit: Mutex<WatchAudit>,
}

/// The server between two crashes.
#[derive(Clone)]
pub struct ServerInstance {
    pub server: Arc<Server>,
    /// Cancelled when the server crashes.
    pub killed: CancellationToken,
}

/// Faults to inject into one request.
#[derive(Debug, Default)]
struct RequestFaults {
    before: Duration,
    after: Duration,
    drop: bool,
    lose_answer: bool,
    refuse: Option<u16>,
    duplicate: bool,
    /// The sender sees a broken connection, and the request arrives this much later.
    late_by: Option<Duration>,
}

impl Net {
    pub fn new(commit_checker: Arc<CommitChecker>, rng: Rng) -> Net {
        let state = State { rng, rates: FaultRates::NONE, up: None, audits: Vec::new() };
        Net { log: commit_checker.log.clone(), commit_checker, state: Arc::new(Mutex::new(state)) }
    }

    pub fn set_fault_rates(&self, rates: FaultRates) {
        self.state().rates = rates;
    }

    pub fn set_server(&self, up: Option<ServerInstance>) {
        self.state().up = up;
    }

    pub fn server(&self) -> Option<ServerInstance> {
        self.state().up.clone()
    }

    /// A client of the server for one account of a process.
    pub fn client(&self, process: &Process, account: &str, user: User) -> kube::Client {
        kube::Client::new(
            Connection { net: self.clone(), process: process.clone(), account: account.into(), user },
            "default",
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes changes up to `revision` that open watches have not delivered. Ignores killed processes.
    pub fn undelivered(&self, revision: u64) -> Vec<String> {
        let open: Vec<Arc<OpenWatch>> = self.state().audits.iter().filter_map(Weak::upgrade).collect();
        let heard = open.iter().filter(|open| !open.process.killed.is_cancelled());
        let behind = |open: &Arc<OpenWatch>| {
            let audit = open.audit.lock().unwrap_or_else(PoisonError::into_inner);
            audit.undelivered(revision, &self.commit_checker).map(|rule| format!("{}: {rule}", open.what))
        };
        heard.filter_map(behind).collect()
    }

    fn draw_faults(&self, exposed: bool, is_read: bool) -> RequestFaults {
        let mut state = self.state();
        let (rates, rng) = (state.rates, &mut state.rng);
        let mut delay = |most: u64| Duration::from_micros(if most == 0 { 0 } else { rng.below(most * 1000) });
        if !exposed {
            return RequestFaults::default();
        }
        let mut faults =
            RequestFaults { before: delay(rates.delay_ms), after: delay(rates.delay_ms), ..RequestFaults::default() };
        faults.drop = rng.chance(rates.drop);
        faults.lose_answer = rng.chance(rates.lose_answer);
        if rng.chance(rates.refuse) {
            let codes: &[u16] = if is_read { &[500, 503, 429] } else { &[409, 500, 503, 429] };
            faults.refuse = Some(rng.pick(codes));
        }
        faults.duplicate = rng.chance(rates.duplicate);
        if !is_read && rng.chance(rates.late_write) {
            faults.late_by = Some(Duration::from_millis(rng.below(u64::try_from(LATE_MAX.as_millis()).unwrap_or(0))));
        }
        faults
    }

    /// Draws the delay before a watch chunk, and how many bytes pass before the watch breaks.
    fn draw_chunk_faults(&self, length: usize) -> (Duration, Option<usize>) {
        let mut state = self.state();
        let (rates, rng) = (state.rates, &mut state.rng);
        let mut pause = Duration::from_micros(rng.below(rates.delay_ms * 1000));
        if rng.chance(rates.lag_watch) {
            pause = Duration::from_millis(rng.below(15_000));
        }
        let cut = rng.chance(rates.cut_watch).then(|| {
            let whole = rng.chance(700);
            if whole { 0 } else { rng.below(length as u64) as usize }
        });
        (pause, cut)
    }
}

/// Connection of one client to the server.
#[derive(Clone)]
struct Connection {
    net: Net,
    process: Process,
    account: Arc<str>,
    user: User,
}

fn connection_error(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, why.to_owned())
}

impl Service<Request<kube::client::Body>> for Connection {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let killed = this.process.killed.clone();
            match killed.run_until_cancelled(this.send(request)).await {
                Some(result) => result,
                // The sender was killed, so it never gets a response.
                None => std::future::pending().await,
            }
        })
    }
}

impl Connection {
    async fn send(self, request: Request<kube::client::Body>) -> Result<Response<Body>, io::Error> {
        let (what, is_read, is_watch) = self.describe(&request);
        self.report(permission_checker::missing_permissions(&self.account, request.method(), request.uri()));
        let mut faults = self.net.draw_faults(self.process.exposed, is_read);
        let points = &self.net.commit_checker.points;
        let fault = if is_read { None } else { points.fault_for_request(&self.account, &path_of(request.uri())) };
        match fault {
            Some(Fault::Conflict) => faults.refuse = Some(409),
            Some(Fault::Refusal) => faults.refuse = Some(500),
            Some(Fault::LostAnswer) => faults.lose_answer = true,
            Some(Fault::Duplicate) => faults.duplicate = true,
            Some(Fault::LateWrite) => faults.late_by = Some(LATE_WRITE_DELAY),
            _ => {}
        }
        if is_read && !is_watch {
            faults.after += self.process.read_delay(&self.account);
        }
        self.net.log.record_detail(|| format!("{what} sent, {faults:?}"));
        tokio::time::sleep(faults.before).await;
        if faults.drop {
            self.net.log.fault("dropped", &what);
            return Err(connection_error("the request was lost"));
        }
        if let Some(code) = faults.refuse {
            self.net.log.fault("refused", format!("{what} {code}"));
            return Ok(refusal(code));
        }
        if is_watch && self.process.expires_now(&self.account, &path_of(request.uri())) {
            self.net.log.fault("watch-forgotten", &what);
            self.note_lost_history(&what);
            return Ok(refusal(410));
        }
        let Some(up) = self.net.server() else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            return Err(connection_error("the server is down"));
        };
        if let Some(by) = faults.late_by.filter(|_| self.may_be_late(&request)) {
            self.net.log.fault("late", format!("{what} by {} ms", by.as_millis()));
            // The request arrives even if its sender is killed.
            let place = self.namespace_uid_of_creation(&request);
            tokio::spawn(async move {
                tokio::time::sleep(by).await;
                if self.namespace_uid_of_creation(&request) != place {
                    self.net.log.fault("dropped", format!("{what}, the namespace was replaced"));
                    return Err(connection_error("the request was lost"));
                }
                self.deliver(request, faults, up).await
            });
            return Err(connection_error("the connection broke"));
        }
        if !self.process.is_disconnected() {
            return self.deliver(request, faults, up).await;
        }
        self.net.log.fault("held-up", &what);
        // A request that was sent arrives, even if its sender no longer waits for it or is killed.
        let (place, sent) = (self.namespace_uid_of_creation(&request), Instant::now());
        let late = tokio::spawn(async move {
            self.process.wait_while_disconnected().await;
            if self.process.killed.is_cancelled() {
                if is_read || !self.may_be_late(&request) || self.namespace_uid_of_creation(&request) != place {
                    return Err(connection_error("the process was killed"));
                }
                self.net.log.fault("late", format!("{what}, of a killed process"));
                faults.late_by = Some(sent.elapsed());
            }
            self.deliver(request, faults, up).await
        });
        late.await.unwrap_or_else(|error| Err(connection_error(&error.to_string())))
    }

    /// A creation of a pod has no precondition on the slice of ordinals or on the retention policy of its claim
    /// (decision 21). If the world has sets that share a slice, or the story asks for it, such a request is not
    /// delivered late.
    fn may_be_late(&self, request: &Request<kube::client::Body>) -> bool {
        let makes_pod = request.method() == http::Method::POST && request.uri().path().ends_with("/pods");
        !(makes_pod
            && (self.net.commit_checker.are_late_pods_forbidden() || self.net.commit_checker.checker().has_joined()))
    }

    /// Uid of the namespace in which a POST creates an object. A creation has no precondition on the namespace's uid
    /// (decision 21), so a late request arrives only if the namespace is still the same.
    fn namespace_uid_of_creation(&self, request: &Request<kube::client::Body>) -> Option<String> {
        let namespace = request.uri().path().split_once("/namespaces/")?.1.split('/').next()?;
        let checker = self.net.commit_checker.checker();
        let found = checker.get("Namespace", "", namespace).map(|found| object::access::uid(found).to_owned());
        found.filter(|_| request.method() == http::Method::POST)
    }

    /// Records that a late POST or apply may create an object again after its deletion.
    fn note_late_creation(&self, body: &[u8]) {
        let object = serde_json::from_slice::<object::Value>(body).unwrap_or_default();
        let (namespace, name) = (object::access::namespace(&object), object::access::name(&object));
        match object["kind"].as_str() {
            Some("PersistentVolume") => self.net.commit_checker.note_late_volume(name),
            Some("PersistentVolumeClaim") => self.net.commit_checker.note_late_claim(&format!("{namespace}/{name}")),
            _ => {}
        }
    }

    /// A client that asks for the history of a PV and gets 410 may create that PV again.
    fn note_lost_history(&self, path: &str) {
        if let Some((_, volume)) = path.split_once("fieldSelector=metadata.name%3D") {
            self.net.commit_checker.allow_recreation(volume);
        }
    }

    /// Uid of the namespace of a requested StatefulSet. A controller that gets the set late may create its claims in
    /// a new namespace of the same name, and no precondition can prevent that. Such a response is dropped instead.
    fn namespace_uid_of_set(&self, parts: &http::request::Parts) -> Option<String> {
        let (namespace, rest) = parts.uri.path().split_once("/namespaces/")?.1.split_once('/')?;
        let is_asked = parts.method == http::Method::GET && rest.starts_with("statefulsets/");
        let checker = self.net.commit_checker.checker();
        let found = checker.get("Namespace", "", namespace).map(|found| object::access::uid(found).to_owned());
        found.filter(|_| is_asked)
    }

    /// Delivers the request to `up`, the server at the time of sending.
    async fn deliver(
        self,
        request: Request<kube::client::Body>,
        faults: RequestFaults,
        up: ServerInstance,
    ) -> Result<Response<Body>, io::Error> {
        let (what, is_read, is_watch) = self.describe(&request);
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(|error| connection_error(&error.to_string()))?;
        if faults.late_by.is_some() {
            self.note_late_creation(&body);
        }
        if faults.duplicate && !is_watch {
            self.net.log.fault("duplicated", &what);
            self.call_server(&up, &parts, &body).await?;
        }
        let response = self.call_server(&up, &parts, &body).await?;
        let code = response.status().as_u16();
        if code == 410 {
            self.note_lost_history(&what);
        }
        match is_read {
            true => self.net.log.record_detail(|| format!("{what} {code}")),
            false => self.net.log.record(format!("{what} {code}")),
        }
        if faults.lose_answer {
            self.net.log.fault("answer-lost", &what);
            return Err(connection_error("the response was lost"));
        }
        let place = self.namespace_uid_of_set(&parts);
        tokio::time::sleep(faults.after).await;
        self.process.wait_while_disconnected().await;
        if self.namespace_uid_of_set(&parts) != place {
            self.net.log.fault("answer-lost", format!("{what}, the namespace was replaced"));
            return Err(connection_error("the response was lost"));
        }
        if up.killed.is_cancelled() {
            return Err(connection_error("the server crashed"));
        }
        let path = path_of(&parts.uri);
        if &*self.account == "csi-provisioner" && path.starts_with("/api/v1/persistentvolumes?limit=") {
            self.net.commit_checker.checker().provisioner_looked();
        }
        if !is_watch || !response.status().is_success() {
            return Ok(response);
        }
        let accept = parts.headers.get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
        let audit = WatchAudit::of(&path, accept, &self.net.commit_checker);
        Ok(self.audit_watch(response, &up, audit, what))
    }

    /// Description for the log, whether the request reads, and whether it watches.
    fn describe(&self, request: &Request<kube::client::Body>) -> (String, bool, bool) {
        let (method, path) = (request.method(), path_of(request.uri()));
        (format!("{} {method} {path}", self.account), method == http::Method::GET, path.contains("watch=true"))
    }

    async fn call_server(
        &self,
        up: &ServerInstance,
        parts: &http::request::Parts,
        body: &Bytes,
    ) -> Result<Response<Body>, io::Error> {
        let mut server = Local::new(up.server.clone(), self.user.clone());
        let request = Request::from_parts(parts.clone(), kube::client::Body::from(body.to_vec()));
        let stored = |key: &str| up.server.store.get(key).and_then(|found| serde_json::from_slice(&found.value).ok());
        self.report(permission_checker::missing_owner_permissions(
            &self.account,
            &parts.method,
            &parts.uri,
            body,
            stored,
        ));
        let term = parts.headers.get(server::LEASE_HEADER).and_then(|term| term.to_str().ok()).map(Arc::from);
        let answer = TERM.scope(term, WRITER.scope(self.account.clone(), server.call(request)));
        match up.killed.run_until_cancelled(answer).await {
            Some(Ok(response)) => {
                self.report(permission_checker::refused_by_rbac(&self.account, &response));
                Ok(response)
            }
            None => Err(connection_error("the server crashed")),
        }
    }

    /// No story removes permissions, so a missing permission is a defect of a role or of a controller.
    fn report(&self, lacking: impl IntoIterator<Item = String>) {
        lacking.into_iter().for_each(|right| self.net.log.violation(format!("missing permission: {right}")));
    }

    /// Returns the response with an audit of its watch events.
    fn audit_watch(
        self,
        response: Response<Body>,
        up: &ServerInstance,
        audit: Option<WatchAudit>,
        what: String,
    ) -> Response<Body> {
        let process = self.process.clone();
        let audit = audit.map(|audit| Arc::new(OpenWatch { what: what.clone(), process, audit: Mutex::new(audit) }));
        if let Some(audit) = &audit {
            let mut state = self.net.state();
            state.audits.retain(|open| open.strong_count() > 0);
            state.audits.push(Arc::downgrade(audit));
        }
        let (killed, cut) = (up.killed.clone(), self.process.watches());
        response.map(|body| match body {
            Body::Stream(chunks) => {
                let ended = async move { killed.run_until_cancelled(cut.cancelled()).await };
                Body::Stream(Box::pin(self.chunks(chunks, audit, what).take_until(Box::pin(ended))))
            }
            once => once,
        })
    }

    fn chunks(
        self,
        chunks: impl Stream<Item = Bytes> + Send + Unpin + 'static,
        audit: Option<Arc<OpenWatch>>,
        what: String,
    ) -> impl Stream<Item = Bytes> + Send {
        let exposed = self.process.exposed;
        futures::stream::unfold(
            (self, chunks, audit, what, false),
            move |(this, mut chunks, audit, what, over)| async move {
                if over {
                    return None;
                }
                let chunk = chunks.next().await?;
                if chunk.starts_with(b"{\"type\":\"ERROR\"") {
                    this.note_lost_history(&what);
                }
                if let Some(open) = &audit {
                    let mut audit = open.audit.lock().unwrap_or_else(PoisonError::into_inner);
                    for rule in audit.check_chunk(&chunk, &this.net.commit_checker) {
                        this.net.log.violation(format!("{what}: {rule}"));
                    }
                }
                this.process.wait_while_held(&this.account).await;
                this.process.wait_while_disconnected().await;
                if !exposed {
                    return Some((chunk, (this, chunks, audit, what, false)));
                }
                let (pause, cut) = this.net.draw_chunk_faults(chunk.len());
                this.net.log.record_detail(|| format!("{what} delivers {} bytes after {pause:?}", chunk.len()));
                if pause > Duration::from_secs(1) {
                    this.net.log.fault("watch-lags", format!("{what} {} ms", pause.as_millis()));
                }
                tokio::time::sleep(pause).await;
                let chunk = match cut {
                    Some(at) => {
                        this.net.log.fault("watch-cut", &what);
                        chunk.slice(..at)
                    }
                    None => chunk,
                };
                Some((chunk, (this, chunks, audit, what, cut.is_some())))
            },
        )
    }
}

fn path_of(uri: &http::Uri) -> String {
    uri.path_and_query().map(ToString::to_string).unwrap_or_default()
}

fn refusal(code: u16) -> Response<Body> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    server::app::status_response(&object::Status::new(code, reason, "injected fault"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request arrives, although its sender was disconnected and then killed.
    #[test]
    fn a_sent_request_arrives_after_its_sender_is_killed() {
        crate::world::prepare();
        let (arrived, late) = crate::run::on_own_thread(1, || async {
            let (world, _orders) = crate::world::World::new(1).await;
            let process = Process::new("controllers", true);
            let client = world.net.client(&process, "somebody", User::apiserver());
            process.disconnect(Duration::from_secs(25));
            tokio::spawn(async move {
                let body = object::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "late"}});
                let request = Request::post("/api/v1/namespaces").header("content-type", "application/json");
                let request = request.body(body.to_string().into_bytes()).expect("a request");
                client.request::<object::Value>(request).await
            });
            tokio::time::sleep(Duration::from_secs(1)).await;
            process.killed.cancel();
            let is_there = || world.checker().get("Namespace", "", "late").is_some();
            let at_first = is_there();
            tokio::time::sleep(Duration::from_secs(30)).await;
            ((at_first, is_there()), world.log.faults().get("late").copied())
        });
        assert_eq!(arrived, (false, true));
        assert_eq!(late, Some(1), "it is counted as late");
    }
}
