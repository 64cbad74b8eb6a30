//! A user fills etcd. Deleting objects through the API must remain possible.

use crate::clients::metric;
use crate::support::{Client, Cluster, PATIENCE, Place, Trouble};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use store::suite::Members;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const QUOTA: &str = "/api/v1/namespaces/default/resourcequotas/q";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"pad": "x".repeat(100_000)}})
}

async fn readyz(client: &Client) -> (u16, String) {
    let (code, _, text) = client.answer("GET", "/readyz", &Value::Null).await;
    (code, text.as_str().expect("text").to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_can_be_deleted_when_etcd_has_no_space_left() {
    let Some(members) = Members::start_with(1, &["--quota-backend-bytes", "4194304"]) else { return };
    let cluster = tokio::task::block_in_place(|| Cluster::start_with(Place::Etcd(&members.url()), &["--nodes", "0"]));
    let admin = Client::new(&cluster.kubeconfig, &cluster.url).await;
    // The usage of a quota is written with every counted object, which is impossible now.
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "1000"}}});
    admin.create("/api/v1/namespaces/default/resourcequotas", &quota).await.expect("a quota");
    assert_eq!(readyz(&admin).await, (200, "ok".to_owned()));
    let mut written = 0;
    let refused = loop {
        match admin.create(MAPS, &map(&format!("m{written}"))).await {
            Ok(_) => written += 1,
            Err(Trouble::Refused(code, why)) => break (code, why),
            Err(Trouble::Broken) => panic!("no answer"),
        }
        assert!(written < 100, "etcd has no end");
    };
    assert!(refused.0 == 503 && refused.1.contains("etcdctl defrag"), "{refused:?}");
    let (code, text) = readyz(&admin).await;
    let said = "[-]store-space failed: etcd has no space left; delete objects that are not needed";
    assert!(code == 500 && text.contains(said), "{code} {text}");
    assert_eq!(admin.answer("GET", "/livez", &Value::Null).await.0, 200, "a restart would not help");
    assert_eq!(metric(&admin, "mainstay_store_out_of_space").await, Some(1.0));

    // Delete one object, and a collection.
    let deleted = admin.send("DELETE", &format!("{MAPS}/m0"), &Value::Null).await.expect("it is deleted");
    assert_eq!(deleted["status"], "Success");
    assert!(matches!(admin.send("GET", &format!("{MAPS}/m0"), &Value::Null).await, Err(Trouble::Refused(404, _))));
    admin
        .send("DELETE", &format!("{MAPS}?fieldSelector=metadata.name%21%3Dkube-root-ca.crt"), &Value::Null)
        .await
        .expect("all are deleted");
    assert_eq!(admin.get(MAPS).await["items"].as_array().expect("a list").len(), 1);

    // etcd accepts writes again when an operator disarms the alarm; then the usage matches the objects.
    members.make_space(0);
    let deadline = Instant::now() + PATIENCE;
    while admin.create(MAPS, &json!({"metadata": {"name": "after"}})).await.is_err() {
        assert!(Instant::now() < deadline, "there is still no space");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    while admin.get(QUOTA).await["status"]["used"]["count/configmaps"] != "2" || readyz(&admin).await.0 != 200 {
        assert!(Instant::now() < deadline, "{}", admin.get(QUOTA).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
