//! Role, RoleBinding, ClusterRole, ClusterRoleBinding.

use super::check::{self, member};
use super::row;
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Kind, NameRule, Rules};
use crate::meta::{invalid_for_each, validate_label_selector};
use crate::name::path_segment;
use crate::table::{AGE, Column, NAME, age, column, wide};
use crate::{Value, json};

#[cfg(test)]
mod tests;

pub const GROUP: &str = "rbac.authorization.k8s.io";

pub fn rows() -> Vec<Kind> {
    let roles = |namespaced| Roles { namespaced };
    let bindings = |namespaced| Bindings { namespaced };
    vec![
        row(GROUP, "v1", "Role", "roles", "io.k8s.api.rbac.v1.Role").rules(roles(true)),
        row(GROUP, "v1", "ClusterRole", "clusterroles", "io.k8s.api.rbac.v1.ClusterRole")
            .cluster_scoped()
            .rules(roles(false)),
        row(GROUP, "v1", "RoleBinding", "rolebindings", "io.k8s.api.rbac.v1.RoleBinding").rules(bindings(true)),
        row(GROUP, "v1", "ClusterRoleBinding", "clusterrolebindings", "io.k8s.api.rbac.v1.ClusterRoleBinding")
            .cluster_scoped()
            .rules(bindings(false)),
    ]
}

struct Roles {
    namespaced: bool,
}

impl Rules for Roles {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        for (index, rule) in object.items(&["rules"]).iter().enumerate() {
            validate_rule(rule, self.namespaced, &Path::new("rules").index(index), errors);
        }
        if let Some(aggregation) = object.at(&["aggregationRule"]).filter(|_| !self.namespaced) {
            let path = Path::new("aggregationRule.clusterRoleSelectors");
            let selectors = aggregation.items(&["clusterRoleSelectors"]);
            if selectors.is_empty() {
                errors.required(&path, "at least one clusterRoleSelector required if aggregationRule is non-nil");
            }
            for (index, selector) in selectors.iter().enumerate() {
                validate_label_selector(selector, &path.index(index), errors);
            }
        }
    }
    fn columns(&self) -> &[Column] {
        check::NAME_AND_CREATED
    }
    fn cells(&self, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        check::name_and_created(object)
    }
}

fn validate_rule(rule: &Value, namespaced: bool, path: &Path, errors: &mut Errors) {
    let empty = |field: &str| rule.items(&[field]).is_empty();
    if empty("verbs") {
        errors.required(&path.child("verbs"), "verbs must contain at least one value");
    }
    if !empty("nonResourceURLs") {
        let (path, urls) = (path.child("nonResourceURLs"), Value::from(rule.items(&["nonResourceURLs"]).to_vec()));
        if namespaced {
            errors.invalid(&path, urls.clone(), "namespaced rules cannot apply to non-resource URLs");
        }
        if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
            errors.invalid(&path, urls, "rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    if empty("apiGroups") {
        errors.required(&path.child("apiGroups"), "resource rules must supply at least one api group");
    }
    if empty("resources") {
        errors.required(&path.child("resources"), "resource rules must supply at least one resource");
    }
}

struct Bindings {
    namespaced: bool,
}

impl Rules for Bindings {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        if object.at(&["roleRef"]).is_some_and(Value::is_object) {
            object.default_to(&["roleRef", "apiGroup"], GROUP);
        }
        for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
            if matches!(subject.text(&["kind"]), "User" | "Group") {
                subject.default_to(&["apiGroup"], GROUP);
            }
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let (role, path) = (member(object, "roleRef"), Path::new("roleRef"));
        let kinds: &[&str] = if self.namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
        check::one_of(role.text(&["apiGroup"]), &[GROUP], &path.child("apiGroup"), errors);
        check::one_of(role.text(&["kind"]), kinds, &path.child("kind"), errors);
        match role.text(&["name"]) {
            "" => errors.required(&path.child("name"), ""),
            name => invalid_for_each(path_segment(name), &path.child("name"), name, errors),
        }
        for (index, subject) in object.items(&["subjects"]).iter().enumerate() {
            validate_subject(subject, self.namespaced, &Path::new("subjects").index(index), errors);
        }
    }
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        self.validate_create(new, ctx, errors);
        let (new, old) = (member(new, "roleRef"), member(old, "roleRef"));
        if new != old {
            errors.invalid(&Path::new("roleRef"), new.clone(), "cannot change roleRef");
        }
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Role", "string", "The role that is granted"),
            AGE,
            wide("Users", "string", "Users it is granted to"),
            wide("Groups", "string", "Groups it is granted to"),
            wide("ServiceAccounts", "string", "Service accounts it is granted to"),
        ];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let role = member(object, "roleRef");
        let subjects = |kind: &str| {
            let subjects = object.items(&["subjects"]).iter().filter(|subject| subject.text(&["kind"]) == kind);
            let names = subjects.map(|subject| match kind {
                "ServiceAccount" => format!("{}/{}", subject.text(&["namespace"]), subject.text(&["name"])),
                _ => subject.text(&["name"]).to_owned(),
            });
            json!(names.collect::<Vec<_>>().join(", "))
        };
        vec![
            json!(name(object)),
            json!(format!("{}/{}", role.text(&["kind"]), role.text(&["name"]))),
            json!(age(object, now)),
            subjects("User"),
            subjects("Group"),
            subjects("ServiceAccount"),
        ]
    }
}

fn validate_subject(subject: &Value, namespaced: bool, path: &Path, errors: &mut Errors) {
    let (name, group) = (subject.text(&["name"]), subject.text(&["apiGroup"]));
    check::required(name, &path.child("name"), errors);
    match subject.text(&["kind"]) {
        "ServiceAccount" => {
            if !name.is_empty() {
                check::subdomain(name, &path.child("name"), errors);
            }
            if !group.is_empty() {
                errors.not_supported(&path.child("apiGroup"), group, &[""]);
            }
            if !namespaced {
                check::required(subject.text(&["namespace"]), &path.child("namespace"), errors);
            }
        }
        "User" | "Group" => check::one_of(group, &[GROUP], &path.child("apiGroup"), errors),
        other => errors.not_supported(&path.child("kind"), other, &["ServiceAccount", "User", "Group"]),
    }
}
