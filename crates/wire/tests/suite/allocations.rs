//! Counts what a piece of code allocates on its thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What was allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Calls of the allocator that asked for memory.
    pub count: usize,
    /// Bytes that they asked for, given back or not.
    pub bytes: usize,
}

thread_local! {
    static ALLOCATED: Cell<Allocated> = const { Cell::new(Allocated { count: 0, bytes: 0 }) };
}

/// Runs `work` and tells what it allocated.
pub fn during(work: impl FnOnce()) -> Allocated {
    let before = ALLOCATED.get();
    work();
    let after = ALLOCATED.get();
    Allocated { count: after.count - before.count, bytes: after.bytes - before.bytes }
}

struct Counting;

fn note(bytes: usize) {
    // A thread that is going away has no counter any more, and nobody asks for it.
    let _ = ALLOCATED.try_with(|allocated| {
        let Allocated { count, bytes: total } = allocated.get();
        allocated.set(Allocated { count: count + 1, bytes: total + bytes });
    });
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
