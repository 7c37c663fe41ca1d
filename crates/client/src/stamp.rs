//! Puts and deletes of one key or many, as a client's library sends them to nodes that stamp them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Generation, Moment, NodeId, PreferenceList, Value};
use protocol::quorum::{KeyIndex, StampEntry, StampOptions, StampOutcome};
use runtime::Clock;
use smallvec::SmallVec;
use wire::messages::{Condition, Delete, MultiPut, Put, PutEntry, Request, RequestOptions, Response};

use crate::coordinator::{
    Answers, Errand, Scope, Stamped, Stampers, Unwritten, all, left_at, parcels, stamp,
};
use crate::error::ClientError;
use crate::peers::{Call, CallError};
use crate::store::StoreHandle;
use crate::write_order::WriteOrder;

/// Orders on their way.
struct Orders<'a> {
    store: &'a StoreHandle,
    orders: &'a [WriteOrder],
    options: &'a RequestOptions,
    end: Moment,
}

impl StoreHandle {
    /// Has each of these written by one node. Each has its own result, in their order.
    ///
    /// # Errors
    /// As a whole only when the store is unknown, or the options ask for what it does not have.
    pub(crate) async fn stamp(
        &self,
        orders: &[WriteOrder],
        options: &RequestOptions,
        entry: StampEntry,
    ) -> Result<Stamped<ClientError>, ClientError> {
        let inner = &self.client.inner;
        let now = inner.ports.clock.now();
        let end = now.after(inner.coordinator.span(options));
        let settings = StampOptions { own: None, entry, retries: inner.options.retries, deadline: end };
        let sent = Orders { store: self, orders, options, end };
        stamp(&sent, orders.len(), settings, now).await
    }
}

impl Stampers for Orders<'_> {
    type View = Scope;
    type Refusal = ClientError;

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.store.client.inner.ports.clock
    }

    fn view(&self) -> Result<Scope, ClientError> {
        self.store.client.inner.scope_for(&self.store.name, self.options)
    }

    fn terms(&self, scope: &Scope) -> (Generation, bool) {
        (scope.cluster.generation, false)
    }

    fn preference(&self, scope: &Scope, key: KeyIndex) -> PreferenceList {
        let WriteOrder { key, condition, .. } = &self.orders[key.position()];
        match condition {
            Condition::None => self.store.client.inner.coordinator.preference(scope, key.as_bytes()),
            // Writers that compete are judged best by the same node.
            _ => scope.preference(key.as_bytes()),
        }
    }

    fn is_suspected(&self, node: NodeId) -> bool {
        self.store.client.inner.peers.is_suspected(node)
    }

    fn lagging(&self) -> SmallVec<[NodeId; 4]> {
        self.store.client.inner.coordinator.lagging()
    }

    async fn barred(
        &self,
        _scope: &Scope,
        _routes: &[(KeyIndex, PreferenceList)],
    ) -> Option<Vec<(KeyIndex, ClientError)>> {
        None
    }

    fn adopt(&self, document: &Bytes) -> Option<Generation> {
        self.store.client.inner.adopt(document)
    }

    async fn pause(&self, pause: Duration) {
        self.store.rest(pause).await;
    }

    fn messages(&self, errand: Errand) -> Vec<Errand> {
        let bytes = |key: &KeyIndex| {
            let WriteOrder { key, value, .. } = &self.orders[key.position()];
            key.as_bytes().len() + if let Value::Present(value) = value { value.len() } else { 0 }
        };
        let messages = parcels(errand.keys.iter().copied(), bytes);
        messages.into_iter().map(|keys| Errand { keys: keys.into(), ..errand.clone() }).collect()
    }

    /// A node's queue is no place for more.
    fn messages_at_once(&self) -> usize {
        1
    }

    async fn carry(&self, scope: Scope, errand: Errand) -> (NodeId, Answers) {
        let patience = errand.patience_until(self.end);
        let Errand { node, keys, at, .. } = errand;
        let request = self.request(&scope, &keys, at);
        let answer = match self.store.client.inner.peers.call_promptly(node, request, Some(patience)) {
            Call::Ready(answer) => answer,
            Call::Pending(answer) => answer.await,
        };
        let answers = match answer {
            Ok(Response::Written(written)) if keys.len() == 1 => all(&keys, &Ok(written)),
            Ok(Response::MultiWritten(written)) if written.results.len() == keys.len() => {
                let results = written.results.into_iter().map(|result| result.map_err(CallError::Refused));
                keys.into_iter().zip(results).collect()
            }
            Ok(_) => all(&keys, &Err(CallError::Broken)),
            Err(error) => all(&keys, &Err(error)),
        };
        (node, answers)
    }
}

impl Orders<'_> {
    fn request(&self, scope: &Scope, keys: &[KeyIndex], at: Moment) -> Request {
        let (store, generation) = (scope.store.clone(), scope.cluster.generation);
        let options = left_at(at, self.end, self.options);
        if let [key] = keys {
            let WriteOrder { key, context, condition, expires, value } = self.orders[key.position()].clone();
            let key = key.bytes().clone();
            return match value {
                Value::Present(value) => {
                    Put { store, generation, options, key, context, expires, condition, value }.into()
                }
                Value::Tombstone => Delete { store, generation, options, key, context, condition }.into(),
            };
        }
        let entry = |key: &KeyIndex| {
            let WriteOrder { key, context, condition, expires, value } = self.orders[key.position()].clone();
            let Value::Present(value) = value else { unreachable!("a client deletes keys one by one") };
            PutEntry { key: key.bytes().clone(), context, expires, condition, value }
        };
        MultiPut { store, generation, options, entries: keys.iter().map(entry).collect() }.into()
    }
}

impl From<Unwritten<ClientError>> for ClientError {
    fn from(unwritten: Unwritten<ClientError>) -> Self {
        let Unwritten { outcome, mut said, barred } = unwritten;
        if let Some(refusal) = barred {
            return refusal;
        }
        match outcome {
            StampOutcome::Exhausted => {
                let is_refusal = |(_, error): &(NodeId, CallError)| matches!(error, CallError::Refused(_));
                // A node that answered knows more than one that did not.
                if let Some(position) = said.iter().rposition(is_refusal) {
                    return said.swap_remove(position).1.into();
                }
                let reasons: Vec<String> = said.iter().map(|(_, error)| error.to_string()).collect();
                let reasons = reasons.join("; ");
                ClientError::Unreachable {
                    detail: format!("no node that could take the write can be reached: {reasons}"),
                }
            }
            StampOutcome::Written
            | StampOutcome::Refused
            | StampOutcome::InDoubt { .. }
            | StampOutcome::NotHere => {
                // It says by itself whether the write may have happened.
                said.pop().map_or(CallError::Broken, |(_, refusal)| refusal).into()
            }
        }
    }
}
