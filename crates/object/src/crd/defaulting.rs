//! Applies defaults, and removes unknown fields and nulls that are not allowed.

use super::node::{Additional, Node};
use crate::Value;
use crate::decode;
use crate::schema;
use crate::status::Status;

/// Prunes a whole custom resource and returns the paths of the removed fields. Its metadata is converted to the
/// built-in ObjectMeta.
pub fn prune_object(node: &Node, object: &mut Value) -> Result<Vec<String>, Status> {
    let mut walk = Prune { path: String::new(), removed: Vec::new() };
    walk.node(node, object, true)?;
    Ok(walk.removed)
}

/// Prunes a value that is not a whole resource, such as a default.
pub fn prune(node: &Node, value: &mut Value) -> Vec<String> {
    let mut walk = Prune { path: String::new(), removed: Vec::new() };
    // The only possible error is metadata of the wrong type, and validation reports that better.
    let _wrong_metadata = walk.node(node, value, node.embedded);
    walk.removed
}

/// Applies defaults, and removes nulls where they are not allowed. Idempotent.
pub fn fill(node: &Node, value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, property) in &node.properties {
                let is_unset = match members.get(name) {
                    None => true,
                    Some(Value::Null) => !property.nullable,
                    Some(_) => false,
                };
                match &property.default {
                    _ if !is_unset => {}
                    Some(default) => drop(members.insert(name.clone(), default.clone())),
                    None => drop(members.remove(name)),
                }
            }
            for (name, member) in members.iter_mut() {
                if let Some(child) = node.properties.get(name.as_str()).or_else(|| node.additional.node()) {
                    fill_null(child, member);
                    fill(child, member);
                }
            }
        }
        Value::Array(items) => {
            if let Some(child) = &node.items {
                for item in items {
                    fill_null(child, item);
                    fill(child, item);
                }
            }
        }
        _ => {}
    }
}

fn fill_null(node: &Node, value: &mut Value) {
    if let (Value::Null, false, Some(default)) = (&*value, node.nullable, &node.default) {
        *value = default.clone();
    }
}

struct Prune {
    path: String,
    removed: Vec<String>,
}

impl Prune {
    fn node(&mut self, node: &Node, value: &mut Value, is_resource: bool) -> Result<(), Status> {
        let length = self.path.len();
        match value {
            Value::Object(members) => {
                let mut strangers = Vec::new();
                for (name, member) in members.iter_mut() {
                    self.enter(name);
                    if is_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                        self.meta(name, member)?;
                    } else if let Some(child) = node.properties.get(name.as_str()).or_else(|| node.additional.node()) {
                        self.node(child, member, child.embedded)?;
                    } else if !node.preserve_unknown && !matches!(node.additional, Additional::Anything) {
                        self.removed.push(self.path.clone());
                        strangers.push(name.clone());
                    }
                    self.path.truncate(length);
                }
                for name in strangers {
                    members.remove(&name);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    let Some(child) = &node.items else { break };
                    self.path.push_str(&format!("[{index}]"));
                    self.node(child, item, child.embedded)?;
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn enter(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    /// Handles a resource's own fields: `apiVersion` and `kind` are kept, `metadata` is an ObjectMeta.
    fn meta(&mut self, name: &str, member: &mut Value) -> Result<(), Status> {
        if name == "metadata" && member.is_object() {
            let meta = schema::builtin_type("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
            for unknown in decode::conform(&meta, member)? {
                self.removed.push(format!("{}.{unknown}", self.path));
            }
        }
        Ok(())
    }
}
