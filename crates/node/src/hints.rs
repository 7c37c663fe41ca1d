//! Hints: writes parked at this node for a target that could not take them.
//!
//! Hints rest in an engine of their own, one partition per target, so that all hints of one target can be walked,
//! counted and dropped at once. Hints for the same key merge. A hint that this node stamped itself (because no
//! replica could be reached) remembers its actor like any stored record does.
//!
//! A hint leaves in one of three ways, each of which ends with [`Hints::remove`]: its target has it, the replicas
//! that took the target's place have hints of their own ([`Hints::readdress`]), or it is too old and another replica
//! holds what it holds. `remove` spares a hint that has changed since it was read. A removal that a crash undoes is
//! harmless: the hint is delivered again, and merging it changes nothing.
//!
//! **Architecture Invariant:** at the byte limit a hint is refused, never a healthy write.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use model::{Epoch, NodeId, PartitionId, Resolver, Store, StoreName, Token, VersionSet, WallMillis};
use parking_lot::RwLock;
use storage::{Change, Commit, Durable, Met, ScanCursor, ScanLimit, StorageEngine, StorageError};
use wire::error::ErrorCode;
use wire::messages::{Condition, Failure};

use crate::stores::Stamper;
use crate::stores::{
    Stamped, WriteOrder, check_condition, check_key, check_size, decode, encode, refuse, stamp,
};
use crate::trees::Scrubbed;

/// Bytes of hints that one node holds before it refuses more: 1 GiB, minutes of writes at full speed, and small
/// beside the data it must leave room for.
pub const HINT_BYTES_MAX: u64 = 1 << 30;

/// Format of a hint record: this byte, when the oldest write was parked (8 bytes, little endian, wall-clock
/// milliseconds), then a stored record.
const HINT_FORMAT: u8 = 1;
const HEADER_BYTES: usize = 9;

/// Bytes of hints that one step of the scrub reads.
const SCRUB_BYTES: u64 = 1 << 20;

/// One parked write.
#[derive(Clone, Debug, PartialEq)]
pub struct Hint {
    /// Who shall get it.
    pub target: NodeId,
    /// In which store.
    pub store: StoreName,
    /// For which key.
    pub key: Bytes,
    /// What is parked.
    pub set: VersionSet,
    /// When the oldest of its writes was parked.
    pub parked: WallMillis,
    /// The collection epoch before it was read; whoever reads a page says it.
    pub epoch: Epoch,
    /// What the engine holds: whoever removes the hint means this and nothing newer.
    record: Bytes,
}

impl Hint {
    /// Bytes that it takes to send, about.
    pub fn bytes(&self) -> u64 {
        (self.key.len() + self.record.len()) as u64
    }
}

/// All hints that this node holds.
pub struct Hints {
    engine: Arc<dyn StorageEngine>,
    stamper: Arc<Stamper>,
    bytes_max: u64,
    refused: AtomicU64,
    damaged: AtomicU64,
    /// Damaged records that the engine had met when they were last forgotten here.
    looked_after: AtomicU64,
    /// Held for reading while content moves from one hint to another, so that whoever must see every hint for a key
    /// (a fence of collection, which holds it for writing) meets it at one of its places.
    moving: RwLock<()>,
}

impl Hints {
    /// Over an engine that holds nothing else; refuses hints when it holds `bytes_max` bytes.
    pub fn new(engine: Arc<dyn StorageEngine>, stamper: Arc<Stamper>, bytes_max: u64) -> Self {
        Hints {
            engine,
            stamper,
            bytes_max,
            refused: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            looked_after: AtomicU64::new(0),
            moving: RwLock::new(()),
        }
    }

    /// Parks what `target` misses, merged with what is parked already.
    pub fn park(
        &self,
        target: NodeId,
        store: &Store,
        key: &[u8],
        set: &VersionSet,
    ) -> Result<Option<Commit>, Failure> {
        self.check_room()?;
        check_key(store, key)?;
        let mut answer = Ok(());
        let commit = self.update(target, &store.name, key, &mut |parked, record| {
            let (own, mut merged) = match record {
                None => (None, VersionSet::default()),
                Some(record) => match decode(&record, partition(target)) {
                    Ok(decoded) => decoded,
                    Err(failure) => {
                        answer = Err(failure);
                        return Change::Keep;
                    }
                },
            };
            if merged.includes(set) && !merged.is_empty() {
                return Change::Keep;
            }
            merged.merge(set);
            merged.resolve(store.resolver);
            Change::Put(frame(parked, &encode(own, &merged)))
        })?;
        answer?;
        Ok(commit)
    }

