//! What a workload consists of: the YCSB presets and the knobs around them.

use serde::{Deserialize, Serialize};

use super::values;

/// The workloads by name: YCSB's A to F, and a few plain ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Update heavy: 50 % reads, 50 % updates, Zipfian.
    A,
    /// Read mostly: 95 % reads, 5 % updates, Zipfian.
    B,
    /// Read only, Zipfian.
    C,
    /// Read latest: 95 % reads, 5 % insertions; the newest records are the popular ones.
    D,
    /// Short ranges: 95 % scans of 1 to 100 records, 5 % insertions, Zipfian.
    E,
    /// Read-modify-write: 50 % reads, 50 % read-modify-writes, Zipfian.
    F,
    /// 95 % reads, 5 % updates; 80 % of them on 20 % of the records.
    Hotspot,
    /// 95 % reads, 5 % updates, every record alike.
    Uniform,
    /// Reads only, every record alike.
    Get,
    /// Updates only, every record alike.
    Set,
}

/// Which records are popular.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestDistribution {
    /// Every record alike.
    Uniform,
    /// Scrambled Zipfian, theta 0.99.
    Zipfian,
    /// The newest records, Zipfian by age.
    Latest,
    /// A hot set takes most operations.
    Hotspot,
    /// The newest records, exponentially by age.
    Exponential,
    /// One after the other, round and round.
    Sequential,
}

/// How long a value is, between the shortest and the full length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LengthDistribution {
    /// Always the full length.
    Constant,
    /// Every length alike.
    Uniform,
    /// Zipfian: short values are frequent.
    Zipfian,
}

/// The order in which records are inserted, which is also how keys are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InsertOrder {
    /// Keys are hashes of record numbers: neighbours in time are scattered in key order.
    Hashed,
    /// Keys are the record numbers themselves.
    Ordered,
}

/// The shares of the operation kinds; they are weights and need not sum to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// Weight of single reads.
    pub read: f64,
    /// Weight of writes to records that exist.
    pub update: f64,
    /// Weight of writes of new records.
    pub insert: f64,
    /// Weight of range scans.
    pub scan: f64,
    /// Weight of a read followed by a write of the same record.
    pub read_modify_write: f64,
    /// Weight of deletions (not in YCSB).
    pub delete: f64,
    /// Weight of reads of many records at once (not in YCSB).
    pub multi_get: f64,
}

impl Mix {
    const NONE: Mix = Mix {
        read: 0.0,
        update: 0.0,
        insert: 0.0,
        scan: 0.0,
        read_modify_write: 0.0,
        delete: 0.0,
        multi_get: 0.0,
    };
}

impl Preset {
    /// The shares of operation kinds.
    pub fn mix(self) -> Mix {
        match self {
            Preset::A => Mix { read: 0.5, update: 0.5, ..Mix::NONE },
            Preset::B | Preset::Hotspot | Preset::Uniform => Mix { read: 0.95, update: 0.05, ..Mix::NONE },
            Preset::C | Preset::Get => Mix { read: 1.0, ..Mix::NONE },
            Preset::D => Mix { read: 0.95, insert: 0.05, ..Mix::NONE },
            Preset::E => Mix { scan: 0.95, insert: 0.05, ..Mix::NONE },
            Preset::F => Mix { read: 0.5, read_modify_write: 0.5, ..Mix::NONE },
            Preset::Set => Mix { update: 1.0, ..Mix::NONE },
        }
    }

    /// Which records are popular.
    pub fn distribution(self) -> RequestDistribution {
        match self {
            Preset::A | Preset::B | Preset::C | Preset::E | Preset::F => RequestDistribution::Zipfian,
            Preset::D => RequestDistribution::Latest,
            Preset::Hotspot => RequestDistribution::Hotspot,
            Preset::Uniform | Preset::Get | Preset::Set => RequestDistribution::Uniform,
        }
    }
}

