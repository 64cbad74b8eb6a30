//! Volumes that a user restores into the directory while the driver runs, for example from a backup.

use super::state::Kind;
use super::{DirectoryDriver, failed};
use std::sync::Arc;
use tonic::Status;

impl DirectoryDriver {
    /// Serves volumes that are on disk and not known yet.
    pub(super) async fn serve_returned(self: &Arc<Self>) {
        let unknown = self.clone().run(Vec::new(), |driver| driver.unknown_volumes()).await;
        for (id, name) in unknown.unwrap_or_default() {
            // The same lock order as in CreateVolume and DeleteVolume, so that neither runs for this volume.
            let by_name = self.locks.exclusive(&format!("volume name {name}")).await;
            let held = vec![by_name, self.locks.exclusive(&id).await];
            let serve = move |driver: &DirectoryDriver| {
                driver.serve_volume(&id);
                Ok(())
            };
            if let Err(status) = self.clone().run(held, serve).await {
                tracing::warn!(%status, "cannot serve a volume that was restored into the directory");
            }
        }
    }

    /// The ids and names of volumes that are on disk and not known.
    fn unknown_volumes(&self) -> Result<Vec<(String, String)>, Status> {
        let present = self.files.ids_on_disk(Kind::Volume).map_err(failed)?;
        let unknown: Vec<String> = {
            let state = self.state();
            present.into_iter().filter(|id| !state.volumes.contains_key(id)).collect()
        };
        let named =
            unknown.into_iter().filter_map(|id| self.files.reread_volume(&id).ok().map(|record| (id, record.name)));
        Ok(named.collect())
    }

    fn serve_volume(&self, id: &str) {
        let Ok(record) = self.files.reread_volume(id) else { return };
        let used = self.files.read_use(id, &mut Vec::new());
        let mut state = self.state();
        if state.volumes.contains_key(id) {
            return;
        }
        match state.add_volume(record, used) {
            Ok(()) => {
                state.damaged.remove(id);
                tracing::info!(id, "serving a volume that was restored into the directory");
            }
            Err(why) => tracing::warn!(id, %why, "cannot serve a volume that was restored into the directory"),
        }
    }
}
