//! Reports for `docs/benchmarks`: tables that read well as plain text too.

use std::fmt::Write;

use super::comparison::warnings;
use super::text::{cpu, grouped};
use super::{Comparison, RunReport};
use crate::processes::Context;

/// The machine, as a sentence.
pub fn context_markdown(context: &Context) -> String {
    format!(
        "Measured on {} core(s) of {}, {:.0} GiB of memory, Linux {}, load average {:.2} at the start, client on \
         the same machine, Tontine {}.\n",
        context.cores,
        context.processor,
        context.memory_bytes as f64 / f64::from(1u32 << 30),
        context.kernel,
        context.load_average,
        context.version
    )
}

/// A table with a row for each run and kind of operation.
pub fn runs_markdown(runs: &[RunReport]) -> String {
    let mut out = String::from(
        "| run | operation | op/s (all) | p50 µs | p99 µs | p99.9 µs | server CPU µs/op | by process | memory MiB |\n\
         |---|---|---:|---:|---:|---:|---:|---|---:|\n",
    );
    for run in runs {
        let by_process: Vec<String> = run
            .processes
            .iter()
            .map(|used| format!("{} {:.2}", used.name, used.cpu_us_per_operation))
            .collect();
        let client = format!("client {:.2}", run.client.cpu_us_per_operation);
        let by_process = by_process.into_iter().chain([client]).collect::<Vec<_>>().join(", ");
        let memory: f64 = run.processes.iter().map(|used| used.rss_bytes as f64 / 1_048_576.0).sum();
        let memory = if run.processes.is_empty() { "not measured".to_owned() } else { grouped(memory) };
        for (kind, of) in &run.kinds {
            let latency = &of.latency_us;
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {by_process} | {} |",
                run.label,
                kind.name(),
                grouped(run.throughput),
                grouped(latency.p50),
                grouped(latency.p99),
                grouped(latency.p999),
                cpu(run.server_cpu_us_per_operation, ""),
                memory
            );
        }
    }
    let doubts = runs.iter().flat_map(warnings);
    for warning in doubts {
        let _ = writeln!(out, "\n**Warning:** {warning}.");
    }
    out
}

/// A comparison as a table.
pub fn comparison_markdown(comparison: &Comparison) -> String {
    let Comparison { title, a, b, pairs, .. } = comparison;
    let mut out = format!(
        "**{title}** ({pairs} alternating pair(s), medians; the ratio is {a} / {b} within a pair)\n\n\
         | | {a} | {b} | ratio | range |\n|---|---:|---:|---:|---|\n"
    );
    for metric in &comparison.metrics {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.2} | {:.2} to {:.2} |",
            metric.name,
            grouped(metric.a),
            grouped(metric.b),
            metric.ratio,
            metric.ratio_min,
            metric.ratio_max
        );
    }
    for warning in &comparison.warnings {
        let _ = writeln!(out, "\n**Warning:** {warning}.");
    }
    out
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::report::samples;

    #[test]
    fn tables_are_markdown() {
        let run = samples::run("ours", 20, 300);
        let mut out = context_markdown(&run.context);
        out += &runs_markdown(std::slice::from_ref(&run));
        let pair = (run, samples::run("theirs", 40, 450));
        out += &comparison_markdown(&Comparison::of("reads", &[pair]));
        expect![[r#"
            Measured on 2 core(s) of a processor, 8 GiB of memory, Linux 6.0, load average 0.50 at the start, client on the same machine, Tontine 0.1.0.
            | run | operation | op/s (all) | p50 µs | p99 µs | p99.9 µs | server CPU µs/op | by process | memory MiB |
            |---|---|---:|---:|---:|---:|---:|---|---:|
            | ours | read | 2 | 100 | 300 | 300 | 10000.00 | server 10000.00, client 2500.00 | 10 |
            **reads** (1 alternating pair(s), medians; the ratio is ours / theirs within a pair)

            | | ours | theirs | ratio | range |
            |---|---:|---:|---:|---|
            | throughput, op/s | 2 | 2 | 1.00 | 1.00 to 1.00 |
            | server CPU, µs/op | 10,000 | 20,000 | 0.50 | 0.50 to 0.50 |
            | server CPU, best run, µs/op | 10,000 | 20,000 | 0.50 | 0.50 to 0.50 |
            | read p50, µs | 100 | 100 | 1.00 | 1.00 to 1.00 |
            | read p99, µs | 300 | 450 | 0.67 | 0.67 to 0.67 |
            | read p99.9, µs | 300 | 450 | 0.67 | 0.67 to 0.67 |
            | server memory, MiB | 10 | 10 | 1.00 | 1.00 to 1.00 |
        "#]].assert_eq(&out);
    }
}
