//! Reads that a node drives for a client.
//!
//! In a store with monotonic reads a get writes back what it found before it answers. In a closed cluster no client may
//! write to a replica, so it has a node drive such a get. One hop more is the price.
//!
//! Must never: answer *not found* where no node did.

use bytes::Bytes;
use futures_util::StreamExt;
use model::Reads;
use wire::error::ErrorCode;
use wire::messages::{Failure, Get, Got, Request, RequestOptions, Response};

use crate::connect::Inner;
use crate::coordinator::Scope;
use crate::peers::CallError;

/// Gets of one request that are under way at the same time.
const AT_ONCE: usize = 64;

impl Inner {
    /// Whether reads of this scope go through nodes.
    pub(crate) fn reads_through_nodes(&self, scope: &Scope) -> bool {
        scope.cluster.is_closed() && !scope.is_read_only() && scope.definition.reads == Reads::Monotonic
    }

    /// Has a node read a key: a replica of it, or else one that stands in.
    pub(crate) async fn get_through_node(
        &self,
        scope: &Scope,
        key: Bytes,
        options: &RequestOptions,
    ) -> Result<Got, Failure> {
        let end = self.coordinator.deadline(options);
        let (preference, generation) = (scope.preference(&key), scope.cluster.generation);
        let nodes = preference.writers().iter().chain(preference.fallbacks());
        let mut reasons = Vec::new();
        for &node in nodes {
            let now = self.ports.clock.now();
            if now >= end {
                break;
            }
            let get =
                Get { store: scope.store.clone(), generation, options: options.clone(), key: key.clone() };
            match self.call_for(node, Request::Get(get), end.since(now)).await {
                Ok(Response::Got(got)) => return Ok(got),
                Ok(other) => reasons.push(format!("{node}: unexpected answer {}", other.name())),
                Err(CallError::Refused(failure)) => {
                    if let Some(document) = &failure.cluster {
                        self.adopt(document);
                    }
                    if !failure.code.is_retryable() {
                        return Err(failure);
                    }
                    reasons.push(format!("{node}: {}", failure.detail));
                }
                Err(error) => reasons.push(format!("{node}: {error}")),
            }
        }
        Err(Failure::new(ErrorCode::InsufficientReplicas, reasons.join(", ")))
    }

    /// Has nodes read many keys; answers in their order.
    pub(crate) async fn multi_get_through_nodes(
        &self,
        scope: &Scope,
        keys: Vec<Bytes>,
        options: &RequestOptions,
    ) -> Vec<Result<Got, Failure>> {
        let gets = keys.into_iter().map(|key| self.get_through_node(scope, key, options));
        futures_util::stream::iter(gets).buffered(AT_ONCE).collect().await
    }
}
