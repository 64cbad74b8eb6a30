use super::*;
use proptest::prelude::*;

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn clock(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::new(1_700_000_000 + second, 123_456_789).expect("a time")
}

fn lease(version: &str, holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"namespace": "n", "name": "l", "resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 4, "strategy": "kept"},
    })
}

fn candidate() -> Candidate {
    Candidate::new("me", Timing::default())
}

/// A candidate that holds the lease since a write sent at `asked`.
fn holder_since(asked: f64) -> Candidate {
    let mut candidate = candidate();
    candidate.wrote(lease("1", "me"), at(asked));
    candidate
}

#[test]
fn a_candidate_waits_while_the_lease_changes() {
    let cases = [
        ("no lease", None, 0.0, Step::Acquire),
        ("a lease without a holder", Some(lease("1", "")), 0.0, Step::Acquire),
        ("our own, after a lost response", Some(lease("1", "me")), 0.0, Step::Acquire),
        ("another's, just seen", Some(lease("1", "you")), 0.0, Step::Wait(at(15.0))),
        ("another's, almost over", Some(lease("1", "you")), 14.9, Step::Wait(at(15.0))),
        ("another's, over", Some(lease("1", "you")), 15.0, Step::Acquire),
    ];
    for (what, seen, now, expected) in cases {
        let mut candidate = candidate();
        candidate.saw(seen, at(0.0));
        assert_eq!(candidate.next(at(now)), expected, "{what}");
    }
}

#[test]
fn the_wait_starts_at_the_last_change_and_has_the_holders_duration() {
    let mut candidate = candidate();
    candidate.saw(Some(lease("1", "you")), at(0.0));
    candidate.saw(Some(lease("1", "you")), at(10.0));
    assert_eq!(candidate.next(at(10.0)), Step::Wait(at(15.0)), "reading it again is not a change");
    candidate.saw(Some(lease("2", "you")), at(12.0));
    assert_eq!(candidate.next(at(12.0)), Step::Wait(at(27.0)));
    let mut longer = lease("3", "you");
    longer["spec"]["leaseDurationSeconds"] = json!(60);
    // The timestamps of another clock are ignored.
    longer["spec"]["renewTime"] = json!("1970-01-01T00:00:00.000000Z");
    candidate.saw(Some(longer), at(13.0));
    assert_eq!(candidate.next(at(13.0)), Step::Wait(at(73.0)));
    candidate.saw(None, at(14.0));
    assert_eq!(candidate.next(at(14.0)), Step::Acquire, "removed");
}

#[test]
fn a_holder_renews_often_and_stops_in_time() {
    let mut candidate = holder_since(100.0);
    assert_eq!(candidate.next(at(100.0)), Step::Wait(at(102.0)));
    assert_eq!(candidate.next(at(102.0)), Step::Renew);
    candidate.failed(at(102.0));
    assert_eq!(candidate.next(at(103.0)), Step::Wait(at(104.0)));
    candidate.failed(at(109.0));
    assert_eq!(candidate.next(at(109.5)), Step::Wait(at(110.0)), "not later than the deadline");
    assert_eq!(candidate.next(at(110.0)), Step::Lost(Loss::Late));
    assert_eq!(candidate.ours_until(), Some(at(115.0)), "time to stop");
    candidate.gave_up();
    assert_eq!((candidate.next(at(110.0)), candidate.ours_until()), (Step::Acquire, None));
}

#[test]
fn a_holder_that_sees_another_holder_has_lost() {
    let mut candidate = holder_since(0.0);
    candidate.saw(Some(lease("2", "you")), at(1.0));
    assert_eq!(candidate.next(at(1.0)), Step::Lost(Loss::Taken("you".to_owned())));
    candidate.saw(Some(lease("3", "")), at(1.0));
    assert_eq!(candidate.next(at(1.0)), Step::Lost(Loss::Taken(String::new())));
    candidate.saw(None, at(2.0));
    assert_eq!(candidate.next(at(2.0)), Step::Renew, "a deleted lease is created again");
}

