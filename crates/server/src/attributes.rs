//! Who asks for what: the facts that authorization and admission judge.

/// An authenticated caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: std::collections::BTreeMap<String, Vec<String>>,
}

/// The name of everyone who did not authenticate.
const ANONYMOUS: &str = "system:anonymous";
/// The name of the server itself.
const APISERVER: &str = "system:apiserver";

impl User {
    /// The server itself.
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
    /// get, list, watch, create, update, patch, delete, deletecollection; for paths the lower-case HTTP method.
    pub verb: String,
    pub group: String,
    pub version: String,
    /// The plural; empty for a non-resource path.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// The node that a list or watch of pods selects by `spec.nodeName`; empty where it selects none.
    pub selected_node: String,
    /// The URL path of a non-resource request.
    pub path: String,
}
