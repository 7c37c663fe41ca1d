//! The steps of a collection round at this node, in the order in which each must be done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{StoreName, Timestamp, VersionSet, WallMillis};
use protocol::collection::{Confirm, FenceStep, RoundRefusal};
use runtime::Clock;
use storage::StorageError;
use wire::error::ErrorCode;
use wire::messages::{
    Collect, CollectCandidated, CollectCandidates, CollectConfirm, CollectConfirmed, CollectFence,
    CollectFenced, CollectRelease, CollectReleased, Collectable, Collected, Failure, Request, Response,
    StoreRef,
};

use crate::chores::breathe;
use crate::replica::Replica;
use crate::stores::Stamper;
use crate::view::View;

/// Keys of one round at most, whoever starts it: each is looked up, and one sync is waited for, while guards are held.
pub(super) const KEYS_MAX: usize = 1024;

/// Keys that are looked at in one answer to what waits here: those that wait no more, or not yet, count as well.
const LOOKED_MAX: usize = 8 * KEYS_MAX;

/// Keys after which a step lets others of its thread have a turn.
const KEYS_AT_ONCE: usize = 64;

/// How far ahead of a node's own clock a tombstone may be for that node to help forget it: a minute, far more than
/// clocks differ that somebody looks after. What is forgotten is a floor for all later stamps, durably, so one clock
/// that is far ahead must not set it; its tombstones wait.
pub(super) const AHEAD_MAX: Duration = Duration::from_secs(60);

/// Whether a tombstone with this timestamp is too far ahead of this clock to be forgotten.
pub(super) fn is_ahead(timestamp: Timestamp, now: WallMillis) -> bool {
    timestamp.wall().0 > now.0.saturating_add(AHEAD_MAX.as_millis() as u64)
}

