//! Everything that each controller does, with as few objects as possible.

use crate::missing_permission::Stage;
use crate::pairs::*;
use crate::storage::{self, DRIVER, MONITOR, PROVISIONER, RESIZER, Storage, until_settled, until_volume};
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Order};
use kit::api::{Api, Resource};
use kit::events::EventSubject;
use object::access::{Access, name, namespace, uid};
use object::{Value, condition, json};
use std::pin::Pin;
use std::time::Duration;

type Told<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Stories with sockets run in real time.
pub const REAL_TIME_MAX: Duration = Duration::from_secs(60);

pub fn collect(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start(GC);
        let owner = world.create(config_map("default", "owner")).await;
        let orphaned = world.create(config_map("default", "orphaned")).await;
        let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
        let orphan = world.create(owned(secret("default", "orphan"), &[&orphaned])).await;
        world.delete(&owner, "Background").await;
        world.delete(&orphaned, "Orphan").await;
        world.until_all_gone(&[dependent, orphaned]).await;
        world.until_is(&orphan, "let go", |orphan| !orphan.has(&["metadata", "ownerReferences"])).await;
        // An owner that only the server can look up, and that does not exist.
        world.settle().await;
    })
}

pub fn empty_a_namespace(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start(NAMESPACES);
        let space = world.create(new_namespace("space")).await;
        world.create(secret("space", "content")).await;
        world.create(held(config_map("space", "held"))).await;
        world.delete(&space, "").await;
        let says = |space: &Value| condition::is_true(space, "NamespaceContentRemaining");
        world.until_is(&space, "says what is left", says).await;
        world.merge(&config_map("space", "held"), json!({"metadata": {"finalizers": null}})).await;
        world.until_gone(&space).await;
    })
}

/// Deletes an object that every namespace has, and waits until it is created again.
pub async fn comes_back(world: &World, object: Value) {
    let before = world.until_is(&object, "there", |_| true).await;
    world.delete(&object, "").await;
    world.until_is(&object, "back", |found| uid(found) != uid(&before)).await;
}

pub fn keep_accounts(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("serviceaccount-controller");
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "default", "name": "default"}});
        comes_back(world, account).await;
    })
}

pub fn keep_certificates(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("root-ca-certificate-publisher-controller");
        let certificate = config_map("default", "kube-root-ca.crt");
        comes_back(world, certificate.clone()).await;
        world.merge(&certificate, json!({"data": {"x": "y"}})).await;
        world.until_is(&certificate, "repaired", |map| map["data"]["x"].is_null()).await;
    })
}

pub fn aggregate(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("clusterrole-aggregation-controller");
        let role = |role: &str, labels: Value, rules: Value| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": role, "labels": labels}, "rules": rules,
            })
        };
        let rules = json!([{"apiGroups": ["example.com"], "resources": ["gears"], "verbs": ["get"]}]);
        world.create(role("gears", json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"}), rules)).await;
        let view = role("view", json!({}), json!([]));
        world.until_is(&view, "has them", |view| view["rules"].to_string().contains("gears")).await;
    })
}

pub fn budget(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("disruption-controller");
        let set = world.create(stateful_set("default", "web", 3)).await;
        let budget = world
            .create(json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                "metadata": {"namespace": "default", "name": "budget"},
                "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            }))
            .await;
        let controlled_by = |owner: &Value, pod: Value| {
            let mut pod = owned(pod, &[owner]);
            pod["metadata"]["ownerReferences"][0]["controller"] = json!(true);
            pod
        };
        let first = world.create(controlled_by(&set, pod("default", "web-0"))).await;
        let expects = |count: i64| move |budget: &Value| budget.int(&["status", "expectedPods"]) == Some(count);
        world.until_is(&budget, "expects those of the set", expects(3)).await;
        // An earlier set of that name: only the server can tell that there is another one now.
        let owners = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "before", "controller": true}]);
        world.merge(&first, json!({"metadata": {"ownerReferences": owners}})).await;
        let asked = |asked: &Asked| asked.path.ends_with("/scale") && asked.code == 200;
        world.until_moment("the server is asked", || world.requests.count(asked) > 0).await;
    })
}

