//! Validation of file paths in volumes and mounts, and of addresses and ids in pod specs.

use super::cursor::Cursor;
use crate::field::Errors;

/// Validates a path without `..` elements.
pub(super) fn no_backsteps(path: &Cursor, errors: &mut Errors) {
    if has_backsteps(path.text()) {
        path.invalid("must not contain '..'", errors);
    }
}

pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

/// Validates a relative path without `..` elements.
pub(super) fn descending(path: &Cursor, errors: &mut Errors) {
    if path.text().starts_with('/') {
        path.invalid("must be a relative path", errors);
    }
    no_backsteps(path, errors);
}

/// Validates a relative path that has no `..` elements and does not start with `..`: the kubelet uses such names for
/// atomic updates.
pub(super) fn local(path: &Cursor, errors: &mut Errors) {
    descending(path, errors);
    if path.text().starts_with("..") && !path.text().starts_with("../") {
        path.invalid("must not start with '..'", errors);
    }
}

/// Validates permission bits.
pub(super) fn mode(mode: &Cursor, errors: &mut Errors) {
    if !(0..=0o777).contains(&mode.int()) {
        mode.invalid("must be a number between 0 and 0777 (octal), both inclusive", errors);
    }
}

/// Validates a user or group id.
pub(super) fn id(id: &Cursor, errors: &mut Errors) {
    if id.present() {
        id.between(0, i64::from(i32::MAX), errors);
    }
}

/// Validates an IP address of either family.
pub(super) fn ip(ip: &Cursor, errors: &mut Errors) {
    if ip.text().parse::<std::net::IpAddr>().is_err() {
        ip.invalid("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)", errors);
    }
}
