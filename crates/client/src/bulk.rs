//! Many keys at once: one message per node, not per key; and walking a whole store.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::join_all;
use model::limits::MULTI_KEYS_MAX;
use model::{Key, Moment, NodeId, PartitionId, Token, WallMillis};
use wire::error::ErrorCode;
use wire::messages::{
    Condition, Failure, Got, MultiPut, PutEntry, Request, RequestOptions, Response, Scan, Scanned, Written,
};

use crate::coordinator::{Scope, parcels};
use crate::error::ClientError;
use crate::found::Found;
use crate::peers::{Call, CallError};
use crate::store::{StoreHandle, may_go_on};

/// Where a scan of one partition goes on: after this token and key.
pub type ScanAfter = (Token, Bytes);

/// One page of a partition: keys with their whole state, where to go on, and how many damaged records are left out.
pub type ScanPage = Scanned;

impl StoreHandle {
    /// Reads many keys. Each has its own result, in the order of `keys`; keys that failed and may succeed later are
    /// asked again after a pause, as in a single get.
    ///
    /// However much the values are, they come: in several messages where one would be too long. All of them are in
    /// memory at the end.
    ///
    /// # Errors
    /// As a whole only for a key that is no key, more than 10,000 keys, or an unknown store.
    pub async fn multi_get<K: Into<Bytes>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        options: &RequestOptions,
    ) -> Result<Vec<Result<Found, ClientError>>, ClientError> {
        let keys: Vec<Bytes> = keys
            .into_iter()
            .map(|key| Key::new(key).map(|key| key.bytes().clone()))
            .collect::<Result<_, _>>()?;
        check_count(keys.len())?;
        let inner = &self.client.inner;
        let end = inner.coordinator.deadline(options);
        let mut answers: Vec<Option<Result<Got, Failure>>> = keys.iter().map(|_| None).collect();
        let mut attempt = 0;
        loop {
            let left: Vec<usize> = positions(&answers, |answer| match answer {
                None => true,
                Some(Err(failure)) => failure.code.is_retryable(),
                Some(Ok(_)) => false,
            });
            if left.is_empty() || (attempt > 0 && !self.may_try_again(attempt - 1, end)) {
                break;
            }
            if attempt > 0 {
                self.pause(attempt - 1).await;
            }
            attempt += 1;
            let scope = inner.scope_for(&self.name, options)?;
            let keys = left.iter().map(|&position| keys[position].clone()).collect();
            let options = &self.until(end, options);
            let got = inner.coordinator.multi_get(&scope, keys, options, usize::MAX).await;
            for (position, answer) in left.into_iter().zip(got) {
                answers[position] = Some(answer);
            }
        }
        let now = inner.ports.clock.wall();
        let found = |Got { set, replicas_answered, sloppy }| Found {
            set,
            now,
            replicas_answered,
            sloppy,
            merged: false,
        };
        let answers = answers.into_iter().map(|answer| answer.expect("every key was asked for"));
        Ok(answers.map(|answer| answer.map(found).map_err(ClientError::from)).collect())
    }

    /// Writes many keys, each replacing what its coordinator knows. Each has its own result, in order: done with
    /// whether it was sloppy, failed, or [`ClientError::Indeterminate`]. Keys that certainly were not written and may
    /// be later are sent again after a pause, as in a single put; nothing is ever written twice here.
    ///
    /// # Errors
    /// As a whole only for a key that is no key, more than 10,000 keys, or an unknown store.
    pub async fn multi_put<K: Into<Bytes>, V: Into<Bytes>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
        options: &RequestOptions,
    ) -> Result<Vec<Result<Written, ClientError>>, ClientError> {
        let entries = entries.into_iter().map(|(key, value)| (key, value, None));
        self.put_all(keyed(entries)?, options).await
    }

    /// The same, of values that may expire: each with the moment at which it does, by the nodes' clocks, or `None` to
    /// live for ever. A moment that has passed is taken, and the key reads as absent then.
    ///
    /// # Errors
    /// As [`Self::multi_put`].
    pub async fn multi_put_until<K: Into<Bytes>, V: Into<Bytes>>(
        &self,
        entries: impl IntoIterator<Item = (K, V, Option<WallMillis>)>,
        options: &RequestOptions,
    ) -> Result<Vec<Result<Written, ClientError>>, ClientError> {
        self.put_all(keyed(entries)?, options).await
    }

    async fn put_all(
        &self,
        keyed: Vec<(Key, PutEntry)>,
        options: &RequestOptions,
    ) -> Result<Vec<Result<Written, ClientError>>, ClientError> {
        let end = self.client.inner.coordinator.deadline(options);
        let mut puts = MultiPutState::new(keyed.len());
        let mut attempt = 0;
        loop {
            let groups = self.group(&keyed, &mut puts)?;
            if groups.is_empty() {
                // Every candidate of every key that is left has been asked.
                if puts.is_settled() || !self.may_try_again(attempt, end) {
                    break;
                }
                self.pause(attempt).await;
                attempt += 1;
                puts.tried.iter_mut().for_each(Vec::clear);
                continue;
            }
            let scope = self.client.inner.scope_for(&self.name, options)?;
            let sent = groups
                .into_iter()
                .map(|(node, positions)| self.put_group(&scope, node, &keyed, positions, options, end));
            for (position, result) in join_all(sent).await.into_iter().flatten() {
                self.settle(position, result, &mut puts);
            }
        }
        Ok(puts.into_results())
    }

    /// Whether a request may be tried once more after `attempt` further attempts.
    fn may_try_again(&self, attempt: u32, end: Moment) -> bool {
        let inner = &self.client.inner;
        attempt < inner.options.retries && inner.ports.clock.now() < end
    }

    /// Keys without a final result, by the first of their candidates that has not been asked.
    fn group(
        &self,
        keyed: &[(Key, PutEntry)],
        puts: &mut MultiPutState,
    ) -> Result<BTreeMap<NodeId, Vec<usize>>, ClientError> {
        let scope = self.client.inner.scope(&self.name)?;
        let mut groups: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for position in positions(&puts.results, Option::is_none) {
            let tried = &mut puts.tried[position];
            let candidates = self.candidates(&scope, &keyed[position].0, Condition::None);
            if let Some(node) = candidates.into_iter().find(|node| !tried.contains(node)) {
                tried.push(node);
                groups.entry(node).or_default().push(position);
            }
        }
        Ok(groups)
    }

    /// Sends one node its keys, in as many messages as their length asks for, one after the other: the node's queue
    /// is no place for more.
    async fn put_group(
        &self,
        scope: &Scope,
        node: NodeId,
        keyed: &[(Key, PutEntry)],
        positions: Vec<usize>,
        options: &RequestOptions,
        end: Moment,
    ) -> Vec<(usize, Result<Written, CallError>)> {
        let inner = &self.client.inner;
        let entry_bytes = |&position: &usize| keyed[position].1.key.len() + keyed[position].1.value.len();
        let mut results = Vec::with_capacity(positions.len());
        for positions in parcels(positions, entry_bytes) {
            if !results.is_empty() && inner.ports.clock.now() >= end {
                let late = CallError::Unreachable { reason: "time was over before it was sent".to_owned() };
                results.extend(positions.into_iter().map(|position| (position, Err(late.clone()))));
                continue;
            }
            let options = self.until(end, options);
            let request = Request::MultiPut(MultiPut {
                store: scope.store.clone(),
                generation: scope.cluster.generation,
                options: options.clone(),
                entries: positions.iter().map(|&position| keyed[position].1.clone()).collect(),
            });
            let answer = match inner.peers.call(node, request) {
                Call::Ready(answer) => answer,
                Call::Pending(future) => inner.coordinator.within_deadline(future, &options).await,
            };
            match answer {
                Ok(Response::MultiWritten(written)) if written.results.len() == positions.len() => {
                    let written =
                        written.results.into_iter().map(|result| result.map_err(CallError::Refused));
                    results.extend(positions.into_iter().zip(written));
                }
                Ok(_) => results.extend(all(positions, CallError::Broken)),
                Err(error) => results.extend(all(positions, error)),
            }
        }
        results
    }

    /// Keeps what is final; an error after which another node may be asked is only remembered.
    fn settle(&self, position: usize, result: Result<Written, CallError>, puts: &mut MultiPutState) {
        match result {
            Ok(written) => puts.results[position] = Some(Ok(written)),
            Err(error) if may_go_on(&error) => {
                if let CallError::Refused(Failure { cluster: Some(document), .. }) = &error {
                    self.client.inner.adopt(document);
                }
                puts.errors[position] = Some(error);
            }
            Err(error) => puts.results[position] = Some(Err(error.into())),
        }
    }

    /// One page of a partition as one node holds it, for tools that walk a store; use several nodes and merge where
    /// a single replica is not enough.
    ///
    /// # Errors
    /// When the node cannot be reached or refuses.
    pub async fn scan(
        &self,
        node: NodeId,
        partition: PartitionId,
        after: Option<ScanAfter>,
        records_max: u32,
    ) -> Result<ScanPage, ClientError> {
        let inner = &self.client.inner;
        let scope = inner.scope(&self.name)?;
        let request = Request::Scan(Scan {
            store: scope.store.clone(),
            generation: scope.cluster.generation,
            partition,
            after,
            records_max,
            bytes_max: 4 * 1024 * 1024,
        });
        match inner.call(node, request).await? {
            Response::Scanned(page) => Ok(page),
            _ => Err(CallError::Broken.into()),
        }
    }
}

