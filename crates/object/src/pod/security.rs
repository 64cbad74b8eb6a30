//! Security contexts of pods and containers, and fields that an operating system does not support.

use super::cursor::Cursor;
use super::{paths, windows};
use crate::field::Errors;
use crate::name;
use std::collections::BTreeSet;

/// Validates the pod's security context, its host namespaces and its operating system.
pub(super) fn validate(spec: &Cursor, errors: &mut Errors) {
    validate_pod(spec, errors);
    windows::validate_host_process(spec, errors);
    validate_host_users(spec, errors);
    let os = spec.child("os");
    if os.present() {
        match os.child("name").text() {
            "" => os.child("name").required("cannot be empty", errors),
            "linux" => forbid_windows_options(spec, errors),
            "windows" => windows::forbid_linux_options(spec, errors),
            other => errors.not_supported(&os.path(), other, &["linux", "windows"]),
        }
    }
}

/// The container lists of a pod spec.
pub(super) const CONTAINER_LISTS: &[&str] = &["initContainers", "containers", "ephemeralContainers"];

fn validate_pod(spec: &Cursor, errors: &mut Errors) {
    let context = spec.child("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        paths::id(&context.child(field), errors);
    }
    for group in context.child("supplementalGroups").items() {
        paths::id(&group, errors);
    }
    if spec.child("shareProcessNamespace").flag() && spec.child("hostPID").flag() {
        let share = context.child("shareProcessNamespace");
        share.invalid_as(true, "ShareProcessNamespace and HostPID cannot both be enabled", errors);
    }
    validate_sysctls(spec, &context.child("sysctls"), errors);
    context.child("fsGroupChangePolicy").one_of(&["Always", "OnRootMismatch"], errors);
    validate_seccomp(&context.child("seccompProfile"), errors);
    windows::validate_options(&context.child("windowsOptions"), errors);
    validate_app_armor(&context.child("appArmorProfile"), errors);
    context.child("supplementalGroupsPolicy").one_of(&["Merge", "Strict"], errors);
    context.child("seLinuxChangePolicy").one_of(&["MountOption", "Recursive"], errors);
}

/// Validates a container's security context. Without user namespaces (`host_users`), `/proc` must stay masked.
pub(super) fn validate_container(context: &Cursor, host_users: bool, errors: &mut Errors) {
    for field in ["runAsUser", "runAsGroup"] {
        paths::id(&context.child(field), errors);
    }
    let proc_mount = context.child("procMount");
    proc_mount.one_of(&["Default", "Unmasked"], errors);
    if host_users && proc_mount.text() == "Unmasked" {
        proc_mount.invalid("`hostUsers` must be false to use `Unmasked`", errors);
    }
    validate_seccomp(&context.child("seccompProfile"), errors);
    let escalation = context.child("allowPrivilegeEscalation");
    if escalation.present() && !escalation.flag() {
        if context.child("privileged").flag() {
            context.invalid("cannot set `allowPrivilegeEscalation` to false and `privileged` to true", errors);
        }
        for capability in context.child("capabilities").child("add").items() {
            if capability.text() == "CAP_SYS_ADMIN" {
                context.invalid(
                    "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
                    errors,
                );
            }
        }
    }
    windows::validate_options(&context.child("windowsOptions"), errors);
    validate_app_armor(&context.child("appArmorProfile"), errors);
}

fn validate_seccomp(profile: &Cursor, errors: &mut Errors) {
    if !profile.present() {
        return;
    }
    let (kind, file) = (profile.child("type"), profile.child("localhostProfile"));
    if kind.is_empty() {
        kind.required("type is required when seccompProfile is set", errors);
    } else {
        kind.one_of(&["Localhost", "RuntimeDefault", "Unconfined"], errors);
    }
    match (kind.text() == "Localhost", file.present()) {
        (true, false) => file.required("must be set when seccomp type is Localhost", errors),
        (true, true) => paths::descending(&file, errors),
        (false, true) => {
            file.invalid_as(profile.value().clone(), "can only be set when seccomp type is Localhost", errors)
        }
        (false, false) => {}
    }
}

fn validate_app_armor(profile: &Cursor, errors: &mut Errors) {
    if !profile.present() {
        return;
    }
    let (kind, file) = (profile.child("type"), profile.child("localhostProfile"));
    match kind.text() {
        "Localhost" if file.text().trim().is_empty() && file.text().is_empty() => {
            file.required("must be set when AppArmor type is Localhost", errors);
        }
        "Localhost" => {
            if file.text().trim() != file.text() {
                file.invalid("must not be padded with whitespace", errors);
            }
            if file.text().len() > 4095 {
                errors.too_long(&file.path(), 4095);
            }
        }
        "RuntimeDefault" | "Unconfined" if file.present() => {
            file.invalid("can only be set when AppArmor type is Localhost", errors);
        }
        "RuntimeDefault" | "Unconfined" => {}
        "" => kind.required("type is required when appArmorProfile is set", errors),
        _ => kind.unsupported(&["Localhost", "RuntimeDefault", "Unconfined"], errors),
    }
}

fn validate_sysctls(spec: &Cursor, sysctls: &Cursor, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for sysctl in sysctls.items() {
        let name = sysctl.child("name");
        let text = name.text();
        if text.is_empty() {
            name.required("", errors);
        } else if !is_sysctl(text) {
            let why = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            name.invalid(why, errors);
        } else if seen.contains(text) {
            name.duplicate(text, errors);
        }
        seen.insert(text);
        let dotted = text.replace('/', ".");
        if spec.child("hostNetwork").flag() && dotted.starts_with("net.") {
            name.invalid("may not be specified when 'hostNetwork' is true", errors);
        } else if spec.child("hostIPC").flag() && is_ipc(&dotted) {
            name.invalid("may not be specified when 'hostIPC' is true", errors);
        }
    }
}

