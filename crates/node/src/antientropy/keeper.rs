//! Keeping trees and records honest: counting trees that are doubtful or too shallow, and the scrub.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::{PartitionId, Token};
use runtime::panics::whole;
use storage::StorageError;

use super::{AntiEntropy, Only, ScrubRead, Scrubbing, living};
use crate::chores::{Chore, Culprit, Rest, RoundTold, breathe};
use crate::events::Event;
use crate::stores::LocalStore;
use crate::trees::Scrubbed;

/// How often it is looked for trees to count.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);
/// Rest after a step of counting, so that requests and commits of the background thread get their turn; as many times
/// longer as this node's workers are late.
const COUNT_REST: Duration = Duration::from_micros(500);
/// Longest pause between two steps of the scrub.
const SCRUB_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Counts what must be counted.
pub(super) struct Count(pub(super) Weak<AntiEntropy>);

impl Chore for Count {
    const NAME: &'static str = "count";

    async fn round(&mut self, _: bool, told: &RoundTold<'_>) -> Rest {
        let Some(antientropy) = living(&self.0) else { return Rest::Ended };
        let mut stores = antientropy.replica.view().get().stores().to_vec();
        let culprits = &antientropy.culprits.count;
        let postponed = culprits.round();
        postponed.order(&mut stores, |store, (name, _)| store.definition().name == *name);
        for store in &stores {
            // It takes the places before it reads them, so none may be forgotten half way.
            whole(|| mend_met(&antientropy, store, told));
            let name = &store.definition().name;
            let doubtful = store.trees().summary().1;
            let mut records = 0;
            let mut partitions = store.trees().uncounted();
            postponed.order(&mut partitions, |id, culprit| culprit.0 == *name && culprit.1 == *id);
            for partition in partitions {
                culprits.begin(name, [partition]);
                records += count_partition(&antientropy, store, partition, told).await;
                culprits.over();
                if antientropy.is_stopping() {
                    return Rest::Ended;
                }
            }
            if doubtful > 0 && records > 0 {
                let (store, trees) = (name.to_string(), doubtful as u64);
                antientropy.events.record(Event::TreesCounted { store, trees, records });
            }
        }
        Rest::For(COUNT_INTERVAL)
    }
}

async fn count_partition(
    antientropy: &Arc<AntiEntropy>,
    store: &LocalStore,
    partition: PartitionId,
    told: &RoundTold<'_>,
) -> u64 {
    let held = store.engine().partitions();
    let held = held.iter().find(|held| held.partition == partition).map_or(0, |held| held.records);
    let mut met = 0;
    loop {
        match store.count_step(partition, held) {
            Ok(counted) => {
                antientropy.counters.counted_records.add(counted.records);
                met += counted.records;
                if counted.done || antientropy.is_stopping() {
                    return met;
                }
            }
            Err(error) => {
                tracing::warn!(%partition, %error, "hash tree not counted");
                let name = &store.definition().name;
                told.failed(format_args!("a hash tree of store {name} was not counted: {error}"));
                return met;
            }
        }
        let rest = COUNT_REST * antientropy.pulse.times().await;
        antientropy.ports.clock.sleep(rest).await;
    }
}

/// Sees to the corrupt records that requests have met: their leaves are read, so that comparing finds what is missing.
/// The gets that met them have mostly repaired them by then.
fn mend_met(antientropy: &AntiEntropy, store: &Arc<LocalStore>, told: &RoundTold<'_>) {
    let mut met: BTreeMap<PartitionId, u64> = BTreeMap::new();
    for (partition, token) in store.trees().take_damaged() {
        *met.entry(partition).or_default() += 1;
        let mut read = ScrubRead::default();
        let _ = scrub_once(antientropy, store, (partition, token), &mut read, Some(told));
        if read.corrupt > 0 || read.wrong_leaves > 0 {
            ask_replicas(antientropy, store, partition);
        }
    }
    for (partition, records) in met {
        let (store, partition) = (store.definition().name.to_string(), owner(antientropy, partition));
        antientropy.events.record(Event::CorruptMet { store, partition, records });
    }
}

/// What people call the place: the partition that a bucket belongs to.
fn owner(antientropy: &AntiEntropy, bucket: PartitionId) -> PartitionId {
    antientropy.replica.view().get().owner(bucket).id
}

