//! Rights are enough: every place in the code of controllers and nodes that sends a request is listed here with the resources that it
//! asks for, and the roles allow exactly these requests. So a right that only a retry needs is granted, too.
//!
//! The list is checked against the sources: a new request, and one more kind that is given to a function with a parameter for it, fails
//! this test until it is listed. What requests really ask for is judged in the simulation (`crates/sim/src/permission_checker.rs`).

use server::authz::{self, Rule, bootstrap};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The methods of `kit::api::Api` that send requests, and their verbs. Those without a verb ask for paths that are no resources.
const VERBS: [(&str, &str); 20] = [
    ("apply", "patch"),
    ("check_apply", "patch"),
    ("create", "create"),
    ("delete", "delete"),
    ("document", ""),
    ("each", "list"),
    ("each_metadata", "list"),
    ("each_promptly", "list"),
    ("ends", "watch"),
    ("find", "get"),
    ("find_if_served", "get"),
    ("find_promptly", "get"),
    ("get", "get"),
    ("last_state", "watch"),
    ("merge", "patch"),
    ("merge_if_there", "patch"),
    ("metadata", "get"),
    ("page", "list"),
    ("replace", "update"),
    ("strategic", "patch"),
];
/// The method that opens a watch.
const STREAM: (&str, &str) = ("stream", "watch");

