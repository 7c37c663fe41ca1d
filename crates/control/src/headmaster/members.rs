//! Nodes that come and go.
//!
//! Where a node can be reached, it writes into the cluster document itself (`coordination::documents::readdress`): a
//! headmaster that went by registrations would write the old address again while the one of a killed process lasts.
//!
//! Must never: admit a node that was a member and has left. Its process may run and be registered for a while.

use std::collections::BTreeSet;

use coordination::documents::{MembershipError, admit, read_member};
use model::{Cluster, Generation, NodeId, Role};
use protocol::rebalance::planner::{self, Consent, Wish};

use super::desk::{changed, unknown};
use super::office::{Office, Scene, TurnError};
use super::reports::Report;
use crate::orders::{Answer, Given};
use crate::plans::Phase;

impl Office {
    /// Names a node that is registered.
    pub(super) async fn admit(&mut self, scene: &Scene, node: NodeId) -> Result<Answer, TurnError> {
        match scene.cluster.node(node).map(|entry| entry.role) {
            Some(Role::Leaving) => {
                return Ok(Answer::refused(format!(
                    "{node} is a member that is leaving the cluster; to keep it, run `tontine node recommission {}`",
                    node.0
                )));
            }
            Some(_) => return Ok(Answer::done(format!("{node} is a member of the cluster"))),
            None => {}
        }
        let Some(active) = scene.active(node) else {
            return Ok(Answer::refused(format!(
                "{node} is not registered; start it with `tontine serve`, and see who is with `tontine node list`"
            )));
        };
        // Its records are those of before it left: some have been deleted since, and nobody remembers that.
        if active.cluster.is_some() || read_member(&*self.service, node).await?.is_some() {
            return Ok(Answer::refused(format!(
                "{node} was a member and has left: what it holds is old; stop its process, and start it with an empty data \
                 directory, which makes it a new node"
            )));
        }
        self.pace().await;
        match admit(&*self.service, std::slice::from_ref(active)).await {
            Ok(_) => Ok(Answer::done(format!(
                "{node} is a member now and holds no data; `tontine plan create spread` gives it its share"
            ))),
            Err(MembershipError::Publish(error)) => Err(error.into()),
            Err(error) => Ok(Answer::refused(error.to_string())),
        }
    }

    /// A plan takes from the node what it has, and the node takes nothing new. The plan is applied first, because that
    /// may be refused: then nothing has changed.
    pub(super) async fn drain(
        &mut self,
        scene: &Scene,
        given: &Given,
        node: NodeId,
        consent: Consent,
    ) -> Result<Answer, TurnError> {
        let refused = |reason: String| Ok(Answer::refused(format!("{node} cannot be drained: {reason}")));
        let answer = match self.created_by(given.number).await? {
            Some(number) => self.apply(scene, given, number).await?,
            None => {
                if let Some(other) = self.under_way().await? {
                    let other = other.number;
                    return refused(format!(
                        "plan {other} is being carried out; wait for it with `tontine plan show {other}`"
                    ));
                }
                let wish = Wish::Drain { nodes: vec![node] };
                if let Ok(plan) = planner::plan(&scene.cluster, &wish, consent)
                    && !plan.is_empty()
                    && let Some(reason) = self.deaf(scene, &entering(&plan)).await?
                {
                    return refused(reason);
                }
                let answer = self.create(scene, given, wish, consent).await?;
                match (answer.done, answer.plan) {
                    // The plan stands; another turn finds it, and goes on with the document that is there then.
                    (true, Some(_)) => return Err(TurnError::Overtaken),
                    (true, None) => {
                        Answer::done(format!("{node} takes nothing new, and leaves when it holds nothing"))
                    }
                    (false, _) => return refused(answer.text),
                }
            }
        };
        if answer.done && scene.cluster.node(node).is_some_and(|entry| entry.role != Role::Leaving) {
            let cast = changed(&scene.cluster, node, |entry| entry.role = Role::Leaving);
            self.publish(&cast.expect("the node was found")).await?;
        }
        Ok(answer)
    }

