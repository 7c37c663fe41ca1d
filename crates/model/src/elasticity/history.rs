//! What load is expected, as far ahead as a machine takes to become useful.
//!
//! ```text
//!   loads of the last two days, in parts of a minute ─┬─▶ level and slope of the last quarter of an hour
//!                                                     └─▶ the same time yesterday, by how today compares with it
//!                                                  the higher one, and what it errs by
//! ```
//!
//! A forecast only adds: what is removed, is removed by what was measured.
//!
//! Must never: forecast from gaps. A part that nobody measured is passed over, and never 0.

use crate::WallMillis;
use serde::{Deserialize, Serialize};

/// How long one part is, in milliseconds.
const PART_MS: u64 = 60_000;
/// Parts that are kept: two days.
const PARTS_MAX: usize = 2 * DAY;
/// Parts of a day.
const DAY: usize = 24 * 60;
/// Parts by which level and slope are told.
const LATELY: usize = 15;
/// The fewest of them that were measured.
const LATELY_MIN: usize = 8;
/// Parts around the same time yesterday of which the highest counts: days do not begin at the same minute.
const AROUND: usize = 5;
/// A slope counts from this many of its own deviations on: less is noise, and far ahead noise becomes large.
const SLOPE_MIN: f64 = 4.0;
/// By this many deviations a forecast is above its mean: one in twenty is higher.
const DEVIATIONS: f64 = 1.64;

/// The loads of the last two days.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The number of the first part, counted from 1970.
    first: u64,
    /// Operations in a second, by part; none where nobody measured.
    loads: Vec<Option<u32>>,
}

impl History {
    /// Notes what was measured in the part of `at`, in place of what was noted before.
    pub fn note(&mut self, at: WallMillis, load: f64) {
        if !load.is_finite() || load < 0.0 {
            return;
        }
        let part = at.0 / PART_MS;
        if self.loads.is_empty() || part < self.first {
            // Also where a clock has gone back: what was is not comparable any more.
            (self.first, self.loads) = (part, Vec::new());
        }
        let place = usize::try_from(part - self.first).unwrap_or(usize::MAX);
        if place >= self.loads.len() + PARTS_MAX {
            (self.first, self.loads) = (part, vec![Some(load as u32)]);
            return;
        }
        if place >= self.loads.len() {
            self.loads.resize(place + 1, None);
        }
        self.loads[place] = Some(load as u32);
        let surplus = self.loads.len().saturating_sub(PARTS_MAX);
        self.loads.drain(..surplus);
        self.first += surplus as u64;
    }

    /// The load of a part, where it was measured.
    fn at(&self, part: u64) -> Option<f64> {
        let place = usize::try_from(part.checked_sub(self.first)?).ok()?;
        self.loads.get(place).copied().flatten().map(f64::from)
    }

    /// The highest load in the last `span` milliseconds, if most of it was measured.
    pub fn highest(&self, now: WallMillis, span: u64) -> Option<f64> {
        let last = now.0 / PART_MS;
        let parts = (span / PART_MS).max(1);
        let known: Vec<f64> = (last.saturating_sub(parts)..=last).filter_map(|part| self.at(part)).collect();
        (known.len() as u64 * 2 > parts).then(|| known.into_iter().fold(0.0, f64::max))
    }

    /// Whether the part of `at` was noted.
    pub fn has(&self, at: WallMillis) -> bool {
        self.at(at.0 / PART_MS).is_some()
    }

    /// How long until a load as high as this comes, in milliseconds, if the next day is like the last one.
    pub fn until(&self, now: WallMillis, load: f64) -> Option<u64> {
        let last = now.0 / PART_MS;
        let then = last.checked_sub(DAY as u64)?;
        let parts = (then + 1..last).zip(1..);
        let is_as_high = |part: u64| self.at(part).is_some_and(|known| known >= load);
        parts.filter(|(part, _)| is_as_high(*part)).map(|(_, ahead): (_, u64)| ahead * PART_MS).next()
    }

