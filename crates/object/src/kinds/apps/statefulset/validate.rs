//! Validation of a StatefulSet on create and update.

use super::claim_templates;
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::gates::Gates;
use crate::kinds::policy::{is_over_100_percent, percent, validate_int_or_percent};
use crate::kinds::volumes::validate_claim_spec;
use crate::pod::{self, Cursor};
use crate::schema;
use crate::selector::LabelSelector;
use crate::{Value, json};
use crate::{meta, name};

static NOTHING: Value = Value::Null;

/// What is validated again on an update.
#[derive(Clone, Copy)]
struct Scope {
    /// Whether `Recreate` is an allowed strategy.
    recreate: bool,
    pod_template: bool,
    claim_templates: bool,
    service_name: bool,
}

pub(super) fn create(object: &Value, gates: &Gates, errors: &mut Errors) {
    let recreate = gates.on("StatefulSetRecreateStrategy");
    let all = Scope { recreate, pod_template: true, claim_templates: true, service_name: true };
    validate_spec(object, all, errors);
}

/// Validates an update. An object that was accepted under older rules must stay updatable: if its stored template is
/// invalid today, the template is not validated again.
pub(super) fn update(new: &Value, old: &Value, gates: &Gates, errors: &mut Errors) {
    let was_recreate = old.text(&["spec", "updateStrategy", "type"]) == "Recreate";
    let recreate = gates.on("StatefulSetRecreateStrategy") || was_recreate;
    let mut before = Errors::default();
    let again = Scope { recreate, pod_template: true, claim_templates: false, service_name: false };
    validate_spec(old, again, &mut before);
    validate_spec(new, Scope { pod_template: before.is_empty(), ..again }, errors);
    validate_immutable(new, old, errors);
    let changeable = gates.on("StatefulSetUpdateVolumeClaimTemplate");
    let [new, old] = [new, old].map(|set| set.at(&["spec", "volumeClaimTemplates"]).unwrap_or(&NOTHING));
    claim_templates::validate_change(new, old, changeable, errors);
}

fn validate_immutable(new: &Value, old: &Value, errors: &mut Errors) {
    let fields = [
        ("selector", "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"),
        ("serviceName", ""),
        ("podManagementPolicy", ""),
    ];
    for (field, ty) in fields {
        let (new, old) = (new.at(&["spec", field]), old.at(&["spec", field]));
        let (a, b) = (new.unwrap_or(&NOTHING), old.unwrap_or(&NOTHING));
        let same = match field {
            "selector" => schema::builtin_type(ty).same(a, b),
            _ => a.as_str().unwrap_or("") == b.as_str().unwrap_or(""),
        };
        if !same {
            errors.invalid(&Path::new("spec").child(field), a.clone(), "field is immutable");
        }
    }
}

fn validate_spec(object: &Value, scope: Scope, errors: &mut Errors) {
    let path = Path::new("spec");
    let spec = Cursor::new(object.at(&["spec"]).unwrap_or(&NOTHING), &path);
    let policy = spec.child("podManagementPolicy");
    match policy.text() {
        "" => policy.required("", errors),
        "OrderedReady" | "Parallel" => {}
        _ => policy.invalid("must be 'OrderedReady' or 'Parallel'", errors),
    }
    validate_strategy(&spec.child("updateStrategy"), scope.recreate, errors);
    let retention = spec.child("persistentVolumeClaimRetentionPolicy");
    for half in ["whenDeleted", "whenScaled"] {
        retention.child(half).one_of(&["Retain", "Delete"], errors);
    }
    let update_policy = spec.child("volumeClaimUpdatePolicy");
    if update_policy.present() {
        update_policy.required_one_of(&["InPlace", "OnClaimDelete"], errors);
    }
    spec.child("replicas").non_negative(errors);
    spec.child("minReadySeconds").non_negative(errors);
    spec.child("ordinals").child("start").non_negative(errors);
    if scope.service_name {
        spec.child("serviceName").optional_name(name::label, errors);
    }
    validate_selector(&spec, errors);
    if scope.pod_template {
        validate_template(&spec, errors);
    }
    let pod = spec.child("template");
    let pod = pod.child("spec");
    if pod.child("restartPolicy").text() != "Always" {
        pod.child("restartPolicy").unsupported(&["Always"], errors);
    }
    if pod.child("activeDeadlineSeconds").present() {
        pod.child("activeDeadlineSeconds").forbidden("activeDeadlineSeconds in StatefulSet is not Supported", errors);
    }
    if scope.claim_templates {
        for template in spec.child("volumeClaimTemplates").items() {
            let claim = template.child("spec");
            validate_claim_spec(claim.value(), &claim.path(), errors);
        }
    }
}

