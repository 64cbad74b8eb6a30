use super::super::testing::*;
use super::*;

fn node(spec: Value, status: Value) -> Value {
    json!({"metadata": {"name": "n"}, "spec": spec, "status": status})
}

#[test]
fn nodes_register_with_their_status() {
    let object = stored("Node", node(json!({"podCIDR": "10.0.0.0/24"}), json!({"capacity": {"cpu": "2"}})));
    assert_eq!(object["status"]["allocatable"], json!({"cpu": "2"}));
    assert_eq!(object["spec"]["podCIDRs"], json!(["10.0.0.0/24"]));
    assert_eq!(kind("Node").rules.field_value(&object, "spec.unschedulable"), "false");
}

#[test]
fn invalid_nodes_are_refused_with_upstreams_messages() {
    let taint = |taint: Value| node(json!({"taints": [taint]}), json!({}));
    let cases = [
        (
            taint(json!({"key": "a", "effect": "X"})),
            "metadata.taints[0].effect: Unsupported value: \"X\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        ),
        (taint(json!({"key": "a"})), "metadata.taints[0].effect: Required value"),
        (
            node(
                json!({"taints": [{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}]}),
                json!({}),
            ),
            "metadata.taints[1]: Duplicate value: {\"effect\":\"NoExecute\",\"key\":\"a\"}: taints must be unique by key and effect pair",
        ),
        (
            node(json!({"podCIDRs": ["x"]}), json!({})),
            "spec.podCIDRs[0]: Invalid value: \"x\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ),
        (
            node(json!({"podCIDRs": ["10.0.0.0/8", "11.0.0.0/8"]}), json!({})),
            "spec.podCIDRs: Invalid value: [\"10.0.0.0/8\",\"11.0.0.0/8\"]: may specify no more than one CIDR for each IP family",
        ),
        (
            node(json!({}), json!({"capacity": {"pods": "-1"}, "allocatable": {}})),
            "status.capacity.pods: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            node(
                json!({}),
                json!({"addresses": [{"type": "Hostname", "address": "a"}, {"type": "Hostname", "address": "a"}]}),
            ),
            "status.addresses[1]: Duplicate value: {\"address\":\"a\",\"type\":\"Hostname\"}",
        ),
    ];
    for (object, want) in cases {
        assert_eq!(refused("Node", object), want);
    }
}

#[test]
fn only_allowed_node_updates_are_accepted() {
    let old = stored("Node", node(json!({"providerID": "p", "podCIDR": "10.0.0.0/24"}), json!({})));
    let change = |change: fn(&mut Value)| change_refused("Node", &old, change);
    assert_eq!(change(|new| new["spec"]["unschedulable"] = json!(true)), "[]");
    assert_eq!(change(|new| new["spec"]["taints"] = json!([{"key": "a", "effect": "NoExecute"}])), "[]");
    assert_eq!(
        change(|new| new["spec"]["providerID"] = json!("q")),
        "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid"
    );
    assert_eq!(
        change(|new| new["spec"]["podCIDRs"] = json!(["10.1.0.0/24"])),
        "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"
    );
    assert_eq!(
        change(|new| new["spec"]["externalID"] = json!("e")),
        ": Forbidden: node updates may only change labels, taints, or capacity (or configSource, if the DynamicKubeletConfig feature gate is enabled)"
    );
}

#[test]
fn nodes_are_shown_with_roles_and_addresses() {
    let mut object = node(json!({}), json!({}));
    assert_eq!(
        headers("Node"),
        "Name | Status | Roles | Age | Version | Internal-IP* | External-IP* | OS-Image* | Kernel-Version* | Container-Runtime*"
    );
    assert_eq!(
        shown("Node", &object),
        "n | Unknown | <none> | <unknown> |  | <none> | <none> | <unknown> | <unknown> | <unknown>"
    );
    object["metadata"]["labels"] = json!({"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "db", "x": "y"});
    object["spec"]["unschedulable"] = json!(true);
    object["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "nodeInfo": {"kubeletVersion": "v1", "osImage": "os", "kernelVersion": "k", "containerRuntimeVersion": "c"}});
    assert_eq!(
        shown("Node", &object),
        "n | Ready,SchedulingDisabled | db,worker | <unknown> | v1 | 10.0.0.1 | <none> | os | k | c"
    );
    object["status"]["conditions"][0]["status"] = json!("Unknown");
    assert!(shown("Node", &object).contains("NotReady"));
}

#[test]
fn leases_are_validated() {
    const LEASE: &str = "coordination.k8s.io/Lease";
    let lease = |spec: Value| json!({"metadata": {"name": "l", "namespace": "d"}, "spec": spec});
    let object = stored(LEASE, lease(json!({"holderIdentity": "me", "leaseDurationSeconds": 15})));
    assert_eq!(shown(LEASE, &object), "l | me | 0s");
    let cases = [
        (json!({"leaseDurationSeconds": 0}), "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"),
        (
            json!({"leaseTransitions": -1}),
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!({"preferredHolder": "a"}),
            "spec.preferredHolder: Forbidden: may only be specified when `strategy` is defined",
        ),
        (
            json!({"strategy": "X"}),
            "spec.strategy: Unsupported value: \"X\": supported values: \"OldestEmulationVersion\"",
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(refused(LEASE, lease(spec)), want);
    }
}
