//! Every interleaving of answers, failures and time, for every suspicion of five nodes, and one or two keys.
//!
//! As in the explorations of gets and writes, an observer that knows only who was asked and has answered judges the
//! machine, and planted bugs prove that it can see.

use model::store::Consistency;
use model::{Partition, PartitionId, Store, StoreName};

use super::*;
use crate::explore::WORLDS_MAX;
use crate::quorum::fixtures::{
    DEADLINE, Happening, ONE_IS_ADDED, Packed, at, ensure, joint_preference, preference, preference_of,
};
use crate::quorum::planted::{Bug, is_found};
use plants::PlantedProbe;

mod plants;

const NODES: [NodeId; 5] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4), NodeId(5)];
/// When nodes have had their part of the time.
const PATIENCE: u64 = DEADLINE / 2;

#[derive(Clone, Debug)]
struct Scope {
    reach: Reach,
    suspected: Vec<NodeId>,
    /// Three replicas and two fallbacks of each key.
    keys: Vec<PreferenceList>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Awaited,
    Failed,
    Answered,
}

/// What an outsider knows.
#[derive(Clone, Debug)]
struct Observer {
    now: Moment,
    asked: BTreeMap<NodeId, Fate>,
    refused: Option<Vec<KeyIndex>>,
}

#[derive(Clone, Debug)]
struct World<'a> {
    scope: &'a Scope,
    probe: PlantedProbe,
    observer: Observer,
}

impl Scope {
    fn takers(&self, key: usize) -> Vec<NodeId> {
        let list = &self.keys[key];
        let fallbacks = if self.reach.sloppy { list.fallbacks() } else { &[] };
        [list.replicas(), fallbacks].concat()
    }

    /// Whether the node is there as far as was known before anybody was asked.
    fn trusts(&self, node: NodeId) -> bool {
        node == self.reach.own || !self.suspected.contains(&node)
    }

    /// Whether the key could be driven without a question.
    fn is_driven(&self, key: usize) -> bool {
        let there = self.takers(key).into_iter().filter(|&node| self.trusts(node)).count();
        there >= usize::from(self.reach.required)
    }
}

impl Observer {
    /// Takers of a key that are there, and those that have been asked and may still say so.
    fn count(&self, key: usize, scope: &Scope) -> (usize, usize) {
        let takers = scope.takers(key);
        let fated = |fate| takers.iter().filter(|node| self.asked.get(node) == Some(&fate)).count();
        let trusted = takers.iter().filter(|&&node| scope.trusts(node)).count();
        (trusted + fated(Fate::Answered), fated(Fate::Awaited))
    }

    fn see(&mut self, action: &ProbeAction, scope: &Scope) -> Result<(), String> {
        ensure(self.refused.is_none(), "acts after its answer")?;
        match action {
            ProbeAction::Ask { node } => {
                ensure(!scope.trusts(*node), "asks who is not suspected")?;
                let helps = |key| !scope.is_driven(key) && scope.takers(key).contains(node);
                ensure((0..scope.keys.len()).any(helps), "asks who cannot help")?;
                ensure(self.asked.insert(*node, Fate::Awaited).is_none(), "asked twice")
            }
            ProbeAction::Answer { refused } => {
                self.refused = Some(refused.clone());
                (0..scope.keys.len()).try_for_each(|key| self.judge_key(key, refused, scope))
            }
        }
    }

    fn judge_key(&self, key: usize, refused: &[KeyIndex], scope: &Scope) -> Result<(), String> {
        let (there, awaited) = self.count(key, scope);
        let required = usize::from(scope.reach.required);
        if !refused.contains(&KeyIndex::at(key)) {
            return ensure(there >= required, "drives what too few are there for");
        }
        ensure(there < required, "refuses what enough are there for")?;
        let takers = scope.takers(key);
        let unasked = |node: &&NodeId| !scope.trusts(**node) && !self.asked.contains_key(node);
        let unasked = takers.iter().filter(unasked).count();
        ensure(there + awaited + unasked < required || self.now >= at(PATIENCE), "refuses too early")?;
        ensure(unasked == 0 || takers.len() < required, "refuses without having asked")
    }

    /// Judges a machine that has nothing to do at the moment.
    fn judge_rest(&self, deadline: Option<Moment>, scope: &Scope) -> Result<(), String> {
        let Some(deadline) = deadline else {
            return ensure(self.refused.is_some(), "ended without an answer");
        };
        ensure(self.refused.is_none(), "goes on after its answer")?;
        ensure(deadline == at(PATIENCE) && self.now < deadline, "leaves no time for trying elsewhere")?;
        let open = |key| {
            let (there, awaited) = self.count(key, scope);
            there < usize::from(scope.reach.required) && there + awaited >= usize::from(scope.reach.required)
        };
        ensure((0..scope.keys.len()).any(open), "waits although its answer is certain")
    }
}

