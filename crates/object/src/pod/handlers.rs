//! Probes and lifecycle hooks. Each must have exactly one action.

use super::cursor::Cursor;
use crate::Value;
use crate::field::Errors;
use crate::name;

/// Validates a container's probes and hooks. `grace` is the pod's grace period, which limits a `sleep` hook.
pub(super) fn validate(container: &Cursor, grace: Option<i64>, errors: &mut Errors) {
    let lifecycle = container.child("lifecycle");
    for hook in ["postStart", "preStop"] {
        let handler = lifecycle.child(hook);
        if handler.present() {
            validate_handler(&handler, &["exec", "httpGet", "tcpSocket", "sleep"], grace, errors);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.child(name);
        if probe.present() {
            validate_probe(&probe, name, grace, errors);
        }
    }
}

fn validate_probe(probe: &Cursor, name: &str, grace: Option<i64>, errors: &mut Errors) {
    validate_handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], grace, errors);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        probe.child(field).non_negative(errors);
    }
    let own_grace = probe.child("terminationGracePeriodSeconds");
    if own_grace.present() && own_grace.int() <= 0 {
        own_grace.invalid("must be greater than 0", errors);
    }
    let successes = probe.child("successThreshold");
    if name != "readinessProbe" && successes.int() != 1 {
        successes.invalid_as(successes.int(), "must be 1", errors);
    }
    if name == "readinessProbe" && own_grace.present() {
        own_grace.invalid("must not be set for readinessProbes", errors);
    }
}

fn validate_handler(handler: &Cursor, kinds: &[&str], grace: Option<i64>, errors: &mut Errors) {
    let mut count = 0;
    for kind in kinds {
        let action = handler.child(kind);
        if !action.present() {
            continue;
        }
        count += 1;
        if count > 1 {
            action.forbidden("may not specify more than 1 handler type", errors);
        } else {
            validate_action(kind, &action, grace, errors);
        }
    }
    if count == 0 {
        handler.required("must specify a handler type", errors);
    }
}

fn validate_action(kind: &str, action: &Cursor, grace: Option<i64>, errors: &mut Errors) {
    match kind {
        "exec" => action.required_members(&["command"], errors),
        "httpGet" => validate_http_get(action, errors),
        "sleep" => validate_sleep(action, grace, errors),
        _ => validate_port(&action.child("port"), errors),
    }
}

fn validate_http_get(action: &Cursor, errors: &mut Errors) {
    action.required_members(&["path"], errors);
    validate_port(&action.child("port"), errors);
    let scheme = action.child("scheme");
    if !["HTTP", "HTTPS"].contains(&scheme.text()) {
        scheme.unsupported(&["HTTP", "HTTPS"], errors);
    }
    let headers = action.child("httpHeaders");
    for header in headers.items() {
        let name = header.child("name").text();
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used \
                       for validation is '[-A-Za-z0-9]+')";
            headers.invalid_as(name, why, errors);
        }
    }
}

/// Validates a port given by number or name.
fn validate_port(port: &Cursor, errors: &mut Errors) {
    match port.value() {
        Value::String(text) => port.check(name::port_name(text), errors),
        _ => {
            for why in name::port_number(port.int()) {
                port.invalid_as(port.int(), why, errors);
            }
        }
    }
}

fn validate_sleep(action: &Cursor, grace: Option<i64>, errors: &mut Errors) {
    let seconds = action.child("seconds").int();
    if let Some(grace) = grace
        && !(0..=grace).contains(&seconds)
    {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        action.invalid_as(seconds, why, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::json;

    fn errors_of(container: Value) -> Vec<String> {
        let (path, mut errors) = (Path::new("c"), Errors::default());
        validate(&Cursor::new(&container, &path), Some(30), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }
    fn probe(probe: Value) -> Value {
        json!({"readinessProbe": probe})
    }

    #[test]
    fn invalid_handlers_are_refused_with_upstreams_messages() {
        let get = |port: Value| json!({"httpGet": {"path": "/", "port": port, "scheme": "HTTP"}});
        let cases = [
            (probe(json!({})), vec!["c.readinessProbe: Required value: must specify a handler type"]),
            (
                probe(json!({"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}})),
                vec!["c.readinessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"],
            ),
            (probe(json!({"exec": {}})), vec!["c.readinessProbe.exec.command: Required value"]),
            (
                probe(get(json!(0))),
                vec!["c.readinessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive"],
            ),
            (
                probe(get(json!("web--x"))),
                vec!["c.readinessProbe.httpGet.port: Invalid value: \"web--x\": must not contain consecutive hyphens"],
            ),
            (
                probe(json!({"httpGet": {"path": "/", "port": 80, "scheme": "ftp"}})),
                vec![
                    "c.readinessProbe.httpGet.scheme: Unsupported value: \"ftp\": supported values: \"HTTP\", \"HTTPS\"",
                ],
            ),
            (
                probe(
                    json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP", "httpHeaders": [{"name": "a b"}]}}),
                ),
                vec![
                    "c.readinessProbe.httpGet.httpHeaders: Invalid value: \"a b\": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
                ],
            ),
            (
                probe(json!({"tcpSocket": {"port": 1}, "periodSeconds": -1, "terminationGracePeriodSeconds": 5})),
                vec![
                    "c.readinessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
                    "c.readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes",
                ],
            ),
            (
                json!({"livenessProbe": {"grpc": {"port": 1}, "successThreshold": 2, "terminationGracePeriodSeconds": 0}}),
                vec![
                    "c.livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
                    "c.livenessProbe.successThreshold: Invalid value: 2: must be 1",
                ],
            ),
            (
                json!({"lifecycle": {"preStop": {}}}),
                vec!["c.lifecycle.preStop: Required value: must specify a handler type"],
            ),
            (
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}),
                vec![
                    "c.lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
                ],
            ),
            (json!({"lifecycle": {"preStop": {"sleep": {"seconds": 0}}}}), vec![]),
        ];
        for (container, want) in cases {
            assert_eq!(errors_of(container.clone()), want, "{container}");
        }
    }
}
