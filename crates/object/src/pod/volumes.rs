//! Volumes of a pod: names, exactly one source each, and validation of the current source types.

use super::cursor::Cursor;
use super::{containers, env, older_volumes, paths};
use crate::Value;
use crate::access::Access;
use crate::field::Errors;
use crate::kinds::volumes::validate_claim_spec;
use crate::quantity::Quantity;
use crate::{meta, name};
use std::collections::{BTreeMap, BTreeSet};

/// Validates one source. The second argument is the pod's name, `None` in a template.
type Check = fn(&Cursor, Option<&str>, &mut Errors);

/// All sources, in the order in which a second source is reported.
const SOURCES: &[(&str, Check)] = &[
    ("emptyDir", |source, _, errors| validate_empty_dir(source, errors)),
    ("hostPath", |source, _, errors| validate_host_path(source, errors)),
    ("gitRepo", |source, _, errors| older_volumes::git_repo(source, errors)),
    ("gcePersistentDisk", |source, _, errors| older_volumes::disk(source, "pdName", errors)),
    ("awsElasticBlockStore", |source, _, errors| older_volumes::disk(source, "volumeID", errors)),
    ("secret", |source, _, errors| validate_keyed(source, "secretName", errors)),
    ("nfs", |source, _, errors| validate_nfs(source, errors)),
    ("iscsi", |source, _, errors| older_volumes::iscsi(source, errors)),
    ("glusterfs", |source, _, errors| source.required_members(&["endpoints", "path"], errors)),
    ("flocker", |source, _, errors| older_volumes::flocker(source, errors)),
    ("persistentVolumeClaim", |source, _, errors| source.required_members(&["claimName"], errors)),
    ("rbd", |source, _, errors| source.required_members(&["monitors", "image"], errors)),
    ("cinder", |source, _, errors| older_volumes::cinder(source, errors)),
    ("cephfs", |source, _, errors| source.required_members(&["monitors"], errors)),
    ("quobyte", |source, _, errors| older_volumes::quobyte(source, errors)),
    ("downwardAPI", |source, _, errors| validate_downward(source, errors)),
    ("fc", |source, _, errors| older_volumes::fibre_channel(source, errors)),
    ("flexVolume", |source, _, errors| older_volumes::flex(source, errors)),
    ("configMap", |source, _, errors| validate_keyed(source, "name", errors)),
    ("azureFile", |source, _, errors| source.required_members(&["secretName", "shareName"], errors)),
    ("vsphereVolume", |source, _, errors| source.required_members(&["volumePath"], errors)),
    ("photonPersistentDisk", |source, _, errors| source.required_members(&["pdID"], errors)),
    ("portworxVolume", |source, _, errors| source.required_members(&["volumeID"], errors)),
    ("azureDisk", |source, _, errors| older_volumes::azure_disk(source, errors)),
    ("storageos", |source, _, errors| older_volumes::storageos(source, errors)),
    ("projected", |source, _, errors| validate_projected(source, errors)),
    ("scaleIO", |source, _, errors| source.required_members(&["gateway", "system", "volumeName"], errors)),
    ("csi", |source, _, errors| validate_csi(source, errors)),
    ("ephemeral", |source, _, errors| validate_ephemeral(source, errors)),
    ("image", validate_image),
];

/// Validates a pod's volumes and returns the valid ones by name. `pod` is the pod's name, `None` in a template.
pub(super) fn validate<'a>(
    volumes: &Cursor<'a, '_>,
    pod: Option<&str>,
    errors: &mut Errors,
) -> BTreeMap<&'a str, &'a Value> {
    let named = pod.filter(|pod| !pod.is_empty());
    let own = |volume: &Value| Some(format!("{}-{}", named?, volume.text(&["name"])));
    let made: BTreeSet<String> =
        volumes.list().iter().filter(|volume| volume.has(&["ephemeral"])).filter_map(own).collect();
    let mut sound = BTreeMap::new();
    for (volume, value) in volumes.items().zip(volumes.list()) {
        let before = errors.count();
        validate_source(&volume, pod, errors);
        let name = volume.child("name");
        name.required_name(name::label, errors);
        if sound.contains_key(name.text()) {
            name.duplicate(name.text(), errors);
        }
        if errors.count() == before {
            sound.insert(value.text(&["name"]), value);
        }
        let claim = value.text(&["persistentVolumeClaim", "claimName"]);
        if made.contains(claim) {
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            volume.child("persistentVolumeClaim").child("claimName").invalid(why, errors);
        }
    }
    sound
}

