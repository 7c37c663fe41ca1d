//! Moments of a wall clock as people and programs write them.

/// Days of four hundred years, after which the calendar repeats.
const DAYS_OF_400_YEARS: u64 = 146_097;
/// Days from 0000-03-01, where a year of this reckoning begins, to 1970-01-01.
const DAYS_BEFORE_1970: u64 = 719_468;

/// UTC as in RFC 3339, to the millisecond: `2025-11-21T19:40:00.123Z`.
pub(crate) fn utc(millis: u64) -> String {
    let seconds = millis / 1000;
    let (year, month, day) = date(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60,
        millis % 1000
    )
}

/// The moment that RFC 3339 writes so, in UTC: `2025-11-21T19:40:00Z`, with or without a fraction and with a blank in place
/// of the T. None for anything else.
pub(crate) fn parse_utc(text: &str) -> Option<u64> {
    let (day, time) = text.strip_suffix('Z')?.split_once(['T', ' '])?;
    let numbers = |text: &str, by: char| -> Option<[u64; 3]> {
        let parts: Option<Vec<u64>> = text.split(by).map(|part| part.parse().ok()).collect();
        parts?.try_into().ok()
    };
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, of_month] = numbers(day, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let is_digits = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let is_time = hour < 24 && minute < 60 && second < 60 && is_digits;
    if !is_time || !(1970..10_000).contains(&year) || !(1..=12).contains(&month) {
        return None;
    }
    // The first day of the year, and from there on day by day: this is asked once for each command.
    let near = (year - 1970) * 365;
    let days = (near..near + 3_000).find(|&days| date(days) == (year, month, of_month))?;
    let millis: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    Some(((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + millis)
}

/// Year, month and day of the month, so many days after 1970-01-01. Years begin in March here, so that the leap day is
/// a year's last one (Hinnant, "chrono-compatible low-level date algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_BEFORE_1970;
    let of_cycle = days % DAYS_OF_400_YEARS;
    let year_of_cycle = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = days / DAYS_OF_400_YEARS * 400 + year_of_cycle + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_with_its_date() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_799, "2000-02-29T23:59:59.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_763_754_000, "2025-11-21T19:40:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000Z"),
        ] {
            assert_eq!(utc(seconds * 1000), expected);
        }
        assert_eq!(utc(1_763_754_000_123), "2025-11-21T19:40:00.123Z");
    }
}
