//! Other bounds of partitions, drawn: some are cut, some joined, now and then all are doubled, while others move.
//!
//! What cannot be done must be refused, and is not published. A partition that moves keeps its bounds.
//!
//! Must never: change more than bounds, unless a bug is planted that does.

use model::{Cluster, Partition, PartitionId};
use protocol::rebalance::planner::{PlanRefusal, Reshape};

use crate::dice::Dice;
use crate::plant::Plant;

/// Most partitions of a run: each takes its place in every document.
const PARTITIONS_MAX: usize = 40;
/// Times in a thousand that neighbours are joined which lie on the same nodes, if there are any.
const ALIKE: u64 = 800;

/// What is drawn.
pub enum Drawn {
    /// A document with other bounds, and what it does.
    Other(String, Box<Cluster>),
    /// These two lie on different nodes: the first must take the second's list before they can be joined.
    Apart(PartitionId, PartitionId),
    /// Nothing: it was refused.
    Refused(PlanRefusal),
}

/// Other bounds for the ring.
pub fn draw(cluster: &Cluster, plant: Option<Plant>, dice: &mut Dice) -> Drawn {
    let few = cluster.ring.partitions().len() < PARTITIONS_MAX / 2;
    let (what, reshape) = match dice.below(10) {
        0 if few => ("all are doubled".to_owned(), Reshape::double(cluster)),
        0..=4 if few => {
            let partition = dice.pick(cluster.ring.partitions());
            let at = dice.chance(500).then(|| cut(cluster, partition, dice));
            (format!("{} is cut:", partition.id), Reshape::split(cluster, partition.id, at))
        }
        _ => {
            let (first, second) = neighbours(cluster, dice);
            (format!("{first} takes in {second}:"), Reshape::merge(cluster, first, second))
        }
    };
    let applied = reshape.and_then(|reshape| match reshape.apply(cluster, usize::MAX) {
        Err(PlanRefusal::OtherLists { partition, other }) => Ok(Drawn::Apart(other, partition)),
        applied => applied.map(|next| Drawn::Other(what, Box::new(planted(plant, cluster, next)))),
    });
    applied.unwrap_or_else(Drawn::Refused)
}

/// A token within a partition, where a bucket begins or not.
fn cut(cluster: &Cluster, partition: &Partition, dice: &mut Dice) -> u64 {
    let (first, last) = cluster.ring.bounds(partition.id).expect("it is of this ring");
    let tokens = cluster.bucket_tokens().unwrap_or(1);
    let buckets = (last.0 - first.0) / tokens + 1;
    let at = first.0.saturating_add(dice.below(buckets + 1).saturating_mul(tokens));
    // The end of the last partition is no token.
    at.saturating_add(u64::from(dice.chance(50)))
}

/// Two that lie beside each other; mostly on the same nodes, if any do.
fn neighbours(cluster: &Cluster, dice: &mut Dice) -> (PartitionId, PartitionId) {
    let replicas = cluster.replicas_max();
    let is_alike = |pair: &&[Partition]| pair[0].nodes[..replicas] == pair[1].nodes[..replicas];
    let pairs = || cluster.ring.partitions().windows(2);
    let alike: Vec<&[Partition]> = pairs().filter(is_alike).collect();
    let all: Vec<&[Partition]> = pairs().collect();
    let among = if alike.is_empty() || !dice.chance(ALIKE) { &all } else { &alike };
    match among.is_empty() {
        // The only one, with itself.
        true => (cluster.ring.partitions()[0].id, cluster.ring.partitions()[0].id),
        false => {
            let pair = *dice.pick(among);
            (pair[0].id, pair[1].id)
        }
    }
}

/// The document as a planted bug would make it: nobody is told that bounds are others.
fn planted(plant: Option<Plant>, before: &Cluster, mut next: Cluster) -> Cluster {
    if plant != Some(Plant::CutsUnannounced) {
        return next;
    }
    let mut partitions = next.ring.partitions().to_vec();
    for partition in &mut partitions {
        partition.since = before.ring.partition(model::Token(partition.start)).since;
    }
    next.ring = model::Ring::new(partitions).expect("only what is accepted is another");
    next
}

#[cfg(test)]
mod tests {
    use model::{Consistency, Generation, Node, NodeId, Ring, Store, StoreName, Zone};
    use protocol::rebalance::steps;

    use super::*;

    fn cluster() -> Cluster {
        let nodes: Vec<Node> =
            (1..=5).map(|id| Node::new(NodeId(id), Zone("z".to_owned()), "h:1", None)).collect();
        let zoned: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
        let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
        let store = Store::new(StoreName::new("s").expect("well formed"), consistency).expect("they fit");
        let ring = Ring::equal_slices(8, &zoned);
        Cluster { buckets: 32, ..Cluster::new("drawn", nodes, ring, vec![store]) }
    }

    #[test]
    fn all_kinds_are_drawn_and_a_partition_that_moves_keeps_its_bounds() {
        let settled = cluster();
        let list = [4, 5, 1, 2, 3].map(NodeId).to_vec();
        let moving = steps::begin(&settled, &[(PartitionId(0), list)]).expect("it is settled");
        let (mut other, mut apart, mut refused) = (0, 0, 0);
        for seed in 0..400 {
            let mut dice = Dice::new(seed);
            match draw(&moving, None, &mut dice) {
                Drawn::Other(_, next) => {
                    assert_eq!(next.check(), Ok(()));
                    assert_eq!(next.generation, Generation(moving.generation.0 + 1));
                    assert_eq!(next.ring.get(PartitionId(0)), moving.ring.get(PartitionId(0)));
                    assert_eq!(next.ring.bounds(PartitionId(0)), moving.ring.bounds(PartitionId(0)));
                    other += 1;
                }
                Drawn::Apart(..) => apart += 1,
                Drawn::Refused(_) => refused += 1,
            }
        }
        assert!(other > 50 && apart > 50 && refused > 20, "{other} {apart} {refused}");
    }
}
