//! The executor: sends the requests of a plan, each with its precondition, and records their events.

use super::StatefulSetController;
use super::informers::Informer;
use crate::growth::Grant;
use futures::StreamExt;
use futures::future::join_all;
use kit::api::ApiError;
use kit::cache::key;
use object::access::{Access, name, namespace, terminating, uid};
use object::kinds::volumes::BETA_CLASS;
use object::{Value, json};
use plan::gc;
use plan::statefulset::{Action, Lane, SetPlan, Stage};
use std::sync::Arc;

/// Field manager of claims that are brought to the revision of their pod.
const MANAGER: &str = "statefulset-controller";
/// Number of lanes of a set that are executed concurrently.
const IN_FLIGHT_MAX: usize = 64;

/// Attempts to apply an object that was just created, while other controllers update it. The next plan does
/// the rest.
const APPLY_ATTEMPTS: usize = 5;

/// Failed actions, in the order of the plan.
type Failures<'p> = Vec<(&'p Action, ApiError)>;

impl StatefulSetController {
    /// Executes a plan for a set. Unless an action fails, the status is written only if `status_now`.
    pub(super) async fn carry_out(
        &self,
        set: &Value,
        plan: &SetPlan,
        grant: &Grant<'_>,
        status_now: bool,
    ) -> Result<(), ApiError> {
        let mut errors = match self.carry_on(set, plan, grant, status_now).await {
            Ok(()) => Vec::new(),
            Err(errors) => errors,
        };
        for action in &plan.cleanup {
            errors.extend(self.act(set, action).await.err());
        }
        worst(errors)
    }

