//! Admission: quotas, limits, storage rules, service accounts, service addresses.

use crate::support::*;
use futures::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn quota(admin: &Api, hard: Value) {
    admin.post(QUOTAS, &json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await.expect(201);
}

async fn used(admin: &Api, what: &str) -> String {
    let quota = admin.get(&format!("{QUOTAS}/q")).await.expect(200);
    quota["status"]["used"][what].as_str().unwrap_or_default().to_owned()
}

async fn class(admin: &Api, name: &str, extra: Value) {
    let mut class = json!({"metadata": {"name": name}, "provisioner": "x.io/disk"});
    for (key, value) in extra.as_object().unwrap() {
        class[key] = value.clone();
    }
    admin.post(CLASSES, &class).await.expect(201);
}

#[tokio::test]
async fn quotas_are_exact_under_concurrency() {
    let world = World::contended().await;
    let admin = world.admin();
    quota(
        &admin,
        json!({"count/secrets": "7", "persistentvolumeclaims": "20", "requests.storage": "10Gi",
        "gold.storageclass.storage.k8s.io/requests.storage": "4Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "3"}),
    )
    .await;
    let count = |codes: &[u16], code: u16| codes.iter().filter(|is| **is == code).count();

    let secrets = (0..50).map(|at| {
        let admin = admin.clone();
        tokio::spawn(async move {
            admin
                .post("/api/v1/namespaces/default/secrets", &json!({"metadata": {"name": format!("s-{at}")}}))
                .await
                .code
        })
    });
    let codes: Vec<u16> = join_all(secrets).await.into_iter().map(Result::unwrap).collect();
    assert_eq!((count(&codes, 201), count(&codes, 403)), (7, 43), "{codes:?}");
    assert_eq!(used(&admin, "count/secrets").await, "7");

    // Claims of 2Gi: two of class gold fit into 4Gi (its count would allow three), then three more into 10Gi.
    let claims = |class: &'static str| {
        let admin = admin.clone();
        async move {
            let made = (0..25).map(|at| {
                let admin = admin.clone();
                tokio::spawn(
                    async move { admin.post(CLAIMS, &claim(&format!("{class}-{at}"), class, "2Gi")).await.code },
                )
            });
            join_all(made).await.into_iter().map(Result::unwrap).collect::<Vec<u16>>()
        }
    };
    let codes = claims("gold").await;
    assert_eq!((count(&codes, 201), count(&codes, 403)), (2, 23), "{codes:?}");
    let codes = claims("iron").await;
    assert_eq!((count(&codes, 201), count(&codes, 403)), (3, 22), "{codes:?}");
    assert_eq!(used(&admin, "requests.storage").await, "10Gi");
    assert_eq!(used(&admin, "persistentvolumeclaims").await, "5");
    assert_eq!(used(&admin, "gold.storageclass.storage.k8s.io/requests.storage").await, "4Gi");
    assert_eq!(used(&admin, "gold.storageclass.storage.k8s.io/persistentvolumeclaims").await, "2");

    // A delete releases usage at once if the claim has no finalizer.
    let first = names(&admin.get(CLAIMS).await.expect(200))[0].clone();
    let path = format!("{CLAIMS}/{first}");
    let deleted = admin.delete(&path).await.expect(200);
    assert_eq!(
        deleted["metadata"]["finalizers"],
        json!(["kubernetes.io/pvc-protection"]),
        "V1: the claim is protected"
    );
    assert_eq!(used(&admin, "requests.storage").await, "10Gi", "a terminating claim still has its storage");
    admin.patch(&path, MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    assert_eq!(used(&admin, "requests.storage").await, "8Gi");
    assert_eq!(used(&admin, "persistentvolumeclaims").await, "4");
}

#[tokio::test]
async fn a_full_quota_says_what_is_asked_used_and_limited() {
    let world = World::new().await;
    let admin = world.admin();
    quota(&admin, json!({"pods": "1", "requests.cpu": "1", "count/configmaps": "3"})).await;
    let said = admin.post(PODS, &pod("a")).await.refused(403, "Forbidden");
    assert_eq!(said, "pods \"a\" is forbidden: failed quota: q: must specify requests.cpu for: main");
    let mut asking = pod("a");
    asking["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "600m"}});
    admin.post(PODS, &asking).await.expect(201);
    asking["metadata"]["name"] = json!("b");
    let said = admin.post(PODS, &asking).await.refused(403, "Forbidden");
    assert_eq!(
        said,
        "pods \"b\" is forbidden: exceeded quota: q, requested: pods=1,requests.cpu=600m, used: pods=1,requests.cpu=600m, \
        limited: pods=1,requests.cpu=1"
    );
    // A dry run checks the quota without charging it; generated names and dry runs release nothing.
    for _ in 0..5 {
        admin.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("c")).await.expect(201);
    }
    assert_eq!(used(&admin, "count/configmaps").await, "1", "the one that every namespace has");
    // Evictions, deletes and finished pods release usage.
    admin.patch(&format!("{PODS}/a/status"), MERGE, &json!({"status": {"phase": "Succeeded"}})).await.expect(200);
    assert_eq!(used(&admin, "pods").await, "0");
    admin.post(PODS, &asking).await.expect(201);
    admin.delete(&format!("{PODS}/b?gracePeriodSeconds=0")).await.expect(200);
    assert_eq!((used(&admin, "pods").await.as_str(), used(&admin, "requests.cpu").await.as_str()), ("0", "0"));
}

#[tokio::test]
async fn limit_ranges_fill_in_and_refuse() {
    let world = World::new().await;
    let admin = world.admin();
    let ranges = "/api/v1/namespaces/default/limitranges";
    let limits = json!([
        {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"}, "min": {"cpu": "50m"}},
        {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "5Gi"}},
    ]);
    admin.post(ranges, &json!({"metadata": {"name": "l"}, "spec": {"limits": limits}})).await.expect(201);
    let made = admin.post(PODS, &pod("a")).await.expect(201);
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})
    );
    let mut greedy = pod("b");
    greedy["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "2"}});
    let said = admin.post(PODS, &greedy).await.refused(403, "Forbidden");
    assert_eq!(said, "pods \"b\" is forbidden: maximum cpu usage per Container is 1, but limit is 2");
    let said = admin.post(CLAIMS, &claim("c", "", "6Gi")).await.refused(403, "Forbidden");
    assert_eq!(
        said,
        "persistentvolumeclaims \"c\" is forbidden: maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 6Gi"
    );
    let said = admin.post(CLAIMS, &claim("c", "", "1Mi")).await.refused(403, "Forbidden");
    assert_eq!(
        said,
        "persistentvolumeclaims \"c\" is forbidden: minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"
    );
}

#[tokio::test]
async fn v1_claims_and_volumes_are_protected_from_their_first_moment() {
    let world = World::new().await;
    let admin = world.admin();
    let made = admin.post(CLAIMS, &claim("c", "", "1Gi")).await.expect(201);
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    assert_eq!(made["status"]["phase"], "Pending");
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/tmp/v"}}});
    let made = admin.post("/api/v1/persistentvolumes", &volume).await.expect(201);
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    // Also by apply and with generated names. An existing finalizer is not added twice.
    let applied = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "d"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let made = admin.apply(&format!("{CLAIMS}/d"), "me", &applied).await.expect(201);
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let mut generated = claim("", "", "1Gi");
    generated["metadata"] = json!({"generateName": "g-", "finalizers": ["kubernetes.io/pvc-protection", "x.io/own"]});
    let made = admin.post(CLAIMS, &generated).await.expect(201);
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection", "x.io/own"]));
}

/// C1 of the volumes' scenarios.
#[tokio::test]
async fn claims_get_the_newest_default_class() {
    let world = World::new().await;
    let admin = world.admin();
    let unset = json!({"metadata": {"name": "none"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    assert!(admin.post(CLAIMS, &unset).await.expect(201)["spec"].get("storageClassName").is_none());
    let default = |name: &str| json!({"metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
    class(&admin, "older", default("older")).await;
    world.clock.advance(10);
    class(&admin, "newer", default("newer")).await;
    let ask = |name: &str| {
        let mut claim = unset.clone();
        claim["metadata"]["name"] = json!(name);
        claim
    };
    assert_eq!(admin.post(CLAIMS, &ask("a")).await.expect(201)["spec"]["storageClassName"], "newer");
    assert_eq!(
        admin.post(CLAIMS, &claim("b", "", "1Gi")).await.expect(201)["spec"]["storageClassName"],
        "",
        "an empty class is a choice"
    );
    assert_eq!(admin.post(CLAIMS, &claim("c", "other", "1Gi")).await.expect(201)["spec"]["storageClassName"], "other");
    // A claim without a class may get one later, once.
    let path = format!("{CLAIMS}/none");
    admin.patch(&path, MERGE, &json!({"spec": {"storageClassName": "newer"}})).await.expect(200);
    admin.patch(&path, MERGE, &json!({"spec": {"storageClassName": "older"}})).await.refused(422, "Invalid");
}

/// I3 and I4 of the volumes' scenarios.
#[tokio::test]
async fn only_bound_claims_of_a_class_that_allows_it_grow() {
    let world = World::new().await;
    let admin = world.admin();
    class(&admin, "fixed", json!({})).await;
    class(&admin, "grows", json!({"allowVolumeExpansion": true})).await;
    let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    for (name, class) in [("f", "fixed"), ("g", "grows"), ("n", "nowhere")] {
        admin.post(CLAIMS, &claim(name, class, "2Gi")).await.expect(201);
        admin
            .patch(&format!("{CLAIMS}/{name}"), MERGE, &json!({"spec": {"volumeName": format!("v-{name}")}}))
            .await
            .expect(200);
    }
    let pending = admin.patch(&format!("{CLAIMS}/g"), MERGE, &size("3Gi")).await;
    assert!(matches!(pending.code, 403 | 422), "a claim that is not bound: {}", pending.body);
    for name in ["f", "g", "n"] {
        let bound =
            json!({"status": {"phase": "Bound", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"]}});
        admin.patch(&format!("{CLAIMS}/{name}/status"), MERGE, &bound).await.expect(200);
    }
    for name in ["f", "n"] {
        let said = admin.patch(&format!("{CLAIMS}/{name}"), MERGE, &size("3Gi")).await.refused(403, "Forbidden");
        assert_eq!(
            said,
            format!(
                "persistentvolumeclaims \"{name}\" is forbidden: only dynamically provisioned pvc can be resized and \
            the storageclass that provisions the pvc must support resize"
            )
        );
    }
    let grown = admin.patch(&format!("{CLAIMS}/g"), MERGE, &size("3Gi")).await.expect(200);
    assert_eq!(grown["spec"]["resources"]["requests"]["storage"], "3Gi");
    assert_eq!(grown["status"]["capacity"]["storage"], "2Gi");
    // Reducing to the current size is allowed, below it is not.
    admin.patch(&format!("{CLAIMS}/g"), MERGE, &size("1Gi")).await.refused(422, "Invalid");
    admin
        .patch(&format!("{CLAIMS}/g"), MERGE, &json!({"spec": {"accessModes": ["ReadWriteMany"]}}))
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn pods_run_as_an_account_and_get_its_token() {
    let world = World::new().await;
    let admin = world.admin();
    let made = admin.post(PODS, &pod("a")).await.expect(201);
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    let mounts = &made["spec"]["containers"][0]["volumeMounts"];
    assert_eq!(mounts[0]["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    let sources = &made["spec"]["volumes"][0]["projected"]["sources"];
    assert_eq!(sources[0]["serviceAccountToken"]["path"], "token");
    assert_eq!(mounts[0]["name"], made["spec"]["volumes"][0]["name"]);
    let mut without = pod("b");
    without["spec"]["automountServiceAccountToken"] = json!(false);
    assert!(admin.post(PODS, &without).await.expect(201)["spec"].get("volumes").is_none());
    let mut absent = pod("c");
    absent["spec"]["serviceAccountName"] = json!("nobody");
    let said = admin.post(PODS, &absent).await.refused(403, "Forbidden");
    assert_eq!(
        said,
        "pods \"c\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found"
    );
}

#[tokio::test]
async fn service_addresses_are_unique_and_come_back() {
    let world = World::contended().await;
    let admin = world.admin();
    let made = join_all((0..60).map(|at| {
        let admin = admin.clone();
        tokio::spawn(async move {
            let service = json!({"metadata": {"name": format!("s-{at}")}, "spec": {"ports": [{"port": 80}]}});
            text(&admin.post(SERVICES, &service).await.expect(201), "/spec/clusterIP")
        })
    }))
    .await;
    let addresses: BTreeSet<String> = made.into_iter().map(Result::unwrap).collect();
    assert_eq!(addresses.len(), 60);
    assert!(addresses.iter().all(|address| address.starts_with("10.96.")), "{addresses:?}");
    let taken = addresses.first().unwrap().clone();
    let ask = json!({"metadata": {"name": "same"}, "spec": {"clusterIP": taken, "ports": [{"port": 80}]}});
    let said = admin.post(SERVICES, &ask).await.refused(422, "Invalid");
    assert!(said.contains("failed to allocate IP") && said.contains("provided IP is already allocated"), "{said}");
    let holder = admin.get(SERVICES).await.expect(200);
    let holder = holder["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|service| service["spec"]["clusterIP"] == *taken)
        .unwrap()
        .clone();
    admin.delete(&format!("{SERVICES}/{}", text(&holder, "/metadata/name"))).await.expect(200);
    assert_eq!(admin.post(SERVICES, &ask).await.expect(201)["spec"]["clusterIP"], *taken);
    let headless = json!({"metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
    assert_eq!(admin.post(SERVICES, &headless).await.expect(201)["spec"]["clusterIP"], "None");
    let outside =
        json!({"metadata": {"name": "outside"}, "spec": {"clusterIP": "192.168.1.1", "ports": [{"port": 80}]}});
    admin.post(SERVICES, &outside).await.refused(422, "Invalid");
    // An update may omit the address, and must not change it.
    let path = format!("{SERVICES}/same");
    let update = json!({"metadata": {"name": "same"}, "spec": {"ports": [{"port": 81}]}});
    assert_eq!(admin.put(&path, &update).await.expect(200)["spec"]["clusterIP"], *taken);
    admin.patch(&path, MERGE, &json!({"spec": {"clusterIP": "10.96.200.200"}})).await.refused(422, "Invalid");
}

#[tokio::test]
async fn admission_happens_before_the_quota_is_charged() {
    let world = World::new().await;
    let admin = world.admin();
    quota(&admin, json!({"count/configmaps": "3"})).await;
    assert_eq!(used(&admin, "count/configmaps").await, "1", "what was there before counts");
    admin.post(CONFIG_MAPS, &json!({"metadata": {"name": "Bad Name"}})).await.refused(422, "Invalid");
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    admin.post(CONFIG_MAPS, &config_map("a")).await.refused(409, "AlreadyExists");
    assert_eq!(used(&admin, "count/configmaps").await, "2");
    admin.delete(CONFIG_MAPS).await.expect(200);
    assert_eq!(used(&admin, "count/configmaps").await, "0");
}

async fn until_status(api: &Api, path: &str, status: &Value) -> Value {
    let mut watching = api.watch(&format!("{QUOTAS}?watch=1")).await;
    loop {
        let event = watching.next().await;
        if path.ends_with(event["object"]["metadata"]["name"].as_str().unwrap()) && event["object"]["status"] == *status
        {
            return event["object"].clone();
        }
    }
}

/// A client that changes a quota's status sees its change, and then the correct status again.
#[tokio::test]
async fn a_quota_status_changed_by_a_client_is_corrected() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let path = format!("{QUOTAS}/q");
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "4", "pods": "2"}}});
    let made = admin.post(QUOTAS, &quota).await.expect(201);
    let truth = made["status"].clone();
    for (method, changed) in [
        (
            "PUT",
            json!({"hard": {"count/configmaps": "9", "pods": "2"}, "used": {"count/configmaps": "0", "pods": "0"}}),
        ),
        ("PATCH", json!({"hard": {"count/configmaps": "9"}, "used": {"count/configmaps": "3", "pods": "2"}})),
        ("PATCH", json!(null)),
    ] {
        let answer = match method {
            "PUT" => {
                let mut quota = admin.get(&path).await.expect(200);
                quota["status"] = changed.clone();
                admin.put(&format!("{path}/status"), &quota).await.expect(200)
            }
            _ => admin.patch(&format!("{path}/status"), MERGE, &json!({"status": changed})).await.expect(200),
        };
        assert_ne!(answer["status"], truth, "{method}");
        let corrected = until_status(&admin, &path, &truth).await;
        assert_eq!(corrected["spec"], quota["spec"]);
    }
    // The enforced limits are those of the spec.
    for name in ["b", "c"] {
        admin.post(CONFIG_MAPS, &config_map(name)).await.expect(201);
    }
    assert!(admin.post(CONFIG_MAPS, &config_map("d")).await.refused(403, "Forbidden").contains("exceeded quota"));
}

/// Wrong usage in the store is counted again when a server starts, and then every five minutes.
#[tokio::test(start_paused = true)]
async fn usage_that_is_wrong_in_the_store_is_counted_again() {
    let world = World::new().await;
    let admin = world.admin();
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "3"}}});
    admin.post(QUOTAS, &quota).await.expect(201);
    // Settled by a counted write.
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let truth = admin.get(&format!("{QUOTAS}/q")).await.expect(200)["status"].clone();
    let key = "/core/resourcequotas/default/q";
    let spoil = async || {
        let record = world.store.get(key).unwrap();
        let text = String::from_utf8(record.value.to_vec()).unwrap();
        let (from, to) = ("\"used\":{\"configmaps\":\"2\"}", "\"used\":{\"configmaps\":\"3\"}");
        assert!(text.contains(from), "{text}");
        let object: object::Value = serde_json::from_str(&text.replace(from, to)).unwrap();
        let put = store::Operation::Put {
            key: key.into(),
            value: server::codec::encode(&object),
            expires_at_s: None,
            memo: None,
        };
        world.store.txn(store::Txn { conditions: vec![], operations: vec![put] }).await.unwrap();
    };
    spoil().await;
    admin.post(CONFIG_MAPS, &config_map("b")).await.refused(403, "Forbidden");
    until_status(&admin, &format!("{QUOTAS}/q"), &truth).await;
    admin.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    admin.delete(&format!("{CONFIG_MAPS}/b")).await.expect(200);
    spoil().await;
    let again = World::with(world.store.clone(), identity()).await;
    let begun = tokio::time::Instant::now();
    until_status(&again.admin(), &format!("{QUOTAS}/q"), &truth).await;
    assert!(begun.elapsed().as_secs() < 60, "at the start");
}
