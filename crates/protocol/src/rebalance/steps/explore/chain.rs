//! Documents as they were published, one after the other, and what they mean to the explored nodes.

use std::fmt;
use std::rc::Rc;

use model::{PreferenceList, Sets};

use super::*;
use crate::rebalance::entering;

/// A set of nodes, by position.
pub(super) type Mask = u8;

pub(super) fn bit(node: usize) -> Mask {
    1 << node
}

pub(super) fn is_in(node: usize, mask: Mask) -> bool {
    mask & bit(node) != 0
}

/// One document, and who is what by it.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) cluster: Cluster,
    /// Requests formed under older documents than the one at this position are refused.
    pub(super) since: u8,
    pub(super) step: Option<Step>,
    pub(super) readers: Mask,
    pub(super) writers: Mask,
    /// Old and new replicas of a write; the same while nothing moves.
    pub(super) sets: [Mask; 2],
    /// Replicas that bring the partition in, and those that they bring it in from.
    pub(super) entering: Mask,
    pub(super) old: Mask,
    /// Replicas that stay, and merge because the store's numbers change.
    pub(super) staying: Mask,
    /// The numbers of the old and the new set, and of those that gets ask.
    pub(super) written: [Consistency; 2],
    pub(super) read: Consistency,
    /// The node whose place each takes that enters.
    pub(super) successions: Vec<(usize, Option<usize>)>,
}

/// The documents that were published.
pub(super) type Chain = Rc<Vec<Rc<Document>>>;

/// All chains that were met, each by its number.
pub(super) struct Chains {
    chains: Vec<(u32, Chain)>,
}

/// Whole documents would bury the story.
impl fmt::Debug for Chains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} chains", self.chains.len())
    }
}

pub(super) fn id(node: usize) -> NodeId {
    NodeId(node as u32)
}

fn mask<'a>(nodes: impl IntoIterator<Item = &'a NodeId>) -> Mask {
    nodes.into_iter().fold(0, |mask, node| mask | bit(node.0 as usize))
}

impl Chains {
    pub(super) fn new(scope: &Scope) -> Self {
        let nodes: Vec<_> =
            (0..NODES).map(|node| Node::new(id(node), Zone(String::from("z")), "h:1", None)).collect();
        let store = Store::new(StoreName::new("explored").unwrap(), scope.consistency).unwrap();
        let listed = scope.from.iter().map(|&node| id(node)).collect();
        let ring = Ring::new(vec![Partition::settled(PartitionId(0), 0, listed)]).unwrap();
        let first = Document::of(Cluster::new("explored", nodes, ring, vec![store]));
        Chains { chains: vec![(0, Rc::new(vec![Rc::new(first)]))] }
    }

    pub(super) fn get(&self, number: u32) -> Chain {
        self.chains[number as usize].1.clone()
    }

    /// The number of the chain that `cluster` continues.
    pub(super) fn push(&mut self, number: u32, cluster: Cluster) -> u32 {
        let known = |(parent, chain): &(u32, Chain)| {
            *parent == number && chain.len() > 1 && chain.last().unwrap().cluster == cluster
        };
        if let Some(position) = self.chains.iter().position(known) {
            return position as u32;
        }
        let mut chain = (*self.get(number)).clone();
        chain.push(Rc::new(Document::of(cluster)));
        self.chains.push((number, Rc::new(chain)));
        self.chains.len() as u32 - 1
    }
}

impl Document {
    fn of(cluster: Cluster) -> Self {
        cluster.check().expect("a document that is published holds together");
        let partition = &cluster.ring.partitions()[0];
        let store = &cluster.stores[0];
        let preference = PreferenceList::of(store, partition);
        let set = |counts: fn(Sets) -> bool| {
            let counting: Vec<_> =
                preference.sets().filter(|(_, sets)| counts(*sets)).map(|(node, _)| node).collect();
            mask(&counting)
        };
        let mut sets = [set(Sets::has_old), set(Sets::has_new)];
        if planted(Bug::JointNeedsOldOnly) && model::routing::step(store, partition) == Some(Step::Joint) {
            sets[1] = sets[0];
        }
        if planted(Bug::ReadingNewNeedsNewOnly)
            && model::routing::step(store, partition) == Some(Step::ReadingNew)
        {
            sets[0] = sets[1];
        }
        let old = mask(replicas_before(store, partition));
        let step = model::routing::step(store, partition);
        let staying = (0..NODES).filter(|&node| {
            let takes_part = entering::takes_part(store, partition, id(node));
            takes_part && is_in(node, old)
        });
        let staying = staying.fold(0, |mask, node| mask | bit(node));
        let (before, after) = store.numbers_written();
        let written = if planted(Bug::SetsTradeNumbers) { [after, before] } else { [before, after] };
        let (entering, successions) = match replicas_to_come(store, partition) {
            Some(new) => {
                let places = Places::of(store, partition);
                let successions: Vec<_> = places
                    .successions()
                    .map(|(node, leaving)| (node.0 as usize, leaving.map(|leaving| leaving.0 as usize)))
                    .collect();
                (mask(new) & !old, successions)
            }
            None => (0, Vec::new()),
        };
        let readers = match step {
            Some(Step::Joint) if planted(Bug::JointReadsNew) => sets[1],
            _ => mask(preference.replicas()),
        };
        Document {
            since: partition.since.max(store.since).0.saturating_sub(1) as u8,
            step,
            readers,
            staying,
            written,
            read: store.numbers_read(),
            writers: mask(preference.writers()),
            sets,
            entering,
            old,
            successions,
            cluster,
        }
    }

    /// Whether these nodes are W of each set.
    pub(super) fn is_quorum(&self, acknowledged: Mask) -> bool {
        let needed = |set: usize| u32::from(self.written[set].writes_required);
        (0..2).all(|set| (self.sets[set] & acknowledged).count_ones() >= needed(set))
    }
}
