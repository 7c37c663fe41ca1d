//! The log after a snapshot, in order: each record overrides what was known of its key.

use runtime::DiskError;

use super::format::Kind;
use super::index::{Index, Slot};
use super::reader::LogRecord;
use super::reading::{Files, Target, same_key};
use super::snapshot::Snapshot;

pub(super) struct Replay<'a> {
    index: Index,
    files: &'a Files,
}

impl<'a> Replay<'a> {
    pub(super) fn new(snapshot: &Snapshot, files: &'a Files) -> Replay<'a> {
        let index = Index::default();
        for (partition, slots) in &snapshot.entries {
            index.get_or_create(*partition).fill(slots);
        }
        Replay { index, files }
    }

    pub(super) fn into_index(self) -> Index {
        self.index
    }
}

impl Target for Replay<'_> {
    fn apply(&mut self, slot: Slot, record: &LogRecord<'_>) -> Result<(), DiskError> {
        let partition = self.index.get_or_create(record.header.partition);
        if record.header.kind == Kind::Drop {
            partition.all_gates().clear();
            return Ok(());
        }
        let gate = partition.gate(slot.token, slot.fingerprint);
        let mut before = None;
        for old in gate.find(slot.token, slot.fingerprint) {
            if old.place() == slot.place() || same_key(self.files, &old, record.key)? {
                before = Some(old);
                break;
            }
        }
        match (record.header.kind, before) {
            (Kind::Put, before) => gate.point(before.as_ref(), slot),
            (_, Some(old)) => gate.take_out(&old),
            (_, None) => {}
        }
        Ok(())
    }
}
