//! Request bodies: read, checked against the kind's schema, and against the URL they came to.

use super::Call;
use crate::negotiate::{self, Language, PatchType};
use crate::request::WriteOptions;
use object::access::Access;
use object::decode::{self, Decoded, Duplicates, FieldValidation, Strict};
use object::{Kind, Status, Value, schema};

/// The object in the body of a create or update, ready for defaults. Warnings about unknown fields go to `warnings`.
pub fn object(call: &Call<'_>, options: &WriteOptions, warnings: &mut Vec<String>) -> Result<Value, Status> {
    let decoded = read(call)?;
    let mut value = decoded.value;
    identify(&call.kind, &mut value)?;
    let strict = Strict { unknown: unknown(&call.kind, &mut value, None)?, duplicates: decoded.duplicates };
    let is_json = matches!(negotiate::object_language(call.headers)?, Language::Json);
    warnings.extend(match is_json && !call.kind.custom {
        true => strict.judge_json(options.field_validation, &value, &call.body)?,
        false => strict.judge(options.field_validation, &value)?,
    });
    Ok(value)
}

/// A body that holds some other kind, known by its type: a Binding, a Scale, DeleteOptions. Unknown fields are dropped.
pub fn other(call: &Call<'_>, type_name: &str) -> Result<Value, Status> {
    let mut value = read(call)?.value;
    let kind = type_name.rsplit('.').next().unwrap_or(type_name);
    let said = value.text(&["kind"]);
    if !said.is_empty() && said != kind {
        return Err(Status::bad_request(format!("the body of this request must be of kind {kind}, not {said}")));
    }
    decode::conform(&schema::builtin_type(type_name), &mut value)?;
    Ok(value)
}

pub fn read(call: &Call<'_>) -> Result<Decoded, Status> {
    if call.body.is_empty() {
        return Err(Status::bad_request("the request has no body: send the object as JSON or YAML"));
    }
    match negotiate::object_language(call.headers)? {
        Language::Json => decode::json(&call.body),
        Language::Yaml => decode::yaml(&call.body),
        Language::Protobuf => protobuf(call),
    }
}

/// By the kind that the body names: a wrong one for this URL is refused later, in the words that JSON gets too.
fn protobuf(call: &Call<'_>) -> Result<Decoded, Status> {
    let value = object::protobuf::decode(&call.body, |api_version, kind| {
        object::protobuf::type_of(&call.kinds, api_version, kind).ok_or_else(negotiate::no_protobuf)
    })?;
    Ok(Decoded { value, duplicates: Duplicates::default() })
}

/// The body must be of the kind that the URL names; leaving apiVersion and kind out is allowed.
fn identify(kind: &Kind, value: &mut Value) -> Result<(), Status> {
    for field in ["apiVersion", "kind"] {
        if value.get(field).is_some_and(|said| !said.is_string() && !said.is_null()) {
            let why = format!("couldn't get version/kind; json parse error: {field} must be of type string");
            return Err(Status::bad_request(why));
        }
    }
    let (said_version, said_kind) = (value.text(&["apiVersion"]), value.text(&["kind"]));
    let api_version = kind.api_version();
    if !said_version.is_empty() && said_version != api_version {
        return Err(Status::bad_request(format!(
            "the API version in the data ({said_version}) does not match the expected API version ({api_version})"
        )));
    }
    if !said_kind.is_empty() && said_kind != kind.kind {
        return Err(Status::bad_request(format!(
            "{api_version}, Kind={said_kind} does not match the kind of this URL, {api_version}, Kind={}",
            kind.kind
        )));
    }
    value.put(&["apiVersion"], api_version);
    value.put(&["kind"], &*kind.kind);
    Ok(())
}

/// What is wrong with the fields of a patch itself.
pub struct PatchFields<'a> {
    pub patch_type: PatchType,
    pub duplicates: &'a Duplicates,
    /// JSON patch: the unknown fields of its operations.
    pub operations: &'a [String],
}

/// Makes what came out of a patch an object of the kind's schema, and treats unknown and duplicate fields as the client asked. A refusal
/// shows the patch, unless that might show a secret.
pub fn conform_patched(
    call: &Call<'_>,
    value: &mut Value,
    old: &Value,
    fields: &PatchFields<'_>,
    validation: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    let strict = Strict { unknown: unknown(&call.kind, value, Some(old))?, duplicates: fields.duplicates.clone() };
    let patch = String::from_utf8_lossy(&call.body);
    let refuse = |sentence: &str| match call.kind.storage.as_ref() {
        "core/secrets" => decode::refuse_object(value, sentence),
        _ => decode::refuse_patch(&patch, sentence),
    };
    warnings.extend(match fields.patch_type {
        PatchType::Json => strict.judge_json_patch(validation, &patch, fields.operations, refuse)?,
        _ => strict.judge_with(validation, refuse)?,
    });
    Ok(())
}

/// Makes `value` an object of the kind's schema; returns the paths of what it dropped.
pub fn unknown(kind: &Kind, value: &mut Value, old: Option<&Value>) -> Result<Vec<String>, Status> {
    match (kind.rules.conform(value), &kind.schema) {
        (Some(conformed), _) => conformed,
        (None, Some(schema)) => decode::conform_changed(schema, value, old),
        (None, None) => Ok(Vec::new()),
    }
}
