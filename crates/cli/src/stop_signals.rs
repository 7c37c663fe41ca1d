//! How a process of ours is told to stop: by a signal, or by the end of its standard input.

use std::io::Read;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::CliError;

/// The option by which `dev` ties a node to itself.
pub(crate) const STOP_WITH_STDIN: &str = "--stop-with-stdin";

/// The kernel's word that a file would outgrow `ulimit -f`, on every architecture that Rust's Linux targets of tier 1
/// have. Left alone it ends the process.
const FILE_SIZE_EXCEEDED: i32 = 25;

/// Ctrl-C, SIGTERM and SIGHUP, heard from the moment this is made: make it before saying that anything runs.
///
/// A file that may not grow is a full disk from then on, not the end of the process: the write that met it is told.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// None under `nohup`, which asks that it means nothing.
    hang_up: Option<Signal>,
    _file_size_exceeded: Signal,
}

impl StopSignals {
    pub(crate) fn listen() -> Result<StopSignals, CliError> {
        let listen = |kind| signal(kind).map_err(CliError::io("cannot listen for signals"));
        Ok(StopSignals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: if ignores_hang_up() { None } else { Some(listen(SignalKind::hangup())?) },
            _file_size_exceeded: listen(SignalKind::from_raw(FILE_SIZE_EXCEEDED))?,
        })
    }

    /// Carries out what may take long, unless the process is told to stop first: then it is given up where it is, and
    /// there is `None`.
    pub(crate) async fn unless_requested<T>(
        &mut self,
        with_stdin: bool,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            () = self.requested(with_stdin) => None,
            done = work => Some(done),
        }
    }

    /// Completes on any, or at the end of standard input if that is wanted.
    pub(crate) async fn requested(&mut self, with_stdin: bool) {
        let stdin_ended = async {
            if !with_stdin {
                return std::future::pending().await;
            }
            let (ended, end) = tokio::sync::oneshot::channel();
            // A separate thread: a read that waits for ever must not keep the process from stopping.
            std::thread::spawn(move || {
                let mut stdin = std::io::stdin().lock();
                let mut buffer = [0; 64];
                while matches!(stdin.read(&mut buffer), Ok(read) if read > 0) {}
                // Nobody waits when the node stops for another reason.
                let _ = ended.send(());
            });
            // The thread ends only after it has sent.
            let _ = end.await;
        };
        let hung_up = async {
            match &mut self.hang_up {
                Some(hang_up) => drop(hang_up.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = hung_up => {}
            () = stdin_ended => {}
        }
    }
}

/// Whether this process was started so that SIGHUP means nothing to it, where the system tells.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The lowest bit is signal 1.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
