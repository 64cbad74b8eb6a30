//! The verbs: what each request does to the store.

mod collection;
mod connect;
mod create;
mod decode_request;
mod delete;
mod initial_list;
mod patch;
mod read;
mod selector_fields;
mod subresources;
mod update;
pub mod watch;

use crate::admission::{self, AtomicWrites};
use crate::app::Server;
use crate::attributes::User;
use crate::body::Body;
use crate::limits::{OBJECT_BYTES_MAX, OBJECT_BYTES_TO_GO};
use crate::negotiate::{self, Form, Forms};
use crate::render;
use crate::request::{Query, ResourceRequest, Verb, WriteOptions};
use bytes::Bytes;
use http::HeaderMap;
use object::access::terminating;
use object::kind::{Ctx, Subresource};
use object::{Errors, Kind, Kinds, Status, Value};
use std::sync::Arc;
use store::{Committed, Condition, Operation, Record};

/// Limit of retries of a write after conflicts with other writers.
const ATTEMPTS_MAX: usize = 200;

/// One authorized request for a resource.
pub struct Call<'a> {
    pub server: &'a Server,
    pub kinds: Arc<Kinds>,
    pub kind: Arc<Kind>,
    pub target: ResourceRequest,
    pub query: Query,
    pub headers: &'a HeaderMap,
    pub body: Bytes,
    pub user: User,
    /// The class in whose pools the request's memory is counted.
    pub class: crate::limits::RequestClass,
    pub now: jiff::Timestamp,
}

/// The response of a verb.
pub struct Answer {
    pub code: u16,
    pub content_type: &'static str,
    pub body: Body,
    pub warnings: Vec<String>,
}

impl Answer {
    fn new(code: u16, bytes: Bytes) -> Answer {
        Answer::of(code, Body::Once(bytes))
    }

    fn of(code: u16, body: Body) -> Answer {
        Answer { code, content_type: "application/json", body, warnings: Vec::new() }
    }
}

/// Runs the verb of the request.
pub async fn answer(call: &Call<'_>) -> Result<Answer, Status> {
    // Refuse an unacceptable response form before anything is changed.
    call.form()?;
    if !call.kind.stored {
        return subresources::review(call);
    }
    if !call.target.subresource.is_empty() {
        return subresource(call).await;
    }
    match call.target.verb {
        Verb::Get => read::get(call),
        Verb::List => read::list(call),
        Verb::Watch => watch::watch(call),
        Verb::Create if !call.target.name.is_empty() => Err(Status::method_not_allowed()),
        Verb::Create => create::create(call).await,
        Verb::Update => update::update(call, "").await,
        Verb::Patch => patch::patch(call, "").await,
        Verb::Delete => delete::delete(call).await,
        Verb::DeleteCollection => collection::delete_collection(call).await,
    }
}

/// Whether a successful call wrote to the store. A dry run does not.
pub fn has_written(call: &Call<'_>) -> bool {
    let only_tried = match call.target.verb {
        Verb::Delete | Verb::DeleteCollection => delete::DeleteOptions::read(call).is_ok_and(|options| options.dry_run),
        _ => call.options().is_ok_and(|options| options.dry_run),
    };
    call.target.verb.writes() && call.kind.stored && !only_tried
}

async fn subresource(call: &Call<'_>) -> Result<Answer, Status> {
    let name = call.target.subresource.as_str();
    if let Some(answer) = connect::answer(call) {
        return answer;
    }
    let sub = call.kind.subresource(name).ok_or_else(Status::no_such_path)?;
    match (sub, call.target.verb) {
        (Subresource::Status, Verb::Get) => read::get(call),
        (Subresource::Status | Subresource::Finalize, Verb::Update) => update::update(call, name).await,
        (Subresource::Status, Verb::Patch) => patch::patch(call, name).await,
        (Subresource::Scale { .. }, verb) => subresources::scale(call, sub, verb).await,
        (Subresource::Binding, Verb::Create) => subresources::binding(call).await,
        (Subresource::Eviction, Verb::Create) => subresources::eviction(call).await,
        (Subresource::Token, Verb::Create) => subresources::token(call),
        _ => Err(Status::method_not_allowed()),
    }
}

