//! Semantic comparison of values.

use super::{Scalar, Schema, Struct, Type, TypeId};
use crate::decode;
use crate::quantity::Quantity;
use crate::value::Key;
use crate::{Map, Value};

/// Whether two values (or their absence) are semantically equal: quantities by value, times by instant. Null, absent,
/// an empty list and an empty map are equal.
///
/// An empty struct differs from an absent one (`emptyDir: {}`, a selector of everything), except for structs that Go
/// clients always write (`resources: {}`). Custom resources are compared exactly: for them an empty list is a value.
pub(super) fn same(schema: &Schema, ty: TypeId, a: Option<&Value>, b: Option<&Value>) -> bool {
    let (a, b) = (a.filter(|value| !value.is_null()), b.filter(|value| !value.is_null()));
    if a == b {
        return true;
    }
    if schema.structural {
        return false;
    }
    match schema.get(ty) {
        Type::Any => false,
        Type::Scalar(scalar) => a.zip(b).is_some_and(|(a, b)| same_scalar(*scalar, a, b)),
        Type::List { item, .. } => {
            let (Some(a), Some(b)) = (list(a), list(b)) else { return false };
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(schema, *item, Some(a), Some(b)))
        }
        Type::Map { value, .. } => {
            let (Some(a), Some(b)) = (members(a), members(b)) else { return false };
            all_keys(a, b).all(|key| same(schema, *value, a.get(key), b.get(key)))
        }
        Type::Struct(shape) => {
            if (a.is_none() || b.is_none()) && !always_written(schema, ty) {
                return false;
            }
            let (Some(a), Some(b)) = (members(a), members(b)) else { return false };
            same_members(schema, shape, a, b)
        }
    }
}

fn same_members(schema: &Schema, shape: &Struct, a: &Map, b: &Map) -> bool {
    all_keys(a, b).all(|key| match shape.fields.get(key.as_str()) {
        Some(field) => same(schema, field.ty, a.get(key), b.get(key)),
        None => a.get(key) == b.get(key),
    })
}

fn same_scalar(scalar: Scalar, a: &Value, b: &Value) -> bool {
    match scalar {
        Scalar::Quantity => Quantity::of(a).zip(Quantity::of(b)).is_some_and(|(a, b)| a == b),
        Scalar::Time | Scalar::MicroTime => {
            let instant = |value: &Value| value.as_str().and_then(decode::instant);
            instant(a).zip(instant(b)).is_some_and(|(a, b)| a == b)
        }
        Scalar::Float => a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| a == b),
        _ => false,
    }
}

fn list(value: Option<&Value>) -> Option<&[Value]> {
    match value {
        None => Some(&[]),
        Some(value) => value.as_array().map(Vec::as_slice),
    }
}

fn members(value: Option<&Value>) -> Option<&Map> {
    static EMPTY: std::sync::LazyLock<Map> = std::sync::LazyLock::new(Map::new);
    match value {
        None => Some(&EMPTY),
        Some(value) => value.as_object(),
    }
}

fn all_keys<'a>(a: &'a Map, b: &'a Map) -> impl Iterator<Item = &'a Key> {
    a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)))
}

/// Structs that Go clients hold by value, so they write `{}` where other clients write nothing.
fn always_written(schema: &Schema, ty: TypeId) -> bool {
    const BY_VALUE: [&str; 10] = [
        "ObjectMeta",
        "ResourceRequirements",
        "VolumeResourceRequirements",
        "StatefulSetUpdateStrategy",
        "ContainerState",
        "EventSource",
        "ObjectReference",
        "NodeSystemInfo",
        "NodeDaemonEndpoints",
        "DaemonEndpoint",
    ];
    schema.name_of(ty).is_some_and(|name| {
        let last = name.rsplit('.').next().unwrap_or(name);
        last.ends_with("Spec") || last.ends_with("Status") || BY_VALUE.contains(&last)
    })
}

#[cfg(test)]
mod tests {
    use crate::schema::builtin_type;
    use crate::{Value, json};

    fn same_pods(a: &Value, b: &Value) -> bool {
        let pod = builtin_type("io.k8s.api.core.v1.Pod");
        assert_eq!(pod.same(a, b), pod.same(b, a), "the order does not matter");
        pod.same(a, b)
    }

    #[test]
    fn semantically_equal_values() {
        let limits = |cpu: Value| json!({"spec": {"containers": [{"resources": {"limits": {"cpu": cpu}}}]}});
        let cases = [
            (limits(json!("1")), limits(json!("1000m"))),
            (limits(json!("1")), limits(json!(1))),
            (json!({"spec": {"volumes": []}}), json!({"spec": {"volumes": null}})),
            (json!({"spec": {"nodeSelector": {}}}), json!({"spec": {}})),
            (json!({"spec": {}, "status": {}}), json!({})),
            (json!({"spec": {"containers": [{"resources": {}}]}}), json!({"spec": {"containers": [{}]}})),
            (
                json!({"metadata": {"creationTimestamp": "2026-01-02T03:04:05Z"}}),
                json!({"metadata": {"creationTimestamp": "2026-01-02T04:04:05+01:00"}}),
            ),
        ];
        for (a, b) in &cases {
            assert!(same_pods(a, b), "{a} {b}");
        }
    }

    #[test]
    fn semantically_different_values() {
        let cases = [
            (json!({"metadata": {"labels": {"a": ""}}}), json!({"metadata": {"labels": {}}})),
            (json!({"spec": {"volumes": [{"emptyDir": {}}]}}), json!({"spec": {"volumes": [{}]}})),
            (json!({"spec": {"hostNetwork": false}}), json!({"spec": {}})),
            (
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
                json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
            ),
            (json!({"spec": {"priority": 0}}), json!({"spec": {"priority": 1}})),
            (json!({"spec": []}), json!({"spec": {}})),
        ];
        for (a, b) in &cases {
            assert!(!same_pods(a, b), "{a} {b}");
        }
    }
}
