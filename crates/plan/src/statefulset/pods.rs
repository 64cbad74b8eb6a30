//! The pods of a set: which belong to it, their state, and how new ones are built.

use super::Action;
use super::revisions::Revision;
use super::set::Set;
use jiff::Timestamp;
use object::access::{self, Access, controller, name, terminating, uid};
use object::{Map, Value, condition, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

pub(super) const REVISION_LABEL: &str = "controller-revision-hash";
const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The pods of a set, and other pods that have names of its replicas.
#[derive(Debug, Default)]
pub(super) struct Members<'a> {
    /// Those in the set's range, by ordinal.
    pub replicas: BTreeMap<i64, Pod<'a>>,
    /// Those out of range, which are to be deleted, by ordinal.
    pub condemned: BTreeMap<i64, Pod<'a>>,
    /// Pods that do not belong to the set, by ordinal.
    pub strangers: BTreeMap<i64, Pod<'a>>,
    /// The ordinals of pods that this plan adopts.
    pub adopted: BTreeSet<i64>,
    adoptions: Vec<Action>,
    releases: Vec<Action>,
}

impl<'a> Members<'a> {
    pub fn of(set: &Set<'a>, pods: &[&'a SeenPod]) -> Members<'a> {
        let mut members = Members::default();
        for pod in pods.iter().copied().filter(|pod| *pod.namespace == *set.namespace) {
            let ordinal = set.ordinal(&pod.name);
            let matches = ordinal.is_some() && set.selector.takes(|label| pod.label(label));
            let ours = pod.owner.as_deref() == Some(set.uid);
            let adopt = pod.owner.is_none() && matches && !pod.terminating && !set.deleting();
            if adopt {
                let resource_version = pod.object.text(&["metadata", "resourceVersion"]).to_owned();
                let (pod, uid) = (pod.name.to_string(), pod.uid().to_owned());
                members.adoptions.push(Action::AdoptPod { pod, uid, resource_version });
                members.adopted.extend(ordinal);
            }
            if ours && !matches {
                members.releases.push(Action::ReleasePod { pod: pod.name.to_string(), uid: pod.uid().to_owned() });
            }
            let Some(ordinal) = ordinal else { continue };
            let place = match (ours && matches) || adopt {
                true if set.contains(ordinal) => &mut members.replicas,
                true => &mut members.condemned,
                false => &mut members.strangers,
            };
            place.insert(ordinal, Pod(pod));
        }
        members
    }

    pub fn all(&self) -> impl Iterator<Item = Pod<'a>> + '_ {
        self.replicas.values().chain(self.condemned.values()).copied()
    }

    pub fn get(&self, ordinal: i64) -> Option<Pod<'a>> {
        self.replicas.get(&ordinal).or_else(|| self.condemned.get(&ordinal)).copied()
    }

    /// The adoptions, which need a confirmed set, and the releases, which do not.
    pub fn claim(&self) -> (&[Action], &[Action]) {
        (&self.adoptions, &self.releases)
    }
}

/// The revision of a pod or claim.
pub(super) fn revision(object: &Value) -> &str {
    object.text(&["metadata", "labels", REVISION_LABEL])
}

/// A pod with the fields that every plan of its set needs, computed once per version. Values that the pods of
/// a set have in common are shared, so that a plan for many pods finds them in the CPU cache.
#[derive(Debug)]
pub struct SeenPod {
    pub(super) object: Arc<Value>,
    namespace: Arc<str>,
    name: Box<str>,
    /// All labels except the identity labels.
    labels: Arc<Map>,
    /// Whether it has the label with its name.
    named: bool,
    /// The uid of its controller.
    owner: Option<Arc<str>>,
    revision: Arc<str>,
    pub(super) terminating: bool,
    pending: bool,
    over: bool,
    /// Running and ready.
    pub(super) ready: bool,
    /// The volumes whose claims are named after it: `data`, if the pod `web-0` mounts `data-web-0`.
    own_claims: Arc<[Box<str>]>,
}

impl SeenPod {
    pub fn read(object: Arc<Value>) -> SeenPod {
        COMMON.with(|common| SeenPod::sharing(object, common))
    }

