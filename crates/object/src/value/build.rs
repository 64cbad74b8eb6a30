//! A serde serializer that produces values.

use super::{Key, Map, Value};
use serde::ser::{
    Error as _, Impossible, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};
use serde::{Serialize, Serializer};
use serde_json::{Error, Number};

/// Converts a serializable value to a [`Value`].
pub fn to_value<T: Serialize + ?Sized>(from: &T) -> Result<Value, Error> {
    from.serialize(Builder)
}

/// Converts an expression in `json!` to a value.
///
/// # Panics
/// If the expression has no JSON form: a map whose keys are not texts or numbers.
#[doc(hidden)]
pub fn made<T: Serialize + ?Sized>(from: &T) -> Value {
    to_value(from).expect("the expression has no JSON form")
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(flag) => serializer.serialize_bool(*flag),
            Value::Number(number) => number.serialize(serializer),
            Value::String(text) => serializer.serialize_str(text),
            Value::Array(items) => items.serialize(serializer),
            Value::Object(members) => members.serialize(serializer),
        }
    }
}

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

struct Builder;

impl Serializer for Builder {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = Items;
    type SerializeMap = Members;
    type SerializeStruct = Members;
    type SerializeStructVariant = Members;

    fn serialize_bool(self, flag: bool) -> Result<Value, Error> {
        Ok(Value::Bool(flag))
    }
    fn serialize_i8(self, number: i8) -> Result<Value, Error> {
        Ok(number.into())
    }
    fn serialize_i16(self, number: i16) -> Result<Value, Error> {
        Ok(number.into())
    }
    fn serialize_i32(self, number: i32) -> Result<Value, Error> {
        Ok(number.into())
    }
    fn serialize_i64(self, number: i64) -> Result<Value, Error> {
        Ok(number.into())
    }
    fn serialize_u8(self, number: u8) -> Result<Value, Error> {
        Ok(number.into())
    }
    fn serialize_u16(self, number: u16) -> Result<Value, Error> {
        Ok(number.into())
    }
    fn serialize_u32(self, number: u32) -> Result<Value, Error> {
        Ok(number.into())
    }
    fn serialize_u64(self, number: u64) -> Result<Value, Error> {
        Ok(number.into())
    }
    fn serialize_f32(self, number: f32) -> Result<Value, Error> {
        Ok(f64::from(number).into())
    }
    fn serialize_f64(self, number: f64) -> Result<Value, Error> {
        Ok(number.into())
    }
    fn serialize_char(self, letter: char) -> Result<Value, Error> {
        Ok(letter.to_string().into())
    }
    fn serialize_str(self, text: &str) -> Result<Value, Error> {
        Ok(text.into())
    }
    fn serialize_bytes(self, bytes: &[u8]) -> Result<Value, Error> {
        Ok(bytes.iter().copied().collect())
    }
    fn serialize_none(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }
    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, Error> {
        Ok(Value::Null)
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Value, Error> {
        Ok(variant.into())
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        Ok(Value::Object(Map::from([(variant, to_value(value)?)])))
    }
    fn serialize_seq(self, len: Option<usize>) -> Result<Items, Error> {
        Ok(Items { variant: None, items: Vec::with_capacity(len.unwrap_or(0)) })
    }
    fn serialize_tuple(self, len: usize) -> Result<Items, Error> {
        self.serialize_seq(Some(len))
    }
    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Items, Error> {
        self.serialize_seq(Some(len))
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Items, Error> {
        Ok(Items { variant: Some(variant), items: Vec::with_capacity(len) })
    }
    fn serialize_map(self, len: Option<usize>) -> Result<Members, Error> {
        Ok(Members { variant: None, name: None, members: Vec::with_capacity(len.unwrap_or(0)) })
    }
    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Members, Error> {
        self.serialize_map(Some(len))
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Members, Error> {
        Ok(Members { variant: Some(variant), name: None, members: Vec::with_capacity(len) })
    }
}

/// An enum variant with content becomes an object with one member.
fn of_variant(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(variant) => Value::Object(Map::from([(variant, value)])),
        None => value,
    }
}

struct Items {
    variant: Option<&'static str>,
    items: Vec<Value>,
}

/// All kinds of sequences in serde collect their items in order.
macro_rules! takes_items {
    ($($list:ident: $function:ident),*) => {$(
        impl $list for Items {
            type Ok = Value;
            type Error = Error;
            fn $function<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), Error> {
                self.items.push(to_value(item)?);
                Ok(())
            }
            fn end(self) -> Result<Value, Error> {
                Ok(of_variant(self.variant, Value::Array(self.items)))
            }
        }
    )*};
}

takes_items! {
    SerializeSeq: serialize_element, SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field, SerializeTupleVariant: serialize_field
}

struct Members {
    variant: Option<&'static str>,
    /// The name of the next member.
    name: Option<Key>,
    members: Vec<(Key, Value)>,
}

impl Members {
    fn whole(self) -> Value {
        of_variant(self.variant, Value::Object(Map::of(self.members)))
    }
}

impl SerializeMap for Members {
    type Ok = Value;
    type Error = Error;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, name: &T) -> Result<(), Error> {
        self.name = Some(name.serialize(Name)?);
        Ok(())
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let name = self.name.take().ok_or_else(|| Error::custom("a map value was serialized before its key"))?;
        self.members.push((name, to_value(value)?));
        Ok(())
    }
    fn end(self) -> Result<Value, Error> {
        Ok(self.whole())
    }
}

