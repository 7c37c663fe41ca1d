//! Redis clients at work: pipelines of plain commands over a stream of bytes, on two stores, every command recorded.
//!
//! They know neither contexts nor versions. A reply says what a plain client sees and no more, so the history has
//! [`Outcome::Shown`] and [`Outcome::Acknowledged`] for it, and the judges make of them what they can.

mod replies;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, select};
use model::{Moment, NodeId};
use runtime::Ports;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::messages::Condition;
use wire::resp::{Reply, ReplyParser};

use crate::cluster::{LAST_WRITE, PLAIN, World, redis_address};
use crate::dice::Dice;
use crate::executor::{ProcessId, WallClock};
use crate::history::{Action, Basis, Lifetime, NOTHING_TO_DELETE, Operation, OperationId, Outcome, Recorder};
use crate::host::Host;
use crate::network::LinkStream;
use crate::plant::Plant;
use crate::workload::{MANY_MAX, TTLS_MS};
use replies::{acknowledged, changed, got_and_changed, refused, shown, stored};

/// Pause before a client that lost its connection opens another.
const CONNECT_AGAIN: Duration = Duration::from_millis(100);
/// Most commands of most pipelines.
const PIPELINE_MAX: u64 = 8;
/// Most commands of a long one, of which many are under way together.
const LONG_PIPELINE_MAX: u64 = 40;
/// How many pipelines of a thousand are long.
const LONG_PER_MILLE: u64 = 100;
/// Longest pause between two pieces of a pipeline that does not come at once.
const PIECE_PAUSE_MAX: Duration = Duration::from_millis(20);
/// Numbers of these clients begin after those of native ones.
const NUMBER_FIRST: u32 = 50;

/// How a SET is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Plain,
    Absent,
    Present,
    Get,
    PresentGet,
}

const SETS: [Set; 7] =
    [Set::Plain, Set::Plain, Set::Plain, Set::Absent, Set::Present, Set::Get, Set::PresentGet];

/// EXPIRE's conditions.
const ONLY: [(Lifetime, &[u8]); 4] = [
    (Lifetime::IfNone, b"NX"),
    (Lifetime::IfSome, b"XX"),
    (Lifetime::IfLater, b"GT"),
    (Lifetime::IfSooner, b"LT"),
];

/// How many reads of a thousand ask only whether the key is there.
const FINDS_PER_MILLE: u64 = 200;
/// Commands that do, and what they say of a key that is not.
const FINDS: [(&[u8], i64); 3] = [(b"EXISTS", 0), (b"TTL", -2), (b"STRLEN", 0)];

/// Long enough that no clock of a run takes it for expired.
const LONG_MS: u64 = 1_000_000;

/// A command under way: how to read its reply, and what the history calls it.
#[derive(Debug)]
enum RedisAsked {
    Hello,
    Choose,
    Get(OperationId),
    /// EXISTS, STRLEN or TTL: this number says that there is nothing, and no other says what there is.
    Find {
        get: OperationId,
        nothing: i64,
    },
    Set {
        set: Set,
        put: OperationId,
        read: Option<OperationId>,
    },
    Delete(OperationId),
    Touch(OperationId),
    /// GETEX: what it showed, and the change of the expiry. One that may find it as it should be does not say whether it
    /// wrote.
    GetTouch {
        read: OperationId,
        touch: OperationId,
        may_be_so: bool,
    },
    DeleteMany(Vec<OperationId>),
    GetMany(Vec<OperationId>),
    SetMany(Vec<OperationId>),
}

/// One client.
pub struct RedisClient {
    world: Arc<World>,
    recorder: Recorder,
    number: u32,
    ports: Ports,
    dice: Dice,
    /// For what changes when a value expires.
    touches: Dice,
    /// For conditions on expiries, and values that keep theirs.
    lifetimes: Dice,
    /// For commands that only ask whether a key is there.
    finds: Dice,
    written: u64,
    /// The store of the connection.
    store: &'static str,
    /// The node of the connection.
    door: NodeId,
}

impl RedisClient {
    /// A client on its own host.
    pub fn new(world: Arc<World>, recorder: Recorder, number: u32, process: ProcessId) -> RedisClient {
        let number = NUMBER_FIRST + number;
        let ports = world.ports(Host(100 + number), process, Arc::new(WallClock::default()));
        let dice = Dice::apart(world.setup.seed, 100 + u64::from(number));
        let touches = Dice::apart(world.setup.seed, 5000 + u64::from(number));
        let lifetimes = Dice::apart(world.setup.seed, 6000 + u64::from(number));
        let finds = Dice::apart(world.setup.seed, 7000 + u64::from(number));
        let door = world.machines()[0].id();
        RedisClient {
            world,
            recorder,
            number,
            ports,
            dice,
            touches,
            lifetimes,
            finds,
            written: 0,
            store: LAST_WRITE,
            door,
        }
    }

