//! Records grouped into batches by a thread for that alone, so that parsing and waiting for the cluster overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use model::{Token, WallMillis};
use runtime::Clock;
use tokio::sync::mpsc;

use crate::input::{BadRecord, InputRecord, Position, ReadError, RecordReader};

/// Bytes of keys and values after which a batch ends.
const BATCH_BYTES: usize = 1024 * 1024;
/// Batches that wait for their turn.
const WAITING_MAX: usize = 2;
/// Distinct keys that are told apart to count duplicates: about 100 MiB. Beyond it the count is a lower bound.
const DISTINCT_KEYS_MAX: usize = 4_000_000;
/// Bad records that are remembered with their reasons.
pub(super) const BAD_SHOWN_MAX: usize = 10;

/// Consecutive records of the file, each key once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Keys, values and when these expire; of a key that came twice the last value, also when that has expired.
    pub(super) entries: Vec<(Bytes, Bytes, Option<WallMillis>)>,
    /// Records that these stand for, duplicates included, but not what had expired.
    pub(super) records: u64,
    /// Bytes of the keys and values of all records that were taken into it.
    pub(super) bytes: u64,
    /// Records whose key had come before in this load.
    pub(super) duplicates: u64,
    /// Whether every duplicate was counted.
    pub(super) duplicates_at_least: bool,
    /// Records that had expired when they were read.
    pub(super) expired: u64,
    /// Those of them whose key may have come before: they were taken in, so that no earlier value outlives them. The
    /// others were passed over.
    pub(super) expired_over_earlier: u64,
    /// Bad records passed over.
    pub(super) bad: u64,
    /// The first of them.
    pub(super) bad_first: Vec<BadRecord>,
    /// The place after the last record.
    pub(super) end: Position,
}

impl Batch {
    /// Takes a record in, in place of an earlier one of the same key.
    fn take(&mut self, places: &mut BTreeMap<Bytes, usize>, record: InputRecord) {
        let InputRecord { key, value, expires } = record;
        self.bytes += (key.len() + value.len()) as u64;
        match places.get(&key) {
            Some(&place) => self.entries[place] = (key, value, expires),
            None => {
                places.insert(key.clone(), self.entries.len());
                self.entries.push((key, value, expires));
            }
        }
    }
}

/// Why the input ended early.
#[derive(Debug)]
pub(super) enum InputFailure {
    /// A bad record that must not be passed over.
    Bad(BadRecord),
    /// The rest cannot be read.
    Unreadable(ReadError),
}

/// What the reading thread hands over: batches, then perhaps one failure.
pub(super) type Batches = mpsc::Receiver<Result<Batch, InputFailure>>;

/// How batches are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLimits {
    /// Keys in one batch.
    pub(super) keys_max: usize,
    /// Whether bad records are passed over.
    pub(super) skip_bad: bool,
    /// Whether the first record is not the file's first, so that any key may have come before.
    pub(super) resumed: bool,
}

/// Starts reading. The thread ends with the file, at a failure, or when nobody takes its batches any more.
pub(super) fn read_in_background(
    reader: Box<dyn RecordReader>,
    limits: BatchLimits,
    clock: Arc<dyn Clock>,
) -> std::io::Result<Batches> {
    let (sender, batches) = mpsc::channel(WAITING_MAX);
    std::thread::Builder::new().name("load-reader".to_owned()).spawn(move || {
        let batcher =
            Batcher { reader, limits, clock, distinct: Distinct::default(), failure: None, ended: false };
        for next in batcher {
            if sender.blocking_send(next).is_err() {
                return;
            }
        }
    })?;
    Ok(batches)
}

struct Batcher {
    reader: Box<dyn RecordReader>,
    limits: BatchLimits,
    clock: Arc<dyn Clock>,
    distinct: Distinct,
    failure: Option<InputFailure>,
    ended: bool,
}

impl Iterator for Batcher {
    type Item = Result<Batch, InputFailure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return self.failure.take().map(Err);
        }
        let batch = self.batch();
        if batch.records + batch.bad + batch.expired == 0 {
            return self.failure.take().map(Err);
        }
        Some(Ok(batch))
    }
}

impl Batcher {
    fn batch(&mut self) -> Batch {
        let mut batch = Batch { end: self.reader.position(), ..Batch::default() };
        let mut places: BTreeMap<Bytes, usize> = BTreeMap::new();
        let now = self.clock.wall();
        // What is passed over counts too, so that a file of nothing else is reported on in steps.
        while batch.records + batch.bad + batch.expired < self.limits.keys_max as u64
            && batch.bytes < BATCH_BYTES as u64
        {
            match self.reader.next() {
                Ok(Some(Ok(record))) if record.expires.is_some_and(|expires| expires <= now) => {
                    batch.expired += 1;
                    // Passed over, it would leave an earlier value of its key to live on.
                    if self.limits.resumed || self.distinct.may_know(&record.key) {
                        batch.expired_over_earlier += 1;
                        batch.take(&mut places, record);
                    }
                }
                Ok(Some(Ok(record))) => {
                    batch.records += 1;
                    batch.duplicates += u64::from(self.distinct.is_known(&record.key));
                    batch.take(&mut places, record);
                }
                Ok(Some(Err(bad))) if self.limits.skip_bad => {
                    batch.bad += 1;
                    if batch.bad_first.len() < BAD_SHOWN_MAX {
                        batch.bad_first.push(bad);
                    }
                }
                ended => {
                    self.ended = true;
                    self.failure = match ended {
                        Ok(Some(Err(bad))) => Some(InputFailure::Bad(bad)),
                        Err(error) => Some(InputFailure::Unreadable(error)),
                        Ok(_) => None,
                    };
                    break;
                }
            }
            batch.end = self.reader.position();
        }
        batch.duplicates_at_least = self.distinct.is_full();
        batch
    }
}

