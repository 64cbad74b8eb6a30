//! The unknown and duplicate fields of a JSON document in the order of the document, as Kubernetes reports them for its own types.

use super::read::DUPLICATES_MAX;
use super::strict;
use super::trail::Trail;
use crate::field::SHORTENED;
use crate::value::Key;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::{BTreeSet, HashSet};
use std::fmt;

/// One sentence for each unknown or duplicate field. A field that is both is reported as unknown alone.
/// `unknown` are the paths of the unknown fields.
pub(super) fn sentences(json: &[u8], unknown: &[String]) -> Vec<String> {
    let mut found =
        Found { unknown: unknown.iter().map(String::as_str).collect(), sentences: Vec::new(), duplicates: 0 };
    let mut source = serde_json::Deserializer::from_slice(json);
    // The document was read before, so it is valid JSON.
    let _ = Walk { at: &Trail::Root, found: &mut found }.deserialize(&mut source);
    let Found { unknown, mut sentences, .. } = found;
    // Fields whose path was not found in the document.
    sentences.extend(unknown.into_iter().map(strict::unknown_field));
    sentences
}

struct Found<'a> {
    /// Unknown fields that have not been met yet.
    unknown: BTreeSet<&'a str>,
    sentences: Vec<String>,
    duplicates: usize,
}

impl Found<'_> {
    /// Whether a field is one of the unknown ones; then it is reported.
    fn meets_unknown(&mut self, at: &Trail<'_>, key: &str) -> bool {
        // The path of a field is formatted only if it may be the path of an unknown field. A shortened path does not end
        // with the key of its field.
        if !self.unknown.iter().any(|path| path.ends_with(key) || path.ends_with(SHORTENED)) {
            return false;
        }
        let path = crate::field::shown_place(at);
        let is_unknown = self.unknown.remove(path.as_str());
        if is_unknown {
            self.sentences.push(strict::unknown_field(&path));
        }
        is_unknown
    }
}

struct Walk<'a, 'f> {
    at: &'a Trail<'a>,
    found: &'a mut Found<'f>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut source: A) -> Result<(), A::Error> {
        let mut index = 0;
        while source.next_element_seed(Walk { at: &Trail::Item(self.at, index), found: &mut *self.found })?.is_some() {
            index += 1;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<(), A::Error> {
        let mut seen: HashSet<Key> = HashSet::new();
        let mut unknown: HashSet<Key> = HashSet::new();
        while let Some(key) = source.next_key::<Key>()? {
            let at = &Trail::Entry(self.at, &key);
            if unknown.contains(&key) || self.found.meets_unknown(at, &key) {
                unknown.insert(key.clone());
                source.next_value::<IgnoredAny>()?;
                continue;
            }
            if !seen.insert(key.clone()) && self.found.duplicates < DUPLICATES_MAX {
                let sentence = strict::duplicate_field(&crate::field::shown_place(at));
                if !self.found.sentences.contains(&sentence) {
                    self.found.sentences.push(sentence);
                    self.found.duplicates += 1;
                }
            }
            source.next_value_seed(Walk { at, found: &mut *self.found })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_reported_in_the_order_of_the_document_and_once() {
        let json =
            br#"{"b": {"x": 1, "x": 2, "u": {"y": 1, "y": 2}, "u": 3}, "a": [{"u": 1}, {"u": 2}], "b": 4, "b": 5}"#;
        let unknown = ["a[1].u", "b.u"].map(str::to_owned);
        assert_eq!(
            sentences(json, &unknown),
            ["duplicate field \"b.x\"", "unknown field \"b.u\"", "unknown field \"a[1].u\"", "duplicate field \"b\""]
        );
    }

    #[test]
    fn long_paths_are_shortened_as_everywhere() {
        let key = "ä".repeat(100_000);
        let json = format!(r#"{{"{key}": {{"u": 1, "u": 2}}, "x": {{"{key}": 1}}}}"#);
        let shown = crate::field::shown_place(&format_args!("x.{key}"));
        assert!(shown.ends_with("ä...") && shown.len() <= 1027, "{} bytes", shown.len());
        let found = sentences(json.as_bytes(), std::slice::from_ref(&shown));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("duplicate field \"ää") && found[0].ends_with("...\""), "{}", found[0]);
        assert_eq!(found[1], format!("unknown field {shown:?}"));
        let json = format!(r#"{{"{key}": {{"u": 1, "u": 2}}}}"#);
        let shown = crate::field::shown_place(&key);
        let found = sentences(json.as_bytes(), std::slice::from_ref(&shown));
        assert_eq!(found, [format!("unknown field {shown:?}")], "fields below an unknown field are not reported");
    }
}
