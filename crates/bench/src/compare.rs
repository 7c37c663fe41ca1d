//! Measuring one system, or two against each other in the same run.
//!
//! Both servers are up all the time and both are loaded before anything is measured; then their runs alternate
//! (A B A B …), each pair with its own seed and the same operations for both. The idle one costs nothing.

use std::io::Write;
use std::sync::Arc;

use crate::driver::{DriveError, DriverOptions, Job, Phase, drive};
use crate::peers::{Peer, PeerError, PeerOptions};
use crate::processes::Watched;
use crate::report::{Heading, RunReport};
use crate::target::Target;
use crate::workload::{Workload, WorkloadError, WorkloadOptions};

/// Why a measurement did not take place.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The workload makes no sense.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The target could not be driven.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A server could not be started.
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// A system under measurement: where it is and which processes it consists of.
pub struct Contestant {
    /// What reports call it.
    pub label: String,
    /// Where it is.
    pub target: Arc<dyn Target>,
    /// What it says it is.
    pub server: Option<String>,
    /// Its processes, when they run on this machine.
    pub watched: Vec<Watched>,
    /// The server itself, when it was started for the occasion.
    pub peer: Option<Peer>,
}

impl Contestant {
    /// Starts a server and points at its first RESP address.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(label: &str, options: &PeerOptions) -> Result<Self, MeasureError> {
        let peer = Peer::start(label, options)?;
        Ok(Contestant {
            label: label.to_owned(),
            target: Arc::new(peer.resp_target()),
            server: peer.version.clone(),
            watched: peer.watched(),
            peer: Some(peer),
        })
    }

    /// A system that runs already, whose processes here are `watched`.
    pub fn running(label: &str, target: Arc<dyn Target>, watched: Vec<Watched>) -> Self {
        Contestant { label: label.to_owned(), target, server: None, watched, peer: None }
    }

    /// The same system, reached in another way.
    pub fn through(&self, label: &str, target: Arc<dyn Target>) -> Self {
        let (server, watched) = (self.server.clone(), self.watched.clone());
        Contestant { label: label.to_owned(), target, server, watched, peer: None }
    }

    /// Measures one phase. Blocks; must not be called from within an async runtime.
    ///
    /// # Errors
    /// When the options make no sense or the target cannot be reached. What goes wrong during the run is counted
    /// in the report.
    pub fn measure(
        &self,
        workload: &WorkloadOptions,
        driver: &DriverOptions,
        phase: Phase,
    ) -> Result<RunReport, MeasureError> {
        let expected = driver.expected_operations(workload.records);
        let job = Job {
            target: Arc::clone(&self.target),
            workload: Workload::new(workload.clone(), expected)?,
            options: driver.clone(),
            phase,
            watched: self.watched.clone(),
        };
        if !driver.quiet {
            let _ = writeln!(std::io::stderr(), "{}: {}", self.label, workload.describe());
        }
        let measurement = drive(&job)?;
        let heading = Heading {
            label: &self.label,
            target: self.target.describe(),
            server: self.server.clone(),
            phase,
            workload,
            driver,
        };
        Ok(RunReport::new(heading, measurement))
    }

    /// Loads every record, as fast as many connections with a deep pipeline can.
    ///
    /// # Errors
    /// As [`Contestant::measure`].
    pub fn load(
        &self,
        workload: &WorkloadOptions,
        driver: &DriverOptions,
    ) -> Result<RunReport, MeasureError> {
        self.measure(workload, driver, Phase::Load)
    }
}

/// Runs the same workload on both, alternating, `pairs` times.
///
/// # Errors
/// As [`Contestant::measure`].
pub fn alternate(
    a: &Contestant,
    b: &Contestant,
    workload: &WorkloadOptions,
    driver: &DriverOptions,
    pairs: usize,
) -> Result<Vec<(RunReport, RunReport)>, MeasureError> {
    (0..pairs as u64)
        .map(|pair| {
            let driver = DriverOptions { seed: driver.seed.wrapping_add(pair), ..driver.clone() };
            let first = a.measure(workload, &driver, Phase::Run)?;
            let second = b.measure(workload, &driver, Phase::Run)?;
            Ok((first, second))
        })
        .collect()
}
