//! Volume sources from before CSI. The API still has them, so they are validated.

use super::cursor::Cursor;
use super::paths;
use crate::field::Errors;
use crate::name;

pub(super) fn git_repo(source: &Cursor, errors: &mut Errors) {
    source.required_members(&["repository"], errors);
    paths::descending(&source.child("directory"), errors);
}

/// Validates a cloud disk. `id` is the member that names the disk.
pub(super) fn disk(source: &Cursor, id: &str, errors: &mut Errors) {
    source.required_members(&[id], errors);
    let partition = source.child("partition");
    if !(0..=255).contains(&partition.int()) {
        partition.invalid("must be between 1 and 255, inclusive", errors);
    }
}

pub(super) fn iscsi(source: &Cursor, errors: &mut Errors) {
    source.required_members(&["targetPortal", "iqn"], errors);
    iscsi_address(&source.child("iqn"), &source.child("iqn"), errors);
    source.child("lun").between(0, 255, errors);
    let secret = source.child("secretRef");
    if (source.child("chapAuthDiscovery").flag() || source.child("chapAuthSession").flag()) && !secret.present() {
        secret.required("", errors);
    }
    iscsi_address(&source.child("initiatorName"), &source.child("initiatorname"), errors);
}

/// Checks the length of the volume's name, which is part of the iSCSI initiator's session name.
pub(super) fn iscsi_name(volume: &Cursor, name: &Cursor, errors: &mut Errors) {
    let portal = volume.child("iscsi").child("targetPortal").text().len();
    if name.text().len() + 1 + portal > 64 {
        let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        name.invalid(why, errors);
    }
}

/// Validates an iSCSI name in one of its three formats. `shown` is the path that upstream reports.
fn iscsi_address(address: &Cursor, shown: &Cursor, errors: &mut Errors) {
    let text = address.text();
    if text.is_empty() {
        return;
    }
    let alnum = |rest: &str, len: usize| rest.len() == len && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let fine = match text.get(..3) {
        Some("iqn") => is_iqn(text),
        Some("eui") => text.get(4..).is_some_and(|rest| alnum(rest, 16)),
        Some("naa") => text.get(4..).is_some_and(|rest| alnum(rest, 32)),
        _ => return shown.invalid_as(text, "must be valid format starting with iqn, eui, or naa", errors),
    };
    if !fine {
        shown.invalid_as(text, "must be valid format", errors);
    }
}

/// Whether the text is an iSCSI qualified name: `iqn.2001-04.com.example:storage`.
fn is_iqn(text: &str) -> bool {
    let Some((authority, unique)) = text.strip_prefix("iqn.").and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let (date, domain) = authority.split_once('.').unwrap_or((authority, ""));
    let digits = |text: &str, len: usize| text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit());
    let date_fine = date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2));
    let domain_fine =
        !domain.is_empty() && domain.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    let unique_fine = !unique.is_empty() && !unique.chars().any(|c| c.is_whitespace() || ",;*&$|".contains(c));
    date_fine && domain_fine && unique_fine
}

pub(super) fn fibre_channel(source: &Cursor, errors: &mut Errors) {
    let (targets, ids, lun) = (source.child("targetWWNs"), source.child("wwids"), source.child("lun"));
    if targets.is_empty() && ids.is_empty() {
        targets.required("must specify either targetWWNs or wwids, but not both", errors);
    }
    if !targets.is_empty() && !ids.is_empty() {
        targets.invalid("targetWWNs and wwids can not be specified simultaneously", errors);
    }
    if !targets.is_empty() {
        if lun.present() {
            lun.between(0, 255, errors)
        } else {
            lun.required("lun is required if targetWWNs is specified", errors)
        }
    }
}

pub(super) fn flocker(source: &Cursor, errors: &mut Errors) {
    let (name, uuid) = (source.child("datasetName"), source.child("datasetUUID"));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => source.required("one of datasetName and datasetUUID is required", errors),
        (false, false) => {
            source.invalid_as("resource", "datasetName and datasetUUID can not be specified simultaneously", errors)
        }
        _ => {}
    }
    if name.text().contains('/') {
        name.invalid("must not contain '/'", errors);
    }
}

pub(super) fn cinder(source: &Cursor, errors: &mut Errors) {
    source.required_members(&["volumeID"], errors);
    if source.child("secretRef").present() {
        source.child("secretRef").required_members(&["name"], errors);
    }
}

pub(super) fn quobyte(source: &Cursor, errors: &mut Errors) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let (registry, tenant) = (source.child("registry"), source.child("tenant"));
    if registry.is_empty() {
        registry.required(PAIRS, errors);
    } else if tenant.text().len() >= 65 {
        tenant.required("must be a UUID and may not exceed a length of 64 characters", errors);
    } else if registry.text().split(',').any(|pair| pair.rsplit_once(':').is_none()) {
        registry.invalid(PAIRS, errors);
    }
    source.required_members(&["volume"], errors);
}

