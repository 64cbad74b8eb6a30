//! Kinds: Pod.

use super::row;
use crate::access::Access;
use crate::field::Errors;
use crate::kind::{Ctx, Kind, Rules, Subresource};
use crate::pod;
use crate::selector::plain_field;
use crate::table::Column;
use crate::{Value, json};

pub fn rows() -> Vec<Kind> {
    vec![
        row("", "v1", "Pod", "pods", "io.k8s.api.core.v1.Pod")
            .short(&["po"])
            .category("all")
            .with_status()
            .with(Subresource::Binding)
            .with(Subresource::Eviction)
            .rules(PodRules),
    ]
}

struct PodRules;

impl Rules for PodRules {
    fn counts_generations(&self) -> bool {
        true
    }
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        pod::default_pod(object);
    }
    fn prepare_create(&self, object: &mut Value, ctx: &Ctx) {
        let mut status = json!({"phase": "Pending", "qosClass": pod::qos_class(object)});
        if !object.items(&["spec", "schedulingGates"]).is_empty() {
            status["conditions"] = json!([gated(ctx.now)]);
        }
        object.put(&["status"], status);
    }
    fn prepare_status(&self, new: &mut Value, old: &Value, _ctx: &Ctx) {
        for field in ["qosClass", "observedGeneration"] {
            if !new.has(&["status", field])
                && let Some(kept) = old.at(&["status", field])
            {
                new.put(&["status", field], kept.clone());
            }
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        pod::validate_create(object, errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        pod::validate_update(new, old, errors);
    }
    fn validate_status(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        pod::validate_status(new, old, errors);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>, _ctx: &Ctx) -> Vec<String> {
        // Warn only at creation: a pod's spec can hardly change, so repeating the warnings on each update would not
        // help.
        if old.is_none() { pod::pod_warnings(new) } else { Vec::new() }
    }
    fn grace_seconds(&self, object: &Value, asked: Option<i64>) -> Option<i64> {
        let unscheduled = object.text(&["spec", "nodeName"]).is_empty();
        let ended = matches!(object.text(&["status", "phase"]), "Succeeded" | "Failed");
        let wanted = asked.or_else(|| object.int(&["spec", "terminationGracePeriodSeconds"])).unwrap_or(0);
        let grace = match wanted {
            // Nothing runs that could use the grace period.
            _ if unscheduled || ended => 0,
            ..0 => 1,
            _ => wanted,
        };
        Some(grace)
    }
    fn columns(&self) -> &[Column] {
        pod::COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        pod::cells(object, now)
    }
    fn selectable_fields(&self) -> &[&str] {
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ]
    }
    fn field_value(&self, object: &Value, field: &str) -> String {
        match field {
            "spec.hostNetwork" => object.flag(&["spec", "hostNetwork"]).to_string(),
            _ => plain_field(object, field),
        }
    }
}

/// Returns the condition that explains why a pod with scheduling gates is not scheduled.
fn gated(now: jiff::Timestamp) -> Value {
    json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastTransitionTime": crate::write::stamp(now),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::Gates;

    #[test]
    fn a_new_pod_is_pending_with_qos_class_and_gate_condition() {
        let gates = Gates::default();
        let ctx = Ctx { gates: &gates, now: "2026-01-01T00:00:00Z".parse().unwrap() };
        let mut pod =
            json!({"spec": {"containers": [{"name": "a", "image": "x"}], "schedulingGates": [{"name": "g"}]}});
        PodRules.default(&mut pod, &ctx);
        PodRules.prepare_create(&mut pod, &ctx);
        assert_eq!(pod["status"]["phase"], "Pending");
        assert_eq!(pod["status"]["qosClass"], "BestEffort");
        assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
        let mut written = json!({"status": {"phase": "Running"}});
        PodRules.prepare_status(&mut written, &pod, &ctx);
        assert_eq!(written["status"], json!({"phase": "Running", "qosClass": "BestEffort"}));
    }

    #[test]
    fn only_scheduled_running_pods_get_a_grace_period() {
        let pod = |node: &str, phase: &str, grace: i64| json!({"spec": {"nodeName": node, "terminationGracePeriodSeconds": grace}, "status": {"phase": phase}});
        let cases = [
            (pod("n", "Running", 30), None, 30),
            (pod("n", "Running", 30), Some(5), 5),
            (pod("n", "Running", 30), Some(0), 0),
            (pod("n", "Running", 30), Some(-1), 1),
            (pod("n", "Running", -7), None, 1),
            (pod("", "Pending", 30), None, 0),
            (pod("", "Pending", 30), Some(60), 0),
            (pod("n", "Succeeded", 30), Some(60), 0),
            (pod("n", "Failed", 30), None, 0),
        ];
        for (pod, asked, want) in cases {
            assert_eq!(PodRules.grace_seconds(&pod, asked), Some(want), "{pod} {asked:?}");
        }
    }

    #[test]
    fn field_selectors_see_the_effective_values() {
        let pod = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
        let value = |field| PodRules.field_value(&pod, field);
        assert_eq!(
            [value("spec.nodeName"), value("status.phase"), value("spec.hostNetwork"), value("status.podIP")],
            ["n", "Running", "false", ""]
        );
        assert!(PodRules.selectable_fields().contains(&"spec.hostNetwork"));
    }

    #[test]
    fn warnings_are_given_only_at_creation() {
        let gates = Gates::default();
        let ctx = Ctx { gates: &gates, now: jiff::Timestamp::UNIX_EPOCH };
        let pod = json!({"spec": {"terminationGracePeriodSeconds": -1}});
        assert_eq!(PodRules.warnings(&pod, None, &ctx).len(), 1);
        assert!(PodRules.warnings(&pod, Some(&pod), &ctx).is_empty());
    }
}
