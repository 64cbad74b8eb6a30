//! For any sequence of changes and failures: every plan is safe, claims are deleted only by policy or by a
//! user, and in the end the set has its desired state.

use super::world::{Fate, World, add_owner, is_idle, set, size};
use object::access::{Access, controller, name, terminating, uid};
use object::{Value, json};
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Happening {
    Scale(i64),
    Start(i64),
    Image(u8),
    Policy(bool, bool),
    /// Claim templates: gibibytes (never fewer), a class, a label.
    Size(i64),
    Class(u8),
    ClaimLabel(u8),
    /// Claims are updated in place.
    InPlace(bool),
    /// The server refuses changes of a claim, or no longer.
    Refuse(usize, bool),
    /// A volume cannot be changed, or can again.
    Stick(usize, bool),
    /// A user grows a claim.
    Grow(usize, i64),
    /// A user removes a claim's labels.
    Unlabel(usize),
    Partition(i64),
    MaxUnavailable(Value),
    MinReady(i64),
    History(i64),
    Gate(&'static str, bool),
    /// The number of objects that a plan may write.
    Allowance(usize),
    Ready(usize, bool),
    Fail(usize),
    DeletePod(usize),
    /// A finalizer keeps the pod, or no longer.
    Hold(usize, bool),
    Orphan(usize),
    /// The pod loses its labels, so that the set releases it.
    Strip(usize),
    Stranger(i64),
    DeleteClaim(usize),
    /// A claim is removed at once, even if it is used.
    LoseClaim(usize),
    /// Another controller takes over a claim.
    Grab(usize),
    /// An owner reference to an earlier set of this name.
    Namesake(usize),
    DeleteRevision(usize),
    Time(i64),
    Kubelet,
    Collect,
    /// A plan is made, and executed after another change.
    SetPlan,
    Do(Fate),
    Step,
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    let gates = prop::sample::select(vec![
        "StatefulSetAutoDeletePVC",
        "StatefulSetStartOrdinal",
        "StatefulSetOrdinalPartition",
        "MaxUnavailableStatefulSet",
        "StatefulSetUpdateVolumeClaimTemplate",
    ]);
    let max = prop_oneof![(1_i64..4).prop_map(Value::from), Just(json!("50%"))];
    let edits = prop_oneof![
        3 => (0_i64..5).prop_map(Scale),
        1 => (0_i64..4).prop_map(Start),
        2 => (1_u8..4).prop_map(Image),
        3 => (any::<bool>(), any::<bool>()).prop_map(|(deleted, scaled)| Policy(deleted, scaled)),
        1 => (0_i64..6).prop_map(Partition),
        1 => max.prop_map(MaxUnavailable),
        1 => prop::sample::select(vec![0_i64, 10]).prop_map(MinReady),
        1 => (-1_i64..2).prop_map(History),
        1 => (gates, any::<bool>()).prop_map(|(gate, on)| Gate(gate, on)),
        2 => (1_i64..5).prop_map(Size),
        1 => (0_u8..3).prop_map(Class),
        1 => (0_u8..3).prop_map(ClaimLabel),
        2 => prop::bool::weighted(0.7).prop_map(InPlace),
        1 => (1_usize..4).prop_map(Allowance),
    ];
    let pods = prop_oneof![
        2 => (0_usize..8, any::<bool>()).prop_map(|(pod, ready)| Ready(pod, ready)),
        1 => (0_usize..8).prop_map(Fail),
        2 => (0_usize..8).prop_map(DeletePod),
        2 => (0_usize..8, any::<bool>()).prop_map(|(pod, held)| Hold(pod, held)),
        1 => (0_usize..8).prop_map(Orphan),
        1 => (0_usize..8).prop_map(Strip),
        1 => (0_i64..5).prop_map(Stranger),
    ];
    let others = prop_oneof![
        2 => (0_usize..8).prop_map(DeleteClaim),
        1 => (0_usize..8).prop_map(Grab),
        1 => (0_usize..8).prop_map(Namesake),
        1 => (0_usize..4).prop_map(DeleteRevision),
        2 => (1_i64..12).prop_map(Time),
        2 => (0_usize..8, any::<bool>()).prop_map(|(claim, refused)| Refuse(claim, refused)),
        2 => (0_usize..8, any::<bool>()).prop_map(|(claim, stuck)| Stick(claim, stuck)),
        1 => (0_usize..8, 1_i64..9).prop_map(|(claim, size)| Grow(claim, size)),
        1 => (0_usize..8).prop_map(Unlabel),
    ];
    prop_oneof![
        3 => edits,
        2 => pods,
        1 => others,
        4 => Just(Kubelet),
        2 => Just(Collect),
        1 => Just(SetPlan),
        2 => fates().prop_map(Do),
        6 => Just(Step),
    ]
}

/// Changes for claims that are updated in place.
fn claim_happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    let edits = prop_oneof![
        4 => (1_i64..5).prop_map(Size),
        2 => (0_u8..3).prop_map(Class),
        1 => (0_u8..3).prop_map(ClaimLabel),
        2 => (1_u8..4).prop_map(Image),
        2 => prop::bool::weighted(0.8).prop_map(InPlace),
        2 => (1_i64..5).prop_map(Scale),
        1 => (0_i64..4).prop_map(Partition),
        1 => (1_i64..4).prop_map(|max| MaxUnavailable(max.into())),
        1 => prop::sample::select(vec![0_i64, 10]).prop_map(MinReady),
        1 => any::<bool>().prop_map(|deleted| Policy(deleted, false)),
        1 => prop::bool::weighted(0.8).prop_map(|on| Gate("StatefulSetUpdateVolumeClaimTemplate", on)),
        1 => any::<bool>().prop_map(|on| Gate("MaxUnavailableStatefulSet", on)),
        1 => (1_usize..4).prop_map(Allowance),
    ];
    let troubles = prop_oneof![
        2 => (0_usize..8, any::<bool>()).prop_map(|(pod, ready)| Ready(pod, ready)),
        2 => (0_usize..8).prop_map(DeletePod),
        1 => (0_usize..8).prop_map(DeleteClaim),
        1 => (0_usize..8).prop_map(LoseClaim),
        2 => (0_usize..8, any::<bool>()).prop_map(|(claim, refused)| Refuse(claim, refused)),
        2 => (0_usize..8, any::<bool>()).prop_map(|(claim, stuck)| Stick(claim, stuck)),
        1 => (0_usize..8, 1_i64..9).prop_map(|(claim, size)| Grow(claim, size)),
        1 => (0_usize..8).prop_map(Unlabel),
        1 => (0_usize..4).prop_map(DeleteRevision),
    ];
    prop_oneof![2 => edits, 2 => troubles, 3 => Just(Kubelet), 1 => Just(SetPlan), 2 => fates().prop_map(Do), 5 => Just(Step)]
}

