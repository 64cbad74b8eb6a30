//! Validation of CustomResourceDefinitions.

use super::node::Node;
use super::{paths, schema_check};
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::name as form;
use crate::{Value, json};
use std::collections::BTreeSet;

const SELECTABLE_MAX: usize = 8;
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 9] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password", "binary"];

/// Validates a definition. `old` is the stored definition, on update.
pub fn definition(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let path = Path::new("spec");
    let Some(spec) = object.at(&["spec"]) else {
        errors.required(&path, "");
        return;
    };
    let wanted_name = format!("{}.{}", spec.text(&["names", "plural"]), spec.text(&["group"]));
    if old.is_none() && name(object) != wanted_name {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.invalid(&Path::new("metadata").child("name"), name(object), detail);
    }
    group(spec, &path, errors);
    match spec.text(&["scope"]) {
        "" => errors.required(&path.child("scope"), ""),
        "Cluster" | "Namespaced" => {}
        other => errors.not_supported(&path.child("scope"), other, &["Cluster", "Namespaced"]),
    }
    versions(spec, old.and_then(|old| old.at(&["spec"])), &path, errors);
    let names_path = path.child("names");
    for field in ["plural", "singular", "kind", "listKind"] {
        if spec.text(&["names", field]).is_empty() {
            errors.required(&names_path.child(field), "");
        }
    }
    names(spec.at(&["names"]).unwrap_or(&Value::Null), &names_path, errors);
    conversion(spec, &path.child("conversion"), errors);
    if spec.flag(&["preserveUnknownFields"]) {
        errors.invalid(
            &path.child("preserveUnknownFields"),
            true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        );
    }
    approval(object, old, errors);
}

fn group(spec: &Value, path: &Path, errors: &mut Errors) {
    let group = spec.text(&["group"]);
    let path = path.child("group");
    let wrong = form::subdomain(group);
    if group.is_empty() {
        errors.required(&path, "");
    } else if !wrong.is_empty() {
        errors.invalid(&path, group, wrong.join(","));
    } else if !group.contains('.') {
        errors.invalid(&path, group, "should be a domain with at least one dot");
    }
}

/// Validates the form of the names in a spec or a status. Absent names are accepted here.
pub fn names(names: &Value, path: &Path, errors: &mut Errors) {
    for field in ["plural", "singular"] {
        let (text, wrong) = (names.text(&[field]), form::dns1035_label(names.text(&[field])));
        if !text.is_empty() && !wrong.is_empty() {
            errors.invalid(&path.child(field), text, wrong.join(","));
        }
    }
    for field in ["kind", "listKind"] {
        let text = names.text(&[field]);
        let wrong = form::dns1035_label(&text.to_lowercase());
        if !text.is_empty() && !wrong.is_empty() {
            let detail = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
            errors.invalid(&path.child(field), text, detail);
        }
    }
    for field in ["shortNames", "categories"] {
        for (index, short) in names.items(&[field]).iter().enumerate() {
            let wrong = form::dns1035_label(short.as_str().unwrap_or(""));
            if !wrong.is_empty() {
                errors.invalid(&path.child(field).index(index), short.clone(), wrong.join(","));
            }
        }
    }
    if !names.text(&["kind"]).is_empty() && names.text(&["kind"]) == names.text(&["listKind"]) {
        let detail = "kind and listKind may not be the same";
        errors.invalid(&path.child("listKind"), names.text(&["listKind"]), detail);
    }
}

/// Fields that are equal in all versions. Their errors are reported once, at the top level, as clients know from
/// `v1beta1`.
struct Shared {
    schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

fn versions(spec: &Value, old: Option<&Value>, path: &Path, errors: &mut Errors) {
    let versions = spec.items(&["versions"]);
    let all_alike = |key: &str| {
        let first = versions.first().and_then(|version| version.at(&[key]));
        first.is_some() && versions.iter().all(|version| version.at(&[key]) == first)
    };
    let shared = Shared {
        schema: all_alike("schema"),
        subresources: all_alike("subresources"),
        columns: all_alike("additionalPrinterColumns"),
        selectable: all_alike("selectableFields"),
    };
    let mut seen = BTreeSet::new();
    let mut unique = true;
    for (index, version) in versions.iter().enumerate() {
        let path_of_version = path.child("versions").index(index);
        let name = version.text(&["name"]);
        unique &= seen.insert(name);
        let wrong = form::dns1035_label(name);
        if !wrong.is_empty() {
            errors.invalid(&path_of_version.child("name"), name, wrong.join(","));
        }
        deprecation(version, &path_of_version, errors);
        if !version.has(&["schema", "openAPIV3Schema"]) {
            let path = path_of_version.child("schema").child("openAPIV3Schema");
            errors.required(&path, "schemas are required");
        }
        let at = |is_shared: bool, own: &str, top: &str| {
            if is_shared { path.child(top) } else { path_of_version.child(own) }
        };
        let is_told = |is_shared: bool| !is_shared || index == 0;
        if is_told(shared.schema) {
            schema(version, old, &at(shared.schema, "schema", "validation"), errors);
        }
        if is_told(shared.subresources) {
            scale(version, &at(shared.subresources, "subresources", "subresources"), errors);
        }
        if is_told(shared.columns) {
            let path = at(shared.columns, "additionalPrinterColumns", "additionalPrinterColumns");
            columns(version, &path, errors);
        }
        if is_told(shared.selectable) {
            selectable(version, &at(shared.selectable, "selectableFields", "selectableFields"), errors);
        }
    }
    let versions_path = path.child("versions");
    if !unique {
        errors.invalid(&versions_path, json!(versions), "must contain unique version names");
    }
    if versions.iter().filter(|version| version.flag(&["storage"])).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.invalid(&versions_path, json!(versions), detail);
    }
}

