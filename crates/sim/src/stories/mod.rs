//! The stories: what people do, and what must come of it, whatever goes wrong meanwhile.

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

pub use gates::{GATES, HANDS, hand};
pub use operator::Operator;

/// A story; its errors say what was waited for in vain.
pub struct Story {
    pub name: &'static str,
    /// What it is about, in a sentence.
    pub about: &'static str,
    /// Whether it always ends in the same state. Others depend on chance or on how far something was when it was changed.
    pub exact: bool,
    pub tell: fn(World, Rng) -> BoxFuture<'static, Result<(), String>>,
}

impl std::fmt::Debug for Story {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! stories {
    ($($kind:ident $module:ident :: $name:ident: $about:literal,)*) => {
        /// All of them.
        pub const ALL: &[Story] = &[$(Story {
            name: stringify!($name),
            about: $about,
            exact: stories!(@ $kind),
            tell: |world, rng| Box::pin(async move {
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
    exact retention::retained: "KEP-1847: with Retain, scaling and deleting a set leave its claims alone, and scale-up uses them again",
    exact retention::scaled_away: "KEP-1847: with whenScaled=Delete, claims go with the replicas that are scaled away, and only then",
    exact retention::deleted_along: "KEP-1847: with whenDeleted=Delete, claims go with the set, however and however soon it is deleted",
    exact retention::policy_flips: "KEP-1847: changes of the policy reach every claim, in the middle of a scale-down too",
    exact retention::orphaned: "KEP-1847: a set that is deleted as an orphan leaves pods and claims, and another takes them over",
    exact retention::made_anew: "KEP-1847: sets are deleted and made anew at once, under either policy",
    exact retention::brought_back: "KEP-1847: claims go with replicas that are scaled away; the set itself goes, comes back and takes what it left",
    exact retention::kept_after_all: "KEP-1847: claims that were to go with their set are kept after all, and the set goes at once",
    exact retention::claimed_before: "KEP-1847: claims that were there before the set are its own, but for one that has another controller",
    exact retention::second_thoughts: "KEP-1847: whenScaled changes in the middle of a scale-down, and what still goes follows the last word",
    exact ordinals::shifted: "KEP-3335: the first ordinal moves up and back",
    exact ordinals::moved: "KEP-3335: replicas move one by one to a set in another namespace",
    exact ordinals::moved_along: "KEP-3335: replicas move to a set in another namespace and take their volumes along",
    exact templates::grown_in_place: "KEP-4650: claims grow in place, alone and together with their pods",
    exact templates::changed_for_new_claims: "KEP-4650: OnClaimDelete leaves old claims alone; InPlace later brings them along",
    exact templates::asymmetric: "KEP-4650: claims are grown by hand, each for itself, and the template is for new replicas only",
    exact templates::modified: "KEP-4650: claims get another VolumeAttributesClass in place, and go back",
    exact templates::several: "two claim templates: one grows, the other stays; all go with their replicas",
    exact templates::labelled: "KEP-4650: labels and annotations of the template come and go in place, also when InPlace is said while the controllers are down",
    exact templates::out_of_quota: "KEP-4650: a quota blocks a rollout of claims, which goes on by itself when there is room",
    exact templates::blocked_whole: "KEP-4650: one of two classes cannot grow: no claim of a replica grows before both can",
    exact templates::blocked: "KEP-4650: a class without growth, and an attributes class that is not there, block a rollout: the ways out",
    exact refusals::refused: "KEP-4650: admission and a quota of an attributes class refuse a rollout of claims, until a person allows it",
    exact refusals::mismatched: "KEP-4650: a claim of another class blocks a rollout until a person deletes it",
    exact growth::grown_on_nodes: "KEP-4650: growth that needs a running pod waits for one, and pods come though their claims wait",
    exact growth::unblocked: "KEP-4650: a pod that no node takes keeps its claim from growing, and is deleted to unblock the rollout",
    exact growth::mended_by_hand: "KEP-4650: the driver does not have what a template asks for; a person mends the claims one by one",
    exact growth::helped_along: "KEP-4650: somebody else grows claims before, during and after a rollout in place",
    exact growth::withdrawn: "KEP-4650: one set is rolled back by taking its policy away; the other goes on",
    exact templates::rolled: "template changes, two replicas at a time and one at a time",
    exact strategies::one_by_one: "KEP-4650: with OnDelete a claim follows when its pod is deleted by hand, and not before",
    exact strategies::stepwise: "KEP-4650: a partition is lowered step by step; pods and claims below it stay",
    exact strategies::sliced: "KEP-3335: a partition is an ordinal where these start above 0, while the set is rolled, scaled and moved",
    exact strategies::unhurried: "minReadySeconds: the next replica waits until the one before has been ready for so long",
    exact strategies::all_at_once: "KEP-4650: with Recreate all claims change first, then all pods go at once",
    exact volumes::protected: "PV protection: claim and volume wait until nobody uses them",
    exact volumes::reclaimed: "KEP-2644: volume and claim go in either order, under both policies",
    exact volumes::policy_edited: "KEP-2644: the policy is edited before and after deletion",
    exact volumes::taken_over: "KEP-2644: a retained volume is brought back under an object of its own, bound, and deleted by its new policy",
    exact volumes::reserved: "a volume with data is reserved for a claim that asks for a new one: the claim gets the data",
    exact volumes::last_word: "KEP-2644: the policy becomes Delete and Retain again while the volume is on its way out: its data stays",
    exact volumes::on_its_way_out: "PV protection: a volume that is on its way out is for no claim; finalizers that are missing come back",
    exact volumes::never_bound: "KEP-2644: a volume that was never bound goes at once and leaves its data",
    exact volumes::emptied: "a namespace goes with everything in it, and comes back",
    exact volumes::claimed_anew: "claims and namespaces are deleted and made anew at once",
    exact orders::any_order: "KEP-2644: pod, claim, volume and class go in any order, of the plugin inside and of a driver",
    exact migration::migrated: "KEP-2644: volumes of a plugin that was handed over to a driver: what holds them changes hands, and any order ends alike",
    exact inside::given_up_inside: "claims of the plugin inside are given up at any moment before they have their volume: no directory is left",
    exact inside::reclaimed_inside: "KEP-2644: volumes of the plugin inside and their claims go in either order, with edits of the policy in between",
    exact inside::set_inside: "KEP-1847, KEP-2644: a set's claims of the plugin inside go with replicas and set, and their directories with them",
    exact inside::inside_rollback: "KEP-2644: the binder's gate goes off and on between any two steps of a reclaim of the plugin inside",
    exact inside::inside_skew: "KEP-2644: only one of binder and provisioner honours policies: each for its own volumes, directories and a driver's",
    exact lost_data::data_lost: "data of a volume is lost and put back: claim and volume say so, and no pod starts without it",
    exact trouble::troubled: "pods that are never ready, fail, hang or are evicted, and a node that is away: identity, claims and order stay",
    exact nodes::lost: "nodes are deleted, replaced or declared out of service while pods run: no ordinal and no volume is used twice",
    exact restarts::in_turn: "every part restarts in turn while a set is made, rolled and scaled",
    exact restarts::handed_over: "two processes of controllers: the one that leads is cut off or killed in the middle, and the other takes over",
    exact rollbacks::retention_rollback: "KEP-1847: with the gate off claims stay and belong to nobody; on again, they belong to their set",
    exact rollbacks::retention_downgrade: "KEP-1847: with the gate off, for server and controllers, none of the four combinations of policies takes claims along",
    exact rollbacks::made_before: "KEP-3335, KEP-4650: a set that was made while the server's gates were off has neither a start nor a policy",
    exact rollbacks::retention_upgrade: "KEP-1847: a set that was made before there was a policy keeps its claims when there is",
    exact rollbacks::ordinals_rollback: "KEP-3335: pods that are orphaned stay when the gate goes off, and are taken over when it is on again",
    exact rollbacks::templates_rollback: "KEP-4650: with the gate off no claim follows, and on again only with the next change",
    exact rollbacks::reclaim_rollback: "KEP-2644: with the gate off a volume that is deleted first leaves its data; on again, none does",
    exact rollbacks::reclaim_skew: "KEP-2644: binder and provisioner are processes of their own, and only one of them honours policies",
    loose services::published: "Endpoints of a Service follow its pods, come back when a person deletes them, and go with the Service",
    loose gates::retention_gate: "KEP-1847: the gate goes off and on, for controllers and server, in the middle of scale-down and deletion",
    loose gates::ordinals_gate: "KEP-3335: the gate goes off and on; numbering goes to 0 and back",
    loose gates::templates_gate: "KEP-4650: the gate goes off and on in the middle of a rollout, which ends and leaves claims alone",
    loose gates::reclaim_gate: "KEP-2644: the gate goes off and on in the middle of reclaims",
    loose gates::flipped: "gates go off and on, for controllers or server, in the middle of scale-down, rollout, growth, reclaim and deletion",
    loose random::anything: "an operator who does anything at any time",
];

pub fn find(name: &str) -> Option<&'static Story> {
    ALL.iter().find(|story| story.name == name)
}
