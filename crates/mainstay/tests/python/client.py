"""The Python kubernetes client against a running server: each function is one thing that programs do with it.

Run with KUBECONFIG set. Prints the name of each part that worked; anything else is an exception and an exit code.
"""

import base64
import os
import socket
import ssl
import sys
import traceback
import urllib.parse

import kubernetes
from kubernetes import client, config, dynamic, watch

SPACE = "python"
STRICT = getattr(ssl, "VERIFY_X509_STRICT", 0)


def pod(name, labels=None, node=None):
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels=labels or {"app": name}),
        spec=client.V1PodSpec(node_name=node, containers=[client.V1Container(name="main", image="nginx:1")]),
    )


def expect_error(code, reason, call):
    """The call must fail with this HTTP code and reason."""
    try:
        call()
    except client.ApiException as error:
        assert error.status == code and f'"reason":"{reason}"' in error.body, (error.status, error.body)
        return error
    raise AssertionError(f"expected {code} {reason}")


def tls_is_strict(api):
    """Newer Pythons check certificates to the letter: key identifiers, basic constraints."""
    settings = api.configuration
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    context.verify_flags |= STRICT
    context.load_cert_chain(settings.cert_file, settings.key_file)
    url = urllib.parse.urlparse(settings.host)
    with socket.create_connection((url.hostname, url.port)) as plain:
        with context.wrap_socket(plain, server_hostname=url.hostname) as secure:
            assert secure.version() in ("TLSv1.2", "TLSv1.3"), secure.version()


def create_read_update_delete(core):
    created = core.create_namespaced_config_map(
        SPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="one"), data={"a": "1"})
    )
    assert created.metadata.uid and created.metadata.resource_version
    created.data["b"] = "2"
    updated = core.replace_namespaced_config_map("one", SPACE, created)
    assert updated.data == {"a": "1", "b": "2"}
    # The version in hand is stale now.
    expect_error(409, "Conflict", lambda: core.replace_namespaced_config_map("one", SPACE, created))
    expect_error(
        409, "AlreadyExists", lambda: core.create_namespaced_config_map(SPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="one")))
    )
    expect_error(
        422, "Invalid", lambda: core.create_namespaced_config_map(SPACE, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="No_Good")))
    )
    # Some versions of the client give a dict here, others a model.
    status = core.api_client.sanitize_for_serialization(core.delete_namespaced_config_map("one", SPACE))
    assert status["status"] == "Success" and status["details"]["name"] == "one", status
    expect_error(404, "NotFound", lambda: core.read_namespaced_config_map("one", SPACE))


def lists_and_pages(core):
    for number in range(5):
        core.create_namespaced_secret(
            SPACE,
            client.V1Secret(
                metadata=client.V1ObjectMeta(name=f"s{number}", labels={"half": str(number % 2)}),
                string_data={"n": str(number)},
            ),
        )
    names, token = [], None
    while True:
        page = core.list_namespaced_secret(SPACE, limit=2, _continue=token)
        assert len(page.items) <= 2
        names += [secret.metadata.name for secret in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert names == [f"s{number}" for number in range(5)], names
    odd = core.list_namespaced_secret(SPACE, label_selector="half=1")
    assert [secret.metadata.name for secret in odd.items] == ["s1", "s3"]
    one = core.list_namespaced_secret(SPACE, field_selector="metadata.name=s4")
    assert base64.b64decode(one.items[0].data["n"]) == b"4"
    core.delete_collection_namespaced_secret(SPACE, label_selector="half=0")
    assert len(core.list_namespaced_secret(SPACE).items) == 2


def watch_and_resume(core):
    start = core.list_namespaced_pod(SPACE).metadata.resource_version
    core.create_namespaced_pod(SPACE, pod("watched"))
    core.patch_namespaced_pod("watched", SPACE, {"metadata": {"labels": {"step": "1"}}})
    core.patch_namespaced_pod("watched", SPACE, {"metadata": {"labels": {"step": "2"}}})
    core.delete_namespaced_pod("watched", SPACE, grace_period_seconds=0)

    def follow(version, until):
        seen, watcher = [], watch.Watch()
        for event in watcher.stream(core.list_namespaced_pod, SPACE, resource_version=version, timeout_seconds=60):
            seen.append((event["type"], event["object"].metadata.labels.get("step"), event["object"].metadata.resource_version))
            if event["type"] == until or len(seen) >= 10:
                watcher.stop()
        return seen

    everything = follow(start, "DELETED")
    assert [(kind, step) for kind, step, _ in everything] == [
        ("ADDED", None), ("MODIFIED", "1"), ("MODIFIED", "2"), ("DELETED", "2"),
    ], everything
    # Resumed after any event, a watch gives exactly the ones after it.
    for at in range(3):
        rest = follow(everything[at][2], "DELETED")
        assert rest == everything[at + 1:], (at, rest)
    bookmarked = watch.Watch().stream(
        core.list_namespaced_pod, SPACE, resource_version=start, allow_watch_bookmarks=True, timeout_seconds=1
    )
    assert [event["type"] for event in bookmarked if event["type"] != "BOOKMARK"] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]