impl<'a> World<'a> {
    fn start(scope: &'a Scope) -> Result<Self, String> {
        let suspected = |node| scope.suspected.contains(&node);
        let mut actions = Vec::new();
        let probe =
            PlantedProbe::start(scope.reach, &scope.keys, suspected, at(0), at(DEADLINE), &mut actions);
        let observer = Observer { now: at(0), asked: BTreeMap::new(), refused: None };
        let mut world = World { scope, probe, observer };
        let driven = |key| scope.is_driven(key);
        ensure((0..scope.keys.len()).all(driven) || !actions.is_empty(), "says nothing")?;
        world.see(&actions)?;
        Ok(world)
    }

    fn see(&mut self, actions: &[ProbeAction]) -> Result<(), String> {
        let scope = self.scope;
        actions.iter().try_for_each(|action| self.observer.see(action, scope))?;
        self.observer.judge_rest(self.probe.deadline(), scope)
    }
}

impl crate::explore::World for World<'_> {
    type Happening = Happening;
    type Name = Packed;

    fn name(&self) -> Packed {
        let mut name = Packed::default();
        for node in NODES {
            let fate = self.observer.asked.get(&node);
            name.push(fate.map_or(0, |fate| *fate as u64 + 1), 2);
        }
        name.push(self.observer.now.nanos, 6);
        name.push(u64::from(self.observer.refused.is_some()), 1);
        name
    }

    /// What may come next: each node that was asked answers or fails, again and late too, and time passes.
    fn happenings(&self) -> Vec<Happening> {
        let mut happenings = Vec::new();
        for &node in self.observer.asked.keys() {
            happenings.extend([Happening::Acknowledges(node), Happening::Loses(node)]);
        }
        let times = [PATIENCE / 2, PATIENCE, DEADLINE];
        let later = times.into_iter().map(at).filter(|&time| time > self.observer.now);
        happenings.extend(later.map(Happening::Elapses));
        happenings
    }

    fn step(&self, happening: &Happening) -> Result<Option<Self>, String> {
        let mut world = self.clone();
        let event = match *happening {
            Happening::Acknowledges(node) => {
                world.observer.asked.insert(node, Fate::Answered);
                ProbeEvent::Answered { node }
            }
            Happening::Elapses(now) => {
                world.observer.now = now;
                ProbeEvent::Elapsed
            }
            Happening::Loses(node) => {
                let fate = world.observer.asked.get_mut(&node).expect("only asked nodes reply");
                *fate = (*fate).max(Fate::Failed);
                ProbeEvent::Failed { node }
            }
            other => unreachable!("{other:?} does not happen to a question"),
        };
        let mut actions = Vec::new();
        world.probe.step(event, world.observer.now, &mut actions);
        if self.observer.refused.is_some() {
            ensure(actions.is_empty(), "acts after its end")?;
            return Ok(None);
        }
        world.see(&actions)?;
        Ok(Some(world))
    }

    /// Answers of nodes that were never asked must change nothing.
    fn judge(&self) -> Result<(), String> {
        let mut probe = self.probe.clone();
        let mut actions = Vec::new();
        for node in NODES.into_iter().chain([NodeId(9)]) {
            if !self.observer.asked.contains_key(&node) {
                probe.step(ProbeEvent::Answered { node }, self.observer.now, &mut actions);
                probe.step(ProbeEvent::Failed { node }, self.observer.now, &mut actions);
            }
        }
        ensure(
            actions.is_empty() && format!("{probe:?}") == format!("{:?}", self.probe),
            "a foreign answer counted",
        )
    }
}

/// Visits every world of a scope; the number of them.
fn explore(scope: &Scope) -> Result<usize, String> {
    crate::explore::explore(World::start(scope)?, WORLDS_MAX)
}

/// A list of these nodes, of which the first three are replicas.
fn list(nodes: [u32; 5]) -> PreferenceList {
    let consistency = Consistency { replicas: 3, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("explored").unwrap(), consistency).unwrap();
    let nodes = nodes.map(NodeId).to_vec();
    PreferenceList::of(&store, &Partition::settled(PartitionId(0), 0, nodes))
}

fn scopes() -> Vec<Scope> {
    let mut scopes = Vec::new();
    let keys = [vec![preference(3, 2)], vec![preference(3, 2), list([5, 4, 3, 2, 1])]];
    for (keys, own) in keys.iter().flat_map(|keys| [1, 4, 9].map(|own| (keys, NodeId(own)))) {
        for (required, sloppy) in (1..=4).flat_map(|required| [(required, false), (required, true)]) {
            let reach = Reach { own, required, spared: Spared::default(), sloppy };
            for suspicion in 0..1_u32 << NODES.len() {
                let suspected = NODES.into_iter().filter(|node| suspicion & 1 << (node.0 - 1) != 0).collect();
                scopes.push(Scope { reach, suspected, keys: keys.clone() });
            }
        }
    }
    scopes
}

#[test]
fn every_interleaving_of_a_question_keeps_the_rules() {
    let explore = |scope| explore(&scope).unwrap_or_else(|violation| panic!("{violation}"));
    let states: usize = scopes().into_iter().map(explore).sum();
    assert!(states > 10_000, "the exploration has shrunk to {states} states");
}

