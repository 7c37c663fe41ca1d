//! A server that speaks just enough RESP to do the wrong thing at the right moment.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// What the server does with one command.
pub(crate) enum Act {
    /// Sends these bytes.
    Reply(Vec<u8>),
    /// Waits, then sends these bytes.
    Stall(Duration, Vec<u8>),
    /// Closes the connection without a word.
    HangUp,
    /// Says nothing and goes on listening.
    Ignore,
}

pub(crate) fn ok() -> Act {
    Act::Reply(b"+OK\r\n".to_vec())
}

pub(crate) fn bulk(value: &[u8]) -> Act {
    let mut reply = format!("${}\r\n", value.len()).into_bytes();
    reply.extend_from_slice(value);
    reply.extend_from_slice(b"\r\n");
    Act::Reply(reply)
}

/// Starts a server; `decide` is asked about every command, on every connection. Returns its address.
pub(crate) fn start(decide: impl Fn(&[Vec<u8>]) -> Act + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let decide = Arc::new(decide);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let decide = Arc::clone(&decide);
            thread::spawn(move || serve(&stream, &*decide));
        }
    });
    address
}

fn serve(stream: &TcpStream, decide: impl Fn(&[Vec<u8>]) -> Act) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let command = command(&mut reader)?;
        let mut writer = stream;
        match decide(&command) {
            Act::Reply(bytes) => writer.write_all(&bytes).ok()?,
            Act::Stall(duration, bytes) => {
                thread::sleep(duration);
                writer.write_all(&bytes).ok()?;
            }
            Act::HangUp => return None,
            Act::Ignore => {}
        }
    }
}

fn command(reader: &mut BufReader<&TcpStream>) -> Option<Vec<Vec<u8>>> {
    let number = |reader: &mut BufReader<&TcpStream>| -> Option<usize> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.get(1..)?.trim().parse().ok()
    };
    let count = number(reader)?;
    (0..count)
        .map(|_| {
            let mut argument = vec![0; number(reader)? + 2];
            reader.read_exact(&mut argument).ok()?;
            argument.truncate(argument.len() - 2);
            Some(argument)
        })
        .collect()
}
