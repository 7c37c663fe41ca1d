//! One simulated machine: what outlives the processes of its node, and the process that runs there now.
//!
//! Must never: start or end a process; `cluster` does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use coordination::memory::MemorySession;
use model::NodeId;
use node::Node;
use parking_lot::Mutex;
use runtime::disk::simulated::SimulatedDisk;
use storage::{Durability, LogOptions};

use crate::dice::Dice;
use crate::executor::{Executor, ProcessId, Processor, WallClock};
use crate::host::Host;
use crate::swarm::Setup;

/// One simulated machine.
pub struct Machine {
    pub(crate) id: NodeId,
    pub(crate) disk: SimulatedDisk,
    /// How long a sync takes, in microseconds.
    pub sync_us: Arc<AtomicU64>,
    /// How wrong its clock is.
    pub wall: Arc<WallClock>,
    /// What its node would have run, where that is played.
    pub processor: Option<Arc<Processor>>,
    /// Whether nothing starts there.
    pub(crate) dead: AtomicBool,
    pub(crate) life: Mutex<Life>,
}

/// One life of its process: from its start to its end.
#[derive(Default)]
pub(crate) struct Life {
    pub(crate) process: Option<ProcessId>,
    /// Its node, once that runs.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) session: Option<Arc<MemorySession>>,
    /// Planted: an identity file of before.
    pub(crate) identity: Option<Vec<u8>>,
}

impl Machine {
    /// Those of a run, without a process.
    pub(crate) fn of_all(setup: &Setup, executor: &Arc<Executor>) -> Vec<Machine> {
        let mut dice = Dice::apart(setup.seed, 4);
        let machine = |(id, processor)| Machine::new(NodeId(id), processor, executor, &mut dice);
        (1..=setup.nodes).zip(setup.processors(executor)).map(machine).collect()
    }

    fn new(
        id: NodeId,
        processor: Option<Arc<Processor>>,
        executor: &Arc<Executor>,
        dice: &mut Dice,
    ) -> Machine {
        let disk = SimulatedDisk::new(dice.roll());
        let sync_us = Arc::new(AtomicU64::new(dice.between(50, 3000)));
        let (clock, duration) = (executor.clone(), sync_us.clone());
        disk.set_sync_delay(Some(Arc::new(move |_path: &str| {
            Box::pin(clock.sleep(Duration::from_micros(duration.load(Ordering::Relaxed))))
        })));
        // Half of the machines have everything in memory.
        disk.set_cold((dice.below(2) == 0).then(|| dice.between(2, 100) as usize));
        let wall = Arc::new(WallClock::default());
        wall.skew_ms.store(dice.below(10_000) as i64 - 5_000, Ordering::Relaxed);
        wall.drift_ppm.store(dice.below(400) as i64 - 200, Ordering::Relaxed);
        let (dead, life) = (AtomicBool::new(false), Mutex::default());
        Machine { id, disk, sync_us, wall, processor, dead, life }
    }

    /// Its disk, for faults.
    pub fn disk(&self) -> &SimulatedDisk {
        &self.disk
    }

    /// Its host on the network.
    pub fn host(&self) -> Host {
        Host(self.id.0)
    }

    /// Its node's id.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Whether a process runs there, started or starting.
    pub fn is_running(&self) -> bool {
        self.life.lock().process.is_some()
    }
}

/// How log engines use its disk. Small, so that a short run sees segments end, snapshots and compaction.
pub(crate) fn log_options(durability: Durability) -> LogOptions {
    LogOptions { durability, segment_bytes: 4 << 10, reserve_bytes: 16 << 10, snapshot_bytes: 16 << 10 }
}