fn validate_source(volume: &Cursor, pod: Option<&str>, errors: &mut Errors) {
    let mut count = 0;
    for (kind, check) in SOURCES {
        let source = volume.child(kind);
        if !source.present() {
            continue;
        }
        count += 1;
        if count > 1 {
            source.forbidden("may not specify more than 1 volume type", errors);
        } else {
            check(&source, pod, errors);
        }
    }
    if count == 0 {
        volume.required("must specify a volume type", errors);
    }
    let name = volume.child("name");
    if volume.child("iscsi").child("initiatorName").present() {
        older_volumes::iscsi_name(volume, &name, errors);
    }
    if let Some(pod) = pod.filter(|pod| !pod.is_empty())
        && volume.child("ephemeral").present()
        && !name.is_empty()
    {
        let claim = format!("{pod}-{}", name.text());
        for why in name::subdomain(&claim) {
            name.invalid(format!("PVC name {claim:?}: {why}"), errors);
        }
    }
}

fn validate_empty_dir(source: &Cursor, errors: &mut Errors) {
    let limit = source.child("sizeLimit");
    if Quantity::of(limit.value()).is_some_and(|limit| limit.is_negative()) {
        limit.forbidden("SizeLimit field must be a valid resource quantity", errors);
    }
}

fn validate_host_path(source: &Cursor, errors: &mut Errors) {
    const TYPES: &[&str] =
        &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    if source.child("path").is_empty() {
        return source.child("path").required("", errors);
    }
    paths::no_backsteps(&source.child("path"), errors);
    source.child("type").one_of(TYPES, errors);
}

fn validate_nfs(source: &Cursor, errors: &mut Errors) {
    source.required_members(&["server", "path"], errors);
    if !source.child("path").text().starts_with('/') {
        source.child("path").invalid("must be an absolute path", errors);
    }
}

/// Validates a Secret or ConfigMap source: a name, permissions, and keys with paths.
fn validate_keyed(source: &Cursor, name: &str, errors: &mut Errors) {
    source.required_members(&[name], errors);
    paths::mode(&source.child("defaultMode"), errors);
    for item in source.child("items").items() {
        validate_item(&item, errors);
    }
}

fn validate_item(item: &Cursor, errors: &mut Errors) {
    item.required_members(&["key", "path"], errors);
    paths::local(&item.child("path"), errors);
    paths::mode(&item.child("mode"), errors);
}

fn validate_downward(source: &Cursor, errors: &mut Errors) {
    paths::mode(&source.child("defaultMode"), errors);
    let place = source.path();
    for file in source.child("items").items() {
        validate_downward_file(&Cursor::new(file.value(), &place), errors);
    }
}

/// Validates a downward API file. As upstream, errors name the source, not the item.
fn validate_downward_file(file: &Cursor, errors: &mut Errors) {
    file.required_members(&["path"], errors);
    paths::local(&file.child("path"), errors);
    let (field, resource) = (file.child("fieldRef"), file.child("resourceFieldRef"));
    match (field.present(), resource.present()) {
        (true, also) => {
            env::validate_field(&field, env::VOLUME_FIELDS, errors);
            if also {
                file.invalid_as(
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                    errors,
                );
            }
        }
        (false, true) => env::validate_resource_field(&resource, true, errors),
        (false, false) => file.required("one of fieldRef and resourceFieldRef is required", errors),
    }
    paths::mode(&file.child("mode"), errors);
}

fn validate_projected(source: &Cursor, errors: &mut Errors) {
    paths::mode(&source.child("defaultMode"), errors);
    let mut files = BTreeSet::new();
    let mut place = |path: &str, shown: &str, errors: &mut Errors| {
        if !path.is_empty() && !files.insert(path.to_owned()) {
            source.invalid_as(shown, "conflicting duplicate paths", errors);
        }
    };
    for projection in source.child("sources").items() {
        let kinds =
            ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];
        for kind in kinds {
            let part = projection.child(kind);
            if part.present() {
                validate_projection(kind, &part, source, &mut place, errors);
            }
        }
        if kinds.iter().filter(|kind| projection.child(kind).present()).count() > 1 {
            projection.forbidden("may not specify more than 1 volume type per source", errors);
        }
    }
}

type Place<'a> = dyn FnMut(&str, &str, &mut Errors) + 'a;

fn validate_projection(kind: &str, part: &Cursor, source: &Cursor, place: &mut Place, errors: &mut Errors) {
    match kind {
        "secret" | "configMap" => {
            part.required_members(&["name"], errors);
            for item in part.child("items").items() {
                validate_item(&item, errors);
                place(item.child("path").text(), part.child("name").text(), errors);
            }
        }
        "downwardAPI" => {
            let at = part.path();
            for file in part.child("items").items() {
                validate_downward_file(&Cursor::new(file.value(), &at), errors);
                place(file.child("path").text(), file.child("path").text(), errors);
            }
        }
        "serviceAccountToken" => validate_token(part, source, errors),
        "clusterTrustBundle" => {
            validate_trust_bundle(part, errors);
            place(part.child("path").text(), part.child("path").text(), errors);
        }
        _ => validate_certificate(part, place, errors),
    }
}

