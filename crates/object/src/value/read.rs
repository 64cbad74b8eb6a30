//! A serde deserializer into values, and from values into other types.

use super::{Key, Map, NULL, Value};
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Number};
use std::cell::RefCell;
use std::fmt;

thread_local! {
    static ITEMS: ItemStack<Value> = const { ItemStack(RefCell::new(Vec::new())) };
    static MEMBERS: ItemStack<(Key, Value)> = const { ItemStack(RefCell::new(Vec::new())) };
}

/// Items of lists and objects that are still being read, the innermost on top. When one is complete, its items move to
/// an allocation of exactly their size, so no vector has to grow.
struct ItemStack<T>(RefCell<Vec<T>>);

impl<T> ItemStack<T> {
    /// Reads items until `next` returns `None`.
    fn all<E>(&self, mut next: impl FnMut() -> Result<Option<T>, E>) -> Result<Vec<T>, E> {
        let from = self.0.borrow().len();
        let end = loop {
            // The stack must not be borrowed during `next`, because nested lists use it too.
            match next() {
                Ok(Some(item)) => self.0.borrow_mut().push(item),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let mut stack = self.0.borrow_mut();
        let mut items = Vec::with_capacity(if end.is_ok() { stack.len() - from } else { 0 });
        match end {
            Ok(()) => items.extend(stack.drain(from..)),
            Err(_) => stack.truncate(from),
        }
        if from == 0 && stack.capacity() > STACK_ITEMS_MAX {
            *stack = Vec::new();
        }
        end.map(|()| items)
    }
}

/// A larger stack is freed after use.
const STACK_ITEMS_MAX: usize = 4096;

/// Decodes JSON. UTF-8 is validated once for the whole text instead of once per string.
pub fn from_bytes<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        // This reader reports the position of the invalid UTF-8.
        Err(_) => serde_json::from_slice(bytes),
    }
}

/// Deserializes a type from a value.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    T::deserialize(value)
}

/// Reads the members of an object. `read` returns the value of each member, or `None` to skip it.
pub fn read_members<'de, A: MapAccess<'de>>(
    access: &mut A,
    mut read: impl FnMut(&Key, &mut A) -> Result<Option<Value>, A::Error>,
) -> Result<Map, A::Error> {
    let mut next = || {
        while let Some(name) = access.next_key()? {
            if let Some(value) = read(&name, access)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    };
    MEMBERS.with(|stack| stack.all(&mut next)).map(Map::of)
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("any JSON value")
    }
    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }
    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }
    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }
    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }
    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(NULL)
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(NULL)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Deserialize::deserialize(deserializer)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        ITEMS.with(|stack| stack.all(|| access.next_element())).map(Value::Array)
    }
    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        Members.visit_map(access).map(Value::Object)
    }
}

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Map, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Map;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a map")
    }
    fn visit_unit<E>(self) -> Result<Map, E> {
        Ok(Map::new())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Map, A::Error> {
        read_members(&mut access, |_, access| access.next_value().map(Some))
    }
}

impl<'de> IntoDeserializer<'de, Error> for &'de Value {
    type Deserializer = &'de Value;
    fn into_deserializer(self) -> &'de Value {
        self
    }
}

impl<'de> IntoDeserializer<'de, Error> for &'de Key {
    type Deserializer = serde::de::value::BorrowedStrDeserializer<'de, Error>;
    fn into_deserializer(self) -> Self::Deserializer {
        serde::de::value::BorrowedStrDeserializer::new(self.as_str())
    }
}

impl<'de> Deserializer<'de> for &'de Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Number(number) => visit_number(number, visitor),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => {
                let mut access = SeqDeserializer::new(items.iter());
                let read = visitor.visit_seq(&mut access)?;
                access.end()?;
                Ok(read)
            }
            Value::Object(members) => {
                let mut access = MapDeserializer::new(members.iter());
                let read = visitor.visit_map(&mut access)?;
                access.end()?;
                Ok(read)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Value::String(variant) => visitor.visit_enum(Variant { name: variant, content: None }),
            Value::Object(members) if members.len() == 1 => {
                let (variant, content) = members.iter().next().ok_or_else(|| Error::custom("one member"))?;
                visitor.visit_enum(Variant { name: variant, content: Some(content) })
            }
            _ => Err(Error::invalid_type(Unexpected::Other("this value"), &"a text or an object with one member")),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier
    }
}

fn visit_number<'de, V: Visitor<'de>>(number: &Number, visitor: V) -> Result<V::Value, Error> {
    if let Some(number) = number.as_u64() {
        visitor.visit_u64(number)
    } else if let Some(number) = number.as_i64() {
        visitor.visit_i64(number)
    } else {
        visitor.visit_f64(number.as_f64().ok_or_else(|| Error::custom("a number out of range"))?)
    }
}

/// An enum variant with its content.
struct Variant<'de> {
    name: &'de str,
    content: Option<&'de Value>,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Error;
    type Variant = Self;
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let name = seed.deserialize(serde::de::value::BorrowedStrDeserializer::<Error>::new(self.name))?;
        Ok((name, self))
    }
}

impl<'de> Variant<'de> {
    fn some(self) -> Result<&'de Value, Error> {
        self.content.ok_or_else(|| Error::custom(format!("the enum variant {} has no content", self.name)))
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = Error;
    fn unit_variant(self) -> Result<(), Error> {
        self.content.map_or(Ok(()), Deserialize::deserialize)
    }
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self.some()?)
    }
    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.some()?.deserialize_any(visitor)
    }
    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        self.some()?.deserialize_any(visitor)
    }
}
