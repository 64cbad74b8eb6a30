//! Creating volumes: the intent is journaled first, then the driver is called, then the PV is saved.

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

/// Attempts to delete a volume that does not match its request, before CreateVolume is called again.
const DISCARD_ATTEMPTS: usize = 5;
/// The basis of an attempt that repeats a journaled request. The request never changes, so neither does the basis.
const JOURNALED: &str = "journaled";

type Again = Result<Option<Duration>, ApiError>;

/// Whether a PV is the result of an intent.
pub fn is_of(volume: &Value, intent: &Intent) -> bool {
    let source = plan::csi::csi_source(volume);
    source.is_some_and(|(driver, _)| driver == intent.driver)
        && volume.text(&["spec", "claimRef", "uid"]) == intent.claim().text(&["uid"])
}

impl Control {
    /// Reconciles a claim that has no volume, and begins to create one if one of our drivers is to do so.
    pub(super) async fn provision(&self, volume: &str) -> Again {
        let Some(claim) = self.informers.claim_of(volume) else {
            self.attempts.forget(&volume.to_owned());
            self.volume_state.end(volume);
            return Ok(None);
        };
        let Some(known) = provision::wanted_driver(&claim).and_then(|driver| self.driver(driver)) else {
            return Ok(None);
        };
        if !self.journal.is_current() {
            // The driver responded for the first time just now; the journal is read again before it is used.
            return Ok(Some(Duration::ZERO));
        }
        let mut class = self.informers.class(class_of(&claim).unwrap_or(""));
        if let Some(wait) = self.attempts.remaining(&volume.to_owned(), &basis(&claim, class.as_deref())) {
            return Ok(Some(wait));
        }
        if class.is_none() {
            // The claim named its class when it was queued, so our cache of classes may be behind: ask the server.
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
                self.record_claim_event(&claim_reference(&claim), &event);
                Ok(None)
            }
            Step::Failed(why) => {
                Ok(Some(self.fail(&claim_reference(&claim), volume, &basis, &known, &Why::of(why), false)))
            }
            Step::Reschedule(why) => self.reschedule(&claim_reference(&claim), &why).await,
            Step::HoldSource(patch) => {
                let Start::Claim(source) = cloning::start(&claim) else { return Ok(None) };
                let answer = self.api.merge(&self.claims.object(namespace(&claim), source), &patch).await?;
                self.informers.claims.wrote(answer);
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
            Start::Claim(source) => self.informers.claims.get(&(namespace(claim).into(), source.into())),
            _ => None,
        };
        let source_volume =
            source.as_ref().and_then(|source| self.informers.volume(source.text(&["spec", "volumeName"])));
        let (nodes, csi_nodes) = if driver.can.topology {
            (self.informers.nodes.all(), self.informers.csi_nodes.all())
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

    /// Journals an intent and calls the driver for the first time.
    async fn begin(&self, intent: Intent, basis: &str, known: &Known) -> Again {
        let volume = intent.request.name.clone();
        let fail = |why: Why| self.fail(intent.claim(), &volume, basis, known, &why, intent.request.source.is_some());
        let Some(secrets) = secrets::read(&self.api, intent.request.secret.as_ref()).await? else {
            let missing = intent.request.secret.as_ref().map(secrets::missing).unwrap_or_default();
            return Ok(Some(fail(Why::of(missing))));
        };
        // A driver that does not respond has not been called, so nothing needs to be journaled for it.
        if let Err(failure) = known.remote.check().await {
            return Ok(Some(fail(failure.into())));
        }
        if !self.is_still_wanted(&intent).await? {
            return Ok(None);
        }
        // The driver may give the new volume the same handle.
        if self.journal.earlier_deletions(&volume).iter().any(|(_, deletion)| deletion.driver == intent.driver) {
            return Ok(Some(fail(Why::of(format!("an earlier volume {volume} is still being deleted")))));
        }
        self.volume_state.begin(&volume);
        if let Err(error) = self.journal.record(&volume, Entry::Create(Box::new(intent.clone()))).await {
            return Ok(Some(fail(Why::of(format!("cannot write the CSI journal: {error}")))));
        }
        self.ask(&intent, secrets, basis, known).await
    }

    /// Asks the server whether the claim still exists and has no volume. Watches of claims and volumes are not in step:
    /// with a claim seen before it was bound, and its volume already deleted, a second volume would be created that no
    /// claim wants.
    async fn is_still_wanted(&self, intent: &Intent) -> Result<bool, ApiError> {
        let text = |field| intent.claim().text(&[field]);
        let live = self.api.find(&self.claims.object(text("namespace"), text("name"))).await?;
        match live.filter(|claim| uid(claim) == text("uid")) {
            Some(claim) => {
                let wanted = claim.text(&["spec", "volumeName"]).is_empty();
                self.informers.claims.wrote(claim);
                Ok(wanted)
            }
            None => {
                self.informers.claims.gone(&(text("namespace").into(), text("name").into()), text("uid"));
                Ok(false)
            }
        }
    }

    /// Continues a journaled request.
    pub(super) async fn resume(&self, intent: &Intent) -> Again {
        let volume = &intent.request.name;
        let Some(known) = self.driver(&intent.driver) else { return Ok(None) };
        if let Some(made) = self.volume_state.made(volume) {
            return self.save(intent, made, JOURNALED, &known).await;
        }
        if self.volume_state.is_uncertain(volume)
            && let Some(last) = self.last_state_of(intent).await?
        {
            return self.finish_deleted(intent, &last).await;
        }
        if let Some(wait) = self.attempts.remaining(volume, JOURNALED) {
            return Ok(Some(wait));
        }
        let Some(secrets) = secrets::read(&self.api, intent.request.secret.as_ref()).await? else {
            if !self.is_claimed(intent).await? {
                return self.ask_without_secret(intent, &known).await;
            }
            let missing = intent.request.secret.as_ref().map(secrets::missing).unwrap_or_default();
            let copies = intent.request.source.is_some();
            return Ok(Some(self.fail(intent.claim(), volume, JOURNALED, &known, &Why::of(missing), copies)));
        };
        self.ask(intent, secrets, JOURNALED, &known).await
    }

    /// Asks the server whether the claim of a request still exists.
    async fn is_claimed(&self, intent: &Intent) -> Result<bool, ApiError> {
        let text = |field| intent.claim().text(&[field]);
        let found = self.api.find(&self.claims.object(text("namespace"), text("name"))).await?;
        Ok(found.is_some_and(|claim| uid(&claim) == text("uid")))
    }

    /// Claim and Secret were deleted, usually with their namespace: the driver is called without the Secret, as for a
    /// deletion. A refusal then says nothing about volumes that earlier calls created, so the journal entry stays. The
    /// source of a copy need not wait for it.
    async fn ask_without_secret(&self, intent: &Intent, known: &Known) -> Again {
        let volume = &intent.request.name;
        let failure = match known.remote.create(&intent.request, Secrets::new()).await {
            Err(failure) => failure,
            created => return self.handle_create_response(intent, created, Secrets::new(), JOURNALED, known).await,
        };
        if failure.code.leaves_open() {
            // The driver may have created the volume; no later refusal can rule that out.
            self.volume_state.mark_uncertain(volume);
        } else if self.volume_state.frees_source(volume) {
            self.wake_sources();
        }
        let copies = intent.request.source.is_some();
        Ok(Some(self.fail(intent.claim(), volume, JOURNALED, known, &failure.into(), copies)))
    }

    /// Whether a journaled CreateVolume completed before a restart and its PV was deleted since: returns the PV's last
    /// state. Continuing would create the volume again. `None` if the claim exists, because then it needs a volume
    /// anyway.
    async fn last_state_of(&self, intent: &Intent) -> Result<Option<Value>, ApiError> {
        if self.is_claimed(intent).await? {
            return Ok(None);
        }
        // The PV was created after this version of the claim.
        let since = intent.claim().text(&["resourceVersion"]);
        let last = self.api.last_state(&self.volumes, &intent.request.name, "", since).await?;
        Ok(last.filter(|volume| is_of(volume, intent)))
    }

    /// Handles a PV that was created and deleted while the journal entry was open. Its last reclaim policy decides
    /// whether the volume is deleted too.
    async fn finish_deleted(&self, intent: &Intent, last: &Value) -> Again {
        let volume = &intent.request.name;
        let seen = reclaim::Seen { volume: last, class: None, served: true, deletion: false, written: false };
        match reclaim::vanished(&seen, &intent.driver, self.volume_state.honor) {
            Some(deletion) => {
                self.journal.record(volume, Entry::Delete(Box::new(deletion))).await?;
                self.volume_state.settled(volume);
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
        self.record_claim_event(claim, &Event::normal("Provisioning", message));
        let answer = known.remote.create(&intent.request, secrets.clone()).await;
        self.handle_create_response(intent, answer, secrets, basis, known).await
    }

    async fn handle_create_response(
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
        match self.volume_state.classify(intent, answer, (self.steady_clock)()) {
            Outcome::Save(object) => {
                let object = Arc::new(*object);
                self.volume_state.keep_made(volume, &object);
                self.save(intent, object, basis, known).await
            }
            Outcome::Discard { handle, why } => self.discard(intent, &handle, secrets, &why, known).await,
            Outcome::Open { why } => {
                Ok(Some(self.fail(claim, volume, JOURNALED, known, &Why { text: why, is_away }, copies)))
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

    /// Ends an intent: no CreateVolume call for this volume is open.
    pub(super) fn settle(&self, volume: &str) {
        let was_copy =
            matches!(self.journal.get(volume), Some(Entry::Create(intent)) if intent.request.source.is_some());
        self.journal.erase(volume);
        self.volume_state.settled(volume);
        if was_copy {
            self.wake_sources();
        }
    }

    /// Requeues claims that exist only because they are sources of copies.
    fn wake_sources(&self) {
        self.informers.held_sources().into_iter().for_each(|source| self.queue.add(source));
    }

    /// Saves the PV of a volume that the driver created.
    async fn save(&self, intent: &Intent, object: Arc<Value>, basis: &str, known: &Known) -> Again {
        let volume = &intent.request.name;
        // A user may have saved the volume under another PV name, or an earlier attempt may have saved it although its
        // response was lost.
        let is_first = basis != JOURNALED;
        let found = if is_first {
            self.informers.pvs_of_handle(&intent.driver, handle(&object)).pop()
        } else {
            self.find_pv_of_handle(intent, handle(&object)).await?
        };
        let stored = match found {
            Some(found) if name(&found) == volume && is_of(&found, intent) => found,
            Some(other) => return Ok(Some(self.end_for_other_pv(intent, &other, known))),
            None => {
                // Or the PV was saved and deleted since. In this order no case is missed: a PV that the read above did
                // not find was deleted before its history is read.
                if !is_first && let Some(last) = self.last_state_of(intent).await? {
                    return self.finish_deleted(intent, &last).await;
                }
                match self.create_object(intent, &object).await? {
                    Ok(stored) => stored,
                    Err(why) => return self.give_up(intent, &object, &why, known).await,
                }
            }
        };
        let took = self.volume_state.end(volume).map_or(Duration::ZERO, |begun| begun.elapsed());
        self.metrics.provisioned(intent.class(), intent.request.source.is_some(), took);
        self.used();
        self.attempts.forget(volume);
        self.volume_state.settled(volume);
        self.volume_state.serves(&stored);
        let succeeded = Event::normal("ProvisioningSucceeded", format!("Successfully provisioned volume {volume}"));
        self.record_claim_event(intent.claim(), &succeeded);
        self.informers.volumes.wrote(stored.clone());
        tracing::debug!(volume, basis, "provisioned");
        self.reconcile_volume(&stored).await
    }

    /// Creates the PV. Returns the stored object, or why it can never be stored.
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
                Some(_) => Ok(Err(format!("another PersistentVolume is named {volume}"))),
                None => Err(error),
            },
            Err(error) if matches!(error.code(), 400 | 413 | 422) => {
                Ok(Err(format!("cannot save the PersistentVolume: {error}")))
            }
            // Other errors are temporary: volume and journal entry stay.
            Err(error) => Err(error),
        }
    }

    async fn give_up(&self, intent: &Intent, object: &Value, why: &str, known: &Known) -> Again {
        let secrets = secrets::read(&self.api, intent.request.secret.as_ref()).await?.unwrap_or_default();
        self.discard(intent, handle(object), secrets, why, known).await
    }

    /// The PV that references this volume handle, whatever claim it is for: a user may move a volume to another claim
    /// while its intent is still in the journal.
    async fn find_pv_of_handle(&self, intent: &Intent, handle: &str) -> Result<Option<Arc<Value>>, ApiError> {
        let is_it = |volume: &Arc<Value>| plan::csi::csi_source(volume) == Some((intent.driver.as_str(), handle));
        let namesake = self.api.find(&self.volumes.object("", &intent.request.name)).await?;
        Ok(namesake.filter(is_it).or_else(|| self.informers.pvs_of_handle(&intent.driver, handle).pop()))
    }

    /// Ends an intent because another PV references the volume.
    fn end_for_other_pv(&self, intent: &Intent, object: &Value, known: &Known) -> Duration {
        let volume = &intent.request.name;
        tracing::info!(volume, object = name(object), "a PersistentVolume already references this volume handle");
        if self.informers.claim_of(volume).is_some() {
            let why =
                format!("the volume handle {} is already used by PersistentVolume {}", handle(object), name(object));
            return self.restart_provisioning(intent, &why, known);
        }
        self.attempts.forget(volume);
        self.settle(volume);
        Duration::ZERO
    }

    /// Provisions again later, because nothing is left of the first request. An event on the claim says why.
    fn restart_provisioning(&self, intent: &Intent, why: &str, known: &Known) -> Duration {
        let volume = &intent.request.name;
        self.settle(volume);
        let class = self.informers.class(intent.class());
        let basis = self.informers.claim_of(volume).map_or_else(String::new, |claim| basis(&claim, class.as_deref()));
        let copies = intent.request.source.is_some();
        self.fail(intent.claim(), volume, &basis, known, &Why::of(why.to_owned()), copies)
    }

    /// Deletes a volume that cannot be used. Until that succeeds the driver may hold it, so the intent stays in the
    /// journal.
    async fn discard(&self, intent: &Intent, handle: &str, secrets: Secrets, why: &str, known: &Known) -> Again {
        let volume = &intent.request.name;
        if let Some(object) = self.find_pv_of_handle(intent, handle).await? {
            return Ok(Some(self.end_for_other_pv(intent, &object, known)));
        }
        let copies = intent.request.source.is_some();
        for _ in 0..DISCARD_ATTEMPTS {
            match known.remote.delete(handle, secrets.clone()).await {
                Ok(()) => return Ok(Some(self.restart_provisioning(intent, why, known))),
                Err(failure) => {
                    tracing::warn!(volume, handle, %failure, why, "cannot delete a volume that cannot be used; retrying")
                }
            }
        }
        self.volume_state.settled(volume);
        self.volume_state.mark_uncertain(volume);
        Ok(Some(self.fail(intent.claim(), volume, JOURNALED, known, &Why::of(why.to_owned()), copies)))
    }

    /// Removes the claim's selected node, so that the scheduler selects another one.
    async fn reschedule(&self, reference: &Value, why: &str) -> Again {
        let message = format!("failed to provision volume on the selected node: {why}");
        self.record_claim_event(reference, &Event::warning("ProvisioningFailed", message));
        let key = (reference.text(&["namespace"]).into(), reference.text(&["name"]).into());
        let Some(claim) = self.informers.claims.get(&key).filter(|claim| uid(claim) == reference.text(&["uid"])) else {
            return Ok(None);
        };
        let version = claim.text(&["metadata", "resourceVersion"]);
        let patch = json!({"metadata": {
            "uid": uid(&claim), "resourceVersion": version, "annotations": {SELECTED_NODE: null},
        }});
        self.patch_claim(&claim, &patch).await?;
        Ok(None)
    }

    /// Records a failed attempt; returns the backoff.
    fn fail(&self, claim: &Value, volume: &str, basis: &str, known: &Known, why: &Why, copies: bool) -> Duration {
        let class = self.class_of(claim);
        let message = format!("failed to provision volume with StorageClass \"{class}\": {}", why.text);
        self.record_claim_event(claim, &Event::warning("ProvisioningFailed", message));
        self.metrics.provision_failed(&class, copies);
        self.attempts.failed(&volume.to_owned(), basis, |failures| known.backoff.after(failures, why.is_away))
    }

    /// Records a request that the driver calls infeasible; returns the longer delay until it is repeated.
    fn rest(&self, claim: &Value, volume: &str, basis: &str, known: &Known, why: &str, copies: bool) -> Duration {
        let class = self.class_of(claim);
        let message = format!("Volume provisioning failed with infeasible error. Retries will be delayed. {why}");
        self.record_claim_event(claim, &Event::warning("ProvisioningFailed", message));
        self.metrics.provision_failed(&class, copies);
        self.attempts.wait(&volume.to_owned(), basis, 0, known.backoff.rest);
        known.backoff.rest
    }

    /// The class of the claim that a reference names.
    fn class_of(&self, reference: &Value) -> String {
        let key = (reference.text(&["namespace"]).into(), reference.text(&["name"]).into());
        let claim = self.informers.claims.get(&key);
        claim.and_then(|claim| class_of(&claim).map(str::to_owned)).unwrap_or_default()
    }
}

/// Why an attempt failed.
struct Why {
    text: String,
    /// Whether the driver did not respond.
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

/// What an attempt depends on. When it changes, the next attempt does not wait.
fn basis(claim: &Value, class: Option<&Value>) -> String {
    let node = claim.text(&["metadata", "annotations", SELECTED_NODE]);
    let attributes = claim.text(&["spec", "volumeAttributesClassName"]);
    let size = claim.at(&["spec", "resources", "requests", "storage"]).unwrap_or(&Value::Null);
    format!("{} {node} {attributes} {size}", class.map_or("", uid))
}

pub fn handle(volume: &Value) -> &str {
    volume.text(&["spec", "csi", "volumeHandle"])
}
