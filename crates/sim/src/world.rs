//! One world: a server on a disk that can crash, controllers, nodes and a driver. Each of them can be killed and
//! restarts.

use crate::commit_checker::{CheckedStore, CommitChecker, LEASE, OPERATOR, crash_disk};
use crate::driver::Driver;
use crate::entropy::Rng;
use crate::fault_point::{ELECTION, Fault};
use crate::log::Log;
use crate::net::{Net, ServerInstance};
use crate::process::{Process, Target};
use crate::time::VirtualClock;
use crate::watch_checker::{SELECTIONS, WatchChecker};
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

/// Limit for any wait, in virtual time. The longest backoff of the controllers is five minutes.
pub const TIMEOUT: Duration = Duration::from_secs(3600);
/// A killed component restarts after this time.
const RESTART_DELAY: Duration = Duration::from_millis(700);
/// Duration of held watch events, and delay of late reads.
const STALE_TIME: Duration = Duration::from_secs(8);
/// How long the leader is disconnected. Another process acquires the lease after 15 s.
const DISCONNECT_TIME: Duration = Duration::from_secs(25);

/// Feature gate for honouring reclaim policies (KEP-2644).
pub const RECLAIM_GATE: &str = "HonorPVReclaimPolicy";

/// Controller lists of the two processes when the provisioner runs in a process of its own.
pub const PROVISIONER: &str = "csi-provisioner-controller";
pub const ALL_BUT_PROVISIONER: &str = "*,-csi-provisioner-controller";

/// Clones share one world.
#[derive(Clone)]
pub struct World {
    pub net: Net,
    pub commit_checker: Arc<CommitChecker>,
    pub log: Log,
    pub driver: Driver,
    clock: VirtualClock,
    env: Env,
    components: Arc<Mutex<Components>>,
    commands: mpsc::UnboundedSender<Command>,
    operator: kube::Client,
}

struct Components {
    rng: Rng,
    disk: Crashable,
    server: Option<RunningServer>,
    controllers: Vec<ControllerProcess>,
    /// Number of processes that stand for leader election. With 0, one process works without an election.
    candidates: usize,
    /// Number of candidates started so far, for their names.
    candidates_named: usize,
    nodes: Option<(Nodes, Process)>,
    server_gates: Gates,
    process_configs: Vec<ProcessConfig>,
}

/// Controllers and feature gates of one process.
#[derive(Clone)]
struct ProcessConfig {
    list: &'static str,
    gates: Gates,
}

impl ProcessConfig {
    /// One process that runs all controllers.
    fn whole(gates: Gates) -> Vec<ProcessConfig> {
        vec![ProcessConfig { list: "*", gates }]
    }
}

struct RunningServer {
    running: Running,
    store: Arc<CheckedStore>,
    up: ServerInstance,
}

/// A running controller process, which leads or stands for election.
struct ControllerProcess {
    process: Process,
    list: &'static str,
    work: Role,
    /// Whether the process leads now.
    leads: Arc<AtomicBool>,
}

/// Selects the leading processes. Without a leader it selects all, because any of them may start to lead.
fn working_filter(controllers: &[ControllerProcess]) -> impl Fn(&ControllerProcess) -> bool + use<> {
    let leads = |process_entry: &ControllerProcess| process_entry.leads.load(Ordering::Relaxed);
    let no_leader = !controllers.iter().any(leads);
    move |process_entry| no_leader || leads(process_entry)
}

enum Role {
    Alone(Box<Controllers>),
    /// Cancel the token to stop it.
    Candidate(CancellationToken),
}

/// Command to the supervisor.
#[derive(Debug)]
pub enum Command {
    StartServer,
    StartControllers,
    StartNodes,
    StartDriver,
    /// Releases held watch events.
    Release,
    /// Releases held watch events, and breaks the watches of the target so that they get 410.
    Forget(Target),
}

/// Receiver of the supervisor's commands.
pub type Commands = mpsc::UnboundedReceiver<Command>;

/// A disk with the first objects of a new server. Built once and copied for every world.
fn first_disk() -> &'static Image {
    static DISK: OnceLock<Image> = OnceLock::new();
    DISK.get_or_init(|| {
        crate::run::on_own_thread(0, || async {
            let (clock, disk) = (VirtualClock::start(), Crashable::default());
            let commit_checker = CommitChecker::new(clock, Log::new(clock), Gates::default());
            let store = commit_checker.open(&disk).expect("a new store opens");
            let running = launch(store, Gates::default(), clock.env(Rng::new(0))).await.expect("a new server starts");
            running.stop().await;
            disk.kill()
        })
    })
}

