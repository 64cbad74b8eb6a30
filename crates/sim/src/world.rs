//! One world: a server on a disk that can crash, controllers, nodes and a driver, each of which can die and come back.

use crate::driver::Driver;
use crate::entropy::Rng;
use crate::ledger::{LEASE, Ledger, OPERATOR, Watched, crashed};
use crate::log::Log;
use crate::net::{Net, Process, Up, Whom};
use crate::onlooker::{Onlooker, VIEWS};
use crate::point::{ELECTION, Strike};
use crate::time::VirtualClock;
use kit::lease::{Election, Standing, Term, Timing};
use node::{Identity as NodeIdentity, Nodes};
use object::{Gates, Value};
use plan::invariant::Checker;
use runtime::csi::{Endpoint, Pace};
use runtime::{Controllers, Provisioning};
use server::authn::{Identity, StaticTokens, service_account_user};
use server::{Clock, Env, Launch, Running, User};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use store::suite::{Crashable, Image};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// How long anything may take, in virtual time: the longest pauses between attempts are five minutes.
pub const PATIENCE: Duration = Duration::from_secs(3600);
/// A part that died is back after so long.
const BACK_AFTER: Duration = Duration::from_millis(700);
/// How long controllers hear nothing, or how late, when they are struck so.
const STALE_FOR: Duration = Duration::from_secs(8);
/// How long controllers are cut off when they are struck so: another takes the lease after 15 s.
const CUT_OFF_FOR: Duration = Duration::from_secs(25);

/// The gate by which reclaim policies are honoured.
pub const HONOURS: &str = "HonorPVReclaimPolicy";

/// What runs in a process of its own where there are two of controllers, and what in the other one.
pub const PROVISIONER: &str = "csi-provisioner-controller";
pub const OTHERS: &str = "*,-csi-provisioner-controller";

/// Clones share it.
#[derive(Clone)]
pub struct World {
    pub net: Net,
    pub ledger: Arc<Ledger>,
    pub log: Log,
    pub driver: Driver,
    clock: VirtualClock,
    env: Env,
    parts: Arc<Mutex<Parts>>,
    orders: mpsc::UnboundedSender<Order>,
    operator: kube::Client,
}

struct Parts {
    rng: Rng,
    disk: Crashable,
    server: Option<Serving>,
    controllers: Vec<Working>,
    /// How many processes want to lead the controllers; with none, one works without being asked to.
    candidates: usize,
    /// How many there were so far.
    candidates_named: usize,
    nodes: Option<(Nodes, Process)>,
    server_gates: Gates,
    crews: Vec<Crew>,
}

/// What a process of controllers runs, and with which gates.
#[derive(Clone)]
struct Crew {
    list: &'static str,
    gates: Gates,
}

impl Crew {
    /// One process runs all.
    fn whole(gates: Gates) -> Vec<Crew> {
        vec![Crew { list: "*", gates }]
    }
}

struct Serving {
    running: Running,
    store: Arc<Watched>,
    up: Up,
}

/// A process of controllers: one that works, or wants to lead.
struct Working {
    process: Process,
    list: &'static str,
    work: Work,
    /// Whether it works now.
    leads: Arc<AtomicBool>,
}

/// Those that work, or, while nobody leads, those that want to: one of them may be about to.
fn at_work(controllers: &[Working]) -> impl Fn(&Working) -> bool + use<> {
    let leads = |working: &Working| working.leads.load(Ordering::Relaxed);
    let does_nobody = !controllers.iter().any(leads);
    move |working| does_nobody || leads(working)
}

enum Work {
    Alone(Box<Controllers>),
    /// Cancelled, it stops.
    Candidate(CancellationToken),
}

/// What the supervisor is to do.
#[derive(Debug)]
pub enum Order {
    StartServer,
    StartControllers,
    StartNodes,
    StartDriver,
    /// Lets the controllers hear again.
    Release,
    /// Lets them hear again, but not these of what has happened meanwhile.
    Forget(Whom),
}

