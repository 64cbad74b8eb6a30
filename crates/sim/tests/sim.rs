//! A share of what `cargo run -p sim` can do, small enough for every change: `docs/simulation.md` has the rest.

use sim::{Plan, Story, Strike, Tally, stories};
use std::collections::{BTreeMap, BTreeSet};

fn calm(story: &'static Story) -> Plan {
    Plan { story, seed: 1, storm: false, strike: None }
}

fn exact() -> impl Iterator<Item = &'static Story> {
    stories::ALL.iter().filter(|story| story.exact)
}

/// Runs on all cores there are.
fn jobs() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

fn assert_whole(tally: &Tally, runs_min: u64) {
    assert!(tally.failures.is_empty() && tally.runs >= runs_min, "{}", tally.text());
}

/// The same seed is the same run, step by step, on another thread of the same process as in another process.
#[test]
fn the_same_seed_is_the_same_run() {
    let plan = |seed| Plan { story: stories::find("anything").expect("it is there"), seed, storm: true, strike: None };
    let (one, other) = (plan(7).run(), plan(7).run());
    let differs = one.lines.iter().zip(&other.lines).find(|(one, other)| one != other);
    assert_eq!(differs, None);
    assert_eq!((one.lines.len(), one.end), (other.lines.len(), other.end));
    assert_ne!(plan(8).run().lines, other.lines);
}

/// Each life of the controllers writes once and is killed before it hears the answer: the stories end as ever. (`reclaimed` once did not.)
/// The other stories take longer: `cargo run -p sim -- --story NAME --replay 1 --strike kill-controllers`.
#[test]
fn controllers_that_die_after_every_write_get_there() {
    const SHARE: [&str; 7] =
        ["retained", "orphaned", "moved", "changed_for_new_claims", "protected", "reclaimed", "policy_edited"];
    let stories = exact().filter(|story| SHARE.contains(&story.name));
    let tally = sim::every(stories, Strike::KillControllers, 1, jobs(), |_| {});
    assert_whole(&tally, 7);
    assert!(tally.faults["kill-controllers"] > 7 * 10, "{}", tally.text());
}

/// The server crashes with its disk after every write of the controllers. (`deleted_along` once did not end: `cargo run -p sim -- --every 1
/// --strike crash-server` has all stories.)
#[test]
fn a_server_that_crashes_after_every_write_gets_there() {
    let stories = exact().filter(|story| ["protected", "policy_edited"].contains(&story.name));
    let tally = sim::every(stories, Strike::CrashServer, 1, jobs(), |_| {});
    assert_whole(&tally, 2);
    assert!(tally.faults["crash-server"] > 2 * 10, "{}", tally.text());
}

/// Whoever leads is cut off for longer than its lease lasts, another takes over, and what the first one had sent arrives after that.
#[test]
fn what_arrives_from_an_earlier_term_changes_no_end() {
    let story = stories::find("handed_over").expect("it is there");
    let tally = sim::points(story, &[Strike::CutOff], 40, jobs(), |_| {});
    assert_whole(&tally, 3);
    assert!(tally.faults["held-up"] > 0, "{}", tally.text());
}

/// A write that its sender believes lost arrives 8 s later: what the journal said first is not said again, and nothing is lost. (The journal
/// once kept such an entry for ever.)
#[test]
fn what_arrives_late_takes_nothing_back() {
    let story = stories::find("protected").expect("it is there");
    let tally = sim::points(story, &[Strike::LateWrite], 1, jobs(), |_| {});
    assert_whole(&tally, 15);
    assert!(tally.faults["late"] >= 15, "{}", tally.text());
}

/// Who deletes a namespace and makes it anew keeps what is in the new one, also when deletions of the old one's content arrive late. (It was
/// emptied once more.)
#[test]
fn a_namespace_that_comes_back_is_left_alone() {
    let story = stories::find("emptied").expect("it is there");
    let tally = sim::points(story, &[Strike::LateWrite], 14, jobs(), |_| {});
    assert_whole(&tally, 6);
}

/// One of each kind of strike, at a few writes of some story; all of them take longer: `cargo run -p sim -- --points`.
#[test]
fn a_strike_at_some_writes_changes_no_end() {
    let mut tally = Tally::default();
    for (strike, story) in Strike::ALL.into_iter().zip(exact().skip(1)) {
        // There are fewer calls than writes.
        let stride = if strike.is_for_calls() { 3 } else { 61 };
        tally.merge(sim::points(story, &[strike], stride, jobs(), |_| {}));
    }
    assert_whole(&tally, 14);
    for strike in Strike::ALL.into_iter().filter(|strike| !strike.is_for_requests()) {
        assert!(tally.faults.contains_key(strike.name()), "{strike} has not struck: {}", tally.text());
    }
    for fault in ["refused", "answer-lost", "duplicated", "late"] {
        assert!(tally.faults.get(fault).is_some_and(|count| *count > 0), "{fault}: {}", tally.text());
    }
}

