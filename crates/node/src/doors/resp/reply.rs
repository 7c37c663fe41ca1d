//! What a command answers, before it becomes bytes.

use bytes::{Bytes, BytesMut};
use wire::error::{ErrorCode, Outcome};
use wire::messages::Failure;
use wire::resp::{Protocol, ReplyWriter};

use crate::doors::counters::DoorCounters;

/// One answer. Which bytes it becomes depends on the connection's protocol version.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DoorReply {
    /// `+OK` and the like.
    Simple(&'static str),
    /// An error with its leading code word.
    Error(String),
    /// A number.
    Integer(i64),
    /// A value.
    Bulk(Bytes),
    /// Text for people.
    Text(String),
    /// No value.
    Null,
    /// Several answers.
    Array(Vec<DoorReply>),
    /// Names and answers.
    Map(Vec<(DoorReply, DoorReply)>),
}

/// Why an answer is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyRefusal {
    /// The store refused, with this code.
    Of(ErrorCode),
    /// The command was wrong by itself.
    Rejected,
}

impl DoorReply {
    /// `+OK`.
    pub(super) const OK: DoorReply = DoorReply::Simple("OK");

    /// Text as a value.
    pub(super) fn text(text: impl Into<String>) -> DoorReply {
        DoorReply::Bulk(Bytes::from(text.into().into_bytes()))
    }

    /// That the connection has not said who it is, in Redis's own words.
    pub(super) fn no_auth() -> DoorReply {
        DoorReply::Error("NOAUTH Authentication required.".to_owned())
    }

    /// A generic error.
    pub(super) fn err(detail: impl std::fmt::Display) -> DoorReply {
        DoorReply::Error(format!("ERR {detail}"))
    }

    /// The error for a wrong number of arguments, in Redis's own form.
    pub(super) fn arity(command: &str) -> DoorReply {
        DoorReply::Error(format!("ERR wrong number of arguments for '{command}' command"))
    }

    /// The error for options that make no sense, in Redis's own form.
    pub(super) fn syntax() -> DoorReply {
        DoorReply::Error("ERR syntax error".to_owned())
    }

    /// A refusal of the store: the first word tells programs what it was.
    pub(super) fn failure(failure: &Failure) -> DoorReply {
        let word = match failure.code {
            ErrorCode::Overloaded | ErrorCode::TooManyConnections => "OVERLOADED",
            ErrorCode::InsufficientReplicas | ErrorCode::Isolated => "NOREPLICAS",
            ErrorCode::Obsolete => "OBSOLETE",
            ErrorCode::DiskFull => "DISKFULL",
            ErrorCode::ShuttingDown => "SHUTTINGDOWN",
            ErrorCode::TooManySiblings => "SIBLINGS",
            ErrorCode::Forbidden => "NOPERM",
            ErrorCode::Unauthenticated => "NOAUTH",
            code if code.outcome() == Outcome::Indeterminate => "INDETERMINATE",
            _ => "ERR",
        };
        let detail: String =
            failure.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        DoorReply::Error(format!("{word} {detail}"))
    }

    /// Bytes that it holds, as good as exactly.
    pub(super) fn bytes_len(&self) -> usize {
        const ITEM: usize = 16;
        ITEM + match self {
            DoorReply::Simple(_) | DoorReply::Integer(_) | DoorReply::Null => 0,
            DoorReply::Error(text) | DoorReply::Text(text) => text.len(),
            DoorReply::Bulk(bytes) => bytes.len(),
            DoorReply::Array(items) => items.iter().map(DoorReply::bytes_len).sum(),
            DoorReply::Map(pairs) => {
                pairs.iter().map(|(name, value)| name.bytes_len() + value.bytes_len()).sum()
            }
        }
    }

    /// Why it is an error, if it is one: [`DoorReply::failure`] puts the name of the code behind the first word, and of those
    /// about who asks Redis's own first words tell.
    pub(super) fn refusal(&self) -> Option<ReplyRefusal> {
        let DoorReply::Error(text) = self else { return None };
        match text.split(' ').next() {
            Some("NOPERM") => return Some(ReplyRefusal::Of(ErrorCode::Forbidden)),
            Some("NOAUTH" | "WRONGPASS") => return Some(ReplyRefusal::Of(ErrorCode::Unauthenticated)),
            _ => {}
        }
        let name = text.split([' ', ':']).nth(1).unwrap_or_default();
        let code = ErrorCode::ALL.iter().copied().find(|code| code.name() == name);
        Some(code.map_or(ReplyRefusal::Rejected, ReplyRefusal::Of))
    }

    /// Appends the answer's bytes.
    pub(super) fn encode(&self, protocol: Protocol, out: &mut BytesMut) {
        let mut writer = ReplyWriter::new(out, protocol);
        self.write(&mut writer);
    }

    fn write(&self, writer: &mut ReplyWriter<'_>) {
        match self {
            DoorReply::Simple(text) => writer.simple(text),
            DoorReply::Error(text) => writer.error(text),
            DoorReply::Integer(number) => writer.integer(*number),
            DoorReply::Bulk(bytes) => writer.bulk(bytes),
            DoorReply::Text(text) => writer.verbatim(b"txt", text.as_bytes()),
            DoorReply::Null => writer.null(),
            DoorReply::Array(items) => {
                writer.array(items.len());
                items.iter().for_each(|item| item.write(writer));
            }
            DoorReply::Map(pairs) => {
                writer.map(pairs.len());
                for (name, value) in pairs {
                    name.write(writer);
                    value.write(writer);
                }
            }
        }
    }
}

impl From<Result<Option<Bytes>, Failure>> for DoorReply {
    fn from(answer: Result<Option<Bytes>, Failure>) -> Self {
        match answer {
            Ok(Some(bytes)) => DoorReply::Bulk(bytes),
            Ok(None) => DoorReply::Null,
            Err(failure) => DoorReply::failure(&failure),
        }
    }
}

/// The text of a refusal, which is counted.
pub(super) fn refused(counters: &DoorCounters, failure: &Failure) -> String {
    counters.refused(failure.code);
    match DoorReply::failure(failure) {
        DoorReply::Error(text) => text,
        _ => failure.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_counted_under_the_code_it_was_made_from() {
        for &code in ErrorCode::ALL {
            for detail in ["", "a: detail"] {
                let reply = DoorReply::failure(&Failure::new(code, detail));
                assert_eq!(reply.refusal(), Some(ReplyRefusal::Of(code)), "{reply:?}");
            }
        }
        assert_eq!(DoorReply::syntax().refusal(), Some(ReplyRefusal::Rejected));
        assert_eq!(
            DoorReply::Error("ERR unknown command 'overloaded'".to_owned()).refusal(),
            Some(ReplyRefusal::Rejected)
        );
        assert_eq!(DoorReply::OK.refusal(), None);
    }
}
