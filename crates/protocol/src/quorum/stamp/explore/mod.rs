//! Every interleaving of replies, news, routes and time, for one key and for two, with three replicas, two fallbacks
//! and a newer ring.
//!
//! As in the explorations of gets and writes, an observer that knows only who was asked and what was replied judges
//! the machine. Planted bugs prove that it can see: they change what the machine is told or what it says, so that no
//! branch of the machine itself is for tests.

mod observer;
mod plants;

use std::collections::BTreeSet;

use model::store::Consistency;
use model::{Partition, PartitionId, PreferenceList, Store, StoreName};

use observer::{Observer, Seen, Whereabouts};
use plants::{Plant, planted_actions, planted_reply};

use super::*;
use crate::explore::WORLDS_MAX;
use crate::quorum::fixtures::{GENERATION, ensure};

const NEWER: Generation = Generation(GENERATION.0 + 1);
/// A ring that a node claims to know and that nobody can take in.
const CLAIMED: Generation = Generation(GENERATION.0 + 2);
/// Two pauses fit in, a third does not.
const DEADLINE: Moment = Moment { nanos: 35_000_000 };
const OUTSIDER: NodeId = NodeId(9);

/// The key's nodes: three replicas and two fallbacks, others under the newer ring.
fn preference(generation: Generation) -> PreferenceList {
    let nodes = if generation == GENERATION { [1, 2, 3, 4, 5] } else { [4, 2, 1, 5, 3] };
    let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
    let store = Store::new(StoreName::new("explored").unwrap(), consistency).unwrap();
    let nodes = nodes.into_iter().map(NodeId).collect();
    PreferenceList::of(&store, &Partition::settled(PartitionId(0), 0, nodes))
}

#[derive(Clone, Debug)]
struct Scope {
    keys: usize,
    own: Option<NodeId>,
    entry: StampEntry,
    retries: u32,
    suspected: Vec<NodeId>,
    lagging: Vec<NodeId>,
    sloppy: bool,
    /// Whether nodes may hand over a newer ring, and claim one that cannot be taken in.
    news: bool,
    plant: Option<Plant>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Routed { generation: Generation, at_deadline: bool },
    Barred(KeyIndex),
    Replied(NodeId, Vec<KeyIndex>, Told),
    Elapsed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Written,
    Unreachable,
    /// Certainly nothing, another node may do better.
    Refuses,
    /// Certainly nothing, and so would others.
    Rejects,
    /// A refusal that leaves it in doubt.
    Doubts,
    Lost,
    /// Certainly nothing, and here is the newer ring.
    Outdated(Generation),
}

impl Told {
    fn reply(self) -> StampReply {
        let refused = |certain, retryable, ring| StampReply::Refused { certain, retryable, ring };
        match self {
            Told::Written => StampReply::Written,
            Told::Unreachable => StampReply::Unreachable,
            Told::Refuses => refused(true, true, None),
            Told::Rejects => refused(true, false, None),
            Told::Doubts => refused(false, true, Some(NEWER)),
            Told::Lost => StampReply::Lost,
            Told::Outdated(ring) => refused(true, true, Some(ring)),
        }
    }

    fn is_certain(self) -> bool {
        !matches!(self, Told::Written | Told::Doubts | Told::Lost)
    }
}

#[derive(Clone, Debug)]
struct World<'a> {
    scope: &'a Scope,
    stamp: Stamp,
    observer: Observer,
}

impl Scope {
    fn options(&self) -> StampOptions {
        let planted = |plant| self.plant == Some(plant);
        let Scope { own, mut entry, mut retries, .. } = *self;
        if planted(Plant::ExclusiveIsForgotten) && entry == StampEntry::Exclusive
            || planted(Plant::PassedGoesOn) && entry == StampEntry::Passed
        {
            entry = StampEntry::Client;
        }
        if planted(Plant::OwnIsNotFirst) && entry == StampEntry::Client {
            entry = StampEntry::Exclusive;
        }
        retries += u32::from(planted(Plant::OneRetryMore));
        retries -= u32::from(planted(Plant::OneRetryLess) && retries > 0);
        let late = Duration::from_secs(u64::from(planted(Plant::LaterDeadline)));
        StampOptions { own, entry, retries, deadline: DEADLINE.after(late) }
    }

