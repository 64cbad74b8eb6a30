//! Tests with real kinds. The property tests are in `properties.rs`.

use super::*;
use crate::json;
use crate::schema::builtin_type;

mod properties;
mod scenarios;
mod tracking;

pub(super) const STATEFUL_SET: &str = "io.k8s.api.apps.v1.StatefulSet";
pub(super) const CONFIG_MAP: &str = "io.k8s.api.core.v1.ConfigMap";
pub(super) const SERVICE: &str = "io.k8s.api.core.v1.Service";
pub(super) const POD: &str = "io.k8s.api.core.v1.Pod";

pub(super) fn writer<'a>(manager: &'a str, api_version: &'a str, second: i64) -> Writer<'a> {
    Writer { manager, subresource: "", api_version, now: jiff::Timestamp::from_second(second).unwrap() }
}

/// Returns the `fieldsV1` of a manager's entry.
pub(super) fn fields(object: &Value, manager: &str, operation: &str) -> Value {
    let entry = object
        .items(&["metadata", "managedFields"])
        .iter()
        .find(|entry| entry["manager"] == manager && entry["operation"] == operation);
    entry.map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

/// Returns `manager/operation` of all entries, in order.
pub(super) fn managers(object: &Value) -> Vec<String> {
    let entries = object.items(&["metadata", "managedFields"]).iter();
    entries.map(|entry| format!("{}/{}", entry.text(&["manager"]), entry.text(&["operation"]))).collect()
}

pub(super) fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}, "data": data})
}
