//! kubectl's JSONPath, as printer columns use it: `.spec.x`, `['a.b']`, `.a\.b`, `[0]`, `[-1]`, `[1:3]`, `[*]`, `.*`, `..x`,
//! `[?(@.type=="Ready")].status`.

use crate::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// All members or items.
    All,
    /// Start and end. A negative number counts from the end; an end of `None` is the end of the list.
    Slice(i64, Option<i64>),
    Index(i64),
    Filter(Filter),
    /// This value and everything below it.
    Descend,
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// Without an operator, the left side must exist.
    test: Option<(Operator, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// Parses a path, with or without `{}` around it and `$` before it. Returns `None` for an invalid path.
    pub fn parse(text: &str) -> Option<JsonPath> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(text).trim();
        let text = text.strip_prefix('$').unwrap_or(text);
        parse_steps(text).map(JsonPath)
    }

    /// Returns all values that the path selects, in order.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        self.0.iter().fold(vec![value], |found, step| found.into_iter().flat_map(|value| step.apply(value)).collect())
    }
}

impl Step {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Step::Field(name), Value::Object(members)) => members.get(name).into_iter().collect(),
            (Step::All, Value::Object(members)) => members.values().collect(),
            (Step::All, Value::Array(items)) => items.iter().collect(),
            (Step::Index(at), Value::Array(items)) => {
                position(*at, items.len()).and_then(|at| items.get(at)).into_iter().collect()
            }
            (Step::Slice(from, to), Value::Array(items)) => {
                let from = position(*from, items.len()).unwrap_or(0);
                let to = to.map_or(Some(items.len()), |to| position(to, items.len())).unwrap_or(0).min(items.len());
                items.get(from..to).into_iter().flatten().collect()
            }
            (Step::Filter(filter), Value::Array(items)) => items.iter().filter(|item| filter.holds(item)).collect(),
            (Step::Descend, value) => {
                let mut found = Vec::new();
                descend(value, &mut found);
                found
            }
            _ => Vec::new(),
        }
    }
}

fn position(at: i64, length: usize) -> Option<usize> {
    let at = if at < 0 { at + i64::try_from(length).ok()? } else { at };
    usize::try_from(at).ok()
}

fn descend<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    found.push(value);
    match value {
        Value::Object(members) => members.values().for_each(|member| descend(member, found)),
        Value::Array(items) => items.iter().for_each(|item| descend(item, found)),
        _ => {}
    }
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let Some(left) = self.left.value(item) else { return false };
        let Some((operator, right)) = &self.test else { return true };
        let Some(right) = right.value(item) else { return false };
        let order = match (left, right) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (a, b) => (a == b).then_some(std::cmp::Ordering::Equal),
        };
        match operator {
            Operator::Equal => order.is_some_and(|order| order.is_eq()),
            Operator::NotEqual => !order.is_some_and(|order| order.is_eq()),
            Operator::Less => order.is_some_and(|order| order.is_lt()),
            Operator::LessOrEqual => order.is_some_and(|order| order.is_le()),
            Operator::Greater => order.is_some_and(|order| order.is_gt()),
            Operator::GreaterOrEqual => order.is_some_and(|order| order.is_ge()),
        }
    }
}

impl Operand {
    fn value<'a>(&'a self, item: &'a Value) -> Option<&'a Value> {
        match self {
            Operand::Path(path) => path.find(item).first().copied(),
            Operand::Literal(value) => Some(value),
        }
    }
}

fn parse_steps(mut text: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    while !text.is_empty() {
        if let Some(rest) = text.strip_prefix("..") {
            steps.push(Step::Descend);
            text = rest;
            if !text.starts_with('[') {
                text = take_name(text, &mut steps)?;
            }
        } else if let Some(rest) = text.strip_prefix('.') {
            text = if rest.is_empty() || rest.starts_with('[') { rest } else { take_name(rest, &mut steps)? };
        } else if text.starts_with('[') {
            let end = closing(text)?;
            steps.extend(parse_brackets(text[1..end].trim())?);
            text = &text[end + 1..];
        } else {
            text = take_name(text, &mut steps)?;
        }
    }
    Some(steps)
}

/// Reads a field name. A backslash escapes the next character.
fn take_name<'a>(text: &'a str, steps: &mut Vec<Step>) -> Option<&'a str> {
    let mut name = String::new();
    let mut characters = text.char_indices();
    let mut end = text.len();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.push(characters.next()?.1),
            '.' | '[' | ']' | '{' | '}' | '(' | ')' => {
                end = at;
                break;
            }
            _ => name.push(character),
        }
    }
    match name.as_str() {
        "" => return None,
        "*" => steps.push(Step::All),
        _ => steps.push(Step::Field(name)),
    }
    Some(&text[end..])
}

