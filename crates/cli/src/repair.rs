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
    /// Show how repair stands at each node: comparisons, hash trees, scrub, and what is being refilled. With --store or
    /// --partition, the hash trees of those. Exits with 1 if a node does not answer or is being refilled.
    Status(PartArguments),
    /// Compare with all peers now, at every node, and go on by the schedule. With --store or --partition, only those now;
    /// the schedule goes on with everything that is not stopped.
    Start(StartArguments),
    /// Break off the comparisons that run, and make no others until started again, also after a restart. With --store or
    /// --partition, only those are left out.
    Stop(PartArguments),
}

/// What it is about.
#[derive(Clone, Debug, clap::Args)]
pub struct PartArguments {
    /// Only this partition; `tontine route KEY` names that of a key.
    #[arg(long, value_name = "NUMBER")]
    pub partition: Option<u32>,
}

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct StartArguments {
    /// What it is about.
    #[command(flatten)]
    pub part: PartArguments,
    /// Read all these records at every node instead, and compare only where one is damaged or its hash tree is wrong.
    #[arg(long)]
    pub scrub: bool,
}

impl RepairCommand {
    fn part(&self) -> &PartArguments {
        match self {
            RepairCommand::Status(part) | RepairCommand::Stop(part) => part,
            RepairCommand::Start(arguments) => &arguments.part,
        }
    }
}

/// Carries out a command.
pub(crate) async fn run(shared: Shared, command: RepairCommand) -> Result<ExitCode, CliError> {
    let partition = command.part().partition.map(PartitionId);
    let store = shared.store_named.then(|| shared.store.clone());
    let order = match &command {
        RepairCommand::Status(_) if partition.is_none() && store.is_none() => None,
        RepairCommand::Status(_) => Some(RepairOrder::Look),
        RepairCommand::Start(arguments) if arguments.scrub => Some(RepairOrder::Scrub),
        RepairCommand::Start(_) => Some(RepairOrder::Start),
        RepairCommand::Stop(_) => Some(RepairOrder::Stop),
    };
    let client = shared.client().await?;
    if let Some(store) = &store {
        client.store(store)?;
    }
    let partitions = client.cluster().ring.partitions().len();
    if let Some(id) = partition
        && !client.cluster().ring.partitions().iter().any(|known| known.id == id)
    {
        let refusal = format!(
            "there is no partition {id} among the {partitions}; `tontine route KEY` names that of a key"
        );
        return Err(CliError::Usage(refusal));
    }
    let control = order.map(|order| RepairControl { order, store, partition });
    let order = order.filter(|&order| order != RepairOrder::Look);
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
        (Ok(_), RepairOrder::Look) => format!("{node}\n"),
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
    let further: String = answers.iter().map(further).collect();
    format!("{}{further}", table(&rows))
}

/// What does not fit into a row: what runs and how far it is, what is stopped, and what was lost.
fn further(asked: &(NodeId, Result<Json, ClientError>)) -> String {
    let (node, Ok(answer)) = asked else { return String::new() };
    let mut lines: Vec<String> = Vec::new();
    let running = &answer["running"];
    if let (Some(peer), Some(store)) = (running["peer"].as_u64(), running["store"].as_str()) {
        let progress = &running["progress"];
        let keys = progress["keys_differing"].as_u64().unwrap_or(0);
        let what = format!("{keys} keys differ");
        let went =
            Went { keys_left: running["keys_left"].as_u64().unwrap_or(0), ..Went::of(running, progress) };
        lines.push(format!("{node} compares store {store} with n{peer}: {}", went.describe(&what)));
    }
    let scrub = &answer["scrub"]["running"];
    if let Some(store) = scrub["store"].as_str() {
        let what = format!("{} keys read", scrub["records"]);
        lines.push(format!("{node} scrubs store {store}: {}", Went::of(scrub, scrub).describe(&what)));
    }
    for part in answer["stopped_parts"].as_array().into_iter().flatten().filter_map(Json::as_str) {
        lines.push(format!("{node} does not compare {part}: stopped"));
    }
    for tree in answer["trees"].as_array().into_iter().flatten().filter(|tree| tree["partition"].is_u64()) {
        lines.push(describe_partition(*node, tree));
    }
    let lines: String = lines.into_iter().map(|line| line + "\n").collect();
    format!("{lines}{}", refill(asked).unwrap_or_default())
}

