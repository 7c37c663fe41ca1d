//! What one task does: it sorts the records of a range and makes its chunks.

use std::path::Path;
use std::sync::Arc;

use model::{Token, limits};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use runtime::disk::os::OsDisk;
use runtime::{Disk, DiskError};
use storage::artifacts::{
    BuildError, BuildOptions, BuildRecord, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, ChunkEntry, Cutter, Duplicates,
    Merged, Place, RangeBytes, Records, Run, Settled, Slice, TokenHash, WriteError, make_chunks, settle,
};

use crate::arrays::Bytes;
use crate::measure::partition_starts;
use crate::output::{Entry, block_on, compression_of, entry_of, failed, layout_of, store_of};
use crate::refused;

/// Memory that sorting may take.
const MEMORY_BYTES_MIN: usize = 16 << 20;
const MEMORY_BYTES_MAX: usize = 1 << 30;

/// The records of a range, on their way to its chunks.
#[pyclass]
pub(crate) struct RangeBuild {
    options: BuildOptions,
    range: Slice,
    /// What the range held when the data frame was measured.
    measured: RangeBytes,
    taken: RangeBytes,
    records: Records,
    runs: Vec<Run>,
    scratch: String,
    disk: Option<Arc<dyn Disk>>,
    memory_bytes: usize,
}

#[pymethods]
impl RangeBuild {
    /// For an artifact (store, number, compression, layout or none), a range (first and last token, records, bytes), and
    /// a directory and memory for sorting.
    #[new]
    fn new(
        artifact: (String, u64, String, Option<String>),
        range: (u64, u64, u64, u64),
        scratch: String,
        memory_bytes: usize,
    ) -> PyResult<RangeBuild> {
        let (store, number, compression, layout) = artifact;
        let (first, last, records, bytes) = range;
        Ok(RangeBuild {
            options: BuildOptions {
                store: store_of(&store)?,
                number,
                hash: TokenHash::Xxh3,
                compression: compression_of(&compression)?,
                layout: layout.map(|layout| layout_of(&layout)).transpose()?,
                duplicates: Duplicates::Refuse,
            },
            range: Slice { first: Token(first), last: Token(last) },
            measured: RangeBytes { records, bytes },
            taken: RangeBytes::default(),
            records: Records::default(),
            runs: Vec::new(),
            scratch,
            disk: None,
            memory_bytes: memory_bytes.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX),
        })
    }

    /// Takes the keys and values of a batch.
    fn add(&mut self, py: Python<'_>, keys: &Bound<'_, PyAny>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let (keys, values) = (Bytes::of(keys)?, Bytes::of(values)?);
        if keys.len() != values.len() {
            return Err(refused("keys and values have different lengths"));
        }
        py.detach(|| (0..keys.len()).try_for_each(|index| self.take(keys.get(index), values.get(index))))
    }

    /// What the records of the first range decide for all: the layout and the dictionary.
    fn settle<'py>(&mut self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyBytes>)> {
        let settled = py.detach(|| {
            self.measured_again()?;
            settle(self.sorted()?, &self.options).map_err(explain)
        })?;
        Ok((settled.layout.name().to_owned(), PyBytes::new(py, &settled.dictionary)))
    }

    /// Makes the chunks below `root`; what is not finished lies in files whose names begin with `attempt`.
    fn build(
        &mut self,
        py: Python<'_>,
        root: &str,
        attempt: &str,
        layout: &str,
        dictionary: Vec<u8>,
    ) -> PyResult<Vec<Entry>> {
        let settled =
            Settled { layout: layout_of(layout)?, compression: self.options.compression, dictionary };
        py.detach(|| {
            self.measured_again()?;
            let merged = self.sorted()?;
            let chunks = self.make(merged, root, attempt, settled)?;
            Ok(chunks.iter().map(entry_of).collect())
        })
    }
}

