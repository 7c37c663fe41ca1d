//! What a command says when it cannot do what it was asked: what happened, why, and what to do next.
//!
//! People get one line, programs one JSON document with the same words; both go to stderr. `docs/reference/cli.md`
//! lists the kinds and the exit statuses.
//!
//! **Architecture Invariant:** an outcome that is not known has its own exit status, never that of a failure.

use std::borrow::Cow;
use std::process::ExitCode;

use client::ClientError;
use coordination::CoordinationError;
use model::KeyError;
use model::artifacts::ArtifactError;
use model::order::OrderRefusal;
use serde_json::{Value as Json, json};
use thiserror::Error;
use wire::ErrorCode;

use crate::text::Format;

/// Exit status of a command that failed: nothing was done, or the answer says how much.
const EXIT_FAILED: u8 = 2;
/// Exit status of a command whose reader has gone away, as a shell shows it of one that SIGPIPE has ended.
const EXIT_UNREAD: u8 = 141;
/// Exit status of a node that could not start now, and may later: the one that a supervisor should answer by starting it
/// again (`EX_TEMPFAIL`).
const EXIT_LATER: u8 = 75;
/// Exit status of a write that may or may not have happened.
const EXIT_UNKNOWN: u8 = 3;

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// The cluster refused or could not be reached.
    #[error(transparent)]
    Client(ClientError),
    /// None of the addresses answered as a node does.
    #[error("{error}")]
    NoAnswer {
        /// What happened at each.
        error: ClientError,
        /// Whether somebody gave the addresses: otherwise they are those of a cluster that nobody has changed.
        named: bool,
    },
    /// One of several keys could not be served.
    #[error("key {key:?}: {error}")]
    OfKey {
        /// The key.
        key: String,
        /// What happened to it.
        error: ClientError,
    },
    /// The coordination service refused or could not be reached.
    #[error("{0}")]
    Coordination(#[from] CoordinationError),
    /// The operating system refused.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The command line asks for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// A node could not start, and the same start may succeed later.
    #[error("{0}")]
    Later(Box<CliError>),
    /// What was ordered may still be done.
    #[error("{0}")]
    Unanswered(String),
    /// An order was refused.
    #[error("{text}")]
    Refused {
        /// The refusal: its code stays the same from version to version.
        refusal: Box<OrderRefusal>,
        /// What people read.
        text: String,
        /// Whether the same order may be carried out later.
        retryable: bool,
    },
    /// Something else, said in full.
    #[error("{0}")]
    Other(String),
}

