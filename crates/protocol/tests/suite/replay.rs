//! Recorded loads, played without a headmaster: what each policy would have done.

use model::balance::Settings;
use model::plan::Rule;
use model::{Cluster, NodeId, PartitionId};
use protocol::rebalance::replay::{NodeLook, Replay, ReplayEvent, ReplayLook};
use protocol::report::{LoadReport, PartitionLoad, WorkDone};

use crate::planner::cluster;

/// What a node of so much work said: it answers as many gets a second of each partition whose list it heads.
fn said(cluster: &Cluster, node: NodeId, second: u64, gets: u64) -> NodeLook {
    let headed = cluster.ring.partitions().iter().filter(|one| one.nodes[0] == node);
    let told = |one: &model::Partition| PartitionLoad {
        partition: one.id,
        work: WorkDone { gets: gets * second, ..WorkDone::default() },
        bytes: 1 << 20,
        middle: None,
    };
    let partitions: Vec<PartitionLoad> = headed.map(told).collect();
    let load = LoadReport {
        uptime_ms: second * 1000,
        ran_us: Some(partitions.iter().map(|told| told.work.gets).sum::<u64>() * 100),
        waited_us: Some(0),
        workers: 1,
        processors: 1.0,
        partitions,
        ..LoadReport::default()
    };
    NodeLook { node, incarnation: 1, load: Some(load), error: None }
}

/// Three nodes, of which the first has four times as much to do, and a fourth without partitions.
fn lopsided() -> Cluster {
    cluster(24, &["a"; 4], 3, 1)
}

fn looks(cluster: &Cluster, seconds: u64) -> Vec<ReplayLook> {
    let gets = |node: &model::Node| if node.id == NodeId(1) { 1150 } else { 250 };
    let look = |second: u64| ReplayLook {
        after_ms: second * 1000,
        document: None,
        nodes: cluster.nodes.iter().map(|node| said(cluster, node.id, second, gets(node))).collect(),
    };
    (0..seconds).step_by(2).map(look).collect()
}

fn played(rule: Rule, looks: &[ReplayLook]) -> Replay {
    let settings = Settings { policy: rule, ..Settings::default() };
    let mut replay = Replay::new(lopsided(), settings, 1_000_000);
    looks.iter().for_each(|look| replay.look(look));
    replay
}

#[test]
fn each_policy_acts_on_the_same_trace_in_its_own_way() {
    let looks = looks(&lopsided(), 1800);
    let even = played(Rule::Even, &looks).summary;
    assert!((1..=6).contains(&even.plans) && even.returns == 0, "{even:?}");
    assert!(even.largest_over_mean_before > 1500 && even.largest_over_mean_after <= 1300, "{even:?}");
    assert_eq!(even.bytes, even.copies << 20);
    let thresholds = played(Rule::Thresholds, &looks).summary;
    assert!(thresholds.plans >= 1 && thresholds.copies == thresholds.plans, "{thresholds:?}");
    assert!(thresholds.largest_over_mean_after < thresholds.largest_over_mean_before, "{thresholds:?}");
    let greedy = played(Rule::Greedy, &looks).summary;
    assert!(greedy.plans > 20 && greedy.returns > 0, "{greedy:?}");
    let plain = played(Rule::NoReordering, &looks).summary;
    assert_eq!((plain.reorders, plain.copies), (0, even.copies));
}

#[test]
fn the_same_trace_tells_the_same_twice_and_its_decisions_name_the_policy() {
    let looks = looks(&lopsided(), 400);
    let (one, other) = (played(Rule::Thresholds, &looks), played(Rule::Thresholds, &looks));
    assert_eq!(one.events, other.events);
    let acts = one.events.iter().find_map(|event| match event {
        ReplayEvent::Acts { decision, .. } => Some(decision),
        _ => None,
    });
    assert_eq!(acts.map(|decision| (decision.policy, decision.node)), Some((Rule::Thresholds, NodeId(1))));
}

#[test]
fn a_silent_node_and_one_that_began_anew_make_no_work_up() {
    let mut looks = looks(&lopsided(), 400);
    for look in &mut looks[20..40] {
        look.nodes[2] =
            NodeLook { node: NodeId(3), incarnation: 0, load: None, error: Some("timed out".to_owned()) };
    }
    let replay = played(Rule::Even, &looks);
    let told = format!("{:?}", replay.events);
    assert!(told.contains("NodeSilent"), "{told}");
    assert!(replay.summary.largest_over_mean_after < 4000, "{:?}", replay.summary);
    for look in &mut looks[30..] {
        look.nodes[0].incarnation = 2;
        let load = look.nodes[0].load.as_mut().unwrap();
        load.uptime_ms -= 60_000;
        load.ran_us = load.ran_us.map(|us| us / 2);
        load.partitions.iter_mut().for_each(|told| told.work.gets /= 2);
    }
    assert!(played(Rule::Even, &looks).summary.looks == 200);
}

#[test]
fn other_partitions_in_the_trace_are_followed_and_another_order_is_not() {
    let mut looks = looks(&lopsided(), 200);
    let mut reordered = lopsided();
    reordered.generation.0 += 1;
    looks[50].document = Some(reordered);
    assert!(
        !played(Rule::Even, &looks).events.iter().any(|event| matches!(event, ReplayEvent::Follows { .. }))
    );
    looks[60].document = Some(cluster(12, &["a"; 4], 3, 1));
    let replay = played(Rule::Even, &looks);
    assert!(replay.events.contains(&ReplayEvent::Follows { after_ms: 120_000 }), "{:?}", replay.events);
    assert!(lopsided().ring.get(PartitionId(0)).is_some());
}
