//! A client of any CSI driver.

mod about;
mod connection;
mod failure;
mod metrics;

pub use about::{About, is_driver_name};
pub use failure::Failure;
pub use metrics::Metrics;

use crate::endpoint::{BadEndpoint, Endpoint};
use crate::v1::controller_client::ControllerClient;
use crate::v1::identity_client::IdentityClient;
use crate::v1::node_client::NodeClient;
use crate::v1::{self, *};
use connection::{CountedConnection, DriverCode};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tower::ServiceExt;

/// How to call a driver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The timeout of each call.
    pub deadline: Duration,
    pub metrics: Metrics,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { deadline: Duration::from_secs(10), metrics: Metrics::default() }
    }
}

/// A driver at its endpoint. Clones share one connection, which is opened when it is first needed and reopened after it
/// breaks.
#[derive(Clone, Debug)]
pub struct Driver {
    endpoint: Endpoint,
    settings: Settings,
    channel: Channel,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// How many connections began or ended so far.
    changes: AtomicU64,
    /// The driver's description, and the value of `changes` when it was read.
    about: Mutex<Option<(u64, Arc<About>)>>,
}

/// The size limit of a response. ListVolumes may return many volumes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// The first and the longest delay between checks whether a driver is ready; the delay doubles.
const PROBE_WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

impl Driver {
    /// Fails if the endpoint is not valid. Must be called within a tokio runtime.
    pub fn connect(endpoint: &str, settings: Settings) -> Result<Driver, BadEndpoint> {
        Ok(Driver::at(Endpoint::parse(endpoint)?, settings))
    }

