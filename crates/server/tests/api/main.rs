//! Tests of the whole server through its API, in process, with a store in memory.

mod support;

mod admission;
mod backup;
mod bounds;
mod client_certificates;
mod connections;
mod definitions;
mod deletion;
mod documents;
mod dry_runs;
mod durability;
mod every_right;
mod input;
mod lease_precondition;
mod lists;
mod nodes;
mod patches;
mod races;
mod security;
mod slow;
mod strangers;
mod taken;
mod upstream_specs;
mod volumes;
mod watches;
mod writes;
