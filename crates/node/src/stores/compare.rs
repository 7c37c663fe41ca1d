//! What comparing replicas, counting trees and scrubbing read of one store here.
//!
//! All of it goes past the refusal of gets for incomplete partitions: what is here may be taken, it only must not pass
//! for all there is.

use std::ops::{ControlFlow, RangeInclusive};

use bytes::Bytes;
use model::{PartitionId, Ring, Token, VersionSet};
use protocol::antientropy::merkle::{Digest, Span, Tree};
use storage::{Met, StorageError};
use wire::messages::Failure;

use super::{KeyPlace, LocalStore, decode, refuse};
use crate::trees::{Beginning, Locked, Scrubbed, Watching, digest_of};

/// Records that one step reads, about. Writers go on meanwhile.
const RECORDS_AT_ONCE: u64 = 256;
/// Bytes that one step reads, unless one leaf has more: other tasks of the background thread wait for it.
const BYTES_AT_ONCE: u64 = 1 << 20;
/// How often records are read again, each time half as many, because one of the first leaf was written meanwhile. After
/// that the writers of the partition wait while its one leaf is read.
const ATTEMPTS_MAX: u32 = 10;

/// What a step of counting came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Nothing is left to count in the partition.
    pub(crate) done: bool,
    /// Records met.
    pub(crate) records: u64,
    /// Of them, those that cannot be read.
    pub(crate) corrupt: u64,
}

/// A page of records in order of their tokens, and where the next one begins.
pub(crate) type Page = (Vec<(Bytes, VersionSet)>, Option<Token>);

/// What a walk met.
#[derive(Default)]
struct Walked {
    digests: Vec<(Token, Digest)>,
    bytes: u64,
    corrupt: Vec<Token>,
}

impl Walked {
    fn meet(&mut self, token: Token, met: Met<'_>) {
        let digest = match met {
            Met::Record { key, record } => {
                self.bytes += (key.len() + record.len()) as u64;
                digest_of(key, record)
            }
            Met::Corrupt => None,
        };
        match digest {
            Some(digest) => self.digests.push((token, digest)),
            None => self.corrupt.push(token),
        }
    }

    /// Forgets what was met after this token.
    fn truncate(&mut self, last: Token) {
        self.digests.retain(|(token, _)| *token <= last);
        self.corrupt.retain(|token| *token <= last);
    }

    fn records(&self) -> u64 {
        (self.digests.len() + self.corrupt.len()) as u64
    }
}

/// Whole leaves that were read and have not changed since: their tree, their tokens, and what was met.
type Steady<'a> = (Locked<'a>, RangeInclusive<Token>, Walked);

/// The tokens to read for about this many records, and the bits of their leaves.
type Choose<'c> = &'c dyn Fn(&mut Tree, u64) -> Option<(RangeInclusive<Token>, u8)>;

impl LocalStore {
    /// The sum over a partition's records in the hash tree; `None` while the tree is doubtful, and where none is kept.
    pub fn tree_sum(&self, partition: PartitionId) -> Option<Digest> {
        self.trees().look(partition, |tree| tree.sum()).flatten()
    }

    /// Gives each partition of the ring its tree, if the store has replicas that compare.
    pub(crate) fn shape(&self, ring: &Ring) {
        if self.definition().replicas_max() <= 1 {
            // What is remembered will not be right any more when somebody asks.
            self.take_remembered();
            return self.trees().give_up();
        }
        self.trees().shape(ring, || Beginning {
            remembered: self.take_remembered(),
            records: self
                .engine()
                .partitions()
                .into_iter()
                .map(|held| (held.partition, held.records))
                .collect(),
        });
    }

    /// Removes all records of a partition.
    pub(crate) fn drop_partition(&self, partition: PartitionId) -> Result<(), StorageError> {
        let mut writing = self.trees().writing(partition);
        let dropped = self.engine().drop_partition(partition);
        match &dropped {
            Ok(()) => writing.emptied(),
            Err(_) => writing.doubt(),
        }
        dropped
    }

