//! kubectl and permissions: can-i, whoami, tokens, impersonation, RBAC, anonymous.

mod support;

use serde_json::{Value, json};
use support::{Kubectl, kubectl};

/// A service account that may read pods, and kubectl with its token.
fn robot(kubectl: &Kubectl) -> Kubectl {
    kubectl.ok("create serviceaccount robot");
    kubectl.ok("create role reader --verb=get,list,watch --resource=pods");
    kubectl.ok(&format!("create rolebinding reads --role=reader --serviceaccount={}:robot", kubectl.namespace()));
    let token = kubectl.ok("create token robot");
    kubectl.with_token(Some(token.trim()))
}

/// The claims of a JSON web token, without verification.
fn claims(token: &str) -> Value {
    let part = token.trim().split('.').nth(1).expect("a token has three parts");
    let bytes: Vec<u8> = part.bytes().filter_map(sextet).collect();
    let decoded: Vec<u8> = bytes
        .chunks(4)
        .flat_map(|four| {
            let bits = four.iter().fold(0u32, |bits, six| bits << 6 | u32::from(*six)) << (6 * (4 - four.len()));
            bits.to_be_bytes()[1..four.len()].to_vec()
        })
        .collect();
    serde_json::from_slice(&decoded).expect("claims are JSON")
}

/// The value of one base64url character.
fn sextet(c: u8) -> Option<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    alphabet.iter().position(|known| *known == c).and_then(|at| u8::try_from(at).ok())
}

#[test]
fn the_administrator_may_do_everything() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.prints("auth can-i create pods", "yes");
    kubectl.prints("auth can-i '*' '*' --all-namespaces", "yes");
    kubectl.prints("auth can-i get /metrics", "yes");
    let list = kubectl.ok("auth can-i --list");
    assert!(list.starts_with("Resources") && list.contains("*.*"), "{list}");
    let me = kubectl.value("auth whoami -o json");
    let groups = me["status"]["userInfo"]["groups"].as_array().cloned().unwrap_or_default();
    assert!(groups.contains(&json!("system:authenticated")), "{me}");
}

#[test]
fn can_i_answers_for_others_too() {
    let Some(kubectl) = kubectl() else { return };
    robot(&kubectl);
    let account = format!("system:serviceaccount:{}:robot", kubectl.namespace());
    for (question, answer) in [
        ("get pods", "yes"),
        ("list pods", "yes"),
        ("delete pods", "no"),
        ("get pods --subresource=log", "no"),
        ("get secrets", "no"),
        ("get pods --all-namespaces", "no"),
        ("get /healthz", "yes"),
        ("get /metrics", "no"),
        ("create selfsubjectaccessreviews.authorization.k8s.io", "yes"),
    ] {
        let said = kubectl.run(&format!("auth can-i {question} --as={account}"));
        assert_eq!(said.out.trim(), answer, "{said}");
        assert_eq!(said.code(), i32::from(answer == "no"), "{said}");
    }
    let list = kubectl.ok(&format!("auth can-i --list --as={account}"));
    let row = list.lines().find(|line| line.starts_with("pods ")).unwrap_or("");
    assert!(row.contains("[get list watch]"), "{list}");
    assert!(list.contains("selfsubjectaccessreviews.authorization.k8s.io"), "{list}");
    kubectl.prints("auth can-i create pods --as=jane --as-group=system:masters", "yes");
    let error = kubectl.run("auth can-i create flowers").err;
    assert!(error.contains("the server doesn't have a resource type 'flowers'"), "{error}");
}

#[test]
fn a_service_account_is_held_to_its_role() {
    let Some(kubectl) = kubectl() else { return };
    let robot = robot(&kubectl);
    let space = kubectl.namespace();
    kubectl.ok("run web --image=nginx:1");
    robot.prints("get pods -o name", "pod/web");
    let me = robot.value("auth whoami -o json");
    assert_eq!(me["status"]["userInfo"]["username"], format!("system:serviceaccount:{space}:robot"));
    let account = format!("User \"system:serviceaccount:{space}:robot\"");
    for (command, action) in [
        (
            "delete pod web",
            format!(
                "pods \"web\" is forbidden: {account} cannot delete resource \"pods\" in API group \"\" in the namespace \"{space}\""
            ),
        ),
        (
            "get secrets",
            format!(
                "secrets is forbidden: {account} cannot list resource \"secrets\" in API group \"\" in the namespace \"{space}\""
            ),
        ),
        (
            "get nodes",
            format!(
                "nodes is forbidden: {account} cannot list resource \"nodes\" in API group \"\" at the cluster scope"
            ),
        ),
        (
            "get pods -A",
            format!(
                "pods is forbidden: {account} cannot list resource \"pods\" in API group \"\" at the cluster scope"
            ),
        ),
        (
            "patch sts web -p {}",
            format!("statefulsets.apps \"web\" is forbidden: {account} cannot get resource \"statefulsets\""),
        ),
        ("get pods --as=jane", format!("users \"jane\" is forbidden: {account} cannot impersonate resource \"users\"")),
    ] {
        let error = robot.fails(command);
        assert!(error.starts_with("Error from server (Forbidden): ") && error.contains(&action), "{command}: {error}");
    }
    // Escalation: a user cannot grant permissions that they do not have.
    kubectl.ok("create role roles --verb=get,create --resource=roles.rbac.authorization.k8s.io");
    kubectl.ok(&format!("create rolebinding roles --role=roles --serviceaccount={space}:robot"));
    let error = robot.fails("create role thief --verb=get --resource=secrets");
    assert!(error.contains("is attempting to grant RBAC permissions not currently held"), "{error}");
    robot.ok("create role honest --verb=get --resource=pods");
    // A granted permission can be revoked, which is effective from the next request on.
    kubectl.ok("delete rolebinding reads");
    assert!(robot.fails("get pods").contains("Forbidden"));
}

