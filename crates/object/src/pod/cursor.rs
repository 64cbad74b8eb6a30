//! A value with its path, so that a check cannot read one field and report another. The path is built only for error
//! messages.

use crate::field::{ErrorKind, Errors, Path};
use crate::{Map, Value, json};

static ABSENT: Value = Value::Null;

/// A value in an object (lifetime `'v`) and its path (lifetime `'s`). Absent members are `null`.
pub(crate) struct Cursor<'v, 's> {
    value: &'v Value,
    step: Step<'v, 's>,
}

enum Step<'v, 's> {
    Root(&'s Path),
    Member(&'s Cursor<'v, 's>, &'s str),
    Item(&'s Cursor<'v, 's>, usize),
    Entry(&'s Cursor<'v, 's>, &'s str),
}

impl<'v, 's> Cursor<'v, 's> {
    pub fn new(value: &'v Value, path: &'s Path) -> Cursor<'v, 's> {
        Cursor { value, step: Step::Root(path) }
    }
    pub fn value(&self) -> &'v Value {
        self.value
    }
    pub fn path(&self) -> Path {
        match self.step {
            Step::Root(path) => path.clone(),
            Step::Member(parent, name) => parent.path().child(name),
            Step::Item(parent, index) => parent.path().index(index),
            Step::Entry(parent, key) => parent.path().key(key),
        }
    }

    /// A member: `spec` → `spec.replicas`.
    pub fn child<'c>(&'c self, name: &'c str) -> Cursor<'v, 'c> {
        Cursor { value: self.value.get(name).unwrap_or(&ABSENT), step: Step::Member(self, name) }
    }
    /// The elements of a list; empty if the value is not a list.
    pub fn items(&self) -> impl Iterator<Item = Cursor<'v, '_>> {
        self.list().iter().enumerate().map(|(index, value)| Cursor { value, step: Step::Item(self, index) })
    }
    /// The entries of a map with free keys; empty if the value is not a map.
    pub fn entries(&self) -> impl Iterator<Item = (&'v str, Cursor<'v, '_>)> {
        self.value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), Cursor { value, step: Step::Entry(self, key) }))
    }
    /// A map entry that may be absent.
    pub fn entry<'c>(&'c self, key: &'c str) -> Cursor<'v, 'c> {
        Cursor { value: self.value.get(key).unwrap_or(&ABSENT), step: Step::Entry(self, key) }
    }

    pub fn present(&self) -> bool {
        !self.value.is_null()
    }
    /// The text, `""` when absent.
    pub fn text(&self) -> &'v str {
        self.value.as_str().unwrap_or("")
    }
    /// The number, 0 when absent.
    pub fn int(&self) -> i64 {
        self.value.as_i64().unwrap_or(0)
    }
    pub fn flag(&self) -> bool {
        self.value.as_bool().unwrap_or(false)
    }
    pub fn list(&self) -> &'v [Value] {
        self.value.as_array().map_or(&[], Vec::as_slice)
    }
    pub fn map(&self) -> Option<&'v Map> {
        self.value.as_object()
    }
    pub fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(members) => members.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        }
    }

    pub fn required(&self, detail: &str, errors: &mut Errors) {
        errors.required(&self.path(), detail);
    }
    pub fn forbidden(&self, detail: &str, errors: &mut Errors) {
        errors.forbidden(&self.path(), detail);
    }
    /// Reports `Invalid value` with this value. An absent value is shown as an empty string.
    pub fn invalid(&self, detail: impl Into<String>, errors: &mut Errors) {
        let shown = if self.present() { self.value.clone() } else { json!("") };
        errors.invalid(&self.path(), shown, detail);
    }
    /// Reports `Invalid value` at this path, but shows another value.
    pub fn invalid_as(&self, shown: impl Into<Value>, detail: impl Into<String>, errors: &mut Errors) {
        errors.invalid(&self.path(), shown, detail);
    }
    pub fn duplicate(&self, shown: impl Into<Value>, errors: &mut Errors) {
        errors.duplicate(&self.path(), shown);
    }
    pub fn not_found(&self, detail: &str, errors: &mut Errors) {
        errors.push(ErrorKind::NotFound, &self.path(), Some(json!(self.text())), detail);
    }
    pub fn unsupported(&self, supported: &[&str], errors: &mut Errors) {
        errors.not_supported(&self.path(), self.text(), supported);
    }

    /// Reports each message of a name check.
    pub fn check(&self, wrong: Vec<String>, errors: &mut Errors) {
        for why in wrong {
            errors.invalid(&self.path(), self.text(), why);
        }
    }
    /// Reports an empty text as required; otherwise applies the check.
    pub fn required_name(&self, check: fn(&str) -> Vec<String>, errors: &mut Errors) {
        if self.text().is_empty() { self.required("", errors) } else { self.check(check(self.text()), errors) }
    }
    /// Applies the check if the text is not empty.
    pub fn optional_name(&self, check: fn(&str) -> Vec<String>, errors: &mut Errors) {
        if !self.text().is_empty() {
            self.check(check(self.text()), errors);
        }
    }
    /// Reports each of these members that is empty as required.
    pub fn required_members(&self, names: &[&str], errors: &mut Errors) {
        for name in names {
            let member = self.child(name);
            if member.is_empty() {
                member.required("", errors);
            }
        }
    }
    pub fn non_negative(&self, errors: &mut Errors) {
        if self.int() < 0 {
            self.invalid("must be greater than or equal to 0", errors);
        }
    }
    pub fn between(&self, least: i64, most: i64, errors: &mut Errors) {
        if !(least..=most).contains(&self.int()) {
            self.invalid_as(self.int(), format!("must be between {least} and {most}, inclusive"), errors);
        }
    }
    /// Checks a required enumeration.
    pub fn required_one_of(&self, supported: &[&str], errors: &mut Errors) {
        if self.text().is_empty() { self.required("", errors) } else { self.one_of(supported, errors) }
    }
    /// Checks an optional enumeration.
    pub fn one_of(&self, supported: &[&str], errors: &mut Errors) {
        if self.present() && !supported.contains(&self.text()) {
            self.unsupported(supported, errors);
        }
    }
}
