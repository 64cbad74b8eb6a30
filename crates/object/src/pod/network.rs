//! Network fields of a pod: DNS, host aliases, host network.

use super::cursor::Cursor;
use super::paths;
use crate::field::Errors;
use crate::name;

/// Validates the network fields. `in_pod` is false for templates: their host ports are set only when a pod is created.
pub(super) fn validate(spec: &Cursor, in_pod: bool, errors: &mut Errors) {
    validate_host_network(spec, in_pod, errors);
    validate_dns_policy(spec, errors);
    validate_dns(&spec.child("dnsConfig"), spec.child("dnsPolicy").text(), errors);
    spec.child("hostname").optional_name(name::label, errors);
    spec.child("subdomain").optional_name(name::label, errors);
    validate_hostname_override(spec, errors);
    for alias in spec.child("hostAliases").items() {
        paths::ip(&alias.child("ip"), errors);
        for hostname in alias.child("hostnames").items() {
            hostname.check(name::subdomain(hostname.text()), errors);
        }
    }
}

fn validate_host_network(spec: &Cursor, in_pod: bool, errors: &mut Errors) {
    if !spec.child("hostNetwork").flag() {
        return;
    }
    for container in spec.child("containers").items() {
        for port in container.child("ports").items() {
            let outer = port.child("hostPort");
            if (in_pod || outer.int() != 0) && outer.int() != port.child("containerPort").int() {
                outer.invalid_as(outer.int(), "must match `containerPort` when `hostNetwork` is true", errors);
            }
        }
    }
}

fn validate_dns_policy(spec: &Cursor, errors: &mut Errors) {
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    spec.child("dnsPolicy").required_one_of(&policies, errors);
}

fn validate_dns(config: &Cursor, policy: &str, errors: &mut Errors) {
    let (servers, searches) = (config.child("nameservers"), config.child("searches"));
    if policy == "None" {
        if !config.present() {
            return config.required("must provide `dnsConfig` when `dnsPolicy` is None", errors);
        }
        if servers.list().is_empty() {
            return servers.required("must provide at least one DNS nameserver when `dnsPolicy` is None", errors);
        }
    }
    if servers.list().len() > 3 {
        servers.invalid("must not have more than 3 nameservers", errors);
    }
    for server in servers.items() {
        paths::ip(&server, errors);
    }
    if searches.list().len() > 32 {
        searches.invalid("must not have more than 32 search paths", errors);
    }
    let spaces = searches.list().len().saturating_sub(1);
    if searches.items().map(|search| search.text().len()).sum::<usize>() + spaces > 2048 {
        searches.invalid("must not have more than 2048 characters (including spaces) in the search list", errors);
    }
    for search in searches.items().filter(|search| search.text() != ".") {
        let text = search.text().strip_suffix('.').unwrap_or_else(|| search.text());
        for why in search_path(text) {
            search.invalid_as(text, why, errors);
        }
    }
    for option in config.child("options").items() {
        if option.child("name").is_empty() {
            option.required("must not be empty", errors);
        }
    }
}

/// Validates a search path: a subdomain whose labels may contain underscores.
fn search_path(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 253 {
        wrong.push("must be no more than 253 characters".to_owned());
    }
    // Treat an underscore as one more letter: a leading one may precede the label, others may be anywhere inside.
    // A label may be longer than 63 characters here.
    let plain = |label: &str| label.strip_prefix('_').unwrap_or(label).replace('_', "-");
    if !text.split('.').all(|label| name::is_dns_label(&plain(label))) {
        let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-', '_' or '.', and \
                   must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                   '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
        wrong.push(why.to_owned());
    }
    wrong
}

fn validate_hostname_override(spec: &Cursor, errors: &mut Errors) {
    let hostname = spec.child("hostnameOverride");
    if !hostname.present() {
        return;
    }
    if spec.child("hostNetwork").flag() {
        hostname.forbidden("may not be specified when `hostNetwork` is true", errors);
    }
    if spec.child("setHostnameAsFQDN").flag() {
        hostname.forbidden("may not be specified when `setHostnameAsFQDN` is true", errors);
    }
    hostname.check(name::subdomain(hostname.text()), errors);
    if hostname.text().len() > 64 {
        errors.too_long(&hostname.path(), 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::{Value, json};

    fn errors_of(members: Value) -> Vec<String> {
        let mut spec = json!({"dnsPolicy": "ClusterFirst"});
        for (key, value) in members.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let (path, mut errors) = (Path::new("spec"), Errors::default());
        validate(&Cursor::new(&spec, &path), true, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_names_and_addresses_are_refused_with_upstreams_messages() {
        let cases = [
            (json!({"dnsPolicy": ""}), "spec.dnsPolicy: Required value"),
            (
                json!({"dnsPolicy": "x"}),
                "spec.dnsPolicy: Unsupported value: \"x\": supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\"",
            ),
            (
                json!({"dnsPolicy": "None"}),
                "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
            ),
            (
                json!({"dnsPolicy": "None", "dnsConfig": {}}),
                "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
            ),
            (
                json!({"dnsConfig": {"nameservers": ["1.1.1"]}}),
                "spec.dnsConfig.nameservers[0]: Invalid value: \"1.1.1\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
            (
                json!({"dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.1", "1.1.1.1", "::1"]}}),
                "spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\",\"1.1.1.1\",\"1.1.1.1\",\"::1\"]: must not have more than 3 nameservers",
            ),
            (json!({"dnsConfig": {"options": [{}]}}), "spec.dnsConfig.options[0]: Required value: must not be empty"),
            (
                json!({"hostAliases": [{"ip": "x"}]}),
                "spec.hostAliases[0].ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
            (
                json!({"hostNetwork": true, "containers": [{"ports": [{"containerPort": 80, "hostPort": 81}]}]}),
                "spec.containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true",
            ),
            (
                json!({"hostnameOverride": "a", "hostNetwork": true}),
                "spec.hostnameOverride: Forbidden: may not be specified when `hostNetwork` is true",
            ),
        ];
        for (members, want) in cases {
            assert_eq!(errors_of(members.clone()), [want], "{members}");
        }
        assert!(
            errors_of(json!({"hostname": "a.b"}))[0]
                .starts_with("spec.hostname: Invalid value: \"a.b\": a lowercase RFC 1123 label")
        );
        assert!(errors_of(json!({"subdomain": "A"}))[0].starts_with("spec.subdomain: Invalid value"));
        assert!(
            errors_of(json!({"hostAliases": [{"ip": "::1", "hostnames": ["A"]}]}))[0]
                .starts_with("spec.hostAliases[0].hostnames[0]: Invalid value")
        );
        assert!(
            errors_of(json!({"dnsConfig": {"searches": ["a..b"]}}))[0]
                .starts_with("spec.dnsConfig.searches[0]: Invalid value: \"a..b\"")
        );
        assert_eq!(errors_of(json!({"dnsConfig": {"searches": [".", "a.b.", "_x._y_z.c"]}})), Vec::<String>::new());
    }
}
