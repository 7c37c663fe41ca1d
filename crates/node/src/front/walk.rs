//! Walks over a whole store, for thin clients: any node hands out the next stretch of keys behind a position.
//!
//! The position is a token. Nothing of a walk stays here between two stretches, so it may go on at another node, after
//! a restart, and under another ring.
//!
//! ```text
//!   token space   0 ──────┬───────────┬──────────┬── 2⁶⁴
//!   partitions      P0    │    P1     │    P2    │
//!   stretches     ├──────────────┤├────────────┤├──┤     each ends in front of a group of tokens
//! ```
//!
//! A stretch ends in front of a *group*, the tokens that differ in their last bits only: so no key of a token can be
//! left behind, and a position needs 53 bits, which is what every client can carry, JavaScript's numbers included.

use std::sync::Arc;

use bytes::Bytes;
use client::coordinator::Scope;
use futures_util::future::join_all;
use model::{Cluster, NodeId, Partition, PreferenceList, Token};
use protocol::quorum::{PageAsk, TooFew, Walk, WalkPosition};
use wire::error::ErrorCode;
use wire::messages::{Failure, RequestOptions, Response, Scanned};

use super::{ADOPT_PATIENCE, Front};
use crate::view::View;

/// Bits of a token in which the tokens of a group differ.
const GROUP_BITS: u32 = 11;
/// The greatest position that there can be.
const POSITION_MAX: u64 = u64::MAX >> GROUP_BITS;
/// Bytes of one page of one replica.
const PAGE_BYTES_MAX: u32 = 256 * 1024;
/// Partitions that are read at the same time at most, when they hold little.
const AHEAD_MAX: usize = 32;

/// Starts of one stretch under ever newer cluster documents before it gives up.
const REFRESHES_MAX: usize = 8;

/// Where a walk goes on: in front of this group of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

impl Position {
    /// In front of everything.
    pub const START: Position = Position(0);

    /// The position with this number, if there is one.
    pub fn new(number: u64) -> Option<Position> {
        (number <= POSITION_MAX).then_some(Position(number))
    }

    /// Its number, which fits into 53 bits.
    pub fn number(self) -> u64 {
        self.0
    }

    /// In front of the group of this token.
    pub(crate) fn of(token: Token) -> Position {
        Position(token.0 >> GROUP_BITS)
    }

    /// A position chosen by 64 random bits.
    pub fn at_random(bits: u64) -> Position {
        Position(bits >> GROUP_BITS)
    }

    fn token(self) -> Token {
        Token(self.0 << GROUP_BITS)
    }
}

/// A key that a walk has met. Its value is not kept: a stretch of long values would fill the memory.
#[derive(Clone, Debug)]
pub struct Met {
    /// Its token.
    pub token: Token,
    /// The key.
    pub key: Bytes,
    /// Whether a plain get would show a value.
    pub is_live: bool,
    /// Whether one that shows siblings would.
    pub(crate) has_sibling: bool,
}

/// The next keys of a store, and where to go on.
#[derive(Debug)]
pub struct Stretch {
    /// In order of token and key; deleted and expired ones too.
    pub keys: Vec<Met>,
    /// `None` at the end of the store.
    pub next: Option<Position>,
}

/// How far a stretch goes.
#[derive(Clone, Copy, Debug)]
pub struct StretchLimit {
    /// Keys after which it ends.
    pub keys_min: usize,
    /// Partitions after which it ends.
    pub partitions_max: usize,
}

/// What was read of one partition.
struct StretchRead {
    keys: Vec<Met>,
    is_whole: bool,
}

