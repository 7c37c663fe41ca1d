//! What a process does while it holds the office: one turn after another.
//!
//! A turn reads the documents, does what is due, and publishes at most one cluster document. What it was computed from
//! may have changed meanwhile: then it is refused, and the next turn looks again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use coordination::documents::numbered::{numbered_path, plan_state_path, replace, wishes_path};
use coordination::documents::{
    ActiveNode, Move, PublishError, ReadError, active_nodes_now, create_parents, publish_cluster,
    read_cluster, read_member, watch_cluster,
};
use coordination::{CoordinationError, CoordinationService};
use futures_util::future::{Either, select};
use model::{Cluster, Generation, NodeId, PartitionId};
use protocol::rebalance::Facts;
use runtime::{Clock, Moment};
use thiserror::Error;

use super::reports::{Report, Reports};
use crate::orders::{Answer, Given, OrderDocument};
use crate::plans::{BroughtIn, PlanState, Planned, Size, encode};

/// Shortest time between two documents that one headmaster publishes: each costs every node and client something.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);
/// How often a headmaster looks while something is under way.
const BUSY: Duration = Duration::from_millis(500);
/// How often it looks while it waits for orders alone, which wake it.
const IDLE: Duration = Duration::from_secs(5);
/// How far a server of the service may lag behind what nodes have read at another one.
const LAG_MAX: Duration = Duration::from_secs(10);
/// How long it waits for a service that does not answer.
const AWAY: Duration = Duration::from_secs(1);

/// How a headmaster acts.
#[derive(Clone, Copy, Debug)]
pub struct OfficeOptions {
    /// Whether it names nodes in the cluster document that are registered and never were members. Default: yes.
    pub admits: bool,
}

impl Default for OfficeOptions {
    fn default() -> Self {
        OfficeOptions { admits: true }
    }
}

/// Why a turn did not end well.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TurnError {
    /// Another process changed a document meanwhile; look again.
    #[error("another process changed the documents meanwhile")]
    Overtaken,
    /// The cluster document that was due would contradict itself.
    #[error(transparent)]
    Refused(PublishError),
    /// A document could not be read or written.
    #[error(transparent)]
    Documents(#[from] ReadError),
}

/// Why a process stops taking turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfficeEnd {
    /// Its session has ended.
    SessionLost,
    /// The documents are in another service.
    Moved(Box<Move>),
}

impl From<CoordinationError> for TurnError {
    fn from(error: CoordinationError) -> TurnError {
        match error {
            CoordinationError::BadVersion { .. }
            | CoordinationError::NodeExists { .. }
            | CoordinationError::NoNode { .. } => TurnError::Overtaken,
            error => TurnError::Documents(error.into()),
        }
    }
}

impl From<PublishError> for TurnError {
    fn from(error: PublishError) -> TurnError {
        match error {
            PublishError::Read(error) => TurnError::Documents(error),
            PublishError::Invalid { .. } => TurnError::Refused(error),
            _ => TurnError::Overtaken,
        }
    }
}

/// The documents as a turn begins with them.
pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) active: Vec<ActiveNode>,
}

impl Scene {
    /// The registration of a node.
    pub(super) fn active(&self, node: NodeId) -> Option<&ActiveNode> {
        self.active.iter().find(|active| active.node.id == node)
    }
}

/// A process that holds the office.
pub struct Office {
    pub(super) service: Arc<dyn CoordinationService>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) reports: Arc<dyn Reports>,
    pub(super) options: OfficeOptions,
    /// What nodes said last. A node that is silent now has said it all the same.
    known: BTreeMap<NodeId, Report>,
    /// What was brought in for the plan that is carried out.
    pub(super) copied: BTreeMap<(NodeId, PartitionId), Size>,
    /// What was brought in before this process conducted it, and is in none of these.
    pub(super) copied_before: Option<Size>,
    /// Since when it waits for nodes that do not answer.
    pub(super) waits_since: Option<Moment>,
    /// How much that was, at the last moments.
    pub(super) rates: VecDeque<(Moment, u64)>,
    /// Since when this process carries it out without a pause, and what was here then.
    pub(super) begun: Option<(Moment, BroughtIn)>,
    /// Orders with an answer: nobody changes these any more.
    pub(super) answered: BTreeSet<u64>,
    /// Plans that have ended, for the same reason.
    pub(super) ended: BTreeSet<u64>,
    published: Option<Moment>,
    /// The document that the last turn began with, or published.
    seen: Option<Generation>,
    /// Since when the service holds an older document than a node went by before, and whether that was said.
    older_since: Option<(Moment, bool)>,
    /// Whether a plan or a push is under way, or a node is leaving: what nodes say matters then.
    pub(super) busy: bool,
}

