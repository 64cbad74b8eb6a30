//! The store on a real etcd.

mod guarantees;
mod support;
