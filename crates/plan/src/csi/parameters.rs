//! The parameters of a StorageClass: some are for the provisioner, the others for the driver.

use super::secret::Use;
use object::Map;
use std::collections::BTreeMap;

/// Keys with this prefix are for the provisioner.
pub const RESERVED: &str = "csi.storage.k8s.io/";

/// The parameters of a class, without its Secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    pub for_driver: BTreeMap<String, String>,
    /// Empty if the class names none.
    pub fs_type: String,
}

/// Splits a class's parameters. Retrying does not help after an error.
pub fn sort(parameters: &Map) -> Result<Parameters, String> {
    let mut sorted = Parameters::default();
    let mut fs_types = 0;
    for (key, value) in parameters {
        let value = value.as_str().unwrap_or("").to_owned();
        match key.strip_prefix(RESERVED) {
            Some("fstype") => {
                fs_types += 1;
                sorted.fs_type = value;
            }
            Some(own) if names_secret(own) => {}
            Some(_) => return Err(format!("found unknown parameter key \"{key}\" with reserved namespace {RESERVED}")),
            None if key.eq_ignore_ascii_case("fstype") => {
                fs_types += 1;
                sorted.fs_type = value;
            }
            None => drop(sorted.for_driver.insert(key.to_string(), value)),
        }
    }
    if fs_types > 1 {
        return Err(format!("fstype specified in parameters with both \"fstype\" and \"{RESERVED}fstype\" keys"));
    }
    Ok(sorted)
}

fn names_secret(key: &str) -> bool {
    let words = Use::ALL.iter().map(|wanted| wanted.word()).chain([""]);
    words
        .into_iter()
        .any(|word| key.strip_prefix(word).is_some_and(|rest| rest == "secret-name" || rest == "secret-namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Value, json};

    fn sorted(parameters: Value) -> Result<Parameters, String> {
        sort(parameters.as_object().unwrap())
    }

    /// D16, D17
    #[test]
    fn reserved_keys_are_not_passed_to_the_driver_and_unknown_ones_are_refused() {
        let given = json!({
            "csi.storage.k8s.io/fstype": "xfs", "foo": "bar", "csi.storage.k8s.io/node-stage-secret-name": "s",
            "csi.storage.k8s.io/secret-namespace": "n", "csiProvisionerSecretName": "old",
        });
        let found = sorted(given).unwrap();
        assert_eq!(found.fs_type, "xfs");
        let for_driver: Vec<(&str, &str)> = found.for_driver.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(for_driver, [("csiProvisionerSecretName", "old"), ("foo", "bar")]);

        assert_eq!(sorted(json!({"FSType": "ext4"})).unwrap().fs_type, "ext4");
        assert!(sorted(json!({"fstype": "ext4", "csi.storage.k8s.io/fstype": "xfs"})).unwrap_err().contains("both"));
        assert!(sorted(json!({"csi.storage.k8s.io/zzz": "1"})).unwrap_err().contains("unknown parameter key"));
    }
}
