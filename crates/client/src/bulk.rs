//! Many keys at once: one message per node, not per key; and walking a whole store.

use std::collections::BTreeMap;

use bytes::Bytes;
use model::limits::MULTI_KEYS_MAX;
use model::{Key, NodeId, PartitionId, Token, VersionSet};
use wire::error::ErrorCode;
use wire::messages::{
    Condition, MultiPut, PutEntry, Request, RequestOptions, Response, Scan, Scanned, Written,
};

use crate::error::ClientError;
use crate::found::Found;
use crate::peers::{Call, CallError};
use crate::store::{StoreHandle, may_go_on};

/// Where a scan of one partition goes on: after this token and key.
pub type ScanAfter = (Token, Bytes);

/// One page of a partition: keys with their whole state, and where to go on.
pub type ScanPage = (Vec<(Bytes, VersionSet)>, Option<ScanAfter>);

impl StoreHandle {
    /// Reads many keys. Each has its own result, in the order of `keys`.
    ///
    /// # Errors
    /// As a whole only for a key that is no key or more than 10,000 keys.
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
        let scope = inner.scope(&self.name)?;
        let now = inner.ports.clock.wall();
        let replicas_answered = options.required.unwrap_or(scope.definition.consistency.reads_required);
        let found = |set: VersionSet| Found { set, now, replicas_answered, sloppy: false };
        let answers = inner.coordinator.multi_get(&scope, keys, options).await;
        Ok(answers.into_iter().map(|answer| answer.map(found).map_err(ClientError::from)).collect())
    }

    /// Writes many keys, each replacing what its coordinator knows. Each has its own result, in order.
    ///
    /// # Errors
    /// As a whole only for a key that is no key or more than 10,000 keys.
    pub async fn multi_put<K: Into<Bytes>, V: Into<Bytes>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
        options: &RequestOptions,
    ) -> Result<Vec<Result<Written, ClientError>>, ClientError> {
        let mut keyed = Vec::new();
        for (key, value) in entries {
            let key = Key::new(key)?;
            let (context, expires, condition) = (None, None, Condition::None);
            let entry =
                PutEntry { key: key.bytes().clone(), context, expires, condition, value: value.into() };
            keyed.push((key, entry));
        }
        check_count(keyed.len())?;
        let mut answers: Vec<Option<Result<Written, ClientError>>> = keyed.iter().map(|_| None).collect();
        let mut errors: Vec<Option<CallError>> = keyed.iter().map(|_| None).collect();
        // Each round asks, for every key without an answer, the next of its candidates.
        let mut tried: Vec<Vec<NodeId>> = keyed.iter().map(|_| Vec::new()).collect();
        loop {
            let groups = self.group(&keyed, &answers, &mut tried)?;
            if groups.is_empty() {
                break;
            }
            self.put_groups(&keyed, groups, options, &mut answers, &mut errors).await?;
        }
        let missing = |error: Option<CallError>| -> ClientError {
            error.map_or(ClientError::NotConnected { detail: "no node to ask".to_owned() }, ClientError::from)
        };
        Ok(answers
            .into_iter()
            .zip(errors)
            .map(|(answer, error)| answer.unwrap_or_else(|| Err(missing(error))))
            .collect())
    }

    /// Keys without an answer, by the first of their candidates that has not been asked.
    fn group(
        &self,
        keyed: &[(Key, PutEntry)],
        answers: &[Option<Result<Written, ClientError>>],
        tried: &mut [Vec<NodeId>],
    ) -> Result<BTreeMap<NodeId, Vec<usize>>, ClientError> {
        let scope = self.client.inner.scope(&self.name)?;
        let mut groups: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (position, (key, _)) in keyed.iter().enumerate() {
            let tried = &mut tried[position];
            if answers[position].is_none()
                && let Some(node) =
                    self.candidates(&scope, key).into_iter().find(|node| !tried.contains(node))
            {
                tried.push(node);
                groups.entry(node).or_default().push(position);
            }
        }
        Ok(groups)
    }

    async fn put_groups(
        &self,
        keyed: &[(Key, PutEntry)],
        groups: BTreeMap<NodeId, Vec<usize>>,
        options: &RequestOptions,
        answers: &mut [Option<Result<Written, ClientError>>],
        errors: &mut [Option<CallError>],
    ) -> Result<(), ClientError> {
        let inner = &self.client.inner;
        let scope = inner.scope(&self.name)?;
        // All messages leave before the first answer is awaited.
        let mut calls = Vec::new();
        for (node, positions) in groups {
            let request = Request::MultiPut(MultiPut {
                store: scope.store.clone(),
                generation: scope.cluster.generation,
                options: options.clone(),
                entries: positions.iter().map(|&position| keyed[position].1.clone()).collect(),
            });
            calls.push((positions, inner.peers.call(node, request)));
        }
        for (positions, call) in calls {
            let answer = match call {
                Call::Ready(answer) => answer,
                Call::Pending(future) => inner.coordinator.within_deadline(future, options).await,
            };
            match answer {
                Ok(Response::MultiWritten(written)) if written.results.len() == positions.len() => {
                    for (position, result) in positions.into_iter().zip(written.results) {
                        settle(position, result.map_err(CallError::Refused), answers, errors);
                    }
                }
                Ok(_) => settle_all(positions, CallError::Broken, answers, errors),
                Err(error) => settle_all(positions, error, answers, errors),
            }
        }
        Ok(())
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
            Response::Scanned(Scanned { records, next }) => Ok((records, next)),
            _ => Err(CallError::Broken.into()),
        }
    }
}

fn settle_all(
    positions: Vec<usize>,
    error: CallError,
    answers: &mut [Option<Result<Written, ClientError>>],
    errors: &mut [Option<CallError>],
) {
    for position in positions {
        settle(position, Err(error.clone()), answers, errors);
    }
}

/// Keeps what is final; an error after which another node may be asked is only remembered.
fn settle(
    position: usize,
    result: Result<Written, CallError>,
    answers: &mut [Option<Result<Written, ClientError>>],
    errors: &mut [Option<CallError>],
) {
    match result {
        Ok(written) => answers[position] = Some(Ok(written)),
        Err(error) if may_go_on(&error) => errors[position] = Some(error),
        Err(error) => answers[position] = Some(Err(error.into())),
    }
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
