//! Many runs: seeds at random, or every write of a story in turn.

use crate::point::{Strike, When};
use crate::run::{Outcome, Plan};
use crate::stories::{self, Story};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Where the points of a story are counted, one seed is as good as another, but for the story that has several hands.
const SEED: u64 = 1;

/// The seeds whose points are struck: for a story that flips gates one for each hand of them.
fn seeds_of(story: &'static Story) -> Vec<u64> {
    if story.name != "flipped" {
        return vec![SEED];
    }
    let mut hands = BTreeSet::new();
    let hand = |seed: &u64| Plan { story, seed: *seed, storm: false, strike: None }.hand();
    (SEED..).filter(|seed| hands.insert(hand(seed))).take(stories::HANDS).collect()
}

/// After so many runs it is told how far it is.
const PROGRESS_EVERY: u64 = 500;

/// What many runs came to.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub runs: u64,
    pub commits: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub virtual_ms: u128,
    /// Runs whose end was not compared with that of the calm story, because something happened that nobody can know of.
    pub excused: u64,
    /// Each run that went wrong: how to see it again, and why.
    pub failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, plan: &Plan, outcome: &Outcome, Verdict { failure, excused }: Verdict) {
        self.runs += 1;
        self.commits += outcome.counted.commits;
        self.virtual_ms += outcome.virtual_ms;
        self.excused += u64::from(excused);
        for (fault, count) in &outcome.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.failures.extend(failure.map(|why| format!("{plan}: {why}")));
    }

    pub fn merge(&mut self, other: Tally) {
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
            "{} runs, {} writes, {} hours of virtual time, {faults} faults, {} excused ends, {} failures",
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

/// What is wrong with a run, and whether its end was not compared with that of the calm story though it is prescribed.
#[derive(Default)]
struct Verdict {
    failure: Option<String>,
    excused: bool,
}

/// The story that a seed tells when none is asked for: half of them are of the operator who does anything.
pub fn story_of(seed: u64) -> &'static Story {
    let named = usize::try_from(seed / 2).unwrap_or(0) % stories::ALL.len();
    if seed.is_multiple_of(2) { &stories::ALL[named] } else { &stories::ALL[stories::ALL.len() - 1] }
}

/// Runs stories in storms, one for each seed.
pub fn seeds(from: u64, count: u64, story: Option<&'static Story>, jobs: usize, told: impl Fn(&str) + Sync) -> Tally {
    let plans = (from..from + count).map(|seed| {
        let story = story.unwrap_or_else(|| story_of(seed));
        Plan { story, seed, storm: true, strike: None }
    });
    let ends: Mutex<BTreeMap<&str, String>> = Mutex::default();
    // An exact story ends as ever, whatever its seed.
    let end_of = |story: &'static Story| {
        let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.entry(story.name)
            .or_insert_with(|| Plan { story, seed: SEED, storm: false, strike: None }.run().end)
            .clone()
    };
    all(plans.collect(), jobs, told, |plan, outcome| {
        let differs = || {
            let wanted = end_of(plan.story);
            (outcome.end != wanted).then(|| difference(&wanted, &outcome.end))
        };
        let is_prescribed = plan.story.exact && !outcome.excused;
        let failure = outcome.broken.first().cloned().or_else(|| is_prescribed.then(differs).flatten());
        Verdict { failure, excused: plan.story.exact && outcome.excused }
    })
}

/// Runs a story once for every `stride`-th of its writes, with each of these strikes there. All must end as the story does when
/// nothing goes wrong.
pub fn points(
    story: &'static Story,
    strikes: &[Strike],
    stride: u64,
    jobs: usize,
    told: impl Fn(&str) + Sync,
) -> Tally {
    let seeds = seeds_of(story);
    // Several seeds share the points among them.
    let stride = stride * seeds.len() as u64;
    let mut tally = Tally::default();
    for (seed, shift) in seeds.into_iter().zip(0..) {
        tally.merge(points_of(Plan { story, seed, storm: false, strike: None }, shift, strikes, stride, jobs, &told));
    }
    tally
}

