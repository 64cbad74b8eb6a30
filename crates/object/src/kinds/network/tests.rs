use super::super::testing::*;
use super::*;
use crate::access::Access;
use crate::{Value, json};

fn service(spec: Value) -> Value {
    let mut full = json!({"ports": [{"port": 80}]});
    for (key, value) in spec.members(&[]) {
        full.put(&[key], value.clone());
    }
    json!({"metadata": {"name": "s", "namespace": "d"}, "spec": full})
}

#[test]
fn services_get_defaults() {
    let object = stored("Service", service(json!({})));
    assert_eq!(
        object["spec"],
        json!({"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "type": "ClusterIP", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})
    );
    assert_eq!(object["status"], json!({"loadBalancer": {}}));
    assert!(needs_cluster_ip(&object));
    let object = stored(
        "Service",
        service(json!({"type": "LoadBalancer", "sessionAffinity": "ClientIP", "clusterIP": "fd00::1"})),
    );
    assert_eq!(object["spec"]["externalTrafficPolicy"], "Cluster");
    assert_eq!(object["spec"]["allocateLoadBalancerNodePorts"], true);
    assert_eq!(object["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10_800);
    assert_eq!(object["spec"]["clusterIPs"], json!(["fd00::1"]));
    assert_eq!(object["spec"]["ipFamilies"], json!(["IPv6"]));
    assert!(!needs_cluster_ip(&object));
    assert_eq!(missing_node_ports(&object), [0]);
    let headless = stored("Service", service(json!({"clusterIP": "None", "ports": null})));
    assert!(!needs_cluster_ip(&headless));
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    let named = stored("Service", service(json!({"type": "ExternalName", "externalName": "x.io."})));
    assert!(!needs_cluster_ip(&named) && !named.has(&["spec", "ipFamilies"]));
}

#[test]
fn invalid_services_are_refused_with_upstreams_messages() {
    let lb = "may only be used when `type` is 'LoadBalancer'";
    let cases = [
        (json!({"ports": []}), "spec.ports: Required value".to_owned()),
        (
            json!({"type": "X", "internalTrafficPolicy": "Cluster"}),
            "spec.type: Unsupported value: \"X\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"".to_owned(),
        ),
        (json!({"type": "ExternalName"}), "spec.externalName: Required value".to_owned()),
        (
            json!({"type": "ExternalName", "externalName": "x", "clusterIP": "10.0.0.1"}),
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services".to_owned(),
        ),
        (
            json!({"type": "NodePort", "clusterIP": "None"}),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services".to_owned(),
        ),
        (
            json!({"type": "LoadBalancer", "ports": [{"port": 10250}]}),
            "spec.ports[0]: Invalid value: 10250: may not expose port 10250 externally since it is used by kubelet".to_owned(),
        ),
        (
            json!({"ports": [{"port": 0, "targetPort": 1}]}),
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive".to_owned(),
        ),
        (
            json!({"ports": [{"port": 1, "protocol": "X"}]}),
            "spec.ports[0].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"".to_owned(),
        ),
        (json!({"ports": [{"port": 1, "name": "a"}, {"port": 2}]}), "spec.ports[1].name: Required value".to_owned()),
        (
            json!({"ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "a"}]}),
            "spec.ports[1].name: Duplicate value: \"a\"".to_owned(),
        ),
        (
            json!({"ports": [{"port": 1, "name": "a"}, {"port": 1, "name": "b"}]}),
            "spec.ports[1]: Duplicate value: {\"port\":1,\"protocol\":\"TCP\"}".to_owned(),
        ),
        (
            json!({"ports": [{"port": 1, "nodePort": 30000}]}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'".to_owned(),
        ),
        (
            json!({"ports": [{"port": 1, "targetPort": "9"}]}),
            "spec.ports[0].targetPort: Invalid value: \"9\": must contain at least one letter (a-z)".to_owned(),
        ),
        (
            json!({"sessionAffinity": "X"}),
            "spec.sessionAffinity: Unsupported value: \"X\": supported values: \"ClientIP\", \"None\"".to_owned(),
        ),
        (
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than 86400".to_owned(),
        ),
        (
            json!({"clusterIP": "x"}),
            "spec.clusterIPs[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned(),
        ),
        (
            json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.2"]}),
            "spec.clusterIPs: Invalid value: [\"10.0.0.2\"]: first value must match `clusterIP`".to_owned(),
        ),
        (
            json!({"ipFamilies": ["IPv5"]}),
            "spec.ipFamilies[0]: Unsupported value: \"IPv5\": supported values: \"IPv4\", \"IPv6\"".to_owned(),
        ),
        (
            json!({"externalIPs": ["127.0.0.1"]}),
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned(),
        ),
        (
            json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}),
            format!("spec.LoadBalancerSourceRanges: Forbidden: {lb}"),
        ),
        (json!({"allocateLoadBalancerNodePorts": true}), format!("spec.allocateLoadBalancerNodePorts: Forbidden: {lb}")),
        (json!({"loadBalancerClass": "a/b"}), format!("spec.loadBalancerClass: Forbidden: {lb}")),
        (
            json!({"externalTrafficPolicy": "Local"}),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services".to_owned(),
        ),
        (
            json!({"internalTrafficPolicy": "X"}),
            "spec.internalTrafficPolicy: Unsupported value: \"X\": supported values: \"Cluster\", \"Local\"".to_owned(),
        ),
        (
            json!({"healthCheckNodePort": 3}),
            "spec.healthCheckNodePort: Invalid value: 3: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'".to_owned(),
        ),
        (
            json!({"trafficDistribution": "X"}),
            "spec.trafficDistribution: Unsupported value: \"X\": supported values: \"PreferClose\", \"PreferSameNode\", \"PreferSameZone\"".to_owned(),
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(refused("Service", service(spec.clone())), want, "{spec}");
    }
}

#[test]
fn service_updates_keep_allocated_values() {
    let mut old = stored("Service", service(json!({"type": "NodePort"})));
    old["spec"]["clusterIP"] = json!("10.0.0.1");
    old["spec"]["clusterIPs"] = json!(["10.0.0.1"]);
    old["spec"]["ports"][0]["nodePort"] = json!(30_001);
    let (new, errors) = update("Service", &old, service(json!({"type": "NodePort"})));
    assert!(errors.is_empty(), "{}", errors.message());
    assert_eq!(new["spec"], old["spec"]);
    let (new, errors) = update("Service", &old, service(json!({"type": "ClusterIP"})));
    assert!(errors.is_empty(), "{}", errors.message());
    assert!(!new.has(&["spec", "externalTrafficPolicy"]));
    assert_eq!(
        change_refused("Service", &old, |new| new["spec"]["type"] = json!("ClusterIP")),
        "[]",
        "node ports go along"
    );
    let mut named = old.clone();
    named["spec"]["type"] = json!("ExternalName");
    named["spec"]["externalName"] = json!("x.io");
    let (new, errors) = update("Service", &old, named);
    assert!(errors.is_empty(), "{}", errors.message());
    assert!(!new.has(&["spec", "clusterIP"]) && !new.has(&["spec", "ipFamilies"]));
    assert_eq!(
        change_refused("Service", &old, |new| new["spec"]["clusterIP"] = json!("10.0.0.2")),
        "spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"
    );
    let old = stored("Service", service(json!({"type": "LoadBalancer", "loadBalancerClass": "a/b"})));
    assert_eq!(
        change_refused("Service", &old, |new| new["spec"]["loadBalancerClass"] = json!("a/c")),
        "spec.loadBalancerClass: Invalid value: \"a/c\": may not change once set"
    );
}

#[test]
fn service_status_is_checked() {
    let balanced = stored("Service", service(json!({"type": "LoadBalancer"})));
    let refused = |old: &Value, point: Value| {
        let status = json!({"loadBalancer": {"ingress": [point]}});
        update_status("Service", old, json!({"metadata": {}, "status": status})).1.message()
    };
    assert_eq!(refused(&balanced, json!({"ip": "10.0.0.1"})), "[]");
    let p = "status.loadBalancer.ingress[0]";
    assert!(
        refused(&balanced, json!({"ip": "x"}))
            .starts_with(&format!("{p}.ip: Invalid value: \"x\": must be a valid IP address"))
    );
    assert_eq!(
        refused(&balanced, json!({"hostname": "10.0.0.1"})),
        format!("{p}.hostname: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address")
    );
    let plain = stored("Service", service(json!({})));
    assert_eq!(
        refused(&plain, json!({"ip": "10.0.0.1"})),
        "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is \"LoadBalancer\""
    );
}

#[test]
fn fields_without_effect_give_a_warning() {
    let object = service(json!({"clusterIP": "None", "sessionAffinity": "ClientIP", "externalName": "x"}));
    assert_eq!(
        warnings("Service", &object),
        [
            "spec.SessionAffinity is ignored for headless services",
            "spec.externalName is ignored when spec.type is not \"ExternalName\""
        ]
    );
}

#[test]
fn service_columns_show_addresses_and_ports() {
    assert_eq!(headers("Service"), "Name | Type | Cluster-IP | External-IP | Port(s) | Age | Selector*");
    let cases = [
        (json!({"clusterIP": "10.0.0.1"}), "s | ClusterIP | 10.0.0.1 | <none> | 80/TCP | 0s | <none>"),
        (
            json!({"clusterIP": "None", "ports": [], "selector": {"a": "b"}}),
            "s | ClusterIP | None | <none> | <none> | 0s | a=b",
        ),
        (
            json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [{"port": 80, "nodePort": 30080}]}),
            "s | LoadBalancer | 10.0.0.1 | <pending> | 80:30080/TCP | 0s | <none>",
        ),
        (
            json!({"type": "ExternalName", "externalName": "x.io"}),
            "s | ExternalName | <none> | x.io | 80/TCP | 0s | <none>",
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(shown("Service", &stored("Service", service(spec))), want);
    }
    let mut object = stored("Service", service(json!({"type": "LoadBalancer", "externalIPs": ["1.2.3.4"]})));
    object["status"] = json!({"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}, {"hostname": "h.io"}]}});
    assert!(shown("Service", &object).contains("5.6.7.8,h.io,1.2.3.4"));
}

#[test]
fn endpoints_are_defaulted_and_validated() {
    let object = |subsets: Value| json!({"metadata": {"name": "e", "namespace": "d"}, "subsets": subsets});
    let many: Vec<Value> = (1..=5).map(|n| json!({"ip": format!("10.0.0.{n}"), "nodeName": "n"})).collect();
    let old = stored("Endpoints", object(json!([{"addresses": many, "ports": [{"port": 80}]}])));
    assert_eq!(old["subsets"][0]["ports"][0]["protocol"], "TCP");
    assert_eq!(shown("Endpoints", &old), "e | 10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more... | 0s");
    assert_eq!(
        shown("Endpoints", &stored("Endpoints", object(json!([{"addresses": [{"ip": "fd00::1"}]}])))),
        "e | fd00::1 | 0s"
    );
    assert_eq!(shown("Endpoints", &stored("Endpoints", object(json!([])))), "e | <none> | 0s");
    let cases = [
        (json!([{}]), "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"),
        (
            json!([{"addresses": [{"ip": "x"}]}]),
            "subsets[0].addresses[0].ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            json!([{"notReadyAddresses": [{"ip": "169.254.1.1"}]}]),
            "subsets[0].notReadyAddresses[0].ip: Invalid value: \"169.254.1.1\": may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        ),
        (
            json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1}, {"port": 2, "name": "b"}]}]),
            "subsets[0].ports[0].name: Required value",
        ),
    ];
    for (subsets, want) in cases {
        assert_eq!(refused("Endpoints", object(subsets)), want);
    }
    assert_eq!(
        change_refused("Endpoints", &old, |new| new["subsets"][0]["addresses"][0]["nodeName"] = json!("m")),
        "subsets[0].addresses[0].nodeName: Forbidden: Cannot change NodeName for 10.0.0.1 to m"
    );
}
