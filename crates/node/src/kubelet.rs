//! The kubelets of all simulated nodes: one set of workers does what is planned for each pod.

use crate::sight::{Sight, Watched, confirm_claim};
use crate::voice::Voice;
use crate::{VolumeData, addresses};
use futures::future::try_join_all;
use object::access::Access;
use object::{Value, condition, json};
use plan::kubelet::{self, ClaimState, Event, Plan, Seen, config};
use plan::schedule::{Key, Volumes, claims_of};
use runtime::Clock;
use runtime::api::{Api, ApiError, Resource};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub struct Kubelets {
    pub sight: Arc<Sight>,
    /// The API as each node reaches it.
    pub apis: Arc<HashMap<Arc<str>, Api>>,
    pub voice: Voice,
    pub clock: Clock,
    pub volume_data: Option<Arc<dyn VolumeData>>,
}

/// A pod that is to be looked at, with what that takes.
struct Case {
    key: Key,
    uid: Box<str>,
    api: Api,
    host_ip: Ipv4Addr,
    pod: Option<Arc<Value>>,
}

impl Kubelets {
    /// Does what is planned, for one pod after the other, for ever.
    pub async fn work(self) {
        self.sight.filled().await;
        loop {
            let key = self.sight.pods.next().await;
            match self.sync(&key).await {
                Ok(again) => self.sight.pods.done(&key, again),
                Err(error) => {
                    let delay = self.sight.pods.failed(&key);
                    if error.is_conflict() {
                        tracing::debug!(namespace = %key.0, pod = %key.1, %error, ?delay, "looking after a pod again");
                    } else {
                        tracing::warn!(namespace = %key.0, pod = %key.1, %error, ?delay, "cannot look after a pod; trying again");
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
            // It is gone: the watch will say so. A conflict may be that another bears its name, of which the watch will tell too, or that
            // the server was busy with it: nobody will tell of that, so it is tried again.
            Err(error) if error.is_not_found() => Ok(None),
            result => result,
        }
    }

    /// What it takes to look at the pod; `None` when nobody looks: it is gone, or its node is down.
    fn open(&self, key: &Key) -> Option<Case> {
        let state = self.sight.lock();
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
        if kubelet::has_started(pod) && self.sight.lock().local.get(key).is_some_and(|local| local.volumes_checked) {
            return Ok(broken);
        }
        for (volume, driver, handle) in self.sources(key, pod)? {
            if let Some(why) = volume_data.problem(driver, handle).await {
                broken.push((volume, why));
            }
        }
        let mut state = self.sight.lock();
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
        let state = self.sight.lock();
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
    ) -> Option<Plan> {
        let mut state = self.sight.lock();
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
        // When a node has no address left, its pod is as good as anywhere else: nothing is routed here.
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

    async fn carry_out(&self, case: &Case, path: &str, pod: &Value, plan: Plan) -> Result<Option<Duration>, ApiError> {
        self.tell_once(case, &plan.warnings);
        if let Some(status) = &plan.status {
            let patch = json!({"metadata": {"uid": &*case.uid}, "status": status});
            let written = case.api.strategic(&format!("{path}/status"), &patch).await?;
            self.sight.lock().written(&case.key, written);
            for Event { warning, reason, message } in &plan.events {
                self.voice.pod(&case.key, &case.uid, *warning, reason, message);
            }
        }
        if plan.remove {
            self.sight.lock().unmounted(&case.key, &case.uid);
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
                "preconditions": {"uid": &*case.uid},
            });
            case.api.delete(path, &options).await?;
            return Ok(None);
        }
        if plan.status.is_some() {
            // What is true now may call for more.
            return Ok(Some(Duration::ZERO));
        }
        let now = (self.clock)();
        if plan.next.is_none() && !plan.held {
            self.sight.lock().settled(&case.key, pod);
        }
        Ok(plan.next.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)))
    }

    /// Tells what has not been told of this pod before.
    fn tell_once(&self, case: &Case, warnings: &[Event]) {
        if warnings.is_empty() {
            return;
        }
        let mut state = self.sight.lock();
        let Some(local) = state.local.get_mut(&case.key) else { return };
        for event in warnings {
            if !local.told.contains(event) {
                local.told.push(event.clone());
                self.voice.pod(&case.key, &case.uid, event.warning, event.reason, &event.message);
            }
        }
    }
}

/// 1 s, doubled up to 10 s: no watch reports the Secret or ConfigMap that a pod waits for.
fn config_backoff(attempts: u32) -> jiff::SignedDuration {
    let seconds = 1i64 << attempts.saturating_sub(1).min(4);
    jiff::SignedDuration::from_secs(seconds.min(10))
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
