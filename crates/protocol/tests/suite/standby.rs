//! When a standby takes the places of a member that is away, and when it must not. A new node's share.
//!
//! Number 8 of `docs/design/balance.md`: a node is replaced that lives.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use model::balance::{HeldBack, Hours, Join, Mode, Policy, PolicyChange};
use model::order::Order;
use model::plan::{Consent, Excess, Phase, Placed, Wish};
use model::{Consistency, Moment, Node, NodeId, PartitionId, Role};
use protocol::headmaster::Headmaster;

use crate::autopilot::{load, seconds};
use crate::headmaster::Stage;
use crate::planner::cluster;

const DEAD: NodeId = NodeId(3);
const SPARE: NodeId = NodeId(4);

/// Three nodes that hold everything, and a standby. The autopilot is on, and nobody asks for anything.
fn spared() -> Stage {
    let mut named = cluster(8, &["a"; 4], 3, 3);
    // The ring was made for the first three.
    named.nodes.iter_mut().find(|node| node.id == SPARE).unwrap().role = Role::Standby;
    let numbers = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
    named.stores[0].consistency = numbers;
    let mut stage = Stage::of(named, false);
    stage.policy = Policy::founded(0);
    stage.heard = Some(BTreeMap::new());
    stage.loads = |stage, node| Some(load(stage, node, |_| 0.0, 0.0));
    stage
}

fn dies(stage: &mut Stage) {
    stage.listen();
    stage.registered.retain(|node| node.id != DEAD);
    stage.silent.insert(DEAD);
}

fn lives(stage: &mut Stage) {
    let node = stage.cluster.node(DEAD).unwrap().clone();
    stage.registered.push(node);
    stage.silent.remove(&DEAD);
}

fn holds(stage: &Stage, node: NodeId) -> usize {
    let cluster = &stage.cluster;
    let lists = cluster.ring.partitions().iter().map(|one| cluster.replicas_in(one.reading()));
    lists.filter(|list| list.contains(&node)).count()
}

fn held(stage: &Stage) -> Option<HeldBack> {
    stage.verdict.as_ref().unwrap().away.iter().find(|away| away.node == DEAD).unwrap().held.clone()
}

/// Plays this many seconds, and nothing may come of it.
fn nothing_for(stage: &mut Stage, time: u64) {
    assert_eq!(seconds(stage, time), "");
    assert_eq!(holds(stage, SPARE), 0);
}

#[test]
fn a_standby_takes_the_places_of_a_node_that_is_dead_for_a_quarter_of_an_hour() {
    let mut stage = spared();
    nothing_for(&mut stage, 60);
    assert_eq!((holds(&stage, DEAD), holds(&stage, SPARE)), (8, 0));
    dies(&mut stage);
    nothing_for(&mut stage, 460);
    let away = stage.verdict.as_ref().unwrap().away[0].clone();
    assert!(away.announced && away.by == Some(SPARE) && away.held.is_none(), "{away:?}");
    nothing_for(&mut stage, 420);
    let told = seconds(&mut stage, 60);
    assert!(told.starts_with("publish 2: n1 n2 n3 (Leaving, gone) n4, settled\ncreate plan 1: 8"), "{told}");
    assert_eq!((holds(&stage, DEAD), holds(&stage, SPARE)), (0, 8));
    let (plan, state) = stage.plans[0].clone();
    assert_eq!(plan.decision.as_ref().unwrap().exceeds, Excess::Dead);
    assert_eq!(state.as_ref().unwrap().phase, Phase::Done);
    assert!(stage.cluster.node(DEAD).is_none(), "it has left");
    // All that moved just now rests; a new node gets its share all the same.
    let mut fifth = stage.cluster.nodes[0].clone();
    (fifth.id, fifth.native) = (NodeId(5), "h5:1".to_owned());
    stage.registered.push(fifth);
    stage.policy.settings.join = Join::Auto;
    seconds(&mut stage, 600);
    assert_eq!(holds(&stage, NodeId(5)), 6, "of 24 places");
}

