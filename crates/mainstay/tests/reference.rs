//! The generated pages in `docs/reference/` are in step with the program.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Cluster, Controllers, PATIENCE, Place, kubectl_on, mainstay};

/// Set it to write the pages again.
const UPDATE: &str = "UPDATE_DOCS";

/// The longest line of a page.
const LINE_MAX: usize = 100;

const GENERATED: &str = "Generated: `UPDATE_DOCS=1 cargo test -p mainstay --test reference` writes this page.";

/// Metrics without a sample until something goes wrong, in a form that no test can cause at will.
const WITHOUT_SAMPLES: [(&str, Family); 1] = [(
    "mainstay_requests_rejected_total",
    Family {
        kind: "counter",
        labels: &["priority_level", "reason"],
        help: "Requests refused with 429 by priority level and exceeded limit",
    },
)];

#[derive(Clone, Copy)]
struct Family {
    kind: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
}

#[test]
fn the_command_line_page_is_in_step() {
    let mut page = format!(
        "# Command line\n\n\
         For everybody who runs `mainstay`. After reading this page you know each command, flag, environment\n\
         variable and default.\n\n\
         Flags win over environment variables. Wrong input gets one line on stderr and exit code 2. The text\n\
         below is what `mainstay COMMAND --help` prints.\n\n{GENERATED}\n"
    );
    add_help(&mut page, &[]);
    in_step("command-line.md", &page);
}