/// A workload: a preset, and whatever deviates from it.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct WorkloadOptions {
    /// The workload to start from.
    #[arg(long, value_enum, default_value = "b")]
    pub workload: Preset,
    /// How many records are loaded, and are there when the run begins.
    #[arg(long, default_value_t = 100_000)]
    pub records: u64,
    /// Which records are popular, instead of the workload's own choice.
    #[arg(long, value_enum)]
    pub distribution: Option<RequestDistribution>,
    /// Weight of reads. Giving any weight replaces the workload's whole mix.
    #[arg(long, value_name = "WEIGHT")]
    pub read: Option<f64>,
    /// Weight of updates.
    #[arg(long, value_name = "WEIGHT")]
    pub update: Option<f64>,
    /// Weight of insertions.
    #[arg(long, value_name = "WEIGHT")]
    pub insert: Option<f64>,
    /// Weight of scans.
    #[arg(long, value_name = "WEIGHT")]
    pub scan: Option<f64>,
    /// Weight of read-modify-writes.
    #[arg(long, value_name = "WEIGHT")]
    pub read_modify_write: Option<f64>,
    /// Weight of deletions.
    #[arg(long, value_name = "WEIGHT")]
    pub delete: Option<f64>,
    /// Weight of multi-gets.
    #[arg(long, value_name = "WEIGHT")]
    pub multi_get: Option<f64>,
    /// Keys in one multi-get.
    #[arg(long, default_value_t = 10)]
    pub multi_get_keys: usize,
    /// Fields of a record; a record is stored as one value of all its fields.
    #[arg(long, default_value_t = 1)]
    pub field_count: usize,
    /// Bytes of one field.
    #[arg(long, default_value_t = 1024)]
    pub field_length: usize,
    /// Bytes of the shortest field, where lengths vary.
    #[arg(long, default_value_t = values::LENGTH_MIN)]
    pub field_length_min: usize,
    /// How field lengths vary.
    #[arg(long, value_enum, default_value = "constant")]
    pub field_length_distribution: LengthDistribution,
    /// Order of insertion.
    #[arg(long, value_enum, default_value = "hashed")]
    pub insert_order: InsertOrder,
    /// Digits to which the number in a key is padded with zeros.
    #[arg(long, default_value_t = 1)]
    pub zero_padding: usize,
    /// What every key begins with.
    #[arg(long, default_value = "user")]
    pub key_prefix: String,
    /// Records of the shortest scan.
    #[arg(long, default_value_t = 1)]
    pub scan_length_min: u64,
    /// Records of the longest scan; lengths between are all alike.
    #[arg(long, default_value_t = 100)]
    pub scan_length_max: u64,
    /// Share of the records that are hot (0 to 1), for the hotspot distribution.
    #[arg(long, default_value_t = 0.2)]
    pub hotspot_data: f64,
    /// Share of the operations on hot records (0 to 1), for the hotspot distribution.
    #[arg(long, default_value_t = 0.8)]
    pub hotspot_operations: f64,
    /// Percentage of operations within the recent part, for the exponential distribution.
    #[arg(long, default_value_t = 95.0)]
    pub exponential_percentile: f64,
    /// The recent part as a share of the records, for the exponential distribution.
    #[arg(long, default_value_t = 0.857_142_857_1)]
    pub exponential_share: f64,
    /// Leave values that were read unchecked (saves client CPU).
    #[arg(long)]
    pub no_verify: bool,
}

/// Why a workload cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// There is nothing to operate on.
    #[error("--records is {records}; this workload needs at least {needed}")]
    TooFewRecords {
        /// As given.
        records: u64,
        /// The least that works.
        needed: u64,
    },
    /// No operation kind has a positive weight, or one has a negative or infinite one.
    #[error("the weights of the operations must be finite, not negative, and not all zero")]
    BadMix,
    /// Values could not carry their proof.
    #[error("fields of {length} bytes are outside {} to {FIELD_LENGTH_MAX} bytes", values::LENGTH_MIN)]
    BadFieldLength {
        /// As given.
        length: usize,
    },
    /// No fields, or a record larger than any store accepts.
    #[error("a record of {bytes} bytes is empty or larger than {FIELD_LENGTH_MAX} bytes")]
    BadRecordLength {
        /// Fields times length.
        bytes: usize,
    },
    /// The least scan or multi-get is not at least one record and at most the greatest.
    #[error("lengths of scans and multi-gets must be at least 1, and the minimum at most the maximum")]
    BadLength,
    /// The percentile or share of the exponential distribution is impossible.
    #[error("--exponential-percentile must lie between 0 and 100, and --exponential-share above 0")]
    BadExponential,
}

