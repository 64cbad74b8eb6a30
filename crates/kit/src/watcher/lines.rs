//! Splits the body of a watch into lines and parses their frames.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Reads a body in whole lines.
pub struct Lines<B = Body> {
    body: B,
    /// The beginning of a line whose end was not received yet.
    partial: BytesMut,
}

impl<B: http_body::Body<Data = Bytes> + Unpin> Lines<B> {
    pub fn new(body: B) -> Lines<B> {
        Lines { body, partial: BytesMut::new() }
    }

    /// Returns the next lines, each with its newline; `None` at the end. Chunks of whole lines are not
    /// copied.
    pub async fn next(&mut self) -> Result<Option<Bytes>, B::Error> {
        while let Some(frame) = self.body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            let Some(end) = data.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1) else {
                self.partial.extend_from_slice(&data);
                continue;
            };
            let whole = if self.partial.is_empty() {
                data.slice(..end)
            } else {
                self.partial.extend_from_slice(&data[..end]);
                self.partial.split().freeze()
            };
            self.partial.extend_from_slice(&data[end..]);
            return Ok(Some(whole));
        }
        Ok(None)
    }
}

/// Iterates over the non-empty lines of a text, without newlines.
pub fn each(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = memchr::memchr_iter(b'\n', text).chain([text.len()]);
    let lines = ends.scan(0, |start, end| Some(&text[std::mem::replace(start, end + 1)..end]));
    lines.filter(|line| !line.is_empty())
}

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum EventType {
    #[serde(rename = "ADDED", alias = "MODIFIED")]
    Apply,
    #[serde(rename = "DELETED")]
    Delete,
    #[serde(rename = "BOOKMARK")]
    Bookmark,
    #[serde(rename = "ERROR")]
    Error,
}

/// Returns the type of an event and the JSON text of its object.
pub fn event(line: &[u8]) -> Result<(EventType, &[u8]), serde_json::Error> {
    if let Some(found) = in_go_layout(line) {
        return Ok(found);
    }
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(rename = "type")]
        event_type: EventType,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let event: Event = object::value::from_bytes(line)?;
    Ok((event.event_type, event.object.get().as_bytes()))
}

/// Parses the layout that Go servers write, which avoids a search for the end of the object.
fn in_go_layout(line: &[u8]) -> Option<(EventType, &[u8])> {
    let rest = line.strip_prefix(b"{\"type\":\"")?;
    let after = |word: &[u8]| rest.strip_prefix(word)?.strip_prefix(b"\",\"object\":")?.strip_suffix(b"}");
    let event_type = [
        (b"MODIFIED".as_slice(), EventType::Apply),
        (b"ADDED", EventType::Apply),
        (b"DELETED", EventType::Delete),
        (b"BOOKMARK", EventType::Bookmark),
        (b"ERROR", EventType::Error),
    ];
    event_type.into_iter().find_map(|(word, event_type)| Some((event_type, after(word)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Frame;
    use http_body_util::StreamBody;

    #[test]
    fn a_text_has_as_many_lines_as_are_not_empty() {
        for (text, lines) in [("", vec![]), ("\n", vec![]), ("one", vec!["one"]), ("one\n\ntwo\n", vec!["one", "two"])]
        {
            let found: Vec<&str> = each(text.as_bytes()).map(|line| std::str::from_utf8(line).unwrap()).collect();
            assert_eq!(found, lines, "{text:?}");
        }
    }

    #[test]
    fn events_are_read_in_any_layout() {
        for (line, event_type) in [
            (r#"{"type":"ADDED","object":{"a":1}}"#, EventType::Apply),
            (r#"{"type":"MODIFIED","object":{"a":1}}"#, EventType::Apply),
            (r#"{"type":"DELETED","object":{"a":1}}"#, EventType::Delete),
            (r#"{"type":"BOOKMARK","object":{"a":1}}"#, EventType::Bookmark),
            (r#"{"type":"ERROR","object":{"a":1}}"#, EventType::Error),
            (r#"{ "object": {"a":1}, "type": "MODIFIED" }"#, EventType::Apply),
            (r#"{"type":"DELETED", "object":{"a":1} } "#, EventType::Delete),
        ] {
            assert_eq!(event(line.as_bytes()).unwrap(), (event_type, br#"{"a":1}"#.as_slice()), "{line}");
        }
        for line in ["", "{", r#"{"type":"SOMETHING","object":{}}"#, r#"{"type":"ADDED"}"#] {
            assert!(event(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[tokio::test]
    async fn lines_are_whole_however_they_come() {
        let pieces = ["one\ntw", "o", "\nthree\n", "four\n", "fi", "ve"];
        let frames = pieces.map(|piece| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(piece.as_bytes()))));
        let mut lines = Lines::new(StreamBody::new(futures::stream::iter(frames)));
        let mut read = Vec::new();
        while let Some(text) = lines.next().await.unwrap() {
            read.push(String::from_utf8(text.to_vec()).unwrap());
        }
        assert_eq!(read, ["one\n", "two\nthree\n", "four\n"], "an unfinished line is not returned");
    }
}
