//! Artifacts of a run: small tables, most of whose values say in which artifact they were new.

use std::sync::Arc;

use bytes::Bytes;
use model::{ManifestDigest, Token};
use runtime::Disk;
use runtime::disk::simulated::SimulatedDisk;
use storage::artifacts::{
    BuildOptions, BuildRecord, Compression, Cutter, Duplicates, Manifest, Merged, Place, Records,
    RecordsGiven, TokenHash, build, build_child,
};

use super::{Book, Built, STORE};
use crate::check::artifacts::Table;
use crate::dice::Dice;

/// Keys whose values are new in most artifacts.
pub(crate) const LIVELY: u32 = 24;
/// Keys whose values never change: two artifacts may share chunks that hold only these.
pub(crate) const STILL: u32 = 40;
/// Keys that one artifact has, and no other one.
pub(crate) const OWN: u32 = 3;
/// Chunks of a table that one chunk would hold.
const SLICES: u64 = 8;
/// Records that a builder sorts in memory, in bytes: all.
const MEMORY_BYTES: usize = 1 << 20;

/// A key whose values change.
pub(crate) fn lively(key: u32) -> Bytes {
    Bytes::from(format!("lively {key}"))
}

/// A key whose value stays.
pub(crate) fn still(key: u32) -> Bytes {
    Bytes::from(format!("still {key}"))
}

/// A key of one artifact.
pub(crate) fn own(number: u64, key: u32) -> Bytes {
    Bytes::from(format!("only {number}.{key}"))
}

fn value(says: u64, length: u32) -> Bytes {
    Bytes::from(format!("{says}:{}", "x".repeat(length as usize * 7 % 300)))
}

/// The table of an artifact. One upon another may keep some of its values; a thousandth of them at `kept` one.
fn table(number: u64, (before, kept): (Option<&Table>, u64), dice: &mut Dice) -> Table {
    let mut table = Table::new();
    for key in 0..LIVELY {
        let kept = before.and_then(|table| table.get(&lively(key))).filter(|_| dice.chance(kept));
        table.insert(lively(key), kept.cloned().unwrap_or_else(|| value(number, key)));
    }
    table.extend((0..STILL).map(|key| (still(key), value(0, key))));
    table.extend((0..OWN).map(|key| (own(number, key), value(number, key))));
    table
}

fn merged(table: &Table) -> Merged {
    let mut records = Records::default();
    for (line, (key, value)) in table.iter().enumerate() {
        let (token, place) = (Token::of(key), Place::new(0, line as u64 + 1));
        records.push(BuildRecord { token, key, value, place });
    }
    records.sort();
    Merged::new(Vec::new(), vec![records], MEMORY_BYTES).expect("records in memory")
}

async fn alone(disk: &SimulatedDisk, number: u64, table: &Table, compression: Compression) -> Manifest {
    let options = BuildOptions {
        store: model::StoreName::new(STORE).expect("a short name"),
        number,
        hash: TokenHash::Xxh3,
        compression,
        layout: None,
        duplicates: Duplicates::Refuse,
    };
    let starts: Vec<u64> = (0..SLICES).map(|slice| slice << 61).collect();
    let built = build(Arc::new(disk.clone()), merged(table), &options, Cutter::new(&starts, (1, 1 << 20)));
    built.await.expect("the disk is sound")
}

impl Book {
    /// Builds the artifact of a number, by itself or upon the one before; returns the URL that it is to be put under,
    /// with what lies there.
    pub(crate) async fn build(&self, number: u64, dice: &mut Dice) -> (String, SimulatedDisk) {
        let (disk, upon) = (SimulatedDisk::new(number), dice.chance(500));
        let before = {
            let state = self.state.lock();
            let last = state.built.values().next_back().filter(|_| upon);
            last.map(|built| (built.disk.clone(), built.manifest.clone(), built.table.clone()))
        };
        let kept = *dice.pick(&[0, 0, 500, 900]);
        let table = table(number, (before.as_ref().map(|(_, _, table)| table), kept), dice);
        let manifest = match before {
            None => {
                let compression = *dice.pick(&[Compression::None, Compression::Lz4]);
                alone(&disk, number, &table, compression).await
            }
            Some((source, parent, _)) => {
                let source: Arc<dyn Disk> = Arc::new(source);
                let to: Arc<dyn Disk> = Arc::new(disk.clone());
                let given = (RecordsGiven::All, Duplicates::Refuse);
                let built = build_child(to, merged(&table), (source, &parent), number, given);
                built.await.expect("the disks are sound")
            }
        };
        let url = format!("sim://{STORE}-{number}");
        let digest = ManifestDigest(manifest.digest().0);
        let built = Built { url: url.clone(), disk: disk.clone(), manifest, table, digest };
        self.state.lock().built.insert(number, built);
        (url, disk)
    }

    /// What a source that lies has in the place of an artifact: the same keys with other values.
    pub(crate) async fn lie(&self, number: u64) -> (ManifestDigest, SimulatedDisk) {
        let table = {
            let state = self.state.lock();
            state.built.get(&number).map(|built| built.table.clone()).unwrap_or_default()
        };
        let says = |(key, _): (Bytes, Bytes)| (key, value(900 + number, 5));
        let disk = SimulatedDisk::new(number);
        let lies = table.into_iter().map(says).collect();
        let manifest = alone(&disk, number, &lies, Compression::None).await;
        (ManifestDigest(manifest.digest().0), disk)
    }
}
