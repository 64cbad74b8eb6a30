//! Finishes the expansion of claims whose file system must be expanded on the node that has them mounted.

use crate::event_recorder::EventRecorder;
use crate::informers::{Informers, Mounts, Watched};
use kit::api::{Api, ApiError};
use object::Value;
use object::access::{Access, uid};
use object::quantity::Quantity;
use plan::kubelet::expand;
use plan::schedule::Key;
use std::collections::HashMap;
use std::sync::Arc;

pub struct VolumeExpansions {
    pub informers: Arc<Informers>,
    pub apis: Arc<HashMap<Arc<str>, Api>>,
    pub recorder: EventRecorder,
}

/// A claim to finish, and a pod that has it mounted on that node.
struct Case {
    claim: Arc<Value>,
    node: Arc<str>,
    pod: Key,
    pod_uid: Box<str>,
    patch: Value,
}

impl VolumeExpansions {
    /// Finishes expansions one after the other, for ever.
    pub async fn work(self) {
        self.informers.filled().await;
        loop {
            let key = self.informers.claims.next().await;
            match self.finish(&key).await {
                Ok(()) => self.informers.claims.done(&key, None),
                Err(error) => {
                    let delay = self.informers.claims.failed(&key);
                    tracing::debug!(namespace = %key.0, claim = %key.1, %error, ?delay, "Failed to finish a volume expansion; retrying");
                }
            }
        }
    }

    async fn finish(&self, key: &Key) -> Result<(), ApiError> {
        let Some(case) = self.open(key) else { return Ok(()) };
        let Some(api) = self.apis.get(&case.node) else { return Ok(()) };
        let path = format!("{}/status", Watched::Claims.resource().object(&key.0, &key.1));
        match api.merge(&path, &case.patch).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        }
        let volume = case.claim.text(&["spec", "volumeName"]);
        let message = format!("MountVolume.NodeExpandVolume succeeded for volume {volume:?} {}", case.node);
        self.recorder.pod(&case.pod, &case.pod_uid, false, "FileSystemResizeSuccessful", &message);
        self.recorder.claim(key, uid(&case.claim), false, "FileSystemResizeSuccessful", &message);
        Ok(())
    }

    fn open(&self, key: &Key) -> Option<Case> {
        let state = self.informers.lock();
        let claim = state.expanding.get(key)?.clone();
        let volumes = state.cluster.volumes();
        let is_up = |node: &Arc<str>| state.hosts.get(node).is_some_and(|host| !host.down);
        let (pod, local) = volumes
            .users(key)
            .iter()
            .filter_map(|pod| Some((pod, state.local.get(pod)?)))
            .find(|(_, local)| local.volumes == Mounts::Mounted && is_up(&local.node))?;
        let size = volumes.size(claim.text(&["spec", "volumeName"])).unwrap_or(Quantity::ZERO);
        let patch = expand::finished(&claim, size)?;
        Some(Case { node: local.node.clone(), pod: pod.clone(), pod_uid: local.uid.clone(), patch, claim })
    }
}
