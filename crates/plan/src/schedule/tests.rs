use super::*;
use object::{Value, json};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn merge(to: &mut Value, from: Value) {
    match from {
        Value::Object(members) => members.into_iter().for_each(|(key, value)| merge(&mut to[&key], value)),
        other => *to = other,
    }
}

/// A node with room for four pods, two cores and 4 Gi; `more` is merged in.
fn node(name: &str, more: Value) -> Value {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": "a"}},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "4"}},
    });
    merge(&mut node, more);
    node
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
        "status": {"phase": "Pending"},
    });
    merge(&mut pod["spec"], spec);
    pod
}

fn asks(cpu: &str) -> Value {
    json!({"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}]})
}

fn name(text: &str) -> Key {
    ("default".into(), text.into())
}

fn cluster(nodes: &[Value], pods: &[Value]) -> Cluster {
    let mut cluster = Cluster::new("default-scheduler");
    for node in nodes {
        cluster.apply_node(node);
    }
    for pod in pods {
        cluster.apply_pod(pod);
    }
    cluster
}

/// The node that a new pod is bound to, or why none fits.
fn place(cluster: &mut Cluster, pod: &Value) -> Result<String, String> {
    cluster.apply_pod(pod);
    match decide(cluster, &key(pod)) {
        Decision::Bind(node) => Ok(node.to_string()),
        Decision::Unschedulable(why) => Err(why.message),
        other => panic!("{other:?}"),
    }
}

fn on(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeName"] = json!(node);
    pod
}

#[test]
fn pods_spread_evenly_and_names_break_ties() {
    let mut cluster = cluster(&[node("b", json!({})), node("a", json!({})), node("c", json!({}))], &[]);
    let mut chosen = Vec::new();
    for at in 0..6 {
        let pod = pod(&format!("p{at}"), json!({}));
        let node = place(&mut cluster, &pod).unwrap();
        cluster.apply_pod(&on(pod, &node));
        chosen.push(node);
    }
    assert_eq!(chosen, ["a", "b", "c", "a", "b", "c"]);
}

#[test]
fn messages_are_those_of_upstreams_scheduler() {
    let required = |operator: &str, values: Value| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}]}}}})
    };
    let tainted = |effect: &str| json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": effect}]}});
    let port =
        json!({"containers": [{"name": "main", "image": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    let full: Vec<Value> = (0..4).map(|at| on(pod(&format!("full-{at}"), json!({})), "a")).collect();
    let cases: Vec<(Vec<Value>, Vec<Value>, Value, Result<&str, &str>)> = vec![
        (vec![], vec![], json!({}), Err("no nodes available to schedule pods")),
        (vec![node("a", json!({}))], vec![], asks("2"), Ok("a")),
        (vec![node("a", json!({}))], vec![], asks("2100m"), Err("0/1 nodes are available: 1 Insufficient cpu.")),
        (
            vec![node("a", json!({}))],
            vec![on(pod("o", asks("1500m")), "a")],
            asks("501m"),
            Err("0/1 nodes are available: 1 Insufficient cpu."),
        ),
        (vec![node("a", json!({}))], vec![on(pod("o", asks("1500m")), "a")], asks("500m"), Ok("a")),
        (vec![node("a", json!({}))], full, json!({}), Err("0/1 nodes are available: 1 Too many pods.")),
        (
            vec![node("a", json!({}))],
            vec![],
            json!({"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "3", "memory": "5Gi", "example.com/gpu": "1"}}}]}),
            Err("0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu, 1 Insufficient memory."),
        ),
        (
            vec![node("a", json!({"spec": {"unschedulable": true}})), node("b", tainted("NoSchedule"))],
            vec![],
            json!({}),
            Err("0/2 nodes are available: 1 node(s) had untolerated taint {k: v}, 1 node(s) were unschedulable."),
        ),
        (
            vec![node("b", tainted("NoExecute"))],
            vec![],
            json!({"tolerations": [{"key": "k", "operator": "Exists"}]}),
            Ok("b"),
        ),
        (vec![node("a", tainted("PreferNoSchedule")), node("b", json!({}))], vec![], json!({}), Ok("b")),
        (vec![node("a", tainted("PreferNoSchedule"))], vec![], json!({}), Ok("a")),
        (
            vec![node("a", json!({"spec": {"unschedulable": true}}))],
            vec![],
            json!({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}]}),
            Ok("a"),
        ),
        (
            vec![node("a", json!({}))],
            vec![],
            json!({"nodeSelector": {"zone": "b"}}),
            Err("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        ),
        (
            vec![node("a", json!({})), node("b", json!({"metadata": {"labels": {"zone": "b"}}}))],
            vec![],
            required("NotIn", json!(["a"])),
            Ok("b"),
        ),
        (
            vec![node("a", json!({})), node("b", json!({"metadata": {"labels": {"zone": "b"}}}))],
            vec![on(pod("o", json!({})), "b")],
            json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}}]}}}),
            Ok("b"),
        ),
        (
            vec![node("a", json!({}))],
            vec![on(pod("o", port.clone()), "a")],
            port,
            Err("0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."),
        ),
    ];
    for (nodes, pods, spec, want) in cases {
        let got = place(&mut cluster(&nodes, &pods), &pod("new", spec.clone()));
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{spec}");
    }
}

