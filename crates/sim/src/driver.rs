//! Storage backends of a world: the CSI driver, which can be killed during a call and restarts with its disk, and the
//! directories of the in-tree plugin.

use crate::commit_checker::CommitChecker;
use crate::directories::Directories;
use crate::fault_point::Fault;
use csi::directory::{DirectoryDriver, Expansion, Faults, OpenError, Options, Order};
use csi::{Code, Endpoint};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Clones share one driver.
#[derive(Clone)]
pub struct Driver {
    state: Arc<Mutex<DriverState>>,
    pub inside: Directories,
    traits: Arc<Mutex<DriverSettings>>,
    directory: Arc<TempDir>,
    /// Counts the calls of the driver. `Weak`, because the checker holds the driver too.
    commit_checker: Weak<CommitChecker>,
}

/// Settings that stories change. They apply from the next start.
#[derive(Clone, Copy)]
struct DriverSettings {
    name: &'static str,
    expansion: Expansion,
    capacity_bytes: i64,
    /// Interval at which volumes are compared with their PVs, in seconds. 0 disables it.
    monitor_interval_s: u64,
}

enum DriverState {
    /// Serves until the token is cancelled.
    Running(Arc<DirectoryDriver>, CancellationToken),
    /// Killed. These volumes are on its disk.
    Stopped(BTreeSet<String>),
}

fn handles(driver: &DirectoryDriver) -> BTreeSet<String> {
    driver.volumes().into_iter().map(|(handle, _)| handle).collect()
}

/// Counts each call, and injects a fault into it when one is due.
fn faults(commit_checker: &Weak<CommitChecker>) -> Faults {
    let commit_checker = commit_checker.clone();
    Faults::asking(move |call, subject| match commit_checker.upgrade()?.points.fault_for_call(call, subject)? {
        Fault::LostCall => Some(Order::lose_answer(call)),
        _ => Some(Order::fail(call, Code::Internal)),
    })
}

impl Driver {
    pub fn new(commit_checker: &Arc<CommitChecker>) -> Driver {
        let directory = Arc::new(tempfile::tempdir().expect("a directory for volumes"));
        let state = Arc::new(Mutex::new(DriverState::Stopped(BTreeSet::new())));
        let commit_checker = Arc::downgrade(commit_checker);
        let Options { expansion, capacity_bytes, .. } = Options::default();
        let settings =
            DriverSettings { name: csi::directory::DEFAULT_NAME, expansion, capacity_bytes, monitor_interval_s: 0 };
        let traits = Arc::new(Mutex::new(settings));
        let driver =
            Driver { state, inside: Directories::new(faults(&commit_checker)), traits, directory, commit_checker };
        driver.start().expect("an empty directory can be served");
        driver
    }

    fn traits(&self) -> MutexGuard<'_, DriverSettings> {
        self.traits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the driver's name from its next start, for processes that start after that.
    pub fn rename(&self, name: &'static str) {
        self.traits().name = name;
    }

    /// From the next start, an expansion is complete only after the node has expanded the file system.
    pub fn grow_on_nodes(&self) {
        self.traits().expansion = Expansion::Both;
    }

    /// Enables the volume health monitor in processes that start after this call.
    pub fn monitor(&self) {
        self.traits().monitor_interval_s = 5;
    }

    /// Options of the processes that use this driver.
    pub fn options(&self) -> plan::csi::Options {
        plan::csi::Options { monitor_interval_s: self.traits().monitor_interval_s, ..plan::csi::Options::default() }
    }

    /// Moves the data of a volume away (`lost`), or back.
    pub fn lose_data(&self, handle: &str, lost: bool) {
        let home = self.directory.path().join("volumes/volumes").join(handle);
        let (data, aside) = (home.join("data"), home.join("aside"));
        let moved = if lost { std::fs::rename(data, aside) } else { std::fs::rename(aside, data) };
        moved.expect("the volume is on disk");
    }

    /// From the next start, limits the total size of all volumes.
    pub fn limit(&self, capacity_bytes: i64) {
        self.traits().capacity_bytes = capacity_bytes;
    }

    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails while tasks of the killed driver still run.
    pub fn start(&self) -> Result<(), OpenError> {
        let mut state = self.state();
        if matches!(*state, DriverState::Stopped(_)) {
            let DriverSettings { name, expansion, capacity_bytes, .. } = *self.traits();
            let name = name.to_owned();
            let options =
                Options { name, expansion, capacity_bytes, durable: false, inline: true, ..Options::default() };
            let place = self.directory.path().join("volumes");
            let driver = DirectoryDriver::open(&place, options, faults(&self.commit_checker))?;
            *state = DriverState::Running(driver, CancellationToken::new());
        }
        Ok(())
    }

    /// Breaks all connections and stops all calls where they are. Returns whether the driver was running.
    pub fn kill(&self) -> bool {
        let mut state = self.state();
        let DriverState::Running(driver, killed) = &*state else { return false };
        killed.cancel();
        driver.end();
        let left = handles(driver);
        *state = DriverState::Stopped(left);
        true
    }

    /// Handles of all existing volumes, and paths of all existing directories.
    pub fn handles(&self) -> BTreeSet<String> {
        let mut there = match &*self.state() {
            DriverState::Running(driver, _) => handles(driver),
            DriverState::Stopped(left) => left.clone(),
        };
        there.append(&mut self.inside.paths());
        there
    }

    /// Size in bytes of each volume, by handle.
    pub fn sizes(&self) -> BTreeMap<String, i64> {
        match &*self.state() {
            DriverState::Running(driver, _) => driver.sizes().into_iter().collect(),
            DriverState::Stopped(_) => BTreeMap::new(),
        }
    }

    /// Injects a fault into the directories, and into the driver if it runs.
    pub fn inject(&self, order: Order) {
        self.inside.faults.order(order.clone());
        if let DriverState::Running(driver, _) = &*self.state() {
            driver.faults().order(order);
        }
    }

    pub fn clear_faults(&self) {
        self.inside.faults.clear();
        if let DriverState::Running(driver, _) = &*self.state() {
            driver.faults().clear();
        }
    }

    /// The driver's endpoint for one process, until that process is killed.
    pub fn endpoint(&self, process: CancellationToken) -> Endpoint {
        let driver = self.clone();
        csi::directory::inside(self.traits().name, process, move || match &*driver.state() {
            DriverState::Running(driver, killed) => Some((driver.clone(), killed.clone())),
            DriverState::Stopped(_) => None,
        })
    }
}
