//! The deletion of a namespace: first pods, then all other content, then the `kubernetes` finalizer.

use object::access::{Access, name, terminating, uid};
use object::{Value, json};
use std::collections::BTreeMap;

const FINALIZER: &str = "kubernetes";

/// The remaining objects of one resource in the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Group and plural name, as in the API.
    pub group: String,
    pub plural: String,
    pub objects: Vec<Remaining>,
    /// Why the last attempt to list or delete this resource failed.
    pub error: Option<String>,
}

/// The metadata of one remaining object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    pub name: String,
    pub uid: String,
    pub deleting: bool,
    pub finalizers: Vec<String>,
}

impl Remaining {
    pub fn of(object: &Value) -> Remaining {
        let finalizers = object.items(&["metadata", "finalizers"]).iter().filter_map(Value::as_str);
        Remaining {
            name: name(object).to_owned(),
            uid: uid(object).to_owned(),
            deleting: terminating(object),
            finalizers: finalizers.map(str::to_owned).collect(),
        }
    }
}

impl Content {
    /// Whether certainly nothing is left.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.error.is_none()
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespacePlan {
    /// The namespace with its new status, to PUT to `/status`.
    pub status: Option<Value>,
    /// The namespace without the finalizer, to PUT to `/finalize` when nothing is left. The server then
    /// removes it.
    pub finalize: Option<Value>,
    /// Something is left or failed: plan again later.
    pub again: bool,
}

/// The resources (indices into `content`) whose objects are to be deleted now, with propagation Background.
pub fn due(content: &[Content]) -> Vec<usize> {
    // Pods first: what they mount and connect to is kept until they have stopped.
    let pods_left = content.iter().any(|kind| is_pods(kind) && !kind.is_empty());
    let is_due = |kind: &Content| kind.objects.iter().any(|object| !object.deleting) && (!pods_left || is_pods(kind));
    content.iter().enumerate().filter(|(_, kind)| is_due(kind)).map(|(at, _)| at).collect()
}

/// Plans the deletion of a namespace. `content` has every namespaced resource that can be listed and deleted,
/// including empty ones. With a `discovery_error` there may be more.
pub fn plan(
    namespace: &Value,
    content: &[Content],
    discovery_error: Option<&str>,
    now: jiff::Timestamp,
) -> NamespacePlan {
    let finalizers = namespace.items(&["spec", "finalizers"]);
    if !terminating(namespace) || !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        return NamespacePlan::default();
    }
    let again = discovery_error.is_some() || !content.iter().all(Content::is_empty);

    let mut changed = namespace.clone();
    changed.put(&["status", "phase"], "Terminating");
    for condition in conditions(content, discovery_error) {
        object::condition::set(&mut changed, &["status", "conditions"], condition, now);
    }
    let status = (changed != *namespace).then(|| changed.clone());
    let finalize = (!again).then(|| {
        let rest: Vec<Value> = finalizers.iter().filter(|finalizer| **finalizer != FINALIZER).cloned().collect();
        changed.put(&["spec", "finalizers"], rest);
        changed
    });
    NamespacePlan { status, finalize, again }
}

fn is_pods(kind: &Content) -> bool {
    kind.group.is_empty() && kind.plural == "pods"
}

