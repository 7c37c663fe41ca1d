//! Frames cost no allocation once their link is warm: buffers are used again, on both ends.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ::bytes::BufMut;
use runtime::network::tcp::TcpNetwork;
use runtime::{Link, Network};

thread_local! {
    /// Allocations of this thread, so that tests on other threads do not count.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every method hands its arguments to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The thread may be ending, and its counter gone.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the promises that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises that the system's allocator asks for.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the promises that the system's allocator asks for.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends `depth` frames one way and answers each.
async fn exchange(near: &mut Link, far: &mut Link, depth: usize, frame: &[u8]) {
    for _ in 0..depth {
        near.sender.send(&mut |body| body.put_slice(frame)).unwrap();
    }
    for _ in 0..depth {
        let received = far.receiver.receive().await.unwrap().unwrap();
        far.sender.send(&mut |body| body.put_slice(&received)).unwrap();
    }
    for _ in 0..depth {
        assert_eq!(near.receiver.receive().await.unwrap().unwrap().len(), frame.len());
    }
}

#[tokio::test]
async fn frames_on_a_warm_link_allocate_nothing() {
    let network = TcpNetwork::new();
    let mut listener = network.listen("127.0.0.1:0").await.unwrap();
    let address = listener.address();
    let (near, far) = tokio::join!(network.connect(&address), listener.accept());
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    for (depth, bytes) in [(1, 64), (16, 64), (1, 1024), (16, 1024), (3, 16_000)] {
        let frame = vec![7; bytes];
        for _ in 0..300 {
            exchange(&mut near, &mut far, depth, &frame).await;
        }
        let before = ALLOCATIONS.get();
        for _ in 0..300 {
            exchange(&mut near, &mut far, depth, &frame).await;
        }
        let allocations = ALLOCATIONS.get() - before;
        assert_eq!(allocations, 0, "300 exchanges of {depth} frames of {bytes} bytes");
    }
}
