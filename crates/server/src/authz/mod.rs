//! May they: RBAC with upstream's bootstrap roles, access reviews, no escalation.

mod aggregation;
pub mod bootstrap;
mod escalation;
mod index;
mod rbac;
pub mod reviews;
mod rule;

use crate::attributes::{Attributes, User};
use object::Status;

pub use aggregation::aggregate;
pub use rbac::Authorizer;
pub use rule::Rule;

const GROUP: &str = "rbac.authorization.k8s.io";
/// The group that may do everything, whatever the roles say: the way back in after a mistake.
pub const MASTERS: &str = "system:masters";

/// An answer, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
}

/// 403, in the words that clients know.
pub fn forbidden(user: &User, asked: &Attributes, reason: &str) -> Status {
    let mut why = refusal(&user.name, asked);
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    Status::forbidden(&asked.group, &asked.resource, &asked.name, why)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_worded_as_upstreams() {
        let jane = User { name: "jane".to_owned(), ..User::default() };
        let list = Attributes { verb: "list".to_owned(), resource: "pods".to_owned(), ..Attributes::default() };
        assert_eq!(
            forbidden(&jane, &Attributes { namespace: "default".to_owned(), ..list.clone() }, "").message,
            "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
        );
        assert_eq!(
            forbidden(&jane, &list, "RBAC: role.rbac.authorization.k8s.io \"x\" not found").message,
            "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" at the cluster scope: \
             RBAC: role.rbac.authorization.k8s.io \"x\" not found"
        );
        let scale = Attributes {
            verb: "update".to_owned(),
            group: "apps".to_owned(),
            resource: "statefulsets".to_owned(),
            subresource: "scale".to_owned(),
            namespace: "ns".to_owned(),
            name: "web".to_owned(),
            ..Attributes::default()
        };
        let status = forbidden(&jane, &scale, "");
        assert_eq!(
            status.message,
            "statefulsets.apps \"web\" is forbidden: User \"jane\" cannot update resource \"statefulsets/scale\" \
             in API group \"apps\" in the namespace \"ns\""
        );
        assert_eq!((status.code, status.reason), (403, "Forbidden"));
        let path = Attributes { verb: "get".to_owned(), path: "/metrics".to_owned(), ..Attributes::default() };
        assert_eq!(forbidden(&jane, &path, "").message, "forbidden: User \"jane\" cannot get path \"/metrics\"");
    }
}
