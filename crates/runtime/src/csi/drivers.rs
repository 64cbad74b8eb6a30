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
    /// How often one was met that was not known, or not so.
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

    /// Looks who is at a socket, again and again. Whoever calls the driver that was there notices that another has come, but it may be called by nobody.
    async fn serve(&self, endpoint: &Endpoint, remote: &Remote) {
        let mut is_first = true;
        loop {
            let driver = remote.meet().await;
            let remote_of_it = Arc::new(remote.called(&driver.name));
            let known = Known { remote: remote_of_it, driver: Arc::new(driver), pace: endpoint.pace };
            self.add(known, &endpoint.socket, is_first).await;
            is_first = false;
            tokio::select! {
                biased;
                () = remote.until_another_answers() => {}
                () = tokio::time::sleep(endpoint.pace.look) => {}
            }
        }
    }

    /// One that was met at a socket: for the first time, again, or in the place of another. What is known at another socket stays there as long as it
    /// answers, or two sockets of one driver would take it from each other with every look.
    async fn add(&self, known: Known, socket: &csi::Endpoint, is_first: bool) {
        let name = known.driver.name.clone();
        let is_news = match self.get(&name) {
            None => true,
            // Another version may say other things of itself.
            Some(before) if before.remote.is_beside(&known.remote) => before.driver != known.driver,
            Some(before) => {
                let has_moved = before.remote.about().await.is_err();
                if is_first && !has_moved {
                    tracing::warn!(driver = name, endpoint = %socket, "another endpoint is of this CSI driver, and counts");
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
            // Under the lock: whoever finds a driver finds it counted.
            self.count.send_modify(|count| *count += 1);
        }
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

    pub fn all(&self) -> Vec<Known> {
        self.lock().values().cloned().collect()
    }

    /// The first that is responsible, by name.
    pub fn find(&self, is_responsible: impl Fn(&str) -> bool) -> Option<Known> {
        self.lock().iter().find(|(name, _)| is_responsible(name)).map(|(_, known)| known.clone())
    }

    /// How many [`Drivers::arrivals`] there were.
    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Tells of drivers that are met from now on, and of what they say of themselves if that is new.
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

    /// Each socket is looked at over and over, and the driver stays where it was met, as long as it is there.
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
            endpoints.push(Endpoint { pace: Pace { look: Duration::from_millis(5), ..Pace::default() }, ..endpoint });
        }
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let drivers = Drivers::start(&endpoints, &csi::Metrics::default(), &tasks, &shutdown);
        drivers.arrivals().wait_for(|count| *count == 2).await.expect("both are met");
        let known = |name: &str| drivers.get(name).expect("it is known").remote;
        let (name, met) = (csi::directory::DEFAULT_NAME, known(csi::directory::DEFAULT_NAME));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(drivers.count() == 2 && drivers.are_all_met() && known(name).is_beside(&met));
        shutdown.cancel();
    }
}
