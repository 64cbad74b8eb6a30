//! Verbs other than plain reads and writes: reviews, scale, binding, eviction, tokens.

use super::delete::{DeleteOptions, delete_with};
use super::update::change;
use super::{ATTEMPTS_MAX, About, Answer, Call, CommitConflict, decode_request, patch};
use crate::admission::AtomicWrites;
use crate::authn::token_request;
use crate::authz::reviews::Reviewer;
use crate::negotiate::{self, PatchType};
use crate::object_store::Reader;
use crate::render;
use crate::request::Verb;
use crate::subresources::{binding, eviction, scale};
use object::access::{Access, name};
use object::apply::{self, Writer};
use object::json;
use object::kind::Subresource;
use object::{Errors, Status, Value, decode, schema, write};

const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

/// Responds to a review. Nothing is stored.
pub fn review(call: &Call<'_>) -> Result<Answer, Status> {
    if call.target.verb != Verb::Create || !call.target.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    let options = call.options()?;
    let mut warnings = Vec::new();
    let asked = decode_request::object(call, &options, &mut warnings)?;
    let mut errors = Errors::default();
    call.kind.rules.validate_create(&asked, &call.ctx(), &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid("", &errors));
    }
    let reviewer = Reviewer { authorizer: &call.server.authz, authenticator: &call.server.authn };
    let answered = reviewer.answer(&call.kind.kind, asked, &call.user, &call.target.namespace)?;
    Ok(Answer { warnings, ..Answer::new(201, render::to_bytes(&answered)) })
}

/// The Scale subresource: replicas of an object as `autoscaling/v1` Scale.
pub async fn scale(call: &Call<'_>, sub: &Subresource, verb: Verb) -> Result<Answer, Status> {
    let object = match verb {
        Verb::Get => Value::clone(&call.stored(&call.target.name)?.0),
        Verb::Update => {
            let sent = decode_request::other(call, SCALE)?;
            set_scale(call, sub, |_| Ok(sent.clone())).await?
        }
        Verb::Patch => {
            let patch_type = negotiate::patch_type(call.headers)?;
            if patch_type == PatchType::Apply {
                return Err(Status::unsupported_media_type("a scale takes JSON, merge and strategic merge patches"));
            }
            let schema = schema::builtin_type(SCALE);
            let document = decode::document(&call.body)?.value;
            set_scale(call, sub, |now| patch::patched(Some(&schema), patch_type, &now, &document)).await?
        }
        _ => return Err(Status::method_not_allowed()),
    };
    Ok(Answer::new(200, render::to_bytes(&scale::of(sub, &object)?)))
}

async fn set_scale(
    call: &Call<'_>,
    sub: &Subresource,
    mut make: impl FnMut(Value) -> Result<Value, Status>,
) -> Result<Value, Status> {
    let options = call.options()?;
    let mut about = About { dry_run: options.dry_run, ..About::default() };
    let changed = change(call, "scale", &mut about, Some(&options.field_manager), |old| {
        scale::apply(&call.kind, sub, old, &make(scale::of(sub, old)?)?)
    })
    .await?;
    changed.object(call)
}

/// Assigns a pod to a node.
pub async fn binding(call: &Call<'_>) -> Result<Answer, Status> {
    let options = call.options()?;
    let asked = decode_request::other(call, "io.k8s.api.core.v1.Binding")?;
    for _ in 0..ATTEMPTS_MAX {
        let (old, record) = call.stored(&call.target.name)?;
        let mut new = binding::bind(&old, &asked, call.now)?;
        write::settle_generation(&call.kind, &mut new, &old);
        if let Some(schema) = &call.kind.schema {
            let manager = &options.field_manager;
            let writer = Writer { manager, subresource: "binding", api_version: "v1", now: call.now };
            apply::track(schema, Some(&old), &mut new, &writer);
        }
        if options.dry_run {
            return Ok(success());
        }
        match call.commit(&record.key, record.modified, call.put(&record.key, &new), AtomicWrites::default()).await {
            Ok(committed) => {
                call.remember(&committed.records[0], new);
                return Ok(success());
            }
            Err(CommitConflict::Object | CommitConflict::AtomicWrites) => {}
            Err(CommitConflict::Store(status)) => return Err(status),
        }
    }
    Err(call.modified(&call.target.name))
}

/// Deletes a pod if its disruption budgets allow it. The budget is updated in the same transaction.
pub async fn eviction(call: &Call<'_>) -> Result<Answer, Status> {
    let asked = decode_request::other(call, "io.k8s.api.policy.v1.Eviction")?;
    let mut options = DeleteOptions::from_value(asked.at(&["deleteOptions"]).unwrap_or(&Value::Null))?;
    options.dry_run |= call.options()?.dry_run;
    let reader = Reader { store: call.server.store.clone() };
    let prefix = format!("/policy/poddisruptionbudgets/{}/", call.target.namespace);
    delete_with(call, &call.target.name, &options, |pod| {
        let budgets = reader.list(&prefix)?;
        let objects: Vec<Value> = budgets.iter().map(|(budget, _)| budget.clone()).collect();
        let evicted = eviction::evict(&pod, &asked, &objects, call.now)?;
        let mut together = AtomicWrites::default();
        if let Some(budget) = &evicted.budget {
            let found = budgets.iter().find(|(object, _)| name(object) == name(budget));
            if let Some((_, record)) = found {
                together.require(&record.key, Some(record));
                together.put(&record.key, budget);
            }
        }
        Ok((evicted.pod, together))
    })
    .await?;
    Ok(success())
}

fn success() -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    Answer::new(201, render::to_bytes(&status))
}

/// Issues a token for a ServiceAccount.
pub fn token(call: &Call<'_>) -> Result<Answer, Status> {
    let asked = decode_request::other(call, "io.k8s.api.authentication.v1.TokenRequest")?;
    let reader = Reader { store: call.server.store.clone() };
    let (namespace, name) = (&call.target.namespace, &call.target.name);
    let tokens = &call.server.authn.tokens;
    let answered = token_request::answer(tokens, &reader, &call.server.env, namespace, name, asked)?;
    Ok(Answer::new(201, render::to_bytes(&answered)))
}