#[test]
fn gated_and_terminated_pods_and_those_of_other_schedulers_are_ignored() {
    let cases =
        [json!({"schedulingGates": [{"name": "g"}]}), json!({"schedulerName": "mine"}), json!({"nodeName": "a"})];
    for spec in cases {
        let pod = pod("p", spec.clone());
        let cluster = cluster(&[node("a", json!({}))], std::slice::from_ref(&pod));
        assert_eq!(decide(&cluster, &key(&pod)), Decision::Leave, "{spec}");
    }
    let mut ended = on(pod("p", asks("2")), "a");
    ended["status"]["phase"] = json!("Succeeded");
    let mut going = pod("g", json!({}));
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut cluster = cluster(&[node("a", json!({}))], &[ended, going.clone()]);
    assert_eq!(decide(&cluster, &key(&going)), Decision::Leave);
    assert_eq!(place(&mut cluster, &pod("q", asks("2"))), Ok("a".to_owned()), "a terminated pod uses nothing");
}

fn other_pod(name: &str) -> Value {
    let mut pod = pod(name, json!({}));
    pod["metadata"]["labels"] = json!({"app": "db"});
    pod
}

fn apart(topology: &str) -> Value {
    json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": topology}]}}})
}

fn near(topology: &str, app: &str) -> Value {
    json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": topology}]}}})
}

