//! Environment variables and their references to other fields.

use super::cursor::Cursor;
use super::paths;
use crate::field::Errors;
use crate::name;
use crate::quantity::Quantity;

const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
pub(super) const VOLUME_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Fields that references can name somewhere. Each kind of reference allows only some of them.
const KNOWN_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCE_FIELDS: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const SIZES: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Validates a container's `env`.
pub(super) fn validate(variables: &Cursor, errors: &mut Errors) {
    for variable in variables.items() {
        variable.child("name").required_name(variable_name, errors);
        validate_source(&variable, errors);
    }
}

/// Validates a container's `envFrom`.
pub(super) fn validate_from(sources: &Cursor, errors: &mut Errors) {
    for source in sources.items() {
        source.child("prefix").optional_name(variable_name, errors);
        let mut count = 0;
        for kind in ["configMapRef", "secretRef"] {
            let reference = source.child(kind);
            if reference.present() {
                count += 1;
                reference.child("name").required_name(name::subdomain, errors);
            }
        }
        match count {
            0 => sources.invalid_as("", "must specify one of: `configMapRef` or `secretRef`", errors),
            1 => {}
            _ => sources.invalid_as("", "may not have more than one field specified at a time", errors),
        }
    }
}

/// Validates a variable name: any printable ASCII except `=`.
fn variable_name(text: &str) -> Vec<String> {
    let fine = text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    let wrong = "a valid environment variable name must consist only of printable ASCII characters other than '='";
    if fine { Vec::new() } else { vec![wrong.to_owned()] }
}

fn validate_source(variable: &Cursor, errors: &mut Errors) {
    let source = variable.child("valueFrom");
    if !source.present() {
        return;
    }
    let mut count = 0;
    let mut each = |kind: &'static str, check: &mut dyn FnMut(&Cursor)| {
        let reference = source.child(kind);
        if reference.present() {
            count += 1;
            check(&reference);
        }
    };
    each("fieldRef", &mut |reference| validate_field(reference, ENV_FIELDS, errors));
    each("resourceFieldRef", &mut |reference| validate_resource_field(reference, false, errors));
    each("configMapKeyRef", &mut |reference| validate_key(reference, errors));
    each("secretKeyRef", &mut |reference| validate_key(reference, errors));
    each("fileKeyRef", &mut |reference| validate_file_key(reference, errors));
    let choices =
        "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
    if count == 0 {
        source.invalid_as("", choices, errors);
    } else if !variable.child("value").text().is_empty() {
        source.invalid_as("", "may not be specified when `value` is not empty", errors);
    } else if count > 1 {
        source.invalid_as("", "may not have more than one field specified at a time", errors);
    }
}

/// Validates a `fieldRef`: a field of the pod that is in `allowed`.
pub(super) fn validate_field(reference: &Cursor, allowed: &[&str], errors: &mut Errors) {
    let (version, field) = (reference.child("apiVersion"), reference.child("fieldPath"));
    if version.is_empty() {
        return version.required("", errors);
    }
    if field.is_empty() {
        return field.required("", errors);
    }
    let unreadable =
        |why: String, errors: &mut Errors| field.invalid(format!("error converting fieldPath: {why}"), errors);
    if version.text() != "v1" {
        return unreadable(format!("unsupported pod version: {}", version.text()), errors);
    }
    if let Some((path, key)) = subscript(field.text()) {
        let key = match path {
            "metadata.annotations" => key.to_lowercase(),
            "metadata.labels" => key.to_owned(),
            _ => return unreadable(format!("field label does not support subscript: {}", field.text()), errors),
        };
        for why in name::qualified(&key) {
            reference.invalid_as(key.as_str(), why, errors);
        }
        return;
    }
    let path = if field.text() == "spec.host" { "spec.nodeName" } else { field.text() };
    if !KNOWN_FIELDS.contains(&path) {
        unreadable(format!("field label not supported: {path}"), errors);
    } else if !allowed.contains(&path) {
        field.unsupported(allowed, errors);
    }
}

/// Splits a subscript: `metadata.labels['app']` → (`metadata.labels`, `app`).
fn subscript(field: &str) -> Option<(&str, &str)> {
    let (path, key) = field.strip_suffix("']")?.split_once("['")?;
    (!path.is_empty()).then_some((path, key))
}

/// Validates a `resourceFieldRef`. In a volume it must name a container.
pub(super) fn validate_resource_field(reference: &Cursor, in_volume: bool, errors: &mut Errors) {
    let (container, resource) = (reference.child("containerName"), reference.child("resource"));
    let name = resource.text();
    let pages = name.starts_with("limits.hugepages-") || name.starts_with("requests.hugepages-");
    if in_volume && container.is_empty() {
        container.required("", errors);
    } else if name.is_empty() {
        resource.required("", errors);
    } else if !RESOURCE_FIELDS.contains(&name) && !pages {
        resource.unsupported(RESOURCE_FIELDS, errors);
    }
    validate_divisor(reference, name, pages, errors);
}

fn validate_divisor(reference: &Cursor, name: &str, pages: bool, errors: &mut Errors) {
    let divisor = reference.child("divisor");
    let Some(amount) = Quantity::of(divisor.value()).filter(|amount| !amount.is_zero()) else { return };
    let amount = amount.to_string();
    let resource = match name.split_once('.').map_or("", |(_, resource)| resource) {
        "cpu" if !["1m", "1"].contains(&amount.as_str()) => {
            return divisor.invalid_as(
                name,
                "only divisor's values 1m and 1 are supported with the cpu resource",
                errors,
            );
        }
        "memory" => "memory",
        "ephemeral-storage" => "local ephemeral storage",
        _ if pages => "hugepages",
        _ => return,
    };
    if !SIZES.contains(&amount.as_str()) {
        let sizes = SIZES.join(", ");
        divisor.invalid_as(
            name,
            format!("only divisor's values {sizes} are supported with the {resource} resource"),
            errors,
        );
    }
}

