//! Secrets that a StorageClass names, with placeholders for claim and volume.

use super::parameters::RESERVED;
use super::{SecretRef, annotation};
use object::access::{Access, name, namespace};
use object::{Map, Value, json};

/// Annotation on a PV: the Secret for DeleteVolume. Empty if there is none.
pub const DELETION_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
pub const DELETION_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";
/// Annotation on a PV: the Secret for ControllerModifyVolume.
pub const MODIFY_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
pub const MODIFY_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";

/// What a Secret is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Provision,
    ControllerPublish,
    NodeStage,
    NodePublish,
    ControllerExpand,
    NodeExpand,
    Modify,
}

impl Use {
    pub const ALL: [Use; 7] = [
        Use::Provision,
        Use::ControllerPublish,
        Use::NodeStage,
        Use::NodePublish,
        Use::ControllerExpand,
        Use::NodeExpand,
        Use::Modify,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Use::Provision => "provisioner-",
            Use::ControllerPublish => "controller-publish-",
            Use::NodeStage => "node-stage-",
            Use::NodePublish => "node-publish-",
            Use::ControllerExpand => "controller-expand-",
            Use::NodeExpand => "node-expand-",
            Use::Modify => "controller-modify-",
        }
    }

    /// The deprecated keys, which drivers also received as ordinary parameters.
    fn old_keys(self) -> Option<[&'static str; 2]> {
        match self {
            Use::Provision => Some(["csiProvisionerSecretName", "csiProvisionerSecretNamespace"]),
            Use::ControllerPublish => Some(["csiControllerPublishSecretName", "csiControllerPublishSecretNamespace"]),
            Use::NodeStage => Some(["csiNodeStageSecretName", "csiNodeStageSecretNamespace"]),
            Use::NodePublish => Some(["csiNodePublishSecretName", "csiNodePublishSecretNamespace"]),
            Use::ControllerExpand | Use::NodeExpand | Use::Modify => None,
        }
    }
}

/// The values of the placeholders.
pub struct Words<'a> {
    pub volume: &'a str,
    /// `None` if the claim no longer exists: then only the volume is known.
    pub claim: Option<&'a Value>,
}

/// The Secret that a class names for a use.
pub fn of_class(parameters: &Map, wanted: Use, words: &Words) -> Result<Option<SecretRef>, String> {
    let Some((name_template, namespace_template)) = templates(parameters, wanted)? else { return Ok(None) };
    let secret_namespace = fill(&namespace_template, |token| match (token, words.claim) {
        ("pv.name", _) => Some(words.volume.to_owned()),
        ("pvc.namespace", Some(claim)) => Some(namespace(claim).to_owned()),
        _ => None,
    })?;
    let secret_name = fill(&name_template, |token| match (token, words.claim) {
        ("pv.name", _) => Some(words.volume.to_owned()),
        ("pvc.namespace", Some(claim)) => Some(namespace(claim).to_owned()),
        ("pvc.name", Some(claim)) => Some(name(claim).to_owned()),
        (token, Some(claim)) => {
            let key = token.strip_prefix("pvc.annotations['")?.strip_suffix("']")?;
            claim.at(&["metadata", "annotations", key]).and_then(Value::as_str).map(str::to_owned)
        }
        _ => None,
    })?;
    for (text, template, errors) in [
        (&secret_namespace, &namespace_template, object::name::label(&secret_namespace)),
        (&secret_name, &name_template, object::name::subdomain(&secret_name)),
    ] {
        if !errors.is_empty() {
            let why = errors.join(", ");
            return Err(if text == template {
                format!("{text:?} is not a valid name of a secret or its namespace: {why}")
            } else {
                format!(
                    "{template:?} resolved to {text:?}, which is not a valid name of a secret or its namespace: {why}"
                )
            });
        }
    }
    Ok(Some(SecretRef { namespace: secret_namespace, name: secret_name }))
}

