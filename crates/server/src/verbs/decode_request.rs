//! Decodes request bodies, and checks them against the schema and the URL.

use super::Call;
use crate::negotiate::{self, Language, PatchType};
use crate::request::WriteOptions;
use object::access::Access;
use object::decode::{self, Decoded, Duplicates, FieldValidation, Strict};
use object::{Kind, Status, Value, schema};

/// The object in the body of a create or update, before defaulting. Adds warnings about unknown fields to `warnings`.
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

/// A body of another kind, such as Binding, Scale or DeleteOptions. Unknown fields are dropped.
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

/// Decodes by the kind that the body names. A kind that does not match the URL is refused later, with the same
/// message as for JSON.
fn protobuf(call: &Call<'_>) -> Result<Decoded, Status> {
    let value = object::protobuf::decode(&call.body, |api_version, kind| {
        object::protobuf::type_of(&call.kinds, api_version, kind).ok_or_else(negotiate::no_protobuf)
    })?;
    Ok(Decoded { value, duplicates: Duplicates::default() })
}

/// The body must have the kind of the URL. It may omit apiVersion and kind.
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

/// Unknown and duplicate fields of the patch document, before it is applied.
pub struct PatchFields<'a> {
    pub patch_type: PatchType,
    pub duplicates: &'a Duplicates,
    /// The unknown fields of the operations, for a JSON patch.
    pub operations: &'a [String],
}

/// Conforms the result of a patch to the kind's schema, and handles unknown and duplicate fields as the client
/// requested. An error shows the patch, unless it might reveal a secret.
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

/// Conforms `value` to the kind's schema. Returns the paths of dropped fields.
pub fn unknown(kind: &Kind, value: &mut Value, old: Option<&Value>) -> Result<Vec<String>, Status> {
    match (kind.rules.conform(value), &kind.schema) {
        (Some(conformed), _) => conformed,
        (None, Some(schema)) => decode::conform_changed(schema, value, old),
        (None, None) => Ok(Vec::new()),
    }
}
