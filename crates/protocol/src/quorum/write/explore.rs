//! Every interleaving of acknowledgements, refusals, lost replies and time, for three replicas and two fallbacks; also
//! while one replica gives way to another node.
//!
//! An observer that knows only what was sent and what was replied judges each action, each rest and each end. It
//! shares no counting code with the machine. Planted bugs prove that it can see.

use std::cell::Cell;

use super::*;
use crate::explore::WORLDS_MAX;
use crate::quorum::Spared;
use crate::quorum::fixtures::*;
use crate::quorum::planted::{Bug, is_found};
use plants::PlantedWrite;

mod plants;

#[derive(Clone, Debug)]
struct Scope {
    /// The old replicas and the new ones.
    sets: [&'static [NodeId]; 2],
    required: u8,
    /// By how many fewer the old and the new ones get by.
    spared: [u8; 2],
    preferred: u8,
    sloppy: bool,
    origin: Origin,
    suspected: Vec<NodeId>,
    /// Whether replicas may be ahead of the request's ring.
    ahead: bool,
    /// Whether a node may contradict its refusal or its acknowledgement, as a duplicating network makes it appear.
    contradictions: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Awaited,
    Refused,
    Lost,
    Acknowledged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Open,
    Done,
    Failed,
    Indeterminate,
    Refreshed,
}

/// What an outsider knows.
#[derive(Clone, Copy, Debug)]
struct Observer {
    now: Moment,
    end: End,
    /// By node: what became of the merge, or of the hint for the named target, that it was sent.
    asked: [Option<(Option<NodeId>, Fate)>; 5],
    /// By replica: whether the coordinator keeps a hint for it.
    parked: [bool; 3],
}

#[derive(Clone, Debug)]
struct World<'a> {
    scope: &'a Scope,
    /// Ends that were met, in all worlds of the scope.
    ends: &'a Cell<u32>,
    write: PlantedWrite,
    observer: Observer,
}

const REPLICAS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];
const FALLBACKS: [NodeId; 2] = [NodeId(4), NodeId(5)];
const OUTSIDER: NodeId = NodeId(9);

impl Scope {
    fn is_replica(&self, node: NodeId) -> bool {
        self.sets.iter().any(|set| set.contains(&node))
    }
}

impl Observer {
    fn fate(&self, node: NodeId) -> Option<Fate> {
        self.asked[position(node)].map(|(_, fate)| fate)
    }

    /// Notes that the node was sent something; false when it had been before.
    fn ask(&mut self, node: NodeId, target: Option<NodeId>) -> bool {
        self.asked[position(node)].replace((target, Fate::Awaited)).is_none()
    }

    fn is_parked(&self, node: NodeId) -> bool {
        self.parked[position(node)]
    }

    fn has_acknowledged(&self, node: NodeId) -> bool {
        self.fate(node) == Some(Fate::Acknowledged)
    }

    fn holder_of(&self, target: NodeId, fate: Fate) -> bool {
        self.asked.contains(&Some((Some(target), fate)))
    }

    fn replicas_acknowledged(&self, scope: &Scope) -> usize {
        least(scope.sets, scope.spared, |node| self.has_acknowledged(node))
    }

    fn counted(&self, scope: &Scope) -> usize {
        let counts = |node: NodeId| {
            self.has_acknowledged(node) || (scope.sloppy && self.holder_of(node, Fate::Acknowledged))
        };
        least(scope.sets, scope.spared, counts)
    }

    fn is_any(&self, fates: &[Fate]) -> bool {
        self.asked.iter().flatten().any(|(_, fate)| fates.contains(fate))
    }

    /// Whether the write may be applied somewhere, by what was replied so far.
    fn is_possible(&self, scope: &Scope) -> bool {
        scope.origin.possible
            || scope.origin.local == Local::Applied
            || self.is_any(&[Fate::Acknowledged, Fate::Lost])
            || (self.now >= at(DEADLINE) && self.is_any(&[Fate::Awaited]))
    }