pub fn publish(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("endpoints-controller");
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "web"},
            "spec": {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]},
        });
        let endpoints =
            json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"namespace": "default", "name": "web"}});
        let service = world.create(service).await;
        let pod = world.create(pod("default", "web-0")).await;
        let status = |ready: &str| {
            json!({
                "phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
                "conditions": [{"type": "Ready", "status": ready}],
            })
        };
        let has =
            |list: &'static str| move |endpoints: &Value| endpoints["subsets"][0][list][0].text(&["ip"]) == "10.1.0.1";
        for (ready, list) in [("True", "addresses"), ("False", "notReadyAddresses")] {
            world.set_status(&pod, status(ready)).await;
            world.until_is(&endpoints, list, has(list)).await;
        }
        comes_back(world, endpoints.clone()).await;
        world.delete(&service, "").await;
        world.until_gone(&endpoints).await;
    })
}

pub fn lose_a_node(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("node-lifecycle-controller");
        let node = world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})).await;
        world.try_create(&new_namespace("kube-node-lease")).await;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": "kube-node-lease", "name": "node"}, "spec": {"holderIdentity": "node"},
        });
        world.create(lease).await;
        world.set_status(&node, json!({"conditions": [{"type": "Ready", "status": "True"}]})).await;
        let mut here = pod("default", "here");
        here["spec"]["nodeName"] = json!("node");
        let here = world.create(here).await;
        world.set_status(&here, json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})).await;
        // The lease is never renewed.
        world.until_is(&here, "told to go", object::access::terminating).await;
        world.until_is(&here, "not ready", |pod| !condition::is_true(pod, "Ready")).await;
    })
}

pub fn collect_pods(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("pod-garbage-collector-controller");
        world.create(volume("v")).await;
        let attachment = world.create(attachment("v", "gone")).await;
        let mut orphan = pod("default", "orphan");
        orphan["spec"]["nodeName"] = json!("gone");
        let orphan = world.create(orphan).await;
        world.until_all_gone(&[orphan, attachment]).await;
    })
}

/// A VolumeAttachment of the PV of the same name.
pub fn attachment(volume: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": volume},
        "spec": {"attacher": "driver.example.com", "nodeName": node, "source": {"persistentVolumeName": volume}},
    })
}

pub fn run_a_set(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.faults.guard_owners();
        // An old revision, to be adopted and deleted.
        let revision = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {"spec": {}},
            "metadata": {"namespace": "default", "name": "web-old", "labels": {"app": "web"}},
        });
        let revision = world.create(revision).await;
        let mut set = stateful_set("default", "web", 2);
        set["spec"]["revisionHistoryLimit"] = json!(0);
        set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete"});
        set["spec"]["volumeClaimTemplates"] = json!([{
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }]);
        world.create(set).await;
        world.start("statefulset-controller");
        let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        for at in 0..2 {
            let replica = pod("default", &format!("web-{at}"));
            let replica = world.until_is(&replica, "there", |pod| pod.has(&["metadata", "ownerReferences"])).await;
            world.set_status(&replica, ready.clone()).await;
            let claim = claim("default", &format!("data-web-{at}"));
            world.until_is(&claim, "owned", |claim| claim.has(&["metadata", "ownerReferences"])).await;
        }
        let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": "default", "name": "web"}});
        world.until_is(&set, "all ready", |set| set["status"]["readyReplicas"] == 2).await;
        world.until_gone(&revision).await;
        // Objects that lost their owner get it again.
        let data = world.merge(&claim("default", "data-web-0"), json!({"metadata": {"ownerReferences": null}})).await;
        world.until_is(&data, "owned again", |claim| claim.has(&["metadata", "ownerReferences"])).await;
        let first = world.merge(&pod("default", "web-0"), json!({"metadata": {"ownerReferences": null}})).await;
        world.until_is(&first, "adopted", |pod| pod.has(&["metadata", "ownerReferences"])).await;
        world.merge(&set, json!({"spec": {"replicas": 1}})).await;
        world.until_gone(&pod("default", "web-1")).await;
        claim_written_by_others(world).await;
    })
}

