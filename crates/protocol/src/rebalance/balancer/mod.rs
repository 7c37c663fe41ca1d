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
//! That is the rule *even*. The rule *thresholds* is beside it ([`thresholds`]), and a greedy one to compare with.
//!
//! **Architecture Invariant:** a pure function of what was reported, the document and the policy. Where a figure is missing
//! or cannot be, nothing is decided.

mod cutting;
mod greedy;
mod joining;
mod loads;
mod samples;
mod search;
pub mod thresholds;
mod weights;

use std::collections::BTreeMap;

use model::balance::{Says, Settings};
use model::plan::{Decision, Excess, Lost, LostBecause, NodeAt, Placed, Predicted, Rule};
use model::{Cluster, Moment, NodeId, PartitionId};

pub use cutting::hottest;
pub use joining::{HARDLY_ANY, Share, join};
pub use loads::{Loads, NodeLoad};
use samples::WINDOWS;
pub(super) use samples::median;
pub use samples::{SAMPLE_EVERY, SETTLING, Samples};
pub use search::SearchHistory;
pub use weights::Weights;

/// What the autopilot makes of what it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalanceFinding {
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
    pub outcome: BalanceOutcome,
}

/// What should be done, or why nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BalanceOutcome {
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

impl BalanceFinding {
    /// Nothing is to be done, because of this.
    fn nothing(loads: &Loads<'_>, says: Says) -> BalanceFinding {
        BalanceFinding {
            seen: loads.told(),
            mean: permille(loads.mean()),
            largest: permille(loads.largest()),
            thought_of: 0,
            lost: Vec::new(),
            outcome: BalanceOutcome::Nothing(says),
        }
    }

    /// This batch relieves a node; if there is nothing in it, nothing helps.
    fn of(loads: &Loads<'_>, rule: Rule, first: (NodeId, Excess), batch: search::Batch) -> BalanceFinding {
        let search::Batch { relieved, placed, reorders, thought_of, lost, predicted } = batch;
        let (node, exceeds) = relieved.unwrap_or(first);
        let nothing = BalanceFinding::nothing(loads, Says::NothingHelps { node, dearest: None });
        let finding = BalanceFinding { thought_of, lost: lost.clone(), ..nothing };
        if placed.is_empty() {
            return finding;
        }
        let decision = Decision {
            policy: rule,
            node,
            exceeds,
            seen: finding.seen.clone(),
            mean: finding.mean,
            largest: finding.largest,
            window_ms: loads.window_ms,
            acts: placed.len() as u64,
            cut: None,
            reorders,
            thought_of,
            lost,
            predicted,
        };
        BalanceFinding { outcome: BalanceOutcome::Act { placed, decision: Box::new(decision) }, ..finding }
    }
}

/// What should be done about what was said up to now, by the rule that is set; `None` while it does not look.
///
/// # Errors
/// As [`Samples::loads`].
pub fn look(
    cluster: &Cluster,
    samples: &mut Samples,
    history: &SearchHistory,
    settings: &Settings,
    now: Moment,
) -> Result<Option<BalanceFinding>, Says> {
    match settings.policy {
        // A golden ring is only reordered, and these two rules do nothing but copy.
        _ if cluster.ring.is_golden() => {}
        Rule::Thresholds => return thresholds::look(cluster, samples, settings, now),
        Rule::Greedy => return greedy::look(cluster, samples, settings, now),
        Rule::Even | Rule::NoReordering => {}
    }
    let mut last = None;
    for (position, loads) in samples.loads(cluster, now)?.iter().enumerate() {
        let mut finding = find(cluster, loads, history, settings);
        if let BalanceOutcome::Act { decision, .. } = &finding.outcome {
            if !is_better_later(decision, position, settings) {
                return Ok(Some(finding));
            }
            finding.outcome = BalanceOutcome::Nothing(Says::Unsure { node: decision.node });
        }
        if let BalanceOutcome::Cut { .. } = &finding.outcome {
            return Ok(Some(finding));
        }
        last = Some(finding);
    }
    Ok(last)
}

