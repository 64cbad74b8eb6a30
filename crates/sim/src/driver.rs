//! The CSI driver of a world: it can die in the middle of its calls, and comes back with what is on its disk.

use crate::ledger::Ledger;
use crate::point::Strike;
use csi::directory::{DirectoryDriver, Faults, OpenError, Options, Order};
use csi::{Code, Endpoint};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Clones share it.
#[derive(Clone)]
pub struct Driver {
    life: Arc<Mutex<Life>>,
    directory: Arc<TempDir>,
    /// Counts its calls. It knows the driver, too.
    ledger: Weak<Ledger>,
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

impl Driver {
    pub fn new(ledger: &Arc<Ledger>) -> Driver {
        let directory = Arc::new(tempfile::tempdir().expect("a directory for volumes"));
        let life = Arc::new(Mutex::new(Life::Down(BTreeSet::new())));
        let driver = Driver { life, directory, ledger: Arc::downgrade(ledger) };
        driver.start().expect("an empty directory can be served");
        driver
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails as long as something of its last life is not over.
    pub fn start(&self) -> Result<(), OpenError> {
        let mut life = self.life();
        if matches!(*life, Life::Down(_)) {
            let options = Options { durable: false, inline: true, ..Options::default() };
            let ledger = self.ledger.clone();
            let faults = Faults::asking(move |call, subject| match ledger.upgrade()?.points.called(call, subject)? {
                Strike::LostCall => Some(Order::lose_answer(call)),
                _ => Some(Order::fail(call, Code::Internal)),
            });
            let driver = DirectoryDriver::open(&self.directory.path().join("volumes"), options, faults)?;
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

    /// The volumes that there are.
    pub fn handles(&self) -> BTreeSet<String> {
        match &*self.life() {
            Life::Up(driver, _) => handles(driver),
            Life::Down(left) => left.clone(),
        }
    }

    /// The sizes of its volumes.
    pub fn sizes(&self) -> BTreeMap<String, i64> {
        match &*self.life() {
            Life::Up(driver, _) => driver.sizes().into_iter().collect(),
            Life::Down(_) => BTreeMap::new(),
        }
    }

    /// Has it misbehave, if it is alive.
    pub fn misuse(&self, order: Order) {
        if let Life::Up(driver, _) = &*self.life() {
            driver.faults().order(order);
        }
    }

    pub fn behave(&self) {
        if let Life::Up(driver, _) = &*self.life() {
            driver.faults().clear();
        }
    }

    /// As a process reaches it, until that dies.
    pub fn endpoint(&self, process: CancellationToken) -> Endpoint {
        let driver = self.clone();
        csi::directory::inside(csi::directory::DEFAULT_NAME, process, move || match &*driver.life() {
            Life::Up(driver, dead) => Some((driver.clone(), dead.clone())),
            Life::Down(_) => None,
        })
    }
}
