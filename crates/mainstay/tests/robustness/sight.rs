//! One client's view of all maps, or of those that a selector selects, across restarts of the server: by a watch, and
//! by lists.
//!
//! All events of the watch are kept and compared with lists: at a revision that the watch has passed, its first list
//! with its events applied must equal any other list.

use crate::talk::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// After this many events the client closes its watch, once between two restarts, and resumes it.
const EVENTS_BEFORE_CUT: usize = 8;

/// The existing maps, each with its version.
type State = BTreeMap<String, u64>;

/// The last known state of a map: its newest version, and whether that exists or deleted the map.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    version: u64,
    there: bool,
}

/// A list, and the events since then without a gap.
#[derive(Default)]
struct Stretch {
    from: u64,
    listed: State,
    /// By version: the map, and whether it exists.
    events: BTreeMap<u64, (String, bool)>,
}

impl Stretch {
    fn to(&self) -> u64 {
        self.events.last_key_value().map_or(self.from, |(version, _)| *version)
    }

    /// The maps that exist at a revision, by the watch.
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

/// Why a watch resumes at a revision that was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum After {
    Restart,
    Cut,
}

/// The results of resumed watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    pub events: u64,
    pub gone: u64,
}

#[derive(Default)]
pub struct Sight {
    /// The selector, as the beginning of a query. Empty: all maps.
    selector: &'static str,
    stretches: Vec<Stretch>,
    known: BTreeMap<String, Known>,
    /// Lists of other clients, by their revision.
    lists: Vec<(u64, State)>,
    told: BTreeMap<After, Told>,
}

impl Sight {
    pub fn of(selector: &'static str) -> Sight {
        Sight { selector, ..Sight::default() }
    }

    /// The path at which the maps are listed, and with a longer query watched.
    pub fn path(&self) -> String {
        format!("{MAPS}?{}", self.selector)
    }

    /// How many maps left the selection by a write, and not by a deletion.
    pub fn moved_out(&self, given: &BTreeMap<u64, String>) -> usize {
        let gone = |(version, (_, there)): &(&u64, &(String, bool))| !there && given.contains_key(version);
        self.stretches.iter().flat_map(|stretch| stretch.events.iter().filter(gone)).count()
    }

    /// The revision at which a watch resumes.
    pub fn position(&self) -> Option<u64> {
        self.stretches.last().map(Stretch::to)
    }

    pub fn told(&self, after: After) -> Told {
        self.told.get(&after).copied().unwrap_or_default()
    }

    pub fn events(&self) -> usize {
        self.stretches.iter().map(|stretch| stretch.events.len()).sum()
    }

    /// Whether an event with this version reported the map, or need not have done so.
    fn saw(&self, version: u64, key: &str) -> (bool, bool) {
        let within = self.stretches.iter().find(|stretch| stretch.from < version && version <= stretch.to());
        let saw =
            within.and_then(|stretch| stretch.events.get(&version)).is_some_and(|(of, there)| of == key && *there);
        (saw, within.is_some())
    }

    /// Keeps a list, to compare it with the watch at the end.
    pub fn keep(&mut self, list: &Value) {
        self.lists.push((version(list), state(list)));
    }

    /// settled: nothing that the watch showed is reverted in a list that was read later.
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

    /// ordered: versions rise. gapless: an added map did not exist, a changed or deleted one did.
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

    /// gapless: writes that were acknowledged while the watch was open were seen, and each list that it has passed
    /// equals its events.
    pub fn check(&self, given: &BTreeMap<u64, String>) -> Compared {
        let mut compared = Compared::default();
        for (version, key) in given {
            let (saw, must) = self.saw(*version, key);
            // Maps outside the selection are not seen, and need not be.
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

/// How much of what other clients saw the watch saw too.
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

/// An open watch, and why it resumes an earlier one, until it is known whether it can.
type Open = (Lines, Option<After>);

/// Watches until the server is down: from the end of the last watch if the server allows it, otherwise from a new list.
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

/// Watches from a revision. A server that no longer has the events since then responds with 410, at once or as the
/// first event. `None`: the server is down.
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
