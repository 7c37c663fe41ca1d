//! What nodes store, seen at the engines' seam: who stored which event of a key and when, and who forgot a key.
//!
//! Judges need it for two things. A plain client hears no version, so only here its value gets the name of an event.
//! And a record that a collection round removed may be gone; where nobody removed anything, nothing may.
//!
//! Must never: change what an engine does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use model::{Dot, Moment, NodeId, PartitionId, Timestamp, Token, Value, Version, VersionSet};
use node::engines::Engines;
use parking_lot::Mutex;
use runtime::BoxFuture;
use storage::{Change, Commit, Remains, StorageEngine, StorageError};

use crate::executor::Executor;
use crate::history::{Events, Place, ValueLife};
use crate::looks::Looks;
use crate::records::{HINTS, read_hint, read_record, store_of};

/// One thing that a node did with a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Deed {
    /// When.
    pub at: Moment,
    /// Which node.
    pub node: NodeId,
    /// For whom it parked it; `None` for its own record.
    pub hint_for: Option<NodeId>,
    /// The events of the versions that it holds since; none when it forgot the key.
    pub dots: Vec<Dot>,
}

/// What is known of one key.
#[derive(Default)]
struct KeyTouches {
    deeds: Vec<Deed>,
    nodes: BTreeSet<NodeId>,
    events: BTreeMap<Dot, Timestamp>,
    values: BTreeMap<Bytes, Dot>,
}

/// Everything that was seen in a run.
pub struct Witness {
    executor: Arc<Executor>,
    keys: Mutex<BTreeMap<Place, KeyTouches>>,
    /// Of what any replica has stored as its own.
    events: Mutex<Events>,
    /// What nodes saw when they read, and who has stored what.
    looks: Mutex<Looks>,
    /// Engines that are open now.
    engines: Mutex<BTreeMap<(NodeId, String), Weak<dyn StorageEngine>>>,
}

impl Witness {
    /// Of a run that begins.
    pub fn new(executor: Arc<Executor>) -> Arc<Witness> {
        Arc::new(Witness {
            executor,
            keys: Mutex::default(),
            events: Mutex::default(),
            looks: Mutex::default(),
            engines: Mutex::default(),
        })
    }

    /// What any replica has stored so far that clients were not told of.
    pub fn events(&self) -> Events {
        self.events.lock().clone()
    }

    /// What nodes have seen so far when they read, and who has stored what.
    pub fn looks(&self) -> Looks {
        self.looks.lock().clone()
    }

    /// The same of one key.
    pub(crate) fn looks_of(&self, store: &str, key: &Bytes) -> Looks {
        self.looks.lock().only(store, key)
    }

    /// A node has lost all that it held.
    pub(crate) fn lost(&self, node: NodeId) {
        self.looks.lock().lost(node, self.executor.now());
    }

    /// Looks on at what `node` does with the engines that it opens.
    pub fn watch(self: &Arc<Self>, node: NodeId, inner: Arc<dyn Engines>) -> Arc<dyn Engines> {
        Arc::new(WitnessedEngines { inner, node, witness: self.clone() })
    }

    /// The timestamp of an event, if any node ever stored it.
    pub fn timestamp(&self, store: &str, key: &Bytes, dot: Dot) -> Option<Timestamp> {
        self.of_key(store, key, |known| known.events.get(&dot).copied())?
    }

    /// The event that wrote a value, if any node ever stored it.
    pub fn event(&self, store: &str, key: &Bytes, value: &Bytes) -> Option<Dot> {
        self.of_key(store, key, |known| known.values.get(value).copied())?
    }

    /// Shows what was seen so far to `look`.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Events) -> T) -> T {
        look(&self.events.lock())
    }

    /// Who stored an event, and for whom, each with the first time.
    pub fn holders(&self, store: &str, key: &Bytes, dot: Dot) -> Vec<Deed> {
        let mut first: Vec<Deed> = Vec::new();
        self.of_key(store, key, |known| {
            for deed in known.deeds.iter().filter(|deed| deed.dots.contains(&dot)) {
                if !first.iter().any(|other| (other.node, other.hint_for) == (deed.node, deed.hint_for)) {
                    first.push(deed.clone());
                }
            }
        });
        first
    }

    /// All nodes that ever stored anything of the key, for whom it may be.
    pub fn nodes_of(&self, store: &str, key: &Bytes) -> BTreeSet<NodeId> {
        self.of_key(store, key, |known| known.nodes.clone()).unwrap_or_default()
    }

    /// The engine with this name that a node has open now.
    pub(crate) fn engine(&self, node: NodeId, name: &str) -> Option<Arc<dyn StorageEngine>> {
        self.engines.lock().get(&(node, name.to_owned()))?.upgrade()
    }

    /// The process of a node has ended, and its engines with it.
    pub(crate) fn ended(&self, node: NodeId) {
        self.engines.lock().retain(|(of, _), _| *of != node);
    }

    fn of_key<T>(&self, store: &str, key: &Bytes, look: impl FnOnce(&KeyTouches) -> T) -> Option<T> {
        self.keys.lock().get(&(store.to_owned(), key.clone())).map(look)
    }

    /// A hint is gone: a round removes those that hold nothing but deletions, and values that have expired.
    fn hint_left(&self, place: Place, set: &VersionSet) {
        let dead = |version: &Version| version.value == Value::Tombstone || version.expires.is_some();
        if set.versions().iter().all(dead) {
            self.events.lock().removals.entry(place).or_default().push(self.executor.now());
        }
    }

    /// A node's own record of a key is read: for somebody who asked, or before it is written.
    fn looked(&self, (store, key): (&str, &[u8]), node: NodeId, record: Option<&Bytes>, reads: bool) {
        let (key, now) = (Bytes::copy_from_slice(key), self.executor.now());
        let mut looks = self.looks.lock();
        looks.of_mut(store, &key).look(node, record, (reads, now), read_record);
    }

    fn saw(&self, place: Place, node: NodeId, hint_for: Option<NodeId>, set: Option<VersionSet>) {
        let now = self.executor.now();
        let mut looks = self.looks.lock();
        match hint_for {
            None => looks.of_mut(&place.0, &place.1).store(node, set.as_ref(), now),
            Some(target) => looks.of_mut(&place.0, &place.1).park(node, target, set.as_ref(), now),
        }
        drop(looks);
        let mut keys = self.keys.lock();
        let known = keys.entry(place.clone()).or_default();
        let versions = set.iter().flat_map(|set| set.versions());
        let dots = versions.clone().map(|version| version.dot).collect();
        if set.is_none() {
            self.events.lock().removals.entry(place.clone()).or_default().push(self.executor.now());
        }
        for version in versions {
            let is_new = known.events.insert(version.dot, version.timestamp).is_none();
            let life = match (&version.value, version.expires) {
                (Value::Present(_), None) => ValueLife::Ever,
                (Value::Present(_), Some(until)) => ValueLife::Until(until),
                _ => ValueLife::Gone,
            };
            self.events.lock().lived(&place, version, life);
            let Value::Present(value) = &version.value else {
                // A value that was reaped keeps its dot, and is no deletion.
                if is_new {
                    self.events.lock().deleted(&place, version, self.executor.now());
                }
                continue;
            };
            let first = *known.values.entry(value.clone()).or_insert(version.dot);
            let mut events = self.events.lock();
            if first != version.dot {
                events.touched(&place, value, version, self.executor.now());
            } else if hint_for.is_none() {
                events.values.entry(value.clone()).or_insert((version.dot, version.timestamp));
            }
        }
        known.nodes.insert(node);
        known.deeds.push(Deed { at: self.executor.now(), node, hint_for, dots });
    }
}

