//! Byte streams for foreign doors.

use runtime::NetworkError;
use runtime::network::bytes::listen;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn streams_are_dealt_out_in_turn() {
    let mut listeners = listen("127.0.0.1:0", 3).unwrap();
    let address = listeners[0].address();
    for round in 0..3_u8 {
        for listener in &mut listeners {
            let mut near = TcpStream::connect(address).await.unwrap();
            near.write_all(&[round]).await.unwrap();
            let (mut far, peer) = listener.accept().await.unwrap();
            assert_eq!(peer, near.local_addr().unwrap());
            assert!(far.tcp().nodelay().unwrap());
            assert_eq!(far.read_u8().await.unwrap(), round);
        }
    }
}

#[tokio::test]
async fn a_taken_address_is_refused_until_the_last_share_is_dropped() {
    let mut listeners = listen("127.0.0.1:0", 2).unwrap();
    let address = listeners[0].address().to_string();
    let refused = |address: &str| listen(address, 1).map(|_| ());
    listeners.pop();
    match refused(&address) {
        Err(NetworkError::AddressInUse { address: told }) => assert_eq!(told, address),
        other => panic!("{other:?}"),
    }
    listeners.pop();
    assert!(refused(&address).is_ok());
    assert!(matches!(refused("203.0.113.1:1"), Err(NetworkError::Unreachable { .. })), "not our address");
}

/// A node that stops closes its door for good: a client that comes then goes to another node, and one that came before is
/// served, or told.
#[tokio::test]
async fn closing_refuses_whoever_comes_and_hands_out_whoever_came() {
    let mut listeners = listen("127.0.0.1:0", 2).unwrap();
    let address = listeners[0].address();
    let mut near = Vec::new();
    for _ in 0..8 {
        near.push(TcpStream::connect(address).await.unwrap());
    }
    listeners[0].close();
    listeners[1].close();
    let mut handed_out = 0;
    for listener in &mut listeners {
        while let Ok((mut far, _)) = listener.accept().await {
            far.write_all(b"+").await.unwrap();
            handed_out += 1;
        }
        assert!(matches!(listener.accept().await, Err(NetworkError::Closed)));
    }
    assert_eq!(handed_out, 8);
    for mut near in near {
        assert_eq!(near.read_u8().await.unwrap(), b'+');
    }
    assert!(TcpStream::connect(address).await.is_err());
    assert!(listen(&address.to_string(), 1).is_ok(), "the address is free again");
}

#[tokio::test]
async fn a_port_that_a_foreign_process_would_share_is_refused() {
    // The foreign listener allows sharing; we must not join it unnoticed.
    let foreign = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    foreign.set_reuse_port(true).unwrap();
    foreign.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    foreign.listen(1).unwrap();
    let address = foreign.local_addr().unwrap().as_socket().unwrap().to_string();
    let refused = listen(&address, 2).map(|_| ());
    assert!(matches!(refused, Err(NetworkError::AddressInUse { .. })), "{refused:?}");
}
