//! Doing what is planned: the only writer.

use super::Control;
use super::sight::Kind;
use kit::api::{ApiError, Resource};
use kit::backoff::Backoff;
use kit::cache::Key;
use object::access::{Access, name, terminating, uid};
use object::{Value, json};
use plan::bind::{self, Action, Plan, Target};
use plan::{protect, reclaim};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whether pods still use a volume that is to be recycled is looked at so often. Recycling is rare, and going out of use.
const PODS_PAUSE: Duration = Duration::from_secs(15);
/// Backoff of operations on a volume that failed.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), max: Duration::from_secs(122) };

/// How it goes on with a key.
pub enum Flow {
    Done,
    /// It waits for something, which will wake it.
    Waits,
    /// The world is not the one that was planned for: plan again at once, by what is known now.
    Again,
    Later(Duration),
}

/// What our own writes made of what was seen, by uid.
type Written = HashMap<String, Arc<Value>>;

impl Control {
    /// Carries out a plan about an object.
    pub(super) async fn carry_out(&self, object: &Value, plan: Plan) -> Result<Flow, ApiError> {
        if let Some(provisioner) = &plan.provisioner {
            self.figures.asked_for_volume(object, provisioner);
        }
        let mut written = Written::new();
        for (at, action) in plan.actions.iter().enumerate() {
            let result = match (action, plan.actions.get(at + 1)) {
                (
                    Action::Patch { of, status: false, patch },
                    Some(Action::Patch { of: next, status: true, patch: more }),
                ) if of == next => self.patch_whole(of, patch, more, &mut written).await,
                _ => self.act(object, action, &mut written).await,
            };
            if plan.retroactive {
                self.figures.assigned_default(result.is_ok());
            }
            if let Some(flow) = result? {
                return Ok(flow);
            }
        }
        self.tell_news(object, &plan);
        self.count_outcome(object, &plan);
        Ok(if plan.actions.is_empty() && !plan.events.is_empty() { Flow::Waits } else { Flow::Done })
    }

    fn count_outcome(&self, object: &Value, plan: &Plan) {
        let binds = |action: &Action| {
            matches!(action, Action::Patch { of, patch, .. }
                if !of.is_volume() && patch.has(&["metadata", "annotations", bind::BIND_COMPLETED]))
        };
        if plan.actions.iter().any(binds) {
            self.figures.claim_bound(object);
        }
        let releases = |action: &Action| {
            matches!(action, Action::Patch { of, patch, .. }
                if of.is_volume() && patch.text(&["status", "phase"]) == "Released")
        };
        let is_deleted = object.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
        if is_deleted && !terminating(object) && plan.actions.iter().any(releases) {
            let class = object::kinds::volumes::class_of(object).unwrap_or("");
            let class = self.sight.class(class);
            let plugin = class.as_ref().map_or("N/A", |class| class.text(&["provisioner"]));
            self.figures.deletion_begins(object, plugin.to_owned());
        }
    }

    /// Does one thing. `None`: the next one follows.
    async fn act(&self, object: &Value, action: &Action, written: &mut Written) -> Result<Option<Flow>, ApiError> {
        match action {
            Action::Patch { of, status, patch } => self.patch(of, *status, patch, written).await,
            Action::ConfirmReleased { claim, volume } => self.confirm_released(claim, volume).await,
            Action::ConfirmNoVolume { name } => {
                let found = self.api.find(&self.sight.volumes.resource.object("", name)).await?;
                Ok(found.map(|volume| {
                    self.sight.volumes.cache.wrote(volume);
                    Flow::Again
                }))
            }
            Action::ConfirmVolume { of, version } => {
                let version = written.get(&of.uid).map_or(version.as_str(), |written| version_of(written));
                self.confirm_version(of, version).await
            }
            Action::ConfirmNotRetained { volume, since } => {
                self.confirm_not_retained(object, volume, since, written).await
            }
            Action::ConfirmNoPods { namespace, claim, volume } => {
                self.confirm_no_pods(object, namespace, claim, volume).await
            }
            Action::Provision { class, node, volume, .. } => {
                self.provision(object, class, node.as_deref(), volume, written).await
            }
            Action::Make { class, directory } => {
                let work = self.directories.make(directory.clone());
                let failed = |claim: &Value, error: &str| bind::provision_failed(claim, class, error);
                self.operate("volume_provision", object, work, failed, written).await
            }
            Action::Destroy { directory, .. } => {
                let work = self.directories.destroy(directory.clone());
                self.operate("volume_delete", object, work, reclaim::destroy_failed, written).await
            }
            Action::Scrub { directory, .. } => {
                let work = self.directories.scrub(directory.clone());
                self.operate("volume_recycle", object, work, reclaim::scrub_failed, written).await
            }
            Action::DeleteVolume { of } => self.delete_volume(of).await,
        }
    }

