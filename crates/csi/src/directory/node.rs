//! The node service. Nothing is mounted: publishing a volume creates a symbolic link to its data at the target path.

use super::record::{Publication, Texts, UseRecord};
use super::state::{Kind, Volume};
use super::{DirectoryDriver, check, disk, failed};
use crate::v1::node_service_capability::{self as node, rpc::Type as Can};
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::*;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tonic::{Code, Status};
use tree::Dir;

impl DirectoryDriver {
    pub(super) async fn node_get_info(self: Arc<Self>, _: NodeGetInfoRequest) -> Result<NodeGetInfoResponse, Status> {
        let place = self.options.places.first();
        Ok(NodeGetInfoResponse {
            node_id: self.options.nodes.first().cloned().unwrap_or_default(),
            max_volumes_per_node: 0,
            accessible_topology: place.map(|place: &Texts| Topology { segments: place.clone() }),
        })
    }

    pub(super) async fn node_get_capabilities(
        self: Arc<Self>,
        _: NodeGetCapabilitiesRequest,
    ) -> Result<NodeGetCapabilitiesResponse, Status> {
        let mut kinds = vec![Can::GetVolumeStats, Can::VolumeCondition, Can::SingleNodeMultiWriter];
        if self.options.expansion.on_node() {
            kinds.push(Can::ExpandVolume);
        }
        if self.options.stage {
            kinds.push(Can::StageUnstageVolume);
        }
        let rpc = |kind: Can| Some(node::Type::Rpc(node::Rpc { r#type: kind.into() }));
        let capabilities = kinds.into_iter().map(|kind| NodeServiceCapability { r#type: rpc(kind) }).collect();
        Ok(NodeGetCapabilitiesResponse { capabilities })
    }

    pub(super) async fn node_stage_volume(
        self: Arc<Self>,
        request: NodeStageVolumeRequest,
    ) -> Result<NodeStageVolumeResponse, Status> {
        self.stages()?;
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        check::given(&request.staging_target_path, "staging_target_path")?;
        let capability = request.volume_capability.as_ref().ok_or_else(|| check::missing("volume_capability"))?;
        let held = vec![self.locks.exclusive(&id).await];
        let volume = self.volume(&id)?;
        let path = self.path(&request.staging_target_path, "staging_target_path")?;
        check::capability(capability)?;
        self.is_attached(&volume)?;
        self.has_data(&id)?;
        if volume.used.staged.contains(&path) {
            return Ok(NodeStageVolumeResponse {});
        }
        let mut used = (*volume.used).clone();
        used.staged.push(path);
        self.run(held, move |driver| driver.update_use(&id, used)).await?;
        Ok(NodeStageVolumeResponse {})
    }

    pub(super) async fn node_unstage_volume(
        self: Arc<Self>,
        request: NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        self.stages()?;
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        let path = self.path(&request.staging_target_path, "staging_target_path")?;
        let held = vec![self.locks.exclusive(&id).await];
        let volume = match self.volume(&id) {
            Err(status) if status.code() == Code::NotFound => return Ok(NodeUnstageVolumeResponse {}),
            volume => volume?,
        };
        let mut used = (*volume.used).clone();
        let before = used.staged.len();
        used.staged.retain(|staged| *staged != path);
        if used.staged.len() != before {
            self.run(held, move |driver| driver.update_use(&id, used)).await?;
        }
        Ok(NodeUnstageVolumeResponse {})
    }

    pub(super) async fn node_publish_volume(
        self: Arc<Self>,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        check::given(&request.target_path, "target_path")?;
        let capability = request.volume_capability.as_ref().ok_or_else(|| check::missing("volume_capability"))?;
        let held = vec![self.locks.exclusive(&id).await];
        let volume = self.volume(&id)?;
        let target = self.path(&request.target_path, "target_path")?;
        let mode = check::capability(capability)?;
        self.is_attached(&volume)?;
        if self.options.stage {
            let staged = self
                .path(&request.staging_target_path, "staging_target_path")
                .is_ok_and(|path| volume.used.staged.contains(&path));
            if !staged {
                return Err(Status::failed_precondition(format!("{id} is not staged at the staging_target_path")));
            }
        }
        let wanted = Publication { readonly: request.readonly, alone: mode == Mode::SingleNodeSingleWriter };
        self.run(held, move |driver| driver.publish(&volume, target, wanted)).await?;
        Ok(NodePublishVolumeResponse {})
    }

    fn publish(&self, volume: &Volume, target: String, wanted: Publication) -> Result<(), Status> {
        let id = &volume.record.id;
        let place = self.place(&target)?;
        if let Some(there) = volume.used.published.get(&target)
            && self.is_link(id, &target)
        {
            return match *there == wanted {
                true => Ok(()),
                false => Err(Status::already_exists(format!("{id} is published at {target} in another way"))),
            };
        }
        let others = self.targets_in_use(volume).filter(|other| **other != target);
        for other in others {
            if wanted.alone || volume.used.published[other].alone {
                return Err(Status::failed_precondition(format!(
                    "{id} is published at {other} to be used there alone"
                )));
            }
        }
        let data = self.has_data(id)?;
        let mut used = (*volume.used).clone();
        used.published.insert(target.clone(), wanted);
        // Record the target before the link: a recorded target without a link is harmless, an unrecorded link is not.
        self.update_use(id, used)?;
        self.make_room(id, &place, &target)?;
        let made = self.files.disk.link(&data, &place.0, &place.1);
        made.map_err(|error| Status::internal(format!("cannot publish at {target}: {error}")))
    }

    /// The parent directory of a target, and the target's name in it. Parents may be links, as on machines that keep
    /// the kubelet's files elsewhere; they are resolved once, here.
    fn place(&self, target: &str) -> Result<(Dir, OsString), Status> {
        let path = Path::new(target);
        let cannot = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Status::failed_precondition(format!("the directory of target_path {target} does not exist"))
            }
            _ => Status::internal(format!("cannot open the directory of target_path {target}: {error}")),
        };
        let place = Dir::open(disk::parent(path)).map_err(cannot)?;
        let own = Dir::open(&self.files.root).map_err(failed)?;
        match own.contains(&place).map_err(cannot)? {
            true => {
                let text = format!("target_path {target} resolves to the driver's own directory");
                Err(Status::invalid_argument(text))
            }
            false => Ok((place, path.file_name().unwrap_or_default().to_owned())),
        }
    }

    /// Removes what callers create at a target for a mount: an empty directory. An existing link of the driver is
    /// created again.
    fn make_room(&self, id: &str, (place, name): &(Dir, OsString), target: &str) -> Result<(), Status> {
        let meta = match place.meta(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            meta => meta.map_err(|error| Status::internal(format!("cannot read {target}: {error}")))?,
        };
        let occupied = |_| Status::failed_precondition(format!("another file exists at target_path {target}"));
        match meta.kind {
            tree::Kind::Directory => self.files.disk.remove_empty_dir(place, name).map_err(occupied),
            _ if self.is_link_in(id, place, name) => self.files.disk.remove_file_in(place, name).map_err(occupied),
            _ => Err(occupied(io::ErrorKind::AlreadyExists.into())),
        }
    }

    pub(super) async fn node_unpublish_volume(
        self: Arc<Self>,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        let target = self.path(&request.target_path, "target_path")?;
        let held = vec![self.locks.exclusive(&id).await];
        let volume = match self.volume(&id) {
            // Even a damaged volume can be unpublished.
            Err(status) if status.code() == Code::NotFound => None,
            volume => Some(volume?),
        };
        self.run(held, move |driver| {
            let path = Path::new(&target);
            let name = path.file_name().unwrap_or_default();
            // If the parent directory does not exist, neither does the link.
            if let Ok(place) = Dir::open(disk::parent(path))
                && driver.is_link_in(&id, &place, name)
            {
                let removed = driver.files.disk.remove_file_in(&place, name);
                removed.map_err(|error| Status::internal(format!("cannot remove {target}: {error}")))?;
            }
            if let Some(volume) = volume.filter(|volume| volume.used.published.contains_key(&target)) {
                let mut used = (*volume.used).clone();
                used.published.remove(&target);
                driver.update_use(&id, used)?;
            }
            Ok(NodeUnpublishVolumeResponse {})
        })
        .await
    }

    pub(super) async fn node_get_volume_stats(
        self: Arc<Self>,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        check::given(&request.volume_path, "volume_path")?;
        let volume = self.volume(&id)?;
        self.is_used_at(&volume, &request.volume_path)?;
        self.stats(volume).await
    }

    /// The response to NodeGetVolumeStats for a volume, wherever it is used. Simulated nodes do not publish their pods'
    /// volumes.
    pub async fn volume_stats(self: Arc<Self>, id: &str) -> Result<NodeGetVolumeStatsResponse, Status> {
        let volume = self.volume(id)?;
        self.stats(volume).await
    }

    async fn stats(self: Arc<Self>, volume: Volume) -> Result<NodeGetVolumeStatsResponse, Status> {
        let id = volume.record.id.clone();
        self.run(Vec::new(), move |driver| {
            let condition = driver.condition(&volume);
            if condition.abnormal {
                return Ok(NodeGetVolumeStatsResponse { usage: Vec::new(), volume_condition: Some(condition) });
            }
            let (bytes, _) = disk::usage(&driver.files.data(Kind::Volume, &id)).map_err(failed)?;
            let (total, used) = (volume.record.size_bytes, i64::try_from(bytes).unwrap_or(i64::MAX));
            let unit = volume_usage::Unit::Bytes.into();
            let usage = VolumeUsage { available: (total - used).max(0), total, used, unit };
            Ok(NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition: Some(condition) })
        })
        .await
    }

    pub(super) async fn node_expand_volume(
        self: Arc<Self>,
        request: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        let id = check::id(&request.volume_id, "volume_id")?.to_owned();
        check::given(&request.volume_path, "volume_path")?;
        let volume = self.volume(&id)?;
        self.is_used_at(&volume, &request.volume_path)?;
        if let Some(capability) = &request.volume_capability {
            check::supported(capability).map_err(Status::invalid_argument)?;
        }
        let range = request.capacity_range.unwrap_or_default();
        let capacity_bytes = match self.options.expansion {
            super::Expansion::Node => self.expand(id, range).await?,
            super::Expansion::Both if range.required_bytes > volume.record.size_bytes => {
                return Err(Status::out_of_range(format!("the controller has not expanded {id} to this size yet")));
            }
            super::Expansion::Both => volume.record.size_bytes,
            _ => return Err(Status::unimplemented("volumes of this driver are not expanded on the node")),
        };
        Ok(NodeExpandVolumeResponse { capacity_bytes })
    }

    /// The targets at which the volume's links still exist.
    pub(super) fn targets_in_use<'a>(&self, volume: &'a Volume) -> impl Iterator<Item = &'a String> {
        volume.used.published.keys().filter(|target| self.is_link(&volume.record.id, target))
    }

