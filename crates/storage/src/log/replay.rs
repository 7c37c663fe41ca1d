//! The log after a snapshot, in order: each record overrides what was known of its key.

use std::collections::BTreeMap;
use std::sync::Arc;

use runtime::DiskError;

use super::format::Kind;
use super::index::{PartitionIndex, STRIPES, Slot};
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
            for stripe in &partition.stripes {
                // A little more than an even share, so that few tables grow while they fill.
                stripe.reserve(slots.len() / STRIPES + slots.len() / (STRIPES * 8));
            }
            for slot in slots {
                partition.stripe(slot.token, slot.fingerprint).insert(*slot);
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
            partition.stripes.iter().for_each(|stripe| drop(stripe.clear()));
            return Ok(());
        }
        let stripe = partition.stripe(slot.token, slot.fingerprint);
        let mut before = None;
        for old in stripe.find(slot.token, slot.fingerprint) {
            let same_place = old.segment == slot.segment && old.offset == slot.offset;
            if same_place || same_key(self.files, &old, record.key)? {
                before = Some(old);
                break;
            }
        }
        match (record.header.kind, before) {
            (Kind::Put, Some(old)) => {
                stripe.replace(&old, slot);
            }
            (Kind::Put, None) => stripe.insert(slot),
            (_, Some(old)) => {
                stripe.remove(&old);
            }
            (_, None) => {}
        }
        Ok(())
    }
}
