//! The subresource `eviction`: deletes a pod if its disruption budget allows it.

use object::access::{Access, name, terminating};
use object::selector::LabelSelector;
use object::{Status, Value, condition, json, write};

const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
/// Limit of granted evictions that the budget's controller has not confirmed yet.
const UNCONFIRMED_MAX: usize = 2000;

/// The result of an eviction. The pod is deleted (with the Eviction's `deleteOptions`) and the budget stored in one
/// transaction, with the condition that both are unchanged. So budgets are exact, and a pod that becomes ready
/// meanwhile is evaluated again.
#[derive(Clone, Debug, PartialEq)]
pub struct Evicted {
    /// The pod to delete. If a budget applies, the pod has the condition DisruptionTarget.
    pub pod: Value,
    /// The budget with one disruption less; `None` if no budget is charged.
    pub budget: Option<Value>,
}

/// Evaluates an Eviction of `pod`. `budgets` are the PodDisruptionBudgets of its namespace. A dry run does the same
/// and stores nothing.
pub fn evict(pod: &Value, eviction: &Value, budgets: &[Value], now: jiff::Timestamp) -> Result<Evicted, Status> {
    let said = name(eviction);
    if !said.is_empty() && said != name(pod) {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    if is_down_already(pod) {
        return Ok(Evicted { pod: pod.clone(), budget: None });
    }
    let mut guarding = budgets.iter().filter(|budget| guards(budget, pod));
    let budget = match (guarding.next(), guarding.next()) {
        (None, _) => None,
        (Some(budget), None) if is_free(pod, budget) => None,
        (Some(budget), None) => Some(take(pod, budget, now)?),
        (Some(_), Some(_)) => {
            let why =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Status::new(500, "", why));
        }
    };
    let mut evicted = pod.clone();
    let target = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
    });
    condition::set(&mut evicted, &["status", "conditions"], target, now);
    Ok(Evicted { pod: evicted, budget })
}

/// Finished, pending or terminating pods can be evicted without a budget.
fn is_down_already(pod: &Value) -> bool {
    terminating(pod) || matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed" | "Pending")
}

fn guards(budget: &Value, pod: &Value) -> bool {
    let labels = pod.members(&["metadata", "labels"]);
    let selector = budget.at(&["spec", "selector"]).unwrap_or(&Value::Null);
    !labels.is_empty() && LabelSelector::from_object(selector).is_ok_and(|selector| selector.matches(labels))
}