impl<'a> Call<'a> {
    /// The same call for another namespace, for collections across namespaces.
    pub fn within(&self, namespace: &str) -> Call<'a> {
        let mut target = self.target.clone();
        target.namespace = namespace.to_owned();
        Call {
            server: self.server,
            kinds: self.kinds.clone(),
            kind: self.kind.clone(),
            target,
            query: self.query.clone(),
            headers: self.headers,
            body: self.body.clone(),
            user: self.user.clone(),
            class: self.class.clone(),
            now: self.now,
        }
    }
}

impl Call<'_> {
    pub fn ctx(&self) -> Ctx<'_> {
        Ctx { gates: &self.server.gates, now: self.now }
    }
    pub fn key(&self, name: &str) -> String {
        crate::object_store::key(&self.kind, &self.target.namespace, name)
    }
    pub fn options(&self) -> Result<WriteOptions, Status> {
        let agent = self.headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("");
        WriteOptions::parse(self.target.verb, &self.query, agent)
    }
    pub fn form(&self) -> Result<Form, Status> {
        let forms = if self.has_forms() { Forms::All } else { Forms::ObjectOnly };
        negotiate::accept(self.headers, self.query.get("includeObject"), forms)
    }
    /// Whether the response can be a Table or partial metadata. Reviews, tokens, scales and other subresources have
    /// only their object form.
    fn has_forms(&self) -> bool {
        let special = !matches!(self.target.subresource.as_str(), "" | "status" | "finalize");
        self.kind.stored && !special
    }
    pub fn not_found(&self, name: &str) -> Status {
        Status::not_found(&self.kind.group, &self.kind.plural, name)
    }
    pub fn invalid(&self, name: &str, errors: &Errors) -> Status {
        Status::invalid(&self.kind.group, &self.kind.kind, name, errors)
    }
    pub fn modified(&self, name: &str) -> Status {
        Status::modified(&self.kind.group, &self.kind.plural, name)
    }

    /// Reads the stored object of this name.
    pub fn stored(&self, name: &str) -> Result<(Arc<Value>, Arc<Record>), Status> {
        let record = self.server.store.get(&self.key(name)).ok_or_else(|| self.not_found(name))?;
        // The write cache has stored forms, which a converting kind does not serve.
        let kept = if self.kind.rules.converts() { None } else { self.server.write_cache.find(&record) };
        let object = match kept {
            Some(object) => object,
            None => {
                let mut object = render::served(&self.kind, &record.value)?;
                object.share();
                Arc::new(object)
            }
        };
        Ok((object, record))
    }

    /// Caches an object that was just stored, because it may soon be written again.
    pub fn remember(&self, record: &Record, object: Value) {
        if !self.kind.rules.converts() {
            self.server.write_cache.keep(record, object);
        }
    }

    /// The response with a stored version.
    pub fn show(&self, code: u16, bytes: &Bytes, warnings: Vec<String>) -> Result<Answer, Status> {
        let form = self.form()?;
        let body = render::one(&self.kind, form, bytes, self.now)?;
        Ok(Answer { warnings, ..Answer::new(code, body) })
    }

    /// The response with an object that is not stored: of a dry run, or a removed one.
    pub fn show_object(&self, code: u16, object: &Value, warnings: Vec<String>) -> Result<Answer, Status> {
        let form = self.form()?;
        let body = render::object(&self.kind, form, object, self.now);
        Ok(Answer { warnings, ..Answer::new(code, body) })
    }

    /// The write of `object` as input of admission.
    pub fn write<'w>(
        &'w self,
        verb: admission::Verb,
        subresource: &'w str,
        name: &'w str,
        object: &'w mut Value,
        old: Option<&'w Value>,
        about: &'w mut About,
    ) -> admission::Write<'w> {
        admission::Write {
            verb,
            kind: &self.kind,
            subresource,
            namespace: &self.target.namespace,
            name,
            user: &self.user,
            dry_run: about.dry_run,
            now: self.now,
            gates: &self.server.gates,
            object,
            old,
            warnings: &mut about.warnings,
        }
    }

    /// Commits a change of one object together with the writes that admission requires.
    pub async fn commit(
        &self,
        key: &str,
        expected: store::Revision,
        operation: Operation,
        together: AtomicWrites,
    ) -> Result<Committed, CommitConflict> {
        let mut txn = together.txn;
        crate::lease_precondition::bind(self.headers, &self.server.admission.reader, &mut txn)
            .map_err(CommitConflict::Store)?;
        txn.conditions.insert(0, Condition { key: key.into(), modified: expected });
        txn.operations.insert(0, operation);
        let without_quotas = crate::admission::quota::deletion_without_usage(&txn);
        let committed = match (self.server.store.txn(txn).await, without_quotas) {
            // The store is full. Delete without updating quota usage; this frees space, and usage is counted again
            // later.
            (Err(store::Error::OutOfSpace(_)), Some(txn)) => {
                let committed = self.server.store.txn(txn).await;
                self.server.admission.recount_quotas.notify_one();
                committed
            }
            (committed, _) => committed,
        };
        committed.map_err(|error| match error {
            store::Error::Conflict { key: lost, .. } if &*lost == key => CommitConflict::Object,
            store::Error::Conflict { .. } => CommitConflict::AtomicWrites,
            error => CommitConflict::Store(store_status(&error)),
        })
    }

    /// The put operation of an object, with its expiry time.
    pub fn put(&self, key: &str, object: &Value) -> Operation {
        let expires_at_s = self.server.expires_at_s(&self.kind, self.now);
        let memo = selector_fields::SelectorFields::for_write(&self.kind, object).map(|fields| fields as store::Memo);
        Operation::Put { key: key.into(), value: self.encode(object), expires_at_s, memo }
    }

    /// Like [`Call::put`], with a size limit, so that many small requests cannot build a large object.
    pub fn put_within_limit(&self, key: &str, object: &Value) -> Result<Operation, Status> {
        let operation = self.put(key, object);
        let max = OBJECT_BYTES_MAX + if terminating(object) { OBJECT_BYTES_TO_GO } else { 0 };
        match &operation {
            Operation::Put { value, .. } if value.len() > max => {
                let (resource, size) = (self.kind.resource(), value.len());
                let name = object::access::name(object);
                Err(Status::too_large(format!("{resource} {name:?} would take {size} bytes, the limit is {max}")))
            }
            _ => Ok(operation),
        }
    }

    /// The stored bytes of a served object.
    pub fn encode(&self, object: &Value) -> Bytes {
        if !self.kind.rules.converts() {
            return crate::codec::encode(object);
        }
        let mut stored = object.clone();
        self.kind.rules.to_stored(&mut stored);
        crate::codec::encode(&stored)
    }
}

