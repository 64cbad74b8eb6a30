//! What the provisioner remembers between turns. A crash loses it: what must not be lost is in the journal or on the objects.

use crate::csi::drivers::{Drivers, Known};
use jiff::Timestamp;
use kit::cache::{Cache, Changed, Key};
use object::Value;
use object::access::{Access, name, uid};
use object::kinds::volumes::class_of;
use plan::csi::Failure;
use plan::csi::journal::Doomed;
use plan::csi::outcome::{self, Created, Doubt, Outcome};
use plan::csi::provision::Intent;
use plan::csi::reclaim;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::time::Instant;

pub struct Notes {
    /// Whether the reclaim policy is honoured in any order of deletion.
    pub honor: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the volume's name: what is not known about earlier calls for it.
    doubts: HashMap<String, Doubt>,
    /// The names of volumes whose driver does not say whether it has copied them: their sources do not wait for them.
    sourceless: HashSet<String>,
    /// By the volume's name: what a driver made, whose object could not be saved yet.
    made: HashMap<String, Arc<Value>>,
    /// By the volume's name: when its making began.
    begun: HashMap<String, Instant>,
    /// By the volume's uid: the claim that it was made for or seen bound to, until its record says so.
    served: HashMap<String, String>,
    /// By the volume's uid: what is being deleted; with what is to be written down, if its object went meanwhile and it fails.
    deleting: HashMap<String, Option<Doomed>>,
    /// The uids of volumes whose backend is deleted while their object is still there.
    deleted: HashSet<String>,
    /// By the volume's name: what went unheld and is to be written down.
    vanished: HashMap<String, Doomed>,
    /// The uids of volumes that were seen to go, as they were then.
    gone: HashSet<String>,
    /// Volumes that went before all drivers were met: one of those may turn out to be responsible.
    unclaimed: Vec<Gone>,
    /// Of which volume what was said last, where it is said only once.
    said: HashMap<String, String>,
}

/// A volume that is not there any more.
struct Gone {
    /// As it was in the end, or when it was seen last.
    volume: Arc<Value>,
    /// Nobody said how it was in the end.
    unheard: bool,
}

/// How many volumes that are gone are remembered; beyond that the memory starts over, and history is asked instead.
const GONE_MAX: usize = 10_000;

impl Notes {
    pub fn new(honor: bool) -> Notes {
        Notes { honor, state: Mutex::default() }
    }

    /// Takes note of a volume as it was and as it is.
    pub fn see(&self, changed: &Changed, drivers: &Drivers, classes: &Cache) {
        match (&changed.before, &changed.after) {
            (_, Some(volume)) => {
                let bound_to = volume.text(&["spec", "claimRef", "uid"]);
                let is_bound = volume.text(&["status", "phase"]) == "Bound" && !bound_to.is_empty();
                if reclaim::is_recorded(volume) {
                    self.lock().served.remove(uid(volume));
                } else if is_bound && (!drivers.are_all_met() || responsible(volume, drivers).is_some()) {
                    self.lock().served.insert(uid(volume).to_owned(), bound_to.to_owned());
                }
            }
            (Some(volume), None) => {
                self.see_go(Gone { volume: volume.clone(), unheard: changed.last_state_unknown }, drivers, classes);
            }
            (None, None) => {}
        }
    }

    fn see_go(&self, gone: Gone, drivers: &Drivers, classes: &Cache) {
        let mut state = self.lock();
        // In this order: whoever is met in between is then found.
        let are_all_met = drivers.are_all_met();
        match responsible(&gone.volume, drivers) {
            Some(known) => state.see_go(&gone, &known.driver.name, classes, self.honor),
            None if are_all_met || state.unclaimed.len() >= GONE_MAX => drop(state.served.remove(uid(&gone.volume))),
            None => state.unclaimed.push(gone),
        }
    }

    /// Takes note of volumes of drivers that are known by now and went before; returns their names.
    pub fn claim(&self, drivers: &Drivers, classes: &Cache) -> Vec<String> {
        let unclaimed = std::mem::take(&mut self.lock().unclaimed);
        let names = unclaimed.iter().map(|gone| name(&gone.volume).to_owned()).collect();
        unclaimed.into_iter().for_each(|gone| self.see_go(gone, drivers, classes));
        names
    }

    pub fn vanished(&self, volume: &str) -> Option<Doomed> {
        self.lock().vanished.get(volume).cloned()
    }
    pub fn all_vanished(&self) -> Vec<Doomed> {
        let state = self.lock();
        state.vanished.values().chain(state.deleting.values().flatten()).cloned().collect()
    }
    pub fn wrote_vanished(&self, doomed: &Doomed) {
        let mut state = self.lock();
        if state.vanished.get(&doomed.volume) == Some(doomed) {
            state.vanished.remove(&doomed.volume);
        }
    }
    pub fn has_gone(&self, volume_uid: &str) -> bool {
        self.lock().gone.contains(volume_uid)
    }

    /// Whether a volume was made for the claim that it names, or seen bound to it, beyond what its record says.
    pub fn has_served(&self, volume: &Value) -> bool {
        self.lock().has_served(volume)
    }
    pub fn serves(&self, volume: &Value) {
        let claim = volume.text(&["spec", "claimRef", "uid"]).to_owned();
        self.lock().served.insert(uid(volume).to_owned(), claim);
    }

