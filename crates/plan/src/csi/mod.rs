//! Plans the CSI controllers: what to request from a driver, and what its responses mean for the objects.
//!
//! Nothing here knows gRPC. A request is a value ([`provision::CreateVolume`], [`resize::Expand`], …), and a response
//! is a value or a [`Failure`]. The executor makes the call.

pub mod capacity;
pub mod cloning;
pub mod health;
pub mod journal;
pub mod migration;
pub mod modify;
pub mod outcome;
pub mod parameters;
pub mod provision;
pub mod reclaim;
pub mod resize;
pub mod secret;
pub mod topology;

use crate::bind::annotation;
use object::Value;
use object::access::Access;
use serde::{Deserialize, Serialize};
use std::fmt;

pub use crate::bind::{PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONERS};
pub use crate::reclaim::EXTERNAL_FINALIZER as FINALIZER;
pub use crate::reclaim::migration::MIGRATED_TO;

/// A driver: its name, its capabilities and its options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    pub name: String,
    pub can: Abilities,
    pub options: Options,
}

/// The capabilities that a driver reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    pub controller_service: bool,
    pub create_delete: bool,
    pub clone: bool,
    /// The controller service attaches volumes to nodes, and they must be detached before they are deleted.
    pub publish: bool,
    pub expand: bool,
    pub modify: bool,
    pub get_capacity: bool,
    pub single_node_multi_writer: bool,
    /// Not every volume is reachable from every node.
    pub topology: bool,
    /// NodeExpandVolume grows the file system.
    pub node_expand: bool,
    /// ListVolumes reports the condition of each volume.
    pub list_conditions: bool,
}

/// How to use a driver: the options that the standard sidecars have as flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The file system if the class names none.
    pub default_fs_type: String,
    /// Pass the names of claim and volume as parameters.
    pub extra_create_metadata: bool,
    /// Offer only the selected node's segment.
    pub strict_topology: bool,
    /// Offer all segments of the cluster if nothing else limits them.
    pub immediate_topology: bool,
    /// Publish volumes of claims that only read as read-only.
    pub publish_read_only: bool,
    /// The timeout of a call, in seconds.
    pub timeout_s: u64,
    /// How often PVs are compared with the driver's volumes, in seconds; 0: never.
    pub monitor_interval_s: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            default_fs_type: String::new(),
            extra_create_metadata: false,
            strict_topology: false,
            immediate_topology: true,
            publish_read_only: false,
            timeout_s: 10,
            monitor_interval_s: 0,
        }
    }
}

/// The gRPC status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Canceled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    /// Whether the outcome is unknown: the driver may still execute the call or have completed it.
    pub fn leaves_open(self) -> bool {
        matches!(self, Code::Canceled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
    }

    /// The same for expanding and modifying, where ResourceExhausted also leaves the outcome unknown.
    pub fn leaves_change_open(self) -> bool {
        self.leaves_open() || self == Code::ResourceExhausted
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A failed call. A call that the transport failed, without a response of the driver, is `Unavailable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rpc error: code = {} desc = {}", self.code, self.message)
    }
}

/// The Secret with the credentials for a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    pub namespace: String,
    pub name: String,
}

/// How a volume is accessed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    pub mode: AccessMode,
    pub access: AccessType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessMode {
    SingleNodeWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
    MultiNodeReaderOnly,
    MultiNodeMultiWriter,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessType {
    Block,
    Mount { fs_type: String, flags: Vec<String> },
}

impl Capability {
    /// The capability for one access mode of a claim or PV with this driver.
    pub fn of(mode: &str, access: AccessType, driver: &Driver) -> Capability {
        let finer = driver.can.single_node_multi_writer;
        let mode = match mode {
            "ReadWriteMany" => AccessMode::MultiNodeMultiWriter,
            "ReadOnlyMany" => AccessMode::MultiNodeReaderOnly,
            "ReadWriteOncePod" if finer => AccessMode::SingleNodeSingleWriter,
            "ReadWriteOnce" if finer => AccessMode::SingleNodeMultiWriter,
            _ => AccessMode::SingleNodeWriter,
        };
        Capability { mode, access }
    }
}

/// A Kubernetes event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Event {
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Event {
        Event { warning: false, reason, message: message.into() }
    }
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Event {
        Event { warning: true, reason, message: message.into() }
    }
}

/// Patches to write after a response: first the PV, then the claim's status (merge patches).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finish {
    pub volume: Option<Value>,
    pub claim: Option<Value>,
    pub event: Option<Event>,
    /// Whether another attempt is needed.
    pub again: bool,
}

/// Driver and handle of a PV with a CSI source.
pub fn csi_source(volume: &Value) -> Option<(&str, &str)> {
    let source = volume.at(&["spec", "csi"])?;
    Some((source.text(&["driver"]), source.text(&["volumeHandle"])))
}

fn texts(list: &[Value]) -> Vec<String> {
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