/// Each place that sends requests: file, function, method; then who sends them for which resources. `KIND` is what callers in the same
/// file give to the function's parameter `kind`. `FOLLOWED` is what an account follows. A verb before a resource replaces the method's.
const SENT: &str = "
node/src/informers.rs confirm_claim find: nodes persistentvolumeclaims; scheduler persistentvolumeclaims
node/src/kubelet.rs carry_out delete: nodes pods
node/src/kubelet.rs carry_out strategic: nodes pods/status
node/src/kubelet.rs configs find: nodes secrets configmaps
node/src/kubelet.rs sync find: nodes pods
node/src/registrar.rs keep_csi_node create: nodes csinodes
node/src/registrar.rs keep_csi_node find: nodes csinodes
node/src/registrar.rs keep_csi_node merge: nodes csinodes
node/src/registrar.rs register create: nodes nodes
node/src/registrar.rs register get: nodes nodes
node/src/registrar.rs settle_in create: nodes leases
node/src/registrar.rs settle_in merge: nodes leases
node/src/registrar.rs settle_in merge: nodes nodes
node/src/registrar.rs sync merge: nodes leases
node/src/registrar.rs sync strategic: nodes nodes/status
node/src/scheduler.rs bind create: scheduler pods/binding
node/src/scheduler.rs report strategic: scheduler pods/status
node/src/scheduler.rs take_steps merge: scheduler persistentvolumeclaims persistentvolumes
node/src/volume_expansion.rs finish merge: nodes persistentvolumeclaims/status
runtime/src/binder/act.rs act find: persistent-volume-binder persistentvolumes
runtime/src/binder/act.rs confirm_no_pods each: persistent-volume-binder pods
runtime/src/binder/act.rs confirm_not_retained ends: persistent-volume-binder persistentvolumes
runtime/src/binder/act.rs delete_volume delete: persistent-volume-binder persistentvolumes
runtime/src/binder/act.rs provision create: persistent-volume-binder persistentvolumes
runtime/src/binder/act.rs provision find: persistent-volume-binder nodes
runtime/src/binder/act.rs refresh find_promptly: persistent-volume-binder persistentvolumes persistentvolumeclaims
runtime/src/binder/act.rs send_patch merge_if_there: persistent-volume-binder persistentvolumes persistentvolumes/status persistentvolumeclaims persistentvolumeclaims/status
runtime/src/clusterrole_aggregation.rs run apply: clusterrole-aggregation-controller clusterroles
runtime/src/csi/capacity.rs keep create: csi-provisioner csistoragecapacities
runtime/src/csi/capacity.rs keep replace: csi-provisioner csistoragecapacities
runtime/src/csi/capacity.rs refresh get: csi-provisioner list:csistoragecapacities
runtime/src/csi/capacity.rs remove delete: csi-provisioner csistoragecapacities
runtime/src/csi/capacity.rs wants find: csi-provisioner csidrivers
runtime/src/csi/health.rs write find: csi-health-monitor persistentvolumes
runtime/src/csi/health.rs write_claim find: csi-health-monitor persistentvolumeclaims
runtime/src/csi/health.rs write_claim merge: csi-health-monitor persistentvolumeclaims/status
runtime/src/csi/health.rs write_volume merge: csi-health-monitor persistentvolumes/status
runtime/src/csi/journal.rs look find: csi-provisioner configmaps
runtime/src/csi/journal.rs send create: csi-provisioner configmaps
runtime/src/csi/journal.rs send merge: csi-provisioner configmaps
runtime/src/csi/provisioner/create.rs create_object create: csi-provisioner persistentvolumes
runtime/src/csi/provisioner/create.rs create_object find: csi-provisioner persistentvolumes
runtime/src/csi/provisioner/create.rs end_of last_state: csi-provisioner persistentvolumes
runtime/src/csi/provisioner/create.rs find_class find: csi-provisioner storageclasses
runtime/src/csi/provisioner/create.rs is_claimed find: csi-provisioner persistentvolumeclaims
runtime/src/csi/provisioner/create.rs is_still_wanted find: csi-provisioner persistentvolumeclaims
runtime/src/csi/provisioner/create.rs plan find_if_served: csi-provisioner volumeattributesclasses
runtime/src/csi/provisioner/create.rs provision merge: csi-provisioner persistentvolumeclaims
runtime/src/csi/provisioner/create.rs stand_in find: csi-provisioner persistentvolumes
runtime/src/csi/provisioner/mod.rs free_source merge: csi-provisioner persistentvolumeclaims
runtime/src/csi/provisioner/mod.rs patch_claim merge: csi-provisioner persistentvolumeclaims
runtime/src/csi/provisioner/mod.rs patch_volume strategic: csi-provisioner persistentvolumes
runtime/src/csi/provisioner/reclaim.rs finish each_promptly: csi-provisioner persistentvolumes
runtime/src/csi/provisioner/reclaim.rs is_current find_promptly: csi-provisioner persistentvolumes
runtime/src/csi/provisioner/reclaim.rs is_used find_promptly: csi-provisioner persistentvolumeclaims
runtime/src/csi/provisioner/reclaim.rs last_state last_state: csi-provisioner persistentvolumes
runtime/src/csi/provisioner/reclaim.rs remove delete: csi-provisioner persistentvolumes
runtime/src/csi/provisioner/reclaim.rs tend merge: csi-provisioner persistentvolumes/status
runtime/src/csi/resizer.rs finish find: csi-resizer persistentvolumeclaims
runtime/src/csi/resizer.rs finish find: csi-resizer persistentvolumes
runtime/src/csi/resizer.rs is_used each: csi-resizer pods
runtime/src/csi/resizer.rs mark merge: csi-resizer persistentvolumeclaims/status
runtime/src/csi/resizer.rs resize merge: csi-resizer persistentvolumes
runtime/src/csi/resizer.rs write merge: csi-resizer persistentvolumes
runtime/src/csi/secrets.rs read find: csi-provisioner secrets; csi-resizer secrets
kit/src/discovery.rs plain find_if_served:
kit/src/discovery.rs read_root document:
runtime/src/disruption.rs scale find_if_served: disruption-controller */scale
runtime/src/disruption.rs sync replace: disruption-controller poddisruptionbudgets/status
runtime/src/endpoints.rs carry_out create: endpoint-controller endpoints
runtime/src/endpoints.rs carry_out replace: endpoint-controller endpoints
runtime/src/endpoints.rs delete delete: endpoint-controller endpoints
kit/src/events.rs write create: EVERY events
kit/src/events.rs write merge: EVERY events
runtime/src/gc/executor.rs ask metadata: generic-garbage-collector *
runtime/src/gc/executor.rs patch_owners merge: generic-garbage-collector *
runtime/src/gc/executor.rs patch_owners metadata: generic-garbage-collector *
runtime/src/gc/executor.rs patch_owners strategic: generic-garbage-collector *
runtime/src/gc/executor.rs send delete: generic-garbage-collector *
runtime/src/gc/executor.rs send merge: generic-garbage-collector *
runtime/src/gc/live_dependents.rs list_dependents each_metadata: generic-garbage-collector *
kit/src/lease.rs claim create: leader leases
kit/src/lease.rs claim replace: leader leases
kit/src/lease.rs look find: leader leases
kit/src/lease.rs release replace: leader leases
runtime/src/lifecycle.rs evict delete: node-controller pods
runtime/src/lifecycle.rs set_condition strategic: node-controller pods/status
runtime/src/lifecycle.rs sync merge: node-controller nodes
runtime/src/lifecycle.rs sync strategic: node-controller nodes/status
runtime/src/namespaces.rs confirm find: namespace-controller namespaces
runtime/src/namespaces.rs delete delete: namespace-controller *
runtime/src/namespaces.rs empty find: namespace-controller namespaces
runtime/src/namespaces.rs empty replace: namespace-controller namespaces/finalize
runtime/src/namespaces.rs empty replace: namespace-controller namespaces/status
runtime/src/namespaces.rs look each_metadata: namespace-controller *
runtime/src/podgc/mod.rs detach delete: pod-garbage-collector volumeattachments
runtime/src/podgc/mod.rs detach find_promptly: pod-garbage-collector persistentvolumes
runtime/src/podgc/mod.rs live_pods page: pod-garbage-collector pods
runtime/src/podgc/mod.rs node find_promptly: pod-garbage-collector nodes
runtime/src/podgc/mod.rs remove delete: pod-garbage-collector pods
runtime/src/podgc/mod.rs remove strategic: pod-garbage-collector pods/status
runtime/src/protection/claims.rs fresh_pods each: pvc-protection-controller pods
runtime/src/protection/classes.rs is_named_now each: volumeattributesclass-protection-controller persistentvolumeclaims
runtime/src/protection/classes.rs is_named_now each: volumeattributesclass-protection-controller persistentvolumes
runtime/src/protection/mod.rs patch merge_if_there: pvc-protection-controller persistentvolumeclaims persistentvolumeclaims/status; pv-protection-controller persistentvolumes; volumeattributesclass-protection-controller volumeattributesclasses
runtime/src/service_accounts.rs keep create: service-account-controller serviceaccounts; root-ca-cert-publisher configmaps
runtime/src/service_accounts.rs keep replace: root-ca-cert-publisher configmaps
runtime/src/statefulset/departed.rs remains find: statefulset-controller statefulsets
runtime/src/statefulset/executor.rs adopt strategic: statefulset-controller KIND
runtime/src/statefulset/executor.rs apply apply: statefulset-controller KIND
runtime/src/statefulset/executor.rs check check_apply: statefulset-controller KIND
runtime/src/statefulset/executor.rs confirm find_promptly: statefulset-controller statefulsets
runtime/src/statefulset/executor.rs create create: statefulset-controller KIND
runtime/src/statefulset/executor.rs create_to_apply create: statefulset-controller KIND
runtime/src/statefulset/executor.rs create_to_apply find: statefulset-controller KIND
runtime/src/statefulset/executor.rs delete delete: statefulset-controller KIND
runtime/src/statefulset/executor.rs merge merge: statefulset-controller KIND
runtime/src/statefulset/executor.rs release strategic: statefulset-controller pods
runtime/src/statefulset/executor.rs write_status replace: statefulset-controller statefulsets/status
runtime/src/statefulset/server_capabilities.rs is_known document:
kit/src/watcher.rs advance page: EVERY FOLLOWED
kit/src/watcher.rs advance stream: EVERY FOLLOWED
kit/src/worker.rs settle get: EVERY list:FOLLOWED
";

