//! The verb create.

use super::{ATTEMPTS_MAX, About, Answer, Call, CommitConflict, decode_request};
use crate::admission;
use crate::crd_lifecycle;
use object::access::{Access, name, namespace};
use object::apply::{self, Writer};
use object::{Errors, Status, Value, meta, write};

/// A generated name is the given prefix and this number of random characters.
const SUFFIX_LENGTH: usize = 5;
const GENERATED_BASE_MAX: usize = 63 - SUFFIX_LENGTH;
const NAME_ATTEMPTS_MAX: usize = 8;

pub async fn create(call: &Call<'_>) -> Result<Answer, Status> {
    let options = call.options()?;
    let mut about = About { dry_run: options.dry_run, ..About::default() };
    let object = decode_request::object(call, &options, &mut about.warnings)?;
    store_new(call, object, &mut about, Ownership::Update(&options.field_manager)).await
}

/// The owner of a new object's fields: the creator, or the managers that apply has recorded.
pub enum Ownership<'a> {
    Update(&'a str),
    Applied,
}

/// Creates `object`: sets name and identity, admits, validates and stores it.
pub async fn store_new(
    call: &Call<'_>,
    object: Value,
    about: &mut About,
    ownership: Ownership<'_>,
) -> Result<Answer, Status> {
    let mut object = object;
    settle_namespace(call, &mut object)?;
    if object.has(&["metadata", "resourceVersion"]) && !object.text(&["metadata", "resourceVersion"]).is_empty() {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let generated = name(&object).is_empty() && !object.text(&["metadata", "generateName"]).is_empty();
    let mut names_tried = 0;
    let warnings_before = about.warnings.len();
    for _ in 0..ATTEMPTS_MAX {
        about.warnings.truncate(warnings_before);
        let mut new = object.clone();
        if generated {
            let base: String = new.text(&["metadata", "generateName"]).chars().take(GENERATED_BASE_MAX).collect();
            new.put(&["metadata", "name"], format!("{base}{}", call.server.env.ids.suffix(SUFFIX_LENGTH)));
        }
        let together = prepare(call, &mut new, about, &ownership)?;
        let key = call.key(name(&new));
        let put = call.put_within_limit(&key, &new)?;
        if about.dry_run {
            if call.server.store.get(&key).is_some() {
                return Err(Status::already_exists(&call.kind.group, &call.kind.plural, name(&new)));
            }
            return call.show_object(201, &new, std::mem::take(&mut about.warnings));
        }
        match call.commit(&key, 0, put, together).await {
            Ok(committed) => {
                let record = &committed.records[0];
                call.remember(record, new);
                return call.show(201, &record.value, std::mem::take(&mut about.warnings));
            }
            Err(CommitConflict::Object) if generated && names_tried < NAME_ATTEMPTS_MAX => names_tried += 1,
            Err(CommitConflict::Object) => {
                return Err(Status::already_exists(&call.kind.group, &call.kind.plural, name(&new)));
            }
            Err(CommitConflict::AtomicWrites) => {}
            Err(CommitConflict::Store(status)) => return Err(status),
        }
    }
    Err(Status::too_many_requests("too many writers compete for what this object needs; try again", 1))
}

fn prepare(
    call: &Call<'_>,
    new: &mut Value,
    about: &mut About,
    ownership: &Ownership<'_>,
) -> Result<admission::AtomicWrites, Status> {
    let (kind, ctx) = (&call.kind, call.ctx());
    let definition = crd_lifecycle::check_create(&call.server.admission.reader, kind)?;
    write::for_create(kind, new, call.server.env.ids.uid(), call.now);
    kind.rules.default(new, &ctx);
    let object_name = name(new).to_owned();
    let admission = &call.server.admission;
    admission.mutate(&mut call.write(admission::Verb::Create, "", &object_name, new, None, about))?;
    kind.rules.default(new, &ctx);
    kind.rules.prepare_create(new, &ctx);
    if let (Ownership::Update(manager), Some(schema)) = (ownership, &kind.schema) {
        let writer = Writer { manager, subresource: "", api_version: &kind.api_version(), now: call.now };
        apply::track(schema, None, new, &writer);
    }
    let mut errors = Errors::default();
    meta::validate_create(new, kind, &mut errors);
    kind.rules.validate_create(new, &ctx, &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid(&object_name, &errors));
    }
    about.warnings.extend(meta::warnings(new, None));
    about.warnings.extend(kind.rules.warnings(new, None, &ctx));
    call.server.authz.check_escalation(&call.user, kind, new, None)?;
    let mut together =
        admission.validate(&mut call.write(admission::Verb::Create, "", &object_name, new, None, about))?;
    if let Some(record) = &definition {
        together.require(&record.key, Some(record));
    }
    Ok(together)
}

/// The namespaces of URL and object must agree. A missing one is filled in.
fn settle_namespace(call: &Call<'_>, object: &mut Value) -> Result<(), Status> {
    let said = namespace(object);
    let asked = call.target.namespace.as_str();
    if !call.kind.namespaced {
        if !said.is_empty() {
            object.cut(&["metadata", "namespace"]);
        }
        return Ok(());
    }
    if asked.is_empty() {
        return Err(Status::bad_request("an empty namespace may not be set during creation"));
    }
    if !said.is_empty() && said != asked {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    object.put(&["metadata", "namespace"], asked);
    Ok(())
}
