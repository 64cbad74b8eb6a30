//! Validation errors: path, kind and message, in upstream's words.

use crate::Value;
use std::collections::HashSet;
use std::fmt;

/// Maximum number of errors that are listed per object. Further ones are only counted.
const LISTED_MAX: usize = 100;
/// Maximum length in bytes of a value or a path in a message.
const SHOWN_BYTES_MAX: usize = 1024;
/// Maximum length in bytes of an error's detail. Authors of CEL rules write their own details.
const DETAIL_BYTES_MAX: usize = 4096;

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
            return Path(beginning(name).to_owned());
        }
        // Every check builds paths, and few are ever shown, so they are built in the cheapest way.
        Path([&self.0, ".", beginning(name)].concat())
    }
    /// A list element: `spec.containers` → `spec.containers[0]`.
    pub fn index(&self, index: usize) -> Path {
        Path(format!("{}[{index}]", self.0))
    }
    /// A map entry: `spec.resources` → `spec.resources[storage]`.
    pub fn key(&self, key: &str) -> Path {
        Path([&self.0, "[", beginning(key), "]"].concat())
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

/// The kind of an error. The names are those of `Status.details.causes[].reason`.
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

/// One error of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub path: Path,
    /// The invalid value as JSON, if the message shows it.
    pub value: Option<String>,
    pub detail: String,
}

impl FieldError {
    /// Returns the message without the path: `Invalid value: -1: must be greater than or equal to 0`.
    pub fn body(&self) -> String {
        let mut body = self.kind.words().to_owned();
        let shows_value = !matches!(
            self.kind,
            ErrorKind::Required | ErrorKind::Forbidden | ErrorKind::TooLong | ErrorKind::TooMany | ErrorKind::Internal
        );
        if shows_value {
            body.push_str(": ");
            body.push_str(self.value.as_deref().unwrap_or("null"));
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

/// Shortens a name for use in a path, because the name is copied into all paths below it.
fn beginning(name: &str) -> &str {
    &name[..name.floor_char_boundary(SHOWN_BYTES_MAX)]
}

/// Formats a path, shortened to the maximum length.
pub(crate) fn shown_place(place: &impl fmt::Display) -> String {
    // Formatting stops at the limit: a path may have a key of megabytes, and many fields below it.
    let mut text = Beginning(String::new());
    let _ = fmt::Write::write_fmt(&mut text, format_args!("{place}"));
    shortened(text.0, SHOWN_BYTES_MAX)
}

/// A text that takes no more once it is longer than what is shown.
struct Beginning(String);

impl fmt::Write for Beginning {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = (SHOWN_BYTES_MAX + 1).saturating_sub(self.0.len());
        // Up to three bytes more, so that what is shortened begins as the whole text does.
        self.0.push_str(&part[..part.ceil_char_boundary(room)]);
        if self.0.len() > SHOWN_BYTES_MAX { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The end of a shortened text.
pub(crate) const SHORTENED: &str = "...";

/// Shortens a text to at most `bytes_max` bytes.
fn shortened(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.push_str(SHORTENED);
    }
    text
}

/// The errors of one object. Validation collects all errors and does not stop at the first. A small object can have
/// very many errors, and each may show the whole object, so only the first `LISTED_MAX` are kept and the others counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors(pub Vec<FieldError>, usize);

impl Errors {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Number of errors, listed or not.
    pub fn count(&self) -> usize {
        self.0.len() + self.1
    }
    /// Whether more errors were found than are listed.
    pub fn leaves_out(&self) -> bool {
        self.1 > 0
    }
    pub fn push(&mut self, kind: ErrorKind, path: &Path, value: Option<Value>, detail: impl Into<String>) {
        if self.0.len() >= LISTED_MAX {
            self.1 += 1;
            return;
        }
        self.0.push(FieldError {
            kind,
            path: Path(shortened(path.0.clone(), SHOWN_BYTES_MAX)),
            value: value.map(|value| shortened(value.to_string(), SHOWN_BYTES_MAX)),
            detail: shortened(detail.into(), DETAIL_BYTES_MAX),
        });
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
    pub fn extend(&mut self, mut other: Errors) {
        let room = LISTED_MAX.saturating_sub(self.0.len()).min(other.0.len());
        self.1 += other.count() - room;
        self.0.extend(other.0.drain(..room));
    }
    /// Returns the message: one error as it is, several in brackets.
    pub fn message(&self) -> String {
        let mut seen = HashSet::new();
        let mut parts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        parts.retain(|part| seen.insert(part.clone()));
        if self.leaves_out() {
            parts.push(format!("and {} more", self.1));
        }
        if parts.len() == 1 { parts.remove(0) } else { format!("[{}]", parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_upstreams() {
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
    #[test]
    fn errors_are_bounded_in_number_and_size() {
        let long = "ä".repeat(1 << 20);
        let mut errors = Errors::default();
        for at in 0..300_000 {
            errors.invalid(&Path::new("metadata.labels").index(at), at, "is not good");
        }
        assert_eq!((errors.0.len(), errors.count()), (LISTED_MAX, 300_000));
        assert!(errors.message().ends_with("metadata.labels[99]: Invalid value: 99: is not good, and 299900 more]"));

        let mut large = Errors::default();
        for _ in 0..LISTED_MAX {
            large.invalid(&Path::new(&long), long.as_str(), long.as_str());
        }
        assert!(large.message().len() < 8192, "equal messages are listed once");
        assert!(large.0.iter().all(|error| error.to_string().len() < 8192));

        // Two sets of errors together have the same limit as one.
        errors.extend(large.clone());
        assert_eq!((errors.0.len(), errors.count()), (LISTED_MAX, 300_100));
        large.0.truncate(60);
        let mut both = large.clone();
        both.extend(large);
        assert_eq!((both.0.len(), both.count()), (LISTED_MAX, 120));
    }
}
