//! The drivers of this process: met when they first answer, known by name from then on.

use super::remote::Remote;
use super::{Endpoint, Pace};
use plan::csi::Driver;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Clones share what is known.
#[derive(Clone)]
pub struct Drivers {
    known: Arc<Mutex<BTreeMap<String, Known>>>,
    /// How many are known.
    count: Arc<watch::Sender<usize>>,
    expected: usize,
}

/// A driver that has answered.
#[derive(Clone)]
pub struct Known {
    pub remote: Arc<Remote>,
    /// As it described itself when it was met.
    pub driver: Arc<Driver>,
    pub pace: Pace,
}

impl Drivers {
    /// Starts to look for drivers at their endpoints, among `tasks`.
    pub fn start(
        endpoints: &[Endpoint],
        metrics: &csi::Metrics,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Drivers {
        let drivers =
            Drivers { known: Arc::default(), count: Arc::new(watch::Sender::new(0)), expected: endpoints.len() };
        for endpoint in endpoints {
            let (drivers, shutdown) = (drivers.clone(), shutdown.clone());
            let (socket, remote, pace) = (endpoint.socket.clone(), Remote::new(endpoint, metrics), endpoint.pace);
            tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => {}
                    driver = remote.meet() => {
                        tracing::info!(driver = driver.name, endpoint = %socket, "serving the CSI driver");
                        drivers.add(Known { remote: Arc::new(remote), driver: Arc::new(driver), pace });
                    }
                }
            });
        }
        drivers
    }

    fn add(&self, known: Known) {
        let name = known.driver.name.clone();
        if self.lock().insert(name.clone(), known).is_some() {
            tracing::warn!(driver = name, "two endpoints are of one CSI driver; the later one counts");
        }
        self.count.send_modify(|count| *count += 1);
    }

    /// Whether any were asked for.
    pub fn is_empty(&self) -> bool {
        self.expected == 0
    }

    /// Whether each has answered once.
    pub fn are_all_met(&self) -> bool {
        *self.count.borrow() >= self.expected
    }

    pub fn get(&self, name: &str) -> Option<Known> {
        self.lock().get(name).cloned()
    }

    pub fn all(&self) -> Vec<Known> {
        self.lock().values().cloned().collect()
    }

    /// The first that is responsible, by name.
    pub fn find(&self, is_responsible: impl Fn(&str) -> bool) -> Option<Known> {
        self.lock().iter().find(|(name, _)| is_responsible(name)).map(|(_, known)| known.clone())
    }

    /// Tells of drivers that are met from now on.
    pub fn arrivals(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().expect("no panic happens under this lock")
    }
}
