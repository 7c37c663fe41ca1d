//! What the documents of a run say of the autopilot: its plans, who is replaced, and what the judges of both make of it.
//!
//! Must never: ask a headmaster or a node.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use coordination::DocumentPath;
use coordination::documents::balance::verdict_path;
use model::balance::Verdict;
use model::plan::{Excess, Phase, PlanDocument, PlanState};
use model::{Cluster, Moment, NodeId};
use serde_json::from_slice;

use crate::check::Violation;
use crate::check::replaced::Replaced;
use crate::check::returns::Returns;
use crate::swarm::Piloted;

/// How often the autopilot did what, and how many runs are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PilotCounts {
    /// Runs in which it was on.
    pub runs: u64,
    /// Of these, those in which it carried a plan out because of loads.
    pub with_plans: u64,
    /// Of these, those in which it had a standby take a dead node's places.
    pub with_replaced: u64,
    /// Plans that it began because of loads, or for a new node.
    pub plans: u64,
    /// Copies of buckets that came somewhere by its plans.
    pub copies: u64,
    /// Nodes that it replaced.
    pub replaced: u64,
}

impl AddAssign for PilotCounts {
    fn add_assign(&mut self, other: PilotCounts) {
        self.runs += other.runs;
        self.with_plans += other.with_plans;
        self.with_replaced += other.with_replaced;
        self.plans += other.plans;
        self.copies += other.copies;
        self.replaced += other.replaced;
    }
}

/// What was written so far.
#[derive(Debug)]
pub struct Piloting {
    plans: BTreeMap<u64, PlanSeen>,
    returns: Returns,
    replaced: Replaced,
    /// What it said, for people.
    told: Vec<String>,
}

/// What was seen of a plan.
#[derive(Clone, Copy, Debug, Default)]
struct PlanSeen {
    /// Why the autopilot made it, if it did.
    exceeds: Option<Excess>,
    /// The phase that was written last.
    phase: Option<Phase>,
    was_begun: bool,
}

impl Piloting {
    /// Of a run that begins.
    pub fn new(piloted: &Piloted) -> Piloting {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Piloting {
            plans: BTreeMap::new(),
            returns: Returns::new(seconds(piloted.settings.residence_s)),
            replaced: Replaced::new(seconds(piloted.settings.replace_after_s)),
            told: Vec::new(),
        }
    }

    /// A document was written that is no cluster document.
    pub fn written(&mut self, now: Moment, path: &DocumentPath, data: &[u8]) {
        if *path == verdict_path()
            && let Ok(verdict) = from_slice::<Verdict>(data)
        {
            let held = verdict.away.iter().map(|away| format!(", {}: {:?}", away.node, away.held));
            let held: String = held.collect();
            let seconds = now.nanos as f64 / 1e9;
            self.told.push(format!("{seconds:10.6} the autopilot says {:?}{held}", verdict.says));
        }
        let text = path.to_string();
        let Some(rest) = text.strip_prefix("/plans/") else { return };
        match rest.split_once('/') {
            None => {
                if let (Ok(number), Ok(plan)) = (rest.parse(), from_slice::<PlanDocument>(data)) {
                    self.plans.entry(number).or_default().exceeds =
                        plan.decision.map(|decision| decision.exceeds);
                }
            }
            Some((number, _)) => {
                if let (Ok(number), Ok(state)) = (number.parse(), from_slice::<PlanState>(data)) {
                    let seen = self.plans.entry(number).or_default();
                    seen.phase = Some(state.phase);
                    seen.was_begun |= state.phase == Phase::Applying;
                }
            }
        }
    }

    /// A cluster document was published.
    pub fn published(&mut self, now: Moment, cluster: &Cluster) {
        let is_under_way = |seen: &PlanSeen| seen.phase.is_some_and(|phase| !phase.has_ended());
        let mut under_way = self.plans.iter().filter(|(_, seen)| is_under_way(seen));
        let plan = under_way.next().map(|(number, seen)| {
            let by_loads = seen.exceeds.is_some_and(|exceeds| exceeds != Excess::Dead);
            (*number, by_loads && seen.phase != Some(Phase::Aborting))
        });
        self.returns.published(now, cluster, plan);
        self.replaced.published(now, cluster);
    }

    /// A node serves from now on.
    pub fn lives(&mut self, now: Moment, node: NodeId) {
        self.replaced.lives(now, node);
    }

    /// Its process has ended.
    pub fn ends(&mut self, now: Moment, node: NodeId) {
        self.replaced.ends(now, node);
    }

    /// What it said, for people.
    pub fn told(&self) -> &[String] {
        &self.told
    }

    /// What must not have happened.
    pub fn broken(&self) -> Vec<Violation> {
        self.returns.broken().iter().chain(self.replaced.broken()).cloned().collect()
    }

    /// How often the autopilot did what.
    pub fn counts(&self) -> PilotCounts {
        let begun = self.plans.values().filter(|seen| seen.was_begun);
        let (mut plans, mut replaced) = (0, 0);
        for exceeds in begun.filter_map(|seen| seen.exceeds) {
            *(if exceeds == Excess::Dead { &mut replaced } else { &mut plans }) += 1;
        }
        PilotCounts {
            runs: 1,
            with_plans: u64::from(plans > 0),
            with_replaced: u64::from(replaced > 0),
            plans,
            copies: self.returns.copies,
            replaced,
        }
    }
}
