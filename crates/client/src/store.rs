//! One store, as an application uses it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Context, Key, NodeId, Resolver, WallMillis};
use wire::error::Outcome;
use wire::messages::{Condition, Delete, Failure, Put, Request, RequestOptions, Response, Written};

use crate::connect::Client;
use crate::coordinator::Scope;
use crate::error::ClientError;
use crate::found::Found;
use crate::peers::CallError;

/// How long a node may take at first to open a connection before another one is asked; doubles with each further attempt.
const OPEN_PATIENCE: Duration = Duration::from_millis(200);
/// First pause before another attempt; doubles with each further one.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Rounds of reading, merging and writing before another writer is given the way.
const MERGE_ATTEMPTS_MAX: usize = 16;

/// Most doublings of the pause between them.
const MERGE_DOUBLINGS_MAX: u32 = 3;

/// Merges concurrent values into one. Must not depend on their order.
pub type Merge = Arc<dyn Fn(&[Bytes]) -> Bytes + Send + Sync>;

/// How a put shall be done.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// What the writer has seen: the put replaces exactly that. `None` replaces what the coordinator knows.
    pub context: Option<Context>,
    /// How long the value lives; `None` for ever.
    pub ttl: Option<Duration>,
    /// What must hold at the coordinator.
    pub condition: Condition,
    /// Quorum and deadline.
    pub request: RequestOptions,
}

impl PutOptions {
    /// A put that replaces what this get saw.
    pub fn after(found: &Found) -> Self {
        PutOptions { context: Some(found.context()), ..PutOptions::default() }
    }
}

/// A store of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct StoreHandle {
    pub(crate) client: Client,
    pub(crate) name: Arc<str>,
    merge: Option<Merge>,
}

impl StoreHandle {
    pub(crate) fn new(client: Client, name: &str) -> Self {
        StoreHandle { client, name: name.into(), merge: None }
    }

    /// The store's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Merges siblings whenever a get finds some, and writes the merge back.
    pub fn with_merge(mut self, merge: Merge) -> Self {
        self.merge = Some(merge);
        self
    }

