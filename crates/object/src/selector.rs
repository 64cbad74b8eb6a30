//! Label and field selectors.

use crate::access::Access;
use serde_json::Value;

/// The value of a field as text, by its dotted path: what most field selectors compare.
pub fn plain_field(object: &Value, field: &str) -> String {
    let path: Vec<&str> = field.split('.').collect();
    match object.at(&path) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}
