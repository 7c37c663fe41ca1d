//! Tontine through its own client library: one hop, multiplexed.
//!
//! Each client thread has one client; its sessions share that client's links, and a session's batch is that many
//! requests in flight. A scan reads one replica of each partition it crosses, in token order, starting at its key:
//! that is the order which a store has, by hash or in windows.

use std::io;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use client::report::Parts;
use client::{Client, ClientError, ClientOptions, DeleteOptions, Found, PutOptions, ScanPage, StoreHandle};
use futures_util::future::join_all;
use model::Token;
use runtime::Ports;
use wire::messages::RequestOptions;

use super::{Outcome, Session, Target, TargetOpenError, TimedOutcome};
use crate::workload::Operation;

/// Records asked for beyond those wanted: a page may hold deleted ones.
const SCAN_SPARE: u32 = 4;

/// A Tontine cluster.
#[derive(Clone)]
pub struct NativeTarget {
    addresses: Vec<String>,
    store: String,
    options: ClientOptions,
    ports: Ports,
}

impl NativeTarget {
    /// A store of the cluster that any of `addresses` (`host:port`) belongs to; requests may take `timeout`.
    ///
    /// # Errors
    /// When the system refuses the background thread that every client needs.
    pub fn new(addresses: Vec<String>, store: impl Into<String>, timeout: Duration) -> io::Result<Self> {
        let options =
            ClientOptions { name: "tontine-bench".to_owned(), deadline: timeout, ..ClientOptions::default() };
        Ok(NativeTarget { addresses, store: store.into(), options, ports: Ports::os()? })
    }
}

#[async_trait]
impl Target for NativeTarget {
    fn describe(&self) -> String {
        format!("native://{}/{}", self.addresses.join(","), self.store)
    }

    async fn open(&self, sessions: usize) -> Result<Vec<Box<dyn Session>>, TargetOpenError> {
        let refused = |error: ClientError| TargetOpenError::Refused {
            address: self.addresses.join(","),
            detail: error.to_string(),
        };
        let client = Client::connect(&self.addresses, self.ports.clone(), self.options.clone())
            .await
            .map_err(refused)?;
        let store = client.store(&self.store).map_err(refused)?;
        // A link is opened when it is first needed: let that be now, not in the first measured request.
        for node in &client.cluster().nodes {
            let _ = client.report(node.id, Parts::default()).await;
        }
        let session = || -> Box<dyn Session> {
            Box::new(NativeSession {
                client: client.clone(),
                store: store.clone(),
                ports: self.ports.clone(),
            })
        };
        Ok((0..sessions).map(|_| session()).collect())
    }
}

struct NativeSession {
    client: Client,
    store: StoreHandle,
    ports: Ports,
}

#[async_trait]
impl Session for NativeSession {
    async fn run(&mut self, batch: &[Operation], answers: &mut Vec<TimedOutcome>) {
        match batch {
            [only] => answers.push(self.answer(only).await),
            many => answers.extend(join_all(many.iter().map(|operation| self.answer(operation))).await),
        }
    }
}

impl NativeSession {
    async fn answer(&self, operation: &Operation) -> TimedOutcome {
        let outcome = self.carry_out(operation).await.unwrap_or_else(|error| outcome_of(&error));
        TimedOutcome { outcome, at: Instant::now() }
    }

    async fn carry_out(&self, operation: &Operation) -> Result<Outcome, ClientError> {
        let outcome = match operation {
            Operation::Get { key } => Outcome::Value(self.store.get(key.clone()).await?.value()),
            Operation::Put { key, value } => {
                self.store.put(key.clone(), value.clone(), PutOptions::default()).await?;
                Outcome::Written
            }
            Operation::Delete { key } => {
                self.store.delete(key.clone(), DeleteOptions::default()).await?;
                Outcome::Written
            }
            Operation::MultiGet { keys } => {
                let found = self.store.multi_get(keys.iter().cloned(), &RequestOptions::default()).await?;
                let values: Result<Vec<Option<Bytes>>, ClientError> =
                    found.into_iter().map(|found| found.map(|found: Found| found.value())).collect();
                Outcome::Values(values?)
            }
            Operation::Scan { start, count } => Outcome::Range(self.scan(start, *count).await?),
        };
        Ok(outcome)
    }

    async fn scan(&self, start: &Bytes, count: u64) -> Result<Vec<(Bytes, Bytes)>, ClientError> {
        let cluster = self.client.cluster();
        let place = |store: &model::Store| store.token(start);
        let token = cluster.store(self.store.name()).map_or_else(|| Token::of(start), place);
        let wanted = usize::try_from(count).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        // Nothing sorts before the empty key, so the start itself is "after" it.
        let mut after = Some((token, Bytes::new()));
        for partition in cluster.ring.partitions() {
            if cluster.ring.bounds(partition.id).is_none_or(|(_, last)| last < token) {
                continue;
            }
            loop {
                let missing = u32::try_from(wanted - found.len()).unwrap_or(u32::MAX);
                let ScanPage { records, next, .. } = self
                    .store
                    .scan(partition.nodes[0], partition.id, after.take(), missing.saturating_add(SCAN_SPARE))
                    .await?;
                let now = self.ports.clock.wall();
                let live = records.into_iter().filter_map(|(key, set)| {
                    let value = set.winner().and_then(|winner| winner.live(now)).cloned()?;
                    Some((key, value))
                });
                found.extend(live.take(wanted - found.len()));
                if found.len() >= wanted {
                    return Ok(found);
                }
                if next.is_none() {
                    break;
                }
                after = next;
            }
        }
        Ok(found)
    }
}

fn outcome_of(error: &ClientError) -> Outcome {
    match error {
        ClientError::Indeterminate { .. } => Outcome::Indeterminate("outcome unknown".to_owned()),
        ClientError::Failed { code, .. } => Outcome::Failed(code.name().to_owned()),
        ClientError::NotConnected { .. } | ClientError::Unreachable { .. } => {
            Outcome::Failed("not connected".to_owned())
        }
        other => Outcome::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use wire::error::ErrorCode;

    use super::*;

    #[test]
    fn doubt_stays_doubt_and_failures_keep_their_code() {
        let doubt = ClientError::Indeterminate { detail: "1 of 2".to_owned() };
        assert_eq!(outcome_of(&doubt), Outcome::Indeterminate("outcome unknown".to_owned()));
        let failed = ClientError::Failed { code: ErrorCode::Overloaded, detail: "key 17".to_owned() };
        assert_eq!(outcome_of(&failed), Outcome::Failed("overloaded".to_owned()));
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_address() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let target =
            NativeTarget::new(vec!["127.0.0.1:1".to_owned()], "default", Duration::from_secs(1)).unwrap();
        let Err(error) = runtime.block_on(target.open(1)) else { panic!("somebody listens on port 1") };
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    }
}
