//! Sessions between two replicas over a network that loses, repeats and delays.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use model::versions::Stamp;
use model::{Actor, Moment, NodeId, PartitionId, Timestamp, Token, Value, VersionSet};
use proptest::prelude::*;
use protocol::antientropy::merkle::{Digest, Span, Tree, TreeDelta};
use protocol::antientropy::session::Listing;
use protocol::antientropy::{Goal, Options, RequestId, Session, SessionAction, SessionEvent, SessionOutcome};
use protocol::pace::{Pace, PaceLimits};

const PARTITIONS: u32 = 4;

fn bounds(partition: u32) -> RangeInclusive<Token> {
    let start = u64::from(partition) << 62;
    Token(start)..=Token(start | (u64::MAX >> 2))
}

/// One replica: records and their trees.
struct Replica {
    records: BTreeMap<(Token, Bytes), VersionSet>,
    trees: Vec<Tree>,
}

impl Replica {
    fn new() -> Replica {
        let trees = (0..PARTITIONS).map(|partition| Tree::empty(&bounds(partition))).collect();
        Replica { records: BTreeMap::new(), trees }
    }

    fn merge(&mut self, key: &Bytes, set: &VersionSet) {
        let token = Token::of(key);
        let record = self.records.entry((token, key.clone())).or_default();
        let removed = (!record.is_empty()).then(|| Digest::of(key, record));
        record.merge(set);
        let added = Some(Digest::of(key, record));
        self.trees[(token.0 >> 62) as usize].apply(token, TreeDelta::of(removed, added));
    }

    fn write(&mut self, key: &Bytes, node: u32) {
        let mut set = self.records.get(&(Token::of(key), key.clone())).cloned().unwrap_or_default();
        let actor = Actor { node: NodeId(node), incarnation: 1, birth: 1 };
        let value = Value::Present(Bytes::from_static(b"v"));
        set.put(Stamp { actor, timestamp: Timestamp(1), expires: None, value }, None);
        self.merge(key, &set);
    }

    fn keys(&self, span: Span) -> Vec<(Bytes, Digest)> {
        let tokens = span.tokens();
        let within = self.records.iter().filter(|((token, _), _)| tokens.contains(token));
        within.map(|((_, key), set)| (key.clone(), Digest::of(key, set))).collect()
    }
}

/// What the network does to the next answer.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    /// It is carried out, and its answer comes after the deadline.
    Late,
    Refused,
}

struct World {
    mine: Replica,
    theirs: Replica,
    settled: Vec<PartitionId>,
    outcome: Option<SessionOutcome>,
    log: Vec<&'static str>,
}

impl World {
    fn new(mine: Replica, theirs: Replica) -> World {
        World { mine, theirs, settled: Vec::new(), outcome: None, log: Vec::new() }
    }

    /// Runs a session; `fates` decide about its first answers, all others arrive.
    fn run(&mut self, goal: Goal, fates: &[Fate]) -> SessionOutcome {
        let pace = Pace::new(PaceLimits::for_comparing(1_000_000));
        let options = Options { goal, patience: Duration::from_secs(10), pace };
        let spans = (0..PARTITIONS).map(|id| (PartitionId(id), Span::around(&bounds(id))));
        let mut session = Session::new(options, spans);
        let (mut now, mut actions, mut late) = (Moment::default(), Vec::new(), Vec::new());
        let mut fates = fates.iter().copied();
        session.start(now, &mut actions);
        for _ in 0..100_000 {
            let Some(action) = (!actions.is_empty()).then(|| actions.remove(0)) else {
                match session.deadline() {
                    None => break,
                    Some(deadline) => now = now.max(deadline),
                }
                session.elapsed(now, &mut actions);
                for (request, event) in std::mem::take(&mut late) {
                    session.step(request, event, now, &mut actions);
                }
                continue;
            };
            let Some((request, event)) = self.carry_out(action) else { continue };
            match fates.next().unwrap_or(Fate::Arrives) {
                Fate::Arrives => session.step(request, event, now, &mut actions),
                Fate::Lost => {}
                Fate::Twice => {
                    session.step(request, event.clone(), now, &mut actions);
                    session.step(request, event, now, &mut actions);
                }
                Fate::Late => late.push((request, event)),
                Fate::Refused => session.step(request, SessionEvent::Failed, now, &mut actions),
            }
        }
        self.outcome.take().expect("a session ends")
    }