impl RangeBuild {
    fn take(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) -> PyResult<()> {
        let (Some(key), Some(value)) = (key, value) else { return Err(changed("a key or a value is null")) };
        if key.is_empty() || key.len() > limits::KEY_BYTES_MAX || value.len() > limits::VALUE_BYTES_MAX {
            return Err(changed("a key or a value has another length"));
        }
        let token = TokenHash::Xxh3.token(key);
        if !self.range.contains(token) {
            let Slice { first, last } = self.range;
            return Err(refused(format!(
                "a record with token {:016x} came to the task of {:016x} to {:016x}: another program made its number \
                 of a range. Install the same tontine on all machines",
                token.0, first.0, last.0
            )));
        }
        if self.records.is_empty() {
            let expected = self.measured.bytes + 64 * self.measured.records;
            self.records = Records::with_capacity(self.memory_bytes.min(expected as usize));
        }
        self.taken.records += 1;
        self.taken.bytes += (key.len() + value.len()) as u64;
        self.records.push(BuildRecord { token, key, value, place: Place::default() });
        if self.records.memory_bytes() >= self.memory_bytes {
            self.spill()?;
        }
        Ok(())
    }

    /// Writes the records that are held, sorted, as a run.
    fn spill(&mut self) -> PyResult<()> {
        let mut records = std::mem::take(&mut self.records);
        records.sort();
        let disk = match &self.disk {
            Some(disk) => disk.clone(),
            None => {
                let opened = OsDisk::open(Path::new(&self.scratch)).map_err(failed)?;
                self.disk.insert(Arc::new(opened)).clone()
            }
        };
        let path = format!("run-{:05}", self.runs.len());
        self.runs.push(records.write_run(&*disk, &path).map_err(failed)?);
        if self.runs.len() > Merged::runs_max(self.memory_bytes) {
            return Err(refused(format!(
                "{} runs cannot be merged in {} bytes of memory; give more with memory_bytes",
                self.runs.len(),
                self.memory_bytes
            )));
        }
        Ok(())
    }

    /// A data frame that is computed twice must be the same.
    fn measured_again(&self) -> PyResult<()> {
        if self.taken == self.measured {
            return Ok(());
        }
        let RangeBytes { records, bytes } = self.taken;
        Err(changed(&format!(
            "a range holds {records} records of {bytes} bytes, after {} of {}",
            self.measured.records, self.measured.bytes
        )))
    }

    fn sorted(&mut self) -> PyResult<Merged> {
        let mut last = std::mem::take(&mut self.records);
        last.sort();
        Merged::new(std::mem::take(&mut self.runs), vec![last], self.memory_bytes / 2).map_err(failed)
    }

    fn make(&self, merged: Merged, root: &str, attempt: &str, settled: Settled) -> PyResult<Vec<ChunkEntry>> {
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::open(Path::new(root)).map_err(failed)?);
        let cutter = Cutter::within(&partition_starts(), self.range, (CHUNK_BYTES_MIN, CHUNK_BYTES_MAX));
        let mut chunks = Vec::new();
        let made = make_chunks(
            &disk,
            attempt,
            merged,
            &self.options,
            Some(settled),
            cutter,
            &mut |maker, finished| {
                let refused = |error: PyErr| DiskError::Failed {
                    path: finished.path.clone(),
                    reason: error.to_string(),
                };
                block_on(finished.file.sync()).map_err(refused)??;
                maker.keep(&finished)?;
                chunks.push(finished.entry);
                Ok(())
            },
        );
        made.map_err(explain)?;
        Ok(chunks)
    }
}

fn changed(how: &str) -> PyErr {
    refused(format!(
        "the data frame was computed twice and differs: {how}. Persist it, or write it to files and read those"
    ))
}

fn explain(error: BuildError) -> PyErr {
    match error {
        BuildError::Duplicate { key, .. } => refused(format!(
            "two records have the key \"{key}\". Remove one of them, or name a column whose greatest value decides with \
             greatest="
        )),
        BuildError::Disk(error) | BuildError::Write(WriteError::Disk(error)) => failed(error),
        error => refused(error),
    }
}
