//! Storage backends of a world: the CSI driver, which can be killed during a call and restarts with its disk, and the
//! directories of the in-tree plugin.

use crate::commit_checker::Ledger;
use crate::directories::Directories;
use crate::fault_point::Strike;
use csi::directory::{DirectoryDriver, Expansion, Faults, OpenError, Options, Order};
use csi::{Code, Endpoint};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Clones share one driver.
#[derive(Clone)]
pub struct Driver {
    life: Arc<Mutex<Life>>,
    pub inside: Directories,
    traits: Arc<Mutex<Traits>>,
    directory: Arc<TempDir>,
    /// Counts the calls of the driver. `Weak`, because the checker holds the driver too.
    ledger: Weak<Ledger>,
}

/// Settings that stories change. They apply from the next start.
#[derive(Clone, Copy)]
struct Traits {
    name: &'static str,
    expansion: Expansion,
    capacity_bytes: i64,
}

enum Life {
    /// Serves until the token is cancelled.
    Up(Arc<DirectoryDriver>, CancellationToken),
    /// Killed. These volumes are on its disk.
    Down(BTreeSet<String>),
}

fn handles(driver: &DirectoryDriver) -> BTreeSet<String> {
    driver.volumes().into_iter().map(|(handle, _)| handle).collect()
}

/// Counts each call, and injects a fault into it when one is due.
fn faults(ledger: &Weak<Ledger>) -> Faults {
    let ledger = ledger.clone();
    Faults::asking(move |call, subject| match ledger.upgrade()?.points.called(call, subject)? {
        Strike::LostCall => Some(Order::lose_answer(call)),
        _ => Some(Order::fail(call, Code::Internal)),
    })
}

impl Driver {
    pub fn new(ledger: &Arc<Ledger>) -> Driver {
        let directory = Arc::new(tempfile::tempdir().expect("a directory for volumes"));
        let life = Arc::new(Mutex::new(Life::Down(BTreeSet::new())));
        let ledger = Arc::downgrade(ledger);
        let Options { expansion, capacity_bytes, .. } = Options::default();
        let traits = Arc::new(Mutex::new(Traits { name: csi::directory::DEFAULT_NAME, expansion, capacity_bytes }));
        let driver = Driver { life, inside: Directories::new(faults(&ledger)), traits, directory, ledger };
        driver.start().expect("an empty directory can be served");
        driver
    }

    fn traits(&self) -> MutexGuard<'_, Traits> {
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

    /// From the next start, limits the total size of all volumes.
    pub fn limit(&self, capacity_bytes: i64) {
        self.traits().capacity_bytes = capacity_bytes;
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails while tasks of the killed driver still run.
    pub fn start(&self) -> Result<(), OpenError> {
        let mut life = self.life();
        if matches!(*life, Life::Down(_)) {
            let Traits { name, expansion, capacity_bytes } = *self.traits();
            let name = name.to_owned();
            let options =
                Options { name, expansion, capacity_bytes, durable: false, inline: true, ..Options::default() };
            let place = self.directory.path().join("volumes");
            let driver = DirectoryDriver::open(&place, options, faults(&self.ledger))?;
            *life = Life::Up(driver, CancellationToken::new());
        }
        Ok(())
    }

    /// Breaks all connections and stops all calls where they are. Returns whether the driver was running.
    pub fn kill(&self) -> bool {
        let mut life = self.life();
        let Life::Up(driver, dead) = &*life else { return false };
        dead.cancel();
        driver.end();
        let left = handles(driver);
        *life = Life::Down(left);
        true
    }

    /// Handles of all existing volumes, and paths of all existing directories.
    pub fn handles(&self) -> BTreeSet<String> {
        let mut there = match &*self.life() {
            Life::Up(driver, _) => handles(driver),
            Life::Down(left) => left.clone(),
        };
        there.append(&mut self.inside.paths());
        there
    }

    /// Size in bytes of each volume, by handle.
    pub fn sizes(&self) -> BTreeMap<String, i64> {
        match &*self.life() {
            Life::Up(driver, _) => driver.sizes().into_iter().collect(),
            Life::Down(_) => BTreeMap::new(),
        }
    }

    /// Injects a fault into the directories, and into the driver if it runs.
    pub fn misuse(&self, order: Order) {
        self.inside.faults.order(order.clone());
        if let Life::Up(driver, _) = &*self.life() {
            driver.faults().order(order);
        }
    }

    pub fn behave(&self) {
        self.inside.faults.clear();
        if let Life::Up(driver, _) = &*self.life() {
            driver.faults().clear();
        }
    }

    /// The driver's endpoint for one process, until that process is killed.
    pub fn endpoint(&self, process: CancellationToken) -> Endpoint {
        let driver = self.clone();
        csi::directory::inside(self.traits().name, process, move || match &*driver.life() {
            Life::Up(driver, dead) => Some((driver.clone(), dead.clone())),
            Life::Down(_) => None,
        })
    }
}
