//! Random numbers: one seed decides everything random on a thread.
//!
//! The standard library draws the keys of hash maps from the operating system, and uuids are drawn there too. On a
//! thread with a seed, these bytes come from the seed instead.

use std::cell::Cell;
use std::io::Read;

/// Random number generator (splitmix64). Gives the same numbers on all platforms.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x6a09_e667_f3bc_c909)
    }

    /// Returns an independent generator. Its use does not change the numbers of this one.
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

    /// Returns a number less than `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// Returns true with a probability of `per_mille` in 1000.
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

/// From now on, every random byte that this thread requests from the operating system comes from `seed`.
pub fn seed_thread(seed: u64) {
    // Keep the function in the binary: the standard library uses it only if the linker finds it.
    std::hint::black_box(getrandom as *const () as usize);
    SEEDED.set(Some(seed));
}

/// Replaces the function `getrandom` of the C library. The standard library allows a program to define it.
///
/// # Safety
/// `buffer` must be valid for writing `length` bytes.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    if buffer.is_null() {
        return -1;
    }
    // SAFETY: the caller guarantees a valid buffer, as it does for the C library's function.
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