/// Controllers that follow the same objects all have missed something, and each of them is told so once.
#[test]
fn whoever_missed_an_event_has_to_list() {
    let story = stories::find("retained").expect("it is there");
    let outcome = Plan { strike: Some((sim::When::At(40), Strike::MissedEvent)), ..calm(story) }.run();
    assert_eq!(outcome.broken, [] as [&str; 0]);
    let mut told: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for line in outcome.lines.iter().filter_map(|line| line.split("FAULT watch-forgotten: ").nth(1)) {
        let (account, path) = line.split_once(" GET ").expect("a watch");
        let what: Vec<&str> = path.split('&').filter(|part| !part.starts_with("resourceVersion=")).collect();
        told.entry(what.join("&")).or_default().push(account);
    }
    let is_once = |accounts: &Vec<&str>| accounts.iter().collect::<BTreeSet<_>>().len() == accounts.len();
    assert!(told.values().all(is_once), "{told:?}");
    assert!(told.values().any(|accounts| accounts.len() > 1), "{told:?}");
}

/// R14, O5, T16, H8
#[test]
fn gates_go_off_and_on_in_the_middle_and_leave_data_as_documented() {
    let is_of_gates = |name: &str| ["_gate", "_rollback", "_skew"].iter().any(|end| name.ends_with(end));
    for story in stories::ALL.iter().filter(|story| is_of_gates(story.name)) {
        let outcome = calm(story).run();
        assert!(outcome.broken.is_empty(), "{}: {:?}", story.name, outcome.broken);
    }
}

/// R14, O5, T16, H8: every gate, of controllers and of the server, goes off and on in the middle of a scale-down, a rollout, a growth, a
/// reclaim and a deletion.
#[test]
fn every_gate_goes_off_and_on_in_the_middle_of_everything() {
    let story = stories::find("flipped").expect("it is there");
    let (mut hands, mut flips) = (BTreeSet::new(), BTreeSet::new());
    for plan in (1..=200).map(|seed| Plan { seed, ..calm(story) }).filter(|plan| hands.insert(plan.hand())) {
        let outcome = plan.run();
        assert!(outcome.broken.is_empty(), "{plan}: {:?}", outcome.broken);
        let said = outcome.lines.iter().filter_map(|line| line.split("OPERATOR ").nth(1));
        let off = said.filter(|line| line.ends_with("=false")).map(str::to_owned);
        flips.extend(off.enumerate());
    }
    let wanted = ["controllers", "server"]
        .iter()
        .flat_map(|part| stories::GATES.map(|gate| format!("{part} with {gate}=false")));
    let wanted: BTreeSet<(usize, String)> =
        wanted.flat_map(|flip| (0..5).map(move |phase| (phase, flip.clone()))).collect();
    assert_eq!(flips, wanted);
}

#[test]
fn storms_break_nothing() {
    let tally = sim::seeds(1000, 8, None, jobs(), |_| {});
    assert_whole(&tally, 8);
    assert!(tally.faults.len() > 8, "{}", tally.text());
}

/// Somebody lists what selectors take all the time, and it is compared with what was committed.
#[test]
fn lists_are_compared_with_what_was_committed() {
    let told = |story: &str| calm(stories::find(story).expect("it is there")).run().lines;
    let lines = [told("troubled"), told("labelled")].concat();
    for part in ["phase%3DRunning", "pod-name", "=controller-revision-hash", "=!controller-revision-hash"] {
        let of_part = lines.iter().filter(|line| line.contains("the list ") && line.contains(part));
        let compared = of_part.filter(|line| line.ends_with(" objects as committed") && !line.contains(" has 0 "));
        assert!(compared.count() > 0, "no list of {part} with anything in it was compared");
    }
}

/// Bad input gets one sentence and exit code 2.
#[test]
fn wrong_arguments_get_a_sentence() {
    for (args, sentence) in [
        (&["--story", "nobody"][..], "there is no story \"nobody\"; --list names them"),
        (&["--strike", "hard"], "there is no strike \"hard\"; there are kill-controllers"),
        (&["--stride", "0"], "--stride and --every are at least 1"),
        (&["--strike", "conflict"], "--strike goes with --points, --every or --replay"),
        (
            &["--replay", "1", "--strike", "refusal"],
            "where refusal strikes every write, nobody can get on: take --every 2 or more",
        ),
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_sim")).args(args).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(sentence) && text.lines().count() == 1, "{text}");
    }
}

/// Another process says the same.
#[test]
fn a_replay_in_another_process_is_the_same_run() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--story", "protected", "--replay", "5"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let plan = Plan { story: stories::find("protected").expect("it is there"), seed: 5, storm: true, strike: None };
    let lines = plan.run().lines;
    assert!(text.starts_with(&lines.join("\n")), "{} lines here, {} there", lines.len(), text.lines().count());
    assert!(output.status.success(), "{text}");
}
