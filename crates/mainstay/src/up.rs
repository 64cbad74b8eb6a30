//! `mainstay up`: everything in one process; `mainstay server`: the API alone.

use crate::announce::{self, Contents};
use crate::backend::{self, Backend};
use crate::cli::{BadInput, ServingArgs, UpArgs};
use crate::paths;
use crate::running::{self, Listener, Running as Record};
use crate::signals::Signals;
use crate::storage::Builtin;
use crate::trouble;
use anyhow::{Context, Result};
use kit::api::Api;
use kit::lease::{self, Election, Standing, Term, Timing, Work as _};
use object::Gates;
use server::authn::files::FileError;
use server::authn::{self, StaticTokens};
use server::limits::Limits;
use server::process::open_files_max;
use server::{Env, Launch, Running, User};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use store::OpenError;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The API alone: controllers run elsewhere, or not at all.
pub async fn run_server(args: ServingArgs) -> Result<()> {
    let started = Instant::now();
    let mut signals = Signals::listen()?;
    let (place, running) = serve(&args, &mut signals).await?;
    announce::ready(&place, started);
    announce::no_controllers();
    announce::next_commands(&place, &["kubectl get namespaces".to_owned()]);
    signals.next().await;
    eprintln!("Stopping.");
    running.stop().await;
    place.clean();
    Ok(())
}

pub async fn run(args: Box<UpArgs>) -> Result<()> {
    let started = Instant::now();
    let mut signals = Signals::listen()?;
    // Bad input is refused before anything is opened or written.
    runtime::Controllers::check(&args.controllers, &kit::NamespaceScope::default()).map_err(BadInput)?;
    let mut nodes = crate::nodes::setup(args.nodes, &args.node_capacity).map_err(BadInput)?;
    let mut drivers = args.drivers.parse()?;
    let (place, running) = serve(&args.serving, &mut signals).await?;
    let builtin =
        if args.no_builtin_storage { None } else { Some(Builtin::start(&place, &running, &nodes.names()).await?) };
    if let Some(builtin) = &builtin {
        drivers.push(builtin.endpoint()?);
        nodes.drivers.push(builtin.on_nodes());
        nodes.volume_data = Some(builtin.volume_data());
    }
    let setup = runtime::Setup {
        root_ca: Some(place.root_ca.clone()),
        gates: Gates::parse(&args.serving.feature_gates).map_err(BadInput)?,
        provisioning: args.provisioning.into(),
        terminated_pod_threshold: args.pod_gc.terminated_pod_gc_threshold,
        drivers,
        ..runtime::Setup::new(&args.controllers)
    };
    running.server.metrics.extend(|registry| {
        setup.metrics.register(registry);
        nodes.volume_stats.register(registry);
    });
    let shutdown = signals.stop();
    if matches!(place.backend, Backend::Etcd(_)) {
        // Other processes may run on the same store.
        let trouble = introduce(&args, &place, &running, &setup, started, &shutdown).await;
        let election = election(&running, &setup);
        let lease = format!("{}/{}", election.namespace, election.name);
        // All that a leader runs writes through a fenced client, so that none of it writes after the term.
        let start = |term: &Term| {
            let fenced = |local| {
                kit::fenced_client::client(kube::Client::new(local, "default"), server::LEASE_HEADER, &lease, term)
            };
            Work {
                controllers: controllers(&setup, &running, |name, local| {
                    setup.metrics.kit.client_of(name, fenced(local))
                }),
                nodes: crate::nodes::begin(&nodes, &setup, &running, fenced),
            }
        };
        if let Err(overdue) = election.lead(shutdown, tell, start).await {
            eprintln!("mainstay: {overdue}; ending at once.");
            std::process::abort();
        }
        trouble.await.context("the trouble reports broke down")?;
    } else {
        let work = Work {
            controllers: controllers(&setup, &running, |name, local| setup.metrics.kit.client(name, local)),
            nodes: crate::nodes::start(&nodes, &setup, &running).await,
        };
        let trouble = introduce(&args, &place, &running, &setup, started, &shutdown).await;
        shutdown.cancelled().await;
        work.stop().await;
        trouble.await.context("the trouble reports broke down")?;
    }
    // They hold the driver.
    drop(nodes);
    if let Some(builtin) = builtin {
        builtin.stop().await;
    }
    running.stop().await;
    place.clean();
    Ok(())
}