    /// Stamps a write that no replica could take and parks it for `target`, as a fallback must (D1).
    pub fn stamp(
        &self,
        target: NodeId,
        store: &Store,
        key: &[u8],
        order: WriteOrder,
    ) -> Result<Stamped, Failure> {
        if order.condition != Condition::None {
            let detail = "no replica of the key can be reached, and a fallback judges no condition";
            return Err(Failure::new(ErrorCode::InsufficientReplicas, detail));
        }
        self.check_room()?;
        check_key(store, key)?;
        check_size(store, &order.value)?;
        self.stamper.check_context(order.context.as_ref())?;
        let own_context = order.context.clone();
        let mut order = Some(order);
        let mut answer = Err(Failure::new(ErrorCode::Internal, "the engine did not call back"));
        let commit = self.update(target, &store.name, key, &mut |parked, record| {
            let order = order.take().expect("an engine calls back at most once");
            let (own, mut set) = match record.map(|record| decode(&record, partition(target))) {
                None => (None, VersionSet::default()),
                Some(Ok(decoded)) => decoded,
                Some(Err(failure)) => {
                    answer = Err(failure);
                    return Change::Keep;
                }
            };
            let now = self.stamper.clock().wall();
            let known = set.timestamp_max();
            let stamped = check_condition(store, &set, &order, now)
                .and_then(|()| stamp(&self.stamper, store, own, &mut set, known, order));
            let (actor, dot) = match stamped {
                Ok(stamped) => stamped,
                Err(failure) => {
                    answer = Err(failure);
                    return Change::Keep;
                }
            };
            let bytes = frame(parked, &encode(Some(actor), &set));
            answer = Ok((set, dot));
            Change::Put(bytes)
        })?;
        let (set, dot) = answer?;
        Ok(Stamped::new(set, dot, own_context, commit))
    }

    /// Everything parked here for this key, for any of `targets`: what a fallback answers to a sloppy read.
    pub fn get(
        &self,
        targets: &[NodeId],
        store: &StoreName,
        resolver: Resolver,
        key: &[u8],
    ) -> Result<VersionSet, Failure> {
        let mut all = VersionSet::default();
        let name = hint_key(store, key);
        for &target in targets {
            let found = self.engine.get(partition(target), Token::of(&name), &name).map_err(refuse)?;
            if let Some(record) = found {
                all.merge(&decode(&unframe(&record, target)?.1, partition(target))?.1);
            }
        }
        all.resolve(resolver);
        Ok(all)
    }

