//! Validation of `metadata`: names, labels, annotations, owner references, finalizers, and immutable fields.

use crate::access::{Access, terminating};
use crate::field::{Errors, Path};
use crate::kind::{Kind, NameRule};
use crate::name;
use crate::{Map, Value};

const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;
const MANAGER_BYTES_MAX: usize = 128;
const SUBRESOURCE_BYTES_MAX: usize = 256;
/// Kubernetes' own finalizers, which need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Validates the metadata of a new object. A generated name was set before.
pub fn validate_create(object: &Value, kind: &Kind, errors: &mut Errors) {
    validate(object, kind, kind.rules.name_rule(), errors);
}

/// Validates the metadata of an update. The server compares resource versions.
pub fn validate_update(new: &Value, old: &Value, kind: &Kind, errors: &mut Errors) {
    // A stored name may violate newer rules. It is immutable, so it only has to be a valid path segment.
    validate(new, kind, NameRule::PathSegment, errors);
    let path = Path::new("metadata");
    let (new, old_meta) = (member(new, "metadata"), member(old, "metadata"));
    if terminating(old) {
        no_new_finalizers(new, old_meta, &path.child("finalizers"), errors);
    }
    let (generation, before) = (new.int(&["generation"]).unwrap_or(0), old_meta.int(&["generation"]).unwrap_or(0));
    if generation < before {
        errors.invalid(&path.child("generation"), generation, "must not be decremented");
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        validate_immutable(new.at(&[field]), old_meta.at(&[field]), &path.child(field), errors);
    }
}

/// Returns `Warning` headers about finalizers that another client may use by accident, because their names have no path (`/`).
pub fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let finalizers = ["metadata", "finalizers"];
    let before = old.map_or(&[][..], |old| old.items(&finalizers));
    let added = new.items(&finalizers).iter().filter(|finalizer| !before.contains(finalizer)).filter_map(Value::as_str);
    let vague = added.filter(|name| !name.contains('/') && !STANDARD_FINALIZERS.contains(name));
    let warning = |name: &str| {
        format!(
            "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name including a path (/) to avoid accidental \
             conflicts with other finalizer writers"
        )
    };
    vague.map(warning).collect()
}

/// Reports `field is immutable` if the values differ. Absent and empty text are equal.
pub fn validate_immutable(new: Option<&Value>, old: Option<&Value>, path: &Path, errors: &mut Errors) {
    let set = |value: &&Value| value.as_str() != Some("");
    if new.filter(set) != old.filter(set) {
        errors.invalid(path, new.cloned().unwrap_or(Value::Null), "field is immutable");
    }
}

/// Validates a map of labels at `path`.
pub fn validate_labels(labels: &Value, path: &Path, errors: &mut Errors) {
    for (key, value) in labels.members(&[]) {
        invalid_for_each(name::qualified(key), path, key, errors);
        let value = value.as_str().unwrap_or("");
        invalid_for_each(name::label_value(value), path, value, errors);
    }
}

/// Validates a map of annotations at `path`.
pub fn validate_annotations(annotations: &Value, path: &Path, errors: &mut Errors) {
    let annotations = annotations.members(&[]);
    for key in annotations.keys() {
        // Annotation keys have the form of label keys, but upper case is allowed.
        invalid_for_each(name::qualified(&key.to_lowercase()), path, key, errors);
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > ANNOTATIONS_BYTES_MAX {
        errors.too_long(path, ANNOTATIONS_BYTES_MAX);
    }
}

/// Validates a `LabelSelector`. An absent one (null) is valid.
pub fn validate_label_selector(selector: &Value, path: &Path, errors: &mut Errors) {
    validate_labels(member(selector, "matchLabels"), &path.child("matchLabels"), errors);
    for (index, expression) in selector.items(&["matchExpressions"]).iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = expression.items(&["values"]);
        match expression.text(&["operator"]) {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.forbidden(&path.child("values"), why);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        let key = expression.text(&["key"]);
        invalid_for_each(name::qualified(key), &path.child("key"), key, errors);
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or("");
            invalid_for_each(name::label_value(value), &path.child("values").index(index), value, errors);
        }
    }
}

/// Adds one `Invalid value` error per message.
pub(crate) fn invalid_for_each(why: Vec<String>, path: &Path, value: &str, errors: &mut Errors) {
    for sentence in why {
        errors.invalid(path, value, sentence);
    }
}

/// Returns a member of an object, or null.
pub(crate) fn member<'a>(object: &'a Value, key: &str) -> &'a Value {
    object.get(key).unwrap_or(&Value::Null)
}

fn validate(object: &Value, kind: &Kind, rule: NameRule, errors: &mut Errors) {
    let path = Path::new("metadata");
    let meta = member(object, "metadata");
    validate_names(meta, rule, &path, errors);
    validate_namespace(meta.text(&["namespace"]), kind.namespaced, &path.child("namespace"), errors);
    let generation = meta.int(&["generation"]).unwrap_or(0);
    if generation < 0 {
        errors.invalid(&path.child("generation"), generation, "must be greater than or equal to 0");
    }
    validate_labels(member(meta, "labels"), &path.child("labels"), errors);
    validate_annotations(member(meta, "annotations"), &path.child("annotations"), errors);
    validate_owners(meta.items(&["ownerReferences"]), &path.child("ownerReferences"), errors);
    validate_finalizers(meta.items(&["finalizers"]), !kind.custom, &path.child("finalizers"), errors);
    validate_managed_fields(meta.items(&["managedFields"]), &path.child("managedFields"), errors);
}