fn ask_replicas(antientropy: &AntiEntropy, store: &Arc<LocalStore>, partition: PartitionId) {
    let view = antientropy.replica.view().get();
    let others = view.replicated_by(antientropy.replica.node(), store).remove(&partition);
    others.into_iter().flatten().for_each(|peer| antientropy.ask_for(peer));
}

/// Reads every record once in a scrub period: in each round all of them, with rests in between.
pub(super) struct ScrubRecords(pub(super) Weak<AntiEntropy>);

impl Chore for ScrubRecords {
    const NAME: &'static str = "scrub records";

    async fn round(&mut self, _: bool, told: &RoundTold<'_>) -> Rest {
        let weak = &self.0;
        let (clock, work, pause, postponed) = {
            let Some(antientropy) = living(weak) else { return Rest::Ended };
            let stores = antientropy.replica.view().get().stores().to_vec();
            let mut work = Vec::new();
            for store in stores {
                let held = store.engine().partitions();
                work.extend(held.into_iter().map(|held| (store.clone(), held.partition)));
            }
            let is = |(store, id): &(Arc<LocalStore>, PartitionId), culprit: &Culprit| {
                store.definition().name == culprit.0 && *id == culprit.1
            };
            let postponed = antientropy.culprits.scrub.round();
            postponed.order(&mut work, is);
            let mut state = antientropy.state.lock();
            (state.scrub.partitions, state.scrub.done) = (work.len(), 0);
            let parts = u32::try_from(work.len().max(1)).unwrap_or(u32::MAX);
            (antientropy.ports.clock.clone(), work, antientropy.options.scrub_period / parts, postponed)
        };
        // Pauses are cut into pieces, so that a node that stops is not waited for.
        if work.is_empty() {
            rest(weak, &*clock, pause).await;
        }
        let mut hints_left = true;
        for (store, partition) in work {
            rest(weak, &*clock, pause).await;
            let Some(antientropy) = living(weak) else { return Rest::Ended };
            let name = &store.definition().name;
            if hints_left && postponed.place(name, partition).is_some() {
                // A pass may not come to what is behind this partition.
                scrub_hints(&antientropy, Some(told)).await;
                hints_left = false;
            }
            antientropy.culprits.scrub.begin(name, [partition]);
            scrub_partition(&antientropy, &store, partition, Some(told)).await;
            antientropy.culprits.scrub.over();
            antientropy.state.lock().scrub.done += 1;
        }
        let Some(antientropy) = living(weak) else { return Rest::Ended };
        if hints_left {
            scrub_hints(&antientropy, Some(told)).await;
        }
        antientropy.state.lock().scrub.passes += 1;
        Rest::Now
    }
}

async fn rest(weak: &Weak<AntiEntropy>, clock: &dyn runtime::Clock, pause: Duration) {
    let until = clock.now().after(pause);
    while clock.now() < until && living(weak).is_some() {
        clock.sleep_until(until.min(clock.now().after(SCRUB_PAUSE_MAX))).await;
    }
}

/// Reads a partition.
async fn scrub_partition(
    antientropy: &Arc<AntiEntropy>,
    store: &Arc<LocalStore>,
    partition: PartitionId,
    told: Option<&RoundTold<'_>>,
) -> ScrubRead {
    let mut read = ScrubRead::default();
    let Some(mut from) = store.scrub_from(partition) else { return read };
    loop {
        let scrubbed = scrub_once(antientropy, store, (partition, from), &mut read, told);
        match scrubbed.next.filter(|_| !antientropy.is_stopping()) {
            Some(next) => from = next,
            None => break,
        }
        let_others_go_first(antientropy, scrubbed.bytes).await;
    }
    let name = || store.definition().name.to_string();
    let ScrubRead { corrupt, wrong_leaves, .. } = read;
    let bucket = partition;
    let partition = owner(antientropy, bucket);
    if corrupt > 0 {
        antientropy.counters.corrupt_records.add(corrupt);
        antientropy.events.record(Event::CorruptFound { store: name(), partition, records: corrupt });
    }
    if wrong_leaves > 0 {
        antientropy.counters.wrong_leaves.add(wrong_leaves);
        antientropy.events.record(Event::LeavesRecounted { store: name(), partition, leaves: wrong_leaves });
    }
    if corrupt > 0 || wrong_leaves > 0 {
        ask_replicas(antientropy, store, bucket);
    }
    read
}

/// Rests after reading this many bytes, so that reading keeps to the rate of comparing.
async fn let_others_go_first(antientropy: &AntiEntropy, bytes: u64) {
    match bytes.saturating_mul(1_000_000).checked_div(antientropy.options.bytes_per_second) {
        Some(micros) if micros > 0 => antientropy.ports.clock.sleep(Duration::from_micros(micros)).await,
        _ => breathe().await,
    }
}

