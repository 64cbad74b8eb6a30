//! Field validation: whether unknown and duplicate fields cause a refusal, a warning, or nothing.

use super::order;
use crate::Value;
use crate::field::{Errors, Path};
use crate::status::Status;

/// The `fieldValidation` parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Strict,
    #[default]
    Warn,
    Ignore,
}

impl FieldValidation {
    /// Parses the parameter. `options` is the kind named in the 422 response: `CreateOptions`, `UpdateOptions` or
    /// `PatchOptions`.
    pub fn parse(text: &str, options: &str) -> Result<FieldValidation, Status> {
        match text {
            "" | "Warn" => Ok(FieldValidation::Warn),
            "Strict" => Ok(FieldValidation::Strict),
            "Ignore" => Ok(FieldValidation::Ignore),
            other => {
                let mut errors = Errors::default();
                errors.not_supported(&Path::new("fieldValidation"), other, &["Ignore", "Strict", "Warn"]);
                Err(Status::invalid("meta.k8s.io", options, "", &errors))
            }
        }
    }
}

/// Fields that a document sets more than once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Duplicates {
    /// JSON: the paths of the fields (`spec.replicas`).
    pub fields: Vec<String>,
    /// YAML: one line per field, in upstream's words (`line 12: key "replicas" already set in map`).
    pub lines: Vec<String>,
}

impl Duplicates {
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.lines.is_empty()
    }

    /// Returns the error of upstream's YAML decoder, which reports all lines at once.
    pub fn yaml_error(&self) -> Option<String> {
        (!self.lines.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", self.lines.join("\n  ")))
    }
}

/// Unknown and duplicate fields of a document.
#[derive(Clone, Debug, Default)]
pub struct Strict {
    pub unknown: Vec<String>,
    pub duplicates: Duplicates,
}

pub(super) fn unknown_field(path: &str) -> String {
    format!("unknown field {path:?}")
}

pub(super) fn duplicate_field(path: &str) -> String {
    format!("duplicate field {path:?}")
}

impl Strict {
    /// Returns the warnings for a create or update under `mode`, or its refusal. The refusal names the `apiVersion` and
    /// `kind` of `object`.
    pub fn judge(&self, mode: FieldValidation, object: &Value) -> Result<Vec<String>, Status> {
        self.judge_with(mode, |sentence| refuse_object(object, sentence))
    }

    /// The same for an object of a built-in kind in JSON, whose fields are reported in the order of the document.
    pub fn judge_json(&self, mode: FieldValidation, object: &Value, json: &[u8]) -> Result<Vec<String>, Status> {
        if mode == FieldValidation::Ignore || self.is_empty() {
            return Ok(Vec::new());
        }
        conclude(mode, order::sentences(json, &self.unknown), |sentence| refuse_object(object, sentence))
    }

    /// The same with a refusal of the caller's making. Duplicate fields come before unknown ones, as Kubernetes reports them for
    /// patches and custom resources.
    pub fn judge_with(
        &self,
        mode: FieldValidation,
        refuse: impl FnOnce(&str) -> Status,
    ) -> Result<Vec<String>, Status> {
        if mode == FieldValidation::Ignore || self.is_empty() {
            return Ok(Vec::new());
        }
        // A refusal has the YAML reader's error as a whole; of warnings there is one for each line.
        let mut sentences: Vec<String> = match mode {
            FieldValidation::Strict => self.duplicates.yaml_error().into_iter().collect(),
            _ => self.duplicates.lines.clone(),
        };
        sentences.extend(self.duplicates.fields.iter().map(|path| duplicate_field(path)));
        sentences.extend(self.unknown.iter().map(|path| unknown_field(path)));
        conclude(mode, sentences, refuse)
    }

    /// The same for a JSON patch. `operations` are the unknown fields of its operations; the duplicate fields are those of the patch.
    pub fn judge_json_patch(
        &self,
        mode: FieldValidation,
        patch: &str,
        operations: &[String],
        refuse: impl FnOnce(&str) -> Status,
    ) -> Result<Vec<String>, Status> {
        if mode == FieldValidation::Ignore || (operations.is_empty() && self.is_empty()) {
            return Ok(Vec::new());
        }
        let of_patch = order::sentences(patch.as_bytes(), operations);
        let of_patch = of_patch.into_iter().map(|sentence| format!("json patch {sentence}"));
        conclude(mode, of_patch.chain(self.unknown.iter().map(|path| unknown_field(path))).collect(), refuse)
    }

    fn is_empty(&self) -> bool {
        self.unknown.is_empty() && self.duplicates.is_empty()
    }
}

fn conclude(
    mode: FieldValidation,
    sentences: Vec<String>,
    refuse: impl FnOnce(&str) -> Status,
) -> Result<Vec<String>, Status> {
    match mode {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok(sentences),
        FieldValidation::Strict => Err(refuse(&format!("strict decoding error: {}", sentences.join(", ")))),
    }
}

/// Returns the 422 for a patch; it contains the patch.
pub fn refuse_patch(patch: &str, sentence: &str) -> Status {
    let mut errors = Errors::default();
    errors.invalid(&Path::new("patch"), patch, sentence);
    Status::invalid("", "", "", &errors)
}

/// Returns the 400 for an object that cannot be decoded as the kind that it names.
pub fn refuse_object(object: &Value, sentence: &str) -> Status {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or("");
    let api_version = text("apiVersion");
    let version = api_version.rsplit('/').next().unwrap_or(api_version);
    match text("kind") {
        "" => Status::bad_request(format!("the object provided is unrecognized: {sentence}")),
        kind => Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {sentence}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn modes_refuse_warn_or_pass() {
        let duplicates = Duplicates { fields: vec!["spec.replicas".to_owned()], lines: Vec::new() };
        let found = Strict { unknown: vec!["spec.foo".to_owned()], duplicates };
        let object = json!({"apiVersion": "apps/v1", "kind": "StatefulSet"});
        let refused = found.judge(FieldValidation::Strict, &object).unwrap_err();
        assert_eq!(refused.code, 400);
        assert_eq!(
            refused.message,
            "StatefulSet in version \"v1\" cannot be handled as a StatefulSet: strict decoding error: \
             duplicate field \"spec.replicas\", unknown field \"spec.foo\""
        );
        let warned = found.judge(FieldValidation::Warn, &object).unwrap();
        assert_eq!(warned, ["duplicate field \"spec.replicas\"", "unknown field \"spec.foo\""]);
        assert!(found.judge(FieldValidation::Ignore, &object).unwrap().is_empty());
        assert!(Strict::default().judge(FieldValidation::Strict, &object).unwrap().is_empty());
        let refused = found.judge_with(FieldValidation::Strict, |sentence| refuse_patch("{}", sentence)).unwrap_err();
        assert_eq!((refused.code, refused.reason), (422, "Invalid"));
        assert!(
            refused
                .message
                .starts_with(" \"\" is invalid: patch: Invalid value: \"{}\": strict decoding error: duplicate field")
        );
    }

    #[test]
    fn the_parameter_accepts_three_values() {
        assert_eq!(FieldValidation::parse("", "CreateOptions"), Ok(FieldValidation::Warn));
        assert_eq!(FieldValidation::parse("Strict", "CreateOptions"), Ok(FieldValidation::Strict));
        assert_eq!(
            FieldValidation::parse("strict", "CreateOptions").unwrap_err().message,
            "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"strict\": \
             supported values: \"Ignore\", \"Strict\", \"Warn\""
        );
    }
}
