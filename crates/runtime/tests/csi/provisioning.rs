//! Scenarios D: provisioning.

use crate::pairs::*;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Order};
use csi::v1::{CreateVolumeRequest, DeleteVolumeRequest, volume_capability::AccessType};
use object::access::{Access, name, uid};
use object::{Value, json};

fn request(storage: &Storage, at: usize) -> CreateVolumeRequest {
    storage.calls("CreateVolume")[at].request::<CreateVolumeRequest>().expect("a request").clone()
}

async fn reasons(world: &World, claim: &Value) -> Vec<String> {
    told(world, claim).await.into_iter().map(|(reason, _)| reason).collect()
}

/// D1, D2, H2: one call, one volume, and both finalizers if the policy is Delete.
#[tokio::test(flavor = "multi_thread")]
async fn d1_h2_a_claim_gets_a_volume_with_one_call() {
    for policy in ["Delete", "Retain"] {
        let (world, storage) = world().await;
        let (claim, volume) = provisioned(&world, policy).await;
        let expected = format!("pvc-{}", uid(&claim));
        assert_eq!(name(&volume), expected);
        assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], DRIVER);
        let mut finalizers = vec![json!("kubernetes.io/pv-protection")];
        if policy == "Delete" {
            finalizers.insert(0, json!(FINALIZER));
        }
        let mut found = volume.items(&["metadata", "finalizers"]).to_vec();
        found.sort_by_key(Value::to_string);
        assert_eq!(found, finalizers);
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], policy);
        assert_eq!(storage.calls("CreateVolume").len(), 1);
        let request = request(&storage, 0);
        assert_eq!(request.name, expected);
        assert_eq!(request.capacity_range.expect("a range").required_bytes, 1 << 30);
        assert_eq!(storage.handles(), handles(&world).await);
        for reason in ["ExternalProvisioning", "Provisioning", "ProvisioningSucceeded"] {
            world.until_event(&claim, reason).await;
        }
        let message = world.until_event(&claim, "ProvisioningSucceeded").await;
        assert_eq!(message["message"], format!("Successfully provisioned volume {expected}"));
        until_settled(&world).await;
        assert!(world.requests.refused().is_empty(), "{:?}", world.requests.refused());
        world.stop().await;
    }
}

/// D3: a driver that does not return the size of the volume.
#[tokio::test(flavor = "multi_thread")]
async fn d3_the_drivers_size_is_used_if_it_is_enough() {
    let (world, storage) = world().await;
    storage.driver.faults().order(Order::answer_capacity("CreateVolume", 0).times(1));
    let (_, volume) = provisioned(&world, "Delete").await;
    assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");

    // A volume that is too small is deleted, and the call is repeated.
    storage.driver.faults().order(Order::answer_capacity("CreateVolume", 5).times(2));
    let claim = world.create(claim_of("small", "c")).await;
    let volume = until_volume(&world, &claim).await;
    assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
    assert_eq!(storage.calls("DeleteVolume").len(), 2);
    assert_eq!(storage.handles(), handles(&world).await);
    let told = told(&world, &claim).await;
    assert!(told.iter().any(|(_, message)| message.contains("less than requested capacity")), "{told:?}");

    storage.driver.faults().order(Order::answer_capacity("CreateVolume", 3 << 30).times(1));
    let claim = world.create(claim_of("large", "c")).await;
    assert_eq!(until_volume(&world, &claim).await["spec"]["capacity"]["storage"], "3Gi");
    world.stop().await;
}

