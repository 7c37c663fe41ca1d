//! The steps of a collection round at this node, in the order in which each must be done.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use model::{StoreName, VersionSet};
use protocol::collection::{Confirm, FenceStep, Refusal};
use runtime::{Clock, Disk};
use storage::StorageError;
use wire::error::ErrorCode;
use wire::messages::{
    Collect, CollectCandidated, CollectCandidates, CollectConfirm, CollectConfirmed, CollectFence,
    CollectFenced, Collectable, Collected, Failure, Request, Response, StoreRef,
};

use crate::local_copy;
use crate::replica::Replica;
use crate::stores::Stamper;

/// Keys of one round at most, whoever starts it: each is looked up, and one sync is waited for, while guards stand.
pub(super) const KEYS_MAX: usize = 1024;

/// This node as one of those that a round asks.
pub(crate) struct Answers {
    pub(crate) replica: Arc<Replica>,
    pub(crate) stamper: Arc<Stamper>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Answers {
    /// Answers a step of a round; other requests are not for it.
    pub(crate) async fn answer(&self, request: Request) -> Result<Response, Failure> {
        match request {
            Request::CollectCandidates(ask) => Ok(self.candidates(&ask).into()),
            Request::CollectConfirm(ask) => Ok(self.confirm(ask).await?.into()),
            Request::CollectFence(ask) => Ok(self.fence(&ask).await?.into()),
            Request::Collect(ask) => Ok(self.collect(&ask)?.into()),
            other => Err(Failure::new(
                ErrorCode::UnknownRequest,
                format!("{} is no step of a round", other.name()),
            )),
        }
    }

    fn candidates(&self, ask: &CollectCandidates) -> CollectCandidated {
        let (mut keys, mut bytes) = (Vec::new(), 0);
        let (keys_max, now) = ((ask.keys_max as usize).min(KEYS_MAX), self.clock.wall());
        for store in self.replica.view().get().stores() {
            let view = self.replica.view().get();
            let mut place = None;
            while keys.len() < keys_max && bytes < ask.bytes_max as usize {
                let Some(next) = store.tombstones_after(place.as_ref(), 1).pop() else { break };
                let route = view.route(store, &next.1);
                match store.tombstone(route.place, &next.1, now) {
                    Some(Some(set)) => {
                        bytes += next.1.len() + wire::versions::record_bytes(None, &set);
                        keys.push((store.reference().clone(), (next.1.clone(), set)));
                    }
                    // From the future: it waits.
                    Some(None) => {}
                    None => store.tombstone_gone(&next),
                }
                place = Some(next);
            }
        }
        CollectCandidated { keys }
    }

    /// First the guards, then the cleaning, then the sync, then the answer.
    async fn confirm(&self, ask: CollectConfirm) -> Result<CollectConfirmed, Failure> {
        let CollectConfirm { round, generation, keys } = ask;
        let keys = Arc::new(named(keys)?);
        let wall = self.clock.wall();
        if keys.values().any(|set| set.is_reaped_before(wall)) {
            let detail =
                "a value of the round has not expired by this node's clock: clocks differ by minutes";
            return Err(Failure::new(ErrorCode::ConditionFailed, detail));
        }
        let view = self.replica.view().get();
        let own = view.cluster().generation;
        let confirm = Confirm { round, generation, keys: keys.clone() };
        let now = self.clock.now();
        let epoch = self
            .replica
            .epochs()
            .change(|participant| {
                let epoch = participant.epoch();
                participant.confirm(confirm, own, now).map(|()| epoch)
            })
            .map_err(refused)?;
        for ((name, key), tombstones) in &*keys {
            let Some(store) = view.store(name.as_str()) else {
                return Err(Failure::new(ErrorCode::UnknownStore, format!("there is no store {name} here")));
            };
            store.cleanse(view.route(store, key).place, key, tombstones)?;
            self.replica.hints().cleanse(name, key, tombstones)?;
        }
        for store in view.stores() {
            store.engine().sync().await.map_err(failed)?;
        }
        self.replica.hints().engine().sync().await.map_err(failed)?;
        // A node that starts without the service must not go by a document from before the round.
        if let Err(error) = local_copy::write(self.disk.clone(), view.cluster()).await {
            return Err(Failure::new(ErrorCode::StorageFailed, error.to_string()));
        }
        Ok(CollectConfirmed { epoch })
    }

    /// First the disk, then the memory, then the answer.
    async fn fence(&self, ask: &CollectFence) -> Result<CollectFenced, Failure> {
        let epochs = self.replica.epochs();
        let now = self.clock.now();
        let step = epochs
            .change(|participant| participant.fence(ask.round, ask.epoch, ask.floor, now))
            .map_err(refused)?;
        if let FenceStep::Remember(remembered) = step {
            epochs
                .remember(remembered)
                .await
                .map_err(|error| Failure::new(ErrorCode::StorageFailed, error.to_string()))?;
            self.stamper.rise_above(remembered.floor);
            epochs.change(|participant| participant.fenced(ask.round, remembered));
        }
        Ok(CollectFenced {})
    }

    fn collect(&self, ask: &Collect) -> Result<Collected, Failure> {
        let view = self.replica.view().get();
        let mut records = 0;
        for (name, (key, tombstones)) in &ask.keys {
            let Some(store) = view.store(name.as_str()) else { continue };
            if !tombstones.is_deleted() {
                continue;
            }
            records += u64::from(store.forget(view.route(store, key).place, key, tombstones)?);
            records += self.replica.hints().forget(&store.definition().name, key, tombstones)?;
        }
        Ok(Collected { records })
    }
}

/// The keys by their stores' names. Nothing but tombstones may be forgotten.
fn named(keys: Vec<Collectable>) -> Result<BTreeMap<(StoreName, Bytes), VersionSet>, Failure> {
    let malformed = |detail: &str| Failure::new(ErrorCode::Malformed, detail);
    if keys.len() > KEYS_MAX {
        return Err(Failure::new(ErrorCode::TooManyKeys, format!("a round has at most {KEYS_MAX} keys")));
    }
    let name =
        |name: &StoreRef| StoreName::new(name.as_str()).map_err(|_| malformed("no store has that name"));
    keys.into_iter()
        .map(|(store, (key, set))| match set.is_deleted() {
            true => Ok(((name(&store)?, key), set)),
            false => Err(malformed("only tombstones can be collected")),
        })
        .collect()
}

fn refused(refusal: Refusal) -> Failure {
    Failure::new(ErrorCode::ConditionFailed, format!("the node takes no part in the round: {refusal:?}"))
}

fn failed(error: StorageError) -> Failure {
    Failure::new(ErrorCode::StorageFailed, error.to_string())
}
