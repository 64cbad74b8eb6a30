//! Namespace, ConfigMap, Secret, ServiceAccount, ResourceQuota, LimitRange.

use super::check;
use super::row;
use crate::access::{Access, name, terminating};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Kind, NameRule, Rules, Subresource};
use crate::meta;
use crate::table::{AGE, Column, NAME, age, column};
use crate::{Map, Value, json};

mod config;
mod limits;
mod quota;

#[cfg(test)]
mod tests;

pub use quota::SCOPES as QUOTA_SCOPES;

pub fn rows() -> Vec<Kind> {
    vec![
        row("", "v1", "Namespace", "namespaces", "io.k8s.api.core.v1.Namespace")
            .cluster_scoped()
            .short(&["ns"])
            .with_status()
            .with(Subresource::Finalize)
            .rules(Namespaces),
        row("", "v1", "ConfigMap", "configmaps", "io.k8s.api.core.v1.ConfigMap")
            .short(&["cm"])
            .rules(config::ConfigMaps),
        row("", "v1", "Secret", "secrets", "io.k8s.api.core.v1.Secret").rules(config::Secrets),
        row("", "v1", "ServiceAccount", "serviceaccounts", "io.k8s.api.core.v1.ServiceAccount")
            .short(&["sa"])
            .with(Subresource::Token)
            .rules(ServiceAccounts),
        row("", "v1", "ResourceQuota", "resourcequotas", "io.k8s.api.core.v1.ResourceQuota")
            .short(&["quota"])
            .with_status()
            .rules(quota::ResourceQuotas),
        row("", "v1", "LimitRange", "limitranges", "io.k8s.api.core.v1.LimitRange")
            .short(&["limits"])
            .rules(limits::LimitRanges),
    ]
}

struct Namespaces;

/// Label with the namespace's name, so that namespaces can be selected by name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

impl Rules for Namespaces {
    fn name_rule(&self) -> NameRule {
        NameRule::Label
    }
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        let own_name = name(object).to_owned();
        if !own_name.is_empty() {
            object.put(&["metadata", "labels", NAME_LABEL], own_name);
        }
        object.default_to(&["status", "phase"], "Active");
    }
    fn prepare_create(&self, object: &mut Value, _ctx: &Ctx) {
        object.put(&["status"], json!({"phase": "Active"}));
        let mut finalizers = object.items(&["spec", "finalizers"]).to_vec();
        if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
            finalizers.push(json!("kubernetes"));
        }
        object.put(&["spec", "finalizers"], finalizers);
    }
    fn prepare_update(&self, new: &mut Value, old: &Value, _ctx: &Ctx) {
        carry_spec_finalizers(new, old);
    }
    fn mark_terminating(&self, object: &mut Value) {
        object.put(&["status", "phase"], "Terminating");
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        for finalizer in object.items(&["spec", "finalizers"]) {
            validate_finalizer(finalizer, &Path::new("spec.finalizers"), errors);
        }
    }
    /// Validates writes to `/finalize`, which the server handles as updates. Other updates keep the finalizers.
    fn validate_update(&self, new: &Value, _old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("spec.finalizers");
        for (index, finalizer) in new.items(&["spec", "finalizers"]).iter().enumerate() {
            validate_finalizer(finalizer, &path.index(index), errors);
        }
    }
    fn validate_status(&self, new: &Value, _old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let phase = new.text(&["status", "phase"]);
        let path = Path::new("status.Phase");
        match (terminating(new), phase) {
            (false, "Active") | (true, "Terminating") => {}
            (false, _) => errors.invalid(&path, phase, "may only be 'Active' if `deletionTimestamp` is empty"),
            (true, _) => errors.invalid(&path, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"),
        }
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Status", "string", "The status of the namespace"), AGE];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![json!(name(object)), json!(object.text(&["status", "phase"])), json!(age(object, now))]
    }
    fn selectable_fields(&self) -> &[&str] {
        &["status.phase", "name"]
    }
    fn field_value(&self, object: &Value, field: &str) -> String {
        match field {
            "name" => name(object).to_owned(),
            _ => crate::selector::plain_field(object, field),
        }
    }
}

fn carry_spec_finalizers(new: &mut Value, old: &Value) {
    match old.at(&["spec", "finalizers"]) {
        Some(finalizers) => new.put(&["spec", "finalizers"], finalizers.clone()),
        None => drop(new.cut(&["spec", "finalizers"])),
    }
}

fn validate_finalizer(finalizer: &Value, path: &Path, errors: &mut Errors) {
    let finalizer = finalizer.as_str().unwrap_or("");
    check::qualified(finalizer, path, errors);
    meta::validate_finalizer_is_known(finalizer, path, errors);
}

struct ServiceAccounts;

const ENFORCE_MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

impl Rules for ServiceAccounts {
    /// Keeps only the names of the secrets. The other fields of the references would become outdated.
    fn prepare_create(&self, object: &mut Value, _ctx: &Ctx) {
        if let Some(secrets) = object.get_mut("secrets").and_then(Value::as_array_mut) {
            for secret in secrets {
                let mut kept = Map::new();
                if let Some(name) = secret.at(&["name"]) {
                    kept.insert("name".to_owned(), name.clone());
                }
                *secret = Value::Object(kept);
            }
        }
    }
    fn prepare_update(&self, new: &mut Value, _old: &Value, ctx: &Ctx) {
        self.prepare_create(new, ctx);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>, _ctx: &Ctx) -> Vec<String> {
        let set = |object: &Value| object.has(&["metadata", "annotations", ENFORCE_MOUNTABLE]);
        if !set(new) || old.is_some_and(set) {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{ENFORCE_MOUNTABLE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        )]
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column(
                "Secrets",
                "string",
                "Secrets is the list of secrets allowed to be used by pods running as this account",
            ),
            AGE,
        ];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![json!(name(object)), json!(object.items(&["secrets"]).len()), json!(age(object, now))]
    }
}
