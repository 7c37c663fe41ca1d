//! A node that is dead for good: what speaks for that, and the order by which another one takes its places.
//!
//! An operator says that it is dead; that alone is not enough. It must be registered nowhere, nothing may listen at its
//! address, and each member must have heard nothing of it for a while. A process that is merely stopped is found by its
//! address: the operating system goes on to accept connections for it.
//!
//! Must never: call a node gone that answers anybody.

use std::collections::BTreeSet;
use std::time::Duration;

use model::node::LifeSign;
use model::order::{Done, Given, OrderOutcome, OrderRefusal};
use model::plan::{Consent, Wish};
use model::{Cluster, NodeId, Role};

use super::orders::{changed, done, publish, refused};
use super::plans::created_by;
use super::{Ask, DecisionStep, Due, Headmaster, Observation, answered};

/// When to look again whether a node is still registered, or a witness answers.
const REGISTERED_PAUSE: Duration = Duration::from_secs(2);
/// How long everybody must have heard nothing of a node: a pause of a process or of a switch is over by then.
pub const SILENT_MIN: Duration = Duration::from_secs(20);

/// For how long a node has heard nothing of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Since the last sign of life, or since the node that says so started.
    pub lasts: Duration,
    /// Whether it has heard anything of the other one since it started.
    pub heard_before: bool,
}

/// What speaks for a node's being alive, as others see it.
struct Signs {
    /// Whether a process, be it one that is stopped, listens at its address.
    listens: bool,
    /// By other node: for how long it has heard nothing of the node; or why it does not say.
    silent_for: Vec<(NodeId, Result<Silence, String>)>,
}

/// What speaks against a node's being dead, and when to look again if it passes by itself; nothing when it is dead.
fn lives(is_registered: bool, signs: &Signs) -> Option<(LifeSign, Option<Duration>)> {
    if is_registered {
        return Some((LifeSign::Registered, Some(REGISTERED_PAUSE)));
    }
    if signs.listens {
        return Some((LifeSign::Listens, None));
    }
    if signs.silent_for.is_empty() {
        return Some((LifeSign::NoWitness, None));
    }
    // A node that started after the other one's death has heard nothing of it, and those that were there before know more.
    let knows = |silent: &Result<Silence, String>| silent.as_ref().is_ok_and(|silent| silent.heard_before);
    let somebody_knows = signs.silent_for.iter().any(|(_, silent)| knows(silent));
    signs.silent_for.iter().find_map(|(witness, silent)| match silent {
        // It may have died just now, or be starting.
        Err(detail) => {
            let life = LifeSign::WitnessSilent { witness: *witness, detail: detail.clone() };
            Some((life, Some(REGISTERED_PAUSE)))
        }
        Ok(Silence { heard_before: false, .. }) if somebody_knows => None,
        Ok(Silence { lasts, heard_before }) if *lasts < SILENT_MIN => {
            let (witness, seconds, needed) = (*witness, lasts.as_secs(), SILENT_MIN.as_secs());
            let life = match heard_before {
                true => LifeSign::Heard { witness, seconds, needed },
                false => LifeSign::WitnessNew { witness, seconds, needed },
            };
            Some((life, Some(SILENT_MIN - *lasts)))
        }
        Ok(_) => None,
    })
}

/// The document that calls a node gone, and lets the one that replaces it serve.
pub(super) fn buried(cluster: &Cluster, node: NodeId, by: NodeId) -> Option<Cluster> {
    let mut next = changed(cluster, node, |entry| (entry.gone, entry.role) = (true, Role::Leaving))?;
    let by = next.nodes.iter_mut().find(|known| known.id == by)?;
    if by.role == Role::Standby {
        by.role = Role::Serving;
    }
    Some(next)
}

