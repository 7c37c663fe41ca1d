//! Harm: which fault strikes whom and when, drawn before the run begins and bounded by the run's budget.
//!
//! Must never: do harm after the span of a run; healing is part of every run, because "never lost" is judged after it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coordination::memory::MemoryFaults;
use protocol::admission::Peer;
use runtime::disk::simulated::{DiskOperation, Fault as DiskFault};

use crate::artifacts;
use crate::circumstances::Trouble;
use crate::cluster::World;
use crate::dice::Dice;
use crate::headmasters;
use crate::host::Host;
use crate::swarm::{Fault, Losses};

/// A sync of a slow disk, in microseconds.
const SLOW_SYNC_US: u64 = 300_000;
/// How often a crowd looks for a moment at which nothing is under way, a millisecond apart.
const CROWD_ATTEMPTS: u32 = 500;
/// The longest sync of a disk that stalls, in microseconds.
const STALLED_SYNC_US: u64 = 6_000_000;

/// Does the run's harm, one after the other and overlapping, until its span is over.
pub async fn harm(world: Arc<World>, process: crate::executor::ProcessId) {
    let setup = &world.setup;
    let mut dice = Dice::apart(setup.seed, 5);
    let mut forgetful = BTreeSet::new();
    let end = world.executor.now().after(setup.span);
    if setup.harms == 0 || setup.faults.is_empty() {
        world.executor.sleep_until(end).await;
        return;
    }
    let pause = setup.span / u32::try_from(setup.harms + 1).unwrap_or(u32::MAX);
    for _ in 0..setup.harms {
        let wait = dice.between(0, 2 * pause.as_micros() as u64);
        world.executor.sleep(Duration::from_micros(wait)).await;
        if world.executor.now() >= end {
            break;
        }
        let fault = *dice.pick(&setup.faults);
        let victim = dice.below(u64::from(setup.nodes)) as usize;
        if setup.forgets_on(fault) && !spend(setup.losses, &mut forgetful, victim) {
            continue;
        }
        let mut victims = vec![victim];
        if fault == Fault::LostDisks {
            let others = (0..setup.nodes as usize).filter(|&other| other != victim);
            victims.extend(others.filter(|&other| spend(setup.losses, &mut forgetful, other)));
        }
        let harm = Harm { world: world.clone(), victim, victims, dice: Dice::new(dice.roll()), end };
        world.tell(format!("{fault:?} strikes {}", world.machines()[victim].id()));
        world.harmed(format!("{fault:?}"));
        world.executor.spawn(process, Box::pin(harm.strike(fault)));
    }
    world.executor.sleep_until(end).await;
}

/// Whether the budget bears that this node forgets.
fn spend(losses: Losses, forgetful: &mut BTreeSet<usize>, victim: usize) -> bool {
    let Losses::Nodes(nodes) = losses else { return false };
    if forgetful.contains(&victim) {
        return true;
    }
    if forgetful.len() >= nodes as usize {
        return false;
    }
    forgetful.insert(victim);
    true
}

/// Ends all harm: every node runs again, every disk and wire works.
pub async fn heal(world: &Arc<World>, dice: &mut Dice) {
    world.tell("healing");
    world.wires.heal();
    world.resume_all();
    world.service.set_available(true);
    world.service.set_faults(MemoryFaults::default());
    world.artifacts.heal(&world.sources);
    for (position, machine) in world.machines().iter().enumerate() {
        machine.disk().clear_faults();
        machine.disk().set_capacity(None);
        machine.sync_us.store(500, Ordering::Relaxed);
        // Whoever met a failed sync or a full disk serves no more until it is started again.
        let restarts = world.setup.faults.iter().any(|&fault| fails_for_good(fault));
        if restarts && machine.is_running() {
            world.kill(position, Duration::ZERO, dice.millis(0, 500));
        }
        if world.belongs(machine.id()) {
            world.rise(position);
        }
        world.start(position);
    }
}

/// Whether a node may refuse its service after such a fault until it is started again.
fn fails_for_good(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::FailingSync
            | Fault::FailingAppend
            | Fault::FailingDirectorySync
            | Fault::FailingRename
            | Fault::FailingRead
    )
}

struct Harm {
    world: Arc<World>,
    victim: usize,
    /// All nodes that are struck together, the victim first.
    victims: Vec<usize>,
    dice: Dice,
    end: model::Moment,
}

