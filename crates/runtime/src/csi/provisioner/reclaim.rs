//! Reconciling volumes that have a PV, and deleting volumes by their reclaim policy.

use super::Control;
use super::create::is_of;
use super::informers::{is_at, volume_key};
use crate::csi::drivers::Known;
use crate::csi::remote::Secrets;
use crate::csi::{journal, secrets};
use kit::api::{ApiError, Resource};
use kit::events::EventSubject;
use object::access::{Access, name, terminating, uid};
use object::kinds::volumes::class_of;
use object::{Value, json};
use plan::csi::journal::{Entry, PendingDeletion};
use plan::csi::reclaim::{self, Step};
use plan::csi::{Code, Event, FINALIZER, migration};
use std::time::Duration;
use tokio::time::Instant;

/// How often to check whether another volume of the same name is still being created.
const MAKING: Duration = Duration::from_secs(1);

type Again = Result<Option<Duration>, ApiError>;

impl Control {
    /// Reconciles a volume: its finalizer, its annotation and its deletion.
    pub(super) async fn reconcile_volume(&self, volume: &Value) -> Again {
        let Some(known) = self.drivers.find(|driver| reclaim::is_of(volume, driver)) else { return Ok(None) };
        let driver = known.driver.name.as_str();
        if self.volume_state.has_deleted(uid(volume)) {
            return self.remove(volume).await;
        }
        let class = self.informers.class(class_of(volume).unwrap_or(""));
        let entry = self.journal.get(name(volume));
        let seen = reclaim::Seen {
            volume,
            class: class.as_deref(),
            served: self.volume_state.has_served(volume),
            deletion: self.deletion_key(volume).is_some(),
            written: matches!(entry, Some(Entry::Create(intent)) if is_of(volume, &intent)),
        };
        let plan = reclaim::plan(&seen, driver, self.volume_state.honor);
        if plan.releases_pv && !seen.written {
            // The PV may be deleted at any moment from here on: no journal entry may remain that would create the
            // volume again, perhaps with another policy.
            self.journal.settle(name(volume)).await?;
        }
        if let Step::Left(why) = &plan.step {
            // Record it before the patch that lets the PV be deleted.
            self.record_event_once(volume, Event::warning("VolumeFailedDelete", why.clone()));
        }
        if let Some(patch) = &plan.patch {
            self.patch_volume(volume, patch).await?;
        }
        if seen.written {
            // The volume is created and its annotation says so.
            self.settle(name(volume));
            if plan.releases_pv {
                return Ok(Some(Duration::ZERO));
            }
        }
        if let Some(patch) = &plan.status {
            let path = format!("{}/status", self.volumes.object("", name(volume)));
            self.informers.volumes.wrote(self.api.merge(&path, patch).await?);
        }
        if plan.patch.is_some() {
            // The watch event of this patch requeues the volume.
            return Ok(None);
        }
        self.take(volume, plan.step, &known).await
    }

    async fn take(&self, volume: &Value, step: Step, known: &Known) -> Again {
        match step {
            Step::Nothing | Step::Left(_) => Ok(None),
            Step::JournalDeletion(deletion) => {
                self.journal_deletion(&deletion).await?;
                Ok(Some(Duration::ZERO))
            }
            Step::CancelDeletion => {
                self.forget_deletion(volume);
                Ok(None)
            }
            Step::Delete(deletion) => self.delete(volume, &deletion, known).await,
            Step::Keep(why) => {
                self.record_event_once(volume, Event::warning(reclaim::UNCONFIRMED, why));
                Ok(None)
            }
            Step::Stripped => {
                let handle = migration::handle(volume).unwrap_or_default().into_owned();
                let message = format!(
                    "The finalizer {FINALIZER} was removed by hand while the volume was being deleted: {handle} of {} is kept",
                    known.driver.name
                );
                self.record_event_once(volume, Event::warning("VolumeFailedDelete", message));
                Ok(None)
            }
            Step::Failed(why) => Ok(Some(self.fail_deletion(volume, &why, known, false))),
        }
    }

    /// Deletes a released volume at the driver, and then its PV.
    async fn delete(&self, volume: &Value, deletion: &PendingDeletion, known: &Known) -> Again {
        if let Some(wait) = self.attempts.remaining(&deletion.volume, uid(volume)) {
            return Ok(Some(wait));
        }
        if self.is_used(deletion, terminating(volume)).await? {
            // The claim still uses the volume, so its phase is wrong or old. Requeued when the claim is deleted.
            return Ok(None);
        }
        if known.driver.can.publish
            && let Some(node) = self.informers.attached_to(&deletion.volume)
        {
            let why = format!("persistentvolume {} is still attached to node {node}", deletion.volume);
            self.record_event_once(volume, Event::warning("VolumeFailedDelete", why));
            // Requeued when the VolumeAttachment is deleted.
            return Ok(None);
        }
        // No journal entry may remain that would create the volume again.
        self.journal.settle(&deletion.volume).await?;
        let secrets = self.secrets_of(deletion).await?;
        if !self.is_current(volume).await? {
            return Ok(Some(Duration::ZERO));
        }
        self.volume_state.begin_deletion(deletion);
        let answer = self.call(deletion, known, secrets).await;
        self.volume_state.end_deletion(uid(volume), answer.is_ok());
        if let Err(failure) = answer {
            let is_away = failure.code == Code::Unavailable;
            return Ok(Some(self.fail_deletion(volume, &failure.to_string(), known, is_away)));
        }
        self.attempts.forget(&deletion.volume);
        self.record_data_deleted(deletion);
        self.remove(volume).await
    }