def patches_of_all_kinds(core, apps):
    apps.create_namespaced_stateful_set(
        SPACE,
        client.V1StatefulSet(
            metadata=client.V1ObjectMeta(name="web"),
            spec=client.V1StatefulSetSpec(
                service_name="web",
                replicas=0,
                selector=client.V1LabelSelector(match_labels={"app": "web"}),
                template=client.V1PodTemplateSpec(
                    metadata=client.V1ObjectMeta(labels={"app": "web"}),
                    spec=client.V1PodSpec(containers=[client.V1Container(name="a", image="a:1"), client.V1Container(name="b", image="b:1")]),
                ),
            ),
        ),
    )
    images = lambda sets: [container.image for container in sets.spec.template.spec.containers]
    one_container = {"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:2"}]}}}}
    patched = apps.patch_namespaced_stateful_set("web", SPACE, one_container)
    assert images(patched) == ["a:1", "b:2"], "a dict is a strategic merge"
    patched = apps.patch_namespaced_stateful_set(
        "web", SPACE, [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "a:2"}]
    )
    assert images(patched) == ["a:2", "b:2"], "a list is a JSON patch"
    patched = apps.patch_namespaced_stateful_set("web", SPACE, one_container, _content_type="application/merge-patch+json")
    assert images(patched) == ["b:2"]
    scale = apps.read_namespaced_stateful_set_scale("web", SPACE)
    scale.spec.replicas = 3
    apps.replace_namespaced_stateful_set_scale("web", SPACE, scale)
    assert apps.read_namespaced_stateful_set("web", SPACE).spec.replicas == 3
    status = apps.patch_namespaced_stateful_set_status("web", SPACE, {"status": {"replicas": 2, "readyReplicas": 1}})
    assert (status.status.replicas, status.spec.replicas) == (2, 3)


def server_side_apply(api, core):
    resources = dynamic.DynamicClient(api).resources
    maps = resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"mine": "1", "ours": "1"}}
    maps.server_side_apply(body=body, name="applied", namespace=SPACE, field_manager="left")
    other = {**body, "data": {"ours": "2"}}
    conflict = None
    try:
        maps.server_side_apply(body=other, name="applied", namespace=SPACE, field_manager="right")
    except dynamic.exceptions.ConflictError as error:
        conflict = error
    assert conflict is not None and 'conflict with \\"left\\": .data.ours' in str(conflict.body), conflict
    maps.server_side_apply(body=other, name="applied", namespace=SPACE, field_manager="right", force_conflicts=True)
    stored = core.read_namespaced_config_map("applied", SPACE)
    assert stored.data == {"mine": "1", "ours": "2"}
    managers = {entry.manager: entry.operation for entry in stored.metadata.managed_fields}
    assert managers == {"left": "Apply", "right": "Apply"}, managers


