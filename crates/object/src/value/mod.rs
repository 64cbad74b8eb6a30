//! JSON values with low memory use.
//!
//! Used like `serde_json::Value`. That type keeps each object in a tree node with room for eleven members, and each
//! name in its own allocation, which takes several times the size of the text. Decision 18 has the figures.

mod build;
mod json;
mod key;
mod map;
mod read;
#[cfg(test)]
mod tests;

pub use build::{made, to_value};
pub use key::Key;
pub use map::Map;
pub use read::{from_bytes, from_value, read_members};
pub use serde_json::Number;
pub use smol_str::SmolStr as Text;

use std::fmt;
use std::ops::{Index, IndexMut};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    /// Mostly short: up to 23 bytes need no allocation, and clones share longer texts.
    String(Text),
    Array(Vec<Value>),
    Object(Map),
}

const NULL: Value = Value::Null;

/// Number of object levels that are shared separately: an object, its spec, a container, the container's ports. A
/// change further below copies what surrounds it up to that level.
const SHARED_LEVELS: usize = 4;

impl Value {
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }
    pub fn is_boolean(&self) -> bool {
        matches!(self, Value::Bool(_))
    }
    pub fn is_number(&self) -> bool {
        matches!(self, Value::Number(_))
    }
    pub fn is_i64(&self) -> bool {
        matches!(self, Value::Number(number) if number.is_i64())
    }
    pub fn is_u64(&self) -> bool {
        matches!(self, Value::Number(number) if number.is_u64())
    }
    pub fn is_f64(&self) -> bool {
        matches!(self, Value::Number(number) if number.is_f64())
    }
    pub fn is_string(&self) -> bool {
        matches!(self, Value::String(_))
    }
    pub fn is_array(&self) -> bool {
        matches!(self, Value::Array(_))
    }
    pub fn is_object(&self) -> bool {
        matches!(self, Value::Object(_))
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(flag) = self { Some(*flag) } else { None }
    }
    pub fn as_i64(&self) -> Option<i64> {
        if let Value::Number(number) = self { number.as_i64() } else { None }
    }
    pub fn as_u64(&self) -> Option<u64> {
        if let Value::Number(number) = self { number.as_u64() } else { None }
    }
    pub fn as_f64(&self) -> Option<f64> {
        if let Value::Number(number) = self { number.as_f64() } else { None }
    }
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }
    pub fn as_array(&self) -> Option<&Vec<Value>> {
        if let Value::Array(items) = self { Some(items) } else { None }
    }
    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Value>> {
        if let Value::Array(items) = self { Some(items) } else { None }
    }
    pub fn as_object(&self) -> Option<&Map> {
        if let Value::Object(members) = self { Some(members) } else { None }
    }
    pub fn as_object_mut(&mut self) -> Option<&mut Map> {
        if let Value::Object(members) = self { Some(members) } else { None }
    }

    /// Returns the member with this name, or the item at this index.
    pub fn get(&self, at: impl At) -> Option<&Value> {
        at.find(self)
    }
    pub fn get_mut(&mut self, at: impl At) -> Option<&mut Value> {
        at.find_mut(self)
    }

    /// Returns the value at a JSON pointer (RFC 6901).
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        steps(pointer)?.try_fold(self, |value, step| match value {
            Value::Object(members) => members.get(&step),
            Value::Array(items) => items.get(place(&step)?),
            _ => None,
        })
    }
    pub fn pointer_mut(&mut self, pointer: &str) -> Option<&mut Value> {
        steps(pointer)?.try_fold(self, |value, step| match value {
            Value::Object(members) => members.get_mut(&step),
            Value::Array(items) => items.get_mut(place(&step)?),
            _ => None,
        })
    }

    /// Makes later clones share this value's objects until they are changed. For values that are kept and cloned often.
    pub fn share(&mut self) {
        self.share_down(SHARED_LEVELS);
    }

    fn share_down(&mut self, levels: usize) {
        match self {
            Value::Object(members) => members.share(levels),
            Value::Array(items) => items.iter_mut().for_each(|item| item.share_down(levels)),
            _ => {}
        }
    }

    /// Whether both share the same members, which implies that they are equal. Faster than comparing.
    pub fn is_same(&self, other: &Value) -> bool {
        matches!((self, other), (Value::Object(one), Value::Object(other)) if one.is_same(other))
    }

    /// Returns the length of the JSON text without building the text.
    pub fn json_bytes(&self) -> usize {
        struct Count(usize);
        impl std::io::Write for Count {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0 += bytes.len();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut count = Count(0);
        serde_json::to_writer(&mut count, self).expect("cannot serialize a value");
        count.0
    }

    /// Returns the value and leaves null in its place.
    pub fn take(&mut self) -> Value {
        std::mem::take(self)
    }
}