/// The templates of name and namespace: both or neither. A specific use takes precedence over the general one.
fn templates(parameters: &Map, wanted: Use) -> Result<Option<(String, String)>, String> {
    let named = |word: &str| [format!("{RESERVED}{word}secret-name"), format!("{RESERVED}{word}secret-namespace")];
    let own = named(wanted.word());
    let has = |keys: &[String; 2]| keys.iter().any(|key| parameters.contains_key(key));
    if let Some(old) = wanted.old_keys().map(|keys| keys.map(str::to_owned))
        && has(&old)
    {
        if has(&own) {
            return Err(format!("the class names a secret both by {:?} and by {:?}", own[0], old[0]));
        }
        return pair(parameters, &old);
    }
    if has(&own) { pair(parameters, &own) } else { pair(parameters, &named("")) }
}

fn pair(parameters: &Map, keys: &[String; 2]) -> Result<Option<(String, String)>, String> {
    let value = |key: &String| parameters.get(key).map(|value| value.as_str().unwrap_or("").to_owned());
    match (value(&keys[0]), value(&keys[1])) {
        (None, None) => Ok(None),
        (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => Ok(Some((name, namespace))),
        _ => Err(format!("either both {:?} and {:?} are specified and not empty, or none is", keys[0], keys[1])),
    }
}

/// Replaces the placeholders (`${token}`); `$$` is a dollar sign.
fn fill(template: &str, word: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            text.push('$');
            rest = after;
        } else if let Some((token, after)) = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            text.push_str(&word(token).ok_or_else(|| format!("{template:?} contains the unknown token \"{token}\""))?);
            rest = after;
        } else {
            return Err(format!("{template:?} contains a $ that does not begin a token"));
        }
    }
    text.push_str(rest);
    Ok(text)
}

/// The Secret for DeleteVolume, from the PV's annotations. A PV without them is older or was created elsewhere: then
/// its class decides. `None` without a class.
pub fn for_deletion(volume: &Value, class: Option<&Value>) -> Result<Option<SecretRef>, String> {
    if volume.has(&["metadata", "annotations", DELETION_NAME]) {
        return Ok(noted(volume, DELETION_NAME, DELETION_NAMESPACE));
    }
    let Some(class) = class else { return Ok(None) };
    let reference = volume.at(&["spec", "claimRef"]);
    let claim = reference.map(|claim| json!({"metadata": {"name": claim["name"], "namespace": claim["namespace"]}}));
    let words = Words { volume: name(volume), claim: claim.as_ref() };
    of_class(class.members(&["parameters"]), Use::Provision, &words)
}

/// The Secret for ControllerModifyVolume: its own, or else the one for expansion.
pub fn for_modification(volume: &Value) -> Option<SecretRef> {
    noted(volume, MODIFY_NAME, MODIFY_NAMESPACE).or_else(|| for_expansion(volume))
}

pub fn for_expansion(volume: &Value) -> Option<SecretRef> {
    let secret = volume.at(&["spec", "csi", "controllerExpandSecretRef"])?;
    Some(SecretRef { namespace: secret.text(&["namespace"]).to_owned(), name: secret.text(&["name"]).to_owned() })
}

