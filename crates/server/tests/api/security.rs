//! Authorization, authentication, and limits against overload.

use crate::support::*;
use serde_json::{Value, json};
use server::limits::Pool;
use std::sync::{Arc, Mutex};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": groups, "resources": resources})
}

/// Grants `user` these rules in the namespace `default`.
async fn allow(admin: &Api, name: &str, user: &str, rules: Value) {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    admin.post(&format!("{RBAC}/namespaces/default/roles"), &role).await.expect(201);
    let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]});
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
}

#[tokio::test]
async fn anonymous_users_see_health_and_version_only() {
    let world = World::new().await;
    let stranger = world.outside();
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(stranger.get(path).await.code, 200, "{path}");
    }
    for path in [
        "/",
        "/api",
        "/apis",
        "/api/v1",
        "/openapi/v2",
        "/openapi/v3",
        "/metrics",
        PODS,
        "/api/v1/namespaces",
        "/nothing",
        "/apis/none.io/v1/things",
    ] {
        let said = stranger.get(path).await.refused(403, "Forbidden");
        assert!(said.contains("User \"system:anonymous\" cannot"), "{path}: {said}");
    }
    let said = stranger.get(PODS).await.refused(403, "Forbidden");
    assert_eq!(
        said,
        "pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    let said = stranger.get("/api").await.refused(403, "Forbidden");
    assert_eq!(said, "forbidden: User \"system:anonymous\" cannot get path \"/api\"");
    // Authenticated users may read discovery.
    let somebody = world.as_user("somebody", &[]);
    for path in ["/api", "/apis", "/api/v1", "/openapi/v2", "/version", "/healthz"] {
        assert_eq!(somebody.get(path).await.code, 200, "{path}");
    }
    somebody.get("/metrics").await.refused(403, "Forbidden");
    somebody.get(PODS).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn roles_allow_what_they_say_and_nothing_else() {
    let world = World::new().await;
    let admin = world.admin();
    world.namespace("other").await;
    admin.post(CONFIG_MAPS, &config_map("mine")).await.expect(201);
    admin.post(CONFIG_MAPS, &config_map("yours")).await.expect(201);
    admin.post(SETS, &stateful_set("s")).await.expect(201);
    let rules = json!([
        {"verbs": ["get", "patch", "delete"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"]},
        rule(&["list"], &[""], &["configmaps"]),
        {"verbs": ["list"], "apiGroups": ["apps"], "resources": ["statefulsets"], "resourceNames": ["s"]},
        rule(&["get", "patch"], &["apps"], &["statefulsets/scale"]),
        rule(&["*"], &[""], &["secrets"]),
    ]);
    allow(&admin, "r", "kim", rules).await;
    let kim = world.as_user("kim", &[]);
    let mine = format!("{CONFIG_MAPS}/mine");
    let yours = format!("{CONFIG_MAPS}/yours");
    let secrets = "/api/v1/namespaces/default/secrets";
    let scale = json!({"spec": {"replicas": 1}});
    let cases = [
        (kim.get(&mine).await, 200),
        (kim.get(&yours).await, 403),
        (kim.get(CONFIG_MAPS).await, 200),
        (kim.get(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1")).await, 403),
        (kim.get("/api/v1/configmaps").await, 403),
        (kim.get("/api/v1/namespaces/other/configmaps").await, 403),
        (kim.put(&mine, &config_map("mine")).await, 403),
        (kim.patch(&mine, MERGE, &json!({"data": {"a": "b"}})).await, 200),
        (kim.patch(&yours, MERGE, &json!({"data": {"a": "b"}})).await, 403),
        (kim.post(CONFIG_MAPS, &config_map("new")).await, 403),
        (kim.get(&format!("{SETS}/s")).await, 403),
        // A list of one name needs permission only for that name.
        (kim.get(&format!("{SETS}?fieldSelector=metadata.name%3Ds")).await, 200),
        (kim.get(&format!("{SETS}?fieldSelector=metadata.name%3Dt")).await, 403),
        (kim.get(&format!("{SETS}?fieldSelector=metadata.name!%3Ds")).await, 403),
        (kim.get(SETS).await, 403),
        (kim.get(&format!("{SETS}/s/scale")).await, 200),
        (kim.patch(&format!("{SETS}/s/scale"), MERGE, &scale).await, 200),
        (kim.patch(&format!("{SETS}/s/status"), MERGE, &json!({})).await, 403),
        (kim.post(secrets, &json!({"metadata": {"name": "s"}})).await, 201),
        (kim.delete(secrets).await, 200),
        (kim.delete(&mine).await, 200),
        (kim.delete(CONFIG_MAPS).await, 403),
        // A user without permission does not learn whether an object exists.
        (kim.get(&format!("{PODS}/none")).await, 403),
    ];
    for (reply, code) in cases {
        assert_eq!(reply.code, code, "{}: {}", reply.asked, reply.body);
    }
    let said = kim.get(&yours).await.refused(403, "Forbidden");
    assert_eq!(
        said,
        "configmaps \"yours\" is forbidden: User \"kim\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    // A deleted binding has an effect at once.
    admin.delete(&format!("{RBAC}/namespaces/default/rolebindings/r")).await.expect(200);
    kim.get(CONFIG_MAPS).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn apply_needs_the_right_to_create_where_it_creates() {
    let world = World::new().await;
    let admin = world.admin();
    allow(&admin, "r", "kim", json!([rule(&["get", "patch"], &[""], &["configmaps"])])).await;
    let kim = world.as_user("kim", &[]);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "b"}});
    let path = format!("{CONFIG_MAPS}/a");
    let said = kim.apply(&path, "m", &object).await.refused(403, "Forbidden");
    assert!(said.contains("cannot create resource \"configmaps\""), "{said}");
    admin.apply(&path, "m", &object).await.expect(201);
    kim.apply(&path, "m", &object).await.expect(200);
}

#[tokio::test]
async fn users_cannot_grant_more_than_they_have() {
    let world = World::new().await;
    let admin = world.admin();
    allow(
        &admin,
        "r",
        "kim",
        json!([
            rule(&["create", "update", "patch"], &["rbac.authorization.k8s.io"], &["roles", "rolebindings"]),
            rule(&["get", "list"], &[""], &["pods"]),
        ]),
    )
    .await;
    let kim = world.as_user("kim", &[]);
    let roles = format!("{RBAC}/namespaces/default/roles");
    let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
    kim.post(&roles, &role("fine", json!([rule(&["get"], &[""], &["pods"])]))).await.expect(201);
    let more = role("more", json!([rule(&["get", "delete"], &[""], &["pods"])]));
    let said = kim.post(&roles, &more).await.refused(403, "Forbidden");
    assert!(said.starts_with("roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"kim\" (groups=[\"system:authenticated\"]) is \
        attempting to grant RBAC permissions not currently held:\n"), "{said}");
    assert!(said.contains("{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"), "{said}");
    kim.patch(&format!("{roles}/fine"), MERGE, &json!({"rules": [rule(&["*"], &["*"], &["*"])]}))
        .await
        .refused(403, "Forbidden");
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "kim"}]});
    kim.post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.refused(403, "Forbidden");
    let before = world.store.revision();
    kim.post(&format!("{roles}?dryRun=All"), &more).await.refused(403, "Forbidden");
    assert_eq!(world.store.revision(), before);
    // The role of a binding cannot be changed.
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
    let other = json!({"roleRef": {"name": "view"}});
    admin.patch(&format!("{RBAC}/namespaces/default/rolebindings/b"), MERGE, &other).await.refused(422, "Invalid");
}

