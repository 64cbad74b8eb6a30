//! Short accessors for nested JSON values. They never panic: an absent member reads as empty.

use crate::{Map, Value};

/// Reading and writing nested members of a [`Value`] by a path of keys.
pub trait Access {
    /// The member at `path`; absent and `null` are both `None`.
    fn at(&self, path: &[&str]) -> Option<&Value>;
    /// Returns the member at `path`. Missing parents are created as objects; parents that are not objects are replaced.
    fn entry(&mut self, path: &[&str]) -> &mut Value;
    /// Removes and returns the member at `path`.
    fn cut(&mut self, path: &[&str]) -> Option<Value>;
    /// Sets the member at `path` to `value` when it is absent, null, or an empty string.
    fn default_to(&mut self, path: &[&str], value: impl Into<Value>);

    /// Returns the string at `path`, or `""`.
    fn text(&self, path: &[&str]) -> &str {
        self.at(path).and_then(Value::as_str).unwrap_or("")
    }
    /// The integer at `path`.
    fn int(&self, path: &[&str]) -> Option<i64> {
        self.at(path).and_then(Value::as_i64)
    }
    /// The boolean at `path`, false when absent.
    fn flag(&self, path: &[&str]) -> bool {
        self.at(path).and_then(Value::as_bool).unwrap_or(false)
    }
    /// The elements of the list at `path`, empty when absent.
    fn items(&self, path: &[&str]) -> &[Value] {
        self.at(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
    /// The members of the object at `path`, empty when absent.
    fn members(&self, path: &[&str]) -> &Map {
        static EMPTY: std::sync::LazyLock<Map> = std::sync::LazyLock::new(Map::new);
        self.at(path).and_then(Value::as_object).unwrap_or(&EMPTY)
    }
    /// Whether there is a non-null member at `path`.
    fn has(&self, path: &[&str]) -> bool {
        self.at(path).is_some()
    }
    /// Sets the member at `path`.
    fn put(&mut self, path: &[&str], value: impl Into<Value>) {
        *self.entry(path) = value.into();
    }
}

impl Access for Value {
    fn at(&self, path: &[&str]) -> Option<&Value> {
        let found = path.iter().try_fold(self, |value, key| value.as_object()?.get(*key))?;
        (!found.is_null()).then_some(found)
    }

    fn entry(&mut self, path: &[&str]) -> &mut Value {
        path.iter().fold(self, |value, key| {
            if !value.is_object() {
                *value = Value::Object(Map::new());
            }
            let Value::Object(members) = value else { unreachable!("the value was made an object above") };
            members.entry(*key).or_insert(Value::Null)
        })
    }

    fn cut(&mut self, path: &[&str]) -> Option<Value> {
        let (last, parents) = path.split_last()?;
        let parent = parents.iter().try_fold(self, |value, key| value.as_object_mut()?.get_mut(*key))?;
        parent.as_object_mut()?.remove(*last)
    }

    fn default_to(&mut self, path: &[&str], value: impl Into<Value>) {
        let unset = match self.at(path) {
            None => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        };
        if unset {
            self.put(path, value);
        }
    }
}

pub use crate::well_known::SIMULATED;

// Accessors for an object's identity.

/// `metadata.name`, or `""`.
pub fn name(object: &Value) -> &str {
    object.text(&["metadata", "name"])
}

/// `metadata.namespace`, or `""`.
pub fn namespace(object: &Value) -> &str {
    object.text(&["metadata", "namespace"])
}

/// `metadata.uid`, or `""`.
pub fn uid(object: &Value) -> &str {
    object.text(&["metadata", "uid"])
}

/// Whether the object has a deletion timestamp.
pub fn terminating(object: &Value) -> bool {
    object.has(&["metadata", "deletionTimestamp"])
}

/// Returns the owner reference with `controller: true`.
pub fn controller(object: &Value) -> Option<&Value> {
    object.items(&["metadata", "ownerReferences"]).iter().find(|owner| owner.flag(&["controller"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn absent_members_read_as_empty() {
        let object = json!({"spec": {"replicas": 3, "nothing": null}});
        assert_eq!(object.int(&["spec", "replicas"]), Some(3));
        assert!(!object.has(&["spec", "nothing"]));
        assert_eq!(object.text(&["spec", "replicas", "deeper"]), "");
        assert!(object.items(&["status", "conditions"]).is_empty());
    }

    #[test]
    fn writing_creates_parents_and_defaulting_keeps_existing_values() {
        let mut object = json!({});
        object.put(&["spec", "replicas"], 1);
        object.default_to(&["spec", "replicas"], 9);
        object.default_to(&["spec", "policy"], "Retain");
        assert_eq!(object, json!({"spec": {"replicas": 1, "policy": "Retain"}}));
        assert_eq!(object.cut(&["spec", "policy"]), Some(json!("Retain")));
        assert_eq!(object.cut(&["absent", "policy"]), None);
    }
}