    /// Works until `end`, over one connection after the other.
    pub async fn work(mut self, end: Moment) {
        while self.ports.clock.now() < end {
            let machine = self.dice.below(self.world.machines().len() as u64) as usize;
            self.door = self.world.machines()[machine].id();
            let address = redis_address(self.door);
            if let Ok(link) = self.ports.network.connect(&address).await {
                let stream = LinkStream::new(link, self.ports.entropy.clone());
                self.converse(stream, end).await;
            }
            self.ports.clock.sleep(CONNECT_AGAIN).await;
        }
    }

    /// Sends pipeline after pipeline until `end`, or until one is not answered whole.
    async fn converse(&mut self, mut stream: LinkStream, end: Moment) {
        let mut greeting = self.dice.chance(500);
        let (mut parser, mut input) = (ReplyParser::default(), BytesMut::new());
        self.store = LAST_WRITE;
        while self.ports.clock.now() < end {
            let mut bytes = BytesMut::new();
            let mut asked = VecDeque::new();
            if std::mem::take(&mut greeting) {
                command(&mut bytes, &[b"HELLO", b"3"]);
                asked.push_back(RedisAsked::Hello);
            }
            let long = self.dice.chance(LONG_PER_MILLE);
            let commands = self.dice.between(1, if long { LONG_PIPELINE_MAX } else { PIPELINE_MAX });
            for _ in 0..commands {
                if self.dice.chance(100) {
                    asked.push_back(self.choose(&mut bytes));
                }
                asked.push_back(self.ask(&mut bytes));
            }
            // Commands on one key wait for each other, each as long as its deadline.
            let patience = self.world.setup.deadline * (commands as u32 + 2);
            let timer = self.ports.clock.sleep(patience);
            let pieces = self.pieces(bytes.freeze());
            let answers = self.answers(&mut stream, pieces, &mut parser, &mut input, &mut asked);
            let whole = matches!(select(Box::pin(answers), timer).await, Either::Left((true, _)));
            asked.iter().for_each(|asked| self.leave_open(asked));
            if !whole {
                return;
            }
            // As many commands in a while as a client that sends one at a time.
            let think = self.dice.below(self.world.setup.think.as_micros() as u64 * commands + 1);
            self.ports.clock.sleep(Duration::from_micros(think)).await;
        }
    }

    /// Cuts a pipeline into what is sent at a time, each with the pause after it: most come at once, some in two or
    /// three pieces, cut in the midst of a command, so that some are under way when others come.
    fn pieces(&mut self, mut bytes: Bytes) -> Vec<(Bytes, Duration)> {
        let mut pieces = Vec::new();
        while pieces.len() < 2 && bytes.len() > 1 && self.dice.chance(200) {
            let piece = bytes.split_to(self.dice.between(1, bytes.len() as u64 - 1) as usize);
            let pause = Duration::from_micros(self.dice.below(PIECE_PAUSE_MAX.as_micros() as u64 + 1));
            pieces.push((piece, pause));
        }
        pieces.push((bytes, Duration::ZERO));
        pieces
    }

    /// Sends a pipeline and takes in its replies; false when the connection ends before the last.
    async fn answers(
        &self,
        stream: &mut LinkStream,
        pieces: Vec<(Bytes, Duration)>,
        parser: &mut ReplyParser,
        input: &mut BytesMut,
        asked: &mut VecDeque<RedisAsked>,
    ) -> bool {
        for (piece, pause) in pieces {
            if stream.write_all(&piece).await.is_err() {
                return false;
            }
            if pause > Duration::ZERO {
                self.ports.clock.sleep(pause).await;
            }
        }
        while let Some(next) = asked.front() {
            match parser.parse(input).expect("the door speaks the protocol") {
                Some(reply) => {
                    self.settle(next, &reply);
                    asked.pop_front();
                }
                None => match stream.read_buf(input).await {
                    Ok(0) | Err(_) => return false,
                    Ok(_) => {}
                },
            }
        }
        assert!(input.is_empty(), "more replies than commands");
        true
    }

