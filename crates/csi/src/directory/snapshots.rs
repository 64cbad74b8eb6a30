//! Snapshots: copies of a volume's data.

use super::record::SnapshotRecord;
use super::state::Kind;
use super::{DirectoryDriver, check, failed, page};
use crate::v1::*;
use std::sync::Arc;
use tonic::{Code, Status};

impl DirectoryDriver {
    /// The snapshot with this id, or why it is not served.
    pub(super) fn snapshot(&self, id: &str) -> Result<Arc<SnapshotRecord>, Status> {
        let state = self.state();
        if let Some(snapshot) = state.snapshots.get(id) {
            return Ok(Arc::clone(snapshot));
        }
        Err(match state.damaged.get(id) {
            Some(why) => Status::internal(format!("{id} cannot be served: {why}")),
            None => Status::not_found(format!("there is no snapshot {id:?}")),
        })
    }

    pub(super) async fn create_snapshot(
        self: Arc<Self>,
        request: CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        check::name(&request.name, "name")?;
        let source = check::id(&request.source_volume_id, "source_volume_id")?.to_owned();
        let mut held = vec![self.locks.exclusive(&format!("snapshot name {}", request.name)).await];
        let existing = {
            let state = self.state();
            state.snapshot_names.get(&request.name).map(|id| state.snapshots[id].clone())
        };
        if let Some(existing) = existing {
            if existing.source_volume_id != source {
                let (name, id, other) = (&existing.name, &existing.id, &existing.source_volume_id);
                return Err(Status::already_exists(format!("the snapshot {name:?} exists as {id}, of {other}")));
            }
            return Ok(CreateSnapshotResponse { snapshot: Some(existing.snapshot()) });
        }
        held.push(self.locks.shared(&source).await);
        let record = SnapshotRecord {
            id: Kind::Snapshot.new_id(),
            name: request.name,
            size_bytes: self.volume(&source)?.record.size_bytes,
            source_volume_id: source,
            created: jiff::Timestamp::now(),
        };
        self.run(held, move |driver| {
            let from = driver.files.data(Kind::Volume, &record.source_volume_id);
            let bytes = super::record::encode(&record);
            let fill = |disk: &super::disk::Disk, data: &std::path::Path| disk.copy_tree(&from, data);
            driver.files.create(Kind::Snapshot, &record.id, &bytes, fill).map_err(failed)?;
            let snapshot = record.snapshot();
            driver.state().add_snapshot(record).map_err(Status::internal)?;
            Ok(CreateSnapshotResponse { snapshot: Some(snapshot) })
        })
        .await
    }

    pub(super) async fn delete_snapshot(
        self: Arc<Self>,
        request: DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse, Status> {
        let id = check::id(&request.snapshot_id, "snapshot_id")?.to_owned();
        let held = vec![self.locks.exclusive(&id).await];
        match self.snapshot(&id) {
            Err(status) if status.code() == Code::NotFound => return Ok(DeleteSnapshotResponse {}),
            snapshot => snapshot?,
        };
        self.run(held, move |driver| {
            driver.files.remove(Kind::Snapshot, &id).map_err(failed)?;
            driver.state().remove_snapshot(&id);
            Ok(DeleteSnapshotResponse {})
        })
        .await
    }

    pub(super) async fn get_snapshot(
        self: Arc<Self>,
        request: GetSnapshotRequest,
    ) -> Result<GetSnapshotResponse, Status> {
        let snapshot = self.snapshot(check::id(&request.snapshot_id, "snapshot_id")?)?;
        Ok(GetSnapshotResponse { snapshot: Some(snapshot.snapshot()) })
    }

    pub(super) async fn list_snapshots(
        self: Arc<Self>,
        request: ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let state = self.state();
        let wanted = |snapshot: &SnapshotRecord| {
            (request.snapshot_id.is_empty() || snapshot.id == request.snapshot_id)
                && (request.source_volume_id.is_empty() || snapshot.source_volume_id == request.source_volume_id)
        };
        let snapshots = state.snapshots.iter().filter(|(_, snapshot)| wanted(snapshot));
        let (page, next_token) = page(snapshots, Kind::Snapshot, &request.starting_token, request.max_entries)?;
        let entry =
            |snapshot: &Arc<SnapshotRecord>| list_snapshots_response::Entry { snapshot: Some(snapshot.snapshot()) };
        Ok(ListSnapshotsResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }
}
