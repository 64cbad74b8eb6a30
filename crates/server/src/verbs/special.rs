//! Verbs that are not plain reads and writes: reviews, scale, binding, eviction, tokens.

use super::{Answer, Call};
use crate::request::Verb;
use object::Status;
use object::kind::Subresource;

pub fn review(_call: &Call<'_>) -> Result<Answer, Status> {
    Err(Status::method_not_allowed())
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

pub fn token(_call: &Call<'_>) -> Result<Answer, Status> {
    Err(Status::method_not_allowed())
}