/// Validates a version's schema. An unchanged schema was validated before, so status writes do not compile it again.
fn schema(version: &Value, old: Option<&Value>, path: &Path, errors: &mut Errors) {
    let Some(schema) = version.at(&["schema", "openAPIV3Schema"]) else { return };
    let is_same =
        |old: &&Value| ["name", "schema", "subresources"].iter().all(|key| old.at(&[key]) == version.at(&[key]));
    if old.is_some_and(|old| old.items(&["versions"]).iter().any(|old| is_same(&old))) {
        return;
    }
    let has_status = version.has(&["subresources", "status"]);
    schema_check::check(schema, has_status, &path.child("openAPIV3Schema"), errors);
}

fn deprecation(version: &Value, path: &Path, errors: &mut Errors) {
    let Some(warning) = version.at(&["deprecationWarning"]).and_then(Value::as_str) else { return };
    let path = path.child("deprecationWarning");
    if !version.flag(&["deprecated"]) {
        errors.invalid(&path, warning, "can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        errors.invalid(&path, warning, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        errors.invalid(&path, warning, "must not be an empty string");
    }
    if let Some((index, _)) = warning.char_indices().find(|(_, character)| character.is_control()) {
        let detail =
            format!("must only contain printable UTF-8 characters; non-printable character found at index {index}");
        errors.invalid(&path, warning, detail);
    }
}

fn scale(version: &Value, path: &Path, errors: &mut Errors) {
    let Some(scale) = version.at(&["subresources", "scale"]) else { return };
    let fields = [
        ("specReplicasPath", &[".spec."][..], "should be a json path under .spec", true),
        ("statusReplicasPath", &[".status."][..], "should be a json path under .status", true),
        (
            "labelSelectorPath",
            &[".spec.", ".status."][..],
            "should be a json path under either .spec or .status",
            false,
        ),
    ];
    for (field, under, detail, is_required) in fields {
        let (text, path) = (scale.text(&[field]), path.child(&format!("scale.{field}")));
        if text.is_empty() {
            if is_required {
                errors.required(&path, "");
            }
        } else if simple_path(text, &path, errors) && !under.iter().any(|prefix| text.starts_with(prefix)) {
            errors.invalid(&path, text, detail);
        }
    }
}

fn simple_path(text: &str, path: &Path, errors: &mut Errors) -> bool {
    let is_simple = text.starts_with('.');
    if !is_simple {
        errors.invalid(path, text, "must be a simple json path starting with .");
    }
    is_simple
}

fn columns(version: &Value, path: &Path, errors: &mut Errors) {
    for (index, column) in version.items(&["additionalPrinterColumns"]).iter().enumerate() {
        let path = path.index(index);
        if column.text(&["name"]).is_empty() {
            errors.required(&path.child("name"), "");
        }
        let one_of = |allowed: &[&str]| format!("must be one of {}", allowed.join(","));
        match column.text(&["type"]) {
            "" => errors.required(&path.child("type"), one_of(&COLUMN_TYPES)),
            ty if !COLUMN_TYPES.contains(&ty) => errors.invalid(&path.child("type"), ty, one_of(&COLUMN_TYPES)),
            _ => {}
        }
        let format = column.text(&["format"]);
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            errors.invalid(&path.child("format"), format, one_of(&COLUMN_FORMATS));
        }
        match column.text(&["jsonPath"]) {
            "" => errors.required(&path.child("JSONPath"), ""),
            text => drop(simple_path(text, &path.child("JSONPath"), errors)),
        }
    }
}

