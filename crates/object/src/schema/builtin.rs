//! The schema of the built-in kinds, from the files of the build script.

use super::{Field, ListType, PatchStrategy, Scalar, Schema, Struct, Type, TypeId};
use crate::{Map, Value};
use std::io::Read;

static ARENA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/arena.json"));
static DEFINITIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/definitions.json.deflate"));

/// Returns the full OpenAPI definitions with descriptions, by definition name. References have the form
/// `#/definitions/…`. They are unpacked at each call.
pub(super) fn definitions() -> Map {
    let mut text = Vec::new();
    flate2::read::DeflateDecoder::new(DEFINITIONS)
        .read_to_end(&mut text)
        .expect("cannot unpack the definitions of the build script");
    serde_json::from_slice(&text).expect("cannot parse the definitions of the build script")
}

/// FNV-1a hash of the packed definitions.
pub(super) fn definitions_hash() -> u64 {
    DEFINITIONS
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

pub(super) fn load() -> Schema {
    let definitions: Map = serde_json::from_slice(ARENA).expect("cannot parse the schema of the build script");
    let mut schema = Schema::default();
    // Names are added first, so that types may refer to each other (and to themselves) in any order.
    for name in definitions.keys() {
        let id = schema.add(Type::Any);
        schema.names.insert(name.to_string(), id);
    }
    for (name, definition) in &definitions {
        let ty = named_type(&mut schema, name, definition);
        let id = schema.names[name.as_str()];
        schema.types[id.0 as usize] = ty;
    }
    schema
}

/// Returns the types whose JSON form the definition does not describe.
fn named_type(schema: &mut Schema, name: &str, definition: &Value) -> Type {
    match name.rsplit('.').next().unwrap_or(name) {
        "Quantity" => Type::Scalar(Scalar::Quantity),
        "IntOrString" => Type::Scalar(Scalar::IntOrString),
        "Time" => Type::Scalar(Scalar::Time),
        "MicroTime" => Type::Scalar(Scalar::MicroTime),
        "RawExtension"
        | "FieldsV1"
        | "JSON"
        | "JSONSchemaPropsOrArray"
        | "JSONSchemaPropsOrBool"
        | "JSONSchemaPropsOrStringArray" => Type::Any,
        _ => plain_type(schema, definition),
    }
}

fn plain_type(schema: &mut Schema, definition: &Value) -> Type {
    match definition["type"].as_str() {
        Some("object") => match (definition.get("properties"), definition.get("additionalProperties")) {
            (Some(properties), _) => Type::Struct(struct_type(schema, definition, properties)),
            (None, Some(values)) => {
                let value = type_id(schema, values);
                Type::Map { value, atomic: is_atomic(definition) }
            }
            (None, None) => Type::Any,
        },
        Some("array") => {
            let item = type_id(schema, &definition["items"]);
            Type::List { item, list: list_type(definition) }
        }
        Some("string") if definition["format"] == "byte" => Type::Scalar(Scalar::Bytes),
        Some("string") => Type::Scalar(Scalar::String),
        Some("integer") if definition["format"] == "int32" => Type::Scalar(Scalar::Int32),
        Some("integer") => Type::Scalar(Scalar::Int64),
        Some("number") => Type::Scalar(Scalar::Float),
        Some("boolean") => Type::Scalar(Scalar::Bool),
        _ => Type::Any,
    }
}

fn type_id(schema: &mut Schema, definition: &Value) -> TypeId {
    if let Some(reference) = definition["$ref"].as_str() {
        let name = reference.trim_start_matches("#/definitions/");
        return schema
            .named(name)
            .unwrap_or_else(|| panic!("the definitions refer to {name}, which is not among them"));
    }
    let ty = plain_type(schema, definition);
    schema.add(ty)
}

fn is_atomic(definition: &Value) -> bool {
    definition["x-kubernetes-map-type"] == "atomic"
}

fn list_type(definition: &Value) -> ListType {
    match definition["x-kubernetes-list-type"].as_str() {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map { keys: texts(&definition["x-kubernetes-list-map-keys"]) },
        _ => ListType::Atomic,
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn struct_type(schema: &mut Schema, definition: &Value, properties: &Value) -> Struct {
    let required = texts(&definition["required"]);
    let mut fields = std::collections::BTreeMap::new();
    for (name, property) in properties.as_object().into_iter().flatten() {
        let ty = type_id(schema, property);
        let field = Field {
            ty,
            required: required.iter().any(|required| name == required),
            nullable: false,
            default: property.get("default").cloned(),
            patch: patch_strategy(property),
        };
        fields.insert(name.to_string(), field);
    }
    Struct { fields, atomic: is_atomic(definition), preserve_unknown: false, embedded: false }
}

fn patch_strategy(property: &Value) -> PatchStrategy {
    let strategy = property["x-kubernetes-patch-strategy"].as_str().unwrap_or("");
    PatchStrategy {
        merge: strategy.split(',').any(|word| word == "merge"),
        merge_key: property["x-kubernetes-patch-merge-key"].as_str().map(str::to_owned),
        retain_keys: strategy.split(',').any(|word| word == "retainKeys"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field<'a>(schema: &'a Schema, name: &str, field: &str) -> &'a Field {
        let Type::Struct(found) = schema.get(schema.named(name).expect(name)) else { panic!("{name} is a struct") };
        found.fields.get(field).unwrap_or_else(|| panic!("{name} has {field}"))
    }

    #[test]
    fn the_schema_has_types_merge_keys_and_atomic_structs() {
        let schema = load();
        let containers = field(&schema, "io.k8s.api.core.v1.PodSpec", "containers");
        assert_eq!(containers.patch.merge_key.as_deref(), Some("name"));
        assert!(
            matches!(schema.get(containers.ty), Type::List { list: ListType::Map { keys }, .. } if keys == &["name"])
        );
        let replicas = field(&schema, "io.k8s.api.apps.v1.StatefulSetSpec", "replicas");
        assert!(matches!(schema.get(replicas.ty), Type::Scalar(Scalar::Int32)));
        let data = field(&schema, "io.k8s.api.core.v1.Secret", "data");
        let Type::Map { value, .. } = schema.get(data.ty) else { panic!("data is a map") };
        assert!(matches!(schema.get(*value), Type::Scalar(Scalar::Bytes)));
        let selector = schema.get(schema.named("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector").unwrap());
        assert!(matches!(selector, Type::Struct(Struct { atomic: true, .. })));
        let props = schema
            .get(schema.named("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps").unwrap());
        assert!(
            matches!(props, Type::Struct(found) if found.fields.contains_key("x-kubernetes-preserve-unknown-fields"))
        );
    }

    #[test]
    fn definitions_have_descriptions_and_merge_rules() {
        let definitions = definitions();
        let spec = &definitions["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert!(spec["description"].as_str().is_some_and(|text| !text.is_empty()));
        assert_eq!(spec["x-kubernetes-patch-merge-key"], "name");
    }
}
