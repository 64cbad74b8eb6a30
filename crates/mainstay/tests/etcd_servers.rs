//! Several servers on one etcd: a client may use any of them, and any of them may crash.

mod support;

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::suite::Members;
use support::{Client, Cluster, PATIENCE, Place, Trouble, kubectl_on};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"count": "0"}})
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

struct Servers {
    members: Members,
    clusters: Vec<Option<Cluster>>,
    clients: Vec<Client>,
}

impl Servers {
    /// Three servers that start concurrently on an empty etcd, and so compete to create everything that must exist
    /// once.
    async fn start() -> Option<Servers> {
        let members = Members::start(1)?;
        let starting: Vec<_> = (0..3)
            .map(|_| {
                let url = members.url();
                tokio::task::spawn_blocking(move || Cluster::start_server(Place::Etcd(&url)))
            })
            .collect();
        let mut clusters = Vec::new();
        for cluster in starting {
            clusters.push(cluster.await.unwrap());
        }
        let mut clients = Vec::new();
        for cluster in &clusters {
            // The kubeconfig of the first server works for all of them.
            clients.push(Client::new(&clusters[0].kubeconfig, &cluster.url).await);
        }
        Some(Servers { members, clusters: clusters.into_iter().map(Some).collect(), clients })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_are_one() {
    let Some(servers) = Servers::start().await else { return };
    let clients = &servers.clients;
    one_identity(clients).await;
    one_state(clients).await;
    one_counter(clients).await;
    one_name(clients).await;
    one_quota(clients).await;
    one_range_of_addresses(clients).await;
}

/// The other servers accept what one server signed.
async fn one_identity(clients: &[Client]) {
    let account = json!({"metadata": {"name": "app"}});
    clients[0].create("/api/v1/namespaces/default/serviceaccounts", &account).await.unwrap();
    let path = "/api/v1/namespaces/default/serviceaccounts/app/token";
    let token = clients[1].create(path, &json!({"spec": {}})).await.unwrap();
    let token = token["status"]["token"].as_str().unwrap();
    let review = json!({"spec": {"token": token}});
    let answer = clients[2].create("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.unwrap();
    assert_eq!(answer["status"]["user"]["username"], "system:serviceaccount:default:app", "{answer}");
}

/// The next server shows what one server acknowledged: objects, kinds and permissions.
async fn one_state(clients: &[Client]) {
    for round in 0..30 {
        let (writer, reader) = (&clients[round % 3], &clients[(round + 1) % 3]);
        let made = writer.create(MAPS, &config_map(&format!("seen-{round}"))).await.unwrap();
        let path = format!("{MAPS}/seen-{round}");
        assert_eq!(reader.get(&path).await["metadata"]["uid"], made["metadata"]["uid"]);
        let list = reader.get(MAPS).await;
        assert!(version(&list) >= version(&made));
        assert!(list["items"].as_array().unwrap().iter().any(|item| name(item) == format!("seen-{round}")));
        let removed = reader.send("DELETE", &path, &Value::Null).await;
        assert!(removed.is_ok(), "{removed:?}");
        assert!(matches!(writer.send("GET", &path, &Value::Null).await, Err(Trouble::Refused(404, _))));
    }
    let definition = json!({"metadata": {"name": "things.x.io"}, "spec": {"group": "x.io", "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    clients[0].create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.unwrap();
    let thing = json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "one"}});
    clients[1].create("/apis/x.io/v1/things", &thing).await.unwrap();

    let review = json!({"spec": {"user": "eve", "resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "default"}}});
    let may = async |client: &Client| {
        let answer = client.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await.unwrap();
        answer["status"]["allowed"] == json!(true)
    };
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let binding = json!({"metadata": {"name": "eve"}, "subjects": [{"kind": "User", "name": "eve"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}});
    for round in 0..10 {
        let (here, there) = (&clients[round % 3], &clients[(round + 1) % 3]);
        here.create(roles, &binding).await.unwrap();
        assert!(may(there).await, "a granted permission is effective at once");
        here.send("DELETE", &format!("{roles}/eve"), &Value::Null).await.unwrap();
        assert!(!may(there).await, "a revoked permission is effective at once");
    }
}

/// Of several clients that read a version, one replaces it.
async fn one_counter(clients: &[Client]) {
    const ROUNDS: usize = 15;
    clients[0].create(MAPS, &config_map("counter")).await.unwrap();
    let path = format!("{MAPS}/counter");
    let counting = (0..6).map(|writer| {
        let (client, path) = (clients[writer % 3].clone(), path.clone());
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                loop {
                    let mut map = client.get(&path).await;
                    let count: usize = map["data"]["count"].as_str().unwrap().parse().unwrap();
                    map["data"]["count"] = json!((count + 1).to_string());
                    match client.send("PUT", &path, &map).await {
                        Ok(_) => break,
                        Err(Trouble::Refused(409, _)) => {}
                        Err(trouble) => panic!("{trouble:?}"),
                    }
                }
            }
        })
    });
    futures::future::try_join_all(counting.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(clients[1].get(&path).await["data"]["count"], (6 * ROUNDS).to_string());
}

/// A name is assigned once.
async fn one_name(clients: &[Client]) {
    for round in 0..20 {
        let map = config_map(&format!("name-{round}"));
        let made = futures::future::join_all(clients.iter().map(|client| client.create(MAPS, &map))).await;
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{made:?}");
        assert!(made.iter().all(|made| matches!(made, Ok(_) | Err(Trouble::Refused(409, _)))), "{made:?}");
    }
}

/// A quota is used once.
async fn one_quota(clients: &[Client]) {
    clients[0].create("/api/v1/namespaces", &json!({"metadata": {"name": "narrow"}})).await.unwrap();
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "10"}}});
    clients[1].create("/api/v1/namespaces/narrow/resourcequotas", &quota).await.unwrap();
    let secrets = "/api/v1/namespaces/narrow/secrets";
    let asked = (0..30).map(|n| {
        let client = clients[n % 3].clone();
        async move { client.create(secrets, &json!({"metadata": {"name": format!("s{n}")}})).await }
    });
    let made = futures::future::join_all(asked).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 10, "{made:?}");
    assert!(made.iter().all(|made| matches!(made, Ok(_) | Err(Trouble::Refused(403, _)))), "{made:?}");
    assert_eq!(clients[2].get(secrets).await["items"].as_array().unwrap().len(), 10);
    let quota = clients[2].get("/api/v1/namespaces/narrow/resourcequotas/q").await;
    assert_eq!(quota["status"]["used"]["count/secrets"], "10");
}

