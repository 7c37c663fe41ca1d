//! Just enough of the protocol of Redis: a command, its reply, and limits on both.
//!
//! A reply is believed in nothing but its form: its size is bounded, and it must come in time.
//!
//! Must never: show a password, be it in an error or in the log.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::adapter::rpc::{CREDENTIALS, RpcFailure};

/// How long a server may take to accept a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a server may take for a command, unless the caller says otherwise.
pub(super) const REPLY_TIME_MAX: Duration = Duration::from_secs(3);
/// Bytes of one reply with all that is in it. The list of a thousand members with all slots on the move has less.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// Bytes of the line with which a reply begins, so also of an error.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Lists within lists.
const DEPTH_MAX: usize = 4;
/// Bytes of a file with a password.
const PASSWORD_BYTES_MAX: usize = 1024;
/// Letters of a server's words that an error keeps.
const WORDS_MAX: usize = 160;

/// A reply that is no error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RedisReply {
    Status(String),
    Error(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
    List(Vec<RedisReply>),
}

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The connection is of no use any more, and nobody knows whether the command was carried out.
    Lost(String),
    /// The server has refused it, in these words.
    Said(String),
    /// It refuses the credentials, or there are none.
    Credentials(String),
}

impl Trouble {
    /// What to tell people.
    pub(super) fn words(&self) -> &str {
        let (Trouble::Lost(words) | Trouble::Said(words) | Trouble::Credentials(words)) = self;
        words
    }
}

impl From<Trouble> for RpcFailure {
    fn from(trouble: Trouble) -> RpcFailure {
        match trouble {
            Trouble::Lost(words) | Trouble::Said(words) => RpcFailure::passing(words),
            Trouble::Credentials(words) => RpcFailure {
                code: CREDENTIALS,
                message: format!(
                    "{words}; give the adapter the right ones with --username and --password-file"
                ),
            },
        }
    }
}

/// With which name and password servers are called. The password is read anew for each connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password_file: Option<PathBuf>,
}

impl Credentials {
    /// The first line of the password's file.
    pub(super) fn password(&self) -> Result<Option<Vec<u8>>, Trouble> {
        let Some(file) = &self.password_file else { return Ok(None) };
        let told = |why: String| Trouble::Credentials(format!("cannot read {}: {why}", file.display()));
        let text = std::fs::read(file).map_err(|error| told(error.to_string()))?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
        match line.len() {
            1..=PASSWORD_BYTES_MAX => Ok(Some(line.to_vec())),
            bytes => Err(told(format!(
                "its first line has {bytes} bytes, and a password 1 to {PASSWORD_BYTES_MAX}"
            ))),
        }
    }

    /// The words by which a server proves itself to another one in MIGRATE.
    pub(super) fn of_migrate(&self) -> Result<Vec<Vec<u8>>, Trouble> {
        let Some(password) = self.password()? else { return Ok(Vec::new()) };
        Ok(match &self.username {
            Some(name) => vec![b"AUTH2".to_vec(), name.clone().into_bytes(), password],
            None => vec![b"AUTH".to_vec(), password],
        })
    }
}

/// A connection, on which one command is under way at a time.
pub(super) struct Link {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    /// What the server's clock said, in microseconds, and when that was here.
    clock: Option<(u64, Instant)>,
}

impl Link {
    /// Connects, and shows its credentials.
    pub(super) async fn open(address: SocketAddr, credentials: &Credentials) -> Result<Link, Trouble> {
        let lost = |why: String| Trouble::Lost(format!("{address} cannot be reached: {why}"));
        let stream = timeout(CONNECT_TIME_MAX, TcpStream::connect(address)).await;
        let stream = stream.map_err(|_| lost("no answer in time".to_owned()))?;
        let stream = stream.map_err(|error| lost(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| lost(error.to_string()))?;
        let mut link = Link { stream: BufReader::new(stream), address, clock: None };
        if let Some(password) = credentials.password()? {
            let mut words: Vec<&[u8]> = vec![b"AUTH"];
            words.extend(credentials.username.as_ref().map(|name| name.as_bytes()));
            words.push(&password);
            link.call(&words).await.map_err(|trouble| match trouble {
                Trouble::Said(why) => Trouble::Credentials(why),
                other => other,
            })?;
        }
        Ok(link)
    }

    /// Sends a command and waits for its reply.
    pub(super) async fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<RedisReply, Trouble> {
        self.call_within(words, REPLY_TIME_MAX).await
    }

    /// The same, for a command that may take long.
    pub(super) async fn call_within<W: AsRef<[u8]>>(
        &mut self,
        words: &[W],
        within: Duration,
    ) -> Result<RedisReply, Trouble> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        let exchange = async {
            self.stream.get_mut().write_all(&request).await.map_err(|error| error.to_string())?;
            let mut left = REPLY_BYTES_MAX;
            self.reply(DEPTH_MAX, &mut left).await
        };
        let reply = timeout(within, exchange).await;
        let reply = reply.unwrap_or_else(|_| Err(format!("no reply within {} s", within.as_secs())));
        match reply {
            Ok(RedisReply::Error(words)) => Err(refused(self.address, &words)),
            Ok(reply) => Ok(reply),
            Err(why) => Err(Trouble::Lost(format!("{} does not answer: {why}", self.address))),
        }
    }

