//! The operations of each kind, independent of the OpenAPI version.

use super::schemas;
use crate::kind::{Kind, Subresource};
use crate::{Value, json};

/// One operation on one path.
pub(super) struct Operation {
    pub path: String,
    pub method: &'static str,
    /// The value of `x-kubernetes-action`.
    pub action: &'static str,
    pub gvk: Value,
    pub id: String,
    pub description: String,
    pub tag: String,
    pub query: Vec<&'static Parameter>,
    /// Definition name of the request body.
    pub body: Option<String>,
    /// Definition name of the response.
    pub answer: String,
}

pub(super) struct Parameter {
    pub name: &'static str,
    /// `string`, `integer` or `boolean`.
    pub ty: &'static str,
    pub description: &'static str,
}

const fn text(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, ty: "string", description }
}
const fn flag(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, ty: "boolean", description }
}
const fn number(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, ty: "integer", description }
}

const LIST: &[Parameter] = &[
    flag("allowWatchBookmarks", "Asks for events of type BOOKMARK in a watch; servers may ignore it."),
    text("continue", "The token of the previous page: the list continues after it."),
    text("fieldSelector", "Restricts the list to objects whose fields match. Defaults to everything."),
    text("labelSelector", "Restricts the list to objects whose labels match. Defaults to everything."),
    number("limit", "The largest number of objects to return in one page."),
    text("resourceVersion", "Constrains the versions that a request may be served from."),
    text("resourceVersionMatch", "How resourceVersion is applied to a list."),
    flag("sendInitialEvents", "Starts a watch with synthetic events that bring it to the present state."),
    number("timeoutSeconds", "Ends a list or watch after this time, whatever happens in it."),
    flag("watch", "Watches for changes and returns them as a stream of events."),
];
const DRY_RUN: Parameter = text("dryRun", "With the value All, the request is processed without being persisted.");
const FIELD_MANAGER: Parameter = text("fieldManager", "A name for the actor that makes these changes.");
const FIELD_VALIDATION: Parameter = text(
    "fieldValidation",
    "What to do with unknown or duplicate fields: Ignore drops them, Warn sends a warning for each, Strict refuses the request.",
);
const WRITE: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
const PATCH: &[Parameter] = &[
    DRY_RUN,
    FIELD_MANAGER,
    FIELD_VALIDATION,
    flag("force", "Takes over fields that other managers own. Only for apply patches."),
];
const DELETE: &[Parameter] = &[
    DRY_RUN,
    number("gracePeriodSeconds", "The time before the object is deleted; zero deletes at once."),
    flag("orphanDependents", "Deprecated: use propagationPolicy."),
    text("propagationPolicy", "What happens to dependents: Orphan, Background or Foreground."),
];

const NAME: Parameter = text("name", "The name of the object.");
const NAMESPACE: Parameter = text("namespace", "The namespace of the object.");
const PRETTY: Parameter = text("pretty", "With the value true, the output is printed for people.");

/// Returns all operations of a kind.
pub(super) fn of(kind: &Kind) -> Vec<Operation> {
    let writer = Writer::new(kind);
    let mut out = Vec::new();
    if !kind.stored {
        out.push(writer.plain(&writer.collection, "post", "create", WRITE));
        return out;
    }
    if kind.namespaced {
        let mut list = writer.plain(&format!("{}/{}", writer.root, kind.plural), "get", "list", LIST);
        list.id = format!("list{}{}ForAllNamespaces", writer.group, kind.kind);
        out.push(list);
    }
    out.push(writer.plain(&writer.collection, "get", "list", LIST));
    out.push(writer.plain(&writer.collection, "post", "create", WRITE));
    out.push(writer.plain(&writer.collection, "delete", "deletecollection", DELETE));
    out.push(writer.plain(&writer.item, "get", "read", &[]));
    out.push(writer.plain(&writer.item, "put", "replace", WRITE));
    out.push(writer.plain(&writer.item, "patch", "patch", PATCH));
    out.push(writer.plain(&writer.item, "delete", "delete", DELETE));
    for sub in &kind.subresources {
        writer.subresource(sub, &mut out);
    }
    out
}

/// Returns the parameters that all operations of a path share; `query` formats one query parameter.
pub(super) fn path_item(path: &str, query: fn(&Parameter) -> Value) -> Value {
    let mut parameters: Vec<Value> = Vec::new();
    for parameter in [NAME, NAMESPACE] {
        if path.contains(&format!("{{{}}}", parameter.name)) {
            let mut written = query(&parameter);
            written["in"] = json!("path");
            written["required"] = json!(true);
            parameters.push(written);
        }
    }
    parameters.push(query(&PRETTY));
    json!({ "parameters": parameters })
}

/// Returns `{group, version, kind}` as the OpenAPI extensions write it.
pub(super) fn gvk(group: &str, version: &str, kind: &str) -> Value {
    json!({ "group": group, "version": version, "kind": kind })
}