    fn unused_fallbacks(&self) -> usize {
        FALLBACKS.iter().filter(|&&node| self.fate(node).is_none()).count()
    }

    fn is_open(&self) -> bool {
        self.end == End::Open
    }

    /// Judges one action and remembers it.
    fn see(&mut self, action: &WriteAction, scope: &Scope) -> Result<(), String> {
        match action {
            WriteAction::Merge { node } => {
                ensure(scope.is_replica(*node), "merge at a node that is no replica")?;
                ensure(self.ask(*node, None), "merge sent twice")
            }
            WriteAction::SendHint { holder, target } => {
                ensure(
                    scope.sloppy || self.is_possible(scope),
                    "a hint makes a refused strict write possible",
                )?;
                ensure(
                    FALLBACKS.contains(holder) && scope.is_replica(*target),
                    "hint to or for the wrong node",
                )?;
                ensure(!self.has_acknowledged(*target), "hint for a replica that has acknowledged")?;
                ensure(self.ask(*holder, Some(*target)), "fallback used twice")
            }
            WriteAction::ParkHint { target } => {
                ensure(
                    scope.is_replica(*target) && *target != scope.origin.own,
                    "parked for the wrong node",
                )?;
                ensure(self.is_possible(scope), "parking makes a refused write possible")?;
                let spare = self.now < at(DEADLINE) && self.unused_fallbacks() > 0;
                ensure(!spare, "parked while a fallback is left")?;
                let held = self.has_acknowledged(*target) || self.holder_of(*target, Fate::Acknowledged);
                ensure(!held, "parked although held")?;
                ensure(!std::mem::replace(&mut self.parked[position(*target)], true), "parked twice")
            }
            WriteAction::Answer(outcome) => {
                ensure(self.is_open(), "answered twice")?;
                self.judge(outcome, scope)
            }
            WriteAction::Refresh { generation, possible } => {
                ensure(self.is_open(), "refreshed after the answer")?;
                ensure(*generation == Generation(GENERATION.0 + 1), "wrong generation")?;
                let may_be = self.is_possible(scope) || self.is_any(&[Fate::Awaited]);
                ensure(*possible == may_be, "refresh misjudges whether the write is possible")?;
                self.end = End::Refreshed;
                Ok(())
            }
        }
    }

    fn judge(&mut self, outcome: &WriteOutcome, scope: &Scope) -> Result<(), String> {
        let (counted, required) = (self.counted(scope), usize::from(scope.required));
        match outcome {
            WriteOutcome::Done { acks, sloppy, .. } => {
                self.end = End::Done;
                ensure(counted >= required, "done with too few acknowledgements")?;
                ensure(usize::from(*acks) == counted, "done with a wrong count")?;
                ensure(
                    *sloppy == (self.replicas_acknowledged(scope) < required),
                    "done with a wrong sloppiness",
                )
            }
            WriteOutcome::Failed { .. } => {
                self.end = End::Failed;
                ensure(!self.is_possible(scope), "failed although it may be applied")?;
                ensure(!self.is_any(&[Fate::Awaited]), "failed while a reply is awaited")?;
                ensure(self.parked == [false; 3], "failed although a hint is parked")
            }
            WriteOutcome::Indeterminate { acks, .. } => {
                self.end = End::Indeterminate;
                ensure(self.is_possible(scope), "indeterminate although everybody refused")?;
                ensure(counted < required, "indeterminate although enough acknowledged")?;
                let own = scope.origin.own;
                let own = own != OUTSIDER && self.fate(own) == Some(Fate::Awaited);
                ensure(!own || self.now >= at(DEADLINE), "says what it knows before the own copy is known")?;
                ensure(usize::from(*acks) == counted, "indeterminate with a wrong count")
            }
        }
    }

