//! Writes values as YAML in the layout of `kubectl config`.

use serde_json::Value;

/// A document. Strings that may not read as text are quoted, so that every YAML 1.1 and 1.2 parser reads the same
/// value.
pub fn to_text(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(_) | Value::Array(_) if !is_empty(value) => block(value, 0, &mut text),
        _ => text.push_str(&format!("{}\n", scalar(value))),
    }
    text
}

/// The members of a value that is not empty. The first line is not indented: the caller has written what precedes it.
fn block(value: &Value, indent: usize, text: &mut String) {
    let mut is_first = true;
    let mut begin = |text: &mut String| {
        if !std::mem::take(&mut is_first) {
            text.push_str(&" ".repeat(indent));
        }
    };
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                begin(text);
                text.push_str(&plain_or_quoted(key));
                text.push(':');
                match member {
                    Value::Object(_) if !is_empty(member) => nested(member, indent + 2, text),
                    // Like kubectl, do not indent items more than their list.
                    Value::Array(_) if !is_empty(member) => nested(member, indent, text),
                    _ => text.push_str(&format!(" {}\n", scalar(member))),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                begin(text);
                text.push_str("- ");
                if is_empty(item) || !(item.is_object() || item.is_array()) {
                    text.push_str(&format!("{}\n", scalar(item)));
                } else {
                    block(item, indent + 2, text);
                }
            }
        }
        _ => {}
    }
}

fn nested(value: &Value, indent: usize, text: &mut String) {
    text.push('\n');
    text.push_str(&" ".repeat(indent));
    block(value, indent, text);
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// A value on one line: all values but objects and lists with members.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => plain_or_quoted(text),
        other => other.to_string(),
    }
}

fn plain_or_quoted(text: &str) -> String {
    const NOT_TEXT: [&str; 10] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./@:+=".contains(c))
        && !text.ends_with(':')
        && !NOT_TEXT.contains(&text.to_ascii_lowercase().as_str());
    if is_plain {
        return text.to_owned();
    }
    // A JSON string is a YAML string, except for the control characters that JSON does not escape.
    let json = Value::from(text).to_string();
    let escaped = json.chars().map(|c| if c.is_control() { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Value {
        let decoded =
            object::decode::yaml(text.as_bytes()).unwrap_or_else(|status| panic!("{}\n{text}", status.message));
        serde_json::to_value(decoded.value).unwrap()
    }

    #[test]
    fn written_values_can_be_read_back() {
        let odd = [
            "",
            " ",
            "yes",
            "No",
            "null",
            "~",
            "0644",
            "1e3",
            "1:30",
            "a: b",
            "a #b",
            "- a",
            "*a",
            "&a",
            "!a",
            "a:",
            "a\nb",
            "\u{1F600}",
            "\"",
            "'",
            "{}",
            "[a]",
            "%",
            "@a",
            "`",
            "=",
            "2026-01-01",
            "0x1F",
            ".inf",
            "a\u{7f}b",
            "<<",
            "|",
        ];
        let strings: Vec<Value> =
            odd.iter().map(|text| json!({"name": text, "more": [text, {"a": [[text]]}]})).collect();
        let mut value = json!({
            "apiVersion": "v1", "clusters": strings, "empty": {}, "none": [], "nested": {"a": {"b": {"c": null}}},
            "flag": true, "number": 7, "lists": [[1, 2], [[], {}], [{"a": 1, "b": 2}]],
        });
        for text in odd {
            value[text] = json!(1);
        }
        assert_eq!(read(&to_text(&value)), value, "{}", to_text(&value));
    }

    #[test]
    fn the_layout_is_that_of_kubectl() {
        let value = json!({"contexts": [{"context": {"cluster": "c", "user": "u@c"}, "name": "c"}], "kind": "Config"});
        let text = "contexts:\n- context:\n    cluster: c\n    user: u@c\n  name: c\nkind: Config\n";
        assert_eq!(to_text(&value), text);
    }
}