    async fn patch(
        &self,
        of: &Target,
        status: bool,
        patch: &Value,
        written: &mut Written,
    ) -> Result<Option<Flow>, ApiError> {
        // The write before this one may have brought it along.
        let is_there =
            |written: &Arc<Value>| object::patch::merge(&written["status"], &patch["status"]) == written["status"];
        if status && written.get(&of.uid).is_some_and(is_there) {
            return Ok(None);
        }
        let path = self.kind(of).resource.object(&of.namespace, &of.name);
        let path = if status { format!("{path}/status") } else { path };
        self.send_patch(of, &path, patch.clone(), written).await
    }

    /// A write of an object and of its status, which our own server takes at once. Another one passes over the status, and leaves it to the
    /// patch of the status that follows.
    async fn patch_whole(
        &self,
        of: &Target,
        patch: &Value,
        status: &Value,
        written: &mut Written,
    ) -> Result<Option<Flow>, ApiError> {
        let path = self.kind(of).resource.object(&of.namespace, &of.name);
        let mut whole = patch.clone();
        whole.put(&["status"], status["status"].clone());
        self.send_patch(of, &format!("{path}?withStatus=true"), whole, written).await
    }

    async fn send_patch(
        &self,
        of: &Target,
        path: &str,
        mut patch: Value,
        written: &mut Written,
    ) -> Result<Option<Flow>, ApiError> {
        let kind = self.kind(of);
        if let Some(written) = written.get(&of.uid) {
            patch.put(&["metadata", "resourceVersion"], version_of(written));
        }
        match self.api.merge_if_there(path, &patch).await {
            Ok(Some(answer)) => {
                written.insert(of.uid.clone(), answer.clone());
                note(kind, of, answer);
                Ok(None)
            }
            Ok(None) => {
                kind.cache.gone(&key(of), &of.uid);
                Ok(Some(Flow::Again))
            }
            // Somebody else was first. Planning by what we know would only repeat this.
            Err(error) if error.is_conflict() => {
                self.refresh(of).await?;
                Ok(Some(Flow::Again))
            }
            Err(error) => Err(error),
        }
    }

    /// Looks at an object anew.
    async fn refresh(&self, of: &Target) -> Result<Option<Arc<Value>>, ApiError> {
        let kind = self.kind(of);
        let found = self.api.find_promptly(&kind.resource.object(&of.namespace, &of.name)).await?;
        let found = found.filter(|found| uid(found) == of.uid);
        match &found {
            Some(found) => kind.cache.wrote(found.clone()),
            None => kind.cache.gone(&key(of), &of.uid),
        }
        Ok(found)
    }

    async fn confirm_released(&self, claim: &Target, volume: &str) -> Result<Option<Flow>, ApiError> {
        let Some(found) = self.refresh(claim).await? else { return Ok(None) };
        let bound_to = found.text(&["spec", "volumeName"]);
        let is_elsewhere = !bound_to.is_empty() && bound_to != volume;
        Ok((!is_elsewhere).then_some(Flow::Again))
    }

    async fn confirm_version(&self, of: &Target, version: &str) -> Result<Option<Flow>, ApiError> {
        let found = self.refresh(of).await?;
        let is_same = found.is_some_and(|found| found.text(&["metadata", "resourceVersion"]) == version);
        Ok((!is_same).then_some(Flow::Again))
    }

    async fn confirm_not_retained(
        &self,
        volume: &Value,
        of: &Target,
        since: &str,
        written: &mut Written,
    ) -> Result<Option<Flow>, ApiError> {
        let resource = &self.sight.volumes.resource;
        let ends = if since.is_empty() { None } else { self.api.ends(resource, &of.name, since).await? };
        let Some(ends) = ends else {
            self.act_out(reclaim::unconfirmed(volume), written).await?;
            return Ok(Some(Flow::Done));
        };
        if !ends.iter().any(reclaim::was_retained) {
            return Ok(None);
        }
        tracing::warn!(
            volume = of.name,
            "a volume that was retained has come once more; it goes without its directory"
        );
        self.act_out(reclaim::came_late(volume), written).await?;
        self.delete_volume(of).await?;
        Ok(Some(Flow::Done))
    }

    async fn confirm_no_pods(
        &self,
        volume: &Value,
        namespace: &str,
        claim: &str,
        of: &Target,
    ) -> Result<Option<Flow>, ApiError> {
        // Pods that use another claim of that name have another volume.
        if self.sight.claims.cache.get(&(namespace.into(), claim.into())).is_some() {
            return Ok(None);
        }
        let pods = Resource::new("v1", "Pod", "pods", true);
        let mut users = Vec::new();
        let note = |pod: &Arc<Value>| {
            if protect::uses(pod, claim) {
                users.push(format!("{namespace}/{}", name(pod)));
            }
        };
        self.api.each(&pods.collection(namespace), note).await?;
        if users.is_empty() {
            return Ok(None);
        }
        tracing::debug!(volume = of.name, ?users, "recycling waits for pods");
        self.tell_news(volume, &reclaim::still_used(volume, &users));
        Ok(Some(Flow::Later(PODS_PAUSE)))
    }

