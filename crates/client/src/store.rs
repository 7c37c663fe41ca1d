//! One store, as an application uses it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{ArtifactNumber, Cluster, Context, Key, Resolver, Value, WallMillis};
use protocol::quorum::StampEntry;
use wire::ErrorCode;
use wire::messages::{Condition, RequestOptions, Written};

use crate::connect::Client;
use crate::coordinator::{Contents, Scope, left_at};
use crate::error::ClientError;
use crate::found::Found;
use crate::write_order::WriteOrder;

/// First pause before another attempt of a get; doubles with each further one.
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

/// How a delete shall be done.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// What the writer has seen: the delete replaces exactly that. `None` replaces what the coordinator knows.
    pub context: Option<Context>,
    /// What must hold at the coordinator.
    pub condition: Condition,
    /// Quorum and deadline.
    pub request: RequestOptions,
}

impl DeleteOptions {
    /// A delete of what this get saw, and of nothing that was written since.
    pub fn after(found: &Found) -> Self {
        DeleteOptions { context: Some(found.context()), ..DeleteOptions::default() }
    }
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
    /// The artifact that it reads, if that is not the one that the store serves.
    artifact: Option<ArtifactNumber>,
}

impl Client {
    /// A store of the cluster.
    ///
    /// # Errors
    /// [`ClientError::UnknownStore`].
    pub fn store(&self, name: &str) -> Result<StoreHandle, ClientError> {
        self.inner.scope(name)?;
        Ok(StoreHandle { client: self.clone(), name: name.into(), merge: None, artifact: None })
    }
}

impl StoreHandle {
    /// The cluster as the client of this store knows it now.
    pub fn cluster(&self) -> Arc<Cluster> {
        self.client.cluster()
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

    /// Reads this artifact of a read-only store from now on, before it goes live or after another one did.
    ///
    /// # Errors
    /// `artifact-refused` where the store takes writes, or lists no such artifact.
    pub fn of_artifact(mut self, number: ArtifactNumber) -> Result<Self, ClientError> {
        self.artifact = Some(number);
        self.scope_for(&RequestOptions::default())?;
        Ok(self)
    }

    /// The scope of a request with these options that starts now.
    pub(crate) fn scope_for(&self, options: &RequestOptions) -> Result<Scope, ClientError> {
        let scope = self.client.inner.scope_for(&self.name, options)?;
        let Some(number) = self.artifact else { return Ok(scope) };
        let refused = |detail| ClientError::Failed { code: ErrorCode::ArtifactRefused, detail };
        let store = scope.cluster.read_only(&self.name);
        let store =
            store.ok_or_else(|| refused(format!("store {} takes writes and has no artifacts", self.name)))?;
        let contents = Contents::chosen(store, number).map_err(|failure| refused(failure.detail))?;
        Ok(Scope { contents, ..scope })
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
        let value = Value::Present(value.into());
        self.write(WriteOrder { key, context, condition, expires, value }, &request).await
    }

    /// Deletes a key: with a context exactly what it covers, without one what the coordinator knows.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(
        &self,
        key: impl Into<Bytes>,
        options: DeleteOptions,
    ) -> Result<Written, ClientError> {
        let DeleteOptions { context, condition, request } = options;
        let (key, value) = (Key::new(key)?, Value::Tombstone);
        self.write(WriteOrder { key, context, condition, expires: None, value }, &request).await
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
            let scope = self.scope_for(options)?;
            let options = &self.until(end, options);
            let got = match inner.reads_through_nodes(&scope) {
                true => inner.get_through_node(&scope, key.bytes().clone(), options).await,
                false => inner.coordinator.get(&scope, key.bytes().clone(), options).await,
            };
            match got {
                Ok(got) => return Found::of(got, inner.ports.clock.wall()).map_err(ClientError::from),
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

    async fn write(&self, order: WriteOrder, options: &RequestOptions) -> Result<Written, ClientError> {
        let entry =
            if order.condition == Condition::None { StampEntry::Client } else { StampEntry::Exclusive };
        let written = self.stamp(std::slice::from_ref(&order), options, entry).await?;
        written.into_iter().next().expect("each key has an answer").map_err(ClientError::from)
    }

    /// The options of one more attempt of a request that must be answered by `end`.
    pub(crate) fn until(&self, end: model::Moment, options: &RequestOptions) -> RequestOptions {
        left_at(self.client.inner.ports.clock.now(), end, options)
    }

    pub(crate) async fn pause(&self, attempt: u32) {
        self.rest(RETRY_PAUSE.saturating_mul(1 << attempt.min(8))).await;
    }

    /// Waits that long, or up to half as long again.
    pub(crate) async fn rest(&self, pause: Duration) {
        let ports = &self.client.inner.ports;
        let jitter = Duration::from_nanos(ports.entropy.below(pause.as_nanos() as u64 / 2 + 1));
        ports.clock.sleep(pause + jitter).await;
    }

    /// What the store does with concurrent values.
    pub fn resolver(&self) -> Result<Resolver, ClientError> {
        Ok(self.client.inner.scope(&self.name)?.definition.resolver)
    }
}
