//! What would lie on a disk if something happened now, for whoever judges whether a promise holds at this moment.
//!
//! Must never: change the disk that it looks at.

use super::SimulatedDisk;

impl SimulatedDisk {
    /// The files of one directory as they would be if the power went now and nothing outlived it that no sync has
    /// covered: the least that any power cut leaves. A separate disk, without faults.
    pub fn after_power_cut(&self, directory: &str) -> SimulatedDisk {
        self.imagined(directory, false)
    }

    /// The files of one directory as they would be if the process ended now. A separate disk, without faults.
    pub fn after_kill(&self, directory: &str) -> SimulatedDisk {
        self.imagined(directory, true)
    }

    /// Counts the changes that may concern the files of a directory: while the number is the same, so are they.
    pub fn changes(&self, directory: &str) -> u64 {
        let state = self.state.lock();
        state.changes_everywhere + state.changes.get(directory).copied().unwrap_or(0)
    }

    fn imagined(&self, directory: &str, seen: bool) -> SimulatedDisk {
        let copy = SimulatedDisk::new(0);
        copy.state.lock().platter = self.state.lock().platter.of_directory(directory, seen);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;

    #[tokio::test]
    async fn what_no_sync_covers_is_not_there_after_an_imagined_power_cut() {
        let disk = SimulatedDisk::new(1);
        let file = disk.create("a/b/file").unwrap();
        file.append(b"synced").unwrap();
        file.sync().await.unwrap();
        let before = disk.changes("a/b");
        assert_eq!(disk.after_power_cut("a/b").contents("a/b/file"), None, "its name is not synced");
        for directory in ["", "a", "a/b"] {
            disk.sync_directory(directory).await.unwrap();
        }
        file.append(b", and more").unwrap();
        assert_ne!(disk.changes("a/b"), before);
        assert_eq!(disk.after_power_cut("a/b").contents("a/b/file").unwrap(), b"synced");
        assert_eq!(disk.after_kill("a/b").contents("a/b/file").unwrap(), b"synced, and more");
        assert_eq!(disk.contents("a/b/file").unwrap(), b"synced, and more", "nothing has happened");
        assert_eq!(disk.after_power_cut("a").contents("a/b/file"), None, "of one directory only");
    }
}
