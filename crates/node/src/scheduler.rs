//! Runs the scheduler: decides about one pod after the other, and sends many writes concurrently.

use crate::event_recorder::EventRecorder;
use crate::informers::{Informers, State, Watched, confirm_claim};
use crate::scheduling_queue::Work;
use futures::future::try_join_all;
use kit::Clock;
use kit::api::{Api, ApiError};
use object::{Value, json};
use plan::bind::{BOUND_BY_CONTROLLER, SELECTED_NODE};
use plan::schedule::{self, Decision, Key, Step, Unschedulable};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Number of concurrent writes: about as many as one group commit holds.
const WRITES_MAX: usize = 64;

const OVERDUE: &str = "binding volumes: context deadline exceeded";

#[derive(Clone)]
pub struct Scheduler {
    pub informers: Arc<Informers>,
    pub api: Api,
    pub recorder: EventRecorder,
    pub clock: Clock,
}

impl Scheduler {
    /// Schedules pods for ever.
    pub async fn run(self) {
        self.informers.filled().await;
        let writes = Arc::new(Semaphore::new(WRITES_MAX));
        let mut tasks = JoinSet::new();
        loop {
            // Waits for a free slot before deciding, so that the decision uses the newest state.
            let permit = writes.clone().acquire_owned().await.expect("the semaphore is never closed");
            let work = self.next().await;
            if let Some(write) = self.consider(work) {
                let this = self.clone();
                tasks.spawn(async move {
                    this.write(write).await;
                    drop(permit);
                });
            }
            while let Some(ended) = tasks.try_join_next() {
                if let Err(error) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
    }

    async fn next(&self) -> Work {
        loop {
            let wake_at = {
                let mut state = self.informers.lock();
                if let Some(work) = state.queue.next(Instant::now()) {
                    return work;
                }
                state.queue.next_at()
            };
            match wake_at {
                None => self.informers.scheduling.notified().await,
                Some(at) => tokio::select! {
                    biased;
                    () = self.informers.scheduling.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    fn consider(&self, work: Work) -> Option<Write> {
        let mut state = self.informers.lock();
        match work {
            Work::Report(key, message) => {
                let pod = state.cluster.pod(&key)?;
                let (uid, again) = (pod.uid.to_string(), pod.said.is_some());
                Some(Write::Report { key, uid, message, again })
            }
            Work::Schedule(key) => {
                let decision = schedule::decide(&state.cluster, &key);
                state.apply_decision(key, decision)
            }
        }
    }

    async fn write(&self, write: Write) {
        match write {
            Write::Report { key, uid, message, again } => self.report(&key, &uid, &message, again).await,
            Write::Bind { key, uid, node, claims } => {
                let result = self.bind(&key, &uid, &node, &claims).await;
                self.bound(&key, &uid, &node, result);
            }
            Write::Steps { key, node, steps } => {
                let result = self.take_steps(&steps, &node).await;
                let mut state = self.informers.lock();
                match result {
                    Ok(()) => state.queue.await_claims(&key, Instant::now()),
                    Err(error) => state.fail(&key, &error),
                }
            }
        }
        self.informers.scheduling.notify_one();
    }

    async fn bind(&self, key: &Key, uid: &str, node: &str, claims: &[UsedClaim]) -> Result<Arc<Value>, ApiError> {
        // A claim that replaced the known one may wait for this very pod, and no node is selected for it once
        // the pod has one. A terminating claim is about to be replaced: it does not wait for a pod without a
        // node.
        let same = claims.iter().map(|(claim, uid)| {
            confirm_claim(&self.api, claim.clone(), move |live| object::access::uid(live) == &**uid)
        });
        try_join_all(same).await?;
        let path = format!("{}/binding", Watched::Pods.resource().object(&key.0, &key.1));
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": &*key.0, "name": &*key.1, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        self.api.create(&path, &binding).await
    }

    fn bound(&self, key: &Key, uid: &str, node: &str, result: Result<Arc<Value>, ApiError>) {
        let mut state = self.informers.lock();
        match result {
            Ok(_) => {
                state.queue.done(key);
                let message = format!("Successfully assigned {}/{} to {node}", key.0, key.1);
                self.recorder.pod(key, uid, false, "Scheduled", &message);
            }
            // The pod is deleted, and the watch will report it.
            Err(error) if error.is_not_found() => state.queue.done(key),
            Err(error) => state.fail(key, &error),
        }
    }

    async fn take_steps(&self, steps: &[Step], node: &str) -> Result<(), ApiError> {
        for step in steps {
            let (path, patch) = match step {
                Step::Give { volume, volume_version, claim, claim_uid } => (
                    Watched::Volumes.resource().object("", volume),
                    json!({
                        "metadata": {"resourceVersion": volume_version, "annotations": {BOUND_BY_CONTROLLER: "yes"}},
                        "spec": {"claimRef": {
                            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                            "namespace": &*claim.0, "name": &*claim.1, "uid": claim_uid,
                        }},
                    }),
                ),
                Step::Select { claim, claim_version } => (
                    Watched::Claims.resource().object(&claim.0, &claim.1),
                    json!({"metadata": {"resourceVersion": claim_version, "annotations": {SELECTED_NODE: node}}}),
                ),
            };
            self.api.merge(&path, &patch).await?;
        }
        Ok(())
    }

    /// Sets the pod's condition and records an event with the reason why it is unschedulable. `again` keeps
    /// the transition time of the existing condition.
    async fn report(&self, key: &Key, uid: &str, message: &str, again: bool) {
        let mut condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message, "lastProbeTime": null,
        });
        if !again {
            condition["lastTransitionTime"] = json!(object::write::stamp((self.clock)()));
        }
        let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
        let path = format!("{}/status", Watched::Pods.resource().object(&key.0, &key.1));
        match self.api.strategic(&path, &patch).await {
            Ok(_) => self.recorder.pod(key, uid, true, "FailedScheduling", message),
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                tracing::warn!(namespace = %key.0, pod = %key.1, %error, "Failed to report why a pod is unschedulable")
            }
        }
    }
}

/// A claim that a pod uses, and its uid.
type UsedClaim = (Key, Box<str>);

enum Write {
    Bind { key: Key, uid: String, node: Arc<str>, claims: Vec<UsedClaim> },
    Steps { key: Key, node: Arc<str>, steps: Vec<Step> },
    Report { key: Key, uid: String, message: String, again: bool },
}

impl State {
    /// Applies a decision to the state; returns what is to be written for it.
    fn apply_decision(&mut self, key: Key, decision: Decision) -> Option<Write> {
        let pod = self.cluster.pod(&key);
        let (uid, again) =
            (pod.map(|pod| pod.uid.to_string()).unwrap_or_default(), pod.is_some_and(|pod| pod.said.is_some()));
        match decision {
            Decision::Leave => self.queue.done(&key),
            Decision::Bind(node) => {
                let claims = self.claims_used_by(&key);
                self.place(&key, &node);
                return Some(Write::Bind { key, uid, node, claims });
            }
            Decision::Prepare(..) if self.queue.is_overdue(&key, Instant::now()) => {
                self.queue.clear_prepared(&key);
                self.give_up_place(&key);
                self.queue.failed(&key, Instant::now());
                return Some(Write::Report { key, uid, message: OVERDUE.to_owned(), again });
            }
            Decision::Prepare(node, steps) if steps.is_empty() => {
                self.place(&key, &node);
                self.queue.await_claims(&key, Instant::now());
            }
            // A claim lost its selected node after it was set: the provisioner asks for another choice.
            Decision::Prepare(..) if self.queue.clear_prepared(&key) => {
                self.cluster.release(&key);
                self.queue.add(&key, self.cluster.pod(&key));
                self.queue.done(&key);
            }
            Decision::Prepare(node, steps) => {
                self.place(&key, &node);
                for step in &steps {
                    if let Step::Give { volume, claim, claim_uid, .. } = step {
                        self.cluster.volumes_mut().assume_given(volume, claim, claim_uid);
                    }
                }
                return Some(Write::Steps { key, node, steps });
            }
            Decision::Unschedulable(Unschedulable { message, helps }) => {
                self.give_up_place(&key);
                self.queue.wait(&key, self.cluster.pod(&key), helps, &message, Instant::now());
            }
        }
        None
    }

    fn claims_used_by(&self, pod: &Key) -> Vec<UsedClaim> {
        let used = self.cluster.pod(pod).into_iter().flat_map(|facts| facts.claims.iter());
        let keys = used.map(|used| (pod.0.clone(), used.name.clone()));
        let uid = |key: &Key| self.cluster.volumes().claim(key).map(|claim| claim.uid.clone());
        keys.filter_map(|key| uid(&key).map(|uid| (key, uid))).collect()
    }

    fn place(&mut self, key: &Key, node: &Arc<str>) {
        self.cluster.reserve(key, node);
        self.queue.retry(|helps| helps.arriving);
    }

    fn give_up_place(&mut self, key: &Key) {
        if self.cluster.release(key) {
            self.queue.retry(|helps| helps.leaving);
        }
    }

    fn fail(&mut self, key: &Key, error: &ApiError) {
        self.give_up_place(key);
        let delay = self.queue.failed(key, Instant::now());
        if error.is_conflict() {
            tracing::debug!(namespace = %key.0, pod = %key.1, %error, ?delay, "Pod changed meanwhile; scheduling it again");
        } else {
            tracing::warn!(namespace = %key.0, pod = %key.1, %error, ?delay, "Failed to schedule a pod; retrying");
        }
    }
}
