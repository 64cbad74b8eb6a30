//! Clients other than kubectl: the Python kubernetes client, and a controller written with kube-rs.

mod support;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::controller::Action;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{Controller, WatchStreamExt, reflector};
use kube::{Api, Client, Config, Resource, ResourceExt};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use support::{Cluster, PATIENCE, program, shared_cluster};

#[test]
fn the_python_client_works() {
    let Some(python) = python() else { return };
    // The script counts the changes of its own pods and sets, so no controller may write them.
    let quiet = ["--nodes=0", "--controllers=*,-statefulset-controller"];
    let cluster = Cluster::start_with(support::Place::InMemory, &quiet);
    let mut command = Command::new(python);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/client.py");
    command.arg(script).env("KUBECONFIG", &cluster.kubeconfig).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = program::run(command, "");
    assert!(said.status.success(), "{said}");
    assert_eq!(said.out.matches("\nok ").count(), 9, "every part ran: {said}");
}

/// A Python with the kubernetes client.
fn python() -> Option<String> {
    let python = std::env::var("MAINSTAY_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import kubernetes"]).output();
    match found {
        Ok(output) if output.status.success() => Some(python),
        _ => support::skip("no python3 with the kubernetes package found"),
    }
}

/// Runs a test against the shared server with the usual timeout.
fn against_a_server<F: Future<Output = ()>>(test: impl FnOnce(Client) -> F) {
    let cluster = shared_cluster();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        let client = client(&cluster).await;
        tokio::time::timeout(PATIENCE, test(client)).await.expect("the test hangs");
    });
}

async fn client(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::read_from(&cluster.kubeconfig).expect("the kubeconfig can be read");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("the kubeconfig is right")).expect("its certificates too")
}

/// A namespace for the test.
async fn space(client: &Client, name: &str) -> String {
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let namespace = k8s_openapi::api::core::v1::Namespace {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Default::default()
    };
    namespaces.create(&PostParams::default(), &namespace).await.expect("a namespace can be made");
    name.to_owned()
}

fn map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("value".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    }
}

/// Only maps that tests created: each namespace has a map from the start.
fn ours() -> watcher::Config {
    watcher::Config::default().fields("metadata.name!=kube-root-ca.crt")
}

#[test]
fn a_watcher_sees_the_list_then_each_change() {
    against_a_server(|client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &space(&client, "watcher").await);
        maps.create(&PostParams::default(), &map("before", "0")).await.expect("created");
        for config in [ours(), ours().streaming_lists()] {
            let mut events = pin!(watcher::watcher(maps.clone(), config));
            let mut next = async || events.next().await.expect("watchers do not end").expect("nor fail");
            assert!(matches!(next().await, Event::Init));
            assert!(matches!(next().await, Event::InitApply(object) if object.name_any() == "before"));
            assert!(matches!(next().await, Event::InitDone));
            maps.create(&PostParams::default(), &map("after", "1")).await.expect("created");
            assert!(matches!(next().await, Event::Apply(object) if object.name_any() == "after"));
            let patch = Patch::Merge(serde_json::json!({"data": {"value": "2"}}));
            maps.patch("after", &PatchParams::default(), &patch).await.expect("patched");
            assert!(
                matches!(next().await, Event::Apply(object) if object.data.as_ref().is_some_and(|data| data["value"] == "2"))
            );
            maps.delete("after", &DeleteParams::default()).await.expect("deleted");
            assert!(matches!(next().await, Event::Delete(object) if object.name_any() == "after"));
        }
    });
}

#[test]
fn a_reflector_with_streaming_lists_mirrors_the_server() {
    against_a_server(|client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &space(&client, "reflector").await);
        for number in 0..20 {
            maps.create(&PostParams::default(), &map(&format!("m{number}"), "old")).await.expect("created");
        }
        let (reader, writer) = reflector::store();
        let stream = watcher::watcher(maps.clone(), ours().streaming_lists());
        let mut events = pin!(stream.reflect(writer));
        while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
        reader.wait_until_ready().await.expect("the writer lives");
        assert_eq!(reader.len(), 20);
        maps.delete("m0", &DeleteParams::default()).await.expect("deleted");
        let patch = Patch::Merge(serde_json::json!({"data": {"value": "new"}}));
        maps.patch("m1", &PatchParams::default(), &patch).await.expect("patched");
        for _ in 0..2 {
            events.next().await.expect("no end").expect("no error");
        }
        assert_eq!(reader.len(), 19);
        let stored = reader.find(|object| object.name_any() == "m1").expect("it is mirrored");
        assert_eq!(stored.data.as_ref().map(|data| data["value"].as_str()), Some("new"));
    });
}

/// The child of the example controller: a Secret for each ConfigMap, owned by it.
async fn reconcile(source: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, kube::Error> {
    let namespace = source.namespace().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(Client::clone(&client), &namespace);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(source.name_any()),
            owner_references: source.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        string_data: source.data.clone(),
        ..Secret::default()
    };
    secrets.patch(&source.name_any(), &PatchParams::apply("example").force(), &Patch::Apply(&secret)).await?;
    Ok(Action::await_change())
}