    /// The keys of a span with their digests. What cannot be read is left out and noted ([`LocalStore::unreadable`]).
    pub(crate) fn keys(&self, partition: PartitionId, span: Span) -> Result<Vec<(Bytes, Digest)>, Failure> {
        let mut keys = Vec::new();
        let walked = self.engine().walk(partition, span.tokens(), &mut |token, met| {
            match met {
                Met::Record { key, record } if let Some(digest) = digest_of(key, record) => {
                    keys.push((key.clone(), digest));
                }
                _ => self.trees().unreadable().note(partition, token),
            }
            ControlFlow::Continue(())
        });
        walked.map_err(refuse)?;
        Ok(keys)
    }

    /// The key's state here, whether or not the partition is complete; an empty set when it was never written.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn content(&self, place: KeyPlace, key: &[u8]) -> Result<VersionSet, Failure> {
        match self.engine().get(place.partition, place.token, key).map_err(refuse)? {
            None => Ok(VersionSet::default()),
            Some(record) => Ok(decode(&record, place.partition)?.1),
        }
    }

    /// Records from this token on, up to about `bytes_max` bytes; whole tokens, at least one. What cannot be read is left
    /// out and noted ([`LocalStore::unreadable`]).
    pub(crate) fn page(
        &self,
        partition: PartitionId,
        from: Token,
        bytes_max: usize,
    ) -> Result<Page, Failure> {
        let (mut records, mut bytes, mut last, mut next) = (Vec::new(), 0, None, None);
        let walked = self.engine().walk(partition, from..=Token(u64::MAX), &mut |token, met| {
            if bytes >= bytes_max && last.is_some_and(|last| last != token) {
                next = Some(token);
                return ControlFlow::Break(());
            }
            last = Some(token);
            match met {
                Met::Record { key, record } if let Ok((_, set)) = decode(record, partition) => {
                    bytes += key.len() + record.len();
                    records.push((key.clone(), set));
                }
                _ => self.trees().unreadable().note(partition, token),
            }
            ControlFlow::Continue(())
        });
        walked.map_err(refuse)?;
        Ok((records, next))
    }

    /// Counts a piece of a partition's tree, if it wants to be counted.
    pub(crate) fn count_step(&self, partition: PartitionId, records: u64) -> Result<Counted, StorageError> {
        let choose = |tree: &mut Tree, records_max| {
            let tokens = tree.next_to_count(records, records_max)?;
            tree.bits_counting().map(|bits| (tokens, bits))
        };
        let Some((mut locked, tokens, walked)) = self.read_steadily(partition, &choose)? else {
            return Ok(Counted { done: true, ..Counted::default() });
        };
        let (records, corrupt) = (walked.records(), walked.corrupt.len() as u64);
        walked.corrupt.iter().for_each(|token| self.trees().unreadable().note(partition, *token));
        let done = locked.tree().counted_up_to(*tokens.end(), walked.digests);
        Ok(Counted { done, records, corrupt })
    }

    /// Reads all records of a piece of a partition, and compares them with its leaves. A doubtful tree is left alone:
    /// it is about to be counted.
    pub(crate) fn scrub_step(&self, partition: PartitionId, from: Token) -> Result<Scrubbed, StorageError> {
        let choose = |tree: &mut Tree, records_max| {
            // The ring may have been given other partitions since.
            let tokens = tree.leaves_from(from.max(*tree.tokens().start()), records_max)?;
            tree.bits().map(|bits| (tokens, bits))
        };
        let Some((mut locked, tokens, walked)) = self.read_steadily(partition, &choose)? else {
            return match self.trees().is_alone() {
                true => self.scrub_alone(partition, from),
                false => Ok(Scrubbed::default()),
            };
        };
        let tree = locked.tree();
        let wrong_leaves = tree.verify(&tokens, &walked.digests);
        let next = (*tokens.end() < *tree.tokens().end()).then(|| Token(tokens.end().0 + 1));
        walked.corrupt.iter().for_each(|token| self.trees().unreadable().note(partition, *token));
        Ok(Scrubbed {
            next,
            records: walked.records(),
            bytes: walked.bytes,
            corrupt: walked.corrupt.len() as u64,
            wrong_leaves,
        })
    }

    /// Where a scrub of the partition begins; `None` when its records have no right to be there.
    pub(crate) fn scrub_from(&self, partition: PartitionId) -> Option<Token> {
        match self.trees().is_alone() {
            true => Some(Token(0)),
            false => self.trees().look(partition, |tree| *tree.tokens().start()),
        }
    }

    /// Reads all records of a piece of a partition that has no tree. No writer is kept away: nothing is compared.
    fn scrub_alone(&self, partition: PartitionId, from: Token) -> Result<Scrubbed, StorageError> {
        let (mut scrubbed, mut last) = (Scrubbed::default(), None);
        self.engine().walk(partition, from..=Token(u64::MAX), &mut |token, met| {
            let enough = scrubbed.records >= RECORDS_AT_ONCE || scrubbed.bytes >= BYTES_AT_ONCE;
            if enough && last != Some(token) {
                scrubbed.next = Some(token);
                return ControlFlow::Break(());
            }
            last = Some(token);
            scrubbed.records += 1;
            match met {
                Met::Record { key, record } => {
                    scrubbed.bytes += (key.len() + record.len()) as u64;
                    scrubbed.corrupt += u64::from(digest_of(key, record).is_none());
                }
                Met::Corrupt => scrubbed.corrupt += 1,
            }
            ControlFlow::Continue(())
        })?;
        Ok(scrubbed)
    }

    /// Reads the records that `choose` names without keeping writers away, and answers with those leaves of them, from
    /// the first on, to which nobody has written meanwhile. `None` when there is nothing to read.
    fn read_steadily(
        &self,
        partition: PartitionId,
        choose: Choose<'_>,
    ) -> Result<Option<Steady<'_>>, StorageError> {
        for attempt in 0..ATTEMPTS_MAX {
            let records_max = (RECORDS_AT_ONCE >> attempt).max(1);
            let chosen = self.trees().watch(partition, |tree| choose(tree, records_max));
            let Some(watching) = chosen else { return Ok(None) };
            let (first, walked) = (*watching.tokens.start(), self.walk_leaves(partition, &watching));
            let read = walked.as_ref().map_or(first, |(_, end)| *end);
            let ended = watching.end(read);
            let (mut walked, _) = walked?;
            if let Some((locked, last)) = ended {
                walked.truncate(last);
                return Ok(Some((locked, first..=last, walked)));
            }
        }
        let Some(mut locked) = self.trees().lock(partition) else { return Ok(None) };
        let Some((tokens, _)) = choose(locked.tree(), 1) else { return Ok(None) };
        let mut walked = Walked::default();
        self.engine().walk(partition, tokens.clone(), &mut |token, met| {
            walked.meet(token, met);
            ControlFlow::Continue(())
        })?;
        Ok(Some((locked, tokens, walked)))
    }

    /// Reads the leaves that are watched, as many as are allowed at once, and says how far.
    fn walk_leaves(
        &self,
        partition: PartitionId,
        watching: &Watching<'_>,
    ) -> Result<(Walked, Token), StorageError> {
        let (mut walked, mut end) = (Walked::default(), *watching.tokens.end());
        let mut leaf_end = end;
        self.engine().walk(partition, watching.tokens.clone(), &mut |token, met| {
            if walked.bytes >= BYTES_AT_ONCE && token > leaf_end {
                end = leaf_end;
                return ControlFlow::Break(());
            }
            leaf_end = *Span::of(token, watching.bits).tokens().end();
            walked.meet(token, met);
            ControlFlow::Continue(())
        })?;
        Ok((walked, end))
    }
}

