//! The kubelets of all simulated nodes: one set of workers carries out the plan for each pod.

use crate::event_recorder::EventRecorder;
use crate::informers::{Informers, Watched, confirm_claim};
use crate::{VolumeData, addresses};
use futures::future::try_join_all;
use kit::Clock;
use kit::api::{Api, ApiError, Resource};
use kit::backoff::Backoff;
use object::access::Access;
use object::{Value, condition, json};
use plan::kubelet::{self, ClaimState, PodEvent, PodPlan, Seen, config};
use plan::schedule::{Key, Volumes, claims_of};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub struct Kubelets {
    pub informers: Arc<Informers>,
    /// The API client of each node.
    pub apis: Arc<HashMap<Arc<str>, Api>>,
    pub recorder: EventRecorder,
    pub clock: Clock,
    pub volume_data: Option<Arc<dyn VolumeData>>,
}

/// A pod to reconcile, with what that needs.
struct Case {
    key: Key,
    uid: Box<str>,
    api: Api,
    host_ip: Ipv4Addr,
    pod: Option<Arc<Value>>,
}

impl Kubelets {
    /// Reconciles one pod after the other, for ever.
    pub async fn work(self) {
        self.informers.filled().await;
        loop {
            let key = self.informers.pods.next().await;
            match self.sync(&key).await {
                Ok(again) => self.informers.pods.done(&key, again),
                Err(error) => {
                    let delay = self.informers.pods.failed(&key);
                    if error.is_conflict() {
                        tracing::debug!(namespace = %key.0, pod = %key.1, %error, ?delay, "Pod changed meanwhile; retrying");
                    } else {
                        tracing::warn!(namespace = %key.0, pod = %key.1, %error, ?delay, "Failed to reconcile a pod; retrying");
                    }
                }
            }
        }
    }

    async fn sync(&self, key: &Key) -> Result<Option<Duration>, ApiError> {
        let Some(case) = self.open(key) else { return Ok(None) };
        let path = Watched::Pods.resource().object(&key.0, &key.1);
        let pod = match &case.pod {
            Some(pod) => pod.clone(),
            None => match case.api.find(&path).await? {
                Some(pod) => pod,
                None => return Ok(None),
            },
        };
        let configs = self.configs(&case, &pod).await?;
        let broken_volumes = self.broken_volumes(key, &pod).await?;
        let Some(plan) = self.plan(&case, &pod, &configs, &broken_volumes) else { return Ok(None) };
        if plan.mounts {
            let is_bound = |live: &Value| {
                live.text(&["status", "phase"]) == "Bound" && !condition::is_true(live, plan::csi::health::MISSING)
            };
            let used = claims_of(&pod).into_iter().map(|used| (key.0.clone(), used.name));
            try_join_all(used.map(|claim| confirm_claim(&case.api, claim, is_bound))).await?;
        }
        let result = self.carry_out(&case, &path, &pod, plan).await;
        match result {
            // The pod is deleted, and the watch will report it. After a conflict the request is retried: the
            // name may belong to another pod, which the watch will report, or the server was busy with the
            // pod, which no watch reports.
            Err(error) if error.is_not_found() => Ok(None),
            result => result,
        }
    }

    /// Collects what reconciling the pod needs; `None` if the pod is deleted or its node is down.
    fn open(&self, key: &Key) -> Option<Case> {
        let state = self.informers.lock();
        let local = state.local.get(key)?;
        let host = state.hosts.get(&local.node).filter(|host| !host.down)?;
        let api = self.apis.get(&local.node)?.clone();
        let host_ip = addresses::of_node(host.number);
        Some(Case { key: key.clone(), uid: local.uid.clone(), api, host_ip, pod: local.object.clone() })
    }

    /// Looks up the Secrets and ConfigMaps that a pod needs to start. Most pods need none.
    async fn configs(&self, case: &Case, pod: &Value) -> Result<config::Found, ApiError> {
        let mut found = config::Found::new();
        for (kind, name) in config::wanted(pod) {
            let resource = match kind {
                config::Kind::Secret => Resource::new("v1", "Secret", "secrets", true),
                config::Kind::ConfigMap => Resource::new("v1", "ConfigMap", "configmaps", true),
            };
            let object = case.api.find(&resource.object(&case.key.0, &name)).await?;
            found.insert((kind, name), object.map(|object| config::keys_of(&object)));
        }
        Ok(found)
    }

    /// Asks the driver whether it has the data of the volumes that a pod is about to mount, and once of a pod that ran when this process
    /// started: its status may come from a backup. Each is the volume and the reason.
    async fn broken_volumes(&self, key: &Key, pod: &Value) -> Result<Vec<(String, String)>, ApiError> {
        let mut broken = Vec::new();
        let Some(volume_data) = self.volume_data.as_ref().filter(|_| kubelet::is_to_run(pod)) else {
            return Ok(broken);
        };
        if kubelet::has_started(pod) && self.informers.lock().local.get(key).is_some_and(|local| local.volumes_checked)
        {
            return Ok(broken);
        }
        for (volume, driver, handle) in self.sources(key, pod)? {
            if let Some(why) = volume_data.problem(driver, handle).await {
                broken.push((volume, why));
            }
        }
        let mut state = self.informers.lock();
        let local = state.local.get_mut(key).filter(|local| *local.uid == *object::access::uid(pod));
        if let Some(local) = local {
            // Where data is missing the pod is yet to be written, which may fail.
            local.volumes_checked = broken.is_empty();
        }
        drop(state);
        Ok(broken)
    }

