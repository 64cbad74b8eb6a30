//! Corrects wrong quota statuses: a client wrote the status, or a deletion was committed without it.
//!
//! Usage is exact as long as only counted writes change it (see the parent module). It is counted again when a client
//! writes a quota, when a deletion was committed without usage, and every few minutes for all quotas, as in
//! upstream's quota controller.

use super::{QUOTAS, epoch_key, usage, write_status};
use crate::admission::AtomicWrites;
use crate::app::Server;
use crate::object_store::{self, Reader};
use object::Status;
use object::access::Access;
use std::sync::Arc;
use std::time::Duration;
use store::{Error, Next, Range, Record};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// As upstream's `--resource-quota-sync-period`.
const RESYNC_EVERY: Duration = Duration::from_secs(5 * 60);
/// Pause after a failed write.
const RETRY_AFTER: Duration = Duration::from_secs(5);
const EVENTS_PER_READ: usize = 64;

pub async fn run(server: Arc<Server>, shutdown: CancellationToken) {
    shutdown.run_until_cancelled(follow(&server)).await;
}

async fn follow(server: &Server) {
    let reader = Reader { store: server.store.clone() };
    loop {
        // Start the watch before the resync, so that no change between them is missed.
        let Ok(mut watcher) = server.store.watch(QUOTAS, server.store.revision()) else {
            tokio::time::sleep(RETRY_AFTER).await;
            continue;
        };
        let mut resync_at = Instant::now() + resync(&reader).await;
        loop {
            let next = tokio::select! {
                biased;
                () = tokio::time::sleep_until(resync_at) => break,
                () = server.admission.recount_quotas.notified() => break,
                next = watcher.next(EVENTS_PER_READ) => next,
            };
            let events = match next {
                Next::Events { events, .. } => events,
                Next::Compacted { .. } => break,
                Next::Closed => return,
            };
            for record in events.iter().filter_map(|event| event.current.as_ref()) {
                if let Err(error) = correct_unsettled(&reader, record).await {
                    resync_at = resync_at.min(Instant::now() + report(&error));
                }
            }
        }
    }
}

/// Counts all quotas again. Returns the time until the next resync.
async fn resync(reader: &Reader) -> Duration {
    let records = match reader.store.list(Range { prefix: QUOTAS, ..Range::default() }) {
        Ok(page) => page.records,
        Err(error) => return report(&Status::internal(error)),
    };
    for record in records {
        if let Err(error) = correct(reader, &record).await {
            return report(&error);
        }
        // Counting may take long for a namespace with many objects.
        tokio::task::yield_now().await;
    }
    RESYNC_EVERY
}

fn report(error: &Status) -> Duration {
    tracing::warn!(%error, "cannot correct the status of a ResourceQuota; trying again");
    RETRY_AFTER
}

/// Corrects a quota that a client has written and that no counted write has settled since.
async fn correct_unsettled(reader: &Reader, record: &Record) -> Result<(), Status> {
    let epoch = namespace_of(record).and_then(|namespace| reader.store.get(&epoch_key(namespace)));
    match epoch {
        Some(epoch) if record.modified <= epoch.modified => correct(reader, record).await,
        _ => Ok(()),
    }
}

/// Counts the usage of a quota's namespace, and writes it if the status differs.
async fn correct(reader: &Reader, record: &Record) -> Result<(), Status> {
    let Some(namespace) = namespace_of(record) else { return Ok(()) };
    // In this order: a change of usage after the count writes the quota, or depends on an older epoch.
    let key = epoch_key(namespace);
    let epoch = reader.store.get(&key);
    let Some(current) = reader.store.get(&record.key) else { return Ok(()) };
    let quota = object_store::parse(&current)?;
    let mut corrected = quota.clone();
    write_status(&mut corrected, &usage::count(reader, namespace, &quota)?);
    if corrected.at(&["status"]) == quota.at(&["status"]) {
        return Ok(());
    }
    let mut together = AtomicWrites::default();
    together.require(&key, epoch.as_ref());
    together.require(&record.key, Some(&current));
    together.put(&record.key, &corrected);
    match reader.store.txn(together.txn).await {
        Ok(_) => {
            let name = record.key.strip_prefix(QUOTAS).unwrap_or(&record.key);
            tracing::info!(quota = name, "corrected the status of a ResourceQuota");
            Ok(())
        }
        // The other writer of quota or epoch caused another event.
        Err(Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(crate::verbs::store_status(&error)),
    }
}

fn namespace_of(record: &Record) -> Option<&str> {
    record.key.strip_prefix(QUOTAS)?.split_once('/').map(|(namespace, _)| namespace)
}
