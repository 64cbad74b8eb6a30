//! For any fault of a single request, and if the controller stops or the set is deleted at any time:
//! everything converges, no ordinal runs twice, no claim is lost.

use crate::kubelet::Kubelet;
use crate::sets::*;
use crate::world::*;
use object::access::{terminating, uid};
use object::{Value, json};
use std::collections::BTreeMap;

/// The life of a set, with some writes of every kind.
struct Story {
    /// The policy for claims that are no longer needed.
    policy: &'static str,
    /// Whether a pod is released and adopted again: a pod without an owner outlives the set.
    lets_go: bool,
}

/// The fault of one write of the story.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Nothing,
    Mishap(Mishap),
    /// The controllers are restarted during the write.
    Restart(Mishap),
}

impl Story {
    fn set(&self) -> Value {
        let policy = json!({"whenDeleted": self.policy, "whenScaled": self.policy});
        let spec = json!({"persistentVolumeClaimRetentionPolicy": policy, "revisionHistoryLimit": 0});
        with(web_with_claims(2), spec)
    }

    async fn live(&self, world: &World) -> Value {
        let set = world.create(self.set()).await;
        world.until_done(&set).await;
        let set = world.set_image(&set, "y").await;
        world.until_done(&set).await;
        let pod = world.the_pod("web-0").await;
        if self.lets_go {
            world.merge(&pod, json!({"metadata": {"ownerReferences": null}})).await;
            world.until_is(&pod, "adopted", |pod| pod["metadata"].get("ownerReferences").is_some()).await;
        }
        let lost = json!({"metadata": {"labels": {"statefulset.kubernetes.io/pod-name": null}}});
        world.merge(&pod, lost).await;
        world
            .until_is(&pod, "named", |pod| {
                pod["metadata"]["labels"].get("statefulset.kubernetes.io/pod-name").is_some()
            })
            .await;
        let set = world.change(&set, json!({"replicas": 1})).await;
        world.until_done(&set).await;
        if self.policy == "Delete" {
            world.until_claims(&["data-web-0"]).await;
        }
        set
    }

    async fn end(&self, world: &World, set: &Value) {
        let claims = world.claims().await;
        world.delete(set, "Background").await;
        world.until_gone(set).await;
        world.until_pods(&[]).await;
        if self.policy == "Retain" {
            world.settle().await;
            assert_eq!(world.claims().await, claims);
            for claim in world.claims().await {
                world.delete(&crate::world::claim("default", &claim), "").await;
            }
        }
        world.until_claims(&[]).await;
        world.until("no history is left", || async { world.names(REVISIONS).await.is_empty().then_some(()) }).await;
    }

    /// Runs the story with a fault at the write after this many others. Returns the number of writes.
    async fn tell(&self, world: &mut World, after: usize, turn: Turn) -> usize {
        let begin = world.store.revision();
        world.requests.take().await;
        match turn {
            Turn::Nothing => {}
            Turn::Mishap(mishap) | Turn::Restart(mishap) => world.faults.mishap(SETS, after, mishap),
        }
        let set = match turn {
            Turn::Restart(_) => {
                let interrupted = {
                    let mut life = Box::pin(self.live(world));
                    tokio::select! {
                        set = &mut life => Ok(set),
                        () = until_mishap(world) => Err(()),
                    }
                };
                match interrupted {
                    Ok(set) => set,
                    Err(()) => self.take_over(world).await,
                }
            }
            _ => self.live(world).await,
        };
        let end = world.store.revision();
        self.end(world, &set).await;
        self.check(world, begin, end).await;
        let asked = world.requests.take().await;
        asked.iter().filter(|asked| &*asked.account == SETS && is_write(&asked.method, &asked.path)).count()
    }

    /// Restarts the controllers, which continue and reach the same end.
    async fn take_over(&self, world: &mut World) -> Value {
        world.stop_controllers().await;
        world.start(ALL);
        let set = web(1);
        let set = world.now(&set).await.expect("it was created before the first write");
        let set = world.set_image(&set, "y").await;
        let set = world.change(&set, json!({"replicas": 1})).await;
        world.until_done(&set).await
    }

    /// Checks every moment of the history.
    async fn check(&self, world: &World, begin: u64, end: u64) {
        let mut claims: BTreeMap<String, String> = BTreeMap::new();
        let history = world.history_since(begin).await;
        for moment in history.iter().filter(|moment| moment.revision <= end) {
            assert!(moment.unready().len() <= 1, "one at a time: {:?}", moment.names());
            for (name, claim) in &moment.claims {
                let first = claims.entry(name.clone()).or_insert_with(|| uid(claim).to_owned());
                assert_eq!(first, uid(claim), "{name} was lost");
                let may_go = self.policy == "Delete" && name == "data-web-1";
                assert!(may_go || !terminating(claim), "{name} was told to go");
            }
            let gone = claims.keys().filter(|name| !moment.claims.contains_key(*name));
            assert!(gone.into_iter().all(|name| self.policy == "Delete" && name == "data-web-1"), "{moment:?}");
        }
    }
}

