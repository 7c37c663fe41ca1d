//! How the coordination service fails in a run.

use coordination::memory::MemoryFaults;

use super::Setup;
use crate::dice::Dice;

impl Setup {
    /// In a seventh of the runs sessions end at any call, writes stay without an answer, and servers are behind, each in
    /// most of them.
    pub(super) fn draw_service(&mut self, dice: &mut Dice) {
        if !dice.chance(143) {
            return;
        }
        self.service = MemoryFaults {
            seed: dice.roll(),
            lost_per_mille: *dice.pick(&[0, 5, 50]) as u32,
            indeterminate_per_mille: *dice.pick(&[0, 50, 300]) as u32,
            behind_max: *dice.pick(&[0, 3, 30]),
            behind_at_first: dice.chance(500),
        };
    }
}