    /// Draws a command and appends it.
    fn ask(&mut self, bytes: &mut BytesMut) -> RedisAsked {
        let keys = self.world.setup.keys;
        let at = self.world.setup.key(self.dice.below(u64::from(keys)) as u32);
        let draw = self.dice.below(1000);
        let (puts, deletes) = (self.world.setup.puts, self.world.setup.deletes);
        if self.touches.chance(self.world.setup.touches) {
            return self.touch(bytes, at);
        }
        let many = keys > 1 && self.dice.chance(150);
        if many {
            let keys: Vec<Bytes> =
                (0..keys.min(MANY_MAX as u32)).map(|number| self.world.setup.key(number)).collect();
            return match draw {
                _ if draw < puts => self.set_many(bytes, keys),
                _ if draw < puts + deletes => self.delete_many(bytes, &keys[..2]),
                _ => self.get_many(bytes, keys),
            };
        }
        if draw < puts {
            return self.set(bytes, at);
        }
        if draw < puts + deletes {
            command(bytes, &[b"DEL", &at]);
            return RedisAsked::Delete(self.begin(at, Action::Delete));
        }
        self.get(bytes, at)
    }

    /// Reads a key, or asks only whether it is there.
    fn get(&mut self, bytes: &mut BytesMut, at: Bytes) -> RedisAsked {
        let finds = self.finds.chance(FINDS_PER_MILLE);
        // A value of no bytes has the length of one that is not there.
        let ways = if self.world.setup.empty.is_some() { &FINDS[..2] } else { &FINDS };
        match finds.then(|| *self.finds.pick(ways)) {
            Some((word, nothing)) => {
                command(bytes, &[word, &at]);
                RedisAsked::Find { get: self.begin(at, Action::Get), nothing }
            }
            None => {
                command(bytes, &[b"GET", &at]);
                RedisAsked::Get(self.begin(at, Action::Get))
            }
        }
    }

    /// Goes on with the other store.
    fn choose(&mut self, bytes: &mut BytesMut) -> RedisAsked {
        self.store = if self.store == LAST_WRITE { PLAIN } else { LAST_WRITE };
        command(bytes, &[b"TONTINE.STORE", self.store.as_bytes()]);
        RedisAsked::Choose
    }

    fn set(&mut self, bytes: &mut BytesMut, at: Bytes) -> RedisAsked {
        let (set, value) = (*self.dice.pick(&SETS), self.value());
        let options: &[&[u8]] = match set {
            Set::Plain => &[],
            Set::Absent => &[b"NX"],
            Set::Present => &[b"XX"],
            Set::Get => &[b"GET"],
            Set::PresentGet => &[b"XX", b"GET"],
        };
        let expiring = self.world.setup.expiring;
        let expires = expiring > 0 && self.dice.chance(expiring);
        let ttl = match (expires, self.dice.chance(500)) {
            (false, _) => None,
            (true, true) => Some((&b"PX"[..], *self.dice.pick(&TTLS_MS))),
            (true, false) => Some((&b"EX"[..], self.dice.between(1, 5))),
        };
        let touches = self.world.setup.touches > 0;
        let lasts = touches && self.lifetimes.chance(300);
        let ttl = ttl.map(|(unit, number)| (unit, if lasts { LONG_MS } else { number }.to_string()));
        let keeps = touches && !expires && self.lifetimes.chance(150);
        let mut lives: Vec<&[u8]> =
            ttl.iter().flat_map(|(unit, number)| [*unit, number.as_bytes()]).collect();
        lives.extend((keeps && !self.ignores()).then_some(&b"KEEPTTL"[..]));
        command(bytes, &[&[&b"SET"[..], &at, &value], options, &lives].concat());
        let reads = matches!(set, Set::Get | Set::PresentGet);
        let read = reads.then(|| self.begin(at.clone(), Action::Get));
        let put = self.begin(at, Action::Put(value));
        self.recorder.condition(
            put,
            match set {
                Set::Absent => Condition::IfAbsent,
                Set::Present | Set::PresentGet => Condition::IfPresent,
                Set::Plain | Set::Get => Condition::None,
            },
        );
        if (expires && !lasts) || keeps {
            self.recorder.may_expire(put);
        }
        if keeps {
            self.recorder.lifetime(put, Lifetime::Kept);
        }
        RedisAsked::Set { set, put, read }
    }

    /// Whether a planted bug leaves out what a command says of expiries.
    fn ignores(&self) -> bool {
        self.world.setup.plant == Some(Plant::LifetimesIgnored)
    }