fn validate_strategy(strategy: &Cursor, recreate: bool, errors: &mut Errors) {
    let (kind, rolling) = (strategy.child("type"), strategy.child("rollingUpdate"));
    match kind.text() {
        "" => strategy.required("", errors),
        "RollingUpdate" => {
            rolling.child("partition").non_negative(errors);
            validate_max_unavailable(&rolling.child("maxUnavailable"), errors);
        }
        "OnDelete" => forbid_rolling(&rolling, errors),
        "Recreate" if recreate => forbid_rolling(&rolling, errors),
        _ if recreate => strategy.invalid("must be 'RollingUpdate', 'OnDelete', or 'Recreate'", errors),
        _ => strategy.invalid("must be 'RollingUpdate' or 'OnDelete'", errors),
    }
}

fn forbid_rolling(rolling: &Cursor, errors: &mut Errors) {
    if rolling.present() {
        rolling.invalid("only allowed for updateStrategy 'RollingUpdate'", errors);
    }
}

fn validate_max_unavailable(most: &Cursor, errors: &mut Errors) {
    if !most.present() {
        return;
    }
    validate_int_or_percent(most, errors);
    if percent(most.value()).unwrap_or_else(|| most.int()) == 0 {
        most.invalid("cannot be 0", errors);
    }
    if is_over_100_percent(most.value()) {
        most.invalid("must not be greater than 100%", errors);
    }
}

fn validate_selector(spec: &Cursor, errors: &mut Errors) {
    let selector = spec.child("selector");
    if !selector.present() {
        selector.required("", errors);
    } else {
        meta::validate_label_selector(selector.value(), &selector.path(), errors);
        if selector.child("matchLabels").is_empty() && selector.child("matchExpressions").is_empty() {
            selector.invalid("empty selector is invalid for statefulset", errors);
        }
    }
    let template = spec.child("template");
    let metadata = template.child("metadata");
    let labels = metadata.child("labels");
    let empty = crate::Map::new();
    match LabelSelector::from_object(selector.value()) {
        Ok(selector) if !selector.matches(labels.map().unwrap_or(&empty)) => {
            let shown = if labels.present() { labels.value().clone() } else { json!({}) };
            labels.invalid_as(shown, "`selector` does not match template `labels`", errors);
        }
        Ok(_) => {}
        Err(why) => selector.invalid(why, errors),
    }
}

/// Validates the template as the pods that will be made from it: with a volume for each claim template, and without the
/// names that the controller overwrites.
fn validate_template(spec: &Cursor, errors: &mut Errors) {
    let mut template = spec.child("template").value().clone();
    for field in ["hostname", "subdomain"] {
        template.cut(&["spec", field]);
    }
    let mut volumes = template.items(&["spec", "volumes"]).to_vec();
    for claim in spec.child("volumeClaimTemplates").list() {
        let name = claim.text(&["metadata", "name"]);
        let volume = json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        match volumes.iter_mut().find(|other| other.text(&["name"]) == name) {
            Some(other) => *other = volume,
            None => volumes.push(volume),
        }
    }
    if !volumes.is_empty() {
        template.put(&["spec", "volumes"], volumes);
    }
    pod::validate_template(&template, &spec.path().child("template"), errors);
}

pub(super) fn status(new: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::new("status");
    let status = Cursor::new(new.at(&["status"]).unwrap_or(&NOTHING), &path);
    let counters = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    for counter in counters {
        status.child(counter).non_negative(errors);
    }
    let all = status.child("replicas").int();
    for part in ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"] {
        if status.child(part).int() > all {
            status.child(part).invalid_as(status.child(part).int(), "cannot be greater than status.replicas", errors);
        }
    }
    if status.child("availableReplicas").int() > status.child("readyReplicas").int() {
        status.child("availableReplicas").invalid("cannot be greater than status.readyReplicas", errors);
    }
    let collisions = status.child("collisionCount");
    if old.int(&["status", "collisionCount"]).is_some_and(|before| !collisions.present() || collisions.int() < before) {
        collisions.invalid_as(collisions.int(), "cannot be decremented", errors);
    }
}
