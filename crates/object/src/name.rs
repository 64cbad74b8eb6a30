//! Validation of names, label keys and label values. Each check returns its error messages; an empty list means valid.

use crate::kind::NameRule;

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

const LABEL_TEXT: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
     with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
     start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS1035_TEXT: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
     character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
     '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_TEXT: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
     alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE_TEXT: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
     start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
     '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

fn lower_alnum(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether the text consists of lower-case letters, digits and inner dashes, whatever its length.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            lower_alnum(first) && lower_alnum(last) && bytes.iter().all(|&b| lower_alnum(b) || b == b'-')
        }
        _ => false,
    }
}

/// RFC 1123 label.
pub fn label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX));
    }
    if !is_dns_label(text) {
        wrong.push(LABEL_TEXT.to_owned());
    }
    wrong
}

/// RFC 1123 subdomain.
pub fn subdomain(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX));
    }
    if !text.split('.').all(is_dns_label) {
        wrong.push(SUBDOMAIN_TEXT.to_owned());
    }
    wrong
}

/// RFC 1035 label: as in RFC 1123, but it starts with a letter.
pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX));
    }
    if !is_dns_label(text) || !text.as_bytes()[0].is_ascii_lowercase() {
        wrong.push(DNS1035_TEXT.to_owned());
    }
    wrong
}

/// A valid segment of a URL path.
pub fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"].iter().filter(|bad| text.contains(**bad)).map(|bad| format!("may not contain '{bad}'")).collect()
}

fn is_qualified_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        }
        _ => false,
    }
}

/// `prefix/name` or `name`: label and annotation keys, condition types, resource names.
pub fn qualified(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(subdomain(prefix).into_iter().map(|why| format!("prefix part {why}")));
            }
            name
        }
        _ => {
            wrong.push(format!(
                "a qualified {QUALIFIED_TEXT} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
            return wrong;
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        wrong.push(format!("name part {}", too_long(LABEL_MAX)));
    }
    if !is_qualified_part(name) {
        wrong.push(QUALIFIED_TEXT.to_owned());
    }
    wrong
}

/// A label's value.
pub fn label_value(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX));
    }
    if !text.is_empty() && !is_qualified_part(text) {
        wrong.push(LABEL_VALUE_TEXT.to_owned());
    }
    wrong
}

/// IANA service name, for container ports.
pub fn port_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 15 {
        wrong.push(too_long(15));
    }
    let bytes = text.as_bytes();
    if !bytes.iter().all(|&b| lower_alnum(b) || b == b'-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !bytes.iter().any(u8::is_ascii_lowercase) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// A port number.
pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65_535).contains(&port) { Vec::new() } else { vec!["must be between 1 and 65535, inclusive".to_owned()] }
}

/// Applies the check for a `NameRule`.
pub fn by_rule(rule: NameRule, text: &str) -> Vec<String> {
    match rule {
        NameRule::Subdomain => subdomain(text),
        NameRule::Label => label(text),
        NameRule::ServiceLabel => dns1035_label(text),
        NameRule::PathSegment => path_segment(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_accepted_or_refused_by_their_rules() {
        type Check = fn(&str) -> Vec<String>;
        let cases: &[(Check, &[&str], &[&str])] = &[
            (label, &["a", "web-0", "1a"], &["", "-a", "a-", "a.b", "A", "a_b"]),
            (subdomain, &["a.b", "a-b.c1"], &["", "a..b", ".a", "a.", "a.-b"]),
            (dns1035_label, &["a", "web-0"], &["", "1a", "a."]),
            (qualified, &["a", "A_b.c", "example.com/x"], &["", "/x", "a/", "a/b/c", "-a", "Ex.com/x"]),
            (label_value, &["", "a", "A.b_c-1"], &["-a", "a b", "ä"]),
            (port_name, &["http", "p-1"], &["", "1", "a--b", "-a", "abcdefghijklmnop"]),
            (path_segment, &["system:admin", "a b"], &[".", "..", "a/b", "50%"]),
        ];
        for (check, good, bad) in cases {
            for text in *good {
                assert!(check(text).is_empty(), "{text:?} is fine: {:?}", check(text));
            }
            for text in *bad {
                assert!(!check(text).is_empty(), "{text:?} is not");
            }
        }
        assert!(label(&"a".repeat(63)).is_empty());
        assert_eq!(label(&"a".repeat(64)), ["must be no more than 63 characters"]);
    }
}
