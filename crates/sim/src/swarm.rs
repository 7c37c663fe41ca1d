//! From a seed to everything that a run is made of.
//!
//! Each seed draws its own mix: a run without faults finds what a storm hides, and two rare faults meet more often
//! where all others are off. The faults of a run stay within what its promises bear (the *fault budget*): see
//! [`Losses`].

mod conditions;
mod keys;
mod piloted;
mod planted;
mod pushes;
mod rebalance;
mod scenario;
mod service;

use std::time::Duration;

use client::coordinator::REPAIRS_MAX;
use coordination::memory::MemoryFaults;
use node::hints::HINT_BYTES_MAX;
use protocol::handoff::HandoffOptions;
use storage::Durability;

use crate::check::Rules;
use crate::dice::Dice;
use crate::network::Conditions;
use crate::plant::Plant;

pub(crate) use keys::PARTITIONS;
pub use piloted::Piloted;
pub use scenario::Scenario;

/// How long nodes keep what has expired: clocks differ by ten seconds, and drift a little, where none of them jumps.
pub const EXPIRY_MARGIN: Duration = Duration::from_secs(12);

/// Where records rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// In memory: a restart forgets them.
    Memory,
    /// In the log engine.
    Log(Durability),
}

/// What faults may take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Losses {
    /// Nothing that was acknowledged: power cuts and failing syncs only where every write is synced before it is
    /// acknowledged, and where not, only the ends of processes.
    None,
    /// Copies on this many nodes, fewer than W: a power cut (or the end of a process, for the memory engine) strikes no
    /// other node in the whole run.
    Nodes(u32),
}

/// One of the mechanisms that make up for what another one has missed. A run without one shows what the others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SafetyNet {
    /// Replicas compare with each other.
    AntiEntropy,
    /// What a replica misses is parked elsewhere.
    Hints,
    /// Gets send replicas what they lack.
    ReadRepair,
    /// Records are read in the background.
    Scrub,
}

/// One kind of harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The process ends, what it wrote stays.
    Kill,
    /// The power goes: unsynced data is lost or torn.
    PowerCut,
    /// The node is stopped cleanly and started again.
    CleanStop,
    /// Syncs fail; the node is restarted later.
    FailingSync,
    /// Bits of what is stored flip.
    FlippedBits,
    /// An append fails, in part or whole; the node is restarted later.
    FailingAppend,
    /// A directory cannot be synced; the node is restarted later.
    FailingDirectorySync,
    /// A file cannot be renamed; the node is restarted later.
    FailingRename,
    /// Reads fail.
    FailingRead,
    /// A sync takes seconds.
    StalledSync,
    /// The process ends, and starts again on an empty disk.
    LostDisk,
    /// As many nodes lose their disks together as the run's budget bears.
    LostDisks,
    /// The process ends, and starts again on an older copy of its disk.
    OlderDisk,
    /// The process stands still for seconds while its clock goes on.
    Pause,
    /// Links of a node break when it has taken a request in, before its answer.
    CutAnswers,
    /// Syncs take long.
    SlowDisk,
    /// The disk is full for a while.
    FullDisk,
    /// One node is cut off, both ways.
    Isolate,
    /// One direction between two nodes is cut.
    OneWay,
    /// Everything from and to a node takes longer.
    SlowNode,
    /// Links break.
    BreakLinks,
    /// The wall clock jumps.
    ClockJump,
    /// The cluster document gets a new generation, and the old one is refused.
    NewGeneration,
    /// The coordination service cannot be reached.
    NoCoordination,
    /// The node has no room for requests for a while: it refuses them as *overloaded*, hints among them.
    Crowd,
}

const FAULTS: [Fault; 13] = [
    Fault::Kill,
    Fault::PowerCut,
    Fault::CleanStop,
    Fault::FailingSync,
    Fault::SlowDisk,
    Fault::FullDisk,
    Fault::Isolate,
    Fault::OneWay,
    Fault::SlowNode,
    Fault::BreakLinks,
    Fault::ClockJump,
    Fault::NewGeneration,
    Fault::NoCoordination,
];