    fn sharing(object: Arc<Value>, common: &Common) -> SeenPod {
        let (phase, pod_name) = (object.text(&["status", "phase"]), name(&object));
        let labels = object.members(&["metadata", "labels"]);
        let others = labels.iter().filter(|(label, _)| !is_identity(label));
        let own_claims = object.items(&["spec", "volumes"]).iter().filter_map(|volume| {
            let (volume, claim) = (volume.text(&["name"]), volume.text(&["persistentVolumeClaim", "claimName"]));
            let rest = claim.strip_prefix(volume)?.strip_prefix('-')?;
            (rest == pod_name).then_some(volume)
        });
        SeenPod {
            namespace: common.namespace.text(access::namespace(&object)),
            labels: common.labels.share(
                |last| {
                    last.len() == others.clone().count()
                        && others.clone().all(|(label, value)| last.get(label) == Some(value))
                },
                || Arc::new(others.clone().map(|(label, value)| (label.clone(), value.clone())).collect()),
            ),
            named: labels.get(NAME_LABEL).and_then(Value::as_str) == Some(pod_name),
            owner: controller(&object).map(|owner| common.owner.text(owner.text(&["uid"]))),
            revision: common.revision.text(revision(&object)),
            terminating: terminating(&object),
            pending: matches!(phase, "" | "Pending"),
            over: matches!(phase, "Failed" | "Succeeded"),
            ready: phase == "Running" && condition::is_true(&object, "Ready"),
            own_claims: common.own_claims.share(
                |last| last.iter().map(AsRef::as_ref).eq(own_claims.clone()),
                || own_claims.clone().map(Box::from).collect(),
            ),
            name: pod_name.into(),
            object,
        }
    }

    fn uid(&self) -> &str {
        uid(&self.object)
    }

    fn label(&self, label: &str) -> Option<&str> {
        let value =
            if is_identity(label) { self.object.at(&["metadata", "labels", label]) } else { self.labels.get(label) };
        value?.as_str()
    }
}

/// Whether the values of this label differ between the pods of a set.
fn is_identity(label: &str) -> bool {
    label == NAME_LABEL || label == INDEX_LABEL
}

/// The values of the previous pod; the next one mostly has the same.
#[derive(Default)]
struct Common {
    namespace: Last<str>,
    labels: Last<Map>,
    owner: Last<str>,
    revision: Last<str>,
    own_claims: Last<[Box<str>]>,
}

thread_local!(static COMMON: Common = Common::default());

struct Last<T: ?Sized>(RefCell<Option<Arc<T>>>);

impl<T: ?Sized> Default for Last<T> {
    fn default() -> Last<T> {
        Last(RefCell::new(None))
    }
}

impl<T: ?Sized> Last<T> {
    fn share(&self, is_same: impl FnOnce(&T) -> bool, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let mut last = self.0.borrow_mut();
        match &*last {
            Some(known) if is_same(known) => known.clone(),
            _ => last.insert(make()).clone(),
        }
    }
}

impl Last<str> {
    fn text(&self, text: &str) -> Arc<str> {
        self.share(|last| last == text, || text.into())
    }
}

/// A pod in a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pod<'a>(&'a SeenPod);

impl Deref for Pod<'_> {
    type Target = SeenPod;

    fn deref(&self) -> &SeenPod {
        self.0
    }
}

impl<'a> Pod<'a> {
    pub fn name(&self) -> &'a str {
        &self.0.name
    }

    pub fn uid(&self) -> &'a str {
        self.0.uid()
    }

    pub fn revision(&self) -> &'a str {
        &self.0.revision
    }

    pub fn is_pending(&self) -> bool {
        self.pending
    }

    /// It has terminated and will not run again.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Ready for `minReadySeconds`, terminating or not.
    pub fn is_available(&self, set: &Set, now: Timestamp) -> bool {
        self.ready && (set.min_ready.is_zero() || self.available_from(set).is_some_and(|from| from <= now))
    }

    /// When a ready pod becomes, or became, available.
    pub fn available_from(&self, set: &Set) -> Option<Timestamp> {
        let ready = condition::get(&self.object, "Ready").filter(|_| self.ready)?;
        let since: Timestamp = ready.text(&["lastTransitionTime"]).parse().ok()?;
        since.saturating_add(set.min_ready).ok()
    }
}

