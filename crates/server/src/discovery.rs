//! Discovery documents, plain and aggregated, as pure functions of the table of kinds.

use object::kind::Subresource;
use object::{Kind, Kinds, Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A document and its media type, by which clients recognize the aggregated form.
#[derive(Debug)]
pub struct Document {
    pub value: Value,
    pub content_type: &'static str,
}

/// The forms of discovery at `/api` and `/apis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// A list of group versions, each with its own document.
    Plain,
    /// One document with all groups and resources, `apidiscovery.k8s.io/v2`.
    Aggregated,
    /// The same in v2beta1, for clients before 1.30.
    AggregatedBeta,
}

impl Form {
    /// The first supported form in an `Accept` header.
    pub fn choose(accept: &str) -> Form {
        accept.split(',').find_map(Form::of_clause).unwrap_or(Form::Plain)
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Form::Plain => "application/json",
            Form::Aggregated => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            Form::AggregatedBeta => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        }
    }

    fn of_clause(clause: &str) -> Option<Form> {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next().unwrap_or("");
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        let get = |key: &str| parameters.get(key).copied();
        match (media, get("g"), get("v"), get("as")) {
            ("application/json" | "*/*" | "application/*", None, None, None) => Some(Form::Plain),
            ("application/json", Some("apidiscovery.k8s.io"), Some("v2"), Some("APIGroupDiscoveryList")) => {
                Some(Form::Aggregated)
            }
            ("application/json", Some("apidiscovery.k8s.io"), Some("v2beta1"), Some("APIGroupDiscoveryList")) => {
                Some(Form::AggregatedBeta)
            }
            _ => None,
        }
    }
}

/// `/api`: the core group. `address` is the address at which clients reach this server (`127.0.0.1:6443`).
pub fn api(kinds: &Kinds, form: Form, address: &str) -> Document {
    let groups = groups(kinds);
    let core: Vec<&Group<'_>> = groups.iter().filter(|group| group.name.is_empty()).collect();
    let value = match form {
        Form::Plain => {
            let versions: Vec<&str> =
                core.iter().flat_map(|group| group.versions.iter().map(|(name, _)| *name)).collect();
            json!({
                "kind": "APIVersions",
                "versions": versions,
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
            })
        }
        _ => aggregated(&core, form),
    };
    Document { value, content_type: form.content_type() }
}

/// `/apis`: all groups but the core group.
pub fn apis(kinds: &Kinds, form: Form) -> Document {
    let groups = groups(kinds);
    let named: Vec<&Group<'_>> = groups.iter().filter(|group| !group.name.is_empty()).collect();
    let value = match form {
        Form::Plain => {
            let groups: Vec<Value> = named.iter().map(|group| group_members(group)).collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        }
        _ => aggregated(&named, form),
    };
    Document { value, content_type: form.content_type() }
}

/// `/apis/<group>`.
pub fn group(kinds: &Kinds, name: &str) -> Option<Value> {
    let groups = groups(kinds);
    let found = groups.iter().find(|group| group.name == name && !name.is_empty())?;
    let mut value = group_members(found);
    value["kind"] = json!("APIGroup");
    value["apiVersion"] = json!("v1");
    Some(value)
}

/// `/api/v1` (with the empty group) and `/apis/<group>/<version>`.
pub fn resources(kinds: &Kinds, group: &str, version: &str) -> Option<Value> {
    let groups = groups(kinds);
    let found = groups.iter().find(|found| found.name == group)?;
    let (_, rows) = found.versions.iter().find(|(name, _)| *name == version)?;
    let resources: Vec<Value> = rows.iter().flat_map(|kind| plain_resources(kind)).collect();
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": resources,
    }))
}

/// A group with its versions, the preferred one first.
struct Group<'a> {
    name: &'a str,
    versions: Vec<(&'a str, Vec<&'a Kind>)>,
}

/// All groups in upstream's order. Clients resolve a short name to the first group that has it.
fn groups(kinds: &Kinds) -> Vec<Group<'_>> {
    const ORDER: [&str; 11] = [
        "",
        "apps",
        "events.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "policy",
        "rbac.authorization.k8s.io",
        "storage.k8s.io",
        "apiextensions.k8s.io",
        "coordination.k8s.io",
    ];
    let mut found: BTreeMap<&str, BTreeMap<&str, Vec<&Kind>>> = BTreeMap::new();
    for kind in kinds.iter() {
        found.entry(&kind.group).or_default().entry(&kind.version).or_default().push(kind);
    }
    let mut groups: Vec<Group<'_>> = found
        .into_iter()
        .map(|(name, versions)| {
            let mut versions: Vec<_> = versions.into_iter().collect();
            versions.sort_by_key(|(version, _)| rank(version));
            Group { name, versions }
        })
        .collect();
    groups.sort_by_key(|group| ORDER.iter().position(|known| *known == group.name).unwrap_or(ORDER.len()));
    groups
}

