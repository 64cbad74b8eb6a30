//! Service accounts of pods: the account must exist, and the pod gets its pull secrets and its token.

use super::{Verb, Write};
use crate::env::Ids;
use crate::object_store::Reader;
use object::access::Access;
use object::{Status, Value, json};

/// The ConfigMap with the cluster's CA certificate in every namespace.
pub const ROOT_CA: &str = "kube-root-ca.crt";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// A little more than an hour, as upstream: the odd number marks tokens that were not requested explicitly.
const TOKEN_SECONDS: i64 = 3607;
const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];
/// Annotation of pods from a node's own manifests, which have no account.
const MIRROR: &str = "kubernetes.io/config.mirror";

pub fn complete(reader: &Reader, ids: &dyn Ids, write: &mut Write<'_>) -> Result<(), Status> {
    if !write.is(Verb::Create, "", "pods") || write.object.has(&["metadata", "annotations", MIRROR]) {
        return Ok(());
    }
    // The deprecated field counts if it is set alone.
    let older = write.object.text(&["spec", "serviceAccount"]).to_owned();
    write.object.default_to(&["spec", "serviceAccountName"], if older.is_empty() { "default" } else { &older });
    let name = write.object.text(&["spec", "serviceAccountName"]).to_owned();
    write.object.put(&["spec", "serviceAccount"], name.as_str());
    let Some((account, _)) = reader.get(&format!("/core/serviceaccounts/{}/{name}", write.namespace))? else {
        let namespace = write.namespace;
        return Err(write.forbidden(format!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
        )));
    };
    if wants_token(write.object, &account) {
        mount_token(ids, write.object);
    }
    if write.object.items(&["spec", "imagePullSecrets"]).is_empty() && account.has(&["imagePullSecrets"]) {
        write.object.put(&["spec", "imagePullSecrets"], account["imagePullSecrets"].clone());
    }
    Ok(())
}

/// The pod's setting takes precedence over the account's. The default is true.
fn wants_token(pod: &Value, account: &Value) -> bool {
    let asked =
        pod.at(&["spec", "automountServiceAccountToken"]).or_else(|| account.at(&["automountServiceAccountToken"]));
    asked.and_then(Value::as_bool).unwrap_or(true)
}

fn mount_token(ids: &dyn Ids, pod: &mut Value) {
    let volumes = pod.items(&["spec", "volumes"]);
    let present = volumes.iter().map(|volume| volume.text(&["name"])).find(|name| name.starts_with(VOLUME_PREFIX));
    let is_new = present.is_none();
    let volume = present.map_or_else(|| format!("{VOLUME_PREFIX}{}", ids.suffix(5)), str::to_owned);
    let mut mounted = false;
    for list in CONTAINER_LISTS {
        let Some(Value::Array(containers)) = pod.get_mut("spec").and_then(|spec| spec.get_mut(list)) else { continue };
        for container in containers {
            let mounts = container.items(&["volumeMounts"]);
            if mounts.iter().any(|mount| mount.text(&["mountPath"]) == MOUNT_PATH) {
                continue;
            }
            let mut mounts = mounts.to_vec();
            mounts.push(json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}));
            container.put(&["volumeMounts"], mounts);
            mounted = true;
        }
    }
    if mounted && is_new {
        let mut volumes = pod.items(&["spec", "volumes"]).to_vec();
        volumes.push(token_volume(&volume));
        pod.put(&["spec", "volumes"], volumes);
    }
}

fn token_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
                ]}},
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, denied};
    use super::*;

    fn pod(spec: Value) -> Value {
        json!({"metadata": {"name": "p", "namespace": "a"}, "spec": spec})
    }

    #[test]
    fn the_account_must_exist_and_defaults() {
        let mut world = World::with_namespace("a");
        let got = world.mutate("pods", pod(json!({"containers": [{"name": "c"}]}))).unwrap();
        assert_eq!(got["spec"]["serviceAccountName"], "default");
        assert_eq!(got["spec"]["serviceAccount"], "default");
        let refused = denied(world.mutate("pods", pod(json!({"serviceAccount": "robot"}))));
        assert_eq!(refused.code, 403);
        assert_eq!(
            refused.message,
            "pods \"p\" is forbidden: error looking up service account a/robot: serviceaccount \"robot\" not found"
        );
    }

    #[test]
    fn the_token_is_mounted_once_in_every_container_that_has_none() {
        let mut world = World::with_namespace("a");
        let own = json!({"name": "own", "mountPath": MOUNT_PATH});
        let spec = json!({
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}, {"name": "d", "volumeMounts": [own]}],
            "volumes": [{"name": "data"}],
        });
        let got = world.mutate("pods", pod(spec)).unwrap();
        let volume = got["spec"]["volumes"][1].text(&["name"]);
        assert!(volume.starts_with(VOLUME_PREFIX), "{volume}");
        let sources = got["spec"]["volumes"][1].items(&["projected", "sources"]);
        assert_eq!(sources[0]["serviceAccountToken"], json!({"expirationSeconds": 3607, "path": "token"}));
        assert_eq!(sources[1]["configMap"]["name"], ROOT_CA);
        let mount = json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH});
        assert_eq!(got["spec"]["initContainers"][0]["volumeMounts"], json!([mount]));
        assert_eq!(got["spec"]["containers"][0]["volumeMounts"][1], mount);
        assert_eq!(got["spec"]["containers"][1]["volumeMounts"], json!([own]));
        let again = world.mutate("pods", got.clone()).unwrap();
        assert_eq!(again, got, "a second pass changes nothing");
    }

    #[test]
    fn the_pods_setting_overrides_the_accounts() {
        let mut world = World::with_namespace("a");
        let account = json!({
            "metadata": {"name": "quiet", "namespace": "a"},
            "automountServiceAccountToken": false,
            "imagePullSecrets": [{"name": "registry"}],
        });
        world.store("/core/serviceaccounts/a/quiet", account);
        let cases = [(json!(null), false), (json!(true), true), (json!(false), false)];
        for (asked, mounted) in cases {
            let spec = json!({
                "serviceAccountName": "quiet", "automountServiceAccountToken": asked, "containers": [{"name": "c"}],
            });
            let got = world.mutate("pods", pod(spec)).unwrap();
            assert_eq!(got.has(&["spec", "volumes"]), mounted, "{asked}");
            assert_eq!(got["spec"]["imagePullSecrets"], json!([{"name": "registry"}]));
        }
        let own = json!({"serviceAccountName": "quiet", "imagePullSecrets": [{"name": "mine"}]});
        assert_eq!(world.mutate("pods", pod(own)).unwrap()["spec"]["imagePullSecrets"], json!([{"name": "mine"}]));
    }
}
