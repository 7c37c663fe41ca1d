//! A log in files that never grow beyond a bound: the oldest lines go.
//!
//! ```text
//!   node-2.log  ──full──▶  node-2.log.1  ──▶  node-2.log.2  ──▶ … ──▶  node-2.log.4  ──▶ removed
//! ```
//!
//! Nothing is made before the first line is written, so that a start that is refused leaves no trace.
//!
//! Must never: end or delay the node because its log cannot be written. A line that cannot be written is lost.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes of one file, after which the next one begins.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;
/// Earlier files that are kept beside the present one.
pub(crate) const EARLIER_FILES_MAX: u32 = 4;

/// A log that begins another file when one is full. Clones write to the same one.
#[derive(Clone)]
pub(crate) struct LogFile(Arc<Mutex<LogState>>);

struct LogState {
    path: PathBuf,
    file_bytes_max: u64,
    /// The present file with its length, once something was written.
    open: Option<(File, u64)>,
}

impl LogFile {
    /// A log at this path, after what is there.
    pub(crate) fn new(path: PathBuf) -> LogFile {
        LogFile::bounded(path, FILE_BYTES_MAX)
    }

    fn bounded(path: PathBuf, file_bytes_max: u64) -> LogFile {
        LogFile(Arc::new(Mutex::new(LogState { path, file_bytes_max, open: None })))
    }
}

impl Write for LogFile {
    /// Takes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().append(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogState {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|(_, bytes)| bytes + line.len() as u64 > self.file_bytes_max) {
            self.open = None;
            self.rotate();
        }
        let (mut file, bytes) = match self.open.take() {
            Some(open) => open,
            None => open(&self.path)?,
        };
        let written = file.write_all(line);
        self.open = Some((file, bytes + line.len() as u64));
        written
    }

    /// Moves every file one further. What cannot be moved is overwritten or grows on.
    fn rotate(&self) {
        let earlier = |number: u32| match number {
            0 => self.path.clone(),
            number => {
                let mut name = self.path.clone().into_os_string();
                name.push(format!(".{number}"));
                name.into()
            }
        };
        for number in (0..EARLIER_FILES_MAX).rev() {
            // Not all of them are there.
            let _ = std::fs::rename(earlier(number), earlier(number + 1));
        }
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_newest_lines_within_its_bound_and_goes_on_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log").join("node-1.log");
        let line = |number: u32| format!("line {number:04}\n");
        for numbers in [0..100, 100..200] {
            // Another start of the node.
            let mut log = LogFile::bounded(path.clone(), 100);
            numbers.for_each(|number| log.write_all(line(number).as_bytes()).unwrap());
        }
        let mut names: Vec<String> = std::fs::read_dir(path.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["node-1.log", "node-1.log.1", "node-1.log.2", "node-1.log.3", "node-1.log.4"]);
        let read = |name: &String| std::fs::read_to_string(path.with_file_name(name)).unwrap();
        assert!(names.iter().all(|name| read(name).len() <= 100));
        let all: String = names.iter().rev().map(read).collect();
        let expected: String = (200 - all.lines().count() as u32..200).map(line).collect();
        assert_eq!(all, expected, "no line is missing, torn or out of order");
        assert!(all.lines().count() >= 40);
    }

    #[test]
    fn a_log_that_was_never_written_to_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        drop(LogFile::new(folder.path().join("log").join("node-1.log")));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
