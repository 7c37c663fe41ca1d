//! The candidates for an office, as documents: who holds it, and whether the holder is silent. An office is the path that its
//! candidates' documents lie below.
//!
//! How candidates stand, and how an office ends, is `control::election`'s.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{CoordinationError, CoordinationService, DocumentPath};

/// What the name of every candidate's document begins with; the service appends its number.
pub const CANDIDATE: &str = "candidate-";

/// A holder must not have renewed its document for this long, where offices end by time, before another candidate ends its
/// office.
pub const LEASE: Duration = Duration::from_secs(12);

/// A candidate as it describes itself, for people who look at the documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Which process on which machine it is.
    pub process: String,
    /// When it renewed its lease last, in milliseconds since 1970 by its own clock, where offices end by time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed_ms: Option<u64>,
}

impl Candidate {
    /// One that has not renewed anything.
    pub fn new(process: String) -> Candidate {
        Candidate { process, renewed_ms: None }
    }

    /// For how long it has not renewed its lease at `now_ms`, by a clock of the same machine, if that is so long that
    /// another candidate would have ended its office.
    pub fn overdue(&self, now_ms: u64) -> Option<Duration> {
        let silent = Duration::from_millis(now_ms.saturating_sub(self.renewed_ms?));
        (silent >= LEASE).then_some(silent)
    }
}

/// All candidates' documents, the first one first: names of one prefix sort by their numbers.
///
/// # Errors
/// What the service refuses; `NoNode` when nobody ever stood.
pub async fn candidates(
    service: &dyn CoordinationService,
    office: &DocumentPath,
) -> Result<Vec<DocumentPath>, CoordinationError> {
    let names = service.children(office).await?;
    let ours = names.iter().filter(|name| name.starts_with(CANDIDATE));
    Ok(ours.filter_map(|name| office.child(name).ok()).collect())
}

/// Who holds the office now, as it describes itself, and by which document; `None` when nobody does.
///
/// # Errors
/// What the service refuses.
pub async fn holder(
    service: &dyn CoordinationService,
    office: &DocumentPath,
) -> Result<Option<(DocumentPath, Candidate)>, CoordinationError> {
    let all = match candidates(service, office).await {
        Err(CoordinationError::NoNode { .. }) => return Ok(None),
        all => all?,
    };
    for path in all {
        match service.get(&path).await {
            Ok(document) => {
                let candidate = serde_json::from_slice(&document.data).unwrap_or_default();
                return Ok(Some((path, candidate)));
            }
            Err(CoordinationError::NoNode { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