/// Sort key: newest and most stable versions first (v2, v1, v1beta2, v1beta1, v1alpha1), then other names
/// alphabetically.
fn rank(version: &str) -> (u8, Reverse<(u64, u64)>, &str) {
    let parse = || -> Option<(u8, u64, u64)> {
        let rest = version.strip_prefix('v')?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let major: u64 = rest[..digits].parse().ok()?;
        let rest = &rest[digits..];
        if rest.is_empty() {
            return Some((0, major, 0));
        }
        let (stage, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
            (Some(minor), _) => (1, minor),
            (_, Some(minor)) => (2, minor),
            _ => return None,
        };
        Some((stage, major, minor.parse().ok()?))
    };
    match parse() {
        Some((stage, major, minor)) => (stage, Reverse((major, minor)), ""),
        None => (3, Reverse((0, 0)), version),
    }
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn group_members(group: &Group<'_>) -> Value {
    let version = |name: &str| json!({ "groupVersion": group_version(group.name, name), "version": name });
    let versions: Vec<Value> = group.versions.iter().map(|(name, _)| version(name)).collect();
    json!({ "name": group.name, "versions": versions, "preferredVersion": versions[0] })
}

fn verbs(kind: &Kind) -> &'static [&'static str] {
    if kind.stored {
        &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    } else {
        &["create"]
    }
}

/// The verbs of a subresource, and group, version and kind of its object if they differ from the parent's.
fn subresource(sub: &Subresource) -> (&'static [&'static str], Option<[&'static str; 3]>) {
    match sub {
        Subresource::Status => (&["get", "patch", "update"], None),
        Subresource::Scale { .. } => (&["get", "patch", "update"], Some(["autoscaling", "v1", "Scale"])),
        Subresource::Binding => (&["create"], Some(["", "v1", "Binding"])),
        Subresource::Eviction => (&["create"], Some(["policy", "v1", "Eviction"])),
        Subresource::Token => (&["create"], Some(["authentication.k8s.io", "v1", "TokenRequest"])),
        Subresource::Finalize => (&["update"], None),
    }
}

fn sorted(kind: &Kind) -> Vec<&Subresource> {
    let mut subs: Vec<&Subresource> = kind.subresources.iter().collect();
    subs.sort_by_key(|sub| sub.name());
    subs
}

fn plain_resources(kind: &Kind) -> Vec<Value> {
    let mut whole = json!({
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": verbs(kind),
    });
    add_names(&mut whole, kind);
    let subs = sorted(kind).into_iter().map(|sub| {
        let (verbs, other) = subresource(sub);
        let mut value = json!({
            "name": format!("{}/{}", kind.plural, sub.name()),
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": verbs,
        });
        if let Some([group, version, other_kind]) = other {
            value["kind"] = json!(other_kind);
            if group != kind.group || version != kind.version {
                value["group"] = json!(group);
                value["version"] = json!(version);
            }
        }
        value
    });
    std::iter::once(whole).chain(subs).collect()
}

