//! An ensemble with one server that is behind: what its leader tells it is held back for a while.
//!
//! The memory service of the simulations is behind in the same way (`tests/suite/memory.rs`).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coordination::{CoordinationError, CoordinationService, CreateMode, Expected};

use super::servers::{Ensemble, wait_until};
use super::{create, open, options, path, read};

/// The server that falls behind. The one with the lowest number leads no ensemble that begins with nothing.
const BEHIND: usize = 1;

/// Passes on what one server hears from those that it follows, or holds it back.
#[derive(Clone, Default)]
struct Gate {
    is_shut: Arc<AtomicBool>,
}

impl Gate {
    /// Another way to a port, through the gate: in threads that end with the process.
    fn way(&self, port: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let gate = self.clone();
        std::thread::spawn(move || {
            for follower in listener.incoming().map_while(Result::ok) {
                // A server that does not lead yet refuses its followers.
                let Ok(leader) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let (upwards, downwards) = (follower.try_clone().unwrap(), leader.try_clone().unwrap());
                std::thread::spawn(move || pass(upwards, leader, || {}));
                let gate = gate.clone();
                std::thread::spawn(move || pass(downwards, follower, || gate.wait()));
            }
        });
        own
    }

    fn set(&self, is_shut: bool) {
        self.is_shut.store(is_shut, Ordering::SeqCst);
    }

    fn wait(&self) {
        while self.is_shut.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Passes on bytes until one side ends, each part of them after `wait`.
fn pass(mut from: TcpStream, mut to: TcpStream, wait: impl Fn()) {
    let mut part = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut part) {
        wait();
        if to.write_all(&part[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// What the simulated service shows at random, here on purpose: old readings without a word, its own write that is
/// refused by what it has not seen, and from then on all that refused it.
#[tokio::test]
async fn a_session_at_a_lagging_server_reads_the_past_and_writes_the_present() {
    let gate = Gate::default();
    let ensemble = Ensemble::start_through(3, |server, port| match server {
        BEHIND => gate.way(port),
        _ => port,
    });
    let at = |server: usize| format!("zookeeper://{}/behind", ensemble.servers[server - 1].address());
    let (writer, reader) = (open(options(&at(BEHIND + 1))).await, open(options(&at(BEHIND))).await);
    let (document, other) = (path("/document"), path("/other"));
    create(&writer, "/document", "0", CreateMode::Persistent).await;
    for round in 1..=5_u32 {
        let (before, now) = (Bytes::from((round - 1).to_string()), Bytes::from(round.to_string()));
        while read(&reader, "/document").await.as_ref() != Some(&before) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (found, watch) = reader.get_and_watch(&document).await.unwrap();
        let version = found.unwrap().stat.version;

        gate.set(true);
        writer.set(&document, now.clone(), Expected::Version(version)).await.unwrap();
        assert_eq!(writer.get(&document).await.unwrap().data, now, "a session sees its own writes");
        for _ in 0..20 {
            assert_eq!(reader.get(&document).await.unwrap().data, before, "its server does not know better");
        }
        assert!(!watch.has_fired());
        // The leader decides on it, by what is.
        let replaced = reader.set(&document, Bytes::from_static(b"over it"), Expected::Version(version));
        let made = reader.create(&other, Bytes::new(), CreateMode::Persistent);
        let opened = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            gate.set(false);
        };
        let (replaced, made, ()) = tokio::join!(replaced, made, opened);
        assert_eq!(replaced, Err(CoordinationError::BadVersion { path: document.clone() }));
        made.unwrap();
        assert_eq!(reader.get(&document).await.unwrap().data, now, "a refused write shows what refused it");
        assert!(watch.has_fired(), "the event comes before the change");
        reader.delete(&other, Expected::Any).await.unwrap();
    }
    // It was never without a connection: what was read was the server's.
    wait_until("the server follows", || ensemble.servers[BEHIND - 1].ask("srvr").contains("Mode: follower"));
    for session in [&writer, &reader] {
        assert_eq!(session.close().await, Ok(()));
    }
}