/// Machine faults that take nothing from anybody.
const HARMLESS: [Fault; 3] = [Fault::StalledSync, Fault::Pause, Fault::CutAnswers];
/// Faults of disks after which the node is restarted, or that it bears.
const FAILING: [Fault; 4] =
    [Fault::FailingAppend, Fault::FailingDirectorySync, Fault::FailingRename, Fault::FailingRead];
/// Disks that are gone.
const GONE: [Fault; 3] = [Fault::LostDisk, Fault::LostDisks, Fault::OlderDisk];

/// Everything that a run is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where all dice of the run come from.
    pub seed: u64,
    /// Nodes of the cluster.
    pub nodes: u32,
    /// N.
    pub replicas: u8,
    /// R.
    pub reads: u8,
    /// W.
    pub writes: u8,
    /// Whether fallbacks may stand in.
    pub sloppy: bool,
    /// Whether the stores promise reads that never go backwards.
    pub monotonic: bool,
    /// Where records rest.
    pub engine: EngineKind,
    /// What faults may take away.
    pub losses: Losses,
    /// Whether the order of tasks is drawn.
    pub shuffle: bool,
    /// The network without faults.
    pub conditions: Conditions,
    /// Clients at work.
    pub clients: u32,
    /// Clients at the Redis door beside them.
    pub redis_clients: u32,
    /// Whether nodes serve HTTP, too.
    pub http: bool,
    /// Workers of each node, which share its records and nothing else.
    pub workers: u32,
    /// Keys of each store.
    pub keys: u32,
    /// How long clients work, in virtual time.
    pub span: Duration,
    /// Longest pause of a client between operations.
    pub think: Duration,
    /// Deadline of requests.
    pub deadline: Duration,
    /// How hints are delivered.
    pub handoff: HandoffOptions,
    /// Bytes of hints that a node holds at most.
    pub hint_bytes_max: u64,
    /// Puts in a thousand operations.
    pub puts: u64,
    /// Deletes in a thousand operations.
    pub deletes: u64,
    /// Writes in a thousand that hand back no context although there is one.
    pub blind: u64,
    /// Writes in a thousand of native clients that have a condition.
    pub conditional: u64,
    /// Requests in a thousand of native clients that say themselves how many replicas must answer.
    pub own_quorums: u64,
    /// Operations in a thousand of native clients that walk a partition.
    pub walks: u64,
    /// Puts in a thousand whose value is longer than what hints and refilling move at once.
    pub long_values: u64,
    /// The one value of no bytes: by which client, and which of its values. Each value of a run is written once.
    pub empty: Option<(u32, u64)>,
    /// Puts in a thousand of native clients whose value is above what anybody may store.
    pub too_long: u64,
    /// Requests under way that a node admits, if it admits few.
    pub crowded: Option<usize>,
    /// Commands in a thousand of Redis clients that change when a value expires.
    pub touches: u64,
    /// Puts in a thousand whose value expires.
    pub expiring: u64,
    /// How long nodes keep what has expired.
    pub expiry_margin: Duration,
    /// Kinds of harm that this run knows.
    pub faults: Vec<Fault>,
    /// How often harm is done.
    pub harms: u64,
    /// What is switched off.
    pub without: Vec<SafetyNet>,
    /// Times that the power of many nodes goes at once, right after acknowledgements.
    pub storms: u64,
    /// Whether partitions move.
    pub moves: bool,
    /// Whether headmasters move them, by an operator's orders.
    pub headmasters: bool,
    /// What only a run has in which the autopilot is on.
    pub autopilot: Option<Piloted>,
    /// Buckets of the cluster: at least one for each partition.
    pub buckets: u32,
    /// θ of the stores, if their keys lie in windows.
    pub theta: Option<u64>,
    /// Feeds that their keys name, in turn; 0 where keys name none. Above 0 only beside a θ.
    pub groups: u32,
    /// Whether partitions are cut and joined while others move.
    pub reshapes: bool,
    /// Whether the ring is a golden one.
    pub golden: bool,
    /// Clients that read a read-only store, to which artifacts are pushed if there is one.
    pub readers: u32,
    /// Whether the numbers of stores change.
    pub renumbers: bool,
    /// How calls of the coordination service go wrong, until all faults are healed.
    pub service: MemoryFaults,
    /// What happens in place of harm that was drawn.
    pub scenario: Option<Scenario>,
    /// Planted bug.
    pub plant: Option<Plant>,
}