/// The supervisor's end of a world.
pub type Orders = mpsc::UnboundedReceiver<Order>;

/// A fresh disk with a server's first objects on it, made once: the same for every world.
fn first_disk() -> &'static Image {
    static DISK: OnceLock<Image> = OnceLock::new();
    DISK.get_or_init(|| {
        crate::run::on_own_thread(0, || async {
            let (clock, disk) = (VirtualClock::start(), Crashable::default());
            let ledger = Ledger::new(clock, Log::new(clock), Gates::default());
            let store = ledger.open(&disk).expect("a new store opens");
            let running = launch(store, Gates::default(), clock.env(Rng::new(0))).await.expect("a new server starts");
            running.stop().await;
            disk.kill()
        })
    })
}

/// Certificates and keys are made once: nothing here depends on what they are.
fn identity() -> Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY
        .get_or_init(|| Identity::make(&["localhost".to_owned()], jiff::Timestamp::now()).expect("certificates"))
        .clone()
}

/// Makes what all worlds share.
pub fn prepare() {
    first_disk();
}

async fn launch(store: Arc<Watched>, gates: Gates, env: Env) -> Result<Running, server::LaunchError> {
    let launch = Launch {
        store,
        identity: identity(),
        gates,
        env,
        static_tokens: StaticTokens::default(),
        limits: Default::default(),
        bootstrap: crate::rights::bootstrap_objects(),
        listener: None,
        issuer: "https://simulation".to_owned(),
    };
    launch.start().await
}

impl World {
    /// A world in which everything runs.
    pub async fn new(seed: u64) -> (World, Orders) {
        let mut rng = Rng::new(seed);
        let clock = VirtualClock::start();
        let log = Log::new(clock);
        let ledger = Ledger::new(clock, log.clone(), Gates::default());
        let net = Net::new(ledger.clone(), rng.fork());
        let driver = Driver::new(&ledger);
        let asked = driver.clone();
        ledger.watch_backend(move || asked.handles());
        let operator = net.client(&Process::new("operator", false), OPERATOR, User::apiserver());
        let (orders, received) = mpsc::unbounded_channel();
        let parts = Parts {
            disk: Crashable::from_image(first_disk().clone()),
            server: None,
            controllers: Vec::new(),
            candidates: 0,
            candidates_named: 0,
            nodes: None,
            server_gates: Gates::default(),
            crews: Crew::whole(Gates::default()),
            rng: rng.fork(),
        };
        let env = clock.env(rng.fork());
        let parts = Arc::new(Mutex::new(parts));
        let world = World { net, ledger, log, driver, clock, env, parts, orders, operator };
        let struck = world.clone();
        world.ledger.points.on_strike(move |strike| struck.strike(strike));
        world.start_server().await;
        world.start_controllers();
        world.start_nodes();
        world.start_onlookers(seed);
        (world, received)
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    pub fn elapsed_ms(&self) -> u128 {
        self.clock.elapsed_ms()
    }

    pub fn checker(&self) -> MutexGuard<'_, Checker> {
        self.ledger.checker()
    }

    /// How long somebody may act on what was said before.
    pub fn set_echo(&self, echo: Duration) {
        self.checker().set_echo(jiff::SignedDuration::try_from(echo).unwrap_or(jiff::SignedDuration::MAX));
    }

    /// A stored object that the checker does not keep, by its key.
    pub fn stored(&self, key: &str) -> Option<Value> {
        let up = self.net.server()?;
        up.server.store.get(key).and_then(|record| serde_json::from_slice(&record.value).ok())
    }

    /// All stored objects under a prefix.
    pub fn list(&self, prefix: &str) -> Vec<Value> {
        let Some(up) = self.net.server() else { return Vec::new() };
        let page = up.server.store.list(store::Range { prefix, ..store::Range::default() });
        let records = page.map(|page| page.records).unwrap_or_default();
        records.iter().filter_map(|record| serde_json::from_slice(&record.value).ok()).collect()
    }

