//! That an operator has stopped comparing, or comparing parts, remembered over restarts: a file below the data directory
//! that is there or not, and one with a line for each part. Each node has its own, as each is given the order: a node
//! that was away when comparing was stopped compares.
//!
//! Must never: keep a node from starting. Without the files it compares, which harms nothing.

use model::PartitionId;
use runtime::{Disk, DiskError};

use super::Only;

/// The file below the data directory.
const FILE: &str = "repair-stopped";
/// The parts: a line `STORE PARTITION` each, a star for all.
const PARTS_FILE: &str = "repair-stopped-parts";
/// Parts that may be stopped at the same time.
pub(super) const PARTS_MAX: usize = 256;

/// Whether comparing was stopped here.
pub(super) fn is_remembered(disk: &dyn Disk) -> bool {
    disk.open(FILE).is_ok()
}

/// The parts that are not compared here.
pub(super) fn parts(disk: &dyn Disk) -> Vec<Only> {
    let Ok(file) = disk.open(PARTS_FILE) else { return Vec::new() };
    let mut bytes = vec![0; file.length().min(64 * 1024) as usize];
    let read = file.read_at(0, &mut bytes).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).lines().filter_map(parse).take(PARTS_MAX).collect()
}

fn parse(line: &str) -> Option<Only> {
    let (store, partition) = line.split_once(' ')?;
    let store = (store != "*").then(|| store.to_owned());
    let partition = match partition {
        "*" => None,
        number => Some(PartitionId(number.parse().ok()?)),
    };
    Some(Only { store, partition })
}

fn line(part: &Only) -> String {
    let partition = part.partition.map_or_else(|| "*".to_owned(), |partition| partition.0.to_string());
    format!("{} {partition}\n", part.store.as_deref().unwrap_or("*"))
}

/// Remembers, durably, what is stopped.
pub(super) async fn remember(disk: &dyn Disk, stopped: bool, parts: &[Only]) -> Result<(), DiskError> {
    match (stopped, is_remembered(disk)) {
        (true, false) => disk.create(FILE)?.sync().await?,
        (false, true) => disk.remove(FILE)?,
        _ => {}
    }
    let temporary = format!("{PARTS_FILE}.new");
    for file in [&temporary, PARTS_FILE] {
        match disk.remove(file) {
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(error) if !parts.is_empty() || file == PARTS_FILE => return Err(error),
            Err(_) => {}
        }
        if !parts.is_empty() {
            break;
        }
    }
    if !parts.is_empty() {
        let file = disk.create(&temporary)?;
        file.append(parts.iter().map(line).collect::<String>().as_bytes())?;
        file.sync().await?;
        disk.rename(&temporary, PARTS_FILE)?;
    }
    disk.sync_directory("").await
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use runtime::disk::simulated::SimulatedDisk;

    use super::*;

    #[test]
    fn a_stop_is_remembered_over_a_power_cut_until_it_is_lifted() {
        let disk = SimulatedDisk::new(1);
        let part = |store: Option<&str>, partition: Option<u32>| Only {
            store: store.map(str::to_owned),
            partition: partition.map(PartitionId),
        };
        let stopped = [part(Some("carts"), None), part(Some("carts"), Some(7)), part(None, Some(9))];
        for parts in [&stopped[..], &stopped[1..], &[]] {
            remember(&disk, false, parts).now_or_never().unwrap().unwrap();
            disk.crash(3);
            assert_eq!(super::parts(&disk), parts);
            assert!(!is_remembered(&disk));
        }
    }

    #[test]
    fn a_stop_of_everything_is_remembered_over_a_power_cut_until_it_is_lifted() {
        let disk = SimulatedDisk::new(1);
        for stopped in [true, true, false, false, true] {
            remember(&disk, stopped, &[]).now_or_never().unwrap().unwrap();
            disk.crash(3);
            assert_eq!((is_remembered(&disk), super::parts(&disk)), (stopped, vec![]));
        }
    }

    /// What a restart would not remember must not pass for remembered.
    #[test]
    fn an_order_that_cannot_be_written_down_is_an_error() {
        use runtime::disk::simulated::{DiskOperation, Fault};
        let part = Only { store: Some("carts".to_owned()), partition: None };
        // The first that is removed is what an earlier attempt left.
        for (parts, skip, is_written) in
            [(&[][..], 0, true), (&[], 1, false), (std::slice::from_ref(&part), 0, false)]
        {
            let disk = SimulatedDisk::new(1);
            remember(&disk, false, std::slice::from_ref(&part)).now_or_never().unwrap().unwrap();
            disk.inject(Fault { skip, ..Fault::next(DiskOperation::Remove, 1) });
            let written = remember(&disk, false, parts).now_or_never().unwrap();
            assert_eq!(written.is_ok(), is_written, "{} parts, {skip}", parts.len());
        }
    }
}
