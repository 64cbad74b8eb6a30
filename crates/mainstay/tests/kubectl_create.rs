//! kubectl creates objects: create with its generators, run, expose, events.

mod support;

use serde_json::json;
use support::kubectl_without_nodes;

#[test]
fn create_from_files_of_every_shape() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-yaml}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: from-yaml}\n";
    assert_eq!(kubectl.create(yaml), "configmap/from-yaml created\nsecret/from-yaml created\n");
    let json = r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"from-json"}}]}"#;
    assert_eq!(kubectl.create(json), "configmap/from-json created\n");
    let generated = "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: batch-}\n";
    let first = kubectl.create(generated);
    let name = first.strip_prefix("configmap/batch-").and_then(|rest| rest.strip_suffix(" created\n")).expect(&first);
    assert!(name.len() == 5 && name.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)), "{first}");
    assert_ne!(kubectl.create(generated), first);
    kubectl.cluster.write("one.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-file}\n");
    kubectl.prints("create -f one.yaml -o name", "configmap/from-file");
    let error = kubectl.fails("create -f one.yaml");
    assert_eq!(
        error,
        "Error from server (AlreadyExists): error when creating \"one.yaml\": configmaps \"from-file\" already exists"
    );
}

#[test]
fn generators_create_the_described_objects() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    let name = |what: &str| format!("{}-{what}", kubectl.namespace());
    let space = name("space");
    let role = name("role");
    for (command, said) in [
        ("create configmap one --from-literal=a=1 --from-literal=b=2".to_owned(), "configmap/one created".to_owned()),
        ("create secret generic one --from-literal=password=x".to_owned(), "secret/one created".to_owned()),
        (
            "create secret docker-registry pull --docker-server=r --docker-username=u --docker-password=p".to_owned(),
            "secret/pull created".to_owned(),
        ),
        ("create serviceaccount robot".to_owned(), "serviceaccount/robot created".to_owned()),
        (format!("create namespace {space}"), format!("namespace/{space} created")),
        (
            "create quota limits --hard=pods=3,requests.storage=10Gi".to_owned(),
            "resourcequota/limits created".to_owned(),
        ),
        ("create service clusterip svc --tcp=80:8080".to_owned(), "service/svc created".to_owned()),
        ("create service nodeport np --tcp=80:8080".to_owned(), "service/np created".to_owned()),
        (
            "create poddisruptionbudget pdb --selector=app=web --min-available=1".to_owned(),
            "poddisruptionbudget.policy/pdb created".to_owned(),
        ),
        (
            "create role reader --verb=get,list --resource=pods,statefulsets.apps".to_owned(),
            "role.rbac.authorization.k8s.io/reader created".to_owned(),
        ),
        (
            "create rolebinding reads --role=reader --serviceaccount=default:robot --user=jane".to_owned(),
            "rolebinding.rbac.authorization.k8s.io/reads created".to_owned(),
        ),
        (
            format!("create clusterrole {role} --verb=get --resource=nodes --non-resource-url=/metrics"),
            format!("clusterrole.rbac.authorization.k8s.io/{role} created"),
        ),
        (
            format!("create clusterrolebinding {role} --clusterrole={role} --group=ops"),
            format!("clusterrolebinding.rbac.authorization.k8s.io/{role} created"),
        ),
    ] {
        kubectl.prints(&command, &said);
    }
    assert_eq!(kubectl.object("cm/one")["data"], json!({"a": "1", "b": "2"}));
    assert_eq!(kubectl.object("secret/one")["data"], json!({"password": "eA=="}));
    assert_eq!(kubectl.object("secret/pull")["type"], "kubernetes.io/dockerconfigjson");
    assert_eq!(kubectl.object("svc/svc")["spec"]["ports"][0]["targetPort"], 8080);
    let port = kubectl.object("svc/np")["spec"]["ports"][0]["nodePort"].as_i64().unwrap_or(0);
    assert!((30000..32768).contains(&port), "a node port is given out: {port}");
    assert_eq!(kubectl.object("role/reader")["rules"].as_array().map(Vec::len), Some(2));
    let error = kubectl.fails("create deployment web --image=nginx");
    assert!(
        error.contains("the server could not find the requested resource") || error.contains("no matches for kind"),
        "{error}"
    );
}

