//! The log of the real program: its levels, its two formats, and what it leaves out.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use support::{Running, kubectl_by, mainstay};
use tempfile::TempDir;

/// Runs `server` with these log arguments while one ConfigMap is created and one list is forbidden; returns its log
/// lines.
fn log_of(arguments: &[&str], variable: Option<(&str, &str)>) -> Vec<String> {
    let home = TempDir::new().expect("a temporary directory can be made");
    let mut command = mainstay(home.path());
    command.env_remove("MAINSTAY_LOG").envs(variable);
    command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(home.path().join("data")).args(arguments);
    let mut program = Running::start(command);
    program.line_with(&["Ctrl-C"]);
    let Some(kubectl) = kubectl_by(home.path(), &home.path().join("data/kubeconfig")) else { return Vec::new() };
    kubectl("create configmap logged --from-literal=a=b", "");
    program.terminate();
    let (status, lines) = program.finish();
    assert!(status.success(), "{lines:?}");
    let is_log = |line: &String| line.starts_with('{') || line.starts_with("20");
    lines.into_iter().filter(is_log).collect()
}

#[test]
fn unknown_levels_are_refused_in_one_line() {
    let home = TempDir::new().expect("a temporary directory can be made");
    for (arguments, variable) in [
        (vec!["server", "--in-memory", "--log-level", "loud"], ("A", "B")),
        (vec!["server", "--in-memory", "--log-level", "server=loud"], ("A", "B")),
        (vec!["server", "--in-memory"], ("MAINSTAY_LOG", "loud")),
        (vec!["store", "backup", "a", "b"], ("MAINSTAY_LOG", "loud")),
    ] {
        let mut command = mainstay(home.path());
        command.args(&arguments).env(variable.0, variable.1);
        let (status, lines) = Running::start(command).finish();
        assert_eq!((status.code(), lines.len()), (Some(2), 1), "{arguments:?}: {lines:?}");
        assert!(
            lines[0].contains("unknown log level \"loud\"; use off, error, warn, info, debug or trace"),
            "{lines:?}"
        );
    }
}

#[test]
fn each_request_is_one_line_at_debug_and_libraries_are_silent() {
    let lines = log_of(&["--log-level", "debug", "--log-format", "json"], None);
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    let targets: BTreeSet<&str> = lines.iter().filter_map(|line| line["target"].as_str()?.split("::").next()).collect();
    assert!(
        targets.contains("server") && targets.iter().all(|target| ["server", "store", "mainstay"].contains(target)),
        "{targets:?}"
    );
    let created =
        lines.iter().filter(|line| line["path"] == "/api/v1/namespaces/default/configmaps" && line["verb"] == "create");
    let created: Vec<&Value> = created.filter(|line| line["user"] == "kubernetes-admin").collect();
    assert_eq!(created.len(), 1, "{lines:?}");
    let line = created[0];
    assert_eq!((&line["message"], &line["level"], &line["code"]), (&"request".into(), &"debug".into(), &201.into()));
    assert!(line["duration_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");

    let text = log_of(&[], Some(("MAINSTAY_LOG", "warn,server::requests=debug")));
    let requests = text.iter().filter(|line| {
        line.contains("DEBUG server::requests: request verb=\"create\" path=\"/api/v1/namespaces/default/configmaps\"")
    });
    assert_eq!(requests.count(), 1, "{text:?}");
    assert!(text.iter().all(|line| line.contains("server::requests") || line.contains(" WARN ")), "{text:?}");
    assert!(log_of(&[], None).is_empty(), "a healthy server logs nothing");
}