fn is_sysctl(text: &str) -> bool {
    // A segment may be longer than a label.
    let segment = |part: &str| name::is_dns_label(&part.replace('_', "-"));
    text.len() <= 253 && text.split(['.', '/']).all(segment)
}

fn is_ipc(sysctl: &str) -> bool {
    ["kernel.msg", "kernel.shm", "fs.mqueue."].iter().any(|start| sysctl.starts_with(start)) || sysctl == "kernel.sem"
}

fn validate_host_users(spec: &Cursor, errors: &mut Errors) {
    let users = spec.child("hostUsers");
    if !users.present() || users.flag() {
        return;
    }
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec.child(field).flag() {
            spec.child(shown).forbidden("when `pod.Spec.HostUsers` is false", errors);
        }
    }
}

fn forbid_windows_options(spec: &Cursor, errors: &mut Errors) {
    const DENIED: &str = "windows options cannot be set for a linux pod";
    let own = spec.child("securityContext");
    if own.child("windowsOptions").present() {
        own.child("windowsOptions").forbidden(DENIED, errors);
    }
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            let context = container.child("securityContext");
            if context.child("windowsOptions").present() {
                context.child("windowsOptions").forbidden(DENIED, errors);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::{Value, json};

    fn errors_of(check: impl Fn(&Cursor, &mut Errors), value: Value) -> Vec<String> {
        let (path, mut errors) = (Path::new("s"), Errors::default());
        check(&Cursor::new(&value, &path), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_container_contexts_are_refused_with_upstreams_messages() {
        let cases = [
            (json!({"runAsUser": -1}), "s.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive"),
            (
                json!({"procMount": "x"}),
                "s.procMount: Unsupported value: \"x\": supported values: \"Default\", \"Unmasked\"",
            ),
            (
                json!({"procMount": "Unmasked"}),
                "s.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
            ),
            (
                json!({"seccompProfile": {}}),
                "s.seccompProfile.type: Required value: type is required when seccompProfile is set",
            ),
            (
                json!({"seccompProfile": {"type": "Localhost"}}),
                "s.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            ),
            (
                json!({"seccompProfile": {"type": "x"}}),
                "s.seccompProfile.type: Unsupported value: \"x\": supported values: \"Localhost\", \"RuntimeDefault\", \"Unconfined\"",
            ),
            (
                json!({"appArmorProfile": {"type": "Localhost"}}),
                "s.appArmorProfile.localhostProfile: Required value: must be set when AppArmor type is Localhost",
            ),
            (
                json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": " a"}}),
                "s.appArmorProfile.localhostProfile: Invalid value: \" a\": must not be padded with whitespace",
            ),
            (
                json!({"allowPrivilegeEscalation": false, "privileged": true}),
                "s: Invalid value: {\"allowPrivilegeEscalation\":false,\"privileged\":true}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            ),
        ];
        for (context, want) in cases {
            assert_eq!(
                errors_of(|at, errors| validate_container(at, true, errors), context.clone()),
                [want],
                "{context}"
            );
        }
        let admin = json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["CAP_SYS_ADMIN"]}});
        let text = errors_of(|at, errors| validate_container(at, true, errors), admin);
        assert!(
            text[0].ends_with("cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
        );
        assert!(
            errors_of(|at, errors| validate_container(at, false, errors), json!({"procMount": "Unmasked"})).is_empty()
        );
    }

    #[test]
    fn invalid_pod_contexts_are_refused_with_upstreams_messages() {
        let sysctl = |name: &str| json!({"securityContext": {"sysctls": [{"name": name}]}});
        let mut on_host = sysctl("net.core.somaxconn");
        on_host["hostNetwork"] = json!(true);
        let cases = [
            (
                json!({"securityContext": {"supplementalGroups": [-5]}}),
                "s.securityContext.supplementalGroups[0]: Invalid value: -5: must be between 0 and 2147483647, inclusive",
            ),
            (
                json!({"shareProcessNamespace": true, "hostPID": true}),
                "s.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled",
            ),
            (sysctl(""), "s.securityContext.sysctls[0].name: Required value"),
            (
                sysctl("A"),
                "s.securityContext.sysctls[0].name: Invalid value: \"A\": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            ),
            (
                on_host,
                "s.securityContext.sysctls[0].name: Invalid value: \"net.core.somaxconn\": may not be specified when 'hostNetwork' is true",
            ),
            (
                json!({"securityContext": {"fsGroupChangePolicy": "x"}}),
                "s.securityContext.fsGroupChangePolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnRootMismatch\"",
            ),
            (json!({"hostUsers": false, "hostPID": true}), "s.HostPID: Forbidden: when `pod.Spec.HostUsers` is false"),
            (json!({"os": {}}), "s.os.name: Required value: cannot be empty"),
            (
                json!({"os": {"name": "beos"}}),
                "s.os: Unsupported value: \"beos\": supported values: \"linux\", \"windows\"",
            ),
            (
                json!({"os": {"name": "linux"}, "securityContext": {"windowsOptions": {}}}),
                "s.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
            ),
            (
                json!({"os": {"name": "windows"}, "securityContext": {"fsGroup": 1}}),
                "s.securityContext.fsGroup: Forbidden: cannot be set for a windows pod",
            ),
        ];
        for (spec, want) in cases {
            assert_eq!(errors_of(validate, spec.clone()), [want], "{spec}");
        }
        assert_eq!(errors_of(validate, sysctl("kernel.shm_rmid_forced")), Vec::<String>::new());
    }
}
