//! A node fetches a table from a source, beside reading the same bytes raw from there and writing as many raw.
//!
//! ```text
//!   each round, a table that nobody has seen:  put there ─ read raw ─ written raw, synced ─ fetched by a node
//! ```
//!
//! Raw reading is another program's: curl for web servers and S3, whoever is named for the rest. Its client shares nothing with
//! ours. A fetch is timed by `artifact stage`, which looks ten times a second.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::compare::Contestant;
use crate::peers::PeerOptions;
use crate::report::median;

use super::operator::{Operator, raw_write};
use super::script::system;
use super::table::{TABLE, build_numbered, files_of};
use super::{ScenarioError, ScenarioReport, TontineArgs, native_addresses};

/// Files that are read raw at a time, as a node fetches them.
const READ_AT_ONCE: usize = 4;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tontine bench source http://127.0.0.1:8080 --to /srv/tables
  tontine bench source s3://tables/bench
  tontine bench source hdfs://127.0.0.1:8020/bench --read 'java -cp target/check-servers/lib/*:target/check-servers/classes Read'

Credentials come from the environment (docs/operating/sources.md). Tables stay there; remove them afterwards.")]
pub struct SourceScenario {
    /// The node.
    #[command(flatten)]
    pub tontine: TontineArgs,
    /// Where the node fetches from: a directory of a source, as a URL.
    pub url: String,
    /// Where tables are put to be read there, if it is not the URL: the directory that a web server serves.
    #[arg(long, value_name = "PLACE")]
    pub to: Option<String>,
    /// A command for the shell that reads raw. It gets the URLs of all files on its standard input, one on a line. If it
    /// prints a number, that is how many seconds reading took, and otherwise all of its time counts.
    #[arg(long, value_name = "COMMAND")]
    pub read: Option<String>,
    /// Records of a table, of a kilobyte each.
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    pub table_records: u64,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99), value_name = "COUNT")]
    pub rounds: u32,
}

/// Megabytes a second, in one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    put: f64,
    read: f64,
    written: f64,
    fetched: f64,
}

impl Round {
    /// What the fetch is of the slower of reading and writing.
    fn share(self) -> f64 {
        self.fetched / self.read.min(self.written)
    }
}

impl SourceScenario {
    /// Starts a node, and goes through all rounds.
    ///
    /// # Errors
    /// When a table cannot be built, put or read, the node cannot be started, or does not fetch.
    pub fn run(&self) -> Result<ScenarioReport, ScenarioError> {
        let question = format!(
            "A node fetches a table of {} records of a kilobyte from {}: how fast, beside reading and writing the same \
             bytes raw?",
            self.table_records, self.url
        );
        let mut report = ScenarioReport::new("source", &question);
        let parent = self.tontine.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let tables = tempfile::tempdir_in(parent).map_err(system)?;
        let arguments = format!(
            "dev --nodes 1 --data-dir {{dir}} --port-base {{base}} --fetch-ceiling 100000000000 \
             --allow-sources {}",
            self.url
        );
        let options = self.tontine.options(&arguments, 1)?;
        let mut operator = Operator { program: options.program.clone(), connect: String::new() };
        let started = Contestant::start("tontine", &PeerOptions::Tontine(options))?;
        operator.connect = native_addresses(&started, 1)?.join(",");
        operator.run(&["store", "create", TABLE, "--read-only", "--consistency", "1,1,1"])?;
        // Tables of an earlier run may be there.
        let first = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let first = first.map_or(1, |since| since.as_secs());
        let rounds =
            (0..u64::from(self.rounds)).map(|round| self.round(&operator, tables.path(), first + round));
        let rounds = rounds.collect::<Result<Vec<_>, _>>()?;
        judge(&mut report, &rounds);
        Ok(report)
    }

