//! `kill -9` of `mainstay up` while clients write, sets are rolled out and clients watch.
//!
//! Named guarantees, each checked after every kill:
//! *kept*: an acknowledged write is stored; *atomic*: a write in flight is stored completely or not at all; *unique*:
//! no resourceVersion is used twice; *ordered*: the versions in a watch rise; *gapless*: a watch misses and repeats
//! nothing, also one that resumes an earlier watch, and its events lead to what lists show; *settled*: what a watch
//! showed is never reverted. The guarantees for storage are in `storage.rs`.

use crate::sight::{self, After, MAPS, Sight};
use crate::storage::{Storage, change_sets};
use crate::support::{Cluster, PATIENCE, Place, mainstay};
use crate::talk::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const WRITERS: u64 = 8;
const KEYS_PER_WRITER: u64 = 12;
/// A start longer than this means that the store does not open at once. Measured on two cores with a load of seven: 0.5 s alone,
/// 1.1 s beside the tests of load.
const OPENING_MAX: Duration = Duration::from_secs(3);

/// The value of a key: the number of the last write, or none.
type Held = Option<u64>;

/// The known state of one writer's keys.
#[derive(Default)]
struct Writer {
    /// The acknowledged values.
    held: BTreeMap<String, Held>,
    /// The write without a response.
    in_flight: Option<(String, Held)>,
}

