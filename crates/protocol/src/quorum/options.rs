//! What a request wants, and whom it may ask.

use std::time::Duration;

use model::routing::{is_joint, replicas, writers};
use model::{Generation, Moment, NodeId, Partition, PreferenceList, Reads, Store, WallMillis};
use smallvec::SmallVec;

use super::counts::{Spared, Tallies, answers_required};

/// Most fallbacks that one request turns to. Together with three replicas they fit a machine without allocation,
/// and a cluster that is merely slow is not flooded with stand-ins. Suspected fallbacks do not use up the limit
/// while others are left.
pub const FALLBACKS_MAX: usize = 5;

/// This many times `hedge_after` a get waits for a replica before it asks a fallback in its place.
const REPLICA_PATIENCE: u32 = 10;

/// Most doublings of the patience with stand-ins: beyond, the deadline comes first in any case.
const DOUBLINGS_MAX: u32 = 16;

/// What one request wants. The same for every key of a multi-request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuorumOptions {
    /// Answers that the request must have: R or W, at least 1 (0 is taken as 1).
    pub required: u8,
    /// Answers that it hopes for until `hedge_after`; taken as `required` when below it, as N when above.
    pub preferred: u8,
    /// Whether fallbacks stand in for replicas. For a write they acknowledge in their place. A get believes them what
    /// they hold, and never that a key is absent.
    pub sloppy: bool,
    /// Replicas that must hold what a get answers before it answers, so that no later get misses it; such a get asks
    /// no fallbacks. 0: replicas are repaired after the answer. Writes take no notice.
    pub held: u8,
    /// What each set of replicas is spared while the store changes its numbers: of `held` for gets, which ask one set, and
    /// of `required` for writes.
    pub spared: Spared,
    /// How long a node may take before another one is brought in beside it. Doubles with each such wave.
    pub hedge_after: Duration,
    /// When the request is answered with what there is, and stragglers are given up.
    pub deadline: Moment,
    /// The wall clock when the request starts. By it, and by the time since, a get tells whether a value has expired.
    /// Writes take no notice.
    pub wall: WallMillis,
    /// Generation of the ring that the candidates come from.
    pub generation: Generation,
    /// From which generation on the candidates are the key's. An answer counts when its node followed that one or a later
    /// one, whose own refusals say whether the request is too old for it.
    pub since: Generation,
}

impl QuorumOptions {
    /// Whether an answer counts that a node gave under this generation.
    pub(super) fn counts(&self, generation: Generation) -> bool {
        generation >= self.since
    }

    /// How long a node asked at `now` may take, after `waves` waves of stand-ins.
    pub(super) fn late_at(&self, now: Moment, waves: u32) -> Moment {
        now.after(self.hedge_after.saturating_mul(1 << waves.min(DOUBLINGS_MAX)))
    }

    /// How long a replica is waited for before a get turns to a fallback in its place: a replica that is only slow must
    /// not be replaced by a node that knows less. Failed and suspected replicas are replaced at once.
    pub(super) fn patience_with_replicas(&self) -> Duration {
        self.hedge_after.saturating_mul(REPLICA_PATIENCE)
    }

    /// The options with `required` and `preferred` brought into their bounds for the replicas, of which the smaller
    /// set counts while there are two.
    pub(super) fn bounded(mut self, preference: &PreferenceList) -> Self {
        let replicas = match preference.is_joint() {
            false => saturated(preference.replicas().len()),
            true => Tallies::with(self.spared, preference.sets().map(|(_, sets)| sets)).least(),
        };
        debug_assert!(
            self.spared.is_none() || preference.is_joint(),
            "one set of replicas is spared nothing"
        );
        self.required = self.required.max(1);
        self.preferred = self.preferred.min(replicas).max(self.required);
        self.held = self.held.min(replicas);
        self
    }

    /// The options with as many answers hoped for as replicas must hold them: when all agree, nothing is written.
    pub(super) fn hoping_for_holders(mut self, preference: &PreferenceList) -> Self {
        let readers = saturated(preference.replicas().len()).max(self.preferred);
        self.preferred = self.preferred.max(self.held).min(readers);
        self
    }
}

/// A count of nodes, as outcomes tell it.
pub(super) fn saturated(count: usize) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

/// Whom a request may ask.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    /// The key's replicas and fallbacks under the request's generation.
    pub preference: &'a PreferenceList,
    /// Nodes that are better avoided. A few: searched one by one.
    pub suspected: &'a [NodeId],
    /// Nodes that gets, and clients that look for a stamper, ask last among those that nobody suspects, see
    /// [`Lagging`](super::Lagging). The writes themselves take no notice.
    pub lagging: &'a [NodeId],
}

