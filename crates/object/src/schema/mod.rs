//! The shape of every kind: which fields there are, of which type, and how lists and maps merge.
//!
//! One arena serves decoding (unknown fields, wrong types, canonical quantities), strategic merge, server-side apply,
//! semantic comparison and OpenAPI. The built-in arena is made by the build script from k8s-openapi's published schemas
//! plus our own table of merge rules; each CustomResourceDefinition version gets an arena of its own.

use crate::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

mod builtin;
mod compare;

/// A type's index in its [`Schema`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

/// An arena of types.
#[derive(Debug, Default)]
pub struct Schema {
    pub types: Vec<Type>,
    /// Named struct types, by their OpenAPI definition name (`io.k8s.api.core.v1.Pod`).
    pub names: BTreeMap<String, TypeId>,
    /// The arena of a CustomResourceDefinition: wrong types are left for validation to refuse, and nothing is rewritten.
    pub structural: bool,
}

#[derive(Debug)]
pub enum Type {
    Struct(Struct),
    /// A map with free keys, such as labels.
    Map {
        value: TypeId,
        atomic: bool,
    },
    List {
        item: TypeId,
        list: ListType,
    },
    Scalar(Scalar),
    /// Anything goes; server-side apply owns it as one leaf.
    Any,
}

#[derive(Debug, Default)]
pub struct Struct {
    pub fields: BTreeMap<String, Field>,
    /// Server-side apply owns the whole struct as one leaf (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
    /// Fields that are not listed are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve_unknown: bool,
    /// The object is a whole API object with `apiVersion`, `kind` and `metadata` of its own.
    pub embedded: bool,
}

#[derive(Debug)]
pub struct Field {
    pub ty: TypeId,
    pub required: bool,
    pub nullable: bool,
    /// CRD defaults, and the defaults of list-map keys (a port's `protocol`) that server-side apply needs to match items.
    pub default: Option<Value>,
    pub patch: PatchStrategy,
}

/// How a strategic merge patch treats a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// Lists with a merge key merge item by item; without one, `merge` lists of scalars are unions.
    pub merge: bool,
    pub merge_key: Option<String>,
    pub retain_keys: bool,
}

/// How server-side apply treats a list (`x-kubernetes-list-type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    Map { keys: Vec<String> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    String,
    Int32,
    Int64,
    Float,
    Bool,
    Quantity,
    IntOrString,
    /// RFC 3339, seconds.
    Time,
    /// RFC 3339, microseconds.
    MicroTime,
    /// Base64 text.
    Bytes,
}

/// A type inside a shared arena: what a [`crate::Kind`] holds.
#[derive(Clone, Debug)]
pub struct TypeRef {
    pub schema: Arc<Schema>,
    pub ty: TypeId,
}

impl Schema {
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }
    pub fn add(&mut self, ty: Type) -> TypeId {
        self.types.push(ty);
        TypeId(u32::try_from(self.types.len() - 1).expect("fewer than four billion types"))
    }
    /// The struct type with this OpenAPI definition name.
    pub fn named(&self, name: &str) -> Option<TypeId> {
        self.names.get(name).copied()
    }
    /// The OpenAPI definition name of a struct type. Looks through all names: for rare cases and error texts.
    pub fn name_of(&self, id: TypeId) -> Option<&str> {
        self.names.iter().find(|(_, named)| **named == id).map(|(name, _)| name.as_str())
    }
}

impl TypeRef {
    pub fn get(&self) -> &Type {
        self.schema.get(self.ty)
    }
    /// Whether two values of this type mean the same: quantities by value, absent and empty alike, times by instant.
    pub fn same(&self, a: &Value, b: &Value) -> bool {
        compare::same(&self.schema, self.ty, Some(a), Some(b))
    }
}

/// The arena of the built-in kinds.
pub fn builtin() -> &'static Arc<Schema> {
    static BUILTIN: LazyLock<Arc<Schema>> = LazyLock::new(|| Arc::new(builtin::load()));
    &BUILTIN
}

/// The definition name of `metadata`.
pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The full OpenAPI definitions of the built-in types, with prose; unpacked at each call, so keep what you make of them.
pub fn definitions() -> crate::Map {
    builtin::definitions()
}

/// Names this build's definitions: changes when they do.
pub(crate) fn definitions_hash() -> u64 {
    static HASH: LazyLock<u64> = LazyLock::new(builtin::definitions_hash);
    *HASH
}

/// A built-in type by its OpenAPI definition name; unknown names are a programming error caught by the kinds' test.
pub fn builtin_type(name: &str) -> TypeRef {
    let schema = builtin().clone();
    let ty = schema.named(name).unwrap_or_else(|| panic!("no built-in type {name}"));
    TypeRef { schema, ty }
}