/// An address is assigned once.
async fn one_range_of_addresses(clients: &[Client]) {
    let services = "/api/v1/namespaces/default/services";
    let asked = (0..45).map(|n| {
        let client = clients[n % 3].clone();
        let service = json!({"metadata": {"name": format!("svc{n}")},
            "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        async move { client.create(services, &service).await }
    });
    let made = futures::future::try_join_all(asked).await.unwrap();
    let addresses: BTreeSet<_> = made.iter().map(|made| made["spec"]["clusterIP"].to_string()).collect();
    let ports: BTreeSet<_> = made.iter().map(|made| made["spec"]["ports"][0]["nodePort"].to_string()).collect();
    assert_eq!((addresses.len(), ports.len()), (45, 45));
    let given = json!({"metadata": {"name": "given"}, "spec": {"clusterIP": made[0]["spec"]["clusterIP"], "ports": [{"port": 80}]}});
    assert!(matches!(clients[1].create(services, &given).await, Err(Trouble::Refused(422, _))));
}

/// `mainstay bench` measures several servers as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bench_is_spread_over_servers() {
    let Some(servers) = Servers::start().await else { return };
    let mut command = support::mainstay(servers.members.directory());
    // A controller must delete what the bench leaves behind.
    let url = servers.members.url();
    let _controllers = tokio::task::spawn_blocking(move || {
        Cluster::start_with(Place::Etcd(&url), &["--no-builtin-storage", "--nodes", "0"])
    })
    .await
    .unwrap();
    let clusters: Vec<&Cluster> = servers.clusters.iter().flatten().collect();
    command.args(["bench", "--only", "api", "--objects", "60", "--clients", "6"]);
    command.arg("--kubeconfig").arg(&clusters[0].kubeconfig);
    command.arg("--servers").arg(format!("{},{}", clusters[1].url, clusters[2].url));
    let said = support::program::run(command, "").succeeded();
    assert!(said.contains("create"), "{said}");
    for client in &servers.clients {
        let (_, _, figures) = client.answer("GET", "/metrics", &Value::Null).await;
        let count = figures.as_str().unwrap().lines().find_map(|line| {
            line.strip_prefix(
                "apiserver_request_total{verb=\"create\",group=\"\",resource=\"configmaps\",code=\"201\"} ",
            )
            .map(|count| count.parse::<u32>().unwrap())
        });
        assert!(count.is_some_and(|count| count >= 10), "each has its share: {count:?}");
    }
}

/// Of several processes on one etcd, one runs the controllers. When it stops, another one takes over at once.
#[test]
fn of_several_processes_one_runs_the_controllers() {
    let Some(members) = Members::start(1) else { return };
    let url = members.url();
    let first = Arc::new(Cluster::start_with(Place::Etcd(&url), &["--no-builtin-storage"]));
    let Some(kubectl) = kubectl_on(&first) else { return };
    let lease = "get lease mainstay-controllers -n kube-system -o jsonpath={.spec.holderIdentity}";
    let leader = kubectl.until(&format!("{lease} --ignore-not-found"), |holder| !holder.is_empty());
    let second = Arc::new(Cluster::start_with(Place::Etcd(&url), &["--no-builtin-storage"]));
    let elsewhere = kubectl_on(&second).expect("it was found before");
    let set = |name: &str| {
        let template =
            json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
            "spec": {"serviceName": "x", "replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}})
        .to_string()
    };
    elsewhere.ok_with("create -f -", &set("one"));
    elsewhere.ok("rollout status sts one --timeout=60s");
    assert_eq!(elsewhere.ok(lease), leader, "the second stands by");
    drop(kubectl);
    Arc::into_inner(first).expect("nobody else holds it").stop();
    elsewhere.ok_with("create -f -", &set("two"));
    elsewhere.ok("rollout status sts two --timeout=60s");
    assert_ne!(elsewhere.ok(lease), leader);
}

/// Servers are killed one after the other under load, and restarted. No acknowledged write is lost, and a watch that
/// reconnects to the next server misses and repeats nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_server_may_die() {
    let Some(mut servers) = Servers::start().await else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let begin = version(&servers.clients[0].get(MAPS).await);
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (clients, stop) = (servers.clients.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut acknowledged, mut unknown) = (BTreeMap::new(), BTreeSet::new());
                let mut at = writer;
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let map = format!("w{writer}-{n}");
                    match clients[at % 3].create(MAPS, &config_map(&map)).await {
                        Ok(made) => drop(acknowledged.insert(map, version(&made))),
                        Err(Trouble::Refused(503 | 504, _) | Trouble::Broken) => {
                            unknown.insert(map);
                            at += 1;
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        Err(trouble) => panic!("{trouble:?}"),
                    }
                }
                (acknowledged, unknown)
            })
        })
        .collect();
    let watching = tokio::spawn(follow(servers.clients.clone(), begin));
    for dying in 0..2 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        servers.clusters[dying].take().unwrap().crash();
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    stop.store(true, Ordering::Relaxed);
    let (mut acknowledged, mut unknown) = (BTreeMap::new(), BTreeSet::new());
    for writer in writers {
        let (yes, perhaps) = writer.await.unwrap();
        acknowledged.extend(yes);
        unknown.extend(perhaps);
    }
    assert!(acknowledged.len() > 100, "{} writes", acknowledged.len());
    servers.clients[2].create(MAPS, &config_map("end")).await.unwrap();

    let events = tokio::time::timeout(PATIENCE, watching).await.expect("the watch gets to the end").unwrap();
    assert!(events.is_sorted_by(|one, other| one.0 < other.0), "in order, none twice");
    let heard: BTreeMap<_, _> = events.into_iter().map(|(revision, name)| (name, revision)).collect();
    let kept: BTreeMap<_, _> = servers.clients[2].get(MAPS).await["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (name(item), version(item)))
        .collect();
    for (name, revision) in &acknowledged {
        assert_eq!(kept.get(name), Some(revision), "{name} was acknowledged");
        assert_eq!(heard.get(name), Some(revision), "the watch missed {name}");
    }
    for name in heard.keys().filter(|name| name.starts_with('w')) {
        assert!(acknowledged.contains_key(name) || unknown.contains(name), "nobody wrote {name}");
    }
    drop(servers.members);
}

/// Watches the ConfigMaps on one server after the other, each time from where the last watch ended, until one is called
/// `end`.
async fn follow(clients: Vec<Client>, begin: u64) -> Vec<(u64, String)> {
    let mut events = Vec::new();
    let mut position = begin;
    for client in clients.iter().cycle() {
        let path = format!("{MAPS}?watch=1&resourceVersion={position}");
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let Ok(stream) = client.0.request_stream(request).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        // Also close working watches, so that each server is used.
        let mut lines = stream.lines().into_stream().take(40);
        while let Some(Ok(line)) = lines.next().await {
            let event: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(event["type"], "ADDED", "{event}");
            position = version(&event["object"]);
            events.push((position, name(&event["object"])));
            if events.last().is_some_and(|(_, name)| name == "end") {
                return events;
            }
        }
    }
    events
}