    /// Must be called within a tokio runtime.
    pub fn at(endpoint: Endpoint, settings: Settings) -> Driver {
        let shared = Arc::new(Shared::default());
        let (to, counted) = (endpoint.clone(), Arc::clone(&shared));
        let connector = tower::service_fn(move |_: http::Uri| {
            let (to, counted) = (to.clone(), Arc::clone(&counted));
            async move {
                let connection = CountedConnection::new(to.connect().await?, counted);
                Ok::<_, std::io::Error>(TokioIo::new(connection))
            }
        });
        // The host name is not resolved: the connector knows the socket. Drivers expect this name from local clients.
        let channel = Channel::from_static("http://localhost").connect_with_connector_lazy(connector);
        Driver { endpoint, settings, channel, shared }
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The same driver with another timeout.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Driver {
        let mut driver = self.clone();
        driver.settings.deadline = deadline;
        driver
    }

    /// The driver's description. Read once per connection, because another version may respond on the next one.
    pub async fn about(&self) -> Result<Arc<About>, Failure> {
        let before = self.shared.changes.load(Ordering::SeqCst);
        if let Some((at, about)) = self.known()
            && at == before
        {
            return Ok(about);
        }
        let about = Arc::new(About::ask(self).await?);
        let at = self.shared.changes.load(Ordering::SeqCst);
        // If more changed than one new connection, another driver may have started meanwhile: the next caller reads it
        // again.
        let is_one = at == before || (at == before + 1 && before.is_multiple_of(2));
        if is_one {
            *self.shared.about.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, Arc::clone(&about)));
        }
        Ok(about)
    }

    fn known(&self) -> Option<(u64, Arc<About>)> {
        self.shared.about.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the driver reports that it is ready.
    pub async fn is_ready(&self) -> Result<bool, Failure> {
        Ok(self.probe(ProbeRequest {}).await?.ready.unwrap_or(true))
    }

    /// Waits until the driver responds and is ready.
    pub async fn wait_until_ready(&self) {
        let (mut wait, longest) = PROBE_WAIT;
        let mut last_reason = String::new();
        loop {
            let reason = match self.is_ready().await {
                Ok(true) => return,
                Ok(false) => "the driver is not ready".to_owned(),
                Err(failure) => failure.to_string(),
            };
            if reason != last_reason {
                tracing::warn!(endpoint = %self.endpoint, %reason, "waiting for the CSI driver");
                last_reason = reason;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    }

    /// All volumes, page by page.
    pub async fn all_volumes(&self) -> Result<Vec<list_volumes_response::Entry>, Failure> {
        let mut entries = Vec::new();
        let mut starting_token = String::new();
        loop {
            let page = self.list_volumes(ListVolumesRequest { max_entries: PAGE_ENTRIES, starting_token }).await?;
            entries.extend(page.entries);
            if page.next_token.is_empty() {
                return Ok(entries);
            }
            starting_token = page.next_token;
        }
    }

    async fn call<Q, A, F>(
        &self,
        method: &'static str,
        request: Q,
        driver_code: &DriverCode,
        send: impl FnOnce(Request<Q>) -> F,
    ) -> Result<A, Failure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let (started, deadline) = (Instant::now(), self.settings.deadline);
        let mut request = Request::new(request);
        request.set_timeout(deadline);
        let result = match tokio::time::timeout(deadline, send(request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) if driver_code.is_from_driver(&status) => Err(Failure::from_driver(method, &status)),
            Ok(Err(status)) => Err(Failure::broken(method, &status, &self.endpoint, started.elapsed() >= deadline)),
            Err(_) => Err(Failure::late(method, deadline)),
        };
        let code = result.as_ref().map_or_else(|failure| failure.code, |_| Code::Ok);
        let name = self.known().map(|(_, about)| about.name.clone());
        self.settings.metrics.called(name.as_deref(), method, code, started.elapsed());
        result
    }
}

const PAGE_ENTRIES: i32 = 1000;

/// Defines a method for each call.
macro_rules! calls {
    ($($client:ident {
        $($method:ident($request:ident) -> $answer:ident = $path:literal;)*
    })*) => {
        impl Driver {
            $($(
                #[doc = concat!("Calls `", $path, "`.")]
                pub async fn $method(&self, request: v1::$request) -> Result<v1::$answer, Failure> {
                    let driver_code = DriverCode::default();
                    let listening = driver_code.clone();
                    let channel = self.channel.clone().map_response(move |answer| listening.observe(answer));
                    let mut client = $client::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
                    self.call($path, request, &driver_code, |request| async move { client.$method(request).await }).await
                }
            )*)*
        }
    };
}

calls! {
    IdentityClient {
        get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse = "/csi.v1.Identity/GetPluginInfo";
        get_plugin_capabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse
            = "/csi.v1.Identity/GetPluginCapabilities";
        probe(ProbeRequest) -> ProbeResponse = "/csi.v1.Identity/Probe";
    }
    ControllerClient {
        controller_get_capabilities(ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse
            = "/csi.v1.Controller/ControllerGetCapabilities";
        create_volume(CreateVolumeRequest) -> CreateVolumeResponse = "/csi.v1.Controller/CreateVolume";
        delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse = "/csi.v1.Controller/DeleteVolume";
        controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse
            = "/csi.v1.Controller/ControllerGetVolume";
        list_volumes(ListVolumesRequest) -> ListVolumesResponse = "/csi.v1.Controller/ListVolumes";
        get_capacity(GetCapacityRequest) -> GetCapacityResponse = "/csi.v1.Controller/GetCapacity";
        validate_volume_capabilities(ValidateVolumeCapabilitiesRequest) -> ValidateVolumeCapabilitiesResponse
            = "/csi.v1.Controller/ValidateVolumeCapabilities";
        controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse
            = "/csi.v1.Controller/ControllerExpandVolume";
        controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse
            = "/csi.v1.Controller/ControllerModifyVolume";
        controller_publish_volume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse
            = "/csi.v1.Controller/ControllerPublishVolume";
        controller_unpublish_volume(ControllerUnpublishVolumeRequest) -> ControllerUnpublishVolumeResponse
            = "/csi.v1.Controller/ControllerUnpublishVolume";
        create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse = "/csi.v1.Controller/CreateSnapshot";
        delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse = "/csi.v1.Controller/DeleteSnapshot";
        get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse = "/csi.v1.Controller/GetSnapshot";
        list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse = "/csi.v1.Controller/ListSnapshots";
    }
    NodeClient {
        node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse = "/csi.v1.Node/NodeGetInfo";
        node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse
            = "/csi.v1.Node/NodeGetCapabilities";
        node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse = "/csi.v1.Node/NodeStageVolume";
        node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse = "/csi.v1.Node/NodeUnstageVolume";
        node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse = "/csi.v1.Node/NodePublishVolume";
        node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse
            = "/csi.v1.Node/NodeUnpublishVolume";
        node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse
            = "/csi.v1.Node/NodeGetVolumeStats";
        node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse = "/csi.v1.Node/NodeExpandVolume";
    }
}