/// Adds the help of a command, and of the commands below it.
fn add_help(page: &mut String, command: &[&str]) {
    let home = tempfile::TempDir::new().expect("a temporary directory can be made");
    let output = mainstay(home.path()).env_remove("MAINSTAY_LOG").args(command).arg("--help").output();
    let output = output.expect("the program runs");
    assert!(output.status.success(), "{command:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(!text.contains(home.path().to_str().expect("UTF-8")), "{command:?} names a directory of this machine");
    let title = ["mainstay"].iter().chain(command).copied().collect::<Vec<_>>().join(" ");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    writeln!(page, "\n## {title}\n\n```text\n{}\n```", wrapped(&lines).trim_end()).expect("a String takes it");
    let listed = lines.iter().skip_while(|line| **line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for name in names.filter(|name| !name.is_empty() && *name != "help") {
        add_help(page, &[command, &[name]].concat());
    }
}

/// The lines, broken at spaces where they are longer than a page may be. The rest of a line is indented like its last
/// column.
fn wrapped(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        let start = line.len() - line.trim_start().len();
        let column = line[start..].rfind("  ").map_or(start, |at| start + at + 2);
        let mut rest = (*line).to_owned();
        while let Some(at) = rest.char_indices().nth(LINE_MAX).and_then(|(end, _)| rest[..end].rfind(' ')) {
            if at < column {
                break;
            }
            writeln!(text, "{}", &rest[..at]).expect("a String takes it");
            rest = format!("{}{}", " ".repeat(column), &rest[at + 1..]);
        }
        writeln!(text, "{rest}").expect("a String takes it");
    }
    text
}

#[test]
fn the_gates_page_is_in_step() {
    let mut page = format!(
        "# Feature gates\n\n\
         For operators who switch a feature on or off. After reading this page you know all gates.\n\n\
         Set them with `--feature-gates A=true,B=false` or `MAINSTAY_FEATURE_GATES`. The server and the\n\
         controllers have separate sets of gates; `mainstay up` gives both the same. Gates that upstream\n\
         removed when the feature graduated are kept where a KEP describes how to switch them.\n\n\
         {GENERATED}\n\n\
         | gate | default | KEP | what it switches |\n|---|---|---|---|\n"
    );
    for gate in object::gates::KNOWN {
        let names: Vec<String> =
            [gate.name].iter().chain(gate.aliases).map(|name| format!("`{name}`")).collect::<Vec<_>>();
        let default = if gate.default { "on" } else { "off" };
        let kep = gate.kep.map_or_else(String::new, |number| number.to_string());
        writeln!(page, "| {} | {default} | {kep} | {} |", names.join(", "), gate.summary).expect("a String takes it");
    }
    in_step("gates.md", &page);
}

#[test]
fn the_annotations_page_is_in_step() {
    use object::well_known::{ANNOTATIONS, CONDITIONS, EVENTS, Name};
    let mut page = format!(
        "# Annotations and conditions\n\n\
         For users and for programs that read objects. After reading this page you know each annotation,\n\
         condition and event reason that this project adds to Kubernetes' own.\n\n\
         [Volumes](../guides/volumes.md#annotations) lists Kubernetes' annotations of PVs and claims.\n\
         [Grow volumes](../guides/grow-volumes.md#when-a-rollout-stops) lists the reasons of the condition\n\
         `VolumeClaimsUpdated`.\n\n{GENERATED}\n"
    );
    let mut table = |title: &str, names: &[Name]| {
        write!(page, "\n## {title}\n\n| name | on | meaning |\n|---|---|---|\n").expect("a String takes it");
        for Name { name, object, meaning } in names {
            writeln!(page, "| `{name}` | {object} | {meaning} |").expect("a String takes it");
        }
    };
    table("Annotations and labels", ANNOTATIONS);
    table("Conditions and status reasons", CONDITIONS);
    table("Event reasons", EVENTS);
    in_step("annotations-and-conditions.md", &page);
}

/// Names of this project are written once, so the page cannot miss one.
#[test]
fn only_the_table_spells_out_names_of_this_project() {
    let mut found = Vec::new();
    for file in sources().into_iter().filter(|file| !file.ends_with("object/src/well_known.rs")) {
        let text = std::fs::read_to_string(&file).expect("sources can be read");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
        let is_literal = |line: &&str| !line.trim_start().starts_with("//") && line.contains("mainstay.dev/");
        found.extend(code.lines().filter(is_literal).map(|line| format!("{}: {line}", file.display())));
    }
    assert!(found.is_empty(), "use the constants of object::well_known: {found:#?}");
}

#[test]
fn the_metrics_page_is_in_step() {
    let cluster = Arc::new(Cluster::start(Place::InMemory));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let manifest = std::fs::read_to_string(root().join("examples/web.yaml")).expect("there is an example");
    // With a start, the metric about it has a sample.
    let started = manifest.replace("  replicas: 3\n", "  replicas: 3\n  ordinals: {start: 5}\n");
    assert_ne!(started, manifest, "the example has three replicas");
    kubectl.create(&started);
    kubectl.ok("rollout status statefulset web --timeout=60s");
    let controllers = Controllers::start(&cluster, kubectl.kubeconfig(), &[]);
    let mut families: BTreeMap<String, (String, BTreeSet<String>, String)> = BTreeMap::new();
    let mut registry = prometheus_client::registry::Registry::default();
    runtime::Metrics::default().with_samples().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("it can be written");
    add_families(&mut families, &text);
    for (name, family) in WITHOUT_SAMPLES {
        let has_help = |file: &PathBuf| std::fs::read_to_string(file).is_ok_and(|text| text.contains(family.help));
        assert!(sources().iter().any(has_help), "{name} is registered with another help text");
        let labels = family.labels.iter().map(|label| (*label).to_owned()).collect();
        families.insert(name.to_owned(), (family.kind.to_owned(), labels, family.help.to_owned()));
    }
    // Figures follow by themselves, so only asking again can tell.
    let deadline = Instant::now() + PATIENCE;
    let awaited = [
        "kubelet_volume_stats_used_bytes",
        "kube_persistentvolume_info",
        "kube_persistentvolumeclaim_info",
        "kube_statefulset_ordinals_start",
    ];
    loop {
        let page = kubectl.ok("get --raw /metrics");
        if awaited.iter().all(|name| page.contains(&format!("\n{name}{{"))) {
            add_families(&mut families, &page);
            break;
        }
        assert!(Instant::now() < deadline, "not all of {awaited:?} are in\n{page}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
    add_families(&mut families, &controllers.get("/metrics").1);

    let mut page = format!(
        "# Metrics\n\n\
         For operators who build dashboards and alerts. After reading this page you know each metric and its\n\
         labels. [Monitoring](../operations/monitoring.md) says which to watch, and has alerts to begin with.\n\n\
         Servers and `mainstay up` show them at `/metrics` of the API; `mainstay controllers` and\n\
         `mainstay nodes` show theirs at the address of `--listen`. A metric may be missing until it has a\n\
         value.\n\n{GENERATED}\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n"
    );
    for (name, (kind, labels, help)) in &families {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let help = help.trim_end_matches('.').replace('|', "\\|");
        writeln!(page, "| `{name}` | {kind} | {} | {help} |", labels.join(", ")).expect("a String takes it");
    }
    for name in registered() {
        let is_listed = page.contains(&format!("| `{name}`")) || page.contains(&format!("| `{name}_total`"));
        assert!(is_listed, "{name} is registered, but no test gave it a sample: see WITHOUT_SAMPLES");
    }
    in_step("metrics.md", &page);
}

/// Reads families from the text formats: type, labels of the samples, help.
fn add_families(families: &mut BTreeMap<String, (String, BTreeSet<String>, String)>, text: &str) {
    let mut helps: BTreeMap<&str, &str> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            helps.insert(name, help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let is_bare = kind == "counter" && !name.ends_with("_total");
            current = if is_bare { format!("{name}_total") } else { name.to_owned() };
            let help = helps.get(name).copied().unwrap_or("").to_owned();
            families.entry(current.clone()).or_insert_with(|| (kind.to_owned(), BTreeSet::new(), help));
        } else if let Some((_, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let labels = rest.split(['{', ',', '}']).filter_map(|part| part.split_once("=\"").map(|(name, _)| name));
            let is_name = |name: &&str| *name != "le" && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if let Some((_, known, _)) = families.get_mut(&current) {
                known.extend(labels.filter(is_name).map(str::to_owned));
            }
        }
    }
}

/// The names that the sources register as literals.
fn registered() -> Vec<String> {
    let mut found = Vec::new();
    for file in sources().into_iter().filter(|file| !file.ends_with("exposition.rs")) {
        let text = std::fs::read_to_string(&file).expect("sources can be read");
        for call in text.split("registry.register(").skip(1) {
            found
                .extend(call.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next()).map(str::to_owned));
        }
    }
    assert!(found.len() > 30, "the calls were found: {found:?}");
    found
}

/// The sources of all crates, without tests.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join("crates")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).expect("the workspace can be read") {
            let path = entry.expect("its entries too").path();
            let is_test = path.ends_with("tests") || path.ends_with("tests.rs") || path.ends_with("target");
            if path.is_dir() && !is_test {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 100, "the sources were found: {found:?}");
    found
}

fn in_step(name: &str, expected: &str) {
    let path = root().join("docs/reference").join(name);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, expected).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/reference/{name} is not in step: `{UPDATE}=1 cargo test -p mainstay --test reference` writes it"
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates are two levels deep").to_owned()
}