impl Setup {
    /// Draws a run in which the autopilot is off: stories, and runs with a planted bug, are made of such.
    pub fn ordinary(seed: u64) -> Setup {
        let mut dice = Dice::apart(seed, 1);
        let nodes = *dice.pick(&[1, 2, 3, 3, 3, 4, 5, 5, 6, 7]);
        let replicas = *dice.pick(&[3, 3, 3, 2, 1, 5]).min(&nodes) as u8;
        let mut writes = dice.between(1, u64::from(replicas)) as u8;
        let mut reads = dice.between(1, u64::from(replicas)) as u8;
        if dice.chance(700) && reads + writes <= replicas {
            (reads, writes) = (replicas / 2 + 1, replicas / 2 + 1);
        }
        let engine = match dice.below(10) {
            0..=1 => EngineKind::Memory,
            2..=5 => EngineKind::Log(Durability::Always),
            6..=8 => EngineKind::Log(Durability::Every { milliseconds: 10 }),
            _ => EngineKind::Log(Durability::System),
        };
        let loses = engine != EngineKind::Log(Durability::Always) && writes > 1 && dice.chance(400);
        let losses = if loses { Losses::Nodes(u32::from(writes) - 1) } else { Losses::None };
        let setup = Setup {
            seed,
            nodes,
            replicas,
            reads,
            writes,
            sloppy: dice.chance(500),
            monotonic: false,
            engine,
            losses,
            shuffle: dice.chance(500),
            conditions: conditions::draw(&mut dice),
            clients: dice.between(1, 5) as u32,
            redis_clients: 0,
            http: false,
            workers: 1,
            keys: dice.between(1, 6) as u32,
            span: Duration::from_secs(dice.between(3, 12)),
            think: Duration::from_millis(*dice.pick(&[5, 30, 100, 300])),
            deadline: Duration::from_millis(*dice.pick(&[300, 1000, 2000])),
            handoff: HandoffOptions::default(),
            hint_bytes_max: HINT_BYTES_MAX,
            puts: dice.between(200, 700),
            deletes: *dice.pick(&[0, 30, 100]),
            blind: *dice.pick(&[0, 100, 400]),
            conditional: 0,
            own_quorums: 0,
            walks: 0,
            long_values: 0,
            empty: None,
            too_long: 0,
            crowded: None,
            touches: 0,
            expiring: 0,
            expiry_margin: EXPIRY_MARGIN,
            faults: Vec::new(),
            harms: 0,
            without: Vec::new(),
            storms: 0,
            moves: false,
            headmasters: false,
            autopilot: None,
            buckets: 1,
            theta: None,
            groups: 0,
            reshapes: false,
            golden: false,
            readers: 0,
            renumbers: false,
            service: MemoryFaults::default(),
            scenario: None,
            plant: None,
        };
        setup.with_more(&mut dice)
    }

