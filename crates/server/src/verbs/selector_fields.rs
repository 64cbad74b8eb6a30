//! The fields that selectors use, decoded once per version of an object.
//!
//! The decoder skips everything else, and the result is small, because it is kept as long as the version.

use crate::render;
use object::access::Access;
use object::value::read_members;
use object::{Kind, Map, Value};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::sync::Arc;
use store::Record;

pub struct SelectorFields {
    pub labels: Map,
    /// The values of the kind's selectable fields, concatenated in order.
    fields: Box<str>,
    /// The end of each value in `fields`.
    ends: Box<[usize]>,
}

impl SelectorFields {
    /// The selector fields of a stored version.
    pub fn of(kind: &Kind, record: &Record) -> Arc<SelectorFields> {
        if !is_in_stored_form(kind) {
            let object = render::served(kind, &record.value).unwrap_or_default();
            return Arc::new(SelectorFields::of_object(kind, &object));
        }
        let made = record.memo.get_or_init(|| Arc::new(SelectorFields::read(kind, &record.value)));
        // Versions of a kind with the same stored form have the same selectable fields.
        made.clone()
            .downcast::<SelectorFields>()
            .unwrap_or_else(|_| Arc::new(SelectorFields::read(kind, &record.value)))
    }

    /// The selector fields of an object that is about to be written, for kinds that are often watched with field
    /// selectors. So they need not be decoded again.
    pub fn for_write(kind: &Kind, object: &Value) -> Option<Arc<SelectorFields>> {
        let is_followed = !kind.rules.selectable_fields().is_empty();
        (is_followed && is_in_stored_form(kind)).then(|| Arc::new(SelectorFields::of_object(kind, object)))
    }

    fn read(kind: &Kind, bytes: &[u8]) -> SelectorFields {
        let wanted = Wanted { fields: kind.rules.selectable_fields() };
        // Stored bytes are always UTF-8.
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let object = wanted.deserialize(&mut serde_json::Deserializer::from_str(text)).unwrap_or_default();
        SelectorFields::of_object(kind, &object)
    }

    fn of_object(kind: &Kind, object: &Value) -> SelectorFields {
        let (mut fields, mut ends) = (String::new(), Vec::new());
        for field in kind.rules.selectable_fields() {
            fields.push_str(&kind.rules.field_value(object, field));
            ends.push(fields.len());
        }
        let labels = object.members(&["metadata", "labels"]).clone();
        SelectorFields { labels, fields: fields.into(), ends: ends.into() }
    }

    /// The value of a selectable field; empty for other fields.
    pub fn field(&self, kind: &Kind, asked: &str) -> &str {
        let Some(at) = kind.rules.selectable_fields().iter().position(|field| *field == asked) else { return "" };
        let start = if at == 0 { Some(&0) } else { self.ends.get(at - 1) };
        match (start, self.ends.get(at)) {
            (Some(start), Some(end)) => &self.fields[*start..*end],
            _ => "",
        }
    }
}

/// Whether other versions of the kind have the same selectable fields. Those of a custom kind may differ by version
/// and change with its definition. A kind that is stored in another form has fields that are not in the stored bytes.
fn is_in_stored_form(kind: &Kind) -> bool {
    (!kind.custom || kind.rules.selectable_fields().is_empty()) && !kind.rules.converts()
}

/// Decodes name, labels and the selectable fields of an object. Selectable fields have one or two path elements and
/// are scalars.
struct Wanted<'f> {
    fields: &'f [&'f str],
}

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = Value;
    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let is_first = |name: &str, field: &str| field.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        let members = read_members(&mut access, |name, access| match name.as_str() {
            "metadata" => access.next_value().map(|Metadata(metadata)| Some(metadata)),
            // The selectable field `source` of Events is `source.component`.
            "source" => access.next_value().map(|Plain(plain)| Some(plain)),
            name if self.fields.iter().any(|field| is_first(name, field)) => {
                access.next_value().map(|Plain(plain)| Some(plain))
            }
            _ => access.next_value().map(|Scalar(scalar)| scalar),
        });
        members.map(Value::Object)
    }
}

