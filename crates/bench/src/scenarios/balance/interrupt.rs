//! Being told to stop: Ctrl-C and its like end the scenario at its next look, so that what it made is undone.
//!
//! Left alone they would end this process, and control groups would stay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

use super::super::ScenarioError;
use super::super::script::system;

/// Whether the benchmark was told to stop.
#[derive(Clone, Debug, Default)]
pub(in crate::scenarios) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on, until the process ends.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(in crate::scenarios) fn listen() -> Result<Interrupt, ScenarioError> {
        let heard = Interrupt::default();
        let tell = heard.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let signals =
            runtime.block_on(async { kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>() });
        let mut signals = signals.map_err(system)?;
        let listening = thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            runtime.block_on(async {
                let each = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
                futures_util::future::select_all(each).await;
            });
            tell.0.store(true, Ordering::Relaxed);
        });
        listening.map(|_| heard).map_err(system)
    }

    /// Goes on, unless it was told to stop.
    ///
    /// # Errors
    /// When it was.
    pub(in crate::scenarios) fn check(&self) -> Result<(), ScenarioError> {
        if self.0.load(Ordering::Relaxed) { Err(ScenarioError::Interrupted) } else { Ok(()) }
    }
}
