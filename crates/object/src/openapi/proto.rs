//! The v2 document in gnostic's protobuf form, which is the only form that kubectl requests for v2.
//!
//! Field numbers are those of gnostic's published `openapi.v2` messages. Only fields that our document uses are
//! written.

use crate::value::Key;
use crate::{Map, Value};

/// Encodes a document of [`mod@super::v2`].
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, document.get("swagger"));
    let info = &document["info"];
    let mut message = Message::default();
    message.text(1, info.get("title"));
    message.text(2, info.get("version"));
    out.message(2, &message);
    out.named(8, 2, members(&document["paths"]), path_item);
    out.named(9, 1, members(&document["definitions"]), schema);
    out.0
}

fn path_item(item: &Value) -> Message {
    let mut out = Message::default();
    for (number, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(found) = item.get(method) {
            out.message(number, &operation(found));
        }
    }
    for parameter in items(&item["parameters"]) {
        out.message(9, &parameters_item(parameter));
    }
    out
}

fn operation(operation: &Value) -> Message {
    let mut out = Message::default();
    out.texts(1, &operation["tags"]);
    out.text(3, operation.get("description"));
    out.text(5, operation.get("operationId"));
    out.texts(6, &operation["produces"]);
    out.texts(7, &operation["consumes"]);
    for parameter in items(&operation["parameters"]) {
        out.message(8, &parameters_item(parameter));
    }
    out.named(9, 1, members(&operation["responses"]), response);
    out.texts(10, &operation["schemes"]);
    out.extensions(13, members(operation));
    out
}

fn response(response: &Value) -> Message {
    let mut inner = Message::default();
    inner.text(1, response.get("description"));
    if let Some(found) = response.get("schema") {
        inner.message(2, &Message::wrapping(1, &schema(found)));
    }
    Message::wrapping(1, &inner)
}

fn parameters_item(parameter: &Value) -> Message {
    let mut inner = Message::default();
    let place = parameter["in"].as_str().unwrap_or("");
    if place == "body" {
        inner.text(1, parameter.get("description"));
        inner.text(2, parameter.get("name"));
        inner.text(3, parameter.get("in"));
        inner.flag(4, parameter.get("required"));
        inner.message(5, &schema(&parameter["schema"]));
        return Message::wrapping(1, &Message::wrapping(1, &inner));
    }
    inner.flag(1, parameter.get("required"));
    inner.text(2, parameter.get("in"));
    inner.text(3, parameter.get("description"));
    inner.text(4, parameter.get("name"));
    let (variant, ty, unique) = if place == "path" { (4, 5, 19) } else { (3, 6, 20) };
    inner.text(ty, parameter.get("type"));
    inner.flag(unique, parameter.get("uniqueItems"));
    Message::wrapping(1, &Message::wrapping(2, &Message::wrapping(variant, &inner)))
}

fn schema(schema_value: &Value) -> Message {
    let get = |key: &str| schema_value.get(key);
    let mut out = Message::default();
    for (number, key) in [(1, "$ref"), (2, "format"), (3, "title"), (4, "description"), (13, "pattern")] {
        out.text(number, get(key));
    }
    if let Some(default) = get("default") {
        out.message(5, &any(default));
    }
    for (number, key) in [(6, "multipleOf"), (7, "maximum"), (9, "minimum")] {
        out.double(number, get(key));
    }
    for (number, key) in [(8, "exclusiveMaximum"), (10, "exclusiveMinimum"), (16, "uniqueItems"), (27, "readOnly")] {
        out.flag(number, get(key));
    }
    let counts = [
        (11, "maxLength"),
        (12, "minLength"),
        (14, "maxItems"),
        (15, "minItems"),
        (17, "maxProperties"),
        (18, "minProperties"),
    ];
    for (number, key) in counts {
        out.count(number, get(key));
    }
    out.texts(19, get("required").unwrap_or(&Value::Null));
    for value in get("enum").into_iter().flat_map(items) {
        out.message(20, &any(value));
    }
    match get("additionalProperties") {
        Some(Value::Bool(allowed)) => {
            let mut inner = Message::default();
            inner.flag(2, Some(&Value::Bool(*allowed)));
            out.message(21, &inner);
        }
        Some(values) => out.message(21, &Message::wrapping(1, &schema(values))),
        None => {}
    }
    if let Some(ty) = get("type") {
        let mut inner = Message::default();
        inner.text(1, Some(ty));
        out.message(22, &inner);
    }
    if let Some(of) = get("items") {
        out.message(23, &Message::wrapping(1, &schema(of)));
    }
    for part in get("allOf").into_iter().flat_map(items) {
        out.message(24, &schema(part));
    }
    if let Some(properties) = get("properties") {
        out.named(25, 1, members(properties), schema);
    }
    out.extensions(31, members(schema_value));
    out
}

/// gnostic encodes free values as YAML text; JSON is valid YAML.
fn any(value: &Value) -> Message {
    let mut out = Message::default();
    out.string(2, &value.to_string());
    out
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn members(value: &Value) -> impl Iterator<Item = (&Key, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

/// A protobuf message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn wrapping(number: u32, inner: &Message) -> Message {
        let mut out = Message::default();
        out.message(number, inner);
        out
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, number: u32, wire: u32) {
        self.varint(u64::from(number << 3 | wire));
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.key(number, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, number: u32, message: &Message) {
        self.bytes(number, &message.0);
    }

    fn string(&mut self, number: u32, text: &str) {
        self.bytes(number, text.as_bytes());
    }

    fn text(&mut self, number: u32, value: Option<&Value>) {
        if let Some(text) = value.and_then(Value::as_str) {
            self.string(number, text);
        }
    }

    fn texts(&mut self, number: u32, list: &Value) {
        for text in items(list).iter().filter_map(Value::as_str) {
            self.string(number, text);
        }
    }

    fn flag(&mut self, number: u32, value: Option<&Value>) {
        if let Some(on) = value.and_then(Value::as_bool) {
            self.key(number, 0);
            self.varint(u64::from(on));
        }
    }

    fn count(&mut self, number: u32, value: Option<&Value>) {
        if let Some(count) = value.and_then(Value::as_u64) {
            self.key(number, 0);
            self.varint(count);
        }
    }

    fn double(&mut self, number: u32, value: Option<&Value>) {
        if let Some(value) = value.and_then(Value::as_f64) {
            self.key(number, 1);
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Writes a map as gnostic does: a message of repeated (name, value) pairs.
    fn named<'a>(
        &mut self,
        number: u32,
        pair_number: u32,
        members: impl Iterator<Item = (&'a Key, &'a Value)>,
        write: fn(&Value) -> Message,
    ) {
        let mut map = Message::default();
        for (name, value) in members {
            let mut pair = Message::default();
            pair.string(1, name);
            pair.message(2, &write(value));
            map.message(pair_number, &pair);
        }
        self.message(number, &map);
    }

    fn extensions<'a>(&mut self, number: u32, members: impl Iterator<Item = (&'a Key, &'a Value)>) {
        for (name, value) in members.filter(|(name, _)| name.starts_with("x-")) {
            let mut pair = Message::default();
            pair.string(1, name);
            pair.message(2, &any(value));
            self.message(number, &pair);
        }
    }
}
