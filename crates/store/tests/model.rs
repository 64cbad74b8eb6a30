//! Any sequence of calls behaves as a simple model: a copy of all keys at every revision, and a list of all events.

use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::suite::finish;
use store::{Bounds, Error, Event, Next, Operation, Options, Range, Revision, Store, Txn, Volatile, Watcher};

const KEYS: &[&str] = &["a", "a/", "a/b", "a/b/c", "a/c", "ab", "b/a", "b/b", "é/a", "é/é"];
const PREFIXES: &[&str] = &["", "a", "a/", "a/b", "b/", "é/", "z"];

#[derive(Clone, Debug)]
enum Step {
    Txn(Vec<(usize, Option<u8>)>),
    /// Succeeds only if the guessed version is correct. `guess_back` is how many revisions the guess is too old.
    Swap {
        key: usize,
        guess_back: u64,
        value: u8,
    },
    Compact {
        back: u64,
    },
    Watch {
        prefix: usize,
        back: u64,
    },
    Read {
        watcher: prop::sample::Index,
        events_max: usize,
    },
    List {
        prefix: usize,
        after: Option<usize>,
        limit: usize,
        back: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS.len();
    let prefix = 0..PREFIXES.len();
    prop_oneof![
        6 => prop::collection::vec((key.clone(), any::<Option<u8>>()), 0..4).prop_map(Step::Txn),
        2 => (key.clone(), 0u64..3, any::<u8>()).prop_map(|(key, guess_back, value)| Step::Swap { key, guess_back, value }),
        1 => (0u64..8).prop_map(|back| Step::Compact { back }),
        2 => (prefix.clone(), 0u64..8).prop_map(|(prefix, back)| Step::Watch { prefix, back }),
        4 => (any::<prop::sample::Index>(), 1usize..5).prop_map(|(watcher, events_max)| Step::Read { watcher, events_max }),
        3 => (prefix, proptest::option::of(key), 0usize..4, 0u64..8)
            .prop_map(|(prefix, after, limit, back)| Step::List { prefix, after, limit, back }),
    ]
}

/// A version in the model: value, created, modified.
type Version = (Bytes, Revision, Revision);
type World = BTreeMap<&'static str, Version>;

struct Model {
    /// All keys at revision 1, 2, 3, …
    worlds: Vec<World>,
    events: Vec<(Revision, &'static str, Option<Version>, Option<Version>)>,
    oldest: Revision,
}

impl Model {
    fn revision(&self) -> Revision {
        self.worlds.len() as Revision
    }

    fn at(&self, revision: Revision) -> &World {
        &self.worlds[revision as usize - 1]
    }

    fn txn(&mut self, operations: &[(usize, Option<u8>)]) {
        let mut world = self.at(self.revision()).clone();
        let revision = self.revision() + 1;
        let mut events = Vec::new();
        for (index, (key, value)) in operations.iter().enumerate() {
            if operations[index + 1..].iter().any(|(later, _)| later == key) {
                continue;
            }
            let name = KEYS[*key];
            let before = world.get(name).cloned();
            let after = value.map(|value| {
                let created = before.as_ref().map_or(revision, |before| before.1);
                (finish(&Bytes::from(vec![value]), revision), created, revision)
            });
            match &after {
                Some(after) => world.insert(name, after.clone()),
                None => world.remove(name),
            };
            if before.is_some() || after.is_some() {
                events.push((revision, name, before, after));
            }
        }
        if !events.is_empty() {
            self.worlds.push(world);
            self.events.extend(events);
        }
    }
}

struct Watched {
    prefix: &'static str,
    position: Revision,
    watcher: Box<dyn Watcher>,
}

fn version(record: &store::Record) -> Version {
    (record.value.clone(), record.created, record.modified)
}

fn txn(operations: &[(usize, Option<u8>)]) -> Txn {
    let operations = operations
        .iter()
        .map(|(key, value)| match value {
            Some(value) => Operation::Put {
                key: Arc::from(KEYS[*key]),
                value: Bytes::from(vec![*value]),
                expires_at_s: None,
                memo: None,
            },
            None => Operation::Delete { key: Arc::from(KEYS[*key]), last: None },
        })
        .collect();
    Txn { conditions: vec![], operations }
}

/// Polls once. With a single thread, a pending future cannot become ready later.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(ready) => Some(ready),
        std::task::Poll::Pending => None,
    }
}

