//! Native links over loopback: what the traits do not say.

use std::sync::Arc;

use ::bytes::BufMut;
use model::limits::FRAME_BYTES_MAX;
use runtime::network::conformance;
use runtime::network::tcp::{LINK_QUEUED_BYTES_FREE, TcpNetwork};
use runtime::{Link, Listener, Network, NetworkError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ANY: &str = "127.0.0.1:0";
const PREAMBLE: &[u8] = b"TONTINE\x01\n";

#[tokio::test]
async fn tcp_keeps_the_networks_promises() {
    // Nobody listens on the port of a listener that is gone.
    let deserted = TcpListener::bind(ANY).await.unwrap().local_addr().unwrap().to_string();
    conformance::run(&TcpNetwork::new(), ANY, &deserted).await;
}

#[tokio::test]
async fn a_link_that_nobody_reads_is_overloaded_and_recovers() {
    conformance::overload(&TcpNetwork::with_limits(1_000_000, usize::MAX), ANY, 1_000_000).await;
}

#[tokio::test]
async fn links_that_nobody_reads_share_one_limit_but_slow_ones_do_not_block_quick_ones() {
    let network = TcpNetwork::with_limits(usize::MAX, 4_000_000);
    let mut listener = network.listen(ANY).await.unwrap();
    let (stuck, _unread) = connect(&network, listener.as_mut()).await;
    let (quick, mut read) = connect(&network, listener.as_mut()).await;
    let frame = vec![0; 50_000];
    let send = |link: &Link| link.sender.send(&mut |body| body.put_slice(&frame));
    while send(&stuck).is_ok() {}
    let queued = stuck.sender.queued_bytes();
    assert!(queued <= 4_000_000 + LINK_QUEUED_BYTES_FREE + 50_004, "{queued} bytes wait");
    send(&quick).unwrap();
    assert_eq!(read.receiver.receive().await.unwrap().unwrap().len(), 50_000);

    // Closing gives back what the stuck link held.
    stuck.sender.close();
    let mut sent = 0;
    while quick.sender.queued_bytes() < 1_000_000 {
        send(&quick).unwrap();
        sent += 1;
    }
    for _ in 0..sent {
        read.receiver.receive().await.unwrap().unwrap();
    }
}

async fn connect(network: &TcpNetwork, listener: &mut dyn Listener) -> (Link, Link) {
    let address = listener.address();
    let (near, far) = tokio::join!(network.connect(&address), listener.accept());
    (near.unwrap(), far.unwrap())
}

/// Writes to a native port and returns everything that it answers until it closes, and what the listener said.
async fn talk(words: &[u8]) -> (String, Option<NetworkError>) {
    let mut listener = TcpNetwork::new().listen(ANY).await.unwrap();
    let mut stream = TcpStream::connect(listener.address()).await.unwrap();
    stream.write_all(words).await.unwrap();
    let mut answer = Vec::new();
    let (accepted, read) = tokio::join!(listener.accept(), stream.read_to_end(&mut answer));
    read.unwrap();
    (String::from_utf8(answer).unwrap(), accepted.err())
}

#[tokio::test]
async fn foreign_clients_are_told_where_they_are_in_their_own_language() {
    for (words, expected) in [
        (&b"*1\r\n$4\r\nPING\r\n"[..], "RESP (Redis)"),
        (b"PING\r\n", "RESP (Redis) or another line protocol"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"TONTINE\x02\n", "another version of the native protocol"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
    ] {
        let (answer, error) = talk(words).await;
        let Some(NetworkError::Foreign { looks_like }) = error else { panic!("{error:?}") };
        assert_eq!(looks_like, expected);
        match expected {
            "HTTP" => {
                assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("native port"), "{answer}")
            }
            "TLS" => assert_eq!(answer, "\x15\x03\x01\0\x02\x02(", "a fatal alert: handshake failure"),
            _ => {
                assert!(answer.starts_with("-ERR this is tontine's native port"), "{answer}");
                assert!(answer.ends_with("\r\n") && answer.lines().count() == 1, "{answer}");
            }
        }
    }
}

#[tokio::test]
async fn a_foreign_server_is_recognised_by_its_answer() {
    for (answer, expected) in [
        (&b"-ERR unknown command 'TONTINE\x01'\r\n"[..], "RESP (Redis)"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (b"\x15\x03\x01\x00\x02", "TLS"),
        (b"TONTINE\x07\n", "another version of the native protocol"),
        (b"220 mail.example ready\r\n", "an unknown protocol"),
    ] {
        let server = TcpListener::bind(ANY).await.unwrap();
        let address = server.local_addr().unwrap().to_string();
        let serve = async {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut greeting = [0; PREAMBLE.len()];
            stream.read_exact(&mut greeting).await.unwrap();
            assert_eq!(greeting, PREAMBLE);
            stream.write_all(answer).await.unwrap();
        };
        let network = TcpNetwork::new();
        let (connected, ()) = tokio::join!(network.connect(&address), serve);
        let error = connected.err();
        assert!(
            matches!(error, Some(NetworkError::Foreign { looks_like }) if looks_like == expected),
            "{expected}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_hangs_up_instead_of_greeting_is_unreachable() {
    let server = TcpListener::bind(ANY).await.unwrap();
    let address = server.local_addr().unwrap().to_string();
    let network = TcpNetwork::new();
    let hang_up = async { drop(server.accept().await.unwrap()) };
    let (connected, ()) = tokio::join!(network.connect(&address), hang_up);
    let error = connected.err();
    assert!(matches!(error, Some(NetworkError::Unreachable { .. })), "{error:?}");
    let malformed = network.connect("no port").await.err();
    assert!(matches!(malformed, Some(NetworkError::Unreachable { .. })), "{malformed:?}");
    let malformed = network.listen("no port").await.err();
    assert!(matches!(malformed, Some(NetworkError::Unreachable { .. })), "{malformed:?}");
}

/// A peer that speaks the preamble and then what the test says.
async fn raw_peer() -> (TcpStream, Link) {
    let mut listener = TcpNetwork::new().listen(ANY).await.unwrap();
    let mut stream = TcpStream::connect(listener.address()).await.unwrap();
    stream.write_all(PREAMBLE).await.unwrap();
    let link = listener.accept().await.unwrap();
    let mut answer = [0; PREAMBLE.len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, PREAMBLE);
    (stream, link)
}

#[tokio::test]
async fn frames_are_a_length_and_a_body() {
    let (mut stream, mut link) = raw_peer().await;
    link.sender.send(&mut |body| body.put_slice(b"abc")).unwrap();
    link.sender.send(&mut |_| {}).unwrap();
    let mut frames = [0; 11];
    stream.read_exact(&mut frames).await.unwrap();
    assert_eq!(&frames, b"\x03\0\0\0abc\0\0\0\0");
    // Byte by byte, as a slow network may deliver them.
    for byte in b"\x02\0\0\0xy\0\0\0\0" {
        stream.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(link.receiver.receive().await.unwrap().unwrap(), "xy");
    assert_eq!(link.receiver.receive().await.unwrap().unwrap(), "");
    drop(stream);
    assert!(link.receiver.receive().await.unwrap().is_none());
}

#[tokio::test]
async fn a_frame_over_the_limit_is_refused_and_ends_the_link() {
    let (mut stream, mut link) = raw_peer().await;
    stream.write_all(b"\x01\0\0\0a").await.unwrap();
    let length = u32::try_from(FRAME_BYTES_MAX + 1).unwrap();
    stream.write_all(&length.to_le_bytes()).await.unwrap();
    assert_eq!(link.receiver.receive().await.unwrap().unwrap(), "a");
    let refused = link.receiver.receive().await;
    assert!(matches!(refused, Err(NetworkError::FrameTooLong { bytes }) if bytes == FRAME_BYTES_MAX + 1));
    assert!(matches!(link.receiver.receive().await, Err(NetworkError::Closed)));

    let (_stream, link) = raw_peer().await;
    let refused = link.sender.send(&mut |body| body.put_bytes(0, FRAME_BYTES_MAX + 1));
    assert!(matches!(refused, Err(NetworkError::FrameTooLong { .. })), "{refused:?}");
    assert_eq!(link.sender.queued_bytes(), 0, "our own frames over the limit are refused and not queued");
}

/// Of the first frame there is never room for so much, of the second there is once half of it has come and then no
/// more, of the third there is, and it is given back.
#[tokio::test]
async fn a_frame_without_room_is_passed_over_and_the_link_goes_on_behind_it() {
    let (mut stream, mut link) = raw_peer().await;
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (max, noted) = (Arc::new(std::sync::atomic::AtomicUsize::new(100_000)), asked.clone());
    let limit = max.clone();
    link.receiver.bound(Box::new(move |bytes| {
        noted.lock().unwrap().push(bytes);
        bytes <= limit.load(std::sync::atomic::Ordering::Relaxed)
    }));
    let frame = |first: u8| {
        let mut frame = 1_000_000_u32.to_le_bytes().to_vec();
        frame.push(first);
        frame.resize(1_000_004, 7);
        frame
    };
    for first in [1, 2] {
        let sent = [&frame(first)[..], b"\x02\0\0\0ok"].concat();
        let writing = async { stream.write_all(&sent).await.unwrap() };
        let reading = async {
            let refused = link.receiver.receive().await;
            let Err(NetworkError::NotKept { head }) = refused else { panic!("{refused:?}") };
            assert_eq!((head[0], head[1], head.len()), (first, 7, 64));
            assert_eq!(link.receiver.receive().await.unwrap().unwrap(), "ok");
        };
        tokio::join!(writing, reading);
        max.store(500_000, std::sync::atomic::Ordering::Relaxed);
    }
    max.store(usize::MAX, std::sync::atomic::Ordering::Relaxed);
    let sent = frame(3);
    let (_, received) = tokio::join!(stream.write_all(&sent), link.receiver.receive());
    assert_eq!(received.unwrap().unwrap(), sent[4..]);
    assert_eq!(asked.lock().unwrap().last(), Some(&0), "what was asked for is given back");
}

#[tokio::test]
async fn a_link_that_ends_within_a_frame_is_no_clean_end() {
    for cut in 1..6 {
        let (mut stream, mut link) = raw_peer().await;
        stream.write_all(&b"\x05\0\0\0ab"[..cut]).await.unwrap();
        drop(stream);
        let end = link.receiver.receive().await;
        assert!(matches!(end, Err(NetworkError::Closed)), "cut after {cut} bytes: {end:?}");
    }
}

#[tokio::test]
async fn a_peer_that_does_not_greet_holds_up_nobody() {
    let network = TcpNetwork::new();
    let mut listener = network.listen(ANY).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(TcpStream::connect(listener.address()).await.unwrap());
    }
    connect(&network, listener.as_mut()).await;
    // One that leaves before it has greeted is not worth an error.
    silent.clear();
    connect(&network, listener.as_mut()).await;
}

#[tokio::test]
async fn three_links_over_two_listeners_are_spread_evenly() {
    let network = TcpNetwork::new();
    let mut listeners = network.listen_shared(ANY, 2).unwrap();
    let address = listeners[0].address();
    assert_eq!(address, listeners[1].address());
    let in_use = network.listen(&address).await.err();
    assert!(matches!(in_use, Some(NetworkError::AddressInUse { .. })), "{in_use:?}");
    let (first, second) = listeners.split_at_mut(1);
    for expected in [[2, 1], [1, 2]] {
        let mut near = Vec::new();
        let mut far = Vec::new();
        let mut counts = [0, 0];
        for _ in 0..3 {
            let accept = async {
                tokio::select! {
                    biased;
                    link = first[0].accept() => (0, link.unwrap()),
                    link = second[0].accept() => (1, link.unwrap()),
                }
            };
            let (connected, (share, link)) = tokio::join!(network.connect(&address), accept);
            counts[share] += 1;
            near.push(connected.unwrap());
            far.push(link);
        }
        assert_eq!(counts, expected);
    }
    // When one worker is gone the other gets everything.
    let mut remaining = listeners.remove(1);
    drop(listeners);
    for _ in 0..3 {
        connect(&network, remaining.as_mut()).await;
    }
}

#[test]
fn a_link_ends_with_the_thread_of_its_writer() {
    let start = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (serving, connecting) = (start(), start());
    let mut listener = TcpNetwork::new().listen_shared(ANY, 1).unwrap().remove(0);
    let address = listener.address();
    let accepting = std::thread::spawn(move || {
        let link = serving.block_on(listener.accept()).unwrap();
        (serving, link)
    });
    let mut near = connecting.block_on(TcpNetwork::new().connect(&address)).unwrap();
    let (serving, far) = accepting.join().unwrap();
    let sender = Arc::clone(&far.sender);
    drop(serving);
    assert!(matches!(sender.send(&mut |_| {}), Err(NetworkError::Closed)));
    drop(far);
    let end = connecting.block_on(near.receiver.receive());
    assert!(matches!(end, Ok(None) | Err(NetworkError::Closed)), "{end:?}");
}
