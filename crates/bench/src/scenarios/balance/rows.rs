//! What runs amount to, as rows of a table in Markdown and as figures by name.

use crate::report::{Percentiles, median};

use super::series::{Series, Summary};

/// A node alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct AloneRow {
    pub(super) cap: f64,
    pub(super) throughput: f64,
    pub(super) latency_us: Percentiles,
    pub(super) used: f64,
    pub(super) generator_idle: f64,
    pub(super) machine_idle: f64,
    pub(super) errors: u64,
}

impl AloneRow {
    pub(super) fn heading() -> String {
        table_head(
            "node | processors | requests/s | p50, p90, p99, p99.9 of a batch (ms) | used of its bound | generator idle | \
             processors idle | failed",
        )
    }

    pub(super) fn row(&self, name: &str) -> String {
        let Percentiles { p50, p90, p99, p999, .. } = self.latency_us;
        let ms = [p50, p90, p99, p999].map(|us| format!("{:.1}", us / 1e3)).join(", ");
        format!(
            "| {name} | {:.3} | {:.0} | {ms} | {} | {} | {:.2} | {} |",
            self.cap,
            self.throughput,
            percent(self.used),
            percent(self.generator_idle),
            self.machine_idle,
            self.errors
        )
    }
}

pub(super) fn moving_heading() -> String {
    table_head(
        "run | requests/s before | at the end | of what they carry alone | kept while copying: mean, worst second | last plan \
         ended after | copied | partitions | used of their bounds | generator idle: median, least | processors idle | failed",
    )
}

pub(super) fn moving_row(run: u32, summary: &Summary) -> String {
    let list = |of: Vec<String>| of.join(", ");
    let both = |(mean, worst): (Option<f64>, Option<f64>)| match (mean, worst) {
        (Some(mean), Some(worst)) => format!("{}, {}", percent(mean), percent(worst)),
        _ => "-".to_owned(),
    };
    format!(
        "| {run} | {:.0} | {:.0} | {} | {} | {} | {:.1} MB | {} | {} | {}, {} | {:.2} | {} |",
        summary.before,
        summary.after,
        summary.share.map_or("-".to_owned(), percent),
        both((summary.kept, summary.kept_worst)),
        summary.settled_after.map_or("-".to_owned(), |seconds| format!("{seconds:.0} s")),
        summary.bytes as f64 / 1e6,
        list(summary.partitions.iter().map(|(_, count)| count.to_string()).collect()),
        list(summary.used.iter().map(|(_, used)| percent(*used)).collect()),
        percent(summary.generator_idle.0),
        percent(summary.generator_idle.1),
        summary.machine_idle,
        summary.errors
    )
}

/// The medians of all runs, and how many requests failed in them.
pub(super) fn moving_figures(summaries: &[Summary], best: f64) -> Vec<(String, f64)> {
    let of = |figure: fn(&Summary) -> Option<f64>| {
        let known: Vec<f64> = summaries.iter().filter_map(figure).collect();
        (!known.is_empty()).then(|| median(known.into_iter()))
    };
    let figures = [
        ("before_throughput", of(|one| Some(one.before))),
        ("after_throughput", of(|one| Some(one.after))),
        ("share_of_alone", of(|one| one.share)),
        ("share_at_best", Some(best)),
        ("kept_while_copying", of(|one| one.kept)),
        ("kept_worst_second", of(|one| one.kept_worst)),
        ("settled_after_s", of(|one| one.settled_after)),
        ("used_over_mean_before", of(|one| Some(one.over_mean.0))),
        ("used_over_mean_after", of(|one| Some(one.over_mean.1))),
        ("generator_idle", of(|one| Some(one.generator_idle.0))),
        ("machine_idle_processors", of(|one| Some(one.machine_idle))),
        // Of all runs together.
        ("requests_failed", Some(summaries.iter().map(|one| one.errors as f64).sum())),
    ];
    figures.into_iter().filter_map(|(name, figure)| Some((name.to_owned(), figure?))).collect()
}

pub(super) fn unequal_heading() -> String {
    table_head(
        "run | requests/s | seen after | applied after | plans | bytes copied | largest over mean, by partitions: before, at \
         the end | used of their bounds, largest over mean: before, at the end | generator idle | processors idle | failed",
    )
}

pub(super) fn unequal_row(run: u32, series: &Series, seen: Option<f64>) -> String {
    let summary = series.summary();
    let first = series.plans.first();
    let seconds = |at: Option<f64>| at.map_or("-".to_owned(), |at| format!("{at:.1} s"));
    let two = |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure:.2}"));
    format!(
        "| {run} | {:.0} | {} | {} | {} | {} | {}, {} | {:.2}, {:.2} | {} | {:.2} | {} |",
        summary.after,
        seconds(first.map(|plan| plan.created)),
        seconds(first.and_then(|plan| plan.ended)),
        series.plans.len(),
        summary.bytes,
        two(first.and_then(|plan| plan.over_mean).map(|(before, _)| before)),
        two(seen),
        summary.over_mean.0,
        summary.over_mean.1,
        percent(summary.generator_idle.0),
        summary.machine_idle,
        summary.errors
    )
}

pub(super) fn unequal_figures(run: u32, series: &Series, seen: Option<f64>) -> Vec<(String, f64)> {
    let first = series.plans.first();
    let figures = [
        ("seen_after_s", first.map(|plan| plan.created)),
        ("applied_after_s", first.and_then(|plan| plan.ended)),
        ("largest_over_mean_before", first.and_then(|plan| plan.over_mean).map(|(before, _)| before)),
        ("largest_over_mean_after", seen),
        ("bytes_copied", Some(series.summary().bytes as f64)),
    ];
    figures.into_iter().filter_map(|(name, figure)| Some((format!("run_{run}_{name}"), figure?))).collect()
}

/// The first two lines of a table.
pub(super) fn table_head(columns: &str) -> String {
    format!("| {columns} |\n|{}", "---|".repeat(columns.split(" | ").count()))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::super::series::samples;
    use super::*;

    #[test]
    fn rows_have_as_many_cells_as_their_headings() {
        let cells = |line: &str| line.matches('|').count();
        let series = samples::series();
        let alone = AloneRow {
            cap: 0.5,
            throughput: 1_000.0,
            latency_us: Percentiles::default(),
            used: 0.99,
            generator_idle: 0.5,
            machine_idle: 0.4,
            errors: 0,
        };
        for (heading, row) in [
            (AloneRow::heading(), alone.row("n1")),
            (moving_heading(), moving_row(1, &series.summary())),
            (unequal_heading(), unequal_row(1, &series, Some(1.05))),
        ] {
            let lines: Vec<&str> = heading.lines().chain([&row[..]]).collect();
            assert!(lines.iter().all(|line| cells(line) == cells(lines[0])), "{lines:?}");
        }
    }

    #[test]
    fn figures_are_medians_and_what_is_not_known_is_left_out() {
        let mut bare = samples::series();
        bare.alone.clear();
        bare.plans.clear();
        let figures = moving_figures(&[samples::series().summary(), bare.summary()], 0.95);
        let figure = |name: &str| figures.iter().find(|(known, _)| known == name).map(|(_, figure)| *figure);
        assert_eq!(figure("after_throughput"), Some(150.0));
        assert_eq!(figure("share_of_alone"), Some(0.9375));
        assert!(figure("kept_while_copying").is_some());
        let figures = moving_figures(&[bare.summary()], 0.95);
        assert!(figures.iter().all(|(name, _)| name != "kept_while_copying"));
    }
}
