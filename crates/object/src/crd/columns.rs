//! Printer columns of custom resources.

use super::jsonpath::JsonPath;
use crate::access::{Access, name};
use crate::table::{Column, NAME, since};
use crate::{Value, json};

/// The columns of one version: the name, then those of the definition, or the age.
pub struct Columns {
    pub headers: Vec<Column>,
    cells: Vec<Cell>,
}

struct Cell {
    kind: String,
    path: Option<JsonPath>,
}

impl Columns {
    /// Parses `additionalPrinterColumns`.
    pub fn parse(columns: &[Value]) -> Columns {
        let age = [json!({
            "name": "Age",
            "type": "date",
            "description": "The time since the object was created.",
            "jsonPath": ".metadata.creationTimestamp",
        })];
        let columns = if columns.is_empty() { &age } else { columns };
        let mut parsed = Columns { headers: vec![NAME], cells: Vec::new() };
        for column in columns {
            let path = column.text(&["jsonPath"]);
            let description = match column.text(&["description"]) {
                "" => format!("Custom resource definition column (in JSONPath format): {path}"),
                description => description.to_owned(),
            };
            parsed.headers.push(Column {
                name: column.text(&["name"]).to_owned().into(),
                kind: column.text(&["type"]).to_owned().into(),
                format: column.text(&["format"]).to_owned().into(),
                description: description.into(),
                priority: i32::try_from(column.int(&["priority"]).unwrap_or(0)).unwrap_or(i32::MAX),
            });
            parsed.cells.push(Cell { kind: column.text(&["type"]).to_owned(), path: JsonPath::parse(path) });
        }
        parsed
    }

    pub fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let cells = self.cells.iter().map(|cell| cell.value(object, now));
        std::iter::once(json!(name(object))).chain(cells).collect()
    }
}

impl Cell {
    /// Returns the first value that the path finds, formatted for the column's type, or null.
    fn value(&self, object: &Value, now: jiff::Timestamp) -> Value {
        let found = self.path.as_ref().map_or_else(Vec::new, |path| path.find(object));
        let Some(value) = found.first() else { return Value::Null };
        match (self.kind.as_str(), value) {
            ("string", value) => json!(go_text(value)),
            ("integer", Value::Number(number)) => match number.as_i64() {
                Some(_) => (*value).clone(),
                #[allow(clippy::cast_possible_truncation, reason = "integer columns show no fraction")]
                None => json!(number.as_f64().map_or(0, |number| number as i64)),
            },
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => (*value).clone(),
            ("date", Value::String(stamp)) => match stamp.parse::<jiff::Timestamp>() {
                Ok(_) => json!(since(stamp, now)),
                Err(_) => json!("<invalid>"),
            },
            _ => Value::Null,
        }
    }
}

/// Formats a value as Go prints it, because kubectl's users know string columns in this form.
fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_text).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(members) => {
            let members: Vec<String> =
                members.iter().map(|(key, member)| format!("{key}:{}", go_text(member))).collect();
            format!("map[{}]", members.join(" "))
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
