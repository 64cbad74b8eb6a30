use super::*;
use object::json;
use proptest::prelude::*;

const NAMES: [&str; 3] = ["a", "a-0", "b"];

fn object(name: &str, uid: &str, version: u64, color: u8) -> Arc<Value> {
    Arc::new(json!({
        "metadata": {
            "namespace": "default", "name": name, "uid": uid, "resourceVersion": version.to_string(),
        },
        "color": color,
    }))
}

fn place(name: &str) -> Key {
    ("default".into(), name.into())
}

fn by_color(object: &Value) -> Vec<Key> {
    vec![("".into(), object["color"].to_string().into())]
}

fn shown(cache: &Cache, name: &str) -> Option<(String, u64)> {
    let object = cache.get(&place(name))?;
    Some((uid(&object).to_owned(), version(&object).expect("a number")))
}

fn is(uid: &str, version: u64) -> Option<(String, u64)> {
    Some((uid.to_owned(), version))
}

/// A cache that has heard a list with one object.
fn filled() -> Cache {
    let cache = Cache::default();
    cache.hear(Change::Restart);
    cache.hear(Change::Seen(object("a", "1", 10, 0)));
    cache.hear(Change::Ready);
    cache
}

#[test]
fn own_writes_are_seen_at_once_and_older_news_do_not_undo_them() {
    let cache = filled();
    cache.wrote(object("a", "1", 12, 0));
    assert_eq!(shown(&cache, "a"), is("1", 12));
    cache.hear(Change::Seen(object("a", "1", 11, 0)));
    assert_eq!(shown(&cache, "a"), is("1", 12));
    cache.hear(Change::Seen(object("a", "1", 12, 0)));
    cache.hear(Change::Seen(object("a", "1", 13, 0)));
    assert_eq!(shown(&cache, "a"), is("1", 13));
    // Our own answers may overtake each other, and the watch them.
    cache.wrote(object("a", "1", 12, 0));
    assert_eq!(shown(&cache, "a"), is("1", 13));
}

#[test]
fn views_are_made_of_the_newest_version_and_go_with_the_object() {
    let cache = Cache::default().viewed(|object| object["color"].as_u64().expect("a number"));
    let index = cache.index(|_| vec![Key::default()]);
    let views =
        || cache.find_views::<u64>(&[(&index, &Key::default())]).iter().map(|color| **color).collect::<Vec<_>>();
    cache.hear(Change::Restart);
    cache.hear(Change::Seen(object("a", "1", 10, 5)));
    cache.hear(Change::Seen(object("b", "2", 11, 6)));
    cache.hear(Change::Ready);
    assert_eq!(views(), [5, 6]);
    cache.wrote(object("a", "1", 12, 7));
    assert_eq!(views(), [7, 6]);
    cache.hear(Change::Seen(object("a", "1", 12, 7)));
    cache.hear(Change::Gone(object("b", "2", 13, 6)));
    assert_eq!(views(), [7]);
}

#[test]
fn what_we_deleted_stays_gone_and_its_name_is_free() {
    let cache = filled();
    let success = json!({"kind": "Status", "status": "Success"});
    cache.deleted(&place("a"), "1", success);
    cache.hear(Change::Seen(object("a", "1", 11, 0)));
    cache.wrote(object("a", "1", 12, 0));
    assert_eq!(shown(&cache, "a"), None);
    cache.wrote(object("a", "2", 14, 0));
    cache.hear(Change::Gone(object("a", "1", 13, 0)));
    assert_eq!(shown(&cache, "a"), is("2", 14), "another one bears the name");
}

#[test]
fn a_deletion_that_waits_for_something_is_an_ordinary_write() {
    let cases = [
        (json!({"deletionTimestamp": "t", "deletionGracePeriodSeconds": 30}), true),
        (json!({"deletionTimestamp": "t", "finalizers": ["x/y"]}), true),
        (json!({"deletionTimestamp": "t", "deletionGracePeriodSeconds": 0}), false),
        // Some kinds are answered as they were last.
        (json!({"finalizers": []}), false),
    ];
    for (metadata, stays) in cases {
        let cache = filled();
        let mut answer = Value::clone(&object("a", "1", 11, 0));
        answer["metadata"].as_object_mut().expect("metadata").extend(metadata.as_object().expect("some").clone());
        cache.deleted(&place("a"), "1", answer);
        assert_eq!(shown(&cache, "a"), if stays { is("1", 11) } else { None }, "{metadata}");
    }
}

