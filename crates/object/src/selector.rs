//! Label and field selectors: parsed once, matched often, and written in canonical form.

use crate::access::Access;
use crate::name;
use crate::{Map, Value};
use std::fmt;

mod lexer;

use lexer::{Lexer, Token};

/// A label selector. The default one matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// Sorted by key; all must match.
    requirements: Vec<Requirement>,
    /// Matches nothing: the meaning of an absent selector in an object.
    nothing: bool,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// Sorted, without duplicates.
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Equals,
    DoubleEquals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

impl LabelSelector {
    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`. The error is one sentence for the client.
    pub fn parse(text: &str) -> Result<LabelSelector, String> {
        let mut parser = Parser { lexer: Lexer::new(text), peeked: None };
        let mut selector = LabelSelector { requirements: parser.selector()?, nothing: false };
        selector.sort();
        Ok(selector)
    }

    /// Parses a `LabelSelector` object (`matchLabels`, `matchExpressions`). Null matches nothing, an empty one
    /// everything.
    pub fn from_object(selector: &Value) -> Result<LabelSelector, String> {
        if selector.is_null() {
            return Ok(LabelSelector::nothing());
        }
        let mut requirements = Vec::new();
        for (key, value) in selector.members(&["matchLabels"]) {
            let value = value.as_str().unwrap_or("").to_owned();
            requirements.push(Requirement::new(key.to_string(), Operator::Equals, vec![value])?);
        }
        for expression in selector.items(&["matchExpressions"]) {
            let operator = match expression.text(&["operator"]) {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            let values = expression.items(&["values"]).iter();
            let values = values.map(|value| value.as_str().unwrap_or("").to_owned()).collect();
            requirements.push(Requirement::new(expression.text(&["key"]).to_owned(), operator, values)?);
        }
        let mut selector = LabelSelector { requirements, nothing: false };
        selector.sort();
        Ok(selector)
    }

    /// Returns the selector for a map of labels, as in ReplicationControllers and Services.
    pub fn from_labels(labels: &Map) -> LabelSelector {
        let requirements = labels.iter().map(|(key, value)| Requirement {
            key: key.to_string(),
            operator: Operator::Equals,
            values: vec![value.as_str().unwrap_or("").to_owned()],
        });
        let mut selector = LabelSelector { requirements: requirements.collect(), nothing: false };
        selector.sort();
        selector
    }

    /// Returns a selector that matches no object.
    pub fn nothing() -> LabelSelector {
        LabelSelector { requirements: Vec::new(), nothing: true }
    }

    pub fn matches(&self, labels: &Map) -> bool {
        self.takes(|key| labels.get(key).and_then(Value::as_str))
    }

    /// Whether it matches the labels that `label` looks up.
    pub fn takes<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|requirement| requirement.takes(label(&requirement.key)))
    }

    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    fn sort(&mut self) {
        self.requirements.sort_by(|a, b| a.key.cmp(&b.key));
    }
}

impl Requirement {
    /// Validates key and values. Errors are worded as for a selector in a query.
    fn new(key: String, operator: Operator, mut values: Vec<String>) -> Result<Requirement, String> {
        check_key(&key)?;
        values.sort();
        values.dedup();
        let mut wrong = Vec::new();
        let mut all = |detail: &str| {
            wrong.push(format!("values: Invalid value: {}: {detail}", Value::from(values.clone())));
        };
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                all("for 'in', 'notin' operators, values set can't be empty");
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                all("exact-match compatibility requires one single value");
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                all("values set must be empty for exists and does not exist");
            }
            Operator::GreaterThan | Operator::LessThan if values.len() != 1 => {
                all("for 'Gt', 'Lt' operators, exactly one value is required");
            }
            Operator::GreaterThan | Operator::LessThan if values[0].parse::<i64>().is_err() => {
                let value = &values[0];
                wrong.push(format!(
                    "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                ));
            }
            _ => {}
        }
        for (index, value) in values.iter().enumerate() {
            let why = name::label_value(value);
            if !why.is_empty() {
                wrong.push(format!("values[{index}][{key}]: Invalid value: {value:?}: {}", why.join("; ")));
            }
        }
        match wrong.len() {
            0 => Ok(Requirement { key, operator, values }),
            1 => Err(wrong.remove(0)),
            _ => Err(format!("[{}]", wrong.join(", "))),
        }
    }

    pub fn matches(&self, labels: &Map) -> bool {
        self.takes(labels.get(&self.key).and_then(Value::as_str))
    }

    /// Whether a label's value (`None` if absent) meets the requirement.
    pub fn takes(&self, label: Option<&str>) -> bool {
        let listed = |label: &str| self.values.iter().any(|value| value == label);
        let number = |text: &str| text.parse::<i64>().ok();
        match (self.operator, label) {
            (Operator::Exists, label) => label.is_some(),
            (Operator::DoesNotExist, label) => label.is_none(),
            (Operator::Equals | Operator::DoubleEquals | Operator::In, label) => label.is_some_and(listed),
            (Operator::NotEquals | Operator::NotIn, label) => !label.is_some_and(listed),
            (Operator::GreaterThan | Operator::LessThan, None) => false,
            (operator, Some(label)) => match (number(label), self.values.first().and_then(|value| number(value))) {
                (Some(label), Some(bound)) if operator == Operator::GreaterThan => label > bound,
                (Some(label), Some(bound)) => label < bound,
                _ => false,
            },
        }
    }
}

fn check_key(key: &str) -> Result<(), String> {
    let why = name::qualified(key);
    // Upstream's path for a selector that is not in an object is `<nil>`.
    if why.is_empty() { Ok(()) } else { Err(format!("<nil>: Invalid value: {key:?}: {}", why.join("; "))) }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Requirement { key, operator, values } = self;
        let values = values.join(",");
        match operator {
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// A recursive descent parser. `in` and `notin` are operators or plain words, depending on their position.
struct Parser<'a> {
    lexer: Lexer<'a>,
    peeked: Option<Token<'a>>,
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> Token<'a> {
        let token = self.peeked.take().unwrap_or_else(|| self.lexer.next_token());
        self.peeked = Some(token);
        token
    }

    fn next(&mut self) -> Token<'a> {
        self.peeked.take().unwrap_or_else(|| self.lexer.next_token())
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::End => return Ok(requirements),
                Token::Word(_) | Token::Not => {}
                other => return Err(format!("found '{other}', expected: !, identifier, or 'end of string'")),
            }
            let requirement = self.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?;
            requirements.push(requirement);
            match self.next() {
                Token::End => return Ok(requirements),
                Token::Comma => match self.peek() {
                    Token::Word(_) | Token::Not => {}
                    other => return Err(format!("found '{other}', expected: identifier after ','")),
                },
                other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut token = self.next();
        let negated = token == Token::Not;
        if negated {
            token = self.next();
        }
        let Token::Word(key) = token else {
            return Err(format!("found '{token}', expected: identifier"));
        };
        check_key(key)?;
        if negated {
            return Requirement::new(key.to_owned(), Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Requirement::new(key.to_owned(), Operator::Exists, Vec::new());
        }
        let operator = match self.next() {
            Token::Word("in") => Operator::In,
            Token::Word("notin") => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::GreaterThan => Operator::GreaterThan,
            Token::LessThan => Operator::LessThan,
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        Requirement::new(key.to_owned(), operator, values)
    }

    fn exact_value(&mut self) -> Result<String, String> {
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            Token::Word(value) => Ok(value.to_owned()),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    /// Parses `(a,b)`. A missing value is the empty value, even in `()`.
    fn values(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            Token::Open => {}
            other => return Err(format!("found '{other}' expected: '('")),
        }
        match self.peek() {
            Token::Word(_) | Token::Comma | Token::Close => {}
            other => return Err(format!("found '{other}', expected: ',', ')' or identifier")),
        }
        let mut values = Vec::new();
        loop {
            let value = match self.peek() {
                Token::Word(word) => {
                    self.next();
                    word
                }
                Token::Comma | Token::Close => "",
                other => return Err(format!("found '{other}', expected: ',', or identifier")),
            };
            values.push(value.to_owned());
            match self.next() {
                Token::Comma => {}
                Token::Close => return Ok(values),
                other => return Err(format!("found '{other}', expected: ',' or ')'")),
            }
        }
    }
}

/// A field selector: `status.phase=Running,spec.nodeName!=n1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    pub field: String,
    pub negated: bool,
    pub value: String,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<FieldSelector, String> {
        let mut requirements = Vec::new();
        for term in split_terms(text).into_iter().filter(|term| !term.is_empty()) {
            let (field, negated, value) =
                split_term(term).ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{term}'"))?;
            requirements.push(FieldRequirement { field: field.to_owned(), negated, value: unescape(value)? });
        }
        Ok(FieldSelector { requirements })
    }

    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object with these field values matches.
    pub fn matches<T: AsRef<str>>(&self, mut value_of: impl FnMut(&str) -> T) -> bool {
        self.requirements.iter().all(|wanted| (value_of(&wanted.field).as_ref() == wanted.value) != wanted.negated)
    }