/// A pod that is not ready does not count as healthy. It may be evicted while enough others are healthy, or always if
/// the budget allows that.
fn is_free(pod: &Value, budget: &Value) -> bool {
    if condition::is_true(pod, "Ready") {
        return false;
    }
    let count = |field: &str| budget.int(&["status", field]).unwrap_or(0);
    let (healthy, desired) = (count("currentHealthy"), count("desiredHealthy"));
    budget.text(&["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow" || (healthy >= desired && desired > 0)
}

/// Takes one disruption from the budget for this pod.
fn take(pod: &Value, budget: &Value, now: jiff::Timestamp) -> Result<Value, Status> {
    let count = |field: &str| budget.int(&["status", field]).unwrap_or(0);
    let forbidden =
        |why: &str| Status::forbidden("policy", "poddisruptionbudget", name(budget), why).denied_by_admission();
    if count("observedGeneration") < budget.int(&["metadata", "generation"]).unwrap_or(0) {
        let why = format!("The disruption budget {} is still being processed by the server.", name(budget));
        return Err(Status::too_many_requests(REFUSED, 10).with_cause("DisruptionBudget", why, ""));
    }
    let allowed = count("disruptionsAllowed");
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    if budget.members(&["status", "disruptedPods"]).len() > UNCONFIRMED_MAX {
        return Err(forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller"));
    }
    if allowed == 0 {
        return Err(Status::too_many_requests(REFUSED, 0).with_cause("DisruptionBudget", why_exhausted(budget), ""));
    }
    let mut taken = budget.clone();
    taken.put(&["status", "disruptionsAllowed"], allowed - 1);
    taken.put(&["status", "disruptedPods", name(pod)], write::stamp(now));
    if allowed == 1 {
        let exhausted = json!({
            "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
            "observedGeneration": count("observedGeneration"),
        });
        condition::set(&mut taken, &["status", "conditions"], exhausted, now);
    }
    Ok(taken)
}

fn why_exhausted(budget: &Value) -> String {
    let count = |field: &str| budget.int(&["status", field]).unwrap_or(0);
    let told = condition::get(budget, "DisruptionAllowed");
    match told.filter(|told| told.text(&["reason"]) == "SyncFailed") {
        Some(failed) => format!(
            "The disruption budget {} does not allow evicting pods currently because it failed sync: {}",
            name(budget),
            failed.text(&["message"])
        ),
        None => format!(
            "The disruption budget {} needs {} healthy pods and has {} currently",
            name(budget),
            count("desiredHealthy"),
            count("currentHealthy")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }

    fn pod(phase: &str, ready: bool) -> Value {
        let ready = if ready { "True" } else { "False" };
        json!({
            "metadata": {"name": "p", "labels": {"app": "x"}},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    fn budget(allowed: i64, healthy: i64, desired: i64) -> Value {
        json!({
            "metadata": {"name": "b", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "x"}}},
            "status": {
                "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": desired,
            },
        })
    }

    fn run(pod: &Value, budgets: &[Value]) -> Result<Evicted, Status> {
        evict(pod, &json!({"metadata": {"name": "p"}}), budgets, now())
    }

    #[test]
    fn a_disruption_is_taken_from_the_budget() {
        let evicted = run(&pod("Running", true), &[budget(2, 3, 1)]).unwrap();
        let taken = evicted.budget.unwrap();
        assert_eq!(taken["status"]["disruptionsAllowed"], 1);
        assert_eq!(taken["status"]["disruptedPods"], json!({"p": "1970-01-01T00:00:00Z"}));
        assert!(condition::get(&taken, "DisruptionAllowed").is_none());
        let target = condition::get(&evicted.pod, "DisruptionTarget").unwrap();
        assert_eq!(
            (target.text(&["reason"]), target.text(&["message"])),
            ("EvictionByEvictionAPI", "Eviction API: evicting")
        );
        let last = run(&pod("Running", true), &[budget(1, 3, 2)]).unwrap().budget.unwrap();
        assert_eq!(condition::get(&last, "DisruptionAllowed").unwrap()["reason"], "InsufficientPods");
    }

    #[test]
    fn an_exhausted_or_unread_budget_refuses() {
        let refused = run(&pod("Running", true), &[budget(0, 2, 2)]).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (429, REFUSED));
        let details = refused.details.unwrap();
        assert_eq!(details.causes[0].reason, "DisruptionBudget");
        assert_eq!(details.causes[0].message, "The disruption budget b needs 2 healthy pods and has 2 currently");
        assert_eq!(details.retry_after_seconds, 0);

        let mut stale = budget(5, 5, 1);
        stale.put(&["metadata", "generation"], 2);
        let refused = run(&pod("Running", true), &[stale]).unwrap_err();
        let details = refused.details.unwrap();
        assert_eq!((refused.code, details.retry_after_seconds), (429, 10));
        assert_eq!(details.causes[0].message, "The disruption budget b is still being processed by the server.");

        let two = run(&pod("Running", true), &[budget(1, 1, 0), budget(1, 1, 0)]).unwrap_err();
        assert_eq!(two.code, 500);
        assert!(two.message.starts_with("This pod has more than one PodDisruptionBudget"));
        assert_eq!(run(&pod("Running", true), &[budget(-1, 1, 0)]).unwrap_err().code, 403);
    }

    #[test]
    fn pods_that_are_down_go_without_asking() {
        let mut going = pod("Running", true);
        going.put(&["metadata", "deletionTimestamp"], "2024-01-01T00:00:00Z");
        for down in [pod("Pending", false), pod("Succeeded", false), pod("Failed", true), going] {
            assert_eq!(run(&down, &[budget(0, 0, 1)]).unwrap(), Evicted { pod: down, budget: None });
        }
    }

    #[test]
    fn unready_pods_go_while_enough_others_are_healthy_or_always_if_the_budget_says_so() {
        let unready = pod("Running", false);
        assert_eq!(run(&unready, &[budget(0, 2, 2)]).unwrap().budget, None);
        assert_eq!(run(&unready, &[budget(0, 1, 2)]).unwrap_err().code, 429);
        assert_eq!(run(&unready, &[budget(0, 0, 0)]).unwrap_err().code, 429);
        let mut always = budget(0, 1, 2);
        always.put(&["spec", "unhealthyPodEvictionPolicy"], "AlwaysAllow");
        assert_eq!(run(&unready, &[always]).unwrap().budget, None);
    }

    #[test]
    fn only_budgets_that_select_the_pod_count() {
        let mut other = budget(0, 0, 1);
        other.put(&["spec", "selector", "matchLabels", "app"], "y");
        let mut nothing = budget(0, 0, 1);
        nothing.cut(&["spec", "selector"]);
        assert!(run(&pod("Running", true), &[other, nothing]).unwrap().budget.is_none());
        let wrong = evict(&pod("Running", true), &json!({"metadata": {"name": "q"}}), &[], now()).unwrap_err();
        assert_eq!((wrong.code, wrong.message.as_str()), (400, "name in URL does not match name in Eviction object"));
    }
}
