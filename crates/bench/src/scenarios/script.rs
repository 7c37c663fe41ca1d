//! What scenarios share that do something to nodes while clients work: when the measured part began, waiting for a
//! moment of it, asking nodes, and what clients saw in a part of the run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use client::{Client, ClientError, ClientOptions};
use parking_lot::Mutex;
use runtime::Ports;

use crate::compare::{Contestant, MeasureError};
use crate::driver::{DriveError, DriverOptions, Phase};
use crate::report::{RunReport, SecondReport, median};
use crate::target::native::NativeTarget;
use crate::target::{Session, Target, TargetOpenError};
use crate::workload::WorkloadOptions;

use super::ScenarioError;

/// How often a script looks whether it is time, or over.
pub(super) const POLL: Duration = Duration::from_millis(10);
/// A request that finds its coordinator dead has to go elsewhere, and still succeeds within this.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds of work before anything is measured.
pub(super) const WARM_UP: f64 = 3.0;

/// A target that notes when its sessions are open: a warm-up later the measured part begins.
pub(super) struct Opened {
    target: NativeTarget,
    at: Mutex<Option<Instant>>,
}

impl Opened {
    pub(super) fn new(target: NativeTarget) -> Self {
        Opened { target, at: Mutex::new(None) }
    }

    /// What was opened until now was for something else.
    pub(super) fn forget(&self) {
        *self.at.lock() = None;
    }
}

#[async_trait]
impl Target for Opened {
    async fn open(&self, sessions: usize) -> Result<Vec<Box<dyn Session>>, TargetOpenError> {
        let opened = self.target.open(sessions).await;
        *self.at.lock() = Some(Instant::now());
        opened
    }

    fn describe(&self) -> String {
        self.target.describe()
    }
}

/// The time of a script: seconds since the measured part of the run began.
pub(super) struct Script<'a> {
    from: Instant,
    over: &'a AtomicBool,
}

impl<'a> Script<'a> {
    /// Waits until the measured part begins; `over` says when the run has ended.
    pub(super) fn begin(opened: &Opened, over: &'a AtomicBool) -> Result<Self, ScenarioError> {
        let from = loop {
            if let Some(opened) = *opened.at.lock() {
                break opened + Duration::from_secs_f64(WARM_UP);
            }
            if over.load(Ordering::Relaxed) {
                return Err(Script::too_early());
            }
            thread::sleep(POLL);
        };
        let script = Script { from, over };
        script.wait_until(from)?;
        Ok(script)
    }

    /// Waits for a moment of the run.
    pub(super) fn wait_until(&self, until: Instant) -> Result<(), ScenarioError> {
        while Instant::now() < until && !self.over.load(Ordering::Relaxed) {
            thread::sleep(POLL.min(until.saturating_duration_since(Instant::now())));
        }
        if self.over.load(Ordering::Relaxed) { Err(Script::too_early()) } else { Ok(()) }
    }

    /// Waits until this many seconds after the beginning.
    pub(super) fn wait_until_second(&self, second: u64) -> Result<(), ScenarioError> {
        self.wait_until(self.from + Duration::from_secs(second))
    }

    /// Seconds since the beginning.
    pub(super) fn seconds(&self) -> f64 {
        Instant::now().saturating_duration_since(self.from).as_secs_f64()
    }

    fn too_early() -> ScenarioError {
        ScenarioError::Stuck { what: "the run ended before its script" }
    }
}

/// Measures a run, and carries out a script beside it, which is told when the run has ended.
pub(super) fn beside<T: Send>(
    driven: &Contestant,
    (workload, driver): (&WorkloadOptions, &DriverOptions),
    script: impl FnOnce(&AtomicBool) -> Result<T, ScenarioError> + Send,
) -> Result<(RunReport, T), ScenarioError> {
    let over = AtomicBool::new(false);
    let (run, found) = thread::scope(|scope| {
        let script = scope.spawn(|| script(&over));
        let run = driven.measure(workload, driver, Phase::Run);
        over.store(true, Ordering::Relaxed);
        (run, script.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    Ok((run?, found?))
}

/// Runs something that asks nodes.
pub(super) fn ask<T>(
    addresses: &[String],
    question: impl AsyncFnOnce(Client) -> Result<T, ClientError>,
) -> Result<T, ScenarioError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
    let ports = Ports::os().map_err(system)?;
    let asked = runtime.block_on(async {
        let options = ClientOptions { deadline: TIMEOUT, ..ClientOptions::default() };
        question(Client::connect(addresses, ports, options).await?).await
    });
    asked.map_err(|error| ScenarioError::NotAsked(error.to_string()))
}

pub(super) fn system(error: std::io::Error) -> ScenarioError {
    MeasureError::Drive(DriveError::System(error)).into()
}

/// Whether a second lies wholly between two moments.
pub(super) fn within(second: &SecondReport, from: f64, to: f64) -> bool {
    second.second as f64 >= from && (second.second + 1) as f64 <= to
}

/// What clients saw in a part of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PhaseFigures {
    /// Operations that went well, per second.
    pub(super) throughput: f64,
    /// The 99th percentile of the median second, in microseconds.
    pub(super) p99_us: f64,
}

impl PhaseFigures {
    pub(super) fn of<'a>(seconds: impl Iterator<Item = &'a SecondReport> + Clone) -> PhaseFigures {
        let count = seconds.clone().count();
        let operations: u64 = seconds.clone().map(|second| second.operations).sum();
        PhaseFigures {
            throughput: operations as f64 / count as f64,
            p99_us: if count == 0 { f64::NAN } else { median(seconds.map(|second| second.p99_us)) },
        }
    }
}

impl std::fmt::Display for PhaseFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} ({:.1} ms)", self.throughput, self.p99_us / 1e3)
    }
}