/// Certificates and keys, generated once. No behaviour depends on their content.
fn identity() -> Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY
        .get_or_init(|| Identity::make(&["localhost".to_owned()], jiff::Timestamp::now()).expect("certificates"))
        .clone()
}

/// Builds the state that all worlds share.
pub fn prepare() {
    first_disk();
}

async fn launch(store: Arc<CheckedStore>, gates: Gates, env: Env) -> Result<Running, server::LaunchError> {
    let launch = Launch {
        store,
        identity: identity(),
        gates,
        env,
        static_tokens: StaticTokens::default(),
        limits: Default::default(),
        bootstrap: crate::permission_checker::bootstrap_objects(),
        listener: None,
        issuer: "https://simulation".to_owned(),
    };
    launch.start().await
}

impl World {
    /// Starts a world with all components.
    pub async fn new(seed: u64) -> (World, Commands) {
        let mut rng = Rng::new(seed);
        let clock = VirtualClock::start();
        let log = Log::new(clock);
        let commit_checker = CommitChecker::new(clock, log.clone(), Gates::default());
        let net = Net::new(commit_checker.clone(), rng.fork());
        let driver = Driver::new(&commit_checker);
        let asked = driver.clone();
        commit_checker.set_backend(move || asked.handles());
        let operator = net.client(&Process::new("operator", false), OPERATOR, User::apiserver());
        let (commands, received) = mpsc::unbounded_channel();
        let components = Components {
            disk: Crashable::from_image(first_disk().clone()),
            server: None,
            controllers: Vec::new(),
            candidates: 0,
            candidates_named: 0,
            nodes: None,
            server_gates: Gates::default(),
            process_configs: ProcessConfig::whole(Gates::default()),
            rng: rng.fork(),
        };
        let env = clock.env(rng.fork());
        let components = Arc::new(Mutex::new(components));
        let world = World { net, commit_checker, log, driver, clock, env, components, commands, operator };
        let handler = world.clone();
        world.commit_checker.points.on_fault(move |fault| handler.inject(fault));
        world.start_server().await;
        world.start_controllers();
        world.start_nodes();
        world.start_watch_checkers(seed);
        (world, received)
    }

    fn components(&self) -> MutexGuard<'_, Components> {
        self.components.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    pub fn elapsed_ms(&self) -> u128 {
        self.clock.elapsed_ms()
    }

