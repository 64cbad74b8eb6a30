//! The verb update, and the part that patch shares with it: storing a new version of a changed object.

use super::{ATTEMPTS_MAX, About, Answer, Call, CommitConflict, decode_request};
use crate::admission;
use bytes::Bytes;
use object::access::{Access, name, namespace, uid};
use object::apply::{self, Writer};
use object::{Errors, Status, Value, meta, write};
use std::sync::Arc;
use store::{Operation, Record};

pub async fn update(call: &Call<'_>, subresource: &str) -> Result<Answer, Status> {
    let options = call.options()?;
    let mut about = About { dry_run: options.dry_run, ..About::default() };
    let sent = decode_request::object(call, &options, &mut about.warnings)?;
    check_identity(call, &sent)?;
    let changed = change(call, subresource, &mut about, Some(&options.field_manager), |_| Ok(sent.clone())).await?;
    changed.answer(call, about.warnings)
}

/// The result of a change.
pub enum Changed {
    /// A stored version.
    Stored(Bytes),
    /// An object that is not stored: of a dry run, or a removed one.
    Object(Value),
}

impl Changed {
    pub fn answer(self, call: &Call<'_>, warnings: Vec<String>) -> Result<Answer, Status> {
        match self {
            Changed::Stored(bytes) => call.show(200, &bytes, warnings),
            Changed::Object(object) => call.show_object(200, &object, warnings),
        }
    }

    pub fn object(self, call: &Call<'_>) -> Result<Value, Status> {
        match self {
            Changed::Stored(bytes) => crate::render::served(&call.kind, &bytes),
            Changed::Object(object) => Ok(object),
        }
    }
}