#[test]
fn claims_have_holder_times_and_transitions() {
    let mut candidate = candidate();
    let first = candidate.claim(("n", "l"), clock(0));
    assert_eq!(
        first,
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": "n", "name": "l"},
            "spec": {
                "holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                "acquireTime": "2023-11-14T22:13:20.123456Z", "renewTime": "2023-11-14T22:13:20.123456Z",
            },
        })
    );
    candidate.saw(Some(lease("7", "you")), at(0.0));
    let taken = candidate.claim(("n", "l"), clock(1));
    assert_eq!(taken["metadata"]["resourceVersion"], "7");
    assert_eq!((&taken["spec"]["leaseTransitions"], &taken["spec"]["strategy"]), (&json!(5), &json!("kept")));

    candidate.wrote(taken.clone(), at(0.0));
    let renewed = candidate.claim(("n", "l"), clock(2));
    assert_eq!(renewed["spec"]["leaseTransitions"], 5);
    assert_eq!(renewed["spec"]["acquireTime"], taken["spec"]["acquireTime"]);
    assert_eq!(renewed["spec"]["renewTime"], "2023-11-14T22:13:22.123456Z");

    let released = candidate.release(clock(3)).expect("it is ours");
    assert_eq!(released["spec"]["holderIdentity"], "");
    assert_eq!(
        (&released["spec"]["leaseDurationSeconds"], &released["spec"]["leaseTransitions"]),
        (&json!(1), &json!(5))
    );
    candidate.saw(None, at(3.0));
    let again = candidate.claim(("n", "l"), clock(4));
    assert_eq!(again["spec"]["leaseTransitions"], 5, "it was deleted, but held by this process all the time");
    candidate.gave_up();
    assert_eq!(candidate.claim(("n", "l"), clock(4))["spec"]["leaseTransitions"], 6);
    candidate.saw(Some(lease("9", "you")), at(3.0));
    assert_eq!(candidate.release(clock(4)), None, "a lease of another holder is not released");
}

/// Writes of a term that was given up differ from those of the next one, also if no other process held the
/// lease in between.
#[test]
fn a_term_that_was_given_up_has_another_number_than_the_next() {
    let mut candidate = holder_since(0.0);
    assert_eq!(candidate.claim(("n", "l"), clock(2))["spec"]["leaseTransitions"], 4);
    candidate.gave_up();
    let again = candidate.claim(("n", "l"), clock(20));
    assert_eq!(again["spec"]["leaseTransitions"], 5);
    assert_eq!(again["spec"]["acquireTime"], "2023-11-14T22:13:40.123456Z");
}

#[test]
fn pauses_differ_and_stay_within_bounds() {
    let candidate = candidate();
    let pauses: Vec<Duration> = (0..100).map(|attempt| candidate.pause(attempt)).collect();
    assert!(pauses.iter().all(|pause| (at(2.0)..=at(4.4)).contains(pause)), "{pauses:?}");
    assert!(pauses.iter().max() > pauses.iter().min());
}

// A model of candidates, one lease and an unreliable network, in steps of 0.1 s.

/// A small pseudorandom generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % sides
    }
}

struct Player {
    candidate: Candidate,
    /// The offset of its clock.
    ahead: Duration,
    /// Whether it does leader's work, and until when after it was told to stop.
    acting: Option<u64>,
    request: Option<Request>,
    looks_at: u64,
}

const STILL: u64 = u64::MAX;
/// A request without a response for this long has failed; half of the time to renew.
const ANSWER_MAX: u64 = 50;
/// Work stops in less than the remainder of the lease at the deadline.
const STOP_MAX: u64 = 49;

struct Request {
    asked: Duration,
    ends: u64,
    /// When it reaches the server and when the response arrives; `None` if it is lost.
    arrives: Option<u64>,
    returns: Option<u64>,
    /// `None` is a read.
    claim: Option<Value>,
    answer: Option<Result<Option<Value>, ()>>,
}

struct World {
    dice: Dice,
    lease: Option<Value>,
    version: u64,
    players: Vec<Player>,
    /// Requests whose senders no longer wait; they may still arrive.
    strays: Vec<(u64, Value)>,
    calm: bool,
}

impl World {
    fn new(seed: u64, players: usize) -> World {
        let mut dice = Dice(seed);
        let player = |number: usize, dice: &mut Dice| Player {
            candidate: Candidate::new(&format!("player-{number}"), Timing::default()),
            ahead: at(dice.roll(100_000) as f64 / 10.0),
            acting: None,
            request: None,
            looks_at: dice.roll(30),
        };
        let players = (0..players).map(|number| player(number, &mut dice)).collect();
        World { dice, lease: None, version: 0, players, strays: Vec::new(), calm: false }
    }

    /// The server: a write must have the current resourceVersion.
    fn store(&mut self, claim: &Value) -> Result<Option<Value>, ()> {
        let current = self.lease.as_ref().map_or("", |lease| lease.text(&["metadata", "resourceVersion"]));
        if claim.text(&["metadata", "resourceVersion"]) != current {
            return Err(());
        }
        self.version += 1;
        let mut stored = claim.clone();
        stored.put(&["metadata", "resourceVersion"], self.version.to_string());
        self.lease = Some(stored.clone());
        Ok(Some(stored))
    }

