//! What clients asked, when, and what they heard, in virtual time.

mod events;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use model::{Context, Dot, Moment, NodeId, Timestamp, Value, VersionSet};
use parking_lot::Mutex;
use wire::messages::Condition;

use crate::circumstances::Circumstances;
use crate::host::Host;
use crate::looks::Looks;

pub(crate) use events::Place;
pub use events::{Deletion, Events, Touch, ValueLife};

/// Why a DEL that counted nothing has failed.
pub const NOTHING_TO_DELETE: &str = "there was nothing to delete";
/// Why an EXPIRE, PERSIST or GETEX that changed nothing has failed.
pub const NOTHING_TO_CHANGE: &str = "there was nothing to change";
/// Why a SET whose condition did not hold has failed.
pub const NOT_MET: &str = "the condition was not met";
/// Bytes of a value that people are shown.
const BRIEF_BYTES: usize = 16;

/// An operation's number in its history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(pub usize);

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the key.
    Get,
    /// Write this value, which no other operation of the run writes.
    Put(Bytes),
    /// Delete the key.
    Delete,
    /// Let its value expire, or live for ever.
    Touch {
        /// Whether it expires since.
        ends: bool,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Get => f.write_str("get"),
            Action::Put(value) => write!(f, "put {}", brief(value)),
            Action::Delete => f.write_str("delete"),
            Action::Touch { ends: true } => f.write_str("touch, so that it expires"),
            Action::Touch { ends: false } => f.write_str("touch, so that it stays"),
        }
    }
}

/// What must hold of a value's expiry for it to be changed, or what becomes of it when the value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// NX: it has none.
    IfNone,
    /// XX: it has one.
    IfSome,
    /// GT: the new one is later.
    IfLater,
    /// LT: the new one is sooner.
    IfSooner,
    /// KEEPTTL: the new value has that of the one before it.
    Kept,
}

/// What a write's context came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// No context: it replaces what its coordinator knows.
    Overwrite,
    /// An empty context: it has seen nothing.
    Blind,
    /// The context that this operation's answer carried.
    After(OperationId),
}

/// What the client heard.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Nothing yet.
    Pending,
    /// A get's answer.
    Got(VersionSet),
    /// A write's acknowledgement.
    Written {
        /// The event that is this write.
        dot: Dot,
        /// What the next write may hand back.
        context: Context,
        /// Nodes that acknowledged.
        acks: u8,
        /// Whether a fallback was among them.
        sloppy: bool,
    },
    /// What a plain client sees of a key: its value, if it has one.
    Shown(Option<Bytes>),
    /// A write's acknowledgement that says nothing else, as a plain client gets it.
    Acknowledged,
    /// It certainly was not done.
    Failed(String),
    /// It may have been done.
    Indeterminate(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Pending => f.write_str("nothing yet"),
            Outcome::Got(set) => write!(f, "got {}, vector {:?}", versions(set), set.vector()),
            Outcome::Written { dot, acks, sloppy, .. } => {
                let by = if *sloppy { ", a fallback among them" } else { "" };
                write!(f, "written as {dot} by {acks} nodes{by}")
            }
            Outcome::Shown(None) => f.write_str("shown nothing"),
            Outcome::Shown(Some(value)) => write!(f, "shown {}", brief(value)),
            Outcome::Acknowledged => f.write_str("acknowledged"),
            Outcome::Failed(reason) => write!(f, "failed: {reason}"),
            Outcome::Indeterminate(reason) => write!(f, "of unknown outcome: {reason}"),
        }
    }
}

/// The versions of a set, for people.
pub(crate) fn versions(set: &VersionSet) -> String {
    let value = |value: &Value| match value {
        Value::Present(value) => brief(value),
        Value::Tombstone => "a tombstone".to_owned(),
    };
    let versions: Vec<String> =
        set.versions().iter().map(|version| format!("{} ({})", version.dot, value(&version.value))).collect();
    if versions.is_empty() { "nothing".to_owned() } else { versions.join(" and ") }
}

