//! Engines with planted bugs.
//!
//! Must never: be used where no bug is planted.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use model::{PartitionId, Token, Value, Version, VersionSet};
use node::engines::Engines;
use parking_lot::Mutex;
use runtime::BoxFuture;
use storage::{
    Change, Commit, Durable, MemoryEngine, Met, Remains, RepairableEngine, ScanCursor, ScanLimit, ScanPage,
    StorageEngine, StorageError,
};

use wire::versions::Record;

use crate::by_hash::ByHash;
use crate::dice::Dice;
use crate::plant::Plant;

/// Opens engines that have the planted bug.
pub struct PlantedEngines {
    inner: Arc<dyn Engines>,
    plant: Plant,
    dice: Mutex<Dice>,
    by_hash: ByHash,
}

impl PlantedEngines {
    /// Around good engines.
    pub fn new(inner: Arc<dyn Engines>, plant: Plant, (dice, by_hash): (Dice, ByHash)) -> PlantedEngines {
        PlantedEngines { inner, plant, dice: Mutex::new(dice), by_hash }
    }
}

impl Engines for PlantedEngines {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn forget(&self) -> bool {
        // A node that goes on under an old identity does not know what it lost either.
        self.plant != Plant::RewoundIdentity && self.inner.forget()
    }

    fn remains(&self, name: &str) -> Result<Remains, StorageError> {
        self.inner.remains(name)
    }

    fn open(&self, name: &str) -> BoxFuture<'static, Result<Arc<dyn StorageEngine>, StorageError>> {
        let (opening, plant) = (self.inner.open(name), self.plant);
        let hints = name == "hints";
        let hoards = plant == Plant::HoardedHints && name == "hints";
        // A hint is a record behind nine more bytes.
        let framed = if name.ends_with("hints") { 9 } else { 0 };
        let collects = (plant == Plant::HastyCollection).then_some(framed);
        let (dice, by_hash) = (Mutex::new(Dice::new(self.dice.lock().roll())), self.by_hash.clone());
        Box::pin(async move {
            let mut inner = opening.await?;
            if plant == Plant::HintsInMemory && hints {
                inner = Arc::new(MemoryEngine::new());
            }
            Ok(Arc::new(PlantedEngine {
                inner,
                plant,
                hoards,
                collects,
                dice,
                before: Mutex::default(),
                last: Mutex::default(),
                hints,
                by_hash,
                commit: Mutex::default(),
            }) as Arc<dyn StorageEngine>)
        })
    }
}

struct PlantedEngine {
    inner: Arc<dyn StorageEngine>,
    plant: Plant,
    /// Whether it keeps what it is told to remove.
    hoards: bool,
    /// Whether it forgets tombstones, and where records begin in what it is given.
    collects: Option<usize>,
    dice: Mutex<Dice>,
    /// The record before the last of each key.
    before: Mutex<BTreeMap<Bytes, Option<Bytes>>>,
    /// The last record of each key, for who does not check what he reads.
    last: Mutex<BTreeMap<Bytes, Bytes>>,
    /// Whether it holds hints.
    hints: bool,
    /// Where keys lie, and where the plain hash says.
    by_hash: ByHash,
    /// What was waited for last.
    commit: Mutex<Commit>,
}

impl PlantedEngine {
    /// The partition of the target for which a hint is parked, or of another one.
    fn target(&self, partition: PartitionId) -> PartitionId {
        match self.plant == Plant::HintsMisaddressed && self.hints {
            true => PartitionId(partition.0 % 3 + 1),
            false => partition,
        }
    }
}

impl PlantedEngine {
    /// Whether a record holds a value of no bytes, and that counts for none.
    fn takes_for_nothing(&self, record: &Bytes) -> bool {
        let is_empty =
            |version: &Version| matches!(&version.value, Value::Present(value) if value.is_empty());
        self.plant == Plant::EmptyIsNothing
            && !self.hints
            && wire::versions::decode_record(record)
                .is_ok_and(|Record { set, .. }| set.versions().iter().any(is_empty))
    }
}

impl StorageEngine for PlantedEngine {
    storage::forward_engine!(inner: acknowledges_at_once, room, sync, position, partitions, drop_partition, stats, close);

    fn get(&self, partition: PartitionId, token: Token, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        if self.plant == Plant::StaleEngine
            && let Some(before) = self.before.lock().get(key)
            && self.dice.lock().chance(300)
        {
            return Ok(before.clone());
        }
        if self.plant == Plant::ForgetfulEngine && self.dice.lock().chance(200) {
            self.inner.update(partition, token, key, &mut |_| Change::Remove)?;
        }
        let partition = self.target(partition);
        if self.plant == Plant::CrossedKeys
            && let Some((other, record)) = self.last.lock().iter().next_back()
            && other != key
            && self.dice.lock().chance(100)
        {
            return Ok(Some(record.clone()));
        }
        match self.inner.get(partition, token, key) {
            Err(StorageError::Corrupt { .. }) if self.plant == Plant::UncheckedReads => {
                Ok(self.last.lock().get(key).map(damaged))
            }
            answer => answer,
        }
    }

