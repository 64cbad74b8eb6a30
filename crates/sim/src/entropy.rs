//! Chance, and where it comes from: one seed for everything that happens on a thread.
//!
//! Hash maps order their entries by keys that the standard library draws from the system, and uuids are drawn there too. On a thread
//! that was given a seed, the system's answer comes from the seed instead.

use std::cell::Cell;
use std::io::Read;

/// Small, quick, and the same everywhere (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x6a09_e667_f3bc_c909)
    }

    /// Another source, whose use does not disturb this one.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `bound`; nothing is less than zero, so that gives zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let at = self.below(from.len() as u64);
        from[usize::try_from(at).unwrap_or(0)].clone()
    }
}

thread_local! {
    static SEEDED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on all that this thread draws from the system comes from the seed.
pub fn seed_thread(seed: u64) {
    // Named here so that the linker keeps it: the standard library asks for it only if it is there.
    std::hint::black_box(getrandom as *const () as usize);
    SEEDED.set(Some(seed));
}

/// Stands in for the system's function of the same name, which the standard library lets a program replace.
///
/// # Safety
/// `buffer` must be valid for writing `length` bytes.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    if buffer.is_null() {
        return -1;
    }
    // SAFETY: that is what callers promise, as they do to the system.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer, length) };
    let filled = match SEEDED.get() {
        Some(state) => {
            let mut rng = Rng(state);
            for chunk in bytes.chunks_mut(8) {
                let drawn = rng.next().to_le_bytes();
                chunk.copy_from_slice(&drawn[..chunk.len()]);
            }
            SEEDED.set(Some(rng.0));
            Ok(())
        }
        None => std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(bytes)),
    };
    match filled {
        Ok(()) => isize::try_from(length).unwrap_or(-1),
        Err(_) => -1,
    }
}
