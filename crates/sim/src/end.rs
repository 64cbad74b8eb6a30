//! The end of a story: what is still to be done, and how everything is when nothing is.

use crate::ledger::JOURNAL;
use crate::point::Counted;
use crate::run::QUIET;
use crate::world::{PATIENCE, World};
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

/// Waits until everything is as it should be and stays so, with nobody writing; the error says what is not.
pub async fn rest(world: &World) -> Result<(), String> {
    let begun = tokio::time::Instant::now();
    loop {
        if !world.log.is_whole() {
            return Err("a rule is broken".to_owned());
        }
        let mut left = unrest(world);
        if left.is_empty() {
            let points = &world.ledger.points;
            // Who waits for a person goes on asking, and is refused.
            let asks = is_anybody_blocked(world);
            let counted = || Counted { requests: if asks { 0 } else { points.counted().requests }, ..points.counted() };
            let (before, newest) = (counted(), world.ledger.newest());
            tokio::time::sleep(QUIET).await;
            world.ledger.look_at_backend();
            left = unrest(world);
            if counted() != before {
                left.push(format!("somebody still writes or calls, the last was {}", points.last()));
            }
            if left.is_empty() {
                // What beats goes on, and may be on its way to those who follow it; what was there before is not.
                let behind = world.net.behind(newest);
                return if behind.is_empty() { Ok(()) } else { Err(behind.join("; ")) };
            }
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("it does not come to rest: {}", left.join("; ")));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What is not yet as it should be.
pub fn unrest(world: &World) -> Vec<String> {
    if world.net.server().is_none() {
        return vec!["the server is down".to_owned()];
    }
    let mut left = Vec::new();
    let journal = world.stored(JOURNAL);
    let written = journal.as_ref().map(|journal| journal.members(&["data"]).len()).unwrap_or(0);
    if written > 0 {
        left.push(format!("{written} volumes are written down in the journal"));
    }
    let gates = world.controller_gates();
    let checker = world.checker();
    for kind in plan::invariant::KINDS {
        let waits_for_person = |object: &Value| kind == VOLUME && is_left_over(world, object);
        let going = checker.all(kind).filter(|object| terminating(object) && !waits_for_person(object));
        left.extend(going.map(|object| format!("{kind} {} is on its way out", name(object))));
    }
    for set in checker.all("StatefulSet").filter(|set| !is_blocked_by_a_claim(&checker, set)) {
        left.extend(of_set(&checker, set, &Wants::of(set, &gates)));
    }
    for claim in checker.all(CLAIM) {
        let size = |path: &[&str]| claim.text(path).parse::<Quantity>().unwrap_or(Quantity::ZERO);
        let (asked, has) =
            (size(&["spec", "resources", "requests", "storage"]), size(&["status", "capacity", "storage"]));
        let is_bound = claim.text(&["status", "phase"]) == "Bound";
        if !is_bound && waits_for_user(world, &checker, claim) {
            continue;
        }
        if !is_bound || has < asked {
            left.push(format!(
                "the claim {} is {} with {has} of {asked}",
                name(claim),
                claim.text(&["status", "phase"])
            ));
        }
    }
    left.extend(endpoints_left(&checker));
    let sizes = world.driver.sizes();
    for volume in checker.all(VOLUME) {
        left.extend(smaller_than_said(&checker, &sizes, volume));
        let (phase, policy) =
            (volume.text(&["status", "phase"]), volume.text(&["spec", "persistentVolumeReclaimPolicy"]));
        let is_at_rest = match phase {
            "Bound" | "Available" => true,
            "Released" => policy == "Retain" || is_left_over(world, volume),
            // The plugin inside made it, and its claim never got it.
            "Pending" => is_left_over(world, volume),
            _ => false,
        };
        if !is_at_rest {
            left.push(format!("the volume {} is {phase} with {policy}", name(volume)));
        }
    }
    let told = |rule: &String| {
        let handle = rule.split_whitespace().find(|word| word.starts_with("vol-"));
        handle.is_some_and(|handle| is_told_of(world, handle))
    };
    left.extend(checker.backend_at_rest(&world.driver.handles()).into_iter().filter(|rule| !told(rule)));
    left
}

/// Endpoints that are not what their Service and its pods ask for.
fn endpoints_left(checker: &Checker) -> Vec<String> {
    let named = checker.all("Service").chain(checker.all("Endpoints"));
    let keys: BTreeSet<(&str, &str)> = named.map(|object| (namespace(object), name(object))).collect();
    let is_left = |(space, named): &(&str, &str)| {
        let service = checker.get("Service", space, named).map(AsRef::as_ref).ok_or(Absent::Unknown);
        let pods: Vec<&Value> = checker.all("Pod").map(AsRef::as_ref).collect();
        let current = checker.get("Endpoints", space, named).map(AsRef::as_ref);
        plan::endpoints::plan(service, &pods, current) != Step::Nothing
    };
    let left = keys.into_iter().filter(is_left);
    left.map(|(space, named)| format!("the Endpoints {space}/{named} do not follow the pods of their Service"))
        .collect()
}

/// The backend is at least as large as the volume's object says, and that as its claim says.
fn smaller_than_said(checker: &Checker, backend: &BTreeMap<String, i64>, volume: &Value) -> Option<String> {
    let size = |object: &Value, path: &[&str]| object.text(path).parse::<Quantity>().unwrap_or(Quantity::ZERO);
    let reference = |member| volume.text(&["spec", "claimRef", member]);
    let claim = checker.get(CLAIM, reference("namespace"), reference("name"));
    let claim = claim.filter(|claim| claim.text(&["spec", "volumeName"]) == name(volume));
    let said = size(volume, &["spec", "capacity", "storage"]);
    let to_user = claim.map_or(Quantity::ZERO, |claim| size(claim, &["status", "capacity", "storage"]));
    let has = backend.get(volume.text(&["spec", "csi", "volumeHandle"])).map(|bytes| Quantity::from_bytes(*bytes))?;
    let is_so = to_user <= said && said <= has;
    (!is_so).then(|| format!("the volume {} has {has}, says {said} and its claim {to_user}", name(volume)))
}

/// An object that was created when its volume had come and gone already, by a request that was on its way for so long. It waits for a
/// person: to the provisioner it is one from a backup, and its backend is gone; or it tells of one that was retained.
pub fn is_left_over(world: &World, volume: &Value) -> bool {
    let is_unconfirmed = volume.text(&["status", "reason"]) == plan::csi::reclaim::UNCONFIRMED;
    let has_backend = handle(volume).is_some_and(|handle| world.driver.handles().contains(&*handle));
    let is_retained = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Retain";
    let has_returned = world.ledger.has_returned(name(volume));
    (has_returned && (is_retained || is_unconfirmed)) || (!has_backend && is_unconfirmed)
}

/// A directory's volume that its claim never got, while the server has forgotten whether another of its name was retained: whoever asked was told so, and
/// it waits for a person.
fn is_unknown(world: &World, volume: &Value) -> bool {
    volume.text(&["status", "phase"]) == "Pending"
        && volume.text(&["status", "reason"]) == plan::csi::reclaim::UNCONFIRMED
        && world.ledger.has_returned(name(volume))
}

fn is_anybody_blocked(world: &World) -> bool {
    let checker = world.checker();
    checker.all("StatefulSet").any(|set| is_blocked_by_a_claim(&checker, set))
}

/// P35: a claim without a volume cannot be made what the template says, so its pod is not created until a person deletes it.
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

/// Its class binds it when a pod comes, and none has.
fn waits_for_user(world: &World, checker: &Checker, claim: &Value) -> bool {
    let class = world.stored(&format!("/storage.k8s.io/storageclasses/{}", claim.text(&["spec", "storageClassName"])));
    let waits = class.is_some_and(|class| class.text(&["volumeBindingMode"]) == "WaitForFirstConsumer");
    let is_near = |pod: &&Arc<Value>| namespace(pod) == namespace(claim);
    waits && !checker.all("Pod").filter(is_near).any(|pod| plan::protect::uses(pod, name(claim)))
}

/// Whether an event says that a volume is kept because its last reclaim policy cannot be known: its PV was deleted while
/// the provisioner did not run, and the server's history no longer has it (docs/decisions/0007). The provisioner must have
/// asked the server, and the server must have answered that it does not know.
fn is_told_of(world: &World, handle: &str) -> bool {
    let events = world.list("/core/events/").into_iter();
    let mut messages = events.filter(|event| event.text(&["reason"]) == "VolumeFailedDelete");
    messages.any(|event| {
        let message = event.text(&["message"]);
        let volume =
            message.strip_prefix("The PersistentVolume ").and_then(|rest| rest.split_once(" was deleted unobserved"));
        message.contains(handle) && volume.is_some_and(|(volume, _)| world.ledger.has_returned(volume))
    })
}

/// The driver's volumes without those that are kept because nobody can know, and those of objects that came once more.
pub fn meant_handles(world: &World) -> BTreeSet<String> {
    let left_over: BTreeSet<String> = {
        let checker = world.checker();
        let volumes = checker.all(VOLUME).filter(|volume| is_left_over(world, volume));
        volumes.filter_map(|volume| Some(handle(volume)?.into_owned())).collect()
    };
    let is_meant = |handle: &String| !left_over.contains(handle) && !is_told_of(world, handle);
    world.driver.handles().into_iter().filter(is_meant).collect()
}

fn of_set(checker: &Checker, set: &Value, wants: &Wants) -> Vec<String> {
    let mut left = Vec::new();
    let status = |member: &str| set.int(&["status", member]).unwrap_or(0);
    let replicas = wants.ordinals.end - wants.ordinals.start;
    if set.int(&["metadata", "generation"]) != set.int(&["status", "observedGeneration"]) {
        left.push(format!("the set {} was not looked at", name(set)));
    }
    if status("replicas") != replicas || status("readyReplicas") != replicas || status("availableReplicas") != replicas
    {
        left.push(format!("the set {} has {} of {replicas} replicas ready", name(set), status("readyReplicas")));
    }
    let rolls = set.text(&["spec", "updateStrategy", "type"]) != "OnDelete"
        && set.int(&["spec", "updateStrategy", "rollingUpdate", "partition"]).unwrap_or(0) == 0;
    let update = set.text(&["status", "updateRevision"]);
    if rolls && set.text(&["status", "currentRevision"]) != update {
        left.push(format!("the set {} rolls", name(set)));
    }
    let owned = |pod: &&Arc<Value>| controller(pod).is_some_and(|owner| owner.text(&["uid"]) == uid(set));
    let pods: Vec<&Arc<Value>> = checker.all("Pod").filter(owned).collect();
    for ordinal in wants.ordinals.clone() {
        let pod_name = format!("{}-{ordinal}", name(set));
        let pod = pods.iter().find(|pod| name(pod) == pod_name);
        let is_ready = |pod: &Value| condition::get(pod, "Ready").is_some_and(|it| it.text(&["status"]) == "True");
        let is_new = |pod: &Value| pod.text(&["metadata", "labels", "controller-revision-hash"]) == update;
        if !pod.is_some_and(|pod| is_ready(pod) && (!rolls || is_new(pod))) {
            left.push(format!("the pod {pod_name} is not there, ready and up to date"));
        }
        for template in set.items(&["spec", "volumeClaimTemplates"]) {
            let claim = format!("{}-{pod_name}", name(template));
            if checker.get(CLAIM, namespace(set), &claim).is_none() {
                left.push(format!("the claim {claim} is missing"));
            }
        }
    }
    if i64::try_from(pods.len()) != Ok(replicas) {
        left.push(format!("the set {} has {} pods instead of {replicas}", name(set), pods.len()));
    }
    left
}

/// How everything is, without what differs from run to run.
pub fn summary(world: &World) -> String {
    let checker = world.checker();
    let mut text = String::new();
    for kind in ["Namespace", "StatefulSet", "Pod", CLAIM, VOLUME] {
        let objects = checker.all(kind).filter(|object| kind != VOLUME || !is_unknown(world, object));
        let mut lines: Vec<String> = objects.map(|object| line(&checker, kind, object)).collect();
        lines.sort();
        for line in lines {
            let _ = writeln!(text, "{line}");
        }
    }
    drop(checker);
    for revision in world.list("/apps/controllerrevisions/") {
        let _ = writeln!(text, "ControllerRevision {} {}", name(&revision), revision["revision"]);
    }
    // What was kept because nobody can know, and told of, is one more.
    let _ = writeln!(text, "backend volumes: {}", meant_handles(world).len());
    text
}

fn line(checker: &Checker, kind: &str, object: &Value) -> String {
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

    /// Everything is as it should be whenever it is looked at, but somebody writes for ever, or a pod is made anew between two looks.
    #[test]
    fn who_writes_for_ever_is_not_at_rest() {
        crate::world::prepare();
        let told = crate::run::on_own_thread(1, || async {
            let (world, _orders) = World::new(1).await;
            world.ledger.points.begin(None);
            let at_first = rest(&world).await;
            let writer = world.clone();
            tokio::spawn(async move {
                for count in 0.. {
                    let path = "/api/v1/namespaces/default";
                    let patch = object::json!({"metadata": {"labels": {"count": count.to_string()}}});
                    writer.send("PATCH", path, "application/merge-patch+json", Some(&patch)).await;
                    tokio::time::sleep(QUIET / 2).await;
                }
            });
            (at_first, rest(&world).await)
        });
        let why = "it does not come to rest: somebody still writes or calls, the last was \
                   /core/namespaces/default by operator";
        assert_eq!(told, (Ok(()), Err(why.to_owned())));
    }
}
