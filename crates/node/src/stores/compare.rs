//! What comparing replicas, counting trees and scrubbing read of one store here.
//!
//! All of it goes past the refusal of gets for incomplete partitions: what is here may be taken, it only must not pass
//! for all there is.

use std::ops::{ControlFlow, RangeInclusive};

use bytes::Bytes;
use model::{PartitionId, Ring, Token, VersionSet};
use protocol::merkle::{Digest, Span};
use storage::{Met, StorageError};
use wire::messages::Failure;

use super::store::{LocalStore, Place, decode, refuse};
use super::trees::{Beginning, Trees, digest_of};

/// Records that are read under one hold of a tree's lock: a few milliseconds during which writes of one partition wait.
const RECORDS_AT_ONCE: u64 = 256;

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

/// What a step of scrubbing came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scrubbed {
    /// Where to go on; `None` at the end of the partition.
    pub(crate) next: Option<Token>,
    /// Records met.
    pub(crate) records: u64,
    /// Bytes of their keys and contents.
    pub(crate) bytes: u64,
    /// Of them, those that cannot be read.
    pub(crate) corrupt: u64,
    /// Leaves whose sum was not that of their records, and is now.
    pub(crate) wrong_leaves: usize,
}

/// A page of records in order of their tokens, and where the next one begins.
pub(crate) type Page = (Vec<(Bytes, VersionSet)>, Option<Token>);

/// What a walk met.
#[derive(Default)]
struct Walked {
    digests: Vec<(Token, Digest)>,
    bytes: u64,
    corrupt: u64,
}

impl LocalStore {
    /// The hash trees.
    pub(crate) fn trees(&self) -> &Trees {
        self.shared_trees()
    }

    /// Gives each partition of the ring its tree.
    pub(crate) fn shape(&self, ring: &Ring) {
        self.trees().shape(ring, || Beginning {
            remembered: self.take_remembered(),
            records: self.engine().partitions().into_iter().collect(),
        });
    }

    /// The keys of a span with their digests.
    pub(crate) fn keys(&self, partition: PartitionId, span: Span) -> Result<Vec<(Bytes, Digest)>, Failure> {
        let mut keys = Vec::new();
        let walked = self.engine().walk(partition, span.tokens(), &mut |_, met| {
            if let Met::Record { key, record } = met
                && let Some(digest) = digest_of(key, record)
            {
                keys.push((key.clone(), digest));
            }
            ControlFlow::Continue(())
        });
        walked.map_err(refuse)?;
        Ok(keys)
    }

    /// The key's state here, whether or not the partition is complete; an empty set when it was never written.
    pub(crate) fn content(&self, place: Place, key: &[u8]) -> Result<VersionSet, Failure> {
        match self.engine().get(place.partition, place.token, key).map_err(refuse)? {
            None => Ok(VersionSet::default()),
            Some(record) => Ok(decode(&record, place.partition)?.1),
        }
    }

    /// Records from this token on, up to about `bytes_max` bytes; whole tokens, at least one.
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
            if let Met::Record { key, record } = met
                && let Ok((_, set)) = decode(record, partition)
            {
                bytes += key.len() + record.len();
                records.push((key.clone(), set));
            }
            ControlFlow::Continue(())
        });
        walked.map_err(refuse)?;
        Ok((records, next))
    }

    /// Counts a piece of a partition's tree, if it wants to be counted.
    pub(crate) fn count_step(&self, partition: PartitionId, records: u64) -> Result<Counted, StorageError> {
        let Some(mut locked) = self.trees().lock(partition) else {
            return Ok(Counted { done: true, ..Counted::default() });
        };
        let tree = locked.tree();
        let Some(tokens) = tree.next_to_count(records, RECORDS_AT_ONCE) else {
            return Ok(Counted { done: true, ..Counted::default() });
        };
        let walked = self.walk_digests(partition, &tokens)?;
        let (records, corrupt) = (walked.digests.len() as u64 + walked.corrupt, walked.corrupt);
        let done = tree.counted_up_to(*tokens.end(), walked.digests);
        Ok(Counted { done, records, corrupt })
    }

    /// Reads all records of a piece of a partition, and compares them with its leaves. A doubtful tree is left alone:
    /// it is about to be counted.
    pub(crate) fn scrub_step(&self, partition: PartitionId, from: Token) -> Result<Scrubbed, StorageError> {
        let Some(mut locked) = self.trees().lock(partition) else { return Ok(Scrubbed::default()) };
        let tree = locked.tree();
        let Some(tokens) = tree.leaves_from(from, RECORDS_AT_ONCE) else { return Ok(Scrubbed::default()) };
        let walked = self.walk_digests(partition, &tokens)?;
        let wrong_leaves = tree.verify(&tokens, &walked.digests);
        let next = (*tokens.end() < *tree.tokens().end()).then(|| Token(tokens.end().0 + 1));
        Ok(Scrubbed {
            next,
            records: walked.digests.len() as u64 + walked.corrupt,
            bytes: walked.bytes,
            corrupt: walked.corrupt,
            wrong_leaves,
        })
    }

    fn walk_digests(
        &self,
        partition: PartitionId,
        tokens: &RangeInclusive<Token>,
    ) -> Result<Walked, StorageError> {
        let mut walked = Walked::default();
        self.engine().walk(partition, tokens.clone(), &mut |token, met| {
            let digest = match met {
                Met::Record { key, record } => {
                    walked.bytes += (key.len() + record.len()) as u64;
                    digest_of(key, record)
                }
                Met::Corrupt => None,
            };
            match digest {
                Some(digest) => walked.digests.push((token, digest)),
                None => walked.corrupt += 1,
            }
            ControlFlow::Continue(())
        })?;
        Ok(walked)
    }
}
