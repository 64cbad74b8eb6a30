//! The spec of a set, parsed once from its object and the gates.

use super::{Held, SetEvent};
use jiff::SignedDuration;
use object::access::{self, Access};
use object::selector::LabelSelector;
use object::{Gates, Value, json};
use std::collections::BTreeSet;

/// Ordinals are int32.
pub(super) const ORDINAL_MAX: i64 = i32::MAX as i64;

#[derive(Debug)]
pub(super) struct Set<'a> {
    pub object: &'a Value,
    pub name: &'a str,
    pub namespace: &'a str,
    pub uid: &'a str,
    pub selector: LabelSelector,
    pub replicas: i64,
    /// The first ordinal.
    pub start: i64,
    /// OrderedReady: one pod at a time, each when its predecessor is available; otherwise Parallel.
    pub ordered: bool,
    pub strategy: Strategy,
    /// How long a pod must be ready to be available.
    pub min_ready: SignedDuration,
    pub retention: Retention,
    /// With distinct names: of two with one name, the later is used.
    pub claim_templates: Vec<&'a Value>,
    /// Revisions include the claim templates. Only the field decides this: changing a gate must not create
    /// revisions.
    pub claims_in_revisions: bool,
    /// Claims follow the revision of their pod.
    pub claims_in_place: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    Rolling(Rolling),
    OnDelete,
    Recreate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rolling {
    /// The first ordinal that is updated; `None` without a `rollingUpdate` block, which is not the same as
    /// the lowest.
    pub partition: Option<i64>,
    /// `None` with the gate off: one pod at a time, if all pods above it are available.
    pub max_unavailable: Option<i64>,
}

/// When claims are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retention {
    pub with_set: bool,
    pub with_replica: bool,
}

impl<'a> Set<'a> {
    /// The error says why the set cannot be handled at all.
    pub fn read(object: &'a Value, gates: &Gates) -> Result<Set<'a>, String> {
        let selector = LabelSelector::from_object(object.at(&["spec", "selector"]).unwrap_or(&Value::Null))
            .map_err(|why| format!("spec.selector cannot be read: {why}"))?;
        let replicas = object.int(&["spec", "replicas"]).unwrap_or(1).max(0);
        let start = object.int(&["spec", "ordinals", "start"]).filter(|_| gates.on("StatefulSetStartOrdinal"));
        let start = start.unwrap_or(0).max(0);
        let min_ready = object.int(&["spec", "minReadySeconds"]).unwrap_or(0).clamp(0, ORDINAL_MAX);
        let in_place = object.text(&["spec", "volumeClaimUpdatePolicy"]) == "InPlace";
        Ok(Set {
            object,
            name: access::name(object),
            namespace: access::namespace(object),
            uid: access::uid(object),
            selector,
            replicas,
            start,
            ordered: object.text(&["spec", "podManagementPolicy"]) != "Parallel",
            strategy: strategy(object, start, replicas, gates),
            min_ready: SignedDuration::from_secs(min_ready),
            retention: retention(object, gates),
            claim_templates: claim_templates(object),
            claims_in_revisions: in_place,
            claims_in_place: in_place && gates.on("StatefulSetUpdateVolumeClaimTemplate"),
        })
    }

    /// The ordinal after the last one.
    pub fn end(&self) -> i64 {
        self.start.saturating_add(self.replicas)
    }

    pub fn contains(&self, ordinal: i64) -> bool {
        (self.start..self.end()).contains(&ordinal)
    }

    /// The ordinal in the name of one of this set's pods. Non-canonical numbers (`web-01`) are not names of
    /// its pods.
    pub fn ordinal(&self, pod: &str) -> Option<i64> {
        ordinal(pod.strip_prefix(self.name)?.strip_prefix('-')?)
    }

    pub fn pod_name(&self, ordinal: i64) -> String {
        format!("{}-{ordinal}", self.name)
    }

    pub fn claim_name(&self, template: &Value, ordinal: i64) -> String {
        format!("{}-{}-{ordinal}", access::name(template), self.name)
    }

    /// The ordinal in the name of a claim of one of this set's templates.
    pub fn claim_ordinal(&self, claim: &str) -> Option<i64> {
        self.claim_templates.iter().find_map(|template| {
            let rest = claim.strip_prefix(access::name(template))?;
            ordinal(rest.strip_prefix('-')?.strip_prefix(self.name)?.strip_prefix('-')?)
        })
    }

    /// A controlling owner reference to the set.
    pub fn reference(&self, blocks: bool) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": self.name, "uid": self.uid,
            "controller": true, "blockOwnerDeletion": blocks,
        })
    }

    pub fn deleting(&self) -> bool {
        access::terminating(self.object)
    }

    /// Whether its dependents are to be orphaned.
    pub fn orphaning(&self) -> bool {
        self.object.items(&["metadata", "finalizers"]).iter().any(|finalizer| finalizer == crate::gc::ORPHAN)
    }

    /// Whether its dependents are to be deleted before it.
    pub fn waits_for_dependents(&self) -> bool {
        self.object.items(&["metadata", "finalizers"]).iter().any(|finalizer| finalizer == crate::gc::FOREGROUND)
    }

    /// Whether its current generation was observed before.
    pub fn observed(&self) -> bool {
        self.object.int(&["status", "observedGeneration"]) == self.object.int(&["metadata", "generation"])
    }

    /// Why the spec cannot be executed, if so.
    pub fn unusable(&self, gates: &Gates) -> Option<(Held, SetEvent)> {
        let (reason, why) = if self.strategy == Strategy::Recreate && !gates.on("StatefulSetRecreateStrategy") {
            let (namespace, name) = (self.namespace, self.name);
            let why = format!(
                "statefulset {namespace}/{name} uses Recreate strategy but feature gate StatefulSetRecreateStrategy is disabled"
            );
            ("UnknownStrategy", why)
        } else if self.replicas > 0 && self.end().saturating_sub(1) > ORDINAL_MAX {
            let (start, last) = (self.start, self.end().saturating_sub(1));
            let why = format!(
                "the ordinals {start} to {last} exceed the maximum of {ORDINAL_MAX}: lower spec.ordinals.start or \
                 spec.replicas"
            );
            (object::well_known::UNUSABLE_ORDINALS, why)
        } else {
            return None;
        };
        Some((Held::Unusable { why: why.clone() }, SetEvent { warning: true, reason, message: why }))
    }
}

