//! `tontine repair`: how replicas keep each other equal.

use std::process::ExitCode;

use client::{Client, ClientError};
use model::{NodeId, PartitionId};
use serde_json::{Value as Json, json};
use wire::messages::{AntiEntropyControl, AntiEntropyOrder};

use crate::failure::CliError;
use crate::output::{count, print, size, table};
use crate::shared::Shared;

/// What to do about repair.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum RepairCommand {
    /// Show the progress of repair on each node: comparisons, hash trees, scrub and refill. With --store or --partition,
    /// show their hash trees. Exits with 1 if a node does not answer or is refilling.
    Status(PartArguments),
    /// Compare all replicas now, on every node, and resume the schedule. With --store or --partition, compare only those
    /// now; the schedule continues with everything that is not stopped.
    Start(StartArguments),
    /// Stop comparing replicas until `tontine repair start`, even after a restart of the nodes. With --store or --partition,
    /// stop only those.
    Stop(PartArguments),
}

/// What it is about.
#[derive(Clone, Debug, clap::Args)]
pub struct PartArguments {
    /// Only this partition; find the partition of a key with `tontine route KEY`.
    #[arg(long, value_name = "NUMBER")]
    pub partition: Option<u32>,
}

/// What to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct StartArguments {
    /// What it is about.
    #[command(flatten)]
    pub part: PartArguments,
    /// Scrub instead: verify every record, and every file of an artifact, on every node. Compares only partitions with
    /// damage or wrong hash trees.
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
        RepairCommand::Status(_) => Some(AntiEntropyOrder::Look),
        RepairCommand::Start(arguments) if arguments.scrub => Some(AntiEntropyOrder::Scrub),
        RepairCommand::Start(_) => Some(AntiEntropyOrder::Start),
        RepairCommand::Stop(_) => Some(AntiEntropyOrder::Stop),
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
            "there is no partition {id}, the cluster has {partitions}; find the partition of a key with `tontine route KEY`"
        );
        return Err(CliError::Usage(refusal));
    }
    let cluster = client.cluster();
    let of_artifacts = store.as_ref().map(|store| cluster.read_only(store).is_some());
    let part = Part {
        store: store.clone(),
        partition,
        has_records: of_artifacts != Some(true),
        has_artifacts: of_artifacts.unwrap_or(!cluster.read_only.is_empty()) && partition.is_none(),
    };
    if let (Some(true), Some(name)) = (of_artifacts, &store)
        && (order != Some(AntiEntropyOrder::Scrub) || partition.is_some())
    {
        return Err(nothing_to_compare(name));
    }
    let control = order.map(|order| AntiEntropyControl { order, store, partition });
    let order = order.filter(|&order| order != AntiEntropyOrder::Look);
    let answers = ask_all(&client, control).await;
    let document = json!({ "nodes": answers.iter().map(node_json).collect::<Vec<_>>() });
    print(shared.format(), &document, || match order {
        None => describe(&answers),
        Some(order) => answers.iter().map(|(node, answer)| ordered(*node, order, &part, answer)).collect(),
    });
    let is_whole = |answer: &Json| refilling(&answer["refill"]).is_none();
    let well = answers
        .iter()
        .all(|(_, answer)| answer.as_ref().is_ok_and(|answer| order.is_some() || is_whole(answer)));
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Artifacts are the same everywhere, and a node reads their files whole.
fn nothing_to_compare(store: &str) -> CliError {
    CliError::Usage(format!(
        "store {store} serves artifacts, so there is nothing to compare; to see how each node stands, run `tontine artifact \
         list {store}`, and to read all its files, `tontine repair start --scrub -s {store}`"
    ))
}

type Answers = Vec<(NodeId, Result<Json, ClientError>)>;

