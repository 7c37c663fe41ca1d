//! The operations of one lane, one after the other.

use std::sync::Arc;

use bytes::Bytes;

use super::values;
use super::{LengthDistribution, Operation, OperationKind, RequestDistribution, Workload, WorkloadOptions};
use crate::generators::zipfian::THETA;
use crate::generators::{
    Discrete, Exponential, Hotspot, Rng, ScrambledZipfian, SkewedLatest, Uniform, Zipfian,
};

/// One operation to issue, and what follows from its end.
#[derive(Clone, Debug)]
pub struct NextOperation {
    /// How it is counted.
    pub kind: OperationKind,
    /// What is sent.
    pub operation: Operation,
    /// What is sent after the answer to `operation`, as a part of the same step (read-modify-write).
    pub then: Option<Operation>,
    /// The record number to acknowledge once the step is over.
    pub inserted: Option<u64>,
}

#[derive(Clone, Debug)]
enum RecordChooser {
    Uniform(Uniform),
    Zipfian(ScrambledZipfian),
    Latest(SkewedLatest),
    Hotspot(Hotspot),
    Exponential(Exponential),
    Sequential,
}

#[derive(Clone, Debug)]
enum LengthChooser {
    Constant(usize),
    Uniform(Uniform),
    Zipfian(Box<Zipfian>),
}

impl LengthChooser {
    fn new(options: &WorkloadOptions) -> Self {
        let (least, full) = (options.field_length_min as u64, options.field_length as u64);
        match options.field_length_distribution {
            LengthDistribution::Constant => LengthChooser::Constant(options.field_length),
            LengthDistribution::Uniform => LengthChooser::Uniform(Uniform::new(least.min(full), full)),
            LengthDistribution::Zipfian => {
                LengthChooser::Zipfian(Box::new(Zipfian::new(least.min(full), full, THETA)))
            }
        }
    }

    fn next(&mut self, rng: &mut Rng) -> usize {
        match self {
            LengthChooser::Constant(length) => *length,
            LengthChooser::Uniform(lengths) => lengths.next(rng) as usize,
            LengthChooser::Zipfian(lengths) => lengths.next(rng) as usize,
        }
    }
}

/// An endless, replayable source of operations for one lane.
#[derive(Clone, Debug)]
pub struct OperationStream {
    workload: Arc<Workload>,
    rng: Rng,
    kinds: Discrete<OperationKind>,
    records: RecordChooser,
    lengths: LengthChooser,
    scan_lengths: Uniform,
}

impl OperationStream {
    /// The stream of lane 0; [`OperationStream::for_lane`] makes the others, without summing zeta again.
    pub fn new(workload: Arc<Workload>, seed: u64) -> Self {
        let options = &workload.options;
        let mix = options.mix();
        let kinds = Discrete::new(&[
            (mix.read, OperationKind::Read),
            (mix.update, OperationKind::Update),
            (mix.insert, OperationKind::Insert),
            (mix.scan, OperationKind::Scan),
            (mix.read_modify_write, OperationKind::ReadModifyWrite),
            (mix.delete, OperationKind::Delete),
            (mix.multi_get, OperationKind::MultiGet),
        ])
        .expect("validated: some weight is positive");
        OperationStream {
            rng: Rng::for_lane(seed, 0),
            kinds,
            records: record_chooser(&workload),
            lengths: LengthChooser::new(options),
            scan_lengths: Uniform::new(options.scan_length_min, options.scan_length_max),
            workload,
        }
    }

    /// The stream of another lane of the same run.
    pub fn for_lane(&self, seed: u64, lane: u64) -> Self {
        OperationStream { rng: Rng::for_lane(seed, lane), ..self.clone() }
    }

    /// The next record to load, until all are taken.
    pub fn next_load(&mut self) -> Option<NextOperation> {
        let number = self.workload.loaded.take();
        if number >= self.workload.options.records {
            return None;
        }
        let key = self.workload.key(number);
        let value = self.value(&key, 0);
        let operation = Operation::Put { key, value };
        Some(NextOperation { kind: OperationKind::Insert, operation, then: None, inserted: None })
    }

