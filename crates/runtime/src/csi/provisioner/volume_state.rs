//! What the provisioner remembers about volumes between reconciles. It is lost in a crash: what must survive is in the
//! journal or on the objects.

use crate::csi::drivers::{Drivers, Known};
use jiff::Timestamp;
use kit::cache::{Cache, Changed, Key};
use object::Value;
use object::access::{Access, name, uid};
use object::kinds::volumes::class_of;
use plan::csi::Failure;
use plan::csi::journal::PendingDeletion;
use plan::csi::outcome::{self, Created, Outcome, Uncertainty};
use plan::csi::provision::Intent;
use plan::csi::reclaim;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::time::Instant;

pub struct VolumeState {
    /// Whether the reclaim policy is honoured whatever is deleted first, claim or volume (gate HonorPVReclaimPolicy).
    pub honor: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By volume name: whether earlier CreateVolume calls may have succeeded.
    uncertain: HashMap<String, Uncertainty>,
    /// Names of volumes that are copies and whose sources need not wait for them, although the driver has not
    /// last_message whether it made the copy.
    sourceless: HashSet<String>,
    /// By volume name: PVs of volumes that a driver created, but that could not be saved yet.
    made: HashMap<String, Arc<Value>>,
    /// By volume name: when provisioning began.
    begun: HashMap<String, Instant>,
    /// By volume uid: the claim that the volume was created for or seen bound to, until the volume's annotation records
    /// it.
    served: HashMap<String, String>,
    /// By volume uid: volumes whose DeleteVolume call is running. The value is set if the PV was deleted meanwhile: it
    /// is the entry to journal if the call fails.
    deleting: HashMap<String, Option<PendingDeletion>>,
    /// Uids of PVs that still exist although their volume was deleted at the driver.
    deleted: HashSet<String>,
    /// By volume name: PVs that were deleted without our finalizer; the journal entry is still to be written.
    vanished: HashMap<String, PendingDeletion>,
    /// Uids of PVs whose deletion was observed together with their last state.
    gone: HashSet<String>,
    /// PVs deleted before every driver had responded: one of these drivers may own the volume.
    unclaimed: Vec<Gone>,
    /// Last event message per volume, to suppress repeats.
    last_message: HashMap<String, String>,
}

/// A PV that was deleted.
struct Gone {
    /// Its last state, or the last state that was seen.
    volume: Arc<Value>,
    /// The delete event was missed, so the last state is not known.
    last_state_unknown: bool,
}

/// Most deleted PVs to remember. Beyond it the set is cleared, and the server's history answers instead.
const GONE_MAX: usize = 10_000;

impl VolumeState {
    pub fn new(honor: bool) -> VolumeState {
        VolumeState { honor, state: Mutex::default() }
    }

