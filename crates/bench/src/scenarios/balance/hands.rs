//! What an operator does while the cluster is under load: lets the autopilot act, or moves partitions.
//!
//! By hand it is the rule of the thesis: as long as a node is above its threshold and another one below, one partition goes
//! from the fullest to the calmest.

use model::{Cluster, NodeId, PartitionId};

use super::super::ScenarioError;
use super::super::operator::Operator;
use super::Moves;
use super::watch::WatchStage;

/// A node above this gives, and one below takes: the share that it uses of what it may.
const STRUGGLING: f64 = 0.85;
/// Seconds between two looks of an operator.
const LOOK_S: f64 = 5.0;
/// Seconds after a move before the next look: what is seen shall be later than the move.
const SETTLE_S: f64 = 10.0;

/// Before the load: who may move something later looks already, by these settings.
pub(super) fn prepare(operator: &Operator, moves: Moves, settings: &[String]) -> Result<(), ScenarioError> {
    if !settings.is_empty() {
        let settings = settings.iter().map(String::as_str);
        operator.run(&["balance", "set"].into_iter().chain(settings).collect::<Vec<_>>())?;
    }
    match moves {
        Moves::Even => {
            operator.run(&["balance", "observe"])?;
        }
        Moves::Thresholds => {
            operator.run(&["balance", "set", "policy=thresholds"])?;
            operator.run(&["balance", "observe"])?;
        }
        Moves::ByHand | Moves::Off => {
            operator.run(&["balance", "off"])?;
        }
    }
    Ok(())
}

/// Under load: something may move from now on.
pub(super) fn conduct(operator: &Operator, moves: Moves, stage: &WatchStage) -> Result<(), ScenarioError> {
    match moves {
        Moves::Even | Moves::Thresholds => operator.run(&["balance", "on"]).map(|_| ()),
        Moves::Off => Ok(()),
        Moves::ByHand => by_hand(operator, stage),
    }
}

fn by_hand(operator: &Operator, stage: &WatchStage) -> Result<(), ScenarioError> {
    while stage.wait_until(stage.at() + LOOK_S) {
        let Some((from, to)) = choose(&stage.used()) else { continue };
        let Some(partition) = stage.cluster().and_then(|cluster| first_of(&cluster, from)) else { continue };
        let (from, to) = (from.to_string(), to.to_string());
        let created = operator.run(&[
            "plan",
            "create",
            "move",
            &partition.to_string(),
            "--from",
            &from,
            "--to",
            &to,
        ])?;
        operator.run(&["plan", "apply", &created["plan"].to_string()])?;
        stage.wait_until(stage.at() + SETTLE_S);
    }
    Ok(())
}

/// The node that gives, and the one that takes.
fn choose(used: &[(NodeId, f64)]) -> Option<(NodeId, NodeId)> {
    let fullest = used.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let calmest = used.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    (fullest.1 > STRUGGLING && calmest.1 < STRUGGLING).then_some((fullest.0, calmest.0))
}

/// A partition that a node holds.
fn first_of(cluster: &Cluster, node: NodeId) -> Option<PartitionId> {
    let held = cluster.ring.partitions().iter().find(|partition| partition.nodes.first() == Some(&node));
    held.map(|partition| partition.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_struggling_node_gives_and_only_a_calm_one_takes() {
        let node = |id, used| (NodeId(id), used);
        let used = [node(1, 0.99), node(2, 0.6), node(3, 0.02)];
        assert_eq!(choose(&used), Some((NodeId(1), NodeId(3))));
        assert_eq!(choose(&used[..1]), None, "there is nobody else");
        assert_eq!(choose(&[node(1, 0.84), node(2, 0.1)]), None);
        assert_eq!(choose(&[node(1, 0.99), node(2, 0.86)]), None);
        assert_eq!(choose(&[]), None);
    }
}