/// What a value begins with, and its length: enough to know it by, on one line.
fn brief(value: &Bytes) -> String {
    match value.len() {
        0..=BRIEF_BYTES => value.escape_ascii().to_string(),
        length => format!("{}… of {length} bytes", value[..BRIEF_BYTES].escape_ascii()),
    }
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Who asked.
    pub client: u32,
    /// The store.
    pub store: &'static str,
    /// The key.
    pub key: Bytes,
    /// What was asked.
    pub action: Action,
    /// For writes: what it was told to replace.
    pub basis: Basis,
    /// For writes: what had to hold where it was stamped.
    pub condition: Condition,
    /// R of a get, W of a write: answers that it had to have, by the store or by the request itself.
    pub required: u8,
    /// Whether it asked that replicas alone answer, by its store or by the request itself.
    pub strict: bool,
    /// What a get's answer said of itself: whether fallbacks stood in. No judge lets anything off for it.
    pub sloppy: Option<bool>,
    /// The host that drove it to its quorum, if that is known: a client for its own gets, a node for its door.
    pub driver: Option<Host>,
    /// For gets: whether it is the merged pages of a walk, which writes nothing back.
    pub walked: bool,
    /// For puts: from when on the value may read as absent, if ever.
    pub expires: Option<Moment>,
    /// For puts: from when on the value must read as absent, if that is known. Where a node with a wrong clock has
    /// worked out the moment, it is not.
    pub shown_until: Option<Moment>,
    /// For gets: the values that the client was shown.
    pub shown: Vec<Bytes>,
    /// When it was asked.
    pub invoked: Moment,
    /// When the answer came.
    pub returned: Option<Moment>,
    /// The answer.
    pub outcome: Outcome,
}

impl Operation {
    /// The event of an acknowledged DEL, EXPIRE or PERSIST, which tell no client: the only one of its kind that was first
    /// stored while it was under way. `None` where there are several, or none.
    pub fn witnessed(&self, seen: &Events) -> Option<(Dot, Timestamp)> {
        let (place, within) = ((self.store, &self.key), self.invoked..=self.returned?);
        match self.action {
            Action::Touch { ends } => seen.only_touch(place, ends, within),
            Action::Delete => seen.only_deletion(place, within),
            Action::Get | Action::Put(_) => None,
        }
    }

    /// Whether it changes anything: a put, a delete, a touch.
    pub fn is_write(&self) -> bool {
        self.action != Action::Get
    }

    /// Whether its answer said that a fallback stood in for a replica; `None` where answers do not say it.
    pub fn says_sloppy(&self) -> Option<bool> {
        match self.outcome {
            Outcome::Written { sloppy, .. } => Some(sloppy),
            _ => self.sloppy,
        }
    }

    /// Whether a fallback may stand in for a replica at all, and its answer does not deny that one did.
    pub fn may_say_sloppy(&self) -> bool {
        !self.strict && self.says_sloppy() != Some(false)
    }

    /// How long it took; nothing until it has ended.
    pub fn lasted(&self) -> Duration {
        self.returned.map_or(Duration::ZERO, |returned| returned.since(self.invoked))
    }

    /// Its store and key.
    pub fn place(&self) -> (&str, &Bytes) {
        (self.store, &self.key)
    }
}

/// All operations of a run, in the order in which they were asked.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The operations; their ids are positions.
    pub operations: Vec<Operation>,
    /// When the cluster's collection epochs were written, in order. A round writes them twice before any node forgets:
    /// as it opens its epoch, and as it completes it.
    pub epochs: Vec<Moment>,
    /// When faults took copies from a node, in order.
    pub strikes: Vec<Moment>,
    /// What the replicas were seen to store.
    pub witnessed: Events,
    /// What some commands of plain clients say of expiries.
    pub lifetimes: BTreeMap<OperationId, Lifetime>,
    /// What the simulator knows of the circumstances of requests.
    pub circumstances: Circumstances,
    /// What nodes saw when they read, and who has stored what.
    pub looks: Looks,
}

impl History {
    /// The operation with this id.
    pub fn operation(&self, id: OperationId) -> &Operation {
        &self.operations[id.0]
    }

    /// Whether a fault took copies from any node between the two moments.
    pub fn was_struck(&self, from: Moment, to: Moment) -> bool {
        self.strikes.get(self.strikes.partition_point(|&at| at < from)).is_some_and(|&at| at <= to)
    }

    /// The first moment at which something of the key that was gone at `from` may be forgotten: a whole collection round
    /// has ended that began at `from` or later, and a node has removed its record of the key since.
    pub fn forgotten_after(&self, place: (&str, &Bytes), from: Moment) -> Option<Moment> {
        let first = self.epochs.partition_point(|&moment| moment < from);
        let ended = self.epochs.get(first + 1)?;
        self.witnessed.removed_after(place, *ended)
    }

    /// The operations on each key of each store, in the order in which they were asked.
    pub fn by_key(&self) -> BTreeMap<(&'static str, Bytes), Vec<OperationId>> {
        let mut keys: BTreeMap<_, Vec<OperationId>> = BTreeMap::new();
        for (id, operation) in self.all() {
            keys.entry((operation.store, operation.key.clone())).or_default().push(id);
        }
        keys
    }

    /// All operations with their ids.
    pub fn all(&self) -> impl Iterator<Item = (OperationId, &Operation)> {
        self.operations.iter().enumerate().map(|(position, operation)| (OperationId(position), operation))
    }
}

