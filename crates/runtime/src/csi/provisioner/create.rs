//! Making volumes: written down first, then asked for, then saved.

use super::Control;
use crate::csi::drivers::Known;
use crate::csi::remote::Secrets;
use crate::csi::secrets;
use kit::api::ApiError;
use object::Value;
use object::access::{Access, name, namespace, uid};
use object::json;
use object::kinds::volumes::class_of;
use plan::csi::cloning::{self, Start};
use plan::csi::journal::Entry;
use plan::csi::outcome::{Created, Outcome};
use plan::csi::provision::{self, Intent, Step};
use plan::csi::reclaim;
use plan::csi::topology::Cluster;
use plan::csi::{Code, Event, Failure, SELECTED_NODE};
use std::sync::Arc;
use std::time::Duration;

/// How often it is tried to delete what is not what was asked for, before it is asked for again.
const DISCARD_ATTEMPTS: usize = 5;
/// What an attempt depends on when it repeats what is written down: nothing that could change.
const WRITTEN_DOWN: &str = "written down";

type Again = Result<Option<Duration>, ApiError>;

/// Whether a volume object is what came of an intent.
pub fn is_of(volume: &Value, intent: &Intent) -> bool {
    let source = plan::csi::csi_source(volume);
    source.is_some_and(|(driver, _)| driver == intent.driver)
        && volume.text(&["spec", "claimRef", "uid"]) == intent.claim().text(&["uid"])
}

impl Control {
    /// Looks at a claim that has no volume, and asks for one if it is our turn.
    pub(super) async fn provision(&self, volume: &str) -> Again {
        let Some(claim) = self.sight.claim_of(volume) else {
            self.attempts.forget(&volume.to_owned());
            self.notes.end(volume);
            return Ok(None);
        };
        let Some(known) = provision::wanted_driver(&claim).and_then(|driver| self.driver(driver)) else {
            return Ok(None);
        };
        if !self.journal.is_current() {
            // It was met a moment ago.
            return Ok(Some(Duration::ZERO));
        }
        let mut class = self.sight.class(class_of(&claim).unwrap_or(""));
        if let Some(wait) = self.attempts.remaining(&volume.to_owned(), &basis(&claim, class.as_deref())) {
            return Ok(Some(wait));
        }
        if class.is_none() {
            // Whoever sent the claim here has seen its class: we may be a moment behind.
            class = self.find_class(&claim).await?;
        }
        let basis = basis(&claim, class.as_deref());
        let driver = match known.remote.about().await {
            Ok(driver) => driver,
            Err(failure) => {
                return Ok(Some(self.fail(&claim_reference(&claim), volume, &basis, &known, &failure.into(), false)));
            }
        };
        let step = self.plan(&claim, class.as_deref(), &driver).await?;
        match step {
            Step::Nothing => Ok(None),
            Step::Leave(event) => {
                self.tell_claim(&claim_reference(&claim), &event);
                Ok(None)
            }
            Step::Failed(why) => {
                Ok(Some(self.fail(&claim_reference(&claim), volume, &basis, &known, &Why::of(why), false)))
            }
            Step::Reschedule(why) => self.reschedule(&claim_reference(&claim), &why).await,
            Step::HoldSource(patch) => {
                let Start::Claim(source) = cloning::start(&claim) else { return Ok(None) };
                let answer = self.api.merge(&self.claims.object(namespace(&claim), source), &patch).await?;
                self.sight.claims.wrote(answer);
                Ok(Some(Duration::ZERO))
            }
            Step::Create(intent) => self.begin(*intent, &basis, &known).await,
        }
    }

    async fn find_class(&self, claim: &Value) -> Result<Option<Arc<Value>>, ApiError> {
        match class_of(claim) {
            None | Some("") => Ok(None),
            Some(class) => Ok(self.api.find(&crate::csi::classes().object("", class)).await?),
        }
    }

    async fn plan(&self, claim: &Value, class: Option<&Value>, driver: &plan::csi::Driver) -> Result<Step, ApiError> {
        let wanted = claim.text(&["spec", "volumeAttributesClassName"]);
        let attributes_class = if wanted.is_empty() {
            None
        } else {
            self.api.find_if_served(&crate::csi::attributes_classes().object("", wanted)).await?
        };
        let source = match cloning::start(claim) {
            Start::Claim(source) => self.sight.claims.get(&(namespace(claim).into(), source.into())),
            _ => None,
        };
        let source_volume = source.as_ref().and_then(|source| self.sight.volume(source.text(&["spec", "volumeName"])));
        let (nodes, csi_nodes) = if driver.can.topology {
            (self.sight.nodes.all(), self.sight.csi_nodes.all())
        } else {
            (Vec::new(), Vec::new())
        };
        let nodes: Vec<&Value> = nodes.iter().map(AsRef::as_ref).collect();
        let csi_nodes: Vec<&Value> = csi_nodes.iter().map(AsRef::as_ref).collect();
        let seen = provision::Seen {
            claim,
            class,
            attributes_class: attributes_class.as_deref(),
            source: source.as_deref(),
            source_volume: source_volume.as_deref(),
            cluster: Cluster { nodes: &nodes, csi_nodes: &csi_nodes },
        };
        Ok(provision::plan(&seen, driver))
    }

