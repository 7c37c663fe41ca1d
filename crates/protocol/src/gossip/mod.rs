//! Who is alive: rumours about heartbeats, joined with what requests experience.
//!
//! ```text
//!   round (200 ms)            one living peer, chosen at random            what requests met
//!       │ own heartbeat + 1 ──── whole table ────▶ │                            │
//!       │                   ◀─── rows known better ┘                            │
//!       ▼                                                                       ▼
//!   rows join (later incarnation, later heartbeat) ─▶ facts of each member ─▶ alive, suspected, down, left
//! ```
//!
//! - *Rumours* say that a node lives: its heartbeat advances, whoever tells it. Their absence accrues to suspicion.
//! - That a node lives *anew*, under a later incarnation, only itself can say. Told by others it is a reason to ask it in
//!   the next round, and no more: a row with an incarnation that nobody has would outweigh all that the node ever says.
//! - *Requests* say that a node does not serve **this** one: a link that breaks, a refused connection, silence until
//!   a deadline. That makes it suspected at once, and only an answer from it takes that back: behind a partition in
//!   one direction its rumours keep coming by way of others.
//! - Each round asks one suspected node again, each tenth one that is down or left, so whoever comes back is seen
//!   soon and two halves of a cluster that lost sight of each other find together again.
//! - A round that comes late says that this node slept: no silence of others is counted for that time.
//!
//! Must never: replace a node, move a partition, or make anybody forget data. States steer requests and hints.

mod member;
mod phi;
mod row;
mod suspects;

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Generation, Moment, NodeId};

use member::GossipMember;

pub use member::{
    DOWN_AFTER, EXCHANGES_MISSED_MAX, Experience, GONE_AFTER, LATE_AFTER, NodeBelief, NodeLiveness,
    PHI_SUSPECTED, Why,
};
pub use phi::{PHI_MAX, Window};
pub use row::{GossipLoad, Row};
pub use suspects::{Probe, Suspects};

/// Time between two rounds. Five tables a second are 100 KB/s for 500 nodes and nothing for eight.
pub const ROUND: Duration = Duration::from_millis(200);
/// How long an exchange may take; it counts as unanswered then.
pub const EXCHANGE_PATIENCE: Duration = Duration::from_secs(1);
/// One round in so many also asks a node that is down or has left.
const ROUNDS_BETWEEN_REVIVALS: u64 = 10;

/// What has happened.
#[derive(Clone, Debug, PartialEq)]
pub enum GossipEvent {
    /// The deadline has come. `roll` is random.
    Elapsed {
        /// 64 random bits.
        roll: u64,
    },
    /// The cluster document names these nodes.
    MembersNamed {
        /// All of them.
        nodes: Vec<NodeId>,
    },
    /// This node has adopted a cluster document: the others are told.
    GenerationAdopted {
        /// The document's generation.
        generation: Generation,
    },
    /// A peer sent its table and waits for an answer.
    TableReceived {
        /// Who, as its link says: what it tells of itself is believed.
        from: NodeId,
        /// Its table.
        rows: Vec<Row>,
    },
    /// A peer answered an exchange.
    AnswerReceived {
        /// Who, as its link says.
        from: NodeId,
        /// What it knows better.
        rows: Vec<Row>,
    },
    /// An exchange ended without an answer.
    ExchangeFailed {
        /// With whom.
        with: NodeId,
    },
    /// A request met with something.
    Experienced {
        /// Whom it went to.
        node: NodeId,
        /// With what.
        experience: Experience,
    },
    /// This node measured its load.
    LoadMeasured {
        /// Its load.
        load: GossipLoad,
    },
    /// This node has reached a collection epoch.
    EpochReached {
        /// Which.
        epoch: u64,
    },
    /// This node will stop: it says so to every peer that can hear it.
    StopRequested,
}

/// What shall be done.
#[derive(Clone, Debug, PartialEq)]
pub enum GossipAction {
    /// Send a table to a peer and bring back its answer, within [`EXCHANGE_PATIENCE`].
    Exchange {
        /// To whom.
        with: NodeId,
        /// The table.
        rows: Vec<Row>,
    },
    /// Answer the table that was received.
    Answer {
        /// What is known better here.
        rows: Vec<Row>,
    },
    /// Tell whoever routes, hands off or watches.
    Announce {
        /// Which node.
        node: NodeId,
        /// What was believed.
        from: NodeLiveness,
        /// What is believed now.
        to: NodeLiveness,
        /// Why.
        why: Why,
        /// Whether it is worth telling people. At this node's start it is not that a peer of which nothing was heard
        /// yet does not answer yet, nor that it then does; that it never comes is.
        news: bool,
    },
}

/// One node's part in the rumours.
#[derive(Clone, Debug)]
pub struct Gossip {
    own: Row,
    members: BTreeMap<NodeId, GossipMember>,
    round_due: Moment,
    rounds: u64,
    stopping: bool,
}

