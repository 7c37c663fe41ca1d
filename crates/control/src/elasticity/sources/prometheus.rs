//! The text format of Prometheus, version 0.0.4: figures by name, those of all labels together.
//!
//! A page is taken as a whole or refused as a whole: a sum without one of its lines would be another figure.
//!
//! Must never: quote a page in an error. It may hold what is nobody's business.

use std::collections::BTreeMap;

/// What a page says of one name: the sum over all labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Series {
    /// No number where one of the lines had none.
    pub value: f64,
    /// When the oldest of the lines was measured, in milliseconds of the wall clock, where they say so.
    pub stamp: Option<u64>,
    /// Whether it only grows, so that what it gains in a second is of use, and not what it is.
    pub is_counter: bool,
}

/// Reads a page, and keeps the names that are asked for.
///
/// # Errors
/// With the number of the line that is wrong.
pub(super) fn read(
    page: Vec<u8>,
    is_asked: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Series>, String> {
    let text = String::from_utf8(page).map_err(|_| "the page is no text".to_owned())?;
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the page was cut: its last line has no end".to_owned());
    }
    let mut kinds = BTreeMap::new();
    let mut all: BTreeMap<String, Series> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(comment) = line.strip_prefix('#') {
            let mut words = comment.split_whitespace();
            if let (Some("TYPE"), Some(name), Some(kind)) = (words.next(), words.next(), words.next()) {
                kinds.insert(name, kind);
            }
            continue;
        }
        if line.is_empty() {
            continue;
        }
        let wrong = || format!("line {} of the page is not as Prometheus writes them", number + 1);
        let (name, value, stamp) = sample(line).ok_or_else(wrong)?;
        if !is_asked(name) {
            continue;
        }
        match all.get_mut(name) {
            Some(series) => {
                series.value += value;
                series.stamp = series.stamp.into_iter().chain(stamp).min();
            }
            None => {
                all.insert(name.to_owned(), Series { value, stamp, is_counter: false });
            }
        }
    }
    all.retain(|name, series| {
        let is_counter = is_counter(name, &kinds);
        series.is_counter = is_counter == Some(true);
        is_counter.is_some()
    });
    Ok(all)
}

/// Whether a name is a counter's; none where it is of no use as one figure, such as the buckets of a histogram.
fn is_counter(name: &str, kinds: &BTreeMap<&str, &str>) -> Option<bool> {
    let is_spread = |name: &str| matches!(kinds.get(name), Some(&("histogram" | "summary")));
    match kinds.get(name) {
        Some(&"counter") => return Some(true),
        Some(&"gauge") => return Some(false),
        _ if is_spread(name) => return None,
        _ => {}
    }
    if name.strip_suffix("_bucket").is_some_and(is_spread) {
        return None;
    }
    let of_spread = name.strip_suffix("_count").or(name.strip_suffix("_sum")).is_some_and(is_spread);
    Some(of_spread || name.ends_with("_total"))
}

/// The name, the value and the time of a line.
fn sample(line: &str) -> Option<(&str, f64, Option<u64>)> {
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (name, mut rest) = line.split_at(line.find(|c| !is_in_name(c))?);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Some(labels) = rest.trim_start().strip_prefix('{') {
        rest = &labels[end_of_labels(labels)? + 1..];
    } else if !rest.starts_with([' ', '\t']) {
        return None;
    }
    let mut words = rest.split_whitespace();
    let value = words.next()?.parse().ok()?;
    let stamp = match words.next() {
        Some(stamp) => Some(stamp.parse().ok()?),
        None => None,
    };
    words.next().is_none().then_some((name, value, stamp))
}

/// Where the brace is that ends labels. One within quotes is text.
fn end_of_labels(labels: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, c) in labels.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '}' if !is_quoted => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As exporters write it: the process's own figures, a counter with labels, a histogram, and texts with braces.
    const PAGE: &str = include_str!("page.prom");

    fn read_text(text: &str) -> Result<BTreeMap<String, Series>, String> {
        read(text.as_bytes().to_vec(), |_| true)
    }

    #[test]
    fn a_page_gives_gauges_counters_and_sums_over_labels() {
        let page = read_text(PAGE).unwrap();
        let told = |name: &str| page.get(name).map(|series| (series.value, series.stamp, series.is_counter));
        assert_eq!(told("process_cpu_seconds_total"), Some((12.47, None, true)));
        assert_eq!(told("process_resident_memory_bytes"), Some((40_312_832.0, None, false)));
        assert_eq!(told("http_requests_total"), Some((1054.0, Some(1_795_968_900_000), true)));
        assert_eq!(told("request_duration_seconds_count"), Some((144_320.0, None, true)));
        assert_eq!(told("request_duration_seconds_sum"), Some((53_423.5, None, true)));
        assert_eq!(told("request_duration_seconds_bucket"), None, "buckets hold each other");
        assert_eq!(told("pause_seconds"), None, "quantiles are no sum");
        assert_eq!(told("proposals_total"), Some((3.0, None, false)), "its page calls it a gauge");
        assert_eq!(told("jobs_done_total"), Some((7.0, None, true)), "nothing calls it a gauge");
        assert_eq!(told("told_by"), Some((1.0, None, false)));
        assert!(
            told("broken").is_some_and(|(value, ..)| value.is_nan()),
            "a sum with NaN in it is no number"
        );
        assert!(told("endless").is_some_and(|(value, ..)| value.is_infinite()));
        assert_eq!(read(PAGE.as_bytes().to_vec(), |name| name == "told_by").unwrap().len(), 1);
        assert!(read_text("").unwrap().is_empty());
    }

    #[test]
    fn a_page_with_one_wrong_line_is_refused_as_a_whole() {
        for line in [
            "a",
            "a b",
            "1a 1",
            "a{b=\"c\" 1",
            "a{b=\"}\" 1",
            "a 1 2 3",
            "a 1 x",
            "a;1",
            "<html>",
            "{} 1",
            "a{}1x",
        ] {
            let refused = read_text(&format!("good 1\n{line}\n"));
            assert!(refused.as_ref().is_err_and(|why| why.contains("line 2")), "{line}: {refused:?}");
        }
        assert!(read_text("a{b=\"hush\" 1\n").is_err_and(|why| !why.contains("hush")), "the page is quoted");
        assert!(read_text("good 1\ngood{a=\"b\"} 1").is_err_and(|why| why.contains("was cut")));
        assert!(read(vec![0xff, b'\n'], |_| true).is_err_and(|why| why.contains("no text")));
    }
}
