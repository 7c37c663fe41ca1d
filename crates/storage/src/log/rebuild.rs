//! All segments without a snapshot: of each key the record with the highest sequence wins, whatever file it is in.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use model::PartitionId;
use runtime::DiskError;

use super::format::Kind;
use super::index::{Index, Slot};
use super::reader::LogRecord;
use super::reading::{Files, Target, same_key};

/// The newest record met so far of one key.
struct Known {
    slot: Slot,
    sequence: u64,
    removed: bool,
    sound: bool,
}

pub(super) struct Rebuild<'a> {
    tables: BTreeMap<PartitionId, HashTable<Known>>,
    /// The sequence of the last drop of a partition: everything before it is gone.
    floors: BTreeMap<PartitionId, u64>,
    files: &'a Files,
}

impl<'a> Rebuild<'a> {
    pub(super) fn new(files: &'a Files) -> Rebuild<'a> {
        Rebuild { tables: BTreeMap::new(), floors: BTreeMap::new(), files }
    }

    pub(super) fn into_index(self) -> Index {
        let index = Index::default();
        for (id, table) in self.tables {
            let floor = self.floors.get(&id).copied().unwrap_or(0);
            let newest = table.into_iter().filter(|known| !known.removed && known.sequence > floor);
            let slots: Vec<Slot> = newest.map(|known| known.slot).collect();
            index.get_or_create(id).fill(&slots);
        }
        index
    }
}

impl Target for Rebuild<'_> {
    fn apply(&mut self, slot: Slot, record: &LogRecord<'_>) -> Result<(), DiskError> {
        let header = &record.header;
        if header.kind == Kind::Drop {
            let floor = self.floors.entry(header.partition).or_default();
            *floor = (*floor).max(header.sequence);
            return Ok(());
        }
        let table = self.tables.entry(header.partition).or_default();
        let removed = header.kind == Kind::Remove;
        let known = Known { slot, sequence: header.sequence, removed, sound: record.sound };
        let hash = slot.hash();
        let mut failed = None;
        let found = table.find_mut(hash, |other| {
            let alike = other.slot.token == slot.token && other.slot.fingerprint == slot.fingerprint;
            alike
                && same_key(self.files, &other.slot, record.key).unwrap_or_else(|error| {
                    failed = Some(error);
                    true
                })
        });
        match (found, failed) {
            (_, Some(error)) => return Err(error),
            (Some(before), None) => {
                // The same sequence twice: a copy and its source; the one that holds is better.
                let better = known.sound && !before.sound;
                if known.sequence > before.sequence || (known.sequence == before.sequence && better) {
                    *before = known;
                }
            }
            (None, None) => {
                table.insert_unique(hash, known, |known| known.slot.hash());
            }
        }
        Ok(())
    }
}
