//! Whether all that comes may be here and has room, before its first byte.

use std::collections::BTreeMap;

use model::StoreName;
use storage::artifacts::Digest;

use super::bring::Missing;
use super::fetching::Need;
use super::{Artifacts, NotYet, Trouble, files};

/// Bytes that a fetch leaves free on the disk, for the stores that take writes.
const SPACE_LEFT_BYTES: u64 = 256 << 20;

/// What a fetch will still write: the unfinished file of each chunk and delta, and how long it will be.
pub(super) type Coming = BTreeMap<Digest, Vec<(String, u64)>>;

impl Artifacts {
    /// Whether all that comes may be here and has room, beside what other fetches will write.
    pub(super) async fn check_room(&self, need: &Need, missing: &[Missing<'_>]) -> Result<(), NotYet> {
        let (name, number, lane) = (&need.store.listed().name, need.listed.number, need.lane());
        let disk = self.disk.clone();
        let stores: Vec<StoreName> =
            need.view.read_only_stores().iter().map(|store| store.listed().name.clone()).collect();
        let part = |digest, bytes| (files::part(name, digest), bytes);
        let each = missing.iter().map(|(chunk, delta)| {
            let delta = delta.map(|delta| part(delta.digest, delta.file().bytes));
            (chunk.digest, delta.into_iter().chain([part(chunk.digest, chunk.file_bytes)]).collect())
        });
        let own: Coming = each.collect();
        // One at a time, so that what two fetches need together is compared.
        let _turn = self.room.lock().await;
        let others: Vec<Coming> = {
            let mut fetching = self.fetching.lock();
            fetching.running.insert(lane.clone(), own.clone());
            let others = fetching.running.iter().filter(|(of, _)| **of != lane);
            others.map(|(_, coming)| coming.clone()).collect()
        };
        let needed = move || -> (u64, u64) {
            let left = |(part, bytes): &(String, u64)| {
                bytes.saturating_sub(disk.stat(part).map_or(0, |stat| stat.length))
            };
            let there = stores.iter().map(|store| files::bytes(&*disk, store)).sum();
            let coming = others.iter().chain([&own]).flat_map(BTreeMap::values).flatten();
            // A file that two fetches want is written once.
            let coming: BTreeMap<&String, &(String, u64)> = coming.map(|file| (&file.0, file)).collect();
            (coming.into_values().map(left).sum(), there)
        };
        let (needed, there) = self.wait(needed).await?;
        let refused = self.refusal(name, number.0, (needed, there));
        if refused.is_some() {
            self.fetching.lock().running.insert(lane, Coming::default());
        }
        refused.map_or(Ok(()), Err)
    }

    /// Whether all chunks of an artifact that are to be here may be mapped, before the first byte of one comes.
    pub(super) fn check_mappings(&self, need: &Need, chunks: usize) -> Result<(), NotYet> {
        let left = self.disk.mappings_left();
        if chunks <= left {
            return Ok(());
        }
        let (node, name, number) = (self.node, &need.store.listed().name, need.listed.number);
        let error = format!(
            "{node} does not fetch artifact {number} of store {name}: it would read {chunks} chunks, and {left} more files may \
             be mapped; delete artifacts of the store, or start the node with more descriptors \
             (LimitNOFILE, `ulimit -Hn`)"
        );
        Err(NotYet::Failed(error, Trouble::Node))
    }

    /// What is wrong with that many more bytes beside those that are there.
    fn refusal(&self, name: &StoreName, number: u64, (needed, there): (u64, u64)) -> Option<NotYet> {
        if needed.saturating_add(there) > self.bytes_max {
            let (node, allowed) = (self.node, self.bytes_max);
            let error = format!(
                "{node} does not fetch artifact {number} of store {name}: it needs {needed} bytes, artifacts take {there} bytes \
                 there, and {allowed} bytes are allowed; delete artifacts of the store, or start \
                 the node with a greater --artifact-bytes-max"
            );
            return Some(NotYet::Failed(error, Trouble::Quota));
        }
        let available = self.disk.available_bytes();
        (needed.saturating_add(SPACE_LEFT_BYTES) > available).then(|| {
            let error = format!(
                "fetching needs {needed} bytes, and the disk has {available} bytes left, of which {SPACE_LEFT_BYTES} stay \
                 free; free space, or delete artifacts"
            );
            NotYet::Failed(error, Trouble::Room)
        })
    }

    /// A chunk of a fetch is here: nothing more will be written for it.
    pub(super) fn has_come(&self, need: &Need, chunk: Digest) {
        if let Some(coming) = self.fetching.lock().running.get_mut(&need.lane()) {
            coming.remove(&chunk);
        }
    }
}
