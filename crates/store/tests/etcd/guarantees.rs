//! Every guarantee that the other backends are held to.

use crate::support::{open, place, shared};
use store::suite::GUARANTEES;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_holds_every_guarantee() {
    let Some(members) = shared() else { return };
    for (name, check) in GUARANTEES {
        let store = open(&place(&members)).await;
        let done = tokio::spawn(check(store)).await;
        done.unwrap_or_else(|failure| panic!("etcd breaks `{name}`: {failure}"));
    }
}
