//! ControllerRevision: an immutable snapshot of a template.

use crate::access::{Access, controller, name};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::table::{AGE, Column, NAME, age, column};
use crate::{Value, json};

pub(super) struct RevisionRules;

const COLUMNS: &[Column] = &[
    NAME,
    column("Controller", "string", "The object whose template this revision holds."),
    column("Revision", "integer", "The revision's place in the controller's history."),
    AGE,
];

impl Rules for RevisionRules {
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("data");
        match object.at(&["data"]) {
            None => errors.required(&path, "data is mandatory"),
            Some(Value::Object(_)) => {}
            Some(_) => errors.required(&path, "data must be a valid JSON object"),
        }
        let revision = object.int(&["revision"]).unwrap_or(0);
        if revision < 0 {
            errors.invalid(&Path::new("revision"), revision, "must be greater than or equal to 0");
        }
    }
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        self.validate_create(new, ctx, errors);
        if new.at(&["data"]) != old.at(&["data"]) {
            errors.invalid(&Path::new("data"), new.at(&["data"]).cloned().unwrap_or(Value::Null), "field is immutable");
        }
    }
    fn columns(&self) -> &[Column] {
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let revision = object.int(&["revision"]).unwrap_or(0);
        vec![json!(name(object)), json!(owner_of(object)), json!(revision), json!(age(object, now))]
    }
}

/// Returns the owner as `statefulset.apps/web`.
fn owner_of(object: &Value) -> String {
    let Some(owner) = controller(object) else { return "<none>".to_owned() };
    let group = owner.text(&["apiVersion"]).split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
    format!("{}{group}/{}", owner.text(&["kind"]).to_lowercase(), owner.text(&["name"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::Gates;

    fn errors_of(new: Value, old: Option<Value>) -> Vec<String> {
        let (gates, mut errors) = (Gates::default(), Errors::default());
        let ctx = Ctx { gates: &gates, now: jiff::Timestamp::UNIX_EPOCH };
        match old {
            None => RevisionRules.validate_create(&new, &ctx, &mut errors),
            Some(old) => RevisionRules.validate_update(&new, &old, &ctx, &mut errors),
        }
        errors.0.iter().map(ToString::to_string).collect()
    }

    /// Contract scenario A28.
    #[test]
    fn data_is_an_object_and_never_changes() {
        let cases = [
            (json!({}), None, vec!["data: Required value: data is mandatory"]),
            (json!({"data": null}), None, vec!["data: Required value: data is mandatory"]),
            (json!({"data": []}), None, vec!["data: Required value: data must be a valid JSON object"]),
            (json!({"data": "x"}), None, vec!["data: Required value: data must be a valid JSON object"]),
            (
                json!({"data": {}, "revision": -1}),
                None,
                vec!["revision: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                json!({"data": {"a": 1}}),
                Some(json!({"data": {}})),
                vec!["data: Invalid value: {\"a\":1}: field is immutable"],
            ),
            (json!({"data": {}, "revision": 2}), Some(json!({"data": {}, "revision": 1})), vec![]),
        ];
        for (new, old, want) in cases {
            assert_eq!(errors_of(new.clone(), old), want, "{new}");
        }
    }

    #[test]
    fn the_controller_is_named_with_its_group() {
        let owned = json!({"metadata": {"name": "web-1", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": true}]}, "revision": 3});
        let now = jiff::Timestamp::UNIX_EPOCH;
        assert_eq!(
            RevisionRules.cells(&owned, now),
            [json!("web-1"), json!("statefulset.apps/web"), json!(3), json!("<unknown>")]
        );
        assert_eq!(RevisionRules.cells(&json!({}), now)[1], "<none>");
    }
}
