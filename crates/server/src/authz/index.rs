//! Index of roles and bindings by subject: the cost of a check depends on the bindings of the user, not on their
//! total number.

use super::rule::Rule;
use crate::attributes::{Attributes, User};
use crate::authn::service_account_name;
use object::Value;
use object::access::{self, Access};
use std::collections::HashMap;
use std::sync::Arc;

/// Key prefix of all stored RBAC objects.
pub const PREFIX: &str = "/rbac.authorization.k8s.io/";

/// The namespace of a role or binding; empty for the whole cluster.
type Namespace = String;

#[derive(Default)]
pub struct Index {
    /// By namespace and name. ClusterRoles are under `""`.
    roles: HashMap<Namespace, HashMap<String, Vec<Rule>>>,
    /// By store key, to find the old version of a changed binding.
    bindings: HashMap<String, Arc<Binding>>,
    users: HashMap<String, Bound>,
    groups: HashMap<String, Bound>,
}

/// The bindings of one user or group. ClusterRoleBindings are under `""`.
type Bound = HashMap<Namespace, Vec<Arc<Binding>>>;

/// A RoleBinding or ClusterRoleBinding.
#[derive(Debug, PartialEq)]
struct Binding {
    name: String,
    namespace: Namespace,
    role: RoleRef,
    subjects: Vec<Subject>,
}

/// The role that a binding refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRef {
    pub cluster: bool,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

/// Why a request is allowed.
pub struct Grant<'a> {
    binding: &'a Binding,
    subject: Asking<'a>,
}

/// Whether a binding matched the user or one of the groups.
#[derive(Clone, Copy)]
enum Asking<'a> {
    User(&'a str),
    Group(&'a str),
}

impl Index {
    /// Applies a new value of a key, or its deletion.
    pub fn apply(&mut self, key: &str, value: Option<&Value>) {
        let Some(rest) = key.strip_prefix(PREFIX) else { return };
        let parts: Vec<&str> = rest.splitn(3, '/').collect();
        match parts.as_slice() {
            ["clusterroles", name] => self.apply_role("", name, value),
            ["roles", namespace, name] => self.apply_role(namespace, name, value),
            ["clusterrolebindings", _] => self.apply_binding(key, "", value),
            ["rolebindings", namespace, _] => self.apply_binding(key, namespace, value),
            _ => {}
        }
    }

    fn apply_role(&mut self, namespace: &str, name: &str, value: Option<&Value>) {
        match value {
            Some(role) => {
                let roles = self.roles.entry(namespace.to_owned()).or_default();
                roles.insert(name.to_owned(), Rule::of_role(role));
            }
            None => {
                if let Some(roles) = self.roles.get_mut(namespace) {
                    roles.remove(name);
                    if roles.is_empty() {
                        self.roles.remove(namespace);
                    }
                }
            }
        }
    }

    fn apply_binding(&mut self, key: &str, namespace: &str, value: Option<&Value>) {
        if let Some(old) = self.bindings.remove(key) {
            for subject in &old.subjects {
                self.unbind(subject, &old);
            }
        }
        let Some(value) = value else { return };
        let binding = Arc::new(Binding::read(namespace, value));
        for subject in &binding.subjects {
            let (map, name) = self.side(subject);
            let bound = map.entry(name).or_default().entry(namespace.to_owned()).or_default();
            // A binding may list a subject twice.
            if !bound.iter().any(|known| Arc::ptr_eq(known, &binding)) {
                bound.push(binding.clone());
            }
        }
        self.bindings.insert(key.to_owned(), binding);
    }

    fn unbind(&mut self, subject: &Subject, old: &Arc<Binding>) {
        let (map, name) = self.side(subject);
        let Some(bound) = map.get_mut(&name) else { return };
        if let Some(list) = bound.get_mut(&old.namespace) {
            list.retain(|known| !Arc::ptr_eq(known, old));
            if list.is_empty() {
                bound.remove(&old.namespace);
            }
        }
        if bound.is_empty() {
            map.remove(&name);
        }
    }

    fn side(&mut self, subject: &Subject) -> (&mut HashMap<String, Bound>, String) {
        match subject {
            Subject::User(name) => (&mut self.users, name.clone()),
            Subject::Group(name) => (&mut self.groups, name.clone()),
            Subject::ServiceAccount { namespace, name } => (&mut self.users, service_account_name(namespace, name)),
        }
    }

    /// The first binding that allows the request.
    pub fn grant<'a>(&'a self, user: &'a User, asked: &'a Attributes) -> Option<Grant<'a>> {
        self.bindings_of(user, &asked.namespace)
            .find(|(_, binding)| self.rules(binding).is_some_and(|rules| rules.iter().any(|rule| rule.allows(asked))))
            .map(|(subject, binding)| Grant { binding, subject })
    }

    /// All rules of the user in the namespace (`""`: cluster scope).
    pub fn rules_of<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = &'a Rule> + Clone {
        self.bindings_of(user, namespace).filter_map(|(_, binding)| self.rules(binding)).flatten()
    }

    /// Roles that the user is bound to but that do not exist, as named in refusals.
    pub fn missing_roles(&self, user: &User, namespace: &str) -> Vec<String> {
        let mut missing = Vec::new();
        for (_, binding) in self.bindings_of(user, namespace) {
            let text = binding.role.not_found();
            if self.rules(binding).is_none() && !missing.contains(&text) {
                missing.push(text);
            }
        }
        missing
    }

    /// The rules of the role that a binding in `namespace` refers to.
    pub fn role(&self, namespace: &str, role: &RoleRef) -> Option<&[Rule]> {
        self.roles.get(if role.cluster { "" } else { namespace })?.get(&role.name).map(Vec::as_slice)
    }

    fn rules(&self, binding: &Binding) -> Option<&[Rule]> {
        self.role(&binding.namespace, &binding.role)
    }

    /// The bindings of the user: those of the cluster first, then those of the namespace.
    fn bindings_of<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
    ) -> impl Iterator<Item = (Asking<'a>, &'a Binding)> + Clone {
        let scopes = std::iter::once("").chain(std::iter::once(namespace).filter(|namespace| !namespace.is_empty()));
        scopes.flat_map(move |scope| {
            let named = self.users.get(&user.name).map(|bound| (Asking::User(&user.name), bound));
            let grouped = user.groups.iter().filter_map(|group| Some((Asking::Group(group), self.groups.get(group)?)));
            named.into_iter().chain(grouped).flat_map(move |(subject, bound)| {
                bound.get(scope).into_iter().flatten().map(move |binding| (subject, &**binding))
            })
        })
    }
}

