//! Converts stored objects to the requested form: object, table or partial metadata.

use crate::negotiate::{Form, RowObject};
use bytes::Bytes;
use object::access::Access;
use object::json;
use object::{Kind, Map, Value};

/// One object in the requested form. `bytes` are the stored bytes with their revision.
pub fn one(kind: &Kind, form: Form, bytes: &Bytes, now: jiff::Timestamp) -> Result<Bytes, object::Status> {
    match form {
        Form::Object if !kind.rules.converts() => Ok(bytes.clone()),
        Form::Metadata if !kind.rules.converts() => partial_bytes(kind, bytes),
        form => Ok(self::object(kind, form, &served(kind, bytes)?, now)),
    }
}

/// One object, already in its served form, in the requested form.
pub fn object(kind: &Kind, form: Form, object: &Value, now: jiff::Timestamp) -> Bytes {
    match form {
        Form::Object => to_bytes(object),
        Form::Metadata => to_bytes(&partial(object)),
        Form::Table(rows) => {
            let version = json!({"resourceVersion": object.text(&["metadata", "resourceVersion"])});
            to_bytes(&table(kind, rows, std::slice::from_ref(object), version, true, now))
        }
    }
}

/// A list in the requested form. `metadata` is that of the list.
pub fn list(
    kind: &Kind,
    form: Form,
    items: &[Bytes],
    metadata: Value,
    now: jiff::Timestamp,
) -> Result<Bytes, object::Status> {
    let served_items = || items.iter().map(|bytes| served(kind, bytes)).collect::<Result<Vec<Value>, _>>();
    match form {
        Form::Object if !kind.rules.converts() => Ok(join(&kind.api_version(), &kind.list_kind(), &metadata, items)),
        Form::Object => {
            let converted: Vec<Bytes> = served_items()?.iter().map(to_bytes).collect();
            Ok(join(&kind.api_version(), &kind.list_kind(), &metadata, &converted))
        }
        Form::Metadata if !kind.rules.converts() => {
            let partials = items.iter().map(|bytes| partial_bytes(kind, bytes)).collect::<Result<Vec<Bytes>, _>>()?;
            Ok(join("meta.k8s.io/v1", "PartialObjectMetadataList", &metadata, &partials))
        }
        Form::Metadata => {
            let partials: Vec<Bytes> = served_items()?.iter().map(|object| to_bytes(&partial(object))).collect();
            Ok(join("meta.k8s.io/v1", "PartialObjectMetadataList", &metadata, &partials))
        }
        Form::Table(rows) => Ok(to_bytes(&table(kind, rows, &served_items()?, metadata, true, now))),
    }
}

/// Joins encoded objects to a list, without decoding them.
fn join(api_version: &str, list_kind: &str, metadata: &Value, items: &[Bytes]) -> Bytes {
    let size: usize = items.iter().map(|item| item.len() + 1).sum();
    let mut out = Vec::with_capacity(size + 256);
    let head = format!("{{\"kind\":{list_kind:?},\"apiVersion\":{api_version:?},\"metadata\":{metadata},\"items\":[");
    out.extend_from_slice(head.as_bytes());
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(item);
    }
    out.extend_from_slice(b"]}\n");
    Bytes::from(out)
}

/// Decodes an object to its served form, which differs from the stored form for a few kinds.
pub fn served(kind: &Kind, bytes: &Bytes) -> Result<Value, object::Status> {
    let mut object: Value = object::value::from_bytes(bytes).map_err(|error| unreadable(kind, &error))?;
    kind.rules.from_stored(&mut object);
    Ok(object)
}

fn unreadable(kind: &Kind, error: &serde_json::Error) -> object::Status {
    object::Status::internal(format!("a stored {} is unreadable: {error}", kind.kind))
}

/// Extracts the metadata from the bytes of an object, so that watches of metadata are cheap.
fn partial_bytes(kind: &Kind, bytes: &Bytes) -> Result<Bytes, object::Status> {
    #[derive(serde::Deserialize)]
    struct Partial<'a> {
        #[serde(borrow)]
        metadata: Option<&'a serde_json::value::RawValue>,
    }
    let partial: Partial<'_> = object::value::from_bytes(bytes).map_err(|error| unreadable(kind, &error))?;
    let metadata = partial.metadata.map_or("{}", serde_json::value::RawValue::get);
    Ok(Bytes::from(format!(
        "{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{metadata}}}"
    )))
}

/// The partial metadata of an object.
pub fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.at(&["metadata"]).cloned().unwrap_or_else(|| json!({})),
    })
}

/// A Table of these objects. A watch sends the columns only with its first event.
pub fn table(
    kind: &Kind,
    rows: RowObject,
    objects: &[Value],
    metadata: Value,
    with_columns: bool,
    now: jiff::Timestamp,
) -> Value {
    let mut out = Map::new();
    out.insert("kind", json!("Table"));
    out.insert("apiVersion", json!("meta.k8s.io/v1"));
    out.insert("metadata", metadata);
    let columns: Vec<Value> = if with_columns { kind.rules.columns().iter().map(column).collect() } else { Vec::new() };
    out.insert("columnDefinitions", Value::Array(columns));
    let cells = kind.rules.list_cells(&objects.iter().collect::<Vec<_>>(), now);
    let rows: Vec<Value> = objects
        .iter()
        .zip(cells)
        .map(|(object, cells)| match rows {
            RowObject::None => json!({"cells": cells, "object": null}),
            RowObject::Metadata => json!({"cells": cells, "object": partial(object)}),
            RowObject::Object => json!({"cells": cells, "object": object}),
        })
        .collect();
    out.insert("rows", Value::Array(rows));
    Value::Object(out)
}

fn column(column: &object::table::Column) -> Value {
    json!({
        "name": column.name,
        "type": column.kind,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

pub fn to_bytes(value: &Value) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("JSON values serialise"))
}
