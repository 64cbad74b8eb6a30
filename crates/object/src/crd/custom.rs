//! Custom resources: the kinds that a definition creates, and the rules for their objects.

use super::columns::Columns;
use super::node::Node;
use super::{arena, cel, defaulting, names, validation};
use crate::Value;
use crate::access::{Access, uid};
use crate::field::{ErrorKind, Errors, Path};
use crate::kind::{Ctx, Edition, Kind, Rules, Subresource};
use crate::status::Status;
use crate::table::Column;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns the kinds that a definition serves, one per served version; none before its names are accepted. A custom
/// kind never replaces a built-in kind, whatever the status says.
pub fn kinds_of(definition: &Value) -> Vec<Kind> {
    kinds_where(definition, |version| version.flag(&["served"]))
}

/// Returns the kind in which a definition's objects are stored, even if that version is not served.
pub fn stored_kind_of(definition: &Value) -> Option<Kind> {
    kinds_where(definition, |version| version.flag(&["storage"])).pop()
}

fn kinds_where(definition: &Value, wanted: impl Fn(&Value) -> bool) -> Vec<Kind> {
    let plural = definition.text(&["status", "acceptedNames", "plural"]);
    let is_builtin = names::is_builtin(definition.text(&["spec", "group"]), plural);
    if is_builtin || !names::condition_is(definition, "Established", "True") {
        return Vec::new();
    }
    let versions = definition.items(&["spec", "versions"]);
    let storage =
        versions.iter().find(|version| version.flag(&["storage"])).map_or("", |version| version.text(&["name"]));
    let versions = versions.iter().filter(|version| wanted(version));
    versions.map(|version| kind_of(definition, version, storage)).collect()
}

fn kind_of(definition: &Value, version: &Value, storage: &str) -> Kind {
    let text = |path: &[&str]| -> Cow<'static, str> { definition.text(path).to_owned().into() };
    let list = |path: &[&str]| -> Vec<Cow<'static, str>> {
        definition.items(path).iter().filter_map(Value::as_str).map(|name| name.to_owned().into()).collect()
    };
    let (group, plural) =
        (definition.text(&["spec", "group"]), definition.text(&["status", "acceptedNames", "plural"]));
    let rules = Custom::new(definition, version, storage);
    Kind {
        group: group.to_owned().into(),
        version: version.text(&["name"]).to_owned().into(),
        kind: text(&["status", "acceptedNames", "kind"]),
        plural: plural.to_owned().into(),
        singular: text(&["status", "acceptedNames", "singular"]),
        short_names: list(&["status", "acceptedNames", "shortNames"]),
        categories: list(&["status", "acceptedNames", "categories"]),
        namespaced: definition.text(&["spec", "scope"]) == "Namespaced",
        stored: true,
        subresources: subresources(version),
        storage: format!("{group}/{plural}").into(),
        schema: Some(arena::build(&rules.node)),
        custom: true,
        edition: Some(edition(definition)),
        openapi: Some(Arc::new(super::openapi(definition, version.text(&["name"])))),
        list: Some(text(&["status", "acceptedNames", "listKind"])),
        rules: Arc::new(rules),
    }
}

/// Returns the identity of the definition (uid and generation) that a kind was made from.
pub fn edition(definition: &Value) -> Edition {
    Edition {
        uid: uid(definition).to_owned(),
        generation: definition.int(&["metadata", "generation"]).unwrap_or_default(),
    }
}

fn subresources(version: &Value) -> Vec<Subresource> {
    let mut found = Vec::new();
    if version.has(&["subresources", "status"]) {
        found.push(Subresource::Status);
    }
    if let Some(scale) = version.at(&["subresources", "scale"]) {
        let path = |key: &str| scale.text(&[key]).trim_start_matches('.').to_owned();
        found.push(Subresource::Scale {
            spec_replicas: path("specReplicasPath"),
            status_replicas: path("statusReplicasPath"),
            selector: Some(path("labelSelectorPath")).filter(|path| !path.is_empty()),
        });
    }
    found
}

