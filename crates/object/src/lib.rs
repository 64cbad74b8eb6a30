//! API objects: kinds, metadata, schema, defaults, validation, selectors, patches, server-side apply, tables, feature
//! gates.
//!
//! Everything here is a pure function on [`Value`]. This crate must never know tokio, clocks or sockets: time and
//! randomness are arguments.
//!
//! Begin with [`kind`] for the description of a kind, [`kinds`] for the built-in kinds, and [`mod@write`] for what
//! every write does to an object.

pub mod access;
pub mod apply;
pub mod condition;
pub mod crd;
pub mod decode;
pub mod field;
pub mod gates;
pub mod kind;
pub mod kinds;
pub mod meta;
pub mod name;
pub mod openapi;
pub mod patch;
pub mod pod;
pub mod protobuf;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;
pub mod table;
pub mod value;
pub mod well_known;
pub mod write;

pub use field::{Errors, Path};
pub use gates::Gates;
pub use kind::{Kind, Kinds, Rules};
pub use status::Status;
pub use value::{Map, Value};
