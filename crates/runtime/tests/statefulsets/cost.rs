//! The cost of sets, and their metrics.

use crate::sets::*;
use crate::world::*;
use futures::future::join_all;
use object::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// The controller's requests by kind, without names, lists and watches.
fn kinds(asked: &[Asked]) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let ours = asked.iter().filter(|asked| &*asked.account == SETS && !asked.path.contains('?'));
    for asked in ours.filter(|asked| !asked.path.starts_with("/openapi")) {
        let words: Vec<&str> = asked.path.split('/').collect();
        let at = words.iter().position(|word| *word == "namespaces").map_or(0, |at| at + 2);
        let resource = words.get(at).copied().unwrap_or("");
        let subresource = if words.ends_with(&["status"]) { "/status" } else { "" };
        *kinds.entry(format!("{} {resource}{subresource} {}", asked.method, asked.code)).or_default() += 1;
    }
    kinds
}

async fn run(world: &World, prefix: &str, sets: usize, replicas: i64) -> BTreeMap<String, usize> {
    world.requests.take().await;
    let started = Instant::now();
    let made = join_all((0..sets).map(|number| {
        let name = format!("{prefix}-{number}");
        let mut set =
            with(stateful_set("default", &name, replicas), json!({"volumeClaimTemplates": [claim_template("data")]}));
        set["spec"]["selector"]["matchLabels"] = json!({"app": name});
        set["spec"]["template"]["metadata"]["labels"] = json!({"app": name});
        world.create(set)
    }))
    .await;
    for set in &made {
        world.until_done(set).await;
    }
    let took = started.elapsed();
    let kinds = kinds(&world.requests.take().await);
    let pods = f64::from(u32::try_from(sets).expect("few")) * f64::from(i32::try_from(replicas).expect("few"));
    println!("{sets} sets of {replicas}: {:.0} pods/s; {kinds:?}", pods / took.as_secs_f64());
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_a_replica_do_not_grow_with_the_number_of_sets() {
    let (world, _kubelet) = World::lively().await;
    // Events are sent asynchronously, so some of the first round arrive in the second.
    let (mut events, mut pods_told) = (0, 0);
    for (sets, prefix) in [(5, "few"), (50, "many")] {
        let mut kinds = run(&world, prefix, sets, 3).await;
        let pods = 3 * sets;
        let mut take = |kind: &str| kinds.remove(kind).unwrap_or(0);
        assert_eq!(take("POST controllerrevisions 201"), sets);
        // Before a claim is created, which outlives its set, the set is confirmed.
        assert_eq!(take("GET statefulsets 200"), pods);
        assert_eq!(take("POST persistentvolumeclaims 201"), pods);
        assert_eq!(take("POST pods 201"), pods);
        (events, pods_told) = (events + take("POST events 201"), pods_told + pods);
        assert!(events <= 2 * pods_told, "{events} events of {pods_told} pods");
        // When created, and when ready; some of these coincide.
        let statuses = take("PUT statefulsets/status 200");
        assert!(statuses <= 2 * pods + sets, "{statuses} writes of the status of {sets} sets");
        // Nothing was requested twice, or refused because the controller's cache lacked its own writes.
        assert!(kinds.is_empty(), "{kinds:?}");
    }
    world.quiet().await;
    world.requests.take().await;
    world.quiet().await;
    let others: Vec<Asked> = world.requests.take().await;
    // Events may be sent later.
    let others = others.iter().filter(|asked| &*asked.account == SETS && is_write(&asked.method, &asked.path));
    let others = others.filter(|asked| asked.path.contains("/default/"));
    assert_eq!(others.count(), 0, "a settled set costs nothing");
    world.stop().await;
}

fn figure(world: &World, name: &str, labels: &[&str]) -> Option<f64> {
    let text = world.figures();
    let mut lines = text
        .lines()
        .filter(|line| line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label)));
    lines.next().and_then(|line| line.rsplit_once(' ')?.1.parse().ok())
}

