//! The suite that every network must pass while no fault is injected, written against the traits alone.
//!
//! It waits for frames without a limit: a network that loses one makes it hang, so run it with a timeout.

use std::sync::Arc;

use ::bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::{join, join_all};

use super::{Link, LinkReceiver, LinkSender, Listener, Network, NetworkError};

/// Runs the suite. `address` is one that can be listened on, again and again, and where the taken one is told by
/// the listener (for TCP: with port 0); `deserted` is one where nobody listens.
///
/// # Panics
/// When the network breaks a promise; the message says which.
pub async fn run(network: &dyn Network, address: &str, deserted: &str) {
    frames_of_every_size_arrive_whole_and_in_order(network, address).await;
    many_frames_go_both_ways_at_once(network, address).await;
    links_of_one_listener_do_not_mix(network, address).await;
    dropping_the_sender_closes_after_flushing(network, address).await;
    closing_ends_both_sides(network, address).await;
    addresses_are_taken_once_and_free_again(network, address).await;
    let refused = network.connect(deserted).await.map(|_| ());
    assert!(matches!(refused, Err(NetworkError::Refused { .. })), "nobody is at {deserted}: {refused:?}");
}

/// Checks that a queue that nobody empties is bounded, on a network whose links may queue `bytes_max` bytes at most
/// (and one frame).
///
/// # Panics
/// When the network breaks a promise; the message says which.
pub async fn overload(network: &dyn Network, address: &str, bytes_max: usize) {
    let (mut near, mut far) = pair(network, address).await;
    let frame = vec![7_u8; 10_000];
    let mut sent = 0_u64;
    // The operating system's own buffers take some, whenever the link's writer gets to run.
    let refusal = loop {
        match near.sender.send(&mut |body| body.put_slice(&frame)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(near.sender.queued_bytes() <= bytes_max + frame.len() + 4, "the queue is bounded");
    };
    assert!(matches!(refusal, NetworkError::Overloaded), "a full queue says so: {refusal:?}");
    let mut called = false;
    let refused = near.sender.send(&mut |_| called = true);
    assert!(refused.is_err() && !called, "a refused frame is not even encoded");

    for number in 0..sent {
        let received = receive(&mut far.receiver).await;
        assert!(received == frame, "frame {number} of {sent} arrives though others were refused");
    }
    send(&near.sender, b"again");
    assert_eq!(receive(&mut far.receiver).await, "again", "an emptied queue takes frames again");
    assert_eq!(near.sender.queued_bytes(), 0, "all is sent");
    send(&far.sender, b"back");
    assert_eq!(receive(&mut near.receiver).await, "back");
}

/// A listener and a link through it: the connecting end, then the accepted one.
async fn pair(network: &dyn Network, address: &str) -> (Link, Link) {
    let mut listener = network.listen(address).await.expect("the address is free");
    connect(network, listener.as_mut()).await
}

async fn connect(network: &dyn Network, listener: &mut dyn Listener) -> (Link, Link) {
    let address = listener.address();
    let (near, far) = join(network.connect(&address), listener.accept()).await;
    (near.expect("somebody listens"), far.expect("somebody connects"))
}

fn send(sender: &Arc<dyn LinkSender>, bytes: &[u8]) {
    sender.send(&mut |body| body.put_slice(bytes)).expect("the link is open and its queue short");
}

async fn receive(receiver: &mut Box<dyn LinkReceiver>) -> Bytes {
    receiver.receive().await.expect("the link is open").expect("a frame was sent")
}

/// A body whose bytes tell its number and their place.
fn body(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|position| (position.wrapping_mul(31).wrapping_add(number * 7) % 256) as u8).collect()
}

async fn frames_of_every_size_arrive_whole_and_in_order(network: &dyn Network, address: &str) {
    let (near, mut far) = pair(network, address).await;
    let sizes = [0, 1, 2, 3, 4, 5, 100, 0, 4095, 4096, 16_380, 16_384, 65_536, 7, 300_000, 1 << 20, 0, 1];
    for (number, bytes) in sizes.into_iter().enumerate() {
        send(&near.sender, &body(number, bytes));
    }
    for (number, bytes) in sizes.into_iter().enumerate() {
        let received = receive(&mut far.receiver).await;
        assert!(received == body(number, bytes), "frame {number} of {bytes} bytes, got {}", received.len());
    }
    // One at a time as well.
    for (number, bytes) in sizes.into_iter().enumerate() {
        send(&near.sender, &body(number, bytes));
        let received = receive(&mut far.receiver).await;
        assert!(received == body(number, bytes), "frame {number} of {bytes} bytes, got {}", received.len());
    }
}

