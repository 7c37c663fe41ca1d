//! Nodes that come and go, and where they can be reached.
//!
//! Where a node can be reached, the node itself orders: a headmaster that followed registrations would write the old
//! address again while that of a killed process lasts.
//!
//! Must never: admit a node that was a member and has left. Its process may run and be registered for a while.

use std::collections::BTreeSet;

use model::balance::Join;
use model::order::{Done, Given, Holds, OrderRefusal};
use model::plan::{self, Consent, Phase, Wish};
use model::{Cluster, Node, NodeId, Role, Weight};

use super::orders::{change_node, changed, done, publish, refused};
use super::plans::created_by;
use super::users::unsafe_beside;
use super::{DecisionStep, Due, Headmaster, HeadmasterAction, Observation, Said, next, unasked};

/// Names a node that is registered.
pub(super) fn admit(seen: &Observation, given: &Given, node: NodeId) -> DecisionStep {
    match seen.cluster.node(node).map(|entry| entry.role) {
        Some(Role::Leaving) => return refused(given, OrderRefusal::NodeIsLeaving { node }),
        Some(_) => return done(seen, given, Done::NodeIsMember { node }),
        None => {}
    }
    let Some(active) = seen.registered(node) else {
        return refused(given, OrderRefusal::NodeNotRegistered { node });
    };
    // Its records are those of before it left: some have been deleted since, and nobody remembers that.
    if active.is_member || seen.remembered.contains_key(&node) {
        return refused(given, OrderRefusal::NodeWasMember { node });
    }
    match unfit(&seen.cluster, &active.node) {
        Some(refusal) => refused(given, refusal),
        None => publish(given, with(&seen.cluster, vec![active.node.clone()])),
    }
}

/// Why a node that is registered can be no member of this cluster, as far as its entry tells.
pub fn unfit(cluster: &Cluster, new: &Node) -> Option<OrderRefusal> {
    if let Some((address, other)) = new.address_taken(&cluster.nodes) {
        return Some(OrderRefusal::AddressTaken { node: new.id, address: address.to_owned(), other });
    }
    unsafe_beside(cluster, new).or_else(|| cluster.uneven_on_golden(new).map(OrderRefusal::Wish))
}

/// Changes how much of the data a node shall carry. On a golden ring each carries what its partition is.
pub(super) fn weigh(seen: &Observation, given: &Given, node: NodeId, weight: Weight) -> DecisionStep {
    if seen.cluster.ring.is_golden() && weight != Weight::default() {
        return refused(given, OrderRefusal::Wish(plan::PlanRefusal::Golden { wish: "weight".to_owned() }));
    }
    let change = |entry: &mut Node| entry.weight = weight;
    change_node(seen, given, node, Done::NodeWeighs { node, weight }, change)
}

/// The next document, with these nodes.
fn with(cluster: &Cluster, nodes: Vec<Node>) -> Cluster {
    let generation = next(cluster);
    let mut named = Cluster { generation, nodes_changed: generation, ..cluster.clone() };
    named.nodes.extend(nodes);
    named.nodes.sort_by_key(|node| node.id);
    named
}

/// The next document, without a node that no partition names.
fn without(cluster: &Cluster, node: NodeId) -> Cluster {
    let generation = next(cluster);
    let mut left = Cluster { generation, nodes_changed: generation, ..cluster.clone() };
    left.nodes.retain(|known| known.id != node);
    left
}

/// Writes where a node can be reached.
pub(super) fn readdress(
    seen: &Observation,
    given: &Given,
    node: NodeId,
    (native, resp, http, tls): (&str, &Option<String>, &Option<String>, bool),
) -> DecisionStep {
    let Some(entry) = seen.cluster.node(node) else {
        return refused(given, OrderRefusal::NodeUnknown { node });
    };
    let (native, resp, http) = (native.to_owned(), resp.clone(), http.clone());
    let moved = Node { native, resp, http, tls, ..entry.clone() };
    if let Some(refusal) = unsafe_beside(&seen.cluster, &moved) {
        return refused(given, refusal);
    }
    if let Some((address, other)) = moved.address_taken(&seen.cluster.nodes) {
        return refused(given, OrderRefusal::AddressTaken { node, address: address.to_owned(), other });
    }
    change_node(seen, given, node, Done::NodeReaddressed { node }, |entry| entry.clone_from(&moved))
}

