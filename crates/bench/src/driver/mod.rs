//! The driver: keeps a target busy, closed loop or open loop, and measures.
//!
//! ```text
//!   main thread: start line ─ warm-up ─ snapshot ─ measured part (progress) ─ snapshot ─ merge
//!   client threads: one single-threaded runtime each ─ lanes (one session each) ─ one recorder
//! ```
//!
//! Lanes of a thread never contend with those of another; what they saw is merged at the end.
//! **Never** count what was intended during the warm-up, and never leave out what was slow.

mod lane;
mod pacer;
mod progress;
mod rates;
mod recorder;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::generators::Rng;
use crate::processes::{Context, Snapshot, Usage, Watched};
use crate::target::{Session, Target, TargetOpenError};
use crate::workload::{OperationStream, Workload};

use lane::{Lane, LaneLimits, LaneShared};
use pacer::{ArrivalRate, DueQueue, Schedule};
use progress::RunProgress;

pub use pacer::Arrivals;
pub use rates::{BadRates, Rates};
pub use recorder::{KindRecord, OperationVerdict, Recorder, Second, Tally, Times, latencies};

/// How long the main thread naps between looks at its clients.
const POLL: Duration = Duration::from_millis(10);
/// The most sessions: each costs two file descriptors on one machine.
const CONNECTIONS_MAX: usize = 10_000;

/// How hard a target is driven, and for how long.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct DriverOptions {
    /// Sessions kept busy at once.
    #[arg(long, short = 'c', default_value_t = 16)]
    pub connections: usize,
    /// Operations under way at once in each session: the pipeline.
    #[arg(long, short = 'P', default_value_t = 1)]
    pub depth: usize,
    /// Client threads; sessions are shared out among them.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Operations per second to aim at (an open loop); without it, as fast as possible (a closed loop).
    #[arg(long, value_name = "PER_SECOND")]
    pub rate: Option<f64>,
    /// The same with a rate that changes: `sinusoid:min=500,max=3000,period=600`, `steps:500x60,2000x120` (a rate and its
    /// seconds) or `bursts:base=500,peak=10000,every=600,for=60`. Times are in seconds.
    #[arg(long, value_name = "SCHEDULE", conflicts_with = "rate")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Rates>,
    /// How the arrivals of an open loop are spread.
    #[arg(long, value_enum, default_value = "poisson")]
    pub arrivals: Arrivals,
    /// Seconds of work before anything is measured.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    pub warm_up: f64,
    /// Seconds to measure; 10 when neither this nor --operations is given.
    #[arg(long, short = 'd', value_name = "SECONDS")]
    pub duration: Option<f64>,
    /// Operations to measure.
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub operations: Option<u64>,
    /// Seed of every random choice.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Show no progress.
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// How long an open loop goes on after its end with operations that were due before it. A stall near the end is
    /// then measured like any other; a target that has fallen behind by more than this has not kept up with the rate.
    /// Always [`DRAIN_TIME_MAX`] but for tests, which must not depend on how fast the machine is.
    #[arg(skip = DRAIN_TIME_MAX)]
    pub drain_time_max: Duration,
}

impl Default for DriverOptions {
    fn default() -> Self {
        DriverOptions {
            connections: 16,
            depth: 1,
            threads: 1,
            rate: None,
            schedule: None,
            arrivals: Arrivals::Poisson,
            warm_up: 2.0,
            duration: None,
            operations: None,
            seed: 1,
            quiet: false,
            drain_time_max: DRAIN_TIME_MAX,
        }
    }
}

/// Longest time that a run goes on after its end with what was due before it.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// Seconds measured when nothing bounds a run.
const DURATION_DEFAULT: f64 = 10.0;

impl DriverOptions {
    /// As fast as possible for this many seconds: warm-up, and what is measured.
    pub fn closed(connections: usize, depth: usize, (warm_up, duration): (f64, f64)) -> DriverOptions {
        DriverOptions { connections, depth, warm_up, duration: Some(duration), ..DriverOptions::default() }
    }

    /// The measured duration in force; `None` when only a number of operations bounds the run.
    pub fn bounded_duration(&self) -> Option<Duration> {
        let seconds = match (self.duration, self.operations) {
            (None, None) => Some(DURATION_DEFAULT),
            (given, _) => given,
        };
        seconds.map(Duration::from_secs_f64)
    }

    /// How many operations to expect, for sizing the key space: known, computed, or (a closed loop bounded by
    /// time) guessed as one for each record.
    pub fn expected_operations(&self, records: u64) -> u64 {
        match (self.operations, self.rates(), self.bounded_duration()) {
            (Some(operations), _, _) => operations,
            (None, Some(rates), Some(duration)) => {
                let seconds = duration.as_secs_f64();
                (rates.mean(seconds) * seconds + rates.at(0.0) * self.warm_up) as u64
            }
            _ => records,
        }
    }