    /// Whether the PV is unchanged on the server: it may have been bound to another claim since, or set to Retain.
    /// Updates the cache.
    async fn is_current(&self, volume: &Value) -> Result<bool, ApiError> {
        let live = self.api.find_promptly(&self.volumes.object("", name(volume))).await?;
        let Some(live) = live.filter(|live| uid(live) == uid(volume)) else {
            self.informers.volumes.gone(&volume_key(name(volume)), uid(volume));
            return Ok(false);
        };
        let version = |volume: &Value| volume.text(&["metadata", "resourceVersion"]).to_owned();
        let is_same = version(&live) == version(volume);
        self.informers.volumes.wrote(live);
        Ok(is_same)
    }

    /// Deletes the PV of a volume that was deleted at the driver.
    async fn remove(&self, volume: &Value) -> Again {
        let (volume_name, volume_uid) = (name(volume), uid(volume));
        let key = volume_key(volume_name);
        if !terminating(volume) {
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": volume_uid}});
            match self.api.delete(&self.volumes.object("", volume_name), &options).await {
                Ok(answer) => self.informers.volumes.deleted(&key, volume_uid, answer),
                Err(error) if error.is_absent() => self.informers.volumes.gone(&key, volume_uid),
                // A conflict is not conclusive: another PV may have the name by now, or the server may only be busy.
                Err(error) => return Err(error),
            }
        }
        if volume.items(&["metadata", "finalizers"]).iter().any(|finalizer| finalizer == FINALIZER) {
            match self.patch_volume(volume, &reclaim::release(volume_uid)).await {
                Err(error) if error.is_absent() => self.informers.volumes.gone(&key, volume_uid),
                result => result?,
            }
        }
        self.forget_deletion(volume);
        Ok(None)
    }

    /// The key of the journal entry that deletes this very PV's volume.
    fn deletion_key(&self, volume: &Value) -> Option<String> {
        let is_it = |key: &String| matches!(self.journal.get(key), Some(Entry::Delete(deletion)) if deletion.uid == uid(volume));
        [name(volume).to_owned(), plan::csi::journal::own_key(uid(volume))].into_iter().find(is_it)
    }

    fn forget_deletion(&self, volume: &Value) {
        if let Some(key) = self.deletion_key(volume) {
            self.journal.erase(&key);
        }
    }

    /// Deletes the volume of a journal entry whose PV no longer exists.
    pub(super) async fn finish(&self, key: &str, deletion: &PendingDeletion) -> Again {
        if self.informers.volume(&deletion.volume).is_some_and(|volume| uid(&volume) == deletion.uid) {
            // The PV exists and is reconciled under its own name.
            return Ok(None);
        }
        let leave = || {
            let (volume, handle) = (&deletion.volume, &deletion.handle);
            tracing::warn!(volume, handle, "volume not deleted: another PersistentVolume references its handle");
            self.journal.erase(key);
            Ok(Some(Duration::ZERO))
        };
        // First: another PV owns this volume handle; its policy applies even after it is deleted.
        if !self.informers.pvs_of_handle(&deletion.driver, &deletion.handle).is_empty() {
            return leave();
        }
        if !deletion.gone {
            return self.decide_unobserved(key, deletion).await;
        }
        let Some(known) = self.driver(&deletion.driver) else { return Ok(None) };
        if key != deletion.volume
            && matches!(self.journal.get(&deletion.volume), Some(Entry::Create(intent)) if intent.driver == deletion.driver)
        {
            // The volume that is being created under this name may be the same one; only its handle will show.
            return Ok(Some(MAKING));
        }
        let attempt = key.to_owned();
        if let Some(wait) = self.attempts.remaining(&attempt, &deletion.uid) {
            return Ok(Some(wait));
        }
        let secrets = self.secrets_of(deletion).await?;
        // The cache may be behind, and the deletion cannot be undone: ask the server.
        let is_same = |volume: &Value| {
            is_at(volume, &deletion.driver) && migration::handle(volume).is_some_and(|handle| handle == deletion.handle)
        };
        let mut is_taken = false;
        self.api.each_promptly(&self.volumes.collection(""), |volume| is_taken |= is_same(volume)).await?;
        // The list took time; PVs that were created meanwhile are in the cache.
        if is_taken || !self.informers.pvs_of_handle(&deletion.driver, &deletion.handle).is_empty() {
            return leave();
        }
        if self.is_used(deletion, true).await? {
            return Ok(None);
        }
        if let Err(failure) = self.call(deletion, &known, secrets).await {
            let about =
                EventSubject { resource: &self.volumes, namespace: "", name: &deletion.volume, uid: &deletion.uid };
            crate::csi::record(&self.events, &about, &Event::warning("VolumeFailedDelete", failure.to_string()));
            let is_away = failure.code == Code::Unavailable;
            return Ok(Some(
                self.attempts.failed(&attempt, &deletion.uid, |failures| known.backoff.after(failures, is_away)),
            ));
        }
        self.attempts.forget(&attempt);
        self.record_data_deleted(deletion);
        self.journal.erase(key);
        Ok(Some(Duration::ZERO))
    }

