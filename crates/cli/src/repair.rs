//! `tontine repair`: how replicas keep each other equal.

use std::process::ExitCode;

use client::{Client, ClientError};
use model::{NodeId, PartitionId};
use protocol::report::{
    Comparing, PartitionTree, Parts, RefillReport, RepairReport, Report, ScrubRun, Scrubbed, StoreTrees,
};
use serde_json::{Value as Json, json};
use wire::messages::{AntiEntropyControl, AntiEntropyOrder};

use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::print;
use crate::text::{count, size, table};

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
pub(crate) async fn run(shared: CliContext, command: RepairCommand) -> Result<ExitCode, CliError> {
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
    let is_whole = |report: &Report| report.refill().is_none_or(|refill| !refill.is_under_way());
    let well = answers
        .iter()
        .all(|(_, answer)| answer.as_ref().is_ok_and(|answer| order.is_some() || is_whole(answer)));
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Artifacts are the same everywhere, and a node reads their files whole.
fn nothing_to_compare(store: &str) -> CliError {
    CliError::Usage(format!(
        "store {store} serves artifacts, so there is nothing to compare; to see the state of each node, run `tontine artifact \
         list {store}`, and to read all its files, `tontine repair start --scrub -s {store}`"
    ))
}

type Asked = (NodeId, Result<Report, ClientError>);
type Answers = Vec<Asked>;

async fn ask_all(client: &Client, control: Option<AntiEntropyControl>) -> Answers {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| {
        let control = control.clone();
        async move {
            let answer = match control {
                None => client.report(node.id, Parts::REPAIR).await,
                Some(control) => client.repair_control(node.id, control).await,
            };
            (node.id, answer)
        }
    });
    futures_util::future::join_all(asks).await
}

