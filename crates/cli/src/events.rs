//! `tontine events` and `tontine metrics`: what happened to the nodes, and their numbers.

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use client::Client;
use model::NodeId;
use node::events::Event;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use wire::messages::EventsGet;

use crate::context::CliContext;
use crate::dates::utc;
use crate::failure::CliError;
use crate::output::print;
use crate::text::{Format, count};

/// Events of one page.
const PAGE: u32 = 1_000;
/// How long a node is asked to wait for its next event.
const WAIT_MS: u32 = 10_000;
/// Pause before a node that did not answer is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// Events that may wait to be printed.
const WAITING_MAX: usize = 1_000;

/// Shows what happened to the nodes, oldest first.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Each node keeps its last 4096 events, with the time on its clock. -o json prints one document; with --follow, it \
prints one per event.")]
pub struct EventsArguments {
    /// Keep printing new events until Ctrl-C.
    #[arg(long, short = 'f')]
    pub follow: bool,
    /// Show only events of this node.
    #[arg(long, value_name = "NUMBER")]
    pub from: Option<u32>,
    /// Show only events of this kind.
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(Event::KINDS))]
    pub kind: Option<String>,
}

/// Prints the numbers of one node in the text format of Prometheus.
#[derive(Clone, Debug, clap::Args)]
pub struct MetricsArguments {
    /// The node; by default, the first one that answers.
    #[arg(long, value_name = "NUMBER")]
    pub from: Option<u32>,
}

/// Where reading a node's events goes on.
#[derive(Clone, Copy, Default)]
struct EventCursor {
    run: u64,
    after: u64,
}

fn chosen(client: &Client, from: Option<u32>) -> Result<Vec<NodeId>, CliError> {
    let cluster = client.cluster();
    let nodes = cluster.nodes.iter().map(|node| node.id);
    let nodes: Vec<NodeId> = nodes.filter(|node| from.is_none_or(|from| from == node.0)).collect();
    match nodes.is_empty() {
        true => Err(CliError::Other(format!("the cluster has no node {}", from.unwrap_or_default()))),
        false => Ok(nodes),
    }
}

/// The next page of a node's events, each with its node's id.
async fn page(
    client: &Client,
    node: NodeId,
    place: &mut EventCursor,
    wait_ms: u32,
) -> Result<Vec<Json>, String> {
    let get = EventsGet { run: place.run, after: place.after, count_max: PAGE, wait_ms };
    let answer = client.events(node, get).await.map_err(|error| error.to_string())?;
    let page: Json = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
    let run = page["run"].as_u64().unwrap_or(0);
    let expected = if run == place.run { place.after + 1 } else { 1 };
    *place = EventCursor { run, after: page["next"].as_u64().unwrap_or(0) };
    let mut events = page["events"].as_array().cloned().unwrap_or_default();
    if let Some(first) = events.first().and_then(|event| event["sequence"].as_u64())
        && first > expected
    {
        say!("{node} no longer has {} before these", count(first - expected, "event"));
    }
    events.iter_mut().for_each(|event| event["node"] = json!(node));
    Ok(events)
}

/// `tontine events`.
pub(crate) async fn events(shared: CliContext, arguments: EventsArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let wanted = |event: &Json| arguments.kind.as_ref().is_none_or(|kind| event["kind"] == kind.as_str());
    let nodes = chosen(&client, arguments.from)?;
    let (mut told, mut silent) = (Vec::new(), Vec::new());
    let mut places = Vec::new();
    for node in nodes {
        let mut place = EventCursor::default();
        loop {
            match page(&client, node, &mut place, 0).await {
                Ok(events) if events.is_empty() => break,
                Ok(events) => told.extend(events.into_iter().filter(wanted)),
                Err(reason) => {
                    say!("{node} does not answer: {reason}");
                    silent.push(node);
                    break;
                }
            }
        }
        places.push((node, place));
    }
    told.sort_by_key(|event| event["at_ms"].as_u64());
    if !arguments.follow {
        let text = || told.iter().map(line).collect::<Vec<_>>().join("\n");
        print(shared.format(), &json!({ "events": told, "silent": silent }), text);
        return Ok(if silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) });
    }
    told.iter().for_each(|event| show(shared.format(), event));
    let (sender, mut receiver) = mpsc::channel(WAITING_MAX);
    for (node, place) in places {
        tokio::spawn(follow(client.clone(), node, place, sender.clone()));
    }
    drop(sender);
    crate::output::check()?;
    while let Some(event) = receiver.recv().await {
        if wanted(&event) {
            show(shared.format(), &event);
            crate::output::check()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Passes a node's events on until nobody takes them.
async fn follow(client: Client, node: NodeId, mut place: EventCursor, sender: mpsc::Sender<Json>) {
    loop {
        match page(&client, node, &mut place, WAIT_MS).await {
            Ok(events) => {
                for event in events {
                    if sender.send(event).await.is_err() {
                        return;
                    }
                }
            }
            // It is down, or restarts; what it tells then begins anew.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

fn show(format: Format, event: &Json) {
    print(format, event, || line(event));
}

fn line(event: &Json) -> String {
    let text = |field: &str| event[field].as_str().unwrap_or("-").to_owned();
    let node = event["node"].as_u64().unwrap_or(0);
    format!("{}  n{node:<3} {:<18} {}", utc(event["at_ms"].as_u64().unwrap_or(0)), text("kind"), text("text"))
}

/// `tontine metrics`.
pub(crate) async fn metrics(shared: CliContext, arguments: MetricsArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let mut reasons = Vec::new();
    for node in chosen(&client, arguments.from)? {
        match client.metrics(node).await {
            Ok(text) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                print(shared.format(), &json!({ "node": node, "text": text }), || text.clone());
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) => reasons.push(format!("{node}: {error}")),
        }
    }
    Err(CliError::Other(format!("no node answers; {}", reasons.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event =
            json!({ "node": 2, "at_ms": 1_763_754_000_123_u64, "kind": "peer-down", "text": "n1 is down" });
        assert_eq!(line(&event), "2025-11-21T19:40:00.123Z  n2   peer-down          n1 is down");
    }
}