    /// Changes when a value expires.
    fn touch(&mut self, bytes: &mut BytesMut, at: Bytes) -> RedisAsked {
        let (ends, reads) = (self.touches.chance(500), self.touches.chance(300));
        let (millis, lasts) = (*self.touches.pick(&TTLS_MS), self.lifetimes.chance(300));
        let millis = if lasts { LONG_MS } else { millis }.to_string();
        let only = self.lifetimes.chance(500).then(|| *self.lifetimes.pick(&ONLY));
        let only = only.filter(|_| ends && !reads);
        let mut words: Vec<&[u8]> = match (reads, ends) {
            (true, true) => vec![b"GETEX", &at, b"PX", millis.as_bytes()],
            (true, false) => vec![b"GETEX", &at, b"PERSIST"],
            // What is over already is deleted.
            (false, true) if self.touches.chance(100) => {
                command(bytes, &[b"EXPIRE", &at, b"-1"]);
                return RedisAsked::Delete(self.begin(at, Action::Delete));
            }
            (false, true) if self.touches.chance(500) => vec![b"EXPIRE", &at, b"2"],
            (false, true) => vec![b"PEXPIRE", &at, millis.as_bytes()],
            (false, false) => vec![b"PERSIST", &at],
        };
        words.extend(only.filter(|_| !self.ignores()).map(|(_, word)| word));
        let outlives = lasts && words.contains(&millis.as_bytes());
        command(bytes, &words);
        let read = reads.then(|| self.begin(at.clone(), Action::Get));
        let touch = self.begin(at, Action::Touch { ends });
        if ends && !outlives {
            self.recorder.may_expire(touch);
        }
        if let Some((lifetime, _)) = only {
            self.recorder.lifetime(touch, lifetime);
        }
        match read {
            Some(read) => RedisAsked::GetTouch { read, touch, may_be_so: !ends },
            None => RedisAsked::Touch(touch),
        }
    }

    fn get_many(&self, bytes: &mut BytesMut, keys: Vec<Bytes>) -> RedisAsked {
        let words: Vec<&[u8]> =
            std::iter::once(&b"MGET"[..]).chain(keys.iter().map(|key| &key[..])).collect();
        command(bytes, &words);
        RedisAsked::GetMany(keys.into_iter().map(|key| self.begin(key, Action::Get)).collect())
    }

    fn set_many(&mut self, bytes: &mut BytesMut, keys: Vec<Bytes>) -> RedisAsked {
        let entries: Vec<(Bytes, Bytes)> = keys.into_iter().map(|key| (key, self.value())).collect();
        let words = entries.iter().flat_map(|(key, value)| [&key[..], &value[..]]);
        command(bytes, &std::iter::once(&b"MSET"[..]).chain(words).collect::<Vec<_>>());
        let begin = |(key, value)| self.begin(key, Action::Put(value));
        RedisAsked::SetMany(entries.into_iter().map(begin).collect())
    }

    fn delete_many(&self, bytes: &mut BytesMut, keys: &[Bytes]) -> RedisAsked {
        // One of them twice, which counts once.
        let words = keys.iter().chain(&keys[..1]).map(|key| &key[..]);
        command(bytes, &std::iter::once(&b"DEL"[..]).chain(words).collect::<Vec<_>>());
        RedisAsked::DeleteMany(keys.iter().map(|key| self.begin(key.clone(), Action::Delete)).collect())
    }

    /// A value that nobody else writes.
    fn value(&mut self) -> Bytes {
        self.written += 1;
        if self.world.setup.empty == Some((self.number, self.written)) {
            return Bytes::new();
        }
        let mut value = format!("value-c{}-{}-", self.number, self.written).into_bytes();
        // Line ends, which nothing may trip over.
        let bytes = *self.dice.pick(&[0, 10, 100, 1000]);
        value.extend(b"\r\n$-1\r\n".iter().cycle().take(bytes));
        value.into()
    }

