//! The rows of the kind table, with the rules of each kind. One module per family of kinds.

use crate::kind::{Kind, Plain, Rules, Subresource};
use crate::schema;
use std::borrow::Cow::Borrowed;
use std::sync::Arc;

pub mod apps;
pub mod auth;
mod check;
pub mod cluster;
pub mod core;
pub mod events;
pub mod network;
pub mod pods;
pub mod policy;
pub mod rbac;
pub(crate) mod resources;
pub mod storage;
pub mod volumes;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

/// Every built-in kind.
pub fn all() -> Vec<Kind> {
    let families = [
        core::rows(),       // Namespace, ConfigMap, Secret, ServiceAccount, ResourceQuota, LimitRange
        cluster::rows(),    // Node, Lease
        network::rows(),    // Service, Endpoints
        events::rows(),     // Event in both groups
        pods::rows(),       // Pod
        volumes::rows(),    // PersistentVolumeClaim, PersistentVolume
        apps::rows(),       // StatefulSet, ControllerRevision
        storage::rows(), // StorageClass, CSIDriver, CSINode, VolumeAttachment, VolumeAttributesClass, CSIStorageCapacity
        policy::rows(),  // PodDisruptionBudget
        rbac::rows(),    // Role, RoleBinding, ClusterRole, ClusterRoleBinding
        auth::rows(),    // the reviews: answered, not stored
        crate::crd::rows(), // CustomResourceDefinition
    ];
    families.into_iter().flatten().collect()
}

/// Creates a row: a namespaced, stored kind without subresources or rules. `schema` is its OpenAPI definition name.
pub(crate) fn row(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    schema: &str,
) -> Kind {
    Kind {
        group: Borrowed(group),
        version: Borrowed(version),
        kind: Borrowed(kind),
        plural: Borrowed(plural),
        singular: kind.to_lowercase().into(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
        stored: true,
        subresources: Vec::new(),
        storage: format!("{}/{plural}", if group.is_empty() { "core" } else { group }).into(),
        schema: Some(schema::builtin_type(schema)),
        custom: false,
        edition: None,
        openapi: None,
        list: None,
        rules: Arc::new(Plain),
    }
}

impl Kind {
    pub(crate) fn cluster_scoped(mut self) -> Kind {
        self.namespaced = false;
        self
    }
    pub(crate) fn short(mut self, names: &[&'static str]) -> Kind {
        self.short_names = names.iter().map(|name| Borrowed(*name)).collect();
        self
    }
    pub(crate) fn category(mut self, name: &'static str) -> Kind {
        self.categories.push(Borrowed(name));
        self
    }
    pub(crate) fn with_status(self) -> Kind {
        self.with(Subresource::Status)
    }
    pub(crate) fn with(mut self, sub: Subresource) -> Kind {
        self.subresources.push(sub);
        self
    }
    pub(crate) fn rules(mut self, rules: impl Rules + 'static) -> Kind {
        self.rules = Arc::new(rules);
        self
    }
    /// Marks the kind as answered and never stored.
    pub(crate) fn review(mut self) -> Kind {
        self.stored = false;
        self
    }
    pub(crate) fn stored_as(mut self, storage: &'static str) -> Kind {
        self.storage = Borrowed(storage);
        self
    }
}
