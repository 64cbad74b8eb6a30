//! kubectl reads: output formats, selectors, sorting, chunks, watches.

mod support;

use support::{Kubectl, kubectl_without_nodes};

fn pod(name: &str, labels: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {labels}}}\n\
         spec: {{containers: [{{name: main, image: 'nginx:1'}}]}}\n"
    )
}

/// The words of each line of a table.
fn cells(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

fn two_pods(kubectl: &Kubectl) {
    kubectl.create(&(pod("alpha", "{app: web, tier: front}") + &pod("beta", "{app: db}")));
}

#[test]
fn plain_output_is_the_servers_table() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    assert_eq!(kubectl.run("get pods").err.trim(), format!("No resources found in {} namespace.", kubectl.namespace()));
    two_pods(&kubectl);
    let table = kubectl.ok("get pods");
    let rows = cells(&table);
    assert_eq!(rows[0], ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(rows[1][..4], ["alpha", "0/1", "Pending", "0"]);
    assert_eq!(rows[2][..4], ["beta", "0/1", "Pending", "0"]);
    let wide = kubectl.ok("get pods -o wide");
    assert!(cells(&wide)[0].starts_with(&["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]), "{wide}");
    assert_eq!(cells(&wide)[1][5..], ["<none>"; 4]);
    let labels = kubectl.ok("get pods --show-labels");
    assert!(cells(&labels)[1].ends_with(&["app=web,tier=front"]), "{labels}");
    let column = kubectl.ok("get pods -L tier");
    assert_eq!((cells(&column)[0][5], cells(&column)[1][5]), ("TIER", "front"), "{column}");
    assert_eq!(kubectl.ok("get pods --no-headers").lines().count(), 2);
    let kinds = kubectl.ok("get pods --show-kind");
    assert_eq!(cells(&kinds)[1][0], "pod/alpha");
}

#[test]
fn every_machine_format_works() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    two_pods(&kubectl);
    kubectl.prints("get pods -o name", "pod/alpha\npod/beta");
    kubectl.prints("get pod alpha -o jsonpath={.spec.containers[0].image}", "nginx:1");
    kubectl.prints("get pods -o jsonpath={.items[*].metadata.name}", "alpha beta");
    kubectl.prints(
        "get pods -o jsonpath='{range .items[*]}{.metadata.name}={.status.phase};{end}'",
        "alpha=Pending;beta=Pending;",
    );
    kubectl.prints(
        "get pods -o custom-columns=NAME:.metadata.name,IMAGE:.spec.containers[*].image --no-headers",
        "alpha   nginx:1\nbeta    nginx:1",
    );
    kubectl.prints("get pods -o go-template='{{range .items}}{{.metadata.name}} {{end}}'", "alpha beta");
    let object = kubectl.value("get pod alpha -o json");
    assert_eq!(object["apiVersion"], "v1");
    assert_eq!(object["kind"], "Pod");
    assert_eq!(object["metadata"]["namespace"], kubectl.namespace());
    assert!(object["metadata"].get("managedFields").is_none());
    assert_eq!(kubectl.object("pod/alpha")["metadata"]["managedFields"][0]["operation"], "Update");
    let list = kubectl.value("get pods -o json");
    assert_eq!((list["kind"].as_str(), list["items"].as_array().map(Vec::len)), (Some("List"), Some(2)));
    let yaml = kubectl.ok("get pod beta -o yaml");
    assert!(yaml.starts_with("apiVersion: v1\nkind: Pod\nmetadata:\n") && yaml.contains("\n  name: beta\n"), "{yaml}");
}

#[test]
fn several_kinds_and_names_in_one_call() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    two_pods(&kubectl);
    kubectl.ok("create configmap one --from-literal=a=b");
    let both = kubectl.ok("get pods,configmaps -o name");
    assert_eq!(
        both.lines().collect::<Vec<_>>(),
        ["pod/alpha", "pod/beta", "configmap/kube-root-ca.crt", "configmap/one"]
    );
    kubectl.prints("get pod/alpha cm/one -o name", "pod/alpha\nconfigmap/one");
    let error = kubectl.fails("get pods alpha missing");
    assert_eq!(error, "Error from server (NotFound): pods \"missing\" not found");
    kubectl.prints("get pod missing --ignore-not-found", "");
}

#[test]
fn selectors_select() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    two_pods(&kubectl);
    kubectl.create(&pod("gamma", "{app: web}").replace("spec: {", "spec: {nodeName: node-7, "));
    for (selector, names) in [
        ("--selector=app=web", "pod/alpha pod/gamma"),
        ("-l app!=web", "pod/beta"),
        ("-l 'app in (db,cache)'", "pod/beta"),
        ("-l 'app notin (db),tier'", "pod/alpha"),
        ("-l '!tier,app=web'", "pod/gamma"),
        ("-l app=nothing", ""),
        ("--field-selector=metadata.name=beta", "pod/beta"),
        ("--field-selector=metadata.name!=beta", "pod/alpha pod/gamma"),
        ("--field-selector=spec.nodeName=node-7", "pod/gamma"),
        ("--field-selector=status.phase=Pending,spec.nodeName=", "pod/alpha pod/beta"),
        ("--field-selector=status.phase=Running", ""),
        ("-l app=web --field-selector=spec.nodeName=node-7", "pod/gamma"),
    ] {
        let found = kubectl.ok(&format!("get pods -o name {selector}"));
        assert_eq!(found.split_whitespace().collect::<Vec<_>>().join(" "), names, "{selector}");
    }
    let error = kubectl.fails("get pods --field-selector=spec.colour=red");
    assert!(error.contains("field label not supported: spec.colour"), "{error}");
    let error = kubectl.fails("get pods -l 'app in web'");
    assert!(error.contains("unable to parse requirement"), "{error}");
}

#[test]
fn sorting_is_by_any_field() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    for (name, rank) in [("a", "3"), ("b", "1"), ("c", "2")] {
        kubectl.create(&pod(name, &format!("{{rank: '{rank}'}}")));
    }
    kubectl.prints("get pods --sort-by=.metadata.labels.rank -o name", "pod/b\npod/c\npod/a");
    let table = kubectl.ok("get pods --sort-by={.metadata.labels.rank} --no-headers");
    assert_eq!(cells(&table).iter().map(|row| row[0]).collect::<Vec<_>>(), ["b", "c", "a"]);
    kubectl.prints("get pods --sort-by=.metadata.creationTimestamp -o name", "pod/a\npod/b\npod/c");
}

