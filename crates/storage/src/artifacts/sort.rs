//! Sorting more records than memory holds: sorted runs on disk, merged as they are read.
//!
//! The order is that of token, key and place, so it is the same whatever the order of the input and the number of
//! runs.

use std::cmp::Ordering;
use std::sync::Arc;

use model::Token;
use runtime::{Disk, DiskError, File};

use super::format::{u16_at, u32_at, u64_at};

/// Bytes of a run's record before its key: token, place, lengths.
const HEAD_BYTES: usize = 22;
/// Bytes that are read of a run at once, at least.
const READ_BYTES_MIN: usize = 64 << 10;
/// And at most.
const READ_BYTES_MAX: usize = 1 << 20;
/// Bytes that are written of a run at once.
const WRITE_BYTES: usize = 1 << 20;

/// Where a record was read: the number of its input, and the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

impl Place {
    /// A line, counted from 1, of an input, counted from 0.
    pub fn new(input: u16, line: u64) -> Place {
        Place((u64::from(input) << 48) | line.min((1 << 48) - 1))
    }

    /// Which input.
    pub fn input(self) -> usize {
        (self.0 >> 48) as usize
    }

    /// Which line of it.
    pub fn line(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

/// A record on its way to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildRecord<'a> {
    /// Its token.
    pub token: Token,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Where it was read.
    pub place: Place,
}

impl BuildRecord<'_> {
    fn order(&self, other: &BuildRecord<'_>) -> Ordering {
        (self.token, self.key, self.place).cmp(&(other.token, other.key, other.place))
    }

    /// Bytes of key and value.
    pub fn payload_bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

#[derive(Clone, Copy)]
struct Entry {
    token: Token,
    place: Place,
    start: u32,
    value_bytes: u32,
    key_bytes: u16,
}

/// Records in memory, in one piece.
#[derive(Default)]
pub struct Records {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Records {
    /// With room for this many bytes of memory, entries included.
    pub fn with_capacity(bytes: usize) -> Records {
        let mut records = Records::default();
        // Pages that are not touched cost nothing.
        records.bytes.reserve_exact(bytes.min(1 << 31));
        records
    }

    /// Takes a record.
    ///
    /// # Panics
    /// When it holds 4 GiB already: whoever fills it asks how much it holds.
    pub fn push(&mut self, record: BuildRecord<'_>) {
        let start = u32::try_from(self.bytes.len()).expect("less than 4 GiB are held at a time");
        self.bytes.extend_from_slice(record.key);
        self.bytes.extend_from_slice(record.value);
        self.entries.push(Entry {
            token: record.token,
            place: record.place,
            start,
            value_bytes: record.value.len() as u32,
            key_bytes: record.key.len() as u16,
        });
    }

    /// Takes all records of another.
    pub(super) fn append(&mut self, other: &mut Records) {
        if self.entries.is_empty() {
            std::mem::swap(self, other);
        } else {
            other.iter().for_each(|record| self.push(record));
        }
        other.clear();
    }

    /// Forgets all records, and keeps the memory for others.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Takes out all records, and makes room for as many others.
    pub(super) fn take(&mut self) -> Records {
        let next = Records {
            bytes: Vec::with_capacity(self.bytes.len()),
            entries: Vec::with_capacity(self.entries.len()),
        };
        std::mem::replace(self, next)
    }

    /// Memory that it uses.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>()
    }

    /// Bytes of keys and values.
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The records in their order.
    pub fn iter(&self) -> impl Iterator<Item = BuildRecord<'_>> {
        self.entries.iter().map(|entry| self.at(entry))
    }

