//! One connection: commands in, answers out, in order.
//!
//! ```text
//!   read ─▶ take_in ─▶ Pipeline ─▶ begin: what may start now travels together ─▶ under way
//!                         ▲                                                        │
//!   send ◀─ answers in order ◀──────────────────────────── done ◀──────────────────┘
//! ```
//!
//! All of it goes on at the same time: what arrives while commands are under way starts at once, as far as there is
//! room, and an answer leaves as soon as all before it have.

mod at_once;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::Moment;
use protocol::admission::{self, ConnectionAccount, Permit};
use protocol::pipeline::Pipeline;
use runtime::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use wire::messages::Failure;
use wire::resp::{Arrived, Command, CommandLimits, CommandParser, HTTP, RespError};

use super::Door;
use super::commands::{self, Kind};
use super::reply::{DoorReply, ReplyRefusal};
use super::rights;
use super::session::{Session, Speaking};
use super::together::{Answers, Means, Together, TogetherTurn};
use super::transaction::Transaction;
use super::unread::{Standstill, Unread};
use crate::doors::closing::Leaving;
use crate::doors::counters::{Burst, Operation};
use crate::doors::native::{Rest, not_admitted};

/// Bytes that a read asks for at first when half a command has arrived; the ask doubles while reads fill it.
const READ_BYTES: usize = 16 * 1024;
/// Bytes that such a read asks for at most.
const READ_BYTES_MAX: usize = 128 * 1024;
/// Bytes of answers that were sent and are still held, at most, while others wait behind them.
const SENT_BYTES_MAX: usize = 256 * 1024;

pub(super) async fn serve<S>(door: &Door, mut stream: S, session: Session, admitted: Arc<ConnectionAccount>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let is_known = session.is_known(door.front.replica().view());
    let limits = if is_known { CommandLimits::DEFAULT } else { CommandLimits::UNAUTHENTICATED };
    let answers = Answers::new(session.client.room.clone());
    let mut input = BytesMut::new();
    let mut coming = admitted.coming();
    let mut connection = ClientConnection {
        door,
        session,
        admitted,
        parser: CommandParser::new(limits),
        out: BytesMut::new(),
        sent: 0,
        flushing: false,
        unread: Unread::new(door.front.clock().clone(), door.shared.unread.clone()),
        borrowed: false,
        ask: READ_BYTES,
        pipeline: Pipeline::default(),
        running: FuturesUnordered::new(),
        answers,
        taken: 0,
        paused: false,
        burst: Burst::new(door.counters.clone()),
        timed: Vec::new(),
        rest: Rest::new(door.front.clock().clone(), door.shared.admission.limits().rest_time_max),
        begun: coming.place(),
        leaving: Leaving::default(),
        end: None,
    };
    connection.register();
    loop {
        connection.carry_on(&mut input).await;
        if connection.is_over() {
            break;
        }
        connection.give_back(&mut input);
        // What has come of a command, and what is about to be reserved for the rest of it. What has come whole is
        // counted as a request; holding nothing is never refused.
        let begun = connection.end.is_none() && !connection.paused && !input.is_empty();
        let held = if begun { input.len() + connection.ahead(&input) } else { 0 };
        let now = if begun { door.front.clock().now() } else { Moment::default() };
        if let Err(full) = coming.hold(held, now) {
            // Where the next command begins is known only to whoever reads this one to its end.
            connection.part_with(&not_admitted(&full));
            continue;
        }
        match poll_fn(|context| connection.go_on(&mut input, &mut stream, context)).await {
            Came::Progress => {}
            Came::TooSlow(failure) => connection.part_with(&failure),
            Came::End => connection.end = connection.end.or(Some(ConnectionEnd::Gone)),
        }
    }
    door.shared.clients.lock().remove(&connection.session.id);
    match connection.end {
        Some(ConnectionEnd::Parts) => {
            let last_words = connection.out.split_off(connection.sent);
            drop((input, coming));
            door.part(stream, &last_words).await;
        }
        Some(ConnectionEnd::Closes) => {
            // The other end may be gone already; either way the connection is over.
            let _ = stream.shutdown().await;
        }
        _ => {}
    }
}

