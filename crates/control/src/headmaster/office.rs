//! What a process does while it holds the office: it observes, lets [`protocol::headmaster`] decide, and acts.
//!
//! Nodes are asked before the documents are read, so that what a node follows is never newer than what was read, unless
//! the service lags behind or was restored. What is written is refused where something has changed since it was read;
//! then the next turn looks again.
//!
//! Must never: decide what is due.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use coordination::documents::{
    ActiveNode, PublishError, ReadError, ServiceMove, active_nodes_now, balance, orders, plans,
    publish_cluster, read_cluster, read_member, watch_cluster,
};
use coordination::{CoordinationError, CoordinationService, DOCUMENT_BYTES_MAX, Document};
use futures_util::future::{Either, select};
use model::balance::Policy;
use model::order::OrderOutcome;
use model::plan::{PlanDocument, PlanState, Planned};
use model::{Cluster, Generation, NodeId};
use protocol::headmaster::{
    Again, Ask, Decision, Headmaster, HeadmasterAction, Kept, Observation, Registered,
};
use runtime::{Clock, Tasks};

use super::reports::{Reported, Reports};
use super::share::Share;

/// Pause after something was refused because another process was faster.
const OVERTAKEN: Duration = Duration::from_millis(500);
/// How often a headmaster looks for a cluster document where there is none.
const NO_CLUSTER: Duration = Duration::from_millis(500);
/// How long it waits for a service that does not answer.
const AWAY: Duration = Duration::from_secs(1);

/// Why a process stops taking turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfficeEnd {
    /// Its session has ended.
    SessionLost,
    /// The documents are in another service.
    Moved(Box<ServiceMove>),
}

/// How a turn went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// It changed something, so more may be due.
    Changed,
    /// Something was refused, because another process was faster.
    Overtaken,
    /// Nothing is due now: look again then.
    Rested(Again),
}

/// A process that holds the office.
pub struct Office {
    service: Arc<dyn CoordinationService>,
    clock: Arc<dyn Clock>,
    reports: Arc<dyn Reports>,
    machine: Headmaster,
    /// Whom to ask before the next observation.
    ask: Ask,
    /// The cluster document of the last observation.
    cluster: Option<Cluster>,
    shelf: Shelf,
    /// What it takes of its processors; `None` where others do not matter.
    share: Option<Share>,
    /// Whether it was said that the service was restored.
    is_restored_told: bool,
}

/// What need not be read again, and what was read last.
#[derive(Default)]
struct Shelf {
    /// Orders with an answer: nobody changes these any more.
    answered: BTreeSet<u64>,
    /// Plans of which nothing changes any more.
    ended: BTreeMap<u64, Kept>,
    /// What never changes of the others.
    plans: BTreeMap<u64, PlanDocument>,
    /// Their states as they were read.
    states: BTreeMap<u64, Document>,
    /// The policy of the autopilot, as it could be read last.
    policy: Option<Policy>,
    /// What could not be read of it last: that is said once.
    policy_unread: Option<String>,
}

/// Why an observation or an action failed.
enum Failure {
    /// Another process changed a document meanwhile.
    Overtaken,
    /// A document could not be read or written.
    Documents(ReadError),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        match error {
            ReadError::Coordination(
                CoordinationError::BadVersion { .. }
                | CoordinationError::NodeExists { .. }
                | CoordinationError::NoNode { .. },
            ) => Failure::Overtaken,
            error => Failure::Documents(error),
        }
    }
}

impl From<CoordinationError> for Failure {
    fn from(error: CoordinationError) -> Failure {
        ReadError::Coordination(error).into()
    }
}

impl Office {
    /// The office with a session that holds it.
    pub fn new(
        service: Arc<dyn CoordinationService>,
        clock: Arc<dyn Clock>,
        reports: Arc<dyn Reports>,
    ) -> Office {
        Office {
            service,
            clock,
            reports,
            machine: Headmaster::new(DOCUMENT_BYTES_MAX),
            ask: Ask::default(),
            cluster: None,
            shelf: Shelf::default(),
            share: None,
            is_restored_told: false,
        }
    }

    /// The same, which takes a small share of the processors of its process while partitions move.
    #[must_use]
    pub fn sharing(self, tasks: Arc<dyn Tasks>) -> Office {
        Office { share: Some(Share::new(self.clock.clone(), tasks)), ..self }
    }