    /// The next operation of the run.
    pub fn next_step(&mut self) -> NextOperation {
        let kind = self.kinds.next(&mut self.rng);
        let (mut then, mut inserted) = (None, None);
        let operation = match kind {
            OperationKind::Read => Operation::Get { key: self.choose() },
            OperationKind::Update => self.put(),
            OperationKind::Insert => {
                let number = self.workload.inserted.take();
                inserted = Some(number);
                let key = self.workload.key(number);
                let value = self.next_value(&key);
                Operation::Put { key, value }
            }
            OperationKind::Scan => {
                let start = self.choose();
                Operation::Scan { start, count: self.scan_lengths.next(&mut self.rng) }
            }
            OperationKind::ReadModifyWrite => {
                let key = self.choose();
                let value = self.next_value(&key);
                then = Some(Operation::Put { key: key.clone(), value });
                Operation::Get { key }
            }
            OperationKind::Delete => Operation::Delete { key: self.choose() },
            OperationKind::MultiGet => {
                let count = self.workload.options.multi_get_keys;
                Operation::MultiGet { keys: (0..count).map(|_| self.choose()).collect() }
            }
        };
        NextOperation { kind, operation, then, inserted }
    }

    fn put(&mut self) -> Operation {
        let key = self.choose();
        let value = self.next_value(&key);
        Operation::Put { key, value }
    }

    fn next_value(&mut self, key: &[u8]) -> Bytes {
        let sequence = self.workload.sequence.take();
        self.value(key, sequence)
    }

    fn value(&mut self, key: &[u8], sequence: u64) -> Bytes {
        let fields = self.workload.options.field_count;
        let length: usize = (0..fields).map(|_| self.lengths.next(&mut self.rng)).sum();
        values::make(key, sequence, length)
    }

    fn choose(&mut self) -> Bytes {
        let number = self.choose_number();
        self.workload.key(number)
    }

    /// A record whose insertion is acknowledged: a choice beyond is thrown again, as in the original.
    fn choose_number(&mut self) -> u64 {
        let inserted = &self.workload.inserted;
        let newest = inserted.newest().expect("validated: there are records");
        loop {
            let chosen = match &mut self.records {
                RecordChooser::Uniform(numbers) => numbers.next(&mut self.rng),
                RecordChooser::Zipfian(numbers) => numbers.next(&mut self.rng),
                RecordChooser::Latest(numbers) => numbers.next(inserted, &mut self.rng),
                RecordChooser::Hotspot(numbers) => numbers.next(&mut self.rng),
                RecordChooser::Exponential(ages) => {
                    match newest.checked_sub(ages.next(&mut self.rng) as u64) {
                        Some(number) => number,
                        None => continue,
                    }
                }
                RecordChooser::Sequential => self.workload.cursor.take() % self.workload.options.records,
            };
            // "Latest" looks at the counter itself and may see a newer record than `newest`: still acknowledged.
            if chosen <= newest || matches!(self.records, RecordChooser::Latest(_)) {
                return chosen;
            }
        }
    }
}

