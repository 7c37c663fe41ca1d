//! Where chunks begin and end: along the ring, as `docs/reference/artifact.md` says.
//!
//! One partition to a chunk; a part of one beyond 1 GiB; several neighbours only while they hold less than 1 MiB
//! together. Partitions without records belong to the neighbour before them, or the first that comes.
//!
//! Must never: depend on how the records were sorted or how many threads make chunks.

use model::{Ring, Token};

use super::format::Slice;
use super::sort::{BuildRecord, Records};

/// Keys and values below which neighbours share a chunk.
pub const CHUNK_BYTES_MIN: u64 = 1 << 20;
/// Keys and values above which a partition is cut.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;

/// The partitions that begin at these tokens.
///
/// # Panics
/// When the tokens do not ascend from 0.
pub(super) fn partitions(starts: &[u64]) -> Vec<Slice> {
    assert!(starts.first() == Some(&0) && starts.is_sorted_by(|a, b| a < b), "starts ascend from 0");
    let last = |index: usize| starts.get(index + 1).map_or(u64::MAX, |next| next - 1);
    let slice = |(index, start): (usize, &u64)| Slice { first: Token(*start), last: Token(last(index)) };
    starts.iter().enumerate().map(slice).collect()
}

/// How a chunk comes into being, in this order for each.
pub enum Cut {
    /// A chunk begins; its slice reaches at most so far.
    Begin(Slice),
    /// More of its records.
    Records(Records),
    /// It ends with this token.
    End(Token),
}

/// Cuts records, which come in order.
pub struct Cutter {
    partitions: Vec<Slice>,
    /// Bytes below which neighbours share a chunk, and above which a partition is cut.
    bounds: (u64, u64),
    /// The partition of the last record.
    partition: usize,
    /// Records of whole partitions that no chunk has yet.
    group: Records,
    /// First token that no chunk has yet, unless all have one.
    first: Option<u64>,
    /// Records of the current partition that no chunk has yet.
    current: Records,
    /// Bytes that the chunk has which the current partition goes into by itself.
    streamed: Option<u64>,
    last_token: Token,
    /// The last token that chunks are to cover.
    end: Token,
}

impl Cutter {
    /// Along the partitions of a ring.
    pub fn along(ring: &Ring) -> Cutter {
        let starts: Vec<u64> = ring.partitions().iter().map(|partition| partition.start).collect();
        Cutter::new(&starts, (CHUNK_BYTES_MIN, CHUNK_BYTES_MAX))
    }

    /// Along partitions that begin at these tokens, the first at 0, with other bounds.
    ///
    /// # Panics
    /// When the tokens do not ascend from 0.
    pub fn new(starts: &[u64], bounds: (u64, u64)) -> Cutter {
        Cutter::within(starts, Slice { first: Token(0), last: Token(u64::MAX) }, bounds)
    }

    /// The part of [`Cutter::new`] that makes the chunks of a range of [`ranges`](super::ranges): it makes the same.
    ///
    /// # Panics
    /// When the tokens do not ascend from 0, or the range does not begin and end where partitions do.
    pub fn within(starts: &[u64], range: Slice, bounds: (u64, u64)) -> Cutter {
        let mut partitions = partitions(starts);
        partitions.retain(|partition| range.first <= partition.first && partition.last <= range.last);
        let (first, last) = (partitions.first(), partitions.last());
        assert!(
            first.is_some_and(|partition| partition.first == range.first),
            "a range begins as a partition does"
        );
        assert!(
            last.is_some_and(|partition| partition.last == range.last),
            "a range ends as a partition does"
        );
        Cutter {
            partitions,
            bounds,
            partition: 0,
            group: Records::default(),
            first: Some(range.first.0),
            current: Records::default(),
            streamed: None,
            last_token: range.first,
            end: range.last,
        }
    }

    /// Takes the next record.
    pub fn push(&mut self, record: BuildRecord<'_>, cuts: &mut Vec<Cut>) {
        if !self.partitions[self.partition].contains(record.token) {
            self.end_partition(cuts);
            let from = self.partition;
            self.partition += self.partitions[from..].partition_point(|slice| slice.last < record.token);
        }
        let streamed = self.streamed.map_or(0, |bytes| bytes + self.current.payload_bytes() as u64);
        if streamed >= self.bounds.1 && record.token != self.last_token {
            self.stream(cuts);
            cuts.push(Cut::End(Token(record.token.0 - 1)));
            let last = self.partitions[self.partition].last;
            cuts.push(Cut::Begin(Slice { first: record.token, last }));
            self.streamed = Some(0);
        }
        self.current.push(record);
        self.last_token = record.token;
        if self.current.payload_bytes() as u64 >= self.bounds.0 {
            if self.streamed.is_none() {
                self.begin_stream(cuts);
            }
            self.stream(cuts);
        }
    }

