use super::*;
use crate::admission::testing::{World, denied, kind};
use proptest::prelude::*;

const QUOTA_KEY: &str = "/core/resourcequotas/a/q";

fn world(hard: Value) -> World {
    let mut world = World::with_namespace("a");
    add_quota(&mut world, "q", json!({"hard": hard}));
    world
}

fn add_quota(world: &mut World, quota_name: &str, spec: Value) -> Value {
    world.create("resourcequotas", json!({"metadata": {"name": quota_name, "namespace": "a"}, "spec": spec})).unwrap()
}

fn object(object_name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": object_name, "namespace": "a"}, "spec": spec})
}

fn pod(pod_name: &str, cpu: &str) -> Value {
    let resources = if cpu.is_empty() { json!({}) } else { json!({"requests": {"cpu": cpu}}) };
    object(pod_name, json!({"containers": [{"name": "c", "resources": resources}]}))
}

fn claim(claim_name: &str, class: &str, size: &str) -> Value {
    object(claim_name, json!({"storageClassName": class, "resources": {"requests": {"storage": size}}}))
}

fn used(world: &World, resource: &str) -> String {
    world.get(QUOTA_KEY).unwrap().text(&["status", "used", resource]).to_owned()
}

#[test]
fn the_last_unit_is_granted_and_the_next_refused_with_upstreams_message() {
    let mut world = world(json!({"pods": "3"}));
    for at in 0..3 {
        world.create("pods", pod(&format!("p{at}"), "")).unwrap();
    }
    let refused = denied(world.create("pods", pod("p3", "")));
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message,
        "pods \"p3\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3"
    );
    let first = world.get("/core/pods/a/p0").unwrap();
    world.remove("pods", first).unwrap();
    assert_eq!(used(&world, "pods"), "2");
    assert!(world.create("pods", pod("p3", "")).is_ok());
}

#[test]
fn containers_must_specify_limited_resources() {
    let mut world = world(json!({"requests.cpu": "1", "limits.memory": "1Gi"}));
    let mut silent = pod("p", "");
    silent["spec"]["initContainers"] = json!([{"name": "i", "resources": {"limits": {"memory": "1"}}}]);
    assert_eq!(
        denied(world.create("pods", silent)).message,
        "pods \"p\" is forbidden: failed quota: q: must specify limits.memory for: c; requests.cpu for: c,i"
    );
}

#[test]
fn compute_is_summed_and_several_excesses_are_listed() {
    let mut world = world(json!({"cpu": "1", "requests.cpu": "1", "pods": "5"}));
    world.create("pods", pod("a", "600m")).unwrap();
    assert_eq!(
        denied(world.create("pods", pod("b", "500m"))).message,
        "pods \"b\" is forbidden: exceeded quota: q, requested: cpu=500m,requests.cpu=500m, \
         used: cpu=600m,requests.cpu=600m, limited: cpu=1,requests.cpu=1"
    );
    world.create("pods", pod("b", "400m")).unwrap();
    assert_eq!(used(&world, "cpu"), "1");
}

#[test]
fn pods_that_have_ended_give_back_all_but_their_count() {
    let mut world = world(json!({"pods": "1", "requests.cpu": "1", "count/pods": "2"}));
    world.create("pods", pod("a", "1")).unwrap();
    let old = world.get("/core/pods/a/a").unwrap();
    let mut ended = old.clone();
    ended.put(&["status", "phase"], "Succeeded");
    world.update_sub("pods", "status", &old, ended.clone()).unwrap();
    let amounts = |world: &World| [used(world, "pods"), used(world, "requests.cpu"), used(world, "count/pods")];
    assert_eq!(amounts(&world), ["0", "0", "1"]);
    world.remove("pods", ended).unwrap();
    assert_eq!(amounts(&world), ["0", "0", "0"]);
}

