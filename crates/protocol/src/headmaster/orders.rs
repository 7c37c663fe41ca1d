//! Orders, one after another, each with its answer.
//!
//! An order may be begun by one headmaster and answered by its successor: what was done already for the same order is
//! found in the documents, and not done twice.

use std::collections::BTreeSet;

use model::ArtifactOrder;
use model::cluster::Ordered;
use model::order::{Done, Given, Order, OrderOutcome, OrderRefusal};
use model::plan::{self, Consent, Phase, Wish};
use model::{Cluster, Node, NodeId};

use super::members::{admit, cast, readdress, weigh};
use super::plans::{created_by, too_old, turned};
use super::{DecisionStep, Due, Headmaster, HeadmasterAction, Observation, answered, next};

impl Headmaster {
    /// Sees to the oldest order that has no answer.
    pub(super) fn answer_next(&mut self, seen: &Observation) -> Due<Option<DecisionStep>> {
        let Some(given) = &seen.order else { return Ok(None) };
        if self.patient_since.is_some_and(|(order, _)| order != given.number) {
            self.patient_since = None;
        }
        if let Some(step) = self.makes_room(seen, given) {
            return Ok(Some(step));
        }
        let step = match self.see_to(seen, given)? {
            // It would be so at each turn, and keep all other orders waiting.
            DecisionStep::Do(actions) => match unpublishable(&actions, self.document_bytes_max) {
                Some(refusal) => refused(given, refusal),
                None => DecisionStep::Do(actions),
            },
            wait => wait,
        };
        Ok(Some(step))
    }

    fn see_to(&mut self, seen: &Observation, given: &Given) -> Due<DecisionStep> {
        if let Some(what) = by_document(&given.document.order)
            && is_carried_out(seen, given)
        {
            return Ok(done(seen, given, what));
        }
        match &given.document.order {
            Order::Create { wish, consent } => self.create(seen, given, wish, *consent),
            Order::Apply { plan } => self.apply(seen, given, *plan),
            Order::Abort { plan } => Ok(self.abort(seen, given, *plan)),
            Order::Pause { plan } => Ok(turned(seen, given, *plan, Phase::Applying, Phase::Paused)),
            Order::Resume { plan } => Ok(turned(seen, given, *plan, Phase::Paused, Phase::Applying)),
            Order::Admit { node } => Ok(admit(seen, given, *node)),
            Order::Drain { node, consent } => self.drain(seen, given, *node, *consent),
            Order::Renumber { store, numbers, consent } => {
                let wish = Wish::Numbers { store: store.clone(), numbers: *numbers };
                self.renumber(seen, given, &wish, *consent)
            }
            Order::Remove { node } => self.remove(seen, given, *node),
            Order::Replace { node, by, consent } => self.replace(seen, given, (*node, *by), *consent),
            Order::Weigh { node, weight } => Ok(weigh(seen, given, *node, *weight)),
            Order::Cast { node, role } => Ok(cast(seen, given, *node, *role)),
            Order::Readdress { node, native, resp, http, tls } => {
                Ok(readdress(seen, given, *node, (native, resp, http, *tls)))
            }
            Order::CreateStore { store } | Order::CreatePlacedStore { store } => {
                Ok(super::stores::create(seen, given, store))
            }
            Order::Balance { change } => Ok(super::balance::changed(seen, given, change)),
            Order::Artifacts { order } => self.artifacts(seen, given, order),
            Order::User { user } => Ok(super::users::change(seen, given, user)),
        }
    }

    /// Why what these nodes enter cannot be carried out: one of them does not say how far it is. Of any other node that is
    /// silent the steps that need it wait, and the plan says so.
    pub(super) fn deaf(
        &mut self,
        seen: &Observation,
        entering: &BTreeSet<NodeId>,
    ) -> Due<Option<OrderRefusal>> {
        let (_, silent) = self.facts(seen, entering)?;
        let deaf = silent.into_iter().next();
        Ok(deaf.map(|(node, detail)| OrderRefusal::NodeDeaf { node, detail }))
    }