fn record_chooser(workload: &Workload) -> RecordChooser {
    let options = &workload.options;
    let records = options.records;
    match options.request_distribution() {
        RequestDistribution::Uniform => RecordChooser::Uniform(Uniform::new(0, records - 1)),
        RequestDistribution::Zipfian => {
            // Popular records must stay the same while the key space grows, so the range already holds twice
            // the insertions that are expected. It is one wider than that, because the original's is.
            let mix = options.mix();
            let weights = mix.read
                + mix.update
                + mix.insert
                + mix.scan
                + mix.read_modify_write
                + mix.delete
                + mix.multi_get;
            let expected = workload.expected_operations as f64 * mix.insert / weights * 2.0;
            RecordChooser::Zipfian(ScrambledZipfian::new(0, records + expected as u64))
        }
        RequestDistribution::Latest => RecordChooser::Latest(SkewedLatest::new(&workload.inserted)),
        RequestDistribution::Hotspot => RecordChooser::Hotspot(Hotspot::new(
            0,
            records - 1,
            options.hotspot_data,
            options.hotspot_operations,
        )),
        RequestDistribution::Exponential => RecordChooser::Exponential(Exponential::with_percentile(
            options.exponential_percentile,
            records as f64 * options.exponential_share,
        )),
        RequestDistribution::Sequential => RecordChooser::Sequential,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::workload::Preset;

    fn stream(preset: Preset, records: u64) -> OperationStream {
        let workload = Workload::new(WorkloadOptions::preset(preset, records), 10_000).unwrap();
        OperationStream::new(workload, 1)
    }

    fn kinds(preset: Preset) -> BTreeMap<OperationKind, u64> {
        let mut stream = stream(preset, 1_000);
        let mut seen = BTreeMap::new();
        for _ in 0..10_000 {
            let step = stream.next_step();
            if let Some(number) = step.inserted {
                stream.workload.acknowledge(number).unwrap();
            }
            *seen.entry(step.kind).or_default() += 1;
        }
        seen
    }

    /// Within five standard deviations of a binomial of 10,000 draws.
    fn near(count: u64, share: f64) -> bool {
        let deviation = (10_000.0 * share * (1.0 - share)).sqrt();
        (count as f64 - 10_000.0 * share).abs() <= 5.0 * deviation
    }

    #[test]
    fn presets_have_the_published_proportions() {
        for (preset, shares) in [
            (Preset::A, vec![(OperationKind::Read, 0.5), (OperationKind::Update, 0.5)]),
            (Preset::B, vec![(OperationKind::Read, 0.95), (OperationKind::Update, 0.05)]),
            (Preset::C, vec![(OperationKind::Read, 1.0)]),
            (Preset::D, vec![(OperationKind::Read, 0.95), (OperationKind::Insert, 0.05)]),
            (Preset::E, vec![(OperationKind::Scan, 0.95), (OperationKind::Insert, 0.05)]),
            (Preset::F, vec![(OperationKind::Read, 0.5), (OperationKind::ReadModifyWrite, 0.5)]),
        ] {
            let seen = kinds(preset);
            assert_eq!(seen.len(), shares.len(), "{preset:?}: {seen:?}");
            for (kind, share) in shares {
                assert!(near(seen[&kind], share), "{preset:?}: {seen:?}");
            }
        }
    }

    #[test]
    fn loading_takes_every_record_once_over_all_lanes() {
        let mut first = stream(Preset::A, 100);
        let mut second = first.for_lane(1, 1);
        let mut keys = std::collections::BTreeSet::new();
        while let Some(step) = first.next_load() {
            let also = second.next_load();
            for step in std::iter::once(step).chain(also) {
                let Operation::Put { key, value } = step.operation else { panic!("loading puts") };
                assert_eq!(values::verify(&key, &value), values::ValueVerdict::Intact { sequence: 0 });
                assert_eq!(value.len(), 1024);
                assert!(keys.insert(key));
            }
        }
        assert_eq!(keys.len(), 100);
        assert!(second.next_load().is_none());
    }

    #[test]
    fn reads_never_reach_past_the_acknowledged_records() {
        for distribution in [
            RequestDistribution::Uniform,
            RequestDistribution::Zipfian,
            RequestDistribution::Latest,
            RequestDistribution::Hotspot,
            RequestDistribution::Exponential,
            RequestDistribution::Sequential,
        ] {
            let options = WorkloadOptions {
                distribution: Some(distribution),
                insert_order: super::super::InsertOrder::Ordered,
                ..WorkloadOptions::preset(Preset::D, 50)
            };
            let mut stream = OperationStream::new(Workload::new(options, 1_000).unwrap(), 3);
            let mut unacknowledged = Vec::new();
            for _ in 0..1_000 {
                let step = stream.next_step();
                unacknowledged.extend(step.inserted);
                if let Operation::Get { key } = step.operation {
                    let number: u64 = std::str::from_utf8(&key[4..]).unwrap().parse().unwrap();
                    assert!(number < 50, "{distribution:?} read record {number}");
                }
            }
            assert!(!unacknowledged.is_empty());
        }
    }

    #[test]
    fn scans_are_one_to_a_hundred_long() {
        let mut stream = stream(Preset::E, 100);
        let mut lengths = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            let step = stream.next_step();
            if let Operation::Scan { count, .. } = step.operation {
                lengths.insert(count);
            }
        }
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn read_modify_write_writes_the_record_it_read() {
        let mut stream = stream(Preset::F, 100);
        let step = (0..100).map(|_| stream.next_step()).find(|step| step.then.is_some()).unwrap();
        let (Operation::Get { key: read }, Some(Operation::Put { key: written, .. })) =
            (&step.operation, &step.then)
        else {
            panic!("{step:?}")
        };
        assert_eq!(read, written);
    }

    #[test]
    fn one_seed_gives_one_run() {
        let draw = |seed| -> Vec<Operation> {
            let mut lane = stream(Preset::A, 1_000).for_lane(seed, 3);
            (0..50).map(|_| lane.next_step().operation).collect()
        };
        assert_eq!(draw(9), draw(9));
        assert_ne!(draw(9), draw(10));
    }
}
