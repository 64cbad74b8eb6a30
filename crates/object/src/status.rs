//! `Status`: API errors, with the code, reason, message and causes that clients rely on.

use crate::field::{Errors, FieldError};
use crate::{Map, Value, json};
use std::fmt;

/// The reason of a cause that names the permission that the user lacks.
pub const MISSING_PERMISSION: &str = "MissingPermission";
/// The reason of a cause that tells a refusal by admission from a missing permission.
pub const ADMISSION_DENIED: &str = "AdmissionDenied";

/// An API error. Its details are boxed to keep `Result<_, Status>` small.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Box<Details>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    pub name: String,
    pub group: String,
    /// Clients expect the plural resource name in most errors, and the kind in `Invalid` errors.
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    pub retry_after_seconds: u32,
    /// For a list whose revision was compacted: the token to continue at the same key in the current state. Sent as
    /// `metadata.continue`.
    pub continue_token: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

/// Formats a resource for messages: `statefulsets.apps`, or `pods` in the core group.
fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

impl Status {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Status {
        Status { code, reason, message: message.into(), details: None }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Status {
        self.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            ..Details::default()
        }));
        self
    }

    fn details_mut(&mut self) -> &mut Details {
        self.details.get_or_insert_with(Box::default)
    }

    pub fn with_cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Status {
        let cause = Cause { reason: reason.to_owned(), message: message.into(), field: field.to_owned() };
        self.details_mut().causes.push(cause);
        self
    }

    pub fn retry_after(mut self, seconds: u32) -> Status {
        self.details_mut().retry_after_seconds = seconds;
        self
    }

    pub fn continue_with(mut self, token: String) -> Status {
        self.details_mut().continue_token = token;
        self
    }

    /// 404 for an object: `pods "web-0" not found`.
    pub fn not_found(group: &str, plural: &str, name: &str) -> Status {
        Status::new(404, "NotFound", format!("{} {name:?} not found", qualified(group, plural)))
            .about(group, plural, name)
    }

    /// 404 for a path that serves nothing.
    pub fn no_such_path() -> Status {
        // Clients read the details of a 404; `kubectl debug` does so without checking that they exist.
        Status::new(404, "NotFound", "the server could not find the requested resource").with_cause(
            "UnexpectedServerResponse",
            "404 page not found",
            "",
        )
    }

    pub fn already_exists(group: &str, plural: &str, name: &str) -> Status {
        Status::new(409, "AlreadyExists", format!("{} {name:?} already exists", qualified(group, plural)))
            .about(group, plural, name)
    }

    pub fn conflict(group: &str, plural: &str, name: &str, why: impl fmt::Display) -> Status {
        let what = qualified(group, plural);
        Status::new(409, "Conflict", format!("Operation cannot be fulfilled on {what} {name:?}: {why}"))
            .about(group, plural, name)
    }

    /// Conflict because of an old resourceVersion, with the message that clients match on.
    pub fn modified(group: &str, plural: &str, name: &str) -> Status {
        Status::conflict(
            group,
            plural,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 422: `StatefulSet.apps "web" is invalid: …`. Here the kind is the CamelCase one.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &Errors) -> Status {
        let message = format!("{} {name:?} is invalid: {}", qualified(group, kind), errors.message());
        let mut status = Status::new(422, "Invalid", message).about(group, kind, name);
        status.details_mut().causes = errors.0.iter().map(cause_of).collect();
        status
    }

    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Status {
        Status::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: `pods "web-0" is forbidden: why`, or without a name `pods is forbidden: why`.
    pub fn forbidden(group: &str, plural: &str, name: &str, why: impl fmt::Display) -> Status {
        let what = qualified(group, plural);
        let message = match (plural.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{what} is forbidden: {why}"),
            (false, false) => format!("{what} {name:?} is forbidden: {why}"),
        };
        Status::new(403, "Forbidden", message).about(group, plural, name)
    }

    /// Adds the permission that a 403 is about, so that clients need not parse the message: the reason
    /// [`MISSING_PERMISSION`], and as field the verb and the resource, as in `update statefulsets/status.apps`, or
    /// the verb and the path.
    pub fn missing_permission(self, verb: &str, group: &str, resource: &str) -> Status {
        let field = format!("{verb} {}", qualified(group, resource));
        self.with_cause(MISSING_PERMISSION, "the user does not have this permission", &field)
    }

    /// Marks a 403 of admission: the user has the permission, and the request is refused for another reason.
    pub fn denied_by_admission(self) -> Status {
        self.with_cause(ADMISSION_DENIED, "the request is refused by admission", "")
    }

    pub fn method_not_allowed() -> Status {
        Status::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    pub fn not_acceptable(message: impl Into<String>) -> Status {
        Status::new(406, "NotAcceptable", message)
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Status {
        Status::new(415, "UnsupportedMediaType", message)
    }

    pub fn too_large(message: impl Into<String>) -> Status {
        Status::new(413, "RequestEntityTooLarge", message)
    }

    /// 410: the requested revision was compacted.
    pub fn expired(message: impl Into<String>) -> Status {
        Status::new(410, "Expired", message)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Status {
        Status::new(429, "TooManyRequests", message).retry_after(retry_after_seconds)
    }

    pub fn internal(message: impl fmt::Display) -> Status {
        Status::new(500, "InternalError", format!("Internal error occurred: {message}")).with_cause(
            "",
            message.to_string(),
            "",
        )
    }

    pub fn unavailable(message: impl Into<String>) -> Status {
        Status::new(503, "ServiceUnavailable", message).retry_after(1)
    }

    pub fn timeout(message: impl Into<String>) -> Status {
        Status::new(504, "Timeout", message).retry_after(1)
    }

    /// Returns the JSON form.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some(details) = &self.details {
            let value = details.to_value();
            if value.as_object().is_some_and(|members| !members.is_empty()) {
                status["details"] = value;
            }
            if !details.continue_token.is_empty() {
                status["metadata"]["continue"] = json!(details.continue_token);
            }
        }
        status
    }
}

fn cause_of(error: &FieldError) -> Cause {
    Cause { reason: error.kind.reason().to_owned(), message: error.body(), field: error.path.to_string() }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut out = Map::new();
        let texts = [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)];
        for (key, text) in texts {
            if !text.is_empty() {
                out.insert(key.to_owned(), json!(text));
            }
        }
        if !self.causes.is_empty() {
            out.insert("causes".to_owned(), self.causes.iter().map(Cause::to_value).collect());
        }
        if self.retry_after_seconds > 0 {
            out.insert("retryAfterSeconds".to_owned(), json!(self.retry_after_seconds));
        }
        Value::Object(out)
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut out = Map::new();
        for (key, text) in [("reason", &self.reason), ("message", &self.message), ("field", &self.field)] {
            if !text.is_empty() {
                out.insert(key.to_owned(), json!(text));
            }
        }
        Value::Object(out)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;

    #[test]
    fn messages_are_those_that_clients_match_on() {
        assert_eq!(Status::not_found("apps", "statefulsets", "web").message, "statefulsets.apps \"web\" not found");
        assert_eq!(
            Status::modified("", "pods", "a").message,
            "Operation cannot be fulfilled on pods \"a\": the object has been modified; \
             please apply your changes to the latest version and try again"
        );
        let mut errors = Errors::default();
        errors.invalid(&Path::new("spec.replicas"), -1, "must be greater than or equal to 0");
        let status = Status::invalid("apps", "StatefulSet", "web", &errors).to_value();
        assert_eq!(
            status["message"],
            "StatefulSet.apps \"web\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"
        );
        assert_eq!(status["details"]["causes"][0]["field"], "spec.replicas");
        assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueInvalid");
    }
}
