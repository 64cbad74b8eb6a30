//! The health monitor: compares volumes with what their drivers list, and says whose data is missing. In place of the
//! external-health-monitor-controller, for drivers with the option `monitor-interval`.

use super::drivers::{Drivers, Known};
use super::metrics::Metrics;
use super::{claims, say, volumes};
use crate::controllers::ControllerContext;
use futures::StreamExt;
use kit::Clock;
use kit::api::{Api, ApiError, Resource};
use kit::cache::{Cache, Key};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::events::{EventSubject, Events};
use kit::queue::Queue;
use kit::worker::{self, Source};
use object::Value;
use object::access::{Access, name, uid};
use plan::csi::Event;
use plan::csi::health;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// While data is missing, or a driver does not answer, its volumes are compared again after this time at the latest.
const AGAIN_SOON: Duration = Duration::from_secs(5);
/// One comparison writes about this many volumes at most, so that a lost directory with thousands of volumes does not flood the server.
/// The metric counts all at once.
const WRITTEN_MAX: usize = 200;
/// Volumes that are written about at once.
const AT_ONCE: usize = 8;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "csi-health-monitor-controller",
    account: "csi-health-monitor",
    scope: Scope::Cluster,
    rules: &[
        allow("get list watch", "core", "persistentvolumes"),
        allow("get", "core", "persistentvolumeclaims"),
        allow("patch", "core", "persistentvolumes/status persistentvolumeclaims/status"),
    ],
};

/// Monitors the drivers that say so, until the context stops.
pub async fn run(context: ControllerContext) {
    let mut arrivals = context.drivers.arrivals();
    // Without such a driver volumes are not even followed.
    while monitored(&context.drivers).is_empty() {
        tokio::select! {
            biased;
            () = context.shutdown.cancelled() => return,
            changed = arrivals.changed() => if changed.is_err() { return },
        }
    }
    let monitor = Arc::new(Monitor {
        api: context.api.clone(),
        events: context.events.clone(),
        metrics: context.metrics.csi.clone(),
        clock: context.clock.clone(),
        drivers: context.drivers.clone(),
        volume_cache: Cache::default(),
        reported: Mutex::default(),
        counts: Mutex::default(),
        claims: claims(),
        volumes: volumes(),
    });
    let queue = Arc::new(Queue::new(context.metrics.kit.queue(context.name)));
    // One key is enough: each piece of work compares all drivers.
    queue.add(Key::default());
    let source = Source::new(volumes(), |_| Vec::new()).into(monitor.volume_cache.clone());
    let worker = worker::run_with(context, queue.clone(), vec![source], 1, move |_| {
        let monitor = monitor.clone();
        async move { Ok(Some(monitor.compare_all().await)) }
    });
    let wake = async {
        while arrivals.changed().await.is_ok() {
            queue.add(Key::default());
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        () = worker => {}
        () = wake => {}
    }
}

fn monitored(drivers: &Drivers) -> Vec<Known> {
    drivers.all().into_iter().filter(|known| known.driver.options.monitor_interval_s > 0).collect()
}

struct Monitor {
    api: Api,
    events: Events,
    metrics: Metrics,
    clock: Clock,
    drivers: Drivers,
    volume_cache: Cache,
    /// Volumes that were reported as missing, by uid.
    reported: Mutex<HashMap<String, Report>>,
    /// Volumes whose data is missing, by driver: a changed count is worth a log line.
    counts: Mutex<HashMap<String, usize>>,
    claims: Resource,
    volumes: Resource,
}

/// What was said of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    message: String,
    claim_uid: String,
}

/// A volume about which something is to be written.
struct Finding {
    volume: Arc<Value>,
    /// Why its data is missing; `None`: it is back.
    why: Option<String>,
}

impl Monitor {
    /// Compares the volumes of all monitored drivers; returns when to do so again.
    async fn compare_all(&self) -> Duration {
        let mut again = Duration::from_secs(3600);
        for known in monitored(&self.drivers) {
            again = again.min(self.compare(&known).await);
        }
        again
    }

