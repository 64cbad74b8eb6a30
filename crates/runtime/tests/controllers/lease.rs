//! Several processes and one lease, against the real server, on a clock that advances whenever nothing
//! happens.

use crate::world::{Faults, World};
use kit::api::Api;
use kit::lease::{Election, Loss, Overdue, Standing, Term, Timing, Work};
use object::access::Access;
use object::{Value, json};
use server::User;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/test";

/// A log of events with their times.
#[derive(Clone)]
struct Diary {
    began: Instant,
    lines: Arc<Mutex<Vec<(Duration, String)>>>,
}

impl Diary {
    fn new() -> Diary {
        Diary { began: Instant::now(), lines: Arc::default() }
    }

    fn note(&self, line: String) {
        self.lines.lock().expect("no panic").push((self.began.elapsed(), line));
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no panic").iter().map(|(_, line)| line.clone()).collect()
    }

    fn when(&self, wanted: &str) -> Duration {
        let lines = self.lines.lock().expect("no panic");
        lines.iter().find(|(_, line)| line == wanted).unwrap_or_else(|| panic!("{wanted}: {lines:?}")).0
    }
}

/// Work that logs when it starts and has stopped.
struct Noted {
    who: &'static str,
    diary: Diary,
    stop_takes: Duration,
}

impl Work for Noted {
    async fn stop(self) {
        tokio::time::sleep(self.stop_takes).await;
        self.diary.note(format!("{} stopped", self.who));
    }
}

/// A process that is a candidate for the lease.
struct Process {
    faults: Faults,
    /// The election states, in order.
    standing: mpsc::UnboundedReceiver<Standing>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), Overdue>>,
}

impl Process {
    fn start(world: &World, who: &'static str, diary: &Diary) -> Process {
        Process::start_slow(world, who, diary, Duration::ZERO)
    }

    /// A process whose work takes this long to stop.
    fn start_slow(world: &World, who: &'static str, diary: &Diary, stop_takes: Duration) -> Process {
        let faults = Faults::default();
        let election = Election {
            api: Api::new(world.client(who, User::apiserver(), faults.clone())),
            namespace: "kube-system".to_owned(),
            name: "test".to_owned(),
            identity: who.to_owned(),
            timing: Timing::default(),
            clock: Arc::new(jiff::Timestamp::now),
        };
        let shutdown = CancellationToken::new();
        let (sender, standing) = mpsc::unbounded_channel();
        let (stop, diary) = (shutdown.clone(), diary.clone());
        let tell = move |standing: &Standing| drop(sender.send(standing.clone()));
        let task = tokio::spawn(async move {
            election
                .lead(stop, tell, |term: &Term| {
                    diary.note(format!("{who} started {}", term.number));
                    Noted { who, diary: diary.clone(), stop_takes }
                })
                .await
        });
        Process { faults, standing, shutdown, task }
    }

    /// Waits for an election state.
    async fn until(&mut self, what: &str, check: impl Fn(&Standing) -> bool) {
        let waiting = async {
            while let Some(standing) = self.standing.recv().await {
                if check(&standing) {
                    return true;
                }
            }
            false
        };
        // An hour of the virtual clock.
        let found = tokio::time::timeout(Duration::from_secs(3600), waiting).await;
        assert_eq!(found, Ok(true), "timed out: {what}");
    }

    async fn until_leading(&mut self) {
        self.until("leads", |standing| matches!(standing, Standing::Leading(_))).await;
    }

    async fn until_standing_by(&mut self, leader: &str) {
        self.until("stands by", |standing| *standing == Standing::StandingBy { holder: leader.to_owned() }).await;
    }

    /// Stops cleanly.
    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.expect("no panic").expect("it stops in time");
    }
}

async fn lease(world: &World) -> Value {
    world.get(PATH).await.expect("a lease")
}

/// A leads and B stands by.
async fn two(world: &World, diary: &Diary) -> (Process, Process) {
    let mut a = Process::start(world, "a", diary);
    a.until_leading().await;
    let mut b = Process::start(world, "b", diary);
    b.until_standing_by("a").await;
    (a, b)
}

