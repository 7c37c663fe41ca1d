//! The hash tree of one partition at one replica.
//!
//! A tree is *counted* when its leaves are the sums of the records. One that is not (after a crash) is counted leaf
//! by leaf while writes go on: a *frontier* says how far; writes before it change the new leaves, writes beyond it do
//! not, for they will be met. A tree that has become too shallow is counted once more in the same way, with more
//! leaves, while the old ones go on serving.
//!
//! Must never: be asked or counted while a change that its records have had has not been applied.

use std::ops::RangeInclusive;

use model::Token;

use super::Digest;

/// Records that a newly counted leaf covers on average, at most.
pub const LEAF_RECORDS: u64 = 32;

/// A tree is counted anew with more leaves when they cover this many times as many records.
const OVERFULL: u64 = 4;

/// Bits of leaves that a tree has from the start: 16 leaves, 256 bytes.
const DEPTH_MIN: u8 = 4;

/// Most bits of leaves: 16 million leaves of one partition.
const DEPTH_MAX: u8 = 24;

/// What writes did to records, as far as sums care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeDelta {
    /// The digests that came, less those that went.
    pub difference: Digest,
    /// The records that came, less those that went.
    pub records: i32,
}

impl TreeDelta {
    /// Of the record that was there and the one that is there now; `None` where there is none.
    pub fn of(removed: Option<Digest>, added: Option<Digest>) -> TreeDelta {
        let difference = added.unwrap_or_default().minus(removed.unwrap_or_default());
        TreeDelta { difference, records: i32::from(added.is_some()) - i32::from(removed.is_some()) }
    }
}

/// Tokens that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// How many bits, 0 to 64.
    pub bits: u8,
    /// Their value.
    pub prefix: u64,
}

impl Span {
    /// The tokens.
    pub fn tokens(self) -> RangeInclusive<Token> {
        match self.bits {
            0 => Token(0)..=Token(u64::MAX),
            bits => {
                let shift = 64 - u32::from(bits);
                let first = self.prefix << shift;
                Token(first)..=Token(first | ((1u64 << shift) - 1))
            }
        }
    }

    /// The span of `bits` bits that holds a token.
    pub fn of(token: Token, bits: u8) -> Span {
        Span { bits, prefix: prefix(token.0, bits) }
    }

    /// The smallest span that holds all these tokens.
    pub fn around(tokens: &RangeInclusive<Token>) -> Span {
        let bits = (tokens.start().0 ^ tokens.end().0).leading_zeros() as u8;
        Span::of(*tokens.start(), bits)
    }
}

fn prefix(token: u64, bits: u8) -> u64 {
    if bits == 0 { 0 } else { token >> (64 - u32::from(bits)) }
}

/// The sums over one partition.
#[derive(Clone, Debug)]
pub struct Tree {
    first: u64,
    last: u64,
    counted: Option<Leaves>,
    /// Apart, so that a write touches as little memory as it can.
    count: Option<Box<Count>>,
}

#[derive(Clone, Debug)]
struct Leaves {
    bits: u8,
    sums: Box<[Digest]>,
    /// Of all leaves.
    sum: Digest,
    records: u64,
}

/// Leaves being counted.
#[derive(Clone, Debug)]
struct Count {
    leaves: Leaves,
    /// Leaves before this one count.
    frontier: usize,
}

impl Leaves {
    fn none(first: u64, last: u64, bits: u8) -> Leaves {
        let count = (prefix(last, bits) - prefix(first, bits) + 1) as usize;
        Leaves { bits, sums: vec![Digest::default(); count].into(), sum: Digest::default(), records: 0 }
    }

    fn position(&self, first: u64, token: Token) -> usize {
        (prefix(token.0, self.bits) - prefix(first, self.bits)) as usize
    }

    /// Whether the sum of all leaves is the sum.
    fn add_up(&self) -> bool {
        self.sums.iter().copied().sum::<Digest>() == self.sum
    }

    fn apply(&mut self, position: usize, change: TreeDelta) {
        self.sums[position] = self.sums[position].plus(change.difference);
        self.sum = self.sum.plus(change.difference);
        self.records = self.records.saturating_add_signed(change.records.into());
    }
}

impl Tree {
    /// The tree of a partition of these tokens without records.
    pub fn empty(tokens: &RangeInclusive<Token>) -> Tree {
        let (first, last) = (tokens.start().0, tokens.end().0);
        let bits = Span::around(tokens).bits.saturating_add(DEPTH_MIN).min(64);
        Tree { first, last, counted: Some(Leaves::none(first, last, bits)), count: None }
    }

