//! Many keys at once: one message per node, not per key; and walking a whole store.

use bytes::Bytes;
use model::limits::MULTI_KEYS_MAX;
use model::{Key, Moment, NodeId, PartitionId, Token, Value, WallMillis};
use protocol::quorum::StampEntry;
use wire::error::ErrorCode;
use wire::messages::{Condition, Failure, Got, RequestOptions, Response, Scanned, Written};

use crate::error::ClientError;
use crate::found::Found;
use crate::peers::CallError;
use crate::store::StoreHandle;
use crate::write_order::WriteOrder;

/// Bytes of keys and values after which a page of a scan ends.
const SCAN_BYTES_MAX: u32 = 4 * 1024 * 1024;

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
            let scope = self.scope_for(options)?;
            let mut left: Vec<usize> = positions(&answers, |answer| match answer {
                None => true,
                Some(Err(failure)) => failure.code.is_retryable(),
                Some(Ok(_)) => false,
            });
            if scope.is_read_only() && !left.is_empty() {
                // Another attempt may read another artifact, so it reads all keys.
                left = (0..keys.len()).collect();
            }
            if left.is_empty() || (attempt > 0 && !self.may_try_again(attempt - 1, end)) {
                break;
            }
            if attempt > 0 {
                self.pause(attempt - 1).await;
            }
            attempt += 1;
            // The pause may have brought a newer document.
            let scope = self.scope_for(options)?;
            let keys = left.iter().map(|&position| keys[position].clone()).collect();
            let options = &self.until(end, options);
            let got = match inner.reads_through_nodes(&scope) {
                true => inner.multi_get_through_nodes(&scope, keys, options).await,
                false => inner.coordinator.multi_get(&scope, keys, options, usize::MAX).await,
            };
            assert_eq!(got.len(), left.len(), "each key that is left has an answer");
            for (position, answer) in left.into_iter().zip(got) {
                answers[position] = Some(answer);
            }
        }
        let now = inner.ports.clock.wall();
        let answers = answers.into_iter().map(|answer| answer.expect("every key was asked for"));
        let found = |answer: Result<Got, Failure>| answer.and_then(|got| Found::of(got, now));
        Ok(answers.map(|answer| found(answer).map_err(ClientError::from)).collect())
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
        self.put_all(&plain_puts(entries)?, options).await
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
        self.put_all(&plain_puts(entries)?, options).await
    }

    async fn put_all(
        &self,
        orders: &[WriteOrder],
        options: &RequestOptions,
    ) -> Result<Vec<Result<Written, ClientError>>, ClientError> {
        let answers = self.stamp(orders, options, StampEntry::Client).await?;
        Ok(answers.into_iter().map(|answer| answer.map_err(ClientError::from)).collect())
    }

    /// Whether a request may be tried once more after `attempt` further attempts.
    fn may_try_again(&self, attempt: u32, end: Moment) -> bool {
        let inner = &self.client.inner;
        attempt < inner.options.retries && inner.ports.clock.now() < end
    }

    /// One page of a partition as one node holds it, for tools that walk a store; use several nodes and merge where
    /// a single replica is not enough. The page is of the partition as the newest document that the client knows has it:
    /// a walk that goes on must compare its bounds, because the partition may be split or merged meanwhile.
    ///
    /// # Errors
    /// When the node cannot be reached or refuses. The client follows the newer cluster document that a refusal carries:
    /// other nodes may hold the partition now.
    pub async fn scan(
        &self,
        node: NodeId,
        partition: PartitionId,
        after: Option<ScanAfter>,
        records_max: u32,
    ) -> Result<ScanPage, ClientError> {
        let inner = &self.client.inner;
        let scope = self.scope_for(&RequestOptions::default())?;
        let found = scope.cluster.ring.get(partition).ok_or_else(|| ClientError::Failed {
            code: ErrorCode::StaleGeneration,
            detail: format!("the ring has no partition {partition} any more"),
        })?;
        let Some(request) = scope.scan_request(found, after, records_max, SCAN_BYTES_MAX) else {
            return Ok(ScanPage { records: Vec::new(), next: None, damaged: 0 });
        };
        match inner.call(node, request).await {
            Ok(Response::Scanned(page)) => Ok(page),
            Ok(_) => Err(CallError::Broken.into()),
            Err(error) => {
                if let CallError::Refused(Failure { cluster: Some(document), .. }) = &error {
                    inner.adopt(document);
                }
                Err(error.into())
            }
        }
    }
}

/// Puts that replace what their coordinators know.
fn plain_puts<K: Into<Bytes>, V: Into<Bytes>>(
    entries: impl IntoIterator<Item = (K, V, Option<WallMillis>)>,
) -> Result<Vec<WriteOrder>, ClientError> {
    let mut orders = Vec::new();
    for (key, value, expires) in entries {
        let (key, value) = (Key::new(key)?, Value::Present(value.into()));
        orders.push(WriteOrder { key, context: None, condition: Condition::None, expires, value });
    }
    check_count(orders.len())?;
    Ok(orders)
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
        detail: format!("{count} keys in one request exceed the limit of {MULTI_KEYS_MAX}"),
    })
}
