//! The verb delete.

use super::{ATTEMPTS_MAX, About, Answer, Call, CommitConflict, decode_request};
use crate::admission;
use crate::crd_lifecycle;
use crate::render;
use crate::request;
use object::access::{self, Access, name, uid};
use object::json;
use object::write::{self, Deleted, Deletion, Propagation};
use object::{Errors, Status, Value};
use std::sync::Arc;
use store::{Operation, Record};

/// The options of a DELETE, from its body and query.
pub struct DeleteOptions {
    pub deletion: Deletion,
    pub dry_run: bool,
    uid: Option<String>,
    resource_version: Option<String>,
}

pub async fn delete(call: &Call<'_>) -> Result<Answer, Status> {
    let options = DeleteOptions::read(call)?;
    let removed = delete_one(call, &call.target.name, &options).await?;
    let mut about = removed.about;
    let warnings = std::mem::take(&mut about.warnings);
    if removed.gone && !returns_object(call) {
        return Ok(Answer { warnings, ..Answer::new(200, render::to_bytes(&success(call, &removed.object))) });
    }
    call.show_object(200, &removed.object, warnings)
}

/// Kinds whose DELETE returns the object even when it is removed; others return a Status.
fn returns_object(call: &Call<'_>) -> bool {
    matches!(
        &*call.kind.plural,
        "pods"
            | "persistentvolumeclaims"
            | "persistentvolumes"
            | "services"
            | "serviceaccounts"
            | "resourcequotas"
            | "storageclasses"
            | "volumeattachments"
            | "csidrivers"
            | "csinodes"
            | "volumeattributesclasses"
    )
}

fn success(call: &Call<'_>, object: &Value) -> Value {
    let mut details = json!({"name": name(object), "kind": call.kind.plural, "uid": uid(object)});
    if !call.kind.group.is_empty() {
        details["group"] = json!(call.kind.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

impl DeleteOptions {
    pub fn read(call: &Call<'_>) -> Result<DeleteOptions, Status> {
        let body = if call.body.is_empty() {
            json!({})
        } else {
            decode_request::other(call, "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")?
        };
        let mut options = DeleteOptions::from_value(&body)?;
        if let Some(text) = call.query.get("gracePeriodSeconds") {
            let seconds = text.parse().map_err(|_| {
                Status::bad_request(format!("gracePeriodSeconds must be a whole number of seconds, not {text:?}"))
            })?;
            options.deletion.grace_seconds = Some(seconds);
        }
        if let Some(text) = call.query.get("propagationPolicy") {
            options.deletion.propagation = Some(propagation(text)?);
        }
        if let Some(text) = call.query.get("orphanDependents") {
            options.deletion.propagation =
                Some(if text == "true" { Propagation::Orphan } else { Propagation::Background });
        }
        options.dry_run |= call.options()?.dry_run;
        Ok(options)
    }

    /// Decodes a DeleteOptions object, which an Eviction contains too.
    pub fn from_value(body: &Value) -> Result<DeleteOptions, Status> {
        let policy = body.at(&["propagationPolicy"]).and_then(Value::as_str);
        let orphan = body.at(&["orphanDependents"]).and_then(Value::as_bool);
        let propagation = match (policy, orphan) {
            (Some(_), Some(_)) => {
                return Err(Status::new(
                    422,
                    "Invalid",
                    "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: orphanDependents and \
                     deletionPropagation cannot be both set",
                ));
            }
            (Some(text), None) => Some(propagation(text)?),
            (None, Some(true)) => Some(Propagation::Orphan),
            (None, Some(false)) => Some(Propagation::Background),
            (None, None) => None,
        };
        let mut errors = Errors::default();
        let dry_run = request::dry_run(body.items(&["dryRun"]).iter().filter_map(Value::as_str), &mut errors);
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &errors));
        }
        let text = |field: &str| body.at(&["preconditions", field]).and_then(Value::as_str).map(str::to_owned);
        Ok(DeleteOptions {
            deletion: Deletion { grace_seconds: body.int(&["gracePeriodSeconds"]), propagation },
            dry_run,
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        })
    }

    fn check(&self, call: &Call<'_>, object: &Value, record: &Record) -> Result<(), Status> {
        let conflict = |why: String| Status::conflict(&call.kind.group, &call.kind.plural, name(object), why);
        if let Some(wanted) = &self.uid
            && wanted != uid(object)
        {
            let has = uid(object);
            return Err(conflict(format!(
                "Precondition failed: UID in precondition: {wanted}, UID in object meta: {has}"
            )));
        }
        if let Some(wanted) = &self.resource_version
            && *wanted != record.modified.to_string()
        {
            return Err(conflict(format!(
                "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {}",
                record.modified
            )));
        }
        Ok(())
    }
}

