//! Keeping trees and records honest: counting trees that are doubtful or too shallow, and the scrub.

use std::sync::{Arc, Weak};
use std::time::Duration;

use model::{PartitionId, Token};
use storage::StorageError;

use super::{Repair, breathe, living};
use crate::events::Event;
use crate::stores::LocalStore;

/// How often it is looked for trees to count.
const COUNT_INTERVAL: Duration = Duration::from_millis(500);
/// Rest after a step of counting, so that requests and commits of the background thread get their turn; as many times
/// longer as this node's workers are late.
const COUNT_REST: Duration = Duration::from_micros(500);
/// Longest pause between two steps of the scrub.
const SCRUB_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Counts what must be counted, as long as the node lives.
pub(super) async fn count(weak: Weak<Repair>) {
    let Some(clock) = weak.upgrade().map(|repair| repair.ports.clock.clone()) else { return };
    loop {
        let Some(repair) = living(&weak) else { return };
        let stores = repair.replica.view().get().stores().to_vec();
        for store in &stores {
            let doubtful = store.trees().summary().1;
            let mut records = 0;
            for partition in store.trees().uncounted() {
                records += count_partition(&repair, store, partition).await;
                if repair.is_stopping() {
                    return;
                }
            }
            if doubtful > 0 && records > 0 {
                let store = store.definition().name.to_string();
                repair.events.record(Event::TreesCounted { store, trees: doubtful as u64, records });
            }
        }
        drop((repair, stores));
        clock.sleep(COUNT_INTERVAL).await;
    }
}

async fn count_partition(repair: &Arc<Repair>, store: &LocalStore, partition: PartitionId) -> u64 {
    let held = store.engine().partitions();
    let held = held.iter().find(|(id, _)| *id == partition).map_or(0, |(_, records)| *records);
    let mut met = 0;
    loop {
        match store.count_step(partition, held) {
            Ok(counted) => {
                repair.numbers.counted_records.add(counted.records);
                met += counted.records;
                if counted.done || repair.is_stopping() {
                    return met;
                }
            }
            Err(error) => {
                tracing::warn!(%partition, %error, "hash tree not counted");
                return met;
            }
        }
        let rest = COUNT_REST * repair.pulse.times().await;
        repair.ports.clock.sleep(rest).await;
    }
}

/// Reads every record once in a scrub period, as long as the node lives.
pub(super) async fn scrub(weak: Weak<Repair>) {
    let Some(clock) = weak.upgrade().map(|repair| repair.ports.clock.clone()) else { return };
    loop {
        let (work, pause) = {
            let Some(repair) = living(&weak) else { return };
            let stores = repair.replica.view().get().stores().to_vec();
            let mut work = Vec::new();
            for store in stores {
                let held = store.engine().partitions();
                work.extend(held.into_iter().map(|(partition, _)| (store.clone(), partition)));
            }
            let mut state = repair.state.lock();
            (state.scrub.partitions, state.scrub.done) = (work.len(), 0);
            let parts = u32::try_from(work.len().max(1)).unwrap_or(u32::MAX);
            (work, repair.options.scrub_period / parts)
        };
        // Pauses are cut into pieces, so that a node that stops is not waited for.
        if work.is_empty() {
            rest(&weak, &*clock, pause).await;
        }
        for (store, partition) in work {
            rest(&weak, &*clock, pause).await;
            let Some(repair) = living(&weak) else { return };
            scrub_partition(&repair, &store, partition).await;
            repair.state.lock().scrub.done += 1;
        }
        let Some(repair) = living(&weak) else { return };
        repair.state.lock().scrub.passes += 1;
    }
}

async fn rest(weak: &Weak<Repair>, clock: &dyn runtime::Clock, pause: Duration) {
    let until = clock.now().after(pause);
    while clock.now() < until && living(weak).is_some() {
        clock.sleep_until(until.min(clock.now().after(SCRUB_PAUSE_MAX))).await;
    }
}

async fn scrub_partition(repair: &Arc<Repair>, store: &Arc<LocalStore>, partition: PartitionId) {
    let Some(mut from) = store.scrub_from(partition) else { return };
    let (mut corrupt, mut wrong) = (0, 0);
    while let Some(next) = scrub_once(repair, store, partition, from, &mut corrupt, &mut wrong) {
        from = next;
        breathe().await;
    }
    let name = || store.definition().name.to_string();
    if corrupt > 0 {
        repair.numbers.corrupt_records.add(corrupt);
        repair.events.record(Event::CorruptFound { store: name(), partition, records: corrupt });
    }
    if wrong > 0 {
        repair.numbers.wrong_leaves.add(wrong as u64);
        repair.events.record(Event::LeavesRecounted { store: name(), partition, leaves: wrong as u64 });
    }
    if corrupt > 0 || wrong > 0 {
        let view = repair.replica.view().get();
        let others = view.replicated_by(repair.replica.node(), store).remove(&partition);
        others.into_iter().flatten().for_each(|peer| repair.ask_for(peer));
    }
}

fn scrub_once(
    repair: &Repair,
    store: &LocalStore,
    partition: PartitionId,
    from: Token,
    corrupt: &mut u64,
    wrong: &mut usize,
) -> Option<Token> {
    match store.scrub_step(partition, from) {
        Ok(scrubbed) => {
            repair.numbers.scrubbed_records.add(scrubbed.records);
            repair.numbers.scrubbed_bytes.add(scrubbed.bytes);
            *corrupt += scrubbed.corrupt;
            *wrong += scrubbed.wrong_leaves;
            scrubbed.next.filter(|_| !repair.is_stopping())
        }
        Err(StorageError::Closed) => None,
        Err(error) => {
            tracing::warn!(%partition, %error, "partition not scrubbed");
            None
        }
    }
}

impl Repair {
    /// Reads all records now, and repairs what is found: what the scrub does over its period. Says how many records
    /// were read.
    pub async fn scrub_now(self: &Arc<Self>) -> u64 {
        let before = self.numbers.scrubbed_records.get();
        for store in self.replica.view().get().stores() {
            for (partition, _) in store.engine().partitions() {
                scrub_partition(self, store, partition).await;
            }
        }
        self.numbers.scrubbed_records.get() - before
    }
}
