//! What a headmaster decides, observation by observation.
//!
//! A stage holds the documents and plays the nodes: they have done all that the document asks of them, unless they are
//! silent. Each line is a decision, and what it writes is written.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use expect_test::expect;
use model::balance::{Join, Mode, Policy, Settings, Verdict};
use model::order::{Given, Order, OrderDocument, OrderOutcome};
use model::plan::{Consent, PlanDocument, PlanState, Planned, Size, Wish};
use model::routing::replicas_before;
use model::{Cluster, Moment, Node, NodeId, Role, Store, StoreName, WallMillis, Zone};
use protocol::headmaster::{
    Again, Ask, Decision, Headmaster, HeadmasterAction, Kept, Observation, Registered, Said, Silence,
};
use protocol::rebalance::entering::takes_part;
use protocol::report::LoadReport;
use protocol::report::{Entered, NodeFacts};

use crate::planner::cluster;

/// Documents, nodes, and a headmaster.
pub(super) struct Stage {
    pub(super) now: Moment,
    pub(super) cluster: Cluster,
    pub(super) registered: Vec<Node>,
    /// Up to which form they understand documents.
    pub(super) reads_form: u32,
    pub(super) orders: Vec<OrderDocument>,
    pub(super) plans: Vec<(PlanDocument, Option<PlanState>)>,
    pub(super) silent: BTreeSet<NodeId>,
    /// When nodes were heard last by all others, where that is played; without, who is not registered is silent for long.
    pub(super) heard: Option<BTreeMap<NodeId, Moment>>,
    /// Nodes that others hear though they are not registered and do not answer the headmaster.
    pub(super) audible: BTreeSet<NodeId>,
    /// Whether nobody hears anybody.
    pub(super) apart: bool,
    /// Nodes whose processes are stopped: something listens at their addresses.
    pub(super) stopped: BTreeSet<NodeId>,
    /// A newer generation than the service holds, by which nodes go.
    adopted: Option<u64>,
    pub(super) machine: Headmaster,
    ask: Ask,
    pub(super) policy: Policy,
    /// What the autopilot said last.
    pub(super) verdict: Option<Verdict>,
    /// What nodes say of their loads.
    pub(super) loads: fn(&Stage, NodeId) -> Option<LoadReport>,
    /// What nodes hold, and how many records of that are not their own; nothing where that is not played.
    held: BTreeMap<NodeId, (Size, u64)>,
}

fn node(id: u32) -> Node {
    Node::new(NodeId(id), Zone("a".to_owned()), format!("h{id}:1"), None)
}

impl Stage {
    fn new(admits: bool) -> Stage {
        Stage::of(cluster(4, &["a"; 3], 3, 2), admits)
    }

    /// On which the autopilot is off.
    pub(super) fn of(cluster: Cluster, admits: bool) -> Stage {
        let join = if admits { Join::Auto } else { Join::Ordered };
        Stage {
            now: Moment::default(),
            registered: cluster.nodes.clone(),
            reads_form: model::cluster::FORM_MAX,
            cluster,
            orders: Vec::new(),
            plans: Vec::new(),
            silent: BTreeSet::new(),
            heard: None,
            audible: BTreeSet::new(),
            apart: false,
            stopped: BTreeSet::new(),
            adopted: None,
            machine: Headmaster::new(1 << 20),
            ask: Ask::default(),
            policy: Policy {
                mode: Mode::Off,
                settings: Settings { join, ..Settings::default() },
                ..Policy::founded(0)
            },
            verdict: None,
            loads: |_, _| None,
            held: BTreeMap::new(),
        }
    }

    pub(super) fn order(&mut self, order: Order) {
        let by = "operator".to_owned();
        self.orders.push(OrderDocument { order, by, given_ms: 0, answer: None });
    }

