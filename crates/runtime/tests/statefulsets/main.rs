//! The StatefulSet controller against the real server in one process, with a fake kubelet.

mod cost;
mod creation;
mod healing;
mod history;
mod in_place;
mod in_place_skew;
mod in_place_trouble;
mod kubelet;
mod ordinals;
mod ownership;
mod request_faults;
mod retention;
mod revisions;
mod scaling;
mod sets;
mod storage;
mod updates;
#[path = "../controllers/world.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod world;
