//! `mainstay bench` as people use it, at the smallest sizes: every figure comes out, and nothing is left behind.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use support::program::{self, Said};
use support::{Cluster, Place, Running, mainstay};

const TINY: &str =
    "--clients 2 --objects 8 --sets 2 --replicas 2 --pairs 4 --volumes 4 --claims 2 --dependants 5 --stored 20";

fn bench(home: &Path, arguments: &str) -> Said {
    let mut command = mainstay(home);
    command.arg("bench").args(arguments.split_whitespace());
    program::run(command, "")
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("the file was written");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|row| row["figure"].as_str()).collect()
}

/// Asks a server as its administrator.
fn ask(cluster: &Cluster, request: http::request::Builder) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let config = kube::config::Kubeconfig::read_from(&cluster.kubeconfig).expect("a kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.expect("a config");
        let client = kube::Client::try_from(config).expect("a client");
        client.request_text(request.body(Vec::new()).expect("a request")).await.expect("an answer")
    })
}

/// How many objects of each kind a server has. What is told about volumes is kept for an hour, whoever made them, and leases are the nodes'.
fn objects(cluster: &Cluster) -> BTreeMap<String, String> {
    let page = ask(cluster, http::Request::get("/metrics"));
    let counts = page.lines().filter_map(|line| line.strip_prefix("apiserver_storage_objects{"));
    let all: BTreeMap<String, String> = counts
        .filter_map(|line| line.split_once("} "))
        .filter(|(kind, _)| !kind.contains("\"events\"") && !kind.contains("\"leases\""))
        .map(|(kind, count)| (kind.to_owned(), count.to_owned()))
        .collect();
    assert!(all.len() > 20, "{page}");
    all
}

/// A server, and what it has of its own: some of that it makes when it is first asked for a volume.
fn start() -> (Cluster, BTreeMap<String, String>) {
    let cluster = Cluster::start(Place::InMemory);
    let arguments = format!("--only provision --volumes 1 --clients 1 --kubeconfig {}", cluster.kubeconfig.display());
    bench(cluster.path(), &arguments).succeeded();
    let before = objects(&cluster);
    (cluster, before)
}