fn noted(volume: &Value, name: &str, namespace: &str) -> Option<SecretRef> {
    let (name, namespace) = (annotation(volume, name), annotation(volume, namespace));
    let reference = SecretRef { namespace: namespace.to_owned(), name: name.to_owned() };
    (!name.is_empty() && !namespace.is_empty()).then_some(reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Value {
        json!({"metadata": {"name": "data", "namespace": "shop", "annotations": {"example.com/team": "red"}}})
    }

    fn resolve(parameters: Value, wanted: Use) -> Result<Option<(String, String)>, String> {
        let claim = claim();
        let words = Words { volume: "pvc-1", claim: Some(&claim) };
        let found = of_class(parameters.as_object().unwrap(), wanted, &words)?;
        Ok(found.map(|secret| (secret.namespace, secret.name)))
    }

    fn pair_of(namespace: &str, name: &str) -> Option<(String, String)> {
        Some((namespace.to_owned(), name.to_owned()))
    }

    #[test]
    fn secrets_are_named_plainly_or_with_placeholders() {
        let cases = [
            (json!({}), None),
            (
                json!({"csi.storage.k8s.io/provisioner-secret-name": "s", "csi.storage.k8s.io/provisioner-secret-namespace": "n"}),
                pair_of("n", "s"),
            ),
            (
                json!({"csi.storage.k8s.io/secret-name": "${pvc.name}-${pv.name}", "csi.storage.k8s.io/secret-namespace": "${pvc.namespace}"}),
                pair_of("shop", "data-pvc-1"),
            ),
            (
                json!({"csiProvisionerSecretName": "${pvc.annotations['example.com/team']}", "csiProvisionerSecretNamespace": "n"}),
                pair_of("n", "red"),
            ),
            (
                json!({
                    "csi.storage.k8s.io/secret-name": "general", "csi.storage.k8s.io/secret-namespace": "n",
                    "csi.storage.k8s.io/provisioner-secret-name": "fine", "csi.storage.k8s.io/provisioner-secret-namespace": "n",
                }),
                pair_of("n", "fine"),
            ),
        ];
        for (parameters, want) in cases {
            assert_eq!(resolve(parameters.clone(), Use::Provision), Ok(want), "{parameters}");
        }
        let general = json!({"csi.storage.k8s.io/secret-name": "s", "csi.storage.k8s.io/secret-namespace": "n"});
        for wanted in Use::ALL {
            assert_eq!(resolve(general.clone(), wanted), Ok(pair_of("n", "s")), "{wanted:?}");
        }
    }

    #[test]
    fn invalid_references_are_errors() {
        let name = "csi.storage.k8s.io/provisioner-secret-name";
        let namespace = "csi.storage.k8s.io/provisioner-secret-namespace";
        let cases = [
            (json!({name: "s"}), "either both"),
            (json!({name: "s", namespace: ""}), "either both"),
            (json!({name: "s", namespace: "n", "csiProvisionerSecretName": "t"}), "both by"),
            (json!({name: "${pvc.uid}", namespace: "n"}), "unknown token"),
            (json!({name: "s", namespace: "${pvc.name}"}), "unknown token"),
            (json!({name: "${pvc.annotations['absent']}", namespace: "n"}), "unknown token"),
            (json!({name: "$s", namespace: "n"}), "does not begin a token"),
            (json!({name: "Not_a_name", namespace: "n"}), "not a valid name"),
            (json!({name: "s", namespace: "a.b"}), "not a valid name"),
        ];
        for (parameters, want) in cases {
            let why = resolve(parameters.clone(), Use::Provision).unwrap_err();
            assert!(why.contains(want), "{parameters}: {why}");
        }
    }

    #[test]
    fn deletion_follows_the_volume_and_then_its_class() {
        let class = json!({"parameters": {
            "csi.storage.k8s.io/secret-name": "${pvc.name}", "csi.storage.k8s.io/secret-namespace": "n",
        }});
        let mut volume =
            json!({"metadata": {"name": "pvc-1"}, "spec": {"claimRef": {"namespace": "shop", "name": "data"}}});
        let want = SecretRef { namespace: "n".to_owned(), name: "data".to_owned() };
        assert_eq!(for_deletion(&volume, Some(&class)), Ok(Some(want)));
        assert_eq!(for_deletion(&volume, None), Ok(None));
        volume.put(&["metadata", "annotations"], json!({DELETION_NAME: "", DELETION_NAMESPACE: ""}));
        assert_eq!(for_deletion(&volume, Some(&class)), Ok(None), "an empty annotation means no Secret");
        volume.put(&["metadata", "annotations"], json!({DELETION_NAME: "s", DELETION_NAMESPACE: "m"}));
        let want = SecretRef { namespace: "m".to_owned(), name: "s".to_owned() };
        assert_eq!(for_deletion(&volume, None), Ok(Some(want)));
    }
}
