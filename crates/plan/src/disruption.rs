//! PodDisruptionBudgets: how many of the selected pods may be evicted now.

use object::access::{Access, controller, name, namespace, terminating};
use object::selector::LabelSelector;
use object::{Value, condition, json};
use std::collections::{BTreeMap, BTreeSet};

/// A granted eviction whose pod is not deleted within this time no longer counts.
const DELETION_TIMEOUT_S: i64 = 120;

/// The scale of a pod's controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// `spec.replicas`, or that of the scale subresource.
    Replicas(i64),
    /// The controller does not exist, or its name belongs to another object.
    Gone,
    /// The controller has no scale.
    None,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct BudgetPlan {
    /// The budget with its new status, to PUT to `/status` if it changed.
    pub status: Option<Value>,
    pub events: Vec<BudgetEvent>,
    /// When a granted eviction times out: plan again then.
    pub next: Option<jiff::Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetEvent {
    /// The pod that the event is about; `None` for the budget.
    pub pod: Option<String>,
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// Whether the budget selects `pod`. An absent selector selects nothing, an empty one all pods of the
/// namespace.
pub fn selects(budget: &Value, pod: &Value) -> bool {
    let selector = budget.at(&["spec", "selector"]).unwrap_or(&Value::Null);
    namespace(budget) == namespace(pod)
        && LabelSelector::from_object(selector)
            .is_ok_and(|selector| selector.matches(pod.members(&["metadata", "labels"])))
}

/// Plans the status of a budget. `pods` are those of its namespace; `scale` returns the scale of a
/// controlling owner reference.
pub fn plan(budget: &Value, pods: &[&Value], scale: impl Fn(&Value) -> Scale, now: jiff::Timestamp) -> BudgetPlan {
    let pods: Vec<&Value> = pods.iter().copied().filter(|pod| selects(budget, pod)).collect();
    let mut plan = BudgetPlan::default();
    if pods.is_empty() {
        plan.event(false, "NoPods", "No matching pods found".to_owned());
    }
    let mut changed = budget.clone();
    match desired(budget, &pods, scale, &mut plan) {
        Ok((expected, desired)) => {
            let (disrupted, next) = still_in_flight(budget, &pods, now, &mut plan.events);
            plan.next = next;
            let healthy = pods.iter().filter(|pod| is_healthy(pod, &disrupted)).count();
            let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
            let allowed = if expected <= 0 { 0 } else { (healthy - desired).max(0) };
            changed.put(&["status", "currentHealthy"], healthy);
            changed.put(&["status", "desiredHealthy"], desired);
            changed.put(&["status", "expectedPods"], expected);
            changed.put(&["status", "disruptionsAllowed"], allowed);
            if disrupted.is_empty() {
                changed.cut(&["status", "disruptedPods"]);
            } else {
                changed.put(&["status", "disruptedPods"], json!(disrupted));
            }
            settle(&mut changed, condition_of(allowed), now);
        }
        Err(why) => {
            let message = format!("Failed to calculate the number of expected pods: {why}");
            plan.event(true, "CalculateExpectedPodCountFailed", message);
            // The state is unknown, so no eviction is allowed.
            changed.put(&["status", "disruptionsAllowed"], 0);
            settle(&mut changed, ("False", "SyncFailed", why), now);
        }
    }
    plan.status = (changed != *budget).then_some(changed);
    plan
}

impl BudgetPlan {
    fn event(&mut self, warning: bool, reason: &'static str, message: String) {
        self.events.push(BudgetEvent { pod: None, warning, reason, message });
    }
}

fn condition_of(allowed: i64) -> (&'static str, &'static str, String) {
    if allowed > 0 { ("True", "SufficientPods", String::new()) } else { ("False", "InsufficientPods", String::new()) }
}

fn settle(budget: &mut Value, (status, reason, message): (&str, &str, String), now: jiff::Timestamp) {
    let generation = budget.int(&["metadata", "generation"]).unwrap_or(0);
    budget.put(&["status", "observedGeneration"], generation);
    let condition = json!({
        "type": "DisruptionAllowed", "status": status, "reason": reason, "message": message,
        "observedGeneration": generation,
    });
    condition::set(budget, &["status", "conditions"], condition, now);
}

/// Returns the expected number of pods, and how many of them must be healthy.
fn desired(
    budget: &Value,
    pods: &[&Value],
    scale: impl Fn(&Value) -> Scale,
    plan: &mut BudgetPlan,
) -> Result<(i64, i64), String> {
    let counted = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    if let Some(most) = budget.at(&["spec", "maxUnavailable"]) {
        let expected = expected(budget, pods, scale, plan)?;
        return Ok((expected, (expected - share(most, expected)?).max(0)));
    }
    match budget.at(&["spec", "minAvailable"]) {
        Some(least @ Value::String(_)) => {
            let expected = expected(budget, pods, scale, plan)?;
            Ok((expected, share(least, expected)?))
        }
        Some(least) => Ok((counted, share(least, counted)?)),
        None => Ok((counted, 0)),
    }
}

/// The sum of the replicas of the pods' controllers.
fn expected(
    budget: &Value,
    pods: &[&Value],
    scale: impl Fn(&Value) -> Scale,
    plan: &mut BudgetPlan,
) -> Result<i64, String> {
    let mut counted: BTreeMap<&str, i64> = BTreeMap::new();
    let mut unmanaged: BTreeSet<&str> = BTreeSet::new();
    for pod in pods {
        let Some(controller) = controller(pod) else {
            unmanaged.insert(name(pod));
            continue;
        };
        let uid = controller.text(&["uid"]);
        if counted.contains_key(uid) {
            continue;
        }
        match scale(controller) {
            Scale::Replicas(replicas) => drop(counted.insert(uid, replicas)),
            Scale::Gone => return Err(format!("found no controllers for pod {:?}", name(pod))),
            Scale::None => {
                let (api_version, kind) = (controller.text(&["apiVersion"]), controller.text(&["kind"]));
                let (group, _) = api_version.split_once('/').unwrap_or(("", api_version));
                let what = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
                return Err(format!("{what} does not implement the scale subresource"));
            }
        }
    }
    if !unmanaged.is_empty() {
        let selector = LabelSelector::from_object(budget.at(&["spec", "selector"]).unwrap_or(&Value::Null))?;
        let message = format!(
            "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the \
             status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these \
             pods please set \".spec.minAvailable\" field of the PDB to an integer value."
        );
        plan.event(true, "UnmanagedPods", message);
    }
    Ok(counted.values().sum())
}

/// A number, or a percentage of `of` rounded up.
fn share(amount: &Value, of: i64) -> Result<i64, String> {
    let wrong = || format!("invalid value for IntOrString: {amount}");
    match amount {
        Value::String(text) => {
            let percent: i64 = text.strip_suffix('%').and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?;
            Ok((percent.saturating_mul(of).saturating_add(99)).div_euclid(100))
        }
        _ => amount.as_i64().ok_or_else(wrong),
    }
}

/// The granted evictions whose pods exist and are not terminating yet: these pods count as disrupted until
/// the timeout.
fn still_in_flight(
    budget: &Value,
    pods: &[&Value],
    now: jiff::Timestamp,
    events: &mut Vec<BudgetEvent>,
) -> (BTreeMap<String, String>, Option<jiff::Timestamp>) {
    let mut kept = BTreeMap::new();
    let mut next: Option<jiff::Timestamp> = None;
    let granted = budget.members(&["status", "disruptedPods"]);
    for pod in pods.iter().filter(|pod| !terminating(pod)) {
        let Some(stamp) = granted.get(name(pod)).and_then(Value::as_str) else { continue };
        let Ok(since) = stamp.parse::<jiff::Timestamp>() else { continue };
        let until = since.saturating_add(jiff::SignedDuration::from_secs(DELETION_TIMEOUT_S)).unwrap_or(now);
        if until <= now {
            events.push(BudgetEvent {
                pod: Some(name(pod).to_owned()),
                warning: true,
                reason: "NotDeleted",
                message: format!(
                    "Pod was expected by PDB {}/{} to be deleted but it wasn't",
                    namespace(budget),
                    name(budget)
                ),
            });
        } else {
            kept.insert(name(pod).to_owned(), stamp.to_owned());
            next = Some(next.map_or(until, |next| next.min(until)));
        }
    }
    (kept, next)
}

fn is_healthy(pod: &Value, disrupted: &BTreeMap<String, String>) -> bool {
    !terminating(pod) && !disrupted.contains_key(name(pod)) && condition::is_true(pod, "Ready")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> jiff::Timestamp {
        "2024-01-01T00:02:00Z".parse().unwrap()
    }

    fn budget(spec: Value) -> Value {
        let mut budget = json!({"metadata": {"name": "b", "namespace": "a", "generation": 3}, "spec": {"selector": {"matchLabels": {"app": "x"}}}});
        for (key, value) in spec.as_object().unwrap() {
            budget["spec"][key] = value.clone();
        }
        budget
    }

    fn pod(pod_name: &str, ready: bool) -> Value {
        json!({
            "metadata": {
                "name": pod_name, "namespace": "a", "labels": {"app": "x"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u", "controller": true}],
            },
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        })
    }

    fn run(budget: &Value, pods: &[Value], replicas: i64) -> BudgetPlan {
        let pods: Vec<&Value> = pods.iter().collect();
        plan(budget, &pods, |_| Scale::Replicas(replicas), now())
    }

    /// healthy, desired, expected, allowed.
    fn numbers(plan: &BudgetPlan) -> (i64, i64, i64, i64) {
        let status = plan.status.as_ref().unwrap();
        let number = |field: &str| status.int(&["status", field]).unwrap();
        (number("currentHealthy"), number("desiredHealthy"), number("expectedPods"), number("disruptionsAllowed"))
    }

    #[test]
    fn pods_are_counted_by_min_available_or_max_unavailable() {
        let three = [pod("0", true), pod("1", true), pod("2", true)];
        let two_ready = [pod("0", true), pod("1", true), pod("2", false)];
        let cases = [
            (json!({"minAvailable": 2}), &three, 3, (3, 2, 3, 1)),
            (json!({"minAvailable": 2}), &two_ready, 3, (2, 2, 3, 0)),
            (json!({"minAvailable": 5}), &three, 3, (3, 5, 3, 0)),
            (json!({"minAvailable": "50%"}), &three, 5, (3, 3, 5, 0)),
            (json!({"minAvailable": "50%"}), &three, 3, (3, 2, 3, 1)),
            (json!({"maxUnavailable": 1}), &three, 3, (3, 2, 3, 1)),
            (json!({"maxUnavailable": 1}), &two_ready, 3, (2, 2, 3, 0)),
            (json!({"maxUnavailable": 9}), &three, 3, (3, 0, 3, 3)),
            (json!({"maxUnavailable": "34%"}), &three, 3, (3, 1, 3, 2)),
            (json!({"maxUnavailable": 1}), &three, 0, (3, 0, 0, 0)),
        ];
        for (spec, pods, replicas, want) in cases {
            assert_eq!(numbers(&run(&budget(spec.clone()), pods, replicas)), want, "{spec}");
        }
    }

    #[test]
    fn the_condition_is_set_and_an_unchanged_status_is_not_written() {
        let pods = [pod("0", true), pod("1", true)];
        let first = run(&budget(json!({"minAvailable": 1})), &pods, 2).status.unwrap();
        let condition = condition::get(&first, "DisruptionAllowed").unwrap();
        assert_eq!((condition.text(&["reason"]), condition.text(&["status"])), ("SufficientPods", "True"));
        assert_eq!(first["status"]["observedGeneration"], 3);
        assert_eq!(run(&first, &pods, 2).status, None);
        let second = run(&first, &pods[..1], 2).status.unwrap();
        assert_eq!(condition::get(&second, "DisruptionAllowed").unwrap()["reason"], "InsufficientPods");
    }

    #[test]
    fn granted_evictions_count_as_disrupted_for_two_minutes() {
        let mut budget = budget(json!({"minAvailable": 1}));
        budget.put(
            &["status", "disruptedPods"],
            json!({"0": "2024-01-01T00:00:30Z", "1": "2024-01-01T00:00:00Z", "2": "2024-01-01T00:01:00Z", "gone": "2024-01-01T00:01:00Z"}),
        );
        let mut leaving = pod("2", true);
        leaving.put(&["metadata", "deletionTimestamp"], "2024-01-01T00:01:30Z");
        let plan = run(&budget, &[pod("0", true), pod("1", true), leaving], 3);
        assert_eq!(plan.status.as_ref().unwrap()["status"]["disruptedPods"], json!({"0": "2024-01-01T00:00:30Z"}));
        assert_eq!(numbers(&plan), (1, 1, 3, 0));
        assert_eq!(plan.next.unwrap().to_string(), "2024-01-01T00:02:30Z");
        assert_eq!(plan.events[0].pod.as_deref(), Some("1"));
        assert_eq!(plan.events[0].message, "Pod was expected by PDB a/b to be deleted but it wasn't");
    }

    #[test]
    fn without_a_scale_no_eviction_is_allowed() {
        let mut budget = budget(json!({"maxUnavailable": 1}));
        budget.put(&["status", "disruptionsAllowed"], 1);
        let pods = [pod("0", true)];
        let plan = plan(&budget, &[&pods[0]], |_| Scale::None, now());
        let status = plan.status.unwrap();
        assert_eq!(status["status"]["disruptionsAllowed"], 0);
        let condition = condition::get(&status, "DisruptionAllowed").unwrap();
        assert_eq!(condition["reason"], "SyncFailed");
        assert_eq!(condition["message"], "StatefulSet.apps does not implement the scale subresource");
    }

    #[test]
    fn other_pods_and_absent_selectors_do_not_count() {
        let mut other = pod("1", true);
        other.put(&["metadata", "labels", "app"], "y");
        let mut elsewhere = pod("2", true);
        elsewhere.put(&["metadata", "namespace"], "b");
        let mut none = budget(json!({"minAvailable": 1}));
        assert_eq!(numbers(&run(&none, &[pod("0", true), other.clone(), elsewhere], 1)), (1, 1, 1, 0));
        none.cut(&["spec", "selector"]);
        assert!(!selects(&none, &other));
        none.put(&["spec", "selector"], json!({}));
        assert!(selects(&none, &other));
    }
}
