//! `tontine elastic run`: the controller of fleets, in its own process.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ::coordination::CoordinationService;
use ::coordination::address::ServicePlace;
use ::coordination::documents::elasticity::office_path;
use ::coordination::documents::office;
use control::elasticity::adapters::{AdaptersFile, ChildAdapters};
use control::elasticity::tenure::{OfficeEnd, serve};
use control::election::Candidate;
use control::lease;
use runtime::network::fetch::TcpFetcher;
use runtime::programs::os::OsPrograms;
use runtime::{Ports, Programs};

use crate::context::block_on;
use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::logging::LogSettings;
use crate::settings_file;
use crate::stop_signals::StopSignals;

/// Pause before a session is opened again.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a service may take to close a session. One that is away ends it by itself later.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);

/// Where a controller looks for its file of adapters, if it is told nothing else.
pub(super) const ADAPTERS: &str = "/etc/tontine/adapters.toml";

/// Runs a controller until Ctrl-C.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  tontine elastic run --coordination dir:elastic --adapters adapters.toml

Of several, one is elected, and the others wait. When it ends, no machine ends, and what was begun goes on with the next
one.")]
pub struct RunArguments {
    /// Where fleets are kept.
    #[command(flatten)]
    pub service: CoordinationArguments,
    /// The file that says how each adapter is started.
    #[arg(long, default_value = ADAPTERS, value_name = "FILE")]
    pub adapters: PathBuf,
    /// Log to this file instead of standard error. The file is rotated at 16 MiB, and four older ones are kept.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// What it writes to its log.
    #[command(flatten)]
    pub log: LogSettings,
    /// Stop when the standard input ends, as for a child whose parent is gone.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

/// Runs it until it is told to stop.
pub(super) fn run(arguments: RunArguments) -> Result<ExitCode, CliError> {
    let file = read_adapters(&arguments.adapters)?;
    block_on(async move {
        let mut signals = StopSignals::listen()?;
        let place = arguments.service.place_to_go_by()?;
        // That there can be such a service at all is settled now; what becomes of it later is waited for.
        let session = crate::coordination::open(&place, true).await?;
        let _ = session.close().await;
        let ports = Ports::os().map_err(CliError::io("cannot start the background thread"))?;
        let programs: Arc<dyn Programs> = Arc::new(OsPrograms);
        let shown = arguments.adapters.display().to_string();
        let adapters = Arc::new(ChildAdapters::new(shown, &file, &programs, &ports.clock));
        let stop = signals.requested(arguments.stop_with_stdin);
        // Adapters end with their input; this process waits for none of them.
        match stand(place, &ports, adapters, std::pin::pin!(stop)).await {
            Some(error) => Err(error),
            None => Ok(ExitCode::SUCCESS),
        }
    })
}

/// Reads the file of adapters.
pub(super) fn read_adapters(path: &std::path::Path) -> Result<AdaptersFile, CliError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        CliError::Usage(format!(
            "cannot read the adapters in {}: {error}; name the file with --adapters",
            path.display()
        ))
    })?;
    let wrong = |why: String| CliError::Usage(format!("{}: {why}", path.display()));
    let file: AdaptersFile = settings_file::parse(&text).map_err(wrong)?;
    file.check().map_err(wrong)?;
    Ok(file)
}

/// Says whom this process waits for, if another one controls the fleets.
async fn tell_leader(session: &dyn CoordinationService) {
    if let Ok(Some((_, leader))) = office::holder(session, &office_path()).await {
        say!(
            "{} controls the fleets; this process waits, and goes on when that one ends or does not answer for {} s",
            leader.process,
            (lease::RENEWAL * lease::LOOKS).as_secs()
        );
    }
}

/// Is a candidate for the office, with one session after another, until `stop`; why it is one no longer, if not for that.
async fn stand(
    mut place: ServicePlace,
    ports: &Ports,
    adapters: Arc<ChildAdapters>,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> Option<CliError> {
    let fetcher = Arc::new(TcpFetcher);
    let candidate =
        Candidate::new(format!("process {} of {}", std::process::id(), crate::headmaster::host()));
    loop {
        let opened = tokio::select! {
            biased;
            () = &mut stop => return None,
            opened = crate::coordination::open(&place, true) => opened,
        };
        match opened {
            Ok(session) => {
                tell_leader(&*session).await;
                let end = tokio::select! {
                    biased;
                    () = &mut stop => None,
                    end = serve(session.clone(), ports, &candidate, (adapters.clone(), fetcher.clone())) => Some(end),
                };
                // A successor waits for the end of this session.
                let _ = tokio::time::timeout(CLOSE_TIME_MAX, session.close()).await;
                let end = end?;
                if let OfficeEnd::Moved(this) = end {
                    tracing::info!(to = this.to, "documents have moved");
                    match place.at(&this.to) {
                        Ok(there) => {
                            place = there;
                            continue;
                        }
                        Err(error) => return Some(CliError::Other(error.to_string())),
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "coordination service not opened"),
        }
        tokio::select! {
            biased;
            () = &mut stop => return None,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}