/// Changes what the cluster wants of a node.
pub(super) fn cast(seen: &Observation, given: &Given, node: NodeId, role: Role) -> DecisionStep {
    if role == Role::Serving
        && let Some(plan) = emptied_by(seen, node)
    {
        return refused(given, OrderRefusal::PlanEmpties { node, plan });
    }
    let change = |entry: &mut Node| (entry.role, entry.gone) = (role, false);
    change_node(seen, given, node, Done::NodeCast { node, role }, change)
}

/// The plan that is carried out, and takes from this node all that it holds.
fn emptied_by(seen: &Observation, node: NodeId) -> Option<u64> {
    let planned = seen.under_way()?;
    let goes_back = planned.state.as_ref().is_some_and(|state| state.phase == Phase::Aborting);
    let empties = planned.plan.places.get(&node).is_some_and(|&(before, after)| before > 0 && after == 0);
    (empties && !goes_back).then_some(planned.number)
}

/// The plan that is carried out, and lists this node in a partition where it is not listed yet, perhaps.
fn listed_by(seen: &Observation, node: NodeId) -> Option<u64> {
    let planned = seen.under_way()?;
    let lists = planned.plan.change.moves().iter().any(|one| one.to.contains(&node));
    lists.then_some(planned.number)
}

/// A member that is not registered, beside this node: it may lack what a leaving node holds, and keep it so.
fn away(seen: &Observation, node: NodeId) -> Option<NodeId> {
    let mut members = seen.cluster.nodes.iter().map(|member| member.id);
    members.find(|&member| member != node && seen.registered(member).is_none())
}

/// Why a node may not leave yet, by what it said last.
fn holds(cluster: &Cluster, node: NodeId, said: Option<&Said>) -> Option<Holds> {
    let places = cluster.ring.partitions().iter();
    let places = places.filter(|partition| cluster.replicas_in(&partition.nodes).contains(&node));
    match places.count() {
        0 if cluster.ring.lists(node) => return Some(Holds::Listed),
        0 => {}
        partitions => return Some(Holds::Places { partitions }),
    }
    let Some(said) = said else { return Some(Holds::Silent) };
    // What it held before it knew that nothing is its own any more does not count.
    if said.facts.adopted.is_none_or(|(_, adopted)| adopted < cluster.generation) {
        return Some(Holds::NotAdopted { generation: cluster.generation });
    }
    match (said.leftovers, said.hints) {
        (0, 0) => None,
        (0, hints) => Some(Holds::Hints { hints }),
        (records, _) => Some(Holds::Records { records }),
    }
}

impl Headmaster {
    /// A plan takes from the node what it has, and the node takes nothing new. The plan is applied first, because that
    /// may be refused: then nothing has changed.
    pub(super) fn drain(
        &mut self,
        seen: &Observation,
        given: &Given,
        node: NodeId,
        consent: Consent,
    ) -> Due<DecisionStep> {
        let leaving = changed(&seen.cluster, node, |entry| entry.role = Role::Leaving);
        let is_leaving = seen.cluster.node(node).is_some_and(|entry| entry.role == Role::Leaving);
        let applied = match created_by(seen, given.number) {
            Some(number) => self.apply(seen, given, number)?,
            None => {
                if let Some(other) = seen.under_way() {
                    return Ok(refused(given, OrderRefusal::OtherPlan { other: other.number }));
                }
                let wish = Wish::Drain { nodes: vec![node] };
                match self.planned(&seen.cluster, &wish, consent) {
                    Err(refusal) => return Ok(refused(given, OrderRefusal::Wish(refusal))),
                    Ok(plan) if plan.is_empty() => done(seen, given, Done::NodeLeaves { node }),
                    Ok(plan) => {
                        let entering = plan.change.entering(&seen.cluster).into_iter();
                        let entering = entering.map(|(node, _)| node).collect();
                        return match self.deaf(seen, &entering)? {
                            Some(refusal) => Ok(refused(given, refusal)),
                            None => self.save(seen, given, plan, (&wish, consent)),
                        };
                    }
                }
            }
        };
        let is_done = matches!(&applied, DecisionStep::Do(actions) if actions.iter().any(is_done));
        match leaving {
            Some(next) if is_done && !is_leaving => Ok(publish(given, next)),
            _ => Ok(applied),
        }
    }