fn steps(pointer: &str) -> Option<impl Iterator<Item = String>> {
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return None;
    }
    Some(pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")))
}

fn place(step: &str) -> Option<usize> {
    let is_plain = !step.starts_with('+') && (step == "0" || !step.starts_with('0'));
    if is_plain { step.parse().ok() } else { None }
}

/// An index into a [`Value`]: a name or a position.
pub trait At {
    fn find(self, value: &Value) -> Option<&Value>;
    fn find_mut(self, value: &mut Value) -> Option<&mut Value>;
    /// For writing: creates a missing member. Null becomes an object first.
    fn make(self, value: &mut Value) -> &mut Value;
}

impl At for &str {
    fn find(self, value: &Value) -> Option<&Value> {
        value.as_object()?.get(self)
    }
    fn find_mut(self, value: &mut Value) -> Option<&mut Value> {
        value.as_object_mut()?.get_mut(self)
    }
    fn make(self, value: &mut Value) -> &mut Value {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        match value {
            Value::Object(members) => members.entry(self).or_insert(NULL),
            other => panic!("{other} has no member {self:?}"),
        }
    }
}

impl At for usize {
    fn find(self, value: &Value) -> Option<&Value> {
        value.as_array()?.get(self)
    }
    fn find_mut(self, value: &mut Value) -> Option<&mut Value> {
        value.as_array_mut()?.get_mut(self)
    }
    fn make(self, value: &mut Value) -> &mut Value {
        match value {
            Value::Array(items) => &mut items[self],
            other => panic!("{other} has no item {self}"),
        }
    }
}

macro_rules! at_text {
    ($($text:ty),*) => {$(
        impl At for $text {
            fn find(self, value: &Value) -> Option<&Value> {
                let name: &str = self.as_ref();
                At::find(name, value)
            }
            fn find_mut(self, value: &mut Value) -> Option<&mut Value> {
                let name: &str = self.as_ref();
                At::find_mut(name, value)
            }
            fn make(self, value: &mut Value) -> &mut Value {
                let name: &str = self.as_ref();
                At::make(name, value)
            }
        }
    )*};
}

at_text!(&&str, String, &String, &Key);

/// An absent member or item reads as null.
impl<I: At> Index<I> for Value {
    type Output = Value;
    fn index(&self, at: I) -> &Value {
        at.find(self).unwrap_or(&NULL)
    }
}

impl<I: At> IndexMut<I> for Value {
    fn index_mut(&mut self, at: I) -> &mut Value {
        at.make(self)
    }
}

/// Formats the value as JSON, in one line or (`{:#}`) in several.
impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let text = if formatter.alternate() { serde_json::to_string_pretty(self) } else { serde_json::to_string(self) };
        formatter.write_str(&text.map_err(|_| fmt::Error)?)
    }
}

impl std::str::FromStr for Value {
    type Err = serde_json::Error;
    fn from_str(text: &str) -> Result<Value, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Bool(flag)
    }
}