/// Parses an ordinal: without leading zeros, and within the range.
fn ordinal(digits: &str) -> Option<i64> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = plain && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|ordinal| canonical && *ordinal <= ORDINAL_MAX)
}

fn strategy(object: &Value, start: i64, replicas: i64, gates: &Gates) -> Strategy {
    let block = object.at(&["spec", "updateStrategy", "rollingUpdate"]);
    match object.text(&["spec", "updateStrategy", "type"]) {
        "OnDelete" => Strategy::OnDelete,
        "Recreate" => Strategy::Recreate,
        _ => Strategy::Rolling(Rolling {
            partition: block.map(|block| {
                let partition = block.int(&["partition"]).unwrap_or(0).max(0);
                if gates.on("StatefulSetOrdinalPartition") { partition } else { start.saturating_add(partition) }
            }),
            max_unavailable: gates
                .on("MaxUnavailableStatefulSet")
                .then(|| max_unavailable(block.and_then(|block| block.at(&["maxUnavailable"])), replicas)),
        }),
    }
}

/// A number, or a percentage of the replicas rounded down; at least one.
fn max_unavailable(amount: Option<&Value>, replicas: i64) -> i64 {
    let amount = match amount {
        Some(Value::String(text)) => text
            .strip_suffix('%')
            .and_then(|percent| percent.parse::<i64>().ok())
            .map(|percent| percent.saturating_mul(replicas) / 100),
        other => other.and_then(Value::as_i64),
    };
    amount.unwrap_or(1).max(1)
}

fn retention(object: &Value, gates: &Gates) -> Retention {
    let deletes = |half: &str| {
        gates.on("StatefulSetAutoDeletePVC")
            && object.text(&["spec", "persistentVolumeClaimRetentionPolicy", half]) == "Delete"
    };
    Retention { with_set: deletes("whenDeleted"), with_replica: deletes("whenScaled") }
}

fn claim_templates(object: &Value) -> Vec<&Value> {
    let mut names = BTreeSet::new();
    let templates = object.items(&["spec", "volumeClaimTemplates"]).iter().rev();
    let mut templates: Vec<&Value> = templates.filter(|template| names.insert(access::name(template))).collect();
    templates.reverse();
    templates
}
