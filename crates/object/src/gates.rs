//! Feature gates, set when a component starts.

use std::collections::BTreeMap;

/// A gate. `docs/reference/gates.md` is generated from the table of all gates.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub name: &'static str,
    pub default: bool,
    /// Older names.
    pub aliases: &'static [&'static str],
    /// The number of the Kubernetes enhancement proposal, where there is one.
    pub kep: Option<u32>,
    /// What the gate switches, in one sentence.
    pub summary: &'static str,
}

/// All gates.
pub const KNOWN: &[Known] = &[
    Known {
        name: "StatefulSetAutoDeletePVC",
        default: true,
        aliases: &[],
        kep: Some(1847),
        summary: "`persistentVolumeClaimRetentionPolicy` of a StatefulSet is kept and obeyed; off means Retain",
    },
    Known {
        name: "StatefulSetStartOrdinal",
        default: true,
        aliases: &["StatefulSetSlice"],
        kep: Some(3335),
        summary: "`ordinals.start` of a StatefulSet is obeyed; off means that ordinals start at 0",
    },
    Known {
        name: "StatefulSetUpdateVolumeClaimTemplate",
        default: true,
        aliases: &[],
        kep: Some(4650),
        summary: "Claim templates can be updated, and `volumeClaimUpdatePolicy` is obeyed",
    },
    Known {
        name: "StatefulSetOrdinalPartition",
        default: true,
        aliases: &[],
        kep: Some(3335),
        summary: "`partition` is an ordinal also with `ordinals.start`; off means an offset from the start, as upstream",
    },
    Known {
        name: "HonorPVReclaimPolicy",
        default: true,
        aliases: &[],
        kep: Some(2644),
        summary: "A reclaim policy of Delete is obeyed also when the PV is deleted before its claim",
    },
    Known {
        name: "MaxUnavailableStatefulSet",
        default: true,
        aliases: &[],
        kep: Some(961),
        summary: "`rollingUpdate.maxUnavailable` of a StatefulSet is kept and obeyed; off means 1",
    },
    Known {
        name: "StatefulSetRecreateStrategy",
        default: false,
        aliases: &[],
        kep: None,
        summary: "The update strategy `Recreate` of a StatefulSet is allowed",
    },
    Known {
        name: "StatefulSetSemanticRevisionComparison",
        default: true,
        aliases: &[],
        kep: None,
        summary: "Revisions of a StatefulSet are compared after defaulting, so an equal template restarts no pod",
    },
    Known {
        name: "StaleControllerConsistencyStatefulSet",
        default: true,
        aliases: &[],
        kep: None,
        summary: "Accepted for compatibility; it changes nothing, because caches always contain own writes",
    },
    Known {
        name: "CrossNamespaceVolumeDataSource",
        default: false,
        aliases: &[],
        kep: Some(3294),
        summary: "`dataSourceRef` of a claim may name another namespace",
    },
    Known {
        name: "PersistentVolumeClaimUnusedSinceTime",
        default: true,
        aliases: &[],
        kep: None,
        summary: "Claims get the condition `Unused` while no pod uses them",
    },
    Known {
        name: "MutablePVNodeAffinity",
        default: false,
        aliases: &[],
        kep: None,
        summary: "`nodeAffinity` of a PV can be updated",
    },
];

/// The values of all feature gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates(BTreeMap<&'static str, bool>);

impl Default for Gates {
    fn default() -> Gates {
        Gates(KNOWN.iter().map(|known| (known.name, known.default)).collect())
    }
}

impl Gates {
    /// Whether the gate `name` is on. An unknown name is a programming error and returns false.
    pub fn on(&self, name: &str) -> bool {
        debug_assert!(self.0.contains_key(name), "unknown gate {name}");
        self.0.get(name).copied().unwrap_or(false)
    }

    /// Returns the same gates with one changed.
    pub fn with(mut self, name: &str, on: bool) -> Gates {
        if let Some(known) = find(name) {
            self.0.insert(known.name, on);
        }
        self
    }

    /// Parses `A=true,B=false`; other gates keep their defaults. The error is one sentence for the user.
    pub fn parse(text: &str) -> Result<Gates, String> {
        let mut gates = Gates::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part
                .split_once('=')
                .ok_or_else(|| format!("feature gate {part:?} needs a value: write {part}=true or {part}=false"))?;
            let on = match value.trim() {
                "true" => true,
                "false" => false,
                other => return Err(format!("feature gate {name} takes true or false, not {other:?}")),
            };
            let known = find(name.trim()).ok_or_else(|| {
                let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
                format!("unknown feature gate {name:?}; known are {}", names.join(", "))
            })?;
            gates.0.insert(known.name, on);
        }
        Ok(gates)
    }

    /// Returns all gates with their values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
        self.0.iter().map(|(name, on)| (*name, *on))
    }
}

fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name || known.aliases.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_parsed_and_unknown_gates_are_refused() {
        let gates = Gates::parse("StatefulSetSlice=false, HonorPVReclaimPolicy=true").unwrap();
        assert!(!gates.on("StatefulSetStartOrdinal"));
        assert!(gates.on("HonorPVReclaimPolicy"));
        assert!(Gates::parse("Nope=true").unwrap_err().contains("unknown feature gate \"Nope\""));
        assert!(Gates::parse("HonorPVReclaimPolicy").unwrap_err().contains("write HonorPVReclaimPolicy=true"));
        assert!(Gates::parse("HonorPVReclaimPolicy=1").unwrap_err().contains("takes true or false"));
    }
}
