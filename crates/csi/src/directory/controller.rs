//! The identity and controller services for volumes.

use super::record::{Attachment, Source, Texts, UseRecord, VolumeRecord};
use super::state::{Kind, Volume};
use super::{DirectoryDriver, check, failed, is_at, page};
use crate::v1::controller_service_capability::{self as controller, rpc::Type as Can};
use crate::v1::plugin_capability::{self as plugin, service, volume_expansion};
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::volume_content_source::Type as SourceType;
use crate::v1::{self, *};
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;

/// The size of a volume if the request gives none, in bytes.
const USUAL_BYTES: i64 = 1 << 30;

impl DirectoryDriver {
    pub(super) async fn get_plugin_info(
        self: Arc<Self>,
        _: GetPluginInfoRequest,
    ) -> Result<GetPluginInfoResponse, Status> {
        Ok(GetPluginInfoResponse {
            name: self.options.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Texts::new(),
        })
    }

    pub(super) async fn get_plugin_capabilities(
        self: Arc<Self>,
        _: GetPluginCapabilitiesRequest,
    ) -> Result<GetPluginCapabilitiesResponse, Status> {
        let service = |kind: service::Type| plugin::Type::Service(plugin::Service { r#type: kind.into() });
        let mut kinds = vec![service(service::Type::ControllerService)];
        if !self.options.places.is_empty() {
            kinds.push(service(service::Type::VolumeAccessibilityConstraints));
        }
        if self.options.expansion.in_controller() || self.options.expansion.on_node() {
            let online = volume_expansion::Type::Online.into();
            kinds.push(plugin::Type::VolumeExpansion(plugin::VolumeExpansion { r#type: online }));
        }
        let capabilities = kinds.into_iter().map(|kind| PluginCapability { r#type: Some(kind) }).collect();
        Ok(GetPluginCapabilitiesResponse { capabilities })
    }

    pub(super) async fn probe(self: Arc<Self>, _: ProbeRequest) -> Result<ProbeResponse, Status> {
        Ok(ProbeResponse { ready: Some(true) })
    }

    pub(super) async fn controller_get_capabilities(
        self: Arc<Self>,
        _: ControllerGetCapabilitiesRequest,
    ) -> Result<ControllerGetCapabilitiesResponse, Status> {
        let mut kinds = vec![
            Can::CreateDeleteVolume,
            Can::CloneVolume,
            Can::ModifyVolume,
            Can::GetVolume,
            Can::ListVolumes,
            Can::VolumeCondition,
            Can::GetCapacity,
            Can::SingleNodeMultiWriter,
            Can::CreateDeleteSnapshot,
            Can::GetSnapshot,
            Can::ListSnapshots,
        ];
        if self.options.expansion.in_controller() {
            kinds.push(Can::ExpandVolume);
        }
        if self.options.attach {
            kinds.extend([Can::PublishUnpublishVolume, Can::PublishReadonly, Can::ListVolumesPublishedNodes]);
        }
        let rpc = |kind: Can| Some(controller::Type::Rpc(controller::Rpc { r#type: kind.into() }));
        let capabilities = kinds.into_iter().map(|kind| ControllerServiceCapability { r#type: rpc(kind) }).collect();
        Ok(ControllerGetCapabilitiesResponse { capabilities })
    }

    pub(super) async fn create_volume(
        self: Arc<Self>,
        request: CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Status> {
        check::name(&request.name, "name")?;
        check::capabilities(&request.volume_capabilities, "volume_capabilities")?;
        let mutable_parameters = check::mutable(&request.mutable_parameters, &self.options.mutable_parameters)?;
        let source = content_source(request.volume_content_source.as_ref())?;
        let mut held = vec![self.locks.exclusive(&format!("volume name {}", request.name)).await];
        let existing = {
            let state = self.state();
            state.volume_names.get(&request.name).map(|id| state.volumes[id].record.clone())
        };
        if let Some(existing) = existing {
            self.same(&existing, &request, &mutable_parameters, source.as_ref())?;
            return Ok(CreateVolumeResponse { volume: Some(existing.volume()) });
        }
        if let Some(Source::Volume(id) | Source::Snapshot(id)) = &source {
            // The source must not change until it is copied.
            held.push(self.locks.shared(id).await);
        }
        let smallest = source.as_ref().map_or(Ok(0), |source| self.source_bytes(source))?;
        let usual = if smallest > 0 { smallest } else { USUAL_BYTES };
        let record = VolumeRecord {
            id: Kind::Volume.new_id(),
            size_bytes: check::size(request.capacity_range.as_ref(), smallest, usual)?,
            place: self.choose_place(request.accessibility_requirements.as_ref())?,
            name: request.name,
            created: jiff::Timestamp::now(),
            parameters: request.parameters,
            mutable_parameters,
            source,
            attached: BTreeMap::new(),
        };
        let volume = self.run(held, move |driver| driver.make_volume(record)).await?;
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    fn make_volume(&self, record: VolumeRecord) -> Result<v1::Volume, Status> {
        let size = record.size_bytes;
        self.check_size(size)?;
        self.allocate(size)?;
        let made = self.files.create(Kind::Volume, &record.id, &super::record::encode(&record), |disk, data| {
            let from = match &record.source {
                Some(Source::Volume(id)) => self.files.data(Kind::Volume, id),
                Some(Source::Snapshot(id)) => self.files.data(Kind::Snapshot, id),
                None => return Ok(()),
            };
            disk.copy_tree(&from, data)
        });
        let mut state = self.state();
        // The reserved capacity is now either used or free again.
        state.allocated_bytes -= size;
        made.map_err(failed)?;
        let volume = record.volume();
        state.add_volume(record, UseRecord::default()).map_err(Status::internal)?;
        Ok(volume)
    }

    /// Whether an existing volume is the one that a repeated request describes.
    fn same(
        &self,
        existing: &VolumeRecord,
        request: &CreateVolumeRequest,
        mutable_parameters: &Texts,
        source: Option<&Source>,
    ) -> Result<(), Status> {
        let place = existing.place.as_ref();
        let difference = if !check::fits(request.capacity_range.as_ref(), existing.size_bytes) {
            "size"
        } else if existing.source.as_ref() != source {
            "content source"
        } else if existing.parameters != request.parameters {
            "parameters"
        } else if existing.mutable_parameters != *mutable_parameters {
            "mutable parameters"
        } else if place.is_some_and(|place| !may_be_at(place, request.accessibility_requirements.as_ref())) {
            "topology"
        } else {
            return Ok(());
        };
        let (name, id) = (&existing.name, &existing.id);
        Err(Status::already_exists(format!("the volume {name:?} exists as {id} with another {difference}")))
    }

    fn source_bytes(&self, source: &Source) -> Result<i64, Status> {
        match source {
            Source::Volume(id) => Ok(self.volume(id)?.record.size_bytes),
            Source::Snapshot(id) => Ok(self.snapshot(id)?.size_bytes),
        }
    }

    fn check_size(&self, bytes: i64) -> Result<(), Status> {
        let capacity = self.options.capacity_bytes;
        match bytes > capacity {
            true => Err(Status::out_of_range(format!("a volume may have at most {capacity} bytes, not {bytes}"))),
            false => Ok(()),
        }
    }

    /// Reserves capacity for a volume or its expansion; dropping the reservation frees it.
    fn allocate(&self, bytes: i64) -> Result<(), Status> {
        let mut state = self.state();
        let free = self.options.capacity_bytes - state.allocated_bytes;
        if bytes > free {
            return Err(Status::resource_exhausted(format!(
                "{bytes} bytes are requested, but only {} are free",
                free.max(0)
            )));
        }
        state.allocated_bytes += bytes;
        Ok(())
    }

    fn choose_place(&self, wanted: Option<&TopologyRequirement>) -> Result<Option<Texts>, Status> {
        let Some(first) = self.options.places.first() else { return Ok(None) };
        let Some(wanted) = wanted else { return Ok(Some(first.clone())) };
        let mut order = wanted.preferred.iter().chain(&wanted.requisite);
        let found =
            order.find_map(|topology| self.options.places.iter().find(|place| is_at(place, &topology.segments)));
        match found {
            Some(place) => Ok(Some(place.clone())),
            None if wanted.requisite.is_empty() => Ok(Some(first.clone())),
            None => Err(Status::resource_exhausted("no requested topology segment has storage")),
        }
    }

    pub(super) async fn delete_volume(
        self: Arc<Self>,
        request: DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Status> {
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        let held = vec![self.locks.exclusive(&id).await];
        let volume = match self.volume(&id) {
            // Deleting a volume that does not exist succeeds.
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(DeleteVolumeResponse {}),
            volume => volume?,
        };
        if let Some(node) = volume.record.attached.keys().next() {
            return Err(Status::failed_precondition(format!("{id} is still published to the node {node:?}")));
        }
        self.run(held, move |driver| {
            if let Some(target) = driver.targets_in_use(&volume).next() {
                return Err(Status::failed_precondition(format!("{id} is still published at {target}")));
            }
            driver.files.remove(Kind::Volume, &id).map_err(failed)?;
            driver.state().remove_volume(&id);
            Ok(DeleteVolumeResponse {})
        })
        .await
    }

    pub(super) async fn controller_get_volume(
        self: Arc<Self>,
        request: ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        let volume = self.volume(check::id(&request.volume_id, "volume_id")?)?;
        self.run(Vec::new(), move |driver| {
            let status = controller_get_volume_response::VolumeStatus {
                published_node_ids: volume.record.attached.keys().cloned().collect(),
                volume_condition: Some(driver.condition(&volume)),
            };
            Ok(ControllerGetVolumeResponse { volume: Some(volume.record.volume()), status: Some(status) })
        })
        .await
    }

    pub(super) async fn list_volumes(
        self: Arc<Self>,
        request: ListVolumesRequest,
    ) -> Result<ListVolumesResponse, Status> {
        if request.starting_token.is_empty() {
            self.serve_returned().await;
        }
        let (volumes, next_token) = {
            let state = self.state();
            let (page, next) = page(state.volumes.iter(), Kind::Volume, &request.starting_token, request.max_entries)?;
            (page.into_iter().cloned().collect::<Vec<Volume>>(), next)
        };
        self.run(Vec::new(), move |driver| {
            let entry = |volume: &Volume| list_volumes_response::Entry {
                volume: Some(volume.record.volume()),
                status: Some(list_volumes_response::VolumeStatus {
                    published_node_ids: volume.record.attached.keys().cloned().collect(),
                    volume_condition: Some(driver.condition(volume)),
                }),
            };
            Ok(ListVolumesResponse { entries: volumes.iter().map(entry).collect(), next_token })
        })
        .await
    }

    /// Whether a volume's data directory exists.
    pub(super) fn condition(&self, volume: &Volume) -> VolumeCondition {
        let data = self.files.data(Kind::Volume, &volume.record.id);
        match data.is_dir() {
            true => VolumeCondition { abnormal: false, message: "the volume's directory exists".to_owned() },
            false => VolumeCondition { abnormal: true, message: format!("{} is missing", data.display()) },
        }
    }

    pub(super) async fn get_capacity(
        self: Arc<Self>,
        request: GetCapacityRequest,
    ) -> Result<GetCapacityResponse, Status> {
        let possible = request.volume_capabilities.iter().all(|capability| check::supported(capability).is_ok());
        let places = &self.options.places;
        let here = request
            .accessible_topology
            .is_none_or(|topology| places.is_empty() || places.iter().any(|place| is_at(place, &topology.segments)));
        let free =
            if possible && here { (self.options.capacity_bytes - self.state().allocated_bytes).max(0) } else { 0 };
        Ok(GetCapacityResponse { available_capacity: free, maximum_volume_size: Some(free), minimum_volume_size: None })
    }

    pub(super) async fn validate_volume_capabilities(
        self: Arc<Self>,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let id = check::id(&request.volume_id, "volume_id")?;
        if request.volume_capabilities.is_empty() {
            return Err(check::missing("volume_capabilities"));
        }
        let volume = self.volume(id)?;
        let unsupported = request.volume_capabilities.iter().find_map(|value| check::supported(value).err());
        let differs = |given: &Texts, known: &Texts| !given.is_empty() && given != known;
        let problem = unsupported
            .or_else(|| {
                let other = differs(&request.volume_context, &volume.record.context());
                other.then(|| "the volume has another context".to_owned())
            })
            .or_else(|| {
                let other = differs(&request.parameters, &volume.record.parameters);
                other.then(|| "the volume has other parameters".to_owned())
            })
            .or_else(|| {
                let other = differs(&request.mutable_parameters, &volume.record.mutable_parameters);
                other.then(|| "the volume has other mutable parameters".to_owned())
            });
        Ok(match problem {
            Some(message) => ValidateVolumeCapabilitiesResponse { confirmed: None, message },
            None => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(validate_volume_capabilities_response::Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                }),
                message: String::new(),
            },
        })
    }

    pub(super) async fn controller_expand_volume(
        self: Arc<Self>,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        let range = request.capacity_range.ok_or_else(|| check::missing("capacity_range"))?;
        if !self.options.expansion.in_controller() {
            return Err(Status::unimplemented("volumes of this driver are not expanded by the controller"));
        }
        self.volume(&id)?;
        if let Some(capability) = &request.volume_capability {
            check::supported(capability).map_err(Status::invalid_argument)?;
        }
        let node_expansion_required = self.options.expansion.on_node();
        let capacity_bytes = self.expand(id, range).await?;
        Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required })
    }

    /// Expands a volume if it is smaller than requested; returns its size.
    pub(super) async fn expand(self: Arc<Self>, id: String, range: CapacityRange) -> Result<i64, Status> {
        let held = vec![self.locks.exclusive(&id).await];
        let volume = self.volume(&id)?;
        let current = volume.record.size_bytes;
        let size = check::size(Some(&range), current, current)?;
        if size == current {
            return Ok(current);
        }
        self.check_size(size)?;
        self.run(held, move |driver| {
            driver.allocate(size - current)?;
            let written = driver.update_volume(VolumeRecord { size_bytes: size, ..(*volume.record).clone() });
            let grown = driver.volume(&id).is_ok_and(|volume| volume.record.size_bytes == size);
            if !grown {
                driver.state().allocated_bytes -= size - current;
            }
            written.map(|()| size)
        })
        .await
    }

    pub(super) async fn controller_modify_volume(
        self: Arc<Self>,
        request: ControllerModifyVolumeRequest,
    ) -> Result<ControllerModifyVolumeResponse, Status> {
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        let held = vec![self.locks.exclusive(&id).await];
        let volume = self.volume(&id)?;
        let wanted = check::mutable(&request.mutable_parameters, &self.options.mutable_parameters)?;
        let mut record = (*volume.record).clone();
        // Parameters that the request does not name stay unchanged.
        record.mutable_parameters.extend(wanted);
        if record == *volume.record {
            return Ok(ControllerModifyVolumeResponse {});
        }
        self.run(held, move |driver| driver.update_volume(record)).await?;
        Ok(ControllerModifyVolumeResponse {})
    }

    pub(super) async fn controller_publish_volume(
        self: Arc<Self>,
        request: ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        self.attaches()?;
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        let node = check::id(&request.node_id, "node_id")?.to_owned();
        let capability = request.volume_capability.as_ref().ok_or_else(|| check::missing("volume_capability"))?;
        let held = vec![self.locks.exclusive(&id).await];
        let volume = self.volume(&id)?;
        if !self.options.nodes.contains(&node) {
            return Err(Status::not_found(format!("there is no node {node:?}")));
        }
        let mode = check::capability(capability)?;
        let done = ControllerPublishVolumeResponse { publish_context: Texts::new() };
        match volume.record.attached.get(&node) {
            Some(there) if there.readonly == request.readonly => return Ok(done),
            Some(_) => {
                let text = format!("{id} is published to {node:?} with another readonly flag");
                return Err(Status::already_exists(text));
            }
            None => {}
        }
        let alone =
            !matches!(mode, Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter);
        if let (Some(other), true) = (volume.record.attached.keys().next(), alone) {
            return Err(Status::failed_precondition(format!("{id} is published to the node {other:?}")));
        }
        let mut record = (*volume.record).clone();
        record.attached.insert(node, Attachment { readonly: request.readonly });
        self.run(held, move |driver| driver.update_volume(record)).await?;
        Ok(done)
    }

    pub(super) async fn controller_unpublish_volume(
        self: Arc<Self>,
        request: ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        self.attaches()?;
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        let held = vec![self.locks.exclusive(&id).await];
        let volume = match self.volume(&id) {
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(ControllerUnpublishVolumeResponse {}),
            volume => volume?,
        };
        let mut record = (*volume.record).clone();
        record.attached.retain(|node, _| !request.node_id.is_empty() && *node != request.node_id);
        if record != *volume.record {
            self.run(held, move |driver| driver.update_volume(record)).await?;
        }
        Ok(ControllerUnpublishVolumeResponse {})
    }

    fn attaches(&self) -> Result<(), Status> {
        match self.options.attach {
            true => Ok(()),
            false => Err(Status::unimplemented("volumes of this driver are not published by the controller")),
        }
    }
}

fn content_source(source: Option<&VolumeContentSource>) -> Result<Option<Source>, Status> {
    let Some(source) = source else { return Ok(None) };
    match &source.r#type {
        Some(SourceType::Volume(volume)) => {
            Ok(Some(Source::Volume(check::id(&volume.volume_id, "volume_content_source.volume.volume_id")?.to_owned())))
        }
        Some(SourceType::Snapshot(snapshot)) => {
            let id = check::id(&snapshot.snapshot_id, "volume_content_source.snapshot.snapshot_id")?;
            Ok(Some(Source::Snapshot(id.to_owned())))
        }
        None => Err(check::missing("volume_content_source.type")),
    }
}

fn may_be_at(place: &Texts, wanted: Option<&TopologyRequirement>) -> bool {
    wanted.is_none_or(|wanted| {
        wanted.requisite.is_empty() || wanted.requisite.iter().any(|topology| is_at(place, &topology.segments))
    })
}
