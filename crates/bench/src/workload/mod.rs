//! Workloads: which operations a lane issues, on which keys, with which values.
//!
//! ```text
//! Workload (shared: counters, options) ──stream(lane)──► OperationStream ──next()──► Step
//! ```
//!
//! The semantics are those of YCSB's core workload. Three things are ours, on purpose: a record is one value of
//! all its fields (a key-value store has no columns, so an update writes the whole record); values prove
//! themselves ([`values`]); record numbers are not cut to 32 bits.
//! **Never** issue a read for a record whose insertion is not acknowledged.

mod options;
mod stream;
pub mod values;

use std::sync::Arc;

use bytes::Bytes;

use crate::generators::hash::fnv_hash;
use crate::generators::{AcknowledgedCounter, Counter};

pub use options::{
    FIELD_LENGTH_MAX, InsertOrder, LengthDistribution, Mix, Preset, RequestDistribution, WorkloadError,
    WorkloadOptions,
};
pub use stream::{NextOperation, OperationStream};

/// What kind of operation something was; the unit of reporting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// One record read.
    Read,
    /// An existing record written.
    Update,
    /// A new record written.
    Insert,
    /// A range read.
    Scan,
    /// A read, then a write of the same record, as one operation.
    ReadModifyWrite,
    /// A record deleted.
    Delete,
    /// Many records read at once.
    MultiGet,
}

impl OperationKind {
    /// Every kind, in the order of reports.
    pub const ALL: [OperationKind; 7] = [
        OperationKind::Read,
        OperationKind::Update,
        OperationKind::Insert,
        OperationKind::Scan,
        OperationKind::ReadModifyWrite,
        OperationKind::Delete,
        OperationKind::MultiGet,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Read => "read",
            OperationKind::Update => "update",
            OperationKind::Insert => "insert",
            OperationKind::Scan => "scan",
            OperationKind::ReadModifyWrite => "read-modify-write",
            OperationKind::Delete => "delete",
            OperationKind::MultiGet => "multi-get",
        }
    }
}

/// One request to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read one record.
    Get {
        /// Its key.
        key: Bytes,
    },
    /// Write one record.
    Put {
        /// Its key.
        key: Bytes,
        /// Its whole value.
        value: Bytes,
    },
    /// Delete one record.
    Delete {
        /// Its key.
        key: Bytes,
    },
    /// Read records in key order.
    Scan {
        /// The first key wanted, inclusive.
        start: Bytes,
        /// How many records at most.
        count: u64,
    },
    /// Read many records.
    MultiGet {
        /// Their keys.
        keys: Vec<Bytes>,
    },
}

impl Operation {
    /// Whether the operation changes anything: only then can its outcome be in doubt.
    pub fn writes(&self) -> bool {
        matches!(self, Operation::Put { .. } | Operation::Delete { .. })
    }
}

/// A workload in the making: its options and the counters that all lanes share.
#[derive(Debug)]
pub struct Workload {
    options: WorkloadOptions,
    loaded: Counter,
    inserted: AcknowledgedCounter,
    sequence: Counter,
    cursor: Counter,
    expected_operations: u64,
}

impl Workload {
    /// Prepares a workload. `expected_operations` sizes the key space for coming insertions, as in the
    /// original; a run bounded by time passes its best guess.
    ///
    /// # Errors
    /// When the options contradict each other.
    pub fn new(options: WorkloadOptions, expected_operations: u64) -> Result<Arc<Self>, WorkloadError> {
        options.validate()?;
        Ok(Arc::new(Workload {
            loaded: Counter::new(0),
            inserted: AcknowledgedCounter::new(options.records),
            // Write 0 is the load's, so that an update is told apart from a loaded value.
            sequence: Counter::new(1),
            cursor: Counter::new(0),
            options,
            expected_operations,
        }))
    }

    /// The options, as validated.
    pub fn options(&self) -> &WorkloadOptions {
        &self.options
    }

    /// The key of record `number`.
    pub fn key(&self, number: u64) -> Bytes {
        let number = match self.options.insert_order {
            InsertOrder::Hashed => fnv_hash(number),
            InsertOrder::Ordered => number,
        };
        let WorkloadOptions { key_prefix, zero_padding, .. } = &self.options;
        Bytes::from(format!("{key_prefix}{number:0zero_padding$}"))
    }

    /// Declares the insertion of record `number` over, well or not.
    ///
    /// # Errors
    /// When an older insertion has been hanging for too long.
    pub fn acknowledge(&self, number: u64) -> Result<(), crate::generators::TooManyPending> {
        self.inserted.acknowledge(number)
    }

    /// How many records have been taken for loading.
    pub fn loaded(&self) -> u64 {
        self.loaded.peek().min(self.options.records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_as_the_original_names_them() {
        let key = |options| Workload::new(options, 0).unwrap().key(0);
        let hashed = WorkloadOptions::preset(Preset::A, 10);
        assert_eq!(key(hashed.clone()), "user6284781860667377211");
        assert_eq!(
            key(WorkloadOptions { zero_padding: 24, ..hashed.clone() }),
            "user000006284781860667377211"
        );
        let ordered = WorkloadOptions { insert_order: InsertOrder::Ordered, ..hashed };
        assert_eq!(key(ordered.clone()), "user0");
        assert_eq!(key(WorkloadOptions { zero_padding: 5, ..ordered }), "user00000");
    }

    #[test]
    fn senseless_options_are_refused() {
        let preset = |workload| WorkloadOptions::preset(workload, 10);
        let refuse = |options: WorkloadOptions| options.validate().unwrap_err();
        assert_eq!(
            refuse(WorkloadOptions { records: 1, ..preset(Preset::D) }),
            WorkloadError::TooFewRecords { records: 1, needed: 2 }
        );
        assert_eq!(
            refuse(WorkloadOptions { field_length: 7, ..preset(Preset::A) }),
            WorkloadError::BadFieldLength { length: 7 }
        );
        assert_eq!(
            refuse(WorkloadOptions { field_count: 0, ..preset(Preset::A) }),
            WorkloadError::BadRecordLength { bytes: 0 }
        );
        assert_eq!(
            refuse(WorkloadOptions { read: Some(f64::NAN), ..preset(Preset::A) }),
            WorkloadError::BadMix
        );
        assert_eq!(refuse(WorkloadOptions { read: Some(0.0), ..preset(Preset::A) }), WorkloadError::BadMix);
        assert_eq!(
            refuse(WorkloadOptions { scan_length_min: 0, ..preset(Preset::E) }),
            WorkloadError::BadLength
        );
        assert_eq!(
            refuse(WorkloadOptions { exponential_percentile: 100.0, ..preset(Preset::A) }),
            WorkloadError::BadExponential
        );
    }

    #[test]
    fn one_weight_given_replaces_the_whole_mix() {
        let options =
            WorkloadOptions { read: Some(3.0), update: Some(1.0), ..WorkloadOptions::preset(Preset::E, 9) };
        assert_eq!(options.describe(), "75 % read + 25 % update, zipfian, 9 records of 1024 bytes");
    }
}
