//! Simulated nodes: those of `mainstay up`, and `mainstay nodes` for any Kubernetes API server.

use crate::cli::BadInput;
use crate::connect::Target;
use crate::signals::Signals;
use anyhow::Result;
use clap::Args;
use node::{Identity, Nodes, Setup};
use object::quantity::Quantity;
use object::{Value, json, name};
use server::{Running, User};
use std::path::PathBuf;
use std::time::Duration;

/// Registering takes moments; who waits longer has a problem that the log tells of, and is not held up by it.
const REGISTRATION_TIME_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct NodesArgs {
    /// The API server and who we are there [default: $KUBECONFIG, ~/.kube/config, or the pod's ServiceAccount]
    #[arg(long, env = "MAINSTAY_NODES_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// How many nodes
    #[arg(long, env = "MAINSTAY_NODES_COUNT", default_value_t = 1, value_name = "N")]
    pub count: usize,
    /// Names are this and a number
    #[arg(long, env = "MAINSTAY_NODES_PREFIX", default_value = "simulated-", value_name = "TEXT")]
    pub prefix: String,
    /// What each node has, where that is not plenty: cpu=8,memory=32Gi,pods=110
    #[arg(long, env = "MAINSTAY_NODE_CAPACITY", default_value = "", value_name = "LIST", hide_default_value = true)]
    pub node_capacity: String,
    /// Taints of new nodes, to keep real work away: key=value:NoSchedule
    #[arg(long, env = "MAINSTAY_NODES_TAINTS", value_name = "TAINT", value_delimiter = ',')]
    pub taint: Vec<String>,
    /// Place the pods that name this scheduler; '' places none, where a real scheduler does
    #[arg(long, env = "MAINSTAY_NODES_SCHEDULER", default_value = "default-scheduler", value_name = "NAME")]
    pub scheduler_name: String,
}

/// The nodes alone, with the rights of whoever the kubeconfig names.
pub async fn run(args: Box<NodesArgs>) -> Result<()> {
    // Bad input is refused before anybody is asked anything.
    let setup = setup(args.count, &args.node_capacity).map_err(BadInput)?;
    let why = name::subdomain(&format!("{}0", args.prefix));
    if !why.is_empty() {
        return Err(
            BadInput(format!("--prefix {:?} does not begin names of nodes: {}", args.prefix, why.join("; "))).into()
        );
    }
    let taints: Result<Vec<Value>, String> = args.taint.iter().map(|text| taint(text)).collect();
    let setup =
        Setup { prefix: args.prefix, taints: taints.map_err(BadInput)?, scheduler: args.scheduler_name, ..setup };
    let target = Target::find(args.kubeconfig.as_deref()).await?;
    let mut signals = Signals::listen()?;
    println!("Mainstay {} simulated nodes", env!("CARGO_PKG_VERSION"));
    println!("  API      {}", target.url);
    let greeting = tokio::select! {
        () = signals.next() => return Ok(()),
        greeting = target.greet() => greeting?,
    };
    println!("  user     {}", greeting.user);
    println!("  nodes    {}", described(&setup));
    let mut nodes = Nodes::start(&setup, |_| target.client.clone());
    tokio::select! {
        () = nodes.registered() => println!("The nodes run; pods on them are simulated. Ctrl-C stops them."),
        () = signals.next() => {
            eprintln!("Stopping.");
            nodes.stop().await;
            return Ok(());
        }
    }
    signals.next().await;
    eprintln!("Stopping.");
    nodes.stop().await;
    Ok(())
}

fn described(setup: &Setup) -> String {
    match setup.count {
        0 => "none".to_owned(),
        1 => format!("{}0", setup.prefix),
        count => format!("{0}0 to {0}{1}", setup.prefix, count - 1),
    }
}