    /// The tree of a partition of which nothing is known: it has no sum until it was counted.
    pub fn doubtful(tokens: &RangeInclusive<Token>) -> Tree {
        Tree { counted: None, ..Tree::empty(tokens) }
    }

    /// A tree that was remembered; `None` when it is not one of these tokens.
    pub fn restored(
        tokens: &RangeInclusive<Token>,
        bits: u8,
        sums: Vec<Digest>,
        records: u64,
    ) -> Option<Tree> {
        let root = Span::around(tokens).bits;
        if bits < root || bits > root.saturating_add(DEPTH_MAX).min(64) {
            return None;
        }
        let (first, last) = (tokens.start().0, tokens.end().0);
        if (prefix(last, bits) - prefix(first, bits) + 1) as usize != sums.len() {
            return None;
        }
        let sum = sums.iter().copied().sum();
        let leaves = Leaves { bits, sums: sums.into(), sum, records };
        Some(Tree { first, last, counted: Some(leaves), count: None })
    }

    /// The tokens of its partition.
    pub fn tokens(&self) -> RangeInclusive<Token> {
        Token(self.first)..=Token(self.last)
    }

    /// The sum of all records, once they are counted.
    pub fn sum(&self) -> Option<Digest> {
        self.counted.as_ref().map(|leaves| leaves.sum)
    }

    /// The records, once they are counted.
    pub fn records(&self) -> Option<u64> {
        self.counted.as_ref().map(|leaves| leaves.records)
    }

    /// Bits that the tokens of one leaf share.
    pub fn bits(&self) -> Option<u8> {
        self.counted.as_ref().map(|leaves| leaves.bits)
    }

    /// Bits that the tokens of one of the leaves share that [`Tree::next_to_count`] counts.
    pub fn bits_counting(&self) -> Option<u8> {
        self.count.as_ref().map(|count| count.leaves.bits)
    }

    /// All leaves in order of their tokens.
    pub fn leaves(&self) -> Option<&[Digest]> {
        self.counted.as_ref().map(|leaves| &*leaves.sums)
    }

    /// Bytes of memory for leaves.
    pub fn bytes(&self) -> usize {
        let counting = self.count.as_ref().map_or(0, |count| count.leaves.sums.len());
        (self.counted.as_ref().map_or(0, |leaves| leaves.sums.len()) + counting) * size_of::<Digest>()
    }

    /// The sums of the spans of `bits` bits inside `span`, in order; spans outside the partition count nothing.
    /// `None` when the tree is doubtful, its leaves are larger than that, or the question makes no sense.
    pub fn sums(&self, span: Span, bits: u8) -> Option<Vec<Digest>> {
        let leaves = self.counted.as_ref()?;
        if bits > leaves.bits || bits < span.bits || bits - span.bits > DEPTH_MIN {
            return None;
        }
        let finer = u32::from(bits - span.bits);
        let mut sums = vec![Digest::default(); 1 << finer];
        let tokens = span.tokens();
        if tokens.start().0 > self.last || tokens.end().0 < self.first {
            return Some(sums);
        }
        let from = leaves.position(self.first, Token(tokens.start().0.max(self.first)));
        let to = leaves.position(self.first, Token(tokens.end().0.min(self.last)));
        let base = prefix(self.first, leaves.bits);
        for position in from..=to {
            let within = (base + position as u64) >> (leaves.bits - bits);
            let at = (within - (span.prefix << finer)) as usize;
            sums[at] = sums[at].plus(leaves.sums[position]);
        }
        Some(sums)
    }

    /// A record with this token has changed.
    pub fn apply(&mut self, token: Token, change: TreeDelta) {
        if let Some(leaves) = &mut self.counted {
            let position = leaves.position(self.first, token);
            leaves.apply(position, change);
        }
        if let Some(count) = &mut self.count {
            let position = count.leaves.position(self.first, token);
            if position < count.frontier {
                count.leaves.apply(position, change);
            }
        }
    }

    /// Nobody knows any more what the records are.
    pub fn doubt(&mut self) {
        self.counted = None;
        self.count = None;
    }

    /// Whether it must be counted: it is doubtful, or has become too shallow.
    pub fn wants_count(&self) -> bool {
        match (&self.counted, &self.count) {
            (_, Some(_)) | (None, None) => true,
            (Some(leaves), None) => {
                leaves.records > LEAF_RECORDS * OVERFULL * leaves.sums.len() as u64
                    && leaves.bits < self.bits_max()
            }
        }
    }

