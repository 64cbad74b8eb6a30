//! The three CSI services. Each call passes the fault orders, is executed, and is added to the log of calls.

use super::DirectoryDriver;
use super::faults::Order;
use super::socket::Connection;
use crate::v1;
use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Code, Request, Response, Status};

/// The implementation of the services at a socket.
#[derive(Clone, Debug)]
pub struct Service {
    pub driver: Arc<DirectoryDriver>,
}

impl Service {
    async fn answer<Q, A, F>(
        &self,
        name: &'static str,
        subject: String,
        request: Request<Q>,
        work: impl FnOnce(Arc<DirectoryDriver>, Q) -> F + Send,
    ) -> Result<Response<A>, Status>
    where
        Q: Clone + Any + Send + Sync,
        A: Any + Send,
        F: Future<Output = Result<A, Status>> + Send + 'static,
    {
        let connection = request.extensions().get::<Connection>().cloned();
        let request = request.into_inner();
        let order = self.driver.refuse_if_under_way(&subject).and_then(|()| self.driver.faults.take(name, &subject));
        let mark = order.as_ref().ok().and_then(Option::as_ref).filter(|order| order.goes_on);
        let mark = mark.map(|_| UnderWay::begin(&self.driver, &subject));
        let mut entry = Entry::new(&self.driver, name, subject, request.clone());
        let lost = order.as_ref().is_ok_and(|order| order.as_ref().is_some_and(|order| order.drop_connection));
        let result = match order {
            Err(status) => Err(status),
            Ok(None) => work(Arc::clone(&self.driver), request).await,
            Ok(Some(order)) => {
                let work = work(Arc::clone(&self.driver), request);
                match mark {
                    None => faulty(&order, work).await,
                    Some(mark) => without_caller(order, work, mark).await,
                }
            }
        };
        entry.code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        drop(entry);
        if let (Some(connection), true) = (connection, lost) {
            return connection.sever().await;
        }
        result.map(Response::new)
    }
}

/// A call that is being logged. It is logged even if its caller disconnects before the end.
struct Entry<'a, Q: Any + Send + Sync> {
    driver: &'a DirectoryDriver,
    name: &'static str,
    subject: String,
    request: Option<Q>,
    code: Code,
    started: Instant,
}

impl<'a, Q: Any + Send + Sync> Entry<'a, Q> {
    fn new(driver: &'a DirectoryDriver, name: &'static str, subject: String, request: Q) -> Entry<'a, Q> {
        Entry { driver, name, subject, request: Some(request), code: Code::Cancelled, started: Instant::now() }
    }
}

impl<Q: Any + Send + Sync> Drop for Entry<'_, Q> {
    fn drop(&mut self) {
        let Entry { name, subject, code, .. } = self;
        tracing::debug!(call = name, %subject, ?code, took = ?self.started.elapsed(), "answered");
        if let Some(request) = self.request.take() {
            self.driver.calls.add(name, std::mem::take(subject), request, *code);
        }
    }
}

/// While it exists, other calls for its subject are refused.
struct UnderWay {
    driver: Arc<DirectoryDriver>,
    subject: String,
}

impl UnderWay {
    fn begin(driver: &Arc<DirectoryDriver>, subject: &str) -> UnderWay {
        driver.under_way().insert(subject.to_owned());
        UnderWay { driver: Arc::clone(driver), subject: subject.to_owned() }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.driver.under_way().remove(&self.subject);
    }
}

/// Executes a call even if its caller disconnects, until the driver stops.
async fn without_caller<A: Any + Send>(
    order: Order,
    work: impl Future<Output = Result<A, Status>> + Send + 'static,
    mark: UnderWay,
) -> Result<A, Status> {
    let working = tokio::spawn(async move {
        let ended = mark.driver.ended.clone();
        ended.run_until_cancelled(faulty(&order, work)).await
    });
    match working.await {
        Ok(Some(result)) => result,
        Ok(None) => Err(Status::unavailable("the driver has stopped")),
        Err(error) => Err(Status::internal(error.to_string())),
    }
}

/// Executes a call as its fault order says; returns the response for the caller, unless the response is to be lost.
async fn faulty<A: Any + Send>(
    order: &Order,
    work: impl Future<Output = Result<A, Status>> + Send,
) -> Result<A, Status> {
    if !order.after {
        hinder(order).await;
        if let Some(status) = order.failure() {
            return Err(status);
        }
        if order.drop_connection {
            return Err(Status::unavailable("the connection was closed by a fault order"));
        }
    }
    let mut result = work.await;
    if order.after {
        hinder(order).await;
        if let Some(status) = order.failure() {
            return Err(status);
        }
    }
    if let Ok(answer) = &mut result {
        order.bend(answer);
    }
    result
}