    /// Takes a node that holds nothing out of the document.
    pub(super) fn remove(&mut self, seen: &Observation, given: &Given, node: NodeId) -> Due<DecisionStep> {
        let Some(entry) = seen.cluster.node(node) else {
            return Ok(refused(given, OrderRefusal::NodeUnknown { node }));
        };
        if seen.cluster.nodes.len() == 1 {
            return Ok(refused(given, OrderRefusal::OnlyNode { node }));
        }
        self.facts(seen, &BTreeSet::from([node]))?;
        if let Some(holds) = holds(&seen.cluster, node, self.known.get(&node)) {
            let (is_leaving, is_registered) = (entry.role == Role::Leaving, seen.registered(node).is_some());
            let away = away(seen, node);
            return Ok(refused(
                given,
                OrderRefusal::NodeHolds { node, holds, is_leaving, is_registered, away },
            ));
        }
        if let Some(plan) = listed_by(seen, node) {
            return Ok(refused(given, OrderRefusal::PlanGives { node, plan }));
        }
        Ok(publish(given, without(&seen.cluster, node)))
    }

    /// Names the nodes that wait for it.
    pub(super) fn admit_waiting(&mut self, seen: &Observation) -> Due<Option<DecisionStep>> {
        if seen.policy.as_ref().is_none_or(|policy| policy.settings.join != Join::Auto) {
            return Ok(None);
        }
        let mut waiting: Vec<Node> = Vec::new();
        for active in &seen.registered {
            let id = active.node.id;
            // A member of a newer document than the service holds is none that waits.
            let is_new =
                !active.is_member && seen.cluster.node(id).is_none() && !seen.remembered.contains_key(&id);
            let known = seen.cluster.nodes.iter().chain(&waiting);
            let is_uneven = seen.cluster.uneven_on_golden(&active.node).is_some();
            let may_join = unsafe_beside(&seen.cluster, &active.node).is_none() && !is_uneven;
            if is_new && may_join && active.node.address_taken(known).is_none() {
                waiting.push(active.node.clone());
            }
        }
        Ok((!waiting.is_empty()).then(|| unasked(with(&seen.cluster, waiting))))
    }

    /// Takes nodes that leave out of the document when they hold nothing.
    pub(super) fn release_leaving(&mut self, seen: &Observation) -> Due<Option<DecisionStep>> {
        let cluster = &seen.cluster;
        let leaving = cluster.nodes.iter().filter(|node| node.role == Role::Leaving).map(|node| node.id);
        let leaving: BTreeSet<NodeId> = leaving.filter(|&node| !cluster.ring.lists(node)).collect();
        if leaving.is_empty() {
            return Ok(None);
        }
        self.is_busy();
        self.facts(seen, &leaving)?;
        // One that is gone has nothing to say. Should it be there after all, it gives back what others lack.
        let is_gone =
            |node| cluster.node(node).is_some_and(|entry| entry.gone) && seen.registered(node).is_none();
        let free = |node: &NodeId| is_gone(*node) || holds(cluster, *node, self.known.get(node)).is_none();
        let free = leaving.into_iter().find(free).filter(|node| listed_by(seen, *node).is_none());
        Ok(free.map(|node| unasked(without(cluster, node))))
    }
}

/// Whether an order is answered as carried out.
fn is_done(action: &HeadmasterAction) -> bool {
    matches!(action, HeadmasterAction::Answer { answer, .. } if answer.is_done())
}
