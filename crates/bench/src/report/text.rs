//! Reports for a terminal.

use std::fmt::Write;

use super::comparison::warnings;
use super::{Comparison, Percentiles, ProcessReport, RunReport};

/// A whole run.
pub fn run_text(run: &RunReport) -> String {
    let mut text = String::new();
    let server = run.server.as_deref().map(|server| format!(" ({server})")).unwrap_or_default();
    let phase = format!("{:?}", run.phase).to_lowercase();
    line(&mut text, format_args!("{}: {phase} {}{server}", run.label, run.target));
    line(&mut text, format_args!("{}", run.description));
    line(&mut text, format_args!("{}, {:.1} s measured", run.describe_driver(), run.elapsed_s));
    line(&mut text, format_args!(""));
    line(
        &mut text,
        format_args!(
            "throughput {} op/s    server CPU {}    {} operations",
            grouped(run.throughput),
            cpu(run.server_cpu_us_per_operation, " µs/op"),
            grouped(run.operations as f64)
        ),
    );
    line(&mut text, format_args!(""));
    latency_table(&mut text, run);
    line(&mut text, format_args!(""));
    process_table(&mut text, run);
    for warning in warnings(run) {
        line(&mut text, format_args!("warning: {warning}"));
    }
    text
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes everything");
    text.push('\n');
}

fn latency_table(text: &mut String, run: &RunReport) {
    line(
        text,
        format_args!(
            "{:<20}{:>12}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "latency, µs", "count", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max"
        ),
    );
    let mut row = |name: &str, count: Option<u64>, of: &Percentiles| {
        let count = count.map(|count| grouped(count as f64)).unwrap_or_default();
        let figures = [of.mean, of.p50, of.p90, of.p99, of.p999, of.p9999, of.max];
        let figures: String = figures.iter().map(|figure| format!("{:>10}", grouped(*figure))).collect();
        line(text, format_args!("{name:<20}{count:>12}{figures}"));
    };
    for (kind, of) in &run.kinds {
        row(kind.name(), Some(of.count), &of.latency_us);
        if let Some(service) = &of.service_us {
            row("  of which service", None, service);
        }
    }
    if let Some(lag) = &run.lag_us {
        row("start lag", None, lag);
    }
}

fn process_table(text: &mut String, run: &RunReport) {
    line(
        text,
        format_args!(
            "{:<20}{:>10}{:>10}{:>10}{:>8}{:>10}{:>10}{:>9}",
            "process", "CPU µs/op", "user", "system", "cores", "RSS MiB", "peak MiB", "threads"
        ),
    );
    let mut row = |process: &ProcessReport| {
        let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1_048_576.0);
        line(
            text,
            format_args!(
                "{:<20}{:>10.2}{:>10.2}{:>10.2}{:>8.2}{:>10}{:>10}{:>9}",
                process.name,
                process.cpu_us_per_operation,
                process.user_us_per_operation,
                process.system_us_per_operation,
                process.cores,
                mebibytes(process.rss_bytes),
                mebibytes(process.rss_peak_bytes),
                process.threads
            ),
        );
    };
    run.processes.iter().for_each(&mut row);
    row(&run.client);
    line(
        text,
        format_args!(
            "others on this machine {:.2} cores of {}, load average {:.2} at the start",
            run.other_cores, run.context.cores, run.context.load_average
        ),
    );
}

/// A comparison.
pub fn comparison_text(comparison: &Comparison) -> String {
    let mut text = String::new();
    let Comparison { title, a, b, pairs, .. } = comparison;
    line(&mut text, format_args!("{title}: {a} against {b}, {pairs} pair(s), medians"));
    line(&mut text, format_args!("{:<28}{a:>16}{b:>16}{:>10}{:>18}", "", "ratio", "range"));
    for metric in &comparison.metrics {
        let range = format!("{:.2} to {:.2}", metric.ratio_min, metric.ratio_max);
        line(
            &mut text,
            format_args!(
                "{:<28}{:>16}{:>16}{:>10.2}{range:>18}",
                metric.name,
                grouped(metric.a),
                grouped(metric.b),
                metric.ratio
            ),
        );
    }
    for warning in &comparison.warnings {
        line(&mut text, format_args!("warning: {warning}"));
    }
    text
}

/// CPU for each operation, or that nobody looked.
pub(crate) fn cpu(figure: Option<f64>, unit: &str) -> String {
    figure.map_or("not measured".to_owned(), |figure| format!("{figure:.2}{unit}"))
}

/// A figure with the digits worth reading, thousands apart.
pub(super) fn grouped(figure: f64) -> String {
    if figure < 100.0 && figure.fract() != 0.0 {
        return format!("{figure:.2}");
    }
    let digits = format!("{figure:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::report::samples;

    #[test]
    fn a_run_reads_well() {
        let mut run = samples::run("ours", 20, 300);
        run.outcomes.missing = 3;
        expect![[r#"
            ours: run resp://somewhere (a server)
            100 % read, zipfian, 10 records of 1024 bytes
            16 connections, pipeline 1, 1 client thread(s), closed loop, seed 1, 1.0 s measured

            throughput 2 op/s    server CPU 10000.00 µs/op    2 operations

            latency, µs                count      mean       p50       p90       p99     p99.9    p99.99       max
            read                           2       200       100       300       300       300       300       300

            process              CPU µs/op      user    system   cores   RSS MiB  peak MiB  threads
            server                10000.00  10000.00      0.00    0.02      10.0      12.0        1
            client                 2500.00   2500.00      0.00    0.01      10.0      12.0        1
            others on this machine 0.25 cores of 2, load average 0.50 at the start
            warning: ours: 3 reads found no record
        "#]].assert_eq(&run_text(&run));
    }

    #[test]
    fn the_cpu_of_servers_that_nobody_watched_is_not_shown_as_nothing() {
        let mut run = samples::run("ours", 20, 300);
        run.server_cpu_us_per_operation = None;
        run.processes.clear();
        let text = run_text(&run);
        assert!(text.contains("server CPU not measured    2 operations"), "{text}");
    }

    #[test]
    fn a_comparison_reads_well() {
        let pair = (samples::run("ours", 20, 300), samples::run("theirs", 40, 450));
        expect![[r#"
            reads: ours against theirs, 1 pair(s), medians
                                                    ours          theirs     ratio             range
            throughput, op/s                           2               2      1.00      1.00 to 1.00
            server CPU, µs/op                     10,000          20,000      0.50      0.50 to 0.50
            server CPU, best run, µs/op           10,000          20,000      0.50      0.50 to 0.50
            read p50, µs                             100             100      1.00      1.00 to 1.00
            read p99, µs                             300             450      0.67      0.67 to 0.67
            read p99.9, µs                           300             450      0.67      0.67 to 0.67
            server memory, MiB                        10              10      1.00      1.00 to 1.00
        "#]]
        .assert_eq(&comparison_text(&Comparison::of("reads", &[pair])));
    }

    #[test]
    fn figures_are_grouped() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(999.6), "1,000");
        assert_eq!(grouped(12.345), "12.35");
        assert_eq!(grouped(0.0), "0");
    }
}