#[test]
fn storage_is_counted_in_all_and_by_class() {
    let mut world = world(json!({
        "requests.storage": "10Gi",
        "persistentvolumeclaims": "5",
        "gold.storageclass.storage.k8s.io/requests.storage": "2Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
    }));
    world.create("persistentvolumeclaims", claim("a", "gold", "1Gi")).unwrap();
    world.create("persistentvolumeclaims", claim("b", "tin", "4Gi")).unwrap();
    assert_eq!(used(&world, "requests.storage"), "5Gi");
    assert_eq!(used(&world, "gold.storageclass.storage.k8s.io/requests.storage"), "1Gi");
    assert_eq!(
        denied(world.create("persistentvolumeclaims", claim("c", "gold", "1Gi"))).message,
        "persistentvolumeclaims \"c\" is forbidden: exceeded quota: q, \
         requested: gold.storageclass.storage.k8s.io/persistentvolumeclaims=1, \
         used: gold.storageclass.storage.k8s.io/persistentvolumeclaims=1, \
         limited: gold.storageclass.storage.k8s.io/persistentvolumeclaims=1"
    );
}

#[test]
fn growing_claims_are_charged_the_difference_and_count_what_is_allocated() {
    let mut world = world(json!({"requests.storage": "3Gi"}));
    world.store(
        "/storage.k8s.io/storageclasses/grows",
        json!({"metadata": {"name": "grows"}, "allowVolumeExpansion": true}),
    );
    let mut old = world.create("persistentvolumeclaims", claim("a", "grows", "1Gi")).unwrap();
    old.put(&["status", "phase"], "Bound");
    let resized = |from: &Value, size: &str| {
        let mut to = from.clone();
        to.put(&["spec", "resources", "requests", "storage"], size);
        to
    };
    let grown = world.update("persistentvolumeclaims", &old, resized(&old, "3Gi")).unwrap();
    assert_eq!(used(&world, "requests.storage"), "3Gi");
    assert_eq!(
        denied(world.update("persistentvolumeclaims", &grown, resized(&grown, "4Gi"))).message,
        "persistentvolumeclaims \"a\" is forbidden: exceeded quota: q, requested: requests.storage=1Gi, \
         used: requests.storage=3Gi, limited: requests.storage=3Gi"
    );
    let mut allocated = grown.clone();
    allocated.put(&["status", "allocatedResources", "storage"], "3Gi");
    world.update_sub("persistentvolumeclaims", "status", &grown, allocated.clone()).unwrap();
    let back = world.update("persistentvolumeclaims", &allocated, resized(&allocated, "2Gi")).unwrap();
    assert_eq!(used(&world, "requests.storage"), "3Gi", "what is allocated is not given back by asking for less");
    let mut settled = back.clone();
    settled.put(&["status", "allocatedResources", "storage"], "2Gi");
    world.update_sub("persistentvolumeclaims", "status", &back, settled).unwrap();
    assert_eq!(used(&world, "requests.storage"), "2Gi");
}

