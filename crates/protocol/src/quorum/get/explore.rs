//! Every interleaving of answers, failures and time, for three replicas and two fallbacks; also while one replica gives
//! way to another node.
//!
//! As in the exploration of writes, an observer that knows only what was asked and answered judges the machine, and
//! planted bugs prove that it can see.

use std::cell::Cell;
use std::time::Duration;

use super::*;
use crate::explore::WORLDS_MAX;
use crate::quorum::Spared;
use crate::quorum::fixtures::*;
use crate::quorum::planted::{Bug, is_found};
use observer::{Observer, WrittenBackTo};
use plants::PlantedGet;
use scopes::{joint_scopes, scopes, settling_scopes};

/// Short, so that a fallback in the place of a silent replica can be late, too, before the deadline.
const HEDGE_AFTER: u64 = 2;
/// When a replica has been silent for so long that a fallback is asked in its place.
const REPLACED_AFTER: u64 = 10 * HEDGE_AFTER;

mod observer;
mod plants;
mod scopes;

#[derive(Clone, Debug)]
struct Scope {
    /// The old replicas, which answer, and the new ones.
    replicas: [&'static [NodeId]; 2],
    /// By how many fewer holders the old and the new ones get by.
    spared: [u8; 2],
    required: u8,
    preferred: u8,
    sloppy: bool,
    held: u8,
    own: Option<NodeId>,
    suspected: Vec<NodeId>,
    lagging: Vec<NodeId>,
    /// Whether nodes may be ahead of the request's ring, and may answer after a failure.
    ahead: bool,
    /// What each node holds.
    sets: [VersionSet; 5],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Awaited,
    Failed,
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Done,
    Failed,
    Refreshed,
}

#[derive(Clone, Debug)]
struct World<'a> {
    scope: &'a Scope,
    /// Ends that were met, in all worlds of the scope.
    ends: &'a Cell<u32>,
    get: PlantedGet,
    observer: Observer,
}

const NODES: [NodeId; 5] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4), NodeId(5)];

fn position(node: NodeId) -> usize {
    node.0 as usize - 1
}

impl Scope {
    fn readers(&self) -> &'static [NodeId] {
        self.replicas[0]
    }

    fn is_reader(&self, node: NodeId) -> bool {
        self.readers().contains(&node)
    }

    fn is_replica(&self, node: NodeId) -> bool {
        self.replicas.iter().any(|set| set.contains(&node))
    }

    /// Whom a get may ask.
    fn candidates(&self) -> Vec<NodeId> {
        let fallbacks = if self.sloppy && self.held == 0 { &NODES[3..] } else { &[] };
        [self.readers(), fallbacks].concat()
    }
}

impl<'a> World<'a> {
    fn start(scope: &'a Scope, ends: &'a Cell<u32>) -> Result<Self, String> {
        let preference = preference_of(scope.replicas);
        let candidates =
            Candidates { preference: &preference, suspected: &scope.suspected, lagging: &scope.lagging };
        let [old, new] = scope.spared.map(|spared| scope.held - spared);
        let (held, spared) = Spared::of(old, new);
        assert_eq!(held, scope.held, "one set needs all");
        let hedge_after = Duration::from_nanos(HEDGE_AFTER);
        let options = options(scope.required, scope.preferred, scope.sloppy);
        let options = QuorumOptions { held, spared, hedge_after, ..options };
        let mut actions = GetActions::new();
        let get = PlantedGet::start(candidates, scope.own, options, at(0), &mut actions);
        let (repaired, written_back) = (Vec::new(), Vec::new());
        let observer = Observer { now: at(0), end: End::Open, asked: [None; 5], repaired, written_back };
        let mut world = World { scope, ends, get, observer };
        world.see(&actions)?;
        Ok(world)
    }

    fn see(&mut self, actions: &[GetAction]) -> Result<(), String> {
        let scope = self.scope;
        actions.iter().try_for_each(|action| self.observer.see(action, scope))?;
        self.observer.judge_rest(self.get.deadline(), scope)
    }

    fn has_ended(&self) -> bool {
        self.get.deadline().is_none()
    }

