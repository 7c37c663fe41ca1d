//! Tables of a read-only store that scenarios push.
//!
//! Records go to the build through a pipe, so that they take no room on the disk that is measured.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::ScenarioError;
use super::operator::Operator;
use super::script::system;

/// The read-only store.
pub(super) const TABLE: &str = "table";

/// Builds a table of the records that `write` writes: lines of a key, a tab and a value.
pub(super) fn build(
    operator: &Operator,
    words: &[&str],
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), ScenarioError> {
    let common = ["artifact", "build", "-", "--format", "tsv", "--key", "1", "--value", "2", "-s", TABLE];
    let failed = |reason: String| ScenarioError::Command {
        command: format!("{} {} {}", operator.program.display(), common.join(" "), words.join(" ")),
        reason,
    };
    let mut building = Command::new(&operator.program)
        .args(common)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut input = BufWriter::new(building.stdin.take().expect("it was asked for"));
    let written = write(&mut input).and_then(|()| input.flush());
    drop(input);
    let ended = building.wait_with_output().map_err(|error| failed(error.to_string()))?;
    // A build that ends early says why itself.
    if !ended.status.success() {
        return Err(failed(String::from_utf8_lossy(&ended.stderr).trim().to_owned()));
    }
    written.map_err(|error| failed(error.to_string()))
}

/// Builds a table with a number, of records of a kilobyte; no two such tables have a value in common.
pub(super) fn build_numbered(
    operator: &Operator,
    folder: &Path,
    number: u64,
    records: u64,
) -> Result<String, ScenarioError> {
    let to = folder.join(format!("table-{number}")).to_string_lossy().into_owned();
    let (words, number) = (["--compression", "none", "--to", &to, "--number"], number.to_string());
    build(operator, &[&words[..], &[&number]].concat(), |input| {
        (0..records).try_for_each(|record| writeln!(input, "key{record}\t{number}:{record:0>1000}"))
    })?;
    Ok(to)
}

/// The names of a table's files of chunks, and their bytes together.
pub(super) fn files_of(table: &str) -> Result<(Vec<String>, f64), ScenarioError> {
    let (mut names, mut bytes) = (Vec::new(), 0);
    for entry in std::fs::read_dir(Path::new(table).join("chunks")).map_err(system)? {
        let entry = entry.map_err(system)?;
        names.push(entry.file_name().to_string_lossy().into_owned());
        bytes += entry.metadata().map_err(system)?.len();
    }
    Ok((names, bytes as f64))
}
