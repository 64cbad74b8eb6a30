//! `mainstay csi`: a CSI driver whose volumes are directories.

use crate::cli::BadInput;
use crate::signals::Signals;
use ::csi::DirectoryDriver;
use ::csi::directory::{DEFAULT_NAME, Expansion, Faults, Options, Serving};
use anyhow::Result;
use clap::Args;
use object::quantity::Quantity;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct CsiArgs {
    /// Serve at this unix socket
    #[arg(long, env = "MAINSTAY_CSI_SOCKET", value_name = "PATH")]
    pub socket: PathBuf,
    /// Keep the volumes in this directory; only one driver may use it
    #[arg(long, env = "MAINSTAY_CSI_DIR", value_name = "DIR")]
    pub dir: PathBuf,
    /// The driver's name, which StorageClasses use as their provisioner
    #[arg(long, env = "MAINSTAY_CSI_NAME", default_value = DEFAULT_NAME, value_name = "NAME")]
    pub name: String,
    /// The nodes that use volumes; the first one is the node that the driver reports as its own
    #[arg(long, env = "MAINSTAY_CSI_NODES", default_value = "localhost", value_delimiter = ',', value_name = "NAME")]
    pub node: Vec<String>,
    /// The limit for the sum of all volume sizes [default: 1Ei, no limit in practice]
    #[arg(long, env = "MAINSTAY_CSI_CAPACITY", value_name = "SIZE")]
    pub capacity: Option<String>,
    /// A topology segment that has storage, such as zone=a,rack=1; may be repeated (separated by ';' in the variable)
    #[arg(long, env = "MAINSTAY_CSI_TOPOLOGY", value_delimiter = ';', value_name = "SEGMENTS")]
    pub topology: Vec<String>,
    /// Parameters that a VolumeAttributesClass may set
    #[arg(
        long,
        env = "MAINSTAY_CSI_MUTABLE_PARAMETERS",
        default_value = "iops,throughput,tier,type",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    pub mutable_parameter: Vec<String>,
    /// Which service must act to expand a volume: controller, both, node, or never
    #[arg(long, env = "MAINSTAY_CSI_EXPANSION", default_value_t = Expansion::Controller, value_name = "WHO")]
    pub expansion: Expansion,
    /// Require volumes to be attached to a node before they are used there
    #[arg(long, env = "MAINSTAY_CSI_ATTACH")]
    pub attach: bool,
    /// Require volumes to be staged on a node before they are published there
    #[arg(long, env = "MAINSTAY_CSI_STAGE")]
    pub stage: bool,
    /// For tests: fail, delay or lose responses as this JSON file orders; it is read again when it changes
    #[arg(long, env = "MAINSTAY_CSI_FAULTS", value_name = "FILE")]
    pub faults: Option<PathBuf>,
}

pub async fn run(args: Box<CsiArgs>) -> Result<()> {
    let mut signals = Signals::listen()?;
    let options = options(&args).map_err(BadInput)?;
    let faults = match &args.faults {
        Some(file) => Faults::from_file(file).map_err(BadInput)?,
        None => Faults::default(),
    };
    let driver =
        DirectoryDriver::open(&args.dir, options, faults).map_err(|error| BadInput(format!("{error} (--dir)")))?;
    let name = driver.options().name.clone();
    let volumes = driver.volumes().len();
    let serving = Serving::start(driver, socket(&args.socket)).await;
    let serving = serving.map_err(|error| BadInput(format!("{error} (--socket)")))?;
    println!("Mainstay {} CSI driver {name}", env!("CARGO_PKG_VERSION"));
    println!("  endpoint  {}", serving.endpoint());
    println!("  volumes   {volumes} in {}", args.dir.display());
    if let Some(file) = &args.faults {
        println!("  faults    as ordered in {}", file.display());
    }
    println!("The driver is ready; sizes are recorded, not enforced. Ctrl-C stops it.");
    signals.next().await;
    eprintln!("Stopping.");
    serving.stop().await;
    Ok(())
}

/// Parses the arguments; the error is one sentence.
fn options(args: &CsiArgs) -> Result<Options, String> {
    let mut options = Options {
        name: args.name.clone(),
        nodes: args.node.clone(),
        mutable_parameters: args.mutable_parameter.clone(),
        expansion: args.expansion,
        attach: args.attach,
        stage: args.stage,
        ..Options::default()
    };
    if let Some(capacity) = &args.capacity {
        let size: Quantity =
            capacity.parse().map_err(|_| format!("--capacity {capacity:?} is not a size such as 500Gi"))?;
        options.capacity_bytes = size.ceil();
    }
    for text in &args.topology {
        let segments: Option<BTreeMap<String, String>> = text
            .split(',')
            .map(|part| part.trim().split_once('=').map(|(key, value)| (key.into(), value.into())))
            .collect();
        let wrong = || format!("--topology {text:?} must have the form key=value,key=value");
        options.places.push(segments.ok_or_else(wrong)?);
    }
    options.check()?;
    Ok(options)
}

/// Accepts a path or an endpoint (`unix:///path`).
fn socket(given: &Path) -> &Path {
    given.to_str().and_then(|text| text.strip_prefix("unix://")).map_or(given, Path::new)
}