    async fn provision(
        &self,
        claim: &Value,
        class: &str,
        node: Option<&str>,
        volume: &Value,
        written: &mut Written,
    ) -> Result<Option<Flow>, ApiError> {
        if let Some(left) = self.backoff.remaining(&kit::cache::key(claim), uid(claim)) {
            return Ok(Some(Flow::Later(left)));
        }
        if let Some(node) = node {
            let nodes = Resource::new("v1", "Node", "nodes", false);
            if self.api.find(&nodes.object("", node)).await?.is_none() {
                self.act_out(bind::node_gone(claim), written).await?;
                return Ok(Some(Flow::Done));
            }
        }
        let volumes = &self.sight.volumes;
        match self.api.create(&volumes.resource.collection(""), volume).await {
            Ok(created) => {
                volumes.cache.wrote(created);
                Ok(None)
            }
            // It is there already, as the watch will tell.
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => {
                let refused =
                    std::future::ready(Err(format!("Error creating provisioned PV object for claim: {error}.")));
                let failed = |claim: &Value, error: &str| bind::provision_failed(claim, class, error);
                self.operate("volume_provision", claim, refused, failed, written).await
            }
        }
    }

    /// An operation of our own plugin on an object. When it fails, that is told and it is tried again later.
    async fn operate(
        &self,
        operation: &'static str,
        object: &Value,
        work: impl Future<Output = Result<(), String>>,
        failed: impl Fn(&Value, &str) -> Plan,
        written: &mut Written,
    ) -> Result<Option<Flow>, ApiError> {
        let key = kit::cache::key(object);
        if let Some(left) = self.backoff.remaining(&key, uid(object)) {
            return Ok(Some(Flow::Later(left)));
        }
        let started = Instant::now();
        let result = work.await;
        self.figures.own_operation(operation, started.elapsed(), result.is_ok());
        match result {
            Ok(()) => {
                self.backoff.forget(&key);
                if operation == "volume_provision" {
                    self.tell(&provisioned(object));
                } else {
                    let volume = name(object);
                    let policy = object.text(&["spec", "persistentVolumeReclaimPolicy"]);
                    tracing::info!(volume, policy, "deleted the data of a volume");
                    let told = reclaim::data_deleted(object, operation == "volume_delete");
                    told.events.iter().for_each(|event| self.tell(event));
                }
                Ok(None)
            }
            Err(error) => {
                let pause = self.backoff.failed(&key, uid(object), |failures| BACKOFF.after(failures));
                tracing::warn!(operation, name = %key.1, error, ?pause, "an operation on a volume failed; trying again");
                self.act_out(failed(object, &error), written).await?;
                Ok(Some(Flow::Later(pause)))
            }
        }
    }

    /// Carries out a small plan in the middle of another.
    async fn act_out(&self, plan: Plan, written: &mut Written) -> Result<(), ApiError> {
        for action in &plan.actions {
            let Action::Patch { of, status, patch } = action else { continue };
            self.patch(of, *status, patch, written).await?;
        }
        plan.events.iter().for_each(|event| self.tell(event));
        Ok(())
    }

    async fn delete_volume(&self, of: &Target) -> Result<Option<Flow>, ApiError> {
        let volumes = &self.sight.volumes;
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": of.uid}});
        match self.api.delete(&volumes.resource.object("", &of.name), &options).await {
            Ok(answer) => volumes.cache.deleted(&key(of), &of.uid, answer),
            Err(error) if error.is_absent() => volumes.cache.gone(&key(of), &of.uid),
            // Another one may bear the name by now.
            Err(error) if error.is_conflict() => {
                self.refresh(of).await?;
                return Ok(Some(Flow::Again));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    fn kind(&self, of: &Target) -> &Kind {
        if of.is_volume() { &self.sight.volumes } else { &self.sight.claims }
    }
}

fn provisioned(claim: &Value) -> bind::Event {
    let message = format!("Successfully provisioned volume pvc-{} using {}", uid(claim), reclaim::HOST_PATH);
    bind::Event { about: Target::of(claim), warning: false, reason: "ProvisioningSucceeded", message }
}

fn version_of(object: &Value) -> &str {
    object.text(&["metadata", "resourceVersion"])
}

fn note(kind: &Kind, of: &Target, answer: Arc<Value>) {
    if terminating(&answer) {
        kind.cache.deleted(&key(of), &of.uid, answer);
    } else {
        kind.cache.wrote(answer);
    }
}

fn key(of: &Target) -> Key {
    (of.namespace.as_str().into(), of.name.as_str().into())
}
