//! Tests of the store on a real etcd.

mod copies;
mod full;
mod guarantees;
mod members;
mod opening;
mod servers;
mod support;
