//! Pod annotations with a meaning.

use super::cursor::Cursor;
use super::security::CONTAINER_LISTS;
use super::{paths, scheduling};
use crate::Value;
use crate::access::Access;
use crate::field::Errors;

const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_PREFIX: &str = "container.seccomp.security.alpha.kubernetes.io/";
pub(super) const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Validates the annotations of a pod or template with this spec.
pub(super) fn validate(annotations: &Cursor, spec: &Value, errors: &mut Errors) {
    for (key, annotation) in annotations.entries() {
        if key == MIRROR && spec.text(&["nodeName"]).is_empty() {
            annotation.invalid("must set spec.nodeName if mirror pod annotation is set", errors);
        }
        if key == DELETION_COST && !is_cost(annotation.text()) {
            annotation.invalid("must be a 32bit integer", errors);
        }
        if key == TOLERATIONS && !annotation.is_empty() {
            validate_tolerations(annotations, annotation.text(), errors);
        }
        if key == SECCOMP || key.starts_with(SECCOMP_PREFIX) {
            validate_seccomp(&annotations.child(key), errors);
        }
        if let Some(container) = key.strip_prefix(APP_ARMOR_PREFIX) {
            validate_app_armor(&annotation, container, spec, errors);
        }
    }
}

/// Validates that certain annotations do not change.
pub(super) fn validate_update(new: &Cursor, old: &Value, errors: &mut Errors) {
    let old = old.as_object();
    for (key, was) in old.into_iter().flatten() {
        if new.entry(key).value() == was {
            continue;
        }
        if key.starts_with(APP_ARMOR_PREFIX) {
            new.entry(key).forbidden("may not remove or update AppArmor annotations", errors);
        }
        if key == MIRROR {
            new.entry(key).forbidden("may not remove or update mirror pod annotation", errors);
        }
    }
    for (key, annotation) in new.entries() {
        if old.is_some_and(|old| old.contains_key(key)) {
            continue;
        }
        if key.starts_with(APP_ARMOR_PREFIX) {
            annotation.forbidden("may not add AppArmor annotations", errors);
        }
        if key == MIRROR {
            annotation.forbidden("may not add mirror pod annotation", errors);
        }
    }
}

/// If a profile is set both in an annotation and in a field, both must be equal.
pub(super) fn validate_profiles_match(annotations: &Value, spec: &Cursor, errors: &mut Errors) {
    let context = spec.child("securityContext");
    let pod_profile = context.child("seccompProfile");
    profile_matches("seccomp", annotations.at(&[SECCOMP]), &pod_profile, errors);
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            let (name, own) = (container.child("name").text(), container.child("securityContext"));
            let annotation_of = |prefix: &str| annotations.at(&[&format!("{prefix}{name}")]);
            profile_matches("seccomp", annotation_of(SECCOMP_PREFIX), &own.child("seccompProfile"), errors);
            if spec.child("os").child("name").text() != "windows" {
                let field = own.child("appArmorProfile");
                let shared = context.child("appArmorProfile");
                let at = field.path();
                let effective = if field.present() { field } else { Cursor::new(shared.value(), &at) };
                profile_matches("apparmor", annotation_of(APP_ARMOR_PREFIX), &effective, errors);
            }
        }
    }
}

fn profile_matches(kind: &str, annotation: Option<&Value>, field: &Cursor, errors: &mut Errors) {
    let Some(profile_text) = annotation.and_then(Value::as_str).filter(|_| field.present()) else { return };
    let (profile, file) = (field.child("type"), field.child("localhostProfile"));
    let same = match profile.text() {
        "Unconfined" => profile_text == "unconfined",
        "RuntimeDefault" => {
            profile_text == "runtime/default" || (kind == "seccomp" && profile_text == "docker/default")
        }
        "Localhost" => profile_text.starts_with("localhost/"),
        _ => true,
    };
    if !same {
        profile.forbidden(&format!("{kind} type in annotation and field must match"), errors);
    } else if profile.text() == "Localhost" && profile_text.strip_prefix("localhost/") != Some(file.text()) {
        file.forbidden(&format!("{kind} profile in annotation and field must match"), errors);
    }
}

/// Whether the text is a decimal 32-bit integer without leading zeros or plus sign.
fn is_cost(text: &str) -> bool {
    text.parse::<i32>().is_ok_and(|cost| cost.to_string() == text)
}

fn validate_tolerations(annotations: &Cursor, text: &str, errors: &mut Errors) {
    match serde_json::from_str::<Value>(text) {
        Ok(tolerations) => {
            let path = annotations.path().child(TOLERATIONS);
            scheduling::validate_tolerations(&Cursor::new(&tolerations, &path), errors);
        }
        Err(error) => annotations.invalid_as(TOLERATIONS, error.to_string(), errors),
    }
}

fn validate_seccomp(annotation: &Cursor, errors: &mut Errors) {
    match annotation.text() {
        "runtime/default" | "docker/default" | "unconfined" => {}
        text => match text.strip_prefix("localhost/") {
            Some(file) => {
                let (path, file) = (annotation.path(), Value::from(file));
                paths::descending(&Cursor::new(&file, &path), errors);
            }
            None => annotation.invalid("must be a valid seccomp profile", errors),
        },
    }
}

fn validate_app_armor(annotation: &Cursor, container: &str, spec: &Value, errors: &mut Errors) {
    let known =
        CONTAINER_LISTS.iter().flat_map(|list| spec.items(&[list])).any(|each| each.text(&["name"]) == container);
    if !known {
        annotation.invalid_as(container, "container not found", errors);
    }
    let profile = annotation.text();
    if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with("localhost/") {
        annotation.invalid(format!("invalid AppArmor profile name: {profile:?}"), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::json;

    fn errors_of(annotations: Value) -> Vec<String> {
        let (path, mut errors) = (Path::new("a"), Errors::default());
        validate(&Cursor::new(&annotations, &path), &json!({"containers": [{"name": "c"}]}), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_annotations_are_refused_with_upstreams_messages() {
        let armor = |name: &str| format!("{APP_ARMOR_PREFIX}{name}");
        let cases = [
            (
                json!({MIRROR: "x"}),
                "a[kubernetes.io/config.mirror]: Invalid value: \"x\": must set spec.nodeName if mirror pod annotation is set".to_owned(),
            ),
            (json!({DELETION_COST: "+1"}), format!("a[{DELETION_COST}]: Invalid value: \"+1\": must be a 32bit integer")),
            (json!({SECCOMP: "x"}), format!("a.{SECCOMP}: Invalid value: \"x\": must be a valid seccomp profile")),
            (json!({armor("d"): "unconfined"}), format!("a[{}]: Invalid value: \"d\": container not found", armor("d"))),
            (json!({armor("c"): "x"}), format!("a[{}]: Invalid value: \"x\": invalid AppArmor profile name: \"x\"", armor("c"))),
        ];
        for (annotations, want) in cases {
            assert_eq!(errors_of(annotations), [want]);
        }
        assert_eq!(
            errors_of(json!({DELETION_COST: "-5", SECCOMP: "runtime/default", armor("c"): "localhost/p"})),
            Vec::<String>::new()
        );
    }

    #[test]
    fn profiles_in_fields_and_annotations_must_agree() {
        let annotations = json!({SECCOMP: "unconfined"});
        let spec = json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}});
        let (path, mut errors) = (Path::new("spec"), Errors::default());
        validate_profiles_match(&annotations, &Cursor::new(&spec, &path), &mut errors);
        assert_eq!(
            errors.message(),
            "spec.securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match"
        );
    }
}