fn points_of(
    calm: Plan,
    shift: u64,
    strikes: &[Strike],
    stride: u64,
    jobs: usize,
    told: &(impl Fn(&str) + Sync),
) -> Tally {
    let reference = calm.run();
    let mut tally = Tally::default();
    tally.add(&calm, &reference, Verdict { failure: reference.broken.first().cloned(), excused: false });
    if !tally.failures.is_empty() {
        return tally;
    }
    let mut plans = Vec::new();
    for strike in strikes {
        let writes = reference.counted.of(*strike);
        // Where only some are wanted, not the same ones for each strike.
        let first = 1 + (shift + *strike as u64) % stride;
        for at in (first..=writes).step_by(usize::try_from(stride).unwrap_or(1)) {
            plans.push(Plan { strike: Some((When::At(at), *strike)), ..calm });
        }
    }
    tally.merge(all(plans, jobs, told, |plan, outcome| judge(plan, outcome, &reference)));
    tally
}

/// Runs stories with the same strike at every `nth` write of the controllers. All must end as they do when nothing goes wrong.
pub fn every(
    stories: impl Iterator<Item = &'static Story>,
    strike: Strike,
    nth: u64,
    jobs: usize,
    told: impl Fn(&str) + Sync,
) -> Tally {
    let plans = stories.map(|story| Plan { story, seed: SEED, storm: false, strike: Some((When::Every(nth), strike)) });
    all(plans.collect(), jobs, told, |plan, outcome| judge(plan, outcome, &Plan { strike: None, ..*plan }.run()))
}

/// What is wrong with how a run ended, given how the story ends when nothing goes wrong.
fn judge(plan: &Plan, outcome: &Outcome, reference: &Outcome) -> Verdict {
    let strike = plan.strike.map(|(_, strike)| strike);
    // A server that crashes loses its history of deleted objects. If the provisioner dies with it, or has no watch at
    // that time, nobody can know what became of a volume (docs/design/simulation.md).
    let is_excused = matches!(strike, Some(Strike::KillAll | Strike::CrashServer)) && outcome.excused;
    let may_differ = !plan.story.exact || is_excused || strike.is_some_and(Strike::changes_the_end);
    let differs = !may_differ && outcome.end != reference.end;
    let failure = outcome.broken.first().cloned().or_else(|| differs.then(|| difference(&reference.end, &outcome.end)));
    Verdict { failure, excused: plan.story.exact && may_differ }
}

/// The lines that are only in one of two texts.
pub fn difference(wanted: &str, found: &str) -> String {
    let missing =
        wanted.lines().filter(|line| !found.lines().any(|other| other == *line)).map(|line| format!("- {line}"));
    let extra =
        found.lines().filter(|line| !wanted.lines().any(|other| other == *line)).map(|line| format!("+ {line}"));
    format!("it ends differently:\n{}", missing.chain(extra).collect::<Vec<_>>().join("\n"))
}

fn all(
    plans: Vec<Plan>,
    jobs: usize,
    told: impl Fn(&str) + Sync,
    judge: impl Fn(&Plan, &Outcome) -> Verdict + Sync,
) -> Tally {
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = plan.run();
                    let verdict = judge(plan, &outcome);
                    if let Some(why) = &verdict.failure {
                        told(&format!("FAILED {plan}: {why}"));
                    }
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    tally.add(plan, &outcome, verdict);
                    if tally.runs.is_multiple_of(PROGRESS_EVERY) {
                        told(&format!("{} of {} runs, {} failures", tally.runs, plans.len(), tally.failures.len()));
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

    /// The points of the story that flips gates are struck with each of its hands.
    #[test]
    fn every_hand_is_struck() {
        let flipped = stories::find("flipped").expect("it is there");
        let hand = |seed| Plan { story: flipped, seed, storm: false, strike: None }.hand();
        let hands: BTreeSet<usize> = seeds_of(flipped).into_iter().map(hand).collect();
        assert_eq!(hands, (0..stories::HANDS).collect());
        assert_eq!(seeds_of(&stories::ALL[0]), [SEED]);
    }
}
