//! What one client sees of all maps, or of those that a selector selects, across restarts of the server: by a watch, and by lists.
//!
//! All that the watch says is kept, so that a list can be held against it: at a revision that the watch has passed, what its events made of
//! its first list is what another list shows.

use crate::talk::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// After so many events the client cuts its watch off, once between two restarts, and goes on where it was.
const EVENTS_BEFORE_CUT: usize = 8;

/// The maps that are there, each with its version.
type State = BTreeMap<String, u64>;

/// What is known of one map: its newest version, and whether it is there or was deleted by it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    version: u64,
    there: bool,
}

/// A list, and what the watch said from there on without a gap.
#[derive(Default)]
struct Stretch {
    from: u64,
    listed: State,
    /// By their versions: the map, and whether it is there.
    events: BTreeMap<u64, (String, bool)>,
}

impl Stretch {
    fn to(&self) -> u64 {
        self.events.last_key_value().map_or(self.from, |(version, _)| *version)
    }

    /// What the watch says was there at a revision.
    fn at(&self, revision: u64) -> State {
        let mut state = self.listed.clone();
        for (version, (key, there)) in self.events.range(..=revision) {
            match there {
                true => state.insert(key.clone(), *version),
                false => state.remove(key),
            };
        }
        state
    }
}

/// Why a watch goes on at a revision that was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum After {
    Restart,
    Cut,
}

/// What watches that went on were told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    pub events: u64,
    pub gone: u64,
}

#[derive(Default)]
pub struct Sight {
    /// What is asked besides, as the beginning of a query. Nothing: all maps.
    selector: &'static str,
    stretches: Vec<Stretch>,
    known: BTreeMap<String, Known>,
    /// Lists that others took, by their revision.
    lists: Vec<(u64, State)>,
    told: BTreeMap<After, Told>,
}

impl Sight {
    pub fn of(selector: &'static str) -> Sight {
        Sight { selector, ..Sight::default() }
    }

    /// Where the maps are listed, and with more in the query watched.
    pub fn path(&self) -> String {
        format!("{MAPS}?{}", self.selector)
    }

    /// How many maps went from the selection by a write, and not by being deleted.
    pub fn moved_out(&self, given: &BTreeMap<u64, String>) -> usize {
        let gone = |(version, (_, there)): &(&u64, &(String, bool))| !there && given.contains_key(version);
        self.stretches.iter().flat_map(|stretch| stretch.events.iter().filter(gone)).count()
    }

    /// From which revision a watch goes on.
    pub fn position(&self) -> Option<u64> {
        self.stretches.last().map(Stretch::to)
    }

    pub fn told(&self, after: After) -> Told {
        self.told.get(&after).copied().unwrap_or_default()
    }

    pub fn events(&self) -> usize {
        self.stretches.iter().map(|stretch| stretch.events.len()).sum()
    }

    /// Whether an event with this version told of the map, and was to tell if so.
    fn saw(&self, version: u64, key: &str) -> (bool, bool) {
        let within = self.stretches.iter().find(|stretch| stretch.from < version && version <= stretch.to());
        let saw =
            within.and_then(|stretch| stretch.events.get(&version)).is_some_and(|(of, there)| of == key && *there);
        (saw, within.is_some())
    }

    /// Keeps a list, to be held against the watch in the end.
    pub fn keep(&mut self, list: &Value) {
        self.lists.push((version(list), state(list)));
    }

    /// settled: of all that the watch told, nothing is taken back in a list that was taken later.
    pub fn check_settled(&self, list: &Value) {
        let (at, found) = (version(list), state(list));
        assert!(Some(at) >= self.position(), "settled: a list is at {at}, and the watch at {:?}", self.position());
        for (key, known) in &self.known {
            let settled = match found.get(key) {
                Some(version) => *version > known.version || (*version == known.version && known.there),
                None => !known.there || at > known.version,
            };
            assert!(settled, "settled: of {key} {known:?} was seen, and a list at {at} has {:?}", found.get(key));
        }
    }

    fn begin_anew(&mut self, list: &Value) {
        self.check_settled(list);
        let (from, listed) = (version(list), state(list));
        for (key, known) in &mut self.known {
            if known.there && !listed.contains_key(key) {
                *known = Known { version: from, there: false };
            }
        }
        let there = listed.iter().map(|(key, version)| (key.clone(), Known { version: *version, there: true }));
        self.known.extend(there);
        self.stretches.push(Stretch { from, listed, ..Stretch::default() });
    }

