//! Who stamps at this node, and when: actors, births and hybrid logical time.
//!
//! **Architecture Invariant:** a birth is handed out once per incarnation, and a timestamp is greater than every
//! timestamp that this node has stamped or seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{Actor, Context, NodeId, Timestamp};
use runtime::Clock;
use wire::ErrorCode;
use wire::messages::Failure;

/// How far ahead of this node's wall clock a peer's timestamp may pull it: one hour. A timestamp further ahead comes
/// from a broken clock; it is stored as it is, but this node's own clock does not follow it.
const TIMESTAMP_AHEAD_MS_MAX: u64 = 60 * 60 * 1000;

/// Most actors that a client's context may name: far more than a key has writers, few enough that merging them takes
/// no time.
const CONTEXT_ACTORS_MAX: usize = 4096;

/// Greatest count that a client's context may name: a million writes of one key each second for nine years.
const CONTEXT_COUNT_MAX: u64 = 1 << 48;

/// Whether a stamp is later than another. Where a broken clock has stamped the end of time nothing is, and dots decide.
fn outdoes(stamped: Timestamp, other: Timestamp) -> bool {
    stamped > other || stamped.0 == u64::MAX
}

/// Mints actors and timestamps for one incarnation of one node.
pub struct Stamper {
    node: NodeId,
    incarnation: u64,
    births: AtomicU64,
    latest: AtomicU64,
    /// Tombstones up to this may have been forgotten.
    floor: AtomicU64,
    clock: Arc<dyn Clock>,
}

impl Stamper {
    /// For this incarnation, whose births up to and including `births_used` were handed out by an earlier process.
    pub fn new(node: NodeId, incarnation: u64, births_used: u64, clock: Arc<dyn Clock>) -> Self {
        let (births, latest) = (AtomicU64::new(births_used), AtomicU64::new(0));
        Stamper { node, incarnation, births, latest, floor: AtomicU64::new(0), clock }
    }

    /// The node that stamps.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The incarnation that stamps.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Births handed out so far in this incarnation.
    pub fn births_used(&self) -> u64 {
        self.births.load(Ordering::Relaxed)
    }

    /// The wall clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The actor to stamp with: the record's own, if this incarnation minted it, or a new one.
    pub(crate) fn actor(&self, own: Option<Actor>) -> Actor {
        match own {
            Some(actor) if self.owns(actor) => actor,
            _ => {
                let before = self.births.fetch_add(1, Ordering::Relaxed);
                assert!(before < u64::MAX, "births are handed out once");
                Actor { node: self.node, incarnation: self.incarnation, birth: before + 1 }
            }
        }
    }

    /// Whether this incarnation minted the actor.
    pub(crate) fn owns(&self, actor: Actor) -> bool {
        actor.node == self.node && actor.incarnation == self.incarnation
    }

