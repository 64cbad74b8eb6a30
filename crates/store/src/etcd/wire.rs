//! Generated types of etcd's messages, and of this store's values in etcd.

#![allow(clippy::all, clippy::nursery, clippy::pedantic)] // Generated.

pub mod rpc {
    tonic::include_proto!("etcdserverpb");
}

pub mod layout {
    tonic::include_proto!("layout");
}
