//! The rule of Voldemort's *Headmaster*, from the thesis that this work goes back to: two thresholds, and dice.
//!
//! What its chapter 4.3.3 says, and is so here:
//!
//! - every 30 s it is looked at what nodes used, on average of the last ten samples, which are 5 s apart;
//! - a node that uses more than 84 % is *struggling*, one that uses less than 70 % is *calm*;
//! - one struggling node, drawn at random, gives one partition to the calmest node, if that is calm.
//!
//! What a node uses is all that its workers do, because the thesis looks at processors and not at partitions. So it also
//! counts what no move changes. The thesis has a second strategy, by which each struggling node gives one: it is not here.
//!
//! Where the thesis is silent, or our ground is another:
//!
//! - *Which partition* it does not say. It is drawn from all whose replica the node holds, whatever they cost.
//! - *More than one replica*: each place in a list may be given. The thesis gives first places, which is all at N=1.
//! - *Samples*: ours come every 2 s, and the average is over the same 50 s. What a node can carry bounds it, not its cores.
//! - *After a move* samples begin anew, 30 s later, as with every rule here. The thesis does not say what it keeps.
//! - *Rest*: there is none. A partition may come back at the next look.
//! - *Disks and zones*: a target above `disk-full` takes nothing, and no partition loses a zone. No plan here may do that.

use std::collections::BTreeSet;
use std::time::Duration;

use model::balance::{Excess, Rule, Says, Settings};
use model::{Cluster, Moment, NodeId, PartitionId, Role};

use super::{Finding, Loads, NodeLoad, Samples, search};

/// A node that uses more percent of what it can carry is struggling.
pub const STRUGGLING: u32 = 84;
/// A node that uses fewer percent of what it can carry is calm.
pub const CALM: u32 = 70;
/// So often it is looked at nodes.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Ten samples that are 5 s apart.
const SAMPLED: Duration = Duration::from_secs(50);

/// What the rule does now; `None` between its looks.
///
/// # Errors
/// As [`Samples::loads`].
pub(super) fn look(
    cluster: &Cluster,
    samples: &mut Samples,
    settings: &Settings,
    now: Moment,
) -> Result<Option<Finding>, Says> {
    samples.loads_over(cluster, now, &[(SAMPLED, 1.0)])?;
    if !samples.is_due(now, LOOK_EVERY) {
        return Ok(None);
    }
    let windows = samples.loads_over(cluster, now, &[(SAMPLED, 1.0)])?;
    // Each document has its own dice, so that a headmaster that decides again decides the same.
    let seed = cluster.generation.0;
    Ok(windows.first().map(|loads| find(cluster, loads, settings, seed)))
}

/// What should be done about these loads, by dice of this seed.
pub fn find(cluster: &Cluster, loads: &Loads<'_>, settings: &Settings, seed: u64) -> Finding {
    let share = |percent: u32| f64::from(percent) / 100.0;
    let struggling: Vec<NodeId> = loads
        .nodes
        .iter()
        .filter(|(_, node)| node.total_share() > share(STRUGGLING))
        .map(|(id, _)| *id)
        .collect();
    let mut dice = seed;
    let Some(from) = draw(&struggling, &mut dice) else {
        return Finding::nothing(loads, Says::Balanced);
    };
    let calm = loads.nodes.iter().filter(|(_, node)| node.total_share() < share(CALM));
    let by = |a: &(&NodeId, &NodeLoad), b: &(&NodeId, &NodeLoad)| {
        a.1.total_share().total_cmp(&b.1.total_share())
    };
    let Some((&to, _)) = calm.min_by(by) else {
        return Finding::nothing(loads, Says::AllFull);
    };
    let bytes = loads.costs(cluster).bytes;
    let fits = |partition: &PartitionId| {
        let coming = bytes.get(partition).copied().unwrap_or(0);
        let disk = loads.nodes[&to].disk;
        disk.is_none_or(|(used, total)| (used + coming) as f64 <= total as f64 * share(settings.disk_full))
    };
    let may = may_give(cluster, from, to).into_iter().filter(fits).collect::<Vec<_>>();
    let Some(partition) = draw(&may, &mut dice) else {
        return Finding::nothing(loads, Says::NothingHelps { node: from });
    };
    let batch = search::give(cluster, loads, settings, (partition, from, to));
    Finding::of(loads, Rule::Thresholds, (from, Excess::Most), batch)
}

/// Partitions whose replica a node may give to another one.
pub(super) fn may_give(cluster: &Cluster, from: NodeId, to: NodeId) -> Vec<PartitionId> {
    if cluster.node(to).is_none_or(|node| node.role != Role::Serving) {
        return Vec::new();
    }
    let zones = |nodes: &[NodeId]| {
        let zone = |node: &NodeId| cluster.node(*node).map(|entry| &entry.zone);
        nodes.iter().filter_map(zone).collect::<BTreeSet<_>>().len()
    };
    let may = |replicas: &[NodeId]| {
        let after: Vec<NodeId> =
            replicas.iter().map(|node| if *node == from { to } else { *node }).collect();
        replicas.contains(&from) && !replicas.contains(&to) && zones(&after) >= zones(replicas)
    };
    let settled = cluster.ring.partitions().iter().filter(|one| one.coming.is_none());
    settled.filter(|one| may(cluster.replicas_in(&one.nodes))).map(|one| one.id).collect()
}

/// One of these, by the dice (SplitMix64).
fn draw<T: Copy>(of: &[T], dice: &mut u64) -> Option<T> {
    *dice = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *dice;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let at = mixed.checked_rem(of.len() as u64)?;
    of.get(at as usize).copied()
}