#[test]
fn attribute_classes_are_counted_by_name_and_by_scope() {
    let mut world = world(json!({"fast.volumeattributesclass.storage.k8s.io/requests.storage": "2Gi"}));
    let expression = json!([{"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["fast"]}]);
    let spec = json!({"hard": {"persistentvolumeclaims": "1"}, "scopeSelector": {"matchExpressions": expression}});
    add_quota(&mut world, "scoped", spec);
    let with_class = |mut claim: Value, class: &str| {
        claim.put(&["spec", "volumeAttributesClassName"], class);
        claim
    };
    let slow = world.create("persistentvolumeclaims", with_class(claim("a", "", "1Gi"), "slow")).unwrap();
    world.create("persistentvolumeclaims", with_class(claim("b", "", "1Gi"), "fast")).unwrap();
    assert_eq!(used(&world, "fast.volumeattributesclass.storage.k8s.io/requests.storage"), "1Gi");
    let refused = denied(world.update("persistentvolumeclaims", &slow, with_class(slow.clone(), "fast")));
    assert_eq!(
        refused.message,
        "persistentvolumeclaims \"a\" is forbidden: exceeded quota: scoped, requested: persistentvolumeclaims=1, \
         used: persistentvolumeclaims=1, limited: persistentvolumeclaims=1"
    );
}

#[test]
fn scopes_choose_pods() {
    let mut quotas = Vec::new();
    let (mut limited, mut deadline) = (pod("x", "1"), pod("x", ""));
    limited.put(&["spec", "priorityClassName"], "system-node-critical");
    deadline.put(&["spec", "activeDeadlineSeconds"], 5);
    let selector = |operator: &str, values: Value| {
        let expression = json!({"scopeName": "PriorityClass", "operator": operator, "values": values});
        json!({"scopeSelector": {"matchExpressions": [expression]}})
    };
    // Scope, and whether it applies to the pod with limits and to the pod with a deadline.
    let cases = [
        (json!({"scopes": ["BestEffort"]}), false, true),
        (json!({"scopes": ["NotBestEffort"]}), true, false),
        (json!({"scopes": ["Terminating"]}), false, true),
        (json!({"scopes": ["NotTerminating"]}), true, false),
        (json!({"scopes": ["NotTerminating", "BestEffort"]}), false, false),
        (json!({"scopes": ["PriorityClass"]}), true, false),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), false, false),
        (selector("In", json!(["system-node-critical"])), true, false),
        (selector("NotIn", json!(["system-node-critical"])), false, true),
        (selector("DoesNotExist", json!([])), false, true),
        (json!({}), true, true),
    ];
    for (spec, for_limited, for_deadline) in cases {
        let quota = json!({"spec": spec});
        assert_eq!(scope::matches(&quota, usage::PODS, &limited), for_limited, "{quota}");
        assert_eq!(scope::matches(&quota, usage::PODS, &deadline), for_deadline, "{quota}");
        quotas.push(quota);
    }
    let secrets = Countable { group: "", plural: "secrets" };
    assert!(!scope::matches(&quotas[0], secrets, &json!({})), "scopes of pods exclude everything else");
}

#[test]
fn objects_of_any_kind_are_counted() {
    let mut world = world(json!({"count/statefulsets.apps": "1", "secrets": "1", "count/configmaps": "1"}));
    world.create("statefulsets", object("s", json!({}))).unwrap();
    let refused = denied(world.create("statefulsets", object("t", json!({}))));
    assert_eq!(
        refused.message,
        "statefulsets.apps \"t\" is forbidden: exceeded quota: q, requested: count/statefulsets.apps=1, \
         used: count/statefulsets.apps=1, limited: count/statefulsets.apps=1"
    );
    world.create("secrets", object("s", json!({}))).unwrap();
    assert_eq!(denied(world.create("secrets", object("t", json!({})))).code, 403);
    world.create("configmaps", object("s", json!({}))).unwrap();
    assert_eq!(denied(world.create("configmaps", object("t", json!({})))).code, 403);
}

#[test]
fn services_are_counted_by_type() {
    let mut world = world(json!({"services": "3", "services.loadbalancers": "1", "services.nodeports": "2"}));
    let balanced = json!({"type": "LoadBalancer", "ports": [{"port": 80}, {"port": 81}]});
    world.create("services", object("s", balanced.clone())).unwrap();
    let refused = denied(world.create("services", object("t", balanced)));
    assert!(refused.message.contains("requested: services.loadbalancers=1,services.nodeports=2"), "{refused}");
    world.create("services", object("t", json!({"type": "ClusterIP"}))).unwrap();
    assert_eq!(used(&world, "services"), "2");
}

#[test]
fn a_new_or_changed_quota_shows_and_enforces_usage_at_once() {
    let mut world = World::with_namespace("a");
    world.create("pods", pod("old", "1")).unwrap();
    let quota = add_quota(&mut world, "q", json!({"hard": {"pods": "1", "resourcequotas": "5"}}));
    assert_eq!(
        quota["status"],
        json!({"hard": {"pods": "1", "resourcequotas": "5"}, "used": {"pods": "1", "resourcequotas": "1"}})
    );
    assert_eq!(denied(world.create("pods", pod("new", ""))).code, 403);
    let old = world.get(QUOTA_KEY).unwrap();
    let mut changed = old.clone();
    changed.put(&["spec", "hard"], json!({"cpu": "2"}));
    let changed = world.update("resourcequotas", &old, changed).unwrap();
    assert_eq!(changed["status"], json!({"hard": {"cpu": "2"}, "used": {"cpu": "1"}}));
}

#[test]
fn two_at_once_cannot_both_take_the_last_place() {
    let mut world = world(json!({"pods": "1"}));
    let first = world.validate("pods", pod("one", "")).unwrap();
    let second = world.validate("pods", pod("two", "")).unwrap();
    assert!(world.commit("pods", &first.0, first.1));
    assert!(!world.commit("pods", &second.0, second.1), "must be judged again");
    assert_eq!(denied(world.validate("pods", pod("two", ""))).code, 403);
}

#[test]
fn a_write_that_has_not_seen_a_new_quota_is_judged_again() {
    let mut world = World::with_namespace("a");
    let before = world.validate("pods", pod("slow", "")).unwrap();
    add_quota(&mut world, "q", json!({"hard": {"pods": "0"}}));
    assert!(!world.commit("pods", &before.0, before.1));
}

#[test]
fn a_write_during_the_creation_of_a_quota_is_counted_by_the_next() {
    let mut world = World::with_namespace("a");
    let spec = json!({"hard": {"pods": "2"}});
    let quota =
        world.validate("resourcequotas", json!({"metadata": {"name": "q", "namespace": "a"}, "spec": spec})).unwrap();
    world.create("pods", pod("quick", "")).unwrap();
    assert!(world.commit("resourcequotas", &quota.0, quota.1));
    assert_eq!(used(&world, "pods"), "0", "counted before the pod came");
    world.create("pods", pod("next", "")).unwrap();
    assert_eq!(used(&world, "pods"), "2");
    assert_eq!(denied(world.create("pods", pod("third", ""))).code, 403);
}

#[test]
fn writes_that_change_no_usage_do_not_touch_quotas() {
    let mut world = world(json!({"pods": "1"}));
    let old = world.create("pods", pod("p", "")).unwrap();
    let before = world.store.get(QUOTA_KEY).unwrap().modified;
    let mut labelled = old.clone();
    labelled.put(&["metadata", "labels", "x"], "y");
    world.update("pods", &old, labelled).unwrap();
    world.create("secrets", object("s", json!({}))).unwrap();
    assert_eq!(world.store.get(QUOTA_KEY).unwrap().modified, before);
}

#[test]
fn an_unchanged_quota_adds_no_writes() {
    let mut world = world(json!({"pods": "1"}));
    let epoch = |world: &World| world.store.get("/mainstay/quota-epochs/a").unwrap().modified;
    let (quota, before) = (world.get(QUOTA_KEY).unwrap(), epoch(&world));
    world.update("resourcequotas", &quota, quota.clone()).unwrap();
    assert_eq!(epoch(&world), before);
}

#[test]
fn the_epoch_is_deleted_with_its_namespace() {
    let mut world = world(json!({"pods": "1"}));
    assert_eq!(world.count("/mainstay/quota-epochs/"), 1);
    world.remove("namespaces", json!({"metadata": {"name": "a"}})).unwrap();
    assert_eq!(world.count("/mainstay/quota-epochs/"), 0);
}

#[derive(Clone, Debug)]
enum Deed {
    Pod(u8, u8),
    Claim(u8, u8),
    Grow(u8, u8),
    Remove(bool, u8),
    End(u8),
    Quota(u8),
    Label,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        (0u8..6, 1u8..4).prop_map(|(at, cpu)| Deed::Pod(at, cpu)),
        (0u8..6, 1u8..4).prop_map(|(at, size)| Deed::Claim(at, size)),
        (0u8..6, 1u8..6).prop_map(|(at, size)| Deed::Grow(at, size)),
        (any::<bool>(), 0u8..6).prop_map(|(pods, at)| Deed::Remove(pods, at)),
        (0u8..6).prop_map(Deed::End),
        (1u8..9).prop_map(Deed::Quota),
        Just(Deed::Label),
    ];
    prop::collection::vec(deed, 1..40)
}

