//! Decodes protobuf messages to JSON, by the types of the built-in schema.

use super::numbers::{self, Entry, Field, Form, Numbers, Shape};
use super::wire::{self, Fields, Wire};
use crate::decode;
use crate::schema::{self, Scalar, Schema, Type, TypeId};
use crate::value::Number;
use crate::{Map, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;

/// Decodes a message of struct type `ty` into `members`, as Go's JSON would write it. Returns an error for invalid
/// bytes.
pub(super) fn read(ty: TypeId, bytes: &[u8], depth: usize, members: &mut Map) -> Result<(), String> {
    let walk = Walk { schema: schema::builtin(), numbers: numbers::get() };
    walk.message(ty, bytes, depth, members)
}

struct Walk<'s> {
    schema: &'s Schema,
    numbers: &'s Numbers,
}

impl Walk<'_> {
    /// `depth` is the number of further nesting levels that are allowed.
    fn message(&self, ty: TypeId, bytes: &[u8], depth: usize, members: &mut Map) -> Result<(), String> {
        let depth = depth.checked_sub(1).ok_or("exceeded max depth")?;
        // The table has no fields for a type that is newer than the table, and unknown fields are skipped.
        let none = Shape::new();
        self.fields(self.numbers.shapes.get(&ty).unwrap_or(&none), bytes, depth, members)
    }

    fn fields(&self, shape: &Shape, bytes: &[u8], depth: usize, members: &mut Map) -> Result<(), String> {
        for field in Fields(bytes) {
            let (number, wire) = field?;
            match shape.get(&number) {
                Some(Entry::Field(field)) => self.field(field, wire, depth, members)?,
                Some(Entry::Inline(inner)) => self.fields(inner, wire.bytes("of an inline struct")?, depth, members)?,
                None => {}
            }
        }
        Ok(())
    }

    fn field(&self, field: &Field, wire: Wire<'_>, depth: usize, members: &mut Map) -> Result<(), String> {
        let name = field.name.as_str();
        match self.schema.get(field.ty) {
            Type::List { item, .. } => {
                let Value::Array(items) = members.entry(name).or_insert_with(|| Value::Array(Vec::new())) else {
                    return Ok(());
                };
                self.items(*item, name, wire, depth, items)
            }
            Type::Map { value, .. } => {
                let (key, value) = self.entry(*value, name, wire.bytes(name)?, depth)?;
                if let Value::Object(entries) = object(members, name) {
                    entries.insert(key, value);
                }
                Ok(())
            }
            // A message field that appears twice is one message in two parts.
            Type::Struct(_) => match object(members, name) {
                Value::Object(inner) => self.message(field.ty, wire.bytes(name)?, depth, inner),
                _ => Ok(()),
            },
            Type::Scalar(_) | Type::Any => {
                match self.value(field.ty, name, wire, depth)? {
                    Some(value) if field.keeps_zero || !is_zero(&value) || !self.is_plain(field.ty) => {
                        members.insert(name.to_owned(), value)
                    }
                    _ => members.remove(name),
                };
                Ok(())
            }
        }
    }

    /// Whether a zero of this type may mean that the field is unset. Quantities and similar types are structs in Go,
    /// which are never omitted.
    fn is_plain(&self, ty: TypeId) -> bool {
        !matches!(self.schema.get(ty), Type::Scalar(Scalar::Quantity | Scalar::IntOrString) | Type::Any)
    }

    /// Adds the items of one field: one item, or several packed scalars.
    fn items(
        &self,
        item: TypeId,
        name: &str,
        wire: Wire<'_>,
        depth: usize,
        items: &mut Vec<Value>,
    ) -> Result<(), String> {
        match (self.schema.get(item), wire) {
            (Type::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Bool), Wire::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    let one = Wire::Varint(wire::varint(&mut packed)?);
                    items.extend(self.value(item, name, one, depth)?);
                }
            }
            _ => items.push(self.value(item, name, wire, depth)?.unwrap_or(Value::Null)),
        }
        Ok(())
    }

    /// Decodes a map entry: `{1: key, 2: value}`. Either may be omitted if it is zero.
    fn entry(&self, of: TypeId, name: &str, bytes: &[u8], depth: usize) -> Result<(String, Value), String> {
        let depth = depth.checked_sub(1).ok_or("exceeded max depth")?;
        let (mut key, mut value) = (String::new(), None);
        for field in Fields(bytes) {
            match field? {
                (1, wire) => wire.text(name)?.clone_into(&mut key),
                (2, wire) => value = Some(wire),
                _ => {}
            }
        }
        let absent = match self.schema.get(of) {
            Type::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Bool) => Wire::Varint(0),
            Type::Scalar(Scalar::Float) => Wire::Fixed64(0),
            _ => Wire::Bytes(&[]),
        };
        let value = self.value(of, name, value.unwrap_or(absent), depth)?;
        Ok((key, value.unwrap_or(Value::Null)))
    }

    /// Decodes a single value. Returns `None` if Go's JSON would have null.
    fn value(&self, ty: TypeId, name: &str, wire: Wire<'_>, depth: usize) -> Result<Option<Value>, String> {
        match self.schema.get(ty) {
            Type::Scalar(of) => scalar(*of, name, wire),
            Type::Struct(_) => {
                let mut members = Map::new();
                self.message(ty, wire.bytes(name)?, depth, &mut members)?;
                Ok(Some(Value::Object(members)))
            }
            // A map value cannot be a list on the wire: it is a message with the items in field 1.
            Type::List { item, .. } => {
                let mut items = Vec::new();
                for field in Fields(wire.bytes(name)?) {
                    if let (1, wire) = field? {
                        self.items(*item, name, wire, depth, &mut items)?;
                    }
                }
                Ok(Some(Value::Array(items)))
            }
            Type::Map { .. } => Err(format!("proto: field {name} is a map inside a map")),
            Type::Any => self.any(ty, name, wire.bytes(name)?, depth),
        }
    }

    fn any(&self, ty: TypeId, name: &str, bytes: &[u8], depth: usize) -> Result<Option<Value>, String> {
        let form = self.numbers.forms.get(&ty).copied().unwrap_or(Form::Empty);
        match form {
            Form::Empty => Ok(Some(Value::Object(Map::new()))),
            Form::Raw => raw(name, bytes),
            Form::SchemaOrArray | Form::SchemaOrBool | Form::SchemaOrTexts => self.schema_or(form, name, bytes, depth),
        }
    }

    /// Decodes the three JSON Schema types that are either a schema or something else.
    fn schema_or(&self, form: Form, name: &str, bytes: &[u8], depth: usize) -> Result<Option<Value>, String> {
        let props = self.numbers.schema_props.ok_or("no schema of schemas")?;
        let (mut schema, mut several, mut allows) = (None, Vec::new(), false);
        for field in Fields(bytes) {
            let (number, wire) = field?;
            match (form, number) {
                (Form::SchemaOrBool, 1) => allows = wire.varint(name)? != 0,
                (Form::SchemaOrTexts, 2) => several.push(Value::from(wire.text(name)?)),
                (Form::SchemaOrArray, 2) => several.extend(self.value(props, name, wire, depth)?),
                (Form::SchemaOrBool, 2) | (_, 1) => schema = self.value(props, name, wire, depth)?,
                _ => {}
            }
        }
        Ok(match (form, several.is_empty()) {
            (Form::SchemaOrBool, _) => Some(schema.unwrap_or(Value::Bool(allows))),
            (_, false) => Some(Value::Array(several)),
            (_, true) => schema,
        })
    }
}

