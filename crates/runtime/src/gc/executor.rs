//! The executor of the garbage collector: reads single objects and sends the requests of a plan.

use super::Collector;
use futures::future::try_join_all;
use kit::api::{ApiError, Resource};
use object::{Value, json};
use plan::gc::{Action, Answer, CollectionPlan, Fact, GraphEvent, Place};
use std::sync::Arc;

/// How many dependents of one owner are orphaned concurrently.
const TOGETHER: usize = 64;

impl Collector {
    /// Executes a plan; returns whether the work must be repeated later.
    pub(super) async fn carry_out(&self, plan: CollectionPlan) -> Result<bool, ApiError> {
        self.apply(plan.gone.into_iter().map(|uid| GraphEvent::Gone(uid, 0)));
        let (drops, rest): (Vec<Action>, Vec<Action>) =
            plan.actions.into_iter().partition(|action| matches!(action, Action::DropOwners { .. }));
        for together in drops.chunks(TOGETHER) {
            try_join_all(together.iter().map(|action| self.act(action))).await?;
        }
        for action in &rest {
            self.act(action).await?;
        }
        Ok(plan.held.is_some_and(|held| held.retries()))
    }

    pub(super) async fn ask(&self, place: &Place) -> Answer {
        let Some(resource) = self.resource(place) else { return Answer::UnknownKind };
        if resource.namespaced && place.namespace.is_empty() {
            return Answer::NeedsNamespace;
        }
        match self.api.metadata(&resource.object(&place.namespace, &place.name)).await {
            Ok(object) => Answer::Found(Fact::of(&place.api_version, &place.kind, &object)),
            Err(error) if error.is_absent() => Answer::NotFound,
            Err(error) => {
                if error.is_not_found() {
                    // The resource is missing, not the object, which says nothing about the object.
                    self.rediscover.notify_one();
                }
                tracing::debug!(%error, %place, "Failed to read an object");
                Answer::Failed
            }
        }
    }

    async fn act(&self, action: &Action) -> Result<(), ApiError> {
        let (Action::Delete { place, .. }
        | Action::DropOwners { place, .. }
        | Action::Unblock { place, .. }
        | Action::RemoveFinalizer { place, .. }
        | Action::Report { place, .. }) = action;
        let Some(resource) = self.resource(place) else {
            // The kind was removed, and its objects with it; or it is served in another version now. An
            // action that removes an owner or a finalizer must not be taken for done.
            let lets_go = matches!(action, Action::DropOwners { .. } | Action::RemoveFinalizer { .. });
            return if lets_go {
                Err(ApiError::stale(format!("{place} is no longer served in this version")))
            } else {
                Ok(())
            };
        };
        match self.send(action, &resource, &resource.object(&place.namespace, &place.name)).await {
            // The object does not exist any more: nothing to do.
            Err(error) if error.is_absent() => Ok(()),
            Err(error) => {
                if error.is_not_found() {
                    // The kind is no longer served in this version, and the object may still exist.
                    self.rediscover.notify_one();
                }
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    async fn send(&self, action: &Action, resource: &Resource, path: &str) -> Result<(), ApiError> {
        match action {
            Action::Delete { .. } => {
                self.api.delete(path, &action.delete_options().unwrap_or_default()).await?;
            }
            Action::RemoveFinalizer { .. } => {
                self.api.merge(path, &action.patch().unwrap_or_default()).await?;
            }
            Action::DropOwners { .. } | Action::Unblock { .. } => {
                self.patch_owners(action, path).await?;
            }
            Action::Report { place, uid, reason, message } => {
                self.context.events.warn(resource, place, uid, reason, message);
            }
        }
        Ok(())
    }

    /// Custom resources do not support strategic merge patches: for them the whole list of owner references
    /// is written.
    async fn patch_owners(&self, action: &Action, path: &str) -> Result<Arc<Value>, ApiError> {
        match self.api.strategic(path, &action.patch().unwrap_or_default()).await {
            Err(error) if error.code() == 415 => {
                let live = self.api.metadata(path).await?;
                let patch = action.merge_patch(&live).unwrap_or_else(|| json!({}));
                self.api.merge(path, &patch).await
            }
            result => result,
        }
    }
}