#[tokio::test]
async fn static_tokens_and_impersonation() {
    let world = World::new().await;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let jane = world.outside().header("authorization", "Bearer sesame-open-please");
    let me = jane.post(reviews, &review).await.expect(201);
    assert_eq!(
        me["status"]["userInfo"],
        json!({"username": "jane", "uid": "u-1", "groups": ["team-a", "team-b", "system:authenticated"]})
    );
    let wrong = world.outside().header("authorization", "Bearer sesame-open-pleasE").get("/version").await;
    assert!(wrong.headers.contains_key("www-authenticate"));
    assert_eq!(wrong.refused(401, "Unauthorized"), "Unauthorized");
    // The user boss may impersonate others, jane may not.
    let boss = world.outside().header("authorization", "Bearer boss-token-xyz");
    let as_kim = boss.header("impersonate-user", "kim").header("impersonate-group", "ops");
    let me = as_kim.post(reviews, &review).await.expect(201);
    assert_eq!(me["status"]["userInfo"], json!({"username": "kim", "groups": ["ops", "system:authenticated"]}));
    as_kim.get(PODS).await.refused(403, "Forbidden");
    let said = jane.header("impersonate-user", "boss").get("/version").await.refused(403, "Forbidden");
    assert_eq!(
        said,
        "users \"boss\" is forbidden: User \"jane\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope"
    );
    let account = boss
        .header("impersonate-user", "system:serviceaccount:default:default")
        .post(reviews, &review)
        .await
        .expect(201);
    assert_eq!(
        account["status"]["userInfo"]["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"])
    );
    let half = boss.header("impersonate-group", "ops").get("/version").await;
    assert_eq!(half.code / 100, 4, "{}", half.body);
}