/// Returns the tag that groups operations: `apps_v1`, `core_v1`.
fn tag(kind: &Kind) -> String {
    let group = match &*kind.group {
        "" => "core".to_owned(),
        group => group.trim_end_matches(".k8s.io").replace(['.', '-'], "_"),
    };
    format!("{group}_{}", kind.version)
}

struct Writer<'a> {
    kind: &'a Kind,
    /// `/apis/apps/v1`.
    root: String,
    collection: String,
    item: String,
    /// `AppsV1`.
    group: String,
    definition: String,
}

impl<'a> Writer<'a> {
    fn new(kind: &'a Kind) -> Writer<'a> {
        let root = if kind.group.is_empty() {
            format!("/api/{}", kind.version)
        } else {
            format!("/apis/{}/{}", kind.group, kind.version)
        };
        let inside = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{root}{inside}/{}", kind.plural);
        let item = format!("{collection}/{{name}}");
        let group = tag(kind).split('_').map(capital).collect();
        Writer { kind, root, collection, item, group, definition: schemas::name(kind) }
    }

    /// An operation on the objects of the kind itself.
    fn plain(&self, path: &str, method: &'static str, verb: &'static str, query: &'static [Parameter]) -> Operation {
        let kind = self.kind;
        let (action, collection) = match verb {
            "deletecollection" => ("deletecollection", "Collection"),
            "list" => ("list", ""),
            _ => (method, ""),
        };
        let verb_word = if verb == "deletecollection" { "delete" } else { verb };
        let namespaced = if kind.namespaced { "Namespaced" } else { "" };
        let mut query: Vec<&'static Parameter> = query.iter().collect();
        if verb == "deletecollection" {
            query.extend(LIST);
        }
        let body = match method {
            "post" | "put" => Some(self.definition.clone()),
            "patch" => Some(schemas::PATCH.to_owned()),
            "delete" => Some(schemas::DELETE_OPTIONS.to_owned()),
            _ => None,
        };
        let answer = match verb {
            "list" => format!("{}List", self.definition),
            "delete" | "deletecollection" => schemas::STATUS.to_owned(),
            _ => self.definition.clone(),
        };
        Operation {
            path: path.to_owned(),
            method,
            action,
            gvk: gvk(&kind.group, &kind.version, &kind.kind),
            id: format!("{verb_word}{}{collection}{namespaced}{}", self.group, kind.kind),
            description: describe(verb, &kind.kind, ""),
            tag: tag(kind),
            query,
            body,
            answer,
        }
    }

    fn subresource(&self, sub: &Subresource, out: &mut Vec<Operation>) {
        let (verbs, other): (&[(&'static str, &'static str)], Option<Other>) = match sub {
            Subresource::Status => (&[("get", "read"), ("put", "replace"), ("patch", "patch")], None),
            Subresource::Scale { .. } => {
                (&[("get", "read"), ("put", "replace"), ("patch", "patch")], Some(("autoscaling", "v1", "Scale")))
            }
            Subresource::Binding => (&[("post", "create")], Some(("", "v1", "Binding"))),
            Subresource::Eviction => (&[("post", "create")], Some(("policy", "v1", "Eviction"))),
            Subresource::Token => (&[("post", "create")], Some(("authentication.k8s.io", "v1", "TokenRequest"))),
            Subresource::Finalize => (&[("put", "replace")], None),
        };
        for (method, verb) in verbs {
            let query = match *method {
                "get" => &[],
                "patch" => PATCH,
                _ => WRITE,
            };
            let mut operation = self.plain(&format!("{}/{}", self.item, sub.name()), method, verb, query);
            operation.id.push_str(&capital(sub.name()));
            operation.description = describe(verb, &self.kind.kind, sub.name());
            if let Some((group, version, kind)) = other {
                operation.gvk = gvk(group, version, kind);
                operation.answer = schemas::builtin_name(group, version, kind);
                if *method != "patch" {
                    operation.body = operation.body.map(|_| operation.answer.clone());
                }
            }
            out.push(operation);
        }
    }
}

/// Group, version and kind of a subresource's body.
type Other = (&'static str, &'static str, &'static str);

fn describe(verb: &str, kind: &str, sub: &str) -> String {
    let of = if sub.is_empty() { String::new() } else { format!("{sub} of ") };
    match verb {
        "list" => format!("list or watch objects of kind {kind}"),
        "create" => format!("create {of}a {kind}"),
        "deletecollection" => format!("delete collection of {kind}"),
        "read" => format!("read {of}the specified {kind}"),
        "replace" => format!("replace {of}the specified {kind}"),
        "patch" => format!("partially update {of}the specified {kind}"),
        _ => format!("{verb} a {kind}"),
    }
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