/// What each account follows: lists and watches.
const FOLLOWED: &str = "
clusterrole-aggregation-controller clusterroles
csi-health-monitor persistentvolumes
csi-provisioner persistentvolumeclaims persistentvolumes storageclasses volumeattachments csinodes nodes
csi-resizer persistentvolumeclaims persistentvolumes volumeattributesclasses
disruption-controller pods statefulsets poddisruptionbudgets
endpoint-controller services pods endpoints
generic-garbage-collector *
namespace-controller namespaces
node-controller nodes pods leases
persistent-volume-binder persistentvolumeclaims persistentvolumes storageclasses pods
pod-garbage-collector pods nodes volumeattachments
pv-protection-controller persistentvolumes
pvc-protection-controller persistentvolumeclaims pods
root-ca-cert-publisher configmaps namespaces
scheduler namespaces nodes persistentvolumeclaims persistentvolumes pods storageclasses
service-account-controller serviceaccounts namespaces
state-metrics statefulsets persistentvolumeclaims persistentvolumes
statefulset-controller statefulsets pods persistentvolumeclaims controllerrevisions
volumeattributesclass-protection-controller volumeattributesclasses persistentvolumeclaims persistentvolumes
";

/// Rights that are needed beside a request: to write owner references and to copy rules into roles.
const BESIDE: &str = "
clusterrole-aggregation-controller escalate:clusterroles
statefulset-controller update:statefulsets/finalizers delete:persistentvolumeclaims
";

