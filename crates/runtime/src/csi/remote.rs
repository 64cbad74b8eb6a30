//! Calls to the driver at an endpoint: converts planner types to CSI messages and back.

use super::Endpoint;
use csi::v1;
use plan::csi::capacity::{Available, Want};
use plan::csi::modify::Modify;
use plan::csi::outcome::Created;
use plan::csi::provision::CreateVolume;
use plan::csi::resize::{Expand, Expanded};
use plan::csi::topology::Segment;
use plan::csi::{Abilities, AccessMode, AccessType, Capability, Code, Driver, Failure, Options};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// The data of a Secret.
pub type Secrets = BTreeMap<String, String>;

/// A named driver, or whichever driver is at the endpoint.
pub struct Remote {
    driver: csi::Driver,
    /// The driver's name; empty before the driver has responded.
    name: String,
    /// Notified when another driver responds at the endpoint.
    name_changed: Arc<Notify>,
    options: Options,
    /// The last call failed as unavailable: check that the driver responds before anything is journaled for it.
    was_unavailable: AtomicBool,
}

impl Remote {
    pub fn new(endpoint: &Endpoint, metrics: &csi::Metrics) -> Remote {
        let deadline = Duration::from_secs(endpoint.options.timeout_s);
        let settings = csi::Settings { deadline, metrics: metrics.clone() };
        Remote {
            driver: csi::Driver::at(endpoint.socket.clone(), settings),
            name: String::new(),
            name_changed: Arc::default(),
            options: endpoint.options.clone(),
            was_unavailable: AtomicBool::new(false),
        }
    }

    /// A client that calls the driver only if it has this name.
    pub fn called(&self, name: &str) -> Remote {
        Remote {
            driver: self.driver.clone(),
            name: name.to_owned(),
            name_changed: self.name_changed.clone(),
            options: self.options.clone(),
            was_unavailable: AtomicBool::new(false),
        }
    }

    /// Whether both use the same endpoint.
    pub fn has_same_endpoint(&self, other: &Remote) -> bool {
        Arc::ptr_eq(&self.name_changed, &other.name_changed)
    }

    /// Waits until a call finds another driver at the endpoint than the named one.
    pub async fn until_name_changes(&self) {
        self.name_changed.notified().await
    }

