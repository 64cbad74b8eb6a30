//! What is between a client and the server: requests that come late, twice or never, answers that get lost, watches that lag and break.

use crate::audit::Audit;
use crate::entropy::Rng;
use crate::ledger::{Ledger, TERM, WRITER};
use crate::log::Log;
use crate::point::Strike;
use crate::rights;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{Request, Response};
use server::{Body, Local, Server, User};
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::Service;

/// How often what goes wrong, in a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub drop: u64,
    pub lose_answer: u64,
    pub refuse: u64,
    pub duplicate: u64,
    /// Writes whose sender hears that the connection broke, and which arrive later all the same.
    pub late_write: u64,
    pub cut_watch: u64,
    pub lag_watch: u64,
    /// The longest usual delay of anything.
    pub delay_ms: u64,
}

impl Weather {
    pub const CALM: Weather = Weather {
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

/// What arrives late does so within this time: shorter than the rest that a story must come to.
const LATE_MAX: Duration = Duration::from_secs(30);
/// Watches that broke are back within this time.
const FORGOTTEN_FOR: Duration = Duration::from_secs(5);
/// How late a write is that is struck so.
const LATE_BY: Duration = Duration::from_secs(8);

/// One network with one server; clones share it.
#[derive(Clone)]
pub struct Net {
    pub ledger: Arc<Ledger>,
    pub log: Log,
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    weather: Weather,
    up: Option<Up>,
    /// The watches that are open, as long as somebody reads them.
    audits: Vec<Weak<Audited>>,
}

/// A watch that is audited.
struct Audited {
    what: String,
    process: Process,
    audit: Mutex<Audit>,
}

/// One life of the server.
#[derive(Clone)]
pub struct Up {
    pub server: Arc<Server>,
    /// Cancelled when it dies.
    pub dead: CancellationToken,
}

/// One life of a client process, with all that it runs.
#[derive(Clone)]
pub struct Process {
    pub name: &'static str,
    /// Cancelled when it is killed.
    pub dead: CancellationToken,
    /// Cancelled, and replaced, to break its watches.
    watches: Arc<Mutex<CancellationToken>>,
    /// Whose watches are held back until this is cancelled. (A `tokio::sync::watch` would wake those who wait in any order.)
    held: Arc<Mutex<Option<(Whom, CancellationToken)>>>,
    /// Until when what it reads arrives late, by how much, and whose reads do.
    late: Arc<Mutex<Option<(Instant, Duration, Whom)>>>,
    /// Until when watches that go on where they were are told that this is forgotten, each once.
    forgotten: Arc<Mutex<Option<Forgotten>>>,
    /// Until when it is cut off from the server.
    cut_off: Arc<Mutex<Option<Instant>>>,
    /// Whether the network may mistreat it.
    pub exposed: bool,
}

/// Which part of a process something happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    All,
    /// The one with this account: what it sees, others of its process may see otherwise.
    One(&'static str),
}

impl Whom {
    /// The controllers that decide about sets, claims and volumes by what they see.
    const DECIDERS: [&'static str; 8] = [
        "statefulset-controller",
        "persistent-volume-binder",
        "csi-provisioner",
        "csi-resizer",
        "generic-garbage-collector",
        "pvc-protection-controller",
        "pv-protection-controller",
        "namespace-controller",
    ];

    /// One of the deciders, in turn.
    pub fn dealt(at: u64) -> Whom {
        let at = usize::try_from(at).unwrap_or(0) % Whom::DECIDERS.len();
        Whom::One(Whom::DECIDERS[at])
    }

    fn is(self, account: &str) -> bool {
        match self {
            Whom::All => true,
            Whom::One(one) => one == account,
        }
    }
}

impl std::fmt::Display for Whom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Whom::All => "of all",
            Whom::One(account) => account,
        })
    }
}

struct Forgotten {
    until: Instant,
    whom: Whom,
    /// Which watches were told, by account and path: several controllers of a process follow the same kind.
    told: BTreeSet<(String, String)>,
}

