//! The stock load generator of Redis, unmodified, with the server's CPU read beside it.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::processes::Watched;

use super::tools::{ToolRun, measured};

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
    /// With TLS, and this authority's certificate.
    pub authority: Option<&'a Path>,
    /// As a user with this secret.
    pub user: Option<(&'a str, &'a str)>,
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
    pub fn run(&self, watched: &[Watched]) -> Result<ToolRun, RedisBenchmarkError> {
        let (host, port) = self.address.rsplit_once(':').unwrap_or((self.address, "6379"));
        let mut command = Command::new("redis-benchmark");
        command
            .args(["-h", host, "-p", port, "-t", self.test, "--csv"])
            .args(["-c", &self.connections.to_string(), "-P", &self.depth.to_string()])
            .args(["-n", &self.requests.to_string(), "-r", &self.records.to_string()])
            .args(["-d", &self.value_length.to_string()]);
        if let Some(authority) = self.authority {
            command.arg("--tls").arg("--cacert").arg(authority);
        }
        if let Some((user, secret)) = self.user {
            command.args(["--user", user, "-a", secret]);
        }
        let (output, cpu) = measured(&mut command, watched).map_err(RedisBenchmarkError::NotStarted)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let [throughput, p50_ms, p99_ms] = parse(&text).ok_or_else(|| RedisBenchmarkError::Failed {
            output: format!("{text}{}", String::from_utf8_lossy(&output.stderr)),
        })?;
        Ok(ToolRun {
            throughput,
            p50_us: p50_ms * 1e3,
            p99_us: p99_ms * 1e3,
            server_cpu_us_per_operation: cpu.as_secs_f64() * 1e6 / self.requests as f64,
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
