//! What the ensemble answers, in the words of the trait.
//!
//! Must never: call a write `Unavailable` that may have happened, or may happen yet.

use std::time::Duration;

use tokio::time::error::Elapsed;
use zookeeper_client::Error;

use crate::{
    CoordinationError, CreationOrder, DocumentPath, DocumentVersion, EventKind, Expected, SessionId, Stat,
};

/// What came of a call: an answer, or none in time.
pub(super) type Outcome<T> = Result<Result<T, Error>, Elapsed>;

/// Whether a call changes something, and so may have happened although it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingCall {
    Read,
    Write,
}

/// Translates the outcome of a call about the document `path`.
pub(super) fn settle<T>(
    call: PendingCall,
    path: &DocumentPath,
    limit: Duration,
    outcome: Outcome<T>,
) -> Result<T, CoordinationError> {
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(translate(call, path, &error)),
        Err(_) => Err(unknown(call, format!("the ensemble did not answer within {limit:?}"))),
    }
}

/// The call was under way when contact was lost.
fn unknown(call: PendingCall, reason: String) -> CoordinationError {
    match call {
        PendingCall::Read => CoordinationError::Unavailable { reason },
        PendingCall::Write => CoordinationError::Indeterminate { reason },
    }
}

fn translate(call: PendingCall, path: &DocumentPath, error: &Error) -> CoordinationError {
    let path = path.clone();
    match error {
        Error::NoNode => CoordinationError::NoNode { path },
        Error::NodeExists => CoordinationError::NodeExists { path },
        Error::BadVersion => CoordinationError::BadVersion { path },
        Error::NotEmpty => CoordinationError::NotEmpty { path },
        Error::NoChildrenForEphemerals => CoordinationError::NoChildrenForEphemerals { path },
        Error::NoAuth => CoordinationError::PermissionDenied { path },
        // The ensemble takes requests in order, and the client answers in order: with this answer, neither this request
        // nor a later one was carried out.
        Error::SessionExpired | Error::ClientClosed | Error::AuthFailed => CoordinationError::SessionLost,
        // Refused by a server, or by the client before it was sent.
        Error::SessionMoved
        | Error::NotReadOnly
        | Error::QuotaExceeded
        | Error::Throttled
        | Error::MarshallingError
        | Error::Unimplemented
        | Error::InvalidAcl
        | Error::BadArguments(_) => CoordinationError::Unavailable {
            reason: format!("the ensemble refused the request for document {path}: {error}"),
        },
        error => unknown(call, format!("contact with the ensemble was lost: {error}")),
    }
}

/// A stat as the trait shows it. Versions wrap in both; session ids and creation orders are numbers of 64 bits.
pub(super) fn stat(stat: &zookeeper_client::Stat) -> Stat {
    let owner = (stat.ephemeral_owner != 0).then_some(SessionId(stat.ephemeral_owner.cast_unsigned()));
    Stat {
        version: DocumentVersion(stat.version.cast_unsigned()),
        created: CreationOrder(stat.czxid.cast_unsigned()),
        owner,
    }
}

/// The version that a write expects, as ZooKeeper takes it.
///
/// # Errors
/// [`CoordinationError::BadVersion`] for the one number that means *any* to ZooKeeper, which no document has.
pub(super) fn version(path: &DocumentPath, expected: Expected) -> Result<Option<i32>, CoordinationError> {
    match expected {
        Expected::Any => Ok(None),
        Expected::Version(DocumentVersion(u32::MAX)) => {
            Err(CoordinationError::BadVersion { path: path.clone() })
        }
        Expected::Version(version) => Ok(Some(version.0.cast_signed())),
    }
}

/// What a watch tells; `None` when it tells of the session's end.
pub(super) fn event_kind(event: zookeeper_client::EventType) -> Option<EventKind> {
    match event {
        zookeeper_client::EventType::NodeCreated => Some(EventKind::Created),
        zookeeper_client::EventType::NodeDataChanged => Some(EventKind::Changed),
        zookeeper_client::EventType::NodeDeleted => Some(EventKind::Deleted),
        zookeeper_client::EventType::NodeChildrenChanged => Some(EventKind::ChildrenChanged),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> DocumentPath {
        DocumentPath::new("/x").unwrap()
    }

    #[test]
    fn a_write_that_lost_contact_is_indeterminate_and_a_read_is_unavailable() {
        for error in [Error::ConnectionLoss, Error::Timeout, Error::UnexpectedErrorCode(-1)] {
            let write = translate(PendingCall::Write, &path(), &error);
            assert!(matches!(write, CoordinationError::Indeterminate { .. }), "{write:?}");
            let read = translate(PendingCall::Read, &path(), &error);
            assert!(matches!(read, CoordinationError::Unavailable { .. }), "{read:?}");
        }
        for error in [Error::Throttled, Error::SessionMoved, Error::QuotaExceeded] {
            let write = translate(PendingCall::Write, &path(), &error);
            assert!(matches!(write, CoordinationError::Unavailable { .. }), "{write:?}");
        }
    }

    #[test]
    fn the_number_that_means_any_version_is_no_version() {
        let refused = Err(CoordinationError::BadVersion { path: path() });
        assert_eq!(version(&path(), Expected::Version(DocumentVersion(u32::MAX))), refused);
        assert_eq!(version(&path(), Expected::Version(DocumentVersion(7))), Ok(Some(7)));
        assert_eq!(version(&path(), Expected::Any), Ok(None));
    }
}