    /// Creates a plan by which a store gets other numbers, and carries it out.
    fn renumber(
        &mut self,
        seen: &Observation,
        given: &Given,
        wish: &Wish,
        consent: Consent,
    ) -> Due<DecisionStep> {
        if let Some(number) = created_by(seen, given.number) {
            return self.apply(seen, given, number);
        }
        if let Some(other) = seen.under_way() {
            return Ok(refused(given, OrderRefusal::OtherPlan { other: other.number }));
        }
        let plan = match self.planned(&seen.cluster, wish, consent) {
            Ok(plan) if plan.is_empty() => return Ok(done(seen, given, Done::NumbersStand)),
            Ok(plan) => plan,
            Err(refusal) => return Ok(refused(given, OrderRefusal::Wish(refusal))),
        };
        if let Some(node) = too_old(seen, model::cluster::FORM) {
            return Ok(refused(given, OrderRefusal::NodeTooOld { node }));
        }
        let entering = plan.change.entering(&seen.cluster).into_iter().map(|(node, _)| node).collect();
        if let Some(refusal) = self.deaf(seen, &entering)? {
            return Ok(refused(given, refusal));
        }
        self.save(seen, given, plan, (wish, consent))
    }
}

/// What an order comes to that one document carries out; `None` of one that takes more.
fn by_document(order: &Order) -> Option<Done> {
    Some(match order {
        Order::Admit { node } => Done::NodeAdmitted { node: *node },
        Order::Remove { node } => Done::NodeRemoved { node: *node },
        Order::Weigh { node, weight } => Done::NodeWeighs { node: *node, weight: *weight },
        Order::Cast { node, role } => Done::NodeCast { node: *node, role: *role },
        Order::Readdress { node, .. } => Done::NodeReaddressed { node: *node },
        Order::CreateStore { store } | Order::CreatePlacedStore { store } => {
            Done::StoreCreated { store: store.name.clone() }
        }
        Order::Artifacts { order: ArtifactOrder::Create { store, .. } } => {
            Done::StoreCreated { store: store.clone() }
        }
        Order::Artifacts { order } => Done::ArtifactsChanged { store: order.store().clone() },
        Order::User { user } => Done::UserChanged { user: user.user().clone() },
        _ => return None,
    })
}

/// An order is carried out.
pub(super) fn done(seen: &Observation, given: &Given, done: Done) -> DecisionStep {
    answered(given, OrderOutcome::Done { done, plan: None, generation: seen.cluster.generation })
}

/// An order is refused.
pub(super) fn refused(given: &Given, refusal: OrderRefusal) -> DecisionStep {
    answered(given, refusal.into())
}

/// A document is published that carries the order out, and says so: the next observation shows it.
pub(super) fn publish(given: &Given, cluster: Cluster) -> DecisionStep {
    let ordered = Some(ordered(given));
    DecisionStep::Do(vec![HeadmasterAction::Publish(Box::new(Cluster { ordered, ..cluster }))])
}

fn ordered(given: &Given) -> Ordered {
    Ordered { order: given.number, given_ms: given.document.given_ms }
}

/// Whether a document has carried the order out, at an earlier turn of whichever headmaster.
fn is_carried_out(seen: &Observation, given: &Given) -> bool {
    seen.cluster.ordered == Some(ordered(given))
}

/// Changes one node's entry, unless it is so already.
pub(super) fn change_node(
    seen: &Observation,
    given: &Given,
    node: NodeId,
    what: Done,
    change: impl Fn(&mut Node),
) -> DecisionStep {
    match changed(&seen.cluster, node, change) {
        None => refused(given, OrderRefusal::NodeUnknown { node }),
        Some(next) if next.nodes != seen.cluster.nodes => publish(given, next),
        Some(_) => done(seen, given, what),
    }
}

/// The next document, with another entry for a node.
pub(super) fn changed(cluster: &Cluster, node: NodeId, change: impl Fn(&mut Node)) -> Option<Cluster> {
    let mut changed = Cluster { generation: next(cluster), ..cluster.clone() };
    change(changed.nodes.iter_mut().find(|known| known.id == node)?);
    Some(changed)
}

/// Why a document that is to be published cannot be: it contradicts itself, or is too large for the service.
fn unpublishable(actions: &[HeadmasterAction], bytes_max: usize) -> Option<OrderRefusal> {
    actions.iter().find_map(|action| {
        let HeadmasterAction::Publish(cluster) = action else { return None };
        if let Err(error) = cluster.check() {
            return Some(OrderRefusal::Invalid { detail: error.to_string() });
        }
        let (partitions, bytes) = (cluster.ring.partitions().len(), cluster.document_bytes());
        let too_large = plan::PlanRefusal::TooLarge { partitions, bytes, bytes_max };
        (bytes > bytes_max).then_some(OrderRefusal::Wish(too_large))
    })
}