    /// A timestamp after everything stamped or seen here, and after `seen`. What is too far ahead is outdone once, for
    /// the key that has it, and not followed.
    pub(crate) fn timestamp(&self, seen: Timestamp) -> Timestamp {
        let wall = self.clock.wall();
        if self.is_too_far_ahead(seen) {
            let stamped = Timestamp(self.latest.load(Ordering::Relaxed).max(seen.0)).next(wall);
            assert!(outdoes(stamped, seen), "a stamp outdoes what it replaces: {stamped:?}, {seen:?}");
            return stamped;
        }
        let next = |latest: u64| Timestamp(latest.max(seen.0)).next(wall).0;
        let previous = self
            .latest
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |latest| Some(next(latest)))
            .expect("the update always has a value");
        let stamped = Timestamp(next(previous));
        assert!(
            outdoes(stamped, seen) && outdoes(stamped, Timestamp(previous)),
            "a stamp is later than all stamped or seen here: {stamped:?}, {seen:?}, {previous}"
        );
        stamped
    }

    /// The first timestamp after `seen`, whatever the clock says.
    pub(crate) fn timestamp_right_after(&self, seen: Timestamp) -> Timestamp {
        let stamped = seen.right_after();
        assert!(outdoes(stamped, seen), "a stamp outdoes what it replaces: {stamped:?}, {seen:?}");
        stamped
    }

    /// Refuses a context that no node handed out: one that claims to have seen the far future would drag this node's
    /// timestamps along, one with endless entries or counts would wear out the key.
    pub(crate) fn check_context(&self, context: Option<&Context>) -> Result<(), Failure> {
        let entries = context.map_or(&[][..], |context| context.vector.entries());
        if entries.len() > CONTEXT_ACTORS_MAX || entries.iter().any(|(_, count)| *count > CONTEXT_COUNT_MAX) {
            let detail = "the context is invalid, no node issued it: it names too many writers or writes";
            return Err(Failure::new(ErrorCode::Malformed, detail));
        }
        let latest = self.clock.wall().0.saturating_add(TIMESTAMP_AHEAD_MS_MAX);
        match context {
            Some(context) if context.timestamp.wall().0 > latest => Err(Failure::new(
                ErrorCode::Malformed,
                format!(
                    "the context is {} ms ahead of this node's clock: it is damaged, or the clocks differ by hours",
                    context.timestamp.wall().0 - self.clock.wall().0
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Stamps nothing up to this any more, however far ahead it is: a tombstone with it has been forgotten.
    pub(crate) fn rise_above(&self, floor: Timestamp) {
        self.latest.fetch_max(floor.0, Ordering::Relaxed);
        self.floor.fetch_max(floor.0, Ordering::Relaxed);
        let (latest, floor) = (self.latest.load(Ordering::Relaxed), self.floor.load(Ordering::Relaxed));
        debug_assert!(latest >= floor, "nothing is stamped below the floor: {latest}, {floor}");
    }

    /// Whether a deletion of what this context has seen may have been forgotten: it was stamped later, and no tombstone
    /// that was forgotten is above the floor.
    pub(crate) fn may_have_forgotten(&self, context: &Context) -> bool {
        !context.vector.is_empty() && context.timestamp.0 <= self.floor.load(Ordering::Relaxed)
    }

    /// Sees a timestamp that a peer stamped, so that later stamps here are greater.
    pub(crate) fn see(&self, timestamp: Timestamp) {
        if timestamp.0 <= self.latest.load(Ordering::Relaxed) {
            return;
        }
        if !self.is_too_far_ahead(timestamp) {
            self.latest.fetch_max(timestamp.0, Ordering::Relaxed);
        }
    }

    fn is_too_far_ahead(&self, timestamp: Timestamp) -> bool {
        timestamp.wall().0 > self.clock.wall().0.saturating_add(TIMESTAMP_AHEAD_MS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use model::{Vector, WallMillis};

    use super::*;
    use crate::stores::trials::Wall;

    const NOON: u64 = 1_000_000_000;
    const HOUR: u64 = 3_600_000;

    /// Of node 7 in its third incarnation, five births of which are used.
    fn stamper() -> Stamper {
        let wall = Wall::default();
        wall.set(NOON);
        Stamper::new(NodeId(7), 3, 5, Arc::new(wall))
    }

    /// A timestamp of this millisecond.
    fn at(millis: u64) -> Timestamp {
        Timestamp(0).next(WallMillis(millis))
    }

    #[test]
    fn a_birth_is_handed_out_only_once_even_across_processes() {
        let stamper = stamper();
        assert_eq!(stamper.births_used(), 5);
        let own = |birth| Actor { node: NodeId(7), incarnation: 3, birth };
        assert_eq!([stamper.actor(None), stamper.actor(None)], [own(6), own(7)]);
        assert_eq!(stamper.births_used(), 7);
        let next = Stamper::new(NodeId(7), 3, stamper.births_used(), stamper.clock().clone());
        assert_eq!(next.actor(None), own(8));
    }

    /// Another node's actor, or one of an earlier incarnation whose latest counts may be lost, would repeat a dot.
    #[test]
    fn a_node_stamps_only_under_actors_of_its_incarnation() {
        let stamper = stamper();
        let own = Actor { node: NodeId(7), incarnation: 3, birth: 2 };
        let others = [
            Actor { node: NodeId(8), ..own },
            Actor { incarnation: 2, ..own },
            Actor { node: NodeId(8), incarnation: 2, ..own },
        ];
        assert_eq!(stamper.actor(Some(own)), own);
        for (other, birth) in others.into_iter().zip(6..) {
            assert_eq!(stamper.actor(Some(other)), Actor { birth, ..own }, "in place of {other:?}");
        }
    }

    #[test]
    fn a_node_follows_a_timestamp_up_to_an_hour_ahead_and_no_further() {
        let (first, too_far) = (at(NOON), at(NOON + HOUR + 1));
        let stamper = self::stamper();
        stamper.see(at(NOON + HOUR));
        assert!(stamper.timestamp(Timestamp(0)) > at(NOON + HOUR), "what was seen is followed");
        let stamper = self::stamper();
        stamper.see(too_far);
        assert_eq!(stamper.timestamp(Timestamp(0)), first, "what comes from a broken clock is not");
        let outdoing = stamper.timestamp(too_far);
        assert!(outdoing > too_far, "the key that has it goes on behind it");
        assert!(stamper.timestamp(Timestamp(0)) < too_far, "and no other");
    }

    /// Nothing is later than the end of time: a key with it can still be written, and dots decide.
    #[test]
    fn a_key_stamped_with_the_end_of_time_is_stamped_with_it_again() {
        let (stamper, end) = (stamper(), Timestamp(u64::MAX));
        assert_eq!(stamper.timestamp(end), end);
        assert_eq!(stamper.timestamp_right_after(end), end);
        assert!(stamper.timestamp(Timestamp(0)) < at(NOON + 1), "no other key is");
    }

    #[test]
    fn a_touch_is_stamped_right_after_the_version_it_saw_however_old() {
        let (stamper, seen) = (stamper(), at(5));
        assert_eq!(stamper.timestamp_right_after(seen), Timestamp(seen.0 + 1));
    }

    #[test]
    fn a_context_is_refused_beyond_each_of_its_limits_and_not_at_them() {
        let stamper = stamper();
        let refused = |timestamp, actors: u64, count| {
            let actor = |birth| Actor { node: NodeId(1), incarnation: 1, birth };
            let vector = Vector::from_entries((0..actors).map(|birth| (actor(birth), count)));
            stamper.check_context(Some(&Context { vector, timestamp })).err().map(|failure| failure.detail)
        };
        assert_eq!(refused(at(NOON + HOUR), 4096, 1 << 48), None, "at all limits at once");
        let endless = "the context is invalid, no node issued it: it names too many writers or writes";
        assert_eq!(refused(at(NOON), 4097, 1).as_deref(), Some(endless));
        assert_eq!(refused(at(NOON), 1, (1 << 48) + 1).as_deref(), Some(endless));
        let ahead = "the context is 3600001 ms ahead of this node's clock: it is damaged, or the clocks differ by hours";
        assert_eq!(refused(at(NOON + HOUR + 1), 1, 1).as_deref(), Some(ahead));
        assert_eq!(stamper.check_context(None), Ok(()));
    }
}
