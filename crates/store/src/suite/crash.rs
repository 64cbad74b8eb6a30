//! A simulated disk that can fail, fill up, and lose writes that were not synced.

use crate::Medium;
use redb::StorageBackend;
use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A medium in memory. Clones share the same bytes.
#[derive(Clone, Debug, Default)]
pub struct Crashable {
    state: Arc<Mutex<State>>,
    gate: Arc<Gate>,
}

/// A gate that tests close to hold syncs back.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<Passing>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Passing {
    held: bool,
    /// Number of syncs that reached the gate.
    syncs: usize,
}

impl Gate {
    fn lock(&self) -> std::sync::MutexGuard<'_, Passing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, waits: impl FnMut(&mut Passing) -> bool) {
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, waits);
        let (_guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the awaited change of the gate did not happen within 30 s");
    }

    fn change(&self, change: impl FnOnce(&mut Passing)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

/// The content of a disk: the bytes of the store, and the note (mark) beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub note: Vec<u8>,
}

impl From<Vec<u8>> for Image {
    fn from(bytes: Vec<u8>) -> Image {
        Image { bytes, note: Vec::new() }
    }
}

#[derive(Debug, Default)]
struct State {
    /// What reads return: the page cache.
    cached: Vec<u8>,
    /// What certainly survives a crash.
    synced: Vec<u8>,
    /// Changes since the last sync, which may or may not survive a crash.
    unsynced: Vec<Change>,
    /// All notes, newest last. Notes are never synced, so a crash may leave any of them.
    notes: Vec<Vec<u8>>,
    /// If recording is on: a crash image for each sync, taken just before it.
    images: Option<Images>,
    /// How many more blocks may be written for the first time. Blocks that were written before can be written again, as
    /// on most file systems.
    room_blocks: Option<usize>,
    /// Blocks that were written at least once.
    used: HashSet<u64>,
    /// All writes fail, as on a full copy-on-write file system.
    stuck: bool,
    /// This many syncs succeed before one fails.
    syncs_left: Option<usize>,
    /// Only one sync fails. Its data is never written to the disk, but stays in the cache.
    fails_once: bool,
    /// Number of writes, notes and syncs so far.
    steps: usize,
    ending: Option<Ending>,
}

/// When the machine stops, and the content that it leaves.
#[derive(Debug)]
struct Ending {
    at_step: usize,
    end: End,
    image: Option<Image>,
}

/// How the machine stops.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// A power failure. The number is the seed that chooses which unsynced data is lost.
    Crash(u64),
    /// The process is killed. The kernel continues and writes all data that it was given.
    Kill,
}

#[derive(Clone, Debug)]
enum Change {
    Length(u64),
    Write { offset: u64, data: Vec<u8> },
}

#[derive(Debug)]
struct Images {
    random: u64,
    taken: Vec<Image>,
}

/// Longest time that a test waits.
const PATIENCE: Duration = Duration::from_secs(30);
/// A disk writes a sector completely or not at all, in any order.
const SECTOR_BYTES: usize = 512;
/// A file system allocates space in blocks.
const BLOCK_BYTES: u64 = 4096;

impl Crashable {
    /// A disk with the content that a crash left.
    pub fn from_image(image: impl Into<Image>) -> Crashable {
        let Image { bytes, note } = image.into();
        let notes = if note.is_empty() { Vec::new() } else { vec![note] };
        let state = State { cached: bytes.clone(), synced: bytes, notes, ..State::default() };
        Crashable { state: Arc::new(Mutex::new(state)), gate: Arc::default() }
    }

    /// Records, from now on, a possible crash image at each sync.
    pub fn record_crashes(&self, seed: u64) {
        self.lock().images = Some(Images { random: seed | 1, taken: Vec::new() });
    }

    /// Number of recorded crash images.
    pub fn crashes(&self) -> usize {
        self.lock().images.as_ref().map_or(0, |images| images.taken.len())
    }

