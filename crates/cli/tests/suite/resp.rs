//! Just enough of a Redis client to see the bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::cluster::PATIENCE;

/// A connection to a Redis door.
pub(crate) struct Redis {
    stream: BufReader<TcpStream>,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
    List(Vec<Reply>),
}

impl Redis {
    /// Connects.
    pub(crate) fn connect(address: &str) -> Redis {
        Redis { stream: BufReader::new(open(address)) }
    }

    /// Sends a command and reads its reply.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> Reply {
        self.send(words);
        self.reply()
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, words: &[&[u8]]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request).unwrap();
    }

    /// Reads a reply if one begins within that long.
    pub(crate) fn reply_within(&mut self, patience: Duration) -> Option<Reply> {
        self.stream.get_ref().set_read_timeout(Some(patience)).unwrap();
        let began = self.stream.fill_buf().is_ok();
        self.stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
        began.then(|| self.reply())
    }

    /// Reads a reply.
    pub(crate) fn reply(&mut self) -> Reply {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let rest = line.get(1..).unwrap_or_default().trim_end();
        match line.as_bytes().first() {
            Some(b'+') => Reply::Status(rest.to_owned()),
            Some(b'-') => Reply::Error(rest.to_owned()),
            Some(b':') => Reply::Number(rest.parse().unwrap()),
            Some(b'$') if rest == "-1" => Reply::Bulk(None),
            Some(b'$') => {
                let mut bulk = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bulk).unwrap();
                bulk.truncate(bulk.len() - 2);
                Reply::Bulk(Some(bulk))
            }
            Some(b'*') => Reply::List((0..rest.parse().unwrap()).map(|_| self.reply()).collect()),
            _ => panic!("no reply: {line:?}"),
        }
    }
}

/// A socket that does not wait for ever.
pub(crate) fn open(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends raw bytes, closes the sending side if `done`, and reads what comes until the other side closes.
pub(crate) fn raw(address: &str, bytes: &[u8], done: bool) -> Vec<u8> {
    let mut stream = open(address);
    stream.write_all(bytes).unwrap();
    if done {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let mut answer = Vec::new();
    // A reset after the answer is as good an end as any.
    let _ = stream.read_to_end(&mut answer);
    answer
}
