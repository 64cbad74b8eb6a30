//! Tests of the directory driver and the client, over a real socket.

mod client;
mod driver;
mod faults;
mod open;
mod path_traversal;
mod sanity_controller;
mod sanity_identity;
mod sanity_node;
mod sanity_snapshots;
mod wire;
mod world;
