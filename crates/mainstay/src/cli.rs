//! The command line. Every flag has an environment variable; bad input gets one line and exit code 2.

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// A control plane for stateful workloads: Kubernetes' StatefulSets and persistent volumes in one binary.
#[derive(Debug, Parser)]
#[command(name = "mainstay", version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub log: crate::log::LogArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run everything in one process
    Up(Box<UpArgs>),
    /// Serve the API alone, without controllers
    Server(Box<ServingArgs>),
    /// Run the controllers alone, against any Kubernetes API server
    Controllers(Box<ControllersArgs>),
    /// Run simulated nodes, against any Kubernetes API server
    Nodes(Box<crate::nodes::NodesArgs>),
    /// Serve a CSI driver whose volumes are directories
    Csi(Box<crate::csi::CsiArgs>),
    /// Copy, back up and restore stores
    Store {
        #[command(subcommand)]
        command: Box<crate::copies::StoreCommand>,
    },
    /// Print a kubeconfig, or merge it into ~/.kube/config: the administrator's, or one for a user with a certificate of its own
    Kubeconfig(Box<crate::kubeconfig::KubeconfigArgs>),
    /// Print a manifest to begin with: a StatefulSet of three with a volume each, for `kubectl apply -f -`
    Example,
    /// Measure an API server: our own, or any other by its kubeconfig
    Bench(Box<BenchArgs>),
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Measure this server instead of one of our own
    #[arg(long, env = "MAINSTAY_BENCH_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// More servers of the same cluster, by address: clients are spread over all of them
    #[arg(long, env = "MAINSTAY_BENCH_SERVERS", value_name = "URL", value_delimiter = ',', requires = "kubeconfig", value_parser = https)]
    pub servers: Vec<http::Uri>,
    /// Do only these pieces of work
    #[arg(long, env = "MAINSTAY_BENCH_ONLY", value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<BenchWork>,
    /// Simulated clients, each with its own connection
    #[arg(long, env = "MAINSTAY_BENCH_CLIENTS", default_value_t = 16, value_name = "N", value_parser = some)]
    pub clients: usize,
    /// Objects to create, get, list, patch and delete (api); 0 leaves that out
    #[arg(long, env = "MAINSTAY_BENCH_OBJECTS", default_value_t = 3000, value_name = "N")]
    pub objects: usize,
    /// Ordered StatefulSets of five to create, roll, shrink and delete, with and without claims (sets); 0 leaves out all sets
    #[arg(long, env = "MAINSTAY_BENCH_SETS", default_value_t = 100, value_name = "N")]
    pub sets: usize,
    /// Replicas of each of the four parallel StatefulSets (sets); 0 leaves these out
    #[arg(long, env = "MAINSTAY_BENCH_REPLICAS", default_value_t = 250, value_name = "N")]
    pub replicas: usize,
    /// Claims to bind to static volumes, and to release (bind); 0 leaves that out
    #[arg(long, env = "MAINSTAY_BENCH_PAIRS", default_value_t = 1000, value_name = "N")]
    pub pairs: usize,
    /// Volumes to let a CSI driver make and delete (provision); 0 leaves that out
    #[arg(long, env = "MAINSTAY_BENCH_VOLUMES", default_value_t = 1000, value_name = "N")]
    pub volumes: usize,
    /// Claims of one set to grow in place (resize); 0 leaves that out
    #[arg(long, env = "MAINSTAY_BENCH_CLAIMS", default_value_t = 100, value_name = "N")]
    pub claims: usize,
    /// The CSI driver that makes and grows volumes
    #[arg(long, env = "MAINSTAY_BENCH_DRIVER", default_value = csi::directory::DEFAULT_NAME, value_name = "NAME")]
    pub driver: String,
    /// Objects that go with their owner (gc); 0 leaves that out
    #[arg(long, env = "MAINSTAY_BENCH_DEPENDANTS", default_value_t = 1000, value_name = "N")]
    pub dependants: usize,
    /// Objects in the store when our own server is stopped and started (restart); 0 leaves that out
    #[arg(long, env = "MAINSTAY_BENCH_STORED", default_value_t = 10_000, value_name = "N")]
    pub stored: usize,
    /// See instead what pods, claims, volumes and objects cost at several sizes, and how that grows
    #[arg(long, env = "MAINSTAY_BENCH_GROWTH", conflicts_with = "only")]
    pub growth: bool,
    /// These sizes, in sets of one pod; ten times as many objects of one kind [default: 100,1000,10000]
    #[arg(long, env = "MAINSTAY_BENCH_SIZES", value_name = "LIST", value_delimiter = ',', conflicts_with = "only")]
    pub sizes: Vec<usize>,
    /// Make, change and delete the same things for so many seconds instead, and see whether memory and disk reach a plateau
    #[arg(long, env = "MAINSTAY_BENCH_SOAK", default_value_t = 0, value_name = "SECONDS", hide_default_value = true)]
    pub soak: u64,
    /// Let our own server keep nothing on disk
    #[arg(long, env = "MAINSTAY_BENCH_IN_MEMORY", conflicts_with = "kubeconfig")]
    pub in_memory: bool,
    /// Write the figures to this file as JSON too
    #[arg(long, env = "MAINSTAY_BENCH_JSON", value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the figures to this file as a picture too
    #[arg(long, env = "MAINSTAY_BENCH_SVG", value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// The pieces of work of `mainstay bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchWork {
    /// Create, get, list, patch and delete objects
    Api,
    /// StatefulSets
    Sets,
    /// Claims bound to static volumes, and these released
    Bind,
    /// Volumes that a CSI driver makes and deletes
    Provision,
    /// Claims of a set that grow in place
    Resize,
    /// Garbage collection
    Gc,
    /// Our own server stopped and started
    Restart,
}

