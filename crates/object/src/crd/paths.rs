//! Simple paths into a schema, as CEL rules' `fieldPath` and `selectableFields` write them: `.spec.color`, `.spec['a.b']`.

use super::node::Node;

/// Follows `path` through `node`. Returns the path in the form of error messages, and the node at its end.
pub fn resolve<'a>(path: &str, node: &'a Node, brackets: bool) -> Result<(String, &'a Node), String> {
    let (mut rest, mut at, mut shown) = (path, node, String::new());
    while !rest.is_empty() {
        let name;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            if end == 0 {
                return Err("unexpected end of JSON path".to_owned());
            }
            name = after[..end].to_owned();
            rest = &after[end..];
        } else if rest.starts_with('[') {
            if !brackets {
                return Err("array notation is not allowed".to_owned());
            }
            (name, rest) = quoted(rest)?;
        } else {
            let end = rest.find(['.', '[', ']']).filter(|end| *end > 0).unwrap_or(rest.len());
            return Err(format!("expected [ or . but got: {}", &rest[..end]));
        }
        at = if let Some(property) = at.properties.get(&name) {
            shown.push('.');
            shown.push_str(&name);
            property
        } else if let (true, Some(values)) = (at.properties.is_empty(), at.additional.node()) {
            shown.push_str(&format!("[{name}]"));
            values
        } else {
            return Err("does not refer to a valid field".to_owned());
        };
    }
    Ok((shown.trim_start_matches('.').to_owned(), at))
}

/// Reads `['name']` at the start of `rest`. Returns the name and the text after it.
fn quoted(rest: &str) -> Result<(String, &str), String> {
    let inside = rest.strip_prefix("['").ok_or("expected single quoted string")?;
    let mut name = String::new();
    let mut characters = inside.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some((_, escaped @ ('\'' | '\\'))) => name.push(escaped),
                Some((_, 'n')) => name.push('\n'),
                Some((_, 't')) => name.push('\t'),
                Some((_, other)) => return Err(format!("invalid string literal: invalid escape char \\{other}")),
                None => break,
            },
            '\'' => {
                let after = inside[at + 1..].strip_prefix(']').ok_or("expected ]")?;
                return Ok((name, after));
            }
            _ => name.push(character),
        }
    }
    Err("unexpected end of JSON path".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn paths_follow_fields_and_quoted_keys() {
        let node = Node::parse(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"color": {"type": "string"}, "a.b": {"type": "integer"}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }}));
        let shown = |path: &str| resolve(path, &node, true).map(|(shown, _)| shown);
        assert_eq!(shown(".spec.color").unwrap(), "spec.color");
        assert_eq!(shown(".spec['a.b']").unwrap(), "spec.a.b");
        assert_eq!(shown(".labels['x']").unwrap(), "labels[x]");
        assert_eq!(shown(".spec.colour").unwrap_err(), "does not refer to a valid field");
        assert_eq!(shown("spec").unwrap_err(), "expected [ or . but got: spec");
        assert_eq!(shown(".spec.").unwrap_err(), "unexpected end of JSON path");
        assert_eq!(shown(".spec['a").unwrap_err(), "unexpected end of JSON path");
        assert!(resolve(".spec['a.b']", &node, false).is_err());
    }

    proptest::proptest! {
        #[test]
        fn never_panics(path in "[.\\[\\]'\\\\a-cä]{0,16}") {
            let node = Node::parse(&json!({"properties": {"a": {"additionalProperties": {"type": "string"}}}}));
            let _ = resolve(&path, &node, true);
        }
    }
}
