//! Whose directory this is: one small file, written once, before anything else.

use runtime::{Clock, Disk, DiskError};
use xxhash_rust::xxh3::xxh3_64;

use super::format::FORMAT_VERSION;
use crate::error::StorageError;

const NAME: &str = "FORMAT";
const NAME_TEMPORARY: &str = "FORMAT.tmp";
const FIRST_LINE: &str = "tontine log engine";

/// Name of the lock below the engine's directory.
pub(super) const LOCK: &str = "LOCK";

/// The identity of the data in a directory; an empty directory gets one. All names that are found there survive a power
/// cut from now on, the directory's own included: the process that made them may have ended before it synced them.
pub(super) async fn load_or_create(
    disk: &dyn Disk,
    clock: &dyn Clock,
    directory: &str,
) -> Result<u64, StorageError> {
    let engine = match load(disk, directory)? {
        Some(engine) => engine,
        None => create(disk, clock, directory).await?,
    };
    let mut above = directory;
    loop {
        disk.sync_directory(above).await?;
        if above.is_empty() {
            return Ok(engine);
        }
        above = above.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
}

/// The identity of the data in a directory; `None` where there is no data.
pub(super) fn load(disk: &dyn Disk, directory: &str) -> Result<Option<u64>, StorageError> {
    match disk.open(&format!("{directory}/{NAME}")) {
        Ok(file) => {
            let mut bytes = vec![0; 256];
            let count = file.read_at(0, &mut bytes)?;
            parse(directory, &String::from_utf8_lossy(&bytes[..count])).map(Some)
        }
        Err(DiskError::NotFound { .. }) => {
            let strange =
                disk.list(directory)?.into_iter().find(|name| name != LOCK && !name.ends_with(".tmp"));
            match strange {
                Some(name) => Err(foreign(directory, format!("it holds {name} but no {NAME}"))),
                None => Ok(None),
            }
        }
        Err(error) => Err(error.into()),
    }
}

fn foreign(directory: &str, reason: String) -> StorageError {
    StorageError::Foreign { directory: directory.to_owned(), reason }
}

fn parse(directory: &str, text: &str) -> Result<u64, StorageError> {
    let mut lines = text.lines();
    let strange = || foreign(directory, format!("its {NAME} belongs to another engine or is damaged"));
    if lines.next() != Some(FIRST_LINE) {
        return Err(strange());
    }
    let mut field = |name: &str| lines.next().and_then(|line| line.strip_prefix(name)).map(str::trim);
    let format: u32 = field("format").and_then(|value| value.parse().ok()).ok_or_else(strange)?;
    if format > FORMAT_VERSION {
        return Err(StorageError::NewerFormat { found: format, supported: FORMAT_VERSION });
    }
    let engine = field("engine").and_then(|value| u64::from_str_radix(value, 16).ok()).ok_or_else(strange)?;
    // A flipped digit would make every checksum of the directory fail.
    match field("check") == Some(&check(engine)) {
        true => Ok(engine),
        false => Err(strange()),
    }
}

fn check(engine: u64) -> String {
    format!("{:08x}", xxh3_64(&engine.to_le_bytes()) >> 32)
}

async fn create(disk: &dyn Disk, clock: &dyn Clock, directory: &str) -> Result<u64, StorageError> {
    // Need not be secret, only different from that of other directories.
    let moment = [clock.wall().0.to_le_bytes(), clock.now().nanos.to_le_bytes()].concat();
    let engine = xxh3_64(&[&moment, directory.as_bytes()].concat());
    let text =
        format!("{FIRST_LINE}\nformat {FORMAT_VERSION}\nengine {engine:016x}\ncheck {}\n", check(engine));
    let temporary = format!("{directory}/{NAME_TEMPORARY}");
    match disk.remove(&temporary) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let file = disk.create(&temporary)?;
    file.append(text.as_bytes())?;
    file.sync().await?;
    disk.rename(&temporary, &format!("{directory}/{NAME}"))?;
    Ok(engine)
}