/// The identity labels, if they must be restored.
pub(super) fn lost_labels(set: &Set, ordinal: i64, pod: Pod) -> Option<Vec<(String, String)>> {
    // `named` suffices: the planner only gets pods whose name has an ordinal.
    (!pod.named).then(|| identity(set, ordinal).map(|(label, value)| (label.to_owned(), value)).into())
}

/// The claim template whose claim the pod does not mount. The volumes of a pod are immutable, so it must be
/// replaced.
pub(super) fn lost_volume<'a>(set: &Set<'a>, pod: Pod) -> Option<&'a Value> {
    let mounts = |template: &Value| pod.own_claims.iter().any(|volume| **volume == *name(template));
    set.claim_templates.iter().copied().find(|template| !mounts(template))
}

/// The owner of a pod that has a replica's name, and what the user can do about it.
pub(super) fn stranger(set: &Set, pod: Pod) -> (String, String) {
    let pod_name = pod.name();
    match controller(&pod.0.object) {
        Some(owner) if owner.text(&["uid"]) != set.uid => {
            let by = format!("{}/{}", owner.text(&["kind"]), owner.text(&["name"]));
            let advice = format!("pod {pod_name} already exists and belongs to {by}: delete that pod to free its name");
            (by, advice)
        }
        _ => {
            let advice = format!(
                "pod {pod_name} already exists and its labels do not match the selector {}: delete that pod, or label it so \
                 that the set can adopt it",
                set.selector
            );
            ("nobody".to_owned(), advice)
        }
    }
}

/// Builds the pod of an ordinal at a revision.
pub(super) fn build(set: &Set, ordinal: i64, revision: &Revision) -> Value {
    let template = revision.template;
    let mut labels = template.members(&["metadata", "labels"]).clone();
    labels.extend(identity(set, ordinal).map(|(label, value)| (label.to_owned(), Value::from(value))));
    labels.insert(REVISION_LABEL.to_owned(), Value::from(revision.name.as_str()));
    let mut metadata = json!({
        "name": set.pod_name(ordinal),
        "generateName": format!("{}-", set.name),
        "namespace": set.namespace,
        "labels": labels,
        "ownerReferences": [set.reference(true)],
    });
    carry_over(template, &mut metadata, &["annotations", "finalizers"]);
    let mut spec = Value::Object(template.members(&["spec"]).clone());
    spec.put(&["hostname"], set.pod_name(ordinal));
    let service = set.object.text(&["spec", "serviceName"]);
    if service.is_empty() {
        spec.cut(&["subdomain"]);
    } else {
        spec.put(&["subdomain"], service);
    }
    let volumes = volumes(set, ordinal, template);
    if !volumes.is_empty() {
        spec.put(&["volumes"], volumes);
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// Copies members of the template's metadata to a new object.
pub(super) fn carry_over(template: &Value, metadata: &mut Value, fields: &[&str]) {
    for field in fields {
        if let Some(value) = template.at(&["metadata", field]) {
            metadata.put(&[field], value.clone());
        }
    }
}

fn identity(set: &Set, ordinal: i64) -> [(&'static str, String); 2] {
    [(NAME_LABEL, set.pod_name(ordinal)), (INDEX_LABEL, ordinal.to_string())]
}

/// One volume per claim template, which replaces a template volume of the same name, followed by the other
/// volumes of the pod template.
fn volumes(set: &Set, ordinal: i64, template: &Value) -> Vec<Value> {
    let claims = set.claim_templates.iter().map(
        |claim| json!({"name": name(claim), "persistentVolumeClaim": {"claimName": set.claim_name(claim, ordinal)}}),
    );
    let is_claim = |volume: &Value| set.claim_templates.iter().any(|claim| name(claim) == volume.text(&["name"]));
    let others = template.items(&["spec", "volumes"]).iter().filter(|volume| !is_claim(volume)).cloned();
    claims.chain(others).collect()
}
