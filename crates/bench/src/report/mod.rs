//! Reports: what a run showed, as stable data, as text, as Markdown, and beside another run.
//!
//! The JSON fields are a contract ([`FORMAT`]): fields are added, never renamed. Every field says its unit.
//! **Never** print a figure without what it was measured against: context and outcomes belong to a report.

mod comparison;
mod markdown;
mod text;

use std::collections::BTreeMap;

use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Serialize};

use crate::driver::{DriverOptions, Measurement, Phase, Tally};
use crate::processes::{Context, ProcessUsage};
use crate::workload::{OperationKind, WorkloadOptions};

pub use comparison::{Comparison, Metric, median};
pub use markdown::{comparison_markdown, context_markdown, runs_markdown};
pub(crate) use text::cpu;
pub use text::{comparison_text, run_text};

/// The version of the JSON format.
pub const FORMAT: u32 = 2;

/// What is worth saying of one histogram; all in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Arithmetic mean.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// 90 % are not above.
    pub p90: f64,
    /// 95 % are not above.
    pub p95: f64,
    /// 99 % are not above.
    pub p99: f64,
    /// 99.9 % are not above.
    pub p999: f64,
    /// 99.99 % are not above.
    pub p9999: f64,
    /// The greatest.
    pub max: f64,
}

impl Percentiles {
    /// Reads a histogram whose values, divided by `per_us`, are microseconds.
    pub fn of<C: Counter>(histogram: &Histogram<C>, per_us: f64) -> Self {
        if histogram.is_empty() {
            return Percentiles::default();
        }
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / per_us;
        Percentiles {
            mean: histogram.mean() / per_us,
            min: histogram.min() as f64 / per_us,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: histogram.max() as f64 / per_us,
        }
    }
}

/// Counts of outcomes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcomes {
    /// Operations that went well.
    pub done: u64,
    /// Reads that found no record where the load had put one (or where a deletion took it).
    pub missing: u64,
    /// Reads of values that were never written.
    pub corrupt: u64,
    /// Operations certainly without effect, by reason.
    pub failed: BTreeMap<String, u64>,
    /// Writes that may or may not have happened, by reason.
    pub indeterminate: BTreeMap<String, u64>,
    /// Open loop: operations that were due before the end and never started. If this is not zero, the target
    /// did not keep up with the rate, and the latencies are better than the truth.
    pub unstarted: u64,
}

impl Outcomes {
    /// Whether every operation went well and was started.
    pub fn clean(&self) -> bool {
        self.missing == 0
            && self.corrupt == 0
            && self.unstarted == 0
            && self.failed.is_empty()
            && self.indeterminate.is_empty()
    }
}

impl From<Tally> for Outcomes {
    fn from(tally: Tally) -> Self {
        let Tally { done, missing, corrupt, failed, indeterminate, unstarted } = tally;
        Outcomes { done, missing, corrupt, failed, indeterminate, unstarted }
    }
}

/// One kind of operation. The parts of a read-modify-write appear under their own kinds as well, as in YCSB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindReport {
    /// Operations that were answered.
    pub count: u64,
    /// From the intended start to the answer.
    pub latency_us: Percentiles,
    /// Open loop: from the actual start to the answer.
    pub service_us: Option<Percentiles>,
}

/// What one process used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// What it is.
    pub name: String,
    /// Its number.
    pub pid: u32,
    /// CPU time, in microseconds for each operation.
    pub cpu_us_per_operation: f64,
    /// Of which in user mode.
    pub user_us_per_operation: f64,
    /// Of which in the kernel.
    pub system_us_per_operation: f64,
    /// Processors it kept busy, on average.
    pub cores: f64,
    /// Resident memory at the end, in bytes.
    pub rss_bytes: u64,
    /// The most resident memory since it started, in bytes.
    pub rss_peak_bytes: u64,
    /// Threads at the end.
    pub threads: u64,
    /// Whether it was there from beginning to end; if not, its figures are worthless.
    pub alive: bool,
}

/// One second of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecondReport {
    /// Seconds since the measured part began.
    pub second: u64,
    /// Operations that ended well in it.
    pub operations: u64,
    /// Operations that did not.
    pub errors: u64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// The slowest, in microseconds.
    pub max_us: f64,
}

