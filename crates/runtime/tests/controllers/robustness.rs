//! Broken watches, compacted history, server errors, and a clean shutdown.

use crate::world::*;
use futures::future::join_all;
use kit::api::{Api, Resource};
use kit::worker::{self, Source};
use object::access::{name, uid};
use object::json;
use runtime::{Controllers, Setup};
use server::User;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn broken_watches_resume_where_they_were() {
    let world = World::with("*").await;
    let mut objects = Vec::new();
    for round in 0..10 {
        world.faults.cut_watches();
        let owner = world.create(config_map("default", &format!("owner-{round}"))).await;
        objects.push(world.create(owned(secret("default", &format!("dependent-{round}")), &[&owner])).await);
        world.faults.cut_watches();
        world.delete(&owner, "Background").await;
    }
    world.until_all_gone(&objects).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_missed_by_a_watch_are_found_by_a_new_list() {
    let world = World::with("*").await;
    let owner = world.create(config_map("default", "owner")).await;
    let waiting = world.create(config_map("default", "waiting")).await;
    let stays = world.create(config_map("default", "stays")).await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
    let blocks = world.create(held(blocking(secret("default", "blocks"), &[&waiting]))).await;
    let safe = world.create(owned(secret("default", "safe"), &[&stays])).await;
    world.settle().await;
    world.faults.refuse(Some(503));
    world.faults.cut_watches();
    world.delete(&owner, "Background").await;
    world.merge(&blocks, json!({"metadata": {"finalizers": null}})).await;
    world.delete(&blocks, "Background").await;
    world.delete(&waiting, "Foreground").await;
    let leaving = world.create(new_namespace("leaving")).await;
    world.delete(&leaving, "").await;
    let certificate = config_map("default", "kube-root-ca.crt");
    let before = world.now(&certificate).await.expect("there");
    world.delete(&certificate, "").await;
    // The history from which the watches would resume is compacted.
    world.store.compact(world.store.revision()).await.expect("compacts");
    world.faults.refuse(None);
    world.until_all_gone(&[dependent, waiting, leaving]).await;
    world.until_is(&certificate, "is back", |found| uid(found) != uid(&before)).await;
    assert!(world.now(&safe).await.is_some());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_at_any_moment_loses_nothing() {
    let world = World::with(GC).await;
    let compacting = async {
        loop {
            world.store.compact(world.store.revision()).await.expect("compacts");
            tokio::task::yield_now().await;
        }
    };
    let writing = async {
        let mut gone = Vec::new();
        let mut kept = Vec::new();
        for round in 0..10 {
            let owner = world.create(config_map("default", &format!("owner-{round}"))).await;
            let more = (0..10).map(|at| world.create(owned(secret("default", &format!("d-{round}-{at}")), &[&owner])));
            let dependents = join_all(more).await;
            let orphan = round % 2 == 0;
            world.delete(&owner, if orphan { "Orphan" } else { "Background" }).await;
            if orphan { kept.extend(dependents) } else { gone.extend(dependents) }
        }
        world.until_all_gone(&gone).await;
        world.settle().await;
        for object in &kept {
            assert!(world.now(object).await.is_some(), "{} was to be orphaned", name(object));
        }
    };
    tokio::select! {
        () = writing => {}
        () = compacting => unreachable!("it does not end"),
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_server_is_retried_with_backoff() {
    let world = World::with("*").await;
    let owner = world.create(config_map("default", "owner")).await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
    let namespace = world.create(new_namespace("leaving")).await;
    world.settle().await;
    world.faults.refuse(Some(500));
    world.faults.cut_watches();
    world.delete(&owner, "Background").await;
    world.delete(&namespace, "").await;
    world.requests.take().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked = world.requests.take().await;
    // About forty resources are watched, and the backoff doubles with each attempt.
    assert!(asked.len() < 1000, "{} requests in a minute", asked.len());
    tokio::time::sleep(Duration::from_secs(600)).await;
    let asked = world.requests.take().await;
    assert!(asked.len() < 2500, "{} requests in ten minutes", asked.len());
    world.faults.refuse(None);
    // The longest backoff.
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.until_all_gone(&[dependent, namespace]).await;
    world.stop().await;
}

#[tokio::test]
async fn nothing_is_left_running_after_a_stop() {
    let mut world = World::bare().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..3 {
        let mut unknown = secret("default", "unknown");
        unknown["metadata"]["generateName"] = json!("unknown-");
        unknown["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "nowhere.io/v1", "kind": "Thing", "name": "x", "uid": "y"}]);
        unknown["metadata"].as_object_mut().expect("metadata").remove("name");
        world.create(unknown).await;
        world.start("*");
        world.settle().await;
        assert!(tasks() > before);
        world.stop_controllers().await;
        // The clients' own tasks end when they notice that their client was dropped.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(tasks(), before);
    }
    world.stop().await;
}

#[tokio::test]
async fn invalid_lists_of_controllers_are_refused_in_one_sentence() {
    let world = World::bare().await;
    let client = |_: &str| kube::Client::new(world.running.local(server::User::apiserver()), "default");
    for list in ["nobody", "*,-nobody", "garbage-collector-controller,nobody", "-*", "* *"] {
        let Err(why) = Controllers::start(&Setup::new(list), client) else { panic!("{list:?} is good") };
        assert!(why.starts_with("unknown controller \""), "{why}");
        assert!(why.contains("namespace-controller"), "{why}");
    }
    for list in ["", " ", ",", "-namespace-controller", "namespace-controller,-namespace-controller"] {
        let Ok(none) = Controllers::start(&Setup::new(list), client) else { panic!("{list:?} is bad") };
        none.stop().await;
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn own_writes_that_no_watch_confirms_are_checked() {
    let world = World::bare().await;
    let client = |account: &str| world.client(account, User::apiserver(), world.faults.clone());
    let controllers = Controllers::start(&Setup::new(""), client).expect("no controllers");
    let context = controllers.context("asker", "asker", Api::new(client("asker")));
    let maps = Resource::new("v1", "ConfigMap", "configmaps", true);
    let source = Source::new(maps, |map| vec![worker::key(map)]).only("metadata.name=seen".to_owned());
    let cache = source.cache.clone();
    let running = tokio::spawn(worker::run(context, vec![source], 1, |_| async { Ok(None) }));
    world.create(config_map("default", "seen")).await;
    world.until_moment("it is filled", || !cache.is_empty()).await;
    // The watch does not select these: one exists, one was deleted before any event.
    let mut gone = config_map("default", "gone");
    gone["metadata"]["uid"] = json!("gone");
    gone["metadata"]["resourceVersion"] = json!("1000000");
    cache.wrote(world.create(config_map("default", "there")).await);
    cache.wrote(gone);
    assert_eq!(cache.len(), 3);
    world.requests.take().await;
    world.until_moment("the deleted object is removed", || cache.len() == 2).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    let asked = world.requests.take().await;
    let asked = asked.iter().filter(|asked| asked.path.contains("metadata.name") && !asked.path.contains("watch="));
    assert_eq!(asked.count(), 2, "once about each");
    controllers.stop().await;
    running.await.expect("it ends");
    world.stop().await;
}