    /// Writes an intent down and asks the driver for the first time.
    async fn begin(&self, intent: Intent, basis: &str, known: &Known) -> Again {
        let volume = intent.request.name.clone();
        let fail = |why: Why| self.fail(intent.claim(), &volume, basis, known, &why, intent.request.source.is_some());
        let Some(secrets) = secrets::read(&self.api, intent.request.secret.as_ref()).await? else {
            let missing = intent.request.secret.as_ref().map(secrets::missing).unwrap_or_default();
            return Ok(Some(fail(Why::of(missing))));
        };
        // A driver that is not there was not asked: nothing needs to be written down for it.
        if let Err(failure) = known.remote.check().await {
            return Ok(Some(fail(failure.into())));
        }
        if !self.is_still_wanted(&intent).await? {
            return Ok(None);
        }
        // It may be the same backend.
        if self.journal.set_aside(&volume).iter().any(|(_, doomed)| doomed.driver == intent.driver) {
            return Ok(Some(fail(Why::of(format!("an earlier volume {volume} is still being deleted")))));
        }
        self.notes.begin(&volume);
        if let Err(error) = self.journal.record(&volume, Entry::Create(Box::new(intent.clone()))).await {
            return Ok(Some(fail(Why::of(format!("it cannot be written down that the volume is wanted: {error}")))));
        }
        self.ask(&intent, secrets, basis, known).await
    }

    /// Whether the claim is there and still has no volume. What is heard of claims and volumes comes apart: where the claim was heard last
    /// before it was bound, and the volume has been deleted since, it would be made a second time, for nobody.
    async fn is_still_wanted(&self, intent: &Intent) -> Result<bool, ApiError> {
        let text = |field| intent.claim().text(&[field]);
        let live = self.api.find(&self.claims.object(text("namespace"), text("name"))).await?;
        match live.filter(|claim| uid(claim) == text("uid")) {
            Some(claim) => {
                let wanted = claim.text(&["spec", "volumeName"]).is_empty();
                self.sight.claims.wrote(claim);
                Ok(wanted)
            }
            None => {
                self.sight.claims.gone(&(text("namespace").into(), text("name").into()), text("uid"));
                Ok(false)
            }
        }
    }

    /// Goes on with what is written down.
    pub(super) async fn resume(&self, intent: &Intent) -> Again {
        let volume = &intent.request.name;
        let Some(known) = self.driver(&intent.driver) else { return Ok(None) };
        if let Some(made) = self.notes.made(volume) {
            return self.save(intent, made, WRITTEN_DOWN, &known).await;
        }
        if self.notes.is_doubted(volume)
            && let Some(last) = self.end_of(intent).await?
        {
            return self.bury(intent, &last).await;
        }
        if let Some(wait) = self.attempts.remaining(volume, WRITTEN_DOWN) {
            return Ok(Some(wait));
        }
        let Some(secrets) = secrets::read(&self.api, intent.request.secret.as_ref()).await? else {
            if !self.is_claimed(intent).await? {
                return self.ask_without_secret(intent, &known).await;
            }
            let missing = intent.request.secret.as_ref().map(secrets::missing).unwrap_or_default();
            let copies = intent.request.source.is_some();
            return Ok(Some(self.fail(intent.claim(), volume, WRITTEN_DOWN, &known, &Why::of(missing), copies)));
        };
        self.ask(intent, secrets, WRITTEN_DOWN, &known).await
    }

    /// Whether the claim that a volume was asked for is there, as the server says.
    async fn is_claimed(&self, intent: &Intent) -> Result<bool, ApiError> {
        let text = |field| intent.claim().text(&[field]);
        let found = self.api.find(&self.claims.object(text("namespace"), text("name"))).await?;
        Ok(found.is_some_and(|claim| uid(&claim) == text("uid")))
    }