fn scrub_once(
    antientropy: &AntiEntropy,
    store: &LocalStore,
    (partition, from): (PartitionId, Token),
    read: &mut ScrubRead,
    told: Option<&RoundTold<'_>>,
) -> Scrubbed {
    match store.scrub_step(partition, from) {
        Ok(scrubbed) => {
            antientropy.counters.scrubbed_records.add(scrubbed.records);
            antientropy.counters.scrubbed_bytes.add(scrubbed.bytes);
            read.records += scrubbed.records;
            read.bytes += scrubbed.bytes;
            read.corrupt += scrubbed.corrupt;
            read.wrong_leaves += scrubbed.wrong_leaves as u64;
            scrubbed
        }
        Err(StorageError::Closed) => Scrubbed::default(),
        Err(error) => {
            tracing::warn!(%partition, %error, "partition not scrubbed");
            let name = &store.definition().name;
            if let Some(told) = told {
                told.failed(format_args!("a partition of store {name} was not scrubbed: {error}"));
            }
            Scrubbed::default()
        }
    }
}

/// Reads all hints. One that cannot be read is for a target that will get what it held by comparing.
async fn scrub_hints(antientropy: &Arc<AntiEntropy>, told: Option<&RoundTold<'_>>) {
    for target in antientropy.replica.hints().pending().into_iter().map(|(target, _)| target) {
        let (mut from, mut corrupt) = (Some(Token(0)), 0);
        while let Some(first) = from.filter(|_| !antientropy.is_stopping()) {
            let scrubbed = match antientropy.replica.hints().scrub_step(target, first) {
                Ok(scrubbed) => scrubbed,
                Err(error) => {
                    tracing::warn!(%target, %error, "hints not scrubbed");
                    if let Some(told) = told {
                        told.failed(format_args!("hints for {target} were not scrubbed: {error}"));
                    }
                    break;
                }
            };
            antientropy.counters.scrubbed_records.add(scrubbed.records);
            antientropy.counters.scrubbed_bytes.add(scrubbed.bytes);
            corrupt += scrubbed.corrupt;
            from = scrubbed.next;
            let_others_go_first(antientropy, scrubbed.bytes).await;
        }
        if corrupt > 0 {
            antientropy.counters.corrupt_hints.add(corrupt);
            antientropy.events.record(Event::HintsCorrupt { target, hints: corrupt });
            antientropy.ask_for(target);
        }
    }
}

impl ScrubRead {
    fn add(&mut self, more: ScrubRead) {
        self.records += more.records;
        self.bytes += more.bytes;
        self.corrupt += more.corrupt;
        self.wrong_leaves += more.wrong_leaves;
    }
}

impl AntiEntropy {
    /// Reads all records and hints now, and repairs what is found: what the scrub does over its period. Says how many
    /// were read.
    pub async fn scrub_now(self: &Arc<Self>) -> u64 {
        self.scrub_part(&Only::default()).await
    }

    /// Reads all records of a part now. A second one that is asked for meanwhile is shown instead of the first.
    pub(super) async fn scrub_part(self: &Arc<Self>, only: &Only) -> u64 {
        let before = self.counters.scrubbed_records.get();
        let mut work = Vec::new();
        let view = self.replica.view().get();
        for store in view.stores() {
            let held = store.engine().partitions().into_iter().map(|held| held.partition);
            let wanted = held.filter(|&id| only.has(store.definition().name.as_str(), view.owner(id).id));
            work.extend(wanted.map(|partition| (store.clone(), partition)));
        }
        let (since, partitions) = (self.ports.clock.now(), work.len());
        let mut scrubbing = Scrubbing { since, partitions, ..Scrubbing::default() };
        for (store, partition) in work {
            scrubbing.store = store.definition().name.to_string();
            self.state.lock().scrubbing = Some(scrubbing.clone());
            let read = scrub_partition(self, &store, partition, None).await;
            scrubbing.done += 1;
            scrubbing.read.add(read);
        }
        if only.is_all() {
            scrub_hints(self, None).await;
        }
        let now = self.ports.clock.now();
        let mut state = self.state.lock();
        (state.scrubbing, state.scrubbed) = (None, Some((now, scrubbing)));
        drop(state);
        self.counters.scrubbed_records.get() - before
    }
}
