//! The side controllers of CSI drivers: what to ask of a driver, and what its answers mean for the objects.
//!
//! Nothing here knows gRPC. A call is a value ([`provision::CreateVolume`], [`resize::Expand`], …), an answer is a value or a
//! [`Failure`], and in between somebody else has called.

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

/// A driver: what it is called, what it can do, and how it is to be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    pub name: String,
    pub can: Abilities,
    pub options: Options,
}

/// What a driver says that it can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    pub controller_service: bool,
    pub create_delete: bool,
    pub clone: bool,
    /// Volumes are attached to nodes by the controller service, and must be detached before they are deleted.
    pub publish: bool,
    pub expand: bool,
    pub modify: bool,
    pub get_capacity: bool,
    pub single_node_multi_writer: bool,
    /// Not every volume is reachable from every node.
    pub topology: bool,
    /// Nodes can grow what is on the volume.
    pub node_expand: bool,
    /// It lists its volumes and says whether each is as it should be.
    pub list_conditions: bool,
}

/// How a driver is to be used: what people set with the flags of the stock sidecars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The file system of volumes whose class names none.
    pub default_fs_type: String,
    /// Tell the driver the names of claim and volume.
    pub extra_create_metadata: bool,
    /// Offer only the selected node's place.
    pub strict_topology: bool,
    /// Offer all places of the cluster when nothing else narrows them.
    pub immediate_topology: bool,
    /// Volumes of claims that only read are published read-only.
    pub publish_read_only: bool,
    /// How long a call may take.
    pub timeout_s: u64,
    /// Volumes are compared with those that the driver lists this often; 0: never.
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

/// Why a call failed: gRPC's codes.
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
    /// Whether the driver may still be at it, or may have done it: the answer says nothing about the work.
    pub fn leaves_open(self) -> bool {
        matches!(self, Code::Canceled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
    }

    /// For expanding and modifying, a driver that is short of something is still at it.
    pub fn leaves_change_open(self) -> bool {
        self.leaves_open() || self == Code::ResourceExhausted
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A call that failed. One that broke on its way, so that no driver's word came back, is `Unavailable`.
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

/// Where the credentials for a call are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    pub namespace: String,
    pub name: String,
}

/// How a volume is to be used.
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
    /// The capability for one access mode of a claim or volume, on this driver.
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

/// Something to tell people.
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

/// What to write after an answer: the volume first, then the claim's status (merge patches).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finish {
    pub volume: Option<Value>,
    pub claim: Option<Value>,
    pub event: Option<Event>,
    /// Whether another attempt is needed.
    pub again: bool,
}

/// The driver and handle of a volume that is a CSI driver's by its source.
pub fn csi_source(volume: &Value) -> Option<(&str, &str)> {
    let source = volume.at(&["spec", "csi"])?;
    Some((source.text(&["driver"]), source.text(&["volumeHandle"])))
}

fn texts(list: &[Value]) -> Vec<String> {
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