/// Is told of each operation that has ended, with the history up to then.
pub type Watcher = Box<dyn Fn(&History, OperationId) + Send + Sync>;

/// Where clients write their history.
#[derive(Clone, Default)]
pub struct Recorder {
    history: Arc<Mutex<History>>,
    watcher: Arc<OnceLock<Watcher>>,
}

impl Recorder {
    /// Records that an operation begins; its outcome must be pending.
    pub fn begin(&self, operation: Operation) -> OperationId {
        assert!(operation.outcome == Outcome::Pending, "an operation begins without an outcome");
        let mut history = self.history.lock();
        history.operations.push(operation);
        OperationId(history.operations.len() - 1)
    }

    /// Records that the value of a put expires, at a moment that a node makes out by its own clock, however wrong that
    /// is: it may read as absent at once.
    pub fn may_expire(&self, id: OperationId) {
        let put = &mut self.history.lock().operations[id.0];
        put.expires = Some(put.invoked);
    }

    /// Records what must hold for a write.
    pub fn condition(&self, id: OperationId, condition: Condition) {
        self.history.lock().operations[id.0].condition = condition;
    }

    /// Records what a command says of its value's expiry.
    pub fn lifetime(&self, id: OperationId, lifetime: Lifetime) {
        self.history.lock().lifetimes.insert(id, lifetime);
    }

    /// Records that a get is part of a walk.
    pub fn walks(&self, id: OperationId) {
        let get = &mut self.history.lock().operations[id.0];
        (get.walked, get.strict) = (true, true);
    }

    /// Records what a get's answer shows, and whether it says that fallbacks stood in, before its end.
    pub fn show(&self, id: OperationId, shown: Vec<Bytes>, sloppy: bool) {
        let get = &mut self.history.lock().operations[id.0];
        (get.shown, get.sloppy) = (shown, Some(sloppy));
    }

    /// Records what an operation itself asks for, in place of its store: this many answers, and whether fallbacks may
    /// give them.
    pub fn require(&self, id: OperationId, required: Option<u8>, sloppy: Option<bool>) {
        let operation = &mut self.history.lock().operations[id.0];
        operation.required = required.unwrap_or(operation.required);
        operation.strict = sloppy.map_or(operation.strict, |sloppy| !sloppy);
    }

    /// Records what became of it.
    pub fn end(&self, id: OperationId, returned: Moment, outcome: Outcome) {
        let mut history = self.history.lock();
        let operation = &mut history.operations[id.0];
        assert!(operation.outcome == Outcome::Pending, "an operation ends once");
        operation.returned = Some(returned);
        operation.outcome = outcome;
        if let Some(watcher) = self.watcher.get() {
            watcher(&history, id);
        }
    }

    /// Tells `watcher` of each operation that ends from now on.
    pub fn watch(&self, watcher: Watcher) {
        assert!(self.watcher.set(watcher).is_ok(), "one watches");
    }

    /// Shows the history so far to `look`, which must not record anything.
    pub fn look<T>(&self, look: impl FnOnce(&History) -> T) -> T {
        look(&self.history.lock())
    }

    /// The history so far.
    pub fn history(&self) -> History {
        self.history.lock().clone()
    }
}

/// What all nodes hold of one key at the end, read past all quorums.
#[derive(Clone, Debug)]
pub struct Remains {
    /// The store.
    pub store: &'static str,
    /// The key.
    pub key: Bytes,
    /// Each replica's own record.
    pub replicas: Vec<(NodeId, VersionSet)>,
    /// Records of nodes that have left the key's partition, and have not given all back.
    pub former: Vec<(NodeId, VersionSet)>,
    /// Hints: holder, target, what is parked.
    pub hints: Vec<(NodeId, NodeId, VersionSet)>,
}

impl Remains {
    /// What each node holds, and each hint.
    pub fn sets(&self) -> impl Iterator<Item = &VersionSet> {
        self.replicas.iter().map(|(_, set)| set).chain(self.hints.iter().map(|(_, _, set)| set))
    }

    /// Everything that any node holds, merged.
    pub fn merged(&self) -> VersionSet {
        let mut all = VersionSet::default();
        let hints = self.hints.iter().map(|(_, _, set)| set);
        for set in self.replicas.iter().map(|(_, set)| set).chain(hints) {
            all.merge(set);
        }
        all
    }

    /// What one replica holds, hints for it included.
    pub fn of_replica(&self, replica: NodeId) -> VersionSet {
        let mut all = VersionSet::default();
        let own = self.replicas.iter().filter(|(node, _)| *node == replica).map(|(_, set)| set);
        let hints = self.hints.iter().filter(|(_, target, _)| *target == replica).map(|(_, _, set)| set);
        for set in own.chain(hints) {
            all.merge(set);
        }
        all
    }
}
