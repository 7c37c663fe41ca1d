//! Any server that speaks RESP2: real Redis and Tontine alike.
//!
//! A batch is one write of all its commands, then reads until every reply is there. An answer's time is taken
//! once per read of the socket, for all replies that came with it.

use std::io;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::resp_codec::{self, RespReply};
use super::{Outcome, Session, Target, TargetOpenError, TimedOutcome};
use crate::workload::Operation;

/// How much the receive buffer grows by: several replies of one KiB with every read.
const READ_BYTES: usize = 64 << 10;
/// How long a broken session waits before it connects again, so that a dead server is not hammered.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);
/// The longest reason kept of an error reply.
const REASON_LENGTH_MAX: usize = 60;
/// The sorted set that makes a range scan possible where keys have no order.
const INDEX_KEY: &[u8] = b"_index";
/// Error codes with which a server says that it does not know whether a write happened.
const INDETERMINATE_CODES: [&[u8]; 2] = [b"INDETERMINATE", b"TIMEOUT"];

/// A RESP2 server.
#[derive(Clone, Debug)]
pub struct RespTarget {
    /// `host:port`.
    pub address: String,
    /// The longest wait for a whole batch.
    pub timeout: Duration,
    /// Keep all keys in one sorted set as well, and answer scans from it, as YCSB's Redis binding does.
    pub scan_index: bool,
    /// Each write waits until so many replicas have acknowledged it (`WAIT`); 0: for none. One that fewer had within
    /// half of the timeout is in doubt.
    pub copies: u8,
    /// How it waits for copies.
    pub wait: Wait,
    /// The store of a Tontine that each connection chooses (`TONTINE.STORE`); `None` for the one that is there.
    pub store: Option<String>,
}

/// When a session waits for copies of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// After each write.
    EachWrite,
    /// At the end of each batch, for all writes of it.
    OncePerBatch,
}

impl RespTarget {
    /// A target with a timeout of ten seconds and no index.
    pub fn new(address: impl Into<String>) -> Self {
        RespTarget {
            address: address.into(),
            timeout: Duration::from_secs(10),
            scan_index: false,
            copies: 0,
            wait: Wait::EachWrite,
            store: None,
        }
    }

    async fn connect(&self) -> io::Result<RespConnection> {
        let connecting = TcpStream::connect(&self.address);
        let stream = tokio::time::timeout(self.timeout, connecting).await.map_err(io::Error::from)??;
        stream.set_nodelay(true)?;
        let mut connection = RespConnection { stream, received: BytesMut::with_capacity(READ_BYTES) };
        if let Some(store) = &self.store {
            let choosing = connection.choose(store);
            tokio::time::timeout(self.timeout, choosing).await.map_err(io::Error::from)??;
        }
        Ok(connection)
    }

    /// Sends one command and returns its reply as text: for `INFO`, `DBSIZE` and the like.
    ///
    /// # Errors
    /// As [`Target::open`]; an error reply is [`TargetOpenError::Refused`].
    pub async fn ask(&self, command: &[&[u8]]) -> Result<String, TargetOpenError> {
        let unreachable = |source| TargetOpenError::Unreachable { address: self.address.clone(), source };
        let refused = |detail| TargetOpenError::Refused { address: self.address.clone(), detail };
        let mut connection = self.connect().await.map_err(unreachable)?;
        let mut bytes = Vec::new();
        resp_codec::encode(command, &mut bytes);
        let exchange = async {
            connection.stream.write_all(&bytes).await?;
            connection.reply().await
        };
        let reply =
            tokio::time::timeout(self.timeout, exchange).await.map_err(|late| unreachable(late.into()))?;
        match reply.map_err(|error| refused(error.to_string()))?.0 {
            RespReply::Simple(text) | RespReply::Bulk(text) => {
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            RespReply::Integer(number) => Ok(number.to_string()),
            other => Err(refused(format!("{other:?}"))),
        }
    }
}

#[async_trait]
impl Target for RespTarget {
    fn describe(&self) -> String {
        format!("resp://{}", self.address)
    }

