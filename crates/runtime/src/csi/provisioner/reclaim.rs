//! Looking after volumes that are there, and deleting those that are to go.

use super::Control;
use super::create::is_of;
use super::sight::{is_at, volume_key};
use crate::csi::drivers::Known;
use crate::csi::remote::Secrets;
use crate::csi::{journal, secrets};
use kit::api::{ApiError, Resource};
use kit::events::EventSubject;
use object::access::{Access, name, terminating, uid};
use object::kinds::volumes::class_of;
use object::{Value, json};
use plan::csi::journal::{Doomed, Entry};
use plan::csi::reclaim::{self, Step};
use plan::csi::{Code, Event, FINALIZER, migration};
use std::time::Duration;
use tokio::time::Instant;

/// Whether another volume of the name is still being made is looked at this often.
const MAKING: Duration = Duration::from_secs(1);

type Again = Result<Option<Duration>, ApiError>;

impl Control {
    /// Looks after a volume: its finalizer and record, and its end.
    pub(super) async fn tend(&self, volume: &Value) -> Again {
        let Some(known) = self.drivers.find(|driver| reclaim::is_of(volume, driver)) else { return Ok(None) };
        let driver = known.driver.name.as_str();
        if self.notes.has_deleted(uid(volume)) {
            return self.remove(volume).await;
        }
        let class = self.sight.class(class_of(volume).unwrap_or(""));
        let entry = self.journal.get(name(volume));
        let seen = reclaim::Seen {
            volume,
            class: class.as_deref(),
            served: self.notes.has_served(volume),
            doomed: self.doomed_key(volume).is_some(),
            written: matches!(entry, Some(Entry::Create(intent)) if is_of(volume, &intent)),
        };
        let plan = reclaim::plan(&seen, driver, self.notes.honor);
        if plan.lets_go && !seen.written {
            // The object may go at any moment from then on: nothing may be left written down that would make it again, with another policy.
            self.journal.settle(name(volume)).await?;
        }
        if let Step::Left(why) = &plan.step {
            // While there is something to tell it of.
            self.tell_once(volume, Event::warning("VolumeFailedDelete", why.clone()));
        }
        if let Some(patch) = &plan.patch {
            self.patch_volume(volume, patch).await?;
        }
        if seen.written {
            // Its making is done and on record.
            self.settle(name(volume));
            if plan.lets_go {
                return Ok(Some(Duration::ZERO));
            }
        }
        if let Some(patch) = &plan.status {
            let path = format!("{}/status", self.volumes.object("", name(volume)));
            self.sight.volumes.wrote(self.api.merge(&path, patch).await?);
        }
        if plan.patch.is_some() {
            // What was written comes back as news, and is looked at anew.
            return Ok(None);
        }
        self.take(volume, plan.step, &known).await
    }

    async fn take(&self, volume: &Value, step: Step, known: &Known) -> Again {
        match step {
            Step::Nothing | Step::Left(_) => Ok(None),
            Step::Doom(doomed) => {
                self.write_down(&doomed).await?;
                Ok(Some(Duration::ZERO))
            }
            Step::Spare => {
                self.forget_deletion(volume);
                Ok(None)
            }
            Step::Delete(doomed) => self.delete(volume, &doomed, known).await,
            Step::Keep(why) => {
                self.tell_once(volume, Event::warning(reclaim::UNCONFIRMED, why));
                Ok(None)
            }
            Step::Stripped => {
                let handle = migration::handle(volume).unwrap_or_default().into_owned();
                let message = format!(
                    "The finalizer {FINALIZER} was taken off by hand while the volume was being deleted: {handle} of {} is left as it is",
                    known.driver.name
                );
                self.tell_once(volume, Event::warning("VolumeFailedDelete", message));
                Ok(None)
            }
            Step::Failed(why) => Ok(Some(self.fail_deletion(volume, &why, known, false))),
        }
    }

    /// Deletes a volume that its claim let go of, and then its object.
    async fn delete(&self, volume: &Value, doomed: &Doomed, known: &Known) -> Again {
        if let Some(wait) = self.attempts.remaining(&doomed.volume, uid(volume)) {
            return Ok(Some(wait));
        }
        if self.is_used(doomed, terminating(volume)).await? {
            // The phase is not the binder's word, or is older than the claim: the claim's end brings this back.
            return Ok(None);
        }
        if known.driver.can.publish
            && let Some(node) = self.sight.attached_to(&doomed.volume)
        {
            let why = format!("persistentvolume {} is still attached to node {node}", doomed.volume);
            self.tell_once(volume, Event::warning("VolumeFailedDelete", why));
            // The attachment's end brings this back.
            return Ok(None);
        }
        // Nothing may be left written down that would make it again.
        self.journal.settle(&doomed.volume).await?;
        let secrets = self.secrets_of(doomed).await?;
        if !self.is_current(volume).await? {
            return Ok(Some(Duration::ZERO));
        }
        self.notes.begin_deletion(doomed);
        let answer = self.call(doomed, known, secrets).await;
        self.notes.end_deletion(uid(volume), answer.is_ok());
        if let Err(failure) = answer {
            let is_away = failure.code == Code::Unavailable;
            return Ok(Some(self.fail_deletion(volume, &failure.to_string(), known, is_away)));
        }
        self.attempts.forget(&doomed.volume);
        self.tell_deleted(doomed);
        self.remove(volume).await
    }

