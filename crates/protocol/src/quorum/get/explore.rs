//! Every interleaving of answers, failures and time, for three replicas and two fallbacks; also while one replica gives
//! way to another node.
//!
//! As in the exploration of writes, an observer that knows only what was asked and answered judges the machine, and
//! planted bugs prove that it can see.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::quorum::Spared;
use crate::quorum::fixtures::*;
use crate::quorum::planted::{Bug, is_found};
use plants::PlantedGet;
use scopes::{joint_scopes, scopes, settling_scopes};

/// Short, so that a fallback in the place of a silent replica can be late, too, before the deadline.
const HEDGE_AFTER: u64 = 2;
/// When a replica has been silent for so long that a fallback is asked in its place.
const REPLACED_AFTER: u64 = 10 * HEDGE_AFTER;

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

/// What an outsider knows.
#[derive(Clone, Debug)]
struct Observer {
    now: Moment,
    end: End,
    /// By node: when it was asked, and what became of it.
    asked: [Option<(Moment, Fate)>; 5],
    repaired: Vec<NodeId>,
    written_back: Vec<WrittenBackTo>,
}

/// One thing that was written back to a node.
#[derive(Clone, Debug)]
struct WrittenBackTo {
    node: NodeId,
    round: u8,
    set: VersionSet,
    sent: Moment,
    fate: Fate,
}

#[derive(Clone)]
struct World {
    get: PlantedGet,
    observer: Observer,
    /// Its number among [`Origins`].
    number: Option<usize>,
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

    /// Whether the node is known to hold the set: by its answer, or by what it took.
    fn holds(&self, node: NodeId, set: &VersionSet, scope: &Scope) -> bool {
        let answered = self.fate(node) == Some(Fate::Answered) && scope.sets[position(node)].includes(set);
        let took = |back: &&WrittenBackTo| back.node == node && back.fate == Fate::Answered;
        answered || self.written_back.iter().filter(took).any(|back| back.set.includes(set))
    }

    fn holders(&self, set: &VersionSet, scope: &Scope) -> usize {
        least(scope.replicas, scope.spared, |node| self.holds(node, set, scope))
    }

    /// What became of writing back this very set to the node.
    fn back(&self, node: NodeId, set: &VersionSet) -> Option<&WrittenBackTo> {
        self.written_back.iter().find(|back| back.node == node && back.set == *set)
    }

    fn unasked(&self, scope: &Scope) -> usize {
        scope.candidates().iter().filter(|&&node| self.fate(node).is_none()).count()
    }

    /// How many replicas that answer gets have come to this.
    fn readers(&self, scope: &Scope, fate: Fate) -> usize {
        self.nodes(fate).filter(|&node| scope.is_reader(node)).count()
    }

    /// Whether the nodes that were heard make a value known, though too few replicas are among them to deny it.
    fn may_give_a_value(&self, scope: &Scope) -> bool {
        let required = usize::from(scope.required);
        let heard = self.answered() >= required && self.readers(scope, Fate::Answered) < required;
        let live = self.merged(scope).winner().is_some_and(|winner| winner.live(WALL).is_some());
        scope.sloppy && scope.held == 0 && heard && live
    }

    /// Replicas in whose place a fallback may be asked.
    fn replaced(&self, scope: &Scope) -> usize {
        let silent = |node: NodeId, asked: Moment| {
            let own = scope.own == Some(node);
            (scope.suspected.contains(&node) && !own) || self.now >= at(asked.nanos + REPLACED_AFTER)
        };
        let replaced = |&&node: &&NodeId| match self.asked[position(node)] {
            Some((_, Fate::Failed)) => true,
            Some((asked, Fate::Awaited)) => silent(node, asked),
            _ => false,
        };
        scope.readers().iter().filter(replaced).count()
    }

    /// Fallbacks that stand in for a replica, at most: who answered, and who is awaited and in time for sure, or perhaps.
    fn standing_in(&self, scope: &Scope, for_sure: bool) -> usize {
        let stands = |node: &NodeId| match self.asked[position(*node)] {
            Some((_, Fate::Answered)) => true,
            Some((asked, Fate::Awaited)) => {
                let trusted = !scope.suspected.contains(node);
                trusted && (!for_sure || self.now < at(asked.nanos + HEDGE_AFTER))
            }
            _ => false,
        };
        let fallbacks = scope.candidates().into_iter().filter(|&node| !scope.is_reader(node));
        fallbacks.filter(stands).count()
    }

    /// Whether a fallback is missing in the place of a replica.
    fn lacks_fallbacks(&self, scope: &Scope) -> bool {
        let asked = scope.readers().iter().all(|&node| self.fate(node).is_some());
        let required = usize::from(scope.required);
        let possible = scope.readers().len() >= required && self.now < at(DEADLINE);
        let left = self.unasked(scope) > 0 && !self.counts_on_replicas(scope, false);
        asked && possible && left && self.standing_in(scope, false) < self.replaced(scope)
    }