fn check_identity(call: &Call<'_>, sent: &Value) -> Result<(), Status> {
    let asked = call.target.name.as_str();
    let said = name(sent);
    if said.is_empty() {
        return Err(Status::bad_request("metadata.name: name must be provided in an update"));
    }
    if said != asked {
        return Err(Status::bad_request(format!(
            "the name of the object ({said}) does not match the name on the URL ({asked})"
        )));
    }
    let version = sent.text(&["metadata", "resourceVersion"]);
    let names_none = version.is_empty() || version.parse() == Ok(0);
    if call.kind.custom && names_none {
        let mut errors = Errors::default();
        errors.invalid(&object::Path::new("metadata.resourceVersion"), 0, "must be specified for an update");
        return Err(call.invalid(asked, &errors));
    }
    if call.kind.namespaced && !namespace(sent).is_empty() && namespace(sent) != call.target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Stores the object that `make` returns for the stored one, and retries after conflicts. A resourceVersion or uid in
/// the new object is a precondition. `manager` becomes the owner of changed fields; with `None`, apply has already
/// recorded the owners.
pub async fn change(
    call: &Call<'_>,
    subresource: &str,
    about: &mut About,
    manager: Option<&str>,
    mut make: impl FnMut(&Value) -> Result<Value, Status>,
) -> Result<Changed, Status> {
    let asked = call.target.name.as_str();
    let warnings_before = about.warnings.len();
    for _ in 0..ATTEMPTS_MAX {
        about.warnings.truncate(warnings_before);
        let (old, record) = call.stored(asked)?;
        let mut new = make(&old)?;
        let conditional = check_preconditions(call, &new, &old, &record)?;
        let status = about.with_status.then(|| new.cut(&["status"]));
        prepare(call, subresource, &mut new, &old, about, manager)?;
        if let Some(status) = status {
            // A second write, of the status, on top of the first one. Both are committed as one version.
            let first = new.clone();
            match status {
                Some(status) => new.put(&["status"], status),
                None => drop(new.cut(&["status"])),
            }
            prepare(call, "status", &mut new, &first, about, manager)?;
        }
        let mut write = call.write(admission::Verb::Update, subresource, asked, &mut new, Some(&old), about);
        let together = call.server.admission.validate(&mut write)?;
        match store_changed(call, &record, new, &old, about, together).await? {
            Outcome::Done(changed) => return Ok(changed),
            Outcome::CommitConflict if conditional => return Err(call.modified(asked)),
            Outcome::CommitConflict | Outcome::Again => {}
        }
    }
    Err(Status::conflict(
        &call.kind.group,
        &call.kind.plural,
        asked,
        "too many writers compete for this object; try again",
    ))
}

/// Checks uid and resourceVersion of the sent object. Returns whether the write requires this version.
fn check_preconditions(call: &Call<'_>, new: &Value, old: &Value, record: &Record) -> Result<bool, Status> {
    let asked = call.target.name.as_str();
    let (said, has) = (uid(new), uid(old));
    if !said.is_empty() && said != has {
        let why = format!("Precondition failed: UID in precondition: {said}, UID in object meta: {has}");
        return Err(Status::conflict(&call.kind.group, &call.kind.plural, asked, why));
    }
    let version = new.text(&["metadata", "resourceVersion"]);
    if version.is_empty() || version == "0" {
        return Ok(false);
    }
    let number: u64 = version.parse().map_err(|_| {
        let mut errors = Errors::default();
        let path = object::Path::new("metadata.resourceVersion");
        errors.invalid(&path, version, "must be a whole number");
        call.invalid(asked, &errors)
    })?;
    if number == record.modified { Ok(true) } else { Err(call.modified(asked)) }
}

/// Completes and validates the object to be stored. Admission adds what must be written with it.
fn prepare(
    call: &Call<'_>,
    subresource: &str,
    new: &mut Value,
    old: &Value,
    about: &mut About,
    manager: Option<&str>,
) -> Result<(), Status> {
    let (kind, ctx) = (&call.kind, call.ctx());
    let asked = call.target.name.as_str();
    let status = subresource == "status";
    match subresource {
        "status" => write::for_status(kind, new, old),
        "finalize" => carry_all_but_finalizers(new, old),
        _ => write::for_update(kind, new, old),
    }
    kind.rules.default(new, &ctx);
    let admission = &call.server.admission;
    admission.mutate(&mut call.write(admission::Verb::Update, subresource, asked, new, Some(old), about))?;
    match subresource {
        "status" => kind.rules.prepare_status(new, old, &ctx),
        // An ordinary update keeps `spec.finalizers`, which this write must change.
        "finalize" => {}
        _ => {
            kind.rules.prepare_update(new, old, &ctx);
            write::settle_generation(kind, new, old);
        }
    }
    if let (Some(manager), Some(schema)) = (manager, &kind.schema) {
        let writer = Writer { manager, subresource, api_version: &kind.api_version(), now: call.now };
        apply::track(schema, Some(old), new, &writer);
    }
    // An empty list was a request to reset ownership, which is done by now. Do not store it, so that writing back a
    // read object changes nothing.
    if new.items(&["metadata", "managedFields"]).is_empty() {
        new.cut(&["metadata", "managedFields"]);
    }
    let mut errors = Errors::default();
    meta::validate_update(new, old, kind, &mut errors);
    if status {
        kind.rules.validate_status(new, old, &ctx, &mut errors);
    } else {
        kind.rules.validate_update(new, old, &ctx, &mut errors);
    }
    if !errors.is_empty() {
        return Err(call.invalid(asked, &errors));
    }
    if !status {
        about.warnings.extend(meta::warnings(new, Some(old)));
        about.warnings.extend(kind.rules.warnings(new, Some(old), &ctx));
        call.server.authz.check_escalation(&call.user, kind, new, Some(old))?;
    }
    Ok(())
}

/// A write to a namespace's `/finalize` changes only its `spec.finalizers`.
fn carry_all_but_finalizers(new: &mut Value, old: &Value) {
    let finalizers = new.cut(&["spec", "finalizers"]);
    *new = old.clone();
    match finalizers {
        Some(finalizers) => new.put(&["spec", "finalizers"], finalizers),
        None => drop(new.cut(&["spec", "finalizers"])),
    }
}

enum Outcome {
    Done(Changed),
    /// The object was changed meanwhile.
    CommitConflict,
    /// An object of the same transaction was changed meanwhile.
    Again,
}

async fn store_changed(
    call: &Call<'_>,
    record: &Arc<Record>,
    new: Value,
    old: &Value,
    about: &mut About,
    together: admission::AtomicWrites,
) -> Result<Outcome, Status> {
    let key = &record.key;
    if about.dry_run {
        call.put_within_limit(key, &new)?;
        // A dry run commits nothing, so the object keeps its resourceVersion. A client that compares the response
        // with the stored object must see only real differences.
        let mut tried = new;
        tried.put(&["metadata", "resourceVersion"], record.modified.to_string());
        return Ok(Outcome::Done(Changed::Object(tried)));
    }
    // Removing the last finalizer of a terminating object removes the object.
    if write::is_released(&new) {
        return remove(call, record, new, old, about).await;
    }
    if unchanged(&new, old) && together.txn.operations.is_empty() {
        return Ok(Outcome::Done(Changed::Stored(record.value.clone())));
    }
    let put = call.put_within_limit(key, &new)?;
    match call.commit(key, record.modified, put, together).await {
        Ok(committed) => {
            let record = &committed.records[0];
            call.remember(record, new);
            Ok(Outcome::Done(Changed::Stored(record.value.clone())))
        }
        Err(CommitConflict::Object) => Ok(Outcome::CommitConflict),
        Err(CommitConflict::AtomicWrites) => Ok(Outcome::Again),
        Err(CommitConflict::Store(status)) => Err(status),
    }
}

async fn remove(
    call: &Call<'_>,
    record: &Arc<Record>,
    mut last: Value,
    old: &Value,
    about: &mut About,
) -> Result<Outcome, Status> {
    let object_name = name(&last).to_owned();
    let mut going = last.clone();
    let mut write = call.write(admission::Verb::Delete, "", &object_name, &mut going, Some(old), about);
    let together = call.server.admission.validate(&mut write)?;
    let operation = Operation::Delete { key: record.key.clone(), last: Some(call.encode(&last)) };
    match call.commit(&record.key, record.modified, operation, together).await {
        Ok(committed) => {
            last.put(&["metadata", "resourceVersion"], committed.revision.to_string());
            Ok(Outcome::Done(Changed::Object(last)))
        }
        Err(CommitConflict::Object) => Ok(Outcome::CommitConflict),
        Err(CommitConflict::AtomicWrites) => Ok(Outcome::Again),
        Err(CommitConflict::Store(status)) => Err(status),
    }
}

/// Whether a write would change nothing but the resourceVersion.
fn unchanged(new: &Value, old: &Value) -> bool {
    let (Value::Object(new), Value::Object(old)) = (new, old) else { return new == old };
    let [new_metadata, old_metadata] = [new, old].map(|object| {
        let metadata = object.get("metadata").and_then(Value::as_object);
        metadata.into_iter().flatten().filter(|(member, _)| *member != "resourceVersion")
    });
    let [new, old] = [new, old].map(|object| object.iter().filter(|(member, _)| *member != "metadata"));
    new.eq(old) && new_metadata.eq(old_metadata)
}