/// One phase of one benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// [`FORMAT`].
    pub format: u32,
    /// What the run is called.
    pub label: String,
    /// Protocol and address.
    pub target: String,
    /// What the target says it is, when known.
    pub server: Option<String>,
    /// Loading or running.
    pub phase: Phase,
    /// What was run, in words.
    pub description: String,
    /// What was run, exactly.
    pub workload: serde_json::Value,
    /// How it was driven, exactly.
    pub driver: serde_json::Value,
    /// Where and when.
    pub context: Context,
    /// Length of the measured part, in seconds.
    pub elapsed_s: f64,
    /// Operations carried out in it, whatever came of them. A read-modify-write is one.
    pub operations: u64,
    /// Operations that went well, per second.
    pub throughput: f64,
    /// What came of the operations.
    pub outcomes: Outcomes,
    /// Latencies by kind of operation.
    pub kinds: BTreeMap<OperationKind, KindReport>,
    /// Open loop: how much later than intended the client started operations, for whatever reason.
    pub lag_us: Option<Percentiles>,
    /// CPU of all server processes, in microseconds for each operation; `None` when none was watched.
    pub server_cpu_us_per_operation: Option<f64>,
    /// The server processes.
    pub processes: Vec<ProcessReport>,
    /// The benchmark itself.
    pub client: ProcessReport,
    /// Processors kept busy by anything else on the machine: the noise.
    pub other_cores: f64,
    /// Second by second.
    pub series: Vec<SecondReport>,
}

/// What a report needs to know beside the measurement.
#[derive(Clone, Debug)]
pub struct Heading<'a> {
    /// What the run is called.
    pub label: &'a str,
    /// Protocol and address.
    pub target: String,
    /// What the target says it is.
    pub server: Option<String>,
    /// Loading or running.
    pub phase: Phase,
    /// What was run.
    pub workload: &'a WorkloadOptions,
    /// How.
    pub driver: &'a DriverOptions,
}

impl RunReport {
    /// Makes the report of a measurement.
    pub fn new(heading: Heading<'_>, measurement: Measurement) -> Self {
        let Measurement { recorder, usage, context } = measurement;
        let elapsed_s = recorder.elapsed().as_secs_f64().max(1e-9);
        let operations = recorder.tally.total();
        let process = |used: &ProcessUsage| process_report(used, operations, elapsed_s);
        let mut processes: Vec<ProcessReport> = usage.processes.iter().map(process).collect();
        let client = processes.pop().expect("the driver watches its own process, last");
        let open_loop = recorder.open_loop;
        let kinds = recorder.kinds.iter().map(|(kind, record)| {
            let service_us = open_loop.then(|| Percentiles::of(&record.service, 1e3));
            let latency_us = Percentiles::of(&record.latency, 1e3);
            (*kind, KindReport { count: record.latency.len(), latency_us, service_us })
        });
        let series = recorder.seconds.iter().zip(0..).map(|(second, number)| {
            let at = Percentiles::of(&second.latency_us, 1.0);
            SecondReport {
                second: number,
                operations: second.operations,
                errors: second.errors,
                p50_us: at.p50,
                p99_us: at.p99,
                max_us: at.max,
            }
        });
        RunReport {
            format: FORMAT,
            label: heading.label.to_owned(),
            target: heading.target,
            server: heading.server,
            phase: heading.phase,
            description: heading.workload.describe(),
            workload: serde_json::to_value(heading.workload).expect("plain data"),
            driver: serde_json::to_value(heading.driver).expect("plain data"),
            context,
            elapsed_s,
            operations,
            throughput: recorder.tally.done as f64 / elapsed_s,
            kinds: kinds.collect(),
            lag_us: open_loop.then(|| Percentiles::of(&recorder.lag, 1e3)),
            server_cpu_us_per_operation: (!processes.is_empty())
                .then(|| processes.iter().map(|process| process.cpu_us_per_operation).sum()),
            processes,
            client,
            other_cores: usage.others.as_secs_f64() / elapsed_s,
            series: series.collect(),
            outcomes: recorder.tally.into(),
        }
    }

    /// One line on how the run was driven.
    pub fn describe_driver(&self) -> String {
        let number = |name: &str| self.driver.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let text = |name: &str| self.driver.get(name).and_then(serde_json::Value::as_str);
        let rate = self.driver.get("rate").and_then(serde_json::Value::as_f64);
        let rate =
            rate.map(|rate| format!("at {rate:.0} op/s")).or(text("schedule").map(|by| format!("by {by}")));
        let pace = match rate {
            Some(rate) if self.phase == Phase::Run => {
                format!("open loop {rate} ({} arrivals)", text("arrivals").unwrap_or("even"))
            }
            _ => "closed loop".to_owned(),
        };
        format!(
            "{} connections, pipeline {}, {} client thread(s), {pace}, seed {}",
            number("connections"),
            number("depth"),
            number("threads"),
            number("seed")
        )
    }
}