macro_rules! takes_fields {
    ($($shape:ident),*) => {$(
        impl $shape for Members {
            type Ok = Value;
            type Error = Error;
            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
                self.members.push((name.into(), to_value(value)?));
                Ok(())
            }
            fn end(self) -> Result<Value, Error> {
                Ok(self.whole())
            }
        }
    )*};
}

takes_fields!(SerializeStruct, SerializeStructVariant);

/// Serializes the name of a member: a text, or a value that can be written as text.
struct Name;

macro_rules! names_of {
    ($($function:ident: $type:ty),*) => {$(
        fn $function(self, value: $type) -> Result<Key, Error> {
            Ok(value.to_string().into())
        }
    )*};
}

fn no_name<T>() -> Result<T, Error> {
    Err(Error::custom("the name of a member must be a text"))
}

impl Serializer for Name {
    type Ok = Key;
    type Error = Error;
    type SerializeSeq = Impossible<Key, Error>;
    type SerializeTuple = Impossible<Key, Error>;
    type SerializeTupleStruct = Impossible<Key, Error>;
    type SerializeTupleVariant = Impossible<Key, Error>;
    type SerializeMap = Impossible<Key, Error>;
    type SerializeStruct = Impossible<Key, Error>;
    type SerializeStructVariant = Impossible<Key, Error>;

    names_of! {
        serialize_bool: bool, serialize_char: char,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64
    }

    fn serialize_str(self, name: &str) -> Result<Key, Error> {
        Ok(name.into())
    }
    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Key, Error> {
        Ok(variant.into())
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<Key, Error> {
        value.serialize(self)
    }
    fn serialize_f32(self, number: f32) -> Result<Key, Error> {
        self.serialize_f64(number.into())
    }
    fn serialize_f64(self, number: f64) -> Result<Key, Error> {
        Number::from_f64(number).map_or_else(no_name, |number| Ok(number.to_string().into()))
    }
    fn serialize_bytes(self, _: &[u8]) -> Result<Key, Error> {
        no_name()
    }
    fn serialize_none(self) -> Result<Key, Error> {
        no_name()
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Key, Error> {
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<Key, Error> {
        no_name()
    }
    fn serialize_unit_struct(self, _: &'static str) -> Result<Key, Error> {
        no_name()
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Key, Error> {
        no_name()
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, Error> {
        no_name()
    }
    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
        no_name()
    }
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, Error> {
        no_name()
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        no_name()
    }
    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Error> {
        no_name()
    }
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Error> {
        no_name()
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        no_name()
    }
}
