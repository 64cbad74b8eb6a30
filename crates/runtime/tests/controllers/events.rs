//! Events: repeated ones increase a count, their rate is limited, and queued ones are sent at shutdown.

use crate::world::*;
use kit::api::{Api, Resource};
use kit::events::{EventSubject, Events};
use object::Value;
use object::access::{Access, uid};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

struct Teller {
    events: Events,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    about: Value,
}

impl Teller {
    async fn new(world: &World) -> Teller {
        let about = world.create(config_map("default", "subject")).await;
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let api = Api::new(world.client("teller", server::User::apiserver(), world.faults.clone()));
        let clock: kit::Clock = Arc::new(jiff::Timestamp::now);
        let events = Events::start(&api, "teller", &world.setup.metrics.kit, &clock, &tasks, &shutdown);
        tasks.close();
        Teller { events, tasks, shutdown, about }
    }

    fn say(&self, message: &str) {
        let resource = Resource::new("v1", "ConfigMap", "configmaps", true);
        let about = EventSubject { resource: &resource, namespace: "default", name: "subject", uid: uid(&self.about) };
        self.events.record(&about, "Normal", "Said", message);
    }

    /// Stops the recorder; returns the metrics of lost events.
    async fn end(self, world: &World) -> String {
        self.shutdown.cancel();
        drop(self.events);
        self.tasks.wait().await;
        let figures = world.figures();
        figures.lines().filter(|line| line.starts_with("controller_events_lost_total")).collect()
    }
}

async fn told(world: &World) -> Vec<(String, i64)> {
    let events = world.get("/api/v1/namespaces/default/events").await.expect("a list");
    let events = events.items(&["items"]).iter().filter(|event| event["reason"] == "Said");
    events.map(|event| (event.text(&["message"]).to_owned(), event.int(&["count"]).unwrap_or(0))).collect()
}

#[tokio::test(start_paused = true)]
async fn repeated_events_increase_the_count_and_queued_ones_are_sent_at_shutdown() {
    let world = World::bare().await;
    let teller = Teller::new(&world).await;
    for _ in 0..3 {
        teller.say("again");
    }
    teller.say("once");
    assert_eq!(teller.end(&world).await, "");
    let mut told = told(&world).await;
    told.sort();
    assert_eq!(told, [("again".to_owned(), 3), ("once".to_owned(), 1)]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_events_about_one_object_is_limited() {
    let world = World::bare().await;
    let teller = Teller::new(&world).await;
    for number in 0..100 {
        teller.say(&format!("number {number}"));
    }
    world.until("the burst", || async { (told(&world).await.len() == 25).then_some(()) }).await;
    // After ten minutes the bucket has two more tokens.
    tokio::time::sleep(Duration::from_secs(600)).await;
    for number in 0..10 {
        teller.say(&format!("later {number}"));
    }
    let lost = teller.end(&world).await;
    let later: Vec<String> = told(&world).await.into_iter().map(|(message, _)| message).collect();
    let mut later: Vec<&String> = later.iter().filter(|message| message.starts_with("later")).collect();
    later.sort();
    assert_eq!(later, ["later 0", "later 1"]);
    assert!(lost.contains("why=\"Limit\"} 83"), "{lost}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn events_are_sent_after_an_outage_and_recording_never_waits() {
    let world = World::bare().await;
    let teller = Teller::new(&world).await;
    world.faults.refuse(Some(503));
    // More than the queue holds.
    for number in 0..9000 {
        teller.say(&format!("number {number}"));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.faults.refuse(None);
    world.until("the burst", || async { (told(&world).await.len() == 25).then_some(()) }).await;
    let lost = teller.end(&world).await;
    assert!(lost.contains("why=\"Overflow\"}"), "{lost}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_event_is_created_again() {
    let world = World::bare().await;
    let teller = Teller::new(&world).await;
    teller.say("again");
    world.until("told", || async { (told(&world).await.len() == 1).then_some(()) }).await;
    let events = world.get("/api/v1/namespaces/default/events").await.expect("a list");
    for event in events.items(&["items"]) {
        let mut event = event.clone();
        event.put(&["apiVersion"], "v1");
        event.put(&["kind"], "Event");
        world.delete(&event, "").await;
    }
    teller.say("again");
    assert_eq!(teller.end(&world).await, "");
    assert_eq!(told(&world).await, [("again".to_owned(), 1)]);
    world.stop().await;
}
