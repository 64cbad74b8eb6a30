//! Prevention of privilege escalation: the rules in written roles and bindings must be covered by the writer's own
//! rules.

use super::index::{Index, RoleRef};
use super::rule::{Rule, Work, compact, missing, missing_within, quoted};
use super::{Authorizer, GROUP, is_master};
use crate::attributes::{Attributes, User};
use object::access::{self, Access};
use object::{Kind, Status, Value};
use std::collections::BTreeSet;

/// Limit of missing permissions in a refusal, one verb and resource each.
const TOLD_MAX: usize = 100;

impl Authorizer {
    /// Refuses a role or binding that grants more than `user` has, unless the verbs `escalate` or `bind` allow it.
    /// Accepts writes of other kinds.
    pub fn check_escalation(
        &self,
        user: &User,
        kind: &Kind,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if kind.group == GROUP { self.check_grant(user, &kind.kind, object, old) } else { Ok(()) }
    }

    pub(super) fn check_grant(
        &self,
        user: &User,
        kind: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if is_master(user) || old.is_some_and(|old| only_collected(old, object)) {
            return Ok(());
        }
        let index = self.current();
        match kind {
            "Role" => check_role(&index, user, "roles", object, old),
            "ClusterRole" => check_role(&index, user, "clusterroles", object, old),
            "RoleBinding" => check_binding(&index, user, "rolebindings", object),
            "ClusterRoleBinding" => check_binding(&index, user, "clusterrolebindings", object),
            _ => Ok(()),
        }
    }
}

fn check_role(index: &Index, user: &User, plural: &str, role: &Value, old: Option<&Value>) -> Result<(), Status> {
    let (namespace, name) = (access::namespace(role), access::name(role));
    if index.grant(user, &rbac_attributes("escalate", plural, namespace, name)).is_some() {
        return Ok(());
    }
    let aggregates = |role: &Value| role.has(&["aggregationRule"]);
    if aggregates(role) || old.is_some_and(aggregates) {
        // Other users decide what an aggregated role will contain, so only a user with all permissions may write one.
        let held: Vec<&Rule> = index.rules_of(user, "").collect();
        if !missing(&held, &everything()).is_empty() {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            return Err(refused(plural, name, ("escalate", plural), why));
        }
    }
    confirm(index, user, namespace, &Rule::of_role(role))
        .map_err(|why| refused(plural, name, ("escalate", plural), &why))
}

/// A 403 response for an object. It names the verb and the resource of the permission that would allow the write.
fn refused(plural: &str, name: &str, (verb, resource): (&str, &str), why: &str) -> Status {
    Status::forbidden(GROUP, plural, name, why).missing_permission(verb, GROUP, resource)
}

fn check_binding(index: &Index, user: &User, plural: &str, binding: &Value) -> Result<(), Status> {
    let (namespace, name) = (access::namespace(binding), access::name(binding));
    let role = RoleRef::read(binding);
    if index.grant(user, &rbac_attributes("bind", role.plural(), namespace, &role.name)).is_some() {
        return Ok(());
    }
    let Some(rules) = index.role(namespace, &role) else {
        return Err(Status::not_found(GROUP, role.plural(), &role.name));
    };
    confirm(index, user, namespace, rules).map_err(|why| refused(plural, name, ("bind", role.plural()), &why))
}

/// Refuses with a list of the rules that the user lacks.
fn confirm(index: &Index, user: &User, namespace: &str, wanted: &[Rule]) -> Result<(), String> {
    let mut held: Vec<&Rule> = index.rules_of(user, namespace).collect();
    // A rule that allows everything has the fewest words, so compare short rules first.
    held.sort_by_key(|rule| rule.words());
    let work = Work::bounded();
    let lacking: Vec<Rule> = missing_within(&held, wanted, &work).take(TOLD_MAX + 1).collect();
    if work.is_spent() {
        return Err("the rules name too many verbs, groups, resources and names to compare all of them with the permissions held: \
                    write fewer in each, or `*`"
            .to_owned());
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let is_all = lacking.len() <= TOLD_MAX;
    let described: BTreeSet<String> = compact(lacking).iter().map(Rule::describe).collect();
    let mut described: Vec<String> = described.into_iter().collect();
    if !is_all {
        described.push("and more".to_owned());
    }
    let mut why = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        quoted(&user.groups),
        described.join("\n")
    );
    let unresolved = index.missing_roles(user, namespace);
    if !unresolved.is_empty() {
        why.push_str(&format!("; resolution errors: [{}]", unresolved.join(" ")));
    }
    Err(why)
}

fn everything() -> Vec<Rule> {
    let all = || vec!["*".to_owned()];
    vec![
        Rule { verbs: all(), groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), urls: all(), ..Rule::default() },
    ]
}

fn rbac_attributes(verb: &str, plural: &str, namespace: &str, name: &str) -> Attributes {
    Attributes {
        verb: verb.to_owned(),
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        resource: plural.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Attributes::default()
    }
}

/// Whether the update changes only what the garbage collector changes.
fn only_collected(old: &Value, new: &Value) -> bool {
    const COLLECTED: [&str; 4] = ["ownerReferences", "finalizers", "managedFields", "resourceVersion"];
    let stripped = |object: &Value| {
        let mut object = object.clone();
        for field in COLLECTED {
            object.cut(&["metadata", field]);
        }
        object
    };
    stripped(old) == stripped(new)
}
