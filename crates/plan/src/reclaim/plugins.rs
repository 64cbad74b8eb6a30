//! The plugins that provision and delete volumes.

use crate::bind::PROVISIONED_BY;
use object::Value;
use object::access::{Access, name};

/// The built-in plugin: directories of this machine.
pub const HOST_PATH: &str = "kubernetes.io/host-path";
/// External provisioners never have names with this prefix.
pub const IN_TREE_PREFIX: &str = "kubernetes.io/";

/// In-tree plugins that were migrated to CSI drivers: name, volume source, driver.
const MIGRATED: &[(&str, &str, &str)] = &[
    ("kubernetes.io/aws-ebs", "awsElasticBlockStore", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "azureDisk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "azureFile", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "portworxVolume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "vsphereVolume", "csi.vsphere.vmware.com"),
];

/// What this controller does itself, and what it leaves to other provisioners.
#[derive(Clone, Debug)]
pub struct Plugins {
    /// Whether volumes are provisioned at all.
    pub dynamic_provisioning: bool,
    /// Whether directories are provisioned, for tests on one machine.
    pub host_path_provisioning: bool,
    /// Whether a volume's directory is removed even if the volume was deleted before its claim (gate
    /// `HonorPVReclaimPolicy`).
    pub honor_reclaim_policy: bool,
    /// Whether in-tree plugins are migrated. Always true; false is for reverting a migration in tests.
    pub migrated: bool,
}

impl Default for Plugins {
    fn default() -> Plugins {
        Plugins {
            dynamic_provisioning: true,
            host_path_provisioning: false,
            honor_reclaim_policy: true,
            migrated: true,
        }
    }
}

/// Which component deletes a volume's data.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Deleter<'a> {
    /// An external provisioner.
    External,
    /// The built-in plugin removes a directory.
    Directory(&'a str),
    /// None, for this reason.
    None(String),
}

impl Plugins {
    /// The CSI driver that a plugin was migrated to.
    pub fn driver_of(&self, plugin: &str) -> Option<&'static str> {
        let found = MIGRATED.iter().find(|(name, ..)| self.migrated && *name == plugin);
        found.map(|(.., driver)| *driver)
    }

    pub(super) fn deleter<'a>(&self, volume: &'a Value) -> Deleter<'a> {
        let by = volume.text(&["metadata", "annotations", PROVISIONED_BY]);
        match (by, directory(volume)) {
            ("" | HOST_PATH, Some(directory)) => Deleter::Directory(directory),
            ("", None) if self.is_outside(volume) => Deleter::External,
            ("", None) => Deleter::None(format!(
                "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
                name(volume)
            )),
            (by, _) if by.starts_with(IN_TREE_PREFIX) && self.driver_of(by).is_none() => Deleter::None(no_plugin(by)),
            _ => Deleter::External,
        }
    }

    fn is_outside(&self, volume: &Value) -> bool {
        let sources = MIGRATED.iter().filter(|_| self.migrated).map(|(_, source, _)| *source);
        sources.chain(["csi"]).any(|source| volume.has(&["spec", source]))
    }
}

/// The directory of a hostPath volume.
pub fn directory(volume: &Value) -> Option<&str> {
    Some(volume.text(&["spec", "hostPath", "path"])).filter(|path| !path.is_empty())
}

pub fn no_plugin(plugin: &str) -> String {
    format!("no volume plugin matched name: {plugin}")
}
