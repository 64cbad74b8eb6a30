use super::*;
use crate::admission::testing::{World, denied, kind};
use object::Gates;
use object::kind::Ctx;

fn service(service_name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": service_name, "namespace": "a"}, "spec": spec})
}

fn create(world: &mut World, service_name: &str, spec: Value) -> Result<Value, Status> {
    let mut service = service(service_name, spec);
    let ctx = Ctx { gates: &Gates::default(), now: jiff::Timestamp::UNIX_EPOCH };
    kind("services").rules.default(&mut service, &ctx);
    kind("services").rules.prepare_create(&mut service, &ctx);
    world.create("services", service)
}

fn update(world: &mut World, old: &Value, new: Value) -> Value {
    let mut new = new;
    let ctx = Ctx { gates: &Gates::default(), now: jiff::Timestamp::UNIX_EPOCH };
    kind("services").rules.default(&mut new, &ctx);
    kind("services").rules.prepare_update(&mut new, old, &ctx);
    world.update("services", old, new).unwrap()
}

#[test]
fn addresses_are_picked_kept_apart_and_given_back() {
    let mut world = World::with_namespace("a");
    let mut seen = BTreeSet::new();
    for at in 0..50 {
        let stored = create(&mut world, &format!("s{at}"), json!({"type": "ClusterIP"})).unwrap();
        let address: Ipv4Addr = stored.text(&["spec", "clusterIP"]).parse().unwrap();
        assert!(ADDRESSES.contains(&u32::from(address)));
        assert!(u32::from(address) >= ADDRESSES_PICKED_FROM, "low addresses are reserved for explicit requests");
        assert_eq!(stored["spec"]["clusterIPs"], json!([address.to_string()]));
        assert!(seen.insert(address), "{address} twice");
    }
    let first = world.get("/core/services/a/s0").unwrap();
    let key = format!("/mainstay/service-ips/{}", first.text(&["spec", "clusterIP"]));
    assert!(world.get(&key).is_some());
    world.remove("services", first).unwrap();
    assert!(world.get(&key).is_none());
}

#[test]
fn asked_addresses_are_given_once_and_must_be_in_range() {
    let mut world = World::with_namespace("a");
    let ask = |address: &str| json!({"clusterIP": address});
    assert!(create(&mut world, "one", ask("10.96.0.10")).is_ok());
    let refused = denied(create(&mut world, "two", ask("10.96.0.10")));
    assert_eq!(refused.code, 422);
    assert_eq!(
        refused.message,
        "Service \"two\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.10\"]: failed to allocate IP 10.96.0.10: \
         provided IP is already allocated"
    );
    let outside = denied(create(&mut world, "two", ask("10.97.0.10")));
    assert!(outside.message.ends_with(
        "failed to allocate IP 10.97.0.10: the provided IP (10.97.0.10) is not in the valid range. \
         The range of valid IPs is 10.96.0.0/16"
    ));
}

#[test]
fn two_at_once_do_not_get_the_same() {
    let mut world = World::with_namespace("a");
    let ask = |name: &str| service(name, json!({"clusterIP": "10.96.0.10"}));
    let first = world.validate("services", ask("one")).unwrap();
    let second = world.validate("services", ask("two")).unwrap();
    assert!(world.commit("services", &first.0, first.1));
    assert!(!world.commit("services", &second.0, second.1));
}

#[test]
fn headless_and_external_services_get_no_address() {
    let mut world = World::with_namespace("a");
    let headless = create(&mut world, "h", json!({"clusterIP": "None", "selector": {"a": "b"}})).unwrap();
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    let external = create(&mut world, "e", json!({"type": "ExternalName", "externalName": "x"})).unwrap();
    assert!(!external.has(&["spec", "clusterIP"]));
    assert_eq!(world.count("/mainstay/"), 0);
}

#[test]
fn node_ports_are_picked_claimed_and_shared_between_protocols() {
    let mut world = World::with_namespace("a");
    let ports = json!([
        {"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}, {"port": 80, "nodePort": 30_080},
    ]);
    let stored = create(&mut world, "dns", json!({"type": "NodePort", "ports": ports})).unwrap();
    let numbers: Vec<i64> = stored.items(&["spec", "ports"]).iter().filter_map(node_port).collect();
    assert_eq!(numbers[0], numbers[1]);
    assert_eq!(numbers[2], 30_080);
    assert!((30_086..=32_767).contains(&numbers[0]));
    assert_eq!(world.count("/mainstay/node-ports/"), 2);

    let clash = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_080}]});
    assert_eq!(
        denied(create(&mut world, "x", clash)).message,
        "Service \"x\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"
    );
    let outside = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]});
    assert!(denied(create(&mut world, "x", outside)).message.ends_with(
        "Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"
    ));
    world.remove("services", stored).unwrap();
    assert_eq!(world.count("/mainstay/"), 0, "everything is released");
}

#[test]
fn updates_keep_what_they_leave_out_and_follow_the_type() {
    let mut world = World::with_namespace("a");
    let spec = |kind: &str| json!({"type": kind, "ports": [{"port": 80}]});
    let old = create(&mut world, "s", spec("NodePort")).unwrap();
    let same = update(&mut world, &old, service("s", spec("NodePort")));
    assert_eq!(same["spec"], old["spec"], "address and port stay");

    let mut plain = same.clone();
    plain.put(&["spec", "type"], "ClusterIP");
    let plain = update(&mut world, &same, plain);
    assert_eq!(node_port(&plain["spec"]["ports"][0]), None);
    assert_eq!(world.count("/mainstay/node-ports/"), 0);
    assert_eq!(plain["spec"]["clusterIP"], old["spec"]["clusterIP"]);

    let mut external = plain.clone();
    external.put(&["spec", "type"], "ExternalName");
    let external = update(&mut world, &plain, external);
    assert!(!external.has(&["spec", "clusterIP"]));
    assert_eq!(world.count("/mainstay/"), 0);

    let mut back = external.clone();
    back.put(&["spec", "type"], "LoadBalancer");
    back.put(&["spec", "externalTrafficPolicy"], "Local");
    let back = update(&mut world, &external, back);
    assert!(back.has(&["spec", "clusterIP"]) && back.int(&["spec", "healthCheckNodePort"]).is_some());
    assert_eq!(world.count("/mainstay/"), 3, "an address, a node port and a health port");
}