impl Binding {
    fn read(namespace: &str, value: &Value) -> Binding {
        let subjects = value.items(&["subjects"]).iter().filter_map(|subject| Subject::read(subject, namespace));
        Binding {
            name: access::name(value).to_owned(),
            namespace: namespace.to_owned(),
            role: RoleRef::read(value),
            subjects: subjects.collect(),
        }
    }
}

impl RoleRef {
    pub fn read(binding: &Value) -> RoleRef {
        RoleRef {
            cluster: binding.text(&["roleRef", "kind"]) == "ClusterRole",
            name: binding.text(&["roleRef", "name"]).to_owned(),
        }
    }

    pub fn kind(&self) -> &'static str {
        if self.cluster { "ClusterRole" } else { "Role" }
    }

    pub fn plural(&self) -> &'static str {
        if self.cluster { "clusterroles" } else { "roles" }
    }

    fn not_found(&self) -> String {
        let kind = if self.cluster { "clusterrole" } else { "role" };
        format!("{kind}.rbac.authorization.k8s.io {:?} not found", self.name)
    }
}

impl Subject {
    fn read(subject: &Value, binding_namespace: &str) -> Option<Subject> {
        let name = subject.text(&["name"]).to_owned();
        match subject.text(&["kind"]) {
            "User" => Some(Subject::User(name)),
            "Group" => Some(Subject::Group(name)),
            "ServiceAccount" => {
                let given = subject.text(&["namespace"]);
                let namespace = if given.is_empty() { binding_namespace } else { given };
                // A ServiceAccount subject without a namespace matches no account.
                (!namespace.is_empty()).then(|| Subject::ServiceAccount { namespace: namespace.to_owned(), name })
            }
            _ => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            Subject::User(name) => format!("User {name:?}"),
            Subject::Group(name) => format!("Group {name:?}"),
            Subject::ServiceAccount { namespace, name } => {
                format!("ServiceAccount {:?}", format!("{name}/{namespace}"))
            }
        }
    }
}

impl Grant<'_> {
    /// `RBAC: allowed by RoleBinding "read/default" of Role "reader" to User "jane"`.
    pub fn reason(&self) -> String {
        let Binding { name, namespace, role, subjects } = self.binding;
        let binding = if namespace.is_empty() {
            format!("ClusterRoleBinding {name:?}")
        } else {
            format!("RoleBinding {:?}", format!("{name}/{namespace}"))
        };
        let spoke_to = |subject: &&Subject| match (self.subject, subject) {
            (Asking::User(asking), Subject::User(name)) => asking == name,
            (Asking::User(asking), Subject::ServiceAccount { namespace, name }) => {
                asking == service_account_name(namespace, name)
            }
            (Asking::Group(asking), Subject::Group(name)) => asking == name,
            _ => false,
        };
        let subject = subjects.iter().find(spoke_to).map(Subject::describe).unwrap_or_default();
        format!("RBAC: allowed by {binding} of {} {:?} to {subject}", role.kind(), role.name)
    }
}