/// Where the keys of a multi-put stand.
struct MultiPutState {
    /// What is final.
    results: Vec<Option<Result<Written, ClientError>>>,
    /// Why the last node that was asked did not write it.
    errors: Vec<Option<CallError>>,
    /// Nodes that were asked in this attempt.
    tried: Vec<Vec<NodeId>>,
}

impl MultiPutState {
    fn new(count: usize) -> Self {
        MultiPutState {
            results: (0..count).map(|_| None).collect(),
            errors: (0..count).map(|_| None).collect(),
            tried: (0..count).map(|_| Vec::new()).collect(),
        }
    }

    fn is_settled(&self) -> bool {
        self.results.iter().all(Option::is_some)
    }

    fn into_results(self) -> Vec<Result<Written, ClientError>> {
        let missing = |error: Option<CallError>| -> ClientError {
            error.map_or_else(
                || ClientError::nobody(&["the cluster has no nodes".to_owned()]),
                ClientError::from,
            )
        };
        let results = self.results.into_iter().zip(self.errors);
        results.map(|(result, error)| result.unwrap_or_else(|| Err(missing(error)))).collect()
    }
}

/// Puts without a context, each beside its key.
fn keyed<K: Into<Bytes>, V: Into<Bytes>>(
    entries: impl IntoIterator<Item = (K, V, Option<WallMillis>)>,
) -> Result<Vec<(Key, PutEntry)>, ClientError> {
    let mut keyed = Vec::new();
    for (key, value, expires) in entries {
        let key = Key::new(key)?;
        let (context, condition) = (None, Condition::None);
        let entry = PutEntry { key: key.bytes().clone(), context, expires, condition, value: value.into() };
        keyed.push((key, entry));
    }
    check_count(keyed.len())?;
    Ok(keyed)
}

/// The same error for each key of a message.
fn all(positions: Vec<usize>, error: CallError) -> impl Iterator<Item = (usize, Result<Written, CallError>)> {
    positions.into_iter().map(move |position| (position, Err(error.clone())))
}

/// Positions of the elements that are meant.
fn positions<T>(elements: &[T], meant: impl Fn(&T) -> bool) -> Vec<usize> {
    let meant = elements.iter().enumerate().filter(|(_, element)| meant(element));
    meant.map(|(position, _)| position).collect()
}

fn check_count(count: usize) -> Result<(), ClientError> {
    if count <= MULTI_KEYS_MAX {
        return Ok(());
    }
    Err(ClientError::Failed {
        code: ErrorCode::TooManyKeys,
        detail: format!("{count} keys in one request, the limit is {MULTI_KEYS_MAX}"),
    })
}