impl Gossip {
    /// A node of this incarnation that knows nobody yet; its first round comes at once.
    pub fn start(node: NodeId, incarnation: u64, now: Moment) -> Gossip {
        let own = Row::new(node, incarnation, Generation::default());
        Gossip { own, members: BTreeMap::new(), round_due: now, rounds: 0, stopping: false }
    }

    /// When the next round is due.
    pub fn deadline(&self) -> Moment {
        self.round_due
    }

    /// Takes in an event.
    pub fn step(&mut self, event: GossipEvent, now: Moment, actions: &mut Vec<GossipAction>) {
        match event {
            GossipEvent::Elapsed { roll } => self.round(roll, now, actions),
            GossipEvent::MembersNamed { nodes } => self.name_members(&nodes, now),
            GossipEvent::GenerationAdopted { generation } => {
                self.own.generation = self.own.generation.max(generation);
            }
            GossipEvent::TableReceived { from, rows } => {
                self.experience(from, Experience::Heard, now);
                let better = self.known_better(&rows);
                self.learn(from, &rows, now);
                actions.push(GossipAction::Answer { rows: better });
                self.announce(Some(from), &rows, now, actions);
            }
            GossipEvent::AnswerReceived { from, rows } => {
                self.experience(from, Experience::Replied, now);
                if let Some(member) = self.members.get_mut(&from) {
                    member.exchange = None;
                }
                self.learn(from, &rows, now);
                self.announce(Some(from), &rows, now, actions);
            }
            GossipEvent::ExchangeFailed { with } => {
                if let Some(member) = self.members.get_mut(&with).filter(|member| member.exchange.is_some()) {
                    member.miss();
                }
                self.announce(Some(with), &[], now, actions);
            }
            GossipEvent::Experienced { node, experience } => {
                self.experience(node, experience, now);
                self.announce(Some(node), &[], now, actions);
            }
            GossipEvent::LoadMeasured { load } => self.own.load = load,
            GossipEvent::EpochReached { epoch } => self.own.epoch = self.own.epoch.max(epoch),
            GossipEvent::StopRequested => self.say_goodbye(now, actions),
        }
        self.check();
    }

    /// What holds after every step.
    fn check(&self) {
        assert_eq!(self.own.left, self.stopping, "a node says that it leaves when it stops, and not before");
        assert!(self.own.heartbeat >= self.rounds, "every round is a heartbeat, and none is taken back");
        debug_assert!(!self.members.contains_key(&self.own.node), "nobody hears rumours about himself");
        debug_assert!(
            self.members.iter().all(|(&node, member)| member.row.is_none_or(|row| row.node == node)),
            "each member's row is its own"
        );
        if cfg!(debug_assertions) {
            self.members.values().for_each(GossipMember::check);
        }
    }

    /// This node's own row.
    pub fn own(&self) -> &Row {
        &self.own
    }

    /// What is believed about a node; `None` when it is no member. This node believes in itself.
    pub fn state(&self, node: NodeId) -> Option<NodeLiveness> {
        match self.members.get(&node) {
            Some(member) => Some(member.state),
            None => (node == self.own.node).then_some(NodeLiveness::Alive),
        }
    }

    /// Every other member, in order of its id.
    pub fn seen(&self, now: Moment) -> impl Iterator<Item = NodeBelief> {
        self.members.iter().map(move |(&node, member)| {
            let (state, why) = member.verdict(now);
            let (phi, silence) = (member.phi(now), member.silence(now));
            NodeBelief { node, state, why, phi, silence, heard: member.known, row: member.row }
        })
    }

    fn round(&mut self, roll: u64, now: Moment, actions: &mut Vec<GossipAction>) {
        let lateness = now.since(self.round_due);
        if lateness > ROUND {
            self.members.values_mut().for_each(|member| member.forgive(lateness, now));
        }
        let mut dice = Dice(roll);
        // A tenth of jitter, so that nodes that started together do not beat together.
        let jitter = Duration::from_micros(dice.below(ROUND.as_micros() as u64 / 5));
        self.round_due = now.after(ROUND * 9 / 10 + jitter);
        if self.stopping {
            return;
        }
        self.own.heartbeat = self.own.heartbeat.saturating_add(1);
        self.rounds += 1;
        for member in self.members.values_mut() {
            if member.exchange.is_some_and(|since| now.since(since) >= EXCHANGE_PATIENCE) {
                member.miss();
            }
        }
        self.announce_all(now, actions);
        let alive = |state| state == NodeLiveness::Alive;
        let suspected = |state| state == NodeLiveness::Suspected;
        let gone = |state| matches!(state, NodeLiveness::Down | NodeLiveness::Left);
        let revive = self.rounds.is_multiple_of(ROUNDS_BETWEEN_REVIVALS);
        // Whoever is said to have started again can say so itself.
        if let Some(with) = self.partner(|member| member.claimed, &mut dice) {
            self.exchange(with, now, actions);
        }
        // First whoever never answered: soon there is a link to everybody, whose end is noticed at once.
        let stranger = self.partner(|member| alive(member.state) && !member.met, &mut dice);
        let partners = [
            stranger.or_else(|| self.partner(|member| alive(member.state), &mut dice)),
            self.partner(|member| suspected(member.state), &mut dice),
            if revive { self.partner(|member| gone(member.state), &mut dice) } else { None },
        ];
        for with in partners.into_iter().flatten() {
            self.exchange(with, now, actions);
        }
    }