impl Front {
    /// The next keys of a store. What is there from the first stretch to the last is met, by a walk that begins at
    /// [`Position::START`] and ends without a next position.
    ///
    /// # Errors
    /// When fewer replicas of a partition answer than a get needs.
    pub async fn stretch(
        &self,
        store: &str,
        from: Position,
        limit: StretchLimit,
    ) -> Result<Stretch, Failure> {
        let mut refreshes_left = REFRESHES_MAX;
        // Of a read-only store an earlier request may have read by a document that is not adopted yet. Others must not
        // wait for it: a node whose disk is full adopts none.
        if let Some(ahead) = self.replica.view().ahead()
            && (ahead.read_only(store).is_some() || self.is_read_only(store))
        {
            self.replica.view().reached(ahead.generation, &**self.clock(), ADOPT_PATIENCE).await;
        }
        loop {
            let (view, scope) = self.walked(store)?;
            match self.stretch_under(&view, &scope, from, limit).await {
                Err(failure) if refreshes_left > 0 => match newer(&failure, &view) {
                    Some(cluster) => {
                        refreshes_left -= 1;
                        let told = cluster.generation;
                        (self.adopt)(cluster);
                        self.replica.view().reached(told, &**self.clock(), ADOPT_PATIENCE).await;
                    }
                    None => return Err(failure),
                },
                answer => return answer,
            }
        }
    }

    /// What a stretch that begins now reads: versions, or the artifact that is served now.
    fn walked(&self, store: &str) -> Result<(Arc<View>, Scope), Failure> {
        let view = self.replica.view().get();
        if let Some(scope) = self.artifact_scope(&view, store) {
            return Ok((view, scope));
        }
        let (view, local) = self.current(store)?;
        let scope = self.scope(&view, &local);
        Ok((view, scope))
    }

    async fn stretch_under(
        &self,
        view: &Arc<View>,
        scope: &Scope,
        from: Position,
        limit: StretchLimit,
    ) -> Result<Stretch, Failure> {
        let partitions = view.cluster().ring.partitions();
        let first = partitions.partition_point(|partition| partition.start <= from.token().0) - 1;
        let (mut at, mut ahead, mut keys_min) = (first, 1, limit.keys_min.max(1));
        let mut keys: Vec<Met> = Vec::new();
        loop {
            let round = &partitions[at..partitions.len().min(at + ahead)];
            let behind = keys.last().map(|met| (met.token, met.key.clone())).or_else(|| before(from));
            let wanted = keys_min.saturating_sub(keys.len()) + 1;
            let read = |partition| self.read_partition(view, scope, partition, behind.clone(), wanted);
            let reads: Vec<_> = round.iter().map(read).collect();
            let mut cut = None;
            for read in join_all(reads).await {
                let StretchRead { keys: read, is_whole } = read?;
                keys.extend(read);
                if !is_whole {
                    cut = keys.last().map(|met| met.token);
                    break;
                }
                at += 1;
            }
            // Everything in front of this token was met.
            let end = cut.or_else(|| partitions.get(at).map(|partition| Token(partition.start)));
            let Some(end) = end else { return Ok(Stretch { keys, next: None }) };
            let next = Position::of(end);
            let enough = keys.len() >= keys_min || at - first >= limit.partitions_max;
            if enough && next > from {
                keys.retain(|met| met.token < next.token());
                return Ok(Stretch { keys, next: Some(next) });
            }
            if enough {
                // All of it is one group.
                keys_min *= 2;
            }
            ahead = (2 * ahead).min(AHEAD_MAX);
        }
    }