    /// ordered: versions rise. gapless: what is added was not there, what is changed or deleted was.
    fn hear(&mut self, event: &Value, first_after: Option<After>) {
        if let Some(after) = first_after {
            self.told.entry(after).or_default().events += 1;
        }
        let (kind, at) = (event["type"].as_str().unwrap_or(""), version(&event["object"]));
        let key = name(&event["object"]);
        let stretch = self.stretches.last_mut().expect("a watch begins with a list");
        assert!(at > stretch.to(), "ordered: version {at} after {}", stretch.to());
        let was_there = self.known.get(&key).is_some_and(|known| known.there);
        let there = match (kind, was_there) {
            ("ADDED", false) | ("MODIFIED", true) => true,
            ("DELETED", true) => false,
            _ => panic!("gapless: {kind} of {key} at {at}, of which {:?} is known", self.known.get(&key)),
        };
        stretch.events.insert(at, (key.clone(), there));
        self.known.insert(key, Known { version: at, there });
    }

    /// gapless: what was acknowledged while the watch stood was seen, and each list that it has passed is as its events say.
    pub fn check(&self, given: &BTreeMap<u64, String>) -> Compared {
        let mut compared = Compared::default();
        for (version, key) in given {
            let (saw, must) = self.saw(*version, key);
            // What a selector leaves out is not seen, and need not be.
            let must = must && self.selector.is_empty();
            assert!(saw || !must, "gapless: version {version} of {key} was not seen");
            compared.versions += usize::from(saw);
        }
        for (at, list) in &self.lists {
            for stretch in self.stretches.iter().filter(|stretch| stretch.from < *at && *at <= stretch.to()) {
                assert_eq!(&stretch.at(*at), list, "gapless: by the watch, and in a list at {at}");
                compared.lists += 1;
            }
        }
        compared
    }
}

/// How much of what others saw the watch saw too.
#[derive(Debug, Default)]
pub struct Compared {
    pub versions: usize,
    pub lists: usize,
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().expect("a name").to_owned()
}

fn state(list: &Value) -> State {
    list["items"].as_array().expect("items").iter().map(|object| (name(object), version(object))).collect()
}

fn lock(sight: &Mutex<Sight>) -> MutexGuard<'_, Sight> {
    sight.lock().expect("no panic")
}

/// An open watch, and why it goes on where another was, until it has told whether it can.
type Open = (Lines, Option<After>);

/// Watches until the server is gone: from where the last watch was if the server lets it, else from a new list.
pub async fn follow(sight: &Mutex<Sight>, client: kube::Client) {
    let from = lock(sight).position();
    let begun = match from {
        Some(from) => go_on(sight, &client, from, After::Restart).await,
        None => list_and_watch(sight, &client).await,
    };
    let Some((mut lines, mut unproven)) = begun else { return };
    let mut events = 0;
    while let Some(event) = lines.next().await {
        let next = if event["type"] == "ERROR" {
            assert_eq!(event["object"]["code"], 410, "{event}");
            let after = unproven.unwrap_or_else(|| panic!("a watch that followed is ended: {event}"));
            lock(sight).told.entry(after).or_default().gone += 1;
            list_and_watch(sight, &client).await
        } else {
            lock(sight).hear(&event, unproven.take());
            events += 1;
            if events != EVENTS_BEFORE_CUT {
                continue;
            }
            go_on(sight, &client, version(&event["object"]), After::Cut).await
        };
        let Some(opened) = next else { return };
        (lines, unproven) = opened;
    }
}

/// A watch from a revision. A server that no longer knows what came after it says 410, at once or as the first event. `None`: it is gone.
async fn go_on(sight: &Mutex<Sight>, client: &kube::Client, from: u64, after: After) -> Option<Open> {
    let path = lock(sight).path();
    match Lines::open(client, &format!("{path}watch=1&resourceVersion={from}")).await {
        Ok(lines) => Some((lines, Some(after))),
        Err(0) => None,
        Err(410) => {
            lock(sight).told.entry(after).or_default().gone += 1;
            list_and_watch(sight, client).await
        }
        Err(code) => panic!("a watch from {from} is answered with {code}"),
    }
}

async fn list_and_watch(sight: &Mutex<Sight>, client: &kube::Client) -> Option<Open> {
    let path = lock(sight).path();
    let Answer::Done(list) = ask(client, "GET", &path, None).await else { return None };
    lock(sight).begin_anew(&list);
    match Lines::open(client, &format!("{path}watch=1&resourceVersion={}", version(&list))).await {
        Ok(lines) => Some((lines, None)),
        Err(0) => None,
        Err(code) => panic!("a watch from a list is answered with {code}"),
    }
}
