//! Decodes bytes to values in one pass, and detects duplicate fields.

use super::trail::Trail;
use super::{DEPTH_MAX, Decoded, Duplicates};
use crate::status::Status;
use crate::value::{Key, Number};
use crate::{Map, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Maximum number of duplicate fields that are listed.
pub(super) const DUPLICATES_MAX: usize = 100;

/// Cost of a value in the budget, beside its text. A value takes at least two bytes of text, so a text without aliases
/// costs at most four times its length.
const NODE_COST: usize = 8;

/// Measured: about 25 KB per level in a debug build, twice that through aliases.
const YAML_STACK_BYTES: usize = 16 << 20;

pub(super) fn json(bytes: &[u8]) -> Result<Decoded, Status> {
    // Validate UTF-8 once for the whole text instead of once per string.
    let read = match std::str::from_utf8(bytes) {
        Ok(text) => read_json(serde_json::Deserializer::from_str(text)),
        Err(_) => read_json(serde_json::Deserializer::from_slice(bytes)),
    };
    read.map_err(|error| {
        let error = if bytes.is_empty() { "unexpected end of JSON input".to_owned() } else { error.to_string() };
        Status::bad_request(format!("couldn't get version/kind; json parse error: {error}"))
    })
}

fn read_json<'de>(
    mut source: serde_json::Deserializer<impl serde_json::de::Read<'de>>,
) -> Result<Decoded, serde_json::Error> {
    let mut state = ReadState { duplicates: Vec::new(), budget: usize::MAX };
    let value = Node { at: &Trail::Root, depth: 0, state: &mut state }.deserialize(&mut source)?;
    source.end()?;
    Ok(Decoded { value, duplicates: Duplicates { fields: state.duplicates, lines: Vec::new() } })
}

pub(super) fn yaml(bytes: &[u8]) -> Result<Decoded, Status> {
    let text = std::str::from_utf8(bytes).map_err(|_| refuse_yaml("the text is not valid UTF-8"))?;
    // The YAML decoder needs more stack per nesting level than a server thread has for the deepest documents, so it
    // runs on its own thread.
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().stack_size(YAML_STACK_BYTES).spawn_scoped(scope, || read_yaml(text));
        let reader =
            reader.map_err(|error| Status::unavailable(format!("cannot start a thread to decode YAML: {error}")))?;
        reader.join().map_err(|_| refuse_yaml("the document cannot be read"))?
    })
}

fn read_yaml(text: &str) -> Result<Decoded, Status> {
    let mut state = ReadState { duplicates: Vec::new(), budget: yaml_budget(text.len()) };
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, yaml_options(), |source| {
        Node { at: &Trail::Root, depth: 0, state: &mut state }.deserialize(source)
    });
    let value = read.map_err(|error| refuse_document(&error))?;
    let mut duplicates = Duplicates::default();
    if !state.duplicates.is_empty() {
        // Line numbers need memory for each node, so only a document with duplicates is parsed again to get them.
        let tree =
            serde_saphyr::from_str_with_options(text, yaml_options()).map_err(|error| refuse_document(&error))?;
        duplicates.lines = super::duplicates::lines(&tree);
    }
    Ok(Decoded { value, duplicates })
}

fn refuse_document(error: &serde_saphyr::Error) -> Status {
    match error.without_snippet() {
        serde_saphyr::Error::MultipleDocuments { .. } => {
            refuse_yaml("several documents in one request: send each object by itself")
        }
        error => refuse_yaml(&error.to_string().replace('\n', " ")),
    }
}

fn refuse_yaml(why: &str) -> Status {
    Status::bad_request(format!("error converting YAML to JSON: yaml: {why}"))
}

pub(super) fn only_objects(decoded: Decoded) -> Result<Decoded, Status> {
    if decoded.value.is_object() {
        return Ok(decoded);
    }
    let found = super::scalar::json_type(&decoded.value);
    Err(Status::bad_request(format!(
        "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go value of type object"
    )))
}

/// Returns the budget for the expanded size of a YAML text: enough for any real file, but it stops alias bombs.
fn yaml_budget(text_len: usize) -> usize {
    text_len.saturating_mul(4).saturating_add(1 << 20)
}

fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX + 1,
            max_events: 4_000_000,
            max_nodes: 2_000_000,
            // Our budget limits what aliases expand to. This ratio would also refuse valid files with many small
            // aliases.
            enforce_alias_anchor_ratio: false,
        },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        ignore_binary_tag_for_string: true,
        with_snippet: false,
    }
}

/// State of one decoding.
struct ReadState {
    duplicates: Vec<String>,
    /// Remaining budget. A YAML text is short, but its aliases may expand it.
    budget: usize,
}

impl ReadState {
    fn duplicate(&mut self, at: &Trail<'_>) {
        if self.duplicates.len() >= DUPLICATES_MAX {
            return;
        }
        let path = crate::field::shown_place(at);
        if !self.duplicates.contains(&path) {
            self.duplicates.push(path);
        }
    }

    fn spend<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.budget =
            self.budget.checked_sub(bytes).ok_or_else(|| E::custom("document contains excessive aliasing"))?;
        Ok(())
    }
}

/// The value that is being decoded.
struct Node<'a> {
    at: &'a Trail<'a>,
    depth: usize,
    state: &'a mut ReadState,
}

impl Node<'_> {
    fn deeper<E: Error>(&self) -> Result<usize, E> {
        if self.depth >= DEPTH_MAX { Err(E::custom("exceeded max depth")) } else { Ok(self.depth + 1) }
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        match (i64::try_from(value), u64::try_from(value)) {
            (Ok(value), _) => Ok(Value::from(value)),
            (_, Ok(value)) => Ok(Value::from(value)),
            _ => Err(E::custom(format!("number {value} is out of range"))),
        }
    }
    fn visit_u128<E: Error>(self, value: u128) -> Result<Value, E> {
        u64::try_from(value).map(Value::from).map_err(|_| E::custom(format!("number {value} is out of range")))
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom(format!("number {value} is not finite")))?;
        Ok(Value::Number(number))
    }
    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.state.spend(value.len())?;
        Ok(value.into())
    }
    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.state.spend(value.len())?;
        Ok(value.into())
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut source: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut items = Vec::new();
        loop {
            let at = &Trail::Item(self.at, items.len());
            self.state.spend(NODE_COST)?;
            match source.next_element_seed(Node { at, depth, state: &mut *self.state })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut members = Map::new();
        while let Some(key) = source.next_key::<Key>()? {
            self.state.spend(key.len() + NODE_COST)?;
            let at = &Trail::Entry(self.at, &key);
            let value = source.next_value_seed(Node { at, depth, state: &mut *self.state })?;
            if members.contains_key(&key) {
                self.state.duplicate(at);
            }
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }
}