/// D5, H7: late, lost and failing responses; one volume in the end.
#[tokio::test(flavor = "multi_thread")]
async fn d5_a_failed_call_is_repeated_for_the_same_volume() {
    let (world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    let faults = [
        Order::fail("CreateVolume", Code::DeadlineExceeded),
        Order::fail("CreateVolume", Code::DeadlineExceeded).after(),
        Order::fail("CreateVolume", Code::Internal),
        Order::fail("CreateVolume", Code::ResourceExhausted),
        Order::fail("CreateVolume", Code::Unavailable),
        Order::lose_answer("CreateVolume"),
    ];
    for (at, order) in faults.into_iter().enumerate() {
        let case = format!("{order:?}");
        let before = storage.calls("CreateVolume").len();
        storage.driver.faults().order(order.times(2));
        let claim = world.create(claim_of(&format!("claim-{at}"), "c")).await;
        until_volume(&world, &claim).await;
        let calls: Vec<CreateVolumeRequest> =
            (before..storage.calls("CreateVolume").len()).map(|at| request(&storage, at)).collect();
        assert!(calls.len() >= 2 && calls.windows(2).all(|pair| pair[0] == pair[1]), "{case}: {}", calls.len());
        assert_eq!(storage.driver.volumes().len(), at + 1, "{case}");
        world.until_event(&claim, "ProvisioningFailed").await;
    }
    assert_eq!(storage.handles(), handles(&world).await);
    let figures = world.figures();
    for figure in ["persistentvolumeclaim_provision_failed_total", "controller_persistentvolumeclaim_provision_total"] {
        assert!(figures.contains(figure), "{figure}");
    }
    world.stop().await;
}

/// Digest 11.5: the volume is created, the response lost, then a refusal, then the claim is deleted. Upstream
/// leaks here.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_response_before_a_refusal_leaks_nothing_when_the_claim_is_deleted() {
    for code in [Code::Internal, Code::InvalidArgument, Code::ResourceExhausted] {
        let (world, storage) = world().await;
        world.create(class("c", "Delete", json!({}))).await;
        storage.driver.faults().order(Order::lose_answer("CreateVolume").times(1));
        storage.driver.faults().order(Order::fail("CreateVolume", code).times(3));
        let claim = world.create(claim_of("claim", "c")).await;
        storage.until_called("CreateVolume", 2).await;
        assert_eq!(storage.driver.volumes().len(), 1);
        world.delete(&claim, "").await;
        world.until_gone(&claim).await;
        storage.until_called("DeleteVolume", 1).await;
        until_in_step(&world, &storage, &format!("{code:?}")).await;
        assert_eq!(storage.driver.volumes(), []);
        until_settled(&world).await;
        world.stop().await;
    }
}

/// D9
#[tokio::test(flavor = "multi_thread")]
async fn d9_an_infeasible_request_is_delayed_until_its_class_changes() {
    let (world, storage) = world().await;
    let first = world.create(class("c", "Delete", json!({}))).await;
    storage.driver.faults().order(Order::fail("CreateVolume", Code::InvalidArgument).times(1));
    let claim = world.create(claim_of("claim", "c")).await;
    until_told(&world, &claim, "Volume provisioning failed with infeasible error. Retries will be delayed.").await;
    until_settled(&world).await;
    // A change of the claim does not cause a retry.
    world.merge(&claim, json!({"metadata": {"labels": {"x": "y"}}})).await;
    let other = world.create(claim_of("other", "c")).await;
    until_volume(&world, &other).await;
    assert_eq!(storage.calls("CreateVolume").len(), 2, "one for each");
    world.delete(&first, "").await;
    world.create(class("c", "Delete", json!({}))).await;
    until_volume(&world, &claim).await;
    world.stop().await;
}

/// D13, D14, D17: invalid requests are not sent.
#[tokio::test(flavor = "multi_thread")]
async fn d13_d14_d17_invalid_requests_are_reported() {
    let (world, storage) = world().await;
    let early = world.create(claim_of("early", "late")).await;
    world.until_event(&early, "ProvisioningFailed").await;
    world.create(class("c", "Delete", json!({}))).await;
    let mut selecting = claim_of("selecting", "c");
    selecting["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
    let selecting = world.create(selecting).await;
    until_told(&world, &selecting, "claim Selector is not supported").await;
    world.create(class("odd", "Delete", json!({"parameters": {"csi.storage.k8s.io/zzz": "1"}}))).await;
    let odd = world.create(claim_of("odd", "odd")).await;
    until_told(&world, &odd, "unknown parameter key").await;
    assert_eq!(storage.calls("CreateVolume").len(), 0);
    assert_eq!(journal(&world).await, [] as [String; 0]);
    // The class is created later.
    world.create(class("late", "Delete", json!({}))).await;
    until_volume(&world, &early).await;
    world.stop().await;
}

/// D15
#[tokio::test(flavor = "multi_thread")]
async fn d15_an_existing_pv_is_used_first() {
    let (world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    let free = a_volume("free", "1Gi", of_class("c"));
    let free = world.create(free).await;
    until_phase(&world, &free, "Available").await;
    let claim = world.create(claim_of("claim", "c")).await;
    until_bound(&world, &claim, "free").await;
    assert_eq!(storage.calls("CreateVolume").len(), 0);
    world.stop().await;
}

/// B18: the claim is bound to another PV while its own volume is being created: the late volume is deleted,
/// and no other.
#[tokio::test(flavor = "multi_thread")]
async fn b18_a_volume_created_too_late_is_deleted() {
    for policy in ["Delete", "Retain"] {
        let (world, storage) = world().await;
        let gate = Gate::closed();
        storage.driver.faults().order(Order::hold("CreateVolume", &gate).times(1));
        world.create(class("c", policy, json!({}))).await;
        let claim = world.create(claim_of("claim", "c")).await;
        until_reached(&gate).await;
        let free = world.create(a_volume("free", "1Gi", of_class("c"))).await;
        until_bound(&world, &claim, name(&free)).await;
        gate.open();
        let late = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pvc-{}", uid(&claim))},
        });
        if policy == "Delete" {
            storage.until_called("DeleteVolume", 1).await;
            world.until_gone(&late).await;
            assert_eq!(storage.driver.volumes(), []);
        } else {
            // With Retain it is kept: another claim may use it.
            until_phase(&world, &late, "Available").await;
            assert_eq!(storage.driver.volumes().len(), 1);
        }
        until_settled(&world).await;
        assert_eq!(phase(&world.now(&claim).await.expect("it stays")), "Bound");
        world.stop().await;
    }
}