/// Returns the position of the bracket that closes the one at the start of `text`. Brackets in quotes are ignored.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            (None, _) => {}
        }
    }
    None
}

fn parse_brackets(inside: &str) -> Option<Vec<Step>> {
    if inside == "*" {
        return Some(vec![Step::All]);
    }
    if let Some(filter) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return parse_filter(filter).map(|filter| vec![Step::Filter(filter)]);
    }
    if let Some(name) = unquote(inside) {
        return Some(vec![Step::Field(name)]);
    }
    if let Some((from, to)) = inside.split_once(':') {
        let number = |text: &str| text.trim().parse::<i64>().ok();
        let from = if from.trim().is_empty() { Some(0) } else { number(from) };
        let to = if to.trim().is_empty() { Some(None) } else { number(to).map(Some) };
        return Some(vec![Step::Slice(from?, to?)]);
    }
    inside.parse().ok().map(|index| vec![Step::Index(index)])
}

fn unquote(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let inside = text.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut name = String::new();
    let mut characters = inside.chars();
    while let Some(character) = characters.next() {
        name.push(if character == '\\' { characters.next()? } else { character });
    }
    Some(name)
}

fn parse_filter(text: &str) -> Option<Filter> {
    const OPERATORS: [(&str, Operator); 6] = [
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ];
    let mut quote = None;
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, _) => {
                if let Some((sign, operator)) = OPERATORS.iter().find(|(sign, _)| text[at..].starts_with(sign)) {
                    let (left, right) = (operand(&text[..at])?, operand(&text[at + sign.len()..])?);
                    return Some(Filter { left, test: Some((*operator, right)) });
                }
            }
        }
    }
    Some(Filter { left: operand(text)?, test: None })
}

fn operand(text: &str) -> Option<Operand> {
    let text = text.trim();
    if let Some(path) = text.strip_prefix('@') {
        return parse_steps(path).map(|steps| Operand::Path(JsonPath(steps)));
    }
    if let Some(literal) = unquote(text) {
        return Some(Operand::Literal(literal.into()));
    }
    serde_json::from_str(text).ok().map(Operand::Literal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn paths_select_the_same_values_as_in_kubectl() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "dotted"}, "name": "web"},
            "spec": {"replicas": 3, "ports": [80, 443, 8080]},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "weight": 2},
                {"type": "Synced", "status": "False", "weight": 5},
            ]},
        });
        let cases = [
            (".spec.replicas", json!([3])),
            ("{.spec.replicas}", json!([3])),
            ("$.metadata.name", json!(["web"])),
            (".metadata.annotations.a\\.b/c", json!(["dotted"])),
            (".metadata.annotations['a\\.b/c']", json!(["dotted"])),
            (".metadata.annotations['a.b/c']", json!(["dotted"])),
            (".spec.ports[0]", json!([80])),
            (".spec.ports[-1]", json!([8080])),
            (".spec.ports[7]", json!([])),
            (".spec.ports[1:]", json!([443, 8080])),
            (".spec.ports[0:2]", json!([80, 443])),
            (".spec.ports[*]", json!([80, 443, 8080])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Synced')].status", json!(["False"])),
            (".status.conditions[?(@.type!='Ready')].type", json!(["Synced"])),
            (".status.conditions[?(@.weight>2)].type", json!(["Synced"])),
            (".status.conditions[?(@.reason)].type", json!([])),
            (".status.conditions[*].type", json!(["Ready", "Synced"])),
            ("..weight", json!([2, 5])),
            (".spec.missing.deeper", json!([])),
            (".", json!([&object])),
        ];
        for (path, want) in cases {
            let parsed = JsonPath::parse(path).unwrap_or_else(|| panic!("{path} was not parsed"));
            assert_eq!(json!(parsed.find(&object)), want, "{path}");
        }
        for bad in [".a[", ".a[x]", ".a[?(@.b==)]", ".a..", ".a[1:x]", "a]"] {
            assert_eq!(JsonPath::parse(bad), None, "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(path in "[.$@*?()\\[\\]'\"\\\\{}=<>!:a-c0-9ä-]{0,24}") {
            if let Some(path) = JsonPath::parse(&path) {
                path.find(&json!({"a": [{"b": 1}, {"c": {"a": "x"}}]}));
            }
        }
    }
}
