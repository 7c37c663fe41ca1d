//! Looks on while clients are told *done*: whether each acknowledged write has its copies at that moment, and at random
//! moments after it. See [`check::durable`](crate::check::durable).
//!
//! The moment is that at which the client learns of it: before that nobody was promised anything.
//!
//! Must never: wait, or change the world.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::{Moment, NodeId};
use parking_lot::Mutex;

use crate::check::durable::{self, DurableEvent};
use crate::check::forgotten::Forgetting;
use crate::check::owing;
use crate::check::{Attribution, Violation};
use crate::cluster::World;
use crate::dice::Dice;
use crate::history::{Action, Basis, History, Operation, OperationId, Outcome, Recorder, Remains, versions};

/// How many acknowledgements of a thousand are looked at.
const LOOKED_AT_PER_MILLE: u64 = 300;
/// Keys at most that one look takes in.
const KEYS_MAX: usize = 6;

/// What was seen so far.
pub struct Promises {
    world: Arc<World>,
    dice: Mutex<Dice>,
    /// When an acknowledgement was last looked at.
    last: Mutex<Option<Moment>>,
    /// When each write was last seen to have its copies.
    kept: Mutex<BTreeMap<OperationId, Moment>>,
    /// The first moment at which each write was seen not to.
    broken: Mutex<BTreeMap<OperationId, Violation>>,
    /// Looks at one key's copies.
    looks: AtomicU64,
}

impl Promises {
    /// Of a run that begins; looks at each acknowledgement that `recorder` is told of.
    pub fn watch(world: Arc<World>, recorder: &Recorder) -> Arc<Promises> {
        let dice = Mutex::new(Dice::apart(world.setup.seed, 13));
        let promises = Promises {
            world,
            dice,
            last: Mutex::default(),
            kept: Mutex::default(),
            broken: Mutex::default(),
            looks: AtomicU64::new(0),
        };
        let promises = Arc::new(promises);
        let watching = Arc::downgrade(&promises);
        recorder.watch(Box::new(move |history, id| {
            if let Some(promises) = watching.upgrade() {
                promises.acknowledged(history, id);
            }
        }));
        promises
    }

    /// Looks again and again, at random moments, until `end`.
    pub async fn look_on(self: Arc<Self>, recorder: Recorder, end: Moment) {
        while self.world.executor.now() < end {
            let (longest_ms, _) = self.world.setup.look_pauses_ms();
            let pause = Duration::from_micros(self.dice.lock().between(1000, longest_ms * 1000));
            self.world.executor.sleep(pause).await;
            recorder.look(|history| self.look(history));
        }
    }

    /// How often the copies of a key were looked at.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// What was broken, in the order of the writes.
    pub fn broken(&self) -> Vec<Violation> {
        self.broken.lock().values().cloned().collect()
    }

    fn acknowledged(&self, history: &History, id: OperationId) {
        let write = history.operation(id);
        if !matches!(write.outcome, Outcome::Written { .. } | Outcome::Acknowledged) || !write.is_write() {
            return;
        }
        self.world.acknowledged();
        let now = self.world.executor.now();
        if is_promise(write) && self.dice.lock().chance(LOOKED_AT_PER_MILLE) && self.is_due(now) {
            self.judge(history, (write.store, &write.key), &[id]);
        }
    }

    /// Whether the last acknowledgement that was looked at was long enough ago.
    fn is_due(&self, now: Moment) -> bool {
        let mut last = self.last.lock();
        let least = Duration::from_millis(self.world.setup.look_pauses_ms().1);
        let due = last.is_none_or(|last| now.since(last) >= least);
        if due {
            *last = Some(now);
        }
        due
    }

