//! What a refused request learns of a newer cluster document: what changed since its own.
//!
//! Many requests of a client are refused at once when a partition steps, and a document may have megabytes.

use client::peers::CallError;
use model::Generation;
use wire::error::ErrorCode;
use wire::messages::{Failure, Request, Response};

use crate::replica::Replica;

/// The document that the caller of a request follows, if it is to be told what changed since.
#[derive(Clone, Copy)]
pub(super) struct News(Option<Generation>);

impl News {
    /// Of a request that came over a link.
    pub(super) fn of(request: &Request) -> News {
        News(match request {
            Request::ReplicaGet(get) => Some(get.generation),
            Request::ReplicaMerge(merge) => Some(merge.generation),
            _ => None,
        })
    }

    /// What the replica of this process answered, as it goes over the link.
    pub(super) fn refusal(
        self,
        replica: &Replica,
        answer: Result<Response, CallError>,
    ) -> Result<Response, Failure> {
        let mut failure = match answer {
            Ok(answer) => return Ok(answer),
            Err(CallError::Refused(failure)) => failure,
            Err(other) => Failure::new(ErrorCode::Internal, other.to_string()),
        };
        if let (Some(document), Some(since)) = (&mut failure.cluster, self.0) {
            *document = replica.view().get().news(since).clone();
        }
        Err(failure)
    }
}