macro_rules! from_whole_numbers {
    ($($number:ty),*) => {$(
        impl From<$number> for Value {
            fn from(number: $number) -> Value {
                Value::Number(number.into())
            }
        }
        impl PartialEq<$number> for Value {
            fn eq(&self, number: &$number) -> bool {
                matches!(self, Value::Number(own) if *own == Number::from(*number))
            }
        }
        impl PartialEq<$number> for &Value {
            fn eq(&self, number: &$number) -> bool {
                **self == *number
            }
        }
    )*};
}

from_whole_numbers!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

/// Numbers that JSON cannot represent (NaN, infinity) become null.
impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Number::from_f64(number).map_or(NULL, Value::Number)
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Value {
        Value::Number(number)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text.into())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}

impl From<std::borrow::Cow<'_, str>> for Value {
    fn from(text: std::borrow::Cow<'_, str>) -> Value {
        Value::String(text.into())
    }
}

impl From<Key> for Value {
    fn from(key: Key) -> Value {
        Value::String(key.as_str().into())
    }
}

impl From<Map> for Value {
    fn from(members: Map) -> Value {
        Value::Object(members)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Value {
        Value::Array(items.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Value> + Clone> From<&[T]> for Value {
    fn from(items: &[T]) -> Value {
        Value::Array(items.iter().cloned().map(Into::into).collect())
    }
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(items: [T; N]) -> Value {
        Value::Array(items.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(NULL, Into::into)
    }
}

impl<T: Into<Value>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Value {
        Value::Array(items.into_iter().map(Into::into).collect())
    }
}

impl<K: Into<Key>, V: Into<Value>> FromIterator<(K, V)> for Value {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(members: I) -> Value {
        Value::Object(members.into_iter().map(|(key, value)| (key, value.into())).collect())
    }
}

/// For libraries that use `serde_json::Value`.
impl From<serde_json::Value> for Value {
    fn from(value: serde_json::Value) -> Value {
        match value {
            serde_json::Value::Null => NULL,
            serde_json::Value::Bool(flag) => Value::Bool(flag),
            serde_json::Value::Number(number) => Value::Number(number),
            serde_json::Value::String(text) => text.into(),
            serde_json::Value::Array(items) => items.into_iter().collect(),
            serde_json::Value::Object(members) => members.into_iter().collect(),
        }
    }
}

impl From<Value> for serde_json::Value {
    fn from(value: Value) -> serde_json::Value {
        match value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(flag) => serde_json::Value::Bool(flag),
            Value::Number(number) => serde_json::Value::Number(number),
            Value::String(text) => serde_json::Value::String(text.into()),
            Value::Array(items) => serde_json::Value::Array(items.into_iter().map(Into::into).collect()),
            Value::Object(members) => {
                serde_json::Value::Object(members.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
            }
        }
    }
}

impl PartialEq<bool> for Value {
    fn eq(&self, flag: &bool) -> bool {
        self.as_bool() == Some(*flag)
    }
}

impl PartialEq<bool> for &Value {
    fn eq(&self, flag: &bool) -> bool {
        **self == *flag
    }
}

impl PartialEq<f64> for Value {
    fn eq(&self, number: &f64) -> bool {
        self.as_f64() == Some(*number)
    }
}

impl PartialEq<str> for Value {
    fn eq(&self, text: &str) -> bool {
        self.as_str() == Some(text)
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, text: &&str) -> bool {
        self.as_str() == Some(*text)
    }
}

impl PartialEq<String> for Value {
    fn eq(&self, text: &String) -> bool {
        self.as_str() == Some(text)
    }
}

impl PartialEq<Value> for str {
    fn eq(&self, value: &Value) -> bool {
        value == self
    }
}

impl PartialEq<Value> for &str {
    fn eq(&self, value: &Value) -> bool {
        value == *self
    }
}

impl PartialEq<Value> for String {
    fn eq(&self, value: &Value) -> bool {
        value == self
    }
}
