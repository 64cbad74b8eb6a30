//! Planners without a server.

use crate::count::Allocated;
use crate::limits::hold;
use crate::worlds::{Shelves, World};
use object::access::Access;
use object::json;

const COUNT: u64 = 20;

fn guard<T>(what: &str, plan: impl Fn() -> T) {
    drop(plan());
    let before = Allocated::so_far();
    for _ in 0..COUNT {
        drop(plan());
    }
    hold(what, COUNT, before.since());
}

#[test]
fn plans() {
    let world = World::settled(5, "OrderedReady");
    guard("plan of a settled set of 5", || world.plan());
    let mut world = World::settled(100, "Parallel");
    guard("plan of a settled set of 100", || world.plan());
    world.set.put(&["spec", "template", "metadata", "annotations"], json!({"restartedAt": "now"}));
    guard("plan of a set of 100 with a new template", || world.plan());
    let shelves = Shelves::filled(1000);
    guard("plan of a claim among 1,000 volumes", || shelves.plan());
}
