//! What a cluster does without any guard: the busiest node gives its dearest partition to the idlest, at each look.
//!
//! It is there to be compared with, in simulation and replay. It asks neither for noise nor for rest, and never ends.

use std::collections::BTreeMap;

use model::balance::{Says, Settings};
use model::plan::{Excess, Rule};
use model::{Cluster, Moment, NodeId, PartitionId};

use super::samples::SHORTEST;
use super::{BalanceFinding, NodeLoad, Samples, search, thresholds};

/// What it does now.
///
/// # Errors
/// As [`Samples::loads`].
pub(super) fn look(
    cluster: &Cluster,
    samples: &Samples,
    settings: &Settings,
    now: Moment,
) -> Result<Option<BalanceFinding>, Says> {
    let windows = samples.loads_over(cluster, now, &[(SHORTEST, 1.0)])?;
    let Some(loads) = windows.first() else { return Ok(None) };
    let by =
        |a: &(&NodeId, &NodeLoad), b: &(&NodeId, &NodeLoad)| a.1.utilisation().total_cmp(&b.1.utilisation());
    let (Some((&from, _)), Some((&to, _))) = (loads.nodes.iter().max_by(by), loads.nodes.iter().min_by(by))
    else {
        return Ok(None);
    };
    let places = loads.costs(cluster).places;
    let work = |partition: &PartitionId| {
        let told = places.get(partition)?.iter().find(|(node, _)| *node == from);
        told.map(|(_, work)| *work)
    };
    let costs: BTreeMap<PartitionId, f64> = thresholds::may_give(cluster, from, to)
        .into_iter()
        .filter_map(|partition| Some((partition, work(&partition)?)))
        .collect();
    let Some((&dearest, _)) = costs.iter().max_by(|a, b| a.1.total_cmp(b.1)) else {
        return Ok(Some(BalanceFinding::nothing(loads, Says::NothingHelps { node: from, dearest: None })));
    };
    let batch = search::give(cluster, loads, settings, (dearest, from, to));
    Ok(Some(BalanceFinding::of(loads, Rule::Greedy, (from, Excess::Mean), batch)))
}