fn node_json((node, answer): &Asked) -> Json {
    match answer {
        Ok(report) => json!(report),
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
fn concerns(report: &Report, order: AntiEntropyOrder) -> bool {
    let trees = report.repair.iter().flat_map(|repair| &repair.trees);
    let mut trees = trees.filter_map(|tree| tree.only.as_ref());
    let compares = |tree: &PartitionTree| match &tree.compared_with {
        Some(peers) => order == AntiEntropyOrder::Scrub || !peers.is_empty(),
        None => false,
    };
    let first = trees.next();
    first.is_none_or(|first| compares(first) || trees.any(compares))
}

fn ordered(
    node: NodeId,
    order: AntiEntropyOrder,
    part: &Part,
    answer: &Result<Report, ClientError>,
) -> String {
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
fn further((node, answer): &Asked) -> String {
    let Some(repair) = answer.as_ref().ok().and_then(|report| report.repair.as_ref()) else {
        return String::new();
    };
    let mut lines: Vec<String> = Vec::new();
    if let Some(running) = &repair.running {
        let keys = running.progress.keys_differing;
        let what = format!("{} {}", count(keys, "key"), if keys == 1 { "differs" } else { "differ" });
        let (Comparing { peer, store, .. }, went) = (running, Went::from(running));
        lines.push(format!("{node} is comparing store {store} with {peer}: {}", went.describe(&what)));
    }
    if let Some(run) = &repair.scrub.running {
        let what = format!("{} read", count(run.records, "key"));
        lines.push(format!("{node} is scrubbing store {}: {}", run.store, Went::from(run).describe(&what)));
    }
    lines.extend(repair.scrub.last_asked.as_ref().map(|last| scrubbed(*node, last)));
    lines.extend(repair.stopped_parts.iter().map(|part| format!("{node} repair is stopped for {part}")));
    lines.extend(repair.trees.iter().filter_map(|tree| describe_partition(*node, tree)));
    lines.extend(repair.refill.as_ref().map(|refill| describe_refill(*node, refill)));
    lines.into_iter().map(|line| line + "\n").collect()
}

/// What came of the last scrub that was asked for.
fn scrubbed(node: NodeId, Scrubbed { seconds_ago, run }: &Scrubbed) -> String {
    let how = if run.partitions_done < run.partitions { "stopped a scrub early" } else { "has scrubbed" };
    let found = match (run.corrupt_records, run.wrong_leaves) {
        (0, 0) => "no damage found".to_owned(),
        (corrupt, wrong) => format!(
            "found {} and {} in hash trees; fetched the records from other replicas",
            count(corrupt, "corrupt record"),
            count(wrong, "wrong checksum")
        ),
    };
    format!(
        "{node} {how}, {seconds_ago:.0} s ago: {} of {}, {}, {} in {:.1} s; {found}",
        run.partitions_done,
        count(run.partitions, "partition"),
        count(run.records, "key"),
        size(run.bytes),
        run.seconds,
    )
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

impl From<&Comparing> for Went {
    fn from(running: &Comparing) -> Went {
        let Comparing { partitions_done: done, partitions, seconds, keys_left, progress, .. } = *running;
        Went { done, partitions, bytes: progress.bytes, seconds, keys_left }
    }
}

impl From<&ScrubRun> for Went {
    fn from(run: &ScrubRun) -> Went {
        let ScrubRun { partitions_done: done, partitions, bytes, seconds, .. } = *run;
        Went { done, partitions, bytes, seconds, keys_left: 0 }
    }
}

impl Went {
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

/// Of the partition that was asked about.
fn describe_partition(node: NodeId, tree: &StoreTrees) -> Option<String> {
    let (store, tree) = (&tree.store, tree.only.as_ref()?);
    let peers = tree.compared_with.iter().flatten().map(NodeId::to_string).collect::<Vec<_>>();
    let with = match peers.as_slice() {
        [] => "holds no replica of".to_owned(),
        peers => format!("compares with {}", peers.join(", ")),
    };
    let state = match (tree.incomplete, tree.records) {
        (true, _) => "is being refilled".to_owned(),
        (false, Some(records)) => count(records, "record"),
        (false, None) => "hash tree is being rebuilt".to_owned(),
    };
    Some(format!("{node} {with} partition {} of store {store}: {state}", tree.partition.0))
}

fn row((node, answer): &Asked) -> Vec<String> {
    let Some(repair) = answer.as_ref().ok().and_then(|report| report.repair.as_ref()) else {
        let mut row = vec!["-".to_owned(); 10];
        (row[0], row[1]) = (node.to_string(), "no answer".to_owned());
        return row;
    };
    let RepairReport { peers, trees, .. } = repair;
    let last = peers.iter().map(|peer| peer.seconds_ago).min_by(f64::total_cmp);
    let state = match &repair.running {
        Some(Comparing { peer, .. }) => format!("comparing with {peer}"),
        None if repair.stopped => "stopped".to_owned(),
        None => "idle".to_owned(),
    };
    let numbers = [
        peers.iter().map(|peer| peer.outcome.keys_differing).sum(),
        peers.iter().map(|peer| peer.outcome.sets_pulled).sum(),
        peers.iter().map(|peer| peer.outcome.sets_pushed).sum(),
        trees.iter().map(|tree| tree.trees).sum(),
        trees.iter().map(|tree| tree.doubtful).sum(),
        repair.scrub.corrupt_records_total,
        trees.iter().map(|tree| tree.repaired_records_total).sum::<u64>(),
    ];
    let last = last.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.0} s ago"));
    [node.to_string(), state, last].into_iter().chain(numbers.map(|number| number.to_string())).collect()
}

fn describe_refill(node: NodeId, refill: &RefillReport) -> String {
    match refilling(refill) {
        Some(progress) => format!("{node} is refilling lost data: {progress}"),
        None => format!(
            "{node} has refilled its lost data: {}; since it started {}, {}, in {:.0} s",
            count(refill.partitions, "partition"),
            count(refill.records, "record"),
            size(refill.bytes),
            refill.seconds
        ),
    }
}

/// How far a node is that refills, and how long it will take if it goes on like this; `None` when nothing is missing.
pub(crate) fn refilling(refill: &RefillReport) -> Option<String> {
    let (total, left) = (refill.partitions, refill.partitions_left);
    let rate = refill.bytes_per_second.map_or_else(String::new, |rate| format!(", {}/s", size(rate)));
    let time = match refill.seconds_left {
        Some(seconds) => format!("about {seconds} s left"),
        None => "time left unknown".to_owned(),
    };
    refill.is_under_way().then(|| {
        format!(
            "{} of {total} partitions are complete; since it started {}, {}{rate}, {time}",
            total.saturating_sub(left),
            count(refill.records, "record"),
            size(refill.bytes),
        )
    })
}

#[cfg(test)]
mod tests {
    use model::{Generation, StoreName, WallMillis};
    use protocol::report::{Comparison, RepairPart, Scrub};

    use super::*;

    fn answer(repair: RepairReport) -> Result<Report, ClientError> {
        let report = Report::new(NodeId(1), 1, WallMillis(0), Generation(1));
        Ok(Report { repair: Some(repair), ..report })
    }

    #[test]
    fn a_refill_tells_how_far_it_is_until_nothing_is_missing() {
        let mut refill = RefillReport {
            partitions: 64,
            partitions_left: 48,
            records: 700,
            bytes: 8 << 20,
            seconds: 4.0,
            bytes_per_second: Some(2 << 20),
            seconds_left: Some(12),
            ..RefillReport::default()
        };
        let describe = |refill: &RefillReport| describe_refill(NodeId(3), refill);
        assert_eq!(
            describe(&refill),
            "n3 is refilling lost data: 16 of 64 partitions are complete; since it started 700 records, 8.0 MiB, \
             2.0 MiB/s, about 12 s left"
        );
        (refill.seconds_left, refill.bytes_per_second) = (None, None);
        assert!(describe(&refill).ends_with(" 700 records, 8.0 MiB, time left unknown"));
        refill.partitions_left = 0;
        assert_eq!(
            describe(&refill),
            "n3 has refilled its lost data: 64 partitions; since it started 700 records, 8.0 MiB, in 4 s"
        );
    }

    #[test]
    fn an_order_tells_what_each_node_does() {
        let ordered = |partition, order, compared_with: Option<Option<Vec<NodeId>>>| {
            let tree = |compared_with| StoreTrees {
                store: StoreName::new("carts").unwrap(),
                trees: 1,
                doubtful: 0,
                tree_bytes: 0,
                repaired_records_total: 0,
                only: Some(PartitionTree {
                    partition: PartitionId(7),
                    records: None,
                    incomplete: false,
                    compared_with,
                }),
            };
            let trees = compared_with.into_iter().map(tree).collect();
            let part =
                Part { store: Some("carts".to_owned()), partition, has_records: true, has_artifacts: false };
            let answer = answer(RepairReport { trees, ..RepairReport::default() });
            super::ordered(NodeId(1), order, &part, &answer)
        };
        let with_peer = Some(Some(vec![NodeId(2)]));
        assert_eq!(
            ordered(Some(PartitionId(7)), AntiEntropyOrder::Stop, with_peer),
            "n1  stopped for partition 7 of store carts, the rest continues; resume with `tontine repair start --store carts \
             --partition 7`\n"
        );
        assert_eq!(
            ordered(None, AntiEntropyOrder::Start, None),
            "n1  comparing store carts; see the progress with `tontine repair status`\n"
        );
        for (peers, order) in [
            (None, AntiEntropyOrder::Start),
            (Some(Vec::new()), AntiEntropyOrder::Stop),
            (None, AntiEntropyOrder::Scrub),
        ] {
            assert_eq!(
                ordered(Some(PartitionId(7)), order, Some(peers)),
                "n1  nothing to do: no other node has a replica of partition 7 of store carts in common with it\n"
            );
        }
    }

    #[test]
    fn what_runs_tells_how_far_it_is_and_how_long_it_will_take() {
        let run = ScrubRun {
            store: "carts".to_owned(),
            seconds: 1.0,
            partitions: 8,
            partitions_done: 0,
            records: 7,
            bytes: 2048,
            corrupt_records: 0,
            wrong_leaves: 0,
        };
        let last =
            ScrubRun { seconds: 1.5, partitions_done: 8, records: 700, corrupt_records: 1, ..run.clone() };
        let repair = RepairReport {
            stopped_parts: vec![RepairPart { store: Some("carts".to_owned()), partition: None }],
            running: Some(Comparing {
                peer: NodeId(2),
                store: "default".to_owned(),
                seconds: 4.0,
                partitions: 64,
                partitions_done: 16,
                keys_left: 30,
                progress: Comparison { keys_differing: 500, bytes: 8 << 20, ..Comparison::default() },
            }),
            scrub: Scrub {
                running: Some(run),
                last_asked: Some(Scrubbed { seconds_ago: 12.0, run: last }),
                ..Scrub::default()
            },
            ..RepairReport::default()
        };
        let text = describe(&vec![(NodeId(1), answer(repair))]);
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
