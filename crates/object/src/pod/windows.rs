//! Windows options, and fields that a Windows pod cannot have.

use super::cursor::Cursor;
use super::security::CONTAINER_LISTS;
use crate::field::Errors;
use crate::name;

const DENIED: &str = "cannot be set for a windows pod";

/// Refuses fields that have no meaning on Windows.
pub(super) fn forbid_linux_options(spec: &Cursor, errors: &mut Errors) {
    let own = spec.child("securityContext");
    let pod_fields = [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "fsGroup",
        "fsGroupChangePolicy",
        "sysctls",
        "runAsUser",
        "runAsGroup",
        "supplementalGroups",
        "supplementalGroupsPolicy",
        "seLinuxChangePolicy",
    ];
    forbid(&own, &pod_fields, errors);
    forbid(spec, &["hostUsers", "shareProcessNamespace"], errors);
    for field in ["hostPID", "hostIPC"] {
        if spec.child(field).flag() {
            spec.child(field).forbidden(DENIED, errors);
        }
    }
    let container_fields = [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ];
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            forbid(&container.child("securityContext"), &container_fields, errors);
        }
    }
}

fn forbid(context: &Cursor, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        if context.child(field).present() {
            context.child(field).forbidden(DENIED, errors);
        }
    }
}

/// Validates host-process containers: either all containers are, or none, and they need the host network.
pub(super) fn validate_host_process(spec: &Cursor, errors: &mut Errors) {
    let own = spec.child("securityContext");
    let own = own.child("windowsOptions");
    let whole = own.child("hostProcess");
    let (mut count, mut on_host) = (0, 0);
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            count += 1;
            let context = container.child("securityContext");
            let options = context.child("windowsOptions");
            let each = options.child("hostProcess");
            if whole.present() && each.present() && whole.flag() != each.flag() {
                let why =
                    format!("pod hostProcess value must be identical if both are specified, was {}", whole.flag());
                each.invalid(why, errors);
            }
            on_host += usize::from(if each.present() { each.flag() } else { whole.flag() });
        }
    }
    if on_host > 0 && on_host != count {
        spec.invalid_as(
            "",
            "If pod contains any hostProcess containers then all containers must be HostProcess containers",
            errors,
        );
    }
    if on_host > 0 && !spec.child("hostNetwork").flag() {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        spec.child("hostNetwork").invalid_as(false, why, errors);
    }
}

pub(super) fn validate_options(options: &Cursor, errors: &mut Errors) {
    let (name, spec, user) =
        (options.child("gmsaCredentialSpecName"), options.child("gmsaCredentialSpec"), options.child("runAsUserName"));
    if name.present() {
        name.check(name::subdomain(name.text()), errors);
    }
    if spec.present() && spec.is_empty() {
        spec.invalid("gmsaCredentialSpec cannot be an empty string", errors);
    } else if spec.text().len() > 64 * 1024 {
        spec.invalid("gmsaCredentialSpec size must be under 64 KiB", errors);
    }
    if user.present() {
        for why in user_name(user.text()) {
            user.invalid(format!("runAsUserName{why}"), errors);
        }
    }
}

/// Returns the errors of a user name `DOMAIN\\user`, worded to follow the field's name.
fn user_name(text: &str) -> Vec<&'static str> {
    if text.is_empty() {
        return vec![" cannot be an empty string"];
    }
    if text.chars().any(char::is_control) {
        return vec![" cannot contain control characters"];
    }
    let parts: Vec<&str> = text.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return vec![" cannot contain more than one backslash"],
    };
    let mut wrong = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= 256) {
        wrong.push("'s Domain length must be under 256 characters");
    }
    if domain.is_some_and(|domain| !is_netbios(domain) && !is_dns(domain)) {
        wrong.push("'s Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        wrong.push("'s User cannot be empty");
    } else if user.len() > 104 {
        wrong.push("'s User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        wrong.push("'s User cannot contain only periods or spaces");
    }
    if user.contains(|c| "\"/\\:;|=,+*?<>@[]".contains(c)) {
        wrong.push("'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
    wrong
}

fn is_netbios(domain: &str) -> bool {
    let count = domain.chars().count();
    (1..=15).contains(&count) && !domain.starts_with('.') && !domain.contains(|c| "\\/:*?\"<>|".contains(c))
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| name::label(&label.to_lowercase()).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::json;

    #[test]
    fn domain_and_user_of_a_user_name_are_validated() {
        let cases: &[(&str, &[&str])] = &[
            ("ContainerUser", &[]),
            ("NT AUTHORITY\\SYSTEM", &[]),
            ("", &[" cannot be an empty string"]),
            ("a\\b\\c", &[" cannot contain more than one backslash"]),
            ("a\tb", &[" cannot contain control characters"]),
            ("dom:ain\\a", &["'s Domain doesn't match the NetBios nor the DNS format"]),
            ("dom\\", &["'s User cannot be empty"]),
            ("...", &["'s User cannot contain only periods or spaces"]),
            ("a@b", &["'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]"]),
        ];
        for (text, want) in cases {
            assert_eq!(user_name(text), *want, "{text}");
        }
    }

    #[test]
    fn host_process_must_be_set_for_all_containers_or_none() {
        let spec = json!({"containers": [
            {"securityContext": {"windowsOptions": {"hostProcess": true}}},
            {"securityContext": {"windowsOptions": {"hostProcess": false}}},
        ]});
        let (path, mut errors) = (Path::new("spec"), Errors::default());
        validate_host_process(&Cursor::new(&spec, &path), &mut errors);
        let messages: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "spec: Invalid value: \"\": If pod contains any hostProcess containers then all containers must be HostProcess containers",
                "spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
            ]
        );
    }
}