fn fates() -> impl Strategy<Value = Fate> {
    (prop::option::of(0_usize..6), prop::option::of(0_usize..6), any::<bool>())
        .prop_map(|(crash, fail, counts_wait)| Fate { crash, fail, counts_wait })
}

fn first_set() -> impl Strategy<Value = Value> {
    let strategies = prop::sample::select(vec![
        json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}}),
        json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 2}}),
        json!({"type": "RollingUpdate"}),
        json!({"type": "OnDelete"}),
        json!({"type": "Recreate"}),
    ]);
    let in_place = any::<bool>();
    (0_i64..5, any::<bool>(), strategies, 0_usize..3, in_place).prop_map(
        |(replicas, ordered, strategy, claims, in_place)| {
            let mut set = set(replicas);
            set.put(&["spec", "volumeClaimUpdatePolicy"], if in_place { "InPlace" } else { "OnClaimDelete" });
            set.put(&["spec", "updateStrategy"], strategy);
            if !ordered {
                set.put(&["spec", "podManagementPolicy"], "Parallel");
            }
            match claims {
                0 => drop(set.cut(&["spec", "volumeClaimTemplates"])),
                1 => {}
                _ => {
                    let mut logs = set["spec"]["volumeClaimTemplates"][0].clone();
                    logs.put(&["metadata", "name"], "logs");
                    set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap().push(logs);
                }
            }
            set
        },
    )
}

fn nth(objects: &super::world::Objects, at: usize) -> Option<String> {
    objects.keys().nth(at % objects.len().max(1)).cloned()
}