#[tokio::test]
async fn account_tokens_live_as_long_as_what_they_are_bound_to() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await.expect(201);
    let mut pod = scheduled("p");
    pod["spec"]["serviceAccountName"] = json!("robot");
    admin.post(PODS, &pod).await.expect(201);
    let ask = |spec: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let tokens = format!("{ACCOUNTS}/robot/token");
    let plain = admin.post(&tokens, &ask(json!({}))).await.expect(201);
    let token = text(&plain, "/status/token");
    let bound = admin
        .post(&tokens, &ask(json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}})))
        .await
        .expect(201);
    let bound = text(&bound, "/status/token");
    assert_eq!(plain["status"]["expirationTimestamp"], "2026-01-01T01:00:00Z");
    admin.post(&tokens, &ask(json!({"expirationSeconds": 5}))).await.refused(422, "Invalid");
    admin.post(&format!("{ACCOUNTS}/none/token"), &ask(json!({}))).await.refused(404, "NotFound");
    let with = |token: &str| world.outside().header("authorization", &format!("Bearer {token}"));
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let me = with(&token).post(reviews, &review).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "system:serviceaccount:default:robot");
    assert_eq!(with(&bound).get("/api").await.code, 200);
    // A changed character invalidates a token.
    let mut forged = token.clone().into_bytes();
    let at = forged.len() / 2;
    forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
    with(&String::from_utf8(forged).unwrap()).get("/api").await.refused(401, "Unauthorized");
    admin.delete(&format!("{PODS}/p?gracePeriodSeconds=0")).await.expect(200);
    with(&bound).get("/api").await.refused(401, "Unauthorized");
    assert_eq!(with(&token).get("/api").await.code, 200);
    // Token reviews agree.
    let token_review =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let reviewed = admin.post("/apis/authentication.k8s.io/v1/tokenreviews", &token_review).await.expect(201);
    assert_eq!(reviewed["status"]["authenticated"], true);
    world.clock.advance(3661);
    with(&token).get("/api").await.refused(401, "Unauthorized");
    let fresh = text(&admin.post(&tokens, &ask(json!({}))).await.expect(201), "/status/token");
    assert_eq!(with(&fresh).get("/api").await.code, 200);
    admin.delete(&format!("{ACCOUNTS}/robot")).await.expect(200);
    with(&fresh).get("/api").await.refused(401, "Unauthorized");
    // A new account of the same name is another account.
    admin.post(ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await.expect(201);
    with(&fresh).get("/api").await.refused(401, "Unauthorized");
}