/// D16, D20, D21
#[tokio::test(flavor = "multi_thread")]
async fn d16_d20_d21_classes_and_claims_set_the_volume_capability() {
    let (world, storage) = world().await;
    let more = json!({"parameters": {"csi.storage.k8s.io/fstype": "xfs"}, "mountOptions": ["noatime"]});
    world.create(class("c", "Delete", more)).await;
    let claim = world.create(claim_of("claim", "c")).await;
    let volume = until_volume(&world, &claim).await;
    let capability = request(&storage, 0).volume_capabilities[0].clone();
    let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("{capability:?}") };
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("xfs", vec!["noatime".to_owned()]));
    assert_eq!(volume["spec"]["csi"]["fsType"], "xfs");
    assert_eq!(volume["spec"]["mountOptions"], json!(["noatime"]));
    assert!(request(&storage, 0).parameters.is_empty());

    world.create(class("blocks", "Delete", json!({}))).await;
    let mut block = claim_of("block", "blocks");
    block["spec"]["volumeMode"] = json!("Block");
    // This driver has no block volumes, and refuses.
    let block = world.create(block).await;
    until_told(&world, &block, "infeasible").await;
    assert!(matches!(request(&storage, 1).volume_capabilities[0].access_type, Some(AccessType::Block(_))));
    world.stop().await;
}

/// D18, E7: secrets are passed to all calls, also to the deletion when the class is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn d18_e7_secrets_are_passed_to_calls() {
    let (world, storage) = world().await;
    let parameters = json!({
        "csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}-key",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
    });
    let class = world.create(class("c", "Delete", json!({"parameters": parameters}))).await;
    let claim = world.create(claim_of("claim", "c")).await;
    until_told(&world, &claim, "secrets \"claim-key\" not found").await;
    assert_eq!(storage.calls("CreateVolume").len(), 0);
    let mut key = secret("default", "claim-key");
    key["data"] = json!({"user": "bWU=", "password": "aHVudGVyMg=="});
    world.create(key).await;
    let volume = until_volume(&world, &claim).await;
    assert_eq!(request(&storage, 0).secrets["password"], "hunter2");
    let annotations = &volume["metadata"]["annotations"];
    assert_eq!(annotations["volume.kubernetes.io/provisioner-deletion-secret-name"], "claim-key");
    assert_eq!(annotations["volume.kubernetes.io/provisioner-deletion-secret-namespace"], "default");
    assert!(!journal(&world).await.join(" ").contains("hunter2"), "secrets are not journaled");
    world.delete(&class, "").await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    let deletion = storage.calls("DeleteVolume")[0].request::<DeleteVolumeRequest>().expect("a request").clone();
    assert_eq!(deletion.secrets["user"], "me");
    world.stop().await;
}

/// D23
#[tokio::test(flavor = "multi_thread")]
async fn d23_attribute_classes_are_passed_to_calls() {
    let (world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    let attributes = |name: &str, driver: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
            "driverName": driver, "parameters": {"iops": "900"},
        })
    };
    let with = |name: &str, attributes: &str| {
        let mut claim = claim_of(name, "c");
        claim["spec"]["volumeAttributesClassName"] = json!(attributes);
        claim
    };
    world.create(attributes("gold", DRIVER)).await;
    world.create(attributes("foreign", "other.example.com")).await;
    let claim = world.create(with("claim", "gold")).await;
    let volume = until_volume(&world, &claim).await;
    assert_eq!(request(&storage, 0).mutable_parameters["iops"], "900");
    assert_eq!(volume["spec"]["volumeAttributesClassName"], "gold");
    world.until_is(&claim, "current", |claim| claim["status"]["currentVolumeAttributesClassName"] == "gold").await;
    let foreign = world.create(with("foreign", "foreign")).await;
    until_told(&world, &foreign, "does not match driver name").await;
    let waiting = world.create(with("waiting", "late")).await;
    until_told(&world, &waiting, "\"late\" not found").await;
    assert_eq!(storage.calls("CreateVolume").len(), 1);
    world.create(attributes("late", DRIVER)).await;
    until_volume(&world, &waiting).await;
    world.stop().await;
}

