//! Every order in which two headmasters can see to an order for a plan, one that applies it and one that aborts it.
//!
//! ```text
//!   operator:   create ─▶ apply ─▶ abort, each at any moment, the last one or not
//!   headmaster: observe and decide ─▶ act, one write after another    two of them; either forgets all in between
//!   service:    once in a run a write is refused, or done and not confirmed; the rest of that turn is lost
//! ```
//!
//! Headmasters decide by real machines that remember nothing, from what they read an arbitrary time ago. The move is one
//! partition from one node to another; nodes do their part at once, for what they may do wrong is `rebalance::steps`'
//! exploration. What a written document may be, and what an answer may say, is judged at each write; where nothing more
//! can happen, everything must be at rest.

use std::collections::BTreeSet;

use model::balance::{Join, Mode, Policy, Settings};
use model::order::{Done, Order, OrderDocument, OrderOutcome};
use model::plan::{Consent, Planned, Wish};
use model::routing::replicas_before;
use model::{Consistency, Node, Ring, Store, Zone};

use super::*;
use crate::explore::WORLDS_MAX;
use crate::rebalance::entering::takes_part;
use crate::report::Entered;

/// The list of the partition at first, and the one to which it moves.
const FROM: NodeId = NodeId(1);
const TO: NodeId = NodeId(2);
/// The orders: their numbers.
const CREATE: u64 = 1;
const APPLY: u64 = 2;
const ABORT: u64 = 3;

/// What a broken service, or whoever drives the machine, would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A document is published over whatever is there.
    PublishesBlindly,
    /// A plan gets the next free number.
    CreatesAnyNumber,
    /// A plan's state is written over whatever is there.
    NotesBlindly,
    /// An aborted plan ends under the document under which it began to go back.
    EndsUnfenced,
}

/// The documents.
#[derive(Clone, Debug)]
struct Documents {
    cluster: Cluster,
    orders: Vec<OrderDocument>,
    plans: Vec<PlanDocument>,
    /// Of the first plan, each with how often it was written.
    state: Option<(PlanState, u8)>,
}

/// What a headmaster has yet to write, and what it read.
#[derive(Clone, Debug)]
struct Turn {
    generation: Generation,
    state_version: Option<u8>,
    actions: Vec<HeadmasterAction>,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// The operator gives the next order.
    Orders,
    /// The operator will not abort.
    KeepsThePlan,
    /// A headmaster observes and decides.
    Decides(usize),
    /// A headmaster writes what its turn says next.
    Writes(usize, Fate),
}

/// Everything.
#[derive(Clone, Debug)]
struct World {
    bug: Option<Bug>,
    documents: Documents,
    turns: [Option<Turn>; 2],
    /// A write may be refused, or not confirmed, yet.
    faults: u8,
    may_abort: bool,
}

/// How a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    /// It is not done, and the rest of the turn is lost.
    Refused,
    /// It is done, and the rest of the turn is lost.
    Unconfirmed,
}

fn cluster() -> Cluster {
    let zone = Zone("z".to_owned());
    let node = |id: NodeId| Node::new(id, zone.clone(), format!("h{}:1", id.0), None);
    let numbers = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("s").unwrap(), numbers).unwrap();
    Cluster::new("c", vec![node(FROM), node(TO)], Ring::equal_slices(1, &[(FROM, zone.clone())]), vec![store])
}

fn order(number: u64) -> Order {
    match number {
        CREATE => Order::Create { wish: Wish::Replace { node: FROM, by: TO }, consent: Consent::default() },
        APPLY => Order::Apply { plan: 1 },
        _ => Order::Abort { plan: 1 },
    }
}

/// What a node says that has done all that the document asks of it.
fn said(cluster: &Cluster, node: NodeId) -> Said {
    let mut facts =
        NodeFacts { incarnation: Some(1), adopted: Some((1, cluster.generation)), ..NodeFacts::default() };
    for partition in cluster.ring.partitions() {
        let parts = cluster.stores.iter().filter(|store| takes_part(store, partition, node));
        let merged: BTreeMap<StoreName, BTreeSet<NodeId>> = parts
            .map(|store| (store.name.clone(), replicas_before(store, partition).iter().copied().collect()))
            .collect();
        if !merged.is_empty() {
            let entered = Entered { incarnation: 1, generation: cluster.generation, whole: true, merged };
            facts.entered.insert(partition.id, entered);
        }
    }
    Said { facts, size: Some(Size::default()), ..Said::default() }
}

