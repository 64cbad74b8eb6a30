//! Authorization: RBAC with upstream's bootstrap roles, access reviews, escalation checks.

mod aggregation;
pub mod bootstrap;
mod escalation;
mod index;
pub mod node;
mod rbac;
pub mod reviews;
mod rule;
#[cfg(test)]
mod tests;

use crate::attributes::{Attributes, User};
use crate::request::{self, Query, Target};
use http::{Method, Uri};
use object::Status;

pub use aggregation::aggregate;
pub use rbac::Authorizer;
pub(crate) use rule::quoted;
pub use rule::{Rule, missing};

const GROUP: &str = "rbac.authorization.k8s.io";
/// The group with all permissions, whatever the roles say, so that administrators can repair wrong roles.
pub const MASTERS: &str = "system:masters";

/// A decision with its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
}

/// The permission that a request needs, from its method and URL. An apply that creates its object also needs
/// `create`.
pub fn asked(method: &Method, uri: &Uri) -> Result<Attributes, Status> {
    let query = Query::parse(uri.query().unwrap_or(""))?;
    Ok(match request::parse(method, uri.path(), &query)? {
        Target::Path => crate::paths::attributes(method, uri.path()),
        Target::Resource(target) => crate::app::asked(&target, &query),
    })
}

/// The 403 in upstream's words.
pub fn forbidden(user: &User, asked: &Attributes, reason: &str) -> Status {
    let mut why = refusal(&user.name, asked);
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    let Attributes { verb, group, resource, subresource, name, path, .. } = asked;
    let wanted = match (resource.as_str(), subresource.as_str()) {
        ("", _) => path.clone(),
        (_, "") => resource.clone(),
        _ => format!("{resource}/{subresource}"),
    };
    Status::forbidden(group, resource, name, why).missing_permission(verb, group, &wanted)
}

fn refusal(user: &str, asked: &Attributes) -> String {
    let Attributes { verb, group, resource, subresource, namespace, path, .. } = asked;
    if resource.is_empty() {
        return format!("User {user:?} cannot {verb} path {path:?}");
    }
    let slash = if subresource.is_empty() { "" } else { "/" };
    let place = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    format!("User {user:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API group {group:?} {place}")
}

fn is_master(user: &User) -> bool {
    user.groups.iter().any(|group| group == MASTERS)
}
