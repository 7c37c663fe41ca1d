//! Every interleaving of answers, failures and time, for three replicas and two fallbacks.
//!
//! As in the exploration of writes, an observer that knows only what was asked and answered judges the machine, and
//! planted bugs prove that it can see.

use std::collections::BTreeSet;

use model::versions::Stamp;
use model::{Actor, Timestamp, Value};

use super::*;
use crate::quorum::fixtures::*;
use crate::quorum::planted::is_found;

#[derive(Clone, Debug)]
struct Scope {
    required: u8,
    preferred: u8,
    sloppy: bool,
    own: Option<NodeId>,
    suspected: Vec<NodeId>,
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

/// What an outsider knows.
#[derive(Clone, Debug)]
struct Observer {
    now: Moment,
    end: End,
    /// By node: when it was asked, and what became of it.
    asked: [Option<(Moment, Fate)>; 5],
    repaired: Vec<NodeId>,
}

#[derive(Clone)]
struct World {
    get: Get,
    observer: Observer,
    /// Its number among [`Origins`].
    number: Option<usize>,
}

const NODES: [NodeId; 5] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4), NodeId(5)];

fn position(node: NodeId) -> usize {
    node.0 as usize - 1
}

fn is_replica(node: NodeId) -> bool {
    node.0 <= 3
}

impl Observer {
    fn fate(&self, node: NodeId) -> Option<Fate> {
        self.asked[position(node)].map(|(_, fate)| fate)
    }

    fn nodes(&self, fate: Fate) -> impl Iterator<Item = NodeId> {
        NODES.into_iter().filter(move |&node| self.fate(node) == Some(fate))
    }

    fn answered(&self) -> usize {
        self.nodes(Fate::Answered).count()
    }

    fn merged(&self, scope: &Scope) -> VersionSet {
        let mut merged = VersionSet::default();
        self.nodes(Fate::Answered).for_each(|node| merged.merge(&scope.sets[position(node)]));
        merged
    }

    fn unasked(&self, scope: &Scope) -> usize {
        let candidates = if scope.sloppy { &NODES[..] } else { &NODES[..3] };
        candidates.iter().filter(|&&node| self.fate(node).is_none()).count()
    }

    fn see(&mut self, action: &GetAction, scope: &Scope) -> Result<(), String> {
        match action {
            GetAction::Fetch { node } => {
                ensure(scope.sloppy || is_replica(*node), "a strict get asks a fallback")?;
                let replicas_first = NODES[..3].iter().all(|&replica| self.fate(replica).is_some());
                ensure(is_replica(*node) || replicas_first, "a fallback is asked before a replica")?;
                let first = self.asked.iter().all(Option::is_none);
                let own = scope.own.filter(|&own| is_replica(own));
                ensure(!first || own.is_none_or(|own| own == *node), "the own replica is not asked first")?;
                let asked = self.asked[position(*node)].replace((self.now, Fate::Awaited));
                ensure(asked.is_none(), "asked twice")
            }
            GetAction::Answer(outcome) => {
                ensure(self.end == End::Open, "answered twice")?;
                self.judge(outcome, scope)
            }
            GetAction::Repair { node, set } => {
                ensure(self.end == End::Done, "repairs without an answer")?;
                ensure(is_replica(*node) && !self.repaired.contains(node), "repaired twice, or a fallback")?;
                ensure(*set == self.merged(scope), "repaired with something else than everything known")?;
                self.repaired.push(*node);
                Ok(())
            }
            GetAction::Refresh { generation } => {
                ensure(self.end == End::Open, "refreshed after the answer")?;
                self.end = End::Refreshed;
                ensure(*generation == Generation(GENERATION.0 + 1), "wrong generation")
            }
        }
    }

    fn judge(&mut self, outcome: &GetOutcome, scope: &Scope) -> Result<(), String> {
        let (counted, required) = (self.answered(), usize::from(scope.required));
        match outcome {
            GetOutcome::Done { set, answered, sloppy } => {
                self.end = End::Done;
                ensure(counted >= required, "done with too few answers")?;
                ensure(usize::from(*answered) == counted, "done with a wrong count")?;
                let replicas = self.nodes(Fate::Answered).filter(|&node| is_replica(node)).count();
                ensure(*sloppy == (replicas < required), "done with a wrong sloppiness")?;
                ensure(*set == self.merged(scope), "done with something else than what was answered")
            }
            GetOutcome::Failed { reason, .. } => {
                self.end = End::Failed;
                let left = counted + self.nodes(Fate::Awaited).count() + self.unasked(scope);
                match *reason {
                    GetFailure::InsufficientReplicas { answered, .. } => ensure(
                        left < required && usize::from(answered) == counted,
                        "failed although enough are left",
                    ),
                    GetFailure::DeadlinePassed { answered, .. } => {
                        let late = self.now >= at(DEADLINE) && left >= required && counted < required;
                        ensure(late && usize::from(answered) == counted, "failed before the deadline")
                    }
                }
            }
        }
    }