    /// Whether a volume is still as it was seen: somebody may have bound it to another claim since, or want its data kept. What is new is
    /// taken in.
    async fn is_current(&self, volume: &Value) -> Result<bool, ApiError> {
        let live = self.api.find_promptly(&self.volumes.object("", name(volume))).await?;
        let Some(live) = live.filter(|live| uid(live) == uid(volume)) else {
            self.sight.volumes.gone(&volume_key(name(volume)), uid(volume));
            return Ok(false);
        };
        let version = |volume: &Value| volume.text(&["metadata", "resourceVersion"]).to_owned();
        let is_same = version(&live) == version(volume);
        self.sight.volumes.wrote(live);
        Ok(is_same)
    }

    /// The backend is gone: so goes the object.
    async fn remove(&self, volume: &Value) -> Again {
        let (volume_name, volume_uid) = (name(volume), uid(volume));
        let key = volume_key(volume_name);
        if !terminating(volume) {
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": volume_uid}});
            match self.api.delete(&self.volumes.object("", volume_name), &options).await {
                Ok(answer) => self.sight.volumes.deleted(&key, volume_uid, answer),
                Err(error) if error.is_absent() => self.sight.volumes.gone(&key, volume_uid),
                // A conflict says nothing for certain: it may be another one's name by now, or only a busy server.
                Err(error) => return Err(error),
            }
        }
        if volume.items(&["metadata", "finalizers"]).iter().any(|finalizer| finalizer == FINALIZER) {
            match self.patch_volume(volume, &reclaim::release(volume_uid)).await {
                Err(error) if error.is_absent() => self.sight.volumes.gone(&key, volume_uid),
                result => result?,
            }
        }
        self.forget_deletion(volume);
        Ok(None)
    }

    /// The key under which the deletion of this very volume is written down.
    fn doomed_key(&self, volume: &Value) -> Option<String> {
        let is_it =
            |key: &String| matches!(self.journal.get(key), Some(Entry::Delete(doomed)) if doomed.uid == uid(volume));
        [name(volume).to_owned(), plan::csi::journal::own_key(uid(volume))].into_iter().find(is_it)
    }

    fn forget_deletion(&self, volume: &Value) {
        if let Some(key) = self.doomed_key(volume) {
            self.journal.erase(&key);
        }
    }

    /// Deletes what was written down under a key, and whose object is gone.
    pub(super) async fn finish(&self, key: &str, doomed: &Doomed) -> Again {
        if self.sight.volume(&doomed.volume).is_some_and(|volume| uid(&volume) == doomed.uid) {
            // Not gone: it is looked after by its name.
            return Ok(None);
        }
        let leave = || {
            let (volume, handle) = (&doomed.volume, &doomed.handle);
            tracing::warn!(volume, handle, "not deleted: another object stands for it now");
            self.journal.erase(key);
            Ok(Some(Duration::ZERO))
        };
        // Before anything else: that one decides from now on, also when it has gone in its turn.
        if !self.sight.standing_for(&doomed.driver, &doomed.handle).is_empty() {
            return leave();
        }
        if !doomed.gone {
            return self.settle_end(key, doomed).await;
        }
        let Some(known) = self.driver(&doomed.driver) else { return Ok(None) };
        if key != doomed.volume
            && matches!(self.journal.get(&doomed.volume), Some(Entry::Create(intent)) if intent.driver == doomed.driver)
        {
            // What is being made by that name may be the same backend: only its handle will tell.
            return Ok(Some(MAKING));
        }
        let attempt = key.to_owned();
        if let Some(wait) = self.attempts.remaining(&attempt, &doomed.uid) {
            return Ok(Some(wait));
        }
        let secrets = self.secrets_of(doomed).await?;
        // What is heard of volumes may be late, and what follows cannot be undone.
        let is_same = |volume: &Value| {
            is_at(volume, &doomed.driver) && migration::handle(volume).is_some_and(|handle| handle == doomed.handle)
        };
        let mut is_taken = false;
        self.api.each_promptly(&self.volumes.collection(""), |volume| is_taken |= is_same(volume)).await?;
        // It took its time; what came since was heard of.
        if is_taken || !self.sight.standing_for(&doomed.driver, &doomed.handle).is_empty() {
            return leave();
        }
        if self.is_used(doomed, true).await? {
            return Ok(None);
        }
        if let Err(failure) = self.call(doomed, &known, secrets).await {
            let about = EventSubject { resource: &self.volumes, namespace: "", name: &doomed.volume, uid: &doomed.uid };
            crate::csi::say(&self.events, &about, &Event::warning("VolumeFailedDelete", failure.to_string()));
            let is_away = failure.code == Code::Unavailable;
            return Ok(Some(
                self.attempts.failed(&attempt, &doomed.uid, |failures| known.pace.after(failures, is_away)),
            ));
        }
        self.attempts.forget(&attempt);
        self.tell_deleted(doomed);
        self.journal.erase(key);
        Ok(Some(Duration::ZERO))
    }

