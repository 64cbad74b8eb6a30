//! Access reviews and token reviews, answered in their `status`.

use super::Authorizer;
use crate::attributes::{Attributes, User};
use crate::authn::{Authenticator, TokenError};
use object::access::{self, Access};
use object::{Errors, Map, Path, Status, Value, json};
use std::collections::BTreeMap;

const GROUP: &str = "authorization.k8s.io";

/// Evaluates reviews.
pub struct Reviewer<'a> {
    pub authorizer: &'a Authorizer,
    pub authenticator: &'a Authenticator,
}

impl Reviewer<'_> {
    /// Answers a review of this kind from `caller` in `namespace` (empty for cluster-scoped reviews).
    pub fn answer(&self, kind: &str, review: Value, caller: &User, namespace: &str) -> Result<Value, Status> {
        match kind {
            "SelfSubjectAccessReview" => self_subject_access(self.authorizer, review, caller),
            "SubjectAccessReview" => subject_access(self.authorizer, review),
            "LocalSubjectAccessReview" => local_subject_access(self.authorizer, review, namespace),
            "SelfSubjectRulesReview" => self_subject_rules(self.authorizer, review, caller),
            "TokenReview" => token(self.authenticator, review),
            "SelfSubjectReview" => Ok(self_subject(review, caller)),
            other => Err(Status::internal(format!("{other} is not a review"))),
        }
    }
}

/// Whether the caller has a permission.
pub fn self_subject_access(authorizer: &Authorizer, mut review: Value, caller: &User) -> Result<Value, Status> {
    let asked = validated(&review, "SelfSubjectAccessReview", &mut Errors::default())?;
    review.put(&["status"], decision(authorizer, caller, &asked));
    Ok(review)
}

/// Whether a given user has a permission.
pub fn subject_access(authorizer: &Authorizer, mut review: Value) -> Result<Value, Status> {
    let asked = validated(&review, "SubjectAccessReview", &mut subject_errors(&review))?;
    let status = decision(authorizer, &subject(&review), &asked);
    review.put(&["status"], status);
    Ok(review)
}

/// Whether a given user has a permission in this namespace.
pub fn local_subject_access(authorizer: &Authorizer, mut review: Value, namespace: &str) -> Result<Value, Status> {
    let mut errors = subject_errors(&review);
    if let Some(given) = review.at(&["spec", "nonResourceAttributes"]) {
        let path = Path::new("spec").child("nonResourceAttributes");
        errors.invalid(&path, given.clone(), "disallowed on this kind of request");
    }
    let asked = validated(&review, "LocalSubjectAccessReview", &mut errors)?;
    if asked.namespace != namespace {
        return Err(Status::bad_request(format!(
            "spec.resourceAttributes.namespace must match namespace: {namespace}"
        )));
    }
    let status = decision(authorizer, &subject(&review), &asked);
    review.put(&["status"], status);
    Ok(review)
}

/// The caller's rules in a namespace.
pub fn self_subject_rules(authorizer: &Authorizer, mut review: Value, caller: &User) -> Result<Value, Status> {
    let namespace = review.text(&["spec", "namespace"]).to_owned();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let index = authorizer.current();
    let (mut resource_rules, mut url_rules) = (Vec::new(), Vec::new());
    for rule in index.rules_of(caller, &namespace) {
        if !rule.resources.is_empty() {
            let only = super::Rule { urls: Vec::new(), ..rule.clone() };
            resource_rules.push(only.to_value());
        }
        if !rule.urls.is_empty() {
            url_rules.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.urls}));
        }
    }
    let mut status = json!({"resourceRules": resource_rules, "nonResourceRules": url_rules, "incomplete": false});
    let unresolved = index.missing_roles(caller, &namespace);
    if !unresolved.is_empty() {
        status["evaluationError"] = json!(unresolved.join(", "));
    }
    review.put(&["status"], status);
    Ok(review)
}

