//! `mainstay up`: everything in one process; `mainstay server`: the API alone.

use crate::backend::{self, Backend};
use crate::cli::{BadInput, ServingArgs, UpArgs};
use crate::paths;
use crate::signals::Signals;
use crate::storage::Builtin;
use anyhow::{Context, Result};
use object::Gates;
use runtime::api::Api;
use runtime::lease::{self, Election, Standing, Term, Timing, Work as _};
use server::authn::files::FileError;
use server::authn::{self, StaticTokens};
use server::limits::Limits;
use server::{Env, Launch, Running, User};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;

/// The API alone: controllers run elsewhere, or not at all.
pub async fn run_server(args: ServingArgs) -> Result<()> {
    let started = Instant::now();
    let mut signals = Signals::listen()?;
    crate::log::start();
    let (place, running) = serve(&args, &mut signals).await?;
    announce(&place, started);
    signals.next().await;
    eprintln!("Stopping.");
    running.stop().await;
    place.clean();
    Ok(())
}

pub async fn run(args: Box<UpArgs>) -> Result<()> {
    let started = Instant::now();
    let mut signals = Signals::listen()?;
    crate::log::start();
    // Bad input is refused before anything is opened or written.
    runtime::Controllers::check(&args.controllers, &runtime::Reach::default()).map_err(BadInput)?;
    let nodes = crate::nodes::setup(args.nodes, &args.node_capacity).map_err(BadInput)?;
    let mut drivers = args.drivers.parse()?;
    let (place, running) = serve(&args.serving, &mut signals).await?;
    let builtin = if args.no_builtin_storage { None } else { Some(Builtin::start(&place, &running).await?) };
    if let Some(builtin) = &builtin {
        drivers.push(builtin.endpoint()?);
    }
    let setup = runtime::Setup {
        root_ca: Some(place.root_ca.clone()),
        gates: Gates::parse(&args.serving.feature_gates).map_err(BadInput)?,
        provisioning: args.provisioning.into(),
        drivers,
        ..runtime::Setup::new(&args.controllers)
    };
    running.server.metrics.extend(|registry| setup.metrics.register(registry));
    let shutdown = signals.stop();
    if matches!(place.backend, Backend::Etcd(_)) {
        // Other processes may run on the same store.
        announce(&place, started);
        let election = election(&running, &setup);
        let lease = format!("{}/{}", election.namespace, election.name);
        // All that a leader runs writes through a fenced client, so that none of it writes after the term.
        let start = |term: &Term| {
            let fenced =
                |local| runtime::fence::client(kube::Client::new(local, "default"), server::LEASE_HEADER, &lease, term);
            Work {
                controllers: controllers(&setup, &running, |name, local| setup.metrics.client_of(name, fenced(local))),
                nodes: crate::nodes::begin(&nodes, &setup, &running, fenced),
            }
        };
        if let Err(overdue) = election.lead(shutdown, tell, start).await {
            eprintln!("mainstay: {overdue}; ending at once.");
            std::process::abort();
        }
    } else {
        let work = Work {
            controllers: controllers(&setup, &running, |name, local| setup.metrics.client(name, local)),
            nodes: crate::nodes::start(&nodes, &setup, &running).await,
        };
        announce(&place, started);
        shutdown.cancelled().await;
        work.stop().await;
    }
    if let Some(builtin) = builtin {
        builtin.stop().await;
    }
    running.stop().await;
    place.clean();
    Ok(())
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
    pub kubeconfig: PathBuf,
    /// Why the kubeconfig could not be written. The API is served without it: on a full disk reads must work.
    kubeconfig_error: Option<FileError>,
    backend: Backend,
    /// What is this server's own is here; `None` keeps nothing.
    pub data_dir: Option<PathBuf>,
    scratch_dir: Option<PathBuf>,
    /// The certificate of the server's CA, in PEM.
    root_ca: Arc<str>,
}

impl Place {
    /// Removes what was only for this run.
    fn clean(&self) {
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
    let listener = listen(args.listen).await?;
    let address = listener.local_addr().context("the socket has no address")?;
    let backend = Backend::of(args)?;
    let data_dir = backend::data_dir(args)?;
    let store = tokio::select! {
        store = backend.open() => store?,
        () = signals.next() => return Err(anyhow::anyhow!("stopped before the store was open")),
    };
    let names = authn::serving_names(&args.listen.ip().to_string(), &args.tls_san);
    let older = data_dir.as_deref().filter(|_| matches!(backend, Backend::Directory(_)));
    let identity = authn::kept::identity(&*store, older, &names, jiff::Timestamp::now()).await?;
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
        limits: Limits::new(args.max_mutating_requests_inflight, args.max_requests_inflight),
        listener: Some(listener),
        issuer: "https://kubernetes.default.svc.cluster.local".to_owned(),
    };
    let running = launch.start().await?;
    let kubeconfig_error = authn::files::write_private_if_changed(&kubeconfig, text.as_bytes()).err();
    Ok((Place { url, kubeconfig, kubeconfig_error, backend, data_dir, scratch_dir, root_ca }, running))
}

fn static_tokens(file: Option<&Path>) -> Result<StaticTokens> {
    let Some(path) = file else { return Ok(StaticTokens::default()) };
    let text = store::regular_file::read_to_string(path)
        .map_err(|error| BadInput(format!("cannot read the token file {}: {error}", path.display())))?;
    let tokens = StaticTokens::parse(&text).map_err(|why| BadInput(format!("{}: {why}", path.display())))?;
    Ok(tokens)
}

pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => "; something serves there already, choose another address with --listen",
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

fn announce(place: &Place, started: Instant) {
    println!("Mainstay {} is ready after {} ms.", env!("CARGO_PKG_VERSION"), started.elapsed().as_millis());
    println!("  API         {}", place.url);
    match &place.kubeconfig_error {
        None => println!("  kubeconfig  {}", place.kubeconfig.display()),
        Some(error) => {
            println!("  kubeconfig  not written");
            eprintln!(
                "mainstay: {error}; an older kubeconfig may not work until this one is written at the next start."
            );
        }
    }
    println!("  state       {}", place.backend);
    println!();
    println!("Try it from another terminal:");
    println!("  export KUBECONFIG={}", place.kubeconfig.display());
    println!("  kubectl get namespaces");
    println!();
    println!("Ctrl-C stops it.");
}
