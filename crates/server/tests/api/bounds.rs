//! Small requests that cause much work or large responses: their cost is limited.

use crate::support::*;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};
use server::limits::Permit;

/// Limit of the size of every refusal.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

#[tokio::test]
async fn many_controllers_are_told_of_once() {
    let world = World::new().await;
    let owner = |at: usize| {
        let name = format!("owner-{at}");
        json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": at.to_string(), "controller": true})
    };
    let owners: Vec<Value> = (0..5000).map(owner).collect();
    let path = format!("{CONFIG_MAPS}?dryRun=All");
    let object = json!({"metadata": {"name": "a", "ownerReferences": owners}});
    let reply = world.admin().post(&path, &object).await;
    assert!(reply.bytes.len() < REFUSAL_BYTES_MAX, "{}", reply.bytes.len());
    let said = reply.refused(422, "Invalid");
    assert!(said.ends_with("Found \"true\" in references for Pod/owner-0 and Pod/owner-1"), "{said}");

    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}, "scopes": vec!["None"; 5000]}});
    let reply = world.admin().post("/api/v1/namespaces/default/resourcequotas", &quota).await;
    assert!(reply.bytes.len() < REFUSAL_BYTES_MAX, "{}", reply.bytes.len());
    assert!(reply.refused(422, "Invalid").ends_with("unsupported scope"));
}

#[tokio::test]
async fn of_many_errors_the_first_are_reported_and_the_rest_counted() {
    let world = World::new().await;
    let labels: Map<String, Value> = (0..200_000).map(|at| (format!("_{at:06}"), json!(""))).collect();
    let reply = world.admin().post(CONFIG_MAPS, &json!({"metadata": {"name": "a", "labels": labels}})).await;
    assert!(reply.bytes.len() < REFUSAL_BYTES_MAX * 2, "{}", reply.bytes.len());
    assert_eq!(reply.body["details"]["causes"].as_array().unwrap().len(), 100);
    let said = reply.refused(422, "Invalid");
    assert!(said.contains("Invalid value: \"_000000\"") && said.ends_with(", and 199900 more]"), "{said}");
}

/// A rule allows all combinations of its words, and each one was compared with all rules of the author.
#[tokio::test]
async fn a_role_with_very_many_permissions_is_refused_to_users_without_all_of_them() {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let world = World::new().await;
    let binding = |kind: &str, user: &str, role: &str| {
        json!({"kind": kind, "metadata": {"name": user}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": role}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]})
    };
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    world.admin().post(&bindings, &binding("RoleBinding", "kim", "admin")).await.expect(201);
    let everywhere = binding("ClusterRoleBinding", "root", "cluster-admin");
    world.admin().post(&format!("{RBAC}/clusterrolebindings"), &everywhere).await.expect(201);
    let cube = |count: usize| {
        let words: Vec<String> = (0..count).map(|at| format!("w{at}")).collect();
        json!({"metadata": {"name": "cube"}, "rules": [{"verbs": words, "apiGroups": words, "resources": words}]})
    };
    let kim = world.as_user("kim", &[]);
    for count in [40, 400] {
        let reply = kim.post(&roles, &cube(count)).await;
        assert!(reply.bytes.len() < REFUSAL_BYTES_MAX, "{}", reply.bytes.len());
        let said = reply.refused(403, "Forbidden");
        assert!(
            said.contains("is attempting to grant RBAC permissions not currently held") && said.ends_with("\nand more")
        );
    }
    // Two long lists are compared word by word, even if one contains all of the other.
    let named = |name: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|at| format!("n{at}")).collect();
        json!({"metadata": {"name": name}, "rules": [{"verbs": ["use"], "apiGroups": ["a.b"], "resources": ["c"], "resourceNames": names}]})
    };
    world.admin().post(&roles, &named("held", 30_000)).await.expect(201);
    let mut held = binding("RoleBinding", "kim", "held");
    (held["metadata"]["name"], held["roleRef"]["kind"]) = (json!("held"), json!("Role"));
    world.admin().post(&bindings, &held).await.expect(201);
    kim.post(&roles, &named("some", 1000)).await.expect(201);
    let said = kim.post(&roles, &named("same", 30_000)).await.refused(403, "Forbidden");
    assert!(said.contains("the rules name too many verbs, groups, resources and names"), "{said}");
    // A user with all permissions can still write it.
    let root = world.as_user("root", &[]);
    root.post(&roles, &cube(400)).await.expect(201);
    root.post(&roles, &named("same", 30_000)).await.expect(201);
}

