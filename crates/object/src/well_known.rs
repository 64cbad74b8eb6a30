//! The names that this project adds to the API: annotations, labels, conditions and event reasons.
//!
//! `docs/reference/annotations-and-conditions.md` is generated from the tables here.

/// On a PV: the uids of the PV and of the claim that it was provisioned for or bound to on this cluster.
pub const PROVISIONED: &str = "mainstay.dev/provisioned";
/// On a PV: the user confirms that the data is to be deleted. The value is the volume handle.
pub const CONFIRM_DELETE: &str = "mainstay.dev/confirm-delete";
/// On a claim: the uid of a PV that was deleted before it was bound to the claim.
pub const WITHDRAWN_VOLUME: &str = "mainstay.dev/withdrawn-volume";
/// Label and annotation of a Node that runs no real containers.
pub const SIMULATED: &str = "mainstay.dev/simulated";
/// The prefix of all annotations that change how a simulated pod or node behaves.
pub const SIMULATION_PREFIX: &str = "sim.mainstay.dev/";
/// On a Node: takes the simulated node down.
pub const SIMULATED_DOWN: &str = "sim.mainstay.dev/down";
/// On a Pod: when it becomes ready.
pub const SIMULATED_READY: &str = "sim.mainstay.dev/ready";
/// The API group of rights that are not about objects of the API.
pub const GROUP: &str = "mainstay.dev";

/// Condition of a StatefulSet.
pub const VOLUME_CLAIMS_UPDATED: &str = "VolumeClaimsUpdated";
/// Condition of a claim, reason of a PV's status, and event reason.
pub const VOLUME_DATA_MISSING: &str = "VolumeDataMissing";
/// Reason of a PV's status, and event reason.
pub const DELETION_UNCONFIRMED: &str = "DeletionUnconfirmed";
/// Event reason: missing data was found again.
pub const VOLUME_DATA_FOUND: &str = "VolumeDataFound";
/// Event reason: the data of a volume was deleted.
pub const VOLUME_DATA_DELETED: &str = "VolumeDataDeleted";
/// Event reason: a claim of a StatefulSet was deleted.
pub const CLAIM_DELETED: &str = "ClaimDeleted";
/// Event reason: a claim was deleted while a pod uses it.
pub const CLAIM_DELETED_IN_USE: &str = "ClaimDeletedInUse";
/// Event reason: a claim cannot follow its template.
pub const CLAIM_NOT_READY: &str = "ClaimNotReady";
/// Event reason: two StatefulSets have a claim of the same name.
pub const CONTESTED_CLAIM: &str = "ContestedClaim";
/// Event reason: creation is delayed by the limits of a StatefulSet or namespace.
pub const CREATION_SLOWED: &str = "CreationSlowed";
/// Event reason: an annotation for simulated pods or nodes is invalid.
pub const INVALID_SIMULATION: &str = "InvalidSimulation";
/// Event reason: the ordinals of a StatefulSet are too large.
pub const UNUSABLE_ORDINALS: &str = "UnusableOrdinals";

/// A name with the object that it is on.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    pub name: &'static str,
    pub object: &'static str,
    pub meaning: &'static str,
}

const fn name(name: &'static str, object: &'static str, meaning: &'static str) -> Name {
    Name { name, object, meaning }
}

/// Annotations and labels. Those of other projects are in `docs/guides/volumes.md`.
pub const ANNOTATIONS: &[Name] = &[
    name(
        PROVISIONED,
        "PV",
        "`<uid of the PV>/<uid of the claim>`, then `/protected` once it had the finalizer. Do not edit",
    ),
    name(CONFIRM_DELETE, "PV", "You confirm that the data may be deleted. The value is `spec.csi.volumeHandle`"),
    name(
        WITHDRAWN_VOLUME,
        "PVC",
        "The uid of a PV that was deleted before it was bound; the claim never gets it. Leave it",
    ),
    name(SIMULATED, "Node", "Label and annotation, `true`: the node runs no real containers"),
    name(SIMULATED_DOWN, "Node", "`true`: the simulated node renews no Lease and does nothing for its pods"),
    name("sim.mainstay.dev/start-after", "Pod", "Duration: the pod stays in ContainerCreating for this time"),
    name(SIMULATED_READY, "Pod", "`false`: never ready; a duration: ready that long after its start"),
    name("sim.mainstay.dev/crash-after", "Pod", "Duration: each run of the containers crashes after this time"),
    name("sim.mainstay.dev/image-pull", "Pod", "`error`: ErrImagePull and ImagePullBackOff by turns"),
    name("sim.mainstay.dev/fail-after", "Pod", "Duration: phase Failed, whatever the restart policy"),
    name("sim.mainstay.dev/succeed-after", "Pod", "Duration: phase Succeeded, whatever the restart policy"),
    name("sim.mainstay.dev/evict-after", "Pod", "Duration: phase Failed with reason Evicted"),
    name("sim.mainstay.dev/exit-code", "Pod", "1 to 255: the exit code of crashes and failures (default 1)"),
    name("sim.mainstay.dev/exit-reason", "Pod", "One word: the reason of crashes and failures (default Error)"),
    name(
        "sim.mainstay.dev/terminate-after",
        "Pod",
        "Duration: termination takes this long, at most the grace period; `never`: it hangs",
    ),
];

/// Condition types, and the reasons that `status.reason` of a PV can have.
pub const CONDITIONS: &[Name] = &[
    name(
        VOLUME_CLAIMS_UPDATED,
        "StatefulSet",
        "Whether all claims have the update revision; for `volumeClaimUpdatePolicy: InPlace`",
    ),
    name(VOLUME_DATA_MISSING, "PVC, and `status.reason` of its PV", "The driver does not have the data of the volume"),
    name(
        DELETION_UNCONFIRMED,
        "`status.reason` of a PV",
        "The PV never served a claim on this cluster; its data is kept until you confirm the deletion",
    ),
];

/// Event reasons that Kubernetes does not have. Other events have the reasons of Kubernetes.
pub const EVENTS: &[Name] = &[
    name(VOLUME_DATA_MISSING, "PV, PVC", "The driver does not have the data of the volume"),
    name(VOLUME_DATA_FOUND, "PV, PVC", "The driver has the data again"),
    name(VOLUME_DATA_DELETED, "PV, PVC", "The data was deleted; the message names the policy"),
    name(DELETION_UNCONFIRMED, "PV", "The data is kept until its deletion is confirmed"),
    name(CLAIM_DELETED, "StatefulSet, PVC", "A claim of the set was deleted; the message says why"),
    name(CLAIM_DELETED_IN_USE, "StatefulSet, PVC", "A claim was deleted while a pod uses it"),
    name(CLAIM_NOT_READY, "StatefulSet", "A claim cannot follow its template; the message says what to do"),
    name(CONTESTED_CLAIM, "StatefulSet", "Another set has a claim of the same name; neither set changes it"),
    name(CREATION_SLOWED, "StatefulSet", "The set or its namespace creates more than the limits allow at once"),
    name(UNUSABLE_ORDINALS, "StatefulSet", "Ordinals above 2³¹-1; no pods are created"),
    name(INVALID_SIMULATION, "Pod, Node", "An annotation `sim.mainstay.dev/…` is invalid and is ignored"),
];
