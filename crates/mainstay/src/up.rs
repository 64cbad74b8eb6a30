//! `mainstay up`: everything in one process; `mainstay server`: the API alone.

use crate::cli::{BadInput, ServingArgs, UpArgs};
use crate::paths;
use crate::storage::Builtin;
use anyhow::{Context, Result};
use object::Gates;
use server::authn::{self, Identity, StaticTokens};
use server::{Env, Launch, Running};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use store::Store;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// The API alone: controllers run elsewhere, or not at all.
pub async fn run_server(args: ServingArgs) -> Result<()> {
    let started = Instant::now();
    crate::log::start();
    let (place, running) = serve(&args).await?;
    announce(&place, started);
    wait_for_signal().await?;
    eprintln!("Stopping.");
    running.stop().await;
    place.clean();
    Ok(())
}

pub async fn run(args: Box<UpArgs>) -> Result<()> {
    let started = Instant::now();
    crate::log::start();
    // Bad input is refused before anything is opened or written.
    runtime::Controllers::check(&args.controllers).map_err(BadInput)?;
    let nodes = crate::nodes::setup(args.nodes, &args.node_capacity).map_err(BadInput)?;
    let mut drivers = args.drivers.parse()?;
    let (place, running) = serve(&args.serving).await?;
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
    let controllers = runtime::Controllers::start(&setup, |name| {
        let user = authn::service_account_user("kube-system", name);
        setup.metrics.client(name, running.local(user))
    })
    .map_err(BadInput)?;
    let nodes = crate::nodes::start(nodes, &setup, &running).await;
    announce(&place, started);
    wait_for_signal().await?;
    eprintln!("Stopping.");
    nodes.stop().await;
    controllers.stop().await;
    if let Some(builtin) = builtin {
        builtin.stop().await;
    }
    running.stop().await;
    place.clean();
    Ok(())
}

/// Where a server keeps its things and where it is found.
pub struct Place {
    pub url: String,
    pub kubeconfig: PathBuf,
    /// `None` keeps nothing.
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
pub async fn serve(args: &ServingArgs) -> Result<(Place, Running)> {
    let gates = Gates::parse(&args.feature_gates).map_err(BadInput)?;
    let static_tokens = static_tokens(args.token_auth_file.as_deref())?;
    let listener = listen(args.listen).await?;
    let address = listener.local_addr().context("the socket has no address")?;
    let data_dir = data_dir(args)?;
    let store = open_store(data_dir.as_deref())?;
    let identity = identity(args, data_dir.as_deref())?;
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
        listener: Some(listener),
        issuer: "https://kubernetes.default.svc.cluster.local".to_owned(),
    };
    let running = launch.start().await?;
    authn::files::write_private(&kubeconfig, text.as_bytes()).context("cannot write the kubeconfig")?;
    Ok((Place { url, kubeconfig, data_dir, scratch_dir, root_ca }, running))
}

fn static_tokens(file: Option<&Path>) -> Result<StaticTokens> {
    let Some(path) = file else { return Ok(StaticTokens::default()) };
    let text = std::fs::read_to_string(path)
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

fn data_dir(args: &ServingArgs) -> Result<Option<PathBuf>> {
    if args.in_memory {
        return Ok(None);
    }
    let directory = args.data_dir.clone().or_else(paths::data_dir).ok_or_else(|| {
        BadInput(
            "there is no home directory to keep state in: say where with --data-dir, or use --in-memory".to_owned(),
        )
    })?;
    authn::files::create_private_directory(&directory)
        .map_err(|error| BadInput(format!("{error}; choose another directory with --data-dir")))?;
    Ok(Some(directory))
}

fn open_store(data_dir: Option<&Path>) -> Result<Arc<dyn Store>> {
    let finish = server::codec::finish;
    match data_dir {
        Some(directory) => Ok(store::Embedded::open(&directory.join("store"), finish, store::Options::default())?),
        None => Ok(store::Volatile::new(finish, store::Options::default())),
    }
}

fn identity(args: &ServingArgs, data_dir: Option<&Path>) -> Result<Identity> {
    let names = authn::serving_names(&args.listen.ip().to_string(), &args.tls_san);
    let now = jiff::Timestamp::now();
    match data_dir {
        Some(directory) => Ok(authn::files::load_or_make(directory, &names, now)?),
        None => Ok(Identity::make(&names, now)?),
    }
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
    let state = match &place.data_dir {
        Some(directory) => format!("{} (kept across restarts)", directory.display()),
        None => "in memory only (gone when this process ends)".to_owned(),
    };
    println!("Mainstay {} is ready after {} ms.", env!("CARGO_PKG_VERSION"), started.elapsed().as_millis());
    println!("  API         {}", place.url);
    println!("  kubeconfig  {}", place.kubeconfig.display());
    println!("  state       {state}");
    println!();
    println!("Try it from another terminal:");
    println!("  export KUBECONFIG={}", place.kubeconfig.display());
    println!("  kubectl get namespaces");
    println!();
    println!("Ctrl-C stops it.");
}

/// Waits until the process is told to end.
pub async fn wait_for_signal() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
