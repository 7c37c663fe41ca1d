//! Orders of operators, one after another, each with its answer.
//!
//! An order may be begun by one headmaster and answered by its successor: what was done already for the same order is
//! found, and not done twice.

use std::collections::{BTreeMap, BTreeSet};

use coordination::documents::ReadError;
use coordination::documents::numbered::{create_next, keep, numbers, plans_path, wishes_path};
use model::cluster::Accepted;
use model::{Cluster, Consistency, Generation, Node, NodeId};
use protocol::rebalance::planner::{Consent, Renumber, Reshape, Wish};
use protocol::rebalance::steps;

use super::office::{Office, Scene, TurnError};
use crate::orders::{self, Answer, Given, ORDERS_KEPT, Order};
use crate::plans::{
    self, PLANS_KEPT, Phase, PlanDocument, PlanPace, PlanState, Planned, Progress, Size, encode,
};

/// Lines of a plan that say what blocks it.
const BLOCKED_SHOWN: usize = 8;

impl Office {
    /// Answers the oldest order that has no answer.
    pub(super) async fn answer_next(&mut self, scene: &Scene) -> Result<bool, TurnError> {
        let Some(given) = self.next_order().await? else { return Ok(false) };
        let answer = match self.answer(scene, &given).await {
            // It would be so at each turn, and keep all other orders waiting.
            Err(TurnError::Refused(error)) => Answer::refused(error.to_string()),
            answer => answer?,
        };
        self.write_answer(&given, answer).await?;
        keep(&*self.service, &wishes_path(), ORDERS_KEPT, |_| true).await?;
        Ok(true)
    }

    /// Refuses it, since this node goes by a newer document than the service holds.
    pub(super) async fn refuse_next(
        &mut self,
        (node, generation): (NodeId, Generation),
    ) -> Result<bool, TurnError> {
        self.busy = true;
        let Some(given) = self.next_order().await? else { return Ok(false) };
        let reason = format!(
            "nothing was ordered: {node} goes by generation {} of the cluster document, and the coordination service holds an \
             older one, so it was restored from an older copy; import the newest export into an empty place with `tontine \
             coordination import`, and start the nodes with that",
            generation.0
        );
        self.write_answer(&given, Answer::refused(reason)).await?;
        Ok(true)
    }