#[test]
fn what_the_watch_passed_without_a_word_is_gone() {
    let cache = filled();
    // Written, and gone again before the list that the watch goes on from.
    cache.wrote(object("b", "2", 20, 0));
    cache.hear(Change::Seen(object("a", "1", 25, 0)));
    assert_eq!(shown(&cache, "b"), None);
    cache.wrote(object("b", "2", 20, 0));
    assert_eq!(shown(&cache, "b"), None, "an answer that comes very late");
    cache.hear(Change::Restart);
    cache.wrote(object("b", "3", 30, 0));
    cache.wrote(object("a-0", "4", 40, 0));
    cache.hear(Change::Seen(object("a", "1", 35, 0)));
    cache.hear(Change::Ready);
    assert_eq!(shown(&cache, "b"), None, "the list is newer and does not show it");
    assert_eq!(shown(&cache, "a-0"), is("4", 40), "the list may be older");
}

#[test]
fn names_are_found_by_how_they_begin() {
    let cache = Cache::default();
    for name in ["web", "web-0", "web-1", "webs", "wea"] {
        cache.hear(Change::Seen(object(name, name, 1, 0)));
    }
    let mut elsewhere = Value::clone(&object("web-2", "x", 1, 0));
    elsewhere["metadata"]["namespace"] = json!("other");
    cache.hear(Change::Seen(elsewhere.into()));
    let names = |found: Vec<Arc<Value>>| found.iter().map(|object| name(object).to_owned()).collect::<Vec<_>>();
    assert_eq!(names(cache.beginning("default", "web-")), ["web-0", "web-1"]);
    assert_eq!(names(cache.in_namespace("other")), ["web-2"]);
    assert_eq!(names(cache.beginning("nowhere", "web-")), [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn doubts_arise_only_when_nothing_is_heard() {
    let cache = filled();
    let quiet = tokio::time::timeout(Duration::from_secs(100), cache.doubts()).await;
    assert!(quiet.is_err(), "there is nothing to doubt");
    let doubting = cache.clone();
    let doubts = tokio::spawn(async move { doubting.doubts().await });
    tokio::task::yield_now().await;
    cache.wrote(object("b", "2", 20, 0));
    let doubts = doubts.await.expect("doubts");
    assert_eq!(doubts, [(20, place("b"))]);
    cache.settle(doubts[0].clone(), Some(object("b", "2", 20, 0)));
    assert_eq!(shown(&cache, "b"), is("2", 20));
    let asked_once = tokio::time::timeout(Duration::from_secs(100), cache.doubts()).await;
    assert!(asked_once.is_err());
    cache.hear(Change::Seen(object("b", "2", 19, 0)));
    assert_eq!(shown(&cache, "b"), is("2", 20), "it is still newer than the watch");
    cache.wrote(object("b", "2", 21, 0));
    cache.settle((21, place("b")), None);
    assert_eq!(shown(&cache, "b"), None);
}

/// What can happen between a server, a cache and the wires between them.
#[derive(Clone, Copy, Debug)]
enum Event {
    OthersWrite(usize, u8),
    OthersDelete(usize),
    WeWrite(usize, u8),
    WeDelete(usize),
    /// One of the answers that are on their way arrives.
    Answer(usize),
    /// The next news arrive.
    News,
    /// The watch breaks for good: a new list is asked for.
    Break,
}

fn event() -> impl Strategy<Value = Event> {
    let name = 0..NAMES.len();
    prop_oneof![
        (name.clone(), 0..3u8).prop_map(|(name, color)| Event::OthersWrite(name, color)),
        name.clone().prop_map(Event::OthersDelete),
        (name.clone(), 0..3u8).prop_map(|(name, color)| Event::WeWrite(name, color)),
        name.prop_map(Event::WeDelete),
        (0..8usize).prop_map(Event::Answer),
        (0..8usize).prop_map(Event::Answer),
        Just(Event::News),
        Just(Event::News),
        Just(Event::News),
        Just(Event::Break),
    ]
}

#[derive(Default)]
struct Server {
    version: u64,
    objects: BTreeMap<&'static str, Arc<Value>>,
    log: Vec<(u64, Told)>,
    gone: HashSet<String>,
}

#[derive(Clone)]
enum Told {
    Seen(Arc<Value>),
    Gone(Arc<Value>),
}

impl Server {
    fn write(&mut self, name: &'static str, color: u8) -> Arc<Value> {
        self.version += 1;
        let of = self.objects.get(name).map_or_else(|| format!("uid-{}", self.version), |old| uid(old).to_owned());
        let stored = object(name, &of, self.version, color);
        self.objects.insert(name, stored.clone());
        self.log.push((self.version, Told::Seen(stored.clone())));
        stored
    }

    fn delete(&mut self, name: &'static str) -> Option<Arc<Value>> {
        let mut last = self.objects.remove(name)?;
        self.version += 1;
        Arc::make_mut(&mut last)["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.gone.insert(uid(&last).to_owned());
        self.log.push((self.version, Told::Gone(last.clone())));
        Some(last)
    }
}

enum Wire {
    /// The cache was told that a list follows, but it is not read yet.
    Begun,
    Listed(Vec<Arc<Value>>, u64),
    Watching(u64),
}

/// Those who listen hear what an object was in the end, where that is told, and else that nobody said.
#[test]
fn an_end_is_told_as_it_was() {
    let heard: Arc<Mutex<Vec<(String, bool)>>> = Arc::default();
    let cache = Cache::default();
    let (listening, color) = (heard.clone(), |object: &Arc<Value>| object.text(&["spec", "color"]).to_owned());
    cache.listen(move |Changed { before, after, unheard }| {
        let said = match (before, after) {
            (_, Some(after)) => color(after),
            (Some(before), None) => format!("{} goes", color(before)),
            (None, None) => String::new(),
        };
        listening.lock().expect("no panic").push((said, *unheard));
    });
    let object = |version: &str, color: &str| {
        let metadata = json!({"namespace": "a", "name": "b", "uid": "u", "resourceVersion": version});
        Arc::new(json!({"metadata": metadata, "spec": {"color": color}}))
    };
    let told = |changes: Vec<Change<Arc<Value>>>| {
        changes.into_iter().for_each(|change| cache.hear(change));
        std::mem::take(&mut *heard.lock().expect("no panic"))
    };
    let said = |text: &str, unheard: bool| (text.to_owned(), unheard);
    let red = || vec![Change::Restart, Change::Seen(object("1", "red")), Change::Ready];
    assert_eq!(told(red()), [said("red", false)]);
    assert_eq!(told(vec![Change::Gone(object("3", "blue"))]), [said("blue", false), said("blue goes", false)]);
    told(red());
    assert_eq!(told(vec![Change::Gone(object("3", "red"))]), [said("red goes", false)], "nothing was new");
    told(red());
    assert_eq!(told(vec![Change::Restart, Change::Ready]), [said("red goes", true)], "it is not in the list");
    told(red());
    cache.deleted(&("a".into(), "b".into()), "u", object("3", "green"));
    assert_eq!(told(Vec::new()), [said("green", false), said("green goes", false)], "the answer says how it was");
}

struct World {
    server: Server,
    cache: Cache,
    index: Index,
    wire: Wire,
    answers: Vec<Told>,
    /// The newest version that we were answered with, and its uid, by name.
    answered: HashMap<&'static str, (u64, String)>,
    /// The uids that we were told we deleted.
    deleted: HashSet<String>,
    /// What one knows who only listens.
    mirror: Arc<Mutex<HashMap<Key, Arc<Value>>>>,
}

impl World {
    fn new() -> World {
        let cache = Cache::default();
        let index = cache.index(by_color);
        let mirror: Arc<Mutex<HashMap<Key, Arc<Value>>>> = Arc::default();
        let listening = mirror.clone();
        cache.listen(move |Changed { before, after, .. }| {
            let mut mirror = listening.lock().expect("no panic");
            let at = key(after.as_ref().or(before.as_ref()).expect("one of them"));
            let known = match after {
                Some(after) => mirror.insert(at, after.clone()),
                None => mirror.remove(&at),
            };
            assert_eq!(known, *before);
        });
        cache.hear(Change::Restart);
        World {
            server: Server::default(),
            cache,
            index,
            wire: Wire::Begun,
            answers: Vec::new(),
            answered: HashMap::new(),
            deleted: HashSet::new(),
            mirror,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::OthersWrite(name, color) => drop(self.server.write(NAMES[name], color)),
            Event::OthersDelete(name) => drop(self.server.delete(NAMES[name])),
            // Nobody writes to an object before the last answer about it is there.
            Event::WeWrite(name, _) | Event::WeDelete(name) if self.awaits_answer(NAMES[name]) => {}
            Event::WeWrite(name, color) => self.answers.push(Told::Seen(self.server.write(NAMES[name], color))),
            Event::WeDelete(name) => self.answers.extend(self.server.delete(NAMES[name]).map(Told::Gone)),
            Event::Answer(at) if !self.answers.is_empty() => {
                let answer = self.answers.remove(at % self.answers.len());
                self.answer(answer);
            }
            Event::Answer(_) => {}
            Event::News => self.news(),
            Event::Break => {
                self.cache.hear(Change::Restart);
                self.wire = Wire::Begun;
            }
        }
    }

    fn awaits_answer(&self, of: &str) -> bool {
        self.answers.iter().any(|(Told::Seen(object) | Told::Gone(object))| name(object) == of)
    }

    fn answer(&mut self, answer: Told) {
        match answer {
            Told::Seen(object) => {
                let name = NAMES.into_iter().find(|known| *known == name(&object)).expect("a known name");
                let now = (version(&object).expect("a number"), uid(&object).to_owned());
                let newest = self.answered.entry(name).or_insert_with(|| now.clone());
                *newest = newest.clone().max(now);
                self.cache.wrote(object);
            }
            Told::Gone(object) => {
                self.deleted.insert(uid(&object).to_owned());
                self.cache.deleted(&key(&object), uid(&object), json!({"kind": "Status"}));
            }
        }
    }

    fn news(&mut self) {
        match &mut self.wire {
            Wire::Begun => {
                let items = self.server.objects.values().cloned().collect();
                self.wire = Wire::Listed(items, self.server.version);
            }
            Wire::Listed(items, listed) => match items.pop() {
                Some(item) => self.cache.hear(Change::Seen(item)),
                None => {
                    self.wire = Wire::Watching(*listed);
                    self.cache.hear(Change::Ready);
                }
            },
            Wire::Watching(heard) => {
                let next = self.server.log.iter().find(|(version, _)| *version > *heard).cloned();
                if let Some((version, told)) = next {
                    *heard = version;
                    self.cache.hear(match told {
                        Told::Seen(object) => Change::Seen(object),
                        Told::Gone(object) => Change::Gone(object),
                    });
                }
            }
        }
    }

    /// The cache never falls behind what we know from our own writes, and its parts agree.
    fn check(&self) {
        for name in NAMES {
            let shown = shown(&self.cache, name);
            if let Some((version, of)) = self.answered.get(name) {
                match &shown {
                    Some((_, shown)) => assert!(shown >= version, "{name}: {shown} is older than {version}"),
                    None => assert!(self.server.gone.contains(of), "{name} is there"),
                }
            }
            assert!(shown.is_none_or(|(of, _)| !self.deleted.contains(&of)), "we deleted {name}");
        }
        let all = self.cache.all();
        let mirror = self.mirror.lock().expect("no panic");
        assert_eq!(mirror.len(), all.len());
        for object in &all {
            assert_eq!(mirror.get(&key(object)), Some(object));
        }
        let mut found = 0;
        for color in 0..3u8 {
            let same = self.index.get(&("".into(), color.to_string().into()));
            assert!(same.iter().all(|object| object["color"] == color));
            found += same.len();
        }
        assert_eq!(found, all.len());
    }

    /// Everything arrives, and what is doubted is asked for: the cache shows what there is.
    fn end(&mut self) {
        while !matches!(self.wire, Wire::Watching(heard) if heard == self.server.version) {
            self.news();
        }
        for answer in std::mem::take(&mut self.answers) {
            self.answer(answer);
        }
        let doubts: Vec<_> = self.cache.lock().ahead.iter().cloned().collect();
        for doubt in doubts {
            let found = self.server.objects.get(&*doubt.1.1).cloned();
            self.cache.settle(doubt, found);
        }
        self.check();
        for name in NAMES {
            let there = self.server.objects.get(name);
            let there = there.map(|object| (uid(object).to_owned(), version(object).expect("a number")));
            assert_eq!(shown(&self.cache, name), there, "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_cache_is_never_older_than_our_own_writes_and_shows_everything_in_the_end(
        events in prop::collection::vec(event(), 1..60)
    ) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
            world.check();
        }
        world.end();
    }
}

/// Of what the watch had told before we heard of it otherwise nobody tells any more: that is not kept for ever. (A soak found it.)
#[tokio::test(start_paused = true)]
async fn what_was_buried_is_forgotten_in_the_end() {
    let cache = Cache::default();
    let bury = |from: usize, count: usize| {
        for at in from..from + count {
            cache.gone(&("a".into(), "x".into()), &format!("uid-{at}"));
        }
    };
    for round in 0..20 {
        bury(round * BURIED_FEW, BURIED_FEW);
        tokio::time::advance(ANSWER_TIME_MAX).await;
    }
    assert!(cache.lock().buried.len() <= 2 * BURIED_FEW, "{} are kept", cache.lock().buried.len());
    // What an answer may still bring back is remembered, however much it is.
    bury(0, 10 * BURIED_FEW);
    assert!(cache.lock().buried.len() >= 10 * BURIED_FEW);
}
