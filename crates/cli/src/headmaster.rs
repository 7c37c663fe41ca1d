//! `tontine headmaster`: the process that changes a cluster's documents, and how a node's process starts one beside
//! itself.
//!
//! Must never: end a node. Its own end is noticed, and another one is started after a pause.

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ::coordination::address::ServicePlace;
use control::election::Candidate;
use control::headmaster::tenure::{TenureEnd, serve};
use runtime::Ports;
use runtime::network::tls::Tls;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::context::{CliContext, block_on};
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::logging::LogSettings;
use crate::stop_signals::{STOP_WITH_STDIN, StopSignals};
use crate::tls_settings::{CertificateArguments, network_of_node};

/// Pause before a session is opened again, or a process is started again.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest wait for a process beside a node to stop.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// Runs a headmaster until Ctrl-C.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example: a headmaster for a cluster whose nodes run without one
  tontine headmaster --coordination zookeeper://zk1:2181,zk2:2181/shop

`tontine dev` and `tontine serve` start one beside themselves. Of several, one holds the office; the others wait.
It listens nowhere. While none runs, requests are served as ever, and only plans and orders wait.")]
pub struct HeadmasterArguments {
    /// Which coordination service.
    #[command(flatten)]
    pub service: CoordinationArguments,
    /// Log to this file instead of standard error. The file is rotated at 16 MiB, and four older ones are kept.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// What it writes to its log.
    #[command(flatten)]
    pub log: LogSettings,
    /// The certificate by which it proves to nodes what it is.
    #[command(flatten)]
    pub certificate: CertificateArguments,
    /// Stop when the standard input ends, as for a child whose parent is gone.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

/// Runs it until it is told to stop.
pub(crate) fn run(shared: &CliContext, arguments: HeadmasterArguments) -> Result<ExitCode, CliError> {
    let tls = arguments.certificate.read(shared.tls_authority.as_deref())?;
    block_on(async move {
        let mut signals = StopSignals::listen()?;
        // That there is such a service at all is settled now; what becomes of it later is waited for.
        let session = arguments.service.existing().await?;
        let _ = session.close().await;
        let place = arguments.service.place()?;
        tokio::select! {
            biased;
            () = signals.requested(arguments.stop_with_stdin) => Ok(ExitCode::SUCCESS),
            error = stand(place, tls) => Err(error),
        }
    })
}

/// Is a candidate for the office, with one session after another.
async fn stand(mut place: ServicePlace, tls: Option<Arc<Tls>>) -> CliError {
    let mut ports = match Ports::os().map_err(CliError::io("cannot start the background thread")) {
        Ok(ports) => ports,
        Err(error) => return error,
    };
    ports.network = Arc::new(network_of_node(tls.as_ref()));
    let candidate = Candidate::new(format!("process {} of {}", std::process::id(), host()));
    loop {
        match crate::coordination::open(&place, false).await {
            Ok(session) => {
                let end = serve(session.clone(), &ports, &candidate).await;
                let _ = session.close().await;
                if let TenureEnd::Moved(this) = end {
                    tracing::info!(to = this.to, "documents have moved");
                    match place.at(&this.to) {
                        Ok(there) => {
                            place = there;
                            continue;
                        }
                        Err(error) => return CliError::Other(error.to_string()),
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "coordination service not opened"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The name of this machine, for people.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "this machine".to_owned() } else { name.trim().to_owned() }
}

/// A process that runs beside the nodes of this one: a headmaster, or a controller of fleets.
pub(crate) struct Beside {
    /// None once it was told to end.
    running: Option<(oneshot::Sender<()>, tokio::task::JoinHandle<()>)>,
}

impl Beside {
    /// Starts a headmaster. That it ends, or does not start, is said in the log, and tried again.
    pub(crate) fn start(
        service: &CoordinationArguments,
        certificate: Vec<String>,
        log: LogSettings,
        log_file: Option<PathBuf>,
    ) -> Beside {
        let mut words = vec!["headmaster".to_owned()];
        if let Some(address) = &service.coordination {
            words.push(format!("--coordination={address}"));
        }
        if let Some(file) = &service.coordination_credentials {
            words.push(format!("--coordination-credentials={}", file.display()));
        }
        words.push(format!("--session-timeout={}", crate::durations::shown(service.session_timeout)));
        words.extend(certificate);
        words.extend(log_file.map(|file| format!("--log-file={}", file.display())));
        words.extend(log.as_arguments());
        words.push(STOP_WITH_STDIN.to_owned());
        Beside::keep("headmaster", words)
    }

    /// Starts this program with these words, and once more whenever it ends.
    pub(crate) fn keep(what: &'static str, words: Vec<String>) -> Beside {
        let (stop, stopped) = oneshot::channel();
        Beside { running: Some((stop, tokio::spawn(keep_running(what, words, stopped)))) }
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) {
        self.end().await;
    }

    /// Ends it, if it runs.
    pub(crate) async fn end(&mut self) {
        let Some((stop, task)) = self.running.take() else { return };
        // It has ended if nobody listens.
        let _ = stop.send(());
        let _ = task.await;
    }
}

async fn keep_running(what: &'static str, words: Vec<String>, mut stopped: oneshot::Receiver<()>) {
    loop {
        match begin(&words) {
            Ok(mut child) => {
                let stdin = child.stdin.take();
                tokio::select! {
                    biased;
                    _ = &mut stopped => {
                        drop(stdin);
                        if tokio::time::timeout(STOP_TIME_MAX, child.wait()).await.is_err() {
                            // It may have ended this very moment.
                            let _ = child.kill().await;
                        }
                        return;
                    }
                    ended = child.wait() => match ended {
                        Ok(status) => tracing::warn!(what, %status, "process beside the nodes ended, another one is started"),
                        Err(error) => tracing::warn!(what, %error, "process beside the nodes not watched"),
                    },
                }
            }
            Err(error) => tracing::warn!(what, %error, "process beside the nodes not started"),
        }
        tokio::select! {
            biased;
            _ = &mut stopped => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

fn begin(words: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::null());
    // Ctrl-C at the terminal reaches the whole group; it shall wait for our word.
    command.process_group(0);
    command.spawn()
}