// O6, and the metrics of queues.
#[tokio::test(flavor = "multi_thread")]
async fn o6_the_metrics_of_sets_and_queues() {
    let (world, _kubelet) = World::lively().await;
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}});
    let set = world.create(with(web(4), json!({"updateStrategy": strategy}))).await;
    let set = world.until_done(&set).await;
    let set_labels =
        ["statefulset_namespace=\"default\"", "statefulset_name=\"web\"", "pod_management_policy=\"OrderedReady\""];
    let max = "statefulset_controller_statefulset_max_unavailable";
    let unavailable = "statefulset_controller_statefulset_unavailable_replicas";
    assert_eq!(figure(&world, max, &set_labels), Some(2.0));
    let set = world.set_image(&set, "y").await;
    let set = world.until_done(&set).await;
    world.quiet().await;
    assert_eq!(figure(&world, unavailable, &set_labels), Some(0.0));
    let ours = ["name=\"statefulset-controller\""];
    // Two changes of the set, and one of each marker.
    assert!(figure(&world, "statefulset_reconcile_delay_count", &[]) >= Some(3.0));
    assert!(figure(&world, "statefulset_reconcile_delay_sum", &[]) < Some(30.0));
    assert!(figure(&world, "workqueue_adds_total", &ours) > Some(4.0));
    assert!(figure(&world, "workqueue_queue_duration_seconds_count", &ours) > Some(4.0));
    assert!(figure(&world, "workqueue_work_duration_seconds_count", &ours) > Some(4.0));
    assert!(figure(&world, "workqueue_depth", &ours).is_some());
    assert!(figure(&world, "workqueue_retries_total", &ours).is_some());
    assert!(figure(&world, "reconcile_duration_seconds_count", &ours) > Some(4.0));
    assert!(figure(&world, "controller_cache_objects", &[ours[0], "resource=\"statefulsets\""]) >= Some(1.0));
    world.delete(&set, "Background").await;
    world.until_gone(&set).await;
    let gone = || async { figure(&world, max, &set_labels[1..2]).is_none().then_some(()) };
    world.until_pods(&[]).await;
    world.quiet().await;
    world.until("its figures go with it", gone).await;
    assert_eq!(figure(&world, unavailable, &set_labels[1..2]), None);
    world.stop().await;
}

// The cost of rollouts.
#[tokio::test(flavor = "multi_thread")]
async fn many_sets_roll_at_once() {
    let (world, _kubelet) = World::lively().await;
    let sets = scaled(100);
    run(&world, "web", sets, 5).await;
    world.requests.take().await;
    let started = Instant::now();
    let rolled: Vec<Value> = join_all((0..sets).map(|number| {
        let set = stateful_set("default", &format!("web-{number}"), 5);
        let world = &world;
        async move { world.set_image(&set, "y").await }
    }))
    .await;
    for set in &rolled {
        world.until_done(set).await;
    }
    let took = started.elapsed();
    let kinds = kinds(&world.requests.take().await);
    println!("rolled {} pods in {took:?}; {kinds:?}", 5 * sets);
    assert_eq!(kinds.get("POST pods 201"), Some(&(5 * sets)), "{kinds:?}");
    assert_eq!(kinds.get("DELETE pods 200"), Some(&(5 * sets)), "{kinds:?}");
    assert_eq!(kinds.keys().filter(|kind| kind.ends_with("409")).count(), 0, "{kinds:?}");
    world.stop().await;
}

/// In-place expansion costs one write per claim and one per pod; the status is written a few times.
#[tokio::test(flavor = "multi_thread")]
async fn t5_growing_a_set_of_100_costs_two_writes_for_each_replica() {
    let set = with(crate::storage::in_place(100), json!({"podManagementPolicy": "Parallel"}));
    let (world, kubelet, storage, set) = World::settled(set).await;
    world.requests.take().await;
    let started = Instant::now();
    let set = world.grow(&set, "20Gi").await;
    world.until_done(&set).await;
    println!("100 claims of a set grown one after the other: {:.1} s", started.elapsed().as_secs_f64());
    let asked = world.requests.take().await;
    let writes = asked.iter().filter(|asked| &*asked.account == SETS && is_write(&asked.method, &asked.path));
    let (done, refused): (Vec<_>, Vec<_>) = writes.partition(|asked| asked.code < 300);
    let count = |what: &str, method: &str| {
        done.iter().filter(|asked| asked.method == method && asked.path.contains(what)).count()
    };
    // If a cache is behind the storage or the kubelet, a write is refused and repeated; that is rare.
    assert!(refused.len() <= 5 && refused.iter().all(|asked| asked.code == 409), "{refused:?}");
    assert_eq!((count("/persistentvolumeclaims/", "PATCH"), count("/pods/", "PATCH")), (100, 100));
    assert!(count("/status", "PUT") <= 301, "{} writes of the status", count("/status", "PUT"));
    drop((kubelet, storage));
    world.stop().await;
}
