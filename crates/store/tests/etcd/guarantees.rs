//! etcd passes the same guarantees as the other backends.

use crate::support::{open, place};
use store::suite::{GUARANTEES, Members};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_holds_every_guarantee() {
    // The guarantees compact revisions, which would disturb tests that share an etcd.
    let Some(members) = Members::start(1) else { return };
    for (name, check) in GUARANTEES {
        let store = open(&place(&members)).await;
        let done = tokio::spawn(check(store)).await;
        done.unwrap_or_else(|failure| panic!("etcd breaks `{name}`: {failure}"));
    }
}