    pub fn crash_image(&self, index: usize) -> Image {
        self.lock().images.as_ref().map(|images| images.taken[index].clone()).unwrap_or_default()
    }

    /// Content that a crash now could leave.
    pub fn crash(&self, seed: u64) -> Image {
        self.lock().crash(&mut (seed | 1))
    }

    /// Content that is left if the process is killed now. The kernel still writes all data that it was given.
    pub fn kill(&self) -> Image {
        self.lock().kill()
    }

    /// Stops the machine before the write, note or sync that follows `steps` more. Nothing succeeds afterwards, so
    /// every acknowledgement depends only on earlier steps.
    pub fn end_after(&self, steps: usize, end: End) {
        let mut state = self.lock();
        state.ending = Some(Ending { at_step: state.steps + steps, end, image: None });
    }

    /// The content that was left, if the machine has stopped.
    pub fn left(&self) -> Option<Image> {
        self.lock().ending.as_ref().and_then(|ending| ending.image.clone())
    }

    /// Number of writes, notes and syncs so far.
    pub fn steps(&self) -> usize {
        self.lock().steps
    }

    /// Number of notes that were written.
    pub fn notes(&self) -> usize {
        self.lock().notes.len()
    }

    /// The disk is full after this many new blocks of 4 KiB. `None` removes the limit.
    pub fn set_room(&self, blocks: Option<usize>) {
        self.lock().room_blocks = blocks;
    }

    /// Sets whether all writes fail.
    pub fn set_stuck(&self, stuck: bool) {
        self.lock().stuck = stuck;
    }

    /// After this many successful syncs, all syncs fail.
    pub fn fail_sync_after(&self, syncs: usize) {
        self.lock().syncs_left = Some(syncs);
    }

    /// After this many successful syncs, one sync fails as on Linux: its data is not on the disk, reads still return it
    /// from the cache, and later syncs succeed.
    pub fn fail_one_sync_after(&self, syncs: usize) {
        let mut state = self.lock();
        (state.syncs_left, state.fails_once) = (Some(syncs), true);
    }

    /// Number of syncs that were requested.
    pub fn syncs(&self) -> usize {
        self.gate.lock().syncs
    }

    /// Holds syncs back, or releases them.
    pub fn hold_syncs(&self, held: bool) {
        self.gate.change(|passing| passing.held = held);
    }

    /// Blocks its thread until this many syncs were requested.
    pub fn wait_for_syncs(&self, count: usize) {
        self.gate.wait_while(|passing| passing.syncs < count);
    }

    /// Whether a sync has failed.
    pub fn is_failing(&self) -> bool {
        self.lock().syncs_left == Some(0)
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.lock().cached.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Medium for Crashable {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(self.clone()))
    }

    fn forget_cached(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.goes_on()?;
        let mut bytes = state.synced.clone();
        state.unsynced.iter().for_each(|change| State::apply(&mut bytes, change));
        state.cached = bytes;
        Ok(())
    }

    fn note(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        state.step()?;
        if state.stuck {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.notes.push(bytes.to_vec());
        Ok(())
    }

    fn noted(&self) -> io::Result<Vec<u8>> {
        self.lock().goes_on()?;
        Ok(self.lock().notes.last().cloned().unwrap_or_default())
    }
}

impl State {
    fn apply(bytes: &mut Vec<u8>, change: &Change) {
        match change {
            Change::Length(length) => bytes.resize(*length as usize, 0),
            Change::Write { offset, data } => {
                let (from, to) = (*offset as usize, *offset as usize + data.len());
                if bytes.len() < to {
                    bytes.resize(to, 0);
                }
                bytes[from..to].copy_from_slice(data);
            }
        }
    }

    /// Counts a change of the disk. Returns an error if the machine has stopped or stops now.
    fn step(&mut self) -> io::Result<()> {
        if let Some(Ending { end, image: None, .. }) = self.ending.as_ref().filter(|it| it.at_step <= self.steps) {
            let left = match *end {
                End::Crash(seed) => self.crash(&mut (seed | 1)),
                End::Kill => self.kill(),
            };
            self.ending = self.ending.take().map(|ending| Ending { image: Some(left), ..ending });
        }
        self.goes_on()?;
        self.steps += 1;
        Ok(())
    }

