//! Discovery, OpenAPI, health and metrics, and all kinds through a typed client.

use crate::support::*;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api as KubeApi, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn root(kind: &object::Kind) -> String {
    if kind.group.is_empty() {
        format!("/api/{}", kind.version)
    } else {
        format!("/apis/{}/{}", kind.group, kind.version)
    }
}

#[tokio::test]
async fn discovery_names_every_kind_in_both_forms() {
    let world = World::new().await;
    let admin = world.admin();
    let versions = admin.get("/api").await.expect(200);
    assert_eq!((&versions["kind"], &versions["versions"]), (&json!("APIVersions"), &json!(["v1"])));
    let groups = admin.get("/apis").await.expect(200);
    assert_eq!(groups["kind"], "APIGroupList");
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let mut found = BTreeSet::new();
    for path in ["/api", "/apis"] {
        let reply = admin.header("accept", aggregated).get(path).await;
        assert_eq!(
            reply.headers["content-type"],
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        );
        let list = reply.expect(200);
        assert_eq!(list["kind"], "APIGroupDiscoveryList");
        for group in list["items"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                for resource in version["resources"].as_array().unwrap() {
                    let name = text(group, "/metadata/name");
                    found.insert(format!("{name}/{} {}", text(version, "/version"), text(resource, "/resource")));
                    let verbs = resource["verbs"].as_array().unwrap();
                    assert!(!verbs.is_empty(), "{resource}");
                }
            }
        }
    }
    for kind in world.running.server.registry.kinds().iter() {
        assert!(found.contains(&format!("{}/{} {}", kind.group, kind.version, kind.plural)), "{kind:?}");
        let resources = admin.get(&root(kind)).await.expect(200);
        assert_eq!(resources["kind"], "APIResourceList");
        let resource = resources["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|resource| resource["name"] == *kind.plural)
            .unwrap()
            .clone();
        assert_eq!(resource["kind"], *kind.kind);
        assert_eq!(resource["namespaced"], kind.namespaced);
        for sub in &kind.subresources {
            let name = format!("{}/{}", kind.plural, sub.name());
            assert!(
                resources["resources"].as_array().unwrap().iter().any(|resource| resource["name"] == name),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn every_stored_kind_lists_and_watches() {
    let world = World::new().await;
    let admin = world.admin();
    for kind in world.running.server.registry.kinds().iter().filter(|kind| kind.stored) {
        let path = format!("{}/{}", root(kind), kind.plural);
        let list = admin.get(&path).await.expect(200);
        assert_eq!(list["kind"], kind.list_kind());
        assert_eq!(list["apiVersion"], kind.api_version());
        for item in list["items"].as_array().unwrap() {
            assert_eq!(item["kind"], *kind.kind);
            assert_eq!(item["apiVersion"], kind.api_version());
        }
        let mut watching = admin.watch(&format!("{path}?watch=1&resourceVersion={}", version(&list))).await;
        watching.quiet().await;
    }
}

#[tokio::test]
async fn openapi_describes_every_kind() {
    let world = World::new().await;
    let admin = world.admin();
    let index = admin.get("/openapi/v3").await.expect(200);
    let mut described = BTreeSet::new();
    for (path, entry) in index["paths"].as_object().unwrap() {
        let reply = admin.get(&text(entry, "/serverRelativeURL")).await;
        assert!(reply.headers.contains_key("etag"), "{path}");
        let document = reply.expect(200);
        for schema in document["components"]["schemas"].as_object().into_iter().flat_map(|schemas| schemas.values()) {
            for kind in schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
                described.insert(format!(
                    "{}/{} {}",
                    text(kind, "/group"),
                    text(kind, "/version"),
                    text(kind, "/kind")
                ));
            }
        }
        assert!(!document["paths"].as_object().unwrap().is_empty() || path == "version", "{path}");
    }
    let old = admin.get("/openapi/v2").await.expect(200);
    assert_eq!(old["swagger"], "2.0");
    let old_kinds: BTreeSet<String> = old["definitions"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|schema| schema["x-kubernetes-group-version-kind"].as_array().cloned().unwrap_or_default())
        .map(|kind| format!("{}/{} {}", text(&kind, "/group"), text(&kind, "/version"), text(&kind, "/kind")))
        .collect();
    for kind in world.running.server.registry.kinds().iter() {
        let name = format!("{}/{} {}", kind.group, kind.version, kind.kind);
        assert!(described.contains(&name), "{name} in v3");
        assert!(old_kinds.contains(&name), "{name} in v2");
    }
    // An unchanged document is not sent again.
    let document = admin.get("/openapi/v2").await;
    let etag = document.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(admin.header("if-none-match", &etag).get("/openapi/v2").await.code, 304);
}

#[tokio::test]
async fn health_version_and_metrics() {
    let world = World::new().await;
    let admin = world.admin();
    for path in ["/healthz", "/livez", "/readyz"] {
        let reply = admin.get(path).await;
        assert_eq!((reply.code, &reply.bytes[..]), (200, &b"ok"[..]), "{path}");
        let verbose = admin.get(&format!("{path}?verbose")).await;
        let said = String::from_utf8_lossy(&verbose.bytes).into_owned();
        assert!(said.contains("[+]ping ok\n") && said.ends_with(&format!("{} check passed\n", &path[1..])), "{said}");
    }
    assert_eq!(admin.get("/readyz/store").await.code, 200);
    assert_eq!(admin.get("/readyz/nothing").await.code, 404);
    let info = admin.get("/version").await.expect(200);
    for field in ["major", "minor", "gitVersion", "platform"] {
        assert!(!text(&info, &format!("/{field}")).is_empty(), "{field}: {info}");
    }
    admin.get(&format!("{PODS}/none")).await;
    let _held = admin.watch(&format!("{PODS}?watch=1")).await;
    let open = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
    let open = admin.header("accept", open).get("/metrics").await;
    assert_eq!(open.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(String::from_utf8_lossy(&open.bytes).ends_with("# EOF\n"));
    let metrics = admin.get("/metrics").await;
    assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let page = String::from_utf8_lossy(&metrics.bytes).into_owned();
    for part in [
        "# TYPE apiserver_request_total counter\n",
        "code=\"404\"",
        "resource=\"pods\"",
        "\nprocess_start_time_seconds ",
        "\nprocess_cpu_seconds_total ",
        "\nkubernetes_build_info{",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("# EOF"), "the text format has no end mark");
    world.running.server.set_ready(false);
    let reply = admin.get("/readyz").await;
    assert_eq!(reply.code, 500);
    assert!(String::from_utf8_lossy(&reply.bytes).contains("[-]serving failed"), "{reply:?}");
    assert_eq!(admin.get("/livez").await.code, 200);
}

#[tokio::test]
async fn a_typed_client_works_without_a_socket() {
    let world = World::new().await;
    let client = world.kube();
    let maps: KubeApi<ConfigMap> = KubeApi::default_namespaced(client.clone());
    let map: ConfigMap = serde_json::from_value(config_map("a")).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let patched = maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"x": "y"}}))).await.unwrap();
    assert_eq!(patched.data.unwrap()["x"], "y");
    assert_eq!(maps.list_metadata(&ListParams::default()).await.unwrap().items.len(), 2);
    assert!(maps.get_opt("none").await.unwrap().is_none());
    let sets: KubeApi<StatefulSet> = KubeApi::default_namespaced(client.clone());
    let set: StatefulSet = serde_json::from_value(stateful_set("s")).unwrap();
    sets.create(&PostParams::default(), &set).await.unwrap();
    let scaled =
        sets.patch_scale("s", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 4}}))).await.unwrap();
    assert_eq!(scaled.spec.unwrap().replicas, Some(4));
    let pods: KubeApi<Pod> = KubeApi::default_namespaced(client);
    let made: Pod = serde_json::from_value(scheduled("p")).unwrap();
    pods.create(&PostParams::default(), &made).await.unwrap();
    let left = pods.delete("p", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(left.metadata.deletion_timestamp.is_some());
    pods.evict("p", &Default::default()).await.unwrap();
    let gone =
        pods.delete("p", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await.unwrap();
    assert!(gone.left().is_some());
    assert!(pods.get_opt("p").await.unwrap().is_none());
}

/// The server can read every selectable field from stored objects.
#[tokio::test]
async fn selectable_fields_are_accepted() {
    let world = World::new().await;
    let admin = world.admin();
    for kind in world.running.server.registry.kinds().iter().filter(|kind| kind.stored) {
        for field in kind.rules.selectable_fields() {
            let path = format!("{}/{}?fieldSelector={field}%3Dnothing", root(kind), kind.plural);
            let list: Value = admin.get(&path).await.expect(200);
            assert!(names(&list).is_empty(), "{path}");
        }
    }
}
