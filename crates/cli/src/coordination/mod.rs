//! Which coordination service a command is about, and how it is opened.

mod documents;
mod found;
mod import;
mod migrate;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::coordination::CoordinationService;
use ::coordination::address::{Address, OpenError, ServicePlace};
use ::coordination::zookeeper::Credentials;

use crate::durations;
use crate::failure::CliError;

pub(crate) use self::documents::CoordinationCommand;
pub(crate) use self::documents::run;
pub(crate) use self::found::{DocumentsFound, find_documents};

/// How long a command waits for an ensemble. A node waits as long, and then starts from its own copy of the documents.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Which service, and as whom.
#[derive(Clone, Debug, clap::Args)]
pub struct CoordinationArguments {
    /// The coordination service: `zookeeper://HOST:PORT,HOST:PORT/CHROOT`, or a directory of this machine (`dir:PATH`
    /// or the path alone), which for `tontine dev` is `coordination` below its data directory.
    #[arg(long, required = true, env = "TONTINE_COORDINATION", value_name = "ADDRESS")]
    pub coordination: Option<Address>,
    /// File with `USER:PASSWORD` for ZooKeeper. The documents that are created then can be changed by this user only.
    /// A directory has no users; a node keeps them for the time when the documents move to ZooKeeper.
    #[arg(long, env = "TONTINE_COORDINATION_CREDENTIALS", value_name = "FILE")]
    pub coordination_credentials: Option<PathBuf>,
    /// How long ZooKeeper keeps a silent session, 1s to 10min; a killed node counts as active until then.
    #[arg(
        long,
        default_value = "10s",
        value_parser = durations::within(Duration::from_secs(1), Duration::from_secs(600)),
        value_name = "DURATION"
    )]
    pub session_timeout: Duration,
}

impl CoordinationArguments {
    /// What the arguments name.
    ///
    /// # Errors
    /// When the file with the credentials cannot be read, or has another form.
    pub(crate) fn place(&self) -> Result<ServicePlace, CliError> {
        let Some(address) = self.coordination.clone() else {
            return Err(CliError::Usage("name the coordination service with --coordination".to_owned()));
        };
        let credentials = self.coordination_credentials.as_deref().map(read_credentials).transpose()?;
        Ok(ServicePlace { address, session_timeout: self.session_timeout, credentials })
    }

    /// The same for a node or a new cluster, which follow the documents: a directory must be on this machine.
    ///
    /// # Errors
    /// As [`place`](Self::place), and when the directory is on a network file system.
    pub(crate) fn place_to_go_by(&self) -> Result<ServicePlace, CliError> {
        let place = self.place()?;
        if let Address::Directory(directory) = &place.address {
            crate::file_system::refuse_network("--coordination", directory)?;
        }
        Ok(place)
    }

    /// A session with the service; the one of a directory only where a service is already.
    ///
    /// # Errors
    /// As [`place`](Self::place), and when there is no service.
    pub(crate) async fn existing(&self) -> Result<Arc<dyn CoordinationService>, CliError> {
        let place = self.place()?;
        if let Address::Directory(directory) = &place.address
            && !directory.is_dir()
        {
            // Opening would make one.
            return Err(CliError::Other(format!(
                "there is no coordination directory {}",
                directory.display()
            )));
        }
        open(&place, false).await
    }
}

/// Opens a session; waits for an ensemble, but not for long.
pub(crate) async fn open(
    place: &ServicePlace,
    create_chroot: bool,
) -> Result<Arc<dyn CoordinationService>, CliError> {
    place.open(create_chroot, PATIENCE).await.map_err(|error| CliError::Other(error.to_string()))
}

/// Opens a session for a node that starts. A chroot that is not there may be there at its next start.
async fn open_for_start(place: &ServicePlace) -> Result<Arc<dyn CoordinationService>, CliError> {
    place.open(false, PATIENCE).await.map_err(|error| {
        let failed = CliError::Other(error.to_string());
        if let OpenError::NoChroot { .. } = error { failed.later() } else { failed }
    })
}

/// How long a process that ends waits until its session has ended. Without that, its registration goes when the session
/// expires.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(2);

/// Ends the session of a process that ends.
pub(crate) async fn leave(session: &dyn CoordinationService) {
    let _ = tokio::time::timeout(LEAVE_TIME_MAX, session.close()).await;
}

fn read_credentials(file: &Path) -> Result<Credentials, CliError> {
    let text = std::fs::read_to_string(file)
        .map_err(CliError::io(format!("cannot read the credentials in {}", file.display())))?;
    Credentials::new(text.trim_end_matches(['\r', '\n'])).ok_or_else(|| {
        CliError::Usage(format!("{} holds no credentials; write one line USER:PASSWORD", file.display()))
    })
}
