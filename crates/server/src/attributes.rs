//! Facts about a request that authorization and admission use.

/// An authenticated user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: std::collections::BTreeMap<String, Vec<String>>,
}

/// User name of every unauthenticated client.
const ANONYMOUS: &str = "system:anonymous";
/// User name of the server itself.
const APISERVER: &str = "system:apiserver";

impl User {
    /// The user that the server itself acts as.
    pub fn apiserver() -> User {
        User {
            name: APISERVER.to_owned(),
            groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
            ..User::default()
        }
    }
    pub fn is_apiserver(&self) -> bool {
        self.name == APISERVER
    }
    pub fn anonymous() -> User {
        User { name: ANONYMOUS.to_owned(), groups: vec!["system:unauthenticated".to_owned()], ..User::default() }
    }

    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }
}

/// A request as RBAC sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// get, list, watch, create, update, patch, delete, deletecollection; for non-resource paths the lower-case HTTP
    /// method.
    pub verb: String,
    pub group: String,
    pub version: String,
    /// The plural name; empty for a non-resource path.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// The node that a list or watch of pods selects by `spec.nodeName`; empty if it selects none.
    pub selected_node: String,
    /// The URL path of a non-resource request.
    pub path: String,
}