fn run(steps: &[Step], bounds: Bounds) -> Result<(), TestCaseError> {
    let store = Volatile::new(finish, Options { bounds, ..Options::default() });
    let mut model = Model { worlds: vec![World::new()], events: vec![], oldest: 1 };
    let mut watched = Vec::new();
    for step in steps {
        apply(&*store, &mut model, &mut watched, step)?;
        prop_assert_eq!(store.revision(), model.revision());
        prop_assert!(store.oldest() >= model.oldest && store.oldest() <= model.revision());
        model.oldest = store.oldest();
        let kept: Vec<_> = model.events.iter().filter(|event| event.0 > model.oldest).collect();
        prop_assert!(kept.len() <= bounds.events_max, "the log is bounded");
    }
    for watched in &mut watched {
        while read(&model, watched, 3)? {}
    }
    Ok(())
}

fn apply(store: &dyn Store, model: &mut Model, watched: &mut Vec<Watched>, step: &Step) -> Result<(), TestCaseError> {
    match step {
        Step::Txn(operations) => {
            let committed = now(store.txn(txn(operations))).unwrap().unwrap();
            model.txn(operations);
            prop_assert_eq!(committed.revision, model.revision());
        }
        Step::Swap { key, guess_back, value } => {
            let current = model.at(model.revision()).get(KEYS[*key]).map_or(0, |version| version.2);
            let modified = current.saturating_sub(*guess_back);
            let operations = [(*key, Some(*value))];
            let mut swap = txn(&operations);
            swap.conditions.push(store::Condition { key: Arc::from(KEYS[*key]), modified });
            match now(store.txn(swap)).unwrap() {
                Ok(_) => {
                    prop_assert_eq!(modified, current);
                    model.txn(&operations);
                }
                Err(Error::Conflict { current: shown, .. }) => {
                    prop_assert_ne!(modified, current);
                    prop_assert_eq!(shown.map_or(0, |record| record.modified), current);
                }
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        }
        Step::Compact { back } => {
            let at = model.revision().saturating_sub(*back);
            now(store.compact(at)).unwrap().unwrap();
            model.oldest = model.oldest.max(at);
            prop_assert_eq!(store.oldest(), model.oldest);
        }
        Step::Watch { prefix, back } => {
            let after = model.revision().saturating_sub(*back);
            match store.watch(PREFIXES[*prefix], after) {
                Ok(watcher) => {
                    prop_assert!(after >= model.oldest);
                    watched.push(Watched { prefix: PREFIXES[*prefix], position: after, watcher });
                }
                Err(Error::Compacted { .. }) => prop_assert!(after < model.oldest),
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        }
        Step::Read { watcher, events_max } => {
            if !watched.is_empty() {
                let index = watcher.index(watched.len());
                read(model, &mut watched[index], *events_max)?;
            }
        }
        Step::List { prefix, after, limit, back } => list(store, model, *prefix, *after, *limit, *back)?,
    }
    Ok(())
}

/// Reads the next events. Returns whether there were any.
fn read(model: &Model, watched: &mut Watched, events_max: usize) -> Result<bool, TestCaseError> {
    let due: Vec<_> =
        model.events.iter().filter(|event| event.0 > watched.position && event.1.starts_with(watched.prefix)).collect();
    // The watcher is behind exactly if an event of its prefix was discarded.
    let behind = due.first().is_some_and(|event| event.0 <= model.oldest);
    let stands = watched.watcher.position();
    prop_assert!(due.first().is_none_or(|event| stands < event.0), "position {} is after an unread event", stands);
    match now(watched.watcher.next(events_max)) {
        None => {
            prop_assert!(due.is_empty(), "{} events are due", due.len());
            watched.position = model.revision();
            Ok(false)
        }
        Some(Next::Compacted { oldest }) => {
            prop_assert!(behind);
            prop_assert_eq!(oldest, model.oldest);
            Ok(false)
        }
        Some(Next::Events { events, revision }) => {
            prop_assert!(!behind && !events.is_empty());
            let whole = due.len() == events.len() || due[events.len()].0 != due[events.len() - 1].0;
            prop_assert!(whole, "a revision was split");
            prop_assert!(events.len() <= events_max || events[events_max - 1].revision == events[events_max].revision);
            for (event, due) in events.iter().zip(&due) {
                prop_assert_eq!(&describe(event), &(due.0, due.1.to_owned(), due.2.clone(), due.3.clone()));
            }
            let expected = if due.len() == events.len() { model.revision() } else { events[events.len() - 1].revision };
            prop_assert_eq!(revision, expected);
            prop_assert_eq!(watched.watcher.position(), expected);
            watched.position = revision;
            Ok(true)
        }
        Some(Next::Closed) => Err(TestCaseError::fail("closed")),
    }
}

fn describe(event: &Event) -> (Revision, String, Option<Version>, Option<Version>) {
    let side = |record: &Option<Arc<store::Record>>| record.as_ref().map(|record| version(record));
    (event.revision, event.key.to_string(), side(&event.previous), side(&event.current))
}

fn list(
    store: &dyn Store,
    model: &Model,
    prefix: usize,
    after: Option<usize>,
    limit: usize,
    back: u64,
) -> Result<(), TestCaseError> {
    let (prefix, after) = (PREFIXES[prefix], after.map(|key| KEYS[key]));
    let at = model.revision().saturating_sub(back);
    match store.list(Range { prefix, after, limit, at: (back > 0).then_some(at) }) {
        Ok(page) => {
            prop_assert!(at >= model.oldest);
            prop_assert_eq!(page.revision, at);
            let all: Vec<_> = model
                .at(at)
                .iter()
                .filter(|(key, _)| key.starts_with(prefix) && after.is_none_or(|after| **key > after))
                .map(|(key, version)| ((*key).to_owned(), version.clone()))
                .collect();
            let shown = if limit == 0 { all.len() } else { limit.min(all.len()) };
            let got: Vec<_> = page.records.iter().map(|record| (record.key.to_string(), version(record))).collect();
            prop_assert_eq!(&got, &all[..shown]);
            prop_assert_eq!(page.more, shown < all.len());
            prop_assert_eq!(page.remaining, Some((all.len() - shown) as u64));
        }
        Err(Error::Compacted { .. }) => prop_assert!(at < model.oldest),
        Err(error) => return Err(TestCaseError::fail(error.to_string())),
    }
    let count = model.at(model.revision()).keys().filter(|key| key.starts_with(prefix)).count();
    prop_assert_eq!(store.count(prefix), count as u64);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_store_behaves_as_the_model(steps in prop::collection::vec(step(), 1..80)) {
        run(&steps, Bounds::default())?;
    }

    #[test]
    fn a_small_log_discards_only_the_oldest_events(steps in prop::collection::vec(step(), 1..80), events_max in 0usize..12) {
        run(&steps, Bounds { events_max, ..Bounds::default() })?;
    }
}

#[test]
fn the_log_is_bounded_in_bytes() {
    let bounds = Bounds { bytes_max: 100_000, ..Bounds::default() };
    let store = Volatile::new(|stored, _| stored.clone(), Options { bounds, ..Options::default() });
    for _ in 0..50 {
        let value = Bytes::from(vec![0; 10_000]);
        let operations = vec![Operation::Put { key: Arc::from("key"), value, expires_at_s: None, memo: None }];
        now(store.txn(Txn { conditions: vec![], operations })).unwrap().unwrap();
    }
    // Each event keeps the previous value of 10,000 bytes.
    let kept = store.revision() - store.oldest();
    assert!((8..=10).contains(&kept), "{kept} revisions kept");
}