    fn at(&self, entry: &Entry) -> BuildRecord<'_> {
        let start = entry.start as usize;
        let (key_end, end) = (
            start + usize::from(entry.key_bytes),
            start + usize::from(entry.key_bytes) + entry.value_bytes as usize,
        );
        BuildRecord {
            token: entry.token,
            key: &self.bytes[start..key_end],
            value: &self.bytes[key_end..end],
            place: entry.place,
        }
    }

    /// Sorts them.
    pub fn sort(&mut self) {
        let bytes = &self.bytes;
        let key =
            |entry: &Entry| &bytes[entry.start as usize..entry.start as usize + usize::from(entry.key_bytes)];
        self.entries.sort_unstable_by(|a, b| {
            a.token.cmp(&b.token).then_with(|| (key(a), a.place).cmp(&(key(b), b.place)))
        });
    }

    /// Writes them, sorted, as a run.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write_run(&self, disk: &dyn Disk, path: &str) -> Result<Run, DiskError> {
        let file = disk.create(path)?;
        let mut buffer = Vec::with_capacity(WRITE_BYTES + (64 << 10));
        for record in self.iter() {
            buffer.extend_from_slice(&record.token.0.to_le_bytes());
            buffer.extend_from_slice(&record.place.0.to_le_bytes());
            buffer.extend_from_slice(&(record.key.len() as u16).to_le_bytes());
            buffer.extend_from_slice(&(record.value.len() as u32).to_le_bytes());
            buffer.extend_from_slice(record.key);
            buffer.extend_from_slice(record.value);
            if buffer.len() >= WRITE_BYTES {
                file.append(&buffer)?;
                buffer.clear();
            }
        }
        file.append(&buffer)?;
        Ok(Run { path: path.to_owned(), file })
    }
}

/// A sorted run on disk.
pub struct Run {
    /// Where it lies.
    pub path: String,
    file: Arc<dyn File>,
}

/// Reads a run.
struct RunReader {
    file: Arc<dyn File>,
    read_bytes: usize,
    offset: u64,
    buffer: Vec<u8>,
    at: usize,
    /// Bytes of the current record; 0 at the end.
    record_bytes: usize,
}

impl RunReader {
    fn new(run: Run, read_bytes: usize) -> Result<RunReader, DiskError> {
        let mut reader =
            RunReader { file: run.file, read_bytes, offset: 0, buffer: Vec::new(), at: 0, record_bytes: 0 };
        reader.advance()?;
        Ok(reader)
    }

    fn advance(&mut self) -> Result<(), DiskError> {
        self.at += self.record_bytes;
        self.record_bytes = 0;
        if !self.has(HEAD_BYTES)? {
            return Ok(());
        }
        let head = &self.buffer[self.at..];
        let bytes = HEAD_BYTES + usize::from(u16_at(head, 16)) + u32_at(head, 18) as usize;
        if !self.has(bytes)? {
            let reason = "a run of the sort is shorter than it was written".to_owned();
            return Err(DiskError::Failed { path: "run".to_owned(), reason });
        }
        self.record_bytes = bytes;
        Ok(())
    }

    /// Reads on until this many bytes are there.
    fn has(&mut self, bytes: usize) -> Result<bool, DiskError> {
        while self.buffer.len() - self.at < bytes {
            self.buffer.drain(..self.at);
            self.at = 0;
            let before = self.buffer.len();
            self.buffer.resize(before + self.read_bytes.max(bytes), 0);
            let count = self.file.read_at(self.offset, &mut self.buffer[before..])?;
            self.buffer.truncate(before + count);
            self.offset += count as u64;
            if count == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn current(&self) -> Option<BuildRecord<'_>> {
        (self.record_bytes > 0).then(|| {
            let bytes = &self.buffer[self.at..self.at + self.record_bytes];
            let (key, value) = bytes[HEAD_BYTES..].split_at(usize::from(u16_at(bytes, 16)));
            BuildRecord { token: Token(u64_at(bytes, 0)), key, value, place: Place(u64_at(bytes, 8)) }
        })
    }
}

enum Sorted {
    Memory { records: Records, at: usize },
    Run(RunReader),
}

impl Sorted {
    fn current(&self) -> Option<BuildRecord<'_>> {
        match self {
            Sorted::Memory { records, at } => records.entries.get(*at).map(|entry| records.at(entry)),
            Sorted::Run(reader) => reader.current(),
        }
    }

    fn advance(&mut self) -> Result<(), DiskError> {
        match self {
            Sorted::Memory { at, .. } => *at += 1,
            Sorted::Run(reader) => reader.advance()?,
        }
        Ok(())
    }
}

