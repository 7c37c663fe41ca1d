//! How the network of a run is.

use crate::dice::Dice;
use crate::network::Conditions;

/// Draws it.
pub(super) fn draw(dice: &mut Dice) -> Conditions {
    let lossy = dice.chance(250);
    let mut some = |per_mille| if lossy && dice.chance(700) { dice.between(1, per_mille) } else { 0 };
    let (loss_per_mille, duplicate_per_mille) = (some(30), some(30));
    Conditions {
        delay_us_min: *dice.pick(&[20, 100, 1000]),
        delay_us_spread: *dice.pick(&[50, 500, 5_000, 40_000]),
        slow_per_mille: *dice.pick(&[0, 5, 30]),
        loss_per_mille,
        duplicate_per_mille,
        reorder: lossy && dice.chance(500),
    }
}
