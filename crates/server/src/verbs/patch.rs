//! The verb patch: JSON patch, merge patch, strategic merge patch and server-side apply.

use super::update::change;
use super::{ATTEMPTS_MAX, About, Answer, Call, create, decode_request};
use crate::app::attributes;
use crate::negotiate::{self, PatchType};
use crate::request::Verb;
use object::access::{Access, name, namespace};
use object::apply::{self, Writer};
use object::decode::{Duplicates, FieldValidation};
use object::schema::TypeRef;
use object::{Status, Value, decode, patch};

pub async fn patch(call: &Call<'_>, subresource: &str) -> Result<Answer, Status> {
    if call.body.is_empty() {
        return Err(Status::bad_request("the request has no body: send the patch"));
    }
    match negotiate::patch_type(call.headers)? {
        PatchType::Apply => apply_patch(call, subresource).await,
        PatchType::Strategic if call.kind.schema.is_none() || is_custom(call) => Err(Status::unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        )),
        kind => plain_patch(call, subresource, kind).await,
    }
}

/// Custom resources define no merge keys, so they do not support strategic merge patches.
fn is_custom(call: &Call<'_>) -> bool {
    call.kind.custom
}

async fn plain_patch(call: &Call<'_>, subresource: &str, patch_type: PatchType) -> Result<Answer, Status> {
    let options = call.options()?;
    if call.query.get("force").is_some() {
        let why = "Forbidden: may not be specified for non-apply patch";
        return Err(Status::new(422, "Invalid", format!("PatchOptions.meta.k8s.io \"\" is invalid: force: {why}"))
            .with_cause("FieldValueForbidden", why, "force"));
    }
    let with_status = subresource.is_empty() && has_status_too(call);
    let mut about = About { dry_run: options.dry_run, with_status, ..About::default() };
    let document = decode::document(&call.body)?;
    let operations = match patch_type {
        PatchType::Json => patch::unknown_in_operations(&document.value),
        _ => Vec::new(),
    };
    let mut found = Vec::new();
    let result = change(call, subresource, &mut about, Some(&options.field_manager), |old| {
        let mut patched = patched(call.kind.schema.as_ref(), patch_type, old, &document.value)?;
        check_name(call, &patched)?;
        found.clear();
        decode_request::conform_patched(
            call,
            &mut patched,
            old,
            &decode_request::PatchFields { patch_type, duplicates: &document.duplicates, operations: &operations },
            options.field_validation,
            &mut found,
        )?;
        // A resourceVersion that the patch did not change is not a precondition.
        if patched.text(&["metadata", "resourceVersion"]) == old.text(&["metadata", "resourceVersion"]) {
            patched.cut(&["metadata", "resourceVersion"]);
        }
        Ok(patched)
    })
    .await;
    about.warnings.splice(0..0, found);
    result?.answer(call, about.warnings)
}

/// Whether the patch also changes the status (`withStatus=true`). Other servers ignore this option, so clients check
/// the response and write the status separately. The same happens for users without permission for the status.
fn has_status_too(call: &Call<'_>) -> bool {
    if !call.query.flag("withStatus") || !call.kind.has_status() {
        return false;
    }
    let mut asked = attributes(&call.target);
    "status".clone_into(&mut asked.subresource);
    call.server.authz.check(&call.user, &asked).is_ok()
}

/// Applies the patch to `old`. A strategic merge needs the schema.
pub fn patched(
    schema: Option<&TypeRef>,
    patch_type: PatchType,
    old: &Value,
    document: &Value,
) -> Result<Value, Status> {
    match (patch_type, schema) {
        (PatchType::Json, _) => patch::json(old, document),
        (PatchType::Strategic, Some(schema)) => {
            need_object(document)?;
            patch::strategic(schema, old, document)
        }
        _ => {
            need_object(document)?;
            Ok(patch::merge(old, document))
        }
    }
}

fn need_object(document: &Value) -> Result<(), Status> {
    if document.is_object() {
        return Ok(());
    }
    Err(Status::bad_request("the patch must be a JSON object"))
}

/// A patch must not change name, namespace or kind.
fn check_name(call: &Call<'_>, patched: &Value) -> Result<(), Status> {
    if name(patched) != call.target.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            name(patched),
            call.target.name
        )));
    }
    if call.kind.namespaced && namespace(patched) != call.target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if patched.text(&["kind"]) != call.kind.kind || patched.text(&["apiVersion"]) != call.kind.api_version() {
        return Err(Status::bad_request("a patch may not change apiVersion or kind"));
    }
    Ok(())
}