    /// Whether the driver's link to this volume is at the target.
    fn is_link(&self, id: &str, target: &str) -> bool {
        Kind::Volume.is_id(id) && std::fs::read_link(target).is_ok_and(|to| to == self.files.data(Kind::Volume, id))
    }

    fn is_link_in(&self, id: &str, place: &Dir, name: &OsStr) -> bool {
        Kind::Volume.is_id(id) && place.read_link(name).is_ok_and(|to| to == self.files.data(Kind::Volume, id))
    }

    /// Checks that the volume is used at a path. An invalid path is one where it is not used.
    fn is_used_at(&self, volume: &Volume, path: &str) -> Result<(), Status> {
        let is_used = |path: String| volume.used.published.contains_key(&path) || volume.used.staged.contains(&path);
        match self.path(path, "volume_path").is_ok_and(is_used) {
            true => Ok(()),
            false => Err(Status::not_found(format!("{} is not used at {path:?}", volume.record.id))),
        }
    }

    /// The directory of a volume's data. It is never created here: an empty directory would look like a volume without
    /// data.
    pub(super) fn has_data(&self, id: &str) -> Result<PathBuf, Status> {
        let data = self.files.data(Kind::Volume, id);
        match data.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            true => Ok(data),
            false => Err(Status::internal(format!(
                "the data of {id} is missing: there is no directory {}; restore it from a backup",
                data.display()
            ))),
        }
    }

    fn is_attached(&self, volume: &Volume) -> Result<(), Status> {
        match self.options.attach && volume.record.attached.is_empty() {
            true => Err(Status::failed_precondition(format!("{} is not published to any node", volume.record.id))),
            false => Ok(()),
        }
    }

    fn stages(&self) -> Result<(), Status> {
        match self.options.stage {
            true => Ok(()),
            false => Err(Status::unimplemented("volumes of this driver are not staged")),
        }
    }

    fn path(&self, value: &str, field: &str) -> Result<String, Status> {
        let path = check::path(value, field, &self.files.root)?;
        Ok(path.into_os_string().into_string().expect("it was text before"))
    }

    fn update_use(&self, id: &str, used: UseRecord) -> Result<(), Status> {
        self.files.write_use(id, &used).map_err(failed)?;
        if let Some(volume) = self.state().volumes.get_mut(id) {
            volume.used = Arc::new(used);
        }
        Ok(())
    }
}