    fn said(&self, node: NodeId) -> Result<Said, String> {
        if self.silent.contains(&node) {
            return Err("away".to_owned());
        }
        let generation = self.adopted.map_or(self.cluster.generation, model::Generation);
        let adopted = Some((1, generation));
        let mut facts = NodeFacts { incarnation: Some(1), adopted, ..NodeFacts::default() };
        for partition in self.cluster.ring.partitions() {
            let parts = self.cluster.stores.iter().filter(|store| takes_part(store, partition, node));
            let merged: BTreeMap<StoreName, BTreeSet<NodeId>> = parts
                .map(|store| {
                    (store.name.clone(), replicas_before(store, partition).iter().copied().collect())
                })
                .collect();
            if !merged.is_empty() {
                let generation = self.cluster.generation;
                let entered = Entered { incarnation: 1, generation, whole: true, merged };
                facts.entered.insert(partition.id, entered);
            }
        }
        let silent_for = self.cluster.nodes.iter().map(|node| {
            let is_there = self.is_heard(node.id) && !self.apart;
            let heard = self.heard.as_ref().and_then(|heard| heard.get(&node.id));
            let lasts = match (is_there, heard) {
                (true, _) => Duration::ZERO,
                (false, Some(heard)) if !self.is_heard(node.id) => self.now.since(*heard),
                _ => Duration::from_secs(60),
            };
            (node.id, Silence { lasts, heard_before: true })
        });
        let silent_for = silent_for.collect();
        let load = (self.loads)(self, node);
        let (size, leftovers) = self.held.get(&node).copied().unwrap_or_default();
        let size = Some(size);
        Ok(Said { facts, size, leftovers, silent_for, load, incarnation: 1, ..Said::default() })
    }

    fn is_heard(&self, node: NodeId) -> bool {
        self.registered.iter().any(|active| active.id == node) || self.audible.contains(&node)
    }

    /// Writes down who is heard now.
    pub(super) fn listen(&mut self) {
        let there: Vec<NodeId> =
            self.cluster.nodes.iter().map(|node| node.id).filter(|id| self.is_heard(*id)).collect();
        let now = self.now;
        if let Some(heard) = &mut self.heard {
            heard.extend(there.into_iter().map(|node| (node, now)));
        }
    }

    fn observation(&mut self) -> Observation {
        self.listen();
        let asked = std::mem::take(&mut self.ask);
        let signs_of = asked.signs_of;
        let open = self.orders.iter().zip(1..).find(|(document, _)| document.answer.is_none());
        let kept = |((plan, state), number): (&(PlanDocument, Option<PlanState>), u64)| {
            (number, Kept::of(Planned { number, plan: plan.clone(), state: state.clone() }))
        };
        let registered = self.registered.iter().map(|node| Registered {
            node: node.clone(),
            incarnation: 1,
            is_member: self.cluster.node(node.id).is_some() || self.adopted.is_some(),
            reads_form: self.reads_form,
        });
        Observation {
            now: self.now,
            wall: WallMillis(self.now.nanos / 1_000_000),
            cluster: self.cluster.clone(),
            registered: registered.collect(),
            remembered: BTreeMap::new(),
            order: open.map(|(document, number)| Given { number, document: document.clone() }),
            plans: self.plans.iter().zip(1..).map(kept).collect(),
            said: asked.nodes.iter().map(|node| (*node, self.said(*node))).collect(),
            asked,
            policy: Some(self.policy.clone()),
            policy_unread: None,
            listens: signs_of.is_some_and(|node| self.stopped.contains(&node)),
        }
    }

    /// Decisions until nothing is due, or `most` of them.
    pub(super) fn play(&mut self, most: usize) -> String {
        let mut text = String::new();
        for _ in 0..most {
            let seen = self.observation();
            let Decision { actions, again, ask, restored } = self.machine.decide(&seen);
            if let Some((node, generation)) = restored {
                writeln!(text, "{node} follows generation {}", generation.0).unwrap();
            }
            let asks_first = actions.is_empty() && again == Again::Now;
            for action in actions {
                self.write(action, &mut text);
            }
            if asks_first {
                let nodes: Vec<String> = ask.nodes.iter().map(NodeId::to_string).collect();
                let sizes = if ask.sizes { " for their sizes" } else { "" };
                let signs = ask.signs_of.map_or_else(String::new, |node| format!(" for signs of {node}"));
                writeln!(text, "ask {}{sizes}{signs}", nodes.join(" ")).unwrap();
            }
            self.ask = ask;
            match again {
                Again::Now => {}
                Again::Paced(pause) => {
                    writeln!(text, "wait {} ms to publish", pause.as_millis()).unwrap();
                    self.now = self.now.after(pause);
                }
                Again::After(pause) => {
                    writeln!(text, "look again in {} ms", pause.as_millis()).unwrap();
                    self.now = self.now.after(pause);
                    return text;
                }
                Again::WhenWoken(_) => {
                    text.push_str("rest\n");
                    return text;
                }
            }
        }
        text
    }