async fn hinder(order: &Order) {
    if let Some(gate) = &order.gate {
        gate.pass().await;
    }
    if order.delay_ms > 0 {
        tokio::time::sleep(Duration::from_millis(order.delay_ms)).await;
    }
}

/// Defines the methods of a service: names in Rust and in CSI, the request and the field with its subject, the
/// response.
macro_rules! services {
    ($($service:ident in $module:ident {
        $($method:ident = $name:ident($request:ident $(about $subject:ident)?) -> $answer:ident;)*
    })*) => {
        $(
            #[tonic::async_trait]
            impl v1::$module::$service for Service {
                $(
                    async fn $method(&self, request: Request<v1::$request>) -> Result<Response<v1::$answer>, Status> {
                        #[allow(unused_mut, unused_assignments)]
                        let mut subject = String::new();
                        $(subject = request.get_ref().$subject.clone();)?
                        self.answer(stringify!($name), subject, request, DirectoryDriver::$method).await
                    }
                )*
            }
        )*
        /// All calls by name.
        pub const CALLS: &[&str] = &[$($(stringify!($name)),*),*];
    };
}

services! {
    Identity in identity_server {
        get_plugin_info = GetPluginInfo(GetPluginInfoRequest) -> GetPluginInfoResponse;
        get_plugin_capabilities = GetPluginCapabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse;
        probe = Probe(ProbeRequest) -> ProbeResponse;
    }
    Controller in controller_server {
        controller_get_capabilities =
            ControllerGetCapabilities(ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse;
        create_volume = CreateVolume(CreateVolumeRequest about name) -> CreateVolumeResponse;
        delete_volume = DeleteVolume(DeleteVolumeRequest about volume_id) -> DeleteVolumeResponse;
        controller_get_volume =
            ControllerGetVolume(ControllerGetVolumeRequest about volume_id) -> ControllerGetVolumeResponse;
        list_volumes = ListVolumes(ListVolumesRequest) -> ListVolumesResponse;
        get_capacity = GetCapacity(GetCapacityRequest) -> GetCapacityResponse;
        validate_volume_capabilities = ValidateVolumeCapabilities(ValidateVolumeCapabilitiesRequest about volume_id)
            -> ValidateVolumeCapabilitiesResponse;
        controller_expand_volume =
            ControllerExpandVolume(ControllerExpandVolumeRequest about volume_id) -> ControllerExpandVolumeResponse;
        controller_modify_volume =
            ControllerModifyVolume(ControllerModifyVolumeRequest about volume_id) -> ControllerModifyVolumeResponse;
        controller_publish_volume =
            ControllerPublishVolume(ControllerPublishVolumeRequest about volume_id) -> ControllerPublishVolumeResponse;
        controller_unpublish_volume = ControllerUnpublishVolume(ControllerUnpublishVolumeRequest about volume_id)
            -> ControllerUnpublishVolumeResponse;
        create_snapshot = CreateSnapshot(CreateSnapshotRequest about name) -> CreateSnapshotResponse;
        delete_snapshot = DeleteSnapshot(DeleteSnapshotRequest about snapshot_id) -> DeleteSnapshotResponse;
        get_snapshot = GetSnapshot(GetSnapshotRequest about snapshot_id) -> GetSnapshotResponse;
        list_snapshots = ListSnapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
    }
    Node in node_server {
        node_get_info = NodeGetInfo(NodeGetInfoRequest) -> NodeGetInfoResponse;
        node_get_capabilities = NodeGetCapabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
        node_stage_volume = NodeStageVolume(NodeStageVolumeRequest about volume_id) -> NodeStageVolumeResponse;
        node_unstage_volume = NodeUnstageVolume(NodeUnstageVolumeRequest about volume_id) -> NodeUnstageVolumeResponse;
        node_publish_volume = NodePublishVolume(NodePublishVolumeRequest about volume_id) -> NodePublishVolumeResponse;
        node_unpublish_volume =
            NodeUnpublishVolume(NodeUnpublishVolumeRequest about volume_id) -> NodeUnpublishVolumeResponse;
        node_get_volume_stats =
            NodeGetVolumeStats(NodeGetVolumeStatsRequest about volume_id) -> NodeGetVolumeStatsResponse;
        node_expand_volume = NodeExpandVolume(NodeExpandVolumeRequest about volume_id) -> NodeExpandVolumeResponse;
    }
}