/// A verb and a resource with its subresource.
type Right = (String, String);
type Rights = BTreeMap<String, BTreeSet<Right>>;

/// A place that sends requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Site {
    file: String,
    function: String,
    method: String,
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is beside the other crates").to_owned()
}

/// The sources of a crate without their tests: path below `crates` and text.
fn sources(of: &str) -> Vec<(String, String)> {
    let (mut found, mut open) = (Vec::new(), vec![crates().join(of).join("src")]);
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).expect("the sources are there") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let text = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
                let name = path.strip_prefix(crates()).expect("below").to_str().expect("UTF-8").to_owned();
                found.push((name, text));
            }
        }
    }
    found.sort();
    found
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The name of the function that a place in a source is in.
fn function_at(text: &str, at: usize) -> String {
    let (_, rest) = text[..at].rsplit_once("fn ").expect("requests are sent by functions");
    rest.chars().take_while(|c| is_word(*c)).collect()
}

/// The method that is called on what ends at `at`, across line breaks.
fn method_after(text: &str, at: usize) -> Option<String> {
    let called = text[at..].trim_start().strip_prefix('.')?.trim_start();
    let method: String = called.chars().take_while(|c| is_word(*c)).collect();
    called[method.len()..].starts_with('(').then_some(method)
}

fn verb_of(method: &str) -> Option<&'static str> {
    VERBS.iter().chain([&STREAM]).find(|(known, _)| *known == method).map(|(_, verb)| *verb)
}

/// All places that send requests through an `api`.
fn sites() -> Vec<Site> {
    let mut sites = Vec::new();
    for (file, text) in [sources("kit"), sources("runtime"), sources("node")].concat() {
        if file == "kit/src/api.rs" {
            continue;
        }
        for (at, name) in text.match_indices("api") {
            let is_whole = !text[..at].chars().next_back().is_some_and(is_word);
            let method = method_after(&text, at + name.len()).filter(|method| is_whole && verb_of(method).is_some());
            sites.extend(method.map(|method| Site { file: file.clone(), function: function_at(&text, at), method }));
        }
    }
    sites.sort();
    sites
}

/// The kinds that callers give to the functions of a file with a parameter `kind`, by function.
fn kinds_given(text: &str) -> BTreeMap<String, BTreeSet<&'static str>> {
    const FIELDS: [(&str, &str); 4] = [
        ("pods", "pods"),
        ("claims", "persistentvolumeclaims"),
        ("revisions", "controllerrevisions"),
        ("sets", "statefulsets"),
    ];
    let mut given: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let mut passed = BTreeSet::new();
    for (at, _) in text.match_indices("self.") {
        let name: String = text[at + 5..].chars().take_while(|c| is_word(*c)).collect();
        let Some(first) = text[at + 5 + name.len()..].strip_prefix('(') else { continue };
        let first = first.trim_start().split([',', ')']).next().unwrap_or_default();
        if first == "kind" {
            passed.insert((function_at(text, at), name));
        } else if let Some((_, resource)) = FIELDS.iter().find(|(field, _)| {
            [format!("&informers.{field}"), format!("&self.informers.{field}"), (*field).to_owned()]
                .contains(&first.to_owned())
        }) {
            given.entry(name).or_default().insert(resource);
        }
    }
    // A function that passes its `kind` on gives the callee what it is given; a few rounds reach all.
    for _ in 0..passed.len() {
        for (caller, callee) in &passed {
            let kinds = given.get(caller).cloned().unwrap_or_default();
            given.entry(callee.clone()).or_default().extend(kinds);
        }
    }
    given
}

fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().filter(|line| !line.is_empty()).map(|line| line.split_whitespace().collect())
}

fn followed() -> BTreeMap<&'static str, Vec<&'static str>> {
    rows(FOLLOWED).map(|row| (row[0], row[1..].to_vec())).collect()
}

fn accounts() -> Vec<&'static str> {
    runtime::descriptors().map(|controller| controller.account).collect()
}

/// Reads the table: its places, and what each account asks for.
fn listed() -> (Vec<Site>, Rights) {
    let act = std::fs::read_to_string(crates().join("runtime/src/statefulset/executor.rs")).expect("a source");
    let kinds = kinds_given(&act);
    let followed = followed();
    let (mut sites, mut rights) = (Vec::new(), Rights::new());
    for line in SENT.lines().filter(|line| !line.is_empty()) {
        let (place, senders) = line.split_once(':').expect("a colon ends a place");
        let [file, function, method] = place.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        sites.push(Site { file: file.to_owned(), function: function.to_owned(), method: method.to_owned() });
        for sender in senders.split(';').map(str::trim).filter(|sender| !sender.is_empty()) {
            let (account, resources) = sender.split_once(' ').expect("an account and resources");
            let of = if account == "EVERY" { accounts() } else { vec![account] };
            for account in of {
                for word in resources.split(' ') {
                    let method_verb = verb_of(method).expect("a known method");
                    let (verb, resource) = word.split_once(':').unwrap_or((method_verb, word));
                    let resources: Vec<&str> = match resource {
                        "FOLLOWED" => followed.get(account).cloned().unwrap_or_default(),
                        "KIND" => kinds.get(function).expect("it is given kinds").iter().copied().collect(),
                        one => vec![one],
                    };
                    let asked = resources.into_iter().map(|resource| (verb.to_owned(), resource.to_owned()));
                    rights.entry(account.to_owned()).or_default().extend(asked);
                }
            }
        }
    }
    for row in rows(BESIDE) {
        let beside = row[1..].iter().map(|right| right.split_once(':').expect("verb:resource"));
        let beside = beside.map(|(verb, resource)| (verb.to_owned(), resource.to_owned()));
        rights.entry(row[0].to_owned()).or_default().extend(beside);
    }
    sites.sort();
    (sites, rights)
}

#[test]
fn every_place_that_sends_requests_is_listed() {
    let (listed, _) = listed();
    let found = sites();
    assert!(found.len() > 100, "the sources are looked through: {}", found.len());
    let count = |sites: &[Site], site: &Site| sites.iter().filter(|other| *other == site).count();
    let differs = |site: &&Site| count(&found, site) != count(&listed, site);
    let wrong: BTreeSet<String> = found
        .iter()
        .chain(&listed)
        .filter(differs)
        .map(|site| {
            let (in_sources, in_list) = (count(&found, site), count(&listed, site));
            let Site { file, function, method } = site;
            format!("{file} {function} {method}: {in_sources} times in the sources, {in_list} times in SENT")
        })
        .collect();
    assert!(wrong.is_empty(), "list in SENT which account asks for which resources there: {wrong:#?}");
}