fn conditions(content: &[Content], discovery_error: Option<&str>) -> Vec<Value> {
    let failures: Vec<&str> = content.iter().filter_map(|kind| kind.error.as_deref()).collect();
    let mut left: Vec<String> = content
        .iter()
        .filter(|kind| !kind.objects.is_empty())
        .map(|kind| format!("{}.{} has {} resource instances", kind.plural, kind.group, kind.objects.len()))
        .collect();
    left.sort();
    let mut held: BTreeMap<&str, usize> = BTreeMap::new();
    for finalizer in content.iter().flat_map(|kind| &kind.objects).flat_map(|object| &object.finalizers) {
        *held.entry(finalizer).or_default() += 1;
    }
    let held: Vec<String> = held.iter().map(|(name, count)| format!("{name} in {count} resource instances")).collect();

    // Each condition: type, whether it is True, and reason and message for True and for False.
    let condition = |name: &str, status: bool, yes: (&'static str, String), no: (&'static str, &str)| {
        let (reason, message) = if status { yes } else { (no.0, no.1.to_owned()) };
        let status = if status { "True" } else { "False" };
        json!({"type": name, "status": status, "reason": reason, "message": message})
    };
    vec![
        condition(
            "NamespaceDeletionDiscoveryFailure",
            discovery_error.is_some(),
            ("DiscoveryFailed", format!("Discovery failed for some groups: {}", discovery_error.unwrap_or(""))),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            ("GroupVersionParsingFailed", String::new()),
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        condition(
            "NamespaceDeletionContentFailure",
            !failures.is_empty(),
            (
                "ContentDeletionFailed",
                format!("Failed to delete all resource types, {} remaining: {}", failures.len(), failures.join(", ")),
            ),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        condition(
            "NamespaceContentRemaining",
            !left.is_empty(),
            ("SomeResourcesRemain", format!("Some resources are remaining: {}", left.join(", "))),
            ("ContentRemoved", "All content successfully removed"),
        ),
        condition(
            "NamespaceFinalizersRemaining",
            !held.is_empty(),
            (
                "SomeFinalizersRemain",
                format!("Some content in the namespace has finalizers remaining: {}", held.join(", ")),
            ),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> jiff::Timestamp {
        jiff::Timestamp::from_second(1_700_000_000).unwrap()
    }

    fn namespace() -> Value {
        json!({
            "metadata": {"name": "a", "deletionTimestamp": "2023-11-14T22:13:20Z"},
            "spec": {"finalizers": ["kubernetes", "example.com/x"]},
            "status": {"phase": "Terminating"},
        })
    }

    fn content(plural: &str, objects: &[(bool, &[&str])]) -> Content {
        let objects = objects.iter().map(|(deleting, finalizers)| Remaining {
            deleting: *deleting,
            finalizers: finalizers.iter().map(|finalizer| (*finalizer).to_owned()).collect(),
            ..Remaining::default()
        });
        Content { plural: plural.to_owned(), objects: objects.collect(), ..Content::default() }
    }

    fn message<'a>(status: &'a Value, name: &str) -> (&'a str, &'a str) {
        let conditions = status.items(&["status", "conditions"]);
        let found = conditions.iter().find(|condition| condition.text(&["type"]) == name).unwrap();
        (found.text(&["status"]), found.text(&["message"]))
    }

    #[test]
    fn pods_are_deleted_first_then_the_rest_then_the_finalizer() {
        let pods = content("pods", &[(false, &[])]);
        let secrets = content("secrets", &[(false, &[])]);
        let plan_of = |content: &[Content]| plan(&namespace(), content, None, now());

        let first = [secrets.clone(), pods];
        assert_eq!((due(&first), plan_of(&first).finalize, plan_of(&first).again), (vec![1], None, true));
        let leaving = [secrets.clone(), content("pods", &[(true, &[])])];
        assert_eq!(due(&leaving), [] as [usize; 0], "waits until the pods are deleted");
        let unknown = [secrets.clone(), Content { error: Some("no answer".to_owned()), ..content("pods", &[]) }];
        assert_eq!(due(&unknown), [] as [usize; 0], "there may be pods");
        assert_eq!(due(&[secrets, content("pods", &[])]), [0]);
        let last = plan_of(&[content("secrets", &[]), content("pods", &[])]);
        assert_eq!(last.finalize.unwrap()["spec"]["finalizers"], json!(["example.com/x"]));
        assert!(!last.again);
    }

    #[test]
    fn the_status_has_the_reasons_why_the_namespace_remains() {
        let claims = content("persistentvolumeclaims", &[(true, &["kubernetes.io/pvc-protection"]), (true, &[])]);
        let plan = plan(&namespace(), &[claims, content("pods", &[(true, &[])])], None, now());
        let status = plan.status.unwrap();
        let cases = [
            ("NamespaceDeletionDiscoveryFailure", "False", "All resources successfully discovered"),
            ("NamespaceDeletionGroupVersionParsingFailure", "False", "All legacy kube types successfully parsed"),
            (
                "NamespaceDeletionContentFailure",
                "False",
                "All content successfully deleted, may be waiting on finalization",
            ),
            (
                "NamespaceContentRemaining",
                "True",
                "Some resources are remaining: persistentvolumeclaims. has 2 resource instances, pods. has 1 resource instances",
            ),
            (
                "NamespaceFinalizersRemaining",
                "True",
                "Some content in the namespace has finalizers remaining: kubernetes.io/pvc-protection in 1 resource instances",
            ),
        ];
        for (name, holds, text) in cases {
            assert_eq!(message(&status, name), (holds, text), "{name}");
        }
    }

    #[test]
    fn an_unchanged_status_is_not_written_and_times_only_move_with_the_condition() {
        let kinds = [content("secrets", &[(true, &[])])];
        let first = plan(&namespace(), &kinds, None, now()).status.unwrap();
        let later = now() + jiff::SignedDuration::from_secs(60);
        assert_eq!(plan(&first, &kinds, None, later).status, None);
        let empty = plan(&first, &[content("secrets", &[])], None, later).status.unwrap();
        let times: Vec<&str> =
            empty.items(&["status", "conditions"]).iter().map(|c| c.text(&["lastTransitionTime"])).collect();
        assert_eq!(times.iter().filter(|time| **time == object::write::stamp(later)).count(), 1);
    }

    #[test]
    fn failures_keep_the_namespace() {
        let mut broken = content("gadgets", &[]);
        broken.error = Some("the server is away".to_owned());
        let held = plan(&namespace(), &[broken], None, now());
        assert_eq!((held.finalize, held.again), (None, true));
        assert_eq!(
            message(&held.status.unwrap(), "NamespaceDeletionContentFailure"),
            ("True", "Failed to delete all resource types, 1 remaining: the server is away")
        );
        assert!(plan(&namespace(), &[], Some("x/v1: gone"), now()).finalize.is_none());
    }

    #[test]
    fn active_or_finalized_namespaces_are_not_changed() {
        let mut living = namespace();
        living.cut(&["metadata", "deletionTimestamp"]);
        assert_eq!(plan(&living, &[], None, now()), NamespacePlan::default());
        let mut released = namespace();
        released.put(&["spec", "finalizers"], json!([]));
        assert_eq!(plan(&released, &[], None, now()), NamespacePlan::default());
    }
}