fn validate_token(token: &Cursor, source: &Cursor, errors: &mut Errors) {
    let life = token.child("expirationSeconds");
    if life.present() && life.int() < 600 {
        life.invalid("may not specify a duration less than 10 minutes", errors);
    }
    if life.int() > 1 << 32 {
        life.invalid("may not specify a duration larger than 2^32 seconds", errors);
    }
    // Upstream reports the path at the projected volume, not at the token.
    let (at, path) = (source.path().child("path"), token.child("path"));
    let path = Cursor::new(path.value(), &at);
    if path.is_empty() { path.required("", errors) } else { paths::local(&path, errors) }
}

fn validate_trust_bundle(bundle: &Cursor, errors: &mut Errors) {
    let (name, signer, selector) = (bundle.child("name"), bundle.child("signerName"), bundle.child("labelSelector"));
    match (name.present(), signer.present()) {
        (true, true) => bundle.invalid("only one of name and signerName may be used", errors),
        (true, false) => {
            if name.is_empty() {
                name.required("must be a valid object name", errors);
            }
            if selector.present() {
                selector.invalid("labelSelector must be unset if name is specified", errors);
            }
        }
        (false, true) => {
            if signer.is_empty() {
                signer.required("must be a valid signer name", errors);
            }
            if selector.present() {
                meta::validate_label_selector(selector.value(), &selector.path(), errors);
            }
        }
        (false, false) => bundle.required("either name or signerName must be specified", errors),
    }
    bundle.required_members(&["path"], errors);
    paths::local(&bundle.child("path"), errors);
}

fn validate_certificate(certificate: &Cursor, place: &mut Place, errors: &mut Errors) {
    const KEYS: &[&str] = &["ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096"];
    certificate.required_members(&["signerName"], errors);
    certificate.child("keyType").required_one_of(KEYS, errors);
    let files = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    if files.iter().all(|file| certificate.child(file).is_empty()) {
        let why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        certificate.required(why, errors);
    }
    for file in files {
        let path = certificate.child(file);
        paths::local(&path, errors);
        place(path.text(), path.text(), errors);
    }
}

fn validate_csi(source: &Cursor, errors: &mut Errors) {
    let driver = source.child("driver");
    if driver.is_empty() {
        driver.required("", errors);
    }
    if driver.text().len() > 63 {
        errors.too_long(&driver.path(), 63);
    }
    driver.check(name::subdomain(&driver.text().to_lowercase()), errors);
    let secret = source.child("nodePublishSecretRef");
    if secret.present() {
        secret.child("name").required_name(name::subdomain, errors);
    }
}

/// Validates a claim template for the pod. Of its metadata, only labels and annotations may be set.
fn validate_ephemeral(source: &Cursor, errors: &mut Errors) {
    let template = source.child("volumeClaimTemplate");
    if !template.present() {
        return template.required("", errors);
    }
    let metadata = template.child("metadata");
    let (annotations, labels) = (metadata.child("annotations"), metadata.child("labels"));
    meta::validate_annotations(annotations.value(), &annotations.path(), errors);
    meta::validate_labels(labels.value(), &labels.path(), errors);
    for (name, _) in metadata.entries() {
        let member = metadata.child(name);
        if !matches!(name, "labels" | "annotations") && !member.is_empty() {
            member.forbidden("cannot be set", errors);
        }
    }
    let spec = template.child("spec");
    validate_claim_spec(spec.value(), &spec.path(), errors);
}