#[test]
fn tokens_have_user_audience_and_lifetime() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.ok("create serviceaccount robot");
    let space = kubectl.namespace();
    let token = claims(&kubectl.ok("create token robot --duration=20m"));
    assert_eq!(token["sub"], format!("system:serviceaccount:{space}:robot"));
    assert_eq!(token["exp"].as_i64().zip(token["iat"].as_i64()).map(|(exp, iat)| exp - iat), Some(1200));
    assert_eq!(token["kubernetes.io"]["serviceaccount"]["name"], "robot");
    let token = claims(&kubectl.ok("create token robot --audience=https://vault.example.com"));
    assert_eq!(token["aud"], json!(["https://vault.example.com"]));
    kubectl.create("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {serviceAccountName: robot, containers: [{name: c, image: i}]}\n");
    let uid = kubectl.object("pod/web")["metadata"]["uid"].clone();
    let token = kubectl.ok(&format!(
        "create token robot --bound-object-kind=Pod --bound-object-name=web --bound-object-uid={}",
        uid.as_str().unwrap_or("")
    ));
    assert_eq!(claims(&token)["kubernetes.io"]["pod"]["name"], "web");
    let error = kubectl.fails("create token robot --duration=1m");
    assert!(error.contains("may not specify a duration less than 10 minutes"), "{error}");
    let error = kubectl.fails("create token nobody");
    assert!(error.contains("serviceaccounts \"nobody\" not found"), "{error}");
    // A token expires with the object that it is bound to.
    let holder = kubectl.with_token(Some(token.trim()));
    holder.ok("auth whoami");
    kubectl.ok("delete pod web");
    let error = holder.fails("auth whoami");
    assert!(error.contains("Unauthorized") || error.contains("must be logged in"), "{error}");
}

#[test]
fn anonymous_users_get_health_and_version_only() {
    let Some(kubectl) = kubectl() else { return };
    let nobody = kubectl.with_token(None);
    nobody.prints("get --raw /readyz", "ok");
    assert!(nobody.ok("get --raw /version").contains("gitVersion"));
    let error = nobody.fails("get --raw /api/v1/namespaces");
    assert!(error.contains("namespaces is forbidden: User \"system:anonymous\" cannot list resource \"namespaces\" in API group \"\" at the cluster scope"), "{error}");
    let error = nobody.fails("get --raw /metrics");
    assert!(error.contains("forbidden: User \"system:anonymous\" cannot get path \"/metrics\""), "{error}");
    let liar = kubectl.with_token(Some("not-a-token"));
    let error = liar.fails("get --raw /api/v1/namespaces");
    assert!(error.contains("Unauthorized") || error.contains("provide credentials"), "{error}");
}

#[test]
fn bootstrap_roles_are_upstreams() {
    let Some(kubectl) = kubectl() else { return };
    let roles = kubectl.ok("get clusterroles -o name");
    for name in [
        "cluster-admin",
        "admin",
        "edit",
        "view",
        "system:basic-user",
        "system:discovery",
        "system:public-info-viewer",
        "system:node",
        "system:kube-controller-manager",
        "system:controller:generic-garbage-collector",
        "system:controller:namespace-controller",
    ] {
        assert!(
            roles.lines().any(|line| line == format!("clusterrole.rbac.authorization.k8s.io/{name}")),
            "{name} is missing in\n{roles}"
        );
    }
    // Aggregation: a labelled role is added to `view`.
    let name = format!("flowers-{}", kubectl.namespace());
    kubectl.ok(&format!("create clusterrole {name} --verb=get --resource=nodes"));
    kubectl.ok(&format!("label clusterrole {name} rbac.authorization.k8s.io/aggregate-to-view=true"));
    kubectl.ok("create serviceaccount viewer");
    kubectl.ok(&format!(
        "create clusterrolebinding {name} --clusterrole=view --serviceaccount={}:viewer",
        kubectl.namespace()
    ));
    // Rules are listed in the order of their roles' names, and this name is an early one.
    kubectl.ok("wait clusterrole/view --for=jsonpath={.rules[0].resources[0]}=nodes --timeout=30s");
    kubectl.prints(&format!("auth can-i get nodes --as=system:serviceaccount:{}:viewer", kubectl.namespace()), "yes");
    let role = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: again, namespace: {}}}\n\
         rules: [{{apiGroups: [''], resources: [pods], verbs: [get]}}]\n",
        kubectl.namespace()
    );
    let reconciled = kubectl.ok_with("auth reconcile -f -", &role);
    assert!(reconciled.contains("role.rbac.authorization.k8s.io/again reconciled"), "{reconciled}");
}
