//! How server-side apply treats a type: as one leaf, as members, or as items with an identity.

use super::element;
use crate::Value;
use crate::schema::{ListType, Schema, Struct, Type, TypeId, TypeRef};

/// A type of the schema. `None` where the schema does not describe the value: then objects have members, and everything
/// else is a leaf.
#[derive(Clone, Copy)]
pub(super) struct Ty<'a> {
    schema: &'a Schema,
    ty: Option<&'a Type>,
}

pub(super) enum Shape<'a> {
    /// Owned as one value: scalars, atomic lists, atomic maps and atomic structs.
    Leaf,
    Members,
    Items(Items<'a>),
}

/// The items of a list in which each item has an identity: the scalars of a set, or the key fields of a list map.
#[derive(Clone, Copy)]
pub(super) struct Items<'a> {
    schema: &'a Schema,
    list: &'a ListType,
    item: TypeId,
}

impl<'a> Ty<'a> {
    pub fn root(ty: &'a TypeRef) -> Ty<'a> {
        Ty { schema: &ty.schema, ty: Some(ty.get()) }
    }

    /// Returns the shape of one or two values of this type.
    pub fn shape(self, a: Option<&Value>, b: Option<&Value>) -> Shape<'a> {
        let fits = |test: fn(&Value) -> bool| [a, b].into_iter().flatten().all(|value| value.is_null() || test(value));
        match self.ty {
            Some(Type::Struct(found)) if !found.atomic && fits(Value::is_object) => Shape::Members,
            Some(Type::Map { atomic: false, .. }) if fits(Value::is_object) => Shape::Members,
            Some(Type::List { item, list }) if *list != ListType::Atomic && fits(Value::is_array) => {
                Shape::Items(Items { schema: self.schema, list, item: *item })
            }
            None if fits(Value::is_object) => Shape::Members,
            _ => Shape::Leaf,
        }
    }

    /// Returns the expected kind of value, for the error text if the value is something else.
    pub fn expected(self) -> Option<&'static str> {
        match self.ty {
            Some(Type::Struct(_) | Type::Map { .. }) => Some("map"),
            Some(Type::List { .. }) => Some("list"),
            _ => None,
        }
    }

    pub fn structure(self) -> Option<&'a Struct> {
        match self.ty {
            Some(Type::Struct(found)) => Some(found),
            _ => None,
        }
    }

    pub fn is_list(self) -> bool {
        matches!(self.ty, Some(Type::List { .. }))
    }

    /// Whether the member is a declared field of a struct, not a free map key.
    pub fn declares(self, name: &str) -> bool {
        self.structure().is_some_and(|found| found.fields.contains_key(name))
    }

    pub fn member(self, name: &str) -> Ty<'a> {
        let ty = match self.ty {
            Some(Type::Struct(found)) => found.fields.get(name).map(|field| self.schema.get(field.ty)),
            Some(Type::Map { value, .. }) => Some(self.schema.get(*value)),
            _ => None,
        };
        Ty { schema: self.schema, ty }
    }
}

impl<'a> Items<'a> {
    pub fn ty(self) -> Ty<'a> {
        Ty { schema: self.schema, ty: Some(self.schema.get(self.item)) }
    }

    pub fn element(self, item: &Value) -> Result<String, &'static str> {
        element::item(self.schema, self.list, self.item, item)
    }

    /// Returns the elements of all items, or `None` if an item has none.
    pub fn elements(self, items: &[Value]) -> Option<Vec<String>> {
        items.iter().map(|item| self.element(item).ok()).collect()
    }
}
