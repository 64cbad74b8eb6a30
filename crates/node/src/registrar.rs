//! Registers the simulated Nodes, renews their leases and corrects their status.

use crate::event_recorder::EventRecorder;
use crate::informers::{Informers, Watched};
use kit::Clock;
use kit::api::{Api, ApiError, Resource};
use object::Value;
use object::access::uid;
use plan::kubelet;
use plan::node::{self, LEASES, Machine, RENEW_EVERY};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Clone)]
pub struct Registrar {
    pub informers: Arc<Informers>,
    pub machines: Arc<HashMap<Arc<str>, Machine>>,
    pub apis: Arc<HashMap<Arc<str>, Api>>,
    pub recorder: EventRecorder,
    pub clock: Clock,
    /// The heartbeat state of each node.
    pub beats: Arc<Mutex<HashMap<Arc<str>, Heartbeat>>>,
    /// Number of nodes that have registered since the start.
    pub registered: Arc<watch::Sender<usize>>,
}

#[derive(Clone, Default)]
pub struct Heartbeat {
    /// The uid of the Node for which CSINode and lease were created.
    uid: String,
    /// When the lease was last renewed, by the monotonic clock: a wall clock that jumps back must not stop the renewals.
    renewed: Option<Instant>,
    /// The last event about an invalid annotation, to suppress repeats.
    complaint: Option<String>,
}

impl Registrar {
    /// Reconciles one node after the other, for ever.
    pub async fn work(self) {
        loop {
            let name = self.informers.nodes.next().await;
            match self.sync(&name).await {
                Ok(again) => self.informers.nodes.done(&name, again),
                Err(error) => {
                    let delay = self.informers.nodes.failed(&name);
                    tracing::warn!(node = %name, %error, ?delay, "Failed to update a simulated node; retrying");
                }
            }
        }
    }

    async fn sync(&self, name: &Arc<str>) -> Result<Option<Duration>, ApiError> {
        let (Some(machine), Some(api)) = (self.machines.get(name), self.apis.get(name)) else { return Ok(None) };
        let known = {
            let state = self.informers.lock();
            let Some(host) = state.hosts.get(name) else { return Ok(None) };
            if host.down {
                return Ok(None);
            }
            host.node.clone()
        };
        let now = (self.clock)();
        let node = match known {
            Some(node) => node,
            None => self.register(machine, api, now).await?,
        };
        self.report_annotation(name, &node);
        let mut beat = self.beats().get(name).cloned().unwrap_or_default();
        if beat.uid != uid(&node) {
            self.settle_in(machine, api, &node, now).await?;
            let first = beat.uid.is_empty();
            (beat.uid, beat.renewed) = (uid(&node).to_owned(), Some(Instant::now()));
            self.beats().insert(name.clone(), beat.clone());
            if first {
                self.registered.send_modify(|count| *count += 1);
            }
        }
        if let Some(correction) = machine.correction(&node, now) {
            let path = format!("{}/status", Watched::Nodes.resource().object("", name));
            api.strategic(&path, &correction).await?;
        }
        let renewal = Instant::now();
        let rest = beat.renewed.map_or(Duration::ZERO, |renewed| (renewed + RENEW_EVERY).duration_since(renewal));
        if !rest.is_zero() {
            return Ok(Some(rest));
        }
        api.merge(&leases().object(LEASES, name), &node::renewal(now)).await.or_else(|error| {
            if !error.is_not_found() {
                return Err(error);
            }
            // The lease was deleted: the changed uid makes the next run, which is immediate, create it again.
            if let Some(beat) = self.beats().get_mut(name) {
                beat.uid = format!("{} without a lease", beat.uid);
            }
            Ok(Arc::default())
        })?;
        if let Some(beat) = self.beats().get_mut(name) {
            beat.renewed = Some(renewal);
        }
        Ok(Some(RENEW_EVERY))
    }

    /// Creates the Node, or uses the existing one.
    async fn register(&self, machine: &Machine, api: &Api, now: jiff::Timestamp) -> Result<Arc<Value>, ApiError> {
        let nodes = Watched::Nodes.resource();
        match api.create(&nodes.collection(""), &machine.node(now)).await {
            Err(error) if error.is_conflict() => api.get(&nodes.object("", &machine.name)).await,
            result => result,
        }
    }

    /// Completes a new Node, which a user may have created: adds labels and annotations, CSINode and lease.
    async fn settle_in(
        &self,
        machine: &Machine,
        api: &Api,
        node: &Value,
        now: jiff::Timestamp,
    ) -> Result<(), ApiError> {
        if let Some(missing) = machine.missing_metadata(node) {
            api.merge(&Watched::Nodes.resource().object("", &machine.name), &missing).await?;
        }
        self.keep_csi_node(machine, api, node).await?;
        let lease = machine.lease(node, now);
        if !unless_there(api.create(&leases().collection(LEASES), &lease).await)? {
            api.merge(&leases().object(LEASES, &machine.name), &lease).await?;
        }
        Ok(())
    }

    /// Creates the CSINode, or corrects an existing one: that of a deleted Node has an owner that no longer exists, and the garbage
    /// collector would delete it.
    async fn keep_csi_node(&self, machine: &Machine, api: &Api, node: &Value) -> Result<(), ApiError> {
        let csi_nodes = Resource::new("storage.k8s.io/v1", "CSINode", "csinodes", false);
        let created = api.create(&csi_nodes.collection(""), &machine.csi_node(node)).await;
        let exists = match created {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => error,
            Err(error) => return Err(error),
        };
        let path = csi_nodes.object("", &machine.name);
        // It was deleted in between: the retry creates it.
        let Some(stored) = api.find(&path).await? else { return Err(exists) };
        if let Some(correction) = machine.csi_node_correction(&stored, node) {
            api.merge(&path, &correction).await?;
        }
        Ok(())
    }

    fn report_annotation(&self, name: &Arc<str>, node: &Value) {
        let complaint = kubelet::is_down(node).err();
        let mut beats = self.beats();
        let beat = beats.entry(name.clone()).or_default();
        if let Some(text) = complaint.as_ref().filter(|_| beat.complaint != complaint) {
            self.recorder.node(name, uid(node), true, "InvalidSimulation", text);
        }
        beat.complaint = complaint;
    }

    fn beats(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Heartbeat>> {
        self.beats.lock().expect("no panic happens under this lock")
    }
}

fn leases() -> Resource {
    Resource::new("coordination.k8s.io/v1", "Lease", "leases", true)
}

/// Whether the object was created; false if it exists already.
fn unless_there<T>(result: Result<T, ApiError>) -> Result<bool, ApiError> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}