    fn carry_out(&mut self, action: SessionAction) -> Option<(RequestId, SessionEvent)> {
        Some(match action {
            SessionAction::CompareSums { request, partitions } => {
                self.log.push("sums");
                (request, self.sums(&partitions))
            }
            SessionAction::Descend { request, spans } => {
                self.log.push("descend");
                let parts = spans.iter().map(|&(id, span, bits)| {
                    let sums = |replica: &Replica| replica.trees[id.0 as usize].sums(span, bits);
                    Some((sums(&self.mine)?, sums(&self.theirs)?))
                });
                (request, SessionEvent::Descended { parts: parts.collect() })
            }
            SessionAction::List { request, spans } => {
                self.log.push("list");
                // Only a few fit an answer.
                let spans = &spans[..spans.len().min(5)];
                let list = |span| Listing { mine: self.mine.keys(span), theirs: self.theirs.keys(span) };
                let keys = spans.iter().map(|&(_, span)| Some(list(span))).collect();
                (request, SessionEvent::Listed { keys, bytes: 1000 })
            }
            SessionAction::Pull { request, keys } => {
                self.log.push("pull");
                let done = keys.len().min(7);
                let mut push = Vec::new();
                for key in &keys[..done] {
                    let place = (Token::of(key), key.clone());
                    let set = self.theirs.records[&place].clone();
                    self.mine.merge(key, &set);
                    if !set.includes(&self.mine.records[&place]) {
                        push.push(key.clone());
                    }
                }
                (request, SessionEvent::Pulled { done, push, failed: 0, bytes: 1000 })
            }
            SessionAction::Push { request, keys } => {
                self.log.push("push");
                let done = keys.len().min(3);
                for key in &keys[..done] {
                    let set = self.mine.records[&(Token::of(key), key.clone())].clone();
                    self.theirs.merge(key, &set);
                }
                (request, SessionEvent::Pushed { done, failed: 0, bytes: 1000 })
            }
            SessionAction::Page { request, partition, from } => {
                self.log.push("page");
                (request, self.page(partition, from))
            }
            SessionAction::Settle { partition } => {
                self.settled.push(partition);
                return None;
            }
            SessionAction::End(outcome) => {
                assert!(self.outcome.replace(outcome).is_none(), "a session ends once");
                return None;
            }
        })
    }

    fn sums(&self, partitions: &[PartitionId]) -> SessionEvent {
        let (mut differing, mut unready) = (Vec::new(), Vec::new());
        for &id in partitions {
            let (mine, theirs) = (&self.mine.trees[id.0 as usize], &self.theirs.trees[id.0 as usize]);
            match (mine.sum().zip(mine.bits()), theirs.sum().zip(theirs.bits())) {
                (Some((mine, _)), Some((theirs, _))) if mine == theirs => {}
                (Some((_, mine)), Some((_, theirs))) => differing.push((id, mine.min(theirs))),
                _ => unready.push(id),
            }
        }
        SessionEvent::Summed { differing, unready }
    }

    fn page(&mut self, partition: PartitionId, from: Token) -> SessionEvent {
        let last = *bounds(partition.0).end();
        let page: Vec<(Token, Bytes)> = {
            let range = self.theirs.records.range((from, Bytes::new())..);
            range.map(|(place, _)| place.clone()).take_while(|(token, _)| *token <= last).take(6).collect()
        };
        let more = page.len() == 6;
        let next = page.get(5).map(|(token, _)| *token).filter(|_| more);
        for (token, key) in page.iter().take(5) {
            let set = self.theirs.records[&(*token, key.clone())].clone();
            self.mine.merge(key, &set);
        }
        SessionEvent::Paged { next, merged: page.len().min(5), failed: 0, bytes: 500 }
    }
}

