//! A test cluster with simulated nodes.

use crate::world::*;
use node::{Identity, Nodes, Setup};
use object::access::{Access, uid};
use object::{Value, condition, json};
use server::User;
use server::authn::service_account_user;
use std::ops::Deref;
use std::time::Duration;

pub struct Fleet {
    pub world: World,
    pub setup: Setup,
    nodes: Option<Nodes>,
}

impl Deref for Fleet {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Fleet {
    /// Starts this many nodes, on tokio's clock.
    pub async fn of(count: usize) -> Fleet {
        Fleet::with(count, |_| {}).await
    }

    pub async fn with(count: usize, change: impl FnOnce(&mut Setup)) -> Fleet {
        let world = World::timed().await;
        for object in node::bootstrap_objects() {
            world.create(object).await;
        }
        let mut setup = Setup { clock: world.setup.clock.clone(), ..Setup::new(count) };
        change(&mut setup);
        let mut fleet = Fleet { world, setup, nodes: None };
        fleet.start().await;
        fleet
    }

    pub async fn start(&mut self) {
        let mut nodes = Nodes::start(&self.setup, |identity| {
            // Requests are recorded under the name of the node; the user is the one that `mainstay up` uses
            // for all nodes.
            let (name, user) = match identity {
                Identity::Scheduler => {
                    let name = "system:kube-scheduler".to_owned();
                    (name.clone(), User { name, ..User::default() })
                }
                Identity::Node(name) => {
                    (format!("system:node:{name}"), service_account_user("kube-system", node::rights::ACCOUNT))
                }
            };
            self.world.client(&name, user, self.world.faults.clone())
        });
        nodes.registered().await;
        assert!(self.nodes.replace(nodes).is_none(), "the nodes run already");
    }

    pub async fn stop_nodes(&mut self) {
        self.nodes.take().expect("they run").stop().await;
    }

    /// Stops everything, and checks that no request was forbidden.
    pub async fn stop(mut self) {
        self.stop_nodes().await;
        assert_eq!(self.requests.refused().iter().map(|asked| format!("{asked:?}")).collect::<Vec<_>>(), [""; 0]);
        self.world.stop().await;
    }

    pub async fn until_ready(&self, pod: &Value) -> Value {
        self.until_is(pod, "ready", |pod| condition::is_true(pod, "Ready")).await
    }

    /// The reasons of all events about an object, in alphabetical order.
    pub async fn told(&self, about: &Value) -> Vec<String> {
        let place = if about.text(&["metadata", "namespace"]).is_empty() {
            "default"
        } else {
            about.text(&["metadata", "namespace"])
        };
        let list = self.get(&format!("/api/v1/namespaces/{place}/events")).await.expect("a list");
        let events = list.items(&["items"]).iter().filter(|event| event.text(&["involvedObject", "uid"]) == uid(about));
        let mut reasons: Vec<String> = events.map(|event| event.text(&["reason"]).to_owned()).collect();
        reasons.sort();
        reasons
    }

    /// Sets or removes an annotation of the simulation.
    pub async fn annotate(&self, object: &Value, name: &str, value: Option<&str>) -> Value {
        self.merge(object, json!({"metadata": {"annotations": {format!("sim.mainstay.dev/{name}"): value}}})).await
    }

    pub async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// A pod with annotations of the simulation.
pub fn acting(name: &str, annotations: &[(&str, &str)]) -> Value {
    let mut pod = pod("default", name);
    for (key, value) in annotations {
        pod["metadata"]["annotations"][format!("sim.mainstay.dev/{key}")] = json!(value);
    }
    pod
}

pub fn asking(name: &str, cpu: &str) -> Value {
    let mut pod = pod("default", name);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    pod
}

pub fn node_named(number: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("simulated-{number}")}})
}

/// The reason why the pod's first container waits or terminated, or `running`.
pub fn word(pod: &Value) -> &str {
    let state = &pod["status"]["containerStatuses"][0]["state"];
    let told = state.at(&["waiting"]).or_else(|| state.at(&["terminated"]));
    told.map_or("running", |told| told.text(&["reason"]))
}