async fn many_frames_go_both_ways_at_once(network: &dyn Network, address: &str) {
    const FRAMES: usize = 10_000;
    let (mut near, mut far) = pair(network, address).await;
    for number in 0..FRAMES {
        let mut encode = |body: &mut BytesMut| body.put_u64_le(number as u64);
        near.sender.send(&mut encode).expect("the queue is short");
        far.sender.send(&mut encode).expect("the queue is short");
    }
    join(in_order(&mut near.receiver, FRAMES), in_order(&mut far.receiver, FRAMES)).await;
}

async fn in_order(receiver: &mut Box<dyn LinkReceiver>, frames: usize) {
    for number in 0..frames {
        assert_eq!(receive(receiver).await[..], (number as u64).to_le_bytes(), "frame {number}");
    }
}

async fn links_of_one_listener_do_not_mix(network: &dyn Network, address: &str) {
    let mut listener = network.listen(address).await.expect("the address is free");
    let mut links = Vec::new();
    for _ in 0..20 {
        links.push(connect(network, listener.as_mut()).await);
    }
    for (number, (near, far)) in links.iter().enumerate() {
        send(&near.sender, &body(number, 1000 + number));
        send(&far.sender, &body(100 + number, 2000 + number));
    }
    join_all(links.iter_mut().enumerate().map(|(number, (near, far))| async move {
        assert!(receive(&mut far.receiver).await == body(number, 1000 + number), "link {number}");
        assert!(receive(&mut near.receiver).await == body(100 + number, 2000 + number), "link {number}");
    }))
    .await;
}

async fn dropping_the_sender_closes_after_flushing(network: &dyn Network, address: &str) {
    let (near, mut far) = pair(network, address).await;
    let last = Arc::clone(&near.sender);
    for number in 0..50 {
        send(&near.sender, &body(number, 10_000));
    }
    drop(near);
    send(&last, b"last");
    drop(last);
    for number in 0..50 {
        assert!(receive(&mut far.receiver).await == body(number, 10_000), "frame {number} is flushed");
    }
    assert_eq!(receive(&mut far.receiver).await, "last");
    let end = far.receiver.receive().await;
    assert!(matches!(end, Ok(None)), "then the link is closed cleanly: {end:?}");
}

async fn closing_ends_both_sides(network: &dyn Network, address: &str) {
    let (mut near, mut far) = pair(network, address).await;
    send(&near.sender, b"hello");
    assert_eq!(receive(&mut far.receiver).await, "hello");
    near.sender.close();
    let refused = near.sender.send(&mut |_| {});
    assert!(matches!(refused, Err(NetworkError::Closed)), "nothing is sent on a closed link: {refused:?}");
    let end = near.receiver.receive().await;
    assert!(matches!(end, Err(NetworkError::Closed)), "nothing is received on a closed link: {end:?}");
    let end = far.receiver.receive().await;
    assert!(matches!(end, Ok(None) | Err(NetworkError::Closed)), "the other side learns it: {end:?}");
    near.sender.close();
    assert_eq!(near.sender.queued_bytes(), 0, "a closed link keeps nothing");
}

async fn addresses_are_taken_once_and_free_again(network: &dyn Network, address: &str) {
    let listener = network.listen(address).await.expect("the address is free");
    let taken = listener.address();
    let refused = network.listen(&taken).await.map(|_| ());
    match refused {
        Err(NetworkError::AddressInUse { address }) => assert_eq!(address, taken),
        other => panic!("{taken} is taken: {other:?}"),
    }
    drop(listener);
    let mut listener = network.listen(&taken).await.expect("a dropped listener frees its address");
    let (near, mut far) = connect(network, listener.as_mut()).await;
    drop(listener);
    send(&near.sender, b"still here");
    assert_eq!(receive(&mut far.receiver).await, "still here", "links outlive their listener");
    let refused = network.connect(&taken).await.map(|_| ());
    assert!(matches!(refused, Err(NetworkError::Refused { .. })), "nobody listens any more: {refused:?}");
}