fn validate_key(reference: &Cursor, errors: &mut Errors) {
    reference.child("name").check(name::subdomain(reference.child("name").text()), errors);
    reference.child("key").required_name(config_key, errors);
}

fn validate_file_key(reference: &Cursor, errors: &mut Errors) {
    reference.child("volumeName").required_name(name::label, errors);
    let path = reference.child("path");
    if path.is_empty() {
        path.required("", errors)
    } else {
        paths::local(&path, errors)
    }
    reference.child("key").required_name(variable_name, errors);
}

/// Validates a key of a ConfigMap or Secret.
fn config_key(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 253 {
        wrong.push("must be no more than 253 characters".to_owned());
    }
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        let why = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
                   'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
        wrong.push(why.to_owned());
    }
    match text {
        "." => wrong.push("must not be '.'".to_owned()),
        ".." => wrong.push("must not be '..'".to_owned()),
        _ if text.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::{Value, json};

    fn errors_of(check: fn(&Cursor, &mut Errors), value: Value) -> Vec<String> {
        let (path, mut errors) = (Path::new("e"), Errors::default());
        check(&Cursor::new(&value, &path), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }
    fn from(source: Value) -> Vec<String> {
        errors_of(validate, json!([{"name": "A", "valueFrom": source}]))
    }

    #[test]
    fn invalid_variables_are_refused_with_upstreams_messages() {
        let field = |path: &str| json!({"fieldRef": {"apiVersion": "v1", "fieldPath": path}});
        let cases = [
            (errors_of(validate, json!([{}])), vec!["e[0].name: Required value"]),
            (
                errors_of(validate, json!([{"name": "a=b"}])),
                vec![
                    "e[0].name: Invalid value: \"a=b\": a valid environment variable name must consist only of printable ASCII characters other than '='",
                ],
            ),
            (
                from(json!({})),
                vec![
                    "e[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
                ],
            ),
            (
                from(json!({"secretKeyRef": {"name": "a", "key": "k"}, "configMapKeyRef": {"name": "a", "key": "k"}})),
                vec!["e[0].valueFrom: Invalid value: \"\": may not have more than one field specified at a time"],
            ),
            (
                errors_of(validate, json!([{"name": "A", "value": "x", "valueFrom": field("metadata.name")}])),
                vec!["e[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty"],
            ),
            (from(json!({"secretKeyRef": {"name": "a"}})), vec!["e[0].valueFrom.secretKeyRef.key: Required value"]),
            (
                from(json!({"secretKeyRef": {"name": "a", "key": ".."}})),
                vec!["e[0].valueFrom.secretKeyRef.key: Invalid value: \"..\": must not be '..'"],
            ),
            (from(json!({"fieldRef": {"fieldPath": "x"}})), vec!["e[0].valueFrom.fieldRef.apiVersion: Required value"]),
            (
                from(json!({"fieldRef": {"apiVersion": "v1"}})),
                vec!["e[0].valueFrom.fieldRef.fieldPath: Required value"],
            ),
            (
                from(field("metadata.nope")),
                vec![
                    "e[0].valueFrom.fieldRef.fieldPath: Invalid value: \"metadata.nope\": error converting fieldPath: field label not supported: metadata.nope",
                ],
            ),
            (
                from(field("metadata.name['x']")),
                vec![
                    "e[0].valueFrom.fieldRef.fieldPath: Invalid value: \"metadata.name['x']\": error converting fieldPath: field label does not support subscript: metadata.name['x']",
                ],
            ),
            (from(field("metadata.labels['app']")), vec![]),
            (from(field("status.podIP")), vec![]),
            (
                from(json!({"resourceFieldRef": {"resource": "limits.disk"}})),
                vec![
                    "e[0].valueFrom.resourceFieldRef.resource: Unsupported value: \"limits.disk\": supported values: \"limits.cpu\", \"limits.ephemeral-storage\", \"limits.memory\", \"requests.cpu\", \"requests.ephemeral-storage\", \"requests.memory\"",
                ],
            ),
            (
                from(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}})),
                vec![
                    "e[0].valueFrom.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource",
                ],
            ),
            (
                from(json!({"fileKeyRef": {"volumeName": "v", "path": "/a", "key": "k"}})),
                vec!["e[0].valueFrom.fileKeyRef.path: Invalid value: \"/a\": must be a relative path"],
            ),
        ];
        for (messages, want) in cases {
            assert_eq!(messages, want);
        }
        let phase = from(field("status.phase"));
        assert!(
            phase[0].starts_with(
                "e[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"status.phase\": supported values:"
            )
        );
    }

    #[test]
    fn invalid_env_from_sources_are_refused_with_upstreams_messages() {
        let cases = [
            (json!([{}]), vec!["e: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"]),
            (
                json!([{"configMapRef": {"name": "a"}, "secretRef": {"name": "a"}}]),
                vec!["e: Invalid value: \"\": may not have more than one field specified at a time"],
            ),
            (json!([{"configMapRef": {}}]), vec!["e[0].configMapRef.name: Required value"]),
            (json!([{"prefix": "p_", "secretRef": {"name": "a"}}]), vec![]),
        ];
        for (value, want) in cases {
            assert_eq!(errors_of(validate_from, value.clone()), want, "{value}");
        }
    }
}