    /// Whether the node may be asked, and how good it is: less is better.
    fn rank(&self, node: NodeId, ring: Generation) -> Option<(bool, bool, bool, bool, usize)> {
        let preference = preference(ring);
        let all = [preference.replicas(), preference.fallbacks()].concat();
        let position = all.iter().position(|&other| other == node)?;
        let replica = position < preference.replicas().len();
        let own = self.own == Some(node);
        if !replica && self.own.is_some() || self.entry == StampEntry::Passed && !own {
            return None;
        }
        let first = own && self.entry == StampEntry::Client;
        let suspected = !own && self.suspected.contains(&node);
        let lags = replica && self.entry == StampEntry::Client && self.lagging.contains(&node);
        Some((!first, suspected, !replica, lags, position))
    }

    /// The best node that was not asked yet.
    fn best(&self, asked: &[NodeId], ring: Generation) -> Option<NodeId> {
        let left = (1..=5).map(NodeId).filter(|node| !asked.contains(node));
        left.filter_map(|node| Some((self.rank(node, ring)?, node))).min().map(|(_, node)| node)
    }

    fn may_stand_in(&self) -> bool {
        self.sloppy && self.own.is_some() && self.entry == StampEntry::Client
    }
}

impl<'a> World<'a> {
    fn start(scope: &'a Scope) -> Result<Self, String> {
        let seen = Seen {
            place: Whereabouts::Rests,
            asked: Vec::new(),
            ring: None,
            last: None,
            outdated: false,
            stood_in: false,
        };
        let mut actions = StampActions::new();
        let stamp = Stamp::start(scope.keys, scope.options(), &mut actions);
        let observer = Observer {
            now: Moment::default(),
            ring: GENERATION,
            attempt: 0,
            pauses: None,
            keys: vec![seen; scope.keys],
        };
        let mut world = World { scope, stamp, observer };
        world.see(actions)?;
        Ok(world)
    }

    fn see(&mut self, actions: StampActions) -> Result<(), String> {
        let scope = self.scope;
        let actions = planted_actions(actions, scope);
        let mut nodes = BTreeSet::new();
        actions.iter().try_for_each(|action| {
            if let StampAction::Ask { node, .. } = action {
                ensure(nodes.insert(*node), "two messages to one node in one step")?;
            }
            self.observer.see(action, scope)
        })?;
        self.observer.judge_rest(&self.stamp, scope)
    }

    fn route(&mut self, generation: Generation, at_deadline: bool, actions: &mut StampActions) {
        let scope = self.scope;
        let observer = &mut self.observer;
        if let Some(pause) = observer.pauses.take() {
            observer.now = if at_deadline { DEADLINE } else { observer.now.after(pause) };
        }
        observer.ring = observer.ring.max(generation);
        let told = if scope.plant == Some(Plant::OldCandidates) { GENERATION } else { observer.ring };
        let preference = preference(told);
        let none = Vec::new();
        let heeded = |nodes, plant| if scope.plant == Some(plant) { &none } else { nodes };
        let candidates = Candidates {
            preference: &preference,
            suspected: heeded(&scope.suspected, Plant::SuspicionIsIgnored),
            lagging: heeded(&scope.lagging, Plant::LagIsIgnored),
        };
        let mut routes = Vec::new();
        for (position, seen) in observer.keys.iter_mut().enumerate() {
            let Whereabouts::Routing { fresh } = seen.place else {
                let late = observer.now >= DEADLINE;
                seen.outdated |= seen.place == Whereabouts::Rests && seen.ring < Some(observer.ring) && !late;
                continue;
            };
            routes.push((KeyIndex::at(position), candidates));
            if fresh || seen.ring < Some(observer.ring) {
                (seen.asked, seen.last, seen.ring) = (Vec::new(), None, Some(observer.ring));
                seen.stood_in = false;
            }
            (seen.place, seen.outdated) = (Whereabouts::Rests, false);
        }
        let sloppy = match scope.plant {
            Some(Plant::StrictStandsIn) => true,
            Some(Plant::SloppyRefuses) => false,
            _ => scope.sloppy,
        };
        let event = StampEvent::Routed { generation: observer.ring, sloppy, routes: &routes };
        self.stamp.step(event, observer.now, actions);
    }

