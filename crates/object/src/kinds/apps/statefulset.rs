//! StatefulSet: defaults, gated fields, allowed updates, warnings, columns.

mod claim_templates;
mod validate;

use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::gates::Gates;
use crate::kind::{Ctx, NameRule, Rules};
use crate::kinds::volumes::default_claim_spec;
use crate::pod;
use crate::table::{AGE, Column, NAME, age, column, wide};
use crate::{Value, json};

pub(super) struct StatefulSetRules;

const ROLLING: &[&str] = &["spec", "updateStrategy", "rollingUpdate"];
const MAX_UNAVAILABLE: &[&str] = &["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"];
const RETENTION: &[&str] = &["spec", "persistentVolumeClaimRetentionPolicy"];
const ORDINALS: &[&str] = &["spec", "ordinals"];
const UPDATE_POLICY: &[&str] = &["spec", "volumeClaimUpdatePolicy"];
/// Maximum length of a label value.
const LABEL_MAX: usize = 63;
/// A revision's name ends in a dash and a hash of at most ten characters.
const HASH_LEN: usize = 11;

const COLUMNS: &[Column] = &[
    NAME,
    column("Ready", "string", "How many of the wanted pods are ready."),
    AGE,
    wide("Containers", "string", "Names of the containers in the template."),
    wide("Images", "string", "Images of the containers in the template."),
];

