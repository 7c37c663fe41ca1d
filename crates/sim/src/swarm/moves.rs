//! Runs in which the ring changes.

use std::time::Duration;

use super::Setup;
use crate::dice::Dice;

impl Setup {
    /// Other bounds in half of the runs in which partitions move.
    pub(super) fn draw_bounds(&mut self, dice: &mut Dice) {
        if self.moves && dice.chance(500) {
            *self = self.clone().with_bounds();
        }
    }

    /// The same run with other bounds of partitions, where partitions move.
    pub fn with_bounds(self) -> Setup {
        let buckets = *Dice::apart(self.seed, 27).pick(&[None, Some(8), Some(16), Some(32), Some(64)]);
        Setup { buckets, reshapes: self.moves, ..self }
    }

    /// Moves in a third of the runs, by headmasters in half of these. There must be a node that is no replica.
    pub(super) fn draw_moves(&mut self, dice: &mut Dice) {
        self.moves = dice.chance(333);
        if self.moves {
            self.nodes = self.nodes.max(u32::from(self.replicas) + dice.between(1, 2) as u32);
            self.headmasters = dice.chance(500);
        }
        if self.headmasters {
            // A plan takes some seconds.
            self.span = self.span.max(Duration::from_secs(8));
        }
    }
}
