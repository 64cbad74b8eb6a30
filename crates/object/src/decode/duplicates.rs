//! Duplicate keys of a YAML document, with their lines, in upstream's words.

use super::read::DUPLICATES_MAX;
use crate::value::Key;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::collections::HashSet;
use std::fmt;

/// The maps of a document, with the line of each value. Scalars are not kept.
pub(super) enum Tree {
    Scalar,
    List(Vec<Tree>),
    Map(Vec<(Key, Spanned<Tree>)>),
}

/// Returns one line per duplicate key, in the order of upstream's YAML reader: duplicates inside a value come before
/// the key of that value. The line number is that of the value's start.
pub(super) fn lines(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    collect(tree, &mut lines);
    if lines.len() > DUPLICATES_MAX {
        let more = lines.len() - DUPLICATES_MAX;
        lines.truncate(DUPLICATES_MAX);
        lines.push(format!("and {more} more"));
    }
    lines
}

fn collect(tree: &Tree, lines: &mut Vec<String>) {
    match tree {
        Tree::Scalar => {}
        Tree::List(items) => items.iter().for_each(|item| collect(item, lines)),
        Tree::Map(entries) => {
            let mut seen = HashSet::new();
            for (key, value) in entries {
                collect(&value.value, lines);
                if !seen.insert(key.as_str()) {
                    let line = value.referenced.line();
                    lines.push(format!("line {line}: key {:?} already set in map", key.as_str()));
                }
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Tree, D::Error> {
        source.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }
    fn visit_bool<E>(self, _: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }
    fn visit_i128<E>(self, _: i128) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }
    fn visit_u128<E>(self, _: u128) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }
    fn visit_str<E>(self, _: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }
    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }
    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }
    fn visit_some<D: Deserializer<'de>>(self, source: D) -> Result<Tree, D::Error> {
        source.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut source: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = source.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = source.next_key()? {
            entries.push((key, source.next_value()?));
        }
        Ok(Tree::Map(entries))
    }
}
