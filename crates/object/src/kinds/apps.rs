//! Kinds: StatefulSet, ControllerRevision.

mod revision;
mod statefulset;

use super::row;
use crate::kind::{Kind, Subresource};

pub fn rows() -> Vec<Kind> {
    let scale = Subresource::Scale {
        spec_replicas: "spec.replicas".to_owned(),
        status_replicas: "status.replicas".to_owned(),
        // The field is a label selector object. The scale subresource shows it as a string.
        selector: Some("spec.selector".to_owned()),
    };
    vec![
        row("apps", "v1", "StatefulSet", "statefulsets", "io.k8s.api.apps.v1.StatefulSet")
            .short(&["sts"])
            .category("all")
            .with_status()
            .with(scale)
            .rules(statefulset::StatefulSetRules),
        row("apps", "v1", "ControllerRevision", "controllerrevisions", "io.k8s.api.apps.v1.ControllerRevision")
            .rules(revision::RevisionRules),
    ]
}