    /// What a reply says of its command.
    fn settle(&self, asked: &RedisAsked, reply: &Reply) {
        match asked {
            RedisAsked::Hello => assert!(matches!(reply, Reply::Map(_)), "HELLO is answered with {reply:?}"),
            RedisAsked::Choose => {
                assert_eq!(acknowledged(reply), Outcome::Acknowledged, "the store is there")
            }
            RedisAsked::Get(get) => self.end(*get, shown(reply)),
            RedisAsked::Find { get, nothing } => self.end(
                *get,
                match reply {
                    Reply::Integer(number) if number == nothing => Outcome::Shown(None),
                    Reply::Integer(_) => Outcome::Indeterminate("what is there is not told".to_owned()),
                    other => refused(other),
                },
            ),
            RedisAsked::Set { set, put, read } => {
                self.end(*put, stored(*set, reply));
                if let Some(read) = read {
                    self.end(*read, shown(reply));
                }
            }
            RedisAsked::Delete(delete) => self.end(
                *delete,
                match reply {
                    Reply::Integer(1) => Outcome::Acknowledged,
                    // Nothing was there, so nothing was written.
                    Reply::Integer(0) => Outcome::Failed(NOTHING_TO_DELETE.to_owned()),
                    other => refused(other),
                },
            ),
            RedisAsked::Touch(touch) => self.end(*touch, changed(reply)),
            RedisAsked::GetTouch { read, touch, may_be_so } => {
                self.end(*touch, got_and_changed(reply, *may_be_so));
                self.end(*read, shown(reply));
            }
            RedisAsked::DeleteMany(deletes) => {
                let outcome = match reply {
                    Reply::Integer(count) if *count == deletes.len() as i64 => Outcome::Acknowledged,
                    Reply::Integer(0) => Outcome::Failed(NOTHING_TO_DELETE.to_owned()),
                    Reply::Integer(count) => {
                        assert!(
                            (0..deletes.len() as i64).contains(count),
                            "{count} of {} keys",
                            deletes.len()
                        );
                        Outcome::Indeterminate("which of them were there is not told".to_owned())
                    }
                    // One error for all, though some may have been deleted.
                    other => match refused(other) {
                        Outcome::Failed(reason) => Outcome::Indeterminate(reason),
                        other => other,
                    },
                };
                deletes.iter().for_each(|delete| self.end(*delete, outcome.clone()));
            }
            RedisAsked::GetMany(gets) => match reply {
                Reply::Array(replies) => {
                    assert_eq!(replies.len(), gets.len(), "one reply for each key");
                    gets.iter().zip(replies).for_each(|(get, reply)| self.end(*get, shown(reply)));
                }
                other => gets.iter().for_each(|get| self.end(*get, refused(other))),
            },
            RedisAsked::SetMany(puts) => puts.iter().for_each(|put| {
                self.end(
                    *put,
                    match acknowledged(reply) {
                        // One error for all, though some may have been written.
                        Outcome::Failed(reason) => Outcome::Indeterminate(reason),
                        other => other,
                    },
                );
            }),
        }
    }

    /// No reply came: a write may have been done, or may yet be.
    fn leave_open(&self, asked: &RedisAsked) {
        let end = |id: &OperationId| self.end(*id, Outcome::Indeterminate("no reply".to_owned()));
        match asked {
            RedisAsked::Hello | RedisAsked::Choose => {}
            RedisAsked::Get(id)
            | RedisAsked::Find { get: id, .. }
            | RedisAsked::Delete(id)
            | RedisAsked::Touch(id) => end(id),
            RedisAsked::GetTouch { read, touch, .. } => [read, touch].into_iter().for_each(end),
            RedisAsked::Set { put, read, .. } => std::iter::once(put).chain(read).for_each(end),
            RedisAsked::GetMany(ids) | RedisAsked::SetMany(ids) | RedisAsked::DeleteMany(ids) => {
                ids.iter().for_each(end)
            }
        }
    }

    fn begin(&self, key: Bytes, action: Action) -> OperationId {
        self.recorder.begin(Operation {
            client: self.number,
            store: self.store,
            key,
            required: if action == Action::Get { self.world.setup.reads } else { self.world.setup.writes },
            action,
            basis: Basis::Overwrite,
            condition: Condition::None,
            strict: !self.world.setup.sloppy,
            // Its answers do not say whether fallbacks stood in.
            sloppy: None,
            driver: Some(Host(self.door.0)),
            walked: false,
            expires: None,
            shown_until: None,
            // Judged by the node's clock, which may be wrong, and not by the true time.
            shown: Vec::new(),
            invoked: self.ports.clock.now(),
            returned: None,
            outcome: Outcome::Pending,
        })
    }

    fn end(&self, id: OperationId, outcome: Outcome) {
        self.recorder.end(id, self.ports.clock.now(), outcome);
    }
}

/// Appends a command.
fn command(bytes: &mut BytesMut, words: &[&[u8]]) {
    bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
}
