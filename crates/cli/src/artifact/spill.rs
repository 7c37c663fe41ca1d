//! The first half of a build: records are read, and sorted in pieces that threads write to disk.
//!
//! ```text
//! inputs → reader (this thread) → pieces → sorters → runs on disk
//!                 ↑                 └ the last ones stay in memory if nothing was written
//!                 └──── emptied ────────┘
//! ```
//!
//! A piece that was written is filled again: memory from the system costs more than sorting what fits into it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use bytes::Bytes;
use model::Placement;
use model::limits::VALUE_BYTES_MAX;
use parking_lot::Mutex;
use runtime::{Disk, DiskError};
use storage::artifacts::{BuildRecord, DELETE, Merged, Place, Records, RecordsGiven, Run, TokenHash, put};

use super::arguments::BuildArguments;
use crate::failure::CliError;
use crate::file_format::FileFormat;
use crate::input::{self, Expires, Position, ReadSettings, Source, VoldemortReader};
use crate::progress::Progress;
use crate::text::count;

/// What was read.
#[derive(Default)]
pub(super) struct InputRead {
    pub(super) records: u64,
    /// Bytes of keys and values.
    pub(super) bytes: u64,
    pub(super) runs: usize,
}

/// Reads all inputs, and hands back their records in order.
pub(super) fn sorted(
    disk: &Arc<dyn Disk>,
    arguments: &BuildArguments,
    jobs: usize,
) -> Result<(Merged, InputRead), CliError> {
    // One piece for each thread, and the one that is filled.
    let piece_bytes = arguments.memory / (jobs + 1);
    let (pieces, waiting) = sync_channel::<(usize, Records)>(0);
    let waiting = Arc::new(Mutex::new(waiting));
    let (empty, emptied) = channel::<Records>();
    let outcome = std::thread::scope(|scope| {
        let sorters: Vec<_> = (0..jobs)
            .map(|_| {
                let (waiting, empty, disk) = (Arc::clone(&waiting), empty.clone(), Arc::clone(disk));
                scope.spawn(move || sort(&waiting, &empty, &*disk))
            })
            .collect();
        // Whoever is told that no sorter is left hears from the sorters why.
        drop(waiting);
        let (piece, read, given) = (Records::default(), InputRead::default(), arguments.given());
        let mut filled = Filled { piece, read, piece_bytes, pieces, emptied, given };
        let read = read_all(arguments, &mut filled);
        let Filled { piece, read: facts, pieces, emptied, .. } = filled;
        // Nothing is sorted any more, and the memory is needed for merging.
        drop((pieces, emptied));
        let mut runs = Vec::new();
        for sorter in sorters {
            runs.extend(sorter.join().map_err(|_| "a sorting thread panicked".to_owned())??);
        }
        read?;
        Ok::<_, CliError>((runs, piece, facts))
    });
    let (mut runs, mut last, mut read) = outcome?;
    runs.sort_by_key(|(number, _)| *number);
    read.runs = runs.len();
    let runs: Vec<Run> = runs.into_iter().map(|(_, run)| run).collect();
    let runs_max = Merged::runs_max(arguments.memory);
    if runs.len() > runs_max {
        return Err(CliError::Other(format!(
            "the records fill {}, and {runs_max} can be merged in this memory; give more with --memory",
            count(runs.len() as u64, "run")
        )));
    }
    last.sort();
    let merged = Merged::new(runs, vec![last], arguments.memory / 2).map_err(refused)?;
    Ok((merged, read))
}

fn refused(error: DiskError) -> CliError {
    match error {
        DiskError::Full => CliError::Other(
            "the disk of --to is full. The build needs room for the records while it sorts them, and for the \
             artifact; free space, or name another directory"
                .to_owned(),
        ),
        error => CliError::Other(error.to_string()),
    }
}

