//! Durations on the command line: `30s`, `10m`, `1h30m`; a number without a unit counts seconds.

use std::time::Duration;

/// The units, with their milliseconds, longest first.
const UNITS: &[(&str, u64)] =
    &[("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a duration.
///
/// # Errors
/// What it should look like.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let refused = || {
        format!(
            "{text:?} is not a duration; use a number with a unit, for example 500ms, 30s, 10m, 1h30m or 7d"
        )
    };
    let mut rest = text.trim();
    let mut millis: f64 = 0.0;
    if rest.is_empty() {
        return Err(refused());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let number: f64 = number.parse().map_err(|_| refused())?;
        let of_unit = match unit {
            // Only alone: in `1h30` nobody can tell what the 30 are.
            "" if digits == text.trim().len() => 1_000,
            unit => {
                UNITS.iter().find(|(name, _)| *name == unit).map(|(_, millis)| *millis).ok_or_else(refused)?
            }
        };
        millis += number * of_unit as f64;
        rest = after;
    }
    // A hundred million years: beyond any clock, and within the numbers of a duration.
    if !millis.is_finite() || millis > 3e18 {
        return Err(format!("{text:?} is too long"));
    }
    Ok(Duration::from_millis(millis.round() as u64))
}

/// Reads a duration of at least `min` and at most `max`.
pub(crate) fn within(min: Duration, max: Duration) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let duration = parse(text)?;
        if (min..=max).contains(&duration) {
            return Ok(duration);
        }
        Err(format!("use {} to {}", shown(min), shown(max)))
    }
}

/// A duration as people write it, exact to the millisecond, so that it can be read again.
pub(crate) fn shown(duration: Duration) -> String {
    let mut left = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, millis) in UNITS {
        let count = left / millis;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
        }
        left %= millis;
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// A duration for people who read on: its two longest units.
pub(crate) fn rough(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let Some(longest) = UNITS.iter().position(|(_, unit)| millis >= *unit) else { return "0s".to_owned() };
    let smallest = UNITS[(longest + 1).min(UNITS.len() - 1)].1;
    shown(Duration::from_millis(millis / smallest * smallest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units_and_seconds_without() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("30m", 1_800_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("7d", 604_800_000),
            ("2w", 1_209_600_000),
            ("1800", 1_800_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "m", "1h30", "3 years", "-1s", "1x", "1..5s", "nan", "99999999999999999w"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for millis in [0, 1, 999, 1_000, 61_001, 5_400_000, 604_800_000, 1_000_000_007] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&shown(duration)), Ok(duration));
        }
        assert_eq!(shown(Duration::from_secs(5_400)), "1h30m");
        assert_eq!(rough(Duration::from_millis(5_400_123)), "1h30m");
        assert_eq!(rough(Duration::from_millis(90_061_001)), "1d1h");
        assert_eq!(rough(Duration::from_millis(7)), "7ms");
    }

    #[test]
    fn a_range_is_said_with_its_units() {
        let refused = within(Duration::from_secs(1), Duration::from_secs(60))("2m").unwrap_err();
        assert_eq!(refused, "use 1s to 1m");
    }
}
