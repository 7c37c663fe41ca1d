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
        let buckets = *Dice::apart(self.seed, 27).pick(&[1, 8, 16, 32, 64]);
        Setup { buckets, reshapes: self.moves, ..self }
    }

    /// Other numbers of stores in half of the runs in which partitions move, bounds stay, and no request has its own
    /// numbers. Walks use those of the run, and requests may name some.
    pub(super) fn draw_numbers(&mut self, dice: &mut Dice) {
        let by_stores = self.walks == 0 && self.own_quorums == 0;
        self.renumbers = self.moves && !self.reshapes && by_stores && dice.chance(500);
    }

    /// The same run with other numbers of stores.
    pub fn with_numbers(mut self) -> Setup {
        if !self.moves {
            (self.moves, self.headmasters) = (true, self.seed.is_multiple_of(2));
            self.nodes = self.nodes.max(u32::from(self.replicas) + 1);
        }
        if self.headmasters {
            self.span = self.span.max(Duration::from_secs(8));
        }
        (self.reshapes, self.walks, self.own_quorums) = (false, 0, 0);
        Setup { renumbers: true, ..self }
    }

    /// The same run on a golden ring, whose nodes come and go by the plans of headmasters. There is a node that is no
    /// replica.
    pub fn with_golden(mut self) -> Setup {
        (self.moves, self.headmasters, self.autopilot) = (true, true, None);
        self.nodes = self.nodes.max(u32::from(self.replicas) + 2);
        self.span = self.span.max(Duration::from_secs(8));
        Setup { golden: true, buckets: 64, reshapes: false, renumbers: false, ..self }
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