/// A request that passed admission and is committed later, as requests of other clients overlap.
struct Pending {
    plural: &'static str,
    object: Value,
    together: AtomicWrites,
}

impl World {
    fn quota_names(&self) -> Vec<String> {
        let quotas = self.admission.reader.list("/core/resourcequotas/a/").unwrap();
        quotas.iter().map(|(quota, _)| name(quota).to_owned()).collect()
    }

    fn perform(&mut self, deed: &Deed) -> Option<Pending> {
        let pending = |plural, judged: Result<(Value, AtomicWrites), Status>| {
            judged.ok().map(|(object, together)| Pending { plural, object, together })
        };
        match deed {
            Deed::Pod(at, cpu) => pending("pods", self.validate("pods", pod(&format!("p{at}"), &cpu.to_string()))),
            Deed::Claim(at, size) => {
                let claim = claim(&format!("c{at}"), "gold", &format!("{size}Gi"));
                pending("persistentvolumeclaims", self.validate("persistentvolumeclaims", claim))
            }
            Deed::Grow(at, size) => {
                let mut old = self.get(&format!("/core/persistentvolumeclaims/a/c{at}"))?;
                old.put(&["status", "phase"], "Bound");
                let mut new = old.clone();
                new.put(&["spec", "resources", "requests", "storage"], format!("{size}Gi"));
                drop(self.update("persistentvolumeclaims", &old, new));
                None
            }
            Deed::Remove(pods, at) => {
                let (plural, letter) = if *pods { ("pods", "p") } else { ("persistentvolumeclaims", "c") };
                let old = self.get(&format!("/core/{plural}/a/{letter}{at}"))?;
                self.remove(plural, old).unwrap();
                None
            }
            Deed::End(at) => {
                let old = self.get(&format!("/core/pods/a/p{at}"))?;
                let mut new = old.clone();
                new.put(&["status", "phase"], "Failed");
                self.update_sub("pods", "status", &old, new).unwrap();
                None
            }
            Deed::Quota(most) => {
                let hard = json!({"pods": most.to_string(), "cpu": (most * 2).to_string(), "requests.storage": format!("{most}Gi")});
                let quota = json!({"metadata": {"name": format!("q{most}"), "namespace": "a"}, "spec": {"hard": hard}});
                pending("resourcequotas", self.validate("resourcequotas", quota))
            }
            Deed::Label => {
                for quota in self.quota_names() {
                    let old = self.get(&format!("/core/resourcequotas/a/{quota}")).unwrap();
                    let mut new = old.clone();
                    new.put(&["metadata", "labels", "x"], "y");
                    self.update("resourcequotas", &old, new).unwrap();
                }
                None
            }
        }
    }