/// How far something is that goes through partitions.
#[derive(Clone, Copy, Debug, Default)]
struct Went {
    done: u64,
    partitions: u64,
    bytes: u64,
    seconds: f64,
    keys_left: u64,
}

impl Went {
    fn of(running: &Json, progress: &Json) -> Went {
        Went {
            done: running["partitions_done"].as_u64().unwrap_or(0),
            partitions: running["partitions"].as_u64().unwrap_or(0),
            bytes: progress["bytes"].as_u64().unwrap_or(0),
            seconds: running["seconds"].as_f64().unwrap_or(0.0),
            keys_left: 0,
        }
    }

    /// Partition n of m, what was met, bytes, rate, and how long it will take if it goes on like this.
    fn describe(self, what: &str) -> String {
        let Went { done, partitions, bytes, seconds, keys_left } = self;
        let rate = if seconds > 0.0 { (bytes as f64 / seconds) as u64 } else { 0 };
        let waiting = if keys_left > 0 { format!(" ({keys_left} on their way)") } else { String::new() };
        let left = match (done, partitions.saturating_sub(done)) {
            (_, 0) => "about to end".to_owned(),
            (0, _) => "not known how long yet".to_owned(),
            (done, left) => format!("about {:.0} s left", (seconds * left as f64 / done as f64).ceil()),
        };
        let (bytes, rate) = (size(bytes), size(rate));
        format!("partition {done} of {partitions}, {what}{waiting}, {bytes}, {rate}/s, {left}")
    }
}

fn describe_partition(node: NodeId, tree: &Json) -> String {
    let (partition, store) = (&tree["partition"], tree["store"].as_str().unwrap_or("?"));
    let peers: Vec<String> =
        tree["compared_with"].as_array().into_iter().flatten().map(|peer| format!("n{peer}")).collect();
    let with = match peers.as_slice() {
        [] => "holds no replica of".to_owned(),
        peers => format!("compares with {}", peers.join(", ")),
    };
    let state = match (tree["incomplete"].as_bool(), tree["records"].as_u64()) {
        (Some(true), _) => "is being refilled".to_owned(),
        (_, Some(records)) => format!("{records} records"),
        (_, None) => "is being counted".to_owned(),
    };
    format!("{node} {with} partition {partition} of store {store}: {state}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_tells_how_far_it_is_and_how_long_it_will_take() {
        let running = json!({
            "node": 1, "stopped": false, "peers": [], "trees": [], "refill": {}, "stopped_parts": ["store carts"],
            "running": {
                "peer": 2, "store": "default", "seconds": 4.0, "partitions": 64, "partitions_done": 16,
                "keys_left": 30, "progress": { "keys_differing": 500, "bytes": 8 << 20 },
            },
            "scrub": {
                "corrupt_records_total": 0,
                "running": {
                    "store": "carts", "seconds": 1.0, "partitions": 8, "partitions_done": 0, "records": 7, "bytes": 2048,
                },
            },
        });
        let text = describe(&vec![(NodeId(1), Ok(running))]);
        for wanted in [
            "n1 compares store default with n2: partition 16 of 64, 500 keys differ (30 on their way), 8.0 MiB, \
             2.0 MiB/s, about 12 s left\n",
            "n1 scrubs store carts: partition 0 of 8, 7 keys read, 2.0 KiB, 2.0 KiB/s, not known how long yet\n",
            "n1 does not compare store carts: stopped\n",
        ] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
    }
}