/// The path of a field contains all parent names, and a name can be as long as a body.
#[tokio::test]
async fn long_names_are_not_repeated_in_errors() {
    let world = World::new().await;
    let twice: Vec<String> = (0..200).map(|at| format!("\"f{at}\":1,\"f{at}\":1")).collect();
    let body = format!("{{\"metadata\":{{\"name\":\"a\"}},\"{}\":{{{}}}}}", "x".repeat(1 << 20), twice.join(","));
    let path = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let reply = world.admin().send("POST", &path, "application/json", body).await;
    assert!(reply.bytes.len() < 4 * REFUSAL_BYTES_MAX, "{}", reply.bytes.len());
    assert!(reply.refused(400, "BadRequest").contains("strict decoding error: unknown field \"xxx"));
}

const LARGE_BYTES: usize = 900_000;

fn large(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"pad": "x".repeat(LARGE_BYTES)}})
}

/// Reserves all memory for responses except this many KiB.
fn leave_kib(world: &World, kib: usize) -> Permit {
    let room = &world.running.server.limits.exempt.responses;
    room.try_acquire(None, room.available() - kib).unwrap()
}

/// A dry run can be refused, so its responses are limited like those of reads.
#[tokio::test]
async fn answers_to_dry_runs_have_a_bound_together() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(CONFIG_MAPS, &large("large")).await.expect(201);
    let _taken = leave_kib(&world, 5000);
    let patch = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let tried = Bytes::from(json!({"dryRun": ["All"]}).to_string());
    let one = format!("{CONFIG_MAPS}/large");
    for (method, path, media, body) in [
        ("PATCH", format!("{one}?dryRun=All"), MERGE, Bytes::from(patch)),
        ("DELETE", format!("{CONFIG_MAPS}?dryRun=All"), "", Bytes::new()),
        ("DELETE", CONFIG_MAPS.to_owned(), "application/json", tried),
    ] {
        let mut unread = Vec::new();
        for _ in 0..20 {
            let answer = admin.open(method, &path, media, body.clone()).await;
            if answer.status() == 200 {
                unread.push(answer);
            } else {
                assert_eq!(answer.status(), 429, "{method} {path}");
            }
        }
        assert_eq!(unread.len(), 5, "{method} {path}");
    }
    admin.get(&one).await.expect(200);
}

/// A committed write cannot be refused: its response waits for memory, and is dropped after a timeout.
#[tokio::test(start_paused = true)]
async fn answers_to_writes_wait_for_room() {
    let world = World::new().await;
    let admin = world.admin();
    let _taken = leave_kib(&world, 10);
    // Responses to writes have memory of their own.
    admin.post(CONFIG_MAPS, &large("zeroth")).await.expect(201);
    let own = &world.running.server.limits.exempt.write_responses;
    let taken = own.try_acquire(None, own.available()).unwrap();
    let said = admin.post(CONFIG_MAPS, &large("first")).await.refused(504, "Timeout");
    assert!(said.contains("the request was carried out"), "{said}");
    let only_metadata = admin.header("accept", METADATA);
    only_metadata.get(&format!("{CONFIG_MAPS}/first")).await.expect(200);
    // Memory that is released in time is used.
    let waiting = tokio::spawn({
        let admin = admin.clone();
        async move { admin.post(CONFIG_MAPS, &large("second")).await }
    });
    while only_metadata.get(&format!("{CONFIG_MAPS}/second")).await.code != 200 {
        tokio::task::yield_now().await;
    }
    drop(taken);
    assert_eq!(waiting.await.unwrap().expect(201)["metadata"]["name"], "second");
    // For a collection, the response need not list the deleted objects.
    let gone = admin.delete(CONFIG_MAPS).await.expect(200);
    assert_eq!((&gone["kind"], &gone["status"]), (&json!("Status"), &json!("Success")), "{gone}");
    only_metadata.get(&format!("{CONFIG_MAPS}/first")).await.refused(404, "NotFound");
}

#[tokio::test]
async fn long_refusals_are_cut_without_memory() {
    let world = World::new().await;
    let labels: Map<String, Value> = (0..100).map(|at| (format!("_{at:03}{}", "x".repeat(900)), json!(""))).collect();
    let object = json!({"metadata": {"name": "a", "labels": labels}});
    let whole = world.admin().post(CONFIG_MAPS, &object).await;
    assert!(whole.bytes.len() > REFUSAL_BYTES_MAX, "{}", whole.bytes.len());
    let _taken = leave_kib(&world, 10);
    let short = world.admin().post(CONFIG_MAPS, &object).await;
    assert!(short.bytes.len() < 2048, "{}", short.bytes.len());
    assert!(whole.refused(422, "Invalid").starts_with(&short.refused(422, "Invalid")));
}