    fn write(&mut self, action: HeadmasterAction, text: &mut String) {
        match action {
            HeadmasterAction::Publish(cluster) => {
                let nodes = cluster.nodes.iter().map(|node| match node.role {
                    Role::Serving => node.id.to_string(),
                    role => format!("{} ({role:?}{})", node.id, if node.gone { ", gone" } else { "" }),
                });
                let nodes: Vec<String> = nodes.collect();
                let moving = cluster.ring.partitions().iter().filter_map(|one| one.step());
                let steps: BTreeSet<String> = moving.map(|step| step.to_string()).collect();
                let order =
                    cluster.ordered.map_or_else(String::new, |ordered| format!(", order {}", ordered.order));
                let steps: Vec<String> = steps.into_iter().collect();
                let steps = if steps.is_empty() { "settled".to_owned() } else { steps.join(" ") };
                writeln!(text, "publish {}: {}, {steps}{order}", cluster.generation.0, nodes.join(" "))
                    .unwrap();
                self.cluster = *cluster;
            }
            HeadmasterAction::CreatePlan { number, plan } => {
                assert_eq!(number, self.plans.len() as u64 + 1);
                writeln!(text, "create plan {number}: {} partitions", plan.change.partitions()).unwrap();
                self.plans.push((*plan, None));
            }
            HeadmasterAction::Note { plan, state } => {
                let (phase, settled) = (state.phase.word(), state.progress.settled);
                writeln!(text, "note plan {plan}: {phase}, {settled} settled").unwrap();
                self.plans[plan as usize - 1].1 = Some(*state);
            }
            HeadmasterAction::SetPolicy(policy) => {
                writeln!(text, "policy {}", policy.mode.word()).unwrap();
                self.policy = *policy;
            }
            HeadmasterAction::Tell(verdict) => self.verdict = Some(*verdict),
            HeadmasterAction::Answer { order, answer } => {
                match &answer {
                    OrderOutcome::Done { done, plan, .. } => {
                        let plan = plan.map_or_else(String::new, |plan| format!(", plan {plan}"));
                        writeln!(text, "answer {order}: {done:?}{plan}").unwrap();
                    }
                    OrderOutcome::Refused { refusal, .. } => {
                        writeln!(text, "answer {order}: refused, {}", refusal.code()).unwrap();
                    }
                }
                self.orders[order as usize - 1].answer = Some(answer);
            }
        }
    }
}

fn drain(id: u32) -> Order {
    Order::Drain { node: NodeId(id), consent: Consent::default() }
}