    fn round(&self, operator: &Operator, folder: &Path, number: u64) -> Result<Round, ScenarioError> {
        let table = build_numbered(operator, folder, number, self.table_records)?;
        let name = format!("table-{number}");
        let there = format!("{}/{name}", self.to.as_ref().unwrap_or(&self.url));
        let source = format!("{}/{name}", self.url);
        let began = Instant::now();
        operator.run_alone(&["artifact", "copy", &table, &there])?;
        let put = began.elapsed().as_secs_f64();
        let (files, bytes) = files_of(&table)?;
        let urls: Vec<String> = files.iter().map(|file| format!("{source}/chunks/{file}")).collect();
        let read = self.read_raw(&urls)?;
        let written = raw_write(self.tontine.scratch.as_deref(), bytes).map_err(system)?;
        let began = Instant::now();
        operator.run(&["artifact", "stage", &source])?;
        let fetched = began.elapsed().as_secs_f64();
        operator.run(&["artifact", "abort", TABLE, &number.to_string()])?;
        std::fs::remove_dir_all(&table).map_err(system)?;
        let rate = |seconds: f64| bytes / 1e6 / seconds;
        Ok(Round { put: rate(put), read: rate(read), written: rate(written), fetched: rate(fetched) })
    }

    /// Seconds that it takes another program to read all files.
    fn read_raw(&self, urls: &[String]) -> Result<f64, ScenarioError> {
        let (command, input) = match &self.read {
            Some(command) => (command.clone(), urls.join("\n") + "\n"),
            None => {
                let parallel = READ_AT_ONCE.to_string();
                (format!("curl --config - --parallel --parallel-max {parallel}"), curl_config(urls)?)
            }
        };
        let failed = |reason: String| ScenarioError::Command { command: command.clone(), reason };
        let io = |error: std::io::Error| failed(error.to_string());
        let began = Instant::now();
        let mut reader = Command::new("sh");
        let reader =
            reader.args(["-c", &command]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut reader = reader.spawn().map_err(io)?;
        let written = reader.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
        let ran = reader.wait_with_output().map_err(io)?;
        let seconds = began.elapsed().as_secs_f64();
        if !ran.status.success() {
            return Err(failed(String::from_utf8_lossy(&ran.stderr).trim().to_owned()));
        }
        written.map_err(io)?;
        let said = String::from_utf8_lossy(&ran.stdout).trim().parse();
        Ok(said.unwrap_or(seconds))
    }
}

/// What curl is to read, with the key pair of the environment for S3: not on a command line, which everybody may see.
fn curl_config(urls: &[String]) -> Result<String, ScenarioError> {
    let variable = |name: &str| {
        let absent = |_| ScenarioError::NotAsked(format!("{name} is not set, which S3 needs"));
        std::env::var(name).map_err(absent)
    };
    let mut config = "no-progress-meter\nfail\n".to_owned();
    for url in urls {
        let place = match url.split_once("://") {
            Some(("http" | "https", _)) => url.clone(),
            Some(("s3", path)) => {
                let region = std::env::var("AWS_REGION").unwrap_or_else(|_| "us-east-1".to_owned());
                let pair =
                    format!("{}:{}", variable("AWS_ACCESS_KEY_ID")?, variable("AWS_SECRET_ACCESS_KEY")?);
                if !config.contains("aws-sigv4") {
                    config += &format!(
                        "aws-sigv4 = \"aws:amz:{region}:s3\"\nuser = \"{pair}\"\nheader = \"x-amz-content-sha256: UNSIGNED-PAYLOAD\"\n"
                    );
                }
                format!("{}/{path}", variable("AWS_ENDPOINT")?.trim_end_matches('/'))
            }
            _ => {
                let what = format!("curl does not read {url}; name what does with --read");
                return Err(ScenarioError::NotAsked(what));
            }
        };
        config += &format!("url = \"{place}\"\noutput = \"/dev/null\"\n");
    }
    Ok(config)
}

/// Puts what was seen into figures and words.
fn judge(report: &mut ScenarioReport, rounds: &[Round]) {
    let over = |figure: fn(Round) -> f64| median(rounds.iter().map(|round| figure(*round)));
    let figures = [
        ("put_mb_per_second", over(|round| round.put)),
        ("read_raw_mb_per_second", over(|round| round.read)),
        ("written_raw_mb_per_second", over(|round| round.written)),
        ("fetched_mb_per_second", over(|round| round.fetched)),
        ("fetched_of_the_lower", over(Round::share)),
    ];
    for round in rounds {
        report.notes.push(format!(
            "MB/s: {:.0} put there, {:.0} read raw, {:.0} written raw and synced, {:.0} fetched: {:.2} of the lower.",
            round.put,
            round.read,
            round.written,
            round.fetched,
            round.share(),
        ));
    }
    report.figures.extend(figures.map(|(name, figure)| (name.to_owned(), figure)));
}