/// The largest record: the default limit of a value.
pub const FIELD_LENGTH_MAX: usize = 16 << 20;

impl WorkloadOptions {
    /// The preset with every option at its default.
    pub fn preset(workload: Preset, records: u64) -> Self {
        WorkloadOptions {
            workload,
            records,
            distribution: None,
            read: None,
            update: None,
            insert: None,
            scan: None,
            read_modify_write: None,
            delete: None,
            multi_get: None,
            multi_get_keys: 10,
            field_count: 1,
            field_length: 1024,
            field_length_min: values::LENGTH_MIN,
            field_length_distribution: LengthDistribution::Constant,
            insert_order: InsertOrder::Hashed,
            zero_padding: 1,
            key_prefix: "user".to_owned(),
            scan_length_min: 1,
            scan_length_max: 100,
            hotspot_data: 0.2,
            hotspot_operations: 0.8,
            exponential_percentile: 95.0,
            exponential_share: 0.857_142_857_1,
            no_verify: false,
        }
    }

    /// The mix in force.
    pub fn mix(&self) -> Mix {
        let given = [
            self.read,
            self.update,
            self.insert,
            self.scan,
            self.read_modify_write,
            self.delete,
            self.multi_get,
        ];
        if given.iter().all(Option::is_none) {
            return self.workload.mix();
        }
        let [read, update, insert, scan, read_modify_write, delete, multi_get] =
            given.map(|weight| weight.unwrap_or(0.0));
        Mix { read, update, insert, scan, read_modify_write, delete, multi_get }
    }

    /// The request distribution in force.
    pub fn request_distribution(&self) -> RequestDistribution {
        self.distribution.unwrap_or(self.workload.distribution())
    }

    /// One line that says what is being run.
    pub fn describe(&self) -> String {
        let mix = self.mix();
        let named = [
            ("read", mix.read),
            ("update", mix.update),
            ("insert", mix.insert),
            ("scan", mix.scan),
            ("read-modify-write", mix.read_modify_write),
            ("delete", mix.delete),
            ("multi-get", mix.multi_get),
        ];
        let sum: f64 = named.iter().map(|(_, weight)| weight).sum();
        let parts: Vec<String> = named
            .iter()
            .filter(|(_, weight)| *weight > 0.0)
            .map(|(name, weight)| format!("{:.4} % {name}", 100.0 * weight / sum).replace(".0000", ""))
            .collect();
        let distribution = format!("{:?}", self.request_distribution()).to_lowercase();
        format!(
            "{}, {distribution}, {} records of {} bytes",
            parts.join(" + "),
            self.records,
            self.field_count * self.field_length
        )
    }

    /// Checks that the options make sense together.
    ///
    /// # Errors
    /// The first [`WorkloadError`] found.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        let needed = if self.request_distribution() == RequestDistribution::Latest { 2 } else { 1 };
        if self.records < needed {
            return Err(WorkloadError::TooFewRecords { records: self.records, needed });
        }
        let mix = self.mix();
        let weights =
            [mix.read, mix.update, mix.insert, mix.scan, mix.read_modify_write, mix.delete, mix.multi_get];
        let sound = weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0);
        if !sound || weights.iter().all(|weight| *weight == 0.0) {
            return Err(WorkloadError::BadMix);
        }
        for length in [self.field_length, self.field_length_min.min(self.field_length)] {
            if !(values::LENGTH_MIN..=FIELD_LENGTH_MAX).contains(&length) {
                return Err(WorkloadError::BadFieldLength { length });
            }
        }
        let bytes = self.field_count.saturating_mul(self.field_length);
        if bytes == 0 || bytes > FIELD_LENGTH_MAX {
            return Err(WorkloadError::BadRecordLength { bytes });
        }
        let scans = self.scan_length_min >= 1 && self.scan_length_min <= self.scan_length_max;
        if !scans || self.multi_get_keys == 0 {
            return Err(WorkloadError::BadLength);
        }
        let percentile = self.exponential_percentile > 0.0 && self.exponential_percentile < 100.0;
        let share = self.exponential_share > 0.0 && self.exponential_share.is_finite();
        if percentile && share { Ok(()) } else { Err(WorkloadError::BadExponential) }
    }
}