    fn strike(&self, strike: Strike) {
        // Those that strike one controller strike another one each time.
        let one = Whom::dealt(self.ledger.points.counted().commits);
        match strike {
            Strike::KillControllers => self.kill_controllers(),
            Strike::CrashServer => self.crash_server(),
            Strike::KillDriver => self.kill_driver(),
            Strike::KillAll => self.kill_all(),
            Strike::TornWrite => self.fail_disk(0),
            Strike::StaleView => self.blind(Whom::All, Order::Release),
            Strike::StaleOne => self.blind(one, Order::Release),
            Strike::MissedEvent => self.blind(Whom::All, Order::Forget(Whom::All)),
            Strike::MissedOne => self.blind(one, Order::Forget(one)),
            Strike::CutOff => self.cut_off_leader(),
            Strike::LateRead => self.each_controller(|process| process.delay_reads(STALE_FOR, Whom::All)),
            Strike::LateReadOne => self.each_controller(|process| process.delay_reads(STALE_FOR, one)),
            // These are done where the request is.
            Strike::Conflict | Strike::Refusal | Strike::LostAnswer | Strike::Duplicate | Strike::LateWrite => {}
            // And these where the call is.
            Strike::FailedCall | Strike::LostCall => {}
        }
    }

    /// These hear nothing for a while, and then what the order says.
    fn blind(&self, whom: Whom, then: Order) {
        self.log.say(format!("the watches {whom} are held"));
        self.each_controller(|process| process.hold_watches(whom));
        self.order(then);
    }

    fn order(&self, order: Order) {
        // Whoever supervised is gone when the world has ended.
        let _ = self.orders.send(order);
    }

    pub fn each_controller(&self, act: impl Fn(&Process)) {
        self.parts().controllers.iter().for_each(|working| act(&working.process));
    }

