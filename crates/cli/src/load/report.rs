//! What a load says at its end.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::batch::{BAD_SHOWN_MAX, Batch};
use crate::input::{BadRecord, Position};
use crate::text::{count, size};

/// What a load did.
#[derive(Debug, Default)]
pub(super) struct LoadOutcome {
    /// Records acknowledged.
    pub(super) records: u64,
    /// Bytes of their keys and values.
    pub(super) bytes: u64,
    /// Records whose key had come before.
    pub(super) duplicates: u64,
    /// Whether there may be more duplicates than counted.
    pub(super) duplicates_at_least: bool,
    /// Records that had expired already.
    pub(super) expired: u64,
    /// Those of them that were written as what they are, because their key may have come before.
    pub(super) expired_over_earlier: u64,
    /// Bad records passed over.
    pub(super) bad: u64,
    /// The first of them.
    pub(super) bad_first: Vec<BadRecord>,
    /// Records sent again after a failure or an unknown outcome.
    pub(super) retries: u64,
    /// Where this load began.
    pub(super) start: Position,
    /// Everything before it is acknowledged.
    pub(super) acknowledged: Position,
    /// How long it took.
    pub(super) took: Duration,
    /// Why it stopped early, and the command that goes on.
    pub(super) failure: Option<String>,
}

impl LoadOutcome {
    /// Counts a batch whose records are all acknowledged.
    pub(super) fn count(&mut self, batch: &Batch) {
        self.records += batch.records;
        self.bytes += batch.bytes;
        self.duplicates += batch.duplicates;
        self.duplicates_at_least |= batch.duplicates_at_least;
        self.expired += batch.expired;
        self.expired_over_earlier += batch.expired_over_earlier;
        self.bad += batch.bad;
        // Batches finish in any order; the first bad records of the file are wanted.
        self.bad_first.extend(batch.bad_first.iter().cloned());
        self.bad_first.sort_by_key(|bad| bad.line);
        self.bad_first.truncate(BAD_SHOWN_MAX);
    }

    fn rate(&self) -> f64 {
        self.records as f64 / self.took.as_secs_f64().max(1e-3)
    }

    /// For programs.
    pub(super) fn json(&self) -> Json {
        json!({
            "complete": self.failure.is_none(),
            "records": self.records,
            "bytes": self.bytes,
            "seconds": self.took.as_secs_f64(),
            "records_per_second": self.rate(),
            "duplicates": self.duplicates,
            "duplicates_exact": !self.duplicates_at_least,
            "expired": self.expired,
            "expired_over_earlier": self.expired_over_earlier,
            "bad": self.bad,
            "bad_first": self.bad_first,
            "retries": self.retries,
            "started_after_line": self.start.line,
            "acknowledged_lines": self.acknowledged.line,
            "acknowledged_bytes": self.acknowledged.byte,
            "failure": self.failure,
        })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} ({}) in {:.1} s, {:.0} records/s",
            count(self.records, "record"),
            size(self.bytes),
            self.took.as_secs_f64(),
            self.rate()
        );
        if self.duplicates > 0 {
            let least = if self.duplicates_at_least { "at least " } else { "" };
            text.push_str(&format!(
                "\n{least}{} repeated an earlier key; the last value of a key wins",
                count(self.duplicates, "record")
            ));
        }
        if self.retries > 0 {
            text.push_str(&format!(
                "\nresent {} after failures or unknown outcomes",
                count(self.retries, "record")
            ));
        }
        if self.expired > 0 {
            text.push_str(&format!(
                "\nskipped {}; --no-expires loads expired records without an expiry time",
                count(self.expired, "expired record")
            ));
        }
        if self.expired_over_earlier > 0 {
            text.push_str(&format!(
                "\nwrote {} of them as expired, so that no earlier value of the same key remains",
                self.expired_over_earlier
            ));
        }
        if self.bad > 0 {
            text.push_str(&format!("\nskipped {}", count(self.bad, "bad record")));
            for bad in &self.bad_first {
                text.push_str(&format!("\n  line {}: {}", bad.line, bad.reason));
            }
        }
        text
    }
}