    /// Takes a node that holds nothing out of the document.
    pub(super) async fn remove(&mut self, scene: &Scene, node: NodeId) -> Result<Answer, TurnError> {
        let Some(entry) = scene.cluster.node(node) else { return Ok(unknown(node)) };
        if scene.cluster.nodes.len() == 1 {
            return Ok(Answer::refused(format!("{node} is the only node of the cluster")));
        }
        self.ask(scene, &[node]).await?;
        if let Some(reason) = holds(&scene.cluster, node, self.report(node)) {
            let next = match entry.role {
                Role::Leaving if scene.active(node).is_none() => format!(
                    "start it, and it leaves by itself; if it is dead for good, run `tontine node replace {} OTHER` with any \
                     other node",
                    node.0
                ),
                Role::Leaving => match away(scene, node) {
                    Some(away) => format!(
                        "it leaves by itself when no other node lacks what it holds, and {away} is away: start {away}, or give its \
                         places to another with `tontine node replace {} OTHER`",
                        away.0
                    ),
                    None => {
                        "it leaves by itself when it holds nothing; see `tontine plan history`".to_owned()
                    }
                },
                _ => format!("take its data from it with `tontine node drain {}`", node.0),
            };
            return Ok(Answer::refused(format!("{node} cannot be removed: {reason}; {next}")));
        }
        if let Some(plan) = self.listed_by(node).await? {
            return Ok(Answer::refused(format!(
                "{node} cannot be removed: plan {plan} gives it partitions; end that first with `tontine plan abort {plan}`"
            )));
        }
        self.publish(&without(&scene.cluster, node)).await?;
        Ok(Answer::done(format!("{node} is no member any more; stop its process")))
    }

    /// Changes what the cluster wants of a node.
    pub(super) async fn cast(
        &mut self,
        scene: &Scene,
        node: NodeId,
        role: Role,
    ) -> Result<Answer, TurnError> {
        let word = match role {
            Role::Serving => {
                if let Some(plan) = self.emptied_by(node).await? {
                    return Ok(Answer::refused(format!(
                        "{node} cannot be taken back: plan {plan} takes all its data from it; end that first with `tontine \
                         plan abort {plan}`"
                    )));
                }
                "takes its share of the data again"
            }
            Role::Leaving => "takes nothing new, and leaves when it holds nothing",
            Role::Standby => "is given no share of the data by plans to come",
        };
        let done = format!("{node} {word}");
        self.change_node(scene, node, &done, |entry| (entry.role, entry.gone) = (role, false)).await
    }

    /// The plan that is carried out, and takes from this node all that it holds.
    async fn emptied_by(&mut self, node: NodeId) -> Result<Option<u64>, TurnError> {
        let Some(planned) = self.under_way().await? else { return Ok(None) };
        let goes_back = planned.state.as_ref().is_some_and(|state| state.phase == Phase::Aborting);
        let empties = planned.plan.places.get(&node).is_some_and(|&(before, after)| before > 0 && after == 0);
        Ok((empties && !goes_back).then_some(planned.number))
    }

    /// The plan that is carried out, and lists this node in a partition where it is not listed yet, perhaps.
    async fn listed_by(&mut self, node: NodeId) -> Result<Option<u64>, TurnError> {
        let Some(planned) = self.under_way().await? else { return Ok(None) };
        let lists = planned.plan.moves.iter().any(|one| one.to.contains(&node));
        Ok(lists.then_some(planned.number))
    }

