//! A log line, and its two formats.

use std::fmt::Debug;
use tracing::Level;
use tracing::field::{Field, Visit};

/// A log line. Its time is added when it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub level: Level,
    pub target: String,
    pub message: String,
    pub fields: Vec<(&'static str, Value)>,
    /// How often it was logged again without being printed.
    pub repeated: u64,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    Text(String),
    Number(serde_json::Number),
    Flag(bool),
}

/// Collects the message and fields of an event.
#[derive(Default)]
pub struct Fields {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.fields.push((field.name(), value));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.add(field, Value::Text(text));
        }
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_owned();
        } else {
            self.add(field, Value::Text(value.to_owned()));
        }
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::Flag(value));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::Number(value.into()));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::Number(value.into()));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinity.
        let number = serde_json::Number::from_f64(value).map_or_else(|| Value::Text(value.to_string()), Value::Number);
        self.add(field, number);
    }
}

impl Line {
    pub fn new(level: Level, target: &str, fields: Fields) -> Line {
        Line { level, target: target.to_owned(), message: fields.message, fields: fields.fields, repeated: 0 }
    }

    /// `TIME LEVEL target: message name=value`. Control characters are escaped, so that a value from a client cannot
    /// fake a line.
    pub fn text(&self, colours: bool) -> String {
        let level = format!("{:>5}", self.level);
        let level = if colours { format!("\x1b[{}m{level}\x1b[0m", colour(self.level)) } else { level };
        let mut text = format!("{} {level} {}: ", now(), self.target);
        escape(&self.message, &mut text);
        for (name, value) in &self.fields {
            text.push_str(&format!(" {name}="));
            match value {
                Value::Text(value) => {
                    text.push('"');
                    escape(&value.replace('\\', "\\\\").replace('"', "\\\""), &mut text);
                    text.push('"');
                }
                Value::Number(number) => text.push_str(&number.to_string()),
                Value::Flag(flag) => text.push_str(&flag.to_string()),
            }
        }
        if self.repeated > 0 {
            text.push_str(&format!(" repeated={}", self.repeated));
        }
        text.push('\n');
        text
    }

    /// One JSON object. Fields are members next to `time`, `level`, `target` and `message`.
    pub fn json(&self) -> String {
        let mut object = serde_json::Map::new();
        for (name, value) in &self.fields {
            let value = match value {
                Value::Text(text) => text.as_str().into(),
                Value::Number(number) => serde_json::Value::Number(number.clone()),
                Value::Flag(flag) => (*flag).into(),
            };
            object.insert((*name).to_owned(), value);
        }
        if self.repeated > 0 {
            object.insert("repeated".to_owned(), self.repeated.into());
        }
        let level = self.level.to_string().to_ascii_lowercase();
        for (name, value) in
            [("time", now()), ("level", level), ("target", self.target.clone()), ("message", self.message.clone())]
        {
            object.insert(name.to_owned(), value.into());
        }
        format!("{}\n", serde_json::Value::Object(object))
    }
}

fn now() -> String {
    let now = jiff::Timestamp::now();
    format!("{now:.6}")
}

fn colour(level: Level) -> u8 {
    match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        Level::DEBUG => 34,
        Level::TRACE => 35,
    }
}

fn escape(value: &str, text: &mut String) {
    for c in value.chars() {
        if c.is_control() {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(fields: Vec<(&'static str, Value)>) -> Line {
        Line {
            level: Level::WARN,
            target: "server::http".to_owned(),
            message: "cannot accept".to_owned(),
            fields,
            repeated: 0,
        }
    }

    #[test]
    fn a_text_line_stays_one_line() {
        let bad = Value::Text("a\nb \"c\" \u{1b}[31m".to_owned());
        let text =
            line(vec![("error", bad), ("tries", Value::Number(3.into())), ("last", Value::Flag(true))]).text(false);
        let (_, rest) = text.split_once(' ').unwrap();
        assert_eq!(rest, " WARN server::http: cannot accept error=\"a\\nb \\\"c\\\" \\u{1b}[31m\" tries=3 last=true\n");
        assert!(line(Vec::new()).text(true).contains("\u{1b}[33m WARN\u{1b}[0m server::http"));
    }

    #[test]
    fn a_json_line_has_its_fields_as_members() {
        let fields = vec![("error", Value::Text("a\n\"b\"".to_owned())), ("code", Value::Number(503.into()))];
        let json = Line { repeated: 7, ..line(fields) }.json();
        let mut read: serde_json::Value = serde_json::from_str(&json).unwrap();
        read["time"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        read["time"] = "".into();
        assert_eq!(
            read,
            serde_json::json!({"time": "", "level": "warn", "target": "server::http", "message": "cannot accept", "error": "a\n\"b\"", "code": 503, "repeated": 7})
        );
        assert_eq!(json.matches('\n').count(), 1);
    }
}