/// A claim of an InPlace set is created and then applied. While another client writes it, the apply gets a
/// conflict, and the controller reads the claim before it applies again.
async fn claim_written_by_others(world: &World) {
    let mut set = stateful_set("default", "new", 1);
    set["spec"]["volumeClaimUpdatePolicy"] = json!("InPlace");
    set["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": {"name": "data", "labels": {"tier": "gold"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }]);
    let new = claim("default", "data-new-0");
    let applied = "/persistentvolumeclaims/data-new-0?fieldManager=statefulset-controller&force=true";
    world.faults.refuse_at(Some(("PATCH", applied, 409)));
    world.create(set).await;
    let read = |asked: &Asked| asked.method == "GET" && asked.path.ends_with("/persistentvolumeclaims/data-new-0");
    world.until_moment("the claim is read", || world.requests.count(read) > 0).await;
    world.faults.refuse_at(None);
    world.until_is(&new, "labelled", |claim| claim["metadata"]["labels"]["tier"] == "gold").await;
}

pub fn bind(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.patience = REAL_TIME_MAX;
        world.setup.provisioning.host_path = true;
        world.start(BINDER);
        // A pair that is bound and released.
        world.create(a_volume("v", "1Gi", json!({}))).await;
        let claim = world.create(unprotected(a_claim("c", "1Gi", json!({})))).await;
        until_bound(world, &claim, "v").await;
        release(world, &claim).await;
        until_phase(world, &volume("v"), "Released").await;
        // A PV that is provisioned for a pod's claim on a node, and deleted with it.
        world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})).await;
        let waits = json!({"volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"});
        world.create(a_class("waits", "kubernetes.io/host-path", waits)).await;
        let claim = world.create(unprotected(a_claim("w", "1Gi", of_class("waits")))).await;
        world.until_event(&claim, "WaitForFirstConsumer").await;
        let mut wants = pod("default", "wants");
        wants["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "w"}}]);
        world.create(wants).await;
        world.until_event(&claim, "WaitForPodScheduled").await;
        // After a failure the scheduler is asked to choose again.
        let bound = loop {
            let selected = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node"}}});
            world.merge(&claim, selected).await;
            let is_decided = |claim: &Value| {
                phase(claim) == "Bound"
                    || !claim.has(&["metadata", "annotations", "volume.kubernetes.io/selected-node"])
            };
            let decided = world.until_is(&claim, "made or failed", is_decided).await;
            if phase(&decided) == "Bound" {
                break decided;
            }
        };
        let made = volume(bound.text(&["spec", "volumeName"]));
        world.merge(&made, json!({"metadata": {"finalizers": ["kubernetes.io/pv-controller"]}})).await;
        release(world, &claim).await;
        world.until_gone(&made).await;
    })
}

/// Without the protection finalizer, because no protection controller runs here.
pub fn unprotected(mut claim: Value) -> Value {
    claim["metadata"]["finalizers"] = json!([]);
    claim
}

async fn release(world: &World, claim: &Value) {
    world.merge(claim, json!({"metadata": {"finalizers": null}})).await;
    world.delete(claim, "").await;
    world.until_gone(claim).await;
}

pub fn protect_claims(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("persistentvolumeclaim-protection-controller");
        let unused = world.create(claim("default", "unused")).await;
        world.set_status(&unused, json!({"phase": "Bound"})).await;
        world.until_is(&unused, "seen as unused", |claim| condition::get(claim, "Unused").is_some()).await;
        let used = world.create(claim("default", "used")).await;
        let mut user = storage::pod_with("user", "used");
        user["spec"]["nodeName"] = json!("node");
        let user = world.create(user).await;
        world.delete(&used, "").await;
        storage::force_delete(world, &user).await;
        world.until_gone(&used).await;
    })
}

