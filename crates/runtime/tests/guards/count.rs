//! Counts the allocations of a thread. The same work on one thread allocates the same on every machine,
//! however busy it is.

#![allow(unsafe_code, reason = "an allocator is unsafe by its nature; this one only counts and hands on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNTED: Cell<Allocated> = const { Cell::new(Allocated { times: 0, bytes: 0 }) };
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Allocated {
    pub times: u64,
    pub bytes: u64,
}

impl Allocated {
    /// The allocations of this thread since it started.
    pub fn so_far() -> Allocated {
        COUNTED.get()
    }

    pub fn since(self) -> Allocated {
        let now = Allocated::so_far();
        Allocated { times: now.times - self.times, bytes: now.bytes - self.bytes }
    }
}

pub struct Counting;

fn count(bytes: usize) {
    // A thread that is ending has no counter any more, and it is not read any more.
    let _ = COUNTED.try_with(|counted| {
        let Allocated { times, bytes: before } = counted.get();
        counted.set(Allocated { times: times + 1, bytes: before + bytes as u64 });
    });
}

// SAFETY: everything is forwarded to the system's allocator with the same arguments; counting allocates
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(block, layout) }
    }
}