/// This node as one of those that a round asks.
pub(crate) struct Answers {
    pub(crate) replica: Arc<Replica>,
    pub(crate) stamper: Arc<Stamper>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Answers {
    /// Answers a step of a round; other requests are not for it.
    pub(crate) async fn answer(&self, request: Request) -> Result<Response, Failure> {
        match request {
            Request::CollectCandidates(ask) => Ok(self.candidates(&ask).await.into()),
            Request::CollectConfirm(ask) => Ok(self.confirm(ask).await?.into()),
            Request::CollectFence(ask) => Ok(self.fence(&ask).await?.into()),
            Request::Collect(ask) => Ok(self.collect(&ask).await.into()),
            Request::CollectRelease(ask) => Ok(self.release(&ask).into()),
            other => Err(Failure::new(
                ErrorCode::UnknownRequest,
                format!("{} is no step of a round", other.name()),
            )),
        }
    }

    /// In the order of stores' names, tokens and keys, so that whoever asks all nodes can go on where it stopped.
    async fn candidates(&self, ask: &CollectCandidates) -> CollectCandidated {
        let (mut keys, mut bytes, mut looked) = (Vec::new(), 0, 0);
        let keys_max = (ask.keys_max as usize).clamp(1, KEYS_MAX);
        let now = self.clock.wall();
        let view = self.replica.view().get();
        let mut stores = view.stores().to_vec();
        stores.sort_by(|one, other| one.reference().cmp(other.reference()));
        let begun = ask.after.as_ref().map(|(store, _)| store.clone());
        stores.retain(|store| begun.as_ref().is_none_or(|begun| store.reference() >= begun));
        let mut next = ask.after.clone();
        for store in stores {
            let after = ask.after.as_ref().filter(|(name, _)| name == store.reference());
            let mut place = after.map(|(_, key)| (store.token(key), key.clone()));
            loop {
                let page = store.tombstones_after(place.as_ref(), KEYS_AT_ONCE);
                let Some(last) = page.last().cloned() else { break };
                for at in page {
                    if keys.len() >= keys_max || bytes >= ask.bytes_max as usize || looked >= LOOKED_MAX {
                        return CollectCandidated { keys, next };
                    }
                    looked += 1;
                    next = Some((store.reference().clone(), at.1.clone()));
                    match store.tombstone(view.route(&store, &at.1).place, &at.1, now) {
                        Some(Some(set)) => {
                            bytes += at.1.len() + wire::versions::record_bytes(None, &set);
                            keys.push((store.reference().clone(), (at.1, set)));
                        }
                        // From the future: it waits.
                        Some(None) => {}
                        None => store.tombstone_gone(&at),
                    }
                }
                place = Some(last);
                breathe().await;
            }
        }
        CollectCandidated { keys, next: None }
    }

    /// First the guards, then the cleaning, then the sync, then the answer. A key that cannot be made clean is left out.
    async fn confirm(&self, ask: CollectConfirm) -> Result<CollectConfirmed, Failure> {
        let CollectConfirm { round, generation, keys } = ask;
        let wall = self.clock.wall();
        let (mut kept, mut left_out) = (Vec::with_capacity(keys.len()), Vec::new());
        for (position, (place, tombstones)) in (0..).zip(named(keys)?) {
            // What this node's clock says is still to be shown, or still to be stamped, it does not help forget.
            match tombstones.is_reaped_before(wall) || is_ahead(tombstones.timestamp_max(), wall) {
                true => left_out.push(position),
                false => kept.push((position, place, tombstones)),
            }
        }
        let view = self.replica.view().get();
        let own = view.cluster().nodes_changed;
        let guarded = kept.iter().map(|(_, place, tombstones)| (place.clone(), tombstones.clone())).collect();
        let confirm = Confirm { round, generation, keys: Arc::new(guarded) };
        let now = self.clock.now();
        let epoch = self
            .replica
            .epochs()
            .change(|participant| {
                let epoch = participant.epoch();
                participant.confirm(confirm, own, now).map(|()| epoch)
            })
            .map_err(refused)?;
        let mut failed_of = BTreeMap::new();
        for (done, (position, (name, key), tombstones)) in kept.iter().enumerate() {
            breathe_after(done).await;
            if let Err(failure) = self.cleanse(&view, name, key, tombstones) {
                let (keys, _) = failed_of.entry(name).or_insert((0_u64, failure));
                *keys += 1;
                left_out.push(*position);
            }
        }
        for (name, (keys, error)) in failed_of {
            tracing::warn!(store = %name, keys, %error, "keys of a collection round are left out");
        }
        for store in view.stores() {
            store.engine().sync().await.map_err(failed)?;
        }
        self.replica.hints().engine().sync().await.map_err(failed)?;
        // A node that starts without the service must not follow a document from before the round.
        if self.replica.view().adopted() < own {
            let detail = "the node could not write its copy of the cluster document";
            return Err(Failure::new(ErrorCode::StorageFailed, detail));
        }
        Ok(CollectConfirmed { epoch, left_out })
    }

    fn cleanse(
        &self,
        view: &View,
        name: &StoreName,
        key: &Bytes,
        tombstones: &VersionSet,
    ) -> Result<(), Failure> {
        let store = view.store(name.as_str());
        let store = store.ok_or_else(|| {
            Failure::new(ErrorCode::UnknownStore, format!("store {name} does not exist on this node"))
        })?;
        // It may wait for the disk, and nobody shall wait for it behind a lock.
        self.replica.read_key_ahead(view, store, key, None);
        store.cleanse(view.route(store, key).place, key, tombstones)?;
        self.replica.hints().cleanse(name, key, tombstones)
    }

    /// First the disk, then the memory, then the answer.
    async fn fence(&self, ask: &CollectFence) -> Result<CollectFenced, Failure> {
        if is_ahead(ask.floor, self.clock.wall()) {
            let detail = "what the round forgets was stamped in the future, by this node's clock";
            return Err(Failure::new(ErrorCode::ConditionFailed, detail));
        }
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

    /// A record that cannot be read or removed stays: a later round may do it.
    async fn collect(&self, ask: &Collect) -> Collected {
        let view = self.replica.view().get();
        let mut records = 0;
        for (position, (name, (key, tombstones))) in ask.keys.iter().enumerate() {
            breathe_after(position).await;
            let Some(store) = view.store(name.as_str()) else { continue };
            if !tombstones.is_deleted() {
                continue;
            }
            let removed = store.forget(view.route(store, key).place, key, tombstones);
            records += u64::from(removed.unwrap_or(false));
            let name = &store.definition().name;
            records += self.replica.hints().forget(name, key, tombstones).unwrap_or(0);
        }
        Collected { records }
    }

    fn release(&self, ask: &CollectRelease) -> CollectReleased {
        self.replica.epochs().change(|participant| participant.release(ask.round));
        CollectReleased {}
    }
}

/// Lets others of this thread have a turn after each few keys, of which this is the number of the last.
async fn breathe_after(done: usize) {
    if done % KEYS_AT_ONCE == KEYS_AT_ONCE - 1 {
        breathe().await;
    }
}

/// A key of a round with its store's name.
type Named = ((StoreName, Bytes), VersionSet);

/// The keys with their stores' names. Nothing but tombstones may be forgotten.
fn named(keys: Vec<Collectable>) -> Result<Vec<Named>, Failure> {
    let malformed = |detail: &str| Failure::new(ErrorCode::Malformed, detail);
    if keys.len() > KEYS_MAX {
        return Err(Failure::new(ErrorCode::TooManyKeys, format!("a round has at most {KEYS_MAX} keys")));
    }
    let name =
        |name: &StoreRef| StoreName::new(name.as_str()).map_err(|_| malformed("the store does not exist"));
    keys.into_iter()
        .map(|(store, (key, set))| match set.is_deleted() {
            true => Ok(((name(&store)?, key), set)),
            false => Err(malformed("only tombstones can be collected")),
        })
        .collect()
}

fn refused(refusal: RoundRefusal) -> Failure {
    Failure::new(ErrorCode::ConditionFailed, format!("the node takes no part in the round: {refusal:?}"))
}

fn failed(error: StorageError) -> Failure {
    Failure::new(ErrorCode::StorageFailed, error.to_string())
}
