//! Storage of `mainstay up`: the directory driver behind the class `standard`, and the CSI drivers that the user names.

use crate::cli::BadInput;
use crate::paths;
use crate::up::Place;
use anyhow::{Context, Result};
use clap::Args;
use csi::directory::{DEFAULT_NAME, DirectoryDriver, Faults, Options, Serving};
use csi::v1::{NodeGetVolumeStatsResponse, VolumeUsage};
use futures::future::BoxFuture;
use kit::api::{Api, Resource};
use node::{Bytes, Usage};
use object::{Value, json};
use runtime::csi::Endpoint;
use server::authn::files::create_private_directory;
use server::{Running, User};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The class of claims that name none.
const CLASS: &str = "standard";
/// Volumes are compared with the driver's directory this often.
const MONITOR_INTERVAL_S: u64 = 60;
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

#[derive(Debug, Args)]
pub struct DriverArgs {
    /// Serve the CSI driver at this socket, unix:///path; may be repeated, and options may follow: unix:///path?timeout=30
    #[arg(long = "csi", env = "MAINSTAY_CSI", value_name = "ENDPOINT", value_delimiter = ',')]
    pub endpoints: Vec<String>,
}

impl DriverArgs {
    /// The error is one sentence.
    pub fn parse(&self) -> Result<Vec<Endpoint>, BadInput> {
        self.endpoints.iter().map(|text| Endpoint::parse(text).map_err(BadInput)).collect()
    }
}

/// The directory driver of this process.
pub struct Builtin {
    driver: Arc<DirectoryDriver>,
    serving: Serving,
    /// What is only for this run.
    scratch_dir: Option<PathBuf>,
}

impl Builtin {
    /// Starts the driver where the server keeps its things, and makes its objects if they are not there.
    /// `nodes` are the simulated nodes that use its volumes.
    pub async fn start(place: &Place, running: &Running, nodes: &[String]) -> Result<Builtin> {
        let scratch_dir = || PathBuf::from(format!("{}-storage", paths::scratch_dir().display()));
        let beside = place.data_dir.as_ref().map(|directory| directory.join("csi.sock"));
        // The address of a socket is short, and a data directory may be deep.
        let beside = beside.filter(|socket| csi::Endpoint::parse(&socket.to_string_lossy()).is_ok());
        let scratch = (place.data_dir.is_none() || beside.is_none()).then(scratch_dir);
        if let Some(directory) = &scratch {
            create_private_directory(directory)?;
        }
        let at = |name: &str| scratch.as_deref().unwrap_or_else(|| Path::new("/")).join(name);
        let socket = beside.unwrap_or_else(|| at("csi.sock"));
        let volumes =
            place.data_dir.as_ref().map_or_else(|| at("volumes"), |directory| crate::volume_data::directory(directory));
        let mut options = Options { durable: place.data_dir.is_some(), ..Options::default() };
        if !nodes.is_empty() {
            options.nodes = nodes.to_vec();
        }
        let opened = tokio::task::spawn_blocking(move || DirectoryDriver::open(&volumes, options, Faults::default()));
        let driver = opened.await.context("the directory driver broke down")?.context("no storage")?;
        let serving = Serving::start(Arc::clone(&driver), &socket).await.context("no storage")?;
        make_objects(running).await.context("the objects of the directory driver cannot be made")?;
        Ok(Builtin { driver, serving, scratch_dir: scratch })
    }

    pub fn endpoint(&self) -> Result<Endpoint> {
        let mut endpoint = Endpoint::parse(&self.serving.endpoint()).map_err(BadInput)?;
        endpoint.options.monitor_interval_s = MONITOR_INTERVAL_S;
        Ok(endpoint)
    }

    /// For simulated nodes: they start no pod on a volume that has no data.
    pub fn volume_data(&self) -> Arc<dyn node::VolumeData> {
        Arc::new(VolumeData(self.driver.clone()))
    }

    /// The driver as simulated nodes register it.
    pub fn on_nodes(&self) -> node::Driver {
        let driver = self.driver.clone();
        let probe = move |handle: String| -> BoxFuture<'static, Option<Usage>> {
            let driver = driver.clone();
            Box::pin(async move { Some(usage(&driver.volume_stats(&handle).await.ok()?)) })
        };
        node::Driver { name: DEFAULT_NAME.to_owned(), probe: Arc::new(probe) }
    }

    pub async fn stop(self) {
        // The driver holds the lock of its directory until it is dropped.
        drop(self.driver);
        self.serving.stop().await;
        if let Some(directory) = &self.scratch_dir
            && let Err(error) = std::fs::remove_dir_all(directory)
        {
            tracing::warn!(%error, directory = %directory.display(), "cannot remove the scratch directory");
        }
    }
}

fn usage(stats: &NodeGetVolumeStatsResponse) -> Usage {
    let bytes = |usage: &VolumeUsage| Bytes { capacity: usage.total, available: usage.available, used: usage.used };
    let condition = stats.volume_condition.as_ref();
    Usage { bytes: stats.usage.first().map(bytes), is_abnormal: condition.is_some_and(|condition| condition.abnormal) }
}

struct VolumeData(Arc<DirectoryDriver>);

impl node::VolumeData for VolumeData {
    fn problem(&self, driver: String, handle: String) -> BoxFuture<'static, Option<String>> {
        let directory = self.0.clone();
        if driver != directory.options().name {
            return Box::pin(std::future::ready(None));
        }
        Box::pin(async move {
            let asked = tokio::task::spawn_blocking(move || directory.problem(&handle)).await;
            asked.unwrap_or_else(|error| Some(format!("the directory driver broke down: {error}")))
        })
    }
}

/// What is there already is the user's, whatever it says.
async fn make_objects(running: &Running) -> Result<()> {
    let api = Api::new(kube::Client::new(running.local(User::apiserver()), "default"));
    let classes = Resource::new("storage.k8s.io/v1", "StorageClass", "storageclasses", false);
    let drivers = Resource::new("storage.k8s.io/v1", "CSIDriver", "csidrivers", false);
    if api.find(&drivers.object("", DEFAULT_NAME)).await?.is_none() {
        api.create(&drivers.collection(""), &csi_driver()).await?;
    }
    if api.find(&classes.object("", CLASS)).await?.is_none() {
        let mut default_is_taken = false;
        let is_default = |class: &Value| object::kinds::storage::is_default_class(class);
        api.each(&classes.collection(""), |class| default_is_taken |= is_default(class)).await?;
        api.create(&classes.collection(""), &class(!default_is_taken)).await?;
    }
    Ok(())
}

fn csi_driver() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DEFAULT_NAME},
        "spec": {"attachRequired": false, "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"]},
    })
}

fn class(is_default: bool) -> Value {
    let annotations = if is_default { json!({DEFAULT: "true"}) } else { json!({}) };
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": annotations},
        "provisioner": DEFAULT_NAME, "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
        "volumeBindingMode": "WaitForFirstConsumer",
    })
}