    pub fn checker(&self) -> MutexGuard<'_, Checker> {
        self.commit_checker.checker()
    }

    /// Sets how long a component may act on the old value of a spec.
    pub fn set_echo(&self, echo: Duration) {
        self.checker().set_echo(jiff::SignedDuration::try_from(echo).unwrap_or(jiff::SignedDuration::MAX));
    }

    /// Reads a stored object by its key, also of kinds that the checker does not track.
    pub fn stored(&self, key: &str) -> Option<Value> {
        let up = self.net.server()?;
        up.server.store.get(key).and_then(|record| serde_json::from_slice(&record.value).ok())
    }

    /// Reads all stored objects under a prefix.
    pub fn list(&self, prefix: &str) -> Vec<Value> {
        let Some(up) = self.net.server() else { return Vec::new() };
        let page = up.server.store.list(store::Range { prefix, ..store::Range::default() });
        let records = page.map(|page| page.records).unwrap_or_default();
        records.iter().filter_map(|record| serde_json::from_slice(&record.value).ok()).collect()
    }

    fn inject(&self, fault: Fault) {
        // Faults of one controller take another controller each time.
        let one = Target::nth(self.commit_checker.points.counted().commits);
        match fault {
            Fault::KillControllers => self.kill_controllers(),
            Fault::CrashServer => self.crash_server(),
            Fault::KillDriver => self.kill_driver(),
            Fault::KillAll => self.kill_all(),
            Fault::TornWrite => self.fail_disk(0),
            Fault::StaleView => self.hold_watches_then(Target::All, Command::Release),
            Fault::StaleOne => self.hold_watches_then(one, Command::Release),
            Fault::MissedEvent => self.hold_watches_then(Target::All, Command::Forget(Target::All)),
            Fault::MissedOne => self.hold_watches_then(one, Command::Forget(one)),
            Fault::CutOff => self.disconnect_leader(),
            Fault::LateRead => self.each_controller(|process| process.delay_reads(STALE_TIME, Target::All)),
            Fault::LateReadOne => self.each_controller(|process| process.delay_reads(STALE_TIME, one)),
            // Injected into the request itself.
            Fault::Conflict | Fault::Refusal | Fault::LostAnswer | Fault::Duplicate | Fault::LateWrite => {}
            // Injected into the driver call itself.
            Fault::FailedCall | Fault::LostCall => {}
        }
    }

    /// Holds watch events for some seconds, then executes `then`.
    fn hold_watches_then(&self, target: Target, then: Command) {
        self.log.record(format!("watch events {target} are held"));
        self.each_controller(|process| process.hold_watches(target));
        self.command(then);
    }

    fn command(&self, order: Command) {
        // The send fails if the world has ended; then the command is not needed.
        let _ = self.commands.send(order);
    }

    pub fn each_controller(&self, act: impl Fn(&Process)) {
        self.components().controllers.iter().for_each(|process_entry| act(&process_entry.process));
    }

    /// Restarts killed components until the world ends.
    pub async fn supervise(&self, mut commands: Commands) {
        while let Some(order) = commands.recv().await {
            match order {
                Command::StartServer => {
                    tokio::time::sleep(RESTART_DELAY).await;
                    self.start_server().await;
                }
                Command::StartControllers => {
                    tokio::time::sleep(RESTART_DELAY).await;
                    self.start_controllers();
                }
                Command::StartNodes => {
                    tokio::time::sleep(RESTART_DELAY).await;
                    self.start_nodes();
                }
                Command::StartDriver => self.start_driver().await,
                Command::Release => {
                    tokio::time::sleep(STALE_TIME).await;
                    self.each_controller(Process::release_watches);
                }
                Command::Forget(target) => {
                    tokio::time::sleep(STALE_TIME).await;
                    self.each_controller(|process| process.expire_watches(target));
                }
            }
        }
    }

    pub async fn start_server(&self) {
        loop {
            let (disk, gates) = {
                let components = self.components();
                if components.server.is_some() {
                    return;
                }
                (components.disk.clone(), components.server_gates.clone())
            };
            let store = match self.commit_checker.open(&disk) {
                Ok(store) => store,
                // The disk was set to fail and fails now, and the machine with it.
                Err(error) if disk.is_failing() => {
                    self.log.fault("disk-failed", format!("while opening the store: {error}"));
                    let mut components = self.components();
                    components.disk = crash_disk(&disk, &mut components.rng);
                    continue;
                }
                Err(error) => {
                    self.log.violation(format!("the store does not open after the crash: {error}"));
                    return;
                }
            };
            match launch(store.clone(), gates, self.env.clone()).await {
                Ok(running) => {
                    self.log.record("the server is up");
                    let up = ServerInstance { server: running.server.clone(), killed: CancellationToken::new() };
                    self.net.set_server(Some(up.clone()));
                    self.components().server = Some(RunningServer { running, store, up });
                    return;
                }
                Err(error) if disk.is_failing() => {
                    self.log.fault("disk-failed", format!("while starting the server: {error}"));
                    let mut components = self.components();
                    components.disk = crash_disk(&disk, &mut components.rng);
                }
                Err(error) => {
                    self.log.violation(format!("the server does not start after the crash: {error}"));
                    return;
                }
            }
        }
    }

    /// Stops the server at once. Data that was not synced may be lost.
    pub fn crash_server(&self) {
        let mut components = self.components();
        let Some(RunningServer { running, store, up }) = components.server.take() else { return };
        let disk = components.disk.clone();
        components.disk = crash_disk(&disk, &mut components.rng);
        drop(components);
        store.off.cancel();
        up.killed.cancel();
        self.net.set_server(None);
        self.log.record("the server is down");
        self.checker().memory_lost();
        tokio::spawn(running.stop());
        self.command(Command::StartServer);
    }

    /// The disk fails after `syncs` more syncs, and the machine with it.
    pub fn fail_disk(&self, syncs: usize) {
        self.components().disk.fail_sync_after(syncs);
    }

    /// Sets the server's gates from its next start.
    pub fn set_server_gates(&self, gates: Gates) {
        self.components().server_gates = gates;
    }

    pub fn set_controller_gates(&self, gates: Gates) {
        self.checker().set_gates(gates.clone(), self.now());
        self.components().process_configs = ProcessConfig::whole(gates);
    }

    /// From the next start, the provisioner runs in a process of its own with its own gates.
    pub fn set_gates_apart(&self, gates: Gates, provisioner: Gates) {
        self.checker().set_gates_apart(gates.clone(), &provisioner, self.now());
        self.components().process_configs = vec![
            ProcessConfig { list: ALL_BUT_PROVISIONER, gates },
            ProcessConfig { list: PROVISIONER, gates: provisioner },
        ];
    }

    /// The controllers of each process, and whether that process honours reclaim policies from its next start.
    pub fn process_configs(&self) -> Vec<(&'static str, bool)> {
        self.components().process_configs.iter().map(|config| (config.list, config.gates.on(RECLAIM_GATE))).collect()
    }

    /// Gates of all controllers except a separate provisioner.
    pub fn controller_gates(&self) -> Gates {
        self.components().process_configs[0].gates.clone()
    }

    pub fn start_controllers(&self) {
        while let Some((ProcessConfig { list, gates }, name)) = self.next_controllers() {
            let process = Process::new("controllers", true);
            let setup = self.setup(&process, list, gates);
            let (net, client_process) = (self.net.clone(), process.clone());
            let client =
                move |account: &str| net.client(&client_process, account, service_account_user("kube-system", account));
            let leads = Arc::new(AtomicBool::new(name.is_none()));
            let work = match name {
                None => {
                    self.log.record("the controllers are up");
                    let controllers = Controllers::start(&setup, client).expect("controllers start");
                    Role::Alone(Box::new(controllers))
                }
                Some(name) => Role::Candidate(self.run_candidate(name, &process, setup, client, leads.clone())),
            };
            self.components().controllers.push(ControllerProcess { process, list, work, leads });
        }
    }

    /// Next controller process to start, and its candidate name if there is a leader election.
    fn next_controllers(&self) -> Option<(ProcessConfig, Option<String>)> {
        let mut components = self.components();
        if components.candidates == 0 {
            let is_at_work = |config: &ProcessConfig| {
                components.controllers.iter().any(|process_entry| process_entry.list == config.list)
            };
            return components
                .process_configs
                .iter()
                .find(|config| !is_at_work(config))
                .map(|config| (config.clone(), None));
        }
        if components.controllers.len() >= components.candidates {
            return None;
        }
        components.candidates_named += 1;
        Some((components.process_configs[0].clone(), Some(format!("controllers-{}", components.candidates_named))))
    }

    fn setup(&self, process: &Process, list: &str, gates: Gates) -> runtime::Setup {
        let clock = self.clock;
        let socket = self.driver.endpoint(process.killed.clone());
        let (log, killed) = (self.log.clone(), process.killed.clone());
        // Ignore plans of a killed process; they are not executed.
        let judge = move |rule: String| {
            if !killed.is_cancelled() {
                log.violation(format!("a plan violates a rule: {rule}"))
            }
        };
        let pace = Pace { longest: Duration::from_secs(60), rest: Duration::from_secs(60), ..Pace::default() };
        runtime::Setup {
            root_ca: Some(Arc::from("THE CERTIFICATE")),
            gates,
            provisioning: Provisioning { host_path: true, ..Provisioning::default() },
            directories: self.driver.inside.for_process(process.killed.clone()),
            clock: Arc::new(move || clock.now()),
            drivers: vec![Endpoint { socket, options: self.driver.options(), pace }],
            judge: Some(Arc::new(judge)),
            ..runtime::Setup::new(list)
        }
    }

    /// Runs the controllers of a process whenever it holds the lease.
    fn run_candidate(
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
            log.record(match standing {
                Standing::Leading(term) => format!("{name} leads, term {}", term.number),
                standing => format!("{name}: {standing:?}"),
            });
            leads.store(matches!(standing, Standing::Leading(_)), Ordering::Relaxed);
        };
        let start = move |term: &Term| {
            let lease = format!("kube-system/{LEASE}");
            let fenced =
                |account: &str| kit::fenced_client::client(client(account), server::LEASE_HEADER, &lease, term);
            Controllers::start(&setup, fenced).expect("controllers start")
        };
        let (world, process, shutdown) = (self.clone(), process.clone(), stop.clone());
        tokio::spawn(async move {
            let led = election.lead(shutdown, tell, start).await;
            if let Err(overdue) = led
                && !process.killed.is_cancelled()
            {
                world.log.record(format!("{overdue}: the process exits"));
                process.killed.cancel();
                world.components().controllers.retain(|process_entry| !process_entry.process.killed.is_cancelled());
                world.command(Command::StartControllers);
            }
        });
        stop
    }

    /// From now on `candidates` processes stand for election, instead of one process without an election.
    pub fn start_election(&self, candidates: usize) {
        self.kill_controllers();
        self.components().candidates = candidates;
    }

    /// Kills the leading controllers.
    pub fn kill_controllers(&self) {
        self.kill(|_| true);
    }

    /// Kills the leading process that runs this controller list.
    pub fn kill_process(&self, list: &str) {
        self.kill(|process_entry| process_entry.list == list);
    }

    fn kill(&self, is_meant: impl Fn(&ControllerProcess) -> bool) {
        let killed: Vec<ControllerProcess> = {
            let mut components = self.components();
            let works = working_filter(&components.controllers);
            components
                .controllers
                .extract_if(.., |process_entry| works(process_entry) && is_meant(process_entry))
                .collect()
        };
        for ControllerProcess { process, work, list, .. } in killed {
            process.killed.cancel();
            self.log.record(format!("the controllers are down: {list}"));
            // The provisioner remembers the volumes that it saw, whatever the other process forgets.
            if list != ALL_BUT_PROVISIONER {
                let mut checker = self.checker();
                checker.memory_lost();
                checker.provisioner_died();
            }
            match work {
                Role::Alone(controllers) => drop(tokio::spawn(controllers.stop())),
                Role::Candidate(stop) => stop.cancel(),
            }
            self.command(Command::StartControllers);
        }
    }

    /// Kills everything at once, as a failure of one process or one machine. Data that was not synced may be lost.
    pub fn kill_all(&self) {
        self.kill_controllers();
        self.kill_nodes();
        self.kill_driver();
        self.crash_server();
    }

    /// Disconnects the leading processes.
    pub fn disconnect_leader(&self) {
        let components = self.components();
        let works = working_filter(&components.controllers);
        for process_entry in components.controllers.iter().filter(|process_entry| works(process_entry)) {
            process_entry.process.disconnect(DISCONNECT_TIME);
        }
    }

    pub fn start_nodes(&self) {
        let mut components = self.components();
        if components.nodes.is_some() {
            return;
        }
        let process = Process::new("nodes", true);
        let clock = self.clock;
        let setup = node::Setup { clock: Arc::new(move || clock.now()), ..node::Setup::new(2) };
        let nodes = Nodes::start(&setup, |identity| {
            // The checker identifies each node by its name. The user is the one that `mainstay up` gives to all
            // nodes.
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
        components.nodes = Some((nodes, process));
        self.log.record("the nodes are up");
    }

    /// The checkers are not part of the simulated world and draw no numbers from its generator.
    fn start_watch_checkers(&self, seed: u64) {
        for (view, at) in SELECTIONS.into_iter().zip(1..) {
            let client = self.net.client(&Process::new("watch-checker", false), "watch-checker", User::apiserver());
            let (commit_checker, log, rng) = (self.commit_checker.clone(), self.log.clone(), Rng::new(seed ^ at));
            tokio::spawn(WatchChecker { client, commit_checker, log, rng, view }.run());
        }
    }

    pub fn kill_nodes(&self) {
        let Some((nodes, process)) = self.components().nodes.take() else { return };
        process.killed.cancel();
        self.log.record("the nodes are down");
        tokio::spawn(nodes.stop());
        self.command(Command::StartNodes);
    }

    /// Kills the driver during its calls.
    pub fn kill_driver(&self) {
        self.commit_checker.check_backend();
        if self.driver.kill() {
            self.log.record("the driver is down");
            self.command(Command::StartDriver);
        }
    }

    async fn start_driver(&self) {
        loop {
            tokio::time::sleep(RESTART_DELAY).await;
            match self.driver.start() {
                Ok(()) => return self.log.record("the driver is up"),
                Err(error) => self.log.record(format!("the driver does not start: {error}")),
            }
        }
    }

    /// Sends a request as a user, and retries while the server does not respond.
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

    /// Waits until the condition holds; fails after `TIMEOUT`.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Checker) -> bool) -> Result<(), String> {
        let mut commits = self.commit_checker.commits.subscribe();
        let waiting = async {
            while !is_so(&self.checker()) {
                if !self.log.has_no_violations() {
                    return Err("a rule is violated".to_owned());
                }
                // The sender is a field of the world and outlives this wait.
                let _ = commits.changed().await;
            }
            Ok(())
        };
        match tokio::time::timeout(TIMEOUT, waiting).await {
            Ok(result) => result,
            Err(_) => Err(format!("timed out waiting until {what}")),
        }
    }
}