    /// Names the nodes that wait for it.
    pub(super) async fn admit_waiting(&mut self, scene: &Scene) -> Result<bool, TurnError> {
        if !self.options.admits {
            return Ok(false);
        }
        let mut waiting = Vec::new();
        for active in &scene.active {
            let id = active.node.id;
            if scene.cluster.node(id).is_none() && read_member(&*self.service, id).await?.is_none() {
                waiting.push(active.clone());
            }
        }
        if waiting.is_empty() {
            return Ok(false);
        }
        self.pace().await;
        match admit(&*self.service, &waiting).await {
            Ok(_) => {
                let nodes: Vec<String> = waiting.iter().map(|active| active.node.id.to_string()).collect();
                tracing::info!(nodes = nodes.join(", "), "nodes admitted");
                Ok(true)
            }
            Err(MembershipError::Publish(error)) => Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "nodes not admitted");
                Ok(false)
            }
        }
    }

    /// Takes nodes that leave out of the document when they hold nothing.
    pub(super) async fn release_leaving(&mut self, scene: &Scene) -> Result<bool, TurnError> {
        let cluster = &scene.cluster;
        let leaving = cluster.nodes.iter().filter(|node| node.role == Role::Leaving).map(|node| node.id);
        let leaving: Vec<NodeId> = leaving.filter(|&node| !cluster.ring.lists(node)).collect();
        if leaving.is_empty() {
            return Ok(false);
        }
        self.busy = true;
        self.ask(scene, &leaving).await?;
        // One that is gone has nothing to say. Should it be there after all, it gives back what others lack.
        let is_gone =
            |node| cluster.node(node).is_some_and(|entry| entry.gone) && scene.active(node).is_none();
        let free = |node: &NodeId| is_gone(*node) || holds(cluster, *node, self.report(*node)).is_none();
        let Some(node) = leaving.into_iter().find(free) else { return Ok(false) };
        if self.listed_by(node).await?.is_some() {
            return Ok(false);
        }
        self.publish(&without(cluster, node)).await?;
        tracing::info!(%node, "node left the cluster");
        Ok(true)
    }
}

/// A member that is not registered, beside this node: it may lack what a leaving node holds, and keep it so.
fn away(scene: &Scene, node: NodeId) -> Option<NodeId> {
    let mut members = scene.cluster.nodes.iter().map(|member| member.id);
    members.find(|&member| member != node && scene.active(member).is_none())
}

/// Why a node may not leave yet, by what it said last.
pub(super) fn holds(cluster: &Cluster, node: NodeId, report: Option<&Report>) -> Option<String> {
    let replicas = cluster.replicas_max();
    let places = cluster.ring.partitions().iter();
    let places = places.filter(|partition| partition.nodes.iter().take(replicas).any(|&held| held == node));
    match places.count() {
        0 if cluster.ring.lists(node) => {
            return Some(format!("{node} is still a fallback, or enters partitions"));
        }
        0 => {}
        places => return Some(format!("{node} is a replica of {places} partitions")),
    }
    let Some(report) = report else { return Some(format!("{node} does not say what it holds")) };
    // What it held before it knew that nothing is its own any more does not count.
    if report.facts.adopted.is_none_or(|(_, adopted)| adopted < cluster.generation) {
        return Some(format!("{node} has not adopted generation {} yet", cluster.generation.0));
    }
    match (report.leftovers, report.hints) {
        (0, 0) => None,
        (0, hints) => Some(format!("{node} holds {hints} hints for other nodes")),
        (records, _) => Some(format!("{node} holds {records} records that other nodes may lack")),
    }
}

/// The next document, without a node that no partition names.
pub(super) fn without(cluster: &Cluster, node: NodeId) -> Cluster {
    let generation = Generation(cluster.generation.0 + 1);
    let mut next = Cluster { generation, nodes_changed: generation, ..cluster.clone() };
    next.nodes.retain(|known| known.id != node);
    next
}

/// The nodes that a plan brings something to.
pub(super) fn entering(plan: &planner::Plan) -> BTreeSet<NodeId> {
    plan.moves.iter().flat_map(|one| one.entering.iter().copied()).collect()
}
