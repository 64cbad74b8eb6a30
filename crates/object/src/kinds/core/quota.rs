//! ResourceQuota.

use super::check::member;
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::kinds::resources;
use crate::table::{AGE, Column, NAME, age, column};
use crate::{Value, json};
use std::collections::BTreeSet;

/// All scopes of a quota.
pub const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];
const CONFLICTING: &[[&str; 2]] = &[["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

pub(super) struct ResourceQuotas;

impl Rules for ResourceQuotas {
    fn prepare_create(&self, object: &mut Value, _ctx: &Ctx) {
        object.put(&["status"], json!({}));
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("spec");
        let spec = member(object, "spec");
        validate_amounts(member(spec, "hard"), &path.child("hard"), errors);
        validate_scopes(spec, &path.child("scopes"), errors);
        validate_scope_selector(spec, &path.child("scopeSelector").child("matchExpressions"), errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        self.validate_create(new, ctx, errors);
        let scopes = |object: &Value| -> BTreeSet<String> {
            object.items(&["spec", "scopes"]).iter().map(ToString::to_string).collect()
        };
        if scopes(new) != scopes(old) {
            let value = Value::from(new.items(&["spec", "scopes"]).to_vec());
            errors.invalid(&Path::new("spec.scopes"), value, "field is immutable");
        }
    }
    fn validate_status(&self, new: &Value, _old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        for field in ["hard", "used"] {
            let path = Path::new("status").child(field);
            validate_amounts(member(member(new, "status"), field), &path, errors);
        }
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column(
                "Request",
                "string",
                "Request represents a minimum amount of cpu/memory that a container may consume.",
            ),
            column("Limit", "string", "Limits control the maximum amount of cpu/memory that a container may use."),
            AGE,
        ];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (resource, hard) in object.members(&["status", "hard"]) {
            let used = object.text(&["status", "used", resource]);
            let used = if used.is_empty() { "0" } else { used };
            let text = format!("{resource}: {used}/{}", hard.as_str().unwrap_or("0"));
            if resource.starts_with("limits.") { limits.push(text) } else { requests.push(text) }
        }
        vec![json!(name(object)), json!(requests.join(", ")), json!(limits.join(", ")), json!(age(object, now))]
    }
}

fn validate_amounts(amounts: &Value, path: &Path, errors: &mut Errors) {
    for (resource, amount) in amounts.members(&[]) {
        let path = path.key(resource);
        resources::validate_quota_name(resource, &path, errors);
        resources::validate_amount(resource, amount, &path, errors);
    }
}

fn validate_scopes(spec: &Value, path: &Path, errors: &mut Errors) {
    let scopes = spec.items(&["scopes"]);
    let all = || Value::from(scopes.to_vec());
    // An error that shows the whole list is reported once, not per item.
    let named: BTreeSet<&str> = scopes.iter().map(|scope| scope.as_str().unwrap_or("")).collect();
    if named.iter().any(|scope| !SCOPES.contains(scope)) {
        errors.invalid(path, all(), "unsupported scope");
    }
    if named.iter().any(|scope| has_unsuited(spec, scope)) {
        errors.invalid(path, all(), "unsupported scope applied to resource");
    }
    for pair in CONFLICTING {
        if pair.iter().all(|scope| scopes.iter().any(|have| have == scope)) {
            errors.invalid(path, all(), "conflicting scopes");
        }
    }
}

fn validate_scope_selector(spec: &Value, path: &Path, errors: &mut Errors) {
    let expressions = spec.items(&["scopeSelector", "matchExpressions"]);
    let named: BTreeSet<&str> = expressions.iter().map(|expression| expression.text(&["scopeName"])).collect();
    if named.iter().any(|scope| has_unsuited(spec, scope)) {
        errors.invalid(path, member(spec, "scopeSelector").clone(), "unsupported scope applied to resource");
    }
    for expression in expressions {
        let (scope, operator) = (expression.text(&["scopeName"]), expression.text(&["operator"]));
        let values = expression.items(&["values"]);
        if !SCOPES.contains(&scope) {
            errors.invalid(&path.child("scopeName"), scope, "unsupported scope");
        }
        let takes_values = matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if SCOPES.contains(&scope) && !takes_values && operator != "Exists" {
            let why = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, \
                       ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                       ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&path.child("operator"), operator, why);
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(&path.child("values"), why);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid(&path.child("values"), Value::from(values.to_vec()), why);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
    }
    for pair in CONFLICTING {
        let has = |scope: &&str| expressions.iter().any(|expression| expression.text(&["scopeName"]) == *scope);
        if pair.iter().all(has) {
            errors.invalid(path, member(spec, "scopeSelector").clone(), "conflicting scopes");
        }
    }
}

/// Whether the quota limits resources for which the scope is not allowed.
fn has_unsuited(spec: &Value, scope: &str) -> bool {
    let mut limited = spec.members(&["hard"]).keys();
    limited.any(|resource| resources::is_quota(resource) && !scope_suits(scope, resource))
}

fn scope_suits(scope: &str, resource: &str) -> bool {
    const COMPUTE: &[&str] = &["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            resource == "pods" || COMPUTE.contains(&resource)
        }
        _ => true,
    }
}