/// It was stopped, it restarted, the service or this headmaster was away, its neighbours do not hear each other.
#[test]
fn must_not_8_a_node_that_lives_or_may_live_is_not_replaced() {
    // It was away for less, again and again.
    let mut stage = spared();
    for _ in 0..5 {
        dies(&mut stage);
        nothing_for(&mut stage, 800);
        lives(&mut stage);
        nothing_for(&mut stage, 4);
    }
    // Its process is stopped: its address takes connections.
    dies(&mut stage);
    stage.stopped.insert(DEAD);
    nothing_for(&mut stage, 2000);
    assert!(matches!(held(&stage), Some(HeldBack::Alive { .. })), "{:?}", held(&stage));
    // It is dead from now on, but headmasters follow each other.
    stage.stopped.clear();
    for _ in 0..4 {
        nothing_for(&mut stage, 600);
        stage.machine = Headmaster::new(1 << 20);
    }
    // Or there was none, or one that hung, for a while.
    for _ in 0..4 {
        nothing_for(&mut stage, 600);
        stage.now = stage.now.after(Duration::from_secs(1000));
    }
    // Or members do not hear each other.
    stage.apart = true;
    nothing_for(&mut stage, 1200);
    assert_eq!(held(&stage), Some(HeldBack::NoMajority));
    stage.apart = false;
    // Another one does not say what it hears.
    stage.silent.insert(NodeId(2));
    nothing_for(&mut stage, 1200);
    assert!(matches!(held(&stage), Some(HeldBack::Alive { .. })), "{:?}", held(&stage));
    stage.silent.remove(&NodeId(2));
    let told = seconds(&mut stage, 1200);
    assert!(told.contains("create plan"), "{told}");
}

#[test]
fn a_veto_an_observer_a_weak_store_a_dark_zone_and_a_missing_standby_replace_nothing() {
    let mut stage = spared();
    dies(&mut stage);
    let veto = |node| Order::Balance { change: PolicyChange::Veto { node } };
    seconds(&mut stage, 4);
    stage.order(veto(NodeId(2)));
    stage.order(veto(DEAD));
    let told = seconds(&mut stage, 1200);
    assert!(told.contains("answer 1: refused, veto-needless") && told.contains("answer 2: Policy"), "{told}");
    assert_eq!((holds(&stage, SPARE), held(&stage)), (0, Some(HeldBack::Vetoed)));
    // It is back, and the veto has ended.
    lives(&mut stage);
    seconds(&mut stage, 4);
    assert!(stage.policy.vetoed.is_empty());
    dies(&mut stage);
    stage.policy.mode = Mode::Observe;
    nothing_for(&mut stage, 1200);
    assert_eq!(held(&stage), Some(HeldBack::Observes));
    stage.policy.mode = Mode::On;
    let numbers = stage.cluster.stores[0].consistency;
    stage.cluster.stores[0].consistency.writes_required = 1;
    nothing_for(&mut stage, 1200);
    assert!(matches!(held(&stage), Some(HeldBack::Store { .. })));
    stage.cluster.stores[0].consistency = numbers;
    for id in [2, 3] {
        let node = stage.cluster.nodes.iter_mut().find(|node| node.id == NodeId(id)).unwrap();
        node.zone = model::Zone("b".to_owned());
    }
    let second = stage.registered.iter().position(|node| node.id == NodeId(2)).unwrap();
    let second = stage.registered.remove(second);
    nothing_for(&mut stage, 1200);
    assert!(matches!(held(&stage), Some(HeldBack::Zone { .. })), "{:?}", held(&stage));
    stage.registered.push(second);
    stage.cluster.nodes.iter_mut().find(|node| node.id == SPARE).unwrap().role = Role::Serving;
    stage.policy.mode = Mode::Observe;
    nothing_for(&mut stage, 1200);
    assert_eq!(held(&stage), Some(HeldBack::NoStandby));
}

/// What is true of the nodes of a played history.
struct Truth {
    stage: Stage,
    dice: u64,
    members: Vec<Node>,
    /// Since when nodes have been dead.
    dead: BTreeMap<NodeId, Moment>,
    /// When nodes gave a sign of life last.
    signs: BTreeMap<NodeId, Moment>,
}