    fn reply(&mut self, node: NodeId, keys: &[KeyIndex], told: Told, actions: &mut StampActions) {
        for key in keys {
            let (ring, late) = (self.observer.ring, self.observer.now >= DEADLINE);
            let seen = &mut self.observer.keys[key.position()];
            seen.stood_in = seen.place == Whereabouts::StandsIn;
            (seen.place, seen.last) = (Whereabouts::Rests, Some(told));
            let news = matches!(told, Told::Outdated(newer) if seen.ring < Some(newer));
            let behind = seen.ring < Some(ring) && told.is_certain() && told != Told::Rejects;
            seen.outdated = news || behind && !late;
        }
        let reply = planted_reply(told.reply(), self.scope);
        let replies: Vec<_> = keys.iter().map(|&key| (key, reply)).collect();
        self.stamp.step(StampEvent::Replied { node, replies: &replies }, self.observer.now, actions);
    }
}

impl crate::explore::World for World<'_> {
    type Happening = Happening;
    type Name = String;

    fn name(&self) -> String {
        let Observer { now, ring, attempt, pauses, keys } = &self.observer;
        format!("{:?} {now:?} {ring:?} {attempt} {pauses:?} {keys:?}", self.stamp)
    }

    fn happenings(&self) -> Vec<Happening> {
        let scope = self.scope;
        let keys = |is: &dyn Fn(Whereabouts) -> bool| -> Vec<KeyIndex> {
            let meant = (0..scope.keys).filter(|&key| is(self.observer.keys[key].place));
            meant.map(KeyIndex::at).collect()
        };
        let routing = keys(&|place| matches!(place, Whereabouts::Routing { .. }));
        if let Some(&first) = routing.first() {
            let rings = if scope.news { vec![self.observer.ring, NEWER] } else { vec![GENERATION] };
            let paused = self.observer.pauses.is_some();
            let mut happenings: Vec<_> = rings
                .into_iter()
                .flat_map(|generation| [false, true].map(|late| (generation, late)))
                .filter(|&(_, late)| paused || !late)
                .map(|(generation, at_deadline)| Happening::Routed { generation, at_deadline })
                .collect();
            happenings.extend(scope.own.map(|_| Happening::Barred(first)));
            return happenings;
        }
        let mut happenings = Vec::new();
        for node in (1..=5).map(NodeId).chain([OUTSIDER]) {
            let mut asked = keys(&|place| place == Whereabouts::Asked(node));
            if scope.own == Some(node) {
                asked.extend(keys(&|place| place == Whereabouts::StandsIn));
            }
            let mut messages: Vec<Vec<KeyIndex>> = asked.iter().map(|&key| vec![key]).collect();
            messages.extend((asked.len() > 1).then_some(asked));
            for keys in messages {
                happenings.extend(tellings(scope).map(|told| Happening::Replied(node, keys.clone(), told)));
            }
        }
        happenings.extend(self.stamp.deadline().map(|_| Happening::Elapsed));
        happenings
    }

    fn step(&self, happening: &Happening) -> Result<Option<Self>, String> {
        let (mut world, scope) = (self.clone(), self.scope);
        let mut actions = StampActions::new();
        match happening {
            Happening::Routed { generation, at_deadline } => {
                world.route(*generation, *at_deadline, &mut actions);
            }
            Happening::Barred(key) => {
                let seen = &mut world.observer.keys[key.position()];
                (seen.place, seen.last) = (Whereabouts::Rests, Some(Told::Rejects));
                let keys = if scope.plant == Some(Plant::BarsNobody) { vec![] } else { vec![*key] };
                let event = StampEvent::Barred { keys: &keys };
                world.stamp.step(event, world.observer.now, &mut actions);
            }
            Happening::Replied(node, keys, told) => world.reply(*node, keys, *told, &mut actions),
            Happening::Elapsed => {
                world.observer.now = DEADLINE;
                if scope.plant != Some(Plant::ElapsedIsMissed) {
                    world.stamp.step(StampEvent::Elapsed, DEADLINE, &mut actions);
                }
            }
        }
        world.see(actions)?;
        Ok(Some(world))
    }

    /// What nodes say that were not asked, and what comes a second time, must change nothing.
    fn judge(&self) -> Result<(), String> {
        let scope = self.scope;
        let mut stamp = self.stamp.clone();
        let mut actions = StampActions::new();
        for key in (0..scope.keys).map(KeyIndex::at) {
            let place = self.observer.keys[key.position()].place;
            for node in (1..=5).map(NodeId).chain([OUTSIDER]) {
                let stands_in = place == Whereabouts::StandsIn && scope.own == Some(node);
                if place == Whereabouts::Asked(node) || stands_in {
                    continue;
                }
                let said = match (scope.plant, place) {
                    (Some(Plant::ForeignReplyCounts), Whereabouts::Asked(asked)) => asked,
                    _ => node,
                };
                for reply in [StampReply::Written, StampReply::Lost, StampReply::Unreachable] {
                    let event = StampEvent::Replied { node: said, replies: &[(key, reply)] };
                    stamp.step(event, self.observer.now, &mut actions);
                }
            }
        }
        if self.observer.now < DEADLINE {
            stamp.step(StampEvent::Elapsed, self.observer.now, &mut actions);
        }
        let same = actions.is_empty() && format!("{stamp:?}") == format!("{:?}", self.stamp);
        ensure(same, "a foreign reply, or waking up early, counted")
    }
}

