//! A driver's description of itself.

use super::{Driver, Failure};
use crate::v1::controller_service_capability::{self as controller, rpc::Type as ControllerCan};
use crate::v1::node_service_capability::{self as node, rpc::Type as NodeCan};
use crate::v1::plugin_capability::{self as plugin, service::Type as Service, volume_expansion::Type as When};
use crate::v1::*;
use std::collections::BTreeSet;
use tonic::Code;

/// The driver's name and capabilities. Capabilities that this version does not know are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub name: String,
    pub version: String,
    pub services: BTreeSet<Service>,
    /// When volumes can be expanded.
    pub expands: BTreeSet<When>,
    pub controller: BTreeSet<ControllerCan>,
    pub node: BTreeSet<NodeCan>,
}

/// The name limit of the CSI specification.
const NAME_MAX: usize = 63;

/// Whether a driver may have this name: like a domain name, because it becomes part of labels and object names.
pub fn is_driver_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_part =
        |part: &str| part.bytes().all(is_inner) && !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
    name.len() <= NAME_MAX && name.split('.').all(is_part)
}

impl About {
    pub(super) async fn ask(driver: &Driver) -> Result<About, Failure> {
        let info = driver.get_plugin_info(GetPluginInfoRequest {}).await?;
        if !is_driver_name(&info.name) {
            let message = format!(
                "the CSI driver at {} calls itself {:?}: a driver's name has at most {NAME_MAX} letters, digits, dashes and dots, \
                 like a domain's",
                driver.endpoint(),
                info.name
            );
            return Err(Failure { method: "/csi.v1.Identity/GetPluginInfo", code: Code::Internal, message });
        }
        let mut about = About { name: info.name, version: info.vendor_version, ..About::default() };
        let answer = driver.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await?;
        for capability in answer.capabilities {
            match capability.r#type {
                Some(plugin::Type::Service(service)) => {
                    about.services.extend(known(service.r#type(), Service::Unknown))
                }
                Some(plugin::Type::VolumeExpansion(when)) => about.expands.extend(known(when.r#type(), When::Unknown)),
                None => {}
            }
        }
        if about.has_controller() {
            let answer = driver.controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await?;
            let kinds = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
            about.controller =
                kinds.filter_map(|controller::Type::Rpc(rpc)| known(rpc.r#type(), ControllerCan::Unknown)).collect();
        }
        match driver.node_get_capabilities(NodeGetCapabilitiesRequest {}).await {
            Ok(answer) => {
                let kinds = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
                about.node = kinds.filter_map(|node::Type::Rpc(rpc)| known(rpc.r#type(), NodeCan::Unknown)).collect();
            }
            // Some drivers serve the controller and node services at different sockets.
            Err(failure) if failure.code == Code::Unimplemented => {}
            Err(failure) => return Err(failure),
        }
        Ok(about)
    }

    pub fn has_controller(&self) -> bool {
        self.services.contains(&Service::ControllerService)
    }

    /// Whether some volumes are reachable from some nodes only.
    pub fn has_topology(&self) -> bool {
        self.services.contains(&Service::VolumeAccessibilityConstraints)
    }

    pub fn creates_volumes(&self) -> bool {
        self.controller.contains(&ControllerCan::CreateDeleteVolume)
    }

    pub fn clones_volumes(&self) -> bool {
        self.controller.contains(&ControllerCan::CloneVolume)
    }

    pub fn makes_snapshots(&self) -> bool {
        self.controller.contains(&ControllerCan::CreateDeleteSnapshot)
    }

    pub fn modifies_volumes(&self) -> bool {
        self.controller.contains(&ControllerCan::ModifyVolume)
    }

    pub fn expands_in_controller(&self) -> bool {
        self.controller.contains(&ControllerCan::ExpandVolume)
    }

    pub fn expands_on_node(&self) -> bool {
        self.node.contains(&NodeCan::ExpandVolume)
    }

    /// Whether volumes must be attached to a node before they are used there.
    pub fn attaches(&self) -> bool {
        self.controller.contains(&ControllerCan::PublishUnpublishVolume)
    }

    pub fn stages(&self) -> bool {
        self.node.contains(&NodeCan::StageUnstageVolume)
    }

    pub fn reports_capacity(&self) -> bool {
        self.controller.contains(&ControllerCan::GetCapacity)
    }

    pub fn lists_volumes(&self) -> bool {
        self.controller.contains(&ControllerCan::ListVolumes)
    }

    /// Whether ListVolumes reports the condition of each volume.
    pub fn lists_conditions(&self) -> bool {
        self.lists_volumes() && self.controller.contains(&ControllerCan::VolumeCondition)
    }

    /// Whether the driver distinguishes one writer on a node from several.
    pub fn knows_single_writers(&self) -> bool {
        self.controller.contains(&ControllerCan::SingleNodeMultiWriter)
    }
}

fn known<T: PartialEq>(value: T, unknown: T) -> Option<T> {
    (value != unknown).then_some(value)
}