impl Harm {
    async fn strike(mut self, fault: Fault) {
        match fault {
            Fault::Kill | Fault::PowerCut | Fault::CleanStop => self.end_process(fault).await,
            Fault::FailingSync => self.failing(DiskOperation::Sync).await,
            Fault::FailingAppend => self.failing(DiskOperation::Append).await,
            Fault::FailingDirectorySync => self.failing(DiskOperation::SyncDirectory).await,
            Fault::FailingRename => self.failing(DiskOperation::Rename).await,
            Fault::FailingRead => self.failing(DiskOperation::Read).await,
            Fault::FlippedBits => self.flip_bits(),
            Fault::LostDisk | Fault::LostDisks => self.lose_disks().await,
            Fault::OlderDisk => self.bring_back_older_disk().await,
            Fault::StalledSync => self.stalled_sync().await,
            Fault::Pause => self.pause().await,
            Fault::CutAnswers => self.cut_answers().await,
            Fault::SlowDisk => self.slow_disk().await,
            Fault::FullDisk => self.full_disk().await,
            Fault::Isolate | Fault::OneWay => self.partition(fault).await,
            Fault::SlowNode => self.slow_node().await,
            Fault::BreakLinks => self.break_links(),
            Fault::ClockJump => self.jump_clock(),
            Fault::NewGeneration if self.world.setup.moves => {
                let world = self.world.clone();
                world.next_since(&mut self.dice).await;
            }
            Fault::NewGeneration => self.world.next_generation().await,
            Fault::NoCoordination => self.no_coordination().await,
            Fault::Crowd => self.crowd().await,
        }
    }

    /// Waits for a while, but not beyond the end of the harm.
    async fn last(&mut self, millis_max: u64) {
        let until = self.world.executor.now().after(self.dice.millis(1, millis_max));
        self.world.executor.sleep_until(until.min(self.end)).await;
    }

    async fn end_process(&mut self, fault: Fault) {
        if !self.world.machines()[self.victim].is_running() {
            return;
        }
        let linger = self.dice.millis(0, 3000);
        match fault {
            Fault::Kill => self.world.kill(self.victim, Duration::ZERO, linger),
            Fault::PowerCut => {
                let silence = self.dice.millis(0, 2000);
                let seed = self.dice.roll();
                self.world.cut_power(self.victim, seed, silence, linger);
            }
            _ => self.world.stop(self.victim).await,
        }
        let down = *self.dice.pick(&[20, 500, 4000]);
        self.last(down).await;
        self.world.start(self.victim);
    }

    fn flip_bits(&mut self) {
        for _ in 0..*self.dice.pick(&[1, 1, 3]) {
            self.world.flip_somewhere(self.victim, &mut self.dice);
        }
    }

    async fn failing(&mut self, operation: DiskOperation) {
        let machine = &self.world.machines()[self.victim];
        machine.disk().inject(DiskFault::next(operation, self.dice.between(1, 3)));
        self.world.trouble(Trouble::Disk, self.victim);
        self.last(2000).await;
        let fault = *self.dice.pick(&[Fault::Kill, Fault::PowerCut]);
        self.end_process(fault).await;
        self.world.machines()[self.victim].disk().clear_faults();
        self.world.trouble_ends(Trouble::Disk, self.victim, Duration::ZERO);
    }

    async fn lose_disks(&mut self) {
        for &victim in &self.victims {
            self.world.kill(victim, Duration::ZERO, self.dice.millis(0, 500));
            self.world.wipe(victim);
            self.world.tell(format!("{} has an empty disk", self.world.machines()[victim].id()));
        }
        let down = *self.dice.pick(&[20, 500, 4000]);
        self.last(down).await;
        self.victims.iter().for_each(|&victim| self.world.start(victim));
    }

    /// A copy is taken while no process uses the disk; it comes back when at least one further process has, of which the
    /// coordination service was told: before that nobody can tell the copy from a directory whose process was ended.
    /// Nor can a node that starts while the service is away, so this one waits for it.
    async fn bring_back_older_disk(&mut self) {
        let world = self.world.clone();
        if world.node(self.victim).is_none() {
            return;
        }
        match self.dice.chance(500) {
            true => world.stop(self.victim).await,
            false => world.kill(self.victim, Duration::ZERO, self.dice.millis(0, 500)),
        }
        let copy = world.copy(self.victim);
        world.start(self.victim);
        self.last(4000).await;
        if !world.is_told_of(self.victim) {
            return;
        }
        world.kill(self.victim, Duration::ZERO, self.dice.millis(0, 500));
        world.restore(self.victim, &copy);
        world.tell(format!("{} has an older copy of its disk", world.machines()[self.victim].id()));
        self.last(500).await;
        while !world.service.is_available() && world.executor.now() < self.end {
            self.last(20).await;
        }
        if world.service.is_available() {
            world.start(self.victim);
        }
    }

    async fn stalled_sync(&mut self) {
        let sync_us = self.world.machines()[self.victim].sync_us.clone();
        let before = sync_us.swap(self.dice.between(1_000_000, STALLED_SYNC_US), Ordering::Relaxed);
        self.world.trouble(Trouble::Disk, self.victim);
        self.last(500).await;
        sync_us.store(before.min(3000), Ordering::Relaxed);
        // The last sync that was begun meanwhile goes on for this long.
        self.world.trouble_ends(Trouble::Disk, self.victim, Duration::from_micros(STALLED_SYNC_US));
    }

    async fn pause(&mut self) {
        let longest = *self.dice.pick(&[500, 3000, 8000]);
        let until = self.world.executor.now().after(self.dice.millis(100, longest)).min(self.end);
        self.world.pause(self.victim, until.since(self.world.executor.now())).await;
    }