    /// Faults, and what was added to runs over time: each of that from its own dice, so that it does not move the rest.
    fn with_more(mut self, first: &mut Dice) -> Setup {
        self.draw_faults(first);
        let seed = self.seed;
        self.draw_reads(&mut Dice::apart(seed, 9));
        self.draw_expiry(&mut Dice::apart(seed, 10));
        self.draw_doors(&mut Dice::apart(seed, 11));
        self.draw_flips(&mut Dice::apart(seed, 12));
        self.draw_machine_faults(&mut Dice::apart(seed, 14));
        self.draw_users(&mut Dice::apart(seed, 15));
        self.draw_nets(&mut Dice::apart(seed, 17));
        self.draw_storms(&mut Dice::apart(seed, 18));
        self.draw_requests(&mut Dice::apart(seed, 19));
        self.draw_moves(&mut Dice::apart(seed, 22));
        self.draw_lengths(&mut Dice::apart(seed, 23));
        self.draw_crowds(&mut Dice::apart(seed, 24));
        self.draw_service(&mut Dice::apart(seed, 26));
        self.draw_bounds(&mut Dice::apart(seed, 29));
        self.draw_numbers(&mut Dice::apart(seed, 30));
        self.draw_pushes(&mut Dice::apart(seed, 33));
        self
    }

    /// A value of no bytes in a third of the runs, and in a few values that must be refused.
    fn draw_lengths(&mut self, dice: &mut Dice) {
        let client = if self.redis_clients > 0 && dice.chance(500) { 51 } else { 1 };
        self.empty = dice.chance(333).then(|| (client, dice.between(1, 8)));
        self.too_long = if dice.chance(30) { 20 } else { 0 };
    }

    /// Nodes without room for requests in a seventh of the runs.
    fn draw_crowds(&mut self, dice: &mut Dice) {
        if dice.chance(150) {
            self.faults.push(Fault::Crowd);
            self.harms = self.harms.max(*dice.pick(&[4, 8]));
        }
    }

    /// What users do beside plain reading and writing; the dear of it in few runs.
    fn draw_users(&mut self, dice: &mut Dice) {
        self.conditional = if dice.chance(400) { *dice.pick(&[100, 500]) } else { 0 };
        self.walks = if dice.chance(300) { *dice.pick(&[10, 60]) } else { 0 };
        self.long_values = if dice.chance(60) { 20 } else { 0 };
        if dice.chance(40) {
            self.keys = dice.between(100, 300) as u32;
        }
        if dice.chance(80) {
            self.crowded = Some(dice.between(2, 6) as usize);
            self.clients += dice.between(5, 15) as u32;
        }
    }

    /// Quorums of each request's own in a quarter of the runs, and changing expiries in some with Redis clients.
    fn draw_requests(&mut self, dice: &mut Dice) {
        self.own_quorums = if dice.chance(250) { *dice.pick(&[100, 500]) } else { 0 };
        let touches = self.redis_clients > 0 && dice.chance(400);
        self.touches = if touches { *dice.pick(&[50, 250]) } else { 0 };
    }

    /// Faults of machines in half of the runs. A disk that is gone, or older than it was, is a lost copy of all that it
    /// held: such runs spend the same budget as those whose bits flip.
    fn draw_machine_faults(&mut self, dice: &mut Dice) {
        if !dice.chance(500) {
            return;
        }
        let share = *dice.pick(&[200, 500, 1000]);
        let mut drawn: Vec<Fault> = HARMLESS.into_iter().filter(|_| dice.chance(share)).collect();
        let excused = !self.monotonic || self.faults.iter().any(|&fault| Setup::takes_unacknowledged(fault));
        let logs = matches!(self.engine, EngineKind::Log(_));
        let gone = logs && excused && self.writes > 1 && dice.chance(600);
        if gone {
            self.losses = Losses::Nodes(u32::from(self.writes) - 1);
            drawn.push(*dice.pick(&GONE));
            drawn.extend(GONE.into_iter().filter(|_| dice.chance(share)));
        }
        if logs && excused {
            drawn.extend(FAILING.into_iter().filter(|_| dice.chance(share)));
        }
        drawn.retain(|&fault| self.bears(fault));
        self.harms = if drawn.is_empty() { self.harms } else { self.harms.max(*dice.pick(&[3, 6, 12])) };
        self.faults.extend(drawn);
    }

