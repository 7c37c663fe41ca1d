//! Which artifacts are fetched beside each other. The look says what is missing; here it is fetched, as separate work.
//!
//! In each store one artifact that is served or kept is fetched at a time, and one that was never served. So neither another
//! store nor a push keeps what is served from coming. All share the budget of the node.
//!
//! Must never: let two fetches write one file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::artifacts::Standing;
use model::{ArtifactNumber, ListedArtifact, Moment, StoreName};
use storage::artifacts::Digest;

use super::pacing::LOOK_INTERVAL;
use super::room::Coming;
use super::{Artifacts, LOOK_AGAIN, NotYet};
use crate::stores::ReadOnly;
use crate::view::View;

/// Artifacts of each of the two kinds that are fetched at a time, each with a few chunks on their way.
const TOGETHER_MAX: usize = 4;
/// How often a fetch looks whether another one has brought the chunk that both want.
const CLAIM_INTERVAL: Duration = Duration::from_millis(100);

/// An artifact of which something is missing, under one document.
pub(super) struct Need {
    pub(super) view: Arc<View>,
    pub(super) store: Arc<ReadOnly>,
    pub(super) listed: ListedArtifact,
}

/// What is fetched one after the other: of a store what is served and kept, or what was never served.
pub(super) type Lane = (StoreName, bool);

impl Need {
    pub(super) fn lane(&self) -> Lane {
        (self.store.listed().name.clone(), self.listed.standing == Standing::Staging)
    }

    fn key(&self) -> (StoreName, ArtifactNumber) {
        (self.store.listed().name.clone(), self.listed.number)
    }
}

/// What is fetched, and what waits for that.
#[derive(Default)]
pub(super) struct Fetching {
    /// What the last look found missing and nobody fetches, in the order in which it will be fetched.
    waiting: VecDeque<Need>,
    /// What is fetched, with what will be written for it.
    pub(super) running: BTreeMap<Lane, Coming>,
    /// When the last fetch of an artifact ended, for as long as no other one of it may begin.
    ended: BTreeMap<(StoreName, ArtifactNumber), Moment>,
    /// Chunks that a fetch is bringing.
    claimed: BTreeSet<(StoreName, Digest)>,
    /// Whether somebody looks after the pace.
    is_tended: bool,
}

impl Fetching {
    /// The next fetch that may begin.
    fn begin(&mut self) -> Option<Need> {
        let is_free = |need: &Need| {
            let lane = need.lane();
            let alike = self.running.keys().filter(|(_, staging)| *staging == lane.1).count();
            alike < TOGETHER_MAX && !self.running.contains_key(&lane) && !self.ended.contains_key(&need.key())
        };
        let at = self.waiting.iter().position(is_free)?;
        let need = self.waiting.remove(at)?;
        self.running.insert(need.lane(), Coming::default());
        Some(need)
    }
}

/// A chunk that one fetch alone brings, until this is dropped.
pub(super) struct Claim<'a> {
    artifacts: &'a Artifacts,
    key: (StoreName, Digest),
    /// Whether another fetch had it before.
    pub(super) has_waited: bool,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.artifacts.fetching.lock().claimed.remove(&self.key);
    }
}

impl Artifacts {
    /// Fetches what a look found missing, beside what is fetched already.
    pub(super) fn fetch(self: &Arc<Self>, missing: Vec<Need>) {
        let now = self.ports.clock.now();
        {
            let mut fetching = self.fetching.lock();
            fetching.ended.retain(|_, ended| now.since(*ended) < LOOK_AGAIN);
            fetching.waiting = missing.into();
        }
        self.fetch_next();
    }

    /// Begins what may begin.
    fn fetch_next(self: &Arc<Self>) {
        loop {
            let begun = self.fetching.lock().begin();
            let Some(need) = begun else { return };
            let artifacts = self.clone();
            self.ports.tasks.spawn_background(Box::pin(async move {
                artifacts.fetch_one(&need).await;
                artifacts.fetch_next();
            }));
            if !std::mem::replace(&mut self.fetching.lock().is_tended, true) {
                self.ports.tasks.spawn_background(Box::pin(tend(Arc::downgrade(self))));
            }
        }
    }

    /// Fetches what is missing of one artifact, and asks for a look when it has come.
    async fn fetch_one(&self, need: &Need) {
        let fetched = self.bring(need).await;
        {
            let mut fetching = self.fetching.lock();
            fetching.running.remove(&need.lane());
            if !self.is_superseded(&need.view) {
                fetching.ended.insert(need.key(), self.ports.clock.now());
            }
        }
        match fetched {
            Ok(()) => self.fetched.notify_one(),
            // What failed under an older document may not be wanted any more.
            Err(_) if self.is_superseded(&need.view) => {}
            Err(error) => self.note_failure(&need.store, need.listed.number, error),
        }
    }

    async fn bring(&self, need: &Need) -> Result<(), NotYet> {
        let Need { view, store, listed } = need;
        if self.is_superseded(view) {
            return Err(NotYet::Changed);
        }
        let manifest = match self.manifest_here(store, listed).await? {
            Some(manifest) => manifest,
            None => self.bring_manifest(view, store, listed).await?,
        };
        let wanted = self.wanted(view, store, &manifest);
        let here = self.here(store, &manifest, &wanted).await?.sound;
        self.bring_chunks(need, &manifest, (&wanted, here)).await
    }

    /// Waits until no other fetch brings this chunk.
    ///
    /// # Errors
    /// When a newer document came meanwhile.
    pub(super) async fn claim(
        &self,
        view: &View,
        store: &StoreName,
        chunk: Digest,
    ) -> Result<Claim<'_>, NotYet> {
        let (key, mut has_waited) = ((store.clone(), chunk), false);
        while !self.fetching.lock().claimed.insert(key.clone()) {
            if self.is_superseded(view) {
                return Err(NotYet::Changed);
            }
            has_waited = true;
            self.ports.clock.sleep(CLAIM_INTERVAL).await;
        }
        Ok(Claim { artifacts: self, key, has_waited })
    }

    /// How many hold this value because they fetch.
    pub(super) fn fetches(&self) -> usize {
        self.fetching.lock().running.len()
    }
}

/// Looks whether requests are late, as long as something is fetched.
async fn tend(artifacts: Weak<Artifacts>) {
    let Some(started) = artifacts.upgrade() else { return };
    let clock = started.ports.clock.clone();
    let mut rate = started.rate_from_now();
    drop(started);
    loop {
        clock.sleep(LOOK_INTERVAL).await;
        let Some(artifacts) = artifacts.upgrade() else { return };
        {
            let mut fetching = artifacts.fetching.lock();
            if fetching.running.is_empty() {
                fetching.is_tended = false;
                artifacts.rest();
                return;
            }
        }
        artifacts.observe(&mut rate).await;
    }
}