    /// One page of a target's hints. Damaged ones are forgotten, and counted: what waits behind them must not wait for
    /// ever, nor they themselves, and anti-entropy makes up for what they held if any replica has it.
    pub fn page(
        &self,
        target: NodeId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<(Vec<Hint>, Option<ScanCursor>), Failure> {
        let page = self.engine.scan(partition(target), after, limit).map_err(refuse)?;
        self.forget_damaged()?;
        let read = |(name, whole): (Bytes, Bytes)| {
            let (parked, record) = unframe(&whole, target).ok()?;
            let (store, key) = split_key(&name)?;
            let set = decode(&record, partition(target)).ok()?.1;
            Some(Hint { target, store, key, set, parked, epoch: Epoch(0), record: whole })
        };
        Ok((page.records.into_iter().filter_map(read).collect(), page.next))
    }

    /// Forgets damaged hints, if the engine has met any since the last time; a scan leaves them out.
    fn forget_damaged(&self) -> Result<(), Failure> {
        let Some(engine) = self.engine.repairable() else { return Ok(()) };
        let met = engine.damage().found;
        if self.looked_after.load(Ordering::Relaxed) == met {
            return Ok(());
        }
        for (target, _) in self.pending() {
            let lost = engine.discard_damaged(partition(target)).map_err(refuse)?;
            if lost > 0 {
                self.damaged.fetch_add(lost, Ordering::Relaxed);
                tracing::warn!(peer = %target, hints = lost, "damaged hints are forgotten");
            }
        }
        self.looked_after.store(met, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a hint that has been taken care of, if it is what was read; false when it has changed since, or is gone.
    ///
    /// # Errors
    /// When the engine refuses; the hint stays.
    pub fn remove(&self, hint: &Hint) -> Result<bool, Failure> {
        let name = hint_key(&hint.store, &hint.key);
        let mut unchanged = false;
        self.engine
            .update(partition(hint.target), Token::of(&name), &name, &mut |record| {
                unchanged = record.is_some_and(|record| *record == hint.record);
                if unchanged { Change::Remove } else { Change::Keep }
            })
            .map_err(refuse)?;
        Ok(unchanged)
    }

    /// Whether a hint is still what was read.
    pub(crate) fn holds(&self, hint: &Hint) -> bool {
        let name = hint_key(&hint.store, &hint.key);
        let found = self.engine.get(partition(hint.target), Token::of(&name), &name);
        found.is_ok_and(|found| found.as_ref() == Some(&hint.record))
    }

    /// Gives a hint, as it was read, to whoever holds its key by now, with `give`, which must put its content where a
    /// fence would find it: into hints for others, or into this node's own record. Does nothing when the hint has
    /// changed since it was read, or is gone; `None` then.
    pub fn readdress<T>(&self, hint: &Hint, give: impl FnOnce() -> T) -> Result<Option<T>, Failure> {
        let name = hint_key(&hint.store, &hint.key);
        let _moving = self.moving.read();
        let found = self.engine.get(partition(hint.target), Token::of(&name), &name).map_err(refuse)?;
        Ok((found.as_ref() == Some(&hint.record)).then(give))
    }

    /// Reads hints for `target` from this token on, about a mebibyte of them.
    pub(crate) fn scrub_step(&self, target: NodeId, from: Token) -> Result<Scrubbed, StorageError> {
        let (mut scrubbed, mut last) = (Scrubbed::default(), None);
        self.engine.walk(partition(target), from..=Token(u64::MAX), &mut |token, met| {
            if scrubbed.bytes >= SCRUB_BYTES && last.is_some_and(|last| last != token) {
                scrubbed.next = Some(token);
                return ControlFlow::Break(());
            }
            last = Some(token);
            scrubbed.records += 1;
            match met {
                Met::Record { key, record } => scrubbed.bytes += (key.len() + record.len()) as u64,
                Met::Corrupt => scrubbed.corrupt += 1,
            }
            ControlFlow::Continue(())
        })?;
        Ok(scrubbed)
    }

    /// Merges tombstones into every hint for the key that is not clean of them.
    ///
    /// # Errors
    /// When a hint cannot be read or written.
    pub(crate) fn cleanse(
        &self,
        store: &StoreName,
        key: &[u8],
        tombstones: &VersionSet,
    ) -> Result<(), Failure> {
        let _no_hint_moves = self.moving.write();
        for (target, _) in self.pending() {
            self.change(target, store, key, &mut |set| match set.is_clean_of(tombstones) {
                true => None,
                false => {
                    let mut set = set.clone();
                    set.merge(tombstones);
                    Some(Some(set))
                }
            })?;
        }
        Ok(())
    }

    /// Removes every hint for the key that says nothing but these tombstones; how many there were.
    ///
    /// # Errors
    /// When a hint cannot be read or removed.
    pub(crate) fn forget(
        &self,
        store: &StoreName,
        key: &[u8],
        tombstones: &VersionSet,
    ) -> Result<u64, Failure> {
        let mut forgotten = 0;
        for (target, _) in self.pending() {
            self.change(target, store, key, &mut |set| {
                let mut set = set.clone();
                // A value under the dot of a tombstone has expired.
                set.reap(WallMillis(u64::MAX));
                let covered = tombstones.includes(&set);
                forgotten += u64::from(covered);
                covered.then_some(None)
            })?;
        }
        Ok(forgotten)
    }

    /// Changes a hint that is there: `Some(Some(set))` to another one, `Some(None)` removes it.
    fn change(
        &self,
        target: NodeId,
        store: &StoreName,
        key: &[u8],
        change: &mut dyn FnMut(&VersionSet) -> Option<Option<VersionSet>>,
    ) -> Result<(), Failure> {
        let mut answer = Ok(());
        self.update(target, store, key, &mut |parked, record| {
            let Some(record) = record else { return Change::Keep };
            match decode(&record, partition(target)) {
                Ok((own, set)) => match change(&set) {
                    None => Change::Keep,
                    Some(None) => Change::Remove,
                    Some(Some(set)) => Change::Put(frame(parked, &encode(own, &set))),
                },
                Err(failure) => {
                    answer = Err(failure);
                    Change::Keep
                }
            }
        })?;
        answer
    }

    /// How many hints `target` has.
    pub fn count(&self, target: NodeId) -> u64 {
        self.pending().into_iter().find(|(id, _)| *id == target).map_or(0, |(_, count)| count)
    }

    /// Hints that could not be read and were forgotten, since the start.
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Hints that were refused since the start, because the byte limit was reached.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes of hints that are held before more are refused.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Targets with hints, and how many each has.
    pub fn pending(&self) -> Vec<(NodeId, u64)> {
        self.engine.partitions().into_iter().map(|held| (NodeId(held.partition.0), held.records)).collect()
    }

    /// Waits until a parked hint is durable.
    pub fn durable(&self, commit: Commit) -> Durable {
        self.engine.durable(commit)
    }

    /// Its engine, for closing.
    pub fn engine(&self) -> &Arc<dyn StorageEngine> {
        &self.engine
    }

    fn check_room(&self) -> Result<(), Failure> {
        let bytes = self.engine.stats().live_bytes;
        if bytes < self.bytes_max {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(Failure::new(
            ErrorCode::Overloaded,
            format!("this node already holds {bytes} bytes of hints for other nodes, which is its limit"),
        ))
    }

    fn update<'a>(
        &self,
        target: NodeId,
        store: &StoreName,
        key: &[u8],
        change: &mut dyn FnMut(WallMillis, Option<Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, Failure> {
        let name = hint_key(store, key);
        let now = self.stamper.clock().wall();
        let mut answer = Ok(());
        let mut change = |record: Option<&Bytes>| match record {
            None => change(now, None),
            Some(record) => match unframe(record, target) {
                Ok((parked, record)) => change(parked, Some(record)),
                Err(failure) => {
                    answer = Err(failure);
                    Change::Keep
                }
            },
        };
        let (partition, token) = (partition(target), Token::of(&name));
        let mut update = || self.engine.update(partition, token, &name, &mut change);
        let commit = match update() {
            // What it held is lost in any case; it must not block what comes.
            Err(StorageError::Corrupt { .. })
                if self.discard_corrupt(token, target, &name).map_err(refuse)? =>
            {
                self.damaged.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(peer = %target, hints = 1, "damaged hints are forgotten");
                update()
            }
            commit => commit,
        };
        let commit = commit.map_err(refuse)?;
        answer?;
        Ok(commit)
    }

    /// Forgets a hint that cannot be read; true when there was one.
    fn discard_corrupt(&self, token: Token, target: NodeId, name: &[u8]) -> Result<bool, StorageError> {
        match self.engine.repairable() {
            Some(engine) => engine.discard_corrupt(partition(target), token, name),
            None => Ok(false),
        }
    }
}

fn partition(target: NodeId) -> PartitionId {
    PartitionId(target.0)
}

/// Store name, a zero byte (no name holds one), key.
fn hint_key(store: &StoreName, key: &[u8]) -> Bytes {
    let mut name = BytesMut::with_capacity(store.as_str().len() + 1 + key.len());
    name.put_slice(store.as_str().as_bytes());
    name.put_u8(0);
    name.put_slice(key);
    name.freeze()
}

fn split_key(name: &Bytes) -> Option<(StoreName, Bytes)> {
    let zero = name.iter().position(|&byte| byte == 0)?;
    let store = StoreName::new(std::str::from_utf8(&name[..zero]).ok()?).ok()?;
    Some((store, name.slice(zero + 1..)))
}

fn frame(parked: WallMillis, record: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES + record.len());
    bytes.put_u8(HINT_FORMAT);
    bytes.put_u64_le(parked.0);
    bytes.put_slice(record);
    bytes.freeze()
}

fn unframe(record: &Bytes, target: NodeId) -> Result<(WallMillis, Bytes), Failure> {
    if record.len() < HEADER_BYTES || record[0] != HINT_FORMAT {
        return Err(broken(target));
    }
    let parked = u64::from_le_bytes(record[1..HEADER_BYTES].try_into().expect("eight bytes"));
    Ok((WallMillis(parked), record.slice(HEADER_BYTES..)))
}

fn broken(target: NodeId) -> Failure {
    Failure::new(ErrorCode::Corrupt, format!("cannot read a hint for {target}"))
}

#[cfg(test)]
mod tests {
    use model::Consistency;
    use runtime::clock::os::OsClock;
    use storage::MemoryEngine;

    use super::*;
    use crate::driven::home::{deleted, old};

    const TARGET: NodeId = NodeId(3);

    fn hints() -> Hints {
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
        Hints::new(Arc::new(MemoryEngine::new()), stamper, 5)
    }

    /// Puts bytes in place of a hint.
    fn put(hints: &Hints, target: NodeId, token: u64, key: &str, record: Bytes) {
        let change = &mut |_: Option<&Bytes>| Change::Put(record.clone());
        hints.engine.update(partition(target), Token(token), key.as_bytes(), change).unwrap();
    }

    #[test]
    fn a_scrub_reads_each_hint_of_a_target_once_in_steps_of_whole_tokens() {
        let hints = hints();
        let half = || Bytes::from(vec![7; SCRUB_BYTES as usize / 2 - 1]);
        for (token, key) in [(1, "a"), (2, "b"), (2, "c"), (3, "d"), (4, "e")] {
            put(&hints, TARGET, token, key, half());
        }
        put(&hints, NodeId(4), 2, "z", half());
        let (mut steps, mut from) = (Vec::new(), Some(Token(0)));
        while let Some(first) = from {
            let Scrubbed { next, records, bytes, corrupt, wrong_leaves } =
                hints.scrub_step(TARGET, first).unwrap();
            assert_eq!((bytes, corrupt, wrong_leaves), (records * SCRUB_BYTES / 2, 0, 0));
            steps.push((records, next.map(|next| next.0)));
            from = next;
        }
        assert_eq!(steps, [(3, Some(3)), (2, None)]);
    }

    #[test]
    fn a_hint_with_a_cut_head_or_another_format_cannot_be_read() {
        let whole = frame(WallMillis(77), b"record");
        assert_eq!(unframe(&whole, TARGET).unwrap(), (WallMillis(77), Bytes::from_static(b"record")));
        let head = whole.slice(..HEADER_BYTES);
        assert_eq!(unframe(&head, TARGET).unwrap(), (WallMillis(77), Bytes::new()));
        for length in 0..HEADER_BYTES {
            assert_eq!(unframe(&whole.slice(..length), TARGET).unwrap_err().code, ErrorCode::Corrupt);
        }
        let mut other = whole.to_vec();
        other[0] = HINT_FORMAT + 1;
        assert_eq!(unframe(&other.into(), TARGET).unwrap_err().code, ErrorCode::Corrupt);
    }

    #[test]
    fn a_hint_counts_as_unchanged_until_its_record_differs() {
        let hints = hints();
        let one = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        let carts = Store::new(StoreName::new("carts").unwrap(), one).unwrap();
        let content = old();
        hints.park(TARGET, &carts, b"key", &content).unwrap();
        let limit = ScanLimit { records_max: 10, bytes_max: 1 << 20 };
        let hint = hints.page(TARGET, None, limit).unwrap().0.remove(0);
        assert_eq!(hint.bytes(), (b"key".len() + HEADER_BYTES + encode(None, &content).len()) as u64);
        assert!(hints.holds(&hint));
        let other = Hint { record: Bytes::from_static(b"other"), ..hint.clone() };
        assert!(!hints.holds(&other) && !hints.holds(&Hint { target: NodeId(4), ..hint.clone() }));
        assert!(hints.remove(&hint).unwrap() && !hints.holds(&hint));
        assert_eq!((hints.bytes_max(), hints.refused(), hints.damaged()), (5, 0, 0));
    }

    #[test]
    fn a_hint_is_read_for_its_own_target_only() {
        let mut hints = hints();
        hints.bytes_max = HINT_BYTES_MAX;
        let one = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        let carts = Store::new(StoreName::new("carts").unwrap(), one).unwrap();
        let contents = [old(), deleted()];
        let targets = [TARGET, NodeId(4)];
        for (target, content) in targets.into_iter().zip(&contents) {
            hints.park(target, &carts, b"key", content).unwrap();
        }
        let read = |targets: &[NodeId]| hints.get(targets, &carts.name, carts.resolver, b"key").unwrap();
        assert_eq!(targets.map(|target| read(&[target])), contents);
        assert!(read(&[NodeId(5)]).is_empty() && read(&[]).is_empty());
    }
}