    /// The object of what was written down is gone: whether it was still to be deleted in the end.
    async fn settle_end(&self, key: &str, doomed: &Doomed) -> Again {
        // Those that we saw go and that were to be deleted have been written down as gone.
        let last = if self.notes.has_gone(&doomed.uid) { None } else { self.last_state(doomed).await? };
        let seen = last.as_ref().map(|volume| reclaim::Seen {
            volume,
            class: None,
            served: true,
            doomed: true,
            written: false,
        });
        match seen.and_then(|seen| reclaim::vanished(&seen, &doomed.driver, self.notes.honor)) {
            Some(_) => {
                let gone = Doomed { gone: true, ..doomed.clone() };
                self.journal.record(key, Entry::Delete(Box::new(gone))).await?;
            }
            None => self.journal.erase(key),
        }
        Ok(Some(Duration::ZERO))
    }

    /// How a volume was when it went, while nobody looked: the server remembers for a while.
    async fn last_state(&self, doomed: &Doomed) -> Result<Option<Value>, ApiError> {
        let found = self.api.last_state(&self.volumes, &doomed.volume, &doomed.uid, &doomed.version).await?;
        if found.is_none() {
            let message = format!(
                "The volume {} went while nobody looked, and whether its policy was still Delete is not known: {} of {} is left as it is",
                doomed.volume, doomed.handle, doomed.driver
            );
            tracing::warn!("{message}");
            let maps = Resource::new("v1", "ConfigMap", "configmaps", true);
            let about = EventSubject { resource: &maps, namespace: journal::NAMESPACE, name: journal::NAME, uid: "" };
            crate::csi::say(&self.events, &about, &Event::warning("VolumeFailedDelete", message));
        }
        Ok(found)
    }

    /// Whether the claim still uses the volume: as the server says, because what follows cannot be undone.
    async fn is_used(&self, doomed: &Doomed, leaving: bool) -> Result<bool, ApiError> {
        let path = self.claims.object(&doomed.claim_namespace, &doomed.claim_name);
        let claim = self.api.find_promptly(&path).await?;
        Ok(claim.is_some_and(|claim| reclaim::uses(&claim, &doomed.claim_uid, &doomed.volume, leaving)))
    }

    /// A secret that is gone is done without, as a volume must be able to go. Read before it is asked whether it still is to: nothing may come between
    /// that and the call.
    async fn secrets_of(&self, doomed: &Doomed) -> Result<Secrets, ApiError> {
        Ok(secrets::read(&self.api, doomed.secret.as_ref()).await?.unwrap_or_default())
    }

    async fn call(&self, doomed: &Doomed, known: &Known, secrets: Secrets) -> Result<(), plan::csi::Failure> {
        let started = Instant::now();
        let answer = known.remote.delete(&doomed.handle, secrets).await;
        match &answer {
            Ok(()) => {
                self.metrics.deleted(&doomed.class, started.elapsed());
                self.used();
            }
            Err(_) => self.metrics.deletion_failed(&doomed.class),
        }
        answer
    }

    /// Says that data was deleted, and why, of the volume and of its claim.
    fn tell_deleted(&self, doomed: &Doomed) {
        let Doomed { volume, driver, handle, claim_namespace, claim_name, .. } = doomed;
        tracing::info!(%volume, %driver, %handle, namespace = %claim_namespace, claim = %claim_name, policy = "Delete", "deleted the data of a volume");
        let [of_volume, of_claim] = reclaim::data_deleted(doomed);
        let about = EventSubject { resource: &self.volumes, namespace: "", name: volume, uid: &doomed.uid };
        crate::csi::say(&self.events, &about, &of_volume);
        if !doomed.claim_uid.is_empty() {
            let about = EventSubject {
                resource: &self.claims,
                namespace: claim_namespace,
                name: claim_name,
                uid: &doomed.claim_uid,
            };
            crate::csi::say(&self.events, &about, &of_claim);
        }
    }

    fn fail_deletion(&self, volume: &Value, why: &str, known: &Known, is_away: bool) -> Duration {
        self.tell_volume(volume, &Event::warning("VolumeFailedDelete", why));
        self.attempts.failed(&name(volume).to_owned(), uid(volume), |failures| known.pace.after(failures, is_away))
    }

    fn tell_once(&self, volume: &Value, event: Event) {
        if self.notes.is_news(name(volume), &event.message) {
            self.tell_volume(volume, &event);
        }
    }
}