impl Truth {
    fn dice(&mut self, below: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.dice >> 33) % below
    }

    /// Who is registered, heard by others, or stopped, lives.
    fn look(&mut self) {
        let stage = &self.stage;
        let lives = |id: &NodeId| {
            let is_there = stage.registered.iter().any(|known| known.id == *id);
            is_there || stage.audible.contains(id) || stage.stopped.contains(id)
        };
        for node in self.members.iter().map(|node| node.id).filter(lives) {
            self.signs.insert(node, stage.now);
        }
    }

    /// Something happens, or nothing.
    fn happen(&mut self) {
        let node = NodeId(1 + self.dice(4) as u32);
        let (event, further) = (self.dice(100), self.dice(200));
        let stage = &mut self.stage;
        let is_there = stage.registered.iter().any(|known| known.id == node);
        match event {
            // Its process is killed, or stopped for long enough to lose its session.
            0..2 if is_there => {
                stage.registered.retain(|known| known.id != node);
                stage.silent.insert(node);
                match further < 70 {
                    true => _ = stage.stopped.insert(node),
                    false => _ = self.dead.insert(node, stage.now),
                }
            }
            2..6 if !is_there && stage.cluster.node(node).is_some_and(|entry| !entry.gone) => {
                let known = self.members.iter().find(|known| known.id == node).unwrap().clone();
                stage.registered.push(known);
                stage.silent.remove(&node);
                stage.stopped.remove(&node);
                stage.audible.remove(&node);
                self.dead.remove(&node);
            }
            // It is away from the service and the headmaster alone, or from all for a moment: its switch is bad.
            11..15 if !is_there && !self.dead.contains_key(&node) => _ = stage.audible.insert(node),
            15..17 => _ = stage.audible.remove(&node),
            // The network is cut, or whole again.
            6 => stage.apart = true,
            7 | 8 => stage.apart = false,
            9 => stage.machine = Headmaster::new(1 << 20),
            // Nobody decides for a while: the service is away, or the headmaster hangs.
            10 => stage.now = stage.now.after(Duration::from_secs(16 + further)),
            _ => {}
        }
    }
}

/// Histories of pauses, partitions, outages and restarts: whoever is called gone was dead for as long as is set. How many
/// were.
fn replaced_in(histories: Range<u64>) -> usize {
    let mut replaced = 0;
    for seed in histories {
        let mut stage = spared();
        stage.policy.settings.replace_after_s = 60;
        let members = stage.cluster.nodes.clone();
        let (dead, signs) = (BTreeMap::new(), BTreeMap::new());
        let mut truth = Truth { stage, dice: seed, members, dead, signs };
        for _ in 0..300 {
            truth.happen();
            truth.look();
            seconds(&mut truth.stage, 4);
            let (now, stage) = (truth.stage.now, &truth.stage);
            let called_gone = truth.members.iter().map(|node| node.id);
            let called_gone = called_gone.filter(|id| stage.cluster.node(*id).is_none_or(|node| node.gone));
            for gone in called_gone {
                let last = truth.signs.get(&gone).copied().unwrap_or_default();
                assert!(now.since(last) >= Duration::from_secs(60), "seed {seed}: {gone} lived just now");
            }
        }
        let is_gone = |node: &&Node| truth.stage.cluster.node(node.id).is_none_or(|node| node.gone);
        replaced += truth.members.iter().filter(is_gone).count();
    }
    replaced
}

#[test]
fn must_not_8_in_no_played_history_a_node_is_replaced_that_lives() {
    let replaced = replaced_in(0..60);
    assert!(replaced > 5, "some are dead for long enough: {replaced}");
}

#[test]
#[ignore = "takes many minutes; cargo test --profile proof -p protocol ten_thousand -- --ignored runs it"]
fn must_not_8_in_none_of_ten_thousand_played_histories_a_node_is_replaced_that_lives() {
    println!("{} were replaced", replaced_in(0..10_000));
}

