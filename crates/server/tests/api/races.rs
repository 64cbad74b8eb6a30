//! Concurrent requests: in any order, no write is lost and nothing is counted twice.

use crate::support::*;
use futures::future::join_all;
use object::quantity::Quantity;
use serde_json::{Value, json};

#[tokio::test]
async fn appliers_who_meet_all_get_their_fields() {
    let world = World::contended().await;
    let admin = world.admin();
    for round in 0..10 {
        let path = format!("{CONFIG_MAPS}/shared-{round}");
        let applied = join_all((0..12).map(|who| {
            let (admin, path) = (admin.clone(), path.clone());
            tokio::spawn(async move {
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("shared-{round}")},
                    "data": {format!("key-{who}"): "mine"}});
                admin.apply(&path, &format!("manager-{who}"), &body).await
            })
        }))
        .await;
        let codes: Vec<u16> = applied.into_iter().map(|reply| reply.unwrap().code).collect();
        assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1, "{codes:?}");
        assert_eq!(codes.iter().filter(|code| **code == 200).count(), 11, "{codes:?}");
        let object = admin.get(&path).await.expect(200);
        assert_eq!(object["data"].as_object().unwrap().len(), 12);
        assert_eq!(object["metadata"]["managedFields"].as_array().unwrap().len(), 12);
    }
}

#[tokio::test]
async fn a_quota_stays_true_whatever_happens() {
    let world = World::contended().await;
    let admin = world.admin();
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "9", "requests.cpu": "3", "count/configmaps": "12",
        "persistentvolumeclaims": "6", "requests.storage": "20Gi"}}});
    admin.post("/api/v1/namespaces/default/resourcequotas", &quota).await.expect(201);
    join_all((0..6).map(|worker: usize| {
        let admin = admin.clone();
        tokio::spawn(async move {
            for step in 0..40 {
                let name = format!("n-{}", (step * 5 + worker) % 8);
                let mut pod = scheduled(&name);
                pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "400m"}});
                match (step + worker * 3) % 9 {
                    0 | 1 => drop(admin.post(PODS, &pod).await),
                    2 => drop(admin.delete(&format!("{PODS}/{name}?gracePeriodSeconds=0")).await),
                    3 => drop(
                        admin
                            .patch(&format!("{PODS}/{name}/status"), MERGE, &json!({"status": {"phase": "Succeeded"}}))
                            .await,
                    ),
                    4 => drop(admin.post(CONFIG_MAPS, &config_map(&name)).await),
                    5 => drop(admin.delete(&format!("{CONFIG_MAPS}?limit=2")).await),
                    6 => drop(admin.post(CLAIMS, &claim(&name, "", "3Gi")).await),
                    7 => drop(admin.delete(&format!("{CLAIMS}/{name}")).await),
                    _ => drop(
                        admin
                            .patch(&format!("{CLAIMS}/{name}"), MERGE, &json!({"metadata": {"finalizers": null}}))
                            .await,
                    ),
                }
            }
        })
    }))
    .await
    .into_iter()
    .for_each(|worker| worker.unwrap());
    let items = |list: Value| list["items"].as_array().unwrap().clone();
    let running =
        items(admin.get(PODS).await.expect(200)).iter().filter(|pod| pod["status"]["phase"] != "Succeeded").count();
    let maps = items(admin.get(CONFIG_MAPS).await.expect(200)).len();
    let claims = items(admin.get(CLAIMS).await.expect(200)).len();
    let used = admin.get("/api/v1/namespaces/default/resourcequotas/q").await.expect(200)["status"]["used"].clone();
    let count = |what: &str| Quantity::of(&used[what].clone().into()).unwrap();
    let number = |text: String| Quantity::of(&json!(text).into()).unwrap();
    assert_eq!(count("pods"), number(running.to_string()), "{used}");
    assert_eq!(count("requests.cpu"), number(format!("{}m", running * 400)), "{used}");
    assert_eq!(count("count/configmaps"), number(maps.to_string()), "{used}");
    assert_eq!(count("persistentvolumeclaims"), number(claims.to_string()), "{used}");
    assert_eq!(count("requests.storage"), number(format!("{}Gi", claims * 3)), "{used}");
    assert!(running <= 7 && claims <= 6 && maps <= 12, "{used}");
}