    /// Judges a machine that has nothing to do at the moment.
    fn judge_rest(&self, deadline: Option<Moment>, scope: &Scope) -> Result<(), String> {
        if let Some(deadline) = deadline {
            ensure(self.now < deadline && deadline <= at(DEADLINE), "wakes up at a wrong time")?;
            if self.end == End::Open { self.judge_patience(scope) } else { Ok(()) }
        } else {
            ensure(self.end != End::Open, "ended without an answer")?;
            if self.end == End::Done { self.judge_repairs(scope) } else { Ok(()) }
        }
    }

    fn judge_repairs(&self, scope: &Scope) -> Result<(), String> {
        let merged = self.merged(scope);
        let lacks = |node: &NodeId| is_replica(*node) && !scope.sets[position(*node)].includes(&merged);
        let lacking: BTreeSet<_> = self.nodes(Fate::Answered).filter(lacks).collect();
        ensure(lacking == self.repaired.iter().copied().collect(), "repaired the wrong replicas")?;
        let waited = self.now >= at(DEADLINE) || self.nodes(Fate::Awaited).count() == 0;
        ensure(waited, "repaired before everybody answered")
    }

    /// Judges a machine whose caller waits.
    fn judge_patience(&self, scope: &Scope) -> Result<(), String> {
        let (answered, required) = (self.answered(), usize::from(scope.required));
        let target = usize::from(scope.preferred.max(scope.required));
        ensure(answered < target, "has what it hoped for and waits")?;
        ensure(answered < required || self.now < at(HEDGE_AFTER), "has enough, no patience, and waits")?;
        ensure(self.nodes(Fate::Awaited).count() > 0, "waits for nobody")?;
        let trusted = |node: &NodeId| !scope.suspected.contains(node);
        let fresh = |node: &NodeId| match self.asked[position(*node)] {
            Some((asked, _)) => asked == self.now || self.now < at(HEDGE_AFTER),
            None => false,
        };
        let expected = answered + self.nodes(Fate::Awaited).filter(trusted).filter(fresh).count();
        let target = if self.now < at(HEDGE_AFTER) { target } else { required };
        let judged = self.now <= at(HEDGE_AFTER) && self.unasked(scope) > 0;
        ensure(!judged || expected >= target, "a missing answer is not asked for elsewhere")
    }
}

impl World {
    fn start(scope: &Scope) -> Result<World, String> {
        let preference = preference(3, 2);
        let candidates = Candidates { preference: &preference, suspected: &scope.suspected };
        let options = options(scope.required, scope.preferred, scope.sloppy);
        let mut actions = GetActions::new();
        let get = Get::start(candidates, scope.own, options, at(0), &mut actions);
        let observer = Observer { now: at(0), end: End::Open, asked: [None; 5], repaired: Vec::new() };
        let mut world = World { get, observer, number: None };
        world.judge(&actions, scope)?;
        Ok(world)
    }

    fn judge(&mut self, actions: &[GetAction], scope: &Scope) -> Result<(), String> {
        let judged = actions
            .iter()
            .try_for_each(|action| self.observer.see(action, scope))
            .and_then(|()| self.observer.judge_rest(self.get.deadline(), scope));
        judged.map_err(|reason| format!("{reason}\n{:?}", self.observer))
    }

    fn happenings(&self, scope: &Scope) -> Vec<Happening> {
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
        if let Some(deadline) = self.get.deadline() {
            happenings.extend([Happening::Elapses(deadline), Happening::Elapses(at(DEADLINE))]);
        }
        happenings
    }

    fn step(&self, happening: Happening, scope: &Scope) -> Result<World, String> {
        let mut world = self.clone();
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
            Happening::Elapses(now) => {
                world.observer.now = now;
                GetEvent::Elapsed
            }
        };
        let finished = self.get.deadline().is_none();
        let mut actions = GetActions::new();
        world.get.step(event, world.observer.now, &mut actions);
        ensure(!finished || actions.is_empty(), "acts after its end")?;
        if !finished {
            world.judge(&actions, scope)?;
        }
        Ok(world)
    }

    /// Answers under another generation, or from nodes that were not asked, must change nothing.
    fn shrug(&self, scope: &Scope) -> Result<(), String> {
        let mut get = self.get.clone();
        let mut actions = GetActions::new();
        for node in NODES.into_iter().chain([NodeId(9)]) {
            let asked = NODES.contains(&node) && self.observer.fate(node).is_some();
            let generation = if asked { Generation(GENERATION.0 - 1) } else { GENERATION };
            let event = GetEvent::Answered { node, generation, set: scope.sets[3].clone() };
            get.step(event, self.observer.now, &mut actions);
        }
        let same = actions.is_empty() && name(&get) == name(&self.get) && get.merged == self.get.merged;
        ensure(same, "a foreign answer counted")
    }
}