/// Which keys have come before, by their tokens: 64 bits, so that two keys are taken for one about once in a million
/// loads of this size. Nothing depends on it but the count, and whether a record that has expired is written.
#[derive(Default)]
struct Distinct(BTreeSet<Token>);

impl Distinct {
    fn is_known(&mut self, key: &[u8]) -> bool {
        let token = Token::of(key);
        if self.is_full() { self.0.contains(&token) } else { !self.0.insert(token) }
    }

    /// Whether the key has come before, or nobody knows.
    fn may_know(&self, key: &[u8]) -> bool {
        self.is_full() || self.0.contains(&Token::of(key))
    }

    fn is_full(&self) -> bool {
        self.0.len() >= DISTINCT_KEYS_MAX
    }
}

#[cfg(test)]
mod tests {
    use crate::input::{self, Source};
    use runtime::Ports;

    use super::*;
    use crate::input::settings::{Column, Expires, ReadSettings, Wanted};

    fn batches(text: &str, keys_max: usize, skip_bad: bool) -> Vec<Result<Batch, InputFailure>> {
        limited(text, BatchLimits { keys_max, skip_bad, resumed: false })
    }

    fn limited(text: &str, limits: BatchLimits) -> Vec<Result<Batch, InputFailure>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let settings = ReadSettings::Delimited {
            csv: false,
            columns: Wanted {
                key: Column::Number(0),
                value: Column::Number(1),
                expires: if text.contains("\t\t") {
                    Expires::There(Column::Number(3))
                } else {
                    Expires::Never
                },
            },
            header: false,
            escapes: false,
            delimiter: b'\t',
        };
        let source = Source::File(file.path().to_owned());
        let reader =
            input::open(&source, &settings, Position::default(), (8, &model::Placement::Hash)).unwrap();
        let distinct = Distinct::default();
        let clock = Ports::os().unwrap().clock;
        Batcher { reader, limits, clock, distinct, failure: None, ended: false }.collect()
    }

    #[test]
    fn the_last_value_of_a_key_in_a_batch_wins_and_duplicates_are_counted_across_batches() {
        let all: Vec<Batch> =
            batches("a\t1\nb\t1\na\t2\nb\t2\n", 3, false).into_iter().map(Result::unwrap).collect();
        assert_eq!(all[0].entries, [("a".into(), "2".into(), None), ("b".into(), "1".into(), None)]);
        assert_eq!((all[0].records, all[0].duplicates, all[0].end.line), (3, 1, 3));
        assert_eq!((all[1].records, all[1].duplicates, all[1].end.byte), (1, 1, 16));
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn the_records_before_a_bad_one_come_first_and_nothing_after_it() {
        let all = batches("a\t1\nb\nc\t3\n", 10, false);
        assert_eq!(all[0].as_ref().unwrap().records, 1);
        assert!(matches!(&all[1], Err(InputFailure::Bad(bad)) if bad.line == 2));
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn what_has_expired_is_passed_over_and_counted_and_the_rest_keeps_its_time() {
        let all = batches("a\t1\t\t1700000000000\nb\t2\t\t\nc\t3\t\t99999999999999\n", 10, false);
        let batch = all[0].as_ref().unwrap();
        let expires = Some(WallMillis(99_999_999_999_999));
        assert_eq!(batch.entries, [("b".into(), "2".into(), None), ("c".into(), "3".into(), expires)]);
        assert_eq!((batch.records, batch.expired, batch.end.line), (2, 1, 3));
    }

    #[test]
    fn a_value_that_has_expired_takes_the_place_of_an_earlier_one_of_its_key() {
        let text =
            "a\t1\t\t\nb\t1\t\t\nb\t2\t\t1700000000000\nc\t1\t\t1700000000000\na\t2\t\t1700000000000\n";
        let all: Vec<Batch> = batches(text, 3, false).into_iter().map(Result::unwrap).collect();
        let gone = Some(WallMillis(1_700_000_000_000));
        assert_eq!(all[0].entries, [("a".into(), "1".into(), None), ("b".into(), "2".into(), gone)]);
        assert_eq!((all[0].records, all[0].expired, all[0].expired_over_earlier), (2, 1, 1));
        assert_eq!(all[1].entries, [("a".into(), "2".into(), gone)], "it came in an earlier batch");
        assert_eq!((all[1].records, all[1].expired, all[1].expired_over_earlier), (0, 2, 1));

        let limits = BatchLimits { keys_max: 3, skip_bad: false, resumed: true };
        let all = limited("c\t1\t\t1700000000000\n", limits);
        let batch = all[0].as_ref().unwrap();
        assert_eq!(batch.entries, [("c".into(), "1".into(), gone)], "it may have come in the load before");
    }

    #[test]
    fn bad_records_are_listed_when_they_may_be_skipped() {
        let all = batches("a\t1\nb\nc\t123456789\n\t4\nd\t5\n", 10, true);
        let batch = all[0].as_ref().unwrap();
        assert_eq!((batch.records, batch.bad, all.len()), (2, 3, 1));
        let reasons: Vec<&str> = batch.bad_first.iter().map(|bad| bad.reason.as_str()).collect();
        assert_eq!(reasons[0], "the row has 1 column, not 2");
        assert_eq!(reasons[1], "value of 9 bytes is over the store's limit of 8 bytes");
        assert!(reasons[2].starts_with("key is empty"));
    }
}