/// D24, D25: a copy, and its source, which is kept until the copy exists.
#[tokio::test(flavor = "multi_thread")]
async fn d24_d25_copies_protect_their_source() {
    let (world, storage) = world().await;
    let (source, source_volume) = provisioned(&world, "Delete").await;
    let copy = |name: &str, size: &str| {
        let mut claim = a_claim(name, size, of_class("c"));
        claim["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "claim"});
        claim
    };
    world.merge(&source, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await;
    world.until_is(&source, "grows", |claim| claim["status"]["capacity"]["storage"] == "2Gi").await;
    let small = world.create(copy("small", "1Gi")).await;
    until_told(&world, &small, "greater than or equal in size").await;
    world.delete(&small, "").await;

    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("CreateVolume", &gate).times(1));
    let clone = world.create(copy("copy", "2Gi")).await;
    until_reached(&gate).await;
    world.delete(&source, "").await;
    let protection = "provisioner.storage.kubernetes.io/cloning-protection";
    let held = |claim: &Value| claim["metadata"]["finalizers"] == json!([protection]);
    world.until_is(&source, "only the copy holds it", held).await;
    gate.open();
    until_volume(&world, &clone).await;
    world.until_gone(&source).await;
    let asked = request(&storage, storage.calls("CreateVolume").len() - 1);
    assert!(asked.volume_content_source.is_some());
    world.until_gone(&source_volume).await;
    assert_eq!(storage.handles(), handles(&world).await);
    assert_eq!(storage.driver.volumes().len(), 1);
    world.stop().await;
}

/// A test cluster with a node in each zone, whose storage the driver has; without `topology` it is reachable
/// everywhere. Also returns the CSINodes.
async fn zones(names: &[&str], topology: bool) -> (World, Storage, Vec<Value>) {
    let zone = |zone: &&str| [("zone".to_owned(), (*zone).to_owned())].into();
    let places = if topology { names.iter().map(zone).collect() } else { Vec::new() };
    let options = csi::directory::Options { places, ..options() };
    // The nodes exist from the start: later ones would be received in any order.
    let (mut world, storage) = bare_world_with(options).await;
    let mut nodes = Vec::new();
    for node in names {
        let metadata = json!({"name": node, "labels": {"zone": node}});
        nodes.push(world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).await);
        let drivers = json!([{"name": DRIVER, "nodeID": node, "topologyKeys": ["zone"]}]);
        let csi_node = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}, "spec": {"drivers": drivers},
        });
        nodes.push(world.create(csi_node).await);
    }
    world.start(&everything());
    (world, storage, nodes)
}

fn selected(node: &str) -> Value {
    json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}})
}

async fn until_unselected(world: &World, claim: &Value) {
    let is_so = |claim: &Value| !claim.has(&["metadata", "annotations", "volume.kubernetes.io/selected-node"]);
    world.until_is(claim, "another node is wanted", is_so).await;
}

/// C11: the selected node is deleted before the driver is called.
#[tokio::test(flavor = "multi_thread")]
async fn c11_a_deleted_node_is_not_used() {
    let (world, storage, nodes) = zones(&["a", "b"], true).await;
    world.create(class("w", "Delete", json!({"volumeBindingMode": "WaitForFirstConsumer"}))).await;
    for gone in &nodes[..2] {
        world.delete(gone, "").await;
    }
    let claim = world.create(claim_of("claim", "w")).await;
    world.until_event(&claim, "WaitForFirstConsumer").await;
    world.merge(&claim, selected("a")).await;
    until_unselected(&world, &claim).await;
    assert_eq!(storage.calls("CreateVolume").len(), 0);
    world.merge(&claim, selected("b")).await;
    until_volume(&world, &claim).await;
    world.stop().await;
}

/// D26: the claims of a set's replicas are spread over the zones, each with all zones as options.
#[tokio::test(flavor = "multi_thread")]
async fn d26_claims_of_replicas_are_spread() {
    let (world, storage, _) = zones(&["a", "b", "c"], true).await;
    world.create(class("c", "Delete", json!({}))).await;
    let mut first = std::collections::BTreeSet::new();
    for at in 0..3 {
        let claim = world.create(claim_of(&format!("data-web-{at}"), "c")).await;
        until_volume(&world, &claim).await;
        let offer = request(&storage, at).accessibility_requirements.expect("an offer");
        assert_eq!((offer.requisite.len(), offer.preferred.len()), (3, 3));
        first.insert(offer.preferred[0].segments["zone"].clone());
    }
    assert_eq!(first.len(), 3, "{first:?}");
    world.stop().await;
}

