//! Writing again what an earlier life may have failed to sync.
//!
//! After a failed sync the page cache still shows the bytes, to the next process as well, but the system takes them for
//! written: no later sync brings them to the device. So an opened engine must not build on what it merely reads. Each
//! segment with records that nothing proves to be synced is copied to a new file, synced, and renamed over the old one.
//!
//! Must never: leave a moment in which neither the old file nor the new one has the segment's name.

use std::sync::Arc;

use runtime::{Disk, DiskError, File};

use super::segment::{Segment, Segments};
use crate::error::StorageError;

/// Bytes that are copied at a time.
const STEP_BYTES: usize = 1 << 20;

/// Makes these segments new, so that the next sync covers all of them. Where there is no room for a copy they stay as
/// they are: only after a failed sync would it have mattered.
///
/// # Errors
/// What the disk refuses.
pub(super) async fn renew(
    disk: &dyn Disk,
    directory: &str,
    segments: &Segments,
    doubtful: &[Arc<Segment>],
) -> Result<(), StorageError> {
    let mut renewed = false;
    for segment in doubtful {
        let temporary = format!("{}.tmp", segment.path);
        match copy(disk, segment, &temporary).await {
            Ok(Some(file)) => {
                disk.rename(&temporary, &segment.path)?;
                segments.replace(segment.renewed(file));
                renewed = true;
            }
            Ok(None) => {}
            Err(DiskError::Full) => {
                tracing::warn!(path = %segment.path, "no room to write again what may not be synced");
                disk.remove(&temporary)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if renewed {
        disk.sync_directory(directory).await?;
    }
    Ok(())
}

/// A synced copy of a segment; `None` when it has no file.
async fn copy(disk: &dyn Disk, segment: &Segment, path: &str) -> Result<Option<Arc<dyn File>>, DiskError> {
    let Some(source) = segment.file() else { return Ok(None) };
    let file = disk.create(path)?;
    let (mut from, end) = (0, segment.written());
    while from < end {
        let mut bytes = vec![0; STEP_BYTES.min((end - from) as usize)];
        let count = source.read_at(from, &mut bytes)?;
        if count == 0 {
            let reason = format!("ends at byte {from} of {end}");
            return Err(DiskError::Failed { path: segment.path.clone(), reason });
        }
        file.append(&bytes[..count])?;
        from += count as u64;
    }
    file.sync().await?;
    Ok(Some(file))
}