    /// The rate to aim at, if the loop is open.
    pub fn rates(&self) -> Option<Rates> {
        self.schedule.clone().or(self.rate.map(Rates::Constant))
    }

    fn validate(&self) -> Result<(), DriveError> {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        let counts = (1..=CONNECTIONS_MAX).contains(&self.connections)
            && self.depth >= 1
            && (1..=self.connections).contains(&self.threads);
        let times = self.warm_up.is_finite()
            && (0.0..1e9).contains(&self.warm_up)
            && self.duration.is_none_or(|given| positive(given) && given < 1e9)
            && self.rate.is_none_or(positive)
            && self.operations != Some(0);
        match (counts, times) {
            (false, _) => Err(DriveError::BadCounts { connections_max: CONNECTIONS_MAX }),
            (_, false) => Err(DriveError::BadTimes),
            _ => Ok(()),
        }
    }
}

/// Which half of a benchmark runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Every record is written once.
    Load,
    /// The workload's mix of operations.
    Run,
}

/// Why a target could not be driven.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// No session.
    #[error(transparent)]
    Open(#[from] TargetOpenError),
    /// Counts out of range.
    #[error(
        "need 1 to {connections_max} connections, a depth of at least 1, and no more threads than connections"
    )]
    BadCounts {
        /// The limit.
        connections_max: usize,
    },
    /// Times, rates or operation counts out of range.
    #[error("durations, rates and operation counts must be positive and finite")]
    BadTimes,
    /// The system refused a thread, a runtime or a timer.
    #[error("the system refused a resource: {0}")]
    System(#[from] io::Error),
}

/// What is to be done, to whom.
#[derive(Clone)]
pub struct Job {
    /// Who is driven.
    pub target: Arc<dyn Target>,
    /// With what.
    pub workload: Arc<Workload>,
    /// How hard.
    pub options: DriverOptions,
    /// Loading or running.
    pub phase: Phase,
    /// The server processes whose cost is measured; the client is added by the driver.
    pub watched: Vec<Watched>,
}

/// Everything seen in the measured part of one phase.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// What the lanes saw, merged.
    pub recorder: Recorder,
    /// What the server processes used, then what the client used (the last one).
    pub usage: Usage,
    /// Where it took place.
    pub context: Context,
}

/// Drives one phase to its end.
///
/// Blocks the calling thread, and must not be called from within an async runtime: clients have their own.
///
/// # Errors
/// When the options make no sense, a session cannot be opened, or the system refuses a thread or a timer.
/// Once the run has begun, errors are counted, never returned.
pub fn drive(job: &Job) -> Result<Measurement, DriveError> {
    job.options.validate()?;
    let context = Context::here();
    let start_line = Arc::new(StartLine::new(job.options.threads));
    let completed = Arc::new(AtomicU64::new(0));
    let stream = OperationStream::new(Arc::clone(&job.workload), job.options.seed);
    let clients = (0..job.options.threads)
        .map(|number| {
            let client = ClientThread {
                job: job.clone(),
                number,
                stream: stream.clone(),
                start_line: Arc::clone(&start_line),
                completed: Arc::clone(&completed),
            };
            thread::Builder::new().name(format!("bench-{number}")).spawn(move || client.run())
        })
        .collect::<Result<Vec<_>, io::Error>>()?;

    let mut watched = job.watched.clone();
    watched.push(Watched::client());
    start_line.ready.wait();
    let limits = start_line.limits(job);
    start_line.go.wait();
    thread::sleep(limits.measured_from.saturating_duration_since(Instant::now()));
    let before = Snapshot::take(&watched);
    watch(job, &clients, &completed);
    let usage = before.until(&Snapshot::take(&watched));
    let recorder = gather(clients)?;
    Ok(Measurement { recorder, usage, context })
}

/// Shows progress until every client is done.
fn watch(job: &Job, clients: &[JoinHandle<Result<Recorder, DriveError>>], completed: &AtomicU64) {
    let planned = match job.phase {
        Phase::Load => Some(job.workload.options().records),
        Phase::Run => job.options.operations,
    };
    let baseline = if job.phase == Phase::Load { 0 } else { completed.load(Ordering::Relaxed) };
    let duration = if job.phase == Phase::Load { None } else { job.options.bounded_duration() };
    let mut progress = RunProgress::new(job.phase, planned, duration, job.options.quiet);
    while !clients.iter().all(JoinHandle::is_finished) {
        progress.show(completed.load(Ordering::Relaxed) - baseline);
        thread::sleep(POLL);
    }
    progress.finish(completed.load(Ordering::Relaxed) - baseline);
}