    /// Monotonic reads in some runs, and in most of those nothing that excuses them.
    fn draw_reads(&mut self, dice: &mut Dice) {
        self.monotonic = dice.chance(350);
        if self.monotonic && dice.chance(700) {
            self.faults.retain(|&fault| !Setup::takes_unacknowledged(fault));
            self.harms = if self.faults.is_empty() { 0 } else { self.harms };
        }
    }

    /// Values that expire in some runs. Where clocks jump, nothing is reaped within a run.
    fn draw_expiry(&mut self, dice: &mut Dice) {
        self.expiring = if dice.chance(300) { *dice.pick(&[100, 400, 900]) } else { 0 };
        if self.faults.contains(&Fault::ClockJump) {
            self.expiry_margin = Duration::from_secs(3600);
        }
    }

    /// How far a clock may be from the true time: by its skew, and a second for its drift.
    fn clock_error(&self) -> Duration {
        let jumps = self.faults.contains(&Fault::ClockJump);
        Duration::from_secs(if jumps { 300 + 1 } else { 5 + 1 })
    }

    /// Whether what has expired must be gone at the end.
    pub fn reaps(&self) -> bool {
        (self.expiring > 0 || self.touches > 0) && self.expiry_margin <= EXPIRY_MARGIN
    }

    /// Redis clients in half of the runs, several workers in a third.
    fn draw_doors(&mut self, dice: &mut Dice) {
        self.redis_clients = if dice.chance(500) { dice.between(1, 3) as u32 } else { 0 };
        self.workers = if dice.chance(333) { dice.between(2, 4) as u32 } else { 1 };
    }

    /// Flipped bits in a quarter of the runs whose promises bear that nodes lose copies. A damaged copy is a lost one,
    /// until it is repaired: it counts against the same budget as what a power cut takes.
    fn draw_flips(&mut self, dice: &mut Dice) {
        let logs = matches!(self.engine, EngineKind::Log(_));
        if logs && self.writes > 1 && dice.chance(350) {
            self.losses = Losses::Nodes(u32::from(self.writes) - 1);
            self.faults.push(Fault::FlippedBits);
            self.harms = self.harms.max(10);
        }
    }

    /// Read repairs that a client may have under way.
    pub fn repairs_max(&self) -> usize {
        if self.without.contains(&SafetyNet::ReadRepair) { 0 } else { REPAIRS_MAX }
    }

    /// One safety net is away in a third of the runs, in a quarter of these another, too; not comparing where bits flip, which nothing else repairs.
    fn draw_nets(&mut self, dice: &mut Dice) {
        const NETS: [SafetyNet; 4] =
            [SafetyNet::AntiEntropy, SafetyNet::Hints, SafetyNet::ReadRepair, SafetyNet::Scrub];
        let away = dice.chance(333).then(|| *dice.pick(&NETS));
        let flips = self.faults.contains(&Fault::FlippedBits);
        self.without.extend(away);
        if away.is_some() && dice.chance(250) {
            self.without.push(*dice.pick(&NETS));
        }
        self.without.dedup();
        self.without.retain(|&net| net != SafetyNet::AntiEntropy || !flips);
    }

    /// Storms in a third of the runs in which every write is synced, but for those that judge reads by what was shown.
    fn draw_storms(&mut self, dice: &mut Dice) {
        let synced = self.engine == EngineKind::Log(Durability::Always);
        if synced && !self.rules().reads_monotonic && dice.chance(333) {
            self.storms = dice.between(1, 3);
        }
    }

    /// Whether this kind of harm may take from a node what it has shown, but not yet acknowledged as kept.
    fn takes_unacknowledged(fault: Fault) -> bool {
        let ends = matches!(fault, Fault::Kill | Fault::PowerCut | Fault::FailingSync);
        ends || GONE.contains(&fault) || FAILING.contains(&fault)
    }