pub fn protect_volumes(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("persistentvolume-protection-controller");
        let free = world.create(volume("free")).await;
        world.until_is(&free, "protected", |volume| volume.has(&["metadata", "finalizers"])).await;
        world.delete(&free, "").await;
        world.until_gone(&free).await;
    })
}

pub fn attributes(name: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
        "driverName": DRIVER, "parameters": {"tier": name},
    })
}

pub fn protect_classes(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("volumeattributesclass-protection-controller");
        let gold = world.create(attributes("gold")).await;
        world.until_is(&gold, "protected", |class| class.has(&["metadata", "finalizers"])).await;
        world.delete(&gold, "").await;
        world.until_gone(&gold).await;
    })
}

/// Starts a driver with a secret.
pub async fn with_driver(stage: &mut Stage, controllers: &str) {
    let places = vec![[("zone".to_owned(), "a".to_owned())].into()];
    let storage = Storage::new(csi::directory::Options { places, ..storage::options() }).await;
    let world = &mut stage.world;
    world.patience = REAL_TIME_MAX;
    world.setup.drivers = vec![storage.endpoint()];
    world.start(controllers);
    let mut key = secret("default", "key");
    key["stringData"] = json!({"password": "x"});
    world.create(key).await;
    world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"zone": "a"}}})).await;
    let drivers = json!([{"name": DRIVER, "nodeID": "a", "topologyKeys": ["zone"]}]);
    let node = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "a"}, "spec": {"drivers": drivers},
    });
    world.create(node).await;
    stage.storage = Some(storage);
}

pub fn with_secrets() -> Value {
    let mut parameters = json!({});
    for what in ["provisioner", "controller-expand"] {
        parameters[format!("csi.storage.k8s.io/{what}-secret-name")] = json!("key");
        parameters[format!("csi.storage.k8s.io/{what}-secret-namespace")] = json!("default");
    }
    json!({"parameters": parameters})
}

pub fn provision(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        with_driver(stage, &storage::everything()).await;
        let world = &stage.world;
        let driver = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": {"storageCapacity": true},
        });
        world.create(driver).await;
        world.create(attributes("gold")).await;
        world.create(storage::class("c", "Delete", with_secrets())).await;
        let waits =
            world.create(storage::class("w", "Delete", json!({"volumeBindingMode": "WaitForFirstConsumer"}))).await;
        let capacities = "/apis/storage.k8s.io/v1/namespaces/kube-system/csistoragecapacities";
        let told = async || world.get(capacities).await.expect("a list")["items"].clone();
        let first = world.until("its capacity is told", || async { told().await.get(0).cloned() }).await;
        // The driver's first response is lost: the provisioner then checks whether the PV exists.
        stage.storage.as_ref().expect("a driver").driver.faults().order(Order::lose_answer("CreateVolume").times(1));
        let mut claim = storage::claim_of("claim", "c");
        claim["spec"]["volumeAttributesClassName"] = json!("gold");
        let claim = world.create(claim).await;
        let made = until_volume(world, &claim).await;
        let changed = async || told().await.get(0).is_some_and(|now| now["capacity"] != first["capacity"]);
        world.until("its capacity changes", || async { changed().await.then_some(()) }).await;
        // The source of a copy is kept meanwhile.
        let mut copy = storage::claim_of("copy", "c");
        copy["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "claim"});
        let copy = world.create(copy).await;
        until_volume(world, &copy).await;
        world.delete(&claim, "").await;
        world.until_gone(&made).await;
        until_settled(world).await;
        world.delete(&waits, "").await;
        world.until("its capacity is taken back", || async { told().await.get(0).is_none().then_some(()) }).await;
        // A claim is received before its class.
        world.faults.mute("csi-provisioner", "/storageclasses");
        world.create(storage::class("late", "Delete", json!({}))).await;
        let claim = world.create(storage::claim_of("early", "late")).await;
        let made = until_volume(world, &claim).await;
        world.faults.release();
        // A PV from a backup reports why it is kept.
        let restored = storage::lose_and_restore(world, &claim, &made).await;
        world.until_is(&restored, "says why", |volume| volume["status"]["reason"] == "DeletionUnconfirmed").await;
    })
}