fn tellings(scope: &Scope) -> impl Iterator<Item = Told> {
    let news = [Told::Outdated(NEWER), Told::Outdated(CLAIMED)];
    let news = news.into_iter().filter(|_| scope.news);
    let plain = [Told::Written, Told::Unreachable, Told::Refuses, Told::Rejects, Told::Doubts, Told::Lost];
    plain.into_iter().chain(news)
}

/// Visits every world of a scope; the number of them.
fn explore(scope: &Scope) -> Result<usize, String> {
    crate::explore::explore(World::start(scope)?, WORLDS_MAX)
}

fn library(entry: StampEntry, retries: u32) -> Scope {
    Scope {
        keys: 1,
        own: None,
        entry,
        retries,
        suspected: Vec::new(),
        lagging: Vec::new(),
        sloppy: false,
        news: true,
        plant: None,
    }
}

fn node(own: u32, entry: StampEntry, sloppy: bool) -> Scope {
    Scope { own: Some(NodeId(own)), sloppy, ..library(entry, 0) }
}

fn scopes() -> Vec<Scope> {
    let (two, four, lagging) = (vec![NodeId(2)], vec![NodeId(1), NodeId(3), NodeId(4)], vec![NodeId(1)]);
    let mut scopes = Vec::new();
    for entry in [StampEntry::Client, StampEntry::Exclusive] {
        for suspected in [vec![], two.clone(), four.clone()] {
            let lagging = lagging.clone();
            scopes.push(Scope { suspected: suspected.clone(), lagging, ..library(entry, 2) });
            for (own, sloppy) in [(1, false), (1, true), (4, true), (9, false), (9, true)] {
                scopes.push(Scope { suspected: suspected.clone(), ..node(own, entry, sloppy) });
            }
        }
        // Two keys go their own ways and meet at nodes.
        scopes.push(Scope { keys: 2, news: false, suspected: two.clone(), ..library(entry, 1) });
        scopes.push(Scope { keys: 2, ..node(1, entry, true) });
        scopes.push(Scope { keys: 2, ..node(9, entry, false) });
    }
    for own in [1, 3, 4] {
        for sloppy in [false, true] {
            scopes.push(Scope { keys: 2, ..node(own, StampEntry::Passed, sloppy) });
        }
    }
    scopes
}

