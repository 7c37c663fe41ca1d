//! One store at this node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Actor, Dot, PartitionId, Store, Timestamp, Token, Vector, VersionSet};
use protocol::antientropy::merkle::Tree;
use runtime::Clock;
use runtime::locks::Mutex;
use storage::{Change, Commit, Durable, StorageEngine, StorageError};
use wire::error::ErrorCode;
use wire::messages::{Condition, Failure, Merged, StoreRef};
use wire::versions::Single;

use super::demand::Demand;
use super::expiring::{EXPIRY_MARGIN, Expiring};
use super::gets::GetNumbers;
use super::record::{corrupt, decode, encode, refuse};
use super::stamper::Stamper;
use super::tombstones::Tombstones;
use super::write_order::{Stamped, WriteOrder, check_condition, check_key, check_size, stamp};
use crate::trees::{self, Trees};

/// One store's definition and its records at this node.
pub struct LocalStore {
    definition: Arc<Store>,
    reference: StoreRef,
    engine: Arc<dyn StorageEngine>,
    pub(super) stamper: Arc<Stamper>,
    pub(super) tombstones: Arc<Tombstones>,
    pub(super) expiring: Arc<Expiring>,
    gets: Arc<GetNumbers>,
    demand: Arc<Demand>,
    trees: Arc<Trees>,
    /// Trees of a clean stop, until the ring says which partitions there are.
    remembered: Arc<Mutex<BTreeMap<PartitionId, Tree>>>,
}

/// What is known of a key that is about to be written.
#[derive(Default)]
struct KnownKey {
    own: Option<Actor>,
    set: VersionSet,
    timestamp: Timestamp,
}

/// Where a key lies, as the caller routed it.
#[derive(Clone, Copy, Debug)]
pub struct KeyPlace {
    /// Its partition.
    pub partition: PartitionId,
    /// Its token.
    pub token: Token,
}

impl LocalStore {
    /// Puts a store in front of an engine.
    pub fn new(definition: Store, engine: Arc<dyn StorageEngine>, stamper: Arc<Stamper>) -> Self {
        let reference = StoreRef::from(&definition.name);
        let (gets, demand) = (Arc::default(), Arc::default());
        let (trees, remembered) = (Arc::default(), Arc::default());
        let (tombstones, expiring) = (Arc::default(), Arc::new(Expiring::new(EXPIRY_MARGIN)));
        LocalStore {
            definition: Arc::new(definition),
            reference,
            engine,
            stamper,
            tombstones,
            expiring,
            gets,
            demand,
            trees,
            remembered,
        }
    }

    /// With trees that were remembered at a clean stop; call it before the store has seen a ring.
    pub(crate) fn remembering(self, trees: BTreeMap<PartitionId, Tree>) -> Self {
        *self.remembered.lock() = trees;
        self
    }

    /// Keeping values for this long after they have expired, instead of [`EXPIRY_MARGIN`]; call it before the store has
    /// seen a record.
    pub fn keeping_expired(self, margin: Duration) -> Self {
        LocalStore { expiring: Arc::new(Expiring::new(margin)), ..self }
    }

    /// The same records under another definition of the store.
    pub fn redefined(&self, definition: Store) -> Self {
        LocalStore {
            definition: Arc::new(definition),
            reference: self.reference.clone(),
            engine: self.engine.clone(),
            stamper: self.stamper.clone(),
            tombstones: self.tombstones.clone(),
            expiring: self.expiring.clone(),
            gets: self.gets.clone(),
            demand: self.demand.clone(),
            trees: self.trees.clone(),
            remembered: self.remembered.clone(),
        }
    }

    /// How gets ended that were driven here.
    pub(crate) fn gets(&self) -> &GetNumbers {
        &self.gets
    }

    /// What clients asked of it.
    pub(crate) fn demand(&self) -> &Demand {
        &self.demand
    }

    /// The hash trees.
    pub fn trees(&self) -> &Trees {
        &self.trees
    }

    pub(crate) fn take_remembered(&self) -> BTreeMap<PartitionId, Tree> {
        std::mem::take(&mut *self.remembered.lock())
    }

    /// Refuses while the partition's records are lost here: what is there must not pass for all there is.
    pub(crate) fn check_complete(&self, partition: PartitionId) -> Result<(), Failure> {
        match self.trees.is_incomplete(partition) {
            false => Ok(()),
            true => Err(Failure::new(
                ErrorCode::Refilling,
                format!(
                    "this node has lost bucket {} of store {} and is refilling it",
                    partition.0, self.definition.name
                ),
            )),
        }
    }