/// The user of a token.
pub fn token(authenticator: &Authenticator, mut review: Value) -> Result<Value, Status> {
    let token = review.text(&["spec", "token"]).to_owned();
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let asked = texts(&review, &["spec", "audiences"]);
    let audiences = if asked.is_empty() { authenticator.tokens.audiences().to_vec() } else { asked };
    let status = match authenticator.authenticate_token(&token, &audiences) {
        Ok((user, shared)) => json!({"authenticated": true, "user": user_info(&user), "audiences": shared}),
        Err(TokenError::Internal(status)) => return Err(status),
        Err(error) => json!({"authenticated": false, "user": {}, "error": error.to_string()}),
    };
    review.put(&["status"], status);
    Ok(review)
}

/// The caller's own identity.
pub fn self_subject(mut review: Value, caller: &User) -> Value {
    review.put(&["status"], json!({"userInfo": user_info(caller)}));
    review
}

fn decision(authorizer: &Authorizer, user: &User, asked: &Attributes) -> Value {
    let decision = authorizer.authorize(user, asked);
    let mut status = json!({"allowed": decision.allowed});
    if !decision.reason.is_empty() {
        status["reason"] = json!(decision.reason);
    }
    status
}

/// The request that an access review asks about, or all errors of the review.
fn validated(review: &Value, kind: &str, errors: &mut Errors) -> Result<Attributes, Status> {
    let spec = Path::new("spec");
    let resource = review.at(&["spec", "resourceAttributes"]);
    let path = review.at(&["spec", "nonResourceAttributes"]);
    let asked = match (resource, path) {
        (Some(resource), None) => resource_attributes(resource),
        (None, Some(path)) => Attributes {
            verb: path.text(&["verb"]).to_owned(),
            path: path.text(&["path"]).to_owned(),
            ..Attributes::default()
        },
        (Some(_), Some(path)) => {
            let why = "cannot be specified in combination with resourceAttributes";
            errors.invalid(&spec.child("nonResourceAttributes"), path.clone(), why);
            Attributes::default()
        }
        (None, None) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.invalid(&spec.child("resourceAttributes"), Value::Null, why);
            Attributes::default()
        }
    };
    if !access::name(review).is_empty() {
        errors.invalid(&Path::new("metadata"), review["metadata"].clone(), "must be empty");
    }
    if errors.is_empty() { Ok(asked) } else { Err(Status::invalid(GROUP, kind, "", errors)) }
}

fn resource_attributes(asked: &Value) -> Attributes {
    let text = |key: &str| asked.text(&[key]).to_owned();
    Attributes {
        verb: text("verb"),
        group: text("group"),
        version: text("version"),
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
        ..Attributes::default()
    }
}

fn subject_errors(review: &Value) -> Errors {
    let mut errors = Errors::default();
    let user = review.text(&["spec", "user"]);
    if user.is_empty() && review.items(&["spec", "groups"]).is_empty() {
        errors.invalid(&Path::new("spec").child("user"), user, "at least one of user or group must be specified");
    }
    errors
}

fn subject(review: &Value) -> User {
    let extra = review.members(&["spec", "extra"]).iter();
    let extra: BTreeMap<String, Vec<String>> =
        extra.map(|(key, values)| (key.to_string(), texts(values, &[]))).collect();
    User {
        name: review.text(&["spec", "user"]).to_owned(),
        uid: review.text(&["spec", "uid"]).to_owned(),
        groups: texts(review, &["spec", "groups"]),
        extra,
    }
}

/// The encoded form of a user, without empty fields.
fn user_info(user: &User) -> Value {
    let mut out = Map::new();
    out.insert("username".to_owned(), json!(user.name));
    if !user.uid.is_empty() {
        out.insert("uid".to_owned(), json!(user.uid));
    }
    if !user.groups.is_empty() {
        out.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        out.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(out)
}

fn texts(value: &Value, path: &[&str]) -> Vec<String> {
    value.items(path).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