fn process_report(used: &ProcessUsage, operations: u64, elapsed_s: f64) -> ProcessReport {
    let per_operation = |seconds: f64| if operations == 0 { 0.0 } else { seconds * 1e6 / operations as f64 };
    let (user, system) = (used.user.as_secs_f64(), used.system.as_secs_f64());
    ProcessReport {
        name: used.process.name.clone(),
        pid: used.process.pid,
        cpu_us_per_operation: per_operation(user + system),
        user_us_per_operation: per_operation(user),
        system_us_per_operation: per_operation(system),
        cores: (user + system) / elapsed_s,
        rss_bytes: used.rss_bytes,
        rss_peak_bytes: used.rss_peak_bytes,
        threads: used.threads,
        alive: used.alive,
    }
}

#[cfg(test)]
pub(crate) mod samples {
    //! Made-up reports for tests of what is printed.

    use std::time::{Duration, Instant};

    use super::*;
    use crate::driver::Recorder;
    use crate::processes::{Usage, Watched};
    use crate::workload::Preset;

    /// A run of two reads of 100 and 300 µs within a second, with the given server CPU.
    pub(crate) fn run(label: &str, server_cpu_ms: u64, slow_us: u64) -> RunReport {
        let from = Instant::now();
        let mut recorder = Recorder::new(from, false);
        for micros in [100, slow_us] {
            let times = crate::driver::Times {
                intended: from + Duration::from_micros(999_000),
                started: from + Duration::from_micros(999_000),
                ended: from + Duration::from_micros(999_000 + micros),
            };
            recorder.operation(OperationKind::Read, times, crate::driver::OperationVerdict::Done);
        }
        recorder.last = from + Duration::from_secs(1);
        let used = |name: &str, cpu_ms: u64| ProcessUsage {
            process: Watched::new(1, name),
            user: Duration::from_millis(cpu_ms),
            system: Duration::ZERO,
            rss_bytes: 10 << 20,
            rss_peak_bytes: 12 << 20,
            threads: 1,
            alive: true,
        };
        let usage = Usage {
            processes: vec![used("server", server_cpu_ms), used("client", 5)],
            others: Duration::from_millis(250),
        };
        let context = Context {
            cores: 2,
            processor: "a processor".to_owned(),
            memory_bytes: 8 << 30,
            kernel: "6.0".to_owned(),
            load_average: 0.5,
            started_at: 0,
            version: "0.1.0".to_owned(),
            debug_build: false,
        };
        let heading = Heading {
            label,
            target: "resp://somewhere".to_owned(),
            server: Some("a server".to_owned()),
            phase: Phase::Run,
            workload: &WorkloadOptions::preset(Preset::C, 10),
            driver: &DriverOptions::default(),
        };
        RunReport::new(heading, Measurement { recorder, usage, context })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_counts_and_times() {
        let report = samples::run("one", 20, 300);
        assert_eq!(report.operations, 2);
        assert!((report.throughput - 2.0).abs() < 1e-9);
        assert!((report.server_cpu_us_per_operation.unwrap() - 10_000.0).abs() < 1e-6);
        assert!((report.client.cpu_us_per_operation - 2_500.0).abs() < 1e-6);
        assert!((report.other_cores - 0.25).abs() < 1e-9);
        let read = report.kinds[&OperationKind::Read].latency_us;
        assert!((read.p50 - 100.0).abs() < 1.0 && (read.p99 - 300.0).abs() < 1.0, "{read:?}");
        assert!(report.outcomes.clean());
    }

    #[test]
    fn the_json_fields_are_a_contract() {
        let report = samples::run("one", 20, 300);
        let json = serde_json::to_value(&report).unwrap();
        let names: Vec<&String> = json.as_object().unwrap().keys().collect();
        expect_test::expect![[r#"["client", "context", "description", "driver", "elapsed_s", "format", "kinds", "label", "lag_us", "operations", "other_cores", "outcomes", "phase", "processes", "series", "server", "server_cpu_us_per_operation", "target", "throughput", "workload"]"#]]
        .assert_eq(&format!("{names:?}"));
        assert_eq!(json["kinds"]["read"]["count"], 2);
        let back: RunReport = serde_json::from_value(json).unwrap();
        assert_eq!(back, report);
    }
}