    fn draw_faults(&mut self, dice: &mut Dice) {
        if dice.chance(80) {
            return;
        }
        let allowed: Vec<Fault> = FAULTS.into_iter().filter(|&fault| self.bears(fault)).collect();
        let share = *dice.pick(&[150, 400, 1000]);
        self.faults = allowed.iter().copied().filter(|_| dice.chance(share)).collect();
        if self.faults.is_empty() {
            self.faults.push(*dice.pick(&allowed));
        }
        self.harms = *dice.pick(&[2, 5, 10, 20]);
    }

    /// Whether the run's promises bear this kind of harm at all.
    fn bears(&self, fault: Fault) -> bool {
        match fault {
            Fault::CleanStop
            | Fault::SlowDisk
            | Fault::StalledSync
            | Fault::FullDisk
            | Fault::FailingSync
            | Fault::FailingAppend
            | Fault::FailingDirectorySync
            | Fault::FailingRename
            | Fault::FailingRead
            | Fault::OlderDisk
                if self.engine == EngineKind::Memory =>
            {
                false
            }
            // Two nodes at least: one alone is lost by the other fault.
            Fault::LostDisks => matches!(self.losses, Losses::Nodes(2..)),
            _ => !self.forgets_on(fault) || self.losses != Losses::None,
        }
    }

    /// Whether this kind of harm may cost a node acknowledged copies.
    pub fn forgets_on(&self, fault: Fault) -> bool {
        match (fault, self.engine) {
            (Fault::Kill, EngineKind::Memory) | (Fault::FlippedBits, _) => true,
            (Fault::LostDisk | Fault::LostDisks | Fault::OlderDisk, _) => true,
            // They end with a power cut, or leave in memory what the end of the process takes.
            (
                Fault::PowerCut
                | Fault::FailingSync
                | Fault::FailingAppend
                | Fault::FailingDirectorySync
                | Fault::FailingRename
                | Fault::FailingRead,
                engine,
            ) => engine != EngineKind::Log(Durability::Always),
            _ => false,
        }
    }

    /// Whether the node notices what such harm took, answers no gets until it has it back, and gets all of it back from
    /// replicas that the budget spares.
    fn is_refilled_after(&self, fault: Fault) -> bool {
        let empty = self.engine == EngineKind::Memory && matches!(fault, Fault::Kill | Fault::PowerCut);
        empty || GONE.contains(&fault)
    }

    /// Whether all replicas must be equal in the end: not where nobody compares, nor under a bug that changes records
    /// behind everybody's back.
    pub fn equal_at_the_end(&self) -> bool {
        // Comparing is what promises it; hints and repairs are only faster.
        !self.without.contains(&SafetyNet::AntiEntropy)
            && !matches!(
                self.plant,
                Some(
                    Plant::ForgetfulEngine
                        | Plant::StaleEngine
                        | Plant::RewoundIdentity
                        | Plant::TamperingNetwork
                        | Plant::HastyCollection
                        | Plant::UncheckedReads
                        | Plant::LostWrites
                        | Plant::OlderOverNewer
                        | Plant::CrossedKeys
                        | Plant::StaleStamps
                        | Plant::OldValues
                )
            )
    }

    /// The promises that hold.
    pub fn rules(&self) -> Rules {
        let losses = self.losses != Losses::None;
        let unnoticed =
            self.faults.iter().any(|&fault| self.forgets_on(fault) && !self.is_refilled_after(fault));
        Rules {
            replicas: usize::from(self.replicas),
            reads_required: usize::from(self.reads),
            writes_required: usize::from(self.writes),
            copies_kept: !unnoticed,
            refilled: losses,
            hints_lost: losses && self.without.contains(&SafetyNet::AntiEntropy),
            reads_monotonic: self.monotonic
                && !losses
                && self.storms == 0
                && !self.faults.iter().any(|&fault| Setup::takes_unacknowledged(fault)),
            numbers_change: self.renumbers,
            reaped_after: self.expiry_margin.saturating_sub(2 * self.clock_error()),
        }
    }
}
