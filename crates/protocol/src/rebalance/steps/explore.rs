//! Every order in which a move, its writes and its mishaps can happen: one partition, one write, up to five nodes.
//!
//! The documents are real ones, and what follows them is decided by [`next`], [`begin`] and [`back`] alone. Around them
//! is a model of everybody else: nodes adopt documents late or never, coordinators form requests under any document
//! that was ever published, a write is applied node by node and may be started again under a newer document, disks are
//! lost, nodes die, holders of hints learn nothing, moves are broken off and begun again.
//!
//! Judged is what clients see. Once the write is acknowledged, no read quorum may be possible without it, under any
//! document and however slowly the read collects its answers; and somebody holds the write, always. Planted bugs prove
//! that this judge can see.
//!
//! The write may as well be a delete: a read that misses it shows what was deleted. That deletes stay deleted when
//! their tombstones are collected is explored in [`collection`](crate::collection): what one node brings in from
//! another carries its epoch, and rounds do not depend on the ring.

use std::cell::{Cell, RefCell};

use model::cluster::Accepted;
use model::{Consistency, Node, StoreName, Zone};

use super::*;
use crate::explore::WORLDS_MAX;
use crate::report::{Entered, Facts, NodeFacts};
use chain::{Chain, Chains, Mask, bit, is_in};
use plants::{Bug, is_found, planted};

mod chain;
mod plants;
mod world;

/// Most nodes. The last may hold hints.
const NODES: usize = 5;
/// This many states are judged for one from which everybody goes on to the end.
const SETTLED_EACH: usize = 97;

/// What is explored.
#[derive(Clone, Debug)]
struct Scope {
    consistency: Consistency,
    /// The numbers that the store changes to; then no list changes.
    numbers: Option<Consistency>,
    /// Positions of the nodes that hold the partition, and of those that shall.
    from: &'static [usize],
    to: &'static [usize],
    /// Nodes that may trade places, which halves the states.
    alike: Option<(usize, usize)>,
    /// Moves that may be begun, and broken off.
    begins: u8,
    backs: u8,
    /// Disks that may be lost, and nodes that may die, in all: fewer than W.
    mishaps: u8,
    /// Whether stand-ins count. Then the write may be overlooked, and must not be lost.
    sloppy: bool,
}

/// The state of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// The document that it has adopted, by position.
    adopted: u8,
    /// Whether it holds the write.
    has: bool,
    /// Whether it refuses gets, because it lost its records or has never had them.
    incomplete: bool,
    /// How often it lost its disk.
    incarnation: u8,
    /// Whom it has merged with since its records are incomplete, or since it has adopted the step.
    merged: Mask,
    /// It never does anything again.
    dead: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Write {
    Unborn,
    /// Formed under the document at this position; acknowledged by these nodes, or by holders of hints for them.
    Flying {
        under: u8,
        acknowledged: Mask,
        hinted: Mask,
    },
    Acknowledged,
}

/// Everything that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// The documents that were published, as a number: see [`Chains`].
    chain: u32,
    nodes: [Place; NODES],
    write: Write,
    /// Nodes that a hint is kept for, all by the last node.
    hints: Mask,
    /// By document: nodes that have been able, since the write was acknowledged, to answer a get without it.
    blind: [Mask; 8],
    begins: u8,
    backs: u8,
    mishaps: u8,
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    Begin,
    Next,
    Back,
    Adopt { node: usize, document: u8 },
    Form { under: u8 },
    FormAgain { under: u8 },
    Apply { node: usize },
    Hint { target: usize },
    Deliver { target: usize },
    Readdress { target: usize },
    Merge { node: usize, source: usize },
    Give { node: usize },
    Drop { node: usize },
    LoseDisk { node: usize },
    Die { node: usize },
}

/// A state, and what all states of one scope share.
#[derive(Clone, Debug)]
struct World<'a> {
    state: State,
    scope: &'a Scope,
    chains: &'a RefCell<Chains>,
    /// States that were judged.
    judged: &'a Cell<usize>,
}