fn validate_names(meta: &Value, rule: NameRule, path: &Path, errors: &mut Errors) {
    let prefix = meta.text(&["generateName"]);
    if !prefix.is_empty() {
        invalid_for_each(name_prefix(rule, prefix), &path.child("generateName"), prefix, errors);
    }
    match meta.text(&["name"]) {
        "" => errors.required(&path.child("name"), "name or generateName is required"),
        text => invalid_for_each(name::by_rule(rule, text), &path.child("name"), text, errors),
    }
}

/// Validates the prefix of a generated name. It may end with a dash, because random characters follow.
fn name_prefix(rule: NameRule, prefix: &str) -> Vec<String> {
    match (rule, prefix) {
        (NameRule::PathSegment, "." | "..") => Vec::new(),
        (NameRule::PathSegment, _) => name::path_segment(prefix),
        _ => match prefix.strip_suffix('-') {
            Some(stem) if !stem.is_empty() => name::by_rule(rule, &format!("{}a", stem.trim_end_matches('-'))),
            _ => name::by_rule(rule, prefix),
        },
    }
}

fn validate_namespace(namespace: &str, namespaced: bool, path: &Path, errors: &mut Errors) {
    match (namespaced, namespace) {
        (true, "") => errors.required(path, ""),
        (true, namespace) => invalid_for_each(name::label(namespace), path, namespace, errors),
        (false, "") => {}
        (false, _) => errors.forbidden(path, "not allowed on this type"),
    }
}

fn validate_owners(owners: &[Value], path: &Path, errors: &mut Errors) {
    for owner in owners {
        validate_owner(owner, path, errors);
    }
    let named = |owner: &Value| format!("{}/{}", owner.text(&["kind"]), owner.text(&["name"]));
    let mut controllers = owners.iter().filter(|owner| owner.flag(&["controller"])).map(named);
    // Reported once, for the first two, because the message shows the whole list.
    if let (Some(first), Some(second)) = (controllers.next(), controllers.next()) {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        errors.invalid(path, Value::from(owners.to_vec()), why);
    }
}

/// Validates an owner reference. As upstream's, the paths have no index.
fn validate_owner(owner: &Value, path: &Path, errors: &mut Errors) {
    let api_version = owner.text(&["apiVersion"]);
    let version = match api_version.split('/').collect::<Vec<_>>()[..] {
        [version] | [_, version] => version,
        _ => "",
    };
    if version.is_empty() {
        errors.invalid(&path.child("apiVersion"), api_version, "version must not be empty");
    }
    for field in ["kind", "name", "uid"] {
        if owner.text(&[field]).is_empty() {
            errors.invalid(&path.child(field), "", "must not be empty");
        }
    }
    if api_version == "v1" && owner.text(&["kind"]) == "Event" {
        errors.invalid(path, owner.clone(), "/v1, Kind=Event is disallowed from being an owner");
    }
}

/// Validates finalizers. Custom resources may use finalizers without a domain; built-in kinds may not.
fn validate_finalizers(finalizers: &[Value], builtin: bool, path: &Path, errors: &mut Errors) {
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    for finalizer in finalizers {
        let finalizer = finalizer.as_str().unwrap_or("");
        invalid_for_each(name::qualified(finalizer), path, finalizer, errors);
    }
    if has("orphan") && has("foregroundDeletion") {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.invalid(path, Value::from(finalizers.to_vec()), why);
    }
    if builtin {
        for (index, finalizer) in finalizers.iter().enumerate() {
            validate_finalizer_is_known(finalizer.as_str().unwrap_or(""), &path.index(index), errors);
        }
    }
}

/// Refuses finalizers without a domain that are not Kubernetes' own.
pub(crate) fn validate_finalizer_is_known(finalizer: &str, path: &Path, errors: &mut Errors) {
    if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        errors.invalid(path, finalizer, why);
    }
}

fn no_new_finalizers(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let before = old.items(&["finalizers"]);
    let added = new.items(&["finalizers"]).iter().filter(|finalizer| !before.contains(finalizer));
    let mut added: Vec<&str> = added.filter_map(Value::as_str).collect();
    added.sort_unstable();
    added.dedup();
    if !added.is_empty() {
        let list: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
        let why = "no new finalizers can be added if the object is being deleted, found new finalizers";
        errors.forbidden(path, format!("{why} []string{{{}}}", list.join(", ")));
    }
}

fn validate_managed_fields(entries: &[Value], path: &Path, errors: &mut Errors) {
    for (index, entry) in entries.iter().enumerate() {
        let path = path.index(index);
        let operation = entry.text(&["operation"]);
        if !matches!(operation, "Apply" | "Update") {
            errors.invalid(&path.child("operation"), operation, "must be `Apply` or `Update`");
        }
        let fields_type = entry.text(&["fieldsType"]);
        if !matches!(fields_type, "" | "FieldsV1") {
            errors.invalid(&path.child("fieldsType"), fields_type, "must be `FieldsV1`");
        }
        validate_field_manager(entry.text(&["manager"]), &path.child("manager"), errors);
        if entry.text(&["subresource"]).len() > SUBRESOURCE_BYTES_MAX {
            errors.too_long(&path.child("subresource"), SUBRESOURCE_BYTES_MAX);
        }
    }
}

/// Validates the name of a field manager, in an object or in a query.
pub fn validate_field_manager(manager: &str, path: &Path, errors: &mut Errors) {
    if manager.len() > MANAGER_BYTES_MAX {
        errors.too_long(path, MANAGER_BYTES_MAX);
    }
    for (at, char) in manager.char_indices().filter(|(_, char)| char.is_control()) {
        errors.invalid(path, manager, format!("invalid character U+{:04X} (at position {at})", char as u32));
    }
}

/// The labels of an object.
pub fn labels(object: &Value) -> &Map {
    object.members(&["metadata", "labels"])
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::any_json;