#[tokio::test]
async fn access_reviews_answer_what_would_happen() {
    let world = World::new().await;
    let admin = world.admin();
    allow(&admin, "r", "kim", json!([rule(&["get"], &[""], &["pods", "pods/log"])])).await;
    let kim = world.as_user("kim", &[]);
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let ask = |verb: &str, sub: &str, namespace: &str| json!({"spec": {"resourceAttributes": {"verb": verb, "resource": "pods", "subresource": sub, "namespace": namespace}}});
    for (verb, sub, namespace, allowed) in [
        ("get", "", "default", true),
        ("get", "log", "default", true),
        ("list", "", "default", false),
        ("get", "", "other", false),
        ("get", "", "", false),
    ] {
        let reply = kim.post(reviews, &ask(verb, sub, namespace)).await.expect(201);
        assert_eq!(reply["status"]["allowed"], allowed, "{verb} {sub} {namespace}");
    }
    let path = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}});
    assert_eq!(kim.post(reviews, &path).await.expect(201)["status"]["allowed"], false);
    let others = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    kim.post(others, &json!({"spec": {"user": "x"}})).await.refused(403, "Forbidden");
    let mut about = ask("get", "", "default");
    about["spec"]["user"] = json!("kim");
    assert_eq!(admin.post(others, &about).await.expect(201)["status"]["allowed"], true);
    let rules = kim
        .post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &json!({"spec": {"namespace": "default"}}))
        .await
        .expect(201);
    assert!(
        rules["status"]["resourceRules"]
            .as_array()
            .unwrap()
            .iter()
            .any(|rule| rule["resources"] == json!(["pods", "pods/log"])),
        "{rules}"
    );
    assert_eq!(rules["status"]["incomplete"], false);
    admin.post(reviews, &json!({"spec": {}})).await.refused(422, "Invalid");
    admin.get(reviews).await.refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn bodies_have_a_size_and_a_depth() {
    let world = World::new().await;
    let admin = world.admin();
    let mut large = config_map("large");
    large["data"]["key"] = json!("x".repeat(3 * 1024 * 1024));
    let said = admin.post(CONFIG_MAPS, &large).await.refused(413, "RequestEntityTooLarge");
    assert_eq!(said, "Request entity too large: limit is 3145728");
    large["data"]["key"] = json!("x".repeat(2 * 1024 * 1024));
    let said = admin.post(CONFIG_MAPS, &large).await.refused(422, "Invalid");
    assert!(said.contains("Too long: may not be more than 1048576 bytes"), "{said}");
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let inner = if open == "[" { "" } else { "1" };
        let deep = format!("{}{inner}{}", open.repeat(100_000), close.repeat(100_000));
        let body = format!("{{\"metadata\":{{\"name\":\"d\"}},\"data\":{deep}}}");
        admin.send("POST", CONFIG_MAPS, "application/json", body.clone()).await.refused(400, "BadRequest");
        admin.send("POST", CONFIG_MAPS, "application/yaml", body).await.refused(400, "BadRequest");
        admin.send("PATCH", &format!("{CONFIG_MAPS}/kube-root-ca.crt"), MERGE, deep).await.refused(400, "BadRequest");
    }
    // A YAML document that is small to send and huge in memory.
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for at in 1..12 {
        let previous = at - 1;
        bomb.push_str(&format!("a{at}: &a{at} [*a{previous}, *a{previous}, *a{previous}, *a{previous}, *a{previous}, *a{previous}, *a{previous}, *a{previous}, *a{previous}]\n"));
    }
    let reply = admin.send("POST", CONFIG_MAPS, "application/yaml", bomb).await;
    assert_eq!(reply.code / 100, 4, "{}", reply.body);
    admin.get("/healthz").await;
    admin.post(CONFIG_MAPS, &config_map("after")).await.expect(201);
}