    /// The highest load until `ahead` milliseconds from now, as far as it can be told.
    pub fn forecast(&self, now: WallMillis, ahead: u64) -> Option<f64> {
        let parts = ahead.div_ceil(PART_MS).max(1);
        let trend = self.trend(now.0 / PART_MS, parts);
        let yesterday = self.yesterday(now.0 / PART_MS, parts);
        match (trend, yesterday) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        }
    }

    /// A straight line through what was measured lately, and as far above it as it errs.
    fn trend(&self, last: u64, parts: u64) -> Option<f64> {
        let begin = last.saturating_sub(LATELY as u64 - 1);
        let known: Vec<(f64, f64)> =
            (begin..=last).filter_map(|part| Some(((part - begin) as f64, self.at(part)?))).collect();
        if known.len() < LATELY_MIN {
            return None;
        }
        let n = known.len() as f64;
        let (mean_x, mean_y) =
            (known.iter().map(|one| one.0).sum::<f64>() / n, known.iter().map(|one| one.1).sum::<f64>() / n);
        let spread: f64 = known.iter().map(|one| (one.0 - mean_x).powi(2)).sum();
        let slope = known.iter().map(|one| (one.0 - mean_x) * (one.1 - mean_y)).sum::<f64>() / spread;
        let line = |x: f64| mean_y + slope * (x - mean_x);
        let errs = (known.iter().map(|one| (one.1 - line(one.0)).powi(2)).sum::<f64>() / n).sqrt();
        let here = (last - begin) as f64;
        let is_slope = slope * spread.sqrt() > SLOPE_MIN * errs;
        let ahead = if is_slope { line(here + parts as f64) } else { mean_y };
        Some((ahead + DEVIATIONS * errs).max(0.0))
    }

    /// The highest load of the same time yesterday, times how the last quarter of an hour compares with yesterday's.
    fn yesterday(&self, last: u64, parts: u64) -> Option<f64> {
        let day = DAY as u64;
        let then = last.checked_sub(day)?;
        let (from, until) = (then.saturating_sub(AROUND as u64), then + parts + AROUND as u64);
        let highest = (from..=until).filter_map(|part| self.at(part)).reduce(f64::max)?;
        let pairs: Vec<(f64, f64)> = (last.saturating_sub(LATELY as u64 - 1)..=last)
            .filter_map(|part| Some((self.at(part)?, self.at(part.checked_sub(day)?)?)))
            .collect();
        if pairs.len() < LATELY_MIN {
            return None;
        }
        let (today, then): (f64, f64) =
            (pairs.iter().map(|one| one.0).sum(), pairs.iter().map(|one| one.1).sum());
        let ratio = if then > 0.0 { (today / then).clamp(0.5, 2.0) } else { 1.0 };
        Some(highest * ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = PART_MS;

    fn noted(loads: impl IntoIterator<Item = (u64, f64)>) -> History {
        let mut history = History::default();
        loads.into_iter().for_each(|(minute, load)| history.note(WallMillis(minute * MINUTE), load));
        history
    }

    #[test]
    fn a_rise_is_seen_as_far_ahead_as_asked() {
        let history = noted((0..30).map(|minute| (minute, 1_000.0 + 100.0 * minute as f64)));
        let ahead = history.forecast(WallMillis(29 * MINUTE), 10 * MINUTE).unwrap();
        assert!((ahead - 4_900.0).abs() < 5.0, "{ahead}");
        // A fall is not: what was lately may come again.
        let falls = noted((0..30).map(|minute| (minute, 5_000.0 - 100.0 * minute as f64)));
        let ahead = falls.forecast(WallMillis(29 * MINUTE), 10 * MINUTE).unwrap();
        assert!((2_100.0..4_000.0).contains(&ahead), "{ahead}");
    }

    #[test]
    fn a_burst_that_came_yesterday_is_expected_and_an_unknown_one_is_not() {
        let burst = |minute: u64| if (600..630).contains(&(minute % 1_440)) { 9_000.0 } else { 1_000.0 };
        let before = 1_440 + 595;
        let history = noted((0..=before).map(|minute| (minute, burst(minute))));
        assert!(history.forecast(WallMillis(before * MINUTE), 5 * MINUTE).unwrap() > 8_900.0);
        let quiet = noted((1_440..=before).map(|minute| (minute, burst(minute))));
        assert!(quiet.forecast(WallMillis(before * MINUTE), 5 * MINUTE).unwrap() < 1_010.0);
        // Today has half of yesterday's load, so half of its burst is expected.
        let half = noted(
            (0..=before).map(|minute| (minute, burst(minute) / if minute < 1_440 { 1.0 } else { 2.0 })),
        );
        let ahead = half.forecast(WallMillis(before * MINUTE), 5 * MINUTE).unwrap();
        assert!((4_400.0..4_700.0).contains(&ahead), "{ahead}");
    }

    #[test]
    fn gaps_are_no_zeros_and_little_tells_nothing() {
        let gaps = noted((0..30).filter(|minute| minute % 2 == 0).map(|minute| (minute, 500.0)));
        let ahead = gaps.forecast(WallMillis(28 * MINUTE), MINUTE).unwrap();
        assert!((ahead - 500.0).abs() < 1.0, "{ahead}");
        assert_eq!(noted([(1, 5.0), (2, 5.0)]).forecast(WallMillis(2 * MINUTE), MINUTE), None);
        assert_eq!(gaps.forecast(WallMillis(90 * MINUTE), MINUTE), None, "nothing was measured for an hour");
        assert_eq!(gaps.highest(WallMillis(90 * MINUTE), 10 * MINUTE), None);
        assert_eq!(gaps.highest(WallMillis(28 * MINUTE), 2 * MINUTE), Some(500.0));
        let mut nonsense = noted([(1, 5.0)]);
        let before = nonsense.clone();
        nonsense.note(WallMillis(2 * MINUTE), f64::NAN);
        nonsense.note(WallMillis(2 * MINUTE), -1.0);
        assert_eq!(nonsense, before);
    }

    #[test]
    fn two_days_are_kept_and_a_clock_that_jumps_begins_anew() {
        let mut history = noted((0..5_000).map(|minute| (minute, 1.0)));
        assert_eq!((history.loads.len(), history.first), (PARTS_MAX, 5_000 - PARTS_MAX as u64));
        history.note(WallMillis(9_000_000 * MINUTE), 7.0);
        assert_eq!((history.loads.len(), history.first), (1, 9_000_000));
        history.note(WallMillis(3 * MINUTE), 8.0);
        assert_eq!((history.loads.len(), history.first), (1, 3));
    }
}