    /// Whether R replicas have answered or are in time, for sure or perhaps not.
    fn counts_on_replicas(&self, scope: &Scope, for_sure: bool) -> bool {
        let patience = if for_sure { HEDGE_AFTER } else { REPLACED_AFTER };
        let in_time = |&&node: &&NodeId| match self.asked[position(node)] {
            Some((_, Fate::Answered)) => true,
            Some((asked, Fate::Awaited)) => {
                let trusted = !scope.suspected.contains(&node) || scope.own == Some(node);
                trusted && self.now < at(asked.nanos + patience)
            }
            _ => false,
        };
        scope.readers().iter().filter(in_time).count() >= usize::from(scope.required)
    }

    fn see(&mut self, action: &GetAction, scope: &Scope) -> Result<(), String> {
        match action {
            GetAction::Fetch { node } => {
                ensure(scope.candidates().contains(node), "asks whom it may not ask")?;
                let replicas_first = scope.readers().iter().all(|&replica| self.fate(replica).is_some());
                ensure(scope.is_reader(*node) || replicas_first, "a fallback is asked before a replica")?;
                let enough = self.counts_on_replicas(scope, true);
                let wanted = !enough && self.standing_in(scope, true) < self.replaced(scope);
                ensure(scope.is_reader(*node) || wanted, "a fallback is asked in nobody's place")?;
                let first = self.asked.iter().all(Option::is_none);
                let lags = |node: NodeId| scope.lagging.contains(&node);
                let better = |&replica: &NodeId| {
                    self.fate(replica).is_none() && !lags(replica) && !scope.suspected.contains(&replica)
                };
                ensure(
                    !lags(*node) || !scope.readers().iter().any(better),
                    "one that lags is asked before others",
                )?;
                let own = scope.own.filter(|&own| scope.is_reader(own) && !lags(own));
                ensure(!first || own.is_none_or(|own| own == *node), "the own replica is not asked first")?;
                let asked = self.asked[position(*node)].replace((self.now, Fate::Awaited));
                ensure(asked.is_none(), "asked twice")
            }
            GetAction::Answer(outcome) => {
                ensure(self.end == End::Open, "answered twice")?;
                self.judge(outcome, scope)
            }
            GetAction::WriteBack { node, round, set } => {
                ensure(self.end == End::Open, "writes back after the answer")?;
                ensure(*set == self.merged(scope), "writes back something else than everything known")?;
                ensure(scope.is_replica(*node), "writes back to a fallback")?;
                ensure(!self.holds(*node, set, scope), "writes back to who holds it")?;
                ensure(self.back(*node, set).is_none(), "writes back twice")?;
                let (node, round, set, sent) = (*node, *round, set.clone(), self.now);
                self.written_back.push(WrittenBackTo { node, round, set, sent, fate: Fate::Awaited });
                Ok(())
            }
            GetAction::Repair { node, set } => {
                ensure(self.end == End::Done, "repairs without an answer")?;
                let first = scope.is_replica(*node) && !self.repaired.contains(node);
                ensure(first, "repaired twice, or a fallback")?;
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
        let replicas = self.readers(scope, Fate::Answered);
        match outcome {
            GetOutcome::Done { set, answered, sloppy } => {
                self.end = End::Done;
                ensure(counted >= required, "done with too few answers")?;
                ensure(usize::from(*answered) == counted, "done with a wrong count")?;
                ensure(*sloppy == (replicas < required), "done with a wrong sloppiness")?;
                ensure(!sloppy || self.may_give_a_value(scope), "says *absent*, and too few replicas have")?;
                ensure(*set == self.merged(scope), "done with something else than what was answered")?;
                ensure(self.holders(set, scope) >= usize::from(scope.held), "done with too few holders")
            }
            GetOutcome::Failed { reason, .. } => {
                self.end = End::Failed;
                let awaited = self.nodes(Fate::Awaited).count();
                let left = counted + awaited + self.unasked(scope);
                let readers = scope.readers();
                let unasked = readers.iter().filter(|&&node| self.fate(node).is_none()).count();
                let replicas_left = replicas + self.readers(scope, Fate::Awaited) + unasked;
                match *reason {
                    GetFailure::InsufficientReplicas { answered, .. } => ensure(
                        replicas_left < required
                            && (left < required || awaited == 0 || readers.len() < required)
                            && (left < required || !self.lacks_fallbacks(scope))
                            && !self.may_give_a_value(scope)
                            && usize::from(answered) == replicas,
                        "failed although enough are left",
                    ),
                    GetFailure::NotHeld { holders, .. } => {
                        let merged = self.merged(scope);
                        let may = |node: &NodeId| {
                            let refused =
                                self.back(*node, &merged).is_some_and(|back| back.fate == Fate::Failed);
                            self.holds(*node, &merged, scope)
                                || !refused
                                || self.fate(*node) == Some(Fate::Awaited)
                        };
                        let possible = least(scope.replicas, scope.spared, |node| may(&node));
                        ensure(
                            counted >= required
                                && usize::from(holders) == self.holders(&merged, scope)
                                && holders < scope.held
                                && (self.now >= at(DEADLINE) || possible < usize::from(scope.held)),
                            "failed although enough may hold it",
                        )
                    }
                    GetFailure::DeadlinePassed { answered, .. } => {
                        let late = self.now >= at(DEADLINE) && left >= required && replicas < required;
                        ensure(!self.may_give_a_value(scope), "keeps a value back")?;
                        ensure(late && usize::from(answered) == replicas, "failed before the deadline")
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
        let lacks = |node: &NodeId| {
            let lacks = scope.is_reader(*node) && !scope.sets[position(*node)].includes(&merged);
            lacks && self.back(*node, &merged).is_none()
        };
        let mut lacking: BTreeSet<_> = self.nodes(Fate::Answered).filter(lacks).collect();
        if !lacking.is_empty() {
            let silent = NODES.into_iter().filter(|&node| scope.is_replica(node) && !scope.is_reader(node));
            lacking.extend(silent.filter(|&node| self.back(node, &merged).is_none()));
        }
        ensure(lacking == self.repaired.iter().copied().collect(), "repaired the wrong replicas")?;
        let waited = self.now >= at(DEADLINE) || self.nodes(Fate::Awaited).count() == 0;
        ensure(waited, "repaired before everybody answered")
    }

    /// Judges a machine whose caller waits for replicas to hold what it will be answered.
    fn judge_settling(&self, scope: &Scope) -> Result<(), String> {
        let (merged, held) = (self.merged(scope), usize::from(scope.held));
        let holders = self.holders(&merged, scope);
        let earlier = self.written_back.iter().any(|back| back.set != merged);
        ensure(holders < held || earlier, "enough hold it, and it waits")?;
        let awaited: Vec<_> = self
            .written_back
            .iter()
            .filter(|back| back.set == merged && back.fate == Fate::Awaited)
            .collect();
        let waits = !awaited.is_empty() || self.nodes(Fate::Awaited).count() > 0;
        ensure(waits, "waits for nobody to hold it")?;
        let open = |&&node: &&NodeId| !self.holds(node, &merged, scope) && self.back(node, &merged).is_none();
        let fresh = |back: &WrittenBackTo| {
            let patient = self.now.since(back.sent) < Duration::from_nanos(HEDGE_AFTER);
            patient && !scope.suspected.contains(&back.node)
        };
        let judged = self.now <= at(HEDGE_AFTER);
        scope.replicas.iter().zip(scope.spared).try_for_each(|(set, spared)| {
            let held = held - usize::from(spared);
            let expected = |&&node: &&NodeId| {
                self.holds(node, &merged, scope)
                    || awaited.iter().any(|back| back.node == node && fresh(back))
            };
            let complete =
                set.iter().filter(expected).count() >= held || set.iter().filter(open).count() == 0;
            ensure(!judged || complete, "a missing holder is not written to")
        })
    }

    /// Judges a machine whose caller waits.
    fn judge_patience(&self, scope: &Scope) -> Result<(), String> {
        let (answered, required) = (self.readers(scope, Fate::Answered), usize::from(scope.required));
        let hoped = usize::from(scope.held).min(scope.readers().len());
        let target = usize::from(scope.preferred.max(scope.required)).max(hoped);
        let awaited = self.readers(scope, Fate::Awaited);
        let patient = self.now < at(HEDGE_AFTER) && awaited > 0;
        if scope.held > 0 && (answered >= target || (answered >= required && !patient)) {
            return self.judge_settling(scope);
        }
        ensure(answered < target, "has what it hoped for and waits")?;
        ensure(answered < required || patient, "has enough, no patience, and waits")?;
        ensure(!self.may_give_a_value(scope), "keeps a value back")?;
        ensure(self.nodes(Fate::Awaited).count() > 0, "waits for nobody")?;
        ensure(answered >= required || !self.lacks_fallbacks(scope), "nobody stands in for a replica")?;
        let trusted = |node: &NodeId| !scope.suspected.contains(node) && scope.is_reader(*node);
        let fresh = |node: &NodeId| match self.asked[position(*node)] {
            Some((asked, _)) => asked == self.now || self.now < at(HEDGE_AFTER),
            None => false,
        };
        let expected = answered + self.nodes(Fate::Awaited).filter(trusted).filter(fresh).count();
        let target = if self.now < at(HEDGE_AFTER) { target } else { required };
        let unasked = scope.readers().iter().any(|&node| self.fate(node).is_none());
        let judged = self.now <= at(HEDGE_AFTER) && unasked;
        ensure(!judged || expected >= target, "a missing answer is not asked for elsewhere")
    }
}

impl World {
    fn start(scope: &Scope) -> Result<World, String> {
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

    fn step(&self, happening: Happening, scope: &Scope) -> Result<World, String> {
        let mut world = self.clone();
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

impl World {
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
}

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
            } else if next.get.deadline().is_some() && visited.insert(next.name()) {
                next.number = Some(origins.add(world.number, happening));
                pending.push(next);
            }
        }
    }
    Ok(visited.len())
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
