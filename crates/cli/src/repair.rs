//! `tontine repair`: how replicas keep each other equal.

use std::process::ExitCode;

use client::{Client, ClientError};
use model::{NodeId, PartitionId};
use serde_json::{Value as Json, json};
use wire::messages::{RepairControl, RepairOrder};

use crate::failure::CliError;
use crate::output::{print, size, table};
use crate::shared::Shared;

/// What to do about repair.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum RepairCommand {
    /// Show how repair stands at each node: comparisons, hash trees, scrub, and what is being refilled. Exits with 1
    /// if a node does not answer or is being refilled.
    Status,
    /// Compare with all peers now, at every node, and go on by the schedule.
    Start(StartArguments),
    /// Break off the comparisons that run, and make no others until started again, also after a restart.
    Stop,
}

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct StartArguments {
    /// Only this partition; `tontine route KEY` names that of a key.
    #[arg(long, value_name = "NUMBER")]
    pub partition: Option<u32>,
    /// Read all records of every node instead, and compare only where one is damaged or its hash tree is wrong.
    #[arg(long, conflicts_with = "partition")]
    pub scrub: bool,
}

/// Carries out a command.
pub(crate) async fn run(shared: Shared, command: RepairCommand) -> Result<ExitCode, CliError> {
    let order = match &command {
        RepairCommand::Status => None,
        RepairCommand::Start(arguments) if arguments.scrub => Some(RepairOrder::Scrub),
        RepairCommand::Start(_) => Some(RepairOrder::Start),
        RepairCommand::Stop => Some(RepairOrder::Stop),
    };
    let partition = match &command {
        RepairCommand::Start(arguments) => arguments.partition.map(PartitionId),
        _ => None,
    };
    let store = shared.store_named.then(|| shared.store.clone());
    let client = shared.client().await?;
    if let Some(store) = &store {
        client.store(store)?;
    }
    let control = order.map(|order| RepairControl { order, store, partition });
    let answers = ask_all(&client, control).await;
    let document = json!({ "nodes": answers.iter().map(node_json).collect::<Vec<_>>() });
    print(shared.format(), &document, || match order {
        None => describe(&answers),
        Some(order) => answers.iter().map(|(node, answer)| ordered(*node, order, answer)).collect(),
    });
    let refilling = |answer: &Json| answer["refill"]["partitions_left"].as_u64().unwrap_or(0) > 0;
    let well = answers
        .iter()
        .all(|(_, answer)| answer.as_ref().is_ok_and(|answer| order.is_some() || !refilling(answer)));
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

type Answers = Vec<(NodeId, Result<Json, ClientError>)>;

async fn ask_all(client: &Client, control: Option<RepairControl>) -> Answers {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| {
        let control = control.clone();
        async move {
            let answer = match control {
                None => client.repair_status(node.id).await,
                Some(control) => client.repair_control(node.id, control).await,
            };
            (node.id, answer.map(|bytes| serde_json::from_slice(&bytes).unwrap_or(Json::Null)))
        }
    });
    futures_util::future::join_all(asks).await
}

fn node_json((node, answer): &(NodeId, Result<Json, ClientError>)) -> Json {
    match answer {
        Ok(answer) => answer.clone(),
        Err(error) => json!({ "node": node, "error": error.to_string() }),
    }
}

fn ordered(node: NodeId, order: RepairOrder, answer: &Result<Json, ClientError>) -> String {
    match (answer, order) {
        (Err(error), _) => format!("{node}  {error} (`tontine doctor` tells what to do about it)\n"),
        (Ok(_), RepairOrder::Start) => {
            format!("{node}  compares; `tontine repair status` shows how it goes\n")
        }
        (Ok(_), RepairOrder::Stop) => format!("{node}  stopped; `tontine repair start` goes on\n"),
        (Ok(_), RepairOrder::Scrub) => {
            format!("{node}  reads all records; `tontine repair status` shows what it finds\n")
        }
    }
}

fn describe(answers: &Answers) -> String {
    let heads =
        ["NODE", "STATE", "LAST", "DIFFERED", "GOT", "SENT", "TREES", "DOUBTFUL", "CORRUPT", "REPAIRED"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(answers.iter().map(row));
    let refills: String = answers.iter().filter_map(refill).collect();
    format!("{}{refills}", table(&rows))
}

fn row((node, answer): &(NodeId, Result<Json, ClientError>)) -> Vec<String> {
    let Ok(answer) = answer else {
        let mut row = vec!["-".to_owned(); 10];
        (row[0], row[1]) = (node.to_string(), "no answer".to_owned());
        return row;
    };
    let peers = || answer["peers"].as_array().into_iter().flatten();
    let sum =
        |field: &str| peers().filter_map(|peer| peer["outcome"][field].as_u64()).sum::<u64>().to_string();
    let trees = |field: &str| {
        let trees = answer["trees"].as_array().into_iter().flatten();
        trees.filter_map(|tree| tree[field].as_u64()).sum::<u64>().to_string()
    };
    let last = peers().filter_map(|peer| peer["seconds_ago"].as_f64()).min_by(f64::total_cmp);
    let state = match (&answer["running"]["peer"], answer["stopped"].as_bool()) {
        (Json::Number(peer), _) => format!("comparing with n{peer}"),
        (_, Some(true)) => "stopped".to_owned(),
        _ => "idle".to_owned(),
    };
    vec![
        node.to_string(),
        state,
        last.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.0} s ago")),
        sum("keys_differing"),
        sum("sets_pulled"),
        sum("sets_pushed"),
        trees("trees"),
        trees("doubtful"),
        answer["scrub"]["corrupt_records_total"].to_string(),
        trees("repaired_records_total"),
    ]
}

fn refill((node, answer): &(NodeId, Result<Json, ClientError>)) -> Option<String> {
    let refill = &answer.as_ref().ok()?["refill"];
    let (total, left) = (refill["partitions"].as_u64()?, refill["partitions_left"].as_u64()?);
    let (records, bytes) = (refill["records"].as_u64()?, refill["bytes"].as_u64()?);
    let gotten = format!("{records} records, {}", size(bytes));
    Some(match total - left {
        done if done == total => {
            format!("{node} has refilled what its disk had lost: {total} partitions, {gotten}\n")
        }
        done => {
            format!(
                "{node} refills what its disk has lost: {done} of {total} partitions are whole, {gotten}\n"
            )
        }
    })
}
