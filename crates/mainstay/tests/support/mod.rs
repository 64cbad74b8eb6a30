//! Shared by the tests of the whole program: a running `mainstay up`, and kubectl as its client.
//!
//! Every test gets a namespace of its own on a server that the tests of one file share. The server runs as long as some
//! test holds it.

// Each test file is a crate of its own and uses a part of this.
#![allow(dead_code, unused_imports)]

mod client;
mod cluster;
mod controllers;
mod kubectl;
pub mod program;

pub use client::{Client, Trouble};
pub use cluster::{Cluster, Place, mainstay};
pub use controllers::{Controllers, nodes};
pub use kubectl::{Kubectl, words};
pub use program::{PATIENCE, Running, Said};

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
static WITHOUT_NODES: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
static SPACES: AtomicUsize = AtomicUsize::new(0);

/// The server that the tests of this file share.
pub fn shared_cluster() -> Arc<Cluster> {
    shared(&SHARED, &[])
}

fn shared(place: &Mutex<Weak<Cluster>>, arguments: &[&str]) -> Arc<Cluster> {
    let mut shared = place.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(cluster) = shared.upgrade() {
        return cluster;
    }
    let cluster = Arc::new(Cluster::start_with(Place::InMemory, arguments));
    *shared = Arc::downgrade(&cluster);
    cluster
}

/// kubectl in a new namespace of the shared server, or `None` (printed to stdout) if kubectl is not installed.
pub fn kubectl() -> Option<Kubectl> {
    let program = kubectl::find()?;
    Some(in_new_namespace(Kubectl::new(program, shared_cluster())))
}

/// The same, without simulated nodes: each pod stays as its creator left it.
pub fn kubectl_without_nodes() -> Option<Kubectl> {
    let program = kubectl::find()?;
    Some(in_new_namespace(Kubectl::new(program, shared(&WITHOUT_NODES, &["--nodes", "0"]))))
}

fn in_new_namespace(kubectl: Kubectl) -> Kubectl {
    let space = format!("t{}", SPACES.fetch_add(1, Ordering::Relaxed));
    kubectl.ok(&format!("create namespace {space}"));
    kubectl.in_namespace(&space)
}

/// kubectl in the default namespace of this server, or `None` (printed to stdout) if kubectl is not installed.
pub fn kubectl_on(cluster: &Arc<Cluster>) -> Option<Kubectl> {
    Some(Kubectl::new(kubectl::find()?, cluster.clone()))
}

/// kubectl with a kubeconfig, for a server that the test itself runs: arguments split as a shell would, and stdin. It
/// must succeed.
pub fn kubectl_by(home: &Path, kubeconfig: &Path) -> Option<impl Fn(&str, &str) -> String + use<>> {
    let (program, home, kubeconfig) = (kubectl::find()?, home.to_owned(), kubeconfig.to_owned());
    Some(move |arguments: &str, stdin: &str| {
        let mut command = std::process::Command::new(program);
        command.env("HOME", &home).env("KUBECONFIG", &kubeconfig).args(words(arguments));
        program::run(command, stdin).succeeded()
    })
}

/// The volumes of the built-in driver of a server with this data directory: each is a directory.
pub fn backend_volumes(data: &Path) -> Vec<PathBuf> {
    let kept = data.join("volumes/volumes");
    let entries = std::fs::read_dir(&kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display()));
    let paths = entries.map(|entry| entry.expect("an entry can be read").path());
    let mut volumes: Vec<_> =
        paths.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vol-"))).collect();
    volumes.sort();
    volumes
}

/// Prints why a test does not run; in CI that is a failure.
pub fn skip<T>(why: &str) -> Option<T> {
    assert!(std::env::var_os("CI").is_none(), "CI runs every test, but {why}");
    println!("skipped: {why}");
    None
}
