//! What reads input, and what must hold whatever it reads.

mod applied;
mod decoding;
mod driver;
mod patches;
mod requests;
mod selectors;
mod stored;

use crate::Target;

pub const ALL: &[Target] = &[
    Target { name: "requests", start: requests::start },
    Target { name: "json", start: || Box::new(decoding::json) },
    Target { name: "yaml", start: || Box::new(decoding::yaml) },
    Target { name: "protobuf", start: || Box::new(decoding::protobuf) },
    Target { name: "selectors", start: || Box::new(selectors::read) },
    Target { name: "patches", start: || Box::new(patches::read) },
    Target { name: "apply", start: || Box::new(applied::read) },
    Target { name: "driver", start: driver::start },
    Target { name: "store", start: stored::start },
];
