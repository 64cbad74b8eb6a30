//! The OpenAPI definitions of Kubernetes, from the types of k8s-openapi.

use k8s_openapi::api::{
    apps::v1 as apps, authentication::v1 as authentication, authorization::v1 as authorization,
    autoscaling::v1 as autoscaling, coordination::v1 as coordination, core::v1 as core, events::v1 as events,
    policy::v1 as policy, rbac::v1 as rbac, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::json;

macro_rules! schemas {
    ($generator:ident: $($module:ident :: { $($kind:ident),* $(,)? }),* $(,)?) => {
        $($( $generator.subschema_for::<$module::$kind>(); )*)*
    };
}

/// Returns the OpenAPI definitions of every built-in kind and of all types that they refer to.
pub fn definitions() -> String {
    let mut generator = schemars::generate::SchemaSettings::default().into_generator();
    schemas!(generator:
        core::{
            Namespace, Pod, PersistentVolumeClaim, PersistentVolume, Service, Endpoints, ConfigMap, Secret, ServiceAccount, Node,
            Event, ResourceQuota, LimitRange, Binding, PodTemplate,
        },
        apps::{StatefulSet, ControllerRevision},
        storage::{StorageClass, CSIDriver, CSINode, VolumeAttachment, VolumeAttributesClass, CSIStorageCapacity},
        coordination::{Lease},
        events::{Event},
        policy::{PodDisruptionBudget, Eviction},
        rbac::{Role, RoleBinding, ClusterRole, ClusterRoleBinding},
        authorization::{SelfSubjectAccessReview, SubjectAccessReview, LocalSubjectAccessReview, SelfSubjectRulesReview},
        authentication::{TokenReview, TokenRequest, SelfSubjectReview},
        autoscaling::{Scale},
        apiextensions::{CustomResourceDefinition},
        meta::{Status, DeleteOptions, ListMeta, APIGroup, APIGroupList, APIResourceList, APIVersions},
    );
    let definitions = generator.take_definitions(false);
    // One definition per line, so that a change of one type is a diff of one line.
    let lines: Vec<String> = definitions.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}