impl crate::explore::World for World<'_> {
    type Happening = Happening;
    type Name = State;

    fn name(&self) -> State {
        self.state
    }

    fn happenings(&self) -> Vec<Happening> {
        self.state.happenings(self.scope, &mut self.chains.borrow_mut())
    }

    fn step(&self, happening: &Happening) -> Result<Option<Self>, String> {
        let next = self.state.step(*happening, self.scope, &mut self.chains.borrow_mut());
        Ok(Some(World { state: next.canonical(self.scope), ..self.clone() }))
    }

    fn judge(&self) -> Result<(), String> {
        self.state.judge(&self.chains.borrow())?;
        self.judged.set(self.judged.get() + 1);
        if self.judged.get().is_multiple_of(SETTLED_EACH) && !planted_any() {
            self.state.settles(self.scope, &mut self.chains.borrow_mut())?;
        }
        Ok(())
    }
}

/// Visits every state of a scope; the number of them.
fn explore(scope: &Scope) -> Result<usize, String> {
    let (chains, judged) = (RefCell::new(Chains::new(scope)), Cell::new(0));
    let first = World { state: State::first(scope), scope, chains: &chains, judged: &judged };
    crate::explore::explore(first, WORLDS_MAX)
}

fn planted_any() -> bool {
    Bug::ALL.into_iter().chain(Bug::OF_NUMBERS).any(planted)
}

fn scope(consistency: (u8, u8, u8), from: &'static [usize], to: &'static [usize]) -> Scope {
    let consistency = self::consistency(consistency);
    let numbers = None;
    Scope { consistency, numbers, from, to, alike: None, begins: 1, backs: 1, mishaps: 0, sloppy: false }
}

fn consistency((replicas, reads_required, writes_required): (u8, u8, u8)) -> Consistency {
    Consistency { replicas, reads_required, writes_required }
}

/// A store with these numbers gets others.
fn change(from: (u8, u8, u8), to: (u8, u8, u8)) -> Scope {
    let listed: &[usize] = if from.0.max(to.0) <= 2 { &[0, 1] } else { &[0, 1, 2] };
    Scope { numbers: Some(consistency(to)), ..scope(from, listed, listed) }
}

/// A store gets replicas more, or has fewer in the end, or other quorums of the same.
fn number_scopes() -> Vec<Scope> {
    vec![
        Scope { begins: 2, backs: 2, ..change((1, 1, 1), (2, 1, 2)) },
        Scope { begins: 2, backs: 2, ..change((2, 2, 1), (1, 1, 1)) },
        change((2, 1, 2), (2, 2, 1)),
        change((2, 2, 1), (2, 1, 2)),
        Scope { backs: 0, ..change((2, 1, 2), (1, 1, 1)) },
        Scope { mishaps: 1, backs: 0, ..change((2, 1, 2), (3, 2, 2)) },
        Scope { backs: 0, ..change((2, 2, 1), (3, 2, 2)) },
        Scope { backs: 0, alike: Some((0, 1)), ..change((3, 2, 2), (2, 1, 2)) },
        Scope { backs: 0, alike: Some((0, 1)), ..change((3, 2, 2), (2, 2, 1)) },
        Scope { backs: 0, ..change((3, 2, 2), (1, 1, 1)) },
        Scope { backs: 0, alike: Some((0, 1)), ..change((3, 3, 1), (2, 1, 2)) },
        Scope { sloppy: true, backs: 0, ..change((2, 2, 1), (1, 1, 1)) },
    ]
}

/// What is played now and then.
fn large_number_scopes() -> Vec<Scope> {
    vec![
        Scope { alike: Some((0, 1)), ..change((3, 2, 2), (2, 1, 2)) },
        Scope { alike: Some((0, 1)), ..change((2, 1, 2), (3, 2, 2)) },
        Scope { alike: Some((0, 1)), ..change((2, 2, 1), (3, 1, 3)) },
        Scope { mishaps: 1, backs: 0, alike: Some((0, 1)), ..change((3, 2, 2), (2, 1, 2)) },
        Scope { begins: 2, backs: 2, ..change((2, 1, 2), (2, 2, 1)) },
        change((1, 1, 1), (3, 2, 2)),
        Scope { begins: 2, alike: Some((0, 1)), ..change((3, 2, 2), (2, 2, 1)) },
        Scope { mishaps: 1, alike: Some((0, 1)), ..change((2, 1, 2), (3, 2, 2)) },
        Scope { mishaps: 1, ..change((3, 2, 2), (3, 1, 3)) },
    ]
}

