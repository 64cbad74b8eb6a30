//! Strategic merge patch, as the Kubernetes API server applies it.
//!
//! Maps are merged member by member, and null deletes. Lists are replaced unless the schema says that they merge: lists
//! of maps by merge key, lists of scalars as a union. Directives in the patch change that: `$patch` (merge, replace,
//! delete), `$retainKeys`, `$setElementOrder/<list>` and `$deleteFromPrimitiveList/<list>`.

use super::order::{Item, arrange};
use crate::schema::{PatchStrategy, Schema, Type, TypeRef};
use crate::status::Status;
use crate::{Map, Value};
use std::collections::{HashMap, HashSet};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

type Members = Map;

pub(super) fn apply(ty: &TypeRef, document: &Value, patch: &Value) -> Result<Value, Status> {
    let Value::Object(patch) = patch else {
        return Err(Status::bad_request("a strategic merge patch must be an object"));
    };
    let original = document.as_object().cloned().unwrap_or_default();
    let shape = Shape { schema: &ty.schema, ty: Some(ty.get()) };
    merge_members(shape, original, patch).map(Value::Object)
}

/// The type of a value; `None` if the schema does not describe it.
#[derive(Clone, Copy)]
struct Shape<'a> {
    schema: &'a Schema,
    ty: Option<&'a Type>,
}

impl<'a> Shape<'a> {
    fn member(self, name: &str) -> (Shape<'a>, Option<&'a PatchStrategy>) {
        let (ty, strategy) = match self.ty {
            Some(Type::Struct(found)) => match found.fields.get(name) {
                Some(field) => (Some(self.schema.get(field.ty)), Some(&field.patch)),
                None => (None, None),
            },
            Some(Type::Map { value, .. }) => (Some(self.schema.get(*value)), None),
            _ => (None, None),
        };
        (Shape { schema: self.schema, ty }, strategy)
    }