/// Prints what is there and what to do next, and begins to watch for trouble.
async fn introduce(
    args: &UpArgs,
    place: &Place,
    running: &Running,
    setup: &runtime::Setup,
    started: Instant,
    shutdown: &CancellationToken,
) -> JoinHandle<()> {
    announce::ready(place, started);
    let client = kube::Client::new(running.local(User::apiserver()), "default");
    let api = Api::sharing(client, &setup.decoded);
    let contents = Contents::read(&api).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot count the objects of the store");
        Contents::default()
    });
    announce::workloads(&contents, args.nodes);
    announce::next_commands(place, &announce::first_steps(&contents));
    if args.report_stuck_after.is_zero() {
        return tokio::spawn(std::future::ready(()));
    }
    tokio::spawn(trouble::tell(api, args.report_stuck_after, shutdown.clone()))
}

/// What one process of a store does at a time.
struct Work {
    controllers: runtime::Controllers,
    nodes: node::Nodes,
}

impl lease::Work for Work {
    async fn stop(self) {
        self.nodes.stop().await;
        self.controllers.stop().await;
    }
}

fn controllers(
    setup: &runtime::Setup,
    running: &Running,
    client: impl Fn(&str, server::Local) -> kube::Client,
) -> runtime::Controllers {
    let started = runtime::Controllers::start(setup, |name| {
        let user = authn::service_account_user("kube-system", name);
        client(name, running.local(user))
    });
    started.expect("the list was checked at the start")
}

/// The same lease as `mainstay controllers` takes, so that either works and never both.
fn election(running: &Running, setup: &runtime::Setup) -> Election {
    Election {
        api: Api::new(kube::Client::new(running.local(User::apiserver()), "default")),
        namespace: "kube-system".to_owned(),
        name: "mainstay-controllers".to_owned(),
        identity: crate::controllers::identity(),
        timing: Timing::default(),
        clock: setup.clock.clone(),
    }
}

fn tell(standing: &Standing) {
    match standing {
        Standing::Asking => {}
        Standing::StandingBy { holder } => println!("Standing by: {holder} runs the controllers."),
        Standing::Leading(_) => println!("Leading: the controllers run."),
        Standing::Lost(_) => eprintln!("mainstay: the lease was lost; the controllers stop until it is ours again."),
        Standing::Unable { why, .. } => eprintln!("mainstay: the lease cannot be used: {why}; trying again."),
    }
}

/// Where a server keeps its things and where it is found.
pub struct Place {
    pub url: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// The names of the serving certificate.
    pub names: Vec<String>,
    /// Whether the user gave some of these names.
    pub has_extra_names: bool,
    pub kubeconfig: PathBuf,
    /// Why the kubeconfig could not be written. The API is served without it: on a full disk reads must work.
    pub kubeconfig_error: Option<FileError>,
    pub backend: Backend,
    /// What is this server's own is here; `None` keeps nothing.
    pub data_dir: Option<PathBuf>,
    scratch_dir: Option<PathBuf>,
    /// The certificate of the server's CA, in PEM.
    root_ca: Arc<str>,
}

impl Place {
    /// Removes what was only for this run.
    fn clean(&self) {
        if let Some(directory) = &self.data_dir {
            Record::remove(directory);
        }
        if let Some(directory) = &self.scratch_dir
            && let Err(error) = std::fs::remove_dir_all(directory)
        {
            tracing::warn!(%error, directory = %directory.display(), "cannot remove the scratch directory");
        }
    }
}