/// All records in order.
pub struct Merged {
    sources: Vec<Sorted>,
    /// The token of each source's current record.
    tokens: Vec<Token>,
    /// Sources that are not at their end, as a heap: the first has the least record.
    heap: Vec<usize>,
}

impl Merged {
    /// Merges runs, and records in memory that are sorted, reading with at most so much memory.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn new(runs: Vec<Run>, memory: Vec<Records>, memory_bytes: usize) -> Result<Merged, DiskError> {
        let read_bytes = (memory_bytes / runs.len().max(1) / 2).clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let mut sources: Vec<Sorted> =
            memory.into_iter().map(|records| Sorted::Memory { records, at: 0 }).collect();
        for run in runs {
            sources.push(Sorted::Run(RunReader::new(run, read_bytes)?));
        }
        let token = |source: &Sorted| source.current().map_or(Token(u64::MAX), |record| record.token);
        let tokens = sources.iter().map(token).collect();
        let heap = (0..sources.len()).filter(|&source| sources[source].current().is_some()).collect();
        let mut merged = Merged { sources, tokens, heap };
        (0..merged.heap.len() / 2).rev().for_each(|at| merged.sift(at));
        Ok(merged)
    }

    /// How many runs may be merged within so much memory.
    pub fn runs_max(memory_bytes: usize) -> usize {
        memory_bytes / READ_BYTES_MIN / 2
    }

    /// The least record that is left.
    pub fn current(&self) -> Option<BuildRecord<'_>> {
        self.heap.first().and_then(|&source| self.sources[source].current())
    }

    /// Goes on to the next.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn advance(&mut self) -> Result<(), DiskError> {
        let Some(&source) = self.heap.first() else { return Ok(()) };
        self.sources[source].advance()?;
        match self.sources[source].current() {
            Some(record) => self.tokens[source] = record.token,
            None => {
                self.heap.swap_remove(0);
            }
        }
        self.sift(0);
        Ok(())
    }

    fn less(&self, a: usize, b: usize) -> bool {
        match self.tokens[a].cmp(&self.tokens[b]) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => match (self.sources[a].current(), self.sources[b].current()) {
                (Some(a), Some(b)) => a.order(&b).is_lt(),
                _ => false,
            },
        }
    }

    /// Lets a source sink to its place.
    fn sift(&mut self, mut at: usize) {
        loop {
            let below = [2 * at + 1, 2 * at + 2].into_iter().filter(|&below| below < self.heap.len());
            let Some(least) = below.reduce(|a, b| if self.less(self.heap[b], self.heap[a]) { b } else { a })
            else {
                return;
            };
            if !self.less(self.heap[least], self.heap[at]) {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::disk::simulated::SimulatedDisk;

    use super::*;

    fn all(mut merged: Merged) -> Vec<(u64, Vec<u8>, u64)> {
        let mut found = Vec::new();
        while let Some(record) = merged.current() {
            found.push((record.token.0, record.key.to_vec(), record.place.line()));
            assert_eq!(record.value, record.key.repeat(3));
            merged.advance().unwrap();
        }
        found
    }

    #[test]
    fn runs_and_memory_merge_into_one_order() {
        for runs in [0, 1, 2, 3, 8, 50] {
            let disk = SimulatedDisk::new(0);
            let mut expected = Vec::new();
            let mut parts: Vec<Records> = (0..=runs).map(|_| Records::default()).collect();
            for line in 0..3000_u64 {
                let mixed = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                // Tokens and keys tie now and then.
                let (token, key) = (mixed >> 55, ((mixed >> 20) % 700).to_string().into_bytes());
                let part = (mixed >> 40) as usize % parts.len();
                let value = key.repeat(3);
                parts[part].push(BuildRecord {
                    token: Token(token),
                    key: &key,
                    value: &value,
                    place: Place::new(3, line),
                });
                expected.push((token, key, line));
            }
            expected.sort();
            parts.iter_mut().for_each(Records::sort);
            let memory = vec![parts.pop().unwrap()];
            let runs = parts
                .iter()
                .enumerate()
                .map(|(number, part)| part.write_run(&disk, &format!("run-{number}")).unwrap());
            let merged = Merged::new(runs.collect(), memory, 1 << 20).unwrap();
            assert_eq!(all(merged), expected);
        }
    }
}
