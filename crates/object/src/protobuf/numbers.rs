//! The table of protobuf field numbers, resolved to the types of the built-in schema on first use.

use crate::schema::{self, Schema, Struct, Type, TypeId};
use std::collections::BTreeMap;
use std::sync::LazyLock;

static TABLE: &str = include_str!("../../build/protobuf-fields.txt");

/// Encoding of the built-in types.
#[derive(Default)]
pub(super) struct Numbers {
    pub shapes: BTreeMap<TypeId, Shape>,
    /// Types that JSON accepts in any form.
    pub forms: BTreeMap<TypeId, Form>,
    pub schema_props: Option<TypeId>,
}

/// The fields of a message by number.
pub(super) type Shape = BTreeMap<u32, Entry>;

pub(super) enum Entry {
    Field(Field),
    /// A separate message on the wire, whose fields JSON writes into the outer struct.
    Inline(Shape),
}

pub(super) struct Field {
    pub name: String,
    pub ty: TypeId,
    /// A zero on the wire is a zero in JSON, not an absent field.
    pub keeps_zero: bool,
}

/// Encoding of a type without fields in the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `{1: JSON text}`
    Raw,
    /// `{1: a schema, 2: several}`
    SchemaOrArray,
    /// `{1: allows, 2: schema}`
    SchemaOrBool,
    /// `{1: schema, 2: texts}`
    SchemaOrTexts,
    /// A message without fields.
    Empty,
}

pub(super) fn get() -> &'static Numbers {
    static NUMBERS: LazyLock<Numbers> = LazyLock::new(|| load(schema::builtin()));
    &NUMBERS
}

/// Parses the table, which is part of the program. Entries that do not match the schema are programming errors and
/// panic; the test below finds them.
fn load(schema: &Schema) -> Numbers {
    let mut numbers = Numbers::default();
    let mut current = None;
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(row) = line.strip_prefix(' ') {
            let (id, shape) = current.unwrap_or_else(|| panic!("a field before any type: {line}"));
            add(numbers.shapes.entry(id).or_default(), shape, row);
        } else {
            let id = schema.named(line).unwrap_or_else(|| panic!("no built-in type {line}"));
            let Type::Struct(shape) = schema.get(id) else { panic!("{line} is not a struct") };
            current = Some((id, shape));
            numbers.shapes.entry(id).or_default();
        }
    }
    for (name, id) in &schema.names {
        let form = match name.rsplit('.').next().unwrap_or(name) {
            "RawExtension" | "FieldsV1" | "JSON" => Form::Raw,
            "JSONSchemaPropsOrArray" => Form::SchemaOrArray,
            "JSONSchemaPropsOrBool" => Form::SchemaOrBool,
            "JSONSchemaPropsOrStringArray" => Form::SchemaOrTexts,
            "JSONSchemaProps" => {
                numbers.schema_props = Some(*id);
                continue;
            }
            _ if matches!(schema.get(*id), Type::Any) => Form::Empty,
            _ => continue,
        };
        numbers.forms.insert(*id, form);
    }
    numbers
}

/// Adds a row such as `2.1 hostPath` or `5 replicas pointer`.
fn add(shape: &mut Shape, of: &Struct, row: &str) {
    let mut words = row.split(' ');
    let (Some(path), Some(name)) = (words.next(), words.next()) else { panic!("not a field: {row}") };
    let field = of.fields.get(name).unwrap_or_else(|| panic!("no such field: {row}"));
    let field = Field { name: name.to_owned(), ty: field.ty, keeps_zero: words.next().is_some() };
    let mut place = shape;
    let (outer, last) = path.rsplit_once('.').unwrap_or(("", path));
    for step in outer.split('.').filter(|step| !step.is_empty()) {
        match place.entry(number(step)).or_insert_with(|| Entry::Inline(Shape::new())) {
            Entry::Inline(inner) => place = inner,
            Entry::Field(_) => panic!("both a field and an inline struct: {row}"),
        }
    }
    assert!(place.insert(number(last), Entry::Field(field)).is_none(), "the number is taken: {row}");
}

fn number(text: &str) -> u32 {
    text.parse().unwrap_or_else(|_| panic!("not a field number: {text}"))
}
