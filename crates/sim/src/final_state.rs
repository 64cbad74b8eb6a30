//! The end of a story: waits until everything has settled, and summarizes the final state.

use crate::commit_checker::JOURNAL;
use crate::fault_point::PointCounts;
use crate::run::QUIET_PERIOD;
use crate::world::{TIMEOUT, World};
use object::access::{Access, controller, name, namespace, terminating, uid};
use object::quantity::Quantity;
use object::{Value, condition};
use plan::endpoints::{Absent, Step};
use plan::invariant::{Checker, handle};
use plan::statefulset::invariant::Wants;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

const CLAIM: &str = "PersistentVolumeClaim";
const VOLUME: &str = "PersistentVolume";

/// Waits until the required state is reached and no component writes for `QUIET_PERIOD`. The error says what is missing.
pub async fn settle(world: &World) -> Result<(), String> {
    let begun = tokio::time::Instant::now();
    loop {
        if !world.log.has_no_violations() {
            return Err("a rule is violated".to_owned());
        }
        let mut left = unsettled(world);
        if left.is_empty() {
            let points = &world.commit_checker.points;
            // A controller that waits for a user retries, and its request is refused each time. Do not count these.
            let asks = is_any_set_blocked(world);
            let counted =
                || PointCounts { requests: if asks { 0 } else { points.counted().requests }, ..points.counted() };
            let (before, newest_revision) = (counted(), world.commit_checker.newest_revision());
            tokio::time::sleep(QUIET_PERIOD).await;
            world.commit_checker.check_backend();
            left = unsettled(world);
            if counted() != before {
                left.push(format!("a component still writes or calls; the last was {}", points.last()));
            }
            if left.is_empty() {
                // Heartbeats continue and may not have reached all watches; older changes must have.
                let behind = world.net.undelivered(newest_revision);
                return if behind.is_empty() { Ok(()) } else { Err(behind.join("; ")) };
            }
        }
        if begun.elapsed() > TIMEOUT {
            return Err(format!("the world does not settle: {}", left.join("; ")));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Describes everything that is not in the required state.
pub fn unsettled(world: &World) -> Vec<String> {
    if world.net.server().is_none() {
        return vec!["the server is down".to_owned()];
    }
    let mut left = Vec::new();
    let journal = world.stored(JOURNAL);
    let written = journal.as_ref().map(|journal| journal.members(&["data"]).len()).unwrap_or(0);
    if written > 0 {
        left.push(format!("the journal has {written} entries"));
    }
    let gates = world.controller_gates();
    let checker = world.checker();
    for kind in plan::invariant::KINDS {
        let waits_for_person = |object: &Value| kind == VOLUME && is_left_over(world, object);
        let going = checker.all(kind).filter(|object| terminating(object) && !waits_for_person(object));
        left.extend(going.map(|object| format!("{kind} {} is terminating", name(object))));
    }
    for set in checker.all("StatefulSet").filter(|set| !is_blocked_by_a_claim(&checker, set)) {
        left.extend(set_violations(&checker, set, &Wants::of(set, &gates)));
    }
    for claim in checker.all(CLAIM) {
        let size = |path: &[&str]| claim.text(path).parse::<Quantity>().unwrap_or(Quantity::ZERO);
        let (asked, has) =
            (size(&["spec", "resources", "requests", "storage"]), size(&["status", "capacity", "storage"]));
        let is_bound = claim.text(&["status", "phase"]) == "Bound";
        if !is_bound && waits_for_consumer(world, &checker, claim) {
            continue;
        }
        if !is_bound || has < asked {
            left.push(format!(
                "the claim {} is {} and has {has} of the requested {asked}",
                name(claim),
                claim.text(&["status", "phase"])
            ));
        }
    }
    left.extend(stale_endpoints(&checker));
    let sizes = world.driver.sizes();
    for volume in checker.all(VOLUME) {
        left.extend(size_violation(&checker, &sizes, volume));
        let (phase, policy) =
            (volume.text(&["status", "phase"]), volume.text(&["spec", "persistentVolumeReclaimPolicy"]));
        let is_at_rest = match phase {
            "Bound" | "Available" => true,
            "Released" => policy == "Retain" || is_left_over(world, volume),
            // Made by the in-tree plugin for a claim that was deleted before it was bound.
            "Pending" => is_left_over(world, volume),
            _ => false,
        };
        if !is_at_rest {
            left.push(format!("the PV {} is {phase} with policy {policy}", name(volume)));
        }
    }
    let is_reported = |rule: &String| {
        let handle = rule.split_whitespace().find(|word| word.starts_with("vol-"));
        handle.is_some_and(|handle| is_event_reported(world, handle))
    };
    left.extend(checker.backend_at_rest(&world.driver.handles()).into_iter().filter(|rule| !is_reported(rule)));
    left
}

/// Endpoints that do not match their Service and its pods.
fn stale_endpoints(checker: &Checker) -> Vec<String> {
    let named = checker.all("Service").chain(checker.all("Endpoints"));
    let keys: BTreeSet<(&str, &str)> = named.map(|object| (namespace(object), name(object))).collect();
    let is_left = |(space, named): &(&str, &str)| {
        let service = checker.get("Service", space, named).map(AsRef::as_ref).ok_or(Absent::Unknown);
        let pods: Vec<&Value> = checker.all("Pod").map(AsRef::as_ref).collect();
        let current = checker.get("Endpoints", space, named).map(AsRef::as_ref);
        plan::endpoints::plan(service, &pods, current) != Step::Nothing
    };
    let left = keys.into_iter().filter(is_left);
    left.map(|(space, named)| format!("the Endpoints {space}/{named} do not match the pods of their Service")).collect()
}

/// Reports a backend volume smaller than its PV's capacity, or a PV smaller than the capacity in its claim's status.
fn size_violation(checker: &Checker, backend: &BTreeMap<String, i64>, volume: &Value) -> Option<String> {
    let size = |object: &Value, path: &[&str]| object.text(path).parse::<Quantity>().unwrap_or(Quantity::ZERO);
    let reference = |member| volume.text(&["spec", "claimRef", member]);
    let claim = checker.get(CLAIM, reference("namespace"), reference("name"));
    let claim = claim.filter(|claim| claim.text(&["spec", "volumeName"]) == name(volume));
    let said = size(volume, &["spec", "capacity", "storage"]);
    let to_user = claim.map_or(Quantity::ZERO, |claim| size(claim, &["status", "capacity", "storage"]));
    let has = backend.get(volume.text(&["spec", "csi", "volumeHandle"])).map(|bytes| Quantity::from_bytes(*bytes))?;
    let is_so = to_user <= said && said <= has;
    (!is_so).then(|| format!("the backend volume has {has}, the PV {} {said} and its claim {to_user}", name(volume)))
}

/// Whether a PV waits for a user: a late request created it after its volume was deleted. The provisioner treats it
/// like one from a backup, and its backend volume is gone or was retained.
pub fn is_left_over(world: &World, volume: &Value) -> bool {
    let is_unconfirmed = volume.text(&["status", "reason"]) == plan::csi::reclaim::UNCONFIRMED;
    let has_backend = handle(volume).is_some_and(|handle| world.driver.handles().contains(&*handle));
    let is_retained = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Retain";
    let may_be_recreated = world.commit_checker.may_be_recreated(name(volume));
    (may_be_recreated && (is_retained || is_unconfirmed)) || (!has_backend && is_unconfirmed)
}

/// Whether this is the PV of a directory that its claim never got, and the server no longer has the history that says
/// whether another PV of its name was retained. It waits for a user.
fn is_unknown(world: &World, volume: &Value) -> bool {
    volume.text(&["status", "phase"]) == "Pending"
        && volume.text(&["status", "reason"]) == plan::csi::reclaim::UNCONFIRMED
        && world.commit_checker.may_be_recreated(name(volume))
}

fn is_any_set_blocked(world: &World) -> bool {
    let checker = world.checker();
    checker.all("StatefulSet").any(|set| is_blocked_by_a_claim(&checker, set))
}

/// P35: an unbound claim cannot be changed to match the template, so its pod is not created until a user deletes the
/// claim.
fn is_blocked_by_a_claim(checker: &Checker, set: &Value) -> bool {
    const CHANGES: [&[&str]; 2] =
        [&["spec", "resources", "requests", "storage"], &["spec", "volumeAttributesClassName"]];
    let templates = set.items(&["spec", "volumeClaimTemplates"]);
    set.text(&["spec", "volumeClaimUpdatePolicy"]) == "InPlace"
        && checker.all(CLAIM).filter(|claim| claim.text(&["status", "phase"]) == "Pending").any(|claim| {
            let is_of = |template: &&Value| name(claim).starts_with(&format!("{}-{}-", name(template), name(set)));
            let differs = |template: &Value| CHANGES.iter().any(|path| template.text(path) != claim.text(path));
            templates.iter().find(is_of).is_some_and(differs)
        })
}

/// Whether the class binds the claim when a pod uses it, and no pod does.
fn waits_for_consumer(world: &World, checker: &Checker, claim: &Value) -> bool {
    let class = world.stored(&format!("/storage.k8s.io/storageclasses/{}", claim.text(&["spec", "storageClassName"])));
    let waits = class.is_some_and(|class| class.text(&["volumeBindingMode"]) == "WaitForFirstConsumer");
    let is_near = |pod: &&Arc<Value>| namespace(pod) == namespace(claim);
    waits && !checker.all("Pod").filter(is_near).any(|pod| plan::protect::uses(pod, name(claim)))
}

/// Whether an event reports that a backend volume is kept because its policy at the time of its deletion is unknown:
/// the PV was deleted while the provisioner was down, and the server no longer has that history
/// (docs/decisions/0007). The provisioner may say so only after the server answered 410.
fn is_event_reported(world: &World, handle: &str) -> bool {
    let is_about_journal = |event: &Value| {
        let about = |member| event.text(&["involvedObject", member]);
        about("kind") == "ConfigMap" && JOURNAL.ends_with(&format!("/{}/{}", about("namespace"), about("name")))
    };
    let events = world.list("/core/events/").into_iter();
    let mut events = events.filter(|event| event.text(&["reason"]) == "VolumeFailedDelete" && is_about_journal(event));
    // Only the identifiers in the message matter, not its wording.
    events.any(|event| {
        let message = event.text(&["message"]);
        message.contains(handle) && world.commit_checker.names_recreated_object(message)
    })
}

/// The driver's volumes, without those that are kept for an unknown policy and those of PVs that a late request
/// created again.
pub fn expected_handles(world: &World) -> BTreeSet<String> {
    let left_over: BTreeSet<String> = {
        let checker = world.checker();
        let volumes = checker.all(VOLUME).filter(|volume| is_left_over(world, volume));
        volumes.filter_map(|volume| Some(handle(volume)?.into_owned())).collect()
    };
    let is_meant = |handle: &String| !left_over.contains(handle) && !is_event_reported(world, handle);
    world.driver.handles().into_iter().filter(is_meant).collect()
}

fn set_violations(checker: &Checker, set: &Value, wants: &Wants) -> Vec<String> {
    let mut left = Vec::new();
    let status = |member: &str| set.int(&["status", member]).unwrap_or(0);
    let replicas = wants.ordinals.end - wants.ordinals.start;
    if set.int(&["metadata", "generation"]) != set.int(&["status", "observedGeneration"]) {
        left.push(format!("the set {} has an old observedGeneration", name(set)));
    }
    if status("replicas") != replicas || status("readyReplicas") != replicas || status("availableReplicas") != replicas
    {
        left.push(format!("the set {} has {} of {replicas} replicas ready", name(set), status("readyReplicas")));
    }
    let rolls = set.text(&["spec", "updateStrategy", "type"]) != "OnDelete"
        && set.int(&["spec", "updateStrategy", "rollingUpdate", "partition"]).unwrap_or(0) == 0;
    let update = set.text(&["status", "updateRevision"]);
    if rolls && set.text(&["status", "currentRevision"]) != update {
        left.push(format!("the rollout of the set {} is not complete", name(set)));
    }
    let owned = |pod: &&Arc<Value>| controller(pod).is_some_and(|owner| owner.text(&["uid"]) == uid(set));
    let pods: Vec<&Arc<Value>> = checker.all("Pod").filter(owned).collect();
    for ordinal in wants.ordinals.clone() {
        let pod_name = format!("{}-{ordinal}", name(set));
        let pod = pods.iter().find(|pod| name(pod) == pod_name);
        let is_ready = |pod: &Value| condition::get(pod, "Ready").is_some_and(|it| it.text(&["status"]) == "True");
        let is_new = |pod: &Value| pod.text(&["metadata", "labels", "controller-revision-hash"]) == update;
        if !pod.is_some_and(|pod| is_ready(pod) && (!rolls || is_new(pod))) {
            left.push(format!("the pod {pod_name} is missing, not ready or not updated"));
        }
        for template in set.items(&["spec", "volumeClaimTemplates"]) {
            let claim = format!("{}-{pod_name}", name(template));
            if checker.get(CLAIM, namespace(set), &claim).is_none() {
                left.push(format!("the claim {claim} is missing"));
            }
        }
    }
    if i64::try_from(pods.len()) != Ok(replicas) {
        left.push(format!("the set {} has {} pods, expected {replicas}", name(set), pods.len()));
    }
    left
}

/// Text of the final state, without values that differ from run to run.
pub fn summary(world: &World) -> String {
    let checker = world.checker();
    let mut text = String::new();
    for kind in ["Namespace", "StatefulSet", "Pod", CLAIM, VOLUME] {
        let objects = checker.all(kind).filter(|object| kind != VOLUME || !is_unknown(world, object));
        let mut lines: Vec<String> = objects.map(|object| object_line(&checker, kind, object)).collect();
        lines.sort();
        for line in lines {
            let _ = writeln!(text, "{line}");
        }
    }
    drop(checker);
    for revision in world.list("/apps/controllerrevisions/") {
        let _ = writeln!(text, "ControllerRevision {} {}", name(&revision), revision["revision"]);
    }
    // Does not count volumes that are kept for an unknown policy.
    let _ = writeln!(text, "backend volumes: {}", expected_handles(world).len());
    text
}

fn object_line(checker: &Checker, kind: &str, object: &Value) -> String {
    let owners: Vec<String> = object
        .items(&["metadata", "ownerReferences"])
        .iter()
        .map(|it| format!("{}/{}", it.text(&["kind"]), it.text(&["name"])))
        .collect();
    let labels = object.at(&["metadata", "labels"]).map(ToString::to_string).unwrap_or_default();
    let finalizers = object.at(&["metadata", "finalizers"]).map(ToString::to_string).unwrap_or_default();
    let phase = object.text(&["status", "phase"]);
    let who = format!("{kind} {}/{}", namespace(object), name(object));
    match kind {
        "StatefulSet" => {
            let status = |member: &str| object.at(&["status", member]).map(ToString::to_string).unwrap_or_default();
            let members = [
                "replicas",
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "currentRevision",
                "updateRevision",
            ];
            format!("{who} {}", members.map(|member| format!("{member}={}", status(member))).join(" "))
        }
        "Pod" => format!("{who} {phase} {labels} owners={owners:?}"),
        CLAIM => format!(
            "{who} {phase} {} of {} {labels} owners={owners:?} finalizers={finalizers}",
            object.text(&["status", "capacity", "storage"]),
            object.text(&["spec", "resources", "requests", "storage"]),
        ),
        VOLUME => {
            let reference = |member| object.text(&["spec", "claimRef", member]);
            let claim = checker.get(CLAIM, reference("namespace"), reference("name"));
            let is_there = claim.is_some_and(|claim| uid(claim) == reference("uid"));
            format!(
                "{kind} of {}/{} ({}) {phase} {} {} finalizers={finalizers}",
                reference("namespace"),
                reference("name"),
                if is_there { "there" } else { "gone" },
                object.text(&["spec", "persistentVolumeReclaimPolicy"]),
                object.text(&["spec", "capacity", "storage"]),
            )
        }
        _ => format!("{who} {phase}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails if a component writes forever, although each single check finds the required state.
    #[test]
    fn a_component_that_writes_forever_prevents_settling() {
        crate::world::prepare();
        let told = crate::run::on_own_thread(1, || async {
            let (world, _orders) = World::new(1).await;
            world.commit_checker.points.begin(None);
            let at_first = settle(&world).await;
            let writer = world.clone();
            tokio::spawn(async move {
                for count in 0.. {
                    let path = "/api/v1/namespaces/default";
                    let patch = object::json!({"metadata": {"labels": {"count": count.to_string()}}});
                    writer.send("PATCH", path, "application/merge-patch+json", Some(&patch)).await;
                    tokio::time::sleep(QUIET_PERIOD / 2).await;
                }
            });
            (at_first, settle(&world).await)
        });
        let why = "the world does not settle: a component still writes or calls; the last was \
                   /core/namespaces/default by operator";
        assert_eq!(told, (Ok(()), Err(why.to_owned())));
    }
}