#[test]
fn affinity_and_anti_affinity_are_respected() {
    let nodes = [node("a", json!({})), node("b", json!({})), node("c", json!({"metadata": {"labels": {"zone": "c"}}}))];
    let host = "kubernetes.io/hostname";
    let mut elsewhere = on(pod("o", json!({})), "a");
    elsewhere["metadata"]["namespace"] = json!("other");
    let mut other_app = pod("x", json!({}));
    other_app["metadata"]["labels"] = json!({"app": "db"});
    let mut db_apart = other_app.clone();
    merge(&mut db_apart["spec"], apart("zone"));
    let other_app = on(other_app, "b");
    let cases: Vec<(Vec<Value>, Value, Result<&str, &str>)> = vec![
        (vec![on(pod("o", json!({})), "a")], apart(host), Ok("b")),
        (vec![on(pod("o", json!({})), "a")], apart("zone"), Ok("c")),
        (vec![elsewhere.clone()], apart(host), Ok("b")),
        (vec![elsewhere.clone(), on(pod("q", json!({})), "b")], apart(host), Ok("c")),
        (
            vec![on(pod("o", json!({})), "a"), on(pod("q", json!({})), "c")],
            apart("zone"),
            Err("0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."),
        ),
        // The anti-affinity of scheduled pods excludes a new pod that has none itself.
        (vec![on(pod("o", apart("zone")), "a")], json!({}), Ok("c")),
        (
            vec![on(db_apart, "a")],
            near("zone", "db"),
            Err(
                "0/3 nodes are available: 1 node(s) didn't match pod affinity rules, 2 node(s) didn't satisfy existing pods anti-affinity rules.",
            ),
        ),
        (vec![other_app.clone()], near(host, "db"), Ok("b")),
        (vec![other_app], near("zone", "db"), Ok("a")),
        (vec![], near(host, "db"), Err("0/3 nodes are available: 3 node(s) didn't match pod affinity rules.")),
        // The first pod of a group with affinity to itself.
        (vec![], near(host, "web"), Ok("a")),
    ];
    for (pods, spec, want) in cases {
        let got = place(&mut cluster(&nodes, &pods), &pod("new", spec.clone()));
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{spec} beside {pods:?}");
    }
    // Preferences decide between nodes that fit.
    let wish = |kind: &str, app: &str| {
        json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 10, "podAffinityTerm": {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": host}}]}}})
    };
    let crowd = [
        on(pod("o", json!({})), "a"),
        on(other_pod("x"), "b"),
        on(other_pod("y"), "b"),
        on(other_pod("z"), "c"),
        on(other_pod("w"), "c"),
    ];
    for (kind, app, want) in [
        ("podAntiAffinity", "web", "b"),
        ("podAffinity", "db", "b"),
        ("podAffinity", "web", "a"),
        ("podAntiAffinity", "db", "a"),
    ] {
        let got = place(&mut cluster(&nodes, &crowd), &pod("new", wish(kind, app)));
        assert_eq!(got.as_deref(), Ok(want), "{kind} {app}");
    }
    // An empty namespaceSelector matches all namespaces, also for a later pod.
    let mut everywhere = apart(host);
    everywhere["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["namespaceSelector"] =
        json!({});
    let mut beside = cluster(&nodes, &[elsewhere]);
    beside.apply_namespace(&json!({"metadata": {"name": "other"}}));
    assert_eq!(place(&mut beside, &pod("new", everywhere.clone())), Ok("b".to_owned()));
    let mut beside = cluster(&nodes, &[on(pod("first", everywhere), "a")]);
    let mut stranger = pod("new", json!({}));
    stranger["metadata"]["namespace"] = json!("other");
    assert_eq!(place(&mut beside, &stranger), Ok("b".to_owned()));
}

#[test]
fn topology_spread_constraints_are_met() {
    let zone = |name: &str, zone: &str| node(name, json!({"metadata": {"labels": {"zone": zone}}}));
    let nodes = [zone("a", "1"), zone("b", "1"), zone("c", "2")];
    let constraint = |more: Value| {
        let mut constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}}});
        merge(&mut constraint, more);
        json!({"topologySpreadConstraints": [constraint]})
    };
    let there = [on(pod("o", json!({})), "a"), on(pod("q", json!({})), "c"), on(pod("r", json!({})), "c")];
    let cases = [
        (&there[..2], constraint(json!({})), Ok("b")),
        (&there[..1], constraint(json!({})), Ok("c")),
        (&there[..], constraint(json!({})), Ok("b")),
        (&there[1..], constraint(json!({"maxSkew": 2})), Ok("a")),
        (
            &there[..2],
            constraint(json!({"minDomains": 3})),
            Err("0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints."),
        ),
        (&there[..], constraint(json!({"whenUnsatisfiable": "ScheduleAnyway"})), Ok("b")),
        (
            &there[..],
            constraint(json!({"whenUnsatisfiable": "ScheduleAnyway", "topologyKey": "kubernetes.io/hostname"})),
            Ok("b"),
        ),
        (
            &[],
            constraint(json!({"topologyKey": "rack"})),
            Err(
                "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints (missing required label).",
            ),
        ),
    ];
    for (pods, spec, want) in cases {
        let got = place(&mut cluster(&nodes, pods), &pod("new", spec.clone()));
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{spec} beside {}", pods.len());
    }
    // A terminating pod does not count, and makes room in its domain.
    let mut going = there[0].clone();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut cluster = cluster(&nodes, &[going, there[2].clone()]);
    assert_eq!(place(&mut cluster, &pod("new", constraint(json!({})))), Ok("b".to_owned()));
    cluster.apply_pod(&on(pod("another", json!({})), "b"));
    assert_eq!(place(&mut cluster, &pod("new", constraint(json!({})))), Ok("a".to_owned()));
}

