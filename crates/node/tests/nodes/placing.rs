//! The scheduler: pending pods get the reason why, and are scheduled when a change makes them fit.

use crate::fleet::*;
use crate::world::*;
use node::Setup;
use object::access::Access;
use object::{Value, condition, json};

fn small(setup: &mut Setup) {
    setup.capacity.insert("cpu".to_owned(), "2".to_owned());
}

fn scheduled(pod: &Value) -> bool {
    !pod.text(&["spec", "nodeName"]).is_empty()
}

/// Waits until the pod's condition has this message.
async fn until_said(fleet: &Fleet, pod: &Value, message: &str) {
    let said = |pod: &Value| condition::get(pod, "PodScheduled").is_some_and(|said| said["message"] == message);
    let pod = fleet.until_is(pod, message, said).await;
    let condition = condition::get(&pod, "PodScheduled").expect("the object exists");
    assert_eq!((condition.text(&["status"]), condition.text(&["reason"])), ("False", "Unschedulable"));
    let event = fleet.until_event(&pod, "FailedScheduling").await;
    assert_eq!(event["source"]["component"], "default-scheduler");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_fit_waits_for_room() {
    let fleet = Fleet::with(1, small).await;
    let first = fleet.create(asking("first", "1500m")).await;
    fleet.until_ready(&first).await;
    let second = fleet.create(asking("second", "1")).await;
    until_said(&fleet, &second, "0/1 nodes are available: 1 Insufficient cpu.").await;
    fleet.requests.take().await;
    fleet.pass(600).await;
    let asked = fleet.requests.take().await;
    assert!(!asked.iter().any(|asked| asked.path.contains("/pods/second")), "nobody polls: {asked:?}");
    let third = fleet.create(asking("third", "500m")).await;
    fleet.until_ready(&third).await;
    fleet.delete(&first, "").await;
    let placed = fleet.until_ready(&second).await;
    assert!(condition::is_true(&placed, "PodScheduled"));
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_no_node_accepts_waits_for_one_that_does() {
    let fleet = Fleet::of(2).await;
    for number in 0..2 {
        fleet.merge(&node_named(number), json!({"spec": {"unschedulable": true}})).await;
    }
    let pod = fleet.create(pod("default", "p")).await;
    until_said(&fleet, &pod, "0/2 nodes are available: 2 node(s) were unschedulable.").await;
    fleet
        .merge(
            &node_named(0),
            json!({"spec": {"unschedulable": null, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}),
        )
        .await;
    let message = "0/2 nodes are available: 1 node(s) had untolerated taint {k: v}, 1 node(s) were unschedulable.";
    until_said(&fleet, &pod, message).await;
    fleet.merge(&node_named(0), json!({"spec": {"taints": null}})).await;
    assert_eq!(fleet.until_ready(&pod).await["spec"]["nodeName"], "simulated-0");
    let mut picky = crate::world::pod("default", "picky");
    picky["spec"]["nodeSelector"] = json!({"disk": "ssd"});
    let picky = fleet.create(picky).await;
    until_said(
        &fleet,
        &picky,
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unschedulable.",
    )
    .await;
    fleet.merge(&node_named(0), json!({"metadata": {"labels": {"disk": "ssd"}}})).await;
    fleet.until_ready(&picky).await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn gated_pods_and_those_of_other_schedulers_are_not_scheduled() {
    let fleet = Fleet::of(1).await;
    let mut gated = pod("default", "gated");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/g"}]);
    let gated = fleet.create(gated).await;
    let mut others = pod("default", "others");
    others["spec"]["schedulerName"] = json!("another");
    let others = fleet.create(others).await;
    fleet.pass(60).await;
    assert!(!scheduled(&fleet.now(&gated).await.expect("the object exists")));
    assert!(!scheduled(&fleet.now(&others).await.expect("the object exists")));
    fleet.merge(&gated, json!({"spec": {"schedulingGates": null}})).await;
    fleet.until_ready(&gated).await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn replicas_with_anti_affinity_wait_for_nodes() {
    let fleet = Fleet::of(2).await;
    let apart = |name: &str| {
        let mut pod = pod("default", name);
        pod["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}]}});
        pod
    };
    let pods = futures::future::join_all(["a", "b", "c"].map(|name| fleet.create(apart(name)))).await;
    let ready = |pod: &Value| condition::is_true(pod, "Ready");
    let waiting = fleet
        .until("two run", || async {
            let now = futures::future::join_all(pods.iter().map(|pod| fleet.now(pod))).await;
            let (run, wait): (Vec<Value>, Vec<Value>) = now.into_iter().flatten().partition(ready);
            (run.len() == 2 && run[0]["spec"]["nodeName"] != run[1]["spec"]["nodeName"]).then_some((run, wait))
        })
        .await;
    until_said(&fleet, &waiting.1[0], "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.").await;
    fleet.delete(&waiting.0[0], "").await;
    let placed = fleet.until_ready(&waiting.1[0]).await;
    assert_eq!(placed["spec"]["nodeName"], waiting.0[0]["spec"]["nodeName"]);
    fleet.stop().await;
}

fn class(name: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": "example.com/p", "volumeBindingMode": mode,
    })
}

fn claim_of(class: &str) -> Value {
    let mut claim = claim("default", "data");
    claim["spec"]["storageClassName"] = json!(class);
    claim
}

fn using(name: &str) -> Value {
    let mut pod = pod("default", name);
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    pod
}

/// Matches GET requests for the claim by an account whose name contains `account`.
fn asks_for_claim(account: &str) -> impl Fn(&Asked) -> bool {
    move |asked| {
        asked.method == "GET" && asked.path.ends_with("/persistentvolumeclaims/data") && asked.account.contains(account)
    }
}

/// Binds the claim to a PV, as a provisioner does.
async fn bind(fleet: &Fleet, claim: &Value, name: &str, more: Value) {
    let mut volume = volume(name);
    volume["spec"]["storageClassName"] = claim["spec"]["storageClassName"].clone();
    volume["spec"]["claimRef"] = json!({"namespace": "default", "name": "data", "uid": claim["metadata"]["uid"]});
    for (field, value) in more.members(&[]) {
        volume["spec"][field] = value.clone();
    }
    if fleet.get(&path(&volume)).await.is_none() {
        fleet.create(volume).await;
    }
    let bound =
        json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": name}});
    fleet.merge(claim, bound).await;
    fleet.set_status(claim, json!({"phase": "Bound"})).await;
}

#[tokio::test(start_paused = true)]
async fn immediate_claims_are_waited_for() {
    let fleet = Fleet::of(1).await;
    fleet.create(class("now", "Immediate")).await;
    let pod = fleet.create(using("p")).await;
    until_said(&fleet, &pod, "0/1 nodes are available: persistentvolumeclaim \"data\" not found.").await;
    let claim = fleet.create(claim_of("now")).await;
    until_said(&fleet, &pod, "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.").await;
    bind(&fleet, &claim, "v", json!({})).await;
    fleet.until_ready(&pod).await;
    // Scenario 9.H5: a terminating claim gets no new pods.
    fleet.delete(&claim, "").await;
    let late = fleet.create(using("late")).await;
    until_said(&fleet, &late, "0/1 nodes are available: persistentvolumeclaim \"data\" is being deleted.").await;
    fleet.stop().await;
}

/// A claim was replaced, or is about to be: if the pod got a node by the old claim, no node would ever be
/// selected for the new one.
#[tokio::test(start_paused = true)]
async fn a_pod_is_not_scheduled_by_a_claim_that_was_replaced() {
    for is_gone in [true, false] {
        let fleet = Fleet::of(1).await;
        fleet.create(class("late", "WaitForFirstConsumer")).await;
        let first = fleet.create(claim_of("late")).await;
        bind(&fleet, &first, "v", json!({})).await;
        let before = fleet.create(using("before")).await;
        fleet.until_ready(&before).await;
        fleet.delete(&before, "").await;
        fleet.until_gone(&before).await;
        fleet.faults.mute("system:kube-scheduler", "/persistentvolumeclaims");
        fleet.delete(&first, "").await;
        // Only the test removes the finalizer: until then the claim is terminating.
        let let_go = json!({"metadata": {"finalizers": null}});
        let replace = async || {
            fleet.merge(&first, let_go.clone()).await;
            fleet.until_gone(&first).await;
            fleet.create(claim_of("late")).await
        };
        let second = if is_gone { Some(replace().await) } else { None };
        fleet.requests.take().await;
        let pod = fleet.create(using("after")).await;
        fleet.until_moment("the scheduler asks", || fleet.requests.count(asks_for_claim("scheduler")) > 0).await;
        assert_eq!(fleet.now(&pod).await.expect("the object exists").text(&["spec", "nodeName"]), "");
        let second = match second {
            Some(second) => second,
            None => replace().await,
        };
        fleet.faults.release();
        let selected = "volume.kubernetes.io/selected-node";
        fleet
            .until_is(&second, "chosen a node", |claim| claim.at(&["metadata", "annotations", selected]).is_some())
            .await;
        fleet.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_bound_soon_causes_no_event() {
    let fleet = Fleet::of(1).await;
    fleet.create(class("now", "Immediate")).await;
    let claim = fleet.create(claim_of("now")).await;
    let pod = fleet.create(using("p")).await;
    bind(&fleet, &claim, "v", json!({})).await;
    fleet.until_ready(&pod).await;
    fleet.pass(10).await;
    assert_eq!(fleet.told(&pod).await, ["Scheduled", "Started"]);
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn claims_that_wait_for_their_pod_get_a_selected_node() {
    let fleet = Fleet::of(3).await;
    fleet.create(class("later", "WaitForFirstConsumer")).await;
    let claim = fleet.create(claim_of("later")).await;
    let pod = fleet.create(using("p")).await;
    let selected =
        |claim: &Value| claim.text(&["metadata", "annotations", "volume.kubernetes.io/selected-node"]).to_owned();
    let told = fleet.until_is(&claim, "told", |claim| !selected(claim).is_empty()).await;
    assert_eq!(selected(&told), "simulated-0");
    fleet.pass(30).await;
    assert!(!scheduled(&fleet.now(&pod).await.expect("the object exists")), "not before its claim is bound");
    // The provisioner cannot serve that node: it removes the selected node, and gets another (or the same)
    // one.
    fleet.merge(&node_named(0), json!({"spec": {"unschedulable": true}})).await;
    fleet.merge(&claim, json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}})).await;
    fleet.until_is(&claim, "another choice", |claim| selected(claim) == "simulated-1").await;
    let affinity = json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["simulated-1"]}]}]}}});
    bind(&fleet, &claim, "v", affinity).await;
    assert_eq!(fleet.until_ready(&pod).await["spec"]["nodeName"], "simulated-1");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn static_volumes_are_given_to_claims_that_wait() {
    let fleet = Fleet::of(2).await;
    let mut local = class("local", "WaitForFirstConsumer");
    local["provisioner"] = json!("kubernetes.io/no-provisioner");
    fleet.create(local).await;
    let claim = fleet.create(claim_of("local")).await;
    let pod = fleet.create(using("p")).await;
    until_said(&fleet, &pod, "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.")
        .await;
    let mut there = volume("there");
    there["spec"]["storageClassName"] = json!("local");
    there["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["simulated-1"]}]}]}});
    let there = fleet.create(there).await;
    fleet.set_status(&there, json!({"phase": "Available"})).await;
    let given = fleet.until_is(&there, "given", |volume| volume.has(&["spec", "claimRef"])).await;
    assert_eq!(given["spec"]["claimRef"]["uid"], claim["metadata"]["uid"]);
    assert_eq!(given["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"], "yes");
    assert!(!scheduled(&fleet.now(&pod).await.expect("the object exists")));
    bind(&fleet, &claim, "there", json!({})).await;
    assert_eq!(fleet.until_ready(&pod).await["spec"]["nodeName"], "simulated-1");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_refuses_terminating_claims() {
    let fleet = Fleet::of(1).await;
    fleet.create(class("now", "Immediate")).await;
    let claim = fleet.create(claim_of("now")).await;
    bind(&fleet, &claim, "v", json!({})).await;
    fleet.delete(&claim, "").await;
    let mut bound = using("p");
    bound["spec"]["nodeName"] = json!("simulated-0");
    let bound = fleet.create(bound).await;
    let event = fleet.until_event(&bound, "FailedMount").await;
    assert_eq!(event["message"], "error processing PVC default/data: PVC is being deleted");
    let waiting = fleet.now(&bound).await.expect("the object exists");
    assert_eq!((waiting.text(&["status", "phase"]), word(&waiting)), ("Pending", "ContainerCreating"));
    fleet.stop().await;
}

/// Also if its cache does not show this yet: protection may have looked before the pod had a node, and would
/// remove the claim's finalizer.
#[tokio::test(start_paused = true)]
async fn a_kubelet_reads_claims_before_it_uses_them() {
    let fleet = Fleet::of(1).await;
    fleet.create(class("now", "Immediate")).await;
    let claim = fleet.create(claim_of("now")).await;
    bind(&fleet, &claim, "v", json!({})).await;
    // The cache has it as bound, because a pod uses it.
    let before = fleet.create(using("before")).await;
    fleet.until_ready(&before).await;
    fleet.faults.mute("system:kube-scheduler", "/persistentvolumeclaims");
    fleet.delete(&claim, "").await;
    let mut bound = using("p");
    bound["spec"]["nodeName"] = json!("simulated-0");
    let bound = fleet.create(bound).await;
    fleet.requests.take().await;
    fleet.until_moment("the kubelet asks, again", || fleet.requests.count(asks_for_claim("node")) > 3).await;
    let waiting = fleet.now(&bound).await.expect("the object exists");
    assert!(!waiting.has(&["status", "containerStatuses"]), "nothing has started: {waiting}");
    fleet.faults.release();
    let event = fleet.until_event(&bound, "FailedMount").await;
    assert_eq!(event["message"], "error processing PVC default/data: PVC is being deleted");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_node_finishes_the_expansion_of_a_claim_that_is_mounted() {
    let fleet = Fleet::of(1).await;
    fleet.create(class("now", "Immediate")).await;
    let claim = fleet.create(claim_of("now")).await;
    bind(&fleet, &claim, "v", json!({})).await;
    let pending = json!({
        "phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    fleet.set_status(&claim, pending).await;
    fleet.pass(60).await;
    assert_eq!(
        fleet.now(&claim).await.expect("the object exists")["status"]["capacity"]["storage"],
        "1Gi",
        "it is not mounted"
    );
    let grown = |claim: &Value| claim["status"]["capacity"]["storage"] == "2Gi";
    let pod = fleet.create(using("p")).await;
    let claim = fleet.until_is(&claim, "grown", grown).await;
    assert!(
        !claim.has(&["status", "allocatedResourceStatuses"]) && claim.items(&["status", "conditions"]).is_empty(),
        "{claim}"
    );
    fleet.until_event(&pod, "FileSystemResizeSuccessful").await;
    fleet.until_event(&claim, "FileSystemResizeSuccessful").await;
    // Once mounted, the expansion is finished at once.
    let again = json!({"allocatedResources": {"storage": "3Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"}});
    fleet.set_status(&claim, again).await;
    fleet.until_is(&claim, "grown again", |claim| claim["status"]["capacity"]["storage"] == "3Gi").await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_never_bound_is_reported_and_may_still_be_bound() {
    let fleet = Fleet::of(1).await;
    fleet.create(class("later", "WaitForFirstConsumer")).await;
    let claim = fleet.create(claim_of("later")).await;
    let pod = fleet.create(using("p")).await;
    until_said(&fleet, &pod, "binding volumes: context deadline exceeded").await;
    bind(&fleet, &claim, "v", json!({})).await;
    fleet.until_ready(&pod).await;
    fleet.stop().await;
}