    fn update<'a>(
        &self,
        partition: PartitionId,
        token: Token,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        let partition = self.target(partition);
        let errs = !self.hints && self.dice.lock().chance(50);
        let old = self.before.lock().get(key).cloned();
        let (mut before, mut deleted) = (None, false);
        let commit = self.inner.update(partition, token, key, &mut |record| {
            before = record.cloned();
            let shown = match (self.plant, &old) {
                (Plant::StaleStamps, Some(old)) if errs => old.as_ref(),
                _ => record,
            };
            match change(shown) {
                Change::Put(_) | Change::PutJoined(..)
                    if self.plant == Plant::LostWrites && errs && record.is_some() =>
                {
                    Change::Put(record.cloned().expect("there is one"))
                }
                Change::Put(new) if self.takes_for_nothing(&new) => {
                    record.map_or(Change::Keep, |record| Change::Put(record.clone()))
                }
                Change::PutJoined(head, tail)
                    if self.takes_for_nothing(&[&head[..], tail].concat().into()) =>
                {
                    record.map_or(Change::Keep, |record| Change::Put(record.clone()))
                }
                Change::Remove if self.hoards => Change::Keep,
                Change::Put(new) if self.plant == Plant::PersistIgnored && !self.hints => {
                    Change::Put(record.and_then(|old| still_ends(old, &new)).unwrap_or(new))
                }
                Change::Put(new) => {
                    deleted = self.collects.is_some_and(|from| is_deleted(&new.slice(from..)));
                    if matches!(self.plant, Plant::UncheckedReads | Plant::CrossedKeys) {
                        self.last.lock().insert(Bytes::copy_from_slice(key), new.clone());
                    }
                    Change::Put(new)
                }
                // Whatever is put in two pieces is a value.
                change => change,
            }
        })?;
        if deleted {
            self.inner.update(partition, token, key, &mut |_| Change::Remove)?;
        }
        if self.plant == Plant::OlderOverNewer && errs && commit.is_some() && before.is_some() {
            let before = before.clone().expect("there is one");
            return self.inner.update(partition, token, key, &mut |_| Change::Put(before.clone()));
        }
        if commit.is_some() {
            self.before.lock().insert(Bytes::copy_from_slice(key), before);
        }
        Ok(commit)
    }

    fn repairable(&self) -> Option<&dyn RepairableEngine> {
        self.inner.repairable().filter(|_| self.plant != Plant::UnrepairableEngine)
    }

    fn durable(&self, commit: Commit) -> Durable {
        match self.plant {
            Plant::AcksEarly => Durable::Already,
            Plant::HintsAckedEarly if self.hints => Durable::Already,
            // The sync before the one that covers it answers.
            Plant::AcksOneBehind => self.inner.durable(std::mem::replace(&mut *self.commit.lock(), commit)),
            _ => self.inner.durable(commit),
        }
    }

    fn scan(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<ScanPage, StorageError> {
        let mut page = self.inner.scan(partition, after, limit)?;
        if self.plant == Plant::HintsByHash && self.hints {
            page.records.retain(|(name, _)| self.by_hash.finds_hint(name));
        }
        if self.plant == Plant::HintsDropped && self.hints {
            for (key, _) in &page.records {
                self.inner.update(partition, Token::of(key), key, &mut |_| Change::Remove)?;
            }
        }
        Ok(page)
    }

    fn walk(
        &self,
        partition: PartitionId,
        tokens: RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        self.inner.walk(partition, tokens, &mut |token, met| {
            let is_met = match (self.plant, &met) {
                (Plant::OverlookedLeaves, _) => !is_overlooked(token),
                (Plant::RepairsByHash, Met::Record { key, .. }) => self.hints || self.by_hash.finds(key),
                _ => true,
            };
            if is_met { visit(token, met) } else { ControlFlow::Continue(()) }
        })
    }

    fn find(
        &self,
        partition: PartitionId,
        token: Token,
        fingerprint: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        if self.plant == Plant::OverlookedExpiry {
            return Ok(Vec::new());
        }
        self.inner.find(partition, token, fingerprint)
    }
}

/// Whether a record lies in a leaf that is not looked at: every other sixteenth of the ring.
fn is_overlooked(token: Token) -> bool {
    token.0 >> 60 & 1 == 0
}

/// The record with a flipped bit in its value.
fn damaged(record: &Bytes) -> Bytes {
    let mut record = record.to_vec();
    if let Some(place) = record.windows(7).rposition(|bytes| bytes == b"value-c") {
        record[place] ^= 1;
    }
    record.into()
}

/// The record with the expiry of the one before it, if it is the same value that shall live for ever from now on.
fn still_ends(old: &Bytes, new: &Bytes) -> Option<Bytes> {
    let old = wire::versions::decode_record(old).ok()?.set;
    let Record { own, set } = wire::versions::decode_record(new).ok()?;
    let ([before], [after]) = (old.versions(), set.versions()) else { return None };
    if before.value != after.value || after.expires.is_some() || before.expires.is_none() {
        return None;
    }
    let version = Version { expires: before.expires, ..after.clone() };
    let set = VersionSet::from_parts(set.vector().clone(), [version].into_iter().collect())?;
    let mut bytes = BytesMut::new();
    wire::versions::encode_record(own, &set, &mut bytes);
    Some(bytes.freeze())
}

/// Whether a record says nothing but that its key was deleted.
fn is_deleted(record: &Bytes) -> bool {
    wire::versions::decode_record(record).is_ok_and(|record| record.set.is_deleted())
}