    /// As in the server, the name of a creation must be free.
    fn finish(&mut self, pending: Pending) {
        let key = crate::object_store::key(&kind(pending.plural), "a", name(&pending.object));
        if self.store.get(&key).is_none() {
            self.commit(pending.plural, &pending.object, pending.together);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// However writes overlap: after a counted write has seen a quota, its usage is exact.
    #[test]
    fn usage_is_exact(deeds in deeds(), delays in prop::collection::vec(any::<bool>(), 40)) {
        let mut world = World::with_namespace("a");
        world.store("/storage.k8s.io/storageclasses/gold", json!({"metadata": {"name": "gold"}, "allowVolumeExpansion": true}));
        let mut late: Vec<Pending> = Vec::new();
        for (deed, delayed) in deeds.iter().zip(delays) {
            match world.perform(deed) {
                Some(pending) if delayed => late.push(pending),
                Some(pending) => world.finish(pending),
                None => {}
            }
            if late.len() > 3 {
                let pending = late.remove(0);
                world.finish(pending);
            }
        }
        for pending in late {
            world.finish(pending);
        }
        let epoch = world.store.get("/mainstay/quota-epochs/a").map_or(0, |record| record.modified);
        for (quota, record) in world.admission.reader.list("/core/resourcequotas/a/").unwrap() {
            if record.modified > epoch {
                let counted = usage::count(&world.admission.reader, "a", &quota).unwrap();
                prop_assert_eq!(stored_usage(&quota), counted, "{}", name(&quota));
            }
        }
    }
}
