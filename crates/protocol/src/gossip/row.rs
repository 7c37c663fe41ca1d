//! What one node says about itself, and which of two rows is the newer.

use model::{Generation, NodeId};

/// How much a node has to do, in a few numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GossipLoad {
    /// Operations on records in the last round, scaled to a second.
    pub operations_per_second: u64,
    /// Bytes of live records.
    pub data_bytes: u64,
    /// Links of the native protocol.
    pub links: u32,
}

/// What a node says about itself. It spreads unchanged: nobody writes another node's row.
///
/// Rows are ordered as they became true: a later incarnation, then a later heartbeat. A node makes at most one row
/// for each pair of the two, so the fields after them only break ties between rows that no node made; with them the
/// order is total and the greater of two is a join: in any order, grouping and number of repetitions, all nodes end
/// with the same table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Who.
    pub node: NodeId,
    /// Which of its lives; grows with each start that was not a clean restart.
    pub incarnation: u64,
    /// Counts its rounds.
    pub heartbeat: u64,
    /// Whether it said that it stops.
    pub left: bool,
    /// The cluster document that it follows.
    pub generation: Generation,
    /// The collection epoch that it has reached.
    pub epoch: u64,
    /// What it has to do.
    pub load: GossipLoad,
}

impl Row {
    /// The first row of a life.
    pub fn new(node: NodeId, incarnation: u64, generation: Generation) -> Row {
        Row {
            node,
            incarnation,
            heartbeat: 0,
            left: false,
            generation,
            epoch: 0,
            load: GossipLoad::default(),
        }
    }

    /// The newer of two rows of one node.
    ///
    /// # Panics
    /// When they are of two nodes.
    pub fn join(self, other: Row) -> Row {
        assert_eq!(self.node, other.node, "rows of different nodes do not join");
        self.max(other)
    }

    /// Whether this row's node has lived on since it made the other: its heartbeat advanced, or it started again.
    pub fn is_later_than(&self, other: &Row) -> bool {
        (self.incarnation, self.heartbeat) > (other.incarnation, other.heartbeat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for incarnation in [1, 2] {
            for heartbeat in [0, 1, 7] {
                for left in [false, true] {
                    for epoch in [0, 3] {
                        let first = Row::new(NodeId(1), incarnation, Generation(heartbeat % 2));
                        rows.push(Row { heartbeat, left, epoch, ..first });
                    }
                }
            }
        }
        rows
    }

    #[test]
    fn joining_is_idempotent_commutative_and_associative_and_never_goes_back() {
        let rows = rows();
        for &a in &rows {
            assert_eq!(a.join(a), a);
            for &b in &rows {
                let joined = a.join(b);
                assert_eq!(joined, b.join(a));
                assert!(joined >= a && joined >= b, "the join is an upper bound");
                assert!(joined == a || joined == b, "and nothing that nobody said");
                for &c in &rows {
                    assert_eq!(joined.join(c), a.join(b.join(c)));
                }
            }
        }
    }

    #[test]
    fn a_new_life_outweighs_every_heartbeat_of_the_one_before() {
        let old = Row { heartbeat: u64::MAX, left: true, ..Row::new(NodeId(1), 1, Generation(1)) };
        let new = Row::new(NodeId(1), 2, Generation(1));
        assert_eq!(old.join(new), new);
        assert!(new.is_later_than(&old) && !old.is_later_than(&new));
        let told_otherwise = Row { epoch: 9, ..new };
        assert!(!told_otherwise.is_later_than(&new), "no heartbeat in between: nobody lived on");
    }
}
