//! Lets redb check its file before the store is served.
//!
//! The store reads and verifies all rows when it opens, but redb's file has other data: free space, and pages to be
//! freed. Damage there appears only when redb writes or closes, and then it may end the process. So redb checks its
//! file first. The check runs on an overlay: if it finds damage, redb falls back to an older commit, and that change
//! must never reach the file.

use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

const BLOCK: usize = 4096;
const BLOCK_BYTES: u64 = BLOCK as u64;

/// A storage backend on top of another one. Reads come from below; writes stay in memory.
#[derive(Debug)]
pub(crate) struct Overlay {
    below: Box<dyn StorageBackend>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    len: u64,
    /// How many bytes of the backend below are still valid. After a truncation the bytes behind it must read as zero.
    below_len: u64,
    /// Blocks that were written, by block number.
    written: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

impl Overlay {
    pub fn new(below: Box<dyn StorageBackend>) -> io::Result<Overlay> {
        let len = below.len()?;
        let state = State { len, below_len: len, written: BTreeMap::new() };
        Ok(Overlay { below, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a block from below. Bytes behind `below_len` are zero.
    fn read_below(&self, state: &State, number: u64) -> io::Result<Box<[u8; BLOCK]>> {
        let mut block = Box::new([0; BLOCK]);
        let start = number * BLOCK_BYTES;
        let there = usize::try_from(state.below_len.saturating_sub(start)).unwrap_or(BLOCK).min(BLOCK);
        if there > 0 {
            self.below.read(start, &mut block[..there])?;
        }
        Ok(block)
    }
}

/// Splits a range of the file into blocks: for each the block number, the offset in the block, and the range in the
/// caller's buffer.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = usize::try_from(at % BLOCK_BYTES).unwrap_or(0);
        let size = (len - done).min(BLOCK - within);
        let part = done..done + size;
        done += size;
        (size > 0).then_some((at / BLOCK_BYTES, within, part))
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.lock();
        let end = offset.saturating_add(out.len() as u64);
        if end > state.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Fast path: usually nothing was written, and large pieces are read.
        if end <= state.below_len && state.written.range(offset / BLOCK_BYTES..=end / BLOCK_BYTES).next().is_none() {
            return self.below.read(offset, out);
        }
        for (number, within, part) in parts(offset, out.len()) {
            let size = part.len();
            match state.written.get(&number) {
                Some(block) => out[part].copy_from_slice(&block[within..within + size]),
                None => out[part].copy_from_slice(&self.read_below(&state, number)?[within..within + size]),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.below_len = state.below_len.min(len);
        if len < state.len {
            // Bytes that were cut off read as zero if the file grows again.
            state.written.retain(|number, block| {
                let kept = usize::try_from(len.saturating_sub(number * BLOCK_BYTES)).unwrap_or(BLOCK).min(BLOCK);
                block[kept..].fill(0);
                kept > 0
            });
        }
        state.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        for (number, within, part) in parts(offset, data.len()) {
            let size = part.len();
            if !state.written.contains_key(&number) {
                let block = self.read_below(&state, number)?;
                state.written.insert(number, block);
            }
            let block = state.written.get_mut(&number).expect("the block was inserted above");
            block[within..within + size].copy_from_slice(&data[part]);
        }
        state.len = state.len.max(offset + data.len() as u64);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        SetLen(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..20_000u64, proptest::collection::vec(any::<u8>(), 1..9_000))
                .prop_map(|(at, data)| Step::Write(at, data)),
            (0..30_000u64).prop_map(Step::SetLen),
        ]
    }

    fn bytes(backend: &dyn StorageBackend) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(backend.len().unwrap()).unwrap()];
        backend.read(0, &mut bytes).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn an_overlay_behaves_like_a_copy_and_does_not_change_the_backend_below(
            before in proptest::collection::vec(any::<u8>(), 0..20_000),
            steps in proptest::collection::vec(step(), 0..12),
            pieces in proptest::collection::vec((0..30_000u64, 0..9_000usize), 0..8),
        ) {
            let below = std::sync::Arc::new(crate::suite::Crashable::from_image(before.clone()));
            let overlay = Overlay::new(crate::Medium::open(&*below).unwrap()).unwrap();
            let model = InMemoryBackend::new();
            model.set_len(before.len() as u64).unwrap();
            model.write(0, &before).unwrap();
            for step in steps {
                match step {
                    Step::Write(at, data) => {
                        let end = at + data.len() as u64;
                        if end > model.len().unwrap() {
                            model.set_len(end).unwrap();
                        }
                        model.write(at, &data).unwrap();
                        overlay.write(at, &data).unwrap();
                    }
                    Step::SetLen(len) => {
                        model.set_len(len).unwrap();
                        overlay.set_len(len).unwrap();
                    }
                }
            }
            let wanted = bytes(&model);
            prop_assert!(bytes(&overlay) == wanted);
            for (at, len) in pieces {
                let mut piece = vec![0; len];
                let end = usize::try_from(at).unwrap() + len;
                match overlay.read(at, &mut piece) {
                    Ok(()) => prop_assert!(piece == wanted[end - len..end]),
                    Err(_) => prop_assert!(end > wanted.len()),
                }
            }
            prop_assert!(below.bytes() == before);
        }
    }
}
