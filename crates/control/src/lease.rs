//! How an office ends by time where the coordination service lets no session end by time.
//!
//! A ZooKeeper ensemble ends the session of a process that hangs. A directory does not: a session there lasts
//! as long as its process. So its holder renews its document every [`RENEWAL`], and every other candidate looks as
//! often whether the first one does. A candidate that sees the same document at [`LOOKS`] looks, one after another,
//! deletes it. The process that hung finds that when it goes on, and is a candidate anew.
//!
//! Looks are counted, and no clocks compared: a candidate that hung itself, or a machine that was suspended,
//! has looked once when it goes on. As with every office, what fences the old holder is compare-and-set.
//!
//! Must never: end the office of a holder that renews it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coordination::{CoordinationError, CoordinationService, DocumentPath, DocumentVersion, Expected};
use runtime::Clock;

use super::election::Candidacy;
use coordination::documents::office::{Candidate, LEASE, candidates};

/// How often a holder renews its document, and other candidates look at it.
pub const RENEWAL: Duration = Duration::from_secs(3);
/// At this many looks, one after another, a candidate must have seen the same document before it ends an office.
pub const LOOKS: u32 = 5;
const _: () = assert!(
    LEASE.as_millis() == RENEWAL.as_millis() * (LOOKS as u128 - 1),
    "the first and the last look at a silent holder are a lease apart"
);

/// Whether offices must end by time here: the service keeps a session for as long as its process.
pub fn is_needed(service: &dyn CoordinationService) -> bool {
    service.session_timeout().is_zero()
}

/// Renews the holder's document until the candidacy ends, which [`Candidacy::ended`] tells. Cancel safe.
pub async fn renew(
    service: &Arc<dyn CoordinationService>,
    clock: &Arc<dyn Clock>,
    (candidacy, candidate): (&Candidacy, &Candidate),
) {
    assert!(is_needed(&**service), "{} ends with a session, and needs no lease", candidacy.office());
    loop {
        let renewed = Candidate { renewed_ms: Some(clock.wall().0), ..candidate.clone() };
        let data = Bytes::from(serde_json::to_vec(&renewed).expect("a candidate is plain text"));
        if let Err(error) = service.set(candidacy.path(), data, Expected::Any).await {
            tracing::warn!(office = %candidacy.office(), %error, "lease of an office not renewed");
        }
        clock.sleep(RENEWAL).await;
    }
}

/// Ends the office of whoever comes first and does not renew it, for as long as that is not this candidate. Cancel
/// safe.
pub async fn oversee(service: &Arc<dyn CoordinationService>, clock: &Arc<dyn Clock>, candidacy: &Candidacy) {
    assert!(is_needed(&**service), "{} ends with a session, and by no looks", candidacy.office());
    let mut seen: Option<(DocumentPath, DocumentVersion, u32)> = None;
    loop {
        clock.sleep(RENEWAL).await;
        let Ok(Some((path, version))) = first(&**service, candidacy.office()).await else {
            seen = None;
            continue;
        };
        if path == *candidacy.path() {
            return;
        }
        let looks = match &seen {
            Some((before, same, looks)) if *before == path && *same == version => looks + 1,
            _ => 1,
        };
        if looks < LOOKS {
            seen = Some((path, version, looks));
            continue;
        }
        assert_eq!(looks, LOOKS, "{path} is ended at the look at which its lease is over");
        seen = None;
        match service.delete(&path, Expected::Version(version)).await {
            Ok(()) => tracing::warn!(
                document = %path,
                seconds = LEASE.as_secs(),
                "the holder hangs: its office has ended"
            ),
            Err(error) => tracing::debug!(%error, "office of a silent holder not ended"),
        }
    }
}

/// The first candidate's document.
async fn first(
    service: &dyn CoordinationService,
    office: &DocumentPath,
) -> Result<Option<(DocumentPath, DocumentVersion)>, CoordinationError> {
    let Some(path) = candidates(service, office).await?.into_iter().next() else { return Ok(None) };
    let version = service.get(&path).await?.stat.version;
    Ok(Some((path, version)))
}
