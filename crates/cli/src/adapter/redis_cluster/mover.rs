//! Carries out what is noted in the cluster: brings every open slot to its end.
//!
//! ```text
//!   the taker   importing from the giver     written for all slots of a join or drain at once: this is the plan
//!   the giver   migrating to the taker       clients are sent to the taker for keys that are not here
//!   the giver   MIGRATE, a batch of keys at a time, until the slot is empty; it stays so
//!   the taker   owns the slot, and tells all others
//!   the giver   knows it
//! ```
//!
//! The plan is nothing but open slots, so an adapter that was killed anywhere is followed by one that looks which slots are open.
//! A slot whose giver sends clients on goes forward, never back: only there nothing can come to a slot that was found empty.
//! Each step on a server is a script (`script.lua`) that looks whether it still holds there, and that is refused when it comes
//! late. So any number of adapters may work at once, and one that hung does nothing when it goes on.
//!
//! A server that starts with old data marks slots as importing by itself, each with old keys. So a slot whose giver does not send
//! clients on yet is opened only where its taker has nothing of it; else it waits for people.
//!
//! Must never: take a slot from a server that may still have keys of it, or put a key in place of the owner's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};

use super::map::Id;
use super::resp::{Link, RedisReply, Trouble};
use super::sight::{ClusterSight, Servers};

const SCRIPT: &str = include_str!("script.lua");
/// How much later than it was meant a step may come to a server.
const LATE_MAX: Duration = Duration::from_secs(2);
/// Slots that are open at their giver at once: enough that most of the time goes by with keys.
const SLOTS_AT_ONCE: usize = 64;
/// How long two servers may be silent to each other while keys move.
const MIGRATE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a batch may take in all: one key may be large.
const BATCH_TIME_MAX: Duration = Duration::from_secs(120);
/// A batch that held its server up for longer is followed by smaller ones.
const BATCH_TIME_LONG: Duration = Duration::from_millis(10);
/// A batch that took less is followed by larger ones.
const BATCH_TIME_SHORT: Duration = Duration::from_millis(3);
/// Pause after something stood in the way.
const REST: Duration = Duration::from_secs(1);
/// Slots that people are told by number.
const SLOTS_TOLD: usize = 5;
/// Things that stood in the way of which people are told at once.
const HELD_TOLD: usize = 3;

/// How fast keys may move.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyPace {
    /// Keys of a batch at most.
    pub(super) keys_max: usize,
    /// The share of the time in which batches are under way, in percent.
    pub(super) percent: u32,
}

/// What brings open slots to their end.
pub(super) struct Mover {
    servers: Arc<Servers>,
    pace: KeyPace,
    wanted: Notify,
    /// What stood in the way last, for people.
    trouble: Mutex<Option<String>>,
    /// Held while steps are under way, and while it is noted which slots are to move. Keys move without it.
    pub(super) turn: tokio::sync::Mutex<()>,
}

/// What an open slot needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// Its keys go, and then it does.
    Move,
    /// Its giver gave it away already, so it must be taken.
    Take,
    /// Its taker has it, and the giver must know.
    Give,
    /// Its giver sends clients on, and the taker does not know that it is to take it.
    Mark,
    /// Its giver gives away what another one has.
    Close,
    /// Its taker is to take it from one that has it no more.
    Stray,
}

/// Open slots of two servers that need the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    taker: Id,
    giver: Id,
    need: Need,
    slot: u16,
}

impl Mover {
    pub(super) fn new(servers: Arc<Servers>, pace: KeyPace) -> Mover {
        let (wanted, trouble, turn) = (Notify::new(), Mutex::default(), tokio::sync::Mutex::new(()));
        Mover { servers, pace, wanted, trouble, turn }
    }

    /// Has it look for open slots.
    pub(super) fn wake(&self) {
        self.wanted.notify_one();
    }

    /// What stood in the way last.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Works whenever it was woken, until nothing is open.
    pub(super) async fn run(&self) {
        loop {
            self.wanted.notified().await;
            loop {
                match self.round().await {
                    Ok(true) => *self.trouble.lock() = None,
                    Ok(false) => break,
                    Err(why) => {
                        let before = self.trouble.lock().replace(why.clone());
                        if before.as_ref() != Some(&why) {
                            say!("moving slots: {why}");
                        }
                        tokio::time::sleep(REST).await;
                    }
                }
            }
            *self.trouble.lock() = None;
        }
    }

