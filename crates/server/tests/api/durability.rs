//! Effects of time and of restarts.

use crate::support::*;
use serde_json::{Value, json};
use server::authn::identity_store;
use store::{Embedded, Options};

#[tokio::test]
async fn events_expire_after_an_hour() {
    let world = World::new().await;
    let admin = world.admin();
    let path = "/api/v1/namespaces/default/events";
    let event = |name: &str| {
        json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "R", "message": "m", "type": "Normal", "source": {"component": "c"}})
    };
    let mut watching = admin.watch(&format!("{path}?watch=1")).await;
    admin.post(path, &event("old")).await.expect(201);
    admin.post(path, &event("renewed")).await.expect(201);
    admin.post(CONFIG_MAPS, &config_map("stays")).await.expect(201);
    world.clock.advance(1800);
    admin.post(path, &event("young")).await.expect(201);
    // A repeated event gets a new expiry time.
    admin.patch(&format!("{path}/renewed"), MERGE, &json!({"count": 2})).await.expect(200);
    world.clock.advance(1801);
    assert_eq!(world.store.expire(world.clock.now_s()).await.unwrap(), 1);
    assert_eq!(names(&admin.get(path).await.expect(200)), ["renewed", "young"]);
    for word in ["ADDED old", "ADDED renewed", "ADDED young", "MODIFIED renewed", "DELETED old"] {
        assert_eq!(watching.word().await, word);
    }
    world.clock.advance(3600);
    assert_eq!(world.store.expire(world.clock.now_s()).await.unwrap(), 2);
    assert!(names(&admin.get(path).await.expect(200)).is_empty());
    assert_eq!(names(&admin.get(CONFIG_MAPS).await.expect(200)), ["stays"]);
    assert!(admin.get("/api/v1/namespaces/default").await.code == 200);
}

#[tokio::test(start_paused = true)]
async fn housekeeping_expires_and_compacts_by_itself() {
    let world = World::new().await;
    let admin = world.admin();
    let first = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    admin.patch(&format!("{CONFIG_MAPS}/a"), MERGE, &json!({"data": {"x": "y"}})).await.expect(200);
    let oldest = world.store.oldest();
    for _ in 0..3 {
        tokio::time::sleep(std::time::Duration::from_secs(301)).await;
    }
    assert!(world.store.oldest() > oldest);
    let old = format!("{CONFIG_MAPS}?resourceVersion={}&resourceVersionMatch=Exact", version(&first));
    admin.get(&old).await.refused(410, "Expired");
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "source": {"component": "c"}});
    admin.post("/api/v1/namespaces/default/events", &event).await.expect(201);
    world.clock.advance(3601);
    tokio::time::sleep(std::time::Duration::from_secs(11)).await;
    assert!(names(&admin.get("/api/v1/namespaces/default/events").await.expect(200)).is_empty());
}

#[tokio::test]
async fn a_restart_keeps_everything() {
    let directory = tempfile::tempdir().unwrap();
    let open = async || {
        let store = Embedded::open(&directory.path().join("store"), server::codec::finish, Options::default()).unwrap();
        let now = jiff::Timestamp::from_second(START_S).unwrap();
        let identity = identity_store::identity(&*store, None, &["localhost".to_owned()], now).await.unwrap();
        (store, identity)
    };
    let snapshot =
        |lists: Vec<Value>| -> Vec<Value> { lists.into_iter().map(|mut list| list["items"].take()).collect() };
    let everything = |admin: Api, world: &World| {
        let paths: Vec<String> = world
            .running
            .server
            .registry
            .kinds()
            .iter()
            .filter(|kind| kind.stored)
            .map(|kind| {
                if kind.group.is_empty() {
                    format!("/api/{}/{}", kind.version, kind.plural)
                } else {
                    format!("/apis/{}/{}/{}", kind.group, kind.version, kind.plural)
                }
            })
            .collect();
        async move {
            let mut lists = Vec::new();
            for path in paths {
                lists.push(admin.get(&path).await.expect(200));
            }
            lists
        }
    };

    let (store, identity) = open().await;
    let ca = identity.ca.certificate_pem.clone();
    let world = World::with(store, identity).await;
    let admin = world.admin();
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    admin.post(PODS, &scheduled("p")).await.expect(201);
    admin.delete(&format!("{PODS}/p")).await.expect(200);
    admin.post(SETS, &stateful_set("s")).await.expect(201);
    admin
        .post(
            "/api/v1/namespaces/default/services",
            &json!({"metadata": {"name": "svc"}, "spec": {"ports": [{"port": 80}]}}),
        )
        .await
        .expect(201);
    let definition = json!({"metadata": {"name": "things.x.io"}, "spec": {"group": "x.io", "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    admin
        .post("/apis/x.io/v1/things", &json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "t"}}))
        .await
        .expect(201);
    let token_request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"});
    let token =
        admin.post("/api/v1/namespaces/default/serviceaccounts/default/token", &token_request).await.expect(201);
    let token = text(&token, "/status/token");
    let before = snapshot(everything(admin, &world).await);
    let revision = world.store.revision();
    world.running.stop().await;

    let (store, identity) = open().await;
    assert_eq!(identity.ca.certificate_pem, ca, "the same CA");
    assert_eq!(store.revision(), revision, "a restart is no write");
    let world = World::with(store, identity).await;
    let admin = world.admin();
    assert_eq!(world.store.revision(), revision, "and neither is the bootstrap of what is there");
    let after = snapshot(everything(admin.clone(), &world).await);
    assert_eq!(after, before);
    let made = admin.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    assert_eq!(version(&made), revision + 1, "revisions go on");
    let outside = world.outside().header("authorization", &format!("Bearer {token}"));
    assert_eq!(outside.get("/api").await.code, 200, "tokens stay valid");
    // A watch from before the start gets 410.
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=2")).await;
    assert_eq!(watching.next().await["object"]["code"], 410);
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={revision}")).await;
    assert_eq!(watching.word().await, "ADDED b");
    world.running.stop().await;
}

#[tokio::test]
async fn a_stopped_server_ends_its_watches() {
    let world = World::new().await;
    let admin = world.admin();
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", world.store.revision())).await;
    world.running.stop().await;
    assert_eq!(watching.maybe().await, None);
    let refused = admin.post(CONFIG_MAPS, &config_map("a")).await;
    assert_eq!(refused.code, 503, "{}", refused.body);
}
