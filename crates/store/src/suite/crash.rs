//! A disk that can fail, fill up, and lose what was not synced.

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

/// What syncs pass through.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<Passing>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Passing {
    held: bool,
    /// How many came to the gate.
    syncs: usize,
}

impl Gate {
    fn lock(&self) -> std::sync::MutexGuard<'_, Passing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, waits: impl FnMut(&mut Passing) -> bool) {
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, waits);
        let (_guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "what was waited for did not come");
    }

    fn change(&self, change: impl FnOnce(&mut Passing)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

/// What a disk has: the bytes of the store, and what is noted beside them.
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
    /// What reads see: the page cache.
    cached: Vec<u8>,
    /// What certainly survives a crash.
    synced: Vec<u8>,
    /// What may or may not survive, since the last sync.
    unsynced: Vec<Change>,
    /// What was noted, newest last: none is ever synced, so any may be what a crash leaves.
    notes: Vec<Vec<u8>>,
    /// A crash image for each sync, taken just before it, if asked for.
    images: Option<Images>,
    /// How many more blocks may be written for the first time. What was written before can be written again, as on most
    /// file systems.
    room_blocks: Option<usize>,
    /// The blocks that were ever written.
    used: HashSet<u64>,
    /// No write succeeds, as on a full file system that never writes in place.
    stuck: bool,
    /// So many syncs succeed before one fails.
    syncs_left: Option<usize>,
    /// Only that one fails, and what it was to write is never written, though it stays in the cache.
    fails_once: bool,
    /// How often it was written, noted on or synced.
    steps: usize,
    ending: Option<Ending>,
}

/// When the machine goes down, and what that leaves.
#[derive(Debug)]
struct Ending {
    at_step: usize,
    end: End,
    image: Option<Image>,
}

/// How it all ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// A power failure; the number decides what of the unsynced is lost.
    Crash(u64),
    /// The process is killed: the machine goes on, and writes what it was given.
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

/// Nothing that a test waits for takes longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// A disk writes sectors whole or not at all, in any order.
const SECTOR_BYTES: usize = 512;
/// A file system gives room in blocks.
const BLOCK_BYTES: u64 = 4096;

impl Crashable {
    /// A disk with these bytes, as a crash left them.
    pub fn from_image(image: impl Into<Image>) -> Crashable {
        let Image { bytes, note } = image.into();
        let notes = if note.is_empty() { Vec::new() } else { vec![note] };
        let state = State { cached: bytes.clone(), synced: bytes, notes, ..State::default() };
        Crashable { state: Arc::new(Mutex::new(state)), gate: Arc::default() }
    }

    /// From now on keeps what a crash at each sync could leave.
    pub fn record_crashes(&self, seed: u64) {
        self.lock().images = Some(Images { random: seed | 1, taken: Vec::new() });
    }

    /// The crash images so far, oldest first.
    pub fn crashes(&self) -> usize {
        self.lock().images.as_ref().map_or(0, |images| images.taken.len())
    }

    pub fn crash_image(&self, index: usize) -> Image {
        self.lock().images.as_ref().map(|images| images.taken[index].clone()).unwrap_or_default()
    }

    /// What a crash now could leave.
    pub fn crash(&self, seed: u64) -> Image {
        self.lock().crash(&mut (seed | 1))
    }

    /// What the end of the process now leaves: the machine goes on, and writes what it was given.
    pub fn kill(&self) -> Image {
        self.lock().kill()
    }

    /// Lets everything end before the write, note or sync that comes after so many more. Nothing succeeds from then on, so that whatever
    /// was answered was answered because of what came before.
    pub fn end_after(&self, steps: usize, end: End) {
        let mut state = self.lock();
        state.ending = Some(Ending { at_step: state.steps + steps, end, image: None });
    }

    /// What the end left, if it has come.
    pub fn left(&self) -> Option<Image> {
        self.lock().ending.as_ref().and_then(|ending| ending.image.clone())
    }

    /// How often it was written, noted on or synced.
    pub fn steps(&self) -> usize {
        self.lock().steps
    }

    /// How many notes were written.
    pub fn notes(&self) -> usize {
        self.lock().notes.len()
    }

    /// The disk is full after so many more blocks of 4 KiB; `None` makes room again.
    pub fn set_room(&self, blocks: Option<usize>) {
        self.lock().room_blocks = blocks;
    }

    /// Whether all writes fail.
    pub fn set_stuck(&self, stuck: bool) {
        self.lock().stuck = stuck;
    }

    /// After so many more syncs one fails, and all after it.
    pub fn fail_sync_after(&self, syncs: usize) {
        self.lock().syncs_left = Some(syncs);
    }

    /// After so many more syncs one fails, as on Linux: the disk has nothing of what it was to write, reads go on to show it, and later
    /// syncs succeed.
    pub fn fail_one_sync_after(&self, syncs: usize) {
        let mut state = self.lock();
        (state.syncs_left, state.fails_once) = (Some(syncs), true);
    }

    /// How many syncs were asked for.
    pub fn syncs(&self) -> usize {
        self.gate.lock().syncs
    }

    /// Whether syncs wait, or go on.
    pub fn hold_syncs(&self, held: bool) {
        self.gate.change(|passing| passing.held = held);
    }

    /// Returns when so many syncs were asked for. Blocks its thread.
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

    /// Counts what changes the disk; an error where the end has come.
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

    /// What a crash now could leave: some of the unsynced sectors.
    fn crash(&self, random: &mut u64) -> Image {
        let mut image = self.synced.clone();
        // Sometimes nearly all or nearly none arrived, else a coin for each sector.
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

    /// What a crash leaves of the notes: the newest, an older one, the beginning of the newest on top of an older one, or none.
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

    /// How much of a write finds room.
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

/// Small and repeatable; the quality of the randomness does not matter here.
fn roll(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random >> 16
}