    /// The PersistentVolume, the driver and the handle of each bound claim of a pod that has a CSI volume.
    fn sources(&self, key: &Key, pod: &Value) -> Result<Vec<(String, String, String)>, ApiError> {
        let state = self.informers.lock();
        let volumes = state.cluster.volumes();
        let mut sources = Vec::new();
        for used in claims_of(pod) {
            let claim = volumes.claim(&(key.0.clone(), used.name)).filter(|claim| claim.bound);
            let Some(volume) = claim.map(|claim| &claim.volume) else { continue };
            if !volumes.has_volume(volume) {
                // The claim's event came before the volume's.
                return Err(ApiError::stale(format!("the PersistentVolume {volume} is not known yet, or gone")));
            }
            if let Some((driver, handle)) = volumes.csi_source(volume) {
                sources.push((volume.to_string(), driver.to_owned(), handle.to_owned()));
            }
        }
        Ok(sources)
    }

    fn plan(
        &self,
        case: &Case,
        pod: &Value,
        configs: &config::Found,
        broken_volumes: &[(String, String)],
    ) -> Option<PodPlan> {
        let mut state = self.informers.lock();
        let number = state.hosts.get(&state.local.get(&case.key)?.node)?.number;
        let uses = claims_of(pod);
        let claims: Vec<(&str, ClaimState)> = uses
            .iter()
            .map(|used| (&*used.name, claim_state(state.cluster.volumes(), &case.key.0, &used.name)))
            .collect();
        let local = state.local.get(&case.key).filter(|local| *local.uid == *object::access::uid(pod))?;
        let address = match local.address {
            Some(address) => Some(address),
            None if pod.flag(&["spec", "hostNetwork"]) => Some(case.host_ip),
            None => {
                let given = state.addresses.give(number);
                state.local.get_mut(&case.key)?.address = given;
                given
            }
        };
        // If the node has no address left, the pod gets the node's: nothing is routed to either.
        let (host_ip, pod_ip) = (case.host_ip.to_string(), address.unwrap_or(case.host_ip).to_string());
        let seen = Seen { pod, host_ip: &host_ip, pod_ip: &pod_ip, claims: &claims, configs, broken_volumes };
        let now = (self.clock)();
        let mut plan = kubelet::plan(&seen, now);
        let local = state.local.get_mut(&case.key)?;
        local.held = plan.held;
        local.config_attempts = if plan.awaits_config { local.config_attempts.saturating_add(1) } else { 0 };
        if plan.awaits_config {
            let retry = now.checked_add(config_backoff(local.config_attempts)).unwrap_or(jiff::Timestamp::MAX);
            plan.next = Some(plan.next.map_or(retry, |next| next.min(retry)));
        }
        Some(plan)
    }

    async fn carry_out(
        &self,
        case: &Case,
        path: &str,
        pod: &Value,
        plan: PodPlan,
    ) -> Result<Option<Duration>, ApiError> {
        self.record_once(case, &plan.warnings);
        if let Some(status) = &plan.status {
            let patch = json!({"metadata": {"uid": &*case.uid}, "status": status});
            let written = case.api.strategic(&format!("{path}/status"), &patch).await?;
            self.informers.lock().written(&case.key, written);
            for PodEvent { warning, reason, message } in &plan.events {
                self.recorder.pod(&case.key, &case.uid, *warning, reason, message);
            }
        }
        if plan.remove {
            self.informers.lock().mark_unmounted(&case.key, &case.uid);
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
                "preconditions": {"uid": &*case.uid},
            });
            case.api.delete(path, &options).await?;
            return Ok(None);
        }
        if plan.status.is_some() {
            // The new status may require another step.
            return Ok(Some(Duration::ZERO));
        }
        let now = (self.clock)();
        if plan.next.is_none() && !plan.held {
            self.informers.lock().mark_settled(&case.key, pod);
        }
        Ok(plan.next.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)))
    }

    /// Records the warnings that were not recorded for this pod before.
    fn record_once(&self, case: &Case, warnings: &[PodEvent]) {
        if warnings.is_empty() {
            return;
        }
        let mut state = self.informers.lock();
        let Some(local) = state.local.get_mut(&case.key) else { return };
        for event in warnings {
            if !local.reported.contains(event) {
                local.reported.push(event.clone());
                self.recorder.pod(&case.key, &case.uid, event.warning, event.reason, &event.message);
            }
        }
    }
}

/// No watch reports the Secret or ConfigMap that a pod waits for, so lookups are repeated.
const CONFIG_BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(10) };

fn config_backoff(attempts: u32) -> jiff::SignedDuration {
    let wait = CONFIG_BACKOFF.after(attempts.saturating_sub(1));
    jiff::SignedDuration::try_from(wait).unwrap_or(jiff::SignedDuration::MAX)
}

fn claim_state(volumes: &Volumes, namespace: &Arc<str>, name: &Arc<str>) -> ClaimState {
    match volumes.claim(&(namespace.clone(), name.clone())) {
        None => ClaimState::Missing,
        Some(claim) if claim.terminating => ClaimState::Terminating,
        Some(claim) if claim.bound && claim.data_missing => ClaimState::DataMissing,
        Some(claim) if claim.bound => ClaimState::Bound,
        Some(_) => ClaimState::Unbound,
    }
}