impl World {
    fn observed(&self, asked: &Ask) -> Observation {
        let Documents { cluster, orders, plans, state } = &self.documents;
        let open = orders.iter().zip(1..).find(|(document, _)| document.answer.is_none());
        let kept = |(plan, number): (&PlanDocument, u64)| {
            let state = state.as_ref().filter(|_| number == 1).map(|(state, _)| state.clone());
            (number, Kept::of(Planned { number, plan: plan.clone(), state }))
        };
        let registered = cluster.nodes.iter().map(|node| Registered {
            node: node.clone(),
            incarnation: 1,
            is_member: true,
            reads_form: model::cluster::FORM,
        });
        Observation {
            now: Moment::default(),
            wall: WallMillis(0),
            cluster: cluster.clone(),
            registered: registered.collect(),
            remembered: BTreeMap::new(),
            order: open.map(|(document, number)| Given { number, document: document.clone() }),
            plans: plans.iter().zip(1..).map(kept).collect(),
            asked: asked.clone(),
            said: asked.nodes.iter().map(|&node| (node, Ok(said(cluster, node)))).collect(),
            policy: Some(Policy {
                mode: Mode::Off,
                settings: Settings { join: Join::Auto, ..Settings::default() },
                ..Policy::founded(0)
            }),
            policy_unread: None,
            listens: false,
        }
    }

    /// What a headmaster that remembers nothing would write now.
    fn decided(&self) -> Turn {
        let (mut machine, mut ask) = (Headmaster::new(1 << 20), Ask::default());
        loop {
            let decision = machine.decide(&self.observed(&ask));
            assert_eq!(decision.restored, None);
            if !decision.actions.is_empty() || decision.again != Again::Now {
                return Turn {
                    generation: self.documents.cluster.generation,
                    state_version: self.documents.state.as_ref().map(|(_, version)| *version),
                    actions: decision.actions,
                };
            }
            ask = decision.ask;
        }
    }

    /// Writes what a turn says next, if nothing has changed since it was read. What must hold of it is judged.
    fn write(&mut self, turn: &Turn, action: &HeadmasterAction) -> Result<bool, String> {
        let bug = self.bug;
        let planted = |planted| bug == Some(planted);
        let documents = &mut self.documents;
        match action {
            HeadmasterAction::Publish(cluster) => {
                if documents.cluster.generation != turn.generation && !planted(Bug::PublishesBlindly) {
                    return Ok(false);
                }
                if planted(Bug::EndsUnfenced) && cluster.ring == documents.cluster.ring {
                    let (state, version) = documents.state.as_mut().expect("it is aborted");
                    (state.aborted_under, *version) = (None, *version + 1);
                    return Ok(true);
                }
                follows(&documents.cluster, cluster)?;
                documents.cluster.clone_from(cluster);
            }
            HeadmasterAction::CreatePlan { number, plan } => {
                if documents.plans.len() as u64 + 1 != *number && !planted(Bug::CreatesAnyNumber) {
                    return Ok(false);
                }
                if documents.plans.iter().any(|other| other.order == plan.order) {
                    return Err(format!("order {} has two plans", plan.order));
                }
                documents.plans.push((**plan).clone());
            }
            HeadmasterAction::Note { plan, state } => {
                assert_eq!(*plan, 1);
                let version = documents.state.as_ref().map(|(_, version)| *version);
                if version != turn.state_version && !planted(Bug::NotesBlindly) {
                    return Ok(false);
                }
                let before = documents.state.as_ref().map(|(state, _)| state.phase);
                if before.is_some_and(Phase::has_ended) {
                    return Err(format!("a plan that was {before:?} is {:?}", state.phase));
                }
                if before == Some(Phase::Aborting) && state.phase == Phase::Applying {
                    return Err("a plan that was aborted is applied again".to_owned());
                }
                documents.state = Some(((**state).clone(), version.map_or(0, |version| version + 1)));
            }
            HeadmasterAction::SetPolicy(_) | HeadmasterAction::Tell(_) => {}
            HeadmasterAction::Answer { order, answer } => {
                let stale = documents.cluster.generation != turn.generation;
                let known = &mut documents.orders[*order as usize - 1];
                if known.answer.is_some() || stale {
                    return Ok(false);
                }
                known.answer = Some(answer.clone());
                self.judge_answer(*order, answer)?;
            }
        }
        Ok(true)
    }

    /// Whether an answer says what the documents say.
    fn judge_answer(&self, order: u64, answer: &OrderOutcome) -> Result<(), String> {
        let Documents { plans, state, .. } = &self.documents;
        let of_state = |order| state.as_ref().is_some_and(|(state, _)| state.order == order);
        let is_wrong = match (order, answer) {
            (CREATE, OrderOutcome::Done { done: Done::PlanCreated, plan, .. }) => {
                *plan != Some(1) || plans.iter().all(|plan| plan.order != CREATE)
            }
            (CREATE, _) => true,
            (APPLY, OrderOutcome::Done { .. }) => state.is_none(),
            (APPLY, OrderOutcome::Refused { .. }) => of_state(APPLY),
            (_, OrderOutcome::Done { .. }) => !state.as_ref().is_some_and(|(state, _)| {
                state.order == ABORT || state.phase == Phase::Done || state.phase == Phase::Failed
            }),
            (_, OrderOutcome::Refused { .. }) => of_state(ABORT),
        };
        if is_wrong { Err(format!("order {order} is answered {answer:?}: {state:?}")) } else { Ok(()) }
    }