#[test]
fn a_controller_keeps_its_children_as_wanted() {
    against_a_server(|client| async move {
        let namespace = space(&client, "controller").await;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
        let controller = Controller::new(maps.clone(), ours())
            .owns(secrets.clone(), watcher::Config::default())
            .run(reconcile, |_, _, _| Action::await_change(), Arc::new(client.clone()))
            .for_each(|_| async {});
        let task = tokio::spawn(controller);

        let mut seen = pin!(watcher::watcher(secrets.clone(), watcher::Config::default()));
        maps.create(&PostParams::default(), &map("wanted", "1")).await.expect("created");
        let value =
            |secret: &Secret| secret.data.as_ref().map(|data| String::from_utf8_lossy(&data["value"].0).into_owned());
        let mut until = async |wanted: fn(&Event<Secret>) -> bool| loop {
            let event = seen.try_next().await.expect("no error").expect("no end");
            if wanted(&event) {
                break event;
            }
        };
        let made = until(|event| matches!(event, Event::Apply(_) | Event::InitApply(_))).await;
        let (Event::Apply(first) | Event::InitApply(first)) = made else { unreachable!("that was the condition") };
        assert_eq!(value(&first).as_deref(), Some("1"));
        // Deleted by a user, the Secret is created again; deleted with its owner, it is not.
        secrets.delete("wanted", &DeleteParams::default()).await.expect("deleted");
        until(|event| matches!(event, Event::Delete(_))).await;
        let Event::Apply(second) = until(|event| matches!(event, Event::Apply(_))).await else { unreachable!() };
        assert_ne!(second.uid(), first.uid());
        maps.delete("wanted", &DeleteParams::default()).await.expect("deleted");
        until(|event| matches!(event, Event::Delete(_))).await;
        task.abort();
    });
}

/// A candidate of an election as client-go implements it: a Lease, written only in the version that was read.
struct Candidate {
    name: &'static str,
    leases: Api<Lease>,
}

const LEASE_SECONDS: i32 = 15;

impl Candidate {
    /// Tries at this time; returns whether the candidate leads.
    async fn try_to_lead(&self, now: jiff::Timestamp) -> bool {
        let spec = LeaseSpec {
            holder_identity: Some(self.name.to_owned()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        };
        let written = match self.leases.get_opt("leader").await.expect("leases can be read") {
            None => {
                let metadata = ObjectMeta { name: Some("leader".to_owned()), ..ObjectMeta::default() };
                self.leases.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
            }
            Some(held) if !self.may_take(&held, now) => return false,
            Some(mut held) => {
                held.spec = Some(spec);
                self.leases.replace("leader", &PostParams::default(), &held).await
            }
        };
        match written {
            Ok(_) => true,
            // Another candidate was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => false,
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    fn may_take(&self, held: &Lease, now: jiff::Timestamp) -> bool {
        let Some(spec) = &held.spec else { return true };
        let renewed = spec.renew_time.as_ref().map_or(jiff::Timestamp::MIN, |time| time.0);
        spec.holder_identity.as_deref() == Some(self.name)
            || now.duration_since(renewed).as_secs() > i64::from(LEASE_SECONDS)
    }
}

#[test]
fn a_lease_elects_one_leader_at_a_time() {
    against_a_server(|client| async move {
        let leases: Api<Lease> = Api::namespaced(client.clone(), &space(&client, "election").await);
        let candidates = ["a", "b", "c", "d"].map(|name| Candidate { name, leases: leases.clone() });
        let start: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let at = |seconds: i64| start + jiff::SignedDuration::from_secs(seconds);
        let leaders = async |seconds: i64| {
            let tries = candidates.iter().map(|candidate| candidate.try_to_lead(at(seconds)));
            let leads = futures::future::join_all(tries).await;
            candidates.iter().zip(leads).filter(|(_, leads)| *leads).map(|(one, _)| one.name).collect::<Vec<_>>()
        };
        let first = leaders(0).await;
        assert_eq!(first.len(), 1, "they all tried at once");
        assert_eq!(leaders(10).await, first, "it renews, the others wait");
        assert_eq!(leaders(20).await, first);
        // All but the leader continue; when its lease has expired, exactly one of them leads.
        let others: Vec<&Candidate> = candidates.iter().filter(|one| one.name != first[0]).collect();
        let tries = async |seconds: i64| {
            let tries = others.iter().map(|candidate| candidate.try_to_lead(at(seconds)));
            futures::future::join_all(tries).await.into_iter().filter(|leads| *leads).count()
        };
        assert_eq!(tries(30).await, 0);
        assert_eq!(tries(40).await, 1);
        let lease = leases.get("leader").await.expect("it is there");
        assert_eq!(lease.spec.and_then(|spec| spec.renew_time), Some(MicroTime(at(40))));
    });
}