    /// Claim and secret are gone, mostly with their namespace: the driver is asked without, as for a deletion. What it refuses then says
    /// nothing about what it has made before, so that stays written down. But a source need not wait for it.
    async fn ask_without_secret(&self, intent: &Intent, known: &Known) -> Again {
        let volume = &intent.request.name;
        let failure = match known.remote.create(&intent.request, Secrets::new()).await {
            Err(failure) => failure,
            created => return self.heed(intent, created, Secrets::new(), WRITTEN_DOWN, known).await,
        };
        if failure.code.leaves_open() {
            // It may have made the volume: no refusal that comes later says otherwise.
            self.notes.doubt(volume);
        } else if self.notes.frees_source(volume) {
            self.wake_sources();
        }
        let copies = intent.request.source.is_some();
        Ok(Some(self.fail(intent.claim(), volume, WRITTEN_DOWN, known, &failure.into(), copies)))
    }

    /// Whether what was written down in an earlier life was done, and its end has come too: how the object was when it went. To go on would
    /// bring it back. Where the claim is there, another volume is wanted anyway.
    async fn end_of(&self, intent: &Intent) -> Result<Option<Value>, ApiError> {
        if self.is_claimed(intent).await? {
            return Ok(None);
        }
        // The volume is younger than the version of the claim that it was made for.
        let since = intent.claim().text(&["resourceVersion"]);
        let last = self.api.last_state(&self.volumes, &intent.request.name, "", since).await?;
        Ok(last.filter(|volume| is_of(volume, intent)))
    }

    /// The object of a volume was there and is gone: the backend stays or follows it, as its policy was in the end.
    async fn bury(&self, intent: &Intent, last: &Value) -> Again {
        let volume = &intent.request.name;
        let seen = reclaim::Seen { volume: last, class: None, served: true, doomed: false, written: false };
        match reclaim::vanished(&seen, &intent.driver, self.notes.honor) {
            Some(doomed) => {
                self.journal.record(volume, Entry::Delete(Box::new(doomed))).await?;
                self.notes.settled(volume);
                self.wake_sources();
                Ok(Some(Duration::ZERO))
            }
            None => {
                self.settle(volume);
                Ok(None)
            }
        }
    }

    async fn ask(&self, intent: &Intent, secrets: Secrets, basis: &str, known: &Known) -> Again {
        let claim = intent.claim();
        let place = format!("{}/{}", claim.text(&["namespace"]), claim.text(&["name"]));
        let message = format!("External provisioner is provisioning volume for claim \"{place}\"");
        self.tell_claim(claim, &Event::normal("Provisioning", message));
        let answer = known.remote.create(&intent.request, secrets.clone()).await;
        self.heed(intent, answer, secrets, basis, known).await
    }

    async fn heed(
        &self,
        intent: &Intent,
        answer: Result<Created, Failure>,
        secrets: Secrets,
        basis: &str,
        known: &Known,
    ) -> Again {
        let (volume, claim) = (&intent.request.name, intent.claim());
        let is_away = answer.as_ref().is_err_and(|failure| failure.code == Code::Unavailable);
        let copies = intent.request.source.is_some();
        match self.notes.judge(intent, answer, (self.steady_clock)()) {
            Outcome::Save(object) => {
                let object = Arc::new(*object);
                self.notes.keep_made(volume, &object);
                self.save(intent, object, basis, known).await
            }
            Outcome::Discard { handle, why } => self.discard(intent, &handle, secrets, &why, known).await,
            Outcome::Open { why } => {
                Ok(Some(self.fail(claim, volume, WRITTEN_DOWN, known, &Why { text: why, is_away }, copies)))
            }
            Outcome::Refused { why, infeasible } => {
                self.settle(volume);
                if infeasible {
                    return Ok(Some(self.rest(claim, volume, basis, known, &why, copies)));
                }
                Ok(Some(self.fail(claim, volume, basis, known, &Why::of(why), copies)))
            }
            Outcome::Reschedule { why } => {
                self.settle(volume);
                self.metrics.provision_failed(intent.class(), copies);
                self.reschedule(claim, &why).await
            }
        }
    }

    /// Nothing is open about a volume any more.
    pub(super) fn settle(&self, volume: &str) {
        let was_copy =
            matches!(self.journal.get(volume), Some(Entry::Create(intent)) if intent.request.source.is_some());
        self.journal.erase(volume);
        self.notes.settled(volume);
        if was_copy {
            self.wake_sources();
        }
    }

    /// What was held as the source of a copy may go.
    fn wake_sources(&self) {
        self.sight.held_sources().into_iter().for_each(|source| self.queue.add(source));
    }