async fn ask_all(client: &Client, control: Option<AntiEntropyControl>) -> Answers {
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

/// What an order is about.
struct Part {
    store: Option<String>,
    partition: Option<PartitionId>,
    /// Whether it has stores that take writes.
    has_records: bool,
    /// Whether it has read-only stores.
    has_artifacts: bool,
}

impl Part {
    /// For people; `None` when it is everything.
    fn shown(&self) -> Option<String> {
        let store = self.store.as_ref().map(|store| format!("store {store}"));
        let partition = self.partition.map(|id| format!("partition {}", id.0));
        let both: Vec<String> = partition.into_iter().chain(store).collect();
        (!both.is_empty()).then(|| both.join(" of "))
    }

    /// As options of a command.
    fn options(&self) -> String {
        let store = self.store.as_ref().map(|store| format!(" --store {store}"));
        let partition = self.partition.map(|id| format!(" --partition {}", id.0));
        store.into_iter().chain(partition).collect()
    }
}

/// Whether a node has anything to compare, or only to read, of what it was asked about.
fn concerns(answer: &Json, order: AntiEntropyOrder) -> bool {
    let mut trees =
        answer["trees"].as_array().into_iter().flatten().filter(|tree| tree["partition"].is_u64());
    let compares = |tree: &Json| match &tree["compared_with"] {
        Json::Array(peers) => order == AntiEntropyOrder::Scrub || !peers.is_empty(),
        _ => false,
    };
    let first = trees.next();
    first.is_none_or(|first| compares(first) || trees.any(compares))
}

fn ordered(node: NodeId, order: AntiEntropyOrder, part: &Part, answer: &Result<Json, ClientError>) -> String {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return format!("{node}  {error}; find out more with `tontine doctor`\n"),
    };
    let (what, options) = (part.shown(), part.options());
    let of = |what: &Option<String>| what.as_ref().map_or_else(String::new, |what| format!(" {what}"));
    if !concerns(answer, order) {
        return format!(
            "{node}  nothing to do: no other node has a replica of{} in common with it\n",
            of(&what)
        );
    }
    match order {
        AntiEntropyOrder::Start => {
            format!("{node}  comparing{}; see the progress with `tontine repair status`\n", of(&what))
        }
        AntiEntropyOrder::Stop => match what {
            None => format!("{node}  stopped; resume with `tontine repair start`\n"),
            Some(what) => format!(
                "{node}  stopped for {what}, the rest continues; resume with `tontine repair start{options}`\n"
            ),
        },
        AntiEntropyOrder::Look => format!("{node}\n"),
        AntiEntropyOrder::Scrub => {
            // The list says when a node last read all, so a pass over one store is seen only as an event.
            let list = if what.is_some() { "`tontine events`" } else { "`tontine artifact list`" };
            let (records, artifacts) = ("`tontine repair status`", list);
            let what = what.map_or_else(String::new, |what| format!(" of {what}"));
            let (read, shown) = match (part.has_records, part.has_artifacts) {
                (true, false) => ("records", records.to_owned()),
                (false, _) => ("artifacts", artifacts.to_owned()),
                (true, true) => ("records and artifacts", format!("{records} and {artifacts}")),
            };
            format!("{node}  verifying all {read}{what}; see the result with {shown}\n")
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
        let what = format!("{} {}", count(keys, "key"), if keys == 1 { "differs" } else { "differ" });
        let went =
            Went { keys_left: running["keys_left"].as_u64().unwrap_or(0), ..Went::of(running, progress) };
        lines.push(format!("{node} is comparing store {store} with n{peer}: {}", went.describe(&what)));
    }
    let scrub = &answer["scrub"]["running"];
    if let Some(store) = scrub["store"].as_str() {
        let what = format!("{} read", count(scrub["records"].as_u64().unwrap_or(0), "key"));
        lines.push(format!("{node} is scrubbing store {store}: {}", Went::of(scrub, scrub).describe(&what)));
    }
    lines.extend(scrubbed(*node, &answer["scrub"]["last_asked"]));
    for part in answer["stopped_parts"].as_array().into_iter().flatten().filter_map(Json::as_str) {
        lines.push(format!("{node} repair is stopped for {part}"));
    }
    for tree in answer["trees"].as_array().into_iter().flatten().filter(|tree| tree["partition"].is_u64()) {
        lines.push(describe_partition(*node, tree));
    }
    let lines: String = lines.into_iter().map(|line| line + "\n").collect();
    format!("{lines}{}", refill(asked).unwrap_or_default())
}

/// What came of the last scrub that was asked for.
fn scrubbed(node: NodeId, last: &Json) -> Option<String> {
    let number = |field: &str| last[field].as_u64();
    let (done, partitions) = (number("partitions_done")?, number("partitions")?);
    let how = if done < partitions { "stopped a scrub early" } else { "has scrubbed" };
    let found = match (number("corrupt_records")?, number("wrong_leaves")?) {
        (0, 0) => "no damage found".to_owned(),
        (corrupt, wrong) => format!(
            "found {} and {} in hash trees; fetched the records from other replicas",
            count(corrupt, "corrupt record"),
            count(wrong, "wrong checksum")
        ),
    };
    Some(format!(
        "{node} {how}, {:.0} s ago: {done} of {}, {}, {} in {:.1} s; {found}",
        last["seconds_ago"].as_f64()?,
        count(partitions, "partition"),
        count(number("records")?, "key"),
        size(number("bytes")?),
        last["seconds"].as_f64()?,
    ))
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
        let waiting = if keys_left > 0 { format!(" ({keys_left} in transit)") } else { String::new() };
        let left = match (done, partitions.saturating_sub(done)) {
            (_, 0) => "almost done".to_owned(),
            (0, _) => "time left unknown".to_owned(),
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
        (_, Some(records)) => count(records, "record"),
        (_, None) => "hash tree is being rebuilt".to_owned(),
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
    Some(match refilling(refill) {
        Some(progress) => format!("{node} is refilling lost data: {progress}\n"),
        None => {
            let (records, bytes) =
                (count(refill["records"].as_u64()?, "record"), size(refill["bytes"].as_u64()?));
            let (partitions, seconds) =
                (count(refill["partitions"].as_u64()?, "partition"), refill["seconds"].as_f64()?);
            format!(
                "{node} has refilled its lost data: {partitions}; since it started {records}, {bytes}, in {seconds:.0} s\n"
            )
        }
    })
}

/// How far a node is that refills, and how long it will take if it goes on like this; `None` when nothing is missing.
pub(crate) fn refilling(refill: &Json) -> Option<String> {
    let number = |field: &str| refill[field].as_u64();
    let (total, left) = (number("partitions")?, number("partitions_left").filter(|&left| left > 0)?);
    let rate = number("bytes_per_second").map_or_else(String::new, |rate| format!(", {}/s", size(rate)));
    let time = match number("seconds_left") {
        Some(seconds) => format!("about {seconds} s left"),
        None => "time left unknown".to_owned(),
    };
    Some(format!(
        "{} of {total} partitions are complete; since it started {}, {}{rate}, {time}",
        total.saturating_sub(left),
        count(number("records")?, "record"),
        size(number("bytes")?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refill_tells_how_far_it_is_until_nothing_is_missing() {
        let mut refill = json!({
            "partitions": 64, "partitions_left": 48, "records": 700, "bytes": 8 << 20, "seconds": 4.0,
            "bytes_per_second": 2 << 20, "seconds_left": 12,
        });
        let describe = |refill: &Json| {
            super::refill(&(NodeId(3), Ok(json!({ "refill": refill })))).expect("something was lost")
        };
        assert_eq!(
            describe(&refill),
            "n3 is refilling lost data: 16 of 64 partitions are complete; since it started 700 records, 8.0 MiB, \
             2.0 MiB/s, about 12 s left\n"
        );
        (refill["seconds_left"], refill["bytes_per_second"]) = (Json::Null, Json::Null);
        assert!(describe(&refill).ends_with(" 700 records, 8.0 MiB, time left unknown\n"));
        refill["partitions_left"] = json!(0);
        assert_eq!(
            describe(&refill),
            "n3 has refilled its lost data: 64 partitions; since it started 700 records, 8.0 MiB, in 4 s\n"
        );
        assert_eq!(super::refill(&(NodeId(3), Ok(json!({ "refill": null })))), None);
    }

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
                "last_asked": {
                    "seconds_ago": 12.0, "seconds": 1.5, "partitions": 8, "partitions_done": 8, "records": 700,
                    "bytes": 2048, "corrupt_records": 1, "wrong_leaves": 0,
                },
            },
        });
        let text = describe(&vec![(NodeId(1), Ok(running))]);
        let stopped = |partition, order, answer: Json| {
            let part =
                Part { store: Some("carts".to_owned()), partition, has_records: true, has_artifacts: false };
            ordered(NodeId(1), order, &part, &Ok(answer))
        };
        let tree = |peers: Json| json!({ "trees": [{ "partition": 7, "compared_with": peers }] });
        assert_eq!(
            stopped(Some(PartitionId(7)), AntiEntropyOrder::Stop, tree(json!([2]))),
            "n1  stopped for partition 7 of store carts, the rest continues; resume with `tontine repair start --store carts \
             --partition 7`\n"
        );
        assert_eq!(
            stopped(None, AntiEntropyOrder::Start, json!({ "trees": [] })),
            "n1  comparing store carts; see the progress with `tontine repair status`\n"
        );
        for (peers, order) in [
            (Json::Null, AntiEntropyOrder::Start),
            (json!([]), AntiEntropyOrder::Stop),
            (Json::Null, AntiEntropyOrder::Scrub),
        ] {
            assert_eq!(
                stopped(Some(PartitionId(7)), order, tree(peers)),
                "n1  nothing to do: no other node has a replica of partition 7 of store carts in common with it\n"
            );
        }
        for wanted in [
            "n1 is comparing store default with n2: partition 16 of 64, 500 keys differ (30 in transit), 8.0 MiB, \
             2.0 MiB/s, about 12 s left\n",
            "n1 is scrubbing store carts: partition 0 of 8, 7 keys read, 2.0 KiB, 2.0 KiB/s, time left unknown\n",
            "n1 has scrubbed, 12 s ago: 8 of 8 partitions, 700 keys, 2.0 KiB in 1.5 s; found 1 corrupt record and \
             0 wrong checksums in hash trees; fetched the records from other replicas\n",
            "n1 repair is stopped for store carts\n",
        ] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
    }
}