/// So many nodes with this capacity; the error is one sentence.
pub fn setup(count: usize, capacity: &str) -> Result<Setup, String> {
    let mut setup = Setup::new(count);
    for part in capacity.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((resource, amount)) = part.split_once('=') else {
            return Err(format!("node capacity {part:?} is not of the form resource=amount"));
        };
        if !name::qualified(resource).is_empty() {
            return Err(format!("node capacity {part:?} names no resource: {resource:?} cannot be one"));
        }
        let parsed: Quantity = amount
            .parse()
            .map_err(|_| format!("node capacity {part:?}: {amount:?} is no amount, such as 8 or 32Gi"))?;
        if parsed.is_negative() {
            return Err(format!("node capacity {part:?} is less than nothing"));
        }
        setup.capacity.insert(resource.to_owned(), parsed.to_string());
    }
    setup.check()?;
    Ok(setup)
}

/// Reads `key=value:Effect` or `key:Effect`.
fn taint(text: &str) -> Result<Value, String> {
    let wrong =
        || format!("taint {text:?} is not of the form key=value:Effect with NoSchedule, PreferNoSchedule or NoExecute");
    let (rest, effect) = text.rsplit_once(':').ok_or_else(wrong)?;
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    let known = matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute");
    if !known || !name::qualified(key).is_empty() || !name::label_value(value).is_empty() {
        return Err(wrong());
    }
    Ok(json!({"key": key, "value": value, "effect": effect}))
}

/// Starts the nodes of a server in this process beside its controllers, and waits until they have registered.
pub async fn start(setup: &Setup, beside: &runtime::Setup, running: &Running) -> Nodes {
    let mut nodes = begin(setup, beside, running, |local| kube::Client::new(local, "default"));
    if tokio::time::timeout(REGISTRATION_TIME_MAX, nodes.registered()).await.is_err() {
        tracing::warn!("the simulated nodes take their time to register");
    }
    nodes
}

/// The same without waiting. `client` makes the client of the scheduler and of the nodes; a leader's is fenced.
pub fn begin(
    setup: &Setup,
    beside: &runtime::Setup,
    running: &Running,
    client: impl Fn(server::Local) -> kube::Client,
) -> Nodes {
    let setup = Setup { metrics: beside.metrics.kit.clone(), decoded: beside.decoded.clone(), ..setup.clone() };
    Nodes::start(&setup, |identity| client(running.local(user(identity))))
}

/// The nodes are one user, because they are one process; a real node has a user of its own name, with rights to its own objects.
fn user(identity: Identity<'_>) -> User {
    match identity {
        Identity::Scheduler => User {
            name: "system:kube-scheduler".to_owned(),
            groups: vec!["system:authenticated".to_owned()],
            ..User::default()
        },
        Identity::Node(_) => server::authn::service_account_user("kube-system", node::rights::ACCOUNT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_read_and_bad_ones_named() {
        let setup = setup(2, "cpu=8, memory=32Gi,example.com/gpu=2").expect("it is good");
        assert_eq!(setup.capacity["cpu"], "8");
        assert_eq!(setup.capacity["example.com/gpu"], "2");
        assert!(setup.capacity.contains_key("pods"));
        for (text, part) in [
            ("cpu", "is not of the form"),
            ("cpu=many", "\"many\" is no amount"),
            ("cpu=-1", "less than nothing"),
            ("c p u=1", "names no resource"),
            ("pods=100M", "addresses"),
        ] {
            let error = super::setup(1, text).err().unwrap_or_default();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn taints_are_read() {
        assert_eq!(taint("a/b=c:NoSchedule"), Ok(json!({"key": "a/b", "value": "c", "effect": "NoSchedule"})));
        assert_eq!(taint("a:NoExecute"), Ok(json!({"key": "a", "value": "", "effect": "NoExecute"})));
        for bad in ["a", "a=b", "a=b:Never", "=b:NoSchedule", "a=b c:NoSchedule"] {
            assert!(taint(bad).unwrap_err().contains("not of the form"), "{bad}");
        }
    }
}