#[tokio::test]
async fn too_many_requests_get_429() {
    let world = World::new().await;
    let kim = world.ordinary("kim").await;
    let limits = &world.running.server.limits.ordinary;
    let take_all_but = |pool: &Arc<Pool>, left: usize| pool.try_acquire(None, pool.available() - left).unwrap();
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let _watches = take_all_but(&limits.watches, 1);
    let taken = (take_all_but(&limits.writes, 0), take_all_but(&limits.reads, 0));
    for reply in [kim.get(CONFIG_MAPS).await, kim.post(CONFIG_MAPS, &config_map("a")).await] {
        assert_eq!(reply.headers["retry-after"], "1");
        assert_eq!(reply.body["details"]["retryAfterSeconds"], 1);
        reply.refused(429, "TooManyRequests");
    }
    // Administrators and control plane components are not limited by ordinary users.
    world.admin().post(CONFIG_MAPS, &config_map("by-admin")).await.expect(201);
    let component = world.as_user("system:serviceaccount:kube-system:c", &["system:serviceaccounts:kube-system"]);
    component.get(CONFIG_MAPS).await.refused(403, "Forbidden");
    let metrics = world.admin().get("/metrics").await.bytes;
    let metrics = String::from_utf8_lossy(&metrics);
    for reason in ["reads", "writes"] {
        let line = format!("mainstay_requests_rejected_total{{priority_level=\"ordinary\",reason=\"{reason}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }
    // Lease renewals and health requests are always admitted.
    kim.post(leases, &lease).await.expect(201);
    assert_eq!(kim.get("/readyz").await.code, 200);
    drop(taken);
    let held = kim.watch(&format!("{CONFIG_MAPS}?watch=1")).await;
    kim.get(&format!("{CONFIG_MAPS}?watch=1")).await.refused(429, "TooManyRequests");
    // A closed watch releases its slot.
    drop(held);
    drop(kim.watch(&format!("{CONFIG_MAPS}?watch=1")).await);
    kim.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
}

/// Users with large unread responses get 429 before they fill the memory; small requests are served.
#[tokio::test]
async fn large_unread_responses_are_limited() {
    let world = World::new().await;
    let admin = world.admin();
    let mut large = config_map("large");
    large["data"] = json!({"pad": "x".repeat(200_000)});
    admin.post(CONFIG_MAPS, &large).await.expect(201);
    let room = &world.running.server.limits.exempt.responses;
    let left = 900;
    let _taken = room.try_acquire(None, room.available() - left).unwrap();
    let mut unread = Vec::new();
    let refused = loop {
        let reply = admin.get(CONFIG_MAPS).await;
        if reply.code != 200 {
            break reply;
        }
        unread.push(reply.bytes);
        assert!(unread.len() < 10, "there is no end");
    };
    assert_eq!(unread.len(), 4, "{} KiB each of {left}", unread[0].len() / 1024);
    assert_eq!(refused.headers["retry-after"], "1");
    refused.refused(429, "TooManyRequests");
    // Small responses, health and responses to writes continue.
    admin.get("/api/v1/namespaces/default").await.expect(200);
    assert_eq!(admin.get("/readyz").await.code, 200);
    admin.patch(&format!("{CONFIG_MAPS}/large"), MERGE, &json!({"data": {"a": "b"}})).await.expect(200);
    unread.clear();
    assert_eq!(room.available(), left);
    admin.get(CONFIG_MAPS).await.expect(200);
}

#[tokio::test]
async fn secrets_stay_out_of_errors_and_logs() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let world = World::new().await;
    let admin = world.admin();
    tracing::info!("the log is heard");
    let path = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}, "data": {"password": "aHVudGVyMg=="}, "immutable": true});
    admin.post(path, &secret).await.expect(201);
    let replies = [
        admin.post(path, &json!({"metadata": {"name": "t"}, "data": {"password": "hunter2 is not base64"}})).await,
        admin.post(path, &json!({"metadata": {"name": "t"}, "stringData": {"password": {"is": "hunter2"}}})).await,
        admin.patch(&format!("{path}/s"), MERGE, &json!({"data": {"password": "aHVudGVyMw=="}})).await,
        admin.patch(&format!("{path}/s"), MERGE, &json!({"stringData": {"password": "hunter2!"}})).await,
        admin
            .post(
                path,
                &json!({"metadata": {"name": "t"}, "type": "kubernetes.io/tls", "data": {"tls.crt": "aHVudGVyMg=="}}),
            )
            .await,
        admin.post(path, &json!({"metadata": {"name": "t"}, "data": {"bad key!": "aHVudGVyMg=="}})).await,
        admin
            .send(
                "POST",
                path,
                "application/json",
                r#"{"metadata": {"name": "t"}, "data": {"password": "aHVudGVyMg=="}"#,
            )
            .await,
    ];
    for reply in replies {
        assert!(reply.code >= 400, "{}: {}", reply.asked, reply.body);
        let said = String::from_utf8_lossy(&reply.bytes);
        for word in ["hunter2", "aHVudGVyMg", "aHVudGVyMw"] {
            assert!(!said.contains(word), "{}: {said}", reply.asked);
        }
    }
    let jane = world.outside().header("authorization", "Bearer sesame-open-please");
    assert_eq!(jane.get("/api").await.code, 200);
    world.outside().header("authorization", "Bearer wrong-but-secret").get("/api").await.refused(401, "Unauthorized");
    let token_request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"});
    let token = admin.post(&format!("{ACCOUNTS}/default/token"), &token_request).await.expect(201);
    let token = text(&token, "/status/token");
    let lines = log.0.lock().unwrap().join("\n");
    assert!(lines.contains("the log is heard"));
    for word in ["hunter2", "aHVudGVyMg", "aHVudGVyMw", "sesame-open", "wrong-but-secret", &token] {
        assert!(!lines.contains(word), "{word} in {lines}");
    }
}

/// Captures log events of all levels.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        self.keep(|line| attributes.record(line));
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        self.keep(|line| values.record(line));
    }
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        self.keep(|line| event.record(line));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

impl Log {
    fn keep(&self, record: impl FnOnce(&mut Line)) {
        let mut line = Line::default();
        record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

#[derive(Default)]
struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

#[tokio::test]
async fn the_bootstrap_roles_apply() {
    let world = World::new().await;
    let admin = world.admin();
    let binding = json!({"metadata": {"name": "kim-views"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "kim"}]});
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
    let kim = world.as_user("kim", &[]);
    kim.get(PODS).await.expect(200);
    kim.get("/api/v1/namespaces/default/secrets").await.refused(403, "Forbidden");
    kim.post(PODS, &pod("p")).await.refused(403, "Forbidden");
    kim.get("/api/v1/pods").await.refused(403, "Forbidden");
}
