//! Checks that many kinds share, with upstream's messages.

use crate::field::{Errors, Path};
use crate::name;
use crate::quantity::Quantity;
use crate::schema;
use crate::table::{Column, NAME, column};
use crate::{Value, json};
use std::net::IpAddr;

pub(super) use crate::meta::{invalid_for_each, member};

pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// Columns of kinds without columns of their own.
pub(super) const NAME_AND_CREATED: &[Column] = &[
    NAME,
    column(
        "Created At",
        "date",
        "CreationTimestamp is a timestamp representing the server time when this object was created.",
    ),
];

pub(super) fn name_and_created(object: &Value) -> Vec<Value> {
    use crate::access::Access;
    vec![json!(crate::access::name(object)), json!(object.text(&["metadata", "creationTimestamp"]))]
}

/// Returns `<none>` for an empty text.
pub(super) fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

pub(super) fn subdomain(text: &str, path: &Path, errors: &mut Errors) {
    invalid_for_each(name::subdomain(text), path, text, errors);
}

pub(super) fn label(text: &str, path: &Path, errors: &mut Errors) {
    invalid_for_each(name::label(text), path, text, errors);
}

pub(super) fn qualified(text: &str, path: &Path, errors: &mut Errors) {
    invalid_for_each(name::qualified(text), path, text, errors);
}

/// Checks for a non-empty subdomain.
pub(super) fn required_subdomain(text: &str, path: &Path, errors: &mut Errors) {
    if text.is_empty() {
        errors.required(path, "");
    } else {
        subdomain(text, path, errors);
    }
}

pub(super) fn required(text: &str, path: &Path, errors: &mut Errors) {
    if text.is_empty() {
        errors.required(path, "");
    }
}

/// Checks that the text is one of the words. The error lists them in this order.
pub(super) fn one_of(text: &str, words: &[&str], path: &Path, errors: &mut Errors) {
    if !words.contains(&text) {
        errors.not_supported(path, text, words);
    }
}

pub(super) fn not_negative(value: Option<i64>, path: &Path, errors: &mut Errors) {
    if let Some(value) = value.filter(|value| *value < 0) {
        errors.invalid(path, value, NOT_NEGATIVE);
    }
}

/// Checks that a quantity is not negative. Decoding has refused texts that are not quantities.
pub(super) fn quantity_not_negative(value: &Value, path: &Path, errors: &mut Errors) {
    if Quantity::of(value).is_some_and(|quantity| quantity.is_negative()) {
        errors.invalid(path, value.clone(), NOT_NEGATIVE);
    }
}

pub(super) fn quantity_positive(value: &Value, path: &Path, errors: &mut Errors) {
    if !Quantity::of(value).is_some_and(|quantity| quantity.is_positive()) {
        errors.invalid(path, value.clone(), "must be greater than zero");
    }
}

/// Checks the name of a CSI driver: a case-insensitive subdomain of at most 63 characters.
pub(super) fn csi_driver_name(text: &str, path: &Path, errors: &mut Errors) {
    if text.is_empty() {
        errors.required(path, "");
        return;
    }
    if text.len() > 63 {
        errors.too_long(path, 63);
    }
    invalid_for_each(name::subdomain(&text.to_lowercase()), path, text, errors);
}

pub(super) fn ip(text: &str, path: &Path, errors: &mut Errors) -> Option<IpAddr> {
    let ip = text.parse().ok();
    if ip.is_none() {
        errors.invalid(path, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
    }
    ip
}

/// Checks that an address can be an endpoint. Unspecified, loopback and link-local addresses cannot, because they mean
/// another host on every machine.
pub(super) fn ip_not_special(text: &str, path: &Path, errors: &mut Errors) {
    let Some(ip) = ip(text, path, errors) else { return };
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(ip) => (ip.is_unicast_link_local(), ip.segments()[0] & 0xff0f == 0xff02),
    };
    let cases = [
        (ip.is_unspecified(), "may not be unspecified (0.0.0.0 or ::)"),
        (ip.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (link_local_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
    ];
    for (_, why) in cases.into_iter().filter(|(special, _)| *special) {
        errors.invalid(path, text, why);
    }
}

pub(super) fn is_cidr(text: &str) -> bool {
    let Some((ip, bits)) = text.split_once('/') else { return false };
    let plain = bits.len() <= 3 && bits.bytes().all(|byte| byte.is_ascii_digit());
    match (ip.parse::<IpAddr>(), bits.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(bits)) => plain && bits <= 32,
        (Ok(IpAddr::V6(_)), Ok(bits)) => plain && bits <= 128,
        _ => false,
    }
}

/// Whether two values of a built-in type are semantically equal.
pub(super) fn same(type_name: &str, a: &Value, b: &Value) -> bool {
    a == b || schema::builtin_type(type_name).same(a, b)
}

/// Checks that a path inside a volume has no `..` element.
pub(super) fn path_without_backsteps(text: &str, path: &Path, errors: &mut Errors) {
    if text.split('/').any(|part| part == "..") {
        errors.invalid(path, text, "must not contain '..'");
    }
}

/// Node labels that were renamed when they left beta, with the release that renamed them.
pub(super) const RENAMED_LABELS: &[(&str, &str, &str)] = &[
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone", "v1.17"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region", "v1.17"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type", "v1.17"),
    ("beta.kubernetes.io/os", "kubernetes.io/os", "v1.14"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch", "v1.14"),
];

/// Returns the warning about a renamed node label, or `None`.
pub(super) fn renamed_label_warning(label: &str, path: &Path) -> Option<String> {
    let (old, new, since) = RENAMED_LABELS.iter().find(|(old, _, _)| *old == label)?;
    Some(format!("{path}: {old} is deprecated since {since}; use {new:?} instead"))
}
