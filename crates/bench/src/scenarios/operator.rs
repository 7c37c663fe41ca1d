//! What an operator does beside a run: the program's own commands, and copying files to compare with.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value as Json;

use super::ScenarioError;

/// Bytes that the raw copy reads and writes at once.
const COPY_BYTES: usize = 1 << 20;

/// Runs the program's own commands against the cluster.
pub(super) struct Operator {
    pub(super) program: PathBuf,
    pub(super) connect: String,
}

impl Operator {
    /// Runs a command, and reads its answer.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub(super) fn run(&self, words: &[&str]) -> Result<Json, ScenarioError> {
        self.run_alone(&[words, &["--connect", &self.connect]].concat())
    }

    /// Runs a command that needs no cluster.
    ///
    /// # Errors
    /// As [`Operator::run`].
    pub(super) fn run_alone(&self, words: &[&str]) -> Result<Json, ScenarioError> {
        let answer = self.answer(&[words, &["-o", "json"]].concat())?;
        serde_json::from_slice(&answer)
            .map_err(|error| self.failed(words, format!("its answer is no JSON: {error}")))
    }

    /// Runs a command against the cluster, and says what a person would read.
    ///
    /// # Errors
    /// As [`Operator::run`].
    pub(super) fn say(&self, words: &[&str]) -> Result<String, ScenarioError> {
        let answer = self.answer(&[words, &["--connect", &self.connect]].concat())?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    fn answer(&self, words: &[&str]) -> Result<Vec<u8>, ScenarioError> {
        let ran = Command::new(&self.program).args(words).stdin(Stdio::null()).output();
        let ran = ran.map_err(|error| self.failed(words, error.to_string()))?;
        if !ran.status.success() {
            return Err(self.failed(words, String::from_utf8_lossy(&ran.stderr).trim().to_owned()));
        }
        Ok(ran.stdout)
    }

    fn failed(&self, words: &[&str], reason: String) -> ScenarioError {
        ScenarioError::Command { command: format!("{} {}", self.program.display(), words.join(" ")), reason }
    }
}

/// Seconds that it takes to copy a file of this many bytes, and to sync the copy.
pub(super) fn raw_copy(parent: Option<&Path>, bytes: f64) -> std::io::Result<f64> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    let directory = tempfile::tempdir_in(parent)?;
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    fill(&from, bytes)?;
    let began = Instant::now();
    let mut page = vec![0u8; COPY_BYTES];
    let (mut source, mut copy) = (File::open(&from)?, File::create(&to)?);
    for _ in 0..pages(bytes) {
        source.read_exact(&mut page)?;
        copy.write_all(&page)?;
    }
    copy.sync_data()?;
    Ok(began.elapsed().as_secs_f64())
}

/// Seconds that it takes to write a file of this many bytes, and to sync it.
pub(super) fn raw_write(parent: Option<&Path>, bytes: f64) -> std::io::Result<f64> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
    let directory = tempfile::tempdir_in(parent)?;
    let began = Instant::now();
    fill(&directory.path().join("to"), bytes)?;
    Ok(began.elapsed().as_secs_f64())
}

fn pages(bytes: f64) -> u64 {
    (bytes / COPY_BYTES as f64).ceil() as u64
}

/// Writes a file of this many bytes, and syncs it.
fn fill(path: &Path, bytes: f64) -> std::io::Result<()> {
    let mut page = vec![0u8; COPY_BYTES];
    let mut file = File::create(path)?;
    for number in 0..pages(bytes) {
        // No two pages alike, for file systems that would notice.
        page[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&page)?;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_copy_takes_time() {
        assert!(raw_copy(None, 3e6).unwrap() > 0.0);
        assert!(raw_write(None, 3e6).unwrap() > 0.0);
    }
}