impl CliError {
    /// An operating-system error with what was being done.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> CliError {
        let what = what.into();
        move |error| CliError::Io { what, error }
    }

    /// This failure of a start, which may be over at the next one.
    pub(crate) fn later(self) -> CliError {
        CliError::Later(Box::new(self))
    }

    /// A failure to start a node, by whether the next start may succeed: it may when a service or the system refused.
    pub(crate) fn of_a_start(self) -> CliError {
        let passes = match &self {
            CliError::Coordination(error) => matches!(
                error,
                CoordinationError::Unavailable { .. }
                    | CoordinationError::Indeterminate { .. }
                    | CoordinationError::SessionLost
            ),
            CliError::Io { .. } => true,
            _ => false,
        };
        if passes { self.later() } else { self }
    }

    /// The failure of a start by hand, which nobody repeats.
    pub(crate) fn once(self) -> CliError {
        match self {
            CliError::Later(error) => *error,
            other => other,
        }
    }

    /// 3 when a write may have happened, otherwise 2: 1 is an answer, not a failure. 75 when a node may start later.
    pub(crate) fn exit_code(&self) -> u8 {
        if let CliError::Later(_) = self {
            return EXIT_LATER;
        }
        if self.is_unread() {
            return EXIT_UNREAD;
        }
        if self.is_unknown() { EXIT_UNKNOWN } else { EXIT_FAILED }
    }

    /// Whether what was asked for may have happened, or may still.
    pub(crate) fn is_unknown(&self) -> bool {
        match self {
            CliError::Unanswered(_) => true,
            CliError::Coordination(error) => matches!(error, CoordinationError::Indeterminate { .. }),
            error => error.client().is_some_and(ClientError::is_indeterminate),
        }
    }

    /// Whoever read the output has seen enough.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self, CliError::Io { error, .. } if error.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// The document that programs get.
    pub(crate) fn json(&self) -> Json {
        let unknown = self.exit_code() == EXIT_UNKNOWN;
        let mut document = json!({ "error": {
            "kind": self.kind(),
            "message": self.to_string(),
            "outcome": if unknown { "unknown" } else { "failed" },
            "retryable": match self {
                CliError::Later(_) => true,
                CliError::Refused { retryable, .. } => *retryable,
                CliError::Coordination(error) => matches!(error, CoordinationError::Unavailable { .. }),
                error => error.client().is_some_and(can_be_sent_again),
            },
            "next": self.next(),
        }});
        if let Some(refusal) = self.refusal() {
            let told = serde_json::to_value(refusal).expect("refusals are plain data");
            document["error"]["code"] = told["code"].clone();
            document["error"]["facts"] = told["facts"].clone();
        }
        document
    }

    /// Why an order was refused, if this is such an error.
    fn refusal(&self) -> Option<&OrderRefusal> {
        match self {
            CliError::Refused { refusal, .. } => Some(refusal),
            CliError::Later(error) => error.refusal(),
            _ => None,
        }
    }

    fn client(&self) -> Option<&ClientError> {
        match self {
            CliError::Client(error) | CliError::NoAnswer { error, .. } | CliError::OfKey { error, .. } => {
                Some(error)
            }
            CliError::Coordination(_)
            | CliError::Io { .. }
            | CliError::Usage(_)
            | CliError::Later(_)
            | CliError::Unanswered(_)
            | CliError::Refused { .. }
            | CliError::Other(_) => None,
        }
    }

    /// A word that stays the same from version to version.
    fn kind(&self) -> Cow<'static, str> {
        if let Some(refusal) = self.refusal() {
            return refusal.code().into();
        }
        self.kind_named().into()
    }

    /// The same, of what is not a refused order.
    fn kind_named(&self) -> &'static str {
        let error = match self {
            CliError::Client(error) | CliError::NoAnswer { error, .. } | CliError::OfKey { error, .. } => {
                error
            }
            CliError::Coordination(_) => return "coordination",
            CliError::Io { .. } => return "io",
            CliError::Usage(_) => return "usage",
            CliError::Later(error) => return error.kind_named(),
            CliError::Unanswered(_) => return "indeterminate",
            CliError::Refused { .. } | CliError::Other(_) => return "failed",
        };
        match error {
            ClientError::NotConnected { .. } => "not-connected",
            ClientError::Unreachable { .. } => "node-unreachable",
            ClientError::Contended { .. } => "contended",
            other => code_of(other).map_or("failed", ErrorCode::name),
        }
    }

    /// What to do about it, where the message does not say so already.
    fn next(&self) -> Option<&'static str> {
        if let CliError::Coordination(CoordinationError::Indeterminate { .. }) = self {
            return Some(
                "Look at the documents with `tontine coordination show`, and try again if it is not done.",
            );
        }
        match self.client()? {
            // The nodes are there, and have said what they want.
            ClientError::NotConnected { detail } if detail.contains("secret") => {
                Some(crate::words::remedy(ErrorCode::Unauthenticated))
            }
            error if no_tls(error) => Some(
                "The nodes are there. Give the certificate of their authority with --tls-authority (or \
                 TONTINE_TLS_AUTHORITY); where they speak no TLS, leave it out.",
            ),
            ClientError::NotConnected { .. } if matches!(self, CliError::NoAnswer { named: true, .. }) => {
                Some(
                    "Check the addresses in --connect (or TONTINE_CONNECT): they are the native addresses that `tontine \
                     dev` and `tontine serve` print. Name several nodes: one that answers is enough. If none runs, start \
                     the cluster again with its --data-dir.",
                )
            }
            ClientError::NotConnected { .. } => Some(
                "Start a cluster on this machine with `tontine dev`, or give the addresses of another one with --connect \
                 (or TONTINE_CONNECT).",
            ),
            // The client has asked the other nodes of the key already.
            ClientError::Failed { code: ErrorCode::Isolated, .. } => Some(
                "Retry when the missing nodes are back; to see how to start them, run `tontine doctor`. `tontine put -w` \
                 can require fewer acknowledgements, and so fewer copies.",
            ),
            ClientError::Unreachable { .. } => {
                Some("To see which nodes are down and how to start them, run `tontine doctor`.")
            }
            ClientError::Failed { code: ErrorCode::InsufficientReplicas, .. } => Some(
                "Find the nodes that are down with `tontine doctor`, and start or replace them. Until then, `tontine get -r 1` \
                 may read an old value from a single replica, if one of the key is up.",
            ),
            error => code_of(error).map(crate::words::remedy),
        }
    }
}

/// Whether a node was reached, and the two ends did not agree on TLS.
pub(crate) fn no_tls(error: &ClientError) -> bool {
    match error {
        ClientError::NotConnected { detail } | ClientError::Unreachable { detail } => {
            detail.contains("no TLS with ")
        }
        _ => false,
    }
}

/// Whether the same command may succeed later, as `docs/reference/errors.md` says of each code.
fn can_be_sent_again(error: &ClientError) -> bool {
    code_of(error).map_or_else(|| error.is_retryable(), ErrorCode::is_retryable)
}

