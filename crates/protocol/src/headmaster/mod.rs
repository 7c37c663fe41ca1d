//! What a headmaster does next, from one observation.
//!
//! ```text
//!   documents, what nodes said, time ──▶ observation ──▶ decide ──▶ publish this document, create that plan,
//!              ▲                                            │        note this state, answer that order
//!              └────────── whom to ask next ◀───────────────┘
//! ```
//!
//! Everything that must survive is in the documents: an order says what shall be done, and what was done for it is found
//! there. So an order that one headmaster has begun, its successor ends, and nothing is done twice. What a headmaster
//! remembers itself ([`Headmaster`]) only delays it or makes it tell more; a successor that remembers nothing is right.
//!
//! Each action is computed from documents as they were read, and is refused where one of them has changed meanwhile. So
//! two headmasters at once do no harm: one of them looks again.
//!
//! **Architecture Invariant:** nobody else decides what becomes of the cluster document. `control::headmaster` observes
//! and acts. Must never: depend on what an earlier decision assumed to have happened.

mod balance;
mod conduct;
mod course;
#[cfg(test)]
mod explore;
mod members;
mod orders;
mod plans;
mod progress;
mod replacing;
mod standby;
mod stores;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::balance::{Policy, Verdict};
use model::order::{Given, OrderOutcome, OrderRefusal};
use model::plan::{Came, Phase, PlanDocument, PlanPace, PlanState, Planned, Size, Wish};
use model::{Cluster, Generation, Moment, Node, NodeId, PartitionId, StoreName, WallMillis};

use crate::artifacts;
use crate::report::LoadReport;
use crate::report::{Facts, NodeFacts};
use balance::Balancing;
use course::Course;
use standby::Absences;

pub use conduct::held_up;
pub use members::unfit;
pub use plans::planned;
pub use replacing::{SILENT_MIN, Silence};

/// Shortest time between two documents that one headmaster publishes: each costs every node and client something.
pub const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);
/// How often a headmaster looks while something is under way.
const BUSY: Duration = Duration::from_millis(500);
/// How often it looks while it waits for orders and documents alone, which wake it.
const IDLE: Duration = Duration::from_secs(5);
/// How long it looks again until nodes hold what shall be served, and how often.
const STAGED_PATIENCE: Duration = Duration::from_secs(2);
const STAGED_PAUSE: Duration = Duration::from_millis(100);
/// How far a server of the coordination service may lag behind what nodes have read at another one.
const LAG_MAX: Duration = Duration::from_secs(10);
/// Room that a plan leaves in the cluster document, for coming stores and nodes, in bytes.
pub const ROOM_LEFT: usize = 64 * 1024;

/// A node that is registered, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Who it is and where it can be reached.
    pub node: Node,
    /// How often its data directory was begun anew.
    pub incarnation: u64,
    /// Whether it follows a cluster document that names it, or did.
    pub is_member: bool,
    /// The greatest form of the cluster document that it understands.
    pub reads_form: u32,
}

/// A plan as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It was only created, or is under way.
    Open(Box<Planned>),
    /// Nothing follows.
    Ended(Ended),
    /// It cannot be read: a later version created it.
    Unread {
        /// What is not understood.
        detail: String,
    },
}

/// A plan that has ended, in short.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The order that created it.
    pub created_by: u64,
    /// The order that changed its phase last.
    pub ended_by: u64,
    /// What became of it.
    pub phase: Phase,
    /// What it cost and how fast it was carried out, if that tells anything.
    pub pace: Option<(f64, PlanPace)>,
    /// When it ended, in milliseconds since 1970.
    pub ended_ms: u64,
    /// The partitions that it gave other lists, and whether copies came somewhere.
    pub touched: Vec<(PartitionId, bool)>,
    /// The copies that it took from nodes, if the autopilot made it.
    pub left: Vec<(PartitionId, NodeId)>,
    /// What came of it, if the autopilot made it.
    pub came: Option<Came>,
    /// The node that got its share by it, if the autopilot made it for a new one.
    pub joined: Option<NodeId>,
    /// Whether a node was replaced by it.
    pub replaces: bool,
}

impl Eq for Ended {}

impl Kept {
    /// A plan as it was read.
    pub fn of(planned: Planned) -> Kept {
        match &planned.state {
            Some(state) if state.phase.has_ended() && !planned.awaits_outcome() => Kept::Ended(Ended {
                created_by: planned.plan.order,
                ended_by: state.order,
                phase: state.phase,
                pace: crate::rebalance::lengths::pace_of(&planned),
                ended_ms: state.ended_ms.unwrap_or(state.begun_ms),
                touched: balance::touched(&planned),
                left: balance::left(&planned),
                came: state.came_of.map(|outcome| outcome.came),
                joined: balance::joined(&planned),
                replaces: matches!(planned.plan.wish, Wish::Replace { .. }),
            }),
            _ => Kept::Open(Box::new(planned)),
        }
    }
}