fn selectable(version: &Value, path: &Path, errors: &mut Errors) {
    let fields = version.items(&["selectableFields"]);
    if fields.is_empty() {
        return;
    }
    let node = Node::parse(version.at(&["schema", "openAPIV3Schema"]).unwrap_or(&Value::Null));
    let mut seen = BTreeSet::new();
    for (index, field) in fields.iter().enumerate() {
        let path = path.index(index).child("jsonPath");
        let text = field.text(&["jsonPath"]);
        if text.is_empty() {
            errors.required(&path, "");
            continue;
        }
        let (shown, found) = match paths::resolve(text, &node, false) {
            Ok(found) => found,
            Err(error) => {
                errors.invalid(&path, text, format!("is an invalid path: {error}"));
                continue;
            }
        };
        if shown == "metadata" || shown.starts_with("metadata.") {
            errors.invalid(&path, text, "must not point to fields in metadata");
        }
        if !matches!(found.ty.map(super::node::Ty::name), Some("string" | "boolean" | "integer")) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                          formats are allowed.";
            errors.invalid(&path, text, detail);
        }
        if !seen.insert(shown) {
            errors.duplicate(&path, text);
        }
    }
    if seen.len() > SELECTABLE_MAX {
        errors.too_many(path, seen.len(), SELECTABLE_MAX);
    }
}

fn conversion(spec: &Value, path: &Path, errors: &mut Errors) {
    match spec.text(&["conversion", "strategy"]) {
        "" => errors.required(&path.child("strategy"), ""),
        "None" => {
            if spec.has(&["conversion", "webhook"]) {
                let detail = "should not be set when strategy is not set to Webhook";
                errors.forbidden(&path.child("webhook"), detail);
            }
        }
        "Webhook" => errors.forbidden(
            &path.child("strategy"),
            "conversion webhooks are not supported by this server: use strategy None and one schema for all versions",
        ),
        other => errors.not_supported(&path.child("strategy"), other, &["None", "Webhook"]),
    }
}

/// Groups of the Kubernetes community need an approval annotation, or an annotation that says they are unapproved.
fn approval(object: &Value, old: Option<&Value>, errors: &mut Errors) {
    const ANNOTATION: &str = "api-approved.kubernetes.io";
    let group = object.text(&["spec", "group"]);
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    let value = object.text(&["metadata", "annotations", ANNOTATION]);
    let unchanged = old.is_some_and(|old| old.text(&["metadata", "annotations", ANNOTATION]) == value);
    if !is_protected || unchanged {
        return;
    }
    let path = Path::new("metadata").child("annotations").key(ANNOTATION);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    if value.is_empty() {
        errors.required(&path, format!("protected groups must have approval annotation {ANNOTATION:?}, {see}"));
    } else if !value.starts_with("unapproved") && !value.contains("://") {
        let detail = format!(
            "protected groups must have approval annotation {ANNOTATION:?} with either a URL or a reason starting with \
             \"unapproved\", {see}"
        );
        errors.invalid(&path, value, detail);
    }
}

/// A version in which objects may be stored cannot be removed.
pub fn stored_versions(object: &Value, errors: &mut Errors) {
    let path = Path::new("status").child("storedVersions");
    let stored = object.items(&["status", "storedVersions"]);
    if stored.is_empty() {
        errors.invalid(&path, json!(stored), "must have at least one stored version");
        return;
    }
    let versions = object.items(&["spec", "versions"]);
    for version in versions.iter().filter(|version| version.flag(&["storage"])) {
        let name = version.text(&["name"]);
        if !stored.iter().any(|stored| stored == name) {
            errors.invalid(&path, json!(stored), format!("must have the storage version {name}"));
        }
    }
    for (index, stored) in stored.iter().enumerate() {
        if !versions.iter().any(|version| version.at(&["name"]) == Some(stored)) {
            let name = stored.as_str().unwrap_or_default();
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until \
                 a storage migration ensures no data remains persisted in {name} and removes {name} from \
                 status.storedVersions"
            );
            errors.invalid(&path.index(index), stored.clone(), detail);
        }
    }
}

/// Returns warnings about unknown formats, which are not validated and may be misspelt.
pub fn format_warnings(object: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, version) in object.items(&["spec", "versions"]).iter().enumerate() {
        if let Some(schema) = version.at(&["schema", "openAPIV3Schema"]) {
            let path = Path::new("spec").child("versions").index(index).child("schema").child("openAPIV3Schema");
            unknown_formats(schema, &path, &mut warnings);
        }
    }
    warnings
}

const KNOWN_FORMATS: &str = "bsonobjectid uri email hostname ipv4 ipv6 cidr mac uuid uuid3 uuid4 uuid5 isbn isbn10 isbn13 creditcard ssn \
     hexcolor rgbcolor byte password date duration datetime date-time int32 int64 float double int-or-string \
     k8s-short-name k8s-long-name";

fn unknown_formats(schema: &Value, path: &Path, warnings: &mut Vec<String>) {
    let format = schema.text(&["format"]);
    if !format.is_empty() && !KNOWN_FORMATS.split(' ').any(|known| known == format) {
        warnings.push(format!("unrecognized format {format:?}"));
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.at(&[key]) {
            unknown_formats(inner, &path.child(key), warnings);
        }
    }
    for (name, property) in schema.members(&["properties"]) {
        unknown_formats(property, &path.child("properties").key(name), warnings);
    }
    warnings.sort();
    warnings.dedup();
}
