//! Scenarios by their ids in the specification, and property tests.

mod world;

mod bounds;
mod contested;
mod creation;
mod history;
mod in_place;
mod in_place_trouble;
mod long_plans;
mod properties;
mod retention;
mod scaling;
mod total;
mod updates;
mod whole_replicas;

use super::Held;

fn not_ready(pod: &str) -> Held {
    Held::NotReady { pod: pod.to_owned() }
}

fn leaving(pod: &str) -> Held {
    Held::Terminating { pod: pod.to_owned() }
}
