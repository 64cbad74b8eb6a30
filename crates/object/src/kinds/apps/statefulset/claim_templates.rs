//! Allowed changes of claim templates (KEP-4650): a larger size, the VolumeAttributesClass, labels and annotations. Any
//! other change would need a new volume.

use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kinds::volumes::validate_claim_spec;
use crate::quantity::Quantity;
use crate::{Value, json};
use crate::{meta, schema};

const CHANGEABLE: [&[&str]; 4] = [
    &["spec", "resources", "requests", "storage"],
    &["spec", "volumeAttributesClassName"],
    &["metadata", "labels"],
    &["metadata", "annotations"],
];
const ALLOWED: &str = "field is immutable; of a template only spec.resources.requests.storage (increase only), \
                       spec.volumeAttributesClassName, metadata.labels and metadata.annotations may change";

/// Validates a change of the templates. `changeable` tells whether any change is allowed.
pub(super) fn validate_change(new: &Value, old: &Value, changeable: bool, errors: &mut Errors) {
    let path = Path::new("spec.volumeClaimTemplates");
    let (templates, before) = (new.items(&[]), old.items(&[]));
    if !changeable {
        if templates.len() != before.len() || templates.iter().zip(before).any(|(new, old)| !same(new, old)) {
            errors.invalid(&path, new.clone(), "field is immutable");
        }
        return;
    }
    if let Some(what) = forbidden_difference(templates, before) {
        errors.invalid(&path, new.clone(), format!("{ALLOWED}: {what}"));
        return;
    }
    for (index, (new, old)) in templates.iter().zip(before).enumerate() {
        validate_template(new, old, &path.index(index), errors);
    }
}

/// Whether two templates are semantically equal: `1Gi` equals `1024Mi`.
fn same(a: &Value, b: &Value) -> bool {
    schema::builtin_type("io.k8s.api.core.v1.PersistentVolumeClaim").same(a, b)
}

/// Returns the first difference that is not allowed, as a sentence.
fn forbidden_difference(new: &[Value], old: &[Value]) -> Option<String> {
    let names = |templates: &[Value]| templates.iter().map(|template| name(template).to_owned()).collect::<Vec<_>>();
    if names(new) != names(old) {
        return Some(format!("the templates were {:?} in this order and cannot become {:?}", names(old), names(new)));
    }
    let mut pairs = new.iter().zip(old).map(|(new, old)| (fixed(new), fixed(old)));
    pairs.find(|(new, old)| !same(new, old)).map(|(new, old)| {
        let differs = |part: &str, field: &str| {
            let only = |template: &Value| match template.at(&[part, field]) {
                Some(value) => json!({part: {field: value}}),
                None => json!({}),
            };
            !same(&only(&new), &only(&old))
        };
        let fields = |part: &'static str| {
            let keys = new.members(&[part]).keys().chain(old.members(&[part]).keys());
            let mut keys: Vec<String> =
                keys.filter(|key| differs(part, key)).map(|key| format!("{part}.{key}")).collect();
            keys.sort();
            keys.dedup();
            keys
        };
        let fields = [fields("metadata"), fields("spec")].concat();
        format!("template {:?} differs in {}", name(&old), fields.join(", "))
    })
}

/// Returns the template without the fields that may change.
fn fixed(template: &Value) -> Value {
    let mut template = template.clone();
    for field in CHANGEABLE {
        template.cut(field);
    }
    for emptied in [&["spec", "resources", "requests"][..], &["spec", "resources"][..]] {
        if template.members(emptied).is_empty() {
            template.cut(emptied);
        }
    }
    // The status in a template has no effect, so it may change.
    template.cut(&["status"]);
    template
}

/// Validates only changed fields, so that templates accepted under older rules can still be updated.
fn validate_template(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let changed = |field: &[&str]| new.at(field) != old.at(field);
    let (storage, class) = (CHANGEABLE[0], CHANGEABLE[1]);
    if changed(storage) || changed(class) {
        let mut before = Errors::default();
        validate_claim_spec(old.at(&["spec"]).unwrap_or(&Value::Null), &path.child("spec"), &mut before);
        let mut now = Errors::default();
        validate_claim_spec(new.at(&["spec"]).unwrap_or(&Value::Null), &path.child("spec"), &mut now);
        // With errors left out, it is unknown which errors are new.
        if !now.leaves_out() {
            now.0.retain(|error| !before.0.contains(error));
        }
        errors.extend(now);
    }
    let size = |template: &Value| template.at(storage).and_then(Quantity::of);
    match (size(new), size(old)) {
        (Some(new), Some(old)) if !new.is_whole() && new != old => {
            let at = path.child("spec").child("resources").child("requests").key("storage");
            errors.forbidden(&at, "a size is a whole number of bytes");
        }
        (Some(new), Some(old)) if new < old => {
            let at = path.child("spec").child("resources").child("requests").key("storage");
            errors.forbidden(&at, "field can not be less than previous value");
        }
        _ => {}
    }
    let metadata = path.child("metadata");
    if changed(CHANGEABLE[2]) {
        meta::validate_labels(meta::member(meta::member(new, "metadata"), "labels"), &metadata.child("labels"), errors);
    }
    if changed(CHANGEABLE[3]) {
        let annotations = meta::member(meta::member(new, "metadata"), "annotations");
        meta::validate_annotations(annotations, &metadata.child("annotations"), errors);
    }
}
