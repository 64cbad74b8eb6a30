//! Wrong input: each mistake gets one clear sentence, and the server continues.

mod support;

use support::kubectl;

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\nspec: {containers: [{name: c, image: 'nginx:1'}]}\n";

fn pod(name: &str) -> String {
    POD.replace("NAME", name)
}

#[test]
fn manifests_with_mistakes_are_refused_with_their_reason() {
    let Some(kubectl) = kubectl() else { return };
    let cases: &[(&str, String, &str)] = &[
        ("not YAML", "a: b: c".to_owned(), "error parsing STDIN"),
        ("no kind", "apiVersion: v1\nmetadata: {name: x}\n".to_owned(), "kind not set"),
        ("no version", "kind: Pod\nmetadata: {name: x}\n".to_owned(), "apiVersion not set"),
        ("unknown kind", "apiVersion: v1\nkind: Flower\nmetadata: {name: x}\n".to_owned(), "no matches for kind \"Flower\" in version \"v1\""),
        ("unknown group", "apiVersion: garden/v1\nkind: Flower\nmetadata: {name: x}\n".to_owned(), "no matches for kind \"Flower\" in version \"garden/v1\""),
        ("unknown field", pod("x").replace("image:", "imagine:"), "strict decoding error: unknown field \"spec.containers[0].imagine\""),
        ("unknown field at the top", format!("{}colour: red\n", pod("x")), "strict decoding error: unknown field \"colour\""),
        ("text for a number", pod("x").replace("spec: {", "spec: {activeDeadlineSeconds: soon, "), "json: cannot unmarshal string into Go struct field PodSpec.spec.activeDeadlineSeconds of type int64"),
        ("number for a text", pod("x").replace("'nginx:1'", "7"), "json: cannot unmarshal number into Go struct field Container.spec.containers.image of type string"),
        ("map for a list", pod("x").replace("[{name: c, image: 'nginx:1'}]", "{name: c}"), "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container"),
        ("bad name", pod("Bad_Name"), "The Pod \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"),
        ("no name", pod("''"), "name or generateName is required"),
        ("no containers", pod("x").replace("containers: [{name: c, image: 'nginx:1'}]", "containers: []"), "spec.containers: Required value"),
        ("twins", pod("x").replace("[{name: c", "[{name: c, image: a}, {name: c"), "spec.containers[1].name: Duplicate value: \"c\""),
        ("bad policy", pod("x").replace("spec: {", "spec: {restartPolicy: Sometimes, "), "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\""),
        ("bad quantity", pod("x").replace("image: 'nginx:1'", "image: a, resources: {requests: {cpu: lots}}"), "quantities must match the regular expression"),
        ("requests above limits", pod("x").replace("image: 'nginx:1'", "image: a, resources: {requests: {cpu: 2}, limits: {cpu: 1}}"), "must be less than or equal to cpu limit of 1"),
        ("bad label", pod("x").replace("{name: x}", "{name: x, labels: {a: 'b c'}}"), "metadata.labels: Invalid value: \"b c\": a valid label must be an empty string or consist of alphanumeric characters"),
        ("unknown volume", pod("x").replace("image: 'nginx:1'", "image: a, volumeMounts: [{name: v, mountPath: /v}]"), "spec.containers[0].volumeMounts[0].name: Not found: \"v\""),
        ("service without ports", "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {}\n".to_owned(), "The Service \"x\" is invalid: spec.ports: Required value"),
        ("claim without size", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: x}\nspec: {accessModes: [ReadWriteOnce]}\n".to_owned(), "spec.resources[storage]: Required value"),
        ("set whose labels differ", "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: x}\nspec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: c}}, spec: {containers: [{name: c, image: i}]}}}\n".to_owned(), "`selector` does not match template `labels`"),
        ("set with a bad policy", "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: x}\nspec: {persistentVolumeClaimRetentionPolicy: {whenDeleted: Never}, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n".to_owned(), "spec.persistentVolumeClaimRetentionPolicy.whenDeleted"),
        ("role that binds nothing", "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: x}\nrules: [{apiGroups: [''], resources: [pods], verbs: []}]\n".to_owned(), "rules[0].verbs: Required value: verbs must contain at least one value"),
        ("secret with bad base64", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: {a: '%%%'}\n".to_owned(), "illegal base64 data at input byte 0"),
        ("another namespace", pod("x").replace("{name: x}", "{name: x, namespace: elsewhere}"), "the namespace from the provided object \"elsewhere\" does not match the namespace"),
    ];
    for (mistake, manifest, sentence) in cases {
        let said = kubectl.run_with("create -f -", manifest);
        assert!(!said.status.success(), "{mistake} was accepted: {said}");
        let error = said.failed();
        assert!(error.contains(sentence), "{mistake}: expected {sentence:?}, got:\n{error}");
        assert!(!error.contains("Internal error"), "{mistake}: {error}");
    }
    kubectl.prints("get pods,services,pvc,sts,secrets,roles -o name", "");
}

#[test]
fn all_mistakes_of_one_object_are_reported_at_once() {
    let Some(kubectl) = kubectl() else { return };
    let error = kubectl.fails_with(
        "create -f -",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {restartPolicy: Sometimes, dnsPolicy: Never, containers: [{name: A, image: ''}]}\n",
    );
    for part in
        ["spec.restartPolicy", "spec.dnsPolicy", "spec.containers[0].name", "spec.containers[0].image: Required value"]
    {
        assert!(error.contains(part), "{part} is not named:\n{error}");
    }
    assert!(error.starts_with("The Pod \"x\" is invalid:"), "{error}");
}

#[test]
fn unknown_fields_are_warned_of_or_ignored_when_asked() {
    let Some(kubectl) = kubectl() else { return };
    let odd = pod("x").replace("image:", "colour: red, image:");
    let warned = kubectl.run_with("create -f - --validate=warn", &odd);
    assert!(warned.err.contains("Warning: unknown field \"spec.containers[0].colour\""), "{warned}");
    warned.succeeded();
    let silent = kubectl.run_with("create -f - --validate=ignore", &odd.replace("name: x", "name: z"));
    assert_eq!(silent.err, "", "{silent}");
    assert!(kubectl.object("pod/z")["spec"]["containers"][0].get("colour").is_none());
}

#[test]
fn forbidden_changes_are_refused() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.create(&pod("x"));
    kubectl.create("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: x}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: none}\n");
    kubectl.create("apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: x}\nspec: {serviceName: x, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n");
    kubectl.ok("create configmap x");
    kubectl.ok(r#"patch cm x --type=merge -p '{"immutable":true}'"#);
    for (command, sentence) in [
        (
            r#"patch pod x --type=merge -p '{"spec":{"hostname":"new"}}'"#,
            "pod updates may not change fields other than `spec.containers[*].image`",
        ),
        (
            r#"patch pod x --type=json -p '[{"op":"add","path":"/spec/containers/-","value":{"name":"d","image":"i"}}]'"#,
            "pod updates may not add or remove containers",
        ),
        (
            r#"patch sts x --type=merge -p '{"spec":{"serviceName":"y"}}'"#,
            "spec.serviceName: Invalid value: \"y\": field is immutable",
        ),
        (
            r#"patch sts x --type=merge -p '{"spec":{"replicas":-1}}'"#,
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            r#"patch pvc x --type=merge -p '{"spec":{"storageClassName":"y"}}'"#,
            "spec is immutable after creation except resources.requests",
        ),
        (
            r#"patch pvc x --type=merge -p '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}'"#,
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ),
        (
            r#"patch cm x --type=merge -p '{"data":{"a":"b"}}'"#,
            "data: Forbidden: field is immutable when `immutable` is set",
        ),
        (r#"patch cm x --type=merge -p '{"metadata":{"uid":"7"}}'"#, "Precondition failed: UID in precondition: 7"),
        (r#"patch cm x --type=merge -p '{"metadata":{"resourceVersion":"1"}}'"#, "the object has been modified"),
        (r#"patch cm x --type=merge -p '[1]'"#, ""),
        ("delete namespace kube-system", "namespaces \"kube-system\" is forbidden: this namespace may not be deleted"),
        (
            "scale sts x --replicas=-1",
            "The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0",
        ),
    ] {
        let error = kubectl.fails(command);
        assert!(error.contains(sentence), "{command}: expected {sentence:?}, got:\n{error}");
    }
    // A bound claim may be expanded if its class allows it.
    kubectl.ok(r#"patch pvc x --subresource=status --type=merge -p '{"status":{"phase":"Bound"}}'"#);
    let error = kubectl.fails(r#"patch pvc x --type=merge -p '{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}'"#);
    assert!(error.contains("is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"), "{error}");
}

#[test]
fn missing_namespaces_and_wrong_names_are_reported() {
    let Some(kubectl) = kubectl() else { return };
    let nowhere = kubectl.in_namespace("nowhere");
    let error = nowhere.fails("create configmap x");
    assert!(error.ends_with("namespaces \"nowhere\" not found"), "{error}");
    assert_eq!(nowhere.run("get pods").err.trim(), "No resources found in nowhere namespace.");
    for (command, sentence) in [
        ("get flowers", "error: the server doesn't have a resource type \"flowers\""),
        ("get pod x", "Error from server (NotFound): pods \"x\" not found"),
        ("get sts x", "Error from server (NotFound): statefulsets.apps \"x\" not found"),
        ("create configmap Bad_Name", "metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain"),
        (
            "create namespace UPPER",
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'",
        ),
        ("create namespace default", "Error from server (AlreadyExists): namespaces \"default\" already exists"),
        ("get --raw /api/v1/flowers", "Error from server (NotFound): the server could not find the requested resource"),
        ("get --raw '/api/v1/pods?limit=many'", "many"),
        ("get --raw '/api/v1/pods?labelSelector=a%3D%3D%3D'", "unable to parse requirement"),
        ("get --raw '/api/v1/pods?resourceVersion=soon'", "soon"),
        ("get --raw '/api/v1/pods?continue=forged'", "continue key is not valid"),
    ] {
        let error = kubectl.fails(command);
        assert!(error.contains(sentence), "{command}: expected {sentence:?}, got:\n{error}");
    }
    kubectl.create(&pod("x"));
    let error = kubectl.fails("debug x --image=busybox");
    assert!(error.contains("ephemeral containers are disabled for this cluster"), "{error}");
}

#[test]
fn quota_reports_used_and_hard() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.ok("create quota few --hard=count/configmaps=3,pods=1,requests.storage=2Gi");
    kubectl.ok("create configmap one");
    kubectl.ok("wait quota/few --for=jsonpath='{.status.hard.pods}'=1 --timeout=30s");
    kubectl.create(&pod("one"));
    let error = kubectl.fails_with("create -f -", &pod("two"));
    assert!(
        error.contains(
            "pods \"two\" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
        ),
        "{error}"
    );
    let claim = |name: &str, size: &str| {
        format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}}}\n"
        )
    };
    kubectl.create(&claim("a", "1Gi"));
    let error = kubectl.fails_with("create -f -", &claim("b", "1500Mi"));
    assert!(error.contains("exceeded quota: few, requested: requests.storage=1500Mi, used: requests.storage=1Gi, limited: requests.storage=2Gi"), "{error}");
    let described = kubectl.ok("describe quota few");
    let pods = described.lines().find(|line| line.starts_with("pods ")).unwrap_or("");
    assert_eq!(pods.split_whitespace().collect::<Vec<_>>(), ["pods", "1", "1"], "{described}");
}

#[test]
fn the_server_survives_malformed_requests() {
    let Some(kubectl) = kubectl() else { return };
    let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
    let file = kubectl.cluster.write(
        "deep.json",
        &format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"deep"}},"data":{deep}}}"#),
    );
    let path = format!("/api/v1/namespaces/{}/configmaps", kubectl.namespace());
    let error = kubectl.fails(&format!("create --raw {path} -f {file}"));
    assert!(error.contains("Error from server"), "{}", &error[..error.len().min(2000)]);
    let huge = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"huge"}},"data":{{"a":"{}"}}}}"#,
        "x".repeat(4 << 20)
    );
    let file = kubectl.cluster.write("huge.json", &huge);
    let error = kubectl.fails(&format!("create --raw {path} -f {file}"));
    assert!(
        error.contains("Request entity too large") || error.contains("RequestEntityTooLarge"),
        "{}",
        &error[..error.len().min(2000)]
    );
    for text in ["", "{", "null", "[]", "7", "{\"kind\":7}"] {
        let file = kubectl.cluster.write("odd.json", text);
        let error = kubectl.fails(&format!("create --raw {path} -f {file}"));
        assert!(error.contains("Error from server (BadRequest)"), "{text:?}: {error}");
    }
    let twice = r#"{"metadata":{"name":"twice"},"data":{"a":"1","a":"2"}}"#;
    let file = kubectl.cluster.write("twice.json", twice);
    let error = kubectl.fails(&format!("create --raw {path}?fieldValidation=Strict -f {file}"));
    assert!(error.contains("strict decoding error: duplicate field \"data.a\""), "{error}");
    kubectl.prints("get --raw /readyz", "ok");
}
