//! An etcd that the tests share, each with a prefix of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use store::etcd::Config;
use store::suite::{Members, finish};
use store::{Etcd, Options, Store};

static SHARED: Mutex<Weak<Members>> = Mutex::new(Weak::new());

/// One member that lives as long as some test holds it; `None` (said on stdout) where no etcd is installed.
pub fn shared() -> Option<Arc<Members>> {
    let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(members) = shared.upgrade() {
        return Some(members);
    }
    let members = Arc::new(Members::start(1)?);
    *shared = Arc::downgrade(&members);
    Some(members)
}

/// A place that no other test uses.
pub fn place(members: &Members) -> Config {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let prefix = format!("/test/{}", COUNT.fetch_add(1, Ordering::Relaxed));
    Config::parse(&members.url()).unwrap().with_prefix(&prefix).unwrap()
}

pub async fn open(config: &Config) -> Arc<dyn Store> {
    Etcd::open(config, finish, Options::default()).await.unwrap()
}
