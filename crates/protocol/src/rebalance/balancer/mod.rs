//! What load says should move, and why nothing should.
//!
//! ```text
//!   reports, one after another ──▶ samples ──▶ loads: what each node can carry, and what each place of a list costs
//!                                                 │
//!   policy, what was moved lately ────────────────┴──▶ search ──▶ a batch with its decision, or a verdict
//! ```
//!
//! The measure of how well a cluster is balanced is Σ c·u²: the sum over nodes of capacity times utilisation squared.
//! Each act lowers it by more than it costs and more than noise could make it seem, and none is undone before what it
//! copied has paid. So under constant load acts are finite, and no partition returns to a node that it just left.
//!
//! Only work that belongs to partitions counts. What a node does for clients that happen to ask it, no move changes.
//! A place in a list is load (gets ask the first R, the first one stamps), so the first candidates trade two places.
//!
//! **Architecture Invariant:** a pure function of what was reported, the document and the policy. Where a figure is missing
//! or cannot be, nothing is decided.

mod cutting;
mod joining;
mod loads;
mod samples;
mod search;
mod weights;

use std::collections::BTreeMap;

use model::balance::{Decision, Excess, Lost, NodeAt, Says, Settings};
use model::plan::Placed;
use model::{Cluster, NodeId, PartitionId};

pub use joining::{HARDLY_ANY, Share, join};
pub use loads::{Loads, NodeLoad};
pub use samples::{SAMPLE_EVERY, SETTLING, Samples};
pub use search::History;
pub use weights::Weights;

/// What the autopilot makes of what it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// All nodes as they were seen.
    pub seen: Vec<NodeAt>,
    /// The mean utilisation, in permille.
    pub mean: u64,
    /// The highest one.
    pub largest: u64,
    /// How many candidates were thought of.
    pub thought_of: u64,
    /// Why they are not taken.
    pub lost: Vec<Lost>,
    /// What should be done, or why nothing.
    pub outcome: Outcome,
}

/// What should be done, or why nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing, because of this.
    Nothing(Says),
    /// This.
    Act {
        /// Where partitions go.
        placed: Vec<Placed>,
        /// Why.
        decision: Box<Decision>,
    },
    /// A partition is cut in two, as the decision says.
    Cut {
        /// Why, and where.
        decision: Box<Decision>,
    },
}

/// What should be done about these loads.
pub fn find(cluster: &Cluster, loads: &Loads<'_>, history: &History, settings: &Settings) -> Finding {
    let mut seen = loads.told();
    seen.sort_by_key(|at| at.node);
    let (mean, largest) = (permille(loads.mean()), permille(loads.largest()));
    let nothing = |says| Finding {
        seen: seen.clone(),
        mean,
        largest,
        thought_of: 0,
        lost: Vec::new(),
        outcome: Outcome::Nothing(says),
    };
    let over = exceeding(loads, settings);
    let most = f64::from(settings.most) / 100.0;
    let no_disk = over.iter().all(|(_, excess)| *excess != Excess::Disk);
    if no_disk && loads.nodes.values().all(|node| node.utilisation() > most) {
        return nothing(Says::AllFull);
    }
    if over.is_empty() {
        return nothing(quiet(loads, settings));
    }
    let search::Batch { placed, reorders, thought_of, lost, predicted } =
        search::search(cluster, loads, history, settings, &over);
    let (node, exceeds) = over[0];
    let decision = Decision {
        node,
        exceeds,
        seen: seen.clone(),
        mean,
        largest,
        window_ms: loads.window_ms,
        acts: placed.len() as u64,
        cut: None,
        reorders,
        thought_of,
        lost: lost.clone(),
        predicted,
    };
    if placed.is_empty() {
        let outcome = match cutting::cut(cluster, loads, history, settings, &over) {
            Some((node, exceeds, cut)) => {
                let decision = Decision { node, exceeds, acts: 1, cut: Some(cut), ..decision };
                Outcome::Cut { decision: Box::new(decision) }
            }
            None => Outcome::Nothing(Says::NothingHelps {
                node,
                dearest: cutting::dearest(cluster, loads, history, settings, node),
            }),
        };
        return Finding { seen, mean, largest, thought_of, lost, outcome };
    }
    let outcome = Outcome::Act { placed, decision: Box::new(decision) };
    Finding { seen, mean, largest, thought_of, lost, outcome }
}

/// By what part of what cannot be noise a node must exceed a limit.
const SURE: f64 = 0.5;

/// The nodes that exceed a limit, those with the fullest disks first, and then the busiest.
fn exceeding(loads: &Loads<'_>, settings: &Settings) -> Vec<(NodeId, Excess)> {
    let share = |percent: u32| f64::from(percent) / 100.0;
    let over_mean = share(settings.over_mean).max(loads.least_excess);
    let limit = (loads.mean() * over_mean).max(share(settings.least));
    let excess = |node: &NodeLoad| {
        let utilisation = node.utilisation();
        let sure = utilisation - node.deviation * node.deviations * SURE;
        if node.disk_share().is_some_and(|disk| disk > share(settings.disk_gives)) {
            Some(Excess::Disk)
        } else if sure > share(settings.most)
            && utilisation > loads.mean() * share(settings.aim).max(loads.least_excess)
        {
            Some(Excess::Most)
        } else {
            (sure > limit).then_some(Excess::Mean)
        }
    };
    let mut over: Vec<(NodeId, Excess)> =
        loads.nodes.iter().filter_map(|(id, node)| Some((*id, excess(node)?))).collect();
    let key = |(id, excess): &(NodeId, Excess)| (*excess != Excess::Disk, -loads.nodes[id].utilisation());
    over.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal));
    over
}

/// Why nothing is to be done where no node exceeds a limit.
fn quiet(loads: &Loads<'_>, settings: &Settings) -> Says {
    let share = |percent: u32| f64::from(percent) / 100.0;
    let (over_mean, least) = (share(settings.over_mean), share(settings.least));
    if let Some((node, at)) = loads.most_beside() {
        let is_uneven = at.total_share() > loads.mean_total() * over_mean && at.total_share() > least;
        if is_uneven || at.total_share() > share(settings.most) {
            return Says::Coordinates { node };
        }
    }
    match loads.busiest() {
        Some((node, busiest)) if busiest.utilisation() > loads.mean() * over_mean && busiest.load > 0.0 => {
            if busiest.utilisation() > least {
                Says::Unsure { node }
            } else {
                Says::Idle { node }
            }
        }
        _ => Says::Balanced,
    }
}

/// As documents hold it.
pub(crate) fn permille(share: f64) -> u64 {
    (share * 1000.0).round().clamp(0.0, 1e12) as u64
}

/// What each partition's places cost now.
type Places = BTreeMap<PartitionId, Vec<(NodeId, f64)>>;