pub(super) fn flex(source: &Cursor, errors: &mut Errors) {
    source.required_members(&["driver"], errors);
    for (key, option) in source.child("options").entries() {
        let namespace = format!(".{}", key.split('/').next().unwrap_or(key).to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            option.invalid_as(key, "kubernetes.io and k8s.io namespaces are reserved", errors);
        }
    }
}

pub(super) fn azure_disk(source: &Cursor, errors: &mut Errors) {
    source.required_members(&["diskName", "diskURI"], errors);
    source.child("cachingMode").one_of(&["None", "ReadOnly", "ReadWrite"], errors);
    let (kind, uri) = (source.child("kind"), source.child("diskURI"));
    kind.one_of(&["Dedicated", "Managed", "Shared"], errors);
    let (start, form) = if kind.text() == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
    };
    if kind.present() && !uri.text().starts_with(start) {
        uri.unsupported(&[form], errors);
    }
}

pub(super) fn storageos(source: &Cursor, errors: &mut Errors) {
    source.child("volumeName").required_name(name::label, errors);
    source.child("volumeNamespace").optional_name(name::label, errors);
    if source.child("secretRef").present() {
        source.child("secretRef").required_members(&["name"], errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::{Value, json};

    fn errors_of(check: fn(&Cursor, &mut Errors), source: Value) -> Vec<String> {
        let (path, mut errors) = (Path::new("s"), Errors::default());
        check(&Cursor::new(&source, &path), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_sources_are_refused_with_upstreams_messages() {
        let good = "iqn.2001-04.com.example:storage.disk";
        let cases: Vec<(Vec<String>, Vec<&str>)> = vec![
            (errors_of(iscsi, json!({})), vec!["s.targetPortal: Required value", "s.iqn: Required value"]),
            (
                errors_of(iscsi, json!({"targetPortal": "p", "iqn": "xyz", "lun": 256})),
                vec![
                    "s.iqn: Invalid value: \"xyz\": must be valid format starting with iqn, eui, or naa",
                    "s.lun: Invalid value: 256: must be between 0 and 255, inclusive",
                ],
            ),
            (
                errors_of(iscsi, json!({"targetPortal": "p", "iqn": "iqn.nope", "chapAuthSession": true})),
                vec!["s.iqn: Invalid value: \"iqn.nope\": must be valid format", "s.secretRef: Required value"],
            ),
            (errors_of(iscsi, json!({"targetPortal": "p", "iqn": good})), vec![]),
            (
                errors_of(git_repo, json!({"directory": "../x"})),
                vec!["s.repository: Required value", "s.directory: Invalid value: \"../x\": must not contain '..'"],
            ),
            (
                errors_of(fibre_channel, json!({})),
                vec!["s.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"],
            ),
            (
                errors_of(fibre_channel, json!({"targetWWNs": ["a"]})),
                vec!["s.lun: Required value: lun is required if targetWWNs is specified"],
            ),
            (errors_of(flocker, json!({})), vec!["s: Required value: one of datasetName and datasetUUID is required"]),
            (
                errors_of(cinder, json!({"secretRef": {}})),
                vec!["s.volumeID: Required value", "s.secretRef.name: Required value"],
            ),
            (
                errors_of(quobyte, json!({"registry": "host", "volume": "v"})),
                vec![
                    "s.registry: Invalid value: \"host\": must be a host:port pair or multiple pairs separated by commas",
                ],
            ),
            (
                errors_of(flex, json!({"driver": "d", "options": {"kubernetes.io/x": "1"}})),
                vec![
                    "s.options[kubernetes.io/x]: Invalid value: \"kubernetes.io/x\": kubernetes.io and k8s.io namespaces are reserved",
                ],
            ),
            (
                errors_of(
                    azure_disk,
                    json!({"diskName": "d", "diskURI": "u", "kind": "Managed", "cachingMode": "Some"}),
                ),
                vec![
                    "s.cachingMode: Unsupported value: \"Some\": supported values: \"None\", \"ReadOnly\", \"ReadWrite\"",
                    "s.diskURI: Unsupported value: \"u\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
                ],
            ),
            (errors_of(storageos, json!({})), vec!["s.volumeName: Required value"]),
            (
                errors_of(|source, errors| disk(source, "pdName", errors), json!({"partition": 256})),
                vec![
                    "s.pdName: Required value",
                    "s.partition: Invalid value: 256: must be between 1 and 255, inclusive",
                ],
            ),
        ];
        for (messages, want) in cases {
            assert_eq!(messages, want);
        }
    }
}
