//! Invariant 9, as far as places go: the autopilot gives no partition back to a node that it took it from within the
//! residence time.
//!
//! Partitions are cut and joined, so buckets are followed, of which each partition is a run, and only those that are
//! settled. A document that changes who holds a bucket belongs to the plan that is under way. What an operator's order
//! moves, or moves back, begins anew, and so does what takes the places of a dead node: those must go somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{Cluster, Moment, NodeId, PartitionId};

use super::Violation;

/// What was seen so far.
#[derive(Debug)]
pub struct Returns {
    residence: Duration,
    /// Who holds each bucket, by the newest document.
    held: BTreeMap<PartitionId, BTreeSet<NodeId>>,
    /// When the autopilot took a bucket from a node.
    left: BTreeMap<(PartitionId, NodeId), Moment>,
    /// Buckets that it gave to a node.
    pub copies: u64,
    broken: Vec<Violation>,
}

impl Returns {
    /// Of a cluster whose copies stay for this long.
    pub fn new(residence: Duration) -> Returns {
        let (held, left, broken) = Default::default();
        Returns { residence, held, left, copies: 0, broken }
    }

    /// A document was published while this plan was under way: its number, and whether the autopilot carries it out
    /// because of loads.
    pub fn published(&mut self, now: Moment, cluster: &Cluster, plan: Option<(u64, bool)>) {
        let is_autopilots = plan.is_some_and(|(_, is_autopilots)| is_autopilots);
        for bucket in cluster.by_bucket().partitions().iter().filter(|bucket| bucket.coming.is_none()) {
            let holds: BTreeSet<NodeId> = cluster.replicas_in(&bucket.nodes).iter().copied().collect();
            let before = self.held.insert(bucket.id, holds.clone()).unwrap_or_else(|| holds.clone());
            for &node in before.difference(&holds) {
                match is_autopilots {
                    true => _ = self.left.insert((bucket.id, node), now),
                    false => _ = self.left.remove(&(bucket.id, node)),
                }
            }
            for &node in holds.difference(&before) {
                self.copies += u64::from(is_autopilots);
                let left = self.left.remove(&(bucket.id, node)).filter(|_| is_autopilots);
                let stayed = left.map(|left| now.since(left)).filter(|away| *away < self.residence);
                if let (Some(away), Some((number, _))) = (stayed, plan) {
                    let (bucket, seconds) = (bucket.id.0, away.as_secs());
                    let detail = format!(
                        "plan {number} gives bucket {bucket} back to {node} {seconds} s after the autopilot took it, \
                         within {} s",
                        self.residence.as_secs()
                    );
                    self.broken.push(Violation { invariant: 9, about: None, detail });
                }
            }
        }
    }

    /// What came back too soon.
    pub fn broken(&self) -> &[Violation] {
        &self.broken
    }
}

#[cfg(test)]
mod tests {
    use model::{Consistency, Node, Ring, Store, StoreName, Zone};

    use super::*;

    /// Four nodes, of which these hold the only bucket.
    fn held_by(nodes: &[u32]) -> Cluster {
        let zone = Zone("z".to_owned());
        let all: Vec<Node> =
            (1..=4).map(|id| Node::new(NodeId(id), zone.clone(), format!("h{id}:1"), None)).collect();
        let zoned: Vec<_> = all.iter().map(|node| (node.id, zone.clone())).collect();
        let consistency = Consistency { replicas: 2, reads_required: 1, writes_required: 2 };
        let store = Store::new(StoreName::new("s").expect("well formed"), consistency).expect("they fit");
        let mut cluster = Cluster::new("c", all, Ring::equal_slices(1, &zoned), vec![store]);
        let mut partitions = cluster.ring.partitions().to_vec();
        partitions[0].nodes = nodes.iter().map(|id| NodeId(*id)).collect();
        cluster.ring = Ring::new(partitions).expect("one partition");
        cluster
    }

    /// What is broken after these documents: when, who holds the bucket, and whose plan is under way.
    fn broken(published: &[(u64, &[u32], Option<bool>)]) -> usize {
        let mut returns = Returns::new(Duration::from_secs(60));
        for (number, (seconds, nodes, plan)) in (1..).zip(published) {
            let now = Moment::default().after(Duration::from_secs(*seconds));
            returns.published(now, &held_by(nodes), plan.map(|is_autopilots| (number, is_autopilots)));
        }
        returns.broken().len()
    }

    #[test]
    fn a_partition_that_the_autopilot_gives_back_too_soon_is_named() {
        let (mine, ordered) = (Some(true), Some(false));
        let first: (u64, &[u32], Option<bool>) = (0, &[1, 2], None);
        assert_eq!(broken(&[first, (10, &[1, 3], mine), (69, &[1, 2], mine)]), 1);
        assert_eq!(broken(&[first, (10, &[3, 2], mine), (20, &[1, 2], mine)]), 1);
        assert_eq!(
            broken(&[first, (10, &[1, 3], mine), (70, &[1, 2], mine)]),
            0,
            "it has stayed long enough"
        );
        assert_eq!(broken(&[first, (10, &[1, 3], mine), (20, &[1, 4], mine)]), 0, "it goes on elsewhere");
        assert_eq!(broken(&[first, (10, &[1, 3], mine), (20, &[1, 2], ordered)]), 0, "that was ordered");
        assert_eq!(broken(&[first, (10, &[1, 3], ordered), (20, &[1, 2], mine)]), 0, "and so was that");
        assert_eq!(broken(&[first, (10, &[2, 1], mine), (20, &[1, 2], mine)]), 0, "nothing was copied");
    }
}