    fn send(&mut self, number: usize, claim: Option<Value>, tick: u64) {
        let delay = |lost_one_in: u64, dice: &mut Dice| {
            let slow = !self.calm && dice.roll(4) == 0;
            let lost = !self.calm && dice.roll(lost_one_in) == 0;
            (!lost).then(|| dice.roll(if slow { 150 } else { 3 }))
        };
        let arrives = delay(3, &mut self.dice).map(|delay| tick + delay);
        let returns = delay(3, &mut self.dice).zip(arrives).map(|(delay, arrives)| arrives + delay);
        let asked = at(tick as f64 / 10.0) + self.players[number].ahead;
        let ends = tick + ANSWER_MAX;
        self.players[number].request = Some(Request { asked, ends, arrives, returns, claim, answer: None });
    }

    fn step(&mut self, tick: u64) {
        let due: Vec<Value> =
            self.strays.extract_if(.., |(arrives, _)| *arrives <= tick).map(|(_, claim)| claim).collect();
        for claim in due {
            drop(self.store(&claim));
        }
        for number in 0..self.players.len() {
            self.deliver(number, tick);
            self.play(number, tick);
        }
    }

    fn deliver(&mut self, number: usize, tick: u64) {
        let Some(mut request) = self.players[number].request.take() else { return };
        if request.answer.is_none() && request.arrives.is_some_and(|arrives| arrives <= tick) {
            request.answer = Some(match &request.claim {
                Some(claim) => self.store(claim),
                None => Ok(self.lease.clone()),
            });
        }
        let now = at(tick as f64 / 10.0) + self.players[number].ahead;
        let came_back = request.returns.is_some_and(|returns| returns <= tick);
        let candidate = &mut self.players[number].candidate;
        match (request.answer.clone().filter(|_| came_back), &request.claim) {
            (Some(Ok(found)), None) => candidate.saw(found, now),
            (Some(Ok(Some(stored))), Some(_)) => candidate.wrote(stored, request.asked),
            (Some(_), _) => {
                candidate.failed(request.asked);
                self.players[number].looks_at = tick;
            }
            (None, _) if tick >= request.ends => {
                candidate.failed(request.asked);
                if let (Some(arrives), Some(claim), None) = (request.arrives, request.claim, request.answer) {
                    self.strays.push((arrives, claim));
                }
                self.players[number].looks_at = tick;
            }
            (None, _) => self.players[number].request = Some(request),
        }
    }

    fn play(&mut self, number: usize, tick: u64) {
        let stop_in = self.dice.roll(STOP_MAX);
        let player = &mut self.players[number];
        let now = at(tick as f64 / 10.0) + player.ahead;
        if player.acting.is_some_and(|until| until <= tick) {
            player.acting = None;
            player.candidate.gave_up();
        }
        let holds = player.candidate.ours_until().is_some();
        if holds && player.acting.is_none() {
            player.acting = Some(STILL);
        }
        match player.candidate.next(now) {
            Step::Lost(_) if player.acting == Some(STILL) => player.acting = Some(tick + stop_in),
            Step::Lost(_) => {}
            _ if player.request.is_some() || player.acting.is_some_and(|until| until != STILL) => {}
            Step::Acquire | Step::Renew if player.looks_at > tick || holds => {
                let claim = player.candidate.claim(("n", "l"), clock(0));
                self.send(number, Some(claim), tick);
            }
            _ if player.looks_at <= tick && !holds => {
                player.looks_at = tick + 20;
                self.send(number, None, tick);
            }
            _ => {}
        }
    }

    fn acting(&self) -> Vec<usize> {
        (0..self.players.len()).filter(|number| self.players[*number].acting.is_some()).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn two_never_lead_at_once_and_without_faults_one_does(seed in any::<u64>(), players in 2..5_usize) {
        let mut world = World::new(seed, players);
        for tick in 0..3000 {
            world.step(tick);
            prop_assert!(world.acting().len() <= 1, "at {tick}: {:?}", world.acting());
        }
        world.calm = true;
        for tick in 3000..3700 {
            world.step(tick);
            prop_assert!(world.acting().len() <= 1, "at {tick}: {:?}", world.acting());
        }
        prop_assert_eq!(world.acting().len(), 1, "without faults there is one leader");
    }
}