    /// Brings what is open now to its end; whether anything was.
    async fn round(&self) -> Result<bool, String> {
        let seen = self.servers.look().await.map_err(|failure| failure.message)?;
        let (tasks, mut held) = tasks(&seen);
        if tasks.is_empty() {
            return told(&held, false);
        }
        let draining = seen.draining();
        let addresses = seen.servers.iter().filter_map(|(id, one)| Some((id.clone(), one.address?)));
        let mut moving = Moving {
            mover: self,
            addresses: addresses.collect(),
            draining,
            links: BTreeMap::new(),
            keys: (self.pace.keys_max / 4).max(1),
            turn: None,
            held: Vec::new(),
        };
        drop(seen);
        let mut done = 0;
        for alike in tasks.chunk_by(|one, other| one.alike(other)) {
            for some in alike.chunks(SLOTS_AT_ONCE) {
                moving.turn = Some(self.turn.lock().await);
                let told = moving.carry_out(some).await;
                drop(moving.turn.take());
                match told {
                    Ok(count) => done += count,
                    Err(trouble) => {
                        moving.let_go(&some[0], &trouble);
                        break;
                    }
                }
            }
        }
        held.append(&mut moving.held);
        if done == 0 && held.is_empty() {
            held.push(format!("slot {} waits: its servers do not agree about it yet", tasks[0].slot));
        }
        told(&held, true)
    }
}

impl Task {
    fn alike(&self, other: &Task) -> bool {
        (&self.taker, &self.giver, self.need) == (&other.taker, &other.giver, other.need)
    }
}

/// Whether anything was open, or what stood in the way last.
fn told(held: &[String], is_open: bool) -> Result<bool, String> {
    let last = &held[held.len().saturating_sub(HELD_TOLD)..];
    if last.is_empty() { Ok(is_open) } else { Err(last.join("; ")) }
}

/// What open slots need, and what they wait for where nothing can be done.
fn tasks(seen: &ClusterSight) -> (Vec<Task>, Vec<String>) {
    let (mut tasks, mut held) = (Vec::new(), Vec::new());
    let waits = |slot: u16, id: &Id| format!("slot {slot} waits for {}, which does not answer", id.short());
    for (id, view) in seen.views() {
        for (slot, giver) in &view.importing {
            let Some(of) = seen.view(giver) else {
                held.push(waits(*slot, giver));
                continue;
            };
            let need = match () {
                () if of.gives(*slot, giver) => Need::Move,
                () if of.gives(*slot, id) => Need::Take,
                () => Need::Stray,
            };
            tasks.push(Task { taker: id.clone(), giver: giver.clone(), need, slot: *slot });
        }
        for (slot, taker) in &view.migrating {
            let Some(of) = seen.view(taker) else {
                held.push(waits(*slot, taker));
                continue;
            };
            let need = match () {
                () if of.importing.get(slot) == Some(id) => continue,
                () if of.gives(*slot, taker) => Need::Give,
                () if view.gives(*slot, id) => Need::Mark,
                () => Need::Close,
            };
            tasks.push(Task { taker: taker.clone(), giver: id.clone(), need, slot: *slot });
        }
    }
    tasks.sort();
    (tasks, held)
}

/// Carries out tasks, over its own connections.
struct Moving<'a> {
    mover: &'a Mover,
    addresses: BTreeMap<Id, SocketAddr>,
    draining: BTreeSet<Id>,
    links: BTreeMap<Id, Link>,
    /// Keys of the next batch.
    keys: usize,
    /// The turn, but for the time in which keys move.
    turn: Option<MutexGuard<'a, ()>>,
    /// What stood in the way.
    held: Vec<String>,
}