impl Headmaster {
    /// A node takes the places of one that is dead for good. First the document says that this one is gone; then there
    /// is a plan, which is applied.
    pub(super) fn replace(
        &mut self,
        seen: &Observation,
        given: &Given,
        (node, by): (NodeId, NodeId),
        consent: Consent,
    ) -> Due<DecisionStep> {
        if let Some(number) = created_by(seen, given.number) {
            return self.apply(seen, given, number);
        }
        let wish = Wish::Replace { node, by };
        let Some(next) = buried(&seen.cluster, node, by) else {
            let missing = if seen.cluster.node(node).is_none() { node } else { by };
            return Ok(refused(given, OrderRefusal::NodeUnknown { node: missing }));
        };
        if let Some(other) = seen.under_way() {
            return Ok(refused(given, OrderRefusal::OtherPlan { other: other.number }));
        }
        if by == node {
            return Ok(refused(given, OrderRefusal::OwnPlaces { node }));
        }
        if seen.registered(by).is_none() {
            return Ok(refused(given, OrderRefusal::NodeNotRegistered { node: by }));
        }
        let plan = match self.planned(&next, &wish, consent) {
            Ok(plan) => plan,
            Err(refusal) => return Ok(refused(given, OrderRefusal::Wish(refusal))),
        };
        // An earlier turn, or order, has judged that; the node itself is told so when it starts.
        let is_gone = seen.cluster.node(node).is_some_and(|entry| entry.gone);
        if !is_gone && let Some((because, passes)) = self.signs_of_life(seen, node)? {
            let refusal = OrderRefusal::NotDead { node, by, because };
            let millis = |pause: Duration| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            return Ok(answered(
                given,
                OrderOutcome::Refused { refusal, again_after_ms: passes.map(millis) },
            ));
        }
        let entering = plan.change.entering(&next).into_iter().map(|(node, _)| node).collect();
        if let Some(refusal) = self.deaf(seen, &entering)? {
            return Ok(refused(given, refusal));
        }
        if next.nodes != seen.cluster.nodes {
            return Ok(publish(given, next));
        }
        if plan.is_empty() {
            let records = self.known.get(&node).map_or(0, |said| said.leftovers);
            return Ok(done(seen, given, Done::NodeGone { node, records }));
        }
        self.save(seen, given, plan, (&wish, consent))
    }

    /// What speaks against a node's being dead.
    pub(super) fn signs_of_life(
        &mut self,
        seen: &Observation,
        node: NodeId,
    ) -> Due<Option<(LifeSign, Option<Duration>)>> {
        // One that only waits to be named hears from nobody.
        let is_witness = |other: &NodeId| *other != node && seen.cluster.node(*other).is_some();
        let registered = seen.registered.iter().map(|active| active.node.id);
        let nodes: BTreeSet<NodeId> = registered.filter(is_witness).collect();
        self.asked(seen, Ask { nodes: nodes.clone(), signs_of: Some(node), ..Ask::default() })?;
        let silent_for = nodes.into_iter().map(|witness| {
            let silence = match seen.said.get(&witness) {
                Some(Ok(said)) => {
                    let silence = said.silent_for.get(&node).copied();
                    silence.ok_or_else(|| format!("it does not know {node}"))
                }
                Some(Err(detail)) => Err(detail.clone()),
                None => Err("it was not asked".to_owned()),
            };
            (witness, silence)
        });
        let signs = Signs { listens: seen.listens, silent_for: silent_for.collect() };
        Ok(lives(seen.registered(node).is_some(), &signs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_dead_when_all_others_say_that_they_have_long_not_heard_from_it() {
        let after =
            |seconds: u64, heard_before| Ok(Silence { lasts: Duration::from_secs(seconds), heard_before });
        let silent = |seconds| after(seconds, true);
        let signs = |silent_for: &[Result<Silence, String>]| Signs {
            listens: false,
            silent_for: (1..).map(NodeId).zip(silent_for.iter().cloned()).collect(),
        };
        let why = |registered, signs: &Signs| lives(registered, signs).map(|(life, _)| life);
        let again = |registered, signs: &Signs| lives(registered, signs).and_then(|(_, again)| again);
        let n1 = NodeId(1);
        let dead = signs(&[silent(60), silent(20)]);
        assert_eq!(why(false, &dead), None);
        assert_eq!(why(true, &dead), Some(LifeSign::Registered));
        let stopped = Signs { listens: true, ..signs(&[silent(60), silent(20)]) };
        assert_eq!(why(false, &stopped), Some(LifeSign::Listens));
        assert_eq!(why(false, &signs(&[])), Some(LifeSign::NoWitness));
        // A pause of everybody is no death.
        let heard = LifeSign::Heard { witness: NodeId(2), seconds: 19, needed: 20 };
        assert_eq!(why(false, &signs(&[silent(60), silent(19)])), Some(heard));
        let away = LifeSign::WitnessSilent { witness: n1, detail: "away".to_owned() };
        assert_eq!(why(false, &signs(&[Err("away".to_owned()), silent(60)])), Some(away));
        // Who started after its death knows nothing of it; that is no sign of life, nor alone a sign of death.
        assert_eq!(why(false, &signs(&[silent(60), after(2, false)])), None);
        let new = LifeSign::WitnessNew { witness: n1, seconds: 2, needed: 20 };
        assert_eq!(why(false, &signs(&[after(2, false), after(60, false)])), Some(new));
        assert_eq!(again(false, &signs(&[silent(60), silent(19)])), Some(Duration::from_secs(1)));
        assert_eq!((again(true, &dead), again(false, &signs(&[]))), (Some(REGISTERED_PAUSE), None));
        assert_eq!(why(false, &signs(&[after(20, false), after(60, false)])), None);
    }
}
