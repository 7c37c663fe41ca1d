//! Frames as they are, for what no library for clients does.

use node::Worker;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Kinds of frames.
const HEADERS: u8 = 1;
pub(super) const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// A connection by HTTP/2, frame by frame.
pub(super) struct Frames {
    pub(super) stream: DuplexStream,
    next_stream: u32,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) body: Vec<u8>,
}

impl Frame {
    /// Of GOAWAY: the reason.
    pub(super) fn reason(&self) -> u32 {
        u32::from_be_bytes(self.body[4..8].try_into().unwrap())
    }
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// The head of a GET of this path, as HPACK without tables has it.
fn get(path: &str) -> Vec<u8> {
    let text =
        |index: u8, text: &str| [&[index, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // `:method: GET`, `:scheme: https`, and names of the static table with values.
    [vec![0x82, 0x87], text(4, path), text(1, "localhost")].concat()
}

impl Frames {
    pub(super) async fn open(worker: &Worker, buffer: usize) -> Frames {
        let (mut stream, theirs) = tokio::io::duplex(buffer);
        let door = worker.http.clone();
        tokio::spawn(async move { door.serve_streams(theirs, "192.0.2.8:40001".to_owned()).await });
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        Frames { stream, next_stream: 1 }
    }

    /// The frame that opens one more stream with a GET of this path, and the number of the stream.
    pub(super) fn asking(&mut self, path: &str) -> (u32, Vec<u8>) {
        let stream = self.next_stream;
        self.next_stream += 2;
        // END_STREAM and END_HEADERS.
        (stream, frame(HEADERS, 5, stream, &get(path)))
    }

    /// The next frame; `None` at the end of the connection.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body).await.ok()?;
        Some(Frame { kind: head[3], body })
    }

    /// Why the connection was ended.
    pub(super) async fn ended(&mut self) -> u32 {
        loop {
            let frame = self.next().await.expect("it says why it ends");
            if frame.kind == GOAWAY {
                return frame.reason();
            }
        }
    }
}
