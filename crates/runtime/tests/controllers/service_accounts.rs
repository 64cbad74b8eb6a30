//! The objects that every namespace gets.

use crate::world::*;
use object::access::uid;
use object::{Value, json};

const BOTH: &str = "serviceaccount-controller,root-ca-certificate-publisher-controller";

fn account(namespace: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": namespace, "name": "default"}})
}

fn certificate(namespace: &str) -> Value {
    config_map(namespace, "kube-root-ca.crt")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_namespace_has_an_account_and_the_certificate() {
    let world = World::with(BOTH).await;
    world.create(new_namespace("new")).await;
    for namespace in ["default", "kube-system", "new"] {
        world.until_is(&account(namespace), "the account", |_| true).await;
        world
            .until_is(&certificate(namespace), "the certificate", |map| map["data"]["ca.crt"] == "THE CERTIFICATE")
            .await;
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn they_are_restored_when_they_are_deleted_or_changed() {
    let world = World::with(BOTH).await;
    world.create(new_namespace("new")).await;
    for wanted in [account("new"), certificate("new")] {
        let first = world.until_is(&wanted, "is there", |_| true).await;
        world.delete(&wanted, "").await;
        world.until_is(&wanted, "is back", |found| uid(found) != uid(&first)).await;
    }
    world.until_is(&certificate("new"), "the certificate", |map| map["data"]["ca.crt"] == "THE CERTIFICATE").await;
    world
        .merge(
            &certificate("new"),
            json!({"data": {"ca.crt": "forged", "more": "x"}, "metadata": {"labels": {"a": "b"}}}),
        )
        .await;
    let repaired = world
        .until_is(&certificate("new"), "is repaired", |map| map["data"] == json!({"ca.crt": "THE CERTIFICATE"}))
        .await;
    assert_eq!(repaired["metadata"]["labels"], json!({"a": "b"}), "labels of users are kept");
    // Other ConfigMaps are not changed.
    let other = world.create(config_map("new", "other")).await;
    world.merge(&other, json!({"data": {"ca.crt": "mine"}})).await;
    world.delete(&account("new"), "").await;
    world.until_is(&account("new"), "is back", |_| true).await;
    assert_eq!(world.now(&other).await.expect("there")["data"]["ca.crt"], "mine");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminating_namespace_gets_no_account() {
    let world = World::with(BOTH).await;
    let leaving = world.create(new_namespace("leaving")).await;
    world.until_is(&account("leaving"), "the account", |_| true).await;
    world.delete(&leaving, "").await;
    world.delete(&account("leaving"), "").await;
    // A second namespace shows that the controllers have handled the first one.
    world.create(new_namespace("later")).await;
    world.delete(&account("later"), "").await;
    world.until_is(&account("later"), "is back", |_| true).await;
    assert!(world.now(&account("leaving")).await.is_none());
    world.stop().await;
}
