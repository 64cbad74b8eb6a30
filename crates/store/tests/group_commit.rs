//! Many transactions that share a sync, on a machine that goes down at any write, note or sync: the real writer, not one at a time.
//!
//! *acknowledged*: what was answered with a revision is there, at that revision. *whole*: each transaction is there with all that it does, or not at
//! all. *ordered*: those that are there are the first ones, without a gap. *unique*: no revision that was given is given again.

use bytes::Bytes;
use futures::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::suite::{Crashable, End, Image, finish};
use store::{Condition, Embedded, Error, Operation, Options, Range, Revision, Store, Txn};

const SEEDS: u64 = 8;
/// Transactions that are under way at the same time, and how often.
const TOGETHER: usize = 24;
const ROUNDS: usize = 3;
/// Every transaction writes one of these besides a key of its own.
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

/// What a transaction does: it makes a key that no other touches, and writes or deletes one that others do, too.
#[derive(Clone)]
struct Job {
    own: String,
    shared: String,
    /// What the shared key holds afterwards.
    value: Option<Bytes>,
    /// It must be of this version for anything to happen.
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

/// What a store holds: values as they were put, with the revisions they were made and last changed at.
type Contents = BTreeMap<String, (Bytes, Revision, Revision)>;

fn contents(store: &dyn Store) -> Contents {
    let records = store.list(Range::default()).unwrap().records;
    records.iter().map(|it| (it.key.to_string(), (it.value.clone(), it.created, it.modified))).collect()
}

/// All that was ever asked of a store, and answered.
#[derive(Default)]
struct Told {
    jobs: Vec<Job>,
    /// Which job each revision was given to.
    given: BTreeMap<Revision, usize>,
    /// Jobs that were refused because of others: they have done nothing.
    refused: Vec<usize>,
}

impl Told {
    /// Sends many transactions at once, again and again, until the machine goes down or all are done.
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

    /// What is there after the end is what was asked for, as far as it came. What did not come about is forgotten.
    fn check(&mut self, store: &dyn Store) {
        let (found, newest) = (contents(store), store.revision());
        let done: BTreeMap<Revision, usize> = (self.jobs.iter().enumerate())
            .filter_map(|(number, job)| found.get(&job.own).map(|(_, made, _)| (*made, number)))
            .collect();
        for (revision, number) in &self.given {
            assert_eq!(done.get(revision), Some(number), "acknowledged: revision {revision}, the store is at {newest}");
        }
        assert!(done.keys().copied().eq(2..=newest), "ordered: {:?} at {newest}", done.keys());
        assert!(self.refused.iter().all(|number| !found.contains_key(&self.jobs[*number].own)), "refused, but there");
        assert_eq!(found, self.outcome(&done), "whole");
        self.given = done;
    }

    /// What these transactions come to, one after the other.
    fn outcome(&self, done: &BTreeMap<Revision, usize>) -> Contents {
        let mut outcome = Contents::new();
        let kept = |value: &Bytes, revision| finish(value, revision);
        for (revision, number) in done {
            let job = &self.jobs[*number];
            let before = outcome.get(&job.shared).map(|(_, made, modified)| (*made, *modified));
            let version = before.map_or(0, |(_, modified)| modified);
            assert!(job.only_if.is_none_or(|wanted| wanted == version), "whole: {} was not to be", job.own);
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

/// Works on a disk until its end, and gives what is left; `None` if it had not come when all was done.
async fn until_the_end(disk: &Crashable, told: &mut Told, dice: &mut Dice) -> Option<Image> {
    // It may come while the store is opened, and then nothing was answered.
    if let Ok(store) = open(disk) {
        told.work(&*store, dice).await;
    }
    disk.left()
}

#[tokio::test]
async fn a_batch_is_kept_as_it_was_answered_wherever_the_machine_goes_down() {
    let (mut ends, mut transactions, mut commits, mut open_ended) = (0, 0, 0, 0);
    for seed in 1..=SEEDS {
        let mut steps = 0;
        loop {
            let mut dice = Dice(seed << 32);
            let disk = Crashable::default();
            let mut told = Told::default();
            let store = open(&disk).unwrap();
            disk.end_after(steps, end(&mut Dice(seed << 32 | steps as u64)));
            let notes = disk.notes();
            told.work(&*store, &mut dice).await;
            commits += disk.notes() - notes;
            transactions += told.given.len();
            drop(store);
            let Some(mut image) = disk.left() else { break };
            ends += 1;
            // And again with what is left: twice at once, while it is opened or soon after, and then it is looked at.
            for _ in 0..2 {
                let disk = Crashable::from_image(image.clone());
                disk.end_after(dice.below(40) as usize, end(&mut dice));
                image = until_the_end(&disk, &mut told, &mut dice).await.unwrap_or_else(|| disk.kill());
            }
            let store = open(&Crashable::from_image(image))
                .unwrap_or_else(|error| panic!("seed {seed}, step {steps}: {error}"));
            let answered = told.given.len();
            told.check(&*store);
            open_ended += told.given.len() - answered;
            told.work(&*store, &mut dice).await;
            told.check(&*store);
            steps += 1;
        }
    }
    println!("{ends} ends, {transactions} transactions in {commits} commits, {open_ended} there without an answer");
    assert!(transactions > 4 * commits, "{transactions} transactions in {commits} commits: nothing was shared");
    assert!(open_ended > 100, "only {open_ended} were in flight: the interesting moments were missed");
}