    /// The world after it, whether or not its get has ended.
    fn after(&self, happening: Happening) -> Result<Self, String> {
        let (mut world, scope) = (self.clone(), self.scope);
        if let Happening::Stores(node, round)
        | Happening::LosesStore(node, round)
        | Happening::IsAheadStoring(node, round) = happening
        {
            let stored = matches!(happening, Happening::Stores(..));
            let sent = |back: &&mut WrittenBackTo| back.node == node && back.round == round;
            let back =
                world.observer.written_back.iter_mut().find(sent).expect("only what was sent is answered");
            back.fate = back.fate.max(if stored { Fate::Answered } else { Fate::Failed });
        }
        let mut tell = |node: NodeId, fate: Fate| {
            let known = world.observer.asked[position(node)].as_mut().expect("only asked nodes reply");
            known.1 = known.1.max(fate);
        };
        let event = match happening {
            Happening::Acknowledges(node) => {
                tell(node, Fate::Answered);
                let set = scope.sets[position(node)].clone();
                GetEvent::Answered { node, generation: GENERATION, set }
            }
            Happening::Loses(node) | Happening::Refuses(node) => {
                tell(node, Fate::Failed);
                GetEvent::Failed { node, error: ReplicaError::Lost }
            }
            Happening::IsAhead(node) => {
                tell(node, Fate::Failed);
                let generation = Generation(GENERATION.0 + 1);
                GetEvent::Failed { node, error: ReplicaError::StaleGeneration { generation } }
            }
            Happening::Stores(node, round) => GetEvent::Stored { node, generation: GENERATION, round },
            Happening::LosesStore(node, round) => {
                GetEvent::NotStored { node, round, error: ReplicaError::Lost }
            }
            Happening::IsAheadStoring(node, round) => {
                let generation = Generation(GENERATION.0 + 1);
                GetEvent::NotStored { node, round, error: ReplicaError::StaleGeneration { generation } }
            }
            Happening::Elapses(now) => {
                world.observer.now = now;
                GetEvent::Elapsed
            }
        };
        let finished = self.has_ended();
        let mut actions = GetActions::new();
        world.get.step(event, world.observer.now, &mut actions);
        ensure(!finished || actions.is_empty(), "acts after its end")?;
        if !finished {
            world.see(&actions)?;
        }
        Ok(world)
    }
}

impl crate::explore::World for World<'_> {
    type Happening = Happening;
    type Name = Packed;

    /// A number that tells this state from every other of its scope. What is merged follows from who has answered.
    fn name(&self) -> Packed {
        let mut name = name(&self.get);
        // Answers to earlier rounds may still come.
        for node in &NODES[..3] {
            for round in 0..3 {
                let earlier = |back: &&WrittenBackTo| {
                    back.node == *node && back.round == round && round < self.get.round
                };
                let fate = self.observer.written_back.iter().find(earlier).map(|back| back.fate);
                name.push(u64::from(matches!(fate, Some(Fate::Awaited | Fate::Failed))), 1);
            }
        }
        name
    }

    fn happenings(&self) -> Vec<Happening> {
        let scope = self.scope;
        let mut happenings = Vec::new();
        for node in NODES {
            match self.observer.fate(node) {
                Some(Fate::Awaited) => {
                    happenings.extend([Happening::Acknowledges(node), Happening::Loses(node)]);
                    happenings.extend(scope.ahead.then_some(Happening::IsAhead(node)));
                }
                Some(Fate::Failed) if scope.ahead => happenings.push(Happening::Acknowledges(node)),
                Some(Fate::Answered) if scope.ahead => happenings.push(Happening::Loses(node)),
                _ => {}
            }
        }
        for &WrittenBackTo { node, round, fate, .. } in &self.observer.written_back {
            if fate != Fate::Answered && (fate == Fate::Awaited || scope.ahead) {
                happenings.push(Happening::Stores(node, round));
            }
            if fate == Fate::Awaited {
                happenings.push(Happening::LosesStore(node, round));
                happenings.extend(scope.ahead.then_some(Happening::IsAheadStoring(node, round)));
            }
        }
        if let Some(deadline) = self.get.deadline() {
            happenings.extend([Happening::Elapses(deadline), Happening::Elapses(at(DEADLINE))]);
        }
        happenings
    }

    /// Every 16th end is put to the test: a machine that has ended must ignore everything.
    fn step(&self, happening: &Happening) -> Result<Option<Self>, String> {
        let next = self.after(*happening)?;
        if !next.has_ended() {
            return Ok(Some(next));
        }
        self.ends.set(self.ends.get() + 1);
        if self.ends.get().is_multiple_of(16) {
            next.happenings().into_iter().try_for_each(|late| next.after(late).map(|_| ()))?;
        }
        Ok(None)
    }

    /// Answers under another generation, or from nodes that were not asked, must change nothing.
    fn judge(&self) -> Result<(), String> {
        let mut get = self.get.clone();
        let mut actions = GetActions::new();
        for node in NODES.into_iter().chain([NodeId(9)]) {
            let asked = NODES.contains(&node) && self.observer.fate(node).is_some();
            let generation = if asked { Generation(GENERATION.0 - 1) } else { GENERATION };
            let event = GetEvent::Answered { node, generation, set: self.scope.sets[3].clone() };
            get.step(event, self.observer.now, &mut actions);
            let sent = self.observer.written_back.iter().any(|back| back.node == node);
            let generation = if sent { Generation(GENERATION.0 - 1) } else { GENERATION };
            let event = GetEvent::Stored { node, generation, round: get.round };
            get.step(event, self.observer.now, &mut actions);
        }
        let other = World { get: get.clone(), ..self.clone() };
        let same = actions.is_empty() && other.name() == self.name() && get.merged == self.get.merged;
        ensure(same, "a foreign answer counted")
    }
}

