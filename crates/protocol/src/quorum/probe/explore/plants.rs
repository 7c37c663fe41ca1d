//! A question that breaks a rule on purpose: it hears or says something else than the machine inside it.

use std::collections::BTreeSet;

use super::*;
use crate::quorum::planted::{Bug, planted};

/// A [`Probe`], or what a planted bug makes of it.
#[derive(Clone, Debug)]
pub(super) struct PlantedProbe {
    probe: Probe,
    /// Nodes that were asked and have not replied.
    awaited: BTreeSet<NodeId>,
    /// An answer that a greedy one keeps back.
    kept_back: Option<ProbeAction>,
}

impl PlantedProbe {
    pub(super) fn start(
        reach: Reach,
        keys: &[PreferenceList],
        is_suspected: impl Fn(NodeId) -> bool,
        now: Moment,
        deadline: Moment,
        actions: &mut Vec<ProbeAction>,
    ) -> Self {
        let time = deadline.nanos - now.nanos;
        let time = if planted(Bug::AsksForever) { time * PATIENCE_PART } else { time };
        let until = Moment { nanos: now.nanos + time };
        let mut probe = Probe::start(reach, keys, is_suspected, now, until, actions);
        let asked = actions.iter().filter_map(|action| match action {
            ProbeAction::Ask { node } => Some(*node),
            ProbeAction::Answer { .. } => None,
        });
        let mut awaited: BTreeSet<NodeId> = asked.collect();
        if planted(Bug::RefusesUnasked) {
            actions.retain(|action| !matches!(action, ProbeAction::Ask { .. }));
            for node in std::mem::take(&mut awaited) {
                probe.step(ProbeEvent::Failed { node }, now, actions);
            }
        }
        PlantedProbe { probe, awaited, kept_back: None }
    }

    pub(super) fn step(&mut self, event: ProbeEvent, now: Moment, actions: &mut Vec<ProbeAction>) {
        if let ProbeEvent::Answered { node } | ProbeEvent::Failed { node } = event {
            self.awaited.remove(&node);
        }
        let event = match event {
            ProbeEvent::Answered { node } if planted(Bug::SuspicionIsFinal) => ProbeEvent::Failed { node },
            event => event,
        };
        self.probe.step(event, now, actions);
        if planted(Bug::AsksForMore) && actions.last().is_some() {
            self.kept_back = actions.pop();
        }
        if self.awaited.is_empty() || now >= at(PATIENCE) {
            actions.extend(self.kept_back.take());
        }
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        match self.kept_back {
            Some(_) => Some(at(PATIENCE)),
            None => self.probe.deadline(),
        }
    }
}
