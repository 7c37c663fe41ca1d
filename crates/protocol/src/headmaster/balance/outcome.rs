//! How a decision of the autopilot came out, by loads that were measured after it.

use std::collections::BTreeSet;

use model::NodeId;
use model::plan::{Came, CameOf, Decision, Excess};

use crate::rebalance::balancer;

/// What noise may do to the highest utilisation compared with the mean within a minute, in permille.
const NOISE: u64 = 100;

/// A node with this utilisation, in permille, does all that it can.
const FULL: u64 = 900;

/// How a decision came out.
pub(super) fn came_of(decision: &Decision, loads: &balancer::Loads<'_>, at_ms: u64) -> CameOf {
    let permille = |share: f64| (share * 1000.0).round().max(0.0) as u64;
    let (largest, over_mean) = (permille(loads.largest()), permille(loads.largest_over_mean()));
    let before = decision.largest * 1000 / decision.mean.max(1);
    let nodes = |seen: Vec<NodeId>| seen.into_iter().collect::<BTreeSet<_>>();
    let same = nodes(loads.nodes.keys().copied().collect())
        == nodes(decision.seen.iter().map(|at| at.node).collect());
    let mean = permille(loads.mean());
    let alike = mean * 2 >= decision.mean && decision.mean * 2 >= mean;
    let by_places = decision.exceeds == Excess::Joins && decision.mean < balancer::HARDLY_ANY;
    let (fell, predicted) =
        (before.saturating_sub(over_mean), before.saturating_sub(decision.predicted.largest_over_mean));
    let came = if matches!(decision.exceeds, Excess::Disk | Excess::Dead) {
        Came::AsPredicted
    } else if by_places || !same || !alike {
        Came::Unknown
    } else if over_mean <= decision.predicted.largest_over_mean + NOISE {
        Came::AsPredicted
    } else if fell * 4 >= predicted || decision.largest >= FULL {
        // Of a node that did all that it could, nobody knows how much more it was asked for.
        Came::Less
    } else {
        Came::Worse
    };
    CameOf { at_ms, came, largest, largest_over_mean: over_mean }
}