impl Process {
    pub fn new(name: &'static str, exposed: bool) -> Process {
        Process {
            name,
            dead: CancellationToken::new(),
            watches: Arc::default(),
            held: Arc::default(),
            late: Arc::default(),
            forgotten: Arc::default(),
            cut_off: Arc::default(),
            exposed,
        }
    }

    pub fn cut_watches(&self) {
        std::mem::take(&mut *self.watches.lock().unwrap_or_else(PoisonError::into_inner)).cancel();
    }

    /// Their watches are held back, until all are released.
    pub fn hold_watches(&self, whom: Whom) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert_with(|| (whom, CancellationToken::new()));
    }

    pub fn release_watches(&self) {
        if let Some((_, until)) = self.held.lock().unwrap_or_else(PoisonError::into_inner).take() {
            until.cancel();
        }
    }

    /// Waits while the watches of this account are held back.
    async fn hears(&self, account: &str) {
        let held = || self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        while let Some((_, until)) = held().filter(|(whom, _)| whom.is(account)) {
            until.cancelled().await;
        }
    }

    /// Its watches break, and what was not told by theirs is forgotten by the server: whoever wants to go on must list.
    pub fn forget_watches(&self, whom: Whom) {
        let forgotten = Forgotten { until: Instant::now() + FORGOTTEN_FOR, whom, told: BTreeSet::new() };
        *self.forgotten.lock().unwrap_or_else(PoisonError::into_inner) = Some(forgotten);
        self.cut_watches();
        self.release_watches();
    }

    /// Whether a watch that wants to go on is told that it cannot.
    fn is_forgotten(&self, account: &str, path: &str) -> bool {
        let mut forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |it: &&mut Forgotten| Instant::now() < it.until && it.whom.is(account);
        let Some(Forgotten { told, .. }) = forgotten.as_mut().filter(is_meant) else { return false };
        let what: Vec<&str> = path.split(['?', '&']).filter(|part| !part.starts_with("resourceVersion=")).collect();
        path.contains("resourceVersion=") && told.insert((account.to_owned(), what.join("&")))
    }

    /// For so long, whatever they read arrives so much later.
    pub fn delay_reads(&self, by: Duration, whom: Whom) {
        *self.late.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now() + by, by, whom));
    }

    /// For so long it reaches nobody and hears nothing. What it has sent arrives then.
    pub fn cut_off(&self, time: Duration) {
        *self.cut_off.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
    }

    /// Waits while it is cut off.
    async fn reached(&self) {
        loop {
            let until = *self.cut_off.lock().unwrap_or_else(PoisonError::into_inner);
            match until.filter(|until| Instant::now() < *until) {
                Some(until) => tokio::time::sleep_until(until).await,
                None => return,
            }
        }
    }

    fn is_cut_off(&self) -> bool {
        let until = *self.cut_off.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn read_delay(&self, account: &str) -> Duration {
        let late = *self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |(until, _, whom): &(Instant, Duration, Whom)| Instant::now() < *until && whom.is(account);
        late.filter(is_meant).map_or(Duration::ZERO, |(_, by, _)| by)
    }

    fn watches(&self) -> CancellationToken {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What is to become of one request.
#[derive(Debug, Default)]
struct Fate {
    before: Duration,
    after: Duration,
    drop: bool,
    lose_answer: bool,
    refuse: Option<u16>,
    duplicate: bool,
    /// It arrives so much later than its sender believes it lost.
    late_by: Option<Duration>,
}

impl Net {
    pub fn new(ledger: Arc<Ledger>, rng: Rng) -> Net {
        let state = State { rng, weather: Weather::CALM, up: None, audits: Vec::new() };
        Net { log: ledger.log.clone(), ledger, state: Arc::new(Mutex::new(state)) }
    }

    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    pub fn set_server(&self, up: Option<Up>) {
        self.state().up = up;
    }

    pub fn server(&self) -> Option<Up> {
        self.state().up.clone()
    }

    /// A client of the server inside a process.
    pub fn client(&self, process: &Process, account: &str, user: User) -> kube::Client {
        kube::Client::new(
            Link { net: self.clone(), process: process.clone(), account: account.into(), user },
            "default",
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What open watches have not told of all up to a revision. The dead hear nothing.
    pub fn behind(&self, revision: u64) -> Vec<String> {
        let open: Vec<Arc<Audited>> = self.state().audits.iter().filter_map(Weak::upgrade).collect();
        let heard = open.iter().filter(|open| !open.process.dead.is_cancelled());
        let behind = |open: &Arc<Audited>| {
            let audit = open.audit.lock().unwrap_or_else(PoisonError::into_inner);
            audit.behind(revision, &self.ledger).map(|rule| format!("{}: {rule}", open.what))
        };
        heard.filter_map(behind).collect()
    }

    fn fate(&self, exposed: bool, is_read: bool) -> Fate {
        let mut state = self.state();
        let (weather, rng) = (state.weather, &mut state.rng);
        let mut delay = |most: u64| Duration::from_micros(if most == 0 { 0 } else { rng.below(most * 1000) });
        if !exposed {
            return Fate::default();
        }
        let mut fate = Fate { before: delay(weather.delay_ms), after: delay(weather.delay_ms), ..Fate::default() };
        fate.drop = rng.chance(weather.drop);
        fate.lose_answer = rng.chance(weather.lose_answer);
        if rng.chance(weather.refuse) {
            let codes: &[u16] = if is_read { &[500, 503, 429] } else { &[409, 500, 503, 429] };
            fate.refuse = Some(rng.pick(codes));
        }
        fate.duplicate = rng.chance(weather.duplicate);
        if !is_read && rng.chance(weather.late_write) {
            fate.late_by = Some(Duration::from_millis(rng.below(u64::try_from(LATE_MAX.as_millis()).unwrap_or(0))));
        }
        fate
    }

    /// What becomes of a watch's next chunk: the pause before it, and how much of it comes through before the watch breaks.
    fn chunk_fate(&self, length: usize) -> (Duration, Option<usize>) {
        let mut state = self.state();
        let (weather, rng) = (state.weather, &mut state.rng);
        let mut pause = Duration::from_micros(rng.below(weather.delay_ms * 1000));
        if rng.chance(weather.lag_watch) {
            pause = Duration::from_millis(rng.below(15_000));
        }
        let cut = rng.chance(weather.cut_watch).then(|| {
            let whole = rng.chance(700);
            if whole { 0 } else { rng.below(length as u64) as usize }
        });
        (pause, cut)
    }
}

/// One client's way to the server.
#[derive(Clone)]
struct Link {
    net: Net,
    process: Process,
    account: Arc<str>,
    user: User,
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, why.to_owned())
}

impl Service<Request<kube::client::Body>> for Link {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let dead = this.process.dead.clone();
            match dead.run_until_cancelled(this.send(request)).await {
                Some(result) => result,
                // Whoever asked is dead and hears nothing any more.
                None => std::future::pending().await,
            }
        })
    }
}