    /// Judges a machine that has nothing to do at the moment.
    fn judge_rest(&self, deadline: Option<Moment>, scope: &Scope) -> Result<(), String> {
        if let Some(deadline) = deadline {
            ensure(self.now < deadline && deadline <= at(DEADLINE), "wakes up at a wrong time")?;
            self.judge_stand_ins(scope)?;
        } else {
            ensure(!self.is_open(), "ended without an answer")?;
        }
        if self.is_open() {
            return self.judge_patience(scope);
        }
        let homeless = |node: &&NodeId| {
            let held = self.has_acknowledged(**node) || self.holder_of(**node, Fate::Acknowledged);
            !held && !self.is_parked(**node) && **node != scope.origin.own
        };
        let homeless = REPLICAS.iter().filter(|node| scope.is_replica(**node)).filter(homeless).count();
        let done = matches!(self.end, End::Done | End::Indeterminate) && deadline.is_none();
        ensure(!done || homeless == 0, "ended with a replica that has neither write nor hint")
    }

    /// Judges a machine whose caller waits.
    fn judge_patience(&self, scope: &Scope) -> Result<(), String> {
        let (counted, required) = (self.counted(scope), usize::from(scope.required));
        ensure(self.is_any(&[Fate::Awaited]), "waits for nobody")?;
        ensure(
            counted < usize::from(scope.preferred.max(scope.required)),
            "has what it hoped for and waits",
        )?;
        let late = self.now >= at(HEDGE_AFTER);
        ensure(counted < required || !late, "has enough and has lost its patience, and waits")?;
        let expected = |node: NodeId| {
            let held = |fate| self.holder_of(node, fate);
            self.has_acknowledged(node) || held(Fate::Acknowledged) || held(Fate::Awaited)
        };
        let hedges = !scope.sloppy || !late || self.unused_fallbacks() == 0;
        ensure(
            hedges || least(scope.sets, scope.spared, expected) >= required,
            "late replicas got no stand-in",
        )
    }

    /// Judges whether each replica that is down has a stand-in, and is parked for when none is left.
    fn judge_stand_ins(&self, scope: &Scope) -> Result<(), String> {
        if !scope.sloppy && !self.is_possible(scope) {
            return Ok(());
        }
        for node in REPLICAS.into_iter().filter(|&node| scope.is_replica(node)) {
            let failed = matches!(self.fate(node), Some(Fate::Refused | Fate::Lost));
            let down = failed || scope.suspected.contains(&node);
            let held = self.has_acknowledged(node)
                || self.holder_of(node, Fate::Acknowledged)
                || self.holder_of(node, Fate::Awaited);
            if down && !held {
                ensure(self.unused_fallbacks() == 0, "a replica is down and has no stand-in")?;
                let parked = self.is_parked(node) || node == scope.origin.own;
                ensure(
                    !failed || parked || !self.is_possible(scope),
                    "no fallback is left, and nothing parked",
                )?;
            }
        }
        Ok(())
    }
}

impl<'a> World<'a> {
    fn start(scope: &'a Scope, ends: &'a Cell<u32>) -> Result<Self, String> {
        let preference = preference_of(scope.sets);
        let candidates = Candidates { preference: &preference, suspected: &scope.suspected, lagging: &[] };
        let [old, new] = scope.spared.map(|spared| scope.required - spared);
        let (required, spared) = Spared::of(old, new);
        assert_eq!(required, scope.required, "one set needs all");
        let options = QuorumOptions { spared, ..options(scope.required, scope.preferred, scope.sloppy) };
        let mut actions = WriteActions::new();
        let write = PlantedWrite::start(candidates, scope.origin, options, at(0), &mut actions);
        let mut observer = Observer { now: at(0), end: End::Open, asked: [None; 5], parked: [false; 3] };
        let own = match scope.origin.local {
            Local::Applied => Some(Fate::Awaited),
            Local::Refused(_) => Some(Fate::Refused),
            Local::NotReplica => None,
        };
        if let Some(fate) = own {
            observer.asked[position(scope.origin.own)] = Some((None, fate));
        }
        let mut world = World { scope, ends, write, observer };
        world.see(&actions)?;
        Ok(world)
    }

