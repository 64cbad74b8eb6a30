//! A disk that is full: writes are refused and say why, reads go on, and when there is room again so does everything else. Whoever is killed
//! or started meanwhile loses nothing.

use crate::disk::{Disk, Room};
use crate::support::{PATIENCE, Running};
use crate::talk::*;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_and_recovers() {
    refuses_writes_and_recovers(&Disk::limited()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_of_its_own_that_is_full_does_too() {
    refuses_writes_and_recovers(&Disk::real()).await;
}

async fn refuses_writes_and_recovers(disk: &Disk) {
    let mut program = disk.program("up", Room::Little);
    let client = ready(disk, &mut program).await;
    let (kept, why) = write_until_refused(&client).await;
    assert!(why.starts_with("the store does not take writes: the disk failed: ") && why.contains(disk.says()), "{why}");
    assert!(kept.len() > 5, "it was full from the start");
    let parts = ["cannot commit a batch of writes", "data/store/store.redb"];
    tokio::task::block_in_place(|| program.line_with(&parts));
    // Reads go on, health says what is wrong, and leases are refused like all writes: nobody is told that one was kept.
    assert_eq!(names(&client).await, kept, "what was acknowledged");
    let health = http::Request::get("/readyz?verbose").body(Vec::new()).expect("a request");
    let said = client.request_text(health).await.expect_err("it is not ready").to_string();
    assert!(said.contains("store failed") || said.contains("500"), "{said}");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    let refused = ask(&client, "POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", Some(&lease)).await;
    assert!(matches!(refused, Answer::Refused(503, _)), "{refused:?}");

    // Room again: health returns by itself, and the write goes through.
    disk.free(&program);
    until_ready(&client).await;
    done(&client, "POST", MAPS, Some(&map("last"))).await;
    kill(program);
    // And all of it is there afterwards.
    let mut program = disk.program("server", Room::Enough);
    let client = ready(disk, &mut program).await;
    assert_eq!(names(&client).await, with(&kept, "last"));
}

/// Killed while the disk is full, started while it still is, and once there is room: what was acknowledged is served each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_by_a_kill_or_a_start_on_a_full_disk() {
    let disk = Disk::real();
    let mut program = disk.program("up", Room::Little);
    let client = ready(&disk, &mut program).await;
    let (kept, _) = write_until_refused(&client).await;
    kill(program);
    for name in ["up", "server"] {
        let mut program = disk.program(name, Room::None);
        let api = tokio::task::block_in_place(|| {
            let api = program.line_with(&["API", "https://"]);
            program.line_with(&["Ctrl-C"]);
            api
        });
        // The port is new, so the kubeconfig had to be written, and could not be.
        // The reason is on standard error, which may be read later than standard output.
        tokio::task::block_in_place(|| program.line_with(&["mainstay: ", disk.says(), "an older kubeconfig"]));
        let said = program.said().join("\n");
        assert!(said.contains("kubeconfig  not written"), "{said}");
        let mut kubeconfig = Kubeconfig::read_from(disk.path().join("data/kubeconfig")).expect("the older kubeconfig");
        let cluster = kubeconfig.clusters[0].cluster.as_mut().expect("a cluster");
        cluster.server = api.split_whitespace().last().map(str::to_owned);
        let client = connect_by(kubeconfig).await;
        assert_eq!(names(&client).await, kept, "{name} on a full disk");
        kill(program);
    }
    let mut program = disk.program("up", Room::Enough);
    let client = ready(&disk, &mut program).await;
    assert_eq!(names(&client).await, kept);
    until_ready(&client).await;
    done(&client, "POST", MAPS, Some(&map("last"))).await;
    kill(program);
}

/// Where there never was room: one sentence, and nothing is left that is in the way later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_not_made_on_a_full_disk_and_is_made_once_there_is_room() {
    let disk = Disk::real();
    for _ in 0..2 {
        let mut program = disk.program("up", Room::None);
        let lines = tokio::task::block_in_place(|| program.line_or_end(&["Ctrl-C"]));
        is_told(&disk, &lines.expect_err("there is no room"));
    }
    let mut program = disk.program("up", Room::Enough);
    let client = ready(&disk, &mut program).await;
    done(&client, "POST", MAPS, Some(&map("first"))).await;
}

fn is_told(disk: &Disk, lines: &[String]) {
    assert_eq!(lines.len(), 1, "one sentence: {lines:?}");
    assert!(lines[0].starts_with("mainstay: ") && lines[0].matches(disk.says()).count() == 1, "{lines:?}");
}

async fn ready(disk: &Disk, program: &mut Running) -> kube::Client {
    tokio::task::block_in_place(|| program.line_with(&["Ctrl-C"]));
    connect(&disk.path().join("data/kubeconfig")).await
}

async fn until_ready(client: &kube::Client) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let health = http::Request::get("/readyz").body(Vec::new()).expect("a request");
        if client.request_text(health).await.is_ok() {
            return;
        }
        assert!(Instant::now() < deadline, "health does not return");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The names of what was acknowledged, and why the next one was not.
async fn write_until_refused(client: &kube::Client) -> (BTreeSet<String>, String) {
    let mut kept = BTreeSet::new();
    loop {
        let name = format!("m{}", kept.len());
        match ask(client, "POST", MAPS, Some(&map(&name))).await {
            Answer::Done(_) => kept.insert(name),
            Answer::Refused(503, why) => return (kept, why),
            other => panic!("after {} writes: {other:?}", kept.len()),
        };
        assert!(kept.len() < 1000, "the disk is never full");
    }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"pad": "x".repeat(100_000)}})
}

fn with(names: &BTreeSet<String>, name: &str) -> BTreeSet<String> {
    names.iter().cloned().chain([name.to_owned()]).collect()
}

/// The maps that are there whole, besides the CA's certificate.
async fn names(client: &kube::Client) -> BTreeSet<String> {
    let list = done(client, "GET", MAPS, None).await;
    let maps = list["items"].as_array().expect("items").iter();
    let ours = maps.filter(|map| map["metadata"]["name"] != "kube-root-ca.crt");
    ours.map(|map| {
        let name = map["metadata"]["name"].as_str().expect("a name");
        assert_eq!(map["data"]["pad"].as_str().map(str::len), Some(100_000), "{name}");
        name.to_owned()
    })
    .collect()
}

fn kill(program: Running) {
    tokio::task::block_in_place(|| {
        program.kill();
        program.finish()
    });
}
