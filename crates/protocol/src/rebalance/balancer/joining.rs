//! What a new node should get: its share of the load, from the fullest nodes, and nothing moves between these.
//!
//! It gets a quarter first. The rest comes when that has settled and is seen in its reports, batch by batch.
//!
//! Where there is hardly any load, places count instead: a cluster that rests is shared out all the same.

use std::collections::BTreeSet;

use model::balance::Settings;
use model::plan::{Decision, Excess, LostBecause, Placed};
use model::{Cluster, NodeId};

use super::loads::mean;
use super::search::{Batch, Search, SearchHistory};
use super::{BalanceFinding, BalanceOutcome, Loads, permille};

/// Below this mean utilisation, in permille, places count instead of load.
pub const HARDLY_ANY: u64 = 20;
/// Loads over this long at least decide whether a node that has a part of its share gets more.
const WINDOW_MIN_MS: u64 = 50_000;
/// The part of its share that a node gets first.
const FIRST: f64 = 0.25;

/// How much of its share a new node gets now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// A quarter: it holds nothing yet.
    First,
    /// All of it.
    Whole,
}

/// What this node should get now; `None` when it has its share, or nothing may be given to it.
pub fn join(
    cluster: &Cluster,
    loads: &Loads<'_>,
    history: &SearchHistory,
    settings: &Settings,
    (node, share): (NodeId, Share),
) -> Option<BalanceFinding> {
    if share == Share::Whole && loads.window_ms < WINDOW_MIN_MS {
        return None;
    }
    let mut search = Search::new(cluster, loads, history, settings);
    if permille(loads.mean()) < HARDLY_ANY {
        search.count_places();
    }
    // Noise alone must not fill it: what is within the noise of its share is its share.
    let at = search.nodes.get(&node)?;
    let sure = at.utilisation() + at.deviation * at.deviations;
    if share == Share::Whole && sure * f64::from(settings.aim) / 100.0 >= mean(&search.nodes) {
        return None;
    }
    let part = if share == Share::First { FIRST } else { 1.0 };
    let Batch { placed, thought_of, lost, predicted, .. } = search.fill(node, part);
    if placed.is_empty() {
        return None;
    }
    let mut seen = loads.told();
    seen.sort_by_key(|at| at.node);
    let (mean, largest) = (permille(loads.mean()), permille(loads.largest()));
    let decision = Decision {
        policy: settings.policy,
        node,
        exceeds: Excess::Joins,
        seen: seen.clone(),
        mean,
        largest,
        window_ms: loads.window_ms,
        acts: placed.len() as u64,
        cut: None,
        reorders: 0,
        thought_of,
        lost: lost.clone(),
        predicted,
    };
    let outcome = BalanceOutcome::Act { placed, decision: Box::new(decision) };
    Some(BalanceFinding { seen, mean, largest, thought_of, lost, outcome })
}

impl Search<'_> {
    /// Each place counts as one, whatever it costs.
    fn count_places(&mut self) {
        /// What a place counts for, in processors: as little as no cluster's real load is.
        const PLACE: f64 = 1e-4;
        for node in self.nodes.values_mut() {
            (node.load, node.factor, node.deviation) = (0.0, 1.0, 0.0);
        }
        for partition in self.cluster.ring.partitions() {
            let replicas = self.cluster.replicas_in(&partition.nodes);
            for replica in replicas {
                if let Some(node) = self.nodes.get_mut(replica) {
                    node.load += PLACE;
                }
            }
            self.places.insert(partition.id, replicas.iter().map(|node| (*node, PLACE)).collect());
            self.bytes.entry(partition.id).or_insert(0);
        }
    }

    /// Gives a node this part of its share, as far as one batch goes.
    fn fill(mut self, node: NodeId, part: f64) -> Batch {
        let mut batch = Batch::default();
        let Some(limit) = self.nodes.get(&node).map(|_| mean(&self.nodes) * part) else { return batch };
        let (mut gain, mut spent) = (0.0, BTreeSet::from([node]));
        while batch.placed.len() < self.acts_max() {
            let source = self.nodes.iter().filter(|(id, _)| !spent.contains(id));
            let fullest = source.max_by(|a, b| a.1.utilisation().total_cmp(&b.1.utilisation()));
            let Some(source) = fullest.map(|(id, _)| *id) else { break };
            let held = self.held(source, Excess::Joins);
            let copies = held.iter().flat_map(|one| self.copies(source, one.0, one.1, &[node])).collect();
            // A partition may be more than a quarter of a share, and something it must get.
            let most = if part < 1.0 && batch.placed.is_empty() { f64::INFINITY } else { limit };
            let Some(best) = self.best_within(copies, node, most) else {
                spent.insert(source);
                continue;
            };
            if !batch.takes(&best) {
                self.lose(LostBecause::Later, &best);
                break;
            }
            gain += best.gain;
            self.take(&best);
            batch.placed.push(Placed { partition: best.act.partition(), replicas: best.to });
            if self.nodes[&node].utilisation() >= limit {
                break;
            }
        }
        self.predict(&mut batch, gain);
        batch
    }
}
