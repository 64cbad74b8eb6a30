//! A small share of what `cargo run -p sim` can do, for every change. `docs/design/simulation.md` describes the rest.

use sim::{Fault, RunConfig, Story, Totals, Trigger, stories};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

fn calm(story: &'static Story) -> RunConfig {
    RunConfig { story, seed: 1, random_faults: false, fault: None }
}

fn exact() -> impl Iterator<Item = &'static Story> {
    stories::ALL.iter().filter(|story| story.exact)
}

/// Number of CPU cores.
fn jobs() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Applies `work` to each item, on all cores.
fn each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = || std::iter::from_fn(|| items.get(next.fetch_add(1, Ordering::Relaxed))).map(&work).collect::<Vec<R>>();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs()).map(|_| scope.spawn(done)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no run panics")).collect()
    })
}

fn assert_whole(tally: &Totals, runs_min: u64) {
    assert!(tally.failures.is_empty() && tally.runs >= runs_min, "{}", tally.text());
}

/// The same seed gives the same run on another thread, step by step.
#[test]
fn the_same_seed_is_the_same_run() {
    let plan = |seed| RunConfig {
        story: stories::find("anything").expect("a known story"),
        seed,
        random_faults: true,
        fault: None,
    };
    let (one, other) = (plan(7).run(), plan(7).run());
    let differs = one.lines.iter().zip(&other.lines).find(|(one, other)| one != other);
    assert_eq!(differs, None);
    assert_eq!((one.lines.len(), one.end), (other.lines.len(), other.end));
    assert_ne!(plan(8).run().lines, other.lines);
}

/// Each controller process is killed after its first write, before it gets the response, and the stories end as
/// without faults. (`reclaimed` once did not.) For the other stories: `cargo run -p sim -- --story NAME --replay 1
/// --fault kill-controllers`.
#[test]
fn controllers_killed_after_every_write_finish() {
    const SHARE: [&str; 7] =
        ["retained", "orphaned", "moved", "changed_for_new_claims", "protected", "reclaimed", "policy_edited"];
    let stories = exact().filter(|story| SHARE.contains(&story.name));
    let tally = sim::every(stories, Fault::KillControllers, 1, jobs(), |_| {});
    assert_whole(&tally, 7);
    assert!(tally.faults["kill-controllers"] > 7 * 10, "{}", tally.text());
}

/// The server crashes with its disk after every write of the controllers. (`deleted_along` once did not end. `cargo
/// run -p sim -- --every 1 --fault crash-server` runs all stories.)
#[test]
fn a_server_that_crashes_after_every_write_finishes() {
    let stories = exact().filter(|story| ["protected", "policy_edited"].contains(&story.name));
    let tally = sim::every(stories, Fault::CrashServer, 1, jobs(), |_| {});
    assert_whole(&tally, 2);
    assert!(tally.faults["crash-server"] > 2 * 10, "{}", tally.text());
}

/// The leader is disconnected for longer than its lease, another process leads, and then the requests of the first
/// one arrive.
#[test]
fn late_requests_of_an_earlier_term_change_no_final_state() {
    let story = stories::find("handed_over").expect("a known story");
    let tally = sim::points(story, &[Fault::CutOff], 40, jobs(), |_| {});
    assert_whole(&tally, 3);
    assert!(tally.faults["held-up"] > 0, "{}", tally.text());
}

/// A write arrives 8 s after its sender saw a broken connection. It must not restore an old journal entry, and
/// nothing is lost. (Such an entry once stayed in the journal forever.)
#[test]
fn late_writes_revert_nothing() {
    let story = stories::find("protected").expect("a known story");
    let tally = sim::points(story, &[Fault::LateWrite], 1, jobs(), |_| {});
    assert_whole(&tally, 15);
    assert!(tally.faults["late"] >= 15, "{}", tally.text());
}

/// A namespace that is deleted and created again keeps its new content, even if deletions of the old content arrive
/// late. (It was once emptied again.)
#[test]
fn a_recreated_namespace_keeps_its_content() {
    let story = stories::find("emptied").expect("a known story");
    let tally = sim::points(story, &[Fault::LateWrite], 14, jobs(), |_| {});
    assert_whole(&tally, 6);
}

/// Name in the log of the fault that this causes.
fn fault_of(fault: Fault) -> &'static str {
    match fault {
        Fault::Conflict | Fault::Refusal => "refused",
        Fault::LostAnswer => "answer-lost",
        Fault::Duplicate => "duplicated",
        Fault::LateWrite => "late",
        fault => fault.name(),
    }
}

/// Runs a story without faults and, if it is exact, again with a fault at several writes. Returns failures and the
/// fault, which depends on the position in the list.
fn run_without_and_with_fault(place: usize, story: &'static Story) -> (Vec<String>, Option<Fault>) {
    const TIMES: u64 = 3;
    let reference = calm(story).run();
    let mut wrong: Vec<String> = reference.violations.iter().map(|why| format!("{}: {why}", calm(story))).collect();
    // Repeated faults count writes of controllers only.
    let points = |fault: Fault| if fault.is_for_calls() { reference.counted.calls } else { reference.counted.requests };
    let turns = Fault::ALL.into_iter().cycle().skip(place).take(Fault::ALL.len());
    let turn = turns.into_iter().find(|fault| story.exact && points(*fault) > TIMES);
    if let Some(fault) = turn {
        let plan = RunConfig { fault: Some((Trigger::Every((points(fault) / TIMES).max(2)), fault)), ..calm(story) };
        let outcome = plan.run();
        wrong.extend(outcome.violations.iter().map(|why| format!("{plan}: {why}")));
        let may_differ = fault.changes_final_state() || (fault == Fault::KillAll && outcome.excused);
        if outcome.end != reference.end && !may_differ {
            wrong.push(format!("{plan}: the final state is\n{}expected\n{}", outcome.end, reference.end));
        }
        if outcome.faults.get(fault_of(fault)).is_none_or(|times| *times < 2) {
            wrong.push(format!("{plan}: the fault was injected fewer than 2 times"));
        }
    }
    (wrong, turn)
}