pub fn lose_data(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let (world, storage) = (&mut stage.world, Storage::new(storage::options()).await);
        world.patience = REAL_TIME_MAX;
        let mut endpoint = storage.endpoint();
        endpoint.options.monitor_interval_s = 1;
        world.setup.drivers = vec![endpoint];
        world.start(&format!("{},{MONITOR}", storage::everything()));
        world.create(storage::class("c", "Delete", json!({}))).await;
        let claim = world.create(storage::claim_of("claim", "c")).await;
        let volume = until_volume(world, &claim).await;
        std::fs::remove_dir_all(storage.home(&volume).join("data")).expect("it can be removed");
        let says_so = |claim: &Value| condition::is_true(claim, "VolumeDataMissing");
        world.until_is(&claim, "says that its data is missing", says_so).await;
        stage.storage = Some(storage);
    })
}

pub fn resize(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        with_driver(stage, &format!("{},{PROVISIONER},{RESIZER}", all())).await;
        let world = &stage.world;
        world.create(attributes("gold")).await;
        world.create(storage::class("c", "Delete", with_secrets())).await;
        let claim = world.create(storage::claim_of("claim", "c")).await;
        let made = until_volume(world, &claim).await;
        // The driver refuses an expansion while the volume is in use, so the controller looks for users; the
        // second time another client writes the PV meanwhile, and the patch is computed again.
        let faults = stage.storage.as_ref().expect("a driver").driver.faults();
        faults.order(Order::fail("ControllerExpandVolume", Code::FailedPrecondition).times(1));
        let gate = Gate::closed();
        faults.order(Order::hold("ControllerExpandVolume", &gate).times(1));
        let wish =
            json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}, "volumeAttributesClassName": "gold"}});
        world.merge(&claim, wish).await;
        storage::until_reached(&gate).await;
        world.merge(&made, json!({"metadata": {"labels": {"written": "meanwhile"}}})).await;
        gate.open();
        let is_done = |claim: &Value| {
            claim["status"]["capacity"]["storage"] == "2Gi"
                && claim["status"]["currentVolumeAttributesClassName"] == "gold"
        };
        world.until_is(&claim, "as wished", is_done).await;
    })
}

pub fn count(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        world.start("state-metrics");
        world.create(stateful_set("default", "web", 1)).await;
        world.create(claim("default", "c")).await;
        world.create(volume("v")).await;
        let counted = |part: &str| world.figures().lines().any(|line| line.contains(part) && !line.starts_with('#'));
        for part in [
            "kube_statefulset_replicas{",
            "kube_persistentvolumeclaim_status_phase{",
            "kube_persistentvolume_status_phase{",
        ] {
            world.until_moment(part, || counted(part)).await;
        }
    })
}

pub fn say_twice(stage: &mut Stage) -> Told<'_> {
    Box::pin(async move {
        let world = &mut stage.world;
        let account = "statefulset-controller";
        world.start(account);
        let subject = world.create(config_map("default", "subject")).await;
        let user = server::authn::service_account_user("kube-system", account);
        let api = Api::new(world.client(account, user, world.faults.clone()));
        let (tasks, shutdown) = Default::default();
        let metrics = &world.setup.metrics;
        let events = kit::events::Events::start(&api, account, metrics, &world.setup.clock, &tasks, &shutdown);
        let resource = Resource::new("v1", "ConfigMap", "configmaps", true);
        let about = EventSubject {
            resource: &resource,
            namespace: namespace(&subject),
            name: name(&subject),
            uid: uid(&subject),
        };
        let count = |event: &Value| event.int(&["count"]);
        // A refused event is lost; it is recorded again until it was stored twice.
        loop {
            events.record(&about, "Normal", "Said", "something");
            tokio::time::sleep(Duration::from_secs(1)).await;
            let told = world.get("/api/v1/namespaces/default/events").await.expect("a list");
            if told.items(&["items"]).iter().any(|event| event["reason"] == "Said" && count(event) >= Some(2)) {
                break;
            }
        }
    })
}