/// Reads a number above zero.
fn some(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("it wants a whole number above zero".to_owned()),
    }
}

#[derive(Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub serving: ServingArgs,
    /// Controllers to run: '*' is all, '*,-name' leaves one out, or a list of names
    #[arg(long, env = "MAINSTAY_CONTROLLERS", default_value = "*", value_name = "LIST")]
    pub controllers: String,
    /// Simulated nodes, which place and run pods without executing anything; 0 is none
    #[arg(long, env = "MAINSTAY_NODES", default_value_t = 1, value_name = "N")]
    pub nodes: usize,
    /// What each simulated node has, where that is not plenty: cpu=8,memory=32Gi,pods=110
    #[arg(long, env = "MAINSTAY_NODE_CAPACITY", default_value = "", value_name = "LIST", hide_default_value = true)]
    pub node_capacity: String,
    #[command(flatten)]
    pub provisioning: ProvisioningArgs,
    #[command(flatten)]
    pub pod_gc: PodGcArgs,
    #[command(flatten)]
    pub drivers: crate::storage::DriverArgs,
    /// Leave out the storage that is built in: no directory driver, no class `standard`
    #[arg(long, env = "MAINSTAY_NO_BUILTIN_STORAGE")]
    pub no_builtin_storage: bool,
    /// Print a line when a StatefulSet makes no progress or a node is not ready for this long; 0s prints none
    #[arg(long, env = "MAINSTAY_REPORT_STUCK_AFTER", default_value = "30s", value_name = "TIME", value_parser = duration)]
    pub report_stuck_after: Duration,
}

/// Which volumes the controllers make for claims.
#[derive(Clone, Copy, Debug, Args)]
pub struct ProvisioningArgs {
    /// Have volumes made for claims whose class asks for it
    #[arg(
        long, env = "MAINSTAY_ENABLE_DYNAMIC_PROVISIONING", value_name = "BOOL",
        default_value_t = true, default_missing_value = "true", num_args = 0..=1, action = clap::ArgAction::Set
    )]
    pub enable_dynamic_provisioning: bool,
    /// Make directories below /tmp for classes of the provisioner kubernetes.io/host-path: for tests on one machine
    #[arg(long, env = "MAINSTAY_ENABLE_HOSTPATH_PROVISIONER")]
    pub enable_hostpath_provisioner: bool,
}

/// How many ended pods the pod garbage collector keeps.
#[derive(Clone, Copy, Debug, Args)]
pub struct PodGcArgs {
    /// Delete the oldest Succeeded and Failed pods when there are more than this; 0 keeps all
    #[arg(
        long, env = "MAINSTAY_TERMINATED_POD_GC_THRESHOLD", value_name = "N",
        default_value_t = runtime::TERMINATED_POD_THRESHOLD, allow_negative_numbers = true
    )]
    pub terminated_pod_gc_threshold: i64,
}