    /// Returns the only value that `field` may have, if the selector requires one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        let found = self.requirements.iter().find(|wanted| wanted.field == field && !wanted.negated)?;
        Some(&found.value)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, FieldRequirement { field, negated, value }) in self.requirements.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if *negated { "!=" } else { "=" };
            write!(f, "{comma}{field}{operator}{}", escape(value))?;
        }
        Ok(())
    }
}

/// Splits at commas that are not escaped with a backslash.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Splits a term into the field, whether the value must differ, and the escaped value.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.char_indices().map(|(at, _)| at).find(|at| {
        let rest = &term[*at..];
        rest.starts_with("!=") || rest.starts_with('=')
    })?;
    let (field, rest) = term.split_at(at);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((field, true, value));
    }
    Some((field, false, rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?))
}

fn unescape(value: &str) -> Result<String, String> {
    let bad = |sequence: String| format!("invalid field selector: invalid escape sequence: {sequence}");
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                Some(next) => return Err(bad(format!("\\{next}"))),
                None => return Err(bad("\\".to_owned())),
            },
            ',' | '=' => return Err(format!("invalid field selector: unescaped character in value: {}", char as u32)),
            other => out.push(other),
        }
    }
    Ok(out)
}

fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for char in value.chars() {
        if matches!(char, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(char);
    }
    out
}

/// Returns the value at a dotted path as text, which most field selectors compare.
pub fn plain_field(object: &Value, field: &str) -> String {
    let path: Vec<&str> = field.split('.').collect();
    match object.at(&path) {
        Some(Value::String(text)) => text.to_string(),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests;