def dynamic_client(api):
    finder = dynamic.DynamicClient(api)
    definitions = finder.resources.get(api_version="apiextensions.k8s.io/v1", kind="CustomResourceDefinition")
    definitions.create(
        body={
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "crontabs.python.example.com"},
            "spec": {
                "group": "python.example.com",
                "scope": "Namespaced",
                "names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab"},
                "versions": [{
                    "name": "v1", "served": True, "storage": True,
                    "schema": {"openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": {"cron": {"type": "string"}}}},
                    }},
                }],
            },
        }
    )
    for event in definitions.watch(name="crontabs.python.example.com", timeout=60):
        conditions = event["object"].to_dict().get("status", {}).get("conditions", [])
        if any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions):
            break
    finder.resources.invalidate_cache()
    crontabs = finder.resources.get(api_version="python.example.com/v1", kind="CronTab")
    body = {"apiVersion": "python.example.com/v1", "kind": "CronTab", "metadata": {"name": "tick"}, "spec": {"cron": "* * * * *"}}
    crontabs.create(body=body, namespace=SPACE)
    crontabs.patch(body={"metadata": {"name": "tick"}, "spec": {"cron": "0 * * * *"}}, namespace=SPACE, content_type="application/merge-patch+json")
    assert crontabs.get(name="tick", namespace=SPACE).spec.cron == "0 * * * *"
    assert [item.metadata.name for item in crontabs.get(namespace=SPACE).items] == ["tick"]
    crontabs.delete(name="tick", namespace=SPACE)


def eviction(core):
    core.create_namespaced_pod(SPACE, pod("evicted"))
    core.create_namespaced_pod_eviction(
        "evicted", SPACE, client.V1Eviction(metadata=client.V1ObjectMeta(name="evicted", namespace=SPACE))
    )
    expect_error(404, "NotFound", lambda: core.read_namespaced_pod("evicted", SPACE))


def tokens_and_roles(api, core):
    core.create_namespaced_service_account(SPACE, client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="robot")))
    request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=3600))
    token = core.create_namespaced_service_account_token("robot", SPACE, request).status.token
    settings = client.Configuration()
    settings.host, settings.ssl_ca_cert = api.configuration.host, api.configuration.ssl_ca_cert
    settings.api_key = {"authorization": f"Bearer {token}"}
    robot = client.ApiClient(settings)
    me = client.AuthenticationV1Api(robot).create_self_subject_review(client.V1SelfSubjectReview())
    assert me.status.user_info.username == f"system:serviceaccount:{SPACE}:robot", me
    expect_error(403, "Forbidden", lambda: client.CoreV1Api(robot).list_namespaced_pod(SPACE))
    review = client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(
            resource_attributes=client.V1ResourceAttributes(namespace=SPACE, verb="list", resource="pods")
        )
    )
    assert not client.AuthorizationV1Api(robot).create_self_subject_access_review(review).status.allowed
    assert client.AuthorizationV1Api(api).create_self_subject_access_review(review).status.allowed


def main():
    config.load_kube_config(os.environ["KUBECONFIG"])
    api = client.ApiClient()
    core, apps = client.CoreV1Api(api), client.AppsV1Api(api)
    print("client", kubernetes.__version__, "server", client.VersionApi(api).get_code().git_version)
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=SPACE)))
    parts = [
        (tls_is_strict, (api,)),
        (create_read_update_delete, (core,)),
        (lists_and_pages, (core,)),
        (watch_and_resume, (core,)),
        (patches_of_all_kinds, (core, apps)),
        (server_side_apply, (api, core)),
        (dynamic_client, (api,)),
        (eviction, (core,)),
        (tokens_and_roles, (api, core)),
    ]
    failed = 0
    for part, arguments in parts:
        try:
            part(*arguments)
            print("ok", part.__name__)
        except Exception as error:  # Every part gets its turn; the exit code tells.
            failed += 1
            traceback.print_exc()
            print("failed", part.__name__, repr(error)[:2000])
    sys.exit(1 if failed else 0)


main()
