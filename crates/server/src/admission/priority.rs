//! Priorities of pods. PriorityClass objects are not supported: only the two built-in classes exist.

use super::{Verb, Write};
use object::access::Access;
use object::{Status, Value};

const CLASSES: [(&str, i64); 3] =
    [("", 0), ("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

pub fn settle(write: &mut Write<'_>) -> Result<(), Status> {
    if !write.is(Verb::Create, "", "pods") {
        return Ok(());
    }
    let class = write.object.text(&["spec", "priorityClassName"]);
    let Some((_, priority)) = CLASSES.iter().find(|(name, _)| *name == class) else {
        return Err(write.forbidden(format!("no PriorityClass with name {class} was found")));
    };
    match write.object.at(&["spec", "priority"]).and_then(Value::as_i64) {
        Some(given) if given != *priority => {
            return Err(write.forbidden(format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
                 computed {priority} from the given PriorityClass name"
            )));
        }
        _ => write.object.put(&["spec", "priority"], *priority),
    }
    write.object.default_to(&["spec", "preemptionPolicy"], "PreemptLowerPriority");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, denied};
    use object::json;

    #[test]
    fn the_class_decides_and_unknown_ones_are_refused() {
        let mut world = World::with_namespace("a");
        let mut run = |spec| world.mutate("pods", json!({"metadata": {"name": "p", "namespace": "a"}, "spec": spec}));
        assert_eq!(run(json!({})).unwrap()["spec"]["priority"], 0);
        let critical = run(json!({"priorityClassName": "system-node-critical"})).unwrap();
        assert_eq!(critical["spec"]["priority"], 2_000_001_000);
        let unknown = denied(run(json!({"priorityClassName": "high"})));
        assert_eq!(unknown.message, "pods \"p\" is forbidden: no PriorityClass with name high was found");
        assert_eq!(denied(run(json!({"priority": 5}))).code, 403);
        assert!(run(json!({"priority": 0})).is_ok());
    }
}