    /// Reads a key with the store's own R.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Found, ClientError> {
        self.get_with(key, &RequestOptions::default()).await
    }

    /// Reads a key.
    ///
    /// # Errors
    /// [`ClientError::Failed`] with `InsufficientReplicas` when too few replicas answered, after all retries. A get
    /// is never indeterminate.
    pub async fn get_with(
        &self,
        key: impl Into<Bytes>,
        options: &RequestOptions,
    ) -> Result<Found, ClientError> {
        let key = Key::new(key)?;
        let found = self.get_once_more(&key, options).await?;
        match &self.merge {
            Some(merge) if found.values().count() > 1 => {
                let merge = merge.clone();
                self.merge_siblings(key, found, options, move |values| merge(values)).await
            }
            _ => Ok(found),
        }
    }

    /// Reads a key, lets `merge` make one value of its siblings, and writes that with the context of the read, until
    /// no other writer comes in between. A key with one value or none is left as it is.
    pub async fn resolve(
        &self,
        key: impl Into<Bytes>,
        merge: impl Fn(&[Bytes]) -> Bytes,
    ) -> Result<Found, ClientError> {
        let key = Key::new(key)?;
        let options = RequestOptions::default();
        let found = self.get_once_more(&key, &options).await?;
        self.merge_siblings(key, found, &options, merge).await
    }

    /// Writes a key and returns the context of the write.
    ///
    /// # Errors
    /// [`ClientError::Failed`] when it certainly was not written: the code tells `Obsolete`, `ConditionFailed`,
    /// `ValueTooLarge`, `TooManySiblings`, `DiskFull`, `InsufficientReplicas`. [`ClientError::Indeterminate`] when
    /// it may have been: it is never written twice by a retry here.
    pub async fn put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        options: PutOptions,
    ) -> Result<Written, ClientError> {
        let key = Key::new(key)?;
        let expires = options.ttl.map(|ttl| self.expiry(ttl));
        let PutOptions { context, condition, request, .. } = options;
        let (value, bytes) = (value.into(), key.bytes().clone());
        self.write(&key, condition, &request.clone(), move |store, generation| {
            Request::Put(Put {
                store,
                generation,
                options: request.clone(),
                key: bytes.clone(),
                context: context.clone(),
                expires,
                condition,
                value: value.clone(),
            })
        })
        .await
    }

    /// Deletes a key: with a context exactly what it covers, without one what the coordinator knows.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(
        &self,
        key: impl Into<Bytes>,
        context: Option<Context>,
        options: RequestOptions,
    ) -> Result<Written, ClientError> {
        let key = Key::new(key)?;
        let bytes = key.bytes().clone();
        self.write(&key, Condition::None, &options.clone(), move |store, generation| {
            Request::Delete(Delete {
                store,
                generation,
                options: options.clone(),
                key: bytes.clone(),
                context: context.clone(),
                condition: Condition::None,
            })
        })
        .await
    }

    pub(crate) fn expiry(&self, ttl: Duration) -> WallMillis {
        let now = self.client.inner.ports.clock.wall().0;
        WallMillis(now.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
    }

    async fn get_once_more(&self, key: &Key, options: &RequestOptions) -> Result<Found, ClientError> {
        let inner = &self.client.inner;
        let end = inner.coordinator.deadline(options);
        let mut attempt = 0;
        loop {
            let scope = inner.scope_for(&self.name, options)?;
            let options = &self.until(end, options);
            match inner.coordinator.get(&scope, key.bytes().clone(), options).await {
                Ok(got) => {
                    return Ok(Found {
                        set: got.set,
                        now: inner.ports.clock.wall(),
                        replicas_answered: got.replicas_answered,
                        sloppy: got.sloppy,
                        merged: false,
                    });
                }
                Err(failure)
                    if failure.code.is_retryable()
                        && attempt < inner.options.retries
                        && inner.ports.clock.now() < end =>
                {
                    self.pause(attempt).await;
                    attempt += 1;
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    async fn merge_siblings(
        &self,
        key: Key,
        mut found: Found,
        options: &RequestOptions,
        merge: impl Fn(&[Bytes]) -> Bytes,
    ) -> Result<Found, ClientError> {
        let mut merged = false;
        // A replica that refuses what it lacks the reason for is brought it when it is read, too.
        let again = RequestOptions { preferred: Some(u8::MAX), ..options.clone() };
        for attempt in 0..MERGE_ATTEMPTS_MAX {
            let values: Vec<Bytes> = found.values().cloned().collect();
            if values.len() < 2 {
                return Ok(Found { merged, ..found });
            }
            let put = PutOptions { request: options.clone(), ..PutOptions::after(&found) };
            found = match self.put(key.bytes().clone(), merge(&values), put).await {
                Ok(_) => {
                    merged = true;
                    self.get_once_more(&key, options).await?
                }
                Err(error) if error.is_obsolete() => {
                    self.pause(u32::try_from(attempt).unwrap_or(u32::MAX).min(MERGE_DOUBLINGS_MAX)).await;
                    self.get_once_more(&key, &again).await?
                }
                Err(error) => return Err(error),
            };
        }
        Err(ClientError::Contended { attempts: MERGE_ATTEMPTS_MAX })
    }

    /// Sends a write to one replica of the key, which stamps it and drives the others. Goes on to the next node only
    /// while the write certainly was not done.
    async fn write(
        &self,
        key: &Key,
        condition: Condition,
        options: &RequestOptions,
        request: impl Fn(wire::messages::StoreRef, model::Generation) -> Request,
    ) -> Result<Written, ClientError> {
        let inner = &self.client.inner;
        let end = inner.coordinator.deadline(options);
        let mut attempt = 0;
        loop {
            let scope = inner.scope_for(&self.name, options)?;
            let options = &self.until(end, options);
            let (mut refused, mut unreached) = (None, Vec::new());
            // A node that hangs lets whoever connects wait, so another one is asked first; but that all are slow is
            // no reason to fail.
            let patience =
                (attempt < inner.options.retries).then(|| OPEN_PATIENCE.saturating_mul(1 << attempt.min(8)));
            for node in self.candidates(&scope, key, condition) {
                let request = request(scope.store.clone(), scope.cluster.generation);
                let answer = match inner.peers.call_promptly(node, request, patience) {
                    crate::peers::Call::Ready(answer) => answer,
                    crate::peers::Call::Pending(future) => {
                        inner.coordinator.within_deadline(future, options).await
                    }
                };
                match answer {
                    Ok(Response::Written(written)) => return Ok(written),
                    Ok(_) => return Err(CallError::Broken.into()),
                    Err(error) if may_go_on(&error) => {
                        if let CallError::Refused(Failure { cluster: Some(document), .. }) = &error {
                            inner.adopt(document);
                        }
                        match error {
                            CallError::Unreachable { reason } => unreached.push(reason),
                            other => refused = Some(other),
                        }
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if attempt >= inner.options.retries || inner.ports.clock.now() >= end {
                // A node that answered knows more than one that did not.
                return Err(refused.map_or_else(|| ClientError::nobody(&unreached), ClientError::from));
            }
            self.pause(attempt).await;
            attempt += 1;
        }
    }

    /// The options of one more attempt of a request that must be answered by `end`.
    pub(crate) fn until(&self, end: model::Moment, options: &RequestOptions) -> RequestOptions {
        let left = end.since(self.client.inner.ports.clock.now()).as_millis();
        RequestOptions { deadline_ms: u32::try_from(left).unwrap_or(u32::MAX).max(1), ..options.clone() }
    }

    /// Whom to ask to stamp a write: replicas, then fallbacks; those that are down last. A replica that lags comes after
    /// the other replicas: what it does not know it cannot replace. With a condition the order stays, because writers
    /// that compete are judged best by the same node.
    pub(crate) fn candidates(&self, scope: &Scope, key: &Key, condition: Condition) -> Vec<NodeId> {
        let preference = scope.preference(key.as_bytes());
        let mut candidates = [preference.replicas(), preference.fallbacks()].concat();
        if condition == Condition::None {
            let lagging = self.client.inner.coordinator.lagging();
            candidates[..preference.replicas().len()].sort_by_key(|node| lagging.contains(node));
        }
        candidates.sort_by_key(|&node| self.client.inner.peers.is_suspected(node));
        candidates
    }

    pub(crate) async fn pause(&self, attempt: u32) {
        let ports = &self.client.inner.ports;
        let pause = RETRY_PAUSE.saturating_mul(1 << attempt.min(8));
        let jitter = Duration::from_nanos(ports.entropy.below(pause.as_nanos() as u64 / 2 + 1));
        ports.clock.sleep(pause + jitter).await;
    }

    /// What the store does with concurrent values.
    pub fn resolver(&self) -> Result<Resolver, ClientError> {
        Ok(self.client.inner.scope(&self.name)?.definition.resolver)
    }
}

/// Whether another node may be asked for the same write: this one certainly did nothing, and another may do better.
pub(crate) fn may_go_on(error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. } => true,
        CallError::Broken => false,
        CallError::Refused(failure) => {
            failure.code.outcome() == Outcome::Failed && failure.code.is_retryable()
        }
    }
}
