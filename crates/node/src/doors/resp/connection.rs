//! One connection: commands in, answers out, in order.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use model::Token;
use protocol::admission::Connection as Admitted;
use runtime::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use wire::messages::Failure;
use wire::resp::{Arrived, Command, CommandParser, HTTP, Limits, ReplyWriter, RespError, Seen};

use super::Door;
use super::commands::{self, Kind};
use super::reply::Reply;
use super::session::{Session, Speaking};
use super::transaction::Transaction;
use crate::doors::native::Rest;

/// Bytes that a read asks for at first when half a command has arrived; the ask doubles while reads fill it.
const READ_BYTES: usize = 16 * 1024;
/// Bytes that such a read asks for at most.
const READ_BYTES_MAX: usize = 128 * 1024;
/// Most bytes reserved at once for an argument that has only been announced.
const READ_AHEAD_BYTES_MAX: usize = 1024 * 1024;
/// Answers are sent at the latest when this many bytes wait.
const WRITE_BYTES: usize = 256 * 1024;
/// Most commands of one pipeline that run at the same time.
const RUNNING_MAX: usize = 128;

pub(super) async fn serve<S>(door: &Door, mut stream: S, session: Session, admitted: Arc<Admitted>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let limits = if session.authenticated { Limits::DEFAULT } else { Limits::UNAUTHENTICATED };
    let mut input = BytesMut::new();
    let mut connection = Connection {
        door,
        session,
        admitted,
        parser: CommandParser::new(limits),
        out: BytesMut::new(),
        borrowed: false,
        ask: READ_BYTES,
        running: FuturesOrdered::new(),
        busy: Vec::new(),
        taken: 0,
        rest: Rest::new(door.front.clock().clone(), door.shared.admission.limits().rest_time_max),
        closing: false,
    };
    connection.register();
    let mut coming = connection.admitted.coming();
    while !connection.closing {
        let lacking = connection.lacking(&input);
        // What has come of a command, and what is about to be reserved for the rest of it.
        if let Err(full) = coming.hold(if input.is_empty() { 0 } else { input.len() + lacking }) {
            // Where the next command begins is known only to whoever reads this one to its end.
            connection.answer(Reply::failure(&crate::doors::native::not_admitted(&full)));
            let (door, last_words) = (connection.door, connection.out.split());
            drop((input, coming));
            return door.part(stream, &last_words).await;
        }
        match connection.read(&mut input, &mut stream).await {
            Some(Ok(0) | Err(_)) => return,
            Some(Ok(_)) => {}
            None => {
                connection.answer(Reply::failure(&connection.rest.failure()));
                let (door, last_words) = (connection.door, connection.out.split());
                drop((input, coming));
                return door.part(stream, &last_words).await;
            }
        }
        // What has come whole is counted as a request from here on; holding nothing is never refused.
        let _ = coming.hold(0);
        connection.out = door.buffers.take();
        if connection.take_in(&mut input, &mut stream).await.is_err() {
            return;
        }
        door.buffers.give(std::mem::take(&mut connection.out));
        connection.give_back(&mut input);
    }
    // The other end may be gone already; either way the connection is over.
    let _ = stream.shutdown().await;
}

struct Connection<'a> {
    door: &'a Door,
    session: Session,
    /// Its account with the node.
    admitted: Arc<Admitted>,
    parser: CommandParser,
    /// Borrowed while commands are carried out.
    out: BytesMut,
    /// Whether the input is.
    borrowed: bool,
    /// Bytes that a read into a buffer of its own asks for.
    ask: usize,
    /// Commands under way, in the order of their answers.
    running: FuturesOrdered<BoxFuture<'static, Reply>>,
    /// Tokens of the keys that they touch.
    busy: Vec<u64>,
    /// Commands that came whole.
    taken: u64,
    rest: Rest,
    closing: bool,
}