    /// Records what a change of a PV says about it.
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
                self.see_go(
                    Gone { volume: volume.clone(), last_state_unknown: changed.last_state_unknown },
                    drivers,
                    classes,
                );
            }
            (None, None) => {}
        }
    }

    fn see_go(&self, gone: Gone, drivers: &Drivers, classes: &Cache) {
        let mut state = self.lock();
        // Read this first: a driver that responds between the two calls is then found by the second.
        let are_all_met = drivers.are_all_met();
        match responsible(&gone.volume, drivers) {
            Some(known) => state.see_go(&gone, &known.driver.name, classes, self.honor),
            None if are_all_met || state.unclaimed.len() >= GONE_MAX => drop(state.served.remove(uid(&gone.volume))),
            None => state.unclaimed.push(gone),
        }
    }

    /// Processes deleted PVs of drivers that have responded by now; returns the names of all PVs that were waiting.
    pub fn claim(&self, drivers: &Drivers, classes: &Cache) -> Vec<String> {
        let unclaimed = std::mem::take(&mut self.lock().unclaimed);
        let names = unclaimed.iter().map(|gone| name(&gone.volume).to_owned()).collect();
        unclaimed.into_iter().for_each(|gone| self.see_go(gone, drivers, classes));
        names
    }

    pub fn vanished(&self, volume: &str) -> Option<PendingDeletion> {
        self.lock().vanished.get(volume).cloned()
    }
    pub fn all_vanished(&self) -> Vec<PendingDeletion> {
        let state = self.lock();
        state.vanished.values().chain(state.deleting.values().flatten()).cloned().collect()
    }
    pub fn wrote_vanished(&self, deletion: &PendingDeletion) {
        let mut state = self.lock();
        if state.vanished.get(&deletion.volume) == Some(deletion) {
            state.vanished.remove(&deletion.volume);
        }
    }
    pub fn saw_deletion(&self, volume_uid: &str) -> bool {
        self.lock().gone.contains(volume_uid)
    }

    /// Whether the volume was created for the claim that it references, or seen bound to it. Its annotation may not say
    /// so yet.
    pub fn has_served(&self, volume: &Value) -> bool {
        self.lock().has_served(volume)
    }
    pub fn serves(&self, volume: &Value) {
        let claim = volume.text(&["spec", "claimRef", "uid"]).to_owned();
        self.lock().served.insert(uid(volume).to_owned(), claim);
    }

    /// Marks that DeleteVolume is called for a volume, until [`VolumeState::end_deletion`].
    pub fn begin_deletion(&self, deletion: &PendingDeletion) {
        let mut state = self.lock();
        // The PV may have been deleted just now.
        let is_it = state.vanished.get(&deletion.volume).is_some_and(|vanished| vanished.uid == deletion.uid);
        let went = if is_it { state.vanished.remove(&deletion.volume) } else { None };
        state.deleting.insert(deletion.uid.clone(), went);
    }
    pub fn end_deletion(&self, volume_uid: &str, done: bool) {
        let mut state = self.lock();
        let went = state.deleting.remove(volume_uid).flatten();
        match went {
            // Volume and PV are both deleted.
            Some(_) if done => {}
            Some(deletion) => drop(state.vanished.insert(deletion.volume.clone(), deletion)),
            None if done => drop(state.deleted.insert(volume_uid.to_owned())),
            None => {}
        }
    }
    pub fn has_deleted(&self, volume_uid: &str) -> bool {
        self.lock().deleted.contains(volume_uid)
    }

    /// Marks that earlier CreateVolume calls may have been made whose responses are unknown.
    pub fn mark_uncertain(&self, volume: &str) {
        self.lock().uncertain.insert(volume.to_owned(), Uncertainty::open());
    }
    pub fn is_uncertain(&self, volume: &str) -> bool {
        self.lock().uncertain.contains_key(volume)
    }
    pub fn classify(&self, intent: &Intent, answer: Result<Created, Failure>, now: Timestamp) -> Outcome {
        let mut state = self.lock();
        let uncertainty = state.uncertain.entry(intent.request.name.clone()).or_default();
        outcome::classify(intent, answer, uncertainty, now)
    }
    /// Forgets the state of provisioning, because no CreateVolume call is open.
    pub fn settled(&self, volume: &str) {
        let mut state = self.lock();
        state.uncertain.remove(volume);
        state.made.remove(volume);
        state.sourceless.remove(volume);
    }

    /// Marks that the source of a copy need not wait for it; returns whether this is new.
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

    /// Whether the message differs from the last one for this volume. Remembers it.
    pub fn is_news(&self, volume: &str, message: &str) -> bool {
        let before = self.lock().last_message.insert(volume.to_owned(), message.to_owned());
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
        let Gone { volume, last_state_unknown } = gone;
        let class: Option<Key> = class_of(volume).map(|class| ("".into(), class.into()));
        let class = class.and_then(|key| classes.get(&key));
        let seen = reclaim::Seen {
            volume,
            class: class.as_deref(),
            served: self.has_served(volume),
            deletion: false,
            written: false,
        };
        let was_deleted = self.deleted.remove(uid(volume));
        // If the last state is unknown, the policy may have changed: the server is asked before anything is deleted.
        let deletion = reclaim::vanished(&seen, driver, honor).filter(|_| !was_deleted);
        let deletion = deletion.map(|deletion| PendingDeletion { gone: !last_state_unknown, ..deletion });
        match (self.deleting.get_mut(uid(volume)), deletion) {
            (Some(went), deletion) => *went = deletion,
            (None, Some(deletion)) => drop(self.vanished.insert(name(volume).to_owned(), deletion)),
            (None, None) => {}
        }
        if self.gone.len() >= GONE_MAX {
            self.gone.clear();
        }
        if !last_state_unknown {
            self.gone.insert(uid(volume).to_owned());
        }
        self.served.remove(uid(volume));
        self.last_message.remove(name(volume));
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

    /// A cluster has many volumes of other drivers, and no event would ever remove them from the map.
    #[tokio::test]
    async fn volumes_of_other_drivers_are_not_remembered() {
        let drivers = Drivers::start(&[], &csi::Metrics::default(), &TaskTracker::new(), &CancellationToken::new());
        let volume_state = VolumeState::new(true);
        let volume = Arc::new(json!({
            "metadata": {"name": "v", "uid": "u"}, "status": {"phase": "Bound"},
            "spec": {"claimRef": {"uid": "c"}, "csi": {"driver": "nobody.example.com", "volumeHandle": "h"}},
        }));
        let bound = Changed { before: None, after: Some(volume), last_state_unknown: false };
        volume_state.see(&bound, &drivers, &Cache::default());
        assert!(volume_state.lock().served.is_empty());
    }
}