fn validate_image(source: &Cursor, pod: Option<&str>, errors: &mut Errors) {
    if pod.is_some() {
        source.required_members(&["reference"], errors);
    }
    containers::validate_pull_policy(&source.child("pullPolicy"), errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::json;

    fn errors_of(volumes: Value) -> Vec<String> {
        let (path, mut errors) = (Path::new("v"), Errors::default());
        validate(&Cursor::new(&volumes, &path), Some("pod"), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }
    /// Returns the errors of a volume with this source.
    fn of(kind: &str, source: Value) -> Vec<String> {
        errors_of(json!([{"name": "a", kind: source}]))
    }

    #[test]
    fn names_and_the_number_of_sources_are_checked() {
        let dir = |name: &str| json!({"name": name, "emptyDir": {}});
        let cases = [
            (json!([dir("")]), vec!["v[0].name: Required value"]),
            (json!([dir("a"), dir("a")]), vec!["v[1].name: Duplicate value: \"a\""]),
            (json!([{"name": "a"}]), vec!["v[0]: Required value: must specify a volume type"]),
            (
                json!([{"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}]),
                vec!["v[0].hostPath: Forbidden: may not specify more than 1 volume type"],
            ),
            (
                json!([
                    {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
                    {"name": "p", "persistentVolumeClaim": {"claimName": "pod-e"}},
                ]),
                vec![
                    "v[1].persistentVolumeClaim.claimName: Invalid value: \"pod-e\": must not reference a PVC that gets created for an ephemeral volume",
                ],
            ),
        ];
        for (volumes, want) in cases {
            assert_eq!(errors_of(volumes.clone()), want, "{volumes}");
        }
        assert!(
            errors_of(json!([dir("A.b")]))[0]
                .starts_with("v[0].name: Invalid value: \"A.b\": a lowercase RFC 1123 label")
        );
    }

    #[test]
    fn invalid_sources_are_refused_with_upstreams_messages() {
        let mode = "must be a number between 0 and 0777 (octal), both inclusive";
        let cases = [
            (
                of("emptyDir", json!({"sizeLimit": "-1"})),
                vec![
                    "v[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity".to_owned(),
                ],
            ),
            (of("hostPath", json!({})), vec!["v[0].hostPath.path: Required value".to_owned()]),
            (
                of("hostPath", json!({"path": "/a/../b"})),
                vec!["v[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'".to_owned()],
            ),
            (
                of("nfs", json!({"server": "s", "path": "a"})),
                vec!["v[0].nfs.path: Invalid value: \"a\": must be an absolute path".to_owned()],
            ),
            (of("secret", json!({})), vec!["v[0].secret.secretName: Required value".to_owned()]),
            (
                of(
                    "configMap",
                    json!({"name": "c", "defaultMode": 512, "items": [{"key": "k", "path": "..x", "mode": -1}]}),
                ),
                vec![
                    format!("v[0].configMap.defaultMode: Invalid value: 512: {mode}"),
                    "v[0].configMap.items[0].path: Invalid value: \"..x\": must not start with '..'".to_owned(),
                    format!("v[0].configMap.items[0].mode: Invalid value: -1: {mode}"),
                ],
            ),
            (
                of("persistentVolumeClaim", json!({})),
                vec!["v[0].persistentVolumeClaim.claimName: Required value".to_owned()],
            ),
            (
                of("downwardAPI", json!({"items": [{"path": "p"}]})),
                vec!["v[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required".to_owned()],
            ),
            (
                of("downwardAPI", json!({"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]})),
                vec!["v[0].downwardAPI.resourceFieldRef.containerName: Required value".to_owned()],
            ),
            (of("csi", json!({})), {
                let mut want = vec!["v[0].csi.driver: Required value".to_owned()];
                want.extend(
                    name::subdomain("").iter().map(|why| format!("v[0].csi.driver: Invalid value: \"\": {why}")),
                );
                want
            }),
            (of("ephemeral", json!({})), vec!["v[0].ephemeral.volumeClaimTemplate: Required value".to_owned()]),
            (of("image", json!({"pullPolicy": "Always"})), vec!["v[0].image.reference: Required value".to_owned()]),
        ];
        for (messages, want) in cases {
            assert_eq!(messages, want);
        }
        let wrong_type = of("hostPath", json!({"path": "/a", "type": "Pipe"}));
        assert!(
            wrong_type[0].starts_with(
                "v[0].hostPath.type: Unsupported value: \"Pipe\": supported values: \"\", \"BlockDevice\""
            )
        );
    }

    #[test]
    fn invalid_projections_are_refused_with_upstreams_messages() {
        let cases = [
            (
                json!([{"secret": {"name": "s"}, "configMap": {"name": "c"}}]),
                vec!["v[0].projected.sources[0]: Forbidden: may not specify more than 1 volume type per source"],
            ),
            (json!([{"secret": {}}]), vec!["v[0].projected.sources[0].secret.name: Required value"]),
            (
                json!([{"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}}, {"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}}]),
                vec!["v[0].projected: Invalid value: \"c\": conflicting duplicate paths"],
            ),
            (
                json!([{"serviceAccountToken": {"path": "t", "expirationSeconds": 10}}]),
                vec![
                    "v[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 10: may not specify a duration less than 10 minutes",
                ],
            ),
            (
                json!([{"serviceAccountToken": {"expirationSeconds": 3600}}]),
                vec!["v[0].projected.path: Required value"],
            ),
            (
                json!([{"clusterTrustBundle": {"path": "p"}}]),
                vec![
                    "v[0].projected.sources[0].clusterTrustBundle: Required value: either name or signerName must be specified",
                ],
            ),
        ];
        for (sources, want) in cases {
            assert_eq!(of("projected", json!({"sources": sources})), want, "{sources}");
        }
    }
}