    async fn open(&self, sessions: usize) -> Result<Vec<Box<dyn Session>>, TargetOpenError> {
        let mut opened: Vec<Box<dyn Session>> = Vec::with_capacity(sessions);
        for _ in 0..sessions {
            opened.push(Box::new(self.open_one().await?));
        }
        Ok(opened)
    }
}

impl RespTarget {
    fn waits_after(&self, operation: &Operation) -> bool {
        self.copies > 0 && self.wait == Wait::EachWrite && operation.writes()
    }

    fn waits_after_batch(&self, batch: &[Operation]) -> bool {
        self.copies > 0 && self.wait == Wait::OncePerBatch && batch.iter().any(Operation::writes)
    }

    async fn open_one(&self) -> Result<RespSession, TargetOpenError> {
        let connection = self
            .connect()
            .await
            .map_err(|source| TargetOpenError::Unreachable { address: self.address.clone(), source })?;
        let connection = Some(connection);
        Ok(RespSession { target: self.clone(), connection, sending: Vec::new(), expected: Vec::new() })
    }
}

struct RespConnection {
    stream: TcpStream,
    received: BytesMut,
}

impl RespConnection {
    /// Chooses a store of a Tontine for all that follows.
    async fn choose(&mut self, store: &str) -> io::Result<()> {
        let mut bytes = Vec::new();
        resp_codec::encode(&[b"TONTINE.STORE", store.as_bytes()], &mut bytes);
        self.stream.write_all(&bytes).await?;
        match self.reply().await?.0 {
            RespReply::Error(text) => Err(io::Error::other(String::from_utf8_lossy(&text).into_owned())),
            _ => Ok(()),
        }
    }

    /// The next reply; `true` when the socket had to be read for it.
    async fn reply(&mut self) -> io::Result<(RespReply, bool)> {
        let mut read = false;
        loop {
            match resp_codec::decode(&mut self.received) {
                Ok(Some(reply)) => return Ok((reply, read)),
                Ok(None) => {}
                Err(malformed) => return Err(io::Error::new(io::ErrorKind::InvalidData, malformed)),
            }
            self.received.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            read = true;
        }
    }
}

struct RespSession {
    target: RespTarget,
    connection: Option<RespConnection>,
    sending: Vec<u8>,
    /// How many replies each operation of the batch gets.
    expected: Vec<u8>,
}

#[async_trait]
impl Session for RespSession {
    async fn run(&mut self, batch: &[Operation], answers: &mut Vec<TimedOutcome>) {
        let before = answers.len();
        if let Err(error) = self.exchange(batch, answers).await {
            self.connection = None;
            // Nothing of a batch that was never sent can have happened.
            let sent = error.kind() != io::ErrorKind::NotConnected;
            let reason = reason_of(&error);
            let at = Instant::now();
            for operation in &batch[answers.len() - before..] {
                let outcome = if sent && operation.writes() {
                    Outcome::Indeterminate(reason.clone())
                } else {
                    Outcome::Failed(reason.clone())
                };
                answers.push(TimedOutcome { outcome, at });
            }
        }
    }
}

impl RespSession {
    async fn exchange(&mut self, batch: &[Operation], answers: &mut Vec<TimedOutcome>) -> io::Result<()> {
        if self.connection.is_none() {
            tokio::time::sleep(RECONNECT_DELAY).await;
            let refused = |error| io::Error::new(io::ErrorKind::NotConnected, error);
            self.connection = Some(self.target.connect().await.map_err(refused)?);
        }
        self.sending.clear();
        self.expected.clear();
        for operation in batch {
            let replies = encode(operation, self.target.scan_index, &mut self.sending);
            let waits = self.target.waits_after(operation);
            if waits {
                self.encode_wait();
            }
            self.expected.push(replies + u8::from(waits));
        }
        if self.target.waits_after_batch(batch) {
            self.encode_wait();
        }
        let timeout = self.target.timeout;
        tokio::time::timeout(timeout, self.converse(batch, answers)).await.map_err(io::Error::from)?
    }

