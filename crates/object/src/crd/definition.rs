//! The kind CustomResourceDefinition: defaults, allowed updates, columns.

use super::check;
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::meta::validate_immutable;
use crate::table::{Column, NAME, column};
use crate::{Value, json};

pub struct Definition;

const COLUMNS: &[Column] = &[
    NAME,
    column(
        "Created At",
        "date",
        "CreationTimestamp is a timestamp representing the server time when this object was created.",
    ),
];

impl Rules for Definition {
    fn counts_generations(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        let kind = object.text(&["spec", "names", "kind"]).to_owned();
        if !kind.is_empty() {
            object.default_to(&["spec", "names", "singular"], kind.to_lowercase());
            object.default_to(&["spec", "names", "listKind"], format!("{kind}List"));
        }
        if object.has(&["spec"]) && !object.has(&["spec", "conversion"]) {
            object.put(&["spec", "conversion"], json!({"strategy": "None"}));
        }
        // False is the default and is not stored.
        if object.at(&["spec", "preserveUnknownFields"]) == Some(&json!(false)) {
            object.cut(&["spec", "preserveUnknownFields"]);
        }
    }

    fn prepare_create(&self, object: &mut Value, _ctx: &Ctx) {
        object.put(&["status"], json!({"acceptedNames": {"plural": "", "kind": ""}, "conditions": []}));
        super::names::store_version(object);
    }

    fn prepare_update(&self, new: &mut Value, _old: &Value, _ctx: &Ctx) {
        super::names::store_version(new);
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, _ctx: &Ctx) {
        super::names::keep_verdict(new, old);
    }

    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        check::definition(object, None, errors);
    }

    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        check::definition(new, Some(old), errors);
        let spec = Path::new("spec");
        let mut fixed: Vec<&[&str]> = vec![&["group"], &["names", "plural"]];
        if super::names::condition_is(old, "Established", "True") {
            fixed.extend([["scope"].as_slice(), ["names", "kind"].as_slice()]);
        }
        for path in fixed {
            let full: Vec<&str> = std::iter::once("spec").chain(path.iter().copied()).collect();
            let shown = path.iter().fold(spec.clone(), |at, part| at.child(part));
            validate_immutable(new.at(&full), old.at(&full), &shown, errors);
        }
        check::stored_versions(new, errors);
    }

    fn validate_status(&self, new: &Value, _old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("status").child("acceptedNames");
        if let Some(names) = new.at(&["status", "acceptedNames"]) {
            check::names(names, &path, errors);
        }
        check::stored_versions(new, errors);
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>, _ctx: &Ctx) -> Vec<String> {
        check::format_warnings(new)
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        vec![json!(name(object)), json!(object.text(&["metadata", "creationTimestamp"]))]
    }

    fn selectable_fields(&self) -> &[&str] {
        &[]
    }
}
