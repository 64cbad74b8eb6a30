//! The options of a directory driver.

use super::record::Texts;
use std::fmt;

pub const DEFAULT_NAME: &str = "directory.csi.mainstay.dev";

#[derive(Clone, Debug)]
pub struct Options {
    /// The driver's name, which StorageClasses use as their provisioner.
    pub name: String,
    /// The nodes that use volumes of this driver; the first one is the node that it reports as its own.
    pub nodes: Vec<String>,
    /// The limit for the sum of all volume sizes, in bytes.
    pub capacity_bytes: i64,
    /// The topology segments that have storage; empty = no topology.
    pub places: Vec<Texts>,
    /// The parameters that a VolumeAttributesClass may set.
    pub mutable_parameters: Vec<String>,
    pub expansion: Expansion,
    /// Volumes must be attached by the controller service before a node uses them.
    pub attach: bool,
    /// Volumes must be staged on a node before they are published there.
    pub stage: bool,
    /// Fsync every change. Without it, a crash of the machine (not of the process) may lose changes.
    pub durable: bool,
    /// How many calls to log, for tests.
    pub calls_kept: usize,
    /// Do blocking work in the caller's thread, for simulations that must not depend on threads.
    pub inline: bool,
}

/// Which service must act to expand a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expansion {
    Controller,
    /// First the controller, then the node.
    Both,
    /// The node only.
    Node,
    /// Volumes cannot be expanded.
    Never,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: DEFAULT_NAME.to_owned(),
            nodes: vec!["localhost".to_owned()],
            // Sizes are only recorded, so this is no limit in practice.
            capacity_bytes: 1 << 60,
            places: Vec::new(),
            mutable_parameters: ["iops", "throughput", "tier", "type"].map(str::to_owned).to_vec(),
            expansion: Expansion::Controller,
            attach: false,
            stage: false,
            durable: true,
            calls_kept: 0,
            inline: false,
        }
    }
}

impl Options {
    /// Checks the options; the error is one sentence.
    pub fn check(&self) -> Result<(), String> {
        let name = self.name.as_bytes();
        let letters = |byte: &u8| byte.is_ascii_alphabetic();
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        let ends = name.first().is_some_and(letters) && name.last().is_some_and(letters);
        if !(2..=63).contains(&name.len()) || !ends || !name.iter().all(inner) {
            return Err(format!(
                "the driver name {:?} is not 2 to 63 letters, digits, dots and dashes that begin and end with a letter",
                self.name
            ));
        }
        for node in &self.nodes {
            super::check::name(node, "node").map_err(|status| format!("{}: {node:?}", status.message()))?;
        }
        if self.nodes.is_empty() {
            return Err("the list of nodes is empty".to_owned());
        }
        if self.capacity_bytes <= 0 {
            return Err("the capacity must be greater than 0".to_owned());
        }
        let bad = self.places.iter().flatten().find(|(key, value)| key.is_empty() || value.is_empty());
        if let Some((key, value)) = bad {
            return Err(format!("the topology segment {key:?}={value:?} is not key=value"));
        }
        Ok(())
    }
}

impl Expansion {
    pub const ALL: [Expansion; 4] = [Expansion::Controller, Expansion::Both, Expansion::Node, Expansion::Never];

    pub fn in_controller(self) -> bool {
        matches!(self, Expansion::Controller | Expansion::Both)
    }

    pub fn on_node(self) -> bool {
        matches!(self, Expansion::Both | Expansion::Node)
    }
}

impl fmt::Display for Expansion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Expansion::Controller => "controller",
            Expansion::Both => "both",
            Expansion::Node => "node",
            Expansion::Never => "never",
        })
    }
}

impl std::str::FromStr for Expansion {
    type Err = String;

    fn from_str(text: &str) -> Result<Expansion, String> {
        let found = Expansion::ALL.into_iter().find(|expansion| expansion.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is not one of controller, both, node, never"))
    }
}