    fn look(&self, history: &History) {
        let mut keys: BTreeMap<(&'static str, Bytes), Vec<OperationId>> = BTreeMap::new();
        for (id, write) in history.all().filter(|(_, write)| is_promise(write)) {
            keys.entry((write.store, write.key.clone())).or_default().push(id);
        }
        let mut keys: Vec<_> = keys.into_iter().collect();
        while keys.len() > KEYS_MAX {
            let left_out = self.dice.lock().below(keys.len() as u64) as usize;
            keys.swap_remove(left_out);
        }
        for ((store, key), writes) in keys {
            self.judge(history, (store, &key), &writes);
        }
    }

    /// Whether these writes of one key have their copies now.
    fn judge(&self, history: &History, (store, key): (&'static str, &Bytes), writes: &[OperationId]) {
        let world = &self.world;
        self.looks.fetch_add(1, Ordering::Relaxed);
        let Some(held) = world.copies.of_key(world.machines(), &world.witness, store, key) else { return };
        let held = match held {
            Ok(held) => held,
            Err(reason) => {
                let first = writes.first().expect("there is a write to judge");
                let violation = Violation { invariant: 1, about: None, detail: reason };
                self.broken.lock().entry(*first).or_insert(violation);
                return;
            }
        };
        // Made at most once: some seeds ask at each look for many writes of a key that a round took.
        let seen = LazyCell::new(|| self.seen(history, store, key));
        let forgetting =
            LazyCell::new(|| Forgetting::new(&seen.history, &seen.known, world.setup.rules().reaped_after));
        let may_be_forgotten = |id| forgetting.is_taken(seen.numbers[&id], world.executor.now());
        for &id in writes {
            match self.verdict(history, id, &held, may_be_forgotten) {
                None => drop(self.kept.lock().insert(id, world.executor.now())),
                Some(detail) => {
                    let violation = Violation { invariant: 1, about: None, detail };
                    self.broken.lock().entry(id).or_insert(violation);
                }
            }
        }
    }

    /// What is wrong with a write, if anything is.
    fn verdict(
        &self,
        history: &History,
        id: OperationId,
        held: &Remains,
        may_be_forgotten: impl Fn(OperationId) -> bool,
    ) -> Option<String> {
        let write = history.operation(id);
        let event = self.event(write);
        // A node that never stored the key lost no copy of it. One that stored another event of it may have held what
        // replaced this one.
        let mut struck = self.world.struck_since(write.invoked);
        if !struck.is_empty() {
            let nodes = self.world.witness.nodes_of(write.store, &write.key);
            struck.retain(|node| nodes.contains(node));
        }
        let required = usize::from(write.required).saturating_sub(struck.len());
        if event.is_none() && !self.is_missing(write) {
            // One of several that it may be; the others are judged.
            return None;
        }
        let copies = |leans: bool| event.map_or(0, |event| durable::copies(held, event, !leans).len());
        let found = copies(false);
        if found >= required || (copies(true) >= required && self.may_lean(write, event)) {
            return None;
        }
        if may_be_forgotten(id) {
            return None;
        }
        Some(self.describe(id, write, event, held, (found, required), &struck))
    }

    /// Whether a fallback may have stood in for a replica of the write, by what the simulator knows.
    fn may_lean(&self, write: &Operation, event: Option<DurableEvent>) -> bool {
        let world = &self.world;
        let (circumstances, looks) = (world.circumstances(), world.witness.looks_of(write.store, &write.key));
        let known = History { circumstances, looks, ..History::default() };
        owing::may_lean(&known, write, event.map(|event| event.dot))
    }

    /// Whether an acknowledged write without a known event has none: of a put, and of a deletion that no node stored.
    fn is_missing(&self, write: &Operation) -> bool {
        let Some(returned) = write.returned else { return false };
        let (place, within) = ((write.store, &write.key), write.invoked..=returned);
        match write.action {
            Action::Delete => self.world.witness.look(|seen| seen.deletions(place, within).next().is_none()),
            // GETEX may have found the expiry as it should be.
            Action::Touch { .. } | Action::Get => false,
            Action::Put(_) => true,
        }
    }

    /// The history of one key with what was witnessed so far, and who wrote what.
    fn seen(&self, history: &History, store: &'static str, key: &Bytes) -> KeySeen {
        let mut numbers = BTreeMap::new();
        let mut operations: Vec<Operation> = Vec::new();
        for (id, operation) in history.all().filter(|(_, one)| (one.store, &one.key) == (store, key)) {
            numbers.insert(id, OperationId(operations.len()));
            let mut operation = operation.clone();
            if let Basis::After(read) = &mut operation.basis {
                *read = numbers[read];
            }
            operations.push(operation);
        }
        let witnessed = self.world.witness.look(|seen| seen.of_key(store, key, &operations));
        let history = History { operations, epochs: self.world.epochs(), witnessed, ..History::default() };
        let known = Attribution::new(&history, &[]);
        KeySeen { history, known, numbers }
    }

    /// Who stored a write, and where it is in the end: what a judge of the whole run says beside its verdict.
    pub fn evidence(&self, history: &History, id: OperationId, remains: &[Remains]) -> String {
        let write = history.operation(id);
        let acknowledged = write.returned.map_or_else(|| "never".to_owned(), seconds);
        let Some(event) = self.event(write) else {
            return format!("; {id:?} was acknowledged at {acknowledged}, and no node stored a name for it");
        };
        let held = remains.iter().find(|held| (held.store, &held.key) == (write.store, &write.key));
        let kept = self
            .kept
            .lock()
            .get(&id)
            .map_or_else(String::new, |kept| format!(", had its copies at {}", seconds(*kept)));
        format!(
            "; {id:?}, {} ({}), {} at {acknowledged}{kept}; stored by {}; in the end: {}",
            write.action,
            event.dot,
            write.outcome,
            self.stored(write, event),
            held.map_or_else(|| "nobody read the key".to_owned(), |held| lies(held, write.store, event)),
        )
    }

    /// Who stored the event first, for whom and when.
    fn stored(&self, write: &Operation, event: DurableEvent) -> String {
        let stored = self.world.witness.holders(write.store, &write.key, event.dot);
        let stored = stored.iter().map(|deed| match deed.hint_for {
            None => format!("{} at {}", deed.node, seconds(deed.at)),
            Some(target) => format!("{} for {target} at {}", deed.node, seconds(deed.at)),
        });
        stored.collect::<Vec<_>>().join(", ")
    }

    /// The event of a write, as the client was told it, or else as the nodes that stored its value named it.
    fn event(&self, write: &Operation) -> Option<DurableEvent> {
        let witness = &self.world.witness;
        let dot = match (&write.outcome, &write.action) {
            (Outcome::Written { dot, .. }, _) => *dot,
            (_, Action::Put(value)) => witness.event(write.store, &write.key, value)?,
            (_, Action::Touch { .. } | Action::Delete) => witness.look(|seen| write.witnessed(seen))?.0,
            (_, Action::Get) => return None,
        };
        Some(DurableEvent { dot, timestamp: witness.timestamp(write.store, &write.key, dot)? })
    }

    fn describe(
        &self,
        id: OperationId,
        write: &Operation,
        event: Option<DurableEvent>,
        held: &Remains,
        (copies, required): (usize, usize),
        struck: &[NodeId],
    ) -> String {
        let now = self.world.executor.now();
        let key = String::from_utf8_lossy(&write.key);
        let head = format!("{}/{key}: {id:?} of c{}, {}", write.store, write.client, write.action);
        let Some(event) = event else {
            return format!("{head} was acknowledged at {} and no node ever stored it", seconds(now));
        };
        let before = match self.kept.lock().get(&id) {
            Some(kept) => format!("it had them at {}", seconds(*kept)),
            None if write.returned == Some(now) => "it never had them".to_owned(),
            None => "nobody had looked before".to_owned(),
        };
        format!(
            "{head} ({}), {} at {}: {copies} durable copies at {}, {required} must be ({before}); stored by {}; if the harm came now: {}; struck since: {struck:?}",
            event.dot,
            write.outcome,
            write.returned.map_or_else(String::new, seconds),
            seconds(now),
            self.stored(write, event),
            lies(held, write.store, event),
        )
    }
}

/// What was seen of one key.
struct KeySeen {
    history: History,
    known: Attribution,
    /// The number here of each operation of the whole history.
    numbers: BTreeMap<OperationId, OperationId>,
}

/// Whether a client was told that the write is done, in words that name it.
fn is_promise(write: &Operation) -> bool {
    match write.outcome {
        Outcome::Written { .. } => true,
        Outcome::Acknowledged => write.is_write(),
        _ => false,
    }
}

/// Where the event is, and what is there instead.
fn lies(held: &Remains, store: &str, event: DurableEvent) -> String {
    let own = held.replicas.iter().map(|(node, set)| match durable::holds(store, set, event) {
        true => format!("{node} has it"),
        false => format!("{node} has {} instead", versions(set)),
    });
    let hints = held.hints.iter().map(|(holder, target, set)| {
        let has = durable::holds(store, set, event);
        format!("{holder} has {} for {target}", if has { "a hint" } else { "a hint without it" })
    });
    own.chain(hints).collect::<Vec<_>>().join(", ")
}

fn seconds(at: Moment) -> String {
    format!("{:.6}", at.nanos as f64 / 1e9)
}
