//! The subresource `scale` (`autoscaling/v1 Scale`): requested and actual replicas in the same form for all kinds.

use super::check_preconditions;
use object::access::{Access, name};
use object::kind::{Kind, Subresource};
use object::selector::LabelSelector;
use object::{Errors, Path, Status, Value, json};

/// Builds the Scale of an object.
pub fn of(sub: &Subresource, object: &Value) -> Result<Value, Status> {
    let Subresource::Scale { spec_replicas, status_replicas, selector } = sub else {
        return Err(Status::no_such_path());
    };
    let replicas = number(object, spec_replicas).ok_or_else(|| {
        Status::internal(format!("the spec replicas field {:?} does not exist", format!(".{spec_replicas}")))
    })?;
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {},
        "spec": {"replicas": replicas},
        "status": {"replicas": number(object, status_replicas).unwrap_or(0)},
    });
    // Go clients expect zero replicas to be omitted from the spec.
    if replicas == 0 {
        scale.put(&["spec"], json!({}));
    }
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.at(&["metadata", field]) {
            scale.put(&["metadata", field], value.clone());
        }
    }
    let selector = selector.as_deref().map_or_else(String::new, |path| selector_text(object, path));
    if !selector.is_empty() {
        scale.put(&["status", "selector"], selector);
    }
    Ok(scale)
}

/// The object with the replicas of a Scale. A uid or resourceVersion in the Scale is a precondition.
pub fn apply(kind: &Kind, sub: &Subresource, object: &Value, scale: &Value) -> Result<Value, Status> {
    let Subresource::Scale { spec_replicas, .. } = sub else { return Err(Status::no_such_path()) };
    check_identity(object, scale)?;
    let replicas = match scale.at(&["spec", "replicas"]) {
        None => 0,
        Some(value) => value.as_i64().and_then(|number| i32::try_from(number).ok()).ok_or_else(|| {
            Status::bad_request(format!("spec.replicas of a Scale must be a 32-bit whole number, not {value}"))
        })?,
    };
    if replicas < 0 {
        let mut errors = Errors::default();
        errors.invalid(&Path::new("spec.replicas"), replicas, "must be greater than or equal to 0");
        return Err(Status::invalid("autoscaling", "Scale", name(object), &errors));
    }
    check_preconditions(&kind.group, &kind.plural, object, scale)?;
    let mut scaled = object.clone();
    scaled.put(&path(spec_replicas), replicas);
    Ok(scaled)
}

fn check_identity(object: &Value, scale: &Value) -> Result<(), Status> {
    let (kind, api_version) = (scale.text(&["kind"]), scale.text(&["apiVersion"]));
    if (!kind.is_empty() && kind != "Scale") || (!api_version.is_empty() && !api_version.starts_with("autoscaling/")) {
        return Err(Status::bad_request(format!(
            "expected an autoscaling/v1 Scale, but got {api_version}, Kind={kind}"
        )));
    }
    let said = name(scale);
    if !said.is_empty() && said != name(object) {
        return Err(Status::bad_request(format!(
            "the name of the object ({said}) does not match the name on the URL ({})",
            name(object)
        )));
    }
    Ok(())
}

fn path(dotted: &str) -> Vec<&str> {
    dotted.split('.').filter(|part| !part.is_empty()).collect()
}

fn number(object: &Value, dotted: &str) -> Option<i64> {
    object.int(&path(dotted))
}

/// A selector in text form. Custom resources already store it as text.
fn selector_text(object: &Value, dotted: &str) -> String {
    match object.at(&path(dotted)) {
        Some(Value::String(text)) => text.to_string(),
        Some(selector @ Value::Object(_)) => {
            LabelSelector::from_object(selector).map_or_else(|_| String::new(), |selector| selector.to_string())
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::kind;

    fn sub() -> Subresource {
        Subresource::Scale {
            spec_replicas: "spec.replicas".to_owned(),
            status_replicas: "status.replicas".to_owned(),
            selector: Some("spec.selector".to_owned()),
        }
    }

    fn set() -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "a", "uid": "u", "resourceVersion": "7", "labels": {"x": "y"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"b": "c", "a": "b"}}},
            "status": {"replicas": 2},
        })
    }

    #[test]
    fn a_scale_shows_replicas_and_selector() {
        let want = json!({
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": "web", "namespace": "a", "uid": "u", "resourceVersion": "7"},
            "spec": {"replicas": 3},
            "status": {"replicas": 2, "selector": "a=b,b=c"},
        });
        assert_eq!(of(&sub(), &set()).unwrap(), want);
        let custom = json!({"metadata": {"name": "w"}, "spec": {"replicas": 0, "selector": "a=b"}});
        assert_eq!(of(&sub(), &custom).unwrap()["status"], json!({"replicas": 0, "selector": "a=b"}));
        let bare = of(&sub(), &json!({"metadata": {"name": "w"}})).unwrap_err();
        assert_eq!(
            (bare.code, bare.message.as_str()),
            (500, "Internal error occurred: the spec replicas field \".spec.replicas\" does not exist")
        );
    }

    #[test]
    fn a_scale_changes_only_the_replicas() {
        let scaled = apply(&kind("statefulsets"), &sub(), &set(), &json!({"spec": {"replicas": 5}})).unwrap();
        let mut want = set();
        want.put(&["spec", "replicas"], 5);
        assert_eq!(scaled, want);
        let none = apply(&kind("statefulsets"), &sub(), &set(), &json!({"spec": {}})).unwrap();
        assert_eq!(none["spec"]["replicas"], 0);
    }

    #[test]
    fn refusals_have_upstreams_messages() {
        let cases = [
            (
                json!({"spec": {"replicas": -1}}),
                422,
                "Scale.autoscaling \"web\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                json!({"metadata": {"uid": "other"}, "spec": {"replicas": 1}}),
                409,
                "Operation cannot be fulfilled on statefulsets.apps \"web\": Precondition failed: UID in precondition: other, UID in object meta: u",
            ),
            (
                json!({"metadata": {"resourceVersion": "6"}, "spec": {"replicas": 1}}),
                409,
                "Operation cannot be fulfilled on statefulsets.apps \"web\": the object has been modified; please apply your changes to the latest version and try again",
            ),
            (
                json!({"metadata": {"name": "x"}}),
                400,
                "the name of the object (x) does not match the name on the URL (web)",
            ),
            (
                json!({"spec": {"replicas": "3"}}),
                400,
                "spec.replicas of a Scale must be a 32-bit whole number, not \"3\"",
            ),
            (
                json!({"spec": {"replicas": 3_000_000_000_i64}}),
                400,
                "spec.replicas of a Scale must be a 32-bit whole number, not 3000000000",
            ),
        ];
        for (scale, code, message) in cases {
            let refused = apply(&kind("statefulsets"), &sub(), &set(), &scale).unwrap_err();
            assert_eq!((refused.code, refused.message.as_str()), (code, message));
        }
    }
}