    /// Saves the object of a volume that is there.
    async fn save(&self, intent: &Intent, object: Arc<Value>, basis: &str, known: &Known) -> Again {
        let volume = &intent.request.name;
        // Somebody may have brought it back under another name, or an earlier attempt have been heard.
        let is_first = basis != WRITTEN_DOWN;
        let found = if is_first {
            self.sight.standing_for(&intent.driver, handle(&object)).pop()
        } else {
            self.stand_in(intent, handle(&object)).await?
        };
        let stored = match found {
            Some(found) if name(&found) == volume && is_of(&found, intent) => found,
            Some(other) => return Ok(Some(self.leave_to(intent, &other, known))),
            None => {
                // Or it was heard, and the object has come and gone. Asked in this order, nothing is missed: what is not there any more has
                // gone before the question about its end.
                if !is_first && let Some(last) = self.end_of(intent).await? {
                    return self.bury(intent, &last).await;
                }
                match self.create_object(intent, &object).await? {
                    Ok(stored) => stored,
                    Err(why) => return self.give_up(intent, &object, &why, known).await,
                }
            }
        };
        let took = self.notes.end(volume).map_or(Duration::ZERO, |begun| begun.elapsed());
        self.metrics.provisioned(intent.class(), intent.request.source.is_some(), took);
        self.used();
        self.attempts.forget(volume);
        self.notes.settled(volume);
        self.notes.serves(&stored);
        let succeeded = Event::normal("ProvisioningSucceeded", format!("Successfully provisioned volume {volume}"));
        self.tell_claim(intent.claim(), &succeeded);
        self.sight.volumes.wrote(stored.clone());
        tracing::debug!(volume, basis, "provisioned");
        self.tend(&stored).await
    }

    /// The object as it is stored, or why it never will be.
    async fn create_object(
        &self,
        intent: &Intent,
        object: &Arc<Value>,
    ) -> Result<Result<Arc<Value>, String>, ApiError> {
        let volume = &intent.request.name;
        match self.api.create(&self.volumes.collection(""), object).await {
            Ok(stored) => Ok(Ok(stored)),
            Err(error) if error.is_conflict() => match self.api.find(&self.volumes.object("", volume)).await? {
                Some(found) if handle(&found) == handle(object) && is_of(&found, intent) => Ok(Ok(found)),
                Some(_) => Ok(Err(format!("the name of the volume {volume} is taken by another one"))),
                None => Err(error),
            },
            Err(error) if matches!(error.code(), 400 | 413 | 422) => {
                Ok(Err(format!("the volume object cannot be saved: {error}")))
            }
            // The rest passes: the volume stays, and so does what is written down.
            Err(error) => Err(error),
        }
    }

    async fn give_up(&self, intent: &Intent, object: &Value, why: &str, known: &Known) -> Again {
        let secrets = secrets::read(&self.api, intent.request.secret.as_ref()).await?.unwrap_or_default();
        self.discard(intent, handle(object), secrets, why, known).await
    }

    /// The object that stands for a backend volume, whatever claim it is for by now: who moves a volume to another claim may do so
    /// before it is taken out of what is written down that it is to be made.
    async fn stand_in(&self, intent: &Intent, handle: &str) -> Result<Option<Arc<Value>>, ApiError> {
        let is_it = |volume: &Arc<Value>| plan::csi::csi_source(volume) == Some((intent.driver.as_str(), handle));
        let namesake = self.api.find(&self.volumes.object("", &intent.request.name)).await?;
        Ok(namesake.filter(is_it).or_else(|| self.sight.standing_for(&intent.driver, handle).pop()))
    }

    /// Leaves a backend volume to the object that stands for it.
    fn leave_to(&self, intent: &Intent, object: &Value, known: &Known) -> Duration {
        let volume = &intent.request.name;
        tracing::info!(volume, object = name(object), "an object stands for the backend volume already");
        if self.sight.claim_of(volume).is_some() {
            let why = format!("the driver's volume {} is that of the volume {}", handle(object), name(object));
            return self.begin_anew(intent, &why, known);
        }
        self.attempts.forget(volume);
        self.settle(volume);
        Duration::ZERO
    }

    /// Nothing is left of what was asked for: the claim waits, and is told why.
    fn begin_anew(&self, intent: &Intent, why: &str, known: &Known) -> Duration {
        let volume = &intent.request.name;
        self.settle(volume);
        let class = self.sight.class(intent.class());
        let basis = self.sight.claim_of(volume).map_or_else(String::new, |claim| basis(&claim, class.as_deref()));
        let copies = intent.request.source.is_some();
        self.fail(intent.claim(), volume, &basis, known, &Why::of(why.to_owned()), copies)
    }

