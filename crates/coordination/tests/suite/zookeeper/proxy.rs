//! A proxy before one server, which does to connections what networks do, at a frame of the tester's choice.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// What happens to frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// They pass.
    Forward,
    /// The next request is lost, and all connections with it. Then as `Refuse`.
    CutBeforeRequest,
    /// The next request is carried out, its answer is lost, and all connections with it. Then as `Refuse`.
    CutBeforeAnswer,
    /// They are lost, and connections stay.
    Silent,
    /// Connections are closed.
    Refuse,
}

struct Shared {
    rule: Rule,
    streams: Vec<TcpStream>,
}

impl Shared {
    fn cut(&mut self, rule: Rule) {
        self.rule = rule;
        for stream in self.streams.drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// See the module.
pub(super) struct Proxy {
    address: String,
    shared: Arc<Mutex<Shared>>,
}

/// Which way a frame goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Answer,
}

impl Proxy {
    /// Begins to listen, in threads that end with the process.
    pub(super) fn start(server: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Mutex::new(Shared { rule: Rule::Forward, streams: Vec::new() }));
        let known = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A server that is gone refuses its proxy's clients.
                let Ok(upstream) = TcpStream::connect(&server) else { continue };
                let mut shared = known.lock();
                if shared.rule == Rule::Refuse {
                    continue;
                }
                shared.streams.extend([client.try_clone().unwrap(), upstream.try_clone().unwrap()]);
                for (way, from, to) in [
                    (Way::Request, client.try_clone().unwrap(), upstream.try_clone().unwrap()),
                    (Way::Answer, upstream, client),
                ] {
                    let known = known.clone();
                    std::thread::spawn(move || drop(pump(way, from, to, &known)));
                }
            }
        });
        Proxy { address, shared }
    }

    /// The address of an ensemble with the proxy in front.
    pub(super) fn address(&self, chroot: &str) -> String {
        format!("zookeeper://{}{chroot}", self.address)
    }

    /// Makes a rule.
    pub(super) fn set(&self, rule: Rule) {
        let mut shared = self.shared.lock();
        match rule {
            Rule::Refuse => shared.cut(rule),
            _ => shared.rule = rule,
        }
    }
}

/// Hands on frames, each a length and this many bytes, as the rule says.
fn pump(way: Way, mut from: TcpStream, mut to: TcpStream, shared: &Mutex<Shared>) -> io::Result<()> {
    // The first frame is about the session, and has no number.
    let mut greeting = true;
    loop {
        let mut length = [0; 4];
        let read = from.read_exact(&mut length);
        if let Err(error) = read {
            let _ = to.shutdown(Shutdown::Both);
            return Err(error);
        }
        let mut frame = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
        from.read_exact(&mut frame)?;
        // Pings, events and watches that are set again have numbers below zero.
        let numbered =
            !greeting && frame.first_chunk().is_some_and(|number: &[u8; 4]| i32::from_be_bytes(*number) > 0);
        greeting = false;
        let mut shared = shared.lock();
        match (shared.rule, way) {
            (Rule::CutBeforeRequest, Way::Request) | (Rule::CutBeforeAnswer, Way::Answer) if numbered => {
                shared.cut(Rule::Refuse);
                return Ok(());
            }
            (Rule::Silent, _) => continue,
            _ => drop(shared),
        }
        to.write_all(&length)?;
        to.write_all(&frame)?;
    }
}
