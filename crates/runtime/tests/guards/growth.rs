//! Compares the cost of one piece of work with few and with many objects. It measures the CPU time of this
//! thread, which other processes hardly change. Both are measured several times in turn, and the minimum of
//! each counts.

use crate::limits::hold_growth;
use crate::world::*;
use crate::worlds::{Shelves, World as Sets};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

const ROUNDS: usize = 9;
/// How many times more objects.
const TIMES: usize = 32;

/// The CPU time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("time does not go back")
}

fn guard(what: &str, works: [&dyn Fn(); 2]) {
    let mut least = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (work, least) in works.iter().zip(&mut least) {
            let before = processor_time();
            work();
            *least = (*least).min(processor_time() - before);
        }
    }
    hold_growth(what, least);
}

#[test]
fn plans() {
    let worlds = [Sets::settled(25, "Parallel"), Sets::settled(25 * TIMES as i64, "Parallel")];
    // Both cases plan the same number of replicas.
    let [little, much] = &worlds;
    guard("a look at a replica", [&|| (0..TIMES).for_each(|_| drop(little.plan())), &|| drop(much.plan())]);
    let shelves = [Shelves::filled(200), Shelves::filled(200 * TIMES)];
    let [little, much] = &shelves;
    let plans = |shelves: &Shelves| (0..200).for_each(|_| drop(shelves.plan()));
    guard("a claim that finds a volume", [&|| plans(little), &|| plans(much)]);
}

/// The same number of requests of each kind, on a server with few objects and on one with many.
#[tokio::test]
async fn requests() {
    const FEW: usize = 200;
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let worlds = [World::bare().await, World::bare().await];
    for (world, count) in worlds.iter().zip([FEW, FEW * TIMES]) {
        world.create_many(count, |at| config_map("default", &format!("m-{at:05}"))).await;
    }
    for what in ["get", "list a page", "patch", "create and delete"] {
        let mut least = [Duration::MAX; 2];
        for round in 0..ROUNDS {
            for (world, least) in worlds.iter().zip(&mut least) {
                let before = processor_time();
                for at in 0..20 {
                    let map = config_map("default", &format!("m-{at:05}"));
                    match what {
                        "get" => drop(world.get(&path(&map)).await),
                        "list a page" => drop(world.get(&format!("{MAPS}?limit=10")).await),
                        "patch" => drop(world.merge(&map, object::json!({"data": {"round": round.to_string()}})).await),
                        _ => {
                            let map = world.create(config_map("default", &format!("new-{at}"))).await;
                            world.delete(&map, "").await;
                        }
                    }
                }
                *least = (*least).min(processor_time() - before);
            }
        }
        hold_growth(what, least);
    }
    for world in worlds {
        world.stop().await;
    }
}
