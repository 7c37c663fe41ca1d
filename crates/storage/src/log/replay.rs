//! The log after a snapshot, in order: each record overrides what was known of its key.

use std::collections::BTreeMap;
use std::sync::Arc;

use runtime::DiskError;

use super::format::Kind;
use super::index::{PartitionIndex, SHARDS, Slot};
use super::reader::Record;
use super::recovery::{Target, same_key};
use super::segment::Segment;
use super::snapshot::Snapshot;
use crate::partitions::Partitions;

pub(super) struct Replay<'a> {
    index: Partitions<PartitionIndex>,
    files: &'a BTreeMap<u32, Arc<Segment>>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(snapshot: &Snapshot, files: &'a BTreeMap<u32, Arc<Segment>>) -> Replay<'a> {
        let index: Partitions<PartitionIndex> = Partitions::new();
        for (partition, slots) in &snapshot.entries {
            let partition = index.get_or_create(*partition);
            for shard in &partition.shards {
                // A little more than an even share, so that few tables grow while they fill.
                shard.reserve(slots.len() / SHARDS + slots.len() / (SHARDS * 8));
            }
            for slot in slots {
                partition.shard(slot.token, slot.fingerprint).insert(*slot);
            }
        }
        Replay { index, files }
    }

    pub(super) fn into_index(self) -> Partitions<PartitionIndex> {
        self.index
    }
}

impl Target for Replay<'_> {
    fn apply(&mut self, slot: Slot, record: &Record<'_>) -> Result<(), DiskError> {
        let partition = self.index.get_or_create(record.header.partition);
        if record.header.kind == Kind::Drop {
            partition.shards.iter().for_each(|shard| drop(shard.clear()));
            return Ok(());
        }
        let shard = partition.shard(slot.token, slot.fingerprint);
        let mut before = None;
        for old in shard.find(slot.token, slot.fingerprint) {
            let same_place = old.segment == slot.segment && old.offset == slot.offset;
            if same_place || same_key(self.files, &old, record.key)? {
                before = Some(old);
                break;
            }
        }
        match (record.header.kind, before) {
            (Kind::Put, Some(old)) => {
                shard.replace(&old, slot);
            }
            (Kind::Put, None) => shard.insert(slot),
            (_, Some(old)) => {
                shard.remove(&old);
            }
            (_, None) => {}
        }
        Ok(())
    }
}