#[test]
fn a_planted_bug_in_a_question_is_found() {
    let explore_all = || scopes().iter().try_for_each(|scope| explore(scope).map(|_| ()));
    for bug in [Bug::RefusesUnasked, Bug::SuspicionIsFinal, Bug::AsksForMore, Bug::AsksForever] {
        assert!(is_found(bug, explore_all), "{bug:?} goes unnoticed");
    }
}

/// A replica that clients reached and no other node heard drove each of their writes into doubt.
#[test]
fn a_node_that_reaches_nobody_drives_no_write_that_needs_others() {
    let preference = preference(2, 4);
    let (one, other, outsider) = (NodeId(1), NodeId(2), NodeId(3));
    let driven = |own, required, sloppy, there: &[NodeId]| {
        can_be_driven(&Reach { own, required, spared: Spared::default(), sloppy }, &preference, |node| {
            !there.contains(&node)
        })
    };
    assert!(driven(one, 1, false, &[]) && driven(one, 2, false, &[other]));
    assert!(!driven(one, 2, false, &[]) && !driven(one, 2, true, &[]));
    assert!(!driven(one, 2, false, &[outsider]), "only replicas count");
    assert!(driven(one, 2, true, &[outsider]) && driven(outsider, 1, true, &[]), "fallbacks count too");
    assert!(!driven(outsider, 1, false, &[]) && driven(outsider, 1, false, &[other]));
}

#[test]
fn while_the_partition_moves_enough_of_both_sets_must_be_there() {
    let preference = joint_preference([&[NodeId(1), NodeId(2)], &[NodeId(2), NodeId(3)]]);
    let reach = Reach { own: NodeId(1), required: 2, spared: Spared::default(), sloppy: false };
    let suspects = |nodes: &'static [u32]| move |node: NodeId| nodes.contains(&node.0);
    assert!(can_be_driven(&reach, &preference, suspects(&[4, 5])));
    for suspected in [&[2][..], &[3], &[2, 3]] {
        assert!(!can_be_driven(&reach, &preference, suspects(suspected)), "{suspected:?}");
        let mut actions = Vec::new();
        let keys = [&preference, &preference];
        let mut probe = Probe::start(reach, keys, suspects(suspected), at(0), at(DEADLINE), &mut actions);
        let asked: Vec<_> = suspected.iter().map(|&id| ProbeAction::Ask { node: NodeId(id) }).collect();
        assert_eq!(actions, asked);
        let mut silent = probe.clone();
        actions.clear();
        silent.step(ProbeEvent::Elapsed, at(PATIENCE), &mut actions);
        let refused = vec![KeyIndex::at(0), KeyIndex::at(1)];
        assert_eq!(actions, [ProbeAction::Answer { refused }], "each key once");
        actions.clear();
        for &id in suspected {
            probe.step(ProbeEvent::Answered { node: NodeId(id) }, at(1), &mut actions);
        }
        assert_eq!(actions, [ProbeAction::Answer { refused: Vec::new() }]);
    }
    // The old set of two needs one, the new set of three needs two.
    let (required, spared) = Spared::of(1, 2);
    let (added, reach) = (preference_of(ONE_IS_ADDED), Reach { required, spared, ..reach });
    for (suspected, driven) in [(&[2][..], true), (&[3], true), (&[2, 3], false)] {
        assert_eq!(can_be_driven(&reach, &added, suspects(suspected)), driven, "{suspected:?}");
    }
    let reach = Reach { spared: Spared::default(), ..reach };
    let sloppy = Reach { sloppy: true, ..reach };
    assert!(can_be_driven(&sloppy, &preference, suspects(&[2])), "a fallback stands in");
}

#[test]
fn a_node_whose_link_breaks_between_two_answers_counts_once() {
    let preference = preference(3, 0);
    let reach = Reach { own: NodeId(1), required: 3, spared: Spared::default(), sloppy: false };
    let mut actions = Vec::new();
    let mut probe = Probe::start(reach, [&preference], |_| true, at(0), at(DEADLINE), &mut actions);
    assert_eq!(actions, [2, 3].map(|id| ProbeAction::Ask { node: NodeId(id) }));
    assert!(probe.is_unanswered());
    actions.clear();
    let node = NodeId(2);
    for event in [ProbeEvent::Answered { node }, ProbeEvent::Failed { node }, ProbeEvent::Answered { node }] {
        probe.step(event, at(1), &mut actions);
    }
    assert!(actions.is_empty() && probe.is_unanswered(), "n3 is still missing");
    probe.step(ProbeEvent::Failed { node: NodeId(3) }, at(2), &mut actions);
    assert_eq!(actions, [ProbeAction::Answer { refused: vec![KeyIndex::at(0)] }]);
    assert!(!probe.is_unanswered());
}

#[test]
fn those_that_a_node_does_not_hear_are_suspected_takers_other_than_itself() {
    let preference = preference(3, 2);
    let reach = Reach { own: NodeId(1), required: 3, spared: Spared::default(), sloppy: true };
    let unheard = |reach: Reach| reach.unheard(&preference, |node| [1, 2, 4, 9].contains(&node.0));
    assert_eq!(unheard(reach), [NodeId(2), NodeId(4)]);
    assert_eq!(unheard(Reach { sloppy: false, ..reach }), [NodeId(2)], "fallbacks do not count");
}