    /// Decides about a journaled deletion whose PV disappeared: whether its last reclaim policy was still `Delete`.
    async fn decide_unobserved(&self, key: &str, deletion: &PendingDeletion) -> Again {
        // The deletion of a PV that was observed and is to be followed by the volume's has been journaled as `gone`.
        let last = if self.volume_state.saw_deletion(&deletion.uid) { None } else { self.last_state(deletion).await? };
        let seen = last.as_ref().map(|volume| reclaim::Seen {
            volume,
            class: None,
            served: true,
            deletion: true,
            written: false,
        });
        match seen.and_then(|seen| reclaim::vanished(&seen, &deletion.driver, self.volume_state.honor)) {
            Some(_) => {
                let gone = PendingDeletion { gone: true, ..deletion.clone() };
                self.journal.record(key, Entry::Delete(Box::new(gone))).await?;
            }
            None => self.journal.erase(key),
        }
        Ok(Some(Duration::ZERO))
    }

    /// The last state of a PV whose deletion was not observed, from the server's watch history, which is limited.
    async fn last_state(&self, deletion: &PendingDeletion) -> Result<Option<Value>, ApiError> {
        let found = self.api.last_state(&self.volumes, &deletion.volume, &deletion.uid, &deletion.version).await?;
        if found.is_none() {
            let message = format!(
                "The PersistentVolume {} was deleted unobserved, and its last reclaim policy is not known: {} of {} is kept",
                deletion.volume, deletion.handle, deletion.driver
            );
            tracing::warn!("{message}");
            let maps = Resource::new("v1", "ConfigMap", "configmaps", true);
            let about = EventSubject { resource: &maps, namespace: journal::NAMESPACE, name: journal::NAME, uid: "" };
            crate::csi::record(&self.events, &about, &Event::warning("VolumeFailedDelete", message));
        }
        Ok(found)
    }

    /// Asks the server whether the claim still uses the volume, because the deletion cannot be undone.
    async fn is_used(&self, deletion: &PendingDeletion, leaving: bool) -> Result<bool, ApiError> {
        let path = self.claims.object(&deletion.claim_namespace, &deletion.claim_name);
        let claim = self.api.find_promptly(&path).await?;
        Ok(claim.is_some_and(|claim| reclaim::uses(&claim, &deletion.claim_uid, &deletion.volume, leaving)))
    }

    /// Reads the Secret of the deletion. A missing Secret must not block the deletion, so it counts as empty. Read this
    /// before the last check that the volume is still to be deleted: no request may come between that check and the
    /// call.
    async fn secrets_of(&self, deletion: &PendingDeletion) -> Result<Secrets, ApiError> {
        Ok(secrets::read(&self.api, deletion.secret.as_ref()).await?.unwrap_or_default())
    }

    async fn call(
        &self,
        deletion: &PendingDeletion,
        known: &Known,
        secrets: Secrets,
    ) -> Result<(), plan::csi::Failure> {
        let started = Instant::now();
        let answer = known.remote.delete(&deletion.handle, secrets).await;
        match &answer {
            Ok(()) => {
                self.metrics.deleted(&deletion.class, started.elapsed());
                self.used();
            }
            Err(_) => self.metrics.deletion_failed(&deletion.class),
        }
        answer
    }

    /// Records events on PV and claim that say why the data was deleted.
    fn record_data_deleted(&self, deletion: &PendingDeletion) {
        let PendingDeletion { volume, driver, handle, claim_namespace, claim_name, .. } = deletion;
        tracing::info!(%volume, %driver, %handle, namespace = %claim_namespace, claim = %claim_name, policy = "Delete", "deleted the data of a volume");
        let [of_volume, of_claim] = reclaim::data_deleted(deletion);
        let about = EventSubject { resource: &self.volumes, namespace: "", name: volume, uid: &deletion.uid };
        crate::csi::record(&self.events, &about, &of_volume);
        if !deletion.claim_uid.is_empty() {
            let about = EventSubject {
                resource: &self.claims,
                namespace: claim_namespace,
                name: claim_name,
                uid: &deletion.claim_uid,
            };
            crate::csi::record(&self.events, &about, &of_claim);
        }
    }

    fn fail_deletion(&self, volume: &Value, why: &str, known: &Known, is_away: bool) -> Duration {
        self.record_volume_event(volume, &Event::warning("VolumeFailedDelete", why));
        self.attempts.failed(&name(volume).to_owned(), uid(volume), |failures| known.backoff.after(failures, is_away))
    }

    fn record_event_once(&self, volume: &Value, event: Event) {
        if self.volume_state.is_news(name(volume), &event.message) {
            self.record_volume_event(volume, &event);
        }
    }
}
