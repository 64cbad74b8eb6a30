//! A write that a leader sent before its term ended, and that arrives afterwards.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use support::{Cluster, Controllers, Place, kubectl_on};

/// A proxy to a server that can delay everything that is sent to the server. What was sent arrives in the end, even if
/// its sender has ended.
#[derive(Clone, Default)]
struct Road {
    closed: Arc<(Mutex<bool>, Condvar)>,
}

impl Road {
    /// The proxy, and its address.
    fn to(server: &str) -> (Road, String) {
        let road = Road::default();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let near = format!("https://{}", listener.local_addr().expect("it is bound"));
        let (here, far) = (road.clone(), server.trim_start_matches("https://").to_owned());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                here.carry(near.expect("a connection"), TcpStream::connect(&far).expect("the server listens"));
            }
        });
        (road, near)
    }

    fn carry(&self, near: TcpStream, far: TcpStream) {
        let (mut near_out, mut near_in) = (near.try_clone().expect("a handle"), near);
        let (mut far_out, mut far_in) = (far.try_clone().expect("a handle"), far);
        let (send, sent) = channel();
        // Read everything at once, so that it does not get lost with its sender.
        std::thread::spawn(move || each(&mut near_out, |bytes| drop(send.send(bytes.to_vec()))));
        let road = self.clone();
        std::thread::spawn(move || {
            for bytes in sent {
                road.wait();
                // A server that closes a connection does not read the rest.
                drop(far_in.write_all(&bytes));
            }
        });
        // Always read responses, or the server would block.
        std::thread::spawn(move || each(&mut far_out, |bytes| drop(near_in.write_all(bytes))));
    }

    fn set(&self, closed: bool) {
        *self.closed.0.lock().expect("no panic") = closed;
        self.closed.1.notify_all();
    }

    fn wait(&self) {
        drop(self.closed.1.wait_while(self.closed.0.lock().expect("no panic"), |closed| *closed).expect("no panic"));
    }
}

fn each(from: &mut TcpStream, mut take: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        take(&buffer[..length]);
    }
}

fn set(name: &str) -> String {
    serde_json::json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {"serviceName": name, "replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}},
    })
    .to_string()
}

/// The server refuses writes that arrive after the term, whenever they were sent.
#[test]
fn a_write_that_arrives_after_its_term_is_refused() {
    let cluster = Arc::new(Cluster::start_server(Place::InMemory));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let (road, near) = Road::to(&cluster.url);
    let mut config = kubectl.value("config view --raw -o json");
    config["clusters"][0]["cluster"]["server"] = near.into();
    let by_road = cluster.write("by-road", &config.to_string());
    // Long enough for a busy machine to send the write before the term ends by the sender's own clock.
    let times = ["--leader-elect-lease-duration", "6s", "--leader-elect-renew-deadline", "5s"];
    let first: Vec<&str> = [&["--controllers", "statefulset-controller"][..], &times].concat();
    let mut first = Controllers::start(&cluster, by_road.as_ref(), &first);
    first.program.line_with(&["Leading"]);
    kubectl.create(&set("one"));
    kubectl.until("get pods -o name", |pods| pods.contains("pod/one-0"));
    // The next leader runs no StatefulSet controller: everything written about sets comes from the first.
    let second: Vec<&str> = [&["--controllers", "state-metrics"][..], &times].concat();
    let mut second = Controllers::start(&cluster, &cluster.kubeconfig, &second);
    second.program.line_with(&["Standing by"]);

    // The leader receives another set: its first write is the set's revision.
    road.set(true);
    kubectl.create(&set("two"));
    second.program.line_with(&["Leading"]);
    first.program.kill();
    let written = |code: u16| {
        let line = format!("verb=\"create\",group=\"apps\",resource=\"controllerrevisions\",code=\"{code}\"}} ");
        let figures = kubectl.ok("get --raw /metrics");
        let count = figures.lines().find_map(|found| found.split_once(&line).map(|(_, count)| count.to_owned()));
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    assert_eq!((written(201), written(409)), (1, 0), "the proxy delays writes");
    road.set(false);
    kubectl.until("get --raw /metrics", |_| written(201) + written(409) > 1);
    assert_eq!((written(201), written(409)), (1, 1), "the write of the old term");
    assert_eq!(kubectl.ok("get controllerrevisions -o name").lines().count(), 1, "only that of the first set");
    second.stop();
}