    /// A random one of the wanted members that no exchange is out to.
    fn partner(&self, wanted: impl Fn(&GossipMember) -> bool, dice: &mut Dice) -> Option<NodeId> {
        let fits = |member: &GossipMember| wanted(member) && member.exchange.is_none();
        let count = self.members.values().filter(|member| fits(member)).count();
        let drawn = if count == 0 { return None } else { dice.below(count as u64) as usize };
        self.members.iter().filter(|(_, member)| fits(member)).map(|(&node, _)| node).nth(drawn)
    }

    fn exchange(&mut self, with: NodeId, now: Moment, actions: &mut Vec<GossipAction>) {
        if let Some(member) = self.members.get_mut(&with) {
            member.exchange = Some(now);
            member.claimed = false;
            actions.push(GossipAction::Exchange { with, rows: self.table() });
        }
    }

    /// All rows, this node's first.
    fn table(&self) -> Vec<Row> {
        std::iter::once(self.own).chain(self.members.values().filter_map(|member| member.row)).collect()
    }

    fn name_members(&mut self, nodes: &[NodeId], now: Moment) {
        self.members.retain(|node, _| nodes.contains(node));
        for &node in nodes.iter().filter(|&&node| node != self.own.node) {
            self.members.entry(node).or_insert_with(|| GossipMember::new(now));
        }
    }

    fn experience(&mut self, node: NodeId, experience: Experience, now: Moment) {
        if let Some(member) = self.members.get_mut(&node) {
            member.experience(experience, now);
        }
    }

    fn learn(&mut self, from: NodeId, rows: &[Row], now: Moment) {
        for &row in rows {
            if row.node == self.own.node {
                self.outlive(row);
            } else if let Some(member) = self.members.get_mut(&row.node) {
                match row.node == from {
                    true => member.learn_of_itself(row, now),
                    false => member.learn(row, now),
                }
            }
        }
    }

    /// Others remember a later heartbeat of this incarnation, from before a clean restart: this node goes on from
    /// there, or nobody would believe that it is back.
    fn outlive(&mut self, remembered: Row) {
        if remembered.incarnation == self.own.incarnation && remembered > self.own && !self.stopping {
            self.own.heartbeat = remembered.heartbeat.saturating_add(1);
        }
    }

    /// The rows that are newer here than there, or missing there.
    fn known_better(&self, theirs: &[Row]) -> Vec<Row> {
        let theirs: BTreeMap<NodeId, &Row> = theirs.iter().map(|row| (row.node, row)).collect();
        let better = |row: &Row| theirs.get(&row.node).is_none_or(|&known| row > known);
        self.table().into_iter().filter(better).collect()
    }

    fn say_goodbye(&mut self, now: Moment, actions: &mut Vec<GossipAction>) {
        self.stopping = true;
        self.own.left = true;
        self.own.heartbeat = self.own.heartbeat.saturating_add(1);
        let hearing: Vec<NodeId> = self
            .members
            .iter()
            .filter(|(_, member)| matches!(member.state, NodeLiveness::Alive | NodeLiveness::Suspected))
            .map(|(&node, _)| node)
            .collect();
        for with in hearing {
            self.exchange(with, now, actions);
        }
    }

    fn announce_all(&mut self, now: Moment, actions: &mut Vec<GossipAction>) {
        for (&node, member) in &mut self.members {
            announce_one(node, member, now, actions);
        }
    }

    fn announce(&mut self, with: Option<NodeId>, rows: &[Row], now: Moment, actions: &mut Vec<GossipAction>) {
        for node in rows.iter().map(|row| row.node).chain(with) {
            if let Some(member) = self.members.get_mut(&node) {
                announce_one(node, member, now, actions);
            }
        }
    }
}

fn announce_one(node: NodeId, member: &mut GossipMember, now: Moment, actions: &mut Vec<GossipAction>) {
    let (to, why) = member.verdict(now);
    let from = std::mem::replace(&mut member.state, to);
    if from != to {
        let news = member.is_news(to);
        actions.push(GossipAction::Announce { node, from, to, why, news });
    }
}

/// Draws from one handed number.
struct Dice(u64);

impl Dice {
    /// A number in `0..bound`.
    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
    }
}
