//! Writing the index down, beside running requests: `snapshot` says what a file of it holds.
//!
//! A snapshot notes where the log ends (its boundary), then visits every table under its gate, then syncs the log, then
//! becomes valid by a rename. What was appended after the boundary may or may not be in it; replaying the log from the
//! boundary makes up for both. Segments that compaction emptied are deleted only after a snapshot that does not know
//! them is durable.

use std::sync::Arc;
use std::time::Duration;

use model::PartitionId;
use runtime::{DiskError, File};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::core::Core;
use super::format::FORMAT_VERSION;
use super::segment::Segment;
use super::snapshot::{BLOCK_ENTRIES_MAX, Block, ENTRY_BYTES, MAGIC, NAME, NAME_TEMPORARY, encode_entry};
use super::tail::Point;
use crate::error::StorageError;

/// Blocks between two rests of the writer.
const BLOCKS_PER_STEP: usize = 4;

/// Writes blocks.
struct Writer {
    file: Arc<dyn File>,
    block: u64,
    bytes: u64,
}

impl Writer {
    fn write(&mut self, kind: Block, partition: PartitionId, payload: &[u8]) -> Result<(), DiskError> {
        let mut bytes = vec![0; 8];
        bytes.extend_from_slice(&(kind as u32).to_le_bytes());
        bytes.extend_from_slice(&partition.0.to_le_bytes());
        bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes.extend_from_slice(payload);
        let check = xxh3_64_with_seed(&bytes[8..], self.block);
        bytes[..8].copy_from_slice(&check.to_le_bytes());
        self.block += 1;
        self.bytes += bytes.len() as u64;
        self.file.append(&bytes).map(|_| ())
    }
}

impl Core {
    /// True when a restart would read too much, or enough emptied segments wait to be deleted.
    pub(super) fn snapshot_due(&self, segments: &[Arc<Segment>]) -> bool {
        let snapshot_bytes = self.last_snapshot.bytes();
        let logged = self.appending.tail().end().position.saturating_sub(self.last_snapshot.position());
        let obsolete = segments.iter().filter(|segment| segment.is_obsolete());
        let obsolete: u64 = obsolete.map(|segment| segment.written()).sum();
        let enough = (2 * self.site.options.segment_bytes).max(snapshot_bytes / 2);
        let short = self.space.is_short();
        logged >= self.site.options.snapshot_bytes.max(4 * snapshot_bytes)
            || obsolete >= enough
            || (obsolete > 0 && short)
    }

    /// Writes a snapshot and deletes what it makes superfluous. On an error the snapshot before stays valid.
    pub(super) async fn snapshot(&self) -> Result<(), StorageError> {
        let boundary = self.appending.tail().end();
        let temporary = format!("{}/{NAME_TEMPORARY}", self.site.directory);
        match self.site.disk.remove(&temporary) {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let mut writer = Writer { file: self.site.disk.create(&temporary)?, block: 0, bytes: 0 };
        let written = self.write_snapshot(&mut writer, boundary.point, boundary.sequence_next).await;
        if let Err(error) = written {
            // Room for the next try; when even this fails, the next try removes it.
            let _ = self.site.disk.remove(&temporary);
            return Err(error);
        }
        writer.file.sync().await.map_err(|error| self.fail(&error))?;
        self.site.disk.rename(&temporary, &format!("{}/{NAME}", self.site.directory))?;
        let synced = self.site.disk.sync_directory(&self.site.directory).await;
        synced.map_err(|error| self.fail(&error))?;
        self.last_snapshot.replace(boundary.position, writer.bytes);
        self.delete_obsolete().await
    }

    async fn write_snapshot(
        &self,
        writer: &mut Writer,
        boundary: Point,
        sequence_next: u64,
    ) -> Result<(), StorageError> {
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        head.extend_from_slice(&boundary.segment.to_le_bytes());
        head.extend_from_slice(&boundary.offset.to_le_bytes());
        head.extend_from_slice(&self.segments.id_next().to_le_bytes());
        head.extend_from_slice(&sequence_next.to_le_bytes());
        head.extend_from_slice(&self.site.engine.to_le_bytes());
        writer.write(Block::Head, PartitionId(0), &head)?;
        self.write_entries(writer).await?;
        // Entries may point at what was appended since; it must not be younger than the snapshot.
        self.commit(true).await?;
        let mut segments = Vec::new();
        for segment in self.segments.all() {
            if segment.is_obsolete() || segment.file().is_none() {
                continue;
            }
            segments.extend_from_slice(&segment.id.to_le_bytes());
            segments.extend_from_slice(&(segment.kind as u32).to_le_bytes());
            segments.extend_from_slice(&segment.synced().to_le_bytes());
            segments.extend_from_slice(&segment.markers().to_le_bytes());
            segments.extend_from_slice(&segment.origin_max().to_le_bytes());
            segments.extend_from_slice(&[0; 4]);
        }
        writer.write(Block::Segments, PartitionId(0), &segments)?;
        Ok(writer.write(Block::End, PartitionId(0), &writer.block.to_le_bytes())?)
    }

    async fn write_entries(&self, writer: &mut Writer) -> Result<(), StorageError> {
        let mut blocks = 0;
        for (partition, index) in self.index.iter() {
            if index.is_empty_and_still() {
                continue;
            }
            let mut payload = Vec::new();
            for gate in index.gates() {
                gate.for_each(|slot| encode_entry(&mut payload, slot));
                drop(gate);
                while payload.len() >= BLOCK_ENTRIES_MAX * ENTRY_BYTES {
                    let rest = payload.split_off(BLOCK_ENTRIES_MAX * ENTRY_BYTES);
                    writer.write(Block::Entries, partition, &payload)?;
                    payload = rest;
                    blocks += 1;
                }
            }
            if !payload.is_empty() {
                writer.write(Block::Entries, partition, &payload)?;
                blocks += 1;
            }
            // At close nobody is left to make way for.
            if blocks >= BLOCKS_PER_STEP && !self.life.is_refusing() {
                blocks = 0;
                self.site.clock.sleep(Duration::from_micros(100)).await;
            }
        }
        Ok(())
    }

    /// Deletes the segments that no snapshot knows any more.
    async fn delete_obsolete(&self) -> Result<(), StorageError> {
        let mut deleted = Vec::new();
        for segment in self.segments.all() {
            if segment.is_obsolete() {
                match self.site.disk.remove(&segment.path) {
                    Ok(()) | Err(DiskError::NotFound { .. }) => deleted.push(segment.id),
                    Err(error) => tracing::warn!(path = %segment.path, %error, "cannot remove a segment"),
                }
            }
        }
        if deleted.is_empty() {
            return Ok(());
        }
        let synced = self.site.disk.sync_directory(&self.site.directory).await;
        synced.map_err(|error| self.fail(&error))?;
        // Only now are they gone for good, and markers may count on it.
        deleted.into_iter().for_each(|id| self.segments.remove(id));
        Ok(())
    }
}
