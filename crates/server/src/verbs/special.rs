//! Verbs that are not plain reads and writes: reviews, scale, binding, eviction, tokens.

use super::{Answer, Call, incoming};
use crate::authn::token_request;
use crate::authz::reviews::Reviewer;
use crate::reader::Reader;
use crate::render;
use crate::request::Verb;
use object::kind::Subresource;
use object::{Errors, Status};

/// Answers a review: nothing is stored.
pub fn review(call: &Call<'_>) -> Result<Answer, Status> {
    if call.target.verb != Verb::Create || !call.target.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    let options = call.options()?;
    let mut warnings = Vec::new();
    let asked = incoming::object(call, &options, &mut warnings)?;
    let mut errors = Errors::default();
    call.kind.rules.validate_create(&asked, &call.ctx(), &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid("", &errors));
    }
    let reviewer = Reviewer { authorizer: &call.server.authz, authenticator: &call.server.authn };
    let answered = reviewer.answer(&call.kind.kind, asked, &call.user, &call.target.namespace)?;
    Ok(Answer { warnings, ..Answer::new(201, render::to_bytes(&answered)) })
}

pub async fn scale(_call: &Call<'_>, _sub: &Subresource, _verb: Verb) -> Result<Answer, Status> {
    Err(Status::method_not_allowed())
}

pub async fn binding(_call: &Call<'_>) -> Result<Answer, Status> {
    Err(Status::method_not_allowed())
}

pub async fn eviction(_call: &Call<'_>) -> Result<Answer, Status> {
    Err(Status::method_not_allowed())
}

/// A token for a ServiceAccount.
pub fn token(call: &Call<'_>) -> Result<Answer, Status> {
    let asked = incoming::other(call)?;
    let reader = Reader { store: call.server.store.clone() };
    let (namespace, name) = (&call.target.namespace, &call.target.name);
    let tokens = &call.server.authn.tokens;
    let answered = token_request::answer(tokens, &reader, &call.server.env, namespace, name, asked)?;
    Ok(Answer::new(201, render::to_bytes(&answered)))
}