    /// Executes all but the cleanup.
    async fn carry_on(
        &self,
        set: &Value,
        plan: &SetPlan,
        grant: &Grant<'_>,
        status_now: bool,
    ) -> Result<(), Vec<ApiError>> {
        for action in &plan.prepare {
            self.act(set, action).await.map_err(|error| vec![error])?;
        }
        let mut failures = Failures::new();
        for stage in &plan.stages {
            failures = self.stage(set, stage, grant).await;
            if !failures.is_empty() {
                break;
            }
        }
        let told = failures.iter().map(|(action, error)| (*action, is_news(error).then(|| error.message())));
        let told: Vec<_> = told.collect();
        let failed: Vec<_> = told.iter().map(|(action, message)| (*action, message.as_deref())).collect();
        let written = match plan.status_after(set, &failed) {
            Some(status) if status_now || !failures.is_empty() => {
                self.write_status(&status, plan.status_only_counts(set)).await
            }
            _ => Ok(()),
        };
        let errors: Vec<ApiError> = failures.into_iter().map(|(_, error)| error).chain(written.err()).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    async fn stage<'p>(&self, set: &Value, stage: &'p Stage, grant: &Grant<'_>) -> Failures<'p> {
        let requests = stage.lanes.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let (at_once, bytes) = grant.lanes(requests, IN_FLIGHT_MAX);
        let _sending = self.growth.in_flight(bytes).await;
        let lanes: Vec<_> = stage.lanes.iter().map(|lane| Box::pin(self.lane(set, lane, grant))).collect();
        futures::stream::iter(lanes).buffer_unordered(at_once).concat().await
    }

    async fn lane<'p>(&self, set: &Value, lane: &'p Lane, grant: &Grant<'_>) -> Failures<'p> {
        for step in lane {
            let results = join_all(step.iter().map(|action| self.act(set, action))).await;
            for (action, _) in step.iter().zip(&results).filter(|(_, result)| result.is_ok()) {
                if action.is_growth() {
                    grant.created();
                }
            }
            let failures: Failures =
                step.iter().zip(results).filter_map(|(action, result)| Some((action, result.err()?))).collect();
            if !failures.is_empty() {
                return failures;
            }
        }
        Failures::new()
    }

    async fn act(&self, set: &Value, action: &Action) -> Result<(), ApiError> {
        let result = self.request(set, action).await;
        match &result {
            Ok(()) => action.done(name(set)).iter().for_each(|event| self.record_event(set, event)),
            Err(error) if !is_news(error) => {}
            Err(error) => {
                action.failed(name(set), &error.message()).iter().for_each(|event| self.record_event(set, event));
            }
        }
        result
    }

    async fn request(&self, set: &Value, action: &Action) -> Result<(), ApiError> {
        let informers = &self.informers;
        match action {
            Action::ConfirmSet { uid, generation, leaving } => self.confirm(set, uid, *generation, *leaving).await,
            Action::AdoptPod { pod, uid, resource_version } => {
                self.adopt(&informers.pods, set, pod, (uid, resource_version)).await
            }
            Action::AdoptRevision { revision, uid, resource_version } => {
                self.adopt(&informers.revisions, set, revision, (uid, resource_version)).await
            }
            Action::ReleasePod { pod, uid } => self.release(set, pod, uid).await,
            Action::CreateRevision(revision) => self.create(&informers.revisions, revision).await,
            Action::RenumberRevision { revision, uid, resource_version, number } => {
                let patch = json!({"metadata": {"uid": uid, "resourceVersion": resource_version}, "revision": number});
                self.merge(&informers.revisions, set, revision, uid, &patch).await
            }
            Action::DeleteRevision { revision, uid } => {
                self.delete(&informers.revisions, set, revision, (uid, None)).await
            }
            Action::CreateClaim { claim, applied: true, .. } => {
                self.create_to_apply(&informers.claims, set, claim).await
            }
            Action::CreateClaim { claim, .. } => self.create(&informers.claims, claim).await,
            Action::CheckClaim { patch, .. } => self.check(&informers.claims, set, patch).await,
            Action::ApplyClaim { patch, .. } => self.apply(&informers.claims, set, patch).await,
            Action::OwnClaim { claim, uid, resource_version, owners, .. } => {
                let owners = if owners.is_empty() { Value::Null } else { json!(owners) };
                let metadata = json!({"uid": uid, "resourceVersion": resource_version, "ownerReferences": owners});
                self.merge(&informers.claims, set, claim, uid, &json!({"metadata": metadata})).await
            }
            Action::CreatePod(pod) => self.create(&informers.pods, pod).await,
            Action::LabelPod { pod, uid, resource_version, labels } => {
                let labels: object::Map = labels.iter().map(|(label, value)| (label.clone(), json!(value))).collect();
                let metadata = json!({"uid": uid, "resourceVersion": resource_version, "labels": labels});
                self.merge(&informers.pods, set, pod, uid, &json!({"metadata": metadata})).await
            }
            Action::DeletePod { pod, uid, resource_version, .. } => {
                self.delete(&informers.pods, set, pod, (uid, resource_version.as_deref())).await
            }
        }
    }

    /// Reads the set from the server before anything is adopted or created: it must exist, be unchanged and
    /// have the same deletion state. The garbage collector checks the same.
    async fn confirm(&self, set: &Value, wanted: &str, generation: i64, leaving: bool) -> Result<(), ApiError> {
        let sets = &self.informers.sets;
        let stale = |what: &str| Err(ApiError::stale(format!("{} {what}", name(set))));
        match self.api.find_promptly(&sets.resource.object(namespace(set), name(set))).await? {
            Some(live) if uid(&live) == wanted => {
                let is_same = live.int(&["metadata", "generation"]).unwrap_or(0) == generation;
                let leaves_so = terminating(&live) == leaving && way_out(&live) == way_out(set);
                sets.cache.wrote(live);
                match (leaves_so, is_same) {
                    (false, _) => stale("is being deleted"),
                    (true, false) => stale("has changed since the plan was made"),
                    (true, true) => Ok(()),
                }
            }
            _ => {
                sets.cache.gone(&key(set), wanted);
                stale("is deleted")
            }
        }
    }

    async fn adopt(
        &self,
        kind: &Informer,
        set: &Value,
        object: &str,
        (uid, version): (&str, &str),
    ) -> Result<(), ApiError> {
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": name(set), "uid": object::access::uid(set),
            "controller": true, "blockOwnerDeletion": true,
        });
        // The resourceVersion keeps a delayed request from adopting again what was released or orphaned
        // since.
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": version, "ownerReferences": [owner]}});
        let result = self.api.strategic(&kind.resource.object(namespace(set), object), &patch).await;
        self.keep(kind, set, object, uid, result)
    }

    async fn release(&self, set: &Value, pod: &str, uid: &str) -> Result<(), ApiError> {
        let owner = json!({"$patch": "delete", "uid": object::access::uid(set)});
        let patch = json!({"metadata": {"uid": uid, "ownerReferences": [owner]}});
        let pods = &self.informers.pods;
        let result = self.api.strategic(&pods.resource.object(namespace(set), pod), &patch).await;
        match self.keep(pods, set, pod, uid, result) {
            // The pod is deleted, or has no such owner reference any more: either way it is not owned by the
            // set.
            Err(error) if error.is_not_found() || error.code() == 422 => Ok(()),
            result => result,
        }
    }

    async fn create(&self, kind: &Informer, object: &Value) -> Result<(), ApiError> {
        let created = self.api.create(&kind.resource.collection(namespace(object)), object).await?;
        kind.cache.wrote(created);
        Ok(())
    }

    async fn merge(
        &self,
        kind: &Informer,
        set: &Value,
        object: &str,
        uid: &str,
        patch: &Value,
    ) -> Result<(), ApiError> {
        let result = self.api.merge(&kind.resource.object(namespace(set), object), patch).await;
        self.keep(kind, set, object, uid, result)
    }

    /// Server-side apply as the field manager [`MANAGER`].
    async fn apply(&self, kind: &Informer, set: &Value, object: &Value) -> Result<(), ApiError> {
        let path = kind.resource.object(namespace(set), name(object));
        let result = self.api.apply(&path, MANAGER, object).await;
        self.keep(kind, set, name(object), uid(object), result)
    }

    /// The same as a dry run. The response is an object that is not stored, so it is not cached.
    async fn check(&self, kind: &Informer, set: &Value, object: &Value) -> Result<(), ApiError> {
        let path = kind.resource.object(namespace(set), name(object));
        match self.api.check_apply(&path, MANAGER, object).await {
            Ok(_) => Ok(()),
            refused => self.keep(kind, set, name(object), uid(object), refused),
        }
    }

    /// Creates an object that is applied from then on. An apply could create it as well; but a delayed apply
    /// would change an object of the same name that was created since, because it cannot require that the
    /// object is new.
    async fn create_to_apply(&self, kind: &Informer, set: &Value, object: &Value) -> Result<(), ApiError> {
        let mut bare = object.clone();
        // Labels and annotations set by the create could not be removed by a later apply, so they are left to
        // the apply. The class annotation is an exception: it must take effect from the start, and never
        // changes.
        let class = bare.cut(&["metadata", "annotations"]).and_then(|mut given| given.cut(&[BETA_CLASS]));
        bare.cut(&["metadata", "labels"]);
        if let Some(class) = class {
            bare.put(&["metadata", "annotations", BETA_CLASS], class);
        }
        let mut live = self.api.create(&kind.resource.collection(namespace(object)), &bare).await?;
        let created = uid(&live).to_owned();
        for attempt in 1.. {
            let mut whole = object.clone();
            whole.put(&["metadata", "uid"], created.as_str());
            whole.put(&["metadata", "resourceVersion"], live.text(&["metadata", "resourceVersion"]));
            kind.cache.wrote(live);
            match self.apply(kind, set, &whole).await {
                // Other controllers update a new claim, too, so a conflict is retried.
                Err(error) if error.is_conflict() && attempt < APPLY_ATTEMPTS => {
                    let path = kind.resource.object(namespace(object), name(object));
                    let found = self.api.find(&path).await?.filter(|found| uid(found) == created);
                    live = found.ok_or(error)?;
                }
                result => return result,
            }
        }
        Ok(())
    }

    async fn delete(
        &self,
        kind: &Informer,
        set: &Value,
        object: &str,
        (uid, version): (&str, Option<&str>),
    ) -> Result<(), ApiError> {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
        if let Some(version) = version {
            options["preconditions"]["resourceVersion"] = json!(version);
        }
        let key = (namespace(set).into(), object.into());
        match self.api.delete(&kind.resource.object(namespace(set), object), &options).await {
            Ok(answer) => kind.cache.deleted(&key, uid, answer),
            Err(error) if error.is_absent() => kind.cache.gone(&key, uid),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn write_status(&self, status: &Value, only_counts: bool) -> Result<(), ApiError> {
        let sets = &self.informers.sets;
        let path = format!("{}/status", sets.resource.object(namespace(status), name(status)));
        match self.api.replace(&path, status).await {
            // The counts that the controller wrote itself require no reconcile.
            Ok(stored) if only_counts => {
                sets.cache.wrote_as_known(stored);
                Ok(())
            }
            result => self.keep(sets, status, name(status), uid(status), result),
        }
    }

    /// Stores the response to a write in the cache.
    fn keep(
        &self,
        kind: &Informer,
        set: &Value,
        object: &str,
        uid: &str,
        result: Result<Arc<Value>, ApiError>,
    ) -> Result<(), ApiError> {
        match result {
            Ok(stored) => {
                kind.cache.wrote(stored);
                Ok(())
            }
            Err(error) => {
                if error.is_absent() {
                    kind.cache.gone(&(namespace(set).into(), object.into()), uid);
                }
                Err(error)
            }
        }
    }
}

/// Whether the dependents of a terminating set are orphaned or deleted in the foreground.
fn way_out(set: &Value) -> [bool; 2] {
    let has = |wanted| set.items(&["metadata", "finalizers"]).iter().any(|finalizer| finalizer == wanted);
    [has(gc::ORPHAN), has(gc::FOREGROUND)]
}

/// Whether an error is worth an event. A stale cache is not: the next reconcile uses newer objects.
fn is_news(error: &ApiError) -> bool {
    !error.is_stale() && !error.is_namespace_ending()
}

/// The error to report: one other than a stale cache, if there is one.
fn worst(errors: Vec<ApiError>) -> Result<(), ApiError> {
    match errors.into_iter().min_by_key(ApiError::is_stale) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
