//! Harm: which fault strikes whom and when, drawn before the run begins and bounded by the run's budget.
//!
//! Must never: do harm after the span of a run; healing is part of every run, because "never lost" is judged after it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use runtime::disk::simulated::{Fault as DiskFault, Operation};

use crate::cluster::World;
use crate::dice::Dice;
use crate::network::Host;
use crate::swarm::{Fault, Losses};

/// A sync of a slow disk, in microseconds.
const SLOW_SYNC_US: u64 = 300_000;

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
        let harm = Harm { world: world.clone(), victim, dice: Dice::new(dice.roll()), end };
        world.tell(format!("{fault:?} strikes {}", world.machines()[victim].id()));
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
    world.service.set_available(true);
    for (position, machine) in world.machines().iter().enumerate() {
        machine.disk().clear_faults();
        machine.disk().set_capacity(None);
        machine.sync_us.store(500, Ordering::Relaxed);
        // Whoever met a failed sync or a full disk serves no more until it is started again.
        let restarts = world.setup.faults.contains(&Fault::FailingSync);
        if restarts && machine.is_running() {
            world.kill(position, Duration::ZERO, dice.millis(0, 500));
        }
        world.start(position);
    }
}

struct Harm {
    world: Arc<World>,
    victim: usize,
    dice: Dice,
    end: model::Moment,
}

impl Harm {
    async fn strike(mut self, fault: Fault) {
        match fault {
            Fault::Kill | Fault::PowerCut | Fault::CleanStop => self.end_process(fault).await,
            Fault::FailingSync => self.failing_sync().await,
            Fault::FlippedBits => self.flip_bits(),
            Fault::SlowDisk => self.slow_disk().await,
            Fault::FullDisk => self.full_disk().await,
            Fault::Isolate | Fault::OneWay => self.partition(fault).await,
            Fault::SlowNode => self.slow_node().await,
            Fault::BreakLinks => self.break_links(),
            Fault::ClockJump => self.jump_clock(),
            Fault::NewGeneration => self.world.next_generation().await,
            Fault::NoCoordination => self.no_coordination().await,
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

    async fn failing_sync(&mut self) {
        let machine = &self.world.machines()[self.victim];
        machine.disk().inject(DiskFault::next(Operation::Sync, self.dice.between(1, 3)));
        self.last(2000).await;
        let fault = *self.dice.pick(&[Fault::Kill, Fault::PowerCut]);
        self.end_process(fault).await;
        self.world.machines()[self.victim].disk().clear_faults();
    }

    async fn slow_disk(&mut self) {
        let slow = self.dice.between(5_000, SLOW_SYNC_US);
        let sync_us = self.world.machines()[self.victim].sync_us.clone();
        let before = sync_us.swap(slow, Ordering::Relaxed);
        self.last(3000).await;
        sync_us.store(before.min(3000), Ordering::Relaxed);
    }

    async fn full_disk(&mut self) {
        let disk = self.world.machines()[self.victim].disk().clone();
        disk.set_capacity(Some(disk.used_bytes() + self.dice.between(0, 20_000)));
        self.last(3000).await;
        disk.set_capacity(None);
    }

    async fn partition(&mut self, fault: Fault) {
        let own = self.world.machines()[self.victim].host();
        // Hosts above 100 are clients: a node may be cut off from them as well.
        let hosts = (1..=self.world.setup.nodes).chain(101..=100 + self.world.setup.clients).map(Host);
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
        for other in (1..=self.world.setup.nodes).chain(101..=100 + self.world.setup.clients) {
            if self.dice.chance(500) {
                self.world.wires.break_links(own, Host(other));
            }
        }
    }

    fn jump_clock(&mut self) {
        let wall = &self.world.machines()[self.victim].wall;
        wall.skew_ms.store(self.dice.below(600_000) as i64 - 300_000, Ordering::Relaxed);
    }

    async fn no_coordination(&mut self) {
        self.world.service.set_available(false);
        self.last(4000).await;
        self.world.service.set_available(true);
    }
}
