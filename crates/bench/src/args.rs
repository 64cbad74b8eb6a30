//! The flags of `mainstay bench`.

use crate::BadInput;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

/// The flags.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Measure this server instead of one of our own
    #[arg(long, env = "MAINSTAY_BENCH_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// More servers of the same cluster, by address: clients are spread over all of them
    #[arg(long, env = "MAINSTAY_BENCH_SERVERS", value_name = "URL", value_delimiter = ',', requires = "kubeconfig")]
    pub servers: Vec<http::Uri>,
    /// Do only these pieces of work
    #[arg(long, env = "MAINSTAY_BENCH_ONLY", value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<Work>,
    /// Simulated clients, each with its own connection
    #[arg(long, env = "MAINSTAY_BENCH_CLIENTS", default_value_t = 16, value_name = "N")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
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

impl BenchArgs {
    /// Refuses flags that would otherwise fail after minutes of work.
    pub fn check(&self) -> Result<(), BadInput> {
        let refused = |text: &str| Err(BadInput(text.to_owned()));
        if self.clients == 0 {
            return refused("--clients: it wants a whole number above zero");
        }
        if self.servers.iter().any(|url| url.scheme_str() != Some("https")) {
            return refused("--servers wants addresses with https:// and a port, such as https://127.0.0.1:6444");
        }
        let ascending = self.sizes.windows(2).all(|pair| pair[0] < pair[1]);
        if self.sizes.contains(&0) || !ascending {
            return refused(
                "--sizes wants numbers above zero, each larger than the one before, such as 100,1000,10000",
            );
        }
        if self.soak > 0 && (self.growth || !self.sizes.is_empty()) {
            return refused("--soak and --growth are different runs; give one of them");
        }
        for path in [&self.json, &self.svg].into_iter().flatten() {
            check_writable(path).map_err(|error| BadInput(format!("cannot write {}: {error}", path.display())))?;
        }
        Ok(())
    }
}

fn check_writable(path: &Path) -> std::io::Result<()> {
    let is_new = !path.exists();
    std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    if is_new { std::fs::remove_file(path) } else { Ok(()) }
}