#[test]
fn every_interleaving_of_stamping_keeps_the_rules() {
    let explore = |scope: Scope| explore(&scope).unwrap_or_else(|violation| panic!("{violation}"));
    let states: usize = scopes().into_iter().map(explore).sum();
    assert!(states > 40_000, "the exploration has shrunk to {states} states");
}

#[test]
fn a_planted_bug_in_stamping_is_found() {
    let plants = [
        Plant::LostIsUnreachable,
        Plant::DoubtIsCertain,
        Plant::RefusalIsFinal,
        Plant::FinalIsTriedElsewhere,
        Plant::NewsIsIgnored,
        Plant::OldCandidates,
        Plant::SuspicionIsIgnored,
        Plant::LagIsIgnored,
        Plant::ExclusiveIsForgotten,
        Plant::OwnIsNotFirst,
        Plant::PassedGoesOn,
        Plant::StrictStandsIn,
        Plant::SloppyRefuses,
        Plant::OneRetryMore,
        Plant::OneRetryLess,
        Plant::NoPause,
        Plant::LaterDeadline,
        Plant::ElapsedIsMissed,
        Plant::ForeignReplyCounts,
        Plant::AnswersTwice,
        Plant::ForgetsKey,
        Plant::AsksTwo,
        Plant::BarsNobody,
        Plant::OneMessageEach,
    ];
    for plant in plants {
        let explored = || {
            let planted = |scope: &Scope| Scope { plant: Some(plant), ..scope.clone() };
            scopes().iter().try_for_each(|scope| explore(&planted(scope)).map(|_| ()))
        };
        let verdict = std::panic::catch_unwind(explored);
        assert!(!matches!(verdict, Ok(Ok(()))), "{plant:?} goes unnoticed");
    }
}

#[test]
fn without_keys_there_is_nothing_to_stamp() {
    let mut actions = StampActions::new();
    let stamp = Stamp::start(0, library(StampEntry::Client, 0).options(), &mut actions);
    assert!(actions.is_empty() && !stamp.is_unanswered());
}

#[test]
fn news_that_comes_at_the_deadline_begins_nothing() {
    let mut actions = StampActions::new();
    let (first, second) = (KeyIndex::at(0), KeyIndex::at(1));
    let mut stamp = Stamp::start(2, node(1, StampEntry::Client, false).options(), &mut actions);
    let mut tell = |event: StampEvent<'_>, now| {
        actions.clear();
        stamp.step(event, now, &mut actions);
        actions.clone()
    };
    let routed = |generation, keys: &[KeyIndex], now, tell: &mut dyn FnMut(StampEvent<'_>, Moment) -> _| {
        let preference = preference(generation);
        let candidates = Candidates { preference: &preference, suspected: &[], lagging: &[] };
        let routes: Vec<_> = keys.iter().map(|&key| (key, candidates)).collect();
        tell(StampEvent::Routed { generation, sloppy: false, routes: &routes }, now)
    };
    let _: StampActions = routed(GENERATION, &[first, second], Moment::default(), &mut tell);
    for node in (1..=3).map(NodeId) {
        let replies = &[(first, StampReply::Unreachable)];
        tell(StampEvent::Replied { node, replies }, Moment::default());
    }
    let refused = StampReply::Refused { certain: true, retryable: true, ring: Some(NEWER) };
    tell(StampEvent::Replied { node: NodeId(1), replies: &[(second, refused)] }, DEADLINE);
    let exhausted = |key| StampAction::Answer { key, outcome: StampOutcome::Exhausted };
    let ended = routed(NEWER, &[second], DEADLINE, &mut tell);
    assert_eq!(ended[..], [exhausted(second), exhausted(first)]);
}