    fn see(&mut self, actions: &[WriteAction]) -> Result<(), String> {
        let scope = self.scope;
        actions.iter().try_for_each(|action| self.observer.see(action, scope))?;
        self.observer.judge_rest(self.write.deadline(), scope)
    }

    fn has_ended(&self) -> bool {
        self.write.deadline().is_none()
    }

    /// The world after it, whether or not its write has ended.
    fn after(&self, happening: Happening) -> Result<Self, String> {
        let mut world = self.clone();
        let mut tell = |node: NodeId, fate: Fate, event: WriteEvent| {
            let known = world.observer.asked[position(node)].as_mut().expect("only asked nodes reply");
            known.1 = known.1.max(fate);
            event
        };
        let event = match happening {
            Happening::Acknowledges(node) => {
                let event = WriteEvent::Acknowledged { node, generation: GENERATION, superseded: false };
                tell(node, Fate::Acknowledged, event)
            }
            Happening::Refuses(node) => {
                let event = WriteEvent::Failed { node, error: ReplicaError::Overloaded };
                tell(node, Fate::Refused, event)
            }
            Happening::Loses(node) => {
                tell(node, Fate::Lost, WriteEvent::Failed { node, error: ReplicaError::Lost })
            }
            Happening::IsAhead(node) => {
                let generation = Generation(GENERATION.0 + 1);
                let error = ReplicaError::StaleGeneration { generation };
                tell(node, Fate::Refused, WriteEvent::Failed { node, error })
            }
            Happening::Stores(..) | Happening::LosesStore(..) | Happening::IsAheadStoring(..) => {
                unreachable!("only gets write back")
            }
            Happening::Elapses(now) => {
                world.observer.now = now;
                WriteEvent::Elapsed
            }
        };
        let finished = self.has_ended();
        let mut actions = WriteActions::new();
        world.write.step(event, world.observer.now, &mut actions);
        ensure(!finished || actions.is_empty(), "acts after its end")?;
        world.see(&actions)?;
        Ok(world)
    }
}