impl From<ProvisioningArgs> for runtime::Provisioning {
    fn from(args: ProvisioningArgs) -> runtime::Provisioning {
        runtime::Provisioning { dynamic: args.enable_dynamic_provisioning, host_path: args.enable_hostpath_provisioner }
    }
}

#[derive(Debug, Args)]
pub struct ControllersArgs {
    /// The API server and who we are there [default: $KUBECONFIG, ~/.kube/config, or the pod's ServiceAccount]
    #[arg(long, env = "MAINSTAY_CONTROLLERS_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Controllers to run: '*' is all, '*,-name' leaves one out, or a list of names
    #[arg(long, env = "MAINSTAY_CONTROLLERS", default_value = "*", value_name = "LIST")]
    pub controllers: String,
    /// Work in these namespaces only, and on volumes of their claims or of nobody. Controllers that must see the whole cluster, or that
    /// serve a CSI driver, are left out; other processes for other namespaces need another --lease-name
    #[arg(long, env = "MAINSTAY_NAMESPACES", value_name = "NAME,NAME", value_parser = kit::NamespaceScope::parse, conflicts_with_all = ["endpoints", "root_ca_file"])]
    pub namespaces: Option<kit::NamespaceScope>,
    /// Switch features on or off: A=true,B=false
    #[arg(long, env = "MAINSTAY_FEATURE_GATES", default_value = "", value_name = "LIST", hide_default_value = true)]
    pub feature_gates: String,
    /// Let only one of several processes work: the one that holds a Lease
    #[arg(
        long, env = "MAINSTAY_LEADER_ELECT", value_name = "BOOL",
        default_value_t = true, default_missing_value = "true", num_args = 0..=1, action = clap::ArgAction::Set
    )]
    pub leader_elect: bool,
    /// The namespace of that Lease
    #[arg(long, env = "MAINSTAY_LEASE_NAMESPACE", default_value = "kube-system", value_name = "NAME")]
    pub lease_namespace: String,
    /// The name of that Lease
    #[arg(long, env = "MAINSTAY_LEASE_NAME", default_value = "mainstay-controllers", value_name = "NAME")]
    pub lease_name: String,
    /// How long the Lease counts after its last renewal: others wait this long after a crash
    #[arg(long, env = "MAINSTAY_LEADER_ELECT_LEASE_DURATION", default_value = "15s", value_name = "TIME", value_parser = duration)]
    pub leader_elect_lease_duration: Duration,
    /// Who could not renew it for this long stops; the rest of the lease is the time to stop in
    #[arg(long, env = "MAINSTAY_LEADER_ELECT_RENEW_DEADLINE", default_value = "10s", value_name = "TIME", value_parser = duration)]
    pub leader_elect_renew_deadline: Duration,
    /// The pause between attempts to get or renew it
    #[arg(long, env = "MAINSTAY_LEADER_ELECT_RETRY_PERIOD", default_value = "2s", value_name = "TIME", value_parser = duration)]
    pub leader_elect_retry_period: Duration,
    /// Serve /metrics, /healthz, /livez and /readyz here, as plain HTTP; port 0 picks a free one
    #[arg(long, env = "MAINSTAY_CONTROLLERS_LISTEN", default_value = "127.0.0.1:10277", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// Publish this CA certificate as kube-root-ca.crt in every namespace; without it, those that are there are left alone
    #[arg(long, env = "MAINSTAY_ROOT_CA_FILE", value_name = "FILE")]
    pub root_ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub provisioning: ProvisioningArgs,
    #[command(flatten)]
    pub pod_gc: PodGcArgs,
    #[command(flatten)]
    pub drivers: crate::storage::DriverArgs,
}