fn uses(claim: &str) -> Value {
    json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]})
}

fn claim(class: &str, more: Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "claim-uid", "resourceVersion": "7"},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}},
        "status": {"phase": "Pending"},
    });
    merge(&mut claim, more);
    claim
}

fn bound() -> Value {
    json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}})
}

fn volume(name: &str, size: &str, more: Value) -> Value {
    let mut volume = json!({
        "metadata": {"name": name, "resourceVersion": "3"},
        "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}},
        "status": {"phase": "Available"},
    });
    merge(&mut volume, more);
    volume
}

fn only_on(node: &str) -> Value {
    json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}}}})
}

fn with_storage(cluster: &mut Cluster, claims: &[Value], volumes: &[Value]) {
    let classes = [
        json!({"metadata": {"name": "now"}, "provisioner": "p", "volumeBindingMode": "Immediate"}),
        json!({"metadata": {"name": "later"}, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer"}),
        json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}),
        json!({"metadata": {"name": "only-b"}, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "kubernetes.io/hostname", "values": ["b"]}]}]}),
    ];
    for class in &classes {
        cluster.volumes_mut().apply_class(class);
    }
    for claim in claims {
        cluster.volumes_mut().apply_claim(claim);
    }
    for volume in volumes {
        cluster.volumes_mut().apply_volume(volume);
    }
}

fn give(volume: &str) -> Step {
    Step::Give {
        volume: volume.into(),
        volume_version: "3".to_owned(),
        claim: name("data"),
        claim_uid: "claim-uid".to_owned(),
    }
}

fn select() -> Step {
    Step::Select { claim: name("data"), claim_version: "7".to_owned() }
}