struct Run {
    dice: Dice,
    writes: AtomicU64,
    acknowledged: AtomicU64,
    /// The version of every acknowledged write, and its key.
    given: Mutex<BTreeMap<u64, String>>,
    /// Watches of all maps, and of a selection that half of them enter and leave.
    sights: [Mutex<Sight>; 2],
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_by_kills() {
    let kills = setting("MAINSTAY_TEST_KILLS", 4);
    let data = tempfile::TempDir::new().expect("a temporary directory can be made");
    let run = Arc::new(Run {
        dice: Dice::new(setting("MAINSTAY_TEST_SEED", u64::from(std::process::id()))),
        writes: AtomicU64::new(0),
        acknowledged: AtomicU64::new(0),
        given: Mutex::default(),
        sights: ["", "labelSelector=half%3Done&"].map(|selector| Mutex::new(Sight::of(selector))),
    });
    let mut writers: Vec<Writer> = (0..WRITERS).map(|_| Writer::default()).collect();
    let mut storage = Storage::new(data.path());
    let mut slowest = Duration::ZERO;
    for kill in 0..kills {
        if run.dice.below(3) == 0 {
            kill_while_starting(data.path(), Duration::from_millis(run.dice.below(120))).await;
        }
        let (cluster, took) = start(data.path());
        slowest = slowest.max(took);
        writers = round(&run, cluster, writers, &mut storage, kill).await;
    }
    let (cluster, took) = start(data.path());
    slowest = slowest.max(took);
    let client = connect(&cluster.kubeconfig).await;
    check_kept(&run, &client, &mut writers).await;
    storage.check(&client).await;
    storage.end(&client, data.path()).await;
    check_watch(&run, kills);
    println!("slowest start {slowest:?}");
    assert!(run.acknowledged.load(Ordering::Relaxed) > kills * 20, "too little was written to show anything");
}

fn start(data: &Path) -> (Cluster, Duration) {
    let started = Instant::now();
    let cluster = tokio::task::block_in_place(|| Cluster::start_with(Place::Directory(data), &["--nodes", "2"]));
    let took = started.elapsed();
    assert!(took < OPENING_MAX, "opening took {took:?}");
    (cluster, took)
}

async fn kill_while_starting(data: &Path, after: Duration) {
    let home = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut command = mainstay(home.path());
    command.args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    tokio::time::sleep(after).await;
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
}

/// Checks the stored state, then writes until the kill.
async fn round(
    run: &Arc<Run>,
    cluster: Cluster,
    mut writers: Vec<Writer>,
    storage: &mut Storage,
    kill: u64,
) -> Vec<Writer> {
    let client = connect(&cluster.kubeconfig).await;
    check_kept(run, &client, &mut writers).await;
    storage.check(&client).await;
    let watching = [0, 1].map(|at| {
        let (run, client) = (run.clone(), client.clone());
        tokio::spawn(async move { sight::follow(&run.sights[at], client).await })
    });
    change_sets(&client, kill).await;
    let until = run.acknowledged.load(Ordering::Relaxed) + 20 + run.dice.below(400);
    let mut tasks = Vec::new();
    for (at, writer) in writers.into_iter().enumerate() {
        tasks.push(tokio::spawn(write(run.clone(), connect(&cluster.kubeconfig).await, at, writer)));
    }
    let deadline = Instant::now() + PATIENCE;
    while run.acknowledged.load(Ordering::Relaxed) < until {
        assert!(Instant::now() < deadline, "the writers stand still");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for (sight, watching) in run.sights.iter().zip(&watching) {
        let list = list_as(sight, &client).await;
        sight.lock().expect("no panic").keep(&list);
        // A round proves something only if the watch has come this far. The writers continue meanwhile.
        while !has_passed(sight, version(&list), kill) {
            assert!(Instant::now() < deadline && !watching.is_finished(), "the watch stands still");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // Later kills may hit the creation of claims; what is compared through all of them must exist first.
    if kill == 0 {
        storage.remember(&client).await;
    }
    tokio::task::block_in_place(|| cluster.crash());
    let mut writers = Vec::new();
    for task in tasks {
        writers.push(task.await.expect("a writer does not panic"));
    }
    for watching in watching {
        watching.await.expect("the watcher does not panic");
    }
    writers
}

/// A list of what a watch shows.
async fn list_as(sight: &Mutex<Sight>, client: &kube::Client) -> Value {
    let path = sight.lock().expect("no panic").path();
    done(client, "GET", &path, None).await
}

/// Whether the watch has resumed after the restart and after a cut, and has received everything up to a revision.
fn has_passed(sight: &Mutex<Sight>, revision: u64, kill: u64) -> bool {
    let sight = sight.lock().expect("no panic");
    let told = |after| sight.told(after).events + sight.told(after).gone;
    sight.position() >= Some(revision) && told(After::Restart) == kill && told(After::Cut) == kill + 1
}

/// Writes, one after the other, until the server is down.
async fn write(run: Arc<Run>, client: kube::Client, at: usize, mut writer: Writer) -> Writer {
    loop {
        let key = format!("w{at}-{}", run.dice.below(KEYS_PER_WRITER));
        let number = run.writes.fetch_add(1, Ordering::Relaxed);
        let held = writer.held.get(&key).copied().flatten();
        let path = format!("{MAPS}/{key}");
        let pad = "x".repeat(usize::try_from(run.dice.below(4000)).expect("small"));
        let data = json!({"n": number.to_string(), "pad": pad});
        let half = if run.dice.below(2) == 0 { "one" } else { "other" };
        let labels = json!({"half": half});
        let whole =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": key, "labels": labels}, "data": data});
        let (method, path, body, after) = match (held, run.dice.below(5)) {
            (None, _) => ("POST", MAPS.to_owned(), Some(whole), Some(number)),
            (Some(_), 0) => ("DELETE", path, None, None),
            (Some(_), 1 | 2) => ("PUT", path, Some(whole), Some(number)),
            (Some(_), _) => ("PATCH", path, Some(json!({"metadata": {"labels": labels}, "data": data})), Some(number)),
        };
        match ask(&client, method, &path, body.as_ref()).await {
            Answer::Done(object) => {
                if after.is_some() {
                    let before = run.given.lock().expect("no panic").insert(version(&object), key.clone());
                    assert_eq!(before, None, "unique: version {} was given twice", version(&object));
                }
                writer.held.insert(key, after);
                run.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Answer::None => {
                writer.in_flight = Some((key, after));
                return writer;
            }
            Answer::Refused(code, why) => panic!("{method} {path}: {code} {why}"),
        }
    }
}

/// kept, atomic: each key is as acknowledged, or as the one write in flight left it. settled: and not older than seen.
async fn check_kept(run: &Run, client: &kube::Client, writers: &mut [Writer]) {
    for sight in &run.sights {
        let list = list_as(sight, client).await;
        let mut sight = sight.lock().expect("no panic");
        sight.check_settled(&list);
        sight.keep(&list);
    }
    let list = done(client, "GET", MAPS, None).await;
    let number = |object: &Value| object["data"]["n"].as_str().and_then(|text| text.parse::<u64>().ok());
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let found: BTreeMap<String, Held> =
        list["items"].as_array().expect("items").iter().map(|object| (name(object), number(object))).collect();
    for writer in writers {
        let in_flight = writer.in_flight.take();
        if let Some((key, _)) = &in_flight {
            writer.held.entry(key.clone()).or_insert(None);
        }
        for (key, held) in &mut writer.held {
            let now = found.get(key).copied().flatten();
            let open = in_flight.as_ref().filter(|(of, _)| of == key).map(|(_, after)| *after);
            assert!(now == *held || Some(now) == open, "kept: {key} was {held:?}, in flight {open:?}, and is {now:?}");
            *held = now;
        }
    }
}

/// Everything that was seen agrees, and enough was seen to prove something.
fn check_watch(run: &Run, kills: u64) {
    let given = run.given.lock().expect("no panic");
    println!("{kills} kills: {} writes acknowledged", given.len());
    for (sight, is_selected) in run.sights.iter().zip([false, true]) {
        let sight = sight.lock().expect("no panic");
        let compared = sight.check(&given);
        let (restarts, cuts) = (sight.told(After::Restart), sight.told(After::Cut));
        println!("{}: {} events seen, {compared:?}", sight.path(), sight.events());
        println!("watches that went on: after a restart {restarts:?}, after a cut {cuts:?}");
        if is_selected {
            let moved = sight.moved_out(&given);
            assert!(moved as u64 > kills, "only {moved} maps went from the selection");
        } else {
            assert!(compared.versions * 2 > given.len(), "the watch saw {} of {}", compared.versions, given.len());
        }
        assert!(compared.lists as u64 >= kills, "each round has a list that the watch passed");
        // Past events are in memory: after a restart 410 is a valid response too. Every resumed watch got events or a
        // 410.
        assert_eq!(restarts.events + restarts.gone, kills - 1);
        assert!(cuts.events > 0, "no watch resumed at its revision");
    }
}