#[tokio::test]
async fn nothing_is_created_in_a_terminating_namespace() {
    let world = World::contended().await;
    let admin = world.admin();
    for round in 0..10 {
        let name = format!("ns-{round}");
        world.namespace(&name).await;
        let path = format!("/api/v1/namespaces/{name}");
        let writers = join_all((0..8).map(|at| {
            let (admin, path) = (admin.clone(), path.clone());
            tokio::spawn(async move {
                admin.post(&format!("{path}/secrets"), &json!({"metadata": {"name": format!("s-{at}")}})).await.code
            })
        }));
        let ending = async {
            admin.delete(&path).await.expect(200);
            // After the namespace starts to terminate, its content only decreases.
            admin.get(&format!("{path}/secrets")).await.expect(200)
        };
        let (codes, seen) = tokio::join!(writers, ending);
        let created = codes.into_iter().filter(|code| *code.as_ref().unwrap() == 201).count();
        let now = admin.get(&format!("{path}/secrets")).await.expect(200);
        assert_eq!(names(&now).len(), created);
        assert_eq!(names(&now), names(&seen), "created after the namespace was marked");
    }
}

#[tokio::test]
async fn nothing_is_created_for_a_terminating_definition() {
    let world = World::contended().await;
    let admin = world.admin();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({"metadata": {"name": "things.x.io"}, "spec": {"group": "x.io", "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    for _ in 0..10 {
        let made = admin.post(definitions, &definition).await.expect(201);
        let mut watching = admin.watch(&format!("{definitions}?watch=1&resourceVersion={}", version(&made))).await;
        let writers = join_all((0..8).map(|at| {
            let admin = admin.clone();
            let thing = json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": format!("t-{at}")}});
            tokio::spawn(async move { admin.post("/apis/x.io/v1/things", &thing).await })
        }));
        let path = format!("{definitions}/things.x.io");
        let (created, marked) = tokio::join!(writers, admin.delete(&path));
        let marked = version(&marked.expect(200));
        for reply in created.into_iter().map(Result::unwrap) {
            match reply.code {
                201 => assert!(version(&reply.body) < marked, "created after its definition was marked"),
                code => assert!(matches!(code, 404 | 405), "{}", reply.body),
            }
        }
        while watching.next().await["type"] != "DELETED" {}
        assert_eq!(world.store.count("/x.io/things/"), 0);
    }
}

#[tokio::test]
async fn a_name_is_accepted_for_one_definition_only() {
    let world = World::contended().await;
    let admin = world.admin();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = |plural: &str, kind: &str| {
        json!({"metadata": {"name": format!("{plural}.x.io")}, "spec": {"group": "x.io", "scope": "Cluster",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
    };
    let made = join_all((0..6).map(|at| {
        let (admin, body) = (admin.clone(), definition(&format!("things-{at}"), "Thing"));
        tokio::spawn(async move { admin.post(definitions, &body).await.expect(201) })
    }));
    let named = made.await.into_iter().filter(|made| {
        let made = made.as_ref().unwrap();
        made["status"]["acceptedNames"]["kind"] == "Thing"
    });
    assert_eq!(named.count(), 1);
    // The same when definitions are changed.
    for at in 0..6 {
        admin.post(definitions, &definition(&format!("others-{at}"), &format!("Other{at}"))).await.expect(201);
    }
    let changed = join_all((0..6).map(|at| {
        let (admin, path) = (admin.clone(), format!("{definitions}/others-{at}.x.io"));
        let patch = json!({"spec": {"names": {"shortNames": ["o"]}}});
        tokio::spawn(async move { admin.patch(&path, MERGE, &patch).await.expect(200) })
    }));
    let named = changed.await.into_iter().filter(|changed| {
        let changed = changed.as_ref().unwrap();
        changed["status"]["acceptedNames"]["shortNames"] == json!(["o"])
    });
    assert_eq!(named.count(), 1);
}

#[tokio::test]
async fn finalizers_that_leave_at_once_remove_the_object_once() {
    let world = World::contended().await;
    let admin = world.admin();
    let finalizers: Vec<String> = (0..8).map(|at| format!("x.io/f-{at}")).collect();
    let mut object = config_map("held");
    object["metadata"]["finalizers"] = json!(finalizers);
    admin.post(CONFIG_MAPS, &object).await.expect(201);
    let path = format!("{CONFIG_MAPS}/held");
    let marked = admin.delete(&path).await.expect(200);
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&marked))).await;
    let left = join_all(finalizers.into_iter().map(|finalizer| {
        let (admin, path) = (admin.clone(), path.clone());
        tokio::spawn(async move {
            admin
                .patch(&path, STRATEGIC, &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [finalizer]}}))
                .await
                .code
        })
    }))
    .await;
    assert!(left.into_iter().all(|code| code.unwrap() == 200));
    admin.get(&path).await.refused(404, "NotFound");
    for _ in 0..7 {
        assert_eq!(watching.next().await["type"], "MODIFIED");
    }
    assert_eq!(watching.next().await["type"], "DELETED");
    watching.quiet().await;
}