/// What a node has said when it was asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// What steps may depend on.
    pub facts: NodeFacts,
    /// By partition that it enters: what it has brought in since its process started.
    pub copied: BTreeMap<PartitionId, Size>,
    /// Records that it holds of partitions that are not its own.
    pub leftovers: u64,
    /// Hints that it holds.
    pub hints: u64,
    /// How much it holds, where that was asked for.
    pub size: Option<Size>,
    /// Which artifacts it holds, where that was asked for.
    pub artifacts: Vec<(StoreName, artifacts::PushReport)>,
    /// For how long it has heard nothing of other nodes, where that was asked for.
    pub silent_for: BTreeMap<NodeId, Silence>,
    /// The incarnation under which it said all of this.
    pub incarnation: u64,
    /// What work it has done, where that was asked for.
    pub load: Option<LoadReport>,
}

/// Whom to ask before the next observation, and for what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Which nodes.
    pub nodes: BTreeSet<NodeId>,
    /// Whether for how much they hold.
    pub sizes: bool,
    /// Whether for their artifacts.
    pub artifacts: bool,
    /// Whether a process listens at this node's address, and who has heard of it when.
    pub signs_of: Option<NodeId>,
    /// Whether for the work that they have done.
    pub loads: bool,
}

impl Ask {
    /// Whether an observation that asked `self` has answers to `other`.
    fn covers(&self, other: &Ask) -> bool {
        other.nodes.is_subset(&self.nodes)
            && (self.sizes || !other.sizes)
            && (self.artifacts || !other.artifacts)
            && (self.loads || !other.loads)
            && (self.signs_of == other.signs_of || other.signs_of.is_none())
    }

    fn add(&mut self, other: &Ask) {
        self.nodes.extend(other.nodes.iter().copied());
        self.sizes |= other.sizes;
        self.artifacts |= other.artifacts;
        self.loads |= other.loads;
        self.signs_of = other.signs_of.or(self.signs_of);
    }
}

/// What a headmaster sees. Nodes were asked first, and the documents read afterwards: a node that follows a newer document
/// than was read says that the service holds an older one, or lags behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// What time it is.
    pub now: Moment,
    /// What time it is for people.
    pub wall: WallMillis,
    /// The cluster document.
    pub cluster: Cluster,
    /// Nodes that are registered, by id.
    pub registered: Vec<Registered>,
    /// Of nodes that are registered and no members, and of members that are not registered: the greatest incarnation that
    /// is remembered of them, if any is.
    pub remembered: BTreeMap<NodeId, u64>,
    /// The oldest order without an answer.
    pub order: Option<Given>,
    /// The plans that are kept.
    pub plans: BTreeMap<u64, Kept>,
    /// What the autopilot may do, as it was read last; `None` where nothing is kept.
    pub policy: Option<Policy>,
    /// Why what is kept of that now cannot be read.
    pub policy_unread: Option<String>,
    /// Whom this observation has asked, and for what.
    pub asked: Ask,
    /// What those said, or why they said nothing.
    pub said: BTreeMap<NodeId, Result<Said, String>>,
    /// Whether a process listens where signs of life were looked for.
    pub listens: bool,
}

impl Observation {
    /// The registration of a node.
    fn registered(&self, node: NodeId) -> Option<&Registered> {
        self.registered.iter().find(|active| active.node.id == node)
    }

    /// The plan that is under way, if one is.
    fn under_way(&self) -> Option<&Planned> {
        self.plans.values().find_map(|kept| match kept {
            Kept::Open(planned) if planned.is_under_way() => Some(&**planned),
            _ => None,
        })
    }
}

/// What shall be done, in this order; what is refused ends it, and the next observation shows why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadmasterAction {
    /// Publish the cluster document that follows the observed one.
    Publish(Box<Cluster>),
    /// Create the plan of this number, which nobody may have created meanwhile.
    CreatePlan {
        /// Its number.
        number: u64,
        /// The plan.
        plan: Box<PlanDocument>,
    },
    /// Write down how far a plan is.
    Note {
        /// Its number.
        plan: u64,
        /// How far.
        state: Box<PlanState>,
    },
    /// Write what the autopilot may do.
    SetPolicy(Box<Policy>),
    /// Write what the autopilot says.
    Tell(Box<Verdict>),
    /// Answer an order.
    Answer {
        /// Its number.
        order: u64,
        /// With what.
        answer: OrderOutcome,
    },
}

