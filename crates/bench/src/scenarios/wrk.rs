//! `wrk`, a stock load generator of HTTP, unmodified, with the server's CPU read beside it.

use std::io::{self, Write};
use std::process::Command;

use crate::processes::Watched;

use super::tools::{ToolRun, measured};

/// What is sent, in the language of `wrk`: keys are drawn alike in each run.
const SCRIPT: &str = r#"
local path, records, body = "{path}", {records}, nil
if "{method}" == "PUT" then body = string.rep("x", {bytes}) end
function request()
  local target = path
  if records > 0 then target = string.format("%skey:%012d", path, math.random(0, records - 1)) end
  return wrk.format("{method}", target, nil, body)
end
function done(summary, latency)
  local errors = summary.errors
  print(string.format("figures %d %d %d %d %d", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"#;

/// One invocation.
#[derive(Clone, Debug)]
pub struct Wrk<'a> {
    /// `http://HOST:PORT` or `https://HOST:PORT`. No certificate is checked.
    pub origin: &'a str,
    /// What comes before the key, or the whole path where `records` is 0.
    pub path: &'a str,
    /// GET or PUT.
    pub method: &'a str,
    /// Lines of each head, such as `Authorization: Bearer …`.
    pub headers: &'a [String],
    /// Connections, each with one request at a time.
    pub connections: usize,
    /// Seconds.
    pub seconds: u64,
    /// Keys are drawn from this many.
    pub records: u64,
    /// Bytes of a value that is put.
    pub value_length: usize,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum WrkError {
    /// The program is missing.
    #[error("cannot start wrk: {0}; install it with: apt-get install wrk")]
    NotStarted(io::Error),
    /// Its script cannot be kept.
    #[error("the script of wrk cannot be written: {0}")]
    NoScript(io::Error),
    /// It failed, or printed something else than its figures.
    #[error("wrk failed: {output}")]
    Failed {
        /// What it printed.
        output: String,
    },
    /// Requests failed, or were refused.
    #[error("{failed} of {requests} requests to {origin} failed or were refused")]
    Refused {
        /// As many.
        failed: u64,
        /// Of this many.
        requests: u64,
        /// Where.
        origin: String,
    },
}

impl Wrk<'_> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// When the program is missing, or a request is refused.
    pub fn run(&self, watched: &[Watched]) -> Result<ToolRun, WrkError> {
        let mut script = tempfile::NamedTempFile::new().map_err(WrkError::NoScript)?;
        script.write_all(self.script().as_bytes()).map_err(WrkError::NoScript)?;
        let mut command = Command::new("wrk");
        command
            .args(["-t", "1", "-c", &self.connections.to_string()])
            .args(["-d", &format!("{}s", self.seconds), "-s"])
            .arg(script.path());
        self.headers.iter().for_each(|line| {
            command.args(["-H", line]);
        });
        let (output, cpu) = measured(command.arg(self.origin), watched).map_err(WrkError::NotStarted)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let Some([requests, micros, p50, p99, failed]) = parse(&text) else {
            let output = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
            return Err(WrkError::Failed { output });
        };
        if failed > 0 || requests == 0 {
            return Err(WrkError::Refused { failed, requests, origin: self.origin.to_owned() });
        }
        Ok(ToolRun {
            throughput: requests as f64 * 1e6 / micros as f64,
            p50_us: p50 as f64,
            p99_us: p99 as f64,
            server_cpu_us_per_operation: cpu.as_secs_f64() * 1e6 / requests as f64,
        })
    }

    fn script(&self) -> String {
        SCRIPT
            .replace("{path}", self.path)
            .replace("{records}", &self.records.to_string())
            .replace("{method}", self.method)
            .replace("{bytes}", &self.value_length.to_string())
    }
}

/// Requests, microseconds of the run, median and 99th percentile in microseconds, and failed requests.
fn parse(text: &str) -> Option<[u64; 5]> {
    let line = text.lines().find_map(|line| line.strip_prefix("figures "))?;
    let figures: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    figures.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_line_of_the_script() {
        let text = "Running 2s test @ http://127.0.0.1:1\nfigures 100 2000000 35 90 0\n";
        assert_eq!(parse(text), Some([100, 2_000_000, 35, 90, 0]));
        assert_eq!(parse("unable to connect to 127.0.0.1:1"), None);
    }
}