    fn item(self) -> Shape<'a> {
        let ty = match self.ty {
            Some(Type::List { item, .. }) => Some(self.schema.get(*item)),
            _ => None,
        };
        Shape { schema: self.schema, ty }
    }

    /// Whether a member whose name looks like a directive is a plain field: `$ref` of a JSON schema, or a free map key.
    fn allows(self, name: &str) -> bool {
        match self.ty {
            Some(Type::Struct(found)) => found.preserve_unknown || found.fields.contains_key(name),
            _ => true,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Directive {
    Merge,
    Replace,
    Delete,
}

/// Returns the `$patch` directive of a map in the patch. The default is to merge.
fn directive(patch: &Members) -> Result<Directive, Status> {
    match patch.get(PATCH) {
        None => Ok(Directive::Merge),
        Some(word) => match word.as_str() {
            Some("merge") => Ok(Directive::Merge),
            Some("replace") => Ok(Directive::Replace),
            Some("delete") => Ok(Directive::Delete),
            _ => Err(Status::bad_request(format!("unknown patch type: {word} in map: {}", shortened(patch)))),
        },
    }
}

fn merge_members(shape: Shape, mut original: Members, patch: &Members) -> Result<Members, Status> {
    match directive(patch)? {
        Directive::Merge => {}
        Directive::Replace => return members_without_directives(patch),
        Directive::Delete => return Ok(Members::new()),
    }
    retain_keys(&mut original, patch)?;
    for (key, value) in patch {
        if let Some(name) = key.strip_prefix(SET_ORDER) {
            merge_ordered_list(shape, &mut original, patch, name, value)?;
        } else if !is_directive(key) {
            let ordered = patch.contains_key(format!("{SET_ORDER}{key}"));
            if !ordered || value.is_null() {
                merge_member(shape, &mut original, key, value)?;
            }
        } else if !is_known_directive(key) {
            if !shape.allows(key) {
                return Err(Status::bad_request(format!(
                    "unknown directive {key:?} in strategic merge patch: known are $patch, $retainKeys, \
                     $setElementOrder/<field> and $deleteFromPrimitiveList/<field>"
                )));
            }
            merge_member(shape, &mut original, key, value)?;
        }
    }
    // Deletions come last: a scalar that a patch both adds and deletes is deleted, but keeps its place in the order
    // until then.
    for (key, value) in patch {
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            delete_from_list(&mut original, name, value)?;
        }
    }
    Ok(original)
}

fn is_directive(key: &str) -> bool {
    key.starts_with('$')
}

fn is_known_directive(key: &str) -> bool {
    key == PATCH || key == RETAIN_KEYS || key.starts_with(SET_ORDER) || key.starts_with(DELETE_FROM)
}

/// Handles `$retainKeys`: only the listed members of the original stay, and the patch may set no others.
fn retain_keys(original: &mut Members, patch: &Members) -> Result<(), Status> {
    let Some(listed) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let malformed = || Status::bad_request("invalid patch format of retainKeys");
    let keys: HashSet<&str> = listed
        .as_array()
        .ok_or_else(malformed)?
        .iter()
        .map(Value::as_str)
        .collect::<Option<_>>()
        .ok_or_else(malformed)?;
    let stray = patch.iter().any(|(key, value)| !value.is_null() && !is_directive(key) && !keys.contains(key.as_str()));
    if stray {
        return Err(malformed());
    }
    original.retain(|key, _| keys.contains(key.as_str()));
    Ok(())
}

/// Handles `$deleteFromPrimitiveList/<name>`: removes scalars from a list.
fn delete_from_list(original: &mut Members, name: &str, value: &Value) -> Result<(), Status> {
    let Value::Array(gone) = value else {
        return Err(Status::bad_request("invalid patch format of primitive list"));
    };
    if let Some(Value::Array(items)) = original.get_mut(name) {
        let gone: HashSet<String> = gone.iter().map(Value::to_string).collect();
        items.retain(|item| !gone.contains(&item.to_string()));
    }
    Ok(())
}

fn merge_member(shape: Shape, original: &mut Members, key: &str, patch: &Value) -> Result<(), Status> {
    let (shape, strategy) = shape.member(key);
    let merges = strategy.is_some_and(|strategy| strategy.merge);
    let merged = match (original.remove(key), patch) {
        (_, Value::Null) => None,
        (Some(Value::Object(old)), Value::Object(patch)) => Some(Value::Object(merge_members(shape, old, patch)?)),
        (Some(Value::Array(old)), Value::Array(patch)) if merges => {
            let merge_key = strategy.and_then(|strategy| strategy.merge_key.as_deref());
            Some(Value::Array(merge_list(shape.item(), merge_key, old, patch)?))
        }
        (_, patch) => without_directives(patch)?,
    };
    if let Some(merged) = merged {
        original.insert(key.to_owned(), merged);
    }
    Ok(())
}

/// Handles `$setElementOrder/<name>`: merges the list (if the patch has it), and puts it in the given order.
fn merge_ordered_list(
    shape: Shape,
    original: &mut Members,
    patch: &Members,
    name: &str,
    order: &Value,
) -> Result<(), Status> {
    let malformed = || Status::bad_request("invalid patch format of setElementOrder list");
    let order = order.as_array().ok_or_else(malformed)?;
    let (_, strategy) = shape.member(name);
    let merge_key = strategy.and_then(|strategy| strategy.merge_key.as_deref());
    let wanted: Vec<String> =
        order.iter().map(|item| identity(item, merge_key).ok_or_else(malformed)).collect::<Result<_, _>>()?;
    let live: Vec<String> = match original.get(name) {
        Some(Value::Array(items)) => items.iter().map(|item| identity(item, merge_key).unwrap_or_default()).collect(),
        _ => Vec::new(),
    };
    match patch.get(name) {
        None => {}
        // The loop over the other members deletes the list.
        Some(Value::Null) => return Ok(()),
        Some(Value::Array(items)) => {
            check_order(items, &wanted, merge_key)?;
            merge_member(shape, original, name, &patch[name])?;
        }
        Some(_) => return Err(malformed()),
    }
    if let Some(Value::Array(items)) = original.get_mut(name) {
        let identified = std::mem::take(items)
            .into_iter()
            .map(|value| Item { id: identity(&value, merge_key).unwrap_or_default(), value })
            .collect();
        *items = arrange(identified, &wanted, &live);
    }
    Ok(())
}

/// Checks that the patch's elements appear in the element order, in the same order. Deleted elements need not.
fn check_order(items: &[Value], wanted: &[String], merge_key: Option<&str>) -> Result<(), Status> {
    let mut rest = wanted.iter();
    for item in items {
        if item.as_object().is_some_and(|members| members.get(PATCH).is_some_and(|word| word != "merge")) {
            continue;
        }
        let id = match merge_key {
            Some(key) => identity(item, merge_key).ok_or_else(|| no_merge_key(item, key))?,
            None => item.to_string(),
        };
        if !rest.any(|next| *next == id) {
            return Err(unprocessable(format!(
                "The order in patch list doesn't match $setElementOrder list: {id} is not there, or not at its place"
            )));
        }
    }
    Ok(())
}

fn merge_list(shape: Shape, merge_key: Option<&str>, old: Vec<Value>, patch: &[Value]) -> Result<Vec<Value>, Status> {
    let mut elements = old.iter().chain(patch);
    if elements.clone().any(Value::is_array) {
        return Err(unprocessable("lists of lists are not supported"));
    }
    if elements.clone().all(Value::is_object) {
        return match merge_key {
            Some(key) => merge_maps(shape, key, old, patch),
            None if patch.is_empty() => Ok(old),
            None => Err(unprocessable("cannot merge lists without merge key")),
        };
    }
    if elements.any(Value::is_object) {
        return Err(unprocessable("list element types are not identical: maps and scalars do not merge"));
    }
    Ok(merge_scalars(old, patch))
}

/// Returns the union without duplicates.
fn merge_scalars(old: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    let live: Vec<String> = old.iter().map(Value::to_string).collect();
    let wanted: Vec<String> = patch.iter().map(Value::to_string).collect();
    let mut seen = HashSet::new();
    let items = old
        .into_iter()
        .chain(patch.iter().cloned())
        .map(|value| Item { id: value.to_string(), value })
        .filter(|item| seen.insert(item.id.clone()))
        .collect();
    arrange(items, &wanted, &live)
}

/// Merges the elements that have the same merge key.
fn merge_maps(shape: Shape, key: &str, old: Vec<Value>, patch: &[Value]) -> Result<Vec<Value>, Status> {
    let (mut items, patch) = special_elements(key, old, patch)?;
    let live: Vec<String> = items.iter().map(|item| item.id.clone()).collect();
    let mut wanted = Vec::with_capacity(patch.len());
    let mut at: HashMap<String, usize> = HashMap::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        at.entry(item.id.clone()).or_insert(index);
    }
    for (id, members) in patch {
        match at.get(&id) {
            Some(&index) => {
                let old = items[index].value.as_object_mut().map(std::mem::take).unwrap_or_default();
                items[index].value = Value::Object(merge_members(shape, old, members)?);
            }
            None => {
                at.insert(id.clone(), items.len());
                items.push(Item { id: id.clone(), value: Value::Object(members_without_directives(members)?) });
            }
        }
        wanted.push(id);
    }
    Ok(arrange(items, &wanted, &live))
}