#[test]
fn claims_restrict_the_nodes_of_a_pod() {
    let unschedulable = |why: &str| Err(format!("0/2 nodes are available: {why}."));
    let selected = |node: &str| json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
    let meant = |uid: &str| json!({"spec": {"claimRef": {"namespace": "default", "name": "data", "uid": uid}}});
    let mut meant_b = meant("claim-uid");
    merge(&mut meant_b, only_on("b"));
    let ready = |node: &str| Ok((node.to_owned(), None));
    let steps = |node: &str, steps: &[Step]| Ok((node.to_owned(), Some(steps.to_vec())));
    type Want = Result<(String, Option<Vec<Step>>), String>;
    let cases: Vec<(Option<Value>, Vec<Value>, Want)> = vec![
        (None, vec![], unschedulable("persistentvolumeclaim \"data\" not found")),
        (
            Some(claim("now", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))),
            vec![],
            unschedulable("persistentvolumeclaim \"data\" is being deleted"),
        ),
        (
            Some(claim("now", json!({"status": {"phase": "Lost"}, "spec": {"volumeName": "v"}}))),
            vec![],
            unschedulable("persistentvolumeclaim \"data\" bound to non-existent persistentvolume \"v\""),
        ),
        (Some(claim("now", json!({}))), vec![], unschedulable("pod has unbound immediate PersistentVolumeClaims")),
        (Some(claim("absent", json!({}))), vec![], unschedulable("pod has unbound immediate PersistentVolumeClaims")),
        (
            Some(claim("later", json!({"spec": {"volumeName": "v"}}))),
            vec![],
            unschedulable("pod has unbound immediate PersistentVolumeClaims"),
        ),
        (Some(claim("now", bound())), vec![volume("v", "5Gi", only_on("b"))], ready("b")),
        (
            Some(claim("now", bound())),
            vec![volume("v", "5Gi", only_on("z"))],
            unschedulable("2 node(s) had volume node affinity conflict"),
        ),
        (
            Some(claim("now", bound())),
            vec![],
            unschedulable("2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"),
        ),
        // Provisioned for the chosen node.
        (Some(claim("later", json!({}))), vec![], steps("a", &[select()])),
        (Some(claim("only-b", json!({}))), vec![], steps("b", &[select()])),
        (Some(claim("later", selected("b"))), vec![], steps("b", &[])),
        (
            Some(claim("later", selected("z"))),
            vec![],
            unschedulable("2 node(s) didn't find available persistent volumes to bind"),
        ),
        // Static PVs: the smallest that fits and is reachable.
        (
            Some(claim("local", json!({}))),
            vec![],
            unschedulable("2 node(s) didn't find available persistent volumes to bind"),
        ),
        (
            Some(claim("local", json!({}))),
            vec![
                volume("large", "9Gi", json!({})),
                volume("fits", "6Gi", json!({})),
                volume("small", "4Gi", json!({})),
            ],
            steps("a", &[give("fits")]),
        ),
        (
            Some(claim("local", json!({}))),
            vec![volume("there", "6Gi", only_on("b")), volume("used", "5Gi", json!({"status": {"phase": "Bound"}}))],
            steps("b", &[give("there")]),
        ),
        (
            Some(claim("local", json!({"spec": {"selector": {"matchLabels": {"tier": "gold"}}}}))),
            vec![
                volume("plain", "5Gi", json!({})),
                volume("gold", "7Gi", json!({"metadata": {"labels": {"tier": "gold"}}})),
            ],
            steps("a", &[give("gold")]),
        ),
        (
            Some(claim("local", json!({"spec": {"accessModes": ["ReadWriteMany"]}}))),
            vec![volume("v", "5Gi", json!({}))],
            unschedulable("2 node(s) didn't find available persistent volumes to bind"),
        ),
        // A PV whose claimRef names the claim.
        (
            Some(claim("local", json!({}))),
            vec![volume("a-free", "5Gi", json!({})), volume("mine", "5Gi", meant_b)],
            steps("a", &[give("a-free")]),
        ),
        (Some(claim("local", json!({}))), vec![volume("mine", "5Gi", meant("claim-uid"))], steps("a", &[])),
        // A PV that does not fit is ignored even if its claimRef names the claim: the binder would not bind
        // it either.
        (Some(claim("later", json!({}))), vec![volume("small", "1Gi", meant("claim-uid"))], steps("a", &[select()])),
        (
            Some(claim("later", json!({}))),
            vec![volume(
                "raw",
                "5Gi",
                object::patch::merge(&meant("claim-uid"), &json!({"spec": {"volumeMode": "Block"}})),
            )],
            steps("a", &[select()]),
        ),
        (
            Some(claim("later", json!({"spec": {"accessModes": ["ReadWriteMany"]}}))),
            vec![volume("mine", "5Gi", meant("claim-uid"))],
            steps("a", &[select()]),
        ),
        (
            Some(claim("later", json!({"spec": {"volumeAttributesClassName": "gold"}}))),
            vec![volume("mine", "5Gi", meant("claim-uid"))],
            steps("a", &[select()]),
        ),
        (
            Some(claim("local", json!({}))),
            vec![volume("theirs", "5Gi", meant("another"))],
            unschedulable("2 node(s) didn't find available persistent volumes to bind"),
        ),
    ];
    for (claim, volumes, want) in cases {
        let mut cluster = cluster(&[node("a", json!({})), node("b", json!({}))], &[pod("p", uses("data"))]);
        with_storage(&mut cluster, claim.as_slice(), &volumes);
        let got = match decide(&cluster, &name("p")) {
            Decision::Bind(node) => Ok((node.to_string(), None)),
            Decision::Prepare(node, steps) => Ok((node.to_string(), Some(steps))),
            Decision::Unschedulable(why) => Err(why.message),
            Decision::Leave => panic!("it waits"),
        };
        assert_eq!(got, want, "{claim:?} {volumes:?}");
    }
}

