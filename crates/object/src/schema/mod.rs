//! The schema of every kind: its fields, their types, and how lists and maps merge.
//!
//! One arena of types is used for decoding (unknown fields, wrong types, canonical quantities), strategic merge patch,
//! server-side apply, semantic comparison and OpenAPI. The build script generates the built-in arena from k8s-openapi's
//! schemas and our table of merge rules. Each version of a CustomResourceDefinition gets its own arena.

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
    /// Named struct types by OpenAPI definition name (`io.k8s.api.core.v1.Pod`).
    pub names: BTreeMap<String, TypeId>,
    /// True for a CustomResourceDefinition: wrong types are left for validation, and values are not rewritten.
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
    /// Any value; server-side apply treats it as one leaf.
    Any,
}

#[derive(Debug, Default)]
pub struct Struct {
    pub fields: BTreeMap<String, Field>,
    /// Server-side apply treats the struct as one leaf (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
    /// Undeclared fields are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve_unknown: bool,
    /// The object is a complete API object with its own `apiVersion`, `kind` and `metadata`.
    pub embedded: bool,
}

#[derive(Debug)]
pub struct Field {
    pub ty: TypeId,
    pub required: bool,
    pub nullable: bool,
    /// Defaults of CRDs, and defaults of list map keys (a port's `protocol`), which server-side apply needs to match
    /// items.
    pub default: Option<Value>,
    pub patch: PatchStrategy,
}

/// How a strategic merge patch treats a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// Lists with a merge key are merged item by item. Without one, `merge` makes a list of scalars a union.
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

/// A type in a shared arena, as [`crate::Kind`] has it.
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
    /// Returns the struct type with this OpenAPI definition name.
    pub fn named(&self, name: &str) -> Option<TypeId> {
        self.names.get(name).copied()
    }
    /// Returns the OpenAPI definition name of a struct type. It searches all names, so use it only for rare cases and
    /// error messages.
    pub fn name_of(&self, id: TypeId) -> Option<&str> {
        self.names.iter().find(|(_, named)| **named == id).map(|(name, _)| name.as_str())
    }
}

impl TypeRef {
    pub fn get(&self) -> &Type {
        self.schema.get(self.ty)
    }
    /// Whether two values of this type are semantically equal: quantities by value, times by instant, absent equal to
    /// empty.
    pub fn same(&self, a: &Value, b: &Value) -> bool {
        compare::same(&self.schema, self.ty, Some(a), Some(b))
    }
}

/// Returns the schema of the built-in kinds.
pub fn builtin() -> &'static Arc<Schema> {
    static BUILTIN: LazyLock<Arc<Schema>> = LazyLock::new(|| Arc::new(builtin::load()));
    &BUILTIN
}

/// OpenAPI definition name of `metadata`.
pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Returns the full OpenAPI definitions of the built-in types, with descriptions. They are unpacked at each call, so
/// keep the result.
pub fn definitions() -> crate::Map {
    builtin::definitions()
}

/// Returns a hash of this build's definitions.
pub(crate) fn definitions_hash() -> u64 {
    static HASH: LazyLock<u64> = LazyLock::new(builtin::definitions_hash);
    *HASH
}

/// Returns a built-in type by its OpenAPI definition name. An unknown name is a programming error, found by the kinds'
/// test.
pub fn builtin_type(name: &str) -> TypeRef {
    let schema = builtin().clone();
    let ty = schema.named(name).unwrap_or_else(|| panic!("no built-in type {name}"));
    TypeRef { schema, ty }
}