#[tokio::test(start_paused = true)]
async fn one_process_leads_and_hands_over_at_once_when_it_stops() {
    let (world, diary) = (World::bare().await, Diary::new());
    let (a, mut b) = two(&world, &diary).await;
    let first = lease(&world).await;
    assert_eq!(first.text(&["spec", "holderIdentity"]), "a");
    assert_eq!(
        (first.int(&["spec", "leaseDurationSeconds"]), first.int(&["spec", "leaseTransitions"])),
        (Some(15), Some(0))
    );
    tokio::time::sleep(Duration::from_secs(600)).await;
    let later = lease(&world).await;
    assert_eq!(diary.lines(), ["a started 0"]);
    assert_eq!(later.at(&["spec", "acquireTime"]), first.at(&["spec", "acquireTime"]));
    assert_ne!(later.at(&["spec", "renewTime"]), first.at(&["spec", "renewTime"]));

    a.stop().await;
    b.until_leading().await;
    assert_eq!(diary.lines(), ["a started 0", "a stopped", "b started 1"]);
    let gap = diary.when("b started 1") - diary.when("a stopped");
    assert!(gap < Duration::from_secs(1), "the hand-over took {gap:?}");
    b.stop().await;
    assert_eq!(lease(&world).await.text(&["spec", "holderIdentity"]), "", "given back");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_process_leads_when_the_lease_of_a_lost_holder_expires() {
    let (world, diary) = (World::bare().await, Diary::new());
    let (a, mut b) = two(&world, &diary).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    a.task.abort();
    let gone = diary.began.elapsed();
    b.until_leading().await;
    let gap = diary.when("b started 1") - gone;
    let expected = Duration::from_secs(12)..Duration::from_secs(20);
    assert!(expected.contains(&gap), "b waited for {gap:?}");
    b.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_holder_stops_before_another_starts_and_stands_by_again() {
    for silent in [false, true] {
        let (world, diary) = (World::bare().await, Diary::new());
        let (mut a, mut b) = two(&world, &diary).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let cut = diary.began.elapsed();
        if silent {
            a.faults.silence();
        } else {
            a.faults.refuse(Some(500));
        }
        a.until("gives up", |standing| *standing == Standing::Lost(Loss::Late)).await;
        b.until_leading().await;
        assert_eq!(diary.lines(), ["a started 0", "a stopped", "b started 1"], "silent: {silent}");
        let after = diary.when("a stopped") - cut;
        assert!(after <= Duration::from_secs(10), "a stopped only after {after:?}");
        if !silent {
            a.until("says why", |standing| matches!(standing, Standing::Unable { code: 500, .. })).await;
            a.faults.refuse(None);
            a.until_standing_by("b").await;
            b.stop().await;
            a.until_leading().await;
            assert_eq!(diary.lines()[3..], ["b stopped", "a started 2"]);
        }
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_over_stops_its_holder_and_a_deleted_one_is_created_again() {
    let (world, diary) = (World::bare().await, Diary::new());
    let mut a = Process::start(&world, "a", &diary);
    a.until_leading().await;
    let patch = json!({"spec": {"holderIdentity": "operator", "leaseDurationSeconds": 30}});
    world.merge(&lease(&world).await, patch).await;
    a.until("loses it", |standing| *standing == Standing::Lost(Loss::Taken("operator".to_owned()))).await;
    a.until_standing_by("operator").await;
    a.until_leading().await;
    let gap = diary.when("a started 1") - diary.when("a stopped");
    assert!(gap >= Duration::from_secs(27), "a waited only for {gap:?}");

    let removed = lease(&world).await;
    world.delete(&removed, "").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lease(&world).await.text(&["spec", "holderIdentity"]), "a");
    assert_eq!(diary.lines(), ["a started 0", "a stopped", "a started 1"], "it continues to lead");
    a.stop().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_stop_in_time_is_an_error_for_the_whole_process() {
    let (world, diary) = (World::bare().await, Diary::new());
    let mut a = Process::start_slow(&world, "a", &diary, Duration::from_secs(60));
    a.until_leading().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let cut = diary.began.elapsed();
    a.faults.refuse(Some(500));
    let ended = a.task.await.expect("no panic");
    assert!(ended.is_err());
    let after = diary.began.elapsed() - cut;
    assert!(after <= Duration::from_secs(15), "the lease expired before: {after:?}");
    world.stop().await;
}
