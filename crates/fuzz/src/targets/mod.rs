//! The targets: the parsers under test, and the properties that must hold for every input.

mod answers;
mod applied;
mod applied_items;
mod backups;
mod decoding;
mod driver;
mod json_patch;
mod patches;
mod requests;
mod selectors;
mod stored;
mod strategic;

use crate::Target;

pub const ALL: &[Target] = &[
    Target { name: "requests", start: requests::start },
    Target { name: "json", start: || Box::new(decoding::json) },
    Target { name: "yaml", start: || Box::new(decoding::yaml) },
    Target { name: "protobuf", start: || Box::new(decoding::protobuf) },
    Target { name: "selectors", start: || Box::new(selectors::read) },
    Target { name: "patches", start: || Box::new(patches::read) },
    Target { name: "json-patch", start: || Box::new(json_patch::chosen) },
    Target { name: "strategic", start: || Box::new(strategic::read) },
    Target { name: "apply", start: || Box::new(applied::read) },
    Target { name: "apply-items", start: || Box::new(applied_items::read) },
    Target { name: "driver", start: driver::start },
    Target { name: "answers", start: answers::start },
    Target { name: "store", start: stored::start },
    Target { name: "backup", start: || Box::new(backups::read) },
];
