//! Conforming: makes a decoded value an object of its type.

use super::DEPTH_MAX;
use super::scalar::{self, Invalid};
use super::trail::Trail;
use crate::schema::{self, OBJECT_META, Schema, Struct, Type, TypeId, TypeRef};
use crate::{Map, Value};

/// Maximum number of unknown fields that are listed. Further ones are dropped without being listed.
const UNKNOWN_MAX: usize = 100;

/// Conforms a value. Returns the paths of the removed unknown fields, or an error message. Parts that are still shared
/// with `old` at the same path were conformed before and are skipped.
pub(super) fn conform(ty: &TypeRef, value: &mut Value, old: Option<&Value>) -> Result<Vec<String>, String> {
    let mut walk = Walk { schema: &ty.schema, unknown: Vec::new() };
    walk.value(ty.ty, value, Place { at: &Trail::Root, depth: 0, owner: None, old })?;
    Ok(walk.unknown)
}

struct Walk<'s> {
    schema: &'s Schema,
    unknown: Vec<String>,
}

/// The current position.
#[derive(Clone, Copy)]
struct Place<'a> {
    at: &'a Trail<'a>,
    depth: usize,
    /// The struct that declares the nearest field, for error messages.
    owner: Option<TypeId>,
    /// The conformed value that was at this position before.
    old: Option<&'a Value>,
}

impl<'a> Place<'a> {
    /// Returns the position `at` below this one.
    fn to(self, at: &'a Trail<'a>) -> Place<'a> {
        let old = self.old.and_then(|old| match at {
            Trail::Root => Some(old),
            Trail::Field(_, name) | Trail::Entry(_, name) => old.get(*name),
            Trail::Item(_, index) => old.get(*index),
        });
        Place { at, old, ..self }
    }
    fn deeper(self) -> Result<Place<'a>, String> {
        if self.depth >= DEPTH_MAX {
            return Err(format!("exceeded max depth at {}", self.at));
        }
        Ok(Place { depth: self.depth + 1, ..self })
    }
}

