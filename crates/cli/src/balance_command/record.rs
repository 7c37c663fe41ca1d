//! `tontine balance record`: writes what all nodes say of their loads to a file, look after look.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use client::Client;
use model::balance::Settings;
use model::{Cluster, Generation};
use protocol::rebalance::replay::{NodeLook, ReplayLook};
use protocol::report::Parts;
use serde_json::json;

use super::trace::{Head, TraceWriter};
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::text::{Format, count, size};
use crate::{clocks, durations};

/// So often it is said how far it is.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Records loads.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Writes one line of JSON for each look, and each at once. Ctrl-C ends it, and what was written is whole.
A file that is there is not replaced. A look takes up to 150 KB for each node.")]
pub struct RecordArguments {
    /// The file to write, which must not exist.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Time between two looks, 1s to 10s. The headmaster looks every 2s.
    #[arg(long, default_value = "2s", value_name = "DURATION",
        value_parser = durations::within(Duration::from_secs(1), Duration::from_secs(10)))]
    pub every: Duration,
    /// How long to record, 1s to 7d; until Ctrl-C without it.
    #[arg(long = "for", value_name = "DURATION",
        value_parser = durations::within(Duration::from_secs(1), Duration::from_secs(7 * 24 * 3600)))]
    pub lasts: Option<Duration>,
}

/// `tontine balance record`.
pub(super) async fn run(shared: CliContext, arguments: RecordArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    // A cluster without a headmaster, or with a policy that cannot be read, is recorded as well.
    let office = client.office().await.ok().and_then(|(_, office)| office.balancing);
    let settings: Settings =
        office.and_then(|balancing| balancing.policy).map(|policy| policy.settings).unwrap_or_default();
    let head = Head::new(client.cluster().name.clone(), clocks::now_ms().unsigned_abs(), settings);
    let mut trace = TraceWriter::create(&arguments.file, &head)?;
    if shared.format() == Format::Text {
        let until = arguments
            .lasts
            .map_or_else(|| "until Ctrl-C".to_owned(), |lasts| format!("for {}", durations::shown(lasts)));
        say!("recording loads every {} {until}", durations::shown(arguments.every));
    }
    let looks = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => None,
        looks = record(&client, &arguments, &mut trace) => Some(looks?),
    };
    let file = arguments.file.display().to_string();
    let report = json!({ "file": file, "bytes": trace.bytes, "interrupted": looks.is_none() });
    print(shared.format(), &report, || {
        let how = looks.map_or_else(|| "interrupted".to_owned(), |looks| count(looks, "look"));
        format!("{how}, {}; `{} balance replay {file} --policy even` plays it", size(trace.bytes), program())
    });
    Ok(ExitCode::SUCCESS)
}

/// Looks again and again; how often it did.
async fn record(
    client: &Client,
    arguments: &RecordArguments,
    trace: &mut TraceWriter,
) -> Result<u64, CliError> {
    let began = Instant::now();
    let mut ticks = tokio::time::interval(arguments.every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut written, mut spoken, mut looks) = (None, began, 0);
    let looks_max = arguments.lasts.map(|lasts| (lasts.as_millis() / arguments.every.as_millis()) as u64 + 1);
    loop {
        ticks.tick().await;
        // Looks may have been late.
        if arguments.lasts.is_some_and(|lasts| began.elapsed() > lasts + arguments.every / 2) {
            return Ok(looks);
        }
        let (nodes, newest) = look(client).await;
        // A node knows a newer document than the client does.
        if client.cluster().generation < newest {
            let _ = client.refresh().await;
        }
        let document = client.cluster();
        let is_new = written != Some(document.generation);
        written = Some(document.generation);
        let document = is_new.then(|| Cluster::clone(&document));
        let after_ms = began.elapsed().as_millis() as u64;
        trace.line(&ReplayLook { after_ms, document, nodes })?;
        looks += 1;
        if looks_max == Some(looks) {
            return Ok(looks);
        }
        if spoken.elapsed() >= SAID_EVERY {
            spoken = Instant::now();
            let passed = Duration::from_secs(began.elapsed().as_secs());
            say!("{}, {} after {}", count(looks, "look"), size(trace.bytes), durations::shown(passed));
        }
    }
}

/// Asks all nodes at once; and the newest generation of which one told.
async fn look(client: &Client) -> (Vec<NodeLook>, Generation) {
    let cluster = client.cluster();
    let asks =
        cluster.nodes.iter().map(|node| async move { (node.id, client.report(node.id, Parts::LOAD).await) });
    let mut newest = cluster.generation;
    let mut nodes = Vec::new();
    for (node, answer) in futures_util::future::join_all(asks).await {
        nodes.push(match answer {
            Ok(report) => {
                newest = newest.max(report.generation);
                let error = report.load.is_none().then(|| "it does not report its load".to_owned());
                NodeLook { node, incarnation: report.incarnation, load: report.load, error }
            }
            Err(error) => NodeLook { node, incarnation: 0, load: None, error: Some(error.to_string()) },
        });
    }
    (nodes, newest)
}