/// The fault may change nothing in the store, so the test polls.
async fn until_mishap(world: &World) {
    world.until_moment("the mishap", || !world.faults.mishap_waits()).await;
}

async fn with_every_write(policy: &'static str, turn: Turn) {
    with_writes(policy, turn, 0, 1).await;
}

/// Runs the story once for each of these writes.
async fn with_writes(policy: &'static str, turn: Turn, first: usize, step: usize) {
    let (mut world, _kubelet) = World::lively().await;
    let story = Story { policy, lets_go: true };
    let writes = story.tell(&mut world, 0, Turn::Nothing).await;
    assert!(writes > 12, "a story of {writes} writes is too short");
    // The order of the last writes varies.
    for after in (first..writes.saturating_sub(2)).step_by(step) {
        story.tell(&mut world, after, turn).await;
        assert!(!world.faults.mishap_waits(), "{after} of {writes} writes, and nothing happened");
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn any_write_may_fail() {
    with_every_write("Delete", Turn::Mishap(Mishap::Refused(500))).await;
}

#[tokio::test(start_paused = true)]
async fn any_write_may_be_executed_too_late() {
    with_every_write("Delete", Turn::Mishap(Mishap::Refused(409))).await;
}

#[tokio::test(start_paused = true)]
async fn any_response_may_be_lost() {
    with_every_write("Delete", Turn::Mishap(Mishap::AnswerLost)).await;
}

// R2, R15: also with the policy Retain.
#[tokio::test(start_paused = true)]
async fn any_response_may_be_lost_and_retained_claims_are_kept() {
    with_every_write("Retain", Turn::Mishap(Mishap::AnswerLost)).await;
}

#[tokio::test(start_paused = true)]
async fn the_controllers_may_stop_before_any_write() {
    with_writes("Delete", Turn::Restart(Mishap::Stuck), 0, 2).await;
}

#[tokio::test(start_paused = true)]
async fn the_controllers_may_stop_after_any_write() {
    with_writes("Retain", Turn::Restart(Mishap::AnswerStuck), 1, 2).await;
}

// R12: the set is deleted during any of its writes: nothing is left behind.
#[tokio::test(start_paused = true)]
async fn the_set_may_be_deleted_in_the_middle_of_any_write() {
    let (world, _kubelet) = World::lively().await;
    let story = Story { policy: "Delete", lets_go: false };
    for after in 0.. {
        world.faults.mishap(SETS, after, Mishap::Held);
        let ended = {
            let mut life = Box::pin(story.live(&world));
            tokio::select! {
                set = &mut life => Some(set),
                () = until_mishap(&world) => None,
            }
        };
        let set = world.now(&web(0)).await.expect("the object exists");
        world.delete(&set, if after % 2 == 0 { "Background" } else { "Foreground" }).await;
        // The held write may be executed while the collector works, or after it has finished.
        if after % 3 == 0 {
            world.settle().await;
        }
        world.faults.release();
        world.until("the set goes", || async { world.now(&set).await.is_none().then_some(()) }).await;
        world.until_pods(&[]).await;
        world.until_claims(&[]).await;
        world.until("no history is left", || async { world.names(REVISIONS).await.is_empty().then_some(()) }).await;
        if ended.is_some() {
            assert!(after > 12);
            break;
        }
    }
    world.stop().await;
}

// Failures of one set do not affect others.
#[tokio::test(start_paused = true)]
async fn a_set_that_always_fails_does_not_delay_others() {
    let world = World::with(SETS).await;
    let _kubelet = Kubelet::start(&world);
    // The labels of its pods would be too long, so no pod can be created.
    let long = "x".repeat(60);
    let bad = world.create(stateful_set("default", &long, 1)).await;
    world.until_event(&bad, "FailedCreate").await;
    let started = tokio::time::Instant::now();
    let good = world.create(web(3)).await;
    world.until_done(&good).await;
    assert!(started.elapsed() < std::time::Duration::from_millis(100), "{:?}", started.elapsed());
    // And it is retried with backoff.
    world.requests.take().await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    let asked = world.requests.take().await;
    let tries = asked.iter().filter(|asked| asked.method == "POST" && asked.path.ends_with("/pods")).count();
    assert!((10..60).contains(&tries), "{tries} tries in ten minutes");
    let told = asked.iter().filter(|asked| asked.method != "GET" && asked.path.contains("/events")).count();
    assert!(told <= 30, "{told} words about it");
    world.stop().await;
}