    fn encode_wait(&mut self) {
        let copies = self.target.copies.to_string();
        // Its answer must come before the batch is given up.
        let timeout_ms = (self.target.timeout / 2).as_millis().to_string();
        resp_codec::encode(&[b"WAIT", copies.as_bytes(), timeout_ms.as_bytes()], &mut self.sending);
    }

    async fn converse(&mut self, batch: &[Operation], answers: &mut Vec<TimedOutcome>) -> io::Result<()> {
        let connection = self.connection.as_mut().expect("exchange connects first");
        connection.stream.write_all(&self.sending).await?;
        let mut at = Instant::now();
        let mut pending_scans = Vec::new();
        let first = answers.len();
        for (operation, &replies) in batch.iter().zip(&self.expected) {
            let mut outcome = None;
            for number in 1..=replies {
                let (reply, read) = connection.reply().await?;
                if read {
                    at = Instant::now();
                }
                let copies = i64::from(self.target.copies);
                if self.target.waits_after(operation) && number == replies {
                    if outcome == Some(Outcome::Written) && !has_copies(&reply, copies) {
                        outcome = Some(too_few_copies());
                    }
                    continue;
                }
                // The first bad reply decides (a SET may be followed by the index's ZADD).
                if !outcome.as_ref().is_some_and(failed) {
                    outcome = Some(outcome_of(operation, reply));
                }
            }
            let outcome = outcome.unwrap_or_else(|| Outcome::Failed("scans are not offered".to_owned()));
            if let (Operation::Scan { .. }, Outcome::Values(_)) = (operation, &outcome) {
                pending_scans.push(answers.len());
            }
            answers.push(TimedOutcome { outcome, at });
        }
        debug_assert_eq!(answers.len() - first, batch.len());
        if self.target.waits_after_batch(batch) {
            let (reply, _) = connection.reply().await?;
            let (at, enough) = (Instant::now(), has_copies(&reply, i64::from(self.target.copies)));
            for answer in answers[first..].iter_mut().filter(|answer| answer.outcome == Outcome::Written) {
                answer.at = at;
                if !enough {
                    answer.outcome = too_few_copies();
                }
            }
        }
        for scan in pending_scans {
            let cut_short = Outcome::Failed("scan cut short".to_owned());
            let keys = std::mem::replace(&mut answers[scan].outcome, cut_short);
            answers[scan] = connection.fetch_range(keys).await?;
        }
        Ok(())
    }
}

impl RespConnection {
    /// The second half of an indexed scan: the values of the keys that the index named.
    async fn fetch_range(&mut self, keys: Outcome) -> io::Result<TimedOutcome> {
        let Outcome::Values(keys) = keys else { unreachable!("only named keys are fetched") };
        let keys: Vec<Bytes> = keys.into_iter().flatten().collect();
        if keys.is_empty() {
            return Ok(TimedOutcome { outcome: Outcome::Range(Vec::new()), at: Instant::now() });
        }
        let mut command: Vec<&[u8]> = vec![b"MGET"];
        command.extend(keys.iter().map(|key| &key[..]));
        let mut sending = Vec::new();
        resp_codec::encode(&command, &mut sending);
        self.stream.write_all(&sending).await?;
        let (reply, _) = self.reply().await?;
        let outcome = match reply {
            RespReply::Array(values) => {
                let pairs = keys.into_iter().zip(values).filter_map(|(key, value)| match value {
                    RespReply::Bulk(value) => Some((key, value)),
                    _ => None,
                });
                Outcome::Range(pairs.collect())
            }
            other => unexpected(&other),
        };
        Ok(TimedOutcome { outcome, at: Instant::now() })
    }
}

/// Appends the commands of one operation; returns how many replies they get.
fn encode(operation: &Operation, scan_index: bool, out: &mut Vec<u8>) -> u8 {
    match operation {
        Operation::Get { key } => resp_codec::encode(&[b"GET", key], out),
        Operation::Put { key, value } => {
            resp_codec::encode(&[b"SET", key, value], out);
            if scan_index {
                resp_codec::encode(&[b"ZADD", INDEX_KEY, b"0", key], out);
                return 2;
            }
        }
        Operation::Delete { key } => {
            resp_codec::encode(&[b"DEL", key], out);
            if scan_index {
                resp_codec::encode(&[b"ZREM", INDEX_KEY, key], out);
                return 2;
            }
        }
        Operation::MultiGet { keys } => {
            let mut command: Vec<&[u8]> = vec![b"MGET"];
            command.extend(keys.iter().map(|key| &key[..]));
            resp_codec::encode(&command, out);
        }
        Operation::Scan { start, count } => {
            if !scan_index {
                return 0;
            }
            let (from, count) = ([b"[", &start[..]].concat(), count.to_string());
            let command: [&[u8]; 7] =
                [b"ZRANGEBYLEX", INDEX_KEY, &from, b"+", b"LIMIT", b"0", count.as_bytes()];
            resp_codec::encode(&command, out);
        }
    }
    1
}

fn outcome_of(operation: &Operation, reply: RespReply) -> Outcome {
    match (operation, reply) {
        (_, RespReply::Error(text)) => {
            let reason = error_reason(&text);
            let code = text.split(|&byte| byte == b' ').next().unwrap_or_default();
            if operation.writes() && INDETERMINATE_CODES.contains(&code) {
                Outcome::Indeterminate(reason)
            } else {
                Outcome::Failed(reason)
            }
        }
        (Operation::Get { .. }, RespReply::Bulk(value)) => Outcome::Value(Some(value)),
        (Operation::Get { .. }, RespReply::Null) => Outcome::Value(None),
        (Operation::Put { .. }, RespReply::Simple(_) | RespReply::Integer(_))
        | (Operation::Delete { .. }, RespReply::Integer(_)) => Outcome::Written,
        (Operation::MultiGet { .. } | Operation::Scan { .. }, RespReply::Array(items)) => {
            let values = items.into_iter().map(|item| match item {
                RespReply::Bulk(value) => Some(value),
                _ => None,
            });
            Outcome::Values(values.collect())
        }
        (_, other) => unexpected(&other),
    }
}

/// Whether the reply to `WAIT` names this many replicas.
fn has_copies(reply: &RespReply, copies: i64) -> bool {
    matches!(reply, RespReply::Integer(acknowledged) if *acknowledged >= copies)
}

fn too_few_copies() -> Outcome {
    Outcome::Indeterminate("too few copies in time".to_owned())
}

fn failed(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(_) | Outcome::Indeterminate(_))
}

fn unexpected(reply: &RespReply) -> Outcome {
    let kind = match reply {
        RespReply::Simple(_) => "a status",
        RespReply::Error(text) => return Outcome::Failed(error_reason(text)),
        RespReply::Integer(_) => "an integer",
        RespReply::Bulk(_) => "a bulk string",
        RespReply::Null => "null",
        RespReply::Array(_) => "an array",
    };
    Outcome::Failed(format!("unexpected reply: {kind}"))
}

/// Error texts may carry keys; a bounded head of them is enough to count by.
fn error_reason(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().take(REASON_LENGTH_MAX).collect()
}

fn reason_of(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        io::ErrorKind::NotConnected => "cannot connect".to_owned(),
        io::ErrorKind::InvalidData => "malformed reply".to_owned(),
        kind => format!("connection lost ({kind})"),
    }
}