/// Opens the store and serves the API.
async fn serve(args: &ServingArgs, signals: &mut Signals) -> Result<(Place, Running)> {
    let gates = Gates::parse(&args.feature_gates).map_err(BadInput)?;
    let static_tokens = static_tokens(args.token_auth_file.as_deref())?;
    let listener = bind(args.listen).await.map_err(|error| second_start(args, error))?;
    let address = listener.local_addr().context("the socket has no address")?;
    let backend = Backend::of(args)?;
    let data_dir = backend::data_dir(args)?;
    let store = tokio::select! {
        store = backend.open() => store.map_err(|error| second_start(args, error))?,
        () = signals.next() => return Err(anyhow::anyhow!("stopped before the store was open")),
    };
    let wanted = authn::serving_names(&args.listen.ip().to_string(), &args.tls_san);
    let older = data_dir.as_deref().filter(|_| matches!(backend, Backend::Directory(_)));
    let identity = authn::identity_store::identity(&*store, older, &wanted, jiff::Timestamp::now()).await?;
    let names = identity.serving_names()?;
    let url = url(address);
    let scratch_dir = (data_dir.is_none() && args.kubeconfig.is_none()).then(paths::scratch_dir);
    let kubeconfig = match (&args.kubeconfig, &data_dir, &scratch_dir) {
        (Some(path), ..) => path.clone(),
        (None, Some(directory), _) | (None, None, Some(directory)) => directory.join("kubeconfig"),
        (None, None, None) => unreachable!("there is a scratch directory whenever nothing else is given"),
    };
    if let Some(directory) = &scratch_dir {
        authn::files::create_private_directory(directory)?;
    }
    let admin = &identity.admin;
    let text = authn::kubeconfig(&url, &identity.ca.certificate_pem, &admin.certificate_pem, &admin.key_pem);
    let root_ca: Arc<str> = identity.ca.certificate_pem.as_str().into();
    let launch = Launch {
        store,
        identity,
        gates,
        env: Env::default(),
        static_tokens,
        limits: Limits::new(args.max_mutating_requests_inflight, args.max_requests_inflight)
            .with_open_files(open_files_max()),
        bootstrap: [node::bootstrap_objects(), runtime::bootstrap_objects()].concat(),
        listener: Some(listener),
        issuer: "https://kubernetes.default.svc.cluster.local".to_owned(),
    };
    let running = launch.start().await?;
    let kubeconfig_error = authn::files::write_private_if_changed(&kubeconfig, text.as_bytes()).err();
    if let Some(directory) = &data_dir {
        let record = Record { pid: std::process::id(), api: url.clone(), kubeconfig: kubeconfig.clone() };
        record.write(directory);
    }
    let has_extra_names = !args.tls_san.is_empty();
    let place = Place {
        url,
        address,
        names,
        has_extra_names,
        kubeconfig,
        kubeconfig_error,
        backend,
        data_dir,
        scratch_dir,
        root_ca,
    };
    Ok((place, running))
}

/// Names the server that runs already where that is why this one cannot start.
fn second_start(args: &ServingArgs, error: anyhow::Error) -> anyhow::Error {
    let holder = match error.downcast_ref::<OpenError>() {
        Some(OpenError::InUse { holder, .. }) => *holder,
        Some(_) => None,
        None => error.downcast_ref::<PortTaken>().and_then(|taken| taken.by.as_ref().map(|process| process.pid)),
    };
    let directory = if args.in_memory { None } else { args.data_dir.clone().or_else(paths::data_dir) };
    let record = directory.as_deref().and_then(Record::read);
    match (record, directory) {
        (Some(record), Some(directory)) if Some(record.pid) == holder => BadInput(record.refusal(&directory)).into(),
        _ => match error.downcast::<PortTaken>() {
            Ok(taken) => BadInput(taken.to_string()).into(),
            Err(error) => error,
        },
    }
}

/// The address to listen on is in use.
#[derive(Debug)]
struct PortTaken {
    address: SocketAddr,
    by: Option<Listener>,
}

impl std::fmt::Display for PortTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = match &self.by {
            Some(Listener { pid, command }) => format!("process {pid} ({command}) listens there"),
            None => "another process listens there".to_owned(),
        };
        write!(f, "cannot listen on {}: {by}; stop it, or choose another address with --listen", self.address)
    }
}

impl std::error::Error for PortTaken {}

fn static_tokens(file: Option<&Path>) -> Result<StaticTokens> {
    let Some(path) = file else { return Ok(StaticTokens::default()) };
    let text = store::regular_file::read_to_string(path)
        .map_err(|error| BadInput(format!("cannot read the token file {}: {error}", path.display())))?;
    let tokens = StaticTokens::parse(&text).map_err(|why| BadInput(format!("{}: {why}", path.display())))?;
    Ok(tokens)
}

/// Listens for TCP connections; the error is one sentence.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    bind(address).await.map_err(|error| match error.downcast::<PortTaken>() {
        Ok(taken) => BadInput(taken.to_string()).into(),
        Err(error) => error,
    })
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        if error.kind() == std::io::ErrorKind::AddrInUse {
            return PortTaken { address, by: running::listener(address) }.into();
        }
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "; choose a port above 1023 with --listen",
            _ => "",
        };
        BadInput(format!("cannot listen on {address}: {error}{hint}")).into()
    })
}

/// The URL for clients on this machine, also when the server listens everywhere.
fn url(address: SocketAddr) -> String {
    let host = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => "127.0.0.1".to_owned(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => "[::1]".to_owned(),
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    format!("https://{host}:{}", address.port())
}
