//! The subresource `binding`: assigns a pod to a node.

use super::check_preconditions;
use object::access::{Access, name, terminating};
use object::{Errors, Path, Status, Value, condition, json};

/// The pod with the node that a Binding names.
pub fn bind(pod: &Value, binding: &Value, now: jiff::Timestamp) -> Result<Value, Status> {
    let node = target(pod, binding)?;
    check_preconditions("", "pods", pod, binding)?;
    let conflict = |why: String| Status::conflict("", "pods/binding", name(pod), why);
    let assigned = pod.text(&["spec", "nodeName"]);
    if terminating(pod) {
        return Err(conflict(format!("pod {} is being deleted, cannot be assigned to a host", name(pod))));
    }
    if !assigned.is_empty() {
        return Err(conflict(format!("pod {} is already assigned to node {assigned:?}", name(pod))));
    }
    if !pod.items(&["spec", "schedulingGates"]).is_empty() {
        return Err(conflict(format!("pod {} has non-empty .spec.schedulingGates", name(pod))));
    }
    let mut bound = pod.clone();
    bound.put(&["spec", "nodeName"], node);
    for field in ["annotations", "labels"] {
        for (key, value) in binding.members(&["metadata", field]) {
            bound.put(&["metadata", field, key], value.clone());
        }
    }
    let scheduled = json!({"type": "PodScheduled", "status": "True"});
    condition::set(&mut bound, &["status", "conditions"], scheduled, now);
    Ok(bound)
}

fn target<'a>(pod: &Value, binding: &'a Value) -> Result<&'a str, Status> {
    let said = name(binding);
    if !said.is_empty() && said != name(pod) {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let (kind, node) = (binding.text(&["target", "kind"]), binding.text(&["target", "name"]));
    let mut errors = Errors::default();
    let path = Path::new("target");
    if !kind.is_empty() && kind != "Node" {
        errors.not_supported(&path.child("kind"), kind, &["Node", "<empty>"]);
    }
    if node.is_empty() {
        errors.required(&path.child("name"), "");
    }
    if errors.is_empty() { Ok(node) } else { Err(Status::invalid("", "Binding", name(pod), &errors)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value) -> Value {
        json!({"metadata": {"name": "p", "namespace": "a", "uid": "u", "resourceVersion": "7"}, "spec": spec})
    }

    fn now() -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }

    #[test]
    fn a_bound_pod_has_its_node_and_says_so() {
        let binding = json!({
            "metadata": {"name": "p", "annotations": {"x": "y"}},
            "target": {"kind": "Node", "name": "n1"},
        });
        let mut waiting = pod(json!({}));
        waiting.put(
            &["status", "conditions"],
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]),
        );
        let bound = bind(&waiting, &binding, now()).unwrap();
        assert_eq!(bound["spec"]["nodeName"], "n1");
        assert_eq!(bound["metadata"]["annotations"]["x"], "y");
        assert_eq!(
            bound["status"]["conditions"],
            json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"}])
        );
    }

    #[test]
    fn refusals_have_upstreams_messages() {
        let plain = json!({"target": {"name": "n2"}});
        let mut going = pod(json!({}));
        going.put(&["metadata", "deletionTimestamp"], "2024-01-01T00:00:00Z");
        let head = "Operation cannot be fulfilled on pods/binding \"p\": pod p";
        let cases = [
            (pod(json!({"nodeName": "n1"})), plain.clone(), 409, format!("{head} is already assigned to node \"n1\"")),
            (going, plain.clone(), 409, format!("{head} is being deleted, cannot be assigned to a host")),
            (pod(json!({"schedulingGates": [{"name": "g"}]})), plain, 409, format!("{head} has non-empty .spec.schedulingGates")),
            (
                pod(json!({})),
                json!({"metadata": {"uid": "v"}, "target": {"name": "n2"}}),
                409,
                "Operation cannot be fulfilled on pods \"p\": Precondition failed: UID in precondition: v, UID in object meta: u".to_owned(),
            ),
            (
                pod(json!({})),
                json!({"target": {"kind": "Pod"}}),
                422,
                "Binding \"p\" is invalid: [target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\", \
                 target.name: Required value]"
                    .to_owned(),
            ),
            (
                pod(json!({})),
                json!({"metadata": {"name": "q"}, "target": {"name": "n"}}),
                400,
                "name in URL does not match name in Binding object".to_owned(),
            ),
        ];
        for (pod, binding, code, message) in cases {
            let refused = bind(&pod, &binding, now()).unwrap_err();
            assert_eq!((refused.code, refused.message), (code, message));
        }
    }
}
