//! Many runs: random seeds, or a fault at every write of a story.

use crate::fault_point::{Fault, Trigger};
use crate::run::{Outcome, RunConfig};
use crate::stories::{self, Story};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Seed for counting the fault points of a story. Any seed gives the same points, except for the story that picks a
/// gate combination by its seed.
const SEED: u64 = 1;

/// Seeds to inject faults with: one, or one per gate combination for the story that flips gates.
fn seeds_of(story: &'static Story) -> Vec<u64> {
    if story.name != "flipped" {
        return vec![SEED];
    }
    let mut combinations = BTreeSet::new();
    let gate_combination =
        |seed: &u64| RunConfig { story, seed: *seed, random_faults: false, fault: None }.gate_combination();
    (SEED..).filter(|seed| combinations.insert(gate_combination(seed))).take(stories::GATE_COMBINATIONS).collect()
}

/// Progress is reported after this many runs.
const PROGRESS_EVERY: u64 = 500;

/// Results of many runs.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub runs: u64,
    pub commits: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub virtual_ms: u128,
    /// Runs whose final state was not compared, because something happened that no component can know about.
    pub excused: u64,
    /// Each failed run: the arguments that repeat it, and the reason.
    pub failures: Vec<String>,
}

impl Totals {
    fn add(&mut self, plan: &RunConfig, outcome: &Outcome, Verdict { failure, excused }: Verdict) {
        self.runs += 1;
        self.commits += outcome.counted.commits;
        self.virtual_ms += outcome.virtual_ms;
        self.excused += u64::from(excused);
        for (fault, count) in &outcome.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.failures.extend(failure.map(|why| format!("{plan}: {why}")));
    }

    pub fn merge(&mut self, other: Totals) {
        self.runs += other.runs;
        self.commits += other.commits;
        self.virtual_ms += other.virtual_ms;
        self.excused += other.excused;
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.failures.extend(other.failures);
    }

    pub fn text(&self) -> String {
        let faults: u64 = self.faults.values().sum();
        let mut text = format!(
            "{} runs, {} writes, {} hours of virtual time, {faults} faults, {} final states not compared, {} failures",
            self.runs,
            self.commits,
            self.virtual_ms / 3_600_000,
            self.excused,
            self.failures.len()
        );
        for (fault, count) in &self.faults {
            let _ = write!(text, "\n  {count:>8} {fault}");
        }
        for failure in &self.failures {
            let _ = write!(text, "\nFAILED {failure}");
        }
        text
    }
}

/// The failure of a run, if any, and whether the final state of an exact story was not compared.
#[derive(Default)]
struct Verdict {
    failure: Option<String>,
    excused: bool,
}

/// The story of a seed when none is requested. Odd seeds run the story of the random operator.
pub fn story_of(seed: u64) -> &'static Story {
    let named = usize::try_from(seed / 2).unwrap_or(0) % stories::ALL.len();
    if seed.is_multiple_of(2) { &stories::ALL[named] } else { &stories::ALL[stories::ALL.len() - 1] }
}

/// Runs one story with random faults per seed.
pub fn seeds(
    from: u64,
    count: u64,
    story: Option<&'static Story>,
    jobs: usize,
    report: impl Fn(&str) + Sync,
) -> Totals {
    let plans = (from..from + count).map(|seed| {
        let story = story.unwrap_or_else(|| story_of(seed));
        RunConfig { story, seed, random_faults: true, fault: None }
    });
    let ends: Mutex<BTreeMap<&str, String>> = Mutex::default();
    // An exact story ends in the same state with every seed.
    let end_of = |story: &'static Story| {
        let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.entry(story.name)
            .or_insert_with(|| RunConfig { story, seed: SEED, random_faults: false, fault: None }.run().end)
            .clone()
    };
    run_all(plans.collect(), jobs, report, |plan, outcome| {
        let differs = || {
            let wanted = end_of(plan.story);
            (outcome.end != wanted).then(|| difference(&wanted, &outcome.end))
        };
        let is_prescribed = plan.story.exact && !outcome.excused;
        let failure = outcome.violations.first().cloned().or_else(|| is_prescribed.then(differs).flatten());
        Verdict { failure, excused: plan.story.exact && outcome.excused }
    })
}

/// Runs a story once for every `stride`-th write and each fault. Every run must end in the state of the run without
/// faults.
pub fn points(
    story: &'static Story,
    faults: &[Fault],
    stride: u64,
    jobs: usize,
    report: impl Fn(&str) + Sync,
) -> Totals {
    let seeds = seeds_of(story);
    // Several seeds share the fault points.
    let stride = stride * seeds.len() as u64;
    let mut tally = Totals::default();
    for (seed, shift) in seeds.into_iter().zip(0..) {
        tally.merge(points_of(
            RunConfig { story, seed, random_faults: false, fault: None },
            shift,
            faults,
            stride,
            jobs,
            &report,
        ));
    }
    tally
}