    /// Takes turns until the session is of no use. Cancel safe: what a turn had begun, the next one finds.
    pub async fn hold(&mut self) -> OfficeEnd {
        loop {
            let begun = self.share.as_ref().map(Share::begin);
            match self.turn().await {
                Ok(Turned::Changed | Turned::Rested(Again::Now)) => {}
                Ok(Turned::Overtaken) => self.clock.sleep(OVERTAKEN).await,
                Ok(Turned::Rested(Again::After(pause) | Again::Paced(pause))) => {
                    self.clock.sleep(pause).await
                }
                Ok(Turned::Rested(Again::WhenWoken(longest))) => self.await_woken(longest).await,
                Err(ReadError::Coordination(CoordinationError::SessionLost)) => {
                    return OfficeEnd::SessionLost;
                }
                Err(ReadError::Moved(this)) => return OfficeEnd::Moved(this),
                Err(error) => {
                    tracing::warn!(%error, "turn of the headmaster failed");
                    self.clock.sleep(AWAY).await;
                }
            }
            if let Some((share, begun)) = self.share.as_ref().zip(begun)
                && self.sees_moves()
            {
                share.rest(begun).await;
            }
        }
    }

    /// Whether partitions moved when it looked last, or a store changed its numbers.
    fn sees_moves(&self) -> bool {
        let moves = |cluster: &Cluster| {
            let mut partitions = cluster.ring.partitions().iter();
            cluster.changing().is_some() || partitions.any(|partition| partition.coming.is_some())
        };
        self.cluster.as_ref().is_some_and(moves)
    }

    /// Waits for an order or another cluster document, but not for long: what else may be due wakes nobody.
    async fn await_woken(&self, longest: Duration) {
        let sleep = self.clock.sleep(longest);
        let seen = self.cluster.as_ref().map(|cluster| cluster.generation);
        let mut documents = watch_cluster(self.service.clone(), seen);
        let given = async {
            match orders::watch_given(&*self.service, &self.shelf.answered).await? {
                (true, _) => Ok(()),
                (false, watch) => watch.fired().await.map(drop),
            }
        };
        let woken = async {
            match select(pin!(given), pin!(documents.next())).await {
                Either::Left((order, _)) => order.map_err(ReadError::from),
                Either::Right((document, _)) => document.map(drop),
            }
        };
        match select(pin!(woken), sleep).await {
            Either::Right(_) | Either::Left((Ok(()), _)) => {}
            // The next turn meets the same, and says so.
            Either::Left((Err(ReadError::Coordination(CoordinationError::SessionLost)), _)) => {}
            Either::Left((Err(_), sleep)) => sleep.await,
        }
    }

    /// Does what is due.
    ///
    /// # Errors
    /// When a document could not be read or written. The next turn goes on.
    pub async fn turn(&mut self) -> Result<Turned, ReadError> {
        match self.take_turn().await {
            Ok(turned) => Ok(turned),
            Err(Failure::Overtaken) => Ok(Turned::Overtaken),
            Err(Failure::Documents(error)) => Err(error),
        }
    }

    async fn take_turn(&mut self) -> Result<Turned, Failure> {
        loop {
            let Some(seen) = self.observe().await? else {
                // An order that waits would wake it at once, again and again.
                return Ok(Turned::Rested(Again::After(NO_CLUSTER)));
            };
            let Decision { actions, again, ask, restored } = self.machine.decide(&seen);
            self.ask = ask;
            self.tell_restored(restored, seen.cluster.generation);
            let published =
                actions.iter().filter(|action| matches!(action, HeadmasterAction::Publish(_))).count();
            assert!(published <= 1, "{published} documents are to follow {:?}", seen.cluster.generation);
            for action in &actions {
                self.act(&seen, action).await?;
            }
            match again {
                // Nodes must be asked first.
                Again::Now if actions.is_empty() => {}
                Again::Now => return Ok(Turned::Changed),
                Again::Paced(pause) => self.clock.sleep(pause).await,
                again => return Ok(Turned::Rested(again)),
            }
        }
    }