#[test]
fn dry_runs_change_nothing_and_show_the_result() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: dry}\nspec: {containers: [{name: c, image: 'nginx:1'}]}\n";
    assert_eq!(kubectl.ok_with("create -f - --dry-run=server", pod), "pod/dry created (server dry run)\n");
    let out = kubectl
        .ok_with("create -f - --dry-run=server -o jsonpath={.spec.restartPolicy},{.spec.serviceAccountName}", pod);
    assert_eq!(out, "Always,default", "the server defaults the object of a dry run");
    kubectl.prints("get pods --ignore-not-found -o name", "");
    let error = kubectl.fails_with("create -f - --dry-run=server", &pod.replace("image:", "imagine:"));
    assert!(error.contains("imagine"), "{error}");
}

#[test]
fn run_makes_a_pod() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    kubectl.prints("run web --image=nginx:1 --port=80 --labels=app=web --env=A=1 --restart=Never", "pod/web created");
    let pod = kubectl.object("pod/web");
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(pod["status"]["qosClass"], "BestEffort");
    let container = &pod["spec"]["containers"][0];
    assert_eq!((&container["imagePullPolicy"], &container["env"][0]["value"]), (&json!("IfNotPresent"), &json!("1")));
    kubectl.prints("run sh --image=busybox --command --dry-run=server -o name -- sleep 1d", "pod/sh");
    let error = kubectl.fails("run web --image=nginx:1");
    assert_eq!(error, "Error from server (AlreadyExists): pods \"web\" already exists");
}

#[test]
fn expose_makes_a_service() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    kubectl.ok("run web --image=nginx:1 --port=80 --labels=app=web");
    kubectl.prints("expose pod web --name=front --port=8080 --target-port=80", "service/front exposed");
    let service = kubectl.object("svc/front");
    assert_eq!(service["spec"]["selector"], json!({"app": "web"}));
    assert_eq!(service["spec"]["ports"][0], json!({"port": 8080, "protocol": "TCP", "targetPort": 80}));
    assert_eq!(service["spec"]["clusterIPs"][0], service["spec"]["clusterIP"]);
    kubectl.prints("expose service front --name=headless --port=80 --cluster-ip=None", "service/headless exposed");
    assert_eq!(kubectl.object("svc/headless")["spec"]["clusterIP"], "None");
    kubectl.prints("expose pod web --name=named --port=80 --type=NodePort", "service/named exposed");
    let error = kubectl.fails("expose cm nothing --port=80");
    assert!(error.contains("cannot expose") || error.contains("not found"), "{error}");
}

#[test]
fn events_are_listed_by_object_and_type() {
    let Some(kubectl) = kubectl_without_nodes() else { return };
    kubectl.ok("run web --image=nginx:1");
    let uid = kubectl.object("pod/web")["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let space = kubectl.namespace();
    let event = |name: &str, kind: &str, reason: &str, message: &str| {
        format!(
            "---\napiVersion: v1\nkind: Event\nmetadata: {{name: {name}}}\n\
             involvedObject: {{apiVersion: v1, kind: Pod, name: web, namespace: {space}, uid: {uid}}}\n\
             type: {kind}\nreason: {reason}\nmessage: {message}\ncount: 3\n\
             firstTimestamp: '2026-01-01T00:00:00Z'\nlastTimestamp: '2026-01-01T00:00:10Z'\nsource: {{component: test}}\n"
        )
    };
    kubectl.create(&(event("web.1", "Normal", "Pulled", "Got it") + &event("web.2", "Warning", "Failed", "Lost it")));
    let all = kubectl.ok("events");
    assert!(all.contains("LAST SEEN") && all.contains("Pulled") && all.contains("Lost it"), "{all}");
    let one = kubectl.ok("events --for pod/web --types=Warning");
    assert!(one.contains("Failed") && !one.contains("Pulled"), "{one}");
    let table = kubectl.ok("get events --field-selector=involvedObject.name=web,type=Warning --no-headers");
    assert!(table.contains("pod/web") && table.contains("Lost it") && !table.contains("Pulled"), "{table}");
    let same = kubectl.ok("get events.events.k8s.io --field-selector=regarding.name=web -o jsonpath={.items[*].note}");
    assert_eq!(same, "Got it Lost it", "both groups serve the same objects");
    let described = kubectl.ok("describe pod web");
    assert!(described.contains("Lost it") && described.contains("(x3 over"), "{described}");
}
