//! Where a walk goes on at a token.
//!
//! In *pages* the fences say on which page a token's records begin. In *slots* the table knows where each record begins, but
//! not in which order: the beginnings near where the token should be are sorted, as hashes are spread evenly, and the
//! records there tell. So no file needs an index for walks.

use std::ops::Range;

use model::Token;

use super::super::format::prefix;
use super::super::table::Table;
use super::{Aim, Chunk, ChunkRefused, Index, pages_of};

/// How far from where a token should be its record is looked for first, in deviations of where it will be.
const DEVIATIONS: u64 = 3;
/// How much farther each further look goes.
const FARTHER: u64 = 8;

impl Chunk {
    /// A place from which a walk meets each record of this token and of those above, and few of those below.
    pub(in crate::artifacts) fn seek(
        &self,
        token: Token,
        token_of: &dyn Fn(&[u8]) -> Token,
    ) -> Result<u64, ChunkRefused> {
        let slice = self.entry.slice;
        if token <= slice.first {
            return Ok(0);
        }
        match &self.index {
            Index::Slots(table) => self.seek_slots(table, token, token_of),
            Index::Pages { fences, shift, pace } => {
                match pages_of(fences, prefix(token, slice.first, *shift), *pace) {
                    Aim::Pages { first, .. } => Ok(u64::from(first) << 16),
                    Aim::Nowhere | Aim::Ways(_) => Ok(0),
                }
            }
        }
    }

    fn seek_slots(
        &self,
        table: &Table,
        token: Token,
        token_of: &dyn Fn(&[u8]) -> Token,
    ) -> Result<u64, ChunkRefused> {
        let slice = self.entry.slice;
        let part = u128::from(token.0 - slice.first.0) * u128::from(self.data_bytes);
        let guess = (part / (u128::from(slice.last.0 - slice.first.0) + 1)) as u64;
        let mean = self.data_bytes.checked_div(self.entry.records).unwrap_or(0).max(1);
        let mut reach = DEVIATIONS * (self.entry.records.isqrt() + 1) * mean;
        loop {
            let near = guess.saturating_sub(reach)..guess.saturating_add(reach).min(self.data_bytes);
            let (starts, ends) = (near.start == 0, near.end == self.data_bytes);
            let begins = table.positions(near);
            let below = self.below(&begins, token, token_of)?;
            if (below > 0 || starts) && (below < begins.len() || ends) {
                return Ok(below.checked_sub(1).map_or(0, |last| u64::from(begins[last])));
            }
            reach = reach.saturating_mul(FARTHER);
        }
    }

    /// How many of these records, which are in order, lie below a token.
    fn below(
        &self,
        begins: &[u32],
        token: Token,
        token_of: &dyn Fn(&[u8]) -> Token,
    ) -> Result<usize, ChunkRefused> {
        let mut copy = Vec::new();
        let Range { mut start, mut end } = 0..begins.len();
        while start < end {
            let middle = start.midpoint(end);
            let head = self.copy_record(begins[middle], &mut copy)?;
            match token_of(&copy[..head.key_bytes]) < token {
                true => start = middle + 1,
                false => end = middle,
            }
        }
        Ok(start)
    }
}
