//! Directories that artifacts are fetched from, as simulated disks.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use runtime::disk::simulated::SimulatedDisk;
use runtime::{Disk, Sources};

/// By URL. One that is not there cannot be opened.
#[derive(Default)]
pub struct SimulatedSources(Mutex<BTreeMap<String, SimulatedDisk>>);

impl SimulatedSources {
    /// Puts a directory under a URL.
    pub fn put(&self, url: &str, disk: SimulatedDisk) {
        self.0.lock().insert(url.to_owned(), disk);
    }

    /// Takes a directory away, and returns it.
    pub fn take(&self, url: &str) -> Option<SimulatedDisk> {
        self.0.lock().remove(url)
    }
}

impl std::fmt::Debug for SimulatedSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}

impl Sources for SimulatedSources {
    fn open(&self, url: &str) -> Result<Arc<dyn Disk>, String> {
        let found = self.0.lock().get(url).cloned();
        found.map(|disk| Arc::new(disk) as Arc<dyn Disk>).ok_or_else(|| format!("{url} is away"))
    }
}