    /// The keys of a partition behind a place, until there are `wanted`.
    async fn read_partition(
        &self,
        view: &Arc<View>,
        scope: &Scope,
        partition: &Partition,
        behind: Option<WalkPosition>,
        wanted: usize,
    ) -> Result<StretchRead, Failure> {
        let definition = &*scope.definition;
        let mut replicas = PreferenceList::of(definition, partition).replicas().to_vec();
        // Its own copy costs no message, and who is silent costs patience.
        replicas.sort_by_key(|&node| (self.is_suspected(node), node != self.replica.node()));
        let required = definition.numbers_read().reads_required;
        let mut walk = Walk::new(replicas, required, definition, behind);
        let (mut keys, mut reasons) = (Vec::new(), Vec::new());
        while !walk.is_over() && keys.len() < wanted {
            let asks = walk.asks().map_err(|few| too_few(partition, few, &reasons))?;
            let missing = wanted - keys.len();
            let pages = asks.into_iter().map(|PageAsk { node, after }| async move {
                (node, self.page(scope, partition, node, after, missing).await)
            });
            for (node, page) in join_all(pages).await {
                match page {
                    Ok(Scanned { records, next, damaged: 0 }) => walk.page(node, records, next),
                    // What it left out may be there: another replica is asked.
                    Ok(Scanned { damaged, .. }) => {
                        reasons.push(format!("{} cannot read {damaged} of its records", view.describe(node)));
                        walk.failed(node);
                    }
                    Err(failure) if newer(&failure, view).is_some() => return Err(failure),
                    Err(failure) => {
                        reasons.push(format!("{}: {failure}", view.describe(node)));
                        walk.failed(node);
                    }
                }
            }
            let now = self.now();
            keys.extend(walk.take().into_iter().map(|(token, key, set)| {
                let is_live = set.winner().is_some_and(|winner| winner.live(now).is_some());
                let has_sibling = set.live(now).any(|version| version.live(now).is_some());
                Met { token, key, is_live, has_sibling }
            }));
        }
        Ok(StretchRead { keys, is_whole: walk.is_over() })
    }

    async fn page(
        &self,
        scope: &Scope,
        partition: &Partition,
        node: NodeId,
        after: Option<WalkPosition>,
        records_max: usize,
    ) -> Result<Scanned, Failure> {
        let records_max = u32::try_from(records_max).unwrap_or(u32::MAX);
        let Some(request) = scope.scan_request(partition, after, records_max, PAGE_BYTES_MAX) else {
            return Ok(Scanned { records: Vec::new(), next: None, damaged: 0 });
        };
        let answer = match self.coordinator.replicas().call(node, request) {
            client::peers::Call::Ready(answer) => answer,
            client::peers::Call::Pending(future) => {
                self.coordinator.within_deadline(future, &RequestOptions::default()).await
            }
        };
        match answer {
            Ok(Response::Scanned(page)) => Ok(page),
            Ok(_) => Err(Failure::new(ErrorCode::InsufficientReplicas, "it sent an unexpected answer")),
            Err(client::peers::CallError::Refused(failure)) => Err(failure),
            Err(error) => Err(Failure::new(ErrorCode::InsufficientReplicas, error.to_string())),
        }
    }
}

/// The newer cluster document that a refusal carries, if it carries one.
fn newer(failure: &Failure, view: &View) -> Option<Cluster> {
    let cluster: Cluster = serde_json::from_slice(failure.cluster.as_deref()?).ok()?;
    (cluster.generation > view.cluster().generation).then_some(cluster)
}

/// The last place in front of a position; `None` at the start.
fn before(from: Position) -> Option<WalkPosition> {
    // No key is greater than the longest one of the greatest byte.
    let last = || Bytes::from_static(&[u8::MAX; model::limits::KEY_BYTES_MAX]);
    from.token().0.checked_sub(1).map(|token| (Token(token), last()))
}

fn too_few(partition: &Partition, few: TooFew, reasons: &[String]) -> Failure {
    let (id, TooFew { required, left }) = (partition.id, few);
    let detail = format!(
        "too few replicas of partition {id} can be read: {left} of the {required} required ({})",
        reasons.join("; ")
    );
    Failure::new(ErrorCode::InsufficientReplicas, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_fits_into_53_bits_and_comes_back_from_its_number() {
        assert_eq!(Position::at_random(u64::MAX).number(), (1 << 53) - 1);
        assert_eq!(Position::new((1 << 53) - 1), Some(Position::at_random(u64::MAX)));
        assert_eq!(Position::new(1 << 53), None);
        assert_eq!(Position::START.number(), 0);
    }

    #[test]
    fn a_walk_skips_everything_before_its_position() {
        assert_eq!(before(Position::START), None);
        let (token, key) = before(Position(1)).unwrap();
        assert_eq!(token, Token((1 << GROUP_BITS) - 1));
        assert_eq!(key.len(), model::limits::KEY_BYTES_MAX);
    }
}
