//! What a data frame holds, and how its records are shared among tasks.

use arrow_array::Array;
use model::{NodeId, Ring, Token, Zone, limits};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use storage::artifacts::{CHUNK_BYTES_MIN, RangeBytes, TokenHash};

use crate::arrays::{Bytes, lengths};
use crate::refused;

/// Where the partitions of a new cluster's ring begin.
pub(crate) fn partition_starts() -> Vec<u64> {
    let ring = Ring::equal_slices(limits::PARTITIONS_DEFAULT, &[(NodeId(1), Zone("any".to_owned()))]);
    ring.partitions().iter().map(|partition| partition.start).collect()
}

/// Records that cannot be built.
#[derive(Clone, Copy, Default)]
struct Unfit {
    null_keys: u64,
    null_values: u64,
    empty_keys: u64,
    long_keys: u64,
    long_values: u64,
}

/// Counts records and bytes of each partition.
#[pyclass]
pub(crate) struct Measure {
    starts: Vec<u64>,
    loads: Vec<RangeBytes>,
    unfit: Unfit,
}

#[pymethods]
impl Measure {
    #[new]
    fn new() -> Measure {
        let starts = partition_starts();
        Measure { loads: vec![RangeBytes::default(); starts.len()], starts, unfit: Unfit::default() }
    }

    /// Takes the keys of a batch, and how long its values are.
    fn add(&mut self, keys: &Bound<'_, PyAny>, value_bytes: &Bound<'_, PyAny>) -> PyResult<()> {
        let (keys, value_bytes) = (Bytes::of(keys)?, lengths(value_bytes)?);
        if keys.len() != value_bytes.len() {
            return Err(refused("keys and values have different lengths"));
        }
        for index in 0..keys.len() {
            let value = value_bytes.is_valid(index).then(|| value_bytes.value(index));
            self.take(keys.get(index), value);
        }
        Ok(())
    }

    /// Records and bytes of each partition that has some.
    fn loads(&self) -> Vec<(usize, u64, u64)> {
        let loads = self.loads.iter().enumerate().filter(|(_, load)| load.records > 0);
        loads.map(|(partition, load)| (partition, load.records, load.bytes)).collect()
    }

    /// Counts of records that cannot be built: of null keys, null values, empty keys, long keys, long values.
    fn unfit(&self) -> [u64; 5] {
        let Unfit { null_keys, null_values, empty_keys, long_keys, long_values } = self.unfit;
        [null_keys, null_values, empty_keys, long_keys, long_values]
    }
}

impl Measure {
    fn take(&mut self, key: Option<&[u8]>, value_bytes: Option<i32>) {
        let unfit = &mut self.unfit;
        match (key, value_bytes) {
            (None, _) => unfit.null_keys += 1,
            (_, None) => unfit.null_values += 1,
            (Some([]), _) => unfit.empty_keys += 1,
            (Some(key), _) if key.len() > limits::KEY_BYTES_MAX => unfit.long_keys += 1,
            (_, Some(bytes)) if bytes as usize > limits::VALUE_BYTES_MAX => unfit.long_values += 1,
            (Some(key), Some(bytes)) => {
                let token = TokenHash::Xxh3.token(key).0;
                let load = &mut self.loads[self.starts.partition_point(|start| *start <= token) - 1];
                load.records += 1;
                load.bytes += (key.len() + bytes as usize) as u64;
            }
        }
    }
}

/// Shares the partitions among tasks of at least so many bytes: first and last token, records and bytes of each.
#[pyfunction]
pub(crate) fn ranges(loads: Vec<(usize, u64, u64)>, range_bytes: u64) -> PyResult<Vec<(u64, u64, u64, u64)>> {
    let starts = partition_starts();
    let mut all = vec![RangeBytes::default(); starts.len()];
    for (partition, records, bytes) in loads {
        let load =
            all.get_mut(partition).ok_or_else(|| refused(format!("there is no partition {partition}")))?;
        *load = RangeBytes { records, bytes };
    }
    let ranges = storage::artifacts::ranges(&starts, &all, CHUNK_BYTES_MIN, range_bytes);
    let row = |range: &storage::artifacts::Range| {
        (range.slice.first.0, range.slice.last.0, range.load.records, range.load.bytes)
    };
    Ok(ranges.iter().map(row).collect())
}

/// The number of each key's range, as 32-bit numbers in the machine's order of bytes. `firsts` are the first tokens of
/// ranges. Null keys are of the first one.
#[pyfunction]
pub(crate) fn ranges_of<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyAny>,
    firsts: Vec<u64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let keys = Bytes::of(keys)?;
    if firsts.first() != Some(&0) {
        return Err(refused("the first range begins at token 0"));
    }
    PyBytes::new_with(py, keys.len() * 4, |numbers| {
        for (index, number) in numbers.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let Token(token) = keys.get(index).map_or(Token(0), |key| TokenHash::Xxh3.token(key));
            let range = firsts.partition_point(|first| *first <= token) - 1;
            *number = (range as i32).to_ne_bytes();
        }
        Ok(())
    })
}