fn points_of(
    calm: RunConfig,
    shift: u64,
    faults: &[Fault],
    stride: u64,
    jobs: usize,
    report: &(impl Fn(&str) + Sync),
) -> Totals {
    let reference = calm.run();
    let mut tally = Totals::default();
    tally.add(&calm, &reference, Verdict { failure: reference.violations.first().cloned(), excused: false });
    if !tally.failures.is_empty() {
        return tally;
    }
    let mut plans = Vec::new();
    for fault in faults {
        let writes = reference.counted.of(*fault);
        // With a stride above 1, each fault starts at another write.
        let first = 1 + (shift + *fault as u64) % stride;
        for at in (first..=writes).step_by(usize::try_from(stride).unwrap_or(1)) {
            plans.push(RunConfig { fault: Some((Trigger::At(at), *fault)), ..calm });
        }
    }
    tally.merge(run_all(plans, jobs, report, |plan, outcome| compare(plan, outcome, &reference)));
    tally
}

/// Runs stories with the same fault at every `nth` write of the controllers. Every run must end in the state of the
/// run without faults.
pub fn every(
    stories: impl Iterator<Item = &'static Story>,
    fault: Fault,
    nth: u64,
    jobs: usize,
    report: impl Fn(&str) + Sync,
) -> Totals {
    let plans = stories.map(|story| RunConfig {
        story,
        seed: SEED,
        random_faults: false,
        fault: Some((Trigger::Every(nth), fault)),
    });
    run_all(plans.collect(), jobs, report, |plan, outcome| {
        compare(plan, outcome, &RunConfig { fault: None, ..*plan }.run())
    })
}

/// Compares the final state of a run with that of a run without faults.
fn compare(plan: &RunConfig, outcome: &Outcome, reference: &Outcome) -> Verdict {
    let fault = plan.fault.map(|(_, fault)| fault);
    // A server that crashes loses its history of deleted objects. If the provisioner is killed with it, or has no watch
    // at that time, the outcome for a volume cannot be known (docs/design/simulation.md).
    let is_excused = matches!(fault, Some(Fault::KillAll | Fault::CrashServer)) && outcome.excused;
    let may_differ = !plan.story.exact || is_excused || fault.is_some_and(Fault::changes_final_state);
    let differs = !may_differ && outcome.end != reference.end;
    let failure =
        outcome.violations.first().cloned().or_else(|| differs.then(|| difference(&reference.end, &outcome.end)));
    Verdict { failure, excused: plan.story.exact && may_differ }
}

/// The lines that only one of two texts has.
pub fn difference(wanted: &str, found: &str) -> String {
    let missing =
        wanted.lines().filter(|line| !found.lines().any(|other| other == *line)).map(|line| format!("- {line}"));
    let extra =
        found.lines().filter(|line| !wanted.lines().any(|other| other == *line)).map(|line| format!("+ {line}"));
    format!("the final state differs:\n{}", missing.chain(extra).collect::<Vec<_>>().join("\n"))
}

fn run_all(
    plans: Vec<RunConfig>,
    jobs: usize,
    report: impl Fn(&str) + Sync,
    compare: impl Fn(&RunConfig, &Outcome) -> Verdict + Sync,
) -> Totals {
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Totals::default()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = plan.run();
                    let verdict = compare(plan, &outcome);
                    if let Some(why) = &verdict.failure {
                        report(&format!("FAILED {plan}: {why}"));
                    }
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    tally.add(plan, &outcome, verdict);
                    if tally.runs.is_multiple_of(PROGRESS_EVERY) {
                        report(&format!("{} of {} runs, {} failures", tally.runs, plans.len(), tally.failures.len()));
                    }
                }
            });
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults are injected with each gate combination of the story `flipped`.
    #[test]
    fn faults_are_injected_with_each_gate_combination() {
        let flipped = stories::find("flipped").expect("a known story");
        let gate_combination =
            |seed| RunConfig { story: flipped, seed, random_faults: false, fault: None }.gate_combination();
        let combinations: BTreeSet<usize> = seeds_of(flipped).into_iter().map(gate_combination).collect();
        assert_eq!(combinations, (0..stories::GATE_COMBINATIONS).collect());
        assert_eq!(seeds_of(&stories::ALL[0]), [SEED]);
    }
}
