//! Plain commands that begin at the same moment travel together: all gets are one request of many keys, all sets
//! another, all deletes a third. Each key keeps its own outcome. A get is answered as soon as its own value is
//! known, sets and deletes that travelled together are answered together.
//!
//! Must never: wait for more commands.

use std::sync::Arc;

use bytes::Bytes;
use model::Key;
use model::limits::MULTI_KEYS_MAX;
use parking_lot::Mutex;
use protocol::admission::Permit;
use protocol::pipeline::COMMANDS_MAX;
use runtime::BoxFuture;
use wire::error::ErrorCode;
use wire::messages::{Failure, Got, RequestOptions};
use wire::resp::Command;

use super::commands::keys::delete_each;
use super::commands::{self, Kind, strings};
use super::reply::DoorReply;
use super::room::Room;
use crate::front::{Front, StampEntry};
use crate::stores::WriteOrder;

const _: () = assert!(COMMANDS_MAX <= MULTI_KEYS_MAX, "one request holds the keys of all commands");

/// A command's place in the order of answers, and among the requests under way.
pub(super) struct TogetherTurn {
    pub(super) number: u64,
    pub(super) permit: Permit,
}

/// Answers of commands that are done, each with the command's number.
#[derive(Clone)]
pub(super) struct Answers {
    done: Arc<Mutex<Vec<(u64, DoorReply)>>>,
    room: Arc<Room>,
}

impl Answers {
    /// None so far.
    pub(super) fn new(room: Arc<Room>) -> Answers {
        Answers { done: Arc::default(), room }
    }

    /// The room for them until their turn.
    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    /// A command is done.
    fn give(&self, turn: TogetherTurn, reply: DoorReply) {
        self.room.hold(reply.bytes_len());
        self.put(turn, reply);
    }

    /// A command that only reads is done, if there is room for its answer. Otherwise its turn comes back.
    fn offer(&self, turn: TogetherTurn, reply: DoorReply) -> Result<(), TogetherTurn> {
        match self.room.take(turn.number, reply.bytes_len()) {
            true => {
                self.put(turn, reply);
                Ok(())
            }
            false => Err(turn),
        }
    }

    fn put(&self, TogetherTurn { number, permit }: TogetherTurn, reply: DoorReply) {
        self.done.lock().push((number, reply));
        drop(permit);
    }

    /// What has been given since.
    pub(super) fn take(&self) -> Vec<(u64, DoorReply)> {
        std::mem::take(&mut self.done.lock())
    }
}

/// Where commands are carried out, and where their answers go.
#[derive(Clone)]
pub(super) struct Means {
    pub(super) front: Arc<Front>,
    pub(super) store: Arc<str>,
    pub(super) answers: Answers,
}

impl Means {
    /// Carries out one command for itself.
    async fn run(&self, mut turn: TogetherTurn, kind: Kind, command: Command) {
        // While there is no room at all, nothing begins.
        let (room, mut reserved) = (self.answers.room(), 1);
        loop {
            room.reserve(turn.number, reserved).await;
            let reply = commands::run(&self.front, &self.store, kind, &command).await;
            room.release(reserved);
            if !kind.only_reads() {
                return self.answers.give(turn, reply);
            }
            reserved = reply.bytes_len();
            match self.answers.offer(turn, reply) {
                Ok(()) => return,
                Err(again) => turn = again,
            }
        }
    }

    fn refuse_all<T>(&self, all: impl IntoIterator<Item = (TogetherTurn, T)>, failure: &Failure) {
        all.into_iter().for_each(|(turn, _)| self.answers.give(turn, DoorReply::failure(failure)));
    }
}

/// Largest set, with its key, that travels with others. A larger one costs by its bytes, which company does not make
/// fewer, and all of a message must arrive before any of it is acknowledged.
const SET_BYTES_MAX: usize = 64 * 1024;

/// What begins at one moment.
#[derive(Default)]
pub(super) struct Together {
    gets: Vec<(TogetherTurn, Command)>,
    puts: Vec<(TogetherTurn, (Command, WriteOrder))>,
    deletes: Vec<(TogetherTurn, Command)>,
    others: Vec<(TogetherTurn, Kind, Command)>,
}

impl Together {
    /// Adds a command.
    pub(super) fn add(&mut self, front: &Front, turn: TogetherTurn, kind: Kind, command: Command) {
        let one_key = command.len() == 2;
        match kind {
            _ if !kind.keys(&command).all(|key| Key::check(key).is_ok()) => {
                self.others.push((turn, kind, command));
            }
            Kind::Get => self.gets.push((turn, command)),
            Kind::Del | Kind::Unlink if one_key => self.deletes.push((turn, command)),
            _ if command.bytes_len() > SET_BYTES_MAX => self.others.push((turn, kind, command)),
            _ => match strings::plain_order(kind, &command, front.now()) {
                Some(order) => self.puts.push((turn, (command, order))),
                None => self.others.push((turn, kind, command)),
            },
        }
    }

    /// Whether there is nothing to begin.
    pub(super) fn is_empty(&self) -> bool {
        self.gets.is_empty() && self.puts.is_empty() && self.deletes.is_empty() && self.others.is_empty()
    }

