//! Where a node's documents are: in the service that its command line names, or in the one to which they have moved
//! since.

use std::path::Path;
use std::sync::Arc;

use ::coordination::CoordinationService;
use ::coordination::address::{Address, ServicePlace};
use ::coordination::documents::{self, ReadError, ServiceMove};
use model::Cluster;
use runtime::Disk;
use runtime::disk::os::OsDisk;

use crate::failure::CliError;

/// Moves that are followed at most: more than anybody makes while a node is stopped.
const MOVES_MAX: usize = 16;

/// The documents, where they are.
pub(crate) struct DocumentsFound {
    /// The service.
    pub(crate) place: ServicePlace,
    /// A session with it.
    pub(crate) session: Arc<dyn CoordinationService>,
    /// What it says of the cluster.
    pub(crate) cluster: Result<Option<Cluster>, ReadError>,
}

impl DocumentsFound {
    /// That the documents are elsewhere than where they were looked for, if so.
    pub(crate) fn moved_from(&self, named: &Address) -> Option<String> {
        let place = &self.place.address;
        (place != named).then(|| format!("the documents have moved from {named} to {place}"))
    }

    /// Says where the documents are, if that is not where the command line says.
    pub(crate) fn correct(&self, named: &Address) {
        if let Some(moved) = self.moved_from(named) {
            say!("{moved}; give that address with --coordination from now on");
        }
    }
}

/// Opens the service in which the documents are, which may be another one than the named one. `None` when it is a
/// directory that does not exist, and opening would make it.
pub(crate) async fn find_documents(
    named: ServicePlace,
    data_dir: &Path,
) -> Result<Option<DocumentsFound>, CliError> {
    // Nothing is made where nothing is.
    let disk = data_dir.is_dir().then(|| OsDisk::open(data_dir).ok()).flatten();
    let disk: Option<Arc<dyn Disk>> = disk.map(|disk| Arc::new(disk) as Arc<dyn Disk>);
    let recalled = disk.as_ref().and_then(|disk| node::service_moved::recall(&**disk, &named.portable()));
    let Some(to) = recalled else { return follow(&named, named.clone(), disk.as_ref()).await };
    let place = named.at(&to).map_err(|error| CliError::Other(error.to_string()))?;
    let holds = |found: &Result<Option<DocumentsFound>, CliError>| {
        matches!(found, Ok(Some(DocumentsFound { cluster: Ok(Some(_)), .. })))
    };
    let found = follow(&named, place, disk.as_ref()).await;
    if holds(&found) {
        return found;
    }
    // They may have come back while the node was stopped.
    let back = follow(&named, named.clone(), disk.as_ref()).await;
    let (chosen, other) = if holds(&back) { (back, found) } else { (found, back) };
    if let Ok(Some(other)) = other {
        let _ = other.session.close().await;
    }
    if !holds(&chosen) {
        say!(
            "{} remembers that the documents went from {} to {to}, and there is no cluster to be found",
            data_dir.join("moved.json").display(),
            named.address
        );
    }
    chosen
}

/// Opens a service, and from there the one to which the documents have moved.
async fn follow(
    named: &ServicePlace,
    mut place: ServicePlace,
    disk: Option<&Arc<dyn Disk>>,
) -> Result<Option<DocumentsFound>, CliError> {
    let mut came: Option<ServiceMove> = None;
    for _ in 0..MOVES_MAX {
        if let Address::Directory(directory) = &place.address
            && !directory.is_dir()
        {
            return Ok(None);
        }
        let session = super::open_for_start(&place).await?;
        let arrived = match &came {
            Some(this) => documents::arrive(&*session, this).await,
            None => Ok(()),
        };
        let cluster = match arrived {
            Ok(()) => documents::read_cluster(&*session).await,
            Err(error) => Err(error),
        };
        let Err(ReadError::Moved(this)) = cluster else {
            return Ok(Some(DocumentsFound { place, session, cluster }));
        };
        let _ = session.close().await;
        if let Some(disk) = disk
            && let Err(error) = node::service_moved::remember(disk.clone(), &this, &place.portable()).await
        {
            tracing::warn!(%error, "new place of the documents not remembered");
        }
        place = named.at(&this.to).map_err(|error| CliError::Other(error.to_string()))?;
        came = Some(*this);
    }
    Err(CliError::Other(format!(
        "the documents of {} have moved more than {MOVES_MAX} times; name the service that holds them with --coordination",
        named.address
    )))
}