    fn written(&self, who: usize, fate: Fate) -> Result<World, String> {
        let turn = self.turns[who].as_ref().expect("it has begun");
        let mut world = self.clone();
        world.faults -= u8::from(fate != Fate::Done);
        let mut rest = turn.clone();
        let action = rest.actions.remove(0);
        let is_done = fate != Fate::Refused && world.write(turn, &action)?;
        let goes_on = is_done && fate == Fate::Done;
        // The turn's own writes are what it knows.
        if let (true, HeadmasterAction::Publish(cluster)) = (is_done, &action) {
            rest.generation = cluster.generation;
        }
        if let (true, HeadmasterAction::Note { .. }) = (is_done, &action) {
            rest.state_version = world.documents.state.as_ref().map(|(_, version)| *version);
        }
        world.turns[who] = (goes_on && !rest.actions.is_empty()).then_some(rest);
        Ok(world)
    }

    fn with(&self, change: impl FnOnce(&mut World)) -> World {
        let mut next = self.clone();
        change(&mut next);
        next
    }
}

impl crate::explore::World for World {
    type Happening = Happening;
    type Name = u128;

    fn name(&self) -> u128 {
        xxhash_rust::xxh3::xxh3_128(format!("{self:?}").as_bytes())
    }

    fn happenings(&self) -> Vec<Happening> {
        let mut happenings = Vec::new();
        for who in 0..2 {
            if self.turns[who].is_none() {
                happenings.push(Happening::Decides(who));
                continue;
            }
            let fates = [Fate::Done, Fate::Refused, Fate::Unconfirmed].into_iter();
            let fates = fates.filter(|fate| *fate == Fate::Done || self.faults > 0);
            happenings.extend(fates.map(|fate| Happening::Writes(who, fate)));
        }
        let given = self.documents.orders.len() as u64;
        if given < APPLY || (given < ABORT && self.may_abort) {
            happenings.push(Happening::Orders);
        }
        if given == APPLY && self.may_abort {
            happenings.push(Happening::KeepsThePlan);
        }
        happenings
    }

    fn step(&self, happening: &Happening) -> Result<Option<Self>, String> {
        Ok(Some(match *happening {
            Happening::Decides(who) => {
                let turn = self.decided();
                if turn.actions.is_empty() {
                    return Ok(None);
                }
                self.with(|world| world.turns[who] = Some(turn))
            }
            Happening::Writes(who, fate) => self.written(who, fate)?,
            Happening::Orders => self.with(|world| {
                let order = order(world.documents.orders.len() as u64 + 1);
                let document = OrderDocument { order, by: String::new(), given_ms: 0, answer: None };
                world.documents.orders.push(document);
            }),
            Happening::KeepsThePlan => self.with(|world| world.may_abort = false),
        }))
    }

    /// What must hold where nothing more happens.
    fn at_rest(&self) -> Result<(), String> {
        let Documents { cluster, orders, state, .. } = &self.documents;
        let partition = &cluster.ring.partitions()[0];
        let open = orders.iter().filter(|order| order.answer.is_none()).count();
        let phase = state.as_ref().map(|(state, _)| state.phase);
        let place = match phase {
            None => FROM,
            Some(Phase::Done) => TO,
            Some(Phase::Aborted) => FROM,
            Some(_) => return Err(format!("a plan rests {phase:?}")),
        };
        if open > 0 || partition.coming.is_some() || partition.nodes[..1] != [place] {
            return Err(format!("{open} orders are open, the plan is {phase:?}, and the ring {partition:?}"));
        }
        Ok(())
    }
}

/// Whether a document may follow another one.
fn follows(before: &Cluster, after: &Cluster) -> Result<(), String> {
    let step = |cluster: &Cluster| {
        let partition = &cluster.ring.partitions()[0];
        (partition.nodes[0], partition.step())
    };
    use model::Step::{Copying, Joint, ReadingNew};
    let legal = matches!(
        (step(before), step(after)),
        ((FROM, None), (FROM, Some(Copying) | None))
            | ((FROM, Some(Copying)), (FROM, Some(Joint) | None))
            | ((FROM, Some(Joint)), (FROM, Some(ReadingNew) | None))
            | ((FROM, Some(ReadingNew)), (TO, None | Some(ReadingNew)))
            | ((TO, Some(ReadingNew)), (FROM, None))
    );
    if after.generation.0 != before.generation.0 + 1 || !legal {
        return Err(format!("{:?} after {:?}", step(after), step(before)));
    }
    Ok(())
}

/// Visits every world; the number of them.
fn explore(bug: Option<Bug>) -> Result<usize, String> {
    let documents = Documents { cluster: cluster(), orders: Vec::new(), plans: Vec::new(), state: None };
    let first = World { bug, documents, turns: [None, None], faults: 1, may_abort: true };
    crate::explore::explore(first, WORLDS_MAX)
}

#[test]
fn two_headmasters_at_once_do_no_harm_whatever_is_refused_or_not_confirmed() {
    let visited = explore(None).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(visited > 1_000, "{visited} worlds");
}

#[test]
fn each_broken_service_is_convicted() {
    for bug in [Bug::PublishesBlindly, Bug::CreatesAnyNumber, Bug::NotesBlindly, Bug::EndsUnfenced] {
        assert!(explore(Some(bug)).is_err(), "{bug:?} was not found");
    }
}