    /// The oldest order that has no answer.
    async fn next_order(&mut self) -> Result<Option<Given>, TurnError> {
        for number in numbers(&*self.service, &wishes_path()).await? {
            if self.answered.contains(&number) {
                continue;
            }
            match orders::read(&*self.service, number).await {
                Ok(Some(given)) if given.document.answer.is_none() => return Ok(Some(given)),
                Ok(_) => {
                    self.answered.insert(number);
                }
                Err(ReadError::Malformed { path, reason }) => {
                    tracing::warn!(%path, reason, "order not understood");
                    self.answered.insert(number);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    async fn answer(&mut self, scene: &Scene, given: &Given) -> Result<Answer, TurnError> {
        match given.document.order.clone() {
            Order::Create { wish, consent } => self.create(scene, given, wish, consent).await,
            Order::Apply { plan } => self.apply(scene, given, plan).await,
            Order::Abort { plan } => self.abort(given, plan).await,
            Order::Pause { plan } => self.turn_phase(given, plan, Phase::Applying, Phase::Paused).await,
            Order::Resume { plan } => self.turn_phase(given, plan, Phase::Paused, Phase::Applying).await,
            Order::Admit { node } => self.admit(scene, node).await,
            Order::Drain { node, consent } => self.drain(scene, given, node, consent).await,
            Order::Renumber { store, numbers, consent } => {
                self.renumber(scene, given, Wish::Numbers { store, numbers }, consent).await
            }
            Order::Remove { node } => self.remove(scene, node).await,
            Order::Replace { node, by, consent } => {
                self.replace_dead(scene, given, (node, by), consent).await
            }
            Order::Weigh { node, weight } => {
                let done = format!(
                    "{node} has weight {} now; `tontine plan create spread` goes by it",
                    weight.get()
                );
                self.change_node(scene, node, &done, |entry| entry.weight = weight).await
            }
            Order::Cast { node, role } => self.cast(scene, node, role).await,
        }
    }

    pub(super) async fn create(
        &mut self,
        scene: &Scene,
        given: &Given,
        wish: Wish,
        consent: Consent,
    ) -> Result<Answer, TurnError> {
        if let Some(number) = self.created_by(given.number).await? {
            return Ok(Answer::done(format!("created plan {number}")).of_plan(number));
        }
        let plan = match plans::planned(&scene.cluster, &wish, consent) {
            Ok(plan) if plan.is_empty() => {
                return Ok(Answer::done("there is nothing to move: no plan was created"));
            }
            Ok(plan) => plan,
            Err(refusal) => return Ok(Answer::refused(refusal.to_string())),
        };
        let mut document = PlanDocument::new(plan, wish, consent);
        document.order = given.number;
        document.by.clone_from(&given.document.by);
        document.created_ms = self.now_ms();
        document.estimate = self.estimate(scene, &document).await;
        document.units = units(&scene.cluster, &document);
        document.pace = self.pace_before(&document).await?;
        document.blocked = blocked(scene, &document);
        let data = encode(&document);
        if data.len() > coordination::DOCUMENT_BYTES_MAX {
            return Ok(Answer::refused(format!(
                "the plan has {} moves, more than a document holds; move fewer partitions with `tontine plan create move`",
                document.moves.len()
            )));
        }
        let number = create_next(&*self.service, &plans_path(), data).await?;
        let under_way = self.under_way().await?.map(|planned| planned.number);
        keep(&*self.service, &plans_path(), PLANS_KEPT, |number| Some(number) != under_way).await?;
        Ok(Answer::done(format!("created plan {number}")).of_plan(number))
    }

    /// Creates a plan by which a store gets other numbers, and carries it out.
    async fn renumber(
        &mut self,
        scene: &Scene,
        given: &Given,
        wish: Wish,
        consent: Consent,
    ) -> Result<Answer, TurnError> {
        let refused = |reason: String| Ok(Answer::refused(format!("nothing was changed: {reason}")));
        if let Some(number) = self.created_by(given.number).await? {
            return self.apply(scene, given, number).await;
        }
        if let Some(other) = self.under_way().await? {
            let other = other.number;
            return refused(format!(
                "plan {other} is being carried out, and one plan is at a time; wait for it with `tontine plan show {other}`, \
                 or end it with `tontine plan abort {other}`"
            ));
        }
        let plan = match plans::planned(&scene.cluster, &wish, consent) {
            Ok(plan) if plan.is_empty() => return Ok(Answer::done("the store has these numbers already")),
            Ok(plan) => PlanDocument::new(plan, wish.clone(), consent),
            Err(refusal) => return refused(refusal.to_string()),
        };
        let entering = plan.entering(&scene.cluster).into_iter().map(|(node, _)| node).collect();
        let reason = too_old(scene).or(self.deaf(scene, &entering).await?);
        if let Some(reason) = reason {
            return refused(reason);
        }
        let answer = self.create(scene, given, wish, consent).await?;
        match (answer.done, answer.plan) {
            // The plan stands; another turn finds it, and goes on with the document that is there then.
            (true, Some(_)) => Err(TurnError::Overtaken),
            (true, None) => Ok(answer),
            (false, _) => refused(answer.text),
        }
    }

    /// The plan that this order created. A successor looks for it.
    pub(super) async fn created_by(&self, order: u64) -> Result<Option<u64>, TurnError> {
        let Some(&last) = plans::all_numbers(&*self.service).await?.last() else { return Ok(None) };
        let last = match plans::read(&*self.service, last).await {
            // What is not understood was created by a later version.
            Err(ReadError::Malformed { .. }) => None,
            last => last?,
        };
        Ok(last.filter(|planned| planned.plan.order == order).map(|planned| planned.number))
    }

    /// About how much a plan brings in: of what leaves a node, as large a part as places of the node.
    async fn estimate(&self, scene: &Scene, plan: &PlanDocument) -> Option<Size> {
        let nodes: Vec<NodeId> = plan.places.keys().copied().collect();
        let sizes = self.reports.sizes(&scene.cluster, &nodes).await;
        let mean = |node: &NodeId| {
            let (places, size) = (plan.places.get(node)?.0, sizes.get(node)?);
            (places > 0).then(|| (size.records as f64 / places as f64, size.bytes as f64 / places as f64))
        };
        if plan.numbers.is_some() {
            // Nodes say how much they hold of all stores together.
            return None;
        }
        let (mut records, mut bytes) = (0.0, 0.0);
        for one in &plan.moves {
            let holders = one.from.iter().filter_map(mean);
            let (count, sum) = holders
                .fold((0, (0.0, 0.0)), |(count, sum), mean| (count + 1, (sum.0 + mean.0, sum.1 + mean.1)));
            if count == 0 && !one.entering.is_empty() {
                return None;
            }
            let copies = one.entering.len() as f64 / f64::from(count.max(1));
            records += sum.0 * copies;
            bytes += sum.1 * copies;
        }
        Some(Size { records: records as u64, bytes: bytes as u64 })
    }

    /// How fast the last plan was carried out that tells how long this one takes.
    async fn pace_before(&self, plan: &PlanDocument) -> Result<Option<PlanPace>, TurnError> {
        let Some(cost) = plan.cost() else { return Ok(None) };
        let all = plans::read_all(&*self.service).await?;
        let found = all.iter().rev().filter_map(|(_, found)| found.as_ref().ok());
        Ok(found.filter_map(|planned| PlanDocument::pace_of(planned, cost)).next())
    }

    pub(super) async fn apply(
        &mut self,
        scene: &Scene,
        given: &Given,
        number: u64,
    ) -> Result<Answer, TurnError> {
        let planned = match self.known_plan(number).await? {
            Ok(planned) => planned,
            Err(refused) => return Ok(refused),
        };
        if let Some(state) = &planned.state {
            return Ok(match state.order == given.number {
                true => Answer::done(format!("plan {number} is being carried out")).of_plan(number),
                false => Answer::refused(format!(
                    "plan {number} cannot be applied: it is {} already; {}",
                    planned.word(),
                    match planned.is_under_way() {
                        true => format!("see how far it is with `tontine plan show {number}`"),
                        false => "create another one with `tontine plan create`".to_owned(),
                    }
                )),
            });
        }
        if let Some(other) = self.under_way().await? {
            let other = other.number;
            return Ok(Answer::refused(format!(
                "plan {number} cannot be applied: plan {other} is being carried out, and one plan is at a time; wait for \
                 it with `tontine plan show {other}`, or end it with `tontine plan abort {other}`"
            )));
        }
        if let Err(reason) = self.fits(scene, &planned).await? {
            return Ok(Answer::refused(reason));
        }
        self.begin(given, &planned).await?;
        let what = what(&planned.plan);
        Ok(Answer::done(format!("plan {number} is being carried out: {what}")).of_plan(number))
    }

    async fn begin(&mut self, given: &Given, planned: &Planned) -> Result<(), TurnError> {
        let moves = planned.plan.partitions();
        let state = PlanState {
            phase: Phase::Applying,
            order: given.number,
            reason: None,
            begun_ms: self.now_ms(),
            ended_ms: None,
            progress: Progress { waiting: moves, ..Progress::default() },
            bytes_per_second: None,
            seconds_left: planned.plan.takes().map(|takes| takes.as_secs()),
            was_paused: false,
            waiting: Vec::new(),
        };
        self.forget_course();
        self.write_state(planned, &state).await
    }

    /// Whether the plan is still what the cluster needs, and its nodes can carry it out.
    async fn fits(&mut self, scene: &Scene, planned: &Planned) -> Result<Result<(), String>, TurnError> {
        let (number, plan) = (planned.number, &planned.plan);
        let again = plans::planned(&scene.cluster, &plan.wish, plan.consent);
        let reason = match again {
            Ok(again)
                if again.moves == plan.moves
                    && again.reshape == plan.reshape
                    && again.numbers == plan.numbers =>
            {
                None
            }
            Ok(_) if plan.numbers.is_some() => Some("the store has other numbers".to_owned()),
            Ok(_) if plan.reshape.is_some() => Some("it would cut or join elsewhere".to_owned()),
            Ok(_) => Some("other moves would do it now".to_owned()),
            Err(refusal) => Some(refusal.to_string()),
        };
        if let Some(reason) = reason {
            let (then, now) = (plan.generation.0, scene.cluster.generation.0);
            return Ok(Err(format!(
                "plan {number} cannot be applied: it was computed from generation {then}, and at generation {now} {reason}; \
                 create a new one with `tontine plan create`"
            )));
        }
        let entering = plan.entering(&scene.cluster).into_iter().map(|(node, _)| node).collect();
        if let Some(reason) = plan.numbers.as_ref().and_then(|_| too_old(scene)) {
            return Ok(Err(format!("plan {number} cannot be applied: {reason}")));
        }
        let deaf = self.deaf(scene, &entering).await?;
        Ok(deaf.map_or(Ok(()), |reason| Err(format!("plan {number} cannot be applied: {reason}"))))
    }

    /// Why what these nodes enter cannot be carried out: one of them does not say how far it is. Of any other node that is
    /// silent the steps that need it wait, and the plan says so.
    pub(super) async fn deaf(
        &mut self,
        scene: &Scene,
        entering: &BTreeSet<NodeId>,
    ) -> Result<Option<String>, TurnError> {
        let nodes: Vec<NodeId> = entering.iter().copied().collect();
        let (_, silent) = self.ask(scene, &nodes).await?;
        Ok(silent.first_key_value().map(|(node, reason)| {
            format!(
                "{node} does not say how far it is with moves: {reason}; look at it with `tontine status`"
            )
        }))
    }

    async fn known_plan(&self, number: u64) -> Result<Result<Planned, Answer>, TurnError> {
        match plans::read(&*self.service, number).await {
            Ok(Some(planned)) => Ok(Ok(planned)),
            Ok(None) => Ok(Err(Answer::refused(format!(
                "there is no plan {number}; see them with `tontine plan history`"
            )))),
            Err(ReadError::Malformed { reason, .. }) => Ok(Err(Answer::refused(format!(
                "plan {number} is not understood by the headmaster: {reason}; a later version created it: run the \
                 headmaster of that version, `tontine headmaster`, alone"
            )))),
            Err(error) => Err(error.into()),
        }
    }

    async fn abort(&mut self, given: &Given, number: u64) -> Result<Answer, TurnError> {
        let planned = match self.known_plan(number).await? {
            Ok(planned) => planned,
            Err(refused) => return Ok(refused),
        };
        let done = Answer::done(format!("plan {number} is being aborted: what has not settled goes back"));
        let Some(state) = &planned.state else {
            self.begin(given, &planned).await?;
            return self.abort_begun(given, number).await;
        };
        if state.order == given.number && state.phase != Phase::Applying {
            return Ok(done.of_plan(number));
        }
        if state.phase.has_ended() || state.phase == Phase::Aborting {
            return Ok(Answer::refused(format!(
                "plan {number} cannot be aborted: it is {} already",
                planned.word()
            )));
        }
        let state = PlanState { phase: Phase::Aborting, order: given.number, ..state.clone() };
        self.write_state(&planned, &state).await?;
        Ok(done.of_plan(number))
    }

    /// Ends a plan that was never applied.
    async fn abort_begun(&mut self, given: &Given, number: u64) -> Result<Answer, TurnError> {
        let Ok(planned) = self.known_plan(number).await? else { return Err(TurnError::Overtaken) };
        let Some(state) = planned.state.clone() else { return Err(TurnError::Overtaken) };
        let ended_ms = Some(self.now_ms());
        let state = PlanState { phase: Phase::Aborted, order: given.number, ended_ms, ..state };
        self.write_state(&planned, &state).await?;
        Ok(Answer::done(format!("plan {number} is aborted: it had not begun")).of_plan(number))
    }

    async fn turn_phase(
        &mut self,
        given: &Given,
        number: u64,
        from: Phase,
        to: Phase,
    ) -> Result<Answer, TurnError> {
        let planned = match self.known_plan(number).await? {
            Ok(planned) => planned,
            Err(refused) => return Ok(refused),
        };
        let text = match to {
            Phase::Paused => format!("plan {number} is paused: go on with `tontine plan resume {number}`"),
            _ => format!("plan {number} is {}", to.word()),
        };
        let done = Answer::done(text).of_plan(number);
        match &planned.state {
            Some(state) if state.phase == to && state.order == given.number => Ok(done),
            Some(state) if state.phase == from => {
                let was_paused = state.was_paused || to == Phase::Paused;
                let seconds_left = None;
                let order = given.number;
                let state = PlanState { phase: to, order, was_paused, seconds_left, ..state.clone() };
                self.write_state(&planned, &state).await?;
                Ok(done)
            }
            _ => Ok(Answer::refused(format!(
                "plan {number} is {}, not {}; see it with `tontine plan show {number}`",
                planned.word(),
                from.word()
            ))),
        }
    }

    pub(super) async fn change_node(
        &mut self,
        scene: &Scene,
        node: NodeId,
        done: &str,
        change: impl Fn(&mut Node),
    ) -> Result<Answer, TurnError> {
        let Some(next) = changed(&scene.cluster, node, change) else { return Ok(unknown(node)) };
        if next.nodes != scene.cluster.nodes {
            self.publish(&next).await?;
        }
        Ok(Answer::done(done))
    }
}

/// Why no store can change its numbers: a node would not understand the document.
fn too_old(scene: &Scene) -> Option<String> {
    let form = model::cluster::FORM;
    let old = scene.active.iter().find(|active| active.reads_form < form)?;
    Some(format!(
        "{} runs an older version, which does not understand a document in which a store changes; upgrade it first",
        old.node.id
    ))
}

/// About how many buckets of stores a plan brings in somewhere: partitions count as equally wide.
fn units(cluster: &Cluster, plan: &PlanDocument) -> u64 {
    let partitions = cluster.ring.partitions().len() as u64;
    (plan.copies() * cluster.stores.len()) as u64 * u64::from(cluster.buckets) / partitions.max(1)
}

/// What a plan does, in short.
fn what(plan: &PlanDocument) -> String {
    if let Some(Renumber { store, to, .. }) = &plan.numbers {
        let Consistency { replicas, reads_required, writes_required } = to;
        return format!("store {store} gets N={replicas}, R={reads_required} and W={writes_required}");
    }
    let moves = match plan.moves.len() {
        1 => "1 partition moves".to_owned(),
        moves => format!("{moves} partitions move"),
    };
    match &plan.reshape {
        None => moves,
        Some(Reshape::Cut { cuts }) if cuts.len() == 1 => "a partition is split".to_owned(),
        Some(Reshape::Cut { cuts }) => format!("{} partitions are split", cuts.len()),
        Some(Reshape::Join { .. }) if plan.moves.is_empty() => "two partitions become one".to_owned(),
        Some(Reshape::Join { .. }) => format!("{moves}, then it is one with its neighbour"),
    }
}

pub(super) fn unknown(node: NodeId) -> Answer {
    Answer::refused(format!("the cluster has no node {node}; see its nodes with `tontine node list`"))
}

/// The next document, with another entry for a node.
pub(super) fn changed(cluster: &Cluster, node: NodeId, change: impl Fn(&mut Node)) -> Option<Cluster> {
    let nodes_changed = cluster.nodes_changed;
    let generation = Generation(cluster.generation.0 + 1);
    let mut next = Cluster { generation, nodes_changed, ..cluster.clone() };
    change(next.nodes.iter_mut().find(|known| known.id == node)?);
    Some(next)
}

/// Steps that cannot be taken while nodes are away that are away now.
fn blocked(scene: &Scene, plan: &PlanDocument) -> Vec<String> {
    let nodes = scene.cluster.nodes.iter().map(|node| node.id);
    let away: Vec<NodeId> = nodes.filter(|&node| scene.active(node).is_none()).collect();
    if away.is_empty() {
        return Vec::new();
    }
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    if let Some(Renumber { store, to, .. }) = &plan.numbers {
        let Consent { fewer_zones, weaker } = plan.consent;
        let accepted = Accepted { fewer_zones, weaker };
        let begun = steps::begin_numbers(&scene.cluster, store.as_str(), *to, accepted);
        let blocked = begun.iter().flat_map(|begun| steps::numbers_blocked_by(begun, &away));
        for (step, _, waiting) in blocked {
            *lines.entry(format!("{step}: {waiting}")).or_default() += 1;
        }
    }
    for one in &plan.moves {
        let Some(partition) = scene.cluster.ring.get(one.partition) else { continue };
        for (step, waiting) in steps::blocked_by(&scene.cluster, partition, &one.to, &away) {
            *lines.entry(format!("{step}: {waiting}")).or_default() += 1;
        }
    }
    let line = |(line, count)| format!("{line} ({count} partitions)");
    lines.into_iter().take(BLOCKED_SHOWN).map(line).collect()
}