impl Walk<'_> {
    fn value(&mut self, ty: TypeId, value: &mut Value, place: Place<'_>) -> Result<(), String> {
        if place.old.is_some_and(|old| value.is_same(old)) {
            return Ok(());
        }
        let schema = self.schema;
        match (schema.get(ty), &mut *value) {
            (Type::Any, _) => bounded(value, place),
            (Type::Struct(shape), Value::Object(members)) => {
                self.members(shape, members, Place { owner: Some(ty), ..place.deeper()? })
            }
            (Type::Map { value: of, .. }, Value::Object(members)) => {
                let place = place.deeper()?;
                for (key, member) in members.iter_mut() {
                    self.element(*of, member, place.to(&Trail::Entry(place.at, key)))?;
                }
                Ok(())
            }
            (Type::List { item, .. }, Value::Array(items)) => {
                let place = place.deeper()?;
                for (index, element) in items.iter_mut().enumerate() {
                    self.element(*item, element, place.to(&Trail::Item(place.at, index)))?;
                }
                Ok(())
            }
            _ if schema.structural => bounded(value, place),
            (Type::Scalar(of), _) => scalar::canonical(*of, value).map_err(|wrong| match wrong {
                Invalid::Type(found) => self.mismatch(&found, ty, place),
                Invalid::Text(sentence) => sentence,
            }),
            (_, other) => Err(self.mismatch(scalar::json_type(other), ty, place)),
        }
    }

    /// Conforms an element of a list or map. A null element becomes the zero value of its type.
    fn element(&mut self, ty: TypeId, value: &mut Value, place: Place<'_>) -> Result<(), String> {
        if value.is_null() && !self.schema.structural {
            *value = match self.schema.get(ty) {
                Type::Scalar(of) => scalar::zero(*of),
                Type::List { .. } => Value::Array(Vec::new()),
                Type::Struct(_) | Type::Map { .. } => Value::Object(Map::new()),
                Type::Any => Value::Null,
            };
            return Ok(());
        }
        self.value(ty, value, place)
    }

    fn members(&mut self, shape: &Struct, members: &mut Map, place: Place<'_>) -> Result<(), String> {
        let mut outcome = Ok(());
        members.retain(|key, value| {
            if outcome.is_err() {
                return true;
            }
            match self.member(shape, key, value, place) {
                Ok(keep) => keep,
                Err(sentence) => {
                    outcome = Err(sentence);
                    true
                }
            }
        });
        outcome
    }

    /// Conforms a member. Returns whether the member stays.
    fn member(&mut self, shape: &Struct, key: &str, value: &mut Value, place: Place<'_>) -> Result<bool, String> {
        let at = Trail::Field(place.at, key);
        let inside = place.to(&at);
        let whole_object = self.schema.structural && (shape.embedded || matches!(place.at, Trail::Root));
        if whole_object && key == "metadata" {
            return self.metadata(value, inside);
        }
        match shape.fields.get(key) {
            Some(field) if value.is_null() => Ok(field.nullable),
            Some(field) => self.value(field.ty, value, inside).map(|()| true),
            None if shape.preserve_unknown || (whole_object && matches!(key, "apiVersion" | "kind")) => {
                bounded(value, inside).map(|()| true)
            }
            None => {
                if self.unknown.len() < UNKNOWN_MAX {
                    self.unknown.push(crate::field::shown_place(inside.at));
                }
                Ok(false)
            }
        }
    }

    /// Conforms the metadata of a custom resource. It has the same type as all metadata.
    fn metadata(&mut self, value: &mut Value, place: Place<'_>) -> Result<bool, String> {
        if value.is_null() {
            return Ok(false);
        }
        let builtin = schema::builtin();
        let Some(meta) = builtin.named(OBJECT_META) else {
            return bounded(value, place).map(|()| true);
        };
        let mut walk = Walk { schema: builtin, unknown: std::mem::take(&mut self.unknown) };
        let outcome = walk.value(meta, value, Place { owner: None, ..place });
        self.unknown = walk.unknown;
        outcome.map(|()| true)
    }

    /// Returns the error for a wrong type, in the words of Go's JSON decoder.
    fn mismatch(&self, found: &str, ty: TypeId, place: Place<'_>) -> String {
        let want = go_type(self.schema, ty);
        let fields = place.at.fields();
        if fields.is_empty() {
            return format!("json: cannot unmarshal {found} into Go value of type {want}");
        }
        let owner = place.owner.and_then(|owner| self.schema.name_of(owner)).map_or("", |name| last(name));
        format!("json: cannot unmarshal {found} into Go struct field {owner}.{fields} of type {want}")
    }
}

/// Checks that a value without a schema is not nested too deeply.
fn bounded(value: &Value, place: Place<'_>) -> Result<(), String> {
    match value {
        Value::Array(items) => {
            let place = place.deeper()?;
            items.iter().try_for_each(|item| bounded(item, place))
        }
        Value::Object(members) => {
            let place = place.deeper()?;
            members.values().try_for_each(|member| bounded(member, place))
        }
        _ => Ok(()),
    }
}

/// Returns Go's name of a type: `int32`, `[]v1.Container`, `map[string]string`.
fn go_type(schema: &Schema, ty: TypeId) -> String {
    match schema.get(ty) {
        Type::Scalar(of) => scalar::go_type(*of).to_owned(),
        Type::List { item, .. } => format!("[]{}", go_type(schema, *item)),
        Type::Map { value, .. } => format!("map[string]{}", go_type(schema, *value)),
        Type::Any => "interface {}".to_owned(),
        Type::Struct(_) => schema.name_of(ty).map_or_else(
            || "struct".to_owned(),
            |name| {
                let package = name.rsplit('.').nth(1).unwrap_or("v1");
                format!("{package}.{}", last(name))
            },
        ),
    }
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
