//! ConfigMap and Secret: data by key, which can be made immutable.

use super::check::member;
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::meta::{invalid_for_each, validate_immutable};
use crate::table::{AGE, Column, NAME, age, column};
use crate::{Map, Value, json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Maximum total size of the values of a ConfigMap or Secret.
const DATA_BYTES_MAX: usize = 1024 * 1024;
const KEY_TEXT: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  \
     or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// Returns the errors of a key of a ConfigMap or Secret.
pub(super) fn key(key: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if key.len() > 253 {
        wrong.push("must be no more than 253 characters".to_owned());
    }
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        wrong.push(KEY_TEXT.to_owned());
    }
    match key {
        "." | ".." => wrong.push(format!("must not be '{key}'")),
        _ if key.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

/// Returns the decoded length of a base64 text.
fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or("");
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

/// Refuses changes to the data of an immutable object.
fn validate_frozen(new: &Value, old: &Value, errors: &mut Errors) {
    if !old.flag(&["immutable"]) {
        return;
    }
    const WHY: &str = "field is immutable when `immutable` is set";
    if !new.flag(&["immutable"]) {
        errors.forbidden(&Path::new("immutable"), WHY);
    }
    for field in ["data", "binaryData"] {
        if new.members(&[field]) != old.members(&[field]) {
            errors.forbidden(&Path::new(field), WHY);
        }
    }
}

fn validate_keys(data: &Map, path: &Path, errors: &mut Errors) {
    for name in data.keys() {
        invalid_for_each(key(name), &path.key(name), name, errors);
    }
}

pub(super) struct ConfigMaps;

impl Rules for ConfigMaps {
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let (text, binary) = (object.members(&["data"]), object.members(&["binaryData"]));
        let path = Path::new("data");
        for name in text.keys() {
            invalid_for_each(key(name), &path.key(name), name, errors);
            if binary.contains_key(name) {
                errors.invalid(&path.key(name), name.as_str(), "duplicate of key present in binaryData");
            }
        }
        validate_keys(binary, &Path::new("binaryData"), errors);
        let text_bytes: usize = text.values().map(|value| value.as_str().map_or(0, str::len)).sum();
        if text_bytes + binary.values().map(decoded_len).sum::<usize>() > DATA_BYTES_MAX {
            errors.too_long(&Path::new(""), DATA_BYTES_MAX);
        }
    }
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        validate_frozen(new, old, errors);
        self.validate_create(new, ctx, errors);
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Data", "string", "Number of entries in data and binaryData"), AGE];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let entries = object.members(&["data"]).len() + object.members(&["binaryData"]).len();
        vec![json!(name(object)), json!(entries), json!(age(object, now))]
    }
}

pub(super) struct Secrets;

impl Rules for Secrets {
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        object.default_to(&["type"], "Opaque");
        // `stringData` is write-only: it is merged into `data` and not stored.
        if let Some(Value::Object(texts)) = object.cut(&["stringData"]) {
            for (key, text) in texts {
                let encoded = STANDARD.encode(text.as_str().unwrap_or(""));
                object.put(&["data", &key], encoded);
            }
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let data = object.members(&["data"]);
        let path = Path::new("data");
        validate_keys(data, &path, errors);
        if data.values().map(decoded_len).sum::<usize>() > DATA_BYTES_MAX {
            errors.too_long(&path, DATA_BYTES_MAX);
        }
        validate_type(object, errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        validate_immutable(new.at(&["type"]), old.at(&["type"]), &Path::new("type"), errors);
        validate_frozen(new, old, errors);
        self.validate_create(new, ctx, errors);
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Type", "string", "Used to facilitate programmatic handling of secret data."),
            column("Data", "string", "Number of entries in data"),
            AGE,
        ];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let entries = object.members(&["data"]).len();
        vec![json!(name(object)), json!(object.text(&["type"])), json!(entries), json!(age(object, now))]
    }
    fn selectable_fields(&self) -> &[&str] {
        &["type"]
    }
}

/// Checks that each well-known type has its required keys.
fn validate_type(object: &Value, errors: &mut Errors) {
    let data = object.members(&["data"]);
    let path = Path::new("data");
    match object.text(&["type"]) {
        "kubernetes.io/service-account-token" => {
            let account = "kubernetes.io/service-account.name";
            if object.text(&["metadata", "annotations", account]).is_empty() {
                errors.required(&Path::new("metadata.annotations").key(account), "");
            }
        }
        "kubernetes.io/dockercfg" => validate_docker(object, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => validate_docker(object, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if !data.contains_key("username") && !data.contains_key("password") => {
            errors.required(&path.key("username"), "");
            errors.required(&path.key("password"), "");
        }
        "kubernetes.io/ssh-auth" if object.text(&["data", "ssh-privatekey"]).is_empty() => {
            errors.required(&path.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"].into_iter().filter(|key| !data.contains_key(*key)) {
                errors.required(&path.key(key), "");
            }
        }
        _ => {}
    }
}

fn validate_docker(object: &Value, key: &str, errors: &mut Errors) {
    let path = Path::new("data").key(key);
    let Some(text) = member(member(object, "data"), key).as_str() else {
        errors.required(&path, "");
        return;
    };
    let parsed: Result<Map, _> = serde_json::from_slice(&STANDARD.decode(text).unwrap_or_default());
    if let Err(why) = parsed {
        errors.invalid(&path, "<secret contents redacted>", why.to_string());
    }
}
