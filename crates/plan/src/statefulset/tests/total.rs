//! Planners are total: no input makes them panic.

use super::world::World;
use crate::allowance::Allowance;
use crate::statefulset::{Seen, SeenPod, Stage, invariant, plan};
use object::{Gates, Value, json};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::LazyLock;

const KEYS: &str = "metadata spec status name namespace labels finalizers ownerReferences uid template replicas ordinals start \
    updateStrategy rollingUpdate partition maxUnavailable type selector matchLabels app data revision phase conditions \
    volumeClaimTemplates containers volumes minReadySeconds collisionCount currentReplicas revisionHistoryLimit \
    deletionTimestamp controller kind volumeClaimUpdatePolicy InPlace storage requests resources capacity";

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec![
            "web",
            "web-0",
            "web-1",
            "data-web-0",
            "Delete",
            "Parallel",
            "Recreate",
            "InPlace",
            "Bound",
            "1Gi",
            "OnDelete",
            "Failed",
            "Running",
            "Pod",
            "StatefulSet",
            "50%",
            "é-0",
            "2026-01-01T00:00:00Z",
            "-9999-01-01T00:00:00Z"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        let key = prop::sample::select(KEYS.split_whitespace().collect::<Vec<_>>()).prop_map(str::to_owned);
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            3 => prop::collection::vec((key, inner), 0..7).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

static SETTLED: LazyLock<World> =
    LazyLock::new(|| World::new(2).settled(|set| set["spec"]["ordinals"] = json!({"start": 0})));

/// The objects of a settled model, with arbitrary JSON in some places.
fn disturbed() -> impl Strategy<Value = (Value, Vec<Value>, Vec<Value>, Vec<Value>)> {
    let path = prop::collection::vec(any::<prop::sample::Index>(), 1..6);
    prop::collection::vec((any::<prop::sample::Index>(), path, any_json()), 1..5).prop_map(|changes| {
        let world = SETTLED.clone();
        let mut objects: Vec<Value> = vec![world.set.unwrap()];
        let (pods, claims) = (world.pods.len(), world.claims.len());
        objects.extend(world.pods.into_values().chain(world.claims.into_values()).chain(world.revisions.into_values()));
        for (object, path, value) in changes {
            let at = object.index(objects.len());
            let mut place = &mut objects[at];
            for step in path {
                if place.as_object().is_none_or(|members| members.is_empty()) {
                    break;
                }
                let members = place.as_object_mut().unwrap();
                let key = members.keys().nth(step.index(members.len())).unwrap().clone();
                place = members.get_mut(&key).unwrap();
            }
            *place = value;
        }
        let mut rest = objects.split_off(1);
        let revisions = rest.split_off(pods + claims);
        let claims = rest.split_off(pods);
        (objects.remove(0), rest, claims, revisions)
    })
}

fn answers(set: &Value, pods: &[Value], claims: &[Value], revisions: &[Value], gates: &Gates) {
    let pods: Vec<SeenPod> = pods.iter().map(|pod| SeenPod::read(pod.clone().into())).collect();
    let (pods, claims, revisions): (Vec<_>, Vec<_>, Vec<_>) =
        (pods.iter().collect(), claims.iter().collect(), revisions.iter().collect());
    let seen = Seen {
        set,
        pods: &pods,
        claims: &claims,
        revisions: &revisions,
        contested: &BTreeSet::new(),
        allowance: Allowance::MAX,
    };
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let once = plan(&seen, gates, now);
    assert_eq!(once, plan(&seen, gates, now), "plans are deterministic");
    invariant::check(&seen, &once, gates, now);
    let failed: Vec<_> = once.stages.iter().flat_map(Stage::actions).map(|action| (action, Some("boom"))).collect();
    once.status_after(set, &failed);
}

proptest! {
    #[test]
    fn nothing_panics(
        set in any_json(),
        others in prop::collection::vec(any_json(), 0..4),
        gates in any::<bool>(),
    ) {
        let gates = Gates::default().with("StatefulSetRecreateStrategy", gates);
        answers(&set, &others, &others, &others, &gates);
    }

    #[test]
    fn nothing_panics_on_disturbed_objects((set, pods, claims, revisions) in disturbed(), gates in any::<bool>()) {
        let gates = Gates::default().with("StatefulSetOrdinalPartition", gates).with("MaxUnavailableStatefulSet", gates);
        answers(&set, &pods, &claims, &revisions, &gates);
    }
}