/// The code that a node would have answered with.
fn code_of(error: &ClientError) -> Option<ErrorCode> {
    match error {
        ClientError::Failed { code, .. } => Some(*code),
        ClientError::Indeterminate { .. } => Some(ErrorCode::Indeterminate),
        ClientError::UnknownStore { .. } => Some(ErrorCode::UnknownStore),
        ClientError::Key(KeyError::Empty) => Some(ErrorCode::KeyEmpty),
        ClientError::Key(_) => Some(ErrorCode::KeyTooLong),
        _ => None,
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused { refusal, again_after_ms } => CliError::Refused {
                text: crate::words::why(&refusal),
                refusal,
                retryable: again_after_ms.is_some(),
            },
            error => CliError::Client(error),
        }
    }
}

impl From<ArtifactError> for CliError {
    fn from(error: ArtifactError) -> Self {
        let refusal = OrderRefusal::Artifact(error.into());
        CliError::Refused { text: crate::words::why(&refusal), refusal: Box::new(refusal), retryable: false }
    }
}

impl From<String> for CliError {
    fn from(message: String) -> Self {
        CliError::Other(message)
    }
}

/// Says what went wrong, in the form that was asked for.
pub(crate) fn report(format: Format, error: &CliError) -> ExitCode {
    match format {
        _ if error.is_unread() => {}
        Format::Json => say!("{}", error.json()),
        Format::Text => {
            let next = error.next().map(|next| format!("\n  next: {next}")).unwrap_or_default();
            say!("tontine: {error}{next}");
        }
    }
    ExitCode::from(error.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_kind_its_outcome_and_its_status() {
        let indeterminate = ClientError::Indeterminate { detail: "1 of 2".to_owned() };
        let error = CliError::from(indeterminate);
        assert_eq!(error.exit_code(), 3);
        assert_eq!(error.json()["error"]["kind"], "indeterminate");
        assert_eq!(error.json()["error"]["outcome"], "unknown");
        assert_eq!(error.json()["error"]["retryable"], true, "as docs/reference/errors.md says");

        let overloaded =
            ClientError::Failed { code: ErrorCode::Overloaded, detail: "4096 requests".to_owned() };
        let error = CliError::OfKey { key: "k".to_owned(), error: overloaded };
        assert_eq!(error.exit_code(), 2);
        let document = &error.json()["error"];
        assert_eq!((&document["kind"], &document["retryable"]), (&json!("overloaded"), &json!(true)));
        assert_eq!(document["message"], "key \"k\": overloaded: 4096 requests");
        assert_eq!(document["next"], crate::words::remedy(ErrorCode::Overloaded));

        let unanswered = CliError::Unanswered("order 7 has no answer".to_owned());
        assert_eq!((unanswered.exit_code(), &unanswered.json()["error"]["outcome"]), (3, &json!("unknown")));
        let lost = CliError::from(CoordinationError::Indeterminate { reason: "cut".to_owned() });
        assert_eq!((lost.exit_code(), &lost.json()["error"]["outcome"]), (3, &json!("unknown")));

        let (store, number) = (model::StoreName::new("s").unwrap(), model::ArtifactNumber(1));
        let (silent, lacking) = (Vec::new(), vec![model::NodeId(1)]);
        let refusal = OrderRefusal::NotStaged {
            store,
            number,
            slices: 1,
            slices_total: 1,
            silent,
            lacking,
            held_by: None,
        };
        for again_after_ms in [None, Some(2000)] {
            let refused = ClientError::Refused { refusal: Box::new(refusal.clone()), again_after_ms };
            let document = &CliError::from(refused).json()["error"];
            assert_eq!(
                (&document["kind"], &document["retryable"]),
                (&json!("not-staged"), &json!(again_after_ms.is_some()))
            );
        }

        let refusal = OrderRefusal::Wish(model::plan::PlanRefusal::NodeUnknown { node: model::NodeId(9) });
        let refused =
            CliError::Refused { refusal: Box::new(refusal), text: "no".to_owned(), retryable: false };
        let document = &refused.json()["error"];
        assert_eq!((&document["kind"], &document["code"]), (&json!("node-unknown"), &json!("wish")));
        assert_eq!(document["facts"], json!({ "code": "node-unknown", "facts": { "node": 9 } }));

        let away = CliError::from(CoordinationError::Unavailable { reason: "down".to_owned() }).of_a_start();
        assert_eq!((away.exit_code(), &away.json()["error"]["kind"]), (75, &json!("coordination")));
        assert_eq!(&away.json()["error"]["retryable"], &json!(true));
        assert_eq!(away.once().exit_code(), 2);
        assert_eq!(CliError::Usage("no".to_owned()).of_a_start().exit_code(), 2, "it stays as it is");

        let usage = CliError::Usage("no".to_owned()).json();
        assert_eq!((&usage["error"]["kind"], &usage["error"]["next"]), (&json!("usage"), &Json::Null));
        assert_eq!(usage["error"].get("facts"), None, "only a refused order has them");
    }
}
