//! What the replies to commands say of their operations.

use wire::resp::Reply;

use super::Set;
use crate::history::{NOT_MET, NOTHING_TO_CHANGE, Outcome};

/// What was shown of a key.
pub(super) fn shown(reply: &Reply) -> Outcome {
    match reply {
        Reply::Bulk(value) => Outcome::Shown(Some(value.clone())),
        Reply::Null => Outcome::Shown(None),
        other => refused(other),
    }
}

/// Whether a command was carried out that says nothing else.
pub(super) fn acknowledged(reply: &Reply) -> Outcome {
    match reply {
        Reply::Simple(word) if &word[..] == b"OK" => Outcome::Acknowledged,
        other => refused(other),
    }
}

/// What the reply to a SET says of the write.
pub(super) fn stored(set: Set, reply: &Reply) -> Outcome {
    let refusal = || Outcome::Failed(NOT_MET.to_owned());
    match (set, reply) {
        (Set::Absent | Set::Present | Set::PresentGet, Reply::Null) => refusal(),
        (Set::Get, Reply::Bulk(_) | Reply::Null) | (Set::PresentGet, Reply::Bulk(_)) => Outcome::Acknowledged,
        (_, other) => acknowledged(other),
    }
}

/// What the reply to an EXPIRE or PERSIST says of the change.
pub(super) fn changed(reply: &Reply) -> Outcome {
    match reply {
        Reply::Integer(1) => Outcome::Acknowledged,
        Reply::Integer(0) => Outcome::Failed(NOTHING_TO_CHANGE.to_owned()),
        other => refused(other),
    }
}

/// What the reply to a GETEX says of the change.
pub(super) fn got_and_changed(reply: &Reply, may_be_so: bool) -> Outcome {
    match reply {
        Reply::Bulk(_) if may_be_so => Outcome::Indeterminate("it may have been so before".to_owned()),
        Reply::Bulk(_) => Outcome::Acknowledged,
        Reply::Null => Outcome::Failed(NOTHING_TO_CHANGE.to_owned()),
        other => refused(other),
    }
}

/// Why a command was not carried out, or may have been.
///
/// # Panics
/// When the reply is no error: a client would not know what to make of it.
pub(super) fn refused(reply: &Reply) -> Outcome {
    let Reply::Error(text) = reply else { panic!("no client expects {reply:?} here") };
    let text = String::from_utf8_lossy(text).into_owned();
    match text.starts_with("INDETERMINATE ") {
        true => Outcome::Indeterminate(text),
        false => Outcome::Failed(text),
    }
}