    /// Ends the last chunk.
    pub fn finish(mut self, cuts: &mut Vec<Cut>) {
        self.end_partition(cuts);
        if self.first.is_some() {
            self.emit_group(self.end, cuts);
        }
    }

    /// No more records of the current partition come.
    fn end_partition(&mut self, cuts: &mut Vec<Cut>) {
        let partition = self.partitions[self.partition];
        if self.streamed.is_some() {
            self.stream(cuts);
            cuts.push(Cut::End(partition.last));
            self.streamed = None;
            self.first = self.after(partition.last);
            return;
        }
        let together = (self.group.payload_bytes() + self.current.payload_bytes()) as u64;
        if !self.group.is_empty() && !self.current.is_empty() && together >= self.bounds.0 {
            self.emit_group(Token(partition.first.0 - 1), cuts);
        }
        self.group.append(&mut self.current);
    }

    /// What whole partitions have goes into a chunk that reaches to `last`.
    fn emit_group(&mut self, last: Token, cuts: &mut Vec<Cut>) {
        let first = Token(self.first.expect("a group begins where the chunk before it ended"));
        cuts.push(Cut::Begin(Slice { first, last }));
        if !self.group.is_empty() {
            cuts.push(Cut::Records(std::mem::take(&mut self.group)));
        }
        cuts.push(Cut::End(last));
        self.first = self.after(last);
    }

    /// Where the next chunk begins after one that ended here.
    fn after(&self, last: Token) -> Option<u64> {
        (last < self.end).then(|| last.0 + 1)
    }

    /// The current partition goes into its own chunk from now on.
    fn begin_stream(&mut self, cuts: &mut Vec<Cut>) {
        let partition = self.partitions[self.partition];
        if !self.group.is_empty() {
            self.emit_group(Token(partition.first.0 - 1), cuts);
        }
        let first = Token(self.first.expect("the partition's records are in no chunk"));
        cuts.push(Cut::Begin(Slice { first, last: partition.last }));
        self.streamed = Some(0);
    }

    fn stream(&mut self, cuts: &mut Vec<Cut>) {
        let bytes = self.current.payload_bytes() as u64;
        self.streamed = self.streamed.map(|streamed| streamed + bytes);
        if !self.current.is_empty() {
            cuts.push(Cut::Records(self.current.take()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sort::Place;
    use super::*;

    /// Chunks as `first-last: bytes`, of records with one byte of key and values of this length.
    fn cut(starts: &[u64], bounds: (u64, u64), records: &[(u64, usize)]) -> Vec<String> {
        let mut cutter = Cutter::new(starts, bounds);
        let mut cuts = Vec::new();
        for (token, bytes) in records {
            let value = vec![0; bytes - 1];
            let record =
                BuildRecord { token: Token(*token), key: b"k", value: &value, place: Place::default() };
            cutter.push(record, &mut cuts);
        }
        cutter.finish(&mut cuts);
        let mut chunks = Vec::new();
        let (mut slice, mut bytes) = (None, 0);
        for cut in cuts {
            match cut {
                Cut::Begin(outer) => (slice, bytes) = (Some(outer), 0),
                Cut::Records(records) => bytes += records.payload_bytes(),
                Cut::End(last) => {
                    let Slice { first, last: outer } = slice.take().expect("a chunk ends after it began");
                    assert!(last <= outer);
                    let shown = if last.0 == u64::MAX { "end".to_owned() } else { last.0.to_string() };
                    chunks.push(format!("{}-{shown}: {bytes}", first.0));
                }
            }
        }
        chunks
    }

    #[test]
    fn a_partition_is_a_chunk_and_small_neighbours_share_one() {
        let starts = [0, 100, 200, 300, 400];
        assert_eq!(cut(&starts, (10, 100), &[]), ["0-end: 0"]);
        assert_eq!(
            cut(&starts, (10, 100), &[(5, 3), (150, 3), (250, 3), (450, 9)]),
            ["0-399: 9", "400-end: 9"]
        );
        assert_eq!(
            cut(&starts, (10, 100), &[(5, 3), (150, 50), (250, 3)]),
            ["0-99: 3", "100-199: 50", "200-end: 3"]
        );
        assert_eq!(cut(&starts, (10, 100), &[(350, 50)]), ["0-399: 50", "400-end: 0"]);
        assert_eq!(cut(&starts, (10, 100), &[(450, 50)]), ["0-end: 50"]);
    }

    #[test]
    fn a_partition_beyond_the_bound_is_cut_between_tokens() {
        let records: Vec<(u64, usize)> = (100..200).map(|token| (token, 3)).collect();
        assert_eq!(
            cut(&[0, 100, 200], (10, 99), &records),
            ["0-132: 99", "133-165: 99", "166-198: 99", "199-199: 3", "200-end: 0"]
        );
        let tied = [(100, 50), (150, 60), (150, 60), (150, 60), (151, 1)];
        assert_eq!(cut(&[0, 100, 200], (10, 99), &tied), ["0-150: 230", "151-199: 1", "200-end: 0"]);
    }
}
