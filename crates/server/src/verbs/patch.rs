//! Patch: three ways to change a document, and server-side apply.

use super::update::change;
use super::{ATTEMPTS_MAX, About, Answer, Call, create, incoming};
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

/// Custom resources have no merge keys of their own, so a strategic merge has no meaning for them.
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
        incoming::conform_patched(
            call,
            &mut patched,
            old,
            &incoming::PatchFields { patch_type, duplicates: &document.duplicates, operations: &operations },
            options.field_validation,
            &mut found,
        )?;
        // An untouched version in the patched document is the old one: no precondition of the client's.
        if patched.text(&["metadata", "resourceVersion"]) == old.text(&["metadata", "resourceVersion"]) {
            patched.cut(&["metadata", "resourceVersion"]);
        }
        Ok(patched)
    })
    .await;
    about.warnings.splice(0..0, found);
    result?.answer(call, about.warnings)
}

/// Whether the patch is of the status as well (`withStatus=true`, which other servers do not know and pass over: they show in their answer
/// that the status is still to be written). So it is for who may not write the status: they hear of it when they write it by itself.
fn has_status_too(call: &Call<'_>) -> bool {
    if !call.query.flag("withStatus") || !call.kind.has_status() {
        return false;
    }
    let mut asked = attributes(&call.target);
    "status".clone_into(&mut asked.subresource);
    call.server.authz.check(&call.user, &asked).is_ok()
}

/// `old` changed by the patch; the schema is what a strategic merge goes by.
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

/// A patch may not move an object to another name or kind.
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
    let unknown = incoming::unknown(&call.kind, &mut applied, None)?;
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
    about.warnings.extend(judge_duplicates(&decoded.duplicates, options.field_validation)?);
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
            // Somebody created or removed it meanwhile: then it is the other case.
            Err(status) if status.reason == if exists { "NotFound" } else { "AlreadyExists" } && !about.dry_run => {}
            result => return result,
        }
    }
    Err(call.modified(&call.target.name))
}

/// The refusal of an applied configuration with unknown fields. Nothing can own them, so no `fieldValidation` lets them pass.
fn undeclared(call: &Call<'_>, schema: &TypeRef, writer: &Writer<'_>, unknown: &[String]) -> Status {
    // The fields are gone from the value that was read, so the message is made from the body.
    let refused = decode::yaml(&call.body).and_then(|decoded| apply::check(schema, &decoded.value, writer));
    refused.err().unwrap_or_else(|| Status::bad_request(format!("unknown fields: {}", unknown.join(", "))))
}

/// The warnings about duplicate fields of an applied configuration, or its refusal.
fn judge_duplicates(duplicates: &Duplicates, validation: FieldValidation) -> Result<Vec<String>, Status> {
    match (duplicates.yaml_error(), validation) {
        (Some(error), FieldValidation::Strict) => {
            Err(Status::bad_request(format!("error strict decoding patch: {error}")))
        }
        (Some(_), FieldValidation::Warn) => Ok(duplicates.lines.clone()),
        _ => Ok(Vec::new()),
    }
}

/// What an apply asks for, and for whom.
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
    // Who may only change what is there does not create it this way.
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