impl Office {
    /// The office with a session that holds it.
    pub fn new(
        service: Arc<dyn CoordinationService>,
        clock: Arc<dyn Clock>,
        reports: Arc<dyn Reports>,
        options: OfficeOptions,
    ) -> Office {
        Office {
            service,
            clock,
            reports,
            options,
            known: BTreeMap::new(),
            copied: BTreeMap::new(),
            copied_before: None,
            waits_since: None,
            rates: VecDeque::new(),
            begun: None,
            answered: BTreeSet::new(),
            ended: BTreeSet::new(),
            published: None,
            seen: None,
            older_since: None,
            busy: false,
        }
    }

    /// Takes turns until the session is of no use. Cancel safe: what a turn had begun, the next one finds.
    pub async fn hold(&mut self) -> OfficeEnd {
        loop {
            let pause = match self.turn().await {
                Ok(true) => continue,
                Ok(false) if !self.busy => {
                    self.await_orders().await;
                    continue;
                }
                Ok(false) | Err(TurnError::Overtaken) => BUSY,
                Err(TurnError::Documents(ReadError::Coordination(CoordinationError::SessionLost))) => {
                    return OfficeEnd::SessionLost;
                }
                Err(TurnError::Documents(ReadError::Moved(this))) => return OfficeEnd::Moved(this),
                Err(error) => {
                    tracing::warn!(%error, "turn of the headmaster failed");
                    AWAY
                }
            };
            self.clock.sleep(pause).await;
        }
    }