/// The elements of a patch that are merged, each with its identity.
type Ordinary<'a> = Vec<(String, &'a Members)>;

/// Handles elements of the patch with their own `$patch`: `delete` removes the element with that key, and `replace`
/// makes the patch's other elements the whole list. Returns the list to merge into, and the elements to merge.
fn special_elements<'a>(key: &str, old: Vec<Value>, patch: &'a [Value]) -> Result<(Vec<Item>, Ordinary<'a>), Status> {
    let mut replace = false;
    let mut gone = HashSet::new();
    let mut ordinary = Vec::with_capacity(patch.len());
    for item in patch {
        let Value::Object(members) = item else { continue };
        let id = || identity(item, Some(key)).ok_or_else(|| no_merge_key(item, key));
        match directive(members)? {
            Directive::Merge => ordinary.push((id()?, members)),
            Directive::Replace => replace = true,
            Directive::Delete => drop(gone.insert(id()?)),
        }
    }
    let kept = if replace { Vec::new() } else { old };
    let items = kept
        .into_iter()
        .map(|value| Item { id: identity(&value, Some(key)).unwrap_or_default(), value })
        .filter(|item| !gone.contains(&item.id))
        .collect();
    Ok((items, ordinary))
}

/// Returns the identity of a list element: the value of the merge key, or the scalar itself. `None` if the key is
/// missing.
fn identity(item: &Value, merge_key: Option<&str>) -> Option<String> {
    match merge_key {
        None => Some(item.to_string()),
        Some(key) => item.as_object()?.get(key).filter(|value| !value.is_null()).map(Value::to_string),
    }
}

/// Returns the value that a patch gives to a member that was absent or of another type: without directives and nulls.
/// `None` if the patch only deletes.
fn without_directives(patch: &Value) -> Result<Option<Value>, Status> {
    Ok(match patch {
        Value::Null => None,
        Value::Object(members) => match directive(members)? {
            Directive::Delete => None,
            Directive::Merge | Directive::Replace => Some(Value::Object(members_without_directives(members)?)),
        },
        Value::Array(items) => Some(Value::Array(items_without_directives(items)?)),
        scalar => Some(scalar.clone()),
    })
}

fn members_without_directives(patch: &Members) -> Result<Members, Status> {
    let mut members = Members::new();
    for (key, value) in patch {
        if is_known_directive(key) {
            continue;
        }
        if let Some(value) = without_directives(value)? {
            members.insert(key.clone(), value);
        }
    }
    Ok(members)
}

/// Removes elements that consist only of a directive.
fn items_without_directives(patch: &[Value]) -> Result<Vec<Value>, Status> {
    let mut items = Vec::with_capacity(patch.len());
    for item in patch {
        match item {
            Value::Object(members) if directive(members)? != Directive::Merge => {}
            Value::Null => items.push(Value::Null),
            other => items.extend(without_directives(other)?),
        }
    }
    Ok(items)
}

fn unprocessable(message: impl Into<String>) -> Status {
    Status::new(422, "Invalid", message)
}

fn no_merge_key(item: &Value, key: &str) -> Status {
    let shown = item.as_object().map_or_else(|| item.to_string(), shortened);
    unprocessable(format!("map: {shown} does not contain declared merge key: {key}"))
}

/// Formats a map for error messages, shortened.
fn shortened(members: &Members) -> String {
    const SHOWN_CHARS: usize = 200;
    let text = serde_json::to_string(members).unwrap_or_default();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests;