/// Sorts pieces and writes them, until none comes.
fn sort(
    waiting: &Mutex<Receiver<(usize, Records)>>,
    empty: &Sender<Records>,
    disk: &dyn Disk,
) -> Result<Vec<(usize, Run)>, CliError> {
    let mut runs = Vec::new();
    loop {
        let next = waiting.lock().recv();
        let Ok((number, mut records)) = next else { return Ok(runs) };
        records.sort();
        let run = records.write_run(disk, &format!("building/run-{number:05}")).map_err(refused)?;
        runs.push((number, run));
        records.clear();
        // When nothing is read any more, nobody wants it.
        let _ = empty.send(records);
    }
}

struct Filled {
    piece: Records,
    read: InputRead,
    piece_bytes: usize,
    pieces: SyncSender<(usize, Records)>,
    emptied: Receiver<Records>,
    given: RecordsGiven,
}

impl Filled {
    fn take(&mut self, key: &Bytes, value: &Bytes, place: Place) -> Result<(), CliError> {
        if self.given == RecordsGiven::All {
            return self.push(key, value, place);
        }
        let change = put(value);
        self.push(key, &change, place)
    }

    fn push(&mut self, key: &[u8], value: &[u8], place: Place) -> Result<(), CliError> {
        if self.piece.is_empty() {
            let emptied = self.emptied.try_recv();
            self.piece = emptied.unwrap_or_else(|_| Records::with_capacity(self.piece_bytes));
        }
        let record = BuildRecord { token: TokenHash::Xxh3.token(key), key, value, place };
        self.read.records += 1;
        self.read.bytes += record.payload_bytes() as u64;
        self.piece.push(record);
        if self.piece.memory_bytes() >= self.piece_bytes {
            let piece = std::mem::take(&mut self.piece);
            let number = self.read.runs;
            self.read.runs += 1;
            // Only when every sorter has failed; they say why.
            self.pieces.send((number, piece)).map_err(|_| "the sort failed".to_owned())?;
        }
        Ok(())
    }
}

/// Reads directories of Voldemort, one after the other.
fn read_voldemort(arguments: &BuildArguments, filled: &mut Filled) -> Result<(), CliError> {
    let mut progress = Progress::new(None, 0);
    let mut before = 0;
    for (number, directory) in arguments.inputs.iter().enumerate() {
        let mut reader = VoldemortReader::open(directory)?;
        while let Some((key, value)) = reader.next()? {
            filled.take(&key, &value, Place::new(number as u16, reader.number()))?;
            if filled.read.records.is_multiple_of(4096) {
                progress.show(before + reader.bytes(), filled.read.records);
            }
        }
        before += reader.bytes();
    }
    progress.end();
    Ok(())
}

/// Reads all inputs, one after the other.
fn read_all(arguments: &BuildArguments, filled: &mut Filled) -> Result<(), CliError> {
    if arguments.read.format == Some(FileFormat::Voldemort) {
        if !arguments.deletes.is_empty() {
            let what = "--deletes cannot be read of Voldemort's files; build all records, without --changes";
            return Err(CliError::Usage(what.to_owned()));
        }
        return read_voldemort(arguments, filled);
    }
    let sources: Vec<Source> = arguments.files().map(|input| Source::new(input)).collect();
    let total = sources.iter().map(Source::size).sum::<Option<u64>>();
    let mut progress = Progress::new(total, 0);
    let mut before = 0;
    for (number, (source, name)) in sources.iter().zip(arguments.files()).enumerate() {
        let is_input = number < arguments.inputs.len();
        let settings = match is_input {
            true => ReadSettings::new(name, &arguments.read, Expires::Never)?,
            false => ReadSettings::of_keys(name, &arguments.read)?,
        };
        let mut reader =
            input::open(source, &settings, Position::default(), (VALUE_BYTES_MAX, &Placement::Hash))?;
        while let Some(found) = reader.next().map_err(|error| format!("{name}: {error}"))? {
            let record = found.map_err(|bad| format!("{name} line {}: {}", bad.line, bad.reason))?;
            let place = Place::new(number as u16, reader.line());
            match is_input {
                true => filled.take(&record.key, &record.value, place)?,
                false => filled.push(&record.key, DELETE, place)?,
            }
            if filled.read.records.is_multiple_of(4096) {
                progress.show(before + reader.position().byte, filled.read.records);
            }
        }
        before += reader.position().byte;
    }
    progress.end();
    Ok(())
}
