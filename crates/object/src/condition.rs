//! `status.conditions`: a list of conditions by type. Their transition times change only with the status.

use crate::access::Access;
use crate::{Value, json};

/// Sets a condition (given without its time) in the list at `path`. `lastTransitionTime` changes only when the status
/// does. Returns whether anything changed.
pub fn set(object: &mut Value, path: &[&str], mut condition: Value, now: jiff::Timestamp) -> bool {
    let list = object.entry(path);
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(conditions) = list.as_array_mut() else { return false };
    let at = conditions.iter().position(|old| old.text(&["type"]) == condition.text(&["type"]));
    let same_status = at.filter(|at| conditions[*at].text(&["status"]) == condition.text(&["status"]));
    let since = same_status.and_then(|at| conditions[at].at(&["lastTransitionTime"]).cloned());
    condition.put(&["lastTransitionTime"], since.unwrap_or_else(|| json!(crate::write::stamp(now))));
    match at {
        Some(at) if conditions[at] == condition => false,
        Some(at) => {
            conditions[at] = condition;
            true
        }
        None => {
            conditions.push(condition);
            true
        }
    }
}

/// Returns the condition of this type in `status.conditions`.
pub fn get<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.items(&["status", "conditions"]).iter().find(|condition| condition.text(&["type"]) == name)
}

/// Whether a condition in `status.conditions` is `True`.
pub fn is_true(object: &Value, name: &str) -> bool {
    get(object, name).is_some_and(|condition| condition.text(&["status"]) == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let at = |second| jiff::Timestamp::from_second(second).unwrap();
        let path = &["status", "conditions"];
        let mut object = json!({"status": {"conditions": null}});
        assert!(set(&mut object, path, json!({"type": "Ready", "status": "True", "reason": "A"}), at(0)));
        assert!(!set(&mut object, path, json!({"type": "Ready", "status": "True", "reason": "A"}), at(5)));
        assert!(set(&mut object, path, json!({"type": "Ready", "status": "True", "reason": "B"}), at(5)));
        assert_eq!(get(&object, "Ready").unwrap()["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert!(set(&mut object, path, json!({"type": "Ready", "status": "False", "reason": "B"}), at(5)));
        assert_eq!(get(&object, "Ready").unwrap()["lastTransitionTime"], "1970-01-01T00:00:05Z");
        assert!(!is_true(&object, "Ready"));
    }
}