#[derive(Debug, Args)]
pub struct ServingArgs {
    /// Keep durable state here [default: mainstay in the user's data directory]
    #[arg(long, env = "MAINSTAY_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Keep nothing: all state is gone when the process ends
    #[arg(long, env = "MAINSTAY_IN_MEMORY", conflicts_with_all = ["data_dir", "store"])]
    pub in_memory: bool,
    /// Keep objects in this etcd instead of the data directory: etcd://host:2379,host:2379. Several servers may share it
    #[arg(long, env = "MAINSTAY_STORE", value_name = "URL")]
    pub store: Option<String>,
    #[command(flatten)]
    pub etcd: crate::backend::EtcdArgs,
    /// Serve HTTPS here; port 0 picks a free one
    #[arg(long, env = "MAINSTAY_LISTEN", default_value = "127.0.0.1:6443", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// Write the administrator's kubeconfig here [default: kubeconfig in the data directory]
    #[arg(long, env = "MAINSTAY_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// More names or addresses for the serving certificate
    #[arg(long, env = "MAINSTAY_TLS_SAN", value_name = "NAME", value_delimiter = ',')]
    pub tls_san: Vec<String>,
    /// Accept the tokens in this file: lines of token,user,uid,"group1,group2"
    #[arg(long, env = "MAINSTAY_TOKEN_AUTH_FILE", value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Most requests that read at once, for ordinary users together and again for nodes and kube-system. More get 429 with Retry-After.
    /// Administrators, leases, watches and health checks do not count
    #[arg(long, env = "MAINSTAY_MAX_REQUESTS_INFLIGHT", default_value_t = server::limits::READS_MAX, value_name = "N", value_parser = some)]
    pub max_requests_inflight: usize,
    /// The same for requests that write
    #[arg(long, env = "MAINSTAY_MAX_MUTATING_REQUESTS_INFLIGHT", default_value_t = server::limits::WRITES_MAX, value_name = "N", value_parser = some)]
    pub max_mutating_requests_inflight: usize,
    /// Switch features on or off: A=true,B=false
    #[arg(long, env = "MAINSTAY_FEATURE_GATES", default_value = "", value_name = "LIST", hide_default_value = true)]
    pub feature_gates: String,
}

/// Prints the example of the README, for users without a checkout.
pub fn print_example() -> anyhow::Result<()> {
    use std::io::Write;
    std::io::stdout().write_all(include_bytes!("../../../examples/web.yaml")).context("cannot print the example")
}

/// Reads the address of a server.
pub fn https(text: &str) -> Result<http::Uri, String> {
    let url = text.parse::<http::Uri>().ok().filter(|url| url.scheme_str() == Some("https"));
    url.ok_or_else(|| "an address is https:// with host and port, such as https://127.0.0.1:6444".to_owned())
}

/// Reads `15s`, `500ms`, `2m`, `8h` or `30d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "a time is a whole number and ms, s, m, h or d, such as 15s".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number.saturating_mul(60))),
        "h" => Ok(Duration::from_secs(number.saturating_mul(60 * 60))),
        "d" => Ok(Duration::from_secs(number.saturating_mul(24 * 60 * 60))),
        _ => Err(wrong()),
    }
}

/// Input that the user can mend; its text is one sentence.
#[derive(Debug)]
pub struct BadInput(pub String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// Reads the arguments; on help, version or bad input it has said its words and gives the exit code.
pub fn parse() -> Result<Cli, ExitCode> {
    match Cli::try_parse() {
        Ok(cli) => Ok(cli),
        Err(error) if error.use_stderr() => {
            use clap::error::ErrorKind;
            if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                // Called with nothing: the help is what the user wants.
                eprint!("{error}");
            } else {
                eprintln!("mainstay: {}", one_line(&error.to_string()));
            }
            Err(ExitCode::from(2))
        }
        Err(help) => {
            // A reader such as `head` may close the pipe before the end, which is no failure.
            drop(help.print());
            Err(ExitCode::SUCCESS)
        }
    }
}

/// clap explains over several lines; the first paragraph is what is wrong, a tip says what to do.
fn one_line(text: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        if !line.is_empty() {
            parts.push(line);
        }
    }
    let joined = parts.join(" ");
    joined.strip_prefix("error: ").unwrap_or(&joined).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent_and_every_flag_has_a_variable() {
        let command = Cli::command();
        command.clone().debug_assert();
        let commands = command.get_subcommands().chain(command.get_subcommands().flat_map(|sub| sub.get_subcommands()));
        for sub in commands {
            let flags = sub.get_arguments().filter(|arg| !arg.is_positional());
            for arg in flags.filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version")) {
                assert!(arg.get_env().is_some(), "{} {} has no environment variable", sub.get_name(), arg.get_id());
            }
        }
    }

    #[test]
    fn bad_input_is_one_line() {
        let error = Cli::try_parse_from(["mainstay", "up", "--listen", "nowhere"]).unwrap_err().to_string();
        let line = one_line(&error);
        assert!(!line.contains('\n') && line.contains("--listen"), "{line}");
    }
}