/// Whoever follows a headmaster that ended in the middle ends what it has begun.
#[test]
fn a_replacement_that_was_begun_is_ended_by_a_successor() {
    let mut stage = spared();
    dies(&mut stage);
    let mut told = String::new();
    let mut turns = 0;
    while !told.contains("publish 2") {
        turns += 1;
        assert!(turns < 20_000, "{:?}", stage.verdict);
        told.push_str(&stage.play(1));
        if told.ends_with("rest\n") {
            stage.now = stage.now.after(Duration::from_secs(2));
        }
    }
    assert!(stage.plans.is_empty());
    // Quiet hours begin just then: what was begun is ended all the same.
    stage.policy.settings.quiet = Some(Hours { from: 0, to: 23 });
    stage.machine = Headmaster::new(1 << 20);
    while stage.plans.is_empty() {
        stage.play(1);
    }
    stage.machine = Headmaster::new(1 << 20);
    let told = seconds(&mut stage, 20);
    assert!(told.contains("note plan 1: applying") && !told.contains("create plan"), "{told}");
    assert_eq!((holds(&stage, DEAD), holds(&stage, SPARE)), (0, 8));
}

/// Two nodes, one replica, and a third one that is admitted by itself, with load on all partitions or on none.
#[test]
fn a_new_node_gets_a_quarter_of_its_share_first_and_then_the_rest_from_the_fullest() {
    for gets in [250.0, 0.0] {
        let mut stage = Stage::of(cluster(32, &["a"; 2], 2, 1), true);
        stage.policy = Policy { settings: stage.policy.settings.clone(), ..Policy::founded(0) };
        stage.loads = match gets > 0.0 {
            true => |stage, node| Some(load(stage, node, |_| 250.0, 0.0)),
            false => |stage, node| Some(load(stage, node, |_| 0.0, 0.0)),
        };
        seconds(&mut stage, 100);
        let mut third = stage.cluster.nodes[0].clone();
        (third.id, third.native) = (NodeId(3), "h3:1".to_owned());
        stage.registered.push(third);
        let told = seconds(&mut stage, 60);
        assert!(told.contains("n1 n2 n3, settled"), "{told}");
        assert!((1..=3).contains(&holds(&stage, NodeId(3))), "{} at first", holds(&stage, NodeId(3)));
        seconds(&mut stage, 1200);
        let each: Vec<usize> = (1..=3).map(|id| holds(&stage, NodeId(id))).collect();
        assert!(each.iter().all(|count| (10..=12).contains(count)), "{each:?} with {gets} gets");
        let moves = stage.plans.iter().flat_map(|(plan, _)| plan.change.moves());
        assert!(moves.into_iter().all(|one| one.to.contains(&NodeId(3))), "nothing moves between the others");
        let exceeds = stage.plans.iter().map(|(plan, _)| plan.decision.as_ref().unwrap().exceeds);
        assert!(exceeds.into_iter().all(|exceeds| exceeds == Excess::Joins));
        let before = stage.plans.len();
        seconds(&mut stage, 4 * 3600);
        assert_eq!(stage.plans.len(), before, "then it rests");
    }
}

/// Plans list a standby as a fallback, and so did none of the tests: it holds nothing all the same.
#[test]
fn a_standby_that_a_plan_lists_as_a_fallback_is_still_one() {
    let mut stage = spared();
    stage.order(Order::Create {
        wish: Wish::Balance {
            placed: vec![Placed {
                partition: PartitionId(0),
                replicas: vec![NodeId(2), NodeId(1), NodeId(3)],
            }],
        },
        consent: Consent::default(),
    });
    stage.order(Order::Apply { plan: 1 });
    seconds(&mut stage, 60);
    assert!(stage.cluster.ring.lists(SPARE) && holds(&stage, SPARE) == 0, "{:?}", stage.cluster.ring);
    dies(&mut stage);
    seconds(&mut stage, 1000);
    assert_eq!((holds(&stage, DEAD), holds(&stage, SPARE)), (0, 8));
}

#[test]
fn an_order_comes_before_a_share() {
    let mut stage = Stage::of(cluster(32, &["a"; 3], 2, 1), false);
    stage.policy = Policy::founded(0);
    stage.loads = |stage, node| Some(load(stage, node, |_| 100.0, 0.0));
    stage.order(Order::Create { wish: Wish::Spread, consent: Consent::default() });
    let told = seconds(&mut stage, 100);
    assert!(told.starts_with("create plan 1") && !told.contains("create plan 2"), "{told}");
}