fn propagation(text: &str) -> Result<Propagation, Status> {
    match text {
        "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => Err(Status::new(
            422,
            "Invalid",
            format!(
                "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: {other:?}: supported values: \
                 \"Foreground\", \"Background\", \"Orphan\""
            ),
        )),
    }
}

/// The result of a delete: the current or last state of the object.
pub struct Removed {
    pub object: Value,
    pub gone: bool,
    about: About,
}

/// Deletes one object. Retries after a conflict with another writer.
pub async fn delete_one(call: &Call<'_>, object_name: &str, options: &DeleteOptions) -> Result<Removed, Status> {
    delete_with(call, object_name, options, |object| Ok((object, admission::AtomicWrites::default()))).await
}

/// Deletes one object after `last_change`, which may add writes to the same transaction.
pub async fn delete_with(
    call: &Call<'_>,
    object_name: &str,
    options: &DeleteOptions,
    mut last_change: impl FnMut(Value) -> Result<(Value, admission::AtomicWrites), Status>,
) -> Result<Removed, Status> {
    let mut about = About { dry_run: options.dry_run, ..About::default() };
    for _ in 0..ATTEMPTS_MAX {
        about.warnings.clear();
        let (old, record) = call.stored(object_name)?;
        options.check(call, &old, &record)?;
        let (mut changed, more) = last_change(Value::clone(&old))?;
        crd_lifecycle::mark_deleted(&call.kind, &mut changed, call.now);
        let decided = write::for_delete(&call.kind, &changed, options.deletion, call.now);
        let gone = matches!(decided, Deleted::Gone(_));
        let mut next = match decided {
            Deleted::Gone(last) | Deleted::Marked(last) => last,
            Deleted::Unchanged if more.txn.operations.is_empty() => {
                return Ok(Removed { object: Value::clone(&old), gone: false, about });
            }
            Deleted::Unchanged => changed,
        };
        let mut going = Value::clone(&old);
        let mut write = call.write(admission::Verb::Delete, "", object_name, &mut going, Some(&old), &mut about);
        let admission = &call.server.admission;
        let mut together =
            if gone { admission.validate(&mut write)? } else { admission.validate_deletion(&mut write)? };
        together.txn.conditions.extend(more.txn.conditions);
        together.txn.operations.extend(more.txn.operations);
        if options.dry_run {
            return Ok(Removed { object: next, gone, about });
        }
        match commit(call, &record, &mut next, gone, together).await {
            Ok(()) => {
                log_deletion(call, &old, &options.deletion);
                return Ok(Removed { object: next, gone, about });
            }
            Err(CommitConflict::Object | CommitConflict::AtomicWrites) => {}
            Err(CommitConflict::Store(status)) => return Err(status),
        }
    }
    Err(call.modified(object_name))
}

/// Logs which user deletes an object if the deletion may destroy the data of volumes. A repeated request changes nothing
/// and is not logged.
fn log_deletion(call: &Call<'_>, object: &Value, deletion: &Deletion) {
    let when_deleted = ["spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted"];
    let may_destroy_data = match (&*call.kind.group, &*call.kind.plural) {
        ("", "persistentvolumeclaims" | "persistentvolumes") => true,
        ("apps", "statefulsets") => object.text(&when_deleted) == "Delete",
        _ => false,
    };
    if may_destroy_data && !access::terminating(object) {
        tracing::info!(
            user = %call.user.name,
            kind = %call.kind.kind,
            namespace = access::namespace(object),
            name = name(object),
            uid = uid(object),
            propagation = ?deletion.propagation,
            "deletion requested"
        );
    }
}

async fn commit(
    call: &Call<'_>,
    record: &Arc<Record>,
    next: &mut Value,
    gone: bool,
    together: admission::AtomicWrites,
) -> Result<(), CommitConflict> {
    let operation = if gone {
        Operation::Delete { key: record.key.clone(), last: Some(call.encode(next)) }
    } else {
        call.put(&record.key, next)
    };
    let committed = call.commit(&record.key, record.modified, operation, together).await?;
    next.put(&["metadata", "resourceVersion"], committed.revision.to_string());
    Ok(())
}
