//! Files of the store with changes in them. The input says which: each four bytes are a place and what is done there.
//!
//! The store opens with what it held, or is refused in a sentence; it does not serve anything else.

use crate::Reader;
use bytes::Bytes;
use std::sync::Arc;
use store::suite::{Crashable, Image, finish};
use store::{Embedded, Operation, Options, Range, Store, Txn};

const INLINE: Options = Options { inline: true, bounds: store::Bounds { events_max: 100, bytes_max: 1 << 20 } };

type Contents = (u64, Vec<(String, Bytes, u64)>);

pub fn start() -> Box<dyn Reader> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (image, truth) = runtime.block_on(whole());
    let used = image.bytes.iter().rposition(|byte| *byte != 0).expect("something is in it");
    Box::new(move |input: &[u8]| read(&image, used, &truth, input))
}

async fn whole() -> (Image, Contents) {
    let disk = Crashable::default();
    let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).expect("a store");
    for at in 0..60u32 {
        let key: Arc<str> = format!("/key/{}", at * 7 % 25).into();
        let value = Bytes::from(format!("{at}-").repeat(usize::try_from(at * at).unwrap_or(0) % 3000 + 1));
        let operation = match at % 5 {
            4 => Operation::Delete { key, last: None },
            _ => Operation::Put { key, value, expires_at_s: (at % 7 == 0).then_some(9), memo: None },
        };
        store.txn(Txn { conditions: vec![], operations: vec![operation] }).await.expect("it is written");
    }
    let truth = contents(&*store);
    drop(store);
    (disk.kill(), truth)
}

fn contents(store: &dyn Store) -> Contents {
    let records = store.list(Range::default()).expect("a list").records;
    let rows = records.iter().map(|record| (record.key.to_string(), record.value.clone(), record.modified));
    (store.revision(), rows.collect())
}

fn read(image: &Image, used: usize, truth: &Contents, input: &[u8]) -> String {
    let mut bytes = image.bytes.clone();
    for change in input.chunks_exact(4).take(16) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
        // Small places are the header's, which deserves its share.
        let at = if change[2] & 0x80 == 0 { place % 512 } else { (place * 97 + usize::from(change[3])) % (used + 1) };
        match (bytes.get_mut(at), change[2] & 3) {
            (Some(byte), 0) => *byte ^= 1 << (change[3] & 7),
            (Some(byte), 1) => *byte = change[3],
            (Some(_), 2) => {
                let sector = at / 512 * 512;
                let end = (sector + 512).min(bytes.len());
                bytes[sector..end].fill(0);
            }
            (Some(_), _) if at > 0 => bytes.truncate(at),
            _ => {}
        }
    }
    let same = bytes == image.bytes;
    let damaged = Image { bytes, note: image.note.clone() };
    match Embedded::open_on(Arc::new(Crashable::from_image(damaged)), finish, INLINE) {
        Ok(store) => {
            assert!(contents(&*store) == *truth, "something else is served");
            "whole".to_owned()
        }
        Err(error) => {
            assert!(!same, "a store that was not touched is refused: {error}");
            error.to_string()
        }
    }
}
