//! Kinds: PodDisruptionBudget.

use super::row;
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Kind, Rules};
use crate::meta;
use crate::name::qualified;
use crate::pod::Cursor;
use crate::table::{AGE, Column, NAME, age, column};
use crate::{Value, json};

pub fn rows() -> Vec<Kind> {
    vec![
        row("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "io.k8s.api.policy.v1.PodDisruptionBudget")
            .short(&["pdb"])
            .with_status()
            .rules(BudgetRules),
    ]
}

struct BudgetRules;

static NOTHING: Value = Value::Null;

const COLUMNS: &[Column] = &[
    NAME,
    column("Min Available", "string", "How many pods must stay available, as a number or a share."),
    column("Max Unavailable", "string", "How many pods may be unavailable, as a number or a share."),
    column("Allowed Disruptions", "integer", "How many pods may be evicted right now."),
    AGE,
];

impl Rules for BudgetRules {
    fn counts_generations(&self) -> bool {
        true
    }
    fn prepare_create(&self, object: &mut Value, _ctx: &Ctx) {
        object.put(&["status"], json!({}));
        fill_counters(object);
    }
    fn prepare_status(&self, new: &mut Value, _old: &Value, _ctx: &Ctx) {
        fill_counters(new);
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("spec");
        let spec = Cursor::new(object.at(&["spec"]).unwrap_or(&NOTHING), &path);
        let bounds = [spec.child("minAvailable"), spec.child("maxUnavailable")];
        if bounds.iter().all(Cursor::present) {
            spec.invalid("minAvailable and maxUnavailable cannot be both set", errors);
        }
        for bound in bounds.iter().filter(|bound| bound.present()) {
            validate_int_or_percent(bound, errors);
            if is_over_100_percent(bound.value()) {
                bound.invalid("must not be greater than 100%", errors);
            }
        }
        let selector = spec.child("selector");
        meta::validate_label_selector(selector.value(), &selector.path(), errors);
        spec.child("unhealthyPodEvictionPolicy").one_of(&["AlwaysAllow", "IfHealthyBudget"], errors);
    }
    fn validate_status(&self, new: &Value, _old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("status");
        let status = Cursor::new(new.at(&["status"]).unwrap_or(&NOTHING), &path);
        for condition in status.child("conditions").items() {
            validate_condition(&condition, errors);
        }
        for counter in COUNTERS {
            status.child(counter).non_negative(errors);
        }
    }
    fn columns(&self) -> &[Column] {
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let bound = |field: &str| match object.at(&["spec", field]) {
            Some(text @ Value::String(_)) => text.clone(),
            Some(other) => json!(other.to_string()),
            None => json!("N/A"),
        };
        let allowed = object.int(&["status", "disruptionsAllowed"]).unwrap_or(0);
        vec![
            json!(name(object)),
            bound("minAvailable"),
            bound("maxUnavailable"),
            json!(allowed),
            json!(age(object, now)),
        ]
    }
}

const COUNTERS: &[&str] = &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];

/// Sets absent counters to zero, because they are always serialized.
fn fill_counters(object: &mut Value) {
    for counter in COUNTERS {
        if !object.has(&["status", counter]) {
            object.put(&["status", counter], 0);
        }
    }
}

fn validate_condition(condition: &Cursor, errors: &mut Errors) {
    condition.child("type").required_name(qualified, errors);
    condition.child("status").required_one_of(&["False", "True", "Unknown"], errors);
    condition.child("observedGeneration").non_negative(errors);
    if condition.child("lastTransitionTime").is_empty() {
        condition.child("lastTransitionTime").required("must be set", errors);
    }
    if condition.child("reason").is_empty() {
        condition.child("reason").required("", errors);
    }
}

/// Checks a number or a percentage of pods: a number from zero, or `30%`.
pub(crate) fn validate_int_or_percent(value: &Cursor, errors: &mut Errors) {
    match value.value() {
        Value::String(_) if percent(value.value()).is_none() => {
            let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex \
                       used for validation is '[0-9]+%')";
            value.invalid(why, errors);
        }
        Value::String(_) => {}
        _ => value.non_negative(errors),
    }
}

/// Returns the number of a percentage such as `30%`.
pub(crate) fn percent(value: &Value) -> Option<i64> {
    let digits = value.as_str()?.strip_suffix('%')?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().unwrap_or(i64::MAX))
}

pub(crate) fn is_over_100_percent(value: &Value) -> bool {
    percent(value).is_some_and(|percent| percent > 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::Gates;

    fn with_ctx<T>(run: impl FnOnce(&Ctx) -> T) -> T {
        let gates = Gates::default();
        run(&Ctx { gates: &gates, now: jiff::Timestamp::UNIX_EPOCH })
    }
    fn errors_of(spec: Value) -> Vec<String> {
        let mut errors = Errors::default();
        with_ctx(|ctx| BudgetRules.validate_create(&json!({"spec": spec}), ctx, &mut errors));
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_budgets_are_refused_with_upstreams_messages() {
        let cases = [
            (
                json!({"minAvailable": 1, "maxUnavailable": 1}),
                vec![
                    "spec: Invalid value: {\"maxUnavailable\":1,\"minAvailable\":1}: minAvailable and maxUnavailable cannot be both set",
                ],
            ),
            (
                json!({"minAvailable": -1}),
                vec!["spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                json!({"maxUnavailable": "101%"}),
                vec!["spec.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"],
            ),
            (
                json!({"maxUnavailable": "x"}),
                vec![
                    "spec.maxUnavailable: Invalid value: \"x\": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
                ],
            ),
            (
                json!({"unhealthyPodEvictionPolicy": "x"}),
                vec![
                    "spec.unhealthyPodEvictionPolicy: Unsupported value: \"x\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
                ],
            ),
            (json!({"minAvailable": "50%", "selector": {}}), vec![]),
            (json!({"maxUnavailable": 0}), vec![]),
        ];
        for (spec, want) in cases {
            assert_eq!(errors_of(spec.clone()), want, "{spec}");
        }
    }

    #[test]
    fn status_counters_default_to_zero_and_are_not_negative() {
        let mut budget = json!({"spec": {}});
        with_ctx(|ctx| BudgetRules.prepare_create(&mut budget, ctx));
        assert_eq!(
            budget["status"],
            json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0})
        );
        let mut errors = Errors::default();
        let new =
            json!({"status": {"currentHealthy": -1, "conditions": [{"type": "DisruptionAllowed", "status": "Maybe"}]}});
        with_ctx(|ctx| BudgetRules.validate_status(&new, &budget, ctx, &mut errors));
        let messages: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "status.conditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\"",
                "status.conditions[0].lastTransitionTime: Required value: must be set",
                "status.conditions[0].reason: Required value",
                "status.currentHealthy: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }

    #[test]
    fn columns_show_the_limit_that_is_set() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let budget =
            json!({"metadata": {"name": "b"}, "spec": {"minAvailable": "30%"}, "status": {"disruptionsAllowed": 2}});
        let want = [json!("b"), json!("30%"), json!("N/A"), json!(2), json!("<unknown>")];
        assert_eq!(BudgetRules.cells(&budget, now), want);
        assert_eq!(BudgetRules.columns().len(), want.len());
        assert_eq!(BudgetRules.cells(&json!({"spec": {"maxUnavailable": 1}}), now)[2], "1");
    }
}