/// A number that tells this state from every other of its scope. What is merged follows from who has answered.
fn name(get: &Get) -> Packed {
    let mut name = Packed::default();
    for member in &get.members {
        let code = match member.reply {
            Reply::Unasked => 0,
            Reply::Awaited => 1,
            Reply::Failed(ReplicaError::Lost) => 2,
            Reply::Failed(_) => 3,
            Reply::Answered { current: false } => 4,
            Reply::Answered { current: true } => 5,
        };
        name.push(code, 3);
        name.push(if member.is_awaited() { member.late_at.nanos } else { 0 }, 7);
    }
    name.push(get.next as u64, 3);
    name.push(get.phase as u64, 2);
    name.push(u64::from(get.waves), 4);
    name.push(get.now.nanos, 6);
    name.push(get.waved_at.nanos, 6);
    name
}

/// Visits every state that can be reached, and tells how many there are.
fn explore(scope: &Scope) -> Result<usize, String> {
    let (mut visited, mut origins, mut ends) = (BTreeSet::new(), Origins::default(), 0_u32);
    let mut pending = vec![World::start(scope)?];
    while let Some(world) = pending.pop() {
        world.shrug(scope).map_err(|violation| format!("{violation}\n{:?}", origins.trace(world.number)))?;
        for happening in world.happenings(scope) {
            let mut next = world.step(happening, scope).map_err(|violation| {
                format!("{violation}\n{scope:?}\n{:?} {happening:?}", origins.trace(world.number))
            })?;
            ends += u32::from(next.get.deadline().is_none());
            if next.get.deadline().is_none() && ends.is_multiple_of(16) {
                // A machine that has ended must ignore everything.
                next.happenings(scope).into_iter().try_for_each(|late| next.step(late, scope).map(|_| ()))?;
            } else if next.get.deadline().is_some() && visited.insert(name(&next.get)) {
                next.number = Some(origins.add(world.number, happening));
                pending.push(next);
            }
        }
    }
    Ok(visited.len())
}

fn stamp(node: u32) -> Stamp {
    let actor = Actor { node: NodeId(node), incarnation: 1, birth: 1 };
    Stamp { actor, timestamp: Timestamp(u64::from(node)), expires: None, value: Value::Tombstone }
}

/// n1 holds an old version, n2 what replaced it, n3 nothing; n4 holds a hint that nobody else knows.
fn diverged() -> [VersionSet; 5] {
    let (mut old, mut hint) = (VersionSet::default(), VersionSet::default());
    old.put(stamp(1), None);
    let mut new = old.clone();
    new.put(stamp(2), None);
    hint.put(stamp(3), None);
    [old, new, VersionSet::default(), hint, VersionSet::default()]
}

fn scopes() -> Vec<Scope> {
    let [old, ..] = diverged();
    let mut scopes = Vec::new();
    for sloppy in [false, true] {
        for (required, preferred) in [(1, 1), (2, 2), (3, 3), (1, 3), (2, 3)] {
            let own = Some(NodeId(2));
            let (suspected, sets) = (Vec::new(), diverged());
            let scope = Scope { required, preferred, sloppy, own, suspected, ahead: false, sets };
            if preferred == 2 {
                scopes.push(Scope { suspected: vec![NodeId(1)], ..scope.clone() });
                scopes.push(Scope { suspected: vec![NodeId(1), NodeId(3)], own: None, ..scope.clone() });
                scopes.push(Scope { own: Some(NodeId(5)), ahead: true, ..scope.clone() });
                scopes.push(Scope { sets: std::array::from_fn(|_| old.clone()), ..scope.clone() });
            }
            scopes.push(scope);
        }
    }
    scopes
}

#[test]
fn every_interleaving_of_a_get_keeps_the_rules() {
    let explore = |scope| explore(&scope).unwrap_or_else(|violation| panic!("{violation}"));
    let states: usize = scopes().into_iter().map(explore).sum();
    assert!(states > 1_000, "the exploration has shrunk to {states} states");
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
        Bug::RepairForgetsEarlier,
        Bug::RepairsFallbacks,
        Bug::UnaskedCounts,
    ];
    let explore_all = || scopes().iter().try_for_each(|scope| explore(scope).map(|_| ()));
    for bug in bugs {
        assert!(is_found(bug, explore_all), "{bug:?} goes unnoticed");
    }
}