/// C9, C10: a node without capacity, with and without topology; W: claims that wait for a consumer.
#[tokio::test(flavor = "multi_thread")]
async fn c9_c10_claims_wait_for_their_node_and_change_it_when_it_is_full() {
    for topology in [false, true] {
        let (world, storage, _) = zones(&["a", "b"], topology).await;
        world.create(class("w", "Delete", json!({"volumeBindingMode": "WaitForFirstConsumer"}))).await;
        let claim = world.create(claim_of("claim", "w")).await;
        world.until_event(&claim, "WaitForFirstConsumer").await;
        assert_eq!(storage.calls("CreateVolume").len(), 0);
        storage.driver.faults().order(Order::fail("CreateVolume", Code::ResourceExhausted).times(1));
        world.merge(&claim, selected("a")).await;
        if topology {
            until_unselected(&world, &claim).await;
            world.merge(&claim, selected("b")).await;
        }
        let volume = until_volume(&world, &claim).await;
        let offer = request(&storage, storage.calls("CreateVolume").len() - 1).accessibility_requirements;
        let chosen = offer.map(|offer| offer.preferred[0].segments["zone"].clone());
        assert_eq!(chosen.as_deref(), topology.then_some("b"));
        let place = "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values/0";
        assert_eq!(volume.pointer(place).and_then(Value::as_str), topology.then_some("b"));
        assert!(reasons(&world, &claim).await.contains(&"ProvisioningFailed".to_owned()));
        world.stop().await;
    }
}

/// Drivers that are unavailable at first, and for a while later; drivers that are not served.
#[tokio::test(flavor = "multi_thread")]
async fn drivers_may_be_started_later_and_stop_for_a_while() {
    let mut storage = Storage::new(options()).await;
    storage.stop().await;
    let mut world = World::bare().await;
    world.setup.drivers = vec![storage.endpoint()];
    world.start(&everything());
    world.create(class("c", "Delete", json!({}))).await;
    world.create(a_class("nobodys", "nobody.example.com", json!({}))).await;
    let first = world.create(claim_of("first", "c")).await;
    let nobodys = world.create(claim_of("nobodys", "nobodys")).await;
    world.until_event(&first, "ExternalProvisioning").await;
    storage.start().await;
    let volume = until_volume(&world, &first).await;

    storage.stop().await;
    let second = world.create(claim_of("second", "c")).await;
    until_told(&world, &second, "rpc error: code = Unavailable").await;
    world.delete(&first, "").await;
    world.until_event(&volume, "VolumeFailedDelete").await;
    storage.start().await;
    until_volume(&world, &second).await;
    world.until_gone(&volume).await;
    assert_eq!(phase(&world.now(&nobodys).await.expect("the object exists")), "Pending");
    assert_eq!(storage.handles(), handles(&world).await);
    world.stop().await;
}

/// The provisioner stops at every point of provisioning, with the claim deleted meanwhile: D11, D12 (upstream
/// leaks).
#[tokio::test(flavor = "multi_thread")]
async fn d11_d12_a_restart_finishes_open_requests() {
    for claim_goes in [false, true] {
        for order in
            [Order::hold("CreateVolume", &Gate::closed()), Order::hold("CreateVolume", &Gate::closed()).after()]
        {
            let case = format!("the claim goes: {claim_goes}, {order:?}");
            let (mut world, storage) = world().await;
            world.create(class("c", "Delete", json!({}))).await;
            let gate = order.gate.clone().expect("a gate");
            storage.driver.faults().order(order.times(1));
            let claim = world.create(claim_of("claim", "c")).await;
            until_reached(&gate).await;
            assert_eq!(journal(&world).await, [format!("pvc-{}", uid(&claim))], "{case}");
            world.stop_controllers().await;
            if claim_goes {
                world.merge(&claim, json!({"metadata": {"finalizers": null}})).await;
                world.delete(&claim, "").await;
            }
            gate.open();
            world.start(&everything());
            if claim_goes {
                storage.until_called("DeleteVolume", 1).await;
                until_in_step(&world, &storage, &case).await;
                assert_eq!(storage.driver.volumes(), [], "{case}");
            } else {
                until_volume(&world, &claim).await;
                assert_eq!(storage.handles(), handles(&world).await, "{case}");
            }
            until_settled(&world).await;
            world.stop().await;
        }
    }
}
