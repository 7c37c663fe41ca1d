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

use model::balance::{Says, Settings};
use model::plan::{Excess, Rule};
use model::{Cluster, Moment, NodeId, PartitionId, Role};

use super::{BalanceFinding, Loads, NodeLoad, Samples, search};

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
) -> Result<Option<BalanceFinding>, Says> {
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
pub fn find(cluster: &Cluster, loads: &Loads<'_>, settings: &Settings, seed: u64) -> BalanceFinding {
    let share = |percent: u32| f64::from(percent) / 100.0;
    let struggling: Vec<NodeId> = loads
        .nodes
        .iter()
        .filter(|(_, node)| node.total_share() > share(STRUGGLING))
        .map(|(id, _)| *id)
        .collect();
    let mut dice = seed;
    let Some(from) = draw(&struggling, &mut dice) else {
        return BalanceFinding::nothing(loads, Says::Balanced);
    };
    let calm = loads.nodes.iter().filter(|(_, node)| node.total_share() < share(CALM));
    let by =
        |a: &(&NodeId, &NodeLoad), b: &(&NodeId, &NodeLoad)| a.1.total_share().total_cmp(&b.1.total_share());
    let Some((&to, _)) = calm.min_by(by) else {
        return BalanceFinding::nothing(loads, Says::AllFull);
    };
    let bytes = loads.costs(cluster).bytes;
    let fits = |partition: &PartitionId| {
        let coming = bytes.get(partition).copied().unwrap_or(0);
        let disk = loads.nodes[&to].disk;
        disk.is_none_or(|(used, total)| (used + coming) as f64 <= total as f64 * share(settings.disk_full))
    };
    let may = may_give(cluster, from, to).into_iter().filter(fits).collect::<Vec<_>>();
    let Some(partition) = draw(&may, &mut dice) else {
        return BalanceFinding::nothing(loads, Says::NothingHelps { node: from, dearest: None });
    };
    let batch = search::give(cluster, loads, settings, (partition, from, to));
    BalanceFinding::of(loads, Rule::Thresholds, (from, Excess::Most), batch)
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
        let after: Vec<NodeId> = replicas.iter().map(|node| if *node == from { to } else { *node }).collect();
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

#[cfg(test)]
mod tests {
    use model::{Consistency, Node, Ring, Store, StoreName, Zone};

    use super::super::BalanceOutcome;
    use super::*;
    use crate::report::{LoadReport, PartitionLoad, WorkDone};

    /// Four nodes in as many zones, of which the last holds nothing; twelve partitions with one replica.
    fn cluster(generation: u64) -> Cluster {
        let node = |id: u32| Node::new(NodeId(id), Zone(format!("z{id}")), format!("127.0.0.1:{id}"), None);
        let nodes: Vec<Node> = (1..=4).map(node).collect();
        let holders: Vec<_> = nodes[..3].iter().map(|node| (node.id, node.zone.clone())).collect();
        let numbers = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        let store = Store::new(StoreName::new("default").unwrap(), numbers).unwrap();
        let mut cluster = Cluster::new("t", nodes, Ring::equal_slices(12, &holders), vec![store]);
        cluster.generation.0 = generation;
        cluster
    }

    /// Samples of this many seconds, in which nodes use these shares of one processor, a part of it beside partitions.
    fn samples(cluster: &Cluster, seconds: u64, shares: [f64; 4], beside: f64) -> (Samples, Moment) {
        let mut samples = Samples::default();
        let mut now = Moment { nanos: 0 };
        for second in (0..=seconds).step_by(2) {
            now = Moment { nanos: second * 1_000_000_000 };
            for (node, share) in cluster.nodes.iter().zip(shares) {
                let held = cluster.ring.partitions().iter().filter(|one| one.nodes[0] == node.id);
                let gets = (share * (1.0 - beside) * second as f64 * 1e4 / 4.0) as u64;
                let told = |one: &model::Partition| PartitionLoad {
                    partition: one.id,
                    work: WorkDone { gets, ..WorkDone::default() },
                    bytes: 1 << 20,
                    middle: None,
                };
                let report = LoadReport {
                    uptime_ms: second * 1000,
                    ran_us: Some((share * second as f64 * 1e6) as u64),
                    waited_us: Some(0),
                    workers: 1,
                    processors: 1.0,
                    coordinated_gets: (share * beside * second as f64 * 1e4 * 1.9 / 4.5) as u64,
                    disk_available_bytes: Some(50 << 20),
                    disk_total_bytes: Some(100 << 20),
                    partitions: held.map(told).collect(),
                    ..LoadReport::default()
                };
                samples.hear(node.id, now, 1, Ok(&report));
            }
        }
        (samples, now)
    }

    fn found(generation: u64, shares: [f64; 4], beside: f64, settings: &Settings) -> BalanceOutcome {
        let cluster = cluster(generation);
        let (mut samples, now) = samples(&cluster, 50, shares, beside);
        look(&cluster, &mut samples, settings, now).unwrap().unwrap().outcome
    }

    /// Which node gives which partition to which, and what is said otherwise.
    fn acts(generation: u64, shares: [f64; 4]) -> Result<(NodeId, PartitionId, NodeId), Says> {
        match found(generation, shares, 0.0, &Settings::default()) {
            BalanceOutcome::Nothing(says) => Err(says),
            BalanceOutcome::Cut { .. } => panic!("thresholds cut nothing"),
            BalanceOutcome::Act { placed, decision } => {
                assert_eq!((placed.len(), decision.policy, decision.acts), (1, Rule::Thresholds, 1));
                Ok((decision.node, placed[0].partition, placed[0].replicas[0]))
            }
        }
    }

    #[test]
    fn a_struggling_node_gives_one_partition_to_the_calmest() {
        let (from, partition, to) = acts(1, [0.9, 0.6, 0.5, 0.1]).unwrap();
        assert_eq!((from, to), (NodeId(1), NodeId(4)));
        assert_eq!(cluster(1).ring.get(partition).unwrap().nodes[0], NodeId(1));
        assert_eq!(acts(1, [0.83, 0.6, 0.5, 0.1]), Err(Says::Balanced));
        assert_eq!(acts(1, [0.9, 0.72, 0.75, 0.8]), Err(Says::AllFull));
        assert!(acts(1, [0.9, 0.72, 0.75, 0.68]).is_ok());
    }

    #[test]
    fn dice_draw_partition_and_node_and_the_same_document_the_same() {
        let drawn = |generations: std::ops::Range<u64>| -> BTreeSet<(NodeId, PartitionId)> {
            let acts = generations.map(|generation| acts(generation, [0.95, 0.9, 0.5, 0.1]).unwrap());
            acts.map(|(from, partition, _)| (from, partition)).collect()
        };
        assert_eq!(drawn(3..4), drawn(3..4));
        let all = drawn(0..40);
        assert!(
            all.iter().any(|(from, _)| *from == NodeId(1)) && all.iter().any(|(from, _)| *from == NodeId(2))
        );
        assert!(all.len() >= 6, "{all:?}");
    }

    #[test]
    fn what_belongs_to_no_partition_counts_for_this_rule() {
        let outcome = found(1, [0.95, 0.3, 0.3, 0.3], 0.6, &Settings::default());
        assert!(matches!(outcome, BalanceOutcome::Act { .. }), "{outcome:?}");
    }

    #[test]
    fn it_looks_every_30_s_at_50_s_and_fills_no_disk() {
        let (cluster, settings) = (cluster(1), Settings::default());
        let shares = [0.9, 0.5, 0.5, 0.1];
        let (mut short, now) = samples(&cluster, 40, shares, 0.0);
        assert!(matches!(look(&cluster, &mut short, &settings, now), Err(Says::Gathers { .. })));
        let (mut samples, now) = samples(&cluster, 50, shares, 0.0);
        let acts = |samples: &mut Samples, now| look(&cluster, samples, &settings, now).unwrap().is_some();
        assert!(acts(&mut samples, now));
        // The same look, once more figures are there.
        assert!(acts(&mut samples, now.after(Duration::from_millis(500))));
        assert!(!acts(&mut samples, now.after(Duration::from_secs(6))));
        let full = Settings { disk_full: 50, ..settings.clone() };
        let outcome = found(1, shares, 0.0, &full);
        assert_eq!(outcome, BalanceOutcome::Nothing(Says::NothingHelps { node: NodeId(1), dearest: None }));
    }

    #[test]
    fn a_partition_keeps_its_zones_and_goes_to_no_node_that_holds_it() {
        let mut cluster = cluster(1);
        let held =
            |node: u32| cluster.ring.partitions().iter().filter(move |one| one.nodes[0] == NodeId(node));
        let held: Vec<PartitionId> = held(1).map(|one| one.id).collect();
        assert_eq!(may_give(&cluster, NodeId(1), NodeId(4)), held);
        assert!(may_give(&cluster, NodeId(4), NodeId(1)).is_empty());
        cluster.nodes[3].role = Role::Leaving;
        assert!(may_give(&cluster, NodeId(1), NodeId(4)).is_empty());
        let found = found(1, [0.9, 0.5, 0.5, 0.1], 0.0, &Settings::default());
        let BalanceOutcome::Act { decision, .. } = found else { panic!("{found:?}") };
        assert!(decision.predicted.largest < decision.largest && decision.predicted.bytes == 1 << 20);
    }
}
