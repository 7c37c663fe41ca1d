//! Who holds an office: ephemeral sequential documents, each candidate watching the one before it.
//!
//! The recipe is ZooKeeper's own for leader election (paper `000_…`, 4.1 and 4.3.1 use it). A candidate whose document
//! comes first holds the office; every other one watches its predecessor only, so that an end wakes one process.
//!
//! Where sessions do not end by time, offices do ([`super::lease`]).
//!
//! An office is no lock. A holder that was paused goes on for a moment after its session has ended, while its
//! successor works already. What fences it is that it publishes under compare-and-set: a document is accepted only as
//! the successor of the one that it was computed from ([`coordination::documents::publish_cluster`]).

use std::sync::Arc;

use bytes::Bytes;
use coordination::documents::create_parents;
use coordination::documents::office::{CANDIDATE as NAME, candidates};
pub use coordination::documents::office::{Candidate, holder};
use coordination::{CoordinationError, CoordinationService, CreateMode, DocumentPath, Expected};

/// A candidate for the office, for as long as its session lives.
pub struct Candidacy {
    service: Arc<dyn CoordinationService>,
    /// What candidates' documents lie below.
    office: DocumentPath,
    /// Its document. In doubt a session has two: then this is the first of them.
    path: DocumentPath,
}

/// Why a candidate is not elected, nor will be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElectionError {
    /// Its document was deleted while its session lives.
    #[error("document {path} of this process was deleted: it is no longer a candidate")]
    Removed {
        /// The document.
        path: DocumentPath,
    },
    /// The service refused.
    #[error(transparent)]
    Coordination(#[from] CoordinationError),
}

impl Candidacy {
    fn new(service: Arc<dyn CoordinationService>, office: &DocumentPath, path: DocumentPath) -> Candidacy {
        assert!(
            path.parent().as_ref() == Some(office) && path.name().starts_with(NAME),
            "{path} is no candidate's document below {office}"
        );
        Candidacy { service, office: office.clone(), path }
    }
}

/// Becomes a candidate for the office. A session that is one already gets the candidacy that it has.
///
/// # Errors
/// As [`CoordinationService::create`]. After [`CoordinationError::Indeterminate`] the session may stand already: call
/// again.
pub async fn stand(
    service: Arc<dyn CoordinationService>,
    office: &DocumentPath,
    candidate: &Candidate,
) -> Result<Candidacy, CoordinationError> {
    let path = office.child(NAME).expect("the name is short");
    create_parents(&*service, &path).await?;
    if let Some(path) = own_first(&*service, office).await? {
        return Ok(Candidacy::new(service, office, path));
    }
    let data = Bytes::from(serde_json::to_vec(candidate).expect("a candidate is plain text"));
    let path = service.create(&path, data, CreateMode::EphemeralSequential).await?;
    Ok(Candidacy::new(service, office, path))
}

/// The session's first document among the candidates'.
async fn own_first(
    service: &dyn CoordinationService,
    office: &DocumentPath,
) -> Result<Option<DocumentPath>, CoordinationError> {
    for path in candidates(service, office).await? {
        match service.get(&path).await {
            Ok(document) if document.stat.owner == Some(service.session()) => return Ok(Some(path)),
            Ok(_) | Err(CoordinationError::NoNode { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

impl Candidacy {
    /// Waits until the office is this candidate's. Cancel safe.
    ///
    /// # Errors
    /// [`ElectionError::Removed`] when its document is gone; what the service refuses, after which the call may be
    /// repeated, but for [`CoordinationError::SessionLost`].
    pub async fn elected(&self) -> Result<(), ElectionError> {
        loop {
            let all = candidates(&*self.service, &self.office).await?;
            let Some(position) = all.iter().position(|path| *path == self.path) else {
                return Err(ElectionError::Removed { path: self.path.clone() });
            };
            let Some(predecessor) = position.checked_sub(1).map(|before| &all[before]) else {
                return Ok(());
            };
            assert!(*predecessor < self.path, "{predecessor} stood before {}", self.path);
            let (document, watch) = self.service.get_and_watch(predecessor).await?;
            if document.is_some() {
                watch.fired().await?;
            }
        }
    }

    /// Waits until the office is lost: the session has ended, or the document is gone. Cancel safe.
    ///
    /// # Errors
    /// What the service refuses; the office may be held still, so the call may be repeated.
    pub async fn ended(&self) -> Result<(), CoordinationError> {
        loop {
            let watched = match self.service.get_and_watch(&self.path).await {
                Ok((None, _)) | Err(CoordinationError::SessionLost) => return Ok(()),
                Ok((Some(document), _)) if document.stat.owner != Some(self.service.session()) => {
                    return Ok(());
                }
                Ok((Some(_), watch)) => watch.fired().await,
                Err(error) => return Err(error),
            };
            match watched {
                Ok(_) => {}
                Err(CoordinationError::SessionLost) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives up the candidacy, and with it the office, while the session goes on.
    ///
    /// # Errors
    /// As [`CoordinationService::delete`]; after [`CoordinationError::Indeterminate`] call again.
    pub async fn resign(&self) -> Result<(), CoordinationError> {
        while let Some(path) = own_first(&*self.service, &self.office).await? {
            match self.service.delete(&path, Expected::Any).await {
                Ok(()) | Err(CoordinationError::NoNode { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What candidates' documents lie below.
    pub fn office(&self) -> &DocumentPath {
        &self.office
    }

    /// Its document.
    pub fn path(&self) -> &DocumentPath {
        &self.path
    }
}
