//! Validation errors: where, what kind, and the sentence, worded as Kubernetes clients know them.

use crate::Value;
use std::fmt;

/// The place of a field: `spec.containers[0].name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// The path of a top-level field; `""` is the object itself.
    pub fn new(root: &str) -> Path {
        Path(root.to_owned())
    }
    /// A member: `spec` → `spec.replicas`.
    pub fn child(&self, name: &str) -> Path {
        if self.0.is_empty() {
            return Path(name.to_owned());
        }
        // Every check makes paths, and hardly any is ever read: they are put together in the cheapest way.
        Path([&self.0, ".", name].concat())
    }
    /// A list element: `spec.containers` → `spec.containers[0]`.
    pub fn index(&self, index: usize) -> Path {
        Path(format!("{}[{index}]", self.0))
    }
    /// A map entry: `spec.resources` → `spec.resources[storage]`.
    pub fn key(&self, key: &str) -> Path {
        Path([&self.0, "[", key, "]"].concat())
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with a field; the names are those of `Status.details.causes[].reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    Required,
    Invalid,
    NotSupported,
    Forbidden,
    NotFound,
    Duplicate,
    TooLong,
    TooMany,
    TypeInvalid,
    Internal,
}

impl ErrorKind {
    pub fn reason(self) -> &'static str {
        match self {
            ErrorKind::Required => "FieldValueRequired",
            ErrorKind::Invalid => "FieldValueInvalid",
            ErrorKind::NotSupported => "FieldValueNotSupported",
            ErrorKind::Forbidden => "FieldValueForbidden",
            ErrorKind::NotFound => "FieldValueNotFound",
            ErrorKind::Duplicate => "FieldValueDuplicate",
            ErrorKind::TooLong => "FieldValueTooLong",
            ErrorKind::TooMany => "FieldValueTooMany",
            ErrorKind::TypeInvalid => "FieldValueTypeInvalid",
            ErrorKind::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            ErrorKind::Required => "Required value",
            ErrorKind::Invalid | ErrorKind::TypeInvalid => "Invalid value",
            ErrorKind::NotSupported => "Unsupported value",
            ErrorKind::Forbidden => "Forbidden",
            ErrorKind::NotFound => "Not found",
            ErrorKind::Duplicate => "Duplicate value",
            ErrorKind::TooLong => "Too long",
            ErrorKind::TooMany => "Too many",
            ErrorKind::Internal => "Internal error",
        }
    }
}

/// One thing wrong with one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub path: Path,
    /// The offending value, where the wording shows it.
    pub value: Option<Value>,
    pub detail: String,
}

impl FieldError {
    /// The sentence without the path: `Invalid value: -1: must be greater than or equal to 0`.
    pub fn body(&self) -> String {
        let mut body = self.kind.words().to_owned();
        let shows_value = !matches!(
            self.kind,
            ErrorKind::Required | ErrorKind::Forbidden | ErrorKind::TooLong | ErrorKind::TooMany | ErrorKind::Internal
        );
        if shows_value {
            let value = self.value.as_ref().unwrap_or(&Value::Null);
            body.push_str(": ");
            body.push_str(&value.to_string());
        }
        if !self.detail.is_empty() {
            body.push_str(": ");
            body.push_str(&self.detail);
        }
        body
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// All that is wrong with an object. Validation collects; it does not stop at the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors(pub Vec<FieldError>);

impl Errors {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn push(&mut self, kind: ErrorKind, path: &Path, value: Option<Value>, detail: impl Into<String>) {
        self.0.push(FieldError { kind, path: path.clone(), value, detail: detail.into() });
    }
    pub fn required(&mut self, path: &Path, detail: impl Into<String>) {
        self.push(ErrorKind::Required, path, None, detail);
    }
    pub fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.push(ErrorKind::Invalid, path, Some(value.into()), detail);
    }
    pub fn forbidden(&mut self, path: &Path, detail: impl Into<String>) {
        self.push(ErrorKind::Forbidden, path, None, detail);
    }
    pub fn not_found(&mut self, path: &Path, value: impl Into<Value>) {
        self.push(ErrorKind::NotFound, path, Some(value.into()), "");
    }
    pub fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        self.push(ErrorKind::Duplicate, path, Some(value.into()), "");
    }
    /// `Unsupported value: "x": supported values: "a", "b"`.
    pub fn not_supported(&mut self, path: &Path, value: impl Into<Value>, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
        self.push(ErrorKind::NotSupported, path, Some(value.into()), format!("supported values: {}", list.join(", ")));
    }
    /// `Too long: may not be more than N bytes`.
    pub fn too_long(&mut self, path: &Path, bytes_max: usize) {
        self.push(ErrorKind::TooLong, path, None, format!("may not be more than {bytes_max} bytes"));
    }
    /// `Too many: N: must have at most M items`.
    pub fn too_many(&mut self, path: &Path, count: usize, count_max: usize) {
        self.push(ErrorKind::TooMany, path, None, format!("{count}: must have at most {count_max} items"));
    }
    pub fn extend(&mut self, other: Errors) {
        self.0.extend(other.0);
    }
    /// The sentence for several errors: one plain, several in brackets.
    pub fn message(&self) -> String {
        let mut parts: Vec<String> = Vec::with_capacity(self.0.len());
        for error in &self.0 {
            let part = error.to_string();
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        if parts.len() == 1 { parts.remove(0) } else { format!("[{}]", parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_read_as_clients_know_them() {
        let mut errors = Errors::default();
        let spec = Path::new("spec");
        errors.invalid(&spec.child("replicas"), -1, "must be greater than or equal to 0");
        errors.not_supported(&spec.child("policy"), "x", &["Retain", "Delete"]);
        errors.required(&spec.child("containers").index(0).child("name"), "");
        assert_eq!(
            errors.message(),
            "[spec.replicas: Invalid value: -1: must be greater than or equal to 0, \
             spec.policy: Unsupported value: \"x\": supported values: \"Retain\", \"Delete\", \
             spec.containers[0].name: Required value]"
        );
    }
}
