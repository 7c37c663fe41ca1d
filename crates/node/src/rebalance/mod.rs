//! What a node does by itself while partitions move, and how it tells how far it is.
//!
//! ```text
//!   document ──▶ entering: bring in, merge again, say so ──▶ told ──▶ headmaster ──▶ next document
//!           └──▶ leaving: give back, drop
//! ```
//!
//! **Architecture Invariant:** nothing here decides that a partition takes its next step: `protocol::rebalance` does.

use wire::messages::MovesGot;

use crate::antientropy::AntiEntropy;

/// How far this node is, for whoever decides about steps.
pub(crate) fn told(antientropy: &AntiEntropy) -> MovesGot {
    let replica = antientropy.replica();
    let hints = replica.hints().pending().into_iter().map(|(_, count)| count).sum();
    MovesGot {
        incarnation: antientropy.incarnation(),
        adopted: replica.view().adopted(),
        entered: Vec::new(),
        leftovers: Vec::new(),
        hints,
    }
}
