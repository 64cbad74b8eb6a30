//! Encoding of stored objects: JSON after a small header with the position of the resourceVersion.
//!
//! The revision is known only at commit, so `encode` leaves it out and [`finish`] inserts it once. The resulting
//! bytes are the response to GET, LIST and WATCH.

use bytes::{BufMut, Bytes, BytesMut};
use object::Map;
use object::Value;
use store::Revision;

/// Encodes an object for the store, without its resourceVersion.
pub fn encode(object: &Value) -> Bytes {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(&[0; 4]);
    let mut offset = 0;
    let empty = Map::new();
    let members = object.as_object().unwrap_or(&empty);
    out.push(b'{');
    for (at, (key, value)) in members.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_json(&mut out, key);
        out.push(b':');
        match value {
            Value::Object(metadata) if key == "metadata" => offset = write_metadata(&mut out, metadata),
            value => write_json(&mut out, value),
        }
    }
    out.push(b'}');
    let offset = u32::try_from(offset).unwrap_or(0);
    out[..4].copy_from_slice(&offset.to_le_bytes());
    Bytes::from(out)
}

/// Writes the metadata with an empty resourceVersion first. Returns the position of the resourceVersion after the header.
fn write_metadata(out: &mut Vec<u8>, metadata: &Map) -> usize {
    out.extend_from_slice(b"{\"resourceVersion\":\"");
    let offset = out.len() - 4;
    out.push(b'"');
    for (key, value) in metadata.iter().filter(|(key, _)| *key != "resourceVersion") {
        out.push(b',');
        write_json(out, key);
        out.push(b':');
        write_json(out, value);
    }
    out.push(b'}');
    offset
}

fn write_json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("JSON values serialise to memory");
}

/// Inserts the revision into stored bytes. The store calls this once per version.
pub fn finish(stored: &Bytes, revision: Revision) -> Bytes {
    let Some((header, json)) = stored.split_at_checked(4) else { return stored.clone() };
    let offset = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let Some((before, after)) = json.split_at_checked(offset).filter(|_| offset > 0) else {
        return stored.slice(4..);
    };
    let mut out = BytesMut::with_capacity(json.len() + 20);
    out.put_slice(before);
    out.put_slice(revision.to_string().as_bytes());
    out.put_slice(after);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    #[test]
    fn the_revision_is_inserted_into_metadata_only() {
        let object = json!({
            "apiVersion": "v1",
            "data": {"resourceVersion": "\"resourceVersion\":\"\""},
            "metadata": {"annotations": {"a": "{\"resourceVersion\":\"\"}"}, "name": "x", "resourceVersion": "7"},
        });
        let mut want = object.clone();
        want["metadata"]["resourceVersion"] = json!("42");
        let bytes = finish(&encode(&object), 42);
        assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), want);
    }

    #[test]
    fn short_or_headerless_bytes_do_not_panic() {
        for bytes in [&b""[..], b"abc", b"\0\0\0\0", b"\xff\xff\xff\xff{}"] {
            finish(&Bytes::copy_from_slice(bytes), 1);
        }
    }
}