#[cfg(test)]
mod trials;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use model::{Consistency, NodeId, Store, StoreName, Zone};
    use protocol::antientropy::merkle::Tree;
    use runtime::clock::os::OsClock;
    use storage::{Change, MemoryEngine, StorageEngine};

    use super::*;
    use crate::stores::Stamper;

    const PARTITION: PartitionId = PartitionId(0);

    fn definition(replicas: u8) -> Store {
        let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
        Store::new(StoreName::new("s").unwrap(), consistency).unwrap()
    }

    fn ring() -> Ring {
        Ring::equal_slices(1, &[(NodeId(1), Zone("z".to_owned()))])
    }

    fn overwrite(store: &LocalStore, number: u32) {
        let key = number.to_be_bytes();
        store.overwrite(KeyPlace { partition: PARTITION, token: Token::of(&key) }, &key, b"value").unwrap();
    }

    fn sum(store: &LocalStore) -> Option<(Digest, u64)> {
        store.trees().look(PARTITION, |tree| tree.sum().zip(tree.records())).flatten()
    }

    fn count(store: &LocalStore) {
        while !store.count_step(PARTITION, 0).unwrap().done {}
    }

    #[test]
    fn a_store_with_one_replica_keeps_no_tree_and_counts_one_when_it_gets_a_second() {
        let engine = Arc::new(MemoryEngine::new());
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
        // A tree that would pass for right by its number of records, were it remembered for that long.
        let remembered = [(PARTITION, Tree::empty(&(Token(0)..=Token(u64::MAX))))].into();
        let one = LocalStore::new(definition(1), engine, stamper).remembering(remembered);
        one.shape(&ring());
        assert!(one.trees().is_alone() && one.trees().uncounted().is_empty());
        overwrite(&one, 1);
        assert_eq!((one.trees().summary(), sum(&one)), ((0, 0, 0), None));

        let two = one.redefined(definition(2));
        two.shape(&ring());
        assert_eq!((two.trees().uncounted(), sum(&two)), (vec![PARTITION], None), "nobody knows yet");
        overwrite(&two, 2);
        // Whoever still has the view of before writes through the same trees.
        overwrite(&one, 3);
        count(&two);
        let Some((_, 3)) = sum(&two) else { panic!("{:?}", sum(&two)) };
        overwrite(&two, 3);
        let noted = sum(&two);
        two.trees().lock(PARTITION).unwrap().tree().doubt();
        count(&two);
        assert_eq!(sum(&two), noted, "it was kept right from then on");

        let one = two.redefined(definition(1));
        one.shape(&ring());
        assert_eq!(one.trees().summary(), (0, 0, 0));
    }

    #[test]
    fn a_partition_emptied_of_its_tree_is_doubtful_even_when_it_looks_empty() {
        let engine = Arc::new(MemoryEngine::new());
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
        let one = LocalStore::new(definition(1), engine, stamper);
        one.shape(&ring());
        let two = one.redefined(definition(2));
        two.shape(&ring());
        assert_eq!(sum(&two), None, "a write may have come after the engine was asked");
        count(&two);
        assert_eq!(sum(&two), Some((Digest::default(), 0)));
    }

    #[test]
    fn a_scrub_without_trees_reads_every_record_once_and_finds_the_damaged() {
        let engine = Arc::new(MemoryEngine::new());
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
        let store = LocalStore::new(definition(1), engine.clone(), stamper);
        store.shape(&ring());
        let records = 3 * RECORDS_AT_ONCE as u32 + 1;
        (0..records).for_each(|number| overwrite(&store, number));
        engine
            .update(PARTITION, Token(7), b"bad", &mut |_| Change::Put(Bytes::from_static(b"\xff")))
            .unwrap();
        let (mut from, mut met, mut corrupt) = (store.scrub_from(PARTITION), 0, 0);
        while let Some(token) = from {
            let step = store.scrub_step(PARTITION, token).unwrap();
            assert!(step.records <= RECORDS_AT_ONCE, "no two keys here share a token");
            (from, met, corrupt) = (step.next, met + step.records, corrupt + step.corrupt);
        }
        assert_eq!((met, corrupt), (u64::from(records) + 1, 1));
    }
}
