//! What has the data of a world's volumes: the CSI driver, which can die in the middle of its calls, and comes back with what is on its disk;
//! and the directories of the plugin inside, which only die with their volumes.

use crate::directories::Directories;
use crate::ledger::Ledger;
use crate::point::Strike;
use csi::directory::{DirectoryDriver, Expansion, Faults, OpenError, Options, Order};
use csi::{Code, Endpoint};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Clones share it.
#[derive(Clone)]
pub struct Driver {
    life: Arc<Mutex<Life>>,
    pub inside: Directories,
    traits: Arc<Mutex<Traits>>,
    directory: Arc<TempDir>,
    /// Counts its calls. It knows the driver, too.
    ledger: Weak<Ledger>,
}

/// What stories may make of it, from its next start on.
#[derive(Clone, Copy)]
struct Traits {
    name: &'static str,
    expansion: Expansion,
    capacity_bytes: i64,
    /// Its volumes are compared with the objects this often; 0: never.
    monitor_interval_s: u64,
}

enum Life {
    /// It serves until this is cancelled.
    Up(Arc<DirectoryDriver>, CancellationToken),
    /// It is dead, and has left these volumes.
    Down(BTreeSet<String>),
}

fn handles(driver: &DirectoryDriver) -> BTreeSet<String> {
    driver.volumes().into_iter().map(|(handle, _)| handle).collect()
}

/// Calls are counted, and struck when it is time.
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
        let traits = Traits { name: csi::directory::DEFAULT_NAME, expansion, capacity_bytes, monitor_interval_s: 0 };
        let traits = Arc::new(Mutex::new(traits));
        let driver = Driver { life, inside: Directories::new(faults(&ledger)), traits, directory, ledger };
        driver.start().expect("an empty directory can be served");
        driver
    }

    fn traits(&self) -> MutexGuard<'_, Traits> {
        self.traits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From its next start on, and for processes that start after that.
    pub fn rename(&self, name: &'static str) {
        self.traits().name = name;
    }

    /// From its next start on a volume has grown only when a node has done its part.
    pub fn grow_on_nodes(&self) {
        self.traits().expansion = Expansion::Both;
    }

    /// Processes that start after this compare volumes with those of the driver.
    pub fn monitor(&self) {
        self.traits().monitor_interval_s = 5;
    }

    /// How processes are to use it.
    pub fn options(&self) -> plan::csi::Options {
        plan::csi::Options { monitor_interval_s: self.traits().monitor_interval_s, ..plan::csi::Options::default() }
    }

    /// Moves the data of a volume away, or back.
    pub fn lose_data(&self, handle: &str, lost: bool) {
        let home = self.directory.path().join("volumes/volumes").join(handle);
        let (data, aside) = (home.join("data"), home.join("aside"));
        let moved = if lost { std::fs::rename(data, aside) } else { std::fs::rename(aside, data) };
        moved.expect("the volume is on disk");
    }

    /// From its next start on all volumes together are no larger.
    pub fn limit(&self, capacity_bytes: i64) {
        self.traits().capacity_bytes = capacity_bytes;
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails as long as something of its last life is not over.
    pub fn start(&self) -> Result<(), OpenError> {
        let mut life = self.life();
        if matches!(*life, Life::Down(_)) {
            let Traits { name, expansion, capacity_bytes, .. } = *self.traits();
            let name = name.to_owned();
            let options =
                Options { name, expansion, capacity_bytes, durable: false, inline: true, ..Options::default() };
            let place = self.directory.path().join("volumes");
            let driver = DirectoryDriver::open(&place, options, faults(&self.ledger))?;
            *life = Life::Up(driver, CancellationToken::new());
        }
        Ok(())
    }

    /// Whether it was alive: all connections break, and calls end where they are.
    pub fn kill(&self) -> bool {
        let mut life = self.life();
        let Life::Up(driver, dead) = &*life else { return false };
        dead.cancel();
        driver.end();
        let left = handles(driver);
        *life = Life::Down(left);
        true
    }

    /// The volumes that there are, by their handles, and the directories, by their paths.
    pub fn handles(&self) -> BTreeSet<String> {
        let mut there = match &*self.life() {
            Life::Up(driver, _) => handles(driver),
            Life::Down(left) => left.clone(),
        };
        there.append(&mut self.inside.paths());
        there
    }

    /// The sizes of its volumes.
    pub fn sizes(&self) -> BTreeMap<String, i64> {
        match &*self.life() {
            Life::Up(driver, _) => driver.sizes().into_iter().collect(),
            Life::Down(_) => BTreeMap::new(),
        }
    }

    /// Has it misbehave, if it is alive; and directories likewise.
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

    /// As a process reaches it, until that dies.
    pub fn endpoint(&self, process: CancellationToken) -> Endpoint {
        let driver = self.clone();
        csi::directory::inside(self.traits().name, process, move || match &*driver.life() {
            Life::Up(driver, dead) => Some((driver.clone(), dead.clone())),
            Life::Down(_) => None,
        })
    }
}