/// When to observe again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// At once.
    Now,
    /// After this time.
    After(Duration),
    /// After this time: a document is due that may not be published yet.
    Paced(Duration),
    /// When there is an order or another cluster document, or after this time.
    WhenWoken(Duration),
}

/// What a headmaster decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What shall be done.
    pub actions: Vec<HeadmasterAction>,
    /// When to observe again.
    pub again: Again,
    /// Whom to ask for that.
    pub ask: Ask,
    /// A node that follows a newer document than the service holds, which is older than it was: an operator must act.
    pub restored: Option<(NodeId, Generation)>,
}

/// What is due, or whom to ask before that can be said.
type Due<T> = Result<T, Ask>;

/// What a branch of a decision comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DecisionStep {
    /// Do this, and look again.
    Do(Vec<HeadmasterAction>),
    /// Do this, if anything, and go on: nodes must do their part.
    Wait(Vec<HeadmasterAction>),
}

/// What a headmaster remembers.
#[derive(Clone, Debug)]
pub struct Headmaster {
    /// Bytes that a document may have.
    document_bytes_max: usize,
    /// What nodes said last. A node that is silent now has said it all the same.
    known: BTreeMap<NodeId, Said>,
    /// The course of the plan that it carries out.
    course: Option<Course>,
    /// When it published last.
    published: Option<Moment>,
    /// The document of the last observation.
    seen: Generation,
    /// Since when the service holds an older document than a node followed before.
    older_since: Option<Moment>,
    /// Since when it knows an order that waits for nodes.
    patient_since: Option<(u64, Moment)>,
    /// Whom this decision has asked about.
    wanted: Ask,
    /// Whether something is under way, so that what nodes say matters.
    busy: Option<Duration>,
    /// What the autopilot remembers.
    balancing: Balancing,
    /// Since when members are away.
    absences: Absences,
}

impl Headmaster {
    /// One that remembers nothing, and writes documents of this many bytes at most.
    pub fn new(document_bytes_max: usize) -> Headmaster {
        Headmaster {
            document_bytes_max,
            known: BTreeMap::new(),
            course: None,
            published: None,
            seen: Generation::default(),
            older_since: None,
            patient_since: None,
            wanted: Ask::default(),
            busy: None,
            balancing: Balancing::default(),
            absences: Absences::default(),
        }
    }

    /// What shall be done now.
    pub fn decide(&mut self, seen: &Observation) -> Decision {
        self.hear(seen);
        let mut restored = None;
        let due = self.due(seen, &mut restored);
        let wanted = std::mem::take(&mut self.wanted);
        let decision = |actions, again, ask| Decision { actions, again, ask, restored };
        let (actions, is_done) = match due {
            Err(mut ask) => {
                ask.add(&wanted);
                return decision(Vec::new(), Again::Now, ask);
            }
            Ok(DecisionStep::Do(actions)) => (actions, true),
            Ok(DecisionStep::Wait(actions)) => (actions, false),
        };
        if actions.iter().any(|action| matches!(action, HeadmasterAction::Publish(_))) {
            let free = self.published.map_or(seen.now, |before| before.after(PUBLISH_INTERVAL));
            if free > seen.now {
                return decision(Vec::new(), Again::Paced(free.since(seen.now)), wanted);
            }
            self.published = Some(seen.now);
        }
        let again = match (is_done, self.busy) {
            (true, _) => Again::Now,
            (false, Some(pause)) => Again::After(pause),
            (false, None) => Again::WhenWoken(self.balancing.pause(IDLE)),
        };
        let mut ask = wanted;
        if self.balancing.wants_loads(seen.now, again) {
            ask.add(&balance::loads_of(&seen.cluster));
        }
        decision(actions, again, ask)
    }

    /// Takes in what nodes said.
    fn hear(&mut self, seen: &Observation) {
        if seen.cluster.generation < self.seen {
            // What nodes said is older than what they may follow.
            self.known.clear();
        }
        self.seen = seen.cluster.generation;
        self.busy = None;
        self.absences.watch(seen);
        for (node, said) in &seen.said {
            if let Ok(said) = said {
                self.known.insert(*node, said.clone());
            }
        }
    }