/// Requests are sent only by methods that the table knows, on values that the search finds.
#[test]
fn no_request_is_sent_in_another_way() {
    let api = std::fs::read_to_string(crates().join("kit/src/api.rs")).expect("a source");
    let (_, methods) = api.split_once("impl Api {").expect("the methods");
    let methods = methods.split("\n}\n").next().expect("their end");
    for part in methods.split("pub async fn ").skip(1).chain(methods.split("pub(crate) async fn ").skip(1)) {
        let name: String = part.chars().take_while(|c| is_word(*c)).collect();
        assert!(verb_of(&name).is_some(), "{name} sends requests: which verb has it?");
    }
    for (file, text) in [sources("kit"), sources("runtime"), sources("node")].concat() {
        // The client of an election also watches its own lease.
        let sends = ["kit/src/api.rs", "kit/src/fenced_client.rs", "kit/src/metrics.rs", "kit/src/lease.rs"];
        assert!(sends.contains(&file.as_str()) || !text.contains(".client.") && !text.contains("kube::Api"), "{file}");
        for declared in [": Api", ": &Api", ": &'a Api", ": &mut Api"] {
            for (at, _) in text.match_indices(declared) {
                let name = text[..at].rsplit(|c| !is_word(c)).next().expect("a name");
                for (used, _) in text.match_indices(name).filter(|_| name != "api") {
                    let method = method_after(&text, used + name.len());
                    assert!(
                        method.as_deref().is_none_or(|method| verb_of(method).is_none()),
                        "{file}: {name} is an Api: call it `api`, so that its requests are found"
                    );
                }
            }
        }
    }
}

#[test]
fn the_roles_of_controllers_allow_exactly_what_is_listed() {
    let (_, needed) = listed();
    for controller in runtime::descriptors() {
        let account = controller.account;
        let granted: BTreeSet<Right> = rights_of(&Rule::of_role(&controller.role())).into_iter().collect();
        // To find what it collects the namespace controller lists every kind, and follows namespaces.
        let is_covered = |right: &Right, by: &BTreeSet<Right>| {
            by.contains(right) || (!right.1.contains('/') && by.contains(&(right.0.clone(), "*".to_owned())))
        };
        let needed = needed.get(account).unwrap_or_else(|| panic!("{account} sends nothing"));
        let lacking: Vec<_> = needed.iter().filter(|right| !is_covered(right, &granted)).collect();
        assert!(lacking.is_empty(), "{account} asks for what its role does not allow: {lacking:?}");
        let unused: Vec<_> = granted.iter().filter(|right| !is_covered(right, needed)).collect();
        assert!(unused.is_empty(), "no request of {account} needs {unused:?}");
    }
}

#[test]
fn the_roles_of_nodes_scheduler_and_leader_allow_what_is_listed() {
    let (_, mut needed) = listed();
    let objects = [bootstrap::objects(), node::bootstrap_objects()].concat();
    let of = |kind: &str, names: &[&str]| -> BTreeSet<Right> {
        let meant = objects.iter().filter(|object| object["kind"] == kind);
        let meant = meant.filter(|object| names.contains(&object::access::name(object)));
        rights_of(&meant.flat_map(Rule::of_role).collect::<Vec<_>>()).into_iter().collect()
    };
    let mut simulated = of("ClusterRole", &["mainstay:simulated-nodes"]);
    simulated.extend(of("Role", &["mainstay:simulated-nodes"]));
    let scheduler = of("ClusterRole", &["system:kube-scheduler", "system:volume-scheduler"]);
    let leader = of("Role", &["mainstay:leader-election"]);
    let of_manifest = [node::rights::manifest_rules(&[]), vec![node::rights::lease_rule()]].concat();
    let manifest: Vec<Rule> = of_manifest.iter().map(Rule::from_value).collect();
    let manifest: BTreeSet<Right> = rights_of(&manifest).into_iter().collect();
    let of_scheduler = needed.get_mut("scheduler").expect("it is listed");
    for kind in &followed()["scheduler"] {
        of_scheduler.extend(["list", "watch"].map(|verb| (verb.to_owned(), (*kind).to_owned())));
    }
    for (account, granted) in [
        ("nodes", &simulated),
        ("nodes", &manifest),
        ("scheduler", &scheduler),
        ("scheduler", &manifest),
        ("leader", &leader),
    ] {
        let lacking: Vec<_> = needed[account].iter().filter(|right| !granted.contains(*right)).collect();
        assert!(lacking.is_empty(), "{account} asks for what its role does not allow: {lacking:?}");
    }
}

fn rights_of(rules: &[Rule]) -> Vec<Right> {
    let single = |rule: Rule| (rule.verbs.concat(), rule.resources.concat());
    authz::missing(&[], rules).into_iter().map(single).collect()
}