impl Connection<'_> {
    /// Bytes to reserve for an argument of which only a part has come.
    fn lacking(&self, input: &BytesMut) -> usize {
        self.parser.bytes_lacking(input.len()).min(READ_AHEAD_BYTES_MAX)
    }

    /// Appends what arrives next: to a borrowed buffer, unless half a command waits in one of its own. `None` when the
    /// rest of that does not come in time.
    async fn read<S>(&mut self, input: &mut BytesMut, stream: &mut S) -> Option<std::io::Result<usize>>
    where
        S: AsyncRead + Unpin,
    {
        if !input.is_empty() {
            let come = input.len();
            input.reserve(self.ask.max(self.lacking(input)));
            let mut reading = pin!(stream.read_buf(input));
            let read = poll_fn(|context| match reading.as_mut().poll(context) {
                Poll::Ready(read) => Poll::Ready(Some(read)),
                Poll::Pending => self.rest.poll(self.taken, come, context).map(|()| None),
            });
            let read = read.await?;
            if read.as_ref().is_ok_and(|&read| read >= self.ask) {
                self.ask = (2 * self.ask).min(READ_BYTES_MAX);
            }
            return Some(read);
        }
        self.borrowed = true;
        let read = poll_fn(|context| {
            let mut buffer = self.door.buffers.take();
            let read = pin!(stream.read_buf(&mut buffer)).poll(context);
            match read {
                Poll::Pending => self.door.buffers.give(buffer),
                Poll::Ready(_) => *input = buffer,
            }
            read
        });
        Some(read.await)
    }

    /// Gives a borrowed buffer back, also when half a command is left in it: the rest may take its time.
    fn give_back(&mut self, input: &mut BytesMut) {
        if input.is_empty() {
            self.door.buffers.give(std::mem::take(input));
            (self.borrowed, self.ask) = (false, READ_BYTES);
        } else if self.borrowed {
            let mut own = BytesMut::with_capacity(input.len() + READ_BYTES.max(self.lacking(input)));
            own.extend_from_slice(input);
            self.door.buffers.give(std::mem::replace(input, own));
            self.borrowed = false;
        }
    }

    /// Carries out every command that has arrived whole, and sends the answers.
    async fn take_in<S>(&mut self, input: &mut BytesMut, stream: &mut S) -> std::io::Result<()>
    where
        S: AsyncWrite + Unpin,
    {
        let mut taken = 0;
        while !self.closing {
            match self.parser.look(input) {
                Ok(Some(Arrived::Seen(seen))) => {
                    taken += 1;
                    match self.at_once(&seen, input) {
                        true => seen.pass(input),
                        false => self.carry_out(seen.take(input)).await,
                    }
                }
                Ok(Some(Arrived::Taken(command))) => {
                    taken += 1;
                    self.carry_out(command).await;
                }
                Ok(None) => break,
                Err(RespError::Foreign { looks_like: HTTP }) => self.close_http(),
                Err(error) => {
                    self.finish_running().await;
                    ReplyWriter::new(&mut self.out, self.session.protocol).error(&format!("ERR {error}"));
                    self.closing = true;
                }
            }
            if self.out.len() >= WRITE_BYTES {
                self.send(stream).await?;
            }
        }
        self.taken += taken;
        self.door.shared.commands.fetch_add(taken, Ordering::Relaxed);
        self.finish_running().await;
        self.send(stream).await
    }

    async fn send<S: AsyncWrite + Unpin>(&mut self, stream: &mut S) -> std::io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let sent = stream.write_all(&self.out).await;
        self.out.clear();
        sent
    }

    async fn carry_out(&mut self, command: Command) {
        let kind = Kind::of(command.name());
        if kind.is_none() && command.is_http() {
            return self.close_http();
        }
        if (kind.is_none() || self.session.transaction != Transaction::None)
            && let Some(reply) = self.session.transaction.answer(&command, self.session.authenticated)
        {
            return self.answer_in_order(reply).await;
        }
        let Some(kind) = kind else {
            return self.answer_in_order(commands::unknown(&command)).await;
        };
        if !self.session.authenticated && !kind.allowed_unauthenticated() {
            return self.answer_in_order(Reply::Error("NOAUTH Authentication required.".to_owned())).await;
        }
        if command.dropped() > 0 {
            return self.answer_in_order(kind.too_long(&command)).await;
        }
        if let Some(refusal) = kind.check_arity(&command) {
            return self.answer_in_order(refusal).await;
        }
        if kind.is_about_session() {
            self.finish_running().await;
            let reply = commands::session::run(self.door, &mut self.session, kind, &command).await;
            self.register();
            self.closing |= kind == Kind::Quit;
            if self.session.authenticated {
                self.parser.set_limits(Limits::DEFAULT);
            }
            return self.answer(reply);
        }
        if kind.is_about_all_keys() {
            self.finish_running().await;
            self.start(kind, command).await;
            return self.finish_running().await;
        }
        self.start(kind, command).await;
    }

    /// Answers plain GET and SET when this node alone can; most requests of a small cluster end here.
    fn at_once(&mut self, command: &Seen, input: &[u8]) -> bool {
        let Session { authenticated, speaking, transaction, .. } = self.session;
        let plainly = authenticated && speaking == Speaking::On && transaction == Transaction::None;
        if !self.running.is_empty() || !plainly {
            return false;
        }
        let kind = command.arg(input, 0).and_then(Kind::of);
        let plain = match kind {
            Some(Kind::Get) => command.len() == 2,
            Some(Kind::Set) => command.len() == 3,
            _ => false,
        };
        if !plain {
            return false;
        }
        let front = &self.door.front;
        let fresh = matches!(&self.session.current,
            Some((view, _)) if view.cluster().generation == front.replica().view().generation());
        if !fresh {
            self.session.current = front.current(&self.session.store).ok();
        }
        let Some((view, store)) = &self.session.current else { return false };
        let Some(key) = command.arg(input, 1) else { return false };
        if model::Key::check(key).is_err() {
            return false;
        }
        let mut writer = ReplyWriter::new(&mut self.out, self.session.protocol);
        if kind == Some(Kind::Get) {
            let shown = front.get_now(view, store, key, &mut |value| writer.bulk(value));
            match shown {
                None => return false,
                Some(Ok(true)) => {}
                Some(Ok(false)) => writer.null(),
                Some(Err(failure)) => writer.error(&failure_text(&failure)),
            }
            return true;
        }
        let Some(value) = command.arg(input, 2) else { return false };
        match front.put_now(view, store, key, value) {
            None => return false,
            Some(Ok(())) => writer.ok(),
            Some(Err(failure)) => writer.error(&failure_text(&failure)),
        }
        true
    }

    /// Starts a command on keys; waits first for running commands on the same keys.
    async fn start(&mut self, kind: Kind, command: Command) {
        let tokens: Vec<u64> = kind.keys(&command).map(|key| Token::of(key).0).collect();
        let conflict = tokens.iter().any(|token| self.busy.contains(token));
        if conflict || self.running.len() >= RUNNING_MAX {
            self.finish_running().await;
        }
        self.busy.extend(tokens);
        match self.admitted.admit(command.bytes_len()) {
            Ok(permit) => {
                let (front, store) = (self.door.front.clone(), self.session.store.clone());
                self.running.push_back(Box::pin(async move {
                    let reply = commands::run(front, store, kind, command).await;
                    drop(permit);
                    reply
                }));
            }
            // In its turn: clients tell answers by their order.
            Err(full) => {
                let refused = Reply::failure(&crate::doors::native::not_admitted(&full));
                self.running.push_back(Box::pin(std::future::ready(refused)));
            }
        }
    }

    async fn finish_running(&mut self) {
        if self.running.is_empty() {
            return;
        }
        while let Some(reply) = self.running.next().await {
            self.answer(reply);
        }
        self.busy.clear();
    }

    /// Closes a connection that speaks HTTP: a browser or a proxy was made to send it, and what it says is not what its
    /// sender means. Commands that have not been answered are dropped.
    fn close_http(&mut self) {
        self.door.warn_of_http(&self.session.peer);
        if self.running.is_empty() {
            let error = RespError::Foreign { looks_like: HTTP };
            ReplyWriter::new(&mut self.out, self.session.protocol).error(&format!("ERR {error}"));
        }
        self.running = FuturesOrdered::new();
        self.closing = true;
    }

    async fn answer_in_order(&mut self, reply: Reply) {
        self.finish_running().await;
        self.answer(reply);
    }

    fn answer(&mut self, reply: Reply) {
        match self.session.speaking {
            Speaking::On => reply.encode(self.session.protocol, &mut self.out),
            Speaking::Off => {}
            Speaking::SkipThis => self.session.speaking = Speaking::SkipNext,
            Speaking::SkipNext => self.session.speaking = Speaking::On,
        }
    }

    fn register(&self) {
        self.door.shared.clients.lock().insert(self.session.id, self.session.describe());
    }
}

fn failure_text(failure: &Failure) -> String {
    match Reply::failure(failure) {
        Reply::Error(text) => text,
        _ => failure.to_string(),
    }
}