/// Why nothing more is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionEnd {
    /// The other end has said all that it has to say.
    Gone,
    /// Nothing can be sent any more; what is under way is finished all the same.
    Broken,
    /// The connection is closed after the last answer.
    Closes,
    /// So it is, and the other end, which goes on sending, is given time to read it.
    Parts,
}

/// Why the loop turns.
enum Came {
    /// Commands are done, bytes have come, or there is room again.
    Progress,
    /// The rest of a command did not come in time, or others got its room; or answers were not read.
    TooSlow(Failure),
    /// Nothing more will come.
    End,
}

/// A command that has come whole.
enum CommandTask {
    /// About the connection or the node.
    Session(Kind, Command),
    /// About keys.
    Keys(Kind, Command, Permit),
}

struct ClientConnection<'a> {
    door: &'a Door,
    session: Session,
    /// Its account with the node.
    admitted: Arc<ConnectionAccount>,
    parser: CommandParser,
    /// Answers that are being sent; borrowed while there are any.
    out: BytesMut,
    /// Bytes of it that the other end has.
    sent: usize,
    /// Whether some that were sent are not with the operating system yet.
    flushing: bool,
    /// How many may.
    unread: Unread,
    /// Whether the input is borrowed.
    borrowed: bool,
    /// Bytes that a read into its own buffer asks for.
    ask: usize,
    /// Commands that are not answered.
    pipeline: Pipeline<CommandTask, DoorReply>,
    /// Requests under way for them.
    running: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Where these give their answers.
    answers: Answers,
    /// Commands that came whole.
    taken: u64,
    /// Whether the input may hold commands for which there was no room.
    paused: bool,
    /// What is answered and not sent yet.
    burst: Burst,
    /// Commands under way whose latency is measured, with what they do and when they arrived.
    timed: Vec<(u64, Operation, Moment)>,
    rest: Rest,
    /// Where a command counts of which a part has come.
    begun: admission::InputRoom,
    leaving: Leaving,
    /// Set once.
    end: Option<ConnectionEnd>,
}

