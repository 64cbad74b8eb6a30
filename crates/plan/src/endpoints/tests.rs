use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn service(spec: Value) -> Value {
    let base = json!({"selector": {"app": "web"}, "clusterIP": "10.0.0.1", "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]});
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": "web", "labels": {"team": "a"}},
        "spec": object::patch::merge(&base, &spec),
    })
}

/// A ready pod of the service, with this number in its name, uid and address.
fn pod(number: u32, more: Value) -> Value {
    let pod = json!({
        "metadata": {"namespace": "ns", "name": format!("p{number}"), "uid": format!("u{number}"), "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}]},
        "status": {
            "phase": "Running", "podIP": ip(number), "podIPs": [{"ip": ip(number)}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    object::patch::merge(&pod, &more)
}

fn ip(number: u32) -> String {
    format!("10.1.{}.{}", number / 250, number % 250 + 1)
}

fn address(number: u32) -> Value {
    json!({
        "ip": ip(number), "nodeName": "n1",
        "targetRef": {"kind": "Pod", "namespace": "ns", "name": format!("p{number}"), "uid": format!("u{number}")},
    })
}

fn not_ready() -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
}

fn created(service: &Value, pods: &[Value]) -> Value {
    let pods: Vec<&Value> = pods.iter().collect();
    match plan(Ok(service), &pods, None) {
        Step::Create(endpoints) => endpoints,
        other => panic!("{other:?}"),
    }
}

fn subsets(service: &Value, pods: &[Value]) -> Value {
    created(service, pods).at(&["subsets"]).cloned().unwrap_or_else(|| json!([]))
}

#[test]
fn ready_and_other_pods_are_listed_apart() {
    let made = created(&service(json!({})), &[pod(1, json!({})), pod(0, json!({})), pod(2, not_ready())]);
    let want = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"namespace": "ns", "name": "web", "labels": {"team": "a", MANAGED_BY: CONTROLLER}},
        "subsets": [{
            "addresses": [address(0), address(1)], "notReadyAddresses": [address(2)],
            "ports": [{"port": 8080, "protocol": "TCP"}],
        }],
    });
    assert_eq!(made, want);
}

#[test]
fn which_pods_have_an_address() {
    let both = json!({"publishNotReadyAddresses": true});
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let named = json!({"spec": {"hostname": "db-0", "subdomain": "web"}});
    let mut with_name = address(0);
    with_name.put(&["hostname"], "db-0");
    let ready = |address: Value| json!([{"addresses": [address], "ports": [{"port": 8080, "protocol": "TCP"}]}]);
    let cases = [
        ("another label", json!({}), json!({"metadata": {"labels": {"app": "db"}}}), json!([])),
        ("another namespace", json!({}), json!({"metadata": {"namespace": "other"}}), json!([])),
        ("no address yet", json!({}), json!({"status": {"podIP": null, "podIPs": null}}), json!([])),
        ("ended", both.clone(), json!({"status": {"phase": "Failed"}}), json!([])),
        ("ended well", both.clone(), json!({"status": {"phase": "Succeeded"}}), json!([])),
        ("terminating", json!({}), going.clone(), json!([])),
        ("terminating, published", both.clone(), going, ready(address(0))),
        ("not ready, published", both, not_ready(), ready(address(0))),
        ("a name", json!({}), named.clone(), ready(with_name)),
        (
            "a name elsewhere",
            json!({}),
            object::patch::merge(&named, &json!({"spec": {"subdomain": "db"}})),
            ready(address(0)),
        ),
        ("the other family", json!({"ipFamilies": ["IPv6"]}), json!({}), json!([])),
    ];
    for (what, spec, more, want) in cases {
        assert_eq!(subsets(&service(spec), &[pod(0, more)]), want, "{what}");
    }
    let dual = json!({"status": {"podIPs": [{"ip": ip(0)}, {"ip": "fd00::1"}]}});
    let found = subsets(&service(json!({"ipFamilies": ["IPv6", "IPv4"]})), &[pod(0, dual)]);
    assert_eq!(found[0]["addresses"][0]["ip"], "fd00::1");
}

#[test]
fn ports_by_number_and_by_name() {
    let by_name = json!({"ports": [{"name": "a", "port": 80, "targetPort": "http", "appProtocol": "h2c"}, {"name": "b", "port": 81, "targetPort": 9000}]});
    let service = service(by_name);
    let other = json!({"spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 7070}]}]}});
    let udp = json!({"spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 1, "protocol": "UDP"}]}]}});
    let sidecar = json!({"spec": {"containers": [{"name": "c"}], "initContainers": [
        {"name": "i", "ports": [{"name": "http", "containerPort": 1}]},
        {"name": "s", "restartPolicy": "Always", "ports": [{"name": "http", "containerPort": 8080}]}]}});
    let port = |name: &str, port: i64| json!({"name": name, "port": port, "protocol": "TCP"});
    let mut http = port("a", 8080);
    http.put(&["appProtocol"], "h2c");
    let mut other_http = port("a", 7070);
    other_http.put(&["appProtocol"], "h2c");
    let found = subsets(&service, &[pod(0, json!({})), pod(1, sidecar), pod(2, other), pod(3, udp)]);
    let want = json!([
        {"addresses": [address(2)], "ports": [other_http]},
        {"addresses": [address(0), address(1)], "ports": [http]},
        {"addresses": [address(0), address(1), address(2), address(3)], "ports": [port("b", 9000)]},
    ]);
    assert_eq!(found, want);
}

#[test]
fn headless_services_may_have_no_ports() {
    let headless = service(json!({"clusterIP": "None", "ports": null}));
    let made = created(&headless, &[pod(0, json!({}))]);
    assert_eq!(made["subsets"], json!([{"addresses": [address(0)]}]));
    assert_eq!(made["metadata"]["labels"], json!({"team": "a", HEADLESS: "", MANAGED_BY: CONTROLLER}));
    assert_eq!(subsets(&service(json!({"ports": null})), &[pod(0, json!({}))]), json!([]));
}

#[test]
fn when_endpoints_are_written() {
    let web = service(json!({}));
    let (one, two) = (pod(0, json!({})), pod(1, json!({})));
    let mut current = created(&web, std::slice::from_ref(&one));
    current.put(&["metadata", "resourceVersion"], "7");
    current.put(&["metadata", "annotations", "note"], "kept");
    assert_eq!(plan(Ok(&web), &[&one], Some(&current)), Step::Nothing);
    let Step::Update(next) = plan(Ok(&web), &[&one, &two], Some(&current)) else { panic!("a pod more") };
    assert_eq!(
        (next.text(&["metadata", "resourceVersion"]), &next["metadata"]["annotations"]["note"]),
        ("7", &json!("kept"))
    );
    assert_eq!(next["subsets"][0]["addresses"], json!([address(0), address(1)]));
    // The labels follow the Service, and changes by others are reverted.
    let mut labelled = web.clone();
    labelled.put(&["metadata", "labels"], json!({"team": "b"}));
    assert!(matches!(plan(Ok(&labelled), &[&one], Some(&current)), Step::Update(_)));
    let mut edited = current.clone();
    edited.cut(&["subsets"]);
    assert!(matches!(plan(Ok(&web), &[&one], Some(&edited)), Step::Update(_)));
    // Services without a selector, of other types, and terminating ones.
    let mut without = web.clone();
    without.cut(&["spec", "selector"]);
    let mut empty = web.clone();
    empty.put(&["spec", "selector"], json!({}));
    let mut external = web.clone();
    external.put(&["spec", "type"], "ExternalName");
    let mut going = web;
    going.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
    for other in [without, empty, external, going] {
        assert_eq!(plan(Ok(&other), &[&one], None), Step::Nothing, "{other}");
        assert_eq!(plan(Ok(&other), &[&one], Some(&edited)), Step::Nothing, "{other}");
    }
}

#[test]
fn endpoints_are_deleted_with_their_service() {
    let ours = created(&service(json!({})), &[]);
    let mut manual = ours.clone();
    manual.cut(&["metadata", "labels"]);
    let mut lock = manual.clone();
    lock.put(&["metadata", "annotations", LEADER], "x");
    for (endpoints, absent, want) in [
        (&ours, Absent::Unknown, Step::Delete),
        (&ours, Absent::Deleted, Step::Delete),
        (&manual, Absent::Deleted, Step::Delete),
        (&manual, Absent::Unknown, Step::Nothing),
        (&lock, Absent::Deleted, Step::Nothing),
    ] {
        assert_eq!(plan(Err(absent), &[], Some(endpoints)), want, "{endpoints} {absent:?}");
    }
    assert_eq!(plan(Err(Absent::Deleted), &[], None), Step::Nothing);
}

fn count(endpoints: &Value, list: &str) -> usize {
    endpoints.items(&["subsets"]).iter().map(|subset| subset.items(&[list]).len()).sum()
}

#[test]
fn a_thousand_addresses_are_the_most() {
    let web = service(json!({}));
    let ready = |count: u32| (0..count).map(|number| pod(number, json!({})));
    let full = created(&web, &ready(1000).collect::<Vec<_>>());
    assert_eq!((count(&full, "addresses"), full.has(&["metadata", "annotations"])), (1000, false));
    let mut pods: Vec<Value> = ready(900).collect();
    pods.extend((900..1200).map(|number| pod(number, not_ready())));
    let made = created(&web, &pods);
    assert_eq!((count(&made, "addresses"), count(&made, "notReadyAddresses")), (900, 100));
    assert_eq!(made["metadata"]["annotations"][OVER_CAPACITY], "truncated");
    pods.extend((1200..1400).map(|number| pod(number, json!({}))));
    let made = created(&web, &pods);
    assert_eq!((count(&made, "addresses"), count(&made, "notReadyAddresses")), (1000, 0));
    // Below the limit again, the annotation is removed.
    let few: Vec<Value> = ready(3).collect();
    let few: Vec<&Value> = few.iter().collect();
    let Step::Update(next) = plan(Ok(&web), &few, Some(&made)) else { panic!("fewer") };
    assert!(!next.has(&["metadata", "annotations"]));
}

#[test]
fn which_changes_of_pods_matter() {
    let before = pod(0, json!({}));
    assert!(!matters(
        Some(&before),
        Some(&pod(0, json!({"metadata": {"annotations": {"a": "b"}}, "status": {"hostIP": "x"}})))
    ));
    assert!(matters(None, Some(&before)) && matters(Some(&before), None));
    for more in [
        not_ready(),
        json!({"metadata": {"labels": {"x": "y"}}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"status": {"phase": "Failed"}}),
        json!({"status": {"podIP": "10.9.9.9"}}),
        json!({"spec": {"nodeName": "n2"}}),
    ] {
        assert!(matters(Some(&before), Some(&pod(0, more.clone()))), "{more}");
    }
}

proptest! {
    /// For any pods: each ready pod has one address per port, planning again changes nothing, and the order
    /// of pods does not matter. Each Service finds its pods by one key.
    #[test]
    fn endpoints_match_the_pods(states in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 0..12), rotate in 0_usize..12) {
        let web = service(json!({"ports": [{"name": "a", "port": 80, "targetPort": "http"}, {"name": "b", "port": 81, "targetPort": 9000}]}));
        let pods: Vec<Value> = states.iter().enumerate().map(|(number, (ready, named, going))| {
            let mut more = if *ready { json!({}) } else { not_ready() };
            if !named {
                more.put(&["spec", "containers"], json!([{"name": "c"}]));
            }
            if *going {
                more.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
            }
            pod(u32::try_from(number).expect("few"), more)
        }).collect();
        let made = created(&web, &pods);
        let mut turned: Vec<&Value> = pods.iter().collect();
        if !turned.is_empty() {
            let middle = rotate % turned.len();
            turned.rotate_left(middle);
        }
        prop_assert_eq!(plan(Ok(&web), &turned, Some(&made)), Step::Nothing);
        let mut found = Vec::new();
        for subset in made.items(&["subsets"]) {
            for (list, ready) in [("addresses", true), ("notReadyAddresses", false)] {
                for address in subset.items(&[list]) {
                    for port in subset.items(&["ports"]) {
                        found.push((address.text(&["ip"]).to_owned(), port.text(&["name"]).to_owned(), ready));
                    }
                }
            }
        }
        let mut want = Vec::new();
        for (number, (ready, named, going)) in (0..).zip(&states) {
            for port in ["a", "b"] {
                if !going && (*named || port == "b") {
                    want.push((ip(number), port.to_owned(), *ready));
                }
            }
        }
        found.sort();
        want.sort();
        prop_assert_eq!(found, want);
        let key = service_key(&web).expect("the service has a selector");
        prop_assert!(pods.iter().all(|pod| pod_keys(pod).collect::<BTreeSet<_>>().contains(&key)));
    }
}