fn key(number: u16) -> Bytes {
    format!("key {number}").into()
}

/// Two replicas after writes that reached one, the other or both.
fn replicas(writes: &[(u16, u8)]) -> (Replica, Replica) {
    let (mut mine, mut theirs) = (Replica::new(), Replica::new());
    for &(number, where_to) in writes {
        match where_to {
            0 => mine.write(&key(number), 1),
            1 => theirs.write(&key(number), 2),
            _ => {
                mine.write(&key(number), 1);
                let set = mine.records[&(Token::of(&key(number)), key(number))].clone();
                theirs.merge(&key(number), &set);
            }
        }
    }
    (mine, theirs)
}

fn writes() -> impl Strategy<Value = Vec<(u16, u8)>> {
    prop::collection::vec((0u16..400, 0u8..6), 0..500)
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        6 => Just(Fate::Arrives),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        1 => Just(Fate::Late),
        1 => Just(Fate::Refused),
    ];
    prop::collection::vec(fate, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn whatever_differs_is_equal_after_a_complete_session(writes in writes(), fates in fates()) {
        let (mine, theirs) = replicas(&writes);
        let before = (mine.records.clone(), theirs.records.clone());
        let mut world = World::new(mine, theirs);
        let outcome = world.run(Goal::Equal, &fates);
        if outcome.complete {
            prop_assert_eq!(&world.mine.records, &world.theirs.records);
        }
        // Broken off or not: a set only grows.
        for (now, before) in [(&world.mine, &before.0), (&world.theirs, &before.1)] {
            for (place, set) in before {
                prop_assert!(now.records[place].includes(set));
            }
        }
        // And the next one, undisturbed, ends it.
        prop_assert!(world.run(Goal::Equal, &[]).complete);
        prop_assert_eq!(&world.mine.records, &world.theirs.records);
        world.log.clear();
        let again = world.run(Goal::Equal, &[]);
        prop_assert_eq!((again.requests, again.keys, &world.log[..]), (1, 0, &["sums"][..]));
    }

    #[test]
    fn a_refilled_replica_has_everything_of_each_settled_partition(writes in writes(), fates in fates()) {
        let (_, theirs) = replicas(&writes);
        let mut world = World::new(Replica::new(), theirs);
        let outcome = world.run(Goal::Refill, &fates);
        prop_assert_eq!(outcome.complete, world.settled.len() == PARTITIONS as usize);
        for (place, set) in &world.theirs.records {
            if world.settled.contains(&PartitionId((place.0.0 >> 62) as u32)) {
                prop_assert_eq!(world.mine.records.get(place), Some(set));
            }
        }
    }
}

#[test]
fn equal_replicas_exchange_one_message() {
    let writes: Vec<(u16, u8)> = (0..400).map(|number| (number, 2)).collect();
    let (mine, theirs) = replicas(&writes);
    let mut world = World::new(mine, theirs);
    let outcome = world.run(Goal::Equal, &[]);
    assert!(outcome.complete);
    assert_eq!(world.log, ["sums"]);
    assert_eq!(world.settled.len(), 4);
}

#[test]
fn a_doubtful_tree_is_left_for_later_and_the_session_says_so() {
    let (mine, mut theirs) = replicas(&[(1, 0), (2, 1), (3, 2)]);
    for partition in 0..PARTITIONS {
        theirs.trees[partition as usize] = Tree::doubtful(&bounds(partition));
    }
    let mut world = World::new(mine, theirs);
    let outcome = world.run(Goal::Equal, &[]);
    assert_eq!((outcome.complete, outcome.unready), (false, 4));
}

#[test]
fn a_session_without_any_answer_ends() {
    let mut world = World::new(Replica::new(), Replica::new());
    let outcome = world.run(Goal::Equal, &[Fate::Lost; 100]);
    assert!(!outcome.complete);
    assert!(outcome.requests <= 5, "{outcome:?}");
}
