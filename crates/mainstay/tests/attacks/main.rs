//! Attacks that once worked, against the real program over real connections. One file per attack; the table in
//! `docs/quality/robustness.md` ("Attacks") names the test of each.

mod clients;
mod full_etcd;
mod greedy_user;
mod half_restored;
mod huge_sets;
mod open_files;
mod special_files;
// `support` is shared with the other test programs; each uses a part of it.
mod stale_leader;
#[path = "../support/mod.rs"]
mod support;
