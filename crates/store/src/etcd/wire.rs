//! etcd's messages, and ours inside its values.

#![allow(clippy::all, clippy::nursery, clippy::pedantic)] // Generated.

pub mod rpc {
    tonic::include_proto!("etcdserverpb");
}

pub mod layout {
    tonic::include_proto!("layout");
}
