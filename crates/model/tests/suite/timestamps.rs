//! Hybrid logical timestamps and the monotonic clock's points.

use model::{Timestamp, WallMillis};
use proptest::prelude::*;

proptest! {
    #[test]
    fn the_next_timestamp_is_later_and_not_behind_the_wall_clock(
        last in 0..u64::MAX,
        wall in 0..1_u64 << 48,
    ) {
        let next = Timestamp(last).next(WallMillis(wall));
        prop_assert!(next > Timestamp(last));
        prop_assert!(next.wall() >= WallMillis(wall));
        let stepped = next.0.is_multiple_of(16) && next.0 - last <= 16;
        prop_assert!(stepped || next == Timestamp(wall << 16), "and no later than it must be");
    }

    /// A write that saw `last`, by a clock however slow, and what changed its expiry so often.
    #[test]
    fn a_write_is_later_than_what_changed_the_expiry_of_what_it_saw(last in 0..1_u64 << 60, times in 1..16) {
        let last = Timestamp(last).next(WallMillis(0));
        let touched = (0..times).fold(last, |touched, _| touched.right_after());
        prop_assert!(last < touched && touched < last.next(WallMillis(0)));
        prop_assert!(touched.next(WallMillis(0)) > touched);
    }

    #[test]
    fn timestamps_follow_a_moving_wall_clock_and_count_on_a_stopped_one(
        start in 0..1_u64 << 40,
        walls in prop::collection::vec(0..3_u64, 1..100),
    ) {
        let mut wall = start;
        let mut last = Timestamp(wall << 16);
        for advance in walls {
            wall += advance;
            let next = last.next(WallMillis(wall));
            prop_assert!(next > last);
            prop_assert_eq!(next.wall(), WallMillis(wall), "a hundred events do not run ahead of the clock");
            last = next;
        }
    }
}

#[test]
fn a_full_counter_runs_into_the_next_millisecond() {
    let last = Timestamp((7 << 16) + 0xfff0);
    assert_eq!(last.next(WallMillis(7)), Timestamp(8 << 16));
    assert_eq!(last.next(WallMillis(7)).wall(), WallMillis(8));
}

#[test]
fn a_clock_that_jumps_back_does_not_take_timestamps_with_it() {
    let last = Timestamp::default().next(WallMillis(1_000));
    assert_eq!(last.next(WallMillis(10)), Timestamp((1_000 << 16) + 16));
}
