//! Group commit: many transactions that share a sync, on a machine that stops at any write, note or sync. Uses the real
//! writer thread.
//!
//! Checked after each restart:
//! - *acknowledged*: a transaction that was answered with a revision is present, at that revision.
//! - *whole*: each transaction is present with all its operations, or not at all.
//! - *ordered*: the transactions that are present are the first ones, without a gap.
//! - *unique*: no revision is given twice.

use bytes::Bytes;
use futures::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::suite::{Crashable, End, Image, finish};
use store::{Condition, Embedded, Error, Operation, Options, Range, Revision, Store, Txn};

const SEEDS: u64 = 8;
/// Number of concurrent transactions, and number of rounds.
const TOGETHER: usize = 24;
const ROUNDS: usize = 3;
/// Every transaction writes one of these keys beside a key of its own.
const SHARED: u64 = 5;

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mix = self.0;
        mix = (mix ^ (mix >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mix = (mix ^ (mix >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mix ^ (mix >> 31)) % end
    }
}

/// A transaction: it creates a key that no other transaction touches, and writes or deletes a shared key.
#[derive(Clone)]
struct Job {
    own: String,
    shared: String,
    /// Value of the shared key afterwards; `None` deletes it.
    value: Option<Bytes>,
    /// The transaction's condition on the version of the shared key.
    only_if: Option<Revision>,
}

impl Job {
    fn txn(&self) -> Txn {
        let put =
            |key: &str, value: Bytes| Operation::Put { key: Arc::from(key), value, expires_at_s: None, memo: None };
        let shared = match &self.value {
            Some(value) => put(&self.shared, value.clone()),
            None => Operation::Delete { key: Arc::from(self.shared.as_str()), last: None },
        };
        let condition = |modified| Condition { key: Arc::from(self.shared.as_str()), modified };
        Txn {
            conditions: self.only_if.map(condition).into_iter().collect(),
            operations: vec![put(&self.own, Bytes::from(self.own.clone())), shared],
        }
    }
}

/// Content of a store: finished values, with the revisions that created and last changed them.
type Contents = BTreeMap<String, (Bytes, Revision, Revision)>;

fn contents(store: &dyn Store) -> Contents {
    let records = store.list(Range::default()).unwrap().records;
    records.iter().map(|it| (it.key.to_string(), (it.value.clone(), it.created, it.modified))).collect()
}

/// All transactions that were sent to a store, and their outcomes.
#[derive(Default)]
struct Acknowledged {
    jobs: Vec<Job>,
    /// The job of each revision.
    given: BTreeMap<Revision, usize>,
    /// Jobs that were refused with a conflict: they must have no effect.
    refused: Vec<usize>,
}

impl Acknowledged {
    /// Sends many transactions at once, in rounds, until the machine stops or all rounds are done.
    async fn work(&mut self, store: &dyn Store, dice: &mut Dice) {
        for _ in 0..ROUNDS {
            let first = self.jobs.len();
            for number in first..first + TOGETHER {
                let shared = format!("/shared/{}", dice.below(SHARED));
                let length = if dice.below(8) == 0 { 9000 } else { dice.below(300) as usize };
                let value = (dice.below(4) > 0).then(|| format!("{number}-").bytes().cycle().take(length).collect());
                let now = store.get(&shared).map_or(0, |record| record.modified);
                let only_if = (dice.below(3) == 0).then_some(now);
                self.jobs.push(Job { own: format!("/own/{number}"), shared, value, only_if });
            }
            let answers = join_all(self.jobs[first..].iter().map(|job| store.txn(job.txn()))).await;
            let mut down = false;
            for (number, answer) in (first..).zip(answers) {
                match answer {
                    Ok(committed) => {
                        let before = self.given.insert(committed.revision, number);
                        assert_eq!(before, None, "unique: {} was given twice", committed.revision);
                    }
                    Err(Error::Conflict { .. }) => self.refused.push(number),
                    Err(_) => down = true,
                }
            }
            if down {
                return;
            }
        }
    }

    /// Checks the content after a restart against the jobs, and removes jobs from `given` that did not happen.
    fn check(&mut self, store: &dyn Store) {
        let (found, newest) = (contents(store), store.revision());
        let done: BTreeMap<Revision, usize> = (self.jobs.iter().enumerate())
            .filter_map(|(number, job)| found.get(&job.own).map(|(_, made, _)| (*made, number)))
            .collect();
        for (revision, number) in &self.given {
            assert_eq!(done.get(revision), Some(number), "acknowledged: revision {revision}, the store is at {newest}");
        }
        assert!(done.keys().copied().eq(2..=newest), "ordered: {:?} at {newest}", done.keys());
        assert!(self.refused.iter().all(|number| !found.contains_key(&self.jobs[*number].own)), "refused, but present");
        assert_eq!(found, self.outcome(&done), "whole");
        self.given = done;
    }

    /// Computes the content that these transactions lead to, one after the other.
    fn outcome(&self, done: &BTreeMap<Revision, usize>) -> Contents {
        let mut outcome = Contents::new();
        let kept = |value: &Bytes, revision| finish(value, revision);
        for (revision, number) in done {
            let job = &self.jobs[*number];
            let before = outcome.get(&job.shared).map(|(_, made, modified)| (*made, *modified));
            let version = before.map_or(0, |(_, modified)| modified);
            assert!(
                job.only_if.is_none_or(|wanted| wanted == version),
                "whole: the condition of {} did not hold",
                job.own
            );
            outcome.insert(job.own.clone(), (kept(&Bytes::from(job.own.clone()), *revision), *revision, *revision));
            match &job.value {
                Some(value) => {
                    let made = before.map_or(*revision, |(made, _)| made);
                    outcome.insert(job.shared.clone(), (kept(value, *revision), made, *revision));
                }
                None => drop(outcome.remove(&job.shared)),
            }
        }
        outcome
    }
}

fn open(disk: &Crashable) -> Result<Arc<dyn Store>, store::OpenError> {
    Embedded::open_on(Arc::new(disk.clone()), finish, Options::default())
}

fn end(dice: &mut Dice) -> End {
    if dice.below(4) == 0 { End::Kill } else { End::Crash(dice.below(u64::MAX)) }
}

/// Opens a disk and writes to it until the machine stops. Returns what is left, or `None` if the machine did not stop.
async fn until_the_end(disk: &Crashable, log: &mut Acknowledged, dice: &mut Dice) -> Option<Image> {
    // The machine may stop while the store is opened; then nothing was answered.
    if let Ok(store) = open(disk) {
        log.work(&*store, dice).await;
    }
    disk.left()
}

#[tokio::test]
async fn a_batch_survives_as_it_was_answered_wherever_the_machine_stops() {
    let (mut ends, mut transactions, mut commits, mut open_ended) = (0, 0, 0, 0);
    for seed in 1..=SEEDS {
        let mut steps = 0;
        loop {
            let mut dice = Dice(seed << 32);
            let disk = Crashable::default();
            let mut log = Acknowledged::default();
            let store = open(&disk).unwrap();
            disk.end_after(steps, end(&mut Dice(seed << 32 | steps as u64)));
            let notes = disk.notes();
            log.work(&*store, &mut dice).await;
            commits += disk.notes() - notes;
            transactions += log.given.len();
            drop(store);
            let Some(mut image) = disk.left() else { break };
            ends += 1;
            // Crash twice more on what is left, while it is opened or soon after, and check then.
            for _ in 0..2 {
                let disk = Crashable::from_image(image.clone());
                disk.end_after(dice.below(40) as usize, end(&mut dice));
                image = until_the_end(&disk, &mut log, &mut dice).await.unwrap_or_else(|| disk.kill());
            }
            let store = open(&Crashable::from_image(image))
                .unwrap_or_else(|error| panic!("seed {seed}, step {steps}: {error}"));
            let answered = log.given.len();
            log.check(&*store);
            open_ended += log.given.len() - answered;
            log.work(&*store, &mut dice).await;
            log.check(&*store);
            steps += 1;
        }
    }
    println!(
        "{ends} crashes, {transactions} transactions in {commits} commits, {open_ended} present without an answer"
    );
    assert!(transactions > 4 * commits, "{transactions} transactions in {commits} commits: no syncs were shared");
    assert!(open_ended > 100, "only {open_ended} transactions were in progress at a crash");
}