impl Moving<'_> {
    /// Tasks that are alike; how many were carried out. What does not hold any more is left for the next look.
    async fn carry_out(&mut self, tasks: &[Task]) -> Result<usize, Trouble> {
        let Task { taker, giver, need, .. } = &tasks[0];
        let slots: Vec<u16> = tasks.iter().map(|task| task.slot).collect();
        match need {
            Need::Move => self.move_slots(giver, taker, &slots).await,
            Need::Take => self.settle(giver, taker, &slots).await,
            Need::Give => self.step_now(giver, "give", taker, &slots).await.map(|done| done.len()),
            Need::Mark => self.step_now(taker, "mark", giver, &slots).await.map(|done| done.len()),
            Need::Close => self.step_now(giver, "close", taker, &slots).await.map(|done| done.len()),
            Need::Stray => {
                let done = self.step_now(taker, "unmark", giver, &slots).await?;
                self.hold(taker, giver, &slots).await?;
                Ok(done.len())
            }
        }
    }

    /// Notes what failed, so that others go on. The connections may have an answer yet that nobody waits for.
    fn let_go(&mut self, task: &Task, trouble: &Trouble) {
        self.links.remove(&task.taker);
        self.links.remove(&task.giver);
        self.held.push(format!("slot {}: {}", task.slot, trouble.words()));
    }

    async fn move_slots(&mut self, giver: &Id, taker: &Id, slots: &[u16]) -> Result<usize, Trouble> {
        let until = self.until(giver).await?;
        let marked = self.step_now(taker, "marked", giver, slots).await?;
        let vacant = self.step_now(taker, "vacant", giver, &marked).await?;
        // After that: what another adapter has opened meanwhile goes on.
        let mut open = self.step_now(giver, "begun", taker, &marked).await?;
        let others = marked.into_iter().filter(|slot| !open.contains(slot));
        let (fresh, filled): (Vec<u16>, Vec<u16>) = others.partition(|slot| vacant.contains(slot));
        open.extend(self.step(giver, until, "open", taker, &fresh).await?);
        self.hold(taker, giver, &filled).await?;
        let empty = self.step_now(giver, "empty", taker, &open).await?;
        // Verbs may come in between: what is open goes on, whatever they note.
        drop(self.turn.take());
        for slot in open.iter().filter(|slot| !empty.contains(slot)) {
            self.move_keys(giver, taker, *slot).await?;
        }
        self.turn = Some(self.mover.turn.lock().await);
        self.settle(giver, taker, &open).await
    }

    /// Lets the taker have those of which the giver has nothing.
    async fn settle(&mut self, giver: &Id, taker: &Id, slots: &[u16]) -> Result<usize, Trouble> {
        // Before it is looked at: one that looked and then hung takes nothing.
        let (until, gives_until) = (self.until(taker).await?, self.until(giver).await?);
        let empty = self.step_now(giver, "empty", taker, slots).await?;
        let taken = self.step(taker, until, "take", giver, &empty).await?;
        self.step(giver, gives_until, "give", taker, &taken).await.map(|_| taken.len())
    }

    /// Notes slots of which a server has keys that nobody has sent there: they may be older than the owner's.
    async fn hold(&mut self, on: &Id, peer: &Id, slots: &[u16]) -> Result<(), Trouble> {
        let slots = self.step_now(on, "filled", peer, slots).await?;
        let (Some(first), Some(address)) = (slots.first(), self.addresses.get(on)) else { return Ok(()) };
        let told: Vec<String> = slots.iter().take(SLOTS_TOLD).map(u16::to_string).collect();
        let more = match slots.len().saturating_sub(SLOTS_TOLD) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let client = format!("redis-cli -h {} -p {}", address.ip(), address.port());
        self.held.push(format!(
            "{} marks slots as importing of which it has keys, and nobody sends them there: {}{more}. They may be older than \
             the owner's. Look at them with `{client} CLUSTER GETKEYSINSLOT {first} 100`; then leave the slot to its owner \
             with `{client} CLUSTER SETSLOT {first} STABLE`",
            on.short(),
            told.join(", "),
        ));
        Ok(())
    }

    /// Moves all keys of a slot.
    async fn move_keys(&mut self, from: &Id, to: &Id, slot: u16) -> Result<(), Trouble> {
        let target = self.addresses.get(to).copied();
        let target = target.ok_or_else(|| Trouble::Lost(format!("nobody knows where {} is", to.short())))?;
        loop {
            let (slot_word, count) = (slot.to_string(), self.keys.to_string());
            let listed = ["CLUSTER", "GETKEYSINSLOT", slot_word.as_str(), count.as_str()];
            let link = self.link(from).await?;
            let RedisReply::List(keys) = link.call(&listed).await? else {
                return Err(link.odd("GETKEYSINSLOT"));
            };
            if keys.is_empty() {
                return Ok(());
            }
            let keys = keys.into_iter().map(|key| if let RedisReply::Bulk(key) = key { key } else { None });
            let keys: Option<Vec<Vec<u8>>> = keys.collect();
            let keys = keys.ok_or_else(|| link.odd("GETKEYSINSLOT"))?;
            let words = self.migrate(target, keys)?;
            let began = Instant::now();
            self.link(from).await?.call_within(&words, BATCH_TIME_MAX).await?;
            self.rest(began.elapsed()).await;
        }
    }

    /// The command that moves these keys.
    fn migrate(&self, to: SocketAddr, keys: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Trouble> {
        let word = |text: String| text.into_bytes();
        let (host, port) = (word(to.ip().to_string()), word(to.port().to_string()));
        let millis = word(MIGRATE_TIME_MAX.as_millis().to_string());
        let mut words = vec![b"MIGRATE".to_vec(), host, port, Vec::new(), b"0".to_vec(), millis];
        // The owner's is the newer one: what is there was left by a batch whose end was not heard.
        words.push(b"REPLACE".to_vec());
        words.extend(self.mover.servers.credentials.of_migrate()?);
        words.push(b"KEYS".to_vec());
        words.extend(keys);
        Ok(words)
    }

    /// Chooses the size of the next batch by how long this one took, and leaves the server to its clients for a while.
    async fn rest(&mut self, took: Duration) {
        let KeyPace { keys_max, percent } = self.mover.pace;
        if took > BATCH_TIME_LONG {
            self.keys = (self.keys / 2).max(1);
        } else if took < BATCH_TIME_SHORT {
            self.keys = (self.keys * 2).min(keys_max);
        }
        tokio::time::sleep(took * (100 - percent) / percent).await;
    }

    /// Until when a step may come to a server, by its own clock.
    async fn until(&mut self, on: &Id) -> Result<u64, Trouble> {
        let late = u64::try_from(LATE_MAX.as_micros()).unwrap_or(u64::MAX);
        Ok(self.link(on).await?.clock_us().await?.saturating_add(late))
    }

    async fn step_now(&mut self, on: &Id, step: &str, peer: &Id, slots: &[u16]) -> Result<Vec<u16>, Trouble> {
        let until = self.until(on).await?;
        self.step(on, until, step, peer, slots).await
    }

    async fn step(
        &mut self,
        on: &Id,
        until: u64,
        step: &str,
        peer: &Id,
        slots: &[u16],
    ) -> Result<Vec<u16>, Trouble> {
        let slots: Vec<(u16, Id)> = slots.iter().map(|slot| (*slot, peer.clone())).collect();
        run(self.link(on).await?, until, step, &slots).await
    }

    async fn link(&mut self, id: &Id) -> Result<&mut Link, Trouble> {
        if !self.links.contains_key(id) {
            let address = self.addresses.get(id).copied();
            let lost = || Trouble::Lost(format!("nobody knows where {} is", id.short()));
            let mut link = self.mover.servers.link(id, address.ok_or_else(lost)?).await?;
            if self.draining.contains(id) {
                stays_apart(&mut link).await?;
            }
            self.links.insert(id.clone(), link);
        }
        Ok(self.links.get_mut(id).expect("it was put there right here"))
    }
}

