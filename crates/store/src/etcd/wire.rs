//! Generated types of etcd's messages, and of this store's values in etcd.

#![allow(clippy::all, clippy::nursery, clippy::pedantic)] // Generated.

pub mod rpc {
    include!("../../generated/etcdserverpb.rs");
}

pub mod layout {
    include!("../../generated/layout.rs");
}
