//! Runs controllers with one permission removed at a time.

use crate::permission_scenarios::Scenarios;
use crate::world::*;
use futures::StreamExt;
use object::access::Access;
use object::{Value, json};
use server::authz::{self, Rule};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

/// Everything a controller does, in one run: starts it in the test cluster and ends when its work is done.
pub type Story = for<'a> fn(&'a mut Stage) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A test cluster for one story.
pub struct Stage {
    pub world: World,
    pub storage: Option<crate::storage::Storage>,
}

/// The number of concurrent test clusters.
const AT_ONCE: usize = 8;

/// Runs the story once for each single permission of an account, without that permission.
pub async fn each_right(account: &'static str, story: Story) {
    let rights = rights_of(account);
    assert!(!rights.is_empty(), "{account} has no role");
    // With all permissions nothing may be refused, or the following would prove nothing.
    let refused = told_without(account, None, story).await;
    assert_eq!(refused, 0, "{account} is refused something although it has all its rights");
    let of_events = |right: &Rule| right.resources == ["events"];
    let lacks = rights.into_iter().filter(|right| !of_events(right));
    let tried: Vec<(Rule, usize)> = futures::stream::iter(lacks)
        .map(|right| async move { (right.clone(), told_without(account, Some(right), story).await) })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let unused: Vec<String> =
        tried.iter().filter(|(_, refused)| *refused == 0).map(|(right, _)| right.describe()).collect();
    assert!(unused.is_empty(), "nothing of what {account} does needs {unused:#?}");
}

/// Removes each single permission of an account and grants it again only when everything that is possible
/// without it is done.
pub async fn each_right_for_long(account: &'static str, scenarios: &'static Scenarios) {
    let names: Vec<String> = rights_of(account).iter().map(name_of).collect();
    let named = |right: &Rule| scenarios.all.iter().any(|scenario| scenario.without.contains(&name_of(right).as_str()));
    let is_of_sight = |right: &Rule| right.verbs == ["list"] || right.verbs == ["watch"];
    let lacks = rights_of(account).into_iter().filter(|right| named(right) || !is_of_sight(right));
    let lacks = lacks.filter(|right| right.resources != ["events"]);
    for scenario in scenarios.all {
        let unknown: Vec<_> =
            scenario.without.iter().filter(|right| !names.iter().any(|name| name == *right)).collect();
        assert!(unknown.is_empty(), "{}: {account} has no {unknown:?}", scenario.name);
    }
    futures::stream::iter(lacks)
        .for_each_concurrent(AT_ONCE, |lack| async move { run_without(account, &lack, scenarios).await })
        .await;
}

/// The name of a permission, as used in `without`.
fn name_of(right: &Rule) -> String {
    format!("{} {}", right.verbs.concat(), right.resources.concat())
}

fn is_refused(world: &World) -> bool {
    !world.requests.refused().is_empty()
}

async fn run_without(account: &'static str, lack: &Rule, scenarios: &'static Scenarios) {
    let case = name_of(lack);
    let mut stage = Stage { world: World::timed().await, storage: None };
    let left = rights_of(account).into_iter().filter(|right| right != lack);
    let left: Vec<Value> = left.map(|right| right.to_value()).collect();
    stage.world.merge(&role_of(account), json!({"rules": left})).await;
    (scenarios.begin)(&mut stage).await;
    let world = &stage.world;
    let done = Mutex::new(BTreeSet::new());
    let running = scenarios.all.iter().map(|scenario| async {
        (scenario.run)(world).await;
        done.lock().expect("no panic").insert(scenario.name);
    });
    let go_on = scenarios.all.iter().filter(|scenario| scenario.without.contains(&case.as_str()));
    let go_on: BTreeSet<&str> = go_on.map(|scenario| scenario.name).collect();
    let healing = async {
        let is_done = |name: &str| done.lock().expect("no panic").contains(name);
        let none_waits = go_on.len() == scenarios.all.len();
        while !go_on.iter().all(|name| is_done(name)) || !(none_waits || is_refused(world)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // Scenarios that need the permission are not done, however long it is missing.
        if !scenarios.by_chance.contains(&case.as_str()) {
            assert_eq!(*done.lock().expect("no panic"), go_on, "without {case}");
        }
        let all: Vec<Value> = rights_of(account).iter().map(Rule::to_value).collect();
        world.merge(&role_of(account), json!({"rules": all})).await;
    };
    futures::join!(futures::future::join_all(running), healing);
    for asked in world.requests.refused() {
        assert!(&*asked.account == account && concerns(lack, &asked), "without {case}: {asked:?}");
    }
    stage.world.stop().await;
}

/// Every permission of an account, as one verb and one resource each.
fn rights_of(account: &str) -> Vec<Rule> {
    let controller = runtime::descriptors().find(|controller| controller.account == account).expect("a controller");
    authz::missing(&[], &Rule::of_role(&controller.role()))
}

fn role_of(account: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": format!("system:controller:{account}")},
    })
}

