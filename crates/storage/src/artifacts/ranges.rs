//! Ranges of chunks that can be made apart from each other, for builders that share the work.
//!
//! ```text
//! bytes of each partition ─▶ ranges ─┬▶ records of the first one ─▶ settle ─┐
//!                                    └▶ records of each ─▶ Cutter::within ──┴▶ make_chunks ─▶ one manifest
//! ```
//!
//! Must never: let a chunk depend on how many ranges there are.

use super::build::SAMPLE_BYTES;
use super::cut::partitions;
use super::format::Slice;
use model::Token;

/// What one or more partitions hold, keys and values before compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeBytes {
    /// How many records.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// Neighbouring chunks, and what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// From the first token of the first chunk to the last one of the last chunk.
    pub slice: Slice,
    /// What lies in it.
    pub load: RangeBytes,
}

impl Range {
    fn join(&mut self, next: Range) {
        self.slice.last = next.slice.last;
        self.load.records += next.load.records;
        self.load.bytes += next.load.bytes;
    }
}

/// Ranges of at least so many bytes, but for the last one, that together cover all tokens. They end where chunks end,
/// under the lower bound for chunks. The first one holds what decides for all, see [`settle`](super::settle).
///
/// # Panics
/// When there is not one load for each partition, or the tokens at which partitions begin do not ascend from 0.
pub fn ranges(starts: &[u64], loads: &[RangeBytes], chunk_bytes_min: u64, range_bytes: u64) -> Vec<Range> {
    let range_bytes = range_bytes.max(SAMPLE_BYTES as u64);
    let mut ranges: Vec<Range> = Vec::new();
    for chunks in whole_chunks(starts, loads, chunk_bytes_min) {
        match ranges.last_mut() {
            Some(range) if range.load.bytes < range_bytes => range.join(chunks),
            _ => ranges.push(chunks),
        }
    }
    ranges
}

/// What [`Cutter`](super::Cutter) makes one chunk of, or several that are parts of one partition.
fn whole_chunks(starts: &[u64], loads: &[RangeBytes], chunk_bytes_min: u64) -> Vec<Range> {
    let partitions = partitions(starts);
    assert_eq!(partitions.len(), loads.len(), "each partition has its load");
    let mut found: Vec<Range> = Vec::new();
    let begin = |first: u64| Range {
        slice: Slice { first: Token(first), last: Token(u64::MAX) },
        load: RangeBytes::default(),
    };
    // Begins where the chunk before it ended, and takes small neighbours in.
    let mut open = begin(0);
    for (partition, load) in partitions.iter().zip(loads).filter(|(_, load)| load.records > 0) {
        if open.load.records > 0 && open.load.bytes + load.bytes >= chunk_bytes_min {
            open.slice.last = Token(partition.first.0 - 1);
            found.push(open);
            open = begin(partition.first.0);
        }
        open.load =
            RangeBytes { records: open.load.records + load.records, bytes: open.load.bytes + load.bytes };
        if load.bytes >= chunk_bytes_min {
            open.slice.last = partition.last;
            found.push(open);
            match partition.last.0.checked_add(1) {
                Some(next) => open = begin(next),
                None => return found,
            }
        }
    }
    found.push(open);
    found
}

#[cfg(test)]
mod tests {
    use super::super::cut::{Cut, Cutter};
    use super::super::sort::{BuildRecord, Place};
    use super::*;

    fn slices(mut cutter: Cutter, records: &[(u64, usize)]) -> Vec<(Slice, u64)> {
        let mut cuts = Vec::new();
        for (token, bytes) in records {
            let value = vec![0; bytes - 1];
            let record =
                BuildRecord { token: Token(*token), key: b"k", value: &value, place: Place::default() };
            cutter.push(record, &mut cuts);
        }
        cutter.finish(&mut cuts);
        let mut found: Vec<(Slice, u64)> = Vec::new();
        for cut in cuts {
            let now = found.last_mut();
            match (cut, now) {
                (Cut::Begin(outer), _) => found.push((outer, 0)),
                (Cut::Records(records), Some(now)) => now.1 += records.payload_bytes() as u64,
                (Cut::End(last), Some(now)) => now.0.last = last,
                _ => unreachable!("a chunk begins first"),
            }
        }
        found
    }

    /// Numbers that look drawn, the same each time.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (self.0 >> 33) % bound
        }
    }

    #[test]
    fn ranges_that_are_cut_apart_make_the_chunks_of_the_whole() {
        for seed in 0..2000 {
            let mut dice = Dice(seed);
            let mut starts: Vec<u64> = (0..dice.below(30)).map(|_| dice.below(1000)).collect();
            starts.push(0);
            starts.sort_unstable();
            starts.dedup();
            let count = 1 + dice.below(120);
            let mut records: Vec<(u64, usize)> =
                (0..count).map(|_| (dice.below(1000), 1 + dice.below(60) as usize)).collect();
            records.sort_unstable();
            let mut loads = vec![RangeBytes::default(); starts.len()];
            for (token, bytes) in &records {
                let load = &mut loads[starts.partition_point(|start| start <= token) - 1];
                load.records += 1;
                load.bytes += *bytes as u64;
            }
            let bounds = (1 + dice.below(100), 150);
            let whole = slices(Cutter::new(&starts, bounds), &records);
            let mut apart = Vec::new();
            for chunks in whole_chunks(&starts, &loads, bounds.0).chunks(1 + dice.below(3) as usize) {
                let mut range = chunks[0];
                chunks[1..].iter().for_each(|next| range.join(*next));
                let inside: Vec<_> = records
                    .iter()
                    .filter(|(token, _)| range.slice.contains(Token(*token)))
                    .copied()
                    .collect();
                let bytes = inside.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
                assert_eq!(RangeBytes { records: inside.len() as u64, bytes }, range.load);
                apart.extend(slices(Cutter::within(&starts, range.slice, bounds), &inside));
            }
            assert_eq!(apart, whole, "seed {seed}");
        }
    }

    #[test]
    fn ranges_cover_all_tokens_and_the_first_holds_what_decides() {
        let starts: Vec<u64> = (0..64).map(|partition| partition << 58).collect();
        for bytes in [0, 1, 900_000, 1 << 20, 9 << 20] {
            let loads = vec![RangeBytes { records: bytes.min(1), bytes }; 64];
            let ranges = ranges(&starts, &loads, 1 << 20, 1);
            let total: u64 = ranges.iter().map(|range| range.load.bytes).sum();
            assert_eq!(total, 64 * bytes);
            assert!(ranges[0].load.bytes >= (SAMPLE_BYTES as u64).min(total));
            assert_eq!((ranges[0].slice.first.0, ranges[ranges.len() - 1].slice.last.0), (0, u64::MAX));
            assert!(ranges.windows(2).all(|pair| pair[0].slice.last.0 + 1 == pair[1].slice.first.0));
        }
    }
}