/// A watch sends large objects when there is memory, and small ones at any time.
#[tokio::test]
async fn watches_wait_for_room_for_large_objects() {
    let world = World::new().await;
    let admin = world.admin();
    admin.delete(&format!("{CONFIG_MAPS}/kube-root-ca.crt")).await;
    for object in [config_map("a"), large("b"), config_map("c")] {
        admin.post(CONFIG_MAPS, &object).await.expect(201);
    }
    let room = world.running.server.limits.exempt.responses.clone();
    let taken = leave_kib(&world, 2000);
    let open = async || admin.open("GET", &format!("{CONFIG_MAPS}?watch=1"), "", Bytes::new()).await.into_body();
    // Two watches have memory for their chunk; the third has sent small objects and waits with the large one.
    let mut watches = [open().await, open().await, open().await];
    let mut chunks = Vec::new();
    for body in &mut watches {
        chunks.push(body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    assert!(chunks.iter().all(|chunk| chunk.len() < 1000), "{}", chunks[0].len());
    let [first, second, third] = &mut watches;
    let held = [first.frame().await, second.frame().await];
    assert!(room.available() < LARGE_BYTES / 1024);
    assert!(futures::poll!(std::pin::pin!(third.frame())).is_pending(), "there is no room");
    // Events of the meantime are sent in order.
    drop(held);
    let told = third.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(told.len() > LARGE_BYTES);
    drop(told);
    let told = third.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&told).contains("\"name\":\"c\""));
    // The same for later events.
    drop(taken);
    let free = room.available();
    let taken = leave_kib(&world, 10);
    admin.patch(&format!("{CONFIG_MAPS}/a"), MERGE, &json!({"data": {"small": "1"}})).await.expect(200);
    let relabel = json!({"metadata": {"labels": {"x": "y"}}});
    let only_metadata = admin.header("accept", METADATA);
    only_metadata.patch(&format!("{CONFIG_MAPS}/b"), MERGE, &relabel).await.expect(200);
    let told = third.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(told.len() < 2000 && String::from_utf8_lossy(&told).contains("MODIFIED"));
    assert!(futures::poll!(std::pin::pin!(third.frame())).is_pending(), "there is no room");
    drop(taken);
    let told = third.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(told.len() > LARGE_BYTES && room.available() < free);
    drop(told);
    assert_eq!(room.available(), free);
}

/// Only sent objects need memory: a watch that does not select a large object reserves none, and a table row keeps
/// none.
#[tokio::test]
async fn watches_reserve_memory_only_for_sent_objects() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(CONFIG_MAPS, &large("a")).await.expect(201);
    let room = &world.running.server.limits.exempt.responses;
    let free = room.available();
    let from = world.store.revision();
    let open = async |api: &Api, more: &str| {
        let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={from}{more}");
        api.open("GET", &path, "", Bytes::new()).await.into_body()
    };
    let mut others = [open(&admin, "&labelSelector=on").await, open(&admin, "&fieldSelector=metadata.name%3Db").await];
    let mut rows = [open(&admin.header("accept", TABLE), "").await, open(&admin.header("accept", METADATA), "").await];
    admin.patch(&format!("{CONFIG_MAPS}/a"), MERGE, &json!({"data": {"small": "1"}})).await.expect(200);
    for other in &mut others {
        assert!(futures::poll!(std::pin::pin!(other.frame())).is_pending(), "nothing of it is selected");
    }
    assert_eq!(room.available(), free);
    for row in &mut rows {
        let told = row.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(told.len() < 3000 && room.available() == free, "{}", told.len());
    }
    // Such watches do not wait for memory either.
    let _taken = leave_kib(&world, 10);
    admin.header("accept", METADATA).patch(&format!("{CONFIG_MAPS}/a"), MERGE, &json!({"data": {"small": "2"}})).await;
    admin.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    let told = others[1].frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&told).contains("ADDED"));
}

/// A late reader gets large objects, or an error: silence would mean that there were no events.
#[tokio::test(start_paused = true)]
async fn a_watch_without_memory_at_its_deadline_sends_an_error() {
    let world = World::new().await;
    let admin = world.admin();
    let from = world.store.revision();
    let path = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=5&resourceVersion={from}");
    let (mut late, mut later, mut waits) =
        (admin.watch(&path).await, admin.watch(&path).await, admin.watch(&path).await);
    admin.post(CONFIG_MAPS, &large("a")).await.expect(201);
    admin.post(CONFIG_MAPS, &large("b")).await.expect(201);
    let taken = leave_kib(&world, 10);
    // One watch waits for memory at its deadline; two are read after it.
    let end = waits.next().await;
    assert_eq!((&end["type"], &end["object"]["code"]), (&json!("ERROR"), &json!(429)), "{end}");
    assert!(text(&end, "/object/message").contains("before there was memory"), "{end}");
    assert_eq!(waits.maybe().await, None);
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(later.next().await["object"]["code"], 429);
    assert_eq!(later.maybe().await, None);
    drop(taken);
    assert_eq!((late.word().await, late.word().await), ("ADDED a".to_owned(), "ADDED b".to_owned()));
    assert_eq!(late.maybe().await, None);
}