    /// Asks nodes, and then reads the documents; `None` where there is no cluster.
    async fn observe(&mut self) -> Result<Option<Observation>, Failure> {
        let asked = std::mem::take(&mut self.ask);
        let Reported { said, listens } = match &self.cluster {
            Some(cluster) if asked != Ask::default() => self.reports.ask(cluster, &asked).await,
            _ => Reported::default(),
        };
        let stranger = said.keys().find(|node| !asked.nodes.contains(*node));
        assert!(
            stranger.is_none(),
            "{stranger:?} was not asked, and has said something: {:?} were",
            asked.nodes
        );
        let service = &*self.service;
        let Some(cluster) = read_cluster(service).await? else { return Ok(None) };
        let registered: Vec<Registered> =
            active_nodes_now(service).await?.into_iter().map(registered).collect();
        let mut remembered = BTreeMap::new();
        let is_there = |id: NodeId| registered.iter().any(|active| active.node.id == id);
        let strangers =
            registered.iter().map(|active| active.node.id).filter(|id| cluster.node(*id).is_none());
        let away = cluster.nodes.iter().map(|node| node.id).filter(|id| !is_there(*id));
        for node in strangers.chain(away) {
            if let Some(member) = read_member(service, node).await? {
                remembered.insert(node, member.incarnation);
            }
        }
        let order = orders::oldest_waiting(service, &mut self.shelf.answered).await?;
        let plans = self.shelf.plans(service).await?;
        let policy_unread = self.shelf.read_policy(service).await?;
        self.cluster = Some(cluster.clone());
        let (now, wall) = (self.clock.now(), self.clock.wall());
        Ok(Some(Observation {
            now,
            wall,
            cluster,
            registered,
            remembered,
            order,
            plans,
            policy: self.shelf.policy.clone(),
            policy_unread,
            asked,
            said,
            listens,
        }))
    }

    /// Says once that the service holds an older document than a node.
    fn tell_restored(&mut self, restored: Option<(NodeId, Generation)>, stored: Generation) {
        let is_told = std::mem::replace(&mut self.is_restored_told, restored.is_some());
        if let (Some((node, generation)), false) = (restored, is_told) {
            let (generation, stored) = (generation.0, stored.0);
            tracing::error!(%node, generation, stored, "coordination service holds an older cluster document than nodes");
        }
    }

    async fn act(&mut self, seen: &Observation, action: &HeadmasterAction) -> Result<(), Failure> {
        match action {
            HeadmasterAction::Publish(cluster) => self.publish(seen, cluster).await,
            HeadmasterAction::CreatePlan { number, plan } => {
                let last = seen.plans.last_key_value().map(|(last, _)| *last);
                assert!(last < Some(*number), "plan {number} is created behind plan {last:?}");
                let is_under_way = |kept: &Kept| match kept {
                    Kept::Open(planned) => planned.is_under_way(),
                    _ => false,
                };
                let mut open = seen.plans.iter().filter(|(_, kept)| is_under_way(kept));
                let under_way = open.next().map(|(number, _)| *number);
                plans::create(&*self.service, *number, plan, under_way).await?;
                tracing::info!(plan = number, order = plan.order, "plan created");
                Ok(())
            }
            HeadmasterAction::Note { plan, state } => self.note(seen, *plan, state).await,
            HeadmasterAction::SetPolicy(policy) => {
                balance::write_policy(&*self.service, policy).await?;
                tracing::info!(mode = policy.mode.word(), because = ?policy.because, "policy of the autopilot written");
                Ok(())
            }
            HeadmasterAction::Tell(verdict) => {
                balance::write_verdict(&*self.service, verdict).await?;
                tracing::debug!(says = verdict.says.code(), "autopilot");
                Ok(())
            }
            HeadmasterAction::Answer { order, answer } => self.answer(seen, *order, answer).await,
        }
    }

    /// The one place from which the cluster document of a running cluster is written.
    async fn publish(&mut self, seen: &Observation, cluster: &Cluster) -> Result<(), Failure> {
        let (before, after) = (seen.cluster.generation, cluster.generation);
        assert_eq!(after.0, before.0 + 1, "a document follows the one that was observed");
        match publish_cluster(&*self.service, cluster).await {
            Ok(()) => {
                tracing::info!(generation = cluster.generation.0, "cluster document published");
                Ok(())
            }
            Err(PublishError::Read(error)) => Err(error.into()),
            Err(PublishError::Invalid { error, .. }) => {
                tracing::error!(%error, "cluster document contradicts itself, and was not published");
                Err(Failure::Overtaken)
            }
            Err(_) => Err(Failure::Overtaken),
        }
    }

    /// Writes how far a plan is, if nobody else has meanwhile.
    async fn note(&mut self, seen: &Observation, plan: u64, state: &PlanState) -> Result<(), Failure> {
        assert!(!self.shelf.ended.contains_key(&plan), "plan {plan} goes on after its end: {state:?}");
        plans::note(&*self.service, plan, state, self.shelf.states.get(&plan)).await?;
        let before = match seen.plans.get(&plan) {
            Some(Kept::Open(planned)) => planned.state.as_ref().map(|state| state.phase),
            _ => None,
        };
        if before != Some(state.phase) {
            tracing::info!(plan, phase = state.phase.word(), reason = ?state.reason, "plan changed its phase");
        }
        Ok(())
    }

