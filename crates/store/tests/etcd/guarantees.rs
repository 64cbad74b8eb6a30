//! Every guarantee that the other backends are held to.

use crate::support::{open, place};
use store::suite::{GUARANTEES, Members};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_holds_every_guarantee() {
    // The past is forgotten here, which others would notice.
    let Some(members) = Members::start(1) else { return };
    for (name, check) in GUARANTEES {
        let store = open(&place(&members)).await;
        let done = tokio::spawn(check(store)).await;
        done.unwrap_or_else(|failure| panic!("etcd breaks `{name}`: {failure}"));
    }
}