impl ClientConnection<'_> {
    /// Takes in what has come and starts what may start, until neither goes on.
    async fn carry_on(&mut self, input: &mut BytesMut) {
        loop {
            self.take_in(input);
            self.begin().await;
            self.encode(self.unread.bytes_max());
            if !(self.paused && self.has_room()) {
                return;
            }
        }
    }

    fn has_room(&self) -> bool {
        self.end.is_none() && self.pipeline.has_room() && !self.is_unread()
    }

    /// Whether as many answers wait to be sent as may.
    fn is_unread(&self) -> bool {
        self.answers.room().held() + self.unsent() >= self.unread.bytes_max()
    }

    /// Ends the connection between two commands when the door closes. Nothing more has come.
    fn leaves(&mut self, input: &BytesMut) -> bool {
        let between = input.is_empty() && self.pipeline.is_empty() && self.unsent() == 0;
        let leaves = self.leaving.is_due(self.door.shared.closing.stage(), self.taken, between);
        if leaves {
            self.end = Some(ConnectionEnd::Parts);
        }
        leaves
    }

    fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Whether nothing is left to do; what is left to say to one that is parted with is said in parting.
    fn is_over(&self) -> bool {
        let all_said = (self.unsent() == 0 && !self.flushing)
            || matches!(self.end, Some(ConnectionEnd::Parts | ConnectionEnd::Broken));
        self.end.is_some() && self.pipeline.is_empty() && all_said
    }

    /// Does what can be done now, and waits for more.
    fn go_on<S>(&mut self, input: &mut BytesMut, stream: &mut S, context: &mut Context<'_>) -> Poll<Came>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.session.client.waker.register(context.waker());
        if self.session.client.is_killed() {
            self.end = Some(ConnectionEnd::Broken);
        }
        while let Poll::Ready(Some(())) = self.running.poll_next_unpin(context) {}
        let mut progress = false;
        let mut now = None;
        for (number, reply) in self.answers.take() {
            if let Some(at) = self.timed.iter().position(|(timed, ..)| *timed == number) {
                let (_, operation, began) = self.timed.remove(at);
                // What is answered together is timed together.
                let now = *now.get_or_insert_with(|| self.door.front.clock().now());
                self.burst.counters().took_until(operation, began, now);
            }
            self.pipeline.done(number, reply);
            progress = true;
        }
        self.encode(self.unread.bytes_max());
        self.send(stream, context);
        if progress || (self.paused && self.has_room()) || self.is_over() {
            return Poll::Ready(Came::Progress);
        }
        if self.has_room() {
            let read = self.read(input, stream, context);
            return match read.is_pending() && self.leaves(input) {
                true => Poll::Ready(Came::Progress),
                false => read,
            };
        }
        if self.end.is_some() || self.unsent() == 0 || !self.is_unread() {
            return Poll::Pending;
        }
        self.unread.poll(context).map(|standstill| match standstill {
            Standstill::Raised => Came::Progress,
            Standstill::Over(failure) => Came::TooSlow(failure),
        })
    }

    /// Appends what has arrived: to a borrowed buffer, unless commands or half a command are in one already.
    fn read<S>(&mut self, input: &mut BytesMut, stream: &mut S, context: &mut Context<'_>) -> Poll<Came>
    where
        S: AsyncRead + Unpin,
    {
        let come = input.len();
        let own = come > 0 || !self.pipeline.is_empty();
        let read = if own {
            let lacking = self.parser.bytes_lacking(come);
            let fits = lacking > 0 && input.capacity() - come >= lacking;
            if !fits || come < READ_BYTES_MAX {
                input.reserve(self.ask.max(self.ahead(input)));
            }
            pin!(stream.read_buf(input)).poll(context)
        } else {
            let mut buffer = self.door.buffers.take();
            let read = pin!(stream.read_buf(&mut buffer)).poll(context);
            match read {
                Poll::Pending => self.door.buffers.give(buffer),
                Poll::Ready(_) => (*input, self.borrowed) = (buffer, true),
            }
            read
        };
        match read {
            Poll::Ready(Ok(0)) => Poll::Ready(Came::End),
            Poll::Ready(Ok(read)) => {
                if own && read >= self.ask {
                    self.ask = (2 * self.ask).min(READ_BYTES_MAX);
                }
                Poll::Ready(Came::Progress)
            }
            Poll::Ready(Err(_)) => {
                self.end = Some(ConnectionEnd::Broken);
                Poll::Ready(Came::End)
            }
            Poll::Pending if come > 0 => {
                let now = self.door.front.clock().now();
                if self.begun.poll(come, now, context).is_ready() {
                    return Poll::Ready(Came::TooSlow(not_admitted(&self.begun.too_slow())));
                }
                self.rest.poll(self.taken, come, context).map(|()| Came::TooSlow(self.rest.failure()))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Sends as much as the other end takes.
    fn send<S: AsyncWrite + Unpin>(&mut self, stream: &mut S, context: &mut Context<'_>) {
        self.burst.settle();
        if self.end == Some(ConnectionEnd::Broken) {
            self.drop_answers();
        }
        while self.sent < self.out.len() {
            match Pin::new(&mut *stream).poll_write(context, &self.out[self.sent..]) {
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.sent += count;
                    self.unread.sent();
                    // There may be room for the next answers.
                    self.encode(self.unread.bytes_max());
                }
                Poll::Ready(_) => {
                    self.end = Some(ConnectionEnd::Broken);
                    self.drop_answers();
                }
                Poll::Pending => {
                    if self.sent > SENT_BYTES_MAX {
                        self.out.advance(std::mem::take(&mut self.sent));
                    }
                    return;
                }
            }
        }
        self.out.clear();
        self.sent = 0;
        self.unread.all_sent();
        // What was encrypted, and not taken yet.
        self.flushing =
            self.end != Some(ConnectionEnd::Broken) && Pin::new(stream).poll_flush(context).is_pending();
    }

    /// Forgets all answers that there are: nobody reads them. The connection would wait for their turns for ever.
    fn drop_answers(&mut self) {
        while let Some(reply) = self.pipeline.next_answer() {
            self.answers.room().answered(reply.bytes_len(), self.pipeline.first());
        }
        self.sent = self.out.len();
    }

    /// Bytes to reserve for an argument of which only a part has come: no more than have come. Announcing costs nothing,
    /// so it reserves nothing.
    fn ahead(&self, input: &BytesMut) -> usize {
        self.parser.bytes_lacking(input.len()).min(input.len())
    }

    /// Gives buffers back that nobody needs before more comes, also when half a command is left in one: the rest may
    /// take its time. Commands that are not done still share the input.
    fn give_back(&mut self, input: &mut BytesMut) {
        if !self.pipeline.is_empty() || self.paused {
            return;
        }
        if self.out.is_empty() {
            self.door.buffers.give(std::mem::take(&mut self.out));
        }
        if input.is_empty() {
            self.door.buffers.give(std::mem::take(input));
            (self.borrowed, self.ask) = (false, READ_BYTES);
        } else if self.borrowed {
            let mut own = BytesMut::with_capacity(input.len() + READ_BYTES.max(self.ahead(input)));
            own.extend_from_slice(input);
            self.door.buffers.give(std::mem::replace(input, own));
            self.borrowed = false;
        }
    }

    /// Takes every command off the input that has arrived whole, as far as there is room.
    fn take_in(&mut self, input: &mut BytesMut) {
        let before = self.taken;
        while self.has_room() {
            match self.parser.look(input) {
                Ok(Some(Arrived::Seen(seen))) => {
                    self.taken += 1;
                    match self.at_once(&seen, input) {
                        true => seen.pass(input),
                        false => self.enter(seen.take(input)),
                    }
                }
                Ok(Some(Arrived::Taken(command))) => {
                    self.taken += 1;
                    self.enter(command);
                }
                Ok(None) => break,
                Err(RespError::Foreign { looks_like: HTTP }) => self.close_http(),
                Err(error) => {
                    self.answer_in_turn(DoorReply::err(error));
                    self.end = Some(ConnectionEnd::Closes);
                }
            }
        }
        self.paused = self.end.is_none() && !self.has_room();
        if self.taken > before {
            self.session.client.used(self.session.last, self.door.front.clock().now());
        }
        self.door.shared.commands.fetch_add(self.taken - before, Ordering::Relaxed);
    }

    /// Takes a command into the pipeline.
    fn enter(&mut self, command: Command) {
        let kind = Kind::of(command.name());
        if kind.is_none() && command.is_http() {
            return self.close_http();
        }
        if (kind.is_none() || self.session.transaction != Transaction::None)
            && let Some(reply) = self.session.transaction.answer(&command, self.session.authenticated)
        {
            return self.answer_in_turn(reply);
        }
        self.session.last = kind.or(self.session.last);
        let Some(kind) = kind else {
            return self.answer_in_turn(commands::unknown(&command));
        };
        if !self.session.authenticated && !kind.allowed_unauthenticated() {
            let refusal = rights::unauthenticated(self.door, &self.session, kind.name());
            return self.answer_in_turn(refusal);
        }
        if command.dropped() > 0 {
            return self.answer_in_turn(kind.too_long(&command));
        }
        if let Some(refusal) = kind.check_arity(&command) {
            return self.answer_in_turn(refusal);
        }
        if kind.is_answered_at_any_time() {
            return self.answer_in_turn(commands::session::run_at_any_time(kind, &command));
        }
        let (touches, bytes) = (kind.touches(&command), command.bytes_len());
        if kind.is_about_session() {
            return self.pipeline.enter(touches, bytes, CommandTask::Session(kind, command));
        }
        match self.admitted.admit(bytes) {
            Ok(permit) => self.pipeline.enter(touches, bytes, CommandTask::Keys(kind, command, permit)),
            // In its turn: clients tell answers by their order.
            Err(full) => self.answer_in_turn(DoorReply::failure(&not_admitted(&full))),
        }
    }

    /// Starts what may start, all of it together.
    async fn begin(&mut self) {
        let mut together = Together::default();
        while let Some((number, task)) = self.pipeline.start() {
            match task {
                CommandTask::Session(kind, command) => self.run_about_session(number, kind, &command).await,
                CommandTask::Keys(kind, command, permit) => {
                    if let Some(refusal) = rights::refused_keys(self.door, &self.session, kind, &command) {
                        self.answers.room().hold(refusal.bytes_len());
                        self.pipeline.done(number, refusal);
                        continue;
                    }
                    if let Some(operation) = kind.operation() {
                        self.timed.push((number, operation, self.burst.began()));
                    }
                    together.add(&self.door.front, TogetherTurn { number, permit }, kind, command);
                }
            }
        }
        if !together.is_empty() {
            let (front, answers) = (self.door.front.clone(), self.answers.clone());
            let place = Means { front, store: Arc::from(&*self.session.store), answers };
            self.running.extend(together.begin(&place));
        }
    }

    /// Carries out a command about the connection, which is alone in the pipeline by now.
    async fn run_about_session(&mut self, number: u64, kind: Kind, command: &Command) {
        // Answers before it are sent as the connection was then.
        self.encode(usize::MAX);
        let reply = match rights::refused_session(self.door, &self.session, kind) {
            Some(refusal) => refusal,
            None => commands::session::run(self.door, &mut self.session, kind, command).await,
        };
        self.register();
        if kind == Kind::Quit || self.session.closes {
            self.end = self.end.or(Some(ConnectionEnd::Closes));
        }
        if self.session.is_known(self.door.front.replica().view()) {
            self.parser.set_limits(CommandLimits::DEFAULT);
        }
        self.answers.room().hold(reply.bytes_len());
        self.pipeline.done(number, reply);
        self.encode(usize::MAX);
    }

    /// Closes a connection that speaks HTTP: a browser or a proxy was made to send it, and what it says is not what its
    /// sender means. Commands that have not been answered are dropped.
    fn close_http(&mut self) {
        self.door.warn_of_http(&self.session.peer);
        self.encode(usize::MAX);
        if self.pipeline.is_empty() {
            self.answer_in_turn(DoorReply::err(RespError::Foreign { looks_like: HTTP }));
        } else {
            // What is held for them is dropped with the connection.
            self.pipeline = Pipeline::default();
            self.answers.take();
            self.running.clear();
            self.timed.clear();
        }
        self.end = Some(ConnectionEnd::Closes);
    }

    fn answer_in_turn(&mut self, reply: DoorReply) {
        self.answers.room().hold(reply.bytes_len());
        self.pipeline.enter_answered(reply);
    }

    /// Says a last thing after all other answers, and reads no more.
    fn part_with(&mut self, failure: &Failure) {
        self.answer_in_turn(DoorReply::failure(failure));
        self.end = Some(ConnectionEnd::Parts);
    }

    /// Turns answers into bytes, in order, while fewer than `bytes_max` wait to be sent.
    fn encode(&mut self, bytes_max: usize) {
        while self.unsent() < bytes_max
            && let Some(reply) = self.pipeline.next_answer()
        {
            self.answers.room().answered(reply.bytes_len(), self.pipeline.first());
            if self.out.capacity() == 0 {
                self.out = self.door.buffers.take();
            }
            self.answer(&reply);
        }
    }

    fn answer(&mut self, reply: &DoorReply) {
        match reply.refusal() {
            None => {}
            Some(ReplyRefusal::Of(code)) => self.burst.counters().refused(code),
            Some(ReplyRefusal::Rejected) => self.burst.counters().rejected(),
        }
        match self.session.speaking {
            Speaking::On => reply.encode(self.session.protocol, &mut self.out),
            Speaking::Off => {}
            Speaking::SkipThis => self.session.speaking = Speaking::SkipNext,
            Speaking::SkipNext => self.session.speaking = Speaking::On,
        }
    }

    fn register(&self) {
        self.session.show(self.door.front.replica().view());
    }
}