#[test]
fn all_namespaces_are_read_at_once() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    let Some(other) = kubectl_without_nodes() else { return };
    let label = format!("{{across: {}}}", kubectl.namespace());
    kubectl.create(&pod("here", &label));
    other.create(&pod("there", &label));
    let table = kubectl.ok(&format!("get pods -A -l across={}", kubectl.namespace()));
    let rows = cells(&table);
    assert_eq!(rows[0][..2], ["NAMESPACE", "NAME"]);
    let mut found: Vec<_> = rows[1..].iter().map(|row| (row[0], row[1])).collect();
    let mut expected = vec![(kubectl.namespace(), "here"), (other.namespace(), "there")];
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn large_lists_come_in_chunks() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    let names: Vec<String> = (0..7).map(|n| format!("map-{n}")).collect();
    let manifest: String = names
        .iter()
        .map(|name| {
            format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{chunked: 'yes'}}}}\n")
        })
        .collect();
    kubectl.create(&manifest);
    for format in ["-o name", "--no-headers"] {
        let said = kubectl.run(&format!("get configmaps -l chunked=yes --chunk-size=3 -v=6 {format}"));
        assert_eq!(said.err.matches("limit=3").count(), 3, "three requests: {said}");
        assert_eq!(said.err.matches("continue=").count(), 2, "two continued: {said}");
        let found: Vec<String> = said
            .succeeded()
            .lines()
            .map(|line| line.trim_start_matches("configmap/").split_whitespace().next().unwrap_or("").to_owned())
            .collect();
        assert_eq!(found, names);
    }
}

#[test]
fn watch_shows_each_change_once() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    kubectl.create(&pod("first", "{app: web}"));
    let mut watch = kubectl.start("get pods -l app=web -w --output-watch-events --no-headers");
    watch.line_with(&["ADDED", "first", "0/1", "Pending"]);
    kubectl.create(&pod("second", "{app: web}"));
    watch.line_with(&["ADDED", "second", "Pending"]);
    kubectl.ok(r#"patch pod second --subresource=status --type=merge -p '{"status":{"phase":"Running"}}'"#);
    watch.line_with(&["MODIFIED", "second", "Running"]);
    // For its watchers, leaving a selection is a deletion, and entering it an addition.
    kubectl.ok("label pod second app=db --overwrite");
    watch.line_with(&["DELETED", "second"]);
    kubectl.ok("label pod second app=web --overwrite");
    watch.line_with(&["ADDED", "second"]);
    kubectl.ok("delete pod first --now");
    watch.line_with(&["DELETED", "first"]);
}

#[test]
fn watch_of_one_object_and_in_json() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    kubectl.ok("create configmap one --from-literal=step=0");
    let mut watch = kubectl.start("get configmap one -w -o jsonpath='{.data.step}{\"\\n\"}'");
    watch.line_with(&["0"]);
    for step in 1..4 {
        kubectl.ok(&format!(r#"patch configmap one -p '{{"data":{{"step":"{step}"}}}}'"#));
        watch.line_with(&[&step.to_string()]);
    }
    let mut only = kubectl.start("get configmap one --watch-only -o name");
    let mut json = kubectl.start("get configmap one -w -o json --output-watch-events");
    json.line_with(&["\"type\":", "\"ADDED\""]);
    kubectl.ok("label configmap one seen=yes");
    json.line_with(&["\"type\":", "\"MODIFIED\""]);
    // The watch may begin before or after the label is set; it sees the deletion in any case.
    kubectl.ok("delete configmap one");
    only.line_with(&["configmap/one"]);
}