async fn apply_patch(call: &Call<'_>, subresource: &str) -> Result<Answer, Status> {
    let options = call.options()?;
    if call.query.get("fieldManager").is_none() {
        return Err(Status::new(
            422,
            "Invalid",
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        )
        .with_cause("FieldValueRequired", "Required value: is required for apply patch", "fieldManager"));
    }
    let mut about = About { dry_run: options.dry_run, ..About::default() };
    let decoded = decode::yaml(&call.body)?;
    let mut applied = decoded.value;
    check_applied(call, &applied)?;
    let unknown = decode_request::unknown(&call.kind, &mut applied, None)?;
    let schema = call
        .kind
        .schema
        .as_ref()
        .ok_or_else(|| Status::unsupported_media_type("this kind has no schema to apply by"))?;
    let api_version = call.kind.api_version();
    let writer = Writer { manager: &options.field_manager, subresource, api_version: &api_version, now: call.now };
    if !unknown.is_empty() {
        return Err(undeclared(call, schema, &writer, &unknown));
    }
    about.warnings.extend(check_duplicates(&decoded.duplicates, options.field_validation)?);
    let wanted = Wanted { schema, applied: &applied, writer, force: options.force };
    let warnings = about.warnings.clone();
    for _ in 0..ATTEMPTS_MAX {
        about.warnings.clone_from(&warnings);
        let exists = call.server.store.get(&call.key(&call.target.name)).is_some();
        let result = if exists {
            apply_to_existing(call, subresource, &wanted, &mut about).await
        } else if subresource.is_empty() {
            apply_new(call, &wanted, &mut about).await
        } else {
            return Err(call.not_found(&call.target.name));
        };
        match result {
            // Another client created or removed the object meanwhile: try the other case.
            Err(status) if status.reason == if exists { "NotFound" } else { "AlreadyExists" } && !about.dry_run => {}
            result => return result,
        }
    }
    Err(call.modified(&call.target.name))
}

/// Refuses an applied configuration with unknown fields. They cannot be owned, so every `fieldValidation` refuses
/// them.
fn undeclared(call: &Call<'_>, schema: &TypeRef, writer: &Writer<'_>, unknown: &[String]) -> Status {
    // Unknown fields were already dropped from the value, so build the message from the body.
    let refused = decode::yaml(&call.body).and_then(|decoded| apply::check(schema, &decoded.value, writer));
    refused.err().unwrap_or_else(|| Status::bad_request(format!("unknown fields: {}", unknown.join(", "))))
}

/// Warns about duplicate fields of an applied configuration, or refuses it.
fn check_duplicates(duplicates: &Duplicates, validation: FieldValidation) -> Result<Vec<String>, Status> {
    match (duplicates.yaml_error(), validation) {
        (Some(error), FieldValidation::Strict) => {
            Err(Status::bad_request(format!("error strict decoding patch: {error}")))
        }
        (Some(_), FieldValidation::Warn) => Ok(duplicates.lines.clone()),
        _ => Ok(Vec::new()),
    }
}

/// The parameters of an apply.
struct Wanted<'a> {
    schema: &'a TypeRef,
    applied: &'a Value,
    writer: Writer<'a>,
    force: bool,
}

async fn apply_new(call: &Call<'_>, wanted: &Wanted<'_>, about: &mut About) -> Result<Answer, Status> {
    if !object::access::uid(wanted.applied).is_empty() {
        let why = "uid mismatch: the provided object specified uid, and no existing object was found";
        return Err(Status::conflict(&call.kind.group, &call.kind.plural, &call.target.name, why));
    }
    // Creating an object by apply needs the permission to create it.
    let mut attributes = attributes(&call.target);
    Verb::Create.as_str().clone_into(&mut attributes.verb);
    call.server.authz.check(&call.user, &attributes)?;
    let new = apply::apply(wanted.schema, None, wanted.applied, &wanted.writer, wanted.force)?;
    create::store_new(call, new, about, create::Ownership::Applied).await
}

async fn apply_to_existing(
    call: &Call<'_>,
    subresource: &str,
    wanted: &Wanted<'_>,
    about: &mut About,
) -> Result<Answer, Status> {
    let changed = change(call, subresource, about, None, |old| {
        let mut new = apply::apply(wanted.schema, Some(old), wanted.applied, &wanted.writer, wanted.force)?;
        match wanted.applied.at(&["metadata", "resourceVersion"]) {
            Some(version) => new.put(&["metadata", "resourceVersion"], version.clone()),
            None => drop(new.cut(&["metadata", "resourceVersion"])),
        }
        Ok(new)
    })
    .await?;
    changed.answer(call, std::mem::take(&mut about.warnings))
}

fn check_applied(call: &Call<'_>, applied: &Value) -> Result<(), Status> {
    let (version, kind) = (applied.text(&["apiVersion"]), applied.text(&["kind"]));
    if version != call.kind.api_version() || kind != call.kind.kind {
        return Err(Status::bad_request(format!(
            "an applied object must say what it is: apiVersion {:?} and kind {:?}, not {version:?} and {kind:?}",
            call.kind.api_version(),
            call.kind.kind
        )));
    }
    let said = name(applied);
    if said != call.target.name {
        return Err(Status::bad_request(format!(
            "name in URL does not match name in provided object: {:?} and {said:?}",
            call.target.name
        )));
    }
    Ok(())
}
