//! A request for one key with up to three replicas must not touch the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::time::Duration;

use model::{Moment, NodeId, VersionSet};
use protocol::quorum::{
    Candidates, Get, GetActions, GetEvent, Local, Origin, QuorumOptions, Write, WriteActions, WriteEvent,
};

use crate::script::{GENERATION, preference, set};

/// The system's allocator, counting for the thread that asks.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, hence from the system.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(test: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    test();
    ALLOCATIONS.get() - before
}

fn options(required: u8) -> QuorumOptions {
    QuorumOptions {
        required,
        preferred: required,
        sloppy: true,
        held: 0,
        spared: Default::default(),
        hedge_after: Duration::from_millis(10),
        deadline: Moment { nanos: 1_000_000_000 },
        wall: Default::default(),
        generation: GENERATION,
        since: GENERATION,
    }
}

fn get(replicas: u8, answers: &mut Vec<VersionSet>) {
    let preference = preference(replicas, 5);
    let candidates = Candidates { preference: &preference, suspected: &[NodeId(2)], lagging: &[] };
    let now = Moment { nanos: 1 };
    let count = allocations(|| {
        let mut actions = GetActions::new();
        let mut get = Get::start(candidates, Some(NodeId(1)), options(replicas), now, &mut actions);
        for node in (1..=u32::from(replicas)).map(NodeId) {
            let set = answers.pop().unwrap();
            let event = GetEvent::Answered { node, generation: GENERATION, set };
            get.step(event, now, &mut actions);
            black_box(&actions);
            actions.clear();
        }
        assert!(get.deadline().is_none() || replicas > 1);
    });
    assert_eq!(count, 0, "get on {replicas} replicas");
}

#[test]
fn a_get_on_up_to_three_replicas_does_not_allocate() {
    for replicas in 1..=3 {
        get(replicas, &mut vec![set("a:3"); 3]);
        get(replicas, &mut vec![set("a:3"), set("a:2"), set("-")]);
    }
}

#[test]
fn a_write_on_up_to_three_replicas_does_not_allocate() {
    for replicas in 1..=3 {
        let preference = preference(replicas, 5);
        let candidates = Candidates { preference: &preference, suspected: &[], lagging: &[] };
        let origin = Origin { own: NodeId(1), local: Local::Applied, possible: false };
        let now = Moment { nanos: 1 };
        let count = allocations(|| {
            let mut actions = WriteActions::new();
            let mut write = Write::start(candidates, origin, options(replicas), now, &mut actions);
            for node in (1..=u32::from(replicas)).map(NodeId) {
                actions.clear();
                let event = WriteEvent::Acknowledged { node, generation: GENERATION, superseded: false };
                write.step(event, now, &mut actions);
            }
            assert!(write.deadline().is_none() && actions.len() == 1);
        });
        assert_eq!(count, 0, "write on {replicas} replicas");
    }
}

#[test]
fn the_counting_allocator_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(7)))), 1);
}