    fn goes_on(&self) -> io::Result<()> {
        let has_ended = self.ending.as_ref().is_some_and(|ending| ending.image.is_some());
        if has_ended { Err(io::Error::other("the machine is down")) } else { Ok(()) }
    }

    fn kill(&self) -> Image {
        Image { bytes: self.cached.clone(), note: self.notes.last().cloned().unwrap_or_default() }
    }

    /// Returns what a crash now could leave: the synced bytes, and some of the unsynced sectors.
    fn crash(&self, random: &mut u64) -> Image {
        let mut image = self.synced.clone();
        // The share of sectors that survive: nearly none, half, or nearly all.
        let odds = [1, 8, 15][(roll(random) % 3) as usize];
        for change in &self.unsynced {
            match change {
                Change::Length(_) => Self::apply(&mut image, change),
                Change::Write { offset, data } => {
                    for (index, sector) in data.chunks(SECTOR_BYTES).enumerate() {
                        if roll(random) % 16 < odds {
                            let offset = offset + (index * SECTOR_BYTES) as u64;
                            Self::apply(&mut image, &Change::Write { offset, data: sector.to_vec() });
                        }
                    }
                }
            }
        }
        Image { bytes: image, note: self.crashed_note(random) }
    }

    /// Returns what a crash could leave of the notes: the newest, an older one, a mix of both, or nothing.
    fn crashed_note(&self, random: &mut u64) -> Vec<u8> {
        let Some((newest, older)) = self.notes.split_last() else { return Vec::new() };
        let older = older.get(roll(random) as usize % older.len().max(1)).cloned().unwrap_or_default();
        match roll(random) % 4 {
            0 => Vec::new(),
            1 => older,
            2 => {
                let mut torn = older;
                torn.resize(newest.len(), 0);
                let arrived = roll(random) as usize % newest.len().max(1);
                torn[..arrived].copy_from_slice(&newest[..arrived]);
                torn
            }
            _ => newest.clone(),
        }
    }

    /// Returns how many bytes of a write fit on the disk.
    fn fitting(&mut self, offset: u64, length: usize) -> usize {
        if self.stuck {
            return 0;
        }
        let end = offset + length as u64;
        for block in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            if self.used.contains(&block) {
                continue;
            }
            match &mut self.room_blocks {
                Some(0) => return (block * BLOCK_BYTES).saturating_sub(offset) as usize,
                Some(room) => *room -= 1,
                None => {}
            }
            self.used.insert(block);
        }
        length
    }

    fn change(&mut self, change: Change) {
        Self::apply(&mut self.cached, &change);
        self.unsynced.push(change);
    }
}

impl StorageBackend for Crashable {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.lock();
        state.goes_on()?;
        let from = offset as usize;
        let bytes = state.cached.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock();
        state.step()?;
        state.change(Change::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.gate.change(|passing| passing.syncs += 1);
        self.gate.wait_while(|passing| passing.held);
        let mut state = self.lock();
        let state = &mut *state;
        state.step()?;
        if let Some(mut images) = state.images.take() {
            images.taken.push(state.crash(&mut images.random));
            state.images = Some(images);
        }
        match &mut state.syncs_left {
            Some(0) => {
                if std::mem::take(&mut state.fails_once) {
                    state.unsynced.clear();
                    state.syncs_left = None;
                }
                return Err(io::Error::other("the disk does not answer"));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        for change in std::mem::take(&mut state.unsynced) {
            State::apply(&mut state.synced, &change);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        state.step()?;
        let fitting = state.fitting(offset, data.len());
        state.change(Change::Write { offset, data: data[..fitting].to_vec() });
        if fitting < data.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

/// A small repeatable random number generator. Its quality does not matter here.
fn roll(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random >> 16
}