/// One of the replicas gives way to another node, for stores of one, two and three replicas: what is played each time.
fn scopes() -> Vec<Scope> {
    let one = scope((1, 1, 1), &[0], &[1]);
    let two = |reads, writes| scope((2, reads, writes), &[0, 1], &[0, 2]);
    let three =
        |reads, writes| Scope { alike: Some((0, 1)), ..scope((3, reads, writes), &[0, 1, 2], &[0, 1, 3]) };
    vec![
        Scope { begins: 2, backs: 2, ..one.clone() },
        Scope { sloppy: true, ..one },
        two(1, 2),
        two(2, 1),
        Scope { mishaps: 1, backs: 0, ..two(1, 2) },
        Scope { backs: 0, ..three(2, 2) },
        Scope { backs: 0, ..three(1, 3) },
        Scope { backs: 0, ..three(3, 1) },
        // All replicas give way.
        Scope { backs: 0, ..scope((2, 2, 1), &[0, 1], &[2, 3]) },
    ]
}

/// What is played now and then: moves that are begun again, broken off, or met by mishaps, and a store that gets another
/// replica.
fn large_scopes() -> Vec<Scope> {
    let two = |reads, writes| scope((2, reads, writes), &[0, 1], &[0, 2]);
    let three = Scope { alike: Some((0, 1)), ..scope((3, 2, 2), &[0, 1, 2], &[0, 1, 3]) };
    vec![
        Scope { begins: 2, ..two(1, 2) },
        Scope { begins: 2, ..two(2, 1) },
        Scope { mishaps: 1, ..two(1, 2) },
        Scope { sloppy: true, backs: 0, ..two(2, 1) },
        Scope { mishaps: 1, backs: 0, ..three.clone() },
        three,
        scope((2, 1, 2), &[0, 1], &[2, 3]),
        Scope { mishaps: 1, ..scope((3, 2, 2), &[0, 1], &[0, 1, 2]) },
    ]
}

#[test]
fn no_order_of_a_change_of_numbers_its_writes_and_its_mishaps_breaks_a_promise() {
    let states = explore_each(number_scopes());

    assert!(states > 100_000, "the exploration has shrunk to {states} states");
}

#[test]
#[ignore = "takes minutes: cargo test --profile proof -p protocol rebalance -- --ignored"]
fn no_order_of_a_longer_change_of_numbers_breaks_a_promise() {
    let states = explore_each(large_number_scopes());

    assert!(states > 500_000, "the exploration has shrunk to {states} states");
}

#[test]
fn a_planted_bug_in_a_change_of_numbers_is_found() {
    let explore_all = || {
        let scopes = [number_scopes(), large_number_scopes()].concat();
        scopes.iter().try_for_each(|scope| explore(scope).map(|_| ()))
    };
    let bugs = Bug::OF_NUMBERS.into_iter().chain(Bug::ALL);
    let unnoticed: Vec<Bug> = bugs.filter(|&bug| !is_found(bug, explore_all)).collect();
    assert!(unnoticed.is_empty(), "{unnoticed:?} go unnoticed");
}

fn explore_each(scopes: Vec<Scope>) -> usize {
    let explore = |scope: &Scope| explore(scope).unwrap_or_else(|violation| panic!("{violation}"));
    scopes.iter().map(explore).sum()
}

#[test]
fn no_order_of_a_move_its_writes_and_its_mishaps_breaks_a_promise() {
    let states = explore_each(scopes());
    assert!(states > 200_000, "the exploration has shrunk to {states} states");
}

#[test]
#[ignore = "takes a minute: cargo test --profile proof -p protocol rebalance -- --ignored"]
fn no_order_of_a_longer_story_breaks_a_promise() {
    let states = explore_each(large_scopes());
    assert!(states > 2_000_000, "the exploration has shrunk to {states} states");
}

#[test]
fn a_planted_bug_in_a_move_is_found() {
    let explore_all = || {
        let scopes = [scopes(), large_scopes()].concat();
        scopes.iter().try_for_each(|scope| explore(scope).map(|_| ()))
    };
    let unnoticed: Vec<Bug> = Bug::ALL.into_iter().filter(|&bug| !is_found(bug, explore_all)).collect();
    assert!(unnoticed.is_empty(), "{unnoticed:?} go unnoticed");
}
