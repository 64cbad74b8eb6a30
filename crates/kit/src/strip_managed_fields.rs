//! Decodes objects without `managedFields`. No controller reads them, and they are the larger part of many
//! objects; skipping them while parsing costs a fraction of decoding them.

use object::Value;
use object::value::read_members;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// An object, or any other response of the server.
#[derive(Clone, Debug)]
pub struct WithoutManagedFields(pub Value);

impl<'de> Deserialize<'de> for WithoutManagedFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WithoutManagedFields, D::Error> {
        deserializer.deserialize_map(Members).map(WithoutManagedFields)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let members = read_members(&mut access, |name, access| match name.as_str() {
            "metadata" => access.next_value().map(|Metadata(metadata)| Some(metadata)),
            _ => access.next_value().map(Some),
        });
        members.map(Value::Object)
    }
}

struct Metadata(Value);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        deserializer.deserialize_map(MetadataMembers).map(Metadata)
    }
}

struct MetadataMembers;

impl<'de> Visitor<'de> for MetadataMembers {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let members = read_members(&mut access, |name, access| match name.as_str() {
            "managedFields" => access.next_value().map(|IgnoredAny| None),
            _ => access.next_value().map(Some),
        });
        members.map(Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    #[test]
    fn all_but_managed_fields_is_read() {
        let whole = json!({
            "kind": "Pod",
            "metadata": {"name": "a", "labels": {"managedFields": "mine"}, "managedFields": [{"fieldsV1": {"f:x": {}}}]},
            "spec": {"metadata": {"managedFields": [1]}, "list": [null, 1.5, -3, "x", true]},
        });
        let mut wanted = whole.clone();
        wanted["metadata"].as_object_mut().expect("metadata").remove("managedFields");
        let WithoutManagedFields(read) = serde_json::from_str(&whole.to_string()).expect("an object");
        assert_eq!(read, wanted);
        assert!(serde_json::from_str::<WithoutManagedFields>("[1]").is_err());
    }
}
