//! Encodes objects for tests, from the same table: the bytes that a Go client would send.

use super::MAGIC;
use super::numbers::{self, Entry, Field, Form, Shape};
use crate::Value;
use crate::decode::instant;
use crate::schema::{self, Scalar, Type, TypeId};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

/// Returns the request body for `object` of type `ty`.
pub fn body(ty: TypeId, object: &Value) -> Vec<u8> {
    let mut type_meta = Vec::new();
    bytes_field(&mut type_meta, 1, object["apiVersion"].as_str().unwrap_or("").as_bytes());
    bytes_field(&mut type_meta, 2, object["kind"].as_str().unwrap_or("").as_bytes());
    let mut out = MAGIC.to_vec();
    bytes_field(&mut out, 1, &type_meta);
    bytes_field(&mut out, 2, &message(ty, object));
    bytes_field(&mut out, 3, b"");
    bytes_field(&mut out, 4, b"");
    out
}

pub fn message(ty: TypeId, object: &Value) -> Vec<u8> {
    numbers::get().shapes.get(&ty).map(|shape| fields(shape, object)).unwrap_or_default()
}

pub fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number) << 3);
    varint(out, value);
}

pub fn bytes_field(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn fields(shape: &Shape, object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, entry) in shape {
        match entry {
            Entry::Inline(inner) => bytes_field(&mut out, *number, &fields(inner, object)),
            Entry::Field(of) => field(&mut out, *number, of, &object[of.name.as_str()]),
        }
    }
    out
}

fn field(out: &mut Vec<u8>, number: u32, of: &Field, value: &Value) {
    let schema = schema::builtin();
    match (schema.get(of.ty), value) {
        (Type::List { item, .. }, Value::Array(items)) => {
            items.iter().for_each(|item_value| one(out, number, *item, item_value));
        }
        (Type::Map { value: value_type, .. }, Value::Object(entries)) => {
            for (key, value) in entries {
                let mut entry = Vec::new();
                bytes_field(&mut entry, 1, key.as_bytes());
                one(&mut entry, 2, *value_type, value);
                bytes_field(out, number, &entry);
            }
        }
        // Go writes fields that are not pointers even if they are unset.
        (Type::Scalar(Scalar::String), Value::Null) if !of.keeps_zero => bytes_field(out, number, b""),
        (Type::Scalar(Scalar::Bool | Scalar::Int32 | Scalar::Int64), Value::Null) if !of.keeps_zero => {
            varint_field(out, number, 0);
        }
        (Type::Scalar(Scalar::Time | Scalar::MicroTime), Value::Null) => bytes_field(out, number, b""),
        (_, Value::Null) => {}
        (_, value) => one(out, number, of.ty, value),
    }
}

fn one(out: &mut Vec<u8>, number: u32, ty: TypeId, value: &Value) {
    match schema::builtin().get(ty) {
        Type::Scalar(Scalar::Int32 | Scalar::Int64) => {
            varint_field(out, number, value.as_i64().expect("a number") as u64);
        }
        Type::Scalar(Scalar::Bool) => varint_field(out, number, u64::from(value.as_bool().expect("a bool"))),
        Type::Scalar(Scalar::Float) => {
            varint(out, u64::from(number) << 3 | 1);
            out.extend_from_slice(&value.as_f64().expect("a number").to_le_bytes());
        }
        Type::Scalar(of) => bytes_field(out, number, &scalar(*of, value)),
        Type::Struct(_) => bytes_field(out, number, &message(ty, value)),
        Type::List { item, .. } => {
            let mut list = Vec::new();
            let items = value.as_array().expect("a list");
            items.iter().for_each(|item_value| one(&mut list, 1, *item, item_value));
            bytes_field(out, number, &list);
        }
        Type::Map { .. } => panic!("no map inside a list or map"),
        Type::Any => bytes_field(out, number, &any(ty, value)),
    }
}

fn scalar(of: Scalar, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let text = || value.as_str().expect("a text");
    match of {
        Scalar::String => out.extend_from_slice(text().as_bytes()),
        Scalar::Bytes => out = BASE64.decode(text()).expect("base64"),
        Scalar::Quantity => bytes_field(&mut out, 1, text().as_bytes()),
        Scalar::IntOrString => {
            varint_field(&mut out, 1, u64::from(value.is_string()));
            varint_field(&mut out, 2, value.as_i64().unwrap_or(0) as u64);
            bytes_field(&mut out, 3, value.as_str().unwrap_or("").as_bytes());
        }
        Scalar::Time | Scalar::MicroTime => {
            let instant = instant(text()).expect("a time");
            let seconds = instant.as_nanosecond().div_euclid(1_000_000_000) as i64;
            varint_field(&mut out, 1, seconds as u64);
            varint_field(&mut out, 2, instant.as_nanosecond().rem_euclid(1_000_000_000) as u64);
        }
        Scalar::Int32 | Scalar::Int64 | Scalar::Bool | Scalar::Float => unreachable!("no message or text"),
    }
    out
}

fn any(ty: TypeId, value: &Value) -> Vec<u8> {
    let numbers = numbers::get();
    let props = numbers.schema_props.expect("schemas have a type");
    let mut out = Vec::new();
    match (numbers.forms[&ty], value) {
        (Form::Raw, value) => bytes_field(&mut out, 1, value.to_string().as_bytes()),
        (Form::Empty, _) => {}
        (Form::SchemaOrBool, Value::Bool(allows)) => varint_field(&mut out, 1, u64::from(*allows)),
        (Form::SchemaOrBool, schema) => {
            varint_field(&mut out, 1, 1);
            bytes_field(&mut out, 2, &message(props, schema));
        }
        (Form::SchemaOrTexts, Value::Array(texts)) => {
            texts.iter().for_each(|text| bytes_field(&mut out, 2, text.as_str().expect("a text").as_bytes()));
        }
        (Form::SchemaOrArray, Value::Array(schemas)) => {
            schemas.iter().for_each(|schema| bytes_field(&mut out, 2, &message(props, schema)));
        }
        (Form::SchemaOrArray | Form::SchemaOrTexts, schema) => bytes_field(&mut out, 1, &message(props, schema)),
    }
    out
}
