//! Every interleaving of a small cluster: three nodes, one key that was written, deleted, and is written again.
//!
//! Messages are read at one moment and delivered at any later one, any number of times or never; processes end
//! between any two steps and come back with what was synced; a disk is replaced by its copy of the beginning; nodes
//! join and are removed; initiators die. An observer that knows only what the nodes hold judges each world.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use model::versions::Stamp;
use model::{Actor, Epoch, Generation, Moment, NodeId, Resolver, StoreName, Timestamp, Value, VersionSet};

use super::planted::{
    Bug, PlantedParticipant as Participant, PlantedRound as Round, judge_planted_start, planted,
};
use super::{
    Confirm, FenceStep, Heard, Remembered, RoundAction, RoundEvent, RoundId, RoundRefusal, RoundStage, Start,
};

mod initiators;
mod scenarios;

const NODES: usize = 3;
/// The tombstone's timestamp: its coordinator's clock is far ahead of all others.
const DELETED_AT: Timestamp = Timestamp(10 << 4);
const NOW: Moment = Moment { nanos: 1 };

fn place() -> (StoreName, Bytes) {
    (StoreName::new("explored").unwrap(), Bytes::from_static(b"k"))
}

fn actor(node: u32, birth: u64) -> Actor {
    Actor { node: NodeId(node), incarnation: 1, birth }
}

fn put(set: &mut VersionSet, actor: Actor, timestamp: Timestamp, value: Value) {
    set.put(Stamp { actor, timestamp, expires: None, value }, None);
}

/// The first write.
fn old() -> VersionSet {
    let mut set = VersionSet::default();
    put(&mut set, actor(1, 1), Timestamp(1), Value::Present(Bytes::from_static(b"old")));
    set
}

/// The delete that covers it.
fn deleted() -> VersionSet {
    let mut set = old();
    put(&mut set, actor(1, 1), DELETED_AT, Value::Tombstone);
    set
}