/// Runs the story; after the first refusal is checked, the permission is granted again. Returns the number of
/// refusals.
async fn told_without(account: &'static str, lack: Option<Rule>, story: Story) -> usize {
    let case = lack.as_ref().map_or_else(|| "nothing".to_owned(), Rule::describe);
    let mut stage = Stage { world: World::timed().await, storage: None };
    let all: Vec<Value> = rights_of(account).iter().map(Rule::to_value).collect();
    let left = rights_of(account).into_iter().filter(|right| Some(right) != lack.as_ref());
    let left: Vec<Value> = left.map(|right| right.to_value()).collect();
    stage.world.merge(&role_of(account), json!({"rules": left})).await;
    let healer = Healer {
        admin: stage.world.client("healer", server::User::apiserver(), Faults::default()),
        requests: stage.world.requests.clone(),
        metrics: stage.world.setup.metrics.clone(),
        account,
        all,
    };
    let healing = tokio::spawn({
        let lack = lack.clone();
        async move { healer.heal(lack.as_ref()).await }
    });
    story(&mut stage).await;
    let refused = stage.world.requests.refused();
    if refused.is_empty() {
        healing.abort();
    } else {
        tokio::time::timeout(Duration::from_secs(60), healing).await.expect("it is told").expect("no panic");
    }
    for asked in &refused {
        assert_eq!(&*asked.account, account, "without {case}: {asked:?}");
        assert!(lack.as_ref().is_some_and(|lack| concerns(lack, asked)), "without {case}: {asked:?}");
    }
    stage.world.stop().await;
    refused.len()
}

/// Whether a refused request needs this permission.
fn concerns(lack: &Rule, asked: &Asked) -> bool {
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let verb = lack.verbs.concat();
    if verb == "update" && lack.resources == ["statefulsets/finalizers"] {
        // No request writes to that path: the permission is checked when pods and revisions get an owner
        // whose deletion they block.
        return ["POST", "PATCH"].contains(&asked.method.as_str())
            && ["pods", "controllerrevisions"].iter().any(|owned| path.split('/').any(|part| part == *owned));
    }
    let method = match verb.as_str() {
        "get" | "list" | "watch" => "GET",
        "create" => "POST",
        "update" => "PUT",
        "patch" | "escalate" => "PATCH",
        _ => "DELETE",
    };
    // On servers that enforce this, a user who may not delete an object may not change its owner references
    // either.
    let is_guarded = verb == "delete" && asked.method == "PATCH" && !lack.resources.concat().contains('*');
    let method = if is_guarded { "PATCH" } else { method };
    let (resource, subresource) = match lack.resources.concat() {
        all if all == "*" => (String::new(), String::new()),
        one => match one.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), format!("/{subresource}")),
            None => (one, String::new()),
        },
    };
    asked.method == method
        && (verb == "watch") == query.contains("watch=")
        && (resource.is_empty() || resource == "*" || path.split('/').any(|part| part == resource))
        && path.ends_with(&subresource)
}

fn is_named(text: &str, resource: &str) -> bool {
    resource.contains('*') || text.contains(resource)
}

/// Waits for the first refusal, checks that it is reported, and grants the permission again.
struct Healer {
    admin: kube::Client,
    requests: Requests,
    metrics: runtime::Metrics,
    account: &'static str,
    all: Vec<Value>,
}

impl Healer {
    async fn heal(&self, lack: Option<&Rule>) {
        while self.requests.refused().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if let Some(lack) = lack {
            self.until_told(lack).await;
        }
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:controller:{}", self.account);
        let body = json!({"rules": self.all}).to_string().into_bytes();
        let request = http::Request::patch(path).header("content-type", "application/merge-patch+json").body(body);
        self.admin.request::<Value>(request.expect("a request")).await.expect("the right is given back");
    }

    fn metric(&self, verb: &str) -> String {
        format!("controller_requests_forbidden_total{{account=\"{}\",verb=\"{verb}\"", self.account)
    }

    /// The verbs and resources that a report of this missing permission may name. A server that guards owner
    /// references does not name the permission: then the report names the refused request.
    fn reported_for(&self, lack: &Rule) -> Vec<(String, String)> {
        let mut reported = vec![(lack.verbs.concat(), lack.resources.concat())];
        let is_guarded = lack.verbs == ["delete"] || lack.resources == ["statefulsets/finalizers"];
        for asked in self.requests.refused().iter().filter(|_| is_guarded) {
            let (method, uri) = (asked.method.parse().expect("a method"), asked.path.parse().expect("a path"));
            let asked = server::authz::asked(&method, &uri).expect("a request of a controller can be parsed");
            reported.push((asked.verb, asked.resource));
        }
        reported
    }

    /// Waits for the metric, and for the event if events can be sent.
    async fn until_told(&self, lack: &Rule) {
        let wanted = self.reported_for(lack);
        let mut text = String::new();
        for _ in 0..5000 {
            text.clear();
            let mut registry = prometheus_client::registry::Registry::default();
            self.metrics.register(&mut registry);
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
            let is_counted = |line: &str, (verb, resource): &(String, String)| {
                line.starts_with(&self.metric(verb)) && is_named(line, resource)
            };
            let counted = text.lines().any(|line| wanted.iter().any(|one| is_counted(line, one)));
            let events = http::Request::get("/api/v1/namespaces/kube-system/events").body(Vec::new());
            let events: Value = self.admin.request(events.expect("a request")).await.expect("a list");
            let said = |event: &Value| {
                let message = event.text(&["message"]);
                event.text(&["reason"]) == "Forbidden"
                    && event.text(&["involvedObject", "name"]) == self.account
                    && wanted.iter().any(|(verb, resource)| {
                        message.starts_with(&format!("{} may not {verb} ", self.account)) && is_named(message, resource)
                    })
            };
            let is_about_events = lack.verbs == ["create"] && lack.resources == ["events"];
            let told = is_about_events || events.items(&["items"]).iter().any(said);
            if counted && told {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("without {}: nobody is told\n{text}", lack.describe());
    }
}

/// The permissions for events are the same for all controllers: tested with one that records the same event
/// twice.
pub async fn each_right_of_events(account: &'static str) {
    let rights: Vec<Rule> = rights_of(account).into_iter().filter(|right| right.resources == ["events"]).collect();
    assert!(!rights.is_empty());
    for right in rights {
        let refused = told_without(account, Some(right.clone()), crate::stories::say_twice).await;
        assert!(refused > 0, "nothing needs {}", right.describe());
    }
}