/// Keeps a server that gives its last slot away from becoming a replica of the one that takes it.
pub(super) async fn stays_apart(link: &mut Link) -> Result<(), Trouble> {
    link.call(&["CONFIG", "SET", "cluster-allow-replica-migration", "no"]).await.map(drop)
}

/// Carries out a step on a server at once.
pub(super) async fn step(link: &mut Link, step: &str, slots: &[(u16, Id)]) -> Result<Vec<u16>, Trouble> {
    let late = u64::try_from(LATE_MAX.as_micros()).unwrap_or(u64::MAX);
    let until = link.clock_us().await?.saturating_add(late);
    run(link, until, step, slots).await
}

/// Carries out a step for slots, each with its peer; those for which it holds.
async fn run(link: &mut Link, until: u64, step: &str, slots: &[(u16, Id)]) -> Result<Vec<u16>, Trouble> {
    if slots.is_empty() {
        return Ok(Vec::new());
    }
    let mut words =
        vec!["EVAL".to_owned(), SCRIPT.to_owned(), "0".to_owned(), until.to_string(), step.to_owned()];
    words.extend(slots.iter().flat_map(|(slot, peer)| [slot.to_string(), peer.as_str().to_owned()]));
    let RedisReply::List(done) = link.call(&words).await? else { return Err(link.odd("EVAL")) };
    let slot = |reply: &RedisReply| {
        if let RedisReply::Number(slot) = reply { u16::try_from(*slot).ok() } else { None }
    };
    let done: Option<Vec<u16>> = done.iter().map(slot).collect();
    done.ok_or_else(|| link.odd("EVAL"))
}