fn object<'a>(members: &'a mut Map, name: &str) -> &'a mut Value {
    members.entry(name).or_insert_with(|| Value::Object(Map::new()))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

fn scalar(of: Scalar, name: &str, wire: Wire<'_>) -> Result<Option<Value>, String> {
    Ok(Some(match of {
        Scalar::String => Value::from(wire.text(name)?),
        Scalar::Int32 => Value::from(wire.int32(name)?),
        Scalar::Int64 => Value::from(wire.int64(name)?),
        Scalar::Bool => Value::from(wire.varint(name)? != 0),
        Scalar::Float => {
            let number = Number::from_f64(wire.double(name)?);
            Value::Number(number.ok_or_else(|| format!("field {name} is not a finite number"))?)
        }
        Scalar::Bytes => Value::from(BASE64.encode(wire.bytes(name)?)),
        Scalar::Quantity => quantity(name, wire.bytes(name)?)?,
        Scalar::IntOrString => int_or_string(name, wire.bytes(name)?)?,
        Scalar::Time | Scalar::MicroTime => return time(of, name, wire.bytes(name)?),
    }))
}

/// Decodes `{1: text}`.
fn quantity(name: &str, bytes: &[u8]) -> Result<Value, String> {
    let mut text = "0";
    for field in Fields(bytes) {
        if let (1, wire) = field? {
            text = wire.text(name)?;
        }
    }
    Ok(Value::from(text))
}

/// Decodes `{1: type, 2: number, 3: text}`, where type is 0 for the number and 1 for the text.
fn int_or_string(name: &str, bytes: &[u8]) -> Result<Value, String> {
    let (mut which, mut number, mut text) = (0, 0, "");
    for field in Fields(bytes) {
        match field? {
            (1, wire) => which = wire.varint(name)?,
            (2, wire) => number = wire.int32(name)?,
            (3, wire) => text = wire.text(name)?,
            _ => {}
        }
    }
    match which {
        0 => Ok(Value::from(number)),
        1 => Ok(Value::from(text)),
        _ => Err("impossible IntOrString.Type".to_owned()),
    }
}

/// Decodes `{1: seconds, 2: nanoseconds}`. An empty message is an unset time.
fn time(of: Scalar, name: &str, bytes: &[u8]) -> Result<Option<Value>, String> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    for field in Fields(bytes) {
        match field? {
            (1, wire) => seconds = wire.int64(name)?,
            (2, wire) => nanos = wire.int32(name)?,
            _ => {}
        }
    }
    let (nanos, form) = match of {
        Scalar::MicroTime => (nanos - nanos % 1000, "%Y-%m-%dT%H:%M:%S.%6fZ"),
        _ => (0, "%Y-%m-%dT%H:%M:%SZ"),
    };
    let instant = Timestamp::new(seconds, nanos).map_err(|_| format!("field {name} is a time out of range"))?;
    Ok(Some(Value::from(instant.strftime(form).to_string())))
}

/// Decodes `{1: JSON text}`. No text is null.
fn raw(name: &str, bytes: &[u8]) -> Result<Option<Value>, String> {
    let mut text: &[u8] = &[];
    for field in Fields(bytes) {
        if let (1, wire) = field? {
            text = wire.bytes(name)?;
        }
    }
    if text.is_empty() {
        return Ok(None);
    }
    decode::document(text).map(|read| Some(read.value)).map_err(|status| format!("field {name}: {}", status.message))
}