    async fn compare(&self, known: &Known) -> Duration {
        let driver = known.driver.name.as_str();
        let interval = Duration::from_secs(known.driver.options.monitor_interval_s);
        if !known.driver.can.list_conditions {
            tracing::debug!(
                driver,
                "the CSI driver does not list the conditions of its volumes: they are not monitored"
            );
            return interval;
        }
        // First the PVs, then the driver's list: the driver has had every volume whose PV exists by then.
        let volumes = self.volume_cache.all();
        let listed = match known.remote.list().await {
            Ok(listed) => listed,
            Err(failure) => {
                tracing::debug!(driver, %failure, "the CSI driver does not list its volumes");
                return interval.min(AGAIN_SOON);
            }
        };
        self.forget_all_but(&volumes);
        let (mut missing, mut findings) = (0, Vec::new());
        for volume in volumes {
            let Some(handle) = health::expected_handle(&volume, driver) else { continue };
            let why = match listed.get(handle) {
                Some(why) => why.clone(),
                None => Some(format!("the CSI driver {driver} has no volume {handle}, or cannot read its record")),
            };
            missing += usize::from(why.is_some());
            if self.is_news(&volume, why.as_deref()) {
                findings.push(Finding { volume, why });
            }
        }
        let is_done = findings.len() <= WRITTEN_MAX;
        findings.truncate(WRITTEN_MAX);
        let written = findings.into_iter().map(|finding| self.write(driver, finding));
        let results: Vec<_> = futures::stream::iter(written).buffer_unordered(AT_ONCE).collect().await;
        let false_alarms = results.iter().filter(|result| matches!(result, Ok(false))).count();
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            tracing::debug!(driver, %error, "cannot write that a volume's data is missing; trying again");
        }
        self.count(driver, missing - false_alarms.min(missing));
        let is_quiet = missing == 0 && is_done && results.iter().all(Result::is_ok);
        if is_quiet { interval } else { interval.min(AGAIN_SOON) }
    }

    /// Whether what is found out about a volume is not yet said of it, or of its claim.
    fn is_news(&self, volume: &Value, why: Option<&str>) -> bool {
        let reported = self.reported();
        match why {
            Some(why) => reported.get(uid(volume)) != Some(&Report::of(volume, why)),
            None => reported.contains_key(uid(volume)) || health::says_missing(volume),
        }
    }

    /// Writes what was found out about a volume. False if its data is not missing after all, because it was deleted meanwhile.
    async fn write(&self, driver: &str, finding: Finding) -> Result<bool, ApiError> {
        // The cache may be late: a volume that is being deleted has no data and must not be reported.
        let path = self.volumes.object("", name(&finding.volume));
        let live = self.api.find(&path).await?;
        let live = live.filter(|live| uid(live) == uid(&finding.volume));
        let Some(volume) = live.filter(|live| health::expected_handle(live, driver).is_some()) else {
            return Ok(false);
        };
        let reference = volume.at(&["spec", "claimRef"]).cloned().unwrap_or_default();
        let message = finding.why.as_deref().map(|why| health::message(&volume, why));
        if message.is_some() {
            self.write_volume(&path, &volume, message.as_deref()).await?;
            self.write_claim(&volume, &reference, message.as_deref()).await?;
        } else {
            // In the other order: the PV says it as long as the claim does, also when this process dies in between.
            self.write_claim(&volume, &reference, None).await?;
            self.write_volume(&path, &volume, None).await?;
        }
        let event = match (&finding.why, message) {
            (Some(why), Some(message)) => {
                self.reported().insert(uid(&volume).to_owned(), Report::of(&volume, why));
                Event::warning(health::MISSING, message)
            }
            _ => {
                self.reported().remove(uid(&volume));
                let message = format!("PersistentVolume {}: its data is there again", name(&volume));
                Event::normal(health::FOUND, message)
            }
        };
        let about = EventSubject { resource: &self.volumes, namespace: "", name: name(&volume), uid: uid(&volume) };
        say(&self.events, &about, &event);
        if !reference.text(&["uid"]).is_empty() {
            let text = |field| reference.text(&[field]);
            let about = EventSubject {
                resource: &self.claims,
                namespace: text("namespace"),
                name: text("name"),
                uid: text("uid"),
            };
            let message = format!("PersistentVolumeClaim {}/{}: {}", text("namespace"), text("name"), event.message);
            say(&self.events, &about, &Event { message, ..event });
        }
        Ok(true)
    }

    async fn write_volume(&self, path: &str, volume: &Value, missing: Option<&str>) -> Result<(), ApiError> {
        if let Some(patch) = health::volume_status(volume, missing) {
            self.volume_cache.wrote(self.api.merge(&format!("{path}/status"), &patch).await?);
        }
        Ok(())
    }

    async fn write_claim(&self, volume: &Value, reference: &Value, missing: Option<&str>) -> Result<(), ApiError> {
        let path = self.claims.object(reference.text(&["namespace"]), reference.text(&["name"]));
        if reference.text(&["uid"]).is_empty() {
            return Ok(());
        }
        let Some(claim) = self.api.find(&path).await?.filter(|claim| health::is_claim_of(claim, volume)) else {
            return Ok(());
        };
        if let Some(patch) = health::claim_status(&claim, missing, (self.clock)()) {
            self.api.merge(&format!("{path}/status"), &patch).await?;
        }
        Ok(())
    }

    /// Forgets what was said of volumes that are gone.
    fn forget_all_but(&self, volumes: &[Arc<Value>]) {
        let mut reported = self.reported();
        if !reported.is_empty() {
            let present: HashSet<&str> = volumes.iter().map(|volume| uid(volume)).collect();
            reported.retain(|uid, _| present.contains(uid.as_str()));
        }
    }

    /// Sets the metric, and logs a count that changed.
    fn count(&self, driver: &str, missing: usize) {
        self.metrics.data_missing(driver, missing);
        let before = self.counts.lock().expect("no panic happens under this lock").insert(driver.to_owned(), missing);
        match before.unwrap_or(0) {
            before if before == missing => {}
            _ if missing > 0 => tracing::warn!(driver, volumes = missing, "volumes whose data is missing"),
            _ => tracing::info!(driver, "no volume's data is missing any more"),
        }
    }

    fn reported(&self) -> MutexGuard<'_, HashMap<String, Report>> {
        self.reported.lock().expect("no panic happens under this lock")
    }
}

impl Report {
    fn of(volume: &Value, why: &str) -> Report {
        Report { message: why.to_owned(), claim_uid: volume.text(&["spec", "claimRef", "uid"]).to_owned() }
    }
}
