//! Runs that have a read-only store.

use std::time::Duration;

use super::{SafetyNet, Setup};
use crate::dice::Dice;
use crate::plant::Plant;

impl Setup {
    /// Whether artifacts of a read-only store are pushed and read.
    pub fn pushes(&self) -> bool {
        self.readers > 0
    }

    /// Whether nodes find damage to the files of artifacts that nobody reads.
    pub fn scrubs_artifacts(&self) -> bool {
        !self.without.contains(&SafetyNet::Scrub) && self.plant != Some(Plant::IdleRepair)
    }

    /// Pushes in a fifth of the runs, beside whatever else they play.
    pub(super) fn draw_pushes(&mut self, dice: &mut Dice) {
        if dice.chance(200) {
            self.readers = dice.between(1, 3) as u32;
            // A push takes a second or two.
            self.span = self.span.max(Duration::from_secs(6));
        }
    }
}
