//! The directories of a world's machine, which are the volumes of the plugin inside. What is in them does not matter: only whether they are there.

use csi::directory::{Faults, Order};
use runtime::Work;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long work on a directory takes before it is done, and after: others may do something meanwhile.
const WORK: Duration = Duration::from_millis(3);

/// Clones share them.
#[derive(Clone)]
pub struct Directories {
    paths: Arc<Mutex<BTreeSet<String>>>,
    /// They misbehave as drivers do: what makes one is called CreateVolume, and what removes one DeleteVolume.
    pub faults: Arc<Faults>,
}

impl Directories {
    pub fn new(faults: Faults) -> Directories {
        Directories { paths: Arc::default(), faults: Arc::new(faults) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that there are.
    pub fn paths(&self) -> BTreeSet<String> {
        self.lock().clone()
    }

    /// A person makes one.
    pub fn add(&self, path: &str) {
        self.lock().insert(path.to_owned());
    }

    /// As a process reaches them, until it dies.
    pub fn reached_by(&self, process: CancellationToken) -> Arc<dyn runtime::Directories> {
        Arc::new(Reached { directories: self.clone(), process })
    }
}

struct Reached {
    directories: Directories,
    process: CancellationToken,
}

impl Reached {
    /// Whether `change` finds something to do does not matter.
    fn work(&self, call: &'static str, path: String, change: fn(&mut BTreeSet<String>, String) -> bool) -> Work {
        let (directories, process) = (self.directories.clone(), self.process.clone());
        Box::pin(async move {
            // There is no file of orders that could be unreadable.
            let order = directories.faults.take(call, &path).ok().flatten().unwrap_or_default();
            let Order { after, delay_ms, .. } = order;
            tokio::time::sleep(WORK + Duration::from_millis(delay_ms)).await;
            let failure = order.failure().map(|status| status.message().to_owned());
            let failure = failure.or_else(|| order.drop_connection.then(|| format!("{call} was interrupted")));
            if process.is_cancelled() {
                return Err("the process has died".to_owned());
            }
            if let Some(failure) = failure.as_ref().filter(|_| !after) {
                return Err(failure.clone());
            }
            change(&mut directories.lock(), path);
            tokio::time::sleep(WORK).await;
            failure.map_or(Ok(()), Err)
        })
    }
}

impl runtime::Directories for Reached {
    fn make(&self, path: String) -> Work {
        self.work("CreateVolume", path, |paths, path| paths.insert(path))
    }

    fn destroy(&self, path: String) -> Work {
        self.work("DeleteVolume", path, |paths, path| paths.remove(&path))
    }

    fn scrub(&self, path: String) -> Work {
        self.work("DeleteVolume", path, |paths, path| paths.contains(&path))
    }
}