fn is_new(set: &VersionSet) -> bool {
    set.versions().iter().any(|version| version.value == Value::Present(Bytes::from_static(b"new")))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Disk {
    remembered: Remembered,
    record: VersionSet,
    hint: VersionSet,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    up: bool,
    participant: Participant,
    generation: Generation,
    record: VersionSet,
    hint: VersionSet,
    disk: Disk,
    /// What cannot be read at the moment: the record (false) or the hint (true).
    damaged: Option<bool>,
}

impl Node {
    fn store(&mut self, hint: bool, content: &VersionSet) {
        match self.damaged {
            // Whoever cannot read a hint refuses to add to it; a record's next content takes the damaged one's place.
            Some(true) if hint => return,
            Some(false) if !hint => (self.record, self.damaged) = (VersionSet::default(), None),
            _ => {}
        }
        let (store, key) = place();
        let mut content = content.clone();
        for tombstones in self.participant.guarded(&store, &key) {
            content.merge(tombstones);
        }
        let (held, synced) = match hint {
            true => (&mut self.hint, &mut self.disk.hint),
            false => (&mut self.record, &mut self.disk.record),
        };
        held.merge(&content);
        held.resolve(Resolver::LastWriteWins);
        // The new write asks for durability; whatever came before it may be lost with the process.
        if is_new(held) {
            *synced = held.clone();
        }
    }

    fn clean(&mut self, tombstones: &VersionSet) {
        if let Some(hint) = self.damaged.take_if(|_| !planted(Bug::PassesOverDamage)) {
            // It is forgotten for good, and the tombstones take its place.
            *(if hint { &mut self.hint } else { &mut self.record }) = tombstones.clone();
        }
        if let Some(hint) = self.damaged {
            let kept = if hint { self.hint.clone() } else { self.record.clone() };
            self.clean_readable(tombstones);
            let (held, synced) = match hint {
                true => (&mut self.hint, &mut self.disk.hint),
                false => (&mut self.record, &mut self.disk.record),
            };
            (*held, *synced) = (kept.clone(), kept);
            return;
        }
        self.clean_readable(tombstones);
    }

    fn clean_readable(&mut self, tombstones: &VersionSet) {
        if !self.record.is_clean_of(tombstones) {
            self.record.merge(tombstones);
        }
        if planted(Bug::DropsHintsEarly) && tombstones.includes(&self.hint) {
            self.hint = VersionSet::default();
        } else if !self.hint.is_clean_of(tombstones) && !planted(Bug::LeavesHints) {
            self.hint.merge(tombstones);
        }
        if !planted(Bug::SkipsSync) {
            (self.disk.record, self.disk.hint) = (self.record.clone(), self.hint.clone());
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Message {
    from: usize,
    to: usize,
    hint: bool,
    tag: Epoch,
    generation: Generation,
    content: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Initiator {
    round: Round,
    id: RoundId,
    epoch: Epoch,
    tombstones: Option<VersionSet>,
    /// Questions under way; the service's are asked at once.
    asked: BTreeSet<RoundAction>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: [Node; NODES],
    messages: BTreeSet<Message>,
    initiators: Vec<Initiator>,
    opened: Epoch,
    completed: Epoch,
    generation: Generation,
    collected: bool,
    new_write: Option<bool>,
    sends: u8,
    crashes: u8,
    restores: u8,
    rounds: u8,
    lost: u8,
    unsure: u8,
    damages: u8,
}

/// What may happen in a scenario.
#[derive(Clone, Copy, Debug, Default)]
struct Scenario {
    /// Contents that are read and sent beside those under way at the beginning.
    sends: u8,
    /// Processes that end.
    crashes: u8,
    /// Whether a started process may miss the coordination service.
    service_away: bool,
    /// Disks that are replaced by a copy of the beginning.
    restores: u8,
    /// Rounds for another key that may run beside.
    rounds_beside: u8,
    /// Answers to an initiator that are lost.
    lost: u8,
    /// Nodes that cannot make the key clean when they are asked.
    unsure: u8,
    /// Records or hints that cannot be read any more, as far as their node can tell.
    damages: u8,
    /// Whether the key is written again.
    writes: bool,
    /// The delete has reached both replicas, and a hint that was written before it is still held.
    old_hint: bool,
    /// A node that joins with the second document.
    joins: Option<usize>,
    /// A node that is removed by the second document.
    leaves: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Deliver(usize),
    Send { from: usize, to: usize, hint: bool },
    Write(usize),
    Begin { beside: bool },
    Answer { initiator: usize, action: RoundAction, lost: bool },
    LeaveOut { initiator: usize, action: RoundAction },
    Damage { node: usize, hint: bool },
    Crash { node: usize, restored: bool, service: bool },
    Compare(usize),
    Publish,
    Learn(usize),
}

/// Sets by number, so that messages stay small.
#[derive(Debug, Default)]
struct Sets(Vec<VersionSet>);

impl Sets {
    fn number(&mut self, set: &VersionSet) -> u8 {
        let known = self.0.iter().position(|known| known == set);
        known.unwrap_or_else(|| {
            self.0.push(set.clone());
            self.0.len() - 1
        }) as u8
    }
}

/// A world, and what all worlds of one scenario share.
#[derive(Clone, Debug)]
struct Explored<'a> {
    world: World,
    scenario: Scenario,
    sets: &'a RefCell<Sets>,
}

impl crate::explore::World for Explored<'_> {
    type Happening = Move;
    type Name = u64;

    fn name(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.world.hash(&mut hasher);
        hasher.finish()
    }

    fn happenings(&self) -> Vec<Move> {
        self.world.moves(self.scenario)
    }

    fn step(&self, step: &Move) -> Result<Option<Self>, String> {
        let mut next = self.clone();
        next.world.apply(*step, self.scenario, &mut self.sets.borrow_mut())?;
        Ok(Some(next))
    }

    fn judge(&self) -> Result<(), String> {
        self.world.judge(self.scenario)
    }
}

impl World {
    fn new(scenario: Scenario, sets: &mut Sets) -> Self {
        // The delete has two copies: at its coordinator, and as a hint for the second replica, which is away.
        let holds = [
            (deleted(), VersionSet::default()),
            (old(), VersionSet::default()),
            (VersionSet::default(), deleted()),
        ];
        let nodes = holds.map(|(record, hint)| {
            let disk = Disk { remembered: Remembered::default(), record: record.clone(), hint: hint.clone() };
            let mut participant = Participant::new(disk.remembered);
            participant.compare(Epoch(0));
            Node { up: true, participant, generation: Generation(1), record, hint, disk, damaged: None }
        });
        let content = sets.number(&old());
        let old = |to, hint| Message { from: 0, to, hint, tag: Epoch(0), generation: Generation(1), content };
        let mut world = World {
            nodes,
            messages: [old(0, false), old(1, false), old(2, true)].into(),
            initiators: Vec::new(),
            opened: Epoch(0),
            completed: Epoch(0),
            generation: Generation(1),
            collected: false,
            new_write: None,
            sends: scenario.sends,
            crashes: scenario.crashes,
            restores: scenario.restores,
            rounds: scenario.rounds_beside,
            lost: scenario.lost,
            unsure: scenario.unsure,
            damages: scenario.damages,
        };
        if scenario.old_hint {
            let [_, second, third] = &mut world.nodes;
            (second.record, second.disk.record) = (deleted(), deleted());
            (third.hint, third.disk.hint) = (super::explore::old(), super::explore::old());
        }
        if let Some(node) = scenario.joins {
            world.nodes[node].up = false;
            world.nodes[node].hint = VersionSet::default();
            world.nodes[node].disk.hint = VersionSet::default();
            world.messages.retain(|message| message.to != node);
        }
        if scenario.leaves.is_some() {
            world.messages.clear();
        }
        world
    }

    fn is_member(&self, scenario: Scenario, node: usize, generation: Generation) -> bool {
        match generation {
            Generation(1) => scenario.joins != Some(node),
            _ => scenario.leaves != Some(node),
        }
    }

    fn members(&self, scenario: Scenario, generation: Generation) -> Vec<NodeId> {
        (0..NODES).filter(|&node| self.is_member(scenario, node, generation)).map(id).collect()
    }

    fn moves(&self, scenario: Scenario) -> Vec<Move> {
        let mut moves: Vec<Move> = (0..self.messages.len()).map(Move::Deliver).collect();
        self.sends(scenario, &mut moves);
        for node in 0..NODES {
            if self.crashes > 0 && self.nodes[node].up {
                moves.push(Move::Crash { node, restored: false, service: true });
                if scenario.service_away {
                    moves.push(Move::Crash { node, restored: false, service: false });
                }
            }
            if self.damages > 0 && self.nodes[node].damaged.is_none() {
                moves.push(Move::Damage { node, hint: false });
                moves.push(Move::Damage { node, hint: true });
            }
            if self.restores > 0 && node == 1 {
                moves.push(Move::Crash { node, restored: true, service: true });
                if scenario.service_away {
                    moves.push(Move::Crash { node, restored: true, service: false });
                }
            }
            if !self.nodes[node].participant.is_compared() {
                moves.push(Move::Compare(node));
            }
            if self.nodes[node].generation < self.generation {
                moves.push(Move::Learn(node));
            }
        }
        if scenario.writes && self.new_write.is_none() {
            let whole = |&node: &usize| self.nodes[node].damaged != Some(false);
            moves.extend([0, 1].into_iter().filter(whole).map(Move::Write));
        }
        let own = self.initiators.iter().filter(|initiator| initiator.tombstones.is_some()).count();
        if own == 0 && self.nodes[0].record.is_deleted() && self.nodes[0].damaged != Some(false) {
            moves.push(Move::Begin { beside: false });
        }
        if self.rounds > 0 {
            moves.push(Move::Begin { beside: true });
        }
        if scenario.rounds_beside == 0
            && self.generation == Generation(1)
            && (scenario.joins.is_some() || scenario.leaves.is_some())
        {
            moves.push(Move::Publish);
        }
        for (position, initiator) in self.initiators.iter().enumerate() {
            // The second fence of a process changes nothing, and nodes are released each by itself: their order does
            // not matter.
            let checks = initiator.round.stage() == RoundStage::Checking;
            let released = matches!(initiator.asked.first(), Some(RoundAction::Release(_)));
            for &action in initiator.asked.iter().take(if checks || released { 1 } else { usize::MAX }) {
                moves.push(Move::Answer { initiator: position, action, lost: false });
                if self.unsure > 0
                    && initiator.tombstones.is_some()
                    && matches!(action, RoundAction::Confirm(_))
                {
                    moves.push(Move::LeaveOut { initiator: position, action });
                }
                if self.lost > 0 {
                    moves.push(Move::Answer { initiator: position, action, lost: true });
                }
            }
        }
        moves
    }

    fn sends(&self, scenario: Scenario, moves: &mut Vec<Move>) {
        if self.sends == 0 {
            return;
        }
        for from in (0..NODES).filter(|&node| self.nodes[node].up) {
            for to in (0..NODES).filter(|&to| to != from) {
                // Of a removed node only what it says to and hears from one other matters.
                let matters = scenario.leaves.is_none() || from + to == 1;
                let readable = self.nodes[from].damaged != Some(false);
                if matters && readable && !self.nodes[from].record.is_empty() {
                    moves.push(Move::Send { from, to, hint: false });
                }
            }
            let readable = self.nodes[from].damaged != Some(true);
            if scenario.leaves.is_none() && readable && !self.nodes[from].hint.is_empty() && from != 1 {
                moves.push(Move::Send { from, to: 1, hint: true });
            }
        }
    }

    fn apply(&mut self, step: Move, scenario: Scenario, sets: &mut Sets) -> Result<(), String> {
        match step {
            Move::Deliver(position) => {
                let message = self.messages.iter().nth(position).cloned().expect("a message");
                self.deliver(&message, scenario, sets);
            }
            Move::Send { from, to, hint } => {
                self.sends -= 1;
                let node = &self.nodes[from];
                let tag = node.participant.epoch();
                let content = sets.number(if hint { &node.hint } else { &node.record });
                // Whoever reads from a node may follow a newer document than it.
                let generation = self.generation.max(node.generation);
                let generation = if scenario.joins == Some(to) { generation } else { node.generation };
                self.messages.insert(Message { from, to, hint: false, tag, generation, content });
            }
            Move::Write(node) => self.write(node),
            Move::Begin { beside } => self.begin(beside, scenario),
            Move::Answer { initiator, action, lost } => self.answer(initiator, action, lost, scenario),
            Move::LeaveOut { initiator, action } => self.leave_out(initiator, action),
            Move::Damage { node, hint } => {
                self.damages -= 1;
                self.nodes[node].damaged = Some(hint);
            }
            Move::Crash { node, restored, service } => return self.crash(node, restored, service),
            Move::Compare(node) => self.compare(node)?,
            Move::Publish => {
                self.generation = Generation(2);
                if let Some(node) = scenario.joins {
                    let Node { up, participant, generation, .. } = &mut self.nodes[node];
                    *up = true;
                    *generation = self.generation;
                    *participant =
                        Participant::new(Remembered { epoch: self.completed, ..Default::default() });
                    participant.compare(self.completed);
                }
            }
            Move::Learn(node) => self.nodes[node].generation = self.generation,
        }
        Ok(())
    }

    fn deliver(&mut self, message: &Message, scenario: Scenario, sets: &Sets) {
        let tag = match planted(Bug::TagsLate) {
            true => self.nodes[message.from].participant.epoch(),
            false => message.tag,
        };
        let standing = |world: &World, node: usize| {
            let generation = world.nodes[node].generation;
            world.is_member(scenario, node, generation).then_some(generation)
        };
        let (to, from) = (standing(self, message.to), standing(self, message.from));
        let node = &mut self.nodes[message.to];
        if !node.up {
            return;
        }
        match node.participant.accepts_contents(tag, message.generation) {
            Ok(()) => {
                node.participant.hear(Heard { epoch: tag, generation: message.generation }, to);
                node.store(message.hint, &sets.0[usize::from(message.content)]);
            }
            Err(RoundRefusal::StaleEpoch(epoch)) => {
                let heard = Heard { epoch, generation: message.generation };
                self.nodes[message.from].participant.hear(heard, from);
            }
            Err(_) => {}
        }
    }

    fn write(&mut self, position: usize) {
        let node = &mut self.nodes[position];
        let known = node.record.timestamp_max().max(node.participant.known().floor);
        // A clock that stands still: nothing but what the node knows makes its stamps grow.
        let timestamp = known.next(model::WallMillis(0));
        // Judged only if the tombstone could not win against it by right.
        self.new_write = Some(timestamp > DELETED_AT);
        let birth = if node.record.is_empty() { 2 } else { 1 };
        let stamped = if position == 0 { actor(1, birth) } else { actor(2, 1) };
        put(&mut node.record, stamped, timestamp, Value::Present(Bytes::from_static(b"new")));
        node.disk.record = node.record.clone();
        if self.collected && timestamp <= DELETED_AT {
            self.new_write = Some(true);
        }
    }

    fn crash(&mut self, position: usize, restored: bool, service: bool) -> Result<(), String> {
        if restored {
            self.restores -= 1;
        } else {
            self.crashes -= 1;
        }
        let node = &mut self.nodes[position];
        if restored {
            node.disk =
                Disk { remembered: Remembered::default(), record: old(), hint: VersionSet::default() };
            node.damaged = None;
        }
        node.record = node.disk.record.clone();
        node.hint = node.disk.hint.clone();
        node.participant = Participant::new(node.disk.remembered);
        if service { self.compare(position) } else { Ok(()) }
    }

    fn compare(&mut self, position: usize) -> Result<(), String> {
        let node = &mut self.nodes[position];
        match judge_planted_start(false, node.disk.remembered, self.completed) {
            Start::Sound | Start::Fresh(_) => node.participant.compare(Epoch(0)),
            Start::RolledBack(epoch) => {
                if position != 1 || node.disk.record != old() {
                    return Err(format!("the sound disk of node {position} was set aside"));
                }
                (node.record, node.hint, node.damaged) = Default::default();
                node.disk = Disk {
                    remembered: Remembered { epoch, ..node.disk.remembered },
                    record: VersionSet::default(),
                    hint: VersionSet::default(),
                };
                node.participant = Participant::new(node.disk.remembered);
                node.participant.compare(epoch);
            }
        }
        Ok(())
    }

    /// What must hold in every world.
    fn judge(&self, scenario: Scenario) -> Result<(), String> {
        let members = (0..NODES).filter(|&node| self.is_member(scenario, node, self.generation));
        let members: Vec<&Node> = members.map(|node| &self.nodes[node]).filter(|node| node.up).collect();
        let believed = members.iter().filter(|node| !self.waits_to_be_set_aside(node));
        let clean = believed.clone().all(|node| {
            let held = [&node.record, &node.hint, &node.disk.record, &node.disk.hint];
            held.iter().all(|set| set.is_clean_of(&deleted()))
        });
        if self.collected && !clean {
            return Err("the deleted value is there, and its tombstone was forgotten".to_owned());
        }
        let holders = members
            .iter()
            .filter(|node| node.disk.record.includes(&deleted()) || node.disk.hint.includes(&deleted()));
        if !clean
            && scenario.restores == 0
            && scenario.damages == 0
            && scenario.joins.is_none()
            && scenario.leaves.is_none()
            && holders.count() < 2
        {
            return Err("the acknowledged delete has lost one of its two copies".to_owned());
        }
        if self.new_write == Some(true) {
            let mut all = VersionSet::default();
            members.iter().for_each(|node| all.merge(&node.disk.record));
            all.resolve(Resolver::LastWriteWins);
            if !is_new(&all) {
                return Err("the new write is lost".to_owned());
            }
        }
        Ok(())
    }

    /// A disk of earlier days that nobody has looked at yet: its epoch is believed by nobody.
    fn waits_to_be_set_aside(&self, node: &Node) -> bool {
        !node.participant.is_compared() && node.participant.epoch() < self.completed
    }
}

fn id(node: usize) -> NodeId {
    NodeId(node as u32 + 1)
}

fn index(id: NodeId) -> usize {
    id.0 as usize - 1
}