    /// Deletes what cannot be used. Until that is done the driver may hold it, and so it stays written down.
    async fn discard(&self, intent: &Intent, handle: &str, secrets: Secrets, why: &str, known: &Known) -> Again {
        let volume = &intent.request.name;
        if let Some(object) = self.stand_in(intent, handle).await? {
            return Ok(Some(self.leave_to(intent, &object, known)));
        }
        let copies = intent.request.source.is_some();
        for _ in 0..DISCARD_ATTEMPTS {
            match known.remote.delete(handle, secrets.clone()).await {
                Ok(()) => return Ok(Some(self.begin_anew(intent, why, known))),
                Err(failure) => {
                    tracing::warn!(volume, handle, %failure, why, "a volume that cannot be used cannot be deleted")
                }
            }
        }
        self.notes.settled(volume);
        self.notes.doubt(volume);
        Ok(Some(self.fail(intent.claim(), volume, WRITTEN_DOWN, known, &Why::of(why.to_owned()), copies)))
    }

    /// Asks for another node: the scheduler selects one when none is.
    async fn reschedule(&self, reference: &Value, why: &str) -> Again {
        let message = format!("failed to provision volume on the selected node: {why}");
        self.tell_claim(reference, &Event::warning("ProvisioningFailed", message));
        let key = (reference.text(&["namespace"]).into(), reference.text(&["name"]).into());
        let Some(claim) = self.sight.claims.get(&key).filter(|claim| uid(claim) == reference.text(&["uid"])) else {
            return Ok(None);
        };
        let version = claim.text(&["metadata", "resourceVersion"]);
        let patch = json!({"metadata": {
            "uid": uid(&claim), "resourceVersion": version, "annotations": {SELECTED_NODE: null},
        }});
        self.patch_claim(&claim, &patch).await?;
        Ok(None)
    }

    /// Tells that an attempt failed; returns when the next one is.
    fn fail(&self, claim: &Value, volume: &str, basis: &str, known: &Known, why: &Why, copies: bool) -> Duration {
        let class = self.class_of(claim);
        let message = format!("failed to provision volume with StorageClass \"{class}\": {}", why.text);
        self.tell_claim(claim, &Event::warning("ProvisioningFailed", message));
        self.metrics.provision_failed(&class, copies);
        self.attempts.failed(&volume.to_owned(), basis, |failures| known.pace.after(failures, why.is_away))
    }

    /// Tells that a request cannot be met; returns when it is made again all the same.
    fn rest(&self, claim: &Value, volume: &str, basis: &str, known: &Known, why: &str, copies: bool) -> Duration {
        let class = self.class_of(claim);
        let message = format!("Volume provisioning failed with infeasible error. Retries will be delayed. {why}");
        self.tell_claim(claim, &Event::warning("ProvisioningFailed", message));
        self.metrics.provision_failed(&class, copies);
        self.attempts.wait(&volume.to_owned(), basis, 0, known.pace.rest);
        known.pace.rest
    }

    /// The class of the claim that a reference names.
    fn class_of(&self, reference: &Value) -> String {
        let key = (reference.text(&["namespace"]).into(), reference.text(&["name"]).into());
        let claim = self.sight.claims.get(&key);
        claim.and_then(|claim| class_of(&claim).map(str::to_owned)).unwrap_or_default()
    }
}

/// Why an attempt failed.
struct Why {
    text: String,
    /// The driver may just be away.
    is_away: bool,
}

impl Why {
    fn of(text: String) -> Why {
        Why { text, is_away: false }
    }
}

impl From<Failure> for Why {
    fn from(failure: Failure) -> Why {
        Why { is_away: failure.code == Code::Unavailable, text: failure.to_string() }
    }
}

fn claim_reference(claim: &Value) -> Value {
    json!({"namespace": namespace(claim), "name": name(claim), "uid": uid(claim)})
}

/// What an attempt depends on: when it changes, the next one need not wait.
fn basis(claim: &Value, class: Option<&Value>) -> String {
    let node = claim.text(&["metadata", "annotations", SELECTED_NODE]);
    let attributes = claim.text(&["spec", "volumeAttributesClassName"]);
    let size = claim.at(&["spec", "resources", "requests", "storage"]).unwrap_or(&Value::Null);
    format!("{} {node} {attributes} {size}", class.map_or("", uid))
}

pub fn handle(volume: &Value) -> &str {
    volume.text(&["spec", "csi", "volumeHandle"])
}