/// Whether a longer look would do more with one plan. In a short one most acts are lost to noise, and the plan does one or
/// two of them: then several plans follow each other. One that is full, or ends what it began for, is as good as any.
fn is_better_later(decision: &Decision, window: usize, settings: &Settings) -> bool {
    let is_full = decision.lost.iter().any(|lost| lost.because == LostBecause::Later);
    let ends = decision.predicted.largest_over_mean <= u64::from(settings.over_mean) * 10;
    let may_wait = match decision.exceeds {
        Excess::Mean => window + 1 < WINDOWS.len(),
        Excess::Most => window == 0,
        Excess::Disk | Excess::Joins | Excess::Dead => false,
    };
    may_wait && !is_full && !ends
}

/// What should be done about these loads.
pub fn find(
    cluster: &Cluster,
    loads: &Loads<'_>,
    history: &SearchHistory,
    settings: &Settings,
) -> BalanceFinding {
    let nothing = |says| BalanceFinding::nothing(loads, says);
    let mut over = exceeding(loads, settings);
    let most = f64::from(settings.most) / 100.0;
    let are_full = loads.nodes.values().all(|node| node.utilisation() > most);
    if are_full {
        over.retain(|(_, excess)| *excess == Excess::Disk);
    }
    if are_full && over.is_empty() {
        return nothing(Says::AllFull);
    }
    if over.is_empty() {
        return nothing(quiet(loads, settings));
    }
    let batch = search::search(cluster, loads, history, settings, &over);
    let found = BalanceFinding::of(loads, settings.policy, over[0], batch);
    match found.outcome {
        BalanceOutcome::Nothing(_) => helpless(cluster, loads, history, settings, &over, found),
        _ => found,
    }
}

/// Where nothing may go anywhere: a partition is cut, or the dearest one is named.
fn helpless(
    cluster: &Cluster,
    loads: &Loads<'_>,
    history: &SearchHistory,
    settings: &Settings,
    over: &[(NodeId, Excess)],
    found: BalanceFinding,
) -> BalanceFinding {
    let (node, excess) = over[0];
    if excess == Excess::Disk {
        return BalanceFinding { outcome: BalanceOutcome::Nothing(Says::DiskFull { node }), ..found };
    }
    let at = &loads.nodes[&node];
    if at.beside + at.own > at.load - at.own {
        return BalanceFinding { outcome: BalanceOutcome::Nothing(Says::Coordinates { node }), ..found };
    }
    let cut = match cluster.ring.is_golden() {
        true => None,
        false => cutting::cut(cluster, loads, history, settings, over),
    };
    let outcome = match cut {
        Some((node, exceeds, cut)) => BalanceOutcome::Cut {
            decision: Box::new(Decision {
                policy: settings.policy,
                node,
                exceeds,
                seen: found.seen.clone(),
                mean: found.mean,
                largest: found.largest,
                window_ms: loads.window_ms,
                acts: 1,
                cut: Some(cut),
                reorders: 0,
                thought_of: found.thought_of,
                lost: found.lost.clone(),
                predicted: Predicted {
                    largest: found.largest,
                    largest_over_mean: permille(loads.largest_over_mean()),
                    ..Predicted::default()
                },
            }),
        },
        None => {
            let dearest = cutting::dearest(cluster, loads, history, settings, node);
            BalanceOutcome::Nothing(Says::NothingHelps { node, dearest })
        }
    };
    BalanceFinding { outcome, ..found }
}

/// By what part of what cannot be noise a node must exceed a limit.
const SURE: f64 = 0.5;

/// The nodes that exceed a limit, those with the fullest disks first, and then the busiest.
fn exceeding(loads: &Loads<'_>, settings: &Settings) -> Vec<(NodeId, Excess)> {
    let share = |percent: u32| f64::from(percent) / 100.0;
    let over_mean = share(settings.over_mean).max(loads.least_excess);
    let limit = (loads.mean() * over_mean).max(share(settings.least));
    // A node that is full holds up others, so it need not exceed the mean by much; noise of a moment counts all the same.
    let full_excess = 1.0 + (loads.least_excess - 1.0) / 5.0;
    let excess = |node: &NodeLoad| {
        let utilisation = node.utilisation();
        let sure = utilisation - node.deviation * node.deviations * SURE;
        if node.disk_share().is_some_and(|disk| disk > share(settings.disk_gives)) {
            Some(Excess::Disk)
        } else if sure > share(settings.most)
            && utilisation > loads.mean() * share(settings.aim).max(full_excess)
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
