//! What a command answers, before it becomes bytes.

use bytes::{Bytes, BytesMut};
use wire::error::{ErrorCode, Outcome};
use wire::messages::Failure;
use wire::resp::{Protocol, ReplyWriter};

use crate::doors::numbers::DoorNumbers;

/// One answer. Which bytes it becomes depends on the connection's protocol version.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
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
    Array(Vec<Reply>),
    /// Names and answers.
    Map(Vec<(Reply, Reply)>),
}

/// Why an answer is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The store refused, with this code.
    Of(ErrorCode),
    /// The command was wrong by itself.
    Rejected,
}

impl Reply {
    /// `+OK`.
    pub(super) const OK: Reply = Reply::Simple("OK");

    /// Text as a value.
    pub(super) fn text(text: impl Into<String>) -> Reply {
        Reply::Bulk(Bytes::from(text.into().into_bytes()))
    }

    /// That the connection has not said who it is, in Redis's own words.
    pub(super) fn no_auth() -> Reply {
        Reply::Error("NOAUTH Authentication required.".to_owned())
    }

    /// A generic error.
    pub(super) fn err(detail: impl std::fmt::Display) -> Reply {
        Reply::Error(format!("ERR {detail}"))
    }

    /// The error for a wrong number of arguments, in Redis's own form.
    pub(super) fn arity(command: &str) -> Reply {
        Reply::Error(format!("ERR wrong number of arguments for '{command}' command"))
    }

    /// The error for options that make no sense, in Redis's own form.
    pub(super) fn syntax() -> Reply {
        Reply::Error("ERR syntax error".to_owned())
    }

    /// A refusal of the store: the first word tells programs what it was.
    pub(super) fn failure(failure: &Failure) -> Reply {
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
        Reply::Error(format!("{word} {detail}"))
    }

    /// Bytes that it holds, as good as exactly.
    pub(super) fn bytes_len(&self) -> usize {
        const ITEM: usize = 16;
        ITEM + match self {
            Reply::Simple(_) | Reply::Integer(_) | Reply::Null => 0,
            Reply::Error(text) | Reply::Text(text) => text.len(),
            Reply::Bulk(bytes) => bytes.len(),
            Reply::Array(items) => items.iter().map(Reply::bytes_len).sum(),
            Reply::Map(pairs) => pairs.iter().map(|(name, value)| name.bytes_len() + value.bytes_len()).sum(),
        }
    }

    /// Why it is an error, if it is one: [`Reply::failure`] puts the name of the code behind the first word, and of those
    /// about who asks Redis's own first words tell.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        let Reply::Error(text) = self else { return None };
        match text.split(' ').next() {
            Some("NOPERM") => return Some(Refusal::Of(ErrorCode::Forbidden)),
            Some("NOAUTH" | "WRONGPASS") => return Some(Refusal::Of(ErrorCode::Unauthenticated)),
            _ => {}
        }
        let name = text.split([' ', ':']).nth(1).unwrap_or_default();
        let code = ErrorCode::ALL.iter().copied().find(|code| code.name() == name);
        Some(code.map_or(Refusal::Rejected, Refusal::Of))
    }

    /// Appends the answer's bytes.
    pub(super) fn encode(&self, protocol: Protocol, out: &mut BytesMut) {
        let mut writer = ReplyWriter::new(out, protocol);
        self.write(&mut writer);
    }

    fn write(&self, writer: &mut ReplyWriter<'_>) {
        match self {
            Reply::Simple(text) => writer.simple(text),
            Reply::Error(text) => writer.error(text),
            Reply::Integer(number) => writer.integer(*number),
            Reply::Bulk(bytes) => writer.bulk(bytes),
            Reply::Text(text) => writer.verbatim(b"txt", text.as_bytes()),
            Reply::Null => writer.null(),
            Reply::Array(items) => {
                writer.array(items.len());
                items.iter().for_each(|item| item.write(writer));
            }
            Reply::Map(pairs) => {
                writer.map(pairs.len());
                for (name, value) in pairs {
                    name.write(writer);
                    value.write(writer);
                }
            }
        }
    }
}

impl From<Result<Option<Bytes>, Failure>> for Reply {
    fn from(answer: Result<Option<Bytes>, Failure>) -> Self {
        match answer {
            Ok(Some(bytes)) => Reply::Bulk(bytes),
            Ok(None) => Reply::Null,
            Err(failure) => Reply::failure(&failure),
        }
    }
}

/// The text of a refusal, which is counted.
pub(super) fn refused(numbers: &DoorNumbers, failure: &Failure) -> String {
    numbers.refused(failure.code);
    match Reply::failure(failure) {
        Reply::Error(text) => text,
        _ => failure.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_counted_by_the_code_that_it_was_made_of() {
        for &code in ErrorCode::ALL {
            for detail in ["", "a: detail"] {
                let reply = Reply::failure(&Failure::new(code, detail));
                assert_eq!(reply.refusal(), Some(Refusal::Of(code)), "{reply:?}");
            }
        }
        assert_eq!(Reply::syntax().refusal(), Some(Refusal::Rejected));
        assert_eq!(
            Reply::Error("ERR unknown command 'overloaded'".to_owned()).refusal(),
            Some(Refusal::Rejected)
        );
        assert_eq!(Reply::OK.refusal(), None);
    }
}