/// R14, O5, T16, H8 among others: every story reaches its final state without faults and with a fault. A new story
/// takes part automatically. For all writes: `cargo run -p sim -- --points`.
#[test]
fn every_story_runs_without_and_with_a_fault() {
    let all: Vec<(usize, &'static Story)> = stories::ALL.iter().enumerate().collect();
    let (wrong, injected): (Vec<Vec<String>>, BTreeSet<Option<Fault>>) =
        each(&all, |(place, story)| run_without_and_with_fault(*place, story)).into_iter().unzip();
    let wrong = wrong.concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let idle: Vec<Fault> = Fault::ALL.into_iter().filter(|fault| !injected.contains(&Some(*fault))).collect();
    assert!(idle.is_empty(), "these faults were not injected: {idle:?}");
}

/// All controllers that watch the same objects miss events, and each of them gets 410 once.
#[test]
fn controllers_that_missed_an_event_list_again() {
    let story = stories::find("retained").expect("a known story");
    let outcome = RunConfig { fault: Some((Trigger::At(40), Fault::MissedEvent)), ..calm(story) }.run();
    assert_eq!(outcome.violations, [] as [&str; 0]);
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

/// R14, O5, T16, H8: every gate of controllers and server goes off and on during a scale-down, a rollout, an
/// expansion, a reclaim and a deletion.
#[test]
fn every_gate_goes_off_and_on_during_every_operation() {
    let story = stories::find("flipped").expect("a known story");
    let (mut combinations, mut flips) = (BTreeSet::new(), BTreeSet::new());
    let mut middles: BTreeMap<usize, usize> = BTreeMap::new();
    let plans = (1..=500)
        .map(|seed| RunConfig { seed, ..calm(story) })
        .filter(|plan| combinations.insert(plan.gate_combination()));
    let plans: Vec<RunConfig> = plans.collect();
    for (plan, outcome) in each(&plans, |plan| (*plan, plan.run())) {
        assert!(outcome.violations.is_empty(), "{plan}: {:?}", outcome.violations);
        let said: Vec<&str> = outcome.lines.iter().filter_map(|line| line.split("OPERATOR ").nth(1)).collect();
        let flip = said.windows(2).filter(|lines| lines[0].starts_with("flips "));
        for (phase, lines) in flip.enumerate() {
            flips.insert((phase, lines[1].to_owned()));
            *middles.entry(phase).or_default() += usize::from(lines[0] == "flips during the operation");
        }
    }
    let flip = |gate: &str| format!("{gate}={}", !object::Gates::default().on(gate));
    let wanted = ["controllers", "server"]
        .iter()
        .flat_map(|part| stories::GATES.map(|gate| format!("{part} with {}", flip(gate))));
    let wanted: BTreeSet<(usize, String)> =
        wanted.flat_map(|flip| (0..5).map(move |phase| (phase, flip.clone()))).collect();
    assert_eq!(flips, wanted);
    // Most flips happen during the operation. Sometimes the operation ends with the write that the flip waits for.
    assert!(middles.values().all(|count| 4 * count > 3 * combinations.len()), "of {}: {middles:?}", combinations.len());
}

#[test]
fn random_faults_violate_no_rule() {
    let tally = sim::seeds(1000, 8, None, jobs(), |_| {});
    assert_whole(&tally, 8);
    assert!(tally.faults.len() > 8, "{}", tally.text());
}

/// Lists with selectors are compared with the committed state during the whole run.
#[test]
fn lists_are_compared_with_what_was_committed() {
    let told = |story: &str| calm(stories::find(story).expect("a known story")).run().lines;
    let lines = [told("troubled"), told("labelled")].concat();
    for part in ["phase%3DRunning", "pod-name", "=controller-revision-hash", "=!controller-revision-hash"] {
        let of_part = lines.iter().filter(|line| line.contains("the list ") && line.contains(part));
        let compared = of_part.filter(|line| line.ends_with(" committed objects") && !line.contains(" has the 0 "));
        assert!(compared.count() > 0, "no non-empty list of {part} was compared");
    }
}

/// Wrong arguments give one sentence and exit code 2.
#[test]
fn wrong_arguments_give_one_sentence() {
    for (args, sentence) in [
        (&["--story", "nobody"][..], "unknown story \"nobody\"; --list prints the names"),
        (&["--fault", "hard"], "unknown fault \"hard\"; use one of kill-controllers"),
        (&["--stride", "0"], "--stride and --every must be at least 1"),
        (&["--fault", "conflict"], "--fault requires --points, --every or --replay"),
        (
            &["--replay", "1", "--fault", "refusal"],
            "refusal at every write prevents all progress: use --every 2 or more",
        ),
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_sim")).args(args).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(sentence) && text.lines().count() == 1, "{text}");
    }
}

/// A second process logs the same run.
#[test]
fn a_replay_in_another_process_is_the_same_run() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--story", "protected", "--replay", "5"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let plan = RunConfig {
        story: stories::find("protected").expect("a known story"),
        seed: 5,
        random_faults: true,
        fault: None,
    };
    let lines = plan.run().lines;
    assert!(
        text.starts_with(&lines.join("\n")),
        "{} lines in this process, {} in the other",
        lines.len(),
        text.lines().count()
    );
    assert!(output.status.success(), "{text}");
}