    /// Waits for an order or another cluster document, but not for long: what else may be due wakes nobody.
    async fn await_orders(&self) {
        let sleep = self.clock.sleep(IDLE);
        let mut documents = watch_cluster(self.service.clone(), self.seen);
        let watched = async {
            let parent = wishes_path();
            create_parents(&*self.service, &numbered_path(&parent, 1)).await?;
            let (names, watch) = self.service.children_and_watch(&parent).await?;
            let is_new = |name: &String| name.parse().is_ok_and(|number| !self.answered.contains(&number));
            match names.iter().any(is_new) {
                true => Ok(()),
                false => watch.fired().await.map(drop),
            }
        };
        let woken = async {
            match select(pin!(watched), pin!(documents.next())).await {
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

    /// Does what is due. True when it has changed something, so that more may be due.
    ///
    /// # Errors
    /// See [`TurnError`]. The next turn goes on.
    pub async fn turn(&mut self) -> Result<bool, TurnError> {
        self.busy = false;
        let Some(cluster) = read_cluster(&*self.service).await? else { return Ok(false) };
        if self.seen.replace(cluster.generation).is_some_and(|seen| cluster.generation < seen) {
            // What nodes said is older than what they may go by.
            self.known.clear();
        }
        let active = active_nodes_now(&*self.service).await?;
        let scene = Scene { cluster, active };
        if let Some(newer) = self.newer_elsewhere(&scene).await? {
            return self.refuse_next(newer).await;
        }
        Ok(self.answer_next(&scene).await?
            || self.admit_waiting(&scene).await?
            || self.push(&scene).await?
            || self.conduct(&scene).await?
            || self.release_leaving(&scene).await?)
    }

    /// A node that goes by a newer document than the service holds: the service was restored from an older copy, and a
    /// document that followed its own would be another one under a number that nodes know.
    ///
    /// What a node said counts if it was said before the document was read: a node may be ahead of an earlier reading.
    /// Nothing is published meanwhile, and it is said when it lasts.
    async fn newer_elsewhere(&mut self, scene: &Scene) -> Result<Option<(NodeId, Generation)>, TurnError> {
        let present = scene.cluster.generation;
        let told = |(node, report): (&NodeId, &Report)| Some((*node, report.facts.adopted?.1));
        let newest = self.known.iter().filter_map(told).max_by_key(|(_, adopted)| *adopted);
        let newer = newest.filter(|(_, adopted)| *adopted > present);
        if let Some((node, adopted)) = newer {
            let now = self.clock.now();
            let (since, is_told) = self.older_since.get_or_insert((now, false));
            if now.since(*since) < LAG_MAX {
                return Err(TurnError::Overtaken);
            }
            if !std::mem::replace(is_told, true) {
                let (generation, stored) = (adopted.0, present.0);
                tracing::error!(%node, generation, stored, "coordination service holds an older cluster document than nodes");
            }
            return Ok(newer);
        }
        self.older_since = None;
        // Members of which nobody has heard yet in this office: all at first, later those that are registered.
        let is_first = self.known.is_empty();
        let members = scene.cluster.nodes.iter().map(|node| node.id);
        let unheard: Vec<NodeId> = members
            .filter(|id| !self.known.contains_key(id) && (is_first || scene.active(*id).is_some()))
            .collect();
        if !unheard.is_empty() {
            self.ask(scene, &unheard).await?;
        }
        Ok(None)
    }

    /// Publishes the cluster document that follows the scene's.
    pub(super) async fn publish(&mut self, cluster: &Cluster) -> Result<(), TurnError> {
        self.pace().await;
        publish_cluster(&*self.service, cluster).await?;
        self.seen = Some(cluster.generation);
        tracing::info!(generation = cluster.generation.0, "cluster document published");
        Ok(())
    }

    /// Waits until another document may be published.
    pub(super) async fn pace(&mut self) {
        if let Some(published) = self.published {
            self.clock.sleep_until(published.after(PUBLISH_INTERVAL)).await;
        }
        self.published = Some(self.clock.now());
    }

    /// Writes how far a plan is, if nobody else has meanwhile.
    pub(super) async fn write_state(
        &mut self,
        planned: &Planned,
        state: &PlanState,
    ) -> Result<(), TurnError> {
        let path = plan_state_path(planned.number);
        replace(&*self.service, &path, encode(state), planned.read.as_ref()).await?;
        if planned.state.as_ref().map(|state| state.phase) != Some(state.phase) {
            let plan = planned.number;
            tracing::info!(plan, phase = state.phase.word(), reason = state.reason, "plan changed its phase");
        }
        if state.phase.has_ended() {
            self.ended.insert(planned.number);
        }
        Ok(())
    }

    /// Writes the answer to an order.
    pub(super) async fn write_answer(&mut self, given: &Given, answer: Answer) -> Result<(), TurnError> {
        let path = numbered_path(&wishes_path(), given.number);
        tracing::info!(order = given.number, done = answer.done, answer = answer.text, "order answered");
        let document = OrderDocument { answer: Some(answer), ..given.document.clone() };
        replace(&*self.service, &path, encode(&document), Some(&given.read)).await?;
        self.answered.insert(given.number);
        Ok(())
    }

    /// What is known of these nodes, once they were asked; and why some did not answer.
    ///
    /// # Errors
    /// Also when one of them goes by a newer document than the scene's.
    pub(super) async fn ask(
        &mut self,
        scene: &Scene,
        nodes: &[NodeId],
    ) -> Result<(Facts, BTreeMap<NodeId, String>), TurnError> {
        let mut silent = BTreeMap::new();
        for (node, report) in self.reports.moves(&scene.cluster, nodes).await {
            match report {
                Ok(report) => {
                    self.known.insert(node, report);
                }
                Err(reason) => {
                    silent.insert(node, reason);
                }
            }
        }
        let mut facts = Facts::default();
        for &node in nodes {
            let Some(known) = self.known.get(&node) else { continue };
            let present = match scene.active(node) {
                Some(active) => Some(active.incarnation),
                None => read_member(&*self.service, node).await?.map(|member| member.incarnation),
            };
            let mut known = known.facts.clone();
            known.incarnation = present.or(known.incarnation);
            // The document is not the newest. The next turn reads it again, and judges.
            if known.adopted.is_some_and(|(_, adopted)| adopted > scene.cluster.generation) {
                return Err(TurnError::Overtaken);
            }
            facts.nodes.insert(node, known);
        }
        Ok((facts, silent))
    }

    /// What a node said last.
    pub(super) fn report(&self, node: NodeId) -> Option<&Report> {
        self.known.get(&node)
    }

    /// What time it is, for people.
    pub(super) fn now_ms(&self) -> u64 {
        self.clock.wall().0
    }
}