    /// Waits until the driver responds, and returns its description.
    pub async fn meet(&self) -> Driver {
        loop {
            self.driver.wait_until_ready().await;
            match self.about().await {
                Ok(about) => return about,
                Err(failure) => {
                    tracing::warn!(endpoint = %self.driver.endpoint(), %failure, "cannot read the description of the CSI driver; retrying");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// The driver's description and capabilities. Cached while the connection lasts.
    pub async fn about(&self) -> Result<Driver, Failure> {
        let about = self.check_name().await?;
        let can = Abilities {
            controller_service: about.has_controller(),
            create_delete: about.creates_volumes(),
            clone: about.clones_volumes(),
            publish: about.attaches(),
            expand: about.expands_in_controller(),
            modify: about.modifies_volumes(),
            get_capacity: about.reports_capacity(),
            single_node_multi_writer: about.knows_single_writers(),
            topology: about.has_topology(),
            node_expand: about.expands_on_node(),
            list_conditions: about.lists_conditions(),
        };
        Ok(Driver { name: about.name.clone(), can, options: self.options.clone() })
    }

    /// Fails if the driver does not respond. Asks it only if the last call failed as unavailable.
    pub async fn check(&self) -> Result<(), Failure> {
        if !self.was_unavailable.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.driver.is_ready().await.map_err(|failure| self.note(failure))?;
        self.was_unavailable.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Fails if another driver is at the endpoint. That driver does not know the volumes of the named one, and would
    /// report them as deleted.
    async fn check_name(&self) -> Result<Arc<csi::About>, Failure> {
        let about = self.driver.about().await.map_err(|failure| self.note(failure))?;
        if self.name.is_empty() || about.name == self.name {
            return Ok(about);
        }
        self.name_changed.notify_one();
        let (endpoint, wanted) = (self.driver.endpoint(), &self.name);
        let message = format!("the CSI driver at {endpoint} is {}, not {wanted}", about.name);
        Err(Failure::new(Code::Unavailable, message))
    }

    /// Calls the named driver only. It checks the name again after the call, because the driver may have been replaced
    /// during it.
    async fn call<A>(&self, call: impl Future<Output = Result<A, csi::Failure>>) -> Result<A, Failure> {
        self.check_name().await?;
        let answer = call.await.map_err(|failure| self.note(failure));
        if answer.as_ref().is_err_and(|failure| failure.code == Code::Unavailable) {
            return answer;
        }
        self.check_name().await?;
        answer
    }

    pub async fn create(&self, request: &CreateVolume, secrets: Secrets) -> Result<Created, Failure> {
        let source = request.source.as_ref().map(|handle| v1::VolumeContentSource {
            r#type: Some(v1::volume_content_source::Type::Volume(v1::volume_content_source::VolumeSource {
                volume_id: handle.clone(),
            })),
        });
        let offer = request.topology.as_ref().map(|offer| v1::TopologyRequirement {
            requisite: offer.requisite.iter().map(topology).collect(),
            preferred: offer.preferred.iter().map(topology).collect(),
        });
        let call = v1::CreateVolumeRequest {
            name: request.name.clone(),
            capacity_range: Some(v1::CapacityRange { required_bytes: request.required_bytes, limit_bytes: 0 }),
            volume_capabilities: request.capabilities.iter().map(capability).collect(),
            parameters: request.parameters.clone(),
            secrets,
            volume_content_source: source,
            accessibility_requirements: offer,
            mutable_parameters: request.mutable_parameters.clone(),
        };
        let answer = self.call(self.driver.create_volume(call)).await?;
        // A response without a volume becomes one with an empty handle, which the planner rejects.
        let volume = answer.volume.unwrap_or_default();
        Ok(Created {
            handle: volume.volume_id,
            bytes: volume.capacity_bytes,
            context: volume.volume_context,
            places: volume.accessible_topology.into_iter().map(|place| place.segments).collect(),
            is_copy: volume.content_source.is_some(),
        })
    }

    pub async fn delete(&self, handle: &str, secrets: Secrets) -> Result<(), Failure> {
        let call = v1::DeleteVolumeRequest { volume_id: handle.to_owned(), secrets };
        self.call(self.driver.delete_volume(call)).await.map(drop)
    }

    pub async fn expand(&self, request: &Expand, secrets: Secrets) -> Result<Expanded, Failure> {
        let call = v1::ControllerExpandVolumeRequest {
            volume_id: request.handle.clone(),
            capacity_range: Some(v1::CapacityRange { required_bytes: request.bytes, limit_bytes: 0 }),
            secrets,
            volume_capability: Some(capability(&request.capability)),
        };
        let answer = self.call(self.driver.controller_expand_volume(call)).await?;
        Ok(Expanded { bytes: answer.capacity_bytes, node_part: answer.node_expansion_required })
    }

    pub async fn modify(&self, request: &Modify, secrets: Secrets) -> Result<(), Failure> {
        let call = v1::ControllerModifyVolumeRequest {
            volume_id: request.handle.clone(),
            secrets,
            mutable_parameters: request.parameters.clone(),
        };
        self.call(self.driver.controller_modify_volume(call)).await.map(drop)
    }

    pub async fn capacity(&self, want: &Want) -> Result<Available, Failure> {
        let call = v1::GetCapacityRequest {
            volume_capabilities: Vec::new(),
            parameters: want.parameters.clone(),
            accessible_topology: (!want.place.is_empty()).then(|| topology(&want.place)),
        };
        let answer = self.call(self.driver.get_capacity(call)).await?;
        Ok(Available { bytes: answer.available_capacity, largest_bytes: answer.maximum_volume_size })
    }

    /// The handles of all volumes of the driver. The value is the driver's message if the volume is abnormal.
    pub async fn list(&self) -> Result<HashMap<String, Option<String>>, Failure> {
        let entries = self.call(self.driver.all_volumes()).await?;
        let entries = entries.into_iter().filter_map(|entry| {
            let condition = entry.status.and_then(|status| status.volume_condition);
            let why = condition.filter(|condition| condition.abnormal).map(|condition| condition.message);
            Some((entry.volume?.volume_id, why))
        });
        Ok(entries.collect())
    }

    fn note(&self, failure: csi::Failure) -> Failure {
        if failure.code == csi::Code::Unavailable {
            self.was_unavailable.store(true, Ordering::Relaxed);
        }
        Failure::new(code(failure.code), failure.message)
    }
}

fn topology(place: &Segment) -> v1::Topology {
    v1::Topology { segments: place.clone() }
}

fn capability(capability: &Capability) -> v1::VolumeCapability {
    use v1::volume_capability::access_mode::Mode;
    use v1::volume_capability::{AccessMode as Wire, AccessType as Kind, BlockVolume, MountVolume};
    let mode = match capability.mode {
        AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
        AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
    };
    let kind = match &capability.access {
        AccessType::Block => Kind::Block(BlockVolume {}),
        AccessType::Mount { fs_type, flags } => Kind::Mount(MountVolume {
            fs_type: fs_type.clone(),
            mount_flags: flags.clone(),
            volume_mount_group: String::new(),
        }),
    };
    v1::VolumeCapability { access_type: Some(kind), access_mode: Some(Wire { mode: mode.into() }) }
}

fn code(code: csi::Code) -> Code {
    match code {
        csi::Code::Cancelled => Code::Canceled,
        csi::Code::InvalidArgument => Code::InvalidArgument,
        csi::Code::DeadlineExceeded => Code::DeadlineExceeded,
        csi::Code::NotFound => Code::NotFound,
        csi::Code::AlreadyExists => Code::AlreadyExists,
        csi::Code::PermissionDenied => Code::PermissionDenied,
        csi::Code::ResourceExhausted => Code::ResourceExhausted,
        csi::Code::FailedPrecondition => Code::FailedPrecondition,
        csi::Code::Aborted => Code::Aborted,
        csi::Code::OutOfRange => Code::OutOfRange,
        csi::Code::Unimplemented => Code::Unimplemented,
        csi::Code::Internal => Code::Internal,
        csi::Code::Unavailable => Code::Unavailable,
        csi::Code::DataLoss => Code::DataLoss,
        csi::Code::Unauthenticated => Code::Unauthenticated,
        csi::Code::Ok | csi::Code::Unknown => Code::Unknown,
    }
}