    /// Updates a record and notes it for its hash tree. **Every change of a record goes through here.**
    pub(crate) fn update<'a>(
        &self,
        place: KeyPlace,
        key: &[u8],
        change: &mut dyn FnMut(Option<&Bytes>) -> Change<'a>,
    ) -> Result<Option<Commit>, StorageError> {
        let mut writing = self.trees.writing(place.partition);
        if !writing.is_noted() {
            return self.engine.update(place.partition, place.token, key, change);
        }
        let mut difference = Some(Default::default());
        let updated = self.engine.update(place.partition, place.token, key, &mut |record| {
            let change = change(record);
            difference = match &change {
                Change::Keep => Some(Default::default()),
                Change::Put(new) => trees::difference(key, record, Some(new)),
                Change::PutJoined(head, tail) => {
                    trees::difference(key, record, Some(&[&**head, tail].concat().into()))
                }
                Change::Remove => trees::difference(key, record, None),
            };
            change
        });
        match (&updated, difference) {
            (Ok(None), _) => {}
            (Ok(Some(_)), Some(difference)) => writing.note(place.token, difference),
            // Refused before anything was done.
            (Err(StorageError::Full), _) => {}
            // A record that nobody can read was replaced, or nobody knows what the engine has done.
            (Ok(Some(_)), None) | (Err(_), None) => writing.doubt(),
            (Err(_), Some(difference)) if difference != Default::default() => writing.doubt(),
            (Err(_), Some(_)) => {}
        }
        updated
    }

    /// As the cluster defines it.
    pub fn definition(&self) -> &Store {
        &self.definition
    }

    /// Where a key falls on the ring.
    pub fn token(&self, key: &[u8]) -> Token {
        self.definition.token(key)
    }

    /// The definition, shared.
    pub fn shared_definition(&self) -> &Arc<Store> {
        &self.definition
    }

    /// Its name, as messages carry it.
    pub fn reference(&self) -> &StoreRef {
        &self.reference
    }

    /// Its engine, for statistics and closing.
    pub fn engine(&self) -> &Arc<dyn StorageEngine> {
        &self.engine
    }

    /// The key's state here; an empty set when it was never written.
    ///
    /// # Errors
    /// `Refilling` while the partition's records are lost here, or what the engine refuses.
    pub fn get(&self, place: KeyPlace, key: &[u8]) -> Result<VersionSet, Failure> {
        self.check_complete(place.partition)?;
        let found = self.engine.get(place.partition, place.token, key).map_err(refuse);
        let decoded = found.and_then(|record| match record {
            None => Ok(VersionSet::default()),
            Some(record) => Ok(decode(&record, place.partition)?.1),
        });
        decoded.map_err(|failure| self.met(place, failure))
    }

    /// What a request met here; a corrupt record is remembered.
    fn met(&self, place: KeyPlace, failure: Failure) -> Failure {
        if failure.code == ErrorCode::Corrupt {
            self.note_corrupt(place.partition, place.token);
        }
        failure
    }

    /// A request met a record that cannot be read: somebody shall see to it.
    pub fn note_corrupt(&self, partition: PartitionId, token: Token) {
        self.trees.note_corrupt(partition, token);
    }

    /// Shows the value that last-write-wins shows here, if there is one, to `visit`, without building the set or
    /// sharing the value: the fast path of plain gets. `visit` must be quick.
    pub fn winner(&self, place: KeyPlace, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        self.check_complete(place.partition)?;
        let now = self.stamper.clock().wall();
        let mut shown = Ok(false);
        self.engine
            .read(place.partition, place.token, key, &mut |record| {
                shown = wire::versions::peek_winner_at(record, now).map(|range| {
                    let live = range.is_some();
                    range.into_iter().for_each(|range| visit(&record[range]));
                    live
                });
            })
            .map_err(|error| self.met(place, refuse(error)))?;
        shown.map_err(|_| self.met(place, corrupt(place.partition)))
    }

    /// Stamps a write and stores it.
    ///
    /// # Errors
    /// `KeyUnfit`, `ValueTooLarge`, `TooManySiblings`, `ConditionFailed`, `Obsolete` (the writer's context is behind and the
    /// store keeps no siblings), or what the engine refuses. Nothing is stored then.
    pub fn stamp(&self, place: KeyPlace, key: &[u8], order: WriteOrder) -> Result<Stamped, Failure> {
        // Another replica knows what the write replaces and whether its condition holds.
        self.check_complete(place.partition)?;
        check_key(&self.definition, key)?;
        check_size(&self.definition, &order.value)?;
        self.stamper.check_context(order.context.as_ref())?;
        let own_context = order.context.clone();
        let mut order = Some(order);
        let mut answer = Err(Failure::new(ErrorCode::Internal, "the engine did not call back"));
        let commit = self
            .update(place, key, &mut |record| {
                let order = order.take().expect("an engine calls back at most once");
                match self.stamp_record(place, record, order) {
                    Ok((own, set, dot)) => {
                        self.note(place, key, record, &set);
                        let bytes = encode(Some(own), &set);
                        answer = Ok((set, dot));
                        Change::Put(bytes)
                    }
                    Err(failure) => {
                        answer = Err(failure);
                        Change::Keep
                    }
                }
            })
            .map_err(|error| self.met(place, refuse(error)))?;
        let (set, dot) = answer.map_err(|failure| self.met(place, self.unless_full(failure)))?;
        Ok(Stamped::new(set, dot, own_context, commit))
    }

    /// What to answer instead of a judgement by what is held here, while the store refuses puts for want of room: it may
    /// lack just what it has refused, and cannot be brought it. Another replica judges.
    fn unless_full(&self, failure: Failure) -> Failure {
        let judged = matches!(failure.code, ErrorCode::Obsolete | ErrorCode::ConditionFailed);
        match judged && self.engine.room().is_ok_and(|room| room.wanted > 0) {
            true => refuse(StorageError::Full),
            false => failure,
        }
    }

    /// As [`Self::stamp`], having read the key first: nobody waits for the disk while keeping others from a record.
    pub(crate) fn stamp_after_reading(
        &self,
        place: KeyPlace,
        key: &[u8],
        order: WriteOrder,
    ) -> Result<Stamped, Failure> {
        // Stamping finds again, and says, what is wrong with it.
        let _ = self.get(place, key);
        self.stamp(place, key, order)
    }

    /// Merges what another replica (or a coordinator for it) holds.
    pub fn merge(
        &self,
        place: KeyPlace,
        key: &[u8],
        incoming: &VersionSet,
    ) -> Result<(Merged, Option<Commit>), Failure> {
        check_key(&self.definition, key)?;
        for version in incoming.versions() {
            check_size(&self.definition, &version.value)?;
        }
        self.stamper.see(incoming.timestamp_max());
        let incoming = &*self.without_expired(incoming);
        match self.merge_once(place, key, incoming) {
            Err(failure) if failure.code == ErrorCode::Corrupt && !incoming.is_empty() => {
                // The damaged copy is lost in any case; another replica's takes its place. It comes without a
                // stamping actor, so that no dot can be repeated.
                self.discard_corrupt(place, key).map_err(refuse)?;
                let (store, partition) = (&self.definition.name, place.partition);
                tracing::warn!(%store, %partition, "corrupt record replaced");
                let merged = self.merge_once(place, key, incoming)?;
                self.trees.note_repaired();
                Ok(merged)
            }
            answer => answer,
        }
    }

    /// Forgets a record that cannot be read. What it added to the sums is not known any more.
    fn discard_corrupt(&self, place: KeyPlace, key: &[u8]) -> Result<bool, StorageError> {
        let Some(engine) = self.engine.repairable() else { return Ok(false) };
        let mut writing = self.trees.writing(place.partition);
        let discarded = engine.discard_corrupt(place.partition, place.token, key)?;
        if discarded {
            writing.doubt();
            self.trees.forget_damaged(place.partition, place.token);
        }
        Ok(discarded)
    }

    fn merge_once(
        &self,
        place: KeyPlace,
        key: &[u8],
        incoming: &VersionSet,
    ) -> Result<(Merged, Option<Commit>), Failure> {
        let mut answer = Ok(Merged::Known);
        let commit = self
            .update(place, key, &mut |record| match self.merge_record(place, key, record, incoming) {
                Ok((merged, change)) => {
                    answer = Ok(merged);
                    change
                }
                Err(failure) => {
                    answer = Err(failure);
                    Change::Keep
                }
            })
            .map_err(refuse)?;
        Ok((answer?, commit))
    }

    /// Whether a write here may be acknowledged as soon as it is stored.
    pub fn acknowledges_at_once(&self) -> bool {
        self.engine.acknowledges_at_once()
    }

    /// Sees a timestamp that another replica stamped, so that what is stamped here from now on is later: a client that
    /// was answered with it may overwrite it through this node.
    pub fn see(&self, timestamp: Timestamp) {
        self.stamper.see(timestamp);
    }

    /// Waits until a write is as durable as the store's engine promises.
    pub fn durable(&self, commit: Commit) -> Durable {
        self.engine.durable(commit)
    }

    /// Remembers a key of which something is about to be forgotten later: it is nothing but tombstones, or expires.
    pub(crate) fn note(&self, place: KeyPlace, key: &[u8], replaced: Option<&Bytes>, set: &VersionSet) {
        if set.is_deleted() {
            self.tombstones.add(place.token, key);
        } else if let Some(expires) = set.expires_min() {
            self.note_expiry(place, key, replaced, expires);
        }
    }

    /// The clock that says what has expired.
    pub(crate) fn clock(&self) -> &dyn Clock {
        &**self.stamper.clock()
    }

    pub(crate) fn stamp_record(
        &self,
        place: KeyPlace,
        record: Option<&Bytes>,
        order: WriteOrder,
    ) -> Result<(Actor, VersionSet, Dot), Failure> {
        let KnownKey { own, mut set, timestamp: known } = self.known(place, record, &order)?;
        check_condition(&self.definition, &set, &order, self.stamper.clock().wall())?;
        self.check_forgotten(record, &order)?;
        let (actor, dot) = stamp(&self.stamper, &self.definition, own, &mut set, known, order)?;
        Ok((actor, set, dot))
    }

    /// Refuses a write that must be current, where nothing is left of what its context has seen because that may have
    /// been deleted and forgotten. A replica that has merely missed the writes of a key refuses the same, until it has
    /// them.
    fn check_forgotten(&self, record: Option<&Bytes>, order: &WriteOrder) -> Result<(), Failure> {
        let must_be_current = matches!(order.condition, Condition::IfCurrent | Condition::Touch);
        let forgotten = |context| self.stamper.may_have_forgotten(context);
        if record.is_some() || !must_be_current || !order.context.as_ref().is_some_and(forgotten) {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::Obsolete,
            "the versions that the context covers no longer exist: get the key again, and put with the new context",
        ))
    }

    /// What is known here of a key that is about to be written. Of a value that will be replaced unseen only the
    /// facts are read.
    fn known(
        &self,
        place: KeyPlace,
        record: Option<&Bytes>,
        order: &WriteOrder,
    ) -> Result<KnownKey, Failure> {
        let Some(record) = record else { return Ok(KnownKey::default()) };
        if order.context.is_none() && order.condition == Condition::None {
            let single = wire::versions::peek_single(record).map_err(|_| corrupt(place.partition))?;
            if let Some(Single { own, dot, timestamp }) = single {
                let vector = Vector::from_entries([(dot.actor, dot.count)]);
                let set =
                    VersionSet::from_parts(vector, Default::default()).expect("no version, none uncovered");
                return Ok(KnownKey { own, set, timestamp });
            }
        }
        let (own, set) = decode(record, place.partition)?;
        Ok(KnownKey { own, timestamp: set.timestamp_max(), set })
    }

    fn merge_record(
        &self,
        place: KeyPlace,
        key: &[u8],
        record: Option<&Bytes>,
        incoming: &VersionSet,
    ) -> Result<(Merged, Change<'static>), Failure> {
        let Some(record) = record else {
            self.note(place, key, None, incoming);
            return Ok(match incoming.is_empty() {
                true => (Merged::Known, Change::Keep),
                false => (Merged::Changed, Change::Put(encode(None, incoming))),
            });
        };
        if let Ok(Some(Single { own, dot, .. })) = wire::versions::peek_single(record)
            && incoming.vector().covers(dot)
            && !incoming.holds(dot)
        {
            // Everything known here is behind the incoming set.
            self.note(place, key, Some(record), incoming);
            return Ok((Merged::Changed, Change::Put(encode(own, incoming))));
        }
        let (own, mut set) = decode(record, place.partition)?;
        if set.includes(incoming) {
            let superseded = incoming.versions().iter().any(|version| !set.holds(version.dot));
            let merged = if superseded { Merged::Superseded } else { Merged::Known };
            return Ok((merged, Change::Keep));
        }
        set.merge(incoming);
        debug_assert!(set.includes(incoming), "a merge takes in all that is new");
        set.resolve(self.definition.resolver);
        self.note(place, key, Some(record), &set);
        let kept = incoming.versions().iter().all(|version| set.holds(version.dot));
        let merged = if kept { Merged::Changed } else { Merged::Superseded };
        Ok((merged, Change::Put(encode(own, &set))))
    }
}