    async fn cut_answers(&mut self) {
        let host = self.world.machines()[self.victim].host();
        self.world.wires.cut_answers(host, *self.dice.pick(&[5, 50, 300]));
        self.last(3000).await;
        self.world.wires.cut_answers(host, 0);
    }

    async fn slow_disk(&mut self) {
        let slow = self.dice.between(5_000, SLOW_SYNC_US);
        let sync_us = self.world.machines()[self.victim].sync_us.clone();
        let before = sync_us.swap(slow, Ordering::Relaxed);
        self.world.trouble(Trouble::Disk, self.victim);
        self.last(3000).await;
        sync_us.store(before.min(3000), Ordering::Relaxed);
        // The last sync that was begun meanwhile goes on for this long.
        self.world.trouble_ends(Trouble::Disk, self.victim, Duration::from_micros(SLOW_SYNC_US));
    }

    async fn full_disk(&mut self) {
        let disk = self.world.machines()[self.victim].disk().clone();
        disk.set_capacity(Some(disk.used_bytes() + self.dice.between(0, 20_000)));
        self.world.trouble(Trouble::Disk, self.victim);
        self.last(3000).await;
        disk.set_capacity(None);
        self.world.trouble_ends(Trouble::Disk, self.victim, Duration::ZERO);
    }

    async fn partition(&mut self, fault: Fault) {
        let own = self.world.machines()[self.victim].host();
        // Hosts above 100 are clients: a node may be cut off from them as well.
        let hosts = (1..=self.world.setup.nodes).chain(101..=100 + self.world.setup.clients).map(Host);
        let (setup, user) = (&self.world.setup, artifacts::USER);
        let candidates = setup.headmasters || setup.pushes();
        let hosts = hosts.chain(headmasters::HOSTS.into_iter().filter(|_| candidates));
        let hosts = hosts.chain(artifacts::readers(setup.readers)).chain(setup.pushes().then_some(user));
        let mut others: Vec<Host> = hosts.filter(|&host| host != own).collect();
        if fault == Fault::OneWay || self.dice.chance(500) {
            others.retain(|_| self.dice.chance(500));
        }
        let ways: Vec<(Host, Host)> = match (fault, self.dice.chance(500)) {
            (Fault::Isolate, _) => others.iter().flat_map(|&other| [(own, other), (other, own)]).collect(),
            (_, true) => others.iter().map(|&other| (own, other)).collect(),
            (_, false) => others.iter().map(|&other| (other, own)).collect(),
        };
        for &(from, to) in &ways {
            self.world.wires.block(from, to);
        }
        if self.dice.chance(300) {
            for &other in &others {
                self.world.wires.break_links(own, other);
            }
        }
        let length = *self.dice.pick(&[200, 2000, 8000]);
        self.last(length).await;
        for (from, to) in ways {
            self.world.wires.unblock(from, to);
        }
    }

    async fn slow_node(&mut self) {
        let host = self.world.machines()[self.victim].host();
        let by = self.dice.millis(1, 400);
        self.world.wires.slow(host, by);
        self.last(3000).await;
        self.world.wires.slow(host, Duration::ZERO);
    }

    fn break_links(&mut self) {
        let own = self.world.machines()[self.victim].host();
        let hosts = (1..=self.world.setup.nodes).chain(101..=100 + self.world.setup.clients).map(Host);
        for other in hosts.chain(artifacts::readers(self.world.setup.readers)) {
            if self.dice.chance(500) {
                self.world.wires.break_links(own, other);
            }
        }
    }

    fn jump_clock(&mut self) {
        let wall = &self.world.machines()[self.victim].wall;
        wall.skew_ms.store(self.dice.below(600_000) as i64 - 300_000, Ordering::Relaxed);
    }

    /// Takes all the room for requests, as others' requests would; a node that ends meanwhile has room again.
    async fn crowd(&mut self) {
        let Some(node) = self.world.node(self.victim) else { return };
        let admission = node.admission().clone();
        drop(node);
        let Ok(mut connection) = admission.connect() else { return };
        connection.identify(Peer::Node).expect("nodes are not counted");
        let failed = self.world.failed_batches();
        for _ in 0..CROWD_ATTEMPTS {
            // Bytes alone are over the limit only when something else is under way.
            if let Ok(all) = connection.admit(admission.limits().node_bytes_max) {
                self.world.trouble(Trouble::Crowded, self.victim);
                self.last(3000).await;
                drop(all);
                if self.world.setup.crowded.is_none() {
                    self.world.trouble_ends(Trouble::Crowded, self.victim, Duration::ZERO);
                }
                break;
            }
            self.world.executor.sleep(Duration::from_millis(1)).await;
        }
        self.world.crowded(self.world.failed_batches().saturating_sub(failed));
    }

    async fn no_coordination(&mut self) {
        self.world.service.set_available(false);
        self.last(4000).await;
        self.world.service.set_available(true);
    }
}
