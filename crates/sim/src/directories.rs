//! Simulated directories of one machine: the volumes of the in-tree plugin. Only their existence is simulated, not
//! their content.

use csi::directory::{Faults, Order};
use runtime::Work;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time that a directory operation takes before its effect, and again after it. Other tasks can run meanwhile.
const WORK_TIME: Duration = Duration::from_millis(3);

/// Clones share the directories.
#[derive(Clone)]
pub struct Directories {
    paths: Arc<Mutex<BTreeSet<String>>>,
    /// Injected faults. A fault of CreateVolume applies to making a directory, one of DeleteVolume to removing it.
    pub faults: Arc<Faults>,
}

impl Directories {
    pub fn new(faults: Faults) -> Directories {
        Directories { paths: Arc::default(), faults: Arc::new(faults) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All existing paths.
    pub fn paths(&self) -> BTreeSet<String> {
        self.lock().clone()
    }

    /// Adds a directory as a user would.
    pub fn add(&self, path: &str) {
        self.lock().insert(path.to_owned());
    }

    /// Access for one process, until that process is killed.
    pub fn for_process(&self, process: CancellationToken) -> Arc<dyn runtime::Directories> {
        Arc::new(ProcessDirectories { directories: self.clone(), process })
    }
}

struct ProcessDirectories {
    directories: Directories,
    process: CancellationToken,
}

impl ProcessDirectories {
    /// Runs `change` on the paths, with delays and injected faults. Succeeds also if `change` had nothing to do.
    fn work(&self, call: &'static str, path: String, change: fn(&mut BTreeSet<String>, String) -> bool) -> Work {
        let (directories, process) = (self.directories.clone(), self.process.clone());
        Box::pin(async move {
            // The error case is an unreadable fault file, and there is no such file here.
            let order = directories.faults.take(call, &path).ok().flatten().unwrap_or_default();
            let Order { after, delay_ms, .. } = order;
            tokio::time::sleep(WORK_TIME + Duration::from_millis(delay_ms)).await;
            let failure = order.failure().map(|status| status.message().to_owned());
            let failure = failure.or_else(|| order.drop_connection.then(|| format!("{call} was interrupted")));
            if process.is_cancelled() {
                return Err("the process was killed".to_owned());
            }
            if let Some(failure) = failure.as_ref().filter(|_| !after) {
                return Err(failure.clone());
            }
            change(&mut directories.lock(), path);
            tokio::time::sleep(WORK_TIME).await;
            failure.map_or(Ok(()), Err)
        })
    }
}

impl runtime::Directories for ProcessDirectories {
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