    /// The requests that carry them out.
    pub(super) fn begin(self, place: &Means) -> Vec<BoxFuture<'static, ()>> {
        let Together { mut gets, mut puts, mut deletes, mut others } = self;
        // One alone takes the shorter way of a single key.
        if gets.len() == 1 {
            others.extend(gets.drain(..).map(|(turn, command)| (turn, Kind::Get, command)));
        }
        if puts.len() == 1 {
            let single = |(turn, (command, _)): (TogetherTurn, (Command, WriteOrder))| {
                let kind = Kind::of(command.name()).expect("its kind was known when it was added");
                (turn, kind, command)
            };
            others.extend(puts.drain(..).map(single));
        }
        if deletes.len() == 1 {
            others.extend(deletes.drain(..).map(|(turn, command)| (turn, Kind::Del, command)));
        }
        let mut begun: Vec<BoxFuture<'static, ()>> = Vec::new();
        if !puts.is_empty() {
            begun.push(Box::pin(put(place.clone(), puts)));
        }
        if !gets.is_empty() {
            begun.push(Box::pin(get(place.clone(), gets)));
        }
        if !deletes.is_empty() {
            begun.push(Box::pin(delete(place.clone(), deletes)));
        }
        for (turn, kind, command) in others {
            let place = place.clone();
            begun.push(Box::pin(async move { place.run(turn, kind, command).await }));
        }
        begun
    }
}

fn key_of(command: &Command) -> Bytes {
    command.bytes(1).expect("the number of arguments was checked")
}

/// What a get of many keys has not read, because the values before it filled the answer.
fn is_unread(answer: &Result<Got, Failure>) -> bool {
    matches!(answer, Err(failure) if failure.code == ErrorCode::FrameTooLong)
}

async fn get(place: Means, mut gets: Vec<(TogetherTurn, Command)>) {
    let Means { front, store, answers } = &place;
    let room = answers.room();
    // Whose turn comes first is read first: it finds room whatever is held.
    gets.sort_by_key(|(turn, _)| turn.number);
    // Bytes of an answer that found no room.
    let mut lacking = 0;
    while let Some((first, _)) = gets.first() {
        // While there is no room at all, nothing begins.
        let mut reserved = lacking.max(1);
        room.reserve(first.number, reserved).await;
        // What would find no room is not read again.
        let asked = room.left().checked_div(lacking).map_or(gets.len(), |more| (1 + more).min(gets.len()));
        let mut turns: Vec<Option<(TogetherTurn, Command)>> = gets.drain(..asked).map(Some).collect();
        let keys: Vec<Bytes> = turns.iter().flatten().map(|(_, command)| key_of(command)).collect();
        lacking = 0;
        let deliver = &mut |position: usize, answer: Result<Got, Failure>| {
            if is_unread(&answer) {
                return;
            }
            room.release(std::mem::take(&mut reserved));
            let (turn, command) = turns[position].take().expect("each key is delivered once");
            let reply = strings::value_shown(&answer, front.now());
            let bytes = reply.bytes_len();
            if let Err(turn) = answers.offer(turn, reply) {
                (turns[position], lacking) = (Some((turn, command)), bytes);
            }
        };
        let whole = front.multi_get_each(store, keys, &RequestOptions::default(), deliver).await;
        room.release(reserved);
        let left: Vec<(TogetherTurn, Command)> = turns.into_iter().flatten().collect();
        if let Err(failure) = whole {
            return place.refuse_all(left.into_iter().chain(gets), &failure);
        }
        if left.len() < asked || lacking > 0 {
            gets.splice(..0, left);
            continue;
        }
        // What no answer can hold is said by the reads of single keys.
        for (turn, command) in left {
            place.run(turn, Kind::Get, command).await;
        }
    }
}

async fn put(place: Means, puts: Vec<(TogetherTurn, (Command, WriteOrder))>) {
    let Means { front, store, answers } = &place;
    let (mut turns, mut entries) = (Vec::with_capacity(puts.len()), Vec::with_capacity(puts.len()));
    for (turn, (command, order)) in puts {
        entries.push((key_of(&command), order));
        turns.push((turn, ()));
    }
    let written = front.multi_write(store, entries, &RequestOptions::default(), StampEntry::Client).await;
    match written {
        Err(failure) => place.refuse_all(turns, &failure),
        Ok(results) => {
            for ((turn, ()), result) in turns.into_iter().zip(results) {
                answers.give(
                    turn,
                    result.map_or_else(|failure| DoorReply::failure(&failure), |_| DoorReply::OK),
                );
            }
        }
    }
}

/// Deletes all keys at once.
async fn delete(place: Means, deletes: Vec<(TogetherTurn, Command)>) {
    let Means { front, store, answers } = &place;
    let keys: Vec<Bytes> = deletes.iter().map(|(_, command)| key_of(command)).collect();
    let mut turns: Vec<Option<(TogetherTurn, Command)>> = deletes.into_iter().map(Some).collect();
    let deliver = &mut |position: usize, answer: Result<bool, Failure>| {
        let (turn, _) = turns[position].take().expect("each key is delivered once");
        let reply = |existed| DoorReply::Integer(i64::from(existed));
        answers.give(turn, answer.map_or_else(|failure| DoorReply::failure(&failure), reply));
    };
    if let Err(failure) = delete_each(front, store, &keys, deliver).await {
        place.refuse_all(turns.into_iter().flatten(), &failure);
    }
}