impl crate::explore::World for World<'_> {
    type Happening = Happening;
    type Name = Packed;

    fn name(&self) -> Packed {
        name(&self.write, &self.observer)
    }

    fn happenings(&self) -> Vec<Happening> {
        let scope = self.scope;
        let mut happenings = Vec::new();
        for node in REPLICAS.into_iter().chain(FALLBACKS) {
            let Some(fate) = self.observer.fate(node) else { continue };
            match fate {
                Fate::Awaited => {
                    happenings.extend([
                        Happening::Acknowledges(node),
                        Happening::Refuses(node),
                        Happening::Loses(node),
                    ]);
                    happenings.extend(scope.ahead.then_some(Happening::IsAhead(node)));
                }
                Fate::Lost => happenings.push(Happening::Acknowledges(node)),
                _ => {}
            }
            if scope.contradictions {
                happenings.extend(match fate {
                    Fate::Lost | Fate::Acknowledged => Some(Happening::Refuses(node)),
                    _ => None,
                });
                if fate == Fate::Refused && node != scope.origin.own {
                    happenings.extend([Happening::Acknowledges(node), Happening::Loses(node)]);
                }
            }
        }
        if let Some(deadline) = self.write.deadline() {
            happenings.push(Happening::Elapses(deadline));
            happenings.push(Happening::Elapses(at(DEADLINE)));
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

    /// An acknowledgement under another generation, or from a node that was not asked, must change nothing.
    fn judge(&self) -> Result<(), String> {
        let mut write = self.write.clone();
        let mut actions = WriteActions::new();
        for node in REPLICAS.into_iter().chain(FALLBACKS).chain([OUTSIDER]) {
            let asked = node != OUTSIDER && self.observer.fate(node).is_some();
            let generation = if asked { Generation(GENERATION.0 - 1) } else { GENERATION };
            let event = WriteEvent::Acknowledged { node, generation, superseded: true };
            write.step(event, self.observer.now, &mut actions);
        }
        let same = actions.is_empty() && name(&write, &self.observer) == self.name() && !write.superseded;
        ensure(same, "a foreign acknowledgement counted")
    }
}

fn position(node: NodeId) -> usize {
    node.0 as usize - 1
}

/// A number that tells this state from every other of its scope.
fn name(write: &Write, observer: &Observer) -> Packed {
    let code = |reply: WriteReply| match reply {
        WriteReply::Unasked => 0,
        WriteReply::Awaited => 1,
        WriteReply::Failed(ReplicaError::Lost) => 2,
        WriteReply::Failed(_) => 3,
        WriteReply::Acknowledged => 4,
    };
    let mut name = Packed::default();
    for slot in &write.slots {
        name.push(code(slot.reply), 3);
        name.push(u64::from(slot.hinted) << 1 | u64::from(slot.parked), 2);
    }
    for stand_in in &write.stand_ins {
        name.push(code(stand_in.reply), 3);
        name.push(stand_in.slot as u64, 2);
        name.push(stand_in.late_at.nanos, 7);
    }
    name.push(write.next as u64, 2);
    name.push(write.phase as u64, 2);
    name.push(u64::from(write.waves), 4);
    name.push(write.now.nanos, 6);
    name.push(observer.end as u64, 3);
    for asked in observer.asked {
        let code = asked.map_or(0, |(target, fate)| {
            let target = target.map_or(0, |target| u64::from(target.0));
            1 << 4 | target << 2 | fate as u64
        });
        name.push(code, 5);
    }
    for parked in observer.parked {
        name.push(u64::from(parked), 1);
    }
    name
}

/// Visits every world of a scope; the number of them.
fn explore(scope: &Scope) -> Result<usize, String> {
    let ends = Cell::new(0);
    crate::explore::explore(World::start(scope, &ends)?, WORLDS_MAX)
}

fn replica(required: u8, preferred: u8, sloppy: bool) -> Scope {
    let origin = Origin { own: NodeId(1), local: Local::Applied, possible: false };
    let suspected = Vec::new();
    Scope {
        sets: SETTLED,
        required,
        spared: [0, 0],
        preferred,
        sloppy,
        origin,
        suspected,
        ahead: false,
        contradictions: false,
    }
}

fn outsider(required: u8, sloppy: bool) -> Scope {
    let origin = Origin { own: OUTSIDER, local: Local::NotReplica, possible: false };
    Scope { origin, ..replica(required, required, sloppy) }
}

fn scopes() -> Vec<Scope> {
    let full = ReplicaError::DiskFull;
    let refused = Origin { own: NodeId(1), local: Local::Refused(full), possible: false };
    let fallback = Origin { own: NodeId(5), local: Local::NotReplica, possible: false };
    let mut scopes = Vec::new();
    for sloppy in [false, true] {
        scopes.push(replica(1, 1, sloppy));
        scopes.push(replica(3, 3, sloppy));
        scopes.push(replica(2, 3, sloppy));
        scopes.push(Scope { contradictions: true, ..replica(2, 2, sloppy) });
        scopes.push(Scope { contradictions: true, ..outsider(2, sloppy) });
        scopes.push(Scope { origin: refused, ..replica(2, 2, sloppy) });
        scopes.push(Scope { origin: fallback, ..replica(2, 2, sloppy) });
        scopes.push(Scope { suspected: vec![NodeId(2)], ..replica(2, 2, sloppy) });
        scopes.push(Scope { suspected: vec![NodeId(1), NodeId(3), NodeId(4)], ..outsider(2, sloppy) });
        scopes.push(Scope { ahead: true, ..replica(2, 2, sloppy) });
        scopes.push(Scope { ahead: true, ..outsider(1, sloppy) });
    }
    scopes
}

/// Writes while the partition moves.
fn joint_scopes() -> Vec<Scope> {
    let of = |node| Origin { own: NodeId(node), local: Local::Applied, possible: false };
    let mut scopes = Vec::new();
    for sloppy in [false, true] {
        for own in 1..=3 {
            scopes.push(Scope { sets: ONE_OF_TWO_MOVES, origin: of(own), ..replica(2, 2, sloppy) });
        }
        scopes.push(Scope { sets: ONE_OF_TWO_MOVES, ..replica(1, 1, sloppy) });
        scopes.push(Scope { sets: ONE_OF_TWO_MOVES, ..replica(1, 2, sloppy) });
        scopes.push(Scope { sets: ONE_OF_TWO_MOVES, suspected: vec![NodeId(3)], ..replica(1, 1, sloppy) });
        scopes.push(Scope { sets: ONE_OF_TWO_MOVES, contradictions: true, ..outsider(2, sloppy) });
        scopes.push(Scope { sets: ONE_OF_TWO_MOVES, ahead: true, ..replica(1, 1, sloppy) });
        scopes.push(Scope { sets: THE_ONLY_ONE_MOVES, ..replica(1, 1, sloppy) });
        scopes.push(Scope { sets: ONE_IS_ADDED, spared: [1, 0], ..replica(2, 2, sloppy) });
        scopes.push(Scope {
            sets: ONE_IS_ADDED,
            spared: [0, 1],
            contradictions: true,
            ..outsider(2, sloppy)
        });
        scopes.push(Scope { sets: ONE_IS_TAKEN, spared: [0, 1], ahead: true, ..replica(2, 3, sloppy) });
        scopes.push(Scope { sets: ONE_IS_TAKEN, spared: [0, 1], origin: of(3), ..replica(3, 3, sloppy) });
        scopes.push(Scope {
            sets: ONE_IS_TAKEN,
            spared: [1, 0],
            suspected: vec![NodeId(3)],
            ..outsider(2, sloppy)
        });
        scopes.push(Scope { sets: THE_ONLY_ONE_MOVES, contradictions: true, ..outsider(1, sloppy) });
    }
    scopes
}

fn explore_all() -> Result<(), String> {
    scopes().iter().try_for_each(|scope| explore(scope).map(|_| ()))
}

#[test]
fn every_interleaving_of_a_write_keeps_the_rules() {
    let explore = |scope| explore(&scope).unwrap_or_else(|violation| panic!("{violation}"));
    let states: usize = scopes().into_iter().map(explore).sum();
    assert!(states > 100_000, "the exploration has shrunk to {states} states");
}

#[test]
fn every_interleaving_of_a_write_to_a_partition_that_moves_keeps_the_rules() {
    let explore = |scope| explore(&scope).unwrap_or_else(|violation| panic!("{violation}"));
    let states: usize = joint_scopes().into_iter().map(explore).sum();
    assert!(states > 20_000, "the exploration has shrunk to {states} states");
}

#[test]
fn a_planted_bug_in_a_write_to_a_partition_that_moves_is_found() {
    let explore_all = || joint_scopes().iter().try_for_each(|scope| explore(scope).map(|_| ()));
    for bug in [
        Bug::OldSetSuffices,
        Bug::SetsCountTogether,
        Bug::NoHintsForNew,
        Bug::OneAnswerTooFew,
        Bug::SparesTheOtherSet,
    ] {
        assert!(is_found(bug, explore_all), "{bug:?} goes unnoticed");
    }
}

#[test]
fn a_planted_bug_in_a_write_is_found() {
    let bugs = [
        Bug::StrictCountsHints,
        Bug::HintCountsBesideReplica,
        Bug::OtherGenerationCounts,
        Bug::OneAnswerTooFew,
        Bug::LostIsRefused,
        Bug::RefusalReplacesLost,
        Bug::ParksTooEarly,
        Bug::ForgetsStragglers,
        Bug::NoStandIn,
        Bug::NeverHedges,
        Bug::AnswersTwice,
        Bug::AnswersLate,
        Bug::ForgetsOwnCopy,
        Bug::RefreshForgetsPossible,
        Bug::DropsLateAck,
        Bug::HidesSloppiness,
    ];
    for bug in bugs {
        assert!(is_found(bug, explore_all), "{bug:?} goes unnoticed");
    }
}
