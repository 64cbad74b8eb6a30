//! Why a node does not fit, in the words of upstream's scheduler.

use std::collections::BTreeMap;

/// Why one node does not fit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Cordoned,
    Taint { key: String, value: String },
    NodeAffinity,
    Ports,
    TooManyPods,
    Insufficient(String),
    ExclusiveClaim,
    VolumeMissing,
    VolumeAffinity,
    NoVolume,
    SpreadLabel,
    Spread,
    NearOthers,
    ApartFromOthers,
    OthersApart,
}

/// The kinds of changes that may make an unschedulable pod fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Helps {
    pub nodes: bool,
    /// A pod leaves a node, or its labels change.
    pub leaving: bool,
    /// A pod is placed on a node, or its labels change.
    pub arriving: bool,
    /// PVs and classes. (Changes of claims always count.)
    pub volumes: bool,
}

impl Reason {
    fn text(&self) -> String {
        let fixed = match self {
            Reason::Cordoned => "node(s) were unschedulable",
            Reason::Taint { key, value } => return format!("node(s) had untolerated taint {{{key}: {value}}}"),
            Reason::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Reason::Ports => "node(s) didn't have free ports for the requested pod ports",
            Reason::TooManyPods => "Too many pods",
            Reason::Insufficient(resource) => return format!("Insufficient {resource}"),
            Reason::ExclusiveClaim => {
                "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
            }
            Reason::VolumeMissing => "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            Reason::VolumeAffinity => "node(s) had volume node affinity conflict",
            Reason::NoVolume => "node(s) didn't find available persistent volumes to bind",
            Reason::SpreadLabel => "node(s) didn't match pod topology spread constraints (missing required label)",
            Reason::Spread => "node(s) didn't match pod topology spread constraints",
            Reason::NearOthers => "node(s) didn't match pod affinity rules",
            Reason::ApartFromOthers => "node(s) didn't match pod anti-affinity rules",
            Reason::OthersApart => "node(s) didn't satisfy existing pods anti-affinity rules",
        };
        fixed.to_owned()
    }

    fn helps(&self, helps: &mut Helps) {
        match self {
            Reason::Cordoned | Reason::Taint { .. } | Reason::NodeAffinity | Reason::SpreadLabel => {}
            Reason::Ports | Reason::TooManyPods | Reason::Insufficient(_) | Reason::ExclusiveClaim => {
                helps.leaving = true;
            }
            Reason::ApartFromOthers | Reason::OthersApart => helps.leaving = true,
            Reason::Spread => (helps.leaving, helps.arriving) = (true, true),
            Reason::NearOthers => helps.arriving = true,
            Reason::VolumeMissing | Reason::VolumeAffinity | Reason::NoVolume => helps.volumes = true,
        }
    }
}

/// No node fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unschedulable {
    /// The message of the event and of the pod's condition.
    pub message: String,
    pub helps: Helps,
}

impl Unschedulable {
    /// All nodes were tried and have reasons.
    pub(super) fn everywhere(nodes: usize, reasons: Vec<Reason>) -> Unschedulable {
        // A new or changed node may help whatever the reasons are.
        let mut helps = Helps { nodes: true, ..Helps::default() };
        if nodes == 0 {
            return Unschedulable { message: "no nodes available to schedule pods".to_owned(), helps };
        }
        let mut counts: BTreeMap<Reason, usize> = BTreeMap::new();
        for reason in reasons {
            reason.helps(&mut helps);
            *counts.entry(reason).or_default() += 1;
        }
        let mut texts: Vec<String> =
            counts.iter().map(|(reason, count)| format!("{count} {}", reason.text())).collect();
        texts.sort();
        Unschedulable { message: format!("0/{nodes} nodes are available: {}.", texts.join(", ")), helps }
    }

    /// No node was tried: the pod cannot be scheduled anywhere.
    pub(super) fn anywhere(nodes: usize, why: &str) -> Unschedulable {
        Unschedulable {
            message: format!("0/{nodes} nodes are available: {why}."),
            helps: Helps { volumes: true, ..Helps::default() },
        }
    }
}
