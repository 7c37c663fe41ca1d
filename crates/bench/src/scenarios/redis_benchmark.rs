//! The stock load generator of Redis, unmodified, with the server's CPU read beside it.

use std::io;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::processes::{Snapshot, Watched};
use crate::report::Metric;

/// One invocation.
#[derive(Clone, Debug)]
pub struct RedisBenchmark<'a> {
    /// `host:port` of the server.
    pub address: &'a str,
    /// The command to send: `get` or `set`.
    pub test: &'a str,
    /// Connections.
    pub connections: usize,
    /// Commands in one pipeline.
    pub depth: usize,
    /// Requests in all.
    pub requests: u64,
    /// Keys are drawn from this many.
    pub records: u64,
    /// Bytes of a value.
    pub value_length: usize,
}

/// What it printed, and what the server used meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RedisBenchmarkRun {
    /// Requests per second.
    pub throughput: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// CPU of the server in microseconds for each request.
    pub server_cpu_us_per_operation: f64,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum RedisBenchmarkError {
    /// The program is missing.
    #[error("cannot start redis-benchmark: {0}; install it with: apt-get install redis-tools")]
    NotStarted(io::Error),
    /// It failed, or printed something else than its table.
    #[error("redis-benchmark failed: {output}")]
    Failed {
        /// What it printed.
        output: String,
    },
}

impl RedisBenchmark<'_> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// When the program is missing, or does not print its table.
    pub fn run(&self, watched: &[Watched]) -> Result<RedisBenchmarkRun, RedisBenchmarkError> {
        let (host, port) = self.address.rsplit_once(':').unwrap_or((self.address, "6379"));
        let before = Snapshot::take(watched);
        let output = Command::new("redis-benchmark")
            .args(["-h", host, "-p", port, "-t", self.test, "--csv"])
            .args(["-c", &self.connections.to_string(), "-P", &self.depth.to_string()])
            .args(["-n", &self.requests.to_string(), "-r", &self.records.to_string()])
            .args(["-d", &self.value_length.to_string()])
            .output()
            .map_err(RedisBenchmarkError::NotStarted)?;
        let usage = before.until(&Snapshot::take(watched));
        let text = String::from_utf8_lossy(&output.stdout);
        let [throughput, p50_ms, p99_ms] = parse(&text).ok_or_else(|| RedisBenchmarkError::Failed {
            output: format!("{text}{}", String::from_utf8_lossy(&output.stderr)),
        })?;
        let cpu: f64 = usage.processes.iter().map(|used| (used.user + used.system).as_secs_f64()).sum();
        Ok(RedisBenchmarkRun {
            throughput,
            p50_us: p50_ms * 1e3,
            p99_us: p99_ms * 1e3,
            server_cpu_us_per_operation: cpu * 1e6 / self.requests as f64,
        })
    }
}

/// Throughput, median and 99th percentile (milliseconds) of the one row of the table.
fn parse(csv: &str) -> Option<[f64; 3]> {
    let mut lines = csv.lines().filter(|line| line.starts_with('"'));
    let row = |line: &str| -> Vec<String> {
        line.split(',').map(|cell| cell.trim_matches('"').to_owned()).collect()
    };
    let (header, figures) = (row(lines.next()?), row(lines.next()?));
    let column = |name: &str| -> Option<f64> {
        let at = header.iter().position(|cell| cell == name)?;
        figures.get(at)?.parse().ok()
    };
    Some([column("rps")?, column("p50_latency_ms")?, column("p99_latency_ms")?])
}

/// The figures of paired runs, as a comparison's metrics.
pub fn metrics(pairs: &[(RedisBenchmarkRun, RedisBenchmarkRun)]) -> Vec<Metric> {
    type Figure = fn(&RedisBenchmarkRun) -> f64;
    let figures: [(&str, bool, Figure); 4] = [
        ("throughput, op/s", false, |run| run.throughput),
        ("server CPU, µs/op", true, |run| run.server_cpu_us_per_operation),
        ("p50, µs", true, |run| run.p50_us),
        ("p99, µs", true, |run| run.p99_us),
    ];
    let metric = |(name, less_is_better, figure): (&str, bool, Figure)| {
        let paired: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (figure(a), figure(b))).collect();
        Metric::of(name.to_owned(), less_is_better, &paired)
    };
    let cpu = pairs.iter().map(|(a, b)| (a.server_cpu_us_per_operation, b.server_cpu_us_per_operation));
    let best = Metric::best("server CPU, best run, µs/op".to_owned(), &cpu.collect::<Vec<_>>());
    figures.into_iter().filter_map(metric).chain(best).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_by_its_column_names() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                   \"p99_latency_ms\",\"max_latency_ms\"\n\
                   \"SET\",\"48780.49\",\"0.543\",\"0.176\",\"0.519\",\"0.743\",\"1.103\",\"2.399\"\n";
        assert_eq!(parse(csv), Some([48_780.49, 0.519, 1.103]));
        assert_eq!(parse("Could not connect"), None);
        assert_eq!(parse("\"test\",\"rps\"\n\"SET\",\"1\"\n"), None);
    }
}