impl Rules for StatefulSetRules {
    fn name_rule(&self) -> NameRule {
        NameRule::Label
    }
    fn counts_generations(&self) -> bool {
        true
    }
    fn default(&self, object: &mut Value, ctx: &Ctx) {
        default(object, ctx.gates);
    }
    fn prepare_create(&self, object: &mut Value, ctx: &Ctx) {
        drop_gated(object, None, ctx.gates);
        object.put(&["status"], json!({"replicas": 0, "availableReplicas": 0}));
    }
    fn prepare_update(&self, new: &mut Value, old: &Value, ctx: &Ctx) {
        drop_gated(new, Some(old), ctx.gates);
    }
    fn prepare_status(&self, new: &mut Value, _old: &Value, _ctx: &Ctx) {
        for field in ["replicas", "availableReplicas"] {
            if !new.has(&["status", field]) {
                new.put(&["status", field], 0);
            }
        }
    }
    fn validate_create(&self, object: &Value, ctx: &Ctx, errors: &mut Errors) {
        validate::create(object, ctx.gates, errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        validate::update(new, old, ctx.gates, errors);
    }
    fn validate_status(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        validate::status(new, old, errors);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>, ctx: &Ctx) -> Vec<String> {
        warnings(new, old, ctx.gates)
    }
    fn columns(&self) -> &[Column] {
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let (ready, wanted) = (object.int(&["status", "readyReplicas"]), object.int(&["spec", "replicas"]));
        let containers = object.items(&["spec", "template", "spec", "containers"]);
        let joined = |field: &str| containers.iter().map(|each| each.text(&[field])).collect::<Vec<_>>().join(",");
        vec![
            json!(name(object)),
            json!(format!("{}/{}", ready.unwrap_or(0), wanted.unwrap_or(0))),
            json!(age(object, now)),
            json!(joined("name")),
            json!(joined("image")),
        ]
    }
}

fn default(object: &mut Value, gates: &Gates) {
    let missing = |object: &Value, path: &[&str]| !object.has(path);
    object.default_to(&["spec", "podManagementPolicy"], "OrderedReady");
    // This field is always serialized, even if empty.
    object.default_to(&["spec", "serviceName"], "");
    for (field, value) in [("replicas", 1), ("revisionHistoryLimit", 10)] {
        if missing(object, &["spec", field]) {
            object.put(&["spec", field], value);
        }
    }
    default_strategy(object, gates);
    if gates.on("StatefulSetAutoDeletePVC") {
        for half in ["whenDeleted", "whenScaled"] {
            object.default_to(&[RETENTION, &[half]].concat(), "Retain");
        }
    }
    if gates.on("StatefulSetUpdateVolumeClaimTemplate") {
        object.default_to(UPDATE_POLICY, "OnClaimDelete");
    }
    if object.at(ORDINALS).is_some_and(Value::is_object) && missing(object, &["spec", "ordinals", "start"]) {
        object.put(&["spec", "ordinals", "start"], 0);
    }
    let template = object.entry(&["spec", "template"]);
    if missing(template, &["metadata"]) {
        template.put(&["metadata"], json!({}));
    }
    pod::default_spec(template.entry(&["spec"]));
    default_claim_templates(object);
}

/// `rollingUpdate` is added only if the type was absent too. An explicit type without it stays as it is; clients rely
/// on that.
fn default_strategy(object: &mut Value, gates: &Gates) {
    if object.text(&["spec", "updateStrategy", "type"]).is_empty() {
        object.put(&["spec", "updateStrategy", "type"], "RollingUpdate");
        if !object.has(ROLLING) {
            object.put(ROLLING, json!({}));
        }
    }
    if object.text(&["spec", "updateStrategy", "type"]) == "RollingUpdate" && object.has(ROLLING) {
        let rolling = object.entry(ROLLING);
        if !rolling.has(&["partition"]) {
            rolling.put(&["partition"], 0);
        }
        if gates.on("MaxUnavailableStatefulSet") && !rolling.has(&["maxUnavailable"]) {
            rolling.put(&["maxUnavailable"], 1);
        }
    }
}

/// Applies claim defaults to the claim templates, so that applying the same manifest again changes nothing.
fn default_claim_templates(object: &mut Value) {
    let templates = object.get_mut("spec").and_then(|spec| spec.get_mut("volumeClaimTemplates"));
    for template in
        templates.and_then(Value::as_array_mut).into_iter().flatten().filter(|template| template.is_object())
    {
        template.put(&["apiVersion"], "v1");
        template.put(&["kind"], "PersistentVolumeClaim");
        template.default_to(&["status", "phase"], "Pending");
        default_claim_spec(template.entry(&["spec"]));
    }
}

/// Drops new values of fields whose feature gate is off. Stored values are kept.
fn drop_gated(new: &mut Value, old: Option<&Value>, gates: &Gates) {
    let gated = [
        ("MaxUnavailableStatefulSet", MAX_UNAVAILABLE),
        ("StatefulSetAutoDeletePVC", RETENTION),
        ("StatefulSetStartOrdinal", ORDINALS),
        ("StatefulSetUpdateVolumeClaimTemplate", UPDATE_POLICY),
    ];
    for (gate, field) in gated {
        if !gates.on(gate) && !old.is_some_and(|old| old.has(field)) {
            new.cut(field);
        }
    }
}

fn warnings(new: &Value, old: Option<&Value>, gates: &Gates) -> Vec<String> {
    let mut says = Vec::new();
    let template = new.at(&["spec", "template"]);
    if old.is_none_or(|old| old.at(&["spec"]) != new.at(&["spec"])) {
        says.extend(
            template.map(|template| pod::template_warnings(template, &Path::new("spec.template"))).unwrap_or_default(),
        );
    }
    for (index, template) in new.items(&["spec", "volumeClaimTemplates"]).iter().enumerate() {
        let path = Path::new("spec.volumeClaimTemplates").index(index);
        let path = if old.is_some() { path.child("Spec") } else { path };
        says.extend(pod::claim_warnings(template.at(&["spec"]), &path));
    }
    if new.int(&["spec", "revisionHistoryLimit"]).is_some_and(|limit| limit < 0) {
        let why =
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
        says.push(why.to_owned());
    }
    if gates.on("StatefulSetOrdinalPartition") && gates.on("StatefulSetStartOrdinal") {
        says.extend(partition_warning(new));
    }
    if old.is_none() {
        says.extend(name_warnings(new));
    }
    says
}

/// Ordinals of the set: the first one, and the one after the last.
fn range(object: &Value) -> (i64, i64) {
    let start = object.int(&["spec", "ordinals", "start"]).unwrap_or(0);
    (start, start.saturating_add(object.int(&["spec", "replicas"]).unwrap_or(1)))
}

/// Returns a warning if the partition is outside the set's ordinals: then it holds back all pods or none, which is
/// rarely intended. Zero is the default and gives no warning.
fn partition_warning(object: &Value) -> Option<String> {
    let (start, end) = range(object);
    let partition = object.int(&[ROLLING, &["partition"]].concat())?;
    let effect = match partition {
        _ if start == 0 || partition <= 0 => return None,
        _ if partition < start => "all pods will be updated",
        _ if partition >= end => "no pod will be updated",
        _ => return None,
    };
    let last = end.saturating_sub(1).max(start);
    Some(format!(
        "spec.updateStrategy.rollingUpdate.partition: {partition} is outside the set's ordinals {start} to {last}: {effect}"
    ))
}

/// Pods have their own name and their revision's name as label values, which must be shorter than names.
fn name_warnings(object: &Value) -> Vec<String> {
    let (start, end) = range(object);
    let last = end.saturating_sub(1).max(start);
    let name = name(object);
    let labels = [
        ("statefulset.kubernetes.io/pod-name", name.len() + 1 + last.to_string().len()),
        ("controller-revision-hash", name.len() + HASH_LEN),
    ];
    let too_long = labels.into_iter().filter(|(_, len)| *len > LABEL_MAX);
    too_long
        .map(|(label, len)| {
            format!(
                "metadata.name: {name:?} is too long: the label {label} of its pods would have up to {len} characters, \
                 but labels have at most {LABEL_MAX}, so pods may not be created"
            )
        })
        .collect()
}

#[cfg(test)]
mod tests;