fn add_names(value: &mut Value, kind: &Kind) {
    if !kind.short_names.is_empty() {
        value["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        value["categories"] = json!(kind.categories);
    }
}

fn aggregated(groups: &[&Group<'_>], form: Form) -> Value {
    let items: Vec<Value> = groups
        .iter()
        .map(|group| {
            let metadata = if group.name.is_empty() { json!({}) } else { json!({ "name": group.name }) };
            let versions: Vec<Value> = group
                .versions
                .iter()
                .map(|(name, rows)| {
                    let resources: Vec<Value> = rows.iter().map(|kind| aggregated_resource(kind)).collect();
                    json!({ "version": name, "freshness": "Current", "resources": resources })
                })
                .collect();
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    let version = if form == Form::AggregatedBeta { "v2beta1" } else { "v2" };
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_resource(kind: &Kind) -> Value {
    let own = [&*kind.group, &*kind.version, &*kind.kind];
    let response = |[group, version, kind]: [&str; 3]| json!({ "group": group, "version": version, "kind": kind });
    let mut value = json!({
        "resource": kind.plural,
        "responseKind": response(own),
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": verbs(kind),
    });
    add_names(&mut value, kind);
    if !kind.subresources.is_empty() {
        let subs = sorted(kind).into_iter().map(|sub| {
            let (verbs, other) = subresource(sub);
            json!({ "subresource": sub.name(), "responseKind": response(other.unwrap_or(own)), "verbs": verbs })
        });
        value["subresources"] = subs.collect();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::kind::Plain;
    use std::sync::Arc;

    fn row(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> Kind {
        Kind {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            plural: plural.into(),
            singular: kind.to_lowercase().into(),
            short_names: vec![],
            categories: vec![],
            namespaced: true,
            stored: true,
            subresources: vec![],
            storage: plural.into(),
            schema: None,
            custom: false,
            edition: None,
            openapi: None,
            list: None,
            rules: Arc::new(Plain),
        }
    }

    fn some_kinds() -> Kinds {
        let mut kinds = Kinds::default();
        let scale = Subresource::Scale { spec_replicas: String::new(), status_replicas: String::new(), selector: None };
        kinds.insert(Kind {
            subresources: vec![Subresource::Status, Subresource::Eviction, Subresource::Binding],
            short_names: vec!["po".into()],
            categories: vec!["all".into()],
            ..row("", "v1", "Pod", "pods")
        });
        kinds.insert(Kind {
            subresources: vec![Subresource::Token],
            ..row("", "v1", "ServiceAccount", "serviceaccounts")
        });
        kinds.insert(Kind {
            subresources: vec![scale, Subresource::Status],
            ..row("apps", "v1", "StatefulSet", "statefulsets")
        });
        kinds.insert(Kind {
            namespaced: false,
            stored: false,
            ..row("authentication.k8s.io", "v1", "TokenReview", "tokenreviews")
        });
        for version in ["v1alpha1", "v1beta2", "v1", "v2", "v1beta10", "zeta"] {
            kinds.insert(row("example.com", version, "Backup", "backups"));
        }
        kinds.insert(row("coordination.k8s.io", "v1", "Lease", "leases"));
        kinds
    }

    #[test]
    fn the_accept_header_chooses_the_form() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        let cases = [
            ("", Form::Plain),
            ("*/*", Form::Plain),
            ("application/json, */*", Form::Plain),
            ("application/vnd.kubernetes.protobuf", Form::Plain),
            (v2, Form::Aggregated),
            (beta, Form::AggregatedBeta),
            ("application/json;as=Unknown;g=x;v=v1,application/json", Form::Plain),
        ];
        for (accept, want) in cases {
            assert_eq!(Form::choose(accept), want, "{accept}");
        }
        assert_eq!(Form::choose(&format!("{v2},{beta},application/json")), Form::Aggregated);
        assert_eq!(Form::choose(&format!("{beta}, application/json")), Form::AggregatedBeta);
        assert_eq!(Form::choose(&format!("application/json,{v2}")), Form::Plain);
    }

    #[test]
    fn groups_and_versions_come_in_the_expected_order() {
        let list = apis(&some_kinds(), Form::Plain).value;
        let names: Vec<&str> = list["groups"].as_array().unwrap().iter().filter_map(|g| g["name"].as_str()).collect();
        assert_eq!(names, ["apps", "authentication.k8s.io", "coordination.k8s.io", "example.com"]);
        let backup = group(&some_kinds(), "example.com").unwrap();
        let versions: Vec<&str> =
            backup["versions"].as_array().unwrap().iter().filter_map(|v| v["version"].as_str()).collect();
        assert_eq!(versions, ["v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "zeta"]);
        assert_eq!(backup["preferredVersion"]["groupVersion"], "example.com/v2");
        assert_eq!(backup["kind"], "APIGroup");
        assert!(group(&some_kinds(), "").is_none() && group(&some_kinds(), "nope").is_none());
        assert_eq!(api(&some_kinds(), Form::Plain, "127.0.0.1:1").value["versions"], json!(["v1"]));
    }

    #[test]
    fn resources_list_kinds_and_subresources() {
        let list = resources(&some_kinds(), "", "v1").unwrap();
        let names: Vec<&str> =
            list["resources"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
        assert_eq!(
            names,
            ["pods", "pods/binding", "pods/eviction", "pods/status", "serviceaccounts", "serviceaccounts/token"]
        );
        assert_eq!(list["groupVersion"], "v1");
        let pods = &list["resources"][0];
        assert_eq!(pods["shortNames"], json!(["po"]));
        assert_eq!(pods["categories"], json!(["all"]));
        assert_eq!(pods["singularName"], "pod");
        let eviction = json!({
            "name": "pods/eviction", "singularName": "", "namespaced": true, "group": "policy", "version": "v1",
            "kind": "Eviction", "verbs": ["create"],
        });
        assert_eq!(list["resources"][2], eviction);
        assert!(list["resources"][1].get("group").is_none(), "a Binding has the same group");
        let reviews = resources(&some_kinds(), "authentication.k8s.io", "v1").unwrap();
        assert_eq!(reviews["resources"][0]["verbs"], json!(["create"]));
        assert!(resources(&some_kinds(), "apps", "v2").is_none());
    }

    #[test]
    fn aggregated_discovery_says_the_same_in_one_document() {
        let kinds = some_kinds();
        let document = apis(&kinds, Form::Aggregated);
        assert!(document.content_type.contains("v=v2;"));
        assert_eq!(document.value["apiVersion"], "apidiscovery.k8s.io/v2");
        let sets = &document.value["items"][0]["versions"][0]["resources"][0];
        let want = json!({
            "resource": "statefulsets",
            "responseKind": {"group": "apps", "version": "v1", "kind": "StatefulSet"},
            "scope": "Namespaced",
            "singularResource": "statefulset",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "subresources": [
                {"subresource": "scale", "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}, "verbs": ["get", "patch", "update"]},
                {"subresource": "status", "responseKind": {"group": "apps", "version": "v1", "kind": "StatefulSet"}, "verbs": ["get", "patch", "update"]},
            ],
        });
        assert_eq!(*sets, want);
        let core = api(&kinds, Form::AggregatedBeta, "").value;
        assert_eq!(core["apiVersion"], "apidiscovery.k8s.io/v2beta1");
        assert_eq!(core["items"][0]["metadata"], json!({}));
        assert_eq!(core["items"].as_array().map(Vec::len), Some(1));
    }
}