#[test]
fn a_read_write_once_pod_claim_is_used_by_one_pod() {
    let mut exclusive = claim("now", bound());
    exclusive["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    let pods = [on(pod("first", uses("data")), "a"), pod("second", uses("data"))];
    let mut cluster = cluster(&[node("a", json!({}))], &pods);
    with_storage(&mut cluster, &[exclusive], &[volume("v", "5Gi", json!({}))]);
    let Decision::Unschedulable(why) = decide(&cluster, &name("second")) else { panic!("it has to wait") };
    assert!(why.message.contains("ReadWriteOncePod") && why.helps.leaving, "{why:?}");
    assert!(cluster.remove_pod(&name("first")).gave_way);
    assert_eq!(decide(&cluster, &name("second")), Decision::Bind("a".into()));
}

#[test]
fn a_pv_is_given_to_one_claim() {
    let mut cluster = cluster(&[node("a", json!({}))], &[pod("p", uses("data")), pod("q", uses("more"))]);
    let mut more = claim("local", json!({}));
    merge(&mut more, json!({"metadata": {"name": "more", "uid": "more-uid"}}));
    with_storage(&mut cluster, &[claim("local", json!({})), more], &[volume("v", "5Gi", json!({}))]);
    assert_eq!(decide(&cluster, &name("p")), Decision::Prepare("a".into(), vec![give("v")]));
    cluster.volumes_mut().assume_given(&"v".into(), &name("data"), "claim-uid");
    assert_eq!(decide(&cluster, &name("p")), Decision::Prepare("a".into(), vec![]));
    assert!(matches!(decide(&cluster, &name("q")), Decision::Unschedulable(_)));
}

#[test]
fn claims_of_one_pod_get_different_pvs() {
    let mut both = pod("p", uses("data"));
    both["spec"]["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "more", "persistentVolumeClaim": {"claimName": "more"}}));
    let mut more = claim("local", json!({}));
    merge(
        &mut more,
        json!({"metadata": {"name": "more", "uid": "more-uid"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}),
    );
    let mut cluster = cluster(&[node("a", json!({}))], &[both]);
    with_storage(&mut cluster, &[claim("local", json!({})), more], &[volume("v", "5Gi", json!({}))]);
    assert!(matches!(decide(&cluster, &name("p")), Decision::Unschedulable(_)), "one PV is not enough for two claims");
    cluster.volumes_mut().apply_volume(&volume("w", "6Gi", json!({})));
    let Decision::Prepare(_, steps) = decide(&cluster, &name("p")) else { panic!("there are two PVs now") };
    let given: Vec<String> = steps
        .iter()
        .map(|step| match step {
            Step::Give { volume, claim, .. } => format!("{volume} to {}", claim.1),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(given, ["v to more", "w to data"], "the smallest claim chooses first");
}

#[test]
fn a_reservation_is_kept_when_an_older_event_arrives() {
    let waiting = pod("p", asks("2"));
    let mut cluster = cluster(&[node("a", json!({})), node("b", json!({}))], std::slice::from_ref(&waiting));
    cluster.reserve(&name("p"), &"b".into());
    assert_eq!(decide(&cluster, &name("p")), Decision::Bind("b".into()));
    let mut echo = waiting.clone();
    echo["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False"}]);
    assert_eq!(cluster.apply_pod(&echo), Moved::default());
    assert_eq!(place(&mut cluster, &pod("q", asks("1"))), Ok("a".to_owned()));
    // Its own reservation does not count on a full node.
    for at in 0..3 {
        cluster.apply_pod(&on(pod(&format!("full-{at}"), json!({})), "b"));
    }
    assert_eq!(decide(&cluster, &name("p")), Decision::Bind("b".into()));
    // Binding changes nothing for other pods; a failure frees the resources.
    assert_eq!(cluster.apply_pod(&on(waiting.clone(), "b")), Moved::default());
    cluster.apply_pod(&waiting);
    cluster.reserve(&name("p"), &"b".into());
    assert!(cluster.release(&name("p")) && !cluster.release(&name("p")));
    assert_eq!(place(&mut cluster, &pod("r", asks("2"))), Ok("a".to_owned()));
}

/// Commands of the property test.
#[derive(Clone, Debug)]
enum Move {
    Add { cpu: u8, tolerates: bool, apart: bool },
    Remove(u8),
    Cordon(u8, bool),
    Taint(u8, bool),
}

fn steps() -> impl Strategy<Value = Vec<Move>> {
    let step = prop_oneof![
        5 => (0u8..4, any::<bool>(), any::<bool>()).prop_map(|(cpu, tolerates, apart)| Move::Add { cpu, tolerates, apart }),
        2 => any::<u8>().prop_map(Move::Remove),
        1 => (0u8..3, any::<bool>()).prop_map(|(node, on)| Move::Cordon(node, on)),
        1 => (0u8..3, any::<bool>()).prop_map(|(node, on)| Move::Taint(node, on)),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    /// No node gets more than it has or a pod that it excludes, and the same state gives the same decision.
    #[test]
    fn nodes_are_never_overcommitted(steps in steps()) {
        let mut nodes: Vec<Value> = (0..3).map(|at| node(&format!("n{at}"), json!({}))).collect();
        let mut cluster = cluster(&nodes, &[]);
        let mut placed: BTreeMap<String, (Value, String)> = BTreeMap::new();
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Move::Add { cpu, tolerates, apart: keeps_apart } => {
                    let mut spec = asks(&format!("{}m", 500 * i64::from(cpu)));
                    if tolerates {
                        spec["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
                    }
                    if keeps_apart {
                        merge(&mut spec, apart("kubernetes.io/hostname"));
                    }
                    let pod = pod(&format!("p{at}"), spec);
                    cluster.apply_pod(&pod);
                    let decision = decide(&cluster, &key(&pod));
                    prop_assert_eq!(&decision, &decide(&cluster, &key(&pod)));
                    if let Decision::Bind(chosen) = decision {
                        let node = nodes.iter().find(|node| node["metadata"]["name"] == *chosen).unwrap();
                        prop_assert!(!node.flag(&["spec", "unschedulable"]));
                        prop_assert!(tolerates || node.items(&["spec", "taints"]).is_empty());
                        let mut others = placed.values().filter(|(_, there)| **there == *chosen);
                        prop_assert!(!others.any(|(other, _)| keeps_apart || other.has(&["spec", "affinity"])));
                        cluster.apply_pod(&on(pod.clone(), &chosen));
                        placed.insert(format!("p{at}"), (pod, chosen.to_string()));
                    }
                }
                Move::Remove(which) => {
                    if let Some(gone) = placed.keys().nth(usize::from(which) % placed.len().max(1)).cloned() {
                        placed.remove(&gone);
                        cluster.remove_pod(&name(&gone));
                    }
                }
                Move::Cordon(which, on) => {
                    nodes[usize::from(which)]["spec"]["unschedulable"] = json!(on);
                    cluster.apply_node(&nodes[usize::from(which)]);
                }
                Move::Taint(which, on) => {
                    let taints = if on { json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]) } else { json!([]) };
                    nodes[usize::from(which)]["spec"]["taints"] = taints;
                    cluster.apply_node(&nodes[usize::from(which)]);
                }
            }
            for at in 0..3 {
                let there: Vec<&Value> = placed.values().filter(|(_, node)| *node == format!("n{at}")).map(|(pod, _)| pod).collect();
                let cpu: i128 = there.iter().map(|pod| Requests::of_pod(pod).cpu_milli).sum();
                prop_assert!(cpu <= 2000 && there.len() <= 4);
                // The sums used for decisions are correct.
                let taken = cluster.taken(&format!("n{at}"));
                prop_assert_eq!(taken.map_or(0, |taken| taken.requests.cpu_milli), cpu);
                prop_assert_eq!(taken.map_or(0, |taken| taken.pods.len()), there.len());
            }
        }
    }
}
