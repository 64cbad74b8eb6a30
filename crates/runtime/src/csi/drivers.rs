//! The drivers of this process: met when they first answer, known by name from then on.

use super::remote::Remote;
use super::{Endpoint, Pace};
use plan::csi::Driver;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Clones share what is known.
#[derive(Clone)]
pub struct Drivers {
    known: Arc<Mutex<BTreeMap<String, Known>>>,
    /// How often one was met that was not known.
    count: Arc<watch::Sender<usize>>,
    /// The sockets at which none was met yet.
    awaited: Arc<AtomicUsize>,
    is_empty: bool,
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
        let drivers = Drivers {
            known: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
            awaited: Arc::new(AtomicUsize::new(endpoints.len())),
            is_empty: endpoints.is_empty(),
        };
        for endpoint in endpoints {
            let (drivers, shutdown) = (drivers.clone(), shutdown.clone());
            let (socket, remote, pace) = (endpoint.socket.clone(), Remote::new(endpoint, metrics), endpoint.pace);
            let serve = async move {
                let mut is_first = true;
                loop {
                    let driver = remote.meet().await;
                    let known = Known { remote: Arc::new(remote.called(&driver.name)), driver: Arc::new(driver), pace };
                    drivers.add(known, &socket, is_first);
                    is_first = false;
                    remote.until_another_answers().await;
                }
            };
            tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => {}
                    () = serve => {}
                }
            });
        }
        drivers
    }

    /// One that was met at a socket, for the first time or in the place of another, which may have been there before.
    fn add(&self, known: Known, socket: &csi::Endpoint, is_first: bool) {
        let name = known.driver.name.clone();
        let mut drivers = self.lock();
        match drivers.get(&name) {
            Some(before) if before.remote.is_beside(&known.remote) => return,
            Some(_) => tracing::warn!(driver = name, "two endpoints are of one CSI driver; the later one counts"),
            None => {}
        }
        tracing::info!(driver = name, endpoint = %socket, "serving the CSI driver");
        drivers.insert(name, known);
        if is_first {
            self.awaited.fetch_sub(1, Ordering::SeqCst);
        }
        drop(drivers);
        self.count.send_modify(|count| *count += 1);
    }

    /// Whether any were asked for.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Whether each has answered once.
    pub fn are_all_met(&self) -> bool {
        self.awaited.load(Ordering::SeqCst) == 0
    }

    pub fn get(&self, name: &str) -> Option<Known> {
        self.lock().get(name).cloned()
    }

    /// Whether a driver is somebody else's: all of ours are known, and it is none of them.
    pub fn is_foreign(&self, name: &str) -> bool {
        self.are_all_met() && self.get(name).is_none()
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