fn gather(clients: Vec<JoinHandle<Result<Recorder, DriveError>>>) -> Result<Recorder, DriveError> {
    let mut merged: Option<Recorder> = None;
    for client in clients {
        let seen = match client.join() {
            Ok(seen) => seen?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match &mut merged {
            Some(all) => all.merge(seen),
            None => merged = Some(seen),
        }
    }
    Ok(merged.expect("validated: there is at least one thread"))
}

/// Where clients wait until all have their sessions, so that connecting is no part of any figure.
struct StartLine {
    ready: Barrier,
    go: Barrier,
    limits: OnceLock<Arc<LaneLimits>>,
}

impl StartLine {
    fn new(threads: usize) -> Self {
        StartLine { ready: Barrier::new(threads + 1), go: Barrier::new(threads + 1), limits: OnceLock::new() }
    }

    /// Fixes beginning and end from now; called by the main thread between the two barriers.
    fn limits(&self, job: &Job) -> Arc<LaneLimits> {
        let warm_up = match job.phase {
            Phase::Load => Duration::ZERO,
            Phase::Run => Duration::from_secs_f64(job.options.warm_up),
        };
        let measured_from = Instant::now() + warm_up;
        let drain_time_max = job.options.drain_time_max;
        let limits = match job.phase {
            Phase::Load => {
                LaneLimits { measured_from, end: None, drain_time_max, remaining: AtomicU64::new(u64::MAX) }
            }
            Phase::Run => LaneLimits {
                measured_from,
                drain_time_max,
                end: job.options.bounded_duration().map(|duration| measured_from + duration),
                remaining: AtomicU64::new(job.options.operations.unwrap_or(u64::MAX)),
            },
        };
        Arc::clone(self.limits.get_or_init(|| Arc::new(limits)))
    }
}

struct ClientThread {
    job: Job,
    number: usize,
    stream: OperationStream,
    start_line: Arc<StartLine>,
    completed: Arc<AtomicU64>,
}

impl ClientThread {
    fn run(self) -> Result<Recorder, DriveError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let opened = match &runtime {
            Ok(runtime) => runtime.block_on(self.open()).map_err(DriveError::from),
            Err(_) => Ok(Vec::new()),
        };
        // Whoever failed still has to pass both barriers, or everybody would wait for ever.
        self.start_line.ready.wait();
        self.start_line.go.wait();
        let sessions = opened?;
        runtime?.block_on(self.work(sessions))
    }

    async fn open(&self) -> Result<Vec<Box<dyn Session>>, TargetOpenError> {
        self.job.target.open(self.lanes().count()).await
    }

    /// The numbers of this thread's lanes.
    fn lanes(&self) -> impl Iterator<Item = usize> + use<> {
        (self.number..self.job.options.connections).step_by(self.job.options.threads)
    }

    async fn work(self, sessions: Vec<Box<dyn Session>>) -> Result<Recorder, DriveError> {
        let limits =
            Arc::clone(self.start_line.limits.get().expect("the main thread set the limits before go"));
        let options = &self.job.options;
        let rates = options.rates().filter(|_| self.job.phase == Phase::Run);
        let shared = Arc::new(LaneShared {
            workload: Arc::clone(&self.job.workload),
            recorder: Mutex::new(Recorder::new(limits.measured_from, rates.is_some())),
            limits: Arc::clone(&limits),
            completed: Arc::clone(&self.completed),
            queue: rates.as_ref().map(|_| DueQueue::default()),
            loading: self.job.phase == Phase::Load,
            depth: options.depth,
        });
        let mut working = tokio::task::JoinSet::new();
        for (lane, session) in self.lanes().zip(sessions) {
            let stream = self.stream.for_lane(options.seed, lane as u64);
            working.spawn(Lane::new(Arc::clone(&shared), stream, session).work());
        }
        if let (Some(rates), Some(queue)) = (rates, &shared.queue) {
            // Its own dice, far from those of the lanes.
            let rng = Rng::for_lane(options.seed, u64::MAX - self.number as u64);
            let pace = ArrivalRate { rates, share: 1.0 / options.threads as f64, from: limits.measured_from };
            let schedule = Schedule::new(options.arrivals, pace, Instant::now(), rng);
            pacer::pace(queue, schedule, |arrival| limits.grant(1, arrival) == 1).await?;
        }
        while let Some(lane) = working.join_next().await {
            lane.map_err(io::Error::other)?;
        }
        let shared = Arc::into_inner(shared).expect("all lanes are done and gone");
        let mut recorder = shared.recorder.into_inner().expect("no holder of this lock can panic");
        recorder.tally.unstarted = shared.queue.as_ref().map_or(0, DueQueue::abandon);
        Ok(recorder)
    }
}
