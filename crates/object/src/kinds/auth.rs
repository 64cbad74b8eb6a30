//! The review kinds: requests about access and identity. They are answered and not stored. The server fills in their
//! `status`. Their metadata is not validated, because it has no effect.

use super::check::{self, member};
use super::row;
use super::storage::validate_token_seconds;
use crate::Value;
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Kind, Rules};

#[cfg(test)]
mod tests;

const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

pub fn rows() -> Vec<Kind> {
    let authorization = |kind, plural, schema| row(AUTHORIZATION, "v1", kind, plural, schema).review();
    let authentication = |kind, plural, schema| row(AUTHENTICATION, "v1", kind, plural, schema).review();
    vec![
        authorization(
            "SelfSubjectAccessReview",
            "selfsubjectaccessreviews",
            "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
        )
        .cluster_scoped()
        .rules(AccessReviews(Subject::Asker)),
        authorization("SubjectAccessReview", "subjectaccessreviews", "io.k8s.api.authorization.v1.SubjectAccessReview")
            .cluster_scoped()
            .rules(AccessReviews(Subject::Named)),
        authorization(
            "LocalSubjectAccessReview",
            "localsubjectaccessreviews",
            "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
        )
        .rules(AccessReviews(Subject::NamedHere)),
        authorization(
            "SelfSubjectRulesReview",
            "selfsubjectrulesreviews",
            "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
        )
        .cluster_scoped(),
        authentication("TokenReview", "tokenreviews", "io.k8s.api.authentication.v1.TokenReview").cluster_scoped(),
        authentication("SelfSubjectReview", "selfsubjectreviews", "io.k8s.api.authentication.v1.SelfSubjectReview")
            .cluster_scoped(),
    ]
}

/// Applies defaults to a TokenRequest, the body of a service account's `/token`.
pub fn default_token_request(request: &mut Value) {
    request.default_to(&["spec", "expirationSeconds"], 3600);
}

/// Validates a TokenRequest. Defaults were applied before.
pub fn validate_token_request(request: &Value, errors: &mut Errors) {
    validate_token_seconds(request.int(&["spec", "expirationSeconds"]), &Path::new("spec.expirationSeconds"), errors);
}

/// The subject whose access is reviewed.
#[derive(PartialEq)]
enum Subject {
    Asker,
    Named,
    /// A named user, in the review's own namespace.
    NamedHere,
}

struct AccessReviews(Subject);

impl Rules for AccessReviews {
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let (spec, path) = (member(object, "spec"), Path::new("spec"));
        let (resource, other) = (spec.at(&["resourceAttributes"]), spec.at(&["nonResourceAttributes"]));
        match (resource, other) {
            (Some(_), Some(other)) => {
                let why = "cannot be specified in combination with resourceAttributes";
                errors.invalid(&path.child("nonResourceAttributes"), other.clone(), why);
            }
            (None, None) => {
                let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
                errors.required(&path.child("resourceAttributes"), why);
            }
            _ => {}
        }
        if let Some(resource) = resource {
            validate_selectors(resource, &path.child("resourceAttributes"), errors);
        }
        if self.0 == Subject::Asker {
            return;
        }
        if spec.text(&["user"]).is_empty() && spec.items(&["groups"]).is_empty() {
            errors.required(&path.child("user"), "at least one of user or group must be specified");
        }
        if self.0 == Subject::NamedHere {
            validate_here(object, errors);
        }
    }
}

fn validate_here(object: &Value, errors: &mut Errors) {
    let asked = object.text(&["spec", "resourceAttributes", "namespace"]);
    if object.has(&["spec", "resourceAttributes"]) && asked != object.text(&["metadata", "namespace"]) {
        let path = Path::new("spec.resourceAttributes.namespace");
        errors.invalid(&path, asked, "must match metadata.namespace");
    }
    if let Some(other) = object.at(&["spec", "nonResourceAttributes"]) {
        let path = Path::new("spec.nonResourceAttributes");
        errors.invalid(&path, other.clone(), "disallowed on this kind of request");
    }
}

/// A selector is given either as text or as requirements.
fn validate_selectors(resource: &Value, path: &Path, errors: &mut Errors) {
    for field in ["fieldSelector", "labelSelector"] {
        let Some(selector) = resource.at(&[field]) else { continue };
        let path = path.child(field);
        let (raw, requirements) = (selector.text(&["rawSelector"]), selector.items(&["requirements"]));
        match (raw.is_empty(), requirements.is_empty()) {
            (false, false) => {
                let why = "may not specified at the same time as requirements";
                errors.invalid(&path.child("rawSelector"), raw, why);
            }
            (true, true) => {
                let why = format!("when {path} is specified, requirements or rawSelector is required");
                errors.required(&path.child("requirements"), why);
            }
            _ => {}
        }
        for (index, wanted) in requirements.iter().enumerate() {
            let path = path.child("requirements").index(index);
            check::required(wanted.text(&["key"]), &path.child("key"), errors);
            match (wanted.text(&["operator"]), wanted.items(&["values"]).is_empty()) {
                ("In" | "NotIn", true) => {
                    errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
                }
                ("Exists" | "DoesNotExist", false) => {
                    let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    errors.forbidden(&path.child("values"), why);
                }
                ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
                (other, _) => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
            }
        }
    }
}