/// Rules for one version of a custom resource.
struct Custom {
    node: Node,
    columns: Columns,
    selectable: Vec<&'static str>,
    deprecation: Option<String>,
    api_version: String,
    stored_api_version: String,
    /// Whether objects may have been stored with another schema: then they are pruned and defaulted when read.
    may_be_old: bool,
}

impl Custom {
    fn new(definition: &Value, version: &Value, storage: &str) -> Custom {
        let (group, name) = (definition.text(&["spec", "group"]), version.text(&["name"]));
        let node = Node::parse(version.at(&["schema", "openAPIV3Schema"]).unwrap_or(&Value::Null));
        let selectable = version.items(&["selectableFields"]).iter();
        let deprecation = version.flag(&["deprecated"]).then(|| match version.text(&["deprecationWarning"]) {
            "" => format!("{group}/{name} {} is deprecated", definition.text(&["status", "acceptedNames", "kind"])),
            warning => warning.to_owned(),
        });
        Custom {
            columns: Columns::parse(version.items(&["additionalPrinterColumns"])),
            selectable: selectable.map(|field| intern(field.text(&["jsonPath"]).trim_start_matches('.'))).collect(),
            deprecation,
            api_version: format!("{group}/{name}"),
            stored_api_version: format!("{group}/{storage}"),
            may_be_old: node.has_defaults() && definition.int(&["metadata", "generation"]).unwrap_or(1) > 1,
            node,
        }
    }

    fn validate(&self, new: &Value, old: Option<&Value>, errors: &mut Errors) {
        let found = validation::validate(&self.node, new, old, &Path::default());
        let blocks = |kind: ErrorKind| {
            matches!(
                kind,
                ErrorKind::Required
                    | ErrorKind::NotSupported
                    | ErrorKind::TooLong
                    | ErrorKind::TooMany
                    | ErrorKind::TypeInvalid
            )
        };
        let blocks = found.leaves_out() || found.0.iter().any(|error| blocks(error.kind));
        errors.extend(found);
        if !self.node.has_rules {
        } else if blocks {
            errors.invalid(
                &Path::new(validation::NOWHERE),
                "null",
                "some validation rules were not checked because the object was invalid; correct the existing errors to \
                 complete validation",
            );
        } else {
            errors.extend(cel::validate(&self.node, new, old));
        }
    }
}

impl Rules for Custom {
    fn counts_generations(&self) -> bool {
        true
    }
    fn conform(&self, object: &mut Value) -> Option<Result<Vec<String>, Status>> {
        Some(defaulting::prune_object(&self.node, object))
    }
    fn deprecation(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        defaulting::fill(&self.node, object);
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        self.validate(object, None, errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        self.validate(new, Some(old), errors);
    }
    fn validate_status(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        self.validate(new, Some(old), errors);
    }
    fn columns(&self) -> &[Column] {
        &self.columns.headers
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        self.columns.cells(object, now)
    }
    fn converts(&self) -> bool {
        self.api_version != self.stored_api_version || self.may_be_old
    }
    fn to_stored(&self, object: &mut Value) {
        object.put(&["apiVersion"], self.stored_api_version.as_str());
    }
    fn from_stored(&self, object: &mut Value) {
        object.put(&["apiVersion"], self.api_version.as_str());
        // Stored metadata was validated when it was written.
        let _removed = defaulting::prune_object(&self.node, object);
        defaulting::fill(&self.node, object);
    }
    fn selectable_fields(&self) -> &[&str] {
        &self.selectable
    }
}

/// Selectable fields are returned as `&'static str`, so each distinct name is leaked once. There are few names, and
/// changed definitions mostly use the same ones.
fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(known) => known,
        None => {
            let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
            names.insert(kept);
            kept
        }
    }
}