#[test]
fn a_node_that_registers_is_named_and_an_order_for_it_is_answered_by_the_document() {
    let mut stage = Stage::new(false);
    stage.registered.push(node(4));
    expect![[r#"
        ask n1 n2 n3
        rest
    "#]]
    .assert_eq(&stage.play(9));
    stage.order(Order::Admit { node: NodeId(4) });
    stage.order(Order::Admit { node: NodeId(4) });
    stage.order(Order::Admit { node: NodeId(5) });
    expect![[r#"
        publish 2: n1 n2 n3 n4, settled, order 1
        answer 1: NodeAdmitted { node: NodeId(4) }
        answer 2: NodeIsMember { node: NodeId(4) }
        answer 3: refused, node-not-registered
        rest
    "#]]
    .assert_eq(&stage.play(20));
}

#[test]
fn a_plan_is_created_applied_and_carried_out_step_by_step() {
    let mut stage = Stage::new(true);
    stage.registered.push(node(4));
    stage.order(Order::Create { wish: Wish::Spread, consent: Consent::default() });
    stage.order(Order::Apply { plan: 1 });
    expect![[r#"
        ask n1 n2 n3
        answer 1: NothingToMove
        answer 2: refused, plan-unknown
        publish 2: n1 n2 n3 n4, settled
    "#]]
    .assert_eq(&stage.play(4));
    stage.order(Order::Create { wish: Wish::Spread, consent: Consent::default() });
    stage.order(Order::Apply { plan: 1 });
    expect![[r#"
        ask n1 n2 n3 n4 for their sizes
        create plan 1: 4 partitions
        answer 3: PlanCreated, plan 1
        ask n4
        note plan 1: applying, 0 settled
        answer 4: PlanBegun { moves: 4, cuts: 0, joins: false, numbers: None }, plan 1
        wait 500 ms to publish
        publish 3: n1 n2 n3 n4, copying
        note plan 1: applying, 2 settled
        ask n1 n2 n3 n4
        wait 500 ms to publish
        publish 4: n1 n2 n3 n4, joint
        note plan 1: applying, 2 settled
        wait 500 ms to publish
        publish 5: n1 n2 n3 n4, reading-new
        note plan 1: applying, 2 settled
        wait 500 ms to publish
        publish 6: n1 n2 n3 n4, settled
        note plan 1: applying, 4 settled
        note plan 1: done, 4 settled
        rest
    "#]]
    .assert_eq(&stage.play(60));
}

#[test]
fn a_drain_whose_node_falls_silent_waits_and_one_that_enters_nothing_is_not_asked() {
    let mut stage = Stage::new(true);
    stage.registered.push(node(4));
    expect![[r#"
        ask n1 n2 n3
        publish 2: n1 n2 n3 n4, settled
        rest
    "#]]
    .assert_eq(&stage.play(9));
    stage.silent.insert(NodeId(4));
    stage.order(drain(3));
    expect![[r#"
        ask n2 n4
        answer 1: refused, node-deaf
        rest
    "#]]
    .assert_eq(&stage.play(9));
    stage.silent.clear();
    stage.order(drain(3));
    expect![[r#"
        ask n2 n4
        ask n1 n2 n3 n4 for their sizes
        create plan 1: 4 partitions
        note plan 1: applying, 0 settled
        wait 500 ms to publish
        publish 3: n1 n2 n3 (Leaving) n4, settled, order 2
        answer 2: PlanBegun { moves: 4, cuts: 0, joins: false, numbers: None }, plan 1
        wait 500 ms to publish
        publish 4: n1 n2 n3 (Leaving) n4, copying, order 2
        note plan 1: applying, 1 settled
        ask n1 n2 n3 n4
        wait 500 ms to publish
        publish 5: n1 n2 n3 (Leaving) n4, joint, order 2
        note plan 1: applying, 1 settled
        wait 500 ms to publish
        publish 6: n1 n2 n3 (Leaving) n4, reading-new, order 2
        note plan 1: applying, 1 settled
        wait 500 ms to publish
        publish 7: n1 n2 n3 (Leaving) n4, settled, order 2
        note plan 1: applying, 4 settled
        note plan 1: done, 4 settled
        ask n3
        wait 500 ms to publish
        publish 8: n1 n2 n4, settled, order 2
        rest
    "#]]
    .assert_eq(&stage.play(90));
}

#[test]
fn a_dead_node_is_called_gone_and_its_places_are_taken() {
    let mut stage = Stage::new(true);
    stage.registered.push(node(4));
    stage.play(9);
    stage.registered.retain(|node| node.id != NodeId(3));
    stage.silent.insert(NodeId(3));
    stage.order(Order::Replace { node: NodeId(3), by: NodeId(4), consent: Consent::default() });
    expect![[r#"
        ask n1 n2 n4 for signs of n3
        wait 500 ms to publish
        publish 3: n1 n2 n3 (Leaving, gone) n4, settled, order 1
        ask n1 n2 n3 n4 for their sizes
        create plan 1: 4 partitions
        note plan 1: applying, 0 settled
        answer 1: PlanBegun { moves: 4, cuts: 0, joins: false, numbers: None }, plan 1
        wait 500 ms to publish
        publish 4: n1 n2 n3 (Leaving, gone) n4, copying, order 1
        note plan 1: applying, 1 settled
        ask n1 n2 n3 n4
        wait 500 ms to publish
        publish 5: n1 n2 n3 (Leaving, gone) n4, joint, order 1
        note plan 1: applying, 1 settled
        wait 500 ms to publish
        publish 6: n1 n2 n3 (Leaving, gone) n4, reading-new, order 1
        note plan 1: applying, 1 settled
        wait 500 ms to publish
        publish 7: n1 n2 n3 (Leaving, gone) n4, settled, order 1
        note plan 1: applying, 4 settled
        note plan 1: done, 4 settled
        ask n3
        wait 500 ms to publish
        publish 8: n1 n2 n4, settled, order 1
        rest
    "#]]
    .assert_eq(&stage.play(90));
}

#[test]
fn nothing_is_published_while_a_node_follows_a_newer_document() {
    let mut stage = Stage::new(true);
    stage.play(9);
    stage.registered.push(node(4));
    stage.adopted = Some(9);
    stage.order(Order::Weigh { node: NodeId(1), weight: model::Weight::default() });
    stage.play(9);
    stage.ask.nodes = (1..=3).map(NodeId).collect();
    expect![[r#"
        look again in 500 ms
    "#]]
    .assert_eq(&stage.play(9));
    stage.now = stage.now.after(Duration::from_secs(11));
    expect![[r#"
        n3 follows generation 9
        look again in 500 ms
    "#]]
    .assert_eq(&stage.play(9));
}

/// A node that joined after the backup was taken registered, and was named again in a document that is older than what it
/// follows.
#[test]
fn a_member_of_a_newer_document_is_not_taken_for_a_new_node() {
    let mut stage = Stage::new(true);
    stage.adopted = Some(9);
    stage.silent.extend((1..=3).map(NodeId));
    stage.registered.push(node(4));
    expect![[r#"
        ask n1 n2 n3
        rest
    "#]]
    .assert_eq(&stage.play(9));
}

/// Its document was refused by the service, and tried again each second, before all other orders.
#[test]
fn an_order_whose_document_is_too_large_is_refused_and_the_next_one_is_carried_out() {
    let mut stage = Stage::new(true);
    let document_bytes_max = stage.cluster.document_bytes() + 100;
    stage.machine = Headmaster::new(document_bytes_max);
    let name = StoreName::new("orders").unwrap();
    let store = Store { name, ..stage.cluster.stores[0].clone() };
    stage.order(Order::CreateStore { store: Box::new(store) });
    stage.order(Order::Weigh { node: NodeId(1), weight: model::Weight::new(200).unwrap() });
    expect![[r#"
        ask n1 n2 n3
        answer 1: refused, too-large
        publish 2: n1 n2 n3, settled, order 2
        answer 2: NodeWeighs { node: NodeId(1), weight: Weight(200) }
        rest
    "#]]
    .assert_eq(&stage.play(9));
}

/// A node that runs an earlier program would look for keys where they are not.
#[test]
fn a_store_with_windows_is_not_created_while_a_node_understands_no_such_document() {
    let mut stage = Stage::new(true);
    stage.reads_form = model::cluster::FORM_CLOSED;
    let key = model::KeyPattern::new("feed:{sequence}").unwrap();
    let buckets = stage.cluster.buckets;
    let windows = model::Windows { theta: 64, key, buckets, unknown: model::Unknown::default() };
    let name = StoreName::new("feeds").unwrap();
    let placement = model::Placement::Windows(windows);
    let store = Store { name, placement, ..stage.cluster.stores[0].clone() };
    stage.order(Order::create_store(store.clone()));
    expect![[r#"
        ask n1 n2 n3
        answer 1: refused, node-too-old
        rest
    "#]]
    .assert_eq(&stage.play(9));
    stage.reads_form = model::cluster::FORM_MAX;
    stage.order(Order::create_store(store));
    expect![[r#"
        publish 2: n1 n2 n3, settled, order 2
        answer 2: StoreCreated { store: StoreName("feeds") }
        rest
    "#]]
    .assert_eq(&stage.play(9));
}

/// The command said that nothing was changed.
#[test]
fn a_replacement_that_is_refused_half_way_leaves_the_node_gone() {
    let mut stage = Stage::new(true);
    stage.registered.push(node(4));
    stage.play(9);
    stage.registered.retain(|node| node.id != NodeId(3));
    stage.silent.insert(NodeId(3));
    stage.order(Order::Replace { node: NodeId(3), by: NodeId(4), consent: Consent::default() });
    expect![[r#"
        ask n1 n2 n4 for signs of n3
        wait 500 ms to publish
        publish 3: n1 n2 n3 (Leaving, gone) n4, settled, order 1
    "#]]
    .assert_eq(&stage.play(3));
    stage.silent.insert(NodeId(4));
    expect![[r#"
        answer 1: refused, node-deaf
        rest
    "#]]
    .assert_eq(&stage.play(9));
}

/// A drain was estimated at half as much again, since the heir still held what an aborted one had brought it.
#[test]
fn what_an_aborted_plan_left_over_is_no_part_of_an_estimate() {
    let estimate = |records, leftovers| {
        let mut stage = Stage::of(cluster(4, &["a"; 2], 2, 1), true);
        let size = |records| Size { records, bytes: 10 * records };
        stage.held = [(NodeId(1), (size(records), leftovers)), (NodeId(2), (size(1000), 0))].into();
        let wish = Wish::Drain { nodes: vec![NodeId(2)] };
        stage.order(Order::Create { wish, consent: Consent::default() });
        stage.play(9);
        stage.plans[0].0.estimate.unwrap()
    };
    let all = Size { records: 1000, bytes: 10_000 };
    assert_eq!(estimate(1000, 0), all);
    assert_eq!(estimate(2000, 1000), all);
    // A node tells of one record at least, where it has something to drop.
    assert_eq!(estimate(0, 1), Size { records: 500, bytes: 5_000 });
}
