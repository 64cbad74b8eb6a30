//! The drivers of this process. A driver is registered by name when it first responds.

use super::remote::Remote;
use super::{DriverBackoff, Endpoint};
use plan::csi::Driver;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Clones share the registered drivers.
#[derive(Clone)]
pub struct Drivers {
    known: Arc<Mutex<BTreeMap<String, Known>>>,
    /// Counts registrations and changed descriptions of drivers.
    count: Arc<watch::Sender<usize>>,
    /// Endpoints whose driver has not responded yet.
    awaited: Arc<AtomicUsize>,
    is_empty: bool,
}

/// A driver that has responded.
#[derive(Clone)]
pub struct Known {
    pub remote: Arc<Remote>,
    /// The driver's own description, from its last registration.
    pub driver: Arc<Driver>,
    pub backoff: DriverBackoff,
}

impl Drivers {
    /// Starts one task per endpoint that registers the driver there. The tasks run in `tasks`.
    pub fn start(
        endpoints: &[Endpoint],
        metrics: &csi::Metrics,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Drivers {
        let drivers = Drivers {
            known: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
            awaited: Arc::new(AtomicUsize::new(endpoints.len())),
            is_empty: endpoints.is_empty(),
        };
        for endpoint in endpoints {
            let (drivers, endpoint, shutdown) = (drivers.clone(), endpoint.clone(), shutdown.clone());
            let remote = Remote::new(&endpoint, metrics);
            tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => {}
                    () = drivers.serve(&endpoint, &remote) => {}
                }
            });
        }
        drivers
    }

    /// Checks periodically which driver is at an endpoint. A call to the registered driver also notices that another
    /// one has replaced it, but there may be no calls.
    async fn serve(&self, endpoint: &Endpoint, remote: &Remote) {
        let mut is_first = true;
        loop {
            let driver = remote.meet().await;
            let remote_of_it = Arc::new(remote.called(&driver.name));
            let known = Known { remote: remote_of_it, driver: Arc::new(driver), backoff: endpoint.backoff };
            self.add(known, &endpoint.socket, is_first).await;
            is_first = false;
            tokio::select! {
                biased;
                () = remote.until_name_changes() => {}
                () = tokio::time::sleep(endpoint.backoff.look) => {}
            }
        }
    }

    /// Registers a driver: for the first time, with a new description, or in place of another one. A driver that is
    /// already registered at another endpoint stays there while that endpoint responds; otherwise two endpoints of one
    /// driver would replace each other at every check.
    async fn add(&self, known: Known, socket: &csi::Endpoint, is_first: bool) {
        let name = known.driver.name.clone();
        let is_news = match self.get(&name) {
            None => true,
            // The same endpoint: a new version of the driver may describe itself differently.
            Some(before) if before.remote.has_same_endpoint(&known.remote) => before.driver != known.driver,
            Some(before) => {
                let has_moved = before.remote.about().await.is_err();
                if is_first && !has_moved {
                    tracing::warn!(driver = name, endpoint = %socket, "CSI driver already registered at another endpoint; ignoring this endpoint");
                }
                has_moved
            }
        };
        let mut drivers = self.lock();
        if is_news {
            tracing::info!(driver = name, endpoint = %socket, "serving the CSI driver");
            drivers.insert(name, known);
        }
        if is_first {
            self.awaited.fetch_sub(1, Ordering::SeqCst);
        }
        if is_news || is_first {
            // Under the lock, so that every driver that `get` returns is counted.
            self.count.send_modify(|count| *count += 1);
        }
    }

    /// Whether this process has no CSI endpoints.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Whether the driver of every endpoint has responded at least once.
    pub fn are_all_met(&self) -> bool {
        self.awaited.load(Ordering::SeqCst) == 0
    }

    pub fn get(&self, name: &str) -> Option<Known> {
        self.lock().get(name).cloned()
    }

    pub fn all(&self) -> Vec<Known> {
        self.lock().values().cloned().collect()
    }

    /// The first driver by name for which `is_responsible` is true.
    pub fn find(&self, is_responsible: impl Fn(&str) -> bool) -> Option<Known> {
        self.lock().iter().find(|(name, _)| is_responsible(name)).map(|(_, known)| known.clone())
    }

    /// The number of [`Drivers::arrivals`] so far.
    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Changes whenever a driver is registered or its description changes.
    pub fn arrivals(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().expect("no panic happens under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi::directory::{DirectoryDriver, Faults, Options, Serving};
    use std::time::Duration;

    /// Each endpoint is checked repeatedly; the driver stays at the endpoint where it was registered first.
    #[tokio::test]
    async fn two_sockets_of_one_driver_do_not_take_it_from_each_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options { durable: false, ..Options::default() };
        let volumes = directory.path().join("volumes");
        let driver = DirectoryDriver::open(&volumes, options, Faults::default()).expect("a driver");
        let (mut endpoints, mut serving) = (Vec::new(), Vec::new());
        for socket in ["one", "two"] {
            let socket = directory.path().join(socket);
            serving.push(Serving::start(driver.clone(), &socket).await.expect("a socket"));
            let endpoint = Endpoint::parse(&socket.to_string_lossy()).expect("an endpoint");
            endpoints.push(Endpoint {
                backoff: DriverBackoff { look: Duration::from_millis(5), ..DriverBackoff::default() },
                ..endpoint
            });
        }
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let drivers = Drivers::start(&endpoints, &csi::Metrics::default(), &tasks, &shutdown);
        drivers.arrivals().wait_for(|count| *count == 2).await.expect("both are met");
        let known = |name: &str| drivers.get(name).expect("it is known").remote;
        let (name, met) = (csi::directory::DEFAULT_NAME, known(csi::directory::DEFAULT_NAME));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(drivers.count() == 2 && drivers.are_all_met() && known(name).has_same_endpoint(&met));
        shutdown.cancel();
    }
}