/// Options and warnings of one write.
#[derive(Default)]
pub struct About {
    pub dry_run: bool,
    /// Whether a write to the object itself also writes the sent status.
    pub with_status: bool,
    pub warnings: Vec<String>,
}

/// Why a commit failed.
pub enum CommitConflict {
    /// The object was changed meanwhile.
    Object,
    /// An object of the same transaction, such as a quota, was changed meanwhile.
    AtomicWrites,
    Store(Status),
}

pub fn store_status(error: &store::Error) -> Status {
    match error {
        store::Error::Compacted { .. } => Status::expired(
            "The resourceVersion for the provided list or watch is too old: list again to get a current one",
        ),
        store::Error::Future { asked, newest } => too_large(*asked, *newest),
        store::Error::Unavailable(why) | store::Error::OutOfSpace(why) => {
            Status::unavailable(format!("the store does not take writes: {why}"))
        }
        store::Error::TooLarge(why) => Status::too_large(format!("the store does not take so much at once: {why}")),
        store::Error::Unknown(why) => {
            Status::timeout(format!("the outcome of the write is unknown, read before you try again: {why}"))
        }
        store::Error::Conflict { key, .. } => Status::internal(format!("unexpected conflict on {key}")),
    }
}

pub fn too_large(asked: u64, newest: u64) -> Status {
    Status::timeout(format!("Timeout: Too large resource version: {asked}, current: {newest}"))
        .with_cause("ResourceVersionTooLarge", "Too large resource version", "")
        .retry_after(1)
}