struct WitnessedEngines {
    inner: Arc<dyn Engines>,
    node: NodeId,
    witness: Arc<Witness>,
}

impl Engines for WitnessedEngines {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn forget(&self) -> bool {
        self.inner.forget()
    }

    fn remains(&self, name: &str) -> Result<Remains, StorageError> {
        self.inner.remains(name)
    }

    fn open(&self, name: &str) -> BoxFuture<'static, Result<Arc<dyn StorageEngine>, StorageError>> {
        let (opening, node, witness) = (self.inner.open(name), self.node, self.witness.clone());
        let name = name.to_owned();
        Box::pin(async move {
            let inner = opening.await?;
            witness.engines.lock().insert((node, name.clone()), Arc::downgrade(&inner));
            Ok(Arc::new(WitnessedEngine { inner, name, node, witness }) as Arc<dyn StorageEngine>)
        })
    }
}

struct WitnessedEngine {
    inner: Arc<dyn StorageEngine>,
    name: String,
    node: NodeId,
    witness: Arc<Witness>,
}

impl WitnessedEngine {
    fn looked(&self, key: &[u8], record: Option<&Bytes>, reads: bool) {
        if let Some(store) = store_of(&self.name) {
            self.witness.looked((store, key), self.node, record, reads);
        }
    }

    fn saw(&self, partition: PartitionId, key: &[u8], record: Option<Bytes>, removed: Option<Bytes>) {
        let key = Bytes::copy_from_slice(key);
        if self.name == HINTS {
            // A hint leaves when it is delivered; what it held is elsewhere then. Or a round removes it.
            if let Some((place, set)) = removed.and_then(|hint| read_hint(&key, &hint)) {
                let (target, now) = (NodeId(partition.0), self.witness.executor.now());
                self.witness.looks.lock().of_mut(&place.0, &place.1).park(self.node, target, None, now);
                self.witness.hint_left(place, &set);
            }
            let Some(record) = record else { return };
            let Some((place, set)) = read_hint(&key, &record) else { return };
            self.witness.saw(place, self.node, Some(NodeId(partition.0)), Some(set));
        } else if let Some(store) = store_of(&self.name) {
            let set = record.map(|record| read_record(&record).unwrap_or_default());
            self.witness.saw((store.to_owned(), key), self.node, None, set);
        }
    }
}

impl StorageEngine for WitnessedEngine {
    storage::forward_engine!(inner: acknowledges_at_once, repairable, room, durable, sync, position, scan, walk, find, partitions, drop_partition, stats, close);

    fn get(&self, partition: PartitionId, token: Token, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let record = self.inner.get(partition, token, key)?;
        self.looked(key, record.as_ref(), true);
        Ok(record)
    }

    fn read(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        visit: &mut dyn FnMut(&Bytes),
    ) -> Result<bool, StorageError> {
        let there = self.inner.read(partition, token, key, &mut |record| {
            self.looked(key, Some(record), true);
            visit(record);
        })?;
        if !there {
            self.looked(key, None, true);
        }
        Ok(there)
    }

    fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        let (mut seen, mut removed) = (None, None);
        let commit = self.inner.update(partition, token, key, &mut |record| {
            self.looked(key, record, false);
            let change = change(record);
            removed = record.filter(|_| matches!(change, Change::Remove)).cloned();
            seen = match &change {
                Change::Keep => None,
                Change::Put(record) => Some(Some(record.clone())),
                Change::PutJoined(head, tail) => Some(Some([&head[..], tail].concat().into())),
                Change::Remove => Some(None),
            };
            change
        })?;
        if let (Some(_), Some(record)) = (commit, seen) {
            self.saw(partition, key, record, removed);
        }
        Ok(commit)
    }
}