    /// Writes the answer to an order, if the cluster document is still the one that it follows: a headmaster that was
    /// overtaken refuses nothing that its successor has just done.
    async fn answer(&mut self, seen: &Observation, order: u64, answer: &OrderOutcome) -> Result<(), Failure> {
        let stored = read_cluster(&*self.service).await?;
        if stored.is_some_and(|stored| stored.generation != seen.cluster.generation) {
            return Err(Failure::Overtaken);
        }
        if !orders::answer(&*self.service, order, answer).await? {
            return Err(Failure::Overtaken);
        }
        let code = answer.refusal().map(model::order::OrderRefusal::code);
        tracing::info!(order, refused = code, "order answered");
        let is_first = self.shelf.answered.insert(order);
        assert!(is_first, "order {order} is answered twice, now with {answer:?}");
        Ok(())
    }
}

fn registered(active: ActiveNode) -> Registered {
    Registered {
        is_member: active.cluster.is_some(),
        reads_form: active.reads_form,
        incarnation: active.incarnation,
        node: active.node,
    }
}

impl Shelf {
    /// All plans that are kept. What never changes is read once.
    async fn plans(&mut self, service: &dyn CoordinationService) -> Result<BTreeMap<u64, Kept>, ReadError> {
        let numbers = plans::all_numbers(service).await?;
        // Old ones are deleted also behind one that is kept because it is under way.
        self.ended.retain(|number, _| numbers.contains(number));
        self.plans.retain(|number, _| numbers.contains(number));
        self.states.clear();
        for number in numbers {
            if self.ended.contains_key(&number) {
                continue;
            }
            match self.plan(service, number).await {
                Ok(found) => {
                    if let Some(ended @ (Kept::Ended(_) | Kept::Unread { .. })) = found {
                        self.plans.remove(&number);
                        self.ended.insert(number, ended);
                    }
                }
                Err(ReadError::Malformed { reason, .. }) => {
                    tracing::warn!(plan = number, reason, "plan not understood");
                    self.plans.remove(&number);
                    self.ended.insert(number, Kept::Unread { detail: reason });
                }
                Err(error) => return Err(error),
            }
        }
        self.check();
        let open = self.plans.iter().map(|(number, plan)| {
            let state = self.states.get(number).and_then(|read| serde_json::from_slice(&read.data).ok());
            (*number, Kept::of(Planned { number: *number, plan: plan.clone(), state }))
        });
        Ok(open.chain(self.ended.iter().map(|(number, kept)| (*number, kept.clone()))).collect())
    }

    /// What must be true of the plans that are kept.
    fn check(&self) {
        let both = self.ended.keys().find(|number| self.plans.contains_key(*number));
        assert_eq!(both, None, "a plan that has ended is not open");
        let stray = self.states.keys().find(|number| !self.plans.contains_key(*number));
        assert_eq!(stray, None, "a state is that of an open plan");
    }

    /// Reads a plan that may change; `None` where it is open, and kept here.
    async fn plan(
        &mut self,
        service: &dyn CoordinationService,
        number: u64,
    ) -> Result<Option<Kept>, ReadError> {
        if let Entry::Vacant(vacant) = self.plans.entry(number) {
            let Some(plan) = plans::read_plan(service, number).await? else { return Ok(None) };
            vacant.insert(plan);
        }
        let Some((state, read)) = plans::read_state(service, number).await? else { return Ok(None) };
        let plan = self.plans[&number].clone();
        match Kept::of(Planned { number, plan, state: Some(state) }) {
            Kept::Open(_) => {
                self.states.insert(number, read);
                Ok(None)
            }
            ended => Ok(Some(ended)),
        }
    }

    /// Reads the policy of the autopilot. Where that cannot be understood the last one goes on; returns why it cannot.
    async fn read_policy(&mut self, service: &dyn CoordinationService) -> Result<Option<String>, ReadError> {
        let unread = match balance::read_policy(service).await {
            Ok(found) => {
                self.policy = found.map(|(policy, _)| policy);
                None
            }
            Err(ReadError::Malformed { reason, .. }) => Some(reason),
            Err(error) => return Err(error),
        };
        if unread != self.policy_unread {
            if let Some(reason) = &unread {
                tracing::warn!(reason, "policy of the autopilot not understood, the last one goes on");
            }
            self.policy_unread.clone_from(&unread);
        }
        Ok(unread)
    }
}
