//! Builds the types for decoding, apply and comparison from a structural schema.

use super::node::{Additional, List, Node, Ty};
use crate::schema::{self, Field, ListType, PatchStrategy, Scalar, Schema, Struct, Type, TypeId, TypeRef};
use std::collections::BTreeMap;
use std::sync::Arc;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Returns the type of a whole custom resource.
pub fn build(node: &Node) -> TypeRef {
    let mut arena = Arena { schema: Schema::default(), meta: None };
    let mut root = arena.structure(node, true);
    root.preserve_unknown = node.preserve_unknown;
    let ty = arena.schema.add(Type::Struct(root));
    TypeRef { schema: Arc::new(arena.schema), ty }
}

struct Arena {
    schema: Schema,
    /// The built-in ObjectMeta type, copied when it is first needed.
    meta: Option<TypeId>,
}

impl Arena {
    fn node(&mut self, node: &Node) -> TypeId {
        let ty = match node.ty {
            _ if node.int_or_string => Type::Scalar(Scalar::IntOrString),
            Some(Ty::Object) => self.object(node),
            Some(Ty::Array) => match &node.items {
                Some(items) => {
                    let item = self.node(items);
                    let list = match &node.list {
                        List::Atomic => ListType::Atomic,
                        List::Set => ListType::Set,
                        List::Map(keys) => ListType::Map { keys: keys.clone() },
                    };
                    Type::List { item, list }
                }
                None => Type::Any,
            },
            Some(Ty::String) => Type::Scalar(Scalar::String),
            Some(Ty::Integer) => Type::Scalar(Scalar::Int64),
            Some(Ty::Number) => Type::Scalar(Scalar::Float),
            Some(Ty::Boolean) => Type::Scalar(Scalar::Bool),
            None => Type::Any,
        };
        self.schema.add(ty)
    }

    fn object(&mut self, node: &Node) -> Type {
        match &node.additional {
            Additional::Of(values) if node.properties.is_empty() => {
                let value = self.node(values);
                Type::Map { value, atomic: node.map_atomic }
            }
            Additional::Anything if node.properties.is_empty() => {
                let value = self.schema.add(Type::Any);
                Type::Map { value, atomic: node.map_atomic }
            }
            _ => Type::Struct(self.structure(node, node.embedded)),
        }
    }

    fn structure(&mut self, node: &Node, is_resource: bool) -> Struct {
        let mut fields = BTreeMap::new();
        for (name, property) in &node.properties {
            let ty = self.node(property);
            let required = node.checks.required.contains(name);
            let default = property.default.clone();
            fields.insert(
                name.clone(),
                Field { ty, required, nullable: property.nullable, default, patch: PatchStrategy::default() },
            );
        }
        if is_resource {
            let text = self.schema.add(Type::Scalar(Scalar::String));
            let meta = self.meta();
            for (name, ty) in [("apiVersion", text), ("kind", text), ("metadata", meta)] {
                let field =
                    Field { ty, required: false, nullable: false, default: None, patch: PatchStrategy::default() };
                fields.insert(name.to_owned(), field);
            }
        }
        let preserve_unknown = node.preserve_unknown || matches!(node.additional, Additional::Anything);
        Struct { fields, atomic: node.map_atomic, preserve_unknown, embedded: is_resource }
    }

    fn meta(&mut self) -> TypeId {
        if let Some(meta) = self.meta {
            return meta;
        }
        let builtin = schema::builtin();
        let meta = match builtin.named(OBJECT_META) {
            Some(id) => copy(builtin, id, &mut self.schema),
            None => self.schema.add(Type::Any),
        };
        self.meta = Some(meta);
        meta
    }
}

/// Copies a type and all types it refers to into another arena. Built-in metadata types are not recursive, so this
/// ends.
fn copy(from: &Schema, id: TypeId, into: &mut Schema) -> TypeId {
    let ty = match from.get(id) {
        Type::Struct(inner) => {
            let fields = inner.fields.iter().map(|(name, field)| {
                let copied = Field {
                    ty: copy(from, field.ty, into),
                    required: field.required,
                    nullable: field.nullable,
                    default: field.default.clone(),
                    patch: field.patch.clone(),
                };
                (name.clone(), copied)
            });
            Type::Struct(Struct { fields: fields.collect(), ..*inner })
        }
        Type::Map { value, atomic } => Type::Map { value: copy(from, *value, into), atomic: *atomic },
        Type::List { item, list } => Type::List { item: copy(from, *item, into), list: list.clone() },
        Type::Scalar(scalar) => Type::Scalar(*scalar),
        Type::Any => Type::Any,
    };
    into.add(ty)
}