impl Link {
    async fn send(self, request: Request<kube::client::Body>) -> Result<Response<Body>, io::Error> {
        let (what, is_read, is_watch) = self.about(&request);
        self.report(rights::lacks(&self.account, request.method(), request.uri()));
        let mut fate = self.net.fate(self.process.exposed, is_read);
        let points = &self.net.ledger.points;
        let strike = if is_read { None } else { points.requested(&self.account, &path_of(request.uri())) };
        match strike {
            Some(Strike::Conflict) => fate.refuse = Some(409),
            Some(Strike::Refusal) => fate.refuse = Some(500),
            Some(Strike::LostAnswer) => fate.lose_answer = true,
            Some(Strike::Duplicate) => fate.duplicate = true,
            Some(Strike::LateWrite) => fate.late_by = Some(LATE_BY),
            _ => {}
        }
        if is_read && !is_watch {
            fate.after += self.process.read_delay(&self.account);
        }
        self.net.log.detail(|| format!("{what} sets out, {fate:?}"));
        tokio::time::sleep(fate.before).await;
        if fate.drop {
            self.net.log.fault("dropped", &what);
            return Err(broken("the request got lost"));
        }
        if let Some(code) = fate.refuse {
            self.net.log.fault("refused", format!("{what} {code}"));
            return Ok(refusal(code));
        }
        if is_watch && self.process.is_forgotten(&self.account, &path_of(request.uri())) {
            self.net.log.fault("watch-forgotten", &what);
            self.note_forgotten(&what);
            return Ok(refusal(410));
        }
        let Some(up) = self.net.server() else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            return Err(broken("nobody answers"));
        };
        if let Some(by) = fate.late_by.filter(|_| self.may_be_late(&request)) {
            self.net.log.fault("late", format!("{what} by {} ms", by.as_millis()));
            // It is on its way, whatever becomes of its sender.
            let place = self.place_of_creation(&request);
            tokio::spawn(async move {
                tokio::time::sleep(by).await;
                if self.place_of_creation(&request) != place {
                    self.net.log.fault("dropped", format!("{what}, in another namespace by now"));
                    return Err(broken("the request got lost"));
                }
                self.arrive(request, fate, up).await
            });
            return Err(broken("the connection broke"));
        }
        if !self.process.is_cut_off() {
            return self.arrive(request, fate, up).await;
        }
        self.net.log.fault("held-up", &what);
        // What was sent arrives in the end, whether or not its sender still waits for it, or lives.
        let (place, sent) = (self.place_of_creation(&request), Instant::now());
        let late = tokio::spawn(async move {
            self.process.reached().await;
            if self.process.dead.is_cancelled() {
                if is_read || !self.may_be_late(&request) || self.place_of_creation(&request) != place {
                    return Err(broken("the process died"));
                }
                self.net.log.fault("late", format!("{what}, of a process that died"));
                fate.late_by = Some(sent.elapsed());
            }
            self.arrive(request, fate, up).await
        });
        late.await.unwrap_or_else(|error| Err(broken(&error.to_string())))
    }

    /// Nothing in a request can keep a pod from being created when its slice has moved on meanwhile, or its claim was kept under another policy
    /// (decision 21): where sets stand for one, or a story says so, such a request is not late.
    fn may_be_late(&self, request: &Request<kube::client::Body>) -> bool {
        let makes_pod = request.method() == http::Method::POST && request.uri().path().ends_with("/pods");
        !(makes_pod && (self.net.ledger.are_pods_in_time() || self.net.ledger.checker().has_joined()))
    }

    /// The uid of the namespace that something is created in. Nothing in a request can keep it from being created in the next namespace
    /// of that name (decision 21), so what is late arrives in the one that it was sent to, or never.
    fn place_of_creation(&self, request: &Request<kube::client::Body>) -> Option<String> {
        let namespace = request.uri().path().split_once("/namespaces/")?.1.split('/').next()?;
        let checker = self.net.ledger.checker();
        let found = checker.get("Namespace", "", namespace).map(|found| object::access::uid(found).to_owned());
        found.filter(|_| request.method() == http::Method::POST)
    }

    /// What is created late, with a POST or by applying it, may have come and gone already.
    fn note_creation(&self, body: &[u8]) {
        let object = serde_json::from_slice::<object::Value>(body).unwrap_or_default();
        let (namespace, name) = (object::access::namespace(&object), object::access::name(&object));
        match object["kind"].as_str() {
            Some("PersistentVolume") => self.net.ledger.volume_comes_late(name),
            Some("PersistentVolumeClaim") => self.net.ledger.claim_comes_late(&format!("{namespace}/{name}")),
            _ => {}
        }
    }

    /// Whoever asks how a volume's object went, and is told that nobody remembers, may bring it back.
    fn note_forgotten(&self, path: &str) {
        if let Some((_, volume)) = path.split_once("fieldSelector=metadata.name%3D") {
            self.net.ledger.volume_may_return(volume);
        }
    }

    /// The uid of the namespace of a set that is asked for. Whoever hears late that the set is there may make its claims in the next namespace
    /// of that name, and nothing in a request can prevent that either: such an answer comes in time, or never.
    fn place_of_set(&self, parts: &http::request::Parts) -> Option<String> {
        let (namespace, rest) = parts.uri.path().split_once("/namespaces/")?.1.split_once('/')?;
        let is_asked = parts.method == http::Method::GET && rest.starts_with("statefulsets/");
        let checker = self.net.ledger.checker();
        let found = checker.get("Namespace", "", namespace).map(|found| object::access::uid(found).to_owned());
        found.filter(|_| is_asked)
    }

    /// The request is where the server was when it set out.
    async fn arrive(
        self,
        request: Request<kube::client::Body>,
        fate: Fate,
        up: Up,
    ) -> Result<Response<Body>, io::Error> {
        let (what, is_read, is_watch) = self.about(&request);
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(|error| broken(&error.to_string()))?;
        if fate.late_by.is_some() {
            self.note_creation(&body);
        }
        if fate.duplicate && !is_watch {
            self.net.log.fault("duplicated", &what);
            self.ask(&up, &parts, &body).await?;
        }
        let response = self.ask(&up, &parts, &body).await?;
        let code = response.status().as_u16();
        if code == 410 {
            self.note_forgotten(&what);
        }
        match is_read {
            true => self.net.log.detail(|| format!("{what} {code}")),
            false => self.net.log.say(format!("{what} {code}")),
        }
        if fate.lose_answer {
            self.net.log.fault("answer-lost", &what);
            return Err(broken("the answer got lost"));
        }
        let place = self.place_of_set(&parts);
        tokio::time::sleep(fate.after).await;
        self.process.reached().await;
        if self.place_of_set(&parts) != place {
            self.net.log.fault("answer-lost", format!("{what}, of another namespace by now"));
            return Err(broken("the answer got lost"));
        }
        if up.dead.is_cancelled() {
            return Err(broken("the server died"));
        }
        let path = path_of(&parts.uri);
        if &*self.account == "csi-provisioner" && path.starts_with("/api/v1/persistentvolumes?limit=") {
            self.net.ledger.checker().provisioner_looked();
        }
        if !is_watch || !response.status().is_success() {
            return Ok(response);
        }
        let accept = parts.headers.get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
        let audit = Audit::of(&path, accept, &self.net.ledger);
        Ok(self.tap(response, &up, audit, what))
    }

    /// In words for the log, and whether it reads, and watches.
    fn about(&self, request: &Request<kube::client::Body>) -> (String, bool, bool) {
        let (method, path) = (request.method(), path_of(request.uri()));
        (format!("{} {method} {path}", self.account), method == http::Method::GET, path.contains("watch=true"))
    }

    async fn ask(&self, up: &Up, parts: &http::request::Parts, body: &Bytes) -> Result<Response<Body>, io::Error> {
        let mut server = Local::new(up.server.clone(), self.user.clone());
        let request = Request::from_parts(parts.clone(), kube::client::Body::from(body.to_vec()));
        let stored = |key: &str| up.server.store.get(key).and_then(|found| serde_json::from_slice(&found.value).ok());
        self.report(rights::lacks_for_owners(&self.account, &parts.method, &parts.uri, body, stored));
        let term = parts.headers.get(server::LEASE_HEADER).and_then(|term| term.to_str().ok()).map(Arc::from);
        let answer = TERM.scope(term, WRITER.scope(self.account.clone(), server.call(request)));
        match up.dead.run_until_cancelled(answer).await {
            Some(Ok(response)) => {
                self.report(rights::refused(&self.account, &response));
                Ok(response)
            }
            None => Err(broken("the server died")),
        }
    }

    /// No story takes a right away, so each one that is missing is a mistake in a role or in a controller.
    fn report(&self, lacking: impl IntoIterator<Item = String>) {
        lacking.into_iter().for_each(|right| self.net.log.broken(format!("a right is missing: {right}")));
    }

    /// A watch as its client hears it.
    fn tap(self, response: Response<Body>, up: &Up, audit: Option<Audit>, what: String) -> Response<Body> {
        let process = self.process.clone();
        let audit = audit.map(|audit| Arc::new(Audited { what: what.clone(), process, audit: Mutex::new(audit) }));
        if let Some(audit) = &audit {
            let mut state = self.net.state();
            state.audits.retain(|open| open.strong_count() > 0);
            state.audits.push(Arc::downgrade(audit));
        }
        let (dead, cut) = (up.dead.clone(), self.process.watches());
        response.map(|body| match body {
            Body::Stream(chunks) => {
                let ended = async move { dead.run_until_cancelled(cut.cancelled()).await };
                Body::Stream(Box::pin(self.chunks(chunks, audit, what).take_until(Box::pin(ended))))
            }
            once => once,
        })
    }

    fn chunks(
        self,
        chunks: impl Stream<Item = Bytes> + Send + Unpin + 'static,
        audit: Option<Arc<Audited>>,
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
                    this.note_forgotten(&what);
                }
                if let Some(open) = &audit {
                    let mut audit = open.audit.lock().unwrap_or_else(PoisonError::into_inner);
                    for rule in audit.hear(&chunk, &this.net.ledger) {
                        this.net.log.broken(format!("{what}: {rule}"));
                    }
                }
                this.process.hears(&this.account).await;
                this.process.reached().await;
                if !exposed {
                    return Some((chunk, (this, chunks, audit, what, false)));
                }
                let (pause, cut) = this.net.chunk_fate(chunk.len());
                this.net.log.detail(|| format!("{what} tells {} bytes after {pause:?}", chunk.len()));
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
    server::app::status_response(&object::Status::new(code, reason, "out of order on purpose"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was sent arrives, though its sender was cut off and died.
    #[test]
    fn what_was_sent_outlives_its_sender() {
        crate::world::prepare();
        let (arrived, late) = crate::run::on_own_thread(1, || async {
            let (world, _orders) = crate::world::World::new(1).await;
            let process = Process::new("controllers", true);
            let client = world.net.client(&process, "somebody", User::apiserver());
            process.cut_off(Duration::from_secs(25));
            tokio::spawn(async move {
                let body = object::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "late"}});
                let request = Request::post("/api/v1/namespaces").header("content-type", "application/json");
                let request = request.body(body.to_string().into_bytes()).expect("a request");
                client.request::<object::Value>(request).await
            });
            tokio::time::sleep(Duration::from_secs(1)).await;
            process.dead.cancel();
            let is_there = || world.checker().get("Namespace", "", "late").is_some();
            let at_first = is_there();
            tokio::time::sleep(Duration::from_secs(30)).await;
            ((at_first, is_there()), world.log.faults().get("late").copied())
        });
        assert_eq!(arrived, (false, true));
        assert_eq!(late, Some(1), "it counts as late");
    }

    /// Each of those who follow the same objects has missed something, and is told so once.
    #[tokio::test]
    async fn whoever_follows_the_same_is_told_that_it_is_forgotten() {
        let process = Process::new("controllers", true);
        let path = |version: u64| format!("/api/v1/pods?watch=true&resourceVersion={version}");
        assert!(!process.is_forgotten("one", &path(5)), "nothing is forgotten yet");
        process.forget_watches(Whom::All);
        for account in ["one", "other"] {
            assert!(!process.is_forgotten(account, "/api/v1/pods?watch=true"), "{account} begins anew");
            assert!(process.is_forgotten(account, &path(5)), "{account} has missed something");
            assert!(!process.is_forgotten(account, &path(6)), "{account} was told already");
        }
        process.forget_watches(Whom::One("one"));
        assert!(process.is_forgotten("one", &path(7)) && !process.is_forgotten("other", &path(7)), "only one has");
    }
}