/// Name and labels of an object's metadata.
struct Metadata(Value);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Metadata;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("metadata")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Metadata, A::Error> {
                let members = read_members(&mut access, |name, access| match name.as_str() {
                    "name" | "labels" => access.next_value().map(Some),
                    _ => access.next_value().map(|IgnoredAny| None),
                });
                members.map(|members| Metadata(Value::Object(members)))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// An object without its lists and nested objects, or any other value as it is.
struct Plain(Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Plain, D::Error> {
        deserializer.deserialize_any(Shallow { members: true }).map(|read| Plain(read.unwrap_or_default()))
    }
}

/// A value that is neither list nor object.
struct Scalar(Option<Value>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        deserializer.deserialize_any(Shallow { members: false }).map(Scalar)
    }
}

struct Shallow {
    /// Whether the scalar members of an object are decoded.
    members: bool,
}

impl<'de> Visitor<'de> for Shallow {
    type Value = Option<Value>;
    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("any JSON value")
    }
    fn visit_bool<E: Error>(self, flag: bool) -> Result<Option<Value>, E> {
        Ok(Some(flag.into()))
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<Option<Value>, E> {
        Ok(Some(number.into()))
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<Option<Value>, E> {
        Ok(Some(number.into()))
    }
    fn visit_f64<E: Error>(self, number: f64) -> Result<Option<Value>, E> {
        Ok(Some(number.into()))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Option<Value>, E> {
        Ok(Some(text.into()))
    }
    fn visit_unit<E: Error>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Option<Value>, A::Error> {
        while access.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Option<Value>, A::Error> {
        if self.members {
            let members = read_members(&mut access, |_, access| access.next_value().map(|Scalar(scalar)| scalar))?;
            return Ok(Some(Value::Object(members)));
        }
        while access.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    /// An object of the kind with a value in every selectable field.
    fn sample(kind: &Kind) -> Value {
        let mut object = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind,
            "metadata": {
                "name": "a", "namespace": "b", "uid": "c", "labels": {"app": "web", "tier": "one"},
                "managedFields": [{"fieldsV1": {"f:spec": {"f:nodeName": {}}}}],
            },
            "spec": {"containers": [{"name": "status"}], "template": {"metadata": {"labels": {"app": "other"}}}},
            "source": {"component": "me"}, "reportingComponent": "we", "list": [{"spec": 1}], "number": 1.5, "nothing": null,
        });
        for field in kind.rules.selectable_fields().iter().filter(|field| !matches!(**field, "source" | "name")) {
            let path: Vec<&str> = field.split('.').collect();
            let is_flag = field.ends_with("hostNetwork") || field.ends_with("unschedulable");
            object.put(&path, if is_flag { json!(true) } else { json!(format!("value of {field}")) });
        }
        object
    }

    #[test]
    fn reading_what_is_wanted_finds_what_the_whole_object_has() {
        let mut fields = 0;
        for kind in &object::kinds::all() {
            let object = sample(kind);
            let read = SelectorFields::read(kind, object.to_string().as_bytes());
            assert_eq!(read.labels, *object.members(&["metadata", "labels"]), "{}", kind.plural);
            if let Some(known) = SelectorFields::for_write(kind, &object) {
                let all = |found: &SelectorFields| (found.labels.clone(), found.fields.clone(), found.ends.clone());
                assert_eq!(all(&known), all(&read), "{}", kind.plural);
            }
            for field in kind.rules.selectable_fields() {
                let wanted = kind.rules.field_value(&object, field);
                assert_eq!(read.field(kind, field), wanted, "{field} of {}", kind.plural);
                assert_ne!(wanted, "", "{field} of {} has no value to be found", kind.plural);
                fields += 1;
            }
            assert_eq!(read.field(kind, "spec.other"), "");
        }
        assert!(fields > 30, "{fields}");
    }

    #[test]
    fn what_is_absent_is_empty() {
        for kind in &object::kinds::all() {
            for object in [
                json!({}),
                json!({"metadata": {}}),
                json!({"metadata": {"labels": null}, "spec": "none", "status": [1]}),
            ] {
                let read = SelectorFields::read(kind, object.to_string().as_bytes());
                assert!(read.labels.is_empty());
                for field in kind.rules.selectable_fields() {
                    assert_eq!(
                        read.field(kind, field),
                        kind.rules.field_value(&object, field),
                        "{field} of {}",
                        kind.plural
                    );
                }
            }
        }
    }
}
