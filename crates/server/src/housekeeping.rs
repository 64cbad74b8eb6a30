//! Periodic tasks of the server: deletes expired events and compacts old revisions.

use crate::app::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const EXPIRE_EVERY: Duration = Duration::from_secs(10);
/// Old revisions stay readable for at least this time, so that clients can finish paged lists and resume watches.
const COMPACT_EVERY: Duration = Duration::from_secs(300);

pub async fn run(server: Arc<Server>, shutdown: CancellationToken) {
    tokio::join!(expire(&server, &shutdown), compact(&server, &shutdown));
}

async fn expire(server: &Server, shutdown: &CancellationToken) {
    while pause(EXPIRE_EVERY, shutdown).await {
        let now_s = u64::try_from(server.env.clock.now().as_second()).unwrap_or(0);
        if let Err(error) = server.store.expire(now_s).await {
            tracing::warn!(%error, "cannot delete expired events; trying again");
        }
    }
}

async fn compact(server: &Server, shutdown: &CancellationToken) {
    // Compact up to the revision that was the newest one period ago.
    let mut newest_before = server.store.revision();
    while pause(COMPACT_EVERY, shutdown).await {
        if let Err(error) = server.store.compact(newest_before).await {
            tracing::warn!(%error, "cannot compact old revisions; trying again");
        }
        newest_before = server.store.revision();
    }
}

/// Waits. Returns false when the server stops.
async fn pause(length: Duration, shutdown: &CancellationToken) -> bool {
    tokio::select! {
        biased;
        () = tokio::time::sleep(length) => true,
        () = shutdown.cancelled() => false,
    }
}
