//! The stories: what users do, and the state that must result, whatever faults occur.

mod gates;
mod growth;
mod inside;
mod lost_data;
mod migration;
mod nodes;
mod operator;
mod orders;
mod ordinals;
mod random;
mod refusals;
mod restarts;
mod retention;
mod rollbacks;
mod services;
mod strategies;
mod templates;
mod trouble;
mod volumes;

use crate::entropy::Rng;
use crate::world::World;
use futures::future::BoxFuture;

pub use gates::{GATE_COMBINATIONS, GATES, gate_combination};
pub use operator::Operator;

/// A story. Its errors say what it waited for without success.
pub struct Story {
    pub name: &'static str,
    /// Description in one sentence.
    pub about: &'static str,
    /// Whether the final state is always the same. Other stories depend on randomness, or on the moment of a change.
    pub exact: bool,
    pub run: fn(World, Rng) -> BoxFuture<'static, Result<(), String>>,
}

impl std::fmt::Debug for Story {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! stories {
    ($($kind:ident $module:ident :: $name:ident: $about:literal,)*) => {
        /// All stories.
        pub const ALL: &[Story] = &[$(Story {
            name: stringify!($name),
            about: $about,
            exact: stories!(@ $kind),
            run: |world, rng| Box::pin(async move {
                let me = Operator::new(world, rng);
                me.prepare().await;
                $module::$name(me).await
            }),
        }),*];
    };
    (@ exact) => { true };
    (@ loose) => { false };
}

stories![
    exact retention::retained: "KEP-1847: with Retain, scaling and deleting a set leave its claims alone, and scale-up reuses them",
    exact retention::scaled_away: "KEP-1847: with whenScaled=Delete, claims are deleted with the replicas that are scaled away, and only then",
    exact retention::deleted_along: "KEP-1847: with whenDeleted=Delete, claims are deleted with the set, with each propagation policy and right after its creation",
    exact retention::policy_flips: "KEP-1847: changes of the policy apply to every claim, also during a scale-down",
    exact retention::orphaned: "KEP-1847: a set deleted with propagation Orphan leaves pods and claims, and another set adopts them",
    exact retention::made_anew: "KEP-1847: sets are deleted and created again at once, with either policy",
    exact retention::brought_back: "KEP-1847: claims are deleted with replicas that are scaled away; the set is deleted, created again and reuses the rest",
    exact retention::kept_after_all: "KEP-1847: the policy of a set becomes Retain right before its deletion: its claims stay",
    exact retention::claimed_before: "KEP-1847: a set owns claims that existed before it, except one with another controller",
    exact retention::second_thoughts: "KEP-1847: whenScaled changes during a scale-down, and the latest value applies to claims of pods that still terminate",
    exact ordinals::shifted: "KEP-3335: the start ordinal increases and decreases again",
    exact ordinals::moved: "KEP-3335: replicas move one by one to a set in another namespace",
    exact ordinals::moved_along: "KEP-3335: replicas move to a set in another namespace with their volumes",
    exact templates::grown_in_place: "KEP-4650: claims are expanded in place, alone and together with an update of their pods",
    exact templates::changed_for_new_claims: "KEP-4650: OnClaimDelete does not change old claims; InPlace later updates them",
    exact templates::asymmetric: "KEP-4650: users expand claims one by one, and the template applies to new replicas only",
    exact templates::modified: "KEP-4650: claims get another VolumeAttributesClass in place, and the old one again",
    exact templates::several: "two claim templates: one is expanded, the other is not; all claims are deleted with their replicas",
    exact templates::labelled: "KEP-4650: labels and annotations of the template are added and removed in place, also when InPlace is set while the controllers are down",
    exact templates::out_of_quota: "KEP-4650: a quota blocks a rollout of claims, which continues without help when the quota allows it",
    exact templates::blocked_whole: "KEP-4650: one of two classes does not allow expansion: no claim of a replica is expanded until both allow it",
    exact templates::blocked: "KEP-4650: a class without expansion, or a missing VolumeAttributesClass, blocks a rollout, and users can unblock it",
    exact refusals::refused: "KEP-4650: admission and a quota of an attributes class refuse a rollout of claims, until a user allows it",
    exact refusals::mismatched: "KEP-4650: a claim of another class blocks a rollout until a user deletes it",
    exact growth::grown_on_nodes: "KEP-4650: expansion that needs a running pod waits for one, and pods are created although their claims wait",
    exact growth::unblocked: "KEP-4650: an unschedulable pod prevents the expansion of its claim; a user deletes it to unblock the rollout",
    exact growth::mended_by_hand: "KEP-4650: the driver has too little capacity for a template; a user corrects the claims one by one",
    exact growth::helped_along: "KEP-4650: a user expands claims before, during and after a rollout in place",
    exact growth::withdrawn: "KEP-4650: a user removes the InPlace policy of one set; another set continues",
    exact templates::rolled: "template changes, two replicas at a time and one at a time",
    exact strategies::one_by_one: "KEP-4650: with OnDelete a claim is updated when a user deletes its pod, and not before",
    exact strategies::stepwise: "KEP-4650: a partition is lowered step by step; pods and claims below it are unchanged",
    exact strategies::sliced: "KEP-3335: a partition counts by ordinals also if these start above 0, during rollout, scaling and renumbering",
    exact strategies::unhurried: "minReadySeconds: the next replica waits until the previous one has been ready for that time",
    exact strategies::all_at_once: "KEP-4650: with Recreate all claims change first, then all pods are deleted at once",
    exact volumes::protected: "PV protection: claim and PV are removed only after their last use",
    exact volumes::reclaimed: "KEP-2644: PV and claim are deleted in either order, with both policies",
    exact volumes::policy_edited: "KEP-2644: the policy is edited before and after deletion",
    exact volumes::taken_over: "KEP-2644: a retained volume gets a new PV, is bound, and is deleted by its new policy",
    exact volumes::reserved: "a PV with data is reserved for a claim of a dynamic class: the claim gets this PV",
    exact volumes::last_word: "KEP-2644: the policy of a terminating PV becomes Delete and then Retain: its data stays",
    exact volumes::on_its_way_out: "PV protection: a terminating PV is not bound to any claim; missing finalizers are added again",
    exact volumes::never_bound: "KEP-2644: a PV that was never bound is removed at once and leaves its data",
    exact volumes::emptied: "a namespace is deleted with its content, and created again",
    exact volumes::claimed_anew: "claims and namespaces are deleted and created again at once",
    exact orders::any_order: "KEP-2644: pod, claim, PV and class are deleted in any order, for the in-tree plugin and for a driver",
    exact migration::migrated: "KEP-2644: PVs of a plugin that was migrated to a driver: the driver's finalizer replaces the plugin's, and any order gives the same end",
    exact inside::given_up_inside: "claims of the in-tree plugin are deleted at any moment before they are bound: no directory remains",
    exact inside::reclaimed_inside: "KEP-2644: PVs of the in-tree plugin and their claims are deleted in either order, with edits of the policy in between",
    exact inside::set_inside: "KEP-1847, KEP-2644: claims of the in-tree plugin are deleted with replicas and set, and their directories too",
    exact inside::inside_rollback: "KEP-2644: the binder's gate goes off and on between any two steps of a reclaim by the in-tree plugin",
    exact inside::inside_skew: "KEP-2644: only one of binder and provisioner honours policies: the binder for directories, the provisioner for driver volumes",
    exact lost_data::data_lost: "the data of a volume is lost and restored: claim and PV report it, and no pod starts without the data",
    exact trouble::troubled: "pods that are never ready, fail, hang or are evicted, and a node that is down: identity, claims and order are kept",
    exact nodes::lost: "nodes are deleted, replaced or declared out of service while pods run: no ordinal and no volume is used twice",
    exact restarts::in_turn: "every component restarts in turn while a set is created, updated and scaled",
    exact restarts::handed_over: "two processes of controllers: the leader is disconnected or killed during its work, and the other one leads",
    exact rollbacks::retention_rollback: "KEP-1847: with the gate off claims stay and have no owner; on again, their set owns them",
    exact rollbacks::retention_downgrade: "KEP-1847: with the gate off, for server and controllers, none of the four combinations of policies deletes claims",
    exact rollbacks::made_before: "KEP-3335, KEP-4650: a set that was created while the server's gates were off has neither a start ordinal nor a policy",
    exact rollbacks::retention_upgrade: "KEP-1847: a set that was created without the policy field keeps its claims when the gate is on",
    exact rollbacks::ordinals_rollback: "KEP-3335: orphaned pods stay when the gate goes off, and are adopted when it is on again",
    exact rollbacks::templates_rollback: "KEP-4650: with the gate off no claim is updated, and on again only with the next change",
    exact rollbacks::reclaim_rollback: "KEP-2644: with the gate off a PV that is deleted before its claim leaves its data; on again, none does",
    exact rollbacks::reclaim_skew: "KEP-2644: binder and provisioner are separate processes, and only one of them honours policies",
    loose services::published: "Endpoints of a Service follow its pods, are created again when a user deletes them, and are deleted with the Service",
    loose gates::retention_gate: "KEP-1847: the gate goes off and on, for controllers and server, during scale-down and deletion",
    loose gates::ordinals_gate: "KEP-3335: the gate goes off and on; ordinals start at 0 and at the old start again",
    loose gates::templates_gate: "KEP-4650: the gate goes off and on during a rollout, which completes and does not change claims",
    loose gates::reclaim_gate: "KEP-2644: the gate goes off and on during reclaims",
    loose gates::flipped: "gates go off and on, for controllers or server, during scale-down, rollout, expansion, reclaim and deletion",
    loose random::anything: "a user does random things at random times",
];

pub fn find(name: &str) -> Option<&'static Story> {
    ALL.iter().find(|story| story.name == name)
}
