//! What can go wrong for an application, and what it then knows.

use model::KeyError;
use thiserror::Error;
use wire::error::{ErrorCode, Outcome};
use wire::messages::Failure;

use crate::peers::CallError;

/// Why a request of an application was not done, or may not have been.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// None of the nodes could be reached. Nothing was done.
    #[error("cannot reach any node of the cluster: {detail}")]
    NotConnected {
        /// What happened at each, with its address.
        detail: String,
    },
    /// The one node that this is about could not be reached; others may be. Nothing was done.
    #[error("{detail}")]
    Unreachable {
        /// What happened, with its address.
        detail: String,
    },
    /// The key is empty or too long. Nothing was done.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The cluster has no such store. Nothing was done.
    #[error("store {store:?} does not exist; the stores are: {known}")]
    UnknownStore {
        /// The name as given.
        store: String,
        /// The names that exist.
        known: String,
    },
    /// The request asks for more replicas than the store keeps of a key. Nothing was done.
    #[error("the request requires {required} replicas, and the store keeps only {replicas} of each key")]
    TooFewReplicas {
        /// The R or W of the request.
        required: u8,
        /// N.
        replicas: u8,
    },
    /// The store has no such range: it keeps no windows, a group is missing or too many, or the range goes backwards.
    /// Nothing was done.
    #[error("{detail}")]
    NoRange {
        /// Why, and what a range of this store is.
        detail: String,
    },
    /// The request was refused. Nothing was done; the code says why.
    #[error("{code}: {detail}")]
    Failed {
        /// Why.
        code: ErrorCode,
        /// The facts of this case.
        detail: String,
    },
    /// The write may have been done, or may yet be: read before writing again.
    #[error("outcome unknown: {detail}")]
    Indeterminate {
        /// What is known.
        detail: String,
    },
    /// The headmaster refused an order. Nothing was changed.
    #[error("the order was refused: {}", .refusal.code())]
    Refused {
        /// Why.
        refusal: Box<model::order::OrderRefusal>,
        /// What it was refused for passes by itself: after this many milliseconds it may be given again.
        again_after_ms: Option<u64>,
    },
    /// The siblings changed each time between reading and writing their merge.
    #[error("other clients changed the key during each of {attempts} attempts; try again")]
    Contended {
        /// How often.
        attempts: usize,
    },
}

impl ClientError {
    /// No node was reached, for these reasons.
    pub(crate) fn nobody(reasons: &[String]) -> ClientError {
        ClientError::NotConnected { detail: reasons.join("; ") }
    }

    /// Whether a write may have been done all the same.
    pub fn is_indeterminate(&self) -> bool {
        matches!(self, ClientError::Indeterminate { .. })
    }

    /// Whether a newer version made the write obsolete: read again, then write with that context. Best read again with
    /// `preferred` above the number of replicas: a replica that lacks what the others hold refuses some writes, too, and
    /// has it when it was read.
    pub fn is_obsolete(&self) -> bool {
        matches!(self, ClientError::Failed { code: ErrorCode::Obsolete, .. })
    }

    /// Whether the same request may succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        match self {
            ClientError::Failed { code, .. } => code.is_retryable(),
            ClientError::NotConnected { .. }
            | ClientError::Unreachable { .. }
            | ClientError::Contended { .. } => true,
            ClientError::Refused { again_after_ms, .. } => again_after_ms.is_some(),
            _ => false,
        }
    }
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        match failure.code.outcome() {
            Outcome::Indeterminate => ClientError::Indeterminate {
                detail: match failure.code {
                    ErrorCode::Indeterminate => failure.detail,
                    _ => failure.to_string(),
                },
            },
            Outcome::Failed => ClientError::Failed { code: failure.code, detail: failure.detail },
        }
    }
}

impl From<CallError> for ClientError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unreachable { reason } => ClientError::Unreachable { detail: reason },
            CallError::Broken => ClientError::Indeterminate { detail: error.to_string() },
            CallError::Refused(failure) => failure.into(),
        }
    }
}