impl Candidates<'_> {
    /// Whether the node is better avoided.
    pub(super) fn is_suspected(&self, node: NodeId) -> bool {
        self.suspected.contains(&node)
    }

    /// Whether the node is better read last.
    pub(super) fn lags(&self, node: NodeId) -> bool {
        self.lagging.contains(&node)
    }

    /// The fallbacks to turn to, best first: `own`, the unsuspected, the suspected; at most [`FALLBACKS_MAX`]. In a
    /// store that prefers proximity, those in the zone of the first suspected replica come first among their like.
    pub(super) fn fallbacks(&self, own: Option<NodeId>) -> SmallVec<[NodeId; FALLBACKS_MAX]> {
        let all = self.preference.fallbacks();
        let mut fallbacks: SmallVec<[NodeId; FALLBACKS_MAX]> = SmallVec::new();
        let own = own.filter(|own| all.contains(own));
        fallbacks.extend(own);
        let missing = self.preference.writers().iter().copied().find(|&node| self.is_suspected(node));
        let is_near = |node| missing.is_some_and(|missing| self.preference.is_near(node, missing));
        for (suspected, near) in [(false, true), (false, false), (true, true), (true, false)] {
            if near && missing.is_none() {
                continue;
            }
            for &node in all {
                if fallbacks.len() == FALLBACKS_MAX {
                    return fallbacks;
                }
                if Some(node) != own && self.is_suspected(node) == suspected && is_near(node) == near {
                    fallbacks.push(node);
                }
            }
        }
        fallbacks
    }
}

/// Whether the own node's record alone answers a get of the store's keys in this partition: it is a replica, and one
/// answer, or holder, is enough. A machine started for such a get would ask the own node and nobody else.
pub fn own_record_suffices(own: NodeId, definition: &Store, partition: &Partition) -> bool {
    // What a monotonic get shows must be held by replicas of both sets.
    let held = definition.reads == Reads::Monotonic && is_joint(definition, partition);
    answers_required(definition) <= 1 && !held && replicas(definition, partition).contains(&own)
}

/// Whether so many of the replicas are there, as gets of the store's keys in this partition need to say that one is
/// absent.
pub fn absence_can_be_told(
    definition: &Store,
    partition: &Partition,
    is_there: impl Fn(NodeId) -> bool,
) -> bool {
    let there = replicas(definition, partition).iter().filter(|&&node| is_there(node)).count();
    there >= usize::from(answers_required(definition))
}

/// Whether the own node's acknowledgement alone completes a write to the store's keys in this partition: nobody else
/// takes writes of them. A machine started for such a write would send nothing.
pub fn own_write_suffices(own: NodeId, definition: &Store, partition: &Partition) -> bool {
    writers(definition, partition).eq([own])
}

#[cfg(test)]
mod tests {
    use model::{
        Cluster, Coming, Consistency, FallbackOrder, Node, PartitionId, Ring, Step, Store, StoreName, Token,
        Unknown, Zone,
    };

    use super::*;

    /// Six nodes in three zones, two in each; two replicas.
    fn preference(fallbacks: FallbackOrder) -> PreferenceList {
        let node = |id: u32| Node::new(NodeId(id), Zone(format!("z{}", id % 3)), format!("n{id}:1"), None);
        let nodes: Vec<Node> = (1..=6).map(node).collect();
        let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
        let consistency = Consistency { replicas: 2, reads_required: 1, writes_required: 1 };
        let store = Store::new(StoreName::new("explored").unwrap(), consistency).unwrap();
        let store = Store { fallbacks, ..store };
        let cluster = Cluster::new("explored", nodes, Ring::equal_slices(1, &zones), vec![store.clone()]);
        cluster.route(&store, Token::of(b"k")).1
    }

    #[test]
    fn by_proximity_a_node_of_the_missing_replicas_zone_stands_in_first() {
        let preference = preference(FallbackOrder::Proximity);
        for missing in 0..2 {
            let suspected = [preference.replicas()[missing]];
            let candidates = Candidates { preference: &preference, suspected: &suspected, lagging: &[] };
            let fallbacks = candidates.fallbacks(None);
            assert_eq!(fallbacks.len(), 4);
            // Two nodes in each zone: ids that differ by three.
            assert_eq!(fallbacks[0].0.abs_diff(suspected[0].0), 3, "{fallbacks:?} for {suspected:?}");
            let both = [suspected[0], fallbacks[0]];
            let candidates = Candidates { preference: &preference, suspected: &both, lagging: &[] };
            assert_ne!(candidates.fallbacks(None)[0], fallbacks[0], "a suspected one does not come first");
        }
    }

    #[test]
    fn otherwise_suspicion_of_replicas_leaves_the_order_of_fallbacks_alone() {
        let preference = preference(FallbackOrder::Consistent);
        let suspected = [preference.replicas()[1]];
        let candidates = Candidates { preference: &preference, suspected: &suspected, lagging: &[] };
        assert_eq!(candidates.fallbacks(None).as_slice(), preference.fallbacks());
    }

    #[test]
    fn while_a_partition_moves_one_record_does_not_answer_a_monotonic_get() {
        let own = NodeId(1);
        let consistency = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        let fast = Store::new(StoreName::new("explored").unwrap(), consistency).unwrap();
        let monotonic = Store { reads: Reads::Monotonic, ..fast.clone() };
        let settled = Partition::settled(PartitionId(0), 0, vec![own]);
        let coming = Coming { step: Step::Joint, nodes: vec![NodeId(2)], unknown: Unknown::new() };
        let moves = Partition { coming: Some(coming), ..settled.clone() };
        assert!(own_record_suffices(own, &fast, &settled) && own_record_suffices(own, &fast, &moves));
        assert!(own_record_suffices(own, &monotonic, &settled));
        assert!(!own_record_suffices(own, &monotonic, &moves), "the new replica must hold it, too");
        assert!(own_write_suffices(own, &fast, &settled));
        assert!(!own_write_suffices(own, &fast, &moves), "an entering node takes writes, too");
    }
}
