//! How a process of ours is told to stop: by a signal, or by the end of its standard input.

use std::io::Read;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::CliError;

/// The option by which `dev` ties a node to itself.
pub(crate) const STOP_WITH_STDIN: &str = "--stop-with-stdin";

/// The kernel's word that a file would outgrow `ulimit -f`, on every architecture that Rust's Linux targets of tier 1
/// have. Left alone it ends the process.
const FILE_SIZE_EXCEEDED: i32 = 25;

/// Ctrl-C and SIGTERM, heard from the moment this is made: make it before saying that anything runs.
///
/// A file that may not grow is a full disk from then on, not the end of the process: the write that met it is told.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    _file_size_exceeded: Signal,
}

impl StopSignals {
    pub(crate) fn listen() -> Result<StopSignals, CliError> {
        let listen = |kind| signal(kind).map_err(CliError::io("cannot listen for signals"));
        Ok(StopSignals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
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

    /// Completes on either, or at the end of standard input if that is wanted.
    pub(crate) async fn requested(&mut self, with_stdin: bool) {
        let stdin_ended = async {
            if !with_stdin {
                return std::future::pending().await;
            }
            let (ended, end) = tokio::sync::oneshot::channel();
            // A thread of its own: a read that waits for ever must not keep the process from stopping.
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
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = stdin_ended => {}
        }
    }
}