/// Whether every tag that is opened is closed, in order, and nothing but text is in between.
fn is_well_formed(xml: &str) -> bool {
    let mut open: Vec<&str> = Vec::new();
    for part in xml.split('<').skip(1) {
        let Some((tag, text)) = part.split_once('>') else { return false };
        if text.contains('>') || tag.matches('"').count() % 2 != 0 {
            return false;
        }
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or("");
        if let Some(closed) = tag.strip_prefix('/') {
            if open.pop() != Some(closed) {
                return false;
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    open.is_empty()
}

#[test]
fn every_figure_of_a_server_that_runs_and_nothing_is_left() {
    let (cluster, before) = start();
    let (file, picture) = (cluster.path().join("figures.json"), cluster.path().join("figures.svg"));
    let arguments = format!(
        "{TINY} --kubeconfig {} --json {} --svg {}",
        cluster.kubeconfig.display(),
        file.display(),
        picture.display()
    );
    let table = bench(cluster.path(), &arguments).succeeded();
    assert_eq!(objects(&cluster), before);
    let figures = json(&file);
    let mut wanted = vec!["create", "get", "list", "patch", "watch events delivered", "delete"];
    let phases = ["created to ready", "rolled", "scaled to zero", "deleted"];
    let shapes = ["ordered sets, claims", "ordered sets", "parallel sets, claims", "parallel sets"];
    let sets: Vec<String> =
        shapes.iter().flat_map(|shape| phases.iter().map(move |phase| format!("{shape}: {phase}"))).collect();
    wanted.extend(sets.iter().map(String::as_str));
    wanted.extend(["bind", "release", "provision", "reclaim"]);
    wanted.extend(["claims grown in place, one by one", "claims grown in place, together", "garbage collected"]);
    assert_eq!(names(&figures["rows"]), wanted);
    for row in figures["rows"].as_array().expect("rows") {
        assert!(row["value"].as_f64().is_some_and(|value| value > 0.0), "{row}");
        let name = row["figure"].as_str().expect("a name");
        assert!(table.contains(name), "{name} is in the table:\n{table}");
    }
    for name in ["create", "get", "list", "patch", "delete"] {
        let row = figures["rows"].as_array().into_iter().flatten().find(|row| row["figure"] == name).expect("a row");
        assert!(row["p50_ms"].as_f64() <= row["p99_ms"].as_f64() && row["p50_ms"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(figures["left_out"][0]["work"], "restart", "{}", figures["left_out"]);
    assert!(table.contains("restart is left out: only a server of our own"), "{table}");
    let svg = std::fs::read_to_string(&picture).expect("the picture was written");
    assert!(svg.starts_with("<svg ") && is_well_formed(&svg), "{svg}");
    assert!(wanted.iter().all(|name| svg.contains(name)), "{svg}");
}

#[test]
fn a_server_of_its_own_is_started_stopped_and_started() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("figures.json");
    let arguments = format!("{TINY} --only api,gc,restart,provision,resize --driver nobody --json {}", file.display());
    let table = bench(home.path(), &arguments).succeeded();
    let figures = json(&file);
    let rows = names(&figures["rows"]);
    let wanted =
        ["start until ready", "resident memory, idle", "stop", "restart until ready", "resident memory, after"];
    assert!(wanted.iter().all(|name| rows.contains(name)), "{rows:?}");
    for work in ["provisioning", "growing claims in place"] {
        assert!(table.contains(&format!("{work} is left out: the server has no CSI driver nobody")), "{table}");
    }
    let left: Vec<_> = std::fs::read_dir(home.path()).expect("readable").flatten().map(|entry| entry.path()).collect();
    assert_eq!(left, [file]);
}

#[test]
fn growth_shows_what_each_size_costs() {
    let home = tempfile::tempdir().expect("a directory");
    let (file, picture) = (home.path().join("figures.json"), home.path().join("figures.svg"));
    let arguments = format!("--sizes 2,4 --in-memory --json {} --svg {}", file.display(), picture.display());
    let table = bench(home.path(), &arguments).succeeded();
    let figures = json(&file);
    let curves = figures["growth"].as_array().expect("curves");
    let named = |name: &str| curves.iter().find(|curve| curve["figure"] == name).unwrap_or_else(|| panic!("{name}"));
    for name in [
        "pod created to ready: server's processor",
        "pod rolled: server's processor",
        "pod deleted with its set: server's processor",
        "object created: server's processor",
        "memory per pod of a set with a claim",
        "pods: page of 100, p50",
        "pods: change until a watcher hears, p50",
        "objects: page of 100, p50",
        "objects: change until a watcher hears, p50",
        "objects: get, p50",
    ] {
        let ratio = &named(name)["largest_to_smallest"];
        // Memory of so few pods may be any page or none.
        assert!(ratio.is_number() || name.starts_with("memory"), "{name}: {ratio}");
    }
    for curve in curves {
        let points = curve["points"].as_array().expect("points");
        let sizes: Vec<_> = points.iter().filter_map(|point| point["size"].as_u64()).collect();
        assert_eq!(sizes, [2, 4], "{curve}");
    }
    let memory = named("pods, claims and volumes: memory to JSON");
    assert!(memory["points"][1]["value"].as_f64().is_some_and(|times| times > 1.0), "{memory}");
    assert!(table.contains("largest/smallest"), "{table}");
    let svg = std::fs::read_to_string(&picture).expect("the picture was written");
    assert!(is_well_formed(&svg) && svg.contains("polyline"), "{svg}");
}

#[test]
fn ctrl_c_cleans_up() {
    let (cluster, before) = start();
    let mut command = mainstay(cluster.path());
    command.args([
        "bench",
        "--only",
        "bind,sets",
        "--sets",
        "2",
        "--replicas",
        "0",
        "--pairs",
        "100000",
        "--kubeconfig",
    ]);
    let mut running = Running::start({
        command.arg(&cluster.kubeconfig);
        command
    });
    // By then there are claims of sets gone and volumes on their way.
    running.line_with(&["ordered sets: deleted"]);
    running.interrupt();
    let (status, said) = running.finish();
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert!(said.iter().any(|line| line == "mainstay: interrupted; what was made is deleted"), "{said:#?}");
    assert_eq!(objects(&cluster), before);
}

#[test]
fn a_failure_cleans_up_too() {
    let (cluster, before) = start();
    let mut command = mainstay(cluster.path());
    command.args("bench --only api --objects 1000000 --clients 2 --kubeconfig".split(' '));
    let mut running = Running::start({
        command.arg(&cluster.kubeconfig);
        command
    });
    running.line_with(&["create: ", " requests"]);
    // Somebody deletes the namespace that it works in.
    let namespaces: Value =
        serde_json::from_str(&ask(&cluster, http::Request::get("/api/v1/namespaces"))).expect("a list");
    let mut names =
        namespaces["items"].as_array().into_iter().flatten().filter_map(|it| it["metadata"]["name"].as_str());
    let ours = names.find(|name| name.starts_with("mainstay-bench")).expect("the bench has a namespace");
    ask(&cluster, http::Request::delete(format!("/api/v1/namespaces/{ours}")));
    let (status, said) = running.finish();
    assert_eq!(status.code(), Some(1), "{said:#?}");
    let last = said.last().map_or("", String::as_str);
    assert!(last.starts_with("mainstay: ") && last.contains("40"), "{said:#?}");
    assert_eq!(objects(&cluster), before);
}

#[test]
fn ctrl_c_ends_a_server_of_its_own_too() {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = mainstay(home.path());
    command.args(["bench", "--objects", "1000000"]);
    let mut running = Running::start(command);
    running.line_with(&["resident memory, idle"]);
    running.interrupt();
    let (status, said) = running.finish();
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert_eq!(std::fs::read_dir(home.path()).expect("readable").count(), 0, "{said:#?}");
}

/// A soak as short as it gets: it works, looks at memory and disk, and finds a plateau. What it would say of growth is tested beside it.
#[test]
fn a_short_soak_finds_a_plateau() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("soak.json");
    let said = bench(home.path(), &format!("--soak 3 --clients 2 --json {}", file.display()));
    // A line for each look, and most of them come about even on a busy machine.
    assert!(said.to_string().matches("MB memory").count() > 20, "{said}");
    said.succeeded();
    let rows = json(&file)["rows"].clone();
    let pods = ["soak: pods that came and went", "soak: volumes that came and went"];
    assert_eq!(names(&rows), ["soak: writes", pods[0], pods[1], "soak: memory in the end", "soak: disk in the end"]);
    // Nothing has gone after so short a time.
    let came =
        rows.as_array().expect("rows").iter().filter(|row| !pods.contains(&row["figure"].as_str().unwrap_or("")));
    for row in came {
        assert!(row["value"].as_f64() > Some(0.5), "{row}");
    }
}

#[test]
fn wrong_arguments_get_one_line() {
    let home = tempfile::tempdir().expect("a directory");
    for (arguments, said) in [
        ("--sizes 10,5", "--sizes wants numbers above zero"),
        ("--sizes 0,5", "--sizes wants numbers above zero"),
        ("--only nothing", "possible values: api, sets, bind, provision, resize, gc, restart"),
        ("--clients 0", "must be a whole number above zero"),
        ("--soak 3 --growth", "give one of them"),
        ("--kubeconfig none --servers http://127.0.0.1:1", "--servers wants addresses with https://"),
        ("--json no/such/directory", "cannot write no/such/directory"),
        ("--kubeconfig no-file", "cannot use the kubeconfig no-file"),
    ] {
        let answer = bench(home.path(), arguments);
        assert_eq!(answer.code(), 2, "{answer}");
        let text = answer.failed();
        assert!(text.contains(said) && text.lines().count() == 1, "{arguments}: {text}");
    }
}