    /// A volume is being deleted at its driver, from here to [`Notes::end_deletion`].
    pub fn begin_deletion(&self, doomed: &Doomed) {
        let mut state = self.lock();
        // Its object may have gone a moment ago.
        let is_it = state.vanished.get(&doomed.volume).is_some_and(|vanished| vanished.uid == doomed.uid);
        let went = if is_it { state.vanished.remove(&doomed.volume) } else { None };
        state.deleting.insert(doomed.uid.clone(), went);
    }
    pub fn end_deletion(&self, volume_uid: &str, done: bool) {
        let mut state = self.lock();
        let went = state.deleting.remove(volume_uid).flatten();
        match went {
            // It is all over.
            Some(_) if done => {}
            Some(doomed) => drop(state.vanished.insert(doomed.volume.clone(), doomed)),
            None if done => drop(state.deleted.insert(volume_uid.to_owned())),
            None => {}
        }
    }
    pub fn has_deleted(&self, volume_uid: &str) -> bool {
        self.lock().deleted.contains(volume_uid)
    }

    /// Earlier calls may have been made whose answers are unknown.
    pub fn doubt(&self, volume: &str) {
        self.lock().doubts.insert(volume.to_owned(), Doubt::open());
    }
    pub fn is_doubted(&self, volume: &str) -> bool {
        self.lock().doubts.contains_key(volume)
    }
    pub fn judge(&self, intent: &Intent, answer: Result<Created, Failure>, now: Timestamp) -> Outcome {
        let mut state = self.lock();
        let doubt = state.doubts.entry(intent.request.name.clone()).or_default();
        outcome::judge(intent, answer, doubt, now)
    }
    /// The making of a volume is settled.
    pub fn settled(&self, volume: &str) {
        let mut state = self.lock();
        state.doubts.remove(volume);
        state.made.remove(volume);
        state.sourceless.remove(volume);
    }

    /// The source of a copy need not wait for it any more; whether that is news.
    pub fn frees_source(&self, volume: &str) -> bool {
        self.lock().sourceless.insert(volume.to_owned())
    }
    pub fn has_freed_source(&self, volume: &str) -> bool {
        self.lock().sourceless.contains(volume)
    }

    pub fn begin(&self, volume: &str) {
        self.lock().begun.entry(volume.to_owned()).or_insert_with(Instant::now);
    }
    pub fn end(&self, volume: &str) -> Option<Instant> {
        self.lock().begun.remove(volume)
    }

    pub fn made(&self, volume: &str) -> Option<Arc<Value>> {
        self.lock().made.get(volume).cloned()
    }
    pub fn keep_made(&self, volume: &str, object: &Arc<Value>) {
        self.lock().made.insert(volume.to_owned(), object.clone());
    }

    /// Whether this is news about a volume.
    pub fn is_news(&self, volume: &str, message: &str) -> bool {
        let before = self.lock().said.insert(volume.to_owned(), message.to_owned());
        before.as_deref() != Some(message)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic happens under this lock")
    }
}

fn responsible(volume: &Value, drivers: &Drivers) -> Option<Known> {
    drivers.find(|driver| reclaim::is_of(volume, driver))
}

impl State {
    fn see_go(&mut self, gone: &Gone, driver: &str, classes: &Cache, honor: bool) {
        let Gone { volume, unheard } = gone;
        let class: Option<Key> = class_of(volume).map(|class| ("".into(), class.into()));
        let class = class.and_then(|key| classes.get(&key));
        let seen = reclaim::Seen {
            volume,
            class: class.as_deref(),
            served: self.has_served(volume),
            doomed: false,
            written: false,
        };
        let was_deleted = self.deleted.remove(uid(volume));
        // Where nobody said how it was in the end, its policy may have become another: the server is asked before anything is deleted.
        let doomed = reclaim::vanished(&seen, driver, honor).filter(|_| !was_deleted);
        let doomed = doomed.map(|doomed| Doomed { gone: !unheard, ..doomed });
        match (self.deleting.get_mut(uid(volume)), doomed) {
            (Some(went), doomed) => *went = doomed,
            (None, Some(doomed)) => drop(self.vanished.insert(name(volume).to_owned(), doomed)),
            (None, None) => {}
        }
        if self.gone.len() >= GONE_MAX {
            self.gone.clear();
        }
        if !unheard {
            self.gone.insert(uid(volume).to_owned());
        }
        self.served.remove(uid(volume));
        self.said.remove(name(volume));
    }

    fn has_served(&self, volume: &Value) -> bool {
        let claim = volume.text(&["spec", "claimRef", "uid"]);
        self.served.get(uid(volume)).is_some_and(|served| served == claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    /// Volumes of others are many, and nobody would ever take them out again.
    #[tokio::test]
    async fn nothing_is_kept_of_volumes_of_others() {
        let drivers = Drivers::start(&[], &csi::Metrics::default(), &TaskTracker::new(), &CancellationToken::new());
        let notes = Notes::new(true);
        let volume = Arc::new(json!({
            "metadata": {"name": "v", "uid": "u"}, "status": {"phase": "Bound"},
            "spec": {"claimRef": {"uid": "c"}, "csi": {"driver": "nobody.example.com", "volumeHandle": "h"}},
        }));
        let bound = Changed { before: None, after: Some(volume), last_state_unknown: false };
        notes.see(&bound, &drivers, &Cache::default());
        assert!(notes.lock().served.is_empty());
    }
}