    fn due(&mut self, seen: &Observation, restored: &mut Option<(NodeId, Generation)>) -> Due<DecisionStep> {
        if let Some((node, generation)) = self.newer_elsewhere(seen)? {
            self.is_busy();
            let since = *self.older_since.get_or_insert(seen.now);
            if seen.now.since(since) < LAG_MAX {
                return Ok(DecisionStep::Wait(Vec::new()));
            }
            *restored = Some((node, generation));
            let refused = OrderOutcome::from(OrderRefusal::Restored { node, generation });
            return Ok(seen
                .order
                .as_ref()
                .map_or(DecisionStep::Wait(Vec::new()), |given| answered(given, refused)));
        }
        self.older_since = None;
        let branches = [
            Headmaster::answer_next,
            Headmaster::admit_waiting,
            Headmaster::push_due,
            Headmaster::conduct,
            Headmaster::release_leaving,
            Headmaster::stand_in,
            Headmaster::balance,
        ];
        let mut notes = Vec::new();
        for branch in branches {
            match branch(self, seen)? {
                Some(DecisionStep::Do(actions)) => {
                    notes.extend(actions);
                    return Ok(DecisionStep::Do(notes));
                }
                Some(DecisionStep::Wait(actions)) => notes.extend(actions),
                None => {}
            }
        }
        Ok(DecisionStep::Wait(notes))
    }

    /// A node that follows a newer document than the service holds: the service was restored from an older copy, and a
    /// document that followed its own would be another one under a number that nodes know. Nothing is published meanwhile.
    fn newer_elsewhere(&mut self, seen: &Observation) -> Due<Option<(NodeId, Generation)>> {
        let told = |(node, said): (&NodeId, &Said)| Some((*node, said.facts.adopted?.1));
        let newest = self.known.iter().filter_map(told).max_by_key(|(_, adopted)| *adopted);
        if let Some(newer) = newest.filter(|(_, adopted)| *adopted > seen.cluster.generation) {
            self.wanted.nodes.insert(newer.0);
            return Ok(Some(newer));
        }
        // Members of which nobody has heard yet in this office: all at first, later those that are registered.
        let is_first = self.known.is_empty();
        let members = seen.cluster.nodes.iter().map(|node| node.id);
        let unheard: BTreeSet<NodeId> = members
            .filter(|id| !self.known.contains_key(id) && (is_first || seen.registered(*id).is_some()))
            .collect();
        let unheard = Ask { nodes: unheard, ..Ask::default() };
        if is_first && !seen.asked.covers(&unheard) {
            return Err(unheard);
        }
        self.wanted.add(&unheard);
        Ok(None)
    }

    /// Something is under way: look again soon.
    fn is_busy(&mut self) {
        self.busy.get_or_insert(BUSY);
    }

    /// What was asked for now; an error where it was not.
    fn asked(&mut self, seen: &Observation, ask: Ask) -> Due<()> {
        self.wanted.add(&ask);
        if seen.asked.covers(&ask) { Ok(()) } else { Err(ask) }
    }

    /// What is known of these nodes, once they were asked; and why some of them did not answer.
    fn facts(
        &mut self,
        seen: &Observation,
        nodes: &BTreeSet<NodeId>,
    ) -> Due<(Facts, BTreeMap<NodeId, String>)> {
        self.asked(seen, Ask { nodes: nodes.clone(), ..Ask::default() })?;
        let (mut facts, mut silent) = (Facts::default(), BTreeMap::new());
        for &node in nodes {
            if let Some(Err(detail)) = seen.said.get(&node) {
                silent.insert(node, detail.clone());
            }
            let Some(known) = self.known.get(&node) else { continue };
            let present = match seen.registered(node) {
                Some(active) => Some(active.incarnation),
                None => seen.remembered.get(&node).copied(),
            };
            let mut known = known.facts.clone();
            known.incarnation = present.or(known.incarnation);
            facts.nodes.insert(node, known);
        }
        Ok((facts, silent))
    }

    /// Bytes that the cluster document may have by a plan.
    fn cluster_bytes_max(&self) -> usize {
        self.document_bytes_max.saturating_sub(ROOM_LEFT)
    }
}

/// An order is answered.
fn answered(given: &Given, answer: OrderOutcome) -> DecisionStep {
    DecisionStep::Do(vec![HeadmasterAction::Answer { order: given.number, answer }])
}

/// A document is published that no order asked for.
fn unasked(cluster: Cluster) -> DecisionStep {
    DecisionStep::Do(vec![HeadmasterAction::Publish(Box::new(cluster))])
}

/// The document that follows, with this generation's number.
fn next(cluster: &Cluster) -> Generation {
    Generation(cluster.generation.0 + 1)
}