    /// The text that a command answers.
    pub(super) async fn text(&mut self, words: &[&str]) -> Result<String, Trouble> {
        match self.call(words).await? {
            RedisReply::Bulk(Some(bytes)) => {
                String::from_utf8(bytes).map_err(|_| self.odd(words.join(" ").as_str()))
            }
            RedisReply::Status(text) => Ok(text),
            _ => Err(self.odd(words.join(" ").as_str())),
        }
    }

    /// What is told of a reply of another form.
    pub(super) fn odd(&self, command: &str) -> Trouble {
        Trouble::Lost(format!("{} answers {command} in another form than Redis does", self.address))
    }

    /// What the server's clock says by now, in microseconds. A server is asked once, and must not be far from then.
    pub(super) async fn clock_us(&mut self) -> Result<u64, Trouble> {
        if self.clock.is_none() {
            let asked = Instant::now();
            let RedisReply::List(parts) = self.call(&["TIME"]).await? else { return Err(self.odd("TIME")) };
            let parts: Option<Vec<u64>> = parts.iter().map(number).collect();
            let [seconds, micros] = parts.unwrap_or_default()[..] else { return Err(self.odd("TIME")) };
            self.clock = Some((seconds.saturating_mul(1_000_000).saturating_add(micros), asked));
        }
        let (then, asked) = self.clock.expect("it was asked right here");
        Ok(then.saturating_add(u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX)))
    }

    fn reply<'a>(
        &'a mut self,
        depth: usize,
        left: &'a mut usize,
    ) -> BoxFuture<'a, Result<RedisReply, String>> {
        Box::pin(async move {
            let line = self.line(left).await?;
            let (kind, rest) = line.split_at_checked(1).ok_or("an empty line")?;
            let size = || rest.parse::<usize>().map_err(|_| "a size that is no number".to_owned());
            match kind {
                "+" => Ok(RedisReply::Status(rest.to_owned())),
                "-" => Ok(RedisReply::Error(rest.to_owned())),
                ":" => rest.parse().map(RedisReply::Number).map_err(|_| "a number that is none".to_owned()),
                "$" | "*" if rest == "-1" => Ok(RedisReply::Bulk(None)),
                "$" => {
                    let mut bulk = vec![0; spend(left, size()?.saturating_add(2))?];
                    self.stream.read_exact(&mut bulk).await.map_err(|error| error.to_string())?;
                    bulk.truncate(bulk.len() - 2);
                    Ok(RedisReply::Bulk(Some(bulk)))
                }
                "*" if depth > 0 => {
                    let mut list = Vec::new();
                    for _ in 0..size()? {
                        list.push(self.reply(depth - 1, left).await?);
                    }
                    Ok(RedisReply::List(list))
                }
                _ => Err("this is no reply of Redis".to_owned()),
            }
        })
    }

    async fn line(&mut self, left: &mut usize) -> Result<String, String> {
        let mut line = Vec::new();
        let limit = LINE_BYTES_MAX as u64;
        let read = (&mut self.stream).take(limit).read_until(b'\n', &mut line).await;
        spend(left, read.map_err(|error| error.to_string())?)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None if line.is_empty() => Err("it closed the connection".to_owned()),
            None => Err("a line that has no end".to_owned()),
        }
    }
}

/// Takes bytes from what a reply may have.
fn spend(left: &mut usize, bytes: usize) -> Result<usize, String> {
    *left = left.checked_sub(bytes).ok_or_else(|| format!("a reply of more than {REPLY_BYTES_MAX} bytes"))?;
    Ok(bytes)
}

fn number(reply: &RedisReply) -> Option<u64> {
    match reply {
        RedisReply::Bulk(Some(bytes)) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        RedisReply::Number(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn refused(address: SocketAddr, words: &str) -> Trouble {
    let cut: String = words.chars().filter(|one| !one.is_control()).take(WORDS_MAX).collect();
    let told = format!("{address} refuses: {cut}");
    match ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|code| words.starts_with(code)) {
        true => Trouble::Credentials(told),
        false => Trouble::Said(told),
    }
}