    fn bits_max(&self) -> u8 {
        Span::around(&self.tokens()).bits.saturating_add(DEPTH_MAX).min(64)
    }

    /// What to count next: the tokens of so many leaves that they hold about `records_max` records, if the partition
    /// holds `records`. Meet all of them and then say [`Tree::counted_up_to`], while none of them changes; stopping at the
    /// end of an earlier leaf is fine.
    pub fn next_to_count(&mut self, records: u64, records_max: u64) -> Option<RangeInclusive<Token>> {
        if !self.wants_count() {
            return None;
        }
        let (first, last, bits_max) = (self.first, self.last, self.bits_max());
        let root = Span::around(&self.tokens()).bits;
        let count = self.count.get_or_insert_with(|| {
            let leaves = records.div_ceil(LEAF_RECORDS).next_power_of_two();
            let depth = (leaves.trailing_zeros() as u8).max(DEPTH_MIN);
            let leaves = Leaves::none(first, last, root.saturating_add(depth).min(bits_max));
            Box::new(Count { leaves, frontier: 0 })
        });
        let each = (records / count.leaves.sums.len() as u64).max(1);
        let more = (records_max / each).max(1) as usize;
        let end = (count.frontier + more).min(count.leaves.sums.len()) - 1;
        Some(span_of_leaves(first, last, count.leaves.bits, count.frontier..=end))
    }

    /// Takes in the records that were met among the tokens that [`Tree::next_to_count`] named; true when the tree is
    /// counted now.
    pub fn counted_up_to(
        &mut self,
        last_token: Token,
        met: impl IntoIterator<Item = (Token, Digest)>,
    ) -> bool {
        let Some(count) = &mut self.count else { return false };
        let end = count.leaves.position(self.first, last_token);
        assert!(end >= count.frontier, "counting goes on where it ended");
        for (token, digest) in met {
            let position = count.leaves.position(self.first, token);
            debug_assert!((count.frontier..=end).contains(&position), "a record is counted once");
            count.leaves.apply(position, TreeDelta::of(None, Some(digest)));
        }
        count.frontier = end + 1;
        if count.frontier < count.leaves.sums.len() {
            return false;
        }
        self.counted = self.count.take().map(|count| count.leaves);
        debug_assert!(self.counted.as_ref().is_none_or(Leaves::add_up), "the sum is that of the leaves");
        true
    }

    /// The tokens of the leaf that holds `token`, and of so many after it that they hold about `records_max` records.
    /// `None` when the tree is doubtful.
    pub fn leaves_from(&self, token: Token, records_max: u64) -> Option<RangeInclusive<Token>> {
        let leaves = self.counted.as_ref()?;
        let each = (leaves.records / leaves.sums.len() as u64).max(1);
        let from = leaves.position(self.first, token);
        let to = (from + (records_max / each).max(1) as usize).min(leaves.sums.len()) - 1;
        Some(span_of_leaves(self.first, self.last, leaves.bits, from..=to))
    }

    /// Compares the leaves of `tokens` (whole leaves) with all the records that were met there, and puts right those
    /// that are wrong. Says how many were.
    pub fn verify(&mut self, tokens: &RangeInclusive<Token>, met: &[(Token, Digest)]) -> usize {
        let Some(leaves) = &mut self.counted else { return 0 };
        let from = leaves.position(self.first, *tokens.start());
        let to = leaves.position(self.first, *tokens.end());
        let mut sums = vec![Digest::default(); to - from + 1];
        for &(token, digest) in met {
            let at = leaves.position(self.first, token) - from;
            sums[at] = sums[at].plus(digest);
        }
        let mut wrong = 0;
        for (position, sum) in (from..=to).zip(sums) {
            if leaves.sums[position] != sum {
                leaves.sum = leaves.sum.minus(leaves.sums[position]).plus(sum);
                leaves.sums[position] = sum;
                wrong += 1;
            }
        }
        debug_assert!(leaves.add_up(), "the sum is that of the leaves");
        if wrong > 0 {
            // Growing under way counted the same wrong changes.
            self.count = None;
        }
        wrong
    }
}

/// The tokens of these leaves, within the partition.
fn span_of_leaves(first: u64, last: u64, bits: u8, leaves: RangeInclusive<usize>) -> RangeInclusive<Token> {
    let base = prefix(first, bits);
    let span = |position: usize| Span { bits, prefix: base + position as u64 }.tokens();
    let (start, end) = (span(*leaves.start()).start().0, span(*leaves.end()).end().0);
    Token(start.max(first))..=Token(end.min(last))
}