fn name(get: &Get) -> Packed {
    let mut name = Packed::default();
    for member in &get.members {
        let code = match member.reply {
            GetReply::Unasked => 0,
            GetReply::Awaited => 1,
            GetReply::Failed(ReplicaError::Lost) => 2,
            GetReply::Failed(_) => 3,
            GetReply::Answered { current: false } => 4,
            GetReply::Answered { current: true } => 5,
        };
        name.push(code, 3);
        let (code, waits) = match member.written_back {
            WrittenBack::No => (0, member.is_awaited()),
            WrittenBack::Awaited => (1, true),
            WrittenBack::Failed(_) => (2, member.is_awaited()),
            WrittenBack::Acknowledged => (3, member.is_awaited()),
        };
        name.push(code, 2);
        name.push(if waits { member.late_at.nanos } else { 0 }, 7);
    }
    name.push(get.next as u64, 3);
    name.push(get.phase as u64, 2);
    name.push(u64::from(get.waves), 4);
    name.push(get.now.nanos, 6);
    name.push(get.waved_at.nanos, 6);
    name.push(u64::from(get.round), 3);
    name
}

/// Visits every world of a scope; the number of them.
fn explore(scope: &Scope) -> Result<usize, String> {
    let ends = Cell::new(0);
    crate::explore::explore(World::start(scope, &ends)?, WORLDS_MAX)
}

#[test]
fn every_interleaving_of_a_get_in_a_partition_that_moves_keeps_the_rules() {
    let explore = |scope| explore(&scope).unwrap_or_else(|violation| panic!("{violation}"));
    let states: usize = joint_scopes().into_iter().map(explore).sum();
    assert!(states > 400, "the exploration has shrunk to {states} states");
}

#[test]
fn a_planted_bug_in_a_get_in_a_partition_that_moves_is_found() {
    let explore_all = || joint_scopes().iter().try_for_each(|scope| explore(scope).map(|_| ()));
    let bugs = [
        Bug::OldSetSuffices,
        Bug::SetsCountTogether,
        Bug::AsksWhoOnlyWrites,
        Bug::RepairsReadersOnly,
        Bug::SparesTheOtherSet,
        Bug::OneHolderTooFew,
    ];
    for bug in bugs {
        assert!(is_found(bug, explore_all), "{bug:?} goes unnoticed");
    }
}

#[test]
fn every_interleaving_of_a_get_keeps_the_rules() {
    let explore = |scope| explore(&scope).unwrap_or_else(|violation| panic!("{violation}"));
    let states: usize = scopes().into_iter().map(explore).sum();
    assert!(states > 1_000, "the exploration has shrunk to {states} states");
}

#[test]
fn every_interleaving_of_a_monotonic_get_keeps_the_rules() {
    for scope in settling_scopes() {
        let states = explore(&scope).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(states > 100, "the exploration has shrunk to {states} states");
    }
}

#[test]
fn a_planted_bug_in_a_get_is_found() {
    let bugs = [
        Bug::StrictCountsHints,
        Bug::OtherGenerationCounts,
        Bug::OneAnswerTooFew,
        Bug::NeverHedges,
        Bug::AnswersTwice,
        Bug::AnswersLate,
        Bug::HidesSloppiness,
        Bug::FallbackDenies,
        Bug::TombstoneIsFound,
        Bug::ExpiredIsFound,
        Bug::ReplacesSlowReplicas,
        Bug::StandsInForNobody,
        Bug::GivesUpOnReplicas,
        Bug::RepairForgetsEarlier,
        Bug::RepairsFallbacks,
        Bug::UnaskedCounts,
    ];
    let explore_all = || scopes().iter().try_for_each(|scope| explore(scope).map(|_| ()));
    for bug in bugs {
        assert!(is_found(bug, explore_all), "{bug:?} goes unnoticed");
    }
}

#[test]
fn a_planted_bug_in_a_monotonic_get_is_found() {
    let explore_all = || settling_scopes().iter().try_for_each(|scope| explore(scope).map(|_| ()));
    for bug in [Bug::OneHolderTooFew, Bug::EarlierRoundCounts, Bug::AnswersTwice, Bug::OtherGenerationCounts]
    {
        assert!(is_found(bug, explore_all), "{bug:?} goes unnoticed");
    }
}
