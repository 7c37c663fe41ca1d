//! The load of a node, as it reports it: its counters, put together by the ring of the moment.

use model::routing::holds;
use protocol::report::{HotKey, LoadReport, PartitionLoad, WorkDone};
use runtime::Moment;

use super::Node;
use crate::view::View;
use crate::work;

/// Keys of a partition that are told.
const KEYS_TOLD: usize = 5;

impl Node {
    /// What it has done, for which partitions, and with what.
    pub(super) fn load(&self) -> LoadReport {
        let view = self.replica.view().get();
        let now = self.ports.clock.now();
        let time = self.ports.tasks.worker_time();
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (coordinated_gets, coordinated_puts) = self.coordinated();
        // Each guard ends with its statement.
        let workers = u32::try_from(self.telling.counted.lock().len()).unwrap_or(u32::MAX);
        let own_stamped = self.telling.counted.lock().iter().map(|(_, worker)| worker.own_stamped()).sum();
        let mut report = LoadReport {
            uptime_ms: u64::try_from(now.since(self.telling.started).as_millis()).unwrap_or(u64::MAX),
            ran_us: time.map(|time| micros(time.ran)),
            waited_us: time.map(|time| micros(time.waited)),
            process_us: self.ports.tasks.process_time().map(micros),
            workers,
            processors: self.ports.tasks.processors(),
            coordinated_gets,
            coordinated_puts,
            own_stamped,
            disk_available_bytes: Some(self.disk.available_bytes()),
            disk_total_bytes: self.disk.total_bytes(),
            ..LoadReport::default()
        };
        work::tell(&mut report, self.partition_loads(&view, now));
        report
    }

    /// The keys with most work lately, of each partition that has any.
    pub(super) fn hot_keys(&self) -> Vec<HotKey> {
        let view = self.replica.view().get();
        let hot = self.replica.work().hot();
        let mut told = Vec::new();
        for partition in view.cluster().ring.partitions() {
            let buckets = view.buckets_of(partition.id);
            let (first, last) = match (buckets.first(), buckets.last()) {
                (Some(first), Some(last)) => (first.id, last.id),
                _ => continue,
            };
            let (keys, of) = hot.hottest(first..=last, KEYS_TOLD);
            if keys.is_empty() && of > 0 {
                // Of none it can be told for certain, and all count for the shares of those that others tell.
                told.push(HotKey { partition: partition.id, key: String::new(), noted: 0, of });
            }
            told.extend(keys.into_iter().map(|(key, noted)| HotKey {
                partition: partition.id,
                key: shown(&key),
                noted,
                of,
            }));
        }
        told
    }

    /// Keys that clients had it get and put, over all workers.
    pub(super) fn coordinated(&self) -> (u64, u64) {
        let counted = self.telling.counted.lock();
        let each = counted.iter().map(|(_, worker)| (worker.gets(), worker.puts()));
        each.fold((0, 0), |(gets, puts), (more_gets, more_puts)| (gets + more_gets, puts + more_puts))
    }

    /// The partitions in which it has a part, each with what was done for it lately.
    fn partition_loads(&self, view: &View, now: Moment) -> Vec<(PartitionLoad, u64)> {
        let done = self.replica.work().by_bucket();
        let lately = self.replica.work().lately(now, &done);
        let bytes = bytes_by_bucket(view, done.len());
        let all: u64 = lately.iter().sum();
        let of = |partition: &model::Partition| {
            let mut load = PartitionLoad { partition: partition.id, ..PartitionLoad::default() };
            let mut growth = Vec::new();
            for bucket in view.buckets_of(partition.id) {
                let number = bucket.id.0 as usize;
                load.work += done.get(number).copied().unwrap_or_default();
                load.bytes += bytes.get(number).copied().unwrap_or_default();
                growth.push((bucket.start, lately.get(number).copied().unwrap_or_default()));
            }
            load.middle = work::middle(&growth, all);
            (load, growth.iter().map(|(_, operations)| operations).sum())
        };
        let has_part = |partition: &model::Partition| {
            let stores = view.stores().iter().map(|store| store.definition());
            let read_only = view.read_only_stores().iter().map(|store| &**store.definition());
            stores.chain(read_only).any(|store| holds(store, partition, self.config.member.id))
        };
        let loads = view.cluster().ring.partitions().iter().map(|partition| (partition, of(partition)));
        let told = loads.filter(|(partition, (load, _))| {
            load.bytes > 0 || load.work != WorkDone::default() || has_part(partition)
        });
        told.map(|(_, load)| load).collect()
    }
}

/// A key for people.
fn shown(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}

/// Bytes of keys and records in force, over all stores that take writes.
fn bytes_by_bucket(view: &View, buckets: usize) -> Vec<u64> {
    let mut bytes = vec![0; buckets];
    for held in view.stores().iter().flat_map(|store| store.engine().partitions()) {
        if let Some(bytes) = bytes.get_mut(held.partition.0 as usize) {
            *bytes += held.bytes;
        }
    }
    bytes
}
