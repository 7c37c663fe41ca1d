//! Directories that artifacts are fetched from, as simulated disks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use runtime::disk::simulated::SimulatedDisk;
use runtime::{BoxFuture, Disk, DiskError, File, FileStat, Mapping, Sources};

use crate::dice::Dice;

/// What becomes of a read: it may change the bytes, refuse them, or panic. Is told the path and the offset.
pub type Temper = dyn Fn(&str, u64, &mut [u8]) -> Result<(), DiskError> + Send + Sync;

/// How one source is, for as long as it is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// How many reads of a thousand fail.
    Fails(u64),
    /// In how many reads of a thousand a byte is another one.
    Flips(u64),
}

/// By URL. One that is not there cannot be opened.
#[derive(Default)]
pub struct SimulatedSources {
    disks: Mutex<BTreeMap<String, SimulatedDisk>>,
    harm: Harm,
}

/// What is done to reads, and what they came to.
#[derive(Clone, Default)]
struct Harm {
    temper: Arc<Mutex<Option<Arc<Temper>>>>,
    moods: Arc<Mutex<BTreeMap<String, Mood>>>,
    given: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
}

impl Harm {
    /// Lets a read of one source go wrong, if it is its turn.
    fn strike(&self, url: &str, path: &str, buffer: &mut [u8]) -> Result<(), DiskError> {
        let Some(mood) = self.moods.lock().get(url).copied() else { return Ok(()) };
        let mut dice = Dice::apart(self.reads.fetch_add(1, Ordering::Relaxed), 36);
        match mood {
            Mood::Fails(share) if dice.chance(share) => {
                Err(DiskError::Failed { path: path.to_owned(), reason: "the source fails".to_owned() })
            }
            Mood::Flips(share) if !buffer.is_empty() && dice.chance(share) => {
                buffer[dice.below(buffer.len() as u64) as usize] ^= 1 << dice.below(8);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl SimulatedSources {
    /// Puts a directory under a URL.
    pub fn put(&self, url: &str, disk: SimulatedDisk) {
        self.disks.lock().insert(url.to_owned(), disk);
    }

    /// Takes a directory away, and returns it.
    pub fn take(&self, url: &str) -> Option<SimulatedDisk> {
        self.disks.lock().remove(url)
    }

    /// Does harm to every read from now on, or to none.
    pub fn temper(&self, temper: Option<Arc<Temper>>) {
        *self.harm.temper.lock() = temper;
    }

    /// Lets one source be so from now on, or sound.
    pub fn set_mood(&self, url: &str, mood: Option<Mood>) {
        let mut moods = self.harm.moods.lock();
        match mood {
            Some(mood) => drop(moods.insert(url.to_owned(), mood)),
            None => drop(moods.remove(url)),
        }
    }

    /// Makes all of them sound.
    pub fn calm(&self) {
        self.harm.moods.lock().clear();
    }

    /// Bytes that were read of all of them so far.
    pub fn given(&self) -> u64 {
        self.harm.given.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for SimulatedSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.disks.lock().keys()).finish()
    }
}

impl Sources for SimulatedSources {
    fn open(&self, url: &str) -> Result<Arc<dyn Disk>, String> {
        let found = self.disks.lock().get(url).cloned();
        let inner = found.ok_or_else(|| format!("{url} is away"))?;
        Ok(Arc::new(SourceDisk { url: url.to_owned(), inner, harm: self.harm.clone() }))
    }
}

/// A directory of a source, which is only read.
struct SourceDisk {
    url: String,
    inner: SimulatedDisk,
    harm: Harm,
}

struct SourceFile {
    url: String,
    path: String,
    inner: Arc<dyn File>,
    harm: Harm,
}

fn only_read<T>(path: &str) -> Result<T, DiskError> {
    Err(DiskError::Failed { path: path.to_owned(), reason: "a source is only read".to_owned() })
}

impl Disk for SourceDisk {
    fn open(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        let inner = self.inner.open(path)?;
        let (url, harm) = (self.url.clone(), self.harm.clone());
        Ok(Arc::new(SourceFile { url, path: path.to_owned(), inner, harm }))
    }

    fn stat(&self, path: &str) -> Result<FileStat, DiskError> {
        self.inner.stat(path)
    }

    fn create(&self, path: &str) -> Result<Arc<dyn File>, DiskError> {
        only_read(path)
    }

    fn rename(&self, from: &str, _: &str) -> Result<(), DiskError> {
        only_read(from)
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        only_read(path)
    }

    fn list(&self, directory: &str) -> Result<Vec<String>, DiskError> {
        only_read(directory)
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'static, Result<(), DiskError>> {
        let refused = only_read(directory);
        Box::pin(async { refused })
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Send + Sync>, DiskError> {
        only_read(path)
    }

    fn available_bytes(&self) -> u64 {
        0
    }

    fn total_bytes(&self) -> Option<u64> {
        None
    }
}

impl File for SourceFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let count = self.inner.read_at(offset, buffer)?;
        self.harm.given.fetch_add(count as u64, Ordering::Relaxed);
        self.harm.strike(&self.url, &self.path, &mut buffer[..count])?;
        let temper = self.harm.temper.lock().clone();
        if let Some(temper) = temper {
            temper(&self.path, offset, &mut buffer[..count])?;
        }
        Ok(count)
    }

    fn append(&self, _: &[u8]) -> Result<u64, DiskError> {
        only_read(&self.path)
    }

    fn sync(&self) -> BoxFuture<'static, Result<(), DiskError>> {
        let refused = only_read(&self.path);
        Box::pin(async { refused })
    }

    fn truncate(&self, _: u64) -> Result<(), DiskError> {
        only_read(&self.path)
    }

    fn length(&self) -> u64 {
        self.inner.length()
    }

    fn map(&self) -> Result<Arc<dyn Mapping>, DiskError> {
        only_read(&self.path)
    }
}
