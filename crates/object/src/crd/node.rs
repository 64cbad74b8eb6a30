//! A structural schema, parsed once from a definition's `openAPIV3Schema` into the tree that all other code walks.

use super::cel::Rule;
use super::re2;
use crate::value::Number;
use crate::{Map, Value};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// One node of a structural schema: the allowed values and their validations.
#[derive(Debug, Default)]
pub struct Node {
    pub ty: Option<Ty>,
    pub nullable: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Node>,
    pub additional: Additional,
    pub items: Option<Box<Node>>,
    pub int_or_string: bool,
    pub preserve_unknown: bool,
    pub embedded: bool,
    pub list: List,
    pub map_atomic: bool,
    pub checks: Checks,
    pub rules: Vec<Rule>,
    /// Whether this node or one below has CEL rules.
    pub has_rules: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ty {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Ty {
    pub const NAMES: [&'static str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

    pub fn parse(text: &str) -> Option<Ty> {
        Some(match text {
            "object" => Ty::Object,
            "array" => Ty::Array,
            "string" => Ty::String,
            "integer" => Ty::Integer,
            "number" => Ty::Number,
            "boolean" => Ty::Boolean,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Ty::Object => "object",
            Ty::Array => "array",
            Ty::String => "string",
            Ty::Integer => "integer",
            Ty::Number => "number",
            Ty::Boolean => "boolean",
        }
    }
}

/// `additionalProperties`.
#[derive(Debug, Default)]
pub enum Additional {
    #[default]
    Unsaid,
    Never,
    Anything,
    Of(Box<Node>),
}

impl Additional {
    pub fn node(&self) -> Option<&Node> {
        match self {
            Additional::Of(node) => Some(node),
            _ => None,
        }
    }
}

/// `x-kubernetes-list-type` with its keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum List {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// The value validations of a node.
#[derive(Debug, Default)]
pub struct Checks {
    pub format: String,
    pub one_of_values: Vec<Value>,
    pub minimum: Option<Number>,
    pub exclusive_minimum: bool,
    pub maximum: Option<Number>,
    pub exclusive_maximum: bool,
    pub multiple_of: Option<Number>,
    pub length_min: Option<u64>,
    pub length_max: Option<u64>,
    pub pattern: Option<Pattern>,
    pub items_min: Option<u64>,
    pub items_max: Option<u64>,
    pub unique_items: bool,
    pub properties_min: Option<u64>,
    pub properties_max: Option<u64>,
    pub required: Vec<String>,
    pub all_of: Vec<Node>,
    pub any_of: Vec<Node>,
    pub one_of: Vec<Node>,
    pub not: Option<Box<Node>>,
}

/// A regular expression. It is compiled when first used, because many kinds are served long before an object of them is
/// written.
#[derive(Debug)]
pub struct Pattern {
    pub text: String,
    compiled: OnceLock<Option<regex::Regex>>,
}

impl Pattern {
    /// Whether the text matches. A pattern that does not compile matches nothing; validation of the definition refuses
    /// such patterns.
    pub fn matches(&self, text: &str) -> bool {
        self.compiled.get_or_init(|| re2::compile(&self.text).ok()).as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

impl Node {
    /// Parses a schema. Members of a wrong type are treated as absent, because validation of the definition refuses
    /// them.
    pub fn parse(schema: &Value) -> Node {
        let Some(schema) = schema.as_object() else { return Node::default() };
        let flag = |key: &str| schema.get(key).and_then(Value::as_bool).unwrap_or(false);
        let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or("");
        let mut node = Node {
            ty: Ty::parse(text("type")),
            nullable: flag("nullable"),
            default: schema.get("default").filter(|value| !value.is_null()).cloned(),
            properties: named(schema.get("properties")),
            additional: match schema.get("additionalProperties") {
                None | Some(Value::Null) => Additional::Unsaid,
                Some(Value::Bool(false)) => Additional::Never,
                Some(Value::Bool(true)) => Additional::Anything,
                Some(of) => Additional::Of(Box::new(Node::parse(of))),
            },
            items: schema.get("items").filter(|items| items.is_object()).map(|items| Box::new(Node::parse(items))),
            int_or_string: flag("x-kubernetes-int-or-string"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            list: match text("x-kubernetes-list-type") {
                "set" => List::Set,
                "map" => List::Map(texts(schema.get("x-kubernetes-list-map-keys"))),
                _ => List::Atomic,
            },
            map_atomic: text("x-kubernetes-map-type") == "atomic",
            checks: Checks::parse(schema),
            rules: schema
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .map_or_else(Vec::new, |rules| rules.iter().map(Rule::parse).collect()),
            has_rules: false,
        };
        node.has_rules = !node.rules.is_empty() || node.children().any(|child| child.has_rules);
        node
    }

    /// Whether this node or one below has a default.
    pub fn has_defaults(&self) -> bool {
        self.default.is_some() || self.children().any(Node::has_defaults)
    }

    fn children(&self) -> impl Iterator<Item = &Node> {
        self.properties.values().chain(self.items.as_deref()).chain(self.additional.node())
    }
}

impl Checks {
    fn parse(schema: &Map) -> Checks {
        let number = |key: &str| match schema.get(key) {
            Some(Value::Number(number)) => Some(number.clone()),
            _ => None,
        };
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        let flag = |key: &str| schema.get(key).and_then(Value::as_bool).unwrap_or(false);
        let text = |key: &str| schema.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        Checks {
            format: text("format").unwrap_or_default().to_owned(),
            one_of_values: schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            minimum: number("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            maximum: number("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            multiple_of: number("multipleOf"),
            length_min: count("minLength"),
            length_max: count("maxLength"),
            pattern: text("pattern").map(|text| Pattern { text: text.to_owned(), compiled: OnceLock::new() }),
            items_min: count("minItems"),
            items_max: count("maxItems"),
            unique_items: flag("uniqueItems"),
            properties_min: count("minProperties"),
            properties_max: count("maxProperties"),
            required: texts(schema.get("required")),
            all_of: listed(schema.get("allOf")),
            any_of: listed(schema.get("anyOf")),
            one_of: listed(schema.get("oneOf")),
            not: schema.get("not").filter(|not| not.is_object()).map(|not| Box::new(Node::parse(not))),
        }
    }
}

fn named(properties: Option<&Value>) -> BTreeMap<String, Node> {
    let members = properties.and_then(Value::as_object).into_iter().flatten();
    members.map(|(name, schema)| (name.to_string(), Node::parse(schema))).collect()
}

fn listed(schemas: Option<&Value>) -> Vec<Node> {
    schemas.and_then(Value::as_array).map_or_else(Vec::new, |list| list.iter().map(Node::parse).collect())
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}