    /// Brings back what died, for ever.
    pub async fn supervise(&self, mut orders: Orders) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::StartServer => {
                    tokio::time::sleep(BACK_AFTER).await;
                    self.start_server().await;
                }
                Order::StartControllers => {
                    tokio::time::sleep(BACK_AFTER).await;
                    self.start_controllers();
                }
                Order::StartNodes => {
                    tokio::time::sleep(BACK_AFTER).await;
                    self.start_nodes();
                }
                Order::StartDriver => self.start_driver().await,
                Order::Release => {
                    tokio::time::sleep(STALE_FOR).await;
                    self.each_controller(Process::release_watches);
                }
                Order::Forget(whom) => {
                    tokio::time::sleep(STALE_FOR).await;
                    self.each_controller(|process| process.forget_watches(whom));
                }
            }
        }
    }

    pub async fn start_server(&self) {
        loop {
            let (disk, gates) = {
                let parts = self.parts();
                if parts.server.is_some() {
                    return;
                }
                (parts.disk.clone(), parts.server_gates.clone())
            };
            let store = match self.ledger.open(&disk) {
                Ok(store) => store,
                // The disk was about to fail: it does so now, and the machine with it.
                Err(error) if disk.is_failing() => {
                    self.log.fault("disk-failed", format!("while the store was opened: {error}"));
                    let mut parts = self.parts();
                    parts.disk = crashed(&disk, &mut parts.rng);
                    continue;
                }
                Err(error) => {
                    self.log.broken(format!("the store does not open after the crash: {error}"));
                    return;
                }
            };
            match launch(store.clone(), gates, self.env.clone()).await {
                Ok(running) => {
                    self.log.say("the server is up");
                    let up = Up { server: running.server.clone(), dead: CancellationToken::new() };
                    self.net.set_server(Some(up.clone()));
                    self.parts().server = Some(Serving { running, store, up });
                    return;
                }
                Err(error) if disk.is_failing() => {
                    self.log.fault("disk-failed", format!("while the server started: {error}"));
                    let mut parts = self.parts();
                    parts.disk = crashed(&disk, &mut parts.rng);
                }
                Err(error) => {
                    self.log.broken(format!("the server does not start after the crash: {error}"));
                    return;
                }
            }
        }
    }

    /// Everything of the server stops at once; what was not synced may be lost.
    pub fn crash_server(&self) {
        let mut parts = self.parts();
        let Some(Serving { running, store, up }) = parts.server.take() else { return };
        let disk = parts.disk.clone();
        parts.disk = crashed(&disk, &mut parts.rng);
        drop(parts);
        store.off.cancel();
        up.dead.cancel();
        self.net.set_server(None);
        self.log.say("the server is down");
        self.checker().memory_lost();
        tokio::spawn(running.stop());
        self.order(Order::StartServer);
    }

    /// The disk fails at one of its next syncs, and the machine with it.
    pub fn fail_disk(&self, syncs: usize) {
        self.parts().disk.fail_sync_after(syncs);
    }

    /// From its next start on.
    pub fn set_server_gates(&self, gates: Gates) {
        self.parts().server_gates = gates;
    }

    pub fn set_controller_gates(&self, gates: Gates) {
        self.checker().set_gates(gates.clone(), self.now());
        self.parts().crews = Crew::whole(gates);
    }

    /// From the next start on the provisioner is a process of its own, with gates of its own.
    pub fn set_gates_apart(&self, gates: Gates, provisioner: Gates) {
        self.checker().set_gates_apart(gates.clone(), &provisioner, self.now());
        self.parts().crews = vec![Crew { list: OTHERS, gates }, Crew { list: PROVISIONER, gates: provisioner }];
    }

    /// What each process of controllers runs, and whether it honours reclaim policies from its next start on.
    pub fn crews(&self) -> Vec<(&'static str, bool)> {
        self.parts().crews.iter().map(|crew| (crew.list, crew.gates.on(HONOURS))).collect()
    }

    /// Those of all controllers but the provisioner, which may have its own.
    pub fn controller_gates(&self) -> Gates {
        self.parts().crews[0].gates.clone()
    }

    pub fn start_controllers(&self) {
        while let Some((Crew { list, gates }, name)) = self.next_controllers() {
            let process = Process::new("controllers", true);
            let setup = self.setup(&process, list, gates);
            let (net, dead) = (self.net.clone(), process.clone());
            let client = move |account: &str| net.client(&dead, account, service_account_user("kube-system", account));
            let leads = Arc::new(AtomicBool::new(name.is_none()));
            let work = match name {
                None => {
                    self.log.say("the controllers are up");
                    let controllers = Controllers::start(&setup, client).expect("all controllers can be started");
                    Work::Alone(Box::new(controllers))
                }
                Some(name) => Work::Candidate(self.stand(name, &process, setup, client, leads.clone())),
            };
            self.parts().controllers.push(Working { process, list, work, leads });
        }
    }

    /// The process of controllers that is missing, and by which name it wants to lead, if it has to.
    fn next_controllers(&self) -> Option<(Crew, Option<String>)> {
        let mut parts = self.parts();
        if parts.candidates == 0 {
            let is_at_work = |crew: &Crew| parts.controllers.iter().any(|working| working.list == crew.list);
            return parts.crews.iter().find(|crew| !is_at_work(crew)).map(|crew| (crew.clone(), None));
        }
        if parts.controllers.len() >= parts.candidates {
            return None;
        }
        parts.candidates_named += 1;
        Some((parts.crews[0].clone(), Some(format!("controllers-{}", parts.candidates_named))))
    }

    fn setup(&self, process: &Process, list: &str, gates: Gates) -> runtime::Setup {
        let clock = self.clock;
        let socket = self.driver.endpoint(process.dead.clone());
        let (log, dead) = (self.log.clone(), process.dead.clone());
        // What the dead plan is never done.
        let judge = move |rule: String| {
            if !dead.is_cancelled() {
                log.broken(format!("a plan breaks a rule: {rule}"))
            }
        };
        let pace = Pace { longest: Duration::from_secs(60), rest: Duration::from_secs(60), ..Pace::default() };
        runtime::Setup {
            root_ca: Some(Arc::from("THE CERTIFICATE")),
            gates,
            provisioning: Provisioning { host_path: true, ..Provisioning::default() },
            directories: self.driver.inside.reached_by(process.dead.clone()),
            clock: Arc::new(move || clock.now()),
            drivers: vec![Endpoint { socket, options: self.driver.options(), pace }],
            judge: Some(Arc::new(judge)),
            ..runtime::Setup::new(list)
        }
    }

    /// Has a process work whenever it holds the lease.
    fn stand(
        &self,
        name: String,
        process: &Process,
        setup: runtime::Setup,
        client: impl Fn(&str) -> kube::Client + Send + 'static,
        leads: Arc<AtomicBool>,
    ) -> CancellationToken {
        let election = Election {
            api: kit::api::Api::new(self.net.client(process, ELECTION, User::apiserver())),
            namespace: "kube-system".to_owned(),
            name: LEASE.to_owned(),
            identity: name.clone(),
            timing: Timing::default(),
            clock: setup.clock.clone(),
        };
        let (stop, log) = (CancellationToken::new(), self.log.clone());
        let tell = move |standing: &Standing| {
            log.say(match standing {
                Standing::Leading(term) => format!("{name} leads, term {}", term.number),
                standing => format!("{name}: {standing:?}"),
            });
            leads.store(matches!(standing, Standing::Leading(_)), Ordering::Relaxed);
        };
        let start = move |term: &Term| {
            let lease = format!("kube-system/{LEASE}");
            let fenced =
                |account: &str| kit::fenced_client::client(client(account), server::LEASE_HEADER, &lease, term);
            Controllers::start(&setup, fenced).expect("all controllers can be started")
        };
        let (world, process, shutdown) = (self.clone(), process.clone(), stop.clone());
        tokio::spawn(async move {
            let led = election.lead(shutdown, tell, start).await;
            if let Err(overdue) = led
                && !process.dead.is_cancelled()
            {
                world.log.say(format!("{overdue}: the process ends at once"));
                process.dead.cancel();
                world.parts().controllers.retain(|working| !working.process.dead.is_cancelled());
                world.order(Order::StartControllers);
            }
        });
        stop
    }

    /// From now on so many processes stand for election, instead of one that works unasked.
    pub fn elect(&self, candidates: usize) {
        self.kill_controllers();
        self.parts().candidates = candidates;
    }

    /// Those that work are gone in the middle of whatever they do.
    pub fn kill_controllers(&self) {
        self.kill(|_| true);
    }

    /// Those that work and run this are.
    pub fn kill_crew(&self, list: &str) {
        self.kill(|working| working.list == list);
    }

    fn kill(&self, is_meant: impl Fn(&Working) -> bool) {
        let killed: Vec<Working> = {
            let mut parts = self.parts();
            let works = at_work(&parts.controllers);
            parts.controllers.extract_if(.., |working| works(working) && is_meant(working)).collect()
        };
        for Working { process, work, list, .. } in killed {
            process.dead.cancel();
            self.log.say(format!("the controllers are down: {list}"));
            // Whatever the others forget, the provisioner knows what it saw of volumes.
            if list != OTHERS {
                let mut checker = self.checker();
                checker.memory_lost();
                checker.provisioner_died();
            }
            match work {
                Work::Alone(controllers) => drop(tokio::spawn(controllers.stop())),
                Work::Candidate(stop) => stop.cancel(),
            }
            self.order(Order::StartControllers);
        }
    }

    /// One process or one machine was all of it: everything stops at once, and what was not synced may be lost.
    pub fn kill_all(&self) {
        self.kill_controllers();
        self.kill_nodes();
        self.kill_driver();
        self.crash_server();
    }

    /// Those that work are cut off.
    pub fn cut_off_leader(&self) {
        let parts = self.parts();
        let works = at_work(&parts.controllers);
        for working in parts.controllers.iter().filter(|working| works(working)) {
            working.process.cut_off(CUT_OFF_FOR);
        }
    }

    pub fn start_nodes(&self) {
        let mut parts = self.parts();
        if parts.nodes.is_some() {
            return;
        }
        let process = Process::new("nodes", true);
        let clock = self.clock;
        let setup = node::Setup { clock: Arc::new(move || clock.now()), ..node::Setup::new(2) };
        let nodes = Nodes::start(&setup, |identity| {
            // The ledger knows each node by its name; the user is the one that `mainstay up` gives to all of them.
            let (name, user) = match identity {
                NodeIdentity::Scheduler => {
                    let (name, groups) = ("system:kube-scheduler".to_owned(), vec!["system:authenticated".to_owned()]);
                    (name.clone(), User { name, groups, ..User::default() })
                }
                NodeIdentity::Node(name) => {
                    (format!("system:node:{name}"), service_account_user("kube-system", node::rights::ACCOUNT))
                }
            };
            self.net.client(&process, &name, user)
        });
        parts.nodes = Some((nodes, process));
        self.log.say("the nodes are up");
    }

    /// They are not part of what is simulated, and take nothing of its chance.
    fn start_onlookers(&self, seed: u64) {
        for (view, at) in VIEWS.into_iter().zip(1..) {
            let client = self.net.client(&Process::new("onlooker", false), "onlooker", User::apiserver());
            let (ledger, log, rng) = (self.ledger.clone(), self.log.clone(), Rng::new(seed ^ at));
            tokio::spawn(Onlooker { client, ledger, log, rng, view }.look());
        }
    }

    pub fn kill_nodes(&self) {
        let Some((nodes, process)) = self.parts().nodes.take() else { return };
        process.dead.cancel();
        self.log.say("the nodes are down");
        tokio::spawn(nodes.stop());
        self.order(Order::StartNodes);
    }

    /// The driver ends in the middle of whatever it does.
    pub fn kill_driver(&self) {
        self.ledger.look_at_backend();
        if self.driver.kill() {
            self.log.say("the driver is down");
            self.order(Order::StartDriver);
        }
    }

    async fn start_driver(&self) {
        loop {
            tokio::time::sleep(BACK_AFTER).await;
            match self.driver.start() {
                Ok(()) => return self.log.say("the driver is up"),
                Err(error) => self.log.say(format!("the driver does not start: {error}")),
            }
        }
    }

    /// Sends a request for a person, who tries again as long as nobody answers.
    pub async fn send(&self, method: &str, path: &str, media: &str, body: Option<&Value>) -> (u16, Value) {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        loop {
            let request = http::Request::builder().method(method).uri(path).header("content-type", media);
            let request = request.body(body.clone()).expect("a request");
            match self.operator.request::<Value>(request).await {
                Ok(value) => return (200, value),
                Err(kube::Error::Api(status)) if status.code < 500 => {
                    return (status.code, object::value::to_value(&status).unwrap_or_default());
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Waits until all is as wanted, or too long.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Checker) -> bool) -> Result<(), String> {
        let mut commits = self.ledger.commits.subscribe();
        let waiting = async {
            while !is_so(&self.checker()) {
                if !self.log.is_whole() {
                    return Err("a rule is broken".to_owned());
                }
                // The sender lives as long as we do.
                let _ = commits.changed().await;
            }
            Ok(())
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(result) => result,
            Err(_) => Err(format!("in vain: {what}")),
        }
    }
}