impl World {
    fn happen(&mut self, happening: &Happening, waiting: &mut Option<crate::statefulset::SetPlan>) {
        use Happening::*;
        let pod = |world: &World, at: usize| nth(&world.pods, at).unwrap_or_default();
        let claim = |world: &World, at: usize| nth(&world.claims, at).unwrap_or_default();
        match happening {
            Scale(replicas) => self.scale(*replicas),
            Start(start) => self.spec(&["ordinals", "start"], *start),
            Image(image) => self.image(&format!("v{image}")),
            Policy(deleted, scaled) => {
                let word = |delete: bool| if delete { "Delete" } else { "Retain" };
                self.policy(word(*deleted), word(*scaled));
            }
            Size(gibibytes) => {
                let (asked, path) = (gibibytes * (1 << 30), ["spec", "resources", "requests"]);
                let grows = |template: &Value| asked > size(template, &path);
                self.edit_template(|template| {
                    if grows(template) {
                        template.put(&["spec", "resources", "requests", "storage"], format!("{gibibytes}Gi"));
                    }
                });
            }
            Class(0) => self.edit_template(|template| drop(template.cut(&["spec", "volumeAttributesClassName"]))),
            Class(class) => {
                self.edit_template(|template| template.put(&["spec", "volumeAttributesClassName"], format!("c{class}")));
            }
            ClaimLabel(0) => self.edit_template(|template| drop(template.cut(&["metadata", "labels"]))),
            ClaimLabel(label) => {
                self.edit_template(|template| template.put(&["metadata", "labels"], json!({(format!("l{label}")): "x"})));
            }
            InPlace(in_place) => {
                self.spec(&["volumeClaimUpdatePolicy"], if *in_place { "InPlace" } else { "OnClaimDelete" });
            }
            Refuse(at, refused) => match refused {
                true => drop(self.refused.insert(claim(self, *at))),
                false => drop(self.refused.remove(&claim(self, *at))),
            },
            Stick(at, stuck) => match stuck {
                true => drop(self.stuck.insert(claim(self, *at))),
                false => drop(self.stuck.remove(&claim(self, *at))),
            },
            Grow(at, gibibytes) => self.edit_claim(&claim(self, *at), |claim| {
                let bound = claim.text(&["status", "phase"]) == "Bound";
                if bound && gibibytes * (1 << 30) > size(claim, &["spec", "resources", "requests"]) {
                    claim.put(&["spec", "resources", "requests", "storage"], format!("{gibibytes}Gi"));
                }
            }),
            Unlabel(at) => self.edit_claim(&claim(self, *at), |claim| drop(claim.cut(&["metadata", "labels"]))),
            Partition(partition) => self.edit(|set| {
                if set.has(&["spec", "updateStrategy", "rollingUpdate"]) {
                    set.put(&["spec", "updateStrategy", "rollingUpdate", "partition"], *partition);
                }
            }),
            MaxUnavailable(max) => self.edit(|set| {
                if set.has(&["spec", "updateStrategy", "rollingUpdate"]) {
                    set.put(&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"], max.clone());
                }
            }),
            MinReady(seconds) => self.spec(&["minReadySeconds"], *seconds),
            History(limit) => self.spec(&["revisionHistoryLimit"], *limit),
            Allowance(objects) => self.allowance.objects = *objects,
            Gate(gate, on) => self.gates = self.gates.clone().with(gate, *on),
            Ready(at, ready) if self.can_run(&pod(self, *at)) => self.ready(&pod(self, *at), *ready),
            Ready(..) => {}
            Fail(at) => self.fail(&pod(self, *at), "Failed"),
            DeletePod(at) => self.delete_pod(&pod(self, *at)),
            Hold(at, held) => self.edit_pod(&pod(self, *at), |pod| {
                pod.put(&["metadata", "finalizers"], if *held { json!(["example.com/hold"]) } else { json!([]) });
            }),
            Orphan(at) => self.edit_pod(&pod(self, *at), |pod| drop(pod.cut(&["metadata", "ownerReferences"]))),
            Strip(at) => self.edit_pod(&pod(self, *at), |pod| drop(pod.cut(&["metadata", "labels"]))),
            Stranger(ordinal) => {
                let stranger = format!("web-{ordinal}");
                if !self.pods.contains_key(&stranger) {
                    let owner = json!([{"kind": "Job", "name": "other", "uid": "elsewhere", "controller": true}]);
                    self.put_pod(&stranger, json!({"app": "web"}), owner);
                }
            }
            DeleteClaim(at) => self.delete_claim(&claim(self, *at)),
            LoseClaim(at) => drop(self.claims.remove(&claim(self, *at))),
            Grab(at) => self.edit_claim(&claim(self, *at), |claim| {
                let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "elsewhere", "controller": true});
                if controller(claim).is_none() {
                    add_owner(claim, owner);
                }
            }),
            Namesake(at) => {
                let claim = claim(self, *at);
                self.doomed.insert(claim.clone());
                let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set-0"});
                self.edit_claim(&claim, |claim| add_owner(claim, owner));
            }
            DeleteRevision(at) => drop(nth(&self.revisions, *at).and_then(|name| self.revisions.remove(&name))),
            Time(seconds) => self.advance(*seconds),
            Kubelet => self.kubelet(),
            Collect => drop(self.collect()),
            SetPlan => {
                self.doom();
                *waiting = Some(self.plan());
            }
            Do(fate) => match waiting.take() {
                Some(plan) => drop(self.execute(&plan, *fate)),
                None => drop(self.step_with(*fate)),
            },
            Step => {
                *waiting = None;
                self.step();
            }
        }
    }

    /// Removes all faults, and deletes the pods that the set cannot use.
    fn calm(&mut self) {
        let strangers: Vec<String> = self
            .pods
            .values()
            .filter(|pod| {
                let ours = controller(pod).is_none_or(|owner| owner.text(&["uid"]) == uid(self.set.as_ref().unwrap()));
                let made_by_others = pod.items(&["spec", "containers"]).is_empty();
                !ours || made_by_others || pod.text(&["metadata", "labels", "app"]) != "web"
            })
            .map(|pod| name(pod).to_owned())
            .collect();
        strangers.iter().for_each(|pod| self.delete_pod(pod));
        for pod in self.pods.values_mut() {
            pod.cut(&["metadata", "finalizers"]);
        }
        self.refused.clear();
        self.stuck.clear();
        // A running pod that lost its claim is left to the user, except with InPlace.
        let lost = |pod: &Value| {
            let mut volumes = pod.items(&["spec", "volumes"]).iter().filter(|it| it.has(&["persistentVolumeClaim"]));
            volumes.any(|it| !self.claims.contains_key(it.text(&["persistentVolumeClaim", "claimName"])))
        };
        let in_place = crate::statefulset::invariant::Wants::of(self.set.as_ref().unwrap(), &self.gates).in_place;
        let lost: Vec<String> =
            self.pods.values().filter(|pod| !in_place && lost(pod)).map(|pod| name(pod).to_owned()).collect();
        lost.iter().for_each(|pod| self.delete_pod(pod));
    }

    fn check_complete(&self) {
        let set = self.set.as_ref().unwrap();
        let start = set.int(&["spec", "ordinals", "start"]).filter(|_| self.gates.on("StatefulSetStartOrdinal"));
        let (start, replicas) = (start.unwrap_or(0), set.int(&["spec", "replicas"]).unwrap());
        let wanted: BTreeSet<String> = (start..start + replicas).map(|ordinal| format!("web-{ordinal}")).collect();
        assert_eq!(self.pods.keys().cloned().collect::<BTreeSet<_>>(), wanted, "exactly the ordinals in range");
        let update = self.status_text("updateRevision");
        let partition = set.int(&["spec", "updateStrategy", "rollingUpdate", "partition"]).unwrap_or(0);
        let lowest = if self.gates.on("StatefulSetOrdinalPartition") { partition } else { start + partition };
        let on_delete = set.text(&["spec", "updateStrategy", "type"]) == "OnDelete";
        for (pod_name, pod) in &self.pods {
            let ordinal: i64 = pod_name[4..].parse().unwrap();
            let at = pod.text(&["metadata", "labels", "controller-revision-hash"]);
            assert!(on_delete || ordinal < lowest || at == update, "{pod_name} is at {at}, not at {update}");
            assert!(self.revisions.contains_key(at) || on_delete || ordinal < lowest, "{at} is kept");
            for template in set.items(&["spec", "volumeClaimTemplates"]) {
                assert!(self.claims.contains_key(&format!("{}-{pod_name}", name(template))));
            }
        }
        for field in ["replicas", "readyReplicas", "availableReplicas"] {
            assert_eq!(self.status(field), replicas, "{field}");
        }
        let all_new = self.pods.values().all(|pod| pod["metadata"]["labels"]["controller-revision-hash"] == *update);
        assert!(!all_new || self.status_text("currentRevision") == update, "promoted when all replicas are updated");
        assert_eq!(self.status("observedGeneration"), set.int(&["metadata", "generation"]).unwrap());
    }

    /// A larger template finally grows every claim that the rollout includes, and restarts nothing.
    fn check_growth(&mut self) {
        let before: Vec<(String, String)> =
            self.pods.iter().map(|(name, pod)| (name.clone(), uid(pod).to_owned())).collect();
        let at_rest = self.status_text("currentRevision") == self.status_text("updateRevision");
        self.edit_template(|template| template.put(&["spec", "resources", "requests", "storage"], "10Gi"));
        self.settle();
        self.check_complete();
        let set = self.set.clone().unwrap();
        let wants = crate::statefulset::invariant::Wants::of(&set, &self.gates);
        if at_rest {
            let after: Vec<(String, String)> =
                self.pods.iter().map(|(name, pod)| (name.clone(), uid(pod).to_owned())).collect();
            assert_eq!(after, before, "nothing is restarted");
        }
        let partition = set.int(&["spec", "updateStrategy", "rollingUpdate", "partition"]).unwrap_or(0);
        let offset = if self.gates.on("StatefulSetOrdinalPartition") { 0 } else { wants.ordinals.start };
        if !wants.in_place || set.text(&["spec", "updateStrategy", "type"]) == "OnDelete" {
            return;
        }
        let update = self.status_text("updateRevision");
        for pod in self.pods.keys().filter(|pod| pod[4..].parse::<i64>().unwrap() >= partition + offset) {
            let claim = self.claims.get(&format!("data-{pod}")).filter(|claim| !terminating(claim));
            let Some(claim) = claim else { continue };
            assert_eq!(claim.text(&["metadata", "labels", "controller-revision-hash"]), update, "{claim:#}");
            assert!(size(claim, &["status", "capacity"]) >= 10 << 30, "{claim:#}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// R4, R9, R11, R12, R14, O2, O5, T5, T6, T8, T12, T15, T16: no wrong deletion, no leak, and it
    /// converges.
    #[test]
    fn every_plan_is_safe_and_the_set_converges(
        set in first_set(),
        happenings in prop::collection::vec(happening(), 0..60),
        policy in (any::<bool>(), any::<bool>()),
    ) {
        let mut world = World::of(set);
        world.gates = world.gates.with("StatefulSetRecreateStrategy", true);
        let mut waiting = None;
        for happening in &happenings {
            world.happen(happening, &mut waiting);
        }
        world.calm();
        world.happen(&Happening::Policy(policy.0, policy.1), &mut waiting);
        let last = world.settle();
        prop_assert!(is_idle(&last) && last.next.is_none());
        world.check_complete();
        world.check_growth();
        check_farewell(world, policy.0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// T5, T6, T8, T11, T12, T15, T16: the number in flight is bounded, no pod is deleted before its claims
    /// are ready, nothing shrinks, no claim is deleted, and the set converges after all faults are removed.
    #[test]
    fn claims_in_place_are_safe_at_every_step_and_converge(
        mut set in first_set(),
        happenings in prop::collection::vec(claim_happening(), 0..60),
    ) {
        set.put(&["spec", "volumeClaimUpdatePolicy"], "InPlace");
        let mut world = World::of(set);
        world.gates = world.gates.with("StatefulSetRecreateStrategy", true);
        let mut waiting = None;
        for happening in &happenings {
            world.happen(happening, &mut waiting);
        }
        world.calm();
        let last = world.settle();
        prop_assert!(is_idle(&last) && last.next.is_none());
        world.check_complete();
        world.check_growth();
    }
}

/// Claims are deleted with the set if the policy says so, and only then.
fn check_farewell(mut world: World, when_deleted: bool) {
    let goes = when_deleted && world.gates.on("StatefulSetAutoDeletePVC");
    let grabbed =
        |claim: &Value| claim.items(&["metadata", "ownerReferences"]).iter().any(|it| it["uid"] == "elsewhere");
    let stay: Vec<String> = world
        .claims
        .iter()
        .filter(|(_, it)| (!goes || grabbed(it)) && !it.has(&["metadata", "deletionTimestamp"]))
        .map(|(name, _)| name.clone())
        .collect();
    world.delete_set();
    world.settle();
    assert!(world.pods.is_empty() && world.revisions.is_empty(), "{:?} {:?}", world.pods, world.revisions);
    assert_eq!(world.claim_names(), stay);
}
