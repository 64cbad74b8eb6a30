//! The flags of `mainstay bench`.

use crate::BadInput;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

/// The flags.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Measure this server instead of our own
    #[arg(long, env = "MAINSTAY_BENCH_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// More servers of the same cluster, by address: clients are spread over all of them
    #[arg(long, env = "MAINSTAY_BENCH_SERVERS", value_name = "URL", value_delimiter = ',', requires = "kubeconfig")]
    pub servers: Vec<http::Uri>,
    /// Run only these benchmarks
    #[arg(long, env = "MAINSTAY_BENCH_ONLY", value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<Work>,
    /// Simulated clients, each with its own connection
    #[arg(long, env = "MAINSTAY_BENCH_CLIENTS", default_value_t = 16, value_name = "N")]
    pub clients: usize,
    /// Objects to create, get, list, patch and delete (api); 0 skips this benchmark
    #[arg(long, env = "MAINSTAY_BENCH_OBJECTS", default_value_t = 3000, value_name = "N")]
    pub objects: usize,
    /// Ordered StatefulSets of five to create, update, scale down and delete, with and without claims (sets); 0 skips
    /// all sets
    #[arg(long, env = "MAINSTAY_BENCH_SETS", default_value_t = 100, value_name = "N")]
    pub sets: usize,
    /// Replicas of each of the four parallel StatefulSets (sets); 0 skips these
    #[arg(long, env = "MAINSTAY_BENCH_REPLICAS", default_value_t = 250, value_name = "N")]
    pub replicas: usize,
    /// Claims to bind to static volumes, and to release (bind); 0 skips this benchmark
    #[arg(long, env = "MAINSTAY_BENCH_PAIRS", default_value_t = 1000, value_name = "N")]
    pub pairs: usize,
    /// Volumes that a CSI driver creates and deletes (provision); 0 skips this benchmark
    #[arg(long, env = "MAINSTAY_BENCH_VOLUMES", default_value_t = 1000, value_name = "N")]
    pub volumes: usize,
    /// Claims of one set to expand in place (resize); 0 skips this benchmark
    #[arg(long, env = "MAINSTAY_BENCH_CLAIMS", default_value_t = 100, value_name = "N")]
    pub claims: usize,
    /// The CSI driver that creates and expands volumes
    #[arg(long, env = "MAINSTAY_BENCH_DRIVER", default_value = csi::directory::DEFAULT_NAME, value_name = "NAME")]
    pub driver: String,
    /// Objects that are deleted with their owner (gc); 0 skips this benchmark
    #[arg(long, env = "MAINSTAY_BENCH_DEPENDANTS", default_value_t = 1000, value_name = "N")]
    pub dependants: usize,
    /// Objects in the store when our own server is restarted (restart); 0 skips this benchmark
    #[arg(long, env = "MAINSTAY_BENCH_STORED", default_value_t = 10_000, value_name = "N")]
    pub stored: usize,
    /// Measure instead how the cost of pods, claims, volumes and objects grows with their number
    #[arg(long, env = "MAINSTAY_BENCH_GROWTH", conflicts_with = "only")]
    pub growth: bool,
    /// The sizes for --growth, in sets of one pod; ten times as many objects of one kind [default: 100,1000,10000]
    #[arg(long, env = "MAINSTAY_BENCH_SIZES", value_name = "LIST", value_delimiter = ',', conflicts_with = "only")]
    pub sizes: Vec<usize>,
    /// Create, change and delete the same objects for this many seconds instead, and check that memory and disk reach a
    /// plateau
    #[arg(long, env = "MAINSTAY_BENCH_SOAK", default_value_t = 0, value_name = "SECONDS", hide_default_value = true)]
    pub soak: u64,
    /// Run our own server without a disk
    #[arg(long, env = "MAINSTAY_BENCH_IN_MEMORY", conflicts_with = "kubeconfig")]
    pub in_memory: bool,
    /// Also write the results to this file as JSON
    #[arg(long, env = "MAINSTAY_BENCH_JSON", value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the results to this file as a chart
    #[arg(long, env = "MAINSTAY_BENCH_SVG", value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// The benchmarks of `mainstay bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Create, get, list, patch and delete objects
    Api,
    /// StatefulSets
    Sets,
    /// Claims that are bound to static volumes and released
    Bind,
    /// Volumes that a CSI driver creates and deletes
    Provision,
    /// Claims of a set that are expanded in place
    Resize,
    /// Garbage collection
    Gc,
    /// A restart of our own server
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
