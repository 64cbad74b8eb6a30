//! Every backend must pass every guarantee, each on a fresh store.

use std::sync::Arc;
use store::suite::{Crashable, GUARANTEES, finish};
use store::{Embedded, Options, Store, Volatile};

async fn hold(backend: &str, make: impl Fn() -> Arc<dyn Store>) {
    for (name, check) in GUARANTEES {
        let done = tokio::spawn(check(make())).await;
        done.unwrap_or_else(|failure| panic!("{backend} breaks `{name}`: {failure}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_volatile_store_holds_every_guarantee() {
    hold("volatile", || Volatile::new(finish, Options::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_store_holds_every_guarantee() {
    let root = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicUsize::new(0);
    hold("embedded", || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Embedded::open(&root.path().join(number.to_string()), finish, Options::default()).unwrap()
    })
    .await;
}

/// As simulations use it: without threads, on a disk in memory.
#[tokio::test]
async fn the_inline_embedded_store_holds_every_guarantee() {
    let options = Options { inline: true, ..Options::default() };
    hold("embedded inline", || Embedded::open_on(Arc::new(Crashable::default()), finish, options).unwrap()).await;
}
